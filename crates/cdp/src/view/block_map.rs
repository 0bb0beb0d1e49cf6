//! The map of a view from blocks to where their contents are, in a fixed amount of memory.
//!
//! It is a log-structured merge tree of one kind: extents in memory, and, if there are too many of them, runs in temporary files, sorted by
//! volume and block. A newer layer covers an older one. The maps of the engine that spill answer for single keys; a reader of volumes asks
//! how far a range reaches, so each run here can be searched by order.

use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{DiskFile, Host};
use onefold_engine::store::metadata::Scratch;

use crate::history::{ExtentMap, Location};
use crate::view::spool::create_temporary;

/// Location of the contents of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockLocation {
    /// Nowhere: they are zeros.
    Hole,
    /// In the data of a checkpoint, by its number in the view.
    Stored { stream: u32, block: u64 },
    /// In the temporary file.
    Spooled(u64),
}

impl Location for BlockLocation {
    fn skip(self, blocks: u64) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Stored { stream, block } => Self::Stored { stream, block: block + blocks },
            Self::Spooled(block) => Self::Spooled(block + blocks),
        }
    }
}

/// Bytes of a record of a run: volume, kind, first block, the one after the last, stream, location.
const RECORD_BYTES: usize = 2 + 1 + 8 + 8 + 4 + 8;
/// Records of a page, and its bytes: the unit of reads.
const PAGE_RECORDS: usize = 32;
const PAGE_BYTES: usize = PAGE_RECORDS * RECORD_BYTES;
/// Runs that are joined when there are as many: each lookup may search all of them.
const RUNS_MAX: usize = 6;
/// Parts of the memory that extents may take; the rest is for the fences of runs.
const EXTENTS_SHARE: usize = 2;

/// An extent of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent {
    volume: u16,
    start: u64,
    end: u64,
    location: BlockLocation,
}

impl Extent {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, stream, block) = match self.location {
            BlockLocation::Hole => (0, 0, 0),
            BlockLocation::Stored { stream, block } => (1, stream, block),
            BlockLocation::Spooled(block) => (2, 0, block),
        };
        out.extend_from_slice(&self.volume.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&self.start.to_le_bytes());
        out.extend_from_slice(&self.end.to_le_bytes());
        out.extend_from_slice(&u32::to_le_bytes(stream));
        out.extend_from_slice(&u64::to_le_bytes(block));
    }

    /// Decodes a record; `None` if the file was changed by somebody.
    fn decode(record: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (volume, rest) = record.split_first_chunk()?;
        let (kind, rest) = rest.split_first()?;
        let (start, rest) = rest.split_first_chunk()?;
        let (end, rest) = rest.split_first_chunk()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let block = u64::from_le_bytes(rest.try_into().ok()?);
        let location = match kind {
            0 => BlockLocation::Hole,
            1 => BlockLocation::Stored { stream: u32::from_le_bytes(*stream), block },
            2 => BlockLocation::Spooled(block),
            _ => return None,
        };
        let (start, end) = (u64::from_le_bytes(*start), u64::from_le_bytes(*end));
        Some(Self { volume: u16::from_le_bytes(*volume), start, end, location })
    }
}

/// A run: extents in a file, ascending, that do not overlap.
#[derive(Debug)]
struct Run {
    file: Arc<dyn DiskFile>,
    /// Volume and first block of each page.
    fences: Vec<(u16, u64)>,
    /// Records of all pages.
    records: usize,
    /// The page that was read last, and its number.
    page: Vec<Extent>,
    page_number: Option<usize>,
}

impl Run {
    /// Memory of the page that was read last, and of its bytes.
    const PAGE_MEMORY_BYTES: usize = PAGE_BYTES + PAGE_RECORDS * size_of::<Extent>();
    const FENCE_BYTES: usize = size_of::<(u16, u64)>();

    /// Reads a page, unless it was read last.
    fn read(&mut self, number: usize) -> Result<()> {
        if self.page_number == Some(number) {
            return Ok(());
        }
        self.page_number = None;
        let records = PAGE_RECORDS.min(self.records.saturating_sub(number * PAGE_RECORDS));
        let mut bytes = vec![0; records * RECORD_BYTES];
        self.file.read_at((number * PAGE_BYTES) as u64, &mut bytes)?;
        self.page.clear();
        for record in bytes.as_chunks::<RECORD_BYTES>().0 {
            let extent = Extent::decode(record);
            self.page.push(extent.ok_or_else(|| Error::damaged("temporary file of a view", "was changed"))?);
        }
        self.page_number = Some(number);
        Ok(())
    }

    /// Returns the location of a block and for how many blocks it goes on, as [`ExtentMap::get`] does.
    fn get(&mut self, volume: u16, block: u64, max: u64) -> Result<(Option<BlockLocation>, u64)> {
        let after = self.fences.partition_point(|fence| *fence <= (volume, block));
        if let Some(number) = after.checked_sub(1) {
            self.read(number)?;
            let at = self.page.partition_point(|extent| (extent.volume, extent.start) <= (volume, block));
            let before = at.checked_sub(1).and_then(|at| self.page.get(at));
            if let Some(&Extent { start, end, location, .. }) =
                before.filter(|extent| extent.volume == volume && block < extent.end)
            {
                return Ok((Some(location.skip(block - start)), (end - block).min(max)));
            }
            if let Some(next) = self.page.get(at) {
                return Ok((None, gap((next.volume, next.start), volume, block).min(max)));
            }
        }
        let next = self.fences.get(after).copied();
        Ok((None, next.map_or(u64::MAX, |next| gap(next, volume, block)).min(max)))
    }
}

/// Returns how many blocks are before the next extent.
fn gap(next: (u16, u64), volume: u16, block: u64) -> u64 {
    if next.0 == volume { next.1.saturating_sub(block) } else { u64::MAX }
}

/// Writes a run.
struct RunWriter {
    run: Run,
    buffer: Vec<u8>,
    last: Option<Extent>,
}

impl RunWriter {
    fn create(scratch: &Scratch, host: &dyn Host) -> Result<Self> {
        let file = create_temporary(scratch, host)?;
        let run = Run { file, fences: Vec::new(), records: 0, page: Vec::new(), page_number: None };
        Ok(Self { run, buffer: Vec::new(), last: None })
    }

    /// Takes the next extent, and joins it with the last one if it continues that.
    fn push(&mut self, next: Extent) -> Result<()> {
        if let Some(last) = &mut self.last {
            let continues = last.volume == next.volume
                && last.end == next.start
                && last.location.skip(last.end - last.start) == next.location;
            if continues {
                last.end = next.end;
                return Ok(());
            }
        }
        match self.last.replace(next) {
            Some(extent) => self.write(&extent),
            None => Ok(()),
        }
    }

    fn write(&mut self, extent: &Extent) -> Result<()> {
        if self.run.records.is_multiple_of(PAGE_RECORDS) {
            self.flush()?;
            self.run.fences.push((extent.volume, extent.start));
        }
        extent.encode(&mut self.buffer);
        self.run.records += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let pages = self.run.fences.len();
        if let Some(number) = pages.checked_sub(1).filter(|_| !self.buffer.is_empty()) {
            self.run.file.write_at((number * PAGE_BYTES) as u64, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Run> {
        if let Some(extent) = self.last.take() {
            self.write(&extent)?;
        }
        self.flush()?;
        self.run.fences.shrink_to_fit();
        Ok(self.run)
    }
}

/// The map.
#[derive(Debug)]
pub(super) struct BlockMap {
    /// Newest locations, by volume.
    memory: Vec<ExtentMap<BlockLocation>>,
    /// Older ones, the newest run last.
    runs: Vec<Run>,
    scratch: Scratch,
    host: Arc<dyn Host>,
    bytes_max: usize,
    /// Times that the memory was full.
    spilled: usize,
}

impl BlockMap {
    pub(super) fn new(volumes: usize, scratch: &Scratch, host: &Arc<dyn Host>, bytes_max: usize) -> Self {
        let memory = (0..volumes).map(|_| ExtentMap::default()).collect();
        Self { memory, runs: Vec::new(), scratch: scratch.clone(), host: Arc::clone(host), bytes_max, spilled: 0 }
    }

    /// Returns the memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.extent_bytes() + self.run_bytes()
    }

    fn extent_bytes(&self) -> usize {
        let extents: usize = self.memory.iter().map(ExtentMap::len).sum();
        extents.saturating_mul(ExtentMap::<BlockLocation>::EXTENT_BYTES)
    }

    fn run_bytes(&self) -> usize {
        let of_run = |run: &Run| run.fences.len() * Run::FENCE_BYTES + Run::PAGE_MEMORY_BYTES;
        self.runs.iter().map(of_run).sum()
    }

    /// Returns how often its memory was full.
    pub(super) fn spilled(&self) -> usize {
        self.spilled
    }

    /// Gives blocks a location; the first one gets `location` itself. Blocks of other volumes than those of the view are left out.
    pub(super) fn insert(&mut self, volume: u16, blocks: std::ops::Range<u64>, location: BlockLocation) -> Result<()> {
        let Some(map) = self.memory.get_mut(usize::from(volume)) else { return Ok(()) };
        map.insert(blocks, location);
        if self.bytes_max / EXTENTS_SHARE < self.extent_bytes() { self.spill() } else { Ok(()) }
    }

    /// Returns the location of a block and for how many blocks it goes on, as [`ExtentMap::get`] does.
    pub(super) fn get(&mut self, volume: usize, block: u64, max: u64) -> Result<(Option<BlockLocation>, u64)> {
        let (found, mut run) = self.memory.get(volume).map_or((None, max), |map| map.get(block, max));
        if found.is_some() {
            return Ok((found, run));
        }
        let volume = u16::try_from(volume).unwrap_or(u16::MAX);
        for layer in self.runs.iter_mut().rev() {
            let (found, of_layer) = layer.get(volume, block, run)?;
            run = of_layer;
            if found.is_some() {
                return Ok((found, run));
            }
        }
        Ok((None, run))
    }

    /// Moves the extents in memory to a new run. Joins all runs if there are many.
    fn spill(&mut self) -> Result<()> {
        if self.scratch.disk.is_none() {
            return Err(self.too_many("no directory for temporary files is known"));
        }
        self.spilled += 1;
        let mut writer = RunWriter::create(&self.scratch, &*self.host)?;
        for (volume, map) in (0..).zip(&mut self.memory) {
            for (blocks, location) in std::mem::take(map).iter() {
                writer.push(Extent { volume, start: blocks.start, end: blocks.end, location })?;
            }
        }
        self.runs.push(writer.finish()?);
        if RUNS_MAX <= self.runs.len() {
            let joined = self.join()?;
            self.runs = vec![joined];
        }
        if self.bytes_max / EXTENTS_SHARE < self.run_bytes() {
            return Err(self.too_many("even in temporary files"));
        }
        Ok(())
    }

    /// Writes one run that has the newest location of every block of all runs.
    fn join(&mut self) -> Result<Run> {
        let mut writer = RunWriter::create(&self.scratch, &*self.host)?;
        for volume in 0..self.memory.len() {
            let number = u16::try_from(volume).unwrap_or(u16::MAX);
            let mut block = 0;
            loop {
                let (found, run) = self.get(volume, block, u64::MAX - block)?;
                let Some(end) = block.checked_add(run).filter(|end| *end < u64::MAX) else { break };
                if let Some(location) = found {
                    writer.push(Extent { volume: number, start: block, end, location })?;
                }
                block = end;
            }
        }
        writer.finish()
    }

    fn too_many(&self, why: &str) -> Error {
        Error::invalid(format!(
            "the changes between this moment and the checkpoint before it need more than the {} KiB of memory that they may take ({why}): \
             allow more, or make a checkpoint, and choose a moment nearer to one",
            self.bytes_max >> 10
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use onefold_engine::random::SplitMix64;
    use onefold_engine::testing::sim::{SimDisk, SimHost};
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 300;

    fn map(bytes_max: usize, has_disk: bool) -> BlockMap {
        let disk = has_disk.then(|| Arc::new(SimDisk::new()) as _);
        let host: Arc<dyn Host> = Arc::new(SimHost::new(3));
        BlockMap::new(3, &Scratch { disk, dir: PathBuf::new() }, &host, bytes_max)
    }

    /// Compares every block, and the lengths of ranges.
    fn assert_is(map: &mut BlockMap, model: &[Vec<Option<BlockLocation>>]) {
        for (volume, blocks) in model.iter().enumerate() {
            let mut block = 0;
            while block < BLOCKS {
                let (location, run) = map.get(volume, block, BLOCKS - block).unwrap();
                assert!((1..=BLOCKS - block).contains(&run), "{run} blocks at {block}");
                for at in 0..run {
                    let expected = blocks[usize::try_from(block + at).unwrap()];
                    assert_eq!(location.map(|location| location.skip(at)), expected, "block {block} and {at}");
                }
                block += run;
            }
        }
    }

    proptest! {
        #[test]
        fn every_block_has_the_location_that_it_got_last_whatever_is_in_files(seed: u64, inserts in 1..400_usize, extents in 4..60_usize) {
            let mut random = SplitMix64::new(seed);
            let mut map = map(2 * extents * ExtentMap::<BlockLocation>::EXTENT_BYTES + (64 << 10), true);
            map.bytes_max = 64 << 10;
            let mut model = vec![vec![None; usize::try_from(BLOCKS).unwrap()]; 3];
            for number in 0..inserts as u64 {
                let volume = random.index(3);
                let start = random.index(280) as u64;
                let end = start + 1 + random.index(20) as u64;
                let location = match random.index(3) {
                    0 => BlockLocation::Hole,
                    1 => BlockLocation::Stored { stream: u32::try_from(number).unwrap(), block: 1000 * number },
                    _ => BlockLocation::Spooled(1000 * number),
                };
                map.insert(u16::try_from(volume).unwrap(), start..end, location).unwrap();
                for block in start..end {
                    model[volume][usize::try_from(block).unwrap()] = Some(location.skip(block - start));
                }
                if map.memory.iter().map(ExtentMap::len).sum::<usize>() == extents {
                    map.spill().unwrap();
                }
            }
            assert_is(&mut map, &model);
            prop_assert!(map.runs.len() < RUNS_MAX && map.bytes() < 64 << 10);
        }
    }

    #[test]
    fn memory_stays_within_its_limit_and_without_a_directory_too_much_is_refused() {
        let mut random = SplitMix64::new(5);
        let (mut large, mut refused) = (map(256 << 10, true), map(256 << 10, false));
        let mut error = None;
        for _ in 0..40_000 {
            let start = random.index(1 << 40) as u64;
            large.insert(1, start..start + 1, BlockLocation::Spooled(start)).unwrap();
            assert!(large.bytes() <= 256 << 10);
            error = error.or(refused.insert(1, start..start + 1, BlockLocation::Spooled(start)).err());
            assert_eq!(large.get(1, start, 9).unwrap().0, Some(BlockLocation::Spooled(start)));
        }
        assert!(10 < large.spilled());
        assert!(error.unwrap().to_string().contains("no directory for temporary files is known"));
    }
}
