//! Messages of the laboratory's commands on traces.

use onefold_lab::trace::describe::{Counts, TraceSummary, VersionSummary};
use serde::Serialize;

/// `lab describe`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "trace_described")]
pub(crate) struct TraceDescribed<'a> {
    description: String,
    #[serde(flatten)]
    sum: Counts,
    versions: &'a [VersionSummary],
    duplicate_runs: u64,
    /// Lowest value of a class, values in it.
    lags: Vec<(u64, u64)>,
    run_lengths: Vec<(u64, u64)>,
}

impl<'a> TraceDescribed<'a> {
    /// Takes all fields of the description.
    pub(crate) fn of(description: String, summary: &'a TraceSummary) -> Self {
        Self {
            description,
            sum: summary.sum(),
            versions: &summary.versions,
            duplicate_runs: summary.run_count,
            lags: summary.lags.classes().collect(),
            run_lengths: summary.runs.classes().collect(),
        }
    }
}
