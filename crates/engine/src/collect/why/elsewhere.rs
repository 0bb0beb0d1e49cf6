//! Chunks that snapshots reach by other paths than one.

use crate::collect::mark::MarkedSnapshot;
use crate::error::Result;
use crate::monitor::Monitor;
use crate::spill::SpillMap;
use crate::store::metadata::HintedNode;
use crate::store::node_walk::NodeWalk;
use crate::store::references::LinkedNode;
use crate::tree::{Content, TreeNode};
use crate::types::Fingerprint;

/// A path that a walk leaves out.
pub(super) struct Elsewhere<'a> {
    /// The names of the path.
    pub(super) names: &'a [&'a [u8]],
    /// Directories above the path that were walked, by name and depth.
    pub(super) walked: SpillMap,
    pub(super) monitor: &'a dyn Monitor,
}

impl Elsewhere<'_> {
    /// Visits everything in a tree that is neither at the path, nor below it, nor a directory above it.
    pub(super) fn walk(
        &mut self,
        walk: &mut NodeWalk<'_>,
        root: Fingerprint,
        visitor: &mut MarkedSnapshot<'_>,
    ) -> Result<()> {
        let mut directory = root;
        for (depth, name) in (0_u32..).zip(self.names) {
            let key = *blake3::Hasher::new().update(&directory.0).update(&depth.to_le_bytes()).finalize().as_bytes();
            // What follows is the same as the last time.
            if !self.walked.insert_new(key, &[])? {
                return Ok(());
            }
            match self.walk_list(walk, directory, name, visitor)? {
                Some(Content::Directory { node }) => directory = node,
                Some(Content::File { .. } | Content::Symlink { .. } | Content::Special { .. }) | None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Visits all entries of a directory but one, which it returns.
    fn walk_list(
        &self,
        walk: &mut NodeWalk<'_>,
        root: Fingerprint,
        name: &[u8],
        visitor: &mut MarkedSnapshot<'_>,
    ) -> Result<Option<Content>> {
        let mut node = root;
        loop {
            let HintedNode { node: read, .. } = walk.reader().read_node(node)?;
            match read {
                TreeNode::Children { children, .. } => {
                    // A node ends where the next one begins.
                    let own = children.partition_point(|child| child.first_name.as_slice() <= name).checked_sub(1);
                    for (at, child) in children.iter().enumerate() {
                        if own != Some(at) {
                            walk.walk(child.node, visitor, self.monitor)?;
                        }
                    }
                    let Some(child) = own.and_then(|at| children.get(at)) else { return Ok(None) };
                    node = child.node;
                }
                TreeNode::Entries(mut entries) => {
                    let found = entries.iter().position(|entry| entry.name == name).map(|at| entries.remove(at));
                    let others = LinkedNode::Tree(TreeNode::Entries(entries), Vec::new());
                    walk.walk_from(others, visitor, self.monitor)?;
                    return Ok(found.map(|entry| entry.content));
                }
            }
        }
    }
}
