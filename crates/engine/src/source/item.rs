//! An entry of a source, as a walk hands it over.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Result;
use crate::io::tree::{Behind, Metadata, SourceDirectory, SourceFile, Xattr};
use crate::monitor::Monitor;
use crate::source::stream;

/// The bytes of an entry that a backup reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// None: a directory, a link, or a special file as such.
    None,
    /// Those of a regular file, or of a block device that the user named.
    File,
    /// Those of a pipe that the user named: read once, to its end.
    Stream,
}

/// An entry as it is found.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where the source has it, for messages and for comparison with what the user named.
    pub path: PathBuf,
    /// Name in the tree of the snapshot, which differs from the path's last one where equal names met at the top.
    pub name: OsString,
    /// What opens it.
    pub location: Location,
    /// Its metadata in the file system.
    pub metadata: Metadata,
    /// Its bytes.
    pub contents: Contents,
    /// Extended attributes of an entry that is not a regular file, sorted by name; none if they cannot be read, which an
    /// earlier event reports. Those of a file are read from the open file.
    pub xattrs: Vec<Xattr>,
    /// Extended attributes of a regular file, if they were looked at. They may be those of another file that has taken its place, so
    /// they serve for comparison only.
    pub file_xattrs: Option<Vec<Xattr>>,
    /// Where it points, if it is a symbolic link.
    pub link_target: Option<PathBuf>,
}

/// A name in a directory that is held, so that what is found there is below the roots whatever happens to the path.
#[derive(Clone, Debug)]
pub struct Location {
    pub(super) directory: Arc<dyn SourceDirectory>,
    pub(super) name: OsString,
    /// Set if links are followed, and pipes are opened: what the user named. Interrupts the wait for a pipe.
    pub(super) named: Option<Arc<dyn Monitor>>,
}

impl Location {
    /// Names an entry of a directory.
    pub fn new(directory: Arc<dyn SourceDirectory>, name: &OsStr) -> Self {
        Self { directory, name: name.to_os_string(), named: None }
    }

    /// Opens the regular file or block device, or the pipe that the user named.
    pub fn open(&self) -> Result<Box<dyn SourceFile>> {
        let Some(monitor) = &self.named else { return self.directory.open(&self.name) };
        Ok(match self.directory.open_behind(&self.name, monitor)? {
            Behind::File(file) => file,
            Behind::Pipe { path, metadata, reader } => stream::open(path, &metadata, reader),
        })
    }

    /// Returns the entry's current metadata.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        match self.named {
            None => self.directory.metadata_of(&self.name),
            Some(_) => self.directory.metadata_behind(&self.name),
        }
    }

    /// Returns extended attributes as [`SourceDirectory::claimed_xattrs`] does.
    pub(crate) fn claimed_xattrs(&self) -> Result<Vec<Xattr>> {
        self.directory.claimed_xattrs(&self.name)
    }

    /// Returns all extended attributes of the entry, sorted by name.
    pub(crate) fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.directory.xattrs_of(&self.name)
    }
}
