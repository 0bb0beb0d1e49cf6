//! Verdicts in stream order, although they come in any order.
//!
//! The positions of consecutive duplicates in the log show the lengths of duplicate runs, and which run was repeated.
//! The lengths decide how much a hit reads and when deferring pays. In any other order all runs would seem to have one
//! chunk.

use std::collections::VecDeque;

use crate::identify::schedule::trace::{NOWHERE, Trace};
use crate::kv::Position;
use crate::types::Sequence;

/// Forward steps in the log that do not end a run: the new stream leaves out chunks of the old one. A quarter of the
/// mean run does not end it either: to read across the gap takes no longer than to read again.
const SKIP: std::ops::RangeInclusive<u64> = 16..=512;

/// Runs after which older ones count half.
const HEADS_PER_HALVING: u64 = 64;
/// False positives after which older ones count half.
const FALSE_POSITIVES_PER_HALVING: u64 = 1 << 10;
/// Duplicates after which older ones count half, so that one long run does not outweigh a change for ever.
const DUPLICATES_PER_HALVING: u64 = 1 << 16;

/// The verdict on a chunk, as far as runs depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Outcome {
    /// A duplicate, recorded at a position of the log.
    At(Position),
    /// A duplicate at an unknown position.
    Elsewhere,
    /// Unique according to the filter.
    Unique,
    /// Unique according to a lookup.
    FalsePositive,
}

/// A run of log records that the stream repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct DuplicateRun {
    /// First record.
    pub(crate) start: Position,
    /// Number of records.
    pub(crate) len: u32,
    /// Unique chunks before it in the stream of this session.
    pub(crate) uniques_before: u64,
}

/// A position or outcome in 64 bits: there is one for each chunk from the oldest pending one on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packed(u64);

impl Packed {
    const PENDING: Self = Self(u64::MAX);
    const ELSEWHERE: Self = Self(u64::MAX - 1);
    const UNIQUE: Self = Self(u64::MAX - 2);
    const FALSE_POSITIVE: Self = Self(u64::MAX - 3);

    fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::At(Position(position)) if position < Self::FALSE_POSITIVE.0 => Self(position),
            Outcome::At(_) | Outcome::Elsewhere => Self::ELSEWHERE,
            Outcome::Unique => Self::UNIQUE,
            Outcome::FalsePositive => Self::FALSE_POSITIVE,
        }
    }

    fn outcome(self) -> Option<Outcome> {
        match self {
            Self::PENDING => None,
            Self::ELSEWHERE => Some(Outcome::Elsewhere),
            Self::UNIQUE => Some(Outcome::Unique),
            Self::FALSE_POSITIVE => Some(Outcome::FalsePositive),
            Self(position) => Some(Outcome::At(Position(position))),
        }
    }
}

/// Memory of each chunk from the oldest pending one on.
pub(in crate::identify) const ARRIVAL_BYTES: usize = size_of::<Packed>();

/// The verdicts from the oldest pending chunk on, and the runs before it.
#[derive(Debug, Default)]
pub(in crate::identify) struct Arrivals {
    first: u64,
    pending: VecDeque<Packed>,
    /// Statistics of runs.
    pub(crate) runs: RunMeter,
    duplicate_run: Option<DuplicateRun>,
    /// Runs that have ended, until they are taken.
    ended: Vec<DuplicateRun>,
    uniques: u64,
    /// The recent stream, if the schedule plans by it.
    pub(crate) trace: Option<Trace>,
}

impl Arrivals {
    /// Takes the next chunk of the stream, undecided.
    pub(in crate::identify) fn arrive(&mut self, sequence: Sequence) {
        if self.pending.is_empty() {
            self.first = sequence.0;
        }
        debug_assert_eq!(self.first + self.pending.len() as u64, sequence.0, "arrivals have no gaps");
        self.pending.push_back(Packed::PENDING);
    }

    /// Takes the next chunk of the stream together with its outcome.
    pub(in crate::identify) fn arrive_decided(&mut self, sequence: Sequence, outcome: Outcome) {
        if self.pending.is_empty() {
            self.first = sequence.0 + 1;
            self.pass(outcome);
        } else {
            self.pending.push_back(Packed::of(outcome));
        }
    }

    /// Notes the outcome of an undecided chunk.
    pub(in crate::identify) fn decide(&mut self, sequence: Sequence, outcome: Outcome) {
        let index = sequence.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(pending) = index.and_then(|index| self.pending.get_mut(index)) {
            *pending = Packed::of(outcome);
        }
    }

    /// Processes the outcomes before the oldest pending chunk.
    pub(crate) fn advance(&mut self) {
        while let Some(outcome) = self.pending.front().and_then(|packed| packed.outcome()) {
            self.pending.pop_front();
            self.first += 1;
            self.pass(outcome);
        }
    }

    /// Ends the current run at the end of the stream.
    pub(crate) fn finish(&mut self) {
        self.advance();
        self.ended.extend(self.duplicate_run.take());
    }

    /// Takes the runs that have ended.
    pub(in crate::identify) fn take_ended(&mut self) -> Vec<DuplicateRun> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the position after the last duplicate, where the next one is expected; `None` while chunks are pending.
    pub(in crate::identify) fn expected(&self) -> Option<Position> {
        self.pending.is_empty().then(|| self.runs.ends[0].map(|last| Position(last + 1))).flatten()
    }

    /// Returns true if a chunk from one position in the stream to another, both included, is undecided or has yet to
    /// arrive.
    pub(in crate::identify) fn is_undecided_between(&self, from: Sequence, to: Sequence) -> bool {
        let index = |sequence: u64| usize::try_from(sequence.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let end = self.first + self.pending.len() as u64;
        let is_decided = |packed: &Packed| *packed != Packed::PENDING;
        end <= to.0 || (self.first <= to.0 && !self.pending.range(index(from.0)..=index(to.0)).all(is_decided))
    }

    fn pass(&mut self, outcome: Outcome) {
        self.runs.pass(outcome);
        if let Some(trace) = &mut self.trace {
            let position = match outcome {
                Outcome::At(position) => Some(position),
                Outcome::FalsePositive => Some(Position(NOWHERE)),
                Outcome::Elsewhere | Outcome::Unique => None,
            };
            trace.pass(Sequence(self.first - 1), position);
        }
        match outcome {
            Outcome::At(position) => match &mut self.duplicate_run {
                Some(run) if run.start.0 + u64::from(run.len) == position.0 && run.len < u32::MAX => run.len += 1,
                run => {
                    let begun = DuplicateRun { start: position, len: 1, uniques_before: self.uniques };
                    self.ended.extend(run.replace(begun));
                }
            },
            Outcome::Elsewhere => self.ended.extend(self.duplicate_run.take()),
            Outcome::Unique | Outcome::FalsePositive => {
                self.ended.extend(self.duplicate_run.take());
                self.uniques += 1;
            }
        }
    }
}

/// The lengths of duplicate runs; recent runs count more.
///
/// A run may leave its position in the log for another one and return. This happens around chunks that were false
/// positives when they were new: they were recorded after their neighbors, together with other false positives. A
/// return begins no run.
#[derive(Clone, Debug, Default)]
pub(in crate::identify) struct RunMeter {
    /// The last position of the current run, and of the run to which it may return.
    ends: [Option<u64>; 2],
    /// Whether the current run left the second one and counted as a beginning.
    has_left: bool,
    duplicates: u64,
    heads: u64,
    false_positives: u64,
}

impl RunMeter {
    fn pass(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::At(Position(position)) => {
                let skip = (self.mean_run() / 4).clamp(*SKIP.start(), *SKIP.end());
                let continues =
                    |end: &Option<u64>| end.is_some_and(|end| (1..=skip).contains(&position.wrapping_sub(end)));
                let continued = self.ends.iter().position(continues);
                self.duplicates += 1;
                match continued {
                    Some(0) => {}
                    Some(1) if self.has_left => {
                        self.heads = self.heads.saturating_sub(1);
                        self.has_left = false;
                    }
                    _ => {
                        self.heads += 1;
                        self.has_left = continued.is_some();
                    }
                }
                if continued != Some(0) {
                    self.ends.swap(0, 1);
                }
                self.ends[0] = Some(position);
            }
            Outcome::Elsewhere | Outcome::Unique => {}
            Outcome::FalsePositive => self.false_positives += 1,
        }
        if HEADS_PER_HALVING <= self.heads
            || FALSE_POSITIVES_PER_HALVING <= self.false_positives
            || DUPLICATES_PER_HALVING <= self.duplicates
        {
            self.duplicates /= 2;
            self.heads /= 2;
            self.false_positives /= 2;
        }
    }

    /// Returns the mean run of duplicates in chunks; 0 before the first.
    pub(in crate::identify) fn mean_run(&self) -> u64 {
        self.duplicates / self.heads.max(1)
    }

    /// Returns the mean number of duplicates for each unavoidable lookup, if windows were as long as runs: one lookup
    /// for each run, and one for each false positive, which resolves no other chunk.
    pub(in crate::identify) fn duplicates_per_lookup(&self) -> u64 {
        self.duplicates / (self.heads + self.false_positives).max(1)
    }

    /// Returns how many false positives there are for each run of duplicates, rounded down.
    pub(in crate::identify) fn false_positives_per_run(&self) -> u64 {
        self.false_positives / self.heads.max(1)
    }

    /// Returns true if most candidates are false positives: each needs a lookup, and no window resolves it.
    pub(in crate::identify) fn is_misled(&self) -> bool {
        self.duplicates < self.false_positives
    }

    /// Returns true if too little is known to act on.
    pub(in crate::identify) fn is_blank(&self) -> bool {
        self.heads + self.false_positives < 4 && self.duplicates < 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Outcome {
        Outcome::At(Position(position))
    }

    #[test]
    fn runs_are_measured_in_the_order_of_the_stream_whatever_the_order_of_verdicts() {
        let mut arrivals = Arrivals::default();
        for sequence in 0..100 {
            arrivals.arrive(Sequence(sequence));
        }
        for sequence in (0..100).rev() {
            assert_eq!(arrivals.expected(), None);
            arrivals.decide(Sequence(sequence), at(500 + sequence));
            arrivals.advance();
        }
        assert_eq!(arrivals.runs.mean_run(), 100);
        assert_eq!(arrivals.expected(), Some(Position(600)));
        assert_eq!(arrivals.take_ended(), []);
        arrivals.finish();
        assert_eq!(arrivals.take_ended(), [DuplicateRun { start: Position(500), len: 100, uniques_before: 0 }]);
    }

    #[test]
    fn a_pending_chunk_is_found_among_decided_ones() {
        let mut arrivals = Arrivals::default();
        for sequence in 0..50 {
            arrivals.arrive(Sequence(sequence));
        }
        for sequence in (0..50).filter(|sequence| *sequence != 20) {
            arrivals.decide(Sequence(sequence), Outcome::Unique);
        }
        arrivals.advance();
        for (from, to, is_undecided) in [(0, 19, false), (3, 20, true), (20, 49, true), (21, 49, false), (30, 50, true)]
        {
            assert_eq!(arrivals.is_undecided_between(Sequence(from), Sequence(to)), is_undecided, "{from} to {to}");
        }
    }

    #[test]
    fn a_duplicate_run_ends_where_the_stream_leaves_the_log() {
        let mut arrivals = Arrivals::default();
        let outcomes = [at(7), at(8), Outcome::Unique, at(9), at(4), at(5), Outcome::Elsewhere, at(6)];
        for (sequence, outcome) in (0..).zip(outcomes) {
            arrivals.arrive_decided(Sequence(sequence), outcome);
        }
        arrivals.finish();
        let found: Vec<_> = arrivals.take_ended().iter().map(|it| (it.start.0, it.len, it.uniques_before)).collect();
        assert_eq!(found, [(7, 2, 0), (9, 1, 1), (4, 2, 1), (6, 1, 1)]);
    }

    #[test]
    fn false_positives_do_not_shorten_runs() {
        let mut arrivals = Arrivals::default();
        let mut sequence = 0;
        for run in 0..200 {
            for chunk in 0..10 {
                arrivals.arrive_decided(Sequence(sequence), at(run * 1_000 + chunk));
                sequence += 1;
                arrivals.arrive_decided(Sequence(sequence), Outcome::FalsePositive);
                sequence += 1;
            }
        }
        assert!((8..=12).contains(&arrivals.runs.mean_run()), "{:?}", arrivals.runs);
        assert!(arrivals.runs.duplicates_per_lookup() <= 1 && 8 <= arrivals.runs.false_positives_per_run());
    }

    #[test]
    fn a_run_that_leaves_its_position_and_comes_back_is_one_run() {
        let mut arrivals = Arrivals::default();
        let mut sequence = 0;
        let mut pass = |position: u64| {
            arrivals.arrive_decided(Sequence(sequence), at(position));
            sequence += 1;
            arrivals.runs.mean_run()
        };
        // One chunk in ten was recorded elsewhere.
        let mut mean = 0;
        for run in 0..100 {
            for chunk in 0..1_000 {
                let is_displaced = chunk % 10 == 5;
                mean = pass(if is_displaced { 10_000_000 + run * 5_000 + chunk / 10 } else { run * 5_000 + chunk });
            }
        }
        assert!(300 < mean, "{mean}");
        // Two alternating positions, one of which never advances, are no run.
        for run in 0..400 {
            for chunk in 0..10 {
                pass(20_000_000 - run * 100 + chunk);
            }
            for chunk in 0..10 {
                mean = pass(30_000_000 + run * 10 + chunk);
            }
        }
        assert!((5..20).contains(&mean), "{mean}");
    }

    #[test]
    fn a_change_of_the_stream_is_noticed_within_some_runs() {
        let mut arrivals = Arrivals::default();
        for sequence in 0..1_000_000 {
            arrivals.arrive_decided(Sequence(sequence), at(sequence));
        }
        assert!(10_000 < arrivals.runs.mean_run());
        for sequence in 1_000_000..1_000_400 {
            arrivals.arrive_decided(Sequence(sequence), at((sequence * 7_919) % 100_003));
        }
        assert!(arrivals.runs.mean_run() < 600, "{:?}", arrivals.runs);
    }
}
