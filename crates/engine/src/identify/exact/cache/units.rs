//! A cache of units: containers or stream segments, each of which it holds once.

use crate::identify::exact::cache::{BLOCK_BYTES, Cache, START_BYTES, index};
use crate::identify::locality::arrival_log::LogExtent;
use crate::kv::Position;

impl Cache {
    /// Makes an empty cache hold units of a log, at most so many; `None`: windows, as before.
    pub(in crate::identify) fn of_units(mut self, units_max: Option<usize>) -> Self {
        if units_max.is_some() {
            // The start of each unit is kept, of short ones too.
            self.capacity = (self.capacity * BLOCK_BYTES / (BLOCK_BYTES + START_BYTES)).max(1);
        }
        self.units_max = units_max;
        self
    }

    /// Returns true if the unit that begins at a position is in the cache, which it makes the most recently used.
    pub(in crate::identify) fn touch_unit(&mut self, start: Position) -> bool {
        let known = self.starts.get(&start.0).copied();
        known.inspect(|window| self.touch(*window)).is_some()
    }

    /// Returns the unit that begins at a position, if it is in the cache; lengths of chunks are not kept and 0.
    pub(in crate::identify) fn unit(&self, start: Position) -> Option<LogExtent> {
        self.starts.get(&start.0).map(|window| self.records_of(&self.windows[index(*window)]))
    }

    /// Returns true if a unit is in the cache, which it makes the most recently used. One that was shorter then leaves.
    pub(super) fn holds_unit(&mut self, start: Position, len: usize) -> bool {
        let Some(&known) = self.starts.get(&start.0).filter(|_| self.units_max.is_some()) else { return false };
        if len <= index(self.windows[index(known)].len) {
            self.touch(known);
            return true;
        }
        self.evict(known);
        false
    }
}
