//! Similar regions: which earlier regions a new one is compressed against.
//!
//! Exact deduplication leaves what is similar and not equal. A region that is compressed with earlier regions as prefix, its
//! *bases*, takes less. Here is what decides: [`anchors`] are what an edited extent still has in common with the one before,
//! [`index`] holds a sample of them in memory and returns votes for regions, [`features`] are all of one region, [`choose`] is the
//! policy, [`reading`] counts what a restore of the snapshot reads, and [`search`] joins them. [`saved`] is the form in which a host keeps the
//! index. Compression and reading of bases are elsewhere.
//!
//! All of it costs size when it is lost or wrong, never data: a base is named by the region that needs it.

pub mod anchors;
pub mod choose;
pub mod features;
pub mod index;
pub mod reading;
pub mod regions;
pub mod samples;
pub mod saved;
pub mod search;
#[cfg(test)]
mod similarity_tests;
