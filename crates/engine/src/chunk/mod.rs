//! Cutting streams into chunks.
//!
//! Two phases, so that any number of threads finds the same boundaries: candidates are positions whose hash, a function
//! of the 32 bytes before them alone, is below a threshold; minimum and maximum are then applied in stream order.

pub(crate) mod cutter;
pub(crate) mod gear;

pub use cutter::Cutter;
pub use gear::{GearTable, WINDOW};

/// How streams are cut; fixed for the life of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunking {
    /// Content-defined, by keyed Gear.
    Gear(ChunkSizes),
    /// Every `bytes` bytes.
    Fixed {
        /// Length of every chunk but the last of a stream.
        bytes: u32,
    },
}

/// Sizes of content-defined chunks in bytes. The average is about `min + target`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkSizes {
    /// No chunk but the last of a stream is shorter. At least the hash's window.
    pub min: u32,
    /// Mean distance of candidates.
    pub target: u32,
    /// No chunk is longer.
    pub max: u32,
}

/// Smallest and largest average chunk size that can be chosen.
pub const CHUNK_BYTES_AVERAGE: std::ops::RangeInclusive<u32> = 512..=1 << 20;

impl ChunkSizes {
    /// Returns min = target = average / 2 and max = 8 x target. (Plain exponential chunking with these ratios beats
    /// normalized chunking at an equal average; max caps what a run without candidates costs.)
    pub fn for_average(bytes: u32) -> Self {
        let target = bytes / 2;
        Self { min: target, target, max: 8 * target }
    }
}

impl Chunking {
    /// Returns the longest chunk in bytes.
    pub fn chunk_bytes_max(&self) -> u32 {
        match self {
            Self::Gear(sizes) => sizes.max,
            Self::Fixed { bytes } => *bytes,
        }
    }
}
