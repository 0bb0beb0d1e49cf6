//! Blocks of an image and their names.
//!
//! A block of level L has 2^L KiB and begins at a multiple of its length. A name is the first 128 bits of a hash of the contents.
//! [`BlockHash::Tree`] computes the names of all levels in one pass: the name of a unit of 1 KiB is its keyed BLAKE3, and the name
//! of a larger block is the keyed BLAKE3 of the names of its halves, with a key for each level. The other hashes read the image
//! again for each level, as the paper does.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use md5::{Digest, Md5};
use onefold_accel::fingerprint::keyed_hashes;
use serde::{Deserialize, Serialize};

use crate::image::parallel;

/// Bytes of the smallest block.
pub const UNIT_BYTES: usize = 1 << 10;
/// The largest level: blocks of 128 KiB.
pub const LEVEL_MAX: u8 = 7;
/// Levels.
pub const LEVELS: usize = LEVEL_MAX as usize + 1;
/// Units of the largest block.
pub const UNITS_MAX: usize = 1 << LEVEL_MAX;
/// Bytes of a name. Among 2^32 blocks, two different ones have the same name with a chance below 2^-64.
pub const NAME_BYTES: usize = 16;

/// Units of a part that one thread names at a time: 512 KiB, which stay in a core's cache for the levels above the first.
const PART_UNITS: usize = 4 * UNITS_MAX;

/// A name.
pub type Name = [u8; NAME_BYTES];

/// Computation of names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockHash {
    /// Keyed BLAKE3 of units and of pairs of names: all levels from one pass.
    Tree,
    /// Keyed BLAKE3 of each block.
    Blake3,
    /// SHA-1 of each block.
    Sha1,
    /// MD5 of each block, as in the paper.
    Md5,
}

impl BlockHash {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tree, Self::Blake3, Self::Sha1, Self::Md5];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Blake3 => "blake3",
            Self::Sha1 => "sha1",
            Self::Md5 => "md5",
        }
    }
}

/// Keys of the names of each level.
#[derive(Clone)]
pub struct BlockKeys {
    unit: [u8; 32],
    /// The key of level L + 1 stands at index L.
    pairs: [[u8; 32]; LEVEL_MAX as usize],
}

impl std::fmt::Debug for BlockKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockKeys")
    }
}

impl BlockKeys {
    /// Derives the keys from one.
    pub fn new(key: &[u8; 32]) -> Self {
        let of = |level: u8| *blake3::keyed_hash(key, &[level]).as_bytes();
        let mut pairs = [[0; 32]; LEVEL_MAX as usize];
        for (pair, level) in pairs.iter_mut().zip(1..) {
            *pair = of(level);
        }
        Self { unit: of(0), pairs }
    }

    /// Appends the names of units, of which `bytes` has a whole number.
    pub(super) fn name_units(&self, bytes: &[u8], out: &mut Vec<Name>) {
        let chunks: Vec<&[u8]> = bytes.as_chunks::<UNIT_BYTES>().0.iter().map(<[u8; UNIT_BYTES]>::as_slice).collect();
        hash_all(&self.unit, &chunks, out);
    }

    /// Appends the names of blocks of `level + 1`, from those of their halves. A half without a second one is left out.
    pub(super) fn name_pairs(&self, level: u8, halves: &[Name], out: &mut Vec<Name>) {
        let Some(key) = self.pairs.get(usize::from(level)) else { return };
        let pairs: Vec<&[u8]> = halves.as_chunks::<2>().0.iter().map(|pair| pair.as_flattened()).collect();
        hash_all(key, &pairs, out);
    }

    /// Returns the names of all blocks of `bytes`, which begin at a multiple of the largest block: those of level L at index L. A
    /// block that is not whole has none.
    pub fn tree(&self, bytes: &[u8]) -> [Vec<Name>; LEVELS] {
        let mut levels: [Vec<Name>; LEVELS] = Default::default();
        self.name_units(bytes, &mut levels[0]);
        for level in 0..LEVEL_MAX {
            let (below, above) = levels.split_at_mut(usize::from(level) + 1);
            if let (Some(halves), Some(out)) = (below.last(), above.first_mut()) {
                self.name_pairs(level, halves, out);
            }
        }
        levels
    }

    /// Returns the name of a block that is all of `bytes`: 2^level units.
    pub fn name(&self, bytes: &[u8]) -> Option<Name> {
        let mut names = Vec::new();
        self.name_units(bytes, &mut names);
        let mut level = 0;
        while 1 < names.len() {
            let mut above = Vec::new();
            self.name_pairs(level, &names, &mut above);
            (names, level) = (above, level + 1);
        }
        names.first().copied()
    }

    /// Returns the names of blocks of zeros of each level.
    pub fn zeros(&self) -> [Name; LEVELS] {
        let mut names = Vec::new();
        self.name_units(&[0; UNIT_BYTES], &mut names);
        for level in 0..LEVEL_MAX {
            let half = names.last().copied().unwrap_or_default();
            self.name_pairs(level, &[half, half], &mut names);
        }
        std::array::from_fn(|level| names.get(level).copied().unwrap_or_default())
    }
}

fn hash_all(key: &[u8; 32], chunks: &[&[u8]], out: &mut Vec<Name>) {
    let mut hashes = Vec::with_capacity(chunks.len());
    keyed_hashes(key, chunks, &mut hashes);
    out.extend(hashes.iter().map(prefix));
}

fn prefix<const N: usize>(hash: &[u8; N]) -> Name {
    let mut name = Name::default();
    name.iter_mut().zip(hash).for_each(|(name, hash)| *name = *hash);
    name
}

/// The names of a whole image, in memory: those of level L at index L. Levels that were not asked for are empty.
pub type ImageNames = [Vec<Name>; LEVELS];

/// Computes the names of all blocks of an image from a level on. The image has a whole number of units.
pub fn names_of(image: &[u8], hash: BlockHash, keys: &BlockKeys, level_min: u8, threads: usize) -> ImageNames {
    let mut names: ImageNames = Default::default();
    let units = image.len() / UNIT_BYTES;
    let asked = level_min.min(LEVEL_MAX)..=LEVEL_MAX;
    for level in asked.clone() {
        names[usize::from(level)] = vec![Name::default(); units >> level];
    }
    if hash == BlockHash::Tree {
        let mut parts = Vec::new();
        let mut rest: [&mut [Name]; LEVELS] = names.each_mut().map(Vec::as_mut_slice);
        for bytes in image.chunks(PART_UNITS * UNIT_BYTES) {
            let mut part: [&mut [Name]; LEVELS] = Default::default();
            for (level, (part, rest)) in part.iter_mut().zip(&mut rest).enumerate() {
                let all = std::mem::take(rest);
                let len = ((bytes.len() / UNIT_BYTES) >> level).min(all.len());
                (*part, *rest) = all.split_at_mut(len);
            }
            parts.push((bytes, part));
        }
        parallel::for_all(parts.into_iter(), threads, |(bytes, part)| {
            for (out, names) in part.into_iter().zip(keys.tree(bytes)) {
                // A level that was not asked for has no names here.
                out.iter_mut().zip(names).for_each(|(out, name)| *out = name);
            }
        });
        return names;
    }
    for level in asked {
        let blocks: Vec<&[u8]> = image.chunks_exact(UNIT_BYTES << level).collect();
        names_of_blocks(&blocks, hash, keys, threads, &mut names[usize::from(level)]);
    }
    names
}

/// Computes the names of blocks of equal length. A thread takes 512 KiB of them at a time.
pub fn names_of_blocks(blocks: &[&[u8]], hash: BlockHash, keys: &BlockKeys, threads: usize, out: &mut [Name]) {
    let block_bytes = blocks.first().map_or(UNIT_BYTES, |block| block.len());
    let blocks_of_part = (PART_UNITS * UNIT_BYTES / block_bytes.max(1)).max(1);
    let parts = blocks.chunks(blocks_of_part).zip(out.chunks_mut(blocks_of_part));
    parallel::for_all(parts, threads, |(blocks, out)| {
        let each = blocks.iter().zip(&mut *out);
        match hash {
            BlockHash::Tree => each.for_each(|(block, out)| *out = keys.name(block).unwrap_or_default()),
            BlockHash::Blake3 => {
                let mut names = Vec::new();
                hash_all(&keys.unit, blocks, &mut names);
                out.copy_from_slice(&names);
            }
            BlockHash::Sha1 => each.for_each(|(block, out)| {
                let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, block);
                out.iter_mut().zip(hash.as_ref()).for_each(|(out, byte)| *out = *byte);
            }),
            BlockHash::Md5 => each.for_each(|(block, out)| *out = Md5::digest(block).into()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coprocessor::kernel::noise;

    fn keys() -> BlockKeys {
        BlockKeys::new(&[7; 32])
    }

    fn short(hash: blake3::Hash) -> Name {
        prefix(hash.as_bytes())
    }

    #[test]
    fn names_of_all_levels_are_those_that_the_definition_gives() {
        let (keys, image) = (keys(), noise(300 * UNIT_BYTES));
        let levels = keys.tree(&image);
        for (unit, name) in image.chunks(UNIT_BYTES).zip(&levels[0]) {
            assert_eq!(*name, short(blake3::keyed_hash(&blake3::keyed_hash(&[7; 32], &[0]).into(), unit)));
        }
        for level in 1..LEVELS {
            assert_eq!(levels[level].len(), 300 >> level);
            let key = blake3::keyed_hash(&[7; 32], &[u8::try_from(level).unwrap()]).into();
            for (at, name) in levels[level].iter().enumerate() {
                let halves = [levels[level - 1][2 * at], levels[level - 1][2 * at + 1]].concat();
                assert_eq!(*name, short(blake3::keyed_hash(&key, &halves)));
            }
        }
        assert_eq!(keys.name(&image[..UNITS_MAX * UNIT_BYTES]).unwrap(), levels[7][0]);
        let zeros = keys.tree(&vec![0; UNITS_MAX * UNIT_BYTES]);
        assert!(keys.zeros().iter().zip(&zeros).all(|(zero, names)| names.iter().all(|name| name == zero)));
    }

    #[test]
    fn names_do_not_depend_on_the_number_of_threads_or_on_the_smallest_level() {
        let (keys, image) = (keys(), noise(1500 * UNIT_BYTES));
        for hash in BlockHash::ALL {
            let all = names_of(&image, hash, &keys, 0, 1);
            assert!((0..LEVELS).all(|level| all[level].len() == 1500 >> level));
            for threads in [2, 3, 64] {
                assert_eq!(names_of(&image, hash, &keys, 0, threads), all, "{hash:?}");
            }
            let some = names_of(&image, hash, &keys, 3, 2);
            assert!((0..LEVELS).all(|level| some[level] == if level < 3 { &[][..] } else { &all[level] }));
            let every_third: Vec<&[u8]> = image.chunks_exact(UNIT_BYTES << 2).step_by(3).collect();
            let mut names = vec![Name::default(); every_third.len()];
            names_of_blocks(&every_third, hash, &keys, 2, &mut names);
            assert_eq!(names, all[2].iter().step_by(3).copied().collect::<Vec<_>>(), "{hash:?}");
        }
    }

    #[test]
    fn hashes_are_those_of_their_standards() {
        let image = vec![0; UNIT_BYTES];
        let name = |hash| names_of(&image, hash, &keys(), 0, 1)[0][0];
        assert_eq!(name(BlockHash::Sha1)[..], <sha1::Sha1 as sha1::Digest>::digest(&image)[..NAME_BYTES]);
        // RFC 1321, appendix A.5: of "abc".
        assert_eq!(Md5::digest(b"abc")[..4], [0x90, 0x01, 0x50, 0x98]);
        assert_eq!(name(BlockHash::Md5)[..], Md5::digest(&image)[..]);
    }
}
