//! The one door to the operating system.
//!
//! Everything the engine does to disks, clocks and random numbers goes through these traits. `os` is the real
//! door; `sim` is a disk in memory that forgets what was not synced, tears and reorders writes, and fails or
//! dies at the n-th call. The linter bans the way around the door.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::Timestamp;

pub mod absent;
pub mod background;
mod device;
pub mod discard;
pub mod os;
mod os_attributes;
mod os_batch;
mod os_device;
mod os_directory;
mod os_entry;
mod os_file;
pub mod os_identity;
mod os_ring;
pub mod os_source;
mod os_source_file;
pub mod os_target;
mod os_target_file;
#[cfg(test)]
mod os_target_tests;
mod os_transfer;
pub mod tree;

pub use device::DeviceProfile;
pub use onefold_sys::{AlignedBuffer, OwnedRead};

/// Offset, length and address of every read and write of a file opened with [`Access::Direct`] are multiples of this
/// many bytes: the alignment of an [`AlignedBuffer`].
pub const DIRECT_ALIGN: usize = onefold_sys::ALIGNMENT;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing in place. Only the host-local index asks for it.
    ReadWrite,
    /// Reading and writing in place, past the page cache (`O_DIRECT`), in multiples of [`DIRECT_ALIGN`]. Where the file
    /// system refuses that, the file is read and written through the cache; [`DiskFile::is_direct`] tells. What is
    /// asked of the caller is the same either way.
    Direct,
}

impl Access {
    /// Says whether the file may be changed.
    pub fn writes(self) -> bool {
        match self {
            Self::Read => false,
            Self::ReadWrite | Self::Direct => true,
        }
    }

    /// Refuses what a file opened this way does not do: with [`Access::Direct`], anything that is not aligned to
    /// [`DIRECT_ALIGN`]. `Error::Invalid` then, since the caller is wrong and not the disk.
    pub(crate) fn check_aligned(self, operation: &'static str, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        let is_multiple = |number: u64| number.is_multiple_of(DIRECT_ALIGN as u64);
        let numbers = [offset, bytes.len() as u64, bytes.as_ptr().addr() as u64];
        if self != Self::Direct || numbers.into_iter().all(is_multiple) {
            return Ok(());
        }
        let [offset, len, address] = numbers;
        Err(Error::invalid(format_args!(
            "{operation} {}: {len} bytes at {offset}, in memory at {address:#x}: direct access takes multiples of \
             {DIRECT_ALIGN}",
            path.display()
        )))
    }
}

/// Whether a name was given to a file or stood already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Linked {
    /// The name is now the file's.
    Created,
    /// The name stood already and was left as it is.
    Existed,
}

/// One name in a directory of a disk.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DiskEntry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// One name in a directory of a disk, with the length of its file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SizedEntry {
    /// The name, without its directory.
    pub name: String,
    /// Bytes of the file; 0 for what is no file.
    pub len: u64,
}

/// One positioned read of a batch. The buffer's length is how much to read; it is filled or the outcome is an error.
#[derive(Debug)]
pub struct BatchRead {
    /// The file to read.
    pub file: Arc<dyn DiskFile>,
    /// First byte to read.
    pub offset: u64,
    /// Filled on success; its contents are unspecified after an error.
    pub buffer: AlignedBuffer,
    /// How the read ended. `Ok(())` before the batch is submitted.
    pub outcome: Result<()>,
}

/// Where reads come from that follow from each other, and where they go to when they have ended.
pub trait ReadStream {
    /// Returns the next read; `None` if none is to be made before another one has ended.
    fn next(&mut self) -> Option<OwnedRead>;
    /// Takes a read that has ended. Its buffer is filled, or the outcome is an error and what is in it is unspecified.
    fn end(&mut self, read: OwnedRead, outcome: Result<()>);
}

/// Carries out reads as they come, as many together as are to be had.
fn read_in_batches(file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream, read_batch: impl Fn(&mut [BatchRead])) {
    loop {
        let (mut numbers, mut batch) = (Vec::new(), Vec::new());
        while batch.len() < onefold_sys::DEPTH
            && let Some(OwnedRead { number, offset, buffer }) = reads.next()
        {
            numbers.push(number);
            batch.push(BatchRead { file: Arc::clone(file), offset, buffer, outcome: Ok(()) });
        }
        if batch.is_empty() {
            return;
        }
        read_batch(&mut batch);
        for (number, BatchRead { offset, buffer, outcome, .. }) in numbers.into_iter().zip(batch) {
            reads.end(OwnedRead { number, offset, buffer }, outcome);
        }
    }
}

/// One positioned write of a batch. The whole buffer is written or the outcome is an error.
#[derive(Debug)]
pub struct BatchWrite {
    /// The file to write.
    pub file: Arc<dyn DiskFile>,
    /// Where its first byte goes.
    pub offset: u64,
    /// What is written; the same after the batch.
    pub buffer: AlignedBuffer,
    /// How the write ended. `Ok(())` before the batch is submitted. After an error any part of the bytes may be there.
    pub outcome: Result<()>,
}

/// A tree of directories and files that repositories and indexes live in.
///
/// Paths are relative to the disk's root; `""` is the root itself. Names that this engine writes are ASCII; `list`
/// leaves out names that are not UTF-8, since nothing of ours has such a name.
///
/// Durability: nothing survives a power cut unless it was synced. A file's bytes and length are durable after
/// [`DiskFile::sync`], a name (created, linked, renamed, removed) after [`Disk::sync_dir`] of its directory.
/// After a failed sync the state of that file is lost: it must not be synced again and believed.
/// All methods may be called from any thread.
pub trait Disk: Debug + Send + Sync {
    /// Creates a file that must not exist yet (`O_EXCL`) and opens it for reading and writing.
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>>;
    /// Creates a directory; one that exists already is fine. The parent must exist.
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Gives `from` the name `to`, replacing what stood there.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Gives the file `existing` the further name `new`, never replacing: the create-only primitive of commits.
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked>;
    /// Removes a name of a file; fails if there is none.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> Result<()>;
    /// Lists a directory, sorted by name.
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>>;
    /// Lists a directory with the lengths of its files, sorted by name. A name that goes away meanwhile may be left out.
    fn list_sized(&self, path: &Path) -> Result<Vec<SizedEntry>> {
        let mut sized = Vec::new();
        for DiskEntry { name, is_dir } in self.list(path)? {
            let len =
                if is_dir { Ok(0) } else { self.open(&path.join(&name), Access::Read).and_then(|file| file.len()) };
            match len {
                Ok(len) => sized.push(SizedEntry { name, len }),
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sized)
    }
    /// Says whether a name exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Carries out all reads, several at a time; each read's own outcome says how it ended.
    fn read_batch(&self, reads: &mut [BatchRead]);
    /// Carries out reads of a file as they come, several at a time: a read that has ended may bring about the next ones, and
    /// these do not wait for the others. Returns when none is in flight and none is to come. Without an own way: in batches.
    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        read_in_batches(file, reads, |batch| self.read_batch(batch));
    }
    /// Carries out all writes, several at a time and in any order: those of one batch do not overlap. Each write's own
    /// outcome says how it ended; one that fails stops no other. Without an own way: one after the other.
    fn write_batch(&self, writes: &mut [BatchWrite]) {
        for write in writes {
            write.outcome = write.file.write_at(write.offset, &write.buffer);
        }
    }
    /// Measures the device under a file, which must exist, with direct reads of what was written to it; takes about a
    /// twentieth of a second. `None` where that says nothing: the file is smaller than 8 MiB, hardly any of it was ever
    /// written, the page cache cannot be passed by, or there is no device.
    fn measure(&self, path: &Path) -> Result<Option<DeviceProfile>> {
        let _ = path;
        Ok(None)
    }
    /// Returns the path as a user knows it, for messages.
    fn display(&self, path: &Path) -> String;
}

/// A file of a [`Disk`]. Positioned, so that threads need no shared cursor.
#[expect(clippy::len_without_is_empty, reason = "a file's length is an I/O call that can fail")]
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the file's length in bytes.
    fn len(&self) -> Result<u64>;
    /// Tells that a range will soon be read: the disk may begin to fetch it, and nobody waits for that. It may lie
    /// anywhere, and what goes wrong shows when it is read.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Fills the buffer from `offset`; reaching the end of the file first is an error of kind `UnexpectedEof`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Writes all bytes at `offset`, growing the file where needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Cuts or grows the file.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes bytes and length durable (`fsync`). After an error the file's unsynced state is lost for good.
    fn sync(&self) -> Result<()>;
    /// Takes the host-local exclusive lock on the file without waiting; false if another holder has it.
    /// The lock ends with the last handle to the file or its process.
    fn try_lock(&self) -> Result<bool>;
    /// Returns the descriptor over which the kernel may carry out a transfer between these bytes and this offset on
    /// its own; none if there is none, or if [`DiskFile::read_at`] and [`DiskFile::write_at`] would refuse it unseen.
    fn descriptor(&self, offset: u64, bytes: &[u8]) -> Option<BorrowedFd<'_>> {
        let _ = (offset, bytes);
        None
    }
    /// Says whether reads and writes go past the page cache.
    fn is_direct(&self) -> bool {
        false
    }
}

/// Why a host is asked to run a job that it has put off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Somebody asks whether a job has ended, and goes on if it has not.
    Polled,
    /// Somebody waits for a job.
    Awaited,
}

/// Clock, randomness and identity of the host: everything else that the operating system is asked for.
pub trait Host: Debug + Send + Sync {
    /// Returns the wall-clock time. Only for people: no safety argument rests on it.
    fn now(&self) -> Timestamp;
    /// Returns the time that the kernel stamps files with right now, which lags `now` by up to a tick.
    fn file_clock(&self) -> Timestamp;
    /// Returns time that only moves forward, since an arbitrary start.
    fn monotonic(&self) -> Duration;
    /// Runs a job of a named kind in the background, few at a time, in any order. A host without threads runs it before it
    /// returns, or when a caller asks for it. [`background::Background`] keeps track of a job.
    fn background(&self, kind: &'static str, job: Box<dyn FnOnce() + Send>);
    /// Lets a host without threads run some of the jobs that it has deferred; returns true if it ran one.
    fn run_deferred(&self, _demand: Demand) -> bool {
        false
    }
    /// Fills the buffer with random bytes fit for keys.
    fn random(&self, buffer: &mut [u8]) -> Result<()>;
}
