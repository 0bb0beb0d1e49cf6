//! The blocks of a trace, as bytes.
//!
//! A trace is a header, blocks of events, and a last block with their numbers. Each has a checksum, so that a
//! flipped bit or a missing end is noticed where it is. All integers are little-endian; docs/traces.md is the specification.

use onefold_engine::codec::{DecodeError, Decoded, Reader, len_u32, put_string, put_varint};
use serde::Serialize;

use crate::trace::{Event, HASH_LEN, TraceChunk};

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"1FTRACE\n";
/// The version of the format that this code reads and writes.
pub const VERSION: u16 = 1;
/// Longest description, in bytes.
pub const DESCRIPTION_LEN_MAX: usize = 4096;
/// Longest name of a stream, in bytes.
pub const NAME_LEN_MAX: usize = 4096;
/// Bytes of the header before the description.
pub const HEADER_LEN: usize = 14;
/// Bytes before what a block holds.
pub const BLOCK_HEADER_LEN: usize = 16;
/// Most chunks of a block.
pub const CHUNKS_MAX: usize = 16 << 10;
/// Most bytes that a block holds before compression: a decoder refuses more before it allocates.
pub const PLAIN_LEN_MAX: usize = 2 << 20;
/// Bytes of beginnings and ends of streams after which a block is full.
pub const MARKS_LEN_MAX: usize = 512 << 10;
/// Most bytes of beginnings and ends of streams in a block: one more than fill it, with the longest name. So the events of a
/// block take no more than some mebibytes, however few bytes they were compressed to.
pub const MARKS_LEN_LIMIT: usize = MARKS_LEN_MAX + NAME_LEN_MAX + 32;
/// Fewest bytes of one of them.
const MARK_LEN_MIN: usize = 2;

/// Kind of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Events.
    Events,
    /// The totals; nothing follows.
    End,
}

/// Header of a block, before its compressed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Kind of the block.
    pub kind: BlockKind,
    /// Bytes that follow.
    pub stored_len: u32,
    /// Bytes that they become.
    pub plain_len: u32,
    /// CRC-32C of the fields before it and the bytes that follow.
    pub checksum: u32,
}

impl BlockHeader {
    /// Describes a block whose compressed bytes are `stored`.
    pub fn of(kind: BlockKind, stored: &[u8], plain_len: usize) -> Self {
        let mut header = Self { kind, stored_len: len_u32(stored.len()), plain_len: len_u32(plain_len), checksum: 0 };
        header.checksum = header.checksum_with(stored);
        header
    }

    fn checksum_with(&self, stored: &[u8]) -> u32 {
        let encoded = self.encode();
        crc32c::crc32c_append(crc32c::crc32c(encoded.get(..12).unwrap_or_default()), stored)
    }

    /// Returns true if a block has the checksum of its header.
    pub fn is_intact(&self, stored: &[u8]) -> bool {
        self.checksum == self.checksum_with(stored)
    }

    /// Returns its bytes.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_LEN] {
        let kind: u32 = match self.kind {
            BlockKind::Events => 1,
            BlockKind::End => 2,
        };
        let mut bytes = [0; BLOCK_HEADER_LEN];
        for (place, field) in bytes.chunks_exact_mut(4).zip([kind, self.stored_len, self.plain_len, self.checksum]) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads a header; its lengths are within the limits.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.u32()? {
            1 => BlockKind::Events,
            2 => BlockKind::End,
            _ => return Err(DecodeError { offset: 0, reason: "neither a block of events nor the last block" }),
        };
        let stored_len = reader.u32()?;
        let plain_len = reader.u32()?;
        // Incompressible bytes grow by less than a hundredth.
        let most = PLAIN_LEN_MAX + PLAIN_LEN_MAX / 64;
        if most < stored_len as usize || PLAIN_LEN_MAX < plain_len as usize {
            return Err(DecodeError { offset: 4, reason: "a block longer than any" });
        }
        let header = Self { kind, stored_len, plain_len, checksum: reader.u32()? };
        reader.finish()?;
        Ok(header)
    }
}

/// Returns the bytes of a trace's header.
pub fn encode_header(description: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&len_u32(description.len()).to_le_bytes());
    bytes.extend_from_slice(description.as_bytes());
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Events gathered for a block.
#[derive(Debug, Default)]
pub struct Gathered {
    marks: Vec<u8>,
    mark_count: u64,
    lens: Vec<u8>,
    hashes: Vec<u8>,
    /// Chunks.
    pub chunks: usize,
    /// Position of the last mark.
    marked: usize,
}

impl Gathered {
    /// Returns true if the block must be written before it takes more events.
    pub fn is_full(&self) -> bool {
        CHUNKS_MAX <= self.chunks || MARKS_LEN_MAX <= self.marks.len()
    }

    /// Returns true if the block is empty.
    pub fn is_empty(&self) -> bool {
        self.chunks == 0 && self.mark_count == 0
    }

    /// Appends an event; the block must not be full.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Chunk(TraceChunk { hash, len }) => {
                put_varint(&mut self.lens, (*len).into());
                self.hashes.extend_from_slice(hash);
                self.chunks += 1;
            }
            Event::Begin { name, version } => {
                self.mark(1);
                put_varint(&mut self.marks, (*version).into());
                put_string(&mut self.marks, name);
            }
            Event::End => self.mark(0),
        }
    }

    /// Adds a mark between chunks: the number of chunks after the previous mark.
    fn mark(&mut self, what: u8) {
        put_varint(&mut self.marks, (self.chunks - self.marked) as u64);
        self.marks.push(what);
        (self.marked, self.mark_count) = (self.chunks, self.mark_count + 1);
    }

    /// Puts the block's bytes into `plain`, and is empty afterward.
    pub fn take(&mut self, plain: &mut Vec<u8>) {
        plain.clear();
        put_varint(plain, self.chunks as u64);
        put_varint(plain, self.mark_count);
        for part in [&mut self.marks, &mut self.lens, &mut self.hashes] {
            plain.append(part);
        }
        (self.chunks, self.marked, self.mark_count) = (0, 0, 0);
    }
}

/// Decodes a block's events into `events`, which is replaced.
pub fn decode_events(plain: &[u8], events: &mut Vec<Event>) -> Decoded<()> {
    events.clear();
    let mut reader = Reader::new(plain);
    let chunks = reader.count(1 + HASH_LEN)?;
    let mark_count = reader.count(MARK_LEN_MIN)?;
    if CHUNKS_MAX < chunks {
        return Err(reader.error("more chunks than a block has"));
    }
    let marks_start = reader.offset();
    // Marks with their positions come first, then lengths, then hashes.
    let mut marks = reader.clone();
    let mut lens = reader;
    for _ in 0..mark_count {
        take_mark(&mut lens)?;
        if MARKS_LEN_LIMIT < lens.offset() - marks_start {
            return Err(lens.error("more beginnings and ends of streams than a block has"));
        }
    }
    events.reserve_exact(chunks + mark_count);
    let mut hashes = lens.clone();
    for _ in 0..chunks {
        hashes.varint32()?;
    }
    let mut left = chunks;
    for _ in 0..mark_count {
        let (after, event) = take_mark(&mut marks)?;
        let after = usize::try_from(after).ok().filter(|after| *after <= left);
        let after = after.ok_or_else(|| marks.error("a mark behind the last chunk"))?;
        left -= after;
        take_chunks(after, &mut lens, &mut hashes, events)?;
        events.push(event);
    }
    take_chunks(left, &mut lens, &mut hashes, events)?;
    hashes.finish()
}

fn take_mark(reader: &mut Reader<'_>) -> Decoded<(u64, Event)> {
    let after = reader.varint()?;
    let event = match reader.u8()? {
        0 => Event::End,
        1 => {
            let version = reader.varint32()?;
            Event::Begin { name: reader.string(NAME_LEN_MAX)?.to_vec(), version }
        }
        _ => return Err(reader.error("neither the beginning of a stream nor its end")),
    };
    Ok((after, event))
}

fn take_chunks(count: usize, lens: &mut Reader<'_>, hashes: &mut Reader<'_>, events: &mut Vec<Event>) -> Decoded<()> {
    for _ in 0..count {
        events.push(Event::Chunk(TraceChunk { len: lens.varint32()?, hash: hashes.array()? }));
    }
    Ok(())
}

/// Contents of a trace, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    /// Streams.
    pub streams: u64,
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Totals {
    /// Counts an event.
    pub fn count(&mut self, event: &Event) {
        match event {
            Event::Begin { .. } => self.streams += 1,
            Event::Chunk(chunk) => {
                self.chunks += 1;
                self.bytes = self.bytes.saturating_add(chunk.len.into());
            }
            Event::End => {}
        }
    }

    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        [self.streams, self.chunks, self.bytes].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads totals.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let totals = Self { streams: reader.u64()?, chunks: reader.u64()?, bytes: reader.u64()? };
        reader.finish()?;
        Ok(totals)
    }
}
