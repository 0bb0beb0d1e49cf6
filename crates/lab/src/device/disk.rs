//! A modeled device as the engine's disk, and the host that goes with it.
//!
//! The bytes are in files of a directory, read and written through the page cache; the time for it does not count. Every
//! call is charged on the virtual [`Clock`]. Jobs that the engine gives to the host are done before it returns: nothing
//! overlaps, so that a time is the sum of processor and device.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onefold_engine::error::Result;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Access, BatchRead, BatchWrite, DeviceProfile, Disk, DiskEntry, DiskFile, Host, Linked};
use onefold_engine::types::Timestamp;

use crate::device::clock::{Clock, Traffic};
use crate::device::model::{Model, Request};

/// A modeled device whose bytes are in a directory.
#[derive(Debug)]
pub struct ModelDisk {
    inner: OsDisk,
    device: Arc<Device>,
}

#[derive(Debug)]
struct Device {
    model: Model,
    clock: Arc<Clock>,
    /// File and offset where the last request ended.
    head: Mutex<(usize, u64)>,
    /// Whether a batch is being carried out, which was charged as a whole.
    is_charged: AtomicBool,
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl Device {
    /// Charges requests that are submitted together: file, offset, bytes.
    fn charge<T>(
        &self,
        direction: Direction,
        requests: impl Iterator<Item = (usize, u64, u64)>,
        carry_out: impl FnOnce() -> T,
    ) -> T {
        if self.is_charged.load(Ordering::Relaxed) {
            return carry_out();
        }
        let carry_out = || {
            let mut head = self.head.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let requests: Vec<Request> = requests
                .map(|(file, offset, bytes)| {
                    let is_sequential = *head == (file, offset);
                    *head = (file, offset + bytes);
                    Request { is_sequential, bytes }
                })
                .collect();
            drop(head);
            (carry_out(), requests)
        };
        let note = |(_, requests): &(T, Vec<Request>), traffic: &mut Traffic| {
            let bytes: u64 = requests.iter().map(|request| request.bytes).sum();
            match direction {
                Direction::Read => {
                    traffic.reads += requests.len() as u64;
                    traffic.bytes_read += bytes;
                    traffic.time += self.model.read(requests);
                }
                Direction::Write => {
                    traffic.writes += requests.len() as u64;
                    traffic.bytes_written += bytes;
                    traffic.time += self.model.write(requests);
                }
            }
        };
        self.clock.charge(carry_out, note).0
    }

    fn sync<T>(&self, carry_out: impl FnOnce() -> T) -> T {
        self.clock.charge(carry_out, |_, traffic| {
            traffic.syncs += 1;
            traffic.time += self.model.sync();
        })
    }

    /// Names cost nothing: the index makes and moves a handful of files when it is opened and closed.
    fn free<T>(&self, carry_out: impl FnOnce() -> T) -> T {
        self.clock.charge(carry_out, |_, _| {})
    }
}

impl ModelDisk {
    /// Makes one whose bytes are in `dir`.
    pub fn new(dir: &Path, model: Model, clock: Arc<Clock>) -> Self {
        let device = Device { model, clock, head: Mutex::new((0, 0)), is_charged: AtomicBool::new(false) };
        Self { inner: OsDisk::new(dir.to_path_buf()), device: Arc::new(device) }
    }

    fn file(&self, inner: Arc<dyn DiskFile>, is_direct: bool) -> Arc<dyn DiskFile> {
        Arc::new(ModelFile { inner, device: Arc::clone(&self.device), is_direct })
    }

    /// Carries out the parts of a batch that is charged as a whole.
    fn batch(&self, direction: Direction, requests: Vec<(usize, u64, u64)>, carry_out: impl FnOnce()) {
        self.device.charge(direction, requests.into_iter(), || {
            self.device.is_charged.store(true, Ordering::Relaxed);
            carry_out();
            self.device.is_charged.store(false, Ordering::Relaxed);
        });
    }
}

impl Disk for ModelDisk {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.device.free(|| self.inner.create(path))?, false))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        // Past the page cache the real device would be waited for.
        let through = if access == Access::Direct { Access::ReadWrite } else { access };
        Ok(self.file(self.device.free(|| self.inner.open(path, through))?, access == Access::Direct))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.device.free(|| self.inner.create_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.device.free(|| self.inner.rename(from, to))
    }

    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        self.device.free(|| self.inner.link(existing, new))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.device.free(|| self.inner.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.device.free(|| self.inner.remove_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        // Nothing here must outlive the machine: the real sync is left out.
        let _ = path;
        self.device.sync(|| Ok(()))
    }

    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.device.free(|| self.inner.list(path))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.device.free(|| self.inner.exists(path))
    }

    fn read_batch(&self, reads: &mut [BatchRead]) {
        let request = |read: &BatchRead| (identity(&read.file), read.offset, read.buffer.len() as u64);
        self.batch(Direction::Read, reads.iter().map(request).collect(), || {
            for read in reads {
                read.outcome = read.file.read_at(read.offset, &mut read.buffer);
            }
        });
    }

    fn write_batch(&self, writes: &mut [BatchWrite]) {
        let request = |write: &BatchWrite| (identity(&write.file), write.offset, write.buffer.len() as u64);
        self.batch(Direction::Write, writes.iter().map(request).collect(), || {
            for write in writes {
                write.outcome = write.file.write_at(write.offset, &write.buffer);
            }
        });
    }

    fn measure(&self, path: &Path) -> Result<Option<DeviceProfile>> {
        let _ = path;
        Ok(Some(self.device.model.profile()))
    }

    fn display(&self, path: &Path) -> String {
        self.inner.display(path)
    }
}

/// Tells files apart.
fn identity(file: &Arc<dyn DiskFile>) -> usize {
    Arc::as_ptr(file).cast::<()>().addr()
}

#[derive(Debug)]
struct ModelFile {
    inner: Arc<dyn DiskFile>,
    device: Arc<Device>,
    is_direct: bool,
}

impl ModelFile {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl DiskFile for ModelFile {
    fn len(&self) -> Result<u64> {
        self.device.free(|| self.inner.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let request = (self.identity(), offset, buffer.len() as u64);
        self.device.charge(Direction::Read, [request].into_iter(), || self.inner.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let request = (self.identity(), offset, bytes.len() as u64);
        self.device.charge(Direction::Write, [request].into_iter(), || self.inner.write_at(offset, bytes))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.device.free(|| self.inner.set_len(len))
    }

    fn sync(&self) -> Result<()> {
        // Nothing here must outlive the machine: the real sync is left out.
        self.device.sync(|| Ok(()))
    }

    fn try_lock(&self) -> Result<bool> {
        self.device.free(|| self.inner.try_lock())
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }
}

/// The host that goes with a modeled device: its time is that of the virtual clock.
#[derive(Debug)]
pub struct ModelHost {
    inner: OsHost,
    clock: Arc<Clock>,
}

impl ModelHost {
    /// Makes one.
    pub fn new(clock: Arc<Clock>) -> Self {
        Self { inner: OsHost::new(), clock }
    }
}

impl Host for ModelHost {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn file_clock(&self) -> Timestamp {
        self.inner.file_clock()
    }

    fn monotonic(&self) -> Duration {
        self.clock.now()
    }

    fn sleep(&self, duration: Duration) {
        self.inner.sleep(duration);
    }

    fn background(&self, _kind: &'static str, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    fn random(&self, buffer: &mut [u8]) -> Result<()> {
        self.inner.random(buffer)
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::io::AlignedBuffer;

    use super::*;
    use crate::device::model::known;

    #[test]
    fn each_call_is_charged_once_and_the_bytes_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(Clock::default());
        let disk = ModelDisk::new(dir.path(), known("hdd").unwrap().unwrap(), Arc::clone(&clock));
        let file = disk.create(Path::new("table")).unwrap();
        file.write_at(0, &[7; 16_000]).unwrap();
        file.write_at(16_000, &[8; 16_000]).unwrap();
        // The second goes on where the first ended; 16,000 bytes take 100 us.
        assert_eq!(clock.traffic().time, Duration::from_micros(5_000 + 100 + 100));
        let before = clock.traffic();
        let file = disk.open(Path::new("table"), Access::Direct).unwrap();
        assert!(file.is_direct());
        let read = |offset| {
            let buffer = AlignedBuffer::new_zeroed(4096);
            BatchRead { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
        };
        let mut reads = [read(0), read(4096), read(16_384)];
        disk.read_batch(&mut reads);
        assert!(reads.iter().all(|read| read.outcome.is_ok()));
        assert_eq!((reads[0].buffer[0], reads[2].buffer[4095]), (7, 8));
        let traffic = clock.traffic().since(&before);
        assert_eq!((traffic.reads, traffic.bytes_read), (3, 3 * 4096));
        // Two of three wait for the arm.
        assert_eq!(traffic.time, Duration::from_nanos(24_000_000 + 76_800));
        file.sync().unwrap();
        let mut past = [read(1 << 20)];
        disk.read_batch(&mut past);
        assert!(past[0].outcome.is_err());
        assert_eq!((clock.traffic().syncs, disk.measure(Path::new("table")).unwrap().is_some()), (1, true));
    }
}
