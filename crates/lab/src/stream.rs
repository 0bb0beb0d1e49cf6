//! Streams of fingerprints with known ground truth: a chunk's number shows whether it is a duplicate.
//!
//! New chunks are numbered consecutively. Duplicates come in runs of consecutive numbers that were used before. A chunk is new if its
//! number equals the number of known chunks, so the check needs no memory.

use anyhow::{Context, Result};
use onefold_engine::random::{SplitMix64, mix64};
use onefold_engine::types::Fingerprint;
use serde::Deserialize;

use crate::counts::float;

/// Lengths of runs.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runs {
    /// Drawn uniformly from a range.
    Uniform(u64, u64),
    /// Geometric with this mean.
    Geometric(f64),
}

/// Distances back to the first occurrences of duplicates, in known chunks.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lags {
    /// Anywhere.
    Uniform,
    /// Within this many of the newest.
    Recent(u64),
    /// As in backups of one source: each pass repeats the chunks in order, from the first to the last known at its start, with gaps.
    Passes,
}

impl Lags {
    /// Reads what a varied dimension calls them: `uniform`, `passes`, or a number of recent chunks.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "uniform" => Self::Uniform,
            "passes" => Self::Passes,
            _ => {
                Self::Recent(text.parse().with_context(|| format!("lags: uniform, passes or a number, not {text:?}"))?)
            }
        })
    }
}

/// Runs of one kind, a part of all duplicates.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Part {
    /// Share of duplicates that come in such runs, in proportion to those of the other parts.
    pub share: f64,
    /// Lengths of the runs.
    pub runs: Runs,
    /// Their distances.
    pub lags: Lags,
}

/// Properties of a stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Share of duplicates among all chunks, 0 to 1.
    pub duplicates: f64,
    /// Runs of duplicates.
    pub runs: Runs,
    /// Their distances.
    pub lags: Lags,
}

/// Seeded numbers of several distributions.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.bits()) * u128::from(end)) >> 64).expect("below a 64-bit number")
    }

    /// Returns a number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        float(self.bits() >> 11) / float(1 << 53)
    }

    /// Returns a length of at least 1, geometric with this mean.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are far below 2^53")]
    pub fn geometric(&mut self, mean: f64) -> u64 {
        if mean <= 1.0 {
            return 1;
        }
        let log = f64::ln(1.0 - self.share()) / f64::ln(1.0 - 1.0 / mean);
        log as u64 + 1
    }
}

/// Returns the name of a chunk: uniform bits that its number decides.
pub fn name(number: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    for (word, place) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let salt: u64 = 0x2545_f491_4f6c_dd1d_u64.wrapping_mul(2 * word + 1);
        place.copy_from_slice(&mix64(mix64(number.wrapping_add(salt)) ^ salt).to_le_bytes());
    }
    Fingerprint(bytes)
}

/// A part, and where its passes are.
#[derive(Clone, Debug)]
struct Kind {
    part: Part,
    pass: u64,
    pass_end: u64,
}

/// The generator.
#[derive(Clone, Debug)]
pub struct Stream {
    random: Random,
    duplicates: f64,
    kinds: Vec<Kind>,
    /// Mean length of runs of duplicates of all kinds.
    mean: f64,
    /// Number of known chunks, which have smaller numbers.
    known: u64,
    /// The current run: next number, rest of its length, and whether its chunks are new.
    next: u64,
    left: u64,
    is_new: bool,
}

impl Stream {
    /// Starts with `known` chunks known.
    pub fn new(seed: u64, shape: Shape, known: u64) -> Self {
        let Shape { duplicates, runs, lags } = shape;
        Self::mixed(seed, duplicates, &[Part { share: 1.0, runs, lags }], known)
    }

    /// Starts one whose duplicates come in runs of several kinds, in random order. There is at least one part.
    pub fn mixed(seed: u64, duplicates: f64, parts: &[Part], known: u64) -> Self {
        let kinds: Vec<_> = parts.iter().map(|part| Kind { part: *part, pass: 0, pass_end: known }).collect();
        let (chunks, runs) = kinds.iter().fold((0.0, 0.0), |(chunks, runs), Kind { part, .. }| {
            (chunks + part.share, runs + part.share / mean(part.runs))
        });
        let mean = if runs <= 0.0 { 1.0 } else { chunks / runs };
        Self { random: Random::new(seed), duplicates, kinds, mean, known, next: 0, left: 0, is_new: false }
    }

    /// Returns the number of distinct chunks.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Returns the number of the next chunk, and whether it is new.
    pub fn draw(&mut self) -> (u64, bool) {
        if self.left == 0 {
            self.begin_run();
        }
        self.left -= 1;
        let number = self.next;
        self.next += 1;
        if self.is_new {
            self.known = self.next;
        }
        (number, self.is_new)
    }

    fn begin_run(&mut self) {
        let duplicates = self.duplicates;
        // Runs of duplicates and of new chunks alternate; their mean lengths are in proportion to their shares.
        let was_new = self.is_new;
        self.is_new = match duplicates {
            _ if self.known == 0 || duplicates <= 0.0 => true,
            _ if 1.0 <= duplicates => false,
            _ => !was_new,
        };
        if self.is_new {
            let mean_new = self.mean * (1.0 - duplicates) / duplicates.max(1e-9);
            self.left = if duplicates <= 0.0 { 1 << 20 } else { self.random.geometric(mean_new.max(1.0)) };
            self.next = self.known;
            // With less than one new chunk for each run, some runs of new chunks are skipped.
            if mean_new < 1.0 && mean_new < self.random.share() {
                self.is_new = false;
            } else {
                return;
            }
        }
        let kind = self.draw_kind();
        let run = self.draw_length(self.kinds[kind].part.runs);
        let (start, end) = self.source(kind, run);
        self.next = start;
        self.left = run.min(end - start).max(1);
    }

    /// Returns the start of a run of duplicates and its limit.
    fn source(&mut self, kind: usize, run: u64) -> (u64, u64) {
        let Kind { part, pass, pass_end } = &mut self.kinds[kind];
        match part.lags {
            Lags::Uniform => (self.random.below(self.known.saturating_sub(run).max(1)), self.known),
            Lags::Recent(lag) => {
                let lag = lag.min(self.known);
                (self.known - lag + self.random.below(lag.saturating_sub(run).max(1)), self.known)
            }
            Lags::Passes => {
                if *pass_end <= *pass {
                    *pass = 0;
                    *pass_end = self.known;
                }
                let start = *pass;
                // As many chunks were replaced as were added.
                *pass = (start + run).min(*pass_end) + self.random.below(run / 8 + 2);
                (start, *pass_end)
            }
        }
    }

    /// Draws the kind of the next run: shares are of chunks, so kinds of long runs are drawn less often.
    fn draw_kind(&mut self) -> usize {
        if self.kinds.len() == 1 {
            return 0;
        }
        let weight = |kind: &Kind| kind.part.share / mean(kind.part.runs);
        let mut at = self.random.share() * self.kinds.iter().map(weight).sum::<f64>();
        let past = |kind: &Kind| {
            at -= weight(kind);
            at < 0.0
        };
        self.kinds.iter().position(past).unwrap_or(0)
    }

    fn draw_length(&mut self, runs: Runs) -> u64 {
        match runs {
            Runs::Uniform(from, to) => from + self.random.below(to.saturating_sub(from) + 1),
            Runs::Geometric(mean) => self.random.geometric(mean),
        }
    }
}

fn mean(runs: Runs) -> f64 {
    match runs {
        Runs::Uniform(from, to) => float(from + to) / 2.0,
        Runs::Geometric(mean) => mean.max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_duplicates_are_kept_and_only_known_chunks_repeat() {
        for duplicates in [0.0, 0.19, 0.35, 0.6, 0.91, 1.0] {
            for runs in [Runs::Uniform(1, 1), Runs::Geometric(4.0), Runs::Uniform(200, 5_000)] {
                for lags in [Lags::Uniform, Lags::Recent(5_000), Lags::Passes] {
                    let mut stream = Stream::new(7, Shape { duplicates, runs, lags }, 100_000);
                    let (mut repeated, total) = (0_u32, 400_000_u32);
                    for _ in 0..total {
                        let known = stream.known();
                        let (number, is_new) = stream.draw();
                        assert_eq!(is_new, number == known);
                        assert!(number <= known);
                        repeated += u32::from(!is_new);
                    }
                    let share = f64::from(repeated) / f64::from(total);
                    assert!((share - duplicates).abs() < 0.08, "{share}, not {duplicates}, {runs:?} {lags:?}");
                }
            }
        }
    }

    #[test]
    fn kinds_of_runs_have_their_shares_of_the_duplicates() {
        let part = |share, mean, lags| Part { share, runs: Runs::Geometric(mean), lags };
        let parts = [part(3.0, 10_000.0, Lags::Passes), part(1.0, 10.0, Lags::Recent(1_000))];
        let mut stream = Stream::mixed(3, 0.8, &parts, 1_000_000);
        let (mut duplicates, mut near, mut before) = (0_u32, 0_u32, 0);
        for _ in 0..3_000_000 {
            let known = stream.known();
            let (number, is_new) = stream.draw();
            duplicates += u32::from(!is_new);
            // A run may begin near the newest chunk, and goes on while the distance stays.
            near += u32::from(!is_new && known - number <= 1_000);
            before += u32::from(number == 0);
        }
        assert!(0 < before, "passes begin at the first chunk");
        let (of_all, of_near) = (f64::from(duplicates) / 3e6, f64::from(near) / f64::from(duplicates));
        assert!((of_all - 0.8).abs() < 0.03 && (of_near - 0.25).abs() < 0.03, "{of_all}, {of_near}");
    }

    #[test]
    fn names_differ_and_are_the_same_each_time() {
        assert_eq!(name(5), name(5));
        let mut all: Vec<_> = (0..10_000).map(|number| name(number).0).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
    }
}
