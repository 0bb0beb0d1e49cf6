//! What becomes of an entry: one decision, which a restore carries out and a dry run only reports.

use crate::io::tree::{EntryKind, Metadata, Trust};
use crate::restore::run::Overwrite;
use crate::tree::Entry;

/// What becomes of an entry that is no directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// What stands there is left as it is.
    Keep,
    /// What stands there has the bytes of the snapshot, as far as size and time show. It only gets its metadata.
    Refresh,
    /// The entry is not restored, for this reason.
    Refuse(&'static str),
    /// Nothing stands there: the entry is made.
    Create,
    /// What stands there, of this kind, makes way for the entry.
    Replace(EntryKind),
}

/// Decides about an entry from what stands at its path.
pub(super) fn decide(overwrite: Overwrite, trust: Trust, standing: Option<&Metadata>, entry: &Entry) -> Decision {
    if let Some(kept) = standing.and_then(|standing| keeps(overwrite, standing, entry)) {
        return kept;
    }
    let is_device = matches!(entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    if is_device && trust == Trust::Untrusted {
        return Decision::Refuse("a device is not restored from an untrusted repository");
    }
    standing.map_or(Decision::Create, |standing| Decision::Replace(standing.kind))
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

/// Returns how what stands in the target stays, if it does.
fn keeps(overwrite: Overwrite, standing: &Metadata, entry: &Entry) -> Option<Decision> {
    let both_files = standing.kind == EntryKind::File && entry.kind == EntryKind::File;
    let (is_kept, decision) = match overwrite {
        Overwrite::Refuse | Overwrite::Always => (false, Decision::Keep),
        Overwrite::Never => (true, Decision::Keep),
        // A directory that is newer, too: making way for a file would take everything in it along.
        Overwrite::IfNewer => {
            let is_candidate = both_files || standing.kind == EntryKind::Directory;
            (is_candidate && entry.mtime <= standing.mtime, Decision::Keep)
        }
        Overwrite::IfChanged => (both_files && looks_like(standing, entry), Decision::Refresh),
    };
    is_kept.then_some(decision)
}
