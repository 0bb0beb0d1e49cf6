//! A volume whose writes enter the journal of its group first.

use std::ops::Range;
use std::sync::Arc;

use crate::journal::{Lsn, Op, RECORD_BYTES_MAX, Record};
use crate::nbd::export::{BlockSizes, Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, export_flag};
use crate::volume::activity::extents_of;
use crate::volume::group::{Group, ZEROS, errno_of};

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

    /// Lets a change take place: first in the journal, by `append`, which returns its last record, then in the volume.
    fn change(
        &self,
        range: Range<u64>,
        fua: Fua,
        append: impl FnOnce() -> Result<Lsn, Errno>,
        write: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        let _held = self.group.hold(self.number, range.clone());
        let extents = extents_of(self.number, range.clone());
        let start = self.group.begin_write(extents.clone())?;
        let outcome = append().and_then(|lsn| {
            self.group.journal().commit(lsn).map_err(|error| errno_of(&error))?;
            write().or_else(|errno| {
                self.record_again(range).inspect_err(|_| self.group.give_up())?;
                Err(errno)
            })
        });
        self.group.end_write(extents, start);
        outcome?;
        self.sync_if(fua)
    }

    fn sync_if(&self, fua: Fua) -> Result<(), Errno> {
        if fua == Fua::Yes { self.group.flush(self.number) } else { Ok(()) }
    }

    /// Records what a range holds after the volume refused a change that is in the journal. If it cannot be read, a gap is recorded.
    fn record_again(&self, range: Range<u64>) -> Result<(), Errno> {
        let len = range.end - range.start;
        let mut last = self.append(&Record::range(Op::ResyncBegin, self.number, range.start, len))?;
        let mut offset = range.start;
        let mut bytes = vec![0; RECORD_BYTES_MAX];
        while offset < range.end {
            let part = usize::try_from(range.end - offset).unwrap_or(RECORD_BYTES_MAX).min(RECORD_BYTES_MAX);
            let bytes = &mut bytes[..part];
            last = match self.origin().read(offset, bytes) {
                Ok(()) => self.append(&Record::write(self.number, offset, bytes))?,
                Err(_) => self.append(&Record::range(Op::Gap, self.number, offset, part as u64))?,
            };
            offset += part as u64;
        }
        last = self.append(&Record::range(Op::ResyncEnd, self.number, range.start, len))?.max(last);
        self.group.journal().commit(last).map_err(|error| errno_of(&error))
    }

    fn append(&self, record: &Record<'_>) -> Result<Lsn, Errno> {
        self.group.append(record).map_err(|error| errno_of(&error))
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

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.origin().read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        // Each part reaches the volume before the next enters the journal, so that both agree if the journal takes no more.
        for (part, bytes) in data.chunks(RECORD_BYTES_MAX).enumerate() {
            let offset = offset + (part * RECORD_BYTES_MAX) as u64;
            let record = Record::write(self.number, offset, bytes);
            let write = || self.origin().write(offset, bytes, Fua::No);
            self.change(offset..offset + bytes.len() as u64, Fua::No, || self.append(&record), write)?;
        }
        self.sync_if(fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        let record = Record::range(Op::Zero, self.number, range.start, range.end - range.start);
        let of_origin = ZeroOptions { fua: Fua::No, ..options };
        let write = || self.origin().write_zeroes(range.clone(), of_origin);
        self.change(range.clone(), options.fua, || self.append(&record), write)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        // The journal says that the range reads as zeros, so it must.
        let record = Record::range(Op::Trim, self.number, range.start, range.end - range.start);
        let write = || self.origin().write_zeroes(range.clone(), ZEROS);
        self.change(range.clone(), fua, || self.append(&record), write)
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
