//! Residency: which units a restore reads, and when, for each way of keeping units in memory.
//!
//! A unit is the piece that is read as a whole: a container, or a region. Pure: no I/O, no clock, no randomness. The same references
//! in the same order cause the same reads, as in destor (Fu et al., FAST 2015, section 2.6).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use crate::lru::Lru;

/// Names a unit.
pub trait UnitKey: Copy + Eq + Ord + Hash + Debug {}

impl<K: Copy + Eq + Ord + Hash + Debug> UnitKey for K {}

/// A reference to a part of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference<K> {
    /// The unit.
    pub unit: K,
    /// Bytes of the part.
    pub len: u32,
}

/// A read of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read<K> {
    /// The unit.
    pub unit: K,
    /// Number of the reference that needs it, counted from 0.
    pub position: u64,
}

/// Decides which units are read for references in the order of a restore.
pub trait Residency<K>: Debug {
    /// Takes the next reference; appends the reads that are certain now, in their order.
    fn push(&mut self, reference: Reference<K>, reads: &mut Vec<Read<K>>);
    /// Appends the reads for the rest.
    fn finish(&mut self, reads: &mut Vec<Read<K>>);
}

/// Keeps the units that were used last.
#[derive(Debug)]
pub struct LeastRecent<K> {
    units: Lru<K, ()>,
    position: u64,
}

impl<K: UnitKey> LeastRecent<K> {
    /// Keeps this many units; 0 counts as 1.
    pub fn new(units: usize) -> Self {
        Self { units: Lru::new(units.max(1)), position: 0 }
    }
}

impl<K: UnitKey> Residency<K> for LeastRecent<K> {
    fn push(&mut self, Reference { unit, .. }: Reference<K>, reads: &mut Vec<Read<K>>) {
        if self.units.get(&unit).is_none() {
            self.units.insert(unit, (), 1);
            reads.push(Read { unit, position: self.position });
        }
        self.position += 1;
    }

    fn finish(&mut self, _reads: &mut Vec<Read<K>>) {}
}

/// Assembles the stream in an area of memory, and keeps no unit: each read serves all references of the area (Lillibridge et al., FAST
/// 2013). The area rolls: after each read it passes on its beginning up to the first reference that is not served.
#[derive(Debug)]
pub struct ForwardAssembly<K> {
    area_bytes: u64,
    /// References of the area, and whether they are served.
    area: VecDeque<(Reference<K>, bool)>,
    bytes: u64,
    /// Number of the first reference of the area.
    first: u64,
    /// Numbers of the references of the area that are not served.
    waiting: HashMap<K, Vec<u64>>,
}

impl<K: UnitKey> ForwardAssembly<K> {
    /// Takes an area of so many bytes. The unit that is read has its own memory.
    pub fn new(area_bytes: u64) -> Self {
        Self { area_bytes, area: VecDeque::new(), bytes: 0, first: 0, waiting: HashMap::new() }
    }

    /// Reads the unit of the first reference; passes on what is served.
    fn roll(&mut self, reads: &mut Vec<Read<K>>) {
        let Some((Reference { unit, .. }, _)) = self.area.front().copied() else { return };
        reads.push(Read { unit, position: self.first });
        for number in self.waiting.remove(&unit).unwrap_or_default() {
            let at = usize::try_from(number - self.first).expect("the area is in memory");
            if let Some((_, is_served)) = self.area.get_mut(at) {
                *is_served = true;
            }
        }
        while let Some((Reference { len, .. }, _)) = self.area.pop_front_if(|(_, is_served)| *is_served) {
            self.bytes -= u64::from(len);
            self.first += 1;
        }
    }
}

impl<K: UnitKey> Residency<K> for ForwardAssembly<K> {
    fn push(&mut self, reference: Reference<K>, reads: &mut Vec<Read<K>>) {
        let number = self.first + self.area.len() as u64;
        self.waiting.entry(reference.unit).or_default().push(number);
        self.area.push_back((reference, false));
        self.bytes += u64::from(reference.len);
        // One read for each reference that finds the area full, as in destor: a long reference may exceed the area by its length.
        if self.area_bytes <= self.bytes {
            self.roll(reads);
        }
    }

    fn finish(&mut self, reads: &mut Vec<Read<K>>) {
        while !self.area.is_empty() {
            self.roll(reads);
        }
    }
}

/// Drops the unit that is needed again last (Belady 1966), as far as it looks ahead. Of those that it does not see needed again, the
/// least recently used one.
#[derive(Debug)]
pub struct Optimal<K> {
    units: usize,
    horizon: usize,
    /// Uses that are not decided: unit, and number of the first reference. Consecutive references to a unit are one use.
    ahead: VecDeque<(K, u64)>,
    /// Number of the first of them, counted in uses.
    first: u64,
    /// The numbers of those of each unit.
    uses: HashMap<K, VecDeque<u64>>,
    /// Units in memory, and their ranks.
    kept: HashMap<K, u64>,
    /// The same by rank: the number of the next use, or, above all of these, the older the last use the higher.
    by_rank: BTreeSet<(u64, K)>,
    last: Option<K>,
    position: u64,
}

impl<K: UnitKey> Optimal<K> {
    /// Keeps this many units, 0 counts as 1, and looks `horizon` uses ahead.
    pub fn new(units: usize, horizon: usize) -> Self {
        Self {
            units: units.max(1),
            horizon,
            ahead: VecDeque::new(),
            first: 0,
            uses: HashMap::new(),
            kept: HashMap::new(),
            by_rank: BTreeSet::new(),
            last: None,
            position: 0,
        }
    }

    fn set_rank(&mut self, unit: K, rank: u64) {
        if let Some(before) = self.kept.insert(unit, rank) {
            self.by_rank.remove(&(before, unit));
        }
        self.by_rank.insert((rank, unit));
    }

    fn decide(&mut self, reads: &mut Vec<Read<K>>) {
        let Some((unit, position)) = self.ahead.pop_front() else { return };
        let number = self.first;
        self.first += 1;
        let next = self.uses.get_mut(&unit).and_then(|uses| {
            uses.pop_front();
            uses.front().copied()
        });
        if next.is_none() {
            self.uses.remove(&unit);
        }
        if !self.kept.contains_key(&unit) {
            reads.push(Read { unit, position });
            if self.units <= self.kept.len()
                && let Some((_, dropped)) = self.by_rank.pop_last()
            {
                self.kept.remove(&dropped);
            }
        }
        self.set_rank(unit, next.unwrap_or(u64::MAX - number));
    }
}

impl<K: UnitKey> Residency<K> for Optimal<K> {
    fn push(&mut self, Reference { unit, .. }: Reference<K>, reads: &mut Vec<Read<K>>) {
        let position = self.position;
        self.position += 1;
        if self.last.replace(unit) == Some(unit) {
            return;
        }
        let number = self.first + self.ahead.len() as u64;
        let uses = self.uses.entry(unit).or_default();
        uses.push_back(number);
        let is_next = uses.len() == 1;
        self.ahead.push_back((unit, position));
        if is_next && self.kept.contains_key(&unit) {
            self.set_rank(unit, number);
        }
        if self.horizon < self.ahead.len() {
            self.decide(reads);
        }
    }

    fn finish(&mut self, reads: &mut Vec<Read<K>>) {
        while !self.ahead.is_empty() {
            self.decide(reads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn reads_of(mut residency: impl Residency<u8>, references: &[(u8, u32)]) -> Vec<(u8, u64)> {
        let mut reads = Vec::new();
        for &(unit, len) in references {
            residency.push(Reference { unit, len }, &mut reads);
        }
        residency.finish(&mut reads);
        reads.into_iter().map(|read| (read.unit, read.position)).collect()
    }

    fn units(text: &str) -> Vec<(u8, u32)> {
        text.bytes().map(|unit| (unit, 1)).collect()
    }

    fn text(reads: &[(u8, u64)]) -> String {
        reads.iter().map(|(unit, _)| char::from(*unit)).collect()
    }

    /// Drops the oldest of a list.
    fn naive_least_recent(kept: usize, references: &[(u8, u32)]) -> Vec<(u8, u64)> {
        let (mut list, mut reads) = (Vec::new(), Vec::new());
        for (position, (unit, _)) in (0..).zip(references) {
            if !list.contains(unit) {
                reads.push((*unit, position));
            }
            list.retain(|other| other != unit);
            list.push(*unit);
            list.drain(..list.len().saturating_sub(kept));
        }
        reads
    }

    /// Marks the whole area at each read.
    fn naive_assembly(area_bytes: u64, references: &[(u8, u32)]) -> Vec<(u8, u64)> {
        let (mut served, mut start, mut reads) = (vec![false; references.len()], 0, Vec::new());
        let mut roll = |start: &mut usize, end: usize| {
            let unit = references[*start].0;
            reads.push((unit, *start as u64));
            (*start..end).filter(|at| references[*at].0 == unit).for_each(|at| served[at] = true);
            while *start < end && served[*start] {
                *start += 1;
            }
        };
        for end in 1..=references.len() {
            if area_bytes <= references[start..end].iter().map(|(_, len)| u64::from(*len)).sum() {
                roll(&mut start, end);
            }
        }
        while start < references.len() {
            roll(&mut start, references.len());
        }
        reads
    }

    /// Searches the whole future at each read.
    fn naive_optimal(kept: usize, references: &[(u8, u32)]) -> usize {
        let (mut cache, mut reads) = (Vec::new(), 0);
        for (at, (unit, _)) in references.iter().enumerate() {
            if cache.contains(unit) {
                continue;
            }
            reads += 1;
            if cache.len() == kept {
                let next = |kept: &u8| references[at..].iter().position(|(unit, _)| unit == kept).unwrap_or(usize::MAX);
                let (last, _) = cache.iter().enumerate().max_by_key(|(_, kept)| next(kept)).unwrap();
                cache.remove(last);
            }
            cache.push(*unit);
        }
        reads
    }

    #[test]
    fn small_examples_are_read_as_computed_by_hand() {
        let stream = units("aabcabdacb");
        // Two units: a b, c for a, a for b, b for c, d for a, ...
        assert_eq!(text(&reads_of(LeastRecent::new(2), &stream)), "abcabdacb");
        assert_eq!(text(&reads_of(LeastRecent::new(3), &stream)), "abcdcb");
        // Two units: c takes the place of b, b that of c, d that of b, and c and b that of what is never needed again.
        assert_eq!(text(&reads_of(Optimal::new(2, usize::MAX), &stream)), "abcbdcb");
        assert_eq!(
            reads_of(Optimal::new(3, usize::MAX), &stream),
            [(b'a', 0), (b'b', 2), (b'c', 3), (b'd', 6), (b'b', 9)]
        );
        // An area of four: aabc is full, a is read and passed on; bcab is full, b is read, the last b waits behind c and a; and so on.
        assert_eq!(
            reads_of(ForwardAssembly::new(4), &stream),
            [(b'a', 0), (b'b', 2), (b'c', 3), (b'a', 4), (b'd', 6), (b'c', 8), (b'b', 9)]
        );
        // An area that is always full serves each reference by itself.
        assert_eq!(reads_of(ForwardAssembly::new(0), &stream).len(), stream.len());
        assert_eq!(reads_of(ForwardAssembly::new(100), &stream).len(), 4);
        assert_eq!(reads_of(LeastRecent::new(0), &units("aab")).len(), 2);
        assert_eq!(reads_of(Optimal::new(0, 0), &units("")), []);
    }

    #[test]
    fn random_streams_are_read_as_naive_models_read_them() {
        let mut random = SplitMix64::new(48);
        for round in 0..300 {
            let alphabet = 1 + random.below(12);
            let len = random.below(200);
            let mut reference =
                || (u8::try_from(random.below(alphabet)).unwrap(), 1 + u32::try_from(random.below(9)).unwrap());
            let stream: Vec<_> = (0..len).map(|_| reference()).collect();
            for kept in [1, 2, 3, 5, 20] {
                let name = format!("round {round}, {kept} units of {stream:?}");
                assert_eq!(reads_of(LeastRecent::new(kept), &stream), naive_least_recent(kept, &stream), "{name}");
                let area = 4 * kept as u64;
                assert_eq!(reads_of(ForwardAssembly::new(area), &stream), naive_assembly(area, &stream), "{name}");
                let optimal = naive_optimal(kept, &stream);
                assert_eq!(reads_of(Optimal::new(kept, usize::MAX), &stream).len(), optimal, "{name}");
                // The less is known, the more is read, on the whole; without a future it is the least recently used.
                assert!(optimal <= reads_of(Optimal::new(kept, 4), &stream).len(), "{name}");
                assert_eq!(reads_of(Optimal::new(kept, 0), &stream), naive_least_recent(kept, &stream), "{name}");
            }
        }
    }
}
