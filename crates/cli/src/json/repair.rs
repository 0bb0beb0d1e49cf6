//! JSON messages of `repair`.

use std::path::Path;

use onefold_engine::monitor::Loss;
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
