//! What the user names is in the snapshot, with its contents, or named in an error.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use crate::fixture::{Fixture, Ran, noise};

/// Starts a process that writes a file of the fixture into a pipe of it.
fn feed(fixture: &Fixture, pipe: &str) -> std::thread::JoinHandle<()> {
    let (from, to) = (fixture.path("source/data"), fixture.path(pipe));
    std::thread::spawn(move || drop(fs::write(to, fs::read(from).unwrap())))
}

fn make_pipe(path: &PathBuf) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn dump(fixture: &Fixture, path: &str) -> Vec<u8> {
    fixture.run(["dump", "latest", &format!("/{path}")]).code(0).0.stdout
}

#[test]
fn named_pipes_are_read_as_streams_with_a_parent_too_and_by_no_dry_run() {
    let fixture = Fixture::new();
    let (one, two) = (noise(1, 3_000_000), noise(2, 100));
    make_pipe(&fixture.path("pipe"));
    make_pipe(&fixture.path("source/within"));
    fixture.write("data", &one);
    fs::write(fixture.path("list"), "pipe\n").unwrap();
    let writer = feed(&fixture, "pipe");
    fixture.run(["backup", "--dry-run", "pipe"]).code(0);
    fixture.run(["backup", "pipe"]).code(0);
    writer.join().unwrap();
    assert_eq!(dump(&fixture, "pipe"), one);
    fixture.write("data", &two);
    for list in ["--files-from", "--files-from-verbatim"] {
        let writer = feed(&fixture, "pipe");
        // A pipe that is found, not named, is stored as such.
        fixture.run(["backup", list, "list", "source", "--skip-if-unchanged", "--json"]).code(0);
        writer.join().unwrap();
        assert_eq!(dump(&fixture, "pipe"), two);
    }
    // A shell makes this of `<(command)`.
    let onefold = env!("CARGO_BIN_EXE_onefold");
    let (repository, cache) = (fixture.path("repository"), fixture.path("cache"));
    let script =
        format!("{onefold} -q backup <(cat source/data) | cat && {onefold} ls -l latest | grep '/dev/fd/\\|/fd/'");
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", &script]).current_dir(fixture.path(""));
    let environment = [("ONEFOLD_REPOSITORY", repository), ("ONEFOLD_CACHE_DIR", cache)];
    let ran = Ran(shell.envs(environment).output().unwrap()).code(0);
    assert!(ran.stdout().starts_with('-') && ran.stdout().contains(" 100 "), "{}", ran.stdout());
}

#[test]
fn what_is_named_and_cannot_be_stored_exits_3_and_is_told() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.write("deep/a.txt", b"1");
    fixture.write("deep/empty/b.TXT", b"2");
    fixture.write("cached/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55");
    fixture.write("cached/entry", b"3");
    let _socket = UnixListener::bind(fixture.path("socket")).unwrap();
    symlink(fixture.path("socket"), fixture.path("to-socket")).unwrap();
    symlink("/dev/null", fixture.path("to-null")).unwrap();
    fs::create_dir(fixture.path("empty")).unwrap();
    let deep = "source/deep: all that is in it is left out";
    let cases: &[(&[&str], i32, &str)] = &[
        (&["source", "--exclude", "*"], 3, "source: all that is in it is left out"),
        (&["source/deep", "--iexclude", "*.txt"], 3, deep),
        (&["source/file", "source/deep", "--exclude", "a.txt", "--exclude", "empty", "--dry-run"], 3, deep),
        (&["source/deep", "source/deep/empty", "--iexclude", "*.txt"], 3, "source/deep/empty: all that"),
        (&["source/cached", "--exclude-caches"], 3, "source/cached: all that is in it"),
        (&["source/cached", "--exclude-if-present", "entry"], 3, "source/cached: all that is in it"),
        (&["source/deep", "--exclude-larger-than", "0"], 3, deep),
        (&["repository", "source"], 3, "never backed up"),
        (&["socket"], 3, "socket: only the entry itself is taken, since a socket"),
        (&["to-socket"], 3, "a link to a socket"),
        (&["/dev/null"], 3, "a character device"),
        (&["to-null"], 3, "a link to a character device"),
        // Nothing is missing.
        (&["empty", "--exclude", "*"], 0, ""),
        (&["source/file", "--exclude", "*"], 0, ""),
        (&["source/file", "--exclude-larger-than", "0"], 0, ""),
        (&["source", "--exclude", "deep"], 0, ""),
        (&["source", "--exclude-caches"], 0, ""),
    ];
    for (arguments, code, text) in cases {
        for parent in ["--force", "-q"] {
            fixture.run(["backup", parent].iter().chain(*arguments)).code(*code).says(text);
        }
    }
    // The working directory, of which nothing but its contents has a name.
    let mut here = fixture.command(["backup", ".", "--exclude", "*"]);
    Ran(here.current_dir(fixture.path("source/deep")).output().unwrap())
        .code(3)
        .says(".: all that is in it is left out");
    symlink("source", fixture.path("to-source")).unwrap();
    fixture.run(["backup", "to-source"]).code(0).says("to-source is a symbolic link");
}

#[test]
fn a_named_link_to_a_block_device_is_stored_with_its_contents_unless_another_user_made_it() {
    let fixture = Fixture::new();
    let disk = fixture.path("disk");
    fs::write(&disk, noise(3, 1 << 20)).unwrap();
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&disk).output();
    let Some(attached) = attached.ok().filter(|ran| is_root() && ran.status.success()) else {
        return;
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    symlink(&device, fixture.path("volume")).unwrap();
    symlink(&device, fixture.path("planted")).unwrap();
    std::os::unix::fs::lchown(fixture.path("planted"), Some(65_534), None).unwrap();
    let named = fixture.run(["backup", "./volume"]);
    let again = fixture.run(["backup", "./volume"]);
    let stored = dump(&fixture, "volume");
    let planted = fixture.run(["backup", "planted"]);
    Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(named.code(0).stderr().is_empty() || again.0.status.success());
    again.code(0);
    assert!(stored == fs::read(&disk).unwrap());
    planted.code(3).says("a link to a block device cannot be read here");
}

/// Files of an overlay have the device number of their layer's file system, and its directories have another one.
#[test]
fn one_file_system_is_a_whole_overlay_but_no_mounted_file() {
    let fixture = Fixture::new();
    let script = r#"exec unshare -m bash -ec 'mount --make-rprivate /; mkdir m; mount -t tmpfs none m; mkdir m/{l1,l2,u,w,o}
        mount -t tmpfs none m/l1; mount -t tmpfs none m/l2; echo 1 >m/l1/one; mkdir m/l2/d; echo 2 >m/l2/d/two; echo 3 >m/other; echo 4 >m/l1/over
        mount -t overlay overlay -o lowerdir=m/l1:m/l2,upperdir=m/u,workdir=m/w m/o || exit 77
        mount --bind m/other m/o/over; "$0" -q backup -x m/o' "$0""#;
    if !as_root(&fixture, script) {
        return;
    }
    let list = fixture.run(["ls", "latest"]).code(0).stdout();
    assert!(list.contains("/m/o/one") && list.contains("/m/o/d/two") && !list.contains("/m/o/over"), "{list}");
}

#[test]
fn a_list_of_lines_in_utf_16_is_refused_and_a_mark_before_utf_8_is_passed_over() {
    let fixture = Fixture::new();
    fixture.write("keep", b"x");
    fixture.write("left.log", b"x");
    for list in [&b"\xff\xfe*\0.\0l\0o\0g\0"[..], b"\xfe\xff\0*", b"*\0.\0"] {
        fs::write(fixture.path("list"), list).unwrap();
        for option in ["--exclude-file", "--iexclude-file", "--files-from", "--files-from-verbatim"] {
            fixture.run(["backup", "source", option, "list"]).code(1).says("list: is in UTF-16");
        }
    }
    fs::write(fixture.path("list"), b"\xef\xbb\xbf*.log\n").unwrap();
    fs::write(fixture.path("names"), b"\xef\xbb\xbfsource\n").unwrap();
    for option in ["--files-from", "--files-from-verbatim"] {
        fixture.run(["backup", option, "names", "--exclude-file", "list", "--force", "-q"]).code(0);
        let stored = fixture.run(["ls", "latest"]).code(0).stdout();
        assert!(stored.contains("/source/keep") && !stored.contains("left.log"), "{stored}");
    }
}

/// Runs a script of the shell, with the variables of the fixture. Returns false if this is not root, or the script ends with 77.
fn as_root(fixture: &Fixture, script: &str) -> bool {
    let mut shell = Command::new("bash");
    shell.args(["-ec", script, env!("CARGO_BIN_EXE_onefold")]).current_dir(fixture.path(""));
    for (name, value) in fixture.command(["version"]).get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let ran = is_root().then(|| Ran(shell.output().unwrap())).filter(|ran| ran.0.status.code() != Some(77));
    ran.map(|ran| ran.code(0)).is_some()
}

#[test]
fn without_proc_everything_is_stored_checked_and_restored() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    symlink("file", fixture.path("source/link")).unwrap();
    make_pipe(&fixture.path("source/pipe"));
    let script = r#"exec unshare -m bash -ec 'mount --make-rprivate /; mount -t tmpfs none /proc
        "$0" -q backup source; "$0" -q backup source; "$0" -q check --read-data; "$0" -q forget --keep-last 1 --group-by host --prune
        "$0" -q restore latest:/source --target target' "$0""#;
    if as_root(&fixture, script) {
        let list = |name: &str| {
            let ran =
                Command::new("find").args([".", "-printf", "%P %M %T+ %l\n"]).current_dir(fixture.path(name)).output();
            let mut lines: Vec<String> =
                String::from_utf8(ran.unwrap().stdout).unwrap().lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(list("target"), list("source"));
    }
}

#[test]
fn two_users_of_a_group_share_a_repository() {
    let fixture = Fixture::without_repository(None);
    fixture.write("file", b"x");
    let script = r#"d=$(mktemp -d -p /tmp); trap 'rm -rf "$d"' EXIT; chmod 755 "$d"; mkdir -m 2775 "$d/shared"; chgrp 54321 "$d/shared"
        cp "$0" "$d/onefold"; cp -r source "$d/s"; chmod -R a+rX "$d/s"; export ONEFOLD_REPOSITORY=$d/shared/r TMPDIR=/tmp
        as() { u=$1; shift; mkdir -p -m 777 "$d/c$u"; ONEFOLD_CACHE_DIR=$d/c$u/c setpriv --reuid=$u --regid=54321 --clear-groups \
            bash -c 'umask 002; exec "$0" "$@"' "$d/onefold" -q "$@"; }
        as 50001 init --no-encryption; as 50001 backup "$d/s"; as 50002 backup "$d/s"; as 50002 forget --keep-last 1 --group-by host --prune
        as 50002 prune --max-unused 0; as 50002 repair index; as 50002 repair containers; as 50001 check --read-data; as 50001 backup "$d/s"
        [ -z "$(find "$d"/c*/c -maxdepth 0 -perm /077)" ] && [ -z "$(find "$d/shared/r" ! -perm -060)" ]"#;
    as_root(&fixture, script);
}
