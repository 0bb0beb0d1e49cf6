//! The duplicate-run log: one record for each run of the arrival log that a stream repeated, however long.
//!
//! The arrival log holds a chunk once, where it was recorded. If a stream repeats positions p to p + k, one record here
//! says so, at the position that the log had reached. It helps with streams that mix old and new chunks: a hit among the
//! new ones leads to the old ones that followed them the last time.
//!
//! Reading the same terabytes daily must not make the index grow. When the records take more than a set number of bytes
//! for each chunk of the log, a checkpoint keeps the newest half. It writes them to the other one of two files, so that a
//! crash finds the file that its checkpoint names.
//!
//! Pages are framed by [`crate::index::frame`]. A record has 20 bytes: position in the log 8, in ascending order; first
//! position repeated 8; records repeated 4.
#![deny(clippy::indexing_slicing)]

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::arrivals::DuplicateRun;
use crate::index::directory::IndexDirectory;
use crate::index::frame::{FRAME_BYTES, FRAME_HEADER_BYTES, decode_frame, encode_frame};
use crate::index::log::LogWindow;
use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::Position;

/// Bytes of a page.
pub const DUPLICATE_RUN_PAGE_BYTES: usize = FRAME_BYTES;
/// Bytes of a record.
pub const DUPLICATE_RUN_RECORD_BYTES: usize = 20;
/// Records of a page.
pub const DUPLICATE_RUN_PAGE_RECORDS: usize =
    (DUPLICATE_RUN_PAGE_BYTES - FRAME_HEADER_BYTES) / DUPLICATE_RUN_RECORD_BYTES;
/// Most pages that are read for one window: shorter runs are not worth a read.
const PAGES_PER_WINDOW: u64 = 2;

/// A run of the arrival log that a stream repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DuplicateRunRecord {
    /// Position that the log had reached when it was repeated.
    pub position: Position,
    /// The repeated records.
    pub extent: LogWindow,
}

/// The records in their file.
#[derive(Debug)]
pub struct DuplicateRunLog {
    file: Arc<dyn DiskFile>,
    /// First position of every written page, to find a position with one read: 8 bytes for 204 records.
    fences: Vec<u64>,
    /// Records of the page that is being filled.
    page: Vec<DuplicateRunRecord>,
    bytes_read: u64,
    bytes_written: u64,
    compactions: u64,
    damaged_pages: u64,
}

/// Encodes a page of at most [`DUPLICATE_RUN_PAGE_RECORDS`] records.
pub fn encode_duplicate_run_page(number: u64, records: &[DuplicateRunRecord]) -> Vec<u8> {
    encode_frame(number, records.len(), |page| {
        for DuplicateRunRecord { position, extent } in records {
            page.extend_from_slice(&position.0.to_le_bytes());
            page.extend_from_slice(&extent.start.0.to_le_bytes());
            page.extend_from_slice(&extent.records.to_le_bytes());
        }
    })
}

/// Decodes the page with that number, replacing `out`; `None` if it is damaged or another one.
pub fn decode_duplicate_run_page(number: u64, bytes: &[u8], out: &mut Vec<DuplicateRunRecord>) -> Option<()> {
    out.clear();
    let (count, mut fields) = decode_frame(number, DUPLICATE_RUN_RECORD_BYTES, bytes)?;
    for _ in 0..count {
        let position = Position(fields.u64()?);
        out.push(DuplicateRunRecord {
            position,
            extent: LogWindow { start: Position(fields.u64()?), records: fields.u32()? },
        });
    }
    Some(())
}

impl DuplicateRunLog {
    /// Opens the file at the length that a checkpoint gave, 0 for a new one, and truncates the rest. Reads every page once;
    /// the records of a damaged page are lost.
    pub fn open(file: Arc<dyn DiskFile>, pages: u64) -> Result<Self> {
        let bytes = pages.checked_mul(DUPLICATE_RUN_PAGE_BYTES as u64);
        let Some(bytes) = bytes.filter(|&bytes| file.len().is_ok_and(|len| bytes <= len)) else {
            return Err(Error::damaged("duplicate-run log", "shorter than its checkpoint says"));
        };
        file.set_len(bytes)?;
        let (mut fences, mut records) = (Vec::new(), Vec::new());
        let mut buffer = vec![0; DUPLICATE_RUN_PAGE_BYTES];
        for number in 0..pages {
            file.read_at(number * DUPLICATE_RUN_PAGE_BYTES as u64, &mut buffer)?;
            let before = fences.last().copied().unwrap_or(0);
            let first = decode_duplicate_run_page(number, &buffer, &mut records).and_then(|()| records.first());
            fences.push(first.map_or(before, |record| record.position.0.max(before)));
        }
        let page = Vec::with_capacity(DUPLICATE_RUN_PAGE_RECORDS);
        Ok(Self { file, fences, page, bytes_read: 0, bytes_written: 0, compactions: 0, damaged_pages: 0 })
    }

    /// Returns how many pages the file has.
    pub fn pages(&self) -> u64 {
        self.fences.len() as u64
    }

    /// Returns how many compactions there were since it was opened.
    pub fn compactions(&self) -> u64 {
        self.compactions
    }

    /// Returns the bytes read and written since it was opened.
    pub fn bytes_read_and_written(&self) -> (u64, u64) {
        (self.bytes_read, self.bytes_written)
    }

    /// Returns how many pages were bad or unreadable since it was opened.
    pub fn damaged_pages(&self) -> u64 {
        self.damaged_pages
    }

    /// Adds a record. Positions must not fall.
    pub fn append(&mut self, record: DuplicateRunRecord) -> Result<()> {
        let position = self.page.last().map_or(record.position, |last| last.position.max(record.position));
        self.page.push(DuplicateRunRecord { position, ..record });
        if self.page.len() == DUPLICATE_RUN_PAGE_RECORDS { self.end_page() } else { Ok(()) }
    }

    fn end_page(&mut self) -> Result<()> {
        let Some(first) = self.page.first().map(|record| record.position.0) else { return Ok(()) };
        let number = self.pages();
        self.file.write_at(number * DUPLICATE_RUN_PAGE_BYTES as u64, &encode_duplicate_run_page(number, &self.page))?;
        self.bytes_written += DUPLICATE_RUN_PAGE_BYTES as u64;
        self.fences.push(first.max(self.fences.last().copied().unwrap_or(0)));
        self.page.clear();
        Ok(())
    }

    /// Writes everything out, the page that is being filled too, and makes it durable.
    pub fn sync(&mut self) -> Result<()> {
        self.end_page()?;
        self.file.sync()
    }

    /// Continues in another, empty file with the newest `pages` pages. The old file stays as it is.
    pub fn compact(&mut self, file: Arc<dyn DiskFile>, pages: u64) -> Result<()> {
        self.end_page()?;
        file.set_len(0)?;
        let old = std::mem::replace(&mut self.file, file);
        let fences = std::mem::take(&mut self.fences);
        let first = (fences.len() as u64).saturating_sub(pages);
        let (mut buffer, mut records) = (vec![0; DUPLICATE_RUN_PAGE_BYTES], Vec::new());
        for number in first..fences.len() as u64 {
            old.read_at(number * DUPLICATE_RUN_PAGE_BYTES as u64, &mut buffer)?;
            self.bytes_read += DUPLICATE_RUN_PAGE_BYTES as u64;
            if decode_duplicate_run_page(number, &buffer, &mut records).is_some() {
                records.drain(..).try_for_each(|record| self.append(record))?;
            }
        }
        self.compactions += 1;
        Ok(())
    }

    /// Reads the runs that were repeated while the log was in one of some windows, in one batch; returns the number of pages
    /// read. Unreadable records are left out.
    pub fn read(&mut self, disk: &dyn Disk, windows: &[LogWindow], out: &mut Vec<LogWindow>) -> usize {
        out.clear();
        let mut reads: Vec<BatchRead> = Vec::new();
        for window in windows {
            let end = window.start.0.saturating_add(u64::from(window.records));
            let first = self.fences.partition_point(|&fence| fence < window.start.0).saturating_sub(1) as u64;
            let last = (self.fences.partition_point(|&fence| fence < end) as u64).min(first + PAGES_PER_WINDOW);
            for number in first..last {
                let offset = number * DUPLICATE_RUN_PAGE_BYTES as u64;
                if reads.iter().all(|read| read.offset != offset) {
                    let buffer = AlignedBuffer::new_zeroed(DUPLICATE_RUN_PAGE_BYTES);
                    reads.push(BatchRead { file: Arc::clone(&self.file), offset, buffer, outcome: Ok(()) });
                }
            }
        }
        disk.read_batch(&mut reads);
        let mut records = Vec::new();
        let in_a_window = |record: &DuplicateRunRecord| windows.iter().any(|window| window.holds(record.position));
        for read in &reads {
            self.bytes_read += read.buffer.len() as u64;
            let number = read.offset / DUPLICATE_RUN_PAGE_BYTES as u64;
            if read.outcome.is_ok() && decode_duplicate_run_page(number, &read.buffer, &mut records).is_some() {
                out.extend(records.iter().filter(|record| in_a_window(record)).map(|record| record.extent));
            } else {
                self.damaged_pages += 1;
            }
        }
        out.extend(self.page.iter().filter(|record| in_a_window(record)).map(|record| record.extent));
        reads.len()
    }
}

/// Shortest run that is noted: a shorter one costs more to note than it saves.
const RUN_LEN_MIN: u32 = 8;

/// The duplicate-run log, and the cap on its length.
#[derive(Debug)]
pub(super) struct DuplicateRuns {
    log: DuplicateRunLog,
    /// Which of the two files it is in, 0 or 1.
    file_number: u8,
    bytes_per_chunk: u32,
    pages_min: u64,
    noted: u64,
}

impl DuplicateRuns {
    /// The log may have `bytes_per_chunk` bytes for each record of the arrival log, and `pages_min` pages in any case.
    pub(super) fn new(log: DuplicateRunLog, file_number: u8, bytes_per_chunk: u32, pages_min: u64) -> Self {
        Self { log, file_number, bytes_per_chunk, pages_min, noted: 0 }
    }

    /// Returns the name of one of the two files.
    pub(super) fn file_name(number: u8) -> String {
        format!("repeats.{number}")
    }

    pub(super) fn log(&self) -> &DuplicateRunLog {
        &self.log
    }

    pub(super) fn file_number(&self) -> u8 {
        self.file_number
    }

    /// Returns how many runs were noted since the opening.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// Reads the runs of some windows; see [`DuplicateRunLog::read`].
    pub(super) fn read(&mut self, disk: &dyn Disk, windows: &[LogWindow]) -> (Vec<LogWindow>, usize) {
        let mut found = Vec::new();
        let pages = self.log.read(disk, windows, &mut found);
        (found, pages)
    }

    /// Notes a run that a stream repeated `ahead` chunks after `next`, the position that the arrival log has reached.
    pub(super) fn note(&mut self, run: &DuplicateRun, next: Position, ahead: u64) -> Result<()> {
        // A session that records nothing makes no checkpoint that would compact the log.
        let is_full = 4 * self.pages_max(next) < self.log.pages();
        if run.len < RUN_LEN_MIN || is_full {
            return Ok(());
        }
        self.noted += 1;
        let position = Position(next.0.saturating_add(ahead));
        self.log.append(DuplicateRunRecord { position, extent: LogWindow { start: run.start, records: run.len } })
    }

    /// Returns true if the log is so long that a checkpoint is worth its cost.
    pub(super) fn is_compaction_due(&self, next: Position) -> bool {
        2 * self.pages_max(next) < self.log.pages()
    }

    /// Makes the log durable; compacts it, into the file that the last checkpoint does not name, if it is too long.
    pub(super) fn save(&mut self, directory: &IndexDirectory, next: Position) -> Result<()> {
        let pages_max = self.pages_max(next);
        if pages_max < self.log.pages() {
            let other = 1 - self.file_number;
            self.log.compact(directory.open_or_create(&Self::file_name(other))?, pages_max / 2)?;
            self.file_number = other;
        }
        self.log.sync()
    }

    fn pages_max(&self, next: Position) -> u64 {
        let bytes = next.0.saturating_mul(u64::from(self.bytes_per_chunk));
        (bytes / DUPLICATE_RUN_PAGE_BYTES as u64).max(self.pages_min)
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::mem_disk::MemDisk;

    fn window(start: u64, records: u32) -> LogWindow {
        LogWindow { start: Position(start), records }
    }

    #[test]
    fn runs_repeated_near_a_position_are_found_and_the_oldest_go_first() {
        let disk = MemDisk::default();
        let mut log = DuplicateRunLog::open(disk.create(Path::new("a")).unwrap(), 0).unwrap();
        let mut random = SplitMix64::new(3);
        let mut model = Vec::new();
        let mut position = 0;
        for number in 0..3_000 {
            position += random.below(40);
            let record = DuplicateRunRecord { position: Position(position), extent: window(number * 10, 7) };
            log.append(record).unwrap();
            model.push(record);
        }
        let check = |log: &mut DuplicateRunLog, model: &[DuplicateRunRecord], start: u64| {
            let mut found = Vec::new();
            log.read(&disk, &[window(start, 500)], &mut found);
            let inside = |record: &&DuplicateRunRecord| (start..start + 500).contains(&record.position.0);
            assert_eq!(found, model.iter().filter(inside).map(|record| record.extent).collect::<Vec<_>>());
        };
        for start in (0..position).step_by(997) {
            check(&mut log, &model, start);
        }
        log.sync().unwrap();
        let pages = log.pages();
        assert_eq!(pages, 3_000_u64.div_ceil(DUPLICATE_RUN_PAGE_RECORDS as u64));
        let mut log =
            DuplicateRunLog::open(disk.open(Path::new("a"), crate::io::Access::ReadWrite).unwrap(), pages).unwrap();
        check(&mut log, &model, position / 2);
        log.compact(disk.create(Path::new("b")).unwrap(), 5).unwrap();
        assert_eq!(log.compactions(), 1);
        let kept = &model[10 * DUPLICATE_RUN_PAGE_RECORDS..];
        check(&mut log, kept, kept[0].position.0);
        check(&mut log, kept, 0);
        log.sync().unwrap();
        assert!(log.pages() <= 6);
        disk.damage("b", |bytes| bytes[DUPLICATE_RUN_PAGE_BYTES + 40] ^= 1);
        let mut log =
            DuplicateRunLog::open(disk.open(Path::new("b"), crate::io::Access::ReadWrite).unwrap(), 5).unwrap();
        let mut found = Vec::new();
        log.read(&disk, &[window(kept[0].position.0, 100)], &mut found);
        assert!(!found.is_empty());
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        let records = [DuplicateRunRecord { position: Position(3), extent: window(9, 2) }];
        let page = encode_duplicate_run_page(7, &records);
        let mut out = Vec::new();
        for bit in 32..FRAME_HEADER_BYTES * 8 + 64 {
            let mut bytes = page.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let checksum = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            decode_duplicate_run_page(7, &bytes, &mut out);
            assert!(out.len() <= DUPLICATE_RUN_PAGE_RECORDS);
        }
        assert!(decode_duplicate_run_page(7, &page, &mut out).is_some());
        assert_eq!(out, records);
        assert!(decode_duplicate_run_page(7, &page[..100], &mut out).is_none());
    }
}
