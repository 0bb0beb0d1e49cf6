//! A map from blocks to where their contents are, by ranges: what was inserted last holds.

use std::collections::BTreeMap;
use std::ops::Range;

/// A location whose successor is the location of the next block.
pub trait Location: Copy + PartialEq {
    /// Returns the location of the block that is so many blocks further.
    #[must_use]
    fn skip(self, blocks: u64) -> Self;
}

/// A map from blocks to locations.
#[derive(Clone, Debug)]
pub struct ExtentMap<P> {
    /// Ends and locations, by first blocks.
    extents: BTreeMap<u64, (u64, P)>,
}

impl<P> Default for ExtentMap<P> {
    fn default() -> Self {
        Self { extents: BTreeMap::new() }
    }
}

impl<P> ExtentMap<P> {
    /// Memory of an extent: nodes of the tree are half full at worst.
    pub const EXTENT_BYTES: usize = 2 * (2 * size_of::<u64>() + size_of::<P>());
}

impl<P: Location> ExtentMap<P> {
    /// Gives blocks a location; the first one gets `location` itself.
    pub fn insert(&mut self, blocks: Range<u64>, location: P) {
        if blocks.is_empty() {
            return;
        }
        self.remove(blocks.clone());
        let before = self.extents.range_mut(..blocks.start).next_back();
        if let Some((start, (end, first))) = before
            && *end == blocks.start
            && first.skip(blocks.start - start) == location
        {
            *end = blocks.end;
            return;
        }
        self.extents.insert(blocks.start, (blocks.end, location));
    }

    /// Forgets the locations of blocks.
    pub fn remove(&mut self, blocks: Range<u64>) {
        let Range { start, end } = blocks;
        if let Some((&first, &(last, location))) = self.extents.range(..start).next_back()
            && start < last
        {
            self.extents.insert(first, (start, location));
            if end < last {
                self.extents.insert(end, (last, location.skip(end - first)));
            }
        }
        while let Some((&first, &(last, location))) = self.extents.range(start..end).next() {
            self.extents.remove(&first);
            if end < last {
                self.extents.insert(end, (last, location.skip(end - first)));
            }
        }
    }

    /// Returns the location of a block, and how many blocks from it on follow each other there; without a location, `None` and how many
    /// blocks have none, at most `max`.
    pub fn get(&self, block: u64, max: u64) -> (Option<P>, u64) {
        if let Some((&first, &(last, location))) = self.extents.range(..=block).next_back()
            && block < last
        {
            return (Some(location.skip(block - first)), (last - block).min(max));
        }
        let next = self.extents.range(block..).next().map_or(u64::MAX, |(first, _)| *first);
        (None, (next - block).min(max))
    }

    /// Returns all ranges with their locations, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, P)> {
        self.extents.iter().map(|(start, (end, location))| (*start..*end, *location))
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns true if no block has a location.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct At(u64);

    impl Location for At {
        fn skip(self, blocks: u64) -> Self {
            Self(self.0 + blocks)
        }
    }

    proptest! {
        #[test]
        fn every_block_has_the_place_that_it_got_last(inserts in prop::collection::vec((0..100_u64, 0..40_u64, 0..3_u64), 0..60)) {
            let mut map = ExtentMap::default();
            let mut model = vec![None; 150];
            for (number, (start, len, kind)) in inserts.into_iter().enumerate() {
                let blocks = start..start + len;
                if kind == 0 {
                    map.remove(blocks.clone());
                    blocks.for_each(|block| model[usize::try_from(block).unwrap()] = None);
                } else {
                    let location = 1_000 * number as u64;
                    map.insert(blocks.clone(), At(location));
                    for block in blocks {
                        model[usize::try_from(block).unwrap()] = Some(location + block - start);
                    }
                }
                let mut block = 0;
                while block < 150 {
                    let (location, run) = map.get(block, 150 - block);
                    prop_assert!(0 < run);
                    for at in 0..run {
                        prop_assert_eq!(location.map(|location| location.0 + at), model[usize::try_from(block + at).unwrap()]);
                    }
                    block += run;
                }
                let listed: u64 = map.iter().map(|(blocks, _)| blocks.end - blocks.start).sum();
                prop_assert_eq!(usize::try_from(listed).unwrap(), model.iter().flatten().count());
            }
        }
    }

    #[test]
    fn a_sequence_of_blocks_is_one_extent() {
        let mut map = ExtentMap::default();
        for block in 0..100 {
            map.insert(block..block + 1, At(block + 7));
        }
        assert_eq!((map.len(), map.get(40, 1_000)), (1, (Some(At(47)), 60)));
        assert!(!map.is_empty());
    }
}
