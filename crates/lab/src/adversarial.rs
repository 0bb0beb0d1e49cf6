//! Streams made against schedules: phases of duplicates that come in a different way each, drawn by a seed.
//!
//! A phase repeats chunks in one of seven ways, or has new chunks only. Its length, the lengths of its runs, and the chunks that it
//! repeats are drawn too, most of them over many orders of magnitude. A schedule that adapts must notice each change. Some phases
//! begin a session, which finds the cache empty.

use anyhow::{Result, ensure};
use onefold_engine::types::Chunk;

use crate::counts::float;
use crate::replay::{Drawn, Source};
use crate::stream::{Random, name};

/// Most chunks of a stream, which takes four bytes of memory for each.
pub const CHUNKS_MAX: u64 = 1 << 28;

/// Length of all chunks.
const CHUNK_BYTES: u32 = 8192;
/// Longest run of duplicates.
const RUN_MAX: u64 = 100_000;
/// Longest run in a burst, and between two gaps.
const SHORT_RUN_MAX: u64 = 8;
/// Longest gap.
const GAP_MAX: u64 = 64;
/// Most chunks that are shuffled together.
const SHUFFLED_MAX: u64 = 8192;
/// Most earlier positions of the stream that a phase interleaves.
const INTERLEAVED_MAX: u64 = 32;
/// Most repetitions of one run.
const REPETITIONS_MAX: u64 = 16;
/// Shortest phase.
const PHASE_MIN: u64 = 64;
/// The longest phase is one part in so many of the stream.
const PHASE_SHARE: u64 = 8;
/// One phase in so many begins a session.
const SESSION_SHARE: u64 = 6;

/// How the duplicates of a phase come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Not at all.
    Unique,
    /// In runs from random positions, with new chunks between them.
    Runs,
    /// In order but for a shuffle of each few.
    Shuffled,
    /// In runs from several positions, one chunk of each in turn.
    Interleaved,
    /// Backward.
    Reversed,
    /// In short runs, which alternate with short runs of new chunks.
    Bursts,
    /// One run again and again.
    Repeated,
    /// In short runs, with gaps in what they repeat.
    Gaps,
}

const KINDS: [Kind; 8] = [
    Kind::Unique,
    Kind::Runs,
    Kind::Shuffled,
    Kind::Interleaved,
    Kind::Reversed,
    Kind::Bursts,
    Kind::Repeated,
    Kind::Gaps,
];

/// A phase of a stream.
#[derive(Clone, Debug)]
struct Phase {
    kind: Kind,
    /// Position in the stream at which it ends.
    end: usize,
    /// Mean length of a run of duplicates.
    run: u64,
    /// Whether lengths are geometric, not uniform.
    is_geometric: bool,
    /// Mean length of a run of new chunks after each; 0 for none.
    unique: u64,
    /// Positions in the stream that the next duplicates come from.
    positions: Vec<usize>,
}

/// An adversarial stream. The same seed and length give the same chunks.
#[derive(Clone, Debug)]
pub struct Adversarial {
    random: Random,
    chunks: usize,
    /// Numbers of the chunks up to the end of the last step. A new chunk has the number of the distinct ones before it.
    history: Vec<u32>,
    /// Distinct chunks among them.
    known: u32,
    /// Chunks that were drawn, and how many of them were new.
    drawn: usize,
    drawn_new: u32,
    phase: Phase,
    session: u32,
    is_between_sessions: bool,
}

impl Adversarial {
    /// Makes the stream of a seed, with so many chunks: from 1 to [`CHUNKS_MAX`].
    pub fn new(seed: u64, chunks: u64) -> Result<Self> {
        ensure!((1..=CHUNKS_MAX).contains(&chunks), "an adversarial stream has 1 to {CHUNKS_MAX} chunks, not {chunks}");
        let mut random = Random::new(seed);
        // There must be something to repeat.
        let end = index(chunks.div_ceil(4 + random.below(PHASE_SHARE)));
        let phase =
            Phase { kind: Kind::Unique, end, run: RUN_MAX, is_geometric: false, unique: 0, positions: Vec::new() };
        Ok(Self {
            random,
            chunks: index(chunks),
            history: Vec::new(),
            known: 0,
            drawn: 0,
            drawn_new: 0,
            phase,
            session: 0,
            is_between_sessions: false,
        })
    }

    /// Returns a length from 1 to `max`, of any order of magnitude.
    fn any_length(&mut self, max: u64) -> u64 {
        let scale = 1 << self.random.below(u64::from(max.max(1).ilog2()) + 1);
        (scale + self.random.below(scale)).min(max)
    }

    fn any_position(&mut self) -> usize {
        index(self.random.below(self.history.len() as u64))
    }

    fn run_length(&mut self) -> usize {
        let mean = self.phase.run;
        let len = if self.phase.is_geometric { self.random.geometric(float(mean)) } else { self.up_to_twice(mean) };
        index(len.min(RUN_MAX))
    }

    /// Returns a length of this mean, about.
    fn up_to_twice(&mut self, mean: u64) -> u64 {
        1 + self.random.below(2 * mean)
    }

    fn begin_phase(&mut self) {
        let kind = KINDS[index(self.random.below(KINDS.len() as u64))];
        let longest = (self.chunks as u64 / PHASE_SHARE).max(PHASE_MIN);
        let len = self.any_length(longest).max(PHASE_MIN);
        let run_max = match kind {
            Kind::Bursts | Kind::Gaps => SHORT_RUN_MAX,
            Kind::Shuffled => SHUFFLED_MAX,
            Kind::Unique | Kind::Runs | Kind::Interleaved | Kind::Reversed | Kind::Repeated => RUN_MAX,
        };
        let run = self.any_length(run_max.min(len));
        let unique = match kind {
            Kind::Bursts => self.any_length(SHORT_RUN_MAX),
            _ if self.random.below(2) == 0 => 0,
            _ => self.any_length(run),
        };
        let is_geometric = self.random.below(2) == 0;
        let positions = if kind == Kind::Interleaved { 1 + self.any_length(INTERLEAVED_MAX) } else { 1 };
        let positions = (0..positions).map(|_| self.any_position()).collect();
        let end = self.history.len().saturating_add(index(len)).min(self.chunks);
        self.phase = Phase { kind, end, run, is_geometric, unique, positions };
        let begins_session = self.random.below(SESSION_SHARE) == 0;
        self.session += u32::from(begins_session);
        self.is_between_sessions = begins_session;
    }

    /// Adds a run to the stream, or what corresponds to one, and new chunks after it.
    fn step(&mut self) {
        let begin = self.history.len();
        let run = self.run_length();
        match self.phase.kind {
            Kind::Unique => self.add_new(run),
            Kind::Runs => {
                let position = self.any_position();
                self.add_run(position, run);
            }
            Kind::Bursts => self.go_on(0, run),
            Kind::Shuffled => {
                self.go_on(0, run);
                for last in (begin + 1..self.history.len()).rev() {
                    let other = begin + index(self.random.below((last - begin + 1) as u64));
                    self.history.swap(last, other);
                }
            }
            Kind::Interleaved => {
                for _ in 0..run {
                    (0..self.phase.positions.len()).for_each(|which| self.go_on(which, 1));
                }
            }
            Kind::Reversed => {
                let position = self.any_position();
                self.add_run(position, run);
                self.history[begin..].reverse();
            }
            Kind::Repeated => {
                let position = self.any_position();
                for _ in 0..=self.any_length(REPETITIONS_MAX) {
                    self.add_run(position, run.min(begin - position));
                }
            }
            Kind::Gaps => {
                self.go_on(0, run);
                let gap = index(self.any_length(GAP_MAX));
                self.phase.positions.iter_mut().for_each(|position| *position += gap);
            }
        }
        if self.phase.unique != 0 {
            let len = self.up_to_twice(self.phase.unique);
            self.add_new(index(len));
        }
    }

    fn add_new(&mut self, len: usize) {
        for _ in 0..len.min(self.phase.end - self.history.len()) {
            self.history.push(self.known);
            self.known += 1;
        }
    }

    fn add_run(&mut self, position: usize, len: usize) {
        let len = len.min(self.phase.end - self.history.len()).min(self.history.len() - position);
        self.history.extend_from_within(position..position + len);
    }

    /// Adds a run from one of the phase's positions, which moves on. At the end of the stream it goes anywhere else.
    fn go_on(&mut self, which: usize, len: usize) {
        if self.history.len() <= self.phase.positions[which] {
            self.phase.positions[which] = self.any_position();
        }
        let position = self.phase.positions[which];
        self.add_run(position, len);
        self.phase.positions[which] = position.saturating_add(len);
    }
}

impl Source for Adversarial {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        while self.drawn == self.history.len() {
            if self.chunks <= self.drawn || self.is_between_sessions {
                return Ok(None);
            }
            if self.phase.end <= self.drawn {
                self.begin_phase();
            } else {
                self.step();
            }
        }
        let number = self.history[self.drawn];
        let is_new = number == self.drawn_new;
        self.drawn += 1;
        self.drawn_new += u32::from(is_new);
        let chunk = Chunk { fingerprint: name(u64::from(number)), len: CHUNK_BYTES };
        Ok(Some(Drawn::inside(chunk, is_new)))
    }

    fn next_session(&mut self) -> Result<bool> {
        Ok(std::mem::take(&mut self.is_between_sessions))
    }

    fn session(&self) -> u32 {
        self.session - u32::from(self.is_between_sessions)
    }
}

/// Returns a length or a position as an index; both are far below 2^32.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns the names of the chunks of each session, after checking what is said of them.
    fn sessions(seed: u64, chunks: u64) -> Vec<Vec<[u8; 32]>> {
        let mut stream = Adversarial::new(seed, chunks).unwrap();
        let mut known = HashSet::new();
        let mut sessions = vec![Vec::new()];
        loop {
            while let Some(Drawn { chunk, is_new, .. }) = stream.draw().unwrap() {
                assert_eq!(is_new, Some(known.insert(chunk.fingerprint.0)), "seed {seed}");
                assert_eq!(stream.session() as usize, sessions.len() - 1);
                sessions.last_mut().unwrap().push(chunk.fingerprint.0);
            }
            if !stream.next_session().unwrap() {
                return sessions;
            }
            sessions.push(Vec::new());
        }
    }

    #[test]
    fn a_stream_has_its_length_and_the_truth_about_each_chunk() {
        let mut shares = Vec::new();
        for (seed, chunks) in (0..40).zip([1, 64, 5_000, 60_000].into_iter().cycle()) {
            let sessions = sessions(seed, chunks);
            let all: Vec<_> = sessions.concat();
            assert_eq!(all.len() as u64, chunks, "seed {seed}");
            assert!(sessions.iter().all(|session| !session.is_empty()), "seed {seed}");
            let distinct = all.iter().collect::<HashSet<_>>().len();
            shares.push((sessions.len(), float(distinct as u64) / float(chunks)));
        }
        assert_eq!(sessions(3, 60_000), sessions(3, 60_000));
        assert_ne!(sessions(3, 60_000), sessions(7, 60_000));
        // Streams differ in what they repeat, and most have several sessions.
        assert!(shares.iter().any(|(_, share)| *share < 0.4), "{shares:?}");
        assert!(10 < shares.iter().filter(|(sessions, _)| 1 < *sessions).count(), "{shares:?}");
        assert!(Adversarial::new(1, 0).is_err() && Adversarial::new(1, CHUNKS_MAX + 1).is_err());
    }

    #[test]
    fn every_kind_of_phase_occurs_and_does_what_it_says() {
        let mut seen = HashSet::new();
        let mut stream = Adversarial::new(11, 400_000).unwrap();
        while stream.draw().unwrap().is_some() || stream.next_session().unwrap() {
            seen.insert(format!("{:?}", stream.phase.kind));
        }
        assert_eq!(seen.len(), KINDS.len(), "{seen:?}");

        let step = |kind, run, positions: Vec<usize>| {
            let mut stream = Adversarial::new(1, 10_000).unwrap();
            stream.add_new(1000);
            stream.phase = Phase { kind, end: 5_000, run, is_geometric: false, unique: 0, positions };
            stream.step();
            stream.history.split_off(1000)
        };
        let is_forward = |run: &[u32]| run.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let mut reversed = step(Kind::Reversed, 100, vec![0]);
        reversed.reverse();
        assert!(!reversed.is_empty() && is_forward(&reversed));
        let mut shuffled = step(Kind::Shuffled, 100, vec![10]);
        assert!(!is_forward(&shuffled));
        shuffled.sort_unstable();
        assert!(is_forward(&shuffled) && shuffled[0] == 10);
        let interleaved = step(Kind::Interleaved, 100, vec![10, 500]);
        assert_eq!(interleaved[..4], [10, 500, 11, 501]);
        let repeated = step(Kind::Repeated, 3, vec![0]);
        assert_eq!(
            repeated.iter().filter(|number| **number == repeated[0]).count() * run_of(&repeated),
            repeated.len()
        );
    }

    /// Returns the length of the first run of consecutive numbers.
    fn run_of(numbers: &[u32]) -> usize {
        1 + numbers.windows(2).take_while(|pair| pair[1] == pair[0] + 1).count()
    }
}
