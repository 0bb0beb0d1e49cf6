//! Which blocks a range of the image is kept in: decisions that touch nothing.

use std::collections::HashMap;
use std::ops::Range;

use super::state::{State, zeros_at};
use crate::image::block::{BlockKeys, LEVEL_MAX, LEVELS, Name, UNIT_BYTES};

/// Names of all blocks that lie within a range of units.
#[derive(Debug)]
pub(super) struct RangeNames {
    /// For each level: the index of its first block within the range, among all blocks of the image.
    first: [u32; LEVELS],
    names: [Vec<Name>; LEVELS],
    units: Range<u32>,
}

impl RangeNames {
    /// Computes the names of bytes that begin at a unit.
    pub(super) fn of(keys: &BlockKeys, start: u32, bytes: &[u8]) -> Self {
        let units = u32::try_from(bytes.len() / UNIT_BYTES).unwrap_or(u32::MAX);
        let mut names: [Vec<Name>; LEVELS] = Default::default();
        let mut first = [start; LEVELS];
        keys.name_units(bytes, &mut names[0]);
        for level in 0..LEVEL_MAX {
            let (below, above) = names.split_at_mut(usize::from(level) + 1);
            let begin = first[usize::from(level)];
            let (Some(halves), Some(out)) = (below.last(), above.first_mut()) else { break };
            // A pair begins at an even index.
            keys.name_pairs(level, halves.get(begin as usize % 2..).unwrap_or_default(), out);
            first[usize::from(level) + 1] = begin.div_ceil(2);
        }
        Self { first, names, units: start..start.saturating_add(units) }
    }

    /// Returns the name of a block, if it lies within the range.
    pub(super) fn name(&self, start: u32, level: u8) -> Option<Name> {
        let at = (start >> level).checked_sub(*self.first.get(usize::from(level))?)?;
        self.names.get(usize::from(level))?.get(at as usize).copied()
    }
}

/// A block of a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) start: u32,
    pub(super) level: u8,
    pub(super) bytes: Bytes,
}

/// The bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bytes {
    /// Those of the block at an address, or zeros.
    Known(u32),
    /// New ones, which are to be stored.
    New(Name),
    /// Those of a new block of this layout, by its number among the new ones.
    SameAs(usize),
}

/// A layout of a range that is being made.
struct Layout<'a> {
    state: &'a State,
    zeros: &'a [Name; LEVELS],
    /// New blocks by name.
    new: HashMap<Name, usize>,
    blocks: Vec<Block>,
}

impl Layout<'_> {
    /// Returns known bytes with a name.
    fn known(&self, name: &Name, level: u8) -> Option<Bytes> {
        if self.zeros.get(usize::from(level)) == Some(name) {
            return Some(Bytes::Known(zeros_at(level)));
        }
        self.state.address_of(name).map(Bytes::Known).or_else(|| self.new.get(name).copied().map(Bytes::SameAs))
    }

    fn add(&mut self, start: u32, level: u8, bytes: Bytes) {
        if let Bytes::New(name) = bytes {
            self.new.insert(name, self.new.len());
        }
        self.blocks.push(Block { start, level, bytes });
    }

    /// Lays out a block from the top down: the largest blocks that are known, else halves. The parts that are not in `written` come
    /// from one block that is split, and stay as large as they can.
    fn cover(&mut self, names: &RangeNames, start: u32, level: u8, written: &Range<u32>) {
        let Some(name) = names.name(start, level) else { return };
        if let Some(bytes) = self.known(&name, level) {
            return self.add(start, level, bytes);
        }
        let is_written = start < written.end && written.start < start + (1 << level);
        if level <= self.state.level_min || !is_written {
            return self.add(start, level, Bytes::New(name));
        }
        self.cover(names, start, level - 1, written);
        self.cover(names, start + (1 << (level - 1)), level - 1, written);
    }
}

/// Returns the blocks that a range divides into, each as large as it can be: first unit and level.
pub(super) fn largest(range: &Range<u32>) -> Vec<(u32, u8)> {
    let (mut at, mut blocks) = (range.start, Vec::new());
    while at < range.end {
        let fits = |level: &u8| at.is_multiple_of(1 << level) && 1 << level <= range.end - at;
        let level = (0..=LEVEL_MAX).rev().find(fits).unwrap_or_default();
        blocks.push((at, level));
        at += 1 << level;
    }
    blocks
}

/// Lays out the blocks of a range of which a part is written.
pub(super) fn of_write(state: &State, zeros: &[Name; LEVELS], names: &RangeNames, written: &Range<u32>) -> Vec<Block> {
    let mut layout = Layout { state, zeros, new: HashMap::new(), blocks: Vec::new() };
    for (start, level) in largest(&names.units) {
        layout.cover(names, start, level, written);
    }
    layout.blocks
}

/// A part of the image as it is joined.
enum Part {
    /// One block.
    Whole(Whole),
    /// Several ones, in order.
    Blocks(Vec<Block>),
}

/// A block that neighbors can be joined to.
struct Whole {
    block: Block,
    name: Name,
    /// True if one entry only refers to its bytes.
    is_unique: bool,
}

impl Part {
    fn into_blocks(self) -> Vec<Block> {
        match self {
            Self::Whole(whole) => vec![whole.block],
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// Lays out the entries of a range as blocks that are as large as possible: halves of one kind become one block. They are both zeros,
/// or known together as one block, or both not shared. The ends of the range are ends of entries. Returns none if nothing changes.
pub(super) fn compacted(
    state: &State,
    keys: &BlockKeys,
    zeros: &[Name; LEVELS],
    range: &Range<u32>,
) -> Option<Vec<Block>> {
    let joined = |(start, level)| join(state, keys, zeros, start, level).into_blocks();
    let blocks: Vec<Block> = largest(range).into_iter().flat_map(joined).collect();
    (blocks.len() < state.index.range(range.clone()).count()).then_some(blocks)
}

/// Joins the entries of a block.
fn join(state: &State, keys: &BlockKeys, zeros: &[Name; LEVELS], start: u32, level: u8) -> Part {
    let address = state.index.get(&start).copied().filter(|address| state.level_at(*address) == Some(level));
    if let Some(address) = address {
        let descriptor = state.descriptors.get(&address);
        let name = descriptor.map_or_else(|| zeros[usize::from(level)], |descriptor| descriptor.name);
        let is_unique = descriptor.is_some_and(|descriptor| descriptor.references == 1);
        return Part::Whole(Whole { block: Block { start, level, bytes: Bytes::Known(address) }, name, is_unique });
    }
    let Some(below) = level.checked_sub(1) else { return Part::Blocks(Vec::new()) };
    let left = join(state, keys, zeros, start, below);
    let right = join(state, keys, zeros, start + (1 << below), below);
    if let (Part::Whole(left), Part::Whole(right)) = (&left, &right) {
        let mut names = Vec::new();
        keys.name_pairs(below, &[left.name, right.name], &mut names);
        let name = names.first().copied().unwrap_or_default();
        let known = if name == zeros[usize::from(level)] { Some(zeros_at(level)) } else { state.address_of(&name) };
        let is_unique = left.is_unique && right.is_unique;
        let bytes = known.map(Bytes::Known).or_else(|| is_unique.then_some(Bytes::New(name)));
        if let Some(bytes) = bytes {
            // A known block has other references, unless they are in what is joined here: then it counts as shared, too.
            let is_unique = is_unique && known.is_none();
            return Part::Whole(Whole { block: Block { start, level, bytes }, name, is_unique });
        }
    }
    let mut blocks = left.into_blocks();
    blocks.extend(right.into_blocks());
    Part::Blocks(blocks)
}
