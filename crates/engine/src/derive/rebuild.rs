//! A tree with changes: without some of its paths, or without what is lost. Directories that change are built again; everything else is referred to.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::derive::RewriteOptions;
use crate::derive::node_stage::{NodeSink, NodeStage};
use crate::error::{Error, Result};
use crate::io::tree::EntryKind;
use crate::monitor::Monitor;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::walk::{Event, TreeWalk};
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// A tree that was built again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RebuiltTree {
    /// Its root.
    pub(crate) tree: Fingerprint,
    /// True if anything is not as it was.
    pub(crate) is_changed: bool,
    /// Entries in its root.
    pub(crate) entries: u64,
    /// Files that it contains.
    pub(crate) files: u64,
    /// Bytes of these files.
    pub(crate) bytes: u64,
    /// True if its root lacks entries that are lost.
    pub(crate) is_incomplete: bool,
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
    /// Entries under new names, until those before them have come.
    held: BTreeMap<Vec<u8>, HintedEntry>,
    /// Entries that stay.
    entries: u64,
    /// True if the list differs from what it was.
    is_changed: bool,
    /// True if a part of the list cannot be read.
    is_cut: bool,
    /// True if it lacks entries that are lost, or has them under other names.
    is_incomplete: bool,
}

/// Changes to the entries of a tree that is built again.
pub(crate) trait TreeEdit {
    /// Decides about an entry. `sink` stores new recipe segments.
    fn entry(&mut self, path: &Path, hinted: HintedEntry, sink: &mut NodeSink<'_>) -> Result<Edited>;
    /// Takes the path of a directory a part of which cannot be read. The error that this returns ends the work.
    fn unreadable(&mut self, path: &Path, error: Error) -> Result<()>;
    /// Takes the path of a directory with such a part, and the number of its entries that stay. Without entries it is left out.
    fn cut(&mut self, _path: &Path, _entries: u64) {}
    /// Returns true if a directory without entries is left out.
    fn drops_empty(&self, _path: &Path) -> bool {
        false
    }
}

/// Outcomes of [`TreeEdit::entry`].
#[derive(Debug)]
pub(crate) enum Edited {
    /// It stays. A directory is entered.
    Kept(HintedEntry),
    /// This takes its place. Its name is the same, or the same with more bytes at its end. It is no directory.
    Changed(HintedEntry),
    /// It is left out, with all below it.
    LeftOut,
}

/// Leaves the paths out that a rewrite leaves out. Fails if a node cannot be read.
#[derive(Debug)]
pub(crate) struct Without<'a> {
    /// The changes.
    pub(crate) changes: &'a RewriteOptions,
    /// Receiver of the paths.
    pub(crate) monitor: &'a dyn Monitor,
}

impl TreeEdit for Without<'_> {
    fn entry(&mut self, path: &Path, hinted: HintedEntry, _: &mut NodeSink<'_>) -> Result<Edited> {
        let RewriteOptions { only, patterns, .. } = self.changes;
        let is_directory = hinted.entry.kind == EntryKind::Directory;
        let stays = only.is_empty()
            || only.iter().any(|list| list.matches(path, is_directory) || (is_directory && list.reaches(path)));
        if stays && !patterns.iter().any(|list| list.matches(path, is_directory)) {
            return Ok(Edited::Kept(hinted));
        }
        self.monitor.excluded(path);
        Ok(Edited::LeftOut)
    }

    fn unreadable(&mut self, path: &Path, error: Error) -> Result<()> {
        Err(error.context(path.display()))
    }

    fn drops_empty(&self, path: &Path) -> bool {
        let only = &self.changes.only;
        !only.is_empty() && !only.iter().any(|list| list.matches(path, true))
    }
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

    /// Builds a tree again, with the changes of `edit`. What is below a directory that is left out is not read.
    pub(crate) fn with(
        mut self,
        root: Fingerprint,
        edit: &mut dyn TreeEdit,
        monitor: &dyn Monitor,
    ) -> Result<RebuiltTree> {
        let mut walk = TreeWalk::new(root, b"", self.directory(None, root));
        let mut top =
            RebuiltTree { tree: root, is_changed: false, entries: 0, files: 0, bytes: 0, is_incomplete: false };
        while let Some(event) = walk.next(self.reader, monitor)? {
            let path = if walk.path().is_empty() { b"/".as_slice() } else { walk.path() };
            let path = PathBuf::from(OsStr::from_bytes(path));
            let innermost = walk.state().expect("an event is in a directory");
            match event {
                Event::Entry(hinted) => {
                    let mut sink = NodeSink { reader: self.reader, stage: self.stage.as_deref_mut() };
                    match edit.entry(&path, hinted, &mut sink)? {
                        Edited::LeftOut => innermost.is_changed = true,
                        Edited::Changed(hinted) => {
                            (innermost.is_changed, innermost.is_incomplete) = (true, true);
                            self.count(&hinted.entry);
                            self.hold(innermost, hinted)?;
                        }
                        Edited::Kept(HintedEntry { entry, .. }) if let Content::Directory { node } = entry.content => {
                            let directory = self.directory(Some(entry), node);
                            walk.enter(node, directory)?;
                        }
                        Edited::Kept(hinted) => {
                            self.count(&hinted.entry);
                            self.append(innermost, &hinted)?;
                        }
                    }
                }
                Event::Leave => {
                    self.release(innermost, None)?;
                    let (entries, is_cut) = (innermost.entries, innermost.is_cut);
                    if is_cut {
                        edit.cut(&path, entries);
                    }
                    let is_left_out = entries == 0 && innermost.entry.is_some() && (is_cut || edit.drops_empty(&path));
                    innermost.is_changed |= is_left_out;
                    let left = if is_left_out { None } else { Some(self.finish(innermost)?) };
                    let (is_changed, is_incomplete) = (innermost.is_changed, innermost.is_incomplete);
                    let mut above = walk.levels().iter_mut().nth_back(1).map(|level| &mut level.state);
                    if let Some(above) = &mut above {
                        above.is_changed |= is_changed;
                        above.is_incomplete |= is_left_out;
                    }
                    match (left, above) {
                        (Some((Some(entry), node)), Some(above)) => {
                            let mut entry = Entry { content: Content::Directory { node }, ..entry };
                            entry.notes.is_incomplete |= is_incomplete;
                            self.append(above, &HintedEntry { entry, hints: Vec::new() })?;
                        }
                        (Some((_, node)), _) => {
                            top = RebuiltTree { tree: node, is_changed, entries, is_incomplete, ..top }
                        }
                        (None, _) => {}
                    }
                }
                Event::Unreadable(error) => {
                    edit.unreadable(&path, error)?;
                    (innermost.is_cut, innermost.is_changed, innermost.is_incomplete) = (true, true, true);
                }
            }
        }
        Ok(RebuiltTree { files: self.files, bytes: self.bytes, ..top })
    }

    fn directory(&self, entry: Option<Entry>, node: Fingerprint) -> Directory {
        Directory {
            entry,
            node,
            builder: Some(TreeBuilder::new(self.cut)),
            held: BTreeMap::new(),
            entries: 0,
            is_changed: false,
            is_cut: false,
            is_incomplete: false,
        }
    }

    fn count(&mut self, entry: &Entry) {
        if let Content::File { .. } = entry.content {
            self.files += 1;
            self.bytes += entry.size();
        }
    }

    /// Holds an entry until those have come whose names are before its own. These begin with the name that it had, so that
    /// few entries are held.
    fn hold(&mut self, directory: &mut Directory, hinted: HintedEntry) -> Result<()> {
        self.release(directory, Some(&hinted.entry.name))?;
        match directory.held.insert(hinted.entry.name.clone(), hinted) {
            None => Ok(()),
            Some(HintedEntry { entry, .. }) => Err(taken(&entry.name)),
        }
    }

    /// Appends an entry, after held ones with names before its own.
    fn append(&mut self, directory: &mut Directory, hinted: &HintedEntry) -> Result<()> {
        self.release(directory, Some(&hinted.entry.name))?;
        if directory.held.contains_key(&hinted.entry.name) {
            return Err(taken(&hinted.entry.name));
        }
        self.push(directory, hinted)
    }

    /// Appends the held entries with names before this one, or all.
    fn release(&mut self, directory: &mut Directory, before: Option<&[u8]>) -> Result<()> {
        while let Some(held) = directory.held.first_entry()
            && before.is_none_or(|name| held.key().as_slice() < name)
        {
            let hinted = held.remove();
            self.push(directory, &hinted)?;
        }
        Ok(())
    }

    fn push(&mut self, directory: &mut Directory, HintedEntry { entry, hints }: &HintedEntry) -> Result<()> {
        directory.entries += 1;
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

fn taken(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::invalid(format!("two files of a directory would have the name `{name}`: choose another suffix"))
}
