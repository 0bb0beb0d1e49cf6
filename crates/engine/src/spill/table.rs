//! The part of a map that is in memory: a hash table over records in segments. Its memory is counted to the byte.

use std::num::NonZeroU32;

use crate::spill::page::{KEY_LEN, Key, VALUE_LEN_MAX, prefix_of};

/// Bytes of a segment. Records never move and never cross segments, so growth copies nothing.
const SEGMENT_LEN: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 16;
/// Most segments that a [`RecordRef`] can address: 4 GiB of records, whatever the limit.
const SEGMENTS_MAX: usize = (1 << (32 - SEGMENT_BITS)) - 1;
const RECORD_HEADER_LEN: usize = KEY_LEN + 2;
const _: () = assert!(RECORD_HEADER_LEN + VALUE_LEN_MAX <= SEGMENT_LEN && VALUE_LEN_MAX <= u16::MAX as usize);
/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;
/// Initial capacity of the list of segments.
const SEGMENTS_CAPACITY_MIN: usize = 4;

/// Position of a record: its segment and the offset in it, plus one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordRef(NonZeroU32);

impl RecordRef {
    fn new(segment: usize, offset: usize) -> Self {
        let position = u32::try_from(segment << SEGMENT_BITS | offset).expect("the number of segments is bounded");
        Self(NonZeroU32::MIN.checked_add(position).expect("the last segment is never used"))
    }

    fn segment_and_offset(self) -> (usize, usize) {
        let position = self.0.get() as usize - 1;
        (position >> SEGMENT_BITS, position & (SEGMENT_LEN - 1))
    }
}

/// Hash table with open addressing and linear probing. Keys are uniform, so their first bytes are the hash.
pub(crate) struct Table {
    /// Most memory of the table, in bytes.
    bytes_max: usize,
    /// Records. Only the last segment takes more.
    segments: Vec<Vec<u8>>,
    /// A power of two of slots, or none.
    slots: Vec<Option<RecordRef>>,
    count: usize,
}

impl Table {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, segments: Vec::new(), slots: Vec::new(), count: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the memory of the table, in bytes, with the list that [`Table::sorted`] will need.
    pub(crate) fn memory_bytes(&self) -> usize {
        memory_bytes(self.segments.len(), self.segments.capacity(), self.slots.len(), self.count)
    }

    /// Returns true if one more record with a value of this length keeps the limit, also while the table grows.
    pub(crate) fn has_space(&self, value_len: usize) -> bool {
        let fits_last =
            self.segments.last().is_some_and(|last| last.len() + RECORD_HEADER_LEN + value_len <= SEGMENT_LEN);
        let segments = self.segments.len() + usize::from(!fits_last);
        // A list that grows is copied: the old one and the new one, twice as large, exist together.
        let capacity = match self.segments.capacity() {
            capacity if segments <= capacity => capacity,
            capacity => capacity + (2 * capacity).max(SEGMENTS_CAPACITY_MIN),
        };
        let slots = match self.slots.len() {
            slots if !self.needs_slots() => slots,
            slots => slots + (2 * slots).max(SLOTS_MIN),
        };
        segments <= SEGMENTS_MAX && memory_bytes(segments, capacity, slots, self.count + 1) <= self.bytes_max
    }

    /// Returns true if three quarters of the slots are in use: with more, probing gets long.
    fn needs_slots(&self) -> bool {
        self.slots.len() / 4 * 3 <= self.count
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<&[u8]> {
        let record = self.slots.get(self.slot_of(key)?).copied().flatten()?;
        Some(self.record(record).1)
    }

    /// Sets the value of a key, at most [`VALUE_LEN_MAX`] bytes. Call [`Table::has_space`] first.
    pub(crate) fn insert(&mut self, key: &Key, value: &[u8]) {
        if self.needs_slots() {
            self.grow_slots();
        }
        let slot = self.slot_of(key).expect("there are free slots");
        if let Some(record) = self.slots[slot] {
            let (segment, offset) = record.segment_and_offset();
            if self.record(record).1.len() == value.len() {
                let start = offset + RECORD_HEADER_LEN;
                self.segments[segment][start..start + value.len()].copy_from_slice(value);
                return;
            }
        } else {
            self.count += 1;
        }
        // A replaced value of another length keeps its memory, unreachable, until the table is cleared.
        self.slots[slot] = Some(self.append(key, value));
    }

    fn append(&mut self, key: &Key, value: &[u8]) -> RecordRef {
        let len = RECORD_HEADER_LEN + value.len();
        if self.segments.last().is_none_or(|last| SEGMENT_LEN < last.len() + len) {
            if self.segments.len() == self.segments.capacity() {
                let capacity = (2 * self.segments.capacity()).max(SEGMENTS_CAPACITY_MIN);
                self.segments.reserve_exact(capacity - self.segments.len());
            }
            self.segments.push(Vec::with_capacity(SEGMENT_LEN));
        }
        let index = self.segments.len() - 1;
        let segment = &mut self.segments[index];
        let record = RecordRef::new(index, segment.len());
        segment.extend_from_slice(key);
        segment.extend_from_slice(&u16::try_from(value.len()).expect("values are bounded").to_le_bytes());
        segment.extend_from_slice(value);
        record
    }

    /// Returns all records sorted by key.
    pub(super) fn sorted(&self) -> impl Iterator<Item = (&Key, &[u8])> {
        let mut records = Vec::with_capacity(self.count);
        records.extend(self.slots.iter().copied().flatten());
        records.sort_unstable_by_key(|record| self.record(*record).0);
        records.into_iter().map(|record| self.record(record))
    }

    /// Removes all records and frees their memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    fn record(&self, record: RecordRef) -> (&Key, &[u8]) {
        let (segment, offset) = record.segment_and_offset();
        let (key, rest) = self.segments[segment][offset..].split_first_chunk().expect("a record begins here");
        let (len, rest) = rest.split_first_chunk().expect("a length follows the key");
        (key, &rest[..usize::from(u16::from_le_bytes(*len))])
    }

    /// Returns the slot of the key, or the free slot where it belongs; `None` if there are no slots.
    fn slot_of(&self, key: &Key) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut slot = first_slot(key, mask);
        // The loop ends: there are always free slots.
        while let Some(record) = self.slots[slot] {
            if self.record(record).0 == key {
                break;
            }
            slot = (slot + 1) & mask;
        }
        Some(slot)
    }

    fn grow_slots(&mut self) {
        let slots = vec![None; (2 * self.slots.len()).max(SLOTS_MIN)];
        let old = std::mem::replace(&mut self.slots, slots);
        for record in old.into_iter().flatten() {
            let slot = self.slot_of(self.record(record).0).expect("there are free slots");
            self.slots[slot] = Some(record);
        }
    }
}

fn first_slot(key: &Key, mask: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the mask keeps fewer bits than either has")]
    let hash = prefix_of(key) as usize;
    hash & mask
}

fn memory_bytes(segments: usize, segments_capacity: usize, slots: usize, count: usize) -> usize {
    let lists = segments_capacity * size_of::<Vec<u8>>() + slots * size_of::<Option<RecordRef>>();
    segments * SEGMENT_LEN + lists + count * size_of::<RecordRef>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_table_is_a_map_until_it_is_full_and_counts_its_memory() {
        let mut table = Table::new(600_000);
        let mut model = BTreeMap::new();
        let mut number = 0_u64;
        for round in 0..3 {
            while table.has_space(100) {
                number += 1;
                let hash = blake3::hash(&(number % 3000).to_le_bytes());
                let key = *hash.as_bytes().first_chunk::<20>().unwrap();
                let value = vec![hash.as_bytes()[20]; usize::try_from(number % 101).unwrap()];
                assert_eq!(table.get(&key), model.get(&key).map(Vec::as_slice));
                table.insert(&key, &value);
                model.insert(key, value);
                assert!(table.memory_bytes() <= 600_000);
            }
            assert!(table.sorted().eq(model.iter().map(|(key, value)| (key, value.as_slice()))), "round {round}");
            assert!(table.count() == model.len() && 500_000 < table.memory_bytes());
            table.clear();
            model.clear();
            assert_eq!((table.memory_bytes(), table.count()), (0, 0));
        }
    }

    #[test]
    fn the_last_offset_of_the_last_segment_has_a_reference() {
        let last = RecordRef::new(SEGMENTS_MAX - 1, SEGMENT_LEN - 1);
        assert_eq!(last.segment_and_offset(), (SEGMENTS_MAX - 1, SEGMENT_LEN - 1));
        assert_eq!(RecordRef::new(0, 0).segment_and_offset(), (0, 0));
        assert_eq!(size_of::<Option<RecordRef>>(), 4);
    }
}
