//! The two drivers: on threads, and inline in a seeded order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

/// A job without its types.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What kind of worker a lane's jobs want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pool {
    /// Jobs that compute.
    Compute,
    /// Jobs that wait for a source, then compute a little.
    Read,
    /// Jobs that wait for a disk.
    Wait,
}

/// Runs the jobs of all lanes of one operation.
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
    /// Computes on `threads` threads.
    pub fn threads(threads: usize) -> Self {
        let compute = Workers::start("compute", threads.max(1));
        let read = Workers::start("read", threads.max(READING_THREADS));
        Self(Arc::new(Kind::Threads { compute, read, wait: Workers::start("wait", WAITING_THREADS) }))
    }

    /// Computes on the calling thread, in an order drawn from the seed.
    pub fn inline(seed: u64) -> Self {
        Self(Arc::new(Kind::Inline { random: AtomicU64::new(seed) }))
    }

    /// Returns how many jobs compute at the same time at most.
    pub fn compute_count(&self) -> usize {
        match &*self.0 {
            Kind::Threads { compute, .. } => compute.count,
            Kind::Inline { .. } => 1,
        }
    }

    /// Runs a producer ahead of its consumer by at most `depth` items.
    pub fn feed<T: Send + 'static>(
        &self,
        producer: impl FnMut() -> Option<T> + Send + 'static,
        depth: usize,
    ) -> Feed<T> {
        match &*self.0 {
            Kind::Threads { .. } => Feed::threaded(producer, depth),
            Kind::Inline { .. } => Feed::Inline(Box::new(producer)),
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
                // SplitMix64: any order will do, as long as the seed repeats it.
                let state = random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
                let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                usize::try_from((mixed ^ mixed >> 31) % end.max(1) as u64).unwrap_or(0)
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
            .collect();
        Self { count, jobs: Some(jobs), threads: Mutex::new(threads) }
    }

    /// Lanes bound how many jobs wait here.
    pub(crate) fn submit(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("workers take jobs until they are dropped");
        jobs.send(job).expect("workers live as long as their pool");
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

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("the system has room for a few threads")
}

/// Items of a producer, in order.
pub enum Feed<T> {
    /// From a thread of its own.
    Threaded {
        /// What it has produced; `None` once dropped.
        items: Option<Receiver<T>>,
        /// The thread.
        thread: Option<JoinHandle<()>>,
    },
    /// Produced when asked for.
    Inline(Box<dyn FnMut() -> Option<T> + Send>),
}

impl<T> std::fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Feed")
    }
}

impl<T: Send + 'static> Feed<T> {
    fn threaded(mut producer: impl FnMut() -> Option<T> + Send + 'static, depth: usize) -> Self {
        let (sender, items) = bounded(depth);
        let thread = spawn("feed", move || {
            while let Some(item) = producer() {
                if sender.send(item).is_err() {
                    break;
                }
            }
        });
        Self::Threaded { items: Some(items), thread: Some(thread) }
    }
}

impl<T> Iterator for Feed<T> {
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

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        if let Self::Threaded { items, thread } = self {
            *items = None;
            if let Some(thread) = thread.take() {
                // Whoever drops the feed early has an error of its own to report.
                let _panicked = thread.join();
            }
        }
    }
}
