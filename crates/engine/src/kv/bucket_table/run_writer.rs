//! Writing sorted entries as runs of neighboring buckets.

use crate::io::{AlignedBuffer, BatchWrite};
use crate::kv::Ordinal;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::extent::Extent;
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::page::{
    ENTRY_BYTES, EntryBytes, HEADER_BYTES, PAGE_BYTES, PAGE_ENTRIES, head_of, ordinal_of, seal_page,
};
use crate::kv::bucket_table::pool::BufferPool;
use crate::kv::bucket_table::recent::{recent_set, recent_words};
use crate::kv::bucket_table::run::Run;
use crate::kv::bucket_table::run_source::CALL_PAGES;

/// Description of a run that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunToWrite {
    /// Bucket of the run.
    pub(crate) bucket: BucketName,
    /// Number of the run.
    pub(crate) id: u64,
    /// Entries that its recent filter is made for; 0 for no filter.
    pub(crate) filtered_entries: u64,
}

/// Writer of runs of neighboring buckets, one after the other, onto a free extent.
#[derive(Debug)]
pub(in crate::kv) struct RunsWriter {
    file: TableFile,
    /// Runs that are to be written, last first.
    next: Vec<RunToWrite>,
    open: (RunToWrite, Run),
    done: Vec<Run>,
    buffer: AlignedBuffer,
    /// Full pages of the buffer.
    full_pages: usize,
    /// Entries of the page after them.
    page_entries: usize,
    /// Page of the file where the buffer goes.
    page: u64,
    /// End of the extent.
    end: u64,
    writes: Vec<BatchWrite>,
}

impl RunsWriter {
    /// Starts on an extent that is long enough. Runs come in the order of their buckets, at least one.
    pub(crate) fn new(file: TableFile, Extent { start, pages }: Extent, mut runs: Vec<RunToWrite>) -> Self {
        runs.reverse();
        let first = runs.pop().expect("there is a run to write");
        Self {
            file,
            next: runs,
            open: (first, empty_run(first, start)),
            done: Vec::new(),
            buffer: AlignedBuffer::default(),
            full_pages: 0,
            page_entries: 0,
            page: start,
            end: start + pages,
            writes: Vec::new(),
        }
    }

    /// Appends the live ones of entries, whose keys must grow.
    pub(in crate::kv) fn push_all(
        &mut self,
        entries: &[EntryBytes],
        live: &dyn Fn(Ordinal) -> bool,
        pool: &mut BufferPool,
    ) {
        let mut rest = entries;
        while let Some(next) = self.next.last() {
            let boundary = next.bucket.first_head();
            let (before, after) = rest.split_at(rest.partition_point(|entry| head_of(entry) < boundary));
            self.push_to_open(before, live, pool);
            rest = after;
            if rest.is_empty() {
                return;
            }
            self.next_run();
        }
        self.push_to_open(rest, live, pool);
    }

    fn push_to_open(&mut self, mut entries: &[EntryBytes], live: &dyn Fn(Ordinal) -> bool, pool: &mut BufferPool) {
        while !entries.is_empty() {
            let free = (PAGE_ENTRIES - self.page_entries).min(entries.len());
            let alive = entries[..free].iter().take_while(|entry| live(ordinal_of(entry))).count();
            if alive == 0 {
                entries = &entries[1..];
                continue;
            }
            let (now, later) = entries.split_at(alive);
            self.copy(now, pool);
            entries = later;
        }
    }

    /// Copies entries that fit onto the page.
    fn copy(&mut self, entries: &[EntryBytes], pool: &mut BufferPool) {
        let (RunToWrite { bucket, .. }, run) = &mut self.open;
        if self.page_entries == 0 {
            run.fences.push(bucket.fraction(head_of(&entries[0])));
            if self.buffer.is_empty() {
                let left = u32::try_from(self.end - self.page).unwrap_or(CALL_PAGES);
                assert!(left != 0, "runs stay on their extent");
                self.buffer = pool.take(left.min(CALL_PAGES) as usize * PAGE_BYTES);
            }
        }
        recent_set(&mut run.recent, entries);
        run.entries += entries.len() as u64;
        let start = self.full_pages * PAGE_BYTES + HEADER_BYTES + self.page_entries * ENTRY_BYTES;
        self.buffer[start..start + entries.len() * ENTRY_BYTES].copy_from_slice(entries.as_flattened());
        self.page_entries += entries.len();
        if self.page_entries == PAGE_ENTRIES {
            self.end_page();
        }
    }

    fn end_page(&mut self) {
        let (_, run) = &self.open;
        let name = self.file.page_name(run.id, run.pages() - 1);
        let start = self.full_pages * PAGE_BYTES;
        seal_page(name, self.page_entries, &mut self.buffer[start..start + PAGE_BYTES]);
        self.full_pages += 1;
        self.page_entries = 0;
        if self.full_pages * PAGE_BYTES == self.buffer.len() {
            self.end_buffer();
        }
    }

    fn end_buffer(&mut self) {
        if self.full_pages != 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(self.full_pages * PAGE_BYTES);
            self.writes.push(self.file.write(self.page, buffer));
            self.page += self.full_pages as u64;
            self.full_pages = 0;
        }
    }

    fn end_run(&mut self) {
        if self.page_entries != 0 {
            self.end_page();
        }
        self.open.1.fences.shrink_to_fit();
    }

    fn next_run(&mut self) {
        self.end_run();
        let next = self.next.pop().expect("there is another run to write");
        let start = self.page + self.full_pages as u64;
        let (_, run) = std::mem::replace(&mut self.open, (next, empty_run(next, start)));
        self.done.push(run);
    }

    /// Returns the writes that are ready.
    pub(in crate::kv) fn take_writes(&mut self) -> Vec<BatchWrite> {
        std::mem::take(&mut self.writes)
    }

    /// Ends the last run. Returns all runs, some of which may have no entries, and the last writes. The runs are durable
    /// after the next sync of the file.
    pub(crate) fn finish(mut self) -> (Vec<Run>, Vec<BatchWrite>) {
        while !self.next.is_empty() {
            self.next_run();
        }
        self.end_run();
        self.end_buffer();
        self.done.push(self.open.1);
        (self.done, self.writes)
    }
}

fn empty_run(run: RunToWrite, start: u64) -> Run {
    let words = match run.filtered_entries {
        0 => 0,
        entries => usize::try_from(recent_words(entries)).expect("a filter fits its memory limit"),
    };
    Run { id: run.id, start, entries: 0, fences: Vec::new(), recent: vec![0; words] }
}
