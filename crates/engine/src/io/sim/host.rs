//! A host whose clock and randomness are functions of a seed and of the calls made.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::io::Host;
use crate::types::Timestamp;

/// How far the clocks move with each call, until set otherwise.
const STEP: Duration = Duration::from_millis(1);
/// When simulated hosts start, until set otherwise: 2026-01-01 00:00:00 UTC.
const START_SECONDS: i64 = 1_767_225_600;
/// Tick of the clock that stamps files: 4 ms, as of a kernel with 250 ticks a second.
const TICK_NANOSECONDS: u32 = 4_000_000;

/// A [`Host`] that a seed repeats: same seed and same calls, same answers.
#[derive(Debug)]
pub struct SimHost {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    wall: Timestamp,
    monotonic: Duration,
    step: Duration,
    random: blake3::OutputReader,
}

impl SimHost {
    /// Makes a host whose randomness is drawn from the seed. Its clock starts with the year 2026.
    pub fn new(seed: u64) -> Self {
        let random = blake3::Hasher::new().update(b"onefold simulated host").update(&seed.to_le_bytes()).finalize_xof();
        let wall = Timestamp { seconds: START_SECONDS, nanoseconds: 0 };
        Self { state: Mutex::new(State { wall, monotonic: Duration::ZERO, step: STEP, random }) }
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

    fn background(&self, job: Box<dyn FnOnce() + Send>) {
        job();
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
