//! Batches of the real disk through `io_uring`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use onefold_sys::{Memory, Operation, OwnedRead, ReadQueue, Ring};

use crate::io::os_transfer::{Direction, Transfer, one};
use crate::io::{DiskFile, ReadStream};

/// Number of rings that are kept for the next batch. Further rings, for more threads at a time, last for one batch.
const RINGS_KEPT: usize = 8;

/// Rings of a disk. Each serves one batch at a time, so threads do not wait for each other's reads, as they would with
/// one ring behind a lock. One ring per thread would stay with threads that never read again.
#[derive(Debug)]
pub(super) struct Rings {
    set_up: fn() -> io::Result<Ring>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Ring>,
    /// The error with which the kernel refused a ring. No further one is requested.
    refused: Option<io::Error>,
}

impl Rings {
    /// Stores the function that sets up a ring; the first batch calls it.
    pub(super) fn new(set_up: fn() -> io::Result<Ring>) -> Self {
        Self { set_up, state: Mutex::default() }
    }

    /// Carries out a batch. After an error there was no ring, and nothing was done.
    pub(super) fn carry_out<T: Transfer>(&self, batch: &mut [T]) -> io::Result<()> {
        self.with_ring(|ring| over(ring, batch))
    }

    /// Carries out a stream of reads of the file with this descriptor. Errors are as above.
    pub(super) fn stream(
        &self,
        file: &dyn DiskFile,
        descriptor: BorrowedFd<'_>,
        reads: &mut dyn ReadStream,
    ) -> io::Result<()> {
        self.with_ring(|ring| ring.run_stream(descriptor, &mut Repeating { file, reads }).is_ok())
    }

    /// Uses a ring, and keeps it for the next batch if it is still usable.
    fn with_ring(&self, run: impl FnOnce(&mut Ring) -> bool) -> io::Result<()> {
        let mut ring = self.take()?;
        if run(&mut ring) {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.free.len() < RINGS_KEPT {
                state.free.push(ring);
            }
        }
        Ok(())
    }

    fn take(&self) -> io::Result<Ring> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = state.free.pop() {
            return Ok(ring);
        }
        if let Some(error) = &state.refused {
            return Err(repeated(error));
        }
        (self.set_up)().inspect_err(|error| state.refused = Some(repeated(error)))
    }
}

/// Returns a copy of an error: `io::Error` cannot be cloned.
pub(super) fn repeated(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Carries out a batch over a ring and returns true if the ring is still usable.
///
/// Plain calls repeat every incomplete transfer from its beginning, whatever the reason: they continue short transfers,
/// repeat interrupted ones, and describe errors. Repeating a read, or a write of the same bytes to the same range, has
/// no other effect.
fn over<T: Transfer>(ring: &mut Ring, batch: &mut [T]) -> bool {
    let mut operations = Vec::with_capacity(batch.len());
    let mut wanted = Vec::with_capacity(batch.len());
    let mut is_whole = vec![false; batch.len()];
    for (index, transfer) in batch.iter_mut().enumerate() {
        let (file, offset, buffer, _) = transfer.parts();
        let Some(descriptor) = file.descriptor(offset, buffer) else { continue };
        wanted.push((index, buffer.len()));
        let memory = match T::DIRECTION {
            Direction::Read => Memory::Read(buffer),
            Direction::Write => Memory::Write(buffer),
        };
        operations.push(Operation { file: descriptor, offset, memory, outcome: None });
    }
    let is_good = ring.run(&mut operations).is_ok();
    for ((index, len), operation) in wanted.into_iter().zip(operations) {
        is_whole[index] = matches!(operation.outcome, Some(Ok(moved)) if moved == len);
    }
    for (transfer, is_whole) in batch.iter_mut().zip(is_whole) {
        if is_whole {
            *transfer.parts().3 = Ok(());
        } else {
            one(transfer);
        }
    }
    is_good
}

/// Reads through a ring. Plain calls carry out the reads that the file would refuse, and repeat incomplete ones.
struct Repeating<'a> {
    file: &'a dyn DiskFile,
    reads: &'a mut dyn ReadStream,
}

impl ReadQueue for Repeating<'_> {
    fn next(&mut self) -> Option<OwnedRead> {
        loop {
            let read = self.reads.next()?;
            if self.file.descriptor(read.offset, &read.buffer).is_some() {
                return Some(read);
            }
            self.plainly(read);
        }
    }

    fn complete(&mut self, read: OwnedRead, outcome: io::Result<usize>) {
        if matches!(outcome, Ok(moved) if moved == read.buffer.len()) {
            self.reads.end(read, Ok(()));
        } else {
            self.plainly(read);
        }
    }
}

impl Repeating<'_> {
    fn plainly(&mut self, mut read: OwnedRead) {
        let outcome = self.file.read_at(read.offset, &mut read.buffer);
        self.reads.end(read, outcome);
    }
}
