//! Reading what a plan needs to know.

use std::collections::{BTreeMap, BTreeSet};

use onefold_engine::error::Result;
use onefold_engine::forget::{self, Doubt, GroupBy, KeepRule, KeepRules, Limit, Period, Policy, Trust, candidates};
use onefold_engine::store::Store;
use onefold_engine::types::{SessionId, Timestamp};

use crate::history::{Change, CheckpointLimits, GapTracker, HistoryEntry, IndexKind};
use crate::journal::Lsn;
use crate::retention::plan::{CheckpointFacts, Held, HistoryFacts, MomentFacts};
use crate::retention::rules::KeepMoments;
use crate::stored::{Checkpoint, Checkpoints, Streams, read_index};

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Moments of thinned checkpoints that are remembered from one plan to the next: those of a year by hours, and of ten years by days.
const REMEMBERED_MAX: usize = 1 << 14;
/// Memory of a moment that is remembered, with a mark of usual length, and its part of a checkpoint.
const REMEMBERED_BYTES: usize = 2 * size_of::<MomentFacts>() + 64;

/// Moments of checkpoints that were thinned: their indexes do not change, so each is read once.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    moments: BTreeMap<SessionId, Moments>,
    count: usize,
}

impl Remembered {
    /// Most bytes that it takes.
    pub(super) const MEMORY_BYTES: usize = REMEMBERED_MAX * REMEMBERED_BYTES;

    fn insert(&mut self, snapshot: SessionId, moments: &Moments) {
        let count = self.count + 1 + moments.list.len();
        if moments.kind == IndexKind::Thinned && count <= REMEMBERED_MAX {
            self.count = count;
            self.moments.insert(snapshot, moments.clone());
        }
    }

    /// Forgets the checkpoints that are gone.
    fn retain(&mut self, present: &BTreeSet<SessionId>) {
        self.moments.retain(|snapshot, _| present.contains(snapshot));
        self.count = self.moments.values().map(|moments| 1 + moments.list.len()).sum();
    }
}

/// Moments of a checkpoint, and what it takes to thin it.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    pub(super) kind: IndexKind,
    /// Marks, and the last flush of each period, none inside a gap; ascending.
    pub(super) list: Vec<MomentFacts>,
    /// True if no gap is open after the last record.
    is_end_closed: bool,
    /// Versions, and entries that name none.
    versions: u64,
    others: u64,
}

impl Moments {
    /// Reads the moments of a checkpoint. `period` returns the seconds of which one flush at a time is enough. `before` is the time of
    /// the last record before.
    pub(super) fn read(
        streams: &mut Streams,
        checkpoint: &Checkpoint,
        before: u64,
        period: &dyn Fn(u64) -> u64,
    ) -> Result<Self> {
        let mut reading = Reading {
            first: checkpoint.first(),
            marks: checkpoint.note.marks.iter().map(|mark| (Lsn(mark.lsn), mark.name.clone())).collect(),
            time: before,
            gaps: GapTracker::default(),
            period,
            moments: Self { kind: IndexKind::Whole, list: Vec::new(), is_end_closed: true, versions: 0, others: 0 },
        };
        reading.marks.reverse();
        let kind = read_index(streams, checkpoint, &mut |entry| {
            reading.entry(&entry);
            Ok(())
        })?;
        reading.marks_before(Lsn(u64::MAX));
        Ok(Self { kind, is_end_closed: reading.gaps.is_closed(), ..reading.moments })
    }

    /// Returns true if a checkpoint with these limits could be as long. The last record that fits may exceed them.
    fn fits(&self, limits: &CheckpointLimits) -> bool {
        self.versions <= 2 * limits.versions && self.others <= 2 * limits.others
    }
}

struct Reading<'a> {
    first: Lsn,
    /// Marks that were not met yet, the next one last.
    marks: Vec<(Lsn, String)>,
    /// The time of the last record.
    time: u64,
    gaps: GapTracker,
    period: &'a dyn Fn(u64) -> u64,
    moments: Moments,
}

impl Reading<'_> {
    fn entry(&mut self, entry: &HistoryEntry) {
        self.marks_before(entry.lsn);
        self.gaps.push(entry);
        // An index begins with gaps of earlier records, and their times.
        if entry.lsn != self.first || !matches!(entry.change, Change::Gap | Change::ResyncBegin) {
            self.time = entry.time;
        }
        match entry.change {
            Change::Data => self.moments.versions += entry.count,
            _ => self.moments.others += 1,
        }
        if entry.change == Change::Flush && self.gaps.is_closed() {
            self.flush(entry);
        }
    }

    /// Takes a flush in place of an earlier one of the same period.
    fn flush(&mut self, entry: &HistoryEntry) {
        let number = |time: u64| (time / SECOND / (self.period)(time), (self.period)(time));
        let list = &mut self.moments.list;
        if list.last().is_some_and(|last| last.mark.is_none() && number(last.time) == number(entry.time)) {
            list.pop();
        }
        list.push(MomentFacts { lsn: entry.lsn, time: entry.time, mark: None });
    }

    fn marks_before(&mut self, lsn: Lsn) {
        while let Some((mark, name)) = self.marks.pop_if(|(mark, _)| *mark < lsn) {
            if self.gaps.is_closed() {
                self.moments.list.push(MomentFacts { lsn: mark, time: self.time, mark: Some(name) });
            }
        }
    }
}

/// How facts are read.
#[derive(Debug)]
pub(super) struct FactsRequest<'a> {
    pub(super) rules: &'a KeepMoments,
    /// Lengths of histories that the memory allows.
    pub(super) limits: CheckpointLimits,
    pub(super) trust: Trust,
    /// Present time in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub(super) now: u64,
}

/// Reads the facts of all checkpoints of a group. The indexes of those of which every write is kept are not read.
pub(super) fn read_facts(
    store: &Store,
    streams: &mut Streams,
    checkpoints: &Checkpoints,
    request: &FactsRequest<'_>,
    remembered: &mut Remembered,
) -> Result<Vec<CheckpointFacts>> {
    remembered.retain(&checkpoints.list.iter().map(|checkpoint| checkpoint.snapshot).collect());
    let doubtful = doubts(store, checkpoints, request)?;
    let counted = checkpoints.list.iter().filter(|checkpoint| !doubtful.contains_key(&checkpoint.snapshot));
    let reference =
        counted.map(Checkpoint::nanoseconds).filter(|time| *time <= request.now).max().unwrap_or(request.now);
    let mut all = Vec::with_capacity(checkpoints.list.len());
    let mut before = None;
    for checkpoint in &checkpoints.list {
        let rules = request.rules;
        let age = |time: u64| reference.saturating_sub(time);
        let mut facts = CheckpointFacts {
            snapshot: checkpoint.snapshot,
            first: checkpoint.first(),
            last: checkpoint.last(),
            time: checkpoint.nanoseconds(),
            is_end_restorable: !checkpoint.is_empty,
            history: if checkpoint.has_history() { HistoryFacts::Whole } else { HistoryFacts::None },
            moments: Vec::new(),
            held: held(checkpoint, rules, &doubtful),
        };
        if checkpoint.has_history() && facts.held.is_none() && !rules.keeps_writes(age(facts.time)) {
            let moments = if let Some(moments) = remembered.moments.get(&facts.snapshot) {
                moments.clone()
            } else {
                let before = before.unwrap_or(facts.time);
                let period = |time: u64| if checkpoint.is_thinned { 1 } else { rules.candidate_period(age(time)) };
                let moments = Moments::read(streams, checkpoint, before, &period)?;
                remembered.insert(facts.snapshot, &moments);
                moments
            };
            if !moments.fits(&request.limits) {
                facts.held = Some(Held::TooLong);
            }
            if moments.kind == IndexKind::Thinned {
                facts.history = HistoryFacts::Thinned;
            }
            facts.is_end_restorable &= moments.is_end_closed;
            facts.moments = moments.list;
        }
        before = Some(facts.time);
        all.push(facts);
    }
    Ok(all)
}

fn held(checkpoint: &Checkpoint, rules: &KeepMoments, doubtful: &BTreeMap<SessionId, Doubt>) -> Option<Held> {
    let tag = checkpoint.tags.iter().find(|tag| rules.tags.contains(tag)).cloned().map(Held::Tag);
    tag.or_else(|| doubtful.get(&checkpoint.snapshot).copied().map(Held::Doubtful))
}

/// Returns the checkpoints whose times cannot be right, as `forget` finds them.
fn doubts(store: &Store, checkpoints: &Checkpoints, request: &FactsRequest<'_>) -> Result<BTreeMap<SessionId, Doubt>> {
    let commits = store.read_commits()?;
    let all = candidates(store, &commits)?;
    let selected: BTreeSet<SessionId> = checkpoints.list.iter().map(|checkpoint| checkpoint.snapshot).collect();
    let rules = KeepRules::new([KeepRule::Count(Period::Last, Limit::Unlimited)]);
    let seconds = i64::try_from(request.now / SECOND).unwrap_or(i64::MAX);
    let policy = Policy {
        rules: &rules,
        group_by: GroupBy { host: false, paths: false, tags: false },
        trust: request.trust,
        now: Timestamp { seconds, nanoseconds: 0 },
        zone: &|_| 0,
    };
    let plan = policy.plan(&all, &|candidate| selected.contains(&candidate.id));
    let fates = plan.groups.iter().flat_map(|group| &group.snapshots);
    let doubtful = fates.filter_map(|(candidate, fate)| match fate {
        forget::Fate::Doubtful(doubt) => Some((candidate.id, *doubt)),
        forget::Fate::Kept(_) | forget::Fate::Forgotten => None,
    });
    Ok(doubtful.collect())
}
