//! Experiments: streams of fingerprints through the identifier of the engine, on a real disk.
//!
//! The identifier is the one that backs up; here it is fed with names instead of data, and every verdict is compared with
//! what the generator knows. See docs/performance.md for the commands and their results.
#![expect(clippy::disallowed_methods, reason = "it measures on a real disk, by a real clock")]

pub mod bench;
pub mod growth;
pub mod paper;
pub mod schedules;
pub mod stream;
