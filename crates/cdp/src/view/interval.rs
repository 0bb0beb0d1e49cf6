//! Maps of a view: which contents blocks got between its checkpoint and its moment.

use onefold_engine::error::{Error, Result};
use onefold_engine::io::Host;
use onefold_engine::store::metadata::Scratch;

use crate::checkpoint::check_record;
use crate::history::{
    BLOCK_BYTES, Change, CheckpointLimits, Cutter, GapTracker, HistoryEntry, HistorySink, IndexKind, Surveyor,
    VolumeBlock,
};
use crate::journal::{Journal, Lsn};
use crate::stored::{Checkpoint, Stream, Streams, VolumeSpec, check_entry, data_path, read_index};
use crate::view::block_map::{BlockLocation, BlockMap};
use crate::view::spool::Spool;

/// Blocks that differ from the images.
#[derive(Debug)]
pub(super) struct Differences {
    /// Locations of blocks.
    pub(super) map: BlockMap,
    pub(super) gaps: GapTracker,
}

impl Differences {
    /// Applies an entry. Its versions are at `location`, one after the other.
    fn apply(&mut self, entry: &HistoryEntry, location: BlockLocation) -> Result<()> {
        self.gaps.push(entry);
        let blocks = entry.block..entry.block + entry.count;
        match entry.change {
            Change::Data => self.map.insert(entry.volume, blocks, location),
            Change::Zero => self.map.insert(entry.volume, blocks, BlockLocation::Hole),
            Change::Flush | Change::Gap | Change::ResyncBegin | Change::ResyncEnd | Change::Kept => Ok(()),
        }
    }
}

/// Everything that a view reads from.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) streams: Streams,
    /// Images of the checkpoint, by volume.
    pub(super) images: Vec<Stream>,
    /// Data of later checkpoints.
    data: Vec<Stream>,
    spool: Spool,
    pub(super) differences: Differences,
    /// Bytes that the map may take, and the cut of the journal besides it.
    bytes_max: usize,
}

impl Layers {
    /// Starts with the images of a checkpoint. The map takes at most `bytes_max`, and so does what is cut of the journal at a time.
    pub(super) fn new(streams: Streams, images: Vec<Stream>, scratch: &Scratch, bytes_max: usize) -> Self {
        let map = BlockMap::new(images.len(), scratch, &streams.store().host, bytes_max);
        let differences = Differences { map, gaps: GapTracker::default() };
        Self { streams, images, data: Vec::new(), spool: Spool::new(scratch), differences, bytes_max }
    }

    /// Learns which gaps are open after a checkpoint.
    pub(super) fn learn_gaps(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let Self { streams, differences, .. } = self;
        read_index(streams, checkpoint, &mut |entry| {
            differences.gaps.push(&entry);
            Ok(())
        })?;
        Ok(())
    }

    /// Applies the records of a checkpoint that are after one and not after another. Fails with [`Error::Invalid`] if the moment after
    /// them was thinned out.
    pub(super) fn apply_checkpoint(&mut self, checkpoint: &Checkpoint, after: Lsn, until: Lsn) -> Result<()> {
        let data = self.streams.find(checkpoint.tree, &data_path(checkpoint.first()))?;
        let sizes: Vec<u64> = self.images.iter().map(Stream::len).collect();
        let stream = u32::try_from(self.data.len()).expect("checkpoints are fewer");
        let (mut versions, mut kept) = (0, KeptNearby::default());
        let Self { streams, differences, .. } = self;
        let kind = read_index(streams, checkpoint, &mut |entry| {
            check_entry(&entry, &sizes, versions, &data)?;
            if matches!(entry.change, Change::Flush | Change::Kept) {
                kept.push(entry.lsn, until);
            }
            let location = BlockLocation::Stored { stream, block: versions };
            versions += if entry.change == Change::Data { entry.count } else { 0 };
            if after < entry.lsn && entry.lsn <= until { differences.apply(&entry, location) } else { Ok(()) }
        })?;
        self.data.push(data);
        if kind == IndexKind::Thinned { kept.check(checkpoint, until) } else { Ok(()) }
    }

    /// Applies the records of the journal that are after one and not after another; returns the last one that it has.
    pub(super) fn apply_journal(
        &mut self,
        (journal, host): (&Journal, &dyn Host),
        volumes: &[VolumeSpec],
        after: Lsn,
        until: Lsn,
    ) -> Result<Lsn> {
        let mut last = after;
        loop {
            let first = Lsn(last.0 + 1);
            let mut surveyor = Surveyor::new(first, CheckpointLimits::within(self.bytes_max));
            let mut is_full = false;
            let mut frames = journal.frames(first);
            while !is_full
                && frames.next_frame(&mut |entry| {
                    if !is_full && entry.lsn <= until {
                        check_record(&entry, volumes)?;
                        is_full = !surveyor.push(&entry);
                    }
                    is_full |= until < entry.lsn;
                    Ok(())
                })?
            {}
            let survey = surveyor.finish();
            if survey.end == first {
                return Ok(last);
            }
            let mut cutter = Cutter::new(&survey);
            let mut spooling = Spooling { layers: self, host, waiting: Vec::new() };
            let mut frames = journal.frames(first);
            while last.0 + 1 < survey.end.0
                && frames.next_frame(&mut |entry| {
                    if entry.lsn < survey.end {
                        cutter.push(&entry, &mut spooling)?;
                        last = entry.lsn;
                    }
                    Ok(())
                })?
            {}
            if last.0 + 1 != survey.end.0 {
                return Err(Error::damaged(
                    "journal",
                    format!("record {} is gone although it was read before", last.0 + 1),
                ));
            }
        }
    }

    /// Fills a buffer from an offset of a volume.
    pub(super) fn read(&mut self, volume: usize, mut offset: u64, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            let block = offset / BLOCK_BYTES;
            let blocks = (offset + into.len() as u64).div_ceil(BLOCK_BYTES) - block;
            let (location, run) = self.differences.map.get(volume, block, blocks)?;
            let end = ((block + run.min(blocks)) * BLOCK_BYTES).min(offset + into.len() as u64);
            let (part, rest) = into.split_at_mut(usize::try_from(end - offset).expect("within the buffer"));
            let skipped = offset % BLOCK_BYTES;
            match location {
                None => {
                    let image = self.images.get_mut(volume).expect("the volume has an image");
                    self.streams.read(image, offset, part)?;
                }
                Some(BlockLocation::Hole) => part.fill(0),
                Some(BlockLocation::Spooled(location)) => self.spool.read(location, skipped, part)?,
                Some(BlockLocation::Stored { stream, block }) => {
                    let data = self.data.get_mut(stream as usize).expect("the stream is of the view");
                    self.streams.read(data, block * BLOCK_BYTES + skipped, part)?;
                }
            }
            (offset, into) = (end, rest);
        }
        Ok(())
    }
}

/// The moments of a thinned index that are nearest to a record.
#[derive(Debug, Default)]
struct KeptNearby {
    before: Option<Lsn>,
    after: Option<Lsn>,
}

impl KeptNearby {
    fn push(&mut self, kept: Lsn, wanted: Lsn) {
        if kept <= wanted {
            self.before = Some(kept);
        } else {
            self.after = self.after.or(Some(kept));
        }
    }

    /// Refuses a record after which no moment was kept.
    fn check(&self, checkpoint: &Checkpoint, wanted: Lsn) -> Result<()> {
        if self.before == Some(wanted) {
            return Ok(());
        }
        let before = self.before.unwrap_or(Lsn(checkpoint.first().0 - 1));
        let after = self.after.unwrap_or(checkpoint.last());
        Err(Error::invalid(format!(
            "the moment after record {wanted} was thinned out: the nearest ones that were kept are those after records {before} and {after}"
        )))
    }
}

/// Takes versions from the journal.
struct Spooling<'a> {
    layers: &'a mut Layers,
    host: &'a dyn Host,
    /// Versions that no entry has named yet: at most those of one record.
    waiting: Vec<u8>,
}

impl HistorySink for Spooling<'_> {
    fn version(&mut self, bytes: &[u8]) -> Result<()> {
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn entry(&mut self, entry: &HistoryEntry) -> Result<()> {
        let Layers { spool, differences, .. } = &mut *self.layers;
        if entry.change != Change::Data {
            return differences.apply(entry, BlockLocation::Hole);
        }
        let versions = self.waiting.chunks(usize::try_from(BLOCK_BYTES).expect("blocks are short"));
        for (block, version) in (entry.block..entry.block + entry.count).zip(versions) {
            // A block that is in the file already keeps its location: the file has no more blocks than the volumes.
            let location = match differences.map.get(usize::from(entry.volume), block, 1)?.0 {
                Some(BlockLocation::Spooled(location)) => location,
                _ => spool.blocks,
            };
            spool.write(self.host, location, version)?;
            differences.apply(&HistoryEntry { block, count: 1, ..*entry }, BlockLocation::Spooled(location))?;
        }
        self.waiting.clear();
        Ok(())
    }

    fn before(&mut self, (volume, block): VolumeBlock, into: &mut [u8]) -> Result<()> {
        self.layers.read(usize::from(volume), block * BLOCK_BYTES, into)
    }
}
