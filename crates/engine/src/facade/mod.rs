//! The library as programs see it: repositories, what is done with them, and what came of it.
//!
//! Everything here has a builder with the defaults of the `onefold` command. An operation that could not do all that was
//! asked of it ends with [`Error::Incomplete`](crate::Error::Incomplete), unless its builder was given
//! `accept_incomplete`: no caller takes half a backup for a whole one by mistake.

mod backup;
mod cache;
mod check;
mod failures;
mod options;
mod restore;
mod snapshots;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::pipeline::Driver;
use crate::store::Store;

pub use backup::{Backup, BackupSummary};
pub use check::Check;
pub use failures::Failure;
pub use options::RepositoryOptions;
pub use restore::{Restore, RestoreSummary};
pub use snapshots::SnapshotInfo;

use cache::CacheDirectory;
use options::Means;

/// An open repository in a local directory. Operations borrow it, so that several may run one after the other on any thread.
///
/// ```
/// use onefold_engine::RepositoryOptions;
///
/// # fn main() -> onefold_engine::Result<()> {
/// # let home = tempfile::tempdir().unwrap();
/// # let (repository, cache) = (home.path().join("repository"), home.path().join("cache"));
/// let options = RepositoryOptions::new(repository).password("correct horse").cache_directory(cache).memory(128 << 20);
/// options.create()?;
/// assert!(options.open()?.snapshots()?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Repository {
    store: Store,
    directory: PathBuf,
    cache: CacheDirectory,
    means: Means,
}

impl Repository {
    /// Creates an encrypted repository with default options in a directory that holds none, and opens it. Directories
    /// that do not exist are created.
    pub fn create(directory: impl Into<PathBuf>, password: impl AsRef<[u8]>) -> crate::Result<Self> {
        RepositoryOptions::new(directory).password(password).create()
    }

    /// Opens an encrypted repository with default options.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepository`](crate::Error::NoRepository) where there is none,
    /// [`Error::WrongPassword`](crate::Error::WrongPassword) if no key slot opens.
    pub fn open(directory: impl Into<PathBuf>, password: impl AsRef<[u8]>) -> crate::Result<Self> {
        RepositoryOptions::new(directory).password(password).open()
    }

    /// Begins to describe a backup of files and directories, each with everything below it.
    pub fn backup<P: Into<PathBuf>>(&self, paths: impl IntoIterator<Item = P>) -> Backup<'_> {
        Backup::of_paths(self, paths.into_iter().map(Into::into).collect())
    }

    /// Begins to describe a backup of a stream as one file called `name`.
    pub fn backup_stream(&self, name: impl Into<PathBuf>, reader: impl std::io::Read + Send + 'static) -> Backup<'_> {
        Backup::of_stream(self, name.into(), Box::new(reader))
    }

    /// Begins to describe a restore of a snapshot: by [`SnapshotId`](crate::SnapshotId), or as text: the beginning of an
    /// id, `latest` or `latest~N`; with `:/path` behind it, a part of the snapshot.
    pub fn restore(&self, snapshot: impl std::fmt::Display, target: impl Into<PathBuf>) -> Restore<'_> {
        Restore::new(self, snapshot.to_string(), target.into())
    }

    /// Begins to describe a verification of the repository.
    pub fn check(&self) -> Check<'_> {
        Check::new(self)
    }

    /// Returns the directory of the repository.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn driver(&self) -> Driver {
        Driver::threads(self.means.threads())
    }

    fn is_encrypted(&self) -> bool {
        self.store.config.clear_key.is_none()
    }
}

/// Bytes of the paths and names that a builder is given.
fn bytes_of(path: impl Into<PathBuf>) -> Vec<u8> {
    std::os::unix::ffi::OsStringExt::into_vec(path.into().into_os_string())
}

/// A monitor that listens to nothing, unless the caller has given one.
fn listener(monitor: Option<&Arc<dyn crate::Monitor>>) -> Arc<dyn crate::Monitor> {
    monitor.map_or_else(|| Arc::new(crate::Silent) as Arc<dyn crate::Monitor>, Arc::clone)
}
