//! The filter of the index, and when its segments grow.

use crate::error::Result;
use crate::kv::filter::{FILTER_SEGMENTS, Filter, Segment};
use crate::kv::{EntryStore, Key};

/// Share of set bits above which a segment grows. There, with five bits set for each fingerprint and 17 bits of memory, one
/// or two probes of a thousand are false positives.
const FILTER_FILL_MAX: f64 = 0.25;

/// Factor by which a segment grows. Each growth reads the segment's share of the store.
const FILTER_GROWTH: usize = 4;

/// Returns the size to which a part of the filter grows: [`FILTER_GROWTH`] times its size, or all of `bytes_max` if little
/// is left beyond that, since sizes are rounded down.
fn grown_bytes(bytes: usize, bytes_max: usize) -> usize {
    let grown = FILTER_GROWTH * bytes;
    if bytes_max < grown + 2 * bytes { bytes_max } else { grown }
}

/// Returns the least size to which a part must grow for the growth to be worth reading the table.
fn grown_bytes_min(bytes: usize) -> usize {
    bytes + bytes / 4
}

/// Size of the filter, and how full it is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FilterState {
    /// Its memory in bytes.
    pub bytes: usize,
    /// The most that it may take.
    pub bytes_max: usize,
    /// Share of its bits that are set, 0 to 1; well above one half too many probes are false positives.
    pub fill: f64,
}

impl FilterState {
    /// Returns true if the filter is too full and may not grow.
    pub(crate) fn is_too_small(&self) -> bool {
        0.6 < self.fill && self.bytes_max < grown_bytes_min(self.bytes)
    }
}

/// A filter that grows segment by segment within its share of the memory budget.
#[derive(Debug)]
pub(in crate::identify) struct GrowingFilter {
    pub(crate) filter: Filter,
    bytes_max: usize,
    /// Memory that the filter takes, or will take when all segments have grown as one of them has.
    reserved: usize,
    /// Segment that is examined next.
    next_segment: usize,
    /// Number of entries from which on the next segment is examined.
    next_growth: u64,
    /// Growths of segments since the opening.
    pub(crate) growths: u64,
}

impl GrowingFilter {
    pub(crate) fn new(filter: Filter, bytes_max: usize) -> Self {
        let reserved = filter.bytes_of_largest();
        Self { filter, bytes_max, reserved, next_segment: 0, next_growth: 0, growths: 0 }
    }

    /// Adds a key; returns false if it was certainly absent.
    pub(in crate::identify) fn test_and_set(&mut self, key: &Key) -> bool {
        self.filter.test_and_set(key)
    }

    /// Starts to load the block of a key into the processor's cache.
    pub(in crate::identify) fn prefetch(&self, key: &Key) {
        self.filter.prefetch(key);
    }

    /// Returns the memory that the filter may take and has not reserved. The fingerprint cache may use it until then.
    pub(in crate::identify) fn bytes_left(&self) -> usize {
        self.bytes_max.saturating_sub(self.reserved)
    }

    pub(in crate::identify) fn state(&self) -> FilterState {
        FilterState { bytes: self.filter.bytes(), bytes_max: self.bytes_max, fill: self.filter.fill() }
    }

    /// Grows the next segment if it is too full and the memory allows it. `entries` counts those entered so far, `records`
    /// those of the arrival log.
    ///
    /// The moment of a growth depends on `entries` alone and not on when a flush ends, because the false positives decide
    /// the order of verdicts.
    pub(in crate::identify) fn grow(
        &mut self,
        entries: u64,
        records: u64,
        entry_store: &mut dyn EntryStore,
    ) -> Result<()> {
        let Some((index, mut segment)) = self.due_growth(entries) else { return Ok(()) };
        self.next_growth = entries + records / (4 * FILTER_SEGMENTS as u64);
        let width = u64::MAX / FILTER_SEGMENTS as u64 + 1;
        let first = index as u64 * width;
        // In-flight chunks are not in the table; their map is searched before the filter.
        entry_store.keys_in(first..=first + (width - 1), &mut |key| {
            segment.test_and_set(key);
        })?;
        self.filter.replace(index, segment);
        self.growths += 1;
        Ok(())
    }

    /// Returns the segment that is to grow now, and an empty one of its new size.
    ///
    /// Segments follow each other at distances at which each has been examined when the table has grown by about a quarter.
    /// Before the first of them grows, the memory for all is reserved; see [`GrowingFilter::bytes_left`].
    fn due_growth(&mut self, entries: u64) -> Option<(usize, Segment)> {
        if entries < self.next_growth {
            return None;
        }
        let index = self.next_segment;
        self.next_segment = (index + 1) % FILTER_SEGMENTS;
        let old = self.filter.segment(index);
        let grown = Filter::segment_bytes(grown_bytes(old.bytes(), self.bytes_max / FILTER_SEGMENTS));
        if old.fill() < FILTER_FILL_MAX || grown < grown_bytes_min(old.bytes()) {
            return None;
        }
        if self.reserved < grown * FILTER_SEGMENTS {
            // The segment is examined again after the others have given the memory back.
            (self.reserved, self.next_segment) = (grown * FILTER_SEGMENTS, index);
            return None;
        }
        Some((index, self.filter.new_segment(grown)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::options::FILTER_START_SHARE;

    #[test]
    fn a_segment_that_starts_as_its_share_has_all_that_it_may_after_two_growths() {
        for bytes_max in (64 << 10..4 << 20).step_by(10_007) {
            let most = Filter::segment_bytes(bytes_max);
            let first = Filter::segment_bytes(bytes_max / FILTER_START_SHARE);
            let second = Filter::segment_bytes(grown_bytes(first, bytes_max));
            let third = Filter::segment_bytes(grown_bytes(second, bytes_max));
            assert!(first < second && second < third && third == most, "{bytes_max}: {first}, {second}, {third}");
        }
    }
}
