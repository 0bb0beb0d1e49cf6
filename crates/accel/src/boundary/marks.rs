//! Positions that are found out of order and read off in order.

/// Positions of the longest stretch: 32 KiB of bytes, which the first-level cache holds beside the tables.
pub(super) const POSITIONS: usize = 32 << 10;

/// A bit for each position of a stretch.
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

    /// Marks the byte at a position in each of the strips whose bit is set, which lie one behind the other and have `len` bytes.
    #[inline]
    pub(super) fn set_in_strips(&mut self, mut strips: u32, len: usize, position: usize) {
        while strips != 0 {
            self.set(strips.trailing_zeros() as usize * len + position);
            strips &= strips - 1;
        }
    }

    /// Appends the positions after the marked ones of the first `len` bytes, with `offset` added, and forgets the marks.
    pub(super) fn take(&mut self, len: usize, offset: usize, out: &mut Vec<u32>) {
        let offset = u32::try_from(offset).expect("the caller saw to it that positions have 32 bits");
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
