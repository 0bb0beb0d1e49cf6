//! The message of `lab report`.

use serde::Serialize;

/// `lab report`.
#[derive(Serialize)]
pub(crate) struct ReportWritten {
    message_type: &'static str,
    pub(crate) experiments: usize,
    pub(crate) plots: usize,
    pub(crate) bytes: u64,
}

impl ReportWritten {
    /// Tells what is in a page of so many bytes.
    pub(crate) fn new(experiments: usize, plots: usize, bytes: usize) -> Self {
        Self { message_type: "report_written", experiments, plots, bytes: bytes as u64 }
    }
}
