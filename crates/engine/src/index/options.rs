//! How an index is laid out: its schedule and its share of the memory.

use crate::index::cache::CACHED_BYTES;
use crate::index::log::{LOG_PAGE_BYTES, TAIL_PAGES};
use crate::kv::page::PAGE_BYTES;
use crate::kv::table::{BATCH_PAGES_MAX, TableSpec};

/// When chunks that the filter lets pass are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each at once.
    Eager,
    /// Together, once so many different ones wait in a bucket.
    Lazy {
        /// Different pending chunks of a bucket that bring about its lookup; 0 is taken as 1.
        threshold: u32,
    },
}

/// The index's parameters. Memory that it takes is the sum that [`IndexOptions::memory_bytes`] returns, the fences of
/// the table (two bytes for 127 chunks stored), and the map of this session's chunks in flight (about 100 bytes for
/// each chunk between two barriers), which the caller bounds by its barriers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// When to look up.
    pub schedule: Schedule,
    /// Memory of the filter.
    pub filter_bytes: usize,
    /// Bits that the filter sets for a chunk, 1 to 10.
    pub filter_hashes: u32,
    /// Memory of table entries that are not written out yet. The number of buckets of a new table follows it.
    pub staging_bytes: usize,
    /// Memory of prefetched windows.
    pub cache_bytes: usize,
    /// Longest chain of runs in a bucket of the table.
    pub runs_max: u32,
    /// Buckets that pending chunks are gathered in; one is a pool.
    pub pending_buckets: u32,
    /// Most chunks that wait for a verdict, equal ones included. Beyond, the oldest's bucket is looked up.
    pub pending_max: usize,
    /// Most chunks that arrive while one waits. Counted, not timed, so that runs repeat.
    pub pending_age_max: u64,
    /// Most records of the arrival log read because of a hit; fewer where duplicates come in short runs. Ma et al. take
    /// 2,048; 0 reads none.
    pub prefetch_window: u32,
}

/// Buffers that every index has: one batch of table pages, the end of the log.
pub const BUFFER_BYTES: usize = BATCH_PAGES_MAX * PAGE_BYTES + (TAIL_PAGES + 1) * LOG_PAGE_BYTES;

/// Memory that one pending chunk takes: its slot, its place in bucket and order, its share of the map.
const PENDING_BYTES: usize = 200;

/// Windows of the log that are read together.
pub const WINDOWS_PER_BATCH: usize = 8;

/// Log windows as bytes and as records, per record.
const WINDOW_RECORD_BYTES: usize = 90;

impl IndexOptions {
    /// Divides a budget for about so many different chunks (0: not known).
    ///
    /// Measured at 50 to 200 million chunks in 128 to 256 MiB: staging wants 15 to 20% of the budget, beyond 8 to 16 MiB
    /// of cache nothing is gained, 2,048 pending chunks are enough to keep an SSD's queue full, and the filter takes the
    /// rest, since every bit per chunk saves lookups. A filter of more than 16 bits per expected chunk saves no more.
    /// Budgets below 16 MiB work, but the buffers and pending chunks (about 6 MiB) then exceed their share.
    pub fn for_memory(bytes: usize, expected_chunks: u64) -> Self {
        let mut options = Self {
            schedule: Schedule::Lazy { threshold: 32 },
            filter_bytes: 0,
            filter_hashes: 6,
            staging_bytes: bytes / 6,
            cache_bytes: (bytes / 8).min(16 << 20),
            runs_max: 4,
            pending_buckets: 64,
            pending_max: 4096,
            pending_age_max: 1 << 20,
            prefetch_window: 2048,
        };
        // 1/50 for the fences: they exceed it at 60,000 chunks per 64 KiB of budget.
        let rest = (bytes - bytes / 50).saturating_sub(options.memory_bytes()).max(bytes / 8);
        let wanted = match expected_chunks {
            0 => rest,
            chunks => usize::try_from(chunks.saturating_mul(2)).unwrap_or(usize::MAX).max(64 << 10),
        };
        options.filter_bytes = rest.min(wanted);
        if let Some(bits) = (options.filter_bytes as u64 * 8).checked_div(expected_chunks) {
            // The optimum of the plain filter, ln 2 times the bits per key; one less, since blocks fill unevenly.
            options.filter_hashes = u32::try_from((bits * 69 / 100).saturating_sub(1)).unwrap_or(10).clamp(1, 10);
        }
        options
    }

    /// Returns the memory that the index takes at most, beside what its documentation names.
    pub fn memory_bytes(&self) -> usize {
        let windows = WINDOWS_PER_BATCH * self.prefetch_window as usize * WINDOW_RECORD_BYTES;
        let cache = self.cache_bytes.max(CACHED_BYTES);
        self.filter_bytes
            + self.table().memory_bytes_max()
            + cache
            + self.pending_max * PENDING_BYTES
            + windows
            + BUFFER_BYTES
    }

    /// Returns what the table is made with.
    pub fn table(&self) -> TableSpec {
        TableSpec { runs_max: self.runs_max.max(1), ..TableSpec::for_staging(self.staging_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_kept_and_the_filter_takes_what_it_can_use() {
        for mebibytes in [16, 32, 64, 128, 256, 1024, 16_384] {
            for chunks in [0, 1_000, 10_000_000, 1_000_000_000] {
                let options = IndexOptions::for_memory(mebibytes << 20, chunks);
                assert!(options.memory_bytes() <= mebibytes << 20, "{mebibytes} MiB: {options:?}");
                assert!((1..=10).contains(&options.filter_hashes));
                assert!(options.filter_bytes >= 64 << 10);
            }
        }
        assert!(IndexOptions::for_memory(256 << 20, 0).filter_bytes > 150 << 20);
        assert_eq!(IndexOptions::for_memory(256 << 20, 1_000_000).filter_bytes, 2_000_000);
    }
}
