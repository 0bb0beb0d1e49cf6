//! Owner, mode, extended attributes and times of an entry inside the target.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::io::os_entry::{self, LastLink, handle_path, retry};
use crate::io::tree::{EntryKind, Identity, Metadata, Trust, Unset, Xattr};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Attributes that a system gives to every entry: the label of `SELinux`, and the ACLs of `NFSv4`, which cannot be
/// removed. A restore keeps them unless the snapshot has its own.
const GIVEN: [&str; 4] = ["security.selinux", "system.nfs4_acl", "system.nfs4_dacl", "system.nfs4_sacl"];

/// An id that tells the kernel to keep the current owner, so no user has it.
const NO_ID: u32 = u32::MAX;

/// The object whose attributes are set.
#[derive(Debug)]
enum Subject<'a> {
    /// A file open for writing: calls take its handle.
    File(BorrowedFd<'a>),
    /// An entry behind a handle opened with `O_PATH`: most calls take the handle's path.
    Entry(BorrowedFd<'a>, PathBuf),
}

/// Sets all metadata of the entry behind a handle opened with `O_PATH`, the times last.
///
/// The handle pins the entry, so the function does not affect another entry that somebody has put at its name. Returns
/// each failure as a sentence.
pub(super) fn set(entry: BorrowedFd<'_>, wanted: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset, Errno> {
    Subject::Entry(entry, handle_path(entry, Path::new(""))).set(wanted, xattrs, trust)
}

/// Sets all metadata of an open file, and also returns the file's identity.
pub(super) fn set_of_file(
    file: BorrowedFd<'_>,
    wanted: &Metadata,
    xattrs: &[Xattr],
    trust: Trust,
) -> Result<(Identity, Unset), Errno> {
    let subject = Subject::File(file);
    let found = subject.metadata()?;
    let identity = found.identity();
    Ok((identity, subject.change(found, wanted, xattrs, trust)?))
}

impl Subject<'_> {
    fn set(&self, wanted: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset, Errno> {
        self.change(self.metadata()?, wanted, xattrs, trust)
    }

    /// Sets the metadata that differs from the found metadata.
    fn change(&self, mut found: Metadata, wanted: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset, Errno> {
        let mut unset = Unset::default();
        // Owner first: changing it clears set-id bits and capabilities. Most often, nothing needs a change.
        if (found.uid, found.gid) != (wanted.uid, wanted.gid) {
            self.set_owner(wanted, &mut unset);
            found = self.metadata()?;
        }
        let mode = mode_to_set(wanted, &found, trust, &mut unset);
        let changes = Changes::between(self, xattrs, trust, &mut unset);
        if found.kind == EntryKind::Symlink {
            changes.apply(self, &mut unset);
        } else if changes.is_empty() {
            if mode != found.mode {
                self.set_mode(mode, &mut unset);
            }
        } else {
            // The group's rights limit an ACL, so an inherited ACL grants nothing until it is replaced.
            let meanwhile = mode_meanwhile(found.mode, mode, is_root());
            if meanwhile != found.mode {
                self.set_mode(meanwhile, &mut unset);
            }
            changes.apply(self, &mut unset);
            self.set_mode(mode, &mut unset);
        }
        self.set_times(wanted, &mut unset);
        Ok(unset)
    }

    fn metadata(&self) -> Result<Metadata, Errno> {
        let (Self::File(handle) | Self::Entry(handle, _)) = self;
        os_entry::stat(*handle, Path::new(""), AtFlags::EMPTY_PATH)
    }

    fn set_owner(&self, wanted: &Metadata, unset: &mut Unset) {
        let (Self::File(handle) | Self::Entry(handle, _)) = self;
        let uid = (wanted.uid != NO_ID).then(|| Uid::from_raw(wanted.uid));
        let gid = (wanted.gid != NO_ID).then(|| Gid::from_raw(wanted.gid));
        let chown = |uid, gid| retry(|| rustix::fs::chownat(handle, "", uid, gid, AtFlags::EMPTY_PATH));
        let outcome = chown(uid, gid);
        if uid.is_none() || gid.is_none() {
            unset.failures.push(format!("owner {}:{} cannot be set: not an id", wanted.uid, wanted.gid));
        } else if let Err(error) = outcome {
            if error == Errno::PERM && !is_root() {
                unset.unprivileged.owners = 1;
            } else {
                unset.failures.push(format!("owner {}:{} cannot be set: {error}", wanted.uid, wanted.gid));
            }
            // A user can still change a file's group to another of the user's groups. The owner is counted already.
            let _ = chown(None, gid);
        }
    }

    /// Sets the mode of an entry that is not a symbolic link.
    fn set_mode(&self, mode: u32, unset: &mut Unset) {
        let wanted = Mode::from_raw_mode(mode);
        let outcome = retry(|| match self {
            Self::File(file) => rustix::fs::fchmod(file, wanted),
            Self::Entry(_, path) => rustix::fs::chmodat(CWD, path, wanted, AtFlags::empty()),
        });
        if let Err(error) = outcome {
            unset.failures.push(format!("mode {mode:04o} cannot be set: {error}"));
        }
    }

    fn set_times(&self, wanted: &Metadata, unset: &mut Unset) {
        // The kernel gives greater values meanings of their own.
        if 999_999_999 < wanted.mtime.nanoseconds {
            unset.failures.push(format!("modification time cannot be set: {} nanoseconds", wanted.mtime.nanoseconds));
            return;
        }
        let time = Timespec { tv_sec: wanted.mtime.seconds, tv_nsec: i64::from(wanted.mtime.nanoseconds) };
        let times = Timestamps { last_access: time, last_modification: time };
        let outcome = retry(|| match self {
            Self::File(file) => rustix::fs::futimens(file, &times),
            Self::Entry(handle, path) => match rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()) {
                // Without /proc. Older kernels than 5.8 refuse this.
                Err(Errno::NOENT) => rustix::fs::utimensat(handle, "", &times, AtFlags::EMPTY_PATH),
                outcome => outcome,
            },
        });
        if let Err(error) = outcome {
            unset.failures.push(format!("modification time cannot be set: {error}"));
        }
    }

    fn xattrs(&self) -> Result<Vec<Xattr>, Errno> {
        match self {
            Self::File(file) => os_entry::xattrs_of(*file),
            Self::Entry(_, path) => match os_entry::xattrs(path, LastLink::Followed) {
                // Without /proc; a new link or special file has none.
                Err(Errno::NOENT) => Ok(Vec::new()),
                outcome => outcome,
            },
        }
    }
}

/// Returns the mode that an entry has while its attributes change: no rights that it will not have in the end, and none that
/// it has not had. Without root's privileges, attributes can only be set on what the owner may write.
fn mode_meanwhile(found: u32, wanted: u32, is_root: bool) -> u32 {
    let writable = if is_root { 0 } else { 0o200 };
    found & wanted & !SET_ID | writable
}

/// Set-id bits are restored only if they are trusted and the entry has its original owner and group.
fn mode_to_set(wanted: &Metadata, owner: &Metadata, trust: Trust, unset: &mut Unset) -> u32 {
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
    if lost != 0 && unset.unprivileged.owners != 0 {
        unset.unprivileged.set_ids = 1;
    } else if lost != 0 {
        unset.failures.push(format!("set-id bits {lost:04o} are left out since the owner cannot be set"));
    }
    mode & !lost
}

/// The changes that give an entry exactly the wanted attributes.
#[derive(Debug)]
struct Changes<'a> {
    remove: Vec<Xattr>,
    set: Vec<&'a Xattr>,
}

impl<'a> Changes<'a> {
    fn between(subject: &Subject<'_>, wanted: &'a [Xattr], trust: Trust, unset: &mut Unset) -> Self {
        let found = match subject.xattrs() {
            Ok(found) => found,
            Err(error) => {
                unset.failures.push(format!("attributes that stand there cannot be read: {error}"));
                Vec::new()
            }
        };
        Self::of(found, wanted, trust)
    }

    /// Returns the changes from the found attributes to the wanted ones.
    fn of(found: Vec<Xattr>, wanted: &'a [Xattr], trust: Trust) -> Self {
        let wanted: Vec<&Xattr> = wanted.iter().filter(|xattr| is_wanted(&xattr.name, trust)).collect();
        let set = wanted.iter().copied().filter(|xattr| !found.contains(*xattr)).collect();
        let is_given = |name: &OsStr| GIVEN.iter().any(|given| *given == name);
        let remove = found
            .into_iter()
            .filter(|there| !is_given(&there.name) && !wanted.iter().any(|xattr| xattr.name == there.name))
            .collect();
        Self { remove, set }
    }

    fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    fn apply(&self, subject: &Subject<'_>, unset: &mut Unset) {
        for Xattr { name, .. } in &self.remove {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fremovexattr(file, name.as_os_str()),
                Subject::Entry(_, path) => rustix::fs::removexattr(path, name.as_os_str()),
            });
            match outcome {
                // The removal of another attribute may remove this one, as an ACL goes with the last of its entries.
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) if is_only_for_root(name, error) => unset.unprivileged.attributes = 1,
                Err(error) => unset.failures.push(format!("attribute {} cannot be removed: {error}", name.display())),
            }
        }
        for Xattr { name, value } in &self.set {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()),
                Subject::Entry(_, path) => rustix::fs::setxattr(path, name.as_os_str(), value, XattrFlags::empty()),
            });
            match outcome {
                Ok(()) => {}
                Err(error) if is_only_for_root(name, error) => unset.unprivileged.attributes = 1,
                Err(error) => unset.failures.push(format!("attribute {} cannot be set: {error}", name.display())),
            }
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if an attribute was refused because this process is not root.
fn is_only_for_root(name: &OsStr, error: Errno) -> bool {
    let name = name.as_bytes();
    let is_privileged = name.starts_with(b"security.") || name.starts_with(b"trusted.");
    is_privileged && matches!(error, Errno::PERM | Errno::ACCESS) && !is_root()
}

fn is_wanted(name: &OsStr, trust: Trust) -> bool {
    let name = name.as_bytes();
    match trust {
        Trust::Full => true,
        Trust::Untrusted => name != b"security.capability" && !name.starts_with(b"trusted."),
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::io::os_source::OsSource;
    use crate::io::os_target_tests::{Fixture, is_root, xattr};
    use crate::io::tree::TargetTree;
    use crate::testing::mem_tree;

    #[test]
    fn metadata_replaces_what_stands_there() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path).unwrap();
        let metadata = fixture.metadata(EntryKind::File, 0o400);
        let first = [xattr("user.gone", b"1"), xattr("user.kept", b"1")];
        let refused = target.set_metadata(path, &metadata, &first, Trust::Full).unwrap();
        if refused.failures.iter().any(|sentence| sentence.contains("user.")) {
            println!("skipped: the temporary directory has no attributes");
            return;
        }
        assert_eq!(refused, Unset::default());
        // Read-only by now, which must not keep its owner from changing the attributes.
        let second = [xattr("user.kept", b"2"), xattr("user.new", b"3")];
        assert_eq!(target.set_metadata(path, &metadata, &second, Trust::Full).unwrap(), Unset::default());
        assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), second);
        let found = target.metadata(path).unwrap().unwrap();
        assert_eq!((found.mode, found.mtime), (0o400, metadata.mtime));
    }

    /// Each new file of an `NFSv4` mount has an ACL, and removing it fails: no file could be restored there without an error.
    #[test]
    fn attributes_that_a_system_gives_to_every_entry_are_replaced_but_not_removed() {
        for name in ["security.selinux", "system.nfs4_acl", "system.nfs4_dacl", "system.nfs4_sacl"] {
            let found = || vec![xattr(name, b"given"), xattr("user.other", b"1")];
            let changes = Changes::of(found(), &[], Trust::Full);
            assert_eq!((changes.remove, changes.set), (vec![xattr("user.other", b"1")], vec![]), "{name}");
            let wanted = [xattr(name, b"wanted")];
            let changes = Changes::of(found(), &wanted, Trust::Full);
            assert_eq!((changes.remove, changes.set), (vec![xattr("user.other", b"1")], vec![&wanted[0]]), "{name}");
        }
    }

    #[test]
    fn rights_only_shrink_while_attributes_change() {
        for found in 0..0o10000 {
            for wanted in [0, 0o400, 0o600, 0o640, 0o755, 0o4755, 0o7777] {
                let mode = mode_meanwhile(found, wanted, true);
                assert_eq!(mode & !(found & wanted) | mode & SET_ID, 0, "{found:o} {wanted:o}");
                assert_eq!(mode_meanwhile(found, wanted, false), mode | 0o200, "{found:o} {wanted:o}");
            }
        }
    }

    #[test]
    fn what_is_not_trusted_gains_no_privileges() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path).unwrap();
        let metadata = fixture.metadata(EntryKind::File, 0o7755);
        // Version 2, cap_net_raw permitted and effective.
        let mut capability = vec![1, 0, 0, 2];
        capability.extend([0, 32, 0, 0].into_iter().chain([0; 12]));
        let xattrs = [xattr("security.capability", &capability), xattr("trusted.x", b"1"), xattr("user.x", b"1")];
        let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
        assert_eq!(refused, Unset::default());
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o1755);
        assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), [xattr("user.x", b"1")]);
        if is_root() {
            let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Full).unwrap();
            assert_eq!(refused, Unset::default());
            assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o7755);
            assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), xattrs);
            // The earlier attributes are removed again.
            target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
            assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), [xattr("user.x", b"1")]);
        }
    }

    #[test]
    fn lists_of_rights_come_back_with_the_mode_they_go_with() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path).unwrap();
        // Version 2; owner rw, user 1000 r, group -, mask r, others -.
        let mut acl = vec![2, 0, 0, 0];
        let none = u32::MAX;
        for (tag, rights, id) in [(1_u16, 6_u16, none), (2, 4, 1000), (4, 0, none), (16, 4, none), (32, 0, none)] {
            acl.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
        }
        let metadata = fixture.metadata(EntryKind::File, 0o640);
        let xattrs = [xattr("system.posix_acl_access", &acl)];
        let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Full).unwrap();
        if refused != Unset::default() {
            println!("skipped: the temporary directory has no lists of rights: {refused:?}");
            return;
        }
        assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), xattrs);
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o640);
        assert_eq!(target.set_metadata(path, &metadata, &[], Trust::Full).unwrap(), Unset::default());
        assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(path)).unwrap(), []);
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o640);
    }

    #[test]
    fn hostile_values_are_refused_with_a_sentence() {
        let fixture = Fixture::new();
        let path = Path::new("file");
        fixture.target.create_file(path).unwrap();
        let mut metadata = fixture.metadata(EntryKind::File, u32::MAX);
        metadata.uid = u32::MAX;
        metadata.mtime.nanoseconds = u32::MAX;
        let xattrs = [xattr("user.nul\0inside", b""), xattr("", b""), xattr("nonsense", b"")];
        let refused = fixture.target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
        assert_eq!(refused.failures.len(), 5, "{refused:?}");
    }

    #[test]
    fn set_id_bits_do_not_outlive_their_owner() {
        let fixture = Fixture::new();
        let path = Path::new("file");
        fixture.target.create_file(path).unwrap();
        let mut metadata = fixture.metadata(EntryKind::File, 0o4755);
        // Nobody can own it, root or not, so the bit would lend the restoring user's rights.
        metadata.uid = u32::MAX;
        let refused = fixture.target.set_metadata(path, &metadata, &[], Trust::Full).unwrap();
        assert_eq!(refused.failures.len(), 2, "{refused:?}");
        assert_eq!(fixture.target.metadata(path).unwrap().unwrap().mode, 0o755);
    }
}
