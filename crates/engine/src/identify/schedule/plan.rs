//! Plans: how many chunks wait, which of them are looked up first, and how much is read around a hit.

use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;
use crate::identify::schedule::cost::DeviceCosts;

/// Which pending chunks a round looks up first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::identify) enum Stride {
    /// One of so many, whether they are neighbors in the stream or not.
    Chunks(u32),
    /// The first of each run of neighbors, and further ones of the run at this distance.
    InRuns(u32),
}

/// The first of each run of neighbors.
const EACH_RUN: Stride = Stride::InRuns(u32::MAX);
/// Rounds after which [`EACH_RUN`] looks up all that is left.
const RUN_ROUNDS: u32 = 2;
/// Factor by which strides shorten from one round to the next.
pub(in crate::identify) const STRIDE_DIVISOR: u32 = 4;

impl Stride {
    /// Returns the stride of a later round, the first one being 0.
    pub(in crate::identify) fn of_round(self, round: u32) -> Self {
        match self {
            Self::Chunks(stride) => Self::Chunks((stride / STRIDE_DIVISOR.saturating_pow(round)).max(1)),
            Self::InRuns(u32::MAX) if round < RUN_ROUNDS => self,
            Self::InRuns(u32::MAX) => Self::Chunks(1),
            Self::InRuns(stride) => Self::InRuns((stride / STRIDE_DIVISOR.saturating_pow(round)).max(1)),
        }
    }
}

/// How pending chunks are resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct Plan {
    /// Chunks that wait for each other; 1 looks up each as it arrives.
    pub(in crate::identify) pool: u32,
    /// Those that are looked up first.
    pub(in crate::identify) stride: Stride,
    /// Records before a hit that are read.
    pub(in crate::identify) back: u32,
    /// Records from the hit on that are read; no record is read if both are 0.
    pub(in crate::identify) forward: u32,
}

impl Plan {
    /// Returns the records of a window.
    pub(in crate::identify) fn window(&self) -> u32 {
        self.back + self.forward
    }

    /// Returns the window around a record of a log: its first record, and the one after its last. A long window ends with a page,
    /// because the rest of the page is read anyway.
    pub(in crate::identify) fn window_around(&self, position: u64) -> (u64, u64) {
        let page = LOG_PAGE_RECORDS as u64;
        let start = position.saturating_sub(self.back.into());
        let end = position.saturating_add(u64::from(self.forward).max(1));
        if u64::from(self.window()) < page { (start, end) } else { (start, end.div_ceil(page).saturating_mul(page)) }
    }

    /// Returns true if the rest of a cached window, up to `end`, makes another one unnecessary.
    pub(in crate::identify) fn is_served(&self, position: u64, end: u64) -> bool {
        u64::from(self.forward / 2) <= end.saturating_sub(position)
    }
}

/// Limits of plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct PlanLimits {
    /// Most chunks that may wait for each other.
    pub(in crate::identify) pool: u32,
    /// Most chunks that arrive while one waits.
    pub(in crate::identify) age: u64,
    /// Most records of a window, if windows may differ.
    pub(in crate::identify) window: u32,
    /// The only window, if the request gives one.
    pub(in crate::identify) fixed_window: Option<u32>,
    /// True if plans whose lookups do not wait read the log ahead where it continues as the stream does.
    pub(in crate::identify) reads_ahead: bool,
}

/// Sizes of windows: a sixth of a page, then powers of two of pages.
pub(super) const WINDOWS: [u32; 11] = [0, 16, 48, 102, 204, 408, 816, 1_632, 4_080, 16_320, 65_280];
/// Pools: powers of four, except the first.
pub(super) const POOLS: [u32; 7] = [1, 64, 256, 1_024, 4_096, 16_384, 65_536];
/// Strides in the order of the lookups that they spare.
pub(super) const STRIDES: [Stride; 6] =
    [Stride::Chunks(1), Stride::Chunks(8), EACH_RUN, Stride::Chunks(64), Stride::Chunks(512), Stride::Chunks(4_096)];

/// Shadows: plans that are carried out without a read while another one is in use.
pub(super) const SHADOWS: usize = 10;
/// Longest windows from which on there are such plans.
pub(in crate::identify) const SHADOW_WINDOW_MIN: u32 = 4_096;

/// Parts of a window before the hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Forward,
    Both,
    Backward,
}

impl Shape {
    fn of(plan: &Plan) -> Self {
        match (plan.back, plan.forward) {
            (0, _) => Self::Forward,
            (_, 0) => Self::Backward,
            _ => Self::Both,
        }
    }

    fn divide(self, window: u32) -> (u32, u32) {
        match self {
            Self::Forward => (0, window),
            Self::Both => (window / 2, window - window / 2),
            Self::Backward => (window, 0),
        }
    }
}

impl PlanLimits {
    /// Returns the plan to start with: all that wait are looked up together, and no window is read. It shows where duplicates
    /// are, and costs little if they are few.
    pub(in crate::identify) fn initial(&self) -> Plan {
        self.plan(u32::MAX, Stride::Chunks(1), Shape::Forward, 0)
    }

    /// Returns the plan that is most like a pool whose rounds begin with `candidates` chunks, if runs have `run` chunks. `window`: its
    /// windows, unless they follow from the runs.
    pub(super) fn like_pool(&self, candidates: u32, run: f64, window: Option<u32>) -> Plan {
        // Windows of two runs, and none for single duplicates.
        let of_runs = || match WINDOWS.into_iter().find(|window| 2.0 * run <= f64::from(*window)) {
            _ if run < 2.0 => 0,
            window => window.unwrap_or(self.window),
        };
        let window = window.unwrap_or_else(of_runs);
        let stride = if window == 0 { Stride::Chunks(1) } else { EACH_RUN };
        self.plan(candidates, stride, Shape::Forward, window)
    }

    /// Returns the plan within these limits that is most like another one.
    pub(super) fn fit(&self, plan: &Plan) -> Plan {
        self.plan(plan.pool, plan.stride, Shape::of(plan), plan.window())
    }

    pub(super) fn plan(&self, pool: u32, stride: Stride, shape: Shape, window: u32) -> Plan {
        let (back, forward) = match self.fixed_window {
            Some(window) => (0, window),
            None => shape.divide(window.min(self.window)),
        };
        let pool = pool.clamp(1, self.pool.max(1));
        let stride = if back + forward == 0 || pool == 1 { Stride::Chunks(1) } else { stride };
        Plan { pool, stride, back, forward }
    }

    /// Returns the plans that differ from one by one step of one dimension.
    pub(super) fn neighbors(&self, plan: &Plan) -> Vec<Plan> {
        let around = |index: usize, len: usize| [index.checked_sub(1), Some(index + 1).filter(|next| *next < len)];
        let pool = POOLS.partition_point(|pool| *pool < plan.pool).min(POOLS.len() - 1);
        let window = WINDOWS.partition_point(|window| *window < plan.window()).min(WINDOWS.len() - 1);
        let stride = STRIDES.iter().position(|stride| *stride == plan.stride).unwrap_or(0);
        let shape = Shape::of(plan);
        let mut out = Vec::with_capacity(9);
        for index in around(pool, POOLS.len()).into_iter().flatten() {
            out.push(self.plan(POOLS[index], plan.stride, shape, plan.window()));
        }
        for index in around(window, WINDOWS.len()).into_iter().flatten() {
            out.push(self.plan(plan.pool, plan.stride, shape, WINDOWS[index]));
        }
        for index in around(stride, STRIDES.len()).into_iter().flatten() {
            out.push(self.plan(plan.pool, STRIDES[index], shape, plan.window()));
        }
        for other in [Shape::Forward, Shape::Both, Shape::Backward] {
            if other != shape {
                out.push(self.plan(plan.pool, plan.stride, other, plan.window()));
            }
        }
        out
    }

    /// Returns the plans of shadows: with and without windows of each length, looked up at arrival or together. There are none if windows
    /// are short: the plans would differ little.
    pub(super) fn shadows(&self) -> Vec<Plan> {
        if self.window < SHADOW_WINDOW_MIN {
            return Vec::new();
        }
        let (all, each) = (u32::MAX, Stride::Chunks(1));
        let plans: [Plan; SHADOWS] = [
            self.initial(),
            self.plan(all, EACH_RUN, Shape::Forward, 204),
            self.plan(all, EACH_RUN, Shape::Forward, 16_320),
            self.plan(all, Stride::Chunks(64), Shape::Both, 204),
            self.plan(all, Stride::Chunks(512), Shape::Both, 1_632),
            self.plan(1, each, Shape::Forward, 816),
            self.plan(1, each, Shape::Forward, 4_080),
            self.plan(1, each, Shape::Forward, 16_320),
            self.plan(1, each, Shape::Both, 16_320),
            self.plan(1, each, Shape::Both, 65_280),
        ];
        plans.into()
    }

    /// Returns plans that differ in kind: each is the best for some stream and device.
    pub(super) fn archetypes(&self) -> [Plan; 11] {
        let all = u32::MAX;
        [
            self.plan(all, Stride::Chunks(1), Shape::Forward, 0),
            self.plan(all, EACH_RUN, Shape::Forward, 204),
            self.plan(all, EACH_RUN, Shape::Forward, 16),
            self.plan(all, Stride::Chunks(8), Shape::Both, 16),
            self.plan(all, Stride::Chunks(512), Shape::Both, 1_632),
            self.plan(all, Stride::Chunks(64), Shape::Both, 204),
            self.plan(all, Stride::Chunks(4_096), Shape::Both, 16_320),
            self.plan(1, Stride::Chunks(1), Shape::Forward, 816),
            self.plan(1, Stride::Chunks(1), Shape::Both, 4_080),
            self.plan(1, Stride::Chunks(1), Shape::Forward, 4_080),
            self.plan(1, Stride::Chunks(1), Shape::Forward, 16_320),
        ]
    }
}

/// Returns the distance in the stream at which a chunk counts as a neighbor that a window may resolve.
pub(in crate::identify) fn reach_of(plan: &Plan) -> u64 {
    4 * u64::from(plan.window()).max(8)
}

/// Returns the parts of a window that are not cached, in order. Cached records between two parts are read again if these are less than a
/// page, or take less time than another read. Where they take less time than a seek, what is cached of the window is made up for by records
/// behind it: else each gap between cached windows would take a seek of its own. `log_end`: records of the log. `first_in` returns the
/// first cached records within a range.
pub(in crate::identify) fn uncached(
    (start, end): (u64, u64),
    log_end: u64,
    device: &DeviceCosts,
    first_in: impl Fn(u64, u64) -> Option<(u64, u64)>,
) -> Vec<(u64, u64)> {
    let gap = device.gap_records();
    let records_min = LOG_PAGE_RECORDS as u64 + gap;
    let (mut parts, mut left, mut at) = (Vec::new(), start, start);
    while let Some((first, covered)) = first_in(at, end) {
        let covered = end_of_cached(covered, &first_in);
        if first == left || end <= covered || records_min <= covered - first {
            if left < first {
                parts.push((left, first));
            }
            left = covered;
        }
        at = covered;
    }
    if left < end {
        parts.push((left, end));
    }
    if gap != 0 && !parts.is_empty() {
        extend(&mut parts, (end - start, log_end), gap, first_in);
    }
    parts
}

/// Adds records behind the last part until `wanted` are read that are not cached, as long as all cached ones between take less than a seek.
fn extend(
    parts: &mut [(u64, u64)],
    (wanted, log_end): (u64, u64),
    gap: u64,
    first_in: impl Fn(u64, u64) -> Option<(u64, u64)>,
) {
    let mut missing = wanted.saturating_sub(parts.iter().map(|(start, end)| end - start).sum());
    let mut left = gap;
    while let Some(last) = parts.last_mut().filter(|_| missing != 0) {
        let from = end_of_cached(last.1, &first_in);
        let cached = from - last.1;
        if log_end <= from || left < cached {
            return;
        }
        left -= cached;
        let most = (from + missing).min(log_end);
        let to = first_in(from, most).map_or(most, |(first, _)| first);
        missing -= to - from;
        last.1 = to;
    }
}

/// Returns the first record from a position on that is not cached.
pub(in crate::identify) fn end_of_cached(from: u64, first_in: impl Fn(u64, u64) -> Option<(u64, u64)>) -> u64 {
    let mut end = from;
    while let Some((_, further)) = first_in(end, end.saturating_add(1)) {
        end = further;
    }
    end
}

/// Sorts windows, and merges those that overlap or whose gap takes less time to read than another read. A window of more than
/// `records_max` records is divided. Windows that follow each other without a gap need one seek.
pub(in crate::identify) fn merge_windows(
    mut windows: Vec<(u64, u64)>,
    device: &DeviceCosts,
    records_max: u64,
) -> Vec<(u64, u64)> {
    windows.retain(|(start, end)| start < end);
    windows.sort_unstable();
    let (gap, records_max) = (device.gap_records(), records_max.max(1));
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(windows.len());
    for (mut start, end) in windows {
        if let Some(last) = merged.last_mut().filter(|last| start <= last.1.saturating_add(gap)) {
            let taken = end.min(cut_after(last.0, records_max));
            last.1 = last.1.max(taken);
            start = last.1;
        }
        while start < end {
            let taken = end.min(cut_after(start, records_max));
            merged.push((start, taken));
            start = taken;
        }
    }
    merged
}

/// Returns where a window from a record on is cut: at the end of a page, so that the next one begins where it ends.
fn cut_after(start: u64, records_max: u64) -> u64 {
    let page = LOG_PAGE_RECORDS as u64;
    let end = (start + records_max) / page * page;
    if start < end { end } else { start + records_max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::DeviceProfile;

    fn device(random_reads_per_s_single: u64, random_reads_per_s_deep: u64) -> DeviceCosts {
        DeviceCosts::of_profile(DeviceProfile {
            random_reads_per_s_single,
            random_reads_per_s_deep,
            sequential_bytes_per_s: 160_000_000,
        })
    }

    #[test]
    fn a_window_is_read_without_what_is_cached_of_it() {
        let cached = [(100, 300), (300, 420), (500, 560), (900, 2_000)];
        let first_in = |from: u64, to: u64| {
            let within = cached.iter().find(|(start, end)| from < *end && *start < to && from < to)?;
            Some((within.0.max(from), within.1))
        };
        let ssd = device(11_000, 35_000);
        assert_eq!(uncached((50, 1_100), 3_000, &ssd, first_in), [(50, 100), (420, 900)]);
        assert_eq!(uncached((150, 700), 3_000, &ssd, first_in), [(420, 700)]);
        assert_eq!(uncached((430, 600), 3_000, &ssd, first_in), [(430, 600)], "less than a page is read again");
        assert_eq!(uncached((530, 1_000), 3_000, &ssd, first_in), [(560, 900)]);
        assert_eq!(uncached((1_000, 1_900), 3_000, &ssd, first_in), []);
        let disk = device(83, 83);
        assert_eq!(uncached((50, 900), 900, &disk, first_in), [(50, 900)], "a seek takes longer");
        assert_eq!(uncached((150, 250), 3_000, &disk, first_in), []);
    }

    #[test]
    fn where_a_seek_takes_longer_a_window_makes_up_for_what_is_cached_of_it() {
        let cached = [(100, 300), (900, 2_000), (2_030, 2_100), (80_000, 200_000)];
        let first_in = |from: u64, to: u64| {
            let within = cached.iter().find(|(start, end)| from < *end && *start < to && from < to)?;
            Some((within.0.max(from), within.1))
        };
        let disk = device(83, 83);
        assert_eq!(
            uncached((50, 950), 1 << 20, &disk, first_in),
            [(50, 2_120)],
            "50 of 900 are left out: 30 and 20 behind"
        );
        assert_eq!(uncached((50, 950), 2_050, &disk, first_in), [(50, 2_030)], "the log ends");
        let up_to_cached = uncached((79_000, 82_000), 1 << 20, &disk, first_in);
        assert_eq!(up_to_cached, [(79_000, 80_000)], "what is cached behind it takes more than a seek");
        assert_eq!(uncached((50, 950), 1 << 20, &device(11_000, 35_000), first_in), [(50, 100), (300, 900)]);
    }

    #[test]
    fn merged_windows_hold_what_was_asked_for_and_continue_each_other() {
        let disk = device(83, 83);
        let merged = merge_windows(vec![(10, 30), (500, 2_000), (20, 40), (900_000, 900_001)], &disk, 1_000);
        assert_eq!(merged.first().map(|window| window.0), Some(10));
        assert_eq!(merged.last(), Some(&(900_000, 900_001)));
        let connected = &merged[..merged.len() - 1];
        assert!(connected.windows(2).all(|pair| pair[0].1 == pair[1].0 && pair[0].1 % 102 == 0), "{merged:?}");
        assert!(merged.iter().all(|(start, end)| end - start <= 1_000) && connected.last().unwrap().1 == 2_000);
        let ssd = device(11_000, 35_000);
        assert_eq!(merge_windows(vec![(10, 30), (31, 40), (20, 25), (7, 7)], &ssd, 1_000), [(10, 30), (31, 40)]);
    }
}
