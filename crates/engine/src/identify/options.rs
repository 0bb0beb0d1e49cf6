//! How an index works: its schedule, and its division of the memory budget.

use std::sync::Arc;

use crate::identify::SequencedChunk;
use crate::identify::exact::arrivals::ARRIVAL_BYTES;
use crate::identify::exact::cache::BLOCK_BYTES;
use crate::identify::exact::stream_queue::{QUEUE_MIN, WAITING_BYTES};
use crate::identify::locality::arrival_log::{COPY_BYTES, LOG_PAGE_RECORDS, LogRecord, TAIL_PAGES, WINDOW_RECORDS};
use crate::identify::locality::frame::FRAME_BYTES;
use crate::identify::sampling::{SAMPLING_RATIO, Sampling};
use crate::identify::schedule::adaptive::POOLS_PENDING;
use crate::identify::schedule::planner::planning_bytes;
use crate::identify::segmenting::Segmenting;
use crate::identify::selection::Selection;
use crate::identify::unit::NEAR_EXACT;
pub use crate::identify::unit::{Completeness, PrefetchUnit, WindowRule};
use crate::kv::{
    BATCH_PAGES_MAX, BucketReads, Entry, MemorySpec, OpenStore, Ordinal, PAGE_BYTES, RunOrder, TableSpec,
    merge_buffer_bytes,
};
use crate::types::Fingerprint;

/// When to look up chunks that pass the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each immediately (Ma et al.'s baseline).
    Eager,
    /// One bucket of pending chunks at a time. A hit resolves the others of its cycle (Ma et al.).
    Lazy {
        /// Different pending chunks of a bucket that start its lookup; 0 counts as 1.
        threshold: u32,
    },
    /// All pending chunks, in rounds. A round looks up the first chunk of each run, and the log windows resolve most of the
    /// others.
    Pool {
        /// Different pending chunks that start a round; 0 counts as 1.
        candidates: u32,
    },
    /// Like lazy, but a hit resolves any pending chunk (Ma et al.'s comparison, "buffer-exhausting").
    Exhaustive {
        /// As in [`Schedule::Lazy`].
        threshold: u32,
    },
    /// As a pool, or as the plan that would have cost least on the recent stream: it says what waits, and what is read.
    Adaptive,
}

/// Which pending chunks the records of a log window are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Postlookup {
    /// All, record by record, in the map of pending chunks.
    Records,
    /// Those of the hit's cycle, in the cache.
    Cycle,
    /// All, in the cache.
    Pending,
}

impl Schedule {
    /// Returns true if all pending chunks form one pool.
    pub(in crate::identify) fn is_pool(self) -> bool {
        match self {
            Self::Pool { .. } | Self::Adaptive => true,
            Self::Eager | Self::Lazy { .. } | Self::Exhaustive { .. } => false,
        }
    }

    /// Returns true if the schedule plans by the recent stream.
    pub(in crate::identify) fn plans(self) -> bool {
        matches!(self, Self::Adaptive)
    }

    /// Returns true if pending chunks are looked up bucket by bucket.
    pub(in crate::identify) fn has_buckets(self) -> bool {
        self.postlookup() != Postlookup::Records
    }

    /// Returns how log windows resolve pending chunks.
    pub(in crate::identify) fn postlookup(self) -> Postlookup {
        match self {
            Self::Eager | Self::Pool { .. } | Self::Adaptive => Postlookup::Records,
            Self::Lazy { .. } => Postlookup::Cycle,
            Self::Exhaustive { .. } => Postlookup::Pending,
        }
    }
}

/// When an arriving chunk probes the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prelookup {
    /// Always.
    Always,
    /// Never.
    Never,
    /// From a batch with a duplicate at its end, until misses exceed hits by ten. (From the implementation by Ma et al.; the
    /// paper does not specify it.)
    Adaptive,
}

/// Order of the queries for an arriving chunk, after the map of in-flight chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The filter, then the cache for chunks that pass the filter (Ma et al.).
    FilterFirst,
    /// The cache, then the filter for chunks that the cache does not hold. A hit saves the probe of the filter; a unique
    /// chunk pays for both (Li et al., "Towards Optimizing Deduplication on Persistent Memory", NPC 2020, section 5, there
    /// "Buffer-L").
    CacheFirst,
    /// The cache, then a lookup without a filter. Unique chunks count as false positives.
    Unfiltered,
}

/// The key-value store that holds the entries of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// The bucket table: entries on disk, in any number.
    Table,
    /// A hash table in memory, saved as a whole at checkpoints. Once it is full, later chunks are stored again when they
    /// occur again, and the index reports that.
    Memory {
        /// Bytes of the table, about 36 for each chunk.
        bytes: usize,
    },
    /// A store that the caller brings, such as one on a server.
    Given(GivenStore),
}

/// A kind of store that is no part of this crate. Two are equal if they are the same object.
#[derive(Clone, Debug)]
pub struct GivenStore {
    /// Makes the stores; a checkpoint keeps one part of them.
    pub kind: Arc<dyn OpenStore>,
    /// Most memory that a store takes, in bytes.
    pub memory_bytes: usize,
}

impl PartialEq for GivenStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kind, &other.kind) && self.memory_bytes == other.memory_bytes
    }
}

impl Eq for GivenStore {}

impl StoreKind {
    /// Returns the number by which a checkpoint names the kind.
    pub(in crate::identify) fn code(&self) -> u8 {
        match self {
            Self::Table => 1,
            Self::Memory { .. } => 2,
            Self::Given(_) => 3,
        }
    }

    /// Returns how many parts a checkpoint keeps of the kind with a number; `None` for an unknown number.
    pub(in crate::identify) fn parts_of(code: u8) -> Option<usize> {
        match code {
            1 => Some(2),
            2 | 3 => Some(1),
            _ => None,
        }
    }

    /// Returns the most chunks that one lookup asks for.
    pub(in crate::identify) fn lookups_max(&self) -> usize {
        match self {
            Self::Table | Self::Memory { .. } => BATCH_PAGES_MAX,
            Self::Given(_) => GIVEN_LOOKUPS_MAX,
        }
    }

    /// Returns the name of a file that grows with the index, whose reads show the speed of the device.
    pub(in crate::identify) fn measured_file(&self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Memory { .. } | Self::Given(_) => "log",
        }
    }
}

/// When buffer cycles end and chunks leave them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleRule {
    /// Most consecutive unique chunks in a cycle. Ma et al. take 200.
    pub unique_run_max: u32,
    /// Largest rank in a cycle. Ma et al. take 2,048, the length of a window.
    pub rank_max: u32,
    /// Windows of its cycle that may leave a chunk unresolved before the chunk leaves the cycle. Ma et al. take 10.
    pub tries_max: u32,
}

impl Default for CycleRule {
    fn default() -> Self {
        Self { unique_run_max: 200, rank_max: 2048, tries_max: 10 }
    }
}

/// The index's parameters.
///
/// The index takes the memory that [`IndexOptions::memory_bytes`] returns, two bytes for 127 stored chunks (the fences of
/// the table), with containers or stream segments as units 8 bytes for each of them beyond those that the cache gives up, and about
/// 100 bytes for each in-flight chunk, which the caller bounds by its barriers. Where chunks have two entries until runs of the table
/// are merged, their fences count twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// When to look up.
    pub schedule: Schedule,
    /// Whether the filter or the cache comes first.
    pub order: Order,
    /// When to probe the cache.
    pub prelookup: Prelookup,
    /// Range to read for a hit. An index that was made with another unit is made again from the containers.
    pub unit: PrefetchUnit,
    /// Whether all chunks have entries. An index that was made with the other value is made again.
    pub completeness: Completeness,
    /// Which segments are read for a segment, if hits read segments.
    pub selection: Selection,
    /// Segments that a feature leads to, the newest ones, if selection waits for the end of segments; 0 counts as 1.
    pub mapping: u32,
    /// Ends of stream segments, if hits read them.
    pub segmenting: Segmenting,
    /// Which duplicates of a stream segment get their position in it, if hits read segments.
    pub sampling: Sampling,
    /// How much to read around a hit: of other units than windows, its maximum counts.
    pub window: WindowRule,
    /// Whether to read ahead in a run that goes beyond its window, and the runs that followed a window the last time. Ma
    /// et al. do neither. Other units than windows are never followed.
    pub follows_successors: bool,
    /// When pending chunks count as neighbors.
    pub cycles: CycleRule,
    /// Memory of the filter of a new index. It grows while more than a quarter of its bits is set.
    pub filter_bytes: usize,
    /// Memory that the filter may grow to.
    pub filter_bytes_max: usize,
    /// Bits that the filter sets for a chunk, 1 to 10.
    pub filter_hashes: u32,
    /// The key-value store. An index that was made with another kind is made again from the containers.
    pub store: StoreKind,
    /// Memory of the memtable of the table. The number of its buckets follows it.
    pub memtable_bytes: usize,
    /// Memory in which a flush merges runs of the table.
    pub merge_buffer_bytes: usize,
    /// Memory of the fingerprint cache, in addition to the memory that the filter has not grown to.
    pub cache_bytes: usize,
    /// Most containers or stream segments in the cache, if hits read these; `None`: as many as its memory holds.
    pub cache_units: Option<u32>,
    /// How lookups read the table; by default, as suits the measured device.
    pub reads: Option<BucketReads>,
    /// In which order lookups search the runs of a bucket of the table. The store in memory has the newest entry of each chunk
    /// only.
    pub run_order: RunOrder,
    /// Most runs in a bucket of the table.
    pub runs_max: u32,
    /// Buckets of pending chunks, for a schedule that has buckets.
    pub pending_buckets: u32,
    /// Most pending chunks, followers included.
    pub pending_max: usize,
    /// Most bytes of pending chunks, followers included: the caller holds them. A backup sets it from its budget.
    pub pending_bytes_max: usize,
    /// Most chunks that arrive while one is pending. Counted, not timed, so that results are reproducible.
    pub pending_age_max: u64,
    /// Pages of the arrival log that are written together, at most 128.
    pub log_tail_pages: usize,
    /// Bytes of the duplicate-run log for each record of the arrival log, above which the older half goes.
    pub duplicate_run_bytes_per_chunk: u32,
    /// Pages of 4 KiB that the duplicate-run log may always have.
    pub duplicate_run_pages_min: u64,
    /// Most chunks of the stream that wait for their containers before the stream log takes them, if hits read segments. Beyond
    /// that, chunks whose containers are not recorded are left out of the log.
    pub stream_waiting_max: usize,
    /// Bytes of the stream log for each record of the arrival log. Once the log is twice as long, segments that no entry names go.
    pub stream_bytes_per_chunk: u32,
    /// Pages of 4 KiB that the stream log may always have.
    pub stream_pages_min: u64,
}

/// Buffers of a table: a batch of pages in the foreground and one in the background.
const TABLE_BUFFER_BYTES: usize = 2 * BATCH_PAGES_MAX * PAGE_BYTES;

/// Chunks that one lookup asks a store of the caller for: on a server, a request costs more than a key.
const GIVEN_LOOKUPS_MAX: usize = 2_048;

/// Memory of one pending chunk: its slot, its share of bucket, order and cycle, and of the map of in-flight chunks.
pub(in crate::identify) const PENDING_BYTES: usize = 240;

/// Memory of one chunk of a lookup, if all pending chunks are looked up together: the chunk, its key, its answer, its search with
/// spans and reads, and its hit.
pub(in crate::identify) const LOOKUP_BYTES: usize = 400;

/// Entries of a stream segment that are entered together, before its end if there are more.
pub(in crate::identify) const SEGMENT_ENTRIES_MAX: usize = 2_048;

/// Share of the budget that chunks of the stream take while they wait for their containers, in number between the limits: one part
/// in so many.
const WAITING_SHARE: usize = 32;
const WAITING_MIN: usize = 1 << 13;
const WAITING_MAX: usize = 1 << 17;

/// Pages of the log in one batch of windows; more only if one window has them.
pub(crate) const WINDOW_PAGES_PER_BATCH: usize = 256;
/// Records in one batch of windows: long windows make small batches.
pub(crate) const RECORDS_PER_BATCH: usize = 8 << 10;

/// Budgets below this get shorter queues, so that the filter keeps its share.
pub(in crate::identify) const SMALL_BYTES: usize = 24 << 20;

/// Bits that the filter sets for a chunk. Filters that matter have 6 to 10 bits of memory for each chunk; there, five bits
/// let within a tenth of the fewest false positives pass.
const FILTER_HASHES: u32 = 5;

/// Share of its greatest size with which a filter starts, unless it is given a size: one part in so many.
pub const FILTER_START_SHARE: usize = 16;

impl IndexOptions {
    /// Divides a budget.
    ///
    /// Measured at 50 to 200 million chunks in 128 to 256 MiB: the memtable needs 15 to 20% of the budget, more than 8 MiB
    /// of cache gain nothing, and 2,048 pending chunks keep an SSD's queue full (three times as many are pending at most,
    /// while one third is looked up). The filter takes the rest, since every bit per chunk saves lookups. With few chunks
    /// a small filter has next to no false positives, and a larger cache saves windows. So the filter starts as a 16th of
    /// the rest, and the cache has the memory that the filter has not grown to.
    ///
    /// Budgets below 12 MiB work, but buffers and pending chunks (about 6 MiB) then exceed their share.
    pub fn for_memory(bytes: usize) -> Self {
        Self::for_memory_with(bytes, |_| {})
    }

    /// Divides a budget for an index that `change` makes work in another way. The filter takes the rest.
    pub(in crate::identify) fn for_memory_with(bytes: usize, change: impl FnOnce(&mut Self)) -> Self {
        let is_small = bytes < SMALL_BYTES;
        let (pending_max, pending_age_max) = if is_small { (1_024, 1 << 14) } else { (6_144, 1 << 16) };
        let memtable_bytes = bytes / if is_small { 8 } else { 6 };
        let mut options = Self {
            schedule: Schedule::Adaptive,
            order: Order::FilterFirst,
            prelookup: Prelookup::Always,
            unit: PrefetchUnit::Window,
            completeness: Completeness::Exact,
            selection: Selection::Base,
            mapping: 1,
            segmenting: Segmenting::CONTENT_DEFINED,
            sampling: Sampling::Random { ratio: SAMPLING_RATIO },
            window: WindowRule::Adaptive(if is_small { 2_048 } else { WINDOW_RECORDS }),
            follows_successors: true,
            cycles: CycleRule::default(),
            filter_bytes: 0,
            filter_bytes_max: 0,
            filter_hashes: FILTER_HASHES,
            store: StoreKind::Table,
            memtable_bytes,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            cache_bytes: (bytes / if is_small { 32 } else { 16 }).min(8 << 20),
            cache_units: None,
            reads: None,
            run_order: RunOrder::LargestFirst,
            runs_max: 4,
            pending_buckets: 64,
            pending_max,
            pending_bytes_max: 64 << 20,
            pending_age_max,
            log_tail_pages: TAIL_PAGES,
            duplicate_run_bytes_per_chunk: 1,
            duplicate_run_pages_min: 512,
            stream_waiting_max: (bytes / WAITING_SHARE / WAITING_BYTES).clamp(WAITING_MIN, WAITING_MAX),
            stream_bytes_per_chunk: 40,
            stream_pages_min: 4_096,
        };
        change(&mut options);
        // 1/50 for the fences: they exceed it at 60,000 chunks per 64 KiB of budget.
        options.filter_bytes_max = (bytes - bytes / 50).saturating_sub(options.memory_bytes()).max(bytes / 8);
        options.filter_bytes = options.filter_bytes_max / FILTER_START_SHARE;
        options
    }

    /// Returns the memory that the index takes at most, except for the parts that its documentation names.
    pub fn memory_bytes(&self) -> usize {
        // A batch of windows in the foreground and one in the background, as pages and as records.
        let pages = WINDOW_PAGES_PER_BATCH.max(self.window.max() as usize / LOG_PAGE_RECORDS + 2);
        let records = RECORDS_PER_BATCH.max(self.window.max() as usize);
        let windows = 2 * (pages * FRAME_BYTES + records * size_of::<LogRecord>());
        // A queue that grows exists twice for a moment.
        let age = usize::try_from(self.pending_age_max).unwrap_or(usize::MAX);
        let arrivals = age.saturating_mul(2 * ARRIVAL_BYTES);
        let cache = self.cache_bytes.max(BLOCK_BYTES);
        let filter = self.filter_bytes_max.max(self.filter_bytes);
        let of_plans = (LOOKUP_BYTES, planning_bytes(self.window.max()));
        let (of_pending, planning) = if self.schedule.plans() { of_plans } else { (0, 0) };
        let pending = self.pending_max * (PENDING_BYTES + of_pending);
        let store = match &self.store {
            StoreKind::Table => self.table().memory_bytes_max() + TABLE_BUFFER_BYTES,
            StoreKind::Memory { bytes } => MemorySpec { bytes: *bytes }.memory_bytes(),
            StoreKind::Given(store) => store.memory_bytes,
        };
        let stream = self.stream_bytes();
        let parts = [filter, store, cache, pending, planning, windows, arrivals, self.log_buffer_bytes(), stream];
        parts.into_iter().fold(0, usize::saturating_add)
    }

    /// Returns the buffers of a log of chunks: its tail twice.
    fn log_buffer_bytes(&self) -> usize {
        (2 * self.log_tail_pages.clamp(1, TAIL_PAGES) + 1) * FRAME_BYTES
    }

    /// Returns the memory of the stream log: its buffers, the chunks that wait for it, and the entries of the open segment.
    fn stream_bytes(&self) -> usize {
        if !matches!(self.unit, PrefetchUnit::Segment { .. }) {
            return 0;
        }
        let waiting = self.stream_waiting_max.max(QUEUE_MIN).saturating_mul(WAITING_BYTES);
        // Entries and new chunks, and of segments that wait, their chunks.
        let of_chunk = size_of::<Entry>() + 2 * size_of::<(Fingerprint, Ordinal)>() + size_of::<SequencedChunk>();
        let is_whole = self.has_whole_segments();
        let chunks = if is_whole { self.segmenting.chunks_max() as usize } else { SEGMENT_ENTRIES_MAX };
        let entries = chunks.saturating_mul(of_chunk);
        waiting.saturating_add(self.log_buffer_bytes() + COPY_BYTES).saturating_add(entries)
    }

    /// Returns what opens the store, for lookups that read in some way.
    pub(crate) fn open_store(&self, reads: BucketReads) -> Box<dyn OpenStore> {
        match &self.store {
            StoreKind::Table => Box::new(TableSpec { reads, ..self.table() }),
            StoreKind::Memory { bytes } => Box::new(MemorySpec { bytes: *bytes }),
            StoreKind::Given(store) => Box::new(Arc::clone(&store.kind)),
        }
    }

    /// Returns the specification of the table.
    fn table(&self) -> TableSpec {
        TableSpec {
            runs_max: self.runs_max.max(1),
            order: self.run_order,
            merge_buffer_bytes: self.merge_buffer_bytes,
            ..TableSpec::for_memtable(self.memtable_bytes)
        }
    }

    /// Returns the most units in the cache; `None` if hits read windows, which are no units.
    pub(in crate::identify) fn units_of_cache(&self) -> Option<usize> {
        let is_unit = self.unit != PrefetchUnit::Window;
        is_unit.then(|| self.cache_units.map_or(usize::MAX, |units| units.max(1) as usize))
    }

    /// Returns true if hits read windows whose length adapts.
    pub(in crate::identify) fn adapts_windows(&self) -> bool {
        self.unit == PrefetchUnit::Window && matches!(self.window, WindowRule::Adaptive(_))
    }

    /// Returns true if the log is read ahead, and the runs that followed a window the last time are read.
    pub(in crate::identify) fn follows(&self) -> bool {
        self.follows_successors && self.unit == PrefetchUnit::Window
    }

    /// Returns the number by which a checkpoint names the unit, and whether the index is exact.
    pub(in crate::identify) fn unit_code(&self) -> u8 {
        self.unit.code() + if self.completeness == Completeness::Exact { 0 } else { NEAR_EXACT }
    }

    /// Returns true if a chunk that the cache does not have is looked up as it arrives, or later.
    pub(in crate::identify) fn looks_up_rest(&self) -> bool {
        self.completeness == Completeness::Exact || self.selection.looks_up_rest()
    }

    /// Returns which chunks have entries; `None`: all.
    pub(in crate::identify) fn samples(&self) -> Option<Sampling> {
        (self.completeness == Completeness::NearExact).then_some(self.sampling)
    }

    /// Returns true if the features of a segment are known at its end only.
    pub(in crate::identify) fn has_whole_segments(&self) -> bool {
        let is_near_exact = self.completeness == Completeness::NearExact;
        is_near_exact || self.selection.waits() || matches!(self.sampling, Sampling::Minimum { .. })
    }

    /// Returns the number of buckets of pending chunks.
    pub(crate) fn buckets(&self) -> u32 {
        if self.schedule.has_buckets() { self.pending_buckets.max(1) } else { 1 }
    }

    /// Returns how many different chunks of a bucket, or of the pool, start a lookup.
    pub(crate) fn threshold(&self) -> usize {
        let threshold = match self.schedule {
            Schedule::Eager => 1,
            Schedule::Adaptive => u32::try_from(self.pending_max / POOLS_PENDING).unwrap_or(u32::MAX),
            Schedule::Lazy { threshold } | Schedule::Exhaustive { threshold } => threshold,
            Schedule::Pool { candidates } => candidates,
        };
        threshold.max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_kept_and_the_filter_takes_what_it_can_use() {
        for mebibytes in [12, 16, 32, 64, 128, 256, 1024, 16_384] {
            let options = IndexOptions::for_memory(mebibytes << 20);
            let taken = options.memory_bytes();
            assert!(taken <= mebibytes << 20, "{mebibytes} MiB: {taken}, {options:?}");
            assert!(
                options.filter_bytes == options.filter_bytes_max / 16 && mebibytes << 17 <= options.filter_bytes_max
            );
        }
        assert!(IndexOptions::for_memory(256 << 20).filter_bytes_max > 150 << 20);
    }
}
