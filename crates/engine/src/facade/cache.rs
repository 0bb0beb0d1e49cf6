//! This host's cache for one repository, where the command keeps it too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::check::{HeadsAccess, HeadsDir, LostHeads, known_locations};
use crate::error::Result;
use crate::io::os::OsDisk;
use crate::io::os_identity;
use crate::io::{Access, Disk};
use crate::repo::Cache;
use crate::source::exclude::CACHE_SIGNATURE;
use crate::store::metadata::Scratch;
use crate::types::RepositoryId;

/// The file that keeps other backup programs out of the directory of all caches.
const TAG: &str = "CACHEDIR.TAG";

/// The directory of all caches, and the one of this repository in it.
#[derive(Clone, Debug)]
pub(super) struct CacheDirectory {
    /// The directory of all caches, to be left out of backups.
    pub(super) directory: PathBuf,
    /// The cache as the engine takes it.
    pub(super) cache: Cache,
    /// The repository's directory, by which its newest snapshots are remembered.
    location: PathBuf,
}

impl CacheDirectory {
    /// Opens the cache, creating its directories where they do not exist.
    pub(crate) fn open(directory: &Path, repository: RepositoryId, location: PathBuf) -> Result<Self> {
        create_directories(directory)?;
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.to_path_buf()));
        write_tag(&*disk)?;
        let dir = PathBuf::from(repository.to_string());
        disk.create_dir(&dir)?;
        let location = os_identity::known_as(location, known_locations(&*disk, &dir, repository));
        Ok(Self { directory: directory.to_path_buf(), cache: Cache { disk, dir }, location })
    }

    /// Returns where state may be spilled.
    pub(super) fn scratch(&self) -> Scratch {
        Scratch { disk: Some(Arc::clone(&self.cache.disk)), dir: self.cache.dir.clone() }
    }

    /// Returns where the snapshots that this host has seen last are remembered.
    pub(super) fn heads(&self, lost: LostHeads) -> HeadsDir {
        let (location, locations) = (self.location.clone(), Arc::new(OsDisk::new("/".into())));
        let Cache { disk, dir } = self.cache.clone();
        HeadsDir { disk, dir, location, locations, lost, access: HeadsAccess::Update }
    }
}

/// Creates a directory for the owner alone, and those that lead to it. One that exists is kept as it is.
fn create_directories(directory: &Path) -> Result<()> {
    let root = Path::new("");
    let is_missing = |path: &&Path| !OsDisk::new(path.to_path_buf()).exists(root).unwrap_or(false);
    let missing: Vec<&Path> =
        directory.ancestors().filter(|path| !path.as_os_str().is_empty()).take_while(is_missing).collect();
    // The last one also where it stands: what stands there may be no directory.
    missing.into_iter().rev().chain([directory]).try_for_each(|path| OsDisk::new(path.to_path_buf()).create_dir(root))
}

fn write_tag(disk: &dyn Disk) -> Result<()> {
    let path = Path::new(TAG);
    match disk.create(path) {
        Ok(file) => file.write_at(0, &CACHE_SIGNATURE[..]),
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => Ok(()),
        Err(error) => Err(error),
    }?;
    // Anything else of this name would be a reason to look twice at the directory.
    disk.open(path, Access::Read).map(drop).map_err(|error| error.context("the cache cannot be used"))
}
