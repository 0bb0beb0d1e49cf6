//! A log of chunks, the source of prefetching. The arrival log has them in the order in which they were recorded. The stream log
//! is a log of the same form; see `exact/stream_log.rs`.
//!
//! A duplicate is seldom alone: the chunks that followed it when it was first stored mostly follow it again. A hit therefore
//! reads the records around it, which resolve its neighbors without the table (Ma et al., section 3).
//!
//! Pages of 4 KiB hold whole records; a record's position is `102 * page + slot`. Each page is written once: after a
//! checkpoint the next record starts a new page, so that a torn write never touches pages of the checkpoint. A log may lose its
//! oldest pages ([`ArrivalLog::compact`]). Positions stay as they are, and those of lost pages lead to nothing.
//!
//! A page is a [`crate::identify::frame`], its number combined by exclusive or with the epoch of the index. A record has 40
//! bytes: fingerprint 32, container ordinal 4, length 4.
#![deny(clippy::indexing_slicing)]

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::identify::locality::frame::{
    FRAME_BYTES, FrameRecord, LogCounters, decode_frame, encode_frame, truncate_log,
};
use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::{Fields, Ordinal, Position};
use crate::types::{Chunk, FINGERPRINT_LEN, Fingerprint};

/// Records of a page.
pub(in crate::identify) const LOG_PAGE_RECORDS: usize = LogRecord::PER_FRAME;

/// Pages in memory before they are written: 512 KiB, about 25 containers of 4 MiB at 8 KiB a chunk. As many again are in
/// memory while they are being written.
pub(in crate::identify) const TAIL_PAGES: usize = 128;

/// Most records of a window around a hit, unless it is set.
pub(in crate::identify) const WINDOW_RECORDS: u32 = 16_384;

/// Pages that one call of a compaction copies.
const COPIED_PAGES: usize = 32;
/// Memory of a compaction.
pub(in crate::identify) const COPY_BYTES: usize = COPIED_PAGES * FRAME_BYTES;

/// Buffers that are kept for the next windows: as many as one batch of long windows needs.
const FREE_BUFFERS_MAX: usize = 8;

/// A recorded chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct LogRecord {
    /// The chunk.
    pub(crate) chunk: Chunk,
    /// Its container.
    pub(crate) ordinal: Ordinal,
}

impl FrameRecord for LogRecord {
    const BYTES: usize = FINGERPRINT_LEN + 8;

    fn encode(&self, page: &mut Vec<u8>) {
        page.extend_from_slice(&self.chunk.fingerprint.0);
        page.extend_from_slice(&self.ordinal.0.to_le_bytes());
        page.extend_from_slice(&self.chunk.len.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let (fingerprint, ordinal) = (Fingerprint(fields.array()?), Ordinal(fields.u32()?));
        Some(Self { chunk: Chunk { fingerprint, len: fields.u32()? }, ordinal })
    }
}

/// A range of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct LogWindow {
    /// First record.
    pub(crate) start: Position,
    /// Number of records.
    pub(crate) records: u32,
}

impl LogWindow {
    /// Returns the number of its pages.
    pub(in crate::identify) fn pages(&self) -> usize {
        let on_first =
            usize::try_from(self.start.number() % LOG_PAGE_RECORDS as u64).expect("below the records of a page");
        (on_first + self.records as usize).div_ceil(LOG_PAGE_RECORDS)
    }

    /// Returns the position after its last record.
    pub(in crate::identify) fn end(&self) -> u64 {
        self.start.0.saturating_add(u64::from(self.records))
    }

    /// Returns true if it contains a position.
    pub(in crate::identify) fn holds(&self, position: Position) -> bool {
        position.0.checked_sub(self.start.0).is_some_and(|behind| behind < u64::from(self.records))
    }
}

/// Consecutive records of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::identify) struct LogExtent {
    /// Position of the first record.
    pub(crate) start: Position,
    pub(crate) records: Vec<LogRecord>,
}

impl LogExtent {
    /// Returns the position after the last record.
    pub(in crate::identify) fn end(&self) -> Position {
        Position(self.start.0 + self.records.len() as u64)
    }
}

/// The log.
#[derive(Debug)]
pub(in crate::identify) struct ArrivalLog {
    file: Arc<dyn DiskFile>,
    /// Drawn when the index was created: invalidates pages of an earlier index in the file.
    epoch: u64,
    /// Pages that the log has lost: the first one of its file has this number.
    pub(crate) lost_pages: u64,
    /// Pages of the log in its file, and those that it has lost.
    pub(crate) written_pages: u64,
    /// Whole pages that are not written yet. Aligned, because the file bypasses the page cache.
    tail: AlignedBuffer,
    /// Bytes of those pages.
    tail_len: usize,
    /// The pages before the tail, which are being written, and their bytes.
    writing: Option<(Arc<AlignedBuffer>, usize)>,
    /// Memory for the next tail.
    free_tail: Option<AlignedBuffer>,
    /// Records of the page that is being filled.
    page: Vec<LogRecord>,
    pub(crate) counters: LogCounters,
    free_buffers: Vec<AlignedBuffer>,
}

impl ArrivalLog {
    /// Opens the log with the pages that its checkpoint gives, none for a new one, and truncates the rest. Its pages are written
    /// in batches of `tail_pages`.
    pub(crate) fn open(file: Arc<dyn DiskFile>, epoch: u64, pages: Range<u64>, tail_pages: usize) -> Result<Self> {
        truncate_log(&*file, pages.end.saturating_sub(pages.start), "log of chunks")?;
        Ok(Self {
            file,
            epoch,
            lost_pages: pages.start,
            written_pages: pages.end,
            tail: AlignedBuffer::new_zeroed(tail_pages.clamp(1, TAIL_PAGES) * FRAME_BYTES),
            tail_len: 0,
            writing: None,
            free_tail: None,
            page: Vec::with_capacity(LOG_PAGE_RECORDS),
            counters: LogCounters::default(),
            free_buffers: Vec::new(),
        })
    }

    /// Returns true if a record can be appended before the next write.
    pub(crate) fn has_space(&self) -> bool {
        self.tail_len < self.tail.len()
    }

    /// Returns the position of the next record.
    pub(in crate::identify) fn next_position(&self) -> Position {
        Position(self.page_number() * LOG_PAGE_RECORDS as u64 + self.page.len() as u64)
    }

    /// Returns the position of the oldest record.
    pub(in crate::identify) fn first_position(&self) -> Position {
        Position(self.lost_pages * LOG_PAGE_RECORDS as u64)
    }

    fn offset_of(&self, page: u64) -> u64 {
        (page - self.lost_pages) * FRAME_BYTES as u64
    }

    /// Returns the number of the page that is being filled.
    fn page_number(&self) -> u64 {
        let writing = self.writing.as_ref().map_or(0, |(_, len)| *len);
        self.written_pages + ((writing + self.tail_len) / FRAME_BYTES) as u64
    }

    /// Appends a record in memory and returns its position. The log must have space.
    pub(in crate::identify) fn append(&mut self, record: LogRecord) -> Position {
        assert!(self.has_space(), "the log is written before a record is appended");
        let position = self.next_position();
        self.page.push(record);
        if self.page.len() == LOG_PAGE_RECORDS {
            self.end_page();
        }
        position
    }

    fn end_page(&mut self) {
        let bytes = encode_frame(self.page_number() ^ self.epoch, &self.page);
        let page = self.tail.get_mut(self.tail_len..self.tail_len + FRAME_BYTES);
        page.expect("records are appended only if the log has space").copy_from_slice(&bytes);
        self.tail_len += FRAME_BYTES;
        self.page.clear();
    }

    /// Returns a write of the whole pages, which can be read meanwhile. The caller runs it once the ordinals in the pages are
    /// durable, and hands the outcome to [`ArrivalLog::finish_write`]. One write at a time.
    pub(in crate::identify) fn start_write(&mut self) -> impl FnOnce() -> Result<()> + Send + use<> {
        assert!(self.writing.is_none(), "pages of the log are written in order");
        let fresh = self.free_tail.take().unwrap_or_else(|| AlignedBuffer::new_zeroed(self.tail.len()));
        let buffer = Arc::new(std::mem::replace(&mut self.tail, fresh));
        let len = std::mem::take(&mut self.tail_len);
        let (file, offset) = (Arc::clone(&self.file), self.offset_of(self.written_pages));
        self.writing = Some((Arc::clone(&buffer), len));
        move || file.write_at(offset, buffer.get(..len).unwrap_or_default())
    }

    /// Ends a write. After an error the log must not be written any more.
    pub(in crate::identify) fn finish_write(&mut self, outcome: Result<()>) -> Result<()> {
        outcome?;
        if let Some((buffer, len)) = self.writing.take() {
            self.counters.bytes_written += len as u64;
            self.written_pages += (len / FRAME_BYTES) as u64;
            self.free_tail = Arc::into_inner(buffer);
        }
        Ok(())
    }

    /// Writes the whole pages in the foreground. The ordinals in them must be durable, and no write may run.
    pub(in crate::identify) fn write_out(&mut self) -> Result<()> {
        let outcome = self.start_write()();
        self.finish_write(outcome)
    }

    /// Writes everything, the page that is being filled included, and makes it durable.
    pub(in crate::identify) fn sync(&mut self) -> Result<()> {
        if !self.has_space() {
            self.write_out()?;
        }
        if !self.page.is_empty() {
            self.end_page();
        }
        if self.tail_len != 0 {
            self.write_out()?;
        }
        self.file.sync()
    }

    /// Continues in another file with the pages of some ascending ranges of records. The old file stays as it is. Other pages from the
    /// first range on are holes of the file. The log must be synced, and a page that cannot be read is lost.
    pub(in crate::identify) fn compact(&mut self, file: Arc<dyn DiskFile>, kept: &[Range<u64>]) -> Result<()> {
        assert!(
            self.writing.is_none() && self.tail_len == 0 && self.page.is_empty(),
            "a log is compacted after a sync"
        );
        file.set_len(0)?;
        let of_page = |record: u64| record / LOG_PAGE_RECORDS as u64;
        let lost = kept.first().map_or(self.written_pages, |first| of_page(first.start)).max(self.lost_pages);
        let mut next = lost;
        let mut buffer = AlignedBuffer::new_zeroed(COPY_BYTES);
        for range in kept {
            let end = range.end.div_ceil(LOG_PAGE_RECORDS as u64).min(self.written_pages);
            next = next.max(of_page(range.start));
            while next < end {
                let count = usize::try_from(end - next).unwrap_or(usize::MAX).min(COPIED_PAGES);
                buffer.resize(count * FRAME_BYTES);
                if self.file.read_at(self.offset_of(next), &mut buffer).is_err() {
                    self.counters.damaged_pages += count as u64;
                    // No frame has these bytes.
                    buffer.fill(0);
                }
                file.write_at((next - lost) * FRAME_BYTES as u64, &buffer)?;
                self.counters.bytes_read += buffer.len() as u64;
                self.counters.bytes_written += buffer.len() as u64;
                next += count as u64;
            }
        }
        file.set_len((self.written_pages - lost) * FRAME_BYTES as u64)?;
        (self.file, self.lost_pages) = (file, lost);
        self.file.sync()
    }

    /// Reads windows in one batch: their existing and readable records, one extent for each range without a gap.
    pub(in crate::identify) fn read(&mut self, disk: &dyn Disk, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        let read = self.start_read(windows);
        self.finish_read(read(disk))
    }

    /// Returns a read of windows, during which the log can be used. The caller runs it and hands its result to
    /// [`ArrivalLog::finish_read`].
    pub(in crate::identify) fn start_read(
        &mut self,
        windows: Vec<LogWindow>,
    ) -> impl FnOnce(&dyn Disk) -> LogReadDone + Send + use<> {
        let mut reads: Vec<BatchRead> = Vec::new();
        let mut parts = Vec::with_capacity(windows.len());
        for window in windows {
            let first = (window.start.0 / LOG_PAGE_RECORDS as u64).max(self.lost_pages);
            let end = window.end().div_ceil(LOG_PAGE_RECORDS as u64);
            let on_disk = end.min(self.written_pages).saturating_sub(first);
            let mut read = None;
            if let Some(pages) = usize::try_from(on_disk).ok().filter(|&pages| pages != 0) {
                let mut buffer = self.free_buffers.pop().unwrap_or_default();
                buffer.resize(pages * FRAME_BYTES);
                let offset = self.offset_of(first);
                read = Some(reads.len());
                reads.push(BatchRead { file: Arc::clone(&self.file), offset, buffer, outcome: Ok(()) });
            }
            parts.push(WindowPart { window, first, read, in_memory: self.in_memory(&window, first, end) });
        }
        let epoch = self.epoch;
        move |disk| read_parts(disk, epoch, reads, parts)
    }

    /// Returns the records of a window, with the pages from `first` to before `end`, that are not in the file yet.
    fn in_memory(&self, window: &LogWindow, first: u64, end: u64) -> Vec<LogExtent> {
        let mut out = Vec::new();
        if end <= self.written_pages {
            return out;
        }
        let mut page = Vec::with_capacity(LOG_PAGE_RECORDS);
        let writing = self.writing.as_ref().and_then(|(buffer, len)| buffer.get(..*len)).unwrap_or_default();
        let tail = self.tail.get(..self.tail_len).unwrap_or_default();
        let pages = writing.chunks_exact(FRAME_BYTES).chain(tail.chunks_exact(FRAME_BYTES));
        for (number, bytes) in (self.written_pages..end).zip(pages).filter(|(number, _)| first <= *number) {
            decode_frame(number ^ self.epoch, bytes, &mut page).expect("the page was encoded with this number");
            push_page(window, number, &page, 0, &mut out);
        }
        push_page(window, self.page_number(), &self.page, 0, &mut out);
        out
    }

    /// Ends a read; returns its records.
    pub(in crate::identify) fn finish_read(&mut self, done: LogReadDone) -> Vec<LogExtent> {
        self.counters.reads += done.buffers.len() as u64;
        self.counters.bytes_read += done.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        self.counters.damaged_pages += done.damaged_pages;
        self.free_buffers.extend(done.buffers);
        self.free_buffers.truncate(FREE_BUFFERS_MAX);
        done.extents
    }
}

/// A window that is being read.
#[derive(Debug)]
struct WindowPart {
    window: LogWindow,
    /// Its first page.
    first: u64,
    /// The read of its pages, if any are in the file.
    read: Option<usize>,
    /// Its records that are not in the file.
    in_memory: Vec<LogExtent>,
}

/// The result of a read, for [`ArrivalLog::finish_read`].
#[derive(Debug)]
pub(in crate::identify) struct LogReadDone {
    extents: Vec<LogExtent>,
    damaged_pages: u64,
    buffers: Vec<AlignedBuffer>,
}

/// Reads windows. Records of a bad or unreadable page are absent.
fn read_parts(disk: &dyn Disk, epoch: u64, mut reads: Vec<BatchRead>, parts: Vec<WindowPart>) -> LogReadDone {
    disk.read_batch(&mut reads);
    let (mut extents, mut damaged_pages) = (Vec::with_capacity(parts.len()), 0);
    let mut page = Vec::with_capacity(LOG_PAGE_RECORDS);
    for WindowPart { window, first, read, in_memory } in parts {
        let from = extents.len();
        let read = read.and_then(|index| reads.get(index));
        let (bytes, is_read) = read.map(|read| (&read.buffer[..], read.outcome.is_ok())).unwrap_or_default();
        for (number, bytes) in (first..).zip(bytes.chunks_exact(FRAME_BYTES)) {
            if !is_read || decode_frame(number ^ epoch, bytes, &mut page).is_none() {
                damaged_pages += 1;
                page.clear();
            }
            push_page(&window, number, &page, from, &mut extents);
        }
        for extent in in_memory {
            push(extent.start, &extent.records, &window, from, &mut extents);
        }
    }
    LogReadDone { extents, damaged_pages, buffers: reads.into_iter().map(|read| read.buffer).collect() }
}

/// Appends those records of a page that lie in the window; see [`push`].
fn push_page(window: &LogWindow, number: u64, page: &[LogRecord], from: usize, out: &mut Vec<LogExtent>) {
    let page_start = number * LOG_PAGE_RECORDS as u64;
    let inside =
        |position: u64| usize::try_from(position.saturating_sub(page_start)).unwrap_or(usize::MAX).min(page.len());
    let records = page.get(inside(window.start.0)..inside(window.end())).unwrap_or_default();
    push(Position(page_start.max(window.start.0)), records, window, from, out);
}

/// Appends records of a window to its last extent if they follow it, or as another one. Extents of the window begin at
/// index `from`.
fn push(start: Position, records: &[LogRecord], window: &LogWindow, from: usize, out: &mut Vec<LogExtent>) {
    match out.get_mut(from..).and_then(<[_]>::last_mut) {
        _ if records.is_empty() => {}
        Some(last) if last.end() == start => last.records.extend_from_slice(records),
        _ => {
            let mut extent = Vec::with_capacity((window.records as usize).min(LOG_PAGE_RECORDS * TAIL_PAGES));
            extent.extend_from_slice(records);
            out.push(LogExtent { start, records: extent });
        }
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::identify::locality::frame::check_wrong_fields;
    use crate::random::SplitMix64;
    use crate::testing::fingerprint;
    use crate::testing::sim::SimDisk;

    fn record(number: u64) -> LogRecord {
        LogRecord { chunk: Chunk { fingerprint: fingerprint(number), len: 77 }, ordinal: Ordinal(9) }
    }

    #[test]
    fn windows_show_what_was_appended_wherever_it_lies() {
        let disk = SimDisk::default();
        let mut log = ArrivalLog::open(disk.create(Path::new("log")).unwrap(), 3 << 50, 0..0, TAIL_PAGES).unwrap();
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
        assert!(log.counters.reads > 100);
        assert_eq!(log.counters.damaged_pages, 0);
    }

    #[test]
    fn a_compacted_log_keeps_positions_and_old_ones_lead_to_nothing() {
        let disk = SimDisk::default();
        let create = |name: &str| disk.create(Path::new(name)).unwrap();
        let mut log = ArrivalLog::open(create("a"), 9, 0..0, TAIL_PAGES).unwrap();
        let page = LOG_PAGE_RECORDS as u64;
        let append = |log: &mut ArrivalLog, count: u64| {
            for _ in 0..count {
                if !log.has_space() {
                    log.write_out().unwrap();
                }
                let number = log.next_position().0;
                log.append(record(number));
            }
        };
        append(&mut log, 300 * page);
        log.sync().unwrap();
        disk.damage("a", |bytes| bytes[295 * FRAME_BYTES + 50] ^= 1);
        let kept = [100 * page + 7..130 * page, 135 * page..135 * page + 1, 290 * page..300 * page];
        log.compact(create("b"), &kept).unwrap();
        assert_eq!((log.first_position(), log.next_position()), (Position(100 * page), Position(300 * page)));
        append(&mut log, page + 7);
        let check = |log: &mut ArrivalLog, start: u64, records: u32, expected: std::ops::Range<u64>| {
            let out = log.read(&disk, vec![LogWindow { start: Position(start), records }]);
            let found: Vec<_> = out
                .iter()
                .flat_map(|extent| (extent.start.0..).zip(extent.records.iter().copied()).collect::<Vec<_>>())
                .collect();
            assert_eq!(found, expected.map(|number| (number, record(number))).collect::<Vec<_>>());
        };
        let check_all = |log: &mut ArrivalLog| {
            check(log, 0, 500, 0..0);
            check(log, 99 * page, 250, 100 * page..99 * page + 250);
            check(log, 120 * page + 5, 400, 120 * page + 5..120 * page + 405);
            // A hole is behind, of pages that are in no range.
            check(log, 129 * page, 3 * 102, 129 * page..130 * page);
            check(log, 133 * page, 4 * 102, 135 * page..136 * page);
            // The damaged page is lost, and no other.
            check(log, 295 * page - 3, 103, 295 * page - 3..295 * page);
            check(log, 299 * page, 300, 299 * page..301 * page + 7);
        };
        check_all(&mut log);
        log.sync().unwrap();
        let file = disk.open(Path::new("b"), crate::io::Access::ReadWrite).unwrap();
        check_all(&mut ArrivalLog::open(Arc::clone(&file), 9, 100..302, TAIL_PAGES).unwrap());
        assert!(ArrivalLog::open(file, 9, 100..303, TAIL_PAGES).is_err());
        // All pages may go.
        log.compact(create("c"), &[]).unwrap();
        assert_eq!(log.first_position(), Position(302 * page));
        append(&mut log, 3);
        check(&mut log, 300 * page, 1_000, 302 * page..302 * page + 3);
    }

    #[test]
    fn damaged_pages_are_left_out_and_positions_that_do_not_exist_give_nothing() {
        let disk = SimDisk::default();
        let mut log = ArrivalLog::open(disk.create(Path::new("log")).unwrap(), 3 << 50, 0..0, TAIL_PAGES).unwrap();
        for number in 0..400 {
            log.append(record(number));
        }
        log.sync().unwrap();
        disk.damage("log", |bytes| bytes[FRAME_BYTES + 90] ^= 1);
        let start = Position(u64::MAX - 3);
        let out =
            log.read(&disk, vec![LogWindow { start: Position(0), records: 400 }, LogWindow { start, records: 9 }]);
        let lens: Vec<_> = out.iter().map(|extent| (extent.start.0, extent.records.len())).collect();
        assert_eq!(lens, [(0, LOG_PAGE_RECORDS), (2 * LOG_PAGE_RECORDS as u64, 400 - 2 * LOG_PAGE_RECORDS)]);
        assert_eq!(log.counters.damaged_pages, 1);
        let file = disk.open(Path::new("log"), crate::io::Access::ReadWrite).unwrap();
        let mut other = ArrivalLog::open(file, 5 << 50, 0..4, TAIL_PAGES).unwrap();
        let out = other.read(&disk, vec![LogWindow { start: Position(0), records: 400 }]);
        assert_eq!(out, [], "pages of another epoch are invalid");
        assert!(
            ArrivalLog::open(
                disk.open(Path::new("log"), crate::io::Access::ReadWrite).unwrap(),
                3 << 50,
                0..5,
                TAIL_PAGES
            )
            .is_err()
        );
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        check_wrong_fields(&[record(1), record(2)]);
    }
}
