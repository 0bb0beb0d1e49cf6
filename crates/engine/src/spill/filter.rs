//! Filters by which a lookup skips runs without its key.

use crate::bloom::{self, BLOCK_BITS, BLOCK_BYTES, Block};
use crate::spill::page::Key;

/// Bits per entry of a filter at its full size: 1.2% false positives with 6 bits set in a block of 512.
pub(super) const BITS_PER_ENTRY: u64 = 10;
/// Bits per entry of a filter at half its size: 14% false positives.
pub(super) const BITS_PER_ENTRY_HALF: u64 = BITS_PER_ENTRY / 2;
/// Bits that an entry sets.
const PROBES: u32 = 6;
/// Blocked Bloom filter over the keys of one run. Keys are uniform already, so their own bits choose the bits to set.
#[derive(Debug)]
pub(crate) struct Filter {
    blocks: Vec<Block>,
    /// True if the filter can be halved.
    is_full_size: bool,
}

impl Filter {
    /// Returns the size in bytes of a filter for this number of entries; `None` if it is too large.
    pub(super) fn bytes_for(entries: u64, bits_per_entry: u64) -> Option<usize> {
        let blocks =
            entries.checked_mul(bits_per_entry)?.div_ceil(u64::from(BLOCK_BITS)).checked_next_multiple_of(2)?.max(2);
        // A block is chosen by 32 bits of the key.
        u32::try_from(blocks).ok()?;
        usize::try_from(blocks.checked_mul(BLOCK_BYTES as u64)?).ok()
    }

    /// Makes an empty filter of a size that [`Filter::bytes_for`] returned for `bits_per_entry`.
    pub(crate) fn new(bytes: usize, bits_per_entry: u64) -> Self {
        let blocks = vec![Block::default(); bytes / BLOCK_BYTES];
        Self { blocks, is_full_size: bits_per_entry == BITS_PER_ENTRY }
    }

    /// Returns the memory of the filter, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * BLOCK_BYTES
    }

    /// Adds a key.
    pub(super) fn add(&mut self, key: &Key) {
        let block = self.block_of(key);
        self.blocks[block].set(choices_of(key), PROBES);
    }

    /// Returns false if the key was not added.
    pub(super) fn may_hold(&self, key: &Key) -> bool {
        self.blocks[self.block_of(key)].may_hold(choices_of(key), PROBES)
    }

    /// Combines neighboring blocks, which halves the size; `None` if that was done before.
    ///
    /// A block is chosen by scaling 32 bits of the key to the number of blocks, so with half as many blocks every key
    /// falls into half of its old block's index.
    pub(super) fn fold(mut self) -> Option<Self> {
        if !self.is_full_size {
            return None;
        }
        bloom::fold(&mut self.blocks);
        Some(Self { blocks: self.blocks, is_full_size: false })
    }

    fn block_of(&self, key: &Key) -> usize {
        let [.., a, b, c, d, _, _, _, _, _, _, _, _] = *key;
        let scaled = u64::from(u32::from_le_bytes([a, b, c, d])) * self.blocks.len() as u64;
        usize::try_from(scaled >> 32).expect("below the number of blocks in memory")
    }
}

/// Returns the bits of a key that choose its bits in a block.
fn choices_of(key: &Key) -> u128 {
    u64::from_le_bytes(*key.last_chunk().expect("a key is longer than 8 bytes")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        let mut key = [0; 20];
        key.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..20]);
        key
    }

    #[test]
    fn a_filter_forgets_no_key_and_rarely_invents_one_before_and_after_folding() {
        let entries = 20_000;
        for bits in [BITS_PER_ENTRY, BITS_PER_ENTRY_HALF] {
            let mut filter = Filter::new(Filter::bytes_for(entries.into(), bits).unwrap(), bits);
            (0..entries).for_each(|number| filter.add(&key(number)));
            let bytes = filter.memory_bytes();
            let false_positives = |filter: &Filter| {
                assert!((0..entries).all(|number| filter.may_hold(&key(number))));
                (entries..2 * entries).filter(|number| filter.may_hold(&key(*number))).count()
            };
            let most = if bits == BITS_PER_ENTRY { 400 } else { 4000 };
            assert!(false_positives(&filter) < most, "{} at {bits} bits", false_positives(&filter));
            match filter.fold() {
                None => assert_eq!(bits, BITS_PER_ENTRY_HALF),
                Some(folded) => {
                    assert!(folded.memory_bytes() * 2 == bytes && false_positives(&folded) < 4000);
                    assert!(folded.fold().is_none());
                }
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(Filter::bytes_for(0, BITS_PER_ENTRY), Some(128));
        assert_eq!(Filter::bytes_for(u64::MAX, BITS_PER_ENTRY), None);
        assert_eq!(Filter::bytes_for(1 << 40, BITS_PER_ENTRY), None);
    }
}
