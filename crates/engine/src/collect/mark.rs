//! The mark: all chunks that snapshots reach (step C4 of docs/protocol.md), and the chunks of containers from their
//! directories.

use crate::collect::usage::{RANK_MAX, REACHED_LEN, Reached, StoredChunk, StoredChunks, reached_record};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::spill::{Partitions, SpillMap};
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::store::metadata::{MetadataReader, Scratch};
use crate::store::references::Reference;
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// Nodes that are sorted by location and read together. Their references are the most that a step adds to the frontier.
const STEP_NODES_MAX: usize = 1 << 10;
/// Frontier in nodes (about 4 MiB) beyond which nodes are read one at a time, depth first. Then it grows by the references of
/// one node for each level only.
const FRONTIER_MAX: usize = 1 << 17;
/// The least memory of a mark in bytes: its smallest share is a quarter and holds a map.
pub const MEMORY_BYTES_MIN: usize = 4 * crate::spill::MEMORY_BYTES_MIN;

/// Walks snapshots, each node once however many snapshots share it.
#[derive(Debug)]
pub struct Marker<'a> {
    reader: &'a mut MetadataReader,
    visited: SpillMap,
    reached: Partitions<REACHED_LEN>,
    frontier: Vec<(ChunkKind, Fingerprint)>,
    /// Rank of the next snapshot.
    rank: u16,
    nodes: u64,
}

impl<'a> Marker<'a> {
    /// Starts without snapshots. Takes at most `memory_bytes` beside the reader, and the frontier.
    pub fn new(reader: &'a mut MetadataReader, scratch: &Scratch, memory_bytes: usize) -> Result<Self> {
        let host = &reader.store().host;
        let visited = scratch.map(host, "nodes visited", memory_bytes / 4)?;
        let reached = scratch.partitions(host, "references", memory_bytes / 4 * 3)?;
        Ok(Self { reader, visited, reached, frontier: Vec::new(), rank: 0, nodes: 0 })
    }

    /// Marks what a snapshot reaches, by the root of its tree. The newest snapshot comes first: a chunk gets the rank of the
    /// first one that reaches it. `hint` takes the container of each reference to a data chunk, often repeatedly.
    ///
    /// Fails if a node cannot be read; the error names it. Then nothing is known of what it reaches, and nothing may be deleted.
    pub fn mark(
        &mut self,
        root: Fingerprint,
        hint: &mut dyn FnMut(ContainerId) -> Result<()>,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        self.visit(ChunkKind::Tree, root)?;
        while !self.frontier.is_empty() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            for (kind, node) in self.take_step()? {
                self.follow(kind, node, hint)?;
            }
        }
        self.rank = self.rank.saturating_add(1).min(RANK_MAX);
        Ok(())
    }

    /// Returns the number of nodes read.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns what the snapshots reach.
    pub fn finish(self) -> Result<Reached> {
        self.reached.finish()
    }

    /// Adds a node to the frontier, unless it was visited.
    fn visit(&mut self, kind: ChunkKind, node: Fingerprint) -> Result<()> {
        if self.visited.insert_new(node.0, &[])? {
            self.reached.push(&reached_record(&node, self.rank))?;
            self.frontier.push((kind, node));
        }
        Ok(())
    }

    /// Takes the last nodes of the frontier, in the order of their locations.
    fn take_step(&mut self) -> Result<Vec<(ChunkKind, Fingerprint)>> {
        let count = if FRONTIER_MAX < self.frontier.len() { 1 } else { STEP_NODES_MAX };
        let step = self.frontier.split_off(self.frontier.len().saturating_sub(count));
        let mut located = Vec::with_capacity(step.len());
        for (kind, node) in step {
            located.push((self.reader.locate(&node)?, kind, node));
        }
        located.sort_unstable_by_key(|(location, ..)| *location);
        Ok(located.into_iter().map(|(_, kind, node)| (kind, node)).collect())
    }

    fn follow(
        &mut self,
        kind: ChunkKind,
        node: Fingerprint,
        hint: &mut dyn FnMut(ContainerId) -> Result<()>,
    ) -> Result<()> {
        self.nodes += 1;
        self.reader.read_linked(kind, node)?.each_reference(&mut |reference| match reference {
            Reference::Node(link) => self.visit(link.kind(), link.fingerprint()),
            Reference::Chunk(chunk, container) => {
                self.reached.push(&reached_record(&chunk.fingerprint, self.rank))?;
                container.map_or(Ok(()), &mut *hint)
            }
        })
    }
}

/// The chunks of containers, from their directories.
#[derive(Debug)]
pub struct DirectoryChunks<'a> {
    /// The repository.
    pub store: &'a Store,
    /// The containers, which bring their numbers with them.
    pub containers: &'a Containers,
}

impl StoredChunks for DirectoryChunks<'_> {
    /// Fails if a directory cannot be read, or does not name all of its chunks; the error names the container.
    fn each(&mut self, each: &mut dyn FnMut(StoredChunk) -> Result<()>) -> Result<()> {
        let opened = self.store.open_containers(self.containers, self.containers.numbers());
        for (number, opened) in self.containers.numbers().zip(opened) {
            let (name, opened) = opened?;
            for (slot, chunk) in (0..=u16::MAX).zip(&opened?.directory.chunks) {
                let Some(fingerprint) = chunk.fingerprint else {
                    return Err(Error::damaged(self.store.display(name), "its directory does not name all chunks"));
                };
                each(StoredChunk { fingerprint, container: number.0, slot, len: chunk.len })?;
            }
        }
        Ok(())
    }
}
