//! The one walk over the nodes of trees and recipes that visits each node once, however many snapshots share it, and needs no
//! paths.

use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::spill::SpillMap;
use crate::store::metadata::MetadataReader;
use crate::store::references::Reference;
use crate::types::{Chunk, ChunkKind, ContainerId, Fingerprint};

/// Nodes that are sorted by location and read together. Their references are the most that a step adds to the frontier.
const STEP_NODES_MAX: usize = 1 << 10;
/// Frontier in nodes (about 4 MiB) beyond which nodes are read one at a time, depth first. Then it grows by the references of
/// one node for each level only.
const FRONTIER_MAX: usize = 1 << 17;

/// A node with the container and region of its first copy, if they are known.
type Located = (Option<(ContainerId, u32)>, ChunkKind, Fingerprint);

/// Receiver of what a walk visits.
pub(crate) trait NodeVisitor {
    /// Takes a node before it is read, once. `reader` locates it.
    fn node(&mut self, node: Fingerprint, reader: &mut MetadataReader) -> Result<()>;
    /// Takes a reference to a data chunk and its hint, often repeatedly.
    fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<()>;
    /// Takes a node that cannot be read. The walk ends with the error that this returns, or goes on without what the node
    /// refers to.
    fn unreadable(&mut self, _node: Fingerprint, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Walks trees from their roots.
#[derive(Debug)]
pub(crate) struct NodeWalk<'a> {
    reader: &'a mut MetadataReader,
    visited: SpillMap,
    frontier: Vec<(ChunkKind, Fingerprint)>,
    nodes: u64,
}

impl<'a> NodeWalk<'a> {
    /// Starts without visited nodes, in an empty map.
    pub(crate) fn new(reader: &'a mut MetadataReader, visited: SpillMap) -> Self {
        Self { reader, visited, frontier: Vec::new(), nodes: 0 }
    }

    /// Visits what the root of a tree reaches and was not visited before.
    pub(crate) fn walk(
        &mut self,
        root: Fingerprint,
        visitor: &mut dyn NodeVisitor,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        self.visit(ChunkKind::Tree, root, visitor)?;
        while !self.frontier.is_empty() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let step = self.take_step()?;
            let mut read_to = 0;
            for (at, (_, kind, node)) in step.iter().enumerate() {
                if read_to <= at {
                    read_to = self.read_ahead(&step, at);
                }
                self.follow(*kind, *node, visitor)?;
            }
        }
        Ok(())
    }

    /// Returns the number of nodes read.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Adds a node to the frontier, unless it was visited.
    fn visit(&mut self, kind: ChunkKind, node: Fingerprint, visitor: &mut dyn NodeVisitor) -> Result<()> {
        if self.visited.insert_new(node.0, &[])? {
            visitor.node(node, self.reader)?;
            self.frontier.push((kind, node));
        }
        Ok(())
    }

    /// Reads the regions of nodes from `start` on. Returns the first node whose region was not read.
    fn read_ahead(&mut self, step: &[Located], start: usize) -> usize {
        let count = self.reader.read_ahead_count();
        let mut regions = Vec::with_capacity(count);
        let mut end = start;
        for (at, (location, ..)) in step.iter().enumerate().skip(start) {
            if let Some(location) = location
                && regions.last() != Some(location)
            {
                if count <= regions.len() {
                    break;
                }
                regions.push(*location);
            }
            end = at + 1;
        }
        // A single region is read when it is wanted.
        if 1 < regions.len() {
            self.reader.read_ahead(&regions);
        }
        end.max(start + 1)
    }

    /// Takes the last nodes of the frontier, in the order of their locations.
    fn take_step(&mut self) -> Result<Vec<Located>> {
        let count = if FRONTIER_MAX < self.frontier.len() { 1 } else { STEP_NODES_MAX };
        let step = self.frontier.split_off(self.frontier.len().saturating_sub(count));
        let mut located = Vec::with_capacity(step.len());
        for (kind, node) in step {
            located.push((self.reader.locate(&node)?, kind, node));
        }
        located.sort_unstable_by_key(|(location, ..)| *location);
        Ok(located)
    }

    fn follow(&mut self, kind: ChunkKind, node: Fingerprint, visitor: &mut dyn NodeVisitor) -> Result<()> {
        self.nodes += 1;
        match self.reader.read_linked(kind, node) {
            Ok(linked) => linked.each_reference(&mut |reference| match reference {
                Reference::Node(link) => self.visit(link.kind(), link.fingerprint(), visitor),
                Reference::Chunk(chunk, hint) => visitor.chunk(chunk, hint),
            }),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => visitor.unreadable(node, error),
        }
    }
}
