//! A target for dry runs: it shows the entries of the real one and changes nothing.
//!
//! The passes of a restore run over it as over the real target, so that both decide alike. It remembers the removed paths,
//! since a restore would find nothing below them. No pass looks at anything else that a restore makes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Identity, Metadata, Onto, Renamed, TargetFile, TargetTree, Trust, Unset, Xattr};

/// The target of a dry run.
#[derive(Debug)]
pub(super) struct DryRunTarget {
    real: Arc<dyn TargetTree>,
    /// Paths that a restore would have removed.
    removed: Mutex<BTreeSet<PathBuf>>,
}

impl DryRunTarget {
    /// Shows the entries of the target.
    pub(crate) fn of(real: Arc<dyn TargetTree>) -> Self {
        Self { real, removed: Mutex::default() }
    }

    /// Returns true if the path, or a directory above it, would have been removed.
    fn is_removed(&self, path: &Path) -> bool {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        !removed.is_empty() && path.ancestors().any(|above| removed.contains(above))
    }
}

impl TargetTree for DryRunTarget {
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        if self.is_removed(path) {
            return Ok(None);
        }
        match self.real.metadata(path) {
            // A directory above it would have been made.
            Err(error) if error.io_kind() == Some(ErrorKind::NotFound) => Ok(None),
            found => found,
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        if self.is_removed(path) { Ok(Vec::new()) } else { self.real.list(path) }
    }

    fn create_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn create_file(&self, _: &Path) -> Result<Box<dyn TargetFile>> {
        unreachable!("a dry run has no writer of files")
    }

    fn open_file(&self, _: &Path) -> Result<Box<dyn TargetFile>> {
        unreachable!("a dry run has no partial files")
    }

    fn open_to_read(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        if self.is_removed(path) {
            return Err(Error::io("open", path, ErrorKind::NotFound.into()));
        }
        self.real.open_to_read(path)
    }

    fn create_symlink(&self, _: &Path, _: &OsStr) -> Result<()> {
        Ok(())
    }

    fn create_special(&self, _: &Path, _: EntryKind, _: u64) -> Result<()> {
        Ok(())
    }

    fn hard_link(&self, _: &Path, _: &Path) -> Result<()> {
        Ok(())
    }

    fn rename(&self, _: &Path, _: &Path, _: Option<Identity>, _: Onto) -> Result<Renamed> {
        Ok(Renamed::Done)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_path_buf());
        Ok(())
    }

    fn set_metadata(&self, _: &Path, _: &Metadata, _: &[Xattr], _: Trust) -> Result<Unset> {
        Ok(Unset::default())
    }

    fn folds_case(&self) -> Result<bool> {
        self.real.folds_case()
    }

    fn local_owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        self.real.local_owner(uid, gid)
    }

    fn user(&self) -> u32 {
        self.real.user()
    }

    fn display(&self, path: &Path) -> String {
        self.real.display(path)
    }
}
