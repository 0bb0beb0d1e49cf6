//! Filters that spare a lookup the runs that do not hold its key.

use crate::spill::page::Key;

/// Bits per entry of a filter at its full size: 1.2% false positives with 6 bits set in a block of 512.
pub(super) const BITS_PER_ENTRY: u64 = 10;
/// Bits per entry of a filter at half its size: 14% false positives.
pub(super) const BITS_PER_ENTRY_HALF: u64 = BITS_PER_ENTRY / 2;
/// Bits that an entry sets.
const PROBES: u32 = 6;
/// Bits of a cache line, so that a probe costs one miss (Putze, Sanders and Singler, "Cache-, hash- and
/// space-efficient Bloom filters", WEA 2007).
const BLOCK_BITS: u64 = 512;

/// Blocked Bloom filter over the keys of one run. Keys are uniform already, so their own bits choose the bits to set.
#[derive(Debug)]
pub(super) struct Filter {
    blocks: Vec<[u64; 8]>,
    /// Whether the filter can give up half of its size.
    is_full_size: bool,
}

impl Filter {
    /// Returns the size in bytes of a filter for so many entries; `None` if no filter can be that large.
    pub(super) fn bytes_for(entries: u64, bits_per_entry: u64) -> Option<usize> {
        let blocks = entries.checked_mul(bits_per_entry)?.div_ceil(BLOCK_BITS).checked_next_multiple_of(2)?.max(2);
        // A block is chosen by 32 bits of the key.
        u32::try_from(blocks).ok()?;
        usize::try_from(blocks.checked_mul(BLOCK_BITS / 8)?).ok()
    }

    /// Makes an empty filter of a size that [`Filter::bytes_for`] returned for `bits_per_entry`.
    pub(super) fn new(bytes: usize, bits_per_entry: u64) -> Self {
        let blocks = vec![[0; 8]; bytes / size_of::<[u64; 8]>()];
        Self { blocks, is_full_size: bits_per_entry == BITS_PER_ENTRY }
    }

    /// Returns the memory that the filter takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<[u64; 8]>()
    }

    /// Adds a key.
    pub(super) fn add(&mut self, key: &Key) {
        let block = self.block_of(key);
        for (word, bit) in bits_of(key) {
            self.blocks[block][word] |= bit;
        }
    }

    /// Says whether the key may have been added; false is certain.
    pub(super) fn may_hold(&self, key: &Key) -> bool {
        let block = &self.blocks[self.block_of(key)];
        bits_of(key).all(|(word, bit)| block[word] & bit != 0)
    }

    /// Lays neighboring blocks over each other, which halves the size; `None` where that was done already.
    ///
    /// A block is chosen by scaling 32 bits of the key to the number of blocks, so with half as many blocks every key
    /// falls into half of its old block's index.
    pub(super) fn fold(mut self) -> Option<Self> {
        if !self.is_full_size {
            return None;
        }
        let half = self.blocks.len() / 2;
        for index in 0..half {
            let (even, odd) = (self.blocks[2 * index], self.blocks[2 * index + 1]);
            self.blocks[index] = std::array::from_fn(|word| even[word] | odd[word]);
        }
        self.blocks.truncate(half);
        self.blocks.shrink_to_fit();
        Some(Self { blocks: self.blocks, is_full_size: false })
    }

    fn block_of(&self, key: &Key) -> usize {
        let [.., a, b, c, d, _, _, _, _, _, _, _, _] = *key;
        let scaled = u64::from(u32::from_le_bytes([a, b, c, d])) * self.blocks.len() as u64;
        usize::try_from(scaled >> 32).expect("below the number of blocks in memory")
    }
}

/// Returns the word and the bit in it of every bit that a key sets in its block.
fn bits_of(key: &Key) -> impl Iterator<Item = (usize, u64)> {
    let bits = u64::from_le_bytes(*key.last_chunk().expect("a key is longer than 8 bytes"));
    (0..PROBES).map(move |probe| {
        let position = (bits >> (9 * probe)) & (BLOCK_BITS - 1);
        // At most 7: the shift leaves 3 bits.
        ((position >> 6) as usize & 7, 1 << (position & 63))
    })
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
