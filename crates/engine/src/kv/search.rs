//! Looking keys up on disk, many at a time, in rounds.
//!
//! The largest run of a bucket is searched first, where most entries are; of the others only those whose filter lets
//! the key pass. The pages that all keys of a batch need next are read together, and neighbors in one read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::bucket::{Bucket, BucketName, Buckets};
use crate::kv::merge::Pool;
use crate::kv::page::{Found, PAGE_BYTES, Page, PageName};
use crate::kv::table::{BATCH_PAGES_MAX, BucketReads, Damage, Lookup, TableCounters};
use crate::kv::{Key, Ordinal};

/// Most pages between two wanted ones of a run that are read along with them: on an SSD a read of 32 KiB takes less than two
/// of 4 KiB (measured: 38,700 and 62,000 per second at depth 16).
const GAP_PAGES_MAX: u64 = 8;
/// The same where the device was not measured.
const GAP_PAGES: u32 = 2;

/// Most pages of one such read.
const SPAN_PAGES_MAX: u32 = 32;

/// Most pages of one read when all between the wanted ones is read: a batch.
const WHOLE_PAGES_MAX: u32 = 256;
const _: () = assert!(WHOLE_PAGES_MAX as usize == BATCH_PAGES_MAX);

/// Where the search for one key stands.
#[derive(Debug)]
pub(super) struct Search {
    /// Index of the key in its batch.
    index: usize,
    head: u64,
    bucket: u32,
    place: u16,
    /// How many runs were searched or passed by.
    step: usize,
    /// Run of the bucket that is searched.
    run: usize,
    /// Pages of the run that can hold the key: first, last.
    pages: Option<(u32, u32)>,
    is_found: bool,
}

/// Returns the largest run of a bucket: the oldest, unless its entries were staged slowly.
fn largest(bucket: &Bucket) -> usize {
    let runs = bucket.runs.iter().enumerate();
    runs.max_by_key(|(index, run)| (run.entries, std::cmp::Reverse(*index))).map_or(0, |(index, _)| index)
}

impl Search {
    pub(super) fn new(index: usize, key: &Key, buckets: &Buckets) -> Self {
        let head = key.head();
        let bucket = buckets.number_of(head);
        let place = buckets.get(bucket).name.place(head);
        Self { index, head, bucket, place, step: 0, run: 0, pages: None, is_found: false }
    }

    fn page(&self) -> u32 {
        let (first, last) = self.pages.expect("the search stands at a run");
        // Two candidates: the later one, where the key is more likely. More: halves.
        first + (last - first).div_ceil(2)
    }

    /// Says whether there is more to be searched, of the page that it is about or of the next run that can hold the key.
    pub(super) fn goes_on(&mut self, buckets: &Buckets, keys: &[Key], passed_by: &mut u64) -> bool {
        !self.is_found && self.advance_to_run(buckets.get(self.bucket), &keys[self.index], passed_by)
    }

    /// Goes on to the next run that can hold the key; false if there is none.
    fn advance_to_run(&mut self, bucket: &Bucket, key: &Key, passed_by: &mut u64) -> bool {
        if self.pages.is_some() {
            return true;
        }
        let largest = largest(bucket);
        while self.step < bucket.runs.len() {
            self.run = match self.step {
                0 => largest,
                step if step <= largest => step - 1,
                step => step,
            };
            let run = &bucket.runs[self.run];
            if run.may_hold(key) {
                self.pages = run.candidates(self.place);
            } else {
                *passed_by += 1;
            }
            if self.pages.is_some() {
                return true;
            }
            self.step += 1;
        }
        false
    }

    fn leave_run(&mut self) {
        self.pages = None;
        self.step += 1;
    }

    fn narrow(&mut self, first: u32, last: Option<u32>) {
        match last.filter(|&last| first <= last) {
            Some(last) => self.pages = Some((first, last)),
            None => self.leave_run(),
        }
    }

    /// Takes the search on by what the page of its run says.
    fn advance(&mut self, page: Option<Page<'_>>, key: &Key, live: &dyn Fn(Ordinal) -> bool, out: &mut [Lookup]) {
        let (first, last) = self.pages.expect("the search stands at a run");
        let index = self.page();
        match page.map(|page| page.find(key)) {
            Some(Found::Here(entry)) if live(entry.ordinal) => {
                out[self.index] = Lookup::OnDisk(entry);
                self.is_found = true;
            }
            Some(Found::Here(_)) => {
                out[self.index] = Lookup::Dead;
                self.leave_run();
            }
            Some(Found::Absent) => self.leave_run(),
            // A page that cannot be read is empty; which half to go on with is then a guess.
            Some(Found::Before) | None => self.narrow(first, index.checked_sub(1)),
            Some(Found::After) => self.narrow(index + 1, Some(last)),
        }
    }
}

/// Puts searches in the order of their keys, so that equal pages are neighbors and a disk with a head moves it once.
pub(super) fn sort_searches(searches: &mut [Search]) {
    searches.sort_unstable_by_key(|search| search.head);
}

/// Pages of a run that are read at once, for neighboring searches.
#[derive(Debug)]
pub(super) struct Span {
    bucket: u32,
    run: usize,
    first: u32,
    last: u32,
    is_whole: bool,
    /// Searches that want a page of it.
    pub(super) searches: std::ops::Range<usize>,
}

impl Span {
    pub(super) fn pages(&self) -> usize {
        (self.last - self.first + 1) as usize
    }
}

/// What lookups read from, and what they note.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) file: &'a Arc<dyn DiskFile>,
    pub(super) epoch: u64,
    pub(super) buckets: &'a Buckets,
    pub(super) reads: BucketReads,
    pub(super) pool: &'a mut Pool,
    /// Most pages to read in one batch, if each read has fewer.
    pub(super) batch_pages: usize,
    pub(super) counters: &'a mut TableCounters,
    pub(super) damaged: &'a mut BTreeMap<BucketName, Damage>,
}

impl Reader<'_> {
    /// Carries searches out; `out` has one answer per key of the batch, which they improve.
    pub(super) fn search(
        &mut self,
        keys: &[Key],
        mut searches: Vec<Search>,
        live: &dyn Fn(Ordinal) -> bool,
        out: &mut [Lookup],
    ) {
        sort_searches(&mut searches);
        loop {
            searches.retain_mut(|search| search.goes_on(self.buckets, keys, &mut self.counters.recent_skips));
            if searches.is_empty() {
                return;
            }
            if self.reads == BucketReads::Entire {
                // Some may be a step further in a run than others whose keys come before theirs.
                searches.sort_by_key(|search| (search.bucket, search.run, search.page()));
            }
            let mut batch = Vec::new();
            let mut pages = 0;
            for span in self.spans(&searches, 0) {
                if self.batch_pages < pages + span.pages() && !batch.is_empty() {
                    self.read(&std::mem::take(&mut batch), keys, &mut searches, live, out);
                    pages = 0;
                }
                pages += span.pages();
                batch.push(span);
            }
            self.read(&batch, keys, &mut searches, live, out);
        }
    }

    /// Divides the pages that searches, the first of them number `start`, want into reads.
    pub(super) fn spans(&self, searches: &[Search], mut start: usize) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::with_capacity(searches.len());
        for group in searches.chunk_by(|left, right| (left.bucket, left.run) == (right.bucket, right.run)) {
            if self.reads == BucketReads::Entire {
                self.entire(group, start, &mut spans);
                start += group.len();
                continue;
            }
            let is_whole = self.prefers_whole(group);
            let whole_pages_max = WHOLE_PAGES_MAX.min(u32::try_from(self.batch_pages).unwrap_or(u32::MAX));
            let (gap, pages_max) = if is_whole { (u32::MAX, whole_pages_max) } else { (self.gap(), SPAN_PAGES_MAX) };
            for (index, search) in (start..).zip(group) {
                let page = search.page();
                let joined = spans.last_mut().filter(|span| {
                    (span.bucket, span.run, span.searches.end) == (search.bucket, search.run, index)
                        && start <= span.searches.start
                        && (span.first..=span.last.saturating_add(gap)).contains(&page)
                        && page - span.first < pages_max
                });
                match joined {
                    Some(span) => {
                        span.last = span.last.max(page);
                        span.searches.end = index + 1;
                    }
                    None => spans.push(Span {
                        bucket: search.bucket,
                        run: search.run,
                        first: page,
                        last: page,
                        is_whole,
                        searches: index..index + 1,
                    }),
                }
            }
            start += group.len();
        }
        spans
    }

    /// Divides all pages of the run that a group of searches, the first of them number `start`, is about.
    fn entire(&self, group: &[Search], start: usize, spans: &mut Vec<Span>) {
        let Some(&Search { bucket, run, .. }) = group.first() else { return };
        let pages = self.buckets.get(bucket).runs[run].pages();
        let most = WHOLE_PAGES_MAX.min(u32::try_from(self.batch_pages).unwrap_or(u32::MAX)).max(1);
        let mut taken = 0;
        for first in (0..pages).step_by(most as usize) {
            let last = pages.min(first.saturating_add(most)) - 1;
            // Sorted by page: those on these pages come next.
            let here = group[taken..].partition_point(|search| search.page() <= last);
            let searches = start + taken..start + taken + here;
            spans.push(Span { bucket, run, first, last, is_whole: true, searches });
            taken += here;
        }
    }

    /// Returns the most pages between two wanted ones that are read along: fewer than take as long as another read.
    fn gap(&self) -> u32 {
        let BucketReads::ByDevice(profile) = self.reads else { return GAP_PAGES };
        let pages_per_s = profile.sequential_bytes_per_s / PAGE_BYTES as u64;
        let worth = pages_per_s / profile.random_reads_per_s_deep.max(1);
        u32::try_from(worth.clamp(1, GAP_PAGES_MAX)).expect("at most the maximum")
    }

    /// Says whether reads are so dear that neighbors are best read together, however far apart.
    pub(super) fn reads_together(&self) -> bool {
        match self.reads {
            BucketReads::Pages => false,
            BucketReads::Whole | BucketReads::Entire => true,
            BucketReads::ByDevice(profile) => {
                profile.prefers_whole_bucket(u64::from(SPAN_PAGES_MAX) * PAGE_BYTES as u64, 2)
            }
        }
    }

    /// Says whether to read all between the pages that searches of one run want.
    fn prefers_whole(&self, group: &[Search]) -> bool {
        let pages = || group.iter().map(Search::page);
        let (Some(first), Some(last)) = (pages().min(), pages().max()) else { return false };
        match self.reads {
            BucketReads::Pages => false,
            BucketReads::Whole => first != last,
            BucketReads::Entire => true,
            BucketReads::ByDevice(profile) => {
                let wanted = 1 + pages().zip(pages().skip(1)).filter(|(page, next)| page != next).count();
                1 < wanted
                    && profile.prefers_whole_bucket(u64::from(last - first + 1) * PAGE_BYTES as u64, wanted as u64)
            }
        }
    }

    /// Reads spans together, and takes their searches one step on.
    fn read(
        &mut self,
        spans: &[Span],
        keys: &[Key],
        searches: &mut [Search],
        live: &dyn Fn(Ordinal) -> bool,
        out: &mut [Lookup],
    ) {
        let mut reads: Vec<BatchRead> = Vec::with_capacity(spans.len());
        for span in spans {
            let (offset, buffer) = self.space_for(span);
            reads.push(BatchRead { file: Arc::clone(self.file), offset, buffer, outcome: Ok(()) });
        }
        self.disk.read_batch(&mut reads);
        for (span, BatchRead { buffer, outcome, .. }) in spans.iter().zip(reads) {
            let bytes = outcome.is_ok().then_some(&*buffer);
            self.advance(span, bytes, keys, &mut searches[span.searches.clone()], live, out);
            self.pool.give(buffer);
        }
    }

    /// Returns where a span lies in the file, and room for its pages.
    pub(super) fn space_for(&mut self, span: &Span) -> (u64, AlignedBuffer) {
        let run = &self.buckets.get(span.bucket).runs[span.run];
        let offset = (run.start + u64::from(span.first)) * PAGE_BYTES as u64;
        let buffer = self.pool.take(span.pages() * PAGE_BYTES);
        self.counters.lookup_pages += span.pages() as u64;
        self.counters.bytes_read += buffer.len() as u64;
        *(if span.is_whole { &mut self.counters.whole_reads } else { &mut self.counters.page_reads }) += 1;
        (offset, buffer)
    }

    /// Takes the searches of a span one step on by its pages; `None`: they cannot be read.
    pub(super) fn advance(
        &mut self,
        span: &Span,
        bytes: Option<&[u8]>,
        keys: &[Key],
        searches: &mut [Search],
        live: &dyn Fn(Ordinal) -> bool,
        out: &mut [Lookup],
    ) {
        let bucket = self.buckets.get(span.bucket);
        let run = &bucket.runs[span.run];
        let mut checked: Option<(u32, Option<Page<'_>>)> = None;
        for search in searches {
            let index = search.page();
            let page = match checked {
                Some((checked, page)) if checked == index => page,
                _ => {
                    let start = (index - span.first) as usize * PAGE_BYTES;
                    let name = PageName { epoch: self.epoch, run: run.id, index };
                    let page = bytes.and_then(|bytes| Page::decode(name, &bytes[start..start + PAGE_BYTES]));
                    if page.is_none() {
                        self.counters.damaged_pages += 1;
                        self.damaged.insert(bucket.name, Damage::OnDisk);
                    }
                    page
                }
            };
            checked = Some((index, page));
            search.advance(page, &keys[search.index], live, out);
        }
    }
}
