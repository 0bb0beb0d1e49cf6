//! A blocked Bloom filter over the bits of fingerprints, which grows segment by segment.
//!
//! Blocks do not fill evenly, so the rate of false positives, [`false_positive_rate`], is higher than that of a filter without blocks.
//! Fingerprints are keyed and uniform, so their own bits serve as hashes: bytes 0..8 choose segment and block, bytes 8..20 the
//! bits. A fingerprint that was set is always found.
//!
//! The first bits of a fingerprint choose its segment, as they choose its bucket in the table. So a segment that is too full
//! is rebuilt, larger, from a few buckets, while all others stay in use (`Filter::replace`). A filter that has to shrink
//! is folded: neighboring blocks of a segment become one, which loses no fingerprint.

use onefold_accel::memory::will_need;

use crate::bloom::{self, BLOCK_BITS, BLOCK_BYTES, BLOCK_WORDS, Block};
use crate::error::{Error, Result};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::{Fields, Key, part_of};

/// Most bits per fingerprint: 10 choices of 9 bits out of the 96 that do not choose the block.
pub(crate) const FILTER_HASHES_MAX: u32 = 10;

/// Segments of a filter. Growth needs the memory of one in addition: a 64th.
pub(crate) const FILTER_SEGMENTS: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 6;

/// Number of blocks that divides the size of larger segments, so that they can be folded six times.
const BLOCKS_STEP: usize = 64;

const MAGIC: [u8; 8] = *b"OFFILTR2";
const HEADER_BYTES: usize = 32;

/// Part of a filter for fingerprints with the same first bits.
pub(crate) struct Segment {
    blocks: Vec<Block>,
    hashes: u32,
    ones: u64,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { blocks, hashes, ones } = self;
        write!(f, "Segment {{ blocks: {}, hashes: {hashes}, ones: {ones} }}", blocks.len())
    }
}

impl Segment {
    /// Returns the number of blocks of a segment of `bytes`.
    fn blocks_of(bytes: usize) -> usize {
        let blocks = bytes / BLOCK_BYTES;
        if blocks < 2 * BLOCKS_STEP { blocks.max(1) } else { blocks - blocks % BLOCKS_STEP }
    }

    fn new(bytes: usize, hashes: u32) -> Self {
        let blocks = Self::blocks_of(bytes);
        Self { blocks: vec![Block::default(); blocks], hashes, ones: 0 }
    }

    /// Returns the memory of the segment.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// Returns the share of bits that are set, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people and thresholds")]
    pub(crate) fn fill(&self) -> f64 {
        self.ones as f64 / (self.blocks.len() as f64 * f64::from(BLOCK_BITS))
    }

    fn block_of(&self, key: &Key) -> usize {
        part_of(key.head() << SEGMENT_BITS, self.blocks.len())
    }

    /// Sets the bits of a key, which must belong to the segment. Returns true if all were set.
    pub(crate) fn test_and_set(&mut self, key: &Key) -> bool {
        let index = self.block_of(key);
        let choices = u128::from(key.middle()) | u128::from(key.tail()) << 64;
        let added = self.blocks[index].set(choices, self.hashes);
        self.ones += added;
        added == 0
    }

    /// Halves the segment; returns false if its number of blocks is odd.
    fn fold(&mut self) -> bool {
        let is_folded = bloom::fold(&mut self.blocks);
        self.count_ones();
        is_folded
    }

    fn count_ones(&mut self) {
        self.ones = self.blocks.iter().flat_map(|Block(words)| words).map(|word| u64::from(word.count_ones())).sum();
    }
}

/// The filter.
#[derive(Debug)]
pub struct Filter {
    segments: Vec<Segment>,
    hashes: u32,
}

fn segment_of(key: &Key) -> usize {
    usize::try_from(key.head() >> (u64::BITS - SEGMENT_BITS)).expect("six bits")
}

impl Filter {
    /// Makes an empty filter of at most `bytes` (at least one block a segment) that sets `hashes` bits per fingerprint,
    /// clamped to 1..=`FILTER_HASHES_MAX`.
    pub fn new(bytes: usize, hashes: u32) -> Self {
        let hashes = hashes.clamp(1, FILTER_HASHES_MAX);
        let each = bytes / FILTER_SEGMENTS;
        Self { segments: (0..FILTER_SEGMENTS).map(|_| Segment::new(each, hashes)).collect(), hashes }
    }

    /// Returns the memory of the filter.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::bytes).sum()
    }

    /// Returns the memory of a filter whose segments are all as large as the largest.
    pub(crate) fn bytes_of_largest(&self) -> usize {
        FILTER_SEGMENTS * self.segments.iter().map(Segment::bytes).max().unwrap_or(0)
    }

    /// Returns the share of bits that are set, 0 to 1. A filter is best for its size near one half.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people and thresholds")]
    pub(crate) fn fill(&self) -> f64 {
        let ones: u64 = self.segments.iter().map(|segment| segment.ones).sum();
        ones as f64 / (self.bytes() as f64 * 8.0)
    }

    /// Returns a segment by the first six bits of its fingerprints.
    pub(crate) fn segment(&self, index: usize) -> &Segment {
        &self.segments[index]
    }

    /// Returns the memory of a segment of at most `bytes`.
    pub(crate) fn segment_bytes(bytes: usize) -> usize {
        Segment::blocks_of(bytes) * BLOCK_BYTES
    }

    /// Returns an empty segment of at most `bytes`, for [`Filter::replace`].
    pub(crate) fn new_segment(&self, bytes: usize) -> Segment {
        Segment::new(bytes, self.hashes)
    }

    /// Replaces the segment with this index. Fingerprints that the new one was not given are lost.
    pub(crate) fn replace(&mut self, index: usize, segment: Segment) {
        self.segments[index] = segment;
    }

    /// Prefetches the block of a key that will be probed soon.
    pub fn prefetch(&self, key: &Key) {
        let segment = &self.segments[segment_of(key)];
        will_need(&segment.blocks[segment.block_of(key)]);
    }

    /// Sets the bits of a key. Returns true if all were set: the key may have been set before.
    pub fn test_and_set(&mut self, key: &Key) -> bool {
        self.segments[segment_of(key)].test_and_set(key)
    }

    /// Writes the filter.
    pub(crate) fn save(&self, generation: u64, out: &mut SealedWriter) -> Result<()> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&generation.to_le_bytes());
        header.extend_from_slice(&self.hashes.to_le_bytes());
        header.resize(HEADER_BYTES, 0);
        out.write(&header)?;
        self.segments.iter().try_for_each(|segment| out.write(&(segment.blocks.len() as u64).to_le_bytes()))?;
        for Block(words) in self.segments.iter().flat_map(|segment| &segment.blocks) {
            let mut bytes = [0; BLOCK_BYTES];
            let places = bytes.chunks_exact_mut(size_of::<u64>());
            places.zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
            out.write(&bytes)?;
        }
        Ok(())
    }

    /// Reads the filter of a generation, and folds segments until it takes at most `bytes_max`. Fails if the filter is of
    /// another generation, cannot be folded so far, or is damaged.
    pub(crate) fn load(generation: u64, bytes_max: usize, mut from: SealedReader) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged("filter", reason);
        let mut header = [0; HEADER_BYTES];
        from.read(&mut header)?;
        let mut fields = Fields::new(&header);
        if (fields.array(), fields.u64()) != (Some(MAGIC), Some(generation)) {
            return Err(damaged("is none of this version and generation"));
        }
        let hashes = fields.u32().filter(|hashes| (1..=FILTER_HASHES_MAX).contains(hashes));
        let hashes = hashes.ok_or_else(|| damaged("does not make sense"))?;
        let mut lens = Vec::with_capacity(FILTER_SEGMENTS);
        let mut left = (from.left() / BLOCK_BYTES as u64).min(usize::MAX as u64);
        for _ in 0..FILTER_SEGMENTS {
            let mut len = [0; size_of::<u64>()];
            from.read(&mut len)?;
            let len = u64::from_le_bytes(len);
            // Before memory is taken for it.
            left = left.checked_sub(len).filter(|_| len != 0).ok_or_else(|| damaged("does not make sense"))?;
            lens.push(usize::try_from(len).map_err(|_| damaged("does not make sense"))?);
        }
        let mut segments = Vec::with_capacity(FILTER_SEGMENTS);
        for len in lens {
            let mut segment = Segment { blocks: Vec::new(), hashes, ones: 0 };
            segment.blocks.reserve_exact(len);
            for _ in 0..len {
                let mut bytes = [0; BLOCK_BYTES];
                from.read(&mut bytes)?;
                let mut words = [0; BLOCK_WORDS];
                words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
                segment.blocks.push(Block(words));
            }
            segment.count_ones();
            while bytes_max / FILTER_SEGMENTS < segment.bytes() && segment.blocks.len() != 1 {
                if !segment.fold() {
                    return Err(damaged("is too large and cannot be folded"));
                }
            }
            segments.push(segment);
        }
        from.finish()?;
        Ok(Self { segments, hashes })
    }
}

/// Returns the rate of false positives to expect of a filter of `bytes` with `hashes` bits for each of `keys`.
///
/// Putze, Sanders and Singler, equation 3: the mean over the Poisson-distributed load of a block of the plain filter's
/// rate, here with the exact chance `1 - (1 - 1/B)^(k i)` that one of the B bits is set by i keys of k bits.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub fn false_positive_rate(bytes: usize, hashes: u32, keys: u64) -> f64 {
    let load = keys as f64 / (bytes / BLOCK_BYTES).max(1) as f64;
    let hashes = f64::from(hashes.clamp(1, FILTER_HASHES_MAX));
    let mut log_chance = -load; // of i keys in a block, for i = 0
    let mut rate = 0.0;
    let mut i = 0.0;
    // Ten standard deviations past the mean what is left does not count.
    while i <= load + 10.0 * load.sqrt() + 10.0 {
        let set = 1.0 - (1.0 - 1.0 / f64::from(BLOCK_BITS)).powf(hashes * i);
        rate += f64::exp(log_chance) * set.powf(hashes);
        i += 1.0;
        log_chance += f64::ln(load / i);
    }
    rate.min(1.0)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::io::Disk;
    use crate::testing::fingerprint;
    use crate::testing::sim::SimDisk;

    /// Sets the bits of all keys in order; returns for each if it may have been set before.
    fn test_and_set_all(filter: &mut Filter, keys: &[Key]) -> Vec<bool> {
        keys.iter().map(|key| filter.test_and_set(key)).collect()
    }

    fn keys(range: std::ops::Range<u64>) -> Vec<Key> {
        range.map(|number| Key::from(&fingerprint(number))).collect()
    }

    #[test]
    fn what_was_set_is_found_and_false_positives_are_as_rare_as_the_formula_says() {
        for (bytes, hashes) in [(16 << 10, 5), (16 << 10, 10), (24 << 10, 6), (8 << 10, 1)] {
            let count = 16_000;
            let mut filter = Filter::new(bytes, hashes);
            test_and_set_all(&mut filter, &keys(0..count));
            let found = test_and_set_all(&mut filter, &keys(0..count));
            assert!(found.iter().all(|&found| found));
            let before = filter.fill();
            assert!(0.05 < before);
            assert!(before < 1.0);
            // Each probe sets bits as well: few of them leave the rate as it is.
            let found = test_and_set_all(&mut filter, &keys(count..count + 1_000));
            let rate = f64::from(u32::try_from(found.iter().filter(|&&found| found).count()).unwrap()) / 1_000.0;
            let expected = false_positive_rate(bytes, hashes, count + 500);
            let tolerance = 4.0 * (expected * (1.0 - expected) / 1_000.0).sqrt() + 0.01;
            assert!((rate - expected).abs() < tolerance, "{bytes} bytes, {hashes} hashes: {rate}, not {expected}");
        }
    }

    fn save(filter: &Filter, disk: &SimDisk, path: &Path) -> crate::kv::sealed::Seal {
        let mut writer = SealedWriter::create(disk.create(path).unwrap()).unwrap();
        filter.save(7, &mut writer).unwrap();
        writer.finish().unwrap()
    }

    fn load(disk: &SimDisk, path: &Path, seal: crate::kv::sealed::Seal, generation: u64, max: usize) -> Result<Filter> {
        let file = disk.open(path, crate::io::Access::Read)?;
        Filter::load(generation, max, SealedReader::open(file, path.to_path_buf(), seal)?)
    }

    #[test]
    fn a_saved_filter_comes_back_folded_where_memory_is_short_and_a_damaged_one_does_not() {
        let disk = SimDisk::default();
        let path = PathBuf::from("filter");
        let mut filter = Filter::new(1 << 20, 6);
        test_and_set_all(&mut filter, &keys(0..5_000));
        let seal = save(&filter, &disk, &path);
        for (bytes_max, bytes) in [(2 << 20, 1 << 20), (1 << 20, 1 << 20), ((1 << 20) - 1, 1 << 19), (0, 4096)] {
            let mut loaded = load(&disk, &path, seal, 7, bytes_max).unwrap();
            assert_eq!(loaded.bytes(), bytes);
            if bytes == 1 << 20 {
                assert!((loaded.fill() - filter.fill()).abs() < 1e-9);
            }
            let found = test_and_set_all(&mut loaded, &keys(0..5_000));
            assert!(found.iter().all(|&found| found), "folded to {bytes} bytes");
        }
        assert!(load(&disk, &path, seal, 8, 1 << 20).is_err());
        disk.damage(&path, |bytes| bytes[2000] ^= 4);
        assert!(load(&disk, &path, seal, 7, 1 << 20).is_err());
    }

    #[test]
    fn lengths_that_do_not_fit_the_file_are_refused_before_memory_is_taken() {
        let disk = SimDisk::default();
        let path = PathBuf::from("filter");
        save(&Filter::new(4096, 6), &disk, &path);
        for len in [0, u64::MAX, 1 << 40, 2] {
            disk.damage(&path, |bytes| bytes[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&u64::to_le_bytes(len)));
            let mut all =
                vec![0; usize::try_from(disk.open(&path, crate::io::Access::Read).unwrap().len().unwrap()).unwrap()];
            disk.open(&path, crate::io::Access::Read).unwrap().read_at(0, &mut all).unwrap();
            let seal = crate::kv::sealed::Seal { len: all.len() as u64, checksum: blake3::hash(&all).into() };
            assert!(load(&disk, &path, seal, 7, 1 << 20).is_err(), "{len}");
        }
    }

    #[test]
    fn a_segment_rebuilt_larger_has_fewer_false_positives_and_loses_no_key_it_was_given() {
        let mut filter = Filter::new(64 << 10, 5);
        let all = keys(0..100_000);
        test_and_set_all(&mut filter, &all);
        assert!(0.6 < filter.fill());
        for index in 0..FILTER_SEGMENTS {
            let mut segment = filter.new_segment(4 * filter.segment(index).bytes());
            all.iter().filter(|key| segment_of(key) == index).for_each(|key| {
                segment.test_and_set(key);
            });
            filter.replace(index, segment);
        }
        assert!(filter.fill() < 0.3);
        assert_eq!(filter.bytes(), 256 << 10);
        let found = test_and_set_all(&mut filter, &all);
        assert!(found.iter().all(|&found| found));
        let found = test_and_set_all(&mut filter, &keys(100_000..101_000));
        assert!(found.iter().filter(|&&found| found).count() < 20);
    }
}
