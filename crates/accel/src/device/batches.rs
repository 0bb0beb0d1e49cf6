//! Batches on a device whose results are checked before anybody takes them.
//!
//! A stale or wrong name could declare a new chunk a duplicate, and lose it. So each result must carry the number of its batch, must not have
//! bytes of the memory before, and a sample of it is computed again by the processor.

use std::fmt;
use std::sync::Arc;

use super::queue::{Limits, Listed, Named, POISON, POISON_WORD, Queue, Rule, Span, TILE_BYTES, Wait};
use super::{Device, Fault, FaultKind, Frozen};
use crate::boundary::{Finder, WINDOW};

/// Chunks of a block of which the processor names one again, at most.
const SAMPLED: usize = 128;

/// How much of the results is computed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Check {
    /// One tile of each batch; one chunk of each block, and of each 128.
    #[default]
    Sample,
    /// All.
    All,
}

/// Names chunks on the processor.
pub type Namer = Arc<dyn Fn(&[&[u8]]) -> Vec<[u8; 32]> + Send + Sync>;

/// Bytes of a stream in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Number of the block in its batch.
    pub block: usize,
    /// First byte in the block.
    pub start: usize,
    /// Number of bytes.
    pub len: u32,
    /// Bytes of the stream right before `start` in the block.
    pub halo: u32,
}

/// A batch in flight. Numbers of batches are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Batch(u32);

#[derive(Debug)]
struct InFlight {
    batch: Batch,
    blocks: Vec<Arc<Frozen>>,
    /// Chunks that are being named.
    spans: Vec<Span>,
    joined: Vec<u8>,
}

/// A queue of a device, and the checks of its results.
pub struct Batches {
    queue: Box<dyn Queue>,
    limits: Limits,
    slots: usize,
    finder: Option<Finder>,
    namer: Namer,
    check: Check,
    /// Chooses the samples.
    key: [u8; 32],
    last: u32,
    in_flight: Vec<Option<InFlight>>,
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("queue", &self.queue).field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn wrong(message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Wrong, message)
}

impl Batches {
    /// Opens a queue. `namer` is what [`Rule::hash`] computes, on the processor. `key` is random and nobody else knows it: it chooses the samples.
    pub fn open(
        device: &dyn Device,
        rule: &Rule,
        limits: Limits,
        (namer, check, key): (Namer, Check, [u8; 32]),
    ) -> Result<Self, Fault> {
        limits.check();
        let finder = rule.search.as_ref().map(|search| Finder::new(&search.table, search.threshold));
        let slots = rule.search.as_ref().map_or(0, super::Search::slots);
        let queue = device.open(rule, &limits)?;
        let in_flight = (0..limits.batches).map(|_| None).collect();
        Ok(Self { queue, limits, slots, finder, namer, check, key, last: 0, in_flight })
    }

    /// Returns the sizes.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns true if a batch can begin.
    pub fn has_free_position(&self) -> bool {
        self.in_flight.iter().any(Option::is_none)
    }

    /// Begins a batch. A position must be free, and the blocks must be within the limits.
    pub fn begin(&mut self, blocks: Vec<Arc<Frozen>>) -> Result<Batch, Fault> {
        let longest = blocks.iter().map(|block| block.len()).max().unwrap_or_default();
        assert!(blocks.len() <= self.limits.blocks && longest <= self.limits.block_bytes, "a batch within its limits");
        let position = self.in_flight.iter().position(Option::is_none).expect("a position is free");
        // The memory before a result reads as this number.
        let next = self.last.wrapping_add(1);
        self.last = if next == POISON_WORD { next.wrapping_add(1) } else { next };
        let batch = Batch(self.last);
        self.queue.search(position, batch.0, &blocks)?;
        let in_flight = InFlight { batch, blocks, spans: Vec::new(), joined: Vec::new() };
        if let Some(free) = self.in_flight.get_mut(position) {
            *free = Some(in_flight);
        }
        Ok(batch)
    }

    fn find(&self, batch: Batch) -> (usize, &InFlight) {
        let found = self.in_flight.iter().enumerate().find_map(|(position, in_flight)| {
            in_flight.as_ref().filter(|in_flight| in_flight.batch == batch).map(|in_flight| (position, in_flight))
        });
        found.expect("the batch is in flight")
    }

    /// Waits for the candidates of a batch and returns those of some ranges, as [`Finder::candidates`] lists them.
    pub fn candidates(&mut self, batch: Batch, ranges: &[Range]) -> Result<Vec<Vec<u32>>, Fault> {
        let Some(finder) = self.finder.clone() else { return Ok(vec![Vec::new(); ranges.len()]) };
        let (position, _) = self.find(batch);
        let listed =
            self.queue.candidates(position, Wait::Yes)?.ok_or_else(|| wrong("the device has no candidates"))?;
        let (_, in_flight) = self.find(batch);
        let tiles = Tiles { listed: &listed, slots: self.slots };
        tiles.check(batch.0, in_flight.blocks.len() * self.limits.block_bytes / TILE_BYTES)?;
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let bytes = in_flight.blocks.get(range.block).map_or(&[][..], |block| block);
            found.push(tiles.candidates(&finder, bytes, *range, self.limits.block_bytes));
        }
        self.check_candidates(&finder, in_flight, ranges, &found)?;
        Ok(found)
    }

    /// Searches a tile of one range again, or everything.
    fn check_candidates(
        &self,
        finder: &Finder,
        in_flight: &InFlight,
        ranges: &[Range],
        found: &[Vec<u32>],
    ) -> Result<(), Fault> {
        let is_right = |range: &Range, found: &[u32], from: u32, until: u32| {
            let bytes = in_flight.blocks.get(range.block).map_or(&[][..], |block| block);
            let first = found.partition_point(|at| *at <= from);
            let last = found.partition_point(|at| *at <= until);
            found.get(first..last) == Some(&searched(finder, bytes, *range, from, until)[..])
        };
        let differs = || wrong("the device's candidates differ from those of the processor");
        if self.check == Check::All {
            let mut all = ranges.iter().zip(found);
            return all.all(|(range, found)| is_right(range, found, 0, range.len)).then_some(()).ok_or_else(differs);
        }
        let total: u64 = ranges.iter().map(|range| u64::from(range.len)).sum();
        if total == 0 {
            return Ok(());
        }
        let mut at = self.draw(in_flight.batch, 0) % total;
        for (range, found) in ranges.iter().zip(found) {
            if u64::from(range.len) <= at {
                at -= u64::from(range.len);
                continue;
            }
            let tile = u32::try_from(TILE_BYTES).unwrap_or(u32::MAX);
            let from = u32::try_from(at).unwrap_or(0) / tile * tile;
            let until = range.len.min(from.saturating_add(tile));
            return is_right(range, found, from, until).then_some(()).ok_or_else(differs);
        }
        Ok(())
    }

    /// Draws a number that nobody can foresee without the key.
    fn draw(&self, batch: Batch, number: u64) -> u64 {
        let mut input = [0; 12];
        input[..4].copy_from_slice(&batch.0.to_le_bytes());
        input[4..].copy_from_slice(&number.to_le_bytes());
        let hash = blake3::keyed_hash(&self.key, &input);
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Names chunks of a batch: at most [`Limits::chunks_max`], with at most [`Limits::joined_bytes`] in no single block. Once for each batch.
    pub fn name(&mut self, batch: Batch, spans: Vec<Span>, joined: Vec<u8>) -> Result<(), Fault> {
        assert!(spans.len() <= self.limits.chunks_max() && joined.len() <= self.limits.joined_bytes, "within limits");
        let (position, in_flight) = self.find(batch);
        assert!(in_flight.spans.is_empty(), "a batch is named once");
        for span in &spans {
            let bytes = self.limits.bytes_of(*span, &in_flight.blocks, &joined);
            assert!(bytes.is_some(), "chunks lie in their batch");
        }
        self.queue.name(position, batch.0, &spans, &joined)?;
        if let Some(Some(in_flight)) = self.in_flight.get_mut(position) {
            (in_flight.spans, in_flight.joined) = (spans, joined);
        }
        Ok(())
    }

    /// Takes the names of a batch's chunks, in their order, and ends the batch. `None` if they are not there yet.
    pub fn names(&mut self, batch: Batch, wait: Wait) -> Result<Option<Vec<[u8; 32]>>, Fault> {
        let (position, _) = self.find(batch);
        let Some(Named { names, number }) = self.queue.names(position, wait)? else { return Ok(None) };
        let (_, in_flight) = self.find(batch);
        if number != batch.0 {
            return Err(wrong(format!("the device returned names of batch {number} for batch {}", batch.0)));
        }
        if names.len() != in_flight.spans.len() {
            return Err(wrong("the device returned another number of names"));
        }
        if names.contains(&[POISON; 32]) {
            return Err(wrong("the device left out a name"));
        }
        self.check_names(in_flight, &names)?;
        self.end(batch)?;
        Ok(Some(names))
    }

    /// Chooses a chunk of each block, and of each [`SAMPLED`] chunks: a block that did not reach the device is found.
    fn sample(&self, in_flight: &InFlight) -> Vec<usize> {
        let block_of = |span: &Span| span.start as usize / self.limits.block_bytes;
        let groups = in_flight.spans.chunk_by(|one, next| block_of(one) == block_of(next));
        let (mut chosen, mut start) = (Vec::new(), 0);
        for part in groups.flat_map(|group| group.chunks(SAMPLED)) {
            let drawn = self.draw(in_flight.batch, 1 + start as u64) % part.len() as u64;
            chosen.push(start + usize::try_from(drawn).unwrap_or(0));
            start += part.len();
        }
        chosen
    }

    /// Names a sample again, or all.
    fn check_names(&self, in_flight: &InFlight, names: &[[u8; 32]]) -> Result<(), Fault> {
        let chosen: Vec<usize> = match self.check {
            Check::All => (0..names.len()).collect(),
            Check::Sample => self.sample(in_flight),
        };
        let chunk = |number: &usize| {
            let span = in_flight.spans.get(*number)?;
            self.limits.bytes_of(*span, &in_flight.blocks, &in_flight.joined)
        };
        let chunks: Vec<&[u8]> =
            chosen.iter().map(|number| chunk(number).expect("chunks lie in their batch")).collect();
        let again = (self.namer)(&chunks);
        let mut all = chosen.iter().zip(again);
        if all.all(|(number, again)| names.get(*number) == Some(&again)) {
            Ok(())
        } else {
            Err(wrong("the device's names differ from those of the processor"))
        }
    }

    /// Ends a batch whose results nobody needs any more.
    pub fn end(&mut self, batch: Batch) -> Result<(), Fault> {
        let (position, _) = self.find(batch);
        self.queue.release(position)?;
        if let Some(ended) = self.in_flight.get_mut(position) {
            *ended = None;
        }
        Ok(())
    }
}

/// Candidates of a range among the positions after `from` up to `until` of it, found by the processor.
fn searched(finder: &Finder, bytes: &[u8], range: Range, from: u32, until: u32) -> Vec<u32> {
    let before = (range.halo as usize + from as usize).min(WINDOW - 1);
    let start = range.start + from as usize;
    let part = bytes.get(start - before..range.start + until as usize).unwrap_or_default();
    let mut found = Vec::new();
    finder.candidates(part, before, &mut found);
    for at in &mut found {
        *at += from;
    }
    found
}

/// Candidates as a device lists them.
struct Tiles<'a> {
    listed: &'a Listed,
    slots: usize,
}

impl Tiles<'_> {
    fn check(&self, number: u32, tiles: usize) -> Result<(), Fault> {
        let Listed { counts, slots, number: found } = self.listed;
        if *found != number {
            return Err(wrong(format!("the device returned candidates of batch {found} for batch {number}")));
        }
        if counts.len() != tiles || slots.len() != tiles * self.slots {
            return Err(wrong("the device returned another number of tiles"));
        }
        let is_listed = |(count, slots): (&u32, &[u16])| {
            let listed = slots.get(..self.slots.min(*count as usize)).unwrap_or_default();
            *count as usize <= TILE_BYTES
                && listed.is_sorted_by(|a, b| a < b)
                && listed.last().is_none_or(|last| usize::from(*last) < TILE_BYTES)
        };
        if counts.iter().zip(slots.chunks(self.slots.max(1))).all(is_listed) {
            Ok(())
        } else {
            Err(wrong("the device returned candidates that are none of a tile"))
        }
    }

    fn candidates(&self, finder: &Finder, bytes: &[u8], range: Range, block_bytes: usize) -> Vec<u32> {
        let Range { start, len, halo, .. } = range;
        // The window of the first positions begins before the stream.
        let own = u32::try_from(WINDOW - 1).unwrap_or(0).saturating_sub(halo).min(len);
        let mut found = searched(finder, bytes, range, 0, own);
        let (mut at, end) = (start + own as usize, start + len as usize);
        let first_tile = range.block * block_bytes / TILE_BYTES;
        let offset = |at: usize| u32::try_from(at - start).unwrap_or(u32::MAX);
        while at < end {
            let tile = at / TILE_BYTES;
            let until = end.min((tile + 1) * TILE_BYTES);
            let count = self.listed.counts.get(first_tile + tile).copied().unwrap_or_default() as usize;
            if self.slots < count {
                found.extend(searched(finder, bytes, range, offset(at), offset(until)));
            } else {
                let first = (first_tile + tile) * self.slots;
                let slots = self.listed.slots.get(first..first + count).unwrap_or_default();
                let positions = slots.iter().map(|slot| tile * TILE_BYTES + usize::from(*slot));
                found.extend(
                    positions.filter(|position| (at..until).contains(position)).map(|position| offset(position) + 1),
                );
            }
            at = until;
        }
        found
    }
}
