//! What a flush does to the table: choosing the buckets, and taking their new runs in.

use std::sync::Arc;

use crate::error::Result;
use crate::io::Disk;
use crate::kv::Ordinal;
use crate::kv::bucket::{BucketName, kept_runs};
use crate::kv::extent::Extent;
use crate::kv::flush::{FlushDone, FlushJob, Live, MergeTask, MergeTaskDone, Plan};
use crate::kv::memtable::Frozen;
use crate::kv::merge::{RunToWrite, Scratch};
use crate::kv::page::PAGE_ENTRIES;
use crate::kv::recent::recent_entries;
use crate::kv::run::Run;
use crate::kv::table::{Damage, FLUSH_BUCKETS_MIN, FLUSH_JOBS, FLUSH_SHARE, Table};

/// Most buckets that split, pairs that join and damaged buckets that are rewritten in one flush: each is read and written
/// whole, 3 MB at 200 million entries in 2,048 buckets.
const RESHAPED_MAX: usize = 8;

/// What happens to a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Its youngest runs become one, from this one on.
    Merge(usize),
    /// It becomes two.
    Split,
    /// It becomes one with the other half of the same whole.
    Join(BucketName),
}

#[derive(Debug)]
struct Installing {
    bucket: BucketName,
    change: Change,
    frozen: Frozen,
    other_frozen: Option<Frozen>,
    extent: Extent,
}

/// What the table keeps of a flush that is running, for each of its parts.
#[derive(Debug)]
pub(super) struct InFlight(Vec<Vec<Installing>>);

impl Table {
    /// Writes the fullest buckets out. After an error the table is as it was. No flush may be running.
    pub fn flush(&mut self, disk: &dyn Disk, live: &dyn Fn(Ordinal) -> bool) -> Result<()> {
        let done = self.plan_flush().into_iter().map(|plan| plan.run(disk, live)).collect();
        self.finish_flush(done)
    }

    /// Starts to write the fullest buckets out, in parts that may be carried out in any order, also at the same time. The
    /// table goes on to serve; it neither saves nor starts another flush until [`Table::finish_flush`] got what they came
    /// to.
    pub fn start_flush(&mut self, live: &Live) -> Vec<FlushJob> {
        self.plan_flush().into_iter().map(|plan| FlushJob { plan, live: Arc::clone(live) }).collect()
    }

    /// Takes the results of a flush in, one for each of its parts in their order. After an error, which may be the
    /// flush's own, the table is as it was.
    pub fn finish_flush(&mut self, done: Vec<FlushDone>) -> Result<()> {
        let in_flight = self.in_flight.take().expect("a flush that is finished was started");
        let mut outcome = Ok(Vec::with_capacity(done.len()));
        for FlushDone { outcome: of_part, counts, scratch } in done {
            self.counters.bytes_read += counts.pieces.bytes_read;
            self.counters.bytes_written += counts.pieces.bytes_written;
            self.counters.damaged_pages += counts.pieces.damaged_pages;
            self.counters.merges_grouped += counts.grouped;
            self.counters.merges_streamed += counts.streamed;
            self.scratches.push(scratch);
            outcome = outcome.and_then(|mut parts| of_part.map(|results| parts.push(results)).map(|()| parts));
        }
        match outcome {
            Ok(parts) => self.install(in_flight, parts),
            Err(error) => {
                self.give_up(in_flight);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Chooses what is written out, freezes it, and takes the pages for it.
    fn plan_flush(&mut self) -> Vec<Plan> {
        assert!(self.in_flight.is_none(), "one flush at a time");
        let mut parts: Vec<(usize, Vec<Installing>, Vec<MergeTask>)> = Vec::new();
        parts.resize_with(FLUSH_JOBS, Default::default);
        for (bucket, change) in self.choose() {
            let (one, task) = self.plan_change(bucket, change);
            let (bytes, installing, tasks) =
                parts.iter_mut().min_by_key(|(bytes, ..)| *bytes).expect("a flush has parts");
            *bytes += task.bytes();
            installing.push(one);
            tasks.push(task);
        }
        let mut in_flight = Vec::with_capacity(FLUSH_JOBS);
        let mut plans = Vec::with_capacity(FLUSH_JOBS);
        for (_, installing, tasks) in parts {
            let (file, epoch, scratch) = (Arc::clone(&self.file), self.epoch, self.take_scratch());
            in_flight.push(installing);
            plans.push(Plan { file, epoch, buffer_bytes: self.spec.merge_buffer_bytes / FLUSH_JOBS, scratch, tasks });
        }
        self.in_flight = Some(InFlight(in_flight));
        plans
    }

    /// Returns memory for merging, used before if possible.
    pub(super) fn take_scratch(&mut self) -> Scratch {
        self.scratches.pop().unwrap_or_else(|| Scratch::new(self.spec.merge_buffer_bytes / FLUSH_JOBS))
    }

    /// Chooses the fullest buckets, what to do with each, and damaged ones; in order of their keys.
    fn choose(&self) -> Vec<(BucketName, Change)> {
        let staged = |bucket: &u32| self.memtable.bucket_count(*bucket);
        let mut victims: Vec<u32> = self.buckets.numbers().filter(|bucket| staged(bucket) != 0).collect();
        let count = (self.buckets.count() / FLUSH_SHARE as usize).max(FLUSH_BUCKETS_MIN);
        if count < victims.len() {
            victims.select_nth_unstable_by_key(count, |bucket| std::cmp::Reverse(staged(bucket)));
            victims.truncate(count);
        }
        let mut names: Vec<_> = victims.into_iter().map(|number| self.buckets.get(number).name).collect();
        let damaged = self.damaged.iter().filter(|(_, damage)| **damage == Damage::OnDisk).map(|(name, _)| *name);
        names.extend(damaged.filter(|name| self.is_bucket(*name)).take(RESHAPED_MAX));
        names.sort_unstable_by_key(|name| name.first_head());
        names.dedup();
        let depth = self.spec.depth();
        let mut reshaped = 0;
        let mut changes: Vec<(BucketName, Change)> = Vec::with_capacity(names.len());
        for name in names {
            if matches!(changes.last(), Some((_, Change::Join(joined))) if *joined == name) {
                continue;
            }
            let number = self.buckets.number_of(name.first_head());
            let may_reshape = reshaped < RESHAPED_MAX;
            let change = if may_reshape && name.depth() < depth && staged(&number) != 0 {
                Change::Split
            } else if may_reshape && depth < name.depth() && self.sibling(name).is_some() {
                let [first, second] = self.sibling(name).expect("it was just looked for");
                if second == name && matches!(changes.last(), Some((last, _)) if *last == first) {
                    // The first half is being merged already.
                    self.merge(name)
                } else {
                    reshaped += 1;
                    changes.push((first, Change::Join(second)));
                    continue;
                }
            } else {
                self.merge(name)
            };
            reshaped += usize::from(change == Change::Split);
            changes.push((name, change));
        }
        changes
    }

    fn is_bucket(&self, name: BucketName) -> bool {
        self.buckets.get(self.buckets.number_of(name.first_head())).name == name
    }

    /// Returns the two halves of the whole that a bucket is a half of, if both are buckets.
    fn sibling(&self, name: BucketName) -> Option<[BucketName; 2]> {
        name.parent()?.halves().filter(|halves| halves.iter().all(|half| self.is_bucket(*half)))
    }

    fn merge(&self, name: BucketName) -> Change {
        if self.damaged.get(&name) == Some(&Damage::OnDisk) {
            return Change::Merge(0);
        }
        let number = self.buckets.number_of(name.first_head());
        let recent = u64::from(self.memtable.bucket_count(number));
        Change::Merge(kept_runs(name, self.spec.runs_max.max(1), recent, &self.buckets.get(number).runs))
    }

    fn plan_change(&mut self, bucket: BucketName, change: Change) -> (Installing, MergeTask) {
        let number = self.buckets.number_of(bucket.first_head());
        let mut staged = Vec::new();
        let frozen = self.memtable.freeze(number, &mut staged);
        let kept = if let Change::Merge(kept) = change { kept } else { 0 };
        let mut runs: Vec<_> = self.buckets.get(number).runs[kept..].to_vec();
        let mut other_frozen = None;
        let mut names = vec![bucket];
        match change {
            Change::Merge(_) => {}
            Change::Split => names = bucket.halves().expect("a bucket that is split is not too deep").to_vec(),
            Change::Join(other) => {
                names = vec![bucket.parent().expect("a half has a whole")];
                let other = self.buckets.number_of(other.first_head());
                other_frozen = Some(self.memtable.freeze(other, &mut staged));
                // Of other keys: how old they are beside the first half's does not matter.
                runs.extend_from_slice(&self.buckets.get(other).runs);
            }
        }
        let entries = runs.iter().map(|run| run.entries).sum::<u64>() + staged.len() as u64;
        // The first of two runs may leave its last page half empty.
        let pages = entries.div_ceil(PAGE_ENTRIES as u64) + names.len() as u64 - 1;
        let extent = self.space.allocate(pages);
        // The oldest run of a bucket has no filter.
        let is_filtered = kept != 0 && entries <= recent_entries(self.spec.recent_filter_bytes);
        let filtered_entries = if is_filtered { entries } else { 0 };
        let outputs = (self.next_run..).zip(names).map(|(id, bucket)| RunToWrite { bucket, id, filtered_entries });
        let outputs: Vec<_> = outputs.collect();
        self.next_run += outputs.len() as u64;
        let runs = runs.iter().map(Run::place).collect();
        (Installing { bucket, change, frozen, other_frozen, extent }, MergeTask { runs, staged, extent, outputs })
    }

    /// Takes new runs in.
    fn install(&mut self, InFlight(parts): InFlight, results: Vec<Vec<MergeTaskDone>>) {
        assert!(parts.iter().map(Vec::len).eq(results.iter().map(Vec::len)), "a flush has done all that was planned");
        let results = results.into_iter().flatten();
        for (one, MergeTaskDone { runs, is_damaged }) in parts.into_iter().flatten().zip(results) {
            let Installing { bucket, change, frozen, other_frozen, extent } = one;
            let number = self.buckets.number_of(bucket.first_head());
            self.memtable.drop_frozen(frozen);
            if let Some(frozen) = other_frozen {
                self.memtable.drop_frozen(frozen);
            }
            let used = runs.iter().map(|run| u64::from(run.pages())).sum::<u64>();
            self.space.release(Extent { start: extent.start + used, pages: extent.pages - used });
            self.note_damage(bucket, change, is_damaged);
            match change {
                Change::Merge(kept) => self.take_runs_out(number, kept),
                Change::Split => {
                    self.take_runs_out(number, 0);
                    let second = self.buckets_mut().split(number);
                    self.memtable.split(number, self.buckets.get(second).name.first_head());
                    self.counters.buckets_split += 1;
                }
                Change::Join(other) => {
                    self.take_runs_out(number, 0);
                    let other = self.buckets.number_of(other.first_head());
                    self.take_runs_out(other, 0);
                    self.buckets_mut().join(number, other);
                    self.memtable.join(number, other);
                    self.counters.buckets_joined += 1;
                }
            }
            let names: Vec<_> = match change {
                Change::Merge(_) => vec![bucket],
                Change::Split => bucket.halves().into_iter().flatten().collect(),
                Change::Join(_) => bucket.parent().into_iter().collect(),
            };
            for (name, run) in names.into_iter().zip(runs) {
                self.add_run(name, run);
            }
        }
        self.keep_recent_cap();
    }

    /// Takes note of what a merge read, and that what it read whole is rewritten.
    fn note_damage(&mut self, bucket: BucketName, change: Change, is_damaged: bool) {
        let read = match change {
            Change::Join(other) => vec![bucket, other],
            Change::Merge(_) | Change::Split => vec![bucket],
        };
        for name in read {
            let known = self.damaged.get(&name).copied();
            let is_whole = !matches!(change, Change::Merge(kept) if kept != 0);
            match known {
                Some(Damage::OnDisk) if is_whole => self.damaged.insert(name, Damage::Rewritten),
                None if is_damaged => self.damaged.insert(name, Damage::Rewritten),
                _ => None,
            };
        }
    }

    fn take_runs_out(&mut self, number: u32, kept: usize) {
        let bucket = self.buckets_mut().get_mut(number);
        let name = bucket.name;
        let old = bucket.runs.split_off(kept);
        for run in &old {
            self.drop_run(name, run);
        }
    }

    fn add_run(&mut self, bucket: BucketName, run: Run) {
        if run.entries == 0 {
            return;
        }
        self.counters.runs_written += 1;
        self.recent.add((bucket, run.id), &run.recent);
        let number = self.buckets.number_of(bucket.first_head());
        self.buckets_mut().get_mut(number).runs.push(run);
    }

    /// Forgets a flush that failed.
    fn give_up(&mut self, InFlight(parts): InFlight) {
        for Installing { bucket, change, frozen, other_frozen, extent } in parts.into_iter().flatten() {
            self.space.release(extent);
            self.memtable.thaw(self.buckets.number_of(bucket.first_head()), frozen);
            if let (Change::Join(other), Some(frozen)) = (change, other_frozen) {
                self.memtable.thaw(self.buckets.number_of(other.first_head()), frozen);
            }
        }
    }
}
