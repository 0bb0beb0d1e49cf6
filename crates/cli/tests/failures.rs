//! Every way to fail has its exit code and a sentence that names what it is about.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, Ran};

#[test]
fn wrong_usage_exits_1() {
    let fixture = Fixture::new();
    fixture.run(["bakcup"]).code(1).says("bakcup");
    fixture.run(["backup"]).code(1).says("nothing to back up");
    let error = fixture.run(["ls", "--json"]).code(1).last_error();
    assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &1.into()));
    fixture.run(["snapshots", "--memory", "1M"]).code(1).says("64M");
    fixture.run(["backup", "source", "--compression", "rar"]).code(1).says("rar");
    let nameless = fixture.command(["snapshots"]).env_remove("ONEFOLD_REPOSITORY").output().unwrap();
    Ran(nameless).code(1).says("ONEFOLD_REPOSITORY");
}

#[test]
fn no_repository_exits_10() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["snapshots"]).code(10).says(fixture.path("repository").to_str().unwrap());
    fs::write(fixture.path("repository"), b"a file").unwrap();
    let error = fixture.run(["snapshots", "--json"]).code(10).last_error();
    assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &10.into()));
    assert!(error["message"].as_str().unwrap().contains("not a directory"), "{error}");
}

#[test]
fn a_wrong_password_exits_12_and_none_at_all_says_how_to_give_one() {
    let fixture = Fixture::encrypted();
    let wrong = fixture.command(["snapshots"]).env("ONEFOLD_PASSWORD", "incorrect").output().unwrap();
    Ran(wrong).code(12).says("wrong password");
    let none = fixture.command(["snapshots"]).env_remove("ONEFOLD_PASSWORD").output().unwrap();
    Ran(none).code(1).says("--password-file");
}

#[test]
fn snapshots_that_cannot_be_meant_are_named() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["ls", "latest"]).code(1).says("`latest` not found");
    // Seventeen ids, sixteen first digits.
    for _ in 0..17 {
        fixture.run(["backup", "source", "-q", "--force"]).code(0);
    }
    let all = fixture.run(["snapshots", "--json"]).code(0).json();
    let mut first: Vec<&str> =
        all.as_array().unwrap().iter().map(|object| &object["id"].as_str().unwrap()[..1]).collect();
    first.sort_unstable();
    let ambiguous = first.windows(2).find(|pair| pair[0] == pair[1]).unwrap()[0];
    fixture.run(["ls", ambiguous]).code(1).says("several ids begin like that");
    fixture.run(["ls", "no-such-id"]).code(1).says("`no-such-id` not found");
    fixture.run(["backup", "source", "--parent", "no-such-id"]).code(1).says("no-such-id");
}

#[test]
fn what_cannot_be_read_is_named_and_exits_3_once_the_rest_is_safe() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source/nope"]).code(1).says("source/nope: does not exist");
    fixture.run(["backup", "source", "source/nope", "-q"]).code(3).says("source/nope: does not exist");
    assert!(fixture.run(["ls", "latest"]).code(0).stdout().contains("/source/file"));
    // The memory of a process cannot be read from its beginning, whoever asks.
    let ran = fixture.run(["backup", "source", "/proc/self/mem", "--json"]).code(3);
    let stderr = ran.stderr();
    let mut errors = stderr.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let error = errors.next().unwrap();
    assert_eq!((&error["message_type"], &error["during"]), (&"error".into(), &"archival".into()));
    assert!(error["error"]["message"].as_str().unwrap().contains("mem"), "{error}");
    assert_eq!(ran.last_error()["code"], 3);
    assert!(ran.messages().pop().unwrap()["snapshot_id"].is_string());
}

#[test]
fn a_path_of_a_list_that_cannot_be_looked_at_is_named_and_exits_3() {
    let fixture = Fixture::new();
    fixture.write("one/data", b"x");
    // A link to itself, which not even root can look behind.
    std::os::unix::fs::symlink("loop", fixture.path("source/loop")).unwrap();
    fs::write(fixture.path("list"), b"source/*/data\n").unwrap();
    fixture.run(["backup", "--files-from", "list", "-q"]).code(3).says("source/loop/data");
    assert!(fixture.run(["ls", "latest"]).code(0).stdout().contains("/source/one/data"));
    fs::write(fixture.path("list"), b"source/loop/data\n").unwrap();
    fixture.run(["backup", "--files-from", "list", "-q"]).code(1).says("source/loop/data").says("no path can be read");
}

#[test]
fn a_cache_that_cannot_be_written_is_replaced_for_the_run() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "--cache-dir", "/dev/null/cache"]).code(0).says("/dev/null/cache");
    assert_eq!(fs::read_dir(fixture.path("tmp")).unwrap().count(), 0, "the scratch directory is still there");
    fixture.run(["backup", "source", "-q"]).code(0);
    let tag = fs::read(fixture.path("cache/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with(b"Signature: 8a477f597d28d172789f06886806bc55\n"));
}

#[test]
fn a_held_index_exits_11_and_can_be_waited_for() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let lock = File::open(fixture.path("cache").join(fixture.repository_id()).join("index/lock")).unwrap();
    lock.lock().unwrap();
    fixture.run(["backup", "source", "--retry-lock", "0"]).code(11).says("held by another writer");
    let mut waiting = fixture.command(["backup", "source"]).spawn().unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("waiting up to 10m")));
    kill_process(Pid::from_child(&waiting), Signal::TERM).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(130));
    let mut waiting = fixture.command(["backup", "source", "--json"]).spawn().unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let message: serde_json::Value = serde_json::from_str(&stderr.next().unwrap().unwrap()).unwrap();
    assert_eq!(message["message_type"], "waiting");
    kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(130));
    // Readers never need it.
    fixture.run(["ls", "latest"]).code(0);
    let mut waiting = fixture.command(["backup", "source", "--retry-lock", "1m"]).spawn().unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("waiting")));
    lock.unlock().unwrap();
    Ran(waiting.wait_with_output().unwrap()).code(0);
}

#[test]
fn a_signal_ends_a_backup_cleanly_with_130() {
    let fixture = Fixture::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = fixture.command(["backup", "--stdin", "--json"]).stdin(Stdio::piped()).spawn().unwrap();
        // Kept open: there could always be more.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&vec![3; 100_000]).unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut status = String::new();
        stdout.read_line(&mut status).unwrap();
        assert!(status.contains("\"status\""), "{status}");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let ran = Ran(child.wait_with_output().unwrap()).code(130);
        let next = "interrupted; no snapshot was made, and the next backup goes on with what was stored";
        assert_eq!((&ran.last_error()["code"], &ran.last_error()["message"]), (&130.into(), &next.into()));
        assert!(!rest.contains("summary"), "{rest}");
        drop(stdin);
    }
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json(), serde_json::json!([]));
}

#[test]
fn a_stream_that_breaks_makes_no_snapshot() {
    let fixture = Fixture::new();
    // A directory can be opened, but not read.
    let directory = File::open(fixture.path("source")).unwrap();
    let ran = fixture.command(["backup", "--stdin"]).stdin(directory).output().unwrap();
    Ran(ran).code(1).says("no snapshot was made");
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json(), serde_json::json!([]));
}

#[test]
fn a_reader_that_goes_away_is_nothing_to_talk_about() {
    let fixture = Fixture::new();
    for number in 0..3000 {
        fixture.write(&format!("a-long-enough-name-for-a-pipe-to-fill-up-{number}"), b"");
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    let mut child = fixture.command(["ls", "latest", "-q"]).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran(child.wait_with_output().unwrap()).code(1);
    assert_eq!(ran.stderr(), "");
}

/// A pipe stood where an object of a repository should be: opening it waited for somebody to write to it, and every
/// command hung until it was killed. It is damage like any other and is named.
#[test]
fn a_pipe_instead_of_an_object_makes_nothing_wait() {
    let fixture = Fixture::new();
    fixture.write("file", b"contents");
    fixture.run(["backup", "source", "-q"]).code(0);
    let commits = fixture.path("repository/commits");
    let commit = fs::read_dir(&commits).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&commit).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &commit, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut check = fixture.command(["check"]).spawn().unwrap();
    for _ in 0..300 {
        if check.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    check.kill().unwrap();
    let ran = Ran(check.wait_with_output().unwrap()).code(1);
    let shown = format!("{}{}", ran.stdout(), ran.stderr());
    assert!(shown.contains(commit.to_str().unwrap()), "{shown}");
}

/// A file whose name held an escape sequence changed the title of the terminal on which its failure was told, and one
/// with a line feed began a line of its own, which could say anything.
#[test]
fn names_do_not_control_the_terminal_that_failures_are_reported_on() {
    let fixture = Fixture::new();
    let odd = "a\u{1b}]0;title\u{7}b\nonefold: all is well";
    let shown = "a\\u{1b}]0;title\\u{7}b\\nonefold: all is well";
    let missing = fixture.path("source").join(odd);
    let ran = fixture.run(["backup".as_ref(), missing.as_os_str()]).code(1);
    assert!(ran.stderr().contains(shown), "{}", ran.stderr());
    assert!(!ran.stderr().contains('\u{1b}') && !ran.stderr().contains("\nonefold: all is well"), "{}", ran.stderr());
    fixture.write(odd, b"x");
    let ran = fixture.run(["backup", "source", "-vv"]).code(0);
    assert!(ran.stderr().contains(shown) && !ran.stderr().contains('\u{1b}'), "{}", ran.stderr());
    // And once more where the command ends because of it.
    fixture.run(["ls", &format!("latest:{odd}")]).code(1).says(shown);
}

#[test]
fn a_repository_that_is_no_local_directory_is_refused_and_nothing_is_made() {
    let fixture = Fixture::without_repository(Some("secret"));
    let before = fs::read_dir(fixture.path("")).unwrap().count();
    for location in ["sftp:user@host:/srv", "rest:http://localhost/", "s3:host/bucket", "ssh://host/repo"] {
        for command in ["init", "snapshots"] {
            fixture.run([command, "-r", location]).code(1).says(location).says("PATH or local:PATH");
            let named = fixture.command([command]).env("ONEFOLD_REPOSITORY", location).output().unwrap();
            Ran(named).code(1).says("PATH or local:PATH");
        }
    }
    assert_eq!(fs::read_dir(fixture.path("")).unwrap().count(), before);
    fixture.run(["init", "-q", "-r", "local:there"]).code(0);
    assert!(fixture.path("there/config").exists());
    fixture.run(["snapshots", "-q", "-r", "there"]).code(0);
    fixture.run(["init", "-q", "-r", "./a:b"]).code(0);
    assert!(fixture.path("a:b/config").exists());
}

#[test]
fn probes_of_commands_that_were_killed_are_removed() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let cache = fixture.path("cache").join(fixture.repository_id());
    fs::write(cache.join("probe-1"), b"").unwrap();
    fixture.run(["ls", "latest", "-q"]).code(0);
    let names = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.starts_with("probe")));
}

#[test]
fn a_directory_of_commits_that_is_missing_is_made_again_and_reported() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    fs::remove_dir_all(fixture.path("repository/commits")).unwrap();
    fixture.run(["snapshots"]).code(1).says("commits");
    fixture.run(["backup", "source", "-q"]).code(0).says("commits was missing").says("is gone");
    assert!(fixture.run(["ls", "latest"]).code(0).stdout().contains("/source/file"));
}
