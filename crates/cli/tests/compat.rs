//! Programs that are made for restic: its variables, its defaults, and the words that they look for.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;

use crate::fixture::{Fixture, Ran, contents};

/// Prepares a run under restic's name and with nothing but restic's variables.
fn restic(fixture: &Fixture, arguments: &[&str]) -> Command {
    let link = fixture.path("restic");
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_onefold"), &link).unwrap();
    }
    let mut command = fixture.command(arguments);
    let mut renamed = Command::new(link);
    renamed.args(command.get_args()).current_dir(command.get_current_dir().unwrap()).env_clear();
    for (name, value) in command.get_envs() {
        let name = name.to_str().unwrap().to_owned();
        let is_known = ["REPOSITORY", "PASSWORD", "CACHE_DIR"].iter().any(|end| name == format!("ONEFOLD_{end}"));
        let name = if is_known { name.replace("ONEFOLD", "RESTIC") } else { name };
        renamed.env(name, value.unwrap());
    }
    command.env_clear();
    renamed.stdin(std::process::Stdio::null());
    renamed
}

fn run(fixture: &Fixture, arguments: &[&str]) -> Ran {
    Ran(restic(fixture, arguments).output().unwrap())
}

#[test]
fn a_program_called_restic_reads_restics_variables() {
    let fixture = Fixture::without_repository(Some("correct horse"));
    fixture.write("file", b"1234");
    let made = run(&fixture, &["init", "--json", "--repository-version", "2"]).code(0).json();
    assert_eq!((&made["message_type"], made["id"].as_str().unwrap().len()), (&"initialized".into(), 64));
    assert!(fixture.path("repository/config").exists());
    let config = run(&fixture, &["cat", "config"]).code(0).json();
    assert_eq!(config["id"], made["id"]);
    let mut backup = restic(&fixture, &["backup", "source", "-q"]);
    Ran(backup.env("RESTIC_HOST", "elsewhere").output().unwrap()).code(0);
    run(&fixture, &["backup", "source", "-q", "--host", "here"]).code(0);
    let mut listed = restic(&fixture, &["snapshots", "--json"]);
    let listed = Ran(listed.env("RESTIC_HOST", "elsewhere").output().unwrap()).code(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["hostname"], "elsewhere");
    assert!(fixture.path("cache").exists());
    let mut concurrent = restic(&fixture, &["backup", "source", "-q"]);
    Ran(concurrent.env("RESTIC_READ_CONCURRENCY", "many").output().unwrap()).code(1).says("from 1 to 64");
    let mut concurrent = restic(&fixture, &["backup", "source", "-q"]);
    Ran(concurrent.env("RESTIC_READ_CONCURRENCY", "2").output().unwrap()).code(0);
    // This program's own variables come first, and restic's count only where restic is meant.
    let mut own = restic(&fixture, &["snapshots"]);
    Ran(own.env("ONEFOLD_REPOSITORY", "/nowhere").output().unwrap()).code(10);
    let mut native = fixture.command(["snapshots"]);
    native.env_remove("ONEFOLD_REPOSITORY").env("RESTIC_REPOSITORY", fixture.path("repository"));
    Ran(native.output().unwrap()).code(1).says("no repository named");
}

#[test]
fn the_variable_switches_too_and_knows_one_value() {
    let fixture = Fixture::without_repository(None);
    let version = |value: &str| Ran(fixture.command(["version"]).env("ONEFOLD_COMPAT", value).output().unwrap());
    assert!(version("restic").code(0).stdout().starts_with("restic 0.19.1 compiled with onefold "));
    assert!(version("").code(0).stdout().starts_with("onefold "));
    version("borg").code(1).says("the only value is restic");
    assert!(run(&fixture, &["--version"]).code(0).stdout().starts_with("restic 0.19.1 "));
    let json = run(&fixture, &["version", "--json"]).code(0).json();
    assert_eq!((&json["version"], &json["go_os"]), (&"0.19.1".into(), &"linux".into()));
    assert!(json["go_version"].as_str().unwrap().starts_with("onefold "), "{json}");
}

#[test]
fn endings_have_the_words_and_codes_that_programs_look_for() {
    let fixture = Fixture::without_repository(Some("correct horse"));
    run(&fixture, &["snapshots"]).code(10).says("Fatal: repository does not exist: unable to open config file");
    let missing = run(&fixture, &["snapshots", "--json"]).code(10).last_error();
    assert!(missing["message"].as_str().unwrap().starts_with("Fatal: repository does not exist"), "{missing}");
    run(&fixture, &["init"]).code(0);
    run(&fixture, &["init"]).code(1).says("config file already exists");
    let mut wrong = restic(&fixture, &["snapshots"]);
    Ran(wrong.env("RESTIC_PASSWORD", "wrong").output().unwrap()).code(12).says("Fatal: wrong password");
    fixture.write("file", b"1234");
    let left_out = "Warning: at least one source file could not be read";
    run(&fixture, &["backup", "source", "/nowhere"]).code(3).says(left_out);
    let json = run(&fixture, &["backup", "source", "/nowhere", "--json"]).code(3).last_error();
    assert!(json["message"].as_str().unwrap().starts_with(left_out), "{json}");
    run(&fixture, &["backup", "/nowhere"]).code(1).says("Fatal: all source directories/files do not exist");
    let unknown = run(&fixture, &["invalid-command", "--json"]).code(1);
    assert_eq!(unknown.stderr(), "unknown command \"invalid-command\" for \"restic\"\n");
}

#[test]
fn a_backup_in_json_names_each_file_with_one_v_as_restic_does() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let backup = ["backup", "source", "--json", "-v", "--insecure-no-password"];
    let named = run(&fixture, &backup).code(0).messages();
    let named: Vec<_> = named.iter().filter(|message| message["action"] == "new").collect();
    assert_eq!(named.len(), 2, "the file and its directory: {named:?}");
    // Programs ask for all sizes of restic.
    for size in ["data_size", "data_size_in_repo", "metadata_size", "metadata_size_in_repo", "total_files"] {
        assert!(named.iter().all(|message| message[size].is_u64()), "{size}: {named:?}");
    }
    assert!(!fixture.run(&backup[..4]).code(0).stdout().contains("verbose_status"));
}

#[test]
fn recover_makes_all_that_is_forgotten_again_with_restics_tag() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "-q", "--tag", "old"]).code(0);
    fixture.run(["forget", "latest", "-q"]).code(0);
    // Again changes nothing.
    for _ in 0..2 {
        run(&fixture, &["recover", "--insecure-no-password"]).code(0);
        let listed = fixture.run(["snapshots", "--json"]).code(0).json();
        let tags: Vec<_> = listed.as_array().unwrap().iter().map(|snapshot| &snapshot["tags"]).collect();
        assert_eq!(tags, [&Value::from(vec!["recovered"])]);
    }
    assert!(fixture.run(["recover"]).code(0).stdout().contains("old"), "natively, it lists what is forgotten");
}

#[test]
fn options_that_mean_nothing_are_noted() {
    let fixture = Fixture::without_repository(None);
    let ran = run(&fixture, &["init", "--insecure-no-password"]).code(0).says("not encrypted");
    assert!(!ran.stderr().contains("insecure"), "{}", ran.stderr());
    fixture.write("file", b"1234");
    let options = [
        "backup",
        "source",
        "-o",
        "s3.region=x",
        "--limit-upload",
        "100",
        "--pack-size=64",
        "--no-extra-verify",
        "--stuck-request-timeout",
        "5m",
        "--cacert",
        "x",
        "--insecure-no-password",
    ];
    run(&fixture, &options).code(0).says("--option has no meaning here").says("--limit-upload").says("--pack-size");
    run(&fixture, &["check", "--with-cache", "--check-unused", "--insecure-no-password"]).code(0);
    fixture.run(["snapshots", "--pack-size", "64"]).code(0).says("--pack-size has no meaning here");
    assert!(!fixture.run(["backup", "--help"]).code(0).stdout().contains("pack-size"));
}

#[test]
fn restore_overwrites_as_restic_does_unless_another_way_is_typed() {
    let fixture = Fixture::new();
    fixture.write("file", b"new bytes");
    fixture.run(["backup", "source", "-q"]).code(0);
    let target = fixture.path("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("file"), b"old").unwrap();
    std::fs::write(target.join("other"), b"mine").unwrap();
    let arguments = ["restore", "latest:source", "-t", "target", "--insecure-no-password"];
    fixture.run(&arguments[..4]).code(1).says("not empty");
    run(&fixture, &arguments).code(0);
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"new bytes");
    assert_eq!(std::fs::read(target.join("other")).unwrap(), b"mine");
    // An equal file is not written again, whatever its time is.
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(target.join(name)).unwrap());
    let before = inode("file");
    std::fs::File::options().write(true).open(target.join("file")).unwrap().set_modified(SystemTime::now()).unwrap();
    for (further, skipped) in [(&["--dry-run"][..], 1), (&[], 1), (&["--overwrite", "always"], 1)] {
        let summary = run(&fixture, &[&arguments[..], further, &["--json"]].concat()).code(0).messages().pop().unwrap();
        assert_eq!(summary["files_skipped"], skipped, "{further:?}: {summary}");
        assert_eq!(inode("file"), before, "{further:?}");
    }
    std::fs::write(target.join("file"), b"OLD bytes").unwrap();
    run(&fixture, &arguments).code(0);
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"new bytes");
    std::fs::write(target.join("file"), b"old").unwrap();
    run(&fixture, &[&arguments[..], &["--overwrite", "never"]].concat()).code(0);
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"old");
    assert_eq!(contents(Path::new(&target)).len(), 2);
}

#[test]
fn forget_asks_for_nothing_that_restic_does_not_ask_for() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    for month in 1..=12 {
        let time = format!("2020-{month:02}-01 00:00:00");
        run(&fixture, &["backup", "source", "-q", "--insecure-no-password", "--host", "h", "--time", &time]).code(0);
    }
    fixture.run(["forget", "--keep-last", "2", "--trust-times"]).code(1).says("--force");
    let policy = ["forget", "--insecure-no-password", "--keep-last", "2"];
    let forgotten = run(&fixture, &policy).code(0).says("warning: ");
    assert!(forgotten.stdout().contains("remove 10 snapshots:"), "{}", forgotten.stdout());
    // From now on nothing would be kept, which restic refuses, too.
    let within = ["forget", "--insecure-no-password", "--keep-within", "1y"];
    run(&fixture, &[&within[..], &["--keep-within-from", "now"]].concat()).code(1).says("no rule keeps any snapshot");
    run(&fixture, &within).code(0);
    let all = ["forget", "--unsafe-allow-remove-all"];
    fixture.run(all).code(1).says("--host");
    fixture.run(all.iter().chain(&["--host", "other"])).code(0);
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), 2);
    fixture.run(all.iter().chain(&["--host", "h"])).code(0);
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json(), serde_json::json!([]));
}

#[test]
fn entries_of_a_directory_have_the_names_that_restic_gives_them() {
    let fixture = Fixture::new();
    fixture.write("dir/file", b"1234");
    fixture.run(["backup", "source", "-q"]).code(0);
    let names = |ran: Ran| -> Vec<String> {
        let ran = ran.code(0).0.stdout;
        let mut archive = tar::Archive::new(&ran[..]);
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    };
    let list = ["ls", "latest:source", "-q", "--insecure-no-password"];
    assert_eq!(run(&fixture, &list).code(0).stdout(), "/dir\n/dir/file\n");
    assert_eq!(run(&fixture, &[&list[..], &["/dir"]].concat()).code(0).stdout(), "/dir\n/dir/file\n");
    assert_eq!(fixture.run(&list[..3]).code(0).stdout(), "/source/dir\n/source/dir/file\n");
    let dump = ["dump", "latest:source", "/", "--insecure-no-password"];
    assert_eq!(names(run(&fixture, &dump)), ["dir/", "dir/file"]);
    assert_eq!(names(fixture.run(&dump[..3])), ["source/dir/", "source/dir/file"]);
    assert_eq!(names(run(&fixture, &["dump", "latest", "/source/dir", "--insecure-no-password"])), ["source/dir/file"]);
}

#[test]
fn patterns_that_match_nothing_and_slashes_at_their_end_mean_what_they_mean_to_restic() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    fixture.write("cache/more", b"2");
    fixture.write("dir/cache", b"3");
    std::fs::write(fixture.path("list"), "source/f*\nnothing*\n").unwrap();
    let backup = ["backup", "--files-from", "list", "--insecure-no-password"];
    run(&fixture, &backup).code(0).says("pattern nothing* does not match any files, skipping");
    std::fs::write(fixture.path("list"), "nothing*\n").unwrap();
    run(&fixture, &backup).code(1).says("nothing to back up");
    let excluding = ["backup", "source", "-q", "--exclude", "cache/", "--insecure-no-password"];
    let listed = || fixture.run(["ls", "latest:source", "-q"]).code(0).stdout();
    run(&fixture, &excluding).code(0);
    assert_eq!(listed(), "/source/dir\n/source/file\n");
    fixture.run(&excluding[..5]).code(0);
    assert_eq!(listed(), "/source/dir\n/source/dir/cache\n/source/file\n");
    let restored = |pattern: &str| {
        let target = fixture.path(&format!("target-{}", pattern.len()));
        let target = target.to_str().unwrap();
        fixture.run(["restore", "latest:source", "-q", "--target", target, "--exclude", pattern]).code(0);
        contents(Path::new(target)).len()
    };
    assert_eq!((restored("cache/"), restored("cache")), (3, 2));
}

#[test]
fn prune_prints_the_lines_that_programs_parse() {
    let fixture = Fixture::new();
    fixture.write("file", &crate::fixture::noise(9, 300_000));
    let kept = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap();
    fixture.write("file", &crate::fixture::noise(10, 300_000));
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.run(["forget", kept["snapshot_id"].as_str().unwrap()]).code(0);
    let printed = run(&fixture, &["prune", "--insecure-no-password"]).code(0).stdout();
    let line = |title: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(title)).unwrap_or_else(|| panic!("{printed}"));
        let (chunks, bytes) = line.split_once(" blobs / ").unwrap();
        (chunks.trim().parse::<u64>().unwrap(), bytes.to_owned())
    };
    let (removed, bytes) = line("to delete:");
    assert!(10 < removed && bytes.ends_with("KiB"), "{printed}");
    assert_eq!(line("total prune:").0, removed + line("this removes:").0);
    assert!(0 < line("remaining:").0 && line("to repack:").1.ends_with('B'), "{printed}");
    assert!(printed.contains("\nunused size after prune: "), "{printed}");
}

#[test]
fn commands_that_are_to_come_say_so() {
    let fixture = Fixture::new();
    for (command, sentence) in [
        (&["mount", "/mnt"][..], "mount: not in this version"),
        (&["copy", "--from-repo", "x"], "copy: not in this version"),
        (&["rebuild-index"], "rebuild-index: `onefold repair index`"),
        (&["migrate"], "migrate: `onefold upgrade --format 2` changes the format"),
        (&["self-update"], "self-update: not in this version"),
        (&["cache"], "cache: not in this version"),
    ] {
        fixture.run(command).code(1).says(sentence);
    }
    let error = fixture.run(["--json", "mount"]).code(1).last_error();
    assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &1.into()));
    fixture.run(["frobnicate"]).code(1).says("unrecognized subcommand");
}

/// Returns the fields that a row of the manual's table names, whatever they are set in.
fn documented(label: &str) -> Vec<String> {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual/src/json.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let row =
        manual.lines().find(|line| line.starts_with(&format!("| {label} |"))).unwrap_or_else(|| panic!("{label}"));
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_field_of_a_message_is_in_the_manual() {
    let fixture = Fixture::encrypted();
    fixture.write("dir/file", b"1234");
    symlink("file", fixture.path("source/dir/link")).unwrap();
    let first =
        fixture.run(["backup", "source", "--json", "--verbose=2", "--tag", "x", "--exclude", "*.o"]).code(0).messages();
    fixture.write("dir/more", b"12345");
    let second = fixture.run(["backup", "source", "--json", "--progress-interval", "1ms"]).code(0).messages();
    let missing = fixture.run(["backup", "source", "/nowhere", "--json"]).code(3).last_error();
    let found = |arguments: &[&str]| fixture.run(arguments).code(0).messages();
    let restored = found(&["restore", "latest", "-t", "target", "--json", "--verbose=2", "--progress-interval", "1ms"]);
    let of = |messages: &[Value], kind: &str| -> Vec<Value> {
        messages.iter().filter(|message| message["message_type"] == kind).cloned().collect()
    };
    let list = |value: Value| value.as_array().unwrap().clone();
    let tried = found(&["backup", "source", "--dry-run", "--json"]);
    let listed = found(&["ls", "latest", "--json"]);
    let compared = found(&["diff", "latest~2", "latest", "--json"]);
    let groups = list(found(&["snapshots", "--json", "-g", "host"]).remove(0));
    let checked = found(&["check", "--json", "--progress-interval", "1ms"]);
    let searched = list(fixture.run(["find", "link", "--json"]).code(0).json());
    let rows = [
        ("`backup`, *`check`*: `status`", [of(&second, "status"), of(&checked, "status")].concat()),
        ("`backup`: `verbose_status`", of(&first, "verbose_status")),
        ("`backup`: `summary`", [of(&first, "summary"), of(&second, "summary"), of(&tried, "summary")].concat()),
        ("`restore`: `status`", of(&restored, "status")),
        ("*`repair index`*: *`summary`*", found(&["repair", "index", "--json", "--progress-interval", "0"])),
        ("*`repair containers`*: *`summary`*", found(&["repair", "containers", "--json", "--progress-interval", "0"])),
        ("`restore`: `verbose_status`", of(&restored, "verbose_status")),
        ("`restore`: `summary`", of(&restored, "summary")),
        ("`snapshots`, `cat snapshot`, `ls`: `snapshot`", list(found(&["snapshots", "--json"]).remove(0))),
        ("`snapshots`, `cat snapshot`, `ls`: `snapshot`", of(&listed, "snapshot")),
        ("`snapshots --group-by`", groups),
        ("`ls`: `node`", of(&listed, "node")),
        ("`find`", searched.clone()),
        ("`diff`: `change`", of(&compared, "change")),
        ("`diff`: `statistics`", of(&compared, "statistics")),
        ("`stats`", [found(&["stats", "--json"]), found(&["stats", "--mode", "raw-data", "--json"])].concat()),
        ("`check`: `summary`", of(&checked, "summary")),
        ("`key list`", list(fixture.run(["key", "list", "--json"]).code(0).json())),
        ("`version`", found(&["version", "--json"])),
        ("`exit_error`", vec![missing]),
    ];
    // Kinds of messages are in the first column, and the deprecated kind of `ls` is that of the message.
    let kinds = ["message_type", "struct_type"];
    for (label, messages) in rows {
        let documented = documented(label);
        for message in &messages {
            for field in message.as_object().unwrap().keys().filter(|field| !kinds.contains(&field.as_str())) {
                let is_named = documented.iter().any(|name| name.split('.').next() == Some(field));
                assert!(is_named, "{label}: {field} is not in the manual: {message}");
            }
        }
        assert!(!messages.is_empty() || label.contains("status"), "{label}");
    }
    let node = documented("`ls`: `node`");
    let further = documented("`find`");
    for field in searched[0]["matches"][0].as_object().unwrap().keys() {
        assert!(node.contains(field) || further.contains(field), "find: {field} is not in the manual");
    }
}

#[test]
fn every_field_of_what_cat_writes_is_in_the_manual() {
    let fixture = Fixture::encrypted();
    fixture.write("dir/file", b"1234");
    symlink("file", fixture.path("source/dir/link")).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let read = |arguments: &[&str]| fixture.run(arguments).code(0).json();
    let key = read(&["key", "list", "--json"])[0]["id"].clone();
    let tree = read(&["cat", "tree", "latest:source/dir"]);
    let objects = [
        ("`cat config`", read(&["cat", "config"])),
        ("`cat key`", read(&["cat", "key", key.as_str().unwrap()])),
        ("`cat tree`", tree.clone()),
    ];
    for (label, object) in objects {
        let documented = documented(label);
        for field in object.as_object().unwrap().keys() {
            assert!(documented.contains(field), "{label}: {field} is not in the manual: {object}");
        }
    }
    let (node, further) = (documented("`ls`: `node`"), documented("`cat tree`"));
    let nodes = tree["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2, "{tree}");
    for field in nodes.iter().flat_map(|node| node.as_object().unwrap().keys()) {
        assert!(node.contains(field) || further.contains(field), "cat tree: {field} is not in the manual");
    }
}
