//! Entries of the records of a cache: each in one of two buckets, or in the set of those that fit neither.

use crate::identify::exact::cache::{
    BLOCKS_PER_OVERFLOW, BUCKET_ENTRIES, Block, Cache, EMPTY, Entry, RECORD_SHIFT, bucket_of, index, tag_of,
};

impl Cache {
    /// Returns the first bucket and the entry of each record of a block.
    fn entries(block: &Block, number: u32, buckets: usize) -> impl Iterator<Item = (usize, Entry)> {
        block.records().iter().enumerate().map(move |(record, (fingerprint, _))| {
            let location = u64::from(number) << RECORD_SHIFT | record as u64;
            (bucket_of(fingerprint, buckets), tag_of(fingerprint) | location)
        })
    }

    pub(super) fn add_entries(&mut self, number: u32) {
        let entries = Self::entries(&self.blocks[index(number)], number, self.buckets.len());
        for (record, (bucket, entry)) in entries.enumerate() {
            if self.buckets[bucket].replace(EMPTY, entry) || self.buckets[bucket ^ 1].replace(EMPTY, entry) {
                continue;
            }
            if self.overflow.len() < self.capacity / BLOCKS_PER_OVERFLOW {
                self.overflow.insert((bucket | 1, entry));
            } else {
                // The age of an entry is unknown.
                self.buckets[bucket].0[record % BUCKET_ENTRIES] = entry;
            }
        }
    }

    pub(super) fn remove_entries(&mut self, number: u32) {
        if self.buckets.is_empty() {
            return;
        }
        let block = self.blocks[index(number)];
        for (bucket, entry) in Self::entries(&block, number, self.buckets.len()) {
            let was_full = !self.overflow.is_empty() && self.is_full(bucket);
            if self.buckets[bucket].replace(entry, EMPTY) || self.buckets[bucket ^ 1].replace(entry, EMPTY) {
                if was_full {
                    self.take_overflow(bucket);
                }
            } else {
                // Another entry may have replaced it.
                self.overflow.remove(&(bucket | 1, entry));
            }
        }
    }

    /// Moves an entry into the place that has become free in one of its buckets, if there is one: only those of full buckets are looked for.
    fn take_overflow(&mut self, bucket: usize) {
        let next = self.overflow.range((bucket | 1, 0)..=(bucket | 1, Entry::MAX)).next().copied();
        if let Some((pair, entry)) = next {
            self.overflow.remove(&(pair, entry));
            let _ = self.buckets[bucket].replace(EMPTY, entry) || self.buckets[bucket ^ 1].replace(EMPTY, entry);
        }
    }
}
