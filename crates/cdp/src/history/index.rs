//! The index of a piece of history: its entries, encoded one after the other.
//!
//! Integers are unsigned LEB128 in their shortest form. A reader takes bytes as they come, and holds one entry.

use onefold_engine::error::{Error, Result};

use crate::journal::Lsn;

const MAGIC: [u8; 8] = *b"onefoldh";
/// Version of an index with all records, and of one that was thinned.
const VERSION: u64 = 1;
const VERSION_THINNED: u64 = 2;
/// Longest entry: a kind and six integers.
const ENTRY_BYTES_MAX: usize = 1 + 6 * 10;

/// Meaning of an entry for its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They got contents: as many versions of the data stream, in order.
    Data,
    /// They became zeros.
    Zero,
    /// A client flushed the volume. There are no blocks.
    Flush,
    /// From here on, changes of the blocks may be missing.
    Gap,
    /// The entries until [`Change::ResyncEnd`] are differences that were found by comparing.
    ResyncBegin,
    /// All changes of the blocks are known again.
    ResyncEnd,
    /// The moment after the record was kept when others were thinned out. There are no blocks.
    Kept,
}

const CHANGES: [Change; 7] =
    [Change::Data, Change::Zero, Change::Flush, Change::Gap, Change::ResyncBegin, Change::ResyncEnd, Change::Kept];

/// Moments that an index leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Those after all of its records.
    Whole,
    /// Those that an entry [`Change::Flush`] or [`Change::Kept`] names. Each other entry has the record of the moment that it leads to.
    Thinned,
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryEntry {
    /// Its record in the journal. Several entries may have one.
    pub lsn: Lsn,
    /// Wall clock of the record, in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// Number of the volume in its group.
    pub volume: u16,
    /// The kind of change.
    pub change: Change,
    /// First block.
    pub block: u64,
    /// Blocks.
    pub count: u64,
}

/// Encodes entries.
#[derive(Debug)]
pub struct IndexWriter {
    bytes: Vec<u8>,
    last: (Lsn, u64),
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while 0x80 <= value {
        bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).expect("seven bits"));
}

/// Maps differences to unsigned integers, so that small ones of both signs stay short.
fn zigzag(later: u64, earlier: u64) -> u64 {
    let difference = later.wrapping_sub(earlier).cast_signed();
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

fn unzigzag(value: u64, earlier: u64) -> u64 {
    earlier.wrapping_add((value >> 1) ^ (value & 1).wrapping_neg())
}

impl IndexWriter {
    /// Begins an index whose first record is `first`.
    pub fn new(first: Lsn) -> Self {
        Self::of_kind(IndexKind::Whole, first)
    }

    /// Begins an index of a kind.
    pub fn of_kind(kind: IndexKind, first: Lsn) -> Self {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, if kind == IndexKind::Whole { VERSION } else { VERSION_THINNED });
        put(&mut bytes, first.0);
        Self { bytes, last: (first, 0) }
    }

    /// Appends an entry. Records ascend.
    pub fn push(&mut self, entry: &HistoryEntry) {
        let (lsn, time) = self.last;
        let code = CHANGES.iter().position(|change| *change == entry.change).expect("every change has a code");
        self.bytes.push(u8::try_from(code).expect("changes are few"));
        put(&mut self.bytes, entry.lsn.0 - lsn.0);
        put(&mut self.bytes, zigzag(entry.time, time));
        put(&mut self.bytes, entry.volume.into());
        put(&mut self.bytes, entry.block);
        put(&mut self.bytes, entry.count);
        self.last = (entry.lsn, entry.time);
    }

    /// Takes the bytes that were encoded since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Decodes entries from bytes that come in pieces.
#[derive(Debug, Default)]
pub struct IndexReader {
    /// Bytes that are not decoded yet: less than one entry, between calls.
    rest: Vec<u8>,
    /// The kind, and the last entry's record and time; none before the header was decoded.
    last: Option<(IndexKind, Lsn, u64)>,
}

/// Outcome of decoding from a prefix of the bytes.
enum Step<T> {
    /// A value, and how many bytes it took.
    Value(T, usize),
    /// More bytes are needed.
    Short,
    Wrong(&'static str),
}

/// Takes integers from the front of bytes.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    /// Returns the next integer; `Ok(None)` if the bytes end first.
    fn integer(&mut self) -> Result<Option<u64>, &'static str> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.bytes.get(self.at) else { return Ok(None) };
            self.at += 1;
            let low = u64::from(byte & 0x7f);
            if low << shift >> shift != low {
                return Err("an integer is too large");
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return if low == 0 && shift != 0 {
                    Err("an integer is not in its shortest form")
                } else {
                    Ok(Some(value))
                };
            }
        }
        Err("an integer is too long")
    }
}

impl IndexReader {
    /// Decodes what a piece completes, and passes its entries.
    ///
    /// Fails with [`Error::Damaged`] if the bytes are no index.
    pub fn push(&mut self, piece: &[u8], each: &mut dyn FnMut(HistoryEntry) -> Result<()>) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let left = bytes.get(at..).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            let taken = match self.last {
                None => match decode_header(left) {
                    Step::Value((kind, first), taken) => {
                        self.last = Some((kind, first, 0));
                        taken
                    }
                    Step::Short => break,
                    Step::Wrong(reason) => return Err(damaged(reason)),
                },
                Some(last @ (kind, ..)) => match decode_entry(left, last) {
                    Step::Value(entry, taken) => {
                        self.last = Some((kind, entry.lsn, entry.time));
                        each(entry)?;
                        taken
                    }
                    Step::Short => break,
                    Step::Wrong(reason) => return Err(damaged(reason)),
                },
            };
            at += taken;
        }
        self.rest = bytes.get(at..).unwrap_or_default().to_vec();
        if ENTRY_BYTES_MAX < self.rest.len() { Err(damaged("an entry is too long")) } else { Ok(()) }
    }

    /// Ends the index, and returns its kind. Fails if its header is missing or its last entry is cut off.
    pub fn finish(self) -> Result<IndexKind> {
        match self.last {
            Some((kind, ..)) if self.rest.is_empty() => Ok(kind),
            _ => Err(damaged("it ends early")),
        }
    }
}

fn damaged(reason: &str) -> Error {
    Error::damaged("index of history", reason)
}

fn decode_header(bytes: &[u8]) -> Step<(IndexKind, Lsn)> {
    let Some((magic, _)) = bytes.split_first_chunk() else { return Step::Short };
    if *magic != MAGIC {
        return Step::Wrong("it does not begin as an index of history");
    }
    let mut fields = Fields { bytes, at: MAGIC.len() };
    match (fields.integer(), fields.integer()) {
        (Err(reason), _) | (_, Err(reason)) => Step::Wrong(reason),
        (Ok(Some(VERSION)), Ok(Some(first))) => Step::Value((IndexKind::Whole, Lsn(first)), fields.at),
        (Ok(Some(VERSION_THINNED)), Ok(Some(first))) => Step::Value((IndexKind::Thinned, Lsn(first)), fields.at),
        (Ok(Some(VERSION | VERSION_THINNED) | None), Ok(_)) => Step::Short,
        (Ok(Some(_)), Ok(_)) => Step::Wrong("it has another version"),
    }
}

fn decode_entry(bytes: &[u8], (kind, lsn, time): (IndexKind, Lsn, u64)) -> Step<HistoryEntry> {
    let Some(change) = bytes.first().map(|code| CHANGES.get(usize::from(*code)).copied()) else { return Step::Short };
    let change = change.filter(|change| *change != Change::Kept || kind == IndexKind::Thinned);
    let Some(change) = change else { return Step::Wrong("an entry has an unknown kind") };
    let mut fields = Fields { bytes, at: 1 };
    let mut values = [0; 5];
    for value in &mut values {
        match fields.integer() {
            Ok(Some(decoded)) => *value = decoded,
            Ok(None) => return Step::Short,
            Err(reason) => return Step::Wrong(reason),
        }
    }
    let [later, difference, volume, block, count] = values;
    let (Some(lsn), Ok(volume)) = (lsn.0.checked_add(later), u16::try_from(volume)) else {
        return Step::Wrong("a number is out of range");
    };
    let has_blocks = matches!(change, Change::Data | Change::Zero);
    let end = block.checked_add(count).and_then(|end| end.checked_mul(super::BLOCK_BYTES));
    if end.is_none() || has_blocks && count == 0 {
        return Step::Wrong("a range of blocks is impossible");
    }
    let time = unzigzag(difference, time);
    Step::Value(HistoryEntry { lsn: Lsn(lsn), time, volume, change, block, count }, fields.at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = (u64, u64, u16, usize, u64, u64)> {
        (0..300_u64, any::<u64>(), any::<u16>(), 0..7_usize, 0..1_u64 << 50, 1..1_u64 << 40)
    }

    fn decode(bytes: &[u8], piece: usize) -> Result<(IndexKind, Vec<HistoryEntry>)> {
        let mut out = Vec::new();
        let mut reader = IndexReader::default();
        for piece in bytes.chunks(piece) {
            reader.push(piece, &mut |entry| {
                out.push(entry);
                Ok(())
            })?;
        }
        Ok((reader.finish()?, out))
    }

    proptest! {
        #[test]
        fn entries_come_back_in_pieces_of_any_length(entries in prop::collection::vec(entry(), 0..50), piece in 1..200_usize, thinned: bool) {
            let kind = if thinned { IndexKind::Thinned } else { IndexKind::Whole };
            let mut lsn = 77;
            let entries: Vec<HistoryEntry> = entries.into_iter().map(|(later, time, volume, change, block, count)| {
                lsn += later;
                let change = if thinned { CHANGES[change] } else { CHANGES[change % 6] };
                HistoryEntry { lsn: Lsn(lsn), time, volume, change, block, count }
            }).collect();
            let mut writer = IndexWriter::of_kind(kind, Lsn(77));
            let mut bytes = Vec::new();
            for entry in &entries {
                writer.push(entry);
                bytes.extend(writer.take());
            }
            bytes.extend(writer.take());
            prop_assert_eq!(&decode(&bytes, piece).unwrap(), &(kind, entries.clone()));
            for len in 0..bytes.len() {
                if let Ok((_, fewer)) = decode(&bytes[..len], piece) {
                    prop_assert!(fewer.len() < entries.len(), "{} bytes", len);
                }
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1..50_usize, header: bool) {
            if header {
                let mut with = IndexWriter::new(Lsn(1)).take();
                with.append(&mut bytes);
                bytes = with;
            }
            let _ = decode(&bytes, piece);
        }
    }
}
