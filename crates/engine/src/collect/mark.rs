//! The mark: all chunks that snapshots reach (step C4 of docs/protocol.md), and the chunks of containers from their
//! directories.

use crate::collect::usage::{RANK_MAX, REACHED_LEN, Reached, StoredChunk, StoredChunks, reached_record};
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::spill::Partitions;
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::store::metadata::{MetadataReader, Scratch};
use crate::store::node_walk::{NodeVisitor, NodeWalk};
use crate::types::{Chunk, ContainerId, Fingerprint};

/// The least memory of a mark in bytes: its smallest share is a quarter and holds a map.
pub const MEMORY_BYTES_MIN: usize = 4 * crate::spill::MEMORY_BYTES_MIN;

/// Marks what snapshots reach.
#[derive(Debug)]
pub struct Marker<'a> {
    walk: NodeWalk<'a>,
    reached: Partitions<REACHED_LEN>,
    /// Rank of the next snapshot.
    rank: u16,
}

impl<'a> Marker<'a> {
    /// Starts without snapshots. Takes at most `memory_bytes` beside the reader, and the frontier.
    pub fn new(reader: &'a mut MetadataReader, scratch: &Scratch, memory_bytes: usize) -> Result<Self> {
        let host = &reader.store().host;
        let visited = scratch.map(host, "nodes visited", memory_bytes / 4)?;
        let reached = scratch.partitions(host, "references", memory_bytes / 4 * 3)?;
        Ok(Self { walk: NodeWalk::new(reader, visited), reached, rank: 0 })
    }

    /// Marks what a snapshot reaches, by the root of its tree. The newest snapshot comes first: a chunk gets the rank of the
    /// first one that reaches it. `hint` takes the hint of each reference to a data chunk.
    ///
    /// Fails if a node cannot be read; the error names it. Then nothing is known of what it reaches, and nothing may be deleted.
    pub fn mark(
        &mut self,
        root: Fingerprint,
        hint: &mut dyn FnMut(Hint) -> Result<()>,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let mut snapshot = MarkedSnapshot { reached: &mut self.reached, rank: self.rank, node: None, hint: Some(hint) };
        self.walk.walk(root, &mut snapshot, monitor)?;
        self.rank = self.rank.saturating_add(1).min(RANK_MAX);
        Ok(())
    }

    /// Returns the number of nodes read.
    pub fn nodes(&self) -> u64 {
        self.walk.nodes()
    }

    /// Returns what the snapshots reach.
    pub fn finish(self) -> Result<Reached> {
        self.reached.finish()
    }
}

/// Returns a list of a few reached chunks.
pub(super) fn reached_of(
    chunks: impl Iterator<Item = Fingerprint>,
    store: &Store,
    scratch: &Scratch,
    memory_bytes: usize,
) -> Result<Reached> {
    let mut reached: Partitions<REACHED_LEN> = scratch.partitions(&store.host, "root nodes", memory_bytes)?;
    for chunk in chunks {
        reached.push(&reached_record(&chunk, 0))?;
    }
    reached.finish()
}

/// The hint of a reference to a data chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    /// The container that the node with the reference was read from.
    pub(crate) node: Option<ContainerId>,
    /// The chunk.
    pub(crate) chunk: Fingerprint,
    /// The container that the hint names; `None`: it names none.
    pub container: Option<ContainerId>,
}

/// A snapshot that is being marked.
pub(super) struct MarkedSnapshot<'a> {
    reached: &'a mut Partitions<REACHED_LEN>,
    rank: u16,
    /// The container that the current node was read from.
    node: Option<ContainerId>,
    /// Takes the hints of data chunks.
    hint: Option<&'a mut dyn FnMut(Hint) -> Result<()>>,
}

impl<'a> MarkedSnapshot<'a> {
    /// Marks with this rank.
    pub(super) fn of_rank(reached: &'a mut Partitions<REACHED_LEN>, rank: u16) -> Self {
        Self { reached, rank, node: None, hint: None }
    }
}

impl NodeVisitor for MarkedSnapshot<'_> {
    fn node(&mut self, node: Fingerprint, _: &mut MetadataReader) -> Result<()> {
        self.reached.push(&reached_record(&node, self.rank))
    }

    fn begin(&mut self, container: Option<ContainerId>) {
        self.node = container;
    }

    fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<()> {
        self.reached.push(&reached_record(&chunk.fingerprint, self.rank))?;
        match &mut self.hint {
            Some(take) => take(Hint { node: self.node, chunk: chunk.fingerprint, container: hint }),
            None => Ok(()),
        }
    }
}

/// The chunks of containers, from their directories.
#[derive(Debug)]
pub struct DirectoryChunks<'a> {
    /// The repository.
    pub store: &'a Store,
    /// The containers, which bring their numbers with them.
    pub containers: &'a Containers,
    /// Runs the tasks that read directories.
    pub driver: &'a Driver,
    /// Is asked whether to stop.
    pub monitor: &'a dyn Monitor,
    /// Containers whose directories cannot be read, or do not name all of their chunks. No chunk of them was passed on.
    pub unreadable: Vec<(ContainerId, Error)>,
}

impl StoredChunks for DirectoryChunks<'_> {
    fn each(&mut self, each: &mut dyn FnMut(StoredChunk) -> Result<()>) -> Result<()> {
        let opened = self.store.open_containers_ahead(self.driver, self.containers, self.containers.numbers());
        for (number, opened) in self.containers.numbers().zip(opened) {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (name, opened) = opened?;
            let names_all = |container: ContainerReader| {
                let is_named = container.directory.chunks.iter().all(|chunk| chunk.fingerprint.is_some());
                let problem = "its directory does not name all chunks";
                if is_named { Ok(container) } else { Err(Error::damaged(self.store.display(name), problem)) }
            };
            let container = match opened.and_then(names_all) {
                Ok(container) => container,
                Err(error) => {
                    self.unreadable.push((name.id, error));
                    continue;
                }
            };
            for (slot, chunk) in (0..=u16::MAX).zip(&container.directory.chunks) {
                if let Some(fingerprint) = chunk.fingerprint {
                    each(StoredChunk { fingerprint, container: number.0, slot, len: chunk.len })?;
                }
            }
        }
        Ok(())
    }
}
