//! A volume whose writes enter the journal of its group first.

use std::ops::Range;
use std::sync::Arc;

use crate::journal::{Op, RECORD_BYTES_MAX, Record};
use crate::nbd::export::{BlockSizes, Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, export_flag};
use crate::volume::activity::{EXTENT_BYTES, EXTENTS_MAX};
use crate::volume::group::{Group, ZEROS};

/// Most bytes that are cleared at a time: a sixteenth of the extents that may be active.
const CLEARED_BYTES: u64 = EXTENTS_MAX as u64 / 16 * EXTENT_BYTES;

/// A protected volume, for a server.
#[derive(Debug)]
pub struct ProtectedVolume {
    group: Arc<Group>,
    number: u16,
}

impl ProtectedVolume {
    /// Offers a volume of a group by its number.
    pub fn new(group: Arc<Group>, number: u16) -> Self {
        Self { group, number }
    }

    fn origin(&self) -> &dyn Export {
        self.group.origin(self.number)
    }

    /// Lets a change take place: first in the journal, then in the volume.
    fn change(&self, record: &Record<'_>, fua: Fua, write: &dyn Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        self.group.change(record, write)?;
        self.sync_if(fua)
    }

    /// Clears a range in parts that the activity log has space for, while other requests go on. As with writes, each part reaches the volume before
    /// the next enters the journal.
    fn clear(&self, op: Op, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        let of_origin = ZeroOptions { fua: Fua::No, ..options };
        let mut start = range.start;
        while start < range.end {
            let end = ((start / CLEARED_BYTES + 1) * CLEARED_BYTES).min(range.end);
            let record = Record::range(op, self.number, start, end - start);
            let write = || self.origin().write_zeroes(start..end, of_origin);
            self.change(&record, Fua::No, &write)?;
            start = end;
        }
        self.sync_if(options.fua)
    }

    fn sync_if(&self, fua: Fua) -> Result<(), Errno> {
        if fua == Fua::Yes { self.group.flush(self.number) } else { Ok(()) }
    }
}

impl Export for ProtectedVolume {
    fn size(&self) -> u64 {
        self.origin().size()
    }

    fn flags(&self) -> u16 {
        // A volume may refuse fast zeros after they have entered the journal.
        let flags = self.origin().flags() & !export_flag::SEND_FAST_ZERO;
        flags | export_flag::SEND_FLUSH | export_flag::SEND_FUA | export_flag::CAN_MULTI_CONN
    }

    fn block_sizes(&self) -> BlockSizes {
        self.origin().block_sizes()
    }

    fn has_context(&self, context: Context) -> bool {
        self.origin().has_context(context)
    }

    fn is_prompt(&self) -> bool {
        self.origin().is_prompt() && self.group.is_prompt()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.origin().read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        // Each part reaches the volume before the next enters the journal, so that both agree if the journal takes no more.
        for (part, bytes) in data.chunks(RECORD_BYTES_MAX).enumerate() {
            let offset = offset + (part * RECORD_BYTES_MAX) as u64;
            let record = Record::write(self.number, offset, bytes);
            let write = || self.origin().write(offset, bytes, Fua::No);
            self.change(&record, Fua::No, &write)?;
        }
        self.sync_if(fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.clear(Op::Zero, range, options)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        // The journal says that the range reads as zeros, so it must.
        self.clear(Op::Trim, range, ZeroOptions { fua, ..ZEROS })
    }

    fn flush(&self) -> Result<(), Errno> {
        self.group.flush(self.number)
    }

    fn cache(&self, range: Range<u64>) -> Result<(), Errno> {
        self.origin().cache(range)
    }

    fn block_status(&self, range: Range<u64>, context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        self.origin().block_status(range, context, extents)
    }
}
