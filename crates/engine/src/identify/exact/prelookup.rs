//! The decision whether an arriving chunk probes the cache.

use crate::identify::options::Prelookup;

/// Excess of misses over hits at which [`Prelookup::Adaptive`] stops to probe.
const NET_MISSES_MAX: i32 = 10;

/// The decision, and the counts that it depends on.
#[derive(Debug)]
pub(in crate::identify) struct PrelookupState {
    rule: Prelookup,
    /// Whether arriving chunks probe the cache.
    pub(crate) is_on: bool,
    net_misses: i32,
}

impl PrelookupState {
    pub(crate) fn new(rule: Prelookup) -> Self {
        Self { rule, is_on: rule == Prelookup::Always, net_misses: 0 }
    }

    pub(in crate::identify) fn note_hit(&mut self) {
        self.net_misses = (self.net_misses - 1).max(0);
    }

    pub(in crate::identify) fn note_miss(&mut self) {
        if self.rule == Prelookup::Adaptive {
            self.net_misses += 1;
            self.is_on = self.net_misses < NET_MISSES_MAX;
        }
    }

    /// Notes whether the last chunk of a lookup batch was a duplicate: then the cache may hold its successors.
    pub(in crate::identify) fn note_last_of_batch(&mut self, is_duplicate: bool) {
        if self.rule == Prelookup::Adaptive && is_duplicate {
            (self.is_on, self.net_misses) = (true, 0);
        }
    }
}
