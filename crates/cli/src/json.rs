//! JSON messages. Types and field names are those of restic 0.19, so that its readers read them too. Fields that only this
//! program has come last.

pub(crate) mod derive;
pub(crate) mod inspect;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod ledger;
pub(crate) mod list;
mod object;
pub(crate) mod prune;
pub(crate) mod repair;
pub(crate) mod status;
pub(crate) mod why;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use onefold_engine::accelerator::AcceleratorUsage;
use onefold_engine::backup::DryRun;
use onefold_engine::check::{CheckReport, Finding, Severity};
use onefold_engine::identify::IndexState;
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::io::tree::Omission;
use onefold_engine::kv::BucketReads;
use onefold_engine::repo::{BackupOutcome, SnapshotId};
use onefold_engine::restore::RestoreReport;
use onefold_engine::snapshot::{Snapshot, Summary};
use onefold_engine::types::{SessionId, Timestamp};

pub(crate) use list::GroupKey;
pub(crate) use object::{Object, Value, fields, object};

use crate::compat::{Dialect, RESTIC_VERSION, go_arch};
use crate::text;

/// Digits of the short form of an id.
pub(crate) const SHORT_ID_LEN: usize = 8;

/// Returns the short form of a snapshot's id.
pub(crate) fn short_id(session: SessionId) -> String {
    session.to_string().chars().take(SHORT_ID_LEN).collect()
}

/// Work of a device, in the summary of a command.
pub(crate) fn accelerator(AcceleratorUsage { name, batches, bytes, faults }: AcceleratorUsage) -> Object {
    object! { name, batches, bytes, faults, }
}

/// The end of a restore.
pub(crate) fn restored(report: &RestoreReport, deleted: u64, dry_run: bool, elapsed: Duration) -> Object {
    let files_restored = report.files + report.directories + report.others;
    let omitted = |kind| report.omissions.count(kind);
    object! {
        message_type: "summary",
        seconds_elapsed: elapsed.as_secs(),
        total_files: files_restored + report.files_skipped + report.files_incomplete,
        files_restored,
        report { files_skipped, files_incomplete },
        files_deleted: deleted,
        total_bytes: report.bytes + report.bytes_skipped,
        bytes_restored: report.bytes,
        report { bytes_skipped },
        dry_run,
        report { files_verified, regions_read, directories_read, chunks_recovered },
        error_count: report.failures,
        owners_not_restored: omitted(Omission::Owner),
        set_ids_not_restored: omitted(Omission::SetIds),
        modes_not_restored: omitted(Omission::Mode),
        attributes_not_restored: omitted(Omission::Attribute),
        times_not_restored: omitted(Omission::Time),
        special_files_not_restored: omitted(Omission::Special),
        symlinks_not_restored: omitted(Omission::Symlink),
        hard_links_not_restored: omitted(Omission::HardLink),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// Something that `check` has found.
pub(crate) fn finding(finding: &Finding) -> Object {
    let affected = finding.affected.iter().map(|file| {
        object! { snapshot: SnapshotId(file.snapshot), path: &*file.path, }
    });
    object! {
        message_type: "error",
        message: format!("{}: {}", finding.object, finding.problem),
        object: &*finding.object,
        severity: match finding.severity {
            Severity::Damage => "damage",
            Severity::UnknownFile => "stray",
        },
        advice: &*finding.advice,
        affected: affected.collect::<Vec<_>>(),
        finding { affected_count },
    }
}

/// The end of a check.
pub(crate) fn checked(report: &CheckReport, usage: Option<AcceleratorUsage>, num_errors: usize) -> Object {
    object! {
        message_type: "summary",
        num_errors,
        // Names of restic's packs; ours are named by the errors. Restic writes null if there are none.
        broken_packs: Value::Null(()),
        suggest_repair_index: false,
        suggest_prune: false,
        report { snapshots, snapshots_total, containers, chunks, chunks_read, bytes_read, leftovers },
        accelerator?: usage.map(accelerator),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// Outcome of one file, with `-vv`: the seconds that it took, and its bytes that were new; of a scan, all bytes and files that
/// it found. Programs made for restic ask for sizes that are not known of one file.
pub(crate) fn outcome(
    action: &'static str,
    item: &Path,
    (duration, data_size, total_files): (Option<f64>, Option<u64>, Option<u64>),
    follows_restic: bool,
) -> Object {
    let mut outcome = object! {
        message_type: "verbose_status", action, item, duration?: duration, data_size?: data_size, total_files?: total_files,
    };
    if follows_restic {
        outcome.extend(object! { data_size_in_repo: 0_u64, metadata_size: 0_u64, metadata_size_in_repo: 0_u64, });
    }
    outcome
}

/// Something that failed and did not end the command.
pub(crate) fn failure(during: &'static str, item: &Path, message: String) -> Object {
    object! { message_type: "error", error: object! { message, }, during, item, }
}

/// Entries that a backup between two times counted, by what became of them since the parent.
fn entries(summary: &Summary, start: Timestamp, end: Timestamp) -> Object {
    object! {
        backup_start: start,
        backup_end: end,
        summary { files_new, files_changed, files_unmodified, dirs_new, dirs_changed, dirs_unmodified },
    }
}

/// Counts of a backup, as they are stored with the snapshot.
fn counts(snapshot: &Snapshot) -> Object {
    let summary = &snapshot.summary;
    object! {
        ..entries(summary, snapshot.time, summary.end),
        data_blobs: summary.data_chunks,
        tree_blobs: summary.metadata_chunks,
        summary { data_added, data_added_packed },
        chunks_rewritten?: snapshot.rewritten.map(|rewritten| rewritten.chunks),
        bytes_rewritten?: snapshot.rewritten.map(|rewritten| rewritten.bytes),
        total_files_processed: summary.files_processed,
        total_bytes_processed: summary.bytes_processed,
    }
}

/// The end of a backup, with the counters of the index if they are asked for.
pub(crate) fn backed_up(
    outcome: &BackupOutcome,
    usage: Option<AcceleratorUsage>,
    elapsed: Duration,
    with_index: bool,
) -> Object {
    let report = &outcome.report;
    object! {
        message_type: "summary",
        ..counts(&report.snapshot),
        total_duration: elapsed.as_secs_f64(),
        // Left out if no snapshot was made.
        snapshot_id?: (!report.is_skipped).then_some(SnapshotId(report.session)),
        chunks_unique: report.chunks.data_unique,
        chunks_duplicate: report.chunks.data_duplicate,
        peak_rss_bytes?: process_peak_rss_bytes(),
        accelerator?: usage.map(accelerator),
        index?: with_index.then(|| index(outcome)),
    }
}

/// The end of a backup that was only tried out.
pub(crate) fn tried_out(found: &DryRun, (start, end): (Timestamp, Timestamp), elapsed: Duration) -> Object {
    let summary = &found.summary;
    object! {
        message_type: "summary",
        dry_run: true,
        ..entries(summary, start, end),
        total_files_processed: summary.files_processed,
        total_bytes_processed: summary.bytes_processed,
        total_duration: elapsed.as_secs_f64(),
        found { bytes_to_read },
        data_blobs: summary.data_chunks,
        summary { data_added },
    }
}

/// Counters of the index, its state before and after, and the method by which lookups read the table.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn index(outcome: &BackupOutcome) -> Object {
    let (state, rebuilt_because) = match &outcome.index_state {
        IndexState::New => ("new", None),
        IndexState::Clean => ("clean", None),
        IndexState::Unclean => ("unclean", None),
        IndexState::Incomplete(parts) => ("incomplete", Some(text::count(*parts as u64, "damaged part"))),
        IndexState::Rebuilt(reason) => ("rebuilt", Some(reason.clone())),
    };
    let counters: BTreeMap<_, _> = outcome.report.counters.named().into_iter().collect();
    // Unchanged files that were not read included.
    let gigabytes = outcome.report.snapshot.summary.bytes_processed as f64 / 1e9;
    let per_gigabyte = counters.iter().filter(|_| 0.0 < gigabytes);
    let per_gigabyte: Object = per_gigabyte.map(|(name, count)| (*name, *count as f64 / gigabytes)).collect();
    object! {
        state,
        rebuilt_because?: rebuilt_because,
        degraded?: outcome.index_degraded.as_deref(),
        filter_bytes: outcome.filter.bytes,
        filter_bytes_max: outcome.filter.bytes_max,
        filter_fill: outcome.filter.fill,
        lookups_by: match outcome.reads {
            BucketReads::Pages => "pages",
            BucketReads::Whole => "buckets",
            BucketReads::Entire => "entire_buckets",
            BucketReads::ByDevice(_) => "by_device",
        },
        ..counters.into_iter().collect(),
        per_gigabyte,
    }
}

/// `version`: that of restic if programs run this one instead. For restic's compiler stands the program that it is.
pub(crate) fn version(dialect: Dialect, program: &'static str) -> Object {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let (version, built_with) = match dialect {
        Dialect::Onefold => (env!("CARGO_PKG_VERSION"), None),
        Dialect::Restic => (RESTIC_VERSION, Some(program)),
    };
    object! {
        message_type: "version", version, go_version?: built_with, go_os: os, go_arch: go_arch(), os, arch,
    }
}
