//! Batches of reads and writes of the real disk, several in flight at a time.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::Result;
use crate::io::{AlignedBuffer, BatchRead, BatchWrite, DiskFile};

/// Threads that carry out batches, and so the most transfers of one disk in flight.
///
/// 8: a compromise, not a measured optimum. One read of 4 KiB at a time gives 19 k a second on the reference
/// machine's SSD and 32 in flight 89 k, so one is too few; each thread more costs a wake-up per read.
const THREADS: usize = 8;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A read or a write of a batch.
pub(super) trait Transfer {
    const DIRECTION: Direction;
    fn parts(&mut self) -> (&Arc<dyn DiskFile>, u64, &mut AlignedBuffer, &mut Result<()>);
}

impl Transfer for BatchRead {
    const DIRECTION: Direction = Direction::Read;
    fn parts(&mut self) -> (&Arc<dyn DiskFile>, u64, &mut AlignedBuffer, &mut Result<()>) {
        (&self.file, self.offset, &mut self.buffer, &mut self.outcome)
    }
}

impl Transfer for BatchWrite {
    const DIRECTION: Direction = Direction::Write;
    fn parts(&mut self) -> (&Arc<dyn DiskFile>, u64, &mut AlignedBuffer, &mut Result<()>) {
        (&self.file, self.offset, &mut self.buffer, &mut self.outcome)
    }
}

fn carry_out(direction: Direction, file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
    match direction {
        Direction::Read => file.read_at(offset, buffer),
        Direction::Write => file.write_at(offset, buffer),
    }
}

/// Carries out a batch on the caller's thread.
pub(super) fn in_order<T: Transfer>(batch: &mut [T]) {
    for transfer in batch {
        let (file, offset, buffer, outcome) = transfer.parts();
        *outcome = carry_out(T::DIRECTION, &**file, offset, buffer);
    }
}

/// Threads that wait for the disk: they start with its first batch and end with it.
#[derive(Debug)]
pub(super) struct Threads {
    /// Taken when the threads end: that closes the channel and so ends them.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// One transfer of a batch on its way to a thread.
struct Job {
    index: usize,
    direction: Direction,
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: AlignedBuffer,
    done: Sender<Done>,
}

/// The same transfer on its way back.
struct Done {
    index: usize,
    buffer: AlignedBuffer,
    outcome: Result<()>,
}

impl Threads {
    /// Starts as many threads as the host grants; with none at all, batches run on the caller's thread.
    pub(super) fn start() -> Self {
        let (jobs, queue) = bounded(THREADS);
        let start_one = |_| {
            let queue = queue.clone();
            std::thread::Builder::new().name("onefold-io".to_owned()).spawn(move || serve(&queue)).ok()
        };
        let threads = (0..THREADS).filter_map(start_one).collect();
        Self { jobs: Some(jobs), threads }
    }

    pub(super) fn carry_out<T: Transfer>(&self, batch: &mut [T]) {
        if self.threads.is_empty() {
            return in_order(batch);
        }
        // Room for every answer: a thread that is done never waits for us, who may be waiting for it.
        let (done, finished) = bounded(batch.len());
        let jobs = self.jobs.as_ref().expect("the channel is closed only when the threads are dropped");
        for (index, transfer) in batch.iter_mut().enumerate() {
            let (file, offset, buffer, _) = transfer.parts();
            let (file, buffer, done) = (Arc::clone(file), std::mem::take(buffer), done.clone());
            let job = Job { index, direction: T::DIRECTION, file, offset, buffer, done };
            jobs.send(job).expect("the threads hold the receiver as long as the sender lives");
        }
        drop(done);
        for _ in 0..batch.len() {
            let Done { index, buffer, outcome } = finished.recv().expect("each transfer is answered once");
            let transfer = batch.get_mut(index).expect("the index is the one that was sent");
            let (_, _, to_buffer, to_outcome) = transfer.parts();
            (*to_buffer, *to_outcome) = (buffer, outcome);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has already said so, and a drop has nobody to tell.
            let _ = thread.join();
        }
    }
}

fn serve(queue: &Receiver<Job>) {
    for Job { index, direction, file, offset, mut buffer, done } in queue {
        let outcome = carry_out(direction, &*file, offset, &mut buffer);
        // Before the answer: once a batch has returned, the caller's handle is the last, and dropping it unlocks.
        drop(file);
        done.send(Done { index, buffer, outcome }).expect("the batch waits for every answer");
    }
}
