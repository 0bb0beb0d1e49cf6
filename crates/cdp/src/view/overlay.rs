//! A file that takes the writes to a volume that nobody may change.
//!
//! The file has a header, two bits for each block of the volume, and the blocks at their offsets after that, so that it takes only the
//! space of what was written if the file system has sparse files. A flush makes the blocks durable before the bits that name them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

use crate::history::BLOCK_BYTES;
use crate::log::Log;
use crate::nbd::export::{Context, Export, Fua, STATUS_EXTENTS_MAX, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, allocation_flag, export_flag};

const MAGIC: [u8; 8] = *b"onefoldo";
const VERSION: u32 = 1;
/// Magic, version, zeros, size, identity, checksum.
const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + 32 + 4;
/// A page of states, and a block in memory.
const PAGE: usize = 4096;
/// Blocks of a byte of states.
const PER_BYTE: u64 = 4;

/// Location of the contents of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Base = 0,
    File = 1,
    /// Nowhere: it reads as zeros.
    Zero = 2,
}

#[derive(Debug)]
struct State {
    /// Two bits for each block.
    bits: Vec<u8>,
    /// Pages of it that are not in the file.
    dirty: BTreeSet<usize>,
    /// A write or a sync of the file has failed.
    is_failed: bool,
}

impl State {
    fn get(&self, block: u64) -> Kept {
        let byte = usize::try_from(block / PER_BYTE).ok().and_then(|at| self.bits.get(at)).copied().unwrap_or(0);
        match byte >> (block % PER_BYTE * 2) & 3 {
            0 => Kept::Base,
            1 => Kept::File,
            _ => Kept::Zero,
        }
    }

    fn set(&mut self, block: u64, location: Kept) {
        let at = usize::try_from(block / PER_BYTE).expect("the bits are in memory");
        let shift = block % PER_BYTE * 2;
        let byte = self.bits.get_mut(at).expect("each block has its bits");
        *byte = *byte & !(3 << shift) | (location as u8) << shift;
        self.dirty.insert(at / PAGE);
    }

    /// Returns where a block is, and how many from it on are there, too.
    fn run(&self, blocks: Range<u64>) -> (Kept, u64) {
        let location = self.get(blocks.start);
        let run = blocks.clone().take_while(|block| self.get(*block) == location).count();
        (location, run as u64)
    }
}

/// A volume with a file for what is written to it.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn Export>,
    file: Arc<dyn DiskFile>,
    name: String,
    size: u64,
    state: Mutex<State>,
    log: Log,
}

/// Bytes of the states of a volume's blocks, in whole pages.
fn states_bytes(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES * PER_BYTE).next_multiple_of(PAGE as u64)
}

fn header(size: u64, identity: &[u8; 32]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(identity);
    out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
    out
}

impl Overlay {
    /// Creates the file, which must not exist. `identity` names the volume and the moment, so that the file is not used for others.
    pub fn create(disk: &dyn Disk, path: &Path, base: Arc<dyn Export>, identity: &[u8; 32], log: Log) -> Result<Self> {
        let size = check_size(&*base)?;
        let file = disk.create(path)?;
        file.set_len(PAGE as u64 + states_bytes(size) + size)?;
        file.write_at(0, &header(size, identity))?;
        file.sync()?;
        let bits = vec![0; usize::try_from(states_bytes(size)).map_err(Error::invalid)?];
        Ok(Self::over(base, file, disk.display(path), (size, bits), log))
    }

    /// Opens a file that was created for the same volume and moment.
    pub fn open(disk: &dyn Disk, path: &Path, base: Arc<dyn Export>, identity: &[u8; 32], log: Log) -> Result<Self> {
        let size = check_size(&*base)?;
        let (name, file) = (disk.display(path), disk.open(path, Access::ReadWrite)?);
        if file.len()? != PAGE as u64 + states_bytes(size) + size {
            return Err(Error::invalid(format!("{name} is no overlay of a volume of {size} bytes")));
        }
        let mut found = [0; HEADER_BYTES];
        file.read_at(0, &mut found)?;
        if found[..] != header(size, identity) {
            return Err(Error::invalid(format!("{name} is an overlay of another volume or moment, or none")));
        }
        let mut bits = vec![0; usize::try_from(states_bytes(size)).map_err(Error::invalid)?];
        file.read_at(PAGE as u64, &mut bits)?;
        if bits.iter().any(|byte| byte & byte >> 1 & 0x55 != 0) {
            return Err(Error::damaged(name, "a block is in no possible state"));
        }
        Ok(Self::over(base, file, name, (size, bits), log))
    }

    fn over(
        base: Arc<dyn Export>,
        file: Arc<dyn DiskFile>,
        name: String,
        (size, bits): (u64, Vec<u8>),
        log: Log,
    ) -> Self {
        let state = Mutex::new(State { bits, dirty: BTreeSet::new(), is_failed: false });
        Self { base, file, name, size, state, log }
    }

    /// Returns the memory of an overlay of a volume of so many bytes.
    pub fn memory_bytes(size: u64) -> u64 {
        states_bytes(size)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state for a change; none after a failure.
    fn change(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.lock();
        if state.is_failed { Err(Errno::Io) } else { Ok(state) }
    }

    fn offset_of(&self, offset: u64) -> u64 {
        PAGE as u64 + states_bytes(self.size) + offset
    }

    /// Takes the outcome of a call of the file. After a failure nothing is written any more: what the file holds is not known.
    fn or_fail(&self, state: &mut State, outcome: Result<()>) -> Result<(), Errno> {
        outcome.map_err(|error| {
            state.is_failed = true;
            self.log.line(&format!("{}: {error}; nothing is written to it from now on", self.name));
            if error.io_kind() == Some(std::io::ErrorKind::StorageFull) { Errno::NoSpace } else { Errno::Io }
        })
    }

    /// Reads a part that is in one location.
    fn read_part(&self, location: Kept, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        match location {
            Kept::Base => self.base.read(offset, into),
            Kept::Zero => {
                into.fill(0);
                Ok(())
            }
            Kept::File => self.file.read_at(self.offset_of(offset), into).map_err(|error| {
                self.log.line(&format!("{}: {error}", self.name));
                Errno::Io
            }),
        }
    }

    /// Changes a part of a block; no bytes stand for zeros.
    fn change_part(&self, state: &mut State, offset: u64, len: usize, bytes: &[u8]) -> Result<(), Errno> {
        let block = offset / BLOCK_BYTES;
        let mut contents = [0; PAGE];
        let within = usize::try_from(offset % BLOCK_BYTES).expect("below the bytes of a block");
        let size = usize::try_from((self.size - block * BLOCK_BYTES).min(BLOCK_BYTES)).expect("a block is short");
        self.read_part(state.get(block), block * BLOCK_BYTES, &mut contents[..size])?;
        match bytes {
            [] => contents[within..within + len].fill(0),
            bytes => contents[within..within + len].copy_from_slice(bytes),
        }
        let outcome = self.file.write_at(self.offset_of(block * BLOCK_BYTES), &contents[..size]);
        self.or_fail(state, outcome)?;
        state.set(block, Kept::File);
        Ok(())
    }

    /// Changes a range; no bytes stand for zeros.
    fn change_range(&self, range: Range<u64>, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.change()?;
        let mut offset = range.start;
        while offset < range.end {
            let whole_end = range.end / BLOCK_BYTES * BLOCK_BYTES;
            let is_whole = offset.is_multiple_of(BLOCK_BYTES) && offset < whole_end;
            let end = if is_whole { whole_end } else { ((offset / BLOCK_BYTES + 1) * BLOCK_BYTES).min(range.end) };
            let len = usize::try_from(end - offset).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at_checked(len).unwrap_or_default();
            if !is_whole {
                self.change_part(&mut state, offset, len, part)?;
            } else if part.is_empty() {
                (offset / BLOCK_BYTES..end / BLOCK_BYTES).for_each(|block| state.set(block, Kept::Zero));
            } else {
                let outcome = self.file.write_at(self.offset_of(offset), part);
                self.or_fail(&mut state, outcome)?;
                (offset / BLOCK_BYTES..end / BLOCK_BYTES).for_each(|block| state.set(block, Kept::File));
            }
            (offset, bytes) = (end, rest);
        }
        Ok(())
    }

    fn flush_if(&self, fua: Fua) -> Result<(), Errno> {
        if fua == Fua::Yes { self.flush() } else { Ok(()) }
    }
}

fn check_size(base: &dyn Export) -> Result<u64> {
    let size = base.size();
    if size == 0 { Err(Error::invalid("an empty volume has no overlay")) } else { Ok(size) }
}

impl Export for Overlay {
    fn size(&self) -> u64 {
        self.size
    }

    fn flags(&self) -> u16 {
        let changes = export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES;
        export_flag::SEND_FLUSH | export_flag::SEND_FUA | export_flag::CAN_MULTI_CONN | changes
    }

    fn has_context(&self, context: Context) -> bool {
        context == Context::Allocation && self.base.has_context(context)
    }

    fn is_prompt(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let end = offset + into.len() as u64;
        let (mut offset, mut into) = (offset, into);
        while offset < end {
            let block = offset / BLOCK_BYTES;
            let (location, run) = self.lock().run(block..end.div_ceil(BLOCK_BYTES));
            let next = ((block + run) * BLOCK_BYTES).min(end);
            let (part, rest) = into.split_at_mut(usize::try_from(next - offset).expect("within the buffer"));
            self.read_part(location, offset, part)?;
            (offset, into) = (next, rest);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        self.change_range(offset..offset + data.len() as u64, data)?;
        self.flush_if(fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.change_range(range, &[])?;
        self.flush_if(options.fua)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        self.change_range(range, &[])?;
        self.flush_if(fua)
    }

    fn flush(&self) -> Result<(), Errno> {
        let mut state = self.change()?;
        let outcome = self.file.sync_data();
        self.or_fail(&mut state, outcome)?;
        for page in std::mem::take(&mut state.dirty) {
            let bits = state.bits.get(page * PAGE..(page + 1) * PAGE).expect("states are whole pages").to_vec();
            let outcome = self.file.write_at(((page + 1) * PAGE) as u64, &bits);
            self.or_fail(&mut state, outcome)?;
        }
        let outcome = self.file.sync_data();
        self.or_fail(&mut state, outcome)
    }

    fn cache(&self, range: Range<u64>) -> Result<(), Errno> {
        self.base.cache(range)
    }

    fn block_status(&self, range: Range<u64>, context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let block = at / BLOCK_BYTES;
            let (location, run) = self.lock().run(block..range.end.div_ceil(BLOCK_BYTES));
            let end = ((block + run) * BLOCK_BYTES).min(range.end);
            let mut of_base = StatusExtents::default();
            of_base.begin(u32::try_from(end - at).unwrap_or(u32::MAX), STATUS_EXTENTS_MAX);
            match location {
                Kept::Base => self.base.block_status(at..end, context, &mut of_base)?,
                Kept::File => drop(of_base.push(end - at, 0)),
                Kept::Zero => drop(of_base.push(end - at, allocation_flag::HOLE | allocation_flag::ZERO)),
            }
            let before = at;
            for extent in of_base.as_slice() {
                if !extents.push(extent.len.into(), extent.flags) {
                    return Ok(());
                }
                at += u64::from(extent.len);
            }
            if at == before {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
