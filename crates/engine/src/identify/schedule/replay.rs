//! Replays of plans: what a plan would have taken on a recent stream, without a read.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;
use crate::identify::schedule::cost::{KEY_SECONDS, LookupCosts, RECORD_SECONDS, WAIT_SECONDS};
use crate::identify::schedule::coverage::Coverage;
use crate::identify::schedule::plan::{Plan, PlanLimits, Stride, merge_windows, reach_of};
use crate::identify::schedule::trace::{Trace, TraceRun};
use crate::kv::PAGE_BYTES;

/// Cost of a replayed plan.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::identify) struct Replayed {
    /// Seconds of the last trace.
    pub(in crate::identify) last_seconds: f64,
    /// Those of the device alone.
    pub(in crate::identify) last_device_seconds: f64,
    /// Seconds of the device, and of the processor for records of windows.
    pub(in crate::identify) seconds: f64,
    /// Seconds of the device alone.
    pub(in crate::identify) device_seconds: f64,
    /// Runs that were visited: the processor time of the replay itself.
    pub(in crate::identify) visits: u64,
}

/// Chunks that a replayed plan lets wait, and the ranges that its cache would hold.
struct Replay<'a> {
    plan: Plan,
    costs: &'a LookupCosts,
    pending: Vec<TraceRun>,
    count: u64,
    cover: Coverage,
    /// The cache before the stream began; holds as long as little was read since.
    before: &'a Coverage,
    /// Records that the log has.
    log_end: u64,
    /// Most records of a read.
    records_max: u64,
    /// True if the log is read ahead where it continues as the stream does.
    reads_ahead: bool,
    /// End of the last window of a lookup at arrival.
    read_up_to: Option<u64>,
    /// Place in the stream and in the log after the last chunk.
    next: (u64, u64),
    done: Replayed,
}

/// Carries a plan out on traces, from the cache of `before` on, without reading anything. Returns its cost. Ends
/// early once that is more than `seconds_max`.
pub(in crate::identify) fn replay(
    plan: Plan,
    traces: &[Trace],
    before: &Coverage,
    costs: &LookupCosts,
    (limits, log_end, seconds_max): (&PlanLimits, u64, f64),
) -> Replayed {
    let cover = Coverage::new(before.capacity());
    let done = Replayed::default();
    let mut replay = Replay {
        plan,
        costs,
        pending: Vec::new(),
        count: 0,
        cover,
        before,
        log_end,
        records_max: limits.window.into(),
        reads_ahead: limits.reads_ahead && plan.pool == 1 && plan.window() != 0,
        read_up_to: None,
        next: (0, 0),
        done,
    };
    let mut oldest = None;
    let mut before_last = (0.0, 0.0);
    for trace in traces {
        before_last = (replay.done.seconds, replay.done.device_seconds);
        for run in &trace.runs {
            if seconds_max < replay.done.seconds {
                return replay.done;
            }
            let first = *oldest.get_or_insert(run.sequence);
            replay.arrive(*run);
            if replay.pending.is_empty() {
                oldest = None;
            } else if limits.age < run.sequence - first {
                replay.resolve(run.sequence, 1.0);
                oldest = None;
            }
        }
    }
    let end = traces.last().map_or(0, |trace| trace.end);
    if !replay.pending.is_empty() {
        // The pool would have been filled by more of the same: its chunks share the reads of a full one.
        let arrivals: u64 = traces.iter().map(|trace| trace.arrivals).sum();
        let density = replay.count as f64 / arrivals.max(1) as f64;
        let full = f64::from(plan.pool).min(density * limits.age as f64);
        replay.resolve(end, (full / replay.count as f64).max(1.0));
    }
    replay.done.last_seconds = replay.done.seconds - before_last.0;
    replay.done.last_device_seconds = replay.done.device_seconds - before_last.1;
    replay.done
}

impl Replay<'_> {
    fn spend(&mut self, of_device: f64, of_processor: f64) {
        self.done.seconds += of_device + of_processor;
        self.done.device_seconds += of_device;
    }

    fn is_covered(&self, position: u64) -> Option<u64> {
        let is_recent = self.cover.records() < self.before.capacity() / 2;
        self.cover.end_at(position).or_else(|| self.before.end_at(position).filter(|_| is_recent))
    }

    /// Takes the chunks of a run: the cache resolves them, or they wait.
    fn arrive(&mut self, mut run: TraceRun) {
        while run.len != 0 {
            self.done.visits += 1;
            if let Some(end) = self.is_covered(run.start).filter(|_| !run.is_nowhere()) {
                let _ = self.cover.use_at(run.start);
                run = self.pass(&run, length(end - run.start, run.len));
                continue;
            }
            if self.reads_ahead && self.next == (run.sequence, run.start) && self.read_up_to == Some(run.start) {
                self.read_ahead(run.start);
                continue;
            }
            let left = u64::from(self.plan.pool).saturating_sub(self.count).max(1);
            let mut taken = length(left, run.len);
            if !run.is_nowhere() {
                let end = run.start + u64::from(taken);
                let next = [self.cover.next_in(run.start, end), self.before.next_in(run.start, end)];
                taken = next.into_iter().flatten().min().map_or(taken, |next| length(next - run.start, taken).max(1));
            }
            if self.plan.pool != 1 {
                self.done.seconds += f64::from(taken) * WAIT_SECONDS;
            }
            self.pending.push(TraceRun { len: taken, ..run });
            self.count += u64::from(taken);
            let now = run.sequence + u64::from(taken);
            run = self.pass(&run, taken);
            if u64::from(self.plan.pool) <= self.count {
                self.resolve(now, 1.0);
            }
        }
    }

    /// Returns what follows the first chunks of a run.
    fn pass(&mut self, run: &TraceRun, count: u32) -> TraceRun {
        let rest = run.skip(count);
        self.next = (rest.sequence, rest.start);
        rest
    }

    /// Reads the log from a record on, as [`crate::identify::exact::lookup`] does instead of a lookup.
    fn read_ahead(&mut self, start: u64) {
        let end = (start + u64::from(self.plan.window())).min(self.log_end).max(start + 1);
        let of_device = self.costs.device.batch(1.0, (pages_of(start, end) * PAGE_BYTES as u64) as f64);
        self.spend(of_device, (end - start) as f64 * RECORD_SECONDS);
        self.cover.add(start, end);
        self.read_up_to = Some(end);
    }

    /// Resolves all waiting chunks in rounds. `shared`: how many times as many chunks would share the reads.
    fn resolve(&mut self, now: u64, shared: f64) {
        let mut round = 0;
        while !self.pending.is_empty() {
            let selected = select(&self.pending, self.plan.stride.of_round(round));
            self.done.visits += self.pending.len() as u64 + selected.len() as u64;
            let keys = selected.iter().map(|it| f64::from(it.len)).sum::<f64>();
            self.spend(self.costs.time(keys * shared) / shared, keys * KEY_SECONDS);
            if self.plan.window() != 0 {
                self.read_windows(&selected, now, shared);
            }
            self.pending = self.left(&selected);
            round += 1;
        }
        self.count = 0;
    }

    /// Reads windows around the selected chunks, as [`crate::identify::exact::windows`] does.
    fn read_windows(&mut self, selected: &[TraceRun], now: u64, shared: f64) {
        let reach = reach_of(&self.plan);
        let is_all = selected.len() == self.pending.len() && selected.iter().zip(&self.pending).all(|(a, b)| a == b);
        let mut windows = Vec::new();
        for run in selected.iter().filter(|it| !it.is_nowhere()) {
            // If all are looked up, only chunks that have yet to arrive may need a window.
            let last = run.sequence + u64::from(run.len) - 1;
            if is_all && last + reach < now {
                continue;
            }
            let hits = if is_all { run.skip(run.len - length(reach, run.len).max(1)) } else { *run };
            if self.is_covered(hits.start).is_some_and(|end| self.plan.is_served(hits.start, end)) {
                continue;
            }
            let (start, _) = self.plan.window_around(hits.start);
            let (_, end) = self.plan.window_around(hits.start + u64::from(hits.len) - 1);
            windows.push((start, end.min(self.log_end)));
        }
        let (mut bytes, mut records, mut reads) = (0, 0, 0);
        let has_seeks = self.costs.device.gap_pages() != 0;
        let mut last = None;
        for (start, end) in merge_windows(windows, &self.costs.device, self.records_max) {
            reads += u32::from(!has_seeks || last != Some(start));
            last = Some(end);
            bytes += pages_of(start, end) * PAGE_BYTES as u64;
            records += end - start;
            self.cover.add(start, end);
            self.read_up_to = Some(end);
        }
        let of_device = self.costs.device.batch(f64::from(reads) * shared, bytes as f64 * shared) / shared;
        self.spend(of_device, records as f64 * RECORD_SECONDS);
    }

    /// Returns what is neither selected nor covered.
    fn left(&mut self, selected: &[TraceRun]) -> Vec<TraceRun> {
        let mut out: Vec<TraceRun> = Vec::new();
        let mut selected = selected.iter().peekable();
        for run in std::mem::take(&mut self.pending) {
            let mut rest = run;
            while rest.len != 0 {
                let mut taken = rest.len;
                if let Some(next) = selected.peek().filter(|next| next.sequence < rest.sequence + u64::from(rest.len)) {
                    if next.sequence == rest.sequence {
                        rest = rest.skip(next.len.min(rest.len));
                        selected.next();
                        continue;
                    }
                    taken = length(next.sequence - rest.sequence, rest.len);
                }
                if !rest.is_nowhere() {
                    if let Some(end) = self.cover.end_at(rest.start) {
                        rest = rest.skip(length(end - rest.start, taken));
                        continue;
                    }
                    let end = rest.start + u64::from(taken);
                    taken = self.cover.next_in(rest.start, end).map_or(taken, |next| length(next - rest.start, taken));
                }
                out.push(TraceRun { len: taken, ..rest });
                rest = rest.skip(taken);
            }
        }
        out
    }
}

fn length(distance: u64, most: u32) -> u32 {
    u32::try_from(distance).unwrap_or(u32::MAX).min(most)
}

fn pages_of(start: u64, end: u64) -> u64 {
    let page = LOG_PAGE_RECORDS as u64;
    end.div_ceil(page) - start / page
}

/// Returns the chunks that a round looks up.
fn select(pending: &[TraceRun], stride: Stride) -> Vec<TraceRun> {
    match stride {
        Stride::Chunks(1) => pending.to_vec(),
        Stride::Chunks(stride) => {
            let (mut out, mut skip) = (Vec::new(), 0);
            for run in pending {
                let mut at = skip;
                while at < run.len {
                    out.push(TraceRun { len: 1, ..run.skip(at) });
                    at = at.saturating_add(stride);
                }
                skip = at - run.len;
            }
            out
        }
        Stride::InRuns(stride) => {
            let (mut out, mut skip, mut end) = (Vec::new(), 0, None);
            for run in pending {
                let mut at = if end == Some(run.sequence) { skip } else { 0 };
                while at < run.len {
                    out.push(TraceRun { len: 1, ..run.skip(at) });
                    at = at.saturating_add(stride);
                }
                skip = at - run.len;
                end = Some(run.sequence + u64::from(run.len));
            }
            out
        }
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
