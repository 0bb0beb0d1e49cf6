//! Batches of reads and writes through `io_uring`.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

use crate::AlignedBuffer;

/// Transfers that one ring holds in flight at a time.
///
/// 128: past the 32 to 64 at which the disks that were measured stop getting faster, and 128 pages fill half a megabyte.
/// The ring itself takes 128 entries of 64 bytes, 256 answers of 16 and two pages of bookkeeping of the kernel's memory,
/// about 20 KiB.
pub const DEPTH: usize = 128;

/// Entries that are waited for together when a batch is larger than the ring: refilling one by one would cost a call
/// of the kernel each.
const REFILL: usize = DEPTH / 4;

/// Share of the reads in flight that are waited for together where others follow from them: a call of the kernel for each
/// would cost as much as a read.
const TOGETHER: usize = 16;

/// Most bytes of one operation; the kernel moves no more than 2 GiB minus a page at once. Longer ones come short.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// Memory that a transfer fills or empties.
#[derive(Debug)]
pub enum Memory<'a> {
    /// To be filled from the file.
    Read(&'a mut [u8]),
    /// To be written to the file.
    Write(&'a [u8]),
}

/// One transfer between memory and a place in a file.
#[derive(Debug)]
pub struct Operation<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// First byte in the file. More than `i64::MAX` is an error of kind `InvalidInput`.
    pub offset: u64,
    /// Where the bytes go to or come from.
    pub memory: Memory<'a>,
    /// How it ended: bytes moved, which may be fewer than asked for, as `pread` and `pwrite` have it. `None`: not
    /// carried out.
    pub outcome: Option<io::Result<usize>>,
}

/// A read that owns its memory, whose length is how much to read.
#[derive(Debug)]
pub struct OwnedRead {
    /// Whose it is, as the one who asked for it numbers them.
    pub number: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Where the bytes go to.
    pub buffer: AlignedBuffer,
}

/// Where reads come from that follow from each other, and where they go to when they have ended.
pub trait OwnedReads {
    /// Returns the next read; `None` if none is to be made before another one has ended.
    fn next(&mut self) -> Option<OwnedRead>;
    /// Takes a read that has ended, and how: bytes read, which may be fewer than asked for.
    fn end(&mut self, read: OwnedRead, outcome: io::Result<usize>);
}

/// An `io_uring` of [`DEPTH`] entries. One batch at a time, from any thread.
pub struct Ring {
    ring: IoUring,
    /// Set once a call of the kernel failed: what the ring still holds is unknown.
    is_broken: bool,
}

impl Ring {
    /// Sets up a ring. Fails where the kernel has none (`ENOSYS`), forbids it (`EPERM`), or is older than 5.6, whose
    /// rings cannot read and write by a file's offset.
    pub fn new() -> io::Result<Self> {
        let entries = u32::try_from(DEPTH).expect("a small constant");
        // Without it, an answer would interrupt the thread that is about to wait for it anyway. Linux 5.19 and later.
        let ring = IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE)) {
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, is_broken: false })
    }

    /// Carries out reads of a file as they come, at most [`DEPTH`] in flight: who takes one that has ended may have the next
    /// ones ready, for which the others are not waited for. Returns when none is in flight and none is to come. An error is one
    /// of the ring: it is of no more use, and every read was ended all the same, those that it lost with an error.
    pub fn run_on(&mut self, file: BorrowedFd<'_>, reads: &mut dyn OwnedReads) -> io::Result<()> {
        let mut flying = Flying::over(self);
        loop {
            while flying.is_open()
                && let Some(read) = reads.next()
            {
                if let Err((read, error)) = flying.begin(file, read) {
                    reads.end(read, Err(error));
                }
            }
            if flying.count == 0 {
                break;
            }
            flying.wait((flying.count / TOGETHER).max(1));
            while let Some((read, outcome)) = flying.ended.pop() {
                reads.end(read, outcome);
            }
        }
        if flying.ring.is_broken { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Carries out all operations, at most [`DEPTH`] in flight, in any order, and returns when the last has ended. An
    /// error is one of the ring: it is of no more use, and operations without an outcome were not carried out.
    pub fn run(&mut self, operations: &mut [Operation<'_>]) -> io::Result<()> {
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        // The kernel holds addresses of memory that is only borrowed here. No way leads out of this function before it
        // has let go of all of them: no `?`, and a panic, which nothing below should cause, ends the process.
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
                        // SAFETY: file and memory of the entry are borrowed for longer than this call, exclusively
                        // where the kernel writes. This call ends after every entry was answered, or, if the kernel
                        // never took it, with a ring that is not entered again.
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
                    // What the kernel has not taken by now it never will: the ring is not entered again.
                    in_flight -= self.ring.submission().len();
                }
            } else {
                // What the kernel took it also ends; where waiting for that fails, asking again is all there is.
                std::thread::yield_now();
            }
            for answer in self.ring.completion() {
                in_flight -= 1;
                record_outcome(operations, &answer);
            }
        }
        std::mem::forget(guard);
        outcome
    }
}

/// Reads that the kernel carries out. It holds their memory until it has let go of them, whatever becomes of the caller.
struct Flying<'a> {
    ring: &'a mut Ring,
    slots: Vec<Option<OwnedRead>>,
    free: Vec<usize>,
    count: usize,
    /// Slots whose entries the kernel may not have taken yet, in order.
    untaken: Vec<usize>,
    /// Reads that have ended and were not handed on yet.
    ended: Vec<(OwnedRead, io::Result<usize>)>,
}

impl<'a> Flying<'a> {
    fn over(ring: &'a mut Ring) -> Self {
        Self { ring, slots: Vec::new(), free: Vec::new(), count: 0, untaken: Vec::new(), ended: Vec::new() }
    }

    /// Says whether one more fits.
    fn is_open(&self) -> bool {
        self.count < DEPTH
    }

    /// Hands a read to the ring, which must be open; gives it back where it cannot be made.
    fn begin(&mut self, file: BorrowedFd<'_>, read: OwnedRead) -> Result<(), (OwnedRead, io::Error)> {
        if self.ring.is_broken {
            return Err((read, ErrorKind::BrokenPipe.into()));
        }
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        // The buffer's memory is on the heap and stays where it is, wherever the slot goes.
        let read = self.slots[slot].insert(read);
        let mut operation =
            Operation { file, offset: read.offset, memory: Memory::Read(&mut read.buffer), outcome: None };
        match entry(&mut operation, slot) {
            Ok(entry) => {
                // SAFETY: the memory is the slot's until the answer has come, and the file is borrowed for longer than
                // the call of `wait` in which the kernel takes the entry and its own reference to the file. What it never
                // takes lies in a ring that is not entered again.
                let pushed = unsafe { self.ring.ring.submission().push(&entry) };
                pushed.expect("fewer are in flight than the ring has entries");
                self.untaken.push(slot);
                self.count += 1;
                Ok(())
            }
            Err(error) => {
                self.free.push(slot);
                Err((self.slots[slot].take().expect("just put in"), error))
            }
        }
    }

    /// Waits until at least so many reads have ended, which must be in flight.
    fn wait(&mut self, wanted: usize) {
        if self.ring.is_broken {
            // What the kernel took it also ends; where waiting for that fails, asking again is all there is.
            std::thread::yield_now();
        } else {
            let outcome = self.ring.ring.submit_and_wait(wanted);
            // The kernel takes entries in order: what is left in the queue are the last ones.
            let taken = self.untaken.len() - self.ring.ring.submission().len();
            self.untaken.drain(..taken);
            if outcome.is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
                self.ring.is_broken = true;
                // These it never will take: the ring is not entered again.
                for slot in std::mem::take(&mut self.untaken) {
                    self.end(slot, Err(ErrorKind::BrokenPipe.into()));
                }
            }
        }
        let answers: Vec<(u64, i32)> =
            self.ring.ring.completion().map(|answer| (answer.user_data(), answer.result())).collect();
        for (slot, result) in answers {
            let slot = usize::try_from(slot).expect("the slot that was pushed");
            self.end(slot, usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)));
        }
    }

    fn end(&mut self, slot: usize, outcome: io::Result<usize>) {
        let read = self.slots[slot].take().expect("a read ends once");
        self.free.push(slot);
        self.count -= 1;
        self.ended.push((read, outcome));
    }
}

impl Drop for Flying<'_> {
    /// Waits for what is in flight, which there is only where a caller panicked.
    fn drop(&mut self) {
        while 0 < self.count {
            self.wait(self.count);
        }
    }
}

/// Describes an operation to the kernel.
fn entry(operation: &mut Operation<'_>, index: usize) -> io::Result<squeue::Entry> {
    // The kernel takes a position of -1 as "where the file stands".
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

/// Records how an operation ended.
fn record_outcome(operations: &mut [Operation<'_>], answer: &cqueue::Entry) {
    let index = usize::try_from(answer.user_data()).expect("the index that was pushed");
    let result = answer.result();
    operations[index].outcome = Some(usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)));
}

/// Ends the process when it is dropped.
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

    /// Runs a property where the kernel grants a ring; says so where it does not.
    #[expect(clippy::print_stdout, reason = "who reads along should know what was not tested")]
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
    fn more_operations_than_the_ring_is_deep_all_end_and_each_has_its_own_outcome() {
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
    fn errors_end_their_own_operation_only_and_the_ring_serves_on() {
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

    /// Reads numbers of 8 bytes that each say where the next one is, along several chains, and one past the end.
    struct Chains {
        ready: Vec<OwnedRead>,
        flying: usize,
        most: usize,
        seen: Vec<Vec<u64>>,
        failed: usize,
        panics_at: usize,
    }

    impl OwnedReads for Chains {
        fn next(&mut self) -> Option<OwnedRead> {
            let next = self.ready.pop();
            self.flying += usize::from(next.is_some());
            self.most = self.most.max(self.flying);
            next
        }

        fn end(&mut self, read: OwnedRead, outcome: io::Result<usize>) {
            self.flying -= 1;
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
        // Number 7 * n leads to 7 * n - 7, and so on to 0.
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
        (file, Chains { ready: ready.collect(), flying: 0, most: 0, seen: vec![Vec::new(); 300], failed: 0, panics_at })
    }

    #[test]
    fn reads_that_follow_from_each_other_all_end_with_the_ring_full_so_long_as_there_are_enough() {
        with_ring(|ring| {
            let (file, mut chains) = chains(usize::MAX);
            ring.run_on(file.as_fd(), &mut chains).unwrap();
            assert_eq!((chains.failed, chains.most, chains.flying), (2, DEPTH, 0));
            for (number, seen) in chains.seen.iter().enumerate().take(299) {
                let wanted: Vec<u64> =
                    (1..).map(|n| (699 + number as u64).saturating_sub(7 * n)).take(seen.len()).collect();
                assert_eq!((seen, seen.last()), (&wanted, Some(&0)));
            }
        });
    }

    #[test]
    fn a_panic_of_who_takes_a_read_waits_for_the_others_and_leaves_the_ring_good() {
        with_ring(|ring| {
            let (file, mut broken) = chains(50);
            let run = std::panic::AssertUnwindSafe(|| ring.run_on(file.as_fd(), &mut broken));
            assert!(std::panic::catch_unwind(run).is_err());
            let (file, mut chains) = chains(usize::MAX);
            ring.run_on(file.as_fd(), &mut chains).unwrap();
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
