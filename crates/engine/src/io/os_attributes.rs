//! Owner, mode, extended attributes and times of an entry inside the target.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::io::os_entry::{self, LastLink, handle_path, retry};
use crate::io::tree::{EntryKind, Identity, Metadata, MetadataChoice, Omission, Trust, Unset, Xattr};
use crate::types::Timestamp;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Attributes that a system gives to every entry: the label of `SELinux`, and the ACLs of `NFSv4`, which cannot be
/// removed. A restore keeps them unless the snapshot has its own.
const GIVEN: [&str; 4] = ["security.selinux", "system.nfs4_acl", "system.nfs4_dacl", "system.nfs4_sacl"];

/// The ACL of an entry itself.
const ACCESS_ACL: &str = "system.posix_acl_access";

/// Begin of the names of all POSIX ACLs.
const ACLS: &str = "system.posix_acl_";

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
pub(super) fn set(
    entry: BorrowedFd<'_>,
    wanted: &Metadata,
    xattrs: &[Xattr],
    policy: (Trust, &MetadataChoice),
) -> Result<Unset, Errno> {
    let subject = Subject::Entry(entry, handle_path(entry, Path::new("")));
    subject.change(subject.metadata()?, wanted, xattrs, policy)
}

/// Sets all metadata of an open file, and also returns the file's identity.
pub(super) fn set_of_file(
    file: BorrowedFd<'_>,
    wanted: &Metadata,
    xattrs: &[Xattr],
    policy: (Trust, &MetadataChoice),
) -> Result<(Identity, Unset), Errno> {
    let subject = Subject::File(file);
    let found = subject.metadata()?;
    let identity = found.identity();
    Ok((identity, subject.change(found, wanted, xattrs, policy)?))
}

impl Subject<'_> {
    /// Sets the metadata that differs from the found metadata.
    fn change(
        &self,
        mut found: Metadata,
        wanted: &Metadata,
        xattrs: &[Xattr],
        (trust, choice): (Trust, &MetadataChoice),
    ) -> Result<Unset, Errno> {
        let mut unset = Unset::default();
        // Owner first: changing it clears set-id bits and capabilities. Most often, nothing needs a change.
        if (found.uid, found.gid) != (wanted.uid, wanted.gid) && !choice.omits_owners {
            self.set_owner(wanted, &mut unset);
            found = self.metadata()?;
            // Some file systems report success, and give every entry the same owner.
            if (found.uid, found.gid) != (wanted.uid, wanted.gid) && unset.failures.is_empty() {
                unset.omissions.insert(Omission::Owner);
            }
        }
        let mut mode = mode_to_set(wanted, &found, (trust, choice), &mut unset);
        let changes = Changes::between(self, xattrs, (trust, choice), &mut unset);
        let acl = xattrs.iter().find(|xattr| xattr.name == ACCESS_ACL);
        if let Some(acl) = acl.filter(|_| !selects(choice, OsStr::new(ACCESS_ACL))) {
            mode = mode_without_acl(mode, &acl.value);
        }
        if found.kind == EntryKind::Symlink {
            changes.apply(self, &mut unset);
        } else if changes.is_empty() {
            if mode != found.mode {
                self.set_mode(mode, found.mode, &mut unset);
            }
        } else {
            // The group's rights limit an ACL, so an inherited ACL grants nothing until it is replaced.
            let meanwhile = mode_meanwhile(found.mode, mode, is_root());
            let is_set = meanwhile != found.mode && self.set_mode(meanwhile, found.mode, &mut unset);
            let standing = if is_set { meanwhile } else { found.mode };
            let lacks_acl = changes.apply(self, &mut unset);
            if let Some(acl) = acl.filter(|_| lacks_acl) {
                mode = mode_without_acl(mode, &acl.value);
            }
            self.set_mode(mode, standing, &mut unset);
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
            // The kernel calls an id invalid that the user namespace does not have.
            if is_refusal(error) || error == Errno::INVAL {
                unset.omissions.insert(Omission::Owner);
            } else {
                unset.failures.push(format!("owner {}:{} cannot be set: {error}", wanted.uid, wanted.gid));
            }
            // A user can still change a file's group to another of the user's groups. The owner is counted already.
            let _ = chown(None, gid);
        }
    }

    /// Sets the mode of an entry that is not a symbolic link. Returns true if that is done.
    fn set_mode(&self, mode: u32, found: u32, unset: &mut Unset) -> bool {
        let change = |mode: u32| {
            let mode = Mode::from_raw_mode(mode);
            retry(|| match self {
                Self::File(file) => rustix::fs::fchmod(file, mode),
                Self::Entry(_, path) => rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()),
            })
        };
        let Err(error) = change(mode) else { return true };
        // A restore makes each file. Of another entry, which somebody else may own and whose rights may be too many, the file
        // system is to blame only if it takes the mode that is there.
        let is_omission = match self {
            Self::File(_) => is_refusal(error),
            Self::Entry(..) => is_refusal(error) && (found & !mode == 0 || change(found) != Err(Errno::PERM)),
        };
        if is_omission {
            unset.omissions.insert(Omission::Mode);
        } else {
            unset.failures.push(format!("mode {mode:04o} cannot be set: {error}"));
        }
        false
    }

    fn set_times(&self, wanted: &Metadata, unset: &mut Unset) {
        // The kernel gives greater values meanings of their own.
        let nanoseconds = wanted.mtime.nanoseconds.max(wanted.atime.0.nanoseconds);
        if 999_999_999 < nanoseconds {
            unset.failures.push(format!("modification time cannot be set: {nanoseconds} nanoseconds"));
            return;
        }
        let time = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) };
        let times = Timestamps { last_access: time(wanted.atime.0), last_modification: time(wanted.mtime) };
        let outcome = retry(|| match self {
            Self::File(file) => rustix::fs::futimens(file, &times),
            Self::Entry(handle, path) => match rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()) {
                // Without /proc. Older kernels than 5.8 refuse this.
                Err(Errno::NOENT) => rustix::fs::utimensat(handle, "", &times, AtFlags::EMPTY_PATH),
                outcome => outcome,
            },
        });
        match outcome {
            Ok(()) => {}
            Err(error) if is_refusal(error) => drop(unset.omissions.insert(Omission::Time)),
            Err(error) => unset.failures.push(format!("modification time cannot be set: {error}")),
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

/// Set-id bits are restored only if they are trusted and the entry has its original owner and group. Without these, nobody gets
/// rights that only the original ones had.
fn mode_to_set(
    wanted: &Metadata,
    owner: &Metadata,
    (trust, choice): (Trust, &MetadataChoice),
    unset: &mut Unset,
) -> u32 {
    let mut mode = wanted.mode & 0o7777;
    if owner.uid != wanted.uid {
        let rights = mode >> 6 & 7;
        mode &= !0o77 | rights << 3 | rights;
    }
    if owner.gid != wanted.gid {
        let rights = mode >> 3 & mode & 7;
        mode &= !0o77 | rights << 3 | rights;
    }
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
    if lost != 0 && (choice.omits_owners || unset.omissions.contains(&Omission::Owner)) {
        unset.omissions.insert(Omission::SetIds);
    } else if lost != 0 {
        unset.failures.push(format!("set-id bits {lost:04o} are left out since the owner cannot be set"));
    }
    mode & !lost
}

/// Returns the mode of an entry that does not get its ACL. The bits of the group are the mask of the ACL, which may grant others
/// rights that the group does not have. Users and groups that the ACL names count as members of the group, and as others.
fn mode_without_acl(mode: u32, acl: &[u8]) -> u32 {
    const OWNING_GROUP: u8 = 0x04;
    const NAMED: [u8; 2] = [0x02, 0x08];
    let mut rights = (7, 7);
    for entry in acl.get(4..).unwrap_or_default().chunks_exact(8) {
        match entry {
            [OWNING_GROUP, _, granted, ..] => rights.0 &= u32::from(*granted),
            [tag, _, granted, ..] if NAMED.contains(tag) => rights.1 &= u32::from(*granted) & mode >> 3,
            _ => {}
        }
    }
    mode & (!0o77 | (rights.0 & rights.1) << 3 | rights.1)
}

/// The changes that give an entry exactly the wanted attributes.
#[derive(Debug)]
struct Changes<'a> {
    remove: Vec<Xattr>,
    set: Vec<&'a Xattr>,
}

impl<'a> Changes<'a> {
    fn between(
        subject: &Subject<'_>,
        wanted: &'a [Xattr],
        policy: (Trust, &MetadataChoice),
        unset: &mut Unset,
    ) -> Self {
        let found = match subject.xattrs() {
            Ok(found) => found,
            Err(error) => {
                unset.failures.push(format!("attributes that stand there cannot be read: {error}"));
                Vec::new()
            }
        };
        Self::of(found, wanted, policy)
    }

    /// Returns the changes from the found attributes to the wanted ones.
    fn of(found: Vec<Xattr>, wanted: &'a [Xattr], (trust, choice): (Trust, &MetadataChoice)) -> Self {
        let is_chosen = |xattr: &&Xattr| is_wanted(&xattr.name, trust) && selects(choice, &xattr.name);
        let wanted: Vec<&Xattr> = wanted.iter().filter(is_chosen).collect();
        let set = wanted.iter().copied().filter(|xattr| !found.contains(*xattr)).collect();
        // A file may inherit an ACL that grants what the snapshot does not.
        let is_given =
            |name: &OsStr| GIVEN.iter().any(|given| *given == name) || !is_acl(name) && !selects(choice, name);
        let remove = found
            .into_iter()
            .filter(|there| !is_given(&there.name) && !wanted.iter().any(|xattr| xattr.name == there.name))
            .collect();
        Self { remove, set }
    }

    fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Returns true if the ACL of the entry itself could not be set.
    fn apply(&self, subject: &Subject<'_>, unset: &mut Unset) -> bool {
        for Xattr { name, .. } in &self.remove {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fremovexattr(file, name.as_os_str()),
                Subject::Entry(_, path) => rustix::fs::removexattr(path, name.as_os_str()),
            });
            match outcome {
                // The removal of another attribute may remove this one, as an ACL goes with the last of its entries.
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) if is_privileged(name) && is_unsupported(subject, name, error) => {
                    unset.omissions.insert(Omission::Attribute);
                }
                Err(error) => unset.failures.push(format!("attribute {} cannot be removed: {error}", name.display())),
            }
        }
        let mut lacks_acl = false;
        for Xattr { name, value } in &self.set {
            let outcome = retry(|| match subject {
                Subject::File(file) => rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()),
                Subject::Entry(_, path) => rustix::fs::setxattr(path, name.as_os_str(), value, XattrFlags::empty()),
            });
            lacks_acl |= outcome.is_err() && name == ACCESS_ACL;
            match outcome {
                Ok(()) => {}
                Err(error) if is_unsupported(subject, name, error) => {
                    unset.omissions.insert(Omission::Attribute);
                }
                Err(error) => unset.failures.push(format!("attribute {} cannot be set: {error}", name.display())),
            }
        }
        lacks_acl
    }
}

/// Returns true if the file system, or the lack of a privilege, is the reason that an attribute cannot be set.
fn is_unsupported(subject: &Subject<'_>, name: &OsStr, error: Errno) -> bool {
    match error {
        Errno::NOTSUP | Errno::NOSYS => true,
        Errno::PERM => is_privileged(name) || matches!(subject, Subject::File(_)),
        Errno::ACCESS => is_privileged(name) && !is_root(),
        // A user whom the user namespace does not have.
        Errno::INVAL => is_acl(name),
        _ => false,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if a call failed because the file system does not support it, or the process may not make it.
fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::PERM | Errno::NOTSUP | Errno::NOSYS)
}

/// Returns true if only a process with privileges can set the attribute.
fn is_privileged(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"security.") || name.as_bytes().starts_with(b"trusted.")
}

fn is_acl(name: &OsStr) -> bool {
    name.as_bytes().starts_with(ACLS.as_bytes())
}

fn selects(choice: &MetadataChoice, name: &OsStr) -> bool {
    choice.attributes.as_ref().is_none_or(|attributes| attributes.selects(name))
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
    use std::sync::Arc;

    use super::*;
    use crate::io::os_source::OsSource;
    use crate::io::os_target_tests::{Fixture, is_root, xattr};
    use crate::io::tree::SelectAttributes;
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
            let changes = Changes::of(found(), &[], (Trust::Full, &MetadataChoice::default()));
            assert_eq!((changes.remove, changes.set), (vec![xattr("user.other", b"1")], vec![]), "{name}");
            let wanted = [xattr(name, b"wanted")];
            let changes = Changes::of(found(), &wanted, (Trust::Full, &MetadataChoice::default()));
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

    /// Group bits of a mode are the mask of an ACL, and what a lost group could read is not for the group of whoever restores.
    #[test]
    fn nobody_gains_rights_by_the_loss_of_an_owner_or_an_acl() {
        let fixture = Fixture::new();
        let wanted = |mode: u32| Metadata { uid: 1, gid: 2, ..fixture.metadata(EntryKind::File, mode) };
        let choice = MetadataChoice { omits_owners: true, ..MetadataChoice::default() };
        for (mode, without_group, without_owner) in [
            (0o644, 0o644, 0o644),
            (0o664, 0o644, 0o664),
            (0o640, 0o600, 0o640),
            (0o755, 0o755, 0o755),
            (0o770, 0o700, 0o770),
            (0o604, 0o600, 0o604),
            (0o477, 0o477, 0o444),
            (0o6755, 0o4755, 0o2755),
        ] {
            for (uid, gid, expected) in [(1, 2, mode), (1, 9, without_group), (9, 2, without_owner)] {
                let found = Metadata { uid, gid, ..wanted(0o600) };
                let mut unset = Unset::default();
                let set = mode_to_set(&wanted(mode), &found, (Trust::Full, &choice), &mut unset);
                assert_eq!((set, unset.failures), (expected, vec![]), "{mode:o} {uid} {gid}");
            }
        }
        let acl = |entries: &[(u8, u8)]| {
            let entries = entries.iter().flat_map(|(tag, rights)| [*tag, 0, *rights, 0, 1, 0, 0, 0]);
            [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<u8>>()
        };
        // The owner, a user, the group, a group, the mask, others.
        for (mode, entries, expected) in [
            (0o660, &[(1, 6), (2, 6), (4, 0), (16, 6), (32, 0)][..], 0o600),
            (0o664, &[(1, 6), (2, 0), (4, 4), (16, 6), (32, 4)], 0o600),
            (0o664, &[(1, 6), (2, 6), (4, 4), (8, 7), (16, 6), (32, 4)], 0o644),
            (0o644, &[(1, 6), (4, 4), (32, 4)], 0o644),
            (0o644, &[], 0o644),
        ] {
            assert_eq!(mode_without_acl(mode, &acl(entries)), expected, "{mode:o} {entries:?}");
        }
    }

    #[test]
    fn attributes_that_are_not_chosen_are_neither_set_nor_removed() {
        #[derive(Debug)]
        struct Kept;
        impl SelectAttributes for Kept {
            fn selects(&self, name: &OsStr) -> bool {
                name == "user.kept"
            }
        }
        let choice = MetadataChoice { attributes: Some(Arc::new(Kept)), ..MetadataChoice::default() };
        let found = ["system.posix_acl_access", "user.kept", "user.there"].map(|name| xattr(name, b"1"));
        let wanted = ["system.posix_acl_access", "user.other"].map(|name| xattr(name, b"2"));
        let changes = Changes::of(found.to_vec(), &wanted, (Trust::Full, &choice));
        assert_eq!((changes.remove, changes.set), (found[..2].to_vec(), vec![]));
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
        assert_eq!((refused.failures.len(), refused.omissions.len()), (4, 1), "{refused:?}");
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
