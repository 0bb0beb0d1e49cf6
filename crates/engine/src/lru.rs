//! A least-recently-used cache that is bounded by the bytes of what it holds.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Keeps what was used last, up to a number of bytes.
#[derive(Debug)]
pub struct Lru<K, V> {
    entries: HashMap<K, Held<V>>,
    /// Keys by when they were last used.
    by_use: BTreeMap<u64, K>,
    clock: u64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Held<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Hash + Eq + Copy, V: Clone> Lru<K, V> {
    /// Makes an empty cache of at most `bytes_max` bytes, or of one value if that is larger.
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), clock: 0, bytes: 0, bytes_max }
    }

    /// Returns what is held for the key, which counts as a use.
    pub fn get(&mut self, key: &K) -> Option<V> {
        self.clock += 1;
        let held = self.entries.get_mut(key)?;
        self.by_use.remove(&held.used);
        held.used = self.clock;
        self.by_use.insert(self.clock, *key);
        Some(held.value.clone())
    }

    /// Holds a value that takes `bytes` bytes, dropping what was not used for longest.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.remove(&key);
        while self.bytes_max < self.bytes + bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some(held) = self.entries.remove(&oldest) {
                self.bytes -= held.bytes;
            }
        }
        self.clock += 1;
        self.by_use.insert(self.clock, key);
        self.entries.insert(key, Held { value, bytes, used: self.clock });
        self.bytes += bytes;
    }

    /// Drops the values of keys for which `keeps` returns false.
    pub fn retain(&mut self, keeps: impl Fn(&K) -> bool) {
        let dropped: Vec<K> = self.entries.keys().filter(|key| !keeps(key)).copied().collect();
        for key in dropped {
            self.remove(&key);
        }
    }

    /// Drops what is held for the key.
    pub fn remove(&mut self, key: &K) {
        if let Some(held) = self.entries.remove(key) {
            self.by_use.remove(&held.used);
            self.bytes -= held.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let mut cache = Lru::new(30);
        for key in 0..3 {
            cache.insert(key, key * 10, 10);
        }
        assert_eq!(cache.get(&0), Some(0));
        cache.insert(3, 30, 10);
        assert_eq!([cache.get(&0), cache.get(&1), cache.get(&2), cache.get(&3)], [Some(0), None, Some(20), Some(30)]);
        cache.retain(|key| *key != 0);
        assert_eq!([cache.get(&0), cache.get(&2)], [None, Some(20)]);
        cache.insert(5, 50, 10);
        assert_eq!(cache.get(&3), Some(30), "the bytes of what was dropped are free");
        cache.insert(4, 40, 100);
        assert_eq!((cache.get(&4), cache.get(&2)), (Some(40), None));
    }
}
