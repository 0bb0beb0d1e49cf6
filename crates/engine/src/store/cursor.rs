//! Walking directories and recipes as they are stored, in bounded memory.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::recipe::RecipeItem;
use crate::recipe::format::Recipe;
use crate::store::metadata::MetadataReader;
use crate::tree::{Content, Entry, TreeNode};
use crate::types::{ContainerId, Fingerprint};

/// An entry, with a hint for each chunk of its recipe.
#[derive(Clone, Debug)]
pub struct HintedEntry {
    /// The entry.
    pub entry: Entry,
    /// One for each chunk that stands in the entry itself.
    pub hints: Vec<Option<ContainerId>>,
}

/// Hands out the entries of one directory in the order of their names, holding one node a level.
#[derive(Debug, Default)]
pub struct DirectoryCursor {
    /// Nodes still to be read, the next one last; with the level each must have.
    nodes: Vec<(Fingerprint, Option<u8>)>,
    entries: VecDeque<HintedEntry>,
    last_name: Option<Vec<u8>>,
}

impl DirectoryCursor {
    /// Starts at the root of a directory's list.
    pub fn new(root: Fingerprint) -> Self {
        Self { nodes: vec![(root, None)], ..Self::default() }
    }

    /// Returns the next entry; `None` at the end.
    pub fn next(&mut self, reader: &mut MetadataReader) -> Result<Option<HintedEntry>> {
        loop {
            if let Some(hinted) = self.entries.pop_front() {
                return Ok(Some(hinted));
            }
            let Some((node, level)) = self.nodes.pop() else { return Ok(None) };
            self.read(node, level, reader)?;
        }
    }

    /// Passes over entries whose names come before `name` and returns the one with that name, if there is one. Names must
    /// be asked for in ascending order.
    pub fn find(&mut self, name: &[u8], reader: &mut MetadataReader) -> Result<Option<HintedEntry>> {
        while let Some(hinted) = self.next(reader)? {
            match hinted.entry.name.as_slice().cmp(name) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(hinted)),
                std::cmp::Ordering::Greater => {
                    self.entries.push_front(hinted);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Returns true if what has been read so far shows that no entry after the last one handed out has this name.
    pub fn rules_out(&self, name: &[u8]) -> bool {
        match self.entries.binary_search_by(|hinted| hinted.entry.name.as_slice().cmp(name)) {
            Ok(_) => false,
            Err(at) => at < self.entries.len() || self.nodes.is_empty(),
        }
    }

    fn read(&mut self, node: Fingerprint, expected: Option<u8>, reader: &mut MetadataReader) -> Result<()> {
        let wrong = |reason: &str| Error::damaged(format!("tree {node}"), reason);
        match reader.read_node(node)? {
            (TreeNode::Children { level, children }, _) => {
                if expected.is_some_and(|expected| expected != level) {
                    return Err(wrong("stands at a wrong level"));
                }
                self.nodes.extend(children.into_iter().rev().map(|child| (child.node, Some(level - 1))));
            }
            (TreeNode::Entries(entries), hints) => {
                if expected.is_some_and(|expected| expected != 0) {
                    return Err(wrong("stands at a wrong level"));
                }
                let mut hints = hints.into_iter();
                for entry in entries {
                    if self.last_name.as_ref().is_some_and(|last| entry.name <= *last) {
                        return Err(wrong("names not in order"));
                    }
                    self.last_name = Some(entry.name.clone());
                    let count = match &entry.content {
                        Content::File { recipe, .. } => recipe.chunk_count(),
                        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => 0,
                    };
                    let hints = hints.by_ref().take(count).collect();
                    self.entries.push_back(HintedEntry { entry, hints });
                }
            }
        }
        Ok(())
    }
}

/// One step of a file's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A chunk, and where it probably is.
    Chunk {
        /// Its name.
        fingerprint: Fingerprint,
        /// Its length.
        len: u32,
        /// Where it was when the reference was written.
        hint: Option<ContainerId>,
    },
    /// Zeros that were never stored.
    Hole {
        /// How many.
        len: u64,
    },
}

/// Hands out the contents of one file in order, holding one segment a level.
#[derive(Debug)]
pub struct RecipeCursor {
    /// Open lists, the lowest level last.
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// 0 for chunks.
    height: u8,
    items: VecDeque<RecipeItem>,
    hints: VecDeque<Option<ContainerId>>,
}

impl RecipeCursor {
    /// Starts at the beginning of a file.
    pub fn new(recipe: &Recipe, hints: &[Option<ContainerId>]) -> Self {
        Self { levels: vec![Level::new(recipe.level, recipe.items.clone(), hints.to_vec())] }
    }

    /// Returns the next piece; `None` at the end.
    pub fn next(&mut self, reader: &mut MetadataReader) -> Result<Option<Piece>> {
        loop {
            let Some(open) = self.levels.last_mut() else { return Ok(None) };
            let level = open.height;
            match open.items.pop_front() {
                None => {
                    self.levels.pop();
                }
                Some(RecipeItem::Chunk { fingerprint, len }) => {
                    let hint = open.hints.pop_front().flatten();
                    return Ok(Some(Piece::Chunk { fingerprint, len, hint }));
                }
                Some(RecipeItem::Hole { len }) => return Ok(Some(Piece::Hole { len })),
                Some(RecipeItem::Segment { fingerprint, len }) => {
                    let (recipe, hints) = reader.read_segment(fingerprint)?;
                    if recipe.level + 1 != level || recipe.len() != len {
                        return Err(Error::damaged(
                            format!("recipe {fingerprint}"),
                            "is not of the level or length that refers to it",
                        ));
                    }
                    self.levels.push(Level::new(recipe.level, recipe.items, hints));
                }
            }
        }
    }
}

impl Level {
    fn new(level: u8, items: Vec<RecipeItem>, hints: Vec<Option<ContainerId>>) -> Self {
        Self { height: level, items: items.into(), hints: hints.into() }
    }
}
