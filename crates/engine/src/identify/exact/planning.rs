//! Input of a planning schedule: the recent stream, the costs of reads, and the limits of plans.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::exact::cache::BLOCK_RECORDS;
use crate::identify::exact::identify::Index;
use crate::identify::exact::plan_limits::{Work, plan_limits};
use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;
use crate::identify::schedule::cost::{KEY_SECONDS, LookupCosts, RECORD_SECONDS, WAIT_SECONDS};
use crate::identify::schedule::planner::{Planner, Situation, is_expensive};
use crate::identify::schedule::trace::Trace;
use crate::kv::PAGE_BYTES;

/// Pages that lookups must have needed, and how many times as many as until the last decision, for a decision before enough chunks have
/// arrived.
const SURPRISE_PAGES: f64 = 16.0;
const SURPRISE_FACTOR: f64 = 4.0;

/// Returns about how long the processor worked for chunks that wait, lookups and windows between two counts.
fn processor_seconds(before: &Work, work: &Work) -> f64 {
    let lookups = (work.lookups - before.lookups) as f64;
    let waited = lookups + (work.resolved - before.resolved) as f64;
    let records = (work.log_bytes - before.log_bytes) as f64 * LOG_PAGE_RECORDS as f64 / PAGE_BYTES as f64;
    lookups * KEY_SECONDS + waited * WAIT_SECONDS + records * RECORD_SECONDS
}

impl Index {
    /// Returns the work of the table and the log so far.
    fn work(&self) -> Work {
        let (table, log) = (self.store.entries.counters(), self.store.log_counters());
        Work {
            chunks: self.planning.chunks(),
            lookups: self.counters.lookups,
            resolved: self.counters.postlookup_hits,
            pages_needed: table.pages_needed,
            reads: table.lookup_reads + log.reads,
            bytes: table.lookup_pages * PAGE_BYTES as u64 + log.bytes_read,
            log_bytes: log.bytes_read,
        }
    }

    /// Returns about how long the device took since the last decision.
    fn spent_since(&self, work: &Work) -> f64 {
        let before = &self.planning.before;
        let (reads, bytes) = ((work.reads - before.reads) as f64, (work.bytes - before.bytes) as f64);
        // One read waits for the other as long as chunks are looked up as they arrive.
        if self.immediate {
            reads * self.device.batch(1.0, bytes / reads.max(1.0))
        } else {
            self.device.batch(reads, bytes)
        }
    }

    /// Returns true if the stream waits for each lookup, and lookups need many more pages than until the last decision: the memtable that
    /// answered them was written.
    fn is_surprise(&self) -> bool {
        let (work, before) = (self.work(), &self.planning.before);
        let (keys, pages) = (work.lookups - before.lookups, (work.pages_needed - before.pages_needed) as f64);
        let known = self.planning.pages_per_key().unwrap_or(1.0);
        self.immediate && SURPRISE_PAGES <= pages && SURPRISE_FACTOR * known * keys as f64 <= pages
    }

    /// Lets the schedule learn from the recent stream, if there is enough of it.
    pub(in crate::identify) fn plan(&mut self) {
        let Some(trace) = &self.arrivals.trace else { return };
        let is_expensive = || {
            let work = self.work();
            let lookups = work.lookups - self.planning.before.lookups;
            is_expensive(trace, lookups, self.spent_since(&work))
        };
        let is_surprise = self.is_surprise();
        if !is_surprise && !Planner::is_due(trace, is_expensive) {
            return;
        }
        let trace = self.arrivals.trace.replace(Trace::default()).unwrap_or_default();
        let work = self.work();
        let spent = self.spent_since(&work);
        let table = self.store.entries.counters();
        let before = std::mem::replace(&mut self.planning.before, work);
        let pages = table.used_bytes / PAGE_BYTES as u64;
        // Before the first lookup, each key is taken to need a page, if there are any.
        let keys = (work.lookups - before.lookups, work.pages_needed - before.pages_needed);
        let known = self.planning.note(keys, is_surprise);
        let pages_per_key = known.unwrap_or(if pages == 0 { 0.0 } else { 1.0 });
        let left = self.store.filter.bytes_left();
        let mean_len = self.planning.mean_len();
        let situation = Situation {
            costs: LookupCosts { device: self.device, pages: pages as f64, pages_per_key },
            limits: plan_limits(&self.options, left, mean_len, self.unit_records()),
            cache_records: (self.cache.blocks_max() * BLOCK_RECORDS) as u64,
            log_end: self.store.positions_end(),
            spent,
            worked: processor_seconds(&before, &work),
            chunks: work.chunks - before.chunks,
            is_immediate: self.immediate,
        };
        let plan = self.schedule.plan();
        self.schedule.learn(trace, &situation);
        self.counters.schedule_changes += u64::from(self.schedule.plan() != plan);
    }
}
