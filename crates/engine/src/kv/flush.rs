//! Writing staged entries out, as jobs that need nothing of the table while they run.
//!
//! The table says what is to be merged, under which numbers and where to; the jobs, each with a part of it, read, merge
//! and write, on any thread; the table takes the new runs in. Buckets whose runs fit into the buffers are read together, merged in memory
//! and written together; a bucket that does not fit is streamed.

use std::sync::Arc;

use crate::error::Result;
use crate::io::{Disk, DiskFile};
use crate::kv::Ordinal;
use crate::kv::extent::Extent;
use crate::kv::merge::{
    POOL_SHARE, RunSource, RunToWrite, RunsWriter, Scratch, TableFile, TransferCounts, merge_ready, sort_entries,
};
use crate::kv::page::{ENTRY_BYTES, EntryBytes, PAGE_BYTES};
use crate::kv::run::{Run, RunPlace};

/// Fewest pages of a run that are read at a time when a bucket is streamed, however small the buffers.
const STREAM_PAGES_MIN: u32 = 4;

/// Says of containers whether they are live, from any thread.
pub type Live = Arc<dyn Fn(Ordinal) -> bool + Send + Sync>;

/// What becomes of one bucket, or of two that join.
#[derive(Debug)]
pub(super) struct MergeTask {
    /// Runs to be merged, oldest first.
    pub(super) runs: Vec<RunPlace>,
    /// Staged entries, in no order, younger than all runs.
    pub(super) staged: Vec<EntryBytes>,
    /// Where the new runs go: enough pages if nothing is dropped.
    pub(super) extent: Extent,
    /// The new runs, in order of their buckets.
    pub(super) outputs: Vec<RunToWrite>,
}

impl MergeTask {
    pub(super) fn bytes(&self) -> usize {
        let pages: usize = self.runs.iter().map(|run| run.pages as usize).sum();
        pages * PAGE_BYTES + self.staged.len() * ENTRY_BYTES
    }
}

/// What a part of a flush does.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) epoch: u64,
    pub(super) buffer_bytes: usize,
    pub(super) scratch: Scratch,
    pub(super) tasks: Vec<MergeTask>,
}

/// A part of a flush that was started. All have to be run and handed back to the table that started them.
pub struct FlushJob {
    pub(super) plan: Plan,
    pub(super) live: Live,
}

impl std::fmt::Debug for FlushJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlushJob").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// What came of one piece of work.
#[derive(Debug)]
pub(super) struct MergeTaskDone {
    /// The new runs, as many as were to be written; some may have no entries.
    pub(super) runs: Vec<Run>,
    /// Whether a page of the old ones was bad.
    pub(super) is_damaged: bool,
}

/// What a flush counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FlushCounts {
    pub(super) pieces: TransferCounts,
    pub(super) grouped: u64,
    pub(super) streamed: u64,
}

/// A part of a flush that was run: to be handed to [`Table::finish_flush`](crate::kv::table::Table::finish_flush).
#[derive(Debug)]
pub struct FlushDone {
    pub(super) outcome: Result<Vec<MergeTaskDone>>,
    pub(super) counts: FlushCounts,
    pub(super) scratch: Scratch,
}

impl FlushJob {
    /// Reads, merges and writes. An error is in the result.
    pub fn run(self, disk: &dyn Disk) -> FlushDone {
        self.plan.run(disk, &*self.live)
    }
}

impl Plan {
    pub(super) fn run(self, disk: &dyn Disk, live: &dyn Fn(Ordinal) -> bool) -> FlushDone {
        let Self { file, epoch, buffer_bytes, scratch, tasks } = self;
        // The rest is for buffers that are between two uses.
        let buffer_bytes = buffer_bytes - buffer_bytes / POOL_SHARE;
        let mut counts = FlushCounts::default();
        let mut merger = Merger {
            pieces: TableFile { disk, file: &file, epoch, counts: TransferCounts::default() },
            scratch,
            live,
            buffer_bytes,
        };
        let mut done = Vec::with_capacity(tasks.len());
        let mut tasks = tasks.into_iter().peekable();
        let mut outcome = Ok(());
        while let Some(first) = tasks.next() {
            let (mut sum, mut largest) = (first.bytes(), first.bytes());
            let mut group = vec![first];
            let is_streamed = buffer_bytes < needed(sum, largest);
            while let Some(next) =
                tasks.next_if(|next| needed(sum + next.bytes(), largest.max(next.bytes())) <= buffer_bytes)
            {
                sum += next.bytes();
                largest = largest.max(next.bytes());
                group.push(next);
            }
            counts.streamed += u64::from(is_streamed);
            counts.grouped += u64::from(1 < group.len());
            outcome = merger.merge_group(group, is_streamed, &mut done);
            if outcome.is_err() {
                break;
            }
        }
        counts.pieces = merger.pieces.counts;
        FlushDone { outcome: outcome.map(|()| done), counts, scratch: merger.scratch }
    }
}

/// Memory of a group: what is read or staged and what is written, for all of it; for the one that is being merged
/// also its entries, and the lists of merges in between.
fn needed(sum: usize, largest: usize) -> usize {
    2 * sum + 3 * largest
}

struct Merger<'a> {
    pieces: TableFile<'a>,
    scratch: Scratch,
    live: &'a dyn Fn(Ordinal) -> bool,
    buffer_bytes: usize,
}

struct Merging {
    sources: Vec<RunSource>,
    writer: RunsWriter,
}

impl Merger<'_> {
    fn merge_group(&mut self, group: Vec<MergeTask>, is_streamed: bool, done: &mut Vec<MergeTaskDone>) -> Result<()> {
        let epoch = self.pieces.epoch;
        let mut group: Vec<_> = group.into_iter().map(|task| Merging::new(task, epoch)).collect();
        let runs = group.iter().map(|merging| merging.sources.len()).max().unwrap_or(1);
        let pages_max = if is_streamed {
            let share = self.buffer_bytes / needed(1, 1) / runs / PAGE_BYTES;
            u32::try_from(share).unwrap_or(u32::MAX).max(STREAM_PAGES_MIN)
        } else {
            u32::MAX
        };
        while group.iter().any(|merging| !merging.sources.iter().all(RunSource::is_done)) {
            let sources = group.iter_mut().flat_map(|merging| &mut merging.sources);
            self.pieces.fill(sources, pages_max, &mut self.scratch);
            let mut full = Vec::new();
            for Merging { sources, writer } in &mut group {
                merge_ready(sources, self.live, &mut self.scratch, writer);
                full.append(&mut writer.take_writes());
            }
            self.pieces.write(full, &mut self.scratch)?;
        }
        let mut last = Vec::new();
        for Merging { sources, writer } in group {
            let (runs, mut pieces) = writer.finish();
            last.append(&mut pieces);
            done.push(MergeTaskDone { runs, is_damaged: sources.iter().any(|source| source.damaged_pages != 0) });
        }
        self.pieces.write(last, &mut self.scratch)
    }
}

impl Merging {
    fn new(task: MergeTask, epoch: u64) -> Self {
        let MergeTask { runs, mut staged, extent, outputs } = task;
        sort_entries(&mut staged);
        let mut sources: Vec<_> = runs.into_iter().map(RunSource::of_run).collect();
        sources.push(RunSource::of_entries(staged));
        Self { sources, writer: RunsWriter::new(epoch, extent, outputs) }
    }
}
