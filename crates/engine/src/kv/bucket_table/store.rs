//! The bucket table as a store: its flushes and lookups in the background.
//!
//! At most one flush and one lookup run at a time, each in several jobs. A job owns its inputs. The caller takes its results
//! at points that the stream decides, so the speed of a disk changes no verdict.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::background::Background;
use crate::io::{Disk, DiskFile, Host};
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::flush::FlushDone;
use crate::kv::bucket_table::lookup::LookupDone;
use crate::kv::bucket_table::page::{decode_entry, key_of};
use crate::kv::bucket_table::spec::TableSpec;
use crate::kv::bucket_table::table::Table;
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::store::{Containers, EntryStore, Lookup, OpenStore, StoreCounters, Surroundings};
use crate::kv::{Entry, Key};

/// File of the pages.
const FILE: &str = "table";

/// A flush of the table, in several jobs.
#[derive(Debug, Default)]
struct BackgroundFlush {
    running: VecDeque<Background<Result<FlushDone>>>,
    done: Vec<Result<FlushDone>>,
}

impl BackgroundFlush {
    /// Returns true if a part has not ended.
    fn is_running(&mut self) -> bool {
        while self.running.front_mut().is_some_and(Background::has_ended) {
            self.done.extend(self.running.pop_front().map(|part| part.wait().flatten()));
        }
        !self.running.is_empty()
    }

    /// Waits for its end; returns the results of its parts in order.
    fn wait(self) -> Result<Vec<FlushDone>> {
        let Self { running, mut done } = self;
        // All parts end before an error is returned: until then they may write.
        done.extend(running.into_iter().map(|part| part.wait().flatten()));
        done.into_iter().collect()
    }
}

/// A lookup of the table in the background.
#[derive(Debug)]
enum BackgroundLookup {
    /// Its parts run.
    Running(Vec<Background<LookupDone>>),
    /// It has ended; its answers are not taken yet.
    Ended(Vec<Lookup>),
}

/// The table with its flush and its lookup in the background.
///
/// A flush merges entries of the memtable into runs. The entries stay in the memtable, and are found there, until the runs
/// are installed. The next flush starts when the memtable is nearly full again.
#[derive(Debug)]
pub(in crate::kv) struct BucketTable {
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    /// Not to be flushed or looked up directly.
    table: Table,
    flush: Option<BackgroundFlush>,
    lookup: Option<BackgroundLookup>,
    /// Nanoseconds for which [`EntryStore::make_space`] has waited.
    wait_nanos: u64,
}

impl BucketTable {
    fn new(surroundings: Surroundings<'_>, table: Table) -> Self {
        let (disk, host) = (Arc::clone(surroundings.disk), Arc::clone(surroundings.host));
        Self { disk, host, table, flush: None, lookup: None, wait_nanos: 0 }
    }

    /// Waits for the lookup in the background, and keeps its answers until they are taken.
    fn wait_for_lookup(&mut self) {
        self.lookup = match self.lookup.take() {
            Some(BackgroundLookup::Running(parts)) => {
                let done = parts.into_iter().map(|part| part.wait().expect("a lookup ends with answers")).collect();
                Some(BackgroundLookup::Ended(self.table.finish_lookup(done)))
            }
            other => other,
        };
    }

    fn start_flush(&mut self, containers: &mut dyn Containers) -> Result<()> {
        let sync = containers.begin_sync()?;
        let mut flush = BackgroundFlush::default();
        for job in self.table.start_flush(&containers.live()) {
            let (disk, sync) = (Arc::clone(&self.disk), Arc::clone(&sync));
            // Containers before entries: a number in the table must mean the same container after a power cut.
            let run = move || sync().map(|()| job.run(&*disk));
            flush.running.push_back(Background::start(&self.host, "flush", run));
        }
        self.flush = Some(flush);
        Ok(())
    }

    /// Waits for the flush in the background, if one runs, and installs its runs.
    fn finish_flush(&mut self) -> Result<()> {
        let Some(flush) = self.flush.take() else { return Ok(()) };
        let done = flush.wait();
        // A lookup may read pages that installing frees.
        self.wait_for_lookup();
        self.table.finish_flush(done?)
    }
}

impl EntryStore for BucketTable {
    fn look_up(&mut self, keys: &[Key], containers: &dyn Containers) -> Vec<Lookup> {
        let mut answers = Vec::with_capacity(keys.len());
        self.table.lookup(&*self.disk, keys, &|ordinal| containers.is_live(ordinal), &mut answers);
        answers
    }

    fn start_look_up(&mut self, keys: Vec<Key>, containers: &dyn Containers) {
        assert!(self.lookup.is_none(), "the answers of a lookup are taken before the next starts");
        let mut running = Vec::new();
        for job in self.table.start_lookup(keys, &containers.live()) {
            let disk = Arc::clone(&self.disk);
            running.push(Background::start(&self.host, "lookup", move || job.run(&*disk)));
        }
        self.lookup = Some(BackgroundLookup::Running(running));
    }

    fn finish_look_up(&mut self) -> Option<Vec<Lookup>> {
        self.wait_for_lookup();
        match self.lookup.take()? {
            BackgroundLookup::Ended(answers) => Some(answers),
            BackgroundLookup::Running(_) => None,
        }
    }

    fn insert(&mut self, entries: &[Entry]) -> usize {
        for entry in entries {
            self.table.prefetch(&entry.key);
        }
        for (index, entry) in entries.iter().enumerate() {
            if !self.table.has_space() {
                return index;
            }
            self.table.insert(entry);
        }
        entries.len()
    }

    fn make_space(&mut self, containers: &mut dyn Containers) -> Result<()> {
        if self.table.has_space() {
            return Ok(());
        }
        let start = self.host.monotonic();
        while !self.table.has_space() {
            if self.flush.is_none() {
                self.start_flush(containers)?;
            }
            self.finish_flush()?;
        }
        let waited = self.host.monotonic().saturating_sub(start);
        self.wait_nanos += u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Installs a flush that has ended, and starts another if one is due.
    fn maintain(&mut self, containers: &mut dyn Containers) -> Result<()> {
        if let Some(flush) = &mut self.flush {
            if flush.is_running() {
                return Ok(());
            }
            self.finish_flush()?;
        }
        if self.table.wants_flush() { self.start_flush(containers) } else { Ok(()) }
    }

    /// Rewrites damaged buckets without their bad pages.
    fn repair(&mut self, containers: &mut dyn Containers) -> Result<Vec<RangeInclusive<u64>>> {
        self.finish_flush()?;
        let damaged = self.table.damaged_buckets();
        for _ in 0..damaged.len() {
            if !self.table.has_damaged_pages() {
                break;
            }
            self.start_flush(containers)?;
            self.finish_flush()?;
        }
        for &bucket in &damaged {
            self.table.forget_damage(bucket);
        }
        Ok(damaged.into_iter().map(BucketName::heads).collect())
    }

    fn damage(&self) -> Vec<RangeInclusive<u64>> {
        self.table.damaged_buckets().into_iter().map(BucketName::heads).collect()
    }

    fn keys_in(&mut self, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()> {
        // The table is whole only between two flushes.
        self.finish_flush()?;
        self.table.scan(&*self.disk, heads, &mut |entry| each(&Key(*key_of(entry))));
        Ok(())
    }

    fn list(&mut self, each: &mut dyn FnMut(&Entry)) -> Result<bool> {
        self.finish_flush()?;
        self.table.scan(&*self.disk, 0..=u64::MAX, &mut |entry| each(&decode_entry(entry)));
        Ok(true)
    }

    fn save(&mut self, generation: u64, _containers: &mut dyn Containers, parts: &mut [SealedWriter]) -> Result<()> {
        self.finish_flush()?;
        let [manifest, memtable] = parts else { panic!("a bucket table has the parts that it names") };
        self.table.save(generation, manifest, memtable)
    }

    fn saved(&mut self) {
        self.table.saved();
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    fn counters(&self) -> StoreCounters {
        let table = self.table.counters();
        let (retired_bytes, used_bytes) = self.table.retired_and_used_bytes();
        StoreCounters {
            lookup_pages: table.lookup_pages,
            pages_needed: table.pages_needed,
            lookup_reads: table.page_reads + table.whole_reads,
            bytes_read: table.bytes_read,
            bytes_written: table.bytes_written,
            damaged_pages: table.damaged_pages,
            runs_merged: table.runs_merged,
            buckets_changed: table.buckets_split + table.buckets_joined,
            wait_nanos: self.wait_nanos,
            used_bytes,
            retired_bytes,
        }
    }
}

impl Drop for BucketTable {
    fn drop(&mut self) {
        // The flush writes into the table file: the index keeps its lock until the flush ends.
        if let Some(flush) = self.flush.take() {
            let _ = flush.wait();
        }
    }
}

/// Opens bucket tables. The epoch of the specification is ignored: a new table has the one that it is given.
impl OpenStore for TableSpec {
    fn parts(&self) -> &'static [&'static str] {
        &["manifest", "staged"]
    }

    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        let file: Arc<dyn DiskFile> = (surroundings.file)(FILE)?;
        let table = Table::new(file, Self { epoch, ..*self });
        Ok(Box::new(BucketTable::new(surroundings, table)))
    }

    fn open(
        &self,
        surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)> {
        let wrong = |_| Error::damaged("fingerprint table", "has other parts");
        let [manifest, memtable] = <[SealedReader; 2]>::try_from(parts).map_err(wrong)?;
        let mut table = Table::open((surroundings.file)(FILE)?, *self, generation, manifest)?;
        table.load_memtable(&**surroundings.disk, memtable)?;
        let epoch = table.epoch();
        Ok((Box::new(BucketTable::new(surroundings, table)), epoch))
    }
}
