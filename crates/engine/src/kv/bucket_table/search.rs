//! The search for one key on disk, page by page.
//!
//! A search visits the largest run of a bucket first, which has most entries, and then those others whose filters let
//! the key pass. A table that is to answer with the newest entry visits the runs from the newest to the oldest.

use crate::kv::bucket_table::bucket::{Bucket, Buckets};
use crate::kv::bucket_table::page::{Found, Page};
use crate::kv::store::Lookup;
use crate::kv::{Key, Ordinal};

/// State of the search for one key.
#[derive(Debug)]
pub(crate) struct Search {
    /// Index of the key in its batch.
    index: usize,
    head: u64,
    bucket: u32,
    /// Fraction of the bucket before the key.
    fraction: u16,
    /// Number of runs that were searched or skipped.
    step: usize,
    /// Index of the run in the bucket.
    run: usize,
    /// First and last page of the run that can hold the key.
    pages: Option<(u32, u32)>,
    is_found: bool,
    order: RunOrder,
}

/// Order in which a search visits the runs of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunOrder {
    /// The largest one, which has most entries, then the others, oldest first.
    LargestFirst,
    /// From the newest to the oldest: the answer is the newest entry whose container is live.
    NewestFirst,
}

/// Returns the largest run of a bucket: the oldest, unless its entries came slowly.
fn largest(bucket: &Bucket) -> usize {
    let runs = bucket.runs.iter().enumerate();
    runs.max_by_key(|(index, run)| (run.entries, std::cmp::Reverse(*index))).map_or(0, |(index, _)| index)
}

impl Search {
    pub(crate) fn new(index: usize, key: &Key, buckets: &Buckets, order: RunOrder) -> Self {
        let head = key.head();
        let bucket = buckets.number_of(head);
        let fraction = buckets.get(bucket).name.fraction(head);
        Self { index, head, bucket, fraction, step: 0, run: 0, pages: None, is_found: false, order }
    }

    /// Returns the number of the bucket, and the index of the run in it.
    pub(crate) fn run(&self) -> (u32, usize) {
        (self.bucket, self.run)
    }

    /// Returns the page of the run that the search reads next.
    pub(in crate::kv) fn page(&self) -> u32 {
        let (first, last) = self.pages.expect("the search is at a run");
        // Of two candidates the later one is more likely. More than two are bisected.
        first + (last - first).div_ceil(2)
    }

    /// Moves to the next run that can hold the key, unless pages of this one are left. Returns false if the search has
    /// ended.
    pub(in crate::kv) fn seek(&mut self, buckets: &Buckets, keys: &[Key], skips: &mut u64) -> bool {
        if self.is_found || self.pages.is_some() {
            return !self.is_found;
        }
        let bucket = buckets.get(self.bucket);
        let largest = largest(bucket);
        while self.step < bucket.runs.len() {
            self.run = match self.step {
                step if self.order == RunOrder::NewestFirst => bucket.runs.len() - 1 - step,
                0 => largest,
                step if step <= largest => step - 1,
                step => step,
            };
            let run = &bucket.runs[self.run];
            if run.may_hold(&keys[self.index]) {
                self.pages = run.candidates(self.fraction);
            } else {
                *skips += 1;
            }
            if self.pages.is_some() {
                return true;
            }
            self.step += 1;
        }
        false
    }

    fn leave_run(&mut self) {
        self.pages = None;
        self.step += 1;
    }

    fn narrow(&mut self, first: u32, last: Option<u32>) {
        match last.filter(|&last| first <= last) {
            Some(last) => self.pages = Some((first, last)),
            None => self.leave_run(),
        }
    }

    /// Searches the page that [`Search::page`] named; `None` if it is damaged.
    pub(crate) fn advance(
        &mut self,
        page: Option<Page<'_>>,
        keys: &[Key],
        live: &dyn Fn(Ordinal) -> bool,
        answers: &mut [Lookup],
    ) {
        let (first, last) = self.pages.expect("the search is at a run");
        let index = self.page();
        match page.map(|page| page.find(&keys[self.index])) {
            Some(Found::Here(entry)) if live(entry.ordinal) => {
                answers[self.index] = Lookup::OnDisk(entry);
                self.is_found = true;
            }
            Some(Found::Here(_)) => {
                answers[self.index] = Lookup::Dead;
                self.leave_run();
            }
            Some(Found::Absent) => self.leave_run(),
            // A damaged page is empty; the half to continue with is then a guess.
            Some(Found::Before) | None => self.narrow(first, index.checked_sub(1)),
            Some(Found::After) => self.narrow(index + 1, Some(last)),
        }
    }
}

/// Sorts searches by key, so that equal pages are neighbors and a disk moves its head in one direction.
pub(in crate::kv) fn sort_searches(searches: &mut [Search]) {
    searches.sort_unstable_by_key(|search| search.head);
}
