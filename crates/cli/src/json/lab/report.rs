//! The message of `lab report`.

use serde::Serialize;

/// `lab report`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "report_written")]
pub(crate) struct ReportWritten {
    pub(crate) experiments: usize,
    pub(crate) plots: usize,
    pub(crate) bytes: u64,
}
