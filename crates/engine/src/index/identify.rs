//! The exact identifier: filter, cache, and table lookups at once (eager) or deferred and put together (lazy).
//!
//! A chunk that the filter does not know is unique. One that it may know is answered by the cache, or waits in a bucket
//! of pending chunks. Once a bucket holds enough different ones they are looked up together, and every hit
//! brings in the records around it in the arrival log, which answer for other pending chunks without a lookup (Ma et
//! al., section 3, algorithm 1). The eager schedule is the lazy one with a threshold of one and windows that only look
//! forward.
//!
//! Deviations: windows answer pending chunks by probing the window's records in the map of pending chunks, so that
//! there are neither cycles nor a limit of tries. How far a window reaches back is the distance to the oldest chunk that
//! waits, at most half of it, in place of the rank in a cycle. Equal pending chunks are joined and share the verdict of
//! the first; the paper does not say what becomes of them. A pending chunk only ever matches what was recorded, and what
//! is pending cannot have been recorded by this session, so it never matches its own followers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::index::cache::{ByOwnBits, Cache};
use crate::index::log::{LOG_PAGE_RECORDS, LogRecord, LogWindow};
use crate::index::options::{IndexOptions, Schedule, WINDOWS_PER_BATCH};
use crate::index::pending::{Pending, PendingChunk, Slot};
use crate::index::store::{IndexState, Store};
use crate::index::window::WindowSize;
use crate::index::{Counters, Identifier, Resolved, SequencedChunk, Unit, Verdict};
use crate::io::Disk;
use crate::kv::table::{BATCH_PAGES_MAX, Lookup};
use crate::kv::{Entry, Key, Position};
use crate::types::{ContainerId, Fingerprint, RepositoryId, Sequence};

/// Chunks whose blocks of the filter are touched together.
const PREFETCH_CHUNKS: usize = 64;

/// A chunk that this session has met and that is not recorded.
#[derive(Clone, Copy, Debug)]
enum Flight {
    /// It was declared unique.
    Unique(Sequence),
    /// It waits for a verdict.
    Pending(Slot),
}

/// The exact index of one repository on this host.
#[derive(Debug)]
pub struct Index {
    store: Store,
    cache: Cache,
    flights: HashMap<Fingerprint, Flight, ByOwnBits>,
    pending: Pending,
    options: IndexOptions,
    threshold: usize,
    window: WindowSize,
    next_sequence: Sequence,
    counters: Counters,
    slots: Vec<Slot>,
}

/// A hit whose neighborhood is to be read.
#[derive(Clone, Copy, Debug)]
struct Hit {
    fingerprint: Fingerprint,
    sequence: Sequence,
    position: Position,
}

impl Index {
    /// Opens the index in the directory `dir` of a disk, creating its last component where it is missing.
    ///
    /// Fails with [`crate::Error::IndexBusy`] if another writer holds it, and where nothing can be written. What is
    /// missing, damaged or another repository's is started anew; the state says so. [`Index::attach`] comes next.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<(Self, IndexState)> {
        let (store, state) = Store::open(disk, dir, repository, options)?;
        let threshold = match options.schedule {
            Schedule::Eager => 1,
            Schedule::Lazy { threshold } => threshold.max(1) as usize,
        };
        let index = Self {
            store,
            cache: Cache::new(options.cache_bytes),
            flights: HashMap::default(),
            pending: Pending::new(options.pending_buckets),
            options: options.clone(),
            threshold,
            window: WindowSize::new(options.prefetch_window),
            next_sequence: Sequence(0),
            counters: Counters::default(),
            slots: Vec::new(),
        };
        Ok((index, state))
    }

    /// Takes the containers that exist, sorted; hits in others are ignored from now on.
    ///
    /// Returns those that are not covered: the caller reads their directories and [`Identifier::record`]s them. Before
    /// the first call no container is live.
    pub fn attach(&mut self, live: &[ContainerId]) -> Result<Vec<ContainerId>> {
        Ok(self.store.attach(live))
    }

    /// Returns why the index is incomplete from now on: it could not be written, or damage was found in it.
    ///
    /// It goes on answering, but may miss; the next opening falls back to the last checkpoint or starts anew.
    pub fn degraded(&self) -> Option<String> {
        self.store.degraded()
    }

    /// Returns the share of the filter's bits that are set, 0 to 1; well above one half it lets too much pass.
    pub fn filter_fill(&self) -> f64 {
        self.store.filter_fill()
    }

    /// Makes everything recorded durable, as the state that an unclean end falls back to. Costs a write of the filter and
    /// of the staged entries. A failure degrades the index and is no error; see [`Index::degraded`].
    pub fn checkpoint(&mut self) {
        self.store.save();
    }

    /// Makes everything recorded durable and closes the index. After an error the next opening falls back to the
    /// last checkpoint.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }

    fn arrive(&mut self, chunk: &SequencedChunk, resolved: &mut Vec<Resolved>) {
        let &SequencedChunk { sequence, fingerprint } = chunk;
        self.counters.submitted += 1;
        self.next_sequence = Sequence(sequence.0 + 1);
        match self.flights.get(&fingerprint) {
            Some(&Flight::Unique(first)) => {
                self.counters.in_flight_hits += 1;
                resolved.push(Resolved { sequence, verdict: Verdict::SameAs(first) });
                return;
            }
            Some(&Flight::Pending(slot)) => {
                self.counters.in_flight_hits += 1;
                self.counters.joined += 1;
                self.pending.join(slot, sequence);
                self.bound_pending(resolved);
                return;
            }
            None => {}
        }
        self.counters.filter_probes += 1;
        if !self.store.filter().test_and_set(&Key::from(&fingerprint)) {
            self.counters.filter_negatives += 1;
            self.flights.insert(fingerprint, Flight::Unique(sequence));
            resolved.push(Resolved { sequence, verdict: Verdict::Unique });
            return;
        }
        if let Some(ordinal) = self.cache.get(&fingerprint) {
            if let Some(container) = self.store.live_container(ordinal) {
                self.counters.prelookup_hits += 1;
                self.window.note_answer();
                resolved.push(Resolved { sequence, verdict: Verdict::Stored(container) });
                return;
            }
            self.counters.dead_hits += 1;
        }
        let (slot, bucket) = self.pending.push(fingerprint, sequence);
        self.flights.insert(fingerprint, Flight::Pending(slot));
        if self.threshold <= self.pending.bucket_len(bucket) {
            self.look_up_bucket(bucket, resolved);
        }
        self.bound_pending(resolved);
    }

    /// Looks up the oldest pending chunk's bucket while too many wait or it has waited too long.
    fn bound_pending(&mut self, resolved: &mut Vec<Resolved>) {
        while let Some((sequence, bucket)) = self.pending.oldest() {
            let age = self.next_sequence.0.saturating_sub(sequence.0);
            if self.pending.len() <= self.options.pending_max && age <= self.options.pending_age_max {
                return;
            }
            self.look_up_bucket(bucket, resolved);
        }
    }

    fn look_up_bucket(&mut self, bucket: u32, resolved: &mut Vec<Resolved>) {
        let mut slots = std::mem::take(&mut self.slots);
        self.pending.list_bucket(bucket, &mut slots);
        for piece in slots.chunks(BATCH_PAGES_MAX) {
            self.look_up(piece, resolved);
        }
        self.slots = slots;
    }

    /// Looks pending chunks up together, then reads around the hits, which may answer for others that wait.
    fn look_up(&mut self, slots: &[Slot], resolved: &mut Vec<Resolved>) {
        let reach = self.pending.oldest().map_or(self.next_sequence, |(oldest, _)| oldest);
        // A window that was read for an earlier piece may have answered for some of these.
        let chunks: Vec<PendingChunk> = slots.iter().filter_map(|&slot| self.pending.take(slot)).collect();
        if chunks.is_empty() {
            return;
        }
        let keys: Vec<Key> = chunks.iter().map(|chunk| Key::from(&chunk.fingerprint)).collect();
        let mut answers = Vec::with_capacity(keys.len());
        self.store.lookup(&keys, &mut answers);
        self.counters.lookups += keys.len() as u64;
        self.counters.lookup_batches += 1;
        let mut hits = Vec::new();
        for (chunk, answer) in chunks.iter().zip(answers) {
            let entry = self.count_answer(answer);
            let found = entry.and_then(|entry| Some((entry, self.store.live_container(entry.ordinal)?)));
            if let Some((entry, container)) = found {
                let PendingChunk { fingerprint, sequence, .. } = *chunk;
                hits.push(Hit { fingerprint, sequence, position: entry.position });
                self.settle(chunk, Some(container), resolved);
            } else {
                self.settle(chunk, None, resolved);
            }
        }
        self.prefetch(hits, reach, resolved);
    }

    fn count_answer(&mut self, answer: Lookup) -> Option<Entry> {
        match answer {
            Lookup::Staged(entry) => {
                self.counters.staging_hits += 1;
                Some(entry)
            }
            Lookup::OnDisk(entry) => {
                self.counters.disk_hits += 1;
                Some(entry)
            }
            Lookup::Dead => {
                self.counters.dead_hits += 1;
                None
            }
            Lookup::Absent => {
                self.counters.filter_false_positives += 1;
                None
            }
        }
    }

    /// Brings a chunk that was pending, and those that joined it, to their verdicts.
    fn settle(&mut self, chunk: &PendingChunk, container: Option<ContainerId>, resolved: &mut Vec<Resolved>) {
        let (first, rest) = if let Some(container) = container {
            self.flights.remove(&chunk.fingerprint);
            (Verdict::Stored(container), Verdict::Stored(container))
        } else {
            self.flights.insert(chunk.fingerprint, Flight::Unique(chunk.sequence));
            (Verdict::Unique, Verdict::SameAs(chunk.sequence))
        };
        resolved.push(Resolved { sequence: chunk.sequence, verdict: first });
        resolved.extend(chunk.followers.iter().map(|&sequence| Resolved { sequence, verdict: rest }));
    }

    /// Reads the log around hits into the cache. `reach`: the oldest chunk that waited.
    fn prefetch(&mut self, mut hits: Vec<Hit>, reach: Sequence, resolved: &mut Vec<Resolved>) {
        if self.options.prefetch_window == 0 {
            return;
        }
        hits.sort_unstable_by_key(|hit| hit.position);
        let mut records = Vec::new();
        let mut hits = hits.into_iter().peekable();
        let mut read_up_to = 0;
        while hits.peek().is_some() {
            let mut windows: Vec<LogWindow> = Vec::with_capacity(WINDOWS_PER_BATCH);
            while let Some(hit) = hits.next_if(|_| windows.len() < WINDOWS_PER_BATCH) {
                // What an earlier window of this batch brings, or has brought in, needs no read of its own.
                if hit.position.0 < read_up_to || self.cache.get(&hit.fingerprint).is_some() {
                    continue;
                }
                let mut window = self.window_around(&hit, reach);
                let end = window.start.0.saturating_add(u64::from(window.records));
                let again = read_up_to.saturating_sub(window.start.0);
                window.start = Position(window.start.0 + again);
                window.records = window.records.saturating_sub(u32::try_from(again).unwrap_or(u32::MAX));
                read_up_to = end.max(read_up_to);
                windows.push(window);
            }
            self.store.read_log(&windows, &mut records);
            for records in &records {
                self.window.note_window(records.len());
                self.take_window(records, resolved);
            }
        }
    }

    fn window_around(&self, hit: &Hit, reach: Sequence) -> LogWindow {
        let records = self.window.records();
        if self.window.is_page() {
            // The page that holds the hit, rather than parts of two.
            let start = Position(hit.position.0 - hit.position.0 % LOG_PAGE_RECORDS as u64);
            return LogWindow { start, records };
        }
        let back = match self.options.schedule {
            Schedule::Eager => 0,
            Schedule::Lazy { .. } => hit.sequence.0.saturating_sub(reach.0).min(u64::from(records / 2)),
        };
        LogWindow { start: Position(hit.position.0.saturating_sub(back)), records }
    }

    /// Caches a window and answers the pending chunks that are in it.
    fn take_window(&mut self, records: &[LogRecord], resolved: &mut Vec<Resolved>) {
        self.cache.insert(records);
        if self.pending.is_empty() {
            return;
        }
        for record in records {
            let Some(&Flight::Pending(slot)) = self.flights.get(&record.fingerprint) else { continue };
            let Some(container) = self.store.live_container(record.ordinal) else {
                self.counters.dead_hits += 1;
                continue;
            };
            if let Some(chunk) = self.pending.take(slot) {
                self.counters.postlookup_hits += 1;
                self.window.note_answer();
                self.settle(&chunk, Some(container), resolved);
            }
        }
    }
}

impl Identifier for Index {
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()> {
        for piece in chunks.chunks(PREFETCH_CHUNKS) {
            self.store.filter().prefetch(piece.iter().map(|chunk| Key::from(&chunk.fingerprint)));
            for chunk in piece {
                self.arrive(chunk, resolved);
            }
        }
        Ok(())
    }

    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.counters.drains += 1;
        let mut slots = std::mem::take(&mut self.slots);
        // One chunk of every half window of arrivals: what its hit brings in answers most of its neighbors.
        let stride = u64::from(self.options.prefetch_window / 2).max(1);
        self.pending.list_strided(stride, BATCH_PAGES_MAX, &mut slots);
        self.look_up(&slots, resolved);
        self.pending.list(&mut slots);
        for piece in slots.chunks(BATCH_PAGES_MAX) {
            self.look_up(piece, resolved);
        }
        self.slots = slots;
        Ok(())
    }

    fn record(&mut self, unit: Unit<'_>) -> Result<()> {
        self.store.record(&unit);
        for chunk in unit.chunks {
            if let Some(Flight::Unique(_)) = self.flights.get(&chunk.fingerprint) {
                self.flights.remove(&chunk.fingerprint);
            }
        }
        Ok(())
    }

    fn forget(&mut self, containers: &[ContainerId]) -> Result<()> {
        for &container in containers {
            self.store.bury(container);
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.store.count(&mut counters);
        counters
    }
}

#[cfg(test)]
#[path = "identify_tests.rs"]
mod tests;
