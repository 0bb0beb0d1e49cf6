//! Replays of plans: what a plan would have taken on a recent stream, without a read.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;
use crate::identify::schedule::cost::{KEY_SECONDS, LookupCosts, RECORD_SECONDS, WAIT_SECONDS};
use crate::identify::schedule::coverage::Coverage;
use crate::identify::schedule::plan::{Plan, PlanLimits, Stride, end_of_cached, merge_windows, reach_of, uncached};
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

/// Chunks that a replayed plan lets wait, and its place in the stream and in the log.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    runs: Vec<TraceRun>,
    count: u64,
    /// The oldest of them in the stream.
    oldest: Option<u64>,
    /// End of the last window of a lookup at arrival.
    read_up_to: Option<u64>,
    /// Place in the stream and in the log after the last chunk.
    next: (u64, u64),
}

impl Waiting {
    /// Returns the number of runs.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }
}

/// A plan that is carried out without a read, and the ranges that its cache would hold.
pub(super) struct Replay<'a> {
    plan: Plan,
    costs: &'a LookupCosts,
    waiting: Waiting,
    cover: Coverage,
    /// The cache before the stream began; holds as long as little was read since.
    before: &'a Coverage,
    /// Records that the log has.
    log_end: u64,
    /// Most records of a read.
    records_max: u64,
    /// True if the log is read ahead where it continues as the stream does.
    reads_ahead: bool,
    pub(super) done: Replayed,
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
    let mut replay = Replay::new(plan, costs, limits, (cover, before), log_end, Waiting::default());
    let mut before_last = (0.0, 0.0);
    for trace in traces {
        before_last = (replay.done.seconds, replay.done.device_seconds);
        for run in &trace.runs {
            if seconds_max < replay.done.seconds {
                return replay.done;
            }
            replay.take(*run, limits.age);
        }
    }
    if !replay.waiting.runs.is_empty() {
        replay.resolve_share(traces.iter().map(|trace| trace.arrivals).sum(), limits.age);
    }
    replay.done.last_seconds = replay.done.seconds - before_last.0;
    replay.done.last_device_seconds = replay.done.device_seconds - before_last.1;
    replay.done
}

impl<'a> Replay<'a> {
    /// Starts with what waits, what the cache of the plan covers, and what it covered before the stream began.
    pub(super) fn new(
        plan: Plan,
        costs: &'a LookupCosts,
        limits: &PlanLimits,
        (cover, before): (Coverage, &'a Coverage),
        log_end: u64,
        waiting: Waiting,
    ) -> Self {
        Self {
            plan,
            costs,
            waiting,
            cover,
            before,
            log_end,
            records_max: limits.window.into(),
            reads_ahead: limits.reads_ahead && plan.pool == 1 && plan.window() != 0,
            done: Replayed::default(),
        }
    }

    /// Returns what the cache covers, and what waits.
    pub(super) fn into_parts(self) -> (Coverage, Waiting) {
        (self.cover, self.waiting)
    }

    /// Returns the runs of waiting chunks.
    pub(super) fn waiting_runs(&self) -> usize {
        self.waiting.runs.len()
    }

    /// Takes the next run of the stream, and looks up what waits when the oldest chunk of it has waited for `age` chunks.
    pub(super) fn take(&mut self, run: TraceRun, age: u64) {
        let first = *self.waiting.oldest.get_or_insert(run.sequence);
        self.arrive(run);
        if self.waiting.runs.is_empty() {
            self.waiting.oldest = None;
        } else if age < run.sequence - first {
            self.resolve(run.sequence, 1.0);
            self.waiting.oldest = None;
        }
    }

    /// Looks up what waits of so many arrivals, as if more of the same had filled the pool: its chunks share the reads of a full one.
    pub(super) fn resolve_share(&mut self, arrivals: u64, age: u64) {
        let count = self.waiting.count as f64;
        let density = count / arrivals.max(1) as f64;
        let full = f64::from(self.plan.pool).min(density * age as f64);
        let now = self.waiting.next.0;
        self.resolve(now, (full / count).max(1.0));
        self.waiting.oldest = None;
    }

    fn spend(&mut self, of_device: f64, of_processor: f64) {
        self.done.seconds += of_device + of_processor;
        self.done.device_seconds += of_device;
    }

    /// Returns true if the cache still has what it had before the stream began.
    fn is_recent(&self) -> bool {
        self.cover.records() < self.before.capacity() / 2
    }

    fn is_covered(&self, position: u64) -> Option<u64> {
        self.cover.end_at(position).or_else(|| self.before.end_at(position).filter(|_| self.is_recent()))
    }

    /// Returns the first records of a range that the cache has.
    fn first_in(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let before = self.before.first_in(from, to).filter(|_| self.is_recent());
        self.cover.first_in(from, to).into_iter().chain(before).min_by_key(|(first, end)| (*first, u64::MAX - end))
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
            if self.reads_ahead
                && self.waiting.next == (run.sequence, run.start)
                && self.waiting.read_up_to == Some(run.start)
            {
                self.read_ahead(run.start);
                continue;
            }
            let left = u64::from(self.plan.pool).saturating_sub(self.waiting.count).max(1);
            let mut taken = length(left, run.len);
            if !run.is_nowhere() {
                let end = run.start + u64::from(taken);
                let next = [self.cover.next_in(run.start, end), self.before.next_in(run.start, end)];
                taken = next.into_iter().flatten().min().map_or(taken, |next| length(next - run.start, taken).max(1));
            }
            if self.plan.pool != 1 {
                self.done.seconds += f64::from(taken) * WAIT_SECONDS;
            }
            self.waiting.runs.push(TraceRun { len: taken, ..run });
            self.waiting.count += u64::from(taken);
            let now = run.sequence + u64::from(taken);
            run = self.pass(&run, taken);
            if u64::from(self.plan.pool) <= self.waiting.count {
                self.resolve(now, 1.0);
            }
        }
    }

    /// Returns what follows the first chunks of a run.
    fn pass(&mut self, run: &TraceRun, count: u32) -> TraceRun {
        let rest = run.skip(count);
        self.waiting.next = (rest.sequence, rest.start);
        rest
    }

    /// Reads the log from a record on, as [`crate::identify::exact::lookup`] does instead of a lookup.
    fn read_ahead(&mut self, start: u64) {
        let end = (start + u64::from(self.plan.window())).min(self.log_end).max(start + 1);
        let windows = uncached((start, end), self.log_end, &self.costs.device, |from, to| self.first_in(from, to));
        self.read(windows, 1.0);
    }

    /// Resolves all waiting chunks in rounds. `shared`: how many times as many chunks would share the reads.
    fn resolve(&mut self, now: u64, shared: f64) {
        let mut round = 0;
        while !self.waiting.runs.is_empty() {
            let selected = select(&self.waiting.runs, self.plan.stride.of_round(round));
            self.done.visits += self.waiting.runs.len() as u64 + selected.len() as u64;
            let keys = selected.iter().map(|it| f64::from(it.len)).sum::<f64>();
            self.spend(self.costs.time(keys * shared) / shared, keys * KEY_SECONDS);
            if self.plan.window() != 0 {
                self.read_windows(&selected, now, shared);
            }
            self.waiting.runs = self.left(&selected);
            round += 1;
        }
        self.waiting.count = 0;
    }

    /// Reads windows around the selected chunks, as [`crate::identify::exact::windows`] does.
    fn read_windows(&mut self, selected: &[TraceRun], now: u64, shared: f64) {
        let reach = reach_of(&self.plan);
        let is_all =
            selected.len() == self.waiting.runs.len() && selected.iter().zip(&self.waiting.runs).all(|(a, b)| a == b);
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
            windows.extend(uncached((start, end.min(self.log_end)), self.log_end, &self.costs.device, |from, to| {
                self.first_in(from, to)
            }));
        }
        self.read(windows, shared);
    }

    /// Reads windows into the cache. `shared`: how many times as many would share the reads.
    fn read(&mut self, windows: Vec<(u64, u64)>, shared: f64) {
        let (mut bytes, mut records, mut reads) = (0, 0, 0);
        let has_seeks = self.costs.device.gap_pages() != 0;
        let mut last = None;
        for (start, end) in merge_windows(windows, &self.costs.device, self.records_max) {
            reads += u32::from(!has_seeks || last != Some(start));
            last = Some(end);
            bytes += pages_of(start, end) * PAGE_BYTES as u64;
            records += end - start;
            self.cover.add(start, end);
            self.waiting.read_up_to = Some(end);
        }
        self.waiting.read_up_to =
            self.waiting.read_up_to.map(|end| end_of_cached(end, |from, to| self.first_in(from, to)));
        let of_device = self.costs.device.batch(f64::from(reads) * shared, bytes as f64 * shared) / shared;
        self.spend(of_device, records as f64 * RECORD_SECONDS);
    }

    /// Returns what is neither selected nor covered.
    fn left(&mut self, selected: &[TraceRun]) -> Vec<TraceRun> {
        let mut out: Vec<TraceRun> = Vec::new();
        let mut selected = selected.iter().peekable();
        for run in std::mem::take(&mut self.waiting.runs) {
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
