//! The journal: changes since a checkpoint, in frames with checksums.
//!
//! A frame is written in one piece, after the frame before it is durable. So a crash can tear the last frame only: an invalid frame
//! with a valid one behind it is damage. Frames begin at multiples of a sector, where the search for a later one looks. A frame without changes ends the
//! journal of a store that was closed, and the next frame is written over it.

use onefold_engine::codec::{DecodeError, Decoded, Reader, put_varint};

use super::state::{Added, Change};
use crate::image::block::{LEVEL_MAX, UNITS_MAX};

/// Frames begin at multiples of this.
pub(super) const SECTOR_BYTES: usize = 512;
/// Bytes of the header of a frame.
const HEADER_BYTES: usize = 36;
const MAGIC: u32 = 0x4a4d_4931;
/// Most bytes of a frame: a buffer of changes, and the change with which it became full.
pub(super) const FRAME_BYTES_MAX: usize = 2 << 20;
/// Bytes of changes that are kept in memory until they are written.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of an added block: address, level and name.
const ADDED_BYTES_MIN: usize = 1 + 1 + 16;

/// Appends a change.
pub(super) fn encode_change(change: &Change, out: &mut Vec<u8>) {
    put_varint(out, change.start.into());
    put_varint(out, change.added.len() as u64);
    for added in &change.added {
        put_varint(out, added.address.into());
        out.push(added.level);
        out.extend_from_slice(&added.name);
    }
    put_varint(out, change.entries.len() as u64);
    change.entries.iter().for_each(|address| put_varint(out, (*address).into()));
}

/// Takes a change. One has fewer entries than a block of the highest level has units, or as many.
pub(super) fn decode_change(reader: &mut Reader<'_>) -> Decoded<Change> {
    let start = reader.varint32()?;
    let count = |reader: &mut Reader<'_>, bytes_each| {
        let count = reader.count(bytes_each)?;
        if UNITS_MAX < count { Err(reader.error("more than a change has")) } else { Ok(count) }
    };
    let blocks = count(reader, ADDED_BYTES_MIN)?;
    let mut added = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        let (address, level) = (reader.varint32()?, reader.u8()?);
        if LEVEL_MAX < level {
            return Err(reader.error("no such level"));
        }
        added.push(Added { address, level, name: reader.array()? });
    }
    let blocks = count(reader, 1)?;
    let mut entries = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        entries.push(reader.varint32()?);
    }
    Ok(Change { start, added, entries })
}

/// Makes a frame of changes. `checkpoint` is the number of the checkpoint that they follow, and `sequence` that of the frame.
pub(super) fn encode_frame(checkpoint: u64, sequence: u64, changes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(changes.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEADER_BYTES + changes.len());
    frame.extend_from_slice(&MAGIC.to_le_bytes());
    frame.extend_from_slice(&checkpoint.to_le_bytes());
    frame.extend_from_slice(&sequence.to_le_bytes());
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&crc32c::crc32c(changes).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    let checksum = crc32c::crc32c(&frame);
    frame.extend_from_slice(&checksum.to_le_bytes());
    frame.extend_from_slice(changes);
    frame.resize(frame.len().next_multiple_of(SECTOR_BYTES), 0);
    frame
}

/// A frame at the front of some bytes.
struct Frame<'a> {
    sequence: u64,
    changes: &'a [u8],
    /// Its bytes, with those that fill the last sector.
    len: usize,
}

/// Returns the frame at the front, if a valid one of this checkpoint is there.
fn frame_at(bytes: &[u8], checkpoint: u64) -> Option<Frame<'_>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let mut reader = Reader::new(header);
    let fields = (reader.u32().ok()?, reader.u64().ok()?, reader.u64().ok()?, reader.u32().ok()?, reader.u32().ok()?);
    let (magic, of, sequence, len, checksum) = fields;
    reader.u32().ok()?;
    let checked = header.get(..HEADER_BYTES - 4).is_some_and(|bytes| Ok(crc32c::crc32c(bytes)) == reader.u32());
    let len = usize::try_from(len).ok().filter(|len| *len <= FRAME_BYTES_MAX)?;
    let changes = rest.get(..len)?;
    let is_valid = checked && magic == MAGIC && of == checkpoint && crc32c::crc32c(changes) == checksum;
    let len = (HEADER_BYTES + len).next_multiple_of(SECTOR_BYTES);
    let is_valid = is_valid && len <= bytes.len();
    is_valid.then_some(Frame { sequence, changes, len })
}

/// The valid part of a journal, without the frame that ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Read {
    /// Its bytes.
    pub(super) len: u64,
    /// The number of the next frame, which is written over the frame that ends it.
    pub(super) sequence: u64,
    /// True if a frame without changes ends it: all frames before that one are durable.
    pub(super) is_ended: bool,
}

/// Reads the changes of a journal in their order. Ends at a frame that is not whole, unless a later one is: that is damage.
pub(super) fn read(
    bytes: &[u8],
    checkpoint: u64,
    mut apply: impl FnMut(Change) -> Result<(), &'static str>,
) -> Decoded<Read> {
    let mut read = Read::default();
    let mut offset = 0;
    while let Some(frame) = bytes.get(offset..).and_then(|bytes| frame_at(bytes, checkpoint)) {
        let error = |reason| DecodeError { offset, reason };
        if frame.sequence != read.sequence || read.is_ended {
            return Err(error("a frame is missing"));
        }
        if frame.changes.is_empty() {
            offset += frame.len;
            read.is_ended = true;
            continue;
        }
        let mut reader = Reader::new(frame.changes);
        while reader.offset() < frame.changes.len() {
            let change = decode_change(&mut reader).map_err(|at| error(at.reason))?;
            apply(change).map_err(error)?;
        }
        offset += frame.len;
        read = Read { len: offset as u64, sequence: read.sequence + 1, is_ended: false };
    }
    let later =
        (offset..bytes.len()).step_by(SECTOR_BYTES).skip(1).find_map(|at| frame_at(bytes.get(at..)?, checkpoint));
    match later.filter(|frame| read.sequence < frame.sequence) {
        Some(_) => Err(DecodeError { offset, reason: "a frame is damaged, and a later one is not" }),
        None => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(start: u32) -> Change {
        let added =
            vec![Added { address: 7, level: 0, name: [3; 16] }, Added { address: 1 << 20, level: 7, name: [9; 16] }];
        Change { start, added, entries: vec![7, u32::MAX, 0] }
    }

    fn journal(frames: u64) -> Vec<u8> {
        let frame = |sequence: u64| {
            let mut changes = Vec::new();
            (0..=sequence % 3 * 20)
                .for_each(|at| encode_change(&change(u32::try_from(sequence + at).unwrap()), &mut changes));
            encode_frame(5, sequence, &changes)
        };
        (0..frames).flat_map(frame).collect()
    }

    fn changes(bytes: &[u8]) -> Decoded<(Read, Vec<Change>)> {
        let mut all = Vec::new();
        let read = read(bytes, 5, |change| {
            all.push(change);
            Ok(())
        })?;
        Ok((read, all))
    }

    #[test]
    fn changes_come_back_and_a_torn_end_is_left_out() {
        let whole = journal(6);
        let (all, expected) = changes(&whole).unwrap();
        assert_eq!(all, Read { len: whole.len() as u64, sequence: 6, is_ended: false });
        assert_eq!((expected.len(), &expected[0]), (126, &change(0)));
        let ended = [&whole[..], &encode_frame(5, 6, &[])].concat();
        assert_eq!(changes(&ended).unwrap(), (Read { is_ended: true, ..all }, expected.clone()));
        let again = [&ended[..], &encode_frame(5, 6, &[])].concat();
        assert!(changes(&again).is_err(), "nothing follows the end");
        let before = journal(5).len();
        for cut in before..whole.len() {
            let (read, some) = changes(&whole[..cut]).unwrap();
            assert_eq!((read.sequence, read.len, some.len()), (5, before as u64, 126 - 41), "{cut}");
        }
        assert_eq!(changes(&journal(0)).unwrap(), (Read::default(), Vec::new()));
        assert_eq!(read(&whole, 6, |_| Err("of another checkpoint")).unwrap(), Read::default());
    }

    #[test]
    fn damage_before_the_last_frame_is_found_at_every_bit() {
        let whole = journal(6);
        let last = journal(5).len();
        for bit in (0..last * 8).step_by(3) {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = changes(&damaged);
            assert!(found.is_err() || found == changes(&whole), "bit {bit}: {found:?}");
        }
    }
}
