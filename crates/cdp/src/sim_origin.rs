//! A volume for tests: a file of a simulated disk.

use std::ops::Range;
use std::sync::Arc;

use onefold_engine::error::Result;
use onefold_engine::io::DiskFile;

use crate::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, allocation_flag, export_flag};

/// A volume in a file of a simulated disk.
#[derive(Debug)]
pub struct SimOrigin {
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// Its bytes.
    pub size: u64,
    /// True if it says where its holes are.
    pub knows_holes: bool,
}

fn io<T>(outcome: Result<T>) -> Result<T, Errno> {
    outcome.map_err(|_| Errno::Io)
}

impl Export for SimOrigin {
    fn size(&self) -> u64 {
        self.size
    }

    fn flags(&self) -> u16 {
        export_flag::SEND_TRIM | export_flag::SEND_FAST_ZERO
    }

    fn has_context(&self, _: Context) -> bool {
        self.knows_holes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        io(self.file.read_at(offset, into))
    }

    fn write(&self, offset: u64, data: &[u8], _: Fua) -> Result<(), Errno> {
        io(self.file.write_at(offset, data))
    }

    fn write_zeroes(&self, range: Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        io(self
            .file
            .write_at(range.start, &vec![0; usize::try_from(range.end - range.start).expect("ranges of tests fit")]))
    }

    fn trim(&self, _: Range<u64>, _: Fua) -> Result<(), Errno> {
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        io(self.file.sync())
    }

    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: Range<u64>, _: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("ranges of tests fit")];
        self.read(range.start, &mut bytes)?;
        for part in bytes.chunk_by(|a, b| (*a == 0) == (*b == 0)) {
            let flags = if part[0] == 0 { allocation_flag::HOLE | allocation_flag::ZERO } else { 0 };
            if !extents.push(part.len() as u64, flags) {
                break;
            }
        }
        Ok(())
    }
}
