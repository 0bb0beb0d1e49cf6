//! The two drivers: on threads, and inline in a seeded order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::random::{GOLDEN_GAMMA, mix64};

/// A job without its types.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The workers that run the tasks of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pool {
    /// Tasks that compute.
    Compute,
    /// Tasks that wait for a source, then compute a little.
    Read,
    /// Tasks that wait for a disk.
    Wait,
}

/// Runs the tasks of all queues of one operation.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Threads { compute: Workers, read: Workers, wait: Workers },
    Inline { random: AtomicU64 },
}

/// Threads that wait for a source at the same time.
const READING_THREADS: usize = 4;
/// Threads that wait for disks at the same time.
const WAITING_THREADS: usize = 4;

impl Driver {
    /// Computes on `threads` threads, or as many as the system grants. Where it grants none, jobs run on the calling thread.
    pub fn threads(threads: usize) -> Self {
        Self::threads_and_readers(threads, threads.max(READING_THREADS))
    }

    /// Does what [`Driver::threads`] does, and reads small files and parts of long ones on `readers` threads.
    pub fn threads_and_readers(threads: usize, readers: usize) -> Self {
        let compute = Workers::start("compute", threads.max(1));
        let read = Workers::start("read", readers.max(1));
        Self(Arc::new(Kind::Threads { compute, read, wait: Workers::start("wait", WAITING_THREADS) }))
    }

    /// Computes on the calling thread, in an order drawn from the seed.
    pub fn inline(seed: u64) -> Self {
        Self(Arc::new(Kind::Inline { random: AtomicU64::new(seed) }))
    }

    /// Returns how many jobs compute at the same time at most.
    pub(crate) fn compute_count(&self) -> usize {
        match &*self.0 {
            Kind::Threads { compute, .. } => compute.count,
            Kind::Inline { .. } => 1,
        }
    }

    /// Runs a producer ahead of its consumer by at most `depth` items, on a thread of this name. With a depth of 0, it runs when the
    /// consumer asks.
    pub(crate) fn prefetch<T: Send + 'static>(
        &self,
        name: &str,
        producer: impl FnMut() -> Option<T> + Send + 'static,
        depth: usize,
    ) -> Prefetcher<T> {
        match &*self.0 {
            Kind::Threads { .. } if depth != 0 => Prefetcher::threaded(producer, depth, |body| spawn(name, body)),
            Kind::Threads { .. } | Kind::Inline { .. } => Prefetcher::Inline(Box::new(producer)),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Draws a number below `end` in inline mode; 0 on threads, where the scheduler draws.
    pub(crate) fn draw(&self, end: usize) -> usize {
        match &*self.0 {
            Kind::Threads { .. } => 0,
            Kind::Inline { random } => {
                let drawn = mix64(random.fetch_add(GOLDEN_GAMMA, Ordering::Relaxed));
                usize::try_from(drawn % end.max(1) as u64).unwrap_or(0)
            }
        }
    }
}

/// A pool of threads.
#[derive(Debug)]
pub(crate) struct Workers {
    count: usize,
    jobs: Option<Sender<Job>>,
    threads: Mutex<VecDeque<JoinHandle<()>>>,
}

impl Workers {
    fn start(name: &str, count: usize) -> Self {
        let (jobs, inbox) = unbounded::<Job>();
        let threads = (0..count)
            .map(|number| {
                let inbox: Receiver<Job> = inbox.clone();
                spawn(&format!("{name}-{number}"), move || inbox.iter().for_each(|job| job()))
            })
            // The system that refused a thread would refuse the next one as well.
            .map_while(Result::ok)
            .collect();
        Self::of(threads, jobs)
    }

    fn of(threads: VecDeque<JoinHandle<()>>, jobs: Sender<Job>) -> Self {
        Self { count: threads.len().max(1), jobs: Some(jobs), threads: Mutex::new(threads) }
    }

    /// Task queues bound the jobs that wait here. Without a thread the channel has no receiver, and the job runs at once.
    pub(crate) fn submit(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("workers take jobs until they are dropped");
        if let Err(refused) = jobs.send(job) {
            (refused.into_inner())();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs = None;
        let threads = self.threads.get_mut().map(std::mem::take).unwrap_or_default();
        for thread in threads {
            // A worker's panic has reached whoever waited for its result.
            let _panicked = thread.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Items of a producer, in order.
pub(crate) enum Prefetcher<T> {
    /// From a thread of its own.
    Threaded {
        /// What it has produced; `None` once dropped.
        items: Option<Receiver<T>>,
        /// The thread.
        thread: Option<JoinHandle<()>>,
    },
    /// Produced when asked for.
    Inline(Producer<T>),
}

impl<T> std::fmt::Debug for Prefetcher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prefetcher")
    }
}

type Producer<T> = Box<dyn FnMut() -> Option<T> + Send>;

impl<T: Send + 'static> Prefetcher<T> {
    /// Without a thread, items are produced when asked for.
    fn threaded(
        producer: impl FnMut() -> Option<T> + Send + 'static,
        depth: usize,
        spawn: impl FnOnce(Job) -> std::io::Result<JoinHandle<()>>,
    ) -> Self {
        let (sender, items) = bounded(depth);
        // A thread that is refused takes its closure with it: the producer is handed over once the thread runs.
        let producer: Producer<T> = Box::new(producer);
        let (hand_over, handed) = bounded::<Producer<T>>(1);
        let body: Job = Box::new(move || {
            let Ok(mut producer) = handed.recv() else { return };
            while let Some(item) = producer() {
                if sender.send(item).is_err() {
                    break;
                }
            }
        });
        let Ok(thread) = spawn(body) else { return Self::Inline(producer) };
        match hand_over.send(producer) {
            Ok(()) => Self::Threaded { items: Some(items), thread: Some(thread) },
            Err(refused) => Self::Inline(refused.into_inner()),
        }
    }
}

impl<T> Iterator for Prefetcher<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Self::Inline(producer) => producer(),
            Self::Threaded { items, thread } => {
                let item = items.as_ref().and_then(|items| items.recv().ok());
                if item.is_none()
                    && let Some(thread) = thread.take()
                    && let Err(panic) = thread.join()
                {
                    std::panic::resume_unwind(panic);
                }
                item
            }
        }
    }
}

impl<T> Drop for Prefetcher<T> {
    fn drop(&mut self) {
        if let Self::Threaded { items, thread } = self {
            *items = None;
            if let Some(thread) = thread.take() {
                // The caller that drops the prefetcher early has an error of its own to report.
                let _panicked = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_without_threads_run_when_they_are_submitted() {
        let (jobs, inbox) = unbounded::<Job>();
        drop(inbox);
        let workers = Workers::of(VecDeque::new(), jobs);
        let (sender, receiver) = bounded(1);
        workers.submit(Box::new(move || sender.send(7).unwrap()));
        assert_eq!((receiver.try_recv(), workers.count), (Ok(7), 1));
    }

    #[test]
    fn a_feed_without_a_thread_produces_when_asked() {
        let mut numbers = 0..10;
        let refuse = |_| Err(std::io::ErrorKind::WouldBlock.into());
        let prefetch = Prefetcher::threaded(move || numbers.next(), 2, refuse);
        assert!(matches!(prefetch, Prefetcher::Inline(_)));
        assert_eq!(prefetch.collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}
