//! The server with the clients that people use. `./test` installs them.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::Fixture;

const MIB: u64 = 1 << 20;

/// Runs a program and returns what it prints; panics if it fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let (is_success, output) = try_run(program, arguments);
    assert!(is_success, "{program} {}: {output}", arguments.join(" "));
    output
}

/// Runs a program; returns true if it succeeds, and what it prints.
pub(crate) fn try_run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; ./test installs it"));
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

/// Runs a script in the shell of libnbd, which needs the Python of the system.
fn nbdsh(fixture: &Fixture, script: &str) -> String {
    run("/usr/bin/python3", &["-m", "nbd", "--uri", &fixture.uri(), "--command", script])
}

/// Bytes that do not repeat, with a hole of 1 MiB in the middle.
fn image(len: u64) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut bytes = Vec::new();
    for _ in 0..len / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    let half = bytes.len() / 2;
    bytes[half..half + MIB as usize].fill(0);
    bytes
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

#[test]
fn nbdinfo_shows_every_capability_and_the_allocation() {
    let (fixture, origin) = Fixture::file(8 * MIB);
    let bytes = image(8 * MIB);
    fs::write(&origin, &bytes[..4 * MIB as usize]).unwrap();
    run("truncate", &["--size=8M", origin.to_str().unwrap()]);
    let shown = run("nbdinfo", &[&fixture.uri()]);
    for fact in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export=\"volume\":",
        "description: volume of a test",
        "export-size: 8388608",
        "base:allocation",
        "is_rotational: false",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(shown.contains(fact), "{fact} is not in {shown}");
    }
    assert!(!shown.contains("onefold:dirty"), "a file does not know what was written: {shown}");
    let map = run("nbdinfo", &["--map", &fixture.uri()]);
    let extents: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(extents, [["0", "4194304", "0", "data"], ["4194304", "4194304", "3", "hole,zero"]]);
    assert!(run("nbdinfo", &["--list", &fixture.uri()]).contains("export=\"volume\":"));
    assert_eq!(run("nbdinfo", &["--size", &fixture.uri()]).trim(), "8388608");
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn nbdcopy_copies_both_ways_with_four_connections() {
    let (fixture, origin) = Fixture::file(64 * MIB);
    let (source, copy) = (fixture.path("source"), fixture.path("copy"));
    fs::write(&source, image(64 * MIB)).unwrap();
    let uri = fixture.uri();
    run("nbdcopy", &["--connections=4", "--flush", source.to_str().unwrap(), &uri]);
    assert!(same(&source, &origin));
    run("nbdcopy", &["--connections=4", "--request-size=1048576", &uri, copy.to_str().unwrap()]);
    assert!(same(&source, &copy));
    run("nbdcopy", &["--synchronous", &uri, copy.to_str().unwrap()]);
    assert!(same(&source, &copy));
}

#[test]
fn qemu_writes_zeroes_discards_flushes_and_compares() {
    let (fixture, origin) = Fixture::file(16 * MIB);
    let uri = fixture.uri();
    let io = |commands: &[&str]| {
        let mut arguments = vec!["-f", "raw", &uri];
        for command in commands {
            arguments.extend(["-c", command]);
        }
        let output = run("qemu-io", &arguments);
        // The program succeeds when a pattern differs.
        assert!(!output.contains("failed"), "{output}");
        output
    };
    io(&["write -f -P 0x55 1000 5000000", "flush", "read -P 0x55 1000 5000000"]);
    io(&["write -P 0x11 8M 4M", "write -z 9M 1M", "write -z -u 10M 1000", "discard 11M 512k", "flush"]);
    io(&["read -P 0 9M 1M", "read -P 0 10M 1000", "read -P 0x11 8M 1M", "aio_write -P 7 12M 64k", "aio_flush"]);
    let expected = fs::read(&origin).unwrap();
    assert_eq!(expected[12 << 20], 7);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    assert!(map.contains("\"data\": false") && map.contains("\"data\": true"), "{map}");
    let local = origin.to_str().unwrap();
    assert!(run("qemu-img", &["compare", "-f", "raw", "-F", "raw", local, &uri]).contains("Images are identical."));
    let copy = fixture.path("copy.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, copy.to_str().unwrap()]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", local, copy.to_str().unwrap()]);
    assert!(!try_run("qemu-io", &["-f", "raw", &uri, "-c", "write -P 1 16M 512"]).1.contains("wrote"));
}

#[test]
fn fio_verifies_random_reads_and_writes_of_four_jobs() {
    let (fixture, _) = Fixture::file(32 * MIB);
    let (uri, output) = (format!("--uri={}", fixture.uri()), fixture.path("fio"));
    let output = format!("--output={}", output.display());
    let job = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bsrange=512-64k",
        "--bs_unaligned=1",
        "--iodepth=8",
        "--numjobs=4",
        "--size=8m",
        "--offset_increment=8m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=32",
        "--do_verify=1",
        "--verify_backlog=64",
        "--verify_state_save=0",
        &output,
    ];
    run("fio", &job);
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn libnbd_gets_errors_for_what_the_protocol_forbids() {
    let (fixture, _) = Fixture::file(8 * MIB);
    let mut script = String::from(
        "import errno\n\
         h.set_strict_mode(0)\n\
         def fails(expected, call):\n\
         \x20   try: call()\n\
         \x20   except nbd.Error as error: assert error.errnum == expected, (expected, error)\n\
         \x20   else: raise Exception('no error')\n",
    );
    for (error, call) in [
        ("EINVAL", "h.pread(2, 8388607)"),
        ("ENOSPC", "h.pwrite(bytearray(2), 8388607)"),
        ("ENOSPC", "h.zero(2, 8388607)"),
        ("EINVAL", "h.trim(2, 8388607)"),
        ("EINVAL", "h.cache(2, 8388607)"),
        ("EINVAL", "h.pread(0, 0)"),
        ("EINVAL", "h.pwrite(bytearray(4), 0, 1 << 12)"),
        ("EINVAL", "h.pread(4, 0, nbd.CMD_FLAG_NO_HOLE)"),
        ("EOVERFLOW", "h.pread(33554433, 0)"),
        ("EINVAL", "h.pwrite(bytearray(33554433), 0)"),
        ("EINVAL", "h.block_status(1, 0, lambda *extents: 0)"),
    ] {
        writeln!(script, "fails(errno.{error}, lambda: {call})").unwrap();
    }
    script.push_str("h.pwrite(b'after', 5, nbd.CMD_FLAG_FUA)\nh.flush()\nprint(h.pread(5, 5))\n");
    assert!(nbdsh(&fixture, &script).contains("bytearray(b'after')"));
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn nbdkit_as_a_client_survives_delays_and_reconnections() {
    let (fixture, origin) = Fixture::file(8 * MIB);
    let source = fixture.path("source");
    fs::write(&source, image(8 * MIB)).unwrap();
    let socket = format!("socket={}", fixture.socket().display());
    let copy = format!("nbdcopy --flush --connections=2 {} \"$uri\"", source.display());
    run("nbdkit", &["--unix=-", "--filter=multi-conn", "--filter=delay", "nbd", &socket, "wdelay=1ms", "--run", &copy]);
    assert!(same(&source, &origin));
}

#[test]
fn a_file_system_lives_on_the_volume() {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: this system has no FUSE");
        return;
    }
    let (fixture, origin) = Fixture::file(32 * MIB);
    let mounted = fixture.path("volume");
    fs::write(&mounted, "").unwrap();
    // Arguments: the address, and the file that shows the volume.
    let script = "nbdfuse \"$2\" \"$1\" & \
        for turn in $(seq 100); do [ -s \"$2\" ] && break; sleep 0.1; done; \
        mke2fs -q -F -t ext4 -d \"$3\" \"$2\" && e2fsck -fn \"$2\" && dumpe2fs -h \"$2\"; \
        outcome=$?; fusermount3 -u \"$2\"; wait; exit $outcome";
    let files = fixture.path("files");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("file"), image(4 * MIB)).unwrap();
    let paths = [&mounted, &files].map(|path| path.to_str().unwrap());
    let output = run("sh", &["-c", script, "script", &fixture.uri(), paths[0], paths[1]]);
    assert!(output.contains("clean"), "{output}");
    run("e2fsck", &["-fn", origin.to_str().unwrap()]);
    let copy = fixture.path("copy");
    run("debugfs", &["-R", &format!("dump file {}", copy.display()), origin.to_str().unwrap()]);
    assert!(same(&copy, &files.join("file")));
}
