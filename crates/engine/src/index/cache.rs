//! The fingerprint cache: prefetched windows of the arrival log, least recently used first to go.
//!
//! Windows come and go as wholes. Their records stand in blocks of one size, so that what the cache takes is what it was
//! given, however long windows are. Lines of eight places, one cache line each and in pairs, lead from a fingerprint to its
//! record. Where both lines of a pair are full, one of their places is lost: what it led to is not found, and is looked up
//! in the table.
//!
//! The cache has the memory that the filter has not grown to, and gives it back as the filter grows ([`Cache::shrink`]): what
//! lies beyond is moved forward, and the vectors end earlier.

use onefold_accel::memory::will_need;

use crate::index::log::{LogExtent, LogRecord};
use crate::kv::{Key, Ordinal, Position, part_of};
use crate::types::{Chunk, Fingerprint};

/// Records of a block: the last of a window has fewer.
const BLOCK_RECORDS: usize = 16;
/// Places of a line.
const LINE_PLACES: usize = 8;
/// Records for each line of a full cache, at which not one record in a thousand stands nowhere.
const LINE_RECORDS: usize = 4;
/// Lines for each block.
const BLOCK_LINES: usize = BLOCK_RECORDS / LINE_RECORDS;
/// Fewest lines that there are.
const LINES_MIN: usize = 1 << 10;
/// Most blocks, whatever the memory, so that their records are numbered by a `u32`.
const BLOCKS_MAX: usize = 1 << 27;

/// What a block costs: its records, its lines, and the window that it may be all of.
pub(super) const BLOCK_BYTES: usize = size_of::<Block>() + size_of::<Window>() + BLOCK_LINES * size_of::<Line>();

/// Where a record is: a set bit, 15 bits of its fingerprint, and 48 for its block and its number there. 0 is free.
type Place = u64;

const TAG_SHIFT: u32 = 48;
const TAG_MASK: u64 = u64::MAX << TAG_SHIFT;
const RECORD_SHIFT: u32 = BLOCK_RECORDS.trailing_zeros();
const FREE: Place = 0;

fn tag_of(fingerprint: &Fingerprint) -> u64 {
    u64::from(Key::from(fingerprint).tail()) << TAG_SHIFT | 1 << (u64::BITS - 1)
}

/// Returns the first of the two lines, of so many, that lead to a fingerprint; the other is its pair.
fn line_of(fingerprint: &Fingerprint, lines: usize) -> usize {
    part_of(Key::from(fingerprint).middle(), lines)
}

fn place_of(fingerprint: &Fingerprint, block: u32, record: usize) -> Place {
    tag_of(fingerprint) | u64::from(block) << RECORD_SHIFT | record as u64
}

/// Eight places: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Place; LINE_PLACES]);

impl Line {
    /// Returns the places that equal `wanted` in the bits of `mask`, one bit each; all are compared at once.
    fn equal(&self, wanted: Place, mask: u64) -> u32 {
        self.0
            .iter()
            .enumerate()
            .fold(0, |same, (at, location)| same | u32::from((location ^ wanted) & mask == 0) << at)
    }

    /// Gives the first place that equals `old` to `new`; says whether there was one.
    fn replace(&mut self, old: Place, new: Place) -> bool {
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
    /// How many there are; none in a free block.
    len: u32,
    /// Number of the first in its window.
    first: u32,
    window: u32,
    /// The next of its window, or of those that are free.
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
    /// Whether a repeat led to it and it has answered nothing yet.
    is_unproven: bool,
    /// The one used after it, or the next of those that are free.
    newer: Option<u32>,
    older: Option<u32>,
}

fn index(number: u32) -> usize {
    number as usize
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("blocks are few enough for their records to be numbered")
}

/// Returns how many blocks fit into `bytes`, at least one.
fn blocks_of(bytes: usize) -> usize {
    (bytes / BLOCK_BYTES).clamp(1, BLOCKS_MAX)
}

fn empty_lines(count: usize) -> Vec<Line> {
    vec![Line([FREE; LINE_PLACES]); count]
}

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    /// Most blocks.
    capacity: usize,
    /// Blocks that windows have.
    used: usize,
    lines: Vec<Line>,
    blocks: Vec<Block>,
    free_block: Option<u32>,
    windows: Vec<Window>,
    free_window: Option<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    evictions: u64,
    useful: u64,
}

impl Cache {
    /// Makes a cache that takes at most `bytes`, and room for one block at least. It takes memory as it is filled.
    pub(super) fn new(bytes: usize) -> Self {
        let capacity = blocks_of(bytes);
        Self {
            capacity,
            used: 0,
            lines: empty_lines(LINES_MIN.min(capacity * BLOCK_LINES)),
            blocks: Vec::with_capacity(capacity),
            free_block: None,
            windows: Vec::with_capacity(capacity),
            free_window: None,
            newest: None,
            oldest: None,
            evictions: 0,
            useful: 0,
        }
    }

    /// Lets windows go, the least recently used first, until no more than `bytes` are taken, and gives the rest back; nothing
    /// where it has no more than that anyway.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let capacity = blocks_of(bytes);
        if self.capacity <= capacity {
            return;
        }
        // They are made anew, and need not be emptied record by record.
        self.lines = Vec::new();
        self.capacity = capacity;
        while let Some(oldest) = self.oldest.filter(|_| capacity < self.used) {
            self.drop_window(oldest);
        }
        self.move_forward();
        self.lines = empty_lines(self.lines_wanted(self.used));
        self.lead_to_all();
    }

    /// Returns the memory that it takes when it is full.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.capacity * BLOCK_BYTES
    }

    /// Returns how many windows went because there was no room for them.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns how many windows that a repeat led to have answered something.
    pub(super) fn useful(&self) -> u64 {
        self.useful
    }

    fn line_of(&self, fingerprint: &Fingerprint) -> usize {
        line_of(fingerprint, self.lines.len())
    }

    /// Returns the block and the number there of a fingerprint that is cached.
    fn find(&self, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let (tag, line) = (tag_of(fingerprint), self.line_of(fingerprint));
        self.find_in(line, tag, fingerprint).or_else(|| self.find_in(line ^ 1, tag, fingerprint))
    }

    fn find_in(&self, line: usize, tag: u64, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let mut same = self.lines[line].equal(tag, TAG_MASK);
        while same != 0 {
            let location = self.lines[line].0[same.trailing_zeros() as usize] & !TAG_MASK;
            same &= same - 1;
            let record = (location % BLOCK_RECORDS as u64) as usize;
            let block = usize::try_from(location >> RECORD_SHIFT).expect("a number of a block");
            // No place leads to a free block.
            if self.blocks.get(block).is_some_and(|block| block.records[record].0 == *fingerprint) {
                return Some((block, record));
            }
        }
        None
    }

    /// Asks for the memory of what leads to a fingerprint, to be asked for soon.
    pub(super) fn prefetch(&self, fingerprint: &Fingerprint) {
        will_need(&self.lines[self.line_of(fingerprint)]);
    }

    /// Returns a fingerprint's container and position in the log, and makes its window the last to go.
    pub(super) fn get(&mut self, fingerprint: &Fingerprint) -> Option<(Ordinal, Position)> {
        let (block, record) = self.find(fingerprint)?;
        let block = &self.blocks[block];
        let (_, ordinal) = block.records[record];
        let (first, number) = (block.first, block.window);
        let window = &mut self.windows[index(number)];
        let position = Position(window.start.0 + u64::from(first) + record as u64);
        self.useful += u64::from(std::mem::take(&mut window.is_unproven));
        if self.newest != Some(number) {
            self.unlink(number);
            self.link(number);
        }
        Some((ordinal, position))
    }

    fn window_with(&self, fingerprint: &Fingerprint) -> Option<&Window> {
        let (block, _) = self.find(fingerprint)?;
        Some(&self.windows[index(self.blocks[block].window)])
    }

    /// Returns the position that follows the window of a fingerprint that is cached.
    pub(super) fn window_end(&self, fingerprint: &Fingerprint) -> Option<Position> {
        let Window { start, len, .. } = self.window_with(fingerprint)?;
        Some(Position(start.0 + u64::from(*len)))
    }

    /// Returns the records of the window of a fingerprint that is cached; lengths are not kept and 0.
    pub(super) fn window_of(&self, fingerprint: &Fingerprint) -> Option<LogExtent> {
        let Window { start, len, block, .. } = self.window_with(fingerprint)?;
        let mut records = Vec::with_capacity(index(*len));
        let mut next = Some(*block);
        while let Some(block) = next.map(|number| &self.blocks[index(number)]) {
            let record = |&(fingerprint, ordinal): &_| LogRecord { chunk: Chunk { fingerprint, len: 0 }, ordinal };
            records.extend(block.records().iter().map(record));
            next = block.next;
        }
        Some(LogExtent { start: *start, records })
    }

    /// Adds a window that starts at a position, cut to what fits at all; others go for it. `is_followed`: a repeat led to it.
    pub(super) fn insert(&mut self, start: Position, records: &[LogRecord], is_followed: bool) {
        let records = &records[..records.len().min(self.capacity * BLOCK_RECORDS)];
        let blocks = records.len().div_ceil(BLOCK_RECORDS);
        if blocks == 0 {
            return;
        }
        while let Some(oldest) = self.oldest.filter(|_| self.capacity < self.used + blocks) {
            self.drop_window(oldest);
        }
        self.make_lines_for(self.used + blocks);
        let window = self.take_window();
        let (mut first, mut before) = (None, None);
        let mut ahead = records.chunks(BLOCK_RECORDS);
        for (part, records) in records.chunks(BLOCK_RECORDS).enumerate() {
            // Those of two blocks are on their way while one is led to.
            let count = if part == 0 { 2 } else { 1 };
            for record in ahead.by_ref().take(count).flatten() {
                self.prefetch(&record.chunk.fingerprint);
            }
            let taken = self.take_block();
            let block = &mut self.blocks[index(taken)];
            for (location, record) in block.records.iter_mut().zip(records) {
                *location = (record.chunk.fingerprint, record.ordinal);
            }
            (block.len, block.first) = (number(records.len()), number(part * BLOCK_RECORDS));
            (block.window, block.next) = (window, None);
            match before.replace(taken) {
                Some(before) => self.blocks[index(before)].next = Some(taken),
                None => first = Some(taken),
            }
            self.lead_to(taken);
        }
        let block = first.expect("a window has blocks");
        let len = number(records.len());
        self.windows[index(window)] = Window { start, len, block, is_unproven: is_followed, newer: None, older: None };
        self.link(window);
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
        let Some(free) = self.free_window else {
            let start = Position(0);
            self.windows.push(Window { start, len: 0, block: 0, is_unproven: false, newer: None, older: None });
            return number(self.windows.len() - 1);
        };
        self.free_window = self.windows[index(free)].newer;
        free
    }

    fn drop_window(&mut self, window: u32) {
        self.unlink(window);
        self.evictions += 1;
        let mut next = Some(self.windows[index(window)].block);
        self.windows[index(window)].newer = self.free_window.replace(window);
        if let Some(first) = next {
            self.prefetch_block(first);
        }
        while let Some(number) = next {
            if let Some(following) = self.blocks[index(number)].next {
                self.prefetch_block(following);
            }
            self.lead_nowhere(number);
            let block = &mut self.blocks[index(number)];
            block.len = 0;
            next = std::mem::replace(&mut block.next, self.free_block);
            self.free_block = Some(number);
            self.used -= 1;
        }
    }

    // ---- What leads to records ----

    /// Returns how many lines so many blocks have: four times as many each time, up to those of a full cache.
    fn lines_wanted(&self, blocks: usize) -> usize {
        let wanted = (blocks * BLOCK_LINES).next_power_of_two();
        let of_four = wanted << (wanted.trailing_zeros() % 2);
        of_four.max(LINES_MIN).min(self.capacity * BLOCK_LINES)
    }

    fn make_lines_for(&mut self, blocks: usize) {
        let wanted = self.lines_wanted(blocks);
        if self.lines.len() < wanted {
            self.lines = Vec::new();
            self.lines = empty_lines(wanted);
            self.lead_to_all();
        }
    }

    fn lead_to_all(&mut self) {
        for block in 0..self.blocks.len() {
            if block + 1 < self.blocks.len() {
                self.prefetch_block(number(block + 1));
            }
            self.lead_to(number(block));
        }
    }

    /// Asks for the lines of a block's fingerprints, to be written soon.
    fn prefetch_block(&self, number: u32) {
        if !self.lines.is_empty() {
            self.blocks[index(number)].records().iter().for_each(|(fingerprint, _)| self.prefetch(fingerprint));
        }
    }

    /// Lets the fingerprints of a block lead to their records.
    fn lead_to(&mut self, number: u32) {
        let (block, lines) = (&self.blocks[index(number)], self.lines.len());
        for (record, (fingerprint, _)) in block.records().iter().enumerate() {
            let (line, location) = (line_of(fingerprint, lines), place_of(fingerprint, number, record));
            if !self.lines[line].replace(FREE, location) && !self.lines[line ^ 1].replace(FREE, location) {
                // Which place has been there longest is not known.
                self.lines[line].0[record % LINE_PLACES] = location;
            }
        }
    }

    fn lead_nowhere(&mut self, number: u32) {
        if self.lines.is_empty() {
            return;
        }
        let (block, lines) = (&self.blocks[index(number)], self.lines.len());
        for (record, (fingerprint, _)) in block.records().iter().enumerate() {
            let (line, location) = (line_of(fingerprint, lines), place_of(fingerprint, number, record));
            // It may have been lost.
            let _ = self.lines[line].replace(location, FREE) || self.lines[line ^ 1].replace(location, FREE);
        }
    }

    // ---- What is used before what ----

    fn link(&mut self, window: u32) {
        self.windows[index(window)].older = self.newest;
        self.windows[index(window)].newer = None;
        match self.newest.replace(window) {
            Some(before) => self.windows[index(before)].newer = Some(window),
            None => self.oldest = Some(window),
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

    // ---- Less memory ----

    /// Moves the blocks beyond the capacity to free places before it, makes the list of windows anew, and ends the vectors there.
    fn move_forward(&mut self) {
        let mut windows: Vec<Window> = Vec::with_capacity(self.capacity);
        let mut free = 0;
        let mut next = self.oldest;
        while let Some(mut window) = next.map(|window| self.windows[index(window)]) {
            next = window.newer;
            let moved = number(windows.len());
            window.older = moved.checked_sub(1);
            window.newer = next.map(|_| moved + 1);
            // Its blocks in turn, each led to by the window or by the one before.
            let mut before: Option<u32> = None;
            let mut block = Some(window.block);
            while let Some(from) = block {
                let mut to = from;
                if self.capacity <= index(from) {
                    while self.blocks[free].len != 0 {
                        free += 1;
                    }
                    to = number(free);
                    self.blocks[free] = self.blocks[index(from)];
                    self.blocks[index(from)].len = 0;
                    match before {
                        Some(before) => self.blocks[index(before)].next = Some(to),
                        None => window.block = to,
                    }
                }
                self.blocks[index(to)].window = moved;
                before = Some(to);
                block = self.blocks[index(to)].next;
            }
            windows.push(window);
        }
        (self.oldest, self.newest) = match windows.len().checked_sub(1) {
            Some(last) => (Some(0), Some(number(last))),
            None => (None, None),
        };
        (self.windows, self.free_window) = (windows, None);
        self.blocks.truncate(self.capacity);
        self.blocks.shrink_to(self.capacity);
        self.free_block = None;
        for (at, block) in self.blocks.iter_mut().enumerate().filter(|(_, block)| block.len == 0) {
            block.next = self.free_block.replace(number(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::mem_disk::fingerprint;

    fn window(numbers: std::ops::Range<u64>) -> Vec<LogRecord> {
        let chunk = |number| Chunk { fingerprint: fingerprint(number), len: 1 };
        numbers.map(|number| LogRecord { chunk: chunk(number), ordinal: Ordinal(4) }).collect()
    }

    fn places(cache: &Cache) -> usize {
        cache.lines.iter().flat_map(|Line(places)| places).filter(|location| **location != FREE).count()
    }

    fn records(cache: &Cache) -> usize {
        cache.blocks.iter().map(|block| block.records().len()).sum()
    }

    fn found(cache: &mut Cache, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|&number| cache.get(&fingerprint(number)).is_some()).count()
    }

    /// Checks that what is linked is what there is, and that it takes no more than it should.
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
        assert_eq!(blocks, cache.used);
        assert!(blocks <= cache.capacity && windows <= blocks);
        assert!(cache.blocks.len() <= cache.capacity && cache.windows.len() <= cache.capacity);
        let held = cache.blocks.capacity() * size_of::<Block>()
            + cache.windows.capacity() * size_of::<Window>()
            + cache.lines.capacity() * size_of::<Line>();
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
        assert_eq!(cache.evictions(), 3);
        assert_eq!(cache.get(&fingerprint(0)), None);
        check(&cache);
    }

    #[test]
    fn overlapping_windows_never_exceed_the_limit_nor_leave_anything_behind() {
        let mut cache = Cache::new(40 * BLOCK_BYTES);
        let mut random = SplitMix64::new(2);
        for _ in 0..2_000 {
            let start = random.below(2_000);
            cache.insert(Position(0), &window(start..start + random.below(60)), false);
            assert!(places(&cache) <= records(&cache));
            check(&cache);
            let _ = cache.get(&fingerprint(random.below(2_000)));
        }
        cache.insert(Position(0), &window(5_000..5_640), false);
        assert_eq!(records(&cache), 640);
        let found = found(&mut cache, 5_000..5_640);
        assert_eq!(found, places(&cache));
        assert!(635 < found, "{found} have a place");
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
            assert_eq!((cache.capacity, cache.evictions()), (1_000, 0), "it only shrinks");
            for blocks in [350, 349, 100, 1] {
                cache.shrink(blocks * BLOCK_BYTES);
                check(&cache);
                let of_one = usize::try_from(len.div_ceil(16)).unwrap();
                let (left, len) = (cache.used / of_one, usize::try_from(len).unwrap());
                assert_eq!((left, records(&cache)), (blocks / of_one, left * len));
                // Those used last; but of a full cache some records have no place.
                let kept = &order[order.len() - left..];
                let len = len as u64;
                let found: usize = kept.iter().map(|kept| found(&mut cache, kept * len..(kept + 1) * len)).sum();
                assert!(records(&cache) <= found + 1 + records(&cache) / 500, "{found} of {}", records(&cache));
                assert_eq!(places(&cache), found);
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
    fn of_a_full_cache_one_record_in_a_thousand_at_most_has_no_place() {
        let count = 40_000;
        let mut cache = Cache::new(count / BLOCK_RECORDS * BLOCK_BYTES);
        cache.insert(Position(0), &window(0..count as u64), false);
        let lost = count - found(&mut cache, 0..count as u64);
        assert!(lost <= 40, "{lost} of {count}");
    }

    #[test]
    fn lines_grow_with_what_is_cached() {
        let mut cache = Cache::new(100_000 * BLOCK_BYTES);
        let empty = cache.lines.len();
        for first in (0..200_000).step_by(50) {
            cache.insert(Position(first), &window(first..first + 50), false);
        }
        assert!(empty < cache.lines.len() && cache.lines.len() < 100_000 * BLOCK_LINES, "{}", cache.lines.len());
        assert!(199_900 < found(&mut cache, 0..200_000));
        check(&cache);
    }
}
