//! The log: fingerprints in the order in which their chunks were first seen (section 5b of the paper).
//!
//! Neighbors in the stream are neighbors in the log, so that one copy prefetches the continuation of the stream. An entry is
//! half a cache line:
//!
//! | Word | Contents |
//! |---|---|
//! | 0, 1 | first 16 bytes of the fingerprint |
//! | 2 | next 4 bytes, and 32 bits of check over them and the position |
//! | 3 | state, replaced by one atomic store |
//!
//! The first three are written once. The state names the container of the chunk, or the sequence under which this session declared it
//! unique. Otherwise the chunk is not stored, and its next occurrence reuses the entry.

use onefold_engine::Result;
use onefold_engine::kv::{Key, Ordinal};
use onefold_engine::random::mix64;
use onefold_engine::types::Sequence;

use crate::mapped::medium::Medium;
use crate::mapped::segments::{ENTRY_BYTES, ENTRY_WORDS, Segments};
use crate::mapped::space::{LOG_AT, Space};

/// Entries of one read of a scan of the log.
pub const BATCH_ENTRIES: usize = 128;
/// Most entries that are appended between two fences.
pub const UNFENCED_MAX: u64 = 64;
/// Positions have fewer bits than this.
pub const POSITION_BITS: u32 = 40;
/// Sequences of pending chunks have fewer bits than this.
pub const SEQUENCE_BITS: u32 = 40;
/// Sessions of one opening are fewer than this.
pub const EPOCHS: u32 = 1 << 22;

const RECORDED: u64 = 1 << 63;
const PENDING: u64 = 1 << 62;
const STATE_AT: u64 = 24;

/// Name of a chunk, in the words of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Bytes 0..8, big-endian: these choose a line of the cache.
    pub head: u64,
    /// Bytes 8..16: these choose the bucket.
    pub middle: u64,
    /// Bytes 16..20: these are the tag.
    pub tail: u32,
}

impl From<&Key> for Name {
    fn from(key: &Key) -> Self {
        Self { head: key.head(), middle: key.middle(), tail: key.tail() }
    }
}

impl Name {
    /// Returns the bytes.
    pub fn key(&self) -> Key {
        let mut bytes = [0; onefold_engine::kv::KEY_LEN];
        bytes[..8].copy_from_slice(&self.head.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.middle.to_le_bytes());
        bytes[16..].copy_from_slice(&self.tail.to_le_bytes());
        Key(bytes)
    }

    fn check(&self, position: u64) -> u64 {
        let bits = mix64(self.head ^ mix64(self.middle ^ mix64(u64::from(self.tail) << 32 ^ position)));
        // Never the check of an empty entry.
        bits >> 32 | 1
    }

    /// Returns true if an entry belongs to this chunk.
    #[inline]
    pub fn is_of(&self, entry: &[u64]) -> bool {
        matches!(*entry, [head, middle, low, ..] if head == self.head && middle == self.middle && low & 0xffff_ffff == u64::from(self.tail))
    }

    /// Returns the words of an entry.
    pub fn entry(&self, position: u64, state: State) -> [u64; ENTRY_WORDS] {
        [self.head, self.middle, self.check(position) << 32 | u64::from(self.tail), state.word(position)]
    }

    /// Returns the name in an entry; `None` if the entry is damaged, or was written for another position.
    pub fn of_entry(entry: &[u64], position: u64) -> Option<Self> {
        let &[head, middle, low, _] = entry else { return None };
        let tail = u32::try_from(low & 0xffff_ffff).ok()?;
        let name = Self { head, middle, tail };
        (name.check(position) == low >> 32).then_some(name)
    }
}

/// State of an entry's chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It is not stored.
    Dead,
    /// It was declared unique in a session of this opening, and is not recorded yet.
    Pending {
        /// Number of the session.
        epoch: u32,
        /// The chunk that was declared unique.
        sequence: Sequence,
    },
    /// It is in a container.
    Recorded(Ordinal),
}

impl State {
    fn check(position: u64, ordinal: u64) -> u64 {
        mix64(position ^ mix64(ordinal ^ RECORDED)) >> 33
    }

    /// Encodes the state for a position.
    pub fn word(self, position: u64) -> u64 {
        match self {
            Self::Dead => 0,
            Self::Pending { epoch, sequence } => PENDING | u64::from(epoch) << SEQUENCE_BITS | sequence.0,
            Self::Recorded(Ordinal(ordinal)) => {
                RECORDED | Self::check(position, ordinal.into()) << 32 | u64::from(ordinal)
            }
        }
    }

    /// Decodes the state of a position. An invalid word is dead: the index may miss a chunk, but never invents one.
    #[inline]
    pub fn of(word: u64, position: u64) -> Self {
        if word & RECORDED != 0 {
            let ordinal = word & 0xffff_ffff;
            let is_whole = Self::check(position, ordinal) == word >> 32 & 0x7fff_ffff;
            return match u32::try_from(ordinal) {
                Ok(ordinal) if is_whole => Self::Recorded(Ordinal(ordinal)),
                _ => Self::Dead,
            };
        }
        if word & PENDING == 0 {
            return Self::Dead;
        }
        let epoch = u32::try_from(word >> SEQUENCE_BITS & u64::from(EPOCHS - 1)).expect("22 bits");
        Self::Pending { epoch, sequence: Sequence(word & ((1 << SEQUENCE_BITS) - 1)) }
    }
}

/// An entry of the log that a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// Location in the cache.
    pub location: usize,
    /// Its position in the log.
    pub position: u64,
    /// Its last word, as it was when it was copied.
    pub state: u64,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    segments: Segments,
    len: u64,
    /// Entries up to here are durable.
    fenced: u64,
    /// Entries that are durable and in the table, as recorded in the first page.
    applied: u64,
    checkpoint_bits: u32,
}

impl Log {
    /// Starts an empty log.
    pub fn create<M: Medium>(space: &mut Space<M>) -> Result<Self> {
        let geometry = space.geometry();
        let segments = Segments::create(space, LOG_AT, geometry.log_bits)?;
        Ok(Self { segments, len: 0, fenced: 0, applied: 0, checkpoint_bits: geometry.checkpoint_bits })
    }

    /// Reads the regions of a log and the number of applied entries; `None` if they are damaged. [`Log::adopt`] finds the
    /// entries that follow.
    pub fn open<M: Medium>(space: &Space<M>) -> Option<Self> {
        let geometry = space.geometry();
        let segments = Segments::open(space, LOG_AT, geometry.log_bits)?;
        let applied = space.applied()?;
        let log = Self { segments, len: applied, fenced: applied, applied, checkpoint_bits: geometry.checkpoint_bits };
        (applied <= log.capacity()).then_some(log)
    }

    /// Returns its regions of the medium, with their bytes.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.regions()
    }

    fn capacity(&self) -> u64 {
        self.segments.capacity()
    }

    /// Returns how many entries there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of applied entries: durable, and in a durable table.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the offset of an entry on the medium.
    #[inline]
    pub fn offset_of(&self, position: u64) -> u64 {
        self.segments.offset_of(position)
    }

    /// Reads an entry that the next step waits for.
    #[inline]
    pub fn read<M: Medium>(&self, space: &mut Space<M>, position: u64) -> [u64; ENTRY_WORDS] {
        space.medium.miss(self.offset_of(position))
    }

    /// Copies the entries from a position on until `out` is full or the log ends; returns their number.
    pub fn copy<M: Medium>(&self, space: &mut Space<M>, position: u64, out: &mut [u64]) -> usize {
        let capacity = (out.len() / ENTRY_WORDS) as u64;
        let count = self.len.saturating_sub(position).min(capacity);
        self.copy_words(space, position, count, out)
    }

    fn copy_words<M: Medium>(&self, space: &mut Space<M>, position: u64, count: u64, out: &mut [u64]) -> usize {
        let mut copied = 0;
        for (offset, entries) in self.segments.extents(position, count) {
            let words = usize::try_from(entries).expect("as many as there is capacity for") * ENTRY_WORDS;
            space.medium.copy(offset, &mut out[copied..copied + words]);
            copied += words;
        }
        copied / ENTRY_WORDS
    }

    /// Adds an entry; returns its position. It is durable after [`Log::sync`].
    pub fn append<M: Medium>(&mut self, space: &mut Space<M>, name: &Name, state: State) -> Result<u64> {
        let position = self.len;
        if position == self.capacity() {
            self.segments.add(space)?;
        }
        space.medium.write(self.offset_of(position), &name.entry(position, state));
        self.len += 1;
        Ok(position)
    }

    /// Returns the number of entries that may not be durable.
    pub fn unfenced(&self) -> u64 {
        self.len - self.fenced
    }

    /// Replaces the state of an entry. It is durable after a flush of the entry and a fence.
    pub fn set_state<M: Medium>(&self, space: &mut Space<M>, position: u64, state: State) {
        space.medium.store(self.offset_of(position) + STATE_AT, state.word(position));
    }

    /// Makes all entries durable, and all flushed slots; periodically records the number of applied entries.
    pub fn sync<M: Medium>(&mut self, space: &mut Space<M>) -> Result<()> {
        let extents = self.segments.extents(self.fenced, self.len - self.fenced);
        extents.for_each(|(offset, entries)| space.medium.flush(offset, entries * ENTRY_BYTES));
        space.medium.fence()?;
        self.fenced = self.len;
        if self.applied + (1 << self.checkpoint_bits) <= self.fenced {
            // Only now: entries and slots must be durable before the record is.
            self.applied = self.fenced;
            space.store_applied(self.applied);
        }
        Ok(())
    }

    /// Takes the valid entries that follow the applied ones, up to the first torn one. Zeros the rest, and returns the number of
    /// entries dropped.
    pub fn adopt<M: Medium>(&mut self, space: &mut Space<M>) -> Result<u64> {
        // The record lags by its interval, and by the entries appended until it was durable.
        let end = (self.applied + (1 << self.checkpoint_bits) + 2 * UNFENCED_MAX).min(self.capacity());
        let mut entries = vec![0; BATCH_ENTRIES * ENTRY_WORDS];
        let mut is_whole = true;
        let (mut at, mut dropped) = (self.applied, 0);
        while at < end {
            let count = self.copy_words(space, at, (end - at).min(BATCH_ENTRIES as u64), &mut entries);
            for (position, entry) in (at..).zip(entries.chunks_exact(ENTRY_WORDS).take(count)) {
                is_whole = is_whole && Name::of_entry(entry, position).is_some();
                if is_whole {
                    self.len = position + 1;
                } else {
                    dropped += u64::from(entry.iter().any(|word| *word != 0));
                }
            }
            at += count as u64;
        }
        if dropped != 0 {
            let extents = self.segments.extents(self.len, end - self.len);
            extents.for_each(|(offset, entries)| space.zero(offset, entries * ENTRY_BYTES));
        }
        self.fenced = self.len;
        space.medium.fence()?;
        Ok(dropped)
    }

    /// Records that all entries are applied, once all are in a durable table.
    pub fn note_applied<M: Medium>(&mut self, space: &mut Space<M>) -> Result<()> {
        self.applied = self.len;
        space.store_applied(self.applied);
        space.medium.fence()
    }

    /// Flushes an entry's line.
    pub fn flush_entry<M: Medium>(&self, space: &mut Space<M>, position: u64) {
        space.medium.flush(self.offset_of(position), ENTRY_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::meter::{Metered, TickClock};
    use crate::mapped::recorder::Recorder;
    use crate::mapped::space::Geometry;
    use crate::stream::name;

    fn name_of(number: u64) -> Name {
        Name::from(&Key::from(&name(number)))
    }

    #[test]
    fn names_are_what_they_were_made_of() {
        let key = Key::from(&name(7));
        assert_eq!(Name::from(&key).key(), key);
    }

    #[test]
    fn states_are_read_as_they_were_written_and_at_no_other_position() {
        let pending = State::Pending { epoch: EPOCHS - 1, sequence: Sequence((1 << SEQUENCE_BITS) - 1) };
        for state in [State::Dead, pending, State::Recorded(Ordinal(0)), State::Recorded(Ordinal(u32::MAX))] {
            assert_eq!(State::of(state.word(77), 77), state);
        }
        let word = State::Recorded(Ordinal(5)).word(77);
        assert_eq!(State::of(word, 78), State::Dead);
        for bit in 0..63 {
            assert_eq!(State::of(word ^ 1 << bit, 77), State::Dead, "bit {bit}");
        }
        assert_eq!(State::of(u64::MAX, 0), State::Dead);
    }

    #[test]
    fn entries_with_a_bit_flipped_or_moved_are_not_whole() {
        let whole = name_of(1).entry(9, State::Dead);
        assert_eq!(Name::of_entry(&whole, 9), Some(name_of(1)));
        assert_eq!(Name::of_entry(&whole, 10), None);
        assert_eq!(Name::of_entry(&[0; 4], 0), None);
        for bit in 0..192 {
            let mut entry = whole;
            entry[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(Name::of_entry(&entry, 9), None, "bit {bit}");
        }
    }

    #[test]
    fn what_is_appended_is_copied_in_order_and_found_again_when_opened() {
        let recorder = Recorder::default();
        let metered = || Metered::new(recorder.clone(), std::time::Duration::ZERO, &TickClock::shared());
        let geometry = Geometry { log_bits: 2, containers_bits: 1, checkpoint_bits: 3, table_bits: 1 };
        let mut space = Space::create(metered(), geometry).unwrap();
        let mut log = Log::create(&mut space).unwrap();
        for number in 0..50 {
            log.append(&mut space, &name_of(number), State::Recorded(Ordinal(3))).unwrap();
            if number % 5 == 4 {
                log.sync(&mut space).unwrap();
            }
        }
        let mut out = [0; 20 * ENTRY_WORDS];
        for position in [0, 3, 7, 40, 49] {
            let count = log.copy(&mut space, position, &mut out);
            assert_eq!(count, 20.min(50 - usize::try_from(position).unwrap()));
            for (position, entry) in (position..).zip(out.chunks_exact(ENTRY_WORDS).take(count)) {
                assert_eq!(Name::of_entry(entry, position), Some(name_of(position)));
            }
        }
        space.seal().unwrap();
        let mut space = Space::open(metered()).unwrap();
        let mut opened = Log::open(&space).unwrap();
        assert_eq!(opened.applied(), 50);
        let log_end = opened.offset_of(50);
        space.medium.write(log_end, &name_of(50).entry(50, State::Dead));
        space.medium.write(opened.offset_of(51), &[1, 0, 0, 0]);
        space.medium.write(opened.offset_of(52), &name_of(52).entry(52, State::Dead));
        assert_eq!(opened.adopt(&mut space).unwrap(), 2);
        assert_eq!(opened.len(), 51);
        assert_eq!(
            space.medium.again(opened.offset_of(52)),
            [0; ENTRY_WORDS],
            "what follows a torn entry is wiped out"
        );
    }
}
