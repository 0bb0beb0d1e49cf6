//! The stage that owns the identifier: payloads of pending chunks, verdicts, and the order of the stream.
//!
//! An identifier may answer late and out of order. Until it answers, this stage holds the chunk's bytes; when it has
//! answered, unique chunks go to packing at once, in the order of the verdicts; references leave in the order of the
//! stream, each with its container. How many bytes wait is the identifier's to limit:
//! [`IndexOptions::pending_bytes_max`](crate::identify::IndexOptions::pending_bytes_max).

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::backup::Budget;
use crate::backup::bases::{Neighbors, StoredChunk};
use crate::backup::cut::{ChunkBytes, CutBlock};
use crate::backup::pack::PackStage;
use crate::codec::len_u32;
use crate::container::{Assigned, RegionChunk};
use crate::crypto::Keys;
use crate::error::Result;
use crate::identify::{Counters, Identifier, Resolved, SequencedChunk, Unit, Verdict};
use crate::object::names::ContainerKind;
use crate::pipeline::Permits;
use crate::recipe::{MetadataSink, name_session};
use crate::snapshot::Rewritten;
use crate::store::container_writer::StoredUnit;
use crate::store::manifests::ManifestBuilder;
use crate::types::{Chunk, ChunkKind, ChunkRef, ContainerId, Fingerprint, Sequence, SessionId};

use std::sync::Arc;

/// Spreads sequences, which nobody chooses and which are dense: one multiplication is enough.
#[derive(Clone, Copy, Default, Debug)]
struct SequenceHash(u64);

impl Hasher for SequenceHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys are `u64`, which come by `write_u64`; anything else still hashes to something.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, sequence: u64) {
        // 2^64 over the golden ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        let spread = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}

type BySequence = BuildHasherDefault<SequenceHash>;

/// A chunk whose verdict is pending.
#[derive(Debug)]
struct Held {
    fingerprint: Fingerprint,
    kind: ChunkKind,
    hints_len: u32,
    bytes: Vec<u8>,
}

/// A reference on its way to a recipe.
#[derive(Debug)]
struct Slot {
    arrival: SequencedChunk,
    verdict: Option<Verdict>,
}

/// References whose turn has not come, as the neighbors of new chunks.
struct Slots<'a>(&'a VecDeque<Slot>);

impl Neighbors for Slots<'_> {
    fn of(&self, sequence: Sequence, out: &mut Vec<StoredChunk>) {
        let Ok(at) = self.0.binary_search_by_key(&sequence, |slot| slot.arrival.sequence) else { return };
        let near = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| self.0.get(at));
        out.extend(near.filter_map(|slot| match slot.verdict {
            Some(Verdict::Stored(container)) => {
                Some(StoredChunk { container, fingerprint: slot.arrival.chunk.fingerprint })
            }
            _ => None,
        }));
    }
}

/// What the stage counts.
#[derive(Clone, Copy, Default, Debug)]
pub struct ChunkCounts {
    /// Data chunks stored.
    pub data_unique: u64,
    /// Data chunks that were stored already.
    pub data_duplicate: u64,
    /// Metadata chunks stored.
    pub metadata_unique: u64,
    /// Metadata chunks that were stored already.
    pub metadata_duplicate: u64,
    /// Plaintext bytes of the chunks stored.
    pub(crate) bytes_added: u64,
    /// Metadata chunks stored again with newer hints.
    pub(crate) metadata_rewritten: Rewritten,
}

/// The part of a block that must be new for it to stay until its chunks are in regions: otherwise few new chunks would keep many blocks.
const LENT_PART: (u64, u64) = (7, 8);

/// Returns true if so much of a block's chunks is new that it may stay.
fn is_mostly_new(chunks: &[SequencedChunk], unique: impl Iterator<Item = usize>) -> bool {
    let len = |chunk: &SequencedChunk| u64::from(chunk.chunk.len);
    let new: u64 = unique.filter_map(|number| chunks.get(number)).map(len).sum();
    let all: u64 = chunks.iter().map(len).sum();
    all * LENT_PART.0 <= new * LENT_PART.1
}

/// Identifies chunks, hands unique ones to packing, and remembers where each went until it is recorded.
pub(crate) struct IdentifyStage<'a> {
    keys: Arc<Keys>,
    identifier: &'a mut dyn Identifier,
    pack: PackStage,
    /// Sequence of the next chunk.
    next: u64,
    held: HashMap<u64, Held, BySequence>,
    /// References whose turn has not come, by sequence.
    slots: VecDeque<Slot>,
    slots_max: usize,
    /// Whether blocks of mostly new chunks stay until workers have copied these into regions.
    lends: bool,
    /// Containers of the unique chunks that a pending reference may still name by their sequence.
    locations: HashMap<u64, ContainerId, BySequence>,
    /// Recorded chunks to be taken out of `locations` once the references up to a sequence have gone.
    retiring: VecDeque<(u64, Vec<u64>)>,
    /// Unique data chunks of containers that are not recorded yet.
    unrecorded: HashMap<ContainerId, Vec<u64>>,
    resolved: Vec<Resolved>,
    /// Takes the containers of metadata, and the bytes of new containers.
    manifest: Arc<ManifestBuilder>,
    /// The session, if it stores data again: then it stores metadata again whose hints name its containers.
    rewriting: Option<SessionId>,
    /// Metadata that it has stored again.
    rewritten: HashSet<Fingerprint>,
    /// What was counted.
    pub(crate) counts: ChunkCounts,
}

impl std::fmt::Debug for IdentifyStage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentifyStage")
            .field("next", &self.next)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

impl<'a> IdentifyStage<'a> {
    /// Starts before the first chunk.
    pub(crate) fn new(
        keys: Arc<Keys>,
        identifier: &'a mut dyn Identifier,
        pack: PackStage,
        manifest: Arc<ManifestBuilder>,
        budget: &Budget,
    ) -> Self {
        Self {
            keys,
            identifier,
            pack,
            next: 0,
            held: HashMap::default(),
            slots: VecDeque::new(),
            slots_max: budget.references_in_flight,
            lends: budget.cut_ahead != 0,
            locations: HashMap::default(),
            retiring: VecDeque::new(),
            unrecorded: HashMap::new(),
            resolved: Vec::new(),
            manifest,
            rewriting: None,
            rewritten: HashSet::new(),
            counts: ChunkCounts::default(),
        }
    }

    /// Stores metadata again from now on whose hints name containers of this session: the copy that is there names those of old copies
    /// of the data.
    pub(super) fn rewrite_metadata(&mut self, session: SessionId) {
        self.rewriting = Some(session);
    }

    /// Takes the chunks of a block.
    pub(crate) fn submit(&mut self, block: &Arc<CutBlock>) -> Result<()> {
        let first = self.next;
        let mut chunks = Vec::with_capacity(block.chunk_count());
        for (number, fingerprint) in block.fingerprints.iter().enumerate() {
            let len = u32::try_from(block.chunk(number).len()).expect("a block is far below 4 GiB");
            let chunk = Chunk { fingerprint: *fingerprint, len };
            let arrival = SequencedChunk::data(Sequence(self.next), chunk);
            self.slots.push_back(Slot { arrival, verdict: None });
            chunks.push(arrival);
            self.next += 1;
        }
        let mut resolved = std::mem::take(&mut self.resolved);
        resolved.clear();
        self.identifier.submit(&chunks, &mut resolved)?;
        let number_of = |verdict: &Resolved| usize::try_from(verdict.sequence.0.checked_sub(first)?).ok();
        let is_lent = self.lends
            && is_mostly_new(&chunks, resolved.iter().filter(|it| it.verdict == Verdict::Unique).filter_map(number_of));
        for verdict in &resolved {
            match number_of(verdict).and_then(|number| Some((number, *block.fingerprints.get(number)?))) {
                Some((number, fingerprint)) => {
                    let bytes =
                        if is_lent { ChunkBytes::Lent(block, number) } else { ChunkBytes::Here(block.chunk(number)) };
                    self.resolve(*verdict, fingerprint, ChunkKind::Data, 0, bytes)?;
                }
                None => self.resolve_held(*verdict)?,
            }
        }
        self.resolved = resolved;
        self.hold_pending(first, block);
        self.take_assigned();
        self.record_stored()
    }

    /// Keeps the bytes of those chunks of a block whose verdict is pending.
    fn hold_pending(&mut self, first: u64, block: &CutBlock) {
        let start = self.slots.partition_point(|slot| slot.arrival.sequence.0 < first);
        for slot in self.slots.range(start..).filter(|slot| slot.verdict.is_none()) {
            let SequencedChunk { sequence: Sequence(sequence), chunk: Chunk { fingerprint, .. }, .. } = slot.arrival;
            let number = usize::try_from(sequence - first).expect("a block's chunks are few");
            // Likely a stored chunk: what a snapshot reads is known before all of its verdicts are.
            self.pack.expect(&slot.arrival.chunk);
            let bytes = block.chunk(number).to_vec();
            self.held.insert(sequence, Held { fingerprint, kind: ChunkKind::Data, hints_len: 0, bytes });
        }
    }

    /// Takes the next reference of the stream, if its container is known.
    pub(crate) fn next_reference(&mut self) -> Option<ChunkRef> {
        let Slot { arrival: SequencedChunk { sequence, chunk, .. }, verdict } = self.slots.front()?;
        let container = match (*verdict)? {
            Verdict::Stored(container) => container,
            Verdict::Unique => *self.locations.get(&sequence.0)?,
            Verdict::SameAs(Sequence(same)) => *self.locations.get(&same)?,
        };
        let reference = ChunkRef { chunk: *chunk, container };
        self.slots.pop_front();
        self.retire();
        Some(reference)
    }

    /// Brings every pending chunk to a verdict.
    pub(crate) fn drain(&mut self) -> Result<()> {
        let mut resolved = Vec::new();
        self.identifier.drain(&mut resolved)?;
        for verdict in resolved {
            self.resolve_held(verdict)?;
        }
        self.take_assigned();
        self.record_stored()
    }

    /// Makes the containers of all references so far known.
    pub(crate) fn resolve_all(&mut self) -> Result<()> {
        self.drain()?;
        self.pack.assign_all(&Slots(&self.slots))?;
        self.take_assigned();
        self.record_stored()
    }

    /// Returns true if so many references wait that they must be resolved before more are submitted.
    pub(crate) fn is_congested(&self) -> bool {
        self.slots_max <= self.slots.len()
    }

    /// Returns what limits the chains of bases that packing reads at the same time; `None`: it reads none.
    pub(crate) fn base_chains(&self) -> Option<Arc<Permits>> {
        self.pack.base_chains()
    }

    /// Returns how many references wait to be taken.
    pub(crate) fn waiting(&self) -> usize {
        self.slots.len()
    }

    /// Makes everything durable and records it.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.resolve_all()?;
        self.pack.finish(&Slots(&self.slots))?;
        self.take_assigned();
        self.record_stored()
    }

    /// Returns how many bytes the session's containers take so far.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.pack.stored_bytes()
    }

    /// Returns what the identifier counted.
    pub(crate) fn counters(&self) -> Counters {
        self.identifier.counters()
    }

    fn resolve_held(&mut self, resolved: Resolved) -> Result<()> {
        let held = self.held.remove(&resolved.sequence.0).expect("an identifier gives one verdict on each chunk");
        self.resolve(resolved, held.fingerprint, held.kind, held.hints_len, ChunkBytes::Here(&held.bytes))
    }

    /// Returns true if a stored metadata chunk is to be stored again, which it is once.
    fn has_stale_copy(&mut self, verdict: Verdict, chunk: &Chunk, hints: &[u8]) -> bool {
        let (Some(session), Verdict::Stored(container)) = (self.rewriting, verdict) else { return false };
        container.session != session && name_session(hints, session) && self.rewritten.insert(chunk.fingerprint)
    }

    fn resolve(
        &mut self,
        mut resolved: Resolved,
        fingerprint: Fingerprint,
        kind: ChunkKind,
        hints_len: u32,
        bytes: ChunkBytes<'_>,
    ) -> Result<()> {
        let chunk = Chunk { fingerprint, len: len_u32(bytes.get().len()) };
        let (_, hints) = bytes.get().split_at(bytes.get().len() - hints_len as usize);
        if kind != ChunkKind::Data && self.has_stale_copy(resolved.verdict, &chunk, hints) {
            self.identifier.supersede(&SequencedChunk { sequence: resolved.sequence, chunk, kind })?;
            self.counts.metadata_rewritten.add(chunk.len.into());
            resolved.verdict = Verdict::Unique;
        }
        let is_unique = resolved.verdict == Verdict::Unique;
        let container_kind = match kind {
            ChunkKind::Data => {
                self.set_verdict(resolved);
                *if is_unique { &mut self.counts.data_unique } else { &mut self.counts.data_duplicate } += 1;
                ContainerKind::Data
            }
            ChunkKind::Tree | ChunkKind::Recipe => {
                *if is_unique { &mut self.counts.metadata_unique } else { &mut self.counts.metadata_duplicate } += 1;
                if let Verdict::Stored(container) = resolved.verdict {
                    self.manifest.add(container, len_u32(bytes.get().len()));
                }
                ContainerKind::Metadata
            }
        };
        if !is_unique {
            if let Verdict::Stored(container) = resolved.verdict {
                self.pack.refer(container_kind, &chunk, container);
            }
            return Ok(());
        }
        self.counts.bytes_added += bytes.get().len() as u64;
        let chunk = RegionChunk { chunk, kind, hints_len, sequence: resolved.sequence };
        let slots = Slots(&self.slots);
        match bytes {
            ChunkBytes::Here(bytes) => self.pack.push(container_kind, chunk, bytes, &slots),
            ChunkBytes::Lent(block, number) => self.pack.push_lent(chunk, (block, number), &slots),
        }
    }

    fn set_verdict(&mut self, resolved: Resolved) {
        if let Ok(at) = self.slots.binary_search_by_key(&resolved.sequence, |slot| slot.arrival.sequence)
            && let Some(slot) = self.slots.get_mut(at)
        {
            slot.verdict = Some(resolved.verdict);
        }
    }

    fn take_assigned(&mut self) {
        for Assigned { container, chunks, .. } in self.pack.take_assigned() {
            for RegionChunk { chunk, kind, .. } in &chunks {
                self.manifest.store(container, chunk.len);
                // Files refer to data; that of one that cannot be read to its end is stored and not referred to.
                if *kind != ChunkKind::Data {
                    self.manifest.add(container, chunk.len);
                }
            }
            let data = chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Data).map(|chunk| chunk.sequence.0);
            let unrecorded = self.unrecorded.entry(container).or_default();
            for sequence in data {
                self.locations.insert(sequence, container);
                unrecorded.push(sequence);
            }
        }
    }

    /// Records what became durable, and only that (at a barrier): what the index shows is durable.
    fn record_stored(&mut self) -> Result<()> {
        for StoredUnit { container, len, chunks, .. } in self.pack.take_stored() {
            self.identifier.record(Unit { container, len, chunks: &chunks })?;
            // Verdicts from now on name the container; those given before may name a sequence.
            let sequences = self.unrecorded.remove(&container).unwrap_or_default();
            self.retiring.push_back((self.next, sequences));
        }
        self.retire();
        Ok(())
    }

    /// Forgets where recorded chunks are once no reference from before can ask for them.
    fn retire(&mut self) {
        let oldest = self.slots.front().map_or(self.next, |slot| slot.arrival.sequence.0);
        while let Some((until, _)) = self.retiring.front()
            && *until <= oldest
        {
            let (_, sequences) = self.retiring.pop_front().expect("looked at above");
            for sequence in sequences {
                self.locations.remove(&sequence);
            }
        }
    }
}

impl MetadataSink for IdentifyStage<'_> {
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
        let fingerprint = self.keys.fingerprint(kind, contents);
        let sequence = Sequence(self.next);
        self.next += 1;
        let mut bytes = contents.to_vec();
        bytes.extend_from_slice(hints);
        let hints_len = u32::try_from(hints.len()).expect("metadata chunks are far below 4 GiB");
        let len = u32::try_from(bytes.len()).expect("metadata chunks are far below 4 GiB");
        let arrival = SequencedChunk { sequence, chunk: Chunk { fingerprint, len }, kind };
        self.held.insert(sequence.0, Held { fingerprint, kind, hints_len, bytes });
        let mut resolved = Vec::new();
        self.identifier.submit(&[arrival], &mut resolved)?;
        for verdict in resolved {
            self.resolve_held(verdict)?;
        }
        self.take_assigned();
        self.record_stored()?;
        Ok(fingerprint)
    }
}
