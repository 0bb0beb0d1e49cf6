//! A tree without some of its paths. Directories that change are built again; everything else is referred to.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::derive::node_stage::{NodeSink, NodeStage};
use crate::error::Result;
use crate::monitor::Monitor;
use crate::source::exclude::Patterns;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::walk::{Event, TreeWalk};
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::{Content, Entry};
use crate::types::{ContainerId, Fingerprint};

/// A tree without some paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RebuiltTree {
    /// Its root.
    pub(crate) tree: Fingerprint,
    /// True if a path was left out.
    pub(crate) is_changed: bool,
    /// Files that it contains.
    pub(crate) files: u64,
    /// Bytes of these files.
    pub(crate) bytes: u64,
}

/// A directory that is being built again.
#[derive(Debug)]
struct Directory {
    /// Its entry; `None` for the root of the tree.
    entry: Option<Entry>,
    /// The root node of its list as it was.
    node: Fingerprint,
    /// Takes the entries that stay; `None` after the last one.
    builder: Option<TreeBuilder>,
    is_changed: bool,
}

/// Builds a tree again.
pub(crate) struct Rebuild<'a> {
    reader: &'a mut MetadataReader,
    stage: Option<&'a mut NodeStage>,
    cut: TreeCut,
    files: u64,
    bytes: u64,
}

impl<'a> Rebuild<'a> {
    /// Prepares to read nodes by `reader` and to store new ones in `stage`; without it nothing is stored.
    pub(crate) fn new(reader: &'a mut MetadataReader, stage: Option<&'a mut NodeStage>) -> Self {
        let config = &reader.store().config;
        let cut = TreeCut { rule: config.tree_cut, node_bytes: config.tree_node_bytes as usize };
        Self { reader, stage, cut, files: 0, bytes: 0 }
    }

    /// Builds a tree without the paths that patterns match. `monitor` gets each of them; what is below a directory that is
    /// left out is not read. Fails if a node cannot be read.
    pub(crate) fn without(
        mut self,
        root: Fingerprint,
        patterns: &[Patterns],
        monitor: &dyn Monitor,
    ) -> Result<RebuiltTree> {
        let mut walk = TreeWalk::new(root, b"", self.directory(None, root));
        let mut top = (root, false);
        while let Some(event) = walk.next(self.reader, monitor)? {
            match event {
                Event::Entry(HintedEntry { entry, hints }) => {
                    let path = Path::new(OsStr::from_bytes(walk.path()));
                    if patterns.iter().any(|patterns| patterns.matches(path)) {
                        monitor.excluded(path);
                        walk.state().expect("an entry is in a directory").is_changed = true;
                    } else if let Content::Directory { node } = entry.content {
                        let directory = self.directory(Some(entry), node);
                        walk.enter(node, directory)?;
                    } else {
                        self.count(&entry);
                        self.push(walk.state().expect("an entry is in a directory"), &entry, &hints)?;
                    }
                }
                Event::Leave => {
                    let left = walk.state().expect("a directory is left before it is gone");
                    let (entry, node) = self.finish(left)?;
                    let is_changed = left.is_changed;
                    let above = walk.levels().iter_mut().nth_back(1);
                    match (entry, above) {
                        (Some(entry), Some(above)) => {
                            above.state.is_changed |= is_changed;
                            let entry = Entry { content: Content::Directory { node }, ..entry };
                            self.push(&mut above.state, &entry, &[])?;
                        }
                        _ => top = (node, is_changed),
                    }
                }
                Event::Unreadable(error) => {
                    return Err(error.context(format!("/{}", walk.relative_path().display())));
                }
            }
        }
        let (tree, is_changed) = top;
        Ok(RebuiltTree { tree, is_changed, files: self.files, bytes: self.bytes })
    }

    fn directory(&self, entry: Option<Entry>, node: Fingerprint) -> Directory {
        Directory { entry, node, builder: Some(TreeBuilder::new(self.cut)), is_changed: false }
    }

    fn count(&mut self, entry: &Entry) {
        if let Content::File { .. } = entry.content {
            self.files += 1;
            self.bytes += entry.size();
        }
    }

    fn push(&mut self, directory: &mut Directory, entry: &Entry, hints: &[Option<ContainerId>]) -> Result<()> {
        let Some(builder) = &mut directory.builder else { return Ok(()) };
        let keys = Arc::clone(&self.reader.store().keys);
        let mut sink = NodeSink { reader: self.reader, stage: self.stage.as_deref_mut() };
        builder.push(entry, hints, &keys, &mut sink)
    }

    /// Ends a directory. Returns its entry and the root node of its list, which is the one before if nothing was left out.
    fn finish(&mut self, directory: &mut Directory) -> Result<(Option<Entry>, Fingerprint)> {
        let builder = directory.builder.take().filter(|_| directory.is_changed);
        let entry = directory.entry.take();
        let Some(builder) = builder else { return Ok((entry, directory.node)) };
        let keys = Arc::clone(&self.reader.store().keys);
        let mut sink = NodeSink { reader: self.reader, stage: self.stage.as_deref_mut() };
        Ok((entry, builder.finish(&keys, &mut sink)?))
    }
}
