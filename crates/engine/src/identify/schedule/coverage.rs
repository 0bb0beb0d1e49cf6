//! Ranges of the log that a cache of windows would hold.

use std::collections::BTreeMap;

use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;

/// Most ranges, however many records they have: the least recently used go.
const RANGES_MAX: usize = 1_024;
/// Memory of a coverage.
pub(super) const COVERAGE_BYTES: usize = coverage_bytes(RANGES_MAX);

/// Returns the memory of a coverage with so many ranges: each is in two maps, whose nodes are half full at worst.
pub(super) const fn coverage_bytes(ranges: usize) -> usize {
    ranges * 2 * (3 + 2) * size_of::<u64>()
}

/// A range: its end, and when it was used last.
#[derive(Clone, Copy, Debug)]
struct Covered {
    end: u64,
    used: u64,
}

/// Disjoint ranges of the log within a number of records, replaced by least recent use.
#[derive(Clone, Debug, Default)]
pub(in crate::identify) struct Coverage {
    ranges: BTreeMap<u64, Covered>,
    /// First record of each range, by its last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
    records: u64,
    capacity: u64,
    ranges_max: usize,
}

impl Coverage {
    /// Starts without ranges, for at most `capacity` records, at least a page.
    pub(in crate::identify) fn new(capacity: u64) -> Self {
        Self::with_ranges(capacity, RANGES_MAX)
    }

    /// Starts without ranges, for at most `capacity` records, at least a page, in at most `ranges_max` ranges.
    pub(super) fn with_ranges(capacity: u64, ranges_max: usize) -> Self {
        Self { capacity: capacity.max(LOG_PAGE_RECORDS as u64), ranges_max, ..Self::default() }
    }

    /// Returns the end of the range that covers a record, which counts as used.
    pub(in crate::identify) fn use_at(&mut self, position: u64) -> Option<u64> {
        let (&start, range) = self.ranges.range_mut(..=position).next_back().filter(|(_, it)| position < it.end)?;
        let end = range.end;
        if range.used != self.uses {
            self.order.remove(&range.used);
            self.uses += 1;
            range.used = self.uses;
            self.order.insert(self.uses, start);
        }
        Some(end)
    }

    /// Returns the end of the range that covers a record.
    pub(in crate::identify) fn end_at(&self, position: u64) -> Option<u64> {
        self.ranges.range(..=position).next_back().map(|(_, it)| it.end).filter(|end| position < *end)
    }

    /// Returns the first covered record from a position to before another one.
    pub(in crate::identify) fn next_in(&self, from: u64, to: u64) -> Option<u64> {
        self.ranges.range(from..to.max(from)).next().map(|(start, _)| *start)
    }

    /// Returns the first covered records from a position to before another one: the first one, and the end of its range.
    pub(in crate::identify) fn first_in(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let first = self.end_at(from).map_or_else(|| self.next_in(from, to), |_| Some(from)).filter(|_| from < to)?;
        Some((first, self.end_at(first)?))
    }

    /// Covers the records from one position to before another one.
    pub(in crate::identify) fn add(&mut self, mut start: u64, end: u64) {
        while start < end {
            if let Some(covered) = self.end_at(start) {
                start = covered;
                continue;
            }
            let end = self.next_in(start, end).unwrap_or(end);
            self.uses += 1;
            self.ranges.insert(start, Covered { end, used: self.uses });
            self.order.insert(self.uses, start);
            self.records += end - start;
            start = end;
        }
        while self.capacity < self.records || self.ranges_max < self.ranges.len() {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            let range = self.ranges.remove(&oldest).expect("each range is in the order of use");
            self.records -= range.end - oldest;
        }
    }

    /// Returns the number of covered records.
    pub(in crate::identify) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of records that may be covered.
    pub(in crate::identify) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Sets the number of records that may be covered.
    pub(in crate::identify) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity.max(LOG_PAGE_RECORDS as u64);
        self.add(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn ranges_cover_what_was_added_and_the_least_recently_used_go() {
        let mut random = SplitMix64::new(5);
        let mut coverage = Coverage::new(1_000_000);
        let mut model = BTreeSet::new();
        for _ in 0..500 {
            let (start, len) = (random.below(3_000), random.below(60));
            coverage.add(start, start + len);
            model.extend(start..start + len);
            let probe = random.below(3_100);
            assert_eq!(coverage.end_at(probe).is_some(), model.contains(&probe));
            assert_eq!(coverage.use_at(probe).is_some(), model.contains(&probe));
            assert!(coverage.next_in(probe, probe).is_none() && coverage.first_in(probe, probe).is_none());
            let first = coverage.first_in(probe, probe + 100);
            assert_eq!(first.map(|(first, _)| first), model.range(probe..probe + 100).next().copied());
            assert!(first.is_none_or(|(first, end)| (first..end).all(|record| model.contains(&record))));
        }
        assert_eq!(coverage.records(), model.len() as u64);

        let mut coverage = Coverage::new(300);
        coverage.add(0, 100);
        coverage.add(200, 300);
        coverage.add(400, 500);
        assert!(coverage.use_at(50).is_some());
        coverage.add(600, 700);
        let left: Vec<bool> = [50, 250, 450, 650].map(|at| coverage.end_at(at).is_some()).to_vec();
        assert_eq!(left, [true, false, true, true]);
        coverage.set_capacity(150);
        assert!(coverage.records() <= 150);

        let mut coverage = Coverage::new(1 << 40);
        for range in 0..2 * RANGES_MAX as u64 {
            coverage.add(range * 10, range * 10 + 5);
        }
        assert_eq!(coverage.records(), 5 * RANGES_MAX as u64);
        assert!(coverage.end_at(3).is_none());
    }
}
