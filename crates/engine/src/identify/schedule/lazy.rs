//! Lookups of a bucket of pending chunks at a time (Ma et al., section 3).

use crate::identify::schedule::{Decision, Event, Schedule, Selection, View};

/// The lazy and the exhaustive schedule.
#[derive(Debug)]
pub(super) struct Lazy {
    /// Different pending chunks of a bucket that start its lookup.
    pub(super) threshold: usize,
}

impl Schedule for Lazy {
    fn next(&mut self, view: &View<'_>) -> Decision {
        match view.event {
            Event::Added { bucket, len } if self.threshold <= len => Decision::LookUp(Selection::Bucket(bucket)),
            Event::BatchEnd if view.is_too_old() => Decision::LookUp(Selection::OldestBucket),
            Event::BatchEnd if view.exceeds_limits() => Decision::LookUp(Selection::FullestBucket),
            Event::Added { .. } | Event::BatchEnd => Decision::Wait,
        }
    }
}
