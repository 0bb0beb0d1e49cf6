//! How an index works: its schedule and its share of the memory.

use crate::index::arrivals::ARRIVAL_BYTES;
use crate::index::cache::BLOCK_BYTES;
use crate::index::cycle::CycleRule;
use crate::index::log::{LOG_PAGE_BYTES, LOG_PAGE_RECORDS, LogRecord, TAIL_PAGES};
use crate::kv::{BATCH_PAGES_MAX, BucketReads, PAGE_BYTES, TableSpec, merge_buffer_bytes};

/// When chunks that the filter lets pass are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each at once (Ma et al.'s baseline).
    Eager,
    /// A bucket's together, once so many different ones wait in it; hits answer those of their cycle (Ma et al.).
    Lazy {
        /// Different pending chunks of a bucket that bring about its lookup; 0 is taken as 1.
        threshold: u32,
    },
    /// All together, once so many different ones wait: one in every run of duplicates first, whose windows answer most
    /// of the others.
    Pool {
        /// Different pending chunks that bring about their lookup; 0 is taken as 1.
        candidates: u32,
    },
    /// As lazy, but after a hit the cache is asked for everything that waits (Ma et al.'s comparison, "buffer-exhausting").
    Exhaustive {
        /// As in [`Schedule::Lazy`].
        threshold: u32,
    },
    /// As a pool, but at once so long as duplicates come in long runs and false positives are rare: then nearly every
    /// chunk is answered by the cache as it arrives, and waiting would only cost.
    Adaptive {
        /// As in [`Schedule::Pool`].
        candidates: u32,
    },
}

/// When the cache is asked for a chunk as it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prelookup {
    /// Always.
    Always,
    /// Never.
    Never,
    /// So long as it helps: from a batch whose last chunk was a duplicate on, until ten more chunks were missed than
    /// found. (From the implementation by Ma et al.; the paper does not tell.)
    Adaptive,
}

/// What a chunk is asked of first as it arrives, beside the map of this session's chunks in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The filter, and the cache only for what the filter lets pass (Ma et al.).
    FilterFirst,
    /// The cache, and the filter only for what the cache does not hold: a hit spares the filter, a unique chunk costs both
    /// (Li et al., "Towards Optimizing Deduplication on Persistent Memory", NPC 2020, section 5, there "Buffer-L").
    CacheFirst,
    /// The cache; there is no filter, and what the cache does not hold is looked up. Unique chunks count as false positives.
    Unfiltered,
}

/// How much of the log a hit reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowRule {
    /// Always the same number of records (Ma et al.: 2,048).
    Fixed(u32),
    /// Twice the length of the runs that duplicates come in, at most this many; nothing where they come one by one.
    Adaptive(u32),
}

impl WindowRule {
    /// Returns the largest number of records.
    pub fn max(self) -> u32 {
        let (Self::Fixed(max) | Self::Adaptive(max)) = self;
        max
    }
}

/// The index's parameters. Memory that it takes is the sum that [`IndexOptions::memory_bytes`] returns, the fences of
/// the table (two bytes for 127 chunks stored), and the map of this session's chunks in flight (about 100 bytes for
/// each chunk between two barriers), which the caller bounds by its barriers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// When to look up.
    pub schedule: Schedule,
    /// Duplicates for each lookup that cannot be spared from which on the adaptive schedule looks up at once, if there are
    /// not more false positives than runs; it stops at half of it.
    pub run_immediately: u32,
    /// What to ask first.
    pub order: Order,
    /// When to ask the cache.
    pub prelookup: Prelookup,
    /// How much to read around a hit.
    pub window: WindowRule,
    /// Whether the log is read on without a lookup where a run goes beyond its window, and where a stream had gone on
    /// before. Ma et al. do neither.
    pub follows_successors: bool,
    /// When pending chunks count as neighbors.
    pub cycles: CycleRule,
    /// Memory of the filter of a new index. It grows while more than a quarter of its bits is set.
    pub filter_bytes: usize,
    /// Memory that the filter may grow to.
    pub filter_bytes_max: usize,
    /// Bits that the filter sets for a chunk, 1 to 10.
    pub filter_hashes: u32,
    /// Memory of table entries that are not written out yet. The number of buckets of the table follows it.
    pub memtable_bytes: usize,
    /// Memory that runs of the table are merged in while staged entries are written out.
    pub merge_buffer_bytes: usize,
    /// Memory of prefetched windows, beside what the filter has not grown to.
    pub cache_bytes: usize,
    /// How lookups read the table; unless said, as the device under it was measured to like.
    pub reads: Option<BucketReads>,
    /// Longest chain of runs in a bucket of the table.
    pub runs_max: u32,
    /// Buckets that pending chunks are gathered in, where the schedule has buckets.
    pub pending_buckets: u32,
    /// Most chunks that wait for a verdict, equal ones included.
    pub pending_max: usize,
    /// Most bytes of the chunks that wait, equal ones included: the caller holds them. A backup sets it from its budget.
    pub pending_bytes_max: usize,
    /// Most chunks that arrive while one waits. Counted, not timed, so that runs repeat.
    pub pending_age_max: u64,
    /// Bytes for each chunk of the log that the log of repeats may take before its older half goes.
    pub duplicate_run_bytes_per_chunk: u32,
    /// Pages of the log of repeats, of 4 KiB, that are never too many.
    pub duplicate_run_pages_min: u64,
}

/// Buffers that every index has: a batch of table pages at once and one beside, the end of the log twice.
pub const BUFFER_BYTES: usize = 2 * BATCH_PAGES_MAX * PAGE_BYTES + (2 * TAIL_PAGES + 1) * LOG_PAGE_BYTES;

/// Memory that one pending chunk takes: its slot, its place in bucket, order and cycle, its share of the map.
const PENDING_BYTES: usize = 240;

/// Pages of the log, and records on them, that are read together: more only if one window has them.
pub const WINDOW_PAGES_PER_BATCH: usize = 256;
/// As many of its records: a batch has fewer windows where they are long.
pub const RECORDS_PER_BATCH: usize = 8 << 10;

/// Budgets below this get shorter queues, so that the filter keeps its share.
const SMALL_BYTES: usize = 24 << 20;

/// Bits that the filter sets for a chunk. Between 6 and 10 bits of memory per chunk, where filters are when it matters,
/// five lets within a tenth of the fewest chunks pass.
const FILTER_HASHES: u32 = 5;

/// A filter starts as one of so many parts of what it may become, unless it is given a size.
pub const FILTER_START_SHARE: usize = 16;

impl IndexOptions {
    /// Divides a budget.
    ///
    /// Measured at 50 to 200 million chunks in 128 to 256 MiB: staging wants 15 to 20% of the budget, beyond 8 MiB
    /// of cache nothing is gained, 2,048 pending chunks are enough to keep an SSD's queue full (three times as many wait at
    /// most, while as many are looked up), and the filter takes the rest, since every bit per chunk saves lookups. With
    /// few chunks it is the other way around: a small filter lets next to nothing pass, and what the cache has of the
    /// rest spares windows. So the filter starts as a 16th of the rest, and what it has not grown to is the cache's.
    /// Budgets below 12 MiB work, but buffers and pending chunks (about 6 MiB) then exceed their share.
    pub fn for_memory(bytes: usize) -> Self {
        let is_small = bytes < SMALL_BYTES;
        let (candidates, pending_age_max) = if is_small { (1024, 1 << 14) } else { (2048, 1 << 16) };
        let memtable_bytes = bytes / if is_small { 8 } else { 6 };
        let mut options = Self {
            schedule: Schedule::Adaptive { candidates },
            run_immediately: 4096,
            order: Order::FilterFirst,
            prelookup: Prelookup::Always,
            window: WindowRule::Adaptive(2048),
            follows_successors: true,
            cycles: CycleRule::default(),
            filter_bytes: 0,
            filter_bytes_max: 0,
            filter_hashes: FILTER_HASHES,
            memtable_bytes,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            cache_bytes: (bytes / if is_small { 32 } else { 16 }).min(8 << 20),
            reads: None,
            runs_max: 4,
            pending_buckets: 64,
            pending_max: 3 * candidates as usize,
            pending_bytes_max: 64 << 20,
            pending_age_max,
            duplicate_run_bytes_per_chunk: 1,
            duplicate_run_pages_min: 16,
        };
        // 1/50 for the fences: they exceed it at 60,000 chunks per 64 KiB of budget.
        options.filter_bytes_max = (bytes - bytes / 50).saturating_sub(options.memory_bytes()).max(bytes / 8);
        options.filter_bytes = options.filter_bytes_max / FILTER_START_SHARE;
        options
    }

    /// Returns the memory that the index takes at most, beside what its documentation names.
    pub fn memory_bytes(&self) -> usize {
        // A batch of windows beside and one at once, as pages and as records.
        let pages = WINDOW_PAGES_PER_BATCH.max(self.window.max() as usize / LOG_PAGE_RECORDS + 2);
        let records = RECORDS_PER_BATCH.max(self.window.max() as usize);
        let windows = 2 * (pages * LOG_PAGE_BYTES + records * size_of::<LogRecord>());
        // A queue that grows is there twice for a moment.
        let age = usize::try_from(self.pending_age_max).unwrap_or(usize::MAX);
        let arrivals = age.saturating_mul(2 * ARRIVAL_BYTES);
        let cache = self.cache_bytes.max(BLOCK_BYTES);
        let filter = self.filter_bytes_max.max(self.filter_bytes);
        [
            filter,
            self.table().memory_bytes_max(),
            cache,
            self.pending_max * PENDING_BYTES,
            windows,
            arrivals,
            BUFFER_BYTES,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// Returns what the table is made with.
    pub fn table(&self) -> TableSpec {
        let reads = self.reads.unwrap_or(BucketReads::Pages);
        TableSpec {
            runs_max: self.runs_max.max(1),
            reads,
            merge_buffer_bytes: self.merge_buffer_bytes,
            ..TableSpec::for_memtable(self.memtable_bytes)
        }
    }

    /// Returns how many buckets pending chunks are gathered in.
    pub fn buckets(&self) -> u32 {
        match self.schedule {
            Schedule::Lazy { .. } | Schedule::Exhaustive { .. } => self.pending_buckets.max(1),
            Schedule::Eager | Schedule::Pool { .. } | Schedule::Adaptive { .. } => 1,
        }
    }

    /// Returns how many different chunks of a bucket are looked up together.
    pub fn threshold(&self) -> usize {
        let threshold = match self.schedule {
            Schedule::Eager => 1,
            Schedule::Lazy { threshold } | Schedule::Exhaustive { threshold } => threshold,
            Schedule::Pool { candidates } | Schedule::Adaptive { candidates } => candidates,
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
