//! Parameters of a table.

use crate::io::DeviceProfile;
use crate::kv::bucket_table::bucket_name::DEPTH_MAX;
use crate::kv::bucket_table::search::RunOrder;

/// Most pages read in one batch.
pub(crate) const BATCH_PAGES_MAX: usize = 256;

/// Memtable per bucket that makes runs long enough to write. The number of buckets is a power of two, so each has 14 to
/// 28 KiB, and a flush writes 1.8 times as much of it.
const MEMTABLE_PER_BUCKET: usize = 20 << 10;

/// Bounds of the memory that a flush takes for its buffers.
const MERGE_BUFFER_BYTES_MIN: usize = 1 << 20;
const MERGE_BUFFER_BYTES_MAX: usize = 16 << 20;
/// Share of the memtable that it takes between the bounds. Four times as much makes flushes faster, but takes memory from
/// the filter, which costs more when the filter is short (decision 0022).
const MERGE_BUFFER_SHARE: usize = 4;

/// How lookups read the buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketReads {
    /// Single pages, and close neighbors in one read.
    Pages,
    /// All pages from the first to the last that a batch of lookups needs of a run, in large reads.
    Whole,
    /// All pages of a run, in large reads: the cost of a bucket without page fences (Ma et al., section 3.1). For
    /// comparisons.
    Entire,
    /// The faster of `Pages` and `Whole` on this device, decided for each run and batch.
    ByDevice(DeviceProfile),
}

/// Parameters of a table. A table takes `memtable_bytes`, at most `recent_filter_bytes`, `merge_buffer_bytes` during a
/// flush, 1 MiB for a batch of pages, and two bytes for 127 entries on disk (the page fences).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Memory of the memtable.
    pub(crate) memtable_bytes: usize,
    /// Longest chain of runs of a bucket before a merge, at least 1.
    pub(crate) runs_max: u32,
    /// Most memory of recent filters. Above it the table drops the largest ones, which costs reads.
    pub(crate) recent_filter_bytes: usize,
    /// Memory of the buffers of a flush.
    pub(crate) merge_buffer_bytes: usize,
    /// How lookups read.
    pub(crate) reads: BucketReads,
    /// In which order they search the runs of a bucket.
    pub(crate) order: RunOrder,
    /// Epoch of a new table: a number that differs from those of all tables that used the same file before, so that their
    /// pages are not mistaken for its own. An existing table keeps its epoch.
    pub(crate) epoch: u64,
}

impl TableSpec {
    /// Returns suitable parameters for a memtable of this size. Recent filters take a third of it in addition.
    pub fn for_memtable(memtable_bytes: usize) -> Self {
        Self {
            memtable_bytes,
            runs_max: 4,
            recent_filter_bytes: memtable_bytes / 3,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            reads: BucketReads::Pages,
            order: RunOrder::LargestFirst,
            epoch: 0,
        }
    }

    /// Returns the most memory that a table takes, without a batch of pages and the page fences.
    pub(crate) fn memory_bytes_max(&self) -> usize {
        self.memtable_bytes + self.recent_filter_bytes + self.merge_buffer_bytes
    }

    /// Returns the length of the bucket prefixes that suits the memtable. It does not depend on the data.
    pub(crate) fn depth(&self) -> u8 {
        let buckets = self.memtable_bytes / (MEMTABLE_PER_BUCKET * 7 / 10);
        buckets.checked_ilog2().and_then(|depth| u8::try_from(depth).ok()).unwrap_or(0).min(DEPTH_MAX)
    }
}

/// Returns the memory for merges that suits a memtable of this size.
pub fn merge_buffer_bytes(memtable_bytes: usize) -> usize {
    let share = memtable_bytes / MERGE_BUFFER_SHARE;
    share.clamp(MERGE_BUFFER_BYTES_MIN, MERGE_BUFFER_BYTES_MAX).min(memtable_bytes)
}
