//! Comparing volumes with their history, and recording what differs.

use onefold_engine::error::{Error, Result};

use crate::journal::{AppendError, Op, Record};
use crate::volume::activity::{EXTENT_BYTES, Extent};
use crate::volume::group::Group;
use crate::volume::requests::Mode;

/// Bytes that are compared at a time. Their records fit into one frame.
pub(super) const COMPARED_BYTES: usize = 1 << 20;
/// The unit of differences.
pub(super) const BLOCK_BYTES: usize = 4096;

/// Compares bytes that a volume holds, given by its number and an offset, with those that it had after the last record of the journal.
/// Appends the blocks that differ, as numbers from the offset on, in ascending order.
pub type FindDifferences<'a> = dyn FnMut(u16, u64, &[u8], &mut Vec<usize>) -> Result<()> + 'a;

/// Appends the blocks of two ranges of equal length that differ.
pub fn differing_blocks(found: &[u8], expected: &[u8], differing: &mut Vec<usize>) {
    let blocks = found.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES)).enumerate();
    differing.extend(blocks.filter(|(_, (found, expected))| found != expected).map(|(number, _)| number));
}

impl Group {
    /// Compares extents with the history after a power cut, and records what differs: the volume holds writes that the journal has lost.
    /// Returns the number of blocks that differed. Until this was done, no write is possible.
    ///
    /// Extents that are behind are not compared: their bytes are recorded in any case. What the journal has no space for is behind, too.
    pub fn compare(&self, suspect: &[Extent], find: &mut FindDifferences<'_>) -> Result<u64> {
        let (mut found, mut blocks) = (vec![0; COMPARED_BYTES], Vec::new());
        let mut differing = 0;
        for &Extent { volume, number } in suspect {
            let end = ((number + 1) * EXTENT_BYTES).min(self.origin(volume).size());
            let mut offset = number * EXTENT_BYTES;
            while offset < end {
                let len = usize::try_from(end - offset).unwrap_or(COMPARED_BYTES).min(COMPARED_BYTES);
                let found = &mut found[..len];
                if !self.behind.holds(volume, &(offset..offset + len as u64)) {
                    self.read_origin(volume, offset, found)?;
                    blocks.clear();
                    find(volume, offset, found, &mut blocks)?;
                    blocks.retain(|block| !self.behind.holds(volume, &block_range(offset, len, *block)));
                    if !blocks.is_empty() {
                        self.record_or_mark(volume, offset, found, &blocks)?;
                        differing += blocks.len() as u64;
                    }
                }
                offset += len as u64;
            }
        }
        let unsynced = |errno| Error::invalid(format!("the volumes cannot be synced: {errno:?}"));
        self.sync().map_err(unsynced)?;
        self.continue_behind()?;
        let mut state = self.requests.lock();
        state.log.begin_use(self.host.process().map_or([0; 16], |process| process.boot))?;
        state.is_usable = true;
        Ok(differing)
    }

    /// Marks extents as behind instead of comparing them after a power cut: nobody can say what the history holds. Their bytes are
    /// recorded again, after a gap. Until this or [`Group::compare`] was done, no write is possible.
    pub fn skip_comparison(&self, suspect: &[Extent]) -> Result<()> {
        for &Extent { volume, number } in suspect {
            let end = ((number + 1) * EXTENT_BYTES).min(self.origin(volume).size());
            self.behind.mark(volume, number * EXTENT_BYTES..end)?;
        }
        if !suspect.is_empty() {
            self.requests.begin_mode(Mode::Behind);
        }
        self.compare(&[], &mut |_, _, _, _| Ok(())).map(drop)
    }

    /// Fills a buffer from a volume itself.
    pub(super) fn read_origin(&self, volume: u16, offset: u64, into: &mut [u8]) -> Result<()> {
        let unreadable = |errno| Error::invalid(format!("volume {volume}: cannot be read at {offset}: {errno:?}"));
        self.origin(volume).read(offset, into).map_err(unreadable)
    }

    /// Records blocks, or marks them as behind while nothing can be recorded. No request is in progress.
    fn record_or_mark(&self, volume: u16, offset: u64, found: &[u8], blocks: &[usize]) -> Result<()> {
        if self.requests.lock().mode == Mode::Recording {
            match self.record_blocks(volume, offset, found, blocks) {
                Err(AppendError::Full) => {}
                outcome => return outcome.map_err(|error| Error::invalid(error.to_string())),
            }
        }
        for block in blocks {
            self.behind.mark(volume, block_range(offset, found.len(), *block))?;
        }
        self.requests.begin_mode(Mode::Behind);
        Ok(())
    }

    /// Records blocks of a range, as they are in the volume now. A crash keeps all of these records or none.
    pub(super) fn record_blocks(
        &self,
        volume: u16,
        offset: u64,
        found: &[u8],
        blocks: &[usize],
    ) -> Result<(), AppendError> {
        let len = found.len() as u64;
        let mut records = Vec::with_capacity(blocks.len() + 2);
        records.push(Record::range(Op::ResyncBegin, volume, offset, len));
        for number in blocks {
            let start = number * BLOCK_BYTES;
            let end = found.len().min(start + BLOCK_BYTES);
            records.push(Record::write(volume, offset + start as u64, &found[start..end]));
        }
        records.push(Record::range(Op::ResyncEnd, volume, offset, len));
        let last = self.append_now(&records)?;
        self.journal.commit(last)
    }
}

/// Returns the bytes of a block of a range.
fn block_range(offset: u64, len: usize, block: usize) -> std::ops::Range<u64> {
    let start = block * BLOCK_BYTES;
    offset + start as u64..offset + len.min(start + BLOCK_BYTES) as u64
}
