//! Sets and maps that grow with the repository, in a fixed amount of memory.
//!
//! A [`SpillMap`] is a map in memory up to its limit, and beyond it a log-structured merge tree of a few sorted runs in
//! files of the cache directory. [`Partitions`] are records that are sorted once all of them are there. A `SpillArray` has
//! records of one length, which keep the order in which they came. No file outlives the process: each map draws a key that
//! is never stored, seals every page under it, and unlinks its files right after their creation.
//!
//! The bucket table of `kv` is a log-structured table too, but shares no code: its entries have 32 bytes, merge as slices
//! in memory, and go to pages of one durable file in batches of concurrent reads and writes. Here records have any length,
//! pages are sealed, and each run is one file that is written once and read page by page; shared writers, merges and page
//! fences would need a parameter for each of these differences, and more lines than they save.

mod array;
mod filter;
mod map;
mod page;
pub mod partition;
mod run;
mod table;

pub(crate) use array::SpillArray;
pub(crate) use map::MEMORY_BYTES_MIN;
pub use map::{RUNS_MAX, SpillMap};
pub(crate) use partition::FilledPartitions;
pub use partition::Partitions;
