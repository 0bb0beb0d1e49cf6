//! From references in stream order to recipes, trees and the root of a snapshot.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::backup::block::{DirectoryStart, FileEnd, FileStart, Step};
use crate::backup::identify::IdentifyStage;
use crate::backup::unread::Change;
use crate::error::{Error, Result};
use crate::monitor::{Action, Monitor};
use crate::recipe::RecipeBuilder;
use crate::recipe::builder::BuiltRecipe;
use crate::snapshot::{OWNER_NAMES_MAX, Summary};
use crate::store::Store;
use crate::store::cursor::HintedEntry;
use crate::store::manifests::{ManifestBuilder, UsedBytes};
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::{Content, Entry};
use crate::types::{ChunkRef, ContainerId, Fingerprint, SessionId};

/// Builds the tree of a snapshot.
pub(crate) struct Assembler {
    store: Store,
    /// Whose containers are new.
    session: SessionId,
    cut: TreeCut,
    root: TreeBuilder,
    /// Open directories below the root, the innermost last.
    open: Vec<OpenDirectory>,
    recipe: RecipeBuilder,
    file: Option<OpenFile>,
    monitor: Arc<dyn Monitor>,
    /// Takes the containers of files.
    manifest: Arc<ManifestBuilder>,
    /// What was counted.
    pub(crate) summary: Summary,
    /// Things that could not be read.
    pub(crate) failures: u64,
    /// True if entries of the root could not be read.
    is_incomplete: bool,
    owners: Owners,
}

/// Numbers of the owners of entries, at most [`OWNER_NAMES_MAX`] users and as many groups.
#[derive(Clone, Default, Debug)]
pub(crate) struct Owners {
    /// Users.
    pub(crate) users: BTreeSet<u32>,
    /// Groups.
    pub(crate) groups: BTreeSet<u32>,
}

/// A tree that is complete.
#[derive(Clone, Debug)]
pub(crate) struct BuiltTree {
    /// Its root.
    pub(crate) tree: Fingerprint,
    /// What was counted.
    pub(crate) summary: Summary,
    /// Things that could not be read.
    pub(crate) failures: u64,
    /// True if entries of the root could not be read.
    pub(crate) is_incomplete: bool,
    /// Owners of its entries.
    pub(crate) owners: Owners,
}

#[derive(Debug)]
struct OpenDirectory {
    builder: TreeBuilder,
    start: Box<DirectoryStart>,
}

#[derive(Debug)]
struct OpenFile {
    start: Box<FileStart>,
    bytes: u64,
    /// Bytes in containers of this session.
    added: u64,
    /// The containers that it refers to.
    used: UsedBytes,
}

impl std::fmt::Debug for Assembler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler").field("depth", &self.open.len()).finish_non_exhaustive()
    }
}

impl Assembler {
    /// Starts at the root of a snapshot.
    pub(crate) fn new(
        store: &Store,
        session: SessionId,
        monitor: Arc<dyn Monitor>,
        manifest: Arc<ManifestBuilder>,
    ) -> Self {
        let config = &store.config;
        let cut = TreeCut { rule: config.tree_cut, node_bytes: config.tree_node_bytes as usize };
        Self {
            store: store.clone(),
            session,
            cut,
            root: TreeBuilder::new(cut),
            open: Vec::new(),
            recipe: RecipeBuilder::new(config.recipe_cut, config.recipe_inline_max),
            file: None,
            monitor,
            manifest,
            summary: Summary::default(),
            failures: 0,
            is_incomplete: false,
            owners: Owners::default(),
        }
    }

    /// Appends a reference to the open file.
    pub(crate) fn reference(&mut self, reference: ChunkRef, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let ChunkRef { chunk, container } = reference;
        let len = u64::from(chunk.len);
        self.recipe.chunk(chunk, Some(container), sink)?;
        if let Some(file) = &mut self.file {
            file.bytes += len;
            file.used.add(container, chunk.len);
            if container.session == self.session {
                file.added += len;
            }
        }
        self.monitor.advance(len, 0);
        Ok(())
    }

    /// Takes the next step of the walk.
    pub(crate) fn step(&mut self, step: Step, sink: &mut IdentifyStage<'_>) -> Result<()> {
        match step {
            Step::Enter(start) => self.open.push(OpenDirectory { builder: TreeBuilder::new(self.cut), start }),
            Step::Leave => self.leave(sink)?,
            Step::Entry(path, entry) => {
                self.monitor.entry(&path, Action::Other);
                self.push(&entry, &[], sink)?;
            }
            Step::Reused(path, hinted) => self.reuse(&path, &hinted, sink)?,
            Step::File(start) => {
                self.monitor.begin(&start.path);
                self.file = Some(OpenFile { start, bytes: 0, added: 0, used: UsedBytes::default() });
            }
            Step::Hole(len) => {
                self.recipe.hole(len, sink)?;
                if let Some(file) = &mut self.file {
                    file.bytes += len;
                }
                self.monitor.advance(len, 0);
            }
            Step::FileEnd(end) => self.end_file(end, sink)?,
            Step::Failed(path, error) => self.fail(&path, &error),
        }
        Ok(())
    }

    /// Ends the tree and returns its root.
    pub(crate) fn finish(self, sink: &mut IdentifyStage<'_>) -> Result<BuiltTree> {
        assert!(self.open.is_empty(), "the walk leaves every directory that it entered");
        let tree = self.root.finish(&self.store.keys, sink)?;
        let Self { summary, failures, is_incomplete, owners, .. } = self;
        Ok(BuiltTree { tree, summary, failures, is_incomplete, owners })
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        self.failures += 1;
        match self.open.last_mut() {
            Some(directory) => directory.start.entry.notes.is_incomplete = true,
            None => self.is_incomplete = true,
        }
        self.monitor.failure(path, error);
    }

    fn push(&mut self, entry: &Entry, hints: &[Option<ContainerId>], sink: &mut IdentifyStage<'_>) -> Result<()> {
        for (owners, id) in [(&mut self.owners.users, entry.uid), (&mut self.owners.groups, entry.gid)] {
            if owners.len() < OWNER_NAMES_MAX {
                owners.insert(id);
            }
        }
        let builder = self.open.last_mut().map_or(&mut self.root, |directory| &mut directory.builder);
        builder.push(entry, hints, &self.store.keys, sink)
    }

    fn leave(&mut self, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let OpenDirectory { builder, start } = self.open.pop().expect("the walk leaves a directory that it entered");
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

    fn end_file(&mut self, end: FileEnd, sink: &mut IdentifyStage<'_>) -> Result<()> {
        let built = self.recipe.finish(sink)?;
        let OpenFile { start, bytes, added, mut used } = self.file.take().expect("a file begins before it ends");
        match end {
            FileEnd::Whole => {}
            // The repository keeps what was stored of the file. The next reading finds most of it.
            FileEnd::Changed => return Ok(()),
            // A later backup finds what was stored; this snapshot leaves the entry out.
            FileEnd::Failed(error) => {
                self.fail(&start.path, &error);
                return Ok(());
            }
        }
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
        self.manifest.add_all(&mut used);
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
