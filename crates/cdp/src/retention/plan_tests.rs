use std::collections::BTreeSet;
use std::time::Duration;

use onefold_engine::types::SessionId;
use proptest::prelude::*;

use crate::journal::Lsn;
use crate::retention::*;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_767_225_600 * SECOND;
const HOUR: u64 = 3600;

fn moment(lsn: u64, seconds: u64, mark: Option<&str>) -> MomentFacts {
    MomentFacts { lsn: Lsn(lsn), time: START + seconds * SECOND, mark: mark.map(str::to_owned) }
}

/// Facts of checkpoints of which each has these moments, as seconds since the start and marks. The first has images alone.
fn facts(checkpoints: &[Vec<(u64, Option<&str>)>]) -> Vec<CheckpointFacts> {
    let initial = CheckpointFacts {
        snapshot: SessionId([0; 16]),
        first: Lsn(1),
        last: Lsn(0),
        time: START,
        is_end_restorable: true,
        history: HistoryFacts::None,
        moments: Vec::new(),
        held: None,
    };
    let mut all = vec![initial];
    for (number, moments) in (1..).zip(checkpoints) {
        let (first, before) = all.last().map_or((1, START), |before| (before.last.0 + 1, before.time));
        let moments: Vec<MomentFacts> =
            (first..).zip(moments).map(|(lsn, (seconds, mark))| moment(lsn, *seconds, *mark)).collect();
        let time = moments.last().map_or(before, |last| last.time) + SECOND;
        // The last record is no moment that a rule looks for.
        let last = Lsn(first + moments.len() as u64);
        let snapshot = SessionId([number; 16]);
        let (history, first) = (HistoryFacts::Whole, Lsn(first));
        all.push(CheckpointFacts {
            snapshot,
            first,
            last,
            time,
            is_end_restorable: true,
            history,
            moments,
            held: None,
        });
    }
    all
}

fn keep(hours: [u64; 4]) -> KeepMoments {
    let [writes, minutes, hours, days] = hours.map(|hours| Duration::from_secs(hours * HOUR));
    KeepMoments { writes, minutes, hours, days, ..KeepMoments::default() }
}

/// Returns what is left of checkpoints after a plan.
fn carried_out(facts: &[CheckpointFacts], plan: &Plan) -> Vec<CheckpointFacts> {
    let left = facts.iter().zip(&plan.checkpoints).filter_map(|(facts, planned)| match planned.fate {
        Fate::Forgotten => None,
        Fate::Kept(_) => Some(facts.clone()),
        Fate::Thinned => {
            let moments = planned.inside.clone();
            Some(CheckpointFacts { history: HistoryFacts::Thinned, moments, ..facts.clone() })
        }
    });
    left.collect()
}

/// Returns the flushes and marks that can be reached.
fn reachable(facts: &[CheckpointFacts]) -> Vec<MomentFacts> {
    let mut before = None;
    let mut reachable = Vec::new();
    for facts in facts {
        let is_continued = before.is_some_and(|before: Lsn| facts.first.0 <= before.0 + 1);
        reachable.extend(facts.moments.iter().filter(|_| is_continued).cloned());
        before = Some(facts.last);
    }
    reachable
}

#[test]
fn each_rule_keeps_one_flush_of_its_periods_and_what_leads_there() {
    let hour = |hours: u64, seconds: u64| (hours * HOUR + seconds, None);
    let checkpoints = facts(&[
        vec![hour(0, 10), hour(0, 20), hour(0, 70)],
        vec![hour(0, 1800), hour(1, 0), hour(1, 30)],
        vec![hour(2, 0), hour(2, 1), (2 * HOUR + 2, Some("upgrade"))],
        vec![hour(30, 0)],
        vec![hour(31, 0)],
    ]);
    let now = START + 31 * HOUR * SECOND + 10 * SECOND;
    let inside = |rules: &KeepMoments| -> Vec<Vec<u64>> {
        let plan = plan(&checkpoints, rules, now, &|_| 0);
        plan.checkpoints.iter().map(|planned| planned.inside.iter().map(|moment| moment.lsn.0).collect()).collect()
    };
    let fates = |rules: &KeepMoments| -> Vec<Fate> {
        plan(&checkpoints, rules, now, &|_| 0).checkpoints.into_iter().map(|planned| planned.fate).collect()
    };
    // Records: 1 to 3 and an end, 5 to 7 and 8, 9 to 11 and 12, 13 and 14, 15 and 16.
    assert_eq!(inside(&keep([0, 40, 0, 0])), [vec![], vec![2, 3], vec![5, 7], vec![10, 11], vec![13], vec![]]);
    assert_eq!(inside(&keep([0, 0, 40, 0])), [vec![], vec![], vec![5, 7], vec![10, 11], vec![13], vec![]]);
    assert_eq!(inside(&keep([0, 0, 0, 40])), [vec![], vec![], vec![], vec![10, 11], vec![13], vec![]]);
    let daily = KeepMoments { marks: Some(Duration::ZERO), ..keep([0, 0, 0, 40]) };
    assert_eq!(inside(&daily), [vec![], vec![], vec![], vec![10], vec![13], vec![]]);
    let enough = Fate::Kept(Why::Enough);
    let (newest, thinned) = (Fate::Kept(Why::Newest), Fate::Thinned);
    // The images before a kept moment stay; the initial ones lead nowhere.
    let fate = |fates: [&Fate; 6]| fates.map(Clone::clone).to_vec();
    let forgotten = Fate::Forgotten;
    assert_eq!(fates(&daily), fate([&forgotten, &forgotten, &thinned, &thinned, &thinned, &newest]));
    let pinned = KeepMoments { pins: vec!["upgrade".into()], ..keep([0, 0, 1, 0]) };
    assert_eq!(inside(&pinned)[3], [11]);
    assert_eq!(fates(&keep([0, 40, 0, 0]))[0], enough);
    assert_eq!(
        fates(&keep([2, 0, 0, 0])),
        fate([&forgotten, &forgotten, &forgotten, &thinned, &Fate::Kept(Why::Writes), &newest])
    );
}

#[test]
fn what_is_held_stays_and_a_doubtful_time_counts_for_nothing() {
    let mut checkpoints = facts(&[vec![(10, None)], vec![(20, None)], vec![(30, None)], vec![(40, None)]]);
    checkpoints[2].held = Some(Held::Tag("audit".into()));
    checkpoints[3].time = START + 9_000 * HOUR * SECOND;
    checkpoints[3].held = Some(Held::Doubtful(onefold_engine::forget::Doubt::NotAsReceived));
    let now = START + 9_500 * HOUR * SECOND;
    let made = plan(&checkpoints, &keep([0, 1, 0, 0]), now, &|_| 0);
    let fates: Vec<&Fate> = made.checkpoints.iter().map(|planned| &planned.fate).collect();
    assert_eq!(*fates[2], Fate::Kept(Why::Held(Held::Tag("audit".into()))));
    assert!(matches!(fates[3], Fate::Kept(Why::Held(Held::Doubtful(_)))));
    // Ages count from the newest checkpoint whose time is right, and its base stays.
    assert_eq!(*fates[1], Fate::Thinned);
    assert_eq!(made.checkpoints[1].inside.len(), 1);
}

#[test]
fn a_period_without_a_flush_keeps_the_last_end_of_a_checkpoint() {
    let checkpoints = facts(&[vec![], vec![], vec![]]);
    let made = plan(&checkpoints, &keep([0, 0, 0, 5]), START + 60 * SECOND, &|_| 0);
    let fates: Vec<Fate> = made.checkpoints.into_iter().map(|planned| planned.fate).collect();
    assert_eq!(fates[..3], [Fate::Forgotten, Fate::Forgotten, Fate::Thinned]);
}

#[test]
fn an_end_inside_a_gap_does_not_take_the_place_of_one_that_can_be_restored() {
    let fates = |checkpoints: &[CheckpointFacts]| -> Vec<Fate> {
        let made = plan(checkpoints, &keep([0, 0, 0, 5]), START + 60 * SECOND, &|_| 0);
        made.checkpoints.into_iter().map(|planned| planned.fate).collect()
    };
    let (newest, thinned) = (Fate::Kept(Why::Newest), Fate::Thinned);
    let mut checkpoints = facts(&[vec![], vec![], vec![], vec![(50, Some("upgrade"))], vec![]]);
    (checkpoints[2].is_end_restorable, checkpoints[3].is_end_restorable) = (false, false);
    checkpoints[4].is_end_restorable = false;
    // The third stays as the base of the mark.
    let expected = [Fate::Forgotten, thinned.clone(), Fate::Forgotten, thinned.clone(), thinned, newest.clone()];
    assert_eq!(fates(&checkpoints), expected);
    // Without one, the initial images stay; those of which nothing is known do not.
    let mut checkpoints = facts(&[vec![], vec![]]);
    checkpoints[1].is_end_restorable = false;
    checkpoints[2].first = Lsn(9);
    assert_eq!(fates(&checkpoints), [Fate::Kept(Why::Enough), Fate::Forgotten, newest.clone()]);
    checkpoints[0].is_end_restorable = false;
    assert_eq!(fates(&checkpoints), [Fate::Forgotten, Fate::Forgotten, newest]);
}

fn history() -> impl Strategy<Value = Vec<CheckpointFacts>> {
    let pause = prop_oneof![1..50_u64, 60..4_000_u64, 3_000..90_000_u64];
    let of_checkpoint = (prop::collection::vec((pause, 0..8_u8), 0..12), any::<bool>());
    prop::collection::vec(of_checkpoint, 1..12).prop_map(|checkpoints| {
        let (checkpoints, are_restorable): (Vec<_>, Vec<bool>) = checkpoints.into_iter().unzip();
        let mut seconds = 0;
        let named = ["a", "b"];
        let moments: Vec<Vec<(u64, Option<&str>)>> = checkpoints
            .into_iter()
            .map(|pauses| {
                let moments = pauses.into_iter().map(|(pause, kind)| {
                    seconds += pause;
                    (seconds, named.get(usize::from(kind)).copied())
                });
                moments.collect()
            })
            .collect();
        let mut facts = facts(&moments);
        for (facts, is_restorable) in facts.iter_mut().skip(1).zip(are_restorable) {
            facts.is_end_restorable = is_restorable;
        }
        facts
    })
}

fn rules() -> impl Strategy<Value = KeepMoments> {
    let hours = [0..5_u64, 0..10, 0..50, 0..200];
    (hours, prop::option::of(0..20_u64), any::<bool>()).prop_map(|(hours, marks, is_pinned)| KeepMoments {
        marks: marks.map(|hours| Duration::from_secs(hours * HOUR)),
        pins: if is_pinned { vec!["a".into()] } else { Vec::new() },
        ..keep(hours)
    })
}

proptest! {
    #[test]
    fn a_plan_keeps_what_its_rules_name_and_repeats_itself(facts in history(), rules in rules(), zone in -14..15_i32) {
        let zone = move |_| zone * 3600;
        let newest = facts.last().unwrap().clone();
        let now = newest.time + SECOND;
        let made = plan(&facts, &rules, now, &zone);
        let left = carried_out(&facts, &made);
        prop_assert_eq!(left.last(), Some(&newest));
        let (before, after) = (reachable(&facts), reachable(&left));
        let is_left = |lsn: Lsn| after.iter().any(|moment| moment.lsn == lsn);
        // Every moment that is left was there, and everything that is planned is left.
        for moment in &after {
            prop_assert!(before.contains(moment));
        }
        for planned in &made.checkpoints {
            for moment in &planned.inside {
                prop_assert!(is_left(moment.lsn), "{:?}", moment);
            }
        }
        let age = |time: u64| Duration::from_nanos(newest.time - time);
        let tiers = [(60, rules.minutes), (3600, rules.hours), (86_400, rules.days)];
        let number = |time: u64, period: i64| {
            (i64::try_from(time / SECOND).unwrap() + i64::from(zone(0))).div_euclid(period)
        };
        let restorable = |facts: &[CheckpointFacts]| -> Vec<(Lsn, u64)> {
            facts.iter().filter(|facts| facts.is_end_restorable).map(|facts| (facts.last, facts.time)).collect()
        };
        let ends = restorable(&left);
        for (last, time) in restorable(&facts) {
            for (period, kept) in tiers {
                // A flush of its period is left, or an end that can be restored and is not earlier.
                let is_same = |other: u64| number(other, period) == number(time, period);
                let has_flush = after.iter().any(|moment| moment.mark.is_none() && is_same(moment.time));
                let has_end = ends.iter().any(|(end, time)| last <= *end && is_same(*time));
                prop_assert!(kept < age(time) || kept.is_zero() || has_flush || has_end, "{:?}", last);
            }
        }
        for moment in &before {
            let age = age(moment.time);
            if age < rules.writes {
                prop_assert!(is_left(moment.lsn), "{:?}", moment);
            }
            if let Some(name) = &moment.mark {
                let is_pinned = rules.pins.contains(name);
                prop_assert!(is_left(moment.lsn) || !is_pinned && rules.marks.is_none_or(|marks| marks < age), "{:?}", moment);
                continue;
            }
            for (period, kept) in tiers {
                // A flush of its period is left that is not earlier.
                let is_as_good = |other: &MomentFacts| {
                    let is_same = number(other.time, period) == number(moment.time, period);
                    other.mark.is_none() && moment.lsn <= other.lsn && is_same
                };
                prop_assert!(kept < age || kept.is_zero() || after.iter().any(is_as_good), "{:?}", moment);
            }
        }
        let again = plan(&left, &rules, now, &zone);
        prop_assert!(again.is_empty(), "{:?}", again);
    }

    #[test]
    fn thinning_every_hour_keeps_what_thinning_once_keeps(facts in history(), rules in rules()) {
        let zone = |_| 0;
        let mut left: Vec<CheckpointFacts> = Vec::new();
        for checkpoint in &facts {
            left.push(checkpoint.clone());
            left = carried_out(&left, &plan(&left, &rules, checkpoint.time + SECOND, &zone));
        }
        let now = facts.last().unwrap().time + SECOND;
        let once: BTreeSet<Lsn> = reachable(&carried_out(&facts, &plan(&facts, &rules, now, &zone))).iter().map(|moment| moment.lsn).collect();
        let often: BTreeSet<Lsn> = reachable(&left).iter().map(|moment| moment.lsn).collect();
        // Of a period that is not over, an earlier flush may have been kept besides.
        prop_assert!(once.is_subset(&often), "{:?} {:?}", once, often);
    }
}
