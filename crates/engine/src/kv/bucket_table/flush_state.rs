//! The flush that a table has in flight: its start, and the installation of its results.

use crate::error::Result;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::change::Change;
use crate::kv::bucket_table::counters::TableCounters;
use crate::kv::bucket_table::damage::DamagedBuckets;
use crate::kv::bucket_table::disk_runs::DiskRuns;
use crate::kv::bucket_table::extent::Extent;
use crate::kv::bucket_table::flush::{FlushDone, MergeTask, MergeTaskDone, Plan};
use crate::kv::bucket_table::memtable::{Frozen, Memtable};
use crate::kv::bucket_table::merge::MergeBuffers;
use crate::kv::bucket_table::run_source::RunSource;

/// Parts of a flush that run at the same time, with a share of the memory each: one merges while another waits for the
/// disk.
const FLUSH_JOBS: usize = 2;

/// Change that a flush has in flight.
#[derive(Debug)]
struct Pending {
    change: Change,
    /// Frozen entries of each changed bucket.
    frozen: Vec<(BucketName, Frozen)>,
    /// Pages of the new runs.
    extent: Extent,
}

/// Parts of a table that a flush changes.
pub(in crate::kv) struct Target<'a> {
    pub(crate) runs: &'a mut DiskRuns,
    pub(crate) memtable: &'a mut Memtable,
    pub(crate) damaged: &'a mut DamagedBuckets,
    pub(crate) counters: &'a mut TableCounters,
}

/// The flush in flight, if there is one, and the buffers of the last.
#[derive(Debug)]
pub(in crate::kv) struct FlushState {
    /// Changes of each part of the flush.
    in_flight: Option<Vec<Vec<Pending>>>,
    buffers: Vec<MergeBuffers>,
    /// Memory of each part.
    part_bytes: usize,
}

impl FlushState {
    /// Starts without a flush. All parts of one take `merge_buffer_bytes`.
    pub(crate) fn new(merge_buffer_bytes: usize) -> Self {
        Self { in_flight: None, buffers: Vec::new(), part_bytes: merge_buffer_bytes / FLUSH_JOBS }
    }

    pub(in crate::kv) fn is_running(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns memory for merges, used before if possible.
    pub(in crate::kv) fn take_buffers(&mut self) -> MergeBuffers {
        self.buffers.pop().unwrap_or_else(|| MergeBuffers::new(self.part_bytes))
    }

    /// Takes memory for merges back.
    pub(in crate::kv) fn give_buffers(&mut self, buffers: MergeBuffers) {
        self.buffers.push(buffers);
    }

    /// Freezes the entries of the changed buckets, allocates pages for the new runs, and plans the parts of the flush.
    pub(in crate::kv) fn start(
        &mut self,
        changes: Vec<Change>,
        runs: &mut DiskRuns,
        memtable: &mut Memtable,
    ) -> Vec<Plan> {
        assert!(!self.is_running(), "one flush at a time");
        let mut parts: Vec<(usize, Vec<Pending>, Vec<MergeTask>)> = Vec::new();
        parts.resize_with(FLUSH_JOBS, Default::default);
        for change in changes {
            let (one, task) = start_change(change, runs, memtable);
            let (bytes, pending, tasks) = parts.iter_mut().min_by_key(|(bytes, ..)| *bytes).expect("a flush has parts");
            *bytes += task.bytes();
            pending.push(one);
            tasks.push(task);
        }
        let (mut in_flight, mut plans) = (Vec::new(), Vec::new());
        for (_, pending, tasks) in parts {
            in_flight.push(pending);
            plans.push(Plan::new(runs.file().clone(), self.part_bytes, self.take_buffers(), tasks));
        }
        self.in_flight = Some(in_flight);
        plans
    }

    /// Installs the results of a flush, one for each of its parts in order. After an error the table is as it was.
    pub(crate) fn finish(&mut self, done: Vec<FlushDone>, mut target: Target<'_>) -> Result<()> {
        let pending = self.in_flight.take().expect("a flush that is finished was started");
        let mut outcomes = Vec::with_capacity(done.len());
        for done in done {
            let (outcome, counters, buffers) = done.into_parts();
            target.counters.add(&counters);
            self.buffers.push(buffers);
            outcomes.push(outcome);
        }
        let results: Vec<Vec<MergeTaskDone>> = match outcomes.into_iter().collect() {
            Ok(results) => results,
            Err(error) => {
                pending.into_iter().flatten().for_each(|pending| target.give_up(pending));
                return Err(error);
            }
        };
        let is_complete = pending.iter().map(Vec::len).eq(results.iter().map(Vec::len));
        assert!(is_complete, "a flush carries out all changes");
        for (pending, done) in pending.into_iter().flatten().zip(results.into_iter().flatten()) {
            target.install(pending, done);
        }
        target.runs.limit_filters(target.counters);
        Ok(())
    }
}

fn start_change(change: Change, runs: &mut DiskRuns, memtable: &mut Memtable) -> (Pending, MergeTask) {
    let kept = change.kept();
    let (mut frozen, mut buffered, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    let mut entries = 0;
    // Two halves that join have no key in common, so the order of their runs does not matter.
    for &bucket in change.sources() {
        let number = runs.buckets().number(bucket);
        frozen.push((bucket, memtable.freeze(number, &mut buffered)));
        for run in &runs.buckets().get(number).runs[kept..] {
            entries += run.entries;
            sources.push(RunSource::of_run(run));
        }
    }
    entries += buffered.len() as u64;
    let (extent, outputs) = runs.allocate(change.outputs(), entries, kept != 0);
    (Pending { change, frozen, extent }, MergeTask::new(sources, buffered, extent, outputs))
}

impl Target<'_> {
    fn install(&mut self, Pending { change, frozen, extent }: Pending, done: MergeTaskDone) {
        let kept = change.kept();
        for (bucket, frozen) in frozen {
            self.memtable.drop_frozen(frozen);
            self.damaged.note_merge(bucket, kept == 0, done.is_damaged);
            self.runs.remove(bucket, kept, self.counters);
        }
        let used = done.runs.iter().map(|run| u64::from(run.pages())).sum();
        self.runs.release_rest(extent, used);
        match change {
            Change::Merge { .. } => {}
            Change::Split(bucket) => {
                let first = self.runs.buckets().number(bucket);
                let second = self.runs.split(first);
                self.memtable.split(first, self.runs.buckets().get(second).name.first_head());
                self.counters.buckets_split += 1;
            }
            Change::Join(halves) => {
                let [first, second] = halves.map(|half| self.runs.buckets().number(half));
                self.runs.join(first, second);
                self.memtable.join(first, second);
                self.counters.buckets_joined += 1;
            }
        }
        for (bucket, run) in change.outputs().into_iter().zip(done.runs) {
            self.runs.add(bucket, run, self.counters);
        }
    }

    /// Undoes a change that was started.
    fn give_up(&mut self, Pending { frozen, extent, .. }: Pending) {
        self.runs.release_rest(extent, 0);
        for (bucket, frozen) in frozen {
            self.memtable.thaw(self.runs.buckets().number(bucket), frozen);
        }
    }
}
