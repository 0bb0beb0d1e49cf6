//! Messages on the progress of a command.

use serde::Serialize;

/// Reason why a command waits.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "waiting")]
pub(crate) struct Waiting {
    pub(crate) message: String,
}

/// Progress of a backup.
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

/// Progress of a restore.
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
    /// Converts the progress to the field names of a restore.
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
