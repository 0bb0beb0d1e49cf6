//! Recent filters: a few bits per entry, by which a lookup skips most runs of a bucket.
//!
//! All runs of a bucket but the oldest, which has most entries, can have one. The bits of a key are in one 64-bit word, so
//! that a test is one memory access. They come from other bits of the key than most of those that the filter over the whole
//! table uses: a false positive there must not be one here for the same reason. (The blocks of
//! `bloom` are cache lines; here each word is a block, and a filter is a slice of any number of words.)

use std::collections::BTreeSet;

use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::page::EntryBytes;
use crate::kv::{KEY_LEN, Key, part_of};

/// Bits of a filter per entry. At 25 million entries, 4, 6 and 8 bits cost 1.37, 1.16 and 1.07 reads per lookup (measured),
/// with equally many lookups per second. The filter over the whole table makes better use of memory.
const RECENT_BITS: u64 = 5;

/// Bits set for an entry. At 5 bits per entry, 2 and 3 have the same rate of false positives.
const RECENT_HASHES: u32 = 2;

/// Returns the number of words of a filter for this number of entries, at least one.
pub(in crate::kv) fn recent_words(entries: u64) -> u64 {
    (entries.saturating_mul(RECENT_BITS)).div_ceil(64).max(1)
}

/// Returns the number of entries that a filter of this size is made for.
pub(in crate::kv) fn recent_entries(bytes: usize) -> u64 {
    bytes as u64 * 8 / RECENT_BITS
}

fn word_and_bits(key: &Key, words: usize) -> (usize, u64) {
    // Of the same bytes as the filter over the whole table, which takes more of them for its bits.
    let word = part_of(key.middle().swap_bytes(), words);
    let mut choices = key.tail();
    let mut bits = 0;
    for _ in 0..RECENT_HASHES {
        bits |= 1 << (choices % 64);
        choices >>= 6;
    }
    (word, bits)
}

/// Sets the bits of entries in the words of a filter, if it has any.
pub(in crate::kv) fn recent_set(words: &mut [u64], entries: &[EntryBytes]) {
    if words.is_empty() {
        return;
    }
    for entry in entries {
        let key: &[u8; KEY_LEN] = entry.first_chunk().expect("an entry begins with its key");
        let (word, bits) = word_and_bits(&Key(*key), words.len());
        words[word] |= bits;
    }
}

/// Returns false if a filter excludes a key. A filter without words excludes none.
pub(in crate::kv) fn recent_test(words: &[u64], key: &Key) -> bool {
    if words.is_empty() {
        return true;
    }
    let (word, bits) = word_and_bits(key, words.len());
    words[word] & bits == bits
}

/// Memory of all recent filters, and their order by size.
#[derive(Debug)]
pub(in crate::kv) struct RecentBytes {
    cap: usize,
    bytes: usize,
    by_size: BTreeSet<(usize, BucketName, u64)>,
}

/// Bucket and number of a run with a filter.
pub(in crate::kv) type RecentRun = (BucketName, u64);

impl RecentBytes {
    /// Starts without filters, with a limit in bytes.
    pub(crate) fn new(cap: usize) -> Self {
        Self { cap, bytes: 0, by_size: BTreeSet::new() }
    }

    /// Returns the memory of all filters, in bytes.
    pub(in crate::kv) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the filter of a run, if it has words.
    pub(in crate::kv) fn add(&mut self, (bucket, run): RecentRun, words: &[u64]) {
        if !words.is_empty() {
            self.bytes += size_of_val(words);
            self.by_size.insert((words.len(), bucket, run));
        }
    }

    /// Removes the filter of a run.
    pub(in crate::kv) fn remove(&mut self, (bucket, run): RecentRun, words: &[u64]) {
        if self.by_size.remove(&(words.len(), bucket, run)) {
            self.bytes -= size_of_val(words);
        }
    }

    /// Removes the largest filter if all together exceed the limit; returns its run, which has to drop it.
    pub(in crate::kv) fn surplus(&mut self) -> Option<RecentRun> {
        if self.bytes <= self.cap {
            return None;
        }
        let (words, bucket, run) = self.by_size.pop_last()?;
        self.bytes -= words * size_of::<u64>();
        Some((bucket, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fingerprint;

    fn entry(number: u64) -> EntryBytes {
        let mut bytes = [0; size_of::<EntryBytes>()];
        bytes[..KEY_LEN].copy_from_slice(&Key::from(&fingerprint(number)).0);
        bytes
    }

    #[test]
    fn entries_pass_and_few_other_keys_do() {
        let entries: Vec<_> = (0..10_000).map(entry).collect();
        let mut words = vec![0; usize::try_from(recent_words(10_000)).unwrap()];
        recent_set(&mut words, &entries);
        let passes = |number| recent_test(&words, &Key::from(&fingerprint(number)));
        assert!((0..10_000).all(passes));
        let wrong = (10_000..30_000).filter(|&number| passes(number)).count();
        assert!(wrong < 20_000 * 15 / 100, "{wrong} of 20,000 pass");
        assert!(recent_test(&[], &Key([1; KEY_LEN])));
    }

    #[test]
    fn the_largest_filters_are_dropped_until_the_limit_is_kept() {
        let mut recent = RecentBytes::new(100);
        for (run, words) in [(1, 4), (2, 9), (3, 5)] {
            recent.add((BucketName::WHOLE, run), &vec![0; words]);
        }
        assert_eq!((recent.bytes(), recent.surplus()), (144, Some((BucketName::WHOLE, 2))));
        assert_eq!((recent.bytes(), recent.surplus()), (72, None));
        recent.remove((BucketName::WHOLE, 2), &[0; 9]);
        recent.remove((BucketName::WHOLE, 1), &[0; 4]);
        assert_eq!(recent.bytes(), 40);
    }
}
