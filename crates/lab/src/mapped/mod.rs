//! Identification on persistent memory: Li, He, Wang and Liu, "Towards Optimizing Deduplication on Persistent Memory",
//! NPC 2020, as a second [`onefold_engine::identify::Identifier`].
//!
//! Fingerprints lie on a [`medium`] of words that can be stored, flushed and fenced: a [`log`] in the order of the stream and
//! a [`cuckoo`] table that points into it. In memory are a [`filter`], a [`cache`] of the entries after hits in the log (the paper's
//! read [`buffer`], or an [`lru`] for comparison), and the list of [`containers`]. [`order`] decides which comes first, and has
//! the paper's model of the costs; [`meter`] counts accesses and can make them slower. `docs/decisions/0020` has the
//! layout, the state after a crash, and the differences from the paper.

pub mod buffer;
pub mod cache;
pub mod containers;
#[cfg(test)]
mod crash_tests;
pub mod cuckoo;
pub mod filter;
pub mod identify;
#[cfg(test)]
mod identify_tests;
pub mod log;
pub mod lru;
pub mod medium;
pub mod meter;
pub mod open;
pub mod order;
#[cfg(test)]
pub(crate) mod recorder;
pub mod segments;
pub mod space;

pub use cache::{CacheShape, NEIGHBORS};
pub use filter::FilterShape;
pub use identify::MappedIndex;
pub use medium::{Durability, MappedMemory, Medium};
pub use meter::{TickClock, Traffic, base_latency};
pub use open::{MappedOptions, MappedState, Recovery};
pub use order::{Order, OrderReport};
pub use space::Geometry;
