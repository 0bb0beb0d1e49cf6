//! Changes of a volume: recorded first, unless the group is behind.

use std::ops::Range;

use crate::journal::{AppendError, Op, RECORD_BYTES_MAX, Record};
use crate::nbd::wire::Errno;
use crate::volume::group::{Group, WhenBehind, errno_of};

/// Why a change was not made.
enum Refused {
    /// The journal has no space, and the group need not wait for it.
    Full,
    Failed(Errno),
    /// The volume lacks the change that the journal has, and what the volume holds cannot be recorded.
    Unfinished(Errno),
}

impl Group {
    /// Lets a change take place: first in the journal, then in the volume. While the group is behind, its extents are marked instead.
    pub(super) fn change(&self, record: &Record<'_>, write: &dyn Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        let (volume, range) = (record.volume, record.offset..record.offset + record.len);
        if range.is_empty() {
            return Ok(());
        }
        let is_bitmap = self.options.when_behind == WhenBehind::Bitmap;
        self.pace(record.payload.len() as u64);
        let _held = self.hold(volume, range.clone());
        loop {
            let request = self.begin(volume, range.clone(), is_bitmap)?;
            if !request.is_recorded() {
                self.mark_behind(volume, &range)?;
                let outcome = write();
                let now = self.host.monotonic();
                self.requests.lock().unrecorded_since.get_or_insert(now);
                return outcome;
            }
            match self.change_recorded(record, write) {
                Ok(()) => return Ok(()),
                Err(Refused::Failed(errno)) => return Err(errno),
                Err(Refused::Unfinished(errno)) => {
                    request.leave_unfinished();
                    return Err(errno);
                }
                Err(Refused::Full) => {
                    drop(request);
                    self.fall_behind(volume, &range)?;
                }
            }
        }
    }

    fn change_recorded(&self, record: &Record<'_>, write: &dyn Fn() -> Result<(), Errno>) -> Result<(), Refused> {
        let lsn = self.append(record).map_err(|error| self.refused(&error))?;
        self.journal.commit(lsn).map_err(|error| Refused::Failed(errno_of(&error)))?;
        let Err(errno) = write() else { return Ok(()) };
        match self.record_again(record.volume, record.offset..record.offset + record.len) {
            Ok(()) => Err(Refused::Failed(errno)),
            Err(Refused::Full) => Err(Refused::Full),
            Err(Refused::Failed(_) | Refused::Unfinished(_)) => Err(Refused::Unfinished(errno)),
        }
    }

    fn refused(&self, error: &AppendError) -> Refused {
        let is_bitmap = self.options.when_behind == WhenBehind::Bitmap;
        if is_bitmap && matches!(error, AppendError::Full) { Refused::Full } else { Refused::Failed(errno_of(error)) }
    }

    /// Records what a range holds after the volume refused a change that is in the journal. If it cannot be read, or if the journal may have
    /// no space for it, a gap is recorded, and the range is behind.
    fn record_again(&self, volume: u16, range: Range<u64>) -> Result<(), Refused> {
        let (offset, len) = (range.start, range.end - range.start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(RECORD_BYTES_MAX)];
        let found = if len == bytes.len() as u64 && self.origin(volume).read(offset, &mut bytes).is_ok() {
            Record::write(volume, offset, &bytes)
        } else {
            self.mark_behind(volume, &range).map_err(Refused::Failed)?;
            Record::range(Op::Gap, volume, offset, len)
        };
        let of = |op| Record::range(op, volume, offset, len);
        let last = self.append_waiting(&[of(Op::ResyncBegin), found, of(Op::ResyncEnd)]);
        let last = last.map_err(|error| self.refused(&error))?;
        self.journal.commit(last).map_err(|error| Refused::Failed(errno_of(&error)))
    }
}
