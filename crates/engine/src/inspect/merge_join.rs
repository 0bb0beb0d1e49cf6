//! Two directories side by side, without reading the parts in which they are equal.
//!
//! Lists are cut into nodes where their names say so, so that equal stretches of two lists end up in equal nodes, which
//! have the same name. Such a pair is passed over as soon as both sides stand before it.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::store::MetadataReader;
use crate::tree::{Entry, TreeNode, decode_node};
use crate::types::{ChunkKind, Fingerprint};

/// What stands next on a side.
enum Head {
    /// A node that was not read yet.
    Node(Node),
    /// An entry.
    Entry(Box<Entry>),
}

struct Node {
    fingerprint: Fingerprint,
    /// Its level and the first name in it; `None` of the root of a list, of which nothing is known before it is read.
    known: Option<(u8, Vec<u8>)>,
}

/// A node that had to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRead {
    pub(super) fingerprint: Fingerprint,
    /// Bytes of the chunk, hints included.
    pub(super) len: u32,
}

/// One side: the rest of a directory's list. Holds one node a level.
struct Side {
    /// The next one last.
    pending: Vec<Head>,
    last_name: Option<Vec<u8>>,
}

impl Side {
    fn new(root: Option<Fingerprint>) -> Self {
        let node = |fingerprint| Head::Node(Node { fingerprint, known: None });
        Self { pending: root.map(node).into_iter().collect(), last_name: None }
    }

    fn take_entry(&mut self) -> Option<Box<Entry>> {
        match self.pending.pop() {
            Some(Head::Entry(entry)) => Some(entry),
            Some(node) => {
                self.pending.push(node);
                None
            }
            None => None,
        }
    }

    /// Reads the node that stands next and puts what is in it in its place.
    fn expand(&mut self, reader: &mut MetadataReader) -> Result<Option<NodeRead>> {
        let Some(Head::Node(node)) = self.pending.pop() else { return Ok(None) };
        let fingerprint = node.fingerprint;
        let object = || format!("tree {fingerprint}");
        let wrong = |reason: &str| Error::damaged(object(), reason);
        let chunk = reader.read(ChunkKind::Tree, fingerprint)?;
        let len = u32::try_from(chunk.contents.len() + chunk.hints.len()).unwrap_or(u32::MAX);
        let (level, first_name) = match decode_node(&chunk.contents).map_err(|error| error.of(object()))? {
            TreeNode::Children { level, children } => {
                let first_name = children.first().map(|child| child.first_name.clone());
                let below = |child: crate::tree::Child| {
                    let known = Some((level - 1, child.first_name));
                    Head::Node(Node { fingerprint: child.node, known })
                };
                self.pending.extend(children.into_iter().rev().map(below));
                (level, first_name)
            }
            TreeNode::Entries(entries) => {
                let first_name = entries.first().map(|entry| entry.name.clone());
                let last_name = entries.last().map(|entry| entry.name.clone());
                if self.last_name.is_some() && first_name <= self.last_name {
                    return Err(wrong("names not in order"));
                }
                self.last_name = last_name.or(self.last_name.take());
                self.pending.extend(entries.into_iter().rev().map(|entry| Head::Entry(Box::new(entry))));
                (0, first_name)
            }
        };
        if node.known.is_some_and(|(expected, name)| expected != level || Some(name) != first_name) {
            return Err(wrong("is not of the level or the names that refer to it"));
        }
        Ok(Some(NodeRead { fingerprint, len }))
    }
}

/// What the next step found.
pub(super) enum Step {
    /// An entry that only the left side has.
    Left(Box<Entry>),
    /// An entry that only the right side has.
    Right(Box<Entry>),
    /// Two entries of one name.
    Both(Box<Entry>, Box<Entry>),
    /// Both lists are at their ends.
    End,
}

/// What has to be done to get there.
enum Action {
    Expand { left: bool, right: bool },
    PassOver,
    Take { left: bool, right: bool },
    End,
}

/// Two lists of entries, merged by name.
pub(super) struct MergeJoin {
    left: Side,
    right: Side,
}

impl MergeJoin {
    /// Starts at the roots of two lists; `None` is an empty one.
    pub(super) fn new(left: Option<Fingerprint>, right: Option<Fingerprint>) -> Self {
        Self { left: Side::new(left), right: Side::new(right) }
    }

    /// Returns what differs next, or may differ: entries of one name that stand in nodes that are not equal.
    /// Tells `read` of every node that had to be read, and on which side.
    pub(super) fn next(
        &mut self,
        reader: &mut MetadataReader,
        read: &mut dyn FnMut(Which, NodeRead) -> Result<()>,
    ) -> Result<Step> {
        loop {
            match self.decide() {
                Action::End => return Ok(Step::End),
                Action::PassOver => {
                    self.left.pending.pop();
                    self.right.pending.pop();
                }
                Action::Expand { left, right } => {
                    if left && let Some(node) = self.left.expand(reader)? {
                        read(Which::Left, node)?;
                    }
                    if right && let Some(node) = self.right.expand(reader)? {
                        read(Which::Right, node)?;
                    }
                }
                Action::Take { left, right } => {
                    let left = if left { self.left.take_entry() } else { None };
                    let right = if right { self.right.take_entry() } else { None };
                    return Ok(match (left, right) {
                        (Some(left), Some(right)) => Step::Both(left, right),
                        (Some(left), None) => Step::Left(left),
                        (None, Some(right)) => Step::Right(right),
                        (None, None) => Step::End,
                    });
                }
            }
        }
    }

    fn decide(&self) -> Action {
        let expand = |left, right| Action::Expand { left, right };
        let take = |left, right| Action::Take { left, right };
        match (self.left.pending.last(), self.right.pending.last()) {
            (None, None) => Action::End,
            (Some(Head::Entry(_)), None) => take(true, false),
            (None, Some(Head::Entry(_))) => take(false, true),
            (Some(Head::Node(_)), None) => expand(true, false),
            (None, Some(Head::Node(_))) => expand(false, true),
            (Some(Head::Entry(left)), Some(Head::Entry(right))) => match left.name.cmp(&right.name) {
                Ordering::Less => take(true, false),
                Ordering::Equal => take(true, true),
                Ordering::Greater => take(false, true),
            },
            (Some(Head::Entry(left)), Some(Head::Node(right))) => {
                if right.known.as_ref().is_some_and(|(_, first)| left.name < *first) {
                    take(true, false)
                } else {
                    expand(false, true)
                }
            }
            (Some(Head::Node(left)), Some(Head::Entry(right))) => {
                if left.known.as_ref().is_some_and(|(_, first)| right.name < *first) {
                    take(false, true)
                } else {
                    expand(true, false)
                }
            }
            (Some(Head::Node(left)), Some(Head::Node(right))) if left.fingerprint == right.fingerprint => {
                Action::PassOver
            }
            // What begins first cannot be equal to the other, nor to anything in it; of two that begin with the same
            // name, the one of the higher level may hold the other. Roots are read first.
            (Some(Head::Node(left)), Some(Head::Node(right))) => match (&left.known, &right.known) {
                (None, None) => expand(true, true),
                (None, Some(_)) => expand(true, false),
                (Some(_), None) => expand(false, true),
                (Some((left, left_name)), Some((right, right_name))) => {
                    match left_name.cmp(right_name).then(right.cmp(left)) {
                        Ordering::Less => expand(true, false),
                        Ordering::Equal => expand(true, true),
                        Ordering::Greater => expand(false, true),
                    }
                }
            },
        }
    }
}

/// One of two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// What was before.
    Left,
    /// What is there after.
    Right,
}
