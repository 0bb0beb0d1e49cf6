//! Threads and memory that the system refuses: the command goes on with less, or ends with a sentence. It never panics,
//! never hangs, and no signal ends it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, Ran, contents, noise};

/// Seconds after which a command hangs.
const PATIENCE: &str = "120";
/// How the C library begins the sentence with which it ends a process, as when it has no memory for a thread's destructors.
const C_LIBRARY: &str = "Fatal glibc error: ";
/// Into how many steps a command's mappings of memory are divided; at each, one is refused.
const MAPPING_STEPS: usize = 8;

/// A fixture with a snapshot, and a runner that goes before the command.
struct Short {
    fixture: Fixture,
    program: PathBuf,
}

impl Short {
    fn new() -> Self {
        let fixture = Fixture::encrypted();
        for number in 0..20 {
            fixture.write(&format!("directory/{number}"), &noise(number, 5000));
        }
        fixture.write("large", &noise(99, 3 << 20));
        fixture.run(["backup", "source", "-q"]).code(0);
        Self { fixture, program: PathBuf::from(env!("CARGO_BIN_EXE_onefold")) }
    }

    /// Runs a command below another program, which limits it.
    fn run(&self, limit: &[&str], arguments: &[&str]) -> Ran {
        let template = self.fixture.command(arguments);
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", PATIENCE]).args(limit).arg(&self.program).args(arguments);
        command.current_dir(self.fixture.path("")).env_clear().stdin(Stdio::null());
        for (name, value) in template.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin")));
        command.env("RUST_BACKTRACE", "1");
        Ran(command.output().unwrap())
    }

    /// Runs all that moves data. Returns how many of the commands succeeded.
    #[track_caller]
    fn run_all(&self, limit: &[&str]) -> usize {
        let target = self.fixture.path("target");
        let restore = ["restore", "latest", "--target", target.to_str().unwrap(), "-q"];
        let backup = ends_well(&self.run(limit, &["backup", "source", "--force", "-q"]), limit);
        let check = ends_well(&self.run(limit, &["check", "--read-data"]), limit);
        let restored = ends_well(&self.run(limit, &restore), limit);
        if restored {
            let source = self.fixture.path("source");
            let below = target.join(source.strip_prefix("/").unwrap());
            let found = if below.exists() { below } else { target.join("source") };
            assert!(contents(&found) == contents(&source), "{limit:?}: another restore than what was backed up");
        }
        if target.exists() {
            fs::remove_dir_all(&target).unwrap();
        }
        usize::from(backup) + usize::from(check) + usize::from(restored)
    }
}

/// Asserts that a command succeeded, or failed with a sentence. Returns which.
#[track_caller]
fn ends_well(ran: &Ran, limit: &[&str]) -> bool {
    let stderr = ran.stderr();
    assert_eq!(ran.0.status.signal(), None, "{limit:?}: {stderr}");
    let code = ran.0.status.code().unwrap();
    assert!(code == 0 || code == 1, "{limit:?}: {code}, {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("internal error"), "{limit:?}: {stderr}");
    let is_sentence = |line: &str| line.starts_with("onefold: ") || line.starts_with(C_LIBRARY);
    assert!(code == 0 || stderr.lines().any(is_sentence), "{limit:?}: {stderr}");
    code == 0
}

/// Makes everything in a directory belong to another user.
fn give(directory: &Path, uid: u32) {
    std::os::unix::fs::lchown(directory, Some(uid), Some(uid)).unwrap();
    for (path, _) in contents(directory) {
        std::os::unix::fs::lchown(directory.join(path), Some(uid), Some(uid)).unwrap();
    }
}

#[test]
fn a_user_with_few_threads_backs_up_checks_and_restores() {
    // The limit counts all processes of a user, and root is exempt from it: as root, a user that has no other process.
    const UID: u32 = 64_321;
    let mut short = Short::new();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let copy = short.fixture.path("onefold");
        fs::copy(&short.program, &copy).unwrap();
        short.program = copy;
        give(&short.fixture.path(""), UID);
    }
    let uid = UID.to_string();
    let user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
    for threads in if is_root { vec![1, 2, 5, 12, 20] } else { vec![1] } {
        let threads = format!("--nproc={threads}");
        let mut limit = if is_root { user.to_vec() } else { Vec::new() };
        limit.extend(["prlimit", &threads]);
        assert_eq!(short.run_all(&limit), 3, "{limit:?}");
    }
}

#[test]
fn commands_go_on_with_the_threads_that_start() {
    let short = Short::new();
    for started in [1, 2, 4, 9, 14, 20] {
        let inject = format!("inject=clone,clone3:error=EAGAIN:when={started}+");
        let limit = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3", "-e", &inject];
        assert_eq!(short.run_all(&limit), 3, "{limit:?}");
    }
}

/// Returns how many mappings of memory a command asks for.
fn count_mappings(short: &Short, arguments: &[&str]) -> usize {
    let log = short.fixture.path("mappings");
    let limit = ["strace", "-f", "-qq", "-o", log.to_str().unwrap(), "-e", "trace=mmap,mprotect"];
    short.run(&limit, arguments).code(0);
    fs::read_to_string(log).unwrap().lines().filter(|line| line.contains("mmap(") || line.contains("mprotect(")).count()
}

#[test]
fn memory_that_cannot_be_mapped_is_an_error_and_no_panic() {
    let short = Short::new();
    // The loader's and the runtime's come first: nothing of ours runs by then.
    let first = count_mappings(&short, &["version"]) + 1;
    let last = count_mappings(&short, &["backup", "source", "--force", "-q"]);
    assert!(first < last, "{first} {last}");
    let mut succeeded = 0;
    for step in 0..=MAPPING_STEPS {
        let at = first + (last - first) * step / MAPPING_STEPS;
        // One mapping is refused; all from there on are.
        for when in [format!("{at}"), format!("{at}+")] {
            let inject = format!("inject=mmap,mprotect:error=ENOMEM:when={when}");
            let limit = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=mmap,mprotect", "-e", &inject];
            succeeded += short.run_all(&limit);
        }
    }
    assert_ne!(succeeded, 0, "every command failed, so that nothing was tried");
}

/// An address space that was too small made the standard library abort, or wait forever for a lock that the aborting
/// thread held, when a backtrace was asked for.
#[test]
fn an_address_space_too_small_ends_with_a_sentence() {
    let short = Short::new();
    let mut outcomes = [0; 2];
    for megabytes in (40..=400_u64).step_by(20) {
        let limit = format!("--as={}", megabytes << 20);
        let succeeded = short.run_all(&["prlimit", &limit]);
        outcomes = [outcomes[0] + succeeded, outcomes[1] + 3 - succeeded];
    }
    assert!(outcomes.iter().all(|outcome| *outcome != 0), "succeeded and failed: {outcomes:?}");
}

#[test]
fn programs_read_of_memory_that_was_refused() {
    let short = Short::new();
    let mut named = 0;
    for megabytes in (40..=300_u64).step_by(20) {
        let limit = format!("--as={}", megabytes << 20);
        let ran = short.run(&["prlimit", &limit], &["backup", "source", "--force", "--json"]);
        // The C library may end another thread at the same moment, with a line of its own after the message.
        if ran.0.status.code() == Some(0) || ran.stderr().contains(C_LIBRARY) {
            continue;
        }
        let error = ran.code(1).last_error();
        assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &1.into()));
        assert!(error["message"].as_str().unwrap().contains("out of memory"), "{error}");
        named += 1;
    }
    assert_ne!(named, 0);
}
