//! Owner, mode, extended attributes and times of an entry inside the target.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    let found = os_entry::stat(entry, Path::new(""), AtFlags::EMPTY_PATH)?;
    let path = handle_path(entry, Path::new(""));
    let mut refused = Vec::new();

    // Owner first: changing it clears set-id bits and capabilities.
    set_owner(entry, wanted, &mut refused);
    let owner = os_entry::stat(entry, Path::new(""), AtFlags::EMPTY_PATH)?;
    let mode = mode_to_set(wanted, &owner, trust, &mut refused);

    let changes = Changes::between(&path, xattrs, trust, &mut refused);
    if found.kind == EntryKind::Symlink {
        changes.apply(&path, &mut refused);
    } else {
        // Without root's privileges, attributes can only be set on what the owner may write.
        let writable = mode | 0o200;
        if changes.is_empty() || writable == mode || rustix::process::geteuid().is_root() {
            set_mode(&path, mode, &mut refused);
            changes.apply(&path, &mut refused);
        } else {
            set_mode(&path, writable & !SET_ID, &mut refused);
            changes.apply(&path, &mut refused);
            set_mode(&path, mode, &mut refused);
        }
    }
    set_times(&path, wanted, &mut refused);
    Ok(refused)
}

fn set_owner(entry: BorrowedFd<'_>, wanted: &Metadata, refused: &mut Vec<String>) {
    let uid = (wanted.uid != NO_ID).then(|| Uid::from_raw(wanted.uid));
    let gid = (wanted.gid != NO_ID).then(|| Gid::from_raw(wanted.gid));
    let chown = |uid, gid| retry(|| rustix::fs::chownat(entry, "", uid, gid, AtFlags::EMPTY_PATH));
    let outcome = chown(uid, gid);
    if uid.is_none() || gid.is_none() {
        refused.push(format!("owner {}:{} cannot be set: not an id", wanted.uid, wanted.gid));
    } else if let Err(error) = outcome {
        refused.push(format!("owner {}:{} cannot be set: {error}", wanted.uid, wanted.gid));
        // A user may still hand a file to another group of theirs. The failure is told already.
        let _ = chown(None, gid);
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

/// Sets the mode of what is not a symbolic link.
fn set_mode(path: &Path, mode: u32, refused: &mut Vec<String>) {
    if let Err(error) = retry(|| rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())) {
        refused.push(format!("mode {mode:04o} cannot be set: {error}"));
    }
}

fn set_times(path: &Path, wanted: &Metadata, refused: &mut Vec<String>) {
    // The kernel gives greater values meanings of their own.
    if 999_999_999 < wanted.mtime.nanoseconds {
        refused.push(format!("modification time cannot be set: {} nanoseconds", wanted.mtime.nanoseconds));
        return;
    }
    let time = Timespec { tv_sec: wanted.mtime.seconds, tv_nsec: i64::from(wanted.mtime.nanoseconds) };
    let times = Timestamps { last_access: time, last_modification: time };
    if let Err(error) = retry(|| rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())) {
        refused.push(format!("modification time cannot be set: {error}"));
    }
}

/// What must be done so that an entry has the wanted attributes and no others.
#[derive(Debug)]
struct Changes<'a> {
    remove: Vec<Xattr>,
    set: Vec<&'a Xattr>,
}

impl<'a> Changes<'a> {
    fn between(path: &Path, wanted: &'a [Xattr], trust: Trust, refused: &mut Vec<String>) -> Self {
        let found = match os_entry::xattrs(path, LastLink::Followed) {
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

    fn apply(&self, path: &Path, refused: &mut Vec<String>) {
        for Xattr { name, .. } in &self.remove {
            match retry(|| rustix::fs::removexattr(path, name.as_os_str())) {
                // An attribute of another goes with it, as the ACL with the last of its entries.
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => refused.push(format!("attribute {} cannot be removed: {error}", name.display())),
            }
        }
        for Xattr { name, value } in &self.set {
            if let Err(error) = retry(|| rustix::fs::setxattr(path, name.as_os_str(), value, XattrFlags::empty())) {
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
