//! Shadows: plans that are carried out on the whole stream of a session without a read, while another one is in use.
//!
//! A replay of the recent stream begins with the cache as it was and ends with the stream. It charges a plan for all of a long window,
//! though most of the window serves what has yet to arrive. A shadow keeps its own cache and waiting chunks from trace to trace, so that
//! what it has spent is what its plan would have spent. The planner compares that with what the device took in fact.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::schedule::cost::{CHUNK_SECONDS, LookupCosts};
use crate::identify::schedule::coverage::{Coverage, coverage_bytes};
use crate::identify::schedule::plan::{Plan, PlanLimits, SHADOWS};
use crate::identify::schedule::replay::{Replay, Waiting};
use crate::identify::schedule::trace::{Trace, TraceRun};

/// Most ranges of the cache of a shadow.
const RANGES_MAX: usize = 256;
/// Runs of waiting chunks from which on a shadow looks them up, as if as many more shared the reads as may wait.
const WAITING_RUNS_MAX: usize = 512;
/// Chunks of the stream after which what was spent before counts half.
const HALVED_AFTER: f64 = 16_384.0;
/// Factor by which another shadow must have spent less to lead.
const LEAD: f64 = 0.9;
/// How many times as much as the leader the index must have spent to follow it, and how many times as much it may have spent to choose
/// freely again. The time of the processor for each chunk counts on both sides.
const BEHIND: f64 = 1.3;
const ABREAST: f64 = 1.03;
/// Memory of the shadows of a planner. A run of the stream may be divided where the cache begins and ends.
pub(in crate::identify) const SHADOWS_BYTES: usize =
    SHADOWS * (coverage_bytes(RANGES_MAX) + 2 * WAITING_RUNS_MAX * size_of::<TraceRun>());

/// Seconds that were spent on the stream, of which the newer part counts more.
#[derive(Clone, Copy, Debug, Default)]
struct Spending {
    seconds: f64,
    chunks: f64,
}

impl Spending {
    fn add(&mut self, seconds: f64, chunks: u64) {
        let kept = HALVED_AFTER / (HALVED_AFTER + chunks as f64);
        self.seconds = self.seconds * kept + seconds;
        self.chunks = self.chunks * kept + chunks as f64;
    }

    /// Returns the seconds of a chunk, with those that each takes whatever the plan is.
    fn rate(&self) -> f64 {
        self.seconds / self.chunks.max(1.0) + CHUNK_SECONDS
    }
}

/// A plan that is carried out on the stream of a session without a read.
#[derive(Debug)]
struct Shadow {
    plan: Plan,
    waiting: Waiting,
    cover: Coverage,
    spending: Spending,
}

impl Shadow {
    /// Starts with an empty cache, as a session does.
    fn new(plan: Plan) -> Self {
        let cover = Coverage::with_ranges(0, RANGES_MAX);
        Self { plan, waiting: Waiting::default(), cover, spending: Spending::default() }
    }

    /// Carries the plan out on the next trace. Returns the runs that were visited.
    fn follow(
        &mut self,
        trace: &Trace,
        costs: &LookupCosts,
        limits: &PlanLimits,
        (log_end, cache_records): (u64, u64),
    ) -> u64 {
        let empty = Coverage::new(0);
        self.cover.set_capacity(cache_records);
        let cover = std::mem::replace(&mut self.cover, Coverage::new(0));
        let waiting = std::mem::take(&mut self.waiting);
        let mut replay = Replay::new(self.plan, costs, limits, (cover, &empty), log_end, waiting);
        for run in &trace.runs {
            replay.take(*run, limits.age);
            if WAITING_RUNS_MAX <= replay.waiting_runs() {
                replay.resolve_share(trace.arrivals, limits.age);
            }
        }
        let done = replay.done;
        (self.cover, self.waiting) = replay.into_parts();
        self.spending.add(done.seconds, trace.recorded());
        done.visits
    }
}

/// The shadows of a planner, and what the index has spent on the same stream.
#[derive(Debug)]
pub(super) struct Shadows {
    all: Vec<Shadow>,
    /// The one that has spent least.
    leader: usize,
    spending: Spending,
    /// True if the index has spent so much more than the leader that it follows it.
    is_behind: bool,
    /// Time that shadows may take, in seconds.
    credit: f64,
}

impl Shadows {
    /// Starts with the shadows of a session, which may take no time yet.
    pub(super) fn new(limits: &PlanLimits) -> Self {
        let all = limits.shadows().into_iter().map(Shadow::new).collect();
        Self { all, leader: 0, spending: Spending::default(), is_behind: false, credit: 0.0 }
    }

    /// Adds to the seconds that shadows may take, up to a most.
    pub(super) fn allow(&mut self, seconds: f64, most: f64) {
        self.credit = (self.credit + seconds).min(most);
    }

    /// Carries the plans out on the next trace, on which the index has spent `spent` seconds without [`CHUNK_SECONDS`] for each chunk, unless
    /// shadows have taken too much time. `visit`: seconds that a visit of a run takes. `log_end` and `cache_records` are those of the index.
    pub(super) fn follow(
        &mut self,
        (trace, spent): (&Trace, f64),
        costs: &LookupCosts,
        limits: &PlanLimits,
        (log_end, cache_records): (u64, u64),
        visit: f64,
    ) {
        if self.credit <= 0.0 || self.all.is_empty() {
            return;
        }
        for shadow in &mut self.all {
            let visits = shadow.follow(trace, costs, limits, (log_end, cache_records));
            self.credit -= visits as f64 * visit;
        }
        self.spending.add(spent, trace.recorded());
        let rate = |index: usize| self.all[index].spending.rate();
        for index in 0..self.all.len() {
            if rate(index) < LEAD * rate(self.leader) {
                self.leader = index;
            }
        }
        let factor = if self.is_behind { ABREAST } else { BEHIND };
        self.is_behind = factor * rate(self.leader) < self.spending.rate();
    }

    /// Returns the plan of the leader if the index is to follow it.
    pub(super) fn to_follow(&self) -> Option<Plan> {
        self.is_behind.then(|| self.all[self.leader].plan)
    }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
