//! Records cut on the grid of blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use onefold_engine::error::Result;
use onefold_engine::types::ChunkRef;

use crate::history::index::{Change, HistoryEntry};
use crate::history::{BLOCK_BYTES, ExtentMap};
use crate::journal::{Entry, Lsn, Op, Record};

/// Bytes of a block, as a length in memory.
const BLOCK: usize = 4096;

/// Bytes of an entry of the index, unless a record is of an unusual volume.
const ENTRY_BYTES_USUAL: usize = 16;

/// A block of a volume.
pub type VolumeBlock = (u16, u64);

/// Result of a run over the journal, up to a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// The record after the last one within the limits.
    pub end: Lsn,
    /// Versions of blocks.
    pub versions: u64,
    /// Blocks of which a record changes a part. Their contents before it are needed.
    pub partial: BTreeSet<VolumeBlock>,
    /// Names of moments.
    pub marks: Vec<(Lsn, String)>,
}

/// Limits of one checkpoint: they bound its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointLimits {
    /// Most versions of blocks.
    pub versions: u64,
    /// Most blocks that are changed in part.
    pub partial: usize,
    /// Most entries of the index that name no version.
    pub others: u64,
    /// Most names of moments.
    pub marks: usize,
}

impl CheckpointLimits {
    /// Memory of a checkpoint within these limits, besides that for reading: references, the last version of each block, contents of
    /// blocks that are changed in part, and the index.
    pub fn memory_bytes(&self) -> usize {
        let versions = usize::try_from(self.versions).unwrap_or(usize::MAX);
        let others = usize::try_from(self.others).unwrap_or(usize::MAX);
        let entries = versions.saturating_add(others);
        let partial = self.partial.saturating_mul(BLOCK + 64);
        let of_versions = versions.saturating_mul(size_of::<ChunkRef>());
        let of_entries = entries.saturating_mul(ExtentMap::<(u64, u64)>::EXTENT_BYTES + ENTRY_BYTES_USUAL);
        partial.saturating_add(of_versions).saturating_add(of_entries)
    }

    /// Returns the default limits, or smaller ones whose checkpoints take at most `bytes`.
    pub fn within(bytes: usize) -> Self {
        let (mut limits, mut shift) = (Self::DEFAULT, 0);
        while bytes < limits.memory_bytes() && 1 << 6 < limits.partial {
            shift += 1;
            let all = Self::DEFAULT;
            limits = Self {
                versions: all.versions >> shift,
                partial: all.partial >> shift,
                others: all.others >> shift,
                ..all
            };
        }
        limits
    }

    /// 1 GiB of versions, and 32 MiB of contents of blocks that are changed in part.
    pub const DEFAULT: Self = Self { versions: 1 << 18, partial: 1 << 13, others: 1 << 18, marks: 4_000 };
}

/// Takes records one after the other, until a limit is reached.
#[derive(Debug)]
pub struct Surveyor {
    limits: CheckpointLimits,
    survey: Survey,
    others: u64,
}

impl Surveyor {
    /// Starts before a record.
    pub fn new(first: Lsn, limits: CheckpointLimits) -> Self {
        let survey = Survey { end: first, versions: 0, partial: BTreeSet::new(), marks: Vec::new() };
        Self { limits, survey, others: 0 }
    }

    /// Takes the next record; returns false if it does not fit any more. One always fits.
    pub fn push(&mut self, entry: &Entry<'_>) -> bool {
        let record = &entry.record;
        let parts = Parts::of(record);
        let (versions, partial) = parts.counts(record);
        let has_space = self.survey.versions + versions <= self.limits.versions
            && self.survey.partial.len() + partial.len() <= self.limits.partial
            && self.others < self.limits.others
            && self.survey.marks.len() < self.limits.marks;
        if !has_space && self.survey.versions + self.others != 0 {
            return false;
        }
        self.survey.versions += versions;
        self.survey.partial.extend(partial.into_iter().map(|block| (record.volume, block)));
        self.others += u64::from(record.op != Op::Write);
        if record.op == Op::Mark {
            self.survey.marks.push((entry.lsn, String::from_utf8_lossy(record.payload).into_owned()));
        }
        self.survey.end = Lsn(entry.lsn.0 + 1);
        true
    }

    /// Returns what was taken.
    pub fn finish(self) -> Survey {
        self.survey
    }
}

/// A range of bytes, divided by the grid: a part of a block, whole blocks, and a part of a block.
struct Parts {
    head: Option<(u64, Range<usize>)>,
    whole: Range<u64>,
    tail: Option<(u64, Range<usize>)>,
}

impl Parts {
    fn of(record: &Record<'_>) -> Self {
        let (start, end) = (record.offset, record.offset + record.len);
        let (first, last) = (start / BLOCK_BYTES, end / BLOCK_BYTES);
        let within = |byte: u64| usize::try_from(byte % BLOCK_BYTES).expect("below the bytes of a block");
        if !matches!(record.op, Op::Write | Op::Zero | Op::Trim) || start == end {
            return Self { head: None, whole: 0..0, tail: None };
        }
        if first == last {
            return Self { head: Some((first, within(start)..within(end))), whole: 0..0, tail: None };
        }
        let head = (within(start) != 0).then(|| (first, within(start)..BLOCK));
        let tail = (within(end) != 0).then(|| (last, 0..within(end)));
        Self { whole: first + u64::from(head.is_some())..last, head, tail }
    }

    /// Returns the number of versions, and the blocks that are changed in part.
    fn counts(&self, record: &Record<'_>) -> (u64, Vec<u64>) {
        let partial: Vec<u64> = self.head.iter().chain(&self.tail).map(|(block, _)| *block).collect();
        let whole = if record.op == Op::Write { self.whole.end - self.whole.start } else { 0 };
        (whole + partial.len() as u64, partial)
    }
}

/// Takes versions of blocks and entries of the index, in order.
pub trait HistorySink {
    /// Takes the next version; the entry that names it follows.
    fn version(&mut self, bytes: &[u8]) -> Result<()>;
    /// Takes the next entry.
    fn entry(&mut self, entry: &HistoryEntry) -> Result<()>;
    /// Fills in the contents of a block before the first record.
    fn before(&mut self, block: VolumeBlock, into: &mut [u8]) -> Result<()>;
}

/// Cuts records into versions of blocks.
#[derive(Debug)]
pub struct Cutter {
    /// Present contents of the blocks that a record changes in part; none before they were changed.
    partial: BTreeMap<VolumeBlock, Option<Box<[u8]>>>,
}

impl Cutter {
    /// Starts, knowing the blocks that are changed in part.
    pub fn new(survey: &Survey) -> Self {
        Self { partial: survey.partial.iter().map(|block| (*block, None)).collect() }
    }

    /// Cuts a record.
    pub fn push(&mut self, entry: &Entry<'_>, sink: &mut dyn HistorySink) -> Result<()> {
        let Entry { lsn, time, record } = *entry;
        let of = |change, blocks: Range<u64>| {
            let count = blocks.end - blocks.start;
            HistoryEntry { lsn, time, volume: record.volume, change, block: blocks.start, count }
        };
        let touched = || record.offset / BLOCK_BYTES..(record.offset + record.len).div_ceil(BLOCK_BYTES);
        match record.op {
            Op::Write | Op::Zero | Op::Trim => {}
            Op::Mark | Op::Resize => return Ok(()),
            Op::Flush => return sink.entry(&of(Change::Flush, 0..0)),
            Op::Gap => return sink.entry(&of(Change::Gap, touched())),
            Op::ResyncBegin => return sink.entry(&of(Change::ResyncBegin, touched())),
            Op::ResyncEnd => return sink.entry(&of(Change::ResyncEnd, touched())),
        }
        let Parts { head, whole, tail } = Parts::of(&record);
        let mut payload = record.payload;
        if let Some((block, range)) = head {
            let bytes = take(&mut payload, range.len());
            self.change_part((record.volume, block), range, bytes, sink)?;
            sink.entry(&of(Change::Data, block..block + 1))?;
        }
        if !whole.is_empty() {
            if record.op == Op::Write {
                for block in whole.clone() {
                    let bytes = take(&mut payload, BLOCK);
                    sink.version(bytes)?;
                    self.change_whole((record.volume, block), bytes);
                }
                sink.entry(&of(Change::Data, whole))?;
            } else {
                let partial = self.partial.range_mut((record.volume, whole.start)..(record.volume, whole.end));
                partial.for_each(|(_, contents)| *contents = Some(vec![0; BLOCK].into()));
                sink.entry(&of(Change::Zero, whole))?;
            }
        }
        if let Some((block, range)) = tail {
            let bytes = take(&mut payload, range.len());
            self.change_part((record.volume, block), range, bytes, sink)?;
            sink.entry(&of(Change::Data, block..block + 1))?;
        }
        Ok(())
    }

    fn change_whole(&mut self, block: VolumeBlock, bytes: &[u8]) {
        if let Some(contents) = self.partial.get_mut(&block) {
            *contents = Some(bytes.into());
        }
    }

    /// Changes a part of a block; no bytes stand for zeros.
    fn change_part(
        &mut self,
        block: VolumeBlock,
        range: Range<usize>,
        bytes: &[u8],
        sink: &mut dyn HistorySink,
    ) -> Result<()> {
        let known = self.partial.entry(block).or_default();
        let contents = if let Some(contents) = known {
            contents
        } else {
            let mut before = vec![0; BLOCK].into_boxed_slice();
            sink.before(block, &mut before)?;
            known.insert(before)
        };
        let part = contents.get_mut(range).expect("within a block");
        if bytes.is_empty() {
            part.fill(0);
        } else {
            part.copy_from_slice(bytes);
        }
        sink.version(contents)
    }
}

/// Takes bytes from the front; none if there are none, as in a record of zeros.
fn take<'a>(payload: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, back) = payload.split_at_checked(len).unwrap_or_default();
    *payload = back;
    front
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: usize = 12;

    /// Applies entries to a volume, as a reader of the history does.
    #[derive(Debug)]
    struct Applied {
        start: Vec<u8>,
        now: Vec<u8>,
        versions: Vec<Vec<u8>>,
        taken: usize,
    }

    impl HistorySink for Applied {
        fn version(&mut self, bytes: &[u8]) -> Result<()> {
            self.versions.push(bytes.to_vec());
            Ok(())
        }

        fn entry(&mut self, entry: &HistoryEntry) -> Result<()> {
            for block in entry.block..entry.block + entry.count {
                let at = usize::try_from(block * BLOCK_BYTES).unwrap();
                let place = &mut self.now[at..at + BLOCK];
                match entry.change {
                    Change::Data => {
                        place.copy_from_slice(&self.versions[self.taken]);
                        self.taken += 1;
                    }
                    Change::Zero => place.fill(0),
                    _ => {}
                }
            }
            Ok(())
        }

        fn before(&mut self, (_, block): VolumeBlock, into: &mut [u8]) -> Result<()> {
            let at = usize::try_from(block * BLOCK_BYTES).unwrap();
            into.copy_from_slice(&self.start[at..at + BLOCK]);
            Ok(())
        }
    }

    fn change() -> impl Strategy<Value = (bool, usize, usize)> {
        let aligned =
            (0..BLOCKS, 1..4_usize).prop_map(|(block, count)| (block * BLOCK, (block + count).min(BLOCKS) * BLOCK));
        let unaligned =
            (0..BLOCKS * BLOCK - 1, 1..9_000_usize).prop_map(|(start, len)| (start, (start + len).min(BLOCKS * BLOCK)));
        (any::<bool>(), prop_oneof![aligned, unaligned]).prop_map(|(is_zero, (start, end))| (is_zero, start, end))
    }

    #[test]
    fn a_checkpoint_within_the_default_limits_takes_less_than_96_mib() {
        let bytes = CheckpointLimits::DEFAULT.memory_bytes();
        assert!((64 << 20..96 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn limits_keep_to_memory() {
        assert_eq!(CheckpointLimits::within(1 << 30), CheckpointLimits::DEFAULT);
        for mebibytes in [4, 8, 16, 64, 100] {
            let limits = CheckpointLimits::within(mebibytes << 20);
            assert!(limits.memory_bytes() <= mebibytes << 20 && mebibytes << 19 < limits.memory_bytes(), "{limits:?}");
        }
        assert!(1 << 11 <= CheckpointLimits::within(0).versions);
    }

    proptest! {
        #[test]
        fn history_gives_the_volume_after_every_record(changes in prop::collection::vec(change(), 1..25), limit in 1..40_u64) {
            let start: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut model = start.clone();
            let payloads: Vec<Vec<u8>> = changes.iter().enumerate().map(|(number, (_, start, end))| {
                vec![u8::try_from(number + 1).unwrap(); end - start]
            }).collect();
            let entries: Vec<Entry<'_>> = changes.iter().zip(&payloads).zip(1..).map(|(((is_zero, start, _), payload), lsn)| {
                let record = match is_zero {
                    false => Record::write(0, *start as u64, payload),
                    true => Record::range(if lsn % 2 == 0 { Op::Zero } else { Op::Trim }, 0, *start as u64, payload.len() as u64),
                };
                Entry { lsn: Lsn(lsn), time: 7, record }
            }).collect();
            let mut left = &entries[..];
            let mut begin = start;
            while let Some(first) = left.first() {
                let limits = CheckpointLimits { versions: limit, partial: 3, others: 5, marks: 1 };
                let mut surveyor = Surveyor::new(first.lsn, limits);
                let taken = left.iter().take_while(|entry| surveyor.push(entry)).count();
                let survey = surveyor.finish();
                prop_assert!(0 < taken && survey.end.0 == first.lsn.0 + taken as u64);
                prop_assert!(taken == 1 || survey.versions <= limit && survey.partial.len() <= 3);
                let mut applied = Applied { start: begin.clone(), now: begin, versions: Vec::new(), taken: 0 };
                let mut cutter = Cutter::new(&survey);
                for entry in &left[..taken] {
                    cutter.push(entry, &mut applied).unwrap();
                    let range = Range { start: entry.record.offset, end: entry.record.offset + entry.record.len };
                    let (at, end) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
                    if entry.record.op == Op::Write {
                        model[at..end].copy_from_slice(entry.record.payload);
                    } else {
                        model[at..end].fill(0);
                    }
                    prop_assert!(applied.now == model);
                }
                prop_assert_eq!((applied.versions.len() as u64, applied.taken as u64), (survey.versions, survey.versions));
                begin = applied.now;
                left = &left[taken..];
            }
        }
    }
}
