//! Reading the contents of files as they are stored, from any offset, in bounded memory.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::recipe::{Recipe, RecipeItem, SegmentReader};
use crate::store::metadata::MetadataReader;
use crate::types::{Chunk, ContainerId, Fingerprint};

/// A chunk, and where it probably is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintedChunk {
    /// The chunk.
    pub chunk: Chunk,
    /// Its container when the reference was written.
    pub hint: Option<ContainerId>,
}

/// One step of a file's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileExtent {
    /// A chunk.
    Chunk(HintedChunk),
    /// Zeros that were never stored.
    Hole {
        /// Number of bytes.
        len: u64,
    },
}

impl SegmentReader for MetadataReader {
    fn read_segment(&mut self, fingerprint: Fingerprint) -> Result<(Recipe, Vec<Option<ContainerId>>)> {
        Self::read_segment(self, fingerprint)
    }
}

/// Hands out the contents of one file in order, from any offset, holding one segment a level.
#[derive(Debug)]
pub struct RecipeCursor {
    /// Open lists, that of the file first, the lowest level last.
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// 0 for chunks.
    height: u8,
    items: Vec<RecipeItem>,
    hints: Vec<Option<ContainerId>>,
    /// Offset of the list in the file, and of its end.
    range: Range<u64>,
    /// Number of the next item.
    next: usize,
    /// Number of its hint, if it is a chunk.
    next_hint: usize,
    /// Its offset in the file.
    offset: u64,
}

impl RecipeCursor {
    /// Starts at the beginning of a file.
    pub fn new(recipe: &Recipe, hints: &[Option<ContainerId>]) -> Self {
        Self { levels: vec![Level::new(recipe.clone(), hints.to_vec(), 0)] }
    }

    /// Returns the next extent; `None` at the end. After an error, the cursor is past the segment that cannot be read.
    pub fn next(&mut self, reader: &mut dyn SegmentReader) -> Result<Option<FileExtent>> {
        loop {
            let open = self.levels.last_mut().expect("the list of the file stays open");
            let (height, offset) = (open.height, open.offset);
            match open.take() {
                None if self.levels.len() == 1 => return Ok(None),
                None => {
                    self.levels.pop();
                }
                Some((RecipeItem::Chunk(chunk), hint)) => {
                    return Ok(Some(FileExtent::Chunk(HintedChunk { chunk, hint })));
                }
                Some((RecipeItem::Hole { len }, _)) => return Ok(Some(FileExtent::Hole { len })),
                Some((RecipeItem::Segment { fingerprint, len }, _)) => {
                    self.levels.push(Level::read(fingerprint, len, (height, offset), reader)?);
                }
            }
        }
    }

    /// Moves to the extent that contains a byte of the file, and returns the extent's offset. Behind the last byte, moves to
    /// the end and returns the length of the file. Reads one segment a level at most, and none that is open and contains the
    /// byte. After an error, the cursor is past the segment that cannot be read.
    pub fn seek(&mut self, byte: u64, reader: &mut dyn SegmentReader) -> Result<u64> {
        while 1 < self.levels.len() && self.levels.last().is_some_and(|open| !open.range.contains(&byte)) {
            self.levels.pop();
        }
        loop {
            let open = self.levels.last_mut().expect("the list of the file stays open");
            open.seek(byte);
            let (height, offset) = (open.height, open.offset);
            let Some(RecipeItem::Segment { fingerprint, len }) = open.items.get(open.next).copied() else {
                return Ok(offset);
            };
            open.take();
            self.levels.push(Level::read(fingerprint, len, (height, offset), reader)?);
        }
    }
}

impl Level {
    fn new(Recipe { level: height, items }: Recipe, hints: Vec<Option<ContainerId>>, offset: u64) -> Self {
        let end = items.iter().fold(offset, |end, item| end.saturating_add(item.len()));
        Self { height, items, hints, range: offset..end, next: 0, next_hint: 0, offset }
    }

    /// Reads the segment at an offset that a list of a height refers to.
    fn read(
        fingerprint: Fingerprint,
        len: u64,
        (height, offset): (u8, u64),
        reader: &mut dyn SegmentReader,
    ) -> Result<Self> {
        let (recipe, hints) = reader.read_segment(fingerprint)?;
        if recipe.level + 1 != height || recipe.len() != len {
            return Err(Error::damaged(
                format!("recipe {fingerprint}"),
                "is not of the level or length that refers to it",
            ));
        }
        Ok(Self::new(recipe, hints, offset))
    }

    /// Takes the next item, with its hint if it is a chunk.
    fn take(&mut self) -> Option<(RecipeItem, Option<ContainerId>)> {
        let item = *self.items.get(self.next)?;
        self.next += 1;
        self.offset = self.offset.saturating_add(item.len());
        let RecipeItem::Chunk(_) = item else { return Some((item, None)) };
        self.next_hint += 1;
        Some((item, self.hints.get(self.next_hint - 1).copied().flatten()))
    }

    /// Goes to the item that contains a byte, or to the end.
    fn seek(&mut self, byte: u64) {
        (self.next, self.next_hint, self.offset) = (0, 0, self.range.start);
        while self.items.get(self.next).is_some_and(|item| self.offset.saturating_add(item.len()) <= byte) {
            self.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::config::CutRule;
    use crate::random::SplitMix64;
    use crate::recipe::builder::tests::MemorySink;
    use crate::recipe::{BuiltRecipe, RecipeBuilder, decode_hints, decode_segment};
    use crate::types::SessionId;

    /// Segments in memory.
    struct Segments {
        sink: MemorySink,
        reads: usize,
    }

    impl SegmentReader for Segments {
        fn read_segment(&mut self, fingerprint: Fingerprint) -> Result<(Recipe, Vec<Option<ContainerId>>)> {
            self.reads += 1;
            let missing = || Error::MissingChunk { fingerprint: fingerprint.to_string() };
            let (contents, hints) = self.sink.0.get(&fingerprint).ok_or_else(missing)?;
            let recipe = decode_segment(contents).map_err(|error| error.of("segment"))?;
            let hints = decode_hints(hints, recipe.chunk_count()).unwrap();
            Ok((recipe, hints))
        }
    }

    /// A file of chunks of several lengths and holes, each chunk with a hint of its own.
    fn file(extents: u32, inline_max: u32) -> (BuiltRecipe, Segments) {
        let rule = CutRule { min: 4, target: 6, max: 16 };
        let (mut builder, mut sink) = (RecipeBuilder::new(rule, inline_max), MemorySink::default());
        for number in 0..extents {
            if number % 5 == 3 {
                builder.hole(u64::from(number % 7 + 1) << 20, &mut sink).unwrap();
                continue;
            }
            let chunk = Chunk {
                fingerprint: Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes()),
                len: number % 9 + 1,
            };
            let hint = ContainerId { session: SessionId([4; 16]), ordinal: number };
            builder.chunk(chunk, Some(hint), &mut sink).unwrap();
        }
        (builder.finish(&mut sink).unwrap(), Segments { sink, reads: 0 })
    }

    fn len_of(extent: &FileExtent) -> u64 {
        match extent {
            FileExtent::Chunk(hinted) => hinted.chunk.len.into(),
            FileExtent::Hole { len } => *len,
        }
    }

    #[test]
    fn seeking_gives_what_linear_reading_gives_and_reads_one_path() {
        for (extents, inline_max) in [(0, 3), (1, 3), (3, 3), (40, 3), (3000, 3), (3000, 4096)] {
            let (built, mut segments) = file(extents, inline_max);
            let (mut cursor, mut linear, mut offset) = (RecipeCursor::new(&built.recipe, &built.hints), Vec::new(), 0);
            while let Some(extent) = cursor.next(&mut segments).unwrap() {
                linear.push((offset, extent));
                offset += len_of(&extent);
            }
            let (end, depth) = (offset, usize::from(built.recipe.level));
            assert_eq!(linear.len(), extents as usize);
            let mut random = SplitMix64::new(extents.into());
            for round in 0..2000 {
                let byte = match round % 4 {
                    0 if !linear.is_empty() => linear[random.index(linear.len())].0,
                    1 => end.saturating_sub(random.below(12)) + random.below(12),
                    2 => u64::MAX - random.below(2),
                    _ => random.below(end + 1),
                };
                // Sometimes from the beginning, else from wherever the cursor is.
                if round % 3 == 0 {
                    cursor = RecipeCursor::new(&built.recipe, &built.hints);
                }
                let after = linear.partition_point(|(offset, _)| *offset <= byte);
                let (expected, at) = match linear.get(after.wrapping_sub(1)) {
                    Some((offset, extent)) if byte < offset + len_of(extent) => (*offset, after - 1),
                    _ => (end, linear.len()),
                };
                segments.reads = 0;
                assert_eq!(cursor.seek(byte, &mut segments).unwrap(), expected, "byte {byte} of {end}");
                assert!(segments.reads <= depth, "{} segments read", segments.reads);
                segments.reads = 0;
                cursor.seek(byte, &mut segments).unwrap();
                assert_eq!(segments.reads, 0, "what is open is not read again");
                for (_, extent) in linear.iter().skip(at).take(random.index(40)) {
                    assert_eq!(cursor.next(&mut segments).unwrap(), Some(*extent));
                }
                if at == linear.len() {
                    assert_eq!(cursor.next(&mut segments).unwrap(), None);
                }
            }
        }
    }

    #[test]
    fn seeking_refuses_a_segment_that_contradicts_its_reference_and_goes_on_behind_it() {
        let (built, mut segments) = file(3000, 3);
        let mut cursor = RecipeCursor::new(&built.recipe, &built.hints);
        let [.., RecipeItem::Segment { fingerprint, len }] = built.recipe.items[..] else {
            panic!("the root has segments")
        };
        let end = built.recipe.len();
        for lie in [vec![0, 1, 3], vec![41, 1], Vec::new()] {
            segments.sink.0.insert(fingerprint, (lie, Vec::new()));
            assert!(cursor.seek(end - 1, &mut segments).is_err());
            assert_eq!(cursor.next(&mut segments).unwrap(), None, "the cursor is past the segment");
            assert!(cursor.seek(end - len, &mut segments).is_err());
            assert!(cursor.seek(end - len - 1, &mut segments).is_ok());
        }
    }
}
