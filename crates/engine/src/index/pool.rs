//! Going through a pool: the first of every stretch of neighbors is looked up first, then the first of what is left of
//! each, and so on; the windows, which mostly look forward, answer most. Lookups and windows go on beside.

use crate::index::identify::Index;
use crate::index::options::Schedule;
use crate::index::pending::PendingChunk;
use crate::index::slot::Slot;
use crate::index::windows::Hit;
use crate::index::{Resolved, SequencedChunk};
use crate::kv::Key;
use crate::kv::table::Lookup;
use crate::types::Sequence;

/// By how much fewer chunks are passed over in each round of a pool's lookup.
const STRIDE_DIVISOR: usize = 4;
/// Most chunks passed over, however long runs are: as many as a window has records.
const STRIDE_MAX: usize = 2048;
/// Chunks passed over so long as nothing is known about runs.
const STRIDE_AT_FIRST: usize = 16;
/// Neighbors that wait after which there is a run: so many false positives seldom come one after the other.
const RUN_BEGUN: u64 = 16;
/// Shortest mean run of duplicates at which its first is looked up by itself.
const RUN_AHEAD_MIN: u64 = 128;
/// Farthest apart that two chunks of a stretch may be.
const ANSWERED_BETWEEN_MAX: u64 = 64;
/// Turns that are told apart.
const ROUNDS: usize = 6;

/// Chunks that began to wait with no unique one between them, and few that the cache answered. Where a window lacks some
/// of a run, those were recorded later than their neighbors: together, so that one of them speaks for the others.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// Its number; none once a unique chunk has come.
    number: Option<u64>,
    /// Number of the last chunk of it.
    last: u64,
    /// The first of it that waits.
    first: Option<(Slot, Sequence)>,
    /// How many began to wait from that one on.
    len: u64,
}

/// How far a pool was gone through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// Numbers of the chunks that were the next at the last turns, the last turn first.
    starts: [u64; ROUNDS],
    /// Different chunks that began to wait since, and their bytes.
    fresh: usize,
    fresh_bytes: usize,
    /// Whether the first of a stretch of neighbors was seen to leave much of it unanswered.
    is_dense: bool,
    /// The stretch of neighbors that began to wait last.
    extent: Extent,
}

impl Rounds {
    /// Notes that a chunk begins to wait. `first_waits`: whether the first of its stretch still does.
    fn push(&mut self, slot: Slot, chunk: &SequencedChunk, first_waits: bool) {
        self.fresh += 1;
        self.fresh_bytes += chunk.len as usize;
        if !first_waits {
            (self.extent.first, self.extent.len) = (Some((slot, chunk.sequence)), 0);
        }
        self.extent.len += 1;
    }

    /// Notes that a unique chunk has come.
    pub(super) fn pass_unique(&mut self) {
        self.extent.number = None;
    }

    /// Puts a chunk that begins to wait into the stretch that goes on, or into a new one; returns the stretch's number.
    pub(super) fn join_extent(&mut self, Sequence(sequence): Sequence) -> u64 {
        let number = self.extent.number.filter(|_| sequence <= self.extent.last + ANSWERED_BETWEEN_MAX);
        if number.is_none() {
            self.extent = Extent { number: Some(sequence), ..Extent::default() };
        }
        self.extent.last = sequence;
        number.unwrap_or(sequence)
    }

    /// Says whether runs follow each other closely.
    pub(super) fn is_dense(&self) -> bool {
        self.is_dense
    }

    fn begin(&mut self, next: Sequence) {
        self.starts.rotate_right(1);
        self.starts[0] = next.0;
        self.forget_fresh();
    }

    fn forget_fresh(&mut self) {
        (self.fresh, self.fresh_bytes) = (0, 0);
    }

    /// Returns how many neighbors of a chunk the next lookup passes over, given by how many it does at first; `None`: it is
    /// not its turn, since windows near it are being read.
    fn stride(&self, Sequence(sequence): Sequence, at_first: usize) -> Option<usize> {
        let rounds = self.starts.iter().take_while(|&&start| sequence < start).count();
        match (rounds, self.is_dense) {
            // The first of each stretch, however long: the runs in it are found one after the other.
            (0 | 2, true) => Some(usize::MAX),
            (0, false) | (4, true) => Some(at_first),
            (2, false) => Some((at_first / STRIDE_DIVISOR).max(1)),
            (1 | 3, _) | (5, true) => None,
            _ => Some(1),
        }
    }
}

impl Index {
    /// Looks up the first that waits of a stretch long enough to be of a run, where runs are long: the others of it,
    /// which are yet to come, then find the log's window in the cache and need not wait.
    fn look_ahead_in_run(&mut self, resolved: &mut Vec<Resolved>) {
        let extent = self.rounds.extent;
        if extent.len != RUN_BEGUN || self.arrivals.runs().mean_run() < RUN_AHEAD_MIN {
            return;
        }
        if let Some((slot, _)) = extent.first.filter(|(slot, _)| !self.pending.is_asked(*slot)) {
            self.look_up_slots(&[slot], resolved);
        }
    }

    /// Notes that a chunk has begun to wait. Goes through a pool once so many do that it pays; looks ahead in a run that
    /// has begun.
    pub(super) fn note_waiting(&mut self, slot: Slot, chunk: &SequencedChunk, resolved: &mut Vec<Resolved>) {
        let first = self.rounds.extent.first;
        let first_waits = first.is_some_and(|(slot, sequence)| self.pending.get(slot, sequence).is_some());
        self.rounds.push(slot, chunk, first_waits);
        // Smaller turns where it takes more of them.
        let threshold = self.options.threshold() >> u32::from(self.rounds.is_dense);
        if threshold <= self.rounds.fresh {
            self.advance_pool(resolved);
        } else {
            self.look_ahead_in_run(resolved);
        }
    }

    /// Goes through a pool once it is long ago that this was done, however few wait.
    pub(super) fn keep_advancing(&mut self, resolved: &mut Vec<Resolved>) {
        let is_pool = matches!(self.options.schedule, Schedule::Pool { .. } | Schedule::Adaptive { .. });
        let passed = self.next_sequence.0.saturating_sub(self.rounds.starts[0]);
        // A chunk is looked up within six turns: before it is too old.
        let is_due =
            self.options.pending_age_max / 8 < passed || self.options.pending_bytes_max / 2 < self.rounds.fresh_bytes;
        if is_pool && is_due && !self.pending.is_empty() {
            self.advance_pool(resolved);
        }
    }

    /// Takes the windows that were read beside and the answers of the lookup beside, and starts the next of both.
    ///
    /// What is looked up is the first of every stretch of neighbors that came since the last turn. Those that came in the
    /// turn before are passed over: windows around the first of their stretches are being read. What these do not answer
    /// is looked up in the next turn, in shorter steps, and two turns after that one by one. So the disk has reads to do
    /// all the time, and identification goes on meanwhile.
    fn advance_pool(&mut self, resolved: &mut Vec<Resolved>) {
        self.take_windows(resolved);
        let start = self.now();
        let answers = self.store.end_lookup();
        self.counters.lookup_nanos += self.nanos_since(start);
        let round_before = Sequence(self.rounds.starts[1]);
        let (left, threshold) = (self.pending.waiting_before(round_before), self.options.threshold());
        // Where runs follow each other closely, the first of a stretch speaks for a part of it only.
        self.rounds.is_dense = threshold / if self.rounds.is_dense { 16 } else { 4 } < left;
        if self.options.pending_max / 2 < left {
            // The windows answer few of those that they were to answer: step by step would be too slow.
            let hits = self.resolve_asked(answers, resolved);
            self.prefetch(hits, resolved);
            return self.look_up_pool(resolved);
        }
        let stride = self.stride();
        let mut slots = Vec::new();
        let rounds = self.rounds;
        self.pending.list_strided(&mut slots, |sequence| rounds.stride(sequence, stride));
        self.rounds.begin(self.next_sequence);
        if !slots.is_empty() {
            let keys = slots.iter().map(|&slot| Key::from(self.pending.ask(slot))).collect();
            self.counters.lookups += slots.len() as u64;
            self.counters.lookup_batches += 1;
            self.store.start_lookup(keys);
        }
        let hits = self.resolve_asked(answers, resolved);
        self.asked = slots;
        self.prefetch_in_background(hits, resolved);
        self.advance_arrivals();
    }

    /// Waits for what goes on beside, if anything does, brings its chunks to their verdicts and reads around the hits; says
    /// whether a lookup did.
    pub(super) fn take_answers(&mut self, resolved: &mut Vec<Resolved>) -> bool {
        self.take_windows(resolved);
        let start = self.now();
        let Some(answers) = self.store.end_lookup() else { return false };
        self.counters.lookup_nanos += self.nanos_since(start);
        let hits = self.resolve_asked(Some(answers), resolved);
        self.prefetch(hits, resolved);
        self.advance_arrivals();
        true
    }

    /// Brings the chunks that were being looked up to their verdicts; returns the hits.
    fn resolve_asked(&mut self, answers: Option<Vec<Lookup>>, resolved: &mut Vec<Resolved>) -> Vec<Hit> {
        let answers = answers.unwrap_or_default();
        let asked = std::mem::take(&mut self.asked);
        let chunks: Vec<PendingChunk> = asked.into_iter().filter_map(|slot| self.take(slot)).collect();
        assert_eq!(chunks.len(), answers.len(), "nothing else answers for what is being looked up");
        let hits = self.resolve_all(&chunks, answers, resolved);
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
            _ if self.rounds.is_dense => usize::try_from(runs.mean_run()).unwrap_or(usize::MAX),
            records => records as usize,
        };
        answered.clamp(1, STRIDE_MAX)
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
        self.rounds.forget_fresh();
    }
}
