//! A bitmap of positions: kernels set bits out of order, and positions are read in order.

/// Maximum number of positions in a range: the first-level cache holds 32 KiB of bytes and the tables.
pub(super) const POSITIONS: usize = 32 << 10;

/// A bit for each position of a range.
pub(super) struct Marks {
    words: [u64; POSITIONS / 64],
}

impl Default for Marks {
    fn default() -> Self {
        Self { words: [0; POSITIONS / 64] }
    }
}

impl Marks {
    /// Marks the byte at a position.
    #[inline]
    pub(super) fn set(&mut self, position: usize) {
        self.words[position / 64] |= 1 << (position % 64);
    }

    /// Marks the byte at a position in each strip whose bit is set. The strips are adjacent and have `len` bytes.
    #[inline]
    pub(super) fn set_in_strips(&mut self, mut strips: u32, len: usize, position: usize) {
        while strips != 0 {
            self.set(strips.trailing_zeros() as usize * len + position);
            strips &= strips - 1;
        }
    }

    /// Appends the positions that follow the marked ones in the first `len` bytes, plus `offset`, and clears the marks.
    pub(super) fn take(&mut self, len: usize, offset: usize, out: &mut Vec<u32>) {
        let offset = u32::try_from(offset).expect("the caller has checked that positions have 32 bits");
        let words = self.words[..len.div_ceil(64)].iter_mut();
        for (first, word) in (offset..).step_by(64).zip(words) {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                out.push(first + bits.trailing_zeros() + 1);
                bits &= bits - 1;
            }
        }
    }
}
