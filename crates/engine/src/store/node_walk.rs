//! The one walk over the nodes of trees and recipes that visits each node once, however many snapshots share it, and needs no
//! paths.

use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::spill::SpillMap;
use crate::store::metadata::MetadataReader;
use crate::store::references::{LinkedNode, Reference};
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
    /// Takes the container that a node was read from. What the node refers to follows.
    fn begin(&mut self, _container: Option<ContainerId>) {}
    /// Takes a reference to a data chunk and its hint, often repeatedly.
    fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<()>;
    /// Takes a node that cannot be read. The walk ends with the error that this returns, or goes on without what the node
    /// refers to.
    fn unreadable(&mut self, _node: Fingerprint, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Nodes that are still to be read. They are read in batches, in the order of their locations.
#[derive(Debug)]
pub(crate) struct Frontier<'a> {
    reader: &'a mut MetadataReader,
    nodes: Vec<(ChunkKind, Fingerprint)>,
    read: u64,
}

/// Takes a node that was read, and may add nodes to the frontier.
type TakeNode<'t> = dyn FnMut(&mut Frontier<'_>, Fingerprint, Result<LinkedNode>) -> Result<()> + 't;

impl<'a> Frontier<'a> {
    /// Starts without nodes.
    pub(crate) fn new(reader: &'a mut MetadataReader) -> Self {
        Self { reader, nodes: Vec::new(), read: 0 }
    }

    /// Returns the reader.
    pub(crate) fn reader(&mut self) -> &mut MetadataReader {
        self.reader
    }

    /// Adds a node. It is read as often as it is added.
    pub(crate) fn push(&mut self, kind: ChunkKind, node: Fingerprint) {
        self.nodes.push((kind, node));
    }

    /// Reads all nodes, those that `take` adds among them. After an error some are left.
    pub(crate) fn read_all(&mut self, monitor: &dyn Monitor, take: &mut TakeNode<'_>) -> Result<()> {
        while !self.nodes.is_empty() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let step = self.take_step()?;
            let mut read_to = 0;
            for (at, (_, kind, node)) in step.iter().enumerate() {
                if read_to <= at {
                    read_to = self.read_ahead(&step, at);
                }
                self.read += 1;
                let linked = self.reader.read_linked(*kind, *node);
                take(self, *node, linked)?;
            }
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

    /// Takes the last nodes, in the order of their locations.
    fn take_step(&mut self) -> Result<Vec<Located>> {
        let count = if FRONTIER_MAX < self.nodes.len() { 1 } else { STEP_NODES_MAX };
        let step = self.nodes.split_off(self.nodes.len().saturating_sub(count));
        let mut located = Vec::with_capacity(step.len());
        for (kind, node) in step {
            located.push((self.reader.locate(&node)?, kind, node));
        }
        located.sort_unstable_by_key(|(location, ..)| *location);
        Ok(located)
    }
}

/// Walks trees from their roots.
#[derive(Debug)]
pub(crate) struct NodeWalk<'a> {
    frontier: Frontier<'a>,
    visited: SpillMap,
}

impl<'a> NodeWalk<'a> {
    /// Starts without visited nodes, in an empty map.
    pub(crate) fn new(reader: &'a mut MetadataReader, visited: SpillMap) -> Self {
        Self { frontier: Frontier::new(reader), visited }
    }

    /// Visits what the root of a tree reaches and was not visited before.
    pub(crate) fn walk(
        &mut self,
        root: Fingerprint,
        visitor: &mut dyn NodeVisitor,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let Self { frontier, visited } = self;
        visit(frontier, visited, (ChunkKind::Tree, root), visitor)?;
        self.read_all(visitor, monitor)
    }

    /// Visits what a node refers to that was read already, and what that reaches.
    pub(crate) fn walk_from(
        &mut self,
        node: LinkedNode,
        visitor: &mut dyn NodeVisitor,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let Self { frontier, visited } = self;
        node.each_reference(&mut |reference| visit_reference(frontier, visited, reference, visitor))?;
        self.read_all(visitor, monitor)
    }

    fn read_all(&mut self, visitor: &mut dyn NodeVisitor, monitor: &dyn Monitor) -> Result<()> {
        let Self { frontier, visited } = self;
        frontier.read_all(monitor, &mut |frontier, node, linked| match linked {
            Ok(linked) => {
                visitor.begin(frontier.reader.read_from);
                linked.each_reference(&mut |reference| visit_reference(frontier, visited, reference, visitor))
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => visitor.unreadable(node, error),
        })
    }

    /// Returns the reader.
    pub(crate) fn reader(&mut self) -> &mut MetadataReader {
        self.frontier.reader()
    }

    /// Returns the number of nodes read.
    pub(crate) fn nodes(&self) -> u64 {
        self.frontier.read
    }
}

fn visit_reference(
    frontier: &mut Frontier<'_>,
    visited: &mut SpillMap,
    reference: Reference,
    visitor: &mut dyn NodeVisitor,
) -> Result<()> {
    match reference {
        Reference::Node(link) => visit(frontier, visited, (link.kind(), link.fingerprint()), visitor),
        Reference::Chunk(chunk, hint) => visitor.chunk(chunk, hint),
    }
}

/// Adds a node to the frontier, unless it was visited.
fn visit(
    frontier: &mut Frontier<'_>,
    visited: &mut SpillMap,
    (kind, node): (ChunkKind, Fingerprint),
    visitor: &mut dyn NodeVisitor,
) -> Result<()> {
    if visited.insert_new(node.0, &[])? {
        visitor.node(node, frontier.reader)?;
        frontier.push(kind, node);
    }
    Ok(())
}
