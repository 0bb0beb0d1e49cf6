//! State of a journal, and how far something that follows it is behind its end.

use onefold_engine::error::Result;

use crate::journal::Lsn;
use crate::journal::codec::{BLOCK_BYTES, FRAME_HEADER_BYTES, FrameHeader, TAG_BYTES, frame_bytes};
use crate::journal::segment::Directory;

/// State of a journal for people and for back-pressure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalStatus {
    /// The first record that it holds.
    pub first: Lsn,
    /// The next record.
    pub next: Lsn,
    /// The record after the last that is durable.
    pub durable: Lsn,
    /// Segments that hold records.
    pub segments: u32,
    /// Most segments.
    pub segments_max: u32,
    /// Bytes of the segments that hold records.
    pub bytes: u64,
    /// Most bytes of the segments.
    pub bytes_max: u64,
    /// Bytes of the segments without what is left in the last one.
    pub used: u64,
}

/// Records of a journal from one on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lag {
    /// Their number.
    pub records: u64,
    /// Bytes of the journal from the frame with the first of them on.
    pub bytes: u64,
    /// Wall clock of that frame, in nanoseconds since 1970-01-01 00:00:00 UTC. `None` if there is no record, or if the first one is not in
    /// its file yet.
    pub time: Option<u64>,
}

/// Finds the frame with a record in a segment: returns its offset and its wall clock. Only headers are read, which are not
/// authenticated: this is for people.
pub(super) fn find_frame(directory: &Directory, number: u64, lsn: Lsn) -> Result<Option<(u64, u64)>> {
    let Some(segment) = directory.open(number)? else { return Ok(None) };
    let mut offset = BLOCK_BYTES as u64;
    let mut next = segment.start.lsn;
    let mut header = [0; FRAME_HEADER_BYTES];
    while offset + ((FRAME_HEADER_BYTES + TAG_BYTES) as u64) < directory.size.segment_bytes {
        segment.file.read_at(offset, &mut header)?;
        let Some(header) = FrameHeader::decode(&header).filter(|header| header.first_lsn == next) else { break };
        next = Lsn(next.0 + u64::from(header.records));
        if lsn < next {
            return Ok(Some((offset, header.time)));
        }
        offset += frame_bytes(header.body as usize) as u64;
    }
    Ok(None)
}
