//! A host whose clock and randomness are functions of a seed and of the calls made.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::io::{Demand, Host};
use crate::random::SplitMix64;
use crate::types::Timestamp;

/// How far the clocks move with each call, until set otherwise.
const STEP: Duration = Duration::from_millis(1);
/// When simulated hosts start, until set otherwise: 2026-01-01 00:00:00 UTC.
const START_SECONDS: i64 = 1_767_225_600;
/// Tick of the clock that stamps files: 4 ms, as of a kernel with 250 ticks a second.
const TICK_NANOSECONDS: u32 = 4_000_000;

/// Most chances of which one lets a job run that nobody waits for.
const PATIENCE_MAX: u64 = 24;

/// A [`Host`] that a seed repeats: same seed and same calls, same answers.
///
/// Background jobs run at once, or are put off: then each call of [`Host::background`] and [`Host::run_deferred`] draws from
/// the seed which of them run now, in any order. They overlap with the caller's work as threads would, and repeatably.
#[derive(Debug)]
pub struct SimHost {
    state: Mutex<State>,
}

struct State {
    wall: Timestamp,
    monotonic: Duration,
    step: Duration,
    random: blake3::OutputReader,
    /// Draws that decide which jobs run; `None`: all of them, immediately.
    deferral: Option<SplitMix64>,
    /// One chance in so many lets a job run that nobody waits for.
    patience: u64,
    deferred: Vec<Job>,
    jobs_deferred: u64,
}

type Job = Box<dyn FnOnce() + Send>;

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("wall", &self.wall)
            .field("deferred", &self.deferred.len())
            .finish_non_exhaustive()
    }
}

impl SimHost {
    /// Makes a host whose randomness is drawn from the seed. Its clock starts with the year 2026.
    pub fn new(seed: u64) -> Self {
        let random = blake3::Hasher::new().update(b"onefold simulated host").update(&seed.to_le_bytes()).finalize_xof();
        let wall = Timestamp { seconds: START_SECONDS, nanoseconds: 0 };
        let monotonic = Duration::ZERO;
        let (deferral, patience, deferred, jobs_deferred) = (None, 1, Vec::new(), 0);
        let state = State { wall, monotonic, step: STEP, random, deferral, patience, deferred, jobs_deferred };
        Self { state: Mutex::new(state) }
    }

    /// Makes a host that puts background jobs off, for how long and in which order the seed decides.
    pub fn deferring(seed: u64) -> Self {
        let host = Self::new(seed);
        let mut draw = SplitMix64::new(seed);
        {
            let mut state = host.state();
            state.patience = 2 + draw.below(PATIENCE_MAX - 1);
            state.deferral = Some(draw);
        }
        host
    }

    /// Returns how many jobs ran when somebody asked for one, later than they were handed over.
    pub fn jobs_deferred(&self) -> u64 {
        self.state().jobs_deferred
    }

    /// Runs jobs so long as the draw says so; returns how many.
    fn run_some(&self, mut decide: impl FnMut(&mut SplitMix64, u64) -> bool) -> u64 {
        let mut count = 0;
        loop {
            let job = {
                let mut state = self.state();
                let State { deferral, patience, deferred, .. } = &mut *state;
                let Some(draw) = deferral else { return count };
                if deferred.is_empty() || !decide(draw, *patience) {
                    return count;
                }
                let number = draw.below(deferred.len() as u64);
                deferred.swap_remove(usize::try_from(number).unwrap_or(0))
            };
            // Not under the lock: a job may ask for the time.
            job();
            count += 1;
        }
    }

    /// Sets the wall clock, forward or back; the monotonic clock does not notice.
    pub fn set_now(&self, now: Timestamp) {
        self.state().wall = now;
    }

    /// Sets how far both clocks move with each call that asks for the time.
    pub fn set_step(&self, step: Duration) {
        self.state().step = step;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn advance(&mut self) {
        self.monotonic = self.monotonic.saturating_add(self.step);
        let within = Duration::from_nanos(u64::from(self.wall.nanoseconds)).saturating_add(self.step);
        let seconds = i64::try_from(within.as_secs()).unwrap_or(i64::MAX);
        self.wall =
            Timestamp { seconds: self.wall.seconds.saturating_add(seconds), nanoseconds: within.subsec_nanos() };
    }
}

impl Host for SimHost {
    fn now(&self) -> Timestamp {
        let mut state = self.state();
        state.advance();
        state.wall
    }

    fn file_clock(&self) -> Timestamp {
        let mut state = self.state();
        state.advance();
        let Timestamp { seconds, nanoseconds } = state.wall;
        Timestamp { seconds, nanoseconds: nanoseconds - nanoseconds % TICK_NANOSECONDS }
    }

    fn monotonic(&self) -> Duration {
        let mut state = self.state();
        state.advance();
        state.monotonic
    }

    fn background(&self, job: Job) {
        let mut state = self.state();
        let defers = state.deferral.is_some();
        if defers {
            state.deferred.push(job);
            drop(state);
            self.run_some(|draw, patience| draw.below(patience) == 0);
        } else {
            drop(state);
            job();
        }
    }

    fn run_deferred(&self, demand: Demand) -> bool {
        let mut is_first = true;
        let count = self.run_some(|draw, patience| match demand {
            Demand::Polled => draw.below(patience) == 0,
            Demand::Awaited => std::mem::take(&mut is_first),
        });
        self.state().jobs_deferred += count;
        count != 0
    }

    fn random(&self, buffer: &mut [u8]) -> Result<()> {
        self.state().random.fill(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let draw = |seed| {
            let host = SimHost::new(seed);
            let (mut first, mut second) = ([0; 40], [0; 40]);
            host.random(&mut first).unwrap();
            host.random(&mut second).unwrap();
            assert_ne!(first, second);
            (first, second)
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn clocks_move_by_the_step_and_only_the_wall_clock_can_be_set() {
        let host = SimHost::new(0);
        host.set_step(Duration::from_millis(2500));
        host.set_now(Timestamp { seconds: -3, nanoseconds: 600_000_000 });
        assert_eq!(host.now(), Timestamp { seconds: 0, nanoseconds: 100_000_000 });
        assert_eq!(host.monotonic(), Duration::from_secs(5));
        host.set_step(Duration::from_millis(3));
        assert_eq!(host.file_clock(), Timestamp { seconds: 2, nanoseconds: 600_000_000 });
        assert_eq!(host.file_clock(), Timestamp { seconds: 2, nanoseconds: 604_000_000 });
    }
}
