//! Looking pending chunks up in the table, and bringing them to their verdicts.

use crate::index::arrivals::Outcome;
use crate::index::identify::Index;
use crate::index::options::Schedule;
use crate::index::pending::PendingChunk;
use crate::index::slot::Slot;
use crate::index::windows::Hit;
use crate::index::{Resolved, SequencedChunk, Verdict};
use crate::kv::{BATCH_PAGES_MAX, Entry, Key, Lookup, Position};
use crate::types::{Chunk, ContainerId};

impl Index {
    /// Takes note of a chunk that begins to wait; looks up once as many do in its bucket, or in a pool, as the schedule says.
    pub(super) fn schedule_lookup(&mut self, slot: Slot, chunk: &SequencedChunk, bucket: u32) {
        let threshold = self.options.threshold();
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => self.note_waiting(slot, chunk),
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                if threshold <= self.session.pending.bucket_len(bucket) {
                    self.look_up_bucket(bucket);
                }
            }
        }
    }

    /// Looks a bucket's chunks up. For a pool, which has one bucket, it may do to take the answers that are due.
    pub(super) fn look_up_bucket(&mut self, bucket: u32) {
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => {
                if !self.take_answers() {
                    self.look_up_pool();
                }
            }
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                let mut slots = Vec::new();
                self.session.pending.list_bucket(bucket, &mut slots);
                self.look_up_slots(&slots);
            }
        }
    }

    /// Brings everything that waits to a verdict: the first of each cycle before the others, since what its hit brings in
    /// answers most of them; what is left in the order of the table.
    pub(super) fn look_up_all(&mut self) {
        self.take_answers();
        let mut slots = Vec::new();
        self.session.pending.list_heads(&mut slots);
        self.look_up_slots(&slots);
        match self.options.schedule {
            Schedule::Pool { .. } | Schedule::Adaptive { .. } => self.look_up_pool(),
            Schedule::Eager | Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => {
                self.session.pending.list(&mut slots);
                self.look_up_slots(&slots);
            }
        }
    }

    pub(super) fn look_up_slots(&mut self, slots: &[Slot]) {
        for piece in slots.chunks(BATCH_PAGES_MAX) {
            // A window that was read for an earlier piece may have answered for some of these.
            let chunks: Vec<PendingChunk> = piece.iter().filter_map(|&slot| self.session.take(slot)).collect();
            self.look_up(&chunks);
            // What this has shown about runs decides how much the next hits read.
            self.arrivals.advance();
        }
    }

    /// Looks up a chunk that has just arrived. Where it was expected in the log, the log is read on instead.
    pub(super) fn look_up_immediately(&mut self, chunk: PendingChunk, expected: Option<Position>) {
        if let Some(start) = expected.filter(|_| expected == self.read_up_to) {
            self.read_ahead(start);
            let cached = self.cache.get(&chunk.first.chunk.fingerprint);
            let found =
                cached.and_then(|(ordinal, position)| Some((self.store.registry.live_container(ordinal)?, position)));
            if let Some((container, position)) = found {
                self.counters.postlookup_hits += 1;
                self.resolve(&chunk, Some((container, position)));
                // The next chunk of the run is expected from here on.
                self.arrivals.advance();
                return;
            }
        }
        self.look_up(&[chunk]);
        self.arrivals.advance();
    }

    /// Looks chunks up together, then reads around the hits, which may answer for others that wait.
    fn look_up(&mut self, chunks: &[PendingChunk]) {
        if chunks.is_empty() {
            return;
        }
        let keys: Vec<Key> = chunks.iter().map(|chunk| Key::from(&chunk.first.chunk.fingerprint)).collect();
        let mut answers = Vec::with_capacity(keys.len());
        let start = self.timer.now();
        self.store.lookup(&keys, &mut answers);
        self.counters.lookup_nanos += self.timer.nanos_since(start);
        self.counters.lookups += keys.len() as u64;
        self.counters.lookup_batches += 1;
        let hits = self.resolve_all(chunks, answers);
        self.prefetch(hits);
    }

    /// Brings chunks that were looked up to their verdicts; returns the hits.
    pub(super) fn resolve_all(&mut self, chunks: &[PendingChunk], answers: Vec<Lookup>) -> Vec<Hit> {
        let newest = chunks.iter().map(|chunk| chunk.first.sequence).max();
        let mut hits = Vec::new();
        for (chunk, answer) in chunks.iter().zip(answers) {
            let entry = self.count_answer(answer);
            let found =
                entry.and_then(|entry| Some((self.store.registry.live_container(entry.ordinal)?, entry.position)));
            if let Some((_, position)) = found {
                let PendingChunk { first, membership, .. } = *chunk;
                let SequencedChunk { sequence, chunk: Chunk { fingerprint, .. } } = first;
                hits.push(Hit { fingerprint, sequence, position, membership });
            }
            self.resolve(chunk, found);
            if Some(chunk.first.sequence) == newest {
                self.prelookup.note_last_of_batch(found.is_some());
            }
        }
        hits
    }

    fn count_answer(&mut self, answer: Lookup) -> Option<Entry> {
        match answer {
            Lookup::InMemtable(entry) => {
                self.counters.memtable_hits += 1;
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
    fn resolve(&mut self, chunk: &PendingChunk, found: Option<(ContainerId, Position)>) {
        let SequencedChunk { sequence, chunk: Chunk { fingerprint, .. } } = chunk.first;
        let (first, rest, outcome, rest_outcome) = if let Some((container, position)) = found {
            if chunk.membership.is_some() {
                self.session.set_stored(&fingerprint);
            }
            let verdict = Verdict::Stored(container);
            (verdict, verdict, Outcome::At(position), Outcome::At(position))
        } else {
            self.session.set_unique(fingerprint, sequence);
            (Verdict::Unique, Verdict::SameAs(sequence), Outcome::FalsePositive, Outcome::Elsewhere)
        };
        self.arrivals.decide(sequence, outcome);
        self.session.resolved.push(Resolved { sequence, verdict: first });
        for &sequence in &chunk.followers {
            self.arrivals.decide(sequence, rest_outcome);
            self.session.resolved.push(Resolved { sequence, verdict: rest });
        }
    }

    pub(super) fn answer(&mut self, slot: Slot, container: Option<ContainerId>, position: Position) {
        let Some(container) = container else {
            self.counters.dead_hits += 1;
            return;
        };
        if let Some(chunk) = self.session.take(slot) {
            self.counters.postlookup_hits += 1;
            self.resolve(&chunk, Some((container, position)));
        }
    }
}
