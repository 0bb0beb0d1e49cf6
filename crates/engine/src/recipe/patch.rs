//! Changing a recipe without reading all of it.
//!
//! A builder that has just cut a list at every level below some level continues from there in the same way, whatever came
//! before. So a segment that the cut rule has ended is appended as it is if the builder stands like that and no edit touches
//! the segment. Only segments near edits are read, and those at the right edge: the end of the stream may have ended these
//! without asking the rule.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fmt;

use crate::error::{Error, Result};
use crate::object::config::CutRule;
use crate::recipe::format::{HOLE_BYTES_MAX, LEVELS_MAX, Recipe, RecipeItem};
use crate::recipe::{BuiltRecipe, MetadataSink, RecipeBuilder};
use crate::types::{Chunk, ContainerId, Fingerprint};

/// A change of a stream: `item` takes the place of the bytes from `start` to `end`, which are offsets in the stream as it was.
///
/// If both are equal, the item is inserted; [`EditItem::Nothing`] removes the bytes. Neither offset may lie inside a chunk;
/// either may lie inside a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edit {
    /// First byte that is replaced.
    pub start: u64,
    /// The byte after the last one that is replaced.
    pub end: u64,
    /// Contents of the range afterward.
    pub item: EditItem,
}

/// Replacement of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EditItem {
    /// Nothing.
    Nothing,
    /// A chunk, and its container if that is known.
    Chunk(Chunk, Option<ContainerId>),
    /// Zeros that are not stored. Holes that touch become one.
    Hole {
        /// Number of bytes.
        len: u64,
    },
}

impl Edit {
    /// Returns true if two holes may touch afterward of which one lies before `start`.
    fn may_join_holes(&self) -> bool {
        !matches!(self.item, EditItem::Chunk(..))
    }
}

/// Reads recipe segments by name.
pub trait SegmentReader {
    /// Reads a segment, with a hint for each chunk that it refers to.
    fn read_segment(&mut self, fingerprint: Fingerprint) -> Result<(Recipe, Vec<Option<ContainerId>>)>;
}

/// Applies edits to a stream and returns the recipe that [`RecipeBuilder`] would build from the edited stream, each of its
/// holes appended as a whole. Reads and stores segments near edits only; their other references keep their hints.
///
/// Edits must ascend, and must not overlap. Several may insert at one offset, which keep their order. Memory holds a list of
/// items for each level of the recipe as it was, and one for each level of the new one.
///
/// # Errors
///
/// [`Error::Invalid`] for edits that contradict the stream or each other, [`Error::Damaged`] for a segment that contradicts the
/// reference to it, and the errors of `edits`, `reader` and `sink`. What was stored by then is not referred to.
pub fn patch(
    root: &BuiltRecipe,
    edits: &mut dyn Iterator<Item = Result<Edit>>,
    (rule, inline_max): (CutRule, u32),
    reader: &mut dyn SegmentReader,
    sink: &mut dyn MetadataSink,
) -> Result<BuiltRecipe> {
    let builder = RecipeBuilder::new(rule, inline_max);
    let mut patcher = Patcher { builder, edits, next: None, at: 0, replaced_to: 0, hole: 0, len: 0, reader, sink };
    patcher.take_edit()?;
    patcher.list(&root.recipe, &root.hints, true)?;
    patcher.finish()
}

struct Patcher<'a> {
    builder: RecipeBuilder,
    edits: &'a mut dyn Iterator<Item = Result<Edit>>,
    /// The next edit.
    next: Option<Edit>,
    /// Offset in the stream as it was; what lies before it was appended or replaced.
    at: u64,
    /// The end of the last edit. Bytes before it are replaced.
    replaced_to: u64,
    /// Zeros that were not appended, because more may follow.
    hole: u64,
    /// Length of the new stream so far.
    len: u64,
    reader: &'a mut dyn SegmentReader,
    sink: &'a mut dyn MetadataSink,
}

impl fmt::Debug for Patcher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patcher").field("at", &self.at).field("next", &self.next).finish_non_exhaustive()
    }
}

impl Patcher<'_> {
    /// Takes the items of a list. `is_last`: the stream ends with it. Calls itself for a level below, at most [`LEVELS_MAX`]
    /// times.
    fn list(&mut self, list: &Recipe, hints: &[Option<ContainerId>], is_last: bool) -> Result<()> {
        let mut hints = hints.iter().copied();
        for (number, item) in list.items.iter().enumerate() {
            let is_last = is_last && number + 1 == list.items.len();
            match (*item, list.level.checked_sub(1)) {
                (RecipeItem::Segment { fingerprint, len }, Some(below)) => {
                    self.segment((fingerprint, len), below, is_last)?;
                }
                (item @ RecipeItem::Chunk(_), None) => self.item(item, hints.next().flatten())?,
                (item @ RecipeItem::Hole { .. }, None) => self.item(item, None)?,
                (RecipeItem::Segment { .. } | RecipeItem::Chunk(_) | RecipeItem::Hole { .. }, _) => {
                    return Err(Error::damaged("recipe", "an item stands at a wrong level"));
                }
            }
        }
        Ok(())
    }

    /// Takes a segment whose own list is of level `below`: as it is if that is possible, else item by item.
    fn segment(&mut self, (fingerprint, len): (Fingerprint, u64), below: u8, is_last: bool) -> Result<()> {
        let end = self.end_of(len)?;
        self.apply_edits()?;
        if end <= self.replaced_to {
            self.at = end;
            return Ok(());
        }
        let is_touched = self.at < self.replaced_to
            || self.next.is_some_and(|edit| edit.start < end || edit.start == end && edit.may_join_holes());
        if !is_touched && !is_last && self.hole == 0 && self.builder.is_aligned(below) {
            self.grow(len)?;
            self.builder.segment(RecipeItem::Segment { fingerprint, len }, below, self.sink)?;
            self.at = end;
            return Ok(());
        }
        let (list, hints) = self.reader.read_segment(fingerprint)?;
        if list.level != below || list.len() != len || LEVELS_MAX < below {
            let object = format!("recipe {fingerprint}");
            return Err(Error::damaged(object, "is not of the level or length that refers to it"));
        }
        self.list(&list, &hints, is_last)
    }

    /// Takes a chunk or a hole of the stream as it was, as far as no edit replaces it.
    fn item(&mut self, item: RecipeItem, hint: Option<ContainerId>) -> Result<()> {
        let end = self.end_of(item.len())?;
        while self.at < end {
            self.apply_edits()?;
            let is_replaced = self.at < self.replaced_to;
            let to = if is_replaced { self.replaced_to } else { self.next.map_or(end, |edit| edit.start) }.min(end);
            if to < end && matches!(item, RecipeItem::Chunk(_)) {
                return Err(Error::invalid(format!("an edit at offset {to} of a stream cuts a chunk")));
            }
            if !is_replaced {
                self.append(match item {
                    RecipeItem::Chunk(chunk) => EditItem::Chunk(chunk, hint),
                    RecipeItem::Hole { .. } | RecipeItem::Segment { .. } => EditItem::Hole { len: to - self.at },
                })?;
            }
            self.at = to;
        }
        Ok(())
    }

    /// Ends the stream.
    fn finish(mut self) -> Result<BuiltRecipe> {
        self.apply_edits()?;
        let beyond = self.next.map(|edit| edit.start).or((self.at < self.replaced_to).then_some(self.replaced_to));
        if let Some(offset) = beyond {
            let len = self.at;
            return Err(Error::invalid(format!(
                "an edit at offset {offset} lies behind the {len} bytes of its stream"
            )));
        }
        self.append_hole()?;
        let built = self.builder.finish(self.sink)?;
        if LEVELS_MAX < built.recipe.level {
            return Err(Error::damaged("recipe", "is deeper than any recipe of its length"));
        }
        Ok(built)
    }

    /// Applies the edits that begin here.
    fn apply_edits(&mut self) -> Result<()> {
        while let Some(edit) = self.next.filter(|edit| edit.start == self.at) {
            self.append(edit.item)?;
            self.replaced_to = edit.end;
            self.take_edit()?;
        }
        Ok(())
    }

    /// Looks at the next edit.
    fn take_edit(&mut self) -> Result<()> {
        self.next = self.edits.next().transpose()?;
        match self.next {
            Some(Edit { start, end, .. }) if start < self.replaced_to || end < start => {
                Err(Error::invalid(format!("edits of a stream are out of order at offset {start}")))
            }
            _ => Ok(()),
        }
    }

    fn append(&mut self, item: EditItem) -> Result<()> {
        match item {
            EditItem::Nothing => Ok(()),
            EditItem::Hole { len } => {
                self.grow(len)?;
                // The sum is at most the length of the stream, and thus of a hole.
                self.hole += len;
                Ok(())
            }
            EditItem::Chunk(Chunk { len: 0, .. }, _) => Err(Error::invalid("an edit with an empty chunk")),
            EditItem::Chunk(chunk, hint) => {
                self.grow(chunk.len.into())?;
                self.append_hole()?;
                self.builder.chunk(chunk, hint, self.sink)
            }
        }
    }

    fn append_hole(&mut self) -> Result<()> {
        self.builder.hole(std::mem::take(&mut self.hole), self.sink)
    }

    fn grow(&mut self, len: u64) -> Result<()> {
        let grown = self.len.checked_add(len).filter(|len| *len <= HOLE_BYTES_MAX);
        self.len = grown.ok_or_else(|| Error::invalid("edits make a stream longer than a recipe can be"))?;
        Ok(())
    }

    /// Returns the offset behind an item of the stream as it was.
    fn end_of(&self, len: u64) -> Result<u64> {
        let end = self.at.checked_add(len).filter(|end| self.at < *end && *end <= HOLE_BYTES_MAX);
        end.ok_or_else(|| Error::damaged("recipe", "an item is empty, or the recipe is too long"))
    }
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
