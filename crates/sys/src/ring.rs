//! Batches of reads and writes through `io_uring`.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

use crate::AlignedBuffer;

/// Transfers that one ring holds in flight at a time.
///
/// The measured disks gain no speed above 32 to 64, and 128 pages are half a megabyte. A ring takes about 20 KiB of
/// kernel memory: 128 entries of 64 bytes, 256 completions of 16 bytes, and two pages of bookkeeping.
pub const DEPTH: usize = 128;

/// Completions to wait for before the ring is refilled, if a batch is larger than the ring. Refilling after each would
/// cost a system call each.
const REFILL: usize = DEPTH / 4;

/// A stream of reads waits for one in this many of the reads in flight. A system call for each read would cost as much
/// as the read.
const WAIT_DIVISOR: usize = 16;

/// Maximum bytes of one operation. The kernel transfers at most 2 GiB minus a page at once; longer operations end
/// short.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// Memory that a transfer reads into or writes from.
#[derive(Debug)]
pub enum Memory<'a> {
    /// Memory to fill from the file.
    Read(&'a mut [u8]),
    /// Bytes to write to the file.
    Write(&'a [u8]),
}

/// One transfer between memory and a range of a file.
#[derive(Debug)]
pub struct Operation<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// First byte in the file. More than `i64::MAX` is an error of kind `InvalidInput`.
    pub offset: u64,
    /// Destination or source of the bytes.
    pub memory: Memory<'a>,
    /// Bytes transferred, which may be fewer than requested, as with `pread` and `pwrite`; `None` if the operation was
    /// not carried out.
    pub outcome: Option<io::Result<usize>>,
}

/// A read that owns its buffer. The length of the buffer is the number of bytes to read.
#[derive(Debug)]
pub struct OwnedRead {
    /// Number by which the caller recognizes the read.
    pub number: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Destination of the bytes.
    pub buffer: AlignedBuffer,
}

/// A source of reads and the receiver of their results. A result may lead to further reads.
pub trait ReadQueue {
    /// Returns the next read, or `None` if there is none until another one completes.
    fn next(&mut self) -> Option<OwnedRead>;
    /// Receives a completed read and the number of bytes read, which may be fewer than requested.
    fn complete(&mut self, read: OwnedRead, outcome: io::Result<usize>);
}

/// An `io_uring` of [`DEPTH`] entries. Runs one batch at a time, from any thread.
pub struct Ring {
    ring: IoUring,
    /// True after a failed system call: the contents of the ring are then unknown.
    is_broken: bool,
}

impl Ring {
    /// Sets up a ring. Fails if the kernel has no `io_uring` (`ENOSYS`), forbids it (`EPERM`), or is older than 5.6,
    /// which added the operations that this module uses.
    pub fn new() -> io::Result<Self> {
        let entries = u32::try_from(DEPTH).expect("a small constant");
        // COOP_TASKRUN (Linux 5.19): completions do not interrupt a thread that is about to wait for them.
        let ring = IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE)) {
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, is_broken: false })
    }

    /// Carries out reads of a file with at most [`DEPTH`] in flight. When some reads complete, the reads that follow
    /// from them start without waiting for the others. Returns when no read is in flight and `reads` has no next one.
    ///
    /// # Errors
    ///
    /// After an error the ring cannot be used again. Every read has completed, the lost ones with an error.
    pub fn run_stream(&mut self, file: BorrowedFd<'_>, reads: &mut dyn ReadQueue) -> io::Result<()> {
        let mut in_flight = InFlight::new(self);
        loop {
            while in_flight.has_capacity()
                && let Some(read) = reads.next()
            {
                if let Err((read, error)) = in_flight.begin(file, read) {
                    reads.complete(read, Err(error));
                }
            }
            if in_flight.count == 0 {
                break;
            }
            in_flight.wait((in_flight.count / WAIT_DIVISOR).max(1));
            while let Some((read, outcome)) = in_flight.completed.pop() {
                reads.complete(read, outcome);
            }
        }
        if in_flight.ring.is_broken { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Carries out all operations, at most [`DEPTH`] in flight, in any order, and returns when the last has completed.
    ///
    /// # Errors
    ///
    /// After an error the ring cannot be used again. Operations without an outcome were not carried out.
    pub fn run(&mut self, operations: &mut [Operation<'_>]) -> io::Result<()> {
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        // The kernel holds addresses of memory that this function only borrows, so it must not return before the kernel
        // has released them: there is no `?`, and a panic aborts the process.
        let guard = AbortOnUnwind;
        let mut next = 0;
        let mut in_flight = 0;
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok() && in_flight < DEPTH && next < operations.len() {
                let (index, operation) = (next, &mut operations[next]);
                next += 1;
                match entry(operation, index) {
                    Ok(entry) => {
                        // SAFETY: the entry's file and memory are borrowed for longer than this call, and exclusively
                        // if the kernel writes to the memory. The call returns after every entry that the kernel took
                        // has completed. The kernel takes no others: a broken ring is not entered again.
                        let pushed = unsafe { self.ring.submission().push(&entry) };
                        pushed.expect("fewer are in flight than the ring has entries");
                        in_flight += 1;
                    }
                    Err(error) => operation.outcome = Some(Err(error)),
                }
            }
            if in_flight == 0 {
                break;
            }
            if outcome.is_ok() {
                let wanted = if next < operations.len() { REFILL.min(in_flight) } else { in_flight };
                outcome = match self.ring.submit_and_wait(wanted) {
                    Ok(_) => Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
                    Err(error) => Err(error),
                };
                if outcome.is_err() {
                    self.is_broken = true;
                    // The kernel never takes the entries that are still queued, because the ring is not entered again.
                    in_flight -= self.ring.submission().len();
                }
            } else {
                // The kernel completes every entry that it took. Waiting has failed, so poll.
                std::thread::yield_now();
            }
            for completion in self.ring.completion() {
                in_flight -= 1;
                record_outcome(operations, &completion);
            }
        }
        std::mem::forget(guard);
        outcome
    }
}

/// Reads in flight. Owns their buffers until the kernel has released them, also if the caller panics.
struct InFlight<'a> {
    ring: &'a mut Ring,
    slots: Vec<Option<OwnedRead>>,
    free: Vec<usize>,
    count: usize,
    /// Slots whose entries the kernel may not have taken yet, in order.
    untaken: Vec<usize>,
    /// Completed reads that the caller has not received yet.
    completed: Vec<(OwnedRead, io::Result<usize>)>,
}

impl<'a> InFlight<'a> {
    fn new(ring: &'a mut Ring) -> Self {
        Self { ring, slots: Vec::new(), free: Vec::new(), count: 0, untaken: Vec::new(), completed: Vec::new() }
    }

    /// Returns true if another read fits.
    fn has_capacity(&self) -> bool {
        self.count < DEPTH
    }

    /// Queues a read. There must be capacity. Returns the read and the error if the ring cannot take it.
    fn begin(&mut self, file: BorrowedFd<'_>, read: OwnedRead) -> Result<(), (OwnedRead, io::Error)> {
        if self.ring.is_broken {
            return Err((read, ErrorKind::BrokenPipe.into()));
        }
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        // The buffer is on the heap: its address does not change when `slots` grows.
        let read = self.slots[slot].insert(read);
        let mut operation =
            Operation { file, offset: read.offset, memory: Memory::Read(&mut read.buffer), outcome: None };
        match entry(&mut operation, slot) {
            Ok(entry) => {
                // SAFETY: the slot owns the memory until the read completes. The file is borrowed for longer than the
                // call of `wait` in which the kernel takes the entry and its own reference to the file. The kernel
                // takes no entry of a broken ring, which is not entered again.
                let pushed = unsafe { self.ring.ring.submission().push(&entry) };
                pushed.expect("fewer are in flight than the ring has entries");
                self.untaken.push(slot);
                self.count += 1;
                Ok(())
            }
            Err(error) => {
                self.free.push(slot);
                Err((self.slots[slot].take().expect("inserted above"), error))
            }
        }
    }

    /// Waits until at least `wanted` reads have completed. At least as many must be in flight.
    fn wait(&mut self, wanted: usize) {
        if self.ring.is_broken {
            // The kernel completes every entry that it took. Waiting has failed, so poll.
            std::thread::yield_now();
        } else {
            let outcome = self.ring.ring.submit_and_wait(wanted);
            // The kernel takes entries in order, so the last ones are left in the queue.
            let taken = self.untaken.len() - self.ring.ring.submission().len();
            self.untaken.drain(..taken);
            if outcome.is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
                self.ring.is_broken = true;
                // The kernel never takes these entries, because the ring is not entered again.
                for slot in std::mem::take(&mut self.untaken) {
                    self.complete(slot, Err(ErrorKind::BrokenPipe.into()));
                }
            }
        }
        let completions: Vec<(u64, i32)> =
            self.ring.ring.completion().map(|completion| (completion.user_data(), completion.result())).collect();
        for (slot, result) in completions {
            let slot = usize::try_from(slot).expect("the slot that was pushed");
            self.complete(slot, usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)));
        }
    }

    fn complete(&mut self, slot: usize, outcome: io::Result<usize>) {
        let read = self.slots[slot].take().expect("a read completes once");
        self.free.push(slot);
        self.count -= 1;
        self.completed.push((read, outcome));
    }
}

impl Drop for InFlight<'_> {
    /// Waits for the reads in flight. There are some only if the caller has panicked.
    fn drop(&mut self) {
        while 0 < self.count {
            self.wait(self.count);
        }
    }
}

/// Describes an operation to the kernel.
fn entry(operation: &mut Operation<'_>, index: usize) -> io::Result<squeue::Entry> {
    // The kernel takes an offset of -1 as the current position of the file.
    if i64::try_from(operation.offset).is_err() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let file = types::Fd(operation.file.as_raw_fd());
    let len = |bytes: &[u8]| u32::try_from(bytes.len().min(OPERATION_BYTES_MAX)).expect("1 GiB fits into 32 bits");
    let entry = match &mut operation.memory {
        Memory::Read(bytes) => {
            let len = len(bytes);
            opcode::Read::new(file, bytes.as_mut_ptr(), len).offset(operation.offset).build()
        }
        Memory::Write(bytes) => opcode::Write::new(file, bytes.as_ptr(), len(bytes)).offset(operation.offset).build(),
    };
    Ok(entry.user_data(index as u64))
}

/// Records the outcome of an operation.
fn record_outcome(operations: &mut [Operation<'_>], completion: &cqueue::Entry) {
    let index = usize::try_from(completion.user_data()).expect("the index that was pushed");
    let result = completion.result();
    operations[index].outcome = Some(usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)));
}

/// A guard that aborts the process when it is dropped.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("is_broken", &self.is_broken).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "the tests need files")]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// Tests a property if the kernel allows a ring, and prints a line if not.
    #[expect(clippy::print_stdout, reason = "readers of the output should know what was not tested")]
    fn with_ring(property: impl FnOnce(&mut Ring)) {
        match Ring::new() {
            Ok(mut ring) => property(&mut ring),
            Err(error) => println!("no io_uring here: {error}"),
        }
    }

    fn read<'a>(file: &'a File, offset: u64, bytes: &'a mut [u8]) -> Operation<'a> {
        Operation { file: file.as_fd(), offset, memory: Memory::Read(bytes), outcome: None }
    }

    #[test]
    fn operations_beyond_the_depth_all_complete_each_with_its_own_outcome() {
        with_ring(|ring| {
            let file = tempfile::tempfile().unwrap();
            let count = 3 * DEPTH + 5;
            let filling = |n: usize| u8::try_from(n % 251).unwrap();
            let written: Vec<(u64, [u8; 100])> = (0..count).map(|n| (n as u64 * 100, [filling(n); 100])).collect();
            let mut operations: Vec<Operation<'_>> = written
                .iter()
                .map(|(offset, bytes)| Operation {
                    file: file.as_fd(),
                    offset: *offset,
                    memory: Memory::Write(bytes),
                    outcome: None,
                })
                .collect();
            ring.run(&mut operations).unwrap();
            assert!(operations.iter().all(|operation| matches!(operation.outcome, Some(Ok(100)))));
            let mut buffers = vec![[0; 100]; count];
            let mut operations: Vec<Operation<'_>> =
                buffers.iter_mut().enumerate().map(|(n, bytes)| read(&file, n as u64 * 100 + 50, bytes)).collect();
            ring.run(&mut operations).unwrap();
            let moved: Vec<usize> =
                operations.into_iter().map(|operation| operation.outcome.unwrap().unwrap()).collect();
            assert!(moved[..count - 1].iter().all(|moved| *moved == 100) && moved[count - 1] == 50);
            assert!(
                buffers[..count - 1]
                    .iter()
                    .enumerate()
                    .all(|(n, bytes)| { bytes[..50] == [filling(n); 50] && bytes[50..] == [filling(n + 1); 50] })
            );
        });
    }

    #[test]
    fn an_error_ends_only_its_own_operation_and_the_ring_stays_usable() {
        with_ring(|ring| {
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0).unwrap();
            let directory = File::open(std::env::temp_dir()).unwrap();
            for _ in 0..2 {
                let (mut a, mut b, mut c, mut d) = ([0; 4], [0; 4], [0; 4], [0; 4]);
                let mut operations = [
                    read(&file, 0, &mut a),
                    read(&directory, 0, &mut b),
                    read(&file, u64::MAX, &mut c),
                    read(&file, 6, &mut d),
                ];
                ring.run(&mut operations).unwrap();
                let ended = operations.map(|operation| operation.outcome.unwrap().map_err(|error| error.kind()));
                let wanted = [Ok(4), Err(ErrorKind::IsADirectory), Err(ErrorKind::InvalidInput), Ok(4)];
                assert_eq!((ended, &a, &d), (wanted, b"0123", b"6789"));
            }
            ring.run(&mut []).unwrap();
        });
    }

    /// Follows chains of 8-byte numbers, each the index of the next, and reads once past the end of the file.
    struct Chains {
        ready: Vec<OwnedRead>,
        in_flight: usize,
        most: usize,
        seen: Vec<Vec<u64>>,
        failed: usize,
        panics_at: usize,
    }

    impl ReadQueue for Chains {
        fn next(&mut self) -> Option<OwnedRead> {
            let next = self.ready.pop();
            self.in_flight += usize::from(next.is_some());
            self.most = self.most.max(self.in_flight);
            next
        }

        fn complete(&mut self, read: OwnedRead, outcome: io::Result<usize>) {
            self.in_flight -= 1;
            if !matches!(outcome, Ok(8)) {
                self.failed += 1;
                return;
            }
            let value = u64::from_le_bytes(read.buffer[..].try_into().unwrap());
            let OwnedRead { number, buffer, .. } = read;
            self.seen[number].push(value);
            assert!(self.seen[number].len() < self.panics_at, "asked to");
            if value != 0 {
                self.ready.push(OwnedRead { number, offset: value * 8, buffer });
            }
        }
    }

    fn chains(panics_at: usize) -> (File, Chains) {
        let file = tempfile::tempfile().unwrap();
        let count = 1000_u64;
        // Number `n` leads to number `n - 7`, and so on to 0.
        let bytes: Vec<u8> = (0..count).flat_map(|n| n.saturating_sub(7).to_le_bytes()).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        let start = |number| OwnedRead {
            number,
            offset: if number == 299 { u64::MAX } else { 8 * (699 + number as u64) },
            buffer: AlignedBuffer::new_zeroed(8),
        };
        let ready = (0..300).map(start).chain([OwnedRead {
            number: 0,
            offset: 8 * count - 4,
            buffer: AlignedBuffer::new_zeroed(8),
        }]);
        (
            file,
            Chains { ready: ready.collect(), in_flight: 0, most: 0, seen: vec![Vec::new(); 300], failed: 0, panics_at },
        )
    }

    #[test]
    fn dependent_reads_all_complete_and_keep_the_ring_full() {
        with_ring(|ring| {
            let (file, mut chains) = chains(usize::MAX);
            ring.run_stream(file.as_fd(), &mut chains).unwrap();
            assert_eq!((chains.failed, chains.most, chains.in_flight), (2, DEPTH, 0));
            for (number, seen) in chains.seen.iter().enumerate().take(299) {
                let wanted: Vec<u64> =
                    (1..).map(|n| (699 + number as u64).saturating_sub(7 * n)).take(seen.len()).collect();
                assert_eq!((seen, seen.last()), (&wanted, Some(&0)));
            }
        });
    }

    #[test]
    fn after_a_panic_of_the_receiver_other_reads_complete_and_the_ring_stays_usable() {
        with_ring(|ring| {
            let (file, mut broken) = chains(50);
            let run = std::panic::AssertUnwindSafe(|| ring.run_stream(file.as_fd(), &mut broken));
            assert!(std::panic::catch_unwind(run).is_err());
            let (file, mut chains) = chains(usize::MAX);
            ring.run_stream(file.as_fd(), &mut chains).unwrap();
            assert_eq!(chains.failed, 2);
        });
    }

    #[test]
    fn a_ring_moves_from_thread_to_thread() {
        with_ring(|ring| {
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 0).unwrap();
            for _ in 0..3 {
                let mut page = [0; 4096];
                let run = || ring.run(&mut [read(&file, 0, &mut page)]);
                std::thread::scope(|scope| scope.spawn(run).join().unwrap()).unwrap();
                assert_eq!(page, [7; 4096]);
            }
        });
    }
}
