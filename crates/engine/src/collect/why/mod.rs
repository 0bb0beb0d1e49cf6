//! Why something is in a repository: which snapshots hold a path, a chunk or a container, and what forgetting some of them would
//! free of it.
//!
//! The numbers are those of the [ledger](super::ledger), for a part of the repository. They are exact: if a node cannot be read,
//! or a needed chunk is missing, there is an error instead. Memory does not grow with chunks, and grows with snapshots by some
//! bytes for each. Nodes are read once or twice, however many snapshots share them.

mod chunk;
mod container;
mod elsewhere;
mod path;
mod related;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};

pub use chunk::{ChunkCopy, ChunkHolders, ChunkInSnapshot, ChunkPrefix, PATHS_MAX, find_chunk, why_chunk};
pub use container::{ContainerHolders, ContainerInSnapshot, ContainerState, why_container};
pub use path::{PathHolders, PathInSnapshot, why_path};
pub use related::{RELATED_MAX, Regions, Related, RelatedContainer};

use crate::collect::MEMORY_BYTES_MIN;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::snapshot::Snapshot;
use crate::store::metadata::{MetadataMemory, Scratch};
use crate::store::{MetadataReader, Store};
use crate::types::{Fingerprint, SessionId};

/// A question about snapshots.
#[derive(Clone, Copy, Debug)]
pub struct WhyRequest<'a> {
    /// All snapshots that are not forgotten.
    pub snapshots: &'a [(SessionId, &'a Snapshot)],
    /// Those of them that the answer lists.
    pub listed: &'a BTreeSet<SessionId>,
    /// Those of them that would be forgotten, if that is asked.
    pub forgotten: Option<&'a BTreeSet<SessionId>>,
    /// Directory that lists spill to.
    pub scratch: &'a Scratch,
    /// Memory in bytes; 16 MiB are enough for few containers.
    pub memory_bytes: usize,
    /// Receiver of progress, by snapshots, and of interruptions.
    pub monitor: &'a dyn Monitor,
}

impl<'a> WhyRequest<'a> {
    fn memory(&self) -> usize {
        self.memory_bytes.max(MEMORY_BYTES_MIN)
    }

    fn go_on(&self) -> Result<()> {
        if self.monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Opens a reader of the metadata, in a quarter of the memory.
    fn reader(&self, store: &Store) -> Result<MetadataReader> {
        let containers = store.list_containers(self.scratch)?;
        let memory = MetadataMemory::left_by(&containers, self.memory() / 4);
        MetadataReader::open(store, &containers, self.scratch, memory)
    }

    /// Returns the snapshots so that those that are alike follow each other: by host, then paths, then time.
    fn ordered(&self) -> Vec<(SessionId, &'a Snapshot)> {
        let mut ordered = self.snapshots.to_vec();
        ordered.sort_by(|(a, one), (b, other)| {
            let key = |snapshot: &'a Snapshot| (&snapshot.hostname, &snapshot.paths, snapshot.time);
            key(one).cmp(&key(other)).then(a.cmp(b))
        });
        ordered
    }

    fn is_listed(&self, session: &SessionId) -> bool {
        self.listed.contains(session)
    }

    fn is_kept(&self, session: &SessionId) -> bool {
        !self.forgotten.is_some_and(|forgotten| forgotten.contains(session))
    }
}

/// Gives each distinct value a number, in the order in which they come.
#[derive(Debug, Default)]
struct Numbers(BTreeMap<[u8; 32], u32>);

impl Numbers {
    /// Returns the number of a value, and true if it is new.
    fn of(&mut self, value: [u8; 32]) -> (u32, bool) {
        let next = u32::try_from(self.0.len()).expect("each stands for a snapshot in memory");
        let mut is_new = false;
        let number = *self.0.entry(value).or_insert_with(|| {
            is_new = true;
            next
        });
        (number, is_new)
    }
}

/// Adds to an error which snapshot it concerns.
fn of_snapshot(session: SessionId, error: Error) -> Error {
    match error {
        Error::Interrupted => error,
        error => error.context(format!("what snapshot {session} holds cannot be read")),
    }
}

/// Returns the trees of snapshots.
fn roots<'a>(snapshots: impl Iterator<Item = &'a (SessionId, &'a Snapshot)>) -> Vec<(SessionId, Fingerprint)> {
    snapshots.map(|(session, snapshot)| (*session, snapshot.tree)).collect()
}
