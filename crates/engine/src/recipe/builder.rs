//! Building recipes of any depth in bounded memory.

use crate::error::Result;
use crate::object::config::CutRule;
use crate::recipe::MetadataSink;
use crate::recipe::format::{HOLE_BYTES_MAX, Recipe, RecipeItem};
use crate::recipe::hints::HintTable;
use crate::types::{Chunk, ChunkKind, ContainerId};

/// Takes the references of one stream in order and hands out segments as they are cut.
#[derive(Debug)]
pub struct RecipeBuilder {
    rule: CutRule,
    inline_max: usize,
    /// The open node of each level, the lowest first.
    levels: Vec<Vec<RecipeItem>>,
    /// Hints of the open node of level 0, one for each chunk.
    hints: Vec<Option<ContainerId>>,
}

/// A finished recipe, to stand in a tree entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BuiltRecipe {
    /// The items that stand in the entry.
    pub recipe: Recipe,
    /// Hints for the entry's own chunks; empty above level 0.
    pub hints: Vec<Option<ContainerId>>,
}

impl RecipeBuilder {
    /// Starts a recipe.
    pub fn new(rule: CutRule, inline_max: u32) -> Self {
        Self { rule, inline_max: inline_max as usize, levels: vec![Vec::new()], hints: Vec::new() }
    }

    /// Appends a chunk.
    pub fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>, sink: &mut dyn MetadataSink) -> Result<()> {
        self.hints.push(hint);
        self.append(RecipeItem::Chunk(chunk), 0, sink)
    }

    /// Appends a hole. Holes that touch are one.
    pub fn hole(&mut self, len: u64, sink: &mut dyn MetadataSink) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if let Some(RecipeItem::Hole { len: open }) = self.levels.first_mut().and_then(|items| items.last_mut())
            && *open <= HOLE_BYTES_MAX.saturating_sub(len)
        {
            *open += len;
            return Ok(());
        }
        self.append(RecipeItem::Hole { len }, 0, sink)
    }

    /// Returns true if the cut rule has ended the last list of a level, and nothing was appended below since then: what
    /// follows becomes the same segments as at the beginning of a stream.
    pub(crate) fn is_aligned(&self, level: u8) -> bool {
        self.levels.iter().take(usize::from(level) + 1).all(Vec::is_empty)
    }

    /// Appends a segment whose own list is of a level, and was ended by the cut rule. The builder must be aligned there.
    pub(crate) fn segment(&mut self, segment: RecipeItem, level: u8, sink: &mut dyn MetadataSink) -> Result<()> {
        self.append(segment, usize::from(level) + 1, sink)
    }

    /// Ends the stream. The builder is ready for the next one.
    pub fn finish(&mut self, sink: &mut dyn MetadataSink) -> Result<BuiltRecipe> {
        let mut level = 0;
        loop {
            let is_top = level + 1 == self.levels.len();
            let items = self.levels.get_mut(level).map(std::mem::take).unwrap_or_default();
            if is_top && items.len() <= self.inline_max {
                self.levels = vec![Vec::new()];
                let level = u8::try_from(level).expect("recipes of 2^64 bytes are far less deep");
                return Ok(BuiltRecipe { recipe: Recipe { level, items }, hints: std::mem::take(&mut self.hints) });
            }
            if !items.is_empty() {
                let segment = self.store(level, items, sink)?;
                self.level_mut(level + 1).push(segment);
            }
            level += 1;
        }
    }

    fn append(&mut self, item: RecipeItem, level: usize, sink: &mut dyn MetadataSink) -> Result<()> {
        let (mut item, mut level) = (item, level);
        loop {
            let rule = self.rule;
            let items = self.level_mut(level);
            items.push(item);
            if !rule.cuts(items.len(), item.cut_value()) {
                return Ok(());
            }
            let items = std::mem::take(items);
            item = self.store(level, items, sink)?;
            level += 1;
        }
    }

    fn level_mut(&mut self, level: usize) -> &mut Vec<RecipeItem> {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.levels.get_mut(level).expect("resized above")
    }

    fn store(&mut self, level: usize, items: Vec<RecipeItem>, sink: &mut dyn MetadataSink) -> Result<RecipeItem> {
        let mut table = HintTable::default();
        if level == 0 {
            table.extend(self.hints.drain(..));
        }
        let level = u8::try_from(level).expect("recipes of 2^64 bytes are far less deep");
        let recipe = Recipe { level, items };
        let (mut contents, mut hints) = (Vec::new(), Vec::new());
        recipe.encode(&mut contents);
        table.encode(&mut hints);
        let fingerprint = sink.store(ChunkKind::Recipe, &contents, &hints)?;
        Ok(RecipeItem::Segment { fingerprint, len: recipe.len() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::recipe::format::decode_segment;
    use crate::types::Fingerprint;

    /// Keeps metadata chunks in memory, by fingerprint.
    #[derive(Default)]
    pub(crate) struct MemorySink(pub(crate) BTreeMap<Fingerprint, (Vec<u8>, Vec<u8>)>);

    impl MetadataSink for MemorySink {
        fn store(&mut self, _: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
            let fingerprint = Fingerprint(*blake3::hash(contents).as_bytes());
            self.0.insert(fingerprint, (contents.to_vec(), hints.to_vec()));
            Ok(fingerprint)
        }
    }

    fn flatten(recipe: &Recipe, sink: &MemorySink, out: &mut Vec<RecipeItem>) {
        for item in &recipe.items {
            match item {
                RecipeItem::Segment { fingerprint, .. } => {
                    let below = decode_segment(&sink.0[fingerprint].0).unwrap();
                    assert_eq!(below.level + 1, recipe.level);
                    flatten(&below, sink, out);
                }
                RecipeItem::Chunk(_) | RecipeItem::Hole { .. } => out.push(*item),
            }
        }
    }

    fn build(count: u64, shift: u64) -> (BuiltRecipe, MemorySink, Vec<RecipeItem>) {
        let rule = CutRule { min: 4, target: 4, max: 16 };
        let mut builder = RecipeBuilder::new(rule, 3);
        let mut sink = MemorySink::default();
        let mut expected = Vec::new();
        for at in shift..shift + count {
            let fingerprint = Fingerprint(*blake3::hash(&at.to_le_bytes()).as_bytes());
            let chunk = Chunk { fingerprint, len: 100 };
            builder.chunk(chunk, None, &mut sink).unwrap();
            expected.push(RecipeItem::Chunk(chunk));
            if at % 10 == 0 {
                builder.hole(5, &mut sink).unwrap();
                builder.hole(6, &mut sink).unwrap();
                expected.push(RecipeItem::Hole { len: 11 });
            }
        }
        let built = builder.finish(&mut sink).unwrap();
        (built, sink, expected)
    }

    #[test]
    fn recipes_of_any_depth_replay_the_stream() {
        for count in [0, 1, 3, 4, 5, 17, 100, 3000] {
            let (built, sink, expected) = build(count, 0);
            let mut items = Vec::new();
            flatten(&built.recipe, &sink, &mut items);
            // Cutting between two holes keeps them apart; together they are the same.
            let len = |items: &[RecipeItem]| items.iter().map(RecipeItem::len).sum::<u64>();
            assert_eq!(len(&items), len(&expected));
            let chunks = |items: &[RecipeItem]| -> Vec<RecipeItem> {
                items.iter().copied().filter(|item| matches!(item, RecipeItem::Chunk(_))).collect()
            };
            assert_eq!(chunks(&items), chunks(&expected));
            assert!(built.recipe.items.len() <= 3);
        }
        assert!(4 <= build(3000, 0).0.recipe.level);
    }

    #[test]
    fn a_shifted_stream_shares_nearly_all_segments() {
        let (_, old, _) = build(3000, 0);
        let (_, new, _) = build(3000, 1);
        let fresh = new.0.keys().filter(|fingerprint| !old.0.contains_key(*fingerprint)).count();
        assert!(fresh * 10 < new.0.len(), "{fresh} of {} segments are new", new.0.len());
    }
}
