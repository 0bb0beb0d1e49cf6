//! A server of MariaDB in a scratch directory.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest wait for a server to start.
const START_SECONDS_MAX: u64 = 120;

/// A server with an empty database, reachable by a socket only. It is killed when this is dropped.
pub(crate) struct MariaDb {
    directory: TempDir,
    server: Option<Child>,
}

impl MariaDb {
    /// Installs and starts a server.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let data = directory.path().join("data");
        let log = File::create(directory.path().join("install.log")).unwrap();
        let installed = program("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .args(as_root())
            // Servers that start at the same time remove each other's temporary tables in a shared directory.
            .env("TMPDIR", directory.path())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .expect("mariadb-install-db of the package mariadb-server");
        assert!(installed.success(), "{}", std::fs::read_to_string(directory.path().join("install.log")).unwrap());
        let mut server = Self { directory, server: None };
        server.restart();
        let created = program("mariadb")
            .args(["--no-defaults", "--user=root", "--execute=CREATE DATABASE fingerprints"])
            .arg(format!("--socket={}", server.socket().display()))
            .status()
            .unwrap();
        assert!(created.success());
        server
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns the address of the database.
    pub(crate) fn url(&self) -> String {
        let socket = self.socket().display().to_string().replace('/', "%2F");
        format!("mysql://root@localhost/fingerprints?socket={socket}")
    }

    /// Kills the server as a power cut would, but for what its kernel has.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Starts the server again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let log = File::create(self.directory.path().join("server.log")).unwrap();
        let server = program("mariadbd")
            .args(["--no-defaults", "--skip-networking", "--skip-log-bin"])
            .arg(format!("--datadir={}", self.directory.path().join("data").display()))
            .arg(format!("--socket={}", self.socket().display()))
            .args(as_root())
            .env("TMPDIR", self.directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("mariadbd of the package mariadb-server");
        self.server = Some(server);
        let start = Instant::now();
        while !self.answers() {
            let seconds = start.elapsed().as_secs();
            let log = || std::fs::read_to_string(self.directory.path().join("server.log")).unwrap();
            assert!(seconds < START_SECONDS_MAX, "the server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answers(&self) -> bool {
        let ping = program("mariadb-admin")
            .args(["--no-defaults", "--user=root", "ping"])
            .arg(format!("--socket={}", self.socket().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ping.unwrap().success()
    }

    /// Returns the processor seconds that the server has taken.
    #[allow(dead_code, reason = "a test of another crate shares this file, and measures nothing")]
    pub(crate) fn processor_seconds(&self) -> f64 {
        processor_seconds(self.server.as_ref().unwrap().id())
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the processor seconds that a process has taken.
#[allow(dead_code, reason = "a test of another crate shares this file, and measures nothing")]
pub(crate) fn processor_seconds(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The name of the program, in parentheses, may have spaces.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u32 = fields[11..13].iter().map(|field| field.parse::<u32>().unwrap()).sum();
    f64::from(ticks) / 100.0
}

/// Returns a command. Programs of the system are not on the path of every user.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    command
}

/// The server refuses to run as root unless it is told to.
fn as_root() -> Option<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t")).then_some("--user=root")
}
