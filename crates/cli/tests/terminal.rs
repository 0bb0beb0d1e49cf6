//! Standard output: on a terminal, and where it cannot be written.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, Ran};
use crate::signals::{SLOWLY, below, fixture_with_files};

/// Runs a command on a terminal of its own; returns all that it shows. A bare chroot has no terminals to give: `None`.
fn on_terminal(fixture: &Fixture, program: &[&str], arguments: &[&str]) -> Option<String> {
    if !Path::new("/dev/pts/ptmx").exists() {
        return None;
    }
    let template = fixture.command(arguments);
    let words = program.iter().copied().chain([template.get_program().to_str().unwrap()]);
    let line: Vec<String> = words.chain(arguments.iter().copied()).map(|word| format!("'{word}'")).collect();
    let mut command = Command::new("script");
    command.args(["-qec", &line.join(" "), "/dev/null"]).current_dir(fixture.path("")).env_clear().stdin(Stdio::null());
    for (name, value) in below(fixture, &["env"], arguments).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("TERM", "xterm");
    Some(Ran(command.output().unwrap()).code(0).stdout())
}

#[test]
fn a_terminal_shows_percent_and_the_time_left() {
    let fixture = fixture_with_files();
    let restore = ["restore", "latest", "--target", "target"];
    let Some(restored) = on_terminal(&fixture, &SLOWLY, &restore) else { return };
    assert!(restored.contains("% ") && restored.contains("of 60 files") && restored.contains("ETA"), "{restored}");
    let Some(checked) = on_terminal(&fixture, &SLOWLY, &["check", "--read-data"]) else { return };
    assert!(checked.contains("% ") && checked.contains("ETA"), "{checked}");
}

#[test]
fn names_that_turn_or_hide_characters_are_escaped_on_a_terminal_and_raw_in_a_pipe() {
    let fixture = Fixture::new();
    let odd = "a\u{202e}fdp\u{200b}\u{2028}.exe";
    fixture.write(odd, b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let Some(shown) = on_terminal(&fixture, &[], &["ls", "latest", "--recursive"]) else { return };
    assert!(shown.contains("a\\u{202e}fdp\\u{200b}\\u{2028}.exe") && !shown.contains('\u{202e}'), "{shown}");
    assert!(fixture.run(["ls", "latest", "--recursive"]).code(0).stdout().contains(odd));
    let verbose = fixture.run(["backup", "source", "--force", "-vv"]).code(0).stderr();
    assert!(verbose.contains("a\\u{202e}fdp") && !verbose.contains('\u{202e}'), "{verbose}");
}

#[test]
fn one_thing_is_reported_in_the_singular() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    assert!(fixture.run(["backup", "source"]).code(0).stdout().contains("processed 1 file, "));
    assert!(fixture.run(["snapshots"]).code(0).stdout().ends_with("1 snapshot\n"));
    assert!(fixture.run(["check"]).code(0).stdout().contains("checked 1 snapshot, "));
    let restored = fixture.run(["restore", "latest:source/file", "--target", "target"]);
    assert!(restored.stdout().contains("Restored 1 file/dir "), "{restored:?}");
}

/// Help texts ended with exit code 0, and what could not be written was not named.
#[test]
fn every_command_names_a_full_standard_output() {
    let fixture = Fixture::new();
    fixture.write("file", b"contents");
    fixture.run(["backup", "source", "-q"]).code(0);
    let commands: [&[&str]; 22] = [
        &["ls", "latest"],
        &["ls", "latest", "--json"],
        &["snapshots"],
        &["snapshots", "--json"],
        &["dump", "latest", "source/file"],
        &["dump", "latest", "source", "--archive", "tar"],
        &["cat", "config"],
        &["find", "file"],
        &["find", "file", "--json"],
        &["diff", "latest", "latest"],
        &["stats"],
        &["stats", "--json"],
        &["check"],
        &["check", "--json"],
        &["backup", "source"],
        &["backup", "source", "--json"],
        &["restore", "latest", "--target", "target"],
        &["version"],
        &["--version"],
        &["--help"],
        &["backup", "--help"],
        &["completions", "bash"],
    ];
    for arguments in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ran = fixture.command(arguments).stdout(full).output().unwrap();
        Ran(ran).code(1).says("write standard output: No space left on device");
    }
}
