//! A host whose clock and randomness are functions of a seed and of the calls made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::io::{Demand, Host};
use crate::random::SplitMix64;
use crate::testing::mem_tree::MemTree;
use crate::testing::sim::SimDisk;
use crate::types::{Process, Timestamp};

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
/// Background jobs run at once, or are deferred: then each call of [`Host::background`] and [`Host::run_deferred`] draws from
/// the seed which of them run now, in any order. They overlap with the caller's work as threads would, and repeatably.
#[derive(Debug)]
pub struct SimHost {
    state: Mutex<State>,
    /// Identifier of its boot, by the seed.
    boot: [u8; 16],
}

struct State {
    wall: Timestamp,
    monotonic: Duration,
    step: Duration,
    random: blake3::OutputReader,
    /// `None`: jobs run at once.
    deferral: Option<Deferral>,
}

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait, and the draws that decide when they run.
struct Deferral {
    draw: SplitMix64,
    /// One chance in so many lets a job run that nobody waits for.
    patience: u64,
    waiting: Vec<WaitingJob>,
    /// The disk that jobs share with their caller.
    disk: SimDisk,
    /// The source that the caller reads.
    source: MemTree,
    /// Calls of the disk that jobs have made.
    calls_of_jobs: u64,
    counts: BTreeMap<&'static str, JobCounts>,
}

struct WaitingJob {
    kind: &'static str,
    job: Job,
    /// Calls of the disk and the source that its caller had made, and whether the process was dead, when the job was handed over.
    start: (u64, bool),
}

/// Counts of deferred jobs of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct JobCounts {
    /// Jobs before which their caller went on to use the disk or the source.
    pub overlapped: u64,
    /// Jobs that had not run when the process died.
    pub lost: u64,
    /// Jobs in which a planned fault struck.
    pub interrupted: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("wall", &self.wall).finish_non_exhaustive()
    }
}

impl Deferral {
    /// Returns the calls that the caller of jobs has made, and whether the process is dead.
    fn now(&self) -> (u64, bool) {
        (self.disk.calls().saturating_sub(self.calls_of_jobs) + self.source.calls(), self.disk.is_dead())
    }
}

impl SimHost {
    /// Makes a host whose randomness is drawn from the seed. Its clock starts with the year 2026.
    pub fn new(seed: u64) -> Self {
        let random = blake3::Hasher::new().update(b"onefold simulated host").update(&seed.to_le_bytes()).finalize_xof();
        let wall = Timestamp { seconds: START_SECONDS, nanoseconds: 0 };
        let state = State { wall, monotonic: Duration::ZERO, step: STEP, random, deferral: None };
        Self { state: Mutex::new(state), boot: (u128::from(seed) + 1).to_be_bytes() }
    }

    /// Makes a host that defers background jobs; the seed decides for how long and in which order.
    pub fn deferring(seed: u64) -> Self {
        let host = Self::new(seed);
        host.defer(seed);
        host
    }

    /// Defers background jobs from now on; the seed decides for how long and in which order.
    pub fn defer(&self, seed: u64) {
        let mut draw = SplitMix64::new(seed);
        let patience = 2 + draw.below(PATIENCE_MAX - 1);
        let (disk, source) = (SimDisk::new(), MemTree::new());
        let (waiting, calls_of_jobs, counts) = (Vec::new(), 0, BTreeMap::new());
        self.state().deferral = Some(Deferral { draw, patience, waiting, disk, source, calls_of_jobs, counts });
    }

    /// Counts deferred jobs against the calls of a disk and a source from now on.
    pub fn observe(&self, disk: &SimDisk, source: &MemTree) {
        if let Some(deferral) = &mut self.state().deferral {
            deferral.calls_of_jobs = disk.calls();
            (deferral.disk, deferral.source) = (disk.clone(), source.clone());
        }
    }

    /// Returns the counts of deferred jobs by kind.
    pub fn job_counts(&self) -> BTreeMap<&'static str, JobCounts> {
        self.state().deferral.as_ref().map(|deferral| deferral.counts.clone()).unwrap_or_default()
    }

    /// Runs jobs so long as the draw says so; returns true if it ran one.
    fn run_some(&self, mut decide: impl FnMut(&mut SplitMix64, u64) -> bool) -> bool {
        let mut ran = false;
        loop {
            let (WaitingJob { kind, job, start }, (calls, dead), disk) = {
                let mut state = self.state();
                let Some(deferral) = &mut state.deferral else { return ran };
                if deferral.waiting.is_empty() || !decide(&mut deferral.draw, deferral.patience) {
                    return ran;
                }
                let index = deferral.draw.index(deferral.waiting.len());
                (deferral.waiting.swap_remove(index), deferral.now(), deferral.disk.clone())
            };
            let (before, struck) = (disk.calls(), disk.faults_struck());
            // Not under the lock: a job may ask for the time.
            job();
            ran = true;
            if let Some(deferral) = &mut self.state().deferral {
                deferral.calls_of_jobs += disk.calls() - before;
                let counts = deferral.counts.entry(kind).or_default();
                counts.overlapped += u64::from(start.0 < calls && !dead);
                counts.lost += u64::from(!start.1 && dead);
                counts.interrupted += u64::from(struck < disk.faults_struck());
            }
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

    fn sleep(&self, duration: Duration) {
        self.state().monotonic += duration;
    }

    fn process(&self) -> Option<Process> {
        Some(Process { boot: self.boot, id: 1 })
    }

    fn background(&self, kind: &'static str, job: Job) {
        let mut state = self.state();
        let Some(deferral) = &mut state.deferral else {
            drop(state);
            return job();
        };
        let start = deferral.now();
        deferral.waiting.push(WaitingJob { kind, job, start });
        drop(state);
        self.run_some(|draw, patience| draw.below(patience) == 0);
    }

    fn run_deferred(&self, demand: Demand) -> bool {
        let mut is_first = true;
        self.run_some(|draw, patience| match demand {
            Demand::Polled => draw.below(patience) == 0,
            Demand::Awaited => std::mem::take(&mut is_first),
        })
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
