//! Sampling: which duplicates of a stream segment get its position in the key-value store, so that later streams find it.

use crate::identify::segmenting::selector;
use crate::types::Fingerprint;

/// Chunks of which one is sampled, unless it is set (Fu et al., FAST 2015, section 4.3).
pub(in crate::identify) const SAMPLING_RATIO: u32 = 256;

/// Which chunks of a stream segment are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// All.
    All,
    /// The first one, and each `ratio`th after it; 0 counts as 1.
    Uniform {
        /// One chunk of so many.
        ratio: u32,
    },
    /// Those whose fingerprint is a multiple of `ratio`; 0 counts as 1. Equal chunks are sampled in every segment or in none.
    Random {
        /// One chunk of so many, on average.
        ratio: u32,
    },
}

impl Sampling {
    /// Returns true if a chunk is sampled, given by its number in its segment and its fingerprint.
    pub fn takes(self, number: u32, fingerprint: &Fingerprint) -> bool {
        match self {
            Self::All => true,
            Self::Uniform { ratio } => number.is_multiple_of(ratio.max(1)),
            Self::Random { ratio } => selector(fingerprint).is_multiple_of(ratio.max(1)),
        }
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
