//! One byte after another: the specification.

use std::ops::Range;

use super::{Hash, WINDOW};

impl Hash {
    /// Updates a hash with one byte.
    #[inline]
    pub(super) fn step(&self, hash: u32, byte: u8) -> u32 {
        (hash << 1).wrapping_add(self.table[usize::from(byte)])
    }

    /// Returns the hash of the window before a position. The window is shorter near the start of the bytes.
    #[inline]
    pub(super) fn before(&self, bytes: &[u8], position: usize) -> u32 {
        let window = &bytes[position.saturating_sub(WINDOW)..position];
        window.iter().fold(0, |hash, byte| self.step(hash, *byte))
    }
}

/// Appends the candidates in a range of the bytes, each as the offset of the byte after the last hashed one from
/// `origin`.
pub(super) fn candidates(hash: &Hash, bytes: &[u8], range: Range<usize>, origin: usize, out: &mut Vec<u32>) {
    let first = u32::try_from(range.start - origin).expect("the caller has checked that positions have 32 bits");
    let mut value = hash.before(bytes, range.start);
    for (position, byte) in (first..).zip(&bytes[range]) {
        value = hash.step(value, *byte);
        if value < hash.threshold {
            out.push(position + 1);
        }
    }
}
