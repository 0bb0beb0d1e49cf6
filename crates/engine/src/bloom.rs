//! Blocks of Bloom filters. All bits of a key lie in one block, a cache line, so that a probe is one memory access (Putze, Sanders
//! and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", WEA 2007, section 3).
//!
//! Keys are uniform: the filters take the number of the block, and the bits in it, from the key itself.

/// Bits of a block: one cache line.
pub(crate) const BLOCK_BITS: u32 = 512;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_BITS as usize / 8;
/// Words of a block.
pub(crate) const BLOCK_WORDS: usize = BLOCK_BYTES / size_of::<u64>();

/// Bits of a key that choose a bit of its block.
const CHOICE_BITS: u32 = BLOCK_BITS.trailing_zeros();

/// A block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Block(pub [u64; BLOCK_WORDS]);

impl Block {
    /// Sets a bit for each of the lowest `hashes` groups of 9 bits of `choices`. Returns how many were not set before.
    #[inline]
    pub(crate) fn set(&mut self, choices: u128, hashes: u32) -> u64 {
        bits_of(choices, hashes).fold(0, |added, bit| {
            let word = &mut self.0[(bit / u64::BITS) as usize];
            let was_set = *word >> (bit % u64::BITS) & 1;
            *word |= 1 << (bit % u64::BITS);
            added + (was_set ^ 1)
        })
    }

    /// Returns true if [`Block::set`] would set no further bit: the key may have been added.
    #[inline]
    pub(crate) fn may_hold(&self, choices: u128, hashes: u32) -> bool {
        bits_of(choices, hashes).all(|bit| self.0[(bit / u64::BITS) as usize] >> (bit % u64::BITS) & 1 != 0)
    }
}

fn bits_of(mut choices: u128, hashes: u32) -> impl Iterator<Item = u32> {
    (0..hashes).map(move |_| {
        let bit = u32::try_from(choices & u128::from(BLOCK_BITS - 1)).expect("9 bits");
        choices >>= CHOICE_BITS;
        bit
    })
}

/// Merges neighboring blocks, which halves a filter and loses no key if the number of a key's block halves as well. Returns false,
/// and does nothing, if the number of blocks is odd.
pub(crate) fn fold(blocks: &mut Vec<Block>) -> bool {
    if !blocks.len().is_multiple_of(2) {
        return false;
    }
    let half = blocks.len() / 2;
    for index in 0..half {
        let (Block(even), Block(odd)) = (blocks[2 * index], blocks[2 * index + 1]);
        blocks[index] = Block(std::array::from_fn(|word| even[word] | odd[word]));
    }
    blocks.truncate(half);
    blocks.shrink_to_fit();
    true
}
