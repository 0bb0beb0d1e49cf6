//! The walk of a restore over its part of a snapshot's tree, once for each pass.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, TargetTree, Unset};
use crate::restore::files::FileWriter;
use crate::restore::links::FirstPaths;
use crate::restore::policy::Overwrite;
use crate::restore::removal::Clearing;
use crate::restore::request::{RestoreReport, RestoreRequest};
use crate::restore::select::{Root, localize};
use crate::restore::writing::is_fatal_at;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::walk::{Event, Level, TreeWalk};
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// A restore under way.
pub(super) struct Run<'a> {
    pub(super) request: &'a RestoreRequest<'a>,
    /// Target of the passes.
    pub(super) target: Arc<dyn TargetTree>,
    pub(super) reader: &'a mut MetadataReader,
    pub(super) writer: Option<FileWriter>,
    /// First path restored of each inode that several names share.
    pub(super) links: FirstPaths,
    /// True if a further name of an inode is to be linked once all files are whole.
    pub(super) has_links: bool,
    /// True if the target does not distinguish upper and lower case.
    pub(super) folds_case: bool,
    pub(super) clearing: Arc<Clearing>,
    /// Names of shared inodes that a directory keeps from being restored.
    pub(super) obstructed_names: u64,
    pub(super) report: RestoreReport,
}

/// State of a directory on the path of the walk.
pub(crate) struct Directory {
    pub(super) node: Fingerprint,
    /// The directory's own entry; `None` at the root.
    pub(super) entry: Option<Entry>,
    /// True if an existing entry that stays is in its way; `None` before the first look.
    pub(super) is_blocked: Option<bool>,
    /// True if it has been created, or found to hold something that is restored.
    pub(super) is_wanted: bool,
    /// True if it was empty before, so that no lookup of existing entries is needed.
    pub(super) is_fresh: bool,
    /// Names so far, in lower case, where the target cannot tell them apart.
    folded: BTreeSet<String>,
}

impl Directory {
    fn new(node: Fingerprint, entry: Option<Entry>) -> Self {
        let (is_wanted, is_fresh, folded) = (false, false, BTreeSet::new());
        Self { node, entry, is_blocked: None, is_wanted, is_fresh, folded }
    }

    /// Takes note of a name. Returns true if another one differs from it in its case only.
    fn is_folded(&mut self, entry: &Entry) -> bool {
        !self.folded.insert(String::from_utf8_lossy(&entry.name).to_lowercase())
    }
}

/// Directories from the root to the innermost.
pub(super) type Levels = [Level<Directory>];

/// One pass over the selected entries. Each method gets the directories down to the entry, and its path.
pub(super) trait Visitor {
    /// Returns true if no other pass goes before this one.
    fn is_first(&self) -> bool {
        false
    }
    /// Handles a selected entry that is no directory.
    fn entry(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path, hinted: HintedEntry) -> Result<()>;
    /// Handles a selected directory, the last of `levels`, before its entries.
    fn enter(&mut self, _run: &mut Run<'_>, _levels: &mut Levels, _path: &Path) -> Result<()> {
        Ok(())
    }
    /// Handles the end of a directory, the last of `levels`, that is wanted and has an entry.
    fn leave(&mut self, _run: &mut Run<'_>, _levels: &mut Levels, _path: &Path) -> Result<()> {
        Ok(())
    }
}

impl Run<'_> {
    pub(super) fn fail(&mut self, path: &Path, error: &Error) {
        self.report.failures += 1;
        self.request.monitor.failure(&Path::new("/").join(path), error);
    }

    /// Reports what every pass over the tree comes across, in the first one only.
    fn fail_once(&mut self, visitor: &dyn Visitor, path: &Path, error: &Error) {
        if visitor.is_first() {
            self.fail(path, error);
        }
    }

    /// Counts what could not be set, and reports what should have been.
    pub(super) fn take_unset(&mut self, path: &Path, unset: Unset) {
        unset.omissions.into_iter().for_each(|kind| self.report.omissions.add(kind, path));
        for reason in unset.failures {
            self.fail(path, &Error::MetadataUnset { reason });
        }
    }

    pub(super) fn visit(&mut self, root: &Root, visitor: &mut dyn Visitor) -> Result<()> {
        match root {
            Root::Directory { node, entry } => self.walk(*node, entry.clone(), visitor),
            Root::Single(hinted) => {
                let path = PathBuf::from(OsStr::from_bytes(&hinted.entry.name));
                if !self.request.filter.selects(&Path::new("/").join(&path), false) {
                    return Ok(());
                }
                self.tolerate(&path, |run| visitor.entry(run, &mut [], &path, (**hinted).clone()))
            }
        }
    }

    /// Remembers the files that turned out to be not whole and that other names share.
    pub(super) fn take_incomplete_links(&mut self) -> Result<()> {
        let links = self.writer.as_mut().map_or(Vec::new(), FileWriter::take_incomplete_links);
        links.into_iter().try_for_each(|link| self.links.mark_incomplete(link))
    }

    /// Walks a tree. Paths are relative to the target.
    fn walk(&mut self, root: Fingerprint, entry: Option<Entry>, visitor: &mut dyn Visitor) -> Result<()> {
        // The target itself stands. It gets the metadata of the directory that is restored into it if that, or something in
        // it, is selected.
        let is_wanted = visitor.is_first() || self.request.filter.selects(Path::new("/"), true);
        let is_fresh = self.request.overwrite == Overwrite::Refuse;
        let mut walk = TreeWalk::new(root, b"", Directory { is_wanted, is_fresh, ..Directory::new(root, entry) });
        while let Some(event) = walk.next(self.reader, &*self.request.monitor)? {
            match event {
                Event::Entry(hinted) => self.step(&mut walk, hinted, visitor)?,
                Event::Leave => self.leave(&mut walk, visitor)?,
                Event::Unreadable(error) => self.fail_once(&*visitor, walk.relative_path(), &error),
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        walk: &mut TreeWalk<Directory>,
        mut hinted: HintedEntry,
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        localize(&*self.target, &mut hinted.entry);
        let path = &walk.relative_path().to_path_buf();
        let shown = Path::new("/").join(path);
        if self.folds_case && walk.state().is_some_and(|directory| directory.is_folded(&hinted.entry)) {
            self.fail_once(&*visitor, path, &Error::NameFolded);
            return Ok(());
        }
        let selected = self.request.filter.selects(&shown, hinted.entry.kind == EntryKind::Directory);
        match &hinted.entry.content {
            Content::Directory { node } => {
                if !self.request.filter.enters(&shown) {
                    return Ok(());
                }
                match walk.enter(*node, Directory::new(*node, Some(hinted.entry.clone()))) {
                    Ok(()) if selected => self.tolerate(path, |run| visitor.enter(run, walk.levels(), path))?,
                    Ok(()) => {}
                    Err(error) => self.fail_once(&*visitor, path, &error),
                }
            }
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => {
                if selected {
                    self.tolerate(path, |run| visitor.entry(run, walk.levels(), path, hinted))?;
                }
            }
        }
        Ok(())
    }

    /// Reports what fails for one entry and goes on; what fails for all ends the restore.
    fn tolerate(&mut self, path: &Path, visit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match visit(self) {
            Err(error) if is_fatal_at(&*self.target, path, &error) => Err(error),
            Err(error) => {
                self.fail(path, &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn leave(&mut self, walk: &mut TreeWalk<Directory>, visitor: &mut dyn Visitor) -> Result<()> {
        let path = &walk.relative_path().to_path_buf();
        let levels = walk.levels();
        if levels.last().is_some_and(|level| level.state.is_wanted && level.state.entry.is_some()) {
            if let [.., above, _] = levels {
                above.state.is_wanted = true;
            }
            self.tolerate(path, |run| visitor.leave(run, levels, path))?;
        }
        Ok(())
    }

    /// Counts an existing entry that stays, or an entry of the snapshot that it blocks.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.report.files_skipped += 1;
        self.report.bytes_skipped += bytes;
        self.request.monitor.advance(bytes, 1);
    }
}
