//! Merging sorted entries: what is read of runs, what is written of them, and the step between.
//!
//! Entries stay the 32 bytes they are on a page: they are compared by their first eight bytes and copied. All reads of
//! a step are in flight together, and so are all writes.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Result;
use crate::io::{AlignedBuffer, BatchRead, BatchWrite, Disk, DiskFile};
use crate::kv::Ordinal;
use crate::kv::bucket::BucketName;
use crate::kv::extent::Extent;
use crate::kv::page::{
    ENTRY_BYTES, EntryBytes, HEADER_BYTES, PAGE_BYTES, PAGE_ENTRIES, Page, PageName, compare_keys, head_of, ordinal_of,
    seal_page,
};
use crate::kv::recent::{recent_set, recent_words};
use crate::kv::run::{PIECE_PAGES, Run, RunPlace};

/// Most entries of a bin that are sorted by insertion: at two on average, one bin in a billion has more.
const BIN_ENTRIES_MAX: u32 = 16;

/// Share of the memory for merging that buffers may hold that are between two uses.
pub const POOL_SHARE: usize = 4;

/// Buffers that are used again.
#[derive(Debug, Default)]
pub struct Pool {
    by_capacity: BTreeMap<usize, Vec<AlignedBuffer>>,
    bytes: usize,
    bytes_max: usize,
}

impl Pool {
    /// Starts with none. Of those that are not in use, so many bytes are kept.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Returns a buffer of a length and at most a quarter more memory; what is in it is not specified.
    pub fn take(&mut self, len: usize) -> AlignedBuffer {
        let kept = self.by_capacity.range_mut(len..=len + len / 4).find_map(|(_, buffers)| buffers.pop());
        let mut buffer = kept.unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer.resize(len);
        buffer
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: AlignedBuffer) {
        let bytes = buffer.capacity();
        if bytes <= self.bytes_max - self.bytes {
            self.bytes += bytes;
            self.by_capacity.entry(bytes).or_default().push(buffer);
        }
    }
}

/// What reading and writing came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransferCounts {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Pages that could not be read or were bad; taken as empty.
    pub damaged_pages: u64,
}

/// Where entries come from: a run, or what was staged.
#[derive(Debug)]
pub struct RunSource {
    place: RunPlace,
    next_page: u32,
    entries: Vec<EntryBytes>,
    taken: usize,
    /// Pages that could not be read or were bad.
    pub damaged_pages: u64,
}

impl RunSource {
    /// Starts at the first entry of a run; nothing is read.
    pub fn of_run(place: RunPlace) -> Self {
        Self { place, next_page: 0, entries: Vec::new(), taken: 0, damaged_pages: 0 }
    }

    /// Starts at the first of sorted entries.
    pub fn of_entries(entries: Vec<EntryBytes>) -> Self {
        let place = RunPlace { id: 0, start: 0, pages: 0 };
        Self { place, next_page: 0, entries, taken: 0, damaged_pages: 0 }
    }

    /// Says whether there is anything that was not taken.
    pub fn is_done(&self) -> bool {
        self.next_page == self.place.pages && self.taken == self.entries.len()
    }

    /// Returns the entries that were read and not taken.
    pub fn ready(&self) -> &[EntryBytes] {
        &self.entries[self.taken..]
    }

    /// Forgets all entries that were read.
    pub fn skip_ready(&mut self) {
        self.taken = self.entries.len();
    }

    /// Says whether pages are left to read.
    fn has_unread(&self) -> bool {
        self.next_page < self.place.pages
    }

    /// Returns the pages to read next, so that about `pages_max` are ready; none while half of them still are.
    fn pages_wanted(&self, pages_max: u32) -> u32 {
        let ready = self.ready().len().div_ceil(PAGE_ENTRIES);
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        if pages_max / 2 < ready { 0 } else { (self.place.pages - self.next_page).min(pages_max - ready) }
    }

    fn push_piece(&mut self, epoch: u64, bytes: &[u8], is_readable: bool) {
        for bytes in bytes.chunks_exact(PAGE_BYTES) {
            let name = PageName { epoch, run: self.place.id, index: self.next_page };
            self.next_page += 1;
            match Page::decode(name, bytes).filter(|_| is_readable) {
                Some(page) => self.entries.extend_from_slice(page.entries()),
                None => self.damaged_pages += 1,
            }
        }
    }
}

/// The file of a table, read and written in pieces.
#[derive(Debug)]
pub struct TableFile<'a> {
    /// The device.
    pub disk: &'a dyn Disk,
    /// The table's file.
    pub file: &'a Arc<dyn DiskFile>,
    /// Number drawn when the table was created.
    pub epoch: u64,
    /// What it came to.
    pub counts: TransferCounts,
}

impl TableFile<'_> {
    /// Reads on in all feeds at once, each until about `pages_max` pages are ready. Pages that cannot be read are empty.
    pub fn fill<'f>(
        &mut self,
        sources: impl Iterator<Item = &'f mut RunSource>,
        pages_max: u32,
        scratch: &mut Scratch,
    ) {
        let mut filled = Vec::new();
        let mut reads = Vec::new();
        for source in sources {
            source.entries.drain(..source.taken);
            source.taken = 0;
            let wanted = source.pages_wanted(pages_max);
            let first = source.next_page;
            for page in (first..first + wanted).step_by(PIECE_PAGES as usize) {
                let pages = (first + wanted - page).min(PIECE_PAGES);
                let buffer = scratch.pool.take(pages as usize * PAGE_BYTES);
                let offset = (source.place.start + u64::from(page)) * PAGE_BYTES as u64;
                reads.push(BatchRead { file: Arc::clone(self.file), offset, buffer, outcome: Ok(()) });
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
                let read = reads.next().expect("a feed's pieces were all read");
                self.counts.bytes_read += read.buffer.len() as u64;
                source.push_piece(self.epoch, &read.buffer, read.outcome.is_ok());
                scratch.pool.give(read.buffer);
            }
            self.counts.damaged_pages += source.damaged_pages - damaged;
        }
    }

    /// Writes pieces, all at once.
    pub fn write(&mut self, pieces: Vec<PageWrite>, scratch: &mut Scratch) -> Result<()> {
        let write =
            |PageWrite { offset, buffer }| BatchWrite { file: Arc::clone(self.file), offset, buffer, outcome: Ok(()) };
        let mut writes: Vec<_> = pieces.into_iter().map(write).collect();
        self.disk.write_batch(&mut writes);
        let mut outcome = Ok(());
        for BatchWrite { buffer, outcome: written, .. } in writes {
            self.counts.bytes_written += buffer.len() as u64;
            scratch.pool.give(buffer);
            outcome = outcome.and(written);
        }
        outcome
    }
}

/// Pages to be written.
#[derive(Debug)]
pub struct PageWrite {
    offset: u64,
    buffer: AlignedBuffer,
}

/// Memory that is used again: lists for merges of two, in turn, and buffers.
#[derive(Debug, Default)]
pub struct Scratch {
    lists: [Vec<EntryBytes>; 2],
    pool: Pool,
}

impl Scratch {
    /// Starts with none, for merges that take so much memory in all.
    pub fn new(buffer_bytes: usize) -> Self {
        Self { lists: Default::default(), pool: Pool::new(buffer_bytes / POOL_SHARE) }
    }
}

/// Takes what can be merged already out of feeds, oldest first, and hands it to the writer in order. Of equal keys the
/// youngest that is live stays.
pub fn merge_ready(
    sources: &mut [RunSource],
    live: &dyn Fn(Ordinal) -> bool,
    Scratch { lists, pool }: &mut Scratch,
    writer: &mut RunsWriter,
) {
    // What follows the last entry that is ready of a feed with more to read has to wait for that.
    let mut bound: Option<EntryBytes> = None;
    for source in sources.iter().filter(|source| source.has_unread()) {
        let Some(last) = source.ready().last() else { return };
        bound = Some(bound.filter(|bound| compare_keys(bound, last) == Ordering::Less).unwrap_or(*last));
    }
    let ends = sources.iter().map(|source| match &bound {
        Some(bound) => source.ready().partition_point(|entry| compare_keys(entry, bound) != Ordering::Greater),
        None => source.ready().len(),
    });
    let ends: Vec<usize> = ends.collect();
    let parts = sources.iter().zip(&ends).rev().map(|(source, &end)| &source.ready()[..end]);
    writer.push_all(merge_parts(parts, live, lists), live, pool);
    for (source, end) in sources.iter_mut().zip(ends) {
        source.taken += end;
    }
}

/// Merges sorted entries, youngest first.
fn merge_parts<'a>(
    parts: impl Iterator<Item = &'a [EntryBytes]>,
    live: &dyn Fn(Ordinal) -> bool,
    [first, second]: &'a mut [Vec<EntryBytes>; 2],
) -> &'a [EntryBytes] {
    let mut parts = parts.filter(|part| !part.is_empty());
    let Some(youngest) = parts.next() else { return &[] };
    let Some(older) = parts.next() else { return youngest };
    // Runs mostly grow with age: the smallest are merged first, the largest is copied once.
    let (mut merged, mut spare) = (first, second);
    merge_two(older, youngest, live, merged);
    for older in parts {
        merge_two(older, merged, live, spare);
        std::mem::swap(&mut merged, &mut spare);
    }
    merged
}

/// Sorts entries of one bucket by key.
///
/// Keys are uniform: dealt out by the bits in which they differ, each into the bin where it belongs or nearly so, few
/// are left to be moved. Where they are not uniform, they are sorted as anything else.
pub fn sort_entries(entries: &mut Vec<EntryBytes>) {
    let heads = || entries.iter().map(head_of);
    let (Some(first), Some(last)) = (heads().min(), heads().max()) else { return };
    // The first bit that differs is the highest of a bin's number: half the bins at worst stay empty.
    let bins_log = (entries.len() / 2).max(1).ilog2();
    let shift = (64 - (first ^ last).leading_zeros()).saturating_sub(bins_log).min(63);
    let low = first >> shift;
    let bin_of = |entry: &EntryBytes| usize::try_from((head_of(entry) >> shift) - low).unwrap_or(usize::MAX);
    let mut starts = vec![0_u32; usize::try_from((last >> shift) - low).unwrap_or(usize::MAX) + 2];
    for entry in &*entries {
        starts[bin_of(entry) + 1] += 1;
    }
    let is_even = starts.iter().all(|&count| count <= BIN_ENTRIES_MAX);
    if !is_even {
        return entries.sort_unstable_by(compare_keys);
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut sorted = vec![[0; ENTRY_BYTES]; entries.len()];
    for entry in &*entries {
        let start = &mut starts[bin_of(entry)];
        sorted[*start as usize] = *entry;
        *start += 1;
    }
    for next in 1..sorted.len() {
        let mut place = next;
        while 0 < place && compare_keys(&sorted[place], &sorted[place - 1]) == Ordering::Less {
            sorted.swap(place, place - 1);
            place -= 1;
        }
    }
    *entries = sorted;
}

/// Merges two sorted lists of different keys each; of a key in both, the younger entry stays unless only the older is
/// live.
fn merge_two(older: &[EntryBytes], younger: &[EntryBytes], live: &dyn Fn(Ordinal) -> bool, out: &mut Vec<EntryBytes>) {
    out.clear();
    out.reserve(older.len() + younger.len());
    let (mut old, mut recent) = (0, 0);
    while let (Some(left), Some(right)) = (older.get(old), younger.get(recent)) {
        let (left_head, right_head) = (head_of(left), head_of(right));
        if left_head == right_head {
            let order = compare_keys(left, right);
            let keep_right = order == Ordering::Greater || (order == Ordering::Equal && live(ordinal_of(right)));
            out.push(if keep_right { *right } else { *left });
            old += usize::from(order != Ordering::Greater);
            recent += usize::from(order != Ordering::Less);
            continue;
        }
        // Which side is next cannot be predicted: chosen without a branch.
        let is_old = left_head < right_head;
        out.push(*if is_old { left } else { right });
        old += usize::from(is_old);
        recent += usize::from(!is_old);
    }
    out.extend_from_slice(&older[old..]);
    out.extend_from_slice(&younger[recent..]);
}

/// A run that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunToWrite {
    /// The bucket that it belongs to.
    pub bucket: BucketName,
    /// Its number.
    pub id: u64,
    /// For how many entries it gets a filter; none if 0.
    pub filtered_entries: u64,
}

/// Writes runs of neighboring buckets one after the other onto an extent that nothing refers to.
#[derive(Debug)]
pub struct RunsWriter {
    epoch: u64,
    /// Runs that are to be written, last first.
    next: Vec<RunToWrite>,
    open: (RunToWrite, Run),
    done: Vec<Run>,
    buffer: AlignedBuffer,
    /// Pages of the buffer that are full.
    full_pages: usize,
    /// Entries of the page that is not.
    page_entries: usize,
    /// Page of the file at which the buffer goes.
    page: u64,
    /// One past the last page that may be written.
    end: u64,
    pieces: Vec<PageWrite>,
}

impl RunsWriter {
    /// Starts on an extent that is long enough. Runs come in the order of their buckets, at least one.
    pub fn new(epoch: u64, Extent { start, pages }: Extent, mut runs: Vec<RunToWrite>) -> Self {
        runs.reverse();
        let first = runs.pop().expect("there is a run to write");
        Self {
            epoch,
            next: runs,
            open: (first, empty_run(first, start)),
            done: Vec::new(),
            buffer: AlignedBuffer::default(),
            full_pages: 0,
            page_entries: 0,
            page: start,
            end: start + pages,
            pieces: Vec::new(),
        }
    }

    /// Appends the live ones of entries; keys must grow.
    pub fn push_all(&mut self, entries: &[EntryBytes], live: &dyn Fn(Ordinal) -> bool, pool: &mut Pool) {
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

    fn push_to_open(&mut self, mut entries: &[EntryBytes], live: &dyn Fn(Ordinal) -> bool, pool: &mut Pool) {
        while !entries.is_empty() {
            let space = (PAGE_ENTRIES - self.page_entries).min(entries.len());
            let alive = entries[..space].iter().take_while(|entry| live(ordinal_of(entry))).count();
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
    fn copy(&mut self, entries: &[EntryBytes], pool: &mut Pool) {
        let (RunToWrite { bucket, .. }, run) = &mut self.open;
        if self.page_entries == 0 {
            run.fences.push(bucket.place(head_of(&entries[0])));
            if self.buffer.is_empty() {
                let left = u32::try_from(self.end - self.page).unwrap_or(PIECE_PAGES);
                assert!(left != 0, "runs stay on their extent");
                self.buffer = pool.take(left.min(PIECE_PAGES) as usize * PAGE_BYTES);
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
        let name = PageName { epoch: self.epoch, run: run.id, index: run.pages() - 1 };
        let start = self.full_pages * PAGE_BYTES;
        seal_page(name, self.page_entries, &mut self.buffer[start..start + PAGE_BYTES]);
        self.full_pages += 1;
        self.page_entries = 0;
        if self.full_pages * PAGE_BYTES == self.buffer.len() {
            self.end_piece();
        }
    }

    fn end_piece(&mut self) {
        if self.full_pages != 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(self.full_pages * PAGE_BYTES);
            self.pieces.push(PageWrite { offset: self.page * PAGE_BYTES as u64, buffer });
            self.page += self.full_pages as u64;
            self.full_pages = 0;
        }
    }

    fn end_run(&mut self) {
        if self.page_entries != 0 {
            self.end_page();
        }
        let (_, run) = &mut self.open;
        run.fences.shrink_to_fit();
    }

    fn next_run(&mut self) {
        self.end_run();
        let next = self.next.pop().expect("there is another run to write");
        let start = self.page + self.full_pages as u64;
        let (_, run) = std::mem::replace(&mut self.open, (next, empty_run(next, start)));
        self.done.push(run);
    }

    /// Returns the pieces that are full.
    pub fn take_writes(&mut self) -> Vec<PageWrite> {
        std::mem::take(&mut self.pieces)
    }

    /// Ends the last run and returns all, each with the entries it got, which may be none, and the last pieces. They are
    /// durable after the file's next sync.
    pub fn finish(mut self) -> (Vec<Run>, Vec<PageWrite>) {
        while !self.next.is_empty() {
            self.next_run();
        }
        self.end_run();
        self.end_piece();
        self.done.push(self.open.1);
        (self.done, self.pieces)
    }
}

fn empty_run(run: RunToWrite, start: u64) -> Run {
    let words = match run.filtered_entries {
        0 => 0,
        entries => usize::try_from(recent_words(entries)).expect("a filter fits the memory of its cap"),
    };
    Run { id: run.id, start, entries: 0, fences: Vec::new(), recent: vec![0; words] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::page::{decode_entry, encode_entry};
    use crate::kv::{Entry, Key, Position};
    use crate::random::SplitMix64;

    fn entry(head: u64, ordinal: u32) -> EntryBytes {
        let mut key = Key([0; 20]);
        key.0[..8].copy_from_slice(&head.to_be_bytes());
        encode_entry(&Entry { key, ordinal: Ordinal(ordinal), position: Position(0) })
    }

    #[test]
    fn entries_are_sorted_whether_their_keys_are_uniform_or_not() {
        let mut random = SplitMix64::new(3);
        for shape in 0..6 {
            for count in [0, 1, 2, 3, 17, 1000, 5000] {
                let mut head = || match shape {
                    0 => random.next_u64(),
                    1 => random.next_u64() >> 11 | 5 << 60,
                    2 => random.below(3),
                    3 => u64::MAX - random.below(1 << 20),
                    4 => random.below(2) << 63 | random.below(9),
                    _ => 7,
                };
                let mut entries: Vec<_> = (0..count).map(|index| entry(head(), index)).collect();
                let mut expected = entries.clone();
                sort_entries(&mut entries);
                expected.sort_by(compare_keys);
                let keys = |entries: &[EntryBytes]| entries.iter().map(head_of).collect::<Vec<_>>();
                assert_eq!(keys(&entries), keys(&expected), "shape {shape}");
                entries.sort_unstable();
                expected.sort_unstable();
                assert_eq!(entries, expected, "none is lost");
            }
        }
    }

    #[test]
    fn of_equal_keys_the_youngest_that_is_live_stays() {
        let live = |ordinal: Ordinal| ordinal.0 < 10;
        let older: Vec<_> = [(1, 1), (2, 2), (3, 13), (5, 5)].map(|(head, ordinal)| entry(head, ordinal)).to_vec();
        let younger: Vec<_> = [(2, 3), (3, 4), (5, 15), (6, 6)].map(|(head, ordinal)| entry(head, ordinal)).to_vec();
        let mut scratch = Scratch::default();
        let merged = merge_parts([&younger[..], &older[..]].into_iter(), &live, &mut scratch.lists);
        let found: Vec<_> = merged.iter().map(|bytes| decode_entry(bytes).ordinal.0).collect();
        assert_eq!(found, [1, 3, 4, 5, 6]);
    }
}
