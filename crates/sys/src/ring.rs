//! Batches of reads and writes through `io_uring`.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

/// Transfers that one ring holds in flight at a time.
///
/// 128: past the 32 to 64 at which the disks that were measured stop getting faster, and 128 pages fill half a megabyte.
/// The ring itself takes 128 entries of 64 bytes, 256 answers of 16 and two pages of bookkeeping of the kernel's memory,
/// about 20 KiB.
pub const DEPTH: usize = 128;

/// Entries that are waited for together when a batch is larger than the ring: refilling one by one would cost a call
/// of the kernel each.
const REFILL: usize = DEPTH / 4;

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
                settle(operations, &answer);
            }
        }
        std::mem::forget(guard);
        outcome
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
fn settle(operations: &mut [Operation<'_>], answer: &cqueue::Entry) {
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
