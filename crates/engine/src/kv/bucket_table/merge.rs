//! Merging sorted entries.
//!
//! Entries stay encoded as on a page, in 32 bytes: merges compare their first eight bytes and copy them.

use std::cmp::Ordering;

use crate::kv::Ordinal;
use crate::kv::bucket_table::page::{ENTRY_BYTES, EntryBytes, compare_keys, head_of, ordinal_of};
use crate::kv::bucket_table::pool::BufferPool;
use crate::kv::bucket_table::run_source::RunSource;
use crate::kv::bucket_table::run_writer::RunsWriter;

/// Most entries of a bin that are sorted by insertion. Bins have two on average; one in a billion has more than this.
const BIN_ENTRIES_MAX: u32 = 16;

/// Share of the memory of merges that idle buffers may keep.
pub(in crate::kv) const POOL_SHARE: usize = 4;

/// Memory that merges use again: two lists for merges of two inputs, in alternation, and I/O buffers.
#[derive(Debug, Default)]
pub(crate) struct MergeBuffers {
    lists: [Vec<EntryBytes>; 2],
    pool: BufferPool,
}

impl MergeBuffers {
    /// Starts with none, for merges that take `bytes` in all.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { lists: Default::default(), pool: BufferPool::new(bytes / POOL_SHARE) }
    }

    pub(in crate::kv) fn pool(&mut self) -> &mut BufferPool {
        &mut self.pool
    }
}

/// Merges the entries of sources, oldest first, as far as all of them are read, and hands them to the writer in order.
/// Of equal keys it keeps the newest live entry.
pub(in crate::kv) fn merge_ready(
    sources: &mut [RunSource],
    live: &dyn Fn(Ordinal) -> bool,
    MergeBuffers { lists, pool }: &mut MergeBuffers,
    writer: &mut RunsWriter,
) {
    // A source with unread pages bounds the merge by its last ready entry.
    let mut bound: Option<EntryBytes> = None;
    for source in sources.iter().filter(|source| source.has_unread()) {
        let Some(last) = source.ready().last() else { return };
        bound = Some(bound.filter(|bound| compare_keys(bound, last) == Ordering::Less).unwrap_or(*last));
    }
    let ends = sources.iter().map(|source| match &bound {
        Some(bound) => source.ready().partition_point(|entry| compare_keys(entry, bound) != Ordering::Greater),
        None => source.ready().len(),
    });
    let ends: Vec<usize> = ends.collect();
    let parts = sources.iter().zip(&ends).rev().map(|(source, &end)| &source.ready()[..end]);
    writer.push_all(merge_parts(parts, live, lists), live, pool);
    for (source, end) in sources.iter_mut().zip(ends) {
        source.take(end);
    }
}

/// Merges sorted entries, newest first.
fn merge_parts<'a>(
    parts: impl Iterator<Item = &'a [EntryBytes]>,
    live: &dyn Fn(Ordinal) -> bool,
    [first, second]: &'a mut [Vec<EntryBytes>; 2],
) -> &'a [EntryBytes] {
    let mut parts = parts.filter(|part| !part.is_empty());
    let Some(newest) = parts.next() else { return &[] };
    let Some(older) = parts.next() else { return newest };
    // Runs mostly grow with age: this order copies the largest run once.
    let (mut merged, mut other) = (first, second);
    merge_two(older, newest, live, merged);
    for older in parts {
        merge_two(older, merged, live, other);
        std::mem::swap(&mut merged, &mut other);
    }
    merged
}

/// Sorts entries of one bucket by key.
///
/// Keys are uniform, so a bucket sort by the first bits that differ puts each entry at its position or close to it; an
/// insertion sort does the rest. Keys that are not uniform take a comparison sort.
pub(in crate::kv) fn sort_entries(entries: &mut Vec<EntryBytes>) {
    let heads = || entries.iter().map(head_of);
    let (Some(first), Some(last)) = (heads().min(), heads().max()) else { return };
    // The first bit that differs is the highest bit of a bin's number: at most half of the bins stay empty.
    let bins_log = (entries.len() / 2).max(1).ilog2();
    let shift = (64 - (first ^ last).leading_zeros()).saturating_sub(bins_log).min(63);
    let low = first >> shift;
    let bin_of = |entry: &EntryBytes| usize::try_from((head_of(entry) >> shift) - low).unwrap_or(usize::MAX);
    let mut starts = vec![0_u32; usize::try_from((last >> shift) - low).unwrap_or(usize::MAX) + 2];
    for entry in &*entries {
        starts[bin_of(entry) + 1] += 1;
    }
    let is_even = starts.iter().all(|&count| count <= BIN_ENTRIES_MAX);
    if !is_even {
        return entries.sort_unstable_by(compare_keys);
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut sorted = vec![[0; ENTRY_BYTES]; entries.len()];
    for entry in &*entries {
        let start = &mut starts[bin_of(entry)];
        sorted[*start as usize] = *entry;
        *start += 1;
    }
    for next in 1..sorted.len() {
        let mut index = next;
        while 0 < index && compare_keys(&sorted[index], &sorted[index - 1]) == Ordering::Less {
            sorted.swap(index, index - 1);
            index -= 1;
        }
    }
    *entries = sorted;
}

/// Merges two sorted lists without repeated keys. Of a key in both, the younger entry stays unless only the older is live.
fn merge_two(older: &[EntryBytes], younger: &[EntryBytes], live: &dyn Fn(Ordinal) -> bool, out: &mut Vec<EntryBytes>) {
    out.clear();
    out.reserve(older.len() + younger.len());
    let (mut old, mut recent) = (0, 0);
    while let (Some(left), Some(right)) = (older.get(old), younger.get(recent)) {
        let (left_head, right_head) = (head_of(left), head_of(right));
        if left_head == right_head {
            let order = compare_keys(left, right);
            let keep_right = order == Ordering::Greater || (order == Ordering::Equal && live(ordinal_of(right)));
            out.push(if keep_right { *right } else { *left });
            old += usize::from(order != Ordering::Greater);
            recent += usize::from(order != Ordering::Less);
            continue;
        }
        // No branch: the processor cannot predict the side.
        let is_old = left_head < right_head;
        out.push(*if is_old { left } else { right });
        old += usize::from(is_old);
        recent += usize::from(!is_old);
    }
    out.extend_from_slice(&older[old..]);
    out.extend_from_slice(&younger[recent..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::bucket_table::page::{decode_entry, encode_entry};
    use crate::kv::{Entry, Key, Position};
    use crate::random::SplitMix64;

    fn entry(head: u64, ordinal: u32) -> EntryBytes {
        let mut key = Key([0; 20]);
        key.0[..8].copy_from_slice(&head.to_be_bytes());
        encode_entry(&Entry { key, ordinal: Ordinal(ordinal), position: Position(0) })
    }

    #[test]
    fn entries_are_sorted_whether_their_keys_are_uniform_or_not() {
        let mut random = SplitMix64::new(3);
        for shape in 0..6 {
            for count in [0, 1, 2, 3, 17, 1000, 5000] {
                let mut head = || match shape {
                    0 => random.next_u64(),
                    1 => random.next_u64() >> 11 | 5 << 60,
                    2 => random.below(3),
                    3 => u64::MAX - random.below(1 << 20),
                    4 => random.below(2) << 63 | random.below(9),
                    _ => 7,
                };
                let mut entries: Vec<_> = (0..count).map(|index| entry(head(), index)).collect();
                let mut expected = entries.clone();
                sort_entries(&mut entries);
                expected.sort_by(compare_keys);
                let keys = |entries: &[EntryBytes]| entries.iter().map(head_of).collect::<Vec<_>>();
                assert_eq!(keys(&entries), keys(&expected), "shape {shape}");
                entries.sort_unstable();
                expected.sort_unstable();
                assert_eq!(entries, expected, "none is lost");
            }
        }
    }

    #[test]
    fn of_equal_keys_the_newest_that_is_live_stays() {
        let live = |ordinal: Ordinal| ordinal.0 < 10;
        let older: Vec<_> = [(1, 1), (2, 2), (3, 13), (5, 5)].map(|(head, ordinal)| entry(head, ordinal)).to_vec();
        let younger: Vec<_> = [(2, 3), (3, 4), (5, 15), (6, 6)].map(|(head, ordinal)| entry(head, ordinal)).to_vec();
        let mut buffers = MergeBuffers::default();
        let merged = merge_parts([&younger[..], &older[..]].into_iter(), &live, &mut buffers.lists);
        let found: Vec<_> = merged.iter().map(|bytes| decode_entry(bytes).ordinal.0).collect();
        assert_eq!(found, [1, 3, 4, 5, 6]);
    }
}
