//! A backup that is stopped in its middle, by a real signal to a real process, while real prunes run to their end.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, Ran, contents, noise};
use crate::signals::{SLOWLY, below, wait_until};

/// Files of the source.
const FILES: u64 = 40;
/// The file at which the backup is stopped: those before it were read, and most of them identified.
const STOPPED_AT: u64 = 30;

/// Writes all files of a version of the source. A quarter of them is the same in all versions.
fn write_version(fixture: &Fixture, version: u64) {
    for number in 0..FILES {
        let seed = if number % 4 == 0 { number } else { 1000 * version + number };
        fixture.write(&format!("file-{number:02}"), &noise(seed, 100_000));
    }
}

/// Returns the files of the source.
fn source(fixture: &Fixture) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    contents(&fixture.path("source"))
}

/// Starts a backup that is traced, and stops it when it has opened a file.
fn start_and_stop(fixture: &Fixture, name: &str) -> Child {
    let log = fixture.path("calls");
    let log_name = log.to_str().unwrap().to_owned();
    let tracer: Vec<&str> = SLOWLY.iter().map(|part| if *part == "/dev/null" { &*log_name } else { *part }).collect();
    // Otherwise a file that has not changed is not opened.
    let child = below(fixture, &tracer, &["backup", "source", "--force"]).spawn().unwrap();
    wait_until(|| fs::read_to_string(&log).is_ok_and(|calls| calls.contains(name)));
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    wait_until(|| {
        let states = fs::read_dir(&tasks).unwrap().map(|task| {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            status.lines().find_map(|line| line.strip_prefix("State:\t")).unwrap().to_owned()
        });
        // Those that the tracer delays stop after the call.
        states.into_iter().all(|state| state.starts_with(['T', 't']))
    });
    child
}

/// Prunes so that nobody is waited for and nothing is kept.
fn prune(fixture: &Fixture) -> String {
    let options = ["--fence-after", "0s", "--keep-unfinished", "0s", "--max-unused", "0"];
    fixture.run(["prune"].into_iter().chain(options)).code(0).stdout()
}

/// Lets a stopped backup go on after two prunes; returns what the prunes said. Then there are so many snapshots, the newest of
/// which has the files of the source.
fn prune_and_go_on(fixture: &Fixture, child: Child, snapshots: usize) -> [String; 2] {
    let pruned = [prune(fixture), prune(fixture)];
    assert!(pruned[0].contains("fenced session"), "{pruned:?}");
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    Ran(child.wait_with_output().unwrap()).code(0).says("was fenced; starting again");
    assert!(fixture.run(["check", "--read-data"]).code(0).stdout().contains("no errors"));
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), snapshots);
    pruned
}

/// Restores a snapshot and compares it.
fn assert_restores(fixture: &Fixture, snapshot: &str, expected: &[(PathBuf, Option<Vec<u8>>)]) {
    let target = fixture.path(&format!("restored-{}", snapshot.replace(['~', ':', '/'], "-")));
    fixture.run(["restore", &format!("{snapshot}:/source"), "--target", target.to_str().unwrap()]).code(0);
    assert!(contents(&target) == expected, "{snapshot}");
}

/// Makes a repository of two snapshots, the first of which is forgotten; returns the files of the second.
fn forgotten_and_kept(fixture: &Fixture) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    for version in [1, 2] {
        write_version(fixture, version);
        fixture.run(["backup", "source", "-q"]).code(0);
    }
    fixture.run(["forget", "latest~1", "-q"]).code(0);
    source(fixture)
}

/// Stops a backup of a version of the source in its middle, while prunes delete what the forgotten snapshot held.
fn stop_backup_of(version: u64) {
    let fixture = Fixture::new();
    let kept = forgotten_and_kept(&fixture);
    write_version(&fixture, version);
    let child = start_and_stop(&fixture, &format!("file-{STOPPED_AT}"));
    let [first, _] = prune_and_go_on(&fixture, child, 2);
    assert!(first.contains("\nremoved "), "{first}");
    assert_restores(&fixture, "latest", &source(&fixture));
    assert_restores(&fixture, "latest~1", &kept);
}

#[test]
fn a_backup_that_is_stopped_while_prunes_run_starts_again_and_commits() {
    stop_backup_of(3);
}

/// The index finds all of it.
#[test]
fn a_backup_that_relies_on_a_forgotten_snapshot_and_is_stopped_while_prunes_delete_it_starts_again_and_commits() {
    stop_backup_of(1);
}
