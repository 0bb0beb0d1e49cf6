//! The adaptive schedule: a pool, or the plan that would have cost least on the recent stream (decisions 0028 and 0057).
//!
//! On a device that serves many reads at the same time, it begins as a pool if many chunks are stored: what the pool reads in the background overlaps with the
//! work of the processor. It leaves the pool once a plan would take less time although the stream waits for each of its rounds.
//!
//! A round of a plan waits for its reads, so that the next one knows what it has resolved. If windows resolve nothing for long, no round
//! depends on another. Then, on such a device, rounds run in the background, too.

use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::plan::{Plan, PlanLimits};
use crate::identify::schedule::planner::{LastPlan, Planner, Situation};
use crate::identify::schedule::pool::Pool;
use crate::identify::schedule::trace::Trace;
use crate::identify::schedule::{Decision, Event, Schedule, Selection, View};

/// Pools that are pending at the same time if rounds run in the background: one that fills, one that is looked up, and one
/// whose answers are taken.
pub(in crate::identify) const POOLS_PENDING: usize = 3;

/// Duplicates for each unavoidable lookup at which a pool looks chunks up as they arrive, unless there are more false positives than
/// runs. Half of them end it.
const RUN_IMMEDIATELY: u64 = 4_096;
/// Most false positives for each run of duplicates with lookups at arrival: the stream waits for each.
const FALSE_POSITIVES_IMMEDIATE: u64 = 1;

/// The adaptive schedule.
#[derive(Debug)]
pub(super) struct Adaptive {
    planner: Planner,
    pool: Pool,
    /// True if the device serves many reads at the same time.
    is_deep: bool,
}

impl Adaptive {
    /// `candidates`: different pending chunks that start a round of the pool. `stored`: records of the log.
    pub(super) fn new(
        device: DeviceCosts,
        limits: &PlanLimits,
        candidates: u32,
        stored: u64,
        last: Option<LastPlan>,
    ) -> Self {
        let is_deep = device.is_deep();
        let planner = Planner::new(limits, is_deep.then_some(candidates), stored, last);
        Self { planner, pool: Pool::new(candidates), is_deep }
    }

    /// Returns what a pool does that looks chunks up as they arrive while duplicates come in long runs.
    fn next_of_pool(&mut self, view: &View<'_>) -> Decision {
        let decision = self.pool.next(view);
        if decision != Decision::Wait || view.event != Event::BatchEnd {
            return decision;
        }
        let hold = u32::from(view.is_immediate);
        let is_immediate = !view.runs.is_blank()
            && RUN_IMMEDIATELY >> hold <= view.runs.duplicates_per_lookup()
            && view.runs.false_positives_per_run() <= FALSE_POSITIVES_IMMEDIATE << hold;
        if view.is_immediate == is_immediate { Decision::Wait } else { Decision::Switch { is_immediate } }
    }

    fn next_of_plan(&self, plan: &Plan, view: &View<'_>) -> Decision {
        let in_background = self.is_deep && plan.window() == 0 && self.planner.is_steady();
        let (round, limit, divisor) = if in_background {
            (Selection::Round, Selection::LastRound, POOLS_PENDING)
        } else {
            (Selection::All, Selection::All, 1)
        };
        let is_immediate = plan.pool == 1;
        match view.event {
            Event::Added { .. } if plan.pool as usize / divisor <= view.rounds.fresh => Decision::LookUp(round),
            Event::BatchEnd if view.exceeds_limits() => Decision::LookUp(limit),
            Event::BatchEnd if in_background && Pool::is_overdue(view) => Decision::LookUp(Selection::Round),
            Event::BatchEnd if view.is_immediate != is_immediate => Decision::Switch { is_immediate },
            Event::Added { .. } | Event::BatchEnd => Decision::Wait,
        }
    }
}

impl Schedule for Adaptive {
    fn next(&mut self, view: &View<'_>) -> Decision {
        match self.planner.plan() {
            Some(plan) => self.next_of_plan(&plan, view),
            None => self.next_of_pool(view),
        }
    }

    fn plan(&self) -> Option<Plan> {
        self.planner.plan()
    }

    fn last_plan(&self) -> Option<LastPlan> {
        self.planner.last_plan()
    }

    fn learn(&mut self, trace: Trace, situation: &Situation) {
        self.planner.decide(trace, situation);
    }
}
