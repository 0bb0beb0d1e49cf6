//! Features of a region by a point.

use std::sync::Arc;

use onefold_engine::chunk::{ChunkSizes, GearTable};
use onefold_engine::similarity::anchors::AnchorFinder;
use onefold_engine::similarity::features::RegionFeatures;

use super::point::Feature;
use super::super_features::Extractor;
use crate::chunkers::OPEN_KEY;

/// Average length of chunks for which the table of the hash is drawn.
const CHUNK_BYTES: u32 = 8 << 10;

/// Computes features.
#[derive(Clone, Debug)]
pub(super) enum Extract {
    None,
    Anchors(AnchorFinder),
    SuperFeatures(Arc<Extractor>, super::super_features::SuperFeature),
}

impl Extract {
    pub(super) fn new(feature: Feature) -> Self {
        match feature {
            Feature::None => Self::None,
            Feature::Anchors(distance) => {
                let table = GearTable::expand(&OPEN_KEY, ChunkSizes::for_average(CHUNK_BYTES));
                Self::Anchors(AnchorFinder::new(&table, &OPEN_KEY, distance))
            }
            Feature::SuperFeatures(kind) => Self::SuperFeatures(Arc::default(), kind),
        }
    }

    /// Returns the features of a region whose chunks have these lengths.
    pub(super) fn features(&self, plain: &[u8], lens: &[u32]) -> RegionFeatures {
        match self {
            Self::None => RegionFeatures::default(),
            Self::Anchors(finder) => RegionFeatures::of_region(finder, plain, lens.iter().copied()),
            Self::SuperFeatures(extractor, kind) => {
                let mut start = 0;
                let mut chunks = Vec::new();
                for len in lens {
                    let end = start + *len as usize;
                    chunks.push((extractor.of(*kind, plain.get(start..end).unwrap_or_default()), *len));
                    start = end;
                }
                RegionFeatures::new(chunks.iter().map(|(hashes, len)| (hashes.as_slice(), *len)))
            }
        }
    }
}
