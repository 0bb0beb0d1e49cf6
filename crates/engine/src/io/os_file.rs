//! One open file of the host, with positioned reads and writes, through the page cache or with direct access.
#![expect(clippy::disallowed_types, reason = "the door")]

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, SeekFrom};

use crate::error::{Error, Result};
use crate::io::{Access, DIRECT_ALIGN, DiskFile};

/// A file of an [`OsDisk`](crate::io::os::OsDisk).
#[derive(Debug)]
pub(super) struct OsFile {
    file: File,
    path: PathBuf,
    access: Access,
    is_direct: bool,
}

impl OsFile {
    /// Takes a file that was created for reading and writing.
    pub(super) fn created(file: File, path: PathBuf) -> Self {
        Self { file, path, access: Access::ReadWrite, is_direct: false }
    }

    pub(crate) fn open(path: PathBuf, access: Access) -> Result<Self> {
        let (opened, is_direct) = match access {
            Access::Read | Access::ReadWrite => (open(&path, access, OFlags::empty()), false),
            Access::Direct => match open(&path, access, OFlags::DIRECT) {
                // The error of a file system that does not support direct access.
                Err(error) if error.kind() == ErrorKind::InvalidInput => (open(&path, access, OFlags::empty()), false),
                opened => (opened, true),
            },
        };
        let file = opened.map_err(|error| Error::io("open", &path, error))?;
        Ok(Self { file, path, access, is_direct })
    }

    /// Returns the offset of the first data at or after `offset`. Returns `None` if there is none, or if the file system
    /// cannot report it.
    pub(super) fn written_from(&self, offset: u64) -> Option<u64> {
        rustix::fs::seek(&self.file, SeekFrom::Data(offset)).ok()
    }

    fn io<T>(&self, operation: &'static str, result: io::Result<T>) -> Result<T> {
        result.map_err(|error| Error::io(operation, &self.path, error))
    }
}

fn open(path: &Path, access: Access, flags: OFlags) -> io::Result<File> {
    // Without this flag, opening a pipe for reading waits for a writer, possibly forever.
    let flags = flags | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).write(access.writes()).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    // A read of a pipe through a ring waits for a writer, too.
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidData, "not a regular file"));
    }
    // From here on, reads may wait. With the flag, a ring returns `EAGAIN` for reads that the file system cannot
    // complete immediately.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Returns how much of a transfer is done after the kernel has moved `moved` bytes following the first `done`. With
/// direct access, only whole multiples count: the next transfer begins at the end of the last counted one.
pub(crate) fn advance(access: Access, done: usize, moved: usize) -> usize {
    let end = done.saturating_add(moved);
    if access == Access::Direct { end - end % DIRECT_ALIGN } else { end }
}

/// Repeats a transfer until all `len` bytes are moved. The closure takes the number of bytes that are done, and returns
/// how many more it moved. The function fails with `stuck` if a transfer makes no progress.
fn transfer(
    access: Access,
    len: usize,
    stuck: ErrorKind,
    mut transfer: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let moved = match transfer(done) {
            Ok(moved) => moved,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = advance(access, done, moved);
        if end <= done {
            return Err(stuck.into());
        }
        done = end;
    }
    Ok(())
}

/// Returns the error of a write that was to end at `end`.
///
/// The kernel cuts a write at the process's limit for file sizes. If no whole block is left, the kernel refuses direct
/// access as invalid. The function then reports that the file is too large.
fn beyond_limit(error: io::Error, end: u64) -> io::Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let is_cut = error.kind() == ErrorKind::InvalidInput && limit.is_some_and(|limit| limit < end);
    if is_cut { rustix::io::Errno::FBIG.into() } else { error }
}

fn position(offset: u64, done: usize) -> io::Result<u64> {
    offset.checked_add(done as u64).ok_or_else(|| ErrorKind::InvalidInput.into())
}

impl DiskFile for OsFile {
    fn len(&self) -> Result<u64> {
        self.io("look up", self.file.metadata().map(|metadata| metadata.len()))
    }

    fn will_need(&self, offset: u64, len: u64) {
        // The kernel reads into the page cache, which direct reads bypass.
        if !self.is_direct
            && let Some(len) = NonZeroU64::new(len)
        {
            let _only_advice = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.access.check_aligned("read", &self.path, offset, buffer)?;
        let read = transfer(self.access, buffer.len(), ErrorKind::UnexpectedEof, |done| {
            self.file.read_at(buffer.get_mut(done..).unwrap_or_default(), position(offset, done)?)
        });
        self.io("read", read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.access.check_aligned("write", &self.path, offset, bytes)?;
        let written = transfer(self.access, bytes.len(), ErrorKind::WriteZero, |done| {
            self.file.write_at(bytes.get(done..).unwrap_or_default(), position(offset, done)?)
        });
        let end = offset.saturating_add(bytes.len() as u64);
        self.io("write", written.map_err(|error| beyond_limit(error, end)))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.io("resize", self.file.set_len(len))
    }

    fn sync(&self) -> Result<()> {
        self.io("sync", self.file.sync_all())
    }

    fn sync_data(&self) -> Result<()> {
        self.io("sync", self.file.sync_data())
    }

    fn try_lock(&self) -> Result<bool> {
        // The lock of `flock` belongs to the open file, so two handles of one process also exclude each other.
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => self.io("lock", Err(error)),
        }
    }

    fn descriptor(&self, offset: u64, bytes: &[u8]) -> Option<BorrowedFd<'_>> {
        self.access.check_aligned("transfer", &self.path, offset, bytes).ok().map(|()| self.file.as_fd())
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of a pipe through a ring waits for a writer forever.
    #[test]
    fn a_pipe_instead_of_a_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        for access in [Access::Read, Access::ReadWrite, Access::Direct] {
            let refused = OsFile::open(path.clone(), access).unwrap_err().to_string();
            assert!(refused.contains("pipe") && refused.contains("not a regular file"), "{access:?}: {refused}");
        }
    }

    #[test]
    fn direct_transfers_go_on_at_the_last_whole_multiple() {
        assert_eq!(advance(Access::ReadWrite, 4096, 100), 4196);
        assert_eq!(advance(Access::Direct, 4096, 100), 4096);
        assert_eq!(advance(Access::Direct, 4096, 8191), 8192);
    }

    #[test]
    fn short_transfers_are_continued_and_interruptions_repeated_until_nothing_moves() {
        let run = |access, answers: &[io::Result<usize>]| {
            let mut answers = answers.iter();
            let mut starts = Vec::new();
            let outcome = transfer(access, 12_288, ErrorKind::UnexpectedEof, |done| {
                starts.push(done);
                answers.next().unwrap().as_ref().copied().map_err(|error| error.kind().into())
            });
            (outcome.map_err(|error| error.kind()), starts)
        };
        let interrupted = || Err(ErrorKind::Interrupted.into());
        assert_eq!(run(Access::Read, &[Ok(5000), interrupted(), Ok(7288)]), (Ok(()), vec![0, 5000, 5000]));
        assert_eq!(run(Access::Direct, &[Ok(5000), interrupted(), Ok(8192)]), (Ok(()), vec![0, 4096, 4096]));
        assert_eq!(run(Access::Direct, &[Ok(5000), Ok(904)]), (Err(ErrorKind::UnexpectedEof), vec![0, 4096]));
        assert_eq!(run(Access::Read, &[Ok(12_287), Ok(0)]), (Err(ErrorKind::UnexpectedEof), vec![0, 12_287]));
        let refused = [Ok(1), Err(ErrorKind::StorageFull.into())];
        assert_eq!(run(Access::Read, &refused), (Err(ErrorKind::StorageFull), vec![0, 1]));
    }
}
