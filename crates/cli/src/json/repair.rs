//! JSON messages of `repair`.

use std::path::Path;

use onefold_engine::monitor::Loss;
use onefold_engine::repo::RebuiltIndex;
use serde::Serialize;

use crate::json::prune::WaitedSession;

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

/// A small object that was mended.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "mended")]
pub(crate) struct MendedObject<'a> {
    pub(crate) object: &'a str,
    pub(crate) how: &'a str,
    pub(crate) dry_run: bool,
}

/// Losses of a snapshot at a path. The message of its snapshot follows.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "lost")]
pub(crate) struct LostPath {
    path: String,
    loss: &'static str,
    /// Of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl LostPath {
    /// Describes a loss.
    pub(crate) fn of(path: &Path, loss: Loss) -> Self {
        let (loss, lost_bytes, size) = match loss {
            Loss::Directory => ("directory", None, None),
            Loss::Entries => ("entries", None, None),
            Loss::Bytes { lost, len } => ("bytes", Some(lost), Some(len)),
        };
        Self { path: path.to_string_lossy().into_owned(), loss, lost_bytes, size }
    }
}

/// The end of `repair containers`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct RepairContainersSummary {
    pub(crate) dry_run: bool,
    /// Ids of damaged containers.
    pub(crate) damaged: Vec<String>,
    /// Ids of containers that cannot be read for another reason.
    pub(crate) unreadable: Vec<String>,
    pub(crate) quarantined_now_containers: u64,
    pub(crate) quarantined_now_bytes: u64,
    pub(crate) quarantined_containers: u64,
    pub(crate) quarantined_bytes: u64,
    pub(crate) removed_containers: u64,
    pub(crate) removed_bytes: u64,
    pub(crate) salvaged_chunks: u64,
    pub(crate) salvaged_bytes: u64,
    pub(crate) rescued_containers: u64,
    pub(crate) rescued_chunks: u64,
    pub(crate) written_containers: u64,
    pub(crate) written_bytes: u64,
    pub(crate) waiting_for: Vec<WaitedSession>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}
