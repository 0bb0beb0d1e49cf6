//! Estimate of the number of distinct chunks and their total length, in memory that does not depend on their number.
//!
//! Distinct sampling (Gibbons, "Distinct Sampling for Highly-Accurate Answers to Distinct Values Queries and Event Reports",
//! VLDB 2001, section 3): a chunk is kept if its hash begins with a number of zeros (the level); when the table is full the level
//! rises by one and drops half of the chunks. The kept chunks are a uniform sample of the distinct chunks, however often each occurs,
//! so that the sum of their lengths, times two to the power of the level, estimates that of all without bias. (Xie et al.,
//! "Estimating Duplication by Content-based Sampling", USENIX ATC 2013, estimate duplicates so.) At level 0 it is exact, but for
//! equal hashes of 64 bits.

use super::estimate::Estimate;
use super::extrapolate::Captures;
use super::survey::{CLASSES, GROUPS, UnitOf};

/// Bytes of a slot of the table.
pub const SLOT_BYTES: usize = size_of::<u64>() + 2 * size_of::<u32>();
/// A table is full at three quarters of its slots.
const FULL: (usize, usize) = (3, 4);
/// Bits of a chunk's length.
const LENGTH_BITS: u32 = 24;
/// Bits of its class, above those of the length.
const CLASS_BITS: u32 = 3;
/// Above both: the root of the share that its region compressed to, in units of the highest number.
const STORED_SHIFT: u32 = LENGTH_BITS + CLASS_BITS;
const STORED_MAX: u32 = (1 << (u32::BITS - STORED_SHIFT)) - 1;
const _: () = assert!(CLASSES <= 1 << CLASS_BITS && GROUPS <= u32::BITS as usize);

/// State of a chunk in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Novelty {
    /// It occurs for the first time.
    New,
    /// It was there.
    Known,
    /// It is not of those that are kept.
    NotKept,
}

/// The different chunks seen so far.
#[derive(Debug)]
pub struct Distinct {
    /// Hashes, in open addressing; 0 is an empty slot.
    hashes: Vec<u64>,
    /// Length of each, the class in which it came first, and what its region compressed to; 0 in an empty slot.
    lengths: Vec<u32>,
    /// Groups of the sample that each came in, a bit for each.
    groups: Vec<u32>,
    kept: usize,
    level: u32,
}

impl Distinct {
    /// Makes a table of `slots` slots, a power of two.
    pub fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two() && 4 <= slots, "slots of a table are a power of two");
        Self { hashes: vec![0; slots], lengths: vec![0; slots], groups: vec![0; slots], kept: 0, level: 0 }
    }

    /// Takes a chunk by a uniform hash of its bytes and its length, which is below 16 MiB and not 0, and the unit that has it.
    pub fn insert(&mut self, hash: u64, len: u32, unit: UnitOf) -> Novelty {
        // 0 stands for an empty slot.
        let hash = hash.max(1);
        if !self.keeps(hash) {
            return Novelty::NotKept;
        }
        let slot = self.slot_of(hash);
        self.groups[slot] |= 1 << unit.group;
        if self.hashes[slot] == hash {
            return Novelty::Known;
        }
        self.hashes[slot] = hash;
        self.lengths[slot] = len | u32::from(unit.class) << LENGTH_BITS;
        self.kept += 1;
        while self.hashes.len() / FULL.1 * FULL.0 < self.kept {
            self.rise();
        }
        Novelty::New
    }

    /// Returns true if every distinct chunk is kept.
    pub fn is_exact(&self) -> bool {
        self.level == 0
    }

    /// Returns the length of all different chunks together, in bytes.
    pub fn bytes(&self) -> Estimate {
        self.sum(bytes_of)
    }

    /// Records the share that a chunk's region compressed to, if the chunk is kept.
    pub fn set_stored(&mut self, hash: u64, share: f64) {
        let hash = hash.max(1);
        let slot = self.slot_of(hash);
        if let (Some(held), Some(length)) = (self.hashes.get(slot), self.lengths.get_mut(slot))
            && *held == hash
        {
            let units = (1..=STORED_MAX).find(|units| share <= stored_share(*units)).unwrap_or(STORED_MAX);
            *length = *length & ((1 << STORED_SHIFT) - 1) | units << STORED_SHIFT;
        }
    }

    /// Returns in how many groups the different chunks came, by their bytes.
    pub fn captures(&self) -> Captures {
        self.captures_by(bytes_of)
    }

    /// Returns the same by the stored bytes, as far as they are known.
    pub fn stored_captures(&self) -> Captures {
        self.captures_by(|length| bytes_of(length) * stored_share(length >> STORED_SHIFT))
    }

    fn captures_by(&self, weight: impl Fn(u32) -> f64) -> Captures {
        let mut captures = Captures::default();
        for (length, groups) in self.lengths.iter().zip(&self.groups).filter(|(length, _)| **length != 0) {
            let class = usize::try_from(length >> LENGTH_BITS & ((1 << CLASS_BITS) - 1)).expect("a few classes");
            captures.add(class, *groups, weight(*length) / self.probability());
        }
        captures
    }

    /// Returns how many different chunks there are.
    pub fn chunks(&self) -> Estimate {
        self.sum(|_| 1.0)
    }

    /// The estimator of Horvitz and Thompson for a sum over chunks that are kept with the same probability, independently.
    fn sum(&self, weight: impl Fn(u32) -> f64) -> Estimate {
        let (mut sum, mut squares) = (0.0, 0.0);
        for length in self.lengths.iter().filter(|length| **length != 0) {
            let weight = weight(*length);
            sum += weight;
            squares += weight * weight;
        }
        let probability = self.probability();
        let deviation = if sum == 0.0 { 0.0 } else { (squares * (1.0 - probability)).sqrt() / sum };
        Estimate { value: sum / probability, deviation }
    }

    fn probability(&self) -> f64 {
        0.5_f64.powi(self.level.cast_signed())
    }

    fn keeps(&self, hash: u64) -> bool {
        self.level <= hash.leading_zeros()
    }

    /// Returns where a hash is, or is to be. The table is never full.
    fn slot_of(&self, hash: u64) -> usize {
        let mask = self.hashes.len() - 1;
        // The low bits, since high ones say whether it is kept.
        let mut slot = usize::try_from(hash & mask as u64).expect("a slot of the table");
        while self.hashes.get(slot).is_some_and(|held| *held != 0 && *held != hash) {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Keeps half as many.
    fn rise(&mut self) {
        self.level += 1;
        let slots = self.hashes.len();
        let hashes = std::mem::replace(&mut self.hashes, vec![0; slots]);
        let lengths = std::mem::replace(&mut self.lengths, vec![0; slots]);
        let groups = std::mem::replace(&mut self.groups, vec![0; slots]);
        self.kept = 0;
        for ((hash, length), groups) in hashes.into_iter().zip(lengths).zip(groups) {
            if hash != 0 && self.keeps(hash) {
                let slot = self.slot_of(hash);
                (self.hashes[slot], self.lengths[slot], self.groups[slot]) = (hash, length, groups);
                self.kept += 1;
            }
        }
    }
}

fn stored_share(units: u32) -> f64 {
    (f64::from(units) / f64::from(STORED_MAX)).powi(2)
}

fn bytes_of(length: u32) -> f64 {
    f64::from(length & ((1 << LENGTH_BITS) - 1))
}

/// Recent chunks, as far as they fit: each slot holds the last chunk that mapped to it. A forgotten chunk counts as new.
#[derive(Debug)]
pub struct Recent {
    tags: Vec<u32>,
}

/// Bytes of a slot of recent chunks.
pub const RECENT_BYTES: usize = size_of::<u32>();

impl Recent {
    /// Makes a table of `slots` slots, a power of two.
    pub fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "slots are a power of two");
        Self { tags: vec![0; slots] }
    }

    /// Adds a chunk by its hash. Returns true if it was present; false positives are one in four billion.
    pub fn insert(&mut self, hash: u64) -> bool {
        let slot = usize::try_from(hash & (self.tags.len() as u64 - 1)).expect("a slot of the table");
        let tag = u32::try_from(hash >> 32).expect("half of a hash").max(1);
        self.tags.get_mut(slot).is_some_and(|held| std::mem::replace(held, tag) == tag)
    }
}

/// Returns the relative standard deviation of [`Distinct::bytes`] of a table of `slots` slots at worst, once it was full,
/// for chunks of long streams: half of a full table is kept after the level rises, and lengths of half a mean and an
/// exponential rest (Onefold's) have a deviation of half their mean. Where most chunks are small files and a few are long, lengths
/// vary more, and so does the estimate: see [`Estimate::deviation`].
#[cfg(test)]
pub(super) fn worst_deviation(slots: usize) -> f64 {
    let kept = slots / FULL.1 * FULL.0 / 2;
    let kept = crate::counts::float(kept as u64);
    // sqrt(1 + 1/4) for the lengths; 1.2 allows for the halving itself, which is random.
    1.25_f64.sqrt() * 1.2 / kept.sqrt().max(std::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onefold_engine::random::SplitMix64;

    use super::*;

    fn mixed(number: u64) -> u64 {
        SplitMix64::new(number).next_u64()
    }

    /// A stream of chunks with repeats, most of a few: name, length.
    fn stream(seed: u64, len: u64) -> impl Iterator<Item = (u64, u32)> {
        (0..len).map(move |number| {
            let draw = mixed(seed << 32 | number);
            // Half are new, a quarter repeat something, a quarter are of ten that come all the time.
            let name = match draw % 4 {
                0 => (draw >> 2) % 10,
                1 => 1000 + (draw >> 2) % (number + 1),
                _ => 1000 + number,
            };
            let length = 2048 + u32::try_from(mixed(name ^ seed) % 8192).unwrap();
            (name | seed << 40, length)
        })
    }

    #[test]
    fn what_fits_is_counted() {
        let mut distinct = Distinct::new(1 << 14);
        let mut truth = BTreeMap::new();
        for (name, len) in stream(1, 10_000) {
            let novelty = distinct.insert(mixed(name), len, UnitOf::default());
            let expected = if truth.insert(name, len).is_none() { Novelty::New } else { Novelty::Known };
            assert_eq!(novelty, expected);
        }
        assert!(distinct.is_exact());
        let bytes: u64 = truth.values().map(|len| u64::from(*len)).sum();
        #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
        let (bytes, chunks) = (bytes as f64, truth.len() as f64);
        assert_eq!(distinct.bytes(), Estimate::counted(bytes));
        assert_eq!(distinct.chunks(), Estimate::counted(chunks));
    }

    /// The smallest table that `advise` makes has 32,768 slots; this one has an eighth of that, and must be within 5%.
    #[test]
    fn an_estimate_is_within_its_error_in_19_of_20_streams() {
        let (mut within_five_percent, mut within_stated) = (0, 0);
        let mut sum = 0.0;
        for seed in 1..=100 {
            let mut distinct = Distinct::new(4096);
            let mut truth = BTreeMap::new();
            for (name, len) in stream(seed, 40_000) {
                distinct.insert(mixed(name), len, UnitOf::default());
                truth.insert(name, f64::from(len));
            }
            assert!(!distinct.is_exact(), "seed {seed}");
            let bytes: f64 = truth.values().sum();
            let estimate = distinct.bytes();
            let error = estimate.value / bytes - 1.0;
            within_five_percent += u32::from(error.abs() <= 0.05);
            within_stated += u32::from(error.abs() <= estimate.error());
            sum += error;
            assert!(estimate.deviation <= worst_deviation(4096), "seed {seed}: {estimate:?}");
        }
        assert!(95 <= within_five_percent, "{within_five_percent} of 100 within 5%");
        assert!(90 <= within_stated, "{within_stated} of 100 within the stated error");
        assert!((sum / 100.0).abs() < 0.01, "biased by {}", sum / 100.0);
    }

    #[test]
    fn a_chunk_is_of_its_first_class_and_of_all_its_groups() {
        let unit = |class, group| UnitOf { class, group, ..UnitOf::default() };
        let mut distinct = Distinct::new(64);
        distinct.insert(mixed(1), 100, unit(1, 3));
        distinct.insert(mixed(1), 100, unit(2, 31));
        distinct.insert(mixed(1), 100, unit(2, 31));
        distinct.insert(mixed(2), 10, unit(4, 0));
        let mut expected = Captures::default();
        expected.add(1, 1 << 3 | 1 << 31, 100.0);
        expected.add(4, 1, 10.0);
        assert_eq!(distinct.captures(), expected);
        assert_eq!(distinct.bytes().value.to_bits(), 110.0_f64.to_bits());
    }

    #[test]
    fn recent_chunks_are_known_until_others_take_their_place() {
        let mut recent = Recent::new(4);
        assert!(!recent.insert(5 << 32 | 1));
        assert!(recent.insert(5 << 32 | 1));
        assert!(!recent.insert(6 << 32 | 1));
        assert!(!recent.insert(5 << 32 | 1));
    }
}
