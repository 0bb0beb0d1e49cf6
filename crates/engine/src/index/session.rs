//! The in-flight and pending chunks of a session, by fingerprint.

use std::collections::HashMap;

use crate::index::cycle::Cycles;
use crate::index::identity_hasher::BuildIdentityHasher;
use crate::index::options::CycleRule;
use crate::index::pending::{Pending, PendingChunk};
use crate::index::slot::Slot;
use crate::index::{Resolved, SequencedChunk};
use crate::types::{Fingerprint, Sequence};

/// State of a chunk that has arrived in this session and is not recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    /// It was declared unique.
    Unique(Sequence),
    /// It is pending.
    Pending(Slot),
}

/// The in-flight chunks: pending ones with their cycles, and unique ones until their container is recorded.
#[derive(Debug)]
pub(super) struct SessionChunks {
    in_flight: HashMap<Fingerprint, InFlight, BuildIdentityHasher>,
    pub(super) pending: Pending,
    pub(super) cycles: Cycles,
    /// Chunks of the lookup in the background.
    pub(super) in_lookup: Vec<Slot>,
    /// Verdicts that the caller has not taken yet.
    pub(super) resolved: Vec<Resolved>,
    /// Position of the next chunk in the stream.
    pub(super) next_sequence: Sequence,
    /// Unique chunks of this session that were recorded.
    pub(super) recorded: u64,
}

impl SessionChunks {
    /// Starts a session with `buckets` buckets of pending chunks. `keeps_members`: see [`Cycles::new`].
    pub(crate) fn new(buckets: u32, cycles: CycleRule, keeps_members: bool) -> Self {
        Self {
            in_flight: HashMap::default(),
            pending: Pending::new(buckets),
            cycles: Cycles::new(cycles, keeps_members),
            in_lookup: Vec::new(),
            resolved: Vec::new(),
            next_sequence: Sequence(0),
            recorded: 0,
        }
    }

    /// Returns the state of an in-flight chunk.
    pub(crate) fn get(&self, fingerprint: &Fingerprint) -> Option<InFlight> {
        self.in_flight.get(fingerprint).copied()
    }

    /// Notes that a chunk is unique.
    pub(super) fn set_unique(&mut self, fingerprint: Fingerprint, sequence: Sequence) {
        self.in_flight.insert(fingerprint, InFlight::Unique(sequence));
    }

    /// Notes that a pending chunk is stored.
    pub(super) fn set_stored(&mut self, fingerprint: &Fingerprint) {
        self.in_flight.remove(fingerprint);
    }

    /// Notes that a chunk was recorded: the table holds it from now on.
    pub(super) fn set_recorded(&mut self, fingerprint: &Fingerprint) {
        if let Some(InFlight::Unique(_)) = self.in_flight.get(fingerprint) {
            self.in_flight.remove(fingerprint);
            self.recorded += 1;
        }
    }

    /// Adds a pending chunk; `run` is the number of its run of pending chunks. Returns its slot and its bucket.
    pub(super) fn add_pending(&mut self, chunk: &SequencedChunk, run: u64) -> (Slot, u32) {
        let membership = self.cycles.assign(chunk.sequence);
        let (slot, bucket) = self.pending.push(*chunk, Some(membership), run);
        self.cycles.join(membership, slot, chunk.sequence);
        self.in_flight.insert(chunk.chunk.fingerprint, InFlight::Pending(slot));
        (slot, bucket)
    }

    /// Takes out those of some chunks that are still pending.
    pub(super) fn take_all(&mut self, slots: &[Slot]) -> Vec<PendingChunk> {
        slots.iter().filter_map(|&slot| self.take(slot)).collect()
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
