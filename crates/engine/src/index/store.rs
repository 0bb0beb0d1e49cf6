//! The parts of an open index, recorded together and saved together.
//!
//! | file | holds |
//! |---|---|
//! | `lock` | nothing; its lock shows that a writer runs |
//! | `checkpoint` | the state that counts; see [`crate::index::checkpoint`] |
//! | `unclean` | nothing; exists while the checkpoint may be out of date |
//! | `containers` | the registry; see [`crate::index::registry`] |
//! | `log` | the arrival log; see [`crate::index::log`] |
//! | `table` | pages of the bucket table; see [`crate::kv::page`] |
//! | `repeats.N` | the duplicate-run log; see [`crate::index::duplicate_runs`]; the checkpoint names one of two |
//! | `device` | the measured profile of the device; see `device.rs` |
//! | `manifest.N`, `staged.N`, `filter.N` | rest of table and filter at the checkpoint of generation N modulo 2 |
//!
//! The index is disposable. An index that is inconsistent is discarded as a whole, and the caller records all live
//! containers again. After the first write error the index is degraded: it writes nothing more, lookups continue, and the
//! next opening falls back to the last checkpoint. An answer never names a container that does not hold the chunk.

use crate::error::Result;
use crate::index::arrivals::DuplicateRun;
use crate::index::background::{BackgroundLog, BackgroundTable};
use crate::index::checkpoint::Checkpoint;
use crate::index::directory::IndexDirectory;
use crate::index::duplicate_runs::DuplicateRuns;
use crate::index::growing_filter::GrowingFilter;
use crate::index::incomplete::Incomplete;
use crate::index::log::{LogExtent, LogRecord, LogWindow};
use crate::index::registry::Registry;
use crate::index::{Counters, Unit};
use crate::kv::{Entry, Key, Lookup, Ordinal, Position, Seal};
use crate::types::ContainerId;

/// A position that the log never reaches: entries made after the log failed prefetch nothing.
const NO_POSITION: Position = Position(u64::MAX);

/// Chunks whose cache lines in memory are loaded together before they are entered: loading them one by one, ahead of each,
/// takes longer.
const PREFETCH_CHUNKS: usize = 64;

/// Bytes of replaced runs, in use only by the last checkpoint, that justify a new checkpoint however small the table is.
const RETIRED_BYTES_MIN: u64 = 256 << 20;

/// The open index.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) registry: Registry,
    pub(super) table: BackgroundTable,
    pub(super) log: BackgroundLog,
    pub(super) duplicate_runs: DuplicateRuns,
    pub(super) filter: GrowingFilter,
    pub(super) incomplete: Incomplete,
    /// Whether the live containers are known; before that, none is.
    pub(super) is_attached: bool,
    /// Why the index writes nothing more.
    pub(super) degraded: Option<String>,
    /// Entries entered since the opening.
    pub(super) entries: u64,
    /// Holds the lock, so it is dropped last: after the jobs of table and log have ended.
    pub(super) directory: IndexDirectory,
}

impl Store {
    /// Takes the containers that exist, sorted; returns those whose chunks are not all entered: to be recorded.
    pub(super) fn attach(&mut self, live: &[ContainerId]) -> Vec<ContainerId> {
        let missing = self.registry.attach(live);
        self.is_attached = true;
        if self.incomplete.begin(live.len() - missing.len()) { live.to_vec() } else { missing }
    }

    /// Returns why the index writes nothing more, or that its table is damaged.
    pub(super) fn degraded(&self) -> Option<String> {
        let damaged = || {
            let buckets = self.table.table().damaged_buckets().len();
            (buckets != 0).then(|| format!("{buckets} damaged buckets of the fingerprint table"))
        };
        self.degraded.clone().or_else(damaged)
    }

    /// Looks keys up; `out` gets one answer per key, in live containers only.
    pub(super) fn lookup(&mut self, keys: &[Key], out: &mut Vec<Lookup>) {
        self.table.lookup(keys, &self.registry, out);
    }

    /// Starts to look keys up in the background. One lookup at a time.
    pub(super) fn start_lookup(&mut self, keys: Vec<Key>) {
        self.table.start_lookup(keys, &self.registry);
    }

    /// Reads windows of the log.
    pub(super) fn read_log(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        self.log.read(windows)
    }

    /// Returns the runs that streams repeated when the log had reached some windows, and how many pages were read.
    pub(super) fn duplicate_runs_in(&mut self, windows: &[LogWindow]) -> (Vec<LogWindow>, usize) {
        self.duplicate_runs.read(&**self.directory.disk(), windows)
    }

    /// Fills in the counters of the parts.
    pub(super) fn count(&self, counters: &mut Counters) {
        let (table, log) = (self.table.table().counters(), self.log.log().counters());
        let runs = self.duplicate_runs.log();
        let (runs_read, runs_written) = runs.bytes_read_and_written();
        counters.pages_read = table.lookup_pages;
        counters.bytes_read = table.bytes_read + log.bytes_read + runs_read;
        counters.bytes_written = table.bytes_written + log.bytes_written + runs_written;
        counters.prefetches = log.reads;
        counters.damaged_pages = table.damaged_pages + log.damaged_pages + runs.damaged_pages();
        counters.updates = self.entries;
        counters.runs_merged = table.runs_merged;
        counters.buckets_changed = table.buckets_split + table.buckets_joined;
        counters.duplicate_runs = self.duplicate_runs.noted();
        counters.compactions = runs.compactions();
        counters.filter_growths = self.filter.growths();
        counters.flush_wait_nanos = self.table.flush_wait_nanos();
    }

    /// Enters the chunks of a durable container. A failure to write degrades the index and is no error.
    pub(super) fn record(&mut self, unit: &Unit<'_>) {
        if self.degraded.is_none() {
            match self.record_on_disk(unit) {
                Ok(()) => return,
                Err(error) => self.degraded = Some(error.to_string()),
            }
        }
        self.record_in_memory(unit);
    }

    fn record_on_disk(&mut self, unit: &Unit<'_>) -> Result<()> {
        self.directory.mark_unclean()?;
        let ordinal = self.registry.register(unit.container, unit.len)?;
        if self.incomplete.is_completing() && self.registry.is_covered(ordinal) {
            return self.complete(unit, ordinal);
        }
        self.registry.mark_live(ordinal);
        for batch in unit.chunks.chunks(PREFETCH_CHUNKS) {
            for key in batch.iter().map(|chunk| Key::from(&chunk.fingerprint)) {
                self.table.table().prefetch(&key);
                self.filter.prefetch(&key);
            }
            for chunk in batch {
                self.log.make_space(&mut self.registry)?;
                self.table.make_space(&mut self.registry)?;
                let record = LogRecord { chunk: *chunk, ordinal };
                let position = self.log.append(record);
                self.enter(Key::from(&chunk.fingerprint), ordinal, position);
            }
        }
        self.registry.cover(ordinal);
        self.table.keep_flushing(&mut self.registry)?;
        self.filter.grow(self.entries, self.log.log().next_position().0, &mut self.table)?;
        if self.checkpoint_is_due() { self.checkpoint() } else { Ok(()) }
    }

    /// Enters those chunks of a covered container that incomplete parts of the table may have held and do not hold now.
    fn complete(&mut self, unit: &Unit<'_>, ordinal: Ordinal) -> Result<()> {
        let keys = unit.chunks.iter().map(|chunk| Key::from(&chunk.fingerprint));
        let keys: Vec<Key> = keys.filter(|key| self.incomplete.may_lack(key)).collect();
        let mut found = Vec::new();
        self.lookup(&keys, &mut found);
        for (key, found) in keys.iter().zip(found) {
            // Its page may have been unreadable when the filter was rebuilt from the table.
            self.filter.test_and_set(key);
            if matches!(found, Lookup::Absent | Lookup::Dead) {
                self.log.make_space(&mut self.registry)?;
                self.table.make_space(&mut self.registry)?;
                // Its position in the log is unknown; a hit on it reads no window.
                self.enter(*key, ordinal, NO_POSITION);
            }
        }
        self.incomplete.complete_container();
        self.table.keep_flushing(&mut self.registry)
    }

    /// Enters as many chunks as memory takes: none of them reaches the disk.
    fn record_in_memory(&mut self, unit: &Unit<'_>) {
        let Some(ordinal) = self.registry.register_in_memory(unit.container, unit.len) else { return };
        self.registry.mark_live(ordinal);
        for chunk in unit.chunks {
            if !self.table.table().has_space() {
                return;
            }
            self.enter(Key::from(&chunk.fingerprint), ordinal, NO_POSITION);
        }
    }

    fn enter(&mut self, key: Key, ordinal: Ordinal, position: Position) {
        self.table.insert(&Entry { key, ordinal, position });
        self.filter.test_and_set(&key);
        self.entries += 1;
    }

    /// Notes that a stream repeated a run of the log, `ahead` chunks before the chunks that came before it are recorded. The
    /// next checkpoint makes it durable.
    pub(super) fn log_duplicate_run(&mut self, run: &DuplicateRun, ahead: u64) {
        let next = self.log.log().next_position();
        if self.degraded.is_none()
            && let Err(error) = self.duplicate_runs.note(run, next, ahead)
        {
            self.degraded = Some(error.to_string());
        }
    }

    /// Returns true if the space that only the last checkpoint refers to is worth the cost of another checkpoint.
    fn checkpoint_is_due(&self) -> bool {
        let (retired, used) = self.table.table().retired_and_used_bytes();
        (used / 2).max(RETIRED_BYTES_MIN) < retired
            || self.duplicate_runs.is_compaction_due(self.log.log().next_position())
    }

    /// Makes everything recorded durable, as the state to fall back to. A failure degrades the index and is no error.
    pub(super) fn save(&mut self) {
        if self.degraded.is_some() || !self.directory.is_changed() {
            return;
        }
        if let Err(error) = self.directory.mark_unclean().and_then(|()| self.checkpoint()) {
            self.degraded = Some(error.to_string());
        }
    }

    /// Makes everything recorded durable, as the state to fall back to. After an error the index must not write.
    fn checkpoint(&mut self) -> Result<()> {
        self.table.finish_flush()?;
        self.log.finish_write()?;
        if self.is_attached {
            // Without live containers every entry would seem to be of a container that is gone.
            self.incomplete.add(&self.table.rewrite_damaged(&mut self.registry)?);
        }
        let mut checkpoint = self.describe();
        self.registry.sync()?;
        self.log.sync()?;
        self.duplicate_runs.save(&self.directory, self.log.log().next_position())?;
        let create = |name: &str| self.directory.create_sealed(name, checkpoint.generation);
        let (mut manifest, mut staged, mut filter) = (create("manifest")?, create("staged")?, create("filter")?);
        self.table.save(checkpoint.generation, &mut manifest, &mut staged)?;
        self.filter.filter().save(checkpoint.generation, &mut filter)?;
        checkpoint.log_pages = self.log.log().written_pages();
        checkpoint.duplicate_runs_file = self.duplicate_runs.file_number();
        checkpoint.duplicate_run_pages = self.duplicate_runs.log().pages();
        (checkpoint.manifest, checkpoint.staged, checkpoint.filter) =
            (manifest.finish()?, staged.finish()?, filter.finish()?);
        self.directory.replace_checkpoint(&checkpoint)?;
        self.table.saved();
        Ok(())
    }

    fn describe(&self) -> Checkpoint {
        Checkpoint {
            repository: self.directory.repository(),
            generation: self.directory.generation() + 1,
            registered: self.registry.count(),
            registry_digest: self.registry.digest(),
            log_pages: 0,
            duplicate_runs_file: 0,
            duplicate_run_pages: 0,
            manifest: Seal::empty(),
            staged: Seal::empty(),
            filter: Seal::empty(),
            incomplete: self.incomplete.with(&self.table.table().damaged_buckets()),
            covered: self.registry.covered().clone(),
        }
    }

    /// Closes the index with a checkpoint, which also names the damaged parts of the table: their entries are recorded again
    /// after the next opening. A degraded index keeps its last checkpoint.
    pub(super) fn close(mut self) -> Result<()> {
        let is_damaged = !self.table.table().damaged_buckets().is_empty();
        if self.degraded.is_some() || !(self.directory.is_changed() || is_damaged) {
            return Ok(());
        }
        self.directory.mark_unclean()?;
        self.checkpoint()?;
        self.directory.mark_clean()
    }
}
