//! Hints that are stale: which metadata containers hold them, and how many.
//!
//! The mark passes on the hint of every reference with the container of its node. Runs of equal ones are spilled, and sorted
//! when the plan tells which containers this collection gives up. A metadata container is *refreshed*, that is copied with
//! today's hints, if too many of its hints are stale.

use std::collections::BTreeMap;

use crate::bitmap::Bitmap;
use crate::collect::mark::Hint;
use crate::collect::moved::{HintCode, Hinted};
use crate::collect::usage::{Prefix, Usage, WANTED_LEN, Wanted, wanted_record};
use crate::error::Result;
use crate::snapshot::TARGETS_MAX;
use crate::spill::{FilledPartitions, Partitions, SpillMap};
use crate::store::Store;
use crate::store::container_set::{Containers, RunCursor};
use crate::store::metadata::Scratch;
use crate::store::view::{View, ViewMemory};
use crate::types::ContainerId;

/// A metadata container is refreshed if at least this part of its hints is stale: 1 of 2. So a collection writes at most two
/// hints for each one that has become stale, and fewer than half of all stay so. Most of them are written anyway when metadata
/// is copied for what is dead in it: with 1 of 8, rounds of prune on source trees copied 11% more, and restores read as many
/// directories.
const STALE_MIN: (u64, u64) = (1, 2);

/// Containers to which the chunks of one go that is copied, mostly: those of a lifetime class stay together, and may begin in one
/// container and end in the next. It is an estimate: if there are more, the next collection refreshes the hints.
const SPREAD: usize = 3;

/// Bytes of a run of hints: number of the metadata container, code of the container that the hints name, count.
const RUN_LEN: usize = 4 + 4 + 4;

/// Collects the hints of the nodes of listed containers.
#[derive(Debug)]
pub(super) struct HintRuns {
    listed: Containers,
    /// Records are divided by their first bits: numbers are spread over all of them.
    step: u32,
    runs: Partitions<RUN_LEN>,
    /// The current run.
    run: Option<Run>,
    near: RunCursor,
    /// Reads where the chunks of deleted containers are.
    view: View,
    /// Numbers of deleted containers that hints name, and of those whose chunks are found by `moved`.
    others: Bitmap,
    moved_others: Bitmap,
    /// Chunks that hints do not find.
    lost: Partitions<WANTED_LEN>,
}

/// Hints of one metadata container that follow each other and name the same container.
#[derive(Clone, Copy, Debug)]
struct Run {
    node: ContainerId,
    container: Option<ContainerId>,
    /// Number of the metadata container.
    number: u32,
    code: Option<HintCode>,
    /// True if the hints name no container, or a deleted one of which nothing tells where its chunks are.
    is_lost: bool,
    count: u32,
}

impl HintRuns {
    /// Starts without hints. Takes at most `memory_bytes`, which must be at least twice 512 KiB, and half as much again for
    /// the map of moved chunks.
    pub(super) fn new(store: &Store, listed: &Containers, scratch: &Scratch, memory_bytes: usize) -> Result<Self> {
        let memory = ViewMemory { directories: 0, moved: memory_bytes / 2 };
        Ok(Self {
            listed: listed.clone(),
            step: u32::MAX.checked_div(listed.numbers_end()).unwrap_or(1).max(1),
            runs: scratch.partitions(&store.host, "hints", memory_bytes / 2)?,
            run: None,
            near: RunCursor::default(),
            view: View::new(store, listed, scratch, memory).fixed(),
            others: Bitmap::default(),
            moved_others: Bitmap::default(),
            lost: scratch.partitions(&store.host, "chunks that hints do not find", memory_bytes / 2)?,
        })
    }

    /// Takes a hint. `hinted` gives out the numbers of deleted containers.
    pub(super) fn push(&mut self, hint: Hint, hinted: &mut Hinted) -> Result<()> {
        let Hint { node: Some(node), chunk, container } = hint else { return hinted.insert_hint(&hint) };
        if self.run.as_ref().is_none_or(|run| run.node != node || run.container != container) {
            self.end_run()?;
            // A container that has appeared since the listing is not refreshed.
            let Some(number) = self.listed.find_near(node, &mut self.near) else { return hinted.insert_hint(&hint) };
            let code = container.map(|container| hinted.code_of(container)).transpose()?;
            let is_lost = self.is_lost(code, container)?;
            self.run = Some(Run { node, container, number: number.0, code, is_lost, count: 0 });
        }
        let Some(run) = &mut self.run else { return Ok(()) };
        run.count = run.count.saturating_add(1);
        if run.is_lost { self.lost.push(&wanted_record(&chunk, run.number)) } else { Ok(()) }
    }

    /// Returns true if a hint does not lead to its chunk.
    fn is_lost(&mut self, code: Option<HintCode>, container: Option<ContainerId>) -> Result<bool> {
        let (Some(code), Some(container)) = (code, container) else { return Ok(true) };
        let HintCode::Other(number) = code else { return Ok(false) };
        if !self.others.contains(number) {
            self.others.insert(number);
            if !self.view.moved(container)?.is_empty() {
                self.moved_others.insert(number);
            }
        }
        Ok(!self.moved_others.contains(number))
    }

    fn end_run(&mut self) -> Result<()> {
        let Some(Run { number, code: Some(code), count, .. }) = self.run.take() else { return Ok(()) };
        let mut record = [0; RUN_LEN];
        let fields = [number * self.step, code.encode(), count].into_iter().flat_map(u32::to_be_bytes);
        record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        self.runs.push(&record)
    }

    /// Ends the list.
    pub(super) fn finish(mut self) -> Result<FilledHintRuns> {
        self.end_run()?;
        let Self { listed, step, runs, moved_others, lost, .. } = self;
        Ok(FilledHintRuns { listed, step, runs: runs.finish()?, moved_others, lost: lost.finish()? })
    }
}

/// The hints of metadata containers.
#[derive(Debug)]
pub(super) struct FilledHintRuns {
    listed: Containers,
    step: u32,
    runs: FilledPartitions<RUN_LEN>,
    moved_others: Bitmap,
    lost: Wanted,
}

/// Takes the number of a metadata container and what its hints name, with counts.
type EachContainer<'a> = dyn FnMut(u32, &[(HintCode, u32)]) + 'a;

/// Metadata containers whose hints should be refreshed.
#[derive(Debug)]
pub(super) struct Stale {
    /// Their numbers, ascending.
    pub(super) containers: Vec<u32>,
    /// The containers of chunks that hints do not find, if there are any.
    pub(super) found: Option<SpillMap>,
}

impl FilledHintRuns {
    /// Finds the containers whose hints should be refreshed when the containers `given_up` go: those with many stale hints, and
    /// those with a hint by which no reader finds its chunk, or will find it after this collection, though a container has it.
    /// The latter costs each restore a look at all directories. Takes at most `memory_bytes`, which must be at least 512 KiB, and
    /// 40 for each metadata container.
    pub(super) fn stale(
        &self,
        usage: &Usage,
        given_up: &Bitmap,
        hinted: &mut Hinted,
        (store, scratch): (&Store, &Scratch),
        memory_bytes: usize,
    ) -> Result<Stale> {
        let spread = self.spread(given_up, hinted, store)?;
        let mut lost: BTreeMap<u32, u32> = BTreeMap::new();
        let mut found = None;
        if 0 < self.lost.count() {
            let mut map = scratch.map(&store.host, "chunks that hints do not find", memory_bytes)?;
            usage.find_live(&self.lost, &mut |prefix, referring, container| {
                *lost.entry(referring).or_default() += 1;
                map.insert(found_key(prefix), &container.to_be_bytes())
            })?;
            found = Some(map);
        }
        let mut containers = Vec::new();
        let (part, whole) = STALE_MIN;
        self.each_container(&mut |number, runs| {
            let (mut all, mut stale, mut is_urgent) = (0, 0, lost.contains_key(&number));
            for (code, count) in runs {
                all += u64::from(*count);
                let is_stale = match code {
                    HintCode::Listed(number) => given_up.contains(*number),
                    HintCode::Other(number) => {
                        is_urgent |= spread.contains(*number);
                        self.moved_others.contains(*number)
                    }
                };
                stale += if is_stale { u64::from(*count) } else { 0 };
            }
            if is_urgent || 0 < stale && all * part <= stale * whole {
                containers.push(number);
            }
        })?;
        Ok(Stale { containers, found })
    }

    /// Returns the numbers of deleted containers whose chunks will probably stand in too many containers to name.
    fn spread(&self, given_up: &Bitmap, hinted: &mut Hinted, store: &Store) -> Result<Bitmap> {
        let mut spread = Bitmap::default();
        store.read_moved(None, &mut |container, targets| {
            let moving = targets
                .iter()
                .filter(|target| self.listed.find(**target).is_some_and(|number| given_up.contains(number.0)));
            let moving = moving.count();
            if 0 < moving && TARGETS_MAX < targets.len() + moving * (SPREAD - 1) {
                hinted.other(container)?.into_iter().for_each(|number| spread.insert(number));
            }
            Ok(())
        })?;
        Ok(spread)
    }

    /// Adds what the hints of containers name that are not in `copied`.
    pub(super) fn name_kept(&self, copied: &Bitmap, hinted: &mut Hinted) -> Result<()> {
        self.each_container(&mut |number, runs| {
            if !copied.contains(number) {
                for (code, _) in runs {
                    hinted.insert_code(*code);
                }
            }
        })
    }

    /// Passes on each container with its hints: where they point, and how many do.
    fn each_container(&self, each: &mut EachContainer<'_>) -> Result<()> {
        let mut current = None;
        let mut runs: Vec<(HintCode, u32)> = Vec::new();
        for record in self.runs.sorted() {
            let [n0, n1, n2, n3, c0, c1, c2, c3, r0, r1, r2, r3] = record?;
            let number = u32::from_be_bytes([n0, n1, n2, n3]) / self.step;
            if let Some(before) = current.replace(number).filter(|before| *before != number) {
                each(before, &runs);
                runs.clear();
            }
            let code = HintCode::decode(u32::from_be_bytes([c0, c1, c2, c3]));
            let count = u32::from_be_bytes([r0, r1, r2, r3]);
            match runs.last_mut().filter(|(before, _)| *before == code) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => runs.push((code, count)),
            }
        }
        if let Some(number) = current {
            each(number, &runs);
        }
        Ok(())
    }
}

/// Returns the key of a chunk in [`Stale::found`].
pub(super) fn found_key(prefix: Prefix) -> [u8; 32] {
    let mut key = [0; 32];
    key.iter_mut().zip(prefix).for_each(|(byte, of_prefix)| *byte = of_prefix);
    key
}
