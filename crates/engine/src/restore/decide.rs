//! The decision about an entry, which a restore executes and a dry run only reports.

use crate::io::tree::{EntryKind, Metadata, Trust};
use crate::restore::policy::Overwrite;
use crate::tree::Entry;

/// Bits of a mode that run a program with the rights of its owner or group.
const SET_ID: u32 = 0o6000;
/// Attribute that gives a program rights of its own.
const CAPABILITY: &str = "security.capability";

/// Decision about an entry that is no directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// The existing entry stays as it is.
    Keep,
    /// The existing file has the size and time of the entry. It gets its metadata only.
    Refresh,
    /// The entry is a device of an untrusted repository, and not restored.
    Refuse,
    /// Nothing exists at the path: the entry is made.
    Create,
    /// The entry replaces an existing one of this kind.
    Replace(EntryKind),
}

/// Decides about an entry from the existing one at its path.
pub(super) fn decide(overwrite: Overwrite, trust: Trust, existing: Option<&Metadata>, entry: &Entry) -> Decision {
    if let Some(kept) = existing.and_then(|existing| keeps(overwrite, trust, existing, entry)) {
        return kept;
    }
    let is_device = matches!(entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    if is_device && trust == Trust::Untrusted {
        return Decision::Refuse;
    }
    existing.map_or(Decision::Create, |existing| Decision::Replace(existing.kind))
}

/// Returns true if an existing entry stays where the snapshot has a directory. Then nothing in the directory can be restored.
pub(super) fn keeps_directory_out(overwrite: Overwrite, existing: &Metadata, directory: &Entry) -> bool {
    let is_kept = match overwrite {
        Overwrite::Refuse | Overwrite::Always | Overwrite::IfDifferent | Overwrite::IfChanged => false,
        Overwrite::IfNewer => directory.mtime <= existing.mtime,
        Overwrite::Never => true,
    };
    is_kept && existing.kind != EntryKind::Directory
}

/// Returns true if an existing entry looks like one of the snapshot that is no directory: kind, size, time and, for a device,
/// number are equal.
pub(super) fn looks_like(existing: &Metadata, entry: &Entry) -> bool {
    let is_device = matches!(entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    existing.kind == entry.kind
        && existing.size == entry.size()
        && existing.mtime == entry.mtime
        && (!is_device || existing.rdev == entry.metadata().rdev)
}

/// Returns true if names of the snapshot may become links to an existing entry that looks like theirs. Another user could own a
/// file that stays as it is, and change the bytes under these names later.
pub(super) fn may_be_linked_to(decision: Decision, existing: &Metadata, entry: &Entry, user: u32) -> bool {
    looks_like(existing, entry) && (decision == Decision::Refresh || [entry.uid, user].contains(&existing.uid))
}

/// Returns true if an existing file is worth comparing with an entry: equal contents would let it stay.
pub(super) fn is_comparable(overwrite: Overwrite, trust: Trust, existing: &Metadata, entry: &Entry) -> bool {
    overwrite == Overwrite::IfDifferent
        && (existing.kind, entry.kind) == (EntryKind::File, EntryKind::File)
        && existing.size == entry.size()
        && entry.link.is_none()
        && may_be_refreshed(trust, existing, entry)
}

/// Returns the decision that keeps an existing entry, if it stays.
fn keeps(overwrite: Overwrite, trust: Trust, existing: &Metadata, entry: &Entry) -> Option<Decision> {
    let both_files = existing.kind == EntryKind::File && entry.kind == EntryKind::File;
    let (is_kept, decision) = match overwrite {
        Overwrite::Refuse | Overwrite::Always | Overwrite::IfDifferent => (false, Decision::Keep),
        Overwrite::Never => (true, Decision::Keep),
        // Whatever kinds they are.
        Overwrite::IfNewer => (entry.mtime <= existing.mtime, Decision::Keep),
        Overwrite::IfChanged => {
            let is_equal = both_files && looks_like(existing, entry);
            (is_equal && may_be_refreshed(trust, existing, entry), Decision::Refresh)
        }
    };
    is_kept.then_some(decision)
}

/// Returns true if a file of unknown bytes may get the metadata of an entry that it looks like. It may not if others gain by
/// that: names that the snapshot lacks would get the metadata too, and bytes of another owner the rights of the entry.
fn may_be_refreshed(trust: Trust, existing: &Metadata, entry: &Entry) -> bool {
    let has_other_names = 1 < existing.links && entry.link.is_none();
    let is_privileged = entry.mode & SET_ID != 0 || entry.xattrs.iter().any(|xattr| xattr.name == CAPABILITY);
    let same_owner = (existing.uid, existing.gid) == (entry.uid, entry.gid);
    !has_other_names && (same_owner || !is_privileged || trust == Trust::Untrusted)
}
