//! A simulated file: what readers see, what a power cut leaves, and the changes in between.

use std::io;
use std::sync::Arc;

use super::contents::Contents;

/// One change to a file that is not durable yet.
#[derive(Clone)]
pub(crate) enum Change {
    /// Bytes were written.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// The length was set.
    SetLen(u64),
}

/// A file of the simulated world, whatever its names.
#[derive(Clone, Default)]
pub(super) struct FileNode {
    live: Contents,
    durable: Contents,
    /// Changes since the last sync, in order.
    pending: Vec<Change>,
    /// Changes that a failed sync lost: readers see them, no later sync saves them, a few may have reached the disk.
    lost: Vec<Change>,
    /// Whether a sync of this file ever failed. If not, `durable` and `pending` add up to `live`.
    tainted: bool,
}

impl FileNode {
    /// Makes a file that a crash left behind, all of it durable.
    pub(super) fn durable_as(contents: Contents) -> Self {
        Self { live: contents.clone(), durable: contents, ..Self::default() }
    }

    pub(super) fn live(&self) -> &Contents {
        &self.live
    }

    pub(super) fn durable(&self) -> &Contents {
        &self.durable
    }

    pub(super) fn pending(&self) -> &[Change] {
        &self.pending
    }

    pub(super) fn lost(&self) -> &[Change] {
        &self.lost
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.live.write(offset, bytes)?;
        if !bytes.is_empty() {
            self.pending.push(Change::Write { offset, bytes: bytes.into() });
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.live.set_len(len);
        self.pending.push(Change::SetLen(len));
    }

    /// Makes the changes since the last sync durable, those that a failed sync lost excepted.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.durable = self.synced()?;
        self.pending.clear();
        self.lost.clear();
        Ok(())
    }

    /// Returns what a sync now would make durable.
    pub(super) fn synced(&self) -> io::Result<Contents> {
        if !self.tainted {
            return Ok(self.live.clone());
        }
        let mut synced = self.durable.clone();
        for change in &self.pending {
            match change {
                Change::Write { offset, bytes } => synced.write(*offset, bytes)?,
                Change::SetLen(len) => synced.set_len(*len),
            }
        }
        // The length stands in the inode, which is written anew; the bytes that were lost read as what was there
        // before, or as zeros. So a check of the length alone does not notice the loss, as on a real disk.
        synced.set_len(self.live.len());
        Ok(synced)
    }

    /// Loses the changes since the last sync, as the kernel does when writing them back fails: it marks the pages
    /// clean, so readers still see them until they are evicted (Rebello et al., "Can applications recover from fsync
    /// failures?", USENIX ATC 2020).
    pub(super) fn fail_sync(&mut self) {
        self.lost.append(&mut self.pending);
        self.tainted = true;
    }
}
