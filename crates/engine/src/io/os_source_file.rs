//! A file of the real file system, open for reading.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_entry::{self, retry};
use crate::io::tree::{EntryKind, Metadata, SourceFile, Xattr};

/// A regular file or block device, open for reading.
#[derive(Debug)]
pub(super) struct OsSourceFile {
    file: OwnedFd,
    path: PathBuf,
    opened: Metadata,
    /// The length when the file was opened, if it is a regular file that probably has no holes.
    dense_len: Option<u64>,
}

impl OsSourceFile {
    /// Wraps an opened file if it is a regular file or a block device.
    pub(crate) fn of(file: OwnedFd, path: PathBuf) -> Result<Self> {
        let opened = os_entry::stat_opened(&file).map_err(|error| Error::io("read metadata of", &path, error.into()));
        let (opened, is_dense) = opened?;
        match opened.kind {
            EntryKind::File | EntryKind::BlockDevice => {
                let dense_len = (is_dense && opened.kind == EntryKind::File).then_some(opened.size);
                Ok(Self { file, path, opened, dense_len })
            }
            EntryKind::Directory | EntryKind::Symlink | EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice => {
                Err(Error::invalid(format!("open {}: neither a regular file nor a block device", path.display())))
            }
        }
    }

    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        retry(|| rustix::fs::seek(&self.file, to))
    }

    fn error(&self, operation: &'static str, error: Errno) -> Error {
        Error::io(operation, &self.path, error.into())
    }

    /// Returns the rest of the file as data, for files whose holes are unknown.
    fn rest_as_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let len = self.metadata()?.size;
        Ok((offset < len).then_some(offset..len))
    }
}

impl SourceFile for OsSourceFile {
    fn opened(&self) -> &Metadata {
        &self.opened
    }

    fn metadata(&self) -> Result<Metadata> {
        os_entry::stat_file(&self.file).map_err(|error| self.error("read metadata of", error))
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        os_entry::xattrs_of(self.file.as_fd()).map_err(|error| self.error("read attributes of", error))
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        // This saves two calls for each of the many small files. If the file was truncated since, the read detects it.
        if let Some(len) = self.dense_len.filter(|len| offset < *len) {
            return Ok(Some(offset..len));
        }
        let start = match self.seek(SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Block devices and file systems without holes return these errors.
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NOTTY) => return self.rest_as_data(offset),
            Err(error) => return Err(self.error("find data in", error)),
        };
        match self.seek(SeekFrom::Hole(start)) {
            Ok(end) if start < end => Ok(Some(start..end)),
            // The file was truncated between the two calls, at or before `start`.
            Ok(_) | Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(self.error("find holes in", error)),
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        os_entry::read_at(&self.file, offset, buffer).map_err(|error| self.error("read", error))
    }
}
