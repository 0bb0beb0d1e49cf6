//! Messages of the laboratory's commands on traces.

use onefold_lab::trace::block::Totals;
use onefold_lab::trace::describe::{Histogram, TraceSummary, VersionSummary};
use serde::Serialize;

/// `lab synth`, `lab import`, `lab record`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "trace_written")]
pub(crate) struct TraceWritten {
    streams: u64,
    chunks: u64,
    bytes: u64,
    peak_rss_bytes: Option<u64>,
}

impl TraceWritten {
    /// Reports the totals of a trace, and the peak memory of the process.
    pub(crate) fn of(Totals { streams, chunks, bytes }: Totals, peak_rss_bytes: Option<u64>) -> Self {
        Self { streams, chunks, bytes, peak_rss_bytes }
    }
}

/// `lab describe`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "trace_described")]
pub(crate) struct TraceDescribed {
    description: String,
    #[serde(flatten)]
    sum: Version,
    versions: Vec<NumberedVersion>,
    duplicate_runs: u64,
    /// Lowest value of a class, values in it.
    lags: Vec<(u64, u64)>,
    run_lengths: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct NumberedVersion {
    version: u32,
    #[serde(flatten)]
    counts: Version,
}

#[derive(Serialize)]
struct Version {
    streams: u64,
    chunks: u64,
    bytes: u64,
    duplicate_chunks: u64,
    duplicate_bytes: u64,
}

impl From<&VersionSummary> for Version {
    fn from(summary: &VersionSummary) -> Self {
        let VersionSummary { totals: Totals { streams, chunks, bytes }, duplicate_chunks, duplicate_bytes, .. } =
            *summary;
        Self { streams, chunks, bytes, duplicate_chunks, duplicate_bytes }
    }
}

impl TraceDescribed {
    /// Takes all fields of the description.
    pub(crate) fn of(description: String, summary: &TraceSummary) -> Self {
        let classes = |histogram: &Histogram| histogram.classes().collect();
        let numbered = |version: &VersionSummary| NumberedVersion { version: version.version, counts: version.into() };
        Self {
            description,
            sum: (&summary.sum()).into(),
            versions: summary.versions.iter().map(numbered).collect(),
            duplicate_runs: summary.run_count,
            lags: classes(&summary.lags),
            run_lengths: classes(&summary.runs),
        }
    }
}
