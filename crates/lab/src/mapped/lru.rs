//! The traditional fingerprint cache, for comparison: windows of the log; the least recently used is evicted.
//!
//! As in locality-preserved caching (Zhu, Li and Patterson, FAST 2008, section 4.3), windows are added and evicted as a whole, and a
//! hit makes its window the newest. Each entry is in a hash map. Both map and list are updated with every window: the paper's read
//! buffer avoids this cost, which experiments measure here. So this cache shares no code with the engine's: `store::lru` holds
//! single values, and `index::cache` has windows of variable length and indexes them without a map.

use std::collections::HashMap;

use onefold_engine::identify::identity_hasher::BuildIdentityHasher;
use onefold_engine::kv::{KEY_LEN, Key};

use crate::mapped::log::{Cached, Name};
use crate::mapped::segments::ENTRY_WORDS;

/// Memory of an entry in the map: key, location and a control byte.
const MAPPED_BYTES: usize = KEY_LEN + 4 + 1;
/// Memory of a window without its entries.
const WINDOW_BYTES: usize = size_of::<Window>();
/// No window.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Window {
    position: u64,
    len: u32,
    newer: u32,
    older: u32,
}

/// The cache.
#[derive(Debug)]
pub struct Lru {
    window_entries: usize,
    windows_max: usize,
    entries: Vec<u64>,
    windows: Vec<Window>,
    locations: HashMap<Key, u32, BuildIdentityHasher>,
    newest: u32,
    oldest: u32,
    evictions: u64,
}

/// Capacity of the map for each entry: with less, many removals and insertions would make it grow.
const MAP_HEADROOM: usize = 2;

/// Returns the memory of a map for `entries` entries: the number of buckets is a power of two, and seven eighths are used.
fn map_bytes(entries: usize) -> usize {
    (MAP_HEADROOM * entries * 8).div_ceil(7).next_power_of_two().max(4) * MAPPED_BYTES
}

impl Lru {
    /// Makes a cache of at most `bytes` for windows of `window_entries` entries; it holds at least one window.
    pub fn new(bytes: usize, window_entries: usize) -> Self {
        let of = |windows: usize| {
            let entries = windows * window_entries;
            windows * WINDOW_BYTES + entries * ENTRY_WORDS * 8 + map_bytes(entries)
        };
        // The largest number that fits; the map's memory grows in steps, so that none follows from a division.
        let (mut windows_max, mut step) = (1, 1 << 30);
        while step != 0 {
            if windows_max + step <= bytes / WINDOW_BYTES && of(windows_max + step) <= bytes {
                windows_max += step;
            }
            step /= 2;
        }
        let windows_max = windows_max.min(NONE as usize / window_entries.max(1));
        let entries = windows_max * window_entries;
        Self {
            window_entries,
            windows_max,
            entries: vec![0; entries * ENTRY_WORDS],
            windows: Vec::with_capacity(windows_max),
            locations: HashMap::with_capacity_and_hasher(MAP_HEADROOM * entries, BuildIdentityHasher::default()),
            newest: NONE,
            oldest: NONE,
            evictions: 0,
        }
    }

    /// Returns the memory of the cache.
    pub fn bytes(&self) -> usize {
        let entries = self.windows_max * self.window_entries;
        self.windows_max * WINDOW_BYTES + entries * ENTRY_WORDS * 8 + map_bytes(entries)
    }

    /// Returns the number of evicted windows.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    fn window(&mut self, index: u32) -> Option<&mut Window> {
        self.windows.get_mut(index as usize)
    }

    fn unlink(&mut self, index: u32) {
        let Window { newer, older, .. } = self.windows[index as usize];
        match self.window(newer) {
            Some(window) => window.older = older,
            None => self.newest = older,
        }
        match self.window(older) {
            Some(window) => window.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_as_newest(&mut self, index: u32) {
        let second = self.newest;
        match self.window(second) {
            Some(window) => window.newer = index,
            None => self.oldest = index,
        }
        let window = &mut self.windows[index as usize];
        (window.newer, window.older) = (NONE, second);
        self.newest = index;
    }

    /// Finds a chunk, and makes its window the newest.
    pub fn get(&mut self, name: &Name) -> Option<Cached> {
        let location = *self.locations.get(&name.key())? as usize;
        let window = location / self.window_entries;
        let position = self.windows[window].position + (location % self.window_entries) as u64;
        let index = u32::try_from(window).expect("few windows");
        if self.newest != index {
            self.unlink(index);
            self.link_as_newest(index);
        }
        Some(Cached { location, position, state: self.entries[location * ENTRY_WORDS + ENTRY_WORDS - 1] })
    }

    /// Replaces the state of an entry that was just found.
    pub fn refresh(&mut self, location: usize, state: u64) {
        self.entries[location * ENTRY_WORDS + ENTRY_WORDS - 1] = state;
    }

    /// Takes at most `count` entries from a position on. `copy` writes them and returns their number.
    pub fn fill(&mut self, position: u64, count: usize, copy: impl FnOnce(&mut [u64]) -> usize) {
        let count = count.min(self.window_entries);
        let index = if self.windows.len() < self.windows_max {
            self.windows.push(Window { position, len: 0, newer: NONE, older: NONE });
            u32::try_from(self.windows.len() - 1).expect("few windows")
        } else {
            let index = self.oldest;
            self.unlink(index);
            self.evict(index as usize);
            index
        };
        let start = index as usize * self.window_entries;
        let copied = copy(&mut self.entries[start * ENTRY_WORDS..(start + count) * ENTRY_WORDS]).min(count);
        let window = &mut self.windows[index as usize];
        (window.position, window.len) = (position, u32::try_from(copied).expect("short windows"));
        self.link_as_newest(index);
        for location in start..start + copied {
            self.locations.insert(self.key_at(location), u32::try_from(location).expect("few entries"));
        }
    }

    fn key_at(&self, location: usize) -> Key {
        let entry = &self.entries[location * ENTRY_WORDS..];
        let tail = u32::try_from(entry[2] & 0xffff_ffff).expect("32 bits");
        Name { head: entry[0], middle: entry[1], tail }.key()
    }

    /// Removes a window's entries from the map, except those that a newer window holds, too.
    fn evict(&mut self, index: usize) {
        self.evictions += 1;
        let start = index * self.window_entries;
        for location in start..start + self.windows[index].len as usize {
            let key = self.key_at(location);
            if self.locations.get(&key).is_some_and(|at| *at as usize == location) {
                self.locations.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::log::State;
    use crate::stream::name;

    fn name_of(number: u64) -> Name {
        Name::from(&Key::from(&name(number)))
    }

    fn fill(cache: &mut Lru, position: u64, count: usize) {
        cache.fill(position, count, |out| {
            for (position, entry) in (position..).zip(out.chunks_exact_mut(ENTRY_WORDS)) {
                entry.copy_from_slice(&name_of(position).entry(position, State::Dead));
            }
            out.len() / ENTRY_WORDS
        });
    }

    #[test]
    fn the_window_that_was_not_used_for_longest_goes_first_as_a_whole() {
        let mut cache = Lru::new(4 * 10 * (ENTRY_WORDS * 8 + 4 * MAPPED_BYTES) + 4 * WINDOW_BYTES, 10);
        let windows = cache.windows_max as u64;
        assert!(3 <= windows);
        for window in 0..windows {
            fill(&mut cache, window * 10, 10);
        }
        let found = |cache: &mut Lru, window: u64| {
            let numbers = window * 10..window * 10 + 10;
            let found: Vec<_> = numbers.filter_map(|number| cache.get(&name_of(number))).collect();
            found.len()
        };
        assert_eq!(found(&mut cache, 0), 10, "a hit makes it the newest");
        fill(&mut cache, windows * 10, 10);
        assert_eq!((found(&mut cache, 0), found(&mut cache, 1), found(&mut cache, windows)), (10, 0, 10));
        assert_eq!(cache.evictions(), 1);
    }

    #[test]
    fn memory_is_what_was_granted_and_overlapping_windows_do_not_lose_entries() {
        for bytes in [20_000, 100_000, 1 << 20, 3 << 20] {
            let mut cache = Lru::new(bytes, 51);
            assert!(cache.bytes() <= bytes && bytes < 5 * cache.bytes(), "{} of {bytes}", cache.bytes());
            for step in 0..2_000 {
                fill(&mut cache, step * 7, 51);
            }
            for number in 1999 * 7..1999 * 7 + 51 {
                assert_eq!(cache.get(&name_of(number)).map(|found| found.position), Some(number));
            }
            assert!(cache.locations.len() <= cache.windows_max * cache.window_entries);
        }
    }
}
