//! The laboratory: what a design costs, asked of the engine that backs up.
//!
//! [`trace`] has traces, which say what chunks a source has without their bytes; [`record`] makes them of real data, cut by one
//! of the [`chunkers`]. The other modules feed the identifier of the
//! engine with streams of fingerprints on a real disk and compare every verdict with what the generator knows; see
//! docs/performance.md for the commands and their results.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures on a real disk, by a real clock, and reads and writes traces"
)]

pub mod advise;
pub mod bench;
pub mod chunkers;
pub mod device;
pub mod experiment;
pub mod findings;
pub mod fuzzing;
pub mod growth;
pub mod mapped;
pub mod measure;
pub mod origin;
pub mod paper;
pub mod point;
pub mod record;
pub mod replay;
pub mod report;
pub mod run;
pub mod schedules;
pub mod stream;
pub mod trace;
pub mod trial;
