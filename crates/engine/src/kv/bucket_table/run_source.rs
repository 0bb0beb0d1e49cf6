//! Reading runs from front to back, many at a time.

use crate::error::Result;
use crate::io::{BatchWrite, Disk};
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::page::{EntryBytes, PAGE_BYTES, PAGE_ENTRIES};
use crate::kv::bucket_table::pool::BufferPool;
use crate::kv::bucket_table::run::Run;

/// Pages that a merge or a scan reads or writes in one call: 128 KiB.
pub(in crate::kv) const CALL_PAGES: u32 = 32;

/// Calls of a scan that are in flight together.
const SCAN_CALLS: u32 = 8;

/// Sorted entries of a run, read part by part, or of the memtable.
#[derive(Debug)]
pub(crate) struct RunSource {
    /// Number of the run.
    run: u64,
    /// First page in the table file.
    start: u64,
    pages: u32,
    next_page: u32,
    entries: Vec<EntryBytes>,
    taken: usize,
    damaged_pages: u64,
}

impl RunSource {
    /// Starts at the first entry of a run; reads nothing.
    pub(in crate::kv) fn of_run(run: &Run) -> Self {
        Self { run: run.id, start: run.start, pages: run.pages(), ..Self::of_entries(Vec::new()) }
    }

    /// Starts at the first of sorted entries.
    pub(in crate::kv) fn of_entries(entries: Vec<EntryBytes>) -> Self {
        Self { run: 0, start: 0, pages: 0, next_page: 0, entries, taken: 0, damaged_pages: 0 }
    }

    /// Returns true if all entries were read and taken.
    pub(in crate::kv) fn is_done(&self) -> bool {
        !self.has_unread() && self.ready().is_empty()
    }

    /// Returns the bytes of its pages.
    pub(in crate::kv) fn bytes(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// Returns true if a page was unreadable or bad.
    pub(in crate::kv) fn is_damaged(&self) -> bool {
        self.damaged_pages != 0
    }

    /// Returns true if pages are left to read.
    pub(in crate::kv) fn has_unread(&self) -> bool {
        self.next_page < self.pages
    }

    /// Returns the entries that were read and not taken.
    pub(in crate::kv) fn ready(&self) -> &[EntryBytes] {
        &self.entries[self.taken..]
    }

    /// Takes the first of the ready entries.
    pub(in crate::kv) fn take(&mut self, count: usize) {
        self.taken += count;
    }

    /// Returns how many pages to read so that about `pages_max` are ready; 0 while half of them are.
    fn pages_wanted(&self, pages_max: u32) -> u32 {
        let ready = self.ready().len().div_ceil(PAGE_ENTRIES);
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        if pages_max / 2 < ready { 0 } else { (self.pages - self.next_page).min(pages_max - ready) }
    }

    fn push_pages(&mut self, file: &TableFile, bytes: &[u8], is_readable: bool) {
        for bytes in bytes.chunks_exact(PAGE_BYTES) {
            let page = file.decode(self.run, self.next_page, bytes);
            self.next_page += 1;
            match page.filter(|_| is_readable) {
                Some(page) => self.entries.extend_from_slice(page.entries()),
                None => self.damaged_pages += 1,
            }
        }
    }
}

/// Batched reads and writes of runs.
#[derive(Debug)]
pub(in crate::kv) struct RunIo<'a> {
    disk: &'a dyn Disk,
    file: &'a TableFile,
    counters: TableCounters,
}

impl<'a> RunIo<'a> {
    pub(crate) fn new(disk: &'a dyn Disk, file: &'a TableFile) -> Self {
        Self { disk, file, counters: TableCounters::default() }
    }

    pub(in crate::kv) fn file(&self) -> &'a TableFile {
        self.file
    }

    /// Returns the counters, for the counts that the caller makes as well.
    pub(crate) fn counters(&mut self) -> &mut TableCounters {
        &mut self.counters
    }

    /// Reads in one batch until each source has about `pages_max` pages ready. Unreadable pages count as empty.
    pub(in crate::kv) fn fill<'s>(
        &mut self,
        sources: impl Iterator<Item = &'s mut RunSource>,
        pages_max: u32,
        pool: &mut BufferPool,
    ) {
        let mut filled = Vec::new();
        let mut reads = Vec::new();
        for source in sources {
            source.entries.drain(..source.taken);
            source.taken = 0;
            let wanted = source.pages_wanted(pages_max);
            let first = source.next_page;
            for page in (first..first + wanted).step_by(CALL_PAGES as usize) {
                let pages = (first + wanted - page).min(CALL_PAGES);
                let buffer = pool.take(pages as usize * PAGE_BYTES);
                reads.push(self.file.read(source.start + u64::from(page), buffer));
            }
            if wanted != 0 {
                source.entries.reserve_exact(wanted as usize * PAGE_ENTRIES);
                filled.push((source, first + wanted));
            }
        }
        self.disk.read_batch(&mut reads);
        let mut reads = reads.into_iter();
        for (source, end) in filled {
            let damaged = source.damaged_pages;
            while source.next_page < end {
                let read = reads.next().expect("the batch reads all pages of a source");
                self.counters.bytes_read += read.buffer.len() as u64;
                source.push_pages(self.file, &read.buffer, read.outcome.is_ok());
                pool.give(read.buffer);
            }
            self.counters.damaged_pages += source.damaged_pages - damaged;
        }
    }

    /// Calls `each` with every entry of a run. Returns false if a page was unreadable or bad.
    pub(in crate::kv) fn scan(&mut self, run: &Run, pool: &mut BufferPool, each: &mut dyn FnMut(&EntryBytes)) -> bool {
        let mut source = RunSource::of_run(run);
        while !source.is_done() {
            self.fill(std::iter::once(&mut source), SCAN_CALLS * CALL_PAGES, pool);
            source.ready().iter().for_each(&mut *each);
            source.take(source.ready().len());
        }
        !source.is_damaged()
    }

    /// Writes in one batch.
    pub(in crate::kv) fn write(&mut self, mut writes: Vec<BatchWrite>, pool: &mut BufferPool) -> Result<()> {
        self.disk.write_batch(&mut writes);
        let mut outcome = Ok(());
        for BatchWrite { buffer, outcome: written, .. } in writes {
            self.counters.bytes_written += buffer.len() as u64;
            pool.give(buffer);
            outcome = outcome.and(written);
        }
        outcome
    }
}
