//! The duplicate-run log: one record for each duplicate run, however long.
//!
//! The arrival log holds a chunk once, at the position where it was recorded. If a stream repeats positions p to p + k, one
//! record here notes them at the position that the arrival log had reached. Successor prefetch needs it for streams that
//! mix old and new chunks: a hit among the new ones leads to the old ones that followed them the last time.
//!
//! The same terabytes read daily must not make the index grow. If the records exceed a number of bytes for each chunk of
//! the arrival log, a checkpoint keeps the newest half. It writes them to the other one of two files, so that a crash finds
//! the file that its checkpoint names.
//!
//! A page is a [`crate::identify::frame`]. A record has 20 bytes: position in the log 8, in ascending order; first position of
//! the run 8; records of the run 4.
#![deny(clippy::indexing_slicing)]

use std::sync::Arc;

use crate::error::Result;
use crate::identify::exact::arrivals::DuplicateRun;
use crate::identify::exact::directory::IndexDirectory;
use crate::identify::locality::arrival_log::LogWindow;
use crate::identify::locality::frame::{
    FRAME_BYTES, FrameRecord, LogCounters, decode_frame, encode_frame, truncate_log,
};
use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::{Fields, Position};

/// Most pages that are read for one window: shorter runs are not worth a read.
const PAGES_PER_WINDOW: u64 = 2;
/// Shortest run that is noted: a shorter one costs more than it saves.
const RUN_LEN_MIN: u32 = 8;

/// A duplicate run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DuplicateRunRecord {
    /// Position that the arrival log had reached.
    position: Position,
    /// The repeated records.
    run: LogWindow,
}

impl FrameRecord for DuplicateRunRecord {
    const BYTES: usize = 20;

    fn encode(&self, page: &mut Vec<u8>) {
        page.extend_from_slice(&self.position.0.to_le_bytes());
        page.extend_from_slice(&self.run.start.0.to_le_bytes());
        page.extend_from_slice(&self.run.records.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let position = Position(fields.u64()?);
        Some(Self { position, run: LogWindow { start: Position(fields.u64()?), records: fields.u32()? } })
    }
}

/// The greatest length of the log.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct DuplicateRunCap {
    /// Bytes for each record of the arrival log.
    pub(crate) bytes_per_chunk: u32,
    /// Pages that it may always have.
    pub(crate) pages_min: u64,
}

impl DuplicateRunCap {
    fn pages_max(self, next: Position) -> u64 {
        let bytes = next.0.saturating_mul(u64::from(self.bytes_per_chunk));
        (bytes / FRAME_BYTES as u64).max(self.pages_min)
    }
}

/// The duplicate-run log.
#[derive(Debug)]
pub(in crate::identify) struct DuplicateRunLog {
    file: Arc<dyn DiskFile>,
    /// Which of the two files it is, 0 or 1.
    pub(crate) file_number: u8,
    cap: DuplicateRunCap,
    /// First position of every written page, to find a position with one read: 8 bytes for 204 records.
    fences: Vec<u64>,
    /// Records of the page that is being filled.
    page: Vec<DuplicateRunRecord>,
    pub(crate) counters: LogCounters,
    /// Runs noted since the opening.
    pub(crate) noted: u64,
    /// Compactions since the opening.
    pub(crate) compactions: u64,
}

fn offset_of(page: u64) -> u64 {
    page * FRAME_BYTES as u64
}

impl DuplicateRunLog {
    /// Returns the name of one of the two files.
    pub(in crate::identify) fn file_name(number: u8) -> String {
        format!("repeats.{number}")
    }

    /// Opens the file at the length that its checkpoint gives, 0 for a new one, and truncates the rest. Reads every page
    /// once; the records of a damaged page are lost.
    pub(crate) fn open(file: Arc<dyn DiskFile>, file_number: u8, pages: u64, cap: DuplicateRunCap) -> Result<Self> {
        truncate_log(&*file, pages, "duplicate-run log")?;
        let (mut fences, mut records) = (Vec::new(), Vec::<DuplicateRunRecord>::new());
        let mut buffer = vec![0; FRAME_BYTES];
        for number in 0..pages {
            file.read_at(offset_of(number), &mut buffer)?;
            let before = fences.last().copied().unwrap_or(0);
            let first = decode_frame(number, &buffer, &mut records).and_then(|()| records.first());
            fences.push(first.map_or(before, |record| record.position.0.max(before)));
        }
        let (page, counters) = (Vec::with_capacity(DuplicateRunRecord::PER_FRAME), LogCounters::default());
        Ok(Self { file, file_number, cap, fences, page, counters, noted: 0, compactions: 0 })
    }

    /// Returns the number of pages in the file.
    pub(in crate::identify) fn pages(&self) -> u64 {
        self.fences.len() as u64
    }

    /// Notes a run that a stream repeated `ahead` chunks after `next`, the position that the arrival log has reached.
    pub(in crate::identify) fn note(&mut self, run: &DuplicateRun, next: Position, ahead: u64) -> Result<()> {
        // A session that records nothing makes no checkpoint that would compact the log.
        let is_full = 4 * self.cap.pages_max(next) < self.pages();
        if run.len < RUN_LEN_MIN || is_full {
            return Ok(());
        }
        self.noted += 1;
        let position = Position(next.0.saturating_add(ahead));
        self.append(DuplicateRunRecord { position, run: LogWindow { start: run.start, records: run.len } })
    }

    /// Adds a record. Positions must not fall.
    fn append(&mut self, record: DuplicateRunRecord) -> Result<()> {
        let position = self.page.last().map_or(record.position, |last| last.position.max(record.position));
        self.page.push(DuplicateRunRecord { position, ..record });
        if self.page.len() == DuplicateRunRecord::PER_FRAME { self.end_page() } else { Ok(()) }
    }

    fn end_page(&mut self) -> Result<()> {
        let Some(first) = self.page.first().map(|record| record.position.0) else { return Ok(()) };
        self.file.write_at(offset_of(self.pages()), &encode_frame(self.pages(), &self.page))?;
        self.counters.bytes_written += FRAME_BYTES as u64;
        self.fences.push(first.max(self.fences.last().copied().unwrap_or(0)));
        self.page.clear();
        Ok(())
    }

    /// Returns true if the log is so long that a checkpoint is worth its cost.
    pub(in crate::identify) fn is_compaction_due(&self, next: Position) -> bool {
        2 * self.cap.pages_max(next) < self.pages()
    }

    /// Makes the log durable. A log that is too long is compacted into the file that the last checkpoint does not name.
    pub(in crate::identify) fn save(&mut self, directory: &IndexDirectory, next: Position) -> Result<()> {
        let pages_max = self.cap.pages_max(next);
        if pages_max < self.pages() {
            let other = 1 - self.file_number;
            self.compact(directory.open_or_create(&Self::file_name(other))?, pages_max / 2)?;
            self.file_number = other;
        }
        self.sync()
    }

    /// Writes everything, the page that is being filled included, and makes it durable.
    fn sync(&mut self) -> Result<()> {
        self.end_page()?;
        self.file.sync()
    }

    /// Continues in another file with the newest `pages` pages. The old file stays as it is.
    fn compact(&mut self, file: Arc<dyn DiskFile>, pages: u64) -> Result<()> {
        self.end_page()?;
        file.set_len(0)?;
        let old = std::mem::replace(&mut self.file, file);
        let end = std::mem::take(&mut self.fences).len() as u64;
        let (mut buffer, mut records) = (vec![0; FRAME_BYTES], Vec::new());
        for number in end.saturating_sub(pages)..end {
            old.read_at(offset_of(number), &mut buffer)?;
            self.counters.bytes_read += FRAME_BYTES as u64;
            if decode_frame(number, &buffer, &mut records).is_some() {
                records.drain(..).try_for_each(|record| self.append(record))?;
            }
        }
        self.compactions += 1;
        Ok(())
    }

    /// Reads the runs that were noted when the arrival log was in one of some windows, in one batch; returns them and the
    /// number of pages read. Unreadable records are left out.
    pub(in crate::identify) fn read(&mut self, disk: &dyn Disk, windows: &[LogWindow]) -> (Vec<LogWindow>, usize) {
        let mut reads: Vec<BatchRead> = Vec::new();
        for window in windows {
            let first = self.fences.partition_point(|&fence| fence < window.start.0).saturating_sub(1) as u64;
            let last = self.fences.partition_point(|&fence| fence < window.end()) as u64;
            for offset in (first..last.min(first + PAGES_PER_WINDOW)).map(offset_of) {
                if reads.iter().all(|read| read.offset != offset) {
                    let buffer = AlignedBuffer::new_zeroed(FRAME_BYTES);
                    reads.push(BatchRead { file: Arc::clone(&self.file), offset, buffer, outcome: Ok(()) });
                }
            }
        }
        disk.read_batch(&mut reads);
        let (mut out, mut records) = (Vec::new(), Vec::new());
        let in_windows = |records: &[DuplicateRunRecord], out: &mut Vec<LogWindow>| {
            let inside = records.iter().filter(|it| windows.iter().any(|window| window.holds(it.position)));
            out.extend(inside.map(|record| record.run));
        };
        for read in &reads {
            self.counters.bytes_read += read.buffer.len() as u64;
            let number = read.offset / FRAME_BYTES as u64;
            if read.outcome.is_ok() && decode_frame(number, &read.buffer, &mut records).is_some() {
                in_windows(&records, &mut out);
            } else {
                self.counters.damaged_pages += 1;
            }
        }
        in_windows(&self.page, &mut out);
        (out, reads.len())
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::identify::locality::frame::check_wrong_fields;
    use crate::io::Access;
    use crate::random::SplitMix64;
    use crate::testing::sim::SimDisk;

    const CAP: DuplicateRunCap = DuplicateRunCap { bytes_per_chunk: 1, pages_min: 1 };

    fn window(start: u64, records: u32) -> LogWindow {
        LogWindow { start: Position(start), records }
    }

    #[test]
    fn runs_repeated_near_a_position_are_found_and_the_oldest_go_first() {
        let disk = SimDisk::default();
        let mut log = DuplicateRunLog::open(disk.create(Path::new("a")).unwrap(), 0, 0, CAP).unwrap();
        let mut random = SplitMix64::new(3);
        let mut model = Vec::new();
        let mut position = 0;
        for number in 0..3_000 {
            position += random.below(40);
            let record = DuplicateRunRecord { position: Position(position), run: window(number * 10, 7) };
            log.append(record).unwrap();
            model.push(record);
        }
        let check = |log: &mut DuplicateRunLog, model: &[DuplicateRunRecord], start: u64| {
            let (found, _) = log.read(&disk, &[window(start, 500)]);
            let inside = |record: &&DuplicateRunRecord| (start..start + 500).contains(&record.position.0);
            assert_eq!(found, model.iter().filter(inside).map(|record| record.run).collect::<Vec<_>>());
        };
        for start in (0..position).step_by(997) {
            check(&mut log, &model, start);
        }
        log.sync().unwrap();
        let pages = log.pages();
        assert_eq!(pages, 3_000_u64.div_ceil(DuplicateRunRecord::PER_FRAME as u64));
        let file = disk.open(Path::new("a"), Access::ReadWrite).unwrap();
        let mut log = DuplicateRunLog::open(file, 0, pages, CAP).unwrap();
        check(&mut log, &model, position / 2);
        log.compact(disk.create(Path::new("b")).unwrap(), 5).unwrap();
        assert_eq!(log.compactions, 1);
        let kept = &model[10 * DuplicateRunRecord::PER_FRAME..];
        check(&mut log, kept, kept[0].position.0);
        check(&mut log, kept, 0);
        log.sync().unwrap();
        assert!(log.pages() <= 6);
        disk.damage("b", |bytes| bytes[FRAME_BYTES + 40] ^= 1);
        let file = disk.open(Path::new("b"), Access::ReadWrite).unwrap();
        let mut log = DuplicateRunLog::open(file, 1, 5, CAP).unwrap();
        let (found, _) = log.read(&disk, &[window(kept[0].position.0, 100)]);
        assert!(!found.is_empty());
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        check_wrong_fields(&[DuplicateRunRecord { position: Position(3), run: window(9, 2) }]);
    }
}
