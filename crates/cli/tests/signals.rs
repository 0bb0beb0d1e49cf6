//! Signals, and the progress that they ask for.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fixture::{Fixture, Ran, noise};

/// How long a command may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it never held");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a process handles a signal.
#[track_caller]
fn wait_for_handler(child: &Child, signal: Signal) {
    let bit = 1_u64 << (signal.as_raw() - 1);
    wait_until(|| {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & bit != 0
    });
}

/// Prepares a run of a fixture's command below another program.
pub(crate) fn below(fixture: &Fixture, program: &[&str], arguments: &[&str]) -> Command {
    let template = fixture.command(arguments);
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(template.get_program()).args(arguments);
    command.current_dir(fixture.path("")).env_clear();
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Makes every opening of a file take so long that a command runs for seconds. The command is the process that is started:
/// the tracer is not its parent.
pub(crate) const SLOWLY: [&str; 10] = [
    "strace",
    "-D",
    "-f",
    "-qq",
    "-o",
    "/dev/null",
    "-e",
    "trace=openat,openat2,pread64",
    "-e",
    "inject=openat,openat2,pread64:delay_enter=50000",
];

/// Makes a fixture with a snapshot of many files and a few containers.
pub(crate) fn fixture_with_files() -> Fixture {
    let fixture = Fixture::new();
    for number in 0..60 {
        fixture.write(&format!("{number}"), &noise(number, 100_000));
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture
}

/// Runs a command that is asked for its state all the time; returns what it writes to standard error.
#[track_caller]
fn asked(fixture: &Fixture, arguments: &[&str]) -> String {
    let mut child = below(fixture, &SLOWLY, arguments).spawn().unwrap();
    wait_for_handler(&child, Signal::USR1);
    wait_until(|| {
        kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    Ran(child.wait_with_output().unwrap()).code(0).stderr()
}

#[test]
fn sigusr1_asks_every_command_for_a_line_of_progress() {
    let fixture = fixture_with_files();
    let commands: [&[&str]; 3] = [
        &["backup", "source", "--force", "-q"],
        &["restore", "latest", "--target", "target", "-q"],
        &["check", "--read-data", "-q"],
    ];
    for arguments in commands {
        let stderr = asked(&fixture, arguments);
        let lines = stderr.lines().filter(|line| line.starts_with("[0:")).count();
        assert_ne!(lines, 0, "{arguments:?}: {stderr}");
    }
    // Programs find the fields of the command's other messages.
    let programs: [(&[&str], &str); 2] = [
        (&["check", "--read-data", "-q", "--json"], "files_done"),
        (&["restore", "latest", "--target", "second", "-q", "--json"], "files_restored"),
    ];
    for (arguments, field) in programs {
        let stderr = asked(&fixture, arguments);
        let messages: Vec<Value> = stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!messages.is_empty() && messages.iter().all(|status| status[field].is_u64()), "{stderr}");
    }
    // Commands that have nothing to say go on.
    let mut child = below(&fixture, &SLOWLY, &["snapshots"]).spawn().unwrap();
    wait_for_handler(&child, Signal::USR1);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_terminal_a_line_comes_at_intervals() {
    let fixture = fixture_with_files();
    let run = |arguments: &[&str]| Ran(below(&fixture, &SLOWLY, arguments).output().unwrap()).code(0).stderr();
    let lines = |stderr: &str| stderr.lines().filter(|line| line.starts_with("[0:")).count();
    let restored = run(&["restore", "latest", "--target", "one", "--progress-interval", "200ms"]);
    assert!(lines(&restored) >= 2 && restored.contains(" of 60 files") && restored.contains("ETA"), "{restored}");
    let part = run(&["restore", "latest", "--target", "two", "--include", "1*", "--progress-interval", "100ms"]);
    assert!(part.contains(" of 11 files"), "{part}");
    let checked = run(&["check", "--read-data", "--progress-interval", "100ms"]);
    assert!(lines(&checked) >= 1 && checked.contains('%'), "{checked}");
    for silent in [&["--progress-interval", "0"][..], &["--progress-interval", "1h"], &["-q"]] {
        let arguments = ["restore", "latest", "--target", "one", "--overwrite", "always"];
        let arguments: Vec<&str> = arguments.iter().chain(silent).copied().collect();
        assert_eq!(lines(&run(&arguments)), 0);
    }
}

#[test]
fn a_hangup_ends_the_command_cleanly_unless_it_is_ignored() {
    let fixture = Fixture::new();
    let arguments = ["backup", "--stdin", "-q"];
    let mut child =
        below(&fixture, &["env", "--default-signal=HUP"], &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    wait_for_handler(&child, Signal::HUP);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    Ran(child.wait_with_output().unwrap()).code(130).says("interrupted");
    drop(stdin);
    let mut child = below(&fixture, &["env", "--ignore-signal=HUP"], &arguments).stdin(Stdio::piped()).spawn().unwrap();
    wait_for_handler(&child, Signal::TERM);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    child.stdin.take().unwrap().write_all(b"contents").unwrap();
    Ran(child.wait_with_output().unwrap()).code(0);
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), 1);
}

/// Another thread may notice the first signal and end the command before the second one is delivered. Without a second
/// signal the command always says that it was interrupted, so one silent end shows that the second one ended it.
#[test]
fn a_second_signal_ends_the_command_at_once() {
    const TRIES_MAX: usize = 20;
    let is_silent = |_| {
        let fixture = Fixture::new();
        let mut child = fixture.command(["backup", "--stdin", "-q"]).stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        wait_for_handler(&child, Signal::TERM);
        // Both wait for it when it goes on.
        for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
            kill_process(Pid::from_child(&child), signal).unwrap();
        }
        let ran = Ran(child.wait_with_output().unwrap()).code(130);
        drop(stdin);
        ran.stderr().is_empty()
    };
    assert!((0..TRIES_MAX).any(is_silent), "the command never ended by the second signal");
}

/// The signal ended the process, which looked like a crash and named nothing.
#[test]
fn a_file_larger_than_the_limit_is_an_error_and_nothing_is_lost() {
    let fixture = Fixture::new();
    fixture.write("small", b"contents");
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture.write("large", &noise(1, 6 << 20));
    let limited = below(&fixture, &["prlimit", "--fsize=1000000"], &["backup", "source", "-q"]).output().unwrap();
    let ran = Ran(limited).code(1).says("File too large");
    assert!(ran.stderr().starts_with("onefold: "), "{}", ran.stderr());
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["backup", "source", "-q"]).code(0);
    let limited = below(&fixture, &["prlimit", "--fsize=1000000"], &["restore", "latest", "--target", "target"]);
    let mut child = { limited }.spawn().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{stderr}");
    assert!(stderr.contains("File too large"), "{stderr}");
    fixture.run(["restore", "latest", "--target", "whole", "-q"]).code(0);
}
