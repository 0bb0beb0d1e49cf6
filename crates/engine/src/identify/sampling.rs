//! Sampling: which chunks of a stream segment, or of a container, are its features.
//!
//! Of an exact index, the features are the duplicates whose entries get their position in the segment, so that later streams find
//! it. Of a near-exact one, they are the chunks that have entries at all.

use std::collections::BTreeSet;

use crate::identify::segmenting::selector;
use crate::types::Fingerprint;

/// Chunks of which one is sampled, unless it is set (Fu et al., FAST 2015, section 4.3).
pub(in crate::identify) const SAMPLING_RATIO: u32 = 256;

/// Which chunks of a stream segment or container are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// All.
    All,
    /// The first one, and each `ratio`th after it; 0 counts as 1.
    Uniform {
        /// One chunk of so many.
        ratio: u32,
    },
    /// Those whose fingerprint is a multiple of `ratio`, by the bits that content-defined segmenting uses, so that the first chunk of
    /// a segment is sampled if the ratio divides the average (Fu et al., FAST 2015, section 3.2); 0 counts as 1. Equal chunks are
    /// sampled in every segment or in none.
    Random {
        /// One chunk of so many, on average.
        ratio: u32,
    },
    /// As [`Sampling::Random`], by bits that segmenting does not use.
    Independent {
        /// One chunk of so many, on average.
        ratio: u32,
    },
    /// The least fingerprints: as many as the segment has `ratio`s, rounded, at least one; 0 counts as 1.
    Minimum {
        /// One chunk of so many.
        ratio: u32,
    },
}

impl Sampling {
    /// Returns true if a chunk is sampled whatever the others of its segment are, given by its number in it and its fingerprint.
    pub fn takes(self, number: u32, fingerprint: &Fingerprint) -> bool {
        match self {
            Self::All => true,
            Self::Uniform { ratio } => number.is_multiple_of(ratio.max(1)),
            Self::Random { ratio } => selector(fingerprint, 4).is_multiple_of(ratio.max(1)),
            Self::Independent { ratio } => selector(fingerprint, 5).is_multiple_of(ratio.max(1)),
            Self::Minimum { .. } => false,
        }
    }

    /// Returns the numbers of the features of a segment, ascending, each fingerprint once: those sampled, or else the least one.
    pub fn features(self, segment: &[Fingerprint]) -> Vec<usize> {
        let mut known = BTreeSet::new();
        let numbered = || (0..).zip(segment.iter().enumerate());
        let sampled = numbered().filter(|(number, (_, fingerprint))| self.takes(*number, fingerprint));
        let mut features: Vec<usize> =
            sampled.filter(|(_, (_, it))| known.insert(**it)).map(|(_, (at, _))| at).collect();
        if features.is_empty() {
            let count = match self {
                Self::Minimum { ratio } => {
                    let ratio = ratio.max(1) as usize;
                    (segment.len() + (ratio - 1) / 2) / ratio
                }
                _ => 1,
            };
            let mut least: Vec<usize> = (0..segment.len()).filter(|at| known.insert(segment[*at])).collect();
            least.sort_unstable_by_key(|at| segment[*at]);
            least.truncate(count.max(1));
            least.sort_unstable();
            features = least;
        }
        features
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::segmenting::{Segmenter, Segmenting};
    use crate::testing::fingerprint;

    fn sampled(sampling: Sampling, chunks: std::ops::Range<u64>) -> Vec<u64> {
        let taken = |(number, chunk): (u32, u64)| sampling.takes(number, &fingerprint(chunk)).then_some(chunk);
        (0..).zip(chunks).filter_map(taken).collect()
    }

    #[test]
    fn one_chunk_of_so_many_is_sampled() {
        assert_eq!(sampled(Sampling::All, 5..9), [5, 6, 7, 8]);
        assert_eq!(sampled(Sampling::Uniform { ratio: 3 }, 10..18), [10, 13, 16]);
        for none in [Sampling::Uniform { ratio: 0 }, Sampling::Random { ratio: 0 }, Sampling::Random { ratio: 1 }] {
            assert_eq!(sampled(none, 0..50).len(), 50, "{none:?}");
        }
        let random = sampled(Sampling::Random { ratio: 256 }, 0..256_000);
        assert!((850..1_150).contains(&random.len()), "{}", random.len());
    }

    #[test]
    fn a_segment_has_a_feature_whatever_is_sampled_and_each_fingerprint_counts_once() {
        let segment: Vec<_> = [5, 6, 7, 5, 8, 9].map(fingerprint).into();
        let least = (0..6).filter(|at| *at != 3).min_by_key(|at| segment[*at]).unwrap();
        for none in [Sampling::Random { ratio: 1 << 30 }, Sampling::Independent { ratio: 1 << 30 }] {
            assert_eq!(none.features(&segment), [least], "{none:?}");
            assert_eq!(none.features(&[]), [0; 0]);
        }
        assert_eq!(Sampling::All.features(&segment), [0, 1, 2, 4, 5]);
        assert_eq!(Sampling::Uniform { ratio: 3 }.features(&segment), [0], "the fourth is equal to the first");
        assert_eq!(Sampling::Minimum { ratio: 6 }.features(&segment), [least]);
        assert_eq!(Sampling::Minimum { ratio: 100 }.features(&segment), [least]);
        let mut three: Vec<_> = [0, 1, 2, 4, 5].into();
        three.sort_by_key(|at| segment[*at]);
        three.truncate(3);
        three.sort_unstable();
        assert_eq!(Sampling::Minimum { ratio: 2 }.features(&segment), three);
    }

    #[test]
    fn random_samples_do_not_depend_on_the_segment() {
        let sampling = Sampling::Random { ratio: 16 };
        let whole = sampled(sampling, 0..5_000);
        let parts = [sampled(sampling, 0..777), sampled(sampling, 777..5_000)].concat();
        assert_eq!(whole, parts);
    }

    #[test]
    fn the_first_chunk_of_a_content_defined_segment_is_a_random_sample_if_the_ratio_divides_the_average() {
        let mut segmenter = Segmenter::new(Segmenting::CONTENT_DEFINED);
        // The first segment of a stream begins with any chunk, and so does one after a segment of greatest length.
        let begins: Vec<_> = (0..200_000).map(fingerprint).filter(|chunk| segmenter.push(chunk)).skip(1).collect();
        let sampled = begins.iter().filter(|chunk| Sampling::Random { ratio: 256 }.takes(1, chunk)).count();
        assert!(150 < begins.len() && begins.len() - sampled <= 1, "{sampled} of {}", begins.len());
    }
}
