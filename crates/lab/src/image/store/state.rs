//! The state of a store in memory: its index, its descriptors, and the free blocks. A [`Change`] leads from one state to the next.

use std::collections::{BTreeMap, HashMap};

use onefold_engine::identify::identity_hasher::BuildIdentityHasher;

use super::buddy::Buddy;
use crate::image::block::{LEVEL_MAX, LEVELS, Name, UNIT_BYTES};

/// Bytes of memory for an entry of the index: 8 of a node of a tree that is at least 5/11 full, its part of inner nodes, and a margin.
pub const ENTRY_MEMORY: u64 = 24;
/// Bytes of memory for a descriptor: 28 in a tree, and 21 in a hash map that doubles and holds both tables meanwhile.
pub const DESCRIPTOR_MEMORY: u64 = 128;
/// Bytes of memory for a free or released block.
const FREE_MEMORY: u64 = 16;

/// Address of a block of zeros: the last ones, by level. They have no bytes in the file.
const ZEROS: u32 = u32::MAX - LEVEL_MAX as u32;

/// Returns the address that stands for zeros of a level.
pub(super) fn zeros_at(level: u8) -> u32 {
    ZEROS + u32::from(level.min(LEVEL_MAX))
}

/// Returns the level of an address that stands for zeros.
pub(super) fn level_of_zeros(address: u32) -> Option<u8> {
    address.checked_sub(ZEROS).and_then(|level| u8::try_from(level).ok())
}

/// A stored block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptor {
    pub(super) name: Name,
    pub(super) level: u8,
    /// Entries that refer to it.
    pub(super) references: u32,
}

/// A block that a change stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Added {
    pub(super) address: u32,
    pub(super) level: u8,
    pub(super) name: Name,
}

/// Entries in place of those of a range, and the blocks that they need in addition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Change {
    /// First unit of the range.
    pub(super) start: u32,
    pub(super) added: Vec<Added>,
    /// Addresses of the entries, which follow each other.
    pub(super) entries: Vec<u32>,
}

/// Whether the blocks that a change adds are allocated already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocks {
    /// They are.
    Allocated,
    /// They are not: the change comes from the journal.
    Free,
}

/// The state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// Bytes of the image.
    pub(super) image_len: u64,
    /// Level of the smallest blocks.
    pub(super) level_min: u8,
    /// Addresses of blocks, by their first unit in the image.
    pub(super) index: BTreeMap<u32, u32>,
    /// Stored blocks by address.
    pub(super) descriptors: BTreeMap<u32, Descriptor>,
    /// Addresses by name.
    by_name: HashMap<Name, u32, BuildIdentityHasher>,
    /// Entries that refer to zeros, by level.
    pub(super) zeros: [u64; LEVELS],
    pub(super) buddy: Buddy,
}

impl State {
    /// Makes the state of an image without entries, which [`Self::push`] adds.
    pub(super) fn new(image_len: u64, level_min: u8) -> Self {
        Self {
            image_len,
            level_min,
            index: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            by_name: HashMap::default(),
            zeros: [0; LEVELS],
            buddy: Buddy::default(),
        }
    }

    /// Returns how many units an image of so many bytes has, its last block filled up; none if it is too long.
    pub(super) fn units_of(image_len: u64, level_min: u8) -> Option<u32> {
        let block = (UNIT_BYTES as u64) << level_min;
        let units = image_len.div_ceil(block) << level_min;
        u32::try_from(units).ok().filter(|units| *units < ZEROS)
    }

    /// Returns how many units the image has.
    pub(super) fn units(&self) -> u32 {
        Self::units_of(self.image_len, self.level_min).unwrap_or_default()
    }

    /// Returns the memory that it takes at most.
    pub(super) fn memory(&self) -> u64 {
        Self::memory_of(self.index.len() as u64, self.descriptors.len() as u64)
            + FREE_MEMORY * self.buddy.count() as u64
    }

    /// Returns the memory that so many entries and descriptors take at most, free blocks left out.
    pub(super) fn memory_of(entries: u64, descriptors: u64) -> u64 {
        entries.saturating_mul(ENTRY_MEMORY).saturating_add(descriptors.saturating_mul(DESCRIPTOR_MEMORY))
    }

    /// Returns the address of a block with a name.
    pub(super) fn address_of(&self, name: &Name) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Returns the level of the block at an address, if there is one.
    pub(super) fn level_at(&self, address: u32) -> Option<u8> {
        level_of_zeros(address).or_else(|| self.descriptors.get(&address).map(|descriptor| descriptor.level))
    }

    /// Returns the entries from the one that has a unit on: first unit, address and level.
    pub(super) fn entries_from(&self, unit: u32) -> impl Iterator<Item = (u32, u32, u8)> {
        let start = self.index.range(..=unit).next_back().map_or(unit, |(start, _)| *start);
        self.index.range(start..).map_while(|(start, address)| Some((*start, *address, self.level_at(*address)?)))
    }

    /// Adds a stored block without references.
    pub(super) fn add(&mut self, added: Added, blocks: Blocks) -> Result<(), &'static str> {
        let Added { address, level, name } = added;
        if level < self.level_min || LEVEL_MAX < level {
            return Err("a block has a level that the image does not have");
        }
        if self.by_name.contains_key(&name) {
            return Err("two blocks have the same name");
        }
        if blocks == Blocks::Free && self.buddy.allocate_at(address, level).is_none() {
            return Err("a block lies where another one is");
        }
        self.descriptors.insert(address, Descriptor { name, level, references: 0 });
        self.by_name.insert(name, address);
        Ok(())
    }

    /// Counts a reference to a block. Returns the level of the block.
    fn refer(&mut self, address: u32) -> Result<u8, &'static str> {
        if let Some(level) = level_of_zeros(address) {
            *self.zeros.get_mut(usize::from(level)).ok_or("no such level")? += 1;
            return Ok(level);
        }
        let descriptor = self.descriptors.get_mut(&address).ok_or("an entry refers to no block")?;
        descriptor.references = descriptor.references.checked_add(1).ok_or("more references than can be counted")?;
        Ok(descriptor.level)
    }

    /// Takes a reference back. A block without references goes.
    fn drop_reference(&mut self, address: u32) {
        if let Some(level) = level_of_zeros(address) {
            if let Some(count) = self.zeros.get_mut(usize::from(level)) {
                *count = count.saturating_sub(1);
            }
            return;
        }
        let Some(descriptor) = self.descriptors.get_mut(&address) else { return };
        descriptor.references = descriptor.references.saturating_sub(1);
        if descriptor.references == 0 {
            self.by_name.remove(&descriptor.name);
            self.buddy.release(address, descriptor.level);
            self.descriptors.remove(&address);
        }
    }

    /// Adds the entry of a unit, which is behind all others. Returns the unit behind it.
    pub(super) fn push(&mut self, start: u32, address: u32) -> Result<u32, &'static str> {
        let level = self.refer(address)?;
        let end = self.end_of(start, level)?;
        self.index.insert(start, address);
        Ok(end)
    }

    /// Returns the unit behind a block of the image.
    fn end_of(&self, start: u32, level: u8) -> Result<u32, &'static str> {
        let end = start.checked_add(1 << level).filter(|end| *end <= self.units());
        let end = end.ok_or("an entry goes beyond the end of the image")?;
        if level < self.level_min || !start.is_multiple_of(1 << level) {
            return Err("an entry begins at no multiple of its length");
        }
        Ok(end)
    }

    /// Refuses a change that does not fit this state. Changes nothing.
    fn check(&self, change: &Change) -> Result<u32, &'static str> {
        let added: HashMap<u32, u8> = change.added.iter().map(|added| (added.address, added.level)).collect();
        let mut at = change.start;
        for address in &change.entries {
            let level = added.get(address).copied().or_else(|| self.level_at(*address));
            at = self.end_of(at, level.ok_or("an entry refers to no block")?)?;
        }
        let begins = |unit: u32| unit == self.units() || self.index.contains_key(&unit);
        if change.entries.is_empty() || !begins(change.start) || !begins(at) {
            return Err("a change does not replace whole entries");
        }
        let is_used = |added: &u32| change.entries.contains(added);
        if change.added.iter().any(|added| !is_used(&added.address)) {
            return Err("a block has no entry");
        }
        Ok(at)
    }

    /// Applies a change. After an error the state is of no use, unless the change came from this program.
    pub(super) fn apply(&mut self, change: &Change, blocks: Blocks) -> Result<(), &'static str> {
        let end = self.check(change)?;
        for added in &change.added {
            self.add(*added, blocks)?;
        }
        let old: Vec<(u32, u32)> =
            self.index.range(change.start..end).map(|(start, address)| (*start, *address)).collect();
        for (start, _) in &old {
            self.index.remove(start);
        }
        let mut at = change.start;
        for address in &change.entries {
            at = self.push(at, *address)?;
        }
        // After the new references, so that a block that both have stays.
        for (_, address) in old {
            self.drop_reference(address);
        }
        Ok(())
    }

    /// Returns an inconsistency between index, descriptors and free blocks, if there is one.
    pub(super) fn inconsistency(&self) -> Option<String> {
        let mut references: HashMap<u32, u32> = HashMap::new();
        let mut zeros = [0; LEVELS];
        let mut at = 0;
        for (start, address) in &self.index {
            let Some(level) = self.level_at(*address) else { return Some(format!("unit {start} refers to no block")) };
            if *start != at || !start.is_multiple_of(1 << level) {
                return Some(format!("the entries of the index do not follow each other at unit {start}"));
            }
            at = start + (1 << level);
            match level_of_zeros(*address) {
                Some(level) => zeros[usize::from(level)] += 1,
                None => *references.entry(*address).or_default() += 1,
            }
        }
        if at != self.units() {
            return Some(format!("the index ends at unit {at} of {}", self.units()));
        }
        for (address, descriptor) in &self.descriptors {
            let counted = references.get(address).copied().unwrap_or_default();
            if counted != descriptor.references || self.by_name.get(&descriptor.name) != Some(address) {
                return Some(format!("the block at {address} has {counted} references, not {}", descriptor.references));
            }
        }
        if zeros != self.zeros || self.by_name.len() != self.descriptors.len() {
            return Some("the counts of zeros or of names are wrong".to_owned());
        }
        let used = self.descriptors.iter().map(|(address, descriptor)| (*address, descriptor.level));
        (!self.buddy.tiles(used)).then(|| "free and used blocks do not tile the file".to_owned())
    }
}
