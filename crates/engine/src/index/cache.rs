//! The fingerprint cache: prefetched windows of the arrival log, least recently used first to go.
//!
//! Windows come and go as wholes; one map over all of them finds a fingerprint's window and slot.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::index::log::{LogRecord, LogStretch};
use crate::kv::{Key, Ordinal, Position};
use crate::types::Fingerprint;

/// What one cached record costs: itself, and 17 bytes of map at a load of at least 7/16.
pub const CACHED_BYTES: usize = size_of::<(Fingerprint, Ordinal)>() + 2 * 20;

/// Takes a fingerprint's own bits as its hash: fingerprints are keyed, nobody can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnBits(u64);

impl Hasher for OwnBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Bytes 8..16, which do not choose the bucket.
        if let Some(middle) = bytes.get(8..).and_then(|bytes| bytes.first_chunk()) {
            self.0 = u64::from_le_bytes(*middle);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write_usize(&mut self, _len: usize) {}
}

/// Hashes by the key's own bits.
pub type ByOwnBits = BuildHasherDefault<OwnBits>;

#[derive(Debug)]
struct Window {
    start: Position,
    records: Vec<(Fingerprint, Ordinal)>,
    /// Whether a repeat led to it and it has answered nothing yet.
    is_unproven: bool,
    newer: Option<u32>,
    older: Option<u32>,
}

/// The cache.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    len: usize,
    /// From 64 bits of the fingerprint to window and slot. Two fingerprints that share them share the place: a miss.
    places: HashMap<u64, (u32, u32), ByOwnBits>,
    windows: Vec<Window>,
    free: Vec<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    evictions: u64,
    proven: u64,
}

fn bits(fingerprint: &Fingerprint) -> u64 {
    Key::from(fingerprint).middle()
}

impl Cache {
    /// Makes a cache that holds as many records as fit into `bytes`, at least one.
    pub fn new(bytes: usize) -> Self {
        let capacity = (bytes / CACHED_BYTES).max(1);
        Self {
            capacity,
            len: 0,
            places: HashMap::default(),
            windows: Vec::new(),
            free: Vec::new(),
            newest: None,
            oldest: None,
            evictions: 0,
            proven: 0,
        }
    }

    /// Returns how many windows went for others.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns how many windows that a repeat led to have answered something.
    pub fn proven(&self) -> u64 {
        self.proven
    }

    /// Returns how many records are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a fingerprint's container and position in the log, and makes its window the last to go.
    pub fn get(&mut self, fingerprint: &Fingerprint) -> Option<(Ordinal, Position)> {
        let &(window, slot) = self.places.get(&bits(fingerprint))?;
        let holder = self.windows.get_mut(window as usize)?;
        let (found, ordinal) = *holder.records.get(slot as usize)?;
        let position = Position(holder.start.0 + u64::from(slot));
        if found != *fingerprint {
            return None;
        }
        self.proven += u64::from(std::mem::take(&mut holder.is_unproven));
        if self.newest != Some(window) {
            self.unlink(window);
            self.link(window);
        }
        Some((ordinal, position))
    }

    /// Returns the position that follows the window of a fingerprint that is cached.
    pub fn window_end(&self, fingerprint: &Fingerprint) -> Option<Position> {
        let &(window, slot) = self.places.get(&bits(fingerprint))?;
        let Window { start, records, .. } = self.windows.get(window as usize)?;
        let is_here = records.get(slot as usize).is_some_and(|(found, _)| found == fingerprint);
        is_here.then(|| Position(start.0 + records.len() as u64))
    }

    /// Returns the records of the window of a fingerprint that is cached; lengths are not kept and 0.
    pub fn window_of(&self, fingerprint: &Fingerprint) -> Option<LogStretch> {
        let &(window, slot) = self.places.get(&bits(fingerprint))?;
        let Window { start, records, .. } = self.windows.get(window as usize)?;
        records.get(slot as usize).filter(|(found, _)| found == fingerprint)?;
        let record = |&(fingerprint, ordinal): &_| LogRecord { fingerprint, ordinal, len: 0 };
        Some(LogStretch { start: *start, records: records.iter().map(record).collect() })
    }

    /// Adds a window that starts at a position, cut to what fits at all; others go for it. `is_followed`: a repeat led to it.
    pub fn insert(&mut self, start: Position, records: &[LogRecord], is_followed: bool) {
        let records = &records[..records.len().min(self.capacity)];
        if records.is_empty() {
            return;
        }
        while let Some(oldest) = self.oldest.filter(|_| self.capacity < self.len + records.len()) {
            self.drop_window(oldest);
            self.evictions += 1;
        }
        let kept = records.iter().map(|record| (record.fingerprint, record.ordinal)).collect();
        let window = Window { start, records: kept, is_unproven: is_followed, newer: None, older: None };
        let index = if let Some(index) = self.free.pop() {
            self.windows[index as usize] = window;
            index
        } else {
            self.windows.push(window);
            u32::try_from(self.windows.len() - 1).expect("windows have records, of which memory holds few")
        };
        for (slot, record) in (0..).zip(records) {
            self.places.insert(bits(&record.fingerprint), (index, slot));
        }
        self.len += records.len();
        self.link(index);
    }

    fn drop_window(&mut self, index: u32) {
        self.unlink(index);
        let records = std::mem::take(&mut self.windows[index as usize].records);
        self.len -= records.len();
        for (fingerprint, _) in &records {
            let place = bits(fingerprint);
            // A later window may have taken the fingerprint over.
            if self.places.get(&place).is_some_and(|(window, _)| *window == index) {
                self.places.remove(&place);
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
            assert!(cache.places.len() <= cache.len());
            let _ = cache.get(&random.fingerprint_of(2_000));
        }
        cache.insert(Position(0), &window(5_000..5_500), false);
        assert_eq!((cache.len(), cache.places.len()), (500, 500));
    }
}
