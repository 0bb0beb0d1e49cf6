//! Owner, mode, extended attributes and times of an entry inside the target.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::io::os_entry::{self, LastLink, handle_path, retry};
use crate::io::tree::{EntryKind, Metadata, Trust, Xattr};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Label of `SELinux`: the system's policy gives one to every entry, which stays unless the snapshot has another.
const SELINUX: &[u8] = b"security.selinux";

/// An id that means "leave as it is" to the kernel, and so is nobody's.
const NO_ID: u32 = u32::MAX;

/// What attributes are set on.
#[derive(Debug)]
enum Subject<'a> {
    /// A file open for writing: calls take its handle.
    File(BorrowedFd<'a>),
    /// What a handle opened with `O_PATH` stands for: most calls take the handle's path.
    Entry(BorrowedFd<'a>, PathBuf),
}

/// Sets everything on the entry that a handle opened with `O_PATH` stands for, the times last.
///
/// The handle pins the entry, so that nothing planted at its name meanwhile is touched. Returns what could not be set,
/// each as a sentence.
pub(super) fn set(
    entry: BorrowedFd<'_>,
    wanted: &Metadata,
    xattrs: &[Xattr],
    trust: Trust,
) -> Result<Vec<String>, Errno> {
    Subject::Entry(entry, handle_path(entry, Path::new(""))).set(wanted, xattrs, trust)
}

/// The same on an open file.
pub(super) fn set_of_file(
    file: BorrowedFd<'_>,
    wanted: &Metadata,
    xattrs: &[Xattr],
    trust: Trust,
) -> Result<Vec<String>, Errno> {
    Subject::File(file).set(wanted, xattrs, trust)
}

impl Subject<'_> {
    fn set(&self, wanted: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Vec<String>, Errno> {
        let mut found = self.metadata()?;
        let mut refused = Vec::new();
        // Owner first: changing it clears set-id bits and capabilities. Nothing to change is most common.
        if (found.uid, found.gid) != (wanted.uid, wanted.gid) {
            self.set_owner(wanted, &mut refused);
            found = self.metadata()?;
        }
        let mode = mode_to_set(wanted, &found, trust, &mut refused);
        let changes = Changes::between(self, xattrs, trust, &mut refused);
        if found.kind == EntryKind::Symlink {
            changes.apply(self, &mut refused);
        } else if changes.is_empty() {
            if mode != found.mode {
                self.set_mode(mode, &mut refused);
            }
        } else {
            // Without root's privileges, attributes can only be set on what the owner may write.
            let writable = mode | 0o200;
            if writable == mode || rustix::process::geteuid().is_root() {
                self.set_mode(mode, &mut refused);
                changes.apply(self, &mut refused);
            } else {
                self.set_mode(writable & !SET_ID, &mut refused);
                changes.apply(self, &mut refused);
                self.set_mode(mode, &mut refused);
            }
        }
        self.set_times(wanted, &mut refused);
        Ok(refused)
    }

    fn metadata(&self) -> Result<Metadata, Errno> {
        let (Self::File(handle) | Self::Entry(handle, _)) = self;
        os_entry::stat(*handle, Path::new(""), AtFlags::EMPTY_PATH)
    }

    fn set_owner(&self, wanted: &Metadata, refused: &mut Vec<String>) {
        let (Self::File(handle) | Self::Entry(handle, _)) = self;
        let uid = (wanted.uid != NO_ID).then(|| Uid::from_raw(wanted.uid));
        let gid = (wanted.gid != NO_ID).then(|| Gid::from_raw(wanted.gid));
        let chown = |uid, gid| retry(|| rustix::fs::chownat(handle, "", uid, gid, AtFlags::EMPTY_PATH));
        let outcome = chown(uid, gid);
        if uid.is_none() || gid.is_none() {
            refused.push(format!("owner {}:{} cannot be set: not an id", wanted.uid, wanted.gid));
        } else if let Err(error) = outcome {
            refused.push(format!("owner {}:{} cannot be set: {error}", wanted.uid, wanted.gid));
            // A user may still hand a file to another group of theirs. The failure is told already.
            let _ = chown(None, gid);
        }
    }

    /// Sets the mode of what is not a symbolic link.
    fn set_mode(&self, mode: u32, refused: &mut Vec<String>) {
        let wanted = Mode::from_raw_mode(mode);
        let outcome = retry(|| match self {
            Self::File(file) => rustix::fs::fchmod(file, wanted),
            Self::Entry(_, path) => rustix::fs::chmodat(CWD, path, wanted, AtFlags::empty()),
        });
        if let Err(error) = outcome {
            refused.push(format!("mode {mode:04o} cannot be set: {error}"));
        }
    }

    fn set_times(&self, wanted: &Metadata, refused: &mut Vec<String>) {
        // The kernel gives greater values meanings of their own.
        if 999_999_999 < wanted.mtime.nanoseconds {
            refused.push(format!("modification time cannot be set: {} nanoseconds", wanted.mtime.nanoseconds));
            return;
        }
        let time = Timespec { tv_sec: wanted.mtime.seconds, tv_nsec: i64::from(wanted.mtime.nanoseconds) };
        let times = Timestamps { last_access: time, last_modification: time };
        let outcome = retry(|| match self {
            Self::File(file) => rustix::fs::futimens(file, &times),
            Self::Entry(_, path) => rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()),
        });
        if let Err(error) = outcome {
            refused.push(format!("modification time cannot be set: {error}"));
        }
    }

    fn xattrs(&self) -> Result<Vec<Xattr>, Errno> {
        match self {
            Self::File(file) => os_entry::xattrs_of(*file),
            Self::Entry(_, path) => os_entry::xattrs(path, LastLink::Followed),
        }
    }
}

/// Set-id bits come back only if they are trusted and run as whom they ran before.
fn mode_to_set(wanted: &Metadata, owner: &Metadata, trust: Trust, refused: &mut Vec<String>) -> u32 {
    let mode = wanted.mode & 0o7777;
    if trust == Trust::Untrusted {
        return mode & !SET_ID;
    }
    let mut lost = 0;
    if owner.uid != wanted.uid {
        lost |= mode & 0o4000;
    }
    if owner.gid != wanted.gid && wanted.kind != EntryKind::Directory {
        lost |= mode & 0o2000;
    }
    if lost != 0 {
        refused.push(format!("set-id bits {lost:04o} are left out since the owner cannot be set"));
    }
    mode & !lost
}

/// What must be done so that an entry has the wanted attributes and no others.
#[derive(Debug)]
struct Changes<'a> {
    remove: Vec<Xattr>,
    set: Vec<&'a Xattr>,
}

impl<'a> Changes<'a> {
    fn between(subject: &Subject<'_>, wanted: &'a [Xattr], trust: Trust, refused: &mut Vec<String>) -> Self {
        let found = match subject.xattrs() {
            Ok(found) => found,
            Err(error) => {
                refused.push(format!("attributes that stand there cannot be read: {error}"));
                Vec::new()
            }
        };
        let wanted: Vec<&Xattr> = wanted.iter().filter(|xattr| is_wanted(&xattr.name, trust)).collect();
        let set = wanted.iter().copied().filter(|xattr| !found.contains(*xattr)).collect();
        let remove = found
            .into_iter()
            .filter(|there| there.name.as_bytes() != SELINUX && !wanted.iter().any(|xattr| xattr.name == there.name))
            .collect();
        Self { remove, set }
    }

    fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    fn apply(&self, subject: &Subject<'_>, refused: &mut Vec<String>) {
        for Xattr { name, .. } in &self.remove {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fremovexattr(file, name.as_os_str()),
                Subject::Entry(_, path) => rustix::fs::removexattr(path, name.as_os_str()),
            });
            match outcome {
                // An attribute of another goes with it, as the ACL with the last of its entries.
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => refused.push(format!("attribute {} cannot be removed: {error}", name.display())),
            }
        }
        for Xattr { name, value } in &self.set {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()),
                Subject::Entry(_, path) => rustix::fs::setxattr(path, name.as_os_str(), value, XattrFlags::empty()),
            });
            if let Err(error) = outcome {
                refused.push(format!("attribute {} cannot be set: {error}", name.display()));
            }
        }
    }
}

fn is_wanted(name: &OsStr, trust: Trust) -> bool {
    let name = name.as_bytes();
    match trust {
        Trust::Full => true,
        Trust::Untrusted => name != b"security.capability" && !name.starts_with(b"trusted."),
    }
}
