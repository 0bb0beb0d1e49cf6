//! Adaptive halving: large blocks that repeat are kept, the others are halved.
//!
//! A level's blocks are the largest ones that fit and halves of blocks that the level above did not keep. A block whose name occurs
//! at least twice among those of its level is kept, and stored once. At the smallest level all blocks are kept (section 4.2 of the
//! paper). A level is a question about a multiset of names, so the result depends neither on the order nor on the number of threads.

use anyhow::{Context, Result, ensure};

use crate::image::block::{BlockHash, BlockKeys, ImageNames, LEVEL_MAX, LEVELS, Name, UNIT_BYTES, names_of_blocks};
use crate::image::first::{FirstMap, Found, first_of};

/// A block that is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Kept {
    /// Its first unit.
    pub start: u32,
    /// Its level.
    pub level: u8,
    /// True if it has only zeros, and those are distinguished.
    pub is_zero: bool,
    /// The first unit of the first kept block that is equal: its own if it is that one.
    pub first: u32,
}

impl Kept {
    /// Returns how many units it has.
    pub fn units(&self) -> u32 {
        1 << self.level
    }

    /// Returns true if it is the first one of its name, whose bytes are stored.
    pub fn is_unique(&self) -> bool {
        self.first == self.start
    }
}

/// Source of the names of one level.
pub trait LevelNames {
    /// Finds for each active block, an index among all blocks of the level, the first active one of its name. Also returns true for each
    /// block that has only zeros, if those are distinguished.
    fn find(&mut self, level: u8, active: &[u32]) -> Result<Vec<(Found, bool)>>;
}

/// Halves an image of so many units down to `level_min`. Blocks of zeros are kept at once, where `names` tells them apart. Returns what
/// is kept, in the order of the image.
pub fn halve(names: &mut dyn LevelNames, units: u32, level_min: u8) -> Result<Vec<Kept>> {
    ensure!(level_min <= LEVEL_MAX, "the smallest level: 0 to {LEVEL_MAX}, not {level_min}");
    ensure!(units.is_multiple_of(1 << level_min), "an image has a whole number of its smallest blocks");
    let mut kept = Vec::new();
    // Units below this belong to larger blocks.
    let mut covered = 0;
    let mut active: Vec<u32> = Vec::new();
    for level in (level_min..=LEVEL_MAX).rev() {
        // Blocks of this level that no larger one has: at the upper end of the image, one at most below the highest level.
        let fitting = units >> level;
        active.extend(covered >> level..fitting);
        covered = fitting << level;
        let found = names.find(level, &active)?;
        ensure!(found.len() == active.len(), "an answer for each block");
        let mut halves = Vec::new();
        for (block, (found, is_zero)) in active.iter().zip(found) {
            if level == level_min || 2 <= found.count || is_zero {
                kept.push(Kept { start: block << level, level, is_zero, first: found.first << level });
            } else {
                halves.extend([2 * block, 2 * block + 1]);
            }
        }
        active = halves;
    }
    kept.sort_unstable();
    Ok(kept)
}

/// Names of an image in memory.
#[derive(Debug)]
pub struct InMemory<'a> {
    /// Names of all levels that are asked for.
    pub names: &'a ImageNames,
    /// The map.
    pub map: FirstMap,
    /// Threads.
    pub threads: usize,
    /// Names of blocks of zeros, where those are distinguished.
    pub zeros: Option<[Name; LEVELS]>,
}

impl LevelNames for InMemory<'_> {
    fn find(&mut self, level: u8, active: &[u32]) -> Result<Vec<(Found, bool)>> {
        let names = self.names.get(usize::from(level)).map(Vec::as_slice).unwrap_or_default();
        Ok(found_and_zeros(self.map, names, active, self.threads, self.zeros.map(|zeros| zeros[usize::from(level)])))
    }
}

/// Finds first positions, and blocks of zeros.
pub(super) fn found_and_zeros(
    map: FirstMap,
    names: &[Name],
    active: &[u32],
    threads: usize,
    zero: Option<Name>,
) -> Vec<(Found, bool)> {
    let found = first_of(map, names, active, threads);
    let is_zero = |block: &u32| zero.is_some() && names.get(*block as usize).copied() == zero;
    found.into_iter().zip(active).map(|(found, block)| (found, is_zero(block))).collect()
}

/// Names that are computed level by level, of the blocks of a level that are active only: as in the paper.
#[derive(Debug)]
pub struct ByLevel<'a> {
    /// The image.
    pub image: &'a [u8],
    /// The hash.
    pub hash: BlockHash,
    /// Its keys.
    pub keys: &'a BlockKeys,
    /// The map.
    pub map: FirstMap,
    /// Threads.
    pub threads: usize,
    /// Bytes hashed so far.
    pub hashed: u64,
}

impl LevelNames for ByLevel<'_> {
    fn find(&mut self, level: u8, active: &[u32]) -> Result<Vec<(Found, bool)>> {
        let block = UNIT_BYTES << level;
        let bytes_of = |index: &u32| {
            let start = *index as usize * block;
            self.image.get(start..start + block).context("a block behind the end of the image")
        };
        let blocks: Vec<&[u8]> = active.iter().map(bytes_of).collect::<Result<_>>()?;
        let mut names = vec![Name::default(); active.len()];
        names_of_blocks(&blocks, self.hash, self.keys, self.threads, &mut names);
        self.hashed += (blocks.len() * block) as u64;
        let indexes: Vec<u32> = (0..u32::try_from(active.len())?).collect();
        let mut found = found_and_zeros(self.map, &names, &indexes, self.threads, None);
        for (found, _) in &mut found {
            found.first = active.get(found.first as usize).copied().unwrap_or(u32::MAX);
        }
        Ok(found)
    }
}

/// Sums of what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Blocks.
    pub entries: u64,
    /// Different ones.
    pub descriptors: u64,
    /// Units of the different ones.
    pub units: u64,
}

/// Adds up what is kept.
pub fn sums_of(kept: &[Kept]) -> Sums {
    let mut sums = Sums { entries: kept.len() as u64, ..Sums::default() };
    for block in kept.iter().filter(|block| block.is_unique()) {
        sums.descriptors += 1;
        sums.units += u64::from(block.units());
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::image::block::names_of;
    use crate::image::made::disk_image;

    /// Halving by its definition, by contents and without names.
    fn by_definition(image: &[u8], level_min: u8) -> Vec<Kept> {
        let units = image.len() / UNIT_BYTES;
        let (mut kept, mut active, mut covered) = (Vec::new(), Vec::new(), 0);
        for level in (level_min..=LEVEL_MAX).rev() {
            let len = 1 << level;
            while covered + len <= units {
                active.push(covered);
                covered += len;
            }
            let bytes = |start: usize| &image[start * UNIT_BYTES..(start + len) * UNIT_BYTES];
            let mut known: HashMap<&[u8], (usize, usize)> = HashMap::new();
            for start in &active {
                known.entry(bytes(*start)).or_insert((*start, 0)).1 += 1;
            }
            let mut halves = Vec::new();
            for start in active {
                let (first, count) = known[bytes(start)];
                if 1 < count || level == level_min {
                    let [start, first] = [start, first].map(|unit| u32::try_from(unit).unwrap());
                    kept.push(Kept { start, level, is_zero: false, first });
                } else {
                    halves.extend([start, start + len / 2]);
                }
            }
            active = halves;
        }
        kept.sort_unstable();
        kept
    }

    #[test]
    fn what_is_kept_is_that_of_the_definition_for_any_hash_map_and_number_of_threads() {
        let keys = BlockKeys::new(&[1; 32]);
        for (units, seed) in [(0, 1), (1, 1), (127, 2), (700, 3), (2048, 4), (4090, 5)] {
            let image = disk_image(units * UNIT_BYTES, seed);
            let count = u32::try_from(units).unwrap();
            let names = BlockHash::ALL.map(|hash| names_of(&image, hash, &keys, 0, 2));
            for level_min in 0..=LEVEL_MAX {
                if !count.is_multiple_of(1 << level_min) {
                    let mut source = InMemory { names: &names[0], map: FirstMap::Atomic, threads: 1, zeros: None };
                    assert!(halve(&mut source, count, level_min).is_err());
                    continue;
                }
                let wanted = by_definition(&image, level_min);
                assert_eq!(wanted.iter().map(Kept::units).sum::<u32>(), count);
                for names in &names {
                    let mut source = InMemory { names, map: FirstMap::Locked, threads: 3, zeros: None };
                    assert_eq!(halve(&mut source, count, level_min).unwrap(), wanted);
                }
                for threads in [1, 2, 5, 64] {
                    let mut source = InMemory { names: &names[0], map: FirstMap::Atomic, threads, zeros: None };
                    assert_eq!(halve(&mut source, count, level_min).unwrap(), wanted, "{threads}");
                }
                let (hash, map) = (BlockHash::Md5, FirstMap::Atomic);
                let mut source = ByLevel { image: &image, hash, keys: &keys, map, threads: 2, hashed: 0 };
                assert_eq!(halve(&mut source, count, level_min).unwrap(), wanted);
                assert!(image.len() as u64 <= source.hashed);
            }
        }
    }

    #[test]
    fn zeros_are_kept_as_large_blocks_where_they_are_told_apart() {
        let keys = BlockKeys::new(&[1; 32]);
        let mut image = vec![0; 256 * UNIT_BYTES];
        image[200 * UNIT_BYTES] = 1;
        let names = names_of(&image, BlockHash::Tree, &keys, 0, 1);
        let mut source = InMemory { names: &names, map: FirstMap::Atomic, threads: 1, zeros: Some(keys.zeros()) };
        let kept = halve(&mut source, 256, 0).unwrap();
        assert_eq!(kept[0], Kept { start: 0, level: 7, is_zero: true, first: 0 });
        // The unit that differs, and zeros of 2^0, 2^1, .. units around it.
        assert_eq!(kept.len(), 1 + 1 + 7);
        source.zeros = None;
        assert!(kept.len() < halve(&mut source, 256, 0).unwrap().len());
    }
}
