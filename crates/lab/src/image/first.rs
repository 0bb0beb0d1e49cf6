//! The first position of each name, by a map that threads share: hash-map referencing.
//!
//! [`FirstMap::Atomic`] is a table of atomic numbers with open addressing. A slot is taken once, by the position of any block of a
//! name; the lowest position of that name is kept next to it by a minimum, and the number of positions by an addition. Neither
//! depends on the order of threads, so the result is a function of the names alone. [`FirstMap::Locked`] is what it is compared
//! with: 64 hash maps, each behind a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use onefold_engine::identify::identity_hasher::BuildIdentityHasher;

use crate::image::block::Name;
use crate::image::parallel::{for_all, part_len};

/// Slots for each position: half of them stay empty, so that a search looks at 1.5 to 2.5 slots on average (Knuth, volume 3, section 6.4).
const SLOTS: usize = 2;
/// A slot without a position. No position has this number with this tag, because positions are below `u32::MAX`.
const EMPTY: u64 = u64::MAX;
/// Maps behind locks.
const LOCKS: usize = 64;
/// Positions whose slots are read together, before the first is changed: a change waits for all reads before it, and reads of
/// several slots overlap.
const BATCH: usize = 16;
/// Bytes of memory for each position: its slots, and the number of its slot.
pub const BYTES_OF_POSITION: usize = SLOTS * size_of::<Slot>() + size_of::<u32>();

/// A map from names to first positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FirstMap {
    /// A table of atomic numbers.
    Atomic,
    /// 64 maps behind locks.
    Locked,
}

/// Occurrences of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The lowest position.
    pub first: u32,
    /// Positions.
    pub count: u32,
}

/// A slot: one line of the cache has four.
#[derive(Debug)]
struct Slot {
    /// 32 bits of the name, and the position of a block that has it; or `EMPTY`.
    entry: AtomicU64,
    first: AtomicU32,
    count: AtomicU32,
}

/// Finds for each position in `active` the lowest position of an equal name among these, and how often the name occurs. Positions
/// are indexes of `names`, fewer than `u32::MAX`.
pub fn first_of(map: FirstMap, names: &[Name], active: &[u32], threads: usize) -> Vec<Found> {
    first_in_parts(map, names, active, threads, part_len(active.len(), threads))
}

/// As [`first_of`], with the number of positions that a thread takes at a time.
pub fn first_in_parts(map: FirstMap, names: &[Name], active: &[u32], threads: usize, part: usize) -> Vec<Found> {
    let part = part.max(1);
    match map {
        FirstMap::Atomic => Table::new(active.len()).find(names, active, threads, part),
        FirstMap::Locked => find_locked(names, active, threads, part),
    }
}

/// Returns the name at a position.
fn name_at(names: &[Name], position: u32) -> Name {
    names.get(position as usize).copied().unwrap_or_default()
}

#[derive(Debug)]
struct Table {
    slots: Box<[Slot]>,
}

impl Table {
    fn new(positions: usize) -> Self {
        let slot = || Slot { entry: AtomicU64::new(EMPTY), first: AtomicU32::new(u32::MAX), count: AtomicU32::new(0) };
        Self { slots: (0..SLOTS * positions.max(1)).map(|_| slot()).collect() }
    }

    /// Returns where the search for a name begins, and the upper half of its entry.
    fn start(&self, name: &Name) -> (usize, u64) {
        let number = u128::from_le_bytes(*name);
        #[expect(clippy::cast_possible_truncation, reason = "takes two halves of a name")]
        let (low, high) = (number as u64, (number >> 64) as u64);
        let slot = (u128::from(low) * self.slots.len() as u128) >> 64;
        (usize::try_from(slot).unwrap_or_default(), high << 32)
    }

    /// Takes a slot for a name, or finds the one that it has.
    fn slot_of(&self, names: &[Name], position: u32, (start, tag): (usize, u64)) -> usize {
        let mine = tag | u64::from(position);
        let mut at = start;
        loop {
            let slot = &self.slots[at];
            let mut entry = slot.entry.load(Ordering::Relaxed);
            if entry == EMPTY {
                match slot.entry.compare_exchange(EMPTY, mine, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return at,
                    Err(taken) => entry = taken,
                }
            }
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is a position")]
            let is_equal =
                entry & !u64::from(u32::MAX) == tag && name_at(names, entry as u32) == name_at(names, position);
            if is_equal {
                return at;
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    fn enter(&self, names: &[Name], active: &[u32], slots: &mut [u32]) {
        for (active, slots) in active.chunks(BATCH).zip(slots.chunks_mut(BATCH)) {
            let mut starts = [(0, 0); BATCH];
            for (start, position) in starts.iter_mut().zip(active) {
                *start = self.start(&name_at(names, *position));
                std::hint::black_box(self.slots[start.0].entry.load(Ordering::Relaxed));
            }
            for ((position, start), out) in active.iter().zip(starts).zip(slots) {
                let at = self.slot_of(names, *position, start);
                let slot = &self.slots[at];
                if *position < slot.first.load(Ordering::Relaxed) {
                    slot.first.fetch_min(*position, Ordering::Relaxed);
                }
                slot.count.fetch_add(1, Ordering::Relaxed);
                // 2^32 slots are more than an image's positions need.
                *out = u32::try_from(at).unwrap_or(u32::MAX);
            }
        }
    }

    fn find(self, names: &[Name], active: &[u32], threads: usize, part: usize) -> Vec<Found> {
        assert!(u32::try_from(self.slots.len()).is_ok(), "more positions than a table takes");
        let mut slots = vec![0; active.len()];
        for_all(active.chunks(part).zip(slots.chunks_mut(part)), threads, |(active, slots)| {
            self.enter(names, active, slots);
        });
        // All threads have ended, so that all minima and counts are final.
        let mut found = vec![Found::default(); active.len()];
        for_all(slots.chunks(part).zip(found.chunks_mut(part)), threads, |(slots, found)| {
            for (slot, found) in slots.iter().zip(found) {
                let slot = &self.slots[*slot as usize];
                let (first, count) = (slot.first.load(Ordering::Relaxed), slot.count.load(Ordering::Relaxed));
                *found = Found { first, count };
            }
        });
        found
    }
}

type Locked = Mutex<HashMap<Name, Found, BuildIdentityHasher>>;

fn find_locked(names: &[Name], active: &[u32], threads: usize, part: usize) -> Vec<Found> {
    let maps: [Locked; LOCKS] = std::array::from_fn(|_| Mutex::default());
    let with = |name: Name, act: &mut dyn FnMut(&mut Found)| {
        let map = &maps[usize::from(name[0]) % LOCKS];
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        act(map.entry(name).or_insert(Found { first: u32::MAX, count: 0 }));
    };
    for_all(active.chunks(part), threads, |active| {
        for position in active {
            with(name_at(names, *position), &mut |found| {
                found.first = found.first.min(*position);
                found.count += 1;
            });
        }
    });
    let mut found = vec![Found::default(); active.len()];
    for_all(active.chunks(part).zip(found.chunks_mut(part)), threads, |(active, found)| {
        for (position, found) in active.iter().zip(found) {
            with(name_at(names, *position), &mut |known| *found = *known);
        }
    });
    found
}

#[cfg(test)]
pub(super) mod tests {
    use onefold_engine::random::SplitMix64;

    use super::*;

    /// Names of which some repeat. Of three bytes of a name each has few values, so that slots and tags collide.
    pub(in crate::image) fn few_names(count: usize, kinds: usize, seed: u64) -> Vec<Name> {
        let mut random = SplitMix64::new(seed);
        let name = |random: &mut SplitMix64| {
            let mut name = Name::default();
            name[7] = u8::try_from(random.index(4)).unwrap();
            name[8] = u8::try_from(random.index(4)).unwrap();
            name[15] = u8::try_from(random.index(4)).unwrap();
            name[12..14].copy_from_slice(&u16::try_from(random.index(kinds)).unwrap().to_le_bytes());
            name
        };
        (0..count).map(|_| name(&mut random)).collect()
    }

    pub(in crate::image) fn expected(names: &[Name], active: &[u32]) -> Vec<Found> {
        let mut known = HashMap::new();
        for position in active {
            let found = known.entry(names[*position as usize]).or_insert(Found { first: *position, count: 0 });
            found.count += 1;
        }
        active.iter().map(|position| known[&names[*position as usize]]).collect()
    }

    #[test]
    fn the_lowest_position_wins_for_any_number_of_threads() {
        for (count, kinds) in [(0, 1), (1, 1), (300, 1), (5000, 3), (5000, 60_000)] {
            let names = few_names(count, kinds, count as u64);
            let all: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
            let some: Vec<u32> = all.iter().copied().filter(|position| position % 3 != 1).collect();
            for active in [all, some] {
                let expected = expected(&names, &active);
                for threads in 1..=64 {
                    for map in [FirstMap::Atomic, FirstMap::Locked] {
                        assert_eq!(first_in_parts(map, &names, &active, threads, 50), expected, "{map:?}, {threads}");
                    }
                }
                assert_eq!(first_of(FirstMap::Atomic, &names, &active, 3), expected);
            }
        }
    }
}
