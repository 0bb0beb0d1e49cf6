//! Features of the literature, which name a chunk that is similar as a whole: three super-features, each of four maxima.
//!
//! Two chunks with a super-feature in common are probably similar. (Broder et al., "Syntactic clustering of the Web", 1997;
//! Shilane et al., "WAN optimized replication", FAST 2012.) All three here take the Gear hash, 64 bits over 64 bytes. They
//! are for comparison: repositories have [anchors](onefold_engine::similarity::anchors).

use onefold_engine::random::SplitMix64;

/// Super-features of a chunk.
pub(super) const SUPER_FEATURES: usize = 3;
/// Features in each.
const GROUP: usize = 4;
const FEATURES: usize = SUPER_FEATURES * GROUP;
/// Odess keeps one hash in this many (Zou et al., 2021, section IV).
const ODESS_SAMPLE: u64 = 128;

/// Ways to compute them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuperFeature {
    /// Maxima of twelve linear transforms of the hash at each position.
    NTransform,
    /// The same, of one hash in 128.
    Odess,
    /// The largest hash in each twelfth of the chunk; the i-th largest of each group of three make super-feature i. (Zhang et al.,
    /// "Finesse: fine-grained feature locality based fast resemblance detection", FAST 2019, section 4.)
    Finesse,
}

/// Computes super-features.
#[derive(Debug)]
pub(super) struct Extractor {
    gear: Vec<u64>,
    transforms: [(u64, u64); FEATURES],
}

impl Default for Extractor {
    fn default() -> Self {
        let mut random = SplitMix64::new(0x0e_5e_5e);
        let gear = (0..256).map(|_| random.next_u64()).collect();
        Self { gear, transforms: [(); FEATURES].map(|()| (random.next_u64() | 1, random.next_u64())) }
    }
}

impl Extractor {
    /// Returns the super-features of a chunk.
    pub(super) fn of(&self, kind: SuperFeature, chunk: &[u8]) -> [u64; SUPER_FEATURES] {
        let features = match kind {
            SuperFeature::NTransform => self.maxima(chunk, 1),
            SuperFeature::Odess => match self.maxima(chunk, ODESS_SAMPLE) {
                // A short chunk may have no hash in the sample.
                [0, ..] => self.maxima(chunk, 1),
                features => features,
            },
            SuperFeature::Finesse => self.largest_of_parts(chunk),
        };
        let mut hashes = [0; SUPER_FEATURES];
        for ((number, hash), group) in (0u64..).zip(&mut hashes).zip(features.chunks(GROUP)) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&number.to_le_bytes());
            for feature in group {
                hasher.update(&feature.to_le_bytes());
            }
            let first = hasher.finalize().as_bytes().first_chunk().copied();
            *hash = u64::from_le_bytes(first.expect("a hash has 32 bytes"));
        }
        hashes
    }

    fn hashes(&self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        bytes.iter().scan(0u64, |hash, byte| {
            *hash = (*hash << 1).wrapping_add(self.gear[usize::from(*byte)]);
            Some(*hash)
        })
    }

    /// Returns the maximum of each transform over one hash in `sample`.
    fn maxima(&self, chunk: &[u8], sample: u64) -> [u64; FEATURES] {
        let mut features = [0; FEATURES];
        // The upper bits depend on the most bytes.
        for hash in self.hashes(chunk).filter(|hash| (hash >> 57) & (sample - 1) == 0) {
            for (feature, (factor, summand)) in features.iter_mut().zip(&self.transforms) {
                *feature = (*feature).max(factor.wrapping_mul(hash).wrapping_add(*summand));
            }
        }
        features
    }

    fn largest_of_parts(&self, chunk: &[u8]) -> [u64; FEATURES] {
        let mut largest = [0; FEATURES];
        for (feature, part) in largest.iter_mut().zip(chunk.chunks(chunk.len().div_ceil(FEATURES).max(1))) {
            *feature = self.hashes(part).max().unwrap_or(0);
        }
        largest.chunks_mut(SUPER_FEATURES).for_each(|group| group.sort_unstable_by(|one, other| other.cmp(one)));
        let mut features = [0; FEATURES];
        for (number, feature) in features.iter_mut().enumerate() {
            *feature = largest[number % GROUP * SUPER_FEATURES + number / GROUP];
        }
        features
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edited_chunks_share_a_super_feature_and_others_do_not() {
        let mut random = SplitMix64::new(1);
        let extractor = Extractor::default();
        let shares =
            |one: &[u64; SUPER_FEATURES], other: &[u64; SUPER_FEATURES]| one.iter().zip(other).any(|(a, b)| a == b);
        for kind in [SuperFeature::NTransform, SuperFeature::Odess, SuperFeature::Finesse] {
            let (mut edited_share, mut others_share) = (0, 0);
            for _ in 0..40 {
                let chunk: Vec<u8> = (0..1024).flat_map(|_| random.next_u64().to_le_bytes()).collect();
                let mut edited = chunk.clone();
                let at = random.index(edited.len() - 4);
                edited[at..at + 4].copy_from_slice(b"edit");
                let other: Vec<u8> = (0..1024).flat_map(|_| random.next_u64().to_le_bytes()).collect();
                let [chunk, edited, other] = [&chunk, &edited, &other].map(|chunk| extractor.of(kind, chunk));
                edited_share += u32::from(shares(&chunk, &edited));
                others_share += u32::from(shares(&chunk, &other));
            }
            assert!(36 <= edited_share, "{kind:?}: {edited_share} of 40 edited chunks");
            assert_eq!(others_share, 0, "{kind:?}");
        }
    }
}
