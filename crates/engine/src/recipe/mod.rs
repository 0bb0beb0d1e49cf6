//! Recipes: the ordered references that make up a stream.
//!
//! Few references stand in the tree entry itself. More of them are cut by content into segments that are chunks
//! themselves, deduplicated like any other; the list of segments is cut the same way again, to any depth.

pub(crate) mod builder;
pub(crate) mod format;
pub(crate) mod hints;
pub(crate) mod patch;

pub use builder::{BuiltRecipe, RecipeBuilder};
pub(crate) use format::decode_segment;
pub use format::{Recipe, RecipeItem};
pub(crate) use hints::{HintTable, decode_hints, name_session};
pub use patch::{Edit, EditItem, SegmentReader, patch};

use crate::error::Result;
use crate::types::{ChunkKind, Fingerprint};

/// Consumer of finished metadata chunks: contents, and hints that the fingerprint does not cover.
pub trait MetadataSink {
    /// Takes a chunk and returns its name.
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint>;
}
