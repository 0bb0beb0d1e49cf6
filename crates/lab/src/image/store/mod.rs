//! A store for one deduplicated image, which can be read and written.
//!
//! A store is a directory of three files. `blocks` has the bytes of the distinct blocks, under a buddy allocator. `checkpoint-N` has
//! the whole state: descriptors, and the index of the image by position. `journal-N` has the changes since then.
//!
//! **Order of writing.** A write goes to free space, and its change to a buffer. [`Store::flush`] makes `blocks` durable, then the
//! frame of the journal that has the changes. A checkpoint is durable under its name before the one before it is removed, and
//! space that it does not refer to is used again only after that. So after a crash at any call the store opens with the image as it
//! was after some change, and no change before the last flush is missing. A failed sync is never retried: the store then refuses all
//! work, and has to be opened again. A store that was not closed begins with a new checkpoint, since its last sync may have failed.
//!
//! **Atomic writes.** A write within a block of 128 KiB that is aligned to its length is seen whole or not at all after a crash. Larger
//! ones are cut at multiples of 128 KiB, and a crash may keep a first part of them.

mod buddy;
mod checkpoint;
mod disk;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod journal;
mod layout;
mod open;
pub(in crate::image) mod packing;
mod problems;
mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, DiskFile};
use serde::Serialize;

use crate::image::block::{BlockKeys, LEVEL_MAX, LEVELS, Name, UNIT_BYTES};
use layout::{Block, Bytes, RangeNames};
pub use problems::Checked;
use state::{Added, Blocks, Change, State};
pub use state::{DESCRIPTOR_MEMORY, ENTRY_MEMORY};

/// Units of a window: a change concerns one at most, and no block crosses its ends.
const WINDOW: u32 = 1 << LEVEL_MAX;
/// A checkpoint is made when the journal has this many bytes, or a quarter of the last checkpoint's if that is more: opening a store
/// reads both.
const JOURNAL_BYTES: u64 = 4 << 20;

/// Parameters of a new store.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Level of the smallest blocks: 0 to 7.
    pub level_min: u8,
    /// Memory for index and descriptors in bytes.
    pub memory: u64,
    /// Threads that read and name blocks.
    pub threads: usize,
}

/// An open store. Only one process has a store open.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    blocks: Arc<dyn DiskFile>,
    journal: Arc<dyn DiskFile>,
    state: State,
    key: [u8; 32],
    keys: BlockKeys,
    zeros: [Name; LEVELS],
    options: StoreOptions,
    log: Log,
    /// The first failure after which the files may lack what the state has.
    failed: Option<String>,
}

/// The journal that is being written.
#[derive(Debug, Default)]
struct Log {
    /// Number of the checkpoint.
    checkpoint: u64,
    /// Bytes of the checkpoint.
    checkpoint_bytes: u64,
    /// Valid bytes of the journal.
    len: u64,
    /// Number of the next frame.
    sequence: u64,
    /// Changes that are not written yet.
    buffer: Vec<u8>,
    /// True if no frame ends the journal: one does when the store is closed.
    is_open: bool,
}

/// Sizes of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct StoreStats {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of its smallest blocks.
    pub min_block_bytes: u64,
    /// Entries of the index.
    pub entries: u64,
    /// Entries that are zeros.
    pub zero_entries: u64,
    /// Distinct stored blocks.
    pub descriptors: u64,
    /// Bytes of the distinct stored blocks.
    pub stored_bytes: u64,
    /// Bytes of the file of blocks.
    pub file_bytes: u64,
    /// Bytes of it that can be used.
    pub free_bytes: u64,
    /// Bytes of it that can be used after the next checkpoint.
    pub released_bytes: u64,
    /// Bytes of the last checkpoint and of the journal.
    pub metadata_bytes: u64,
    /// Memory that index and descriptors take at most.
    pub memory_bytes: u64,
    /// Entries by level, from 1 KiB on.
    pub entries_by_level: [u64; LEVELS],
}

fn bytes_of(units: u32) -> u64 {
    u64::from(units) * UNIT_BYTES as u64
}

fn len_of(units: u32) -> usize {
    units as usize * UNIT_BYTES
}

/// Returns a range within a buffer of units that begins at `start`.
fn within(start: u32, at: u32, units: u32) -> Range<usize> {
    let begin = len_of(at - start);
    begin..begin + len_of(units)
}

impl Store {
    /// Returns the bytes of the image.
    pub fn image_len(&self) -> u64 {
        self.state.image_len
    }

    /// Returns the sizes of the store.
    pub fn stats(&self) -> StoreStats {
        let state = &self.state;
        let mut entries_by_level = [0; LEVELS];
        let levels = state.index.values().filter_map(|address| state.level_at(*address));
        levels.for_each(|level| entries_by_level[usize::from(level)] += 1);
        let stored = state.descriptors.values().map(|descriptor| bytes_of(1 << descriptor.level));
        let free = |units: u64| units * UNIT_BYTES as u64;
        StoreStats {
            image_bytes: state.image_len,
            min_block_bytes: bytes_of(1 << state.level_min),
            entries: state.index.len() as u64,
            zero_entries: state.zeros.iter().sum(),
            descriptors: state.descriptors.len() as u64,
            stored_bytes: stored.sum(),
            file_bytes: bytes_of(state.buddy.end()),
            free_bytes: free(state.buddy.free_units()),
            released_bytes: free(state.buddy.released_units()),
            metadata_bytes: self.log.checkpoint_bytes + self.log.len,
            memory_bytes: state.memory(),
            entries_by_level,
        }
    }

    fn refuse_range(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(reason) = &self.failed {
            return Err(Error::invalid(format_args!("the store has to be opened again, since it failed: {reason}")));
        }
        match offset.checked_add(len).filter(|end| *end <= self.state.image_len) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format_args!(
                "{len} bytes at {offset} are not in the image, which has {} bytes",
                self.state.image_len
            ))),
        }
    }

    /// Reads bytes at an offset. All of them must be in the image. Returns [`Error::Damaged`] if a block has other bytes than its name.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.refuse_range(offset, out.len() as u64)?;
        let unit = |offset: u64| u32::try_from(offset / UNIT_BYTES as u64).unwrap_or(u32::MAX);
        let end = offset + out.len() as u64;
        let mut block = Vec::new();
        let mut rest = out;
        let mut at = offset;
        for (start, address, level) in self.state.entries_from(unit(offset)) {
            if rest.is_empty() {
                break;
            }
            let (begin, units) = (bytes_of(start), 1 << level);
            let stop = end.min(begin + bytes_of(units));
            let len = usize::try_from(stop - at).unwrap_or(usize::MAX);
            let (now, behind) = rest.split_at_mut(len);
            // A block of zeros has no bytes in the file.
            if state::level_of_zeros(address).is_some() {
                now.fill(0);
            } else if len == len_of(units) {
                self.read_block(address, now)?;
            } else {
                block.resize(len_of(units), 0);
                self.read_block(address, &mut block)?;
                let from = usize::try_from(at - begin).unwrap_or(usize::MAX);
                now.copy_from_slice(&block[from..from + len]);
            }
            (rest, at) = (behind, stop);
        }
        Ok(())
    }

    /// Reads a stored block and verifies its name.
    fn read_block(&self, address: u32, out: &mut [u8]) -> Result<()> {
        self.blocks.read_at(bytes_of(address), out)?;
        let descriptor = self.state.descriptors.get(&address);
        if descriptor.map(|descriptor| descriptor.name) != self.keys.name(out) {
            let blocks = self.disk.display(Path::new(disk::BLOCKS));
            return Err(Error::damaged(
                blocks,
                format_args!("the block at byte {} has other bytes", bytes_of(address)),
            ));
        }
        Ok(())
    }

    /// Reads units.
    fn read_units(&self, range: &Range<u32>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len_of(range.end - range.start)];
        for (start, address, level) in self.state.entries_from(range.start) {
            if range.end <= start {
                break;
            }
            if state::level_of_zeros(address).is_some() {
                continue;
            }
            let mut block = vec![0; len_of(1 << level)];
            self.read_block(address, &mut block)?;
            // The range and the block may each begin before the other.
            let (from, to) = (range.start.max(start), range.end.min(start + (1 << level)));
            bytes[within(range.start, from, to - from)].copy_from_slice(&block[within(start, from, to - from)]);
        }
        Ok(bytes)
    }

    /// Writes bytes at an offset. All of them must be in the image. They are durable after [`Self::flush`].
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.refuse_range(offset, bytes.len() as u64)?;
        let window = bytes_of(WINDOW);
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let len = usize::try_from(window - offset % window).unwrap_or(usize::MAX).min(rest.len());
            let (now, behind) = rest.split_at(len);
            self.write_in_window(offset, now)?;
            (rest, offset) = (behind, offset + len as u64);
        }
        Ok(())
    }

    /// Replaces bytes by zeros, which take no space.
    pub fn trim(&mut self, offset: u64, len: u64) -> Result<()> {
        self.refuse_range(offset, len)?;
        let (window, end) = (bytes_of(WINDOW), offset + len);
        let mut offset = offset;
        while offset < end {
            let stop = end.min((offset / window + 1) * window);
            if offset.is_multiple_of(window) && stop - offset == window {
                let start = u32::try_from(offset / UNIT_BYTES as u64).unwrap_or(u32::MAX);
                let zeros = state::zeros_at(LEVEL_MAX);
                self.refuse_memory(1)?;
                self.change(&Change { start, added: Vec::new(), entries: vec![zeros] })?;
            } else {
                let zeros = vec![0; usize::try_from(stop - offset).unwrap_or_default()];
                self.write_in_window(offset, &zeros)?;
            }
            offset = stop;
        }
        Ok(())
    }

    /// Writes bytes that lie within one window.
    fn write_in_window(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let block = bytes_of(1 << self.state.level_min);
        let end = offset + bytes.len() as u64;
        let unit = |offset: u64| u32::try_from(offset / UNIT_BYTES as u64).unwrap_or(u32::MAX);
        let written = unit(offset / block * block)..unit(end.next_multiple_of(block));
        let range = self.whole_entries(&written);
        // Nothing is read if all entries of the range are written whole.
        let is_whole = bytes_of(range.start) == offset && bytes_of(range.end) == end;
        let joined;
        let content = if is_whole {
            bytes
        } else {
            let mut content = self.read_units(&range)?;
            let from = usize::try_from(offset - bytes_of(range.start)).unwrap_or(usize::MAX);
            content[from..from + bytes.len()].copy_from_slice(bytes);
            joined = content;
            &joined
        };
        let names = RangeNames::of(&self.keys, range.start, content);
        let blocks = layout::of_write(&self.state, &self.zeros, &names, &written);
        self.store(&range, &blocks, content)
    }

    /// Returns the range of the entries that have a part of a range.
    fn whole_entries(&self, range: &Range<u32>) -> Range<u32> {
        let level = |address: u32| self.state.level_at(address).unwrap_or_default();
        let first = self.state.index.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let last = self.state.index.range(..range.end).next_back();
        let end = last.map_or(range.end, |(start, address)| start + (1 << level(*address)));
        first..end.max(range.end)
    }

    /// Stores the new blocks of a layout of a range, and changes the index.
    fn store(&mut self, range: &Range<u32>, blocks: &[Block], content: &[u8]) -> Result<()> {
        self.refuse_memory(blocks.len())?;
        let mut change = Change { start: range.start, ..Change::default() };
        if let Err(error) = self.put_blocks(range, blocks, content, &mut change) {
            // Nothing refers to them.
            change.added.iter().for_each(|added| self.state.buddy.give_back(added.address, added.level));
            return Err(error);
        }
        self.change(&change)
    }

    fn refuse_memory(&self, blocks: usize) -> Result<()> {
        let more = State::memory_of(blocks as u64, blocks as u64);
        refuse_memory(self.state.memory() + more, self.options.memory)
    }

    /// Allocates and writes the new blocks of a layout, and adds all blocks to a change.
    fn put_blocks(&mut self, range: &Range<u32>, blocks: &[Block], content: &[u8], change: &mut Change) -> Result<()> {
        // Blocks that are next to each other in both the image and the file are written together: first unit, address, units.
        let mut runs: Vec<(u32, u32, u32)> = Vec::new();
        for block in blocks {
            let address = match block.bytes {
                Bytes::Known(address) => address,
                Bytes::SameAs(number) => change.added.get(number).map(|added| added.address).unwrap_or_default(),
                Bytes::New(name) => {
                    let address = self.state.buddy.allocate(block.level);
                    let address =
                        address.ok_or_else(|| Error::invalid("the store has as many blocks as it can have"))?;
                    change.added.push(Added { address, level: block.level, name });
                    match runs.last_mut() {
                        Some((start, at, units)) if *start + *units == block.start && *at + *units == address => {
                            *units += 1 << block.level;
                        }
                        _ => runs.push((block.start, address, 1 << block.level)),
                    }
                    address
                }
            };
            change.entries.push(address);
        }
        for (start, address, units) in runs {
            self.blocks.write_at(bytes_of(address), &content[within(range.start, start, units)])?;
        }
        Ok(())
    }

    /// Applies a change whose blocks are allocated and written, and keeps it for the journal.
    fn change(&mut self, change: &Change) -> Result<()> {
        self.state.apply(change, Blocks::Allocated).expect("a change that this program made fits the state");
        journal::encode_change(change, &mut self.log.buffer);
        if journal::BUFFER_BYTES <= self.log.buffer.len() { self.flush() } else { Ok(()) }
    }

    /// Joins neighboring blocks: zeros, those that are known together as one block, and those that are not shared. Reads come out the
    /// same. Returns by how many entries the index is shorter.
    pub fn compact(&mut self) -> Result<u64> {
        self.refuse_range(0, 0)?;
        let before = self.state.index.len();
        let mut start = 0;
        while start < self.state.units() {
            let end = self.state.units().min(start + WINDOW);
            let range = start..end;
            if let Some(blocks) = layout::compacted(&self.state, &self.keys, &self.zeros, &range) {
                let is_new = |block: &Block| matches!(block.bytes, Bytes::New(_));
                let content = if blocks.iter().any(is_new) { self.read_units(&range)? } else { Vec::new() };
                self.store(&range, &blocks, &content)?;
            }
            start = end;
        }
        Ok(before.saturating_sub(self.state.index.len()) as u64)
    }
}

/// Refuses to take more memory than is allowed.
fn refuse_memory(memory: u64, allowed: u64) -> Result<()> {
    if memory <= allowed {
        return Ok(());
    }
    Err(Error::invalid(format_args!(
        "the store takes {} MiB of memory, and {} MiB are allowed; --memory SIZE allows more",
        memory.div_ceil(1 << 20),
        allowed >> 20
    )))
}
