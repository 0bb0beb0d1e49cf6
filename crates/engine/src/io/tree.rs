//! Trees of files: sources that a backup reads, and targets that a restore writes to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::monitor::Monitor;
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
    /// Last access.
    pub atime: AccessTime,
    /// Last change of the inode. The kernel sets it, and no process can set it back.
    pub ctime: Timestamp,
    /// Length in bytes, or the capacity of a block device.
    pub size: u64,
    /// Device that holds the entry.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Number of hard links.
    pub links: u64,
    /// Device number of a device entry, as the kernel encodes it (`st_rdev`).
    pub rdev: u64,
}

/// A time of the last access. It says nothing about an entry, and looking at one may change it: so all are equal.
#[derive(Clone, Copy, Eq, Default, Debug)]
pub struct AccessTime(pub Timestamp);

impl PartialEq for AccessTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Identity of a file or directory, independent of its names. While it exists, no other entry of this host has the same
/// identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// Device that holds the entry.
    pub(crate) device: u64,
    /// Inode number on that device.
    pub(crate) inode: u64,
}

impl Metadata {
    /// Returns the identity of the entry.
    pub fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.inode }
    }
}

/// One extended attribute. POSIX ACLs are the attributes `system.posix_acl_access` and `system.posix_acl_default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Xattr {
    /// Full name with its namespace, such as `user.comment`.
    pub name: OsString,
    /// Value.
    pub value: Vec<u8>,
}

/// A tree of files that a backup reads.
///
/// Only [`SourceTree::open_dir`] and [`SourceTree::canonical`] resolve a path of the user, absolute or relative to the
/// working directory. Every entry below is reached from the handle of its directory, one name at a time. The provided
/// methods take paths that the user named: they follow links on the way, but not in the last component. Any thread may
/// call the methods. An error names the path; the caller decides whether it is fatal.
pub trait SourceTree: Debug + Send + Sync {
    /// Opens a directory and follows symbolic links in its path.
    fn open_dir(&self, path: &Path) -> Result<Arc<dyn SourceDirectory>>;
    /// Returns the absolute path without symbolic links, for comparing locations. The path must exist.
    fn canonical(&self, path: &Path) -> Result<PathBuf>;
    /// Returns the name of a user, if the source knows one.
    fn user_name(&self, _uid: u32) -> Option<String> {
        None
    }
    /// Returns the name of a group, if the source knows one.
    fn group_name(&self, _gid: u32) -> Option<String> {
        None
    }

    /// Returns the metadata of the entry.
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
    /// Opens the parent directory of a path. A path that ends without a name, such as `/` or `..`, is opened itself.
    fn parent_of<'a>(&self, path: &'a Path) -> Result<(Arc<dyn SourceDirectory>, Option<&'a OsStr>)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok((self.open_dir(path)?, None));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        // The user knows the requested path, not its parent, so the error names the path.
        let opened = self.open_dir(parent).map_err(|error| match error {
            Error::Io { source, .. } => Error::Io { operation: "look up", path: path.to_path_buf(), source },
            other => other,
        });
        Ok((opened?, Some(name)))
    }
}

/// The treatment of a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// Links are followed, only in a path that the user named.
    Followed,
    /// Links are not followed, in all other cases.
    NotFollowed,
}

/// A directory of a [`SourceTree`]. A handle identifies it, so a change of its path never leads to another directory.
///
/// A name is a single component other than `.` and `..`. No method follows a symbolic link, except with
/// [`Links::Followed`].
pub trait SourceDirectory: Debug + Send + Sync {
    /// Returns the metadata of the directory from when it was opened.
    fn metadata(&self) -> Result<Metadata>;
    /// Returns all extended attributes of the directory, sorted by name. The list is empty if the file system has none.
    fn xattrs(&self) -> Result<Vec<Xattr>>;
    /// Returns the names in the directory, sorted by their bytes, without `.` and `..`.
    fn list(&self) -> Result<Vec<OsString>>;
    /// Returns the names like [`SourceDirectory::list`] if they take at most so many bytes of memory, or `None`. Needs little more
    /// memory than that.
    fn list_within(&self, bytes_max: usize) -> Result<Option<Vec<OsString>>> {
        let names = self.list()?;
        let bytes: usize = names.iter().map(name_bytes).sum();
        Ok((bytes <= bytes_max).then_some(names))
    }
    /// Opens a directory in this one.
    fn open_dir(&self, name: &OsStr, links: Links) -> Result<Arc<dyn SourceDirectory>>;
    /// Opens a regular file or a block device for reading. Never blocks on a pipe.
    fn open(&self, name: &OsStr) -> Result<Box<dyn SourceFile>>;
    /// Opens for reading what the user named, behind symbolic links. The monitor interrupts the wait for a pipe.
    fn open_behind(&self, name: &OsStr, _: &Arc<dyn Monitor>) -> Result<Behind> {
        self.open(name).map(Behind::File)
    }
    /// Returns the metadata of what the user named, behind symbolic links.
    fn metadata_behind(&self, name: &OsStr) -> Result<Metadata> {
        self.metadata_of(name)
    }
    /// Returns true if another file system or file is mounted at an entry, or if that is unknown.
    fn is_mount_point(&self, _: &OsStr) -> bool {
        true
    }
    /// Returns the metadata of an entry.
    fn metadata_of(&self, name: &OsStr) -> Result<Metadata>;
    /// Returns all extended attributes of an entry, sorted by name. The list is empty if the file system has none.
    fn xattrs_of(&self, name: &OsStr) -> Result<Vec<Xattr>>;
    /// Returns what [`SourceDirectory::xattrs_of`] does, unless the path of this directory leads to another one by now: then the
    /// attributes may be those of an entry there. This may cost less, and serves for comparison with attributes that are known.
    fn claimed_xattrs(&self, name: &OsStr) -> Result<Vec<Xattr>> {
        self.xattrs_of(name)
    }
    /// Reads the whole state of an entry that a backup does not open, from one inode.
    fn read_entry(&self, name: &OsStr) -> Result<ClosedEntry>;
}

/// The target of a name that the user gave, open for reading.
#[expect(missing_debug_implementations, reason = "a reader has no state to show")]
pub enum Behind {
    /// A regular file or a block device.
    File(Box<dyn SourceFile>),
    /// A pipe.
    Pipe {
        /// Its path, for messages.
        path: PathBuf,
        /// Its metadata.
        metadata: Metadata,
        /// Its bytes.
        reader: Box<dyn Read + Send>,
    },
}

/// Returns the memory that a name in a list takes, without that of the allocator.
pub(crate) fn name_bytes(name: &OsString) -> usize {
    size_of_val(name) + name.len()
}

/// The state at one moment of an entry without contents: a symbolic link, a pipe, a socket or a device.
#[derive(Debug)]
pub struct ClosedEntry {
    /// Metadata of the entry.
    pub(crate) metadata: Metadata,
    /// Target of a symbolic link.
    pub(crate) link_target: Option<PathBuf>,
    /// Extended attributes of the entry, sorted by name, or the error of reading them.
    pub(crate) xattrs: Result<Vec<Xattr>>,
}

/// A file of a [`SourceTree`], open for reading.
pub trait SourceFile: Debug + Send + Sync {
    /// Returns the metadata of the file from when it was opened.
    fn opened(&self) -> &Metadata;
    /// Returns the current metadata of the open file.
    fn metadata(&self) -> Result<Metadata>;
    /// Returns all extended attributes of the open file, sorted by name.
    fn xattrs(&self) -> Result<Vec<Xattr>>;
    /// Returns the next range at or after `offset` that holds data, or `None` if no data follows. The bytes between
    /// `offset` and the range are a hole and read as zeros. File systems without holes report everything as data.
    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>>;
    /// Reads at `offset` until the buffer is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// The trust in the privileges that a snapshot contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// The restore omits nothing.
    Full,
    /// The restore omits set-user-id and set-group-id bits, capabilities, devices and `trusted.*` attributes.
    Untrusted,
}

/// The metadata that a target could not set on an entry.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unset {
    /// Failures, each as a message.
    pub failures: Vec<String>,
    /// Metadata that the file system cannot hold, or that this process may not set.
    pub(crate) omissions: BTreeSet<Omission>,
}

/// A kind of things that a file system cannot hold, or that a process may not make in it. Their lack is no failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Omission {
    /// The owner or group.
    Owner,
    /// Set-id bits of an entry whose owner or group differs.
    SetIds,
    /// The mode.
    Mode,
    /// An extended attribute or ACL.
    Attribute,
    /// The time of the last change.
    Time,
    /// A FIFO, socket or device.
    Special,
    /// A symbolic link.
    Symlink,
    /// A further name of a file, which became a copy.
    HardLink,
}

/// The choice of the metadata that a target sets.
#[derive(Clone, Debug, Default)]
pub struct MetadataChoice {
    /// True to leave every entry to the user who restores it.
    pub omits_owners: bool,
    /// Numbers of users and groups in the snapshot whose names have other numbers here, with these.
    pub local_ids: (BTreeMap<u32, u32>, BTreeMap<u32, u32>),
    /// Attributes that are set and removed; `None`: all. ACLs that the snapshot does not have are removed in any case.
    pub attributes: Option<Arc<dyn SelectAttributes>>,
}

/// A selection of extended attributes.
pub trait SelectAttributes: Debug + Send + Sync {
    /// Returns true if an attribute is selected.
    fn selects(&self, name: &OsStr) -> bool;
}

/// Outcome of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Renamed {
    /// The entry has its new name.
    Done,
    /// Nothing was done: the old name does not exist, or the entry there is not the expected one.
    Unexpected,
    /// Nothing was done: the new name exists, and the rename may not replace anything.
    Taken,
}

/// Entries that a rename may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onto {
    /// No entry.
    Nothing,
    /// Any entry but a directory.
    Anything,
}

/// Number of files that are kept open in a target without a known limit.
const OPEN_FILES_DEFAULT: usize = 256;

/// A directory that a restore writes to. No write leaves the directory.
///
/// Every path is relative to the target's root and consists of plain names. The empty path is the root itself. The
/// target refuses `.`, `..`, empty names, and `/` or NUL inside a name. No path is resolved through a symbolic link or
/// a magic link of `/proc`, or out of the root. Any thread may call the methods.
pub trait TargetTree: Debug + Send + Sync {
    /// Returns the metadata of the entry at the path, or `None` if there is none.
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>>;
    /// Returns the names in a directory, sorted by bytes.
    fn list(&self, path: &Path) -> Result<Vec<OsString>>;
    /// Creates a directory with mode 0700, until its metadata is set. An existing directory is kept. If it belongs to the
    /// restoring user and denies them access, they get full access to it until its metadata is set.
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Creates an empty file with mode 0600, until its metadata is set. The path must not exist.
    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>>;
    /// Opens an existing regular file for reading and writing.
    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>>;
    /// Opens an existing regular file for reading only, for files whose mode or file system allows no writing.
    fn open_to_read(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.open_file(path)
    }
    /// Creates a symbolic link without checking its target. The path must not exist.
    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()>;
    /// Creates a FIFO, socket or device.
    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()>;
    /// Creates the additional name `new` for `existing`, a regular file or special file inside the target.
    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()>;
    /// Renames the entry at `from` to `to`. The entry may be a directory only if `to` does not exist.
    ///
    /// The rename replaces an existing entry at `to` in one step, if `onto` allows it: the old entry stays whole until the
    /// new one takes its name. If an identity is expected, the entry at `from` must have it.
    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed>;
    /// Removes the entry at the path: a file, a link, a special file or an empty directory.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Sets owner, mode and extended attributes, and last the times. The attributes
    /// replace those of the entry, except some that the system gives to every entry. Returns the metadata that could not
    /// be set, which is not an error.
    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset>;
    /// Returns true if names that differ only in case are the same name in this directory.
    fn folds_case(&self) -> Result<bool>;
    /// Returns the path as messages show it.
    fn display(&self, path: &Path) -> String {
        Path::new("/").join(path).display().to_string()
    }
    /// Returns the numbers that the user and the group of a snapshot have here.
    fn local_owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        (uid, gid)
    }
    /// Returns the user who owns new entries of the target.
    fn user(&self) -> u32 {
        0
    }
    /// Returns the maximum number of files that may be kept open at a time.
    fn open_files_max(&self) -> usize {
        OPEN_FILES_DEFAULT
    }
}

/// A file of a [`TargetTree`].
#[expect(clippy::len_without_is_empty, reason = "a file's length is an I/O call that can fail")]
pub trait TargetFile: Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> Result<u64>;
    /// Writes all bytes at the offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Reads at `offset` until the buffer is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Truncates or extends the file. An extension is a hole.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Sets the metadata of the open file like [`TargetTree::set_metadata`], regardless of the current entry at its path.
    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset>;
    /// Returns the identity of the file.
    fn identity(&self) -> Result<Identity>;
    /// Takes the lock of the file until the file is closed. Returns false if another handle holds it. On a file system
    /// without locks, always returns true.
    fn try_lock(&self) -> Result<bool>;
    /// Reports errors that a file system, such as a network file system, withholds until a file is closed. Syncs nothing.
    fn report_close(&self) -> Result<()>;
}
