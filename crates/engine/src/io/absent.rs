//! A disk that stores nothing, for disposable files whose directory cannot be written.
//!
//! Files accept every write and discard it; every read fails. The disk suits only callers that can lose all data without
//! harm. They must also read back a write before they rely on it.

use std::io::{Error as IoError, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{Access, BatchRead, Disk, DiskEntry, DiskFile, Linked};

/// A disk that stores nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AbsentDisk;

/// A file of an [`AbsentDisk`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AbsentFile;

fn nothing<T>(operation: &'static str, path: &Path) -> Result<T> {
    Err(Error::io(operation, path, IoError::from(ErrorKind::NotFound)))
}

impl Disk for AbsentDisk {
    fn create(&self, _: &Path) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(AbsentFile))
    }

    fn open(&self, path: &Path, _: Access) -> Result<Arc<dyn DiskFile>> {
        nothing("open", path)
    }

    fn create_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<()> {
        nothing("rename", from)
    }

    fn link(&self, existing: &Path, _: &Path) -> Result<Linked> {
        nothing("link", existing)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        nothing("remove", path)
    }

    fn remove_dir(&self, _: &Path) -> Result<bool> {
        Ok(true)
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> Result<Vec<DiskEntry>> {
        Ok(Vec::new())
    }

    fn exists(&self, _: &Path) -> Result<bool> {
        Ok(false)
    }

    fn read_batch(&self, reads: &mut [BatchRead]) {
        for read in reads {
            read.outcome = read.file.read_at(read.offset, &mut read.buffer);
        }
    }

    fn display(&self, path: &Path) -> String {
        format!("{} (not on a disk)", path.display())
    }
}

impl DiskFile for AbsentFile {
    fn len(&self) -> Result<u64> {
        Ok(0)
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        nothing("read", Path::new("a file that is not on a disk"))
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn try_lock(&self) -> Result<bool> {
        Ok(true)
    }
}
