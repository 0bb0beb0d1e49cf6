//! An open repository: its objects, written in the order that makes them safe and checked when they are read.

pub mod commits;
pub(crate) mod containers;
pub mod create;
pub mod cursor;
pub(crate) mod directories;
pub(crate) mod host_file;
pub(crate) mod locations;
pub(crate) mod lru;
pub mod metadata;
pub mod pin;
pub(crate) mod session;
pub mod slots;
pub mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container::ContainerBytes;
use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::io::{Access, Disk, DiskEntry, DiskFile, Host, Linked};
use crate::object::names::ContainerName;
use crate::object::{Config, names};
use crate::types::SessionId;

pub use create::{CreateOptions, Unlock, create, open};
pub use metadata::MetadataReader;
pub(crate) use session::Session;

/// An open repository. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// Disk that holds its objects.
    pub disk: Arc<dyn Disk>,
    /// Clock and randomness.
    pub host: Arc<dyn Host>,
    /// Its parameters.
    pub config: Arc<Config>,
    /// Its keys.
    pub keys: Arc<Keys>,
}

impl Store {
    /// Returns an object's path as the user knows it.
    pub(crate) fn display(&self, path: &Path) -> String {
        self.disk.display(path)
    }

    /// Makes the directories of a repository that are missing: a copy may have left out those that were empty. Returns what it
    /// made.
    pub fn complete_directories(&self) -> Result<Vec<&'static str>> {
        let mut made = Vec::new();
        for name in names::DIRECTORIES {
            let path = Path::new(name);
            if !self.disk.exists(path)? {
                self.disk.create_dir(path)?;
                self.disk.sync_dir(path)?;
                made.push(name);
            }
        }
        if !made.is_empty() {
            self.disk.sync_dir(Path::new(""))?;
        }
        Ok(made)
    }

    /// Lists a directory that programs which copy repositories leave out where it is empty.
    pub(crate) fn list_if_there(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        match self.disk.list(path) {
            Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Reads an object whole, refusing one that is longer than `len_max` before anything is allocated.
    pub(crate) fn read(&self, path: &Path, len_max: usize) -> Result<Vec<u8>> {
        read_object(&*self.disk, path, len_max)
    }
}

fn open_object(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    disk.open(path, Access::Read).map_err(|error| match error.io_kind() {
        Some(std::io::ErrorKind::NotFound) => Error::Missing { object: disk.display(path) },
        _ => error,
    })
}

/// Reads an object whole, refusing one that is longer than `len_max` before anything is allocated.
pub(crate) fn read_object(disk: &dyn Disk, path: &Path, len_max: usize) -> Result<Vec<u8>> {
    let file = open_object(disk, path)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len_max < len {
        return Err(Error::damaged(disk.display(path), "longer than such an object can be"));
    }
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Writes objects under names that are created once and never again.
#[derive(Debug)]
pub(crate) struct ObjectWriter {
    disk: Arc<dyn Disk>,
    session: SessionId,
    next: std::sync::atomic::AtomicU32,
}

impl ObjectWriter {
    /// Writes as this session, which names the files on their way.
    pub(crate) fn new(disk: Arc<dyn Disk>, session: SessionId) -> Self {
        Self { disk, session, next: std::sync::atomic::AtomicU32::new(0) }
    }

    fn next_temporary(&self) -> PathBuf {
        names::tmp(self.session, self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    /// Writes the bytes to a file of their own and makes them durable (steps D1). The name is not an object's yet.
    pub(crate) fn write_temporary(&self, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.next_temporary();
        let file = self.disk.create(&path)?;
        // fsync, not fdatasync: the length changed. It is never tried again: after an error the pages are gone.
        let written = file.write_at(0, bytes).and_then(|()| file.sync());
        written.inspect_err(|_| self.discard(&path))?;
        Ok(path)
    }

    /// As [`ObjectWriter::write_temporary`], past the page cache where the file system can: what a backup writes is not read soon,
    /// and would drive out what is.
    pub(crate) fn write_container_temporary(&self, container: &ContainerBytes) -> Result<PathBuf> {
        let path = self.next_temporary();
        drop(self.disk.create(&path)?);
        let written = self.write_direct(&path, container);
        written.inspect_err(|_| self.discard(&path))?;
        Ok(path)
    }

    fn write_direct(&self, path: &Path, container: &ContainerBytes) -> Result<()> {
        let file = self.disk.open(path, Access::Direct)?;
        file.write_at(0, container.padded())?;
        if container.padded().len() != container.len() {
            file.set_len(container.len() as u64)?;
        }
        file.sync()
    }

    /// Removes a temporary file that will get no name, which frees space on a full disk.
    pub(crate) fn discard(&self, temporary: &Path) {
        // What cannot be removed is ignored by everyone.
        let _left_over = self.disk.remove(temporary);
    }

    /// Creates an object that must not exist, its bytes durable before its name is. The name is durable once its
    /// directory is synced. `Existed`: the name was taken and its object left as it is.
    pub(crate) fn create(&self, path: &Path, bytes: &[u8]) -> Result<Linked> {
        let temporary = self.write_temporary(bytes)?;
        let linked = self.disk.link(&temporary, path);
        self.discard(&temporary);
        match linked? {
            // A network file system may repeat a request whose answer was lost: the name exists since the first one.
            Linked::Existed if self.stands(path, bytes)? => Ok(Linked::Created),
            linked => Ok(linked),
        }
    }

    /// Returns true if the object has exactly these bytes. They hold random numbers of this writer, so that no other writer
    /// can have created it.
    fn stands(&self, path: &Path, bytes: &[u8]) -> Result<bool> {
        let file = self.disk.open(path, Access::Read)?;
        if file.len()? != bytes.len() as u64 {
            return Ok(false);
        }
        let mut standing = vec![0; bytes.len()];
        file.read_at(0, &mut standing)?;
        Ok(standing == bytes)
    }

    /// Writes a container again under the name that it has, so that its name is a change that the next sync of its directory
    /// makes durable.
    pub(crate) fn rewrite(&self, name: &ContainerName, bytes: &[u8]) -> Result<()> {
        let temporary = self.write_temporary(bytes)?;
        self.disk.rename(&temporary, &name.path()).inspect_err(|_| self.discard(&temporary))
    }

    /// Publishes a temporary file under a name that nobody else can choose.
    pub(crate) fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        self.disk.rename(temporary, path)
    }

    /// Makes the names in a directory durable.
    pub(crate) fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk.sync_dir(path)
    }
}
