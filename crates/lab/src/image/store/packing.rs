//! A store that is being made of an image: its state grows by blocks in the order of the image.

use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, DiskFile};

use super::layout::RangeNames;
use super::state::{Added, Blocks, State, zeros_at};
use super::{Store, StoreOptions, open, refuse_memory};
use crate::image::block::{BlockKeys, Name, UNIT_BYTES};
use crate::image::halving::Kept;

/// Units of a run at most: 512 KiB, which a thread copies at a time.
const RUN_UNITS_MAX: u32 = 512;

/// Creates the file of blocks of a new store.
pub(in crate::image) fn create(disk: &dyn Disk) -> Result<Arc<dyn DiskFile>> {
    open::create_blocks(disk)
}

/// Removes what a pack that failed has made.
pub(in crate::image) fn remove(disk: &dyn Disk) {
    open::remove_unfinished(disk);
}

/// Returns how many units an image of so many bytes has.
pub(in crate::image) fn units_of(image_len: u64, level_min: u8) -> Result<u32> {
    State::units_of(image_len, level_min).ok_or_else(|| Error::invalid("an image has at most 4 TiB"))
}

/// Blocks that follow each other both in the image and in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::image) struct Run {
    /// First unit in the image.
    pub(in crate::image) start: u32,
    /// First unit in the file.
    pub(in crate::image) address: u32,
    pub(in crate::image) units: u32,
}

/// A state that grows.
#[derive(Debug)]
pub(in crate::image) struct Stored {
    state: State,
    options: StoreOptions,
    /// The unit behind the last entry.
    end: u32,
    /// First units of the distinct blocks with their addresses, in the order of the image.
    firsts: Vec<(u32, u32)>,
    runs: Vec<Run>,
}

impl Stored {
    pub(in crate::image) fn new(image_len: u64, options: StoreOptions) -> Result<Self> {
        units_of(image_len, options.level_min)?;
        let state = State::new(image_len, options.level_min);
        Ok(Self { state, options, end: 0, firsts: Vec::new(), runs: Vec::new() })
    }

    /// Adds a block of the image, with its name if its bytes are to be stored.
    pub(in crate::image) fn add(&mut self, block: &Kept, name: Option<Name>) -> Result<()> {
        let entries = self.state.index.len() as u64;
        let pairs = (self.firsts.len() * (size_of::<(u32, u32)>() + size_of::<Run>())) as u64;
        refuse_memory(State::memory_of(entries, self.firsts.len() as u64) + pairs, self.options.memory)?;
        let level = block.level;
        let address = match name {
            _ if block.is_zero => zeros_at(level),
            Some(name) => {
                let address = self.state.buddy.allocate(level);
                let address = address.ok_or_else(|| Error::invalid("the store has as many blocks as it can have"))?;
                let added = Added { address, level, name };
                self.state
                    .add(added, Blocks::Allocated)
                    .map_err(|reason| Error::damaged("names of the image", reason))?;
                self.firsts.push((block.start, address));
                self.add_run(Run { start: block.start, address, units: block.units() });
                address
            }
            None => {
                let at = self.firsts.binary_search_by_key(&block.first, |(start, _)| *start);
                let first = at.ok().and_then(|at| self.firsts.get(at));
                first.ok_or_else(|| Error::damaged("halving", "a duplicate without a first block"))?.1
            }
        };
        self.end = self.state.push(self.end, address).map_err(|reason| Error::damaged("halving", reason))?;
        Ok(())
    }

    fn add_run(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last)
                if last.start + last.units == run.start
                    && last.address + last.units == run.address
                    && last.units + run.units <= RUN_UNITS_MAX =>
            {
                last.units += run.units;
            }
            _ => self.runs.push(run),
        }
    }

    /// Takes the runs of bytes that are to be copied.
    pub(in crate::image) fn runs(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.runs)
    }

    /// Returns true if the bytes of a run have the names of its blocks.
    pub(in crate::image) fn has_names(&self, keys: &BlockKeys, run: &Run, bytes: &[u8]) -> bool {
        let names = RangeNames::of(keys, run.start, bytes);
        let blocks = self.state.descriptors.range(run.address..run.address + run.units);
        let mut units = 0;
        let are_equal = blocks.into_iter().all(|(address, descriptor)| {
            units += 1 << descriptor.level;
            names.name(run.start + (address - run.address), descriptor.level) == Some(descriptor.name)
        });
        are_equal && units == run.units && bytes.len() == run.units as usize * UNIT_BYTES
    }

    /// Makes the store of it, whose blocks are written.
    pub(in crate::image) fn finish(
        self,
        disk: Arc<dyn Disk>,
        blocks: Arc<dyn DiskFile>,
        key: [u8; 32],
    ) -> Result<Store> {
        let Self { state, options, firsts, .. } = self;
        drop(firsts);
        Store::of_state(disk, blocks, state, key, options)
    }
}
