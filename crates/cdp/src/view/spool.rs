//! Blocks of a view that are in no checkpoint, in a temporary file: the journal may release its records while somebody reads the view.

use std::path::PathBuf;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{DiskFile, Host};
use onefold_engine::store::metadata::Scratch;

use crate::history::BLOCK_BYTES;

/// A temporary file of blocks. It has no name, so that it is gone with its process. Its bytes are those of the volumes, which are not
/// encrypted either.
#[derive(Debug)]
pub(super) struct Spool {
    scratch: Scratch,
    file: Option<Arc<dyn DiskFile>>,
    /// Blocks that have a location.
    pub(super) blocks: u64,
}

impl Spool {
    pub(super) fn new(scratch: &Scratch) -> Self {
        Self { scratch: scratch.clone(), file: None, blocks: 0 }
    }

    /// Writes a block in a location; the one after the last is a new location.
    pub(super) fn write(&mut self, host: &dyn Host, location: u64, bytes: &[u8]) -> Result<()> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(self.file.insert(create_temporary(&self.scratch, host)?)),
        };
        file.write_at(location * BLOCK_BYTES, bytes)?;
        self.blocks = self.blocks.max(location + 1);
        Ok(())
    }

    /// Reads blocks from a location on.
    pub(super) fn read(&self, location: u64, skipped: u64, into: &mut [u8]) -> Result<()> {
        let file = self.file.as_ref().expect("a location is in the file");
        file.read_at(location * BLOCK_BYTES + skipped, into)
    }
}

/// Creates a temporary file without a name.
pub(super) fn create_temporary(scratch: &Scratch, host: &dyn Host) -> Result<Arc<dyn DiskFile>> {
    let Some(disk) = &scratch.disk else {
        return Err(Error::invalid("records that are in no checkpoint need a directory for temporary files"));
    };
    let mut random = [0; 8];
    host.random(&mut random)?;
    let name = format!("view-{:016x}", u64::from_le_bytes(random));
    let path: PathBuf = scratch.dir.join(name);
    let file = disk.create(&path)?;
    disk.remove(&path)?;
    Ok(file)
}
