//! Entries that wait for a server.

use std::collections::HashMap;
use std::mem::size_of;

use onefold_engine::kv::{Entry, Key, Ordinal, Position};

/// Memory of a buffered entry: a slot of the map and its control byte, and the map is at least 7/16 full; and the copy that
/// [`Buffer::sorted`] returns.
const ENTRY_BYTES: usize = (size_of::<(Key, (Ordinal, Position))>() + 1) * 16 / 7 + size_of::<Entry>();
/// Fewest entries that are buffered.
const ENTRIES_MIN: usize = 1_000;

/// Returns how many entries are buffered in a number of bytes.
pub(crate) fn entries_in(bytes: usize) -> usize {
    (bytes / ENTRY_BYTES).max(ENTRIES_MIN)
}

/// Returns the memory that so many buffered entries take.
pub(crate) fn bytes_of(entries: usize) -> usize {
    entries * ENTRY_BYTES
}

/// The last entry of each key since the server had them all.
#[derive(Debug)]
pub(crate) struct Buffer {
    entries: HashMap<Key, (Ordinal, Position)>,
    max: usize,
}

impl Buffer {
    pub(crate) fn new(max: usize) -> Self {
        Self { entries: HashMap::with_capacity(max), max }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.max <= self.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Entry> {
        self.entries.get(key).map(|&(ordinal, position)| Entry { key: *key, ordinal, position })
    }

    /// Inserts entries from the front of the slice, as many as there is space for; returns their number.
    pub(crate) fn insert(&mut self, entries: &[Entry]) -> usize {
        for (index, entry) in entries.iter().enumerate() {
            if self.is_full() && !self.entries.contains_key(&entry.key) {
                return index;
            }
            self.entries.insert(entry.key, (entry.ordinal, entry.position));
        }
        entries.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }

    /// Returns all entries in the order of their keys.
    pub(crate) fn sorted(&self) -> Vec<Entry> {
        let entry = |(key, &(ordinal, position)): (&Key, &(Ordinal, Position))| Entry { key: *key, ordinal, position };
        let mut entries: Vec<Entry> = self.entries.iter().map(entry).collect();
        entries.sort_unstable_by_key(|entry| entry.key);
        entries
    }

    /// Empties the buffer: the server has all of it.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
