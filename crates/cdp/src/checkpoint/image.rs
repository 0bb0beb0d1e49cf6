//! Images of volumes: the parent's recipe patched, or all blocks stored again.

use std::collections::VecDeque;
use std::path::Path;

use onefold_engine::backup::{Proof, Reuse, Writer};
use onefold_engine::error::{Error, Result};
use onefold_engine::recipe::{BuiltRecipe, Edit, EditItem, RecipeBuilder, patch};
use onefold_engine::store::Store;
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::tree::Content;
use onefold_engine::types::{ChunkRef, SessionId};

use crate::checkpoint::cut::{Changes, Contents};
use crate::history::{BLOCK_BYTES, ExtentMap};
use crate::nbd::export::{Context, Export, StatusExtents};
use crate::nbd::wire::{Errno, allocation_flag};
use crate::stored::{IMAGE, Stream, Streams, VolumeSpec};

/// Bytes of a volume that are read at a time.
const READ_BYTES: u64 = 1 << 20;
/// Most parts of an image that wait for the references before them.
const WAITING_MAX: usize = 1 << 16;
/// Bytes of a volume of which holes are asked for at a time.
const STATUS_BYTES: u64 = 1 << 30;
/// Most extents of one answer.
const STATUS_EXTENTS: usize = 64;

/// A part of an image, in order.
enum Part {
    /// The next chunk that was appended.
    Chunk,
    Known(ChunkRef),
    Hole(u64),
}

/// Builds an image from blocks, references and holes.
struct ImageBuilder {
    recipe: RecipeBuilder,
    waiting: VecDeque<Part>,
}

impl ImageBuilder {
    fn new(store: &Store) -> Self {
        let recipe = RecipeBuilder::new(store.config.recipe_cut, store.config.recipe_inline_max);
        Self { recipe, waiting: VecDeque::new() }
    }

    fn hole(&mut self, len: u64, writer: &mut Writer<'_>) -> Result<()> {
        match self.waiting.back_mut() {
            Some(Part::Hole(before)) => *before += len,
            _ => self.waiting.push_back(Part::Hole(len)),
        }
        self.advance(1, writer)
    }

    fn known(&mut self, reference: ChunkRef, writer: &mut Writer<'_>) -> Result<()> {
        self.waiting.push_back(Part::Known(reference));
        self.advance(1, writer)
    }

    /// Appends whole blocks. Those of zeros are holes.
    fn blocks(&mut self, bytes: &[u8], writer: &mut Writer<'_>) -> Result<()> {
        for block in bytes.chunks(usize::try_from(BLOCK_BYTES).expect("blocks are short")) {
            if block.iter().all(|byte| *byte == 0) {
                self.hole(block.len() as u64, writer)?;
            } else {
                writer.chunk(block)?;
                self.waiting.push_back(Part::Chunk);
                self.advance(1, writer)?;
            }
        }
        Ok(())
    }

    /// Builds what is known. The last parts wait: a hole may grow.
    fn advance(&mut self, kept: usize, writer: &mut Writer<'_>) -> Result<()> {
        if WAITING_MAX < self.waiting.len() {
            writer.resolve()?;
        }
        while kept < self.waiting.len() {
            let reference = match self.waiting.front() {
                Some(Part::Hole(len)) => {
                    self.recipe.hole(*len, writer)?;
                    self.waiting.pop_front();
                    continue;
                }
                Some(Part::Known(reference)) => *reference,
                Some(Part::Chunk) => match writer.next_reference() {
                    Some(reference) => reference,
                    None => return Ok(()),
                },
                None => return Ok(()),
            };
            self.recipe.chunk(reference.chunk, Some(reference.container), writer)?;
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn finish(mut self, writer: &mut Writer<'_>) -> Result<BuiltRecipe> {
        writer.resolve()?;
        self.advance(0, writer)?;
        assert!(self.waiting.is_empty(), "every chunk has a reference");
        self.recipe.finish(writer)
    }
}

/// The image of a volume in a new checkpoint.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) contents: BuiltRecipe,
    /// True if every block was stored again.
    pub(super) is_whole: bool,
}

/// Stores an image that differs from the parent's by changes. It is patched, or, if the repository does not allow that, stored again
/// from the parent's image and the changes.
pub(super) fn change_image(
    (writer, store): (&mut Writer<'_>, &Store),
    (streams, image): (&mut Streams, &mut Stream),
    (parent, proof): (SessionId, Proof),
    (volume, number): (&VolumeSpec, usize),
    changes: &Changes,
) -> Result<Image> {
    let map = changes.blocks.get(number).expect("each volume has its changes");
    let path = [volume.name.as_bytes(), IMAGE.as_bytes()];
    if let Reuse::Allowed(file, _) = writer.reuse(parent, &path, &mut streams.reader, proof)? {
        let HintedEntry { entry, hints } = *file;
        let Content::File { recipe, .. } = entry.content else {
            return Err(Error::damaged(image.name(), "is no file"));
        };
        let rule = (store.config.recipe_cut, store.config.recipe_inline_max);
        let old = BuiltRecipe { recipe, hints };
        let mut edits = edits(map, &changes.references).map(Ok);
        match patch(&old, &mut edits, rule, &mut streams.reader, writer) {
            Ok(contents) => return Ok(Image { contents, is_whole: false }),
            // Its chunks are not on the grid of blocks: another program has stored it.
            Err(Error::Invalid { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let contents = store_again((writer, store), (streams, image), map, &changes.references)?;
    Ok(Image { contents, is_whole: true })
}

/// Returns the changes of an image, ascending.
fn edits<'a>(map: &'a ExtentMap<Contents>, references: &'a [ChunkRef]) -> impl Iterator<Item = Edit> + 'a {
    map.iter().flat_map(move |(blocks, contents)| {
        let step = if contents == Contents::Hole { blocks.end - blocks.start } else { 1 };
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        blocks.clone().step_by(step).map(move |block| {
            let start = block * BLOCK_BYTES;
            match contents {
                Contents::Hole => {
                    let end = blocks.end * BLOCK_BYTES;
                    Edit { start, end, item: EditItem::Hole { len: end - start } }
                }
                Contents::Version(first) => {
                    let ChunkRef { chunk, container } = reference_of(references, first + (block - blocks.start));
                    Edit { start, end: start + BLOCK_BYTES, item: EditItem::Chunk(chunk, Some(container)) }
                }
            }
        })
    })
}

fn reference_of(references: &[ChunkRef], version: u64) -> ChunkRef {
    let at = usize::try_from(version).expect("versions are few");
    *references.get(at).expect("each version has a reference")
}

/// Stores all blocks of an image again: those of the parent's image, apart from those that have changed.
fn store_again(
    (writer, store): (&mut Writer<'_>, &Store),
    (streams, image): (&mut Streams, &mut Stream),
    map: &ExtentMap<Contents>,
    references: &[ChunkRef],
) -> Result<BuiltRecipe> {
    let mut builder = ImageBuilder::new(store);
    let blocks = image.len() / BLOCK_BYTES;
    let mut block = 0;
    while block < blocks {
        let (contents, run) = map.get(block, blocks - block);
        let run = run.min(blocks - block);
        match contents {
            Some(Contents::Hole) => builder.hole(run * BLOCK_BYTES, writer)?,
            Some(Contents::Version(first)) => {
                for version in first..first + run {
                    builder.known(reference_of(references, version), writer)?;
                }
            }
            None => store_range(&mut builder, writer, (streams, image), (block * BLOCK_BYTES, run * BLOCK_BYTES))?,
        }
        block += run;
    }
    builder.finish(writer)
}

fn store_range(
    builder: &mut ImageBuilder,
    writer: &mut Writer<'_>,
    (streams, image): (&mut Streams, &mut Stream),
    (start, len): (u64, u64),
) -> Result<()> {
    let mut offset = start;
    let mut buffer = Vec::new();
    while offset < start + len {
        let left = start + len - offset;
        let (is_hole, _) = streams.is_hole(image, offset, left.min(BLOCK_BYTES))?;
        let run = if is_hole { streams.is_hole(image, offset, left)?.1 / BLOCK_BYTES * BLOCK_BYTES } else { 0 };
        if run != 0 {
            builder.hole(run, writer)?;
            offset += run;
            continue;
        }
        let step = left.min(READ_BYTES);
        buffer.resize(usize::try_from(step).expect("as short as a read"), 0);
        streams.read(image, offset, &mut buffer)?;
        builder.blocks(&buffer, writer)?;
        offset += step;
    }
    Ok(())
}

/// Stores an image as a volume has it. Nobody may change the volume meanwhile.
pub(super) fn store_volume(
    (writer, store): (&mut Writer<'_>, &Store),
    (volume, origin): (&VolumeSpec, &dyn Export),
) -> Result<BuiltRecipe> {
    let failed = |errno: Errno| {
        let code = i32::from(u8::try_from(errno as u32).unwrap_or(5));
        Error::io("read", Path::new(&volume.name), std::io::Error::from_raw_os_error(code))
    };
    let mut builder = ImageBuilder::new(store);
    let has_holes = origin.has_context(Context::Allocation);
    let mut extents = StatusExtents::default();
    let mut buffer = Vec::new();
    let mut offset = 0;
    while offset < volume.size {
        let left = volume.size - offset;
        let (is_zero, run) = if has_holes {
            let range = offset..offset + left.min(STATUS_BYTES);
            extents.begin(u32::try_from(range.end - range.start).expect("the range is short"), STATUS_EXTENTS);
            origin.block_status(range, Context::Allocation, &mut extents).map_err(failed)?;
            whole_blocks(&extents)
        } else {
            (false, left)
        };
        if is_zero {
            builder.hole(run, writer)?;
            offset += run;
            continue;
        }
        // A search for the end of data may read the map of the whole file, so all of the data is read before the next search.
        let end = offset + run.min(left);
        while offset < end {
            let step = (end - offset).min(READ_BYTES);
            buffer.resize(usize::try_from(step).expect("as short as a read"), 0);
            origin.read(offset, &mut buffer).map_err(failed)?;
            builder.blocks(&buffer, writer)?;
            offset += step;
        }
    }
    builder.finish(writer)
}

/// Returns whether whole blocks from the beginning read as zeros, and the bytes of blocks that are alike; at least one block.
fn whole_blocks(extents: &StatusExtents) -> (bool, u64) {
    let is_zero = |flags: u32| flags & allocation_flag::ZERO != 0;
    let Some(first) = extents.as_slice().first() else { return (false, BLOCK_BYTES) };
    let like_first = extents.as_slice().iter().take_while(|extent| is_zero(extent.flags) == is_zero(first.flags));
    let len: u64 = like_first.map(|extent| u64::from(extent.len)).sum();
    if is_zero(first.flags) && BLOCK_BYTES <= len {
        (true, len / BLOCK_BYTES * BLOCK_BYTES)
    } else {
        (false, len.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES))
    }
}
