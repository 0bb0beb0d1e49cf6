//! Deleting the entries of a restored directory that the snapshot lacks.
//!
//! This pass follows the restore and visits the directories that both the snapshot and the target have. A name is deleted only
//! if the whole list of its directory could be read from the snapshot and lacks it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata, TargetTree, Trust};
use crate::monitor::Monitor;
use crate::restore::partial::is_partial_name;
use crate::restore::policy::Effect;
use crate::restore::removal::{Outcome, Removal};
use crate::restore::select::{Filter, Root, localize};
use crate::snapshot::Snapshot;
use crate::store::MetadataReader;
use crate::store::walk::{DEPTH_MAX, Event, TreeWalk};
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// Treatment of partial files, which no snapshot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialFiles {
    /// They stay: a restore has just left some, with what could be read.
    Keep,
    /// They are deleted as everything else.
    Delete,
}

/// Request of a deletion.
#[derive(Debug)]
pub struct DeleteRequest<'a> {
    /// The snapshot. Nothing is deleted in a directory that only leads to one of its sources.
    pub snapshot: &'a Snapshot,
    /// The directory of it that was restored.
    pub path: &'a Path,
    /// Patterns of the restore; it deletes only what they select.
    pub filter: &'a Filter,
    /// Target of the restore.
    pub target: &'a dyn TargetTree,
    /// Trust of the restore: a directory in which something was deleted gets its metadata again.
    pub trust: Trust,
    /// Directories that stay with everything in them, by device and inode: the repository that is restored from, and its
    /// index. A backup leaves them out, so that no snapshot has them.
    pub keep: &'a BTreeSet<(u64, u64)>,
    /// Treatment of partial files.
    pub partials: PartialFiles,
    /// True to report only what would be deleted.
    pub dry_run: bool,
    /// Receiver of progress reports.
    pub monitor: &'a Arc<dyn Monitor>,
}

/// Report of a deletion.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeleteReport {
    /// Entries of any kind.
    pub deleted: u64,
    /// Things that went wrong.
    pub(crate) failures: u64,
}

/// Deletes the entries of the target that the snapshot lacks.
///
/// Never follows a link, never leaves the target, never goes into what is mounted inside it. A directory that is not part of a
/// source, and one whose list in the snapshot is not whole or cannot be read in full, keep everything. What the filter leaves out stays, and so do the directories
/// that lead to it.
pub fn delete(reader: &mut MetadataReader, request: &DeleteRequest<'_>) -> Result<DeleteReport> {
    let Root::Directory { node, entry } = Root::find(reader, request.target, (request.snapshot.tree, request.path))?
    else {
        return Err(Error::invalid(format!(
            "{}: not a directory, so that there is nothing to delete next to it",
            request.path.display()
        )));
    };
    let names = request.path.components().filter(|part| matches!(part, Component::Normal(_)));
    let positions = request.snapshot.source_positions();
    let mut run =
        Run { request, reader, positions, above: names.collect(), has_acted: false, report: DeleteReport::default() };
    run.walk(node, entry)?;
    if !run.has_acted {
        request.monitor.note("nothing is deleted: no directory that was restored is part of what was backed up");
    }
    Ok(run.report)
}

struct Run<'a> {
    request: &'a DeleteRequest<'a>,
    reader: &'a mut MetadataReader,
    /// Paths in the tree that the sources stand at.
    positions: BTreeSet<PathBuf>,
    /// Path in the tree of the directory that was restored.
    above: PathBuf,
    /// True if something could be deleted in one of the directories.
    has_acted: bool,
    report: DeleteReport,
}

/// A directory that both sides have.
struct Directory {
    /// Its entry in the snapshot; the root of a snapshot has none.
    entry: Option<Entry>,
    /// The device that it is on.
    device: u64,
    /// Names in the target that did not come up in the snapshot so far, the next one last.
    existing: Vec<OsString>,
    /// Names that the snapshot does not have.
    unexpected: Vec<OsString>,
    /// Reason for which nothing here may be deleted.
    kept_because: Option<Error>,
    /// True if it only leads to sources: its other entries were not backed up.
    leads_only: bool,
    /// True if another file system is mounted here, of which the snapshot has no entry so far.
    is_unseen_mount: bool,
}

impl Run<'_> {
    fn walk(&mut self, root: Fingerprint, entry: Option<Entry>) -> Result<()> {
        let Some(directory) = self.open(Path::new(""), entry, None) else { return Ok(()) };
        let mut walk = TreeWalk::new(root, b"", directory);
        while let Some(event) = walk.next(self.reader, &**self.request.monitor)? {
            let path = walk.relative_path().to_path_buf();
            let Some(directory) = walk.state() else { break };
            match event {
                Event::Entry(mut hinted) => {
                    localize(self.request.target, &mut hinted.entry);
                    let device = directory.device;
                    self.compare(directory, &path, &hinted.entry);
                    if let Content::Directory { node } = hinted.entry.content
                        && self.request.filter.enters(&shown(&path))
                        && walk.levels().len() < DEPTH_MAX
                        && let Some(directory) = self.open(&path, Some(hinted.entry), Some(device))
                    {
                        walk.enter(node, directory)?;
                    }
                }
                Event::Leave => self.leave(directory, &path)?,
                // The names in this part are not known.
                Event::Unreadable(error) => directory.kept_because = Some(error),
            }
        }
        Ok(())
    }

    /// Takes the next entry of a directory of the snapshot, whose names ascend as those of the target do.
    fn compare(&mut self, directory: &mut Directory, path: &Path, entry: &Entry) {
        directory.is_unseen_mount = false;
        if directory.leads_only {
            return;
        }
        let name = OsStr::from_bytes(&entry.name);
        while directory.existing.last().is_some_and(|existing| existing.as_os_str() < name) {
            directory.unexpected.extend(directory.existing.pop());
        }
        if directory.existing.last().is_some_and(|existing| existing == name) {
            directory.existing.pop();
        } else if self.stands(path) {
            // It stands there under a name of other bytes, which must not be taken for something else.
            directory.kept_because = Some(Error::NameListedOtherwise { path: path.to_path_buf() });
        }
    }

    fn stands(&mut self, path: &Path) -> bool {
        match self.request.target.metadata(path) {
            Ok(existing) => existing.is_some(),
            // What cannot be looked at may be there.
            Err(_) => true,
        }
    }

    /// Lists the directory of the target at the path of one of the snapshot; `None` if nothing in it may be deleted. `above` is
    /// the device of the directory that it is in.
    fn open(&mut self, path: &Path, entry: Option<Entry>, above: Option<u64>) -> Option<Directory> {
        let target = self.request.target;
        let leads_only = !self.above.join(path).ancestors().any(|above| self.positions.contains(above));
        let listed = target.metadata(path).and_then(|existing| match existing {
            Some(existing) if existing.kind == EntryKind::Directory && !self.is_kept(&existing) => {
                let names = if leads_only { Ok(Vec::new()) } else { target.list(path) };
                names.map(|names| Some((existing.device, names)))
            }
            Some(_) | None => Ok(None),
        });
        let (device, mut existing) = listed.unwrap_or_else(|error| {
            self.fail(path, &error);
            None
        })?;
        // From the last to the first, so that the next one can be taken off the end.
        existing.sort_unstable_by(|a, b| b.cmp(a));
        self.has_acted |= !leads_only;
        let is_unseen_mount = above.is_some_and(|above| above != device);
        let (unexpected, kept_because) = (Vec::new(), None);
        Some(Directory { entry, device, existing, unexpected, kept_because, leads_only, is_unseen_mount })
    }

    fn leave(&mut self, directory: &mut Directory, path: &Path) -> Result<()> {
        if directory.leads_only {
            return Ok(());
        }
        directory.unexpected.extend(directory.existing.drain(..).rev());
        let keeps_partials = self.request.partials == PartialFiles::Keep;
        let candidates = directory.unexpected.iter().filter(|name| !keeps_partials || !is_partial_name(name));
        let candidates = candidates.map(|name| path.join(name));
        let candidates: Vec<PathBuf> =
            candidates.filter(|candidate| self.request.filter.selects_in_target(&shown(candidate))).collect();
        let is_incomplete =
            directory.entry.as_ref().map_or(self.request.snapshot.is_incomplete, |entry| entry.notes.is_incomplete);
        // A backup that stays on one file system stores the directory empty that another one is mounted on.
        if directory.is_unseen_mount || is_incomplete {
            if !candidates.is_empty() {
                let reason =
                    if is_incomplete { "some of it could not be read" } else { "another file system is mounted there" };
                let shown = self.request.target.display(path);
                self.request.monitor.note(&format!("{shown}: nothing in it is deleted, since {reason}"));
            }
            return Ok(());
        }
        if let Some(reason) = &directory.kept_because {
            // Without candidates there is nothing that is kept because of it.
            if !candidates.is_empty() {
                self.fail(path, &reason.clone().context("nothing in this directory is deleted"));
            }
            return Ok(());
        }
        let before = self.report.deleted;
        for candidate in candidates {
            self.delete_all(candidate, directory.device)?;
        }
        if let Some(entry) = &directory.entry
            && before < self.report.deleted
            && !self.request.dry_run
        {
            self.set_again(path, entry);
        }
        Ok(())
    }

    /// Sets a directory's metadata once more: deleting something in it has changed its time.
    fn set_again(&mut self, path: &Path, entry: &Entry) {
        let set = self.request.target.set_metadata(path, &entry.metadata(), &entry.xattrs, self.request.trust);
        match set {
            Ok(unset) => {
                unset.failures.into_iter().for_each(|reason| self.fail(path, &Error::MetadataUnset { reason }));
            }
            Err(error) => self.fail(path, &error),
        }
    }

    /// Deletes an entry with what is in it, as far as it is selected.
    fn delete_all(&mut self, root: PathBuf, device: u64) -> Result<()> {
        let DeleteRequest { target, filter, keep, monitor, .. } = *self.request;
        let effect = if self.request.dry_run { Effect::DryRun } else { Effect::Write };
        let removal = Removal { target, filter, keep, effect, monitor: &**monitor };
        removal.remove(root, device, &mut |path, outcome| match outcome {
            Outcome::Deleted => {
                self.report.deleted += 1;
                monitor.deleted(&shown(path));
            }
            Outcome::LeftOut | Outcome::Kept => {}
            Outcome::Failed(error) => self.fail(path, &error),
        })
    }

    /// Returns true if a directory stays whatever the snapshot has.
    fn is_kept(&self, existing: &Metadata) -> bool {
        self.request.keep.contains(&(existing.device, existing.inode))
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        self.report.failures += 1;
        self.request.monitor.failure(&shown(path), error);
    }
}

/// Returns a path of the target as filters and people see it.
fn shown(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}
