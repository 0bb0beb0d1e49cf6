//! Bringing volumes back to a moment: only blocks that differ are written.

use std::ops::Range;

use onefold_engine::error::{Error, Result};

use crate::history::BLOCK_BYTES;
use crate::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, allocation_flag};
use crate::view::point::PointInTime;
use crate::volume::differing_blocks;

/// Bytes that are compared at a time: two buffers of this length are all the memory that it takes.
const STEP_BYTES: u64 = 1 << 20;
/// Bytes of a hole that are looked at at a time.
const HOLE_BYTES: u64 = 1 << 30;
/// Most extents of one answer about holes of the target.
const STATUS_EXTENTS: usize = 16;
/// How zeros are written where the moment has a hole.
const ZEROS: ZeroOptions = ZeroOptions { fua: Fua::No, allocate: false, fast: false };

/// Makes a target equal to a volume of a view, which has as many bytes, by writing the blocks that differ. A
/// [`ProtectedVolume`](crate::volume::ProtectedVolume) records these writes, so that they can be undone. `before` is called before each
/// step, which writes at most 1 MiB; its error ends the work between two steps. Returns the bytes that were written.
///
/// # Panics
///
/// If there is no volume with this number.
pub fn bring_back<E: From<Error>>(
    point: &PointInTime,
    volume: usize,
    target: &dyn Export,
    before: &mut dyn FnMut() -> Result<(), E>,
) -> Result<u64, E> {
    let size = point.volumes()[volume].size;
    if target.size() != size {
        let name = &point.volumes()[volume].name;
        return Err(Error::invalid(format!("volume `{name}` has {} bytes and had {size} then", target.size())).into());
    }
    let mut work = Work { point, volume, target, expected: Vec::new(), found: Vec::new(), differing: Vec::new() };
    let (mut offset, mut written) = (0, 0);
    while offset < size {
        before()?;
        let (is_hole, alike) = point.is_hole(volume, offset, HOLE_BYTES.min(size - offset))?;
        let zeros = if is_hole { work.zeros(offset, alike)? } else { 0 };
        let len = if zeros == 0 { alike.min(STEP_BYTES) } else { zeros };
        if zeros == 0 {
            written += work.step(offset, len, is_hole)?;
        }
        offset += len;
    }
    Ok(written)
}

struct Work<'a> {
    point: &'a PointInTime,
    volume: usize,
    target: &'a dyn Export,
    expected: Vec<u8>,
    found: Vec<u8>,
    differing: Vec<usize>,
}

impl Work<'_> {
    fn failed(&self, what: &str, offset: u64) -> impl Fn(Errno) -> Error + use<> {
        let name = self.point.volumes()[self.volume].name.clone();
        let what = what.to_owned();
        move |errno| Error::invalid(format!("volume `{name}` cannot be {what} at byte {offset}: {errno:?}"))
    }

    /// Returns how many bytes of the target from an offset on are known to be zeros, in whole blocks.
    fn zeros(&self, offset: u64, len: u64) -> Result<u64> {
        if !self.target.has_context(Context::Allocation) {
            return Ok(0);
        }
        let mut extents = StatusExtents::default();
        extents.begin(u32::try_from(len).expect("a hole is asked for in parts"), STATUS_EXTENTS);
        let status = self.target.block_status(offset..offset + len, Context::Allocation, &mut extents);
        status.map_err(self.failed("examined", offset))?;
        let zero = extents.as_slice().iter().take_while(|extent| extent.flags & allocation_flag::ZERO != 0);
        let zero: u64 = zero.map(|extent| u64::from(extent.len)).sum();
        Ok(zero.min(len) / BLOCK_BYTES * BLOCK_BYTES)
    }

    /// Compares a range, and writes the blocks that differ; returns their bytes.
    fn step(&mut self, offset: u64, len: u64, is_hole: bool) -> Result<u64> {
        let bytes = usize::try_from(len).expect("a step is short");
        self.found.resize(bytes, 0);
        self.target.read(offset, &mut self.found).map_err(self.failed("read", offset))?;
        self.expected.clear();
        self.expected.resize(bytes, 0);
        if !is_hole {
            self.point.read(self.volume, offset, &mut self.expected)?;
        }
        self.differing.clear();
        differing_blocks(&self.found, &self.expected, &mut self.differing);
        let mut written = 0;
        for blocks in runs(&self.differing) {
            let range = blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(len);
            let part = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            let part = part.and_then(|(start, end)| self.expected.get(start..end)).expect("within the step");
            let (start, end) = (offset + range.start, offset + range.end);
            let outcome = if is_hole {
                self.target.write_zeroes(start..end, ZEROS)
            } else {
                self.target.write(start, part, Fua::No)
            };
            outcome.map_err(self.failed("written", start))?;
            written += range.end - range.start;
        }
        Ok(written)
    }
}

/// Joins ascending numbers that follow each other.
fn runs(numbers: &[usize]) -> impl Iterator<Item = Range<u64>> {
    let follow = numbers.chunk_by(|one, next| one + 1 == *next);
    follow.filter_map(|run| Some(*run.first()? as u64..*run.last()? as u64 + 1))
}
