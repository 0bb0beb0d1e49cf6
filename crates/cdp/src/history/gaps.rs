//! Ranges of volumes whose changes may be missing, at a moment of the history.

use std::ops::Range;

use crate::history::index::{Change, HistoryEntry};
use crate::journal::Lsn;

/// Most ranges of one volume that are kept apart. Of more, one range that has all of them is remembered.
const RANGES_MAX: usize = 1024;

/// A range of a volume whose changes may be missing, or that is being compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenGap {
    /// Number of the volume.
    pub volume: u16,
    /// Blocks.
    pub blocks: Range<u64>,
    /// Its first record, and the wall clock of that.
    pub lsn: Lsn,
    /// Wall clock of its first record.
    pub time: u64,
    /// False if nothing is missing after the comparison that goes on.
    pub is_gap: bool,
    /// Position among all entries.
    order: u64,
}

/// Follows the entries of the history. An end of a comparison closes the gaps of its range that were open when the comparison began: what
/// could not be read during it stays a gap.
#[derive(Clone, Debug, Default)]
pub struct GapTracker {
    open: Vec<OpenGap>,
    order: u64,
}

impl GapTracker {
    /// Memory of a tracker that follows a group with so many volumes.
    pub fn memory_bytes(volumes: usize) -> usize {
        (RANGES_MAX + 1) * volumes * 2 * size_of::<OpenGap>()
    }

    /// Returns true if no gap is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Follows an entry. Returns the parts of gaps that it has closed.
    pub fn push(&mut self, entry: &HistoryEntry) -> Vec<OpenGap> {
        let HistoryEntry { lsn, time, volume, change, block, count } = *entry;
        let blocks = block..block + count;
        match change {
            Change::Gap | Change::ResyncBegin => {
                self.order += 1;
                let is_gap = change == Change::Gap;
                self.insert(OpenGap { volume, blocks, lsn, time, is_gap, order: self.order });
                Vec::new()
            }
            Change::ResyncEnd => self.close(volume, &blocks),
            Change::Data | Change::Zero | Change::Flush | Change::Kept => Vec::new(),
        }
    }

    fn insert(&mut self, gap: OpenGap) {
        let same =
            |other: &OpenGap| other.volume == gap.volume && other.is_gap == gap.is_gap && other.blocks == gap.blocks;
        // The same range again: it has been open since it was opened first.
        if let Some(known) = self.open.iter_mut().find(|other| same(other)) {
            known.order = gap.order;
            return;
        }
        let volume = gap.volume;
        self.open.push(gap);
        let of_volume = || self.open.iter().filter(|open| open.volume == volume);
        if of_volume().count() <= RANGES_MAX {
            return;
        }
        let start = of_volume().map(|open| open.blocks.start).min().unwrap_or(0);
        let end = of_volume().map(|open| open.blocks.end).max().unwrap_or(0);
        let Some(mut whole) = of_volume().min_by_key(|open| open.lsn).cloned() else { return };
        (whole.blocks, whole.is_gap, whole.order) = (start..end, true, self.order);
        self.open.retain(|open| open.volume != volume);
        self.open.push(whole);
    }

    fn close(&mut self, volume: u16, blocks: &Range<u64>) -> Vec<OpenGap> {
        let begin = self.open.iter().rposition(|open| !open.is_gap && open.volume == volume && open.blocks == *blocks);
        let until = match begin {
            Some(at) => self.open.remove(at).order,
            // Its begin was merged with others, or forgotten.
            None => self.order,
        };
        let (mut kept, mut closed) = (Vec::with_capacity(self.open.len()), Vec::new());
        for open in self.open.drain(..) {
            if open.volume != volume || until < open.order || !open.is_gap {
                kept.push(open);
                continue;
            }
            let before = open.blocks.start..open.blocks.end.min(blocks.start);
            let after = open.blocks.start.max(blocks.end)..open.blocks.end;
            let within = open.blocks.start.max(blocks.start)..open.blocks.end.min(blocks.end);
            let part = |range: Range<u64>| (!range.is_empty()).then(|| OpenGap { blocks: range, ..open.clone() });
            kept.extend([before, after].into_iter().filter_map(part));
            closed.extend(part(within));
        }
        self.open = kept;
        closed
    }

    /// Returns true if no gap is open.
    pub fn is_closed(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the gaps that are open, in the order in which they began.
    pub fn open(&self) -> impl Iterator<Item = &OpenGap> {
        let mut open: Vec<&OpenGap> = self.open.iter().collect();
        open.sort_by_key(|gap| gap.order);
        open.into_iter()
    }

    /// Returns entries that open the same gaps at a record, for the beginning of an index.
    pub fn carried(&self, lsn: Lsn) -> impl Iterator<Item = HistoryEntry> {
        self.open().map(move |gap| HistoryEntry {
            lsn,
            time: gap.time,
            volume: gap.volume,
            change: if gap.is_gap { Change::Gap } else { Change::ResyncBegin },
            block: gap.blocks.start,
            count: gap.blocks.end - gap.blocks.start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(lsn: u64, change: Change, blocks: Range<u64>) -> HistoryEntry {
        let count = blocks.end - blocks.start;
        HistoryEntry { lsn: Lsn(lsn), time: 10 * lsn, volume: 1, change, block: blocks.start, count }
    }

    fn open(tracker: &GapTracker) -> Vec<(u64, Range<u64>, bool)> {
        tracker.open().map(|gap| (gap.lsn.0, gap.blocks.clone(), gap.is_gap)).collect()
    }

    #[test]
    fn a_comparison_closes_the_gaps_before_it_and_none_that_it_opens() {
        let mut tracker = GapTracker::default();
        tracker.push(&entry(5, Change::Gap, 10..20));
        tracker.push(&entry(6, Change::Flush, 0..0));
        assert_eq!(open(&tracker), [(5, 10..20, true)]);
        tracker.push(&entry(7, Change::ResyncBegin, 12..15));
        tracker.push(&entry(8, Change::Gap, 13..14));
        assert_eq!(open(&tracker), [(5, 10..20, true), (7, 12..15, false), (8, 13..14, true)]);

        // An interval that begins here opens the same.
        let mut next = GapTracker::default();
        tracker.carried(Lsn(9)).for_each(|entry| drop(next.push(&entry)));
        for tracker in [&mut tracker, &mut next] {
            tracker.push(&entry(9, Change::ResyncEnd, 12..15));
            let ranges: Vec<_> = open(tracker).into_iter().map(|(_, blocks, is_gap)| (blocks, is_gap)).collect();
            assert_eq!(ranges, [(10..12, true), (15..20, true), (13..14, true)]);
            tracker.push(&entry(10, Change::ResyncBegin, 0..30));
            tracker.push(&entry(11, Change::ResyncEnd, 0..30));
            assert_eq!(open(tracker), []);
        }
    }

    #[test]
    fn many_gaps_take_bounded_memory_and_stay_gaps() {
        let mut tracker = GapTracker::default();
        for number in 0..5 * RANGES_MAX as u64 {
            tracker.push(&entry(number + 1, Change::Gap, 2 * number..2 * number + 1));
            assert!(tracker.open.len() <= RANGES_MAX);
        }
        for number in 0..5 * RANGES_MAX as u64 {
            assert!(tracker.open().any(|gap| gap.blocks.contains(&(2 * number))));
        }
    }
}
