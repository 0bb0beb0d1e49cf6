//! The encoded form of recipes and their segments.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{Decoded, Reader, put_varint};
use crate::object::config::NODE_ITEMS_MAX;
use crate::types::{Chunk, FINGERPRINT_LEN, Fingerprint};

/// Deepest recipe: at two items a node, 2^40 chunks.
pub(crate) const LEVELS_MAX: u8 = 40;
/// Longest hole in bytes; one bit of its encoded length marks a hole.
pub(crate) const HOLE_BYTES_MAX: u64 = 1 << 62;

/// One item of a recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecipeItem {
    /// A chunk of the stream. At level 0 only.
    Chunk(Chunk),
    /// Zeros that were never stored. At level 0 only.
    Hole {
        /// Bytes of the stream that it stands for.
        len: u64,
    },
    /// A segment one level below. Above level 0 only.
    Segment {
        /// Name of the segment.
        fingerprint: Fingerprint,
        /// Bytes of the stream that it stands for.
        len: u64,
    },
}

impl RecipeItem {
    /// Returns how many bytes of the stream the item stands for.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => u64::from(chunk.len),
            Self::Hole { len } | Self::Segment { len, .. } => *len,
        }
    }

    /// Returns the uniform value by which lists are cut after the item. Lists are not cut after holes.
    pub(crate) fn cut_value(&self) -> u32 {
        match self {
            Self::Chunk(Chunk { fingerprint, .. }) | Self::Segment { fingerprint, .. } => fingerprint.prefix(),
            Self::Hole { .. } => u32::MAX,
        }
    }
}

/// A list of items of one level.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recipe {
    /// 0: chunks and holes; above: segments of the level below.
    pub level: u8,
    /// In the order of the stream.
    pub items: Vec<RecipeItem>,
}

impl Recipe {
    /// Returns how many bytes the recipe stands for.
    pub fn len(&self) -> u64 {
        self.items.iter().map(RecipeItem::len).sum()
    }

    /// Returns true if it stands for no bytes.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns how many items are chunks, each of which has a hint.
    pub(crate) fn chunk_count(&self) -> usize {
        self.items.iter().filter(|item| matches!(item, RecipeItem::Chunk(_))).count()
    }

    /// Appends the encoded form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.level);
        put_varint(out, self.items.len() as u64);
        for item in &self.items {
            match item {
                RecipeItem::Chunk(Chunk { fingerprint, len }) => {
                    put_varint(out, u64::from(*len) << 1);
                    out.extend_from_slice(&fingerprint.0);
                }
                RecipeItem::Hole { len } => put_varint(out, len << 1 | 1),
                RecipeItem::Segment { fingerprint, len } => {
                    put_varint(out, *len);
                    out.extend_from_slice(&fingerprint.0);
                }
            }
        }
    }

    /// Reads the encoded form from the front of `reader`. Lengths add up without overflow afterward.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let level = reader.u8()?;
        if LEVELS_MAX < level {
            return Err(reader.error("recipe too deep"));
        }
        let smallest = if level == 0 { 1 } else { 1 + FINGERPRINT_LEN };
        let count = reader.count(smallest)?;
        if (NODE_ITEMS_MAX as usize) < count {
            return Err(reader.error("more items than a segment can hold"));
        }
        let mut recipe = Self { level, items: Vec::with_capacity(count) };
        let mut total = 0u64;
        for _ in 0..count {
            let item = decode_item(reader, level)?;
            let sum = total.checked_add(item.len()).filter(|&sum| sum <= HOLE_BYTES_MAX);
            total = sum.ok_or_else(|| reader.error("recipe too long"))?;
            if item.len() == 0 {
                return Err(reader.error("item that stands for nothing"));
            }
            recipe.items.push(item);
        }
        Ok(recipe)
    }
}

fn decode_item(reader: &mut Reader<'_>, level: u8) -> Decoded<RecipeItem> {
    let len = reader.varint()?;
    if level > 0 {
        return Ok(RecipeItem::Segment { fingerprint: reader.fingerprint()?, len });
    }
    if len & 1 == 1 {
        return Ok(RecipeItem::Hole { len: len >> 1 });
    }
    match u32::try_from(len >> 1) {
        Ok(len) => Ok(RecipeItem::Chunk(Chunk { fingerprint: reader.fingerprint()?, len })),
        Err(_) => Err(reader.error("chunk too long")),
    }
}

/// Reads the contents of a recipe segment.
pub(crate) fn decode_segment(contents: &[u8]) -> Decoded<Recipe> {
    let mut reader = Reader::new(contents);
    let recipe = Recipe::decode(&mut reader)?;
    reader.finish()?;
    Ok(recipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_of_every_kind_of_item_come_back() {
        let fingerprint = Fingerprint([9; 32]);
        for recipe in [
            Recipe::default(),
            Recipe {
                level: 0,
                items: vec![
                    RecipeItem::Chunk(Chunk { fingerprint, len: 1 }),
                    RecipeItem::Hole { len: 1 << 40 },
                    RecipeItem::Chunk(Chunk { fingerprint, len: u32::MAX }),
                ],
            },
            Recipe { level: 3, items: vec![RecipeItem::Segment { fingerprint, len: 1 << 50 }] },
        ] {
            let mut out = Vec::new();
            recipe.encode(&mut out);
            assert_eq!(decode_segment(&out), Ok(recipe));
            assert!(decode_segment(&out[..out.len() - 1]).is_err());
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut out = Vec::new();
        let item = RecipeItem::Segment { fingerprint: Fingerprint([1; 32]), len: u64::MAX };
        Recipe { level: 1, items: vec![item, item] }.encode(&mut out);
        assert!(decode_segment(&out).is_err());
    }
}
