//! History in the repository: which block got which contents, in the order of the journal.
//!
//! A checkpoint is an ordinary snapshot. Besides the image of each volume it holds the writes since the checkpoint before: a stream of
//! all block versions, `history/LSN.data`, and their order, `history/LSN.index`. LSN is the first record, as sixteen hexadecimal digits.
//! `docs/format.md` describes the index.

mod blocks;
mod extent_map;
mod gaps;
mod index;

pub use blocks::{CheckpointLimits, Cutter, HistorySink, Survey, Surveyor, VolumeBlock};
pub use extent_map::{ExtentMap, Location};
pub use gaps::{GapTracker, OpenGap};
pub use index::{Change, HistoryEntry, IndexKind, IndexReader, IndexWriter};

/// Bytes of a block: the grid on which history and images are cut.
pub const BLOCK_BYTES: u64 = 4096;
