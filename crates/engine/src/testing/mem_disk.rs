//! A disk in memory for tests: it fills up, it loses what was not synced, and it shows its files to be damaged.

use std::collections::BTreeMap;
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering as Atomic};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::io::{Access, BatchRead, Disk, DiskEntry, DiskFile, Linked, OwnedRead, ReadStream};
use crate::random::SplitMix64;
use crate::types::Fingerprint;

/// The fingerprint of the n-th chunk.
pub(crate) fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint(blake3::hash(&number.to_le_bytes()).into())
}

#[derive(Debug, Default)]
struct Inode {
    bytes: Mutex<(Vec<u8>, Vec<u8>)>,
    locked: AtomicBool,
}

#[derive(Debug, Default)]
struct Names {
    now: BTreeMap<PathBuf, Arc<Inode>>,
    synced: BTreeMap<PathBuf, Arc<Inode>>,
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemDisk {
    names: Arc<Mutex<Names>>,
    space: Arc<Mutex<Option<u64>>>,
}

fn hold<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemDisk {
    /// Lets only so many more bytes be written; `None` for no limit.
    pub(crate) fn limit_space(&self, bytes: Option<u64>) {
        *hold(&self.space) = bytes;
    }

    /// Returns what a power cut leaves: synced names, synced bytes, and of the others sectors at random.
    pub(crate) fn power_cut(&self, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let disk = Self::default();
        for (name, inode) in &hold(&self.names).synced {
            let (now, synced) = &*hold(&inode.bytes);
            let len = if random.below(2) == 0 { synced.len() } else { now.len() };
            let mut bytes = synced.clone();
            bytes.resize(len, 0);
            for (index, sector) in bytes.chunks_mut(512).enumerate() {
                if random.below(2) == 0 {
                    let from = now.get(index * 512..).unwrap_or_default();
                    sector.iter_mut().zip(from).for_each(|(byte, new)| *byte = *new);
                }
            }
            let inode = Arc::new(Inode { bytes: Mutex::new((bytes.clone(), bytes)), locked: AtomicBool::new(false) });
            hold(&disk.names).now.insert(name.clone(), Arc::clone(&inode));
            hold(&disk.names).synced.insert(name.clone(), inode);
        }
        disk
    }

    fn file(&self, inode: Arc<Inode>, access: Access) -> MemFile {
        MemFile { inode, access, space: Arc::clone(&self.space), holds_lock: AtomicBool::new(false) }
    }

    /// Changes the bytes of a file behind its users' backs.
    pub(crate) fn damage(&self, path: impl AsRef<Path>, change: impl FnOnce(&mut Vec<u8>)) {
        let names = hold(&self.names);
        let inode = names.now.get(path.as_ref()).expect("the file exists");
        let (now, synced) = &mut *hold(&inode.bytes);
        change(now);
        synced.clone_from(now);
    }

    /// Returns the bytes of a file.
    pub(crate) fn bytes(&self, path: impl AsRef<Path>) -> Vec<u8> {
        hold(&hold(&self.names).now.get(path.as_ref()).expect("the file exists").bytes).0.clone()
    }
}

fn missing(operation: &'static str, path: &Path) -> Error {
    Error::io(operation, path, IoError::from(ErrorKind::NotFound))
}

impl Disk for MemDisk {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        let mut names = hold(&self.names);
        if names.now.contains_key(path) {
            return Err(Error::io("create", path, IoError::from(ErrorKind::AlreadyExists)));
        }
        let inode = Arc::new(Inode::default());
        names.now.insert(path.to_path_buf(), Arc::clone(&inode));
        Ok(Arc::new(self.file(inode, Access::ReadWrite)))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        let inode = Arc::clone(hold(&self.names).now.get(path).ok_or_else(|| missing("open", path))?);
        Ok(Arc::new(self.file(inode, access)))
    }

    fn create_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut names = hold(&self.names);
        let inode = names.now.remove(from).ok_or_else(|| missing("rename", from))?;
        names.now.insert(to.to_path_buf(), inode);
        Ok(())
    }

    fn link(&self, _existing: &Path, _new: &Path) -> Result<Linked> {
        unreachable!("an index links nothing")
    }

    fn remove(&self, path: &Path) -> Result<()> {
        hold(&self.names).now.remove(path).map(drop).ok_or_else(|| missing("remove", path))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let Names { now, synced } = &mut *hold(&self.names);
        synced.retain(|name, _| name.parent() != Some(path));
        synced.extend(now.iter().filter(|(name, _)| name.parent() == Some(path)).map(|(n, i)| (n.clone(), i.clone())));
        Ok(())
    }

    fn list(&self, _path: &Path) -> Result<Vec<DiskEntry>> {
        unreachable!("an index knows its files")
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(hold(&self.names).now.contains_key(path))
    }

    fn read_batch(&self, reads: &mut [BatchRead]) {
        for read in reads {
            read.outcome = read.file.read_at(read.offset, &mut read.buffer);
        }
    }

    /// Ends reads in another order than they came, each while others wait.
    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        let (mut waiting, mut turn) = (Vec::new(), 0);
        loop {
            while waiting.len() < 16
                && let Some(read) = reads.next()
            {
                waiting.push(read);
            }
            if waiting.is_empty() {
                return;
            }
            turn += 7;
            let mut read: OwnedRead = waiting.swap_remove(turn % waiting.len());
            let outcome = file.read_at(read.offset, &mut read.buffer);
            reads.end(read, outcome);
        }
    }

    fn display(&self, path: &Path) -> String {
        path.display().to_string()
    }
}

#[derive(Debug)]
struct MemFile {
    inode: Arc<Inode>,
    access: Access,
    space: Arc<Mutex<Option<u64>>>,
    holds_lock: AtomicBool,
}

impl DiskFile for MemFile {
    fn len(&self) -> Result<u64> {
        Ok(hold(&self.inode.bytes).0.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.access.check_aligned("read", Path::new("memory"), offset, buffer)?;
        let bytes = hold(&self.inode.bytes);
        let start = usize::try_from(offset).expect("tests are small");
        let found = bytes.0.get(start..start + buffer.len());
        let end = || Error::io("read", Path::new("memory"), IoError::from(ErrorKind::UnexpectedEof));
        buffer.copy_from_slice(found.ok_or_else(end)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.access.check_aligned("write", Path::new("memory"), offset, bytes)?;
        if let Some(space) = &mut *hold(&self.space) {
            let full = || Error::io("write", Path::new("memory"), IoError::from(ErrorKind::StorageFull));
            *space = space.checked_sub(bytes.len() as u64).ok_or_else(full)?;
        }
        let now = &mut hold(&self.inode.bytes).0;
        let start = usize::try_from(offset).expect("tests are small");
        if now.len() < start + bytes.len() {
            now.resize(start + bytes.len(), 0);
        }
        now[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        hold(&self.inode.bytes).0.resize(usize::try_from(len).expect("tests are small"), 0);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let (now, synced) = &mut *hold(&self.inode.bytes);
        synced.clone_from(now);
        Ok(())
    }

    fn try_lock(&self) -> Result<bool> {
        let taken = !self.inode.locked.swap(true, Atomic::SeqCst);
        self.holds_lock.store(taken, Atomic::SeqCst);
        Ok(taken)
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        if self.holds_lock.load(Atomic::SeqCst) {
            self.inode.locked.store(false, Atomic::SeqCst);
        }
    }
}
