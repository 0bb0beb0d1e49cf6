//! Exact, deduplicating backup engine.
//!
//! The engine is synchronous, prints nothing and knows no JSON. Modules are layered; each imports only from lower
//! layers: L0 `types error codec`, L1 `io monitor`, L2 `chunk fingerprint compress crypto kv object spill`,
//! L3 `container recipe snapshot source tree`, L4 `index store`, L5 `pipeline backup restore check
//! inspect`, L6 `repo`.
#![forbid(unsafe_code)]

pub mod backup;
pub mod check;
pub mod chunk;
pub mod codec;
pub mod compress;
pub mod container;
pub mod crypto;
pub mod error;
pub mod fingerprint;
pub mod fuzzing;
pub mod index;
pub mod inspect;
pub mod io;
pub mod kv;
pub mod monitor;
pub mod object;
pub mod pipeline;
pub mod recipe;
pub mod repo;
pub mod restore;
pub mod snapshot;
pub mod source;
pub mod spill;
pub mod store;
pub mod tree;
pub mod types;
#[cfg(test)]
mod vectors;

pub use error::{Error, Result};
