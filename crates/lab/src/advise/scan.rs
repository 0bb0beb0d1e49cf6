//! One rule on the bytes that are read: chunks, their duplicates, and what their regions compress to.

use std::time::Duration;

use onefold_engine::chunk::Cutter;
use onefold_engine::compress::Compressor;
use onefold_engine::crypto::Keys;
use onefold_engine::types::ChunkKind;
use twox_hash::XxHash3_64;

use super::distinct::{Distinct, Novelty, RECENT_BYTES, Recent, SLOT_BYTES};
use super::reader::RunEnd;
use super::regions::{Compressing, REGION_BYTES, Regions};
use super::rules::{AVERAGE_DEFAULT, RULES, Rule};
use super::similar::Similar;
use super::survey::{CLASSES, Covered, GROUPS, UnitOf};
use super::window::{Window, WindowRun};
use crate::processor::processor_time;

/// Most chunk refs within a tree entry, as in a repository of the default sizes.
const INLINE_REFS_MAX: u64 = 24;
/// Mean number of chunk refs in a recipe segment: at least 256, and 768 more on average.
const SEGMENT_REFS: u64 = 1024;
/// Processor time of the engine's own functions on some of the bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fingerprinting {
    /// Bytes.
    pub bytes: u64,
    /// Time for their candidates.
    pub cut: Duration,
    /// Time for their fingerprints.
    pub name: Duration,
}

/// Result of one rule on the data.
#[derive(Debug)]
pub struct RuleScan {
    /// The rule.
    pub rule: Rule,
    /// Its number among the averages, if it is content-defined.
    table: Option<usize>,
    cutter: Cutter,
    /// Chunks, with repetitions.
    pub chunks: u64,
    /// Bytes of them.
    pub covered: Covered,
    /// Chunk refs in recipes that are new.
    pub refs: u64,
    /// The different ones.
    pub distinct: Distinct,
    recent: Recent,
    /// Whether the open stream has no cut yet.
    is_stream_start: bool,
    /// Refs of the open stream; of its last segment, and whether that has a new chunk.
    stream_refs: u64,
    segment_refs: u64,
    is_segment_new: bool,
    compressing: Compressing,
    /// Compressed regions of some intervals.
    pub some: Regions,
    /// Compressed regions of all data, if this is the default rule.
    pub all: Option<Regions>,
    /// The same, of units of even and of odd groups: what regions of half a sample compress to. Empty where everything is read.
    pub halves: [Regions; 2],
    /// New chunks of all data, compressed against similar ones, if that is asked.
    pub similar: Option<Similar>,
    /// Hashes of the chunks in the open region of all data, if that is a sample.
    of_region: Vec<u64>,
    /// Time of fingerprinting.
    pub fingerprinting: Fingerprinting,
}

/// Memory of all rules without their tables: a region and its compressed form, as large as the longest chunk if that is
/// longer.
pub fn buffers_bytes() -> usize {
    let region = |rule: Rule| 2 * REGION_BYTES.max(rule.chunking().chunk_bytes_max() as usize);
    Rule::all().map(region).sum::<usize>() + 3 * region(Rule::Content(AVERAGE_DEFAULT))
}

/// Bytes of a slot in a rule's table, with its two slots of recent chunks.
pub const SLOTS_BYTES: usize = SLOT_BYTES + 2 * RECENT_BYTES;

/// Returns the number of slots, a power of two, with which the tables of all rules fit into `bytes`.
pub fn slots_within(bytes: usize) -> usize {
    let slots = bytes / (RULES * SLOTS_BYTES);
    1 << slots.max(1 << 10).ilog2()
}

impl RuleScan {
    /// Starts with tables of `slots` slots.
    pub fn new(number: usize, rule: Rule, slots: usize, compressing: Compressing) -> Self {
        Self {
            rule,
            table: matches!(rule, Rule::Content(_)).then_some(number),
            cutter: Cutter::new(rule.chunking()),
            chunks: 0,
            covered: [[0; GROUPS]; CLASSES],
            is_stream_start: true,
            refs: 0,
            distinct: Distinct::new(slots),
            recent: Recent::new(2 * slots),
            stream_refs: 0,
            segment_refs: 0,
            is_segment_new: false,
            compressing,
            some: Regions::default(),
            all: (rule == Rule::Content(AVERAGE_DEFAULT)).then(Regions::default),
            halves: Default::default(),
            similar: None,
            of_region: Vec::new(),
            fingerprinting: Fingerprinting::default(),
        }
    }

    /// Returns how many bytes at the end are still open.
    pub fn open_len(&self) -> usize {
        self.cutter.open_len() as usize
    }

    /// Takes a batch. `cuts` is room.
    pub fn take(&mut self, window: &Window, compressor: &mut Compressor, cuts: &mut Vec<u32>) {
        for run in &window.runs {
            let mut start = run.start - self.open_len();
            self.cut(run, cuts);
            for cut in &*cuts {
                let end = run.start + *cut as usize;
                // A chunk that the extent's start or end cuts short is none of a backup.
                if !(run.unit.starts_inside && self.is_stream_start) {
                    self.take_chunk(window, start, end, run.unit, compressor);
                }
                self.is_stream_start = false;
                start = end;
            }
            if run.end != RunEnd::Open {
                let end = run.start + run.len;
                let is_cut =
                    run.unit.starts_inside && self.is_stream_start || run.unit.ends_inside && run.end == RunEnd::Stream;
                if start < end && !is_cut {
                    self.take_chunk(window, start, end, run.unit, compressor);
                }
                self.is_stream_start = run.end == RunEnd::Stream;
                self.cutter.finish();
                if run.end == RunEnd::Stream {
                    self.end_stream(run.unit);
                }
            }
        }
    }

    fn cut(&mut self, run: &WindowRun, cuts: &mut Vec<u32>) {
        cuts.clear();
        let candidates = self.table.and_then(|number| run.candidates.get(number)).map_or(&[][..], Vec::as_slice);
        let len = u32::try_from(run.len).expect("batches are far below 4 GiB");
        self.cutter.advance(len, candidates, cuts);
    }

    fn take_chunk(&mut self, window: &Window, start: usize, end: usize, unit: UnitOf, compressor: &mut Compressor) {
        let bytes = window.bytes.get(start..end).expect("chunks lie inside the window");
        let len = u32::try_from(bytes.len()).expect("chunks are far below 4 GiB");
        let hash = XxHash3_64::oneshot(bytes);
        self.chunks += 1;
        unit.cover(&mut self.covered, u64::from(len));
        let is_new = match self.distinct.insert(hash, len, unit) {
            Novelty::New => true,
            Novelty::Known => false,
            Novelty::NotKept => !self.recent.insert(hash),
        };
        self.stream_refs += 1;
        self.segment_refs += 1;
        self.is_segment_new |= is_new;
        if self.segment_refs == SEGMENT_REFS {
            self.end_segment();
        }
        if let Some(similar) = &mut self.similar {
            similar.push(bytes, hash, is_new, (unit.root, unit.group));
        }
        if is_new {
            self.compress(window.offset + start as u64, hash, bytes, unit, compressor);
        }
    }

    /// Adds a new chunk to regions.
    fn compress(&mut self, offset: u64, hash: u64, bytes: &[u8], unit: UnitOf, compressor: &mut Compressor) {
        let compression = self.compressing.compression;
        if let Some(group) = self.compressing.group(offset) {
            self.some.push(bytes, group, compression, compressor);
        }
        let Some(all) = &mut self.all else { return };
        if let Some(share) = all.push(bytes, usize::from(unit.group), compression, compressor) {
            self.end_region(share);
        }
        if self.compressing.is_sample {
            self.of_region.push(hash);
            if let Some(half) = self.halves.get_mut(usize::from(unit.group & 1)) {
                half.push(bytes, 0, compression, compressor);
            }
        }
    }

    fn end_region(&mut self, share: f64) {
        for hash in self.of_region.drain(..) {
            self.distinct.set_stored(hash, share);
        }
    }

    /// A segment that is known is stored once; one that has a new chunk is new.
    fn end_segment(&mut self) {
        if self.is_segment_new {
            self.refs += self.segment_refs;
        }
        (self.segment_refs, self.is_segment_new) = (0, false);
    }

    fn end_stream(&mut self, unit: UnitOf) {
        if self.stream_refs <= INLINE_REFS_MAX && !unit.starts_inside && !unit.ends_inside {
            // They are in the tree entry, which each file has.
            self.is_segment_new = true;
        }
        self.end_segment();
        self.stream_refs = 0;
    }

    /// Compresses the collected regions.
    pub fn end_regions(&mut self, compressor: &mut Compressor) {
        let compression = self.compressing.compression;
        self.some.end(compression, compressor);
        if let Some(share) = self.all.as_mut().and_then(|regions| regions.end(compression, compressor)) {
            self.end_region(share);
        }
        for half in &mut self.halves {
            half.end(compression, compressor);
        }
    }

    /// Measures what the engine takes to cut and to name the bytes of a batch so.
    pub fn measure(&mut self, window: &Window, search: &super::candidates::Search, keys: &Keys) {
        let mut cuts = Vec::new();
        let mut chunks: Vec<&[u8]> = Vec::new();
        let mut found = Vec::new();
        for run in &window.runs {
            let bytes = window.bytes.get(run.start..run.start + run.len).unwrap_or_default();
            let start = processor_time();
            if let Some(table) = self.table.and_then(|number| search.table(number)) {
                found.clear();
                table.candidates(bytes, 0, &mut found);
            }
            let mut cutter = Cutter::new(self.rule.chunking());
            cuts.clear();
            cutter.advance(u32::try_from(run.len).expect("batches are far below 4 GiB"), &found, &mut cuts);
            self.fingerprinting.cut += processor_time().saturating_sub(start);
            let mut begin = 0;
            for cut in cuts.iter().map(|cut| *cut as usize).chain([run.len]).filter(|cut| *cut != 0) {
                chunks.push(bytes.get(begin..cut).unwrap_or_default());
                begin = cut;
            }
            self.fingerprinting.bytes += run.len as u64;
        }
        chunks.retain(|chunk| !chunk.is_empty());
        let start = processor_time();
        let names = keys.fingerprints(ChunkKind::Data, &chunks);
        self.fingerprinting.name += processor_time().saturating_sub(start);
        assert_eq!(names.len(), chunks.len(), "every chunk is named");
    }
}
