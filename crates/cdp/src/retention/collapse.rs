//! From the index of a checkpoint to one that leads to a few moments: of each block, the last contents before each of them.

use crate::checkpoint::Contents;
use crate::history::{Change, ExtentMap, HistoryEntry, IndexKind, IndexWriter};
use crate::journal::Lsn;

/// A moment that is kept: its record and its time.
type Kept = (Lsn, u64);

/// An index, and the versions of the former data stream that it names, in order.
#[derive(Debug)]
pub(super) struct Collapsed {
    pub(super) index: Vec<u8>,
    pub(super) versions: Vec<u64>,
}

/// Takes the entries of an index in order.
#[derive(Debug)]
pub(super) struct Collapser<'a> {
    first: Lsn,
    last: Kept,
    /// Moments before the last one whose entries are not complete.
    kept: &'a [Kept],
    /// Contents that blocks got since the moment before, by volume.
    blocks: Vec<ExtentMap<Contents>>,
    /// Gaps and comparisons since then.
    gaps: Vec<HistoryEntry>,
    /// The flush that the next moment follows, and the one that the last does.
    flush: Option<HistoryEntry>,
    last_flush: Option<HistoryEntry>,
    index: IndexWriter,
    /// Versions of the former stream so far.
    taken: u64,
    versions: Vec<u64>,
}

impl<'a> Collapser<'a> {
    /// Starts with the first and the last record of a checkpoint, and the moments that are kept before the last, ascending.
    pub(super) fn new(first: Lsn, last: Kept, kept: &'a [Kept], volumes: usize) -> Self {
        Self {
            first,
            last,
            kept,
            blocks: (0..volumes).map(|_| ExtentMap::default()).collect(),
            gaps: Vec::new(),
            flush: None,
            last_flush: None,
            index: IndexWriter::of_kind(IndexKind::Thinned, first),
            taken: 0,
            versions: Vec::new(),
        }
    }

    /// Takes an entry.
    pub(super) fn push(&mut self, entry: &HistoryEntry) {
        while let Some((&moment, rest)) = self.kept.split_first()
            && moment.0 < entry.lsn
        {
            self.emit(moment);
            self.kept = rest;
        }
        let blocks = entry.block..entry.block + entry.count;
        let mut set = |contents| {
            // No moment but the last needs what follows all others, and that has images.
            if !self.kept.is_empty()
                && let Some(map) = self.blocks.get_mut(usize::from(entry.volume))
            {
                map.insert(blocks.clone(), contents);
            }
        };
        match entry.change {
            Change::Data => {
                set(Contents::Version(self.taken));
                self.taken += entry.count;
            }
            Change::Zero => set(Contents::Hole),
            Change::Flush if self.kept.first().is_some_and(|(lsn, _)| *lsn == entry.lsn) => self.flush = Some(*entry),
            Change::Flush if entry.lsn == self.last.0 => self.last_flush = Some(*entry),
            Change::Flush | Change::Kept => {}
            // Those of earlier records, with which an index begins.
            Change::Gap | Change::ResyncBegin if entry.lsn == self.first => self.index.push(entry),
            Change::Gap | Change::ResyncBegin | Change::ResyncEnd => self.gaps.push(*entry),
        }
    }

    /// Ends the entries of a moment.
    fn emit(&mut self, (lsn, time): Kept) {
        for gap in self.gaps.drain(..) {
            self.index.push(&HistoryEntry { lsn, time, ..gap });
        }
        for (volume, map) in (0..).zip(&mut self.blocks) {
            for (blocks, contents) in std::mem::take(map).iter() {
                let count = blocks.end - blocks.start;
                let change = match contents {
                    Contents::Hole => Change::Zero,
                    Contents::Version(first) => {
                        self.versions.extend(first..first + count);
                        Change::Data
                    }
                };
                self.index.push(&HistoryEntry { lsn, time, volume, change, block: blocks.start, count });
            }
        }
        let kept = HistoryEntry { lsn, time, volume: 0, change: Change::Kept, block: 0, count: 0 };
        self.index.push(&self.flush.take().unwrap_or(kept));
    }

    /// Ends the index.
    pub(super) fn finish(mut self) -> Collapsed {
        for moment in std::mem::take(&mut self.kept) {
            self.emit(*moment);
        }
        self.flush = self.last_flush.take();
        self.blocks.clear();
        self.emit(self.last);
        Collapsed { index: self.index.take(), versions: self.versions }
    }
}
