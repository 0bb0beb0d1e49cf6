//! Backup as a program does it: the host's index brought up to date, one session, and a fresh one after a fence.

use std::sync::Arc;

use crate::backup::{self, BackupOptions, BackupReport};
use crate::check::{ComparedHeads, HeadsDir, read_commits_compared};
use crate::chunk::Chunking;
use crate::error::Result;
use crate::identify::{FilterState, Index, IndexOptions, IndexPreset, IndexState};
use crate::io::tree::SourceTree;
use crate::kv::BucketReads;
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::repo::cache::Cache;
use crate::repo::learning::bring_up_to_date;
use crate::repo::preset::remember_preset;
use crate::repo::sessions::with_sessions;
use crate::repo::similar::{SimilarIndexes, choices};
use crate::snapshot::SessionKind;
use crate::store::{Session, Store};

/// Everything that a backup needs besides the repository.
#[derive(Debug)]
pub struct BackupRequest<'a> {
    /// Directory of the index.
    pub cache: &'a Cache,
    /// Options of the index.
    pub index: IndexOptions,
    /// Source.
    pub source: Arc<dyn SourceTree>,
    /// Options of the backup.
    pub options: BackupOptions,
    /// Driver of the work queues.
    pub driver: Driver,
    /// Receiver of progress reports.
    pub monitor: Arc<dyn Monitor>,
    /// Directory in which this host remembers the newest snapshots; `None`: it does not.
    pub heads: Option<HeadsDir>,
}

/// Outcome of a backup.
#[derive(Debug)]
pub struct BackupOutcome {
    /// Its report.
    pub report: BackupReport,
    /// In what state the index was found.
    pub index_state: IndexState,
    /// Error that makes the next backup rebuild the index.
    pub index_degraded: Option<String>,
    /// Size and load of its filter.
    pub filter: FilterState,
    /// Access of lookups to its table.
    pub reads: BucketReads,
    /// Comparison with the newest snapshots that this host has seen.
    pub heads: ComparedHeads,
}

/// An index for one operation, and who hears about it.
#[derive(Clone, Copy)]
pub(super) struct IndexUse<'a> {
    /// Its directory.
    pub(super) cache: &'a Cache,
    /// Its options. The filter takes less than they allow in a small repository.
    pub(super) index: &'a IndexOptions,
    /// Its preset, which the host remembers.
    pub(super) preset: IndexPreset,
    /// Memory of the chunks whose verdict is pending.
    pub(super) pending_bytes: usize,
    /// Directory in which this host remembers the newest snapshots; `None`: it does not.
    pub(super) heads: Option<&'a HeadsDir>,
    /// Receiver of notes.
    pub(super) monitor: &'a dyn Monitor,
}

/// State of an index before and after an operation.
pub(super) struct IndexReport {
    pub(super) state: IndexState,
    pub(super) degraded: Option<String>,
    pub(super) filter: FilterState,
    pub(super) reads: BucketReads,
    pub(super) heads: ComparedHeads,
}

/// Backs up.
pub fn backup(store: &Store, request: &BackupRequest<'_>) -> Result<BackupOutcome> {
    let index_use = IndexUse {
        cache: request.cache,
        index: &request.index,
        preset: request.options.preset,
        pending_bytes: request.options.budget.pending_bytes,
        heads: request.heads.as_ref(),
        monitor: &*request.monitor,
    };
    let (report, index) = with_index(store, index_use, |index| {
        let mut similar = SimilarIndexes::open(store, request.cache, &request.options);
        let report = with_sessions(&*request.monitor, || backup_once(store, request, index, &mut similar));
        // Under the lock of the index. What became durable is kept even if the session failed.
        if let Some(similar) = similar {
            similar.close(&*request.monitor);
        }
        report
    })?;
    let IndexReport { state: index_state, degraded: index_degraded, filter, reads, heads } = index;
    Ok(BackupOutcome { report, index_state, index_degraded, filter, reads, heads })
}

/// Opens the index of this host, works with it, and closes it.
pub(super) fn with_index<T>(
    store: &Store,
    index_use: IndexUse<'_>,
    work: impl FnOnce(&mut Index) -> Result<T>,
) -> Result<(T, IndexReport)> {
    let IndexUse { cache, monitor, .. } = index_use;
    for name in store.objects.complete()? {
        let path = store.display(name);
        monitor.note(&format!("{path} was missing and is made again; `onefold check` reports what was lost with it"));
    }
    let (mut index, state) = open_index(store, &index_use)?;
    if let Err(error) = remember_preset(&*cache.disk, &*store.host, &cache.dir, index_use.preset) {
        monitor.note(&format!("the preset of the index could not be remembered: {error}"));
    }
    match &state {
        IndexState::Rebuilt(reason) => monitor.note(&format!("the index is rebuilt: {reason}")),
        IndexState::Incomplete(parts) => {
            let parts = if *parts == 1 { "a damaged part".to_owned() } else { format!("{parts} damaged parts") };
            monitor.note(&format!("rebuilding {parts} of the index"));
        }
        IndexState::New | IndexState::Clean | IndexState::Unclean => {}
    }
    let result = work(&mut index);
    let degraded = index.degraded();
    let (filter, reads) = (index.filter_state(), index.reads());
    if filter.is_too_small() {
        monitor.note(&too_small(&filter));
    }
    // The index last (step D6): it is a hint, and what it misses costs time, never data. What was recorded is kept even
    // if the session failed.
    let closed = index.close();
    let value = result?;
    // Last, and no reason to fail: later commands compare the log with it.
    let heads = compare_heads(store, &index_use);
    let degraded = degraded.or(closed.err().map(|error| error.to_string()));
    if let Some(reason) = &degraded {
        monitor.note(&format!("the index will be rebuilt next time: {reason}"));
    }
    Ok((value, IndexReport { state, degraded, filter, reads, heads }))
}

fn open_index(store: &Store, index_use: &IndexUse<'_>) -> Result<(Index, IndexState)> {
    let repository = store.config.repository;
    let options = IndexOptions {
        filter_bytes: fitting_filter(store, index_use.index.filter_bytes_max)?,
        pending_bytes_max: index_use.pending_bytes,
        ..index_use.index.clone()
    };
    let Cache { disk, dir } = index_use.cache;
    match Index::open(Arc::clone(disk), Arc::clone(&store.host), &dir.join("index"), repository, &options) {
        // A full disk or a missing permission costs the index, not the operation.
        Err(error) if error.io_kind().is_some() => {
            let index = Index::without_disk(Arc::clone(&store.host), repository, &options, error.to_string())?;
            Ok((index, IndexState::New))
        }
        opened => opened,
    }
}

fn compare_heads(store: &Store, index_use: &IndexUse<'_>) -> ComparedHeads {
    let Some(heads_dir) = index_use.heads else { return ComparedHeads::default() };
    let (heads, problems) = match read_commits_compared(store, heads_dir) {
        Ok(compared) => (compared.heads, compared.problems),
        Err(error) => (ComparedHeads::default(), vec![error]),
    };
    for problem in problems {
        let note = format!("the newest snapshots could not be compared with those seen before: {problem}");
        index_use.monitor.note(&note);
    }
    heads
}

/// Bytes of the filter that are always worth having: enough for 3 million chunks at ten bits each.
const FILTER_BYTES_MIN: usize = 4 << 20;

/// Sizes the filter for twice the chunks that the repository holds, within its share of the memory: a filter is read and
/// written whole with every backup. Sizes are powers of two, so that it is seldom resized.
pub(super) fn fitting_filter(store: &Store, share: usize) -> Result<usize> {
    let containers = store.count_containers()?;
    let chunk_bytes = match store.config.chunking {
        Chunking::Gear(sizes) => sizes.min + sizes.target,
        Chunking::Fixed { bytes } => bytes,
    };
    // Compression packs about twice as much into a container as it is long.
    let chunks = containers.saturating_mul(2 * store.config.container_bytes as usize) / chunk_bytes.max(1) as usize;
    let bytes = (2 * chunks).saturating_mul(10) / 8;
    Ok(bytes.max(FILTER_BYTES_MIN).checked_next_power_of_two().unwrap_or(usize::MAX).min(share))
}

fn too_small(filter: &FilterState) -> String {
    let mebibytes = filter.bytes >> 20;
    format!(
        "the filter of the index, {mebibytes} MiB, is too small for the number of chunks: more of --memory would make \
         backups faster"
    )
}

fn backup_once(
    store: &Store,
    request: &BackupRequest<'_>,
    index: &mut Index,
    similar: &mut Option<SimilarIndexes<'_>>,
) -> Result<BackupReport> {
    let options = &request.options;
    let mut session = Session::begin(store, &options.scratch, SessionKind::Backup, &options.hostname)?;
    session.live = match bring_up_to_date(store, index, &session, &*request.monitor) {
        Ok(live) => live,
        Err(error) => return Err(session.abandon(error)),
    };
    let begun = similar.as_mut().map(|similar| similar.begin(&session.live, &request.driver, &*request.monitor));
    let bases = match begun.transpose() {
        Ok(bases) => bases,
        Err(error) => return Err(session.abandon(error)),
    };
    let options = &BackupOptions { bases: options.bases.clone().or(choices(bases.as_ref())), ..options.clone() };
    let session = Arc::new(session);
    let result = backup::backup(store, &session, &request.source, options, &request.driver, index, &request.monitor);
    if let (Some(similar), Some(bases)) = (similar, bases) {
        similar.end(&bases);
    }
    match result {
        Ok(report) if report.is_skipped => {
            // A session that cannot be ended is fenced by a collection later.
            let _ended = session.end();
            Ok(report)
        }
        Ok(report) => Ok(report),
        Err(error) => Err(session.abandon(error)),
    }
}
