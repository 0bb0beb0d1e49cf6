//! An open file of a tree in memory.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::MemTree;
use super::extents::Extents;
use super::state::{Body, refuse};
use crate::error::Result;
use crate::io::tree::{Identity, Metadata, SourceFile, TargetFile, Trust, Unset, Xattr};

/// A file of a [`MemTree`], open; it outlives its names.
#[derive(Debug)]
pub(super) struct MemFile {
    pub(super) tree: MemTree,
    pub(super) inode: u64,
    pub(super) path: PathBuf,
    pub(super) opened: Metadata,
    /// The lock of the file, if this handle has it.
    pub(super) lock: Mutex<Option<Arc<()>>>,
}

impl MemFile {
    /// Hands the bytes and the metadata of the file to an action.
    fn with<T>(&self, action: impl FnOnce(&mut Extents, &mut Metadata) -> T) -> T {
        let mut state = self.tree.lock();
        let entry = state.inode_mut(self.inode);
        let Body::File(extents) = &mut entry.body else { unreachable!("only files are opened") };
        action(extents, &mut entry.metadata)
    }

    fn change(&self, action: impl FnOnce(&mut Extents, &mut Metadata)) {
        self.with(action);
        self.tree.lock().touch(self.inode, true);
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.with(|extents, metadata| {
            let left = usize::try_from(metadata.size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let count = left.min(buffer.len());
            extents.read(offset, &mut buffer[..count]);
            count
        })
    }

    /// Counts a read and does what was planned for it.
    fn misbehave(&self, end: u64) -> Result<()> {
        let counting = self.tree.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        if let Some(fault) = self.tree.lock().faults.get_mut(&self.path) {
            for (reads, _) in &mut fault.actions {
                *reads -= 1;
            }
            due.extend(fault.actions.extract_if(.., |(reads, _)| *reads == 0));
        }
        // The tree is free again: an action may do anything to it.
        for (_, action) in due {
            action(&self.tree);
        }
        drop(counting);
        let read = self.tree.lock().faults.get(&self.path).and_then(|fault| fault.read);
        match read {
            Some((after_bytes, kind)) if after_bytes < end => Err(refuse("read", &self.path, kind)),
            _ => Ok(()),
        }
    }
}

impl SourceFile for MemFile {
    fn opened(&self) -> &Metadata {
        &self.opened
    }

    fn metadata(&self) -> Result<Metadata> {
        self.tree.count_call();
        Ok(self.with(|_, metadata| metadata.clone()))
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.tree.count_call();
        Ok(self.tree.lock().inode(self.inode).xattrs.clone())
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        self.tree.count_call();
        Ok(self.with(|extents, _| extents.next(offset)))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.tree.count_call();
        self.misbehave(offset + buffer.len() as u64)?;
        Ok(self.read(offset, buffer))
    }
}

impl TargetFile for MemFile {
    fn len(&self) -> Result<u64> {
        Ok(self.with(|_, metadata| metadata.size))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.change(|extents, metadata| {
            extents.write(offset, bytes);
            metadata.size = metadata.size.max(offset + bytes.len() as u64);
        });
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.read(offset, buffer))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.change(|extents, metadata| {
            extents.punch(len..u64::MAX);
            metadata.size = len;
        });
        Ok(())
    }

    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        self.tree.set_inode_metadata(self.inode, metadata, xattrs, trust);
        Ok(Unset::default())
    }

    fn identity(&self) -> Result<Identity> {
        Ok(self.with(|_, metadata| metadata.identity()))
    }

    fn try_lock(&self) -> Result<bool> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.tree.lock();
        let is_free = state.locks.get(&self.inode).is_none_or(|lock| lock.strong_count() == 0);
        if held.is_none() && is_free {
            let lock = Arc::new(());
            state.locks.insert(self.inode, Arc::downgrade(&lock));
            *held = Some(lock);
        }
        Ok(held.is_some())
    }

    fn report_close(&self) -> Result<()> {
        Ok(())
    }
}
