//! Looking pending chunks up in the table, and what hits bring in.
//!
//! A hit is seldom alone: what arrived near the chunk when it was stored is likely to wait with it. So a hit reads a
//! window of the arrival log, which starts as many records before the hit as the chunk's rank in its cycle says, and the
//! window's records answer other pending chunks (Ma et al., section 3.3).
//!
//! Two ways to tell which: the lazy schedule asks the cache for the hit's cycle, as the paper does; all others probe the
//! window's records in the map of pending chunks, which costs less for each record and answers those of other cycles too
//! (the paper's "exhaustive" comparison scanned everything that waits; a map makes it the cheaper way).
//!
//! A pool looks up the first of every stretch of neighbors first, then the first of what is left of each, and so on: the
//! windows, which look forward, answer most.

use crate::index::arrivals::Outcome;
use crate::index::cycle::Membership;
use crate::index::identify::{Flight, Index};
use crate::index::log::{LOG_PAGE_RECORDS, LogStretch, LogWindow};
use crate::index::options::{RECORDS_PER_BATCH, Schedule, WINDOWS_PER_BATCH, WindowRule};
use crate::index::pending::{PendingChunk, Slot};
use crate::index::{Resolved, Verdict};
use crate::kv::table::{BATCH_PAGES_MAX, Lookup};
use crate::kv::{Entry, Key, Position};
use crate::types::{ContainerId, Fingerprint, Sequence};

/// By how much fewer chunks are passed over in each round of a pool's lookup.
const STRIDE_DIVISOR: usize = 4;
/// Most chunks passed over, however long runs are: as many as a window has records.
const STRIDE_MAX: usize = 2048;
/// Fewest records that an adaptive window takes in. More of the page than that would be read for nothing, since each takes
/// as long to take in as a probe of the filter.
const WINDOW_RECORDS_MIN: u64 = 16;
/// Shortest mean run of duplicates at which repeats are followed: what is shorter costs as many reads as it saves.
const FOLLOW_RUN_MIN: u64 = 32;
/// Chunks passed over so long as nothing is known about runs.
const STRIDE_AT_FIRST: usize = 16;

/// A hit whose neighborhood may be worth reading.
#[derive(Clone, Copy, Debug)]
struct Hit {
    fingerprint: Fingerprint,
    position: Position,
    membership: Option<Membership>,
}

impl Index {
    /// Looks up once as many wait in a bucket, or in a pool, as the schedule says.
    pub(super) fn go_through(&mut self, bucket: u32, resolved: &mut Vec<Resolved>) {
        let threshold = self.options.threshold();
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } if threshold <= self.turns.fresh => {
                self.go_through_pool(resolved);
            }
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => {}
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                if threshold <= self.pending.bucket_len(bucket) {
                    self.look_up_bucket(bucket, resolved);
                }
            }
        }
    }

    /// Goes through a pool once it is long ago that this was done, however few wait.
    pub(super) fn keep_going_through(&mut self, resolved: &mut Vec<Resolved>) {
        let is_pool = matches!(self.options.schedule, Schedule::Pool { .. } | Schedule::Adaptive { .. });
        let passed = self.next_sequence.0.saturating_sub(self.turns.starts[0]);
        let is_due =
            self.options.pending_age_max / 2 < passed || self.options.pending_bytes_max / 2 < self.turns.fresh_bytes;
        if is_pool && is_due && !self.pending.is_empty() {
            self.go_through_pool(resolved);
        }
    }

    /// Takes the answers of the last lookup beside, starts the next, and reads around the hits of the last one meanwhile.
    ///
    /// What is looked up is the first of every stretch of neighbors that came since the last turn. Those that came in the
    /// turn before are passed over: what is read now is around the first of their stretches. What that has not answered
    /// is looked up in the next turn, in shorter steps, and two turns after that one by one. So the disk has reads to do
    /// all the time, and identification goes on meanwhile.
    fn go_through_pool(&mut self, resolved: &mut Vec<Resolved>) {
        let start = self.now();
        let answers = self.store.end_lookup();
        self.counters.lookup_nanos += self.nanos_since(start);
        let [turn, turn_before, third, fourth] = self.turns.starts.map(Sequence);
        let (left, threshold) = (self.pending.waiting_before(turn_before), self.options.threshold());
        // Where runs follow each other closely, the first of a stretch speaks for a part of it only.
        self.turns.is_dense = threshold / if self.turns.is_dense { 16 } else { 4 } < left;
        if threshold < left {
            // The windows answer few of those that they were to answer: step by step would be too slow.
            let hits = self.settle_asked(answers, resolved);
            self.prefetch(hits, resolved);
            return self.look_up_pool(resolved);
        }
        let stride = self.stride();
        let mut slots = Vec::new();
        self.pending.list_strided(&mut slots, |sequence| match sequence {
            _ if sequence < fourth => Some(1),
            _ if sequence < third => None,
            _ if sequence < turn_before => Some((stride / STRIDE_DIVISOR).max(1)),
            _ if sequence < turn => None,
            _ => Some(stride),
        });
        self.turns.starts = [self.next_sequence.0, turn.0, turn_before.0, third.0];
        (self.turns.fresh, self.turns.fresh_bytes) = (0, 0);
        if !slots.is_empty() {
            let keys = slots.iter().map(|&slot| Key::from(self.pending.ask(slot))).collect();
            self.counters.lookups += slots.len() as u64;
            self.counters.lookup_batches += 1;
            self.store.start_lookup(keys);
        }
        let hits = self.settle_asked(answers, resolved);
        self.asked = slots;
        self.prefetch(hits, resolved);
        self.advance_arrivals();
    }

    /// Waits for the answers of the lookup that goes on beside, if one does, brings its chunks to their verdicts and reads
    /// around the hits; says whether one did.
    pub(super) fn take_answers(&mut self, resolved: &mut Vec<Resolved>) -> bool {
        let Some(hits) = self.take_hits(resolved) else { return false };
        self.prefetch(hits, resolved);
        self.advance_arrivals();
        true
    }

    /// Does the same but for reading around the hits, which are returned.
    fn take_hits(&mut self, resolved: &mut Vec<Resolved>) -> Option<Vec<Hit>> {
        let start = self.now();
        let answers = self.store.end_lookup()?;
        self.counters.lookup_nanos += self.nanos_since(start);
        Some(self.settle_asked(Some(answers), resolved))
    }

    /// Brings the chunks that were being looked up to their verdicts; returns the hits.
    fn settle_asked(&mut self, answers: Option<Vec<Lookup>>, resolved: &mut Vec<Resolved>) -> Vec<Hit> {
        let answers = answers.unwrap_or_default();
        let asked = std::mem::take(&mut self.asked);
        let chunks: Vec<PendingChunk> = asked.into_iter().filter_map(|slot| self.take(slot)).collect();
        assert_eq!(chunks.len(), answers.len(), "nothing else answers for what is being looked up");
        let hits = self.settle_all(&chunks, answers, resolved);
        // What this has shown about runs decides how much the hits read.
        self.advance_arrivals();
        hits
    }

    /// Returns how many neighbors a pool's lookup passes over.
    fn stride(&self) -> usize {
        let runs = self.arrivals.runs();
        // A window answers as many as it has records; where most lookups find nothing, each has to be made.
        let answered = match self.window_records() {
            _ if runs.is_blank() => STRIDE_AT_FIRST,
            _ if runs.is_misled() => 1,
            _ if self.turns.is_dense => usize::try_from(runs.mean_run()).unwrap_or(usize::MAX),
            records => records as usize,
        };
        answered.clamp(1, STRIDE_MAX)
    }

    /// Looks a bucket's chunks up. For a pool, which has one bucket, it may do to take the answers that are due.
    pub(super) fn look_up_bucket(&mut self, bucket: u32, resolved: &mut Vec<Resolved>) {
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => {
                if !self.take_answers(resolved) {
                    self.look_up_pool(resolved);
                }
            }
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                let mut slots = Vec::new();
                self.pending.list_bucket(bucket, &mut slots);
                self.look_up_slots(&slots, resolved);
            }
        }
    }

    /// Brings everything that waits to a verdict: the first of each cycle before the others, since what its hit brings in
    /// answers most of them; what is left in the order of the table.
    pub(super) fn look_up_all(&mut self, resolved: &mut Vec<Resolved>) {
        self.take_answers(resolved);
        let mut slots = Vec::new();
        self.pending.list_heads(&mut slots);
        self.look_up_slots(&slots, resolved);
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => self.look_up_pool(resolved),
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                self.pending.list(&mut slots);
                self.look_up_slots(&slots, resolved);
            }
        }
    }

    /// Looks all of a pool up at once, in as many steps as it takes.
    pub(super) fn look_up_pool(&mut self, resolved: &mut Vec<Resolved>) {
        self.take_answers(resolved);
        let mut stride = STRIDE_MAX;
        let mut slots = Vec::new();
        while !self.pending.is_empty() {
            stride = stride.min(self.stride());
            self.pending.list_strided(&mut slots, |_| Some(stride));
            self.look_up_slots(&slots, resolved);
            stride = (stride / STRIDE_DIVISOR).max(1);
        }
        (self.turns.fresh, self.turns.fresh_bytes) = (0, 0);
    }

    fn look_up_slots(&mut self, slots: &[Slot], resolved: &mut Vec<Resolved>) {
        for piece in slots.chunks(BATCH_PAGES_MAX) {
            // A window that was read for an earlier piece may have answered for some of these.
            let chunks: Vec<PendingChunk> = piece.iter().filter_map(|&slot| self.take(slot)).collect();
            self.look_up(&chunks, resolved);
            // What this has shown about runs decides how much the next hits read.
            self.advance_arrivals();
        }
    }

    /// Looks up a chunk that has just arrived. Where it was expected in the log, the log is read on instead.
    pub(super) fn look_up_at_once(
        &mut self,
        chunk: PendingChunk,
        expected: Option<Position>,
        resolved: &mut Vec<Resolved>,
    ) {
        if let Some(start) = expected.filter(|_| expected == self.read_up_to) {
            let window = LogWindow { start, records: self.window_records() };
            self.counters.read_aheads += 1;
            self.read_windows(&[window], &[], resolved);
            let cached = self.cache.get(&chunk.fingerprint);
            let found = cached.and_then(|(ordinal, position)| Some((self.store.live_container(ordinal)?, position)));
            if let Some((container, position)) = found {
                self.counters.postlookup_hits += 1;
                self.settle(&chunk, Some((container, position)), resolved);
                return;
            }
        }
        self.look_up(&[chunk], resolved);
    }

    fn take(&mut self, slot: Slot) -> Option<PendingChunk> {
        let chunk = self.pending.take(slot)?;
        if let Some(membership) = chunk.membership {
            self.cycles.leave(membership);
        }
        Some(chunk)
    }

    /// Looks chunks up together, then reads around the hits, which may answer for others that wait.
    fn look_up(&mut self, chunks: &[PendingChunk], resolved: &mut Vec<Resolved>) {
        if chunks.is_empty() {
            return;
        }
        let keys: Vec<Key> = chunks.iter().map(|chunk| Key::from(&chunk.fingerprint)).collect();
        let mut answers = Vec::with_capacity(keys.len());
        let start = self.now();
        self.store.lookup(&keys, &mut answers);
        self.counters.lookup_nanos += self.nanos_since(start);
        self.counters.lookups += keys.len() as u64;
        self.counters.lookup_batches += 1;
        let hits = self.settle_all(chunks, answers, resolved);
        self.prefetch(hits, resolved);
    }

    /// Brings chunks that were looked up to their verdicts; returns the hits.
    fn settle_all(&mut self, chunks: &[PendingChunk], answers: Vec<Lookup>, resolved: &mut Vec<Resolved>) -> Vec<Hit> {
        let newest = chunks.iter().map(|chunk| chunk.sequence).max();
        let mut hits = Vec::new();
        for (chunk, answer) in chunks.iter().zip(answers) {
            let entry = self.count_answer(answer);
            let found = entry.and_then(|entry| Some((self.store.live_container(entry.ordinal)?, entry.position)));
            if let Some((_, position)) = found {
                let PendingChunk { fingerprint, membership, .. } = *chunk;
                hits.push(Hit { fingerprint, position, membership });
            }
            self.settle(chunk, found, resolved);
            if Some(chunk.sequence) == newest {
                self.note_last_of_batch(found.is_some());
            }
        }
        hits
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

    /// Brings a chunk that was undecided, and those that joined it, to their verdicts.
    fn settle(&mut self, chunk: &PendingChunk, found: Option<(ContainerId, Position)>, resolved: &mut Vec<Resolved>) {
        let (first, rest, outcome, rest_outcome) = if let Some((container, position)) = found {
            if chunk.membership.is_some() {
                self.flights.remove(&chunk.fingerprint);
            }
            let verdict = Verdict::Stored(container);
            (verdict, verdict, Outcome::At(position), Outcome::At(position))
        } else {
            self.flights.insert(chunk.fingerprint, Flight::Unique(chunk.sequence));
            (Verdict::Unique, Verdict::SameAs(chunk.sequence), Outcome::FalsePositive, Outcome::Elsewhere)
        };
        self.arrivals.decide(chunk.sequence, outcome);
        resolved.push(Resolved { sequence: chunk.sequence, verdict: first });
        for &sequence in &chunk.followers {
            self.arrivals.decide(sequence, rest_outcome);
            resolved.push(Resolved { sequence, verdict: rest });
        }
    }

    /// Returns how many records a hit reads now; 0 if none.
    fn window_records(&self) -> u32 {
        match self.options.window {
            WindowRule::Fixed(records) => records,
            WindowRule::Adaptive(max) => {
                let runs = self.arrivals.runs();
                let wanted = match runs.mean_run() {
                    // Nothing is known: a page costs no more than a lookup.
                    0 => LOG_PAGE_RECORDS as u64,
                    // One by one: a window would answer nobody.
                    1 if !runs.is_blank() => 0,
                    run => (2 * run).max(WINDOW_RECORDS_MIN),
                };
                u32::try_from(wanted.min(u64::from(max))).expect("at most the maximum")
            }
        }
    }

    /// Reads the log around those hits whose neighbors may be waiting, or are yet to come.
    fn prefetch(&mut self, mut hits: Vec<Hit>, resolved: &mut Vec<Resolved>) {
        let records = self.window_records();
        if records == 0 {
            return;
        }
        // The windows of a pool are for one stretch of neighbors each: those of others are no tries in vain.
        let counts_tries = matches!(self.options.schedule, Schedule::Lazy { .. } | Schedule::Exhaustive { .. });
        hits.retain(|hit| match hit.membership {
            Some(membership) if counts_tries && self.cycles.is_worn_out(membership) => false,
            Some(membership) => self.cycles.has_mates(membership),
            None => true,
        });
        hits.sort_unstable_by_key(|hit| hit.position);
        let at_most = WINDOWS_PER_BATCH.min(RECORDS_PER_BATCH / records as usize).max(1);
        let (mut windows, mut cycles) = (Vec::with_capacity(at_most), Vec::with_capacity(at_most));
        let mut read_up_to = 0;
        for hit in hits {
            // What an earlier window of this batch brings needs no read of its own.
            if hit.position.0 < read_up_to {
                continue;
            }
            // Nor does what one before has brought in, unless it ends soon.
            if let Some(end) = self.cache.window_end(&hit.fingerprint) {
                if u64::from(records / 2) <= end.0.saturating_sub(hit.position.0) {
                    continue;
                }
                read_up_to = end.0;
            }
            let mut window = self.window_around(&hit, records);
            let end = window.start.0.saturating_add(u64::from(window.records));
            let again = read_up_to.saturating_sub(window.start.0);
            window.start = Position(window.start.0 + again);
            window.records = window.records.saturating_sub(u32::try_from(again).unwrap_or(u32::MAX));
            read_up_to = end.max(read_up_to);
            windows.push(window);
            cycles.extend(hit.membership);
            if windows.len() == at_most {
                self.read_windows(&windows, &cycles, resolved);
                windows.clear();
                cycles.clear();
            }
        }
        if !windows.is_empty() {
            self.read_windows(&windows, &cycles, resolved);
        }
    }

    fn window_around(&self, hit: &Hit, records: u32) -> LogWindow {
        let rank = hit.membership.map_or(0, |membership| membership.rank);
        let back = match (self.options.schedule, self.options.window) {
            // The first of its stretch was looked up: those before it do not wait.
            (Schedule::Eager | Schedule::Pool { .. } | Schedule::Adaptive { .. }, _) => 0,
            (_, WindowRule::Adaptive(_)) => rank.min(records / 2),
            (_, WindowRule::Fixed(_)) => rank.min(records - 1),
        };
        let start = hit.position.0.saturating_sub(back.into());
        let page = LOG_PAGE_RECORDS as u64;
        let end = match self.options.window {
            // To the end of its last page: that is read anyway, and what is in it may well be wanted.
            WindowRule::Adaptive(_) if page <= u64::from(records) => {
                start.saturating_add(records.into()).div_ceil(page).saturating_mul(page)
            }
            _ => start.saturating_add(records.into()),
        };
        LogWindow { start: Position(start), records: u32::try_from(end - start).unwrap_or(u32::MAX) }
    }

    /// Reads windows of the log into the cache and answers pending chunks by them. `cycles`: of the hits they are for.
    fn read_windows(&mut self, windows: &[LogWindow], cycles: &[Membership], resolved: &mut Vec<Resolved>) {
        let start = self.now();
        let mut stretches = std::mem::take(&mut self.stretches);
        let mut windows = [&self.follow(windows), windows].concat();
        windows.dedup();
        self.store.read_log(&windows, &mut stretches);
        self.counters.prefetch_nanos += self.nanos_since(start);
        let start = self.now();
        for LogStretch { start, records } in &stretches {
            self.cache.insert(*start, records);
        }
        for membership in cycles {
            self.cycles.note_window(membership.cycle);
        }
        if self.at_once {
            self.read_up_to = stretches.last().map(|it| Position(it.start.0 + it.records.len() as u64));
        }
        if !self.pending.is_empty() {
            match self.options.schedule {
                Schedule::Lazy { .. } => self.post_look_up_cycles(cycles, resolved),
                _ => stretches.iter().for_each(|stretch| self.post_look_up_records(stretch, resolved)),
            }
        }
        self.counters.postlookup_nanos += self.nanos_since(start);
        self.stretches = stretches;
    }

    /// Returns stretches that streams went on with where they had come to the place of a window: as much of each as a
    /// window has, and no more of them than can be read with the windows.
    fn follow(&mut self, windows: &[LogWindow]) -> Vec<LogWindow> {
        if self.arrivals.runs().mean_run() < FOLLOW_RUN_MIN {
            return Vec::new();
        }
        let records = self.window_records();
        let room = WINDOWS_PER_BATCH.min(RECORDS_PER_BATCH / (records as usize).max(1)).saturating_sub(windows.len());
        let mut found = self.store.repeats_in(windows);
        found.truncate(room);
        for stretch in &mut found {
            stretch.records = stretch.records.min(records);
        }
        self.counters.follows += found.len() as u64;
        found
    }

    /// Asks the cache for all that wait in some cycles.
    fn post_look_up_cycles(&mut self, cycles: &[Membership], resolved: &mut Vec<Resolved>) {
        let mut members = Vec::new();
        for membership in cycles {
            self.cycles.members(membership.cycle, &mut members);
        }
        members.sort_unstable_by_key(|(_, sequence)| *sequence);
        members.dedup_by_key(|(_, sequence)| *sequence);
        for (slot, sequence) in members {
            let Some(chunk) = self.pending.get(slot, sequence) else { continue };
            // One try more than those in vain: the window that was just read is counted.
            if chunk.membership.is_some_and(|membership| self.cycles.is_worn_out_after(membership, 1)) {
                continue;
            }
            let fingerprint = chunk.fingerprint;
            self.counters.postlookup_probes += 1;
            if let Some((ordinal, position)) = self.cache.get(&fingerprint) {
                let container = self.store.live_container(ordinal);
                self.answer(slot, container, position, resolved);
            }
        }
    }

    /// Answers all that wait and are among the records.
    fn post_look_up_records(&mut self, stretch: &LogStretch, resolved: &mut Vec<Resolved>) {
        self.counters.postlookup_probes += stretch.records.len() as u64;
        for (position, record) in (stretch.start.0..).map(Position).zip(&stretch.records) {
            let Some(&Flight::Pending(slot)) = self.flights.get(&record.fingerprint) else { continue };
            if self.pending.is_asked(slot) {
                continue;
            }
            let container = self.store.live_container(record.ordinal);
            self.answer(slot, container, position, resolved);
        }
    }

    fn answer(&mut self, slot: Slot, container: Option<ContainerId>, position: Position, resolved: &mut Vec<Resolved>) {
        let Some(container) = container else {
            self.counters.dead_hits += 1;
            return;
        };
        if let Some(chunk) = self.take(slot) {
            self.counters.postlookup_hits += 1;
            self.settle(&chunk, Some((container, position)), resolved);
        }
    }
}
