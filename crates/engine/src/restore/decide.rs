//! What becomes of an entry: one decision, which a restore carries out and a dry run only reports.

use crate::io::tree::{EntryKind, Metadata, Trust};
use crate::restore::policy::Overwrite;
use crate::tree::Entry;

/// Bits of a mode that run a program with the rights of its owner or group.
const SET_ID: u32 = 0o6000;
/// Attribute that gives a program rights of its own.
const CAPABILITY: &str = "security.capability";

/// What becomes of an entry that is no directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// What stands there is left as it is.
    Keep,
    /// What stands there has the bytes of the snapshot, as far as size and time show. It only gets its metadata.
    Refresh,
    /// The entry is a device of an untrusted repository, and not restored.
    Refuse,
    /// Nothing stands there: the entry is made.
    Create,
    /// What stands there, of this kind, makes way for the entry.
    Replace(EntryKind),
}

/// Decides about an entry from what stands at its path.
pub(super) fn decide(overwrite: Overwrite, trust: Trust, standing: Option<&Metadata>, entry: &Entry) -> Decision {
    if let Some(kept) = standing.and_then(|standing| keeps(overwrite, trust, standing, entry)) {
        return kept;
    }
    let is_device = matches!(entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    if is_device && trust == Trust::Untrusted {
        return Decision::Refuse;
    }
    standing.map_or(Decision::Create, |standing| Decision::Replace(standing.kind))
}

/// Returns true if what stands where the snapshot has a directory is left as it is, so that nothing in the directory can be
/// restored.
pub(super) fn keeps_directory_out(overwrite: Overwrite, standing: &Metadata, directory: &Entry) -> bool {
    let is_kept = match overwrite {
        Overwrite::Refuse | Overwrite::Always | Overwrite::IfChanged => false,
        Overwrite::IfNewer => directory.mtime <= standing.mtime,
        Overwrite::Never => true,
    };
    is_kept && standing.kind != EntryKind::Directory
}

/// Returns true if what stands in the target can be taken for an entry that is no directory: kind, size, time and, of a
/// device, its number are equal.
pub(super) fn looks_like(standing: &Metadata, entry: &Entry) -> bool {
    let is_device = matches!(entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    standing.kind == entry.kind
        && standing.size == entry.size()
        && standing.mtime == entry.mtime
        && (!is_device || standing.rdev == entry.metadata().rdev)
}

/// Returns true if names of the snapshot may become links to what stands and looks like their entry. Of a file that stays as it
/// is, another user might be the owner, who could then change what the names hold.
pub(super) fn may_be_linked_to(decision: Decision, standing: &Metadata, entry: &Entry, user: u32) -> bool {
    looks_like(standing, entry) && (decision == Decision::Refresh || [entry.uid, user].contains(&standing.uid))
}

/// Returns how what stands in the target stays, if it does.
fn keeps(overwrite: Overwrite, trust: Trust, standing: &Metadata, entry: &Entry) -> Option<Decision> {
    let both_files = standing.kind == EntryKind::File && entry.kind == EntryKind::File;
    let (is_kept, decision) = match overwrite {
        Overwrite::Refuse | Overwrite::Always => (false, Decision::Keep),
        Overwrite::Never => (true, Decision::Keep),
        // Whatever kinds they are.
        Overwrite::IfNewer => (entry.mtime <= standing.mtime, Decision::Keep),
        Overwrite::IfChanged => {
            let is_equal = both_files && looks_like(standing, entry);
            (is_equal && may_be_refreshed(trust, standing, entry), Decision::Refresh)
        }
    };
    is_kept.then_some(decision)
}

/// Returns true if a file of unknown bytes may get the metadata of an entry that it looks like. It may not where others gain
/// by that: names that the snapshot does not have would get it too, and bytes of another owner the rights of the entry.
fn may_be_refreshed(trust: Trust, standing: &Metadata, entry: &Entry) -> bool {
    let has_other_names = 1 < standing.links && entry.link.is_none();
    let is_privileged = entry.mode & SET_ID != 0 || entry.xattrs.iter().any(|xattr| xattr.name == CAPABILITY);
    let same_owner = (standing.uid, standing.gid) == (entry.uid, entry.gid);
    !has_other_names && (same_owner || !is_privileged || trust == Trust::Untrusted)
}
