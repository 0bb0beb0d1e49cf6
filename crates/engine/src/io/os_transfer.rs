//! A read or a write of the real disk, for both backends of batches.

use std::sync::Arc;

use crate::error::Result;
use crate::io::{AlignedBuffer, BatchRead, BatchWrite, DiskFile};

/// Direction of the bytes.
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

pub(super) fn carry_out(direction: Direction, file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
    match direction {
        Direction::Read => file.read_at(offset, buffer),
        Direction::Write => file.write_at(offset, buffer),
    }
}

/// Carries out one transfer by the plain calls, on the caller's thread.
pub(super) fn one<T: Transfer>(transfer: &mut T) {
    let (file, offset, buffer, outcome) = transfer.parts();
    *outcome = carry_out(T::DIRECTION, &**file, offset, buffer);
}
