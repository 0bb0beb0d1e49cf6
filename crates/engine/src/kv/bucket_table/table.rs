//! The bucket table: fingerprints by prefix, each bucket a short chain of sorted runs on disk.
//!
//! Fingerprints are uniform, so each single insert would read and write a page. The table collects entries in a memtable
//! instead. When it is nearly full, a flush writes the fullest buckets, each as one sequential run. A chain that exceeds
//! its limit is merged from its newest runs on (the chain of a bucket in the paper, kept searchable: Ma et al., "Lazy
//! Exact Deduplication", section 4). The limits are drawn per bucket: buckets fill evenly, and with equal limits all would
//! merge in the same second.
//!
//! A lookup usually reads one page per run, because memory holds the first key of every page to 1/65,536 of its bucket.
//! It visits few runs, because all runs of a bucket but the oldest have a small filter in memory. See `kv::search`.
//!
//! A flush is a set of jobs that run on any thread while the table serves; see [`crate::kv::flush`]. The number of buckets
//! follows the size of the memtable: each flush splits or joins some buckets until as many exist as fit.
//!
//! Runs are never overwritten; see `kv::extent`. A damaged page is an empty page: its chunks are not found, and
//! [`Table::damaged_buckets`] names its bucket.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{Disk, DiskFile};
use crate::kv::bucket_table::bucket::Buckets;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::change::choose;
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::damage::DamagedBuckets;
use crate::kv::bucket_table::disk_runs::DiskRuns;
use crate::kv::bucket_table::extent::Extents;
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::flush::{FlushDone, FlushJob, Plan};
use crate::kv::bucket_table::flush_state::{FlushState, Target};
use crate::kv::bucket_table::lookup::{LookupDone, LookupEffects, LookupJob, Lookups};
use crate::kv::bucket_table::manifest::{Manifest, read_manifest};
use crate::kv::bucket_table::memtable::Memtable;
use crate::kv::bucket_table::page::{ENTRY_BYTES, EntryBytes, PAGE_BYTES, decode_entry, head_of};
use crate::kv::bucket_table::run_source::RunIo;
use crate::kv::bucket_table::spec::{BATCH_PAGES_MAX, TableSpec};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::store::{Live, Lookup};
use crate::kv::{Entry, Key, Ordinal};

/// Share of the memtable that is free when a flush is due: as much as comes in while it runs.
const FREE_SHARE: usize = 12;

/// Entries that are read before the first of them is added, while the memory that they go to is on its way.
const LOADED_ENTRIES: usize = 64;

/// The table.
#[derive(Debug)]
pub struct Table {
    spec: TableSpec,
    runs: DiskRuns,
    memtable: Memtable,
    flush: FlushState,
    lookups: Lookups,
    damaged: DamagedBuckets,
    counters: TableCounters,
}

impl Table {
    /// Makes an empty table over an empty file.
    pub fn new(file: Arc<dyn DiskFile>, spec: TableSpec) -> Self {
        let (epoch, buckets) = (spec.epoch, Buckets::empty(spec.depth()));
        Self::with(file, spec, Manifest { epoch, next_run: 0, space: Extents::default(), buckets })
    }

    /// Opens a table that the checkpoint of a generation described. If more or fewer buckets suit the specification, later flushes split or
    /// join them.
    pub(crate) fn open(
        file: Arc<dyn DiskFile>,
        spec: TableSpec,
        generation: u64,
        manifest: SealedReader,
    ) -> Result<Self> {
        let manifest = read_manifest(generation, manifest)?;
        let bytes = manifest.space.end().checked_mul(PAGE_BYTES as u64);
        if bytes.is_none_or(|bytes| file.len().is_ok_and(|len| len < bytes)) {
            return Err(Error::damaged("fingerprint table", "shorter than its manifest says"));
        }
        Ok(Self::with(file, spec, manifest))
    }

    fn with(file: Arc<dyn DiskFile>, spec: TableSpec, manifest: Manifest) -> Self {
        let mut counters = TableCounters::default();
        let memtable = Memtable::new(spec.memtable_bytes, manifest.buckets.count());
        let mut runs = DiskRuns::new(TableFile::new(file, manifest.epoch), spec.recent_filter_bytes, manifest);
        runs.limit_filters(&mut counters);
        Self {
            spec,
            runs,
            memtable,
            flush: FlushState::new(spec.merge_buffer_bytes),
            lookups: Lookups::new(spec.reads, spec.order),
            damaged: DamagedBuckets::default(),
            counters,
        }
    }

    /// Returns the number that differs from those of all earlier tables of the file.
    pub(crate) fn epoch(&self) -> u64 {
        self.runs.file().epoch()
    }

    /// Returns the counters.
    pub fn counters(&self) -> TableCounters {
        self.counters
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.runs.buckets().count()
    }

    /// Returns the length of the longest chain.
    #[cfg(test)]
    pub(crate) fn longest_chain(&self) -> usize {
        self.runs.buckets().iter().map(|bucket| bucket.runs.len()).max().unwrap_or(0)
    }

    /// Returns the buckets in which a damaged page was found. A later flush rewrites them without the page; the caller has
    /// to add its entries again, from the containers.
    pub(crate) fn damaged_buckets(&self) -> Vec<BucketName> {
        self.damaged.names().collect()
    }

    /// Returns true if a damaged page that was found is still part of the table: the next flushes rewrite its bucket.
    pub(crate) fn has_damaged_pages(&self) -> bool {
        self.damaged.on_disk().next().is_some()
    }

    /// Notes that all entries of a damaged bucket were added again. A damaged page that was not rewritten yet names the
    /// bucket again when it is found.
    pub(crate) fn forget_damage(&mut self, bucket: BucketName) {
        self.damaged.forget(bucket);
    }

    /// Returns the memory in use, with the buffers of a flush even if none is running.
    pub fn memory_bytes(&self) -> usize {
        let buffers = BATCH_PAGES_MAX * PAGE_BYTES + self.spec.merge_buffer_bytes;
        self.memtable.memory_bytes() + self.runs.memory_bytes() + buffers
    }

    /// Returns the bytes of the file that the next checkpoint frees, and the bytes in use.
    pub(crate) fn retired_and_used_bytes(&self) -> (u64, u64) {
        self.runs.retired_and_used_bytes()
    }

    /// Returns true if an entry can be added without a flush.
    pub fn has_space(&self) -> bool {
        !self.memtable.is_full()
    }

    /// Returns true if it is time to start a flush: just enough of the memtable is free for the entries that come while it
    /// runs.
    pub fn wants_flush(&self) -> bool {
        let (free, all) = self.memtable.space();
        !self.is_flushing() && free <= all / FREE_SHARE
    }

    /// Returns true if a flush was started and not finished.
    pub fn is_flushing(&self) -> bool {
        self.flush.is_running()
    }

    /// Prefetches the memory of the memtable for a key that will be added soon.
    pub fn prefetch(&self, key: &Key) {
        self.memtable.prefetch(key);
        self.memtable.prefetch_end(self.runs.buckets().number_of(key.head()));
    }

    /// Adds an entry, or replaces the one of the same key in the memtable. Call [`Table::has_space`] first.
    pub fn insert(&mut self, entry: &Entry) {
        self.memtable.insert(self.runs.buckets().number_of(entry.key.head()), entry);
    }

    /// Looks keys up. `out` gets one answer per key; entries that are not live are skipped. Keys on unreadable pages are
    /// not found.
    pub fn lookup(&mut self, disk: &dyn Disk, keys: &[Key], live: &dyn Fn(Ordinal) -> bool, out: &mut Vec<Lookup>) {
        let effects = self.lookups.run(disk, (&self.memtable, &self.runs), keys, live, out);
        self.note(effects);
    }

    /// Starts to look keys up as [`Table::lookup`] does, in parts that may run in any order, also at the same time. The
    /// table continues to serve, but must not finish a flush before [`Table::finish_lookup`].
    pub(crate) fn start_lookup(&mut self, keys: Vec<Key>, live: &Live) -> Vec<LookupJob> {
        self.lookups.start((&self.memtable, &self.runs), keys, live)
    }

    /// Takes the results of all parts of a lookup. Returns one answer per key.
    pub(crate) fn finish_lookup(&mut self, done: Vec<LookupDone>) -> Vec<Lookup> {
        let (answers, effects) = self.lookups.finish(done);
        for effects in effects {
            self.note(effects);
        }
        answers
    }

    fn note(&mut self, LookupEffects { counters, damaged }: LookupEffects) {
        self.counters.add(&counters);
        for bucket in damaged {
            self.damaged.add(bucket);
        }
    }

    /// Writes the fullest buckets. After an error the table is as it was. No flush may be running.
    pub(crate) fn flush(&mut self, disk: &dyn Disk, live: &dyn Fn(Ordinal) -> bool) -> Result<()> {
        let done = self.plan_flush().into_iter().map(|plan| plan.run(disk, live)).collect();
        self.finish_flush(done)
    }

    /// Starts to write the fullest buckets, in parts that may run in any order, also at the same time. The table continues
    /// to serve, but neither saves nor starts another flush before [`Table::finish_flush`].
    pub fn start_flush(&mut self, live: &Live) -> Vec<FlushJob> {
        self.plan_flush().into_iter().map(|plan| FlushJob::new(plan, live)).collect()
    }

    fn plan_flush(&mut self) -> Vec<Plan> {
        let changes = choose(&self.spec, self.runs.buckets(), &self.memtable, &self.damaged);
        self.flush.start(changes, &mut self.runs, &mut self.memtable)
    }

    /// Installs the results of a flush, one for each of its parts in order. After an error, which may be one of the flush,
    /// the table is as it was.
    pub fn finish_flush(&mut self, done: Vec<FlushDone>) -> Result<()> {
        let Self { runs, memtable, damaged, counters, .. } = self;
        self.flush.finish(done, Target { runs, memtable, damaged, counters })
    }

    /// Makes the pages durable, and writes the manifest and the entries of the memtable. No flush may be running.
    pub(crate) fn save(
        &mut self,
        generation: u64,
        manifest: &mut SealedWriter,
        buffered: &mut SealedWriter,
    ) -> Result<()> {
        assert!(!self.is_flushing(), "a flush ends before the table is saved");
        self.runs.save(generation, &mut |bytes| manifest.write(bytes))?;
        let mut entries = Vec::new();
        for bucket in self.runs.buckets().numbers() {
            entries.clear();
            self.memtable.list(bucket, &mut entries);
            buffered.write(entries.as_flattened())?;
        }
        self.runs.mark_saved();
        Ok(())
    }

    /// Notes that the last save is durable: pages that only older checkpoints refer to become free.
    pub(crate) fn saved(&mut self) {
        self.runs.free_retired();
    }

    /// Adds the entries that [`Table::save`] wrote from the memtable, and flushes if this memtable is smaller. After an
    /// error the table must not be used.
    pub(crate) fn load_memtable(&mut self, disk: &dyn Disk, mut from: SealedReader) -> Result<()> {
        let mut entries = Vec::with_capacity(LOADED_ENTRIES);
        let mut bytes = [0; ENTRY_BYTES];
        while from.left() != 0 {
            entries.clear();
            while entries.len() < LOADED_ENTRIES && from.left() != 0 {
                from.read(&mut bytes)?;
                let entry = decode_entry(&bytes);
                self.prefetch(&entry.key);
                entries.push(entry);
            }
            for entry in &entries {
                if !self.has_space() {
                    // The live containers are not known yet.
                    self.flush(disk, &|_| true)?;
                }
                self.insert(entry);
            }
        }
        from.finish()
    }

    /// Calls `each` with every entry whose head is in a range, in no particular order, without those on damaged pages. No
    /// flush may be running.
    pub(in crate::kv) fn scan(
        &mut self,
        disk: &dyn Disk,
        heads: RangeInclusive<u64>,
        each: &mut dyn FnMut(&EntryBytes),
    ) {
        let mut buffers = self.flush.take_buffers();
        let mut buffered = Vec::new();
        let mut each = |entry: &EntryBytes| {
            if heads.contains(&head_of(entry)) {
                each(entry);
            }
        };
        let mut io = RunIo::new(disk, self.runs.file());
        let buckets = self.runs.buckets();
        for number in buckets.numbers() {
            let bucket = buckets.get(number);
            if bucket.name.last_head() < *heads.start() || *heads.end() < bucket.name.first_head() {
                continue;
            }
            for run in &bucket.runs {
                if !io.scan(run, buffers.pool(), &mut each) {
                    self.damaged.add(bucket.name);
                }
            }
            buffered.clear();
            self.memtable.list(number, &mut buffered);
            buffered.iter().for_each(&mut each);
        }
        self.counters.add(io.counters());
        self.flush.give_buffers(buffers);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
