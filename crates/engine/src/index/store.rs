//! The index's directory: what is in it, which state of it counts, and what happens when it fails.
//!
//! | file | holds |
//! |---|---|
//! | `lock` | nothing; its lock says that a writer is at work |
//! | `checkpoint` | the state that counts; see [`crate::index::checkpoint`] |
//! | `unclean` | nothing; stands there while the state on disk is being gone on from |
//! | `containers` | the registry; see [`crate::index::registry`] |
//! | `log` | the arrival log; see [`crate::index::log`] |
//! | `table` | pages of the bucket table; see [`crate::kv::page`] |
//! | `duplicate_runs.N` | what was repeated of the log; see [`crate::index::duplicate_runs`]; the checkpoint says which of the two |
//! | `device` | what the device was measured to do; see `device.rs` |
//! | `manifest.N`, `staged.N`, `filter.N` | rest of table and filter at the checkpoint of generation N modulo 2 |
//!
//! The index is disposable. Whatever does not hold together is thrown away as a whole, and the caller enters all live
//! containers again. While it runs, it fails by forgetting: after the first error of a write nothing is written any
//! more, lookups go on, and the next opening falls back to the last checkpoint. What it never does is to answer with a
//! container that does not hold the chunk.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::background::BackgroundLookup;
use crate::index::checkpoint::{Checkpoint, encode_checkpoint};
use crate::index::duplicate_runs::DuplicateRunLog;
use crate::index::location::IndexLocation;
use crate::index::log::{ArrivalLog, LogExtent, LogReadDone, LogRecord, LogWindow};
use crate::index::maintenance::{BackgroundFlush, disjoint, grown_bytes_min};
use crate::index::options::IndexOptions;
use crate::index::registry::Registry;
use crate::index::{Counters, Unit};
use crate::io::absent::{AbsentDisk, AbsentFile};
use crate::io::background::Background;
use crate::io::{Access, Disk, DiskFile, Host};
use crate::kv::filter::Filter;
use crate::kv::sealed::{Seal, SealedWriter};
use crate::kv::table::{BucketReads, Lookup, Table};
use crate::kv::{Entry, Key, Ordinal, Position};
use crate::types::{ContainerId, RepositoryId};

/// A position that the log never reaches: entries that were made after the log failed prefetch nothing.
pub(super) const NO_POSITION: Position = Position(u64::MAX);

/// Chunks whose places in memory are asked for together before they are entered: one by one, ahead of each, they take
/// longer to find.
const PREFETCH_CHUNKS: usize = 64;

/// How large the filter is and how full.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FilterState {
    /// Its memory in bytes.
    pub bytes: usize,
    /// The most that it may take.
    pub bytes_max: usize,
    /// Share of its bits that are set, 0 to 1; well above one half it lets too much pass.
    pub fill: f64,
}

impl FilterState {
    /// Says whether the filter is fuller than it should be and may not grow.
    pub fn is_too_small(&self) -> bool {
        0.6 < self.fill && self.bytes_max < grown_bytes_min(self.bytes)
    }
}

/// In which state an index was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexState {
    /// There was none.
    New,
    /// As it was closed.
    Clean,
    /// As it was at the last checkpoint of a run that did not end well.
    Unclean,
    /// As it was closed, but so many parts of its table had been damaged: what they held is to be recorded again.
    Incomplete(usize),
    /// Empty again, and why.
    Rebuilt(String),
}

/// The open index on disk.
#[derive(Debug)]
pub struct Store {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) host: Arc<dyn Host>,
    pub(super) dir: PathBuf,
    /// Held for its lock.
    pub(super) _lock: Arc<dyn DiskFile>,
    pub(super) repository: RepositoryId,
    pub(super) generation: u64,
    pub(super) registry: Registry,
    pub(super) log: ArrivalLog,
    pub(super) duplicate_runs: DuplicateRunLog,
    pub(super) duplicate_runs_file: u8,
    pub(super) duplicate_run_bytes_per_chunk: u32,
    pub(super) duplicate_run_pages_min: u64,
    pub(super) table: Table,
    pub(super) filter: Filter,
    pub(super) filter_bytes_max: usize,
    /// What the filter takes, or will when all its segments have grown as one of them has.
    pub(super) filter_reserved: usize,
    pub(super) flush_running: Option<BackgroundFlush>,
    pub(super) lookup_running: Option<BackgroundLookup>,
    /// Windows of the log that are being read beside.
    pub(super) reading: Option<Background<LogReadDone>>,
    /// Pages of the log that are being written beside.
    pub(super) writing_log: Option<Background<Result<()>>>,
    /// Segment of the filter that is looked at next.
    pub(super) next_segment: usize,
    /// How many entries must have been entered before the next segment is looked at.
    pub(super) next_growth: u64,
    pub(super) filter_growths: u64,
    pub(super) duplicate_runs_noted: u64,
    pub(super) flush_wait_nanos: u64,
    /// Whether the checkpoint is behind, or the marker says so.
    pub(super) changed: bool,
    pub(super) marked: bool,
    pub(super) degraded: Option<String>,
    /// Parts of the table whose entries are missing and are being recorded again, and those found since that began.
    pub(super) incomplete: Vec<RangeInclusive<u64>>,
    pub(super) found_incomplete: Vec<RangeInclusive<u64>>,
    /// Whether the live containers are known: before, all seem to be gone.
    pub(super) is_attached: bool,
    /// Covered containers that are still to be recorded again for these parts.
    pub(super) to_complete: usize,
    pub(super) updates: u64,
}

impl Store {
    /// Returns the memory that the filter may take and has not reserved: others may use it until then.
    pub fn filter_left(&self) -> usize {
        self.filter_bytes_max.saturating_sub(self.filter_reserved)
    }

    /// Opens the index in `dir`, creating the directory's last component where it is missing.
    ///
    /// Fails with [`Error::IndexBusy`] if another writer holds it, and where nothing can be written or read for a reason
    /// that passes (a full disk, missing permissions). An index that is
    /// missing, damaged, another repository's or of another version is started anew; the state says why.
    pub fn open(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<(Self, IndexState)> {
        if let Some(parent) = dir.parent() {
            disk.create_dir(dir)?;
            disk.sync_dir(parent)?;
        }
        let lock_path = dir.join("lock");
        let lock = open_or_create(&*disk, &lock_path)?;
        if !lock.try_lock()? {
            return Err(Error::IndexBusy { path: PathBuf::from(disk.display(&lock_path)) });
        }
        let location = IndexLocation { disk, host, dir, repository, options };
        let why_not = match location.load(&lock) {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => IndexState::New,
            Err(error) if is_passing(&error) => return Err(error),
            Err(error) => IndexState::Rebuilt(error.to_string()),
        };
        Ok((location.start(lock)?, why_not))
    }

    /// Makes an index that is in memory only, as far as its staging goes, and degraded for that reason from the start.
    pub fn without_disk(
        host: Arc<dyn Host>,
        repository: RepositoryId,
        options: &IndexOptions,
        reason: String,
    ) -> Result<Self> {
        let location = IndexLocation { disk: Arc::new(AbsentDisk), host, dir: Path::new(""), repository, options };
        let mut store = location.make(Arc::new(AbsentFile), &|_| Ok(Arc::new(AbsentFile)))?;
        store.degraded = Some(reason);
        Ok(store)
    }

    /// Takes the containers that exist, sorted; returns those whose chunks are not all entered: to be recorded.
    pub fn attach(&mut self, live: &[ContainerId]) -> Vec<ContainerId> {
        let missing = self.registry.attach(live);
        self.is_attached = true;
        self.incomplete = disjoint([&self.incomplete[..], &self.found_incomplete].concat());
        self.found_incomplete.clear();
        if self.incomplete.is_empty() {
            return missing;
        }
        self.to_complete = live.len() - missing.len();
        live.to_vec()
    }

    /// Notes that a container is gone.
    pub fn mark_dead(&mut self, container: ContainerId) {
        self.registry.mark_dead(container);
    }

    /// Returns why the index does not write any more.
    pub fn degraded(&self) -> Option<String> {
        let damaged = || {
            let buckets = self.table.damaged_buckets().len();
            (buckets != 0).then(|| format!("{buckets} damaged buckets of the fingerprint table"))
        };
        self.degraded.clone().or_else(damaged)
    }

    /// Returns how large the filter is and how full.
    pub fn filter_state(&self) -> FilterState {
        FilterState { bytes: self.filter.bytes(), bytes_max: self.filter_bytes_max, fill: self.filter.fill() }
    }

    /// Returns how lookups read the table.
    pub fn reads(&self) -> BucketReads {
        self.table.reads()
    }

    /// Returns the filter.
    pub fn filter(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// Returns true if the container was recorded: it was durable then.
    pub fn knows(&self, container: ContainerId) -> bool {
        self.registry.ordinal(container).is_some()
    }

    /// Returns how long the container's file was when it was recorded, where that is known.
    pub fn stored_len(&self, container: ContainerId) -> Option<u64> {
        self.registry.len_of(container)
    }

    /// Returns the container of an ordinal if it is live.
    pub fn live_container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        self.registry.live_container(ordinal)
    }

    /// Looks keys up; `out` gets one answer per key, in live containers only.
    pub fn lookup(&mut self, keys: &[Key], out: &mut Vec<Lookup>) {
        self.table.lookup(&*self.disk, keys, &|ordinal| self.registry.is_live(ordinal), out);
    }

    /// Reads windows of the log.
    pub fn read_log(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        self.log.read(&*self.disk, windows)
    }

    /// Returns what streams repeated when the log had reached the places in some windows, and how many pages were read.
    pub fn duplicate_runs_in(&mut self, windows: &[LogWindow]) -> (Vec<LogWindow>, usize) {
        let mut found = Vec::new();
        let pages = self.duplicate_runs.read(&*self.disk, windows, &mut found);
        (found, pages)
    }

    /// Fills in what table and log have counted.
    pub fn count(&self, counters: &mut Counters) {
        let (table, log) = (self.table.counters(), self.log.counters());
        let (duplicate_runs_read, duplicate_runs_written) = self.duplicate_runs.bytes_read_and_written();
        counters.pages_read = table.lookup_pages;
        counters.bytes_read = table.bytes_read + log.bytes_read + duplicate_runs_read;
        counters.bytes_written = table.bytes_written + log.bytes_written + duplicate_runs_written;
        counters.prefetches = log.reads;
        counters.damaged_pages = table.damaged_pages + log.damaged_pages + self.duplicate_runs.damaged_pages();
        counters.updates = self.updates;
        counters.runs_merged = table.runs_merged;
        counters.buckets_changed = table.buckets_split + table.buckets_joined;
        counters.duplicate_runs = self.duplicate_runs_noted;
        counters.compactions = self.duplicate_runs.compactions();
        counters.filter_growths = self.filter_growths;
        counters.flush_wait_nanos = self.flush_wait_nanos;
    }

    /// Enters the chunks of a container that is durable. A failure to write degrades the index and is no error.
    pub fn record(&mut self, unit: &Unit<'_>) {
        let outcome = match self.degraded {
            Some(_) => return self.record_in_memory(unit),
            None => self.record_on_disk(unit),
        };
        if let Err(error) = outcome {
            self.degraded = Some(error.to_string());
            self.record_in_memory(unit);
        }
    }

    fn record_on_disk(&mut self, unit: &Unit<'_>) -> Result<()> {
        self.mark_unclean()?;
        let ordinal = self.registry.register(unit.container, unit.len)?;
        if self.to_complete != 0 && self.registry.is_covered(ordinal) {
            return self.complete(unit, ordinal);
        }
        self.registry.mark_live(ordinal);
        for piece in unit.chunks.chunks(PREFETCH_CHUNKS) {
            for key in piece.iter().map(|chunk| Key::from(&chunk.fingerprint)) {
                self.table.prefetch(&key);
                self.filter.prefetch(&key);
            }
            for chunk in piece {
                if !self.log.has_space() || !self.table.has_space() {
                    self.make_space()?;
                }
                let record = LogRecord { fingerprint: chunk.fingerprint, ordinal, len: chunk.len };
                let position = self.log.append(record);
                self.enter(Key::from(&chunk.fingerprint), ordinal, position);
            }
        }
        self.registry.cover(ordinal);
        self.keep_flushing()?;
        self.grow_filter()?;
        if self.checkpoint_is_due() { self.checkpoint() } else { Ok(()) }
    }

    /// Enters what fits into memory: nothing of it will reach the disk.
    fn record_in_memory(&mut self, unit: &Unit<'_>) {
        let Some(ordinal) = self.registry.register_in_memory(unit.container, unit.len) else { return };
        self.registry.mark_live(ordinal);
        for chunk in unit.chunks {
            if !self.table.has_space() {
                return;
            }
            self.enter(Key::from(&chunk.fingerprint), ordinal, NO_POSITION);
        }
    }

    pub(super) fn enter(&mut self, key: Key, ordinal: Ordinal, position: Position) {
        self.table.insert(&Entry { key, ordinal, position });
        self.filter.test_and_set(&key);
        self.updates += 1;
    }

    /// Says on disk that the checkpoint is behind, before anything else is written but repeats: these follow what the
    /// checkpoint knows of, and are cut off without a next one.
    fn mark_unclean(&mut self) -> Result<()> {
        if !self.marked {
            open_or_create(&*self.disk, &self.dir.join("unclean"))?;
            self.disk.sync_dir(&self.dir)?;
            self.marked = true;
        }
        self.changed = true;
        Ok(())
    }

    /// Makes everything recorded durable, as the state to fall back to. A failure degrades the index and is no error.
    pub fn save(&mut self) {
        if self.degraded.is_some() || !self.changed {
            return;
        }
        if let Err(error) = self.mark_unclean().and_then(|()| self.checkpoint()) {
            self.degraded = Some(error.to_string());
        }
    }

    /// Makes everything recorded durable, as the state to fall back to. After an error the index must not write.
    fn checkpoint(&mut self) -> Result<()> {
        self.finish_flush()?;
        self.finish_log_write()?;
        self.rewrite_damaged()?;
        let mut checkpoint = self.describe();
        self.registry.sync()?;
        self.log.sync()?;
        let duplicate_run_pages_max = self.duplicate_run_pages_max();
        if duplicate_run_pages_max < self.duplicate_runs.pages() {
            // Into the file that the last checkpoint does not name.
            let other = 1 - self.duplicate_runs_file;
            let path = self.dir.join(duplicate_runs_name(other));
            self.duplicate_runs.compact(open_or_create(&*self.disk, &path)?, duplicate_run_pages_max / 2)?;
            self.duplicate_runs_file = other;
        }
        self.duplicate_runs.sync()?;
        let create = |name: &str| {
            let path = self.dir.join(slot_name(name, checkpoint.generation));
            SealedWriter::create(open_or_create(&*self.disk, &path)?)
        };
        let (mut manifest, mut staged, mut filter) = (create("manifest")?, create("staged")?, create("filter")?);
        self.table.save(checkpoint.generation, &mut manifest, &mut staged)?;
        self.filter.save(checkpoint.generation, &mut filter)?;
        checkpoint.log_pages = self.log.written_pages();
        checkpoint.duplicate_runs_file = self.duplicate_runs_file;
        checkpoint.duplicate_run_pages = self.duplicate_runs.pages();
        (checkpoint.manifest, checkpoint.staged, checkpoint.filter) =
            (manifest.finish()?, staged.finish()?, filter.finish()?);
        self.replace_checkpoint(&checkpoint)?;
        self.generation = checkpoint.generation;
        self.table.saved();
        Ok(())
    }

    fn describe(&self) -> Checkpoint {
        Checkpoint {
            repository: self.repository,
            generation: self.generation + 1,
            registered: self.registry.count(),
            registry_digest: self.registry.digest(),
            log_pages: 0,
            duplicate_runs_file: 0,
            duplicate_run_pages: 0,
            manifest: Seal::empty(),
            staged: Seal::empty(),
            filter: Seal::empty(),
            incomplete: self.incomplete_now(),
            covered: self.registry.covered().clone(),
        }
    }

    fn replace_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        let [new, path] = ["checkpoint.new", "checkpoint"].map(|name| self.dir.join(name));
        let file = open_or_create(&*self.disk, &new)?;
        file.set_len(0)?;
        file.write_at(0, &encode_checkpoint(checkpoint))?;
        file.sync()?;
        // The names of everything it refers to before its own: a new name must not be durable alone.
        self.disk.sync_dir(&self.dir)?;
        self.disk.rename(&new, &path)?;
        self.disk.sync_dir(&self.dir)
    }

    /// Closes the index with a checkpoint, which also says what of the table was found damaged: that is recorded again
    /// after the next opening. One that is degraded keeps its last checkpoint.
    pub fn close(mut self) -> Result<()> {
        let damaged = !self.table.damaged_buckets().is_empty();
        if self.degraded.is_some() || !(self.changed || damaged) {
            return Ok(());
        }
        self.mark_unclean()?;
        self.checkpoint()?;
        let marker = self.dir.join("unclean");
        if self.disk.exists(&marker)? {
            self.disk.remove(&marker)?;
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // What goes on beside writes into the table: the lock must not be given up before.
        if let Some(flush_running) = self.flush_running.take() {
            let _ = flush_running.wait();
        }
        let _ = self.finish_log_write();
    }
}

/// Says whether an error has nothing to do with the index: it must not cost it.
fn is_passing(error: &Error) -> bool {
    let passing = [
        ErrorKind::PermissionDenied,
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::OutOfMemory,
        ErrorKind::Interrupted,
        ErrorKind::TimedOut,
        ErrorKind::ResourceBusy,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::StaleNetworkFileHandle,
        ErrorKind::NetworkDown,
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
    ];
    error.io_kind().is_some_and(|kind| passing.contains(&kind))
}

pub(super) fn slot_name(name: &str, generation: u64) -> String {
    format!("{name}.{}", generation % 2)
}

pub(super) fn duplicate_runs_name(number: u8) -> String {
    format!("repeats.{number}")
}

pub(super) fn open_or_create(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    if disk.exists(path)? {
        return disk.open(path, Access::ReadWrite);
    }
    match disk.create(path) {
        // Another writer that is starting was faster: the lock will tell the two apart.
        Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => disk.open(path, Access::ReadWrite),
        created => created,
    }
}
