//! A target of which one call fails, whatever it is.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onefold_engine::io::tree::{
    EntryKind, Identity, Metadata, Onto, Renamed, TargetFile, TargetTree, Trust, Unset, Xattr,
};
use onefold_engine::{Error, Result};

/// Counts calls, and fails one of them.
#[derive(Debug)]
struct Calls {
    made: AtomicU64,
    /// Number of the call that fails, counted from 1, and the code of its error.
    fails: Option<(u64, i32)>,
}

impl Calls {
    fn next(&self, operation: &'static str) -> Result<()> {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        match self.fails {
            Some((failing, code)) if failing == number => {
                Err(Error::io(operation, Path::new("injected"), io::Error::from_raw_os_error(code)))
            }
            _ => Ok(()),
        }
    }
}

/// The target, around another one.
#[derive(Clone, Debug)]
pub(crate) struct FaultyTarget {
    inner: Arc<dyn TargetTree>,
    calls: Arc<Calls>,
}

#[derive(Debug)]
struct FaultyFile {
    inner: Box<dyn TargetFile>,
    calls: Arc<Calls>,
}

impl FaultyTarget {
    /// Lets the numbered call fail with the error of this code.
    pub(crate) fn new(inner: Arc<dyn TargetTree>, fails: Option<(u64, i32)>) -> Self {
        Self { inner, calls: Arc::new(Calls { made: AtomicU64::new(0), fails }) }
    }

    /// Returns how many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.made.load(Ordering::Relaxed)
    }

    fn file(&self, inner: Box<dyn TargetFile>) -> Box<dyn TargetFile> {
        Box::new(FaultyFile { inner, calls: Arc::clone(&self.calls) })
    }
}

impl TargetTree for FaultyTarget {
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.calls.next("metadata")?;
        self.inner.metadata(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        self.calls.next("list")?;
        self.inner.list(path)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.calls.next("create directory")?;
        self.inner.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.calls.next("create file")?;
        Ok(self.file(self.inner.create_file(path)?))
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.calls.next("open")?;
        Ok(self.file(self.inner.open_file(path)?))
    }

    fn open_to_read(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.calls.next("open to read")?;
        Ok(self.file(self.inner.open_to_read(path)?))
    }

    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()> {
        self.calls.next("create link")?;
        self.inner.create_symlink(path, points_to)
    }

    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()> {
        self.calls.next("create special file")?;
        self.inner.create_special(path, kind, rdev)
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()> {
        self.calls.next("link")?;
        self.inner.hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed> {
        self.calls.next("rename")?;
        self.inner.rename(from, to, expected, onto)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.calls.next("remove")?;
        self.inner.remove(path)
    }

    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        self.calls.next("set metadata")?;
        self.inner.set_metadata(path, metadata, xattrs, trust)
    }

    fn folds_case(&self) -> Result<bool> {
        self.calls.next("probe")?;
        self.inner.folds_case()
    }

    fn user(&self) -> u32 {
        self.inner.user()
    }

    fn display(&self, path: &Path) -> String {
        self.inner.display(path)
    }
}

impl TargetFile for FaultyFile {
    fn len(&self) -> Result<u64> {
        self.calls.next("length")?;
        self.inner.len()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Err(error) = self.calls.next("write") {
            // As a disk that fills up does: the first half is written.
            self.inner.write_at(offset, &bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.inner.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.calls.next("read")?;
        self.inner.read_at(offset, buffer)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.calls.next("set length")?;
        self.inner.set_len(len)
    }

    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        self.calls.next("set metadata of open file")?;
        self.inner.set_metadata(metadata, xattrs, trust)
    }

    fn identity(&self) -> Result<Identity> {
        self.calls.next("identity")?;
        self.inner.identity()
    }

    fn try_lock(&self) -> Result<bool> {
        self.calls.next("lock")?;
        self.inner.try_lock()
    }

    fn report_close(&self) -> Result<()> {
        self.calls.next("close")?;
        self.inner.report_close()
    }
}
