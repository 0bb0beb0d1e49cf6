//! Jobs that run in the background, and their results.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use crate::error::{Error, Result};
use crate::io::{Demand, Host};

/// A job that was handed to a [`Host`]. Dropping it waits for the end of the job, so that no job uses files whose owner
/// is gone.
pub struct Background<T> {
    host: Arc<dyn Host>,
    done: Receiver<T>,
    state: State<T>,
}

enum State<T> {
    Running,
    /// The job has ended, and its result is not taken yet.
    Ended(Result<T>),
    Taken,
}

/// Carries work out on another thread, and waits for it. A thread that uses `io_uring` is interrupted when its requests end: a read from
/// a socket with a time limit then fails. Panics if the work does.
pub fn on_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let outcome = scope.spawn(work).join();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl<T> fmt::Debug for Background<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = matches!(self.state, State::Running);
        f.debug_struct("Background").field("is_running", &is_running).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Background<T> {
    /// Hands a job of a named kind to the host.
    pub fn start(host: &Arc<dyn Host>, kind: &'static str, job: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, done) = channel();
        let run = move || {
            // The receiver lives until the job has ended.
            let _ = sender.send(job());
        };
        host.background(kind, Box::new(run));
        Self { host: Arc::clone(host), done, state: State::Running }
    }
}

impl<T> Background<T> {
    /// Returns true if the job has ended, without waiting for it.
    pub fn has_ended(&mut self) -> bool {
        if let State::Running = self.state {
            self.host.run_deferred(Demand::Polled);
            match self.done.try_recv() {
                Ok(result) => self.state = State::Ended(Ok(result)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.state = State::Ended(Err(died())),
            }
        }
        !matches!(self.state, State::Running)
    }

    /// Waits for the end of the job and returns its result. Fails only if the job ended without one, by a panic.
    pub fn wait(mut self) -> Result<T> {
        self.end();
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Ended(result) => result,
            State::Running | State::Taken => Err(died()),
        }
    }

    fn end(&mut self) {
        while let State::Running = self.state {
            match self.done.try_recv() {
                Ok(result) => self.state = State::Ended(Ok(result)),
                Err(TryRecvError::Disconnected) => self.state = State::Ended(Err(died())),
                Err(TryRecvError::Empty) => {
                    if !self.host.run_deferred(Demand::Awaited) {
                        self.state = State::Ended(self.done.recv().map_err(|_| died()));
                    }
                }
            }
        }
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.end();
    }
}

fn died() -> Error {
    Error::invalid("a background job ended without a result")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::io::os::OsHost;
    use crate::testing::sim::SimHost;

    fn count(host: &Arc<dyn Host>, number: u64, total: &Arc<AtomicU64>) -> Background<u64> {
        let total = Arc::clone(total);
        Background::start(host, "addition", move || total.fetch_add(number, Ordering::Relaxed))
    }

    #[test]
    fn results_come_from_hosts_with_threads_and_from_those_that_put_jobs_off() {
        let deferring = (0..20).map(|seed| Arc::new(SimHost::deferring(seed)) as Arc<dyn Host>);
        for host in deferring.chain([Arc::new(OsHost::new()) as Arc<dyn Host>, Arc::new(SimHost::new(1))]) {
            let mut jobs: Vec<_> =
                (0..10_u64).map(|number| Background::start(&host, "product", move || 10 * number)).collect();
            while !jobs.iter_mut().any(Background::has_ended) {
                std::thread::yield_now();
            }
            let results: Vec<u64> = jobs.into_iter().map(|job| job.wait().unwrap()).collect();
            assert_eq!(results, (0..10).map(|number| 10 * number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_job_that_nobody_waits_for_has_ended_when_its_handle_is_gone() {
        let total = Arc::new(AtomicU64::new(0));
        for seed in 0..20 {
            let host: Arc<dyn Host> = Arc::new(SimHost::deferring(seed));
            for number in 1..=3 {
                let before = total.load(Ordering::Relaxed);
                drop(count(&host, number, &total));
                assert_eq!(total.load(Ordering::Relaxed), before + number);
            }
        }
    }

    #[test]
    fn jobs_of_a_deferring_host_run_late_out_of_order_and_alike_for_one_seed() {
        let run = |seed| {
            let host: Arc<dyn Host> = Arc::new(SimHost::deferring(seed));
            let order = Arc::new(std::sync::Mutex::new(Vec::new()));
            let jobs: Vec<_> = (0..8)
                .map(|number| {
                    let order = Arc::clone(&order);
                    Background::start(&host, "note", move || order.lock().unwrap().push(number))
                })
                .collect();
            drop(jobs);
            order.lock().unwrap().clone()
        };
        let all: Vec<_> = (0..20).map(run).collect();
        assert!(all.iter().any(|order| !order.is_sorted()));
        assert_eq!(all, (0..20).map(run).collect::<Vec<_>>());
    }
}
