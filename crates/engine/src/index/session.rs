//! The chunks of a session that are not recorded yet, by fingerprint.

use std::collections::HashMap;

use crate::index::cycle::{CycleRule, Cycles};
use crate::index::identity_hasher::BuildIdentityHasher;
use crate::index::pending::{Pending, PendingChunk};
use crate::index::slot::Slot;
use crate::index::{Resolved, SequencedChunk};
use crate::types::{Chunk, Fingerprint, Sequence};

/// State of a chunk that this session has met and that is not recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    /// It was declared unique.
    Unique(Sequence),
    /// It waits for a verdict.
    Pending(Slot),
}

/// The in-flight chunks: pending ones with their cycles, and unique ones until their container is recorded.
#[derive(Debug)]
pub(super) struct SessionChunks {
    in_flight: HashMap<Fingerprint, InFlight, BuildIdentityHasher>,
    pub(super) pending: Pending,
    pub(super) cycles: Cycles,
    /// Chunks that a lookup in the background is for.
    pub(super) asked: Vec<Slot>,
    /// Verdicts that the caller has not taken yet.
    pub(super) resolved: Vec<Resolved>,
    /// Position of the next chunk in the stream.
    pub(super) next_sequence: Sequence,
    /// Unique chunks of this session that were recorded.
    recorded: u64,
}

impl SessionChunks {
    /// Starts a session with `buckets` buckets of pending chunks. `keeps_members`: see [`Cycles::new`].
    pub(super) fn new(buckets: u32, cycles: CycleRule, keeps_members: bool) -> Self {
        Self {
            in_flight: HashMap::default(),
            pending: Pending::new(buckets),
            cycles: Cycles::new(cycles, keeps_members),
            asked: Vec::new(),
            resolved: Vec::new(),
            next_sequence: Sequence(0),
            recorded: 0,
        }
    }

    pub(super) fn get(&self, fingerprint: &Fingerprint) -> Option<InFlight> {
        self.in_flight.get(fingerprint).copied()
    }

    pub(super) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Notes that a chunk is unique.
    pub(super) fn set_unique(&mut self, fingerprint: Fingerprint, sequence: Sequence) {
        self.in_flight.insert(fingerprint, InFlight::Unique(sequence));
    }

    /// Notes that a pending chunk turned out to be stored.
    pub(super) fn set_stored(&mut self, fingerprint: &Fingerprint) {
        self.in_flight.remove(fingerprint);
    }

    /// Notes that a chunk was recorded: the table has it from now on.
    pub(super) fn set_recorded(&mut self, fingerprint: &Fingerprint) {
        if let Some(InFlight::Unique(_)) = self.in_flight.get(fingerprint) {
            self.in_flight.remove(fingerprint);
            self.recorded += 1;
        }
    }

    /// Makes a chunk wait; `run` is the number of its run of pending neighbors. Returns its slot and its bucket.
    pub(super) fn wait(&mut self, chunk: &SequencedChunk, run: u64) -> (Slot, u32) {
        let &SequencedChunk { sequence, chunk: Chunk { fingerprint, .. } } = chunk;
        let membership = self.cycles.assign(sequence);
        let (slot, bucket) = self.pending.push(*chunk, Some(membership), run);
        self.cycles.join(membership, slot, sequence);
        self.in_flight.insert(fingerprint, InFlight::Pending(slot));
        (slot, bucket)
    }

    /// Takes a pending chunk out; `None` if it was taken before.
    pub(super) fn take(&mut self, slot: Slot) -> Option<PendingChunk> {
        let chunk = self.pending.take(slot)?;
        if let Some(membership) = chunk.membership {
            self.cycles.leave(membership);
        }
        Some(chunk)
    }
}
