//! Being behind: extents whose changes are not recorded, the gap that the history gets for them, and how it is closed.
//!
//! Order of falling behind: the first extents are marked; no request is in progress any more; journal and volumes are synced, so that no
//! earlier record is written over what follows; the gap is durable in the journal; changes are made without records, each after its own
//! marks. Order of recovering: no request is in progress; the gap is narrowed to the marked extents; changes are recorded again; each
//! marked extent is recorded as it is in the volume; when all are, the gap is closed, the journal is synced, and the marks go.

use std::ops::Range;
use std::sync::PoisonError;

use onefold_engine::error::{Error, Result};

use crate::journal::{AppendError, Op, RECORD_BYTES_MAX, Record};
use crate::nbd::export::{Context, StatusExtents};
use crate::nbd::wire::{Errno, allocation_flag};
use crate::volume::behind::{BEHIND_BYTES, VolumeRange};
use crate::volume::compare::BLOCK_BYTES;
use crate::volume::group::{Group, WhenBehind, errno_of};
use crate::volume::requests::Mode;

/// Most bytes of a hole that are recorded in one step: nobody can change them meanwhile.
const HOLE_BYTES_MAX: u64 = 1 << 30;
/// Ranges that are recorded between two syncs of the journal for the sake of their marks: 64 MiB, unless they are holes.
const RESYNCED_MAX: usize = 64;
/// Most ranges of a volume that a gap is narrowed to. People read them.
const ANNOUNCED_MAX: usize = 16;

/// Outcome of [`Group::resync_step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resync {
    /// No extent is behind.
    Done,
    /// The journal has no space to spend on this now: half of it is for clients.
    Waiting,
    /// Extents were recorded; there may be more.
    Stepped,
}

impl Group {
    /// Returns true if the journal is less than half full: extents that are behind are recorded then.
    fn is_half_empty(&self) -> bool {
        let status = self.journal.status();
        2 * status.used < status.bytes_max
    }

    /// Marks extents of a range, durably, before the volume is changed without a record.
    pub(super) fn mark_behind(&self, volume: u16, range: &Range<u64>) -> Result<(), Errno> {
        // They may have been recorded again a moment ago: that is not their last change any more.
        self.requests.lock().resynced.clear();
        self.behind.mark(volume, range.clone()).map_err(|_| Errno::Io)
    }

    /// Ends recording, since the journal has no space for a change of a range. No request of this thread is in progress.
    pub(super) fn fall_behind(&self, volume: u16, range: &Range<u64>) -> Result<(), Errno> {
        self.mark_behind(volume, range)?;
        if !self.requests.end_mode(Mode::Recording) {
            return Ok(());
        }
        let outcome = self.begin_gap();
        self.requests.begin_mode(if outcome.is_ok() { Mode::Behind } else { Mode::Recording });
        outcome
    }

    fn begin_gap(&self) -> Result<(), Errno> {
        // No request is in progress, so all records are in the volumes.
        self.sync()?;
        let volumes = 0..u16::try_from(self.volumes()).expect("volumes have 16 bits");
        let gap = |volume| Record::range(Op::Gap, volume, 0, self.origin(volume).size());
        let records: Vec<Record<'_>> = volumes.map(gap).collect();
        let recorded = self.journal.append_together(&records, 0).and_then(|last| {
            self.journal.commit(last)?;
            self.journal.sync()
        });
        recorded.map_err(|error| errno_of(&error))?;
        self.behind.set_announced(true).map_err(|_| Errno::Io)
    }

    /// Prepares a group that was opened with extents that are behind: earlier records must not be written over changes without one, and
    /// the history gets a gap, if it has none and there is space. No request is in progress.
    pub(super) fn continue_behind(&self) -> Result<()> {
        if self.behind.is_empty() {
            return Ok(());
        }
        let outcome = if self.behind.is_announced() { self.sync() } else { self.begin_gap() };
        match outcome {
            // Before any other record, the history gets the gap all the same.
            Ok(()) | Err(Errno::NoSpace) => Ok(()),
            Err(errno) => Err(Error::invalid(format!("the group cannot be synced: {errno:?}"))),
        }
    }

    /// Begins to record again, if the journal has space; returns true if changes are recorded.
    pub(super) fn record_again_if_possible(&self) -> Result<bool, AppendError> {
        if self.options.when_behind == WhenBehind::Bitmap && !self.is_half_empty() {
            return Ok(false);
        }
        if !self.requests.end_mode(Mode::Behind) {
            return Ok(true);
        }
        let outcome = self.announce();
        self.requests.begin_mode(if outcome.is_ok() { Mode::Recording } else { Mode::Behind });
        match outcome {
            Err(AppendError::Full) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Lets the history have a gap in the marked extents, and in hardly more.
    fn announce(&self) -> Result<(), AppendError> {
        // The gap ends outside these extents: those that are marked later need another one.
        self.behind.set_announced(false).map_err(AppendError::Failed)?;
        for volume in 0..self.volumes() {
            let volume = u16::try_from(volume).expect("volumes have 16 bits");
            let size = self.origin(volume).size();
            let records = announcement(volume, size, &self.behind.ranges(volume, ANNOUNCED_MAX));
            let last = self.append_now(&records)?;
            self.journal.commit(last)?;
        }
        Ok(())
    }

    /// Records extents that are behind as they are in the volume, at most 1 MiB of data or 1 GiB of a hole. One thread calls this until
    /// nothing is behind; it takes space of the journal only while that is less than half full.
    ///
    /// Fails if a volume cannot be read; the next call goes on with other extents.
    pub fn resync_step(&self) -> Result<Resync> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if self.behind.is_empty() {
            return Ok(Resync::Done);
        }
        let failed = |error: AppendError| Error::invalid(error.to_string());
        if !self.requests.lock().is_usable {
            return Err(Error::invalid("the group takes no records any more"));
        }
        if !self.is_half_empty() || !self.record_again_if_possible().map_err(failed)? {
            self.drop_marks()?;
            return Ok(Resync::Waiting);
        }
        let mut ahead = *cursor;
        let Some(run) = self.behind.next(&mut ahead, HOLE_BYTES_MAX) else {
            *cursor = 0;
            self.drop_marks()?;
            return Ok(if self.behind.is_empty() { Resync::Done } else { Resync::Stepped });
        };
        let hole = self.hole_at(&run);
        let most = if hole == 0 { RECORD_BYTES_MAX as u64 } else { hole };
        let Some(next) = self.behind.next(&mut cursor, most) else { return Ok(Resync::Stepped) };
        if !self.record_extents(next)? {
            return Ok(Resync::Waiting);
        }
        if RESYNCED_MAX <= self.requests.lock().resynced.len() {
            self.drop_marks()?;
        }
        Ok(Resync::Stepped)
    }

    /// Returns the bytes of whole extents at the beginning of a range that are a hole of the volume.
    fn hole_at(&self, range: &VolumeRange) -> u64 {
        let (origin, bytes) = (self.origin(range.volume), &range.bytes);
        if !origin.has_context(Context::Allocation) {
            return 0;
        }
        let mut extents = StatusExtents::default();
        let len = u32::try_from(bytes.end - bytes.start).unwrap_or(u32::MAX);
        extents.begin(len, 1);
        if origin.block_status(bytes.clone(), Context::Allocation, &mut extents).is_err() {
            return 0;
        }
        match extents.as_slice() {
            [first, ..] if first.flags & allocation_flag::ZERO != 0 => {
                if first.len == len {
                    len.into()
                } else {
                    u64::from(first.len) / BEHIND_BYTES * BEHIND_BYTES
                }
            }
            _ => 0,
        }
    }

    /// Records a range as it is in the volume; returns false if the journal has no space for it.
    fn record_extents(&self, range: VolumeRange) -> Result<bool> {
        let VolumeRange { volume, bytes } = &range;
        let _held = self.hold(*volume, bytes.clone());
        let request =
            self.begin(*volume, 0..0, true).map_err(|_| Error::invalid("the group takes no records any more"))?;
        if !request.is_recorded() {
            return Ok(false);
        }
        let len = bytes.end - bytes.start;
        let recorded = if self.hole_at(&range) == len {
            self.append_now(&[Record::range(Op::Zero, *volume, bytes.start, len)])
        } else if len <= RECORD_BYTES_MAX as u64 {
            let mut found = vec![0; usize::try_from(len).expect("a record is short")];
            self.read_origin(*volume, bytes.start, &mut found)?;
            self.append_now(&contents(*volume, bytes.start, &found))
        } else {
            // It was a hole a moment ago. The next step reads its beginning.
            return Ok(true);
        };
        match recorded.and_then(|last| self.journal.commit(last)) {
            Ok(()) => self.requests.lock().resynced.push(range),
            Err(AppendError::Full) => return Ok(false),
            Err(error) => return Err(Error::invalid(error.to_string())),
        }
        drop(request);
        Ok(true)
    }

    /// Drops the marks of extents that were recorded again, when the journal is durable up to there. If no others are left, the gap of
    /// the history is closed first.
    fn drop_marks(&self) -> Result<()> {
        let failed = |error: AppendError| Error::invalid(error.to_string());
        let state = self.requests.lock();
        let bytes: u64 = state.resynced.iter().map(|range| range.bytes.end - range.bytes.start).sum();
        if bytes == 0 || state.mode != Mode::Recording {
            return Ok(());
        }
        if bytes == self.behind.bytes() {
            // No change is missing now: whatever is in progress is recorded.
            let last = match self.append_now(&closing(self.origin_sizes())) {
                Ok(last) => last,
                Err(AppendError::Full) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
            drop(state);
            self.journal.commit(last).map_err(failed)?;
        } else {
            drop(state);
        }
        self.journal.sync().map_err(failed)?;
        let mut state = self.requests.lock();
        // Extents that were marked meanwhile are not among them any more.
        for VolumeRange { volume, bytes } in std::mem::take(&mut state.resynced) {
            self.behind.clear(volume, bytes);
        }
        drop(state);
        self.behind.persist()
    }

    fn origin_sizes(&self) -> impl Iterator<Item = (u16, u64)> {
        (0..self.volumes()).map(|volume| {
            let volume = u16::try_from(volume).expect("volumes have 16 bits");
            (volume, self.origin(volume).size())
        })
    }
}

/// Returns records that narrow the gap of a volume to ranges.
fn announcement(volume: u16, size: u64, ranges: &[Range<u64>]) -> Vec<Record<'static>> {
    let mut records = Vec::with_capacity(3 * ranges.len() + 2);
    let mut known = |bytes: Range<u64>| {
        if !bytes.is_empty() {
            let of = |op| Record::range(op, volume, bytes.start, bytes.end - bytes.start);
            records.extend([of(Op::ResyncBegin), of(Op::ResyncEnd)]);
        }
    };
    let mut end = 0;
    for range in ranges {
        known(end..range.start);
        end = range.end;
    }
    known(end..size);
    records.extend(ranges.iter().map(|range| Record::range(Op::Gap, volume, range.start, range.end - range.start)));
    records
}

/// Returns records that close all gaps.
fn closing(volumes: impl Iterator<Item = (u16, u64)>) -> Vec<Record<'static>> {
    let of = |(volume, size)| [Op::ResyncBegin, Op::ResyncEnd].map(|op| Record::range(op, volume, 0, size));
    volumes.flat_map(of).collect()
}

/// Returns records of bytes, blocks of zeros apart from others.
fn contents(volume: u16, offset: u64, found: &[u8]) -> Vec<Record<'_>> {
    let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
    let blocks: Vec<&[u8]> = found.chunks(BLOCK_BYTES).collect();
    let mut records = Vec::new();
    let mut start = 0;
    for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len: usize = run.iter().map(|block| block.len()).sum();
        let at = offset + start as u64;
        records.push(if run.first().is_some_and(is_zero) {
            Record::range(Op::Zero, volume, at, len as u64)
        } else {
            Record::write(volume, at, &found[start..start + len])
        });
        start += len;
    }
    records
}
