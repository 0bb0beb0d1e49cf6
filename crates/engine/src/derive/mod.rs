//! Derived snapshots: made from another snapshot, without reading a source.
//!
//! `recover`, `tag` and `rewrite` are writers of docs/protocol.md. What a derived snapshot refers to is confirmed, or taken over
//! by the rule for unchanged files.

pub(crate) mod confirm;
pub(crate) mod node_stage;
pub(crate) mod rebuild;
pub(crate) mod without_lost;

use std::sync::Arc;

use crate::backup::Budget;
use crate::compress::Compression;
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::source::exclude::Patterns;
use crate::store::metadata::Scratch;

/// Options of deriving a snapshot.
#[derive(Clone, Debug)]
pub struct DeriveOptions {
    /// Host that does it, for the object of the session.
    pub hostname: String,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Division of the memory. What is meant for an index is for the references.
    pub budget: Budget,
    /// Receiver of notes, and of paths that are lost.
    pub monitor: Arc<dyn Monitor>,
}

/// Options of storing new nodes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Their compression.
    pub compression: Compression,
    /// Driver of the work queues.
    pub driver: Driver,
}

/// Paths that a derived snapshot does not have.
#[derive(Clone, Debug, Default)]
pub struct Exclusion {
    /// Lists of patterns for paths of the snapshot, from its root; what one of them excludes is excluded.
    pub patterns: Vec<Patterns>,
    /// The patterns, as they are written into the snapshot.
    pub texts: Vec<String>,
}
