//! Free pages of the table file.
//!
//! Runs are never overwritten: a run that a merge replaced keeps its pages until the next checkpoint is durable. So the last
//! checkpoint always describes intact runs.

use std::collections::{BTreeMap, BTreeSet};

/// Consecutive pages of the table file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Extent {
    /// First page.
    pub start: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
}

impl Extent {
    fn end(self) -> u64 {
        self.start + self.pages
    }
}

/// Free pages of a file, by position and by size, and pages that become free with the next checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    end: u64,
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    retired: Vec<Extent>,
    retired_pages: u64,
    /// Number of the first retired extents that the last save does not refer to.
    marked: usize,
}

impl Extents {
    /// Starts with a file of `end` pages of which `used` are in use; `None` if these overlap or pass the end.
    pub(in crate::kv) fn with_used(end: u64, mut used: Vec<Extent>) -> Option<Self> {
        used.sort_unstable();
        let mut extents = Self { end, ..Self::default() };
        let mut next = 0;
        for extent in used {
            if extent.pages == 0 || extent.start < next {
                return None;
            }
            if next < extent.start {
                extents.insert(Extent { start: next, pages: extent.start - next });
            }
            next = extent.start.checked_add(extent.pages)?;
        }
        if end < next {
            return None;
        }
        if next < end {
            extents.release(Extent { start: next, pages: end - next });
        }
        Some(extents)
    }

    /// Returns the number of the page after the last one in use.
    pub(in crate::kv) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of pages that the next checkpoint frees.
    pub(in crate::kv) fn retired_pages(&self) -> u64 {
        self.retired_pages
    }

    /// Allocates consecutive pages: the smallest free extent that fits, or new pages at the end of the file.
    pub(in crate::kv) fn allocate(&mut self, pages: u64) -> Extent {
        let fit = self.by_size.range((pages, 0)..).next().copied();
        let Some((size, start)) = fit else {
            let extent = Extent { start: self.end, pages };
            self.end += pages;
            return extent;
        };
        self.delete(Extent { start, pages: size });
        if pages < size {
            self.insert(Extent { start: start + pages, pages: size - pages });
        }
        Extent { start, pages }
    }

    /// Frees pages that no checkpoint refers to.
    pub(in crate::kv) fn release(&mut self, extent: Extent) {
        if extent.pages == 0 {
            return;
        }
        let mut whole = extent;
        if let Some((&start, &pages)) = self.by_start.range(..extent.start).next_back() {
            let before = Extent { start, pages };
            if before.end() == whole.start {
                self.delete(before);
                whole = Extent { start, pages: pages + whole.pages };
            }
        }
        if let Some(&pages) = self.by_start.get(&whole.end()) {
            let after = Extent { start: whole.end(), pages };
            self.delete(after);
            whole.pages += pages;
        }
        if whole.end() == self.end {
            self.end = whole.start;
        } else {
            self.insert(whole);
        }
    }

    /// Frees pages that the last checkpoint refers to, as soon as the next one is durable.
    pub(in crate::kv) fn retire(&mut self, extent: Extent) {
        self.retired_pages += extent.pages;
        self.retired.push(extent);
    }

    /// Notes that a new checkpoint refers to none of the pages retired so far.
    pub(in crate::kv) fn mark_retired(&mut self) {
        self.marked = self.retired.len();
    }

    /// Frees the marked pages: the checkpoint is durable.
    pub(in crate::kv) fn free_retired(&mut self) {
        let later = self.retired.split_off(std::mem::take(&mut self.marked));
        for extent in std::mem::replace(&mut self.retired, later) {
            self.retired_pages -= extent.pages;
            self.release(extent);
        }
    }

    fn insert(&mut self, extent: Extent) {
        self.by_start.insert(extent.start, extent.pages);
        self.by_size.insert((extent.pages, extent.start));
    }

    fn delete(&mut self, extent: Extent) {
        self.by_start.remove(&extent.start);
        self.by_size.remove(&(extent.pages, extent.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_join_and_retired_pages_wait() {
        let mut extents = Extents::default();
        let [a, b, c] = [3, 4, 5].map(|pages| extents.allocate(pages));
        assert_eq!(extents.end(), 12);
        extents.retire(a);
        extents.release(b);
        assert_eq!(extents.allocate(7).start, 12, "retired pages must not be used");
        extents.free_retired();
        assert_eq!(extents.retired_pages(), 3, "no checkpoint was made since");
        extents.mark_retired();
        extents.free_retired();
        assert_eq!(extents.retired_pages(), 0);
        assert_eq!(extents.allocate(7), Extent { start: 0, pages: 7 }, "a and b have joined");
        extents.release(c);
        assert_eq!(extents.allocate(2), Extent { start: 7, pages: 2 });
    }

    #[test]
    fn overlapping_or_overlong_extents_are_refused() {
        let extent = |start, pages| Extent { start, pages };
        assert!(Extents::with_used(10, vec![extent(0, 3), extent(2, 2)]).is_none());
        assert!(Extents::with_used(10, vec![extent(8, 3)]).is_none());
        assert!(Extents::with_used(10, vec![extent(8, u64::MAX)]).is_none());
        assert!(Extents::with_used(10, vec![extent(8, 0)]).is_none());
        let mut extents = Extents::with_used(10, vec![extent(4, 2)]).unwrap();
        assert_eq!(extents.end(), 6);
        assert_eq!(extents.allocate(4).start, 0);
    }
}
