//! From the features of a new region to its bases: the sample in memory, then the regions themselves, then the policy.

use std::sync::Arc;

use crate::error::Result;

use super::choose::{Candidate, Choice, Limits, choose, propose};
use super::features::RegionFeatures;
use super::index::{AnchorIndex, Vote};
use super::reading::Reading;
use super::regions::{RegionNumber, Regions};
use crate::types::RegionId;

/// Most hints that are considered for one region.
const HINTS_MAX: usize = 256;
/// Regions between two with votes are hints if these are at most so far apart: a sample misses one region in a few, and what is similar
/// comes in runs.
const GAP_MAX: u32 = 6;
/// Regions behind those with votes for the region before that are hints.
const FOLLOWING: u32 = 6;

/// Regions in a row that resemble none of those that were opened for them, before half as many are opened for the next ones.
const MISSES_UNTIL_HALF: u32 = 8;

/// How much is done to find similar regions: less while what is opened turns out not to be similar. Some sources share words, and so anchors of the
/// sample, but no regions: for a first version of Linux sources 4,000 regions were opened, and two became bases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Effort {
    /// Regions since the last one that got bases, without those for which nothing was opened that could have become a base.
    misses: u32,
}

impl Effort {
    /// Returns how many of `max` regions are opened for a new one: one at least, the best, so that what is similar later is found.
    fn limit(self, max: usize) -> usize {
        max.checked_shr(self.misses / MISSES_UNTIL_HALF).unwrap_or(0).max(1)
    }

    /// Returns what follows a region for which so many others were opened that could have become bases.
    fn after(self, usable: usize, choice: &Choice) -> Self {
        match choice {
            Choice::None if usable == 0 => self,
            Choice::None => Self { misses: self.misses.saturating_add(1) },
            Choice::Regions(_) | Choice::Chunks(_) => Self::default(),
        }
    }
}

/// Opens regions to compare them: what the mechanism implements.
pub trait OpenRegions {
    /// Returns all features of a region; `None` if it cannot be opened, which costs size and is no error.
    fn features(&mut self, number: RegionNumber, id: RegionId) -> Result<Option<Arc<RegionFeatures>>>;
}

/// Finds bases for the regions of one session.
#[derive(Debug)]
pub struct BaseSearch {
    /// Regions that have numbers.
    pub regions: Regions,
    /// Sample of their features.
    pub index: AnchorIndex,
    /// Regions that a restore of the session's snapshot reads.
    pub reading: Reading,
    limits: Limits,
    effort: Effort,
    /// The last region with votes for the region before.
    last: Option<RegionNumber>,
}

impl BaseSearch {
    /// Starts a session.
    pub fn new(regions: Regions, index: AnchorIndex, limits: Limits) -> Self {
        Self { regions, index, reading: Reading::default(), limits, effort: Effort::default(), last: None }
    }

    /// Starts the next session with the same regions.
    pub fn begin_session(&mut self) {
        self.reading = Reading::default();
        self.effort = Effort::default();
        self.last = None;
    }

    /// Returns how many regions are opened for the next new one, at most.
    pub fn proposals_max(&self) -> usize {
        self.effort.limit(self.limits.candidates_max.max(self.limits.chunk_regions_max))
    }

    /// Returns the regions that are worth opening for a new region with these features, and their scores, the best first. `neighbors`
    /// are the regions of stored chunks next to its own in the stream, as far as they are known.
    pub fn propose(&mut self, new: &RegionFeatures, neighbors: &[RegionNumber]) -> Vec<(u32, RegionId)> {
        let mut votes = self.index.votes(new.hashes());
        votes.retain(|vote| self.is_usable(vote.region));
        let hints = self.following(&votes).chain(neighbors.iter().copied()).filter(|region| self.is_usable(*region));
        let hints: Vec<_> = hints.take(HINTS_MAX).collect();
        self.last = votes.iter().map(|vote| vote.region).max().or(self.last);
        let proposed = propose(&votes, &hints, self.proposals_max()).into_iter();
        proposed.filter_map(|(votes, region)| Some((votes, self.regions.id(region)?))).collect()
    }

    fn is_usable(&self, region: RegionNumber) -> bool {
        self.regions.depth(region).is_some_and(|depth| depth < self.limits.depth_max)
    }

    /// Returns the regions between those with votes, and behind those for the region before: what is similar comes in runs.
    fn following(&self, votes: &[Vote]) -> impl Iterator<Item = RegionNumber> + use<> {
        let mut voted: Vec<u32> = votes.iter().map(|vote| vote.region.0).collect();
        voted.sort_unstable();
        let next = |pair: &[u32]| match pair {
            [one, other] if *other - *one <= GAP_MAX => one + 1..*other,
            _ => 0..0,
        };
        let between: Vec<u32> = voted.windows(2).flat_map(next).collect();
        let behind = self.last.map_or(0..0, |last| last.0..last.0.saturating_add(FOLLOWING));
        between.into_iter().chain(behind).map(RegionNumber)
    }

    /// Chooses among regions that were opened, for a new region of `plain_len` bytes.
    pub fn choose(
        &mut self,
        new: &RegionFeatures,
        plain_len: u32,
        opened: &[(RegionNumber, &RegionFeatures)],
    ) -> Choice {
        let candidates: Vec<Candidate<'_>> = opened
            .iter()
            .map(|(region, features)| Candidate {
                region: *region,
                depth: self.regions.depth(*region).unwrap_or(u8::MAX),
                features,
                cost: self.reading.cost(&self.regions, *region),
                chain: self.regions.chain_len(*region),
            })
            .collect();
        let headroom = self.reading.headroom(plain_len);
        let choice = choose(new, &candidates, &self.limits, headroom);
        let usable = candidates.iter().filter(|candidate| candidate.is_usable(&self.limits, headroom)).count();
        self.effort = self.effort.after(usable, &choice);
        if choice != Choice::None {
            for base in choice.regions() {
                self.reading.read_as_base(&self.regions, base);
            }
        }
        choice
    }

    /// Proposes, opens and chooses.
    pub fn find(
        &mut self,
        new: &RegionFeatures,
        plain_len: u32,
        neighbors: &[RegionNumber],
        open: &mut dyn OpenRegions,
    ) -> Result<Choice> {
        let mut opened = Vec::new();
        for (_, id) in self.propose(new, neighbors) {
            let Some(region) = self.regions.number_of(id) else { continue };
            if let Some(features) = open.features(region, id)? {
                opened.push((region, features));
            }
        }
        let opened: Vec<_> = opened.iter().map(|(region, features)| (*region, features.as_ref())).collect();
        Ok(self.choose(new, plain_len, &opened))
    }

    /// Enters a region that was stored with these bases, so that later ones can be based on it. `None`: they cannot.
    pub fn stored(
        &mut self,
        id: RegionId,
        plain_len: u32,
        bases: &[RegionNumber],
        features: &RegionFeatures,
    ) -> Option<RegionNumber> {
        let mut depth = 0;
        for base in bases {
            depth = depth.max(self.regions.depth(*base)? + 1);
        }
        self.stored_at(id, plain_len, (bases, depth), features.hashes())
    }

    /// Does what [`BaseSearch::stored`] does, with the depth and the sample that were stored.
    pub fn stored_at(
        &mut self,
        id: RegionId,
        plain_len: u32,
        (bases, depth): (&[RegionNumber], u8),
        hashes: &[u64],
    ) -> Option<RegionNumber> {
        let number = self.regions.enter(id, plain_len, (bases, depth))?;
        self.reading.refer(&self.regions, number);
        if depth < self.limits.depth_max {
            self.index.enter(number, hashes);
        }
        Some(number)
    }

    /// Takes note that the snapshot refers to a chunk of a stored region.
    pub fn refer(&mut self, region: RegionNumber) {
        self.reading.refer(&self.regions, region);
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.regions.memory_bytes() + self.index.memory_bytes() + self.reading.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_regions_are_opened_while_none_is_similar() {
        let mut effort = Effort::default();
        let found = Choice::Regions(vec![RegionNumber(1)]);
        let mut opened = 0;
        for _ in 0..330 {
            let limit = effort.limit(12);
            opened += limit;
            effort = effort.after(limit, &Choice::None);
        }
        assert_eq!(opened, 8 * (12 + 6 + 3) + 330 - 24);
        assert_eq!(effort.after(0, &Choice::None), effort);
        assert_eq!(effort.after(1, &found).limit(12), 12);
        assert_eq!(Effort { misses: u32::MAX }.limit(12), 1);
        assert_eq!(Effort { misses: u32::MAX }.after(1, &Choice::None).limit(12), 1);
    }
}
