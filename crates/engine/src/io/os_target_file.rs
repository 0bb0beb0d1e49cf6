//! A file inside a directory that is restored into.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_attributes;
use crate::io::os_entry::{self, retry};
use crate::io::tree::{Metadata, TargetFile, Trust, Unset, Xattr};

/// Bytes of zeros written at once where a hole cannot be made.
const ZEROS_LEN: usize = 64 * 1024;

static ZEROS: [u8; ZEROS_LEN] = [0; ZEROS_LEN];

/// A file inside the target.
#[derive(Debug)]
pub(super) struct OsTargetFile {
    pub(super) file: OwnedFd,
    /// For messages.
    pub(super) path: PathBuf,
}

impl OsTargetFile {
    fn error(&self, operation: &'static str, error: Errno) -> Error {
        Error::io(operation, &self.path, error.into())
    }
}

impl TargetFile for OsTargetFile {
    fn len(&self) -> Result<u64> {
        os_entry::stat(self.file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)
            .map(|metadata| metadata.size)
            .map_err(|error| self.error("read length of", error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            match rustix::io::pwrite(&self.file, rest, at) {
                Ok(0) => return Err(self.error("write", Errno::IO)),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    at = at.checked_add(count as u64).ok_or_else(|| self.error("write", Errno::FBIG))?;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error("write", error)),
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        os_entry::read_at(&self.file, offset, buffer).map_err(|error| self.error("read", error))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        retry(|| rustix::fs::ftruncate(&self.file, len)).map_err(|error| self.error("set length of", error))
    }

    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        os_attributes::set_of_file(self.file.as_fd(), metadata, xattrs, trust)
            .map_err(|error| self.error("set metadata of", error))
    }

    fn report_close(&self) -> Result<()> {
        onefold_sys::report_close(self.file.as_fd()).map_err(|error| Error::io("close", &self.path, error))
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        // Neither way may grow the file: punching does not, so zeros must not either.
        let range = range.start..range.end.min(self.len()?);
        let Some(len) = range.end.checked_sub(range.start).filter(|len| *len != 0) else { return Ok(()) };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| rustix::fs::fallocate(&self.file, flags, range.start, len)) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(self.error("make a hole in", error)),
        }
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(ZEROS_LEN as u64);
            let zeros = usize::try_from(count).ok().and_then(|count| ZEROS.get(..count)).unwrap_or(&ZEROS);
            self.write_at(at, zeros)?;
            at += count;
        }
        Ok(())
    }
}
