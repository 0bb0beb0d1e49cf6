//! A run: entries of one bucket, sorted by key, on consecutive pages.

use crate::kv::Key;
use crate::kv::extent::Extent;
use crate::kv::recent::recent_test;

/// Pages that a merge or a scan reads or writes in one call: 128 KiB.
pub const PIECE_PAGES: u32 = 32;

/// What is kept in memory of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of the run, never used twice between two checkpoints of a table; pages that a session which did not end well
    /// left with it are written over before the next checkpoint names it.
    pub id: u64,
    /// First page in the table file.
    pub start: u64,
    /// Number of entries.
    pub entries: u64,
    /// For every page where its first key falls in the bucket, in units of 1/65,536.
    pub fences: Vec<u16>,
    /// Its filter, if it has one; see [`crate::kv::recent`].
    pub recent: Vec<u64>,
}

/// Where a run lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunPlace {
    /// Number of the run.
    pub id: u64,
    /// First page in the table file.
    pub start: u64,
    /// Number of pages.
    pub pages: u32,
}

impl Run {
    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.fences.len()).expect("a run has fewer than 2^32 pages")
    }

    /// Returns the pages that the run lies on.
    pub fn extent(&self) -> Extent {
        Extent { start: self.start, pages: u64::from(self.pages()) }
    }

    /// Returns where the run lies.
    pub fn place(&self) -> RunPlace {
        RunPlace { id: self.id, start: self.start, pages: self.pages() }
    }

    /// Says whether the run can hold a key, as far as its filter knows.
    pub fn may_hold(&self, key: &Key) -> bool {
        recent_test(&self.recent, key)
    }

    /// Returns the first and the last page that can hold a key at this place of the bucket; one page as a rule.
    pub fn candidates(&self, place: u16) -> Option<(u32, u32)> {
        let last = self.fences.partition_point(|&fence| fence <= place).checked_sub(1)?;
        // The page before the first with this very fence may end with keys of the same place.
        let first = self.fences.partition_point(|&fence| fence < place).saturating_sub(1);
        Some((u32::try_from(first).ok()?, u32::try_from(last).ok()?))
    }

    /// Returns the memory that the run takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.fences.capacity() * size_of::<u16>() + self.recent.capacity() * size_of::<u64>()
    }
}
