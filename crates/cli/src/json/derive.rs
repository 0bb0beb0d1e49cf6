//! JSON messages of `recover`, `tag` and `rewrite`.

use onefold_engine::repo::{Derived, SnapshotId};
use onefold_engine::types::SessionId;

use crate::json::{Object, object};

/// A snapshot that was changed by making another one, as restic's `tag` reports it. A dry run makes no new one.
pub(crate) fn changed(old: SessionId, new: Option<SessionId>) -> Object {
    object! {
        message_type: "changed", old_snapshot_id: SnapshotId(old), new_snapshot_id?: new.map(SnapshotId),
    }
}

/// A forgotten snapshot that `recover` was to make again. `None` if there is no new one.
pub(crate) fn recovered(forgotten: SessionId, derived: &Derived) -> Option<Object> {
    let (snapshot, existed) = match derived {
        Derived::Made(new, _) => (*new, false),
        Derived::Exists(same) => (*same, true),
        Derived::Unmodified | Derived::Lost { .. } => return None,
    };
    Some(object! {
        message_type: "recovered",
        forgotten_snapshot_id: SnapshotId(forgotten),
        snapshot_id: SnapshotId(snapshot),
        existed,
    })
}
