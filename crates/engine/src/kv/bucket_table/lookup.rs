//! Lookups of many keys: first in the memtable, then on disk, at once or as background jobs.
//!
//! [`Reader::search`] works in rounds: each round reads the pages that all searches need next, close neighbors in one
//! read. In rounds the disk waits for the slowest read of each, and the later rounds have few reads.
//! [`Reader::streamed_search`] instead continues a search as soon as its page has arrived.
//!
//! A background job shares the buckets as they are when it starts. Its pages must not be overwritten, so the table
//! installs a flush only while no lookup runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::Result;
use crate::io::{AlignedBuffer, Disk, OwnedRead, ReadStream};
use crate::kv::bucket_table::bucket::Buckets;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::disk_runs::DiskRuns;
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::memtable::Memtable;
use crate::kv::bucket_table::page::{PAGE_BYTES, Page};
use crate::kv::bucket_table::pool::BufferPool;
use crate::kv::bucket_table::search::{RunOrder, Search, sort_searches};
use crate::kv::bucket_table::spans::{JoinedRead, Span, Spans};
use crate::kv::bucket_table::spec::{BATCH_PAGES_MAX, BucketReads};
use crate::kv::store::{Live, Lookup};
use crate::kv::{Key, Ordinal};

/// Parts of a background lookup that run at the same time. To submit a read takes as long as an SSD takes to carry it out.
const LOOKUP_JOBS: usize = 2;

/// Most pages that each part reads in one batch: all parts read as many as a lookup at once.
const JOB_PAGES: usize = BATCH_PAGES_MAX / LOOKUP_JOBS;

/// Damage and counts of a lookup.
#[derive(Debug, Default)]
pub(in crate::kv) struct LookupEffects {
    pub(crate) counters: TableCounters,
    pub(crate) damaged: BTreeSet<BucketName>,
}

/// Keys of a lookup, and an answer for each.
struct Batch<'a> {
    keys: &'a [Key],
    live: &'a dyn Fn(Ordinal) -> bool,
    answers: &'a mut [Lookup],
}

/// Searches for many keys on disk.
struct Reader<'a> {
    disk: &'a dyn Disk,
    file: &'a TableFile,
    buckets: &'a Buckets,
    spans: Spans,
    pool: &'a mut BufferPool,
    batch: Batch<'a>,
    effects: LookupEffects,
}

impl Reader<'_> {
    /// Carries out searches in rounds.
    fn search(&mut self, mut searches: Vec<Search>) {
        sort_searches(&mut searches);
        loop {
            searches.retain_mut(|search| self.seek(search));
            if searches.is_empty() {
                return;
            }
            // A search may be a step ahead of another whose key comes before its own.
            searches.sort_by_key(|search| (search.run(), search.page()));
            let spans = self.spans.divide(self.buckets, &searches, 0);
            let reads = self.spans.join(spans, |span| self.first_page(span));
            let mut waiting = &reads[..];
            while !waiting.is_empty() {
                let mut pages = 0;
                let fits = |read: &&JoinedRead| {
                    pages += read.pages();
                    pages <= self.spans.batch_pages()
                };
                let count = waiting.iter().take_while(fits).count().max(1);
                let (now, later) = waiting.split_at(count);
                self.read(now, &mut searches);
                waiting = later;
            }
        }
    }

    fn seek(&mut self, search: &mut Search) -> bool {
        search.seek(self.buckets, self.batch.keys, &mut self.effects.counters.recent_skips)
    }

    /// Carries out reads in one batch, and takes the searches of their spans a step further.
    fn read(&mut self, joined: &[JoinedRead], searches: &mut [Search]) {
        let mut reads = Vec::with_capacity(joined.len());
        for read in joined {
            let buffer = self.start_read(read.pages(), read.is_whole());
            reads.push(self.file.read(read.first, buffer));
        }
        self.disk.read_batch(&mut reads);
        for (joined, read) in joined.iter().zip(reads) {
            for span in &joined.spans {
                let offset = usize::try_from(self.first_page(span) - joined.first).expect("a read is in memory");
                let pages = &read.buffer[offset * PAGE_BYTES..][..span.pages() * PAGE_BYTES];
                self.end_read(span, pages, &read.outcome, &mut searches[span.searches.clone()]);
            }
            self.pool.give(read.buffer);
        }
    }

    /// Returns the first page of a span in the file.
    fn first_page(&self, span: &Span) -> u64 {
        let (bucket, run) = span.run;
        self.buckets.get(bucket).runs[run].start + u64::from(span.first)
    }

    /// Counts a read, and returns a buffer for its pages.
    fn start_read(&mut self, pages: usize, is_whole: bool) -> AlignedBuffer {
        let buffer = self.pool.take(pages * PAGE_BYTES);
        let counters = &mut self.effects.counters;
        counters.lookup_pages += pages as u64;
        counters.bytes_read += buffer.len() as u64;
        *(if is_whole { &mut counters.whole_reads } else { &mut counters.page_reads }) += 1;
        buffer
    }

    /// Takes the searches of a span a step further with its pages.
    fn end_read(&mut self, span: &Span, pages: &[u8], outcome: &Result<()>, searches: &mut [Search]) {
        self.effects.counters.pages_needed += searches.len() as u64;
        let (bucket, run) = span.run;
        let bucket = self.buckets.get(bucket);
        let run = bucket.runs[run].id;
        let mut checked: Option<(u32, Option<Page<'_>>)> = None;
        for search in searches {
            let index = search.page();
            let known = checked.filter(|(checked, _)| *checked == index);
            let (_, page) = *checked.insert(known.unwrap_or_else(|| {
                let start = (index - span.first) as usize * PAGE_BYTES;
                let page = self.file.decode(run, index, &pages[start..start + PAGE_BYTES]);
                let page = page.filter(|_| outcome.is_ok());
                if page.is_none() {
                    self.effects.counters.damaged_pages += 1;
                    self.effects.damaged.insert(bucket.name);
                }
                (index, page)
            }));
            let Batch { keys, live, answers } = &mut self.batch;
            search.advance(page, keys, live, answers);
        }
    }

    /// Carries out searches as [`Reader::search`] does, but none waits for another, so the disk has a full batch to read
    /// until the last ones. Searches that diverged no longer share reads, which costs a few reads more. If reads are
    /// expensive, or runs are read whole, the searches work in rounds.
    fn streamed_search(mut self, mut searches: Vec<Search>) -> LookupEffects {
        if self.spans.prefer_few() {
            self.search(searches);
            return self.effects;
        }
        sort_searches(&mut searches);
        searches.retain_mut(|search| self.seek(search));
        let mut waiting = self.spans.divide(self.buckets, &searches, 0);
        waiting.reverse();
        let (disk, file) = (self.disk, self.file.file());
        let mut stream = SearchStream { reader: self, searches, waiting, in_flight: Vec::new(), pages: 0 };
        disk.read_stream(file, &mut stream);
        stream.reader.effects
    }
}

/// Searches that continue as soon as their pages have arrived.
struct SearchStream<'a> {
    reader: Reader<'a>,
    searches: Vec<Search>,
    /// Spans to be read, the next one last.
    waiting: Vec<Span>,
    /// Spans that are being read, by the number of their read.
    in_flight: Vec<Option<Span>>,
    /// Pages of these.
    pages: usize,
}

impl ReadStream for SearchStream<'_> {
    fn next(&mut self) -> Option<OwnedRead> {
        let fits = |span: &mut Span| self.pages == 0 || self.pages + span.pages() <= self.reader.spans.batch_pages();
        let span = self.waiting.pop_if(fits)?;
        let page = self.reader.first_page(&span);
        let buffer = self.reader.start_read(span.pages(), span.is_whole);
        self.pages += span.pages();
        let number = self.in_flight.iter().position(Option::is_none).unwrap_or(self.in_flight.len());
        if number == self.in_flight.len() {
            self.in_flight.push(None);
        }
        self.in_flight[number] = Some(span);
        Some(OwnedRead { number, offset: page * PAGE_BYTES as u64, buffer })
    }

    fn end(&mut self, read: OwnedRead, outcome: Result<()>) {
        let OwnedRead { number, buffer, .. } = read;
        let span = self.in_flight[number].take().expect("a read ends once");
        self.pages -= span.pages();
        let Self { reader, searches, waiting, .. } = self;
        let searches = &mut searches[span.searches.clone()];
        reader.end_read(&span, &buffer, &outcome, searches);
        reader.pool.give(buffer);
        // Searches that continue move to the front, in order.
        let mut count = 0;
        for index in 0..searches.len() {
            if reader.seek(&mut searches[index]) {
                searches.swap(count, index);
                count += 1;
            }
        }
        // They are read before the others: the longest searches start first.
        waiting.extend(reader.spans.divide(reader.buckets, &searches[..count], span.searches.start));
    }
}

/// Looks keys up in the memtable. `answers` gets one answer per key; returns a search for each key that needs the disk.
fn search_memtable(
    memtable: &Memtable,
    (buckets, order): (&Buckets, RunOrder),
    keys: &[Key],
    live: &dyn Fn(Ordinal) -> bool,
    answers: &mut Vec<Lookup>,
) -> Vec<Search> {
    for key in keys {
        memtable.prefetch(key);
    }
    let mut searches = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        answers.push(match memtable.get(key) {
            Some(entry) if live(entry.ordinal) => Lookup::InMemory(entry),
            found => {
                searches.push(Search::new(index, key, buckets, order));
                if found.is_some() { Lookup::Dead } else { Lookup::Absent }
            }
        });
    }
    searches
}

/// Lookups of a table, and the buffers of the last ones.
#[derive(Debug)]
pub(in crate::kv) struct Lookups {
    reads: BucketReads,
    order: RunOrder,
    pool: BufferPool,
    job_pools: Vec<BufferPool>,
}

impl Lookups {
    pub(crate) fn new(reads: BucketReads, order: RunOrder) -> Self {
        Self { reads, order, pool: BufferPool::new(BATCH_PAGES_MAX * PAGE_BYTES), job_pools: Vec::new() }
    }

    /// Looks keys up; `answers` gets one answer per key.
    pub(crate) fn run(
        &mut self,
        disk: &dyn Disk,
        (memtable, runs): (&Memtable, &DiskRuns),
        keys: &[Key],
        live: &dyn Fn(Ordinal) -> bool,
        answers: &mut Vec<Lookup>,
    ) -> LookupEffects {
        answers.clear();
        let searches = search_memtable(memtable, (runs.buckets(), self.order), keys, live, answers);
        let mut reader = Reader {
            disk,
            file: runs.file(),
            buckets: runs.buckets(),
            spans: Spans::new(self.reads, BATCH_PAGES_MAX),
            pool: &mut self.pool,
            batch: Batch { keys, live, answers },
            effects: LookupEffects::default(),
        };
        reader.search(searches);
        reader.effects
    }

    /// Starts to look keys up as [`Lookups::run`] does, as jobs.
    pub(in crate::kv) fn start(
        &mut self,
        (memtable, runs): (&Memtable, &DiskRuns),
        keys: Vec<Key>,
        live: &Live,
    ) -> Vec<LookupJob> {
        let mut answers = Vec::with_capacity(keys.len());
        let mut searches = search_memtable(memtable, (runs.buckets(), self.order), &keys, &**live, &mut answers);
        // Neighbors in the table stay in one job.
        sort_searches(&mut searches);
        let keys = Arc::new(keys);
        let share = searches.len().div_ceil(LOOKUP_JOBS).max(1);
        let mut jobs = Vec::with_capacity(LOOKUP_JOBS);
        for _ in 0..LOOKUP_JOBS {
            let rest = searches.split_off(share.min(searches.len()));
            jobs.push(LookupJob {
                file: runs.file().clone(),
                reads: self.reads,
                buckets: Arc::clone(runs.buckets()),
                pool: self.job_pools.pop().unwrap_or_else(|| BufferPool::new(JOB_PAGES * PAGE_BYTES)),
                live: Arc::clone(live),
                keys: Arc::clone(&keys),
                searches: std::mem::replace(&mut searches, rest),
                answers: answers.clone(),
            });
        }
        jobs
    }

    /// Returns one answer per key from the results of all jobs, and what the jobs found and counted.
    pub(crate) fn finish(&mut self, done: Vec<LookupDone>) -> (Vec<Lookup>, Vec<LookupEffects>) {
        let mut all: Vec<Lookup> = Vec::new();
        let mut effects = Vec::with_capacity(done.len());
        for LookupDone { answers, effects: of_job, pool } in done {
            effects.push(of_job);
            self.job_pools.push(pool);
            // One job searches for a key; the others have the answer of the memtable.
            all = if all.is_empty() { answers } else { all.into_iter().zip(answers).map(|(a, b)| a.or(b)).collect() };
        }
        (all, effects)
    }
}

/// Part of a lookup that was started. All parts have to be run and handed back to their table.
pub(crate) struct LookupJob {
    file: TableFile,
    reads: BucketReads,
    buckets: Arc<Buckets>,
    pool: BufferPool,
    live: Live,
    keys: Arc<Vec<Key>>,
    searches: Vec<Search>,
    answers: Vec<Lookup>,
}

impl std::fmt::Debug for LookupJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LookupJob").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

/// Result of a part of a lookup, for [`Table::finish_lookup`](crate::kv::bucket_table::table::Table::finish_lookup).
#[derive(Debug)]
pub(crate) struct LookupDone {
    answers: Vec<Lookup>,
    effects: LookupEffects,
    pool: BufferPool,
}

impl LookupJob {
    /// Reads. Keys on unreadable pages are not found.
    pub(crate) fn run(self, disk: &dyn Disk) -> LookupDone {
        let Self { file, reads, buckets, mut pool, live, keys, searches, mut answers } = self;
        let reader = Reader {
            disk,
            file: &file,
            buckets: &buckets,
            spans: Spans::new(reads, JOB_PAGES),
            pool: &mut pool,
            batch: Batch { keys: &keys, live: &*live, answers: &mut answers },
            effects: LookupEffects::default(),
        };
        let effects = reader.streamed_search(searches);
        LookupDone { answers, effects, pool }
    }
}
