//! A buddy allocator of blocks in a file (Knuth, volume 1, section 2.5, algorithm R and S).
//!
//! A block of level L has 2^L units and begins at a multiple of its length. It is split into two halves, and two free halves of one
//! block become that block again. A released block is not free before the next checkpoint: an older state may still refer to it.
//! Memory grows with the blocks in use only: free blocks of the highest level are kept as runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::image::block::LEVEL_MAX;

/// Units of a block of the highest level.
const TOP: u32 = 1 << LEVEL_MAX;
/// Units of the longest file: addresses above it stand for zeros.
pub(super) const END_MAX: u32 = u32::MAX / TOP * TOP - TOP;

/// The free blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Buddy {
    /// Free blocks below the highest level, by level.
    free: [BTreeSet<u32>; LEVEL_MAX as usize],
    /// Free runs of blocks of the highest level: first unit and the unit behind the last. Runs do not touch.
    runs: BTreeMap<u32, u32>,
    /// The unit behind the last block of the highest level that exists.
    end: u32,
    /// Blocks that will be free at the next checkpoint.
    released: Vec<(u32, u8)>,
}

impl Buddy {
    /// Returns the unit behind the last one.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// Returns how many units are free.
    pub(super) fn free_units(&self) -> u64 {
        let small: u64 = (0..).zip(&self.free).map(|(level, free)| (free.len() as u64) << level).sum();
        small + self.runs.iter().map(|(start, end)| u64::from(end - start)).sum::<u64>()
    }

    /// Returns how many units will be free at the next checkpoint.
    pub(super) fn released_units(&self) -> u64 {
        self.released.iter().map(|(_, level)| 1 << level).sum()
    }

    /// Returns how many blocks and runs it keeps, for the memory budget.
    pub(super) fn count(&self) -> usize {
        self.free.iter().map(BTreeSet::len).sum::<usize>() + self.runs.len() + self.released.len()
    }

    /// Takes the free block of a level with the lowest address among those of the smallest level that has one. Returns none if the
    /// file would be too long.
    pub(super) fn allocate(&mut self, level: u8) -> Option<u32> {
        let found = (level..LEVEL_MAX).find_map(|of| Some((*self.free.get(usize::from(of))?.first()?, of)));
        let (address, of) = match found {
            Some(found) => found,
            None => (self.top_block()?, LEVEL_MAX),
        };
        self.take(address, of, address, level);
        Some(address)
    }

    /// Returns the first free block of the highest level; makes the file longer if there is none.
    fn top_block(&mut self) -> Option<u32> {
        if let Some((start, _)) = self.runs.first_key_value() {
            return Some(*start);
        }
        let start = self.end;
        self.grow(start.checked_add(TOP)?)?;
        Some(start)
    }

    /// Makes the file longer.
    fn grow(&mut self, end: u32) -> Option<()> {
        if END_MAX < end {
            return None;
        }
        self.add_run(self.end, end);
        self.end = end;
        Some(())
    }

    /// Takes the block at an address. Returns none if it is not free.
    pub(super) fn allocate_at(&mut self, address: u32, level: u8) -> Option<()> {
        if LEVEL_MAX < level || !address.is_multiple_of(1 << level) {
            return None;
        }
        if self.end <= address {
            self.grow((address / TOP).checked_add(1)?.checked_mul(TOP)?)?;
        }
        let in_list = (level..LEVEL_MAX).find_map(|of| {
            let start = address >> of << of;
            self.free.get(usize::from(of))?.contains(&start).then_some((start, of))
        });
        let in_run = || {
            let start = address / TOP * TOP;
            let (_, end) = self.runs.range(..=start).next_back()?;
            (start < *end).then_some((start, LEVEL_MAX))
        };
        let (start, of) = in_list.or_else(in_run)?;
        self.take(start, of, address, level);
        Some(())
    }

    /// Takes a block out of a free one: the halves that do not have it stay free.
    fn take(&mut self, start: u32, of: u8, address: u32, level: u8) {
        if of == LEVEL_MAX {
            self.take_of_run(start);
        } else if let Some(free) = self.free.get_mut(usize::from(of)) {
            free.remove(&start);
        }
        let mut start = start;
        for half in (level..of).rev() {
            let middle = start + (1 << half);
            let other = if address < middle { middle } else { start };
            if let Some(free) = self.free.get_mut(usize::from(half)) {
                free.insert(other);
            }
            start = if address < middle { start } else { middle };
        }
    }

    /// Takes a block of the highest level out of its run.
    fn take_of_run(&mut self, start: u32) {
        let Some((from, end)) = self.runs.range(..=start).next_back().map(|(from, end)| (*from, *end)) else { return };
        self.runs.remove(&from);
        if from < start {
            self.runs.insert(from, start);
        }
        if start + TOP < end {
            self.runs.insert(start + TOP, end);
        }
    }

    fn add_run(&mut self, start: u32, end: u32) {
        let before = self.runs.range(..start).next_back().filter(|(_, end)| **end == start).map(|(from, _)| *from);
        let from = before.unwrap_or(start);
        let to = self.runs.remove(&end).unwrap_or(end);
        self.runs.insert(from, to);
    }

    /// Makes a block free that no state refers to.
    pub(super) fn give_back(&mut self, address: u32, level: u8) {
        let mut start = address;
        for (of, free) in self.free.iter_mut().enumerate().skip(usize::from(level)) {
            let buddy = start ^ 1 << of;
            if !free.remove(&buddy) {
                free.insert(start);
                return;
            }
            start = start.min(buddy);
        }
        self.add_run(start, start + TOP);
    }

    /// Keeps a block until the next checkpoint.
    pub(super) fn release(&mut self, address: u32, level: u8) {
        self.released.push((address, level));
    }

    /// Makes all released blocks free: a checkpoint that does not refer to them is durable.
    pub(super) fn reclaim(&mut self) {
        for (address, level) in std::mem::take(&mut self.released) {
            self.give_back(address, level);
        }
    }

    /// Returns true if free blocks, released ones and `used` ones, in the order of their addresses, have each unit once.
    pub(super) fn tiles(&self, used: impl Iterator<Item = (u32, u8)>) -> bool {
        let mut ranges: Vec<(u32, u32)> =
            used.chain(self.released.iter().copied()).map(|(start, level)| (start, start + (1 << level))).collect();
        for (level, free) in self.free.iter().enumerate() {
            ranges.extend(free.iter().map(|start| (*start, start + (1 << level))));
        }
        ranges.extend(self.runs.iter().map(|(start, end)| (*start, *end)));
        ranges.sort_unstable();
        let mut at = 0;
        ranges.into_iter().all(|(start, end)| std::mem::replace(&mut at, end) == start) && at == self.end
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::random::SplitMix64;

    use super::*;

    #[test]
    fn free_and_used_blocks_tile_the_file_and_all_released_becomes_one_run() {
        for seed in 0..20 {
            let mut random = SplitMix64::new(seed);
            let (mut buddy, mut used) = (Buddy::default(), BTreeMap::new());
            for step in 0..400 {
                match random.index(5) {
                    0..3 => {
                        let level = u8::try_from(random.index(8)).unwrap();
                        let address = buddy.allocate(level).unwrap();
                        assert!(address.is_multiple_of(1 << level));
                        assert_eq!(used.insert(address, level), None);
                    }
                    3 if !used.is_empty() => {
                        let (address, level) =
                            used.iter().nth(random.index(used.len())).map(|(a, l)| (*a, *l)).unwrap();
                        used.remove(&address);
                        if random.index(2) == 0 {
                            buddy.release(address, level);
                        } else {
                            buddy.give_back(address, level);
                        }
                    }
                    _ => {
                        if random.index(10) == 0 {
                            buddy.reclaim();
                        }
                    }
                }
                assert!(buddy.tiles(used.iter().map(|(a, l)| (*a, *l))), "seed {seed}, step {step}");
                let units: u64 = used.values().map(|level| 1_u64 << level).sum();
                assert_eq!(units + buddy.free_units() + buddy.released_units(), u64::from(buddy.end()));
            }
            // The same blocks, taken by their addresses, leave the same free ones.
            buddy.reclaim();
            let mut other = Buddy::default();
            for (address, level) in &used {
                other.allocate_at(*address, *level).unwrap();
                assert_eq!(other.allocate_at(*address, 0), None, "it is taken");
            }
            let is_longer = other.end() < buddy.end();
            assert!(is_longer || other == buddy);
            for (address, level) in used {
                buddy.give_back(address, level);
            }
            assert_eq!((buddy.count(), buddy.free_units()), (1, u64::from(buddy.end())));
        }
    }

    #[test]
    fn the_lowest_block_of_the_smallest_size_is_taken_and_far_addresses_take_no_memory() {
        let mut buddy = Buddy::default();
        assert_eq!([0, 0, 3, 0].map(|level| buddy.allocate(level).unwrap()), [0, 1, 8, 2]);
        buddy.allocate_at(TOP * 1_000_000, 7).unwrap();
        assert!(buddy.count() < 10);
        assert_eq!(buddy.allocate_at(END_MAX, 0), None, "behind the longest file");
        assert_eq!(buddy.allocate_at(1, 1), None, "not at a multiple of its length");
    }
}
