//! Tests of the built program and package in root directories that contain nothing else.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{output_of, run_tool};
use crate::dist::deb::{COMPLETIONS, PAGES};

/// Largest program.
const PROGRAM_BYTES_MAX: u64 = 15_000_000;

/// Required manual pages; `onefold man` writes one for each command.
const SOME_PAGES: [&str; 5] =
    ["onefold.1.gz", "onefold-init.1.gz", "onefold-backup.1.gz", "onefold-restore.1.gz", "onefold-check.1.gz"];

/// Lines of the service unit, and the files of the package that they use.
const USED_BY_UNIT: [(&str, &str); 2] = [
    ("ExecStart=/usr/bin/onefold ", "usr/bin/onefold"),
    ("EnvironmentFile=/etc/onefold/backup.env\n", "etc/onefold/backup.env"),
];

/// How to run the program of a package: a debug build is not static.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Runs {
    InEmptyRoot,
    AsItIs,
}

/// Backs up, checks and restores in a root with only the program and a tree: no library, no shell, no device. A restore needs
/// `/proc`, which is mounted.
pub(super) fn program_alone(sources: &Path, program: &Path) -> Result<()> {
    let bytes = program.metadata()?.len();
    ensure!(bytes <= PROGRAM_BYTES_MAX, "{} has {bytes} bytes, more than {PROGRAM_BYTES_MAX}", program.display());
    let root = EmptyRoot::create()?;
    fs::copy(program, root.path("onefold")).context("copy the program")?;
    run_tool(Command::new("cp").arg("-R").arg(sources.join("docs")).arg(root.path("tree")))?;
    fs::write(root.path("password"), "a password of this check\n").context("write the password")?;
    let given = ["--repo", "/repository", "--cache-dir", "/cache", "--password-file", "/password"];
    for words in [
        &["init"][..],
        &["backup", "/tree"],
        &["check", "--read-data"],
        &["snapshots"],
        &["restore", "latest", "--target", "/restored"],
    ] {
        run_tool(root.chroot("/onefold").args(words).args(given))?;
    }
    run_tool(
        Command::new("diff").args(["-r", "--no-dereference"]).args([root.path("tree"), root.path("restored/tree")]),
    )?;
    println!("dist: the program works in an empty root");
    Ok(())
}

/// Unpacks a package into an empty root, checks its files, and runs its program.
pub(super) fn package(package: &Path, runs: Runs) -> Result<()> {
    let root = EmptyRoot::create()?;
    run_tool(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root.directory))?;
    for page in SOME_PAGES {
        run_tool(Command::new("gzip").arg("--test").arg(root.path(PAGES).join(page)))?;
    }
    for (shell, path) in COMPLETIONS {
        let script = fs::read_to_string(root.path(path)).with_context(|| format!("the completions for {shell}"))?;
        ensure!(script.contains("restore"), "{path} does not complete `restore`");
    }
    let units = root.path("usr/lib/systemd/system");
    let service = fs::read_to_string(units.join("onefold-backup.service")).context("the service unit")?;
    for (line, path) in USED_BY_UNIT {
        ensure!(service.contains(line), "the service unit has no line {line:?}");
        ensure!(root.path(path).is_file(), "the package has no {path}, which its service unit uses");
    }
    let mode = root.path("etc/onefold/backup.env").metadata()?.permissions().mode() & 0o777;
    ensure!(mode == 0o640, "/etc/onefold/backup.env has mode {mode:o}");
    verify_units(&root)?;
    let mut program = match runs {
        Runs::InEmptyRoot => root.chroot("/usr/bin/onefold"),
        Runs::AsItIs => Command::new(root.path("usr/bin/onefold")),
    };
    let shown = String::from_utf8(output_of(program.arg("version"))?).context("the version as text")?;
    ensure!(shown.contains(env!("CARGO_PKG_VERSION")), "the packed program has the wrong version: {shown:?}");
    println!("dist: {} is complete", package.display());
    Ok(())
}

/// Verifies the units with systemd, if it is installed.
fn verify_units(root: &EmptyRoot) -> Result<()> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("dist: skipped the verification of the units: no systemd-analyze");
        return Ok(());
    }
    let units =
        ["onefold-backup.service", "onefold-backup.timer"].map(|name| root.path("usr/lib/systemd/system").join(name));
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output()?;
    let output = String::from_utf8_lossy(&verified.stderr).into_owned();
    // The program is not installed on this machine. Every other message about the two units is an error.
    let complaints: Vec<&str> = output
        .lines()
        .filter(|line| line.contains("onefold-backup") && !line.contains("Command /usr/bin/onefold is not executable"))
        .collect();
    ensure!(complaints.is_empty(), "systemd-analyze verify: {}", complaints.join("\n"));
    Ok(())
}

/// A temporary directory that is removed on drop.
struct EmptyRoot {
    directory: PathBuf,
}

impl EmptyRoot {
    fn create() -> Result<Self> {
        let shown = output_of(Command::new("mktemp").args(["--directory", "--tmpdir", "onefold-dist.XXXXXX"]))?;
        let root = Self { directory: PathBuf::from(String::from_utf8(shown).context("a path in UTF-8")?.trim()) };
        fs::create_dir(root.path("proc")).context("create a directory for /proc")?;
        Ok(root)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.join(below)
    }

    /// Returns a command that runs with this directory as its root and with `/proc`, in a user namespace unless the caller is root.
    fn chroot(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        // The owner of a process's directory is its user.
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--pid", "--fork", "--mount-proc", "--root"]);
        command.arg(&self.directory).args(["--wd", "/", program]).env_clear();
        command
    }
}

impl Drop for EmptyRoot {
    fn drop(&mut self) {
        // A temporary directory that remains does no harm.
        let _ignored = fs::remove_dir_all(&self.directory);
    }
}
