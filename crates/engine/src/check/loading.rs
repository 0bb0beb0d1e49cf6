//! Chunks of a container in buffers that a device reads.

use onefold_accel::device::{Buffer, Pool};

use crate::types::Fingerprint;

/// Bytes of a buffer.
pub(super) const BLOCK_BYTES: usize = 512 << 10;
/// Blocks of a batch: 32 MiB.
pub(super) const BLOCKS: usize = 64;
/// A chunk that is to be named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    /// Its number among the chunks of its container's contents.
    pub(super) index: usize,
    /// Its number in the container.
    pub(super) number: usize,
    /// Problems that were found before.
    pub(super) problems: usize,
    /// Its block.
    pub(super) block: usize,
    /// Its first byte there.
    pub(super) start: usize,
    /// Its length.
    pub(super) len: u32,
    /// Its name.
    pub(super) expected: Fingerprint,
}

/// Chunks of a container in buffers of a device.
#[derive(Debug, Default)]
pub(super) struct Loading {
    pool: Option<Pool>,
    /// Buffers, each with the number of bytes in it.
    pub(super) blocks: Vec<(Buffer, usize)>,
    /// The chunks in them.
    pub(super) chunks: Vec<Loaded>,
}

impl Loading {
    /// Loads into buffers of a pool, or nothing.
    pub(super) fn new(pool: Option<Pool>) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Takes a chunk. Returns false if there is no buffer for it: the caller names it.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        expected: Fingerprint,
        (index, number, problems): (usize, usize, usize),
    ) -> bool {
        let Ok(len) = u32::try_from(bytes.len()) else { return false };
        let fits = |(buffer, filled): &(Buffer, usize)| bytes.len() <= buffer.len() - filled;
        if !self.blocks.last().is_some_and(fits) {
            let is_full = self.blocks.len() == BLOCKS || BLOCK_BYTES < bytes.len();
            let taken = self.pool.as_ref().filter(|_| !is_full).and_then(Pool::take);
            let Some(buffer) = taken else { return false };
            self.blocks.push((buffer, 0));
        }
        let block = self.blocks.len() - 1;
        let Some((buffer, filled)) = self.blocks.last_mut() else { return false };
        let start = *filled;
        let Some(free) = buffer.get_mut(start..start + bytes.len()) else { return false };
        free.copy_from_slice(bytes);
        *filled += bytes.len();
        self.chunks.push(Loaded { index, number, problems, block, start, len, expected });
        true
    }
}
