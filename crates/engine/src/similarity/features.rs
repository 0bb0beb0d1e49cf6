//! All anchors of one region, to compare it with others.

use super::anchors::AnchorFinder;

/// Most features of a region that are kept: four for each 512 bytes of a region of 1 MiB. Those with the smallest hashes stay, a
/// sample that two regions agree on.
pub const FEATURES_MAX: usize = 8192;

/// The distinct features of a region's chunks, ascending by hash, each with the first chunk that has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RegionFeatures {
    hashes: Vec<u64>,
    chunks: Vec<u16>,
    lens: Vec<u32>,
}

impl RegionFeatures {
    /// Takes the features of each chunk and its length in bytes, in the order of the region.
    pub fn new<'a>(chunks: impl IntoIterator<Item = (&'a [u64], u32)>) -> Self {
        let mut pairs = Vec::new();
        let mut lens = Vec::new();
        for (hashes, len) in chunks {
            // Chunks above 65,535 do not exist: a container has no more.
            let number = u16::try_from(lens.len()).unwrap_or(u16::MAX);
            lens.push(len);
            pairs.extend(hashes.iter().map(|hash| (*hash, number)));
        }
        pairs.sort_unstable();
        pairs.dedup_by_key(|(hash, _)| *hash);
        pairs.truncate(FEATURES_MAX);
        let (hashes, chunks) = pairs.into_iter().unzip();
        Self { hashes, chunks, lens }
    }

    /// Finds the anchors of the chunks of a region's plaintext, which have these lengths.
    pub fn of_region(finder: &AnchorFinder, plain: &[u8], lens: impl IntoIterator<Item = u32>) -> Self {
        let mut start = 0;
        let mut chunks: Vec<(Vec<u64>, u32)> = Vec::new();
        for len in lens {
            let end = start + len as usize;
            let mut hashes = Vec::new();
            finder.of_chunk(plain.get(start..end).unwrap_or_default(), &mut hashes);
            chunks.push((hashes, len));
            start = end;
        }
        Self::new(chunks.iter().map(|(hashes, len)| (hashes.as_slice(), *len)))
    }

    /// Returns the hashes, ascending.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Returns the length of a chunk in bytes.
    pub fn chunk_len(&self, chunk: u16) -> u32 {
        self.lens.get(usize::from(chunk)).copied().unwrap_or(0)
    }

    /// Returns the chunk of each hash, in the order of [`RegionFeatures::hashes`].
    pub fn chunks(&self) -> &[u16] {
        &self.chunks
    }

    /// Returns, for each hash of `self`, the position in `other` of the same hash. Both are ascending.
    pub fn shared<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut theirs = 0;
        self.hashes.iter().enumerate().filter_map(move |(ours, hash)| {
            while other.hashes.get(theirs).is_some_and(|other| other < hash) {
                theirs += 1;
            }
            (other.hashes.get(theirs) == Some(hash)).then_some((ours, theirs))
        })
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        8 * self.hashes.capacity() + 2 * self.chunks.capacity() + 4 * self.lens.capacity()
    }
}
