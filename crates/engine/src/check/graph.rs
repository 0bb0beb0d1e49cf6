//! What the nodes of snapshots refer to, by numbers.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::Host;
use crate::spill::SpillArray;
use crate::store::container_set::Containers;
use crate::store::metadata::Scratch;
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// Bytes of a node: what it is, and its name.
const NODE_LEN: usize = 1 + 32;

/// What a node refers to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Edge {
    /// A node, by its number.
    Node(u32),
    /// A container that holds a data chunk.
    Data(u32),
    /// A container that holds the node itself.
    Copy(u32),
}

impl Edge {
    fn encode(self, node: u32) -> [u8; 9] {
        let (kind, target) = match self {
            Self::Node(target) => (0, target),
            Self::Data(target) => (1, target),
            Self::Copy(target) => (2, target),
        };
        let mut record = [kind; 9];
        let fields = node.to_le_bytes().into_iter().chain(target.to_le_bytes());
        record.iter_mut().skip(1).zip(fields).for_each(|(byte, field)| *byte = field);
        record
    }

    pub(super) fn decode([kind, n0, n1, n2, n3, t0, t1, t2, t3]: [u8; 9]) -> (u32, Self) {
        let (node, target) = (u32::from_le_bytes([n0, n1, n2, n3]), u32::from_le_bytes([t0, t1, t2, t3]));
        let edge = match kind {
            0 => Self::Node(target),
            1 => Self::Data(target),
            _ => Self::Copy(target),
        };
        (node, edge)
    }
}

/// The references of all nodes, by numbers.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) containers: Containers,
    pub(super) nodes: SpillArray<NODE_LEN>,
    pub(super) edges: SpillArray<9>,
    /// False if a chunk was found in a container that was not listed at first: a collection is at work.
    pub(super) is_stable: bool,
}

impl Graph {
    /// Starts without nodes.
    pub(super) fn new(containers: &Containers, scratch: &Scratch, host: &Arc<dyn Host>) -> Self {
        Self {
            containers: containers.clone(),
            nodes: scratch.array(host, "nodes of snapshots"),
            edges: scratch.array(host, "references of nodes"),
            is_stable: true,
        }
    }

    /// Returns the edge to a container that holds a node.
    pub(super) fn copy_in(&mut self, id: ContainerId) -> Option<Edge> {
        self.known(self.containers.find(id).map(|number| number.0)).map(Edge::Copy)
    }

    /// Returns the edge to a container that holds a data chunk.
    pub(super) fn data_in(&mut self, number: Option<u32>) -> Option<Edge> {
        self.known(number).map(Edge::Data)
    }

    fn known(&mut self, number: Option<u32>) -> Option<u32> {
        self.is_stable &= number.is_some();
        number
    }

    /// Adds a node with its edges, after all nodes below it. Returns its number.
    pub(super) fn push(&mut self, kind: ChunkKind, node: Fingerprint, mut edges: Vec<Edge>) -> Result<u32> {
        let number = u32::try_from(self.nodes.len()).map_err(|_| Error::invalid("more than 2^32 nodes"))?;
        let mut record = [kind.code(); NODE_LEN];
        record.iter_mut().skip(1).zip(node.0).for_each(|(byte, field)| *byte = field);
        self.nodes.push(record)?;
        edges.sort_unstable();
        edges.dedup();
        edges.into_iter().try_for_each(|edge| self.edges.push(edge.encode(number)))?;
        Ok(number)
    }

    pub(super) fn node(&self, number: u32) -> Result<(ChunkKind, Fingerprint)> {
        let [kind, name @ ..] = self.nodes.get(number as usize)?;
        Ok((ChunkKind::from_code(kind).expect("the code of a kind"), Fingerprint(name)))
    }
}
