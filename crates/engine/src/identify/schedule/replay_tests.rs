use super::*;
use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::trace::NOWHERE;
use crate::io::DeviceProfile;
use crate::random::SplitMix64;

const SSD: DeviceProfile = DeviceProfile {
    random_reads_per_s_single: 11_000,
    random_reads_per_s_deep: 93_000,
    sequential_bytes_per_s: 500_000_000,
};
const LIMITS: PlanLimits =
    PlanLimits { pool: 8_192, age: 1 << 16, window: 16_384, fixed_window: None, reads_ahead: true };

#[test]
fn chunks_are_selected_and_left_one_by_one() {
    let mut random = SplitMix64::new(4);
    for _ in 0..300 {
        let mut sequence = 0;
        let mut pending = Vec::new();
        for _ in 0..random.below(12) {
            sequence += random.below(3);
            let len = 1 + u32::try_from(random.below(20)).unwrap();
            let start = if random.index(5) == 0 { NOWHERE } else { random.below(400) };
            pending.push(TraceRun { sequence, start, len });
            sequence += u64::from(len);
        }
        let chunks = |runs: &[TraceRun]| -> Vec<(u64, u64)> {
            let chunk = |run: &TraceRun, at: u32| (run.sequence + u64::from(at), run.skip(at).start);
            runs.iter().flat_map(|run| (0..run.len).map(move |at| chunk(run, at))).collect()
        };
        let all = chunks(&pending);
        let stride = 1 + random.index(9);
        let selected = select(&pending, Stride::Chunks(u32::try_from(stride).unwrap()));
        assert_eq!(chunks(&selected), all.iter().step_by(stride).copied().collect::<Vec<_>>());
        let costs = LookupCosts { device: DeviceCosts::of_profile(SSD), pages: 100.0, pages_per_key: 1.0 };
        let before = Coverage::new(1_000);
        let mut cover = Coverage::new(1_000);
        let (from, to) = (random.below(300), random.below(300));
        cover.add(from, to);
        let waiting = Waiting { runs: pending, count: all.len() as u64, ..Waiting::default() };
        let mut replay = Replay::new(LIMITS.initial(), &costs, &LIMITS, (cover, &before), 400, waiting);
        let left = replay.left(&selected);
        let is_covered = |position: u64| position != NOWHERE && (from..to).contains(&position);
        let chosen = chunks(&selected);
        let expected: Vec<_> =
            all.into_iter().filter(|chunk| !chosen.contains(chunk) && !is_covered(chunk.1)).collect();
        assert_eq!(chunks(&left), expected);
    }
}
