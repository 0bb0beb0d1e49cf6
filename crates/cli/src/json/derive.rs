//! JSON messages of `recover`, `tag` and `rewrite`.

use onefold_engine::repo::{Derived, SnapshotId};
use onefold_engine::types::SessionId;
use serde::Serialize;

/// A snapshot that was changed by making another one, as restic's `tag` reports it.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "changed")]
pub(crate) struct ChangedSnapshot {
    old_snapshot_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_snapshot_id: Option<String>,
}

impl ChangedSnapshot {
    /// Names the snapshots; a dry run makes no new one.
    pub(crate) fn of(old: SessionId, new: Option<SessionId>) -> Self {
        let text = |id| SnapshotId(id).to_string();
        Self { old_snapshot_id: text(old), new_snapshot_id: new.map(text) }
    }
}

/// The end of `tag` or `rewrite`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct ChangedSummary {
    pub(crate) changed_snapshots: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// A forgotten snapshot that `recover` was to make again.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "recovered")]
pub(crate) struct RecoveredSnapshot {
    forgotten_snapshot_id: String,
    snapshot_id: String,
    existed: bool,
}

impl RecoveredSnapshot {
    /// Names the snapshots; `None` if there is no new one.
    pub(crate) fn of(forgotten: SessionId, derived: &Derived) -> Option<Self> {
        let (snapshot, existed) = match derived {
            Derived::Made(new, _) => (*new, false),
            Derived::Exists(same) => (*same, true),
            Derived::Unmodified | Derived::Lost { .. } => return None,
        };
        let text = |id| SnapshotId(id).to_string();
        Some(Self { forgotten_snapshot_id: text(forgotten), snapshot_id: text(snapshot), existed })
    }
}

/// The end of `recover`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct RecoverSummary {
    pub(crate) recovered_snapshots: u64,
    pub(crate) lost_snapshots: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}
