//! Lookups of each chunk as it arrives (Ma et al.'s baseline).

use crate::identify::schedule::{Decision, Schedule, View};

/// The eager schedule. No chunk is ever pending.
#[derive(Debug)]
pub(super) struct Eager;

impl Schedule for Eager {
    fn next(&mut self, view: &View<'_>) -> Decision {
        if view.is_immediate { Decision::Wait } else { Decision::Switch { is_immediate: true } }
    }
}
