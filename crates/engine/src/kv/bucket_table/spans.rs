//! The division of the pages that searches need into reads.

use std::ops::Range;

use crate::io::DeviceProfile;
use crate::kv::bucket_table::bucket::Buckets;
use crate::kv::bucket_table::page::PAGE_BYTES;
use crate::kv::bucket_table::search::Search;
use crate::kv::bucket_table::spec::{BATCH_PAGES_MAX, BucketReads};

/// Most pages between two needed ones of a run that one read includes. On an SSD a read of 32 KiB takes less time than two
/// of 4 KiB (measured: 38,700 and 62,000 per second at depth 16).
const GAP_PAGES_MAX: u64 = 8;
/// The same for a device that was not measured.
const GAP_PAGES: u32 = 2;

/// Most pages of one such read.
const SPAN_PAGES_MAX: u32 = 32;

/// Most pages of a read that includes all between the needed ones: a batch.
const WHOLE_PAGES_MAX: u32 = 256;
const _: () = assert!(WHOLE_PAGES_MAX as usize == BATCH_PAGES_MAX);

/// Pages of a run that one read brings, for neighboring searches.
#[derive(Debug)]
pub(in crate::kv) struct Span {
    /// Number of the bucket, and index of the run in it.
    pub(crate) run: (u32, usize),
    /// First page of the run.
    pub(crate) first: u32,
    last: u32,
    /// True if the read includes pages between the needed ones, however many.
    pub(crate) is_whole: bool,
    /// Indices of the searches that need a page of it.
    pub(crate) searches: Range<usize>,
}

impl Span {
    pub(in crate::kv) fn pages(&self) -> usize {
        (self.last - self.first + 1) as usize
    }
}

/// Rules by which searches share reads.
#[derive(Clone, Copy, Debug)]
pub(in crate::kv) struct Spans {
    reads: BucketReads,
    batch_pages: usize,
}

impl Spans {
    /// Makes rules for batches of at most `batch_pages` pages.
    pub(crate) fn new(reads: BucketReads, batch_pages: usize) -> Self {
        Self { reads, batch_pages }
    }

    /// Returns the most pages of a batch, unless a single read has more.
    pub(in crate::kv) fn batch_pages(self) -> usize {
        self.batch_pages
    }

    /// Returns true if all pages of a run are read.
    pub(in crate::kv) fn are_entire(self) -> bool {
        self.reads == BucketReads::Entire
    }

    /// Divides the pages that searches need into reads. The first search has index `start`.
    pub(in crate::kv) fn divide(self, buckets: &Buckets, searches: &[Search], mut start: usize) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::with_capacity(searches.len());
        for group in searches.chunk_by(|left, right| left.run() == right.run()) {
            if self.are_entire() {
                self.divide_entire(buckets, group, start, &mut spans);
            } else {
                self.divide_run(group, start, &mut spans);
            }
            start += group.len();
        }
        spans
    }

    fn divide_run(self, group: &[Search], start: usize, spans: &mut Vec<Span>) {
        let is_whole = self.prefers_whole(group);
        let (gap, pages_max) = if is_whole { (u32::MAX, self.whole_pages_max()) } else { (self.gap(), SPAN_PAGES_MAX) };
        let others = spans.len();
        for (index, search) in (start..).zip(group) {
            let page = search.page();
            let joined = spans[others..].last_mut().filter(|span| {
                (span.first..=span.last.saturating_add(gap)).contains(&page) && page - span.first < pages_max
            });
            match joined {
                Some(span) => {
                    span.last = span.last.max(page);
                    span.searches.end = index + 1;
                }
                None => spans.push(Span {
                    run: search.run(),
                    first: page,
                    last: page,
                    is_whole,
                    searches: index..index + 1,
                }),
            }
        }
    }

    /// Divides all pages of the run of a group.
    fn divide_entire(self, buckets: &Buckets, group: &[Search], start: usize, spans: &mut Vec<Span>) {
        let Some((bucket, run)) = group.first().map(Search::run) else { return };
        let pages = buckets.get(bucket).runs[run].pages();
        let pages_max = self.whole_pages_max().max(1);
        let mut taken = 0;
        for first in (0..pages).step_by(pages_max as usize) {
            let last = pages.min(first.saturating_add(pages_max)) - 1;
            // The searches are sorted by page.
            let here = group[taken..].partition_point(|search| search.page() <= last);
            let searches = start + taken..start + taken + here;
            spans.push(Span { run: (bucket, run), first, last, is_whole: true, searches });
            taken += here;
        }
    }

    fn whole_pages_max(self) -> u32 {
        WHOLE_PAGES_MAX.min(u32::try_from(self.batch_pages).unwrap_or(u32::MAX))
    }

    /// Returns the most pages between two needed ones that one read includes: fewer than take as long as another read.
    fn gap(self) -> u32 {
        let BucketReads::ByDevice(profile) = self.reads else { return GAP_PAGES };
        let pages_per_s = profile.sequential_bytes_per_s / PAGE_BYTES as u64;
        let worth = pages_per_s / profile.random_reads_per_s_deep.max(1);
        u32::try_from(worth.clamp(1, GAP_PAGES_MAX)).expect("at most the maximum")
    }

    /// Returns true if reads are so expensive that distant neighbors share one.
    pub(in crate::kv) fn prefer_few(self) -> bool {
        match self.reads {
            BucketReads::Pages => false,
            BucketReads::Whole | BucketReads::Entire => true,
            BucketReads::ByDevice(profile) => prefers_whole(profile, SPAN_PAGES_MAX, 2),
        }
    }

    /// Returns true if a group takes less time when all pages between the needed ones are read.
    fn prefers_whole(self, group: &[Search]) -> bool {
        let pages = || group.iter().map(Search::page);
        let (Some(first), Some(last)) = (pages().min(), pages().max()) else { return false };
        match self.reads {
            BucketReads::Pages => false,
            BucketReads::Whole => first != last,
            BucketReads::Entire => true,
            BucketReads::ByDevice(profile) => {
                let needed = 1 + pages().zip(pages().skip(1)).filter(|(page, next)| page != next).count();
                1 < needed && prefers_whole(profile, last - first + 1, needed as u64)
            }
        }
    }
}

fn prefers_whole(profile: DeviceProfile, pages: u32, reads: u64) -> bool {
    profile.prefers_whole_bucket(u64::from(pages) * PAGE_BYTES as u64, reads)
}
