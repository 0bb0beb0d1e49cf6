//! The exact identifier: filter, cache, and table lookups, immediate (eager) or deferred in batches (lazy).
//!
//! A chunk that does not pass the filter is unique. The cache resolves a chunk that passes, or the chunk becomes pending.
//! Pending chunks are looked up in batches. Every hit reads a window of the arrival log, and the window's records resolve
//! other pending chunks without a lookup (Ma et al., section 3, algorithm 1). All schedules of [`Schedule`] share one
//! table, one log and one cache; with the eager one no chunk is pending, and windows only look forward.
//!
//! This file takes chunks in. A schedule decides what is looked up, `lookup.rs` and `round_lookups.rs` carry that out, and
//! `windows.rs` reads around hits.
//!
//! Decisions that the paper leaves open: equal pending chunks are joined and share the verdict of the first. A pending
//! chunk only ever matches recorded chunks, and this session has not recorded it, so it never matches its own followers.
//! A chunk that is resolved at its arrival belongs to no cycle and reads no window, but counts in ranks. A chunk that
//! arrives again after its verdict "unique" is resolved from memory until its container is recorded.

use std::path::Path;
use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::identify::exact::arrivals::{Arrivals, Outcome};
use crate::identify::exact::cache::Cache;
use crate::identify::exact::growing_filter::FilterState;
use crate::identify::exact::last_plan;
use crate::identify::exact::opening::{self, IndexState};
use crate::identify::exact::pending::PendingChunk;
use crate::identify::exact::plan_limits::{Planning, cache_bytes, pending_max, plan_limits};
use crate::identify::exact::prelookup::PrelookupState;
use crate::identify::exact::session::{InFlight, SessionChunks};
use crate::identify::exact::store::Store;
use crate::identify::exact::stream_queue::{Entering, StreamQueue};
use crate::identify::exact::timer::Timer;
use crate::identify::exact::waiting_segment::WaitingSegment;
use crate::identify::locality::successor::Successors;
use crate::identify::options::{Completeness, IndexOptions, Order, PrefetchUnit, Schedule};
use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::rounds::Rounds;
use crate::identify::schedule::trace::Trace;
use crate::identify::schedule::{self, Decision, Event, PendingLimits, View};
use crate::identify::{Counters, Identifier, Mark, Resolved, SequencedChunk, Unit};
use crate::io::{Disk, Host};
use crate::kv::{BucketReads, Key, Position};
use crate::types::{Chunk, ChunkKind, ContainerId, RepositoryId, Sequence};

/// Chunks whose blocks of the filter are loaded together. After them the adaptive schedule decides again.
const BATCH_CHUNKS: usize = 64;

/// The exact index of one repository on this host.
#[derive(Debug)]
pub struct Index {
    pub(in crate::identify) store: Store,
    pub(in crate::identify) cache: Cache,
    pub(in crate::identify) session: SessionChunks,
    pub(in crate::identify) rounds: Rounds,
    pub(in crate::identify) arrivals: Arrivals,
    pub(in crate::identify) options: IndexOptions,
    pub(in crate::identify) schedule: Box<dyn schedule::Schedule>,
    /// Costs of the device under the index.
    pub(in crate::identify) device: DeviceCosts,
    pub(in crate::identify) planning: Planning,
    /// Whether lookups are immediate at the moment.
    pub(in crate::identify) immediate: bool,
    /// End of the last window of an immediate lookup: a stream that continues there continues in the log.
    pub(in crate::identify) read_up_to: Option<Position>,
    pub(in crate::identify) successors: Successors,
    pub(in crate::identify) prelookup: PrelookupState,
    pub(in crate::identify) timer: Timer,
    pub(in crate::identify) counters: Counters,
}

impl Index {
    /// Opens the index in the directory `dir` of a disk; creates its last component if it is missing.
    ///
    /// Fails with [`crate::Error::IndexBusy`] if another writer holds it, and if the disk cannot be written. An index that
    /// is missing, damaged or another repository's starts empty, and the state gives the reason. Call [`Index::attach`]
    /// next.
    pub fn open(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<(Self, IndexState)> {
        let (store, state) = opening::open(disk, Arc::clone(&host), dir, repository, options)?;
        Ok((Self::over(store, host, options), state))
    }

    /// Starts an empty index in the directory `dir` of a disk, whatever stands there; creates its last component if it is
    /// missing. The files of the index that was there are removed.
    ///
    /// Fails with [`crate::Error::IndexBusy`] if another writer holds it, and if the disk cannot be written.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<Self> {
        let store = opening::create(disk, Arc::clone(&host), dir, repository, options)?;
        Ok(Self::over(store, host, options))
    }

    /// Makes an index in memory only, degraded for `reason`. It holds as many chunks as its memtable does; others are
    /// stored again.
    pub(crate) fn without_disk(
        host: Arc<dyn Host>,
        repository: RepositoryId,
        options: &IndexOptions,
        reason: String,
    ) -> Result<Self> {
        let store = opening::without_disk(Arc::clone(&host), repository, options, reason)?;
        Ok(Self::over(store, host, options))
    }

    fn over(store: Store, host: Arc<dyn Host>, options: &IndexOptions) -> Self {
        let device = DeviceCosts::of_reads(store.reads);
        let limits = plan_limits(options, store.filter.bytes_left(), 0, store.unit_records(options.window.max()));
        let last = if options.schedule.plans() { last_plan::read(&store.directory) } else { None };
        let schedule = schedule::of(options, device, &limits, store.positions_end(), last);
        let bytes = cache_bytes(options, store.filter.bytes_left());
        let cache = Cache::new(bytes.saturating_sub(store.units_bytes())).of_units(options.units_of_cache());
        let mut arrivals = Arrivals::default();
        arrivals.trace = options.schedule.plans().then(Trace::default);
        Self {
            store,
            cache,
            session: new_session(options),
            rounds: Rounds::default(),
            arrivals,
            options: options.clone(),
            schedule,
            device,
            planning: Planning::default(),
            immediate: options.schedule == Schedule::Eager,
            read_up_to: None,
            successors: Successors::default(),
            prelookup: PrelookupState::new(options.prelookup),
            timer: Timer::new(host),
            counters: Counters::default(),
        }
    }

    /// Begins a session over the existing containers, sorted; hits in others are ignored from now on. Chunks that the
    /// session before has not recorded are forgotten, and sequences may start at 0 again.
    ///
    /// Returns the containers that are not covered: the caller reads their directories and [`Identifier::record`]s them.
    /// Before the first call no container is live.
    pub fn attach(&mut self, live: &[ContainerId]) -> Result<Vec<ContainerId>> {
        let missing = self.attach_numbered((0..).zip(live.iter().copied()));
        Ok((0..).zip(live).filter(|(number, _)| missing.contains(*number)).map(|(_, id)| *id).collect())
    }

    /// Begins a session as [`Index::attach`] does. The containers come with numbers of the caller's, and those of the
    /// containers that are not covered are returned.
    pub(crate) fn attach_numbered(&mut self, live: impl Iterator<Item = (u32, ContainerId)>) -> Bitmap {
        // The results of the session before are useless.
        self.store.entries.finish_look_up();
        self.store.end_read();
        self.end_stream();
        self.counters.cycles += self.session.cycles.opened;
        self.session = new_session(&self.options);
        self.rounds = Rounds::default();
        let trace = self.arrivals.trace.take().map(|_| Trace::default());
        self.arrivals = Arrivals::default();
        self.arrivals.trace = trace;
        self.read_up_to = None;
        self.successors.restart();
        self.immediate = self.options.schedule == Schedule::Eager;
        self.store.attach(live)
    }

    /// Returns the containers that it knew in full and that a session has not named as live since, until
    /// [`Index::settle_vanished`] is called.
    pub(crate) fn vanished(&self) -> Vec<ContainerId> {
        self.store.registry.vanished().collect()
    }

    /// Takes note of the containers that vanished.
    pub(crate) fn settle_vanished(&mut self) {
        self.store.registry.settle_vanished();
    }

    /// Returns true if containers that other hosts have recorded in its store may be taken. The filter knows nothing of them, so that
    /// each chunk must be looked up.
    pub fn is_shared(&self) -> bool {
        self.store.entries.is_shared() && self.options.order == Order::Unfiltered
    }

    /// Takes containers that another host has recorded in a store that both share, given with the lengths of their files. Returns
    /// true for each that was taken: the caller need not record it. Takes none unless [`Index::is_shared`].
    pub fn take_shared(&mut self, containers: &[(ContainerId, u64)]) -> Result<Vec<bool>> {
        if self.is_shared() { self.store.take_shared(containers) } else { Ok(vec![false; containers.len()]) }
    }

    /// Returns true if a session has recorded the container, which was durable then.
    pub(crate) fn knows(&self, container: ContainerId) -> bool {
        self.store.registry.ordinal(container).is_some()
    }

    /// Returns the length that a container's file had when it was recorded, if it is known.
    pub(crate) fn stored_len(&self, container: ContainerId) -> Option<u64> {
        self.store.registry.len_of(container)
    }

    /// Returns why the index may miss chunks from now on: it could not be written, or it is damaged.
    ///
    /// A degraded index continues to give verdicts. The next opening falls back to the last checkpoint or starts empty.
    pub fn degraded(&self) -> Option<String> {
        self.store.degraded()
    }

    /// Returns the size of the filter, and how full it is.
    pub fn filter_state(&self) -> FilterState {
        self.store.filter.state()
    }

    /// Returns how lookups read the table.
    pub(crate) fn reads(&self) -> BucketReads {
        self.store.reads
    }

    /// Makes everything recorded durable: a crash falls back to this state. Costs a write of the filter and of the
    /// memtable. A failure degrades the index and is no error; see [`Index::degraded`].
    #[cfg(test)]
    pub(crate) fn checkpoint(&mut self) {
        self.store.save();
    }

    /// Makes everything recorded durable and closes the index. After an error the next opening falls back to the
    /// last checkpoint.
    pub fn close(mut self) -> Result<()> {
        self.end_stream();
        if self.options.schedule.plans() {
            last_plan::write(&self.store.directory, self.schedule.last_plan());
        }
        self.store.close()
    }

    pub(in crate::identify) fn arrive(&mut self, chunk: &SequencedChunk) {
        let &SequencedChunk { sequence, chunk: Chunk { fingerprint, .. }, .. } = chunk;
        self.counters.submitted += 1;
        self.session.next_sequence = Sequence(sequence.0 + 1);
        if let Some(stream) = &mut self.session.stream {
            stream.arrive(sequence, chunk.chunk, chunk.kind == ChunkKind::Data);
        }
        match self.session.get(&fingerprint) {
            Some(InFlight::Unique(first)) => {
                self.counters.in_flight_hits += 1;
                self.arrivals.arrive_decided(sequence, Outcome::Elsewhere);
                self.session.resolve_same(sequence, first);
                return;
            }
            Some(InFlight::Pending(slot)) => {
                self.counters.in_flight_hits += 1;
                self.counters.joined += 1;
                self.arrivals.arrive(sequence);
                self.session.pending.join(slot, sequence);
                return;
            }
            Some(InFlight::Recorded(ordinal)) => {
                // Its container may have been forgotten since.
                if let Some(found) = self.live(ordinal, Position::NONE) {
                    self.counters.in_flight_hits += 1;
                    self.arrivals.arrive_decided(sequence, Outcome::Elsewhere);
                    self.session.resolve_stored(sequence, &found, Entering::IfSampled);
                    return;
                }
                self.session.set_entered(&fingerprint);
            }
            None => {}
        }
        let probes_first = self.options.order == Order::CacheFirst && self.prelookup.is_on;
        // A chunk in the cache was stored, so the filter has its bits.
        if probes_first && self.pre_look_up(sequence, &fingerprint) {
            self.session.cycles.pass_candidate();
            return;
        }
        if !self.passes_filter(&fingerprint) {
            self.pass_unique(sequence, fingerprint);
            return;
        }
        self.session.cycles.pass_candidate();
        if self.prelookup.is_on && !probes_first && self.pre_look_up(sequence, &fingerprint) {
            return;
        }
        if !self.options.looks_up_rest() {
            self.pass_unique(sequence, fingerprint);
            return;
        }
        if self.immediate {
            let expected = self.arrivals.expected().filter(|_| self.options.follows());
            self.arrivals.arrive(sequence);
            let chunk = PendingChunk { first: *chunk, membership: None, followers: Vec::new() };
            self.look_up_immediately(chunk, expected);
            return;
        }
        self.arrivals.arrive(sequence);
        let (slot, bucket) = self.session.add_pending(chunk, self.rounds.join_run(sequence));
        let first = self.rounds.run.first;
        let first_is_pending = first.is_some_and(|(slot, sequence)| self.session.pending.get(slot, sequence).is_some());
        self.rounds.push(slot, chunk, first_is_pending);
        let len = self.session.pending.bucket_len(bucket);
        let decision = self.ask(Event::Added { bucket, len });
        self.carry_out(decision);
    }

    /// Returns what the schedule decides after an event.
    fn ask(&mut self, event: Event) -> Decision {
        let next = self.session.next_sequence.0;
        let oldest = if event == Event::BatchEnd { self.session.pending.oldest() } else { None };
        let head = self.rounds.run.first;
        let view = View {
            event,
            pending: self.session.pending.len(),
            pending_bytes: self.session.pending.bytes,
            oldest_age: oldest.map(|(sequence, _)| next.saturating_sub(sequence.0)),
            since_round: next.saturating_sub(self.rounds.last_start()),
            rounds: &self.rounds,
            run_head_waits: head.is_some_and(|(slot, _)| !self.session.pending.is_in_lookup(slot)),
            runs: &self.arrivals.runs,
            is_immediate: self.immediate,
            limits: PendingLimits {
                chunks: pending_max(&self.options, self.store.filter.bytes_left()),
                bytes: self.options.pending_bytes_max,
                age: self.options.pending_age_max,
            },
        };
        self.schedule.next(&view)
    }

    /// Lets the schedule decide after a batch of chunks, until it waits for more.
    fn end_batch(&mut self) {
        loop {
            self.arrivals.advance();
            match self.ask(Event::BatchEnd) {
                Decision::Wait => break,
                decision => self.carry_out(decision),
            }
        }
    }

    /// Gives up the memory of the cache that filter and units have grown to.
    fn shrink_cache(&mut self) {
        let bytes = cache_bytes(&self.options, self.store.filter.bytes_left());
        self.cache.shrink(bytes.saturating_sub(self.store.units_bytes()));
    }

    /// Hands the runs that have ended to the duplicate-run log.
    fn log_duplicate_runs(&mut self) {
        let ended = self.arrivals.take_ended();
        // Only windows are followed by the runs that came after them.
        for run in ended.iter().filter(|_| self.options.unit == PrefetchUnit::Window) {
            self.store.log_duplicate_run(run, run.uniques_before.saturating_sub(self.session.recorded));
        }
    }
}

fn new_session(options: &IndexOptions) -> SessionChunks {
    let has_stream = matches!(options.unit, PrefetchUnit::Segment { .. });
    let stream = has_stream.then(|| StreamQueue::new(options.stream_waiting_max, options.segmenting));
    let keeps_members = matches!(options.schedule, Schedule::Lazy { .. });
    let mut session = SessionChunks::new(options.buckets(), options.cycles, keeps_members, stream);
    session.segment = options.selection.waits().then(|| WaitingSegment::new(options.segmenting));
    session
}

impl Identifier for Index {
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()> {
        for batch in chunks.chunks(BATCH_CHUNKS) {
            for SequencedChunk { chunk, .. } in batch {
                if self.options.order != Order::Unfiltered {
                    self.store.filter.prefetch(&Key::from(&chunk.fingerprint));
                }
                self.cache.prefetch(&chunk.fingerprint);
            }
            self.planning.count(batch);
            self.timer.begin_batch();
            let waits = self.session.segment.is_some();
            for chunk in batch {
                if waits { self.wait(chunk) } else { self.arrive(chunk) }
            }
            self.end_batch();
            self.plan();
            self.log_duplicate_runs();
            self.log_stream();
        }
        self.shrink_cache();
        resolved.append(&mut self.session.resolved);
        Ok(())
    }

    fn mark(&mut self, mark: Mark, resolved: &mut Vec<Resolved>) -> Result<()> {
        if mark == Mark::FileEnd {
            match (&mut self.session.segment, &mut self.session.stream) {
                (Some(segment), _) => {
                    if segment.end_file() {
                        self.answer_segment(false);
                        self.end_batch();
                    }
                }
                (None, Some(queue)) => {
                    queue.end_file();
                }
                (None, None) => {}
            }
        }
        resolved.append(&mut self.session.resolved);
        Ok(())
    }

    fn is_exact(&self) -> bool {
        self.options.completeness == Completeness::Exact
    }

    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> Result<()> {
        self.answer_segment(true);
        if !self.session.pending.is_empty() {
            self.counters.drains += 1;
            self.look_up_all();
        }
        self.arrivals.finish();
        self.log_duplicate_runs();
        self.log_stream();
        resolved.append(&mut self.session.resolved);
        Ok(())
    }

    fn record(&mut self, unit: Unit<'_>) -> Result<()> {
        let session = &self.session;
        self.store.record(&unit, &mut |chunk| session.is_entered_later(&chunk.fingerprint));
        let ordinal = self.store.registry.ordinal(unit.container);
        for chunk in unit.chunks {
            self.session.set_recorded(&chunk.fingerprint, ordinal);
        }
        self.log_stream();
        self.shrink_cache();
        Ok(())
    }

    fn forget(&mut self, containers: &[ContainerId]) -> Result<()> {
        for &container in containers {
            self.store.registry.mark_dead(container);
        }
        Ok(())
    }

    fn supersede(&mut self, chunk: &SequencedChunk) -> Result<()> {
        self.session.set_superseded(chunk.chunk.fingerprint, chunk.sequence);
        Ok(())
    }

    fn shun(&mut self, containers: &[ContainerId]) -> Result<()> {
        self.store.registry.shun(containers);
        Ok(())
    }

    fn pending(&self) -> usize {
        self.session.pending.len() + self.session.segment.as_ref().map_or(0, WaitingSegment::waiting)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.cycles += self.session.cycles.opened;
        counters.evictions = self.cache.evictions;
        counters.evictions_for_memory =
            if self.options.cache_units.is_some() { self.cache.evictions_for_memory } else { 0 };
        self.store.count(&mut counters);
        counters
    }
}

#[cfg(test)]
#[path = "identify_caller_tests.rs"]
mod caller;

#[cfg(test)]
#[path = "identify_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "unit_tests.rs"]
mod units;

#[cfg(test)]
#[path = "near_exact_tests.rs"]
mod near_exact;

#[cfg(test)]
#[path = "stream_tests.rs"]
mod streams;
