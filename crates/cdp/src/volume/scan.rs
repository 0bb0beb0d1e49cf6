//! Comparing whole volumes with their history while clients go on.
//!
//! A scan goes in rounds. Each opens the history at the present moment, and compares the extents that are not compared yet, under their range
//! locks. An extent that was written after that moment is left for the next round.

use onefold_engine::error::{Error, Result};

use crate::journal::AppendError;
use crate::nbd::wire::Errno;
use crate::volume::activity::{EXTENT_BYTES, Extent, extents_of};
use crate::volume::behind::VolumeRange;
use crate::volume::compare::{BLOCK_BYTES, COMPARED_BYTES, FindDifferences};
use crate::volume::group::{Group, errno_of};

/// Rounds of a scan. What was written in all of them is not compared.
pub const ROUNDS: usize = 4;
/// Most ranges that are listed of each kind. More are counted.
pub const LISTED_MAX: usize = 1_000;

/// Treatment of blocks that differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Differing {
    /// They are listed.
    List,
    /// They are listed, and recorded as they are in the volume.
    Record,
}

/// Ranges, some of which are listed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges {
    /// The first ones, at most [`LISTED_MAX`].
    pub listed: Vec<VolumeRange>,
    /// Bytes of all.
    pub bytes: u64,
}

impl Ranges {
    fn push(&mut self, range: VolumeRange) {
        self.bytes += range.bytes.end - range.bytes.start;
        let is_full = LISTED_MAX <= self.listed.len();
        match self.listed.last_mut() {
            Some(last) if last.volume == range.volume && last.bytes.end == range.bytes.start => {
                last.bytes.end = range.bytes.end;
            }
            _ if is_full => {}
            _ => self.listed.push(range),
        }
    }
}

/// Result of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// Bytes that were compared.
    pub compared: u64,
    /// Blocks that differed. With [`Differing::Record`], all that were recorded, also in extents that are left.
    pub differing: Ranges,
    /// Extents that were written in every round, so that they were not compared wholly.
    pub left: Ranges,
}

/// Notes the extents that are written while this exists.
struct Watch<'a>(&'a Group);

impl<'a> Watch<'a> {
    /// Starts with the extents that are being written: their records may be later than the moment that is opened next.
    fn start(group: &'a Group) -> Self {
        let mut state = group.requests.lock();
        state.written = Some(state.writing.keys().copied().collect());
        drop(state);
        Self(group)
    }

    fn has(&self, extent: Extent) -> bool {
        self.0.requests.lock().written.as_ref().is_none_or(|written| written.contains(&extent))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.requests.lock().written = None;
    }
}

/// Outcome of comparing an extent.
enum Compared {
    /// Blocks that differed, as ranges.
    Yes(Vec<VolumeRange>),
    /// It was written meanwhile. Blocks of it that were recorded before that, as ranges.
    Written(Vec<VolumeRange>),
}

impl Group {
    /// Memory of a scan of volumes with these sizes: the extents that are left, and those that were written.
    pub fn scan_memory_bytes(sizes: &[u64]) -> usize {
        let extents: u64 = sizes.iter().map(|size| size.div_ceil(EXTENT_BYTES)).sum();
        usize::try_from(extents).unwrap_or(usize::MAX).saturating_mul(5 * size_of::<Extent>()) + 3 * COMPARED_BYTES
    }

    /// Compares all volumes with their history. `open` opens the history at its last record; records of the journal stay while it works. One
    /// scan runs at a time.
    ///
    /// Fails with [`Error::Invalid`] if changes are missing in the history, if a volume cannot be read, and if the journal is full and the
    /// group does not wait for its space. Blocks that were recorded before that stay in the history.
    pub fn scan<'a>(
        &self,
        differing: Differing,
        open: &mut dyn FnMut() -> Result<Box<FindDifferences<'a>>>,
    ) -> Result<Scanned> {
        let Ok(_one) = self.scanning.try_lock() else {
            return Err(Error::invalid("another scan of this group is running"));
        };
        let sizes = (0..).zip(&self.origins).map(|(volume, origin)| (volume, origin.size()));
        let mut pending: Vec<Extent> = sizes.flat_map(|(volume, size)| extents_of(volume, 0..size)).collect();
        let mut scanned = Scanned::default();
        for _ in 0..ROUNDS {
            if pending.is_empty() {
                break;
            }
            let watch = Watch::start(self);
            let held = self.hold_records();
            let mut find = open()?;
            drop(held);
            let mut left = Vec::new();
            for extent in pending {
                let ranges = match self.scan_extent(extent, differing, &watch, &mut *find)? {
                    Compared::Yes(ranges) => {
                        let bytes = self.bytes_of(extent);
                        scanned.compared += bytes.end - bytes.start;
                        ranges
                    }
                    Compared::Written(recorded) => {
                        left.push(extent);
                        recorded
                    }
                };
                for range in ranges {
                    scanned.differing.push(range);
                }
            }
            pending = left;
        }
        for extent in pending {
            scanned.left.push(VolumeRange { volume: extent.volume, bytes: self.bytes_of(extent) });
        }
        Ok(scanned)
    }

    fn bytes_of(&self, Extent { volume, number }: Extent) -> std::ops::Range<u64> {
        number * EXTENT_BYTES..((number + 1) * EXTENT_BYTES).min(self.origin(volume).size())
    }

    fn scan_extent(
        &self,
        extent: Extent,
        differing: Differing,
        watch: &Watch<'_>,
        find: &mut FindDifferences<'_>,
    ) -> Result<Compared> {
        let (volume, bytes) = (extent.volume, self.bytes_of(extent));
        let (mut found, mut blocks, mut ranges) = (vec![0; COMPARED_BYTES], Vec::new(), Vec::new());
        for offset in bytes.clone().step_by(COMPARED_BYTES) {
            let len = usize::try_from(bytes.end - offset).unwrap_or(COMPARED_BYTES).min(COMPARED_BYTES);
            let found = &mut found[..len];
            let _held = self.hold(volume, offset..offset + len as u64);
            // Nobody writes to this range now. A write that has ended is known.
            if watch.has(extent) {
                // The next round finds what was recorded equal, and lists the rest again.
                return Ok(Compared::Written(if differing == Differing::Record { ranges } else { Vec::new() }));
            }
            self.read_origin(volume, offset, found)?;
            blocks.clear();
            find(volume, offset, found, &mut blocks)?;
            if differing == Differing::Record && !blocks.is_empty() {
                self.record_found(volume, offset, found, &blocks)?;
            }
            for block in &blocks {
                let start = block * BLOCK_BYTES;
                let end = len.min(start + BLOCK_BYTES) as u64;
                ranges.push(VolumeRange { volume, bytes: offset + start as u64..offset + end });
            }
        }
        Ok(Compared::Yes(ranges))
    }

    fn record_found(&self, volume: u16, offset: u64, found: &[u8], blocks: &[usize]) -> Result<()> {
        let refused = |errno| {
            let reason = match errno {
                Errno::NoSpace => {
                    "the journal is full; serve the group until a checkpoint has made space, and scan again".to_owned()
                }
                errno => format!("{errno:?}"),
            };
            Error::invalid(format!(
                "volume {volume}: the blocks that differ from byte {offset} on are not recorded: {reason}"
            ))
        };
        let request = self.begin(volume, 0..0, false).map_err(refused)?;
        let recorded = loop {
            match self.record_blocks(volume, offset, found, blocks) {
                Err(AppendError::Full) if self.waits_for_space() => {}
                outcome => break outcome,
            }
        };
        drop(request);
        recorded.map_err(|error| refused(errno_of(&error)))
    }
}
