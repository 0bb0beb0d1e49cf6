//! The leaves of a chunk's tree.

/// Bytes of a leaf of BLAKE3.
pub(super) const LEAF_BYTES: usize = 1024;
/// Bytes that the compression function takes at a time.
pub(super) const BLOCK_BYTES: usize = 64;

/// A leaf of any length, and where its result goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) counter: u32,
    /// It is the only one of its chunk.
    pub(super) is_root: bool,
    pub(super) slot: usize,
}

impl Leaf<'_> {
    /// Returns the length in blocks; an empty leaf has one.
    pub(super) fn blocks(&self) -> usize {
        self.bytes.len().div_ceil(BLOCK_BYTES).max(1)
    }
}
