//! The identifier on mapped memory: every chunk has its verdict when `submit` returns.
//!
//! A unique chunk gets its entry of the log and its slot of the table immediately, without a container. Until it is recorded, later
//! occurrences have the verdict "same as the first". Recording it replaces one word of its entry. An entry is dead if an earlier session
//! did not record it, or if its container is gone: the next occurrence of its chunk is unique and reuses the entry. Except with
//! [`Order::None`], the filter holds every fingerprint of the log, so the order may change at any time: a chunk in the cache is in the
//! log, and its bits are set.

use onefold_engine::identify::{Counters, Identifier, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::kv::Key;
use onefold_engine::types::{ContainerId, Sequence};
use onefold_engine::{Error, Result};
use onefold_sys::{ticks, ticks_in_order};

use crate::mapped::cache::{Cache, CacheShape};
use crate::mapped::containers::Containers;
use crate::mapped::cuckoo::{Near, Table, TableWork};
use crate::mapped::filter::{Filter, FilterShape};
use crate::mapped::log::{EPOCHS, Log, Name, SEQUENCE_BITS, State, UNFENCED_MAX};
use crate::mapped::medium::Medium;
use crate::mapped::meter::{TickClock, Traffic};
use crate::mapped::open::{MappedOptions, MappedState, Stored, open};
use crate::mapped::order::{Chooser, Order, OrderReport, Step, Tally};
use crate::mapped::segments::{ENTRY_BYTES, ENTRY_WORDS};
use crate::mapped::space::Space;

/// Chunks that are prefetched for, fenced and timed together.
pub const BATCH_CHUNKS: usize = 64;
const _: () = assert!(BATCH_CHUNKS as u64 == UNFENCED_MAX, "recovery examines all that a batch appends");
/// One batch in this many has its steps timed: a reading of the clock costs as much as a step.
const BATCHES_PER_TIMED: u64 = 16;
/// Share of a batch's chunks, in 1/64, that must need the table before buckets are prefetched.
const TABLE_SHARE_MIN: u64 = 16;

/// The identifier.
#[derive(Debug)]
pub struct MappedIndex<M> {
    space: Space<M>,
    log: Log,
    table: Table,
    containers: Containers,
    filter: Filter,
    cache: Cache,
    chooser: Chooser,
    clock: TickClock,
    prefetches: bool,
    /// Number of the session since opening.
    epoch: u32,
    /// Expected position of the next chunk to be recorded.
    cursor: u64,
    names: Vec<(Key, Name)>,
    batches: u64,
    is_timed: bool,
    /// Whether the first bucket of each chunk of the batch was prefetched.
    near: Near,
    /// Chunks of the last batch that needed the table.
    table_chunks: u64,
    /// Whether something was flushed since the last fence.
    is_unfenced: bool,
    tally: Tally,
    counters: Counters,
    takeovers: u64,
    /// Traffic of lookups, without the copies after hits.
    lookup_traffic: Traffic,
    /// Traffic of the copies after hits.
    fill_traffic: Traffic,
}

impl<M: Medium> MappedIndex<M> {
    /// Opens the fingerprint store on a medium, or makes one. No container is live before [`MappedIndex::attach`] or
    /// [`Identifier::record`] names it.
    ///
    /// Reads all of the log and the table. Fails if the medium cannot be extended or synced. Damage is no error: the
    /// state reports it.
    pub fn open(medium: M, options: &MappedOptions) -> Result<(Self, MappedState)> {
        let has_both = options.order != Order::None;
        let mut filter = Filter::new(if has_both { options.filter } else { FilterShape::None });
        let (Stored { space, log, table, containers }, state) = open(medium, options, &mut filter)?;
        let index = Self {
            cursor: log.len(),
            space,
            log,
            table,
            containers,
            filter,
            cache: Cache::new(if has_both { options.cache } else { CacheShape::None }),
            chooser: Chooser::new(options.order),
            clock: TickClock::shared(),
            prefetches: options.prefetches,
            epoch: 1,
            names: Vec::with_capacity(BATCH_CHUNKS),
            batches: 0,
            is_timed: false,
            near: Near::Neither,
            table_chunks: 0,
            is_unfenced: false,
            tally: Tally::default(),
            counters: Counters::default(),
            takeovers: 0,
            lookup_traffic: Traffic::default(),
            fill_traffic: Traffic::default(),
        };
        Ok((index, state))
    }

    /// Begins a session with the containers that exist; all others are gone. Chunks that an earlier session did not record
    /// are forgotten, and sequences may start at 0 again.
    ///
    /// Returns the containers that are unknown or incomplete: the caller records them.
    pub fn attach(&mut self, live: &[ContainerId]) -> Result<Vec<ContainerId>> {
        if self.epoch + 1 == EPOCHS {
            return Err(Error::invalid(format!(
                "a fingerprint store serves {EPOCHS} sessions until it is opened again"
            )));
        }
        self.epoch += 1;
        self.cursor = self.log.len();
        self.containers.attach(&mut self.space, live)
    }

    /// Syncs the medium and returns it.
    pub fn close(mut self) -> Result<M> {
        self.sync()?;
        Ok(self.space.medium.into_medium())
    }

    /// Returns how often the medium was accessed, opening included.
    pub fn traffic(&self) -> Traffic {
        *self.space.medium.traffic()
    }

    /// Returns the traffic of lookups: probes and entries.
    pub fn lookup_traffic(&self) -> Traffic {
        self.lookup_traffic
    }

    /// Returns the traffic of the copies into the cache after hits.
    pub fn fill_traffic(&self) -> Traffic {
        self.fill_traffic
    }

    /// Returns measurements of the orders, predictions of the model, and counts.
    pub fn order_report(&self) -> OrderReport {
        self.chooser.report(&self.tally, self.clock.reading_nanos())
    }

    /// Returns the work of the table, counted.
    pub fn table_work(&self) -> TableWork {
        self.table.work()
    }

    /// Returns the share of the table's slots in use, 0 to 1.
    pub fn table_load(&self) -> f64 {
        self.table.load()
    }

    /// Returns how many entries the log has.
    pub fn entries(&self) -> u64 {
        self.log.len()
    }

    /// Returns how many dead entries were taken over.
    pub fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// Returns the memory of the filter and of the cache.
    pub fn memory(&self) -> (usize, usize) {
        (self.filter.bytes(), self.cache.bytes())
    }

    /// Returns the medium.
    pub fn medium(&self) -> &M {
        self.space.medium.medium()
    }

    #[inline]
    fn start(&self) -> u64 {
        if self.is_timed { ticks_in_order() } else { 0 }
    }

    #[inline]
    fn end(&mut self, step: Step, start: u64) {
        if self.is_timed {
            let nanos = self.clock.nanos_between(start, ticks_in_order());
            self.chooser.sample(step, nanos);
        }
    }

    /// Prefetches the first accesses of the batch's chunks.
    fn prefetch(&mut self) {
        let asks_table = self.chooser.current() == Order::None || TABLE_SHARE_MIN <= self.table_chunks;
        for (key, name) in &self.names {
            self.filter.prefetch(key, name);
            self.cache.prefetch(name);
            if asks_table {
                self.table.prefetch(&mut self.space, name);
            }
        }
        self.near = if asks_table { Near::First } else { Near::Neither };
        if asks_table {
            self.space.medium.end_round();
        }
    }

    fn arrive(&mut self, key: &Key, name: &Name, sequence: Sequence) -> Result<Verdict> {
        match self.chooser.current() {
            Order::FilterFirst | Order::Auto => {
                if self.is_new(key, name) {
                    return self.enter(name, sequence, self.near);
                }
                if let Some(verdict) = self.ask_cache(name, sequence) {
                    return Ok(verdict);
                }
            }
            Order::CacheFirst => {
                if let Some(verdict) = self.ask_cache(name, sequence) {
                    return Ok(verdict);
                }
                if self.is_new(key, name) {
                    return self.enter(name, sequence, self.near);
                }
            }
            Order::None => {}
        }
        self.look_up(name, sequence)
    }

    /// Probes the filter; returns true if a chunk is not in the log.
    #[inline]
    fn is_new(&mut self, key: &Key, name: &Name) -> bool {
        if self.filter.is_none() {
            return false;
        }
        let start = self.start();
        self.counters.filter_probes += 1;
        let is_new = !self.filter.test_and_set(key, name);
        self.end(Step::Filter, start);
        self.counters.filter_negatives += u64::from(is_new);
        is_new
    }

    /// Looks up a chunk in the cache.
    fn ask_cache(&mut self, name: &Name, sequence: Sequence) -> Option<Verdict> {
        let start = self.start();
        let cached = self.cache.get(name);
        self.end(Step::Cache, start);
        let cached = cached?;
        let verdict = match State::of(cached.state, cached.position) {
            State::Recorded(ordinal) => self.containers.live(ordinal).map(Verdict::Stored),
            State::Pending { .. } | State::Dead => None,
        };
        if verdict.is_some() {
            self.counters.prelookup_hits += 1;
            self.tally.duplicates += 1;
            return verdict;
        }
        // The copy may be out of date.
        let entry = self.log.read(&mut self.space, cached.position);
        self.cache.refresh(cached.location, entry[ENTRY_WORDS - 1]);
        let verdict = self.verdict_of(cached.position, entry[ENTRY_WORDS - 1]);
        if verdict.is_some() {
            self.counters.prelookup_hits += 1;
            self.tally.duplicates += 1;
            return verdict;
        }
        Some(self.take_over(cached.position, sequence))
    }

    /// Returns the verdict by an entry; `None` if it is dead.
    #[inline]
    fn verdict_of(&mut self, position: u64, word: u64) -> Option<Verdict> {
        match State::of(word, position) {
            State::Recorded(ordinal) => self.containers.live(ordinal).map(Verdict::Stored),
            State::Pending { epoch, sequence } => (epoch == self.epoch).then(|| {
                self.counters.in_flight_hits += 1;
                Verdict::SameAs(sequence)
            }),
            State::Dead => None,
        }
    }

    /// Declares the chunk of a dead entry unique.
    fn take_over(&mut self, position: u64, sequence: Sequence) -> Verdict {
        self.counters.dead_hits += 1;
        self.takeovers += 1;
        self.log.set_state(&mut self.space, position, State::Pending { epoch: self.epoch, sequence });
        self.log.flush_entry(&mut self.space, position);
        self.is_unfenced = true;
        Verdict::Unique
    }

    /// Looks a chunk up in the table.
    fn look_up(&mut self, name: &Name, sequence: Sequence) -> Result<Verdict> {
        self.counters.lookups += 1;
        self.table_chunks += 1;
        let before = *self.space.medium.traffic();
        let start = self.start();
        let found = self.table.find(&mut self.space, &self.log, name, self.near);
        let verdict = found.and_then(|(position, word)| self.verdict_of(position, word));
        self.end(Step::Lookup, start);
        self.lookup_traffic.add(&self.space.medium.traffic().since(&before));
        if let (Some((position, _)), Some(_)) = (found, verdict) {
            self.fill(position);
        }
        if let Some(verdict) = verdict {
            self.counters.disk_hits += 1;
            self.tally.duplicates += 1;
            self.tally.misses += 1;
            return Ok(verdict);
        }
        let asked_filter = !self.filter.is_none();
        self.tally.false_positives += u64::from(asked_filter);
        if let Some((position, _)) = found {
            return Ok(self.take_over(position, sequence));
        }
        self.counters.filter_false_positives += u64::from(asked_filter);
        self.enter(name, sequence, Near::Both)
    }

    /// Copies an entry that was looked up and its neighbors into the cache.
    fn fill(&mut self, position: u64) {
        let before = *self.space.medium.traffic();
        let start = self.start();
        let Self { space, log, cache, .. } = self;
        if cache.fill(position, |out| log.copy(space, position, out)) {
            self.counters.prefetches += 1;
            self.end(Step::Fill, start);
        }
        self.fill_traffic.add(&self.space.medium.traffic().since(&before));
    }

    /// Declares a chunk unique that the log does not have.
    fn enter(&mut self, name: &Name, sequence: Sequence, near: Near) -> Result<Verdict> {
        self.table_chunks += u64::from(near != Near::Both);
        let start = self.start();
        self.append(name, State::Pending { epoch: self.epoch, sequence }, near)?;
        self.end(Step::Enter, start);
        Ok(Verdict::Unique)
    }

    fn append(&mut self, name: &Name, state: State, near: Near) -> Result<()> {
        let position = self.log.append(&mut self.space, name, state)?;
        self.table.insert(&mut self.space, &self.log, name, position, near)?;
        self.is_unfenced = true;
        self.counters.updates += 1;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if self.is_unfenced {
            self.is_unfenced = false;
            self.log.sync(&mut self.space)?;
        }
        Ok(())
    }

    /// Finds the entry of a chunk to be recorded: after the previous one, or by the table.
    fn locate(&mut self, name: &Name) -> Option<(u64, u64)> {
        if self.cursor < self.log.len() {
            // The entries are consecutive, so none is waited for by itself.
            let entry: [u64; ENTRY_WORDS] = self.space.medium.again(self.log.offset_of(self.cursor));
            if name.is_of(&entry) {
                return Some((self.cursor, entry[ENTRY_WORDS - 1]));
            }
        }
        self.table.find(&mut self.space, &self.log, name, Near::Neither)
    }

    fn submit_batch(&mut self, batch: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()> {
        let from = ticks();
        self.names.clear();
        self.names.extend(batch.iter().map(|SequencedChunk { chunk, .. }| {
            let key = Key::from(&chunk.fingerprint);
            (key, Name::from(&key))
        }));
        if self.prefetches {
            self.prefetch();
        }
        self.table_chunks = 0;
        self.batches += 1;
        self.is_timed = self.batches.is_multiple_of(BATCHES_PER_TIMED);
        let before = self.tally;
        for (index, &SequencedChunk { sequence, .. }) in batch.iter().enumerate() {
            if sequence.0 >> SEQUENCE_BITS != 0 {
                return Err(Error::invalid("a session on mapped memory has at most 2^40 chunks"));
            }
            let (key, name) = self.names[index];
            let verdict = self.arrive(&key, &name, sequence)?;
            resolved.push(Resolved { sequence, verdict });
        }
        self.tally.chunks += batch.len() as u64;
        self.counters.submitted += batch.len() as u64;
        self.sync()?;
        let nanos = (!self.is_timed).then(|| self.clock.nanos(ticks().wrapping_sub(from)));
        self.is_timed = false;
        self.chooser.end_batch(&self.tally.since(&before), nanos);
        Ok(())
    }
}

impl<M: Medium> Identifier for MappedIndex<M> {
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()> {
        chunks.chunks(BATCH_CHUNKS).try_for_each(|batch| self.submit_batch(batch, resolved))
    }

    /// No chunk ever waits for a verdict.
    fn drain(&mut self, _resolved: &mut Vec<Resolved>) -> Result<()> {
        self.sync()
    }

    /// Durable, as far as the medium is, when this returns.
    fn record(&mut self, unit: Unit<'_>) -> Result<()> {
        // Before an entry names it.
        let ordinal = self.containers.register(&mut self.space, unit.container)?;
        let mut line = None;
        for chunk in unit.chunks {
            let key = Key::from(&chunk.fingerprint);
            let name = Name::from(&key);
            let Some((position, word)) = self.locate(&name) else {
                self.filter.test_and_set(&key, &name);
                self.append(&name, State::Recorded(ordinal), Near::Both)?;
                if self.log.unfenced() == UNFENCED_MAX {
                    self.sync()?;
                }
                continue;
            };
            self.cursor = position + 1;
            let stored = State::of(word, position);
            if matches!(stored, State::Recorded(other) if other != ordinal && self.containers.live(other).is_some()) {
                continue;
            }
            self.log.set_state(&mut self.space, position, State::Recorded(ordinal));
            self.counters.updates += 1;
            // Two entries share a line, and are mostly consecutive.
            let offset = self.log.offset_of(position);
            let of_entry = offset - offset % (2 * ENTRY_BYTES);
            if let Some(before) = line.replace(of_entry).filter(|before| *before != of_entry) {
                self.space.medium.flush(before, ENTRY_BYTES);
            }
        }
        if let Some(last) = line {
            self.space.medium.flush(last, ENTRY_BYTES);
        }
        self.is_unfenced = true;
        self.sync()?;
        // After all entries.
        self.containers.complete(&mut self.space, ordinal)
    }

    fn forget(&mut self, containers: &[ContainerId]) -> Result<()> {
        self.containers.forget(&mut self.space, containers)
    }

    fn pending(&self) -> usize {
        0
    }

    fn counters(&self) -> Counters {
        let traffic = self.space.medium.traffic();
        let mut counters = self.counters;
        counters.evictions = self.cache.evictions();
        counters.schedule_changes = self.chooser.changes();
        counters.lookup_batches = counters.lookups;
        counters.pages_read = traffic.misses;
        counters.bytes_read = traffic.misses * onefold_sys::LINE_BYTES as u64 + traffic.bytes_copied;
        counters.bytes_written = traffic.bytes_written;
        counters
    }
}
