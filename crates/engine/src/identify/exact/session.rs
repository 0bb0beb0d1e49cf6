//! The in-flight and pending chunks of a session, by fingerprint.

use std::collections::HashMap;

use crate::identify::exact::pending::{Pending, PendingChunk};
use crate::identify::exact::stream_queue::{Entering, StreamQueue};
use crate::identify::exact::waiting_segment::WaitingSegment;
use crate::identify::identity_hasher::BuildIdentityHasher;
use crate::identify::options::CycleRule;
use crate::identify::schedule::cycle::Cycles;
use crate::identify::slot::Slot;
use crate::identify::{Resolved, SequencedChunk, Verdict};
use crate::kv::{Ordinal, Position};
use crate::types::{ContainerId, Fingerprint, Sequence};

/// A record of a chunk: its container, which is live, and its position in a log.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct Location {
    pub(crate) container: ContainerId,
    pub(crate) ordinal: Ordinal,
    pub(crate) position: Position,
}

/// State of a chunk that has arrived in this session and is not recorded.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) enum InFlight {
    /// It was declared unique.
    Unique(Sequence),
    /// Its container is recorded, and its entry waits for its position in the stream.
    Recorded(Ordinal),
    /// It is pending.
    Pending(Slot),
}

/// The in-flight chunks: pending ones with their cycles, and unique ones until they are entered.
#[derive(Debug)]
pub(in crate::identify) struct SessionChunks {
    pub(in crate::identify) in_flight: HashMap<Fingerprint, InFlight, BuildIdentityHasher>,
    /// The stream on its way to the stream log, if hits read stream segments.
    pub(in crate::identify) stream: Option<StreamQueue>,
    /// The segment whose end its chunks wait for, if selection waits.
    pub(in crate::identify) segment: Option<WaitingSegment>,
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
    pub(crate) fn new(buckets: u32, cycles: CycleRule, keeps_members: bool, stream: Option<StreamQueue>) -> Self {
        Self {
            in_flight: HashMap::default(),
            stream,
            segment: None,
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
        if let Some(stream) = &mut self.stream {
            stream.set_unique(sequence);
        }
    }

    /// Notes that the caller stores a chunk again.
    pub(in crate::identify) fn set_superseded(&mut self, fingerprint: Fingerprint, sequence: Sequence) {
        self.in_flight.insert(fingerprint, InFlight::Unique(sequence));
        if let Some(stream) = &mut self.stream {
            stream.set_superseded(sequence);
        }
    }

    /// Gives a chunk the verdict that it is equal to an earlier unique one.
    pub(in crate::identify) fn resolve_same(&mut self, sequence: Sequence, first: Sequence) {
        self.resolved.push(Resolved { sequence, verdict: Verdict::SameAs(first) });
        if let Some(stream) = &mut self.stream {
            stream.set_same(sequence, first);
        }
    }

    /// Gives a chunk the verdict that it is stored.
    pub(in crate::identify) fn resolve_stored(&mut self, sequence: Sequence, location: &Location, entering: Entering) {
        let Location { container, ordinal, .. } = *location;
        self.resolved.push(Resolved { sequence, verdict: Verdict::Stored(container) });
        if let Some(stream) = &mut self.stream {
            stream.set_stored(sequence, ordinal, entering);
        }
    }

    /// Notes that a pending chunk is stored.
    pub(in crate::identify) fn set_stored(&mut self, fingerprint: &Fingerprint) {
        self.in_flight.remove(fingerprint);
    }

    /// Returns true if a chunk, which is being recorded, is entered later, with its position in the stream.
    pub(in crate::identify) fn is_entered_later(&self, fingerprint: &Fingerprint) -> bool {
        let Some(stream) = &self.stream else { return false };
        matches!(self.in_flight.get(fingerprint), Some(InFlight::Unique(first)) if stream.awaits(*first))
    }

    /// Notes that a chunk was recorded: the table holds it from now on, or once it is entered.
    pub(in crate::identify) fn set_recorded(&mut self, fingerprint: &Fingerprint, ordinal: Option<Ordinal>) {
        let Some(&InFlight::Unique(first)) = self.in_flight.get(fingerprint) else { return };
        self.recorded += 1;
        match self.stream.as_mut().filter(|stream| stream.awaits(first)).zip(ordinal) {
            Some((stream, ordinal)) => {
                stream.set_recorded(first, ordinal);
                self.in_flight.insert(*fingerprint, InFlight::Recorded(ordinal));
            }
            None => {
                self.in_flight.remove(fingerprint);
            }
        }
    }

    /// Notes that the table holds a recorded chunk.
    pub(in crate::identify) fn set_entered(&mut self, fingerprint: &Fingerprint) {
        if let Some(InFlight::Recorded(_)) = self.in_flight.get(fingerprint) {
            self.in_flight.remove(fingerprint);
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
