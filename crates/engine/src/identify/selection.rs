//! Selection: which of the earlier segments that share features with a segment are read.
//!
//! Fu et al., "Design Tradeoffs for Data Deduplication Performance in Backup Workloads", FAST 2015, section 2.1.3 and figure 1.

use std::collections::{BTreeMap, BTreeSet};

/// Segments that are read for a segment of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The segment of each hit, when the chunk arrives: no segment waits for its end.
    Base,
    /// The most similar ones, at the end of the segment (Lillibridge et al., "Sparse Indexing", FAST 2009).
    Top {
        /// Most segments; 0 counts as 1.
        segments: u32,
    },
    /// The most similar ones, then as [`Selection::Base`] for the chunks that they do not have.
    Mix {
        /// Most segments; 0 counts as 1.
        segments: u32,
    },
    /// All that share a feature. The segment is stored with the chunks of these: it takes their place, as a bin does (Bhagwat et al.,
    /// "Extreme Binning", MASCOTS 2009).
    All,
}

impl Selection {
    /// Returns true if segments wait for their end.
    pub fn waits(self) -> bool {
        self != Self::Base
    }

    /// Returns true if chunks that no segment has answered are looked up.
    pub fn looks_up_rest(self) -> bool {
        matches!(self, Self::Base | Self::Mix { .. })
    }

    /// Returns the chosen among candidates, in the order in which they are chosen. A candidate is a feature, by its number, and a segment
    /// that has it; the greater a segment's number, the newer it is.
    ///
    /// Takes the segment with most features, the newest of several, and leaves out its features from then on. Segments left without
    /// features are taken last. (Fu et al. leave these open; destor does so.)
    pub fn champions(self, candidates: &[(u32, u64)]) -> Vec<u64> {
        let mut segments: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for &(feature, segment) in candidates {
            segments.entry(segment).or_default().insert(feature);
        }
        let most = match self {
            Self::Base => 0,
            Self::Top { segments } | Self::Mix { segments } => segments.max(1) as usize,
            Self::All => segments.len(),
        };
        let mut chosen = Vec::new();
        while chosen.len() < most
            && let Some((&segment, _)) = segments.iter().max_by_key(|(segment, features)| (features.len(), **segment))
        {
            let taken = segments.remove(&segment).unwrap_or_default();
            for features in segments.values_mut() {
                features.retain(|feature| !taken.contains(feature));
            }
            chosen.push(segment);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_segments_come_first_and_their_features_count_once() {
        // Segment 10 has features 0 to 3, 20 has 0 to 2 and 4, 30 has 3 and 5.
        let of = |segment: u64, features: &[u32]| features.iter().map(|it| (*it, segment)).collect::<Vec<_>>();
        let candidates = [of(10, &[0, 1, 2, 3]), of(20, &[0, 1, 2, 4]), of(30, &[3, 5])].concat();
        let top = |segments| Selection::Top { segments }.champions(&candidates);
        assert_eq!(top(1), [20], "of two as similar, the newer one");
        assert_eq!(top(2), [20, 30], "10 has only feature 3 left, and 30 has two");
        assert_eq!(top(3), [20, 30, 10], "without features, it is taken last");
        assert_eq!(top(9), top(3));
        assert_eq!((top(0), Selection::Mix { segments: 2 }.champions(&candidates)), (top(1), top(2)));
        assert_eq!(Selection::All.champions(&candidates), top(3));
        assert_eq!(Selection::Base.champions(&candidates), []);
        assert_eq!(Selection::All.champions(&[(1, 5), (1, 5), (1, 7)]), [7, 5]);
        assert_eq!(Selection::All.champions(&[]), []);
    }
}
