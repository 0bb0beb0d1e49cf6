//! Both sides, and what stands between them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::error::{Error, Result};
use onefold_engine::io::os::OsHost;
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, SimDisk, SimHost};
use onefold_engine::types::RepositoryId;
use tempfile::TempDir;

use crate::journal::{GroupId, JournalIdentity, JournalSize, Lsn};
use crate::link::wire::{Compare, Done, Hello, fingerprint_blocks};
use crate::link::{Codec, LinkCertificates, Peer, Receiver, ReceiverHost, ReceiverTls, Reception, Sender, SenderTls};
use crate::log::Log;
use crate::nbd::export::Export;
use crate::sim_origin::SimOrigin;
use crate::stored::{GroupSpec, VolumeSpec};
use crate::volume::{Durability, Group, GroupOptions, Opened, WhenBehind};

pub(super) const VOLUME_BYTES: u64 = 1 << 20;
const SIZE: JournalSize = JournalSize { segment_bytes: 4 << 20, segments_max: 64 };

/// Certificates of two authorities, made once.
pub(super) static CERTIFICATES: LazyLock<TempDir> = LazyLock::new(|| {
    const SCRIPT: &str = "set -e; cd \"$1\"; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        for authority in ca other; do
            openssl req -x509 $new -keyout $authority-key.pem -out $authority-cert.pem -days 30 -subj /CN=$authority
        done
        echo 'subjectAltName=DNS:localhost,IP:127.0.0.1' >extensions
        for name in receiver sender stranger; do
            authority=ca; test $name = stranger && authority=other
            openssl req $new -keyout $name-key.pem -out $name.csr -subj /CN=$name
            openssl x509 -req -in $name.csr -CA $authority-cert.pem -CAkey $authority-key.pem -CAcreateserial -days 30 \
                -extfile extensions -out $name-cert.pem
        done";
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_str().unwrap();
    let made = Command::new("sh").args(["-c", SCRIPT, "script", path]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    directory
});

fn read(name: &str) -> Vec<u8> {
    std::fs::read(CERTIFICATES.path().join(name)).unwrap()
}

/// Certificates of a side that trusts an authority.
pub(super) fn sender_tls(name: &str, authority: &str) -> SenderTls {
    let (chain, key) = (read(&format!("{name}-cert.pem")), read(&format!("{name}-key.pem")));
    let authorities = read(&format!("{authority}-cert.pem"));
    SenderTls::new(&LinkCertificates { chain: &chain, key: &key, authorities: &authorities }).unwrap()
}

pub(super) fn receiver_tls() -> ReceiverTls {
    let (chain, key, authorities) = (read("receiver-cert.pem"), read("receiver-key.pem"), read("ca-cert.pem"));
    ReceiverTls::new(&LinkCertificates { chain: &chain, key: &key, authorities: &authorities }).unwrap()
}

pub(super) fn spec() -> GroupSpec {
    let volumes = vec![VolumeSpec { name: "web".into(), size: VOLUME_BYTES }];
    GroupSpec { name: "group".into(), id: GroupId([2; 16]), volumes }
}

fn identity(key: u8) -> JournalIdentity {
    let repository = RepositoryId([key; 16]);
    JournalIdentity { keys: Keys::derive(&MasterKey([key; 32]), repository), repository, group: GroupId([2; 16]) }
}

pub(super) fn host() -> Arc<dyn Host> {
    Arc::new(OsHost::new())
}

/// A log that keeps its lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(super) fn log(&self) -> Log {
        let lines = Arc::clone(&self.0);
        Log::new(move |line| lines.lock().unwrap().push(line.to_owned()))
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    #[track_caller]
    pub(super) fn wait_for(&self, text: &str) {
        wait_for(text, || self.all().iter().any(|line| line.contains(text)), || format!("{:?}", self.all()));
    }
}

/// Waits for a condition, twenty seconds at most.
#[track_caller]
pub(super) fn wait_for(what: &str, mut condition: impl FnMut() -> bool, found: impl Fn() -> String) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain for {what}: {}", found());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The group of a sender on a disk, with one volume.
pub(super) fn new_group_disk() -> SimDisk {
    let disk = SimDisk::new();
    let _ = disk.subdir("group");
    let file = disk.create(Path::new("volume")).unwrap();
    file.set_len(VOLUME_BYTES).unwrap();
    file.sync().unwrap();
    Group::create(&disk, Path::new("group"), &[VOLUME_BYTES]).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.crash(CrashMode::LoseUnsynced)
}

pub(super) fn open_group(disk: &SimDisk) -> Arc<Group> {
    open_group_at(disk, 1).0
}

/// Opens the group after a boot of its machine.
pub(super) fn open_group_at(disk: &SimDisk, boot: u64) -> (Arc<Group>, Opened) {
    let file = disk.open(Path::new("volume"), Access::ReadWrite).unwrap();
    let origins: Vec<Arc<dyn Export>> = vec![Arc::new(SimOrigin { file, size: VOLUME_BYTES, knows_holes: false })];
    let options = GroupOptions { size: SIZE, durability: Durability::Journal, when_behind: WhenBehind::Block };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let host = Arc::new(SimHost::new(boot));
    let (group, opened) = Group::open(&shared, host, Path::new("group"), identity(7), origins, options).unwrap();
    (Arc::new(group), opened)
}

/// The program around a receiver: one reception on a simulated disk, and no repository.
#[derive(Debug)]
pub(super) struct TestHost {
    pub(super) reception: Arc<Reception>,
    pub(super) checkpoints: AtomicU64,
}

impl TestHost {
    /// Replays the journal up to a record.
    pub(super) fn volume_at(reception: &Reception, at: Lsn) -> Vec<u8> {
        use crate::journal::Op;
        let mut volume = vec![0; usize::try_from(VOLUME_BYTES).unwrap()];
        let mut frames = reception.journal().frames(Lsn(1));
        while frames
            .next_frame(&mut |entry| {
                let start = usize::try_from(entry.record.offset).unwrap();
                let end = start + usize::try_from(entry.record.len).unwrap();
                match entry.record.op {
                    Op::Write if entry.lsn <= at => volume[start..end].copy_from_slice(entry.record.payload),
                    Op::Zero | Op::Trim if entry.lsn <= at => volume[start..end].fill(0),
                    _ => {}
                }
                Ok(())
            })
            .unwrap()
        {}
        volume
    }
}

impl ReceiverHost for TestHost {
    fn admit(&self, _: &Hello) -> Result<Arc<Reception>> {
        Ok(Arc::clone(&self.reception))
    }

    fn checkpoint(&self) -> Result<Done> {
        if self.checkpoints.fetch_add(1, Ordering::SeqCst) == 1 {
            return Err(Error::invalid("the second checkpoint fails"));
        }
        let last = self.reception.status().durable;
        Ok(Done::Made { snapshot: "snapshot".into(), first: Lsn(1), last, versions: 5 })
    }

    fn fingerprints(&self, compare: &Compare, out: &mut Vec<u8>) -> Result<()> {
        let volume = Self::volume_at(&self.reception, compare.at);
        let start = usize::try_from(compare.offset).unwrap();
        fingerprint_blocks(&compare.key, &volume[start..start + compare.len as usize], out);
        Ok(())
    }
}

/// A receiver that runs on a port of its own.
pub(super) struct RunningReceiver {
    pub(super) host: Arc<TestHost>,
    pub(super) address: SocketAddr,
    pub(super) disk: SimDisk,
    receiver: Arc<Receiver>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn new_reception_disk() -> SimDisk {
    let disk = SimDisk::new();
    let _ = disk.subdir("received");
    Reception::create(&disk, Path::new("received")).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.crash(CrashMode::LoseUnsynced)
}

impl RunningReceiver {
    pub(super) fn start(disk: &SimDisk, size: JournalSize, log: Log) -> Self {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let journal = (identity(9), size);
        let sim = Arc::new(SimHost::new(2));
        let (reception, _) = Reception::open(&shared, sim, Path::new("received"), journal, (spec(), Lsn(0))).unwrap();
        let of_test = Arc::new(TestHost { reception: Arc::new(reception), checkpoints: AtomicU64::new(0) });
        let receiver: Arc<dyn ReceiverHost> = Arc::clone(&of_test) as _;
        let receiver = Arc::new(Receiver::new(receiver, receiver_tls(), host(), log));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let running = Arc::clone(&receiver);
        let thread = std::thread::spawn(move || running.run(&listener).unwrap());
        Self { host: of_test, address, disk: disk.clone(), receiver, thread: Some(thread) }
    }

    pub(super) fn sized(disk: &SimDisk, log: Log) -> Self {
        Self::start(disk, SIZE, log)
    }
}

impl Drop for RunningReceiver {
    fn drop(&mut self) {
        self.receiver.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A sender that runs.
pub(super) struct RunningSender {
    pub(super) sender: Arc<Sender>,
    thread: Option<JoinHandle<()>>,
}

impl RunningSender {
    pub(super) fn start(group: &Arc<Group>, port: u16, codec: Codec, log: Log) -> Self {
        Self::with(group, spec(), (format!("127.0.0.1:{port}"), sender_tls("sender", "ca")), (codec, log))
    }

    pub(super) fn with(
        group: &Arc<Group>,
        spec: GroupSpec,
        (address, tls): (String, SenderTls),
        (codec, log): (Codec, Log),
    ) -> Self {
        let sender = Sender::new(Arc::clone(group), spec, (Peer { address, tls }, codec), host(), log);
        let sender = Arc::new(sender.with_pauses(Duration::from_millis(2), Duration::from_millis(20)));
        let running = Arc::clone(&sender);
        let thread = std::thread::spawn(move || running.run());
        Self { sender, thread: Some(thread) }
    }
}

impl Drop for RunningSender {
    fn drop(&mut self) {
        self.sender.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// Passes bytes between a sender and a receiver, and cuts each connection after a number of bytes.
pub(super) struct Proxy {
    pub(super) port: u16,
    pub(super) target: Arc<Mutex<SocketAddr>>,
    pub(super) cuts: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Cuts as many connections as `cuts_max`; later ones live.
    pub(super) fn start(target: SocketAddr, seed: u64, cuts_max: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Arc::new(Mutex::new(target));
        let (cuts, is_stopping) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (of_target, of_cuts, stopping) = (Arc::clone(&target), Arc::clone(&cuts), Arc::clone(&is_stopping));
        let thread = std::thread::spawn(move || {
            let mut random = SplitMix64::new(seed);
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (stream, TcpStream::connect(*of_target.lock().unwrap())) else {
                    continue;
                };
                let lives = cuts_max <= of_cuts.load(Ordering::SeqCst);
                // Within the handshake, within the first messages, or within frames.
                let most = [3_000, 6_000, 60_000, 400_000][random.index(4)];
                let left = if lives { u64::MAX } else { 1 + random.index(most) as u64 };
                let is_cut = pass(&client, &server, left);
                of_cuts.fetch_add(u64::from(is_cut), Ordering::SeqCst);
            }
        });
        Self { port, target, cuts, is_stopping, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().unwrap().join();
    }
}

/// Passes bytes both ways until one side ends, or until so many have passed; returns true if they had.
fn pass(client: &TcpStream, server: &TcpStream, most: u64) -> bool {
    let left = AtomicU64::new(most);
    let one_way = |mut from: &TcpStream, mut to: &TcpStream| {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let before = left.load(Ordering::SeqCst);
            let passed = before.min(count as u64);
            left.store(before - passed, Ordering::SeqCst);
            if to.write_all(&buffer[..usize::try_from(passed).unwrap()]).is_err() || passed < count as u64 {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one_way(client, server));
        one_way(server, client);
    });
    left.load(Ordering::SeqCst) == 0
}
