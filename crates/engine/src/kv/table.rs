//! The bucket table: fingerprints by prefix, each bucket a short chain of sorted runs on disk.
//!
//! Fingerprints are uniform: written one by one each would cost a page read and a page write. So entries are staged in
//! memory, and when staging is nearly full the fullest buckets go out together, each as one sequential run. A chain that
//! gets longer than allowed has its youngest runs merged with the new one (the paper's chain of a bucket, kept
//! searchable: Ma et al., "Lazy Exact Deduplication", section 4). How long, and how much is merged, is drawn per
//! bucket: else all buckets, filling evenly, would merge in the same second.
//!
//! A lookup reads one page per run as a rule, since the first key of every page is known to 1/65,536 of its bucket, and
//! few runs, since all but the oldest of a bucket have a small filter in memory. See `kv::search`.
//!
//! Writing out is a job that runs on any thread while the table serves; see [`crate::kv::flush`]. The number of buckets
//! follows the memory for staging: with each flush some buckets split, or join, until there are as many as fit.
//!
//! Runs are never written over; see [`Extents`]. A damaged page is an empty page: its chunks are not found, and its
//! bucket is named by [`Table::damaged_buckets`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{DeviceProfile, Disk, DiskFile};
use crate::kv::bucket::{BucketName, Buckets, DEPTH_MAX};
use crate::kv::extent::{Extent, Extents};
use crate::kv::install::InFlight;
use crate::kv::manifest::{Manifest, encode_manifest};
use crate::kv::memtable::Memtable;
use crate::kv::merge::{Pool, RunSource, Scratch, TableFile, TransferCounts};
use crate::kv::page::{ENTRY_BYTES, PAGE_BYTES, decode_entry, key_of};
use crate::kv::recent::{RecentBytes, RecentRun};
use crate::kv::run::{PIECE_PAGES, Run};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::search::Reader;
use crate::kv::{Entry, KEY_LEN, Key, Ordinal};

/// Share of the buckets that one flush writes out: the fullest twenty-fourth, so that a run is about 1.8 times what a
/// bucket stages on average and yet reads and writes come in numbers. It frees about a thirteenth of staging.
pub const FLUSH_SHARE: u32 = 24;

/// Fewest buckets that one flush writes out, where there are so many: small tables, too, read and write in numbers.
pub(super) const FLUSH_BUCKETS_MIN: usize = 4;

/// Parts of a flush that are carried out at the same time, with a share of the memory each: while one waits for the
/// disk, another merges.
pub const FLUSH_JOBS: usize = 2;

/// Share of staging that is left when a flush is due: what one flush frees comes in while it runs.
const FREE_SHARE: usize = 12;

/// Staging per bucket that makes runs long enough to write: a power of two of buckets has 14 to 28 KiB each, of which a
/// flush writes 1.8 times as much.
const MEMTABLE_PER_BUCKET: usize = 20 << 10;

/// Bounds of the memory that a flush takes for its buffers.
const MERGE_BUFFER_BYTES_MIN: usize = 1 << 20;
const MERGE_BUFFER_BYTES_MAX: usize = 16 << 20;
/// Share of staging that it takes between them. Four times as much makes flushes faster, but takes memory from the filter,
/// which costs more where the filter is short (decision 0022).
const MERGE_BUFFER_SHARE: usize = 4;

/// Most pages read in one batch.
pub const BATCH_PAGES_MAX: usize = 256;

/// Pieces that a scan reads together.
const SCAN_PIECES: u32 = 8;

/// How lookups read the buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketReads {
    /// Page by page, neighbors together.
    Pages,
    /// From the first page that a batch of lookups wants of a run to the last, in large pieces.
    Whole,
    /// All pages of a run, in large pieces, however few are wanted: what a bucket without an index of its pages costs
    /// (Ma et al., section 3.1). For comparisons.
    Entire,
    /// As takes less time on this device, decided for each run and batch.
    ByDevice(DeviceProfile),
}

/// What a table is made with. It takes `memtable_bytes`, `merge_buffer_bytes` while it flushes, at most
/// `recent_filter_bytes`, 1 MiB for a batch of pages, and two bytes for 127 entries on disk (the fences).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Memory for entries that are not written out yet.
    pub memtable_bytes: usize,
    /// Longest chain of a bucket before runs are merged, at least 1.
    pub runs_max: u32,
    /// Most memory of the filters of young runs. Beyond, the largest of them go without: that costs reads.
    pub recent_filter_bytes: usize,
    /// Memory for what a flush reads, merges and writes.
    pub merge_buffer_bytes: usize,
    /// How lookups read.
    pub reads: BucketReads,
    /// Number of a new table, different from those of all tables that had the same file before, so that none of their
    /// pages is believed. An old table keeps its own.
    pub epoch: u64,
}

impl TableSpec {
    /// Returns what suits a table that stages entries in so much memory; a third of it in addition for young filters.
    pub fn for_memtable(memtable_bytes: usize) -> Self {
        Self {
            memtable_bytes,
            runs_max: 4,
            recent_filter_bytes: memtable_bytes / 3,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            reads: BucketReads::Pages,
            epoch: 0,
        }
    }

    /// Returns the memory that a table takes at most, beside a batch of pages and the fences.
    pub fn memory_bytes_max(&self) -> usize {
        self.memtable_bytes + self.recent_filter_bytes + self.merge_buffer_bytes
    }

    /// Returns the length of the buckets' prefixes that suits the memory for staging. It does not depend on the data.
    pub fn depth(&self) -> u8 {
        let buckets = self.memtable_bytes / (MEMTABLE_PER_BUCKET * 7 / 10);
        buckets.checked_ilog2().and_then(|depth| u8::try_from(depth).ok()).unwrap_or(0).min(DEPTH_MAX)
    }
}

/// Returns the memory for merging that suits the memory for staging.
pub fn merge_buffer_bytes(memtable_bytes: usize) -> usize {
    let share = memtable_bytes / MERGE_BUFFER_SHARE;
    share.clamp(MERGE_BUFFER_BYTES_MIN, MERGE_BUFFER_BYTES_MAX).min(memtable_bytes)
}

/// What the table holds of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// An entry that is not written out yet.
    InMemtable(Entry),
    /// An entry on disk.
    OnDisk(Entry),
    /// Only entries of containers that are not live.
    Dead,
    /// Nothing.
    Absent,
}

/// What is left of the damage in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Damage {
    /// Bad pages.
    OnDisk,
    /// No bad page, but entries that stood on one are missing.
    Rewritten,
}

/// What the table did, since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableCounters {
    /// Pages read for lookups.
    pub lookup_pages: u64,
    /// Reads of single pages or a few neighbors, for lookups.
    pub page_reads: u64,
    /// Reads of all between the pages that lookups wanted of a run.
    pub whole_reads: u64,
    /// Runs that lookups passed by because of their filters.
    pub recent_skips: u64,
    /// Filters that were given up to keep the cap.
    pub recent_filters_dropped: u64,
    /// Most bytes that filters of young runs took.
    pub recent_bytes_max: u64,
    /// Bytes read for lookups, merges and scans.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Pages that were bad or unreadable.
    pub damaged_pages: u64,
    /// Runs written.
    pub runs_written: u64,
    /// Runs that a merge took in.
    pub runs_merged: u64,
    /// Groups of several buckets that were merged together.
    pub merges_grouped: u64,
    /// Buckets that were merged piece by piece, since they did not fit into the buffers.
    pub merges_streamed: u64,
    /// Buckets that were divided.
    pub buckets_split: u64,
    /// Pairs of buckets that became one.
    pub buckets_joined: u64,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) spec: TableSpec,
    pub(super) epoch: u64,
    /// Shared with lookups that go on beside; it changes only while there are none.
    pub(super) buckets: Arc<Buckets>,
    pub(super) memtable: Memtable,
    pub(super) space: Extents,
    pub(super) next_run: u64,
    /// Runs from this number on are in no checkpoint: their pages are free as soon as they are replaced.
    pub(super) unsaved_run: u64,
    /// What [`Table::unsaved_run`] becomes when the last save is durable.
    saving_run: u64,
    pub(super) recent: RecentBytes,
    pub(super) in_flight: Option<InFlight>,
    pub(super) damaged: BTreeMap<BucketName, Damage>,
    pub(super) counters: TableCounters,
    pool: Pool,
    /// Memory of the last lookup beside, for the next.
    pub(super) pools: Vec<Pool>,
    /// Memory of the last flush, for the next.
    pub(super) scratches: Vec<Scratch>,
}

impl Table {
    /// Makes an empty table over an empty file.
    pub fn new(file: Arc<dyn DiskFile>, spec: TableSpec) -> Self {
        let (epoch, buckets) = (spec.epoch, Buckets::empty(spec.depth()));
        Self::with(file, spec, Manifest { generation: 0, epoch, next_run: 0, space: Extents::default(), buckets })
    }

    /// Opens a table that a checkpoint described. Where it has more or fewer buckets than suit the specification, that
    /// changes with the flushes to come.
    pub fn open(file: Arc<dyn DiskFile>, spec: TableSpec, manifest: Manifest) -> Result<Self> {
        let bytes = manifest.space.end().checked_mul(PAGE_BYTES as u64);
        if bytes.is_none_or(|bytes| file.len().is_ok_and(|len| len < bytes)) {
            return Err(Error::damaged("fingerprint table", "shorter than its manifest says"));
        }
        Ok(Self::with(file, spec, manifest))
    }

    fn with(file: Arc<dyn DiskFile>, spec: TableSpec, manifest: Manifest) -> Self {
        let Manifest { epoch, next_run, space, buckets, .. } = manifest;
        let mut recent = RecentBytes::new(spec.recent_filter_bytes);
        for bucket in buckets.iter() {
            bucket.runs.iter().for_each(|run| recent.add((bucket.name, run.id), &run.recent));
        }
        let mut table = Self {
            memtable: Memtable::new(spec.memtable_bytes, buckets.count()),
            file,
            spec,
            epoch,
            buckets: Arc::new(buckets),
            space,
            next_run,
            unsaved_run: next_run,
            saving_run: next_run,
            recent,
            in_flight: None,
            damaged: BTreeMap::new(),
            counters: TableCounters::default(),
            pool: Pool::new(BATCH_PAGES_MAX * PAGE_BYTES),
            pools: Vec::new(),
            scratches: Vec::new(),
        };
        table.keep_recent_cap();
        table
    }

    /// Returns the buckets for changing them. No lookup may go on beside.
    pub(super) fn buckets_mut(&mut self) -> &mut Buckets {
        Arc::get_mut(&mut self.buckets).expect("lookups that go on beside have ended before the table changes")
    }

    /// Gives up the largest filters until the cap is kept.
    pub(super) fn keep_recent_cap(&mut self) {
        while let Some((bucket, id)) = self.recent.surplus() {
            self.counters.recent_filters_dropped += 1;
            let number = self.buckets.number_of(bucket.first_head());
            let runs = &mut self.buckets_mut().get_mut(number).runs;
            if let Some(run) = runs.iter_mut().find(|run| run.id == id) {
                run.recent = Vec::new();
            }
        }
        self.counters.recent_bytes_max = self.counters.recent_bytes_max.max(self.recent.bytes() as u64);
    }

    /// Returns how lookups read.
    pub fn reads(&self) -> BucketReads {
        self.spec.reads
    }

    /// Returns the number that tells this table from others that had its file before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns what was counted.
    pub fn counters(&self) -> TableCounters {
        self.counters
    }

    /// Returns how many buckets there are.
    pub fn buckets(&self) -> usize {
        self.buckets.count()
    }

    /// Returns the length of the longest chain.
    #[cfg(test)]
    pub(crate) fn longest_chain(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.runs.len()).max().unwrap_or(0)
    }

    /// Returns the buckets in which a bad page was found, by what their keys begin with. A flush to come rewrites them
    /// without it; what stood on it has to be added again, from what the containers say.
    pub fn damaged_buckets(&self) -> Vec<BucketName> {
        self.damaged.keys().copied().collect()
    }

    /// Says whether a bad page that was met is still part of the table: the next flushes write its bucket anew without.
    pub fn has_damaged_pages(&self) -> bool {
        self.damaged.values().any(|damage| *damage == Damage::OnDisk)
    }

    /// Takes note that all entries of a damaged bucket were added again. It is no longer named, unless its bad page was
    /// not rewritten yet and is found again.
    pub fn forget_damage(&mut self, bucket: BucketName) {
        self.damaged.remove(&bucket);
    }

    /// Returns the memory taken now, and by the buffers of a flush, which is not always running.
    pub fn memory_bytes(&self) -> usize {
        let runs = self.buckets.iter().flat_map(|bucket| &bucket.runs).map(Run::memory_bytes).sum::<usize>();
        let buffers = BATCH_PAGES_MAX * PAGE_BYTES + self.spec.merge_buffer_bytes;
        self.memtable.memory_bytes() + self.buckets.memory_bytes() + runs + buffers
    }

    /// Returns how many bytes of the file wait for the next checkpoint to become free, and how many are in use at all.
    pub fn retired_and_used_bytes(&self) -> (u64, u64) {
        (self.space.retired_pages() * PAGE_BYTES as u64, self.space.end() * PAGE_BYTES as u64)
    }

    /// Says whether an entry can be added without a flush.
    pub fn has_space(&self) -> bool {
        !self.memtable.is_full()
    }

    /// Says whether it is time to start a flush: enough room is left for what comes while it runs.
    pub fn wants_flush(&self) -> bool {
        let (free, all) = self.memtable.space();
        self.in_flight.is_none() && free <= all / FREE_SHARE
    }

    /// Says whether a flush was started and not finished.
    pub fn is_flushing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Asks for the memory of staging for a key that will be added soon.
    pub fn prefetch(&self, key: &Key) {
        self.memtable.prefetch(key);
        self.memtable.prefetch_end(self.buckets.number_of(key.head()));
    }

    /// Adds an entry, or replaces the staged one of the same key. There must be room.
    pub fn insert(&mut self, entry: &Entry) {
        self.memtable.insert(self.buckets.number_of(entry.key.head()), entry);
    }

    /// Looks keys up, among staged entries first; `out` gets one answer per key. Entries that are not live are passed by.
    pub fn lookup(&mut self, disk: &dyn Disk, keys: &[Key], live: &dyn Fn(Ordinal) -> bool, out: &mut Vec<Lookup>) {
        out.clear();
        let searches = self.look_up_memtable(keys, live, out);
        let mut reader = Reader {
            disk,
            file: &self.file,
            epoch: self.epoch,
            buckets: &self.buckets,
            reads: self.spec.reads,
            pool: &mut self.pool,
            batch_pages: BATCH_PAGES_MAX,
            counters: &mut self.counters,
            damaged: &mut self.damaged,
        };
        reader.search(keys, searches, live, out);
    }

    /// Makes the pages durable and writes down where they lie and what is staged. No flush may be running.
    pub fn save(&mut self, generation: u64, manifest: &mut SealedWriter, staged: &mut SealedWriter) -> Result<()> {
        if self.is_flushing() {
            return Err(Error::invalid("the fingerprint table is being written out and cannot be saved"));
        }
        self.file.sync()?;
        let mut write = |bytes: &[u8]| manifest.write(bytes);
        let file_pages = self.space.end();
        encode_manifest((generation, self.epoch), self.next_run, file_pages, &self.buckets, &mut write)?;
        let mut entries = Vec::new();
        for bucket in self.buckets.numbers() {
            entries.clear();
            self.memtable.list(bucket, &mut entries);
            staged.write(entries.as_flattened())?;
        }
        self.space.mark_retired();
        self.saving_run = self.next_run;
        Ok(())
    }

    /// Takes note that what was saved is durable: pages that only older checkpoints refer to become free.
    pub fn saved(&mut self) {
        self.space.free_retired();
        self.unsaved_run = self.saving_run;
    }

    /// Stages the entries that were staged when the table was saved, flushing where this table stages fewer.
    /// After an error the table must not be used.
    pub fn load_staged(&mut self, disk: &dyn Disk, mut from: SealedReader) -> Result<()> {
        let mut bytes = [0; ENTRY_BYTES];
        while from.left() != 0 {
            from.read(&mut bytes)?;
            if !self.has_space() {
                // Nothing is known to be dead before the live containers are.
                self.flush(disk, &|_| true)?;
            }
            self.insert(&decode_entry(&bytes));
        }
        from.finish()
    }

    /// Calls `each` with every key whose head lies in a range, in no order; keys on damaged pages are left out. No flush
    /// may be running.
    pub fn scan(&mut self, disk: &dyn Disk, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) {
        let mut scratch = self.take_scratch();
        let mut entries = Vec::new();
        let mut each = |key: &[u8; KEY_LEN]| {
            let key = Key(*key);
            if heads.contains(&key.head()) {
                each(&key);
            }
        };
        for number in self.buckets.numbers() {
            let bucket = self.buckets.get(number);
            if bucket.name.last_head() < *heads.start() || *heads.end() < bucket.name.first_head() {
                continue;
            }
            let counts = TransferCounts::default();
            let mut pieces = TableFile { disk, file: &self.file, epoch: self.epoch, counts };
            for run in &bucket.runs {
                let mut source = RunSource::of_run(run.place());
                while !source.is_done() {
                    pieces.fill(std::iter::once(&mut source), SCAN_PIECES * PIECE_PAGES, &mut scratch);
                    source.ready().iter().for_each(|entry| each(key_of(entry)));
                    source.skip_ready();
                }
            }
            if pieces.counts.damaged_pages != 0 {
                self.damaged.insert(bucket.name, Damage::OnDisk);
            }
            self.counters.bytes_read += pieces.counts.bytes_read;
            self.counters.damaged_pages += pieces.counts.damaged_pages;
            entries.clear();
            self.memtable.list(number, &mut entries);
            for entry in &entries {
                each(key_of(entry));
            }
        }
        self.scratches.push(scratch);
    }

    /// Frees the pages of a run that nothing looks up any more, and its filter.
    pub(super) fn drop_run(&mut self, bucket: BucketName, run: &Run) {
        let named: RecentRun = (bucket, run.id);
        self.recent.remove(named, &run.recent);
        self.counters.runs_merged += 1;
        self.free_extent(run.id, run.extent());
    }

    fn free_extent(&mut self, run: u64, extent: Extent) {
        if run < self.unsaved_run { self.space.retire(extent) } else { self.space.release(extent) }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
