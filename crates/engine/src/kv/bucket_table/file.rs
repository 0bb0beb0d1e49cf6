//! The file of a table, addressed by pages.

use std::sync::Arc;

use crate::io::{AlignedBuffer, BatchRead, BatchWrite, DiskFile};
use crate::kv::bucket_table::page::{PAGE_BYTES, Page, PageName};

/// File of a table, and the epoch that its pages carry.
#[derive(Clone, Debug)]
pub(crate) struct TableFile {
    file: Arc<dyn DiskFile>,
    epoch: u64,
}

impl TableFile {
    pub(crate) fn new(file: Arc<dyn DiskFile>, epoch: u64) -> Self {
        Self { file, epoch }
    }

    pub(in crate::kv) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(in crate::kv) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// Returns a read that fills the buffer from a page on.
    pub(in crate::kv) fn read(&self, page: u64, buffer: AlignedBuffer) -> BatchRead {
        BatchRead { file: Arc::clone(&self.file), offset: page * PAGE_BYTES as u64, buffer, outcome: Ok(()) }
    }

    /// Returns a write of the buffer from a page on.
    pub(in crate::kv) fn write(&self, page: u64, buffer: AlignedBuffer) -> BatchWrite {
        BatchWrite { file: Arc::clone(&self.file), offset: page * PAGE_BYTES as u64, buffer, outcome: Ok(()) }
    }

    /// Returns what the pages of a run say of themselves.
    pub(in crate::kv) fn page_name(&self, run: u64, index: u32) -> PageName {
        PageName { epoch: self.epoch, run, index }
    }

    /// Decodes a page of a run; `None` if it is damaged or another page.
    pub(in crate::kv) fn decode<'a>(&self, run: u64, index: u32, bytes: &'a [u8]) -> Option<Page<'a>> {
        Page::decode(self.page_name(run, index), bytes)
    }
}
