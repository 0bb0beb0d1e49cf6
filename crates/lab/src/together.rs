//! Threads that do the same work and begin together.

use std::sync::mpsc::channel;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::counts::float;
use crate::processor::{processor_time, processor_time_since};

/// Most threads of a measurement.
pub(crate) const THREADS_MAX: usize = 256;

/// Work of several threads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Taken {
    /// Bytes of all threads.
    pub(crate) bytes: u64,
    /// Time by the clock, from the moment when all are ready until the last one ends.
    pub(crate) elapsed: Duration,
    /// Processor time of all threads.
    pub(crate) processor: Duration,
}

impl Taken {
    /// Returns MB per second by the clock.
    pub(crate) fn rate(&self) -> f64 {
        float(self.bytes) / 1e6 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns seconds of processor time for a GB.
    pub(crate) fn processor_per_gigabyte(&self) -> f64 {
        self.processor.as_secs_f64() / (float(self.bytes.max(1)) / 1e9)
    }
}

/// Returns how many threads this process can run at the same time.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Prepares the work of each thread, by its number from 0 on, then does it in all of them at the same time. Work returns the bytes that it
/// took. Preparing does not count.
pub(crate) fn together<W>(
    threads: usize,
    prepare: impl Fn(usize) -> Result<W> + Sync,
    work: impl Fn(W) -> Result<u64> + Sync,
) -> Result<Taken> {
    ensure!((1..=THREADS_MAX).contains(&threads), "threads: 1 to {THREADS_MAX}, not {threads}");
    // Closed until every thread is ready. When a thread is refused, the gate opens and the others end.
    let gate = RwLock::new(());
    let (ready, all_ready) = channel();
    std::thread::scope(|scope| {
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let workers = (0..threads)
            .map(|number| {
                let (gate, ready, prepare, work) = (&gate, ready.clone(), &prepare, &work);
                let body = move || -> Result<(u64, Duration)> {
                    let prepared = prepare(number);
                    // The receiver lives as long as the scope.
                    let _received = ready.send(());
                    drop(gate.read());
                    let start = processor_time();
                    Ok((work(prepared?)?, processor_time_since(start)))
                };
                std::thread::Builder::new().spawn_scoped(scope, body).context("start a thread")
            })
            .collect::<Result<Vec<_>>>()?;
        (0..threads).try_for_each(|_| all_ready.recv()).context("wait for threads")?;
        let start = Instant::now();
        drop(closed);
        let mut taken = Taken { bytes: 0, elapsed: Duration::ZERO, processor: Duration::ZERO };
        for worker in workers {
            let (bytes, processor) = worker.join().ok().context("a thread panicked")??;
            taken.bytes += bytes;
            taken.processor += processor;
        }
        taken.elapsed = start.elapsed();
        Ok(taken)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_all_threads_count_and_an_error_of_one_is_reported() {
        let prepare = |number: usize| Ok(number as u64);
        let taken = together(5, prepare, |number| Ok(10 + number)).unwrap();
        assert_eq!(taken.bytes, 60);
        assert!(taken.rate() > 0.0);
        let failed = together(5, prepare, |number| if number == 3 { anyhow::bail!("the fourth") } else { Ok(1) });
        assert_eq!(failed.unwrap_err().to_string(), "the fourth");
        let unprepared =
            together(2, |number| if number == 1 { anyhow::bail!("not ready") } else { Ok(()) }, |()| Ok(1));
        assert_eq!(unprepared.unwrap_err().to_string(), "not ready");
        assert!(together(0, prepare, Ok).is_err());
        let taken = Taken { bytes: 2_000_000_000, elapsed: Duration::from_secs(2), processor: Duration::from_secs(3) };
        assert!((taken.rate() - 1000.0).abs() < 1e-9 && (taken.processor_per_gigabyte() - 1.5).abs() < 1e-9);
    }
}
