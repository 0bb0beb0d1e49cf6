//! The read buffer (section 5a of the paper): entries that followed a hit in the log, the oldest overwritten first.
//!
//! A ring of entries, filled by one copy from the log, and a hash table of lines that point into the ring. A hit updates nothing,
//! and nothing is removed: the age of a slot shows whether its entry was overwritten.

use onefold_accel::memory::will_need;

use crate::mapped::log::{Cached, Name};
use crate::mapped::segments::ENTRY_WORDS;

/// Slots of a line of the hash table.
const LINE_SLOTS: usize = 8;
/// Entries of the ring for each line: slots are twice as many, so that few lines are full of slots in use.
const LINE_ENTRIES: usize = 4;
/// Bits of a slot for the number of an entry, counted from the first that was ever copied.
const NUMBER_BITS: u32 = 40;

/// Memory of a buffered entry: itself, its position, and its share of the hash table.
pub const BUFFERED_BYTES: usize = ENTRY_WORDS * 8 + 8 + LINE_SLOTS * 8 / LINE_ENTRIES;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u64; LINE_SLOTS]);

/// The buffer.
#[derive(Debug)]
pub struct ReadBuffer {
    ring: Vec<u64>,
    positions: Vec<u64>,
    lines: Vec<Line>,
    capacity: u64,
    /// Number of the next entry.
    next: u64,
    overwritten: u64,
}

fn tag_of(name: &Name) -> u64 {
    name.middle >> NUMBER_BITS
}

/// Returns the part of an entry's name that the hash table uses.
fn index_name(entry: &[u64]) -> Name {
    Name { head: entry[0], middle: entry[1], tail: 0 }
}

impl ReadBuffer {
    /// Makes a buffer of at most `bytes`, which must hold a window.
    pub fn new(bytes: usize) -> Self {
        let lines = (bytes / (BUFFERED_BYTES * LINE_ENTRIES)).max(1);
        let capacity = lines * LINE_ENTRIES;
        Self {
            ring: vec![0; capacity * ENTRY_WORDS],
            positions: vec![0; capacity],
            lines: vec![Line::default(); lines],
            capacity: capacity as u64,
            next: 0,
            overwritten: 0,
        }
    }

    /// Returns the memory of the buffer.
    pub fn bytes(&self) -> usize {
        self.lines.len() * LINE_ENTRIES * BUFFERED_BYTES
    }

    /// Returns the number of overwritten entries.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    fn line_of(&self, name: &Name) -> usize {
        let product = u128::from(name.head) * self.lines.len() as u128;
        usize::try_from(product >> 64).expect("below the number of lines")
    }

    /// Returns the location in the ring that a slot points to, unless it was overwritten.
    #[inline]
    fn location_of(&self, slot: u64) -> Option<usize> {
        let number = (slot & ((1 << NUMBER_BITS) - 1)).checked_sub(1)?;
        let is_there = self.next.wrapping_sub(number) & ((1 << NUMBER_BITS) - 1) <= self.capacity;
        is_there.then(|| usize::try_from(number % self.capacity).expect("below the capacity"))
    }

    /// Prefetches the line of a chunk.
    #[inline]
    pub fn prefetch(&self, name: &Name) {
        will_need(&self.lines[self.line_of(name)]);
    }

    /// Finds a chunk.
    #[inline]
    pub fn get(&self, name: &Name) -> Option<Cached> {
        let Line(slots) = &self.lines[self.line_of(name)];
        let tag = tag_of(name);
        let matching = slots.iter().filter(|slot| **slot >> NUMBER_BITS == tag);
        for location in matching.filter_map(|slot| self.location_of(*slot)) {
            let entry = &self.ring[location * ENTRY_WORDS..][..ENTRY_WORDS];
            if name.is_of(entry) {
                return Some(Cached { location, position: self.positions[location], state: entry[ENTRY_WORDS - 1] });
            }
        }
        None
    }

    /// Replaces the state of an entry that was just found.
    pub fn refresh(&mut self, location: usize, state: u64) {
        self.ring[location * ENTRY_WORDS + ENTRY_WORDS - 1] = state;
    }

    /// Takes at most `count` entries from a position on. `copy` writes them and returns their number.
    pub fn fill(&mut self, position: u64, count: usize, copy: impl FnOnce(&mut [u64]) -> usize) {
        let capacity = self.positions.len();
        let count = count.min(capacity);
        let mut start = usize::try_from(self.next % self.capacity).expect("below the capacity");
        if capacity < start + count {
            // A window is contiguous: this one starts at the front again.
            self.next += (capacity - start) as u64;
            start = 0;
        }
        let copied = copy(&mut self.ring[start * ENTRY_WORDS..(start + count) * ENTRY_WORDS]).min(count);
        self.overwritten = (self.next + copied as u64).saturating_sub(self.capacity).max(self.overwritten);
        // Prefetches all lines, so that no access waits for a single one.
        for entry in self.ring[start * ENTRY_WORDS..(start + copied) * ENTRY_WORDS].chunks_exact(ENTRY_WORDS) {
            will_need(&self.lines[self.line_of(&index_name(entry))]);
        }
        for (location, position) in (start..start + copied).zip(position..) {
            self.positions[location] = position;
            self.next += 1;
            self.enter(location);
        }
    }

    /// Puts the newest entry into the hash table: into the slot with the same tag, an empty one, or the oldest.
    fn enter(&mut self, location: usize) {
        let name = index_name(&self.ring[location * ENTRY_WORDS..][..ENTRY_WORDS]);
        let (tag, line) = (tag_of(&name), self.line_of(&name));
        let number_mask = (1 << NUMBER_BITS) - 1;
        let slot = tag << NUMBER_BITS | (self.next & number_mask);
        let slots = &self.lines[line].0;
        // The number of a slot is one more than that of its entry, and `next` is one more than that of the newest.
        let age = |slot: u64| if slot == 0 { u64::MAX } else { self.next.wrapping_sub(slot) & number_mask };
        let same = slots.iter().position(|slot| slot >> NUMBER_BITS == tag && *slot != 0);
        let oldest = || (0..LINE_SLOTS).max_by_key(|index| age(slots[*index]));
        let index = same.or_else(oldest).expect("a line has slots");
        self.lines[line].0[index] = slot;
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::kv::Key;

    use super::*;
    use crate::mapped::log::State;
    use crate::stream::name;

    fn name_of(number: u64) -> Name {
        Name::from(&Key::from(&name(number)))
    }

    fn fill(buffer: &mut ReadBuffer, position: u64, count: usize) {
        buffer.fill(position, count, |out| {
            for (position, entry) in (position..).zip(out.chunks_exact_mut(ENTRY_WORDS)) {
                entry.copy_from_slice(&name_of(position).entry(position, State::Dead));
            }
            out.len() / ENTRY_WORDS
        });
    }

    #[test]
    fn the_newest_entries_are_found_and_the_oldest_went_first() {
        let mut buffer = ReadBuffer::new(1000 * BUFFERED_BYTES);
        assert_eq!((buffer.capacity, buffer.bytes()), (1000, 1000 * BUFFERED_BYTES));
        for window in 0..200 {
            fill(&mut buffer, window * 51, 51);
        }
        let found =
            |range: std::ops::Range<u64>| range.filter(|number| buffer.get(&name_of(*number)).is_some()).count();
        assert!(920 <= found(9_200..10_200), "all but what windows leave at the end, or full lines");
        assert_eq!(found(0..9_180), 0);
        for number in 9_200..10_200 {
            if let Some(Cached { position, state, .. }) = buffer.get(&name_of(number)) {
                assert_eq!((position, state), (number, 0));
            }
        }
    }

    #[test]
    fn an_entry_that_comes_again_is_found_at_its_newest_place_and_can_be_refreshed() {
        let mut buffer = ReadBuffer::new(64 * BUFFERED_BYTES);
        for _ in 0..10 {
            fill(&mut buffer, 5, 20);
        }
        let found = buffer.get(&name_of(7)).unwrap();
        buffer.refresh(found.location, 99);
        assert_eq!(buffer.get(&name_of(7)).unwrap().state, 99);
        assert_eq!(buffer.get(&name_of(25)), None);
        buffer.fill(50, 500, |out| {
            assert_eq!(out.len(), 64 * ENTRY_WORDS, "a window is no longer than the buffer");
            0
        });
    }
}
