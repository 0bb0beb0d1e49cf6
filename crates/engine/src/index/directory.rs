//! The directory of an index: its lock, its files, the checkpoint that counts, and the marker of an unclean end.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, decode_checkpoint, encode_checkpoint};
use crate::io::{Access, Disk, DiskFile};
use crate::kv::{Seal, SealedReader, SealedWriter};
use crate::types::RepositoryId;

const CHECKPOINT: &str = "checkpoint";
const NEW_CHECKPOINT: &str = "checkpoint.new";
const UNCLEAN: &str = "unclean";

/// The locked directory of one repository's index.
#[derive(Debug)]
pub(super) struct IndexDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Held for its lock.
    _lock: Arc<dyn DiskFile>,
    repository: RepositoryId,
    /// Number of the checkpoint that counts.
    generation: u64,
    /// Whether the marker of an unclean end exists.
    is_marked: bool,
    /// Whether the checkpoint is out of date, or the marker says so.
    is_changed: bool,
}

impl IndexDirectory {
    /// Creates the last component of `path` where it is missing, and takes the lock.
    ///
    /// Fails with [`Error::IndexBusy`] if another writer holds the lock.
    pub(super) fn lock(disk: Arc<dyn Disk>, path: &Path, repository: RepositoryId) -> Result<Self> {
        if let Some(parent) = path.parent() {
            disk.create_dir(path)?;
            disk.sync_dir(parent)?;
        }
        let lock_path = path.join("lock");
        let lock = open_or_create(&*disk, &lock_path)?;
        if !lock.try_lock()? {
            return Err(Error::IndexBusy { path: PathBuf::from(disk.display(&lock_path)) });
        }
        Ok(Self::new(disk, path, lock, repository))
    }

    /// Makes a directory whose lock is held already.
    pub(super) fn new(disk: Arc<dyn Disk>, path: &Path, lock: Arc<dyn DiskFile>, repository: RepositoryId) -> Self {
        let path = path.to_path_buf();
        Self { disk, path, _lock: lock, repository, generation: 0, is_marked: false, is_changed: true }
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn repository(&self) -> RepositoryId {
        self.repository
    }

    /// Returns the number of the checkpoint that counts; 0 before the first.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns true if the state differs from the checkpoint, or the marker says that it may.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub(super) fn has_checkpoint(&self) -> Result<bool> {
        self.disk.exists(&self.path.join(CHECKPOINT))
    }

    pub(super) fn exists(&self, name: &str) -> Result<bool> {
        self.disk.exists(&self.path.join(name))
    }

    pub(super) fn open(&self, name: &str, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path.join(name), access)
    }

    pub(super) fn open_or_create(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        open_or_create(&*self.disk, &self.path.join(name))
    }

    /// Opens a file that belongs to a checkpoint.
    pub(super) fn open_sealed(&self, name: &str, generation: u64, seal: Seal) -> Result<SealedReader> {
        let path = self.path.join(slot_name(name, generation));
        SealedReader::open(self.disk.open(&path, Access::Read)?, path, seal)
    }

    /// Starts a file that belongs to a checkpoint to come.
    pub(super) fn create_sealed(&self, name: &str, generation: u64) -> Result<SealedWriter> {
        SealedWriter::create(self.open_or_create(&slot_name(name, generation))?)
    }

    /// Reads the checkpoint, and whether the marker of an unclean end stands beyond it.
    pub(super) fn load_checkpoint(&mut self) -> Result<Checkpoint> {
        let path = self.path.join(CHECKPOINT);
        let file = self.disk.open(&path, Access::Read)?;
        let len = file.len()?;
        if CHECKPOINT_BYTES_MAX < len {
            return Err(Error::damaged(self.disk.display(&path), "too long"));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::invalid("the index is too large"))?];
        file.read_at(0, &mut bytes)?;
        let checkpoint = decode_checkpoint(&bytes)?;
        if checkpoint.repository != self.repository {
            return Err(Error::invalid(format!("the index is of the repository {}", checkpoint.repository)));
        }
        self.generation = checkpoint.generation;
        self.is_marked = self.exists(UNCLEAN)?;
        self.is_changed = self.is_marked;
        Ok(checkpoint)
    }

    /// Returns true if the last writer did not close the index.
    pub(super) fn is_unclean(&self) -> bool {
        self.is_marked
    }

    /// Notes that the checkpoint misses something, before anything is written.
    pub(super) fn note_changed(&mut self) {
        self.is_changed = true;
    }

    /// Creates the marker, before anything is written that the checkpoint does not cover. Duplicate runs are exempt: they
    /// follow what the checkpoint knows of, and the next opening truncates them.
    pub(super) fn mark_unclean(&mut self) -> Result<()> {
        if !self.is_marked {
            self.open_or_create(UNCLEAN)?;
            self.disk.sync_dir(&self.path)?;
            self.is_marked = true;
        }
        self.is_changed = true;
        Ok(())
    }

    /// Replaces the checkpoint. Everything that it refers to must be durable, except for names in this directory.
    pub(super) fn replace_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let file = self.open_or_create(NEW_CHECKPOINT)?;
        file.set_len(0)?;
        file.write_at(0, &encode_checkpoint(checkpoint))?;
        file.sync()?;
        // The names of everything it refers to before its own: a new name must not be durable alone.
        self.disk.sync_dir(&self.path)?;
        self.disk.rename(&self.path.join(NEW_CHECKPOINT), &self.path.join(CHECKPOINT))?;
        self.disk.sync_dir(&self.path)?;
        self.generation = checkpoint.generation;
        Ok(())
    }

    /// Removes the marker: the checkpoint covers everything.
    pub(super) fn mark_clean(&self) -> Result<()> {
        if self.exists(UNCLEAN)? { self.remove_durably(&[UNCLEAN]) } else { Ok(()) }
    }

    /// Removes every checkpoint and the marker: none of them may find other files with other contents.
    pub(super) fn remove_checkpoints(&mut self) -> Result<()> {
        (self.generation, self.is_marked, self.is_changed) = (0, false, true);
        self.remove_durably(&[CHECKPOINT, NEW_CHECKPOINT, UNCLEAN])
    }

    fn remove_durably(&self, names: &[&str]) -> Result<()> {
        for name in names {
            if self.exists(name)? {
                self.disk.remove(&self.path.join(name))?;
            }
        }
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.disk.sync_dir(&self.path)
    }
}

/// Returns the name of a file that two checkpoints in turn have a copy of.
fn slot_name(name: &str, generation: u64) -> String {
    format!("{name}.{}", generation % 2)
}

fn open_or_create(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    if disk.exists(path)? {
        return disk.open(path, Access::ReadWrite);
    }
    match disk.create(path) {
        // Another writer that starts was faster: the lock decides between the two.
        Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => disk.open(path, Access::ReadWrite),
        created => created,
    }
}
