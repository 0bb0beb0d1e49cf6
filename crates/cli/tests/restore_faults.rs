//! Every system call of a restore that touches files fails once; then the restore is repeated.
//!
//! `strace` makes the calls fail. Whatever fails: under its own name a file is the one that stood there before or that of
//! the snapshot, and no restore ends with exit code 0 over a difference.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Fixture, noise};

/// Calls that a restore makes on files, by the names that `strace` knows.
const CALLS: &[&str] = &[
    "openat",
    "openat2",
    "open",
    "read",
    "pread64",
    "write",
    "pwrite64",
    "statx",
    "newfstatat",
    "ftruncate",
    "fallocate",
    "rename",
    "renameat",
    "renameat2",
    "linkat",
    "symlinkat",
    "mknodat",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "fchmod",
    "fchmodat",
    "fchownat",
    "utimensat",
    "flistxattr",
    "listxattr",
    "fgetxattr",
    "fsetxattr",
    "setxattr",
    "getdents64",
    "lseek",
    "readlink",
    "readlinkat",
    "flock",
    "fsync",
    "fdatasync",
];

const ERRORS: [&str; 4] = ["EIO", "ENOSPC", "EMFILE", "EACCES"];

const POLICIES: [&str; 4] = ["always", "if-changed", "if-newer", "never"];

/// Of the system calls of a restore one in so many fails in turn. All of them at full size, with every error.
const STRIDE: usize = if cfg!(feature = "slow") { 1 } else { 13 };

/// What an entry is: kind, bytes or where it points, mode, time.
type Entries = BTreeMap<PathBuf, (&'static str, Vec<u8>, u32, (i64, i64))>;

fn entries(root: &Path) -> Entries {
    let mut found = Entries::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let kind = metadata.file_type();
            let (kind, bytes) = if kind.is_dir() {
                left.push(path.clone());
                ("directory", Vec::new())
            } else if kind.is_symlink() {
                ("link", fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
            } else if kind.is_file() {
                ("file", fs::read(&path).unwrap())
            } else {
                ("special", Vec::new())
            };
            let mode = metadata.permissions().mode();
            // Links cannot be given a time of their own everywhere, nor a mode.
            let time = if kind == "link" { (0, 0) } else { (metadata.mtime(), metadata.mtime_nsec()) };
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), (kind, bytes, mode, time));
        }
    }
    found
}

/// Makes a repository of few entries of every kind, with files of several chunks.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("big", &noise(1, 70_000));
    fixture.write("empty", b"");
    fixture.write("small", b"small");
    fixture.write("sub/other", &noise(2, 20_000));
    let source = fixture.path("source");
    fs::hard_link(source.join("sub/other"), source.join("sub/same")).unwrap();
    std::os::unix::fs::symlink("small", source.join("link")).unwrap();
    fs::File::create(source.join("holes")).unwrap().set_len(1 << 20).unwrap();
    for name in ["big", "empty", "small", "sub/other", "holes"] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options().write(true).open(source.join(name)).unwrap().set_modified(time).unwrap();
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    fixture
}

/// Makes the target as it is before a restore: older and newer files, and others of the same name.
fn prepare(target: &Path) {
    if target.exists() {
        fs::remove_dir_all(target).unwrap();
    }
    fs::create_dir_all(target.join("sub")).unwrap();
    for (name, bytes, seconds) in
        [("big", &b"old"[..], 1), ("small", b"newer", 1_500_000_000), ("link", b"a file", 1), ("sub/same", b"old", 1)]
    {
        fs::write(target.join(name), bytes).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options().write(true).open(target.join(name)).unwrap().set_modified(time).unwrap();
    }
}

struct Sweep {
    fixture: Fixture,
    target: PathBuf,
    before: Entries,
    /// What a restore without faults makes of the target, by policy.
    clean: BTreeMap<&'static str, Entries>,
}

impl Sweep {
    fn restore(&self, overwrite: &str) -> Command {
        self.fixture.command(["restore", "latest:/source", "--target", "out", "-q", "--overwrite", overwrite])
    }

    /// The same under `strace`, which writes what it sees to a file.
    fn traced(&self, overwrite: &str, options: &[&str]) -> Command {
        let plain = self.restore(overwrite);
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(self.fixture.path("trace")).args(options).arg(plain.get_program());
        traced.args(plain.get_args()).current_dir(self.fixture.path("")).env_clear().env("ONEFOLD_IO", "threads");
        for (name, value) in plain.get_envs() {
            traced.env(name, value.unwrap());
        }
        traced
    }

    /// Counts the calls of a restore, by name.
    fn count(&self, overwrite: &str) -> BTreeMap<&'static str, usize> {
        prepare(&self.target);
        let calls = format!("trace={}", CALLS.join(","));
        assert!(self.traced(overwrite, &["-e", &calls]).status().unwrap().success());
        let trace = fs::read_to_string(self.fixture.path("trace")).unwrap();
        let mut counts = BTreeMap::new();
        for line in trace.lines() {
            let name = line.split_whitespace().nth(1).and_then(|call| call.split('(').next()).unwrap_or_default();
            if let Some(known) = CALLS.iter().find(|known| **known == name) {
                *counts.entry(*known).or_insert(0) += 1;
            }
        }
        counts
    }

    /// Asserts that each file under its own name is that of before or that of the snapshot.
    fn assert_nothing_half(&self, case: &str) {
        let right = &self.clean["always"];
        for (path, (kind, bytes, ..)) in entries(&self.target) {
            if kind != "file" || path.to_str().unwrap().contains(".onefold-") {
                continue;
            }
            let is_bytes_of = |entries: &Entries| entries.get(&path).is_some_and(|(_, found, ..)| *found == bytes);
            assert!(is_bytes_of(right) || is_bytes_of(&self.before), "{case}: {} is neither", path.display());
        }
    }

    fn assert_equal(&self, case: &str, overwrite: &str) {
        let mut found = entries(&self.target);
        // A file of a run before, which this one had no reason to touch.
        found.retain(|path, _| !path.to_str().unwrap().contains(".onefold-"));
        let expected = &self.clean[overwrite];
        let names = |entries: &Entries| entries.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(expected), "{case}: success over a difference");
        for (path, entry) in expected {
            assert!(found[path] == *entry, "{case}: {}: success over a difference", path.display());
        }
    }

    /// Makes one call fail, then repeats the restore with another policy.
    fn fail(&self, overwrite: &'static str, again: &'static str, call: &str, number: usize, error: &str) {
        prepare(&self.target);
        let inject = format!("inject={call}:error={error}:when={number}");
        let case = format!("--overwrite {overwrite}, {inject}");
        let outcome = self.traced(overwrite, &["-e", &format!("trace={call}"), "-e", &inject]).output().unwrap();
        self.assert_nothing_half(&case);
        if outcome.status.success() {
            self.assert_equal(&case, overwrite);
        }
        let case = format!("{case}, again with {again}");
        let repeated = self.restore(again).output().unwrap();
        self.assert_nothing_half(&case);
        assert!(repeated.status.success(), "{case}: {}", String::from_utf8_lossy(&repeated.stderr));
        if matches!(again, "always" | "if-changed") {
            self.assert_equal(&case, "always");
        }
    }
}

/// Prints a line that the test harness does not hold back.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[test]
fn no_system_call_that_fails_makes_a_restore_succeed_over_a_difference() {
    if Command::new("strace").arg("-V").output().is_err() {
        tell("skipped: there is no strace here");
        return;
    }
    let fixture = fixture();
    let target = fixture.path("out");
    prepare(&target);
    let before = entries(&target);
    let mut sweep = Sweep { fixture, target, before, clean: BTreeMap::new() };
    for overwrite in POLICIES {
        prepare(&sweep.target);
        assert!(sweep.restore(overwrite).status().unwrap().success());
        let clean = entries(&sweep.target);
        sweep.clean.insert(overwrite, clean);
    }
    let (mut tried, mut turn) = (0, 0);
    for (at, overwrite) in POLICIES.into_iter().enumerate() {
        for (call, count) in sweep.count(overwrite) {
            for number in 1..=count {
                for (which, error) in ERRORS.into_iter().enumerate() {
                    turn += 1;
                    // All at full size. Otherwise a few, of other numbers for each policy and error.
                    if turn % STRIDE == 0 {
                        sweep.fail(overwrite, POLICIES[(at + number + which) % POLICIES.len()], call, number, error);
                        tried += 1;
                    }
                }
            }
        }
    }
    tell(&format!("restores with a failing system call: {tried} of {turn}"));
    assert_ne!(tried, 0);
}
