//! Entries that are not written out yet: searchable by key, listed by bucket, in a fixed amount of memory.

use crate::kv::{Entry, Key, Ordinal, Position};

/// Ends a list. Half the size of an `Option<u32>`, and there are three lists per entry's worth of memory.
const END: u32 = u32::MAX;

/// Memory that one entry costs: its slot and its share of the heads of the hash chains (at most two per entry).
pub const STAGED_BYTES: usize = size_of::<Slot>() + 2 * size_of::<u32>();

#[derive(Clone, Copy, Debug)]
struct Slot {
    position: u64,
    key: Key,
    ordinal: u32,
    chain_next: u32,
    bucket_next: u32,
}

/// The entries that were staged.
#[derive(Debug)]
pub struct Staging {
    capacity: usize,
    len: usize,
    slots: Vec<Slot>,
    free: u32,
    chains: Vec<u32>,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    first: u32,
    count: u32,
}

impl Staging {
    /// Makes room for as many entries as fit into `bytes`, at least one.
    pub fn new(bytes: usize, buckets: u32) -> Self {
        let capacity = (bytes / STAGED_BYTES).clamp(1, 1 << 31);
        Self {
            capacity,
            len: 0,
            slots: Vec::with_capacity(capacity),
            free: END,
            chains: vec![END; capacity.next_power_of_two()],
            buckets: vec![Bucket { first: END, count: 0 }; buckets as usize],
        }
    }

    /// Returns how many entries are staged.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says whether another entry fits.
    pub fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Returns how many entries of a bucket are staged.
    pub fn bucket_count(&self, bucket: u32) -> u32 {
        self.buckets[bucket as usize].count
    }

    fn chain_of(&self, key: &Key) -> usize {
        // The bits that choose the bucket stay out of it; the number of chains is a power of two.
        usize::try_from(key.middle() & (self.chains.len() as u64 - 1)).expect("a chain's number fits the length")
    }

    /// Returns the staged entry of a key.
    pub fn get(&self, key: &Key) -> Option<Entry> {
        let mut next = self.chains[self.chain_of(key)];
        while next != END {
            let slot = &self.slots[next as usize];
            if slot.key == *key {
                return Some(slot.entry());
            }
            next = slot.chain_next;
        }
        None
    }

    /// Adds an entry, or replaces the one that has the same key. Staging must not be full.
    pub fn insert(&mut self, bucket: u32, entry: &Entry) {
        assert!(!self.is_full(), "the table flushes before it stages more");
        let chain = self.chain_of(&entry.key);
        let mut next = self.chains[chain];
        while next != END {
            let slot = &mut self.slots[next as usize];
            if slot.key == entry.key {
                slot.ordinal = entry.ordinal.0;
                slot.position = entry.position.0;
                return;
            }
            next = slot.chain_next;
        }
        let slot = Slot {
            position: entry.position.0,
            key: entry.key,
            ordinal: entry.ordinal.0,
            chain_next: self.chains[chain],
            bucket_next: self.buckets[bucket as usize].first,
        };
        let index = if self.free == END {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("the capacity is below 2^32")
        } else {
            let index = self.free;
            self.free = self.slots[index as usize].bucket_next;
            self.slots[index as usize] = slot;
            index
        };
        self.chains[chain] = index;
        self.buckets[bucket as usize].first = index;
        self.buckets[bucket as usize].count += 1;
        self.len += 1;
    }

    /// Appends the entries of a bucket, in no order.
    pub fn list(&self, bucket: u32, out: &mut Vec<Entry>) {
        let mut next = self.buckets[bucket as usize].first;
        while next != END {
            let slot = &self.slots[next as usize];
            out.push(slot.entry());
            next = slot.bucket_next;
        }
    }

    /// Drops the entries of a bucket.
    pub fn clear(&mut self, bucket: u32) {
        let mut next = self.buckets[bucket as usize].first;
        while next != END {
            let slot = self.slots[next as usize];
            self.unchain(next, &slot);
            self.slots[next as usize].bucket_next = self.free;
            self.free = next;
            self.len -= 1;
            next = slot.bucket_next;
        }
        self.buckets[bucket as usize] = Bucket { first: END, count: 0 };
    }

    fn unchain(&mut self, index: u32, slot: &Slot) {
        let chain = self.chain_of(&slot.key);
        if self.chains[chain] == index {
            self.chains[chain] = slot.chain_next;
            return;
        }
        let mut previous = self.chains[chain];
        while self.slots[previous as usize].chain_next != index {
            previous = self.slots[previous as usize].chain_next;
        }
        self.slots[previous as usize].chain_next = slot.chain_next;
    }
}

impl Slot {
    fn entry(&self) -> Entry {
        Entry { key: self.key, ordinal: Ordinal(self.ordinal), position: Position(self.position) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::kv::mem_disk::Random;

    #[test]
    fn staging_finds_what_a_map_finds_through_inserts_and_clears() {
        let seed = 11;
        eprintln_seed(seed);
        let mut random = Random::new(seed);
        let buckets = 5;
        let mut staging = Staging::new(100 * STAGED_BYTES, buckets);
        let mut model: HashMap<Key, Entry> = HashMap::new();
        let mut cleared = 0;
        for step in 0..20_000_u64 {
            let key = Key::from(&random.fingerprint_of(300));
            assert_eq!(staging.get(&key), model.get(&key).copied());
            if staging.is_full() {
                let bucket = u32::try_from(random.below(u64::from(buckets))).unwrap();
                let mut listed = Vec::new();
                staging.list(bucket, &mut listed);
                assert_eq!(listed.len(), staging.bucket_count(bucket) as usize);
                for entry in listed {
                    assert_eq!(model.remove(&entry.key), Some(entry));
                }
                staging.clear(bucket);
                cleared += 1;
                continue;
            }
            let entry = Entry { key, ordinal: Ordinal(1), position: Position(step) };
            staging.insert(key.spread(buckets).0, &entry);
            model.insert(key, entry);
            assert_eq!(staging.len(), model.len());
        }
        assert!(cleared > 100);
    }

    #[expect(clippy::print_stderr, reason = "a random test names its seed")]
    fn eprintln_seed(seed: u64) {
        eprintln!("seed {seed}");
    }
}
