//! A plan of what is kept of each checkpoint, as a value.

use std::collections::{BTreeMap, BTreeSet};

use onefold_engine::forget::{Doubt, Zone};
use onefold_engine::types::SessionId;

use crate::journal::Lsn;
use crate::retention::rules::{KeepMoments, Tier, seconds};

/// History that a checkpoint has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryFacts {
    /// None: images alone.
    None,
    /// All records.
    Whole,
    /// Records that lead to the moments that were kept.
    Thinned,
}

/// A moment that may be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MomentFacts {
    /// Its record.
    pub lsn: Lsn,
    /// Its time in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// The name of a mark; `None`: a flush.
    pub mark: Option<String>,
}

/// Why a checkpoint stays as it is, whatever the rules are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// It has this tag.
    Tag(String),
    /// Its time cannot be right. It counts for nothing.
    Doubtful(Doubt),
    /// Its history is longer than the memory allows.
    TooLong,
}

/// A checkpoint, as a plan sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointFacts {
    /// Its snapshot.
    pub snapshot: SessionId,
    /// Its first record.
    pub first: Lsn,
    /// Its last record.
    pub last: Lsn,
    /// The time of the last record in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// True if the state after the last record can be restored: it is inside no gap, and the images are no holes of unknown volumes. It
    /// matters only if the moments decide.
    pub is_end_restorable: bool,
    /// Its history.
    pub history: HistoryFacts,
    /// Moments of its records that may be kept, ascending: marks, and the last flush of each period, none inside a gap. May be empty if all
    /// of its writes are kept.
    pub moments: Vec<MomentFacts>,
    /// Why it stays as it is, if it does.
    pub held: Option<Held>,
}

/// Why a checkpoint stays as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is the newest.
    Newest,
    /// Every write of its age is kept.
    Writes,
    /// It is held.
    Held(Held),
    /// It has no more than what is kept.
    Enough,
}

/// Fate of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It stays as it is.
    Kept(Why),
    /// Its images stay, and its history is replaced by one that leads to [`Planned::inside`].
    Thinned,
    /// It is forgotten.
    Forgotten,
}

/// A checkpoint with its fate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Its snapshot.
    pub snapshot: SessionId,
    /// Its first record.
    pub first: Lsn,
    /// Its last record.
    pub last: Lsn,
    /// The time of the last record in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// Its fate.
    pub fate: Fate,
    /// Moments before its last one to which its history leads afterwards, ascending, unless it stays for another reason.
    pub inside: Vec<MomentFacts>,
}

/// The fates of all checkpoints of a group, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The checkpoints.
    pub checkpoints: Vec<Planned>,
}

impl Plan {
    /// Returns true if nothing changes.
    pub fn is_empty(&self) -> bool {
        self.checkpoints.iter().all(|planned| matches!(planned.fate, Fate::Kept(_)))
    }
}

/// Decides what is kept of the checkpoints of a group, which ascend, at a time in nanoseconds since 1970-01-01 00:00:00 UTC.
///
/// The newest checkpoint stays as it is. A checkpoint stays if its last moment is kept, if one inside it is, or if the next
/// one needs it: a moment inside a checkpoint is reached from the images of the one before. Periods of which no flush is known keep the last
/// end of a checkpoint that can be restored instead.
pub fn plan(facts: &[CheckpointFacts], rules: &KeepMoments, now: u64, zone: &Zone<'_>) -> Plan {
    let view = View { facts, rules, reference: reference(facts, now), zone };
    let whole: Vec<Option<Why>> = (0..facts.len()).map(|at| view.whole(at)).collect();
    let mut kept = view.kept_marks(&whole);
    for tier in rules.tiers() {
        kept.extend(view.kept_by(tier, &whole));
    }
    let inside: Vec<Vec<MomentFacts>> = (0..facts.len()).map(|at| view.inside(at, &kept)).collect();
    let needs_base = |at: usize| {
        let has_inside = inside.get(at).is_some_and(|inside| !inside.is_empty());
        let is_whole = whole.get(at).is_some_and(Option::is_some);
        view.is_continued(at) && (has_inside || is_whole)
    };
    let checkpoints = facts.iter().zip(&whole).zip(&inside).enumerate().map(|(at, ((facts, whole), inside))| {
        let is_kept = kept.contains(&facts.last) || !inside.is_empty() || needs_base(at + 1);
        let fate = match whole {
            Some(why) => Fate::Kept(why.clone()),
            None if !is_kept => Fate::Forgotten,
            None if has_enough(facts, inside) => Fate::Kept(Why::Enough),
            None => Fate::Thinned,
        };
        let &CheckpointFacts { snapshot, first, last, time, .. } = facts;
        Planned { snapshot, first, last, time, fate, inside: inside.clone() }
    });
    Plan { checkpoints: checkpoints.collect() }
}

/// Returns the time from which ages count: that of the newest checkpoint that is not in the future. So nothing is lost while nothing new
/// comes.
fn reference(facts: &[CheckpointFacts], now: u64) -> u64 {
    let counted = facts.iter().filter(|facts| !matches!(facts.held, Some(Held::Doubtful(_))));
    counted.map(|facts| facts.time).filter(|time| *time <= now).max().unwrap_or(now)
}

/// Returns true if the history of a checkpoint leads to no more than some moments.
fn has_enough(facts: &CheckpointFacts, inside: &[MomentFacts]) -> bool {
    match facts.history {
        HistoryFacts::None => true,
        HistoryFacts::Whole => false,
        HistoryFacts::Thinned => facts.moments.iter().filter(|moment| moment.lsn < facts.last).eq(inside),
    }
}

/// Returns the positions of the checkpoints whose moments decide.
fn decided(whole: &[Option<Why>]) -> impl Iterator<Item = usize> {
    whole.iter().enumerate().filter(|(_, whole)| whole.is_none()).map(|(at, _)| at)
}

struct View<'a> {
    facts: &'a [CheckpointFacts],
    rules: &'a KeepMoments,
    reference: u64,
    zone: &'a Zone<'a>,
}

impl View<'_> {
    fn age(&self, time: u64) -> u64 {
        self.reference.saturating_sub(time)
    }

    /// Returns why a checkpoint stays as it is, if its moments do not decide.
    fn whole(&self, at: usize) -> Option<Why> {
        let facts = self.facts.get(at)?;
        if at + 1 == self.facts.len() {
            return Some(Why::Newest);
        }
        if let Some(held) = &facts.held {
            return Some(Why::Held(held.clone()));
        }
        self.rules.keeps_writes(self.age(facts.time)).then_some(Why::Writes)
    }

    /// Returns true if the checkpoint before a position ends where the one at it begins.
    fn is_continued(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|before| self.facts.get(before));
        before.zip(self.facts.get(at)).is_some_and(|(before, facts)| facts.first.0 <= before.last.0 + 1)
    }

    /// Returns the moments of a checkpoint that can be reached.
    fn reachable(&self, at: usize) -> impl Iterator<Item = &MomentFacts> {
        let is_continued = self.is_continued(at);
        let facts = self.facts.get(at);
        let moments = facts.into_iter().flat_map(|facts| facts.moments.iter().map(|moment| (facts.last, moment)));
        moments.filter(move |(last, moment)| is_continued || moment.lsn == *last).map(|(_, moment)| moment)
    }

    /// Returns the kept moments of a checkpoint that are before its last one.
    fn inside(&self, at: usize, kept: &BTreeSet<Lsn>) -> Vec<MomentFacts> {
        let Some(facts) = self.facts.get(at) else { return Vec::new() };
        let inside = self.reachable(at).filter(|moment| moment.lsn < facts.last && kept.contains(&moment.lsn));
        inside.cloned().collect()
    }

    fn kept_marks(&self, whole: &[Option<Why>]) -> BTreeSet<Lsn> {
        let moments = decided(whole).flat_map(|at| self.reachable(at));
        let kept = moments.filter(|moment| {
            moment.mark.as_ref().is_some_and(|name| self.rules.keeps_mark(name, self.age(moment.time)))
        });
        kept.map(|moment| moment.lsn).collect()
    }

    /// Returns the last flush of each period, or the last end of a checkpoint that can be restored if it has no flush.
    fn kept_by(&self, tier: Tier, whole: &[Option<Why>]) -> BTreeSet<Lsn> {
        let (mut flushes, mut ends) = (BTreeMap::new(), BTreeMap::new());
        let keep = |of: &mut BTreeMap<i64, Lsn>, time: u64, lsn: Lsn| {
            if tier.age != 0 && self.age(time) <= tier.age {
                let last = of.entry(self.period(time, tier.period)).or_default();
                *last = lsn.max(*last);
            }
        };
        for at in decided(whole) {
            for moment in self.reachable(at).filter(|moment| moment.mark.is_none()) {
                keep(&mut flushes, moment.time, moment.lsn);
            }
            if let Some(facts) = self.facts.get(at).filter(|facts| facts.is_end_restorable) {
                keep(&mut ends, facts.time, facts.last);
            }
        }
        ends.retain(|period, _| !flushes.contains_key(period));
        flushes.into_values().chain(ends.into_values()).collect()
    }

    /// Returns the number of the period of local time that a time lies in.
    fn period(&self, time: u64, period: u64) -> i64 {
        let seconds = seconds(time);
        let local = seconds.saturating_add((self.zone)(seconds).into());
        local.div_euclid(i64::try_from(period).unwrap_or(i64::MAX))
    }
}
