//! JSON messages of `prune`.

use onefold_engine::collect::{PruneState, UnendedSession};
use serde::Serialize;

use crate::text;

/// The end of `prune`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct PruneSummary {
    pub(crate) dry_run: bool,
    pub(crate) quick: bool,
    pub(crate) snapshots: u64,
    pub(crate) containers: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) unused_bytes: u64,
    pub(crate) planned_removed_containers: u64,
    pub(crate) planned_removed_bytes: u64,
    pub(crate) planned_copied_containers: u64,
    pub(crate) planned_refreshed_containers: u64,
    pub(crate) planned_copied_bytes: u64,
    pub(crate) planned_freed_bytes: u64,
    pub(crate) planned_left_unused_bytes: u64,
    pub(crate) planned_apart_containers: u64,
    pub(crate) planned_grown_bytes: u64,
    pub(crate) bases_containers: u64,
    pub(crate) bases_bytes: u64,
    pub(crate) deleted_containers: u64,
    pub(crate) deleted_bytes: u64,
    pub(crate) quarantined_now_containers: u64,
    pub(crate) quarantined_now_bytes: u64,
    pub(crate) quarantined_containers: u64,
    pub(crate) quarantined_bytes: u64,
    pub(crate) rescued_containers: u64,
    pub(crate) rescued_chunks: u64,
    pub(crate) written_containers: u64,
    pub(crate) written_bytes: u64,
    pub(crate) copied_regions_bytes: u64,
    pub(crate) written_regions_bytes: u64,
    pub(crate) recompressed_regions: u64,
    pub(crate) moved_containers: u64,
    pub(crate) moved_anywhere_containers: u64,
    pub(crate) fenced: Vec<String>,
    pub(crate) lacks_space: bool,
    pub(crate) waiting_for: Vec<WaitedSession>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept_seconds: Option<u64>,
    pub(crate) leftovers_removed: u64,
    pub(crate) unfinished_backups: u64,
    pub(crate) unfinished_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// A session that a prune waits for.
#[derive(Serialize)]
pub(crate) struct WaitedSession {
    session: String,
    hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_seconds: Option<u64>,
}

impl WaitedSession {
    /// Returns the sessions that a collection waits for in a state.
    pub(crate) fn of_state(state: &PruneState) -> Vec<Self> {
        if let PruneState::Waiting(sessions) = state { sessions.iter().map(Self::of).collect() } else { Vec::new() }
    }

    /// Takes the fields of a session.
    fn of(session: &UnendedSession) -> Self {
        Self {
            session: session.id.to_string(),
            hostname: session.hostname.clone(),
            began: session.began.map(text::rfc3339),
            silent_seconds: session.silent.map(|silent| silent.as_secs()),
        }
    }
}
