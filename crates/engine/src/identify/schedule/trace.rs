//! The recent stream as a planner sees it: where duplicates were recorded, whatever resolved them.

#![expect(clippy::cast_precision_loss, reason = "shares are estimates; counts are far below 2^52")]

use crate::kv::Position;
use crate::types::Sequence;

/// Most runs of a trace; the rest of the stream is ignored.
pub(super) const RUNS_MAX: usize = 2_048;
/// Most reads of a trace; others are taken for none.
const READS_MAX: usize = 256;
/// Memory of a trace.
pub(super) const TRACE_BYTES: usize = RUNS_MAX * size_of::<TraceRun>() + READS_MAX * size_of::<(u64, u64)>();

/// Factors by which the share of duplicates, counted from [`SHARE_MIN`] below, and the mean run change from one phase of a stream to
/// another.
const SHARE_CHANGE: f64 = 1.5;
const SHARE_MIN: f64 = 0.1;
const RUN_CHANGE: f64 = 2.0;

/// Position that stands for a false positive, which no record resolves.
pub(in crate::identify) const NOWHERE: u64 = u64::MAX;

/// Chunks that follow each other in the stream and in the log, or false positives that follow each other in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct TraceRun {
    /// First chunk in the stream.
    pub(in crate::identify) sequence: u64,
    /// Its record in the log, or [`NOWHERE`].
    pub(in crate::identify) start: u64,
    /// Number of chunks.
    pub(in crate::identify) len: u32,
}

impl TraceRun {
    /// Returns true if no record resolves its chunks.
    pub(in crate::identify) fn is_nowhere(&self) -> bool {
        self.start == NOWHERE
    }

    /// Returns the part from a chunk on.
    pub(in crate::identify) fn skip(&self, count: u32) -> Self {
        let start = if self.is_nowhere() { NOWHERE } else { self.start + u64::from(count) };
        Self { sequence: self.sequence + u64::from(count), start, len: self.len - count }
    }
}

/// Consecutive chunks of the stream that may have had to be looked up.
#[derive(Clone, Debug, Default)]
pub(in crate::identify) struct Trace {
    pub(in crate::identify) runs: Vec<TraceRun>,
    /// Ranges of the log that were read meanwhile: first record, and the one after the last.
    pub(in crate::identify) reads: Vec<(u64, u64)>,
    /// Chunks, those included that were unique or known at once.
    pub(in crate::identify) arrivals: u64,
    /// Position in the stream after the last one.
    pub(in crate::identify) end: u64,
}

impl Trace {
    /// Returns for how many of its chunks the trace has the runs.
    pub(super) fn recorded(&self) -> u64 {
        let left = self.runs.last().filter(|_| self.runs.len() == RUNS_MAX);
        left.map_or(self.arrivals, |last| self.arrivals - (self.end - last.sequence - u64::from(last.len)))
    }

    /// Notes records that were read from the log into the cache.
    pub(in crate::identify) fn read(&mut self, start: u64, end: u64) {
        if self.reads.len() < READS_MAX {
            self.reads.push((start, end));
        }
    }

    /// Notes the next chunk of the stream, with its record, [`NOWHERE`] for a false positive, or `None` if nobody has to look
    /// it up.
    pub(in crate::identify) fn pass(&mut self, Sequence(sequence): Sequence, position: Option<Position>) {
        self.arrivals += 1;
        self.end = sequence + 1;
        let Some(Position(start)) = position.filter(|_| self.runs.len() < RUNS_MAX) else { return };
        if let Some(last) = self.runs.last_mut()
            && last.sequence + u64::from(last.len) == sequence
            && last.len < u32::MAX
            && (if last.is_nowhere() { NOWHERE } else { last.start + u64::from(last.len) }) == start
        {
            last.len += 1;
            return;
        }
        self.runs.push(TraceRun { sequence, start, len: 1 });
    }
}

/// A stream as far as plans depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamShape {
    /// Share of the chunks that may have had to be looked up.
    share: f64,
    /// Their mean run.
    run: f64,
}

impl StreamShape {
    pub(super) fn of(trace: &Trace) -> Self {
        let chunks = trace.runs.iter().map(|run| f64::from(run.len)).sum::<f64>();
        Self { share: chunks / trace.recorded().max(1) as f64, run: chunks / trace.runs.len().max(1) as f64 }
    }

    /// Returns true if two traces seem to belong to the same phase of the stream.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let within = |a: f64, b: f64, factor: f64| a <= b * factor && b <= a * factor;
        within(self.share + SHARE_MIN, other.share + SHARE_MIN, SHARE_CHANGE) && within(self.run, other.run, RUN_CHANGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_follow_each_other_in_stream_and_log_are_one_piece() {
        let mut trace = Trace::default();
        let positions = [Some(7), Some(8), None, Some(9), Some(10), Some(4), Some(NOWHERE), Some(NOWHERE), Some(5)];
        for (sequence, position) in (100..).zip(positions) {
            trace.pass(Sequence(sequence), position.map(Position));
        }
        let runs: Vec<_> = trace.runs.iter().map(|it| (it.sequence, it.start, it.len)).collect();
        assert_eq!(runs, [(100, 7, 2), (103, 9, 2), (105, 4, 1), (106, NOWHERE, 2), (108, 5, 1)]);
        assert_eq!((trace.arrivals, trace.end), (9, 109));
        assert_eq!(trace.runs[0].skip(1), TraceRun { sequence: 101, start: 8, len: 1 });
    }
}
