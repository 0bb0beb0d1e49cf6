//! Units of a log: ranges of it that hits read as a whole.
//!
//! The log has the chunks in some order, and this says where each unit begins. A unit ends where the next one begins. A unit of the
//! arrival log is the range of a container: what its directory lists. So no directory is opened for a hit (Zhu et al.,
//! "Avoiding the Disk Bottleneck in the Data Domain Deduplication File System", FAST 2008, section 4.2, there "locality
//! preserved caching"). A unit of the stream log is a stream segment.
//!
//! A unit whose records the log has dropped stays as a gap: it leads to nothing, and adjacent gaps are one.
//!
//! The files `units.N` and `segments.N` of a checkpoint hold the number of units, 8 bytes, and the positions at which they begin,
//! ascending, 8 bytes each, of which the highest bit marks a gap, and the next one the first unit of a stream. In `units.N` the first position of each container follows, in the
//! order of their ordinals, with all bits set if it is unknown. In memory they take as much, and the cache gives that memory up.
#![deny(clippy::indexing_slicing)]

use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::identify::locality::arrival_log::{LOG_PAGE_RECORDS, LogWindow};
use crate::kv::{Ordinal, Position, SealedReader, SealedWriter};

/// Bytes of a position in the file.
const POSITION_BYTES: usize = 8;
/// Positions that one call reads or writes.
const POSITIONS_PER_CALL: usize = 2048;

/// The bit of the beginning of a gap.
const GAP: u64 = 1 << 63;

/// The bit of the beginning of the first unit of a stream.
const STREAM: u64 = 1 << 62;

fn first_of(start: u64) -> u64 {
    start & !(GAP | STREAM)
}

/// The beginnings of all units of a log.
#[derive(Debug, Default)]
pub(in crate::identify) struct Units {
    /// Positions of their first records, ascending, with [`GAP`].
    starts: Vec<u64>,
    /// First position of each container by ordinal, of the arrival log.
    of_containers: Vec<u64>,
    /// Gaps, and their records.
    gaps: u64,
    gap_records: u64,
}

impl Units {
    /// Begins a unit with the next record of the log. A unit without records is none.
    pub(in crate::identify) fn begin(&mut self, next: Position) {
        if self.starts.last().map(|last| first_of(*last)) != Some(next.0) {
            self.starts.push(next.0);
        }
    }

    /// Begins the first unit of a stream with the next record. Units of the stream before are not read with those after them.
    pub(in crate::identify) fn begin_stream(&mut self, next: Position) {
        self.begin(next);
        if let Some(last) = self.starts.last_mut() {
            *last |= STREAM;
        }
    }

    /// Begins the unit of a container.
    pub(in crate::identify) fn begin_container(&mut self, next: Position, Ordinal(ordinal): Ordinal) {
        self.begin(next);
        let ordinal = ordinal as usize;
        if self.of_containers.len() <= ordinal {
            self.of_containers.resize(ordinal + 1, Position::NONE.0);
        }
        if let Some(first) = self.of_containers.get_mut(ordinal) {
            *first = next.0;
        }
    }

    /// Returns the position of the first record of a container.
    pub(in crate::identify) fn of_container(&self, Ordinal(ordinal): Ordinal) -> Option<Position> {
        let first = self.of_containers.get(ordinal as usize)?;
        (*first != Position::NONE.0).then_some(Position(*first))
    }

    /// Returns the index of the unit that holds a record; `None` before the first one.
    pub(in crate::identify) fn index_of(&self, number: u64) -> Option<usize> {
        self.starts.partition_point(|start| first_of(*start) <= number).checked_sub(1)
    }

    /// Returns true if a unit, and no gap, holds a record.
    pub(in crate::identify) fn holds(&self, number: u64) -> bool {
        self.index_of(number).and_then(|index| self.starts.get(index)).is_some_and(|start| start & GAP == 0)
    }

    /// Drops all units of a log that ends at `end` but the last one and those of a set of indexes, each with `following` units after it.
    /// Returns the records that stay, as ascending ranges.
    pub(in crate::identify) fn keep(&mut self, named: &Bitmap, following: u32, end: Position) -> Vec<Range<u64>> {
        let old = std::mem::take(&mut self.starts);
        let (mut kept, mut until): (Vec<Range<u64>>, _) = (Vec::new(), 0);
        for (index, start) in old.iter().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            if named.contains(number) {
                until = index + following as usize + 1;
            }
            let is_kept = start & GAP == 0 && (index < until || index + 1 == old.len());
            let (first, next) = (first_of(*start), old.get(index + 1).map_or(end.0, |next| first_of(*next)));
            if is_kept {
                self.starts.push(*start);
                match kept.last_mut() {
                    Some(last) if last.end == first => last.end = next,
                    _ => kept.push(first..next),
                }
            } else if self.starts.last().is_some_and(|last| last & GAP == 0) {
                // Before the first unit that stays there is no gap: the log begins there.
                self.starts.push(first | GAP);
            }
        }
        self.starts.shrink_to_fit();
        self.count_gaps(end);
        kept
    }

    fn count_gaps(&mut self, end: Position) {
        let ends = self.starts.iter().skip(1).map(|start| first_of(*start)).chain([end.0]);
        let gaps = self.starts.iter().zip(ends).filter(|(start, _)| *start & GAP != 0);
        (self.gaps, self.gap_records) = gaps
            .fold((0, 0), |(gaps, records), (start, end)| (gaps + 1, records + end.saturating_sub(first_of(*start))));
    }

    /// Returns the whole pages of the log that are in gaps.
    pub(in crate::identify) fn gap_pages(&self) -> u64 {
        let ends = self.starts.iter().skip(1).map(|start| first_of(*start));
        let gaps = self.starts.iter().zip(ends).filter(|(start, _)| *start & GAP != 0);
        let page = LOG_PAGE_RECORDS as u64;
        gaps.map(|(start, end)| (end / page).saturating_sub(first_of(*start).div_ceil(page))).sum()
    }

    /// Returns the unit that holds a record of a log that ends at `end`, and `more` units after it; `None` if none does. Of more
    /// than `records_max` records, returns so many: those from the record on, and as many before it as are wanting.
    pub(in crate::identify) fn around(
        &self,
        position: Position,
        end: Position,
        more: u32,
        records_max: u32,
    ) -> Option<LogWindow> {
        let index = self.index_of(position.0)?;
        let start = first_of(*self.starts.get(index).filter(|start| **start & GAP == 0)?);
        if end <= position {
            return None;
        }
        let after = self.starts.get(index + 1..).unwrap_or_default().iter();
        let next = after.enumerate().find(|(number, start)| more as usize <= *number || **start & (GAP | STREAM) != 0);
        let end = next.map_or(end.0, |(_, start)| first_of(*start));
        let max = u64::from(records_max);
        let start = if max < end - start { position.0.min(end.saturating_sub(max)).max(start) } else { start };
        let records = (end - start).min(max);
        Some(LogWindow { start: Position(start), records: u32::try_from(records).expect("at most the maximum") })
    }

    /// Returns the mean number of records of a unit in a log that ends at `end`; 0 without units.
    pub(in crate::identify) fn mean_records(&self, end: Position) -> u64 {
        let first = self.starts.first().map_or(end.0, |first| first_of(*first));
        end.0.saturating_sub(first + self.gap_records) / (self.starts.len() as u64 - self.gaps).max(1)
    }

    /// Returns true if there are none.
    pub(in crate::identify) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the memory that the units take.
    pub(in crate::identify) fn memory_bytes(&self) -> usize {
        (self.starts.capacity() + self.of_containers.capacity()) * size_of::<u64>()
    }

    /// Writes the units to a file of a checkpoint.
    pub(in crate::identify) fn save(&self, to: &mut SealedWriter) -> Result<()> {
        to.write(&(self.starts.len() as u64).to_le_bytes())?;
        for positions in self.starts.chunks(POSITIONS_PER_CALL).chain(self.of_containers.chunks(POSITIONS_PER_CALL)) {
            to.write(&positions.iter().flat_map(|position| position.to_le_bytes()).collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    /// Reads the units of a log that ends at `end`.
    pub(in crate::identify) fn load(mut from: SealedReader, end: Position) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged("units of a log", reason);
        if from.left() < POSITION_BYTES as u64 || !from.left().is_multiple_of(POSITION_BYTES as u64) {
            return Err(damaged("ends early"));
        }
        let mut count = [0; POSITION_BYTES];
        from.read(&mut count)?;
        let count = u64::from_le_bytes(count);
        let mut units = Self::default();
        let mut buffer = Vec::new();
        while from.left() != 0 {
            let left = usize::try_from(from.left()).unwrap_or(usize::MAX);
            buffer.resize(left.min(POSITIONS_PER_CALL * POSITION_BYTES), 0);
            from.read(&mut buffer)?;
            for bytes in buffer.as_chunks::<POSITION_BYTES>().0 {
                let position = u64::from_le_bytes(*bytes);
                if count <= units.starts.len() as u64 {
                    units.of_containers.push(if position < end.0 { position } else { Position::NONE.0 });
                    continue;
                }
                let last = units.starts.last().map(|last| first_of(*last));
                if end.0 <= first_of(position) || last.is_some_and(|last| first_of(position) <= last) {
                    return Err(damaged("not in order"));
                }
                units.starts.push(position);
            }
        }
        if (units.starts.len() as u64) < count {
            return Err(damaged("ends early"));
        }
        from.finish()?;
        units.count_gaps(end);
        Ok(units)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::io::{Access, Disk};
    use crate::kv::Seal;
    use crate::random::SplitMix64;
    use crate::testing::sim::SimDisk;

    fn unit(start: u64, records: u32) -> LogWindow {
        LogWindow { start: Position(start), records }
    }

    fn saved(disk: &SimDisk, write: impl FnOnce(&mut SealedWriter)) -> Seal {
        let mut writer = SealedWriter::create(disk.create(Path::new("units")).unwrap()).unwrap();
        write(&mut writer);
        writer.finish().unwrap()
    }

    fn loaded(disk: &SimDisk, seal: Seal, end: u64) -> Result<Units> {
        let file = disk.open(Path::new("units"), Access::Read).unwrap();
        Units::load(SealedReader::open(file, PathBuf::from("units"), seal)?, Position(end))
    }

    #[test]
    fn a_record_leads_to_its_whole_unit_or_to_as_much_of_it_as_may_be_read() {
        let mut units = Units::default();
        assert_eq!(units.around(Position(0), Position(10), 0, 100), None);
        for start in [5, 5, 40, 41] {
            units.begin(Position(start));
        }
        let around = |position, max| units.around(Position(position), Position(100), 0, max);
        assert_eq!((around(4, 100), around(100, 100), around(u64::MAX, 100)), (None, None, None));
        for (position, max, whole) in [
            (5, 100, unit(5, 35)),
            (39, 100, unit(5, 35)),
            (40, 100, unit(40, 1)),
            (41, 100, unit(41, 59)),
            (99, 100, unit(41, 59)),
            (5, 10, unit(5, 10)),
            (20, 10, unit(20, 10)),
            (35, 10, unit(30, 10)),
        ] {
            assert_eq!(around(position, max), Some(whole), "{position}, at most {max}");
        }
        assert_eq!(units.mean_records(Position(95)), 30);
        let with_more = |position, more, max| units.around(Position(position), Position(100), more, max);
        assert_eq!(with_more(7, 1, 100), Some(unit(5, 36)));
        assert_eq!(with_more(7, 2, 100), Some(unit(5, 95)));
        assert_eq!(with_more(7, u32::MAX, 100), Some(unit(5, 95)));
        assert_eq!(with_more(7, 2, 40), Some(unit(7, 40)));
        assert_eq!(with_more(39, 1, 10), Some(unit(31, 10)));
    }

    #[test]
    fn units_that_nothing_names_become_gaps_which_lead_to_nothing() {
        let mut units = Units::default();
        (0..10).for_each(|number| units.begin(Position(number * 1_000)));
        let end = Position(10_000);
        let mut named = Bitmap::default();
        for number in [2, 6] {
            named.insert(number);
        }
        assert_eq!(units.keep(&named, 1, end), [2_000..4_000, 6_000..8_000, 9_000..10_000]);
        let held: Vec<_> = (0..10).filter(|number| units.holds(number * 1_000 + 999)).collect();
        assert_eq!(held, [2, 3, 6, 7, 9]);
        let around = |position, more| units.around(Position(position), end, more, 9_000);
        assert_eq!((around(5_500, 0), around(1_500, 0)), (None, None));
        assert_eq!((around(2_500, 5), around(7_001, 0)), (Some(unit(2_000, 2_000)), Some(unit(7_000, 1_000))));
        assert_eq!((units.mean_records(end), units.gap_pages()), (1_000, 18 + 9));
        // Indexes are those of what is left: 2, 3, a gap, 6, 7, a gap, 9.
        let mut named = Bitmap::default();
        named.insert(4);
        assert_eq!(units.keep(&named, 0, end), [7_000..8_000, 9_000..10_000]);
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| units.save(to).unwrap());
        let loaded = loaded(&disk, seal, end.0).unwrap();
        assert_eq!((loaded.gap_pages(), loaded.mean_records(end)), (units.gap_pages(), 1_000));
        let left = units.keep(&Bitmap::default(), 0, end);
        assert_eq!((left.len(), left.first()), (1, Some(&(9_000..10_000))));
    }

    #[test]
    fn units_that_are_read_with_another_one_are_of_its_stream() {
        let mut units = Units::default();
        for start in [0, 10, 20] {
            units.begin_stream(Position(start * 10));
            units.begin(Position(start * 10 + 50));
        }
        let around = |units: &Units, position, more| units.around(Position(position), Position(300), more, 900);
        assert_eq!((around(&units, 10, 9), around(&units, 60, 9)), (Some(unit(0, 100)), Some(unit(50, 50))));
        assert_eq!((around(&units, 210, 9), around(&units, 250, 0)), (Some(unit(200, 100)), Some(unit(250, 50))));
        let mut named = Bitmap::default();
        (0..6).filter(|number| *number != 1).for_each(|number| named.insert(number));
        assert_eq!(units.keep(&named, 0, Position(300)), [0..50, 100..300]);
        assert_eq!(around(&units, 110, 9), Some(unit(100, 100)));
    }

    #[test]
    fn the_first_records_of_containers_are_known_by_their_ordinals() {
        let mut units = Units::default();
        units.begin_container(Position(0), Ordinal(3));
        units.begin_container(Position(50), Ordinal(0));
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| units.save(to).unwrap());
        let loaded = loaded(&disk, seal, 90).unwrap();
        let found = [0, 1, 3, 9].map(|ordinal| loaded.of_container(Ordinal(ordinal)));
        assert_eq!(found, [Some(Position(50)), None, Some(Position(0)), None]);
    }

    #[test]
    fn units_that_were_saved_come_back_and_wrong_ones_are_refused() {
        let mut random = SplitMix64::new(5);
        let (mut units, mut end) = (Units::default(), 0);
        for _ in 0..5_000 {
            units.begin(Position(end));
            end += random.below(600);
        }
        end += 1;
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| units.save(to).unwrap());
        assert_eq!(loaded(&disk, seal, end).unwrap().starts, units.starts);
        assert!(loaded(&disk, seal, *units.starts.last().unwrap()).is_err(), "a unit begins after the end of the log");
        for wrong in [&[7_u64, 7][..], &[9, 3]] {
            let disk = SimDisk::default();
            let seal = saved(&disk, |to| {
                [2].iter().chain(wrong).for_each(|start: &u64| to.write(&start.to_le_bytes()).unwrap());
            });
            assert!(loaded(&disk, seal, 100).is_err(), "{wrong:?}");
        }
        for short in [&[1; 12][..], &[1; 8], &[]] {
            let disk = SimDisk::default();
            let seal = saved(&disk, |to| to.write(short).unwrap());
            assert!(loaded(&disk, seal, u64::MAX).is_err());
        }
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| units.save(to).unwrap());
        disk.damage("units", |bytes| bytes.iter_mut().skip(4_000).take(1).for_each(|byte| *byte ^= 1));
        assert!(loaded(&disk, seal, end).is_err());
    }
}
