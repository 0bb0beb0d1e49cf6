//! The fingerprint cache: prefetched windows of the arrival log, replaced by least recent use.
//!
//! Whole windows enter and leave. Their records lie in blocks of one size, so that the cache takes exactly its memory,
//! however long windows are. Buckets of eight tagged entries, one cache line each, lead from a fingerprint to its record. A
//! fingerprint has two buckets, which form a pair. If both are full, a new entry goes into an ordered set; if that is full too, which only
//! happens in a cache of a few blocks, it replaces an old one, whose record is then looked up in the table instead.
//!
//! The cache has the memory that the filter has not grown to, and returns it as the filter grows ([`Cache::shrink`]): it
//! moves later blocks to the front and truncates its vectors.

use std::collections::{BTreeMap, BTreeSet};

use onefold_accel::memory::will_need;

use crate::identify::locality::arrival_log::{LOG_PAGE_RECORDS, LogExtent, LogRecord};
use crate::kv::{Key, Ordinal, Position, part_of};
use crate::types::{Chunk, Fingerprint};

mod entries;
mod shrink;
mod units;

/// Records of a block; the last block of a window may have fewer.
pub(in crate::identify) const BLOCK_RECORDS: usize = 16;
/// Entries of a bucket.
const BUCKET_ENTRIES: usize = 8;
/// Records for each bucket of a full cache: about one record in a thousand finds both of its buckets full.
const BUCKET_RECORDS: usize = 4;
/// Blocks for each entry that fits neither of its buckets: room for four times as many as there are on average.
const BLOCKS_PER_OVERFLOW: usize = 16;
/// Memory of such an entry, in nodes of 11 and 24 further bytes, half of which are full at worst.
const OVERFLOW_BYTES: usize = 2 * (size_of::<(usize, Entry)>() + 24 / 11) * 11 / 10;
/// Buckets for each block.
const BLOCK_BUCKETS: usize = BLOCK_RECORDS / BUCKET_RECORDS;
/// Fewest buckets.
const BUCKETS_MIN: usize = 1 << 10;
/// Most blocks, whatever the memory, so that a `u32` numbers their records.
const BLOCKS_MAX: usize = 1 << 27;

/// Fewest records of a window that [`Cache::first_in`] finds. What is cached of shorter ones is cheaper to read again than to go around.
const FOUND_RECORDS_MIN: usize = LOG_PAGE_RECORDS;
/// Memory of the start of such a window: a key and a value in nodes of 11 with 24 bytes besides, half of which are full at worst; the
/// nodes above these take a tenth.
const START_BYTES: usize = 2 * (size_of::<u64>() + size_of::<u32>() + 24 / 11) * 11 / 10;

const START_BYTES_PER_BLOCK: usize = START_BYTES.div_ceil(FOUND_RECORDS_MIN / BLOCK_RECORDS);

/// Memory of a block: its records, its buckets, the window that it may be all of, and its share of the window's start and of entries that
/// fit no bucket.
pub(in crate::identify) const BLOCK_BYTES: usize = size_of::<Block>()
    + size_of::<Window>()
    + START_BYTES_PER_BLOCK
    + BLOCK_BUCKETS * size_of::<Bucket>()
    + OVERFLOW_BYTES.div_ceil(BLOCKS_PER_OVERFLOW);

/// A tag and a location: a set bit, 15 bits of the fingerprint, and 48 for the block and the record in it.
type Entry = u64;

const TAG_SHIFT: u32 = 48;
const TAG_MASK: u64 = u64::MAX << TAG_SHIFT;
const RECORD_SHIFT: u32 = BLOCK_RECORDS.trailing_zeros();
const EMPTY: Entry = 0;

fn tag_of(fingerprint: &Fingerprint) -> u64 {
    u64::from(Key::from(fingerprint).tail()) << TAG_SHIFT | 1 << (u64::BITS - 1)
}

/// Returns the first bucket, of so many, of a fingerprint; the other one is its pair.
fn bucket_of(fingerprint: &Fingerprint, buckets: usize) -> usize {
    part_of(Key::from(fingerprint).middle(), buckets)
}

/// Eight entries: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([Entry; BUCKET_ENTRIES]);

impl Bucket {
    /// Returns the entries that equal `wanted` in the bits of `mask`, one bit each; compares all at once.
    fn equal(&self, wanted: Entry, mask: u64) -> u32 {
        let equal = |entry: &Entry| u32::from((entry ^ wanted) & mask == 0);
        self.0.iter().enumerate().fold(0, |same, (index, entry)| same | equal(entry) << index)
    }

    /// Replaces the first entry that equals `old`; returns true if there was one.
    fn replace(&mut self, old: Entry, new: Entry) -> bool {
        let same = self.equal(old, u64::MAX);
        if same != 0 {
            self.0[same.trailing_zeros() as usize] = new;
        }
        same != 0
    }
}

/// A part of a window.
#[derive(Clone, Copy, Debug)]
struct Block {
    records: [(Fingerprint, Ordinal); BLOCK_RECORDS],
    /// Number of records; 0 in a free block.
    len: u32,
    /// Index of the first record in the window.
    first: u32,
    window: u32,
    /// The next block of the window, or the next free block.
    next: Option<u32>,
}

impl Block {
    fn records(&self) -> &[(Fingerprint, Ordinal)] {
        &self.records[..self.len as usize]
    }
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: Position,
    len: u32,
    /// Its first block.
    block: u32,
    /// Whether successor prefetch has read it and it has not been useful yet.
    is_unused_successor: bool,
    /// The window used next after it, or the next free window.
    newer: Option<u32>,
    older: Option<u32>,
}

fn index(number: u32) -> usize {
    number as usize
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("blocks are few enough to number their records")
}

/// Returns how many blocks fit into `bytes`, at least one.
fn blocks_of(bytes: usize) -> usize {
    (bytes / BLOCK_BYTES).clamp(1, BLOCKS_MAX)
}

fn empty_buckets(count: usize) -> Vec<Bucket> {
    vec![Bucket([EMPTY; BUCKET_ENTRIES]); count]
}

/// The fingerprint cache.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Most blocks.
    capacity: usize,
    /// Blocks in use.
    used: usize,
    buckets: Vec<Bucket>,
    /// Entries of which both buckets are full, by the second of these.
    overflow: BTreeSet<(usize, Entry)>,
    blocks: Vec<Block>,
    free_block: Option<u32>,
    windows: Vec<Window>,
    free_window: Option<u32>,
    /// Windows of at least [`FOUND_RECORDS_MIN`] records by their first position; of several with the same one, the newest.
    starts: BTreeMap<u64, u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    /// Most windows, if each is a unit of its log: a unit is in the cache once.
    units_max: Option<usize>,
    /// Windows in use.
    windows_used: usize,
    /// Windows that left for others though fewer than the most units were in the cache.
    pub(crate) evictions_for_memory: u64,
    /// Windows that left for others so far.
    pub(crate) evictions: u64,
    /// Windows of successor prefetch that were useful so far.
    pub(crate) useful: u64,
}

impl Cache {
    /// Makes a cache of at most `bytes`, but at least one block. It allocates memory as it fills.
    pub(crate) fn new(bytes: usize) -> Self {
        let capacity = blocks_of(bytes);
        Self {
            capacity,
            used: 0,
            buckets: empty_buckets(BUCKETS_MIN.min(capacity * BLOCK_BUCKETS)),
            overflow: BTreeSet::new(),
            blocks: Vec::with_capacity(capacity),
            free_block: None,
            windows: Vec::with_capacity(capacity),
            free_window: None,
            starts: BTreeMap::new(),
            newest: None,
            oldest: None,
            units_max: None,
            windows_used: 0,
            evictions_for_memory: 0,
            evictions: 0,
            useful: 0,
        }
    }

    /// Returns the most blocks, each of [`BLOCK_RECORDS`] records.
    pub(in crate::identify) fn blocks_max(&self) -> usize {
        self.capacity
    }

    /// Returns the memory of the full cache.
    #[cfg(test)]
    pub(in crate::identify) fn bytes(&self) -> usize {
        self.capacity * BLOCK_BYTES
    }

    /// Returns the block of a cached fingerprint, and the index of the record in it.
    fn find(&self, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let (tag, bucket) = (tag_of(fingerprint), bucket_of(fingerprint, self.buckets.len()));
        self.find_in(bucket, tag, fingerprint)
            .or_else(|| self.find_in(bucket ^ 1, tag, fingerprint))
            .or_else(|| self.find_in_overflow(bucket, tag, fingerprint))
    }

    fn find_in(&self, bucket: usize, tag: u64, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let mut same = self.buckets[bucket].equal(tag, TAG_MASK);
        while same != 0 {
            let entry = self.buckets[bucket].0[same.trailing_zeros() as usize];
            same &= same - 1;
            let found = self.record_of(entry, fingerprint);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn find_in_overflow(&self, bucket: usize, tag: u64, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        if self.overflow.is_empty() || !self.is_full(bucket) {
            return None;
        }
        let same = self.overflow.range((bucket | 1, tag)..=(bucket | 1, tag | !TAG_MASK));
        same.into_iter().find_map(|(_, entry)| self.record_of(*entry, fingerprint))
    }

    /// Returns the block and the record to which an entry leads, if the record has the fingerprint.
    fn record_of(&self, entry: Entry, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let location = entry & !TAG_MASK;
        let record = (location % BLOCK_RECORDS as u64) as usize;
        let block = usize::try_from(location >> RECORD_SHIFT).expect("a number of a block");
        // No entry leads to a free block.
        self.blocks.get(block).is_some_and(|block| block.records[record].0 == *fingerprint).then_some((block, record))
    }

    /// Returns true if a bucket and its pair are full.
    fn is_full(&self, bucket: usize) -> bool {
        [bucket, bucket ^ 1].into_iter().all(|bucket| self.buckets[bucket].equal(EMPTY, u64::MAX) == 0)
    }

    /// Starts to load the first bucket of a fingerprint into the processor's cache.
    pub(in crate::identify) fn prefetch(&self, fingerprint: &Fingerprint) {
        will_need(&self.buckets[bucket_of(fingerprint, self.buckets.len())]);
    }

    /// Returns a fingerprint's container and position in the log, and makes its window the most recently used.
    pub(crate) fn get(&mut self, fingerprint: &Fingerprint) -> Option<(Ordinal, Position)> {
        let (block, record) = self.find(fingerprint)?;
        let block = &self.blocks[block];
        let (_, ordinal) = block.records[record];
        let (first, number) = (block.first, block.window);
        let window = &mut self.windows[index(number)];
        let position = Position(window.start.0 + u64::from(first) + record as u64);
        self.useful += u64::from(std::mem::take(&mut window.is_unused_successor));
        self.touch(number);
        Some((ordinal, position))
    }

    fn window_with(&self, fingerprint: &Fingerprint) -> Option<&Window> {
        let (block, _) = self.find(fingerprint)?;
        Some(&self.windows[index(self.blocks[block].window)])
    }

    /// Returns the position after the window of a cached fingerprint.
    pub(in crate::identify) fn window_end(&self, fingerprint: &Fingerprint) -> Option<Position> {
        let Window { start, len, .. } = self.window_with(fingerprint)?;
        Some(Position(start.0 + u64::from(*len)))
    }

    /// Returns the first cached records from a position to before another one: the position of the first, and the one after the
    /// last of its window. Where windows overlap, the one that starts later counts; windows of less than a page of the log do not.
    pub(in crate::identify) fn first_in(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        self.first_window_in(from, to).map(|(_, range)| range)
    }

    fn first_window_in(&self, from: u64, to: u64) -> Option<(u32, (u64, u64))> {
        let range = |(&start, &number): (&u64, &u32)| {
            (number, (start.max(from), start + u64::from(self.windows[index(number)].len)))
        };
        let before = self.starts.range(..from).next_back().map(range).filter(|(_, (_, end))| from < *end);
        before.or_else(|| self.starts.range(from..to.max(from)).next().map(range)).filter(|_| from < to)
    }

    /// Returns the records of the window of a cached fingerprint; their lengths are not kept and 0.
    pub(in crate::identify) fn window_of(&self, fingerprint: &Fingerprint) -> Option<LogExtent> {
        self.window_with(fingerprint).map(|window| self.records_of(window))
    }

    fn records_of(&self, window: &Window) -> LogExtent {
        let Window { start, len, block, .. } = window;
        let mut records = Vec::with_capacity(index(*len));
        let mut next = Some(*block);
        while let Some(block) = next.map(|number| &self.blocks[index(number)]) {
            let record = |&(fingerprint, ordinal): &_| LogRecord { chunk: Chunk { fingerprint, len: 0 }, ordinal };
            records.extend(block.records().iter().map(record));
            next = block.next;
        }
        LogExtent { start: *start, records }
    }

    /// Adds a window that starts at a position, truncated to the capacity; others leave for it. `is_successor`: successor
    /// prefetch has read it.
    pub(crate) fn insert(&mut self, start: Position, records: &[LogRecord], is_successor: bool) {
        let records = &records[..records.len().min(self.capacity * BLOCK_RECORDS)];
        let blocks = records.len().div_ceil(BLOCK_RECORDS);
        if blocks == 0 || self.holds_unit(start, records.len()) {
            return;
        }
        let units_max = self.units_max.unwrap_or(usize::MAX);
        while let Some(oldest) =
            self.oldest.filter(|_| self.capacity < self.used + blocks || units_max <= self.windows_used)
        {
            self.evictions_for_memory += u64::from(self.units_max.is_some() && self.windows_used < units_max);
            self.evict(oldest);
        }
        let wanted = self.buckets_wanted(self.used + blocks);
        if self.buckets.len() < wanted {
            self.rebuild_buckets(wanted);
        }
        let window = self.take_window();
        let (mut first, mut before) = (None, None);
        let mut ahead = records.chunks(BLOCK_RECORDS);
        for (part, records) in records.chunks(BLOCK_RECORDS).enumerate() {
            // The buckets of the next block load while this one gets its entries.
            let count = if part == 0 { 2 } else { 1 };
            for record in ahead.by_ref().take(count).flatten() {
                self.prefetch(&record.chunk.fingerprint);
            }
            let taken = self.take_block();
            let block = &mut self.blocks[index(taken)];
            for (slot, record) in block.records.iter_mut().zip(records) {
                *slot = (record.chunk.fingerprint, record.ordinal);
            }
            (block.len, block.first) = (number(records.len()), number(part * BLOCK_RECORDS));
            (block.window, block.next) = (window, None);
            match before.replace(taken) {
                Some(before) => self.blocks[index(before)].next = Some(taken),
                None => first = Some(taken),
            }
            self.add_entries(taken);
        }
        let (block, len) = (first.expect("a window has blocks"), number(records.len()));
        let is_unused_successor = is_successor;
        self.windows[index(window)] = Window { start, len, block, is_unused_successor, newer: None, older: None };
        if FOUND_RECORDS_MIN <= records.len() || self.units_max.is_some() {
            self.starts.insert(start.0, window);
        }
        self.link(window);
    }

    /// Adds those of some records that [`Cache::first_in`] does not find, so that overlapping windows do not take the memory of others.
    /// The windows that have the rest become the most recently used.
    pub(in crate::identify) fn insert_missing(&mut self, Position(start): Position, records: &[LogRecord]) {
        let end = start + records.len() as u64;
        let (mut missing, mut at) = (Vec::new(), start);
        while let Some((number, (first, covered))) = self.first_window_in(at, end) {
            self.touch(number);
            missing.push(at..first);
            at = covered;
        }
        missing.push(at..end.max(at));
        let part = |position: u64| usize::try_from(position - start).expect("a position within the records");
        for range in missing.into_iter().filter(|range| !range.is_empty()) {
            self.insert(Position(range.start), &records[part(range.start)..part(range.end)], false);
        }
    }

    fn take_block(&mut self) -> u32 {
        self.used += 1;
        let Some(free) = self.free_block else {
            let records = [(Fingerprint([0; 32]), Ordinal(0)); BLOCK_RECORDS];
            self.blocks.push(Block { records, len: 0, first: 0, window: 0, next: None });
            return number(self.blocks.len() - 1);
        };
        self.free_block = self.blocks[index(free)].next;
        free
    }

    fn take_window(&mut self) -> u32 {
        self.windows_used += 1;
        let Some(free) = self.free_window else {
            let (start, is_unused_successor) = (Position(0), false);
            self.windows.push(Window { start, len: 0, block: 0, is_unused_successor, newer: None, older: None });
            return number(self.windows.len() - 1);
        };
        self.free_window = self.windows[index(free)].newer;
        free
    }

    fn evict(&mut self, window: u32) {
        self.unlink(window);
        self.evictions += 1;
        self.windows_used -= 1;
        let Window { start, block: first, .. } = self.windows[index(window)];
        if self.starts.get(&start.0) == Some(&window) {
            self.starts.remove(&start.0);
        }
        self.windows[index(window)].newer = self.free_window.replace(window);
        self.prefetch_block(first);
        let mut next = Some(first);
        while let Some(number) = next {
            if let Some(following) = self.blocks[index(number)].next {
                self.prefetch_block(following);
            }
            self.remove_entries(number);
            let block = &mut self.blocks[index(number)];
            block.len = 0;
            next = std::mem::replace(&mut block.next, self.free_block);
            self.free_block = Some(number);
            self.used -= 1;
        }
    }

    // ---- Entries ----

    /// Returns the number of buckets for so many blocks: four times as many at each growth, up to those of a full cache.
    fn buckets_wanted(&self, blocks: usize) -> usize {
        let wanted = (blocks * BLOCK_BUCKETS).next_power_of_two();
        let of_four = wanted << (wanted.trailing_zeros() % 2);
        of_four.max(BUCKETS_MIN).min(self.capacity * BLOCK_BUCKETS)
    }

    fn rebuild_buckets(&mut self, count: usize) {
        // The old buckets are freed before the new ones are allocated.
        self.buckets = Vec::new();
        self.buckets = empty_buckets(count);
        self.overflow.clear();
        for block in 0..self.blocks.len() {
            if block + 1 < self.blocks.len() {
                self.prefetch_block(number(block + 1));
            }
            self.add_entries(number(block));
        }
    }

    /// Starts to load the buckets of a block's fingerprints, which are to be changed soon.
    fn prefetch_block(&self, number: u32) {
        if !self.buckets.is_empty() {
            self.blocks[index(number)].records().iter().for_each(|(fingerprint, _)| self.prefetch(fingerprint));
        }
    }

    // ---- Order of use ----

    fn link(&mut self, window: u32) {
        self.windows[index(window)].older = self.newest;
        self.windows[index(window)].newer = None;
        match self.newest.replace(window) {
            Some(before) => self.windows[index(before)].newer = Some(window),
            None => self.oldest = Some(window),
        }
    }

    /// Makes a window the most recently used.
    fn touch(&mut self, window: u32) {
        if self.newest != Some(window) {
            self.unlink(window);
            self.link(window);
        }
    }

    fn unlink(&mut self, window: u32) {
        let Window { newer, older, .. } = self.windows[index(window)];
        match newer {
            Some(newer) => self.windows[index(newer)].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.windows[index(older)].newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::fingerprint;

    fn window(numbers: std::ops::Range<u64>) -> Vec<LogRecord> {
        let chunk = |number| Chunk { fingerprint: fingerprint(number), len: 1 };
        numbers.map(|number| LogRecord { chunk: chunk(number), ordinal: Ordinal(4) }).collect()
    }

    fn entries(cache: &Cache) -> usize {
        let in_buckets = cache.buckets.iter().flat_map(|Bucket(entries)| entries).filter(|entry| **entry != EMPTY);
        in_buckets.count() + cache.overflow.len()
    }

    fn records(cache: &Cache) -> usize {
        cache.blocks.iter().map(|block| block.records().len()).sum()
    }

    fn found(cache: &mut Cache, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|&number| cache.get(&fingerprint(number)).is_some()).count()
    }

    /// Checks that all windows and blocks are linked, and that they take no more than their memory.
    fn check(cache: &Cache) {
        let (mut windows, mut blocks) = (0, 0);
        let mut next = cache.oldest;
        while let Some(at) = next {
            let window = &cache.windows[index(at)];
            let (mut len, mut block) = (0, Some(window.block));
            while let Some(number) = block {
                let it = &cache.blocks[index(number)];
                assert_eq!((it.window, it.first), (at, len));
                (len, block, blocks) = (len + it.len, it.next, blocks + 1);
            }
            assert_eq!(len, window.len);
            assert_eq!(window.newer.is_none(), cache.newest == Some(at));
            (next, windows) = (window.newer, windows + 1);
        }
        assert!(cache.starts.len() <= windows);
        for (start, number) in &cache.starts {
            let window = &cache.windows[index(*number)];
            assert_eq!((window.start.0, cache.blocks[index(window.block)].window), (*start, *number));
        }
        assert_eq!(blocks, cache.used);
        assert!(blocks <= cache.capacity && windows <= blocks);
        assert!(cache.blocks.len() <= cache.capacity && cache.windows.len() <= cache.capacity);
        let held = cache.blocks.capacity() * size_of::<Block>()
            + cache.windows.capacity() * size_of::<Window>()
            + cache.starts.len() * START_BYTES
            + cache.buckets.capacity() * size_of::<Bucket>()
            + cache.overflow.len() * OVERFLOW_BYTES;
        assert!(cache.overflow.iter().all(|(bucket, _)| cache.is_full(*bucket)));
        assert!(held <= cache.bytes(), "{held} bytes of {}", cache.bytes());
    }

    #[test]
    fn the_window_used_last_stays_and_the_oldest_goes() {
        let mut cache = Cache::new(7 * BLOCK_BYTES);
        cache.insert(Position(7), &window(0..40), false);
        cache.insert(Position(0), &window(40..80), false);
        assert_eq!(cache.get(&fingerprint(5)), Some((Ordinal(4), Position(12))));
        assert_eq!(cache.get(&fingerprint(39)), Some((Ordinal(4), Position(46))));
        assert_eq!(cache.window_end(&fingerprint(5)), Some(Position(47)));
        assert_eq!(cache.window_end(&fingerprint(900)), None);
        let LogExtent { start, records } = cache.window_of(&fingerprint(20)).unwrap();
        assert_eq!((start, records.len()), (Position(7), 40));
        assert!(records.iter().zip(0..).all(|(record, number)| record.chunk.fingerprint == fingerprint(number)));
        cache.insert(Position(0), &window(80..120), false);
        assert_eq!(cache.get(&fingerprint(50)), None, "the window used least recently goes, as a whole");
        assert_eq!((found(&mut cache, 0..40), found(&mut cache, 80..120)), (40, 40));
        check(&cache);
        cache.insert(Position(0), &window(200..1_000), false);
        assert_eq!(self::records(&cache), 112);
        assert_eq!(cache.evictions, 3);
        assert_eq!(cache.get(&fingerprint(0)), None);
        check(&cache);
    }

    #[test]
    fn long_windows_are_found_by_their_positions_until_they_leave() {
        let mut cache = Cache::new(40 * BLOCK_BYTES);
        cache.insert(Position(1_000), &window(0..200), false);
        cache.insert(Position(1_100), &window(100..250), false);
        cache.insert(Position(1_300), &window(300..400), false);
        assert_eq!(cache.first_in(0, 2_000), Some((1_000, 1_200)));
        assert_eq!(cache.first_in(1_150, 1_151), Some((1_150, 1_250)), "the window that starts later counts");
        assert_eq!((cache.first_in(1_250, 2_000), cache.first_in(1_150, 1_150)), (None, None), "less than a page");
        cache.shrink(25 * BLOCK_BYTES);
        assert_eq!(cache.first_in(0, 2_000), Some((1_100, 1_250)));
        check(&cache);
        cache.insert_missing(Position(1_000), &window(0..300));
        assert_eq!(cache.first_in(0, 2_000), Some((1_100, 1_250)), "the window at 1,300 has left");
        assert_eq!((records(&cache), found(&mut cache, 0..300)), (300, 300));
        check(&cache);
        cache.insert(Position(5_000), &window(5_000..5_320), false);
        assert_eq!((cache.first_in(0, 2_000), cache.first_in(0, 9_000)), (None, Some((5_000, 5_320))));
        check(&cache);
    }

    #[test]
    fn overlapping_windows_never_exceed_the_limit_nor_leave_anything_behind() {
        let mut cache = Cache::new(40 * BLOCK_BYTES);
        let mut random = SplitMix64::new(2);
        for _ in 0..2_000 {
            let start = random.below(2_000);
            cache.insert(Position(0), &window(start..start + random.below(60)), false);
            assert!(entries(&cache) <= records(&cache));
            check(&cache);
            let _ = cache.get(&fingerprint(random.below(2_000)));
        }
        cache.insert(Position(0), &window(5_000..5_640), false);
        assert_eq!(records(&cache), 640);
        let found = found(&mut cache, 5_000..5_640);
        assert_eq!(found, entries(&cache));
        assert!(635 < found, "{found} have an entry");
    }

    #[test]
    fn a_cache_that_shrinks_keeps_what_was_used_last_and_finds_it() {
        for len in [1, 5, 16, 17, 100] {
            let mut random = SplitMix64::new(len);
            let mut cache = Cache::new(1_000 * BLOCK_BYTES);
            let windows = 1_000 / len.div_ceil(16);
            for first in (0..windows).map(|window| window * len) {
                cache.insert(Position(first), &window(first..first + len), false);
            }
            let mut order: Vec<u64> = (0..windows).collect();
            for at in 0..order.len() {
                let other = at + usize::try_from(random.below((order.len() - at) as u64)).unwrap();
                order.swap(at, other);
                assert!(0 < found(&mut cache, order[at] * len..(order[at] + 1) * len) || len == 1);
            }
            cache.shrink(2_000 * BLOCK_BYTES);
            assert_eq!((cache.capacity, cache.evictions), (1_000, 0), "it only shrinks");
            for blocks in [350, 349, 100, 1] {
                cache.shrink(blocks * BLOCK_BYTES);
                check(&cache);
                let of_one = usize::try_from(len.div_ceil(16)).unwrap();
                let (left, len) = (cache.used / of_one, usize::try_from(len).unwrap());
                assert_eq!((left, records(&cache)), (blocks / of_one, left * len));
                // The windows used last; a full small cache may lack some entries.
                let kept = &order[order.len() - left..];
                let len = len as u64;
                let found: usize = kept.iter().map(|kept| found(&mut cache, kept * len..(kept + 1) * len)).sum();
                assert!(records(&cache) <= found + 1 + records(&cache) / 500, "{found} of {}", records(&cache));
                assert_eq!(entries(&cache), found);
                for first in kept.iter().map(|kept| kept * len) {
                    let end = cache.window_end(&fingerprint(first));
                    assert!(end.is_none_or(|end| end == Position(first + len)), "{first}: {end:?}");
                }
            }
            cache.insert(Position(0), &window(90_000..90_016), false);
            assert_eq!(found(&mut cache, 90_000..90_016), 16);
            check(&cache);
        }
    }

    #[test]
    fn a_full_cache_finds_all_of_its_records() {
        let count = 40_000;
        let mut cache = Cache::new(count / BLOCK_RECORDS * BLOCK_BYTES);
        cache.insert(Position(0), &window(0..count as u64), false);
        assert_eq!(found(&mut cache, 0..count as u64), count);
        assert!((1..=80).contains(&cache.overflow.len()), "{} entries fit no bucket", cache.overflow.len());
        check(&cache);
        // Entries that fit no bucket take the places of those that leave.
        for first in (40_000..200_000).step_by(160) {
            cache.insert(Position(first), &window(first..first + 160), false);
        }
        assert_eq!((records(&cache), found(&mut cache, 160_000..200_000)), (count, count));
        assert_eq!(entries(&cache), count);
        check(&cache);
    }

    #[test]
    fn buckets_grow_with_the_cache() {
        let mut cache = Cache::new(100_000 * BLOCK_BYTES);
        let empty = cache.buckets.len();
        for first in (0..200_000).step_by(50) {
            cache.insert(Position(first), &window(first..first + 50), false);
        }
        assert!(
            empty < cache.buckets.len() && cache.buckets.len() < 100_000 * BLOCK_BUCKETS,
            "{}",
            cache.buckets.len()
        );
        assert_eq!(found(&mut cache, 0..200_000), 200_000);
        check(&cache);
    }
}
