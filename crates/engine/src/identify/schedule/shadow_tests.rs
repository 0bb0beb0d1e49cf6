use super::*;
use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::replay::replay;
use crate::io::DeviceProfile;
use crate::kv::Position;
use crate::random::SplitMix64;
use crate::types::Sequence;

const LIMITS: PlanLimits =
    PlanLimits { pool: 8_192, age: 1 << 16, window: 16_384, fixed_window: None, reads_ahead: true };
const LOG_END: u64 = 10_000_000;
const CACHE: u64 = 200_000;

fn costs() -> LookupCosts {
    let disk = DeviceProfile {
        random_reads_per_s_single: 83,
        random_reads_per_s_deep: 83,
        sequential_bytes_per_s: 160_000_000,
    };
    LookupCosts { device: DeviceCosts::of_profile(disk), pages: 10_000.0, pages_per_key: 1.0 }
}

/// Divides positions into traces of 4,096 chunks.
fn traces(positions: impl Iterator<Item = u64>) -> Vec<Trace> {
    let mut traces = vec![Trace::default()];
    for (sequence, position) in (0..).zip(positions) {
        if traces[traces.len() - 1].arrivals == 4_096 {
            traces.push(Trace::default());
        }
        let last = traces.len() - 1;
        traces[last].pass(Sequence(sequence), Some(Position(position)));
    }
    traces
}

/// Runs at random positions.
fn runs(len: u64, count: u64) -> impl Iterator<Item = u64> {
    let mut random = SplitMix64::new(3);
    (0..count).flat_map(move |_| {
        let start = random.below(LOG_END - len);
        start..start + len
    })
}

fn follow(shadows: &mut Shadows, trace: &Trace, spent: f64) {
    shadows.allow(1.0, 1.0);
    shadows.follow((trace, spent), &costs(), &LIMITS, (LOG_END, CACHE), 60e-9);
}

#[test]
fn a_shadow_pays_for_a_long_window_once_however_short_the_traces_are() {
    let plan = LIMITS.shadows()[7];
    assert_eq!((plan.pool, plan.forward), (1, 16_320));
    let traces = traces(5_000..5_000 + 40 * 4_096);
    let mut shadow = Shadow::new(plan);
    let (mut alone, empty) = (0.0, Coverage::new(CACHE));
    for trace in &traces {
        shadow.follow(trace, &costs(), &LIMITS, (LOG_END, CACHE));
        let one = std::slice::from_ref(trace);
        alone += replay(plan, one, &empty, &costs(), (&LIMITS, LOG_END, f64::INFINITY)).seconds;
    }
    let whole = replay(plan, &traces, &empty, &costs(), (&LIMITS, LOG_END, f64::INFINITY)).seconds;
    let mut kept = Spending::default();
    for trace in &traces {
        kept.add(whole / traces.len() as f64, trace.arrivals);
    }
    let ratio = shadow.spending.rate() / kept.rate();
    // The newest window counts more or less, depending on where the stream ends in it.
    assert!((0.75..1.25).contains(&ratio), "{ratio} of what the plan takes for the whole stream");
    assert!(3.0 * whole < alone, "{whole} and {alone}");
}

#[test]
fn the_best_shadow_is_followed_from_much_more_spent_until_hardly_more() {
    let mut shadows = Shadows::new(&LIMITS);
    let stream = traces(runs(50_000, 20));
    let (first, rest) = stream.split_first().unwrap();
    follow(&mut shadows, first, 0.1);
    let mut changes = Vec::new();
    for (index, trace) in rest.iter().enumerate() {
        // At first the index spends a lot, and then nothing.
        let spent = if index < 40 { 0.5 } else { 0.0 };
        follow(&mut shadows, trace, spent);
        let is_behind = shadows.to_follow().is_some();
        if changes.last().is_none_or(|(_, last)| *last != is_behind) {
            changes.push((index, is_behind));
        }
    }
    assert!(changes.iter().any(|(index, is_behind)| *index < 40 && *is_behind), "{changes:?}");
    assert!(changes.last().is_some_and(|(index, is_behind)| 40 <= *index && !is_behind), "{changes:?}");
}

#[test]
fn long_windows_lead_in_long_runs_and_none_in_single_duplicates() {
    let leader = |len, count| {
        let mut shadows = Shadows::new(&LIMITS);
        for trace in &traces(runs(len, count)) {
            follow(&mut shadows, trace, 100.0);
        }
        shadows.to_follow().unwrap()
    };
    let of_long_runs = leader(50_000, 20);
    assert!(of_long_runs.pool == 1 && 4_080 <= of_long_runs.window(), "{of_long_runs:?}");
    assert_eq!(leader(1, 200_000).window(), 0);
}

#[test]
fn shadows_stay_within_their_memory_and_time() {
    let mut shadows = Shadows::new(&LIMITS);
    shadows.allow(1e-3, 1.0);
    let stream = traces(runs(1, 100_000));
    for trace in &stream {
        shadows.follow((trace, 1.0), &costs(), &LIMITS, (LOG_END, CACHE), 60e-9);
        for shadow in &shadows.all {
            assert!(shadow.waiting.runs() < 2 * WAITING_RUNS_MAX);
        }
    }
    let chunks = shadows.spending.chunks;
    assert!(0.0 < chunks && chunks < 50_000.0, "without further credit they take one trace or a few: {chunks}");
    assert!(shadows.credit <= 0.0);
}
