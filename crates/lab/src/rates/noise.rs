//! Noise with the chunks in it.

use anyhow::Result;
use onefold_accel::boundary::Finder;
use onefold_accel::device::Search;
use onefold_engine::chunk::{ChunkSizes, Chunking, Cutter};
use onefold_engine::random::SplitMix64;

/// Bytes of a block, as a backup has them.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;
/// Key of names; it is no secret.
pub(crate) const KEY: [u8; 32] = [7; 32];

/// Noise, a rule that cuts each block as a stream of its own, and the chunks of each block, if they are known.
#[derive(Debug)]
pub(crate) struct Noise {
    pub(crate) bytes: Vec<u8>,
    pub(crate) finder: Finder,
    pub(crate) search: Search,
    sizes: ChunkSizes,
    /// Starts and lengths in each block.
    pub(crate) chunks: Vec<Vec<(u32, u32)>>,
}

impl Noise {
    /// Makes at least so many bytes, a whole number of blocks, the same ones each time, and a rule for chunks of this average.
    pub(crate) fn new(bytes: usize, average: u32) -> Result<Self> {
        let mut random = SplitMix64::new(1);
        let len = bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            bytes.extend_from_slice(&random.next_u64().to_le_bytes());
        }
        let mut table = [0; 256];
        for entry in &mut table {
            *entry = u32::try_from(random.next_u64() >> 32)?;
        }
        let sizes = ChunkSizes::for_average(average);
        let threshold = u32::MAX / sizes.target.max(1);
        let search = Search { table: Box::new(table), threshold };
        Ok(Self { bytes, finder: Finder::new(&table, threshold), search, sizes, chunks: Vec::new() })
    }

    /// Finds the chunks of each block.
    #[must_use]
    pub(crate) fn with_cuts(mut self) -> Self {
        let mut found = Vec::new();
        let cut = |block: &[u8]| {
            found.clear();
            self.finder.candidates(block, 0, &mut found);
            self.cut(&found, u32::try_from(block.len()).unwrap_or(0))
        };
        self.chunks = self.bytes.chunks(BLOCK_BYTES).map(cut).collect();
        self
    }

    /// Takes chunks of one length; the last one of a block may be shorter.
    #[must_use]
    pub(crate) fn with_chunks_of(mut self, len: u32) -> Self {
        let of_block = |block: &[u8]| {
            let all = u32::try_from(block.len()).unwrap_or(0);
            (0..all).step_by(len.max(1) as usize).map(|start| (start, len.min(all - start))).collect()
        };
        self.chunks = self.bytes.chunks(BLOCK_BYTES).map(of_block).collect();
        self
    }

    /// Cuts a block of `len` bytes by its candidates; returns starts and lengths.
    pub(crate) fn cut(&self, candidates: &[u32], len: u32) -> Vec<(u32, u32)> {
        let mut cuts = Vec::new();
        Cutter::new(Chunking::Gear(self.sizes)).advance(len, candidates, &mut cuts);
        cuts.push(len);
        let mut start = 0;
        let mut chunks = Vec::new();
        for end in cuts {
            if start < end {
                chunks.push((start, end - start));
            }
            start = end;
        }
        chunks
    }
}
