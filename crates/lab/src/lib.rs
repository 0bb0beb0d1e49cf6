//! The laboratory: measurements of index designs with the engine that makes backups.
//!
//! [`trace`] has traces, which say what chunks a source has without their bytes; [`record`] makes them of real data, cut by one
//! of the [`chunkers`]. A [`point`] is a way of finding duplicates, a [`device`] holds its index, and [`mapped`] is an index on
//! persistent memory; [`replay`] sends chunks through an identifier into a simulated repository ([`sim`]), [`run`](mod@run) does so for a point, [`trial`] for a trace and
//! [`experiment`] for what papers did. [`regret`] compares the adaptive schedule with all others, also on [`adversarial`] streams.
//! They make [`findings`], which [`report`] shows. [`advise`] samples real data, and [`similarity`] compresses versions of it against each other. [`schedules`] and [`growth`] measure the
//! engine's index itself; see docs/performance.md.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures on a real disk, by a real clock, and reads and writes traces"
)]

pub mod adversarial;
pub mod advise;
pub mod bench;
pub mod chunkers;
pub mod coprocessor;
mod counts;
pub mod device;
pub mod experiment;
pub mod files;
pub mod findings;
#[cfg(feature = "testing")]
pub mod fuzzing;
pub mod growth;
pub mod image;
pub mod mapped;
pub mod measure;
pub mod origin;
pub mod point;
mod processor;
pub mod rates;
pub mod record;
pub mod regret;
pub mod replay;
pub mod report;
pub mod run;
pub mod schedules;
pub mod sim;
pub mod similarity;
pub mod stream;
mod together;
pub mod trace;
pub mod trial;
