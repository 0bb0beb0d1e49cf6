//! The part of a table that is on disk: buckets of runs, and the free pages between them.

use std::sync::Arc;

use crate::error::Result;
use crate::kv::bucket_table::bucket::Buckets;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::extent::{Extent, Extents};
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::manifest::{Manifest, encode_manifest};
use crate::kv::bucket_table::page::{PAGE_BYTES, PAGE_ENTRIES};
use crate::kv::bucket_table::recent::{RecentBytes, recent_entries};
use crate::kv::bucket_table::run::Run;
use crate::kv::bucket_table::run_writer::RunToWrite;

/// Buckets, their runs and the pages of the file. No run overlaps another, and no page of the last checkpoint is
/// overwritten.
#[derive(Debug)]
pub(in crate::kv) struct DiskRuns {
    file: TableFile,
    /// Shared with background lookups. It changes only while there are none.
    buckets: Arc<Buckets>,
    space: Extents,
    next_run: u64,
    /// Runs from this number on are in no checkpoint: their pages become free at once.
    unsaved_run: u64,
    /// Value of `unsaved_run` once the last save is durable.
    saving_run: u64,
    recent: RecentBytes,
    /// Most entries of a run with a recent filter.
    filtered_entries_max: u64,
}

impl DiskRuns {
    /// Takes the runs of a manifest, and limits the memory of their recent filters.
    pub(crate) fn new(file: TableFile, recent_filter_bytes: usize, manifest: Manifest) -> Self {
        let Manifest { next_run, space, buckets, .. } = manifest;
        let mut recent = RecentBytes::new(recent_filter_bytes);
        for bucket in buckets.iter() {
            bucket.runs.iter().for_each(|run| recent.add((bucket.name, run.id), &run.recent));
        }
        Self {
            file,
            buckets: Arc::new(buckets),
            space,
            next_run,
            unsaved_run: next_run,
            saving_run: next_run,
            recent,
            filtered_entries_max: recent_entries(recent_filter_bytes),
        }
    }

    pub(in crate::kv) fn file(&self) -> &TableFile {
        &self.file
    }

    pub(in crate::kv) fn buckets(&self) -> &Arc<Buckets> {
        &self.buckets
    }

    fn buckets_mut(&mut self) -> &mut Buckets {
        Arc::get_mut(&mut self.buckets).expect("background lookups end before the table changes")
    }

    /// Drops the largest recent filters until they keep their memory limit.
    pub(in crate::kv) fn limit_filters(&mut self, counters: &mut TableCounters) {
        while let Some((bucket, id)) = self.recent.surplus() {
            counters.recent_filters_dropped += 1;
            let number = self.buckets.number(bucket);
            let runs = &mut self.buckets_mut().get_mut(number).runs;
            if let Some(run) = runs.iter_mut().find(|run| run.id == id) {
                run.recent = Vec::new();
            }
        }
        counters.recent_bytes_max = counters.recent_bytes_max.max(self.recent.bytes() as u64);
    }

    /// Returns the memory of buckets and runs, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let runs = self.buckets.iter().flat_map(|bucket| &bucket.runs).map(Run::memory_bytes).sum::<usize>();
        self.buckets.memory_bytes() + runs
    }

    /// Returns the bytes of the file that the next checkpoint frees, and the bytes in use.
    pub(in crate::kv) fn retired_and_used_bytes(&self) -> (u64, u64) {
        (self.space.retired_pages() * PAGE_BYTES as u64, self.space.end() * PAGE_BYTES as u64)
    }

    /// Allocates pages and numbers for new runs of buckets, with as many entries together. Runs with a predecessor get a
    /// recent filter if it fits the memory limit.
    pub(in crate::kv) fn allocate(
        &mut self,
        names: Vec<BucketName>,
        entries: u64,
        has_older: bool,
    ) -> (Extent, Vec<RunToWrite>) {
        // The first of two runs may leave its last page half empty.
        let pages = entries.div_ceil(PAGE_ENTRIES as u64) + names.len() as u64 - 1;
        let is_filtered = has_older && entries <= self.filtered_entries_max;
        let filtered_entries = if is_filtered { entries } else { 0 };
        let numbers = self.next_run..;
        self.next_run += names.len() as u64;
        let runs = numbers.zip(names).map(|(id, bucket)| RunToWrite { bucket, id, filtered_entries });
        (self.space.allocate(pages), runs.collect())
    }

    /// Frees the pages of an extent from the page number `used` on.
    pub(in crate::kv) fn release_rest(&mut self, extent: Extent, used: u64) {
        self.space.release(Extent { start: extent.start + used, pages: extent.pages - used });
    }

    /// Removes all runs of a bucket but the oldest `kept`, and frees their pages and recent filters.
    pub(in crate::kv) fn remove(&mut self, bucket: BucketName, kept: usize, counters: &mut TableCounters) {
        let number = self.buckets.number(bucket);
        for run in self.buckets_mut().get_mut(number).runs.split_off(kept) {
            self.recent.remove((bucket, run.id), &run.recent);
            counters.runs_merged += 1;
            if run.id < self.unsaved_run { self.space.retire(run.extent()) } else { self.space.release(run.extent()) }
        }
    }

    /// Adds a run as the newest of a bucket, unless it is empty.
    pub(in crate::kv) fn add(&mut self, bucket: BucketName, run: Run, counters: &mut TableCounters) {
        if run.entries == 0 {
            return;
        }
        counters.runs_written += 1;
        self.recent.add((bucket, run.id), &run.recent);
        let number = self.buckets.number(bucket);
        self.buckets_mut().get_mut(number).runs.push(run);
    }

    /// Splits a bucket whose runs were removed, as [`Buckets::split`] does.
    pub(in crate::kv) fn split(&mut self, number: u32) -> u32 {
        self.buckets_mut().split(number)
    }

    /// Joins two halves whose runs were removed, as [`Buckets::join`] does.
    pub(in crate::kv) fn join(&mut self, first: u32, second: u32) {
        self.buckets_mut().join(first, second);
    }

    /// Makes the pages durable and writes the manifest.
    pub(in crate::kv) fn save(&mut self, generation: u64, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.file.file().sync()?;
        encode_manifest((generation, self.file.epoch()), self.next_run, self.space.end(), &self.buckets, write)
    }

    /// Notes that a save is complete: the next checkpoint refers to none of the pages retired so far.
    pub(in crate::kv) fn mark_saved(&mut self) {
        self.space.mark_retired();
        self.saving_run = self.next_run;
    }

    /// Notes that the save is durable: frees the pages that only older checkpoints refer to.
    pub(in crate::kv) fn free_retired(&mut self) {
        self.space.free_retired();
        self.unsaved_run = self.saving_run;
    }
}
