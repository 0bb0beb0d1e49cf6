//! JSON messages on what snapshots hold.

use onefold_engine::collect::WhatIf;
use onefold_engine::collect::ledger::Held;
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::types::SessionId;
use serde::Serialize;

use crate::json::short_id;
use crate::text;

/// Chunks and what they take.
#[derive(Default, Serialize)]
pub(crate) struct HeldObject {
    pub(crate) chunks: u64,
    pub(crate) uncompressed_size: u64,
    pub(crate) size: u64,
}

impl HeldObject {
    /// Takes the counts.
    pub(crate) fn of(held: &Held) -> Self {
        Self { chunks: held.chunks, uncompressed_size: held.plain_bytes, size: held.stored_bytes }
    }
}

/// `stats --mode exclusive`.
#[derive(Default, Serialize)]
pub(crate) struct Exclusive {
    pub(crate) snapshots_count: usize,
    /// Without names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshots: Option<Vec<ExclusiveSnapshot>>,
    /// With names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<HeldObject>,
    pub(crate) shared: HeldObject,
    /// With names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) others: Option<HeldObject>,
    pub(crate) unneeded: HeldObject,
}

/// What only one snapshot holds.
#[derive(Serialize)]
pub(crate) struct ExclusiveSnapshot {
    id: String,
    pub(crate) short_id: String,
    time: String,
    #[serde(skip)]
    pub(crate) local_time: String,
    #[serde(flatten)]
    pub(crate) held: HeldObject,
}

impl ExclusiveSnapshot {
    /// Takes the counts of a snapshot.
    pub(crate) fn of(session: SessionId, snapshot: &Snapshot, held: &Held) -> Self {
        Self {
            id: SnapshotId(session).to_string(),
            short_id: short_id(session),
            time: text::rfc3339(snapshot.time),
            local_time: text::local_time(snapshot.time),
            held: HeldObject::of(held),
        }
    }
}

/// The end of `forget --what-if`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "what_if")]
pub(crate) struct WhatIfSummary {
    forgotten: u64,
    kept: u64,
    only: HeldObject,
    freed_bytes: i64,
    deleted_containers: u64,
    deleted_bytes: u64,
    written_containers: u64,
    written_bytes: u64,
    decided_containers: u64,
    decided_bytes: u64,
    left_unused_bytes: u64,
    bases_containers: u64,
    bases_bytes: u64,
    is_cut: bool,
}

impl WhatIfSummary {
    /// Takes the counts.
    pub(crate) fn of(found: &WhatIf) -> Self {
        Self {
            forgotten: found.forgotten,
            kept: found.kept,
            only: HeldObject::of(&found.held.only),
            freed_bytes: found.freed_bytes(),
            deleted_containers: found.deleted_containers,
            deleted_bytes: found.deleted_bytes,
            written_containers: found.written_containers,
            written_bytes: found.written_bytes,
            decided_containers: found.decided_containers,
            decided_bytes: found.decided_bytes,
            left_unused_bytes: found.plan.left_unused_bytes,
            bases_containers: found.plan.bases_containers,
            bases_bytes: found.plan.bases_bytes,
            is_cut: found.plan.is_cut,
        }
    }
}
