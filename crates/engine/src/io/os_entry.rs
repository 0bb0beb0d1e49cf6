//! Metadata, extended attributes and bytes of an entry, for sources and targets.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::io::tree::{AccessTime, EntryKind, Metadata, Xattr, name_bytes};
use crate::types::Timestamp;

/// Maximum length of a path in one system call, in bytes: `PATH_MAX` without the final NUL.
pub(super) const PATH_LEN_MAX: usize = 4095;

/// Size of the first buffer for a list of names or a value. Nearly all attributes fit.
const ATTRIBUTE_LEN_FIRST: usize = 1024;

/// Maximum size of a list of names or a value in the kernel: `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const ATTRIBUTE_LEN_MAX: usize = 65_536;

/// Size of the buffer for directory entries, the same as in the C library.
const LIST_BYTES: usize = 32 << 10;

/// Returns the metadata of an entry. With [`AtFlags::EMPTY_PATH`] and an empty name, returns that of the handle itself.
///
/// The size of a block device is 0, because finding it requires an open handle.
pub(super) fn stat(dir: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> Result<Metadata, Errno> {
    metadata_of(&statx(dir, name, flags)?)
}

fn statx(dir: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> Result<Statx, Errno> {
    retry(|| rustix::fs::statx(dir, name, flags | AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS))
}

fn metadata_of(stat: &Statx) -> Result<Metadata, Errno> {
    let mode = u32::from(stat.stx_mode);
    Ok(Metadata {
        kind: kind_of(FileType::from_raw_mode(mode))?,
        mode: mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mtime: Timestamp { seconds: stat.stx_mtime.tv_sec, nanoseconds: stat.stx_mtime.tv_nsec },
        atime: AccessTime(Timestamp { seconds: stat.stx_atime.tv_sec, nanoseconds: stat.stx_atime.tv_nsec }),
        ctime: Timestamp { seconds: stat.stx_ctime.tv_sec, nanoseconds: stat.stx_ctime.tv_nsec },
        size: stat.stx_size,
        device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        links: u64::from(stat.stx_nlink),
        rdev: rdev_of(stat),
    })
}

/// Returns true if something is mounted at an entry, or if the kernel does not tell, as before Linux 5.8.
pub(super) fn is_mount_point(dir: BorrowedFd<'_>, name: &Path) -> Result<bool, Errno> {
    let stat = statx(dir, name, AtFlags::empty())?;
    let mount = StatxAttributes::MOUNT_ROOT;
    Ok(stat.stx_attributes.contains(mount) || !stat.stx_attributes_mask.contains(mount))
}

/// Size of the blocks that `statx` counts.
const STAT_BLOCK_BYTES: u64 = 512;

/// Returns the metadata of an open file, and true if the file has at least as many blocks as its length requires.
///
/// Such a file has no holes, unless space is reserved past its end or the file system stores it compressed.
pub(super) fn stat_opened(file: &OwnedFd) -> Result<(Metadata, bool), Errno> {
    let stat = statx(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?;
    let metadata = metadata_of(&stat)?;
    if metadata.kind == EntryKind::BlockDevice {
        return Ok((stat_file(file)?, false));
    }
    let is_dense = stat.stx_size <= stat.stx_blocks.saturating_mul(STAT_BLOCK_BYTES);
    Ok((metadata, is_dense))
}

/// Returns the metadata of an open file. The size of a block device is its capacity.
pub(super) fn stat_file(file: &OwnedFd) -> Result<Metadata, Errno> {
    let mut metadata = stat(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?;
    if metadata.kind == EntryKind::BlockDevice {
        metadata.size = retry(|| rustix::fs::seek(file, SeekFrom::End(0)))?;
    }
    Ok(metadata)
}

fn rdev_of(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor)
}

fn kind_of(file_type: FileType) -> Result<EntryKind, Errno> {
    match file_type {
        FileType::RegularFile => Ok(EntryKind::File),
        FileType::Directory => Ok(EntryKind::Directory),
        FileType::Symlink => Ok(EntryKind::Symlink),
        FileType::Fifo => Ok(EntryKind::Fifo),
        FileType::Socket => Ok(EntryKind::Socket),
        FileType::CharacterDevice => Ok(EntryKind::CharDevice),
        FileType::BlockDevice => Ok(EntryKind::BlockDevice),
        FileType::Unknown => Err(Errno::NOTSUP),
    }
}

/// Returns a path in `/proc` that leads to the entry of a handle, or to a name below it.
///
/// Calls that accept no handle, or none opened with `O_PATH`, use it: those of attributes, and `chmod`.
pub(super) fn handle_path(handle: BorrowedFd<'_>, name: &Path) -> PathBuf {
    let handle = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    if name.as_os_str().is_empty() { handle } else { handle.join(name) }
}

/// The treatment of a link that is the last component of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LastLink {
    /// The link is followed. Only for [`handle_path`] without a name, which is such a link itself.
    Followed,
    /// The link is not followed. For every path at which a user may have planted a link.
    NotFollowed,
}

/// Returns all extended attributes, sorted by name. Returns an empty list if the file system has no attributes.
pub(super) fn xattrs(path: &Path, last: LastLink) -> Result<Vec<Xattr>, Errno> {
    collect_xattrs(
        |buffer| match last {
            LastLink::Followed => rustix::fs::listxattr(path, spare_capacity(buffer)),
            LastLink::NotFollowed => rustix::fs::llistxattr(path, spare_capacity(buffer)),
        },
        |name, buffer| match last {
            LastLink::Followed => rustix::fs::getxattr(path, name, spare_capacity(buffer)),
            LastLink::NotFollowed => rustix::fs::lgetxattr(path, name, spare_capacity(buffer)),
        },
    )
}

/// Returns all extended attributes of an open file, like [`xattrs`].
pub(super) fn xattrs_of(file: BorrowedFd<'_>) -> Result<Vec<Xattr>, Errno> {
    collect_xattrs(
        |buffer| rustix::fs::flistxattr(file, spare_capacity(buffer)),
        |name, buffer| rustix::fs::fgetxattr(file, name, spare_capacity(buffer)),
    )
}

/// Returns whether an entry has extended attributes, or `None` if the kernel cannot tell by a name in a handle. Linux can since 6.13.
pub(super) fn has_xattrs_at(dir: BorrowedFd<'_>, name: &Path) -> Result<Option<bool>, Errno> {
    let len = |name: &CStr| {
        onefold_sys::xattr_names_len(dir, name).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    match retry(|| name.into_with_c_str(len)) {
        Ok(len) => Ok(Some(len != 0)),
        Err(Errno::NOTSUP) => Ok(Some(false)),
        // A kernel before 6.13, or a filter of system calls that does not know this one.
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error),
    }
}

fn collect_xattrs(
    list: impl FnMut(&mut Vec<u8>) -> Result<usize, Errno>,
    mut get: impl FnMut(&[u8], &mut Vec<u8>) -> Result<usize, Errno>,
) -> Result<Vec<Xattr>, Errno> {
    let names = match grow(list) {
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match grow(|buffer| get(name, buffer)) {
            Ok(value) => attributes.push(Xattr { name: OsStr::from_bytes(name).to_os_string(), value }),
            // The attribute was removed after it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    attributes.sort_unstable();
    Ok(attributes)
}

/// Reads into a small buffer. If the kernel reports that it is too small, reads again with the kernel's maximum size.
fn grow(mut read: impl FnMut(&mut Vec<u8>) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut capacity = ATTRIBUTE_LEN_FIRST;
    loop {
        let mut buffer = Vec::with_capacity(capacity);
        match read(&mut buffer) {
            Ok(_) => return Ok(buffer),
            Err(Errno::INTR) => {}
            Err(Errno::RANGE) if capacity < ATTRIBUTE_LEN_MAX => capacity = ATTRIBUTE_LEN_MAX,
            Err(error) => return Err(error),
        }
    }
}

/// Returns the names in a directory, sorted by bytes, without `.` and `..`.
pub(super) fn list(directory: OwnedFd) -> Result<Vec<OsString>, Errno> {
    let names = names_in(directory.as_fd(), usize::MAX);
    drop(directory);
    Ok(names?.unwrap_or_default())
}

/// Returns the names in a directory from the current offset of a handle, sorted by bytes, without `.` and `..`. Returns `None` if
/// they take more than `bytes_max` bytes.
pub(super) fn names_in(directory: BorrowedFd<'_>, bytes_max: usize) -> Result<Option<Vec<OsString>>, Errno> {
    let mut buffer = Vec::with_capacity(LIST_BYTES);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    let mut bytes = 0;
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let name = OsStr::from_bytes(name).to_os_string();
            bytes += name_bytes(&name);
            if bytes_max < bytes {
                return Ok(None);
            }
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(Some(names))
}

/// Reads at `offset` until the buffer is full or the file ends.
pub(super) fn read_at(file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(rest @ [_, ..]) = buffer.get_mut(filled..) {
        let at = offset.checked_add(filled as u64).ok_or(Errno::OVERFLOW)?;
        match rustix::io::pread(file, rest, at) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Repeats a call while signals interrupt it.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}
