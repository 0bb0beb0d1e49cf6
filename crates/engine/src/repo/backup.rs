//! Backup as a program does it: the host's index brought up to date, one session, and a fresh one after a fence.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::backup::{self, BackupOptions, BackupReport};
use crate::bitmap::Bitmap;
use crate::check::{HeadsDir, read_commits_compared};
use crate::chunk::Chunking;
use crate::container::{ContainerReader, DirectoryChunk};
use crate::error::{Error, Result};
use crate::identify::{FilterState, Identifier, Index, IndexOptions, IndexPreset, IndexState, Unit};
use crate::io::tree::SourceTree;
use crate::kv::BucketReads;
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::pipeline::Driver;
use crate::repo::cache::Cache;
use crate::repo::preset::remember_preset;
use crate::repo::sessions::with_sessions;
use crate::repo::similar::{SimilarIndexes, choices};
use crate::snapshot::{Head, SessionKind};
use crate::store::container_set::Containers;
use crate::store::session::PUTS_MAX;
use crate::store::{Session, Store};
use crate::types::{Chunk, ContainerId};

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
    /// Newest snapshots that this host has seen and that are gone.
    pub lost_heads: Vec<Head>,
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
    pub(super) lost_heads: Vec<Head>,
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
    let IndexReport { state: index_state, degraded: index_degraded, filter, reads, lost_heads } = index;
    Ok(BackupOutcome { report, index_state, index_degraded, filter, reads, lost_heads })
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
    let lost_heads = compare_heads(store, &index_use);
    let degraded = degraded.or(closed.err().map(|error| error.to_string()));
    if let Some(reason) = &degraded {
        monitor.note(&format!("the index will be rebuilt next time: {reason}"));
    }
    Ok((value, IndexReport { state, degraded, filter, reads, lost_heads }))
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

fn compare_heads(store: &Store, index_use: &IndexUse<'_>) -> Vec<Head> {
    let Some(heads_dir) = index_use.heads else { return Vec::new() };
    let (lost, problems) = match read_commits_compared(store, heads_dir) {
        Ok(compared) => (compared.lost, compared.problems),
        Err(error) => (Vec::new(), vec![error]),
    };
    for problem in problems {
        let note = format!("the newest snapshots could not be compared with those seen before: {problem}");
        index_use.monitor.note(&note);
    }
    lost
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

/// Makes the index know every live container, reading the directories of those it misses; returns those that may be
/// referred to. A container whose directory cannot be read, or whose file has another length than it should have, is reported
/// and is not referred to by anything new, nor is one that depends on it. Their chunks are stored again where they turn up.
pub(crate) fn bring_up_to_date(
    store: &Store,
    index: &mut Index,
    session: &Session,
    monitor: &dyn Monitor,
) -> Result<Containers> {
    let live = &session.live;
    let missing = index.attach_numbered(live.iter().map(|(number, id)| (number.0, id)));
    let mut unreadable = find_cut(store, index, session, monitor)?;
    forget_dependents(store, index, session, &mut unreadable, monitor)?;
    let mut report = |name: &ContainerName, error: &Error| report_unreadable((store, session), name, error, monitor);
    unreadable.extend(make_durable(index, session, monitor, &mut report)?);
    let shared = take_shared(live, &missing, &unreadable, index)?;
    let to_read =
        live.retain(|number, id| missing.contains(number.0) && !shared.contains(number.0) && !unreadable.contains(&id));
    let listing = (&to_read, &session.listed);
    record_directories(store, index, listing, &mut unreadable, (monitor, &mut report))?;
    if unreadable.is_empty() {
        return Ok(live.clone());
    }
    index.forget(&unreadable.iter().copied().collect::<Vec<_>>())?;
    Ok(live.retain(|_, id| !unreadable.contains(&id)))
}

/// Finds the containers that depend on one that the index knew and that is lost or damaged, and forgets them. The index would answer for
/// their chunks, which cannot be read without their bases. Reads all directories, if there is such a container.
fn forget_dependents(
    store: &Store,
    index: &mut Index,
    session: &Session,
    unreadable: &mut BTreeSet<ContainerId>,
    monitor: &dyn Monitor,
) -> Result<()> {
    let mut vanished = index.vanished();
    vanished.retain(|id| !session.listed.contains(*id));
    if !vanished.is_empty() {
        // What a collection has deleted is not lost: nothing that stays depends on it.
        let absent = store.read_absent()?;
        vanished.retain(|id| !absent.containers.contains(*id) && !absent.is_undecided(*id));
    }
    if !vanished.is_empty() || !unreadable.is_empty() {
        let readable = session.live.retain(|_, id| !unreadable.contains(&id));
        let found = store.lacking_among(&readable, &session.listed, unreadable, &mut || go_on(session, monitor));
        let found = found.inspect_err(|_| {
            // The next session must not take the index for complete.
            let all: Vec<ContainerId> = readable.iter().map(|(_, id)| id).collect();
            let _in_memory = index.forget(&all);
        })?;
        index.forget(&found.iter().map(|(name, _)| name.id).collect::<Vec<_>>())?;
        for (name, error) in found {
            report_unreadable((store, session), &name, &error, monitor)?;
            unreadable.insert(name.id);
        }
    }
    index.settle_vanished();
    Ok(())
}

/// Shows a sign of life; fails if the session is to end.
fn go_on(session: &Session, monitor: &dyn Monitor) -> Result<()> {
    session.beat();
    if monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Reports a container that cannot be read. If a collection has fenced the session, that may be for what the collection has deleted: the
/// session begins again.
fn report_unreadable(
    (store, session): (&Store, &Session),
    name: &ContainerName,
    error: &Error,
    monitor: &dyn Monitor,
) -> Result<()> {
    if session.is_fenced() {
        return Err(Error::Fenced { session: session.id });
    }
    monitor.failure(Path::new(&store.display(name)), error);
    Ok(())
}

/// Takes a container that cannot be read, with the reason.
pub(super) type Unreadable<'a> = &'a mut dyn FnMut(&ContainerName, &Error) -> Result<()>;

/// Containers whose directories were read into an index.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Containers recorded.
    pub(super) containers: u64,
    /// Chunks recorded, those that several containers hold counted in each.
    pub(super) chunks: u64,
}

/// Makes the index know what the directories of durable containers list. Bases of their regions must be in containers that are `listed`
/// and not `unreadable`. Adds the containers that cannot be relied upon to these, and reports them; the index may know some of them,
/// and must forget them.
pub(super) fn record_directories(
    store: &Store,
    index: &mut Index,
    (containers, listed): (&Containers, &Containers),
    unreadable: &mut BTreeSet<ContainerId>,
    (monitor, report): (&dyn Monitor, Unreadable<'_>),
) -> Result<Recorded> {
    let interrupted = || if monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) };
    let (mut recorded, before) = (Recorded::default(), unreadable.len());
    for opened in store.open_containers(containers, containers.numbers()) {
        interrupted()?;
        let (name, opened) = opened?;
        let is_there = |id| listed.contains(id) && !unreadable.contains(&id);
        let opened = opened.and_then(|container| is_as_long_as_it_says(store, &name, container));
        match opened.and_then(|container| container.with_bases_in(&is_there)) {
            Ok(container) => {
                let chunks: Vec<Chunk> = container.directory.chunks.iter().filter_map(DirectoryChunk::chunk).collect();
                index.record(Unit { container: name.id, len: container.stored_len(), chunks: &chunks })?;
                recorded.containers += 1;
                recorded.chunks += chunks.len() as u64;
            }
            Err(error) => {
                report(&name, &error)?;
                unreadable.insert(name.id);
            }
        }
        monitor.advance(0, 1);
    }
    if before < unreadable.len() {
        // What was recorded before may depend on what was found unreadable after it.
        let readable = containers.retain(|_, id| !unreadable.contains(&id));
        for (name, error) in store.lacking_among(&readable, listed, unreadable, &mut || interrupted())? {
            report(&name, &error)?;
            unreadable.insert(name.id);
            let chunks = store.open_container(&name).map_or(0, |container| container.directory.chunks.len());
            recorded.containers = recorded.containers.saturating_sub(1);
            recorded.chunks = recorded.chunks.saturating_sub(chunks as u64);
        }
    }
    Ok(recorded)
}

/// Containers that a shared store is asked about in one call.
const SHARED_PER_CALL: usize = 2_048;

/// Takes the containers that other hosts have recorded in a store that this index shares with them. Returns their numbers.
fn take_shared(
    listed: &Containers,
    missing: &Bitmap,
    unreadable: &BTreeSet<ContainerId>,
    index: &mut Index,
) -> Result<Bitmap> {
    let mut shared = Bitmap::default();
    if !index.is_shared() {
        return Ok(shared);
    }
    let mut numbers = listed.numbers().filter(|number| missing.contains(number.0)).peekable();
    while numbers.peek().is_some() {
        let (mut asked, mut containers) = (Vec::new(), Vec::new());
        for number in numbers.by_ref().take(SHARED_PER_CALL) {
            let (name, len) = listed.sized(number)?;
            if !unreadable.contains(&name.id) {
                asked.push(number);
                containers.push((name.id, len));
            }
        }
        let taken = index.take_shared(&containers)?;
        asked.iter().zip(taken).filter(|(_, taken)| *taken).for_each(|(number, _)| shared.insert(number.0));
    }
    Ok(shared)
}

/// Makes the containers durable of sessions that have not ended and that the index does not know: it takes note of a container
/// only once that is durable. Reports and returns those that cannot be read.
fn make_durable(
    index: &Index,
    session: &Session,
    monitor: &dyn Monitor,
    report: Unreadable<'_>,
) -> Result<BTreeSet<ContainerId>> {
    let in_doubt = session.live.retain(|_, id| session.in_doubt.contains(&id.session) && !index.knows(id));
    let mut unreadable = BTreeSet::new();
    if in_doubt.is_empty() {
        return Ok(unreadable);
    }
    monitor.note(&format!("{} containers of interrupted backups are written again", in_doubt.len()));
    let mut names = in_doubt.names();
    loop {
        let batch: Vec<ContainerName> = names.by_ref().take(PUTS_MAX).collect::<Result<_>>()?;
        if batch.is_empty() {
            return Ok(unreadable);
        }
        for (name, error) in session.make_durable(&batch, &|| monitor.is_interrupted())? {
            report(&name, &error)?;
            unreadable.insert(name.id);
        }
    }
}

/// Reports and returns the containers whose files have another length than the index recorded. The index would answer for
/// their chunks without opening them.
fn find_cut(store: &Store, index: &Index, session: &Session, monitor: &dyn Monitor) -> Result<BTreeSet<ContainerId>> {
    let mut cut = BTreeSet::new();
    for number in session.live.numbers() {
        let (name, len) = session.live.sized(number)?;
        let Some(recorded) = index.stored_len(name.id).filter(|recorded| *recorded != len) else { continue };
        let object = store.display(name);
        monitor.failure(Path::new(&object), &wrong_length(&object, len, recorded));
        cut.insert(name.id);
    }
    Ok(cut)
}

/// Refuses a container that ends too early, as an interrupted copy of a repository leaves them: its directory would promise
/// chunks that are not there. What is there still is what a restore may take.
fn is_as_long_as_it_says(store: &Store, name: &ContainerName, container: ContainerReader) -> Result<ContainerReader> {
    let (len, wanted) = (store.container_len(name)?, container.stored_len());
    if len == wanted { Ok(container) } else { Err(wrong_length(&store.display(name), len, wanted)) }
}

fn wrong_length(object: &str, len: u64, wanted: u64) -> Error {
    Error::damaged(object, format!("is {len} bytes long instead of {wanted}"))
}
