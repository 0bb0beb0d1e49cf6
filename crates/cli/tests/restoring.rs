//! `restore`.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::os_target::OsTarget;
use onefold_engine::io::tree::{TargetTree, Trust, Xattr};
use onefold_engine::testing::mem_tree::{self, MemTree};

use crate::fixture::{Fixture, Ran, contents, noise};

#[test]
fn what_was_backed_up_comes_back() {
    let fixture = Fixture::encrypted();
    fixture.write("a/b/file", &vec![5; 70_000]);
    fixture.write("a/other", b"x");
    fixture.write("empty", b"");
    fixture.run(["backup", "source", "-q"]).code(0);
    let base = fixture.path("source").to_str().unwrap().to_owned();
    let part = format!(
        "latest:{}",
        if fixture.run(["ls", "latest", "-q"]).stdout().starts_with("/source") { "/source" } else { &base }
    );
    let ran = fixture.run(["restore", &part, "--target", "out", "--verify", "--json"]).code(0);
    assert_eq!(contents(&fixture.path("source")), contents(&fixture.path("out")));
    let summary = ran.messages().pop().unwrap();
    assert_eq!(summary["message_type"], "summary");
    assert_eq!((&summary["bytes_restored"], &summary["files_deleted"]), (&70_001.into(), &0.into()));
    assert_eq!(summary["files_verified"], 3);
    fixture
        .run(["restore", &part, "--target", "out"])
        .code(1)
        .says("onefold: out: not empty; restore into an empty directory, or say with --overwrite what is to happen");
    let again = fixture.run(["restore", &part, "--target", "out", "--overwrite", "if-changed"]).code(0);
    assert!(again.stdout().contains("Skipped 3 files"), "{}", again.stdout());
    fixture.run(["restore", &part, "--target", "some", "--include", "other"]).code(0);
    assert_eq!(contents(&fixture.path("some")).iter().filter(|(_, bytes)| bytes.is_some()).count(), 1);
    fixture.run(["restore", &part, "--target", "dry", "--dry-run"]).code(0);
    assert!(!fixture.path("dry").exists());
}

#[test]
fn a_restore_to_nowhere_reads_everything_writes_nothing_and_reports_damage() {
    let fixture = Fixture::encrypted();
    fixture.write("a/file", &noise(1, 70_000));
    fixture.write("a/other", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let standing = || std::fs::read_dir(fixture.path(".")).unwrap().count();
    let before = standing();
    let counts = |ran: Ran| {
        let summary = ran.messages().pop().unwrap();
        ["message_type", "files_restored", "bytes_restored", "regions_read"].map(|field| summary[field].clone())
    };
    let drilled = counts(fixture.run(["restore", "latest", "--discard", "--json"]).code(0));
    assert_eq!(standing(), before);
    assert_eq!(drilled, counts(fixture.run(["restore", "latest", "--target", "out", "--json"]).code(0)));
    assert_eq!(drilled[2], 70_001);
    let told = fixture.run(["restore", "latest", "--discard"]).code(0).stdout();
    assert!(told.contains("Summary: Read and discarded "), "{told}");
    for other in [&["--target", "out2"][..], &["--verify"], &["--overwrite", "always"], &["--delete"], &["--dry-run"]] {
        fixture.run(["restore", "latest", "--discard"].iter().chain(other)).code(1).says("cannot be used with");
    }
    fixture.run(["restore", "latest"]).code(1).says("--target <DIR>|--discard");
    let root = fixture.path("repository/containers");
    let all = contents(&root).into_iter().filter_map(|(path, bytes)| Some((bytes?, path)));
    let (bytes, path) = all.max_by_key(|(bytes, _)| bytes.len()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(root.join(path)).unwrap();
    file.write_all_at(&[!bytes[bytes.len() / 2]], bytes.len() as u64 / 2).unwrap();
    fixture.run(["restore", "latest", "--discard"]).code(1).says("a/file: ").says("chunks lost (first: ");
}

/// A restore gave a file that lacked bytes its full length and its time, so that the next one took it for unchanged and
/// ended with 0. With `always` it emptied a good file before it knew whether its data could be read.
#[test]
fn a_file_that_lacks_bytes_leaves_what_stood_there_and_is_tried_again() {
    let fixture = Fixture::new();
    fixture.write("file", &noise(1, 2_000_000));
    fixture.write("other", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let restore = |overwrite: &str| {
        fixture.run(["restore", "latest:/source", "--target", "out", "--overwrite", overwrite, "--json"])
    };
    restore("always").code(0);
    let before = std::fs::read(fixture.path("out/file")).unwrap();
    let root = fixture.path("repository/containers");
    let all = contents(&root).into_iter().filter_map(|(path, bytes)| Some((bytes?, path)));
    let (bytes, path) = all.max_by_key(|(bytes, _)| bytes.len()).unwrap();
    let damage = |byte: u8| {
        let file = std::fs::OpenOptions::new().write(true).open(root.join(&path)).unwrap();
        file.write_all_at(&[byte], bytes.len() as u64 / 2).unwrap();
    };
    damage(!bytes[bytes.len() / 2]);
    for overwrite in ["always", "if-changed", "if-newer", "never"] {
        let is_kept = overwrite != "always";
        let ran = restore(overwrite).code(i32::from(!is_kept));
        let summary = ran.messages().pop().unwrap();
        // The other file may lie in the same region.
        assert_eq!(summary["files_incomplete"] == 0, is_kept, "{overwrite}");
        assert!(std::fs::read(fixture.path("out/file")).unwrap() == before, "{overwrite}: a good file was touched");
    }
    std::fs::remove_file(fixture.path("out/file")).unwrap();
    for overwrite in ["always", "if-changed", "if-newer", "never"] {
        let ran =
            restore(overwrite).code(1).says("chunks lost").says("what could be read is in out/file.onefold-partial");
        assert_eq!(ran.stderr().lines().filter(|line| line.contains("/file: ")).count(), 1, "{overwrite}");
        assert!(!fixture.path("out/file").exists(), "{overwrite}");
        let partial = fixture.path("out/file.onefold-partial").metadata().unwrap();
        assert_eq!(partial.permissions().mode() & 0o7777, 0o600);
        assert!(0 < partial.len());
    }
    let delete = ["restore", "latest:/source", "--target", "out", "--overwrite", "always", "--delete", "-q"];
    fixture.run(delete).code(1);
    assert!(fixture.path("out/file.onefold-partial").exists(), "what could be read was deleted");
    damage(bytes[bytes.len() / 2]);
    restore("if-changed").code(0);
    assert_eq!(contents(&fixture.path("out")), contents(&fixture.path("source")));
}

/// A directory that was restored on its own came back with whatever mode its target had.
#[test]
fn the_target_gets_the_metadata_of_the_directory_that_is_restored_into_it() {
    let fixture = Fixture::new();
    fixture.write("private/file", b"x");
    std::fs::set_permissions(fixture.path("source/private"), std::fs::Permissions::from_mode(0o700)).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let made = fixture.path("source/private").metadata().unwrap();
    fixture.run(["restore", "latest:/source/private", "--target", "out", "-q"]).code(0);
    let found = fixture.path("out").metadata().unwrap();
    assert_eq!(found.permissions().mode() & 0o7777, 0o700);
    assert_eq!((found.mtime(), found.mtime_nsec()), (made.mtime(), made.mtime_nsec()));
    // A whole snapshot has no entry for its root; neither has a file that is restored alone.
    for (what, target) in [("latest", "whole"), ("latest:/source/private/file", "alone")] {
        std::fs::create_dir(fixture.path(target)).unwrap();
        std::fs::set_permissions(fixture.path(target), std::fs::Permissions::from_mode(0o710)).unwrap();
        fixture.run(["restore", what, "--target", target, "-q"]).code(0);
        assert_eq!(fixture.path(target).metadata().unwrap().permissions().mode() & 0o7777, 0o710, "{what}");
    }
}

/// Whoever is not root cannot give files to others. As in restic, that is no failure. Only root can try this.
#[test]
fn ownership_that_only_root_can_set_is_counted_and_is_no_failure() {
    use std::os::unix::process::CommandExt;
    let fixture = Fixture::new();
    if fixture.path("source").metadata().unwrap().uid() != 0 {
        return;
    }
    fixture.write("roots/file", b"x");
    fixture.write("roots/set-id", b"x");
    std::fs::set_permissions(fixture.path("source/roots/set-id"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let given = std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(fixture.path("")).status();
    assert!(given.unwrap().success());
    let restore = |options: &[&str]| {
        let all = ["restore", "latest:/source", "--target", "out", "--trusted"];
        let mut command = fixture.command(all.iter().chain(options));
        command.env("ONEFOLD_CACHE_DIR", fixture.path("other-cache")).uid(65_534).gid(65_534);
        Ran(command.output().unwrap())
    };
    let told = restore(&[]).code(0).stdout();
    assert!(told.contains("the target does not allow it: ownership of 4 files/dirs, the first is /"), "{told}");
    let mode = fixture.path("out/roots/set-id").metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o755, "a program that runs as another user than before");
    let summary = restore(&["--overwrite", "always", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&summary["owners_not_restored"], &summary["set_ids_not_restored"]), (&4.into(), &1.into()));
    assert_eq!(summary["error_count"], 0);
}

/// A restore that was interrupted between the names of an inode, and repeated with a policy that keeps what stands, made
/// the missing names files of their own and ended with 0.
#[test]
fn names_that_are_missing_are_linked_to_the_one_that_is_kept() {
    let fixture = Fixture::new();
    fixture.write("a", b"shared");
    for name in ["b", "c"] {
        std::fs::hard_link(fixture.path("source/a"), fixture.path("source").join(name)).unwrap();
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.run(["restore", "latest:/source", "--target", "out"]).code(0);
    let inode = |name: &str| fixture.path("out").join(name).metadata().unwrap().ino();
    for overwrite in ["never", "if-newer", "if-changed"] {
        std::fs::remove_file(fixture.path("out/b")).unwrap();
        fixture.run(["restore", "latest:/source", "--target", "out", "--overwrite", overwrite]).code(0);
        assert_eq!((inode("b"), inode("c")), (inode("a"), inode("a")), "{overwrite}");
    }
    // A file of the user's own is no name of the snapshot's inode.
    std::fs::remove_file(fixture.path("out/a")).unwrap();
    std::fs::remove_file(fixture.path("out/b")).unwrap();
    std::fs::write(fixture.path("out/a"), b"another").unwrap();
    fixture.run(["restore", "latest:/source", "--target", "out", "--overwrite", "never"]).code(0);
    assert_eq!(std::fs::read(fixture.path("out/b")).unwrap(), b"shared");
    assert_eq!(std::fs::read(fixture.path("out/a")).unwrap(), b"another");
}

/// A directory that an earlier restore had left read-only kept its owner from repeating that restore.
#[test]
fn a_read_only_directory_of_ones_own_is_filled_again() {
    use std::os::unix::process::CommandExt;
    let fixture = Fixture::new();
    let is_root = fixture.path("source").metadata().unwrap().uid() == 0;
    fixture.write("d/e/file", b"x");
    for directory in ["d/e", "d"] {
        std::fs::set_permissions(fixture.path("source").join(directory), std::fs::Permissions::from_mode(0o555))
            .unwrap();
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    if is_root {
        let given = std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(fixture.path("")).status();
        assert!(given.unwrap().success());
    }
    let restore = || {
        let all = ["restore", "latest:/source", "--target", "out", "--overwrite", "if-changed"];
        let mut command = fixture.command(all.iter());
        command.env("ONEFOLD_CACHE_DIR", fixture.path("other-cache"));
        if is_root {
            command.uid(65_534).gid(65_534);
        }
        Ran(command.output().unwrap())
    };
    restore().code(0);
    let inner = fixture.path("out/d/e");
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::remove_file(inner.join("file")).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o555)).unwrap();
    restore().code(0);
    assert_eq!(std::fs::read(inner.join("file")).unwrap(), b"x");
    // The directory itself, with files that go.
    let part = |options: &[&str]| {
        let all = ["restore", "latest:/source/d", "--target", "part", "-q"];
        let mut command = fixture.command(all.iter().chain(options));
        command.env("ONEFOLD_CACHE_DIR", fixture.path("other-cache"));
        if is_root {
            command.uid(65_534).gid(65_534);
        }
        Ran(command.output().unwrap())
    };
    part(&[]).code(0);
    for (directory, name) in [("part", "new"), ("part/e", "new"), ("part", "closed/below")] {
        let path = fixture.path(directory).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"x").unwrap();
        std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    if is_root {
        let given = std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(fixture.path("part")).status();
        assert!(given.unwrap().success());
    }
    for options in [&["--overwrite", "always"][..], &["--overwrite", "if-changed", "--delete"]] {
        part(options).code(0);
        assert_eq!(fixture.path("part/e/new").exists(), options.len() == 2);
    }
    let names = contents(&fixture.path("part"));
    assert_eq!(names.iter().filter(|(_, bytes)| bytes.is_some()).count(), 1, "{names:?}");
    for directory in ["out/d", "out/d/e", "source/d", "source/d/e", "part", "part/e"] {
        let mode = fixture.path(directory).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o555, "{directory}");
        std::fs::set_permissions(fixture.path(directory), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A dry run promised success where the restore refuses a target that is not empty.
#[test]
fn a_dry_run_ends_with_the_exit_code_of_the_restore() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    std::fs::create_dir(fixture.path("out")).unwrap();
    std::fs::write(fixture.path("out/other"), b"x").unwrap();
    let before = fixture.path("out").metadata().unwrap().modified().unwrap();
    for options in [&["--dry-run"][..], &[]] {
        fixture.run(["restore", "latest", "--target", "out"].iter().chain(options)).code(1).says("not empty");
    }
    fixture.run(["restore", "latest", "--target", "out", "--overwrite", "always", "--dry-run"]).code(0);
    assert_eq!(fixture.path("out").metadata().unwrap().modified().unwrap(), before);
}

#[test]
fn what_to_take_and_what_to_leave_out_exclude_each_other() {
    let fixture = Fixture::encrypted();
    for take in ["--include", "--iinclude"] {
        for leave in ["--exclude", "--iexclude"] {
            fixture
                .run(["restore", "latest", "--target", "out", take, "a", leave, "b"])
                .code(1)
                .says("cannot be used with");
        }
    }
}

#[test]
fn what_is_left_as_it_stands_is_not_verified() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "-q"]).code(0);
    for when in ["never", "if-newer", "if-changed"] {
        fixture
            .run(["restore", "latest", "--target", "out", "--verify", "--overwrite", when])
            .code(1)
            .says(&format!("--verify compares every file with the snapshot, and --overwrite {when} leaves some"));
        assert!(!fixture.path("out").exists(), "{when}");
    }
    for _ in 0..2 {
        let ran = fixture.run(["restore", "latest", "--target", "out", "--verify", "--overwrite", "always"]).code(0);
        assert!(ran.stdout().contains("Verified 1 file"), "{}", ran.stdout());
    }
}

#[test]
fn a_pattern_that_is_none_is_named() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "--exclude", "a/["]).code(1).says("pattern `a/[`: unclosed bracket");
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.run(["restore", "latest", "--target", "out", "-e", "["]).code(1).says("pattern `[`: unclosed bracket");
}

#[test]
fn every_entry_is_named_on_request() {
    let fixture = Fixture::encrypted();
    fixture.write("dir/file", b"1234");
    fixture.write("other", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let actions = |options: &[&str]| {
        let ran = fixture.run(["restore", "latest", "--json", "-vv", "--target", "out"].iter().chain(options)).code(0);
        let of = |message: &serde_json::Value| {
            let item = message["item"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            (item, message["action"].as_str().unwrap().to_owned())
        };
        let messages = ran.messages();
        let mut told: Vec<_> =
            messages.iter().filter(|message| message["message_type"] == "verbose_status").map(of).collect();
        told.retain(|(item, _)| ["file", "other", "dir"].contains(&item.as_str()));
        told.sort();
        told
    };
    let entry = |item: &str, action: &str| (item.to_owned(), action.to_owned());
    let all = |action: &str| vec![entry("dir", "restored"), entry("file", action), entry("other", action)];
    assert_eq!(actions(&["--dry-run"]), all("restored"));
    assert_eq!(actions(&[]), all("restored"));
    assert_eq!(actions(&["--overwrite", "always"]), all("updated"));
    assert_eq!(actions(&["--overwrite", "never"]), all("unchanged"));
}

/// A user restored with `--overwrite never` beside what they had: a file stood where the snapshot had a directory of the
/// same name, and was deleted to make way for it. With `if-newer` a directory full of newer files was deleted, because
/// the snapshot had an old file of that name. What is promised to be left alone is left alone, and what would have to be
/// in its place is counted as skipped.
#[test]
fn nothing_that_is_to_be_left_alone_makes_way_for_something_of_another_kind() {
    let fixture = Fixture::new();
    fixture.write("name/below/file", b"from the snapshot");
    fixture.write("other", b"from the snapshot");
    fixture.run(["backup", "source", "-q"]).code(0);
    let part = "latest:/source";
    let target = fixture.path("out");
    std::fs::create_dir_all(target.join("other")).unwrap();
    std::fs::write(target.join("name"), b"precious").unwrap();
    std::fs::write(target.join("other/newer"), b"precious").unwrap();
    let before = contents(&target);
    let ran = fixture.run(["restore", part, "--target", "out", "--overwrite", "never", "--json"]).code(0);
    assert_eq!(contents(&target), before);
    let summary = ran.messages().pop().unwrap();
    assert_eq!((&summary["files_restored"], &summary["files_skipped"]), (&0.into(), &4.into()));
    fixture.run(["restore", part, "--target", "out", "--overwrite", "if-newer"]).code(0);
    assert_eq!(contents(&target), before);
    let always = ["restore", part, "--target", "out", "--overwrite", "always"];
    for options in [&["--dry-run"][..], &[]] {
        let refused = fixture.run(always.iter().chain(options)).code(1);
        assert!(refused.stderr().contains("/other: is not restored: a directory that is not empty stands there"));
        assert_eq!(std::fs::read(target.join("other/newer")).unwrap(), b"precious");
    }
    let summary = fixture.run(always.iter().chain(&["--delete", "--json"])).code(0).messages().pop().unwrap();
    assert_eq!(summary["files_deleted"], 1);
    assert_eq!(contents(&target), contents(&fixture.path("source")));
}

/// A file that was named itself came back whatever the patterns said.
#[test]
fn patterns_hold_for_a_file_that_is_restored_alone() {
    let fixture = Fixture::new();
    fixture.write("a/file", b"1234");
    fixture.run(["backup", "source", "-q"]).code(0);
    let restored = |options: &[&str]| {
        let all = ["restore", "latest:/source/a/file", "--target", "out", "--overwrite", "always"];
        let summary = fixture.run(all.iter().chain(&["--json"]).chain(options)).code(0).messages().pop().unwrap();
        let stands = fixture.path("out/file").exists();
        let _ = std::fs::remove_file(fixture.path("out/file"));
        (summary["files_restored"].as_u64().unwrap(), stands)
    };
    for options in [["--exclude", "*"], ["--exclude", "file"], ["--iexclude", "FILE"], ["--include", "other"]] {
        assert_eq!(restored(&options), (0, false), "{options:?}");
    }
    for options in [&["--exclude", "other"][..], &["--include", "file"], &["--verify"]] {
        assert_eq!(restored(options), (1, true), "{options:?}");
    }
}

/// A directory's default ACL is inherited by what is created in it. A file got its mode, which makes the inherited ACL
/// effective, before that ACL was removed: others could open the file for that long.
#[test]
fn an_inherited_acl_is_gone_before_a_file_gets_its_mode() {
    let fixture = Fixture::new();
    fixture.write("file", b"secret");
    std::fs::set_permissions(fixture.path("source/file"), std::fs::Permissions::from_mode(0o640)).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    // Version 2; owner rwx, user 1000 rw, group -, mask rw, others -.
    let mut acl = vec![2, 0, 0, 0];
    let none = u32::MAX;
    for (tag, rights, id) in [(1_u16, 7_u16, none), (2, 6, 1000), (4, 0, none), (16, 6, none), (32, 0, none)] {
        acl.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let target = OsTarget::create(&fixture.path("out")).unwrap();
    let metadata = target.metadata(Path::new("")).unwrap().unwrap();
    let acl = [Xattr { name: "system.posix_acl_default".into(), value: acl }];
    let unset = target.set_metadata(Path::new(""), &metadata, &acl, Trust::Full).unwrap();
    let has_strace = std::process::Command::new("strace").arg("-V").output().is_ok();
    if !unset.failures.is_empty() || !has_strace {
        return;
    }
    let plain = fixture.command(["restore", "latest:/source", "--target", "out", "-q"]);
    let trace = fixture.path("trace");
    let mut traced = std::process::Command::new("strace");
    traced.args(["-f", "-qq", "-e", "trace=fchmod,fremovexattr", "-o"]).arg(&trace).arg(plain.get_program());
    traced.args(plain.get_args()).current_dir(fixture.path("")).env_clear();
    for (name, value) in plain.get_envs() {
        traced.env(name, value.unwrap());
    }
    assert!(traced.status().unwrap().success());
    let trace = std::fs::read_to_string(trace).unwrap();
    // The name of the attribute is not looked for: strace shows its address where it may not read the memory.
    let line = |call: &str, end: &str| {
        let found = trace.lines().position(|line| line.contains(call) && line.contains(end));
        found.unwrap_or_else(|| panic!("no {call} with {end}: {trace}"))
    };
    assert!(line("fremovexattr(", "= 0") < line("fchmod(", "0640"), "{trace}");
    assert_eq!(fixture.path("out/file").metadata().unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(mem_tree::xattrs(&OsSource, &fixture.path("out/file")).unwrap(), []);
}

/// Makes a fixture with a snapshot of two files, restored to `out`, where more stands than the snapshot has.
fn restored_with_more() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("keep", b"1234");
    fixture.write("sub/keep", b"5678");
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.run(["restore", "latest:/source", "--target", "out", "-q"]).code(0);
    let out = fixture.path("out");
    std::fs::create_dir_all(out.join("more/below")).unwrap();
    for file in ["stale.txt", "stale.log", "sub/stale.txt", "more/below/file"] {
        std::fs::write(out.join(file), b"stale").unwrap();
    }
    std::fs::write(fixture.path("outside"), b"precious").unwrap();
    std::os::unix::fs::symlink("../../outside", out.join("sub/link")).unwrap();
    std::os::unix::fs::symlink("../tmp", out.join("directory-link")).unwrap();
    std::fs::write(fixture.path("tmp/precious"), b"precious").unwrap();
    fixture
}

/// Returns every path below the target, links not followed.
fn names(fixture: &Fixture) -> Vec<String> {
    let root = fixture.path("out");
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            found.push(entry.path().strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn names_below(root: &Path) -> Vec<PathBuf> {
    contents(root).into_iter().map(|(path, _)| path).collect()
}

#[test]
fn what_the_snapshot_does_not_have_is_deleted_on_request_only() {
    let fixture = restored_with_more();
    let before = names(&fixture);
    let restore = |options: &[&str]| {
        let all = ["restore", "latest:/source", "--target", "out"].iter().chain(options);
        fixture.run(all)
    };
    restore(&["--overwrite", "always"]).code(0);
    assert_eq!(names(&fixture), before);
    let tried = restore(&["--overwrite", "if-changed", "--delete", "--dry-run", "-vv"]).code(0);
    assert_eq!(names(&fixture), before);
    assert!(tried.stdout().contains("Would delete 8 files/dirs"), "{}", tried.stdout());
    assert!(tried.stderr().contains("deleted    /more/below/file\n"), "{}", tried.stderr());
    let ran = restore(&["--overwrite", "if-changed", "--delete", "--json", "-vv"]).code(0);
    assert_eq!(names(&fixture), ["keep", "sub", "sub/keep"]);
    let messages = ran.messages();
    assert_eq!(messages.last().unwrap()["files_deleted"], 8);
    let mut deleted: Vec<&str> = messages
        .iter()
        .filter(|message| message["message_type"] == "verbose_status" && message["action"] == "deleted")
        .map(|message| message["item"].as_str().unwrap())
        .collect();
    deleted.sort_unstable();
    let expected =
        ["/directory-link", "/more", "/more/below", "/more/below/file", "/stale.log", "/stale.txt", "/sub/link"];
    assert_eq!(deleted[..7], expected);
    // Where the links led, everything is as it was.
    assert_eq!(std::fs::read(fixture.path("outside")).unwrap(), b"precious");
    assert_eq!(std::fs::read(fixture.path("tmp/precious")).unwrap(), b"precious");
}

/// No snapshot has them: a backup leaves them out.
#[test]
fn neither_the_repository_nor_its_index_is_deleted_or_restored_into() {
    let fixture = Fixture::new();
    fixture.write("a", b"a");
    // Everything, this repository and its index included.
    fixture.run(["backup", ".", "-q"]).code(0);
    let repository = names_below(&fixture.path("repository"));
    fixture.write("new", b"new");
    fixture.run(["restore", "latest", "--target", ".", "--overwrite", "if-changed", "--delete", "-q"]).code(0);
    assert!(fixture.path("source/a").exists() && !fixture.path("source/new").exists());
    assert_eq!(names_below(&fixture.path("repository")), repository);
    fixture.run(["check"]).code(0);
    for inside in ["repository", "repository/containers/new", "cache"] {
        let refused =
            fixture.run(["restore", "latest", "--target", inside, "--overwrite", "always", "--delete"]).code(1);
        assert!(refused.stderr().contains("restore to another directory"), "{inside}: {}", refused.stderr());
    }
    // A relative path that does not exist is below the working directory.
    let mut command = fixture.command(["restore", "latest", "--target", "new"]);
    Ran(command.current_dir(fixture.path("repository")).output().unwrap()).code(1).says("restore to another directory");
    assert_eq!(names_below(&fixture.path("repository")), repository);
    fixture.run(["check"]).code(0);
}

/// The repository was deleted with the directory that it had been moved into, in whose place the snapshot has a link.
#[test]
fn a_directory_that_holds_the_repository_makes_way_for_nothing() {
    let fixture = Fixture::new();
    fixture.write("a", b"a");
    std::os::unix::fs::symlink("a", fixture.path("source/backup")).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    std::fs::create_dir_all(fixture.path("out/backup")).unwrap();
    std::fs::rename(fixture.path("repository"), fixture.path("out/backup/repository")).unwrap();
    let moved = fixture.path("out/backup/repository");
    let before = names_below(&moved);
    for options in [&[][..], &["--delete"], &["--delete", "--dry-run"]] {
        let all = ["--repo", moved.to_str().unwrap(), "restore", "latest:/source", "--target", "out", "--overwrite"];
        fixture.run(all.iter().chain(&["always"]).chain(options)).code(1).says("is not restored: ");
        assert_eq!(names_below(&moved), before);
    }
    assert_eq!(std::fs::read(fixture.path("out/a")).unwrap(), b"a");
}

/// The snapshot before it came back instead, without a word.
#[test]
fn latest_is_refused_where_a_snapshot_that_cannot_be_read_may_be_newer() {
    let fixture = Fixture::new();
    let mut ids = Vec::new();
    for text in ["one", "two", "three"] {
        fixture.write("a", text.as_bytes());
        let summary = fixture.run(["backup", "source", "--json", "-q"]).code(0).messages().pop().unwrap();
        ids.push(summary["snapshot_id"].as_str().unwrap().to_owned());
    }
    let damage = |id: &str| {
        let commits = fixture.path("repository/commits");
        let path = std::fs::read_dir(commits).unwrap().map(|entry| entry.unwrap().path());
        let path = path.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&id[..8]));
        let path = path.unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    // An older one is known to be older by those after it.
    damage(&ids[0]);
    assert_eq!(fixture.run(["dump", "latest", "/source/a"]).code(0).stdout(), "three");
    assert_eq!(fixture.run(["dump", "latest~1", "/source/a"]).code(0).stdout(), "two");
    damage(&ids[2]);
    fixture.run(["restore", "latest", "--target", "out"]).code(1).says(&ids[2]);
    for name in ["latest", "latest~1"] {
        fixture.run(["restore", name, "--target", "out"]).code(1).says("cannot be read and may be newer");
    }
    assert_eq!(fixture.run(["dump", &ids[1], "/source/a"]).code(0).stdout(), "two");
}

#[test]
fn patterns_limit_what_is_deleted() {
    let fixture = restored_with_more();
    let delete = ["restore", "latest:/source", "--target", "out", "--overwrite", "always", "--delete", "-q"];
    fixture.run(delete.iter().chain(&["--include", "*.txt"])).code(0);
    let left = names(&fixture);
    assert!(!left.contains(&"stale.txt".into()) && !left.contains(&"sub/stale.txt".into()), "{left:?}");
    assert!(left.contains(&"stale.log".into()) && left.contains(&"more/below/file".into()), "{left:?}");
    fixture.run(delete.iter().chain(&["--exclude", "*.log", "--exclude", "more"])).code(0);
    let expected = ["keep", "more", "more/below", "more/below/file", "stale.log", "sub", "sub/keep"];
    assert_eq!(names(&fixture), expected);
}

#[test]
fn deleting_where_it_makes_no_sense_is_refused() {
    let fixture = restored_with_more();
    let before = names(&fixture);
    let refused = |options: &[&str], sentence: &str| {
        fixture.run(["restore", "--delete"].iter().chain(options)).code(1).says(sentence);
        assert_eq!(names(&fixture), before);
    };
    refused(&["latest", "--target", "out"], "say with --overwrite");
    refused(&["latest", "--target", "out", "--overwrite", "never"], "--overwrite never leaves alone");
    refused(&["latest", "--target", "/", "--overwrite", "always", "--dry-run"], "--delete with --target /");
    refused(&["latest", "--target", "/tmp/..", "--overwrite", "always", "--dry-run"], "--delete with --target /");
    refused(&["latest:/source/keep", "--target", "out", "--overwrite", "always"], "not a directory");
    let missing = ["restore", "latest", "--target", "missing", "--delete", "--overwrite", "always", "--dry-run"];
    let tried = fixture.run(missing).code(0);
    assert!(tried.stdout().contains("Would delete 0 files/dirs"), "{}", tried.stdout());
    assert!(!fixture.path("missing").exists());
}

/// Sources, part that is restored, names in the target that go, and those that stay.
type Case<'a> = (&'a [&'a str], &'a str, &'a [&'a str], &'a [&'a str]);

/// Neighbors of a source have their directory in the snapshot, but were not backed up.
#[test]
fn deleting_acts_in_what_was_backed_up_and_nowhere_else() {
    let fixture = Fixture::new();
    for file in ["documents/f", "documents/sub/g", "other/h", "single"] {
        fixture.write(file, b"x");
    }
    let base = fixture.path("source").to_str().unwrap().to_owned();
    let at = |path: &str| format!("{base}{path}");
    let (documents, other, sub, single) = (&at("/documents"), &at("/other"), &at("/documents/sub"), &at("/single"));
    let whole = |path: &str| at(path).trim_start_matches('/').to_owned();
    let (inside, beside) = (&whole("/documents/new"), &whole("/other/new"));
    let cases: [Case<'_>; 16] = [
        (&[documents], &base, &["documents/new", "documents/sub/new/deep"], &["new", "other/new"]),
        (&[documents], "", &[inside], &["new", beside]),
        (&[documents], documents, &["new", "sub/new"], &[]),
        (&[documents], sub, &["new"], &[]),
        (&[documents, other], &base, &["documents/new", "other/new"], &["new"]),
        (&[documents, sub], &base, &["documents/new", "documents/sub/new"], &["new"]),
        (&[sub, single], &base, &["documents/sub/new"], &["documents/new", "new"]),
        (&[single], &base, &[], &["new"]),
        (&["source"], "", &["source/new", "source/documents/new"], &["new"]),
        (
            &["source/documents/sub", "source/single"],
            "",
            &["source/documents/sub/new"],
            &["source/documents/new", "new"],
        ),
        (&["source/documents/sub"], "/source", &["documents/sub/new"], &["documents/new", "new"]),
        (&["./source/../source/other"], "/source", &["other/new"], &["new"]),
        (&["source/."], "/source", &["new"], &[]),
        (&["source/other", documents], "", &["source/other/new", inside], &["source/new", "new"]),
        (&["-C", "source", "."], "", &["new", "documents/new"], &[]),
        (&["-C", "source/documents", "../other", "sub"], "", &["other/new", "sub/new"], &["new"]),
    ];
    for (number, (sources, part, gone, kept)) in cases.into_iter().enumerate() {
        let (directory, sources) =
            if let ["-C", directory, sources @ ..] = sources { (*directory, sources) } else { (".", sources) };
        let mut backup = fixture.command(["backup", "-q", "--force"].iter().chain(sources));
        Ran(backup.current_dir(fixture.path(directory)).output().unwrap()).code(0);
        let target = format!("target-{number}");
        let restore = |options: &[&str]| {
            let part = format!("latest:{part}");
            fixture
                .run(["restore", &part, "--target", &target, "-q", "--overwrite", "always"].iter().chain(options))
                .code(0);
        };
        let stands = |name: &&&str| fixture.path(&target).join(name).exists();
        restore(&[]);
        for name in gone.iter().chain(kept) {
            let path = fixture.path(&target).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"precious").unwrap();
        }
        let all = gone.len() + kept.len();
        restore(&["--delete", "--dry-run"]);
        restore(&["--delete", "--include", "nothing"]);
        assert_eq!(gone.iter().chain(kept).filter(stands).count(), all, "{number}: {sources:?} {part}");
        restore(&["--delete"]);
        assert_eq!(gone.iter().filter(stands).count(), 0, "{number}: {sources:?} {part}");
        assert_eq!(kept.iter().filter(stands).count(), kept.len(), "{number}: {sources:?} {part}");
    }
    // A snapshot without its source, and that of a stream.
    fixture.run(["backup", "-q", documents]).code(0);
    fixture.run(["rewrite", "latest", "--exclude", documents, "--forget", "-q"]).code(0);
    fixture.run(["restore", "latest", "--target", "target-1", "--overwrite", "always", "--delete", "-q"]).code(0);
    fixture.run(["backup", "-q", "--stdin-from-command", "--stdin-filename", "dump", "--", "echo"]).code(0);
    fixture.run(["restore", "latest", "--target", "target-1", "--overwrite", "always", "--delete", "-q"]).code(0);
    assert!(fixture.path("target-1").join(beside).exists() && fixture.path("target-1").join("new").exists());
}

/// A container without privileges got an error for each file, and exit code 1. Only root can try this.
#[test]
fn without_privileges_contents_come_back_and_a_line_for_each_kind_says_what_does_not() {
    let fixture = Fixture::new();
    if fixture.path("source").metadata().unwrap().uid() != 0 || !Path::new("/usr/bin/setpriv").exists() {
        return;
    }
    for number in 0..30 {
        fixture.write(&format!("d/{number}"), b"x");
    }
    std::fs::set_permissions(fixture.path("source/d/0"), std::fs::Permissions::from_mode(0o4660)).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program).args(arguments).current_dir(fixture.path("source")).status();
        status.unwrap().success()
    };
    assert!(run("chown", &["-R", "12345:12345", "."]) && run("chmod", &["u+s,g+rw", "d/0"]));
    let has_device = run("mknod", &["d/device", "c", "1", "3"]);
    fixture.run(["backup", "source", "-q"]).code(0);
    for (number, (drop, options, omitted)) in [
        ("-chown", &[][..], [31, 1]),
        ("-chown", &["--no-ownership"], [0, 1]),
        ("-chown,-mknod,-fowner,-fsetid,-setfcap,-sys_admin", &[], [31, 1]),
        ("-kill", &[], [0, 0]),
        ("-kill", &["--no-ownership", "--no-xattrs"], [0, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("out-{number}");
        let all = ["restore", "latest:/source/d", "--target", &target, "--trusted", "--json"];
        let command = fixture.command(all.iter().chain(options));
        let mut limited = std::process::Command::new("/usr/bin/setpriv");
        limited.args([format!("--bounding-set={drop}"), format!("--inh-caps={drop}")]);
        limited.arg(command.get_program()).args(command.get_args()).current_dir(fixture.path(""));
        limited.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = Ran(limited.output().unwrap()).code(0);
        assert!(ran.stderr().lines().count() <= 5, "{}", ran.stderr());
        let summary = ran.messages().pop().unwrap();
        let is_device_omitted = has_device && drop.contains("mknod");
        assert_eq!(summary["owners_not_restored"], omitted[0], "{number}: {summary}");
        assert_eq!(summary["set_ids_not_restored"], omitted[1], "{number}: {summary}");
        assert_eq!(summary["special_files_not_restored"], u64::from(is_device_omitted), "{number}: {summary}");
        let is_file = |(path, bytes): &(PathBuf, Option<Vec<u8>>)| bytes.is_some() && !path.ends_with("device");
        let files = |directory: &str| contents(&fixture.path(directory)).into_iter().filter(is_file);
        assert_eq!(files(&target).collect::<Vec<_>>(), files("source/d").collect::<Vec<_>>());
        let mode = fixture.path(&target).join("0").metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if omitted[1] == 0 { 0o4660 } else { 0o600 }, "{number}");
    }
}

#[test]
fn a_target_that_a_restore_makes_is_closed_to_others() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.run(["restore", "latest", "--target", "a/b", "-q"]).code(0);
    assert_eq!(fixture.path("a/b").metadata().unwrap().permissions().mode() & 0o7777, 0o700);
}

/// Returns the number of a name in a list of users or groups.
fn listed(list: &str, name: &str) -> Option<u32> {
    let lines = std::fs::read_to_string(list).ok()?;
    let line = lines.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

/// A snapshot of files of a user that is known everywhere, of one that is known nowhere, and of one without a name.
fn with_owners(fixture: &Fixture, long: &str) {
    let source = MemTree::new();
    source.name_owners((70_000, "daemon"), (70_001, "daemon"));
    source.name_owners((70_002, "no such user"), (70_003, long));
    for (file, uid, gid) in [("known", 70_000, 70_001), ("unknown", 70_002, 70_003), ("nameless", 70_004, 70_004)] {
        let path = Path::new("/d").join(file);
        source.put_file(&path, b"x");
        source.edit(&path, |metadata| (metadata.uid, metadata.gid) = (uid, gid));
    }
    source.set_xattrs(Path::new("/d/known"), &[Xattr { name: "user.note".into(), value: vec![0, 1, 255] }]);
    fixture.back_up(&source);
    fixture.run(["tag", "latest", "--add", "derived"]).code(0);
}

#[test]
fn archives_have_the_names_of_owners_and_attributes() {
    let fixture = Fixture::new();
    let long = "n".repeat(40);
    with_owners(&fixture, &long);
    let dumped = fixture.run(["dump", "latest", "/d"]).code(0).0.stdout;
    let mut found = Vec::new();
    for entry in tar::Archive::new(&*dumped).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut records = Vec::new();
        for record in entry.pax_extensions().unwrap().into_iter().flatten() {
            let record = record.unwrap();
            records.push((record.key().unwrap().to_owned(), record.value_bytes().to_vec()));
        }
        let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
        let (user, group) = (entry.header().username().unwrap(), entry.header().groupname().unwrap());
        found.push((entry.path().unwrap().display().to_string(), name(user), name(group), records));
    }
    let (daemon, none) = (|| "daemon".to_owned(), String::new);
    let note = ("SCHILY.xattr.user.note".to_owned(), vec![0, 1, 255]);
    let expected = [
        ("d/known".to_owned(), daemon(), daemon(), vec![note]),
        ("d/nameless".to_owned(), none(), none(), vec![]),
        ("d/unknown".to_owned(), "no such user".to_owned(), none(), vec![("gname".to_owned(), long.into_bytes())]),
    ];
    assert_eq!(found, expected);
}

/// Only root can try this.
#[test]
fn owners_come_back_by_name_where_the_names_exist() {
    let fixture = Fixture::new();
    let (Some(uid), Some(gid)) = (listed("/etc/passwd", "daemon"), listed("/etc/group", "daemon")) else { return };
    if fixture.path("source/..").metadata().unwrap().uid() != 0 {
        return;
    }
    with_owners(&fixture, "no such group");
    for (number, (dialect, options, expected)) in [
        ("", &[][..], (uid, gid)),
        ("", &["--numeric-owner"], (70_000, 70_001)),
        ("restic", &[], (70_000, 70_001)),
        ("restic", &["--ownership-by-name"], (uid, gid)),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("out-{number}");
        let part = ["restore", "latest:/d", "--target", &target, "-q"];
        let mut command = fixture.command(part.iter().chain(options));
        Ran(command.env("ONEFOLD_COMPAT", dialect).output().unwrap()).code(0);
        let owner = |name: &str| {
            let metadata = fixture.path(&target).join(name).metadata().unwrap();
            (metadata.uid(), metadata.gid())
        };
        assert_eq!(owner("known"), expected, "{dialect} {options:?}");
        assert_eq!((owner("unknown"), owner("nameless")), ((70_002, 70_003), (70_004, 70_004)));
    }
}

#[test]
fn access_times_come_back_if_they_were_stored() {
    let fixture = Fixture::new();
    fixture.write("d/file", b"x");
    for (option, time) in [("-m", "2001-02-03 00:00 UTC"), ("-a", "2002-02-03 00:00 UTC")] {
        let mut touch = std::process::Command::new("touch");
        touch.args([option, "-d", time]).arg(fixture.path("source/d/file"));
        assert!(touch.status().unwrap().success());
    }
    let times = |target: &str| {
        let metadata = fixture.path(target).join("file").metadata().unwrap();
        (metadata.mtime(), metadata.atime())
    };
    let made = times("source/d");
    for (options, target, expected) in [(&["--with-atime"][..], "with", made), (&[], "without", (made.0, made.0))] {
        fixture.run(["backup", "source", "-q"].iter().chain(options)).code(0);
        fixture.run(["restore", "latest:/source/d", "--target", target, "-q"]).code(0);
        assert_eq!(times(target), expected);
    }
}
