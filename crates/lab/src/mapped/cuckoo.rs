//! The cuckoo table: from a fingerprint to its entry in the log.
//!
//! A bucket is one cache line of eight slots; a chunk is in one of two buckets. A slot is a word: 24 bits of the fingerprint
//! as a tag, and the position plus 1; 0 is empty. The second bucket follows from the first and the tag (partial-key
//! hashing: Fan, Andersen, Kaminsky and Mitzenmacher, "Cuckoo Filter: Practically Better Than Bloom", 2014, section 3.1), so
//! that a slot can be moved without reading the log.
//!
//! Every change is one atomic store. To move a slot, the table stores it in its other bucket, flushes and fences, and only then
//! overwrites the old slot. So a slot always exists, for a moment twice, which is harmless. Slots are never removed. If a search of
//! bounded length finds no empty slot, or the table reaches its limit, a table of twice the size is filled from the log in order;
//! one store in the first page publishes it.

use onefold_engine::random::mix64;
use onefold_engine::{Error, Result};

use crate::counts::float;
use crate::mapped::log::{BATCH_ENTRIES, Log, Name, POSITION_BITS};
use crate::mapped::medium::{LINE_BYTES, Medium, WORD_BYTES};
use crate::mapped::segments::ENTRY_WORDS;
use crate::mapped::space::{Region, Space, TABLE_AT};

/// Slots of a bucket: a cache line.
pub const BUCKET_SLOTS: usize = 8;
/// Most buckets that a search for an empty slot visits.
pub const SEARCH_BUCKETS_MAX: usize = 512;
/// Most doublings of a table in one step. If more are needed, fingerprints are not uniform.
const DOUBLINGS_MAX: u32 = 4;
/// Buckets of the largest table, as a logarithm.
const BITS_MAX: u32 = 40;

const BUCKET_BYTES: u64 = LINE_BYTES as u64;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// Work of the table, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableWork {
    /// Slots moved to their other bucket.
    pub displacements: u64,
    /// Insertions that moved slots.
    pub displacing_insertions: u64,
    /// Tables that were replaced by one of twice the size.
    pub growths: u64,
    /// Tags that matched another fingerprint: each is a useless read of the log.
    pub false_tags: u64,
}

/// Durability of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writing {
    /// Each changed line is flushed, in an order that a crash may interrupt.
    Live,
    /// The table is flushed as a whole before it is published.
    Unpublished,
}

/// Buckets of a chunk that were prefetched or read before, so that no access waits for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Near {
    /// None.
    Neither,
    /// The first: it was prefetched in a round.
    First,
    /// Both: they were read just before.
    Both,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    region: Region,
    /// Slots in use.
    count: u64,
    /// Share of slots in use at which the table is doubled, in 1/256.
    load_max: u64,
    work: TableWork,
    /// Scratch of the search: [`SEARCH_BUCKETS_MAX`] nodes at most.
    nodes: Vec<Node>,
}

/// A bucket that a search has reached.
#[derive(Clone, Copy, Debug)]
struct Node {
    bucket: u64,
    slots: [u64; BUCKET_SLOTS],
    /// The node it was reached from and the slot there that would move here; none for the two buckets of the chunk.
    from: Option<(usize, usize)>,
}

fn slot_of(tag: u64, position: u64) -> u64 {
    tag << POSITION_BITS | (position + 1)
}

/// Returns the position of a slot; `None` if it is empty.
fn position_of(slot: u64) -> Option<u64> {
    (slot & POSITION_MASK).checked_sub(1)
}

fn tag_of(name: &Name) -> u64 {
    u64::from(name.tail & 0x00ff_ffff)
}

impl Table {
    /// Makes the first, empty table.
    pub fn create<M: Medium>(space: &mut Space<M>, load_max: f64) -> Result<Self> {
        let bits = space.geometry().table_bits;
        let offset = space.allocate(BUCKET_BYTES << bits)?;
        let table = Self::over(Region { offset, bits }, load_max);
        space.put_region(TABLE_AT, table.region)?;
        Ok(table)
    }

    /// Reads the region of the table; `None` if the record is damaged.
    pub fn open<M: Medium>(space: &Space<M>, load_max: f64) -> Option<Self> {
        let region = space.region(TABLE_AT).filter(|region| (1..=BITS_MAX).contains(&region.bits))?;
        Some(Self::over(region, load_max))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1..=256")]
    fn over(region: Region, load_max: f64) -> Self {
        let load_max = (load_max.clamp(0.0, 1.0) * 256.0).max(1.0) as u64;
        Self { region, count: 0, load_max, work: TableWork::default(), nodes: Vec::new() }
    }

    /// Returns its region of the medium, with its bytes.
    pub fn region(&self) -> (u64, u64) {
        (self.region.offset, self.bytes())
    }

    fn bytes(&self) -> u64 {
        BUCKET_BYTES << self.region.bits
    }

    fn slots(&self) -> u64 {
        (BUCKET_SLOTS as u64) << self.region.bits
    }

    /// Returns the share of slots in use, 0 to 1.
    pub fn load(&self) -> f64 {
        float(self.count) / float(self.slots())
    }

    /// Returns its work, counted.
    pub fn work(&self) -> TableWork {
        self.work
    }

    fn mask(&self) -> u64 {
        (1 << self.region.bits) - 1
    }

    #[inline]
    fn first_bucket(&self, name: &Name) -> u64 {
        name.middle & self.mask()
    }

    /// Returns the other bucket of a slot that is, or would be, in this one.
    #[inline]
    fn other_bucket(&self, bucket: u64, tag: u64) -> u64 {
        bucket ^ ((mix64(tag) | 1) & self.mask())
    }

    fn at(&self, bucket: u64, slot: usize) -> u64 {
        self.region.offset + bucket * BUCKET_BYTES + (slot * WORD_BYTES) as u64
    }

    /// Prefetches the first bucket of a chunk, in a round.
    #[inline]
    pub fn prefetch<M: Medium>(&self, space: &mut Space<M>, name: &Name) {
        space.medium.prefetch(self.at(self.first_bucket(name), 0));
    }

    /// Finds the entry of a chunk: its position and its last word.
    pub fn find<M: Medium>(&mut self, space: &mut Space<M>, log: &Log, name: &Name, near: Near) -> Option<(u64, u64)> {
        let tag = tag_of(name);
        let first = self.first_bucket(name);
        let second = self.other_bucket(first, tag);
        for bucket in [first, second] {
            let offset = self.at(bucket, 0);
            let is_near = near == Near::Both || near == Near::First && bucket == first;
            let slots: [u64; BUCKET_SLOTS] =
                if is_near { space.medium.again(offset) } else { space.medium.miss(offset) };
            let matching = slots.iter().filter(|slot| **slot >> POSITION_BITS == tag);
            for position in matching.filter_map(|slot| position_of(*slot)).filter(|position| *position < log.len()) {
                let entry = log.read(space, position);
                if name.is_of(&entry) {
                    return Some((position, entry[ENTRY_WORDS - 1]));
                }
                self.work.false_tags += 1;
            }
        }
        None
    }

    /// Adds a chunk whose entry is in the log; doubles the table if it has no slot for it. The chunk must not be in the table.
    pub fn insert<M: Medium>(
        &mut self,
        space: &mut Space<M>,
        log: &Log,
        name: &Name,
        position: u64,
        near: Near,
    ) -> Result<()> {
        debug_assert!(position < log.len());
        let is_full = self.slots() * self.load_max <= self.count * 256;
        if !is_full && self.try_insert(space, name, position, Writing::Live, near)? {
            return Ok(());
        }
        // The entry is in the log already, so the new table includes it.
        self.grow(space, log)
    }

    /// Stores a slot for a chunk; returns true if there was an empty one.
    fn try_insert<M: Medium>(
        &mut self,
        space: &mut Space<M>,
        name: &Name,
        position: u64,
        writing: Writing,
        near: Near,
    ) -> Result<bool> {
        let tag = tag_of(name);
        let slot = slot_of(tag, position);
        let first = self.first_bucket(name);
        self.nodes.clear();
        for bucket in [first, self.other_bucket(first, tag)] {
            let is_near = near == Near::Both || near == Near::First && bucket == first;
            let offset = self.at(bucket, 0);
            let slots: [u64; BUCKET_SLOTS] =
                if is_near { space.medium.again(offset) } else { space.medium.miss(offset) };
            if let Some(empty) = slots.iter().position(|slot| *slot == 0) {
                self.put(space, bucket, empty, slot, writing);
                self.count += 1;
                return Ok(true);
            }
            self.nodes.push(Node { bucket, slots, from: None });
        }
        let Some((last, moving, bucket, empty)) = self.search(space) else { return Ok(false) };
        self.work.displacing_insertions += 1;
        let (mut node, mut moving) = (last, moving);
        let mut target = (bucket, empty);
        loop {
            let Node { bucket, slots, from } = self.nodes[node];
            self.put(space, target.0, target.1, slots[moving], writing);
            if writing == Writing::Live {
                // Before its old slot is overwritten.
                space.medium.fence()?;
            }
            self.work.displacements += 1;
            target = (bucket, moving);
            match from {
                Some((parent, slot)) => (node, moving) = (parent, slot),
                None => break,
            }
        }
        self.put(space, target.0, target.1, slot, writing);
        self.count += 1;
        Ok(true)
    }

    /// Searches breadth first for a bucket with an empty slot: the shortest chain of moves. Returns the last node, its
    /// slot that moves, and the empty slot.
    fn search<M: Medium>(&mut self, space: &mut Space<M>) -> Option<(usize, usize, u64, usize)> {
        let mut node = 0;
        while node < self.nodes.len() {
            let Node { bucket, slots, .. } = self.nodes[node];
            for (moving, slot) in slots.into_iter().enumerate() {
                let other = self.other_bucket(bucket, slot >> POSITION_BITS);
                if self.nodes.iter().any(|node| node.bucket == other) {
                    continue;
                }
                let others: [u64; BUCKET_SLOTS] = space.medium.miss(self.at(other, 0));
                if let Some(empty) = others.iter().position(|slot| *slot == 0) {
                    return Some((node, moving, other, empty));
                }
                if self.nodes.len() == SEARCH_BUCKETS_MAX {
                    return None;
                }
                self.nodes.push(Node { bucket: other, slots: others, from: Some((node, moving)) });
            }
            node += 1;
        }
        None
    }

    fn put<M: Medium>(&self, space: &mut Space<M>, bucket: u64, index: usize, slot: u64, writing: Writing) {
        let offset = self.at(bucket, index);
        space.medium.store(offset, slot);
        if writing == Writing::Live {
            space.medium.flush(offset, WORD_BYTES as u64);
        }
    }

    /// Replaces the table by one of twice the size that holds every entry of the log.
    pub fn grow<M: Medium>(&mut self, space: &mut Space<M>, log: &Log) -> Result<()> {
        for step in 1..=DOUBLINGS_MAX {
            let bits = self.region.bits + step;
            if BITS_MAX < bits {
                break;
            }
            let offset = space.allocate(BUCKET_BYTES << bits)?;
            let mut grown = Self { region: Region { offset, bits }, count: 0, nodes: Vec::new(), ..*self };
            if grown.fill(space, log)? {
                space.medium.flush(offset, grown.bytes());
                space.medium.fence()?;
                space.put_region(TABLE_AT, grown.region)?;
                space.release(self.region.offset, self.bytes());
                grown.work.growths += 1;
                *self = grown;
                return Ok(());
            }
            space.release(offset, grown.bytes());
        }
        let load = self.load() * 100.0;
        Err(Error::invalid(format!(
            "the fingerprint table cannot take an entry at {load:.0}% of its capacity: fingerprints are not uniform"
        )))
    }

    /// Fills an empty, unpublished table with all entries of a log; returns true if all fitted.
    fn fill<M: Medium>(&mut self, space: &mut Space<M>, log: &Log) -> Result<bool> {
        let mut entries = vec![0; BATCH_ENTRIES * ENTRY_WORDS];
        let mut names = Vec::with_capacity(BATCH_ENTRIES);
        let mut at = 0;
        while at < log.len() {
            let count = log.copy(space, at, &mut entries);
            names.clear();
            let whole = (at..).zip(entries.chunks_exact(ENTRY_WORDS).take(count));
            names.extend(whole.filter_map(|(position, entry)| Some((position, Name::of_entry(entry, position)?))));
            for (_, name) in &names {
                self.prefetch(space, name);
            }
            space.medium.end_round();
            for (position, name) in &names {
                if !self.try_insert(space, name, *position, Writing::Unpublished, Near::First)? {
                    return Ok(false);
                }
            }
            at += count as u64;
        }
        Ok(true)
    }

    /// Scans the table after opening: counts its slots, and clears those that point past the log's end, whose entries a crash
    /// has torn. Returns the number of cleared slots.
    pub fn sweep<M: Medium>(&mut self, space: &mut Space<M>, log: &Log) -> Result<u64> {
        let mut cleared = 0;
        let mut slots = vec![0; 64 * BUCKET_SLOTS];
        let (mut at, end) = (self.region.offset, self.region.offset + self.bytes());
        while at < end {
            let words =
                usize::try_from((end - at) / WORD_BYTES as u64).map_or(slots.len(), |left| left.min(slots.len()));
            space.medium.copy(at, &mut slots[..words]);
            for (index, &slot) in slots[..words].iter().enumerate() {
                if slot == 0 {
                    continue;
                }
                if position_of(slot).is_some_and(|position| position < log.len()) {
                    self.count += 1;
                    continue;
                }
                let offset = at + (index * WORD_BYTES) as u64;
                space.medium.store(offset, 0);
                space.medium.flush(offset, WORD_BYTES as u64);
                cleared += 1;
            }
            at += (words * WORD_BYTES) as u64;
        }
        space.medium.fence()?;
        Ok(cleared)
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::kv::Key;

    use super::*;
    use crate::mapped::log::State;
    use crate::mapped::medium::MappedMemory;
    use crate::mapped::meter::{Metered, TickClock};
    use crate::mapped::space::Geometry;
    use crate::stream::name;

    fn name_of(number: u64) -> Name {
        Name::from(&Key::from(&name(number)))
    }

    fn store(table_bits: u32, load_max: f64) -> (Space<MappedMemory>, Log, Table) {
        let metered =
            Metered::new(MappedMemory::anonymous(0).unwrap(), std::time::Duration::ZERO, &TickClock::shared());
        let geometry = Geometry { log_bits: 4, containers_bits: 1, checkpoint_bits: 4, table_bits };
        let mut space = Space::create(metered, geometry).unwrap();
        let log = Log::create(&mut space).unwrap();
        let table = Table::create(&mut space, load_max).unwrap();
        (space, log, table)
    }

    fn add(space: &mut Space<MappedMemory>, log: &mut Log, table: &mut Table, name: &Name) -> Result<()> {
        assert_eq!(table.find(space, log, name, Near::Neither), None);
        let position = log.append(space, name, State::Dead)?;
        table.insert(space, log, name, position, Near::Both)
    }

    #[test]
    fn the_other_bucket_of_the_other_is_the_first_and_none_is_its_own() {
        let (_, _, table) = store(5, 1.0);
        for number in 0..1_000 {
            let name = name_of(number);
            let first = table.first_bucket(&name);
            let second = table.other_bucket(first, tag_of(&name));
            assert_ne!(first, second);
            assert_eq!(table.other_bucket(second, tag_of(&name)), first);
        }
    }

    #[test]
    fn a_table_serves_beyond_nine_tenths_full_and_finds_everything_while_it_grows() {
        let (mut space, mut log, mut table) = store(7, 0.98);
        let mut highest: f64 = 0.0;
        for number in 0..40_000 {
            add(&mut space, &mut log, &mut table, &name_of(number)).unwrap();
            highest = highest.max(table.load());
            if number % 5_000 == 0 {
                for known in 0..=number {
                    assert_eq!(table.find(&mut space, &log, &name_of(known), Near::Neither), Some((known, 0)));
                }
            }
        }
        for known in 0..40_000 {
            assert_eq!(table.find(&mut space, &log, &name_of(known), Near::First), Some((known, 0)));
        }
        assert!(0.97 < highest, "the table was doubled at {highest}");
        let work = table.work();
        assert!(
            5 <= work.growths && 0 < work.displacing_insertions && work.displacing_insertions <= work.displacements
        );
        assert_eq!(table.count, 40_000);
        let before = table.count;
        assert_eq!(table.sweep(&mut space, &log).unwrap(), 0);
        assert_eq!(table.count, 2 * before, "each slot is counted once more");
    }

    #[test]
    fn chunks_that_differ_where_the_table_does_not_look_are_distinguished_and_too_many_are_refused() {
        let (mut space, mut log, mut table) = store(3, 0.95);
        let alike = |number: u64| Name { head: number, ..name_of(1) };
        for number in 0..16 {
            add(&mut space, &mut log, &mut table, &alike(number)).unwrap();
            assert_eq!(table.find(&mut space, &log, &alike(number), Near::Neither), Some((number, 0)));
        }
        assert!(100 < table.work().false_tags);
        let error = add(&mut space, &mut log, &mut table, &alike(16)).unwrap_err().to_string();
        assert!(error.contains("not uniform"), "{error}");
    }
}
