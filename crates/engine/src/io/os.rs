//! The real disk over `std::fs`, and the host's clock, random numbers and background threads.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the door")]

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender;
use onefold_sys::Ring;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::rand::GetRandomFlags;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::error::{Error, Result};
use crate::io::os_batch::Batches;
use crate::io::os_device::{self, Measured};
use crate::io::os_file::OsFile;
use crate::io::{
    Access, BatchRead, BatchWrite, DeviceProfile, Disk, DiskEntry, DiskFile, Host, Linked, ReadStream, SizedEntry,
};
use crate::types::{Process, Timestamp};

pub use crate::io::os_batch::IoBackend;

/// Mode of the files of a repository or an index: only the owner may read them.
const FILE_MODE: u32 = 0o600;
/// Mode of the directories of a repository or an index: only the owner may enter them.
const DIR_MODE: u32 = 0o700;
/// Rights that the group gets, as far as the umask allows, in a directory with all of [`SHARED`].
const GROUP: u32 = 0o070;
/// A group shares a directory that it may write to and that passes the group on: set-group-id, and the group's rights.
const SHARED: u32 = 0o2000 | GROUP;

/// Returns the mode of a new entry that has `own` without a group.
fn mode_at(path: &Path, own: u32) -> u32 {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let is_shared = std::fs::metadata(above).is_ok_and(|above| above.permissions().mode() & SHARED == SHARED);
    if is_shared { own | ((own >> 3) & GROUP) } else { own }
}

/// A directory of the host's file system as a [`Disk`].
#[derive(Debug)]
pub struct OsDisk {
    root: PathBuf,
    batches: Batches,
}

impl OsDisk {
    /// Sets the root directory of the disk and accesses nothing: `create_dir` of `""` can create the directory later.
    pub fn new(root: PathBuf) -> Self {
        Self::with_backend(root, IoBackend::Auto)
    }

    /// Does what [`OsDisk::new`] does, with a choice of the backend for batches.
    pub fn with_backend(root: PathBuf, backend: IoBackend) -> Self {
        Self::with_ring(root, backend, Ring::new)
    }

    /// Does what [`OsDisk::with_backend`] does, with a function that sets up a ring.
    fn with_ring(root: PathBuf, backend: IoBackend, set_up: fn() -> io::Result<Ring>) -> Self {
        Self { root, batches: Batches::new(backend, set_up) }
    }

    /// Returns false if the file system cannot sync directories.
    pub fn syncs_directories(&self) -> Result<bool> {
        sync_directory(&self.root).map_err(|error| Error::io("sync directory", &self.root, error))
    }

    fn full(&self, path: &Path) -> PathBuf {
        // Joining an empty path would leave a trailing slash in every message.
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

/// Syncs a directory. Returns false if its file system answers that it cannot, as CIFS does; a file's is an error.
fn sync_directory(path: &Path) -> io::Result<bool> {
    let directory = File::open(path)?;
    match directory.sync_all() {
        Err(error) if error.kind() == ErrorKind::InvalidInput && directory.metadata()?.is_dir() => Ok(false),
        synced => synced.map(|()| true),
    }
}

impl Disk for OsDisk {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        let path = self.full(path);
        let file = File::options().read(true).write(true).create_new(true).mode(mode_at(&path, FILE_MODE)).open(&path);
        let file = file.map_err(|error| Error::io("create", &path, error))?;
        Ok(Arc::new(OsFile::created(file, path)))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile::open(self.full(path), access)?))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        let path = self.full(path);
        match DirBuilder::new().mode(mode_at(&path, DIR_MODE)).create(&path) {
            // A file of this name is an error.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            created => created.map_err(|error| Error::io("create directory", &path, error)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let from = self.full(from);
        std::fs::rename(&from, self.full(to)).map_err(|error| Error::io("rename", &from, error))
    }

    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.full(from), self.full(to));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).map_err(|error| {
            let error = match error {
                // File systems without the flag answer EINVAL, kernels without it ENOSYS.
                Errno::INVAL | Errno::NOSYS => ErrorKind::Unsupported.into(),
                error => error.into(),
            };
            Error::io("exchange", &to, error)
        })
    }

    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        let new = self.full(new);
        match std::fs::hard_link(self.full(existing), &new) {
            Ok(()) => Ok(Linked::Created),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Linked::Existed),
            Err(error) => Err(Error::io("link", &new, error)),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let path = self.full(path);
        std::fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))
    }

    fn remove_dir(&self, path: &Path) -> Result<bool> {
        let path = self.full(path);
        match std::fs::remove_dir(&path) {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::NotFound => Ok(true),
                // POSIX allows EEXIST in place of ENOTEMPTY.
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => Ok(false),
                _ => Err(Error::io("remove directory", &path, error)),
            },
        }
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let path = self.full(path);
        sync_directory(&path).map(drop).map_err(|error| Error::io("sync directory", &path, error))
    }

    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        let path = self.full(path);
        list_sorted(&path).map_err(|error| Error::io("list", &path, error))
    }

    fn list_sized(&self, path: &Path) -> Result<Vec<SizedEntry>> {
        let path = self.full(path);
        list_sized_sorted(&path).map_err(|error| Error::io("list", &path, error))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let path = self.full(path);
        // A dangling symbolic link is a name too: `create` would refuse it.
        match std::fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("look up", &path, error)),
        }
    }

    fn read_batch(&self, reads: &mut [BatchRead]) {
        self.batches.carry_out(&self.root, reads);
    }

    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        self.batches.stream(&self.root, file, reads);
    }

    fn write_batch(&self, writes: &mut [BatchWrite]) {
        self.batches.carry_out(&self.root, writes);
    }

    fn measure(&self, path: &Path) -> Result<Option<DeviceProfile>> {
        let file = Arc::new(OsFile::open(self.full(path), Access::Direct)?);
        let host = OsHost::new();
        os_device::measure(&Measured {
            file: Arc::clone(&file) as Arc<dyn DiskFile>,
            written_from: &|offset| file.written_from(offset),
            read_batch: &|reads| self.read_batch(reads),
            clock: &|| host.monotonic(),
        })
    }

    fn display(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }
}

fn list_sorted(path: &Path) -> io::Result<Vec<DiskEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = entry.file_type()?;
        // A user may have moved a directory and left a symbolic link. A dangling link is no directory.
        let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
        entries.push(DiskEntry { name, is_dir });
    }
    entries.sort_unstable();
    Ok(entries)
}

fn list_sized_sorted(path: &Path) -> io::Result<Vec<SizedEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // A lookup relative to the directory, which does not follow links.
        let metadata = match entry.metadata() {
            Ok(metadata) if metadata.is_symlink() => std::fs::metadata(entry.path()),
            metadata => metadata,
        };
        match metadata {
            Ok(metadata) => entries.push(SizedEntry {
                name,
                is_dir: metadata.is_dir(),
                len: if metadata.is_file() { metadata.len() } else { 0 },
                changed: Some(Timestamp {
                    seconds: metadata.ctime(),
                    nanoseconds: u32::try_from(metadata.ctime_nsec()).unwrap_or(0),
                }),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

/// Clock, random numbers and background threads of the host.
#[derive(Default, Debug)]
pub struct OsHost {
    background: OnceLock<Background>,
}

impl OsHost {
    /// Returns the host.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Number of background jobs that run at a time: two write a table, two look up in it, and one writes the log. They
/// wait for the disk most of the time.
const BACKGROUND_THREADS: usize = 5;

/// The threads of background jobs. They end with the host, after their queued jobs.
#[derive(Debug)]
struct Background {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Background {
    fn start() -> Self {
        let (jobs, inbox) = crossbeam_channel::unbounded::<Job>();
        let start_one = |_| {
            let inbox = inbox.clone();
            let body = move || inbox.iter().for_each(|job| job());
            std::thread::Builder::new().name("background".to_owned()).spawn(body).ok()
        };
        // Without a thread the channel has no receiver: `send` returns each job, and the caller runs it.
        let threads = (0..BACKGROUND_THREADS).filter_map(start_one).collect();
        Self { jobs: Some(jobs), threads }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // The thread that waited for the job's result has seen the panic.
            let _panicked = thread.join();
        }
    }
}

impl Host for OsHost {
    fn background(&self, _kind: &'static str, job: Job) {
        let background = self.background.get_or_init(Background::start);
        let Some(jobs) = &background.jobs else { return job() };
        if let Err(refused) = jobs.send(job) {
            (refused.into_inner())();
        }
    }

    fn now(&self) -> Timestamp {
        timestamp(clock_gettime(ClockId::Realtime))
    }

    fn file_clock(&self) -> Timestamp {
        // The clock with which the kernel stamps an inode.
        timestamp(clock_gettime(ClockId::RealtimeCoarse))
    }

    fn monotonic(&self) -> Duration {
        let time = clock_gettime(ClockId::Monotonic);
        Duration::new(time.tv_sec.unsigned_abs(), nanoseconds(time))
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn process(&self) -> Option<Process> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = boot.trim().split('-').collect();
        Some(Process { boot: u128::from_str_radix(&digits, 16).ok()?.to_be_bytes(), id: std::process::id() })
    }

    fn random(&self, buffer: &mut [u8]) -> Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            match rustix::rand::getrandom(&mut *rest, GetRandomFlags::empty()) {
                Ok(filled) => rest = rest.get_mut(filled..).unwrap_or_default(),
                Err(error) if error == rustix::io::Errno::INTR => {}
                Err(error) => return Err(Error::io("draw random bytes from", Path::new("getrandom"), error.into())),
            }
        }
        Ok(())
    }
}

fn timestamp(time: Timespec) -> Timestamp {
    Timestamp { seconds: time.tv_sec, nanoseconds: nanoseconds(time) }
}

fn nanoseconds(time: Timespec) -> u32 {
    u32::try_from(time.tv_nsec).expect("the kernel's nanoseconds are below 1,000,000,000")
}

/// Returns the peak memory of this process in bytes (`VmHWM`), if the kernel reports it.
pub fn process_peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What [`give_way`] adds to the nice value. A process of the usual value that wants the processor gets nine tenths of it.
const NICE_STEP: i32 = 10;

/// Lets other processes use the processor first. Applies to the calling thread and to the threads that it starts from now on.
/// A system that refuses changes nothing.
pub fn give_way() {
    let _refused = rustix::process::nice(NICE_STEP);
}

/// Keeps keys and plaintext out of core dumps: the kernel writes none for this process, and no other process of the
/// user can attach to it. Tries both steps and returns the first failure.
pub fn disable_core_dumps() -> Result<()> {
    let limited = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let hidden = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    limited.and(hidden).map_err(|error| Error::io("disable core dumps of", Path::new("/proc/self"), error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::AlignedBuffer;

    #[test]
    fn read_batch_fills_every_buffer_and_returns_every_error() {
        let directory = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(directory.path().to_path_buf());
        let file = disk.create(Path::new("a")).unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        file.write_at(0, &bytes).unwrap();
        for _ in 0..3 {
            let mut reads: Vec<BatchRead> = (0..200_usize)
                .map(|n| BatchRead {
                    file: Arc::clone(&file),
                    offset: n as u64 * 600,
                    buffer: AlignedBuffer::new_zeroed(100 + n),
                    outcome: Ok(()),
                })
                .collect();
            disk.read_batch(&mut reads);
            for (n, read) in reads.iter().enumerate() {
                let (start, end) = (n * 600, n * 600 + 100 + n);
                if let Some(wanted) = bytes.get(start..end) {
                    assert_eq!((read.outcome.is_ok(), &read.buffer[..]), (true, wanted));
                } else {
                    let error = read.outcome.as_ref().unwrap_err();
                    assert_eq!(error.io_kind(), Some(ErrorKind::UnexpectedEof));
                }
            }
        }
        assert_eq!(Arc::strong_count(&file), 1, "a reader kept a handle after its result");
    }

    #[test]
    fn a_directory_that_cannot_be_synced_is_accepted_and_a_file_is_not() {
        let disk = OsDisk::new("/proc".into());
        assert!(!disk.syncs_directories().unwrap());
        disk.sync_dir(Path::new("")).unwrap();
        assert!(disk.sync_dir(Path::new("version")).is_err());
        assert!(disk.open(Path::new("version"), Access::Read).unwrap().sync().is_err());
        assert!(OsDisk::new(std::env::temp_dir()).syncs_directories().unwrap());
    }

    #[test]
    fn only_the_owner_may_read_what_is_created_unless_a_group_shares_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(directory.path().join("root"));
        disk.create_dir(Path::new("")).unwrap();
        disk.create(Path::new("file")).unwrap();
        let mode = |path: &str| std::fs::metadata(directory.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("root"), mode("root/file")), (DIR_MODE, FILE_MODE));
        // With the umask of most hosts, which takes the right to write.
        for (above, expected) in [(0o2775, (0o770, 0o660)), (0o775, (0o700, 0o600)), (0o2755, (0o700, 0o600))] {
            let root = directory.path().join("root");
            std::fs::set_permissions(&root, std::fs::Permissions::from_mode(above)).unwrap();
            assert_eq!((mode_at(&root.join("d"), DIR_MODE), mode_at(&root.join("f"), FILE_MODE)), expected);
        }
    }

    #[test]
    fn errors_name_the_full_path_and_keep_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(directory.path().to_path_buf());
        let error = disk.open(Path::new("none"), Access::Read).unwrap_err();
        assert_eq!(error.io_kind(), Some(ErrorKind::NotFound));
        assert!(error.to_string().contains(directory.path().join("none").to_str().unwrap()), "{error}");
    }

    #[test]
    fn the_host_returns_the_time_and_different_random_bytes() {
        let host = OsHost::new();
        assert!(host.now().seconds > 1_600_000_000);
        let (earlier, stamped) = (host.file_clock(), host.now());
        assert!(earlier <= stamped);
        let start = host.monotonic();
        assert!(start <= host.monotonic());
        let (mut first, mut second) = ([0; 1000], [0; 1000]);
        host.random(&mut first).unwrap();
        host.random(&mut second).unwrap();
        assert_ne!(first, second);
        assert_ne!(first[900..], [0; 100]);
    }

    #[test]
    fn jobs_run_in_the_background_and_are_done_when_the_host_is_dropped() {
        let host = OsHost::new();
        let done = Arc::new(std::sync::Mutex::new(Vec::new()));
        for number in 0..100 {
            let done = Arc::clone(&done);
            host.background("note", Box::new(move || done.lock().unwrap().push(number)));
        }
        drop(host);
        done.lock().unwrap().sort_unstable();
        assert_eq!(*done.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_waits_does_not_delay_the_next() {
        let host = OsHost::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (done, finished) = std::sync::mpsc::channel();
        host.background("receive", Box::new(move || done.send(receiver.recv()).unwrap()));
        host.background("send", Box::new(move || sender.send(7).unwrap()));
        assert_eq!(finished.recv().unwrap(), Ok(7));
    }

    #[test]
    fn peak_memory_is_known_and_plausible() {
        let peak = process_peak_rss_bytes().unwrap();
        assert!((1 << 20..1 << 40).contains(&peak), "{peak}");
    }

    #[test]
    fn no_core_is_dumped_once_disabled() {
        disable_core_dumps().unwrap();
        let limit = rustix::process::getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
