//! A tree without what is lost: files keep the chunks that are whole, and directories the entries that can be read.

use std::path::Path;

use crate::derive::confirm::Missing;
use crate::derive::node_stage::NodeSink;
use crate::derive::rebuild::{Edited, TreeEdit};
use crate::error::{Error, Result};
use crate::monitor::{Loss, Monitor};
use crate::recipe::RecipeBuilder;
use crate::recipe::builder::BuiltRecipe;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::recipe_cursor::{FileExtent, RecipeCursor};
use crate::tree::format::NAME_LEN_MAX;
use crate::tree::{Content, Entry};

/// Leaves out what is lost.
pub(crate) struct WithoutLost<'a> {
    /// The chunks that are lost.
    pub(crate) missing: &'a mut Missing,
    /// Appended to the names of files that are shortened, unless they would be too long.
    pub(crate) suffix: &'a [u8],
    /// Receiver of the paths.
    pub(crate) monitor: &'a dyn Monitor,
}

impl TreeEdit for WithoutLost<'_> {
    fn entry(&mut self, path: &Path, hinted: HintedEntry, sink: &mut NodeSink<'_>) -> Result<Edited> {
        let len = hinted.entry.size();
        let whole = self.whole_bytes(&hinted, sink.reader)?;
        if whole == len {
            return Ok(Edited::Kept(hinted));
        }
        self.monitor.lost(path, Loss::Bytes { lost: len - whole, len });
        self.shorten(hinted, sink).map(Edited::Changed)
    }

    fn unreadable(&mut self, _: &Path, error: Error) -> Result<()> {
        if error.is_loss() { Ok(()) } else { Err(error) }
    }

    fn cut(&mut self, path: &Path, entries: u64) {
        self.monitor.lost(path, if entries == 0 { Loss::Directory } else { Loss::Entries });
    }
}

impl WithoutLost<'_> {
    /// Returns the length of a file without what is lost; 0 for other entries.
    fn whole_bytes(&mut self, hinted: &HintedEntry, reader: &mut MetadataReader) -> Result<u64> {
        let Content::File { recipe, .. } = &hinted.entry.content else { return Ok(0) };
        let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
        let mut bytes = 0;
        while let Some(extent) = self.next_whole(&mut cursor, reader)? {
            bytes += match extent {
                FileExtent::Chunk(hinted) => u64::from(hinted.chunk.len),
                FileExtent::Hole { len } => len,
            };
        }
        Ok(bytes)
    }

    /// Returns the next extent that is not lost.
    fn next_whole(&mut self, cursor: &mut RecipeCursor, reader: &mut MetadataReader) -> Result<Option<FileExtent>> {
        loop {
            match cursor.next(reader) {
                Ok(Some(FileExtent::Chunk(hinted))) if self.missing.contains(&hinted.chunk.fingerprint)? => {}
                // The cursor is past the segment.
                Err(error) if error.is_loss() => {}
                next => return next,
            }
        }
    }

    /// Builds a file of the extents that are not lost.
    fn shorten(&mut self, hinted: HintedEntry, sink: &mut NodeSink<'_>) -> Result<HintedEntry> {
        let HintedEntry { entry, hints } = hinted;
        let Content::File { ctime, inode, recipe } = entry.content else {
            return Ok(HintedEntry { entry, hints });
        };
        let config = &sink.reader.store().config;
        let mut builder = RecipeBuilder::new(config.recipe_cut, config.recipe_inline_max);
        let mut cursor = RecipeCursor::new(&recipe, &hints);
        while let Some(extent) = self.next_whole(&mut cursor, sink.reader)? {
            match extent {
                FileExtent::Chunk(hinted) => builder.chunk(hinted.chunk, hinted.hint, sink)?,
                FileExtent::Hole { len } => builder.hole(len, sink)?,
            }
        }
        let BuiltRecipe { recipe, hints } = builder.finish(sink)?;
        let mut name = entry.name;
        if name.len() + self.suffix.len() <= NAME_LEN_MAX {
            name.extend_from_slice(self.suffix);
        }
        Ok(HintedEntry { entry: Entry { name, content: Content::File { ctime, inode, recipe }, ..entry }, hints })
    }
}
