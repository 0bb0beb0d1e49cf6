//! Lookups of pending chunks in the table, and their verdicts.

use crate::identify::exact::arrivals::Outcome;
use crate::identify::exact::identify::Index;
use crate::identify::exact::pending::PendingChunk;
use crate::identify::exact::registry::Preferred;
use crate::identify::exact::session::Location;
use crate::identify::exact::stream_queue::Entering;
use crate::identify::exact::windows::Hit;
use crate::identify::options::Order;
use crate::identify::schedule::{Decision, Selection};
use crate::identify::slot::Slot;
use crate::identify::{Resolved, SequencedChunk, Verdict};
use crate::kv::{Entry, Key, Lookup, Ordinal, Position};
use crate::types::{Chunk, Fingerprint, Sequence};

impl Index {
    /// Carries out a decision of the schedule.
    pub(in crate::identify) fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Wait => {}
            Decision::LookUp(selection) => self.look_up_selection(selection),
            Decision::Switch { is_immediate } => {
                self.counters.schedule_changes += u64::from(self.immediate != is_immediate);
                self.immediate = is_immediate;
                if is_immediate {
                    // The pending chunks are among the first of their run; their windows resolve the others at arrival.
                    self.look_up_pool();
                }
            }
        }
    }

    fn look_up_selection(&mut self, selection: Selection) {
        match selection {
            Selection::Bucket(bucket) => self.look_up_slots(&self.session.pending.of_bucket(bucket)),
            Selection::OldestBucket => {
                if let Some((_, bucket)) = self.session.pending.oldest() {
                    self.look_up_slots(&self.session.pending.of_bucket(bucket));
                }
            }
            Selection::FullestBucket => {
                let fullest = self.session.pending.fullest_bucket();
                self.look_up_slots(&self.session.pending.of_bucket(fullest));
            }
            Selection::Round => self.advance_pool(),
            Selection::LastRound => {
                if !self.take_answers() {
                    self.look_up_pool();
                }
            }
            Selection::All => self.look_up_pool(),
            Selection::RunHead => self.look_up_run_head(),
        }
    }

    /// Resolves all pending chunks. The first chunk of each cycle comes before the others, because the window around its
    /// hit resolves most of them. The rest follows in the order of the table.
    pub(in crate::identify) fn look_up_all(&mut self) {
        self.take_answers();
        self.look_up_slots(&self.session.pending.heads());
        if self.options.schedule.is_pool() {
            self.look_up_pool();
        } else {
            self.look_up_slots(&self.session.pending.by_bucket());
        }
    }

    pub(in crate::identify) fn look_up_slots(&mut self, slots: &[Slot]) {
        for batch in slots.chunks(self.options.store.lookups_max()) {
            // The window of an earlier batch may have resolved some of these.
            let chunks = self.session.take_all(batch);
            self.look_up(&chunks);
            // The runs seen so far decide how much the next hits read.
            self.arrivals.advance();
        }
    }

    /// Looks up a chunk that has just arrived. If the log was expected to continue with it, reads the log ahead first.
    pub(in crate::identify) fn look_up_immediately(&mut self, chunk: PendingChunk, expected: Option<Position>) {
        let mut found = None;
        if let Some(start) = expected.filter(|_| expected == self.read_up_to) {
            self.read_ahead(start);
            let cached = self.cache.get(&chunk.first.chunk.fingerprint);
            found = cached.and_then(|(ordinal, position)| self.live(ordinal, position));
        }
        if found.is_some() {
            self.counters.postlookup_hits += 1;
            self.resolve(&chunk, found, Entering::IfSampled);
        } else {
            self.look_up(&[chunk]);
        }
        // The position that the next chunk of the run is expected at follows this one.
        self.arrivals.advance();
    }

    /// Looks chunks up in one batch, then reads windows around the hits, which may resolve other pending chunks.
    pub(in crate::identify) fn look_up(&mut self, chunks: &[PendingChunk]) {
        if chunks.is_empty() {
            return;
        }
        let keys: Vec<Key> = chunks.iter().map(|chunk| Key::from(&chunk.first.chunk.fingerprint)).collect();
        let start = self.timer.now();
        let answers = self.store.entries.look_up(&keys, &Preferred(&self.store.registry));
        self.counters.lookup_nanos += self.timer.nanos_since(start);
        self.counters.lookups += keys.len() as u64;
        self.counters.lookup_batches += 1;
        let hits = self.resolve_all(chunks, answers);
        self.prefetch(hits);
    }

    /// Resolves chunks by their answers; returns the hits.
    pub(in crate::identify) fn resolve_all(&mut self, chunks: &[PendingChunk], answers: Vec<Lookup>) -> Vec<Hit> {
        self.count_rewritten(chunks, &answers);
        let newest = chunks.iter().map(|chunk| chunk.first.sequence).max();
        let mut hits = Vec::new();
        for (chunk, answer) in chunks.iter().zip(answers) {
            let found = self.count_answer(answer).and_then(|entry| self.live(entry.ordinal, entry.position));
            if let Some(Location { ordinal, position, .. }) = found {
                self.counters.lookups_without_unit += u64::from(self.store.lacks_unit(position));
                let PendingChunk {
                    first: SequencedChunk { sequence, chunk: Chunk { fingerprint, .. }, .. },
                    membership,
                    ..
                } = *chunk;
                hits.push(Hit { fingerprint, sequence, ordinal, position, membership });
            }
            let lacks_segment = found.is_some_and(|found| self.store.lacks_segment(found.position));
            self.resolve(chunk, found, if lacks_segment { Entering::Again } else { Entering::IfSampled });
            if Some(chunk.first.sequence) == newest {
                self.prelookup.note_last_of_batch(found.is_some());
            }
        }
        hits
    }

    /// Counts the chunks that are stored again because only shunned containers hold them.
    fn count_rewritten(&mut self, chunks: &[PendingChunk], answers: &[Lookup]) {
        let registry = &self.store.registry;
        if !registry.shuns() {
            return;
        }
        let dead = chunks.iter().zip(answers).filter(|(_, answer)| **answer == Lookup::Dead);
        let (keys, lens): (Vec<Key>, Vec<u32>) =
            dead.map(|(chunk, _)| (Key::from(&chunk.first.chunk.fingerprint), chunk.first.chunk.len)).unzip();
        let found = self.store.entries.look_up(&keys, registry);
        for (answer, len) in found.into_iter().zip(lens) {
            if answer.entry().is_some_and(|entry| registry.is_shunned(entry.ordinal)) {
                self.counters.rewritten_chunks += 1;
                self.counters.rewritten_bytes += u64::from(len);
            }
        }
    }

    pub(in crate::identify) fn count_answer(&mut self, answer: Lookup) -> Option<Entry> {
        let (counter, entry) = match answer {
            Lookup::InMemory(entry) => (&mut self.counters.memtable_hits, Some(entry)),
            Lookup::OnDisk(entry) => (&mut self.counters.disk_hits, Some(entry)),
            Lookup::Dead => (&mut self.counters.dead_hits, None),
            Lookup::Absent => (&mut self.counters.filter_false_positives, None),
        };
        *counter += 1;
        entry
    }

    /// Declares an arriving chunk unique.
    pub(in crate::identify) fn pass_unique(&mut self, sequence: Sequence, fingerprint: Fingerprint) {
        self.session.cycles.pass_unique();
        self.rounds.pass_unique();
        self.arrivals.arrive_decided(sequence, Outcome::Unique);
        self.session.set_unique(fingerprint, sequence);
        self.session.resolved.push(Resolved { sequence, verdict: Verdict::Unique });
    }

    /// Adds the chunk to the filter; returns true if the table may hold it.
    pub(in crate::identify) fn passes_filter(&mut self, fingerprint: &Fingerprint) -> bool {
        if self.options.order == Order::Unfiltered {
            return true;
        }
        self.counters.filter_probes += 1;
        let passes = self.store.filter.test_and_set(&Key::from(fingerprint));
        self.counters.filter_negatives += u64::from(!passes);
        passes
    }

    /// Probes the cache for an arriving chunk; returns true if that resolved it.
    pub(in crate::identify) fn pre_look_up(&mut self, sequence: Sequence, fingerprint: &Fingerprint) -> bool {
        let start = self.timer.sample();
        let cached = self.cache.get(fingerprint);
        if let Some(start) = start {
            self.counters.prelookup_nanos += self.timer.nanos_of_sample(start);
        }
        if let Some(found) = cached.and_then(|(ordinal, position)| self.live(ordinal, position)) {
            self.counters.prelookup_hits += 1;
            self.prelookup.note_hit();
            self.arrivals.arrive_decided(sequence, Outcome::At(found.position));
            self.session.resolve_stored(sequence, &found, Entering::IfSampled);
            return true;
        }
        self.counters.dead_hits += u64::from(cached.is_some());
        self.prelookup.note_miss();
        false
    }

    /// Returns a record's location; `None` if its container is not live.
    pub(in crate::identify) fn live(&self, ordinal: Ordinal, position: Position) -> Option<Location> {
        Some(Location { container: self.store.registry.live_container(ordinal)?, ordinal, position })
    }

    /// Gives a chunk and its followers their verdicts.
    fn resolve(&mut self, chunk: &PendingChunk, found: Option<Location>, entering: Entering) {
        let SequencedChunk { sequence: first, chunk: Chunk { fingerprint, .. }, .. } = chunk.first;
        if let Some(found) = found {
            if chunk.membership.is_some() {
                self.session.set_stored(&fingerprint);
            }
            self.session.resolve_stored(first, &found, entering);
            self.arrivals.decide(first, Outcome::At(found.position));
            for &sequence in &chunk.followers {
                self.arrivals.decide(sequence, Outcome::At(found.position));
                self.session.resolve_stored(sequence, &found, Entering::IfSampled);
            }
        } else {
            self.session.set_unique(fingerprint, first);
            self.arrivals.decide(first, Outcome::FalsePositive);
            self.session.resolved.push(Resolved { sequence: first, verdict: Verdict::Unique });
            for &sequence in &chunk.followers {
                self.arrivals.decide(sequence, Outcome::Elsewhere);
                self.session.resolve_same(sequence, first);
            }
        }
    }

    /// Resolves a pending chunk by a record of a log window; `None`: the record's container is not live.
    pub(in crate::identify) fn resolve_by_window(&mut self, slot: Slot, found: Option<Location>) {
        if found.is_none() {
            self.counters.dead_hits += 1;
        } else if let Some(chunk) = self.session.take(slot) {
            self.counters.postlookup_hits += 1;
            self.resolve(&chunk, found, Entering::IfSampled);
        }
    }
}
