//! The parts of an open index, recorded together and saved together.
//!
//! | file | holds |
//! |---|---|
//! | `lock` | nothing; its lock shows that a writer runs |
//! | `checkpoint` | the current state; see [`crate::identify::checkpoint`] |
//! | `unclean` | nothing; exists while the checkpoint may be out of date |
//! | `containers` | the registry; see [`crate::identify::registry`] |
//! | `log` | the arrival log; see [`crate::identify::log`] |
//! | `table` | pages of the bucket table; see [`crate::kv::page`] |
//! | `repeats.N` | the duplicate-run log; see [`crate::identify::duplicate_runs`]; the checkpoint names one of two |
//! | `device` | the measured profile of the device; see `device.rs` |
//! | `plan` | the last plan of the adaptive schedule; see `last_plan.rs` |
//! | `manifest.N`, `staged.N` | layout of the table and memtable at the checkpoint of generation N modulo 2 |
//! | `entries.N` | of an index in memory, in place of `table`, `manifest` and `staged`: all entries, likewise |
//! | `filter.N` | the filter, likewise |
//! | `units.N` | if hits read containers or stream segments: where each container begins in `log`, likewise; see [`crate::identify::locality::units`] |
//! | `stream.N` | if hits read stream segments: the stream log; see `stream_log.rs`; the checkpoint names one of two |
//! | `segments.N` | where each segment begins in the stream log, likewise; see [`crate::identify::locality::units`] |
//!
//! The index is disposable. An inconsistent index is discarded as a whole, and the caller records all live containers
//! again. After the first write error the index is degraded: it writes nothing more, lookups continue, and the
//! next opening falls back to the last checkpoint. No hit ever names a container that does not hold the chunk.

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::identify::exact::arrivals::DuplicateRun;
use crate::identify::exact::checkpoint::{Checkpoint, StreamState};
use crate::identify::exact::directory::IndexDirectory;
use crate::identify::exact::growing_filter::GrowingFilter;
use crate::identify::exact::incomplete::Incomplete;
use crate::identify::exact::registry::Registry;
use crate::identify::exact::stream_log::StreamLog;
use crate::identify::exact::unit_log::UnitLog;
use crate::identify::locality::arrival_log::LogRecord;
use crate::identify::locality::duplicate_runs::DuplicateRunLog;
use crate::identify::options::PrefetchUnit;
use crate::identify::sampling::Sampling;
use crate::identify::{Counters, Unit};
use crate::kv::{BucketReads, Entry, EntryStore, Key, Lookup, OpenStore, Ordinal, Position, SealedWriter};
use crate::types::{Chunk, ContainerId};

/// Chunks whose cache lines are loaded together before the chunks are recorded; loading one by one takes longer.
const PREFETCH_CHUNKS: usize = 64;

/// Bytes of replaced runs, which only the last checkpoint uses, that justify a checkpoint however small the table is.
const RETIRED_BYTES_MIN: u64 = 256 << 20;

/// File of the units of the arrival log.
pub(in crate::identify) const UNITS: &str = "units";
/// File of the segments of the stream log.
pub(in crate::identify) const SEGMENTS: &str = "segments";

/// The open index.
#[derive(Debug)]
pub(in crate::identify) struct Store {
    pub(crate) registry: Registry,
    pub(crate) entries: Box<dyn EntryStore>,
    /// Makes stores of the same kind.
    pub(crate) kind: Box<dyn OpenStore>,
    /// Number of the kind in checkpoints.
    pub(crate) code: u8,
    /// How lookups read the store, if it is on disk.
    pub(crate) reads: BucketReads,
    /// The arrival log. It has units unless hits read windows.
    pub(crate) log: UnitLog,
    /// The stream log, if hits read stream segments.
    pub(crate) stream: Option<StreamLog>,
    pub(crate) duplicate_runs: DuplicateRunLog,
    pub(crate) filter: GrowingFilter,
    /// Range that a hit reads.
    pub(crate) unit: PrefetchUnit,
    /// Number of the unit in checkpoints.
    pub(crate) unit_code: u8,
    /// Which chunks of a container have entries, if not all; in a stream, those of its segments have.
    pub(crate) samples: Option<Sampling>,
    pub(crate) incomplete: Incomplete,
    /// Whether the live containers are known; until then none is live.
    pub(crate) is_attached: bool,
    /// Why the index writes nothing more.
    pub(crate) degraded: Option<String>,
    /// Entries added since the opening.
    pub(crate) added: u64,
    /// Holds the lock, so it is dropped last: after the jobs of table and log have ended.
    pub(crate) directory: IndexDirectory,
}

impl Store {
    /// Takes the existing containers with numbers of the caller's. Returns the numbers of those that the caller must record.
    pub(in crate::identify) fn attach(&mut self, live: impl Iterator<Item = (u32, ContainerId)>) -> Bitmap {
        let mut all = Bitmap::default();
        let missing = self.registry.attach(live.inspect(|(number, _)| all.insert(*number)));
        self.is_attached = true;
        if self.incomplete.begin(all.count() - missing.count()) { all } else { missing }
    }

    /// Takes containers whose chunks another host has entered into a store that they share, given with the lengths of their files.
    /// Returns true for each that was taken: the caller need not record it.
    pub(in crate::identify) fn take_shared(&mut self, containers: &[(ContainerId, u64)]) -> Result<Vec<bool>> {
        if self.degraded.is_some() {
            return Ok(vec![false; containers.len()]);
        }
        let ids: Vec<ContainerId> = containers.iter().map(|(id, _)| *id).collect();
        let shared = self.entries.shared(&ids);
        let mut taken = Vec::with_capacity(containers.len());
        for ((id, len), shared) in containers.iter().zip(shared) {
            // One that was cut since is read, so that somebody hears of it.
            let is_shared = shared == Some(*len);
            if is_shared {
                self.directory.mark_unclean()?;
                let ordinal = self.registry.register(*id, *len)?;
                self.registry.cover(ordinal);
            }
            taken.push(is_shared);
        }
        Ok(taken)
    }

    /// Returns why the index writes nothing more, or that its table is damaged.
    pub(crate) fn degraded(&self) -> Option<String> {
        let failed = || self.entries.failure().map(ToString::to_string);
        let damaged = || {
            let buckets = self.entries.damage().len();
            (buckets != 0).then(|| format!("{buckets} damaged buckets of the fingerprint table"))
        };
        self.degraded.clone().or_else(failed).or_else(damaged)
    }

    /// Fills in the counters of the parts.
    pub(crate) fn count(&self, counters: &mut Counters) {
        let (table, log) = (self.entries.counters(), self.log_counters());
        let runs = self.duplicate_runs.counters;
        counters.pages_read = table.lookup_pages;
        counters.bytes_read = table.bytes_read + log.bytes_read + runs.bytes_read;
        counters.bytes_written = table.bytes_written + log.bytes_written + runs.bytes_written;
        counters.prefetches = log.reads;
        counters.damaged_pages = table.damaged_pages + log.damaged_pages + runs.damaged_pages;
        if let Some(stream) = &self.stream {
            counters.stream_updates = stream.updates;
            counters.segments = stream.segments;
            counters.segments_cut_short = stream.segments_cut_short;
        }
        counters.updates = self.added;
        counters.runs_merged = table.runs_merged;
        counters.buckets_changed = table.buckets_changed;
        counters.duplicate_runs = self.duplicate_runs.noted;
        counters.compactions =
            self.duplicate_runs.compactions + self.stream.as_ref().map_or(0, |stream| stream.compactions);
        counters.filter_growths = self.filter.growths;
        counters.flush_wait_nanos = table.wait_nanos;
    }

    /// Records the chunks of a durable container. Those that `is_later` chooses are entered when the stream log has them. A failure to
    /// write degrades the index and is no error.
    pub(crate) fn record(&mut self, unit: &Unit<'_>, is_later: &mut dyn FnMut(&Chunk) -> bool) {
        if self.degraded.is_none() {
            match self.record_on_disk(unit, is_later) {
                Ok(()) => return,
                Err(error) => self.degrade(&error),
            }
        }
        self.record_in_memory(unit);
    }

    /// Writes nothing more from now on. A store that is full is whole, so it is saved first: the next opening finds all that
    /// it holds.
    pub(in crate::identify) fn degrade(&mut self, error: &Error) {
        if let Error::StoreFull { .. } = error {
            // After a failure the next opening falls back to the last checkpoint.
            let _ = self.checkpoint().and_then(|()| self.directory.mark_clean());
        }
        self.degraded = Some(error.to_string());
    }

    fn record_on_disk(&mut self, unit: &Unit<'_>, is_later: &mut dyn FnMut(&Chunk) -> bool) -> Result<()> {
        self.directory.mark_unclean()?;
        let ordinal = self.registry.register(unit.container, unit.len)?;
        if self.incomplete.is_completing() && self.registry.covered.contains(ordinal.0) {
            return self.complete(unit, ordinal);
        }
        let features = self.features_of(unit);
        let mut numbers = 0..;
        self.registry.mark_live(ordinal);
        if self.unit != PrefetchUnit::Window {
            self.log.begin_container(ordinal);
        }
        let mut later = 0;
        let mut entries = Vec::with_capacity(PREFETCH_CHUNKS);
        for batch in unit.chunks.chunks(PREFETCH_CHUNKS) {
            entries.clear();
            for chunk in batch {
                let key = Key::from(&chunk.fingerprint);
                self.filter.prefetch(&key);
                self.log.make_space(&mut self.registry)?;
                let position = self.log.log.append(LogRecord { chunk: *chunk, ordinal });
                let number: usize = numbers.next().unwrap_or_default();
                if is_later(chunk) {
                    later += 1;
                } else if features.as_ref().is_none_or(|features| features.binary_search(&number).is_ok()) {
                    entries.push(Entry { key, ordinal, position });
                }
            }
            self.insert(&entries)?;
        }
        match self.stream.as_mut().filter(|_| later != 0) {
            // Until then the next opening must record its chunks again.
            Some(stream) => stream.enter_later(ordinal, later),
            None => self.registry.cover(ordinal),
        }
        self.entries.maintain(&mut self.registry)?;
        self.filter.grow(self.added, self.log.log.next_position().0, &mut *self.entries)?;
        if self.checkpoint_is_due() { self.checkpoint() } else { Ok(()) }
    }

    /// Returns the numbers of the chunks of a container that have entries, ascending; `None`: all. If hits read stream segments, only the
    /// features of these have entries.
    fn features_of(&self, unit: &Unit<'_>) -> Option<Vec<usize>> {
        let samples = self.samples?;
        if self.stream.is_some() {
            return Some(Vec::new());
        }
        let fingerprints: Vec<_> = unit.chunks.iter().map(|chunk| chunk.fingerprint).collect();
        Some(samples.features(&fingerprints))
    }

    /// Records again the chunks of a covered container that incomplete parts of the table have lost.
    fn complete(&mut self, unit: &Unit<'_>, ordinal: Ordinal) -> Result<()> {
        let of_features =
            self.features_of(unit).map(|features| features.into_iter().filter_map(|at| unit.chunks.get(at)));
        let chunks: Vec<&Chunk> = of_features.map_or_else(|| unit.chunks.iter().collect(), Iterator::collect);
        let keys = chunks.iter().map(|chunk| Key::from(&chunk.fingerprint));
        let keys: Vec<Key> = keys.filter(|key| self.incomplete.may_lack(key)).collect();
        let found = self.entries.look_up(&keys, &self.registry);
        let mut lost = Vec::new();
        for (&key, found) in keys.iter().zip(found) {
            // A filter rebuilt from the table lacks the keys of unreadable pages.
            self.filter.test_and_set(&key);
            if matches!(found, Lookup::Absent | Lookup::Dead) {
                // The position in the log is unknown; a hit on this entry reads no window.
                lost.push(Entry { key, ordinal, position: Position::NONE });
            }
        }
        self.insert(&lost)?;
        self.incomplete.complete_container();
        self.entries.maintain(&mut self.registry)
    }

    /// Records as many chunks as the store takes without the disk.
    fn record_in_memory(&mut self, unit: &Unit<'_>) {
        let Some(ordinal) = self.registry.register_in_memory(unit.container, unit.len) else { return };
        self.registry.mark_live(ordinal);
        let entry = |chunk: &Chunk| Entry { key: Key::from(&chunk.fingerprint), ordinal, position: Position::NONE };
        let entries: Vec<Entry> = unit.chunks.iter().map(entry).collect();
        self.insert_some(&entries);
    }

    /// Inserts entries, and makes space for them as it is needed.
    pub(in crate::identify) fn insert(&mut self, entries: &[Entry]) -> Result<()> {
        let mut rest = self.insert_some(entries);
        while !rest.is_empty() {
            self.entries.make_space(&mut self.registry)?;
            rest = self.insert_some(rest);
        }
        Ok(())
    }

    /// Inserts as many entries as there is space for; returns the others.
    fn insert_some<'a>(&mut self, entries: &'a [Entry]) -> &'a [Entry] {
        let (inserted, rest) = entries.split_at(self.entries.insert(entries));
        for entry in inserted {
            self.filter.test_and_set(&entry.key);
        }
        self.added += inserted.len() as u64;
        rest
    }

    /// Notes a duplicate run. `ahead` unique chunks before it in the stream are not recorded yet. The next checkpoint makes
    /// the note durable.
    pub(in crate::identify) fn log_duplicate_run(&mut self, run: &DuplicateRun, ahead: u64) {
        let next = self.log.log.next_position();
        if self.degraded.is_none()
            && let Err(error) = self.duplicate_runs.note(run, next, ahead)
        {
            self.degraded = Some(error.to_string());
        }
    }

    /// Returns true if the space that only the last checkpoint refers to is worth the cost of another checkpoint.
    pub(in crate::identify) fn checkpoint_is_due(&self) -> bool {
        let entries = self.entries.counters();
        let next = self.log.log.next_position();
        (entries.used_bytes / 2).max(RETIRED_BYTES_MIN) < entries.retired_bytes
            || self.duplicate_runs.is_compaction_due(next)
            || self.stream.as_ref().is_some_and(|stream| stream.is_checkpoint_due(next.0))
    }

    /// Makes everything recorded durable: a crash falls back to this state. A failure degrades the index and is no error.
    #[cfg(test)]
    pub(in crate::identify) fn save(&mut self) {
        if self.degraded.is_some() || !self.directory.is_changed {
            return;
        }
        if let Err(error) = self.directory.mark_unclean().and_then(|()| self.checkpoint()) {
            self.degraded = Some(error.to_string());
        }
    }

    /// Like [`Store::save`], but returns the error. After it the index must not write.
    pub(in crate::identify) fn checkpoint(&mut self) -> Result<()> {
        self.log.finish_write()?;
        self.stream.as_mut().map_or(Ok(()), |stream| stream.log.finish_write())?;
        if self.is_attached {
            // Before that, every entry would seem dead.
            self.incomplete.add(self.entries.repair(&mut self.registry)?);
        }
        self.registry.sync()?;
        self.log.log.sync()?;
        let next = self.log.log.next_position();
        self.duplicate_runs.save(&self.directory, next)?;
        if let Some(stream) = &mut self.stream {
            stream.save(&self.directory, next.0, &mut *self.entries, &self.registry)?;
        }
        let generation = self.directory.generation + 1;
        let create = |name: &str| self.directory.create_sealed(name, generation);
        let mut parts = self.kind.parts().iter().map(|name| create(name)).collect::<Result<Vec<_>>>()?;
        let mut filter = create("filter")?;
        let mut units = (self.unit != PrefetchUnit::Window).then(|| create(UNITS)).transpose()?;
        let mut segments = self.stream.as_ref().map(|_| create(SEGMENTS)).transpose()?;
        self.entries.save(generation, &mut self.registry, &mut parts)?;
        self.filter.filter.save(generation, &mut filter)?;
        units.as_mut().map_or(Ok(()), |to| self.log.units.save(to))?;
        let stream = match self.stream.as_ref().zip(segments.take()) {
            Some((stream, mut to)) => {
                stream.log.units.save(&mut to)?;
                Some(StreamState {
                    file: stream.file_number,
                    pages: stream.log.log.lost_pages..stream.log.log.written_pages,
                    named_pages: stream.named_pages,
                    segments: to.finish()?,
                })
            }
            None => None,
        };
        self.directory.replace_checkpoint(&Checkpoint {
            repository: self.directory.repository,
            generation,
            registered: self.registry.count,
            registry_checksum: self.registry.checksum(),
            log_pages: self.log.log.written_pages,
            duplicate_runs_file: self.duplicate_runs.file_number,
            duplicate_run_pages: self.duplicate_runs.pages(),
            store: self.code,
            parts: parts.into_iter().map(SealedWriter::finish).collect::<Result<_>>()?,
            filter: filter.finish()?,
            unit: self.unit_code,
            units: units.map(SealedWriter::finish).transpose()?,
            stream,
            incomplete: self.incomplete.with(self.entries.damage()),
            covered: self.registry.covered.clone(),
        })?;
        self.entries.saved();
        self.stream.as_mut().map_or(Ok(()), |stream| stream.saved(&self.directory))
    }

    /// Closes the index with a checkpoint. It also names the damaged parts of the table, whose entries are recorded again
    /// after the next opening. A degraded index keeps its last checkpoint.
    pub(in crate::identify) fn close(mut self) -> Result<()> {
        let is_damaged = !self.entries.damage().is_empty();
        if self.degraded.is_some() || !(self.directory.is_changed || is_damaged) {
            return Ok(());
        }
        self.directory.mark_unclean()?;
        self.checkpoint()?;
        self.directory.mark_clean()
    }
}
