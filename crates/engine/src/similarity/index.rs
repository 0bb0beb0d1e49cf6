//! A sample of the anchors of all regions that can be bases, in memory.
//!
//! One anchor in [`SAMPLE_DISTANCE`] is kept, chosen by its hash, so that two regions with an anchor in common keep the same
//! ones. Each takes a slot of eight bytes: 36 bits of its hash and the number of its region. A bucket has 16 slots, two cache lines;
//! the table grows by an eighth until it has its share of the memory, then the newest regions displace the oldest ones.
//!
//! Memory for each stored chunk of 8 KiB: it has 16 anchors, an eighth of which is a sample, in a slot of eight bytes, of
//! which at least 2/3 are used: 1 to 1.5 bytes, and 0.4 of [`Regions`](super::regions::Regions).

use crate::error::Result;

use super::regions::{REGIONS_MAX, RegionNumber};

/// One anchor in this many is in memory: 8 of a region of 512 KiB.
///
/// A base that has a quarter of a region's anchors is missed with a chance of 0.75^8 = 10%, and of 1% with 1 in 64. Decision 0045 has
/// the sizes.
pub const SAMPLE_DISTANCE: u32 = 128;
/// Most regions that are kept for one anchor. What is in more of them, such as the text of a license, names no base.
pub const SAME_MAX: usize = 4;
/// Share of the memory budget of a backup: one in this many bytes. A budget of 256 MiB then has the samples of 8 million chunks, 64 GB
/// of stored chunks.
pub const BUDGET_PART: usize = 24;

/// Slots of a bucket.
const BUCKET_SLOTS: usize = 16;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: usize = 8 * BUCKET_SLOTS;
/// Share of slots in use at which the table grows, as numerator and denominator. Buckets that fill up earlier lose old slots; 3% of all
/// anchors lose their newest region.
const FILL: (usize, usize) = (3, 4);
const NUMBER_BITS: u32 = 28;
const CHECK_BITS: u32 = 64 - NUMBER_BITS;
/// A slot without an anchor. Its number is one that no region has.
const EMPTY: u64 = u64::MAX;

/// Returns the part of a hash that a directory stores: the upper 40 bits, which include all that a slot has.
pub fn stored_hash(hash: u64) -> u64 {
    hash >> 24 << 24
}

/// Chooses the anchors that are kept in memory, by their hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampling {
    mask: u64,
}

impl Sampling {
    /// Keeps one in `distance`, rounded up to a power of two.
    pub const fn one_in(distance: u32) -> Self {
        let distance = if distance == 0 { 1 } else { distance as u64 };
        Self { mask: distance.next_power_of_two() - 1 }
    }

    /// Returns the mean number of anchors for one that is kept.
    pub fn distance(self) -> u32 {
        u32::try_from(self.mask + 1).unwrap_or(u32::MAX)
    }

    /// Returns true if the anchor is kept.
    pub fn takes(self, hash: u64) -> bool {
        hash & self.mask == 0
    }

    /// Returns true if it keeps all that `other` keeps.
    pub fn is_as_dense_as(self, other: Self) -> bool {
        self.mask <= other.mask
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::one_in(SAMPLE_DISTANCE)
    }
}

/// How many anchors of a batch a region has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vote {
    /// The region.
    pub region: RegionNumber,
    /// The number of anchors.
    pub count: u32,
}

type Bucket = [u64; BUCKET_SLOTS];

/// Samples of anchors and the regions that have them.
#[derive(Clone, Debug)]
pub struct AnchorIndex {
    sampling: Sampling,
    buckets: Vec<Bucket>,
    buckets_max: usize,
    used: usize,
}

impl AnchorIndex {
    /// Makes an empty index that takes at most `bytes_max` bytes, or one bucket.
    pub fn new(sampling: Sampling, bytes_max: usize) -> Self {
        let buckets_max = (bytes_max / size_of::<Bucket>()).clamp(1, 1 << NUMBER_BITS);
        // All of the capacity at once: pages that are not written take no memory, and growing copies nothing.
        let mut buckets = Vec::with_capacity(buckets_max);
        buckets.push([EMPTY; BUCKET_SLOTS]);
        Self { sampling, buckets, buckets_max, used: 0 }
    }

    /// Returns the rule that chooses the anchors which it keeps.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Returns how many samples there are.
    pub fn count(&self) -> usize {
        self.used
    }

    /// Returns the memory in use, in bytes: at most that of its capacity.
    pub fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Enters the sample of a region's anchors.
    pub fn enter(&mut self, region: RegionNumber, hashes: &[u64]) {
        if REGIONS_MAX <= region.0 as usize {
            return;
        }
        let sampling = self.sampling;
        for hash in hashes.iter().filter(|hash| sampling.takes(**hash)) {
            if self.buckets.len() < self.buckets_max && self.buckets.len() * BUCKET_SLOTS * FILL.0 / FILL.1 <= self.used
            {
                self.grow();
            }
            self.put(hash >> NUMBER_BITS << NUMBER_BITS | u64::from(region.0));
        }
    }

    fn bucket_of(&self, slot: u64) -> usize {
        let position = (u128::from(slot >> NUMBER_BITS) * self.buckets.len() as u128) >> CHECK_BITS;
        usize::try_from(position).expect("below the number of buckets")
    }

    fn put(&mut self, slot: u64) {
        let number = self.bucket_of(slot);
        let Some(bucket) = self.buckets.get_mut(number) else { return };
        if bucket.contains(&slot) {
            return;
        }
        let is_same = |one: u64, other: u64| one >> NUMBER_BITS == other >> NUMBER_BITS;
        let region = |slot: &u64| slot & (EMPTY >> CHECK_BITS);
        let old = *bucket;
        let has_newer = |slot: u64, new: u64| {
            let newer = |other: &u64| *other != EMPTY && is_same(*other, slot) && region(&slot) < region(other);
            old.iter().chain([&new]).any(newer)
        };
        let same = old.iter().filter(|other| **other != EMPTY && is_same(**other, slot)).count();
        let replaced = if same < SAME_MAX {
            // An empty slot if there is one; otherwise the oldest that has a newer region with the same anchor; otherwise the oldest.
            bucket.iter_mut().min_by_key(|held| (**held != EMPTY, !has_newer(**held, slot), region(held)))
        } else {
            bucket.iter_mut().filter(|held| **held != EMPTY && is_same(**held, slot)).min_by_key(|held| region(held))
        };
        if let Some(replaced) = replaced {
            self.used += usize::from(*replaced == EMPTY);
            *replaced = slot;
        }
    }

    /// Makes an eighth more buckets. The slots of a bucket go into it or into later ones, so the last one goes first.
    fn grow(&mut self) {
        let before = self.buckets.len();
        let after = (before + before / 8 + 1).min(self.buckets_max);
        self.buckets.resize(after, [EMPTY; BUCKET_SLOTS]);
        for number in (0..before).rev() {
            let Some(bucket) = self.buckets.get_mut(number) else { continue };
            let slots = std::mem::replace(bucket, [EMPTY; BUCKET_SLOTS]);
            for slot in slots.into_iter().filter(|slot| *slot != EMPTY) {
                self.used -= 1;
                self.put(slot);
            }
        }
    }

    /// Looks a region's anchors up at once, and returns the regions that have some of them: most votes first, then the newest.
    pub fn votes(&self, hashes: &[u64]) -> Vec<Vote> {
        let mut regions = Vec::new();
        for hash in hashes.iter().filter(|hash| self.sampling.takes(**hash)) {
            let Some(bucket) = self.buckets.get(self.bucket_of(*hash)) else { continue };
            let same = bucket.iter().filter(|slot| **slot != EMPTY && **slot >> NUMBER_BITS == hash >> NUMBER_BITS);
            regions.extend(same.map(|slot| RegionNumber((slot & (EMPTY >> CHECK_BITS)) as u32)));
        }
        regions.sort_unstable();
        let mut votes: Vec<Vote> = Vec::new();
        for region in regions {
            match votes.last_mut() {
                Some(last) if last.region == region => last.count += 1,
                _ => votes.push(Vote { region, count: 1 }),
            }
        }
        votes.sort_by_key(|vote| std::cmp::Reverse((vote.count, vote.region)));
        votes
    }

    /// Returns the number of buckets.
    pub(super) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// Writes the buckets, with regions numbered from `first`.
    pub(super) fn write(&self, first: u32, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for bucket in &self.buckets {
            let mut bytes = [0; BUCKET_BYTES];
            for (bytes, slot) in bytes.chunks_exact_mut(8).zip(bucket) {
                let region = slot & (EMPTY >> CHECK_BITS);
                let is_known = *slot != EMPTY && u64::from(first) <= region;
                let slot = if is_known { slot - u64::from(first) } else { EMPTY };
                bytes.copy_from_slice(&slot.to_le_bytes());
            }
            out(&bytes)?;
        }
        Ok(())
    }

    /// Makes as many empty buckets as the memory allows, at most `buckets`.
    pub(super) fn resize(&mut self, buckets: usize) {
        self.buckets.clear();
        self.buckets.resize(buckets.clamp(1, self.buckets_max), [EMPTY; BUCKET_SLOTS]);
        self.used = 0;
    }

    /// Takes the slots of one of `count` buckets that were written, as far as their regions are known.
    pub(super) fn read(
        &mut self,
        number: usize,
        count: usize,
        bytes: &[u8; BUCKET_BYTES],
        is_known: &dyn Fn(RegionNumber) -> bool,
    ) {
        let is_same_size = count == self.buckets.len();
        for (at, bytes) in bytes.chunks_exact(8).enumerate() {
            let slot = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            if slot == EMPTY || !is_known(RegionNumber((slot & (EMPTY >> CHECK_BITS)) as u32)) {
                continue;
            }
            match self.buckets.get_mut(number).and_then(|bucket| bucket.get_mut(at)).filter(|_| is_same_size) {
                Some(empty) => {
                    *empty = slot;
                    self.used += 1;
                }
                None => self.put(slot),
            }
        }
    }

    /// Drops the samples of regions for which `keeps` returns false: of containers that are no longer there.
    pub fn retain(&mut self, keeps: impl Fn(RegionNumber) -> bool) {
        for slot in self.buckets.iter_mut().flatten().filter(|slot| **slot != EMPTY) {
            if !keeps(RegionNumber((*slot & (EMPTY >> CHECK_BITS)) as u32)) {
                *slot = EMPTY;
                self.used -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::SplitMix64;

    fn all() -> Sampling {
        Sampling::one_in(1)
    }

    #[test]
    fn votes_are_those_of_a_map_while_memory_lasts() {
        let mut random = SplitMix64::new(1);
        let mut index = AnchorIndex::new(all(), 1 << 20);
        let mut expected = BTreeMap::<u64, Vec<u32>>::new();
        for region in 0..400u32 {
            let hashes: Vec<u64> =
                (0..64).map(|_| if random.coin() { random.next_u64() } else { mix(random.below(4000)) }).collect();
            index.enter(RegionNumber(region), &hashes);
            for hash in hashes {
                let regions = expected.entry(hash).or_default();
                if !regions.contains(&region) {
                    regions.push(region);
                }
            }
        }
        let mut missed = 0;
        for (hash, regions) in &expected {
            let found = index.votes(&[*hash]);
            let newest: Vec<u32> = regions.iter().rev().take(SAME_MAX).copied().collect();
            assert!(found.iter().all(|vote| newest.contains(&vote.region.0) && vote.count == 1), "a wrong vote");
            missed += usize::from(found.first().map(|vote| vote.region.0) != newest.first().copied());
        }
        assert!(missed * 25 < expected.len(), "the newest of {missed} of {} were lost to full buckets", expected.len());
        assert_eq!(index.votes(&[random.next_u64()]), []);
        let three = [mix(1), mix(2), mix(3)];
        let votes = index.votes(&three);
        let sum: u32 = votes.iter().map(|vote| vote.count).sum();
        let alone: usize = three.iter().map(|hash| index.votes(&[*hash]).len()).sum();
        assert_eq!(sum as usize, alone);
        assert!(votes.is_sorted_by_key(|vote| std::cmp::Reverse((vote.count, vote.region))));
        index.retain(|region| region.0 % 2 == 0);
        assert!(index.votes(&three).iter().all(|vote| vote.region.0 % 2 == 0));
        let slots = index.buckets.iter().flatten().filter(|slot| **slot != EMPTY).count();
        assert_eq!(index.count(), slots);
    }

    fn mix(number: u64) -> u64 {
        crate::random::mix64(number + 1)
    }

    #[test]
    fn memory_is_bounded_and_the_newest_regions_stay() {
        let bytes_max = 64 << 10;
        let mut index = AnchorIndex::new(all(), bytes_max);
        let mut random = SplitMix64::new(2);
        let hashes: Vec<Vec<u64>> = (0..2000).map(|_| (0..32).map(|_| random.next_u64()).collect()).collect();
        for (number, hashes) in (0..).zip(&hashes) {
            index.enter(RegionNumber(number), hashes);
            assert!(index.memory_bytes() <= bytes_max && index.count() <= bytes_max / 8);
        }
        assert_eq!(index.memory_bytes(), bytes_max);
        let found = |number: u32| index.votes(&hashes[number as usize]).iter().any(|vote| vote.region.0 == number);
        assert!((1900..2000).all(found), "the newest stay");
        assert!(!(0..1000).any(found), "the oldest go");
    }

    #[test]
    fn the_sample_is_as_large_as_asked_for_and_the_same_for_all() {
        let mut random = SplitMix64::new(3);
        let hashes: Vec<u64> = (0..100_000).map(|_| random.next_u64()).collect();
        for distance in [1u32, 64, 128] {
            let taken = hashes.iter().filter(|hash| Sampling::one_in(distance).takes(**hash)).count();
            assert!(taken.abs_diff(100_000 / distance as usize) < 120, "{taken} for 1 in {distance}");
        }
        let mut index = AnchorIndex::new(Sampling::default(), 1 << 20);
        index.enter(RegionNumber(0), &hashes);
        let votes: u32 = index.votes(&hashes).iter().map(|vote| vote.count).sum();
        assert_eq!(votes as usize, index.count());
    }
}
