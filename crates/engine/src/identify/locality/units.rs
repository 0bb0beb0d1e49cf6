//! Units of a log: ranges of it that hits read as a whole.
//!
//! The log has the chunks in some order, and this says where each unit begins. A unit ends where the next one begins. A unit of the
//! arrival log is the range of a container: what its directory lists. So no directory is opened for a hit (Zhu et al.,
//! "Avoiding the Disk Bottleneck in the Data Domain Deduplication File System", FAST 2008, section 4.2, there "locality
//! preserved caching"). A unit of the stream log is a stream segment.
//!
//! The files `units.N` and `segments.N` of a checkpoint hold the positions at which units begin, ascending, 8 bytes each. In
//! memory they take as much, and the cache gives that memory up.
#![deny(clippy::indexing_slicing)]

use crate::error::{Error, Result};
use crate::identify::locality::arrival_log::LogWindow;
use crate::kv::{Position, SealedReader, SealedWriter};

/// Bytes of a position in the file.
const POSITION_BYTES: usize = 8;
/// Positions that one call reads or writes.
const POSITIONS_PER_CALL: usize = 2048;

/// The beginnings of all units of a log.
#[derive(Debug, Default)]
pub(in crate::identify) struct Units {
    /// Positions of their first records, ascending.
    starts: Vec<u64>,
}

impl Units {
    /// Begins a unit with the next record of the log. A unit without records is none.
    pub(in crate::identify) fn begin(&mut self, next: Position) {
        if self.starts.last() != Some(&next.0) {
            self.starts.push(next.0);
        }
    }

    /// Forgets units that end before the first record of the log.
    pub(in crate::identify) fn drop_before(&mut self, first: Position) {
        // The unit that holds the first record stays.
        let kept = self.starts.partition_point(|start| *start <= first.0).saturating_sub(1);
        self.starts.drain(..kept);
        self.starts.shrink_to_fit();
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
        let following = self.starts.partition_point(|start| *start <= position.0);
        let start = *self.starts.get(following.checked_sub(1)?)?;
        if end <= position {
            return None;
        }
        let end = self.starts.get(following.saturating_add(more as usize)).map_or(end.0, |next| *next);
        let max = u64::from(records_max);
        let start = if max < end - start { position.0.min(end.saturating_sub(max)).max(start) } else { start };
        let records = (end - start).min(max);
        Some(LogWindow { start: Position(start), records: u32::try_from(records).expect("at most the maximum") })
    }

    /// Returns the mean number of records of a unit in a log that ends at `end`; 0 without units.
    pub(in crate::identify) fn mean_records(&self, end: Position) -> u64 {
        let first = self.starts.first().map_or(end.0, |first| *first);
        end.0.saturating_sub(first) / (self.starts.len() as u64).max(1)
    }

    /// Returns the memory that the units take.
    pub(in crate::identify) fn memory_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u64>()
    }

    /// Writes the units to a file of a checkpoint.
    pub(in crate::identify) fn save(&self, to: &mut SealedWriter) -> Result<()> {
        for starts in self.starts.chunks(POSITIONS_PER_CALL) {
            to.write(&starts.iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    /// Reads the units of a log that ends at `end`.
    pub(in crate::identify) fn load(mut from: SealedReader, end: Position) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged("units of a log", reason);
        let mut starts = Vec::new();
        let mut buffer = Vec::new();
        while from.left() != 0 {
            let left = usize::try_from(from.left()).unwrap_or(usize::MAX);
            if !left.is_multiple_of(POSITION_BYTES) {
                return Err(damaged("ends early"));
            }
            buffer.resize(left.min(POSITIONS_PER_CALL * POSITION_BYTES), 0);
            from.read(&mut buffer)?;
            for bytes in buffer.as_chunks::<POSITION_BYTES>().0 {
                let start = u64::from_le_bytes(*bytes);
                if end.0 <= start || starts.last().is_some_and(|last| start <= *last) {
                    return Err(damaged("not in order"));
                }
                starts.push(start);
            }
        }
        from.finish()?;
        Ok(Self { starts })
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
        units.drop_before(Position(40));
        let kept: Vec<_> = [39, 40, 41].map(|position| units.around(Position(position), Position(100), 0, 9)).into();
        assert_eq!(kept, [None, Some(unit(40, 1)), Some(unit(41, 9))]);
        units.drop_before(Position(99));
        assert_eq!(units.around(Position(41), Position(100), 0, 9), Some(unit(41, 9)));
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
            let seal = saved(&disk, |to| wrong.iter().for_each(|start| to.write(&start.to_le_bytes()).unwrap()));
            assert!(loaded(&disk, seal, 100).is_err(), "{wrong:?}");
        }
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| to.write(&[1; 12]).unwrap());
        assert!(loaded(&disk, seal, u64::MAX).is_err());
        let disk = SimDisk::default();
        let seal = saved(&disk, |to| units.save(to).unwrap());
        disk.damage("units", |bytes| bytes.iter_mut().skip(4_000).take(1).for_each(|byte| *byte ^= 1));
        assert!(loaded(&disk, seal, end).is_err());
    }
}
