//! The policy of a backup: bases are the regions of the repository with most in common.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backup::bases::{ChooseBases, NewRegion, OpenedCandidate, PlacedRegion, Proposal};
use crate::container::{Base, ChosenBases};
use crate::object::names::ContainerKind;
use crate::similarity::anchors::AnchorFinder;
use crate::similarity::choose::{BaseChunk, Choice, Limits, covered};
use crate::similarity::features::RegionFeatures;
use crate::similarity::reading::Reading;
use crate::similarity::regions::{RegionNumber, Regions};
use crate::similarity::saved::{SimilarRegions, TakenContainers};
use crate::similarity::search::BaseSearch;
use crate::store::Store;
use crate::types::{Chunk, ContainerId, RegionId};

/// Least part of a region's features that its bases must share so that it is not compressed without them, too: one in this many.
/// They save a twentieth then, whatever it holds.
const SURE_PART: usize = 8;

/// Names of chunks of metadata are one in so many of those of data, at most: a hundredth of the chunks are metadata.
pub(super) const METADATA_REFERRED_PART: usize = 8;

/// Chooses similar regions as bases.
#[derive(Debug)]
pub struct SimilarBases {
    finder: AnchorFinder,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    search: BaseSearch,
    taken: TakenContainers,
    /// Regions of containers that are not durable.
    placed: HashMap<ContainerId, Vec<Placed>>,
}

#[derive(Debug)]
struct Placed {
    id: RegionId,
    plain_len: u32,
    depth: u8,
    bases: Vec<RegionNumber>,
    samples: Vec<u64>,
}

impl SimilarBases {
    /// Starts a session that knows these regions, of one kind of container.
    pub fn new(store: &Store, kind: ContainerKind, similar: SimilarRegions, limits: Limits) -> Self {
        let finder = store.anchor_finder();
        let SimilarRegions { regions, anchors, taken } = similar;
        let mut search = BaseSearch::new(regions, anchors, limits);
        if kind == ContainerKind::Metadata {
            search.reading = Reading::with_part(METADATA_REFERRED_PART);
        }
        let state = State { search, taken, placed: HashMap::new() };
        Self { finder, state: Mutex::new(state) }
    }

    /// Takes the regions out that are known now.
    pub fn take_similar(&self, empty: SimilarRegions) -> SimilarRegions {
        let SimilarRegions { regions, anchors, taken } = empty;
        let mut state = self.lock();
        let State { search, taken: state_taken, .. } = &mut *state;
        SimilarRegions {
            regions: std::mem::replace(&mut search.regions, regions),
            anchors: std::mem::replace(&mut search.index, anchors),
            taken: std::mem::replace(state_taken, taken),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChooseBases for SimilarBases {
    fn features(&self, lens: &[u32], plain: &[u8]) -> RegionFeatures {
        RegionFeatures::of_region(&self.finder, plain, lens.iter().copied())
    }

    fn propose(&self, new: &NewRegion<'_>) -> Vec<Proposal> {
        let proposed = self.lock().search.propose(new.features, &[]).into_iter();
        proposed.map(|(score, id)| Proposal { region: id, score }).collect()
    }

    fn proposals_max(&self) -> usize {
        self.lock().search.proposals_max()
    }

    fn choose(&self, new: &NewRegion<'_>, opened: &[OpenedCandidate]) -> ChosenBases {
        let mut state = self.lock();
        let State { search, .. } = &mut *state;
        let numbered = opened.iter().filter_map(|opened| Some((search.regions.number_of(opened.region.id)?, opened)));
        let candidates: Vec<(RegionNumber, &OpenedCandidate)> = numbered.collect();
        for (number, opened) in &candidates {
            if opened.is_referred {
                search.reading.refer_to_part(&search.regions, *number);
            } else {
                search.reading.opened(&search.regions, *number, &opened.region.names);
            }
        }
        let features: Vec<_> = candidates.iter().map(|(number, opened)| (*number, &opened.region.features)).collect();
        let plain_len = u32::try_from(new.plain.len()).unwrap_or(u32::MAX);
        let choice = search.choose(new.features, plain_len, &features);
        let regions = choice.regions();
        for (number, opened) in candidates.iter().filter(|(number, _)| regions.contains(number)) {
            search.reading.watch(*number, &opened.region.names);
        }
        let bases = || features.iter().filter(|(number, _)| regions.contains(number)).map(|(_, features)| *features);
        let is_sure = new.features.hashes().len() <= SURE_PART * covered(new.features, bases());
        ChosenBases { bases: bases_of(&choice, &search.regions), is_sure }
    }

    fn refer(&self, chunk: &Chunk) {
        let search = &mut self.lock().search;
        search.reading.refer_to_chunk(&search.regions, chunk);
    }

    fn placed(&self, region: &PlacedRegion<'_>) {
        let PlacedRegion { id, chunks, bases, samples } = *region;
        let mut state = self.lock();
        let numbers = bases.iter().filter_map(|base| state.search.regions.number_of(base)).collect();
        let plain_len = chunks.iter().map(|packed| packed.chunk.len).sum();
        let placed = Placed { id, plain_len, depth: bases.depth(), bases: numbers, samples: samples.to_vec() };
        state.placed.entry(id.container).or_default().push(placed);
    }

    fn durable(&self, container: ContainerId) {
        let mut state = self.lock();
        // Containers of the other kind have no regions here.
        let Some(placed) = state.placed.remove(&container) else { return };
        state.taken.insert(container);
        for Placed { id, plain_len, depth, bases, samples } in placed {
            state.search.stored_at(id, plain_len, (&bases, depth), &samples);
        }
    }
}

/// Returns the names of what was chosen.
fn bases_of(choice: &Choice, regions: &Regions) -> Vec<Base> {
    match choice {
        Choice::None => Vec::new(),
        Choice::Regions(numbers) => numbers.iter().filter_map(|number| regions.id(*number)).map(Base::whole).collect(),
        Choice::Chunks(chunks) => {
            let by_region = chunks.chunk_by(|one, other| one.region == other.region);
            let base = |chunks: &[BaseChunk]| {
                let region = regions.id(chunks.first()?.region)?;
                Base::of_chunks(region, chunks.iter().map(|chunk| chunk.chunk))
            };
            by_region.filter_map(base).collect()
        }
    }
}
