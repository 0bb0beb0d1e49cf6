//! The only access to the operating system.
//!
//! The engine uses disks, clocks and random numbers through these traits alone; the linter bans every other way. `os`
//! implements them with system calls. `testing::sim` implements them in memory: its disk forgets unsynced data, tears and
//! reorders writes, and fails or dies at the n-th call.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{Process, Timestamp};

pub(crate) mod absent;
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
mod os_pipe;
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
pub use onefold_sys::AlignedBuffer;
pub(crate) use onefold_sys::OwnedRead;

/// Offset, length and address of every read and write of a file opened with [`Access::Direct`] are multiples of this
/// many bytes: the alignment of an [`AlignedBuffer`].
pub const DIRECT_ALIGN: usize = onefold_sys::ALIGNMENT;

/// Kinds of access to an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing in place. Only the host-local index asks for it.
    ReadWrite,
    /// Reading and writing in place, past the page cache (`O_DIRECT`), in multiples of [`DIRECT_ALIGN`]. If the file system
    /// refuses direct access, transfers go through the cache and [`DiskFile::is_direct`] returns false. The alignment is
    /// required in both cases.
    Direct,
}

impl Access {
    /// Returns true if the file may be changed.
    pub(crate) fn writes(self) -> bool {
        match self {
            Self::Read => false,
            Self::ReadWrite | Self::Direct => true,
        }
    }

    /// Refuses a transfer that is not aligned to [`DIRECT_ALIGN`] if the file was opened with [`Access::Direct`].
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

/// Outcomes of [`Disk::link`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Linked {
    /// The file now has the name.
    Created,
    /// The name existed and was left unchanged.
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
    pub(crate) name: String,
    /// True if it is a directory.
    pub(crate) is_dir: bool,
    /// Bytes of the file; 0 for a directory or a special file.
    pub(crate) len: u64,
    /// Time of the last change of its inode by the clock of the file system, if the disk reports one.
    pub(crate) changed: Option<Timestamp>,
}

/// One positioned read of a batch. It fills the buffer, or its outcome is an error.
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

/// A source of reads in which a finished read may cause further ones.
pub trait ReadStream {
    /// Returns the next read; `None` if the next depends on a read in flight, or there is none.
    fn next(&mut self) -> Option<OwnedRead>;
    /// Takes a finished read. After an error, the contents of its buffer are unspecified.
    fn end(&mut self, read: OwnedRead, outcome: Result<()>);
}

/// Carries out reads in batches of all that are available.
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
    /// Offset of the first byte.
    pub offset: u64,
    /// The bytes to write; the batch does not change them.
    pub buffer: AlignedBuffer,
    /// How the write ended. `Ok(())` before the batch is submitted. After an error any part of the bytes may be written.
    pub outcome: Result<()>,
}

/// A tree of directories and files that repositories and indexes live in.
///
/// Paths are relative to the disk's root; `""` is the root itself. The engine writes ASCII names only; `list` leaves out
/// names that are not UTF-8.
///
/// Durability: nothing survives a power cut unless it was synced. A file's bytes and length are durable after
/// [`DiskFile::sync`], a name (created, linked, renamed, removed) after [`Disk::sync_dir`] of its directory.
/// A failed sync loses the unsynced state of that file for good: a later successful sync proves nothing.
/// All methods may be called from any thread.
pub trait Disk: Debug + Send + Sync {
    /// Creates a file that must not exist yet (`O_EXCL`) and opens it for reading and writing.
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>>;
    /// Creates a directory; one that exists already is fine. The parent must exist.
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Renames `from` to `to` and replaces an existing `to`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Exchanges two files that both exist, so that each has the other's name. Fails with kind `Unsupported` where the file system
    /// cannot, which is the default.
    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        let _ = from;
        Err(Error::io("exchange", to, std::io::ErrorKind::Unsupported.into()))
    }
    /// Gives the file `existing` the further name `new`, never replacing: the create-only primitive of commits.
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked>;
    /// Removes a name of a file; fails if there is none.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Removes a directory if it is empty. Returns false if it holds something; one that does not exist is fine.
    fn remove_dir(&self, path: &Path) -> Result<bool>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> Result<()>;
    /// Lists a directory, sorted by name.
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>>;
    /// Lists a directory with the lengths of its files, sorted by name. A name that is removed meanwhile may be left out.
    fn list_sized(&self, path: &Path) -> Result<Vec<SizedEntry>> {
        let mut sized = Vec::new();
        for DiskEntry { name, is_dir } in self.list(path)? {
            let len =
                if is_dir { Ok(0) } else { self.open(&path.join(&name), Access::Read).and_then(|file| file.len()) };
            match len {
                Ok(len) => sized.push(SizedEntry { name, is_dir, len, changed: None }),
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sized)
    }
    /// Returns true if a name exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Carries out all reads, several at a time. Each read has its own outcome.
    fn read_batch(&self, reads: &mut [BatchRead]);
    /// Carries out reads of a file, several at a time. A finished read may cause further ones, which do not wait for the others
    /// in flight. Returns when none is in flight and none is left. The default reads in batches.
    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        read_in_batches(file, reads, |batch| self.read_batch(batch));
    }
    /// Carries out all writes, several at a time and in any order. The writes of a batch must not overlap. Each write has its own
    /// outcome; a failed write stops no other. The default writes one after another.
    fn write_batch(&self, writes: &mut [BatchWrite]) {
        for write in writes {
            write.outcome = write.file.write_at(write.offset, &write.buffer);
        }
    }
    /// Measures the device under an existing file with direct reads of its written ranges, for about a twentieth of a second.
    /// Returns `None` if the file is smaller than 8 MiB or mostly holes, or if direct reads or the device are missing.
    fn measure(&self, path: &Path) -> Result<Option<DeviceProfile>> {
        let _ = path;
        Ok(None)
    }
    /// Returns the path for messages to the user.
    fn display(&self, path: &Path) -> String;
}

/// An open file of a [`Disk`]. Transfers name their offset, so threads share no cursor.
#[expect(clippy::len_without_is_empty, reason = "a file's length is an I/O call that can fail")]
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the file's length in bytes.
    fn len(&self) -> Result<u64>;
    /// Announces that a range will soon be read, so that the disk may fetch it in advance. The range may exceed the file, and
    /// errors show only when it is read.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Fills the buffer from `offset`. Fails with kind `UnexpectedEof` if the file ends first.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Writes all bytes at `offset` and extends the file if necessary.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Truncates or extends the file.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes bytes and length durable (`fsync`). An error loses the file's unsynced state for good.
    fn sync(&self) -> Result<()>;
    /// Makes bytes durable that were written within the file's length (`fdatasync`), like [`DiskFile::sync`] otherwise.
    fn sync_data(&self) -> Result<()> {
        self.sync()
    }
    /// Takes the host-local exclusive lock on the file without waiting; returns false if another handle has it.
    /// The lock ends with the last handle to the file or its process.
    fn try_lock(&self) -> Result<bool>;
    /// Returns the descriptor that the kernel can use for a transfer between these bytes and this offset. Returns none if there
    /// is no descriptor, or if [`DiskFile::read_at`] and [`DiskFile::write_at`] would refuse the transfer.
    fn descriptor(&self, offset: u64, bytes: &[u8]) -> Option<BorrowedFd<'_>> {
        let _ = (offset, bytes);
        None
    }
    /// Returns true if reads and writes go past the page cache.
    fn is_direct(&self) -> bool {
        false
    }
}

/// Reasons for which a caller asks a host to run a deferred job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// The caller asks whether a job has ended and continues if it has not.
    Polled,
    /// The caller waits for a job.
    Awaited,
}

/// The clock, random numbers and background jobs of the host.
pub trait Host: Debug + Send + Sync {
    /// Returns the wall-clock time, for people only: nothing durable depends on it.
    fn now(&self) -> Timestamp;
    /// Returns the time that the kernel would stamp on a file now. It lags `now` by up to a tick.
    fn file_clock(&self) -> Timestamp;
    /// Returns the time since an arbitrary start. It never moves back.
    fn monotonic(&self) -> Duration;
    /// Returns when so much time has passed.
    fn sleep(&self, duration: Duration);
    /// Returns which process this is, if the host can tell.
    fn process(&self) -> Option<Process> {
        None
    }
    /// Runs a job of a named kind in the background, few at a time, in any order. A host without threads runs it before it
    /// returns, or when a caller asks for it. `background::Background` keeps track of a job.
    fn background(&self, kind: &'static str, job: Box<dyn FnOnce() + Send>);
    /// Lets a host without threads run some of the jobs that it has deferred; returns true if it ran one.
    fn run_deferred(&self, _demand: Demand) -> bool {
        false
    }
    /// Fills the buffer with cryptographically secure random bytes.
    fn random(&self, buffer: &mut [u8]) -> Result<()>;
}
