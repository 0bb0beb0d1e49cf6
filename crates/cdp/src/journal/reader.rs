//! Reading frames: of one segment, and of the whole journal from a record on.

use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::DiskFile;

use crate::journal::Lsn;
use crate::journal::codec::{BLOCK_BYTES, FRAME_HEADER_BYTES, FrameHeader, Record, Records, TAG_BYTES, frame_bytes};
use crate::journal::segment::{Chain, Directory, Segment};

/// A frame that was opened, in a buffer that the next one uses again.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) header: FrameHeader,
    pub(super) body: &'a [u8],
    /// Tag of the frame.
    pub(super) tag: [u8; TAG_BYTES],
    /// Offset of the next frame.
    pub(super) end: u64,
}

/// Opens the frame at an offset of a segment; `None` if there is none. Fails only if the file cannot be read.
pub(super) fn open_frame<'a>(
    segment: &Segment,
    segment_bytes: u64,
    offset: u64,
    buffer: &'a mut Vec<u8>,
) -> Result<Option<Frame<'a>>> {
    let Some(left) = segment_bytes.checked_sub(offset).filter(|left| BLOCK_BYTES as u64 <= *left) else {
        return Ok(None);
    };
    buffer.resize(BLOCK_BYTES, 0);
    segment.file.read_at(offset, buffer)?;
    let Some(header) = buffer.first_chunk::<FRAME_HEADER_BYTES>().and_then(FrameHeader::decode) else {
        return Ok(None);
    };
    let len = frame_bytes(header.body as usize);
    if left < len as u64 {
        return Ok(None);
    }
    buffer.resize(len, 0);
    if BLOCK_BYTES < len {
        segment.file.read_at(offset + BLOCK_BYTES as u64, buffer.get_mut(BLOCK_BYTES..).unwrap_or_default())?;
    }
    let (front, rest) = buffer.split_at_mut(FRAME_HEADER_BYTES);
    let Some(sealed) = rest.get_mut(..header.body as usize + TAG_BYTES) else { return Ok(None) };
    let tag = *sealed.last_chunk::<TAG_BYTES>().expect("a tag follows the body");
    let Some(body) = segment.key.open(header.number, front, sealed) else { return Ok(None) };
    if Records::of(body, header.records).is_none() {
        return Ok(None);
    }
    Ok(Some(Frame { header, body, tag, end: offset + len as u64 }))
}

/// Frames of a segment in order, each continuing the one before.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) segment: Segment,
    pub(super) offset: u64,
    pub(super) next: Chain,
    segment_bytes: u64,
}

impl Walk {
    pub(super) fn new(segment: Segment, segment_bytes: u64) -> Self {
        let next = segment.start;
        Self { segment, offset: BLOCK_BYTES as u64, next, segment_bytes }
    }

    /// Returns the next frame; `None` at the end.
    pub(super) fn step<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Result<Option<Frame<'a>>> {
        let Some(frame) = open_frame(&self.segment, self.segment_bytes, self.offset, buffer)? else {
            return Ok(None);
        };
        let FrameHeader { number, first_lsn, previous_tag, records, .. } = frame.header;
        if (Chain { frame: number, lsn: first_lsn, tag: previous_tag }) != self.next {
            return Ok(None);
        }
        self.next = Chain { frame: number + 1, lsn: Lsn(first_lsn.0 + u64::from(records)), tag: frame.tag };
        self.offset = frame.end;
        Ok(Some(frame))
    }
}

/// A record with its place in the order, and the time of its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Its place.
    pub lsn: Lsn,
    /// Wall clock, in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// The record.
    pub record: Record<'a>,
}

/// Reads the records of a journal from one on, up to those that were written when the reader was made.
#[derive(Debug)]
pub struct Frames {
    directory: Directory,
    /// Segments that are left, the next one last.
    segments: Vec<u64>,
    /// The newest segment that it knows; 0 if none.
    newest: u64,
    walk: Option<Walk>,
    from: Lsn,
    /// The record after the last one to be read.
    end: Lsn,
    buffer: Vec<u8>,
    file: Option<Arc<dyn DiskFile>>,
}

impl Frames {
    pub(super) fn new(directory: Directory, mut segments: Vec<u64>, from: Lsn, end: Lsn) -> Self {
        let newest = segments.last().copied().unwrap_or(0);
        segments.reverse();
        Self { directory, segments, newest, walk: None, from, end, buffer: Vec::new(), file: None }
    }

    /// Returns the record that it reads next.
    pub fn position(&self) -> Lsn {
        self.walk.as_ref().map_or(self.from, |walk| walk.next.lsn.max(self.from))
    }

    /// Lets the reader go on to a record, in all segments of the journal, ascending.
    pub(super) fn extend(&mut self, segments: impl DoubleEndedIterator<Item = u64>, end: Lsn) {
        let newer: Vec<u64> = segments.rev().take_while(|number| self.newest < *number).collect();
        self.newest = newer.first().copied().unwrap_or(self.newest);
        self.segments.splice(0..0, newer);
        self.end = end;
    }

    /// Passes the records of the next frame, in order; returns false at the end.
    ///
    /// Fails with [`Error::Damaged`] if a frame that was written does not open, with the record up to which all is good.
    pub fn next_frame(&mut self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<bool> {
        loop {
            let at = self.walk.as_ref().map_or(self.from, |walk| walk.next.lsn);
            if self.end <= at.max(self.from) && self.walk.is_some() || self.end <= self.from {
                return Ok(false);
            }
            let Some(walk) = &mut self.walk else {
                let Some(number) = self.segments.pop() else { return Err(self.lost(at)) };
                let Some(segment) = self.directory.open(number)? else { return Err(self.lost(at)) };
                self.file = Some(Arc::clone(&segment.file));
                self.walk = Some(Walk::new(segment, self.directory.size.segment_bytes));
                continue;
            };
            let Some(frame) = walk.step(&mut self.buffer)? else {
                let next = walk.next;
                let Some(number) = self.segments.pop() else { return Err(self.lost(next.lsn)) };
                let segment = self.directory.open(number)?.filter(|segment| segment.start == next);
                let Some(segment) = segment else { return Err(self.lost(next.lsn)) };
                self.walk = Some(Walk::new(segment, self.directory.size.segment_bytes));
                continue;
            };
            let FrameHeader { first_lsn, time, records, .. } = frame.header;
            let records = Records::of(frame.body, records).expect("the frame was checked when it was opened");
            for (lsn, record) in (first_lsn.0..).map(Lsn).zip(records) {
                if (self.from..self.end).contains(&lsn) {
                    each(Entry { lsn, time, record })?;
                }
            }
            return Ok(true);
        }
    }

    fn lost(&self, next: Lsn) -> Error {
        let last = next.0.saturating_sub(1);
        let path = self.directory.disk.display(&self.directory.dir);
        Error::damaged(
            format!("journal {path}"),
            format!("record {next} is gone: every moment up to LSN {last} is good"),
        )
    }
}
