//! Regions that new regions are compressed against (format 2): who chooses them, and what carries the choice out.
//!
//! A region passes through three stages before it is compressed. Workers find its features; one thread proposes regions that
//! resemble it; workers open these; the same thread chooses. Only the order of the stream decides when that thread is asked, so
//! that every driver makes the same choices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use crate::container::{Assigned, Bases, ChosenBases, DirectoryChunk, Region, RegionChunk};
use crate::lru::Lru;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Task, TaskQueue};
use crate::similarity::choose::VOTE_SCORE;
use crate::similarity::features::RegionFeatures;
use crate::similarity::reading::name_of;
use crate::similarity::samples::samples_of;
use crate::store::base_reader::BaseReader;
use crate::types::{Chunk, ContainerId, Fingerprint, RegionId, Sequence, SessionId};

/// A region before it is compressed.
#[derive(Clone, Copy, Debug)]
pub struct NewRegion<'a> {
    /// Its chunks.
    pub chunks: &'a [RegionChunk],
    /// Their bytes, one after the other.
    pub plain: &'a [u8],
    /// Its features.
    pub features: &'a RegionFeatures,
}

/// A region that may resemble a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The region.
    pub region: RegionId,
    /// The greater, the more they are thought to have in common: [`VOTE_SCORE`] for each anchor of the sample that both have.
    pub score: u32,
}

/// A stored region that was opened to be compared.
#[derive(Debug)]
pub struct OpenedRegion {
    /// The region.
    pub id: RegionId,
    /// Its features.
    pub features: RegionFeatures,
    /// Parts of its chunks' names; see [`name_of`].
    pub names: Vec<u64>,
}

impl OpenedRegion {
    fn memory_bytes(&self) -> usize {
        self.features.memory_bytes() + 8 * self.names.capacity() + size_of::<Self>()
    }
}

/// A region that was opened for a new one.
#[derive(Clone, Debug)]
pub struct OpenedCandidate {
    /// The region.
    pub region: Arc<OpenedRegion>,
    /// True if the snapshot refers to a chunk of it next to chunks of the new region, so that a restore reads it anyway.
    pub is_referred: bool,
}

/// A region that was assigned to a container: a new one, or a part of it.
#[derive(Debug)]
pub struct PlacedRegion<'a> {
    /// The region.
    pub id: RegionId,
    /// Its chunks.
    pub chunks: &'a [RegionChunk],
    /// Its bases.
    pub bases: &'a Bases,
    /// Hashes of its samples.
    pub samples: &'a [u64],
}

/// Chooses the bases of new regions. A policy: it proposes, and a proposal that cannot be carried out is dropped. All calls but
/// those of [`ChooseBases::features`] come from one thread, at points that the stream alone decides.
pub trait ChooseBases: Debug + Send + Sync {
    /// Returns the features of a region with chunks of these lengths. A pure function, called from any thread.
    fn features(&self, lens: &[u32], plain: &[u8]) -> RegionFeatures {
        let _ = (lens, plain);
        RegionFeatures::default()
    }

    /// Returns the regions to be opened for a new one. Regions of other sessions, and those of this one that are durable, may be
    /// named.
    fn propose(&self, new: &NewRegion<'_>) -> Vec<Proposal> {
        let _ = new;
        Vec::new()
    }

    /// Returns how many regions are opened for a new one, at most.
    fn proposals_max(&self) -> usize {
        0
    }

    /// Chooses the bases of a new region, not necessarily among those that were opened for it.
    fn choose(&self, new: &NewRegion<'_>, opened: &[OpenedCandidate]) -> ChosenBases;

    /// Learns that the snapshot refers to a chunk that an earlier session stored; a chunk of which that is only likely may be named, too.
    /// A chunk may be named twice.
    fn refer(&self, chunk: &Chunk) {
        let _ = chunk;
    }

    /// Learns where a region that was shown to [`ChooseBases::choose`] stands. It may be stored in several parts.
    fn placed(&self, region: &PlacedRegion<'_>);

    /// Learns that the regions of a container of this session are durable.
    fn durable(&self, container: ContainerId);
}

/// New chunks without a stream.
pub(crate) struct NoNeighbors;

impl Neighbors for NoNeighbors {
    fn of(&self, _: Sequence, _: &mut Vec<StoredChunk>) {}
}

/// Finds features.
#[derive(Debug)]
struct FindFeatures(Arc<dyn ChooseBases>);

impl Task for FindFeatures {
    type In = Region;
    type Out = (Region, RegionFeatures);

    fn run(&self, mut region: Region) -> Self::Out {
        region.gather();
        let lens: Vec<u32> = region.chunks.iter().map(|packed| packed.chunk.len).collect();
        let features = self.0.features(&lens, &region.plain);
        (region, features)
    }
}

/// Opens the regions that were proposed for a new one.
#[derive(Debug)]
struct OpenProposed {
    choice: Arc<dyn ChooseBases>,
    reader: BaseReader,
    opened: Mutex<Lru<RegionId, Arc<OpenedRegion>>>,
}

impl OpenProposed {
    /// Opens a region. One that cannot be opened costs size, and is no error.
    fn open(&self, id: RegionId) -> Option<Arc<OpenedRegion>> {
        let held = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = held().get(&id) {
            return Some(opened);
        }
        let (container, plain) = self.reader.region(id).ok()?;
        let chunks = container.directory.chunks.get(container.chunks_of(id.region))?;
        let lens: Vec<u32> = chunks.iter().map(|chunk| chunk.len).collect();
        let names = chunks.iter().filter_map(DirectoryChunk::chunk).map(|chunk| name_of(&chunk)).collect();
        let opened = Arc::new(OpenedRegion { id, features: self.choice.features(&lens, &plain), names });
        held().insert(id, Arc::clone(&opened), opened.memory_bytes());
        Some(opened)
    }
}

/// The score of a proposal counts as much as so many stored chunks next to new ones: an anchor of the sample stands for 128, and a chunk has 16.
const SCORE_NEIGHBORS: u32 = 8 / VOTE_SCORE;

/// A region to be opened for: with its features, proposals, and stored chunks next to its own.
struct Opening {
    region: Region,
    features: RegionFeatures,
    proposed: Vec<Proposal>,
    neighbors: Vec<StoredChunk>,
    proposals_max: usize,
}

impl OpenProposed {
    /// Returns the regions to be opened, the best first: those that were proposed, the best of them in any case, and those of stored chunks
    /// next to new ones in the stream, since what is similar comes in runs, as what is equal does. The flag is true for the latter. (Shilane et al., "WAN optimized
    /// replication of backup datasets using stream-informed delta compression", FAST 2012.)
    fn rank(&self, proposed: &[Proposal], neighbors: &[StoredChunk], limit: usize) -> Vec<(RegionId, bool)> {
        let mut scores: BTreeMap<RegionId, (u32, bool)> = BTreeMap::new();
        for proposal in proposed {
            scores.entry(proposal.region).or_default().0 += proposal.score.saturating_mul(SCORE_NEIGHBORS);
        }
        for StoredChunk { container, fingerprint } in neighbors {
            if let Some(region) = self.reader.region_of(*container, fingerprint) {
                let (score, is_referred) = scores.entry(region).or_default();
                *score += 1;
                *is_referred = true;
            }
        }
        let by_score = scores.into_iter().map(|(region, (score, is_referred))| (score, region, is_referred));
        let mut ranked: Vec<(u32, RegionId, bool)> = by_score.collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        let best = proposed.iter().max_by_key(|proposal| (proposal.score, proposal.region)).map(|best| best.region);
        let opened = ranked.into_iter().enumerate().filter(|(at, (_, region, _))| *at < limit || Some(*region) == best);
        opened.map(|(_, (_, region, is_referred))| (region, is_referred)).collect()
    }
}

impl Task for OpenProposed {
    type In = Opening;
    type Out = (Region, RegionFeatures, Vec<OpenedCandidate>);

    fn run(&self, Opening { region, features, proposed, neighbors, proposals_max }: Opening) -> Self::Out {
        let ranked = self.rank(&proposed, &neighbors, proposals_max);
        let open = |(id, is_referred)| Some(OpenedCandidate { region: self.open(id)?, is_referred });
        let opened = ranked.into_iter().filter_map(open).collect();
        (region, features, opened)
    }
}

/// A chunk that stands in a container of an earlier session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoredChunk {
    pub(crate) container: ContainerId,
    pub(crate) fingerprint: Fingerprint,
}

/// Finds stored chunks next to a new one in the stream.
pub(crate) trait Neighbors {
    /// Appends the stored chunks before and behind the chunk of this sequence, as far as they are known.
    fn of(&self, sequence: Sequence, out: &mut Vec<StoredChunk>);
}

/// Memory and queues of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageSizes {
    /// Bytes for features of regions that were opened.
    pub(super) features_bytes: usize,
    /// New regions whose features are sought at the same time.
    pub(super) regions: usize,
    /// New regions for which similar ones are opened at the same time.
    pub(super) regions_opening: usize,
}

/// Carries the choice of bases out, for one kind of container.
#[derive(Debug)]
pub(super) struct BaseStage {
    session: SessionId,
    choice: Arc<dyn ChooseBases>,
    reader: BaseReader,
    features: TaskQueue<FindFeatures>,
    open: TaskQueue<OpenProposed>,
    /// The region that was placed last.
    last: Option<RegionId>,
    /// Containers whose regions become no bases.
    shunned: Arc<BTreeSet<ContainerId>>,
}

/// Chunks of a region whose neighbors are looked at.
const NEIGHBORS_MAX: usize = 512;

impl BaseStage {
    /// Returns the stage of a session. The reader is one of its kind of container.
    pub(super) fn new(
        (session, driver): (SessionId, &Driver),
        choice: Arc<dyn ChooseBases>,
        reader: BaseReader,
        StageSizes { features_bytes, regions, regions_opening }: StageSizes,
    ) -> Self {
        let opened = Mutex::new(Lru::new(features_bytes));
        let opening = OpenProposed { choice: Arc::clone(&choice), reader: reader.clone(), opened };
        let features = driver.queue(FindFeatures(Arc::clone(&choice)), Pool::Compute, regions);
        let open = driver.queue(opening, Pool::Compute, regions_opening);
        Self { session, choice, reader, features, open, last: None, shunned: Arc::default() }
    }

    /// Chooses no region of these containers.
    pub(super) fn shunning(self, containers: &Arc<BTreeSet<ContainerId>>) -> Self {
        Self { shunned: Arc::clone(containers), ..self }
    }

    /// Takes a region that is full. Returns an older one whose bases are chosen, if it is time for that.
    pub(super) fn push(&mut self, region: Region, neighbors: &dyn Neighbors) -> Option<Region> {
        let described = self.features.push(region)?;
        self.open_for(described, neighbors)
    }

    /// Returns the oldest region, with its bases chosen.
    pub(super) fn pop(&mut self, neighbors: &dyn Neighbors) -> Option<Region> {
        while let Some(described) = self.features.pop() {
            if let Some(chosen) = self.open_for(described, neighbors) {
                return Some(chosen);
            }
        }
        self.open.pop().map(|opened| self.choose(opened))
    }

    fn open_for(&mut self, (region, features): (Region, RegionFeatures), neighbors: &dyn Neighbors) -> Option<Region> {
        let new = NewRegion { chunks: &region.chunks, plain: &region.plain, features: &features };
        let (mut proposed, proposals_max) = (self.choice.propose(&new), self.choice.proposals_max());
        proposed.retain(|proposal| !self.shunned.contains(&proposal.region.container));
        let mut stored = Vec::new();
        for packed in region.chunks.iter().take(NEIGHBORS_MAX) {
            neighbors.of(packed.sequence, &mut stored);
        }
        stored.retain(|chunk| chunk.container.session != self.session && !self.shunned.contains(&chunk.container));
        stored.dedup();
        let opening = Opening { region, features, proposed, neighbors: stored, proposals_max };
        self.open.push(opening).map(|opened| self.choose(opened))
    }

    fn choose(&self, (mut region, features, opened): (Region, RegionFeatures, Vec<OpenedCandidate>)) -> Region {
        let new = NewRegion { chunks: &region.chunks, plain: &region.plain, features: &features };
        let chosen = self.choice.choose(&new, &opened);
        // Its bases were opened for it just now, and are likely to have gone by the time when a worker compresses it.
        region.prefix =
            if chosen.bases.is_empty() { None } else { self.reader.held_prefix(chosen.bases.clone()).map(Box::new) };
        region.chosen = chosen;
        region.samples = samples_of(&features, region.kind());
        region
    }

    /// Takes note that the snapshot refers to a stored chunk. Regions of this session count as a whole, once they are placed.
    pub(super) fn refer(&self, chunk: &Chunk, container: ContainerId) {
        if container.session != self.session {
            self.choice.refer(chunk);
        }
    }

    /// Takes note that the snapshot refers to a chunk that was likely stored before.
    pub(super) fn expect(&self, chunk: &Chunk) {
        self.choice.refer(chunk);
    }

    /// Takes the parts of a region in the order in which they were placed.
    pub(super) fn placed(&mut self, assigned: &[Assigned]) {
        for Assigned { container, chunks, bases, samples } in assigned {
            let next = self.last.filter(|last| last.container == *container).map_or(0, |last| last.region + 1);
            let id = RegionId { container: *container, region: next };
            self.last = Some(id);
            self.choice.placed(&PlacedRegion { id, chunks, bases, samples });
        }
    }

    /// Takes a container that became durable.
    pub(super) fn durable(&self, container: ContainerId) {
        self.choice.durable(container);
    }
}
