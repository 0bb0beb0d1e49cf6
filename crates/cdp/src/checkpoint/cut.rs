//! The second pass over the records: versions of blocks go to the repository.

use onefold_engine::backup::Writer;
use onefold_engine::error::Result;
use onefold_engine::recipe::{BuiltRecipe, RecipeBuilder};
use onefold_engine::store::Store;
use onefold_engine::types::ChunkRef;

use crate::history::{
    BLOCK_BYTES, Change, ExtentMap, GapTracker, HistoryEntry, HistorySink, IndexWriter, Location, VolumeBlock,
};
use crate::journal::Lsn;
use crate::stored::{Stream, Streams};

/// The last contents of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Zeros.
    Hole,
    /// A version, by its number.
    Version(u64),
}

impl Location for Contents {
    fn skip(self, blocks: u64) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Version(number) => Self::Version(number + blocks),
        }
    }
}

/// Records as they are stored.
#[derive(Debug)]
pub(super) struct Stored {
    /// Recipe of the data: all versions.
    pub(super) data: BuiltRecipe,
    /// The index.
    pub(super) index: Vec<u8>,
    pub(super) changes: Changes,
    /// Whether a gap is open after the last record.
    pub(super) is_in_gap: bool,
}

/// The last contents of all blocks that records change.
#[derive(Debug)]
pub(super) struct Changes {
    /// By volume.
    pub(super) blocks: Vec<ExtentMap<Contents>>,
    /// References to the versions.
    pub(super) references: Vec<ChunkRef>,
}

/// Takes versions and entries, and stores them.
#[derive(Debug)]
pub(super) struct Recording<'a, 'w> {
    pub(super) writer: &'a mut Writer<'w>,
    streams: &'a mut Streams,
    /// Images of the volumes before the first record.
    images: &'a mut [Stream],
    data: RecipeBuilder,
    index: IndexWriter,
    gaps: GapTracker,
    changes: Changes,
    /// Versions so far.
    versions: u64,
    /// Versions of zeros that no entry has named yet.
    zeros: Vec<u64>,
}

impl<'a, 'w> Recording<'a, 'w> {
    /// Starts with the gaps that are open before a record.
    pub(super) fn new(
        (writer, store): (&'a mut Writer<'w>, &Store),
        streams: &'a mut Streams,
        images: &'a mut [Stream],
        (first, gaps): (Lsn, &GapTracker),
    ) -> Self {
        let mut index = IndexWriter::new(first);
        gaps.carried(first).for_each(|entry| index.push(&entry));
        let blocks = images.iter().map(|_| ExtentMap::default()).collect();
        let changes = Changes { blocks, references: Vec::new() };
        let data = RecipeBuilder::new(store.config.recipe_cut, store.config.recipe_inline_max);
        let gaps = gaps.clone();
        Self { writer, streams, images, data, index, gaps, changes, versions: 0, zeros: Vec::new() }
    }

    fn take_references(&mut self) -> Result<()> {
        while let Some(reference) = self.writer.next_reference() {
            self.data.chunk(reference.chunk, Some(reference.container), self.writer)?;
            self.changes.references.push(reference);
        }
        Ok(())
    }

    /// Ends the records.
    pub(super) fn finish(mut self) -> Result<Stored> {
        self.writer.resolve()?;
        self.take_references()?;
        assert!(self.changes.references.len() as u64 == self.versions, "every chunk has a reference");
        let data = self.data.finish(self.writer)?;
        let is_in_gap = !self.gaps.is_empty();
        Ok(Stored { data, index: self.index.take(), changes: self.changes, is_in_gap })
    }
}

impl HistorySink for Recording<'_, '_> {
    fn version(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.iter().all(|byte| *byte == 0) {
            self.zeros.push(self.versions);
        }
        self.versions += 1;
        self.writer.chunk(bytes)?;
        self.take_references()
    }

    fn entry(&mut self, entry: &HistoryEntry) -> Result<()> {
        self.index.push(entry);
        self.gaps.push(entry);
        let blocks = entry.block..entry.block + entry.count;
        let Some(map) = self.changes.blocks.get_mut(usize::from(entry.volume)) else { return Ok(()) };
        match entry.change {
            Change::Data => {
                let first = self.versions - entry.count;
                map.insert(blocks, Contents::Version(first));
                for zero in self.zeros.drain(..) {
                    let block = entry.block + (zero - first);
                    map.insert(block..block + 1, Contents::Hole);
                }
            }
            Change::Zero => map.insert(blocks, Contents::Hole),
            Change::Flush | Change::Gap | Change::ResyncBegin | Change::ResyncEnd | Change::Kept => {}
        }
        Ok(())
    }

    fn before(&mut self, (volume, block): VolumeBlock, into: &mut [u8]) -> Result<()> {
        let image = self.images.get_mut(usize::from(volume)).expect("the survey has checked the volume");
        self.streams.read(image, block * BLOCK_BYTES, into)
    }
}
