//! Bytes of the journal: headers of segments, headers of frames, and records. Decoders check every field, never panic, and allocate
//! nothing.

use onefold_engine::types::RepositoryId;

use crate::journal::{GroupId, Lsn};

/// Unit of all offsets in a segment.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a segment's header; the rest of its block is zero.
pub const SEGMENT_HEADER_BYTES: usize = 156;
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 64;
/// Bytes of the tag after a frame's body.
pub const TAG_BYTES: usize = onefold_engine::crypto::journal::JOURNAL_TAG_BYTES;
/// Bytes of a record, besides its payload.
pub const RECORD_HEADER_BYTES: usize = 24;
/// Most bytes of a record's payload: longer writes are several records.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a frame's body: a longest record and many short ones.
pub const FRAME_BODY_MAX: usize = RECORD_BYTES_MAX + (256 << 10);
/// Most bytes of the name of a mark.
pub const MARK_BYTES_MAX: usize = 255;

const SEGMENT_MAGIC: [u8; 8] = *b"onefoldj";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"ofjf");
/// Version of the journal's format.
const VERSION: u32 = 1;

/// Bytes of a frame with a body of so many bytes, with the padding after it.
pub fn frame_bytes(body: usize) -> usize {
    (FRAME_HEADER_BYTES + body + TAG_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Header of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Repository whose keys seal the journal.
    pub repository: RepositoryId,
    /// Consistency group.
    pub group: GroupId,
    /// Number of the segment; ascends without gaps.
    pub number: u64,
    /// Number of its first frame.
    pub first_frame: u64,
    /// Its first record.
    pub first_lsn: Lsn,
    /// Salt of its key.
    pub salt: [u8; 32],
    /// Commitment to its key.
    pub commitment: [u8; 32],
    /// Tag of the frame before its first.
    pub previous_tag: [u8; TAG_BYTES],
}

/// Contents of the first block of a segment file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SegmentStart {
    /// Only zeros: no header was written yet.
    Zero,
    /// A header.
    Header(SegmentHeader),
    /// A header of a later version.
    Newer(u32),
    /// Neither.
    Damaged,
}

impl SegmentHeader {
    /// Returns the bytes of the header's block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.repository.0);
        out.extend_from_slice(&self.group.0);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.first_frame.to_le_bytes());
        out.extend_from_slice(&self.first_lsn.0.to_le_bytes());
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.commitment);
        out.extend_from_slice(&self.previous_tag);
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.resize(BLOCK_BYTES, 0);
        out
    }

    /// Decodes the first block of a segment file.
    pub fn decode(block: &[u8]) -> SegmentStart {
        if block.iter().all(|byte| *byte == 0) {
            return SegmentStart::Zero;
        }
        Self::decode_fields(block).unwrap_or(SegmentStart::Damaged)
    }

    fn decode_fields(block: &[u8]) -> Option<SegmentStart> {
        let mut fields = Fields(block);
        let magic = fields.array::<8>()?;
        let version = fields.u32()?;
        if magic != SEGMENT_MAGIC {
            return None;
        }
        if VERSION < version {
            return Some(SegmentStart::Newer(version));
        }
        let reserved = fields.u32()?;
        let header = Self {
            repository: RepositoryId(fields.array()?),
            group: GroupId(fields.array()?),
            number: fields.u64()?,
            first_frame: fields.u64()?,
            first_lsn: Lsn(fields.u64()?),
            salt: fields.array()?,
            commitment: fields.array()?,
            previous_tag: fields.array()?,
        };
        let sum = crc32c::crc32c(block.get(..SEGMENT_HEADER_BYTES - 4)?);
        let is_whole = fields.u32()? == sum && version == VERSION && reserved == 0;
        (is_whole && fields.0.iter().all(|byte| *byte == 0)).then_some(SegmentStart::Header(header))
    }
}

/// Header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Records in the frame.
    pub records: u32,
    /// Bytes of the sealed body, without its tag.
    pub body: u32,
    /// Number of the frame; ascends without gaps over all segments.
    pub number: u64,
    /// Its first record.
    pub first_lsn: Lsn,
    /// Highest number of a frame that was durable when this one was sealed: with it, a reader tells a torn end from a loss.
    pub synced: u64,
    /// Wall clock, in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// Tag of the frame before.
    pub previous_tag: [u8; TAG_BYTES],
}

impl FrameHeader {
    /// Returns its bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        let mut rest = &mut out[..];
        let mut put = |bytes: &[u8]| {
            let (front, back) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            front.copy_from_slice(bytes);
            rest = back;
        };
        put(&FRAME_MAGIC.to_le_bytes());
        put(&[0; 4]);
        put(&self.records.to_le_bytes());
        put(&self.body.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.first_lsn.0.to_le_bytes());
        put(&self.synced.to_le_bytes());
        put(&self.time.to_le_bytes());
        put(&self.previous_tag);
        out
    }

    /// Decodes a header; `None` if it is none, or one that no writer makes.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (magic, reserved) = (fields.u32()?, fields.u32()?);
        let header = Self {
            records: fields.u32()?,
            body: fields.u32()?,
            number: fields.u64()?,
            first_lsn: Lsn(fields.u64()?),
            synced: fields.u64()?,
            time: fields.u64()?,
            previous_tag: fields.array()?,
        };
        let body = header.body as usize;
        let records = header.records as usize;
        let is_sound = magic == FRAME_MAGIC
            && reserved == 0
            && records != 0
            && body <= FRAME_BODY_MAX
            && records <= body / RECORD_HEADER_BYTES
            && header.synced < header.number
            && header.first_lsn.0 != 0
            && header.first_lsn.0.checked_add(records as u64).is_some();
        is_sound.then_some(header)
    }
}

/// Kinds of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Bytes were written.
    Write,
    /// A range was overwritten with zeros.
    Zero,
    /// A range was discarded: it reads as zeros from the journal.
    Trim,
    /// A moment got a name: the payload.
    Mark,
    /// From here on, changes of the range may be missing.
    Gap,
    /// Differences that follow were found by comparing, until [`Op::ResyncEnd`].
    ResyncBegin,
    /// All changes of the range are known again.
    ResyncEnd,
    /// The volume has a new size: the length.
    Resize,
    /// A client has flushed the volume: what is before this record is a state that the client may come back to.
    Flush,
}

/// All kinds with their codes.
const OPS: [(Op, u8); 9] = [
    (Op::Write, 1),
    (Op::Zero, 2),
    (Op::Trim, 3),
    (Op::Mark, 4),
    (Op::Gap, 5),
    (Op::ResyncBegin, 6),
    (Op::ResyncEnd, 7),
    (Op::Resize, 8),
    (Op::Flush, 9),
];

impl Op {
    fn code(self) -> u8 {
        OPS.iter().find(|(op, _)| *op == self).map_or(0, |(_, code)| *code)
    }

    fn of(code: u8) -> Option<Self> {
        OPS.iter().find(|(_, of)| *of == code).map(|(op, _)| *op)
    }
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its kind.
    pub op: Op,
    /// Number of the volume in its group.
    pub volume: u16,
    /// First byte of the range in the volume; 0 if the kind has none.
    pub offset: u64,
    /// Bytes of the range; the new size of [`Op::Resize`].
    pub len: u64,
    /// Bytes that were written, or the name of a mark.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns a record of a write. There must be 1 to [`RECORD_BYTES_MAX`] bytes.
    pub fn write(volume: u16, offset: u64, payload: &'a [u8]) -> Self {
        Self { op: Op::Write, volume, offset, len: payload.len() as u64, payload }
    }

    /// Returns a record of a kind that has a range and no bytes.
    pub fn range(op: Op, volume: u16, offset: u64, len: u64) -> Record<'static> {
        Record { op, volume, offset, len, payload: &[] }
    }

    /// Returns a record of a mark. The name must have 1 to [`MARK_BYTES_MAX`] bytes.
    pub fn mark(name: &'a str) -> Self {
        Self { op: Op::Mark, volume: 0, offset: 0, len: 0, payload: name.as_bytes() }
    }

    /// Returns true if its fields agree, as writer and reader require it.
    pub fn is_sound(&self) -> bool {
        let fits = self.offset.checked_add(self.len).is_some();
        fits && match self.op {
            Op::Write => self.len == self.payload.len() as u64 && (1..=RECORD_BYTES_MAX).contains(&self.payload.len()),
            Op::Zero | Op::Trim => self.len != 0 && self.payload.is_empty(),
            Op::Gap | Op::ResyncBegin | Op::ResyncEnd => self.payload.is_empty(),
            Op::Resize | Op::Flush => self.offset == 0 && self.payload.is_empty(),
            Op::Mark => {
                (1..=MARK_BYTES_MAX).contains(&self.payload.len())
                    && std::str::from_utf8(self.payload).is_ok()
                    && (self.offset, self.len) == (0, 0)
            }
        }
    }

    /// Returns the bytes that it takes in a frame.
    pub fn bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.payload.len()
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let payload = u32::try_from(self.payload.len()).expect("payloads are short");
        let mut header = [0; RECORD_HEADER_BYTES];
        header[0] = self.op.code();
        header[2..4].copy_from_slice(&self.volume.to_le_bytes());
        header[4..8].copy_from_slice(&payload.to_le_bytes());
        header[8..16].copy_from_slice(&self.offset.to_le_bytes());
        header[16..24].copy_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(self.payload);
    }
}

/// The records of a frame's body, in order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Records<'a> {
    /// Starts at the first record of a body; `None` if the body does not hold exactly that many sound records.
    pub fn of(body: &'a [u8], records: u32) -> Option<Self> {
        let all = Self { rest: body, left: records };
        let mut check = all.clone();
        while check.left != 0 {
            check.step()?;
        }
        check.rest.is_empty().then_some(all)
    }

    fn step(&mut self) -> Option<Record<'a>> {
        let mut fields = Fields(self.rest);
        let [op, reserved] = fields.array()?;
        let (volume, payload) = (fields.u16()?, fields.u32()? as usize);
        let (offset, len) = (fields.u64()?, fields.u64()?);
        let (payload, rest) = fields.0.split_at_checked(payload)?;
        let record = Record { op: Op::of(op)?, volume, offset, len, payload };
        if reserved != 0 || !record.is_sound() {
            return None;
        }
        self.rest = rest;
        self.left -= 1;
        Some(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.left == 0 { None } else { self.step() }
    }
}

/// Takes integers from the front of bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, back) = self.0.split_first_chunk::<N>()?;
        self.0 = back;
        Some(*front)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            repository: RepositoryId([1; 16]),
            group: GroupId([2; 16]),
            number: 3,
            first_frame: 4,
            first_lsn: Lsn(5),
            salt: [6; 32],
            commitment: [7; 32],
            previous_tag: [8; 16],
        }
    }

    #[test]
    fn a_segment_header_comes_back_and_every_changed_bit_is_noticed() {
        let block = header().encode();
        assert_eq!(block.len(), BLOCK_BYTES);
        assert_eq!(SegmentHeader::decode(&block), SegmentStart::Header(header()));
        assert_eq!(SegmentHeader::decode(&[0; BLOCK_BYTES]), SegmentStart::Zero);
        for bit in 0..8 * BLOCK_BYTES {
            let mut wrong = block.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(SegmentHeader::decode(&wrong), SegmentStart::Header(header()), "bit {bit}");
        }
        let mut newer = block;
        newer[8] = 2;
        assert_eq!(SegmentHeader::decode(&newer), SegmentStart::Newer(2));
        for len in [1, 8, 100, SEGMENT_HEADER_BYTES] {
            assert_ne!(SegmentHeader::decode(&header().encode()[..len]), SegmentStart::Zero, "{len} bytes");
        }
    }

    fn record() -> impl Strategy<Value = (u8, u16, u64, Vec<u8>)> {
        (0..9_u8, any::<u16>(), 0..1_u64 << 40, prop::collection::vec(any::<u8>(), 1..300))
    }

    proptest! {
        #[test]
        fn records_of_a_body_come_back(records in prop::collection::vec(record(), 1..40)) {
            let records: Vec<Record<'_>> = records.iter().map(|(op, volume, offset, payload)| match OPS[usize::from(*op)].0 {
                Op::Write => Record::write(*volume, *offset, payload),
                Op::Mark => Record::mark("before the upgrade"),
                Op::Resize => Record::range(Op::Resize, *volume, 0, *offset),
                Op::Flush => Record::range(Op::Flush, *volume, 0, 0),
                op => Record::range(op, *volume, *offset, payload.len() as u64),
            }).collect();
            let mut body = Vec::new();
            for record in &records {
                record.encode(&mut body);
            }
            let count = u32::try_from(records.len()).unwrap();
            prop_assert_eq!(Records::of(&body, count).unwrap().collect::<Vec<_>>(), records);
            prop_assert!(Records::of(&body, count + 1).is_none() && Records::of(&body, count - 1).is_none());
            prop_assert!(Records::of(&body[..body.len() - 1], count).is_none());
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), records in any::<u32>()) {
            let _ = Records::of(&bytes, records);
            let _ = SegmentHeader::decode(&bytes);
            if let Some(bytes) = bytes.first_chunk() {
                let _ = FrameHeader::decode(bytes);
            }
        }

        #[test]
        fn frame_headers_come_back(records in 1..1000_u32, extra in 0..1000_u32, number in 1..u64::MAX, time in any::<u64>()) {
            let body = records * 24 + extra;
            let header = FrameHeader { records, body, number, first_lsn: Lsn(7), synced: number - 1, time, previous_tag: [9; 16] };
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Some(header));
            let wrong = FrameHeader { synced: number, ..header };
            prop_assert_eq!(FrameHeader::decode(&wrong.encode()), None);
        }
    }
}
