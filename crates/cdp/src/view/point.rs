//! A group at a moment.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::error::{Error, Result};
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use onefold_engine::store::metadata::Scratch;

use crate::history::{BLOCK_BYTES, OpenGap};
use crate::journal::{GroupId, Journal, Lsn};
use crate::log::Log;
use crate::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::{Errno, allocation_flag, export_flag};
use crate::stored::{IMAGE, Streams, VolumeSpec};
use crate::view::block_map::BlockLocation;
use crate::view::interval::Layers;
use crate::view::moment::{At, Moment};
use crate::view::sources::{Next, Sources};

/// Parts of the memory that maps may take: one of 4.
const MAPS_SHARE: usize = 4;

/// How a view works.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// Directory of temporary files. Records that are in no checkpoint need it.
    pub scratch: Scratch,
    /// Driver of the reads.
    pub driver: Driver,
    /// Memory: a quarter for the map from blocks to contents, the rest for reading. A map that needs more goes to temporary files.
    pub memory_bytes: usize,
}

/// The volumes of a group as they were after a record.
#[derive(Debug)]
pub struct PointInTime {
    layers: Mutex<Layers>,
    volumes: Vec<VolumeSpec>,
    moment: Moment,
    checkpoint: Lsn,
    group: GroupId,
}

impl PointInTime {
    /// Opens a group at a moment. `group` is its name, and its identity if several groups have had the name. The journal is that of the
    /// group, if it is on this host; its records may be released afterwards.
    ///
    /// Fails with [`Error::Invalid`] if the history does not reach the moment, or if changes may be missing there.
    pub fn open(
        store: &Store,
        options: &ViewOptions,
        group: (&str, Option<GroupId>),
        at: &At,
        journal: Option<&Journal>,
    ) -> Result<Self> {
        Self::open_within(store, options, group, at, (journal, options.memory_bytes / MAPS_SHARE))
    }

    /// Opens a group with a map that takes at most `map_bytes`.
    pub(super) fn open_within(
        store: &Store,
        options: &ViewOptions,
        group: (&str, Option<GroupId>),
        at: &At,
        (journal, map_bytes): (Option<&Journal>, usize),
    ) -> Result<Self> {
        let sources = Sources::read(store, group, journal)?;
        let mut streams = Streams::open(store, &options.scratch, &options.driver, options.memory_bytes - map_bytes)?;
        let moment = sources.resolve(&mut streams, at)?;
        let Some(checkpoint) = sources.checkpoints.at(moment.lsn) else {
            let first = sources.first().last();
            return Err(Error::invalid(format!(
                "the history begins after record {first}, and {} is before",
                moment.lsn
            )));
        };
        if checkpoint.is_empty && checkpoint.last() == moment.lsn {
            return Err(Error::invalid(format!(
                "nothing is known of the volumes after record {}: their first transfer begins then",
                moment.lsn
            )));
        }
        let (mut images, mut volumes) = (Vec::new(), Vec::new());
        for name in &checkpoint.volumes {
            let image = streams.find(checkpoint.tree, &Path::new(name).join(IMAGE))?;
            if !image.len().is_multiple_of(BLOCK_BYTES) {
                return Err(Error::damaged(image.name(), "is not a multiple of the block"));
            }
            volumes.push(VolumeSpec { name: name.clone(), size: image.len() });
            images.push(image);
        }
        let mut layers = Layers::new(streams, images, &options.scratch, map_bytes);
        layers.learn_gaps(checkpoint)?;
        advance(&mut layers, &sources, (store, &volumes), checkpoint.last(), moment.lsn)?;
        if let Some(gap) = layers.differences.gaps.open().next() {
            return Err(inside(gap, checkpoint.first(), &volumes, moment.lsn));
        }
        let checkpoint = checkpoint.last();
        let group = GroupId(sources.first().note.volume);
        Ok(Self { layers: Mutex::new(layers), volumes, moment, checkpoint, group })
    }

    fn lock(&self) -> MutexGuard<'_, Layers> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the volumes, in the order of their numbers.
    pub fn volumes(&self) -> &[VolumeSpec] {
        &self.volumes
    }

    /// Returns the number of a volume.
    pub fn number_of(&self, name: &str) -> Option<usize> {
        self.volumes.iter().position(|volume| volume.name == name)
    }

    /// Returns the moment.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Returns the last record of the checkpoint that the view begins with.
    pub fn checkpoint(&self) -> Lsn {
        self.checkpoint
    }

    /// Returns a name of a volume at this moment, for [`Overlay`](crate::view::Overlay).
    ///
    /// # Panics
    ///
    /// If there is no volume with this number.
    pub fn identity(&self, volume: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.group.0).update(&self.moment.lsn.0.to_le_bytes());
        *hasher.update(self.volumes[volume].name.as_bytes()).finalize().as_bytes()
    }

    /// Returns how often the map from blocks to contents was larger than its memory: it is in temporary files then.
    pub fn maps_spilled(&self) -> usize {
        self.lock().differences.map.spilled()
    }

    /// Returns the memory of the map from blocks to contents.
    pub fn map_bytes(&self) -> usize {
        self.lock().differences.map.bytes()
    }

    /// Fills a buffer from an offset of a volume.
    ///
    /// # Panics
    ///
    /// If there is no volume with this number.
    pub fn read(&self, volume: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let size = self.volumes[volume].size;
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| size < end) {
            return Err(Error::invalid(format!("bytes from {offset} on are beyond the end of the volume, {size}")));
        }
        self.lock().read(volume, offset, into)
    }

    /// Returns true if a range that is not stored begins at an offset of a volume, and how many bytes are alike, up to `max`, which is
    /// not 0.
    ///
    /// # Panics
    ///
    /// If there is no volume with this number.
    pub fn is_hole(&self, volume: usize, offset: u64, max: u64) -> Result<(bool, u64)> {
        let max = max.min(self.volumes[volume].size.saturating_sub(offset));
        let mut layers = self.lock();
        let Layers { streams, images, differences, .. } = &mut *layers;
        let (block, blocks) = (offset / BLOCK_BYTES, (offset + max).div_ceil(BLOCK_BYTES) - offset / BLOCK_BYTES);
        let (location, run) = differences.map.get(volume, block, blocks)?;
        let run = ((block + run.min(blocks)) * BLOCK_BYTES - offset).min(max);
        match location {
            Some(location) => Ok((location == BlockLocation::Hole, run)),
            None => streams.is_hole(&mut images[volume], offset, run),
        }
    }
}

/// Applies what is between two records.
fn advance(
    layers: &mut Layers,
    sources: &Sources<'_>,
    (store, volumes): (&Store, &[VolumeSpec]),
    from: Lsn,
    until: Lsn,
) -> Result<()> {
    let mut last = from;
    while last < until {
        last = match sources.after(last) {
            Next::Checkpoint(checkpoint) => {
                layers.apply_checkpoint(checkpoint, last, until)?;
                checkpoint.last().min(until)
            }
            Next::Journal(journal) => {
                let applied = layers.apply_journal((journal, &*store.host), volumes, last, until)?;
                if applied == last {
                    return Err(Error::invalid(format!("the history ends with record {last}")));
                }
                applied
            }
            Next::End => return Err(Error::invalid(format!("the history ends with record {last}"))),
            Next::Missing(found) => {
                return Err(Error::invalid(format!(
                    "the records after {last} are in no checkpoint any more: the next moment is that after record {found}"
                )));
            }
        };
    }
    Ok(())
}

/// Returns the error of a moment inside a gap. The index that begins with `first` repeats gaps of earlier records.
fn inside(gap: &OpenGap, first: Lsn, volumes: &[VolumeSpec], lsn: Lsn) -> Error {
    let name = volumes.get(usize::from(gap.volume)).map_or("?", |volume| &volume.name);
    let (start, end) = (gap.blocks.start * BLOCK_BYTES, gap.blocks.end * BLOCK_BYTES);
    let earlier = if gap.lsn == first { " or earlier" } else { "" };
    let what = if gap.is_gap { "changes may be missing" } else { "differences are being recorded" };
    Error::invalid(format!(
        "the moment after record {lsn} is inside a gap: from record {} on{earlier}, {what} in bytes {start} to {end} of volume `{name}`",
        gap.lsn
    ))
}

/// A volume of a [`PointInTime`], for a server. It is read only.
#[derive(Debug)]
pub struct PointVolume {
    point: Arc<PointInTime>,
    volume: usize,
    log: Log,
}

impl PointVolume {
    /// Offers a volume by its number.
    ///
    /// # Panics
    ///
    /// If there is no volume with this number.
    pub fn new(point: Arc<PointInTime>, volume: usize, log: Log) -> Self {
        assert!(volume < point.volumes.len(), "volumes of a view have numbers");
        Self { point, volume, log }
    }

    fn or_io<T>(&self, outcome: Result<T>) -> Result<T, Errno> {
        outcome.map_err(|error| {
            self.log.line(&format!("{}: {error}", self.point.volumes[self.volume].name));
            Errno::Io
        })
    }
}

impl Export for PointVolume {
    fn size(&self) -> u64 {
        self.point.volumes[self.volume].size
    }

    fn flags(&self) -> u16 {
        export_flag::READ_ONLY | export_flag::SEND_FLUSH | export_flag::CAN_MULTI_CONN
    }

    fn has_context(&self, context: Context) -> bool {
        context == Context::Allocation
    }

    fn is_prompt(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.or_io(self.point.read(self.volume, offset, into))
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn write_zeroes(&self, _: std::ops::Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn trim(&self, _: std::ops::Range<u64>, _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn cache(&self, _: std::ops::Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: std::ops::Range<u64>, _: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let (is_hole, len) = self.or_io(self.point.is_hole(self.volume, at, range.end - at))?;
            let flags = if is_hole { allocation_flag::HOLE | allocation_flag::ZERO } else { 0 };
            if len == 0 || !extents.push(len, flags) {
                break;
            }
            at += len;
        }
        Ok(())
    }
}
