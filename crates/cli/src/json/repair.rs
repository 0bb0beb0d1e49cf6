//! JSON messages of `repair`.

use onefold_engine::repo::RebuiltIndex;
use serde::Serialize;

/// The end of `repair index`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct RepairIndexSummary {
    containers: u64,
    chunks: u64,
    containers_unreadable: u64,
    containers_in_doubt: u64,
}

impl RepairIndexSummary {
    /// Takes the counts of a rebuilt index.
    pub(crate) fn of(rebuilt: &RebuiltIndex) -> Self {
        Self {
            containers: rebuilt.containers,
            chunks: rebuilt.chunks,
            containers_unreadable: rebuilt.unreadable,
            containers_in_doubt: rebuilt.in_doubt,
        }
    }
}
