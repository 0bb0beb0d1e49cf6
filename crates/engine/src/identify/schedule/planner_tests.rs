use super::*;
use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::plan::{POOLS, STRIDES, Shape, Stride, WINDOWS};
use crate::io::DeviceProfile;
use crate::kv::Position;
use crate::random::SplitMix64;
use crate::types::Sequence;

const DISK: DeviceProfile =
    DeviceProfile { random_reads_per_s_single: 83, random_reads_per_s_deep: 83, sequential_bytes_per_s: 160_000_000 };
const SSD: DeviceProfile = DeviceProfile {
    random_reads_per_s_single: 11_000,
    random_reads_per_s_deep: 93_000,
    sequential_bytes_per_s: 500_000_000,
};
const LIMITS: PlanLimits =
    PlanLimits { pool: 8_192, age: 1 << 16, window: 16_384, fixed_window: None, reads_ahead: true };
const LOG_END: u64 = 10_000_000;

fn situation(profile: DeviceProfile, pages_per_key: f64) -> Situation {
    let device = DeviceCosts::of_profile(profile);
    let costs = LookupCosts { device, pages: 100_000.0, pages_per_key };
    Situation {
        costs,
        limits: LIMITS,
        cache_records: 200_000,
        log_end: LOG_END,
        spent: 1.0,
        worked: 0.0,
        chunks: 4_096,
        is_immediate: false,
    }
}

/// Passes a stream of positions to a planner, 4,096 chunks at a time; returns the plan.
fn learn(situation: &Situation, positions: impl Iterator<Item = Option<u64>>) -> Plan {
    // The index spends no more than a shadow does.
    let situation = &Situation { chunks: 1 << 40, ..*situation };
    let mut planner = Planner::new(&situation.limits, None, 0, None);
    let mut trace = Trace::default();
    for (sequence, position) in (0..).zip(positions) {
        trace.pass(Sequence(sequence), position.map(Position));
        if Planner::is_due(&trace, || true) {
            planner.decide(std::mem::take(&mut trace), situation);
        }
    }
    planner.plan
}

/// Runs of chunks at random positions.
fn runs(len: u64, chunks: usize) -> impl Iterator<Item = Option<u64>> {
    let mut random = SplitMix64::new(9);
    let (mut start, mut at) = (0, len);
    let next = move || {
        if at == len {
            (start, at) = (random.below(LOG_END - len), 0);
        }
        at += 1;
        Some(Some(start + at - 1))
    };
    std::iter::from_fn(next).take(chunks)
}

/// Returns a pool of 2,048 chunks at each round.
fn pool() -> Planner {
    Planner::new(&LIMITS, Some(2_048), LOG_END, None)
}

/// Passes traces of 8,192 chunks of a stream to a pool that takes so many seconds of the device for each.
fn learn_as_pool(planner: &mut Planner, seconds: f64, positions: impl Iterator<Item = Option<u64>>) {
    let situation = Situation { spent: seconds, chunks: 8_192, ..situation(SSD, 1.0) };
    let mut trace = Trace::default();
    for (sequence, position) in (0..).zip(positions) {
        trace.pass(Sequence(sequence), position.map(Position));
        if trace.arrivals == situation.chunks {
            planner.decide(std::mem::take(&mut trace), &situation);
        }
    }
}

#[test]
fn a_pool_is_an_option_where_waiting_chunks_share_few_pages_of_the_table() {
    let starts_as_pool = |pool, stored, last| Planner::new(&LIMITS, pool, stored, last).plan().is_none();
    assert!(starts_as_pool(Some(2_048), LOG_END, None));
    assert!(!starts_as_pool(None, LOG_END, None), "a device that serves one read at a time");
    assert!(!starts_as_pool(Some(2_048), 100_000, None), "a small table");
    let last = LastPlan { plan: LIMITS.initial(), chunks: 1_000_000 };
    assert!(!starts_as_pool(Some(2_048), LOG_END, Some(last)));
}

#[test]
fn a_pool_stays_one_while_its_reads_take_no_longer_than_the_processor_and_as_long_as_no_plan_reads_much_less() {
    let mut planner = pool();
    learn_as_pool(&mut planner, 8_192.0 * CHUNK_SECONDS, runs(16, 80_000));
    assert_eq!(planner.plan(), None);
    // A lookup and a window for each run, with all of the device's depth.
    learn_as_pool(&mut planner, 2.0 * 512.0 / 93_000.0, runs(16, 80_000));
    assert_eq!(planner.plan(), None);
}

#[test]
fn a_pool_ends_once_a_plan_takes_much_less() {
    let mut planner = pool();
    // Each chunk is looked up, although runs are long.
    learn_as_pool(&mut planner, 8_192.0 / 93_000.0, runs(2_000, 80_000));
    let plan = planner.plan().expect("a plan with long windows");
    assert!(400 < plan.window(), "{plan:?}");
}

#[test]
fn a_pool_reads_long_windows_where_short_runs_lie_near_each_other_and_short_ones_where_they_do_not() {
    let mut random = SplitMix64::new(3);
    // Runs of 8 chunks: 10,000 random ones of 32,000 records, then of other 32,000, and so on.
    let near = (0..10).flat_map(|part| (0..1_250).map(move |_| part * 32_000));
    let near = near.flat_map(|from| {
        let start = from + 8 * random.below(4_000);
        (start..start + 8).map(Some)
    });
    let mut planner = pool();
    learn_as_pool(&mut planner, 8_192.0 * CHUNK_SECONDS, near);
    assert_eq!(planner.plan(), None);
    assert!(planner.window().is_some_and(|window| 1_600 < window), "{:?}", planner.window());
    let mut planner = pool();
    learn_as_pool(&mut planner, 8_192.0 * CHUNK_SECONDS, runs(8, 80_000));
    assert!(planner.window().is_none_or(|window| window <= 102), "{:?}", planner.window());
}

fn cost(plan: Plan, situation: &Situation, trace: &Trace) -> f64 {
    let traces = std::slice::from_ref(trace);
    let limits = (&situation.limits, situation.log_end, f64::INFINITY);
    replay(plan, traces, &Coverage::new(situation.cache_records), &situation.costs, limits).seconds
}

fn trace_of(positions: impl Iterator<Item = Option<u64>>) -> Trace {
    let mut trace = Trace::default();
    for (sequence, position) in (0..).zip(positions) {
        trace.pass(Sequence(sequence), position.map(Position));
    }
    trace
}

#[test]
fn single_duplicates_read_no_windows_and_long_runs_read_long_ones() {
    for profile in [DISK, SSD] {
        let situation = situation(profile, 1.0);
        let plan = learn(&situation, runs(1, 60_000));
        assert_eq!(plan.window(), 0, "{plan:?}");
        let plan = learn(&situation, runs(3_000, 60_000));
        assert!(800 <= plan.forward, "{plan:?}");
    }
}

#[test]
fn windows_are_not_read_if_the_memtable_answers() {
    let plan = learn(&situation(SSD, 0.0), runs(4, 60_000));
    assert_eq!(plan.window(), 0, "{plan:?}");
}

#[test]
fn reversed_streams_read_before_the_hit() {
    let reversed = (0..60_000).map(|chunk| Some(LOG_END - 1 - chunk));
    let plan = learn(&situation(SSD, 1.0), reversed);
    assert!(100 < plan.back, "{plan:?}");
}

#[test]
fn one_chunk_of_many_is_looked_up_where_neighbors_share_a_window() {
    // Short runs with gaps, all in one neighborhood of the log.
    let mut at = 0;
    let positions = (0..60_000).map(|chunk| {
        at += if chunk % 7 == 0 { 3 } else { 1 };
        if chunk % 9 == 0 { None } else { Some(at) }
    });
    let situation = situation(SSD, 1.0);
    let trace = trace_of(positions.take(20_000));
    let mut planner = Planner::new(&situation.limits, None, 0, None);
    planner.decide(trace.clone(), &situation);
    let each = cost(LIMITS.plan(8_192, Stride::Chunks(1), Shape::Forward, 0), &situation, &trace);
    let chosen = cost(planner.plan, &situation, &trace);
    assert!(20.0 * chosen < each, "{:?} takes {chosen}, every chunk {each}", planner.plan);
}

#[test]
fn a_change_of_the_stream_changes_the_plan_within_some_traces() {
    let situation = situation(SSD, 1.0);
    let stream = runs(2_000, 80_000).chain(runs(1, 40_000));
    assert_eq!(learn(&situation, stream).window(), 0);
    let stream = runs(1, 80_000).chain(runs(2_000, 40_000));
    assert!(400 < learn(&situation, stream).window());
}

/// No plan that a planner can choose costs much less on a stream that goes on as it has begun: the planner's regret there.
#[test]
fn the_plan_is_never_far_from_the_best_one_in_hindsight() {
    for (profile, name) in [(DISK, "disk"), (SSD, "ssd")] {
        for run in [1, 3, 13, 100, 1_500, 20_000] {
            let situation = situation(profile, 1.0);
            let chosen = learn(&situation, runs(run, 80_000));
            let trace = trace_of(runs(run, 12_000));
            let taken = cost(chosen, &situation, &trace);
            let mut best = (f64::INFINITY, chosen);
            for pool in POOLS {
                for stride in STRIDES {
                    for window in WINDOWS {
                        for shape in [Shape::Forward, Shape::Both, Shape::Backward] {
                            let plan = LIMITS.plan(pool, stride, shape, window);
                            let seconds = cost(plan, &situation, &trace);
                            if seconds < best.0 {
                                best = (seconds, plan);
                            }
                        }
                    }
                }
            }
            assert!(taken <= 1.25 * best.0, "{name}, runs of {run}: {chosen:?} takes {taken}, {best:?}");
        }
    }
}

#[test]
fn a_decision_waits_for_runs_only_while_little_can_be_saved() {
    let of = |len: u64, chunks: usize| trace_of(runs(len, chunks));
    let is_due = |trace: &Trace, lookups, seconds| Planner::is_due(trace, || is_expensive(trace, lookups, seconds));
    assert!(!is_due(&of(1, 4_000), 4_000, 1.0), "too few chunks");
    assert!(is_due(&of(100, 5_000), 0, 0.0), "50 runs");
    let long = of(2_000, 5_000);
    assert!(!is_due(&long, 70, 0.002) && is_due(&long, 90, 0.002) && is_due(&long, 70, 0.003));
    assert!(is_due(&of(70_000, 70_000), 0, 0.0), "no more runs can be expected");
}

#[test]
fn lookups_at_arrival_read_the_log_ahead_where_the_stream_continues_in_it() {
    let situation = situation(SSD, 1.0);
    let trace = trace_of(runs(10_000, 10_000));
    let with = cost(LIMITS.plan(1, Stride::Chunks(1), Shape::Forward, 816), &situation, &trace);
    let without = PlanLimits { reads_ahead: false, ..LIMITS };
    let without = Situation { limits: without, ..situation };
    let (plan, windows) = (LIMITS.plan(1, Stride::Chunks(1), Shape::Forward, 816), 10_000 / 816);
    let saved = cost(plan, &without, &trace) - with;
    let lookup = situation.costs.time(1.0);
    assert!(f64::from(windows) * lookup < 1.2 * saved && saved < f64::from(windows + 1) * (lookup + 1e-6), "{saved}");
}
