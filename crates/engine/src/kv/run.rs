//! A run: entries of one bucket, sorted by key, on consecutive pages.

use std::sync::Arc;

use crate::error::Result;
use crate::io::DiskFile;
use crate::kv::extent::Extent;
use crate::kv::page::{PAGE_BYTES, PAGE_ENTRIES, Page, PageName, encode_page};
use crate::kv::{Entry, Ordinal};

/// Pages that a merge reads or writes in one call: 128 KiB for each of at most r + 2 streams.
pub const PIECE_PAGES: usize = 32;

/// What is kept in memory of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of the run, never used twice in the life of a table.
    pub id: u64,
    /// First page in the table file.
    pub start: u64,
    /// Number of entries.
    pub entries: u64,
    /// For every page where its first key falls in the bucket, in units of 1/65,536.
    pub fences: Vec<u16>,
}

/// The bucket that a run belongs to.
#[derive(Clone, Copy, Debug)]
pub struct BucketOf {
    /// Number of the bucket.
    pub bucket: u32,
    /// How many buckets the table has.
    pub buckets: u32,
}

/// What reading runs found.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadCount {
    /// Bytes read.
    pub bytes: u64,
    /// Pages that could not be read or were bad; taken as empty.
    pub damaged: u64,
}

impl Run {
    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.fences.len()).expect("a run has fewer than 2^32 pages")
    }

    /// Returns the pages that the run lies on.
    pub fn extent(&self) -> Extent {
        Extent { start: self.start, pages: u64::from(self.pages()) }
    }

    /// Returns the first and the last page that can hold a key at this place of the bucket; one page as a rule.
    pub fn candidates(&self, place: u16) -> Option<(u32, u32)> {
        let last = self.fences.partition_point(|&fence| fence <= place).checked_sub(1)?;
        // The page before the first with this very fence may end with keys of the same place.
        let first = self.fences.partition_point(|&fence| fence < place).saturating_sub(1);
        Some((u32::try_from(first).ok()?, u32::try_from(last).ok()?))
    }
}

/// Writes a run onto an extent that nothing refers to.
#[derive(Debug)]
pub struct RunWriter {
    file: Arc<dyn DiskFile>,
    place: BucketOf,
    run: Run,
    extent: Extent,
    page: Vec<Entry>,
    buffer: Vec<u8>,
    written_pages: u64,
}

impl RunWriter {
    /// Starts a run with the given number.
    pub fn new(file: Arc<dyn DiskFile>, place: BucketOf, id: u64, extent: Extent) -> Self {
        let run = Run { id, start: extent.start, entries: 0, fences: Vec::new() };
        let page = Vec::with_capacity(PAGE_ENTRIES);
        Self { file, place, run, extent, page, buffer: Vec::new(), written_pages: 0 }
    }

    /// Appends an entry; keys must grow.
    pub fn push(&mut self, entry: Entry) -> Result<()> {
        debug_assert!(self.page.last().is_none_or(|last| last.key < entry.key), "keys grow");
        self.page.push(entry);
        self.run.entries += 1;
        if self.page.len() == PAGE_ENTRIES { self.end_page() } else { Ok(()) }
    }

    fn end_page(&mut self) -> Result<()> {
        let first = self.page.first().expect("a page is ended when it has entries");
        let name = PageName { bucket: self.place.bucket, run: self.run.id, index: self.run.pages() };
        self.run.fences.push(first.key.spread(self.place.buckets).1);
        encode_page(name, &self.page, &mut self.buffer);
        self.page.clear();
        if self.buffer.len() >= PIECE_PAGES * PAGE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        assert!(u64::from(self.run.pages()) <= self.extent.pages, "a run stays on its extent");
        self.file.write_at((self.extent.start + self.written_pages) * PAGE_BYTES as u64, &self.buffer)?;
        self.written_pages = u64::from(self.run.pages());
        self.buffer.clear();
        Ok(())
    }

    /// Ends the run, which may have no entries. It is durable after the file's next sync.
    pub fn finish(mut self) -> Result<Run> {
        if !self.page.is_empty() {
            self.end_page()?;
        }
        if !self.buffer.is_empty() {
            self.write_out()?;
        }
        self.run.fences.shrink_to_fit();
        Ok(self.run)
    }
}

/// Reads a run from front to back.
#[derive(Debug)]
pub struct RunReader<'a> {
    file: &'a dyn DiskFile,
    bucket: u32,
    run: &'a Run,
    next_page: u32,
    entries: Vec<Entry>,
    next_entry: usize,
    buffer: Vec<u8>,
    count: ReadCount,
}

impl<'a> RunReader<'a> {
    /// Starts at the first entry.
    pub fn new(file: &'a dyn DiskFile, bucket: u32, run: &'a Run) -> Self {
        let count = ReadCount::default();
        Self { file, bucket, run, next_page: 0, entries: Vec::new(), next_entry: 0, buffer: Vec::new(), count }
    }

    /// Returns the next entry without taking it.
    pub fn peek(&mut self) -> Option<Entry> {
        while self.next_entry == self.entries.len() && self.next_page < self.run.pages() {
            self.read_piece();
        }
        self.entries.get(self.next_entry).copied()
    }

    /// Takes the entry that [`RunReader::peek`] showed.
    pub fn advance(&mut self) {
        self.next_entry += 1;
    }

    /// Returns what was read so far.
    pub fn count(&self) -> ReadCount {
        self.count
    }

    fn read_piece(&mut self) {
        let left = (self.run.pages() - self.next_page) as usize;
        self.buffer.resize(left.min(PIECE_PAGES) * PAGE_BYTES, 0);
        let offset = (self.run.start + u64::from(self.next_page)) * PAGE_BYTES as u64;
        let readable = self.file.read_at(offset, &mut self.buffer).is_ok();
        self.count.bytes += self.buffer.len() as u64;
        self.entries.clear();
        self.next_entry = 0;
        for bytes in self.buffer.chunks_exact(PAGE_BYTES) {
            let name = PageName { bucket: self.bucket, run: self.run.id, index: self.next_page };
            self.next_page += 1;
            match Page::decode(name, bytes).filter(|_| readable) {
                Some(page) => self.entries.extend(page.entries()),
                None => self.count.damaged += 1,
            }
        }
    }
}

/// Merges runs, oldest first, and the youngest entries of all, sorted, into one run. Of equal keys the youngest that
/// is live stays; what is not live goes.
pub fn merge(
    readers: &mut [RunReader<'_>],
    young: &[Entry],
    live: &dyn Fn(Ordinal) -> bool,
    writer: &mut RunWriter,
) -> Result<()> {
    let mut young = young.iter().copied().peekable();
    loop {
        let oldest_keys = readers.iter_mut().filter_map(|reader| reader.peek().map(|entry| entry.key));
        let Some(key) = oldest_keys.chain(young.peek().map(|entry| entry.key)).min() else { return Ok(()) };
        let mut kept = None;
        for reader in &mut *readers {
            if let Some(entry) = reader.peek().filter(|entry| entry.key == key) {
                kept = Some(entry).filter(|entry| live(entry.ordinal)).or(kept);
                reader.advance();
            }
        }
        if let Some(entry) = young.next_if(|entry| entry.key == key) {
            kept = Some(entry).filter(|entry| live(entry.ordinal)).or(kept);
        }
        if let Some(entry) = kept {
            writer.push(entry)?;
        }
    }
}
