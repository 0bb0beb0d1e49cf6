//! Two directories, merged by name without reading the parts in which they are equal.
//!
//! The names decide how a list is cut into nodes, so that equal parts of two lists end up in equal nodes, which have the same
//! fingerprint. Such a pair is skipped as soon as it comes next on both sides.

use std::cmp::Reverse;

use crate::error::Result;
use crate::store::cursor::{DirectoryCursor, Head, NodeReader};
use crate::tree::Entry;
use crate::types::{Chunk, Fingerprint};

/// The next difference.
pub(super) enum Step {
    /// An entry that only the left side has.
    Left(Entry),
    /// An entry that only the right side has.
    Right(Entry),
    /// Two entries of one name.
    Both(Entry, Entry),
    /// Both lists are at their ends.
    End,
}

/// Two lists of entries, merged by name.
pub(super) struct MergeJoin {
    left: DirectoryCursor,
    right: DirectoryCursor,
}

impl MergeJoin {
    /// Starts at the roots of two lists; `None` is an empty one.
    pub(crate) fn new(left: Option<Fingerprint>, right: Option<Fingerprint>) -> Self {
        let [left, right] = [left, right].map(|root| root.map_or_else(DirectoryCursor::default, DirectoryCursor::new));
        Self { left, right }
    }

    /// Returns what differs next, or may differ: entries of one name in nodes that are not equal. Reports to `read` each node
    /// that had to be read.
    pub(crate) fn next(
        &mut self,
        reader: &mut dyn NodeReader,
        read: &mut dyn FnMut(Which, Chunk) -> Result<()>,
    ) -> Result<Step> {
        loop {
            let (left, right) = (self.left.head(), self.right.head());
            let order = position(&left).cmp(&position(&right));
            match (left, right) {
                (Head::End, Head::End) => return Ok(Step::End),
                (Head::Node { node: left, .. }, Head::Node { node: right, .. }) if left == right => {
                    self.left.skip_node();
                    self.right.skip_node();
                    continue;
                }
                (Head::Entry(_) | Head::Node { .. } | Head::End, _) => {}
            }
            let mut advance = |which: Which, side: &mut DirectoryCursor| {
                let entry = side.take_entry().map(|hinted| hinted.entry);
                if entry.is_none()
                    && let Some(node) = side.expand(reader)?
                {
                    read(which, node)?;
                }
                Ok(entry)
            };
            let left = if order.is_le() { advance(Which::Left, &mut self.left)? } else { None };
            let right = if order.is_ge() { advance(Which::Right, &mut self.right)? } else { None };
            match (left, right) {
                (Some(left), Some(right)) => return Ok(Step::Both(left, right)),
                (Some(left), None) => return Ok(Step::Left(left)),
                (None, Some(right)) => return Ok(Step::Right(right)),
                (None, None) => {}
            }
        }
    }
}

/// Returns the key by which the next step is chosen: the side with the lesser one goes first, and both do if they are equal.
/// A node is expanded before an entry of its first name is taken, a node of a higher level before one of a lower level, which
/// it may hold, and a root before everything else.
fn position<'a>(head: &'a Head<'_>) -> (bool, Option<&'a [u8]>, Reverse<u8>) {
    match head {
        Head::Entry(entry) => (false, Some(&entry.name), Reverse(0)),
        Head::Node { known: None, .. } => (false, None, Reverse(u8::MAX)),
        Head::Node { known: Some((level, first_name)), .. } => {
            (false, Some(first_name), Reverse(level.saturating_add(1)))
        }
        Head::End => (true, None, Reverse(0)),
    }
}

/// One of two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// The state before.
    Left,
    /// The state after.
    Right,
}
