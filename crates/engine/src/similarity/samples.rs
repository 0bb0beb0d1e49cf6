//! The sample of a region that its container's directory names.

use crate::container::ChunkSample;

use super::features::RegionFeatures;
use super::index::{Sampling, stored_hash};

/// Returns the features that are in the sample, as they are stored.
pub fn samples_of(features: &RegionFeatures) -> Vec<ChunkSample> {
    let sampling = Sampling::default();
    let all = features.hashes().iter().zip(features.chunks()).filter(|(hash, _)| sampling.takes(**hash));
    let mut samples: Vec<ChunkSample> =
        all.map(|(hash, chunk)| ChunkSample { chunk: *chunk, hash: stored_hash(*hash) }).collect();
    samples.dedup_by_key(|sample| sample.hash);
    samples
}
