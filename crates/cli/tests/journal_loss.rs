//! Journals that have lost records: every command says so, and a new journal goes on. Requests, clients and volumes at their limits.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::volumes::{Server, Volume, run_qemu_io};

fn segments(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment")).collect();
    segments.sort();
    segments
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args(["-rT"]).args([from, to]).status().unwrap().success());
}

/// A group whose journal has three segments after its checkpoint; its server has ended. `older` is a copy of the journal before the last.
fn lost(closes: bool) -> Volume {
    let volume = Volume::new_with_journal("64M", |image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    for turn in 0..4 {
        let server = volume.serve();
        run_qemu_io(&volume.group.join("nbd"), &[&format!("write -P {} {turn}M 64k", turn + 1), "flush"]);
        if turn == 0 {
            volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
        }
        volume.fixture.run(["cdp", "mark", "group", &format!("turn{turn}")]).code(0);
        if closes {
            server.stop();
        } else {
            drop(server);
        }
        if turn == 2 {
            copy(&volume.group.join("journal"), &volume.fixture.path("older"));
        }
    }
    volume
}

type Strike = fn(&Volume);

#[test]
fn every_command_says_what_a_journal_has_lost_and_a_new_journal_goes_on() {
    let damages: [(&str, Strike); 7] = [
        ("first", |volume| fs::remove_file(&segments(&volume.group)[0]).unwrap()),
        ("middle", |volume| fs::remove_file(&segments(&volume.group)[2]).unwrap()),
        ("last", |volume| fs::remove_file(segments(&volume.group).last().unwrap()).unwrap()),
        ("all", |volume| segments(&volume.group).iter().for_each(|path| fs::remove_file(path).unwrap())),
        ("truncated", |volume| {
            File::options().write(true).open(segments(&volume.group).last().unwrap()).unwrap().set_len(8192).unwrap();
        }),
        ("directory", |volume| fs::remove_dir_all(volume.group.join("journal")).unwrap()),
        ("older", |volume| {
            fs::remove_dir_all(volume.group.join("journal")).unwrap();
            copy(&volume.fixture.path("older"), &volume.group.join("journal"));
        }),
    ];
    // Some of a server that was killed.
    for (closes, damages) in [(true, &damages[..4]), (false, &damages[2..])] {
        let volume = lost(closes);
        let fixture = &volume.fixture;
        copy(&volume.group, &fixture.path("kept"));
        copy(&fixture.path("repository"), &fixture.path("kept-repository"));
        let now = volume.bytes();
        assert!(volume.restored_from("./group", "latest") == now);
        fs::remove_file(fixture.path("restored.raw")).unwrap();
        for (name, damage) in damages {
            for (kept, path) in [("kept", &volume.group), ("kept-repository", &fixture.path("repository"))] {
                fs::remove_dir_all(path).unwrap();
                copy(&fixture.path(kept), path);
            }
            damage(&volume);
            for at in ["latest", "turn3", "lsn:1", "flush~0", "2031-01-01"] {
                let restore = ["cdp", "restore", "./group", "--at", at, "--target", "restored.raw"];
                fixture.run(restore).code(1).says("--new-journal");
                assert!(!fixture.path("restored.raw").exists(), "{name}");
            }
            fixture.run(["cdp", "restore", "./group", "--in-place"]).code(1).says("--new-journal");
            fixture.run(["cdp", "history", "./group"]).code(1).says("--new-journal");
            fixture.run(["cdp", "export", "./group", "--listen", "unix:x"]).code(1).says("--new-journal");
            fixture.run(["cdp", "scan", "group", "--record"]).code(1).says("--new-journal");
            fixture.run(["cdp", "serve", "group"]).code(1).says("--new-journal");
            fixture.run(["cdp", "status", "group"]).code(1).says("not served");
            assert!(volume.restored("latest") != now && volume.bytes() == now, "{name}");
            let server = Server::start(fixture, &["cdp", "serve", "group", "--new-journal"], &volume.group.join("nbd"));
            let start = Instant::now();
            while volume.status()["behind_bytes"] != 0 {
                assert!(start.elapsed() < Duration::from_mins(1), "{}", volume.status());
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(volume.restored_from("./group", "latest") == now && volume.bytes() == now, "{name}");
            let said = server.stop();
            assert!(said.contains("a new journal begins"), "{name}: {said}");
            // Moments that are left, and none in between.
            assert_eq!(volume.restored_from("./group", "lsn:0"), vec![0; 16 << 20]);
            let turn2 = fixture.run(["cdp", "restore", "./group", "--at", "turn2", "--target", "restored.raw"]);
            let is_left = ["last", "truncated", "older"].contains(name);
            let turn2 = if is_left { turn2.code(0) } else { turn2.code(1) };
            drop(turn2);
            fs::remove_file(fixture.path("restored.raw")).unwrap();
            let server = Server::start(fixture, &["cdp", "serve", "group", "--new-journal"], &volume.group.join("nbd"));
            assert!(server.stop().contains("has lost no records"), "{name}");
        }
    }
}

#[test]
fn a_server_whose_journal_is_removed_says_so() {
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    let server = volume.serve();
    run_qemu_io(&volume.group.join("nbd"), &["write -P 1 0 64k", "flush"]);
    fs::remove_file(&segments(&volume.group)[0]).unwrap();
    for command in
        [&["status", "group"][..], &["checkpoint", "group"], &["mark", "group", "now"], &["history", "./group"]]
    {
        volume.fixture.run(["cdp"].iter().chain(command)).code(1).says("segment-0000000000000001 is gone");
    }
    server.stop();
}

#[test]
fn a_volume_is_served_by_one_group_only() {
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    let (fixture, image) = (&volume.fixture, volume.image.to_str().unwrap());
    fixture.run(["cdp", "create", "other", &format!("web={image}"), "--name", "other"]).code(0);
    let server = volume.serve();
    fixture.run(["cdp", "serve", "other"]).code(1).says("in use as a volume already");
    fixture.run(["cdp", "restore", "stored", "--target", image]).code(1).says("served as a volume");
    server.stop();
    let twice = ["cdp", "create", "twice", &format!("a={image}"), &format!("b={image}")];
    fixture.run(twice).code(0);
    fixture.run(["cdp", "serve", "twice"]).code(1).says("in use as a volume already");
}

#[test]
fn a_client_that_does_not_read_does_not_keep_a_server_from_ending() {
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(64 << 20).unwrap());
    let socket = volume.group.join("nbd");
    let server = volume.serve();
    // Requests for more than the socket takes, and no look at their replies.
    let script = "import socket,struct,sys,time
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(18)
s.sendall(struct.pack('>I',3)+b'IHAVEOPT'+struct.pack('>II',1,3)+b'web'); s.recv(10)
for n in range(9): s.sendall(struct.pack('>IHHQQI',0x25609513,0,0,n,0,1<<24))
print('sent',flush=True); time.sleep(60)";
    let mut client = Command::new("python3");
    let client = client.args(["-c", script]).arg(&socket).stdout(std::process::Stdio::piped()).spawn();
    let mut client = Server(client.unwrap());
    let mut said = [0; 4];
    std::io::Read::read_exact(client.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn connections_that_say_nothing_keep_no_client_out() {
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    let server = volume.serve();
    let socket = volume.group.join("nbd");
    let idle: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    run_qemu_io(&socket, &["write -P 1 0 64k", "flush"]);
    drop(idle);
    server.stop();
}
