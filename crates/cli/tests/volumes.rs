//! Volumes that are protected continuously, with real clients: `nbdcopy` and `qemu-io`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::{Fixture, Ran, noise};

const SIZE: u64 = 16 << 20;

/// A server; killed when the test ends.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    pub(crate) fn start(fixture: &Fixture, arguments: &[&str], socket: &Path) -> Self {
        let mut command = fixture.command(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Self(child);
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if server.0.try_wait().unwrap().is_some() {
                let mut said = String::new();
                std::io::Read::read_to_string(server.0.stderr.as_mut().unwrap(), &mut said).unwrap();
                panic!("the server has ended: {said}");
            }
            assert!(start.elapsed() < Duration::from_mins(1), "the server does not listen at {}", socket.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Ends the server as a signal does; returns what it said.
    pub(crate) fn stop(mut self) -> String {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut said = String::new();
        std::io::Read::read_to_string(self.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a volume of noise and holes.
fn make_volume(image: &Path) {
    let file = File::create(image).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(&noise(1, 3_000_000), 1 << 20).unwrap();
}

/// A repository, and a group of one volume that is served.
pub(crate) struct Volume {
    pub(crate) fixture: Fixture,
    pub(crate) group: PathBuf,
    pub(crate) image: PathBuf,
}

impl Volume {
    fn new() -> Self {
        Self::with(make_volume)
    }

    /// Makes a group of one volume, whose file `make` creates.
    pub(crate) fn with(make: impl FnOnce(&Path)) -> Self {
        Self::new_with_journal("64M", make)
    }

    /// Makes a group of one volume, whose journal takes so many bytes.
    pub(crate) fn new_with_journal(size: &str, make: impl FnOnce(&Path)) -> Self {
        Self::with_options(&["--journal-size", size], make)
    }

    /// Makes a group of one volume with options.
    fn with_options(options: &[&str], make: impl FnOnce(&Path)) -> Self {
        let fixture = Fixture::without_repository(None);
        fixture.run(["init", "--no-encryption", "-q", "--for", "volumes"]).code(0);
        let (group, image) = (fixture.path("group"), fixture.path("web.raw"));
        make(&image);
        let volume = format!("web={}", image.display());
        let create = ["cdp", "create", "group", &volume, "--name", "stored"];
        fixture.run(create.iter().chain(options)).code(0);
        Self { fixture, group, image }
    }

    pub(crate) fn serve(&self) -> Server {
        Server::start(&self.fixture, &["cdp", "serve", "group"], &self.group.join("nbd"))
    }

    /// Changes the volume as a client; each command is one of `qemu-io`.
    fn change(&self, commands: &[&str]) {
        if let Err(said) = try_qemu_io(&self.group.join("nbd"), commands) {
            panic!("{commands:?}: {said}\n{}", self.status());
        }
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        self.fixture.run(["cdp", "status", "group", "--json"]).code(0).json()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.image).unwrap()
    }

    /// Restores a moment of the repository by `cdp restore`; returns the volume.
    pub(crate) fn restored(&self, moment: &str) -> Vec<u8> {
        self.restored_from("stored", moment)
    }

    /// Restores a moment of a group by its name or its directory.
    pub(crate) fn restored_from(&self, group: &str, moment: &str) -> Vec<u8> {
        self.fixture.run(["cdp", "restore", group, "--at", moment, "--target", "restored.raw"]).code(0);
        std::fs::read(self.fixture.path("restored.raw")).unwrap()
    }
}

pub(crate) fn uri(socket: &Path) -> String {
    format!("nbd+unix:///web?socket={}", socket.display())
}

pub(crate) fn run_qemu_io(socket: &Path, commands: &[&str]) {
    try_qemu_io(socket, commands).unwrap_or_else(|said| panic!("{commands:?}: {said}"));
}

fn try_qemu_io(socket: &Path, commands: &[&str]) -> Result<(), String> {
    let mut program = Command::new("qemu-io");
    program.args(["-f", "raw"]);
    for command in commands {
        program.args(["-c", command]);
    }
    let output = program.arg(uri(socket)).output().expect("qemu-io of the package qemu-utils");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_good = output.status.success() && !said.contains("failed") && !said.contains("error");
    if is_good { Ok(()) } else { Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))) }
}

#[test]
fn every_moment_comes_back_as_a_file_and_as_an_export() {
    let volume = Volume::new();
    let start = volume.bytes();
    let server = volume.serve();
    volume.change(&["write -P 0x11 0 64k", "write -P 0x22 2000000 10000", "flush"]);
    let first = volume.bytes();
    volume.fixture.run(["cdp", "mark", "group", "first"]).code(0);
    volume.change(&["write -P 0x33 0 32k", "write -z 1M 1M", "discard 8M 1M", "write -f -P 0x44 3M 512"]);
    let second = volume.bytes();
    assert!(first != start && second != first);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    volume.change(&["write -P 0x55 4M 4k", "flush"]);
    let third = volume.bytes();
    let said = server.stop();
    assert!(said.contains("stored for the first time"), "{said}");
    assert!(volume.restored("first") == first);
    assert!(volume.restored("latest") == second);
    // What was written after the last checkpoint is in the journal, and comes with the next one.
    assert!(volume.restored_from("./group", "latest") == third && volume.restored_from("group", "first") == first);
    let server = volume.serve();
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    drop(server);
    assert!(volume.restored("latest") == third && volume.restored("lsn:0") == start);
    let history = volume.fixture.run(["cdp", "history", "stored", "--json"]).code(0).json();
    assert_eq!(history["marks"][0]["name"], "first");
    assert_eq!(history["checkpoints"].as_array().unwrap().len(), 3);
    // An export of the mark, with changes that reach nothing else.
    let socket = volume.fixture.path("old");
    let address = format!("unix:{}", socket.display());
    let arguments = ["cdp", "export", "stored", "--at", "first", "--overlay", "overlay", "--listen", &address];
    let export = Server::start(&volume.fixture, &arguments, &socket);
    let copy = volume.fixture.path("copy.raw");
    let copied = Command::new("nbdcopy").arg(uri(&socket)).arg(&copy).status();
    assert!(copied.expect("nbdcopy of the package libnbd-bin").success());
    assert!(std::fs::read(&copy).unwrap() == first);
    run_qemu_io(&socket, &["write -P 0x77 4k 4k", "read -P 0x77 4k 4k", "read -P 0x11 0 4k"]);
    export.stop();
    assert!(volume.restored("first") == first && volume.bytes() == third);
    // Checkpoints are ordinary snapshots.
    volume.fixture.run(["restore", "latest:/web", "--target", "plain"]).code(0);
    assert!(std::fs::read(volume.fixture.path("plain/image")).unwrap() == third);
    volume.fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn a_server_that_was_killed_loses_no_answered_write() {
    let volume = Volume::new();
    let mut server = volume.serve();
    volume.change(&["write -P 0x11 0 256k", "write -P 0x12 5M 3k"]);
    let answered = volume.bytes();
    // The directory of a group that is served: its server makes a checkpoint first.
    assert!(volume.restored_from("group", "latest") == answered);
    volume.change(&["write -P 0x13 6M 5k", "write -z 5M 1k"]);
    let answered = volume.bytes();
    server.0.kill().unwrap();
    drop(server);
    // Nobody has to serve the group for that: the journal has every answered write.
    assert!(volume.restored_from("group", "latest") == answered && volume.restored("latest") != answered);
    let listed = volume.fixture.run(["cdp", "history", "group", "--json"]).code(0).json();
    let stored = volume.fixture.run(["cdp", "history", "stored", "--json"]).code(0).json();
    assert!(stored["latest"]["lsn"].as_u64() < listed["latest"]["lsn"].as_u64(), "{stored} {listed}");
    // The journal alone would bring the volume back.
    let file = File::options().write(true).open(&volume.image).unwrap();
    file.write_all_at(&[0; 4096], 6 << 20).unwrap();
    drop(file);
    let server = volume.serve();
    assert!(volume.bytes() == answered);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == answered);
}

#[test]
fn wrong_groups_and_moments_get_sentences() {
    let volume = Volume::new();
    let fixture = &volume.fixture;
    fixture.run(["cdp", "create", "group", "a=web.raw"]).code(1).says("is not empty");
    std::fs::write(fixture.path("odd.raw"), [1; 1000]).unwrap();
    fixture.run(["cdp", "create", "other", "a=odd.raw"]).code(1).says("must be a multiple of 4096 bytes");
    fixture.run(["cdp", "create", "other", "web.raw"]).code(1).says("a volume is NAME=FILE");
    fixture.run(["cdp", "status", "group"]).code(1).says("the group is not served");
    fixture.run(["cdp", "serve", "source"]).code(1).says("is no group");
    let server = volume.serve();
    fixture.run(["cdp", "serve", "group"]).code(1).says("another process serves this group");
    for name in ["latest", "lsn:7", "flush~1", "2026-11-23 02:10:07"] {
        fixture.run(["cdp", "mark", "group", name]).code(1).says("choose another name");
    }
    fixture.run(["cdp", "mark", "group", ""]).code(1).says("a name has 1 to 255 bytes");
    fixture.run(["cdp", "restore", "stored", "--at", "never", "--target", "x"]).code(1).says("never");
    fixture.run(["cdp", "history", "nothing"]).code(1).says("nothing");
    server.stop();
    File::options().write(true).open(&volume.image).unwrap().set_len(SIZE / 2).unwrap();
    fixture.run(["cdp", "serve", "group"]).code(1).says("had 16777216 when the group was created");
}

#[test]
fn a_volume_is_brought_back_in_place_and_forth_again() {
    let volume = Volume::new();
    let fixture = &volume.fixture;
    let server = volume.serve();
    volume.change(&["write -P 0x11 0 64k", "write -P 0x22 2000000 10000", "flush"]);
    fixture.run(["cdp", "mark", "group", "good"]).code(0);
    let good = volume.bytes();
    volume.change(&["write -P 0x33 0 8M", "discard 1M 1M", "flush"]);
    let bad = volume.bytes();
    let back = ["cdp", "restore", "group", "--at", "good", "--in-place"];
    fixture.run(back).code(1).says("stop the server before a restore in place");
    drop(server);
    fixture.run(["cdp", "restore", "stored", "--at", "good", "--in-place"]).code(1).says("give its directory");
    fixture
        .run(["cdp", "restore", "group", "--at", "never", "--in-place"])
        .code(1)
        .says("no moment has the name `never`");
    let onto = ["cdp", "restore", "group", "--at", "good", "--target", "web.raw"];
    fixture.run(onto).code(1).says("is a volume of the group: --in-place");
    assert!(volume.bytes() == bad);
    let restored = fixture.run(["cdp", "restore", "group", "--at", "good", "--in-place", "--mark", "bad", "--json"]);
    let restored = restored.code(0).json();
    assert!(volume.bytes() == good, "{restored}");
    let written = restored["volumes"][0]["bytes_written"].as_u64().unwrap();
    assert!((1..=9 << 20).contains(&written), "{restored}");
    // The history goes on: the restore is undone, and the volume is served with all of its moments.
    let undone = fixture.run(["cdp", "restore", "group", "--at", "bad", "--in-place"]).code(0).stdout();
    assert!(undone.contains("before-restore-"), "{undone}");
    assert!(volume.bytes() == bad);
    let server = volume.serve();
    volume.change(&["write -P 0x44 0 4k", "flush"]);
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    let last = volume.bytes();
    server.stop();
    for (moment, bytes) in [("good", &good), ("bad", &bad), ("latest", &last)] {
        assert!(volume.restored(moment) == *bytes, "{moment}");
    }
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn a_history_is_thinned_by_hand_and_by_the_server() {
    let volume = Volume::with_options(
        &["--journal-size", "64M", "--keep-writes", "1h", "--keep-days", "90d", "--pin", "release"],
        make_volume,
    );
    let fixture = &volume.fixture;
    let server = volume.serve();
    let mut states = Vec::new();
    for number in 0..4 {
        let pattern = format!("write -P {} 0 64k", 1 + number);
        volume.change(&[&pattern, "write -P 9 1M 4k", "flush", &format!("write -P {} 4k 4k", 100 + number)]);
        states.push(volume.bytes());
        fixture.run(["cdp", "mark", "group", if number == 1 { "release" } else { "other" }]).code(0);
        volume.change(&["write -P 77 2M 64k", "flush"]);
        fixture.run(["cdp", "checkpoint", "group"]).code(0);
    }
    let last = volume.bytes();
    assert!(server.stop().contains("serving stored"));
    fixture.run(["cdp", "thin", "stored"]).code(1).says("no rule keeps anything by its age");
    fixture.run(["cdp", "thin", "stored", "--keep-days", "soon"]).code(1).says("not a duration");
    fixture
        .run(["cdp", "create", "other", "a=web.raw", "--pin", "x"])
        .code(1)
        .says("no rule keeps anything by its age");
    // By the rules of the group, every write is young enough.
    let kept = fixture.run(["cdp", "thin", "group", "--json"]).code(0).json();
    assert_eq!(kept["checkpoints"].as_array().unwrap().len(), 5, "{kept}");
    assert!(kept["checkpoints"].as_array().unwrap().iter().all(|kept| kept["fate"] == "kept"), "{kept}");
    let by_hand = ["cdp", "thin", "stored", "--keep-days", "1d", "--keep-marks", "0", "--pin", "release"];
    let tried = fixture.run(by_hand.iter().chain(&["--dry-run"])).code(0).stdout();
    assert!(tried.contains("would be thinned") && tried.contains("is forgotten"), "{tried}");
    let before = fixture.run(["cdp", "history", "stored", "--all-flushes", "--json"]).code(0).json();
    let thinned = fixture.run(by_hand.iter().chain(&["--json"])).code(0).json();
    let fates: Vec<&str> =
        thinned["checkpoints"].as_array().unwrap().iter().map(|of| of["fate"].as_str().unwrap()).collect();
    assert!(fates.contains(&"thinned") && fates.contains(&"forgotten") && fates[4] == "kept", "{thinned}");
    let after = fixture.run(["cdp", "history", "stored", "--all-flushes", "--json"]).code(0).json();
    let flushes = |listed: &serde_json::Value| listed["flushes"].as_array().unwrap().len();
    assert!(flushes(&after) < flushes(&before), "{before} {after}");
    let names: Vec<&str> =
        after["marks"].as_array().unwrap().iter().map(|mark| mark["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["release", "other"], "the newest checkpoint stays as it is");
    assert!(volume.restored("release") == states[1] && volume.restored("latest") == last);
    fixture.run(["cdp", "restore", "stored", "--at", "lsn:1", "--target", "x"]).code(1);
    fixture.run(["prune"]).code(0);
    assert!(volume.restored("release") == states[1] && volume.restored("latest") == last);
    fixture.run(["check", "--read-data"]).code(0);
    // The server thins by the rules of its group when it starts, and every hour.
    let file = volume.group.join("group.json");
    let text = std::fs::read_to_string(&file).unwrap().replace("\"writes\": \"1h\"", "\"writes\": \"0\"");
    std::fs::write(&file, text).unwrap();
    let server = volume.serve();
    volume.change(&["write -P 55 0 4k", "flush"]);
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    let start = Instant::now();
    let is_thinned = || {
        let listed = fixture.run(["cdp", "thin", "group", "--dry-run"]).code(0).stdout();
        listed.contains("0 checkpoints would be thinned, 0 would be forgotten")
    };
    while !is_thinned() {
        assert!(start.elapsed() < Duration::from_mins(1), "nothing was thinned");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.stop();
    assert!(volume.restored("release") == states[1] && volume.restored("latest") == volume.bytes());
}

#[test]
fn a_restore_in_place_that_is_longer_than_the_journal_makes_checkpoints() {
    let volume = Volume::new();
    let fixture = &volume.fixture;
    let (image, group) = (format!("web={}", volume.image.display()), fixture.path("small"));
    fixture.run(["cdp", "create", "small", &image, "--journal-size", "12M"]).code(0);
    let server = Server::start(fixture, &["cdp", "serve", "small"], &group.join("nbd"));
    let start = volume.bytes();
    for part in ["write -P 1 0 6M", "write -P 2 6M 5M", "write -P 3 11M 5M"] {
        run_qemu_io(&group.join("nbd"), &[part, "flush"]);
        fixture.run(["cdp", "checkpoint", "small"]).code(0);
    }
    let end = volume.bytes();
    drop(server);
    let back = ["cdp", "restore", "small", "--at", "lsn:0", "--in-place", "--mark", "end"];
    fixture.run(back).code(0);
    assert!(volume.bytes() == start);
    fixture.run(["cdp", "restore", "small", "--at", "end", "--in-place"]).code(0);
    assert!(volume.bytes() == end && volume.restored_from("small", "lsn:0") == start);
    let made = fixture.run(["cdp", "history", "./small", "--json"]).code(0).json();
    assert!(5 < made["checkpoints"].as_array().unwrap().len(), "{made}");
    fixture.run(["check"]).code(0);
}

/// A group whose journal is full, since its repository is away.
fn behind() -> (Volume, Server, Vec<u8>) {
    let volume = Volume::with_options(&["--journal-size", "12M", "--when-behind", "bitmap"], |image| {
        File::create(image).unwrap().set_len(SIZE).unwrap();
    });
    let server = volume.serve();
    volume.change(&["write -P 0x11 0 64k", "flush"]);
    let before = volume.bytes();
    volume.fixture.run(["cdp", "mark", "group", "before"]).code(0);
    let repository = volume.fixture.path("repository");
    std::fs::rename(&repository, volume.fixture.path("away")).unwrap();
    let writes: Vec<String> = (0..14).map(|number| format!("write -P {} {number}M 1M", number + 32)).collect();
    volume.change(&writes.iter().map(String::as_str).collect::<Vec<_>>());
    volume.change(&["write -z 9M 512k", "write -f -P 0x77 15M 4k", "flush"]);
    let status = volume.status();
    assert!(status["behind_bytes"] != 0 && status["gap"] == true && status["recording"] == false, "{status}");
    check_printed(&volume.fixture.run(["cdp", "status", "group"]).code(0), "changes are not recorded");
    volume.fixture.run(["cdp", "mark", "group", "never"]).code(1).says("changes are missing in the history");
    std::fs::rename(volume.fixture.path("away"), &repository).unwrap();
    (volume, server, before)
}

/// Checks that the checkpoints that end inside a gap, and no others, are said to be incomplete.
fn check_marked(volume: &Volume, gaps: &[Value]) {
    let snapshots = volume.fixture.run(["snapshots", "--json"]).code(0).json();
    let tags = |id: &str| {
        let found = snapshots
            .as_array()
            .unwrap()
            .iter()
            .find(|snapshot| snapshot["id"].as_str().unwrap().starts_with(id))
            .unwrap();
        found["tags"].as_array().unwrap().clone()
    };
    let history = volume.fixture.run(["cdp", "history", "stored", "--json"]).code(0).json();
    for checkpoint in history["checkpoints"].as_array().unwrap() {
        let (id, last) = (checkpoint["snapshot"].as_str().unwrap(), checkpoint["last_lsn"].as_u64().unwrap());
        let is_inside =
            |gap: &Value| gap["from"]["lsn"].as_u64().unwrap() <= last && last < gap["to"]["lsn"].as_u64().unwrap();
        let is_incomplete = gaps.iter().any(is_inside);
        assert_eq!(tags(id).iter().any(|tag| tag == "cdp-incomplete"), is_incomplete, "{history}");
        let listed = volume.fixture.run(["ls", id]).code(0);
        assert_eq!(listed.stderr().contains("ends inside a gap"), is_incomplete, "{}", listed.stderr());
    }
}

/// Waits until everything that is behind is recorded, and checks history and moments.
fn check_healed(volume: &Volume, server: Server, before: &[u8]) {
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    let start = Instant::now();
    while volume.status()["behind_bytes"] != 0 {
        assert!(start.elapsed() < Duration::from_mins(1), "{}", volume.status());
        std::thread::sleep(Duration::from_millis(50));
        volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    }
    volume.change(&["write -P 0x66 14M 4k", "flush"]);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    let image = volume.bytes();
    let history = volume.fixture.run(["cdp", "history", "stored", "--json"]).code(0).json();
    let gaps = history["gaps"].as_array().unwrap();
    assert!(!gaps.is_empty() && gaps.iter().all(|gap| !gap["to"].is_null()), "{history}");
    let inside = format!("lsn:{}", gaps[0]["from"]["lsn"]);
    volume.fixture.run(["cdp", "restore", "stored", "--at", &inside, "--target", "x"]).code(1).says("is inside a gap");
    assert!(volume.restored("latest") == image && volume.restored("before") == before);
    check_marked(volume, gaps);
    server.stop();
    assert!(volume.bytes() == image);
}

#[test]
fn a_full_journal_leaves_a_gap_that_heals_after_a_checkpoint() {
    let (volume, server, before) = behind();
    check_healed(&volume, server, &before);
}

#[test]
fn a_server_that_was_killed_behind_leaves_a_gap_that_heals() {
    let (volume, mut server, before) = behind();
    let answered = volume.bytes();
    server.0.kill().unwrap();
    drop(server);
    let server = volume.serve();
    assert!(volume.bytes() == answered, "no record may be written over later changes");
    check_healed(&volume, server, &before);
}

#[test]
fn records_of_a_server_that_was_killed_get_into_a_checkpoint_without_another_write() {
    let volume = Volume::new();
    let server = volume.serve();
    volume.change(&["write -P 0x11 0 256k", "flush"]);
    drop(server);
    let arguments = ["cdp", "serve", "group", "--checkpoint", "1s", "--checkpoint-max", "1s"];
    let server = Server::start(&volume.fixture, &arguments, &volume.group.join("nbd"));
    let start = Instant::now();
    let checkpoints = || {
        let history = volume.fixture.run(["cdp", "history", "stored", "--json"]).code(0).json();
        history["checkpoints"].as_array().unwrap().len()
    };
    while checkpoints() < 2 {
        assert!(start.elapsed() < Duration::from_mins(1), "no checkpoint was made");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
}

/// Changes a byte of the volume behind the server's back.
fn flip(volume: &Volume, offset: u64) {
    let file = File::options().read(true).write(true).open(&volume.image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn a_scan_names_bytes_that_nobody_recorded_and_records_them() {
    let volume = Volume::new();
    let fixture = &volume.fixture;
    let server = volume.serve();
    volume.change(&["write -P 0x11 0 64k", "flush"]);
    check_printed(&fixture.run(["cdp", "scan", "group"]).code(0), "compared 16.000 MiB: 0 B differ");
    flip(&volume, 70_000);
    flip(&volume, 5 << 20);
    let scanned = fixture.run(["cdp", "scan", "group", "--json"]).code(1).json();
    assert_eq!(scanned["differing_bytes"], 8192);
    assert_eq!(scanned["differing"][0]["offset"], 69_632);
    assert_eq!(scanned["left_bytes"], 0);
    check_printed(&fixture.run(["cdp", "scan", "group"]).code(1), "web bytes 69632 to 73728 differ");
    check_printed(&fixture.run(["cdp", "scan", "group", "--record"]).code(0), "8.000 KiB differ and were recorded");
    fixture.run(["cdp", "scan", "group"]).code(0);
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    assert!(volume.restored("latest") == volume.bytes());
    server.stop();
    // Nobody serves the group now.
    flip(&volume, 9 << 20);
    check_printed(&fixture.run(["cdp", "scan", "group"]).code(1), "web bytes 9437184 to 9441280 differ");
    fixture.run(["cdp", "scan", "group", "--record"]).code(0);
    let server = volume.serve();
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
}

#[test]
fn the_status_says_what_is_durable_stored_and_behind() {
    let volume = Volume::new();
    let server = volume.serve();
    let status = volume.status();
    assert_eq!(
        (&status["group"], &status["lsn"], &status["checkpoint"]["last_lsn"]),
        (&"stored".into(), &0.into(), &0.into())
    );
    assert_eq!(
        (&status["lag_records"], &status["lag_bytes"], &status["active_extents"]),
        (&0.into(), &0.into(), &0.into())
    );
    volume.change(&["write -P 0x11 0 64k", "write -P 0x12 9M 4k", "flush"]);
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    let status = volume.status();
    assert!(status["lsn"].as_u64().unwrap() >= 3 && status["lag_records"] == status["lsn"], "{status}");
    assert_eq!((&status["durable_lsn"], &status["unsynced_seconds"]), (&status["lsn"], &0.0.into()));
    assert!((64 << 10..1 << 20).contains(&status["lag_bytes"].as_u64().unwrap()), "{status}");
    let age = status["lag_seconds"].as_f64().unwrap();
    assert!(0.0 < age && age < start.elapsed().as_secs_f64() + 5.0, "{status}");
    assert_eq!(
        (&status["active_extents"], &status["behind_bytes"], &status["gap"]),
        (&2.into(), &0.into(), &false.into())
    );
    assert_eq!((&status["recording"], &status["failure"]), (&true.into(), &serde_json::Value::Null));
    assert_eq!(status["journal_bytes_max"], 64 << 20);
    let made = volume.fixture.run(["cdp", "checkpoint", "group", "--json"]).code(0).json();
    let status = volume.status();
    assert_eq!(status["checkpoint"]["snapshot"], made["snapshot"]);
    assert_eq!((&status["checkpoint"]["last_lsn"], &status["lag_records"]), (&made["last_lsn"], &0.into()));
    // A checkpoint that fails is named until one succeeds.
    let (repository, away) = (volume.fixture.path("repository"), volume.fixture.path("away"));
    std::fs::rename(&repository, &away).unwrap();
    volume.change(&["write -P 0x13 0 4k", "flush"]);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(1);
    assert!(volume.status()["checkpoint_error"].is_string());
    let printed = volume.fixture.run(["cdp", "status", "group"]).code(0);
    for text in [
        "group stored: LSN ",
        " KiB, the oldest ",
        "not durable: nothing",
        " of 64.000 MiB, ",
        "the last checkpoint failed: ",
    ] {
        check_printed(&printed, text);
    }
    std::fs::rename(&away, &repository).unwrap();
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    assert_eq!(volume.status()["checkpoint_error"], serde_json::Value::Null);
    server.stop();
}

fn check_printed(ran: &Ran, text: &str) {
    assert!(ran.stdout().contains(text), "{text:?} is not in {}", ran.stdout());
}

#[test]
fn a_scan_of_a_group_that_is_not_served_says_that_the_journal_is_full() {
    let volume = Volume::new_with_journal("12M", make_volume);
    let fixture = &volume.fixture;
    volume.serve().stop();
    // All 16 MiB change behind the group's back: more than the journal takes.
    let size = usize::try_from(SIZE).unwrap();
    File::options().write(true).open(&volume.image).unwrap().write_all_at(&noise(2, size), 0).unwrap();
    fixture.run(["cdp", "scan", "group", "--record"]).code(1).says("the journal is full; serve the group");
    let server = volume.serve();
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    let scanned = fixture.run(["cdp", "scan", "group", "--record", "--json"]).code(0).json();
    let recorded = scanned["differing_bytes"].as_u64().unwrap();
    assert!(0 < recorded && recorded < SIZE, "{scanned}");
    fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
}
