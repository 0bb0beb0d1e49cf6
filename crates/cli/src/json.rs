//! JSON messages. Types and field names are those of restic 0.19, so that its readers read them too. Fields that only this
//! program has come last.

pub(crate) mod derive;
pub(crate) mod devices;
pub(crate) mod inspect;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod ledger;
pub(crate) mod list;
pub(crate) mod prune;
pub(crate) mod repair;
pub(crate) mod status;
pub(crate) mod why;

use std::collections::BTreeMap;
use std::path::Path;

use onefold_engine::backup::BackupReport;
use onefold_engine::check::{Finding, Severity};
use onefold_engine::identify::IndexState;
use onefold_engine::kv::BucketReads;
use onefold_engine::repo::{BackupOutcome, SnapshotId};
use onefold_engine::snapshot::{Snapshot, Summary};
use onefold_engine::types::{SessionId, Timestamp};
use serde::Serialize;

pub(crate) use devices::AcceleratorSummary;
pub(crate) use list::{GroupKey, LsNode, LsSnapshot, NodeFields, SnapshotGroup, SnapshotObject};

use crate::compat::{Dialect, RESTIC_VERSION, go_arch};
use crate::text;

/// Digits of the short form of an id.
pub(crate) const SHORT_ID_LEN: usize = 8;

/// Returns the short form of a snapshot's id.
pub(crate) fn short_id(session: SessionId) -> String {
    session.to_string().chars().take(SHORT_ID_LEN).collect()
}

/// `upgrade`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "upgraded")]
pub(crate) struct Upgraded {
    /// Version of the repository's format.
    pub(crate) version: u16,
    /// False if it had this version before.
    pub(crate) is_changed: bool,
}

/// `init`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "initialized")]
pub(crate) struct Initialized {
    pub(crate) id: String,
    pub(crate) repository: String,
}

/// The end of a restore.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct RestoreSummary {
    pub(crate) seconds_elapsed: u64,
    pub(crate) total_files: u64,
    pub(crate) files_restored: u64,
    pub(crate) files_skipped: u64,
    pub(crate) files_incomplete: u64,
    pub(crate) files_deleted: u64,
    pub(crate) total_bytes: u64,
    pub(crate) bytes_restored: u64,
    pub(crate) bytes_skipped: u64,
    pub(crate) dry_run: bool,
    pub(crate) files_verified: u64,
    pub(crate) regions_read: u64,
    pub(crate) directories_read: u64,
    pub(crate) chunks_recovered: u64,
    pub(crate) error_count: u64,
    pub(crate) owners_not_restored: u64,
    pub(crate) set_ids_not_restored: u64,
    pub(crate) modes_not_restored: u64,
    pub(crate) attributes_not_restored: u64,
    pub(crate) times_not_restored: u64,
    pub(crate) special_files_not_restored: u64,
    pub(crate) symlinks_not_restored: u64,
    pub(crate) hard_links_not_restored: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// Something that `check` has found.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "error")]
pub(crate) struct CheckFailure {
    message: String,
    object: String,
    severity: &'static str,
    advice: String,
    affected: Vec<CheckAffected>,
    affected_count: u64,
}

/// A file that the damage affects.
#[derive(Serialize)]
struct CheckAffected {
    snapshot: String,
    path: String,
}

impl CheckFailure {
    /// Takes the fields of a finding.
    pub(crate) fn of(finding: &Finding) -> Self {
        let affected = finding.affected.iter().map(|file| CheckAffected {
            snapshot: SnapshotId(file.snapshot).to_string(),
            path: file.path.to_string_lossy().into_owned(),
        });
        Self {
            message: format!("{}: {}", finding.object, finding.problem),
            object: finding.object.clone(),
            severity: match finding.severity {
                Severity::Damage => "damage",
                Severity::UnknownFile => "stray",
            },
            advice: finding.advice.clone(),
            affected: affected.collect(),
            affected_count: finding.affected_count,
        }
    }
}

/// The end of a check.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct CheckSummary {
    pub(crate) num_errors: usize,
    /// Names of restic's packs; ours are named by the errors. Restic writes null if there are none.
    pub(crate) broken_packs: Option<Vec<String>>,
    pub(crate) suggest_repair_index: bool,
    pub(crate) suggest_prune: bool,
    pub(crate) snapshots: u64,
    pub(crate) snapshots_total: u64,
    pub(crate) containers: u64,
    pub(crate) chunks: u64,
    pub(crate) chunks_read: u64,
    pub(crate) bytes_read: u64,
    pub(crate) leftovers: u64,
    /// Work of a device, if one was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) accelerator: Option<AcceleratorSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// Outcome of one file, with `-vv`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "verbose_status")]
pub(crate) struct VerboseStatus {
    pub(crate) action: &'static str,
    pub(crate) item: String,
    /// Seconds that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration: Option<f64>,
    /// Bytes of it that were new; of a scan, all bytes that it found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_size: Option<u64>,
    /// Files that a scan found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_files: Option<u64>,
    #[serde(flatten)]
    pub(crate) unknown: Option<UnknownSizes>,
}

/// Sizes of restic's messages that are not known of one file. Programs made for restic ask for them.
#[derive(Serialize, Default)]
pub(crate) struct UnknownSizes {
    data_size_in_repo: u64,
    metadata_size: u64,
    metadata_size_in_repo: u64,
}

/// Something that failed and did not end the command.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "error")]
pub(crate) struct Failure {
    pub(crate) error: FailureMessage,
    pub(crate) during: &'static str,
    pub(crate) item: String,
}

/// Its message.
#[derive(Serialize)]
pub(crate) struct FailureMessage {
    pub(crate) message: String,
}

impl Failure {
    /// Describes a failure.
    pub(crate) fn new(during: &'static str, item: &Path, message: String) -> Self {
        let item = item.to_string_lossy().into_owned();
        Self { error: FailureMessage { message }, during, item }
    }
}

/// Entries that a backup counted, by what became of them since the parent.
#[derive(Serialize)]
pub(crate) struct EntryCounts {
    backup_start: String,
    backup_end: String,
    files_new: u64,
    files_changed: u64,
    files_unmodified: u64,
    dirs_new: u64,
    dirs_changed: u64,
    dirs_unmodified: u64,
}

impl EntryCounts {
    /// Takes the counts of a backup between two times from its summary.
    pub(crate) fn of(summary: &Summary, start: Timestamp, end: Timestamp) -> Self {
        Self {
            backup_start: text::rfc3339(start),
            backup_end: text::rfc3339(end),
            files_new: summary.files_new,
            files_changed: summary.files_changed,
            files_unmodified: summary.files_unmodified,
            dirs_new: summary.dirs_new,
            dirs_changed: summary.dirs_changed,
            dirs_unmodified: summary.dirs_unmodified,
        }
    }
}

/// Counts of a backup, as they are stored with the snapshot.
#[derive(Serialize)]
pub(crate) struct SnapshotSummary {
    #[serde(flatten)]
    entries: EntryCounts,
    data_blobs: u64,
    tree_blobs: u64,
    data_added: u64,
    data_added_packed: u64,
    total_files_processed: u64,
    total_bytes_processed: u64,
}

impl SnapshotSummary {
    /// Takes the counts from a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let summary = &snapshot.summary;
        Self {
            entries: EntryCounts::of(summary, snapshot.time, summary.end),
            data_blobs: summary.data_chunks,
            tree_blobs: summary.metadata_chunks,
            data_added: summary.data_added,
            data_added_packed: summary.data_added_packed,
            total_files_processed: summary.files_processed,
            total_bytes_processed: summary.bytes_processed,
        }
    }
}

/// The end of a backup.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct BackupSummary {
    #[serde(flatten)]
    pub(crate) summary: SnapshotSummary,
    pub(crate) total_duration: f64,
    /// Left out if no snapshot was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_id: Option<String>,
    pub(crate) chunks_unique: u64,
    pub(crate) chunks_duplicate: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Work of a device, if one was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) accelerator: Option<AcceleratorSummary>,
    /// Counters of the index, with --verbose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<Index>,
}

impl BackupSummary {
    /// Describes the end of a backup.
    pub(crate) fn of(
        report: &BackupReport,
        (index, accelerator): (Option<Index>, Option<AcceleratorSummary>),
        total_duration: f64,
        peak_rss_bytes: Option<u64>,
    ) -> Self {
        Self {
            summary: SnapshotSummary::of(&report.snapshot),
            total_duration,
            snapshot_id: (!report.is_skipped).then(|| SnapshotId(report.session).to_string()),
            chunks_unique: report.chunks.data_unique,
            chunks_duplicate: report.chunks.data_duplicate,
            peak_rss_bytes,
            accelerator,
            index,
        }
    }
}

/// The end of a backup that was only tried out.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "summary")]
pub(crate) struct DryRunSummary {
    pub(crate) dry_run: bool,
    #[serde(flatten)]
    pub(crate) entries: EntryCounts,
    pub(crate) total_files_processed: u64,
    pub(crate) total_bytes_processed: u64,
    pub(crate) total_duration: f64,
    pub(crate) bytes_to_read: u64,
    pub(crate) data_blobs: u64,
    pub(crate) data_added: u64,
}

/// Counters of the index, and its state before and after.
#[derive(Serialize)]
pub(crate) struct Index {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rebuilt_because: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    filter_bytes: usize,
    filter_bytes_max: usize,
    filter_fill: f64,
    /// Method by which lookups read the table: `pages`, `buckets`, or `by_device`.
    lookups_by: &'static str,
    #[serde(flatten)]
    counters: BTreeMap<&'static str, u64>,
    /// The counters for each GB of the source, including unchanged files that were not read.
    per_gigabyte: BTreeMap<&'static str, f64>,
}

impl Index {
    /// Takes all counters.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn of(outcome: &BackupOutcome) -> Self {
        let (state, rebuilt_because) = match &outcome.index_state {
            IndexState::New => ("new", None),
            IndexState::Clean => ("clean", None),
            IndexState::Unclean => ("unclean", None),
            IndexState::Incomplete(parts) => ("incomplete", Some(text::count(*parts as u64, "damaged part"))),
            IndexState::Rebuilt(reason) => ("rebuilt", Some(reason.clone())),
        };
        let counters: BTreeMap<_, _> = outcome.report.counters.named().into_iter().collect();
        let gigabytes = outcome.report.snapshot.summary.bytes_processed as f64 / 1e9;
        let per_gigabyte = counters.iter().filter(|_| 0.0 < gigabytes);
        Self {
            state,
            rebuilt_because,
            degraded: outcome.index_degraded.clone(),
            filter_bytes: outcome.filter.bytes,
            filter_bytes_max: outcome.filter.bytes_max,
            filter_fill: outcome.filter.fill,
            lookups_by: match outcome.reads {
                BucketReads::Pages => "pages",
                BucketReads::Whole => "buckets",
                BucketReads::Entire => "entire_buckets",
                BucketReads::ByDevice(_) => "by_device",
            },
            per_gigabyte: per_gigabyte.map(|(name, count)| (*name, *count as f64 / gigabytes)).collect(),
            counters,
        }
    }
}

/// A key slot as `key list` lists it. The names are empty if its label does not open.
#[derive(Serialize)]
pub(crate) struct KeyObject {
    pub(crate) current: bool,
    pub(crate) id: String,
    #[serde(rename = "userName")]
    pub(crate) user_name: String,
    #[serde(rename = "hostName")]
    pub(crate) host_name: String,
    pub(crate) created: String,
}

/// `version`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "version")]
pub(crate) struct Version {
    #[serde(rename = "version")]
    number: &'static str,
    /// Compiler of restic; here, the program that stands in for restic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "go_version")]
    built_with: Option<&'static str>,
    go_os: &'static str,
    go_arch: &'static str,
    os: &'static str,
    arch: &'static str,
}

impl Version {
    /// Returns the version: that of restic if programs run this one instead.
    pub(crate) fn of(dialect: Dialect, program: &'static str) -> Self {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let (number, built_with) = match dialect {
            Dialect::Onefold => (env!("CARGO_PKG_VERSION"), None),
            Dialect::Restic => (RESTIC_VERSION, Some(program)),
        };
        Self { number, built_with, go_os: os, go_arch: go_arch(), os, arch }
    }
}
