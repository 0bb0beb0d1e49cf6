//! The pool schedule: rounds of lookups in the background.
//!
//! A lookup round probes the first pending chunk of each run; the log window around each hit usually resolves the rest of
//! the run. Later rounds probe the chunks that are left, in shorter strides. Lookups and windows run in the background.

use crate::identify::schedule::{Decision, Event, Schedule, Selection, View};

/// Pending neighbors that make a run of duplicates likely: so many false positives seldom follow each other.
const RUN_BEGUN: u64 = 16;
/// Shortest mean run of duplicates at which the first chunk of a run is looked up by itself.
const RUN_AHEAD_MIN: u64 = 128;

/// The pool schedule.
#[derive(Debug)]
pub(super) struct Pool {
    /// Different pending chunks that start a round.
    threshold: usize,
}

impl Pool {
    pub(super) fn new(candidates: u32) -> Self {
        Self { threshold: candidates.max(1) as usize }
    }

    /// Returns true if a run of pending chunks has begun, so that its first chunk is to be looked up by itself. Chunks that
    /// arrive later then find the log window in the cache and need not wait.
    pub(super) fn looks_ahead(view: &View<'_>) -> bool {
        view.rounds.run.len == RUN_BEGUN && RUN_AHEAD_MIN <= view.runs.mean_run() && view.run_head_waits
    }

    /// Returns true if a round is due although few chunks are pending: the last one was long ago. Six rounds look every chunk
    /// up, so none becomes too old.
    pub(super) fn is_overdue(view: &View<'_>) -> bool {
        view.pending != 0 && (view.limits.age / 8 < view.since_round || view.limits.bytes / 2 < view.rounds.fresh_bytes)
    }
}

impl Schedule for Pool {
    fn next(&mut self, view: &View<'_>) -> Decision {
        // More rounds are needed in dense runs, so rounds are smaller.
        let threshold = self.threshold >> u32::from(view.rounds.is_dense);
        match view.event {
            Event::Added { .. } if threshold <= view.rounds.fresh => Decision::LookUp(Selection::Round),
            Event::Added { .. } if Self::looks_ahead(view) => Decision::LookUp(Selection::RunHead),
            Event::BatchEnd if view.exceeds_limits() => Decision::LookUp(Selection::LastRound),
            Event::BatchEnd if Self::is_overdue(view) => Decision::LookUp(Selection::Round),
            Event::Added { .. } | Event::BatchEnd => Decision::Wait,
        }
    }
}
