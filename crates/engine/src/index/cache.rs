//! The fingerprint cache: prefetched windows of the arrival log, least recently used first to go.
//!
//! Windows come and go as wholes. Lines of eight places, one cache line each and in pairs, lead from a fingerprint to its
//! window and its record there. Where both lines of a pair are full, one of their places is lost: what it led to is not
//! found, and is looked up in the table.
//!
//! The cache has whatever memory the filter has not grown to, and gives it back as the filter grows ([`Cache::shrink`]).

use onefold_accel::memory::will_need;
use onefold_sys::give_back;

use crate::index::log::{LogRecord, LogStretch};
use crate::kv::{Key, Ordinal, Position, part_of};
use crate::types::Fingerprint;

/// Places of a line.
const LINE_PLACES: usize = 8;
/// Records for each line of a full cache, at which not one record in a thousand stands nowhere.
const LINE_RECORDS: usize = 4;
/// Records whose lines are asked for together.
const PREFETCH_RECORDS: usize = 32;
/// Most records that are cached, whatever the memory: a place has no more bits for windows, nor for records in them.
const CAPACITY_MAX: usize = 1 << NUMBER_BITS;

/// What one cached record costs: itself and its share of the lines, and of what is known of windows of sixteen and more.
pub const CACHED_BYTES: usize =
    size_of::<(Fingerprint, Ordinal)>() + size_of::<Line>() / LINE_RECORDS + size_of::<Window>() / 16;

/// Where a record is: a set bit, 15 bits of its fingerprint, 24 of its window's number, 24 of its own in the window. 0 is
/// free.
type Place = u64;

const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const TAG_SHIFT: u32 = 2 * NUMBER_BITS;
const TAG_MASK: u64 = u64::MAX << TAG_SHIFT;
const FREE: Place = 0;

fn tag_of(fingerprint: &Fingerprint) -> u64 {
    u64::from(Key::from(fingerprint).tail()) << TAG_SHIFT | 1 << (u64::BITS - 1)
}

fn place_of(fingerprint: &Fingerprint, window: u32, record: u32) -> Place {
    tag_of(fingerprint) | u64::from(window) << NUMBER_BITS | u64::from(record)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("windows and their records are numbered by 24 bits")
}

/// Eight places: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Place; LINE_PLACES]);

impl Line {
    /// Returns the places that equal `wanted` in the bits of `mask`, one bit each; all are compared at once.
    fn equal(&self, wanted: Place, mask: u64) -> u32 {
        self.0.iter().enumerate().fold(0, |same, (at, place)| same | u32::from((place ^ wanted) & mask == 0) << at)
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

#[derive(Debug)]
struct Window {
    start: Position,
    records: Vec<(Fingerprint, Ordinal)>,
    /// Whether a repeat led to it and it has answered nothing yet.
    is_unproven: bool,
    newer: Option<u32>,
    older: Option<u32>,
}

/// Returns how many records fit into `bytes`, at least one.
fn capacity_of(bytes: usize) -> usize {
    (bytes / CACHED_BYTES).clamp(1, CAPACITY_MAX)
}

fn lines_for(capacity: usize) -> Vec<Line> {
    vec![Line([FREE; LINE_PLACES]); capacity.div_ceil(LINE_RECORDS).next_multiple_of(2)]
}

/// The cache.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    len: usize,
    lines: Vec<Line>,
    windows: Vec<Window>,
    free: Vec<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    evictions: u64,
    proven: u64,
}

impl Cache {
    /// Makes a cache that holds as many records as fit into `bytes`, at least one.
    pub fn new(bytes: usize) -> Self {
        let capacity = capacity_of(bytes);
        Self {
            capacity,
            len: 0,
            lines: lines_for(capacity),
            windows: Vec::new(),
            free: Vec::new(),
            newest: None,
            oldest: None,
            evictions: 0,
            proven: 0,
        }
    }

    /// Lets windows go, the least recently used first, until no more than `bytes` are taken; nothing where there is room. The
    /// memory goes back to the system: what it is wanted for need not fit where windows were.
    pub fn shrink(&mut self, bytes: usize) {
        let capacity = capacity_of(bytes);
        if self.capacity <= capacity {
            return;
        }
        self.make_room_for(0, capacity);
        self.capacity = capacity;
        // Before the new ones are there: both together would be too much.
        self.lines = Vec::new();
        self.lines = lines_for(capacity);
        for window in 0..self.windows.len() {
            for record in 0..self.windows[window].records.len() {
                let (fingerprint, _) = self.windows[window].records[record];
                self.lead_to(&fingerprint, number(window), number(record));
            }
        }
        give_back();
    }

    /// Returns how many windows went for others.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns how many windows that a repeat led to have answered something.
    pub fn proven(&self) -> u64 {
        self.proven
    }

    /// Returns the memory that it takes when it is full.
    pub fn bytes(&self) -> usize {
        self.capacity * CACHED_BYTES
    }

    /// Returns how many records are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn line_of(&self, fingerprint: &Fingerprint) -> usize {
        part_of(Key::from(fingerprint).middle(), self.lines.len())
    }

    /// Returns the window of a fingerprint that is cached, as an index, and its record there.
    fn find(&self, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let (tag, line) = (tag_of(fingerprint), self.line_of(fingerprint));
        self.find_in(line, tag, fingerprint).or_else(|| self.find_in(line ^ 1, tag, fingerprint))
    }

    fn find_in(&self, line: usize, tag: u64, fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let mut same = self.lines[line].equal(tag, TAG_MASK);
        while same != 0 {
            let place = self.lines[line].0[same.trailing_zeros() as usize];
            same &= same - 1;
            let index = |bits: u64| usize::try_from(bits & NUMBER_MASK).expect("24 bits");
            let (window, record) = (index(place >> NUMBER_BITS), index(place));
            let found = self.windows.get(window).and_then(|window| window.records.get(record));
            if found.is_some_and(|(found, _)| found == fingerprint) {
                return Some((window, record));
            }
        }
        None
    }

    /// Asks for the memory of what leads to a fingerprint, to be asked for soon.
    pub fn prefetch(&self, fingerprint: &Fingerprint) {
        will_need(&self.lines[self.line_of(fingerprint)]);
    }

    /// Returns a fingerprint's container and position in the log, and makes its window the last to go.
    pub fn get(&mut self, fingerprint: &Fingerprint) -> Option<(Ordinal, Position)> {
        let (index, record) = self.find(fingerprint)?;
        let window = &mut self.windows[index];
        let (_, ordinal) = window.records[record];
        let position = Position(window.start.0 + record as u64);
        self.proven += u64::from(std::mem::take(&mut window.is_unproven));
        if self.newest.is_none_or(|newest| newest as usize != index) {
            let index = u32::try_from(index).expect("windows are numbered by a u32");
            self.unlink(index);
            self.link(index);
        }
        Some((ordinal, position))
    }

    /// Returns the position that follows the window of a fingerprint that is cached.
    pub fn window_end(&self, fingerprint: &Fingerprint) -> Option<Position> {
        let Window { start, records, .. } = &self.windows[self.find(fingerprint)?.0];
        Some(Position(start.0 + records.len() as u64))
    }

    /// Returns the records of the window of a fingerprint that is cached; lengths are not kept and 0.
    pub fn window_of(&self, fingerprint: &Fingerprint) -> Option<LogStretch> {
        let Window { start, records, .. } = &self.windows[self.find(fingerprint)?.0];
        let record = |&(fingerprint, ordinal): &_| LogRecord { fingerprint, ordinal, len: 0 };
        Some(LogStretch { start: *start, records: records.iter().map(record).collect() })
    }

    /// Adds a window that starts at a position, cut to what fits at all; others go for it. `is_followed`: a repeat led to it.
    pub fn insert(&mut self, start: Position, records: &[LogRecord], is_followed: bool) {
        let records = &records[..records.len().min(self.capacity)];
        if records.is_empty() {
            return;
        }
        self.make_room_for(records.len(), self.capacity);
        let kept = records.iter().map(|record| (record.fingerprint, record.ordinal)).collect();
        let window = Window { start, records: kept, is_unproven: is_followed, newer: None, older: None };
        let index = if let Some(index) = self.free.pop() {
            self.windows[index as usize] = window;
            index
        } else {
            self.windows.push(window);
            number(self.windows.len() - 1)
        };
        let mut at = 0;
        for piece in records.chunks(PREFETCH_RECORDS) {
            for record in piece {
                self.prefetch(&record.fingerprint);
            }
            for LogRecord { fingerprint, .. } in piece {
                self.lead_to(fingerprint, index, at);
                at += 1;
            }
        }
        self.len += records.len();
        self.link(index);
    }

    /// Lets the windows used least recently go until there is room for so many records.
    fn make_room_for(&mut self, records: usize, capacity: usize) {
        while let Some(oldest) = self.oldest.filter(|_| capacity < self.len + records) {
            self.drop_window(oldest);
            self.evictions += 1;
        }
    }

    /// Lets a fingerprint lead to a record of a window.
    fn lead_to(&mut self, fingerprint: &Fingerprint, window: u32, record: u32) {
        let (line, place) = (self.line_of(fingerprint), place_of(fingerprint, window, record));
        if !self.lines[line].replace(FREE, place) && !self.lines[line ^ 1].replace(FREE, place) {
            // Which place has been there longest is not known.
            self.lines[line].0[record as usize % LINE_PLACES] = place;
        }
    }

    fn drop_window(&mut self, index: u32) {
        self.unlink(index);
        let records = std::mem::take(&mut self.windows[index as usize].records);
        self.len -= records.len();
        let mut number = 0;
        for piece in records.chunks(PREFETCH_RECORDS) {
            for (fingerprint, _) in piece {
                self.prefetch(fingerprint);
            }
            for (fingerprint, _) in piece {
                let (line, place) = (self.line_of(fingerprint), place_of(fingerprint, index, number));
                // It may have been lost.
                let _ = self.lines[line].replace(place, FREE) || self.lines[line ^ 1].replace(place, FREE);
                number += 1;
            }
        }
        self.free.push(index);
    }

    fn link(&mut self, index: u32) {
        self.windows[index as usize].older = self.newest;
        self.windows[index as usize].newer = None;
        match self.newest.replace(index) {
            Some(before) => self.windows[before as usize].newer = Some(index),
            None => self.oldest = Some(index),
        }
    }

    fn unlink(&mut self, index: u32) {
        let Window { newer, older, .. } = self.windows[index as usize];
        match newer {
            Some(newer) => self.windows[newer as usize].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.windows[older as usize].newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::mem_disk::{Random, fingerprint};

    fn window(numbers: std::ops::Range<u64>) -> Vec<LogRecord> {
        numbers.map(|number| LogRecord { fingerprint: fingerprint(number), ordinal: Ordinal(4), len: 1 }).collect()
    }

    fn places(cache: &Cache) -> usize {
        cache.lines.iter().flat_map(|Line(places)| places).filter(|place| **place != FREE).count()
    }

    #[test]
    fn the_window_used_last_stays_and_the_oldest_goes() {
        let mut cache = Cache::new(100 * CACHED_BYTES);
        cache.insert(Position(7), &window(0..40), false);
        cache.insert(Position(0), &window(40..80), false);
        assert_eq!(cache.get(&fingerprint(5)), Some((Ordinal(4), Position(12))));
        assert_eq!(cache.window_end(&fingerprint(5)), Some(Position(47)));
        assert_eq!(cache.window_end(&fingerprint(900)), None);
        cache.insert(Position(0), &window(80..120), false);
        assert_eq!(cache.get(&fingerprint(50)), None, "the window used least recently goes, as a whole");
        assert!((0..40).chain(80..120).all(|number| cache.get(&fingerprint(number)).is_some()));
        cache.insert(Position(0), &window(200..1_000), false);
        assert_eq!(cache.len(), 100);
        assert_eq!(cache.evictions(), 3);
        assert_eq!(cache.get(&fingerprint(0)), None);
    }

    #[test]
    fn overlapping_windows_never_exceed_the_limit_nor_leave_anything_behind() {
        let mut cache = Cache::new(500 * CACHED_BYTES);
        let mut random = Random::new(2);
        for _ in 0..2_000 {
            let start = random.below(2_000);
            cache.insert(Position(0), &window(start..start + random.below(60)), false);
            assert!(cache.len() <= 500);
            assert!(places(&cache) <= cache.len());
            let _ = cache.get(&random.fingerprint_of(2_000));
        }
        cache.insert(Position(0), &window(5_000..5_500), false);
        assert_eq!(cache.len(), 500);
        let found = (5_000..5_500).filter(|&number| cache.get(&fingerprint(number)).is_some()).count();
        assert_eq!(found, places(&cache));
        assert!(495 < found, "{found} have a place");
    }

    #[test]
    fn a_cache_that_shrinks_keeps_what_was_used_last_and_finds_it() {
        let mut cache = Cache::new(1_000 * CACHED_BYTES);
        for first in (0..1_000).step_by(100) {
            cache.insert(Position(first), &window(first..first + 100), false);
        }
        assert!(cache.get(&fingerprint(30)).is_some());
        cache.shrink(2_000 * CACHED_BYTES);
        assert_eq!((cache.len(), cache.capacity), (1_000, 1_000), "it only shrinks");
        cache.shrink(350 * CACHED_BYTES);
        assert_eq!((cache.len(), cache.evictions()), (300, 7));
        let found = |cache: &mut Cache, numbers: std::ops::Range<u64>| {
            numbers.filter(|&number| cache.get(&fingerprint(number)).is_some()).count()
        };
        assert_eq!((found(&mut cache, 0..1_000), found(&mut cache, 0..100)), (300, 100));
        assert_eq!(found(&mut cache, 800..1_000), 200);
        assert_eq!(places(&cache), 300);
        cache.insert(Position(5_000), &window(5_000..5_300), false);
        assert_eq!((cache.len(), found(&mut cache, 5_000..5_300)), (300, 300));
        cache.shrink(0);
        assert_eq!((cache.len(), places(&cache)), (0, 0));
    }

    #[test]
    fn of_a_full_cache_one_record_in_a_thousand_at_most_has_no_place() {
        let count = 40_000;
        let mut cache = Cache::new(usize::try_from(count).unwrap() * CACHED_BYTES);
        cache.insert(Position(0), &window(0..count), false);
        let lost = (0..count).filter(|&number| cache.get(&fingerprint(number)).is_none()).count();
        assert!(lost <= 40, "{lost} of {count}");
    }
}
