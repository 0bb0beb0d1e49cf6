//! Three machines: one serves volumes, one deduplicates and stores their history, and one holds the repository. The first two are
//! processes on loopback, the third is a directory.

#![expect(clippy::print_stdout, reason = "a test says its seed and what it covered")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onefold_engine::random::SplitMix64;

use crate::fixture::{Fixture, noise};

const SIZE: u64 = 8 << 20;

/// A process, with the lines that it writes to standard error; killed when the test ends.
struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, stderr) = (Arc::new(Mutex::new(Vec::new())), child.stderr.take().unwrap());
        let read = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                read.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_for(text, || self.said().contains(text), || self.said());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process as a signal does.
    #[track_caller]
    fn stop(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}", self.said());
        self.said()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool, found: impl Fn() -> String) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_mins(1), "waited in vain for {what}: {}", found());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Three machines with one volume.
struct Machines {
    fixture: Fixture,
    port: u16,
}

impl Machines {
    fn new(options: &[&str]) -> Self {
        const SCRIPT: &str = "set -e; cd \"$1\"; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            for authority in ca other; do
                openssl req -x509 $new -keyout $authority.key -out $authority.pem -days 30 -subj /CN=$authority
            done
            echo 'subjectAltName=IP:127.0.0.1' >extensions
            for name in backup web stranger; do
                authority=ca; test $name = stranger && authority=other
                openssl req $new -keyout $name.key -out $name.csr -subj /CN=$name
                openssl x509 -req -in $name.csr -CA $authority.pem -CAkey $authority.key -CAcreateserial -days 30 \
                    -extfile extensions -out $name.pem
            done";
        let fixture = Fixture::without_repository(None);
        let path = fixture.path("");
        let made = Command::new("sh").args(["-c", SCRIPT, "script", path.to_str().unwrap()]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fixture.run(["init", "--no-encryption", "-q", "--for", "volumes"]).code(0);
        let file = File::create(fixture.path("web.raw")).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&noise(1, 1_500_000), 1 << 20).unwrap();
        // Nobody else gets this port while the receiver is away: the range of ports is large.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let machines = Self { fixture, port };
        machines.create("web", "web", options).code(0);
        machines
    }

    fn create(&self, group: &str, certificate: &str, options: &[&str]) -> crate::fixture::Ran {
        let address = format!("127.0.0.1:{}", self.port);
        let (chain, key) = (format!("{certificate}.pem"), format!("{certificate}.key"));
        let arguments =
            ["cdp", "create", group, "web=web.raw", "--name", "web", "--journal-size", "64M", "--receiver", &address];
        let tls = ["--tls-authority", "ca.pem", "--tls-certificate", &chain, "--tls-key", &key];
        let mut command = self.fixture.command(arguments.iter().chain(&tls).chain(options));
        crate::fixture::Ran(command.env_remove("ONEFOLD_REPOSITORY").output().unwrap())
    }

    fn receive(&self, options: &[&str]) -> Process {
        let address = format!("tcp:127.0.0.1:{}", self.port);
        let arguments = ["cdp", "receive", "received", "--listen", &address, "--journal-size", "64M"];
        let tls = ["--tls-certificate", "backup.pem", "--tls-key", "backup.key", "--tls-client-authority", "ca.pem"];
        let process = Process::start(self.fixture.command(arguments.iter().chain(&tls).chain(options)));
        process.wait_for("receiving into");
        process
    }

    /// Serves a group. The machine has no repository.
    fn serve(&self, group: &str) -> Process {
        let mut command = self.fixture.command(["cdp", "serve", group]);
        command.env_remove("ONEFOLD_REPOSITORY");
        let process = Process::start(command);
        let socket = self.fixture.path(group).join("nbd");
        wait_for("the server", || UnixStream::connect(&socket).is_ok(), || process.said());
        process
    }

    fn change(&self, commands: &[String]) {
        let mut program = Command::new("qemu-io");
        program.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command]));
        let socket = self.fixture.path("web/nbd");
        let output = program.arg(format!("nbd+unix:///web?socket={}", socket.display())).output();
        let output = output.expect("qemu-io of the package qemu-utils");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_good = output.status.success() && !said.contains("failed") && !said.contains("error");
        assert!(is_good, "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills a receiver after a while. Half of them die in a checkpoint, or right after one.
    fn kill_soon(&self, receiver: Process, kill: usize, after: Duration) {
        let mut asking =
            kill.is_multiple_of(2).then(|| self.fixture.command(["cdp", "checkpoint", "received"]).spawn().unwrap());
        // However slow the machine is, some are made.
        if let Some(child) = asking.as_mut().filter(|_| kill % 8 == 6) {
            child.wait().unwrap();
        }
        std::thread::sleep(after);
        receiver.kill();
        asking.as_mut().map(|child| child.wait().unwrap());
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.fixture.path("web.raw")).unwrap()
    }

    fn restored(&self, moment: &str) -> Vec<u8> {
        self.fixture.run(["cdp", "restore", "web", "--at", moment, "--target", "restored.raw"]).code(0);
        fs::read(self.fixture.path("restored.raw")).unwrap()
    }

    /// Names the present moment, as soon as the first transfer has ended.
    fn mark(&self, name: &str) {
        let marked = || self.fixture.run(["cdp", "mark", "web", name]);
        wait_for("the first transfer", || marked().0.status.success(), || marked().stderr());
    }

    fn status(&self, group: &str) -> serde_json::Value {
        self.fixture.run(["cdp", "status", group, "--json"]).code(0).json()
    }
}

fn texts(commands: &[&str]) -> Vec<String> {
    commands.iter().map(|command| (*command).to_owned()).collect()
}

#[test]
fn a_machine_without_a_repository_gets_every_moment_back_from_another_one() {
    let machines = Machines::new(&["--wire-compression", "lzjb"]);
    let fixture = &machines.fixture;
    let mode = fs::metadata(fixture.path("web/key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The receiver comes later: the volumes are served without it.
    let server = machines.serve("web");
    machines.change(&texts(&["write -P 0x11 0 64k", "flush"]));
    assert_eq!(machines.status("web")["link"]["connected"], false);
    let printed = fixture.run(["cdp", "status", "web"]).code(0).stdout();
    assert!(printed.contains("was not reached yet") && printed.contains("not at the receiver"), "{printed}");
    let failed = fixture.run(["cdp", "checkpoint", "web"]).code(1);
    assert!(failed.stderr().contains("no link to 127.0.0.1"), "{}", failed.stderr());
    let receiver = machines.receive(&[]);
    server.wait_for("linked to");
    let printed = fixture.run(["cdp", "status", "received"]).code(0).stdout();
    assert!(printed.contains("sender: connected"), "{printed}");
    machines.mark("first");
    let first = machines.bytes();
    machines.change(&texts(&["write -P 0x22 2000000 10000", "write -z 1M 1M", "discard 5M 1M", "flush"]));
    // RPO at the receiver.
    let state = || machines.status("web");
    wait_for("the receiver", || state()["lag_records"] == 0, || format!("{}", state()));
    let status = state();
    assert_eq!(status["link"]["acknowledged_lsn"], status["lsn"], "{status}");
    assert_eq!((&status["link"]["compression"], &status["lag_seconds"]), (&"lzjb".into(), &0.0.into()), "{status}");
    let made = fixture.run(["cdp", "checkpoint", "web", "--json"]).code(0).json();
    assert_eq!(made["last_lsn"], status["lsn"]);
    assert_eq!(machines.status("received")["checkpoint_lsn"], status["lsn"]);
    fixture.run(["cdp", "checkpoint", "received"]).code(0).says("nothing was written");
    fixture.run(["cdp", "mark", "received", "x"]).code(1).says("where the volumes are served");
    assert!(machines.restored("first") == first && machines.restored("latest") == machines.bytes());
    // No moment before the end of the first transfer.
    let refused = fixture.run(["cdp", "restore", "web", "--at", "lsn:2", "--target", "never"]).code(1);
    assert!(refused.stderr().contains("may be missing"), "{}", refused.stderr());
    // Bytes that nobody recorded are found by fingerprints of the receiver.
    fixture.run(["cdp", "scan", "web"]).code(0);
    let file = File::options().write(true).open(fixture.path("web.raw")).unwrap();
    file.write_all_at(&[0xee], 3_000_000).unwrap();
    let scanned = fixture.run(["cdp", "scan", "web", "--json"]).code(1).json();
    assert_eq!((&scanned["differing_bytes"], &scanned["differing"][0]["offset"]), (&4096.into(), &2_998_272.into()));
    fixture.run(["cdp", "scan", "web", "--record"]).code(0);
    fixture.run(["cdp", "checkpoint", "web"]).code(0);
    assert!(machines.restored("latest") == machines.bytes());
    for moment in ["lsn:0", "2020-01-01 00:00:00"] {
        let refused = fixture.run(["cdp", "restore", "web", "--at", moment, "--target", "never"]).code(1).stderr();
        assert!(refused.contains("nothing is known") || refused.contains("the history begins after"), "{refused}");
    }
    server.stop();
    fixture.run(["cdp", "scan", "web"]).code(1).says("the records go to 127.0.0.1");
    let said = receiver.stop();
    assert!(said.contains("receiving group web from record 1 on"), "{said}");
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["cdp", "serve", "received"]).code(1).says("the volumes are on another machine");
}

#[test]
fn the_machine_in_the_middle_is_killed_over_and_over_and_nothing_is_lost() {
    let kills: usize = std::env::var("ONEFOLD_LINK_KILLS").map_or(50, |text| text.parse().unwrap());
    let seed: u64 =
        std::env::var("ONEFOLD_SEED").map_or_else(|_| std::process::id().into(), |text| text.parse().unwrap());
    println!("ONEFOLD_SEED={seed} ONEFOLD_LINK_KILLS={kills}");
    let machines = Machines::new(&[]);
    let checkpoints = ["--checkpoint", "1s", "--checkpoint-max", "1s"];
    let mut random = SplitMix64::new(seed);
    let mut server = machines.serve("web");
    let mut moments = Vec::new();
    let mut wait = SplitMix64::new(seed ^ 1);
    for kill in 0..kills {
        let receiver = machines.receive(&checkpoints);
        std::thread::scope(|scope| {
            // Writes go on while the receiver is killed.
            let killing =
                scope.spawn(|| machines.kill_soon(receiver, kill, Duration::from_millis(20 + wait.index(400) as u64)));
            let mut commands = Vec::new();
            for _ in 0..12 {
                let (offset, len) = (random.index(usize::try_from(SIZE).unwrap() - 70_000), 1 + random.index(70_000));
                commands.push(format!("write -P {} {offset} {len}", random.index(256)));
            }
            commands.push("flush".to_owned());
            machines.change(&commands);
            while !killing.is_finished() {
                machines.change(&texts(&["write -P 0x77 4096 4096", "write -P 0x78 8192 4096"]));
            }
        });
        if kill % 10 == 4 {
            let name = format!("mark-{kill}");
            machines.mark(&name);
            moments.push((name, machines.bytes()));
        }
        if kill % 10 == 9 {
            server.kill();
            server = machines.serve("web");
        }
    }
    let receiver = machines.receive(&checkpoints);
    server.wait_for("linked to");
    let state = || machines.status("web");
    let found = || format!("{} {} {}", state(), machines.status("received"), receiver.said());
    wait_for("the receiver", || state()["lag_records"] == 0, found);
    let last = state()["lsn"].clone();
    machines.fixture.run(["cdp", "checkpoint", "web"]).code(0);
    assert_eq!(machines.status("received")["checkpoint_lsn"], last);
    assert!(machines.restored("latest") == machines.bytes());
    for (name, bytes) in &moments {
        assert!(machines.restored(name) == *bytes, "{name}");
    }
    let history = machines.fixture.run(["cdp", "history", "web", "--json"]).code(0).json();
    // All gaps began before the first transfer, and have ended.
    let gaps = history["gaps"].as_array().unwrap();
    assert!(gaps.iter().all(|gap| gap["from"]["lsn"] == 1 && gap["to"]["lsn"].is_u64()), "{gaps:?}");
    let mut next = 1;
    for checkpoint in history["checkpoints"].as_array().unwrap() {
        assert_eq!(checkpoint["first_lsn"], next, "no record is missing or there twice");
        next = checkpoint["last_lsn"].as_u64().unwrap() + 1;
    }
    assert_eq!(last, next - 1);
    let checkpoints = history["checkpoints"].as_array().unwrap().len();
    println!("{kills} kills, {last} records, {checkpoints} checkpoints");
    assert!(kills < 20 || 4 < checkpoints);
    receiver.stop();
    server.stop();
    machines.fixture.run(["check", "--read-data"]).code(0);
}

fn copy_directory(from: &Path, to: &PathBuf) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn strangers_other_groups_and_older_copies_get_sentences() {
    let machines = Machines::new(&[]);
    let fixture = &machines.fixture;
    machines.create("odd", "missing", &[]).code(1).says("missing.pem");
    let receiver = machines.receive(&[]);
    let server = machines.serve("web");
    server.wait_for("linked to");
    machines.change(&texts(&["write -P 1 0 4k", "flush"]));
    server.stop();
    let (group, old) = (fixture.path("web"), fixture.path("old"));
    copy_directory(&group, &old);
    let server = machines.serve("web");
    server.wait_for("linked to");
    machines.change(&texts(&["write -P 2 0 4k", "flush"]));
    let state = || machines.status("web");
    wait_for("the receiver", || state()["lag_records"] == 0, || format!("{}", state()));
    server.stop();
    // Another authority has signed its certificate.
    machines.create("stranger", "stranger", &[]).code(0);
    let stranger = machines.serve("stranger");
    stranger.wait_for("no link to");
    receiver.wait_for("connection closed: invalid peer certificate");
    stranger.kill();
    // A group with the same name.
    machines.create("other", "web", &[]).code(0);
    let other = machines.serve("other");
    let sentence = "receives the group web here, and not your group web: it has the same name and another identity";
    other.wait_for(sentence);
    receiver.wait_for(sentence);
    other.kill();
    // An older copy of the group.
    fs::rename(&group, fixture.path("newer")).unwrap();
    copy_directory(&old, &group);
    let older = machines.serve("web");
    older.wait_for("it is an older copy");
    receiver.wait_for("it is an older copy");
    // It goes on, and gets other records with the same numbers.
    machines.change(&texts(&["write -P 3 0 4k", "write -P 4 8k 4k", "write -P 5 16k 4k", "flush"]));
    older.wait_for("is not the one of this journal");
    receiver.wait_for("is not the one of this journal");
    older.kill();
    let last = machines.status("received")["lsn"].clone();
    receiver.stop();
    // The true one goes on.
    fs::remove_dir_all(&group).unwrap();
    fs::rename(fixture.path("newer"), &group).unwrap();
    let receiver = machines.receive(&[]);
    let server = machines.serve("web");
    server.wait_for("linked to");
    assert!(last.as_u64() <= machines.status("received")["lsn"].as_u64());
    fixture
        .run(["cdp", "serve", "web", "--checkpoint", "5m"])
        .code(1)
        .says("give --checkpoint and --checkpoint-max to");
    // A second receiver in the same directory, and one in the directory of a group that is served.
    let arguments = ["cdp", "receive", "received", "--listen", "tcp:127.0.0.1:0", "--tls-certificate", "backup.pem"];
    let tls = ["--tls-key", "backup.key", "--tls-client-authority", "ca.pem"];
    fixture.run(arguments.iter().chain(&tls)).code(1).says("another process serves this group");
    fixture
        .run(arguments.iter().chain(&tls).map(|text| if *text == "received" { "old" } else { text }))
        .code(1)
        .says("not received");
    drop((server, receiver));
}
