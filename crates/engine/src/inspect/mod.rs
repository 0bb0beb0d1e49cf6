//! Questions about snapshots and what they take, answered without changing anything.

pub(crate) mod chunk;
pub(crate) mod diff;
pub mod find;
mod merge_join;
pub(crate) mod stats;

pub use chunk::{list_chunks, read_chunk, read_container};
pub use diff::{Change, Contents, Diff, DiffReport, Difference, SideCounts};
pub use find::{Found, Search, SearchOptions};
pub use stats::{RawStats, StatsRequest, contents_stats, raw_stats, reference_stats, restore_stats};
