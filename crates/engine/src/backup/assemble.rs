//! From references in stream order to recipes, trees and the root of a snapshot.

use std::path::Path;
use std::sync::Arc;

use crate::backup::block::{Change, DirectoryStart, FileStart, InputEvent};
use crate::backup::identify::IdentifyStage;
use crate::error::{Error, Result};
use crate::monitor::{Action, Monitor};
use crate::recipe::RecipeBuilder;
use crate::recipe::builder::BuiltRecipe;
use crate::snapshot::Summary;
use crate::store::Store;
use crate::store::cursor::HintedEntry;
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::{Content, Entry};
use crate::types::{ChunkRef, ContainerId, Fingerprint, SessionId};

/// Builds the tree of a snapshot.
pub struct Assembler {
    store: Store,
    /// Whose containers are new.
    session: SessionId,
    cut: TreeCut,
    stack: Vec<OpenDirectory>,
    recipe: RecipeBuilder,
    file: Option<OpenFile>,
    monitor: Arc<dyn Monitor>,
    /// What was counted.
    pub summary: Summary,
    /// Things that could not be read.
    pub failures: u64,
}

/// A tree that is complete.
#[derive(Clone, Copy, Debug)]
pub struct BuiltTree {
    /// Its root.
    pub tree: Fingerprint,
    /// What was counted.
    pub summary: Summary,
    /// Things that could not be read.
    pub failures: u64,
}

#[derive(Debug)]
struct OpenDirectory {
    builder: TreeBuilder,
    /// `None` at the root of the snapshot.
    start: Option<Box<DirectoryStart>>,
}

#[derive(Debug)]
struct OpenFile {
    start: Box<FileStart>,
    bytes: u64,
    /// Bytes in containers of this session.
    added: u64,
}

impl std::fmt::Debug for Assembler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler").field("depth", &self.stack.len()).finish_non_exhaustive()
    }
}

impl Assembler {
    /// Starts at the root of a snapshot.
    pub fn new(store: &Store, session: SessionId, monitor: Arc<dyn Monitor>) -> Self {
        let config = &store.config;
        let cut = TreeCut { rule: config.tree_cut, node_bytes: config.tree_node_bytes as usize };
        Self {
            store: store.clone(),
            session,
            cut,
            stack: vec![OpenDirectory { builder: TreeBuilder::new(cut), start: None }],
            recipe: RecipeBuilder::new(config.recipe_cut, config.recipe_inline_max),
            file: None,
            monitor,
            summary: Summary::default(),
            failures: 0,
        }
    }

    /// Appends a reference to the open file.
    pub fn reference(&mut self, reference: ChunkRef, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let ChunkRef { chunk, container } = reference;
        let len = u64::from(chunk.len);
        self.recipe.chunk(chunk, Some(container), sink)?;
        if let Some(file) = &mut self.file {
            file.bytes += len;
            if container.session == self.session {
                file.added += len;
            }
        }
        self.monitor.advance(len, 0);
        Ok(())
    }

    /// Takes the next step of the walk.
    pub fn step(&mut self, event: InputEvent, sink: &mut IdentifyStage<'_>) -> Result<()> {
        match event {
            InputEvent::Enter(start) => {
                self.stack.push(OpenDirectory { builder: TreeBuilder::new(self.cut), start: Some(start) });
            }
            InputEvent::Leave => self.leave(sink)?,
            InputEvent::Entry(path, entry) => {
                self.monitor.entry(&path, Action::Other);
                self.push(&entry, &[], sink)?;
            }
            InputEvent::Reused(path, hinted) => self.reuse(&path, &hinted, sink)?,
            InputEvent::File(start) => {
                self.monitor.begin(&start.path);
                self.file = Some(OpenFile { start, bytes: 0, added: 0 });
            }
            InputEvent::Hole(len) => {
                self.recipe.hole(len, sink)?;
                if let Some(file) = &mut self.file {
                    file.bytes += len;
                }
                self.monitor.advance(len, 0);
            }
            InputEvent::FileEnd => self.end_file(sink)?,
            InputEvent::FileAgain => {
                // What was stored of it stays: most of it will be found again.
                self.recipe.finish(sink)?;
                self.file = None;
            }
            InputEvent::FileFailed(error) => {
                // What was stored of it stays for a later run to find; the entry is left out.
                self.recipe.finish(sink)?;
                if let Some(file) = self.file.take() {
                    self.fail(&file.start.path, &error);
                }
            }
            InputEvent::Failed(path, error) => self.fail(&path, &error),
            InputEvent::Bytes { .. } | InputEvent::Unread(_) => {
                return Err(Error::invalid("a file that was not read and cut"));
            }
        }
        Ok(())
    }

    /// Ends the tree and returns its root.
    pub fn finish(mut self, sink: &mut IdentifyStage<'_>) -> Result<BuiltTree> {
        match (self.stack.pop(), self.stack.is_empty()) {
            (Some(root), true) => {
                let tree = root.builder.finish(&self.store.keys, sink)?;
                Ok(BuiltTree { tree, summary: self.summary, failures: self.failures })
            }
            _ => Err(Error::invalid("the walk ended inside a directory")),
        }
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        self.failures += 1;
        self.monitor.failure(path, error);
    }

    fn push(&mut self, entry: &Entry, hints: &[Option<ContainerId>], sink: &mut IdentifyStage<'_>) -> Result<()> {
        let top = self.stack.last_mut().ok_or_else(|| Error::invalid("an entry outside of every directory"))?;
        top.builder.push(entry, hints, &self.store.keys, sink)
    }

    fn leave(&mut self, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let Some(OpenDirectory { builder, start: Some(start) }) = self.stack.pop() else {
            return Err(Error::invalid("the walk left a directory that it had not entered"));
        };
        let node = builder.finish(&self.store.keys, sink)?;
        let DirectoryStart { path, mut entry, parent } = *start;
        entry.content = Content::Directory { node };
        let (count, action) = match parent {
            None => (&mut self.summary.dirs_new, Action::New),
            Some(parent) if parent.same_metadata && parent.node == node => {
                (&mut self.summary.dirs_unmodified, Action::Unchanged)
            }
            Some(_) => (&mut self.summary.dirs_changed, Action::Changed),
        };
        *count += 1;
        self.monitor.directory(&path, action);
        self.push(&entry, &[], sink)
    }

    fn reuse(&mut self, path: &Path, hinted: &HintedEntry, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let bytes = hinted.entry.size();
        self.summary.files_unmodified += 1;
        self.count_file(bytes);
        self.monitor.advance(bytes, 1);
        self.monitor.entry(path, Action::Unchanged);
        self.push(&hinted.entry, &hinted.hints, sink)
    }

    fn end_file(&mut self, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let built = self.recipe.finish(sink)?;
        let Some(OpenFile { start, bytes, added }) = self.file.take() else {
            return Err(Error::invalid("the end of a file that had not begun"));
        };
        let FileStart { path, mut entry, change } = *start;
        let BuiltRecipe { recipe, hints } = built;
        if let Content::File { recipe: empty, .. } = &mut entry.content {
            *empty = recipe;
        }
        let action = match change {
            Change::New => {
                self.summary.files_new += 1;
                Action::New
            }
            Change::Changed => {
                self.summary.files_changed += 1;
                Action::Changed
            }
        };
        self.count_file(bytes);
        self.monitor.advance(0, 1);
        self.monitor.added(added);
        self.monitor.entry(&path, action);
        self.push(&entry, &hints, sink)
    }

    fn count_file(&mut self, bytes: u64) {
        self.summary.files_processed += 1;
        self.summary.bytes_processed += bytes;
    }
}
