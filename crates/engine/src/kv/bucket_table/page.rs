//! One page of the bucket table: a checked header and up to 127 entries sorted by key.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C of all that follows |
//! | 4 | 4 | index of the page in the run |
//! | 8 | 8 | number of the run |
//! | 16 | 8 | epoch of the table |
//! | 24 | 2 | number of entries |
//! | 26 | 6 | zero |
//! | 32 | 32 each | entries: key 20, container ordinal 4, log position 8 |
//!
//! Epoch, run and index expose a page that was written elsewhere or long ago: it counts as damaged, like a torn one.
#![deny(clippy::indexing_slicing)]

use std::cmp::Ordering;

use crate::kv::{Entry, Fields, KEY_LEN, Key, Ordinal, Position};

/// Bytes of a page: the unit that an SSD reads.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes of an entry.
pub(in crate::kv) const ENTRY_BYTES: usize = 32;

/// Bytes of a page before its entries.
pub(in crate::kv) const HEADER_BYTES: usize = 32;

/// Entries that fit into a page.
pub(in crate::kv) const PAGE_ENTRIES: usize = (PAGE_BYTES - HEADER_BYTES) / ENTRY_BYTES;

/// Encoded entry. Merges compare and copy entries without decoding them.
pub(in crate::kv) type EntryBytes = [u8; ENTRY_BYTES];

/// Identity of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::kv) struct PageName {
    /// Epoch of the table, drawn at its creation.
    pub(crate) epoch: u64,
    /// Number of its run, unique between two checkpoints of a table.
    pub(crate) run: u64,
    /// Index of the page in the run.
    pub(crate) index: u32,
}

/// Position of a key relative to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// On the page.
    Here(Entry),
    /// Before its first key.
    Before,
    /// After its last key.
    After,
    /// Between its keys: nowhere in the run.
    Absent,
}

/// Page with a valid header and checksum.
#[derive(Clone, Copy, Debug)]
pub(in crate::kv) struct Page<'a> {
    entries: &'a [EntryBytes],
}

/// Encodes an entry.
pub(in crate::kv) fn encode_entry(entry: &Entry) -> EntryBytes {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..KEY_LEN].copy_from_slice(&entry.key.0);
    bytes[KEY_LEN..KEY_LEN + 4].copy_from_slice(&entry.ordinal.0.to_le_bytes());
    bytes[KEY_LEN + 4..].copy_from_slice(&entry.position.0.to_le_bytes());
    bytes
}

/// Decodes an entry. Every bit pattern is valid.
pub(in crate::kv) fn decode_entry(bytes: &EntryBytes) -> Entry {
    let mut fields = Fields::new(bytes);
    let mut decode = || {
        Some(Entry { key: Key(fields.array()?), ordinal: Ordinal(fields.u32()?), position: Position(fields.u64()?) })
    };
    decode().expect("an entry's fields add up to its length")
}

/// Returns the key of an entry.
pub(in crate::kv) fn key_of(entry: &EntryBytes) -> &[u8; KEY_LEN] {
    entry.first_chunk().expect("an entry begins with its key")
}

/// Returns the first eight bytes of an entry's key, as [`Key::head`] does.
pub(in crate::kv) fn head_of(entry: &EntryBytes) -> u64 {
    u64::from_be_bytes(*entry.first_chunk().expect("an entry begins with its key"))
}

/// Returns the container of an entry.
pub(in crate::kv) fn ordinal_of(entry: &EntryBytes) -> Ordinal {
    let [.., a, b, c, d, _, _, _, _, _, _, _, _] = *entry;
    Ordinal(u32::from_le_bytes([a, b, c, d]))
}

/// Compares the keys of two entries; most differ in their heads.
pub(in crate::kv) fn compare_keys(left: &EntryBytes, right: &EntryBytes) -> Ordering {
    head_of(left).cmp(&head_of(right)).then_with(|| key_of(left).cmp(key_of(right)))
}

/// Completes a page whose `count` entries, sorted by key, are in position: writes the header, and zeros after the entries.
pub(in crate::kv) fn seal_page(name: PageName, count: usize, page: &mut [u8]) {
    assert!((1..=PAGE_ENTRIES).contains(&count), "a page holds 1 to {PAGE_ENTRIES} entries");
    let page: &mut [u8; PAGE_BYTES] = page.try_into().expect("a page has its length");
    let (used, rest) = page.split_at_mut(HEADER_BYTES + count * ENTRY_BYTES);
    rest.fill(0);
    let header: &mut [u8; HEADER_BYTES] = used.first_chunk_mut().expect("a page begins with its header");
    *header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&name.index.to_le_bytes());
    header[8..16].copy_from_slice(&name.run.to_le_bytes());
    header[16..24].copy_from_slice(&name.epoch.to_le_bytes());
    let count = u16::try_from(count).expect("a page holds fewer than 65,536 entries");
    header[24..26].copy_from_slice(&count.to_le_bytes());
    let checksum = crc32c::crc32c(&page[4..]);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
}

impl<'a> Page<'a> {
    /// Checks a page; `None` if it is damaged or another one than `name`.
    pub(in crate::kv) fn decode(name: PageName, bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() != PAGE_BYTES {
            return None;
        }
        let mut fields = Fields::new(bytes);
        let checksum = fields.u32()?;
        if crc32c::crc32c(bytes.get(4..)?) != checksum {
            return None;
        }
        let (index, run, epoch) = (fields.u32()?, fields.u64()?, fields.u64()?);
        let count = usize::from(fields.u16()?);
        if (PageName { epoch, run, index }) != name || count == 0 {
            return None;
        }
        let (entries, _) = bytes.get(HEADER_BYTES..)?.as_chunks();
        Some(Self { entries: entries.get(..count)? })
    }

    /// Searches for a key.
    pub(crate) fn find(&self, key: &Key) -> Found {
        let head = key.head();
        let order = |entry: &EntryBytes| head_of(entry).cmp(&head).then_with(|| key_of(entry).cmp(&key.0));
        match self.entries.binary_search_by(order) {
            Ok(index) => self.entries.get(index).map_or(Found::Absent, |bytes| Found::Here(decode_entry(bytes))),
            Err(0) => Found::Before,
            Err(index) if index == self.entries.len() => Found::After,
            Err(_) => Found::Absent,
        }
    }

    /// Returns the entries in order.
    pub(in crate::kv) fn entries(&self) -> &'a [EntryBytes] {
        self.entries
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn entry(first: u8) -> Entry {
        Entry { key: Key([first; KEY_LEN]), ordinal: Ordinal(7 + u32::from(first)), position: Position(1 << 40) }
    }

    fn page(name: PageName, entries: &[Entry]) -> Vec<u8> {
        let mut bytes = vec![0xaa; PAGE_BYTES];
        for (slot, entry) in bytes[HEADER_BYTES..].chunks_mut(ENTRY_BYTES).zip(entries) {
            slot.copy_from_slice(&encode_entry(entry));
        }
        seal_page(name, entries.len(), &mut bytes);
        bytes
    }

    #[test]
    fn pages_return_their_entries_and_any_changed_bit_is_detected() {
        let name = PageName { epoch: 3, run: 1 << 33, index: 5 };
        let mut bytes = page(name, &[entry(2), entry(4), entry(9)]);
        let decoded = Page::decode(name, &bytes).unwrap();
        assert_eq!(decoded.entries().iter().map(decode_entry).collect::<Vec<_>>(), [entry(2), entry(4), entry(9)]);
        let find = |first| decoded.find(&entry(first).key);
        assert_eq!(find(4), Found::Here(entry(4)));
        assert_eq!((find(1), find(3), find(10)), (Found::Before, Found::Absent, Found::After));
        assert!(Page::decode(PageName { run: 9, ..name }, &bytes).is_none());
        assert!(Page::decode(PageName { epoch: 4, ..name }, &bytes).is_none());
        assert!(Page::decode(PageName { index: 4, ..name }, &bytes).is_none());
        assert!(Page::decode(name, &bytes[..PAGE_BYTES - 1]).is_none());
        for bit in (0..PAGE_BYTES * 8).step_by(61) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Page::decode(name, &bytes).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_parts_of_an_entry_are_those_of_its_encoding() {
        let entry = Entry { key: Key([9; KEY_LEN]), ordinal: Ordinal(0x0102_0304), position: Position(u64::MAX - 5) };
        let bytes = encode_entry(&entry);
        assert_eq!(decode_entry(&bytes), entry);
        assert_eq!((ordinal_of(&bytes), head_of(&bytes)), (entry.ordinal, entry.key.head()));
        assert_eq!(key_of(&bytes), &entry.key.0);
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        let name = PageName { epoch: 3, run: 1, index: 5 };
        let page = page(name, &[entry(2), entry(4)]);
        let mut decoded = 0;
        for bit in 32..HEADER_BYTES * 8 + 64 {
            let mut bytes = page.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let checksum = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            if let Some(page) = Page::decode(name, &bytes) {
                decoded += page.entries().len();
                page.find(&entry(3).key);
            }
        }
        assert!(0 < decoded);
    }
}
