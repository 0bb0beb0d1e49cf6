//! The references of nodes, for those who follow all of them and need no paths.

use crate::codec::Decoded;
use crate::error::Result;
use crate::recipe::{Recipe, RecipeItem, decode_hints, decode_segment};
use crate::store::metadata::{HintedNode, MetadataReader};
use crate::tree::{Child, Content, TreeNode, decode_node};
use crate::types::{Chunk, ChunkKind, ContainerId, Fingerprint};

/// A reference to a node of a tree or to a segment of a recipe, with what it says of it.
#[derive(Clone, Debug)]
pub(crate) enum NodeLink {
    /// The root node of a directory's list.
    Directory(Fingerprint),
    /// A part of a directory's list.
    Child(Child),
    /// A recipe segment.
    Segment {
        /// Its name.
        fingerprint: Fingerprint,
        /// Bytes of the stream that it stands for.
        len: u64,
        /// Its level.
        level: u8,
    },
}

/// A reference of a node.
#[derive(Debug)]
pub(crate) enum Reference {
    /// To a node below.
    Node(NodeLink),
    /// To a data chunk, with its hint.
    Chunk(Chunk, Option<ContainerId>),
}

/// A node, with a hint for each chunk that it refers to.
#[derive(Debug)]
pub(crate) enum LinkedNode {
    /// A node of a tree.
    Tree(TreeNode, Vec<Option<ContainerId>>),
    /// A recipe segment.
    Segment(Recipe, Vec<Option<ContainerId>>),
}

impl NodeLink {
    /// Returns the name of the node.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Directory(node) => *node,
            Self::Child(child) => child.node,
            Self::Segment { fingerprint, .. } => *fingerprint,
        }
    }

    /// Returns what the node's chunk holds.
    pub(crate) fn kind(&self) -> ChunkKind {
        match self {
            Self::Directory(_) | Self::Child(_) => ChunkKind::Tree,
            Self::Segment { .. } => ChunkKind::Recipe,
        }
    }
}

impl MetadataReader {
    /// Reads a node of a tree or a recipe segment.
    pub(crate) fn read_linked(&mut self, kind: ChunkKind, node: Fingerprint) -> Result<LinkedNode> {
        if kind == ChunkKind::Recipe {
            let (recipe, hints) = self.read_segment(node)?;
            return Ok(LinkedNode::Segment(recipe, hints));
        }
        let HintedNode { node, hints, .. } = self.read_node(node)?;
        Ok(LinkedNode::Tree(node, hints))
    }
}

impl LinkedNode {
    /// Reads a node or segment from its contents. Hints that make no sense are none.
    pub(crate) fn decode(kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Decoded<Self> {
        let hints_of = |count| decode_hints(hints, count).unwrap_or_else(|_| vec![None; count]);
        if kind == ChunkKind::Recipe {
            let recipe = decode_segment(contents)?;
            let hints = hints_of(recipe.chunk_count());
            return Ok(Self::Segment(recipe, hints));
        }
        let node = decode_node(contents)?;
        let hints = hints_of(node.chunk_count());
        Ok(Self::Tree(node, hints))
    }

    /// Passes on the references of the node in their order.
    pub(crate) fn each_reference(self, each: &mut dyn FnMut(Reference) -> Result<()>) -> Result<()> {
        match self {
            Self::Segment(recipe, hints) => each_of_recipe(&recipe, &mut hints.into_iter(), each),
            Self::Tree(TreeNode::Children { children, .. }, _) => {
                children.into_iter().try_for_each(|child| each(Reference::Node(NodeLink::Child(child))))
            }
            Self::Tree(TreeNode::Entries(entries), hints) => {
                let mut hints = hints.into_iter();
                entries.into_iter().try_for_each(|entry| match entry.content {
                    Content::File { recipe, .. } => each_of_recipe(&recipe, &mut hints, each),
                    Content::Directory { node } => each(Reference::Node(NodeLink::Directory(node))),
                    Content::Symlink { .. } | Content::Special { .. } => Ok(()),
                })
            }
        }
    }
}

fn each_of_recipe(
    recipe: &Recipe,
    hints: &mut dyn Iterator<Item = Option<ContainerId>>,
    each: &mut dyn FnMut(Reference) -> Result<()>,
) -> Result<()> {
    for item in &recipe.items {
        match *item {
            RecipeItem::Hole { .. } => {}
            RecipeItem::Chunk(chunk) => each(Reference::Chunk(chunk, hints.next().flatten()))?,
            RecipeItem::Segment { fingerprint, len } => {
                // The decoder lets segments stand above level 0 only.
                let level = recipe.level.saturating_sub(1);
                each(Reference::Node(NodeLink::Segment { fingerprint, len, level }))?;
            }
        }
    }
    Ok(())
}
