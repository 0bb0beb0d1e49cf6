//! Protected volumes with the clients that people use: `nbdinfo`, `nbdcopy`, `qemu-img`, `fio`, and a file system of the kernel.
#![expect(clippy::print_stdout, reason = "a test says what it covered")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::noise;
use crate::volumes::{Server, Volume, uri};

/// Kills of the server that `ONEFOLD_KILLS` replaces.
const KILLS: u64 = 12;
/// Size of the volume with a file system.
const FILE_SYSTEM_BYTES: u64 = 32 << 20;

/// Runs a program; returns what it printed. Panics if it fails.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; ./test installs it"));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A program that runs until the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(child.unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it")))
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_mins(1), "nothing happened for a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn programs_copy_compare_and_verify_a_protected_volume() {
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    let source = volume.fixture.path("source.raw");
    fs::write(&source, noise(3, 16 << 20)).unwrap();
    let server = volume.serve();
    let uri = uri(&volume.group.join("nbd"));
    let info = run("nbdinfo", &["--json", &uri]);
    for fact in ["\"can_multi_conn\": true", "\"can_fua\": true", "\"can_flush\": true", "\"can_zero\": true"] {
        assert!(info.contains(fact), "{fact}: {info}");
    }
    run("nbdcopy", &["--connections=4", "--flush", text(&source), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &uri]);
    run(
        "qemu-io",
        &["-f", "raw", "-c", "write -f -P 7 4k 4k", "-c", "write -z 64k 64k", "-c", "read -P 0 64k 64k", &uri],
    );
    let jobs = format!("--uri={uri}");
    let fio =
        ["--name=v", "--ioengine=nbd", &jobs, "--rw=randrw", "--bs=4k", "--size=8M", "--iodepth=8", "--numjobs=2"];
    let verified = [&fio[..], &["--offset_increment=8M", "--verify=crc32c", "--fsync=64"]].concat();
    run_in(volume.fixture.path(""), "fio", &verified);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
}

/// Runs a program in a directory, where it may leave files. Panics if it fails.
fn run_in(directory: PathBuf, program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; ./test installs it"));
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Serves the volume until the test ends, and kills the server without warning while `fio` writes, reads and verifies. A proxy in between
/// connects again and repeats the requests that have no answer, as a virtual machine does.
#[test]
fn fio_verifies_while_the_server_is_killed_at_random_times() {
    let kills = std::env::var("ONEFOLD_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let volume = Volume::with(|image| File::create(image).unwrap().set_len(16 << 20).unwrap());
    let mut server = volume.serve();
    let (socket, proxy) = (volume.group.join("nbd"), volume.fixture.path("proxy"));
    let upstream = format!("socket={}", socket.display());
    let retry = ["retries=1000000", "retry-delay=1", "retry-exponential=no"];
    let _proxy = start(
        Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--filter=retry", "--unix"])
            .arg(&proxy)
            .args(["nbd", &upstream, "export=web", "retry=60"])
            .args(retry),
    );
    wait_until(|| proxy.exists());
    let uri = format!("--uri=nbd+unix:///?socket={}", proxy.display());
    let (mut random, mut rounds, mut killed) = (onefold_engine::random::SplitMix64::new(7), 0, 0);
    while killed < kills {
        rounds += 1;
        let seed = format!("--randseed={rounds}");
        let mut fio = Running(
            Command::new("fio")
                .args(["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=512-16k", "--bs_unaligned=1"])
                .args(["--size=12M", "--iodepth=4", "--verify=crc32c", "--verify_fatal=1", "--fsync=32", &seed])
                .current_dir(volume.fixture.path(""))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("fio; ./test installs it"),
        );
        while killed < kills && fio.0.try_wait().unwrap().is_none() {
            // The proxy connects again after a second.
            std::thread::sleep(Duration::from_millis(500 + random.index(1_200) as u64));
            server.0.kill().unwrap();
            drop(server);
            killed += 1;
            server = volume.serve();
        }
        let status = fio.0.wait().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(fio.0.stdout.as_mut().unwrap(), &mut said).unwrap();
        assert!(status.success(), "round {rounds}, after {killed} kills: {said}");
    }
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
    println!("the server was killed {killed} times in {rounds} rounds of fio: every block was verified");
}

#[test]
fn a_server_that_finds_its_journal_full_makes_a_checkpoint() {
    let volume = Volume::new_with_journal("12M", |image| File::create(image).unwrap().set_len(32 << 20).unwrap());
    fs::write(volume.fixture.path("noise"), noise(9, 16 << 20)).unwrap();
    let server = volume.serve();
    // The next write of 256 KiB does not fit.
    let is_full = || volume.status()["journal_percent"].as_u64().unwrap() >= 95;
    let (source, target) = (volume.fixture.path("noise"), uri(&volume.group.join("nbd")));
    let writing = start(Command::new("nbdcopy").args([text(&source), &target]));
    wait_until(is_full);
    drop(server);
    drop(writing);
    let server = volume.serve();
    wait_until(|| !is_full());
    run("nbdcopy", &["--flush", text(&source), &target]);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    assert!(volume.restored("latest") == volume.bytes());
}

/// A file system of the kernel lives on the volume: `nbdfuse` shows it as a file, and a loop device makes a disk of that.
#[test]
fn a_file_system_is_clean_at_every_flush_of_its_history() {
    let is_root = String::from_utf8(Command::new("id").arg("-u").output().unwrap().stdout).unwrap().trim() == "0";
    if !is_root || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: mounting a file system needs root, FUSE and loop devices");
        return;
    }
    let volume = Volume::with(|image| {
        File::create(image).unwrap().set_len(FILE_SYSTEM_BYTES).unwrap();
        run("mke2fs", &["-q", "-F", "-t", "ext4", text(image)]);
    });
    let server = volume.serve();
    let (mounted, tree) = (volume.fixture.path("volume"), volume.fixture.path("tree"));
    fs::write(&mounted, "").unwrap();
    fs::create_dir(&tree).unwrap();
    fs::write(volume.fixture.path("noise"), noise(5, 700_000)).unwrap();
    // Arguments: the address, the file that shows the volume, the mount point, and a file to copy.
    let script = "set -e; nbdfuse \"$2\" \"$1\" & \
        for turn in $(seq 100); do [ -s \"$2\" ] && break; sleep 0.1; done; \
        mount -o loop \"$2\" \"$3\"; \
        for turn in 1 2 3 4 5 6; do \
            cp \"$4\" \"$3/copy-$turn\"; echo $turn > \"$3/note\"; mkdir -p \"$3/d$turn/e\"; \
            [ $turn != 4 ] || rm \"$3/copy-2\"; sync -f \"$3\"; \
        done; \
        umount \"$3\"; fusermount3 -u \"$2\"; wait";
    let noise = volume.fixture.path("noise");
    let address = uri(&volume.group.join("nbd"));
    run("sh", &["-c", script, "script", &address, text(&mounted), text(&tree), text(&noise)]);
    volume.fixture.run(["cdp", "checkpoint", "group"]).code(0);
    server.stop();
    let history = volume.fixture.run(["cdp", "history", "group", "--all-flushes", "--json"]).code(0).json();
    let flushes = history["flushes"].as_array().unwrap();
    assert!(6 <= flushes.len(), "{history}");
    for flush in flushes {
        let moment = format!("lsn:{}", flush["lsn"]);
        let socket = volume.fixture.path("old");
        let listen = format!("unix:{}", socket.display());
        let export =
            Server::start(&volume.fixture, &["cdp", "export", "group", "--at", &moment, "--listen", &listen], &socket);
        let copy = volume.fixture.path("copy.raw");
        run("nbdcopy", &[&uri(&socket), text(&copy)]);
        export.stop();
        // The journal of the file system is replayed, as a mount does; nothing is repaired.
        let _ = Command::new("e2fsck").args(["-y", "-E", "journal_only"]).arg(&copy).output().unwrap();
        let checked = run("e2fsck", &["-fn", text(&copy)]);
        assert!(!checked.contains("WARNING"), "{moment}: {checked}");
        fs::remove_file(&copy).unwrap();
    }
    println!("the file system is clean at each of {} flushes", flushes.len());
}
