//! The public interface of the library: repositories, operations on them, and their results.
//!
//! Each operation is a builder with the defaults of the `onefold` command. A backup or a restore that leaves something
//! out ends with [`Error::Incomplete`](crate::Error::Incomplete), unless the caller has called `accept_incomplete` on
//! its builder. A [`Check`] returns damage in its report instead.

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
use options::Resources;

/// An open repository in a local directory. Operations borrow it; it serves any number of them, one after another, on
/// any thread.
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
    resources: Resources,
}

impl Repository {
    /// Creates an encrypted repository with default options, and opens it. Creates missing directories. Fails if the
    /// directory already holds a repository.
    pub fn create(directory: impl Into<PathBuf>, password: impl AsRef<[u8]>) -> crate::Result<Self> {
        RepositoryOptions::new(directory).password(password).create()
    }

    /// Opens an encrypted repository with default options.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepository`](crate::Error::NoRepository) if the directory holds no repository,
    /// [`Error::WrongPassword`](crate::Error::WrongPassword) if the password opens no key slot, and the other errors of
    /// [`RepositoryOptions::open`].
    pub fn open(directory: impl Into<PathBuf>, password: impl AsRef<[u8]>) -> crate::Result<Self> {
        RepositoryOptions::new(directory).password(password).open()
    }

    /// Returns a builder for a backup of files and directories, with everything in the directories.
    pub fn backup<P: Into<PathBuf>>(&self, paths: impl IntoIterator<Item = P>) -> Backup<'_> {
        Backup::of_paths(self, paths.into_iter().map(Into::into).collect())
    }

    /// Returns a builder for a backup of a stream as one file called `name`.
    pub fn backup_stream(&self, name: impl Into<PathBuf>, reader: impl std::io::Read + Send + 'static) -> Backup<'_> {
        Backup::of_stream(self, name.into(), Box::new(reader))
    }

    /// Returns a builder for a restore of a snapshot to `target`.
    ///
    /// `snapshot` is a [`SnapshotId`](crate::SnapshotId), or text: the beginning of an id, `latest` or `latest~N`. The
    /// suffix `:/path` selects a part of the snapshot.
    pub fn restore(&self, snapshot: impl std::fmt::Display, target: impl Into<PathBuf>) -> Restore<'_> {
        Restore::new(self, snapshot.to_string(), target.into())
    }

    /// Returns a builder for a check of the repository.
    pub fn check(&self) -> Check<'_> {
        Check::new(self)
    }

    /// Returns the directory of the repository.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn driver(&self) -> Driver {
        Driver::threads(self.resources.threads())
    }

    fn is_encrypted(&self) -> bool {
        self.store.config.clear_key.is_none()
    }
}

/// Returns the bytes of a path or name.
fn bytes_of(path: impl Into<PathBuf>) -> Vec<u8> {
    std::os::unix::ffi::OsStringExt::into_vec(path.into().into_os_string())
}

/// Returns the caller's monitor, or one that ignores all reports.
fn monitor_or_silent(monitor: Option<&Arc<dyn crate::Monitor>>) -> Arc<dyn crate::Monitor> {
    monitor.map_or_else(|| Arc::new(crate::Silent) as Arc<dyn crate::Monitor>, Arc::clone)
}
