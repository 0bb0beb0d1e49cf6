//! A blocked Bloom filter over the fingerprints' own bits.
//!
//! All bits of a fingerprint lie in one cache line, so that a probe is one memory access (Putze, Sanders and Singler,
//! "Cache-, Hash- and Space-Efficient Bloom Filters", WEA 2007, section 3). The price is a higher rate of false
//! positives than a plain filter's, [`false_positive_rate`]: blocks do not fill evenly.
//! Fingerprints are keyed and uniform, so their bits are taken as they are: bytes 8..16 choose the block, bytes 0..8
//! and 16..20 the bits. A fingerprint that was set is always found.

use std::hint::black_box;

use crate::error::{Error, Result};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::{Fields, Key};

/// Bits of a block: one cache line.
const BLOCK_BITS: u32 = 512;
const BLOCK_BYTES: usize = 64;
const BLOCK_WORDS: usize = 8;

/// Bits of a fingerprint that choose a bit of its block.
const CHOICE_BITS: u32 = BLOCK_BITS.trailing_zeros();

/// Most bits per fingerprint: 10 choices of 9 bits out of the 96 that are left beside the block's.
pub const FILTER_HASHES_MAX: u32 = 10;

const MAGIC: [u8; 8] = *b"OFFILTER";
const HEADER_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([u64; BLOCK_WORDS]);

/// The filter.
pub struct Filter {
    blocks: Vec<Block>,
    hashes: u32,
    ones: u64,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { blocks, hashes, ones } = self;
        write!(f, "Filter {{ blocks: {}, hashes: {hashes}, ones: {ones} }}", blocks.len())
    }
}

impl Filter {
    /// Makes an empty filter of at most `bytes` (at least one block) that sets `hashes` bits per fingerprint, clamped to
    /// 1..=[`FILTER_HASHES_MAX`].
    pub fn new(bytes: usize, hashes: u32) -> Self {
        let blocks = vec![Block::default(); (bytes / BLOCK_BYTES).max(1)];
        Self { blocks, hashes: hashes.clamp(1, FILTER_HASHES_MAX), ones: 0 }
    }

    /// Returns the share of bits that are set, 0 to 1. Near one half the filter is as good as its size allows.
    pub fn fill(&self) -> f64 {
        self.share(self.ones)
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio for people and thresholds")]
    fn share(&self, ones: u64) -> f64 {
        ones as f64 / (self.blocks.len() as f64 * f64::from(BLOCK_BITS))
    }

    fn block_of(&self, key: &Key) -> usize {
        let product = u128::from(key.middle()) * self.blocks.len() as u128;
        usize::try_from(product >> 64).expect("the block is below the number of blocks")
    }

    /// Touches the blocks of several keys, so that their memory is on its way together when they are probed.
    pub fn prefetch(&self, keys: impl Iterator<Item = Key>) {
        black_box(keys.fold(0, |sum, key| sum ^ self.blocks[self.block_of(&key)].0[0]));
    }

    /// Sets the bits of a key; says whether all were set already: the key may have been set before.
    pub fn test_and_set(&mut self, key: &Key) -> bool {
        let index = self.block_of(key);
        let block = &mut self.blocks[index].0;
        let mut choices = u128::from(key.head()) | u128::from(key.tail()) << 64;
        let mut added = 0;
        for _ in 0..self.hashes {
            let bit = u32::try_from(choices & u128::from(BLOCK_BITS - 1)).expect("9 bits");
            choices >>= CHOICE_BITS;
            let word = &mut block[(bit / u64::BITS) as usize];
            added += *word >> (bit % u64::BITS) & 1 ^ 1;
            *word |= 1 << (bit % u64::BITS);
        }
        self.ones += added;
        added == 0
    }

    /// Sets the bits of all keys in order; says of each whether it may have been set before, earlier keys included.
    pub fn test_and_set_all(&mut self, keys: &[Key], out: &mut Vec<bool>) {
        out.clear();
        for piece in keys.chunks(64) {
            self.prefetch(piece.iter().copied());
            out.extend(piece.iter().map(|key| self.test_and_set(key)));
        }
    }

    /// Writes the filter out.
    pub fn save(&self, generation: u64, out: &mut SealedWriter) -> Result<()> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&generation.to_le_bytes());
        header.extend_from_slice(&(self.blocks.len() as u64).to_le_bytes());
        header.extend_from_slice(&self.hashes.to_le_bytes());
        header.resize(HEADER_BYTES, 0);
        out.write(&header)?;
        for Block(words) in &self.blocks {
            let mut bytes = [0; BLOCK_BYTES];
            let places = bytes.chunks_exact_mut(size_of::<u64>());
            places.zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
            out.write(&bytes)?;
        }
        Ok(())
    }

    /// Reads a filter of the given generation back; an error if it is another's, has another shape, or is damaged.
    pub fn load(&mut self, generation: u64, mut from: SealedReader) -> Result<()> {
        let mut header = [0; HEADER_BYTES];
        from.read(&mut header)?;
        let mut fields = Fields::new(&header);
        let found = (fields.array(), fields.u64(), fields.u64(), fields.u32());
        if found != (Some(MAGIC), Some(generation), Some(self.blocks.len() as u64), Some(self.hashes)) {
            return Err(Error::damaged("filter", "has another generation or shape"));
        }
        self.ones = 0;
        for Block(words) in &mut self.blocks {
            let mut bytes = [0; BLOCK_BYTES];
            from.read(&mut bytes)?;
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
                self.ones += u64::from(word.count_ones());
            }
        }
        from.finish()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.blocks.fill(Block::default());
        self.ones = 0;
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
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::io::Disk;
    use crate::kv::mem_disk::{MemDisk, fingerprint};

    fn keys(range: std::ops::Range<u64>) -> Vec<Key> {
        range.map(|number| Key::from(&fingerprint(number))).collect()
    }

    #[test]
    fn what_was_set_is_found_and_false_positives_are_as_rare_as_the_formula_says() {
        for (bytes, hashes) in [(16 << 10, 5), (16 << 10, 10), (24 << 10, 6), (8 << 10, 1)] {
            let count = 16_000;
            let mut filter = Filter::new(bytes, hashes);
            let mut found = Vec::new();
            filter.test_and_set_all(&keys(0..count), &mut found);
            filter.test_and_set_all(&keys(0..count), &mut found);
            assert!(found.iter().all(|&found| found));
            let before = filter.fill();
            assert!(0.05 < before);
            assert!(before < 1.0);
            // Each probe sets bits as well: few of them leave the rate as it is.
            filter.test_and_set_all(&keys(count..count + 1_000), &mut found);
            let rate = f64::from(u32::try_from(found.iter().filter(|&&found| found).count()).unwrap()) / 1_000.0;
            let expected = false_positive_rate(bytes, hashes, count + 500);
            let tolerance = 4.0 * (expected * (1.0 - expected) / 1_000.0).sqrt() + 0.01;
            assert!((rate - expected).abs() < tolerance, "{bytes} bytes, {hashes} hashes: {rate}, not {expected}");
        }
    }

    #[test]
    fn a_saved_filter_comes_back_and_a_damaged_one_does_not() {
        let disk = MemDisk::default();
        let path = PathBuf::from("filter");
        let file = disk.create(&path).unwrap();
        let mut filter = Filter::new(4096, 6);
        let mut found = Vec::new();
        filter.test_and_set_all(&keys(0..500), &mut found);
        let mut writer = SealedWriter::create(Arc::clone(&file)).unwrap();
        filter.save(7, &mut writer).unwrap();
        let seal = writer.finish().unwrap();
        let load = |bytes, hashes, generation| {
            let mut filter = Filter::new(bytes, hashes);
            let reader = SealedReader::open(Arc::clone(&file), path.clone(), seal)?;
            filter.load(generation, reader).map(|()| filter)
        };
        let mut loaded = load(4096, 6, 7).unwrap();
        assert_eq!(loaded.ones, filter.ones);
        loaded.test_and_set_all(&keys(0..500), &mut found);
        assert!(found.iter().all(|&found| found));
        assert!(load(4096, 6, 8).is_err());
        assert!(load(4096, 5, 7).is_err());
        assert!(load(2048, 6, 7).is_err());
        disk.damage(&path, |bytes| bytes[2000] ^= 4);
        assert!(load(4096, 6, 7).is_err());
    }
}
