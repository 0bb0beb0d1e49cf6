//! Trees of files as a user has them: the side that backup reads and the side that restore writes.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::Result;
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

/// What the file system says of an entry, symbolic links not followed.
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

/// One extended attribute. POSIX ACLs are the attributes `system.posix_acl_access` and `system.posix_acl_default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Xattr {
    /// Full name with its namespace, as `user.comment`.
    pub name: OsString,
    /// Value.
    pub value: Vec<u8>,
}

/// A tree that is read, by absolute or working-directory-relative paths as the user wrote them.
///
/// Symbolic links are never followed in the last component. Methods may be called from any thread. An error names the
/// path and leaves nothing behind; the caller decides whether it is fatal.
pub trait SourceTree: Debug + Send + Sync {
    /// Returns what the file system says of the entry.
    fn metadata(&self, path: &Path) -> Result<Metadata>;
    /// Returns the names in a directory, sorted by their bytes, without `.` and `..`.
    fn list(&self, path: &Path) -> Result<Vec<OsString>>;
    /// Returns where a symbolic link points.
    fn read_link(&self, path: &Path) -> Result<PathBuf>;
    /// Returns all extended attributes, sorted by name. None where the file system has no attributes.
    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>>;
    /// Opens a regular file or a block device for reading. Never blocks on a pipe, never follows a symbolic link.
    fn open(&self, path: &Path) -> Result<Box<dyn SourceFile>>;
    /// Returns the path made absolute and free of symbolic links, to compare places; the path must exist.
    fn canonical(&self, path: &Path) -> Result<PathBuf>;
}

/// A file of a [`SourceTree`], open for reading.
pub trait SourceFile: Debug + Send {
    /// Returns what the file system says of the open file.
    fn metadata(&self) -> Result<Metadata>;
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

/// A directory that is written into, never out of.
///
/// Every path is relative to the target's root and made of plain names: an empty path is the root itself; `.`, `..`,
/// empty names, `/` and NUL inside a name are refused. No component is resolved through a symbolic link, a mount's magic
/// link or out of the root, whatever is planted there. Methods may be called from any thread.
pub trait TargetTree: Debug + Send + Sync {
    /// Returns what stands at the path, `None` if nothing does.
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>>;
    /// Lists a directory, sorted by bytes.
    fn list(&self, path: &Path) -> Result<Vec<OsString>>;
    /// Creates a directory (mode 0700 until its metadata is set). One that exists already is kept.
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Creates a file that must not exist (mode 0600 until its metadata is set), of the given length, all hole.
    fn create_file(&self, path: &Path, len: u64) -> Result<Box<dyn TargetFile>>;
    /// Opens an existing regular file for reading and writing, to compare or to overwrite it in place.
    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>>;
    /// Creates a symbolic link that must not exist; where it points is not looked at.
    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()>;
    /// Creates a FIFO, socket or device.
    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()>;
    /// Gives `existing`, a regular file or special inside the target, the further name `new`.
    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()>;
    /// Removes what stands at the path: a file, link, special, or a directory with all it holds.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Sets owner, mode, extended attributes (replacing those that stand there) and, last, the modification time
    /// (also as access time). Returns the attributes that could not be set, each as a sentence; that is not an error.
    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Vec<String>>;
    /// Says whether names that differ only in case are the same name here.
    fn folds_case(&self) -> Result<bool>;
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
    /// Turns a range into a hole (reads as zeros), where the file system can; else writes zeros.
    fn punch(&self, range: Range<u64>) -> Result<()>;
    /// Does what [`TargetTree::set_metadata`] does, to the open file, whatever stands at its path by now.
    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Vec<String>>;
}
