//! One page of the bucket table: a checked header and up to 127 entries sorted by key.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C of all that follows |
//! | 4 | 4 | bucket |
//! | 8 | 8 | number of the run |
//! | 16 | 4 | index of the page in the run |
//! | 20 | 2 | number of entries |
//! | 22 | 10 | zero |
//! | 32 | 32 each | entries: key 20, container ordinal 4, log position 8 |
//!
//! Bucket, run and index make a page that was written elsewhere, or long ago, as bad as a torn one.
#![deny(clippy::indexing_slicing)]

use std::cmp::Ordering;

use crate::kv::{Entry, Fields, KEY_LEN, Key, Ordinal, Position};

/// Bytes of a page: what an SSD reads at once.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;

const HEADER_BYTES: usize = 32;

/// Entries that fit into a page.
pub const PAGE_ENTRIES: usize = (PAGE_BYTES - HEADER_BYTES) / ENTRY_BYTES;

/// Which page of the table it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageName {
    /// Bucket that the page belongs to.
    pub bucket: u32,
    /// Number of its run, never used twice in the life of a table.
    pub run: u64,
    /// Index of the page in the run.
    pub index: u32,
}

/// Where a key lies relative to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// In it.
    Here(Entry),
    /// Before its first key.
    Before,
    /// After its last key.
    After,
    /// Between its keys: nowhere in the run.
    Absent,
}

/// A page whose header and checksum are right.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    entries: &'a [[u8; ENTRY_BYTES]],
}

/// Encodes an entry.
pub fn encode_entry(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    let fields = entry.key.0.into_iter().chain(entry.ordinal.0.to_le_bytes()).chain(entry.position.0.to_le_bytes());
    bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    bytes
}

/// Decodes an entry. Every bit pattern is one.
pub fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> Entry {
    let mut fields = Fields::new(bytes);
    let mut decode = || {
        Some(Entry { key: Key(fields.array()?), ordinal: Ordinal(fields.u32()?), position: Position(fields.u64()?) })
    };
    decode().expect("an entry's fields add up to its length")
}

/// Appends a page of 1 to [`PAGE_ENTRIES`] entries, sorted by key.
pub fn encode_page(name: PageName, entries: &[Entry], out: &mut Vec<u8>) {
    assert!(!entries.is_empty(), "a page without entries is never written");
    assert!(entries.len() <= PAGE_ENTRIES, "a page holds {PAGE_ENTRIES} entries");
    let count = u16::try_from(entries.len()).expect("a page holds fewer than 65,536 entries");
    let mut page = Vec::with_capacity(PAGE_BYTES);
    page.extend_from_slice(&name.bucket.to_le_bytes());
    page.extend_from_slice(&name.run.to_le_bytes());
    page.extend_from_slice(&name.index.to_le_bytes());
    page.extend_from_slice(&count.to_le_bytes());
    page.resize(HEADER_BYTES - 4, 0);
    for entry in entries {
        page.extend_from_slice(&encode_entry(entry));
    }
    page.resize(PAGE_BYTES - 4, 0);
    out.extend_from_slice(&crc32c::crc32c(&page).to_le_bytes());
    out.extend_from_slice(&page);
}

impl<'a> Page<'a> {
    /// Checks a page that was read. `None`: damaged, or another page than the one asked for.
    pub fn decode(name: PageName, bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() != PAGE_BYTES {
            return None;
        }
        let mut fields = Fields::new(bytes);
        let checksum = fields.u32()?;
        if crc32c::crc32c(bytes.get(4..)?) != checksum {
            return None;
        }
        let found = PageName { bucket: fields.u32()?, run: fields.u64()?, index: fields.u32()? };
        let count = usize::from(fields.u16()?);
        if found != name || count == 0 {
            return None;
        }
        let (entries, _) = bytes.get(HEADER_BYTES..)?.as_chunks();
        Some(Self { entries: entries.get(..count)? })
    }

    /// Looks for a key.
    pub fn find(&self, key: &Key) -> Found {
        let order = |bytes: &[u8; ENTRY_BYTES]| bytes.get(..KEY_LEN).map_or(Ordering::Less, |found| found.cmp(&key.0));
        match self.entries.binary_search_by(order) {
            Ok(index) => self.entries.get(index).map_or(Found::Absent, |bytes| Found::Here(decode_entry(bytes))),
            Err(0) => Found::Before,
            Err(index) if index == self.entries.len() => Found::After,
            Err(_) => Found::Absent,
        }
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        self.entries.iter().map(decode_entry)
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn entry(first: u8) -> Entry {
        Entry { key: Key([first; KEY_LEN]), ordinal: Ordinal(7 + u32::from(first)), position: Position(1 << 40) }
    }

    #[test]
    fn pages_hold_what_was_put_in_and_any_changed_bit_shows() {
        let name = PageName { bucket: 3, run: 1 << 33, index: 5 };
        let mut bytes = Vec::new();
        encode_page(name, &[entry(2), entry(4), entry(9)], &mut bytes);
        let page = Page::decode(name, &bytes).unwrap();
        assert_eq!(page.entries().collect::<Vec<_>>(), [entry(2), entry(4), entry(9)]);
        let find = |first| page.find(&entry(first).key);
        assert_eq!(find(4), Found::Here(entry(4)));
        assert_eq!((find(1), find(3), find(10)), (Found::Before, Found::Absent, Found::After));
        assert!(Page::decode(PageName { run: 9, ..name }, &bytes).is_none());
        assert!(Page::decode(PageName { bucket: 4, ..name }, &bytes).is_none());
        assert!(Page::decode(PageName { index: 4, ..name }, &bytes).is_none());
        assert!(Page::decode(name, &bytes[..PAGE_BYTES - 1]).is_none());
        for bit in (0..PAGE_BYTES * 8).step_by(61) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Page::decode(name, &bytes).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        let name = PageName { bucket: 3, run: 1, index: 5 };
        let mut page = Vec::new();
        encode_page(name, &[entry(2), entry(4)], &mut page);
        let mut decoded = 0;
        for bit in 32..HEADER_BYTES * 8 + 64 {
            let mut bytes = page.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let checksum = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            if let Some(page) = Page::decode(name, &bytes) {
                decoded += page.entries().count();
                page.find(&entry(3).key);
            }
        }
        assert!(0 < decoded);
    }
}
