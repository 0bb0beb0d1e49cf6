//! Additions of one session to the index of similar regions, as it is kept next to the index of the host.
//!
//! The index is the sum of the additions of all sessions in their order. An addition that is lost, damaged or of a session whose containers
//! are gone is left out: later regions find fewer bases. The same bytes fit a sealed directory, from which the index can be rebuilt.
//!
//! Form: the bytes `OFA1`, the session (16), the sampling distance (4), the number of regions (varint); for each region the
//! container's ordinal (varint), its number there (varint), the length of its plaintext (varint), the number of bases (varint)
//! and for each its session (16), ordinal (varint) and number (varint), the number of samples (varint) and the samples (8 each,
//! ascending); at the end the BLAKE3 of all that, keyed (32). Integers are little-endian.

use crate::codec::{Decoded, Reader, put_varint};
use crate::types::{ContainerId, SessionId};

use super::index::{AnchorIndex, Sampling};
use super::regions::{BASES_MAX, RegionId, RegionNumber, Regions};

const MAGIC: [u8; 4] = *b"OFA1";
const SUM_LEN: usize = 32;
/// Most samples of one region: of one whose 8,192 features are all in the sample.
pub const SAMPLES_MAX: usize = super::features::FEATURES_MAX;
/// Longest addition in bytes; a session that adds more is divided. Holds 50 GB of new chunks at the default sample.
pub const ADDITION_BYTES_MAX: usize = 16 << 20;
/// Fewest bytes of a region: ordinal, number, length, and two counts.
const REGION_LEN_MIN: usize = 5;

/// One region of an addition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddedRegion {
    /// Ordinal of its container in the session.
    pub ordinal: u32,
    /// Its number in the container.
    pub region: u16,
    /// Length of its plaintext in bytes.
    pub plain_len: u32,
    /// Its bases.
    pub bases: Vec<RegionId>,
    /// Its sample, ascending. Empty if it cannot be a base.
    pub samples: Vec<u64>,
}

/// Regions of one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addition {
    /// The session.
    pub session: SessionId,
    /// One feature in so many is in the sample.
    pub sample_distance: u32,
    /// In the order in which they were stored.
    pub regions: Vec<AddedRegion>,
}

impl Addition {
    /// Returns its bytes, with a checksum under a key of the repository.
    pub fn encode(&self, key: &[u8; 32]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.session.0);
        out.extend_from_slice(&self.sample_distance.to_le_bytes());
        put_varint(&mut out, self.regions.len() as u64);
        for region in &self.regions {
            put_varint(&mut out, region.ordinal.into());
            put_varint(&mut out, region.region.into());
            put_varint(&mut out, region.plain_len.into());
            put_varint(&mut out, region.bases.len() as u64);
            for base in &region.bases {
                out.extend_from_slice(&base.container.session.0);
                put_varint(&mut out, base.container.ordinal.into());
                put_varint(&mut out, base.region.into());
            }
            put_varint(&mut out, region.samples.len() as u64);
            region.samples.iter().for_each(|sample| out.extend_from_slice(&sample.to_le_bytes()));
        }
        let sum = blake3::keyed_hash(key, &out);
        out.extend_from_slice(sum.as_bytes());
        out
    }

    /// Reads what [`Addition::encode`] wrote, or refuses it. Allocates no more than a few times the length of the bytes.
    pub fn decode(bytes: &[u8], key: &[u8; 32]) -> Decoded<Self> {
        let refused = |reason| Reader::new(bytes).error(reason);
        if ADDITION_BYTES_MAX < bytes.len() {
            return Err(refused("too long"));
        }
        let (body, sum) = bytes
            .len()
            .checked_sub(SUM_LEN)
            .and_then(|len| bytes.split_at_checked(len))
            .ok_or_else(|| refused("ends too early"))?;
        let sum: [u8; SUM_LEN] = sum.try_into().map_err(|_| refused("ends too early"))?;
        if blake3::keyed_hash(key, body) != blake3::Hash::from_bytes(sum) {
            return Err(refused("checksum does not match"));
        }
        Self::decode_body(body)
    }

    /// Reads all but the checksum.
    pub(crate) fn decode_body(body: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(body);
        if reader.array()? != MAGIC {
            return Err(reader.error("no addition"));
        }
        let session = SessionId(reader.array()?);
        let sample_distance = reader.u32()?;
        if sample_distance == 0 {
            return Err(reader.error("a sample of none"));
        }
        let count = reader.count(REGION_LEN_MIN)?;
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(decode_region(&mut reader)?);
        }
        reader.finish()?;
        Ok(Self { session, sample_distance, regions })
    }

    /// Enters all regions. Regions with bases that are not known are left out: they could not be read either, or their depth is
    /// not known. Samples of another distance are thinned to the index's, if they are as dense.
    pub fn enter(&self, regions: &mut Regions, index: &mut AnchorIndex, numbers: &mut Numbers) {
        let is_dense = Sampling::one_in(self.sample_distance).is_as_dense_as(index.sampling());
        for added in &self.regions {
            let container = ContainerId { session: self.session, ordinal: added.ordinal };
            let id = RegionId { container, region: added.region };
            let Some(bases) = added.bases.iter().map(|base| numbers.get(base).copied()).collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            let Some(number) = regions.enter(id, added.plain_len, &bases) else { continue };
            numbers.insert(id, number);
            if is_dense {
                index.enter(number, &added.samples);
            }
        }
    }
}

/// Numbers of regions while additions are entered. Needed for those with bases only, and dropped afterwards: 40 bytes a region.
pub type Numbers = std::collections::HashMap<RegionId, RegionNumber>;

fn decode_region(reader: &mut Reader<'_>) -> Decoded<AddedRegion> {
    let ordinal = reader.varint32()?;
    let region = region_number(reader)?;
    let plain_len = reader.varint32()?;
    let count = reader.count(18)?;
    if BASES_MAX < count {
        return Err(reader.error("too many bases"));
    }
    let mut bases = Vec::with_capacity(count);
    for _ in 0..count {
        let container = ContainerId { session: SessionId(reader.array()?), ordinal: reader.varint32()? };
        bases.push(RegionId { container, region: region_number(reader)? });
    }
    let count = reader.count(8)?;
    if SAMPLES_MAX < count {
        return Err(reader.error("too many samples"));
    }
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let sample = reader.u64()?;
        if samples.last().is_some_and(|last| sample <= *last) {
            return Err(reader.error("samples not ascending"));
        }
        samples.push(sample);
    }
    Ok(AddedRegion { ordinal, region, plain_len, bases, samples })
}

fn region_number(reader: &mut Reader<'_>) -> Decoded<u16> {
    let error = reader.error("no region of a container");
    u16::try_from(reader.varint32()?).map_err(|_| error)
}
