//! The policy: which bases a new region gets. A pure function of what is known, which returns a value.

use std::collections::BTreeMap;

use crate::container::bases::CHAIN_REGIONS_MAX;

use super::features::RegionFeatures;
use super::index::Vote;
use super::regions::{BASE_REGIONS_MAX, BASES_MAX, RegionNumber};

/// Least part of a region's features that a base must share: one in this many, and not counting those that the base before it has.
pub const SHARE_PART: usize = 32;
/// Longest chain of bases unless an option states otherwise (decision 0045).
pub const DEPTH_DEFAULT: u8 = 2;
/// Most regions that are opened for one new region: two bases, and as many that lose.
pub const CANDIDATES_MAX: usize = 4;
/// Longest prefix in bytes: two regions of 512 KiB.
pub const PREFIX_BYTES_MAX: u32 = 1 << 20;
/// Most regions that chunks in front may come from (decision 0045).
pub const CHUNK_REGIONS_MAX: usize = BASE_REGIONS_MAX;

/// Least part of a region's features that chunks of many regions must share: one in this many. A restore reads up to twelve regions for them, so that they have
/// to save more than whole regions do.
const CHUNKS_SHARE_PART: usize = 8;

/// Chunks of many regions are put in front if they cover more than whole regions, by one part in this many.
const MORE_PART: usize = 8;

/// Score of a vote: above that of a hint.
pub const VOTE_SCORE: u32 = 2;

/// Limits of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bases of a region, at most [`BASES_MAX`].
    pub bases_max: usize,
    /// Longest chain of bases, at most [`super::regions::DEPTH_MAX`].
    pub depth_max: u8,
    /// One in so many of the features must agree.
    pub share_part: usize,
    /// Most regions that are looked at.
    pub candidates_max: usize,
    /// Most regions that chunks may come from; 0 if a base is a whole region always.
    pub chunk_regions_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bases_max: BASES_MAX,
            depth_max: DEPTH_DEFAULT,
            share_part: SHARE_PART,
            candidates_max: CANDIDATES_MAX,
            chunk_regions_max: CHUNK_REGIONS_MAX,
        }
    }
}

/// A region that may become a base.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The region.
    pub region: RegionNumber,
    /// Length of its own chain of bases.
    pub depth: u8,
    /// All of its features.
    pub features: &'a RegionFeatures,
    /// Bytes that a restore of the new snapshot decodes besides, if this is a base.
    pub cost: u64,
    /// Regions that are decoded for it, itself included.
    pub chain: usize,
}

impl Candidate<'_> {
    /// Returns true if the limits allow it as a base.
    pub(super) fn is_usable(&self, limits: &Limits, headroom: u64) -> bool {
        self.depth < limits.depth_max && self.cost <= headroom
    }
}

/// A chunk that is put in front.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BaseChunk {
    /// Its region.
    pub region: RegionNumber,
    /// Its number there.
    pub chunk: u16,
}

/// Decision of the policy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// No base.
    #[default]
    None,
    /// These regions, the best one last: next to the new region, since shorter distances take fewer bits.
    Regions(Vec<RegionNumber>),
    /// These chunks, in the order of their regions.
    Chunks(Vec<BaseChunk>),
}

impl Choice {
    /// Returns the regions that must be read, each once, ascending.
    pub fn regions(&self) -> Vec<RegionNumber> {
        let mut regions = match self {
            Self::None => Vec::new(),
            Self::Regions(regions) => regions.clone(),
            Self::Chunks(chunks) => chunks.iter().map(|chunk| chunk.region).collect(),
        };
        regions.sort_unstable();
        regions.dedup();
        regions
    }
}

/// Returns the regions that are worth opening with their scores, best first, at most `limit`.
///
/// `votes` are of the sample in memory, and count [`VOTE_SCORE`] each. `hints` are regions that the stream suggests, since what is
/// similar comes in runs, as what is equal does. (Shilane et al., "WAN optimized replication of backup datasets using stream-informed
/// delta compression", FAST 2012.) A hint counts 1, however often it is there.
pub fn propose(votes: &[Vote], hints: &[RegionNumber], limit: usize) -> Vec<(u32, RegionNumber)> {
    let mut scores: BTreeMap<RegionNumber, u32> =
        votes.iter().map(|vote| (vote.region, VOTE_SCORE.saturating_mul(vote.count))).collect();
    let mut hints = hints.to_vec();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        let score = scores.entry(hint).or_default();
        *score = score.saturating_add(1);
    }
    let mut regions: Vec<_> = scores.into_iter().map(|(region, score)| (score, region)).collect();
    regions.sort_unstable_by(|one, other| other.cmp(one));
    regions.truncate(limit);
    regions
}

/// Chooses bases for a region with these features. `headroom` is how many bytes of bases a restore may decode besides: the costs
/// of what is chosen add up to no more.
pub fn choose(new: &RegionFeatures, candidates: &[Candidate<'_>], limits: &Limits, headroom: u64) -> Choice {
    let all = new.hashes().len();
    let needed = all.div_ceil(limits.share_part.max(1)).max(1);
    let candidates: Vec<&Candidate<'_>> = candidates.iter().filter(|it| it.is_usable(limits, headroom)).collect();
    let mut covered = Covered::new(all);
    let mut bases: Vec<RegionNumber> = Vec::new();
    let (mut left, mut chains) = (headroom, 0);
    while bases.len() < limits.bases_max.min(BASES_MAX) {
        let is_affordable = |it: &&&Candidate<'_>| it.cost <= left && chains + it.chain <= CHAIN_REGIONS_MAX;
        let affordable = candidates.iter().filter(is_affordable).filter(|it| !bases.contains(&it.region));
        let gain = |it: &&&Candidate<'_>| (covered.gain(new, it.features), std::cmp::Reverse(it.cost), it.region);
        let Some(best) = affordable.max_by_key(gain).filter(|best| needed <= covered.gain(new, best.features)) else {
            break;
        };
        covered.add(new, best.features);
        left -= best.cost;
        chains += best.chain;
        bases.push(best.region);
    }
    if let Some(chunks) = scattered(new, &candidates, limits, headroom, covered.count) {
        return Choice::Chunks(chunks);
    }
    if bases.is_empty() {
        return Choice::None;
    }
    bases.reverse();
    Choice::Regions(bases)
}

/// Returns how many of the features of a new region some base has.
pub fn covered<'a>(new: &RegionFeatures, bases: impl IntoIterator<Item = &'a RegionFeatures>) -> usize {
    let mut covered = Covered::new(new.hashes().len());
    bases.into_iter().for_each(|base| covered.add(new, base));
    covered.count
}

/// Returns chunks of many regions, where they cover more than whole regions do by one part in [`MORE_PART`]: small edits are scattered.
fn scattered(
    new: &RegionFeatures,
    candidates: &[&Candidate<'_>],
    limits: &Limits,
    headroom: u64,
    by_regions: usize,
) -> Option<Vec<BaseChunk>> {
    if limits.chunk_regions_max == 0 {
        return None;
    }
    let mut covered = Covered::new(new.hashes().len());
    let (mut left, mut bytes) = (headroom, 0u32);
    let mut chunks = Vec::new();
    let (mut regions, mut chains) = (0, 0);
    let mut order: Vec<_> = candidates.iter().map(|it| (covered.gain(new, it.features), *it)).collect();
    order.sort_by_key(|(gain, it)| std::cmp::Reverse((*gain, it.region)));
    for (_, candidate) in order {
        if limits.chunk_regions_max <= regions || left < candidate.cost || CHAIN_REGIONS_MAX < chains + candidate.chain
        {
            continue;
        }
        let mut gains = BTreeMap::<u16, u32>::new();
        for (ours, theirs) in new.shared(candidate.features) {
            if let Some(chunk) = candidate.features.chunks().get(theirs).filter(|_| !covered.contains(ours)) {
                *gains.entry(*chunk).or_default() += 1;
            }
        }
        let before = chunks.len();
        for chunk in gains.into_keys() {
            let len = candidate.features.chunk_len(chunk);
            if bytes.saturating_add(len) <= PREFIX_BYTES_MAX {
                bytes += len;
                chunks.push(BaseChunk { region: candidate.region, chunk });
            }
        }
        if before < chunks.len() {
            covered.add(new, candidate.features);
            left -= candidate.cost;
            chains += candidate.chain;
            regions += 1;
        }
    }
    let needed = new.hashes().len().div_ceil(limits.share_part.clamp(1, CHUNKS_SHARE_PART)).max(1);
    chunks.sort_unstable();
    let is_more = by_regions + by_regions / MORE_PART < covered.count;
    (needed <= covered.count && is_more).then_some(chunks)
}

/// Features of the new region that some base has.
struct Covered {
    is_covered: Vec<bool>,
    count: usize,
}

impl Covered {
    fn new(len: usize) -> Self {
        Self { is_covered: vec![false; len], count: 0 }
    }

    fn contains(&self, feature: usize) -> bool {
        self.is_covered.get(feature).copied().unwrap_or(true)
    }

    fn gain(&self, new: &RegionFeatures, base: &RegionFeatures) -> usize {
        new.shared(base).filter(|(ours, _)| !self.contains(*ours)).count()
    }

    fn add(&mut self, new: &RegionFeatures, base: &RegionFeatures) {
        for (ours, _) in new.shared(base) {
            if let Some(covered) = self.is_covered.get_mut(ours) {
                self.count += usize::from(!*covered);
                *covered = true;
            }
        }
    }
}
