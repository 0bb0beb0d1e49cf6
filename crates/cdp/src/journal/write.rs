//! Writing: group commit without a timer and without a thread of its own.
//!
//! A thread that has appended a record and finds that no frame is being written seals the open frame and writes it. Others append to
//! the next frame meanwhile, and one of them writes that. So one frame is written at a time, and a single writer waits for nobody.

mod checks;
mod follow;
mod opening;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::background::Background;
use onefold_engine::io::{DiskFile, Host};

use crate::journal::codec::{
    BLOCK_BYTES, FRAME_BODY_MAX, FRAME_HEADER_BYTES, FrameHeader, Op, Record, TAG_BYTES, frame_bytes,
};
use crate::journal::head::{Head, HeadNote};
use crate::journal::reader::Frames;
use crate::journal::segment::{Chain, Directory, Segment};
use crate::journal::status::{JournalStatus, Lag, find_frame};
use crate::journal::{AppendError, GroupId, Lsn};

/// The frame that takes records.
#[derive(Debug)]
struct OpenFrame {
    /// Room for the header, then the body.
    bytes: Vec<u8>,
    records: u32,
    /// Its time, if it is not that of its writing.
    time: Option<u64>,
}

impl Default for OpenFrame {
    fn default() -> Self {
        Self { bytes: vec![0; FRAME_HEADER_BYTES], records: 0, time: None }
    }
}

impl OpenFrame {
    fn body(&self) -> usize {
        self.bytes.len() - FRAME_HEADER_BYTES
    }

    fn clear(&mut self) {
        self.bytes.truncate(FRAME_HEADER_BYTES);
        self.records = 0;
        self.time = None;
    }
}

/// State of the thread that writes frames. Only one has it at a time.
#[derive(Debug)]
struct Writer {
    /// The segment that takes frames; none after an opening, until the first frame.
    segment: Option<Segment>,
    offset: u64,
    next: Chain,
    /// Number of the next segment.
    number: u64,
    /// Files that are filled with zeros.
    free: Vec<u64>,
    /// Segments that were released, the oldest first.
    released: VecDeque<u64>,
    /// Number of the next file that is made, and the one that is being made.
    file_number: u64,
    filling: Option<(u64, Background<Result<()>>)>,
}

#[derive(Debug, Default)]
struct State {
    open: OpenFrame,
    /// Memory of the frame before, for the next one.
    reusable: Option<OpenFrame>,
    /// The next record, the one after the last that is in its file, and the one after the last that is durable.
    next: Lsn,
    written: Lsn,
    synced: Lsn,
    /// The highest frames of both.
    written_frame: u64,
    synced_frame: u64,
    /// Taken by the thread that writes.
    writer: Option<Box<Writer>>,
    /// Bytes of the frame that is being written; 0 if none is.
    in_flight: u64,
    /// Bytes left in the segment that takes frames.
    left: u64,
    is_syncing: bool,
    /// When the open frame, and the one that is being written, got their first records, by the host's monotonic clock.
    open_since: Duration,
    in_flight_since: Duration,
    /// When the oldest record was appended that is not durable, and the oldest that the sync in progress does not cover.
    unsynced_since: Option<Duration>,
    uncovered_since: Option<Duration>,
    /// Files with frames that are not durable.
    dirty: Vec<(u64, Arc<dyn DiskFile>)>,
    /// Segments with records, and their first records.
    segments: VecDeque<(u64, Lsn)>,
    /// Segments that were released, for the writer to use again.
    released: VecDeque<u64>,
    failed: Option<Error>,
}

/// Returns the boot of the system; zeros if it is not known.
fn boot_of(host: &dyn Host) -> [u8; 16] {
    host.process().map_or([0; 16], |process| process.boot)
}

/// The journal of a consistency group. Any number of threads may use it.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    host: Arc<dyn Host>,
    head: Mutex<Head>,
    /// The next record when it was opened.
    opened: Lsn,
    state: Mutex<State>,
    changed: Condvar,
}

impl Journal {
    /// Memory that a journal takes: the frame that is written and the one that takes records, each with its padding.
    pub const MEMORY_BYTES: usize = 2 * (FRAME_HEADER_BYTES + FRAME_BODY_MAX + TAG_BYTES + BLOCK_BYTES);

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes in the head how far the journal has come.
    fn note(&self, change: impl FnOnce(&mut HeadNote)) -> Result<()> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner).change(change)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record to the open frame; returns its place. The record survives the end of the process once
    /// [`Journal::commit`] returns for it.
    ///
    /// Panics if the record is not sound.
    pub fn append(&self, record: &Record<'_>) -> Result<Lsn, AppendError> {
        self.append_together(std::slice::from_ref(record), 0)
    }

    /// Appends records that a crash keeps all or none of; returns the place of the last. So many bytes of the journal are left free,
    /// for records that are appended with less.
    ///
    /// Panics if a record is not sound, if there are none, and if they do not fit into a frame.
    pub fn append_together(&self, records: &[Record<'_>], leaving: u64) -> Result<Lsn, AppendError> {
        for record in records {
            assert!(record.is_sound(), "{record:?}");
        }
        let bytes: usize = records.iter().map(Record::bytes).sum();
        assert!((1..=FRAME_BODY_MAX).contains(&bytes), "{bytes} bytes of records in one frame");
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.failed {
                return Err(AppendError::Failed(error.clone()));
            }
            let body = state.open.body() + bytes;
            if body <= FRAME_BODY_MAX {
                if !self.has_space(&state, body, leaving) {
                    return Err(AppendError::Full);
                }
                break;
            }
            state = self.write_or_wait(state)?;
        }
        if state.open.records == 0 {
            state.open_since = self.host.monotonic();
        }
        let since = state.open_since;
        state.unsynced_since.get_or_insert(since);
        if state.is_syncing {
            state.uncovered_since.get_or_insert(since);
        }
        for record in records {
            record.encode(&mut state.open.bytes);
        }
        let count = u32::try_from(records.len()).expect("records of a frame are few");
        state.open.records += count;
        state.next = Lsn(state.next.0 + u64::from(count));
        Ok(Lsn(state.next.0 - 1))
    }

    /// Returns when a record is in its file.
    pub fn commit(&self, lsn: Lsn) -> Result<(), AppendError> {
        let mut state = self.lock();
        loop {
            if lsn < state.written {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(AppendError::Failed(error.clone()));
            }
            state = self.write_or_wait(state)?;
        }
    }

    /// Returns when all records that were committed before the call are durable.
    pub fn sync(&self) -> Result<(), AppendError> {
        let mut state = self.lock();
        let until = state.written;
        loop {
            if until <= state.synced {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(AppendError::Failed(error.clone()));
            }
            if state.is_syncing {
                state = self.wait(state);
                continue;
            }
            state.is_syncing = true;
            let (covered, frame, files) = (state.written, state.written_frame, state.dirty.clone());
            let since_open = (state.open.records != 0).then_some(state.open_since);
            state.uncovered_since = if state.in_flight == 0 { since_open } else { Some(state.in_flight_since) };
            drop(state);
            let synced = files.iter().try_for_each(|(_, file)| file.sync_data());
            let outcome = synced.and_then(|()| self.note(|note| note.durable = covered));
            state = self.lock();
            state.is_syncing = false;
            match outcome {
                Ok(()) => {
                    (state.synced, state.synced_frame) = (covered, frame);
                    state.unsynced_since = state.uncovered_since.take();
                    // The last one may have got more frames meanwhile.
                    let last = files.last().map_or(0, |(number, _)| *number);
                    state.dirty.retain(|(number, _)| last <= *number);
                }
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
            }
            self.changed.notify_all();
        }
    }

    /// Releases the segments all of whose records come before one. They are used again.
    pub fn release(&self, before: Lsn) {
        let mut state = self.lock();
        while 1 < state.segments.len() && state.segments.get(1).is_some_and(|(_, next)| *next <= before) {
            if let Some((number, _)) = state.segments.pop_front() {
                state.released.push_back(number);
            }
        }
        self.changed.notify_all();
    }

    /// Returns a reader of the records from one on, up to those that are in their files now. [`Journal::release`] must not release them
    /// meanwhile.
    pub fn frames(&self, from: Lsn) -> Frames {
        let state = self.lock();
        let first = state.segments.partition_point(|(_, first)| *first <= from).saturating_sub(1);
        let segments = state.segments.iter().skip(first).map(|(number, _)| *number).collect();
        Frames::new(self.directory.clone(), segments, from, state.written)
    }

    /// Returns the consistency group.
    pub fn group(&self) -> GroupId {
        self.directory.identity.group
    }

    /// Returns the next record.
    pub fn next(&self) -> Lsn {
        self.lock().next
    }

    /// Returns the state.
    pub fn status(&self) -> JournalStatus {
        let state = self.lock();
        let segments = u32::try_from(state.segments.len()).unwrap_or(u32::MAX);
        JournalStatus {
            first: state.segments.front().map_or(state.next, |(_, first)| *first),
            next: state.next,
            durable: state.synced,
            segments,
            segments_max: self.directory.size.segments_max,
            bytes: u64::from(segments) * self.directory.size.segment_bytes,
            bytes_max: self.directory.size.bytes(),
            used: (u64::from(segments) * self.directory.size.segment_bytes).saturating_sub(state.left),
        }
    }

    /// Returns how much the journal has from a record on. It reads headers of one segment; if that is released meanwhile, or cannot be
    /// read, the time is not known.
    pub fn lag(&self, from: Lsn) -> Lag {
        let state = self.lock();
        let records = state.next.0.saturating_sub(from.0);
        if state.written <= from {
            return Lag { records, ..Lag::default() };
        }
        let at = state.segments.partition_point(|(_, first)| *first <= from).saturating_sub(1);
        let Some((number, _)) = state.segments.get(at).copied() else { return Lag { records, ..Lag::default() } };
        let behind = (state.segments.len() - at) as u64 * self.directory.size.segment_bytes;
        let behind = behind.saturating_sub(state.left);
        drop(state);
        let found = find_frame(&self.directory, number, from).unwrap_or(None);
        let bytes = behind.saturating_sub(found.map_or(0, |(offset, _)| offset));
        Lag { records, bytes, time: found.map(|(_, time)| time) }
    }

    /// Returns the age of the oldest record that is not durable; `None` if all are.
    pub fn unsynced_age(&self) -> Option<Duration> {
        let since = self.lock().unsynced_since?;
        Some(self.host.monotonic().saturating_sub(since))
    }

    /// Returns the first failure of a write or sync, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failed.clone()
    }

    /// Appends a last record after everything is durable, and makes it durable too: from now on, the loss of any earlier record is
    /// noticed at the next opening. Without a record since the opening there is nothing to protect. A journal that has no more than the
    /// bytes to leave free has no space for the record, and is durable all the same.
    pub fn close(&self, leaving: u64) -> Result<(), AppendError> {
        self.sync()?;
        if self.lock().written == self.opened {
            return Ok(());
        }
        match self.append_together(&[Record::range(Op::Flush, 0, 0, 0)], leaving) {
            Ok(lsn) => {
                self.commit(lsn)?;
                self.sync()
            }
            Err(AppendError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the frame that is being written and the open one with a body of so many bytes have space, with so many bytes left
    /// free after them.
    fn has_space(&self, state: &State, body: usize, leaving: u64) -> bool {
        let mut left = state.left;
        let mut segments =
            self.directory.size.segments_max.saturating_sub(u32::try_from(state.segments.len()).unwrap_or(u32::MAX));
        for bytes in [state.in_flight, frame_bytes(body) as u64, leaving] {
            if left < bytes {
                let Some(fewer) = segments.checked_sub(1) else { return false };
                (segments, left) = (fewer, self.directory.size.segment_bytes - BLOCK_BYTES as u64);
            }
            let Some(less) = left.checked_sub(bytes) else { return false };
            left = less;
        }
        true
    }

    /// Writes the open frame, or waits until the thread that writes has written one.
    fn write_or_wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, AppendError> {
        let Some(mut writer) = state.writer.take() else { return Ok(self.wait(state)) };
        writer.released.append(&mut state.released);
        let next = state.reusable.take().unwrap_or_default();
        let mut frame = std::mem::replace(&mut state.open, next);
        state.in_flight = frame_bytes(frame.body()) as u64;
        state.in_flight_since = state.open_since;
        let in_use = state.segments.len();
        let synced = state.synced_frame;
        drop(state);
        let outcome = self.write_frame(&mut writer, &mut frame, synced, in_use);
        let mut state = self.lock();
        state.in_flight = 0;
        if let Err(error) = outcome {
            state.failed.get_or_insert(error);
        } else if let Some(segment) = &writer.segment {
            if state.dirty.last().is_none_or(|(number, _)| *number != segment.number) {
                state.dirty.push((segment.number, Arc::clone(&segment.file)));
            }
            if state.segments.back().is_none_or(|(number, _)| *number != segment.number) {
                state.segments.push_back((segment.number, segment.start.lsn));
            }
            state.left = self.directory.size.segment_bytes - writer.offset;
            (state.written, state.written_frame) = (writer.next.lsn, writer.next.frame - 1);
            frame.clear();
            state.reusable = Some(frame);
        }
        state.writer = Some(writer);
        self.changed.notify_all();
        match &state.failed {
            Some(error) => Err(AppendError::Failed(error.clone())),
            None => Ok(state),
        }
    }

    /// Seals a frame and writes it.
    fn write_frame(&self, writer: &mut Writer, frame: &mut OpenFrame, synced: u64, in_use: usize) -> Result<()> {
        let len = frame_bytes(frame.body()) as u64;
        let fits = writer.segment.is_some() && writer.offset + len <= self.directory.size.segment_bytes;
        if !fits {
            self.begin_segment(writer, in_use)?;
        }
        let segment = writer.segment.as_ref().expect("a segment has begun");
        let now = self.host.now();
        let seconds = u64::try_from(now.seconds).unwrap_or(0);
        let header = FrameHeader {
            records: frame.records,
            body: u32::try_from(frame.body()).expect("bodies are short"),
            number: writer.next.frame,
            first_lsn: writer.next.lsn,
            synced,
            time: frame
                .time
                .unwrap_or_else(|| seconds.saturating_mul(1_000_000_000).saturating_add(now.nanoseconds.into())),
            previous_tag: writer.next.tag,
        };
        let encoded = header.encode();
        let (front, body) = frame.bytes.split_at_mut(FRAME_HEADER_BYTES);
        front.copy_from_slice(&encoded);
        let tag = segment.key.seal(header.number, &encoded, body);
        frame.bytes.extend_from_slice(&tag);
        frame.bytes.resize(usize::try_from(len).expect("frames are short"), 0);
        segment.file.write_at(writer.offset, &frame.bytes)?;
        writer.offset += len;
        writer.next = Chain { frame: header.number + 1, lsn: Lsn(header.first_lsn.0 + u64::from(header.records)), tag };
        Ok(())
    }

    /// Begins the next segment in a free file, and lets the one after it be filled in the background.
    fn begin_segment(&self, writer: &mut Writer, in_use: usize) -> Result<()> {
        if writer.free.is_empty()
            && let Some(number) = writer.released.pop_front()
        {
            self.directory.free(number, writer.file_number)?;
            writer.free.push(writer.file_number);
            writer.file_number += 1;
        }
        if writer.free.is_empty()
            && let Some((number, filling)) = writer.filling.take()
        {
            filling.wait()??;
            writer.free.push(number);
        }
        let free = if let Some(free) = writer.free.pop() {
            free
        } else {
            let number = writer.file_number;
            writer.file_number += 1;
            self.directory.fill(number)?;
            number
        };
        writer.segment = Some(self.directory.begin(&*self.host, free, writer.number, writer.next)?);
        let boot = boot_of(&*self.host);
        self.note(|note| (note.segment, note.boot) = (writer.number, boot))?;
        writer.number += 1;
        writer.offset = BLOCK_BYTES as u64;
        let files = in_use + 1 + writer.released.len();
        let may_grow = files < self.directory.size.segments_max as usize;
        if writer.free.is_empty() && writer.released.is_empty() && writer.filling.is_none() && may_grow {
            let (number, directory) = (writer.file_number, self.directory.clone());
            writer.file_number += 1;
            writer.filling =
                Some((number, Background::start(&self.host, "journal segment", move || directory.fill(number))));
        }
        Ok(())
    }
}
