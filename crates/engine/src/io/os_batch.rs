//! Batches of reads and writes of the real disk, several in flight at a time.

use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use onefold_sys::Ring;

use crate::error::{Error, Result};
use crate::io::os_ring::{Rings, repeated};
use crate::io::os_transfer::{Direction, Transfer, carry_out, one};
use crate::io::{AlignedBuffer, DiskFile, ReadStream, read_in_batches};

/// Number of threads that carry out batches, which is the maximum number of transfers in flight of one disk.
///
/// 8 is a compromise, not a measured optimum. The SSD of the reference machine serves 19,000 reads of 4 KiB per second
/// one at a time and 89,000 with 32 in flight, so one thread is too few. Each further thread costs wake-ups.
const THREADS: usize = 8;

/// The mechanism with which a disk of the host carries out batches. The results are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoBackend {
    /// `io_uring`, or threads if the kernel has no `io_uring`, forbids it or is older than 5.6.
    #[default]
    Auto,
    /// `io_uring` only: every transfer fails if it is not available.
    Uring,
    /// Threads, with a plain call for each transfer.
    Threads,
}

impl FromStr for IoBackend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            _ => Err(Error::invalid(format_args!("`{text}` is no way to read and write: auto, uring or threads"))),
        }
    }
}

/// The rings or threads that carry out the batches of a disk.
#[derive(Debug)]
pub(super) struct Batches {
    backend: IoBackend,
    rings: Rings,
    /// The threads, which start when they are first needed.
    threads: OnceLock<Threads>,
}

impl Batches {
    /// Sets up nothing: the first batch starts rings or threads. `set_up` makes a ring.
    pub(super) fn new(backend: IoBackend, set_up: fn() -> io::Result<Ring>) -> Self {
        Self { backend, rings: Rings::new(set_up), threads: OnceLock::new() }
    }

    /// Carries out a batch. Errors of the batch itself, not of a file, name `root`.
    pub(super) fn carry_out<T: Transfer>(&self, root: &Path, batch: &mut [T]) {
        // A single transfer gains nothing from a ring or a thread, and would cost system calls or wake-ups.
        if batch.len() < 2 {
            return batch.iter_mut().for_each(one);
        }
        match self.backend {
            IoBackend::Threads => self.on_threads(batch),
            IoBackend::Auto => {
                if self.rings.carry_out(batch).is_err() {
                    self.on_threads(batch);
                }
            }
            IoBackend::Uring => {
                if let Err(refused) = self.rings.carry_out(batch) {
                    for transfer in batch {
                        *transfer.parts().3 = Err(Error::io("set up io_uring for", root, repeated(&refused)));
                    }
                }
            }
        }
    }

    /// Carries out a stream of reads of a file: through a ring, or in batches.
    pub(super) fn stream(&self, root: &Path, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        let nothing = AlignedBuffer::default();
        let descriptor = file.descriptor(0, &nothing).filter(|_| self.backend != IoBackend::Threads);
        let is_done = descriptor.is_some_and(|descriptor| self.rings.stream(&**file, descriptor, reads).is_ok());
        if !is_done {
            read_in_batches(file, reads, |batch| self.carry_out(root, batch));
        }
    }

    fn on_threads<T: Transfer>(&self, batch: &mut [T]) {
        self.threads.get_or_init(Threads::start).carry_out(batch);
    }
}

/// Threads that wait for the disk. They start with its first batch and end with the disk.
#[derive(Debug)]
pub(super) struct Threads {
    /// Dropped to end the threads: that closes their channel.
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

/// A completed transfer on its way back.
struct Done {
    index: usize,
    buffer: AlignedBuffer,
    outcome: Result<()>,
}

impl Threads {
    /// Starts as many threads as the host allows. If it allows none, batches run on the caller's thread.
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
            return batch.iter_mut().for_each(one);
        }
        // Capacity for every result: a thread never waits to deliver one while this thread waits for it.
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
            let Done { index, buffer, outcome } = finished.recv().expect("each transfer has one result");
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
            // A panicked thread has already printed a message, and a drop cannot return an error.
            let _ = thread.join();
        }
    }
}

fn serve(queue: &Receiver<Job>) {
    for Job { index, direction, file, offset, mut buffer, done } in queue {
        let outcome = carry_out(direction, &*file, offset, &mut buffer);
        // Dropped before the result is sent: after a batch the caller's handle must be the last, because dropping it
        // unlocks the file.
        drop(file);
        done.send(Done { index, buffer, outcome }).expect("the batch waits for every result");
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::io::os::OsDisk;
    use crate::io::{Access, DIRECT_ALIGN, Disk};
    use crate::io::{BatchRead, OwnedRead};

    /// Returns a byte that differs for adjacent numbers.
    fn filling(number: usize) -> u8 {
        u8::try_from(number % 251).unwrap()
    }

    /// What a batch of so many reads of a file of pages gives; every tenth read reaches beyond the end.
    fn read_pages(batches: &Batches, file: &Arc<dyn DiskFile>, pages: usize, count: usize) {
        let at = |n: usize| if n % 10 == 7 { pages + n } else { n * 13 % pages };
        let mut reads: Vec<BatchRead> = (0..count)
            .map(|n| {
                let (offset, buffer) = ((at(n) * DIRECT_ALIGN) as u64, AlignedBuffer::new_zeroed(DIRECT_ALIGN));
                BatchRead { file: Arc::clone(file), offset, buffer, outcome: Ok(()) }
            })
            .collect();
        batches.carry_out(Path::new("root"), &mut reads);
        for (n, read) in reads.into_iter().enumerate() {
            if at(n) < pages {
                read.outcome.unwrap();
                assert!(read.buffer.iter().all(|byte| *byte == filling(at(n))), "read {n}");
            } else {
                assert_eq!(read.outcome.unwrap_err().io_kind(), Some(ErrorKind::UnexpectedEof), "read {n}");
            }
        }
    }

    /// Runs a property over a file of so many pages, each filled with its number, through the page cache and past it.
    fn with_pages(pages: usize, property: impl Fn(&Arc<dyn DiskFile>)) {
        let directory = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(directory.path().to_path_buf());
        let file = disk.create(Path::new("a")).unwrap();
        let bytes: Vec<u8> = (0..pages).flat_map(|page| [filling(page); DIRECT_ALIGN]).collect();
        file.write_at(0, &bytes).unwrap();
        for access in [Access::Read, Access::Direct] {
            property(&disk.open(Path::new("a"), access).unwrap());
        }
    }

    #[expect(clippy::print_stdout, reason = "readers of the output should know what was not tested")]
    fn backends() -> Vec<Batches> {
        let mut backends = vec![Batches::new(IoBackend::Threads, Ring::new), Batches::new(IoBackend::Auto, Ring::new)];
        match Ring::new() {
            Ok(_) => backends.push(Batches::new(IoBackend::Uring, Ring::new)),
            Err(error) => println!("no io_uring here: {error}"),
        }
        backends
    }

    #[test]
    fn batches_larger_than_the_depth_are_carried_out_and_failing_reads_leave_the_others_right() {
        with_pages(200, |file| {
            for batches in backends() {
                for count in [2, onefold_sys::DEPTH, onefold_sys::DEPTH + 1, 1000] {
                    read_pages(&batches, file, 200, count);
                }
            }
            assert_eq!(Arc::strong_count(file), 1, "a handle was kept after the answer");
        });
    }

    /// Reads pages of which each leads to two more, until `left` are asked for; every tenth reaches beyond the end.
    struct Following {
        pages: usize,
        left: usize,
        ready: Vec<usize>,
        flying: usize,
        ended: Vec<usize>,
    }

    impl ReadStream for Following {
        fn next(&mut self) -> Option<OwnedRead> {
            let number = self.ready.pop()?;
            self.flying += 1;
            let at = if number % 10 == 7 { self.pages + number } else { number * 13 % self.pages };
            let buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
            Some(OwnedRead { number, offset: (at * DIRECT_ALIGN) as u64, buffer })
        }

        fn end(&mut self, OwnedRead { number, buffer, .. }: OwnedRead, outcome: Result<()>) {
            self.flying -= 1;
            self.ended.push(number);
            if number % 10 == 7 {
                assert_eq!(outcome.unwrap_err().io_kind(), Some(ErrorKind::UnexpectedEof), "read {number}");
            } else {
                outcome.unwrap();
                assert!(buffer.iter().all(|byte| *byte == filling(number * 13 % self.pages)), "read {number}");
            }
            for next in [2 * number + 1, 2 * number + 2] {
                if next < self.left {
                    self.ready.push(next);
                }
            }
        }
    }

    #[test]
    fn every_read_of_a_stream_ends_once_however_it_is_carried_out() {
        with_pages(200, |file| {
            for batches in backends() {
                for left in [0, 1, 2, 1000] {
                    let ready = if left == 0 { Vec::new() } else { vec![0] };
                    let mut reads = Following { pages: 200, left, ready, flying: 0, ended: Vec::new() };
                    batches.stream(Path::new("root"), file, &mut reads);
                    reads.ended.sort_unstable();
                    assert_eq!((reads.flying, reads.ended), (0, (0..left).collect()));
                }
            }
        });
    }

    #[test]
    fn threads_carry_out_batches_at_the_same_time() {
        with_pages(64, |file| {
            for batches in backends() {
                std::thread::scope(|scope| {
                    for thread in 0..4 {
                        let batches = &batches;
                        scope.spawn(move || (0..20).for_each(|n| read_pages(batches, file, 64, 30 + thread * n)));
                    }
                });
            }
        });
    }

    #[test]
    fn without_io_uring_threads_take_over_and_it_is_asked_for_once() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        fn refuse() -> io::Result<Ring> {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Err(io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error()))
        }
        let batches = Batches::new(IoBackend::Auto, refuse);
        with_pages(64, |file| (0..3).for_each(|_| read_pages(&batches, file, 64, 100)));
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_missing_io_uring_is_an_error_only_if_it_is_required() {
        fn refuse() -> io::Result<Ring> {
            Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSYS.raw_os_error()))
        }
        let batches = Batches::new(IoBackend::Uring, refuse);
        with_pages(1, |file| {
            let read = |_| {
                let buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
                BatchRead { file: Arc::clone(file), offset: 0, buffer, outcome: Ok(()) }
            };
            let mut reads = [0, 1].map(read);
            batches.carry_out(Path::new("root"), &mut reads);
            for read in reads {
                let message = read.outcome.unwrap_err().to_string();
                assert!(message.starts_with("set up io_uring for root: "), "{message}");
            }
        });
    }

    #[test]
    fn backends_have_names() {
        let parse = |text: &str| text.parse::<IoBackend>().ok();
        let wanted = [Some(IoBackend::Auto), Some(IoBackend::Uring), Some(IoBackend::Threads), None];
        assert_eq!(["auto", "uring", "threads", "io_uring"].map(parse), wanted);
    }
}
