//! A planner: chooses plans by what they would have cost on the recent stream.
//!
//! It keeps the recent stream with the record of every duplicate, whatever resolved it. So it can tell what any plan would
//! have cost there: [`replay`] carries a plan out on the stream, with the costs of the device, and without a read. The
//! planner replays the current plan, its neighbors, and some far from it, and changes to the cheapest. No plan has to be
//! tried on the device to be known, so exploring costs processor time only, and that is limited.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::schedule::cost::{CHUNK_SECONDS, LookupCosts};
use crate::identify::schedule::coverage::{COVERAGE_BYTES, Coverage};
use crate::identify::schedule::plan::{Plan, PlanLimits, SHADOW_WINDOW_MIN};
use crate::identify::schedule::replay::{Replayed, replay};
use crate::identify::schedule::shadow::{SHADOWS_BYTES, Shadows};
use crate::identify::schedule::trace::{StreamShape, TRACE_BYTES, Trace, TraceRun};

/// Chunks of the stream after which a planner may decide again.
const TRACE_CHUNKS: u64 = 4_096;
/// Runs that a decision waits for, and for how many chunks at most, while little can be saved.
const RUNS_MIN: usize = 32;
const TRACE_CHUNKS_MAX: u64 = 65_536;
/// Seconds of the device and lookups for each chunk of the stream, from which much can be saved.
const EXPENSIVE_SECONDS: f64 = 0.5e-6;
const EXPENSIVE_LOOKUPS: f64 = 1.0 / 64.0;
/// Traces that a decision looks at.
const TRACES: usize = 3;
/// Processor time of a visit of a replay, in seconds.
const VISIT_SECONDS: f64 = 60e-9;
/// Processor time that planning may take: for each chunk of the stream, in seconds, and of each second of the device.
const PLANNING_PER_CHUNK: f64 = 20e-9;
const PLANNING_SHARE: f64 = 0.05;
/// Most planning time that is saved for later, in seconds.
const CREDIT_MAX: f64 = 0.05;
/// Share of the cost that another plan must save.
const SAVING_MIN: f64 = 0.03;
/// Cost of a chunk of the stream below which no plan is worth a search, in seconds.
const RATE_MIN: f64 = 1e-9;
/// Factor by which the cost of the plan must change for a decision before it is due.
const RATE_CHANGE: f64 = 1.3;
/// Most traces between two decisions while the plan stays the best.
const WAIT_MAX: u32 = 4;
/// Runs of the stream that a decision looks at; the newest count.
const RECENT_RUNS_MAX: usize = 3_000;
/// Most steps of one decision.
const STEPS_MAX: usize = 6;

/// Memory of planning: the traces, the one that is being recorded among them; what a replay takes of them, waiting chunks twice;
/// and the ranges of the cache, before and in a replay. Shadows take more.
const PLANNING_BYTES: usize =
    (TRACES + 2) * TRACE_BYTES + 3 * RECENT_RUNS_MAX * size_of::<TraceRun>() + 2 * COVERAGE_BYTES;

/// Returns the memory of planning, if windows have at most so many records.
pub(in crate::identify) fn planning_bytes(window: u32) -> usize {
    PLANNING_BYTES + if SHADOW_WINDOW_MIN <= window { SHADOWS_BYTES } else { 0 }
}

/// Chooses plans by what they would have cost on the recent stream.
#[derive(Debug)]
pub(in crate::identify) struct Planner {
    /// The plan in use, if the index is no pool.
    plan: Plan,
    /// What is known of a pool, if it may be better than any plan.
    pool: Option<PoolState>,
    traces: Vec<Trace>,
    /// Ranges of the log that the cache held before these traces.
    before: Coverage,
    /// Plans that are carried out without a read: the best of them is followed while the index has spent much more.
    shadows: Shadows,
    /// Planning time that may be spent, in seconds.
    credit: f64,
    /// Traces until the next decision, and how many that were after the last one.
    wait: (u32, u32),
    /// Seconds that the plan takes for a chunk of the stream, at the last decision.
    rate: f64,
    /// The stream in the newest trace, and for how many traces it has been like that.
    stream: StreamShape,
    phase: u32,
    /// Chunks of the session so far, its traces, and the chunks of the session before if this one began with its plan.
    arrivals: u64,
    session_traces: u32,
    expected: u64,
}

/// A pool whose reads overlap with the work of the processor, as an alternative to plans.
#[derive(Clone, Copy, Debug)]
struct PoolState {
    /// Chunks that start a round.
    candidates: u32,
    /// True if the index is a pool now.
    is_used: bool,
    /// How many times as long it took as its replay said, when a plan became better.
    factor: f64,
    /// Records of its windows, if the replays of others say more than the mean run.
    window: Option<u32>,
}

/// Stored chunks for each that may wait, from which on a pool is an option. With fewer of them, the chunks that wait share most pages
/// of the table if all are looked up together: at about 200 entries on a page, a chunk takes less than a tenth of a read, fewer than
/// a pool reads for runs of 16.
const STORED_FOR_POOL: u64 = 20;
/// Share of the whole time that a plan must save for the index to be a pool no longer. The time of a plan is only an estimate, while a
/// pool's was measured.
const LEAVING_MIN: f64 = 0.15;
/// Windows of a pool that are always tried.
const POOL_WINDOWS: [u32; 2] = [1_632, 16_320];
/// Most times that a pool is taken to need as long as its replay says.
const POOL_FACTOR_MAX: f64 = 4.0;

/// Returns true if the chunks that may wait share few pages of the table.
fn pool_pays(limits: &PlanLimits, stored: u64) -> bool {
    u64::from(limits.pool) * STORED_FOR_POOL < stored
}

/// Returns the seconds that a pool takes for so many chunks besides [`CHUNK_SECONDS`] for each of them: what the device does meanwhile
/// takes none.
fn pool_seconds(of_device: f64, of_processor: f64, chunks: f64) -> f64 {
    of_processor + (of_device - of_processor - chunks * CHUNK_SECONDS).max(0.0)
}

/// Returns true if much can be saved on a trace with so many lookups, and so many seconds of the device.
pub(in crate::identify) fn is_expensive(trace: &Trace, lookups: u64, seconds: f64) -> bool {
    let chunks = trace.arrivals as f64;
    EXPENSIVE_SECONDS * chunks < seconds || EXPENSIVE_LOOKUPS * chunks < lookups as f64
}

/// Last plan of a session, for the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct LastPlan {
    pub(in crate::identify) plan: Plan,
    /// Chunks of the session.
    pub(in crate::identify) chunks: u64,
}

/// State of an index that plans depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct Situation {
    pub(in crate::identify) costs: LookupCosts,
    pub(in crate::identify) limits: PlanLimits,
    /// Records of the cache.
    pub(in crate::identify) cache_records: u64,
    /// Records of the log.
    pub(in crate::identify) log_end: u64,
    /// Seconds that the device has taken since the last decision.
    pub(in crate::identify) spent: f64,
    /// Seconds that the processor worked meanwhile for chunks that wait, lookups and windows.
    pub(in crate::identify) worked: f64,
    /// Chunks that arrived meanwhile.
    pub(in crate::identify) chunks: u64,
    /// True if chunks are looked up as they arrive: the stream waits for each read.
    pub(in crate::identify) is_immediate: bool,
}

impl Planner {
    /// Starts with a plan that was the last one of an earlier session, or as a pool, or with the initial plan. `pool`: how many chunks
    /// begin a round of a pool, unless the device gives pools no advantage. `stored`: records of the log.
    pub(in crate::identify) fn new(
        limits: &PlanLimits,
        pool: Option<u32>,
        stored: u64,
        last: Option<LastPlan>,
    ) -> Self {
        let is_used = last.is_none() && pool_pays(limits, stored);
        Self {
            plan: last.map_or_else(|| limits.initial(), |last| limits.fit(&last.plan)),
            pool: pool.map(|candidates| PoolState { candidates, is_used, factor: 1.0, window: None }),
            traces: Vec::new(),
            before: Coverage::new(0),
            shadows: Shadows::new(limits),
            // A pool needs no haste, and planning would delay it.
            credit: if is_used && pool.is_some() { 0.0 } else { CREDIT_MAX },
            wait: (0, 0),
            rate: 0.0,
            stream: StreamShape::default(),
            phase: 0,
            arrivals: 0,
            session_traces: 0,
            expected: last.map_or(0, |last| last.chunks),
        }
    }

    /// Returns the plan in use; `None` if the index is a pool.
    pub(in crate::identify) fn plan(&self) -> Option<Plan> {
        (!self.is_pool()).then_some(self.plan)
    }

    /// Returns the records of a window; `None` if the index is a pool whose windows follow from the mean run.
    pub(in crate::identify) fn window(&self) -> Option<u32> {
        self.plan().map_or_else(|| self.pool.and_then(|pool| pool.window), |plan| Some(plan.window()))
    }

    fn is_pool(&self) -> bool {
        self.pool.is_some_and(|pool| pool.is_used)
    }

    /// Returns the plan for the next session, if the stream of this one had one phase.
    pub(in crate::identify) fn last_plan(&self) -> Option<LastPlan> {
        let has_one_phase = !self.is_pool() && 1 < self.phase && self.phase == self.session_traces;
        has_one_phase.then_some(LastPlan { plan: self.plan, chunks: self.arrivals })
    }

    /// Returns for how many traces like the newest one a plan is chosen: as many as there were in this phase, or the rest of a
    /// session like the one before. `count`: traces that a decision looks at.
    fn horizon(&self, count: f64, newest: u64) -> f64 {
        let is_as_expected = self.phase == self.session_traces;
        let left = if is_as_expected { self.expected.saturating_sub(self.arrivals) } else { 0 };
        count.max(f64::from(self.phase)).max(left as f64 / newest.max(1) as f64)
    }

    /// Drops the oldest trace: what it has read is in the cache.
    fn drop_oldest(&mut self) {
        let oldest = self.traces.remove(0);
        for run in oldest.runs.iter().filter(|run| !run.is_nowhere()) {
            self.before.use_at(run.start);
        }
        for (start, end) in oldest.reads {
            self.before.add(start, end);
        }
    }

    /// Returns true if the plan has been the best one in several decisions.
    pub(in crate::identify) fn is_steady(&self) -> bool {
        self.wait.1 == WAIT_MAX
    }

    /// Returns true if a trace is long enough for a decision. Where little can be saved, a decision waits for more runs.
    pub(in crate::identify) fn is_due(trace: &Trace, is_expensive: impl FnOnce() -> bool) -> bool {
        let has_evidence = TRACE_CHUNKS_MAX <= trace.arrivals || RUNS_MIN <= trace.runs.len();
        TRACE_CHUNKS <= trace.arrivals && (has_evidence || is_expensive())
    }

    /// Takes the stream since the last decision, and decides on the plan.
    pub(in crate::identify) fn decide(&mut self, trace: Trace, situation: &Situation) {
        let of_stream = trace.arrivals as f64 * PLANNING_PER_CHUNK;
        self.credit = (self.credit + of_stream + situation.spent * PLANNING_SHARE).min(CREDIT_MAX);
        self.plan.pool = self.plan.pool.min(situation.limits.pool).max(1);
        self.before.set_capacity(situation.cache_records);
        let Some(first) = trace.runs.first().map(|run| run.sequence) else { return };
        if self.traces.last().is_some_and(|last| first < last.end) {
            // Another session has begun.
            self.traces.clear();
            (self.phase, self.arrivals, self.session_traces) = (0, 0, 0);
            self.shadows = Shadows::new(&situation.limits);
        }
        let stream = StreamShape::of(&trace);
        self.phase = if self.phase == 0 || stream.is_like(&self.stream) { self.phase + 1 } else { 1 };
        if let Some(pool) = self.pool.as_mut().filter(|_| self.phase == 1) {
            pool.factor = 1.0;
        }
        (self.stream, self.arrivals, self.session_traces) =
            (stream, self.arrivals + trace.arrivals, self.session_traces + 1);
        let arrivals = trace.arrivals.max(1) as f64;
        self.shadows.allow(situation.spent * PLANNING_SHARE, CREDIT_MAX);
        let Situation { costs, limits, log_end, cache_records, .. } = situation;
        let spent = measured(&trace, situation, self.is_pool());
        self.shadows.follow((&trace, spent), costs, limits, (*log_end, *cache_records), VISIT_SECONDS);
        self.traces.push(trace);
        let newest = &self.traces[self.traces.len() - 1..];
        let rate = if self.is_pool() {
            // What overlaps with the work of the processor counts, too: a pool with other windows may read less.
            (situation.spent + situation.worked) / situation.chunks.max(newest[0].arrivals).max(1) as f64
        } else {
            let done = self.replay(self.plan, newest, situation, f64::INFINITY);
            self.credit -= done.visits as f64 * VISIT_SECONDS;
            done.seconds / arrivals
        };
        while TRACES.min(self.phase as usize) < self.traces.len() {
            self.drop_oldest();
        }
        let is_steady = rate <= self.rate * RATE_CHANGE && self.rate <= rate * RATE_CHANGE;
        self.wait.0 = if is_steady { self.wait.0.saturating_sub(1) } else { 0 };
        // One trace does not tell what a plan costs at first from what it costs further on.
        let is_held = self.expected != 0 && self.session_traces == 1;
        if let Some(plan) = self.shadows.to_follow() {
            self.follow(plan, rate);
        } else if self.wait.0 == 0 && RATE_MIN < rate && 0.0 < self.credit && !is_held {
            let before = self.plan();
            self.choose(situation);
            let wait = if before == self.plan() { (2 * self.wait.1).clamp(1, WAIT_MAX) } else { 1 };
            self.wait = (wait, wait);
            self.rate = rate;
        }
    }

    /// Changes to the plan of a shadow. `rate`: what the plan before it took for a chunk.
    fn follow(&mut self, plan: Plan, rate: f64) {
        if self.plan() != Some(plan) {
            self.plan = plan;
            self.pool = self.pool.map(|pool| PoolState { is_used: false, ..pool });
            self.wait = (1, 1);
        }
        self.rate = rate;
    }

    fn replay(&self, plan: Plan, traces: &[Trace], situation: &Situation, seconds_max: f64) -> Replayed {
        let Situation { costs, limits, log_end, .. } = situation;
        replay(plan, traces, &self.before, costs, (limits, *log_end, seconds_max))
    }

    /// Returns the newest traces, without the beginning of the oldest one if they have too many runs.
    fn recent(&self) -> Vec<Trace> {
        let mut left = RECENT_RUNS_MAX;
        let mut recent = Vec::with_capacity(self.traces.len());
        for trace in self.traces.iter().rev() {
            let taken = left.min(trace.runs.len());
            left -= taken;
            let runs = trace.runs[trace.runs.len() - taken..].to_vec();
            let arrivals = trace.arrivals * taken as u64 / trace.runs.len().max(1) as u64;
            recent.push(Trace { runs, arrivals, end: trace.end, reads: Vec::new() });
            if left == 0 {
                break;
            }
        }
        recent.reverse();
        recent
    }

    /// Changes to the best plan, or to the pool, if that saves enough.
    fn choose(&mut self, situation: &Situation) {
        let traces = self.recent();
        let newest = traces.last().map_or(0, |trace| trace.arrivals);
        let earlier = traces.iter().map(|trace| trace.arrivals).sum::<u64>() as f64 / newest.max(1) as f64 - 1.0;
        let horizon = self.horizon(earlier + 1.0, newest);
        let mut search = Search { traces: &traces, earlier, horizon, own: self.plan(), tried: Vec::new() };
        let is_option = |pool: &PoolState| pool.is_used || pool_pays(&situation.limits, situation.log_end);
        let Some(mut pool) = self.pool.filter(is_option) else {
            let current = search.cost(self, situation, self.plan, f64::INFINITY);
            let (best, least) = search.descend(self, situation, self.plan, current);
            if least < current * (1.0 - SAVING_MIN) {
                self.plan = best;
            }
            return;
        };
        let run = mean_run(&traces);
        if pool.is_used {
            pool.window = search.window_of_pool(self, situation, &pool, run);
            self.pool = Some(pool);
        }
        let like = situation.limits.like_pool(pool.candidates, run, pool.window);
        let recorded = self.traces.last().map_or(0, Trace::recorded) as f64;
        let of_chunks = horizon * recorded * CHUNK_SECONDS;
        let current = match (self.is_pool(), self.traces.last()) {
            (true, Some(newest)) => horizon * measured_pool(newest, situation),
            _ => search.cost(self, situation, self.plan, f64::INFINITY),
        };
        // What is saved is a share of the whole time.
        let saving_min = if pool.is_used { LEAVING_MIN } else { SAVING_MIN };
        let enough = current - saving_min * (current + of_chunks);
        // One trace is not enough where little can be saved.
        let is_hasty = pool.is_used && current < of_chunks && (self.phase as usize) < TRACES;
        if enough <= 0.0 || is_hasty {
            return;
        }
        if pool.is_used {
            let (best, least) = search.descend(self, situation, like, enough);
            if least < enough {
                let replayed = horizon * self.replayed_pool(like, &traces, situation);
                pool.factor = ((current + of_chunks) / (replayed + of_chunks)).clamp(1.0, POOL_FACTOR_MAX);
                (self.plan, pool.is_used) = (best, false);
            }
        } else {
            let of_pool = horizon * self.replayed_pool(like, &traces, situation) * pool.factor;
            let (best, least) = search.descend(self, situation, self.plan, current);
            if of_pool <= least.min(enough) {
                pool.is_used = true;
            } else if least < enough {
                self.plan = best;
            }
        }
        self.pool = Some(pool);
    }

    /// Returns the seconds that a pool would take for the last of some traces, as [`pool_seconds`] counts them. `like`: the plan that is
    /// most like it.
    fn replayed_pool(&mut self, like: Plan, traces: &[Trace], situation: &Situation) -> f64 {
        let done = self.replay(like, traces, situation, f64::INFINITY);
        self.credit -= done.visits as f64 * VISIT_SECONDS;
        let chunks = self.traces.last().map_or(0, Trace::recorded) as f64;
        pool_seconds(done.last_device_seconds, done.last_seconds - done.last_device_seconds, chunks)
    }
}

/// Returns the seconds that a pool has taken for the recorded chunks of a trace, as [`pool_seconds`] counts them.
fn measured_pool(trace: &Trace, situation: &Situation) -> f64 {
    let recorded = trace.recorded() as f64;
    let share = recorded / situation.chunks.max(trace.arrivals).max(1) as f64;
    let (of_device, of_processor) = (situation.spent * share, situation.worked * share);
    if situation.is_immediate { of_device + of_processor } else { pool_seconds(of_device, of_processor, recorded) }
}

/// Returns the seconds that an index has spent on the recorded chunks of a trace, without [`CHUNK_SECONDS`] for each of them.
fn measured(trace: &Trace, situation: &Situation, is_pool: bool) -> f64 {
    if is_pool {
        return measured_pool(trace, situation);
    }
    let share = trace.recorded() as f64 / situation.chunks.max(trace.arrivals).max(1) as f64;
    (situation.spent + situation.worked) * share
}

/// Returns the mean run of the duplicates of some traces.
fn mean_run(traces: &[Trace]) -> f64 {
    let runs = traces.iter().flat_map(|trace| &trace.runs).filter(|run| !run.is_nowhere());
    let (count, chunks) = runs.fold((0.0, 0.0), |(count, chunks), run| (count + 1.0, chunks + f64::from(run.len)));
    if count == 0.0 { 0.0 } else { chunks / count }
}

/// A search for the plan that would take least on some traces, and the plans that it has tried.
struct Search<'a> {
    traces: &'a [Trace],
    /// Chunks of the traces before the newest one, over those of that one.
    earlier: f64,
    /// For how many traces like the newest one the plan is chosen.
    horizon: f64,
    /// The plan in use.
    own: Option<Plan>,
    tried: Vec<(Plan, f64)>,
}

impl Search<'_> {
    /// Returns the cost of a plan; if that is more than `seconds_max`, perhaps only something above it.
    fn cost(&mut self, planner: &mut Planner, situation: &Situation, plan: Plan, seconds_max: f64) -> f64 {
        if let Some((_, cost)) = self.tried.iter().find(|(known, _)| *known == plan) {
            return *cost;
        }
        let done = planner.replay(plan, self.traces, situation, seconds_max);
        planner.credit -= done.visits as f64 * VISIT_SECONDS;
        // What a plan takes at first is spent already if it is the current one.
        let first = (done.seconds - done.last_seconds - self.earlier * done.last_seconds).max(0.0);
        let cost = self.horizon * done.last_seconds + if Some(plan) == self.own { 0.0 } else { first };
        let cost = if seconds_max < done.seconds { cost.max(done.seconds) } else { cost };
        self.tried.push((plan, cost));
        cost
    }

    /// Returns the records of the windows with which a pool would take least time of device and processor together: a neighbor of its own,
    /// or a long one.
    fn window_of_pool(
        &mut self,
        planner: &mut Planner,
        situation: &Situation,
        pool: &PoolState,
        run: f64,
    ) -> Option<u32> {
        let limits = &situation.limits;
        let plan = |window| limits.like_pool(pool.candidates, run, window);
        let current = plan(pool.window);
        self.own = Some(current);
        let (mut best, mut least) = (pool.window, self.cost(planner, situation, current, f64::INFINITY));
        let neighbors = limits.neighbors(&current).into_iter().map(|plan| plan.window());
        let others: Vec<u32> = neighbors.filter(|window| *window != current.window()).chain(POOL_WINDOWS).collect();
        for window in others {
            let cost = self.cost(planner, situation, plan(Some(window)), least);
            if cost < least * (1.0 - SAVING_MIN) {
                (best, least) = (Some(window), cost);
            }
        }
        self.own = None;
        best
    }

    /// Descends from a plan, or from an archetype that is better, to the best neighbor, and so on. Returns the plan that it ends at,
    /// and its cost: less than `least`, or else the plan that it began with.
    fn descend(&mut self, planner: &mut Planner, situation: &Situation, start: Plan, mut least: f64) -> (Plan, f64) {
        let mut best = start;
        let mut candidates = situation.limits.archetypes().to_vec();
        candidates.push(start);
        candidates.extend(situation.limits.neighbors(&best));
        for _ in 0..STEPS_MAX {
            let before = least;
            for plan in candidates {
                let cost = self.cost(planner, situation, plan, least);
                if cost < least {
                    (best, least) = (plan, cost);
                }
            }
            if before <= least {
                break;
            }
            candidates = situation.limits.neighbors(&best);
        }
        (best, least)
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
