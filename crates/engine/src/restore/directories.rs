//! The directories of a restore, made when the first entry in them is restored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Onto};
use crate::monitor::Action;
use crate::restore::decide::keeps_directory_out;
use crate::restore::partial::{
    Leftovers, PARTIAL_NUMBERS_MAX, Partial, make_directory, make_partial, partial_name, publish,
};
use crate::restore::policy::{Effect, Overwrite};
use crate::restore::walk::{Levels, Run};
use crate::store::cursor::DirectoryCursor;

impl Run<'_> {
    /// Returns true if an existing entry that stays is in the way of a directory: of the last of `levels`, which is at `path`
    /// or holds it, or of one above. Then nothing in the directory can be restored.
    pub(super) fn is_blocked(&self, levels: &mut Levels, path: &Path) -> Result<bool> {
        if !matches!(self.request.overwrite, Overwrite::Never | Overwrite::IfNewer) {
            return Ok(false);
        }
        let (mut is_blocked, mut in_fresh) = (false, false);
        for (at, level) in levels.iter_mut().enumerate() {
            is_blocked = match level.state.is_blocked {
                Some(is_blocked) => is_blocked,
                // The root is the target itself, and stands.
                None if is_blocked || in_fresh || at == 0 => is_blocked,
                None => {
                    let directory: PathBuf = path.components().take(at).collect();
                    let Some(existing) = self.target.metadata(&directory)? else { return Ok(false) };
                    let entry = level.state.entry.as_ref();
                    entry.is_some_and(|entry| keeps_directory_out(self.request.overwrite, &existing, entry))
                }
            };
            level.state.is_blocked = Some(is_blocked);
            in_fresh = level.state.is_fresh;
        }
        Ok(is_blocked)
    }

    /// Makes the directories above an entry, once something in them is restored.
    pub(super) fn create_above(&mut self, levels: &mut Levels, path: &Path) -> Result<()> {
        let mut in_fresh = false;
        for at in 0..levels.len() {
            let Some((level, above)) = levels.get_mut(..=at).and_then(|levels| levels.split_last_mut()) else { break };
            if level.state.is_wanted {
                in_fresh = level.state.is_fresh;
                continue;
            }
            // The root is the target itself, so that level N is the first N names of the path.
            let directory: PathBuf = path.components().take(at).collect();
            level.state.is_fresh = in_fresh || self.create_directory(above, &directory)?;
            if in_fresh {
                self.target.create_dir(&directory)?;
            }
            in_fresh = level.state.is_fresh;
            level.state.is_wanted = true;
            self.report.directories += 1;
            self.request.monitor.directory(&Path::new("/").join(&directory), Action::Other);
        }
        Ok(())
    }

    /// Makes a directory, which replaces anything else. Returns true if there was none before.
    fn create_directory(&mut self, above: &Levels, directory: &Path) -> Result<bool> {
        let target = Arc::clone(&self.target);
        match target.metadata(directory)?.map(|existing| existing.kind) {
            None => target.create_dir(directory).map(|()| true),
            // It is kept, and its owner can write into it from now on.
            Some(EntryKind::Directory) => target.create_dir(directory).map(|()| false),
            // Nothing is made, so that no other name is needed.
            Some(_) if self.request.effect == Effect::DryRun => target.remove(directory).map(|()| true),
            // Made under another name first: if that fails, what stands there is still there.
            Some(_) => {
                let partial = self.partial(above, directory)?;
                let make = |path: &Path| make_directory(&*target, path);
                let ((), partial) = make_partial(&*target, directory, partial, make)?;
                publish(&*target, &partial, directory, Onto::Nothing, || target.remove(directory))?;
                Ok(true)
            }
        }
    }

    /// Returns under which name an entry is made before it gets its own. The directories above it are `levels`.
    pub(super) fn partial(&mut self, levels: &Levels, path: &Path) -> Result<Partial> {
        let name = path.file_name().unwrap_or_default();
        for number in 0..PARTIAL_NUMBERS_MAX {
            let leftovers = match self.holds(levels, name, &partial_name(name, number)) {
                Some(true) => continue,
                Some(false) => Leftovers::Removed,
                None => Leftovers::Kept,
            };
            return Ok(Partial { number, leftovers });
        }
        Err(Error::PartialNamesTaken)
    }

    /// Returns whether the snapshot's directory has a name next to that of an entry just handed out; `None` if that cannot
    /// be known.
    fn holds(&mut self, levels: &Levels, entry: &OsStr, name: &OsStr) -> Option<bool> {
        // What is restored alone has no directory.
        let Some(level) = levels.last() else { return Some(false) };
        if entry < name && level.cursor.rules_out(name.as_bytes()) {
            return Some(false);
        }
        let found = DirectoryCursor::new(level.state.node).find(name.as_bytes(), self.reader);
        found.ok().map(|found| found.is_some())
    }
}
