//! Input of a planning schedule: the recent stream, the costs of reads, and the limits of plans.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::exact::cache::BLOCK_RECORDS;
use crate::identify::exact::identify::Index;
use crate::identify::exact::plan_limits::{Work, plan_limits};
use crate::identify::schedule::cost::LookupCosts;
use crate::identify::schedule::planner::{Planner, Situation};
use crate::identify::schedule::trace::Trace;
use crate::kv::PAGE_BYTES;

impl Index {
    /// Returns about how long the device took for some reads.
    fn spent(&self, reads: f64, bytes: f64) -> f64 {
        // One read waits for the other as long as chunks are looked up as they arrive.
        if self.immediate {
            reads * self.device.batch(1.0, bytes / reads.max(1.0))
        } else {
            self.device.batch(reads, bytes)
        }
    }

    /// Lets the schedule learn from the recent stream, if there is enough of it.
    pub(in crate::identify) fn plan(&mut self) {
        if !self.arrivals.trace.as_ref().is_some_and(Planner::is_due) {
            return;
        }
        let trace = self.arrivals.trace.replace(Trace::default()).unwrap_or_default();
        let (table, log) = (self.store.entries.counters(), self.store.log.log.counters);
        let work = Work {
            lookups: self.counters.lookups,
            pages_needed: table.pages_needed,
            reads: table.lookup_reads + log.reads,
            bytes: table.lookup_pages * PAGE_BYTES as u64 + log.bytes_read,
        };
        let before = std::mem::replace(&mut self.planning.before, work);
        let pages = table.used_bytes / PAGE_BYTES as u64;
        // Before the first lookup, each key is taken to need a page, if there are any.
        let known = self.planning.note(work.lookups - before.lookups, work.pages_needed - before.pages_needed);
        let pages_per_key = known.unwrap_or(if pages == 0 { 0.0 } else { 1.0 });
        let left = self.store.filter.bytes_left();
        let mean_len = self.planning.mean_len();
        let situation = Situation {
            costs: LookupCosts { device: self.device, pages: pages as f64, pages_per_key },
            limits: plan_limits(&self.options, left, mean_len, self.unit_records()),
            cache_records: (self.cache.blocks_max() * BLOCK_RECORDS) as u64,
            log_end: self.store.log.log.next_position().0,
            spent: self.spent((work.reads - before.reads) as f64, (work.bytes - before.bytes) as f64),
        };
        let plan = self.schedule.plan();
        self.schedule.learn(trace, &situation);
        self.counters.schedule_changes += u64::from(self.schedule.plan() != plan);
    }
}
