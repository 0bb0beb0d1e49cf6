//! A file inside the target of a restore.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_attributes;
use crate::io::os_entry::{self, retry};
use crate::io::tree::{Identity, Metadata, MetadataChoice, TargetFile, Trust, Unset, Xattr};

/// A file inside the target.
#[derive(Debug)]
pub(super) struct OsTargetFile {
    pub(super) file: OwnedFd,
    /// For messages.
    pub(super) path: PathBuf,
    /// The identity, remembered from the first call that reads it.
    identity: OnceLock<Identity>,
    choice: Arc<MetadataChoice>,
}

impl OsTargetFile {
    pub(crate) fn new(file: OwnedFd, path: PathBuf, choice: Arc<MetadataChoice>) -> Self {
        Self { file, path, identity: OnceLock::new(), choice }
    }

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
        let set = os_attributes::set_of_file(self.file.as_fd(), metadata, xattrs, (trust, &self.choice));
        let (identity, unset) = set.map_err(|error| self.error("set metadata of", error))?;
        self.identity.get_or_init(|| identity);
        Ok(unset)
    }

    fn identity(&self) -> Result<Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(*identity);
        }
        let found = os_entry::stat(self.file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH);
        let identity = found.map_err(|error| self.error("read metadata of", error))?.identity();
        Ok(*self.identity.get_or_init(|| identity))
    }

    fn try_lock(&self) -> Result<bool> {
        // The lock belongs to the open file, so two restores of one process also exclude each other.
        match retry(|| rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::NOLCK) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(self.error("lock", error)),
        }
    }

    fn report_close(&self) -> Result<()> {
        onefold_sys::report_close(self.file.as_fd()).map_err(|error| Error::io("close", &self.path, error))
    }
}
