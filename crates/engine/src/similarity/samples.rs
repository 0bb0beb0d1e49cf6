//! The sample of a region that its container's directory names.

use crate::container::ChunkSample;

use crate::object::names::ContainerKind;

use super::features::RegionFeatures;
use super::index::{Sampling, stored_hash};

/// One anchor of metadata in this many is in the sample: 64 of a region of 512 KiB, and 8 of one of 64 KiB, which a small version ends with. It
/// takes 450 bytes of a directory for a region, and metadata is a hundredth of the regions.
pub const METADATA_SAMPLE_DISTANCE: u32 = 16;

/// Returns the rule of the sample of a kind of container.
pub fn sampling_of(kind: ContainerKind) -> Sampling {
    match kind {
        ContainerKind::Data => Sampling::default(),
        ContainerKind::Metadata => Sampling::one_in(METADATA_SAMPLE_DISTANCE),
    }
}

/// Returns the features that are in the sample of a kind of container, as they are stored.
pub fn samples_of(features: &RegionFeatures, kind: ContainerKind) -> Vec<ChunkSample> {
    let sampling = sampling_of(kind);
    let all = features.hashes().iter().zip(features.chunks()).filter(|(hash, _)| sampling.takes(**hash));
    let mut samples: Vec<ChunkSample> =
        all.map(|(hash, chunk)| ChunkSample { chunk: *chunk, hash: stored_hash(*hash) }).collect();
    samples.dedup_by_key(|sample| sample.hash);
    samples
}
