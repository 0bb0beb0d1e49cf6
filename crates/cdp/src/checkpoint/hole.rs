//! A volume of which nothing is known yet.

use std::ops::Range;

use crate::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, allocation_flag, export_flag};

/// A volume that is one hole: the initial image of a volume on another machine. Its history begins with a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HoleVolume {
    /// Its bytes.
    pub(super) size: u64,
}

impl Export for HoleVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn flags(&self) -> u16 {
        export_flag::READ_ONLY
    }

    fn has_context(&self, context: Context) -> bool {
        context == Context::Allocation
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), Errno> {
        into.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn write_zeroes(&self, _: Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn trim(&self, _: Range<u64>, _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: Range<u64>, _: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        extents.push(range.end - range.start, allocation_flag::HOLE | allocation_flag::ZERO);
        Ok(())
    }
}
