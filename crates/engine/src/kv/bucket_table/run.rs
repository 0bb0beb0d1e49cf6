//! A run: entries of one bucket, sorted by key, on consecutive pages.

use crate::kv::Key;
use crate::kv::bucket_table::extent::Extent;
use crate::kv::bucket_table::recent::recent_test;

/// Part of a run that memory holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kv) struct Run {
    /// Number of the run, unique between two checkpoints of a table. A session that was cut off may leave pages with the
    /// same number; later sessions overwrite them before a checkpoint names the number.
    pub(crate) id: u64,
    /// First page in the table file.
    pub(crate) start: u64,
    /// Number of entries.
    pub(crate) entries: u64,
    /// Page fences: for each page the fraction of the bucket before its first key, in units of 1/65,536.
    pub(crate) fences: Vec<u16>,
    /// Words of its recent filter, if it has one; see [`crate::kv::recent`].
    pub(crate) recent: Vec<u64>,
}

impl Run {
    /// Returns the number of pages.
    pub(in crate::kv) fn pages(&self) -> u32 {
        u32::try_from(self.fences.len()).expect("a run has fewer than 2^32 pages")
    }

    /// Returns the pages of the run.
    pub(in crate::kv) fn extent(&self) -> Extent {
        Extent { start: self.start, pages: u64::from(self.pages()) }
    }

    /// Returns false if the filter excludes the key.
    pub(in crate::kv) fn may_hold(&self, key: &Key) -> bool {
        recent_test(&self.recent, key)
    }

    /// Returns the first and the last page that can hold a key at this fraction of the bucket; usually one page.
    pub(crate) fn candidates(&self, fraction: u16) -> Option<(u32, u32)> {
        let last = self.fences.partition_point(|&fence| fence <= fraction).checked_sub(1)?;
        // The page before the first with an equal fence may end with keys of the same fraction.
        let first = self.fences.partition_point(|&fence| fence < fraction).saturating_sub(1);
        Some((u32::try_from(first).ok()?, u32::try_from(last).ok()?))
    }

    /// Returns the memory of the run, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.fences.capacity() * size_of::<u16>() + self.recent.capacity() * size_of::<u64>()
    }
}
