//! A target that discards everything, to test whether and how fast a snapshot can be restored.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Identity, Metadata, Onto, Renamed, TargetFile, TargetTree, Trust, Unset, Xattr};

/// A target that is always empty: a restore finds nothing in it to overwrite, compare or remove.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiscardTarget {
    /// Result of [`TargetTree::folds_case`].
    pub folds_case: bool,
}

/// A file of the target.
#[derive(Clone, Copy, Debug, Default)]
struct DiscardFile;

fn kept_nothing() -> Error {
    Error::invalid("what is restored is discarded, and cannot be read back")
}

impl TargetTree for DiscardTarget {
    fn metadata(&self, _: &Path) -> Result<Option<Metadata>> {
        Ok(None)
    }

    fn list(&self, _: &Path) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    fn create_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn create_file(&self, _: &Path) -> Result<Box<dyn TargetFile>> {
        Ok(Box::new(DiscardFile))
    }

    fn open_file(&self, _: &Path) -> Result<Box<dyn TargetFile>> {
        Ok(Box::new(DiscardFile))
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

    fn remove(&self, _: &Path) -> Result<()> {
        Err(kept_nothing())
    }

    fn rename(&self, _: &Path, _: &Path, _: Option<Identity>, _: Onto) -> Result<Renamed> {
        Ok(Renamed::Done)
    }

    fn set_metadata(&self, _: &Path, _: &Metadata, _: &[Xattr], _: Trust) -> Result<Unset> {
        Ok(Unset::default())
    }

    fn folds_case(&self) -> Result<bool> {
        Ok(self.folds_case)
    }
}

impl TargetFile for DiscardFile {
    fn len(&self) -> Result<u64> {
        Err(kept_nothing())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(kept_nothing())
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn set_metadata(&self, _: &Metadata, _: &[Xattr], _: Trust) -> Result<Unset> {
        Ok(Unset::default())
    }

    fn identity(&self) -> Result<Identity> {
        Ok(Identity { device: 0, inode: 0 })
    }

    fn try_lock(&self) -> Result<bool> {
        Ok(true)
    }

    fn report_close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_accepted_and_cannot_be_read_back() {
        let target: &dyn TargetTree = &DiscardTarget::default();
        target.create_dir(Path::new("a")).unwrap();
        let file = target.create_file(Path::new("a/b")).unwrap();
        file.write_at(1 << 40, b"abc").unwrap();
        assert!(file.read_at(0, &mut [0; 3]).is_err() && file.len().is_err());
        assert_eq!(target.list(Path::new("")).unwrap(), Vec::<OsString>::new());
        assert_eq!(target.metadata(Path::new("a")).unwrap(), None);
        assert!(target.remove(Path::new("a")).is_err());
    }
}
