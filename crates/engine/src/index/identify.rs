//! The exact identifier: filter, cache, and table lookups at once (eager) or deferred and put together (lazy).
//!
//! A chunk that the filter does not know is unique. One that it may know is answered by the cache, or waits; what waits
//! is looked up together, and every hit brings in the records around it in the arrival log, which answer for other
//! pending chunks without a lookup (Ma et al., section 3, algorithm 1). All schedules of [`Schedule`] run here, on one
//! table, one log, one cache; the eager one has nobody wait, and windows that only look forward.
//!
//! This file takes chunks in and bounds what waits; `lookup.rs` looks up, `windows.rs` reads around hits, `pool.rs` decides
//! which of a pool.
//!
//! Resolutions where the paper is silent: equal pending chunks are joined and share the verdict of the first. A pending
//! chunk only ever matches what was recorded, and what is pending cannot have been recorded by this session, so it never
//! matches its own followers. A chunk answered at arrival is in no cycle and reads no window, but counts in ranks.
//! A chunk met again after it was declared unique is answered from memory until its container is recorded.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::index::arrivals::{Arrivals, DuplicateRun, Outcome};
use crate::index::cache::Cache;
use crate::index::cycle::Cycles;
use crate::index::identity_hasher::BuildIdentityHasher;
use crate::index::log::LogWindow;
use crate::index::options::{IndexOptions, Order, Prelookup, Schedule};
use crate::index::pending::{Pending, PendingChunk};
use crate::index::pool::Rounds;
use crate::index::slot::Slot;
use crate::index::store::{FilterState, IndexState, Store};
use crate::index::successor::SuccessorMeter;
use crate::index::{Counters, Identifier, Resolved, SequencedChunk, Unit, Verdict};
use crate::io::{Disk, Host};
use crate::kv::table::BucketReads;
use crate::kv::{Key, Position};
use crate::types::{ContainerId, Fingerprint, RepositoryId, Sequence};

/// Chunks whose blocks of the filter are asked for together, and after which the schedule is decided anew.
const PIECE_CHUNKS: usize = 64;

/// Pieces of which one has its accesses to the cache timed: two readings of a clock cost more than an access.
const PIECES_PER_TIMED: u64 = 16;

/// Most false positives for each run of duplicates at which chunks are looked up as they arrive: each is waited for alone.
const FALSE_POSITIVES_IMMEDIATE: u64 = 1;

/// Chunks missed more than found after which [`Prelookup::Adaptive`] gives up.
const NET_MISSES_MAX: i32 = 10;

/// A chunk that this session has met and that is not recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    /// It was declared unique.
    Unique(Sequence),
    /// It waits for a verdict.
    Pending(Slot),
}

/// The exact index of one repository on this host.
#[derive(Debug)]
pub struct Index {
    pub(super) store: Store,
    pub(super) cache: Cache,
    pub(super) in_flight: HashMap<Fingerprint, InFlight, BuildIdentityHasher>,
    pub(super) pending: Pending,
    /// Pending chunks that are being looked up beside.
    pub(super) asked: Vec<Slot>,
    pub(super) rounds: Rounds,
    pub(super) cycles: Cycles,
    pub(super) arrivals: Arrivals,
    pub(super) options: IndexOptions,
    /// Whether chunks are looked up as they arrive, for the time being.
    pub(super) immediate: bool,
    /// Where the last window that looked forward ended: a stream that goes on there goes on in the log.
    pub(super) read_up_to: Option<Position>,
    pub(super) successor_prefetches: SuccessorMeter,
    /// Windows of the cache that had answered something when following was last judged.
    pub(super) useful_before: u64,
    /// Windows among those that are read beside that a repeat led to.
    pub(super) successors_reading: Vec<LogWindow>,
    pub(super) counters: Counters,
    pub(super) asks_cache: bool,
    net_misses: i32,
    host: Arc<dyn Host>,
    is_timed: bool,
    pieces: u64,
    pub(super) next_sequence: Sequence,
    duplicate_runs: Vec<DuplicateRun>,
    recorded: u64,
}

impl Index {
    /// Opens the index in the directory `dir` of a disk, creating its last component where it is missing.
    ///
    /// Fails with [`crate::Error::IndexBusy`] if another writer holds it, and where nothing can be written. What is
    /// missing, damaged or another repository's is started anew; the state says so. [`Index::attach`] comes next.
    pub fn open(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<(Self, IndexState)> {
        let (store, state) = Store::open(disk, Arc::clone(&host), dir, repository, options)?;
        Ok((Self::over(store, host, options), state))
    }

    /// Makes an index in memory only, for want of a place on a disk: it knows as many chunks as its memory for entries
    /// takes, and says `reason` as why it is degraded. What it does not know is stored again.
    pub fn without_disk(
        host: Arc<dyn Host>,
        repository: RepositoryId,
        options: &IndexOptions,
        reason: String,
    ) -> Result<Self> {
        Ok(Self::over(Store::without_disk(Arc::clone(&host), repository, options, reason)?, host, options))
    }

    fn over(store: Store, host: Arc<dyn Host>, options: &IndexOptions) -> Self {
        let cache = Cache::new(options.cache_bytes + store.filter_left());
        Self {
            store,
            cache,
            in_flight: HashMap::default(),
            pending: Pending::new(options.buckets()),
            asked: Vec::new(),
            rounds: Rounds::default(),
            cycles: new_cycles(options),
            arrivals: Arrivals::default(),
            options: options.clone(),
            immediate: options.schedule == Schedule::Eager,
            read_up_to: None,
            successor_prefetches: SuccessorMeter::default(),
            useful_before: 0,
            successors_reading: Vec::new(),
            counters: Counters::default(),
            asks_cache: options.prelookup == Prelookup::Always,
            net_misses: 0,
            host,
            is_timed: false,
            pieces: 0,
            next_sequence: Sequence(0),
            duplicate_runs: Vec::new(),
            recorded: 0,
        }
    }

    /// Begins a session: takes the containers that exist, sorted; hits in others are ignored from now on. What an earlier
    /// session had not recorded is forgotten, and numbers of chunks may start anew.
    ///
    /// Returns those that are not covered: the caller reads their directories and [`Identifier::record`]s them. Before
    /// the first call no container is live.
    pub fn attach(&mut self, live: &[ContainerId]) -> Result<Vec<ContainerId>> {
        self.in_flight.clear();
        self.pending = Pending::new(self.options.buckets());
        // What is being looked up for the session before is of no use.
        self.store.end_lookup();
        self.store.end_read_log();
        self.asked.clear();
        self.rounds = Rounds::default();
        self.counters.cycles += self.cycles.opened();
        self.cycles = new_cycles(&self.options);
        self.arrivals = Arrivals::default();
        self.duplicate_runs.clear();
        (self.recorded, self.read_up_to) = (0, None);
        self.successor_prefetches = SuccessorMeter::default();
        self.immediate = self.options.schedule == Schedule::Eager;
        Ok(self.store.attach(live))
    }

    /// Returns true if the container was recorded, in this run or an earlier one: it was durable then.
    pub fn knows(&self, container: ContainerId) -> bool {
        self.store.knows(container)
    }

    /// Returns how long a container's file was when it was recorded, where that is known.
    pub fn stored_len(&self, container: ContainerId) -> Option<u64> {
        self.store.stored_len(container)
    }

    /// Returns why the index is incomplete from now on: it could not be written, or damage was found in it.
    ///
    /// It goes on answering, but may miss; the next opening falls back to the last checkpoint or starts anew.
    pub fn degraded(&self) -> Option<String> {
        self.store.degraded()
    }

    /// Returns how large the filter is, may be, and how full it is.
    pub fn filter_state(&self) -> FilterState {
        self.store.filter_state()
    }

    /// Returns how lookups read the table.
    pub fn reads(&self) -> BucketReads {
        self.store.reads()
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

    pub(super) fn now(&self) -> Duration {
        self.host.monotonic()
    }

    pub(super) fn nanos_since(&self, start: Duration) -> u64 {
        u64::try_from(self.now().saturating_sub(start).as_nanos()).unwrap_or(u64::MAX)
    }

    fn arrive(&mut self, chunk: &SequencedChunk, resolved: &mut Vec<Resolved>) {
        let &SequencedChunk { sequence, fingerprint, len } = chunk;
        self.counters.submitted += 1;
        self.next_sequence = Sequence(sequence.0 + 1);
        match self.in_flight.get(&fingerprint) {
            Some(&InFlight::Unique(first)) => {
                self.counters.in_flight_hits += 1;
                self.arrivals.arrive_decided(sequence, Outcome::Elsewhere, &mut self.duplicate_runs);
                resolved.push(Resolved { sequence, verdict: Verdict::SameAs(first) });
                return;
            }
            Some(&InFlight::Pending(slot)) => {
                self.counters.in_flight_hits += 1;
                self.counters.joined += 1;
                self.arrivals.arrive(sequence);
                self.pending.join(slot, sequence);
                return;
            }
            None => {}
        }
        let was_asked = self.options.order == Order::CacheFirst && self.asks_cache;
        // What the cache holds was stored, so the filter has its bits.
        if was_asked && self.pre_look_up(sequence, &fingerprint, resolved) {
            self.cycles.pass_candidate();
            return;
        }
        if !self.passes_filter(&fingerprint) {
            self.cycles.pass_unique();
            self.rounds.pass_unique();
            self.arrivals.arrive_decided(sequence, Outcome::Unique, &mut self.duplicate_runs);
            self.in_flight.insert(fingerprint, InFlight::Unique(sequence));
            resolved.push(Resolved { sequence, verdict: Verdict::Unique });
            return;
        }
        self.cycles.pass_candidate();
        if self.asks_cache && !was_asked && self.pre_look_up(sequence, &fingerprint, resolved) {
            return;
        }
        if self.immediate {
            let expected = self.arrivals.expected().filter(|_| self.options.follows_successors);
            self.arrivals.arrive(sequence);
            let chunk = PendingChunk { fingerprint, sequence, len, membership: None, followers: Vec::new() };
            self.look_up_immediately(chunk, expected, resolved);
            return;
        }
        self.arrivals.arrive(sequence);
        let membership = self.cycles.location(sequence);
        let extent = self.rounds.join_extent(sequence);
        let (slot, bucket) = self.pending.push(fingerprint, sequence, len, Some(membership), extent);
        self.cycles.join(membership, slot, sequence);
        self.in_flight.insert(fingerprint, InFlight::Pending(slot));
        self.schedule_lookup(slot, chunk, bucket, resolved);
    }

    /// Asks the filter, which knows the chunk from now on; says whether the table may hold it.
    fn passes_filter(&mut self, fingerprint: &Fingerprint) -> bool {
        if self.options.order == Order::Unfiltered {
            return true;
        }
        self.counters.filter_probes += 1;
        let passes = self.store.filter().test_and_set(&Key::from(fingerprint));
        self.counters.filter_negatives += u64::from(!passes);
        passes
    }

    /// Asks the cache for a chunk as it arrives; says whether that was its verdict.
    fn pre_look_up(&mut self, sequence: Sequence, fingerprint: &Fingerprint, resolved: &mut Vec<Resolved>) -> bool {
        let start = self.is_timed.then(|| self.now());
        let cached = self.cache.get(fingerprint);
        if let Some(start) = start {
            self.counters.prelookup_nanos += PIECES_PER_TIMED * self.nanos_since(start);
        }
        let found = cached.and_then(|(ordinal, position)| Some((self.store.live_container(ordinal)?, position)));
        if let Some((container, position)) = found {
            self.counters.prelookup_hits += 1;
            self.net_misses = (self.net_misses - 1).max(0);
            self.arrivals.arrive_decided(sequence, Outcome::At(position), &mut self.duplicate_runs);
            resolved.push(Resolved { sequence, verdict: Verdict::Stored(container) });
            return true;
        }
        self.counters.dead_hits += u64::from(cached.is_some());
        if self.options.prelookup == Prelookup::Adaptive {
            self.net_misses += 1;
            self.asks_cache = self.net_misses < NET_MISSES_MAX;
        }
        false
    }

    /// Notes whether the last chunk of a batch that was looked up was a duplicate: then its successors may be cached.
    pub(super) fn note_last_of_batch(&mut self, is_duplicate: bool) {
        if self.options.prelookup == Prelookup::Adaptive && is_duplicate {
            self.asks_cache = true;
            self.net_misses = 0;
        }
    }

    /// Looks up while too many chunks or bytes wait, or one has waited too long.
    fn bound_pending(&mut self, resolved: &mut Vec<Resolved>) {
        while let Some((sequence, bucket)) = self.pending.oldest() {
            let age = self.next_sequence.0.saturating_sub(sequence.0);
            if self.options.pending_age_max < age {
                self.look_up_bucket(bucket, resolved);
            } else if self.options.pending_max < self.pending.len()
                || self.options.pending_bytes_max < self.pending.bytes()
            {
                let fullest = self.pending.fullest_bucket();
                self.look_up_bucket(fullest, resolved);
            } else {
                break;
            }
        }
        self.keep_advancing(resolved);
    }

    /// Decides whether chunks are to be looked up as they arrive from now on.
    fn adapt(&mut self, resolved: &mut Vec<Resolved>) {
        if !matches!(self.options.schedule, Schedule::Adaptive { .. }) {
            return;
        }
        let runs = self.arrivals.runs();
        // Once it does, it goes on somewhat longer than it would begin.
        let hold = u32::from(self.immediate);
        let limit = u64::from(self.options.run_immediately) >> hold;
        let immediate = !runs.is_blank()
            && limit <= runs.duplicates_per_lookup()
            && runs.false_positives_per_run() <= FALSE_POSITIVES_IMMEDIATE << hold;
        if immediate != self.immediate {
            self.counters.schedule_changes += 1;
            self.immediate = immediate;
            if immediate {
                // What waits is among the first of its run: the others need not wait for it.
                self.look_up_pool(resolved);
            }
        }
    }

    pub(super) fn advance_arrivals(&mut self) {
        self.arrivals.advance(&mut self.duplicate_runs);
    }

    /// Hands the repeats that have ended to the log of repeats.
    fn log_repeats(&mut self) {
        for duplicate_run in std::mem::take(&mut self.duplicate_runs) {
            self.store.log_duplicate_run(&duplicate_run, duplicate_run.uniques_before.saturating_sub(self.recorded));
        }
    }
}

fn new_cycles(options: &IndexOptions) -> Cycles {
    Cycles::new(options.cycles, matches!(options.schedule, Schedule::Lazy { .. }))
}

impl Identifier for Index {
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()> {
        for piece in chunks.chunks(PIECE_CHUNKS) {
            for chunk in piece {
                if self.options.order != Order::Unfiltered {
                    self.store.filter().prefetch(&Key::from(&chunk.fingerprint));
                }
                self.cache.prefetch(&chunk.fingerprint);
            }
            self.pieces += 1;
            self.is_timed = self.pieces.is_multiple_of(PIECES_PER_TIMED);
            for chunk in piece {
                self.arrive(chunk, resolved);
            }
            self.bound_pending(resolved);
            self.advance_arrivals();
            self.adapt(resolved);
            self.log_repeats();
        }
        Ok(())
    }

    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> Result<()> {
        if !self.pending.is_empty() {
            self.counters.drains += 1;
            self.look_up_all(resolved);
        }
        self.arrivals.finish(&mut self.duplicate_runs);
        self.log_repeats();
        Ok(())
    }

    fn record(&mut self, unit: Unit<'_>) -> Result<()> {
        self.store.record(&unit);
        self.cache.shrink(self.options.cache_bytes + self.store.filter_left());
        for chunk in unit.chunks {
            if let Some(InFlight::Unique(_)) = self.in_flight.get(&chunk.fingerprint) {
                self.in_flight.remove(&chunk.fingerprint);
                self.recorded += 1;
            }
        }
        Ok(())
    }

    fn forget(&mut self, containers: &[ContainerId]) -> Result<()> {
        for &container in containers {
            self.store.mark_dead(container);
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.cycles += self.cycles.opened();
        counters.evictions = self.cache.evictions();
        self.store.count(&mut counters);
        counters
    }
}

#[cfg(test)]
#[path = "identify_caller.rs"]
mod caller;

#[cfg(test)]
#[path = "identify_tests.rs"]
mod tests;
