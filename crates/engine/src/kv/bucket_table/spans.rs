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

/// A read of consecutive pages of the file, for spans of any buckets.
#[derive(Debug)]
pub(in crate::kv) struct JoinedRead {
    /// First page in the file.
    pub(crate) first: u64,
    end: u64,
    /// Its spans.
    pub(crate) spans: Vec<Span>,
}

impl JoinedRead {
    pub(in crate::kv) fn pages(&self) -> usize {
        usize::try_from(self.end - self.first).expect("a read is in memory")
    }

    /// Returns true if the read includes many pages that nobody needs.
    pub(in crate::kv) fn is_whole(&self) -> bool {
        1 < self.spans.len() || self.spans.iter().any(|span| span.is_whole)
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

    /// Joins spans whose gap in the file takes less time to read than another read, in the order of the file. `first_page`
    /// returns the page of the file at which a span begins. Reads that follow each other without a gap share a seek.
    pub(in crate::kv) fn join(self, mut spans: Vec<Span>, first_page: impl Fn(&Span) -> u64) -> Vec<JoinedRead> {
        let gap = self.file_gap();
        let read = |span: Span| {
            let first = first_page(&span);
            JoinedRead { first, end: first + span.pages() as u64, spans: vec![span] }
        };
        if gap <= GAP_PAGES_MAX {
            return spans.into_iter().map(read).collect();
        }
        spans.sort_by_key(|span| first_page(span));
        let pages_max = u64::from(self.whole_pages_max().max(1));
        let mut reads: Vec<JoinedRead> = Vec::with_capacity(spans.len());
        for span in spans {
            let mut next = read(span);
            if let Some(last) = reads.last_mut().filter(|last| next.first <= last.end.saturating_add(gap)) {
                if next.end - last.first <= pages_max {
                    last.end = last.end.max(next.end);
                    last.spans.append(&mut next.spans);
                    continue;
                }
                // The read continues where the last one ended, unless that would make it too long.
                if last.end <= next.first && next.end - last.end <= pages_max {
                    next.first = last.end;
                }
            }
            reads.push(next);
        }
        reads
    }

    /// Returns the most pages between two spans that take no longer to read than another read.
    fn file_gap(self) -> u64 {
        let BucketReads::ByDevice(profile) = self.reads else { return 0 };
        profile.sequential_bytes_per_s / PAGE_BYTES as u64 / profile.random_reads_per_s_deep.max(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(profile: DeviceProfile, starts: &[u64]) -> Vec<(u64, u64, usize)> {
        let spans = Spans::new(BucketReads::ByDevice(profile), BATCH_PAGES_MAX);
        let span = |index| Span { run: (0, index), first: 0, last: 1, is_whole: false, searches: index..index + 1 };
        let joined = spans.join((0..starts.len()).map(span).collect(), |span| starts[span.run.1]);
        joined.iter().map(|read| (read.first, read.end, read.spans.len())).collect()
    }

    #[test]
    fn spans_of_any_buckets_share_a_read_if_a_seek_takes_longer_than_their_gap() {
        let disk = DeviceProfile {
            random_reads_per_s_single: 100,
            random_reads_per_s_deep: 100,
            sequential_bytes_per_s: 100 * 100 * PAGE_BYTES as u64,
        };
        assert_eq!(reads(disk, &[500, 0, 102, 50, 0, 101]), [(0, 104, 5), (500, 502, 1)]);
        // A read that would be too long continues as another one, without a seek.
        assert_eq!(reads(disk, &[0, 90, 180, 270, 360]), [(0, 182, 3), (182, 362, 2)]);
        let ssd = DeviceProfile { random_reads_per_s_deep: 10_000, ..disk };
        assert_eq!(reads(ssd, &[9, 0, 3]), [(9, 11, 1), (0, 2, 1), (3, 5, 1)]);
    }
}
