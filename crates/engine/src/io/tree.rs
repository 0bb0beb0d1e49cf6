//! Trees of files of a user: sources that a backup reads, and targets that a restore writes.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::types::Timestamp;

/// Kind of an entry in a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A local socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Metadata of an entry in the file system. Symbolic links are not followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Permission, set-id and sticky bits: `mode & 0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode; the kernel sets it, nobody can set it back.
    pub ctime: Timestamp,
    /// Length in bytes; of a block device its capacity.
    pub size: u64,
    /// Device that holds the entry.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Number of hard links.
    pub links: u64,
    /// Device number that a device entry stands for, as the kernel encodes it (`st_rdev`).
    pub rdev: u64,
}

/// Identity of a file or directory, independent of its names. While it exists, no other one of this host has the same
/// identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// Device that holds it.
    pub(crate) device: u64,
    /// Inode number on that device.
    pub(crate) inode: u64,
}

impl Metadata {
    /// Returns which entry this is.
    pub fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.inode }
    }
}

/// One extended attribute. POSIX ACLs are the attributes `system.posix_acl_access` and `system.posix_acl_default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Xattr {
    /// Full name with its namespace, as `user.comment`.
    pub name: OsString,
    /// Value.
    pub value: Vec<u8>,
}

/// A tree that is read.
///
/// Only [`SourceTree::open_dir`] and [`SourceTree::canonical`] resolve a path, absolute or relative to the working
/// directory, as the user wrote it. Everything below is reached from the handle of its directory, one name at a time.
/// The provided methods are for paths that the user named: they follow links on the way, but not the last component.
/// Methods may be called from any thread. An error names the path; the caller decides whether it is fatal.
pub trait SourceTree: Debug + Send + Sync {
    /// Opens a directory; symbolic links in its path are followed.
    fn open_dir(&self, path: &Path) -> Result<Arc<dyn SourceDirectory>>;
    /// Returns the path made absolute and free of symbolic links, to compare places; the path must exist.
    fn canonical(&self, path: &Path) -> Result<PathBuf>;

    /// Returns what the file system says of the entry.
    fn metadata(&self, path: &Path) -> Result<Metadata> {
        match self.parent_of(path)? {
            (directory, Some(name)) => directory.metadata_of(name),
            (directory, None) => directory.metadata(),
        }
    }
    /// Returns the names in a directory, sorted by their bytes, without `.` and `..`.
    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        match self.parent_of(path)? {
            (directory, Some(name)) => directory.open_dir(name, Links::NotFollowed)?.list(),
            (directory, None) => directory.list(),
        }
    }
    /// Opens a regular file or a block device for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn SourceFile>> {
        match self.parent_of(path)? {
            (directory, Some(name)) => directory.open(name),
            (_, None) => Err(Error::io("open", path, io::ErrorKind::IsADirectory.into())),
        }
    }
    /// Opens the directory that a path is in; a path that ends without a name, such as `/` or `..`, is a directory itself.
    fn parent_of<'a>(&self, path: &'a Path) -> Result<(Arc<dyn SourceDirectory>, Option<&'a OsStr>)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok((self.open_dir(path)?, None));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        // The user knows the path that was asked for, not the directory that it would be in.
        let opened = self.open_dir(parent).map_err(|error| match error {
            Error::Io { source, .. } => Error::Io { operation: "look up", path: path.to_path_buf(), source },
            other => other,
        });
        Ok((opened?, Some(name)))
    }
}

/// Whether a symbolic link is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// Only on the way to what the user named.
    Followed,
    /// Everywhere else.
    NotFollowed,
}

/// A directory of a [`SourceTree`], held by a handle: it stays the same directory whatever happens to its path.
///
/// Names are single: no `/`, `.` or `..`. No method follows a symbolic link, unless [`Links::Followed`] says so.
pub trait SourceDirectory: Debug + Send + Sync {
    /// Returns what the file system said of the directory when it was opened.
    fn metadata(&self) -> Result<Metadata>;
    /// Returns all extended attributes of the directory, sorted by name. None where the file system has no attributes.
    fn xattrs(&self) -> Result<Vec<Xattr>>;
    /// Returns the names in the directory, sorted by their bytes, without `.` and `..`.
    fn list(&self) -> Result<Vec<OsString>>;
    /// Opens a directory in this one.
    fn open_dir(&self, name: &OsStr, links: Links) -> Result<Arc<dyn SourceDirectory>>;
    /// Opens a regular file or a block device for reading. Never blocks on a pipe.
    fn open(&self, name: &OsStr) -> Result<Box<dyn SourceFile>>;
    /// Returns what the file system says of an entry.
    fn metadata_of(&self, name: &OsStr) -> Result<Metadata>;
    /// Returns all extended attributes of an entry, sorted by name. None where the file system has no attributes.
    fn xattrs_of(&self, name: &OsStr) -> Result<Vec<Xattr>>;
    /// Returns true if an entry has these extended attributes and no others. This may cost less than reading them.
    fn has_xattrs(&self, name: &OsStr, expected: &[Xattr]) -> Result<bool> {
        Ok(self.xattrs_of(name)? == expected)
    }
    /// Reads all there is of an entry that cannot be opened, from one inode.
    fn read_entry(&self, name: &OsStr) -> Result<ClosedEntry>;
}

/// The state of an entry without contents at one moment: a symbolic link, a pipe, a socket, a device.
#[derive(Debug)]
pub struct ClosedEntry {
    /// What the file system says of it.
    pub(crate) metadata: Metadata,
    /// Target of a symbolic link.
    pub(crate) link_target: Option<PathBuf>,
    /// Its extended attributes, sorted by name, or why they cannot be read.
    pub(crate) xattrs: Result<Vec<Xattr>>,
}

/// A file of a [`SourceTree`], open for reading.
pub trait SourceFile: Debug + Send {
    /// Returns what the file system said of the file when it was opened.
    fn opened(&self) -> &Metadata;
    /// Returns what the file system says of the open file now.
    fn metadata(&self) -> Result<Metadata>;
    /// Returns all extended attributes of the open file, sorted by name.
    fn xattrs(&self) -> Result<Vec<Xattr>>;
    /// Returns the next range at or after `offset` that holds data; what lies between is a hole and reads as zeros.
    /// `None`: no data follows. File systems that know no holes report everything as data.
    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>>;
    /// Reads at `offset` until the buffer is full or the file ends; returns how many bytes were read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// What to do with an attribute that the target refuses or that is not to be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Everything comes back as it was.
    Full,
    /// No set-user-id or set-group-id, no capability, device or `trusted.*` attribute.
    Untrusted,
}

/// What a target could not set on an entry.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unset {
    /// Failures, each as a sentence.
    pub failures: Vec<String>,
    /// What only root may set, and this process is not root.
    pub(crate) unprivileged: Unprivileged,
}

/// Entries on which a process that is not root could not set what only root may set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unprivileged {
    /// Entries that did not get their owner or group.
    pub owners: u64,
    /// Entries of these that did not get their set-id bits, since another user owns them now.
    pub set_ids: u64,
    /// Entries that did not get an attribute of the namespaces `security` or `trusted`.
    pub attributes: u64,
}

impl std::ops::AddAssign for Unprivileged {
    fn add_assign(&mut self, other: Self) {
        self.owners += other.owners;
        self.set_ids += other.set_ids;
        self.attributes += other.attributes;
    }
}

/// Outcome of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Renamed {
    /// The entry has its new name.
    Done,
    /// Nothing was done: what stands at the old name, if anything, is not what was expected there.
    Unexpected,
    /// Nothing was done: something stands at the new name, at which nothing may stand.
    Taken,
}

/// Entries that a rename may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onto {
    /// Nothing.
    Nothing,
    /// Anything but a directory. It is replaced.
    Anything,
}

/// Handles of files that are kept open in a target that does not know the limit.
const OPEN_FILES_DEFAULT: usize = 256;

/// A directory that a restore writes to. No write leaves it.
///
/// Every path is relative to the target's root and made of plain names: an empty path is the root itself; `.`, `..`,
/// empty names, `/` and NUL inside a name are refused. No component is resolved through a symbolic link, a mount's magic
/// link or out of the root, whatever is planted there. Methods may be called from any thread.
pub trait TargetTree: Debug + Send + Sync {
    /// Returns the metadata of the entry at the path, or `None` if there is none.
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>>;
    /// Lists a directory, sorted by bytes.
    fn list(&self, path: &Path) -> Result<Vec<OsString>>;
    /// Creates a directory (mode 0700 until its metadata is set). One that exists already is kept; where its owner may not
    /// write into it and is the user who restores, it is made writable until its metadata is set.
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Creates an empty file that must not exist (mode 0600 until its metadata is set).
    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>>;
    /// Opens an existing regular file for reading and writing.
    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>>;
    /// Opens an existing regular file for reading only, which its mode or the file system may restrict it to.
    fn open_to_read(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.open_file(path)
    }
    /// Creates a symbolic link that must not exist; where it points is not looked at.
    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()>;
    /// Creates a FIFO, socket or device.
    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()>;
    /// Gives `existing`, a regular file or special inside the target, the further name `new`.
    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()>;
    /// Gives what stands at `from`, which is no directory unless nothing stands at `to`, the name `to` instead. What
    /// stands at `to` and is no directory is replaced in one step: it is there whole until the new one is. If an identity
    /// is expected, what stands at `from` must have it.
    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed>;
    /// Removes the entry at the path: a file, link, special, or an empty directory.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Sets owner, mode, extended attributes (replacing those that stand there) and, last, the modification time
    /// (also as access time). Returns what could not be set; that is not an error.
    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset>;
    /// Returns true if names that differ only in case are the same name in this directory.
    fn folds_case(&self) -> Result<bool>;
    /// Returns how messages name the path.
    fn display(&self, path: &Path) -> String {
        Path::new("/").join(path).display().to_string()
    }
    /// Returns the user who owns what is created here.
    fn user(&self) -> u32 {
        0
    }
    /// Returns how many files may be kept open at a time.
    fn open_files_max(&self) -> usize {
        OPEN_FILES_DEFAULT
    }
}

/// A file of a [`TargetTree`].
#[expect(clippy::len_without_is_empty, reason = "a file's length is an I/O call that can fail")]
pub trait TargetFile: Debug + Send + Sync {
    /// Returns the length.
    fn len(&self) -> Result<u64>;
    /// Writes all bytes at the offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Reads at `offset` until the buffer is full or the file ends; returns how many bytes were read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Cuts or grows the file; growth is a hole.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Does what [`TargetTree::set_metadata`] does, to the open file, whatever stands at its path by now.
    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset>;
    /// Returns which file this is.
    fn identity(&self) -> Result<Identity>;
    /// Takes the lock of the file, which is held until the file is closed. Returns false if another handle has it. A file
    /// system without locks gives it to everybody.
    fn try_lock(&self) -> Result<bool>;
    /// Returns the errors that a file system keeps until a file is closed, as network file systems do. Nothing is synced.
    fn report_close(&self) -> Result<()>;
}
