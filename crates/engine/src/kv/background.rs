//! Lookups that go on beside: a job reads what the caller did not find among staged entries, and needs nothing of the
//! table meanwhile.
//!
//! It shares the buckets as they are when it starts. So that no page is written over that it may read, whoever holds
//! the table takes a flush in only when no lookup goes on ([`Table::finish_flush`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::io::{Disk, DiskFile};
use crate::kv::bucket::{BucketName, Buckets};
use crate::kv::flush::Live;
use crate::kv::merge::Pool;
use crate::kv::page::PAGE_BYTES;
use crate::kv::search::{Reader, Search, sort_searches};
use crate::kv::table::{BATCH_PAGES_MAX, BucketReads, Damage, Lookup, Table, TableCounters};
use crate::kv::{Key, Ordinal};

/// Parts of a lookup that are carried out at the same time: handing a read to the kernel takes as long as an SSD takes
/// for it.
const LOOKUP_JOBS: usize = 2;

/// Most pages that each of them reads in one batch: together as many as a lookup at once.
const JOB_PAGES: usize = BATCH_PAGES_MAX / LOOKUP_JOBS;

/// A part of a lookup that was started. All have to be run and handed back to the table that started them.
pub struct LookupJob {
    file: Arc<dyn DiskFile>,
    epoch: u64,
    reads: BucketReads,
    buckets: Arc<Buckets>,
    pool: Pool,
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

/// A part of a lookup that was run: to be handed to [`Table::finish_lookup`].
#[derive(Debug)]
pub struct LookupDone {
    answers: Vec<Lookup>,
    counters: TableCounters,
    damaged: BTreeMap<BucketName, Damage>,
    pool: Pool,
}

impl LookupJob {
    /// Reads. What cannot be read is not found, as in [`Table::lookup`].
    pub fn run(self, disk: &dyn Disk) -> LookupDone {
        let Self { file, epoch, reads, buckets, mut pool, live, keys, searches, mut answers } = self;
        let (mut counters, mut damaged) = (TableCounters::default(), BTreeMap::new());
        let reader = Reader {
            disk,
            file: &file,
            epoch,
            buckets: &buckets,
            reads,
            pool: &mut pool,
            batch_pages: JOB_PAGES,
            counters: &mut counters,
            damaged: &mut damaged,
        };
        reader.streamed_search(&keys, searches, &*live, &mut answers);
        LookupDone { answers, counters, damaged, pool }
    }
}

impl Table {
    /// Looks keys up among staged entries; `out` gets one answer per key, and what is returned is to be searched on disk.
    pub(super) fn look_up_memtable(
        &self,
        keys: &[Key],
        live: &dyn Fn(Ordinal) -> bool,
        out: &mut Vec<Lookup>,
    ) -> Vec<Search> {
        for key in keys {
            self.memtable.prefetch(key);
        }
        let mut searches = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            out.push(match self.memtable.get(key) {
                Some(entry) if live(entry.ordinal) => Lookup::InMemtable(entry),
                found => {
                    searches.push(Search::new(index, key, &self.buckets));
                    if found.is_some() { Lookup::Dead } else { Lookup::Absent }
                }
            });
        }
        searches
    }

    /// Starts to look keys up, as [`Table::lookup`] does at once, in parts that may be carried out in any order, also at
    /// the same time. The table goes on to serve, but takes no flush in until [`Table::finish_lookup`] got what they came
    /// to.
    pub fn start_lookup(&mut self, keys: Vec<Key>, live: &Live) -> Vec<LookupJob> {
        let mut answers = Vec::with_capacity(keys.len());
        let mut searches = self.look_up_memtable(&keys, &**live, &mut answers);
        // Neighbors in the table stay together.
        sort_searches(&mut searches);
        let keys = Arc::new(keys);
        let share = searches.len().div_ceil(LOOKUP_JOBS).max(1);
        let mut jobs = Vec::with_capacity(LOOKUP_JOBS);
        for _ in 0..LOOKUP_JOBS {
            let rest = searches.split_off(share.min(searches.len()));
            jobs.push(LookupJob {
                file: Arc::clone(&self.file),
                epoch: self.epoch,
                reads: self.spec.reads,
                buckets: Arc::clone(&self.buckets),
                pool: self.pools.pop().unwrap_or_else(|| Pool::new(JOB_PAGES * PAGE_BYTES)),
                live: Arc::clone(live),
                keys: Arc::clone(&keys),
                searches: std::mem::replace(&mut searches, rest),
                answers: answers.clone(),
            });
        }
        jobs
    }

    /// Takes what the parts of a lookup came to; returns one answer per key.
    pub fn finish_lookup(&mut self, done: Vec<LookupDone>) -> Vec<Lookup> {
        let mut all: Option<Vec<Lookup>> = None;
        for LookupDone { answers, counters, damaged, pool } in done {
            self.counters.lookup_pages += counters.lookup_pages;
            self.counters.page_reads += counters.page_reads;
            self.counters.whole_reads += counters.whole_reads;
            self.counters.recent_skips += counters.recent_skips;
            self.counters.bytes_read += counters.bytes_read;
            self.counters.damaged_pages += counters.damaged_pages;
            for (bucket, damage) in damaged {
                self.damaged.insert(bucket, damage);
            }
            self.pools.push(pool);
            all = Some(match all {
                None => answers,
                // Each key was searched in one part; in the others it is as its staged entries left it.
                Some(all) => all.into_iter().zip(answers).map(|(one, other)| better(one, other)).collect(),
            });
        }
        all.unwrap_or_default()
    }
}

/// Returns the answer that says more.
fn better(one: Lookup, other: Lookup) -> Lookup {
    match (one, other) {
        (Lookup::InMemtable(_) | Lookup::OnDisk(_), _) | (Lookup::Dead, Lookup::Absent) => one,
        (Lookup::Dead | Lookup::Absent, _) => other,
    }
}
