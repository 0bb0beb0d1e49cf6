//! Removing an entry of the target with all that it holds, one name after the other.
//!
//! Never follows a link, never leaves the target, never goes into what is mounted inside it, and never removes a directory
//! that still holds something.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, TargetTree};
use crate::monitor::Monitor;
use crate::restore::policy::{Effect, FullDirectories};
use crate::restore::select::Filter;
use crate::store::walk::DEPTH_MAX;

/// A removal: its target, and the entries that stay in any case.
pub(super) struct Removal<'a> {
    pub(super) target: &'a dyn TargetTree,
    /// Entries that the filter leaves out stay, and so do the directories that lead to them.
    pub(super) filter: &'a Filter,
    /// Directories that stay with everything in them, by device and inode.
    pub(super) keep: &'a BTreeSet<(u64, u64)>,
    /// Write, or report only.
    pub(super) effect: Effect,
    pub(super) monitor: &'a dyn Monitor,
}

/// Outcome for an entry.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is deleted.
    Deleted,
    /// It stays, since the filter leaves it out.
    LeftOut,
    /// It stays, since it is one of those to be kept.
    Kept,
    /// It stays, since it cannot be deleted.
    Failed(Error),
}

/// Kind of an entry that is to be deleted.
enum Found {
    /// A directory, with the names in it, the next one last.
    Directory(Vec<OsString>),
    /// One that stays.
    Kept,
    /// Anything else.
    Other,
}

/// A directory that is being deleted.
struct Doomed {
    path: PathBuf,
    /// Names in it that are still to be looked at, the next one last.
    names: Vec<OsString>,
    /// True if an entry in it stays, so that it stays as well.
    is_kept: bool,
}

/// Notes that an entry of the innermost directory stays.
fn keep(levels: &mut [Doomed], is_kept: bool) {
    if let Some(level) = levels.last_mut() {
        level.is_kept |= is_kept;
    }
}

impl Removal<'_> {
    /// Removes an entry with what is in it, as far as it is selected and on this device. Reports what becomes of each.
    pub(super) fn remove(&self, root: PathBuf, device: u64, report: &mut dyn FnMut(&Path, Outcome)) -> Result<()> {
        let mut levels: Vec<Doomed> = Vec::new();
        let mut next = Some(root);
        loop {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if let Some(path) = next.take() {
                let outcome = match self.open(&path, device, levels.len()) {
                    Ok(Found::Directory(names)) => {
                        levels.push(Doomed { path, names, is_kept: false });
                        continue;
                    }
                    Ok(Found::Other) => self.remove_one(&path),
                    Ok(Found::Kept) => Outcome::Kept,
                    Err(error) => Outcome::Failed(error),
                };
                keep(&mut levels, !matches!(outcome, Outcome::Deleted));
                report(&path, outcome);
            }
            let Some(level) = levels.last_mut() else { return Ok(()) };
            if let Some(name) = level.names.pop() {
                let below = level.path.join(name);
                if self.filter.selects_in_target(&Path::new("/").join(&below)) {
                    next = Some(below);
                } else {
                    level.is_kept = true;
                    report(&below, Outcome::LeftOut);
                }
            } else if let Some(level) = levels.pop() {
                if level.is_kept {
                    keep(&mut levels, true);
                    continue;
                }
                let outcome = self.remove_one(&level.path);
                keep(&mut levels, !matches!(outcome, Outcome::Deleted));
                report(&level.path, outcome);
            }
        }
    }

    /// Looks at what is to be deleted.
    fn open(&self, path: &Path, device: u64, depth: usize) -> Result<Found> {
        let Some(existing) = self.target.metadata(path)? else { return Ok(Found::Other) };
        if existing.device != device {
            return Err(Error::MountPoint);
        }
        if existing.kind != EntryKind::Directory {
            return Ok(Found::Other);
        }
        if self.keep.contains(&(existing.device, existing.inode)) {
            return Ok(Found::Kept);
        }
        if DEPTH_MAX <= depth {
            return Err(Error::TooDeep { depth_max: DEPTH_MAX, undone: "deleted" });
        }
        let mut names = self.target.list(path)?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Found::Directory(names))
    }

    /// Removes one entry that nothing is in.
    fn remove_one(&self, path: &Path) -> Outcome {
        if self.effect == Effect::DryRun {
            return Outcome::Deleted;
        }
        let above = path.parent().unwrap_or(Path::new(""));
        let mut removed = self.target.remove(path);
        if removed.as_ref().is_err_and(|error| error.io_kind() == Some(ErrorKind::PermissionDenied)) {
            // Its directory may be read-only, and of this user.
            removed = self.target.create_dir(above).and_then(|()| self.target.remove(path));
        }
        match removed {
            Ok(()) => Outcome::Deleted,
            Err(error) if error.io_kind() == Some(ErrorKind::DirectoryNotEmpty) => Outcome::Failed(Error::Refilled),
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// Clears away the directories that other entries replace.
#[derive(Debug)]
pub(super) struct Clearing {
    target: Arc<dyn TargetTree>,
    effect: Effect,
    full: FullDirectories,
    filter: Filter,
    monitor: Arc<dyn Monitor>,
    /// Entries that were in these directories.
    deleted: AtomicU64,
}

impl Clearing {
    pub(crate) fn new(
        target: Arc<dyn TargetTree>,
        effect: Effect,
        full: FullDirectories,
        filter: Filter,
        monitor: Arc<dyn Monitor>,
    ) -> Self {
        Self { target, effect, full, filter, monitor, deleted: AtomicU64::new(0) }
    }

    /// Returns how many entries were deleted from such directories.
    pub(super) fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Returns why a directory cannot make way, if it cannot. Nothing in it is deleted before that is known.
    pub(super) fn obstacle(&self, path: &Path) -> Result<Option<Error>> {
        if self.full == FullDirectories::Keep && !self.target.list(path)?.is_empty() {
            return Ok(Some(Error::FullDirectory));
        }
        self.walk(path, Effect::DryRun, &mut |_| {})
    }

    /// Removes a directory that can make way.
    pub(super) fn clear(&self, path: &Path) -> Result<()> {
        if self.full == FullDirectories::Keep {
            return self.target.remove(path);
        }
        let stays = self.walk(path, self.effect, &mut |below| {
            self.deleted.fetch_add(1, Ordering::Relaxed);
            self.monitor.deleted(&Path::new("/").join(below));
        })?;
        match stays {
            Some(obstacle) => Err(obstacle),
            // Its target remembers that it would be gone.
            None if self.effect == Effect::DryRun => self.target.remove(path),
            None => Ok(()),
        }
    }

    /// Goes through a directory and deletes it, or only tries to. Hands out each entry in it that is deleted, and returns why
    /// something stays, if anything does.
    fn walk(&self, root: &Path, effect: Effect, deleted: &mut dyn FnMut(&Path)) -> Result<Option<Error>> {
        let none = BTreeSet::new();
        let keep = match &self.full {
            FullDirectories::Keep => &none,
            FullDirectories::Delete { keep } => keep,
        };
        let above = self.target.metadata(root.parent().unwrap_or(Path::new("")))?;
        let device = above.map_or(0, |above| above.device);
        let mut stays = None;
        let (target, filter, monitor) = (&*self.target, &self.filter, &*self.monitor);
        let removal = Removal { target, filter, keep, effect, monitor };
        removal.remove(root.to_path_buf(), device, &mut |path, outcome| {
            let shown = self.target.display(path);
            let obstacle = match outcome {
                Outcome::Deleted if path == root => return,
                Outcome::Deleted => return deleted(path),
                Outcome::LeftOut => Error::LeftOut { path: shown },
                Outcome::Kept => Error::Protected { path: shown },
                Outcome::Failed(error) => error.context(shown),
            };
            stays.get_or_insert(obstacle);
        })?;
        Ok(stays.map(|obstacle: Error| obstacle.context("is not restored: the directory that stands there stays")))
    }
}
