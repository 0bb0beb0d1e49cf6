//! The in-flight and pending chunks of a session, by fingerprint.

use std::collections::HashMap;

use crate::identify::exact::pending::{Pending, PendingChunk};
use crate::identify::identity_hasher::BuildIdentityHasher;
use crate::identify::options::CycleRule;
use crate::identify::schedule::cycle::Cycles;
use crate::identify::slot::Slot;
use crate::identify::{Resolved, SequencedChunk};
use crate::types::{Fingerprint, Sequence};

/// State of a chunk that has arrived in this session and is not recorded.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) enum InFlight {
    /// It was declared unique.
    Unique(Sequence),
    /// It is pending.
    Pending(Slot),
}

/// The in-flight chunks: pending ones with their cycles, and unique ones until their container is recorded.
#[derive(Debug)]
pub(in crate::identify) struct SessionChunks {
    in_flight: HashMap<Fingerprint, InFlight, BuildIdentityHasher>,
    pub(in crate::identify) pending: Pending,
    pub(in crate::identify) cycles: Cycles,
    /// Chunks of the lookup in the background.
    pub(in crate::identify) in_lookup: Vec<Slot>,
    /// Verdicts that the caller has not taken yet.
    pub(in crate::identify) resolved: Vec<Resolved>,
    /// Position of the next chunk in the stream.
    pub(in crate::identify) next_sequence: Sequence,
    /// Unique chunks of this session that were recorded.
    pub(in crate::identify) recorded: u64,
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
    pub(in crate::identify) fn set_unique(&mut self, fingerprint: Fingerprint, sequence: Sequence) {
        self.in_flight.insert(fingerprint, InFlight::Unique(sequence));
    }

    /// Notes that a pending chunk is stored.
    pub(in crate::identify) fn set_stored(&mut self, fingerprint: &Fingerprint) {
        self.in_flight.remove(fingerprint);
    }

    /// Notes that a chunk was recorded: the table holds it from now on.
    pub(in crate::identify) fn set_recorded(&mut self, fingerprint: &Fingerprint) {
        if let Some(InFlight::Unique(_)) = self.in_flight.get(fingerprint) {
            self.in_flight.remove(fingerprint);
            self.recorded += 1;
        }
    }

    /// Adds a pending chunk; `run` is the number of its run of pending chunks. Returns its slot and its bucket.
    pub(in crate::identify) fn add_pending(&mut self, chunk: &SequencedChunk, run: u64) -> (Slot, u32) {
        let membership = self.cycles.assign(chunk.sequence);
        let (slot, bucket) = self.pending.push(*chunk, Some(membership), run);
        self.cycles.join(membership, slot, chunk.sequence);
        self.in_flight.insert(chunk.chunk.fingerprint, InFlight::Pending(slot));
        (slot, bucket)
    }

    /// Takes out those of some chunks that are still pending.
    pub(in crate::identify) fn take_all(&mut self, slots: &[Slot]) -> Vec<PendingChunk> {
        slots.iter().filter_map(|&slot| self.take(slot)).collect()
    }

    /// Takes a pending chunk out; `None` if it was taken before.
    pub(in crate::identify) fn take(&mut self, slot: Slot) -> Option<PendingChunk> {
        let chunk = self.pending.take(slot)?;
        if let Some(membership) = chunk.membership {
            self.cycles.leave(membership);
        }
        Some(chunk)
    }
}
