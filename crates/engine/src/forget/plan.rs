//! What a policy keeps and what it forgets, as a value.

use std::collections::BTreeMap;

use crate::forget::calendar::{DAY, Zone};
use crate::forget::candidate::Candidate;
use crate::forget::doubt::{Basis, Doubt, Trust, doubts};
use crate::forget::rules::{Clock, Dated, KeepRules, Reason, apply};
use crate::snapshot::Snapshot;
use crate::types::Timestamp;

/// Smallest group in which a large share is asked about: in a smaller one every third snapshot would be.
const SHARE_GROUP_MIN: usize = 10;
/// Largest share of a group that goes without a question, in percent. A regular run of a policy forgets less.
const SHARE_MAX_PERCENT: usize = 30;
/// Seconds before the newest receipt. If all snapshots of that time would go, the user is asked.
const RECENT: i64 = 7 * DAY;
/// Seconds between neighboring snapshots after which the clock may have jumped. A year and a month, so that snapshots of
/// each year do not count.
const GAP_MAX: i64 = 400 * DAY;

/// Properties that the snapshots of a group share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupBy {
    /// The host.
    pub host: bool,
    /// The set of paths.
    pub paths: bool,
    /// The set of tags.
    pub tags: bool,
}

/// Values that the snapshots of a group share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupKey {
    /// The host, if it is part of the grouping.
    pub hostname: Option<String>,
    /// The paths, sorted.
    pub paths: Option<Vec<Vec<u8>>>,
    /// The tags, sorted.
    pub tags: Option<Vec<String>>,
}

impl GroupBy {
    fn key(self, snapshot: &Snapshot) -> GroupKey {
        GroupKey {
            hostname: self.host.then(|| snapshot.hostname.clone()),
            paths: self.paths.then(|| sorted(&snapshot.paths)),
            tags: self.tags.then(|| sorted(&snapshot.tags)),
        }
    }
}

fn sorted<T: Ord + Clone>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values
}

/// What happens to a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// These rules keep it.
    Kept(Vec<Reason>),
    /// Its time is doubtful: it is kept and counts for nothing.
    Doubtful(Doubt),
    /// No rule keeps it.
    Forgotten,
}

/// Reasons to ask before a group is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caution {
    /// Much of the group would be forgotten.
    LargeShare {
        /// Snapshots that would be forgotten.
        forgotten: usize,
        /// Snapshots of the group.
        of: usize,
    },
    /// All snapshots that were received in the last seven days would be forgotten.
    AllRecent {
        /// Their number.
        forgotten: usize,
    },
    /// Snapshots would be forgotten because of others that lie more than a year after them.
    Gap {
        /// Their number.
        forgotten: usize,
    },
}

/// The decision on a group.
#[derive(Clone, Debug)]
pub struct GroupPlan<'a> {
    /// What its snapshots share.
    pub key: GroupKey,
    /// Each snapshot with its fate, newest first.
    pub snapshots: Vec<(&'a Candidate<'a>, Fate)>,
    /// Reasons to ask before it is carried out.
    pub cautions: Vec<Caution>,
    /// True if no rule keeps any of its snapshots, which is refused.
    pub is_emptied: bool,
}

/// The decision on all groups.
#[derive(Clone, Debug)]
pub struct ForgetPlan<'a> {
    /// What the times of the snapshots were compared with.
    pub basis: Basis,
    /// The groups, sorted by what their snapshots share.
    pub groups: Vec<GroupPlan<'a>>,
}

impl ForgetPlan<'_> {
    /// Returns the snapshots that go.
    pub fn forgotten(&self) -> impl Iterator<Item = &Candidate<'_>> {
        let snapshots = self.groups.iter().flat_map(|group| &group.snapshots);
        snapshots.filter(|(_, fate)| *fate == Fate::Forgotten).map(|(candidate, _)| *candidate)
    }
}

/// A policy for the snapshots of a repository.
pub struct Policy<'a> {
    /// The rules.
    pub rules: &'a KeepRules,
    /// The grouping.
    pub group_by: GroupBy,
    /// Whether doubtful times count.
    pub trust: Trust,
    /// The time of the run.
    pub now: Timestamp,
    /// Local time.
    pub zone: &'a Zone<'a>,
}

impl std::fmt::Debug for Policy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("rules", &self.rules).field("group_by", &self.group_by).finish_non_exhaustive()
    }
}

impl Policy<'_> {
    /// Decides on the selected snapshots. `all` are those of the repository: whether times of receipt mean something is
    /// judged by all of them.
    pub fn plan<'a>(&self, all: &'a [Candidate<'a>], is_selected: &dyn Fn(&Candidate<'_>) -> bool) -> ForgetPlan<'a> {
        let (basis, doubts) = doubts(all, self.trust, self.now);
        let mut groups: BTreeMap<GroupKey, Vec<(&Candidate<'_>, Option<Doubt>)>> = BTreeMap::new();
        for (candidate, doubt) in all.iter().zip(doubts).filter(|(candidate, _)| is_selected(candidate)) {
            groups.entry(self.group_by.key(candidate.snapshot)).or_default().push((candidate, doubt));
        }
        let groups = groups.into_iter().map(|(key, mut group)| {
            group.sort_by_key(|(candidate, _)| std::cmp::Reverse((candidate.snapshot.time, candidate.id)));
            self.decide(key, group)
        });
        ForgetPlan { basis, groups: groups.collect() }
    }

    fn decide<'a>(&self, key: GroupKey, group: Vec<(&'a Candidate<'a>, Option<Doubt>)>) -> GroupPlan<'a> {
        let counted: Vec<_> =
            group.iter().filter(|(_, doubt)| doubt.is_none()).map(|(candidate, _)| *candidate).collect();
        let reasons = self.apply(&counted);
        let is_emptied = !counted.is_empty() && reasons.iter().all(Vec::is_empty);
        let cautions = self.cautions(&counted, &reasons);
        let mut reasons = reasons.into_iter();
        let fates = group.into_iter().map(|(candidate, doubt)| {
            let fate = match doubt {
                Some(doubt) => Fate::Doubtful(doubt),
                None => match reasons.next() {
                    Some(kept) if !kept.is_empty() => Fate::Kept(kept),
                    Some(_) | None => Fate::Forgotten,
                },
            };
            (candidate, fate)
        });
        GroupPlan { key, snapshots: fates.collect(), cautions, is_emptied }
    }

    fn apply(&self, newest_first: &[&Candidate<'_>]) -> Vec<Vec<Reason>> {
        let dated: Vec<_> = newest_first
            .iter()
            .map(|candidate| Dated { time: candidate.snapshot.time, tags: &candidate.snapshot.tags })
            .collect();
        apply(self.rules, &dated, Clock { now: self.now, zone: self.zone })
    }

    fn cautions(&self, newest_first: &[&Candidate<'_>], reasons: &[Vec<Reason>]) -> Vec<Caution> {
        let mut cautions = Vec::new();
        let goes = || newest_first.iter().zip(reasons).map(|(candidate, reasons)| (candidate, reasons.is_empty()));
        let (of, forgotten) = (newest_first.len(), goes().filter(|(_, goes)| *goes).count());
        if SHARE_GROUP_MIN <= of && SHARE_MAX_PERCENT * of < 100 * forgotten {
            cautions.push(Caution::LargeShare { forgotten, of });
        }
        let received = |candidate: &Candidate<'_>| {
            candidate.received.map_or(candidate.snapshot.time, |received| received.end).seconds
        };
        let newest = newest_first.iter().map(|candidate| received(candidate)).max().unwrap_or(0);
        let recent = goes().filter(|(candidate, _)| newest.saturating_sub(RECENT) < received(candidate));
        let recent: Vec<bool> = recent.map(|(_, goes)| goes).collect();
        if !recent.is_empty() && recent.iter().all(|goes| *goes) {
            cautions.push(Caution::AllRecent { forgotten: recent.len() });
        }
        cautions.extend(self.gap(newest_first, reasons));
        cautions
    }

    /// Returns how many snapshots before a long gap in time would be kept if those after the gap did not exist.
    fn gap(&self, newest_first: &[&Candidate<'_>], reasons: &[Vec<Reason>]) -> Option<Caution> {
        let seconds = |candidate: &Candidate<'_>| candidate.snapshot.time.seconds;
        let gaps = newest_first.windows(2).zip(1..).filter_map(|(pair, older)| match pair {
            [newer, next] if GAP_MAX < seconds(newer).saturating_sub(seconds(next)) => Some(older),
            _ => None,
        });
        let forgotten = gaps.map(|older: usize| {
            let alone = self.apply(newest_first.get(older..).unwrap_or_default());
            let now = reasons.iter().skip(older);
            alone.iter().zip(now).filter(|(alone, now)| !alone.is_empty() && now.is_empty()).count()
        });
        forgotten.max().filter(|forgotten| 0 < *forgotten).map(|forgotten| Caution::Gap { forgotten })
    }
}
