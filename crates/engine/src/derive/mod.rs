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
use crate::snapshot::Snapshot;
use crate::source::exclude::Patterns;
use crate::store::metadata::Scratch;
use crate::types::Timestamp;

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

/// Changes to what a derived snapshot says of itself.
#[derive(Clone, Debug, Default)]
pub struct Relabel {
    /// Its tags.
    pub tags: Option<Vec<String>>,
    /// Its host.
    pub hostname: Option<String>,
    /// Its time.
    pub time: Option<Timestamp>,
}

impl Relabel {
    /// Returns a snapshot with these changes.
    pub(crate) fn apply(&self, snapshot: Snapshot) -> Snapshot {
        Snapshot {
            tags: self.tags.clone().unwrap_or(snapshot.tags),
            hostname: self.hostname.clone().unwrap_or(snapshot.hostname),
            time: self.time.unwrap_or(snapshot.time),
            ..snapshot
        }
    }

    /// Returns true if a snapshot is like that already.
    pub fn is_met(&self, snapshot: &Snapshot) -> bool {
        self.apply(snapshot.clone()) == *snapshot
    }
}

/// Changes that a rewrite makes.
#[derive(Clone, Debug, Default)]
pub struct RewriteOptions {
    /// To what the snapshot says of itself.
    pub relabel: Relabel,
    /// Lists of patterns: if there are any, only what one of them matches stays, with the directories that lead to it.
    pub only: Vec<Patterns>,
    /// Lists of patterns for paths of the snapshot, from its root; what one of them excludes is excluded.
    pub patterns: Vec<Patterns>,
    /// The patterns that exclude, as they are written into the snapshot.
    pub texts: Vec<String>,
}

impl RewriteOptions {
    /// Returns true if nothing is to change.
    pub fn is_empty(&self) -> bool {
        let Relabel { tags, hostname, time } = &self.relabel;
        self.keeps_tree() && tags.is_none() && hostname.is_none() && time.is_none()
    }

    /// Returns true if all paths stay.
    pub(crate) fn keeps_tree(&self) -> bool {
        self.only.is_empty() && self.patterns.is_empty()
    }
}
