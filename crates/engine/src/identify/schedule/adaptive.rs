//! The adaptive schedule: it follows the plan that would have cost least on the recent stream (decision 0028).
//!
//! On a device that serves many reads at the same time, rounds run in the background, as those of a pool. On others a round
//! waits for its reads: then each knows what the ones before it have resolved.

use crate::identify::schedule::cost::DeviceCosts;
use crate::identify::schedule::plan::{Plan, PlanLimits};
use crate::identify::schedule::planner::{Planner, Situation};
use crate::identify::schedule::pool::Pool;
use crate::identify::schedule::trace::Trace;
use crate::identify::schedule::{Decision, Event, Schedule, Selection, View};

/// The adaptive schedule.
#[derive(Debug)]
pub(super) struct Adaptive {
    planner: Planner,
    /// True if rounds run in the background.
    is_deep: bool,
}

impl Adaptive {
    pub(super) fn new(device: DeviceCosts, limits: &PlanLimits) -> Self {
        Self { planner: Planner::new(device, limits), is_deep: device.is_deep() }
    }
}

impl Schedule for Adaptive {
    fn next(&mut self, view: &View<'_>) -> Decision {
        let Plan { pool, .. } = self.planner.plan;
        let (round, limit) =
            if self.is_deep { (Selection::Round, Selection::LastRound) } else { (Selection::All, Selection::All) };
        match view.event {
            Event::Added { .. } if pool as usize <= view.rounds.fresh => Decision::LookUp(round),
            Event::BatchEnd if view.exceeds_limits() => Decision::LookUp(limit),
            Event::BatchEnd if self.is_deep && Pool::is_overdue(view) => Decision::LookUp(Selection::Round),
            Event::BatchEnd if view.is_immediate != (pool == 1) => Decision::Switch { is_immediate: pool == 1 },
            Event::Added { .. } | Event::BatchEnd => Decision::Wait,
        }
    }

    fn plan(&self) -> Option<Plan> {
        Some(self.planner.plan)
    }

    fn learn(&mut self, trace: Trace, situation: &Situation) {
        self.planner.decide(trace, situation);
    }
}
