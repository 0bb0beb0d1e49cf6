use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::forget::calendar::seconds_of;
use crate::forget::*;
use crate::snapshot::OwnerNames;
use crate::snapshot::{Snapshot, Summary};
use crate::types::{Fingerprint, SessionId, Timestamp};

/// What restic keeps by several policies.
const RESTIC: &str = include_str!("restic_cases.txt");

/// The time of the runs.
fn now() -> Timestamp {
    time("2026-11-23T20:00:00")
}

fn time(text: &str) -> Timestamp {
    let numbers: Vec<i64> = text.split(['-', 'T', ':']).map(|number| number.parse().unwrap()).collect();
    let [year, month, day, hour, minute, second] = numbers[..] else { panic!("{text}") };
    at(seconds_of(year, month, day) + 3600 * hour + 60 * minute + second)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

/// The offset of Berlin: summer begins and ends at 01:00 UTC on the last Sundays of March and October.
fn berlin(seconds: i64) -> i32 {
    let years = (1969..2120).find(|year| seconds < seconds_of(year + 1, 1, 1));
    let last_sunday = |year, month| {
        let last = seconds_of(year, month, 31);
        let sunday = (last / 86_400 + 4).rem_euclid(7);
        last - sunday * 86_400 + 3600
    };
    let is_summer = |year| 1981 <= year && (last_sunday(year, 3)..last_sunday(year, 10)).contains(&seconds);
    if years.is_some_and(is_summer) { 7200 } else { 3600 }
}

fn rules(text: &str) -> KeepRules {
    let parsed = text.split_whitespace().map(|rule| {
        let (name, value) = rule.split_once('=').unwrap();
        let (is_within, name) = match name.strip_prefix("within") {
            Some(name) => (true, name.strip_prefix('-').unwrap_or("last")),
            None => (false, name),
        };
        let periods = [Period::Last, Period::Hourly, Period::Daily, Period::Weekly, Period::Monthly, Period::Yearly];
        match periods.into_iter().find(|period| period.name() == name) {
            None => KeepRule::Tags(value.split(',').map(str::to_owned).collect()),
            Some(period) if is_within => KeepRule::Within(period, Span::parse(value).unwrap()),
            Some(period) => KeepRule::Count(period, Limit::parse(value).unwrap()),
        }
    });
    // The order of the command: tags, within, numbers, within for each period.
    let mut parsed: Vec<KeepRule> = parsed.collect();
    parsed.sort_by_key(|rule| match rule {
        KeepRule::Tags(_) => (0, Period::Last),
        KeepRule::Within(Period::Last, _) => (1, Period::Last),
        KeepRule::Count(period, _) => (2, *period),
        KeepRule::Within(period, _) => (3, *period),
    });
    KeepRules::new(parsed)
}

fn snapshot(time: Timestamp, tags: &[&str]) -> Snapshot {
    Snapshot {
        time,
        file_clock: time,
        tree: Fingerprint([0; 32]),
        hostname: "host".into(),
        username: String::new(),
        uid: 0,
        gid: 0,
        paths: vec![b"/home".to_vec()],
        positions: Vec::new(),
        is_incomplete: false,
        owners: OwnerNames::default(),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        excludes: Vec::new(),
        parent: None,
        original: None,
        journal: None,
        rewritten: None,
        program: String::new(),
        index: None,
        summary: Summary::default(),
    }
}

fn id(number: usize) -> SessionId {
    SessionId(u128::try_from(number).unwrap().to_be_bytes())
}

fn candidate(number: usize, snapshot: &Snapshot, received: Option<i64>) -> Candidate<'_> {
    let received = received.map(|seconds| Received { begin: at(seconds), end: at(seconds) });
    Candidate { id: id(number), snapshot, received, heads: Vec::new() }
}

/// Candidates that were received when they were made, and name no heads.
fn sound(snapshots: &[Snapshot]) -> Vec<Candidate<'_>> {
    let received = |snapshot: &Snapshot| Some(snapshot.time.seconds);
    snapshots.iter().enumerate().map(|(number, snapshot)| candidate(number, snapshot, received(snapshot))).collect()
}

fn policy(rules: &KeepRules, trust: Trust) -> Policy<'_> {
    Policy { rules, group_by: GroupBy { host: false, paths: false, tags: false }, trust, now: now(), zone: &berlin }
}

/// Returns the only group, as a plan with its basis.
fn plan<'a>(rules: &KeepRules, trust: Trust, all: &'a [Candidate<'a>]) -> (Basis, GroupPlan<'a>) {
    let mut plan = policy(rules, trust).plan(all, &|_| true);
    (plan.basis, plan.groups.pop().unwrap())
}

fn forgotten(group: &GroupPlan<'_>) -> BTreeSet<SessionId> {
    let gone = group.snapshots.iter().filter(|(_, fate)| *fate == Fate::Forgotten);
    gone.map(|(candidate, _)| candidate.id).collect()
}

/// Returns what a case keeps, as the file has it.
fn reasons(fate: &Fate) -> String {
    match fate {
        Fate::Kept(reasons) => reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        Fate::Doubtful(doubt) => doubt.to_string(),
        Fate::Forgotten => String::new(),
    }
}

#[test]
fn policies_keep_what_restic_keeps_for_the_same_reasons() {
    let mut cases = 0;
    for case in RESTIC.split("\n\n").filter(|case| case.starts_with("keep: ")) {
        check(case);
        cases += 1;
    }
    assert!(12 <= cases, "{cases}");
}

/// Compares the plan of one case with restic's.
fn check(case: &str) {
    let mut lines = case.lines();
    let described = lines.next().and_then(|line| line.strip_prefix("keep: ")).unwrap();
    let rules = rules(lines.next().and_then(|line| line.strip_prefix("rules: ")).unwrap());
    assert_eq!(rules.to_string(), described);
    let expected: Vec<(&str, &str)> = lines.map(|line| line.split_once(" |").unwrap()).collect();
    let snapshots: Vec<Snapshot> = expected
        .iter()
        .map(|(head, _)| {
            let (when, tags) = head.split_once(' ').unwrap();
            snapshot(time(when), &tags.split(',').filter(|tag| *tag != "-").collect::<Vec<_>>())
        })
        .collect();
    let candidates = sound(&snapshots);
    let (_, group) = plan(&rules, Trust::Times, &candidates);
    for ((head, reason), (candidate, fate)) in expected.iter().zip(&group.snapshots) {
        assert_eq!(time(head.split_once(' ').unwrap().0), candidate.snapshot.time, "newest first");
        assert_eq!(reasons(fate), reason.trim_start(), "{head} in\n{case}");
    }
}

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// One snapshot a day, the newest an hour ago; the first in the list is the newest.
fn daily(count: usize) -> Vec<Snapshot> {
    (0..).take(count).map(|days| snapshot(at(now().seconds - HOUR - days * DAY), &[])).collect()
}

fn doubt_of(candidate: Candidate<'_>, others: &[Snapshot]) -> Option<Doubt> {
    let all: Vec<_> = sound(others).into_iter().chain([candidate]).collect();
    let (_, group) = plan(&rules("last=1"), Trust::Compare, &all);
    let (_, fate) = group.snapshots.iter().find(|(candidate, _)| candidate.id == id(99)).unwrap();
    match fate {
        Fate::Doubtful(doubt) => Some(*doubt),
        Fate::Kept(_) | Fate::Forgotten => None,
    }
}

#[test]
fn times_that_cannot_be_a_snapshots_own_are_doubtful() {
    let others = daily(3);
    let today = now().seconds;
    let of = |seconds, received: Option<i64>| doubt_of(candidate(99, &snapshot(at(seconds), &[]), received), &others);
    assert_eq!(of(today, Some(today)), None);
    assert_eq!(of(today - DAY, Some(today)), None, "clocks may differ by a day");
    assert_eq!(of(today - DAY - 1, Some(today)), Some(Doubt::NotAsReceived));
    assert_eq!(of(today - 5 * DAY, Some(today - 7 * DAY)), Some(Doubt::NotAsReceived));
    assert_eq!(of(today - 5 * DAY, None), None, "the store reports no times");
    assert_eq!(of(today + DAY, Some(today)), None);
    assert_eq!(of(today + DAY + 1, Some(today + DAY + 1)), Some(Doubt::Future));
    for seconds in [0, i64::MIN, time("2019-12-31T23:59:59").seconds] {
        assert_eq!(of(seconds, Some(seconds)), Some(Doubt::TooEarly));
    }
    assert_eq!(of(i64::MAX, Some(today)), Some(Doubt::Future));
}

#[test]
fn a_backup_that_took_days_was_received_from_its_start_to_its_end() {
    let others = daily(3);
    let long = snapshot(at(now().seconds - 9 * DAY), &[]);
    let received = Received { begin: long.time, end: now() };
    let candidate = Candidate { received: Some(received), ..candidate(99, &long, None) };
    assert_eq!(doubt_of(candidate, &others), None);
}

#[test]
fn a_snapshot_before_one_that_it_found_is_doubtful_unless_that_one_is() {
    let others = daily(3);
    let late = snapshot(at(now().seconds - 5 * DAY), &[]);
    let with_head = |seconds, received: i64| {
        let received = Received { begin: at(received), end: at(received) };
        let heads = vec![HeadTime { time: at(seconds), received: Some(received) }];
        doubt_of(Candidate { heads, ..candidate(99, &late, Some(late.time.seconds)) }, &others)
    };
    let head = now().seconds - 3 * DAY;
    assert_eq!(with_head(head, head), Some(Doubt::BeforeHead));
    assert_eq!(with_head(late.time.seconds + DAY, head), None, "clocks may differ by a day");
    let doomsday = time("2038-01-19T03:14:08").seconds;
    assert_eq!(with_head(doomsday, doomsday), None, "the clock of the head was wrong");
    assert_eq!(with_head(head, head - 3 * DAY), None, "the time of the head was wrong");
}

#[test]
fn the_order_of_the_log_decides_where_no_receipt_agrees() {
    let snapshots = daily(5);
    let mut copied: Vec<Candidate<'_>> = snapshots
        .iter()
        .enumerate()
        .map(|(number, one)| candidate(number, one, Some(now().seconds + 9 * DAY)))
        .collect();
    let (basis, group) = plan(&rules("last=2"), Trust::Compare, &copied);
    assert_eq!((basis, forgotten(&group)), (Basis::LogOnly, [id(2), id(3), id(4)].into()));
    copied[0].heads = vec![HeadTime { time: snapshots[1].time, received: None }];
    copied[3].heads = vec![HeadTime { time: snapshots[0].time, received: None }];
    let (_, group) = plan(&rules("last=2"), Trust::Compare, &copied);
    assert_eq!(forgotten(&group), [id(2), id(4)].into(), "the fourth says that it is younger than the first");
    let (basis, group) = plan(&rules("last=2"), Trust::Times, &copied);
    assert_eq!((basis, forgotten(&group)), (Basis::Trusted, [id(2), id(3), id(4)].into()));
}

#[test]
fn a_policy_that_keeps_none_of_the_counted_snapshots_empties_the_group() {
    let mut snapshots = daily(4);
    let emptied =
        |rule: &str, snapshots: &[Snapshot]| plan(&rules(rule), Trust::Compare, &sound(snapshots)).1.is_emptied;
    assert!(emptied("tag=a", &snapshots));
    snapshots[3].tags = vec!["a".into()];
    assert!(!emptied("tag=a", &snapshots));
    let doubtful = snapshot(at(0), &["b"]);
    let all: Vec<_> = sound(&snapshots).into_iter().chain([candidate(9, &doubtful, Some(0))]).collect();
    assert!(plan(&rules("tag=b"), Trust::Compare, &all).1.is_emptied, "a doubtful snapshot counts for nothing");
}

#[test]
fn much_of_a_group_or_all_of_its_last_week_is_asked_about() {
    let cautions =
        |rule: &str, snapshots: &[Snapshot]| plan(&rules(rule), Trust::Compare, &sound(snapshots)).1.cautions;
    assert_eq!(cautions("last=7", &daily(10)), []);
    assert_eq!(cautions("last=6", &daily(10)), [Caution::LargeShare { forgotten: 4, of: 10 }]);
    assert_eq!(cautions("last=1", &daily(9)), []);
    let mut tagged = daily(9);
    tagged[7].tags = vec!["a".into()];
    assert_eq!(cautions("tag=a", &tagged), [Caution::AllRecent { forgotten: 7 }]);
    tagged[6].tags = vec!["a".into()];
    assert_eq!(cautions("tag=a", &tagged), []);
}

#[test]
fn snapshots_that_lie_years_later_push_out_nobody_unasked() {
    let mut snapshots = daily(5);
    snapshots.push(snapshot(time("2038-01-19T03:14:08"), &[]));
    let candidates = sound(&snapshots);
    let in_2038 = Timestamp { seconds: time("2038-01-20T00:00:00").seconds, nanoseconds: 0 };
    let rules = rules("within=30d");
    let policy = Policy { now: in_2038, ..policy(&rules, Trust::Compare) };
    let plan = policy.plan(&candidates, &|_| true);
    assert_eq!(plan.groups[0].cautions, [Caution::Gap { forgotten: 5 }]);
    let today = Policy { now: now(), ..policy };
    let plan = today.plan(&candidates, &|_| true);
    assert_eq!((plan.forgotten().count(), plan.groups[0].cautions.len()), (0, 0));
}

#[test]
fn snapshots_are_grouped_by_what_was_asked_whatever_its_order() {
    let mut snapshots = daily(4);
    snapshots[1].hostname = "other".into();
    snapshots[2].tags = vec!["b".into(), "a".into()];
    snapshots[3].tags = vec!["a".into(), "b".into()];
    let candidates = sound(&snapshots);
    let rules = rules("last=1");
    let sizes = |host, tags| -> Vec<usize> {
        let policy = Policy { group_by: GroupBy { host, paths: true, tags }, ..policy(&rules, Trust::Compare) };
        policy.plan(&candidates, &|_| true).groups.iter().map(|group| group.snapshots.len()).collect()
    };
    assert_eq!((sizes(true, false), sizes(false, true), sizes(false, false)), (vec![3, 1], vec![2, 2], vec![4]));
    let selected = policy(&rules, Trust::Compare).plan(&candidates, &|one| one.snapshot.hostname == "host");
    assert_eq!(selected.groups[0].snapshots.len(), 3);
}

fn any_rules() -> impl Strategy<Value = String> {
    let rules = [
        "last=3",
        "hourly=5",
        "daily=4",
        "weekly=2",
        "monthly=3",
        "yearly=1",
        "daily=unlimited",
        "within=10d",
        "within-daily=40d",
        "within-weekly=3m",
        "within-yearly=2y",
        "tag=a",
    ];
    proptest::sample::subsequence(rules.to_vec(), 1..4).prop_map(|rules| rules.join(" "))
}

/// Snapshots of the last three years at different times.
fn any_snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    let ages = prop_oneof![0..3 * DAY, 0..90 * DAY, 0..1000 * DAY];
    let tags = proptest::sample::select(vec![vec![], vec!["a"]]);
    proptest::collection::btree_map(ages, tags, 1..30)
        .prop_map(|map| map.into_iter().map(|(age, tags)| snapshot(at(now().seconds - HOUR - age), &tags)).collect())
}

proptest! {
    #[test]
    fn a_doubtful_snapshot_changes_the_fate_of_no_other(
        snapshots in any_snapshots(), text in any_rules(), copied: bool,
        strange in prop_oneof![Just(0), Just(i64::MAX), any::<i64>(), now().seconds - 900 * DAY..now().seconds],
        received in prop_oneof![Just(0), Just(i64::MAX), now().seconds - 900 * DAY..now().seconds],
    ) {
        let rules = rules(&text);
        let mut all = sound(&snapshots);
        if copied {
            for one in &mut all {
                one.received = Some(Received { begin: at(i64::MAX), end: at(i64::MAX) });
            }
        }
        let (before_basis, before) = plan(&rules, Trust::Compare, &all);
        let strange = snapshot(at(strange), &["a"]);
        let with: Vec<_> = all.iter().cloned().chain([candidate(99, &strange, Some(received))]).collect();
        let (basis, mut after) = plan(&rules, Trust::Compare, &with);
        let place = after.snapshots.iter().position(|(one, _)| one.id == id(99)).unwrap();
        let (_, fate) = after.snapshots.remove(place);
        if matches!(fate, Fate::Doubtful(_)) {
            let fates = |group: &GroupPlan<'_>| -> Vec<_> {
                group.snapshots.iter().map(|(one, fate)| (one.id, fate.clone())).collect()
            };
            prop_assert_eq!(fates(&before), fates(&after));
            prop_assert_eq!((before_basis, before.cautions, before.is_emptied), (basis, after.cautions, after.is_emptied));
        }
    }

    #[test]
    fn rules_add_up(snapshots in any_snapshots(), one in any_rules(), other in any_rules()) {
        let all = sound(&snapshots);
        let gone = |text: &str| forgotten(&plan(&rules(text), Trust::Times, &all).1);
        let both = gone(&format!("{one} {other}"));
        prop_assert_eq!(both, &gone(&one) & &gone(&other));
    }

    #[test]
    fn a_second_run_forgets_nothing(snapshots in any_snapshots(), text in any_rules()) {
        let rules = rules(&text);
        let all = sound(&snapshots);
        let (_, first) = plan(&rules, Trust::Compare, &all);
        let gone = forgotten(&first);
        let rest: Vec<_> = all.iter().filter(|one| !gone.contains(&one.id)).cloned().collect();
        prop_assume!(!rest.is_empty());
        prop_assert_eq!(forgotten(&plan(&rules, Trust::Compare, &rest).1), BTreeSet::new());
    }

    #[test]
    fn a_number_is_never_exceeded_and_the_newest_snapshot_stays(snapshots in any_snapshots(), text in any_rules()) {
        let all = sound(&snapshots);
        let (_, group) = plan(&rules(&text), Trust::Times, &all);
        let kept = |rule: &KeepRule| {
            let has = |fate: &Fate| matches!(fate, Fate::Kept(reasons) if reasons.iter().any(|reason| reason.rule == *rule));
            group.snapshots.iter().filter(|(_, fate)| has(fate)).count()
        };
        for (period, number) in [(Period::Last, 3), (Period::Hourly, 5), (Period::Daily, 4), (Period::Weekly, 2)] {
            prop_assert!(kept(&KeepRule::Count(period, Limit::Newest(number))) <= number as usize);
        }
        let is_newest_forgotten = group.snapshots[0].1 == Fate::Forgotten;
        prop_assert!(!is_newest_forgotten || text == "tag=a");
    }

    #[test]
    fn an_older_snapshot_changes_nothing_but_the_fate_of_the_oldest(snapshots in any_snapshots(), text in any_rules()) {
        let rules = rules(&text);
        let all = sound(&snapshots);
        let oldest = all.last().unwrap().id;
        let older = snapshot(at(now().seconds - 1100 * DAY), &[]);
        let with: Vec<_> = all.iter().cloned().chain([candidate(99, &older, Some(older.time.seconds))]).collect();
        let fates = |all: &[Candidate<'_>]| -> Vec<_> {
            let (_, group) = plan(&rules, Trust::Compare, all);
            let others = group.snapshots.into_iter().filter(|(one, _)| one.id != oldest && one.id != id(99));
            others.map(|(one, fate)| (one.id, fate)).collect()
        };
        prop_assert_eq!(fates(&all), fates(&with));
    }

    #[test]
    fn no_sound_snapshot_goes_unasked_because_of_a_wrong_clock(
        snapshots in any_snapshots(), text in any_rules(),
        wrong in proptest::collection::vec(prop_oneof![-9 * DAY..9 * DAY, 2_145_916_800_i64..4_200_000_000], 1..5),
        is_local: bool, is_run_late: bool,
    ) {
        let rules = rules(&text);
        let all = sound(&snapshots);
        let run_at = if is_run_late { at(4_300_000_000) } else { now() };
        let wrong: Vec<Snapshot> = wrong.into_iter().map(|seconds| snapshot(at(seconds), &[])).collect();
        let strangers = wrong.iter().zip(100..).map(|(one, number)| {
            candidate(number, one, Some(if is_local { one.time.seconds } else { now().seconds }))
        });
        let with: Vec<_> = all.iter().cloned().chain(strangers).collect();
        let policy = Policy { now: run_at, ..policy(&rules, Trust::Compare) };
        let plan_with = policy.plan(&with, &|_| true);
        let alone = policy.plan(&all, &|_| true);
        let alone: BTreeSet<_> = alone.forgotten().map(|one| one.id).collect();
        let is_sound = |gone: &SessionId| all.iter().any(|one| one.id == *gone);
        let gone: BTreeSet<_> = plan_with.forgotten().map(|one| one.id).filter(is_sound).collect();
        prop_assert!(gone.is_subset(&alone) || !plan_with.groups[0].cautions.is_empty());
    }
}
