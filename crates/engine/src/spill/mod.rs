//! Sets and maps that grow with the repository, in a set amount of memory.
//!
//! A [`SpillMap`] is a map in memory until its limit, then a log-structured merge tree of a few sorted runs in files
//! of the cache directory. The files hold nothing that outlives the process: each map draws a key that is never
//! stored, seals every page under it, and unlinks its files as soon as they are created.

mod filter;
mod map;
mod page;
mod run;
mod table;

pub use map::{MEMORY_BYTES_MIN, RUNS_MAX, SpillMap};
pub use page::VALUE_LEN_MAX;
