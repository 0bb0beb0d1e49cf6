//! Whether the cache is asked for a chunk as it arrives.

use crate::index::options::Prelookup;

/// Misses in excess of hits after which [`Prelookup::Adaptive`] gives up.
const NET_MISSES_MAX: i32 = 10;

/// The decision, and what it depends on.
#[derive(Debug)]
pub(super) struct PrelookupState {
    rule: Prelookup,
    is_on: bool,
    net_misses: i32,
}

impl PrelookupState {
    pub(super) fn new(rule: Prelookup) -> Self {
        Self { rule, is_on: rule == Prelookup::Always, net_misses: 0 }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn note_hit(&mut self) {
        self.net_misses = (self.net_misses - 1).max(0);
    }

    pub(super) fn note_miss(&mut self) {
        if self.rule == Prelookup::Adaptive {
            self.net_misses += 1;
            self.is_on = self.net_misses < NET_MISSES_MAX;
        }
    }

    /// Notes whether the last chunk of a batch that was looked up was a duplicate: then its successors may be cached.
    pub(super) fn note_last_of_batch(&mut self, is_duplicate: bool) {
        if self.rule == Prelookup::Adaptive && is_duplicate {
            (self.is_on, self.net_misses) = (true, 0);
        }
    }
}
