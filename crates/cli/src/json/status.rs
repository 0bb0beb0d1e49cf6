//! Messages on the progress of a command.

use serde::Serialize;

use crate::json::{Object, object};

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

impl Status {
    /// Returns the progress with the field names of a restore.
    pub(crate) fn of_restore(&self) -> Object {
        object! {
            message_type: "status",
            self { seconds_elapsed, percent_done, total_files },
            files_restored: self.files_done,
            self { total_bytes },
            bytes_restored: self.bytes_done,
        }
    }
}
