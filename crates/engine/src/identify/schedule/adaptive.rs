//! A pool, but lookups at arrival while duplicates come in long runs (decision 0015).

use crate::identify::schedule::pool::Pool;
use crate::identify::schedule::{Decision, Event, Schedule, View};

/// Most false positives for each run of duplicates with immediate lookups: the stream waits for each.
const FALSE_POSITIVES_IMMEDIATE: u64 = 1;

/// The adaptive schedule.
#[derive(Debug)]
pub(super) struct Adaptive {
    pool: Pool,
    /// Duplicates for each unavoidable lookup at which lookups become immediate.
    run_immediately: u32,
}

impl Adaptive {
    pub(super) fn new(candidates: u32, run_immediately: u32) -> Self {
        Self { pool: Pool::new(candidates), run_immediately }
    }

    /// Returns true if chunks are to be looked up as they arrive. Hysteresis: this ends at half the yield at which it begins.
    fn wants_immediate(&self, view: &View<'_>) -> bool {
        let hold = u32::from(view.is_immediate);
        let limit = u64::from(self.run_immediately) >> hold;
        !view.runs.is_blank()
            && limit <= view.runs.duplicates_per_lookup()
            && view.runs.false_positives_per_run() <= FALSE_POSITIVES_IMMEDIATE << hold
    }
}

impl Schedule for Adaptive {
    fn next(&mut self, view: &View<'_>) -> Decision {
        let decision = self.pool.next(view);
        if decision != Decision::Wait || view.event != Event::BatchEnd {
            return decision;
        }
        let is_immediate = self.wants_immediate(view);
        if is_immediate == view.is_immediate { Decision::Wait } else { Decision::Switch { is_immediate } }
    }
}
