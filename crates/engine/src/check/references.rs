//! Follows every reference of every snapshot, each node of trees and recipes once however many snapshots share it.
//!
//! Nodes are judged from below. The summary of a node (its level, size, first and last name, and the soundness of all below it)
//! is kept by its fingerprint and compared with each reference to the node.

use crate::check::condition::Judged;
use crate::check::findings::object_of;
use crate::check::graph::{Edge, Graph};
use crate::check::inventory::Inventory;
use crate::codec::{Decoded, Reader, put_string, put_varint};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::spill::SpillMap;
use crate::store::MetadataReader;
use crate::store::references::{LinkedNode, NodeLink, Reference};
use crate::tree::TreeNode;
use crate::types::{Chunk, ChunkKind, ContainerId, Fingerprint};

/// Deepest directory; nothing deeper can be named in one system call.
pub(super) const DEPTH_MAX: u16 = 4096;
const ADVICE_NODE: &str = "run backup again: what is still in the source is stored again; restore what you need from \
                           snapshots that are not affected";
const ADVICE_FORMAT: &str = "restore what you need from other snapshots, and report this: a program has written it so";

/// Condition of a node and all below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Soundness {
    /// It cannot be read, or contradicts what is below it.
    Lost,
    /// Something below it is lost.
    Hit,
    /// Everything is there.
    Sound,
}

/// Summary of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Summary {
    soundness: Soundness,
    level: u8,
    /// Directories below each other, this one not counted.
    height: u16,
    /// Entries of a tree node and all below; bytes of a recipe segment.
    count: u64,
    first_name: Vec<u8>,
    last_name: Vec<u8>,
    /// Number of the node in the graph; 0 before it is judged.
    number: u32,
}

/// A node that is being judged.
#[derive(Debug)]
struct Frame {
    link: NodeLink,
    /// Directories above.
    depth: u16,
    /// References not followed yet, the next one last.
    todo: Vec<NodeLink>,
    /// Summary of the part judged so far.
    summary: Summary,
    /// Entries that the children judged so far have.
    entries: u64,
    /// Nodes and containers that it refers to.
    edges: Vec<Edge>,
}

/// Follows references.
pub(super) struct References<'a, 'b> {
    pub(super) reader: MetadataReader,
    monitor: &'a dyn Monitor,
    pub(super) inventory: &'a mut Inventory<'b>,
    visited: SpillMap,
    /// What nodes refer to.
    pub(super) graph: Graph,
    /// Nodes read.
    pub(super) nodes: u64,
}

impl<'a, 'b> References<'a, 'b> {
    /// Starts without having visited anything.
    pub(crate) fn new(
        reader: MetadataReader,
        inventory: &'a mut Inventory<'b>,
        (visited, graph): (SpillMap, Graph),
        monitor: &'a dyn Monitor,
    ) -> Self {
        Self { reader, monitor, inventory, visited, graph, nodes: 0 }
    }

    /// Judges a whole tree by its root.
    pub(super) fn judge_tree(&mut self, root: Fingerprint, interrupted: &dyn Fn() -> bool) -> Result<Soundness> {
        let mut stack: Vec<Frame> = Vec::new();
        let mut next = Some(NodeLink::Directory(root));
        loop {
            if interrupted() {
                return Err(Error::Interrupted);
            }
            // Without a next reference, the lowest node is judged.
            let (link, summary) = match next.take() {
                None => self.close(stack.pop())?,
                Some(link) => {
                    let Some(summary) = self.visited(link.fingerprint())? else {
                        let depth = stack
                            .last()
                            .map_or(0, |above| above.depth + u16::from(matches!(link, NodeLink::Directory(_))));
                        let mut frame = self.open(link, depth)?;
                        next = frame.todo.pop();
                        stack.push(frame);
                        continue;
                    };
                    (link, summary)
                }
            };
            let Some(above) = stack.last_mut() else { return Ok(summary.soundness) };
            above.edges.push(Edge::Node(summary.number));
            if let Some(problem) = above.accept(&link, &summary) {
                let (object, fingerprint) = (object(&above.link), above.link.fingerprint());
                let number = self.inventory.findings.add(object, problem, ADVICE_FORMAT);
                self.inventory.lose(fingerprint, number)?;
            }
            next = above.todo.pop();
        }
    }

    /// Returns what was found of a node that was visited.
    pub(super) fn soundness(&mut self, node: Fingerprint) -> Result<Soundness> {
        Ok(self.visited(node)?.map_or(Soundness::Lost, |summary| summary.soundness))
    }

    /// Returns the number of a node that was visited.
    pub(super) fn number_of(&mut self, node: Fingerprint) -> Result<Option<u32>> {
        Ok(self.visited(node)?.map(|summary| summary.number))
    }

    /// Returns where a chunk is, or the finding by which it cannot be restored.
    pub(super) fn judge_chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<Judged> {
        self.inventory.judge(chunk, hint, self.monitor)
    }

    fn visited(&mut self, node: Fingerprint) -> Result<Option<Summary>> {
        let Some(bytes) = self.visited.get(&node.0)? else { return Ok(None) };
        let summary = Summary::decode(&bytes).map_err(|error| error.of("spilled judgments"))?;
        Ok(Some(summary))
    }

    fn close(&mut self, frame: Option<Frame>) -> Result<(NodeLink, Summary)> {
        let Frame { link, mut summary, edges, .. } = frame.expect("the stack holds the root until it is judged");
        summary.number = self.graph.push(link.kind(), link.fingerprint(), edges)?;
        self.visited.insert(link.fingerprint().0, &summary.encode())?;
        Ok((link, summary))
    }

    /// Reads a node and judges the chunks that it refers to.
    fn open(&mut self, link: NodeLink, depth: u16) -> Result<Frame> {
        self.nodes += 1;
        let mut frame =
            Frame { link, depth, todo: Vec::new(), summary: Summary::lost(), entries: 0, edges: Vec::new() };
        let fingerprint = frame.link.fingerprint();
        if DEPTH_MAX < depth {
            let number = self.inventory.findings.add(object(&frame.link), "directories lie too deep", ADVICE_FORMAT);
            self.inventory.lose(fingerprint, number)?;
            return Ok(frame);
        }
        match self.reader.read_linked(frame.link.kind(), fingerprint) {
            Ok(node) => {
                self.take_node(&mut frame, node)?;
                frame.todo.reverse();
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => self.lose(fingerprint, &error)?,
        }
        Ok(frame)
    }

    /// Finds out by which finding a node is lost that cannot be read.
    fn lose(&mut self, fingerprint: Fingerprint, error: &Error) -> Result<()> {
        let known = self.inventory.lost(fingerprint)?;
        let number = match (known, error) {
            (Some(number), _) => number,
            (None, Error::MissingChunk { .. }) => self.inventory.blame_for_metadata(),
            (None, error) => {
                let object = object_of(self.inventory.store, error).unwrap_or_else(|| format!("chunk {fingerprint}"));
                self.inventory.findings.add_error(object, error, ADVICE_NODE)
            }
        };
        self.inventory.lose(fingerprint, number)
    }

    fn take_node(&mut self, frame: &mut Frame, node: LinkedNode) -> Result<()> {
        frame.summary = Summary::of(&node);
        for copy in self.reader.copies_of(&frame.link.fingerprint())? {
            frame.edges.extend(self.graph.copy_in(copy));
        }
        node.each_reference(&mut |reference| {
            match reference {
                Reference::Node(link) => frame.todo.push(link),
                Reference::Chunk(chunk, hint) => match self.judge_chunk(chunk, hint)? {
                    Judged::Lost(_) => frame.summary.soundness = Soundness::Hit,
                    Judged::Found(container) => {
                        let edge = self.graph.data_in(container);
                        frame.edges.extend(edge.filter(|edge| frame.edges.last() != Some(edge)));
                    }
                },
            }
            Ok(())
        })
    }
}

impl Frame {
    /// Takes what was found of a node that this one refers to. Returns how the two contradict each other.
    fn accept(&mut self, link: &NodeLink, below: &Summary) -> Option<String> {
        if below.soundness != Soundness::Sound && self.summary.soundness == Soundness::Sound {
            self.summary.soundness = Soundness::Hit;
        }
        if below.soundness == Soundness::Lost {
            return None;
        }
        let is_right = match link {
            NodeLink::Directory(_) => {
                self.summary.height = self.summary.height.max(below.height.saturating_add(1));
                self.depth.saturating_add(self.summary.height) <= DEPTH_MAX
            }
            NodeLink::Child(child) => {
                self.summary.height = self.summary.height.max(below.height);
                let follows = self.entries == 0 || self.summary.last_name < below.first_name;
                self.entries = self.entries.saturating_add(below.count);
                self.summary.last_name.clone_from(&below.last_name);
                follows
                    && below.level.checked_add(1) == Some(self.summary.level)
                    && child.entries == below.count
                    && child.first_name == below.first_name
            }
            NodeLink::Segment { len, level, .. } => below.level == *level && below.count == *len,
        };
        if is_right {
            return None;
        }
        self.summary.soundness = Soundness::Lost;
        Some(format!("contradicts {}, which it refers to", object(link)))
    }
}

/// Returns a node as findings name it.
fn object(link: &NodeLink) -> String {
    let kind = if link.kind() == ChunkKind::Recipe { "recipe" } else { "tree" };
    format!("{kind} {}", link.fingerprint())
}

impl Summary {
    fn lost() -> Self {
        Self {
            soundness: Soundness::Lost,
            level: 0,
            height: 0,
            count: 0,
            first_name: Vec::new(),
            last_name: Vec::new(),
            number: 0,
        }
    }

    /// Summary of a node by itself.
    fn of(node: &LinkedNode) -> Self {
        let mut summary = Self { soundness: Soundness::Sound, ..Self::lost() };
        match node {
            LinkedNode::Segment(recipe, _) => {
                summary.level = recipe.level;
                summary.count = recipe.len();
            }
            LinkedNode::Tree(TreeNode::Children { level, children }, _) => {
                summary.level = *level;
                summary.count = children.iter().fold(0, |sum, child| child.entries.saturating_add(sum));
                summary.first_name = children.first().map(|child| child.first_name.clone()).unwrap_or_default();
            }
            LinkedNode::Tree(TreeNode::Entries(entries), _) => {
                summary.count = entries.len() as u64;
                summary.first_name = entries.first().map(|entry| entry.name.clone()).unwrap_or_default();
                summary.last_name = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
            }
        }
        summary
    }

    fn encode(&self) -> Vec<u8> {
        let soundness = match self.soundness {
            Soundness::Lost => 0,
            Soundness::Hit => 1,
            Soundness::Sound => 2,
        };
        let mut out = vec![soundness, self.level];
        put_varint(&mut out, self.number.into());
        put_varint(&mut out, self.height.into());
        put_varint(&mut out, self.count);
        put_string(&mut out, &self.first_name);
        put_string(&mut out, &self.last_name);
        out
    }

    fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let soundness = match reader.u8()? {
            0 => Soundness::Lost,
            1 => Soundness::Hit,
            _ => Soundness::Sound,
        };
        let level = reader.u8()?;
        let number = reader.varint32()?;
        let height = u16::try_from(reader.varint()?).unwrap_or(u16::MAX);
        let count = reader.varint()?;
        let first_name = reader.string(usize::from(u8::MAX))?.to_vec();
        let last_name = reader.string(usize::from(u8::MAX))?.to_vec();
        reader.finish()?;
        Ok(Self { soundness, level, height, count, first_name, last_name, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Child;

    fn summary(first: &str, last: &str, count: u64) -> Summary {
        Summary {
            soundness: Soundness::Sound,
            level: 0,
            height: 3,
            count,
            first_name: first.into(),
            last_name: last.into(),
            number: 300,
        }
    }

    fn child(first: &str, entries: u64) -> NodeLink {
        NodeLink::Child(Child { node: Fingerprint([1; 32]), entries, first_name: first.into() })
    }

    fn frame() -> Frame {
        let link = NodeLink::Directory(Fingerprint([2; 32]));
        let above = Summary { level: 1, ..summary("a", "", 0) };
        Frame { link, depth: 0, todo: Vec::new(), summary: above, entries: 0, edges: Vec::new() }
    }

    #[test]
    fn judgments_come_back() {
        let judged = summary("a", &"z".repeat(255), u64::MAX);
        assert_eq!(Summary::decode(&judged.encode()), Ok(judged));
        assert_eq!(Summary::decode(&Summary::lost().encode()), Ok(Summary::lost()));
    }

    #[test]
    fn a_node_that_contradicts_what_is_below_it_is_lost() {
        let mut good = frame();
        assert_eq!(good.accept(&child("a", 2), &summary("a", "c", 2)), None);
        assert_eq!(good.accept(&child("d", 1), &summary("d", "d", 1)), None);
        assert_eq!(good.summary.soundness, Soundness::Sound);
        assert_eq!((good.summary.height, good.summary.last_name.as_slice()), (3, &b"d"[..]));
        for (link, below) in [
            (child("a", 3), summary("a", "c", 2)),
            (child("b", 2), summary("a", "c", 2)),
            (child("a", 2), Summary { level: 1, ..summary("a", "c", 2) }),
            (NodeLink::Segment { fingerprint: Fingerprint([1; 32]), len: 5, level: 0 }, summary("", "", 4)),
        ] {
            let mut bad = frame();
            assert!(bad.accept(&link, &below).is_some(), "{link:?}");
            assert_eq!(bad.summary.soundness, Soundness::Lost);
        }
        let mut overlapping = frame();
        assert_eq!(overlapping.accept(&child("a", 2), &summary("a", "c", 2)), None);
        assert!(overlapping.accept(&child("b", 1), &summary("b", "b", 1)).is_some());
        let mut deep = Frame { depth: DEPTH_MAX - 3, ..frame() };
        assert!(deep.accept(&NodeLink::Directory(Fingerprint([1; 32])), &summary("a", "a", 1)).is_some());
    }
}
