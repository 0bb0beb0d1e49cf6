//! Segmenting: where a stream is divided into stream segments. It depends on fingerprints alone, so that an equal stream has
//! equal segments.

use crate::types::Fingerprint;

/// End of a stream segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segmenting {
    /// After so many chunks; 0 counts as 1.
    Fixed {
        /// Chunks of a segment.
        chunks: u32,
    },
    /// Before a chunk whose fingerprint is a multiple of `average`, or after `max` chunks. Chunks that are inserted or
    /// missing move the boundaries around them, and no others. (Fu et al., FAST 2015, section 3.2.)
    ContentDefined {
        /// Fewest chunks of a segment.
        min: u32,
        /// Chunks, on average, after the fewest.
        average: u32,
        /// Most chunks of a segment.
        max: u32,
    },
    /// At the end of a file, if it has `min` chunks by then, or after `max` chunks. So small files are grouped; with a `min` of 1, each
    /// file is one (Bhagwat et al., MASCOTS 2009).
    FileDefined {
        /// Fewest chunks of a segment.
        min: u32,
        /// Most chunks of a segment.
        max: u32,
    },
}

impl Segmenting {
    /// Content-defined segments with the fewest and the most chunks of destor.
    pub const CONTENT_DEFINED: Self = Self::ContentDefined { min: 128, average: 1024, max: 10_240 };

    /// Returns the most chunks that a segment has.
    pub fn chunks_max(self) -> u32 {
        let (Self::Fixed { chunks: max } | Self::ContentDefined { max, .. } | Self::FileDefined { max, .. }) = self;
        max.max(1)
    }

    /// Returns how many chunks a segment has about, in a stream that has different chunks.
    pub fn chunks_mean(self) -> u32 {
        match self {
            Self::Fixed { chunks } => chunks.max(1),
            Self::ContentDefined { min, average, .. } => min.saturating_add(average).clamp(1, self.chunks_max()),
            Self::FileDefined { min, .. } => min.clamp(1, self.chunks_max()),
        }
    }
}

/// Returns four bytes of a fingerprint, the fifth four of which segmenting and sampling use, as destor does: a chunk that begins a
/// segment is sampled if the ratio divides the average.
pub(in crate::identify) fn selector(fingerprint: &Fingerprint, word: usize) -> u32 {
    fingerprint.0.as_chunks::<4>().0.get(word).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Divides a stream into segments.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    segmenting: Segmenting,
    /// Chunks of the segment so far; 0 if none is open.
    chunks: u32,
}

impl Segmenter {
    /// Starts before the first chunk of a stream.
    pub fn new(segmenting: Segmenting) -> Self {
        Self { segmenting, chunks: 0 }
    }

    /// Returns true if a segment begins with the next chunk.
    pub fn begins(&self, fingerprint: &Fingerprint) -> bool {
        let Self { segmenting, chunks } = *self;
        let is_boundary = match segmenting {
            Segmenting::Fixed { .. } | Segmenting::FileDefined { .. } => false,
            Segmenting::ContentDefined { min, average, .. } => {
                min <= chunks && selector(fingerprint, 4).is_multiple_of(average.max(1))
            }
        };
        chunks == 0 || segmenting.chunks_max() <= chunks || is_boundary
    }

    /// Takes the next chunk; returns true if a segment begins with it.
    pub fn push(&mut self, fingerprint: &Fingerprint) -> bool {
        let begins = self.begins(fingerprint);
        self.chunks = if begins { 1 } else { self.chunks + 1 };
        begins
    }

    /// Returns the number of chunks of the open segment; 0 if none is open.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Takes note that a file ends; returns true if the segment ends with it.
    pub fn end_file(&mut self) -> bool {
        let ends = matches!(self.segmenting, Segmenting::FileDefined { min, .. } if min.max(1) <= self.chunks);
        if ends {
            self.cut();
        }
        ends
    }

    /// Ends the open segment before the next chunk.
    pub fn cut(&mut self) {
        self.chunks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::fingerprint;

    /// Returns the numbers of the chunks that begin segments.
    fn beginnings(segmenting: Segmenting, stream: &[u64]) -> Vec<u64> {
        let mut segmenter = Segmenter::new(segmenting);
        stream.iter().copied().filter(|number| segmenter.push(&fingerprint(*number))).collect()
    }

    #[test]
    fn file_defined_segments_end_with_files_and_small_files_are_grouped() {
        let mut segmenter = Segmenter::new(Segmenting::FileDefined { min: 10, max: 25 });
        let mut lengths = Vec::new();
        // Files of these numbers of chunks.
        for file in [3, 4, 5, 10, 60, 9, 1] {
            for chunk in 0..file {
                if segmenter.push(&fingerprint(chunk)) {
                    lengths.push(0);
                }
                *lengths.last_mut().unwrap() += 1;
            }
            segmenter.end_file();
        }
        assert_eq!(lengths, [12, 10, 25, 25, 10, 10]);
        assert!(!Segmenter::new(Segmenting::CONTENT_DEFINED).end_file());
    }

    #[test]
    fn fixed_segments_have_equal_lengths() {
        let stream: Vec<u64> = (0..100).collect();
        assert_eq!(beginnings(Segmenting::Fixed { chunks: 30 }, &stream), [0, 30, 60, 90]);
        assert_eq!(beginnings(Segmenting::Fixed { chunks: 0 }, &stream[..3]), [0, 1, 2]);
        let mut segmenter = Segmenter::new(Segmenting::Fixed { chunks: 30 });
        let begins: Vec<_> = (0..50_u64)
            .filter(|number| {
                if *number == 10 {
                    segmenter.cut();
                }
                segmenter.push(&fingerprint(*number))
            })
            .collect();
        assert_eq!((begins, segmenter.chunks()), (vec![0, 10, 40], 10));
    }

    #[test]
    fn content_defined_segments_keep_to_their_limits_and_to_their_mean() {
        let stream: Vec<u64> = (0..400_000).collect();
        for (min, average, max) in [(128, 1024, 10_240), (10, 100, 150), (0, 1, 5), (7, 0, 9), (5, 50, 3)] {
            let segmenting = Segmenting::ContentDefined { min, average, max };
            let starts = beginnings(segmenting, &stream);
            let lens: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let fewest = u64::from(min.min(max).max(1));
            assert!(lens.iter().all(|len| (fewest..=u64::from(max)).contains(len)), "{segmenting:?}");
        }
        let starts = beginnings(Segmenting::CONTENT_DEFINED, &stream);
        let mean = stream.len() / starts.len();
        assert!((1_000..1_350).contains(&mean), "{mean}");
        assert_eq!(Segmenting::CONTENT_DEFINED.chunks_mean(), 1_152);
    }

    #[test]
    fn an_insertion_moves_few_boundaries_of_content_defined_segments_and_all_of_fixed_ones() {
        let mut random = SplitMix64::new(4);
        let stream: Vec<u64> = (0..50_000).collect();
        let mut changed = stream.clone();
        for number in 0..5 {
            let location = usize::try_from(random.below(50_000)).unwrap();
            changed.insert(location, 1_000_000 + number);
        }
        let share = |segmenting| {
            let (before, after) = (beginnings(segmenting, &stream), beginnings(segmenting, &changed));
            let kept = after.iter().filter(|number| before.contains(number)).count();
            (kept, before.len())
        };
        let (kept, all) = share(Segmenting::ContentDefined { min: 20, average: 200, max: 2_000 });
        assert!(all - kept <= 20, "{kept} of {all}");
        let (kept, all) = share(Segmenting::Fixed { chunks: 200 });
        assert!(kept < all / 2, "{kept} of {all}");
    }
}
