//! Messages that say how far a command is.

use serde::Serialize;

/// Why a command waits.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "waiting")]
pub(crate) struct Waiting {
    pub(crate) message: String,
}

/// How far a backup is.
#[derive(Serialize, Default)]
#[serde(tag = "message_type", rename = "status")]
pub(crate) struct Status {
    pub(crate) seconds_elapsed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_remaining: Option<u64>,
    pub(crate) percent_done: f64,
    pub(crate) total_files: u64,
    pub(crate) files_done: u64,
    pub(crate) total_bytes: u64,
    pub(crate) bytes_done: u64,
    pub(crate) error_count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) current_files: Vec<String>,
}

/// How far a restore is.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "status")]
pub(crate) struct RestoreStatus {
    pub(crate) seconds_elapsed: u64,
    pub(crate) percent_done: f64,
    pub(crate) total_files: u64,
    pub(crate) files_restored: u64,
    pub(crate) total_bytes: u64,
    pub(crate) bytes_restored: u64,
}

impl RestoreStatus {
    /// Tells the same in restore's words.
    pub(crate) fn of(status: &Status) -> Self {
        Self {
            seconds_elapsed: status.seconds_elapsed,
            percent_done: status.percent_done,
            total_files: status.total_files,
            files_restored: status.files_done,
            total_bytes: status.total_bytes,
            bytes_restored: status.bytes_done,
        }
    }
}
