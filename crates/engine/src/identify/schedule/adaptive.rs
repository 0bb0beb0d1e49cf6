//! The adaptive schedule: it follows the plan that would have cost least on the recent stream (decision 0028).
//!
//! A round waits for its reads, so that the next one knows what it has resolved. If windows resolve nothing for long, no round depends
//! on another. Then, on a device that serves many reads at the same time, rounds run in the background, as those of a pool.

use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::plan::{Plan, PlanLimits};
use crate::identify::schedule::planner::{LastPlan, Planner, Situation};
use crate::identify::schedule::pool::Pool;
use crate::identify::schedule::trace::Trace;
use crate::identify::schedule::{Decision, Event, Schedule, Selection, View};

/// Pools that are pending at the same time if rounds run in the background: one that fills, one that is looked up, and one
/// whose answers are taken.
const POOLS_PENDING: usize = 3;

/// The adaptive schedule.
#[derive(Debug)]
pub(super) struct Adaptive {
    planner: Planner,
    /// True if the device serves many reads at the same time.
    is_deep: bool,
}

impl Adaptive {
    pub(super) fn new(device: DeviceCosts, limits: &PlanLimits, last: Option<LastPlan>) -> Self {
        Self { planner: Planner::new(limits, last), is_deep: device.is_deep() }
    }
}

impl Schedule for Adaptive {
    fn next(&mut self, view: &View<'_>) -> Decision {
        let plan = self.planner.plan;
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

    fn plan(&self) -> Option<Plan> {
        Some(self.planner.plan)
    }

    fn last_plan(&self) -> Option<LastPlan> {
        self.planner.last_plan()
    }

    fn learn(&mut self, trace: Trace, situation: &Situation) {
        self.planner.decide(trace, situation);
    }
}
