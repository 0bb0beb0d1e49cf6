//! Questions about snapshots and what they take, answered without changing anything.

pub mod chunk;
pub mod diff;
pub mod find;
mod merge_join;
pub mod stats;

pub use chunk::{list_chunks, read_chunk, read_container};
pub use diff::{Change, Contents, Diff, DiffReport, Difference, SideCounts};
pub use find::{Found, Search, SearchOptions};
pub use stats::{ContentsStats, RawStats, RestoreStats, StatsRequest, contents_stats, raw_stats, restore_stats};
