//! Exact deduplication of the image of a disk, in blocks of 1 to 128 KiB, and a store for deduplicated images.
//!
//! Peter Sobe, Denny Pazak and Martin Stiehr, "Parallel Processing for Data Deduplication", describe two algorithms. [`backward`]
//! compares each name with those before it (section 2.2). [`first`] enters names into a map that threads share (section 2.3).
//! [`halving`] keeps large blocks that repeat and halves the others (section 4.2), and [`block`] computes names. All results depend
//! on the image alone, and never on the number of threads. [`store`] keeps a deduplicated image that can be read and written;
//! [`pack`] makes one of an image. [`made`] makes images for experiments.

pub mod backward;
pub mod block;
pub mod first;
pub mod halving;
pub mod made;
pub mod pack;
pub(crate) mod parallel;
pub mod store;
