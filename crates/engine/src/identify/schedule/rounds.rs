//! Lookup rounds of a pool: which pending chunks the next round probes.

use crate::identify::SequencedChunk;
use crate::identify::schedule::plan::{STRIDE_DIVISOR, Stride};
use crate::identify::slot::Slot;
use crate::types::Sequence;

/// Farthest apart that two chunks of a run of pending chunks may be.
const RESOLVED_BETWEEN_MAX: u64 = 64;
/// Rounds that are distinguished.
const ROUNDS: usize = 6;

/// A run of pending neighbors: no unique chunk between them, and few that the cache resolved. If a window lacks part of a
/// run of duplicates, that part was recorded later than its neighbors, and together: one of its chunks leads to the others.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::identify) struct PendingRun {
    /// Its number; none after a unique chunk.
    number: Option<u64>,
    /// Position of its last chunk in the stream.
    last: u64,
    /// Its first pending chunk.
    pub(crate) first: Option<(Slot, Sequence)>,
    /// Pending chunks from the first one on.
    pub(crate) len: u64,
}

/// The last rounds of a pool, and the chunks that became pending since.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::identify) struct Rounds {
    /// Positions in the stream at which the last rounds began, the last round first.
    starts: [u64; ROUNDS],
    /// Different chunks that became pending since the last round.
    pub(crate) fresh: usize,
    /// Bytes of those chunks.
    pub(crate) fresh_bytes: usize,
    /// Whether runs of duplicates follow each other closely: the first chunk of a run of pending chunks left many of the
    /// others unresolved.
    pub(crate) is_dense: bool,
    /// The current run of pending chunks.
    pub(crate) run: PendingRun,
}

impl Rounds {
    /// Notes a new pending chunk. `first_is_pending`: whether the first chunk of its run is still pending.
    pub(in crate::identify) fn push(&mut self, slot: Slot, chunk: &SequencedChunk, first_is_pending: bool) {
        self.fresh += 1;
        self.fresh_bytes += chunk.chunk.len as usize;
        if !first_is_pending {
            (self.run.first, self.run.len) = (Some((slot, chunk.sequence)), 0);
        }
        self.run.len += 1;
    }

    /// Notes a unique chunk: it ends the run.
    pub(in crate::identify) fn pass_unique(&mut self) {
        self.run.number = None;
    }

    /// Adds a chunk to the current run of pending chunks, or to a new one; returns the run's number.
    pub(in crate::identify) fn join_run(&mut self, Sequence(sequence): Sequence) -> u64 {
        let number = self.run.number.filter(|_| sequence <= self.run.last + RESOLVED_BETWEEN_MAX);
        if number.is_none() {
            self.run = PendingRun { number: Some(sequence), ..PendingRun::default() };
        }
        self.run.last = sequence;
        number.unwrap_or(sequence)
    }

    /// Decides whether runs follow each other closely: the round before the last left `left` chunks of a round of
    /// `threshold` unresolved.
    pub(in crate::identify) fn note_left(&mut self, left: usize, threshold: usize) {
        self.is_dense = threshold / if self.is_dense { 16 } else { 4 } < left;
    }

    /// Returns the position in the stream at which the last round began.
    pub(in crate::identify) fn last_start(&self) -> u64 {
        self.starts[0]
    }

    /// Returns the position at which the round before the last began.
    pub(in crate::identify) fn start_before(&self) -> Sequence {
        Sequence(self.starts[1])
    }

    /// Begins a round at the next chunk of the stream.
    pub(crate) fn begin(&mut self, next: Sequence) {
        self.starts.rotate_right(1);
        self.starts[0] = next.0;
        self.forget_fresh();
    }

    pub(in crate::identify) fn forget_fresh(&mut self) {
        (self.fresh, self.fresh_bytes) = (0, 0);
    }

    /// Returns how the next round of a pool selects a chunk and its neighbors, given the distance of its first round. `None`:
    /// the round leaves the chunk out, because windows near it are being read.
    pub(in crate::identify) fn stride(&self, sequence: Sequence, first: u32) -> Option<Stride> {
        match (self.rounds_since(sequence), self.is_dense) {
            // The first of each run of pending chunks, however long: the runs of duplicates in it follow one by one.
            (0 | 2, true) => Some(Stride::InRuns(u32::MAX)),
            (0, false) | (4, true) => Some(Stride::InRuns(first)),
            (2, false) => Some(Stride::InRuns((first / STRIDE_DIVISOR).max(1))),
            (1 | 3, _) | (5, true) => None,
            _ => Some(Stride::Chunks(1)),
        }
    }

    /// Returns the same for a planned round.
    pub(in crate::identify) fn planned_stride(&self, sequence: Sequence, first: Stride) -> Option<Stride> {
        match self.rounds_since(sequence) {
            0 => Some(first),
            2 => Some(first.of_round(1)),
            1 | 3 => None,
            _ => Some(Stride::Chunks(1)),
        }
    }

    /// Returns how many rounds have begun since a chunk arrived.
    fn rounds_since(&self, Sequence(sequence): Sequence) -> usize {
        self.starts.iter().take_while(|&&start| sequence < start).count()
    }
}
