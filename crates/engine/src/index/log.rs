//! The arrival log: chunks in the order they were recorded, the source of prefetching.
//!
//! A duplicate is seldom alone: what followed a chunk when it was first stored mostly follows it again. So a hit reads
//! the records around it and answers for its neighbors without the table (Ma et al., section 3).
//!
//! Pages of 4 KiB hold whole records; a record's position is `102 * page + slot`. Pages are written once: after a
//! checkpoint the next record starts a new page, so that a torn write never touches what the checkpoint relies on.
//! A page is framed as [`crate::index::frame`] says, its number exclusive or the number of the index's life; a record has
//! 40 bytes: fingerprint 32, container ordinal 4, length 4.
#![deny(clippy::indexing_slicing)]

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::frame::{FRAME_BYTES, FRAME_HEADER_BYTES, decode_frame, encode_frame};
use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::{Ordinal, Position};
use crate::types::{Chunk, FINGERPRINT_LEN, Fingerprint};

/// Bytes of a page.
pub const LOG_PAGE_BYTES: usize = FRAME_BYTES;

/// Bytes of a record.
pub const LOG_RECORD_BYTES: usize = FINGERPRINT_LEN + 8;

/// Records of a page.
pub const LOG_PAGE_RECORDS: usize = (LOG_PAGE_BYTES - FRAME_HEADER_BYTES) / LOG_RECORD_BYTES;

/// Pages that are gathered before they are written: 512 KiB, about 25 containers of 4 MiB at 8 KiB a chunk. As many again
/// are in memory while they are being written.
pub const TAIL_PAGES: usize = 128;

/// Buffers that are kept for the next windows: as many as are read together where windows are long.
const SPARE_BUFFERS_MAX: usize = 8;

/// One chunk that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRecord {
    /// The chunk.
    pub chunk: Chunk,
    /// Its container.
    pub ordinal: Ordinal,
}

/// A stretch of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogWindow {
    /// First record.
    pub start: Position,
    /// Number of records.
    pub records: u32,
}

impl LogWindow {
    /// Returns how many pages it lies on.
    pub fn pages(&self) -> usize {
        let on_first = usize::try_from(self.start.0 % LOG_PAGE_RECORDS as u64).expect("below the records of a page");
        (on_first + self.records as usize).div_ceil(LOG_PAGE_RECORDS)
    }

    /// Says whether a position lies in it.
    pub fn holds(&self, position: Position) -> bool {
        position.0.checked_sub(self.start.0).is_some_and(|behind| behind < u64::from(self.records))
    }
}

/// Consecutive records of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogExtent {
    /// Position of the first.
    pub start: Position,
    /// The records.
    pub records: Vec<LogRecord>,
}

impl LogExtent {
    /// Returns the position after the last record.
    pub fn end(&self) -> Position {
        Position(self.start.0 + self.records.len() as u64)
    }
}

/// What the log did, since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogCounters {
    /// Reads of windows that were not in memory as a whole.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Pages that were bad or unreadable; their records are taken as absent.
    pub damaged_pages: u64,
}

/// The log.
#[derive(Debug)]
pub struct ArrivalLog {
    file: Arc<dyn DiskFile>,
    /// Drawn when the index was begun: no page of an earlier one that had the file is believed.
    epoch: u64,
    /// Pages in the file that belong to the log.
    written_pages: u64,
    /// Whole pages that are not written yet, and how many bytes of the buffer they take. Aligned, as everything that is
    /// read and written past the page cache.
    tail: AlignedBuffer,
    tail_len: usize,
    /// Whole pages before these that are being written, and how many bytes they take.
    leaving: Option<(Arc<AlignedBuffer>, usize)>,
    /// Memory for the next.
    spare_tail: Option<AlignedBuffer>,
    /// Records of the page that is being filled.
    page: Vec<LogRecord>,
    counters: LogCounters,
    spare_buffers: Vec<AlignedBuffer>,
}

/// Pages of the log that are to be written.
#[derive(Debug)]
pub struct LogWrite {
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: Arc<AlignedBuffer>,
    len: usize,
}

impl LogWrite {
    /// Writes them.
    pub fn run(self) -> Result<()> {
        self.file.write_at(self.offset, self.buffer.get(..self.len).unwrap_or_default())
    }
}

/// Encodes a page of at most [`LOG_PAGE_RECORDS`] records.
pub fn encode_log_page(number: u64, records: &[LogRecord]) -> Vec<u8> {
    encode_frame(number, records.len(), |page| {
        for record in records {
            page.extend_from_slice(&record.chunk.fingerprint.0);
            page.extend_from_slice(&record.ordinal.0.to_le_bytes());
            page.extend_from_slice(&record.chunk.len.to_le_bytes());
        }
    })
}

/// Decodes the page with that number, replacing `out`; `None` if it is damaged or another one.
pub fn decode_log_page(number: u64, bytes: &[u8], out: &mut Vec<LogRecord>) -> Option<()> {
    out.clear();
    let (count, mut fields) = decode_frame(number, LOG_RECORD_BYTES, bytes)?;
    for _ in 0..count {
        let fingerprint = Fingerprint(fields.array()?);
        let ordinal = Ordinal(fields.u32()?);
        out.push(LogRecord { chunk: Chunk { fingerprint, len: fields.u32()? }, ordinal });
    }
    Some(())
}

impl ArrivalLog {
    /// Opens the log at the length that a checkpoint gave, 0 for a new one; what follows is cut off.
    pub fn open(file: Arc<dyn DiskFile>, epoch: u64, pages: u64) -> Result<Self> {
        let bytes = pages.checked_mul(LOG_PAGE_BYTES as u64);
        let Some(bytes) = bytes.filter(|&bytes| file.len().is_ok_and(|len| bytes <= len)) else {
            return Err(Error::damaged("arrival log", "shorter than its checkpoint says"));
        };
        file.set_len(bytes)?;
        let page = Vec::with_capacity(LOG_PAGE_RECORDS);
        let tail = AlignedBuffer::new_zeroed(TAIL_PAGES * LOG_PAGE_BYTES);
        let counters = LogCounters::default();
        Ok(Self {
            file,
            epoch,
            written_pages: pages,
            tail,
            tail_len: 0,
            leaving: None,
            spare_tail: None,
            page,
            counters,
            spare_buffers: Vec::new(),
        })
    }

    /// Returns what was counted.
    pub fn counters(&self) -> LogCounters {
        self.counters
    }

    /// Returns how many pages the log has in its file.
    pub fn written_pages(&self) -> u64 {
        self.written_pages
    }

    /// Says whether a record can be appended before [`ArrivalLog::write_out`].
    pub fn has_space(&self) -> bool {
        self.tail_len < TAIL_PAGES * LOG_PAGE_BYTES
    }

    /// Returns the position that the next record gets.
    pub fn next_position(&self) -> Position {
        Position(self.page_number() * LOG_PAGE_RECORDS as u64 + self.page.len() as u64)
    }

    /// Returns the number of the first page of the tail.
    fn tail_page(&self) -> u64 {
        let leaving = self.leaving.as_ref().map_or(0, |(_, len)| len / LOG_PAGE_BYTES);
        self.written_pages + leaving as u64
    }

    fn page_number(&self) -> u64 {
        self.tail_page() + (self.tail_len / LOG_PAGE_BYTES) as u64
    }

    /// Appends a record, in memory; returns its position. There must be room.
    pub fn append(&mut self, record: LogRecord) -> Position {
        assert!(self.has_space(), "the log is written out before it is appended to");
        let position = self.next_position();
        self.page.push(record);
        if self.page.len() == LOG_PAGE_RECORDS {
            self.end_page();
        }
        position
    }

    fn end_page(&mut self) {
        let number = self.page_number();
        let bytes = encode_log_page(number ^ self.epoch, &self.page);
        let location = self.tail.get_mut(self.tail_len..self.tail_len + LOG_PAGE_BYTES);
        location.expect("a record is appended only if there is room").copy_from_slice(&bytes);
        self.tail_len += LOG_PAGE_BYTES;
        self.page.clear();
    }

    /// Starts to write the whole pages out; they can be read meanwhile. What is returned is to be run, once the ordinals
    /// in the pages are durable, and what it came to be given to [`ArrivalLog::finish_write`]: one at a time.
    pub fn start_write(&mut self) -> LogWrite {
        assert!(self.leaving.is_none(), "pages of the log are written in their order");
        let fresh = self.spare_tail.take().unwrap_or_else(|| AlignedBuffer::new_zeroed(TAIL_PAGES * LOG_PAGE_BYTES));
        let buffer = Arc::new(std::mem::replace(&mut self.tail, fresh));
        let len = std::mem::take(&mut self.tail_len);
        let (file, offset) = (Arc::clone(&self.file), self.written_pages * LOG_PAGE_BYTES as u64);
        self.leaving = Some((Arc::clone(&buffer), len));
        LogWrite { file, offset, buffer, len }
    }

    /// Takes note of how a write ended. After an error the log must not be written any more.
    pub fn finish_write(&mut self, outcome: Result<()>) -> Result<()> {
        outcome?;
        if let Some((buffer, len)) = self.leaving.take() {
            self.counters.bytes_written += len as u64;
            self.written_pages += (len / LOG_PAGE_BYTES) as u64;
            self.spare_tail = Arc::into_inner(buffer);
        }
        Ok(())
    }

    /// Writes the whole pages out. The ordinals in them must be durable, and no write may go on.
    pub fn write_out(&mut self) -> Result<()> {
        assert!(self.leaving.is_none(), "pages of the log are written in their order");
        if self.tail_len != 0 {
            let bytes = self.tail.get(..self.tail_len).unwrap_or_default();
            self.file.write_at(self.written_pages * LOG_PAGE_BYTES as u64, bytes)?;
            self.counters.bytes_written += self.tail_len as u64;
            self.written_pages = self.page_number();
            self.tail_len = 0;
        }
        Ok(())
    }

    /// Writes everything out, the page that is being filled too, and makes it durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.has_space() {
            self.write_out()?;
        }
        if !self.page.is_empty() {
            self.end_page();
        }
        self.write_out()?;
        self.file.sync()
    }

    /// Reads windows, all together: what exists of them and can be read, each window in as many stretches as it has gaps.
    pub fn read(&mut self, disk: &dyn Disk, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        let read = self.start_read(windows);
        self.finish_read(read.run(disk))
    }

    /// Starts to read windows, as [`ArrivalLog::read`] does at once. What is returned may be run while the log goes on to
    /// serve; what it came to is to be given to [`ArrivalLog::finish_read`].
    pub fn start_read(&mut self, windows: Vec<LogWindow>) -> LogRead {
        let mut reads: Vec<BatchRead> = Vec::new();
        let mut parts = Vec::with_capacity(windows.len());
        for window in windows {
            let first = window.start.0 / LOG_PAGE_RECORDS as u64;
            let end = window.start.0.saturating_add(u64::from(window.records)).div_ceil(LOG_PAGE_RECORDS as u64);
            let on_disk = end.min(self.written_pages).saturating_sub(first);
            let mut read = None;
            if let Some(pages) = usize::try_from(on_disk).ok().filter(|&pages| pages != 0) {
                let mut buffer = self.spare_buffers.pop().unwrap_or_default();
                buffer.resize(pages * LOG_PAGE_BYTES);
                let offset = first * LOG_PAGE_BYTES as u64;
                read = Some(reads.len());
                reads.push(BatchRead { file: Arc::clone(&self.file), offset, buffer, outcome: Ok(()) });
            }
            parts.push(WindowPart { window, first, read, in_memory: self.in_memory(&window, first, end) });
        }
        LogRead { epoch: self.epoch, reads, parts }
    }

    /// Returns what of a window, which has the pages from `first` to before `end`, is not in the file yet.
    fn in_memory(&self, window: &LogWindow, first: u64, end: u64) -> Vec<LogExtent> {
        let mut out = Vec::new();
        if end <= self.written_pages {
            return out;
        }
        let mut page = Vec::with_capacity(LOG_PAGE_RECORDS);
        let leaving = self.leaving.as_ref().and_then(|(buffer, len)| buffer.get(..*len)).unwrap_or_default();
        let tail = self.tail.get(..self.tail_len).unwrap_or_default();
        let gathered = leaving.chunks_exact(LOG_PAGE_BYTES).chain(tail.chunks_exact(LOG_PAGE_BYTES));
        for (number, bytes) in (self.written_pages..end).zip(gathered).filter(|(number, _)| first <= *number) {
            decode_log_page(number ^ self.epoch, bytes, &mut page).expect("the page was encoded with this number");
            push_part(window, number, &page, 0, &mut out);
        }
        push_part(window, self.page_number(), &self.page, 0, &mut out);
        out
    }

    /// Takes what a read came to.
    pub fn finish_read(&mut self, done: LogReadDone) -> Vec<LogExtent> {
        self.counters.reads += done.buffers.len() as u64;
        self.counters.bytes_read += done.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        self.counters.damaged_pages += done.damaged_pages;
        self.spare_buffers.extend(done.buffers);
        self.spare_buffers.truncate(SPARE_BUFFERS_MAX);
        done.extents
    }
}

/// A window that is being read.
#[derive(Debug)]
struct WindowPart {
    window: LogWindow,
    /// Its first page.
    first: u64,
    /// Which read has its pages, if any are in the file.
    read: Option<usize>,
    /// What is not in the file.
    in_memory: Vec<LogExtent>,
}

/// Windows of the log that are to be read.
#[derive(Debug)]
pub struct LogRead {
    epoch: u64,
    reads: Vec<BatchRead>,
    parts: Vec<WindowPart>,
}

/// What reading windows came to: to be handed to [`ArrivalLog::finish_read`].
#[derive(Debug)]
pub struct LogReadDone {
    extents: Vec<LogExtent>,
    damaged_pages: u64,
    buffers: Vec<AlignedBuffer>,
}

impl LogRead {
    /// Reads. Records of a page that is bad or unreadable are absent.
    pub fn run(self, disk: &dyn Disk) -> LogReadDone {
        let Self { epoch, mut reads, parts } = self;
        disk.read_batch(&mut reads);
        let (mut extents, mut damaged_pages) = (Vec::with_capacity(parts.len()), 0);
        let mut page = Vec::with_capacity(LOG_PAGE_RECORDS);
        for WindowPart { window, first, read, in_memory } in parts {
            let from = extents.len();
            let read = read.and_then(|index| reads.get(index));
            let pages = read.map(|read| (&read.buffer[..], read.outcome.is_ok())).unwrap_or_default();
            for (number, bytes) in (first..).zip(pages.0.chunks_exact(LOG_PAGE_BYTES)) {
                if !pages.1 || decode_log_page(number ^ epoch, bytes, &mut page).is_none() {
                    damaged_pages += 1;
                    page.clear();
                }
                push_part(&window, number, &page, from, &mut extents);
            }
            for extent in in_memory {
                match extents.get_mut(from..).and_then(<[_]>::last_mut) {
                    Some(last) if last.end() == extent.start => last.records.extend(extent.records),
                    _ => extents.push(extent),
                }
            }
        }
        LogReadDone { extents, damaged_pages, buffers: reads.into_iter().map(|read| read.buffer).collect() }
    }
}

/// Appends those records of a page that lie in the window, to the last stretch from `from` on if they follow it.
fn push_part(window: &LogWindow, number: u64, page: &[LogRecord], from: usize, out: &mut Vec<LogExtent>) {
    let page_start = number * LOG_PAGE_RECORDS as u64;
    let end = window.start.0.saturating_add(u64::from(window.records));
    let inside =
        |position: u64| usize::try_from(position.saturating_sub(page_start)).unwrap_or(usize::MAX).min(page.len());
    let Some(part) = page.get(inside(window.start.0)..inside(end)).filter(|part| !part.is_empty()) else { return };
    let start = Position(page_start.max(window.start.0));
    match out.get_mut(from..).and_then(<[_]>::last_mut) {
        Some(last) if last.end() == start => last.records.extend_from_slice(part),
        _ => {
            let mut records = Vec::with_capacity((window.records as usize).min(LOG_PAGE_RECORDS * TAIL_PAGES));
            records.extend_from_slice(part);
            out.push(LogExtent { start, records });
        }
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::mem_disk::{MemDisk, fingerprint};

    fn record(number: u64) -> LogRecord {
        LogRecord { chunk: Chunk { fingerprint: fingerprint(number), len: 77 }, ordinal: Ordinal(9) }
    }

    #[test]
    fn windows_show_what_was_appended_wherever_it_lies() {
        let disk = MemDisk::default();
        let mut log = ArrivalLog::open(disk.create(Path::new("log")).unwrap(), 3 << 50, 0).unwrap();
        let mut random = SplitMix64::new(8);
        let mut model = BTreeMap::new();
        let mut next = 0;
        for _ in 0..200 {
            for _ in 0..random.below(300) {
                if !log.has_space() {
                    log.write_out().unwrap();
                }
                model.insert(log.append(record(next)), record(next));
                next += 1;
            }
            if random.below(4) == 0 {
                log.sync().unwrap();
            }
            let windows: Vec<_> = (0..3)
                .map(|_| LogWindow {
                    start: Position(random.below(next + 500)),
                    records: u32::try_from(random.below(700)).unwrap(),
                })
                .collect();
            for window in &windows {
                let out = log.read(&disk, vec![*window]);
                let end = Position(window.start.0 + u64::from(window.records));
                let expected: Vec<_> =
                    model.range(window.start..end).map(|(position, record)| (*position, *record)).collect();
                let found = out.iter().flat_map(|LogExtent { start, records }| {
                    (start.0..).map(Position).zip(records.iter().copied()).collect::<Vec<_>>()
                });
                assert_eq!(found.collect::<Vec<_>>(), expected);
            }
        }
        assert!(log.counters().reads > 100);
        assert_eq!(log.counters().damaged_pages, 0);
    }

    #[test]
    fn damaged_pages_are_left_out_and_positions_that_do_not_exist_give_nothing() {
        let disk = MemDisk::default();
        let mut log = ArrivalLog::open(disk.create(Path::new("log")).unwrap(), 3 << 50, 0).unwrap();
        for number in 0..400 {
            log.append(record(number));
        }
        log.sync().unwrap();
        disk.damage("log", |bytes| bytes[LOG_PAGE_BYTES + 90] ^= 1);
        let start = Position(u64::MAX - 3);
        let out =
            log.read(&disk, vec![LogWindow { start: Position(0), records: 400 }, LogWindow { start, records: 9 }]);
        let lens: Vec<_> = out.iter().map(|extent| (extent.start.0, extent.records.len())).collect();
        assert_eq!(lens, [(0, LOG_PAGE_RECORDS), (2 * LOG_PAGE_RECORDS as u64, 400 - 2 * LOG_PAGE_RECORDS)]);
        assert_eq!(log.counters().damaged_pages, 1);
        let file = disk.open(Path::new("log"), crate::io::Access::ReadWrite).unwrap();
        let mut other = ArrivalLog::open(file, 5 << 50, 4).unwrap();
        let out = other.read(&disk, vec![LogWindow { start: Position(0), records: 400 }]);
        assert_eq!(out, [], "pages of another life are not believed");
        assert!(
            ArrivalLog::open(disk.open(Path::new("log"), crate::io::Access::ReadWrite).unwrap(), 3 << 50, 5).is_err()
        );
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        let page = encode_log_page(7, &[record(1), record(2)]);
        let mut out = Vec::new();
        let mut decoded = 0;
        for bit in 32..FRAME_HEADER_BYTES * 8 + 64 {
            let mut bytes = page.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let checksum = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            decoded += usize::from(decode_log_page(7, &bytes, &mut out).is_some());
            assert!(out.len() <= LOG_PAGE_RECORDS);
        }
        assert!(0 < decoded);
        assert!(decode_log_page(7, &page[..100], &mut out).is_none());
    }
}
