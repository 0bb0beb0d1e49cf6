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

impl ReportWritten {
    /// Counts the contents of a page of this many bytes.
    pub(crate) fn new(experiments: usize, plots: usize, bytes: usize) -> Self {
        Self { experiments, plots, bytes: bytes as u64 }
    }
}
