//! The directory of an index: its lock, its files, the current checkpoint, and the marker of an unclean end.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identify::exact::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, decode_checkpoint, encode_checkpoint};
use crate::io::{Access, Disk, DiskFile};
use crate::kv::{Seal, SealedReader, SealedWriter};
use crate::types::RepositoryId;

/// File of the current checkpoint.
pub(in crate::identify) const CHECKPOINT: &str = "checkpoint";
const NEW_CHECKPOINT: &str = "checkpoint.new";
const LOCK: &str = "lock";
const UNCLEAN: &str = "unclean";

/// The locked directory of one repository's index.
#[derive(Debug)]
pub(in crate::identify) struct IndexDirectory {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    /// Held for its lock.
    _lock: Arc<dyn DiskFile>,
    pub(crate) repository: RepositoryId,
    /// Number of the current checkpoint; 0 before the first.
    pub(crate) generation: u64,
    /// Whether the marker of an unclean end exists: the last writer did not close the index.
    pub(crate) is_unclean: bool,
    /// Whether the checkpoint is out of date, or may be according to the marker.
    pub(crate) is_changed: bool,
}

impl IndexDirectory {
    /// Creates the last component of `path` if it is missing, and takes the lock.
    ///
    /// Fails with [`Error::IndexBusy`] if another writer holds the lock.
    pub(in crate::identify) fn lock(disk: Arc<dyn Disk>, path: &Path, repository: RepositoryId) -> Result<Self> {
        if let Some(parent) = path.parent() {
            disk.create_dir(path)?;
            disk.sync_dir(parent)?;
        }
        let lock_path = path.join(LOCK);
        let lock = open_or_create(&*disk, &lock_path)?;
        if !lock.try_lock()? {
            return Err(Error::IndexBusy { path: PathBuf::from(disk.display(&lock_path)) });
        }
        Ok(Self::new(disk, path, lock, repository))
    }

    /// Makes a directory whose lock is held already.
    pub(crate) fn new(disk: Arc<dyn Disk>, path: &Path, lock: Arc<dyn DiskFile>, repository: RepositoryId) -> Self {
        let path = path.to_path_buf();
        Self { disk, path, _lock: lock, repository, generation: 0, is_unclean: false, is_changed: true }
    }

    pub(in crate::identify) fn exists(&self, name: &str) -> Result<bool> {
        self.disk.exists(&self.path.join(name))
    }

    pub(crate) fn open(&self, name: &str, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path.join(name), access)
    }

    pub(in crate::identify) fn open_or_create(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        open_or_create(&*self.disk, &self.path.join(name))
    }

    /// Opens a file of a checkpoint.
    pub(in crate::identify) fn open_sealed(&self, name: &str, generation: u64, seal: Seal) -> Result<SealedReader> {
        let path = self.path.join(slot_name(name, generation));
        SealedReader::open(self.disk.open(&path, Access::Read)?, path, seal)
    }

    /// Starts a file of the next checkpoint.
    pub(in crate::identify) fn create_sealed(&self, name: &str, generation: u64) -> Result<SealedWriter> {
        SealedWriter::create(self.open_or_create(&slot_name(name, generation))?)
    }

    /// Reads the checkpoint, and whether the marker of an unclean end exists.
    pub(in crate::identify) fn load_checkpoint(&mut self) -> Result<Checkpoint> {
        let path = self.path.join(CHECKPOINT);
        let file = self.disk.open(&path, Access::Read)?;
        let len = file.len()?;
        if CHECKPOINT_BYTES_MAX < len {
            return Err(Error::damaged(self.disk.display(&path), "too long"));
        }
        let mut bytes = vec![0; usize::try_from(len).expect("at most CHECKPOINT_BYTES_MAX")];
        file.read_at(0, &mut bytes)?;
        let checkpoint = decode_checkpoint(&bytes)?;
        if checkpoint.repository != self.repository {
            return Err(Error::invalid(format!("the index is of the repository {}", checkpoint.repository)));
        }
        self.generation = checkpoint.generation;
        self.is_unclean = self.exists(UNCLEAN)?;
        self.is_changed = self.is_unclean;
        Ok(checkpoint)
    }

    /// Creates the marker, before the first write that the checkpoint does not cover. Duplicate runs are exempt: they follow
    /// the records of the checkpoint, and the next opening truncates them.
    pub(in crate::identify) fn mark_unclean(&mut self) -> Result<()> {
        if !self.is_unclean {
            self.open_or_create(UNCLEAN)?;
            self.disk.sync_dir(&self.path)?;
            self.is_unclean = true;
        }
        self.is_changed = true;
        Ok(())
    }

    /// Replaces the checkpoint. The contents of its files must be durable; their names become so here.
    pub(in crate::identify) fn replace_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let file = self.open_or_create(NEW_CHECKPOINT)?;
        file.set_len(0)?;
        file.write_at(0, &encode_checkpoint(checkpoint))?;
        file.sync()?;
        // The names of all its files become durable before its own name.
        self.disk.sync_dir(&self.path)?;
        self.disk.rename(&self.path.join(NEW_CHECKPOINT), &self.path.join(CHECKPOINT))?;
        self.disk.sync_dir(&self.path)?;
        self.generation = checkpoint.generation;
        Ok(())
    }

    /// Removes the marker: the checkpoint covers everything.
    pub(in crate::identify) fn mark_clean(&self) -> Result<()> {
        if self.exists(UNCLEAN)? { self.remove_durably(&[UNCLEAN]) } else { Ok(()) }
    }

    /// Removes every checkpoint and the marker, before the contents of the other files change.
    pub(in crate::identify) fn remove_checkpoints(&mut self) -> Result<()> {
        (self.generation, self.is_unclean, self.is_changed) = (0, false, true);
        self.remove_durably(&[CHECKPOINT, NEW_CHECKPOINT, UNCLEAN])
    }

    /// Removes every file of the index but its lock, the checkpoints first and durably.
    pub(in crate::identify) fn clear(&mut self) -> Result<()> {
        self.remove_checkpoints()?;
        for entry in self.disk.list(&self.path)? {
            if entry.name != LOCK && !entry.is_dir {
                self.disk.remove(&self.path.join(entry.name))?;
            }
        }
        self.sync()
    }

    fn remove_durably(&self, names: &[&str]) -> Result<()> {
        for name in names {
            if self.exists(name)? {
                self.disk.remove(&self.path.join(name))?;
            }
        }
        self.sync()
    }

    /// Makes the names in the directory durable.
    pub(in crate::identify) fn sync(&self) -> Result<()> {
        self.disk.sync_dir(&self.path)
    }
}

/// Returns the name of one of the two copies of a file; checkpoints use them in turn.
fn slot_name(name: &str, generation: u64) -> String {
    format!("{name}.{}", generation % 2)
}

pub(in crate::identify) fn open_or_create(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    if disk.exists(path)? {
        return disk.open(path, Access::ReadWrite);
    }
    match disk.create(path) {
        // Another writer starts at the same time: the lock decides between the two.
        Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => disk.open(path, Access::ReadWrite),
        created => created,
    }
}
