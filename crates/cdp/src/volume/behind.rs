//! The bitmap of extents that are behind: their bytes in the volume may differ from those in the history.
//!
//! An extent is marked, durably, before the volume is changed without a record. Its mark goes when the history has its bytes again. A mark
//! that is left for too long costs a comparison, one that is lost would hide a change, so every doubt counts as a mark.
//!
//! The file is an array of pages, each with two slots that are written in turn. A slot has a number that ascends and a checksum: a torn
//! write leaves the other slot, which lacks only marks that nobody relies on. A page without a whole slot counts as marked.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

/// Bytes of an extent.
pub const BEHIND_BYTES: u64 = 64 << 10;

const MAGIC: [u8; 8] = *b"onefoldb";
const SLOT_BYTES: usize = 4096;
/// Magic, number of the slot, page, checksum, bits of the file.
const HEADER_BYTES: usize = 32;
const SUM: Range<usize> = 20..24;
/// Words of marks in a page.
const PAGE_WORDS: usize = (SLOT_BYTES - HEADER_BYTES) / 8;
/// Marks in a page: those of 2 GiB of a volume.
const PAGE_BITS: u64 = PAGE_WORDS as u64 * 64;

/// A range of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRange {
    /// Number of the volume in its group.
    pub volume: u16,
    /// Bytes.
    pub bytes: Range<u64>,
}

/// Position of the marks of a volume.
#[derive(Clone, Copy, Debug)]
struct VolumeBits {
    first: u64,
    size: u64,
}

impl VolumeBits {
    fn end(&self) -> u64 {
        self.first + self.size.div_ceil(BEHIND_BYTES)
    }
}

#[derive(Debug)]
struct State {
    /// Marks that are durable, and some more that were cleared in memory only.
    words: Vec<u64>,
    /// Number of the last slot of each page.
    numbers: Vec<u64>,
    /// Marked extents.
    count: u64,
    /// Bits that wait to be marked.
    wanted: Vec<Range<u64>>,
    /// Pages of which the file has marks that are cleared.
    stale: BTreeSet<usize>,
    is_writing: bool,
    failed: Option<Error>,
}

/// The bitmap of a group. Any number of threads may use it.
#[derive(Debug)]
pub struct BehindMap {
    file: Arc<dyn DiskFile>,
    volumes: Vec<VolumeBits>,
    /// Bits of all extents; one more says that the gap is in the history.
    bits: u64,
    state: Mutex<State>,
    changed: Condvar,
}

fn layout(sizes: &[u64]) -> (Vec<VolumeBits>, u64) {
    let mut first = 0;
    let mut volumes = Vec::with_capacity(sizes.len());
    for &size in sizes {
        let volume = VolumeBits { first, size };
        first = volume.end();
        volumes.push(volume);
    }
    (volumes, first)
}

fn pages(bits: u64) -> usize {
    usize::try_from((bits + 1).div_ceil(PAGE_BITS)).expect("a bitmap fits into memory")
}

fn encode(number: u64, page: usize, bits: u64, words: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&u32::try_from(page).expect("pages are few").to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&bits.to_le_bytes());
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let sum = crc32c::crc32c(&out);
    if let Some(field) = out.get_mut(SUM) {
        field.copy_from_slice(&sum.to_le_bytes());
    }
    out
}

/// Decodes a slot into its number and its marks; `None` if it is torn, or of another file.
fn decode(bytes: &mut [u8], page: usize, bits: u64) -> Option<(u64, Vec<u64>)> {
    let sum = bytes.get_mut(SUM)?;
    let stored = u32::from_le_bytes((&*sum).try_into().ok()?);
    sum.fill(0);
    let integer = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let is_whole = bytes.len() == SLOT_BYTES
        && crc32c::crc32c(bytes) == stored
        && bytes.get(..8)? == MAGIC
        && integer(16)? == page as u64
        && integer(24)? == bits;
    let words = bytes.get(HEADER_BYTES..)?.as_chunks::<8>().0;
    is_whole.then(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect()).zip(integer(8)).map(|(a, b)| (b, a))
}

fn word_of(bit: u64) -> (usize, u64) {
    (usize::try_from(bit / 64).expect("a bitmap fits into memory"), 1 << (bit % 64))
}

fn page_of(bit: u64) -> usize {
    usize::try_from(bit / PAGE_BITS).expect("a bitmap fits into memory")
}

impl State {
    fn has(&self, bit: u64) -> bool {
        let (word, mask) = word_of(bit);
        self.words.get(word).is_some_and(|word| word & mask != 0)
    }

    fn set(words: &mut [u64], bits: Range<u64>) -> u64 {
        let mut new = 0;
        for bit in bits {
            let (word, mask) = word_of(bit);
            let Some(word) = words.get_mut(word) else { continue };
            new += u64::from(*word & mask == 0);
            *word |= mask;
        }
        new
    }

    /// Returns the first bit from one on that is set, or is not.
    fn find(&self, from: u64, end: u64, is_set: bool) -> Option<u64> {
        let mut bit = from;
        while bit < end {
            let (at, _) = word_of(bit);
            let word = self.words.get(at).copied().unwrap_or(0);
            let word = if is_set { word } else { !word } >> (bit % 64);
            if word != 0 {
                return Some(bit + u64::from(word.trailing_zeros())).filter(|bit| *bit < end);
            }
            bit = (bit / 64 + 1) * 64;
        }
        None
    }
}

impl BehindMap {
    /// Memory of a bitmap, in bytes: 2 MiB for each TiB of the volumes, and pages on their way to the file.
    pub fn memory_bytes(sizes: &[u64]) -> usize {
        let pages = pages(layout(sizes).1);
        pages * (PAGE_WORDS * 8 + 8 + size_of::<usize>()) + pages * SLOT_BYTES
    }

    /// Creates the bitmap of a new group with volumes of these sizes; all their extents are marked, or none.
    pub fn create(disk: &dyn Disk, path: &Path, sizes: &[u64], is_marked: bool) -> Result<()> {
        let bits = layout(sizes).1;
        let file = disk.create(path)?;
        for page in 0..pages(bits) {
            let mut words = vec![0; PAGE_WORDS];
            if is_marked {
                let first = page as u64 * PAGE_BITS;
                State::set(&mut words, 0..bits.saturating_sub(first).min(PAGE_BITS));
            }
            for slot in 0..2 {
                file.write_at(offset(page, slot), &encode(slot, page, bits, &words))?;
            }
        }
        file.sync()
    }

    /// Opens the bitmap of a group.
    pub fn open(disk: &dyn Disk, path: &Path, sizes: &[u64]) -> Result<Self> {
        if !disk.exists(path)? {
            return Err(Error::damaged(disk.display(path), "it is missing: what the volumes have more is not known"));
        }
        let (volumes, bits) = layout(sizes);
        let file = disk.open(path, Access::ReadWrite)?;
        let pages = pages(bits);
        if file.len()? != (pages * 2 * SLOT_BYTES) as u64 {
            return Err(Error::damaged(disk.display(path), "its length does not fit the volumes"));
        }
        let (mut words, mut numbers) = (Vec::with_capacity(pages * PAGE_WORDS), Vec::with_capacity(pages));
        let mut slot_bytes = vec![0; SLOT_BYTES];
        for page in 0..pages {
            let mut newest = None;
            for slot in 0..2 {
                file.read_at(offset(page, slot), &mut slot_bytes)?;
                newest = newest.max(decode(&mut slot_bytes, page, bits));
            }
            let (number, found) = newest.unwrap_or_else(|| {
                let mut all = vec![0; PAGE_WORDS];
                let first = page as u64 * PAGE_BITS;
                State::set(&mut all, 0..bits.saturating_sub(first).min(PAGE_BITS));
                (0, all)
            });
            numbers.push(number);
            words.extend(found);
        }
        let mut state = State {
            words,
            numbers,
            count: 0,
            wanted: Vec::new(),
            stale: BTreeSet::new(),
            is_writing: false,
            failed: None,
        };
        let ones: u64 = state.words.iter().map(|word| u64::from(word.count_ones())).sum();
        state.count = ones - u64::from(state.has(bits));
        // Marks that were read may be in the page cache only.
        let marked = (0..pages).filter(|page| {
            state.words.get(page * PAGE_WORDS..(page + 1) * PAGE_WORDS).is_some_and(|words| words != [0; PAGE_WORDS])
        });
        state.stale = marked.collect();
        let map = Self { file, volumes, bits, state: Mutex::new(state), changed: Condvar::new() };
        map.persist()?;
        Ok(map)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volume(&self, number: u16) -> VolumeBits {
        *self.volumes.get(usize::from(number)).expect("volumes of a group have numbers")
    }

    fn bits_of(&self, volume: u16, range: &Range<u64>) -> Range<u64> {
        let of = self.volume(volume);
        (of.first + range.start / BEHIND_BYTES).min(of.end())
            ..(of.first + range.end.div_ceil(BEHIND_BYTES)).min(of.end())
    }

    /// Returns the bytes of bits of one volume.
    fn bytes_of(&self, volume: u16, bits: &Range<u64>) -> Range<u64> {
        let of = self.volume(volume);
        let start = (bits.start - of.first) * BEHIND_BYTES;
        start..((bits.end - of.first) * BEHIND_BYTES).min(of.size)
    }

    /// Marks the extents of a range of a volume. They are marked durably when this returns; only new marks are written.
    pub fn mark(&self, volume: u16, range: Range<u64>) -> Result<()> {
        self.set(self.bits_of(volume, &range))
    }

    fn set(&self, bits: Range<u64>) -> Result<()> {
        let mut state = self.lock();
        let mut is_wanted = false;
        loop {
            if state.find(bits.start, bits.end, false).is_none() {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if !is_wanted {
                state.wanted.push(bits.clone());
                is_wanted = true;
            }
            state = self.write_or_wait(state);
        }
    }

    /// Writes what is wanted and what is stale, or waits for the thread that writes. Marks that arrive meanwhile are written together.
    fn write_or_wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.is_writing {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        let wanted = std::mem::take(&mut state.wanted);
        let mut pages = std::mem::take(&mut state.stale);
        for bits in wanted.iter().filter(|bits| !bits.is_empty()) {
            pages.extend(page_of(bits.start)..=page_of(bits.end - 1));
        }
        let mut writes = Vec::with_capacity(pages.len());
        for &page in &pages {
            let first = page as u64 * PAGE_BITS;
            let mut words = state.words.get(page * PAGE_WORDS..(page + 1) * PAGE_WORDS).unwrap_or_default().to_vec();
            for bits in &wanted {
                let of_page = bits.start.max(first)..bits.end.min(first + PAGE_BITS);
                State::set(&mut words, of_page.start.saturating_sub(first)..of_page.end.saturating_sub(first));
            }
            let Some(number) = state.numbers.get_mut(page) else { continue };
            *number += 1;
            writes.push((offset(page, *number % 2), encode(*number, page, self.bits, &words)));
        }
        drop(state);
        let written = writes.iter().try_for_each(|(offset, bytes)| self.file.write_at(*offset, bytes));
        let outcome = written.and_then(|()| self.file.sync_data());
        let mut state = self.lock();
        state.is_writing = false;
        match outcome {
            Ok(()) => {
                for bits in wanted {
                    let of_extents = bits.start..bits.end.min(self.bits);
                    let new = State::set(&mut state.words, of_extents);
                    state.count += new;
                    State::set(&mut state.words, bits);
                }
            }
            Err(error) => {
                state.failed.get_or_insert(error);
            }
        }
        self.changed.notify_all();
        state
    }

    /// Clears the marks of extents that lie wholly in a range. The file follows with [`BehindMap::persist`], or with later marks: until
    /// then, they are marked again at the next opening.
    pub fn clear(&self, volume: u16, range: Range<u64>) {
        let of = self.volume(volume);
        let end = if range.end == of.size { of.end() } else { of.first + range.end / BEHIND_BYTES };
        self.unset(of.first + range.start.div_ceil(BEHIND_BYTES)..end);
    }

    fn unset(&self, bits: Range<u64>) {
        let mut state = self.lock();
        let mut bit = bits.start;
        while let Some(found) = state.find(bit, bits.end, true) {
            let (word, mask) = word_of(found);
            if let Some(word) = state.words.get_mut(word) {
                *word &= !mask;
            }
            state.count -= u64::from(found < self.bits);
            state.stale.insert(page_of(found));
            bit = found + 1;
        }
    }

    /// Brings the file up to date with marks that were cleared.
    pub fn persist(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.stale.is_empty() && !state.is_writing {
                return Ok(());
            }
            state = self.write_or_wait(state);
        }
    }

    /// Notes, durably, that the history has a gap over all volumes, so that it needs none for further marks; or that it has not.
    pub(super) fn set_announced(&self, is_announced: bool) -> Result<()> {
        if is_announced {
            return self.set(self.bits..self.bits + 1);
        }
        self.unset(self.bits..self.bits + 1);
        self.persist()
    }

    /// Returns true if the history has a gap over all volumes.
    pub(super) fn is_announced(&self) -> bool {
        self.lock().has(self.bits)
    }

    /// Returns true if no extent is marked.
    pub fn is_empty(&self) -> bool {
        self.lock().count == 0
    }

    /// Returns true if all bytes of a range are in marked extents.
    pub fn holds(&self, volume: u16, range: &Range<u64>) -> bool {
        let bits = self.bits_of(volume, range);
        self.lock().find(bits.start, bits.end, false).is_none()
    }

    /// Returns the bytes of the marked extents.
    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        let mut bytes = state.count * BEHIND_BYTES;
        for volume in &self.volumes {
            if volume.size % BEHIND_BYTES != 0 && state.has(volume.end() - 1) {
                bytes -= BEHIND_BYTES - volume.size % BEHIND_BYTES;
            }
        }
        bytes
    }

    /// Returns the first marked extents from a cursor on, at most `bytes_max` and of one volume, and moves the cursor after them. `None` at
    /// the end; the cursor is then at the beginning. A cursor begins with 0.
    pub fn next(&self, cursor: &mut u64, bytes_max: u64) -> Option<VolumeRange> {
        let state = self.lock();
        let Some(start) = state.find(*cursor, self.bits, true) else {
            *cursor = 0;
            return None;
        };
        let number = self.volumes.partition_point(|volume| volume.end() <= start);
        let volume = u16::try_from(number).expect("volumes have 16 bits");
        let most = (start + (bytes_max / BEHIND_BYTES).max(1)).min(self.volume(volume).end());
        let end = state.find(start, most, false).unwrap_or(most);
        *cursor = end;
        Some(VolumeRange { volume, bytes: self.bytes_of(volume, &(start..end)) })
    }

    /// Returns ranges of a volume that have all its marked extents, ascending and at most `ranges_max` of them: the smallest holes between
    /// them are closed.
    pub fn ranges(&self, volume: u16, ranges_max: usize) -> Vec<Range<u64>> {
        let of = self.volume(volume);
        let state = self.lock();
        let mut found: Vec<Range<u64>> = Vec::with_capacity(ranges_max + 1);
        let mut bit = of.first;
        while let Some(start) = state.find(bit, of.end(), true) {
            let end = state.find(start, of.end(), false).unwrap_or(of.end());
            found.push(start..end);
            bit = end;
            if ranges_max < found.len() {
                close_smallest_hole(&mut found);
            }
        }
        drop(state);
        found.iter().map(|bits| self.bytes_of(volume, bits)).collect()
    }

    /// Returns the first failure of a write or sync of the file, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failed.clone()
    }
}

fn offset(page: usize, slot: u64) -> u64 {
    (page as u64 * 2 + slot) * SLOT_BYTES as u64
}

fn close_smallest_hole(ranges: &mut Vec<Range<u64>>) {
    let hole = |at: &usize| ranges.get(at + 1).zip(ranges.get(*at)).map(|(next, range)| next.start - range.end);
    let Some(at) = (0..ranges.len().saturating_sub(1)).min_by_key(hole) else { return };
    let next = ranges.remove(at + 1);
    if let Some(range) = ranges.get_mut(at) {
        range.end = next.end;
    }
}

#[cfg(test)]
#[path = "behind_tests.rs"]
mod tests;
