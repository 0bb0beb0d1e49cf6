//! Runs the commands of a page in a directory of its own.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::page::{Block, Page};

/// Directories of the pages that stand in the sandbox while they are tried.
const REPLACED: [&str; 2] = ["/mnt/backup", "/tmp/"];

/// Seconds after which the commands of a page count as hanging.
const SECONDS_MAX: &str = "300";

/// What a reader types where a command reads standard input.
const TYPED: &str = "a long and secret phrase\n";

/// Makes a repository with a snapshot, for pages that begin with one.
const REPOSITORY: &str = "export ONEFOLD_REPOSITORY=/mnt/backup/repository
export ONEFOLD_PASSWORD_FILE=~/.config/onefold/password
install -D -m 600 /dev/stdin ~/.config/onefold/password
onefold init --quiet
onefold backup --quiet ~/documents ~/pictures
";

/// A home directory, a disk for backups, and the program.
pub(super) struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    pub(super) fn new() -> Self {
        let sandbox = Self { directory: tempfile::tempdir().unwrap() };
        for directory in ["bin", "mnt/backup", "tmp"] {
            fs::create_dir_all(sandbox.path().join(directory)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_onefold"), sandbox.path().join("bin/onefold")).unwrap();
        fs::write(sandbox.path().join("typed"), TYPED).unwrap();
        for (name, bytes) in [
            ("documents/notes.txt", "Remember the milk.\n".into()),
            ("documents/report.txt", "A sentence of a report.\n".repeat(5_000)),
            ("documents/draft.tmp", "not worth keeping\n".into()),
            ("documents/important.log", "worth keeping\n".into()),
            ("documents/build/notes.txt", "worth keeping\n".into()),
            ("documents/build/output.o", "made from other files\n".into()),
            ("pictures/2035/sea.jpg", "waves ".repeat(50_000)),
        ] {
            let path = sandbox.home().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        sandbox
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn home(&self) -> std::path::PathBuf {
        self.path().join("home/me")
    }

    /// Runs all blocks of a page in one shell. Returns the output if one of them ends otherwise than it should.
    pub(super) fn run(&self, page: &Page) -> Result<(), String> {
        let mut script = String::from("set -Eeuo pipefail\ntrap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n");
        if page.has_repository {
            self.add(&mut script, &Block { line: 0, code: 0, text: REPOSITORY.to_owned() }, &page.path);
        }
        for block in &page.blocks {
            self.add(&mut script, block, &page.path);
        }
        let path = self.path().join("script");
        fs::write(&path, script).unwrap();
        let search = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        let output = Command::new("timeout")
            .args([SECONDS_MAX, "bash", "-c", "exec bash \"$0\" 2>&1"])
            .arg(&path)
            .env_clear()
            .envs([("PATH", search.as_str()), ("USER", "me"), ("LANG", "C.UTF-8")])
            .env("HOME", self.home())
            .env("TMPDIR", self.path().join("tmp"))
            .current_dir(self.home())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if output.status.success() {
            return Ok(());
        }
        let output_text = String::from_utf8_lossy(&output.stdout);
        Err(format!("{}: {}\n{output_text}", page.path.display(), output.status))
    }

    /// Adds a block: what it exports lasts, unless it is to fail.
    fn add(&self, script: &mut String, block: &Block, page: &Path) {
        let Block { line, code, text } = block;
        let root = self.path().display();
        // The root holds such a path itself, so that it is put in last.
        let marked = REPLACED.iter().fold(text.clone(), |text, path| text.replace(path, &format!("\0{path}")));
        let text = marked.replace('\0', &root.to_string());
        let place = format!("{}:{line}", page.display());
        writeln!(script, "echo '--- {place}'").unwrap();
        if *code == 0 {
            writeln!(script, "{{\n{text}\n}} <{root}/typed").unwrap();
        } else {
            writeln!(script, "set +e\n(\nset -e\n{text}\n) <{root}/typed\nstatus=$?\nset -e").unwrap();
            writeln!(script, "[ $status -eq {code} ] || {{ echo \"{place}: exit code $status\"; exit 1; }}").unwrap();
        }
    }
}
