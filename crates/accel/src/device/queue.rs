//! The interface of a device: batches of blocks in, candidates and names out. Implementations move bytes and run kernels; they are not
//! trusted. [`Batches`](super::Batches) checks each result.

use std::fmt;
use std::sync::Arc;

use super::{About, Fault, Frozen, Memory};

/// A byte that a device never leaves in a whole result: memory for results is filled with it beforehand.
pub const POISON: u8 = 0xA5;
/// The same, as the number of a batch, a count or a position.
pub const POISON_WORD: u32 = 0xA5A5_A5A5;

/// Positions that a kernel counts together.
pub const TILE_BYTES: usize = 16 << 10;

/// A device that finds candidates and names chunks, the same ones as the processor.
pub trait Device: fmt::Debug + Send + Sync {
    /// Describes it.
    fn about(&self) -> &About;

    /// Takes memory of the host that the device reads without a copy in between.
    fn allocate(&self, len: usize) -> Result<Memory, Fault>;

    /// Opens a queue for one operation, with all memory that it will need.
    fn open(&self, rule: &Rule, limits: &Limits) -> Result<Box<dyn Queue>, Fault>;
}

/// Computations on each batch.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The search for candidates; `None` searches nothing.
    pub search: Option<Search>,
    /// The hash that names chunks; `None` names nothing.
    pub hash: Option<NameHash>,
}

/// The hash that finds candidates.
#[derive(Clone)]
pub struct Search {
    /// Its table, which is secret.
    pub table: Box<[u32; 256]>,
    /// A position whose hash is less is a candidate.
    pub threshold: u32,
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").field("threshold", &self.threshold).finish_non_exhaustive()
    }
}

impl Search {
    /// Returns how many candidates of a tile a device lists: 16 and four times the mean, at most all.
    pub fn slots(&self) -> usize {
        let mean = (TILE_BYTES as u64 * u64::from(self.threshold)) >> 32;
        usize::try_from(16 + 4 * mean).unwrap_or(TILE_BYTES).min(TILE_BYTES)
    }
}

/// A hash that names chunks.
#[derive(Clone)]
pub enum NameHash {
    /// Keyed BLAKE3, 32 bytes.
    Blake3([u8; 32]),
    /// SHA-1, 20 bytes and zeros.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
}

impl fmt::Debug for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blake3(_) => "Blake3(..)",
            Self::Sha1 => "Sha1",
            Self::Sha256 => "Sha256",
        })
    }
}

/// Sizes of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a block, at most: a multiple of [`TILE_BYTES`].
    pub block_bytes: usize,
    /// Blocks of a batch, at most.
    pub blocks: usize,
    /// Batches in flight, at most.
    pub batches: usize,
    /// Bytes of a batch's chunks that lie in no single block, at most.
    pub joined_bytes: usize,
}

impl Limits {
    /// Bytes around the blocks of a batch in a device's memory.
    const AROUND_BYTES: usize = 256 + 128;
    /// Bytes of a listed chunk, and of its name.
    const CHUNK_BYTES: usize = 12 + 32;
    /// Bytes of a leaf: its list, and its result in two levels of a tree.
    const LEAF_BYTES: usize = 8 + 2 * 32;

    /// Bytes of a batch's blocks.
    pub fn area_bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }

    /// Chunks of a batch that a device names, at most: those of 1 KiB on average.
    pub fn chunks_max(&self) -> usize {
        ((self.area_bytes() + self.joined_bytes) >> 10).max(1)
    }

    /// Leaves of 1 KiB of all these chunks, at most: each has one that is not full.
    pub fn leaves_max(&self) -> usize {
        2 * self.chunks_max()
    }

    /// Bytes of the host's memory that a queue takes for results, lists and joined bytes, without the blocks.
    pub fn host_bytes(&self, slots: usize) -> usize {
        let found = self.area_bytes() / TILE_BYTES * (4 + 2 * slots);
        self.batches * (found + self.chunks_max() * Self::CHUNK_BYTES + self.joined_bytes)
    }

    /// Bytes of the device's memory that a queue takes.
    pub fn device_bytes(&self, slots: usize) -> usize {
        let each = self.area_bytes() + Self::AROUND_BYTES + self.leaves_max() * Self::LEAF_BYTES;
        self.host_bytes(slots) + self.batches * each
    }

    /// Returns the bytes of a chunk; `None` if it lies in no single block and not in the joined bytes.
    pub(super) fn bytes_of<'a>(&self, span: Span, blocks: &'a [Arc<Frozen>], joined: &'a [u8]) -> Option<&'a [u8]> {
        let (start, len) = (span.start as usize, span.len as usize);
        if let Some(start) = start.checked_sub(self.area_bytes()) {
            return joined.get(start..start + len);
        }
        let (block, start) = (start / self.block_bytes, start % self.block_bytes);
        blocks.get(block)?.get(start..start + len)
    }

    /// Panics if the sizes are none that a device can work with.
    pub(super) fn check(&self) {
        let Self { block_bytes, blocks, batches, .. } = self;
        assert!(block_bytes % TILE_BYTES == 0 && 0 < *block_bytes, "blocks consist of tiles");
        assert!(0 < *blocks && 0 < *batches, "a batch has blocks");
        assert!(self.area_bytes() + self.joined_bytes < 1 << 30, "positions in a batch have 30 bits");
    }
}

/// A chunk of a batch. Positions count from the first byte of its first block; block `n` begins at `n * block_bytes`, and joined bytes follow
/// the last block that a batch can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its first byte.
    pub start: u32,
    /// Number of bytes.
    pub len: u32,
}

/// Whether a call waits for a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Until it is there.
    Yes,
    /// It returns `None` if the result is not there yet.
    No,
}

/// Candidates as a device lists them.
#[derive(Clone, Default, Debug)]
pub struct Listed {
    /// Number of candidates in each tile.
    pub counts: Vec<u32>,
    /// The first candidates of each tile, [`Search::slots`] for each: offsets in the tile of the last hashed byte, ascending.
    pub slots: Vec<u16>,
    /// Number of the batch, which the device writes last.
    pub number: u32,
}

/// Names as a device computes them.
#[derive(Clone, Default, Debug)]
pub struct Named {
    /// The name of each chunk.
    pub names: Vec<[u8; 32]>,
    /// Number of the batch, which the device writes last.
    pub number: u32,
}

/// Batches on a device, each in a position below [`Limits::batches`]. After a fault nothing but dropping is useful.
///
/// The caller keeps the order: `search`, `candidates` until there are some, `name`, `names` until there are some. It may leave out what it does
/// not need. `release` ends a batch.
pub trait Queue: fmt::Debug + Send {
    /// Sends the blocks of a batch and searches them. The device only reads them.
    fn search(&mut self, position: usize, number: u32, blocks: &[Arc<Frozen>]) -> Result<(), Fault>;

    /// Takes the candidates of a batch.
    fn candidates(&mut self, position: usize, wait: Wait) -> Result<Option<Listed>, Fault>;

    /// Names chunks of a batch.
    fn name(&mut self, position: usize, number: u32, chunks: &[Span], joined: &[u8]) -> Result<(), Fault>;

    /// Takes the names of a batch's chunks.
    fn names(&mut self, position: usize, wait: Wait) -> Result<Option<Named>, Fault>;

    /// Ends a batch: its blocks are not needed any more. Waits for copies of them.
    fn release(&mut self, position: usize) -> Result<(), Fault>;
}
