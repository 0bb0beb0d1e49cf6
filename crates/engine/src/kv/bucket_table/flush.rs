//! Flushes of the memtable, as jobs that need nothing of the table while they run.
//!
//! The table decides which runs to merge, and the numbers and pages of the new ones. Each job reads, merges and writes a
//! part of them, on any thread. The table then installs the new runs. Buckets that fit the buffers are read, merged in
//! memory and written in groups; a larger bucket is streamed.

use std::sync::Arc;

use crate::error::Result;
use crate::io::Disk;
use crate::kv::Ordinal;
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::extent::Extent;
use crate::kv::bucket_table::file::TableFile;
use crate::kv::bucket_table::merge::{MergeBuffers, POOL_SHARE, merge_ready, sort_entries};
use crate::kv::bucket_table::page::{ENTRY_BYTES, EntryBytes, PAGE_BYTES};
use crate::kv::bucket_table::run::Run;
use crate::kv::bucket_table::run_source::{RunIo, RunSource};
use crate::kv::bucket_table::run_writer::{RunToWrite, RunsWriter};
use crate::kv::store::Live;

/// Fewest pages of a run that a streamed merge reads at a time, however small the buffers.
const STREAM_PAGES_MIN: u32 = 4;

/// Merge of one bucket, or of two that join.
#[derive(Debug)]
pub(crate) struct MergeTask {
    /// Runs to be merged, oldest first.
    sources: Vec<RunSource>,
    /// Entries of the memtable, in no particular order, younger than all runs.
    buffered: Vec<EntryBytes>,
    /// Pages of the new runs: enough if no entry is dropped.
    extent: Extent,
    /// The new runs, in order of their buckets.
    outputs: Vec<RunToWrite>,
}

impl MergeTask {
    pub(in crate::kv) fn new(
        sources: Vec<RunSource>,
        buffered: Vec<EntryBytes>,
        extent: Extent,
        outputs: Vec<RunToWrite>,
    ) -> Self {
        Self { sources, buffered, extent, outputs }
    }

    /// Returns the bytes of all inputs.
    pub(in crate::kv) fn bytes(&self) -> usize {
        self.sources.iter().map(RunSource::bytes).sum::<usize>() + self.buffered.len() * ENTRY_BYTES
    }

    fn start(self, file: &TableFile) -> Merge {
        let Self { mut sources, mut buffered, extent, outputs } = self;
        sort_entries(&mut buffered);
        sources.push(RunSource::of_entries(buffered));
        Merge { sources, writer: RunsWriter::new(file.clone(), extent, outputs) }
    }
}

/// Result of a [`MergeTask`].
#[derive(Debug)]
pub(in crate::kv) struct MergeTaskDone {
    /// The new runs, one for each output; some may have no entries.
    pub(crate) runs: Vec<Run>,
    /// True if a page of the old runs was bad.
    pub(crate) is_damaged: bool,
}

/// Part of a flush.
#[derive(Debug)]
pub(crate) struct Plan {
    file: TableFile,
    buffer_bytes: usize,
    buffers: MergeBuffers,
    tasks: Vec<MergeTask>,
}

/// Part of a flush that was started. All parts have to be run and handed back to their table.
pub struct FlushJob {
    plan: Plan,
    live: Live,
}

impl std::fmt::Debug for FlushJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlushJob").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Result of a part of a flush, for [`Table::finish_flush`](crate::kv::bucket_table::table::Table::finish_flush).
#[derive(Debug)]
pub struct FlushDone {
    outcome: Result<Vec<MergeTaskDone>>,
    counters: TableCounters,
    buffers: MergeBuffers,
}

impl FlushDone {
    pub(in crate::kv) fn into_parts(self) -> (Result<Vec<MergeTaskDone>>, TableCounters, MergeBuffers) {
        (self.outcome, self.counters, self.buffers)
    }
}

impl FlushJob {
    pub(crate) fn new(plan: Plan, live: &Live) -> Self {
        Self { plan, live: Arc::clone(live) }
    }

    /// Reads, merges and writes. The result holds the error, if one occurs.
    pub fn run(self, disk: &dyn Disk) -> FlushDone {
        self.plan.run(disk, &*self.live)
    }
}

impl Plan {
    /// Plans merges in `buffer_bytes` of memory.
    pub(crate) fn new(file: TableFile, buffer_bytes: usize, buffers: MergeBuffers, tasks: Vec<MergeTask>) -> Self {
        Self { file, buffer_bytes, buffers, tasks }
    }

    pub(crate) fn run(self, disk: &dyn Disk, live: &dyn Fn(Ordinal) -> bool) -> FlushDone {
        let Self { file, buffer_bytes, buffers, tasks } = self;
        // The pool of idle buffers takes the rest.
        let buffer_bytes = buffer_bytes - buffer_bytes / POOL_SHARE;
        let mut merger = Merger { io: RunIo::new(disk, &file), buffers, live, buffer_bytes };
        let outcome = merger.merge_all(tasks);
        FlushDone { outcome, counters: *merger.io.counters(), buffers: merger.buffers }
    }
}

/// Returns the memory of a group of merges: all inputs and outputs, and for the largest merge its entries and the lists
/// between its steps.
fn needed(sum: usize, largest: usize) -> usize {
    2 * sum + 3 * largest
}

struct Merger<'a> {
    io: RunIo<'a>,
    buffers: MergeBuffers,
    live: &'a dyn Fn(Ordinal) -> bool,
    buffer_bytes: usize,
}

struct Merge {
    sources: Vec<RunSource>,
    writer: RunsWriter,
}

impl Merger<'_> {
    fn merge_all(&mut self, tasks: Vec<MergeTask>) -> Result<Vec<MergeTaskDone>> {
        let mut done = Vec::with_capacity(tasks.len());
        let mut tasks = tasks.into_iter().peekable();
        while let Some(first) = tasks.next() {
            let (mut sum, mut largest) = (first.bytes(), first.bytes());
            let mut group = vec![first];
            let is_streamed = self.buffer_bytes < needed(sum, largest);
            let fits = |sum, largest| needed(sum, largest) <= self.buffer_bytes;
            while let Some(next) = tasks.next_if(|next| fits(sum + next.bytes(), largest.max(next.bytes()))) {
                sum += next.bytes();
                largest = largest.max(next.bytes());
                group.push(next);
            }
            self.io.counters().merges_streamed += u64::from(is_streamed);
            self.io.counters().merges_grouped += u64::from(1 < group.len());
            self.merge_group(group, is_streamed, &mut done)?;
        }
        Ok(done)
    }

    fn merge_group(&mut self, group: Vec<MergeTask>, is_streamed: bool, done: &mut Vec<MergeTaskDone>) -> Result<()> {
        let mut group: Vec<Merge> = group.into_iter().map(|task| task.start(self.io.file())).collect();
        let runs = group.iter().map(|merge| merge.sources.len()).max().unwrap_or(1);
        let pages_max = if is_streamed {
            let share = self.buffer_bytes / needed(1, 1) / runs / PAGE_BYTES;
            u32::try_from(share).unwrap_or(u32::MAX).max(STREAM_PAGES_MIN)
        } else {
            u32::MAX
        };
        while group.iter().any(|merge| !merge.sources.iter().all(RunSource::is_done)) {
            let sources = group.iter_mut().flat_map(|merge| &mut merge.sources);
            self.io.fill(sources, pages_max, self.buffers.pool());
            let mut full = Vec::new();
            for Merge { sources, writer } in &mut group {
                merge_ready(sources, self.live, &mut self.buffers, writer);
                full.append(&mut writer.take_writes());
            }
            self.io.write(full, self.buffers.pool())?;
        }
        let mut last = Vec::new();
        for Merge { sources, writer } in group {
            let (runs, mut writes) = writer.finish();
            last.append(&mut writes);
            done.push(MergeTaskDone { runs, is_damaged: sources.iter().any(RunSource::is_damaged) });
        }
        self.io.write(last, self.buffers.pool())
    }
}
