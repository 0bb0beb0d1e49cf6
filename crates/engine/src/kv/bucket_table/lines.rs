//! Lines of a memtable's hash table.

use std::ops::{Index, IndexMut};

/// Slots of a line.
pub(super) const LINE_SLOTS: usize = 15;

/// Compares all slots at once. Returns one bit for each that equals `wanted` in the bits of `mask`.
pub(super) fn equal_slots(slots: &[u32; LINE_SLOTS + 1], wanted: u32, mask: u32) -> u32 {
    let mut same = 0;
    for (index, slot) in slots.iter().enumerate() {
        same |= u32::from((slot ^ wanted) & mask == 0) << index;
    }
    // The last element is the count.
    same & ((1 << LINE_SLOTS) - 1)
}

/// Fifteen slots, and the number of entries that went to a later line because this one was full. A slot is 0, or the index
/// of an entry plus one with bits of its key above.
pub(super) type Line = [u32; LINE_SLOTS + 1];

/// Lines of which each is one cache line. Those that were never used take no pages of memory: zeroed words come from the system as they are.
pub(super) struct Lines {
    words: Vec<u32>,
    /// The first word that begins a cache line.
    first: usize,
    len: usize,
}

impl Lines {
    /// Makes empty lines.
    pub(super) fn new(len: usize) -> Self {
        let words = vec![0; (len + 1) * size_of::<Line>() / size_of::<u32>()];
        let first = words.as_ptr().align_offset(size_of::<Line>()).min(LINE_SLOTS);
        Self { words, first, len }
    }

    /// Returns the number of lines.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of all lines, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.words[..])
    }
}

impl Index<usize> for Lines {
    type Output = Line;

    fn index(&self, line: usize) -> &Line {
        &self.words[self.first..].as_chunks().0[line]
    }
}

impl IndexMut<usize> for Lines {
    fn index_mut(&mut self, line: usize) -> &mut Line {
        &mut self.words[self.first..].as_chunks_mut().0[line]
    }
}
