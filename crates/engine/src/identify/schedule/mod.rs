//! Schedules: when pending chunks are looked up, and which of them.
//!
//! A [`Schedule`] is told the state of the index after each new pending chunk and after each batch of chunks, and returns
//! what to do. It reads nothing and changes nothing; `exact` carries decisions out.

use std::fmt::Debug;

use crate::identify::exact::arrivals::RunMeter;
use crate::identify::options::{self, IndexOptions};
use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::plan::{Plan, PlanLimits};
use crate::identify::schedule::planner::{LastPlan, Situation};
use crate::identify::schedule::rounds::Rounds;
use crate::identify::schedule::trace::Trace;

pub(in crate::identify) mod adaptive;
pub(in crate::identify) mod cost;
pub(in crate::identify) mod coverage;
pub(in crate::identify) mod cycle;
mod eager;
mod lazy;
pub(in crate::identify) mod plan;
pub(in crate::identify) mod planner;
pub(in crate::identify) mod pool;
mod replay;
pub(in crate::identify) mod rounds;
pub(in crate::identify) mod shadow;
pub(in crate::identify) mod trace;

/// Occasion of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Event {
    /// A chunk became pending.
    Added {
        /// Its bucket.
        bucket: u32,
        /// Different pending chunks of the bucket.
        len: usize,
    },
    /// A batch of chunks has arrived. The schedule is asked again after each decision other than [`Decision::Wait`].
    BatchEnd,
}

/// Limits of pending chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct PendingLimits {
    /// Most pending chunks, followers included.
    pub(in crate::identify) chunks: usize,
    /// Most bytes of them.
    pub(in crate::identify) bytes: usize,
    /// Most chunks that arrive while one is pending.
    pub(in crate::identify) age: u64,
}

/// State of an index that a schedule decides by.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct View<'a> {
    pub(in crate::identify) event: Event,
    /// Pending chunks, followers included.
    pub(in crate::identify) pending: usize,
    /// Bytes of them.
    pub(in crate::identify) pending_bytes: usize,
    /// Chunks that have arrived since the oldest pending one; only known at the end of a batch.
    pub(in crate::identify) oldest_age: Option<u64>,
    /// Chunks that have arrived since the last round began.
    pub(in crate::identify) since_round: u64,
    /// Rounds so far, and the chunks since the last one.
    pub(in crate::identify) rounds: &'a Rounds,
    /// True if no lookup of the first chunk of the current run of pending chunks has begun.
    pub(in crate::identify) run_head_waits: bool,
    /// Statistics of duplicate runs.
    pub(in crate::identify) runs: &'a RunMeter,
    /// True if chunks are looked up as they arrive.
    pub(in crate::identify) is_immediate: bool,
    /// Limits of pending chunks.
    pub(in crate::identify) limits: PendingLimits,
}

impl View<'_> {
    /// Returns true if more is pending than may be, or too long.
    fn exceeds_limits(&self) -> bool {
        self.is_too_old() || self.oldest_age.is_some() && self.is_too_much()
    }

    fn is_too_old(&self) -> bool {
        self.oldest_age.is_some_and(|age| self.limits.age < age)
    }

    fn is_too_much(&self) -> bool {
        self.limits.chunks < self.pending || self.limits.bytes < self.pending_bytes
    }
}

/// Pending chunks to look up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Selection {
    /// Those of a bucket.
    Bucket(u32),
    /// Those of the bucket of the oldest chunk.
    OldestBucket,
    /// Those of the bucket with the most chunks.
    FullestBucket,
    /// The next round, in the background.
    Round,
    /// The chunks that the last round has looked up, and the windows that it has read; if no round is under way, all in rounds.
    LastRound,
    /// All, in rounds.
    All,
    /// The first chunk of the current run.
    RunHead,
}

/// Next step of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Decision {
    /// Wait for more chunks.
    Wait,
    /// Look chunks up.
    LookUp(Selection),
    /// Look chunks up as they arrive from now on, or let them wait again.
    Switch {
        /// True for lookups at arrival.
        is_immediate: bool,
    },
}

/// When pending chunks are looked up.
pub(in crate::identify) trait Schedule: Debug + Send {
    /// Returns what to do.
    fn next(&mut self, view: &View<'_>) -> Decision;

    /// Returns the plan that the schedule follows, if it does: it says which chunks rounds look up, and what hits read.
    fn plan(&self) -> Option<Plan> {
        None
    }

    /// Returns how many records a hit reads, if the schedule says so.
    fn window(&self) -> Option<u32> {
        None
    }

    /// Returns the plan that the next session should start with, if there is reason to think that it suits it.
    fn last_plan(&self) -> Option<LastPlan> {
        None
    }

    /// Takes the recent stream; only a schedule that plans needs it.
    fn learn(&mut self, trace: Trace, situation: &Situation) {
        let _ = (trace, situation);
    }
}

/// Makes the schedule that options describe, for a device with some costs. One that plans starts with `last`, the last plan of
/// an earlier session, if there is one. `stored`: records of the log.
pub(in crate::identify) fn of(
    options: &IndexOptions,
    device: DeviceCosts,
    limits: &PlanLimits,
    stored: u64,
    last: Option<LastPlan>,
) -> Box<dyn Schedule> {
    match options.schedule {
        options::Schedule::Eager => Box::new(eager::Eager),
        options::Schedule::Lazy { threshold } | options::Schedule::Exhaustive { threshold } => {
            Box::new(lazy::Lazy { threshold: threshold.max(1) as usize })
        }
        options::Schedule::Pool { candidates } => Box::new(pool::Pool::new(candidates)),
        options::Schedule::Adaptive => {
            let candidates = u32::try_from(options.threshold()).unwrap_or(u32::MAX);
            Box::new(adaptive::Adaptive::new(device, limits, candidates, stored, last))
        }
    }
}
