//! The leaves of a chunk's tree.

/// Bytes of a leaf of BLAKE3.
pub(super) const LEAF_BYTES: usize = 1024;
/// Bytes that the compression function takes at a time.
pub(super) const BLOCK_BYTES: usize = 64;

/// A leaf of any length, and the index of its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) counter: u32,
    /// True if it is the only leaf of its chunk.
    pub(super) is_root: bool,
    pub(super) slot: usize,
}

impl Leaf<'_> {
    /// Returns the length in blocks, 1 for an empty leaf.
    pub(super) fn blocks(&self) -> usize {
        self.bytes.len().div_ceil(BLOCK_BYTES).max(1)
    }
}
