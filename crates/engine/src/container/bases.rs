//! The bases of a region: earlier regions that it was compressed against (format 2).

use crate::codec::{Decoded, Reader, put_container_id};
use crate::types::RegionId;

/// Most bases of a region.
pub const BASES_MAX: usize = 2;
/// Most steps from a region over bases of bases to one without any.
pub const DEPTH_MAX: u8 = 4;
/// Bytes of one base in a directory.
pub(crate) const BASE_LEN: usize = 24;

/// The bases of a region, in the order of their plaintexts, and its depth: 0 without bases, else at least one more than that
/// of each base.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bases {
    depth: u8,
    regions: [Option<RegionId>; BASES_MAX],
}

impl Bases {
    /// Makes a list; `None` if it has more than [`BASES_MAX`] regions, one of them twice, or no possible depth.
    pub fn new(regions: &[RegionId], depth: u8) -> Option<Self> {
        let is_possible = match regions {
            [] => depth == 0,
            [_] => (1..=DEPTH_MAX).contains(&depth),
            [first, second] => first != second && (1..=DEPTH_MAX).contains(&depth),
            _ => false,
        };
        let mut list = regions.iter().copied();
        is_possible.then(|| Self { depth, regions: [list.next(), list.next()] })
    }

    /// Returns the number of steps to a region without bases.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns true if the region stands by itself.
    pub fn is_empty(&self) -> bool {
        self.depth == 0
    }

    /// Returns the bases in order.
    pub fn iter(&self) -> impl Iterator<Item = RegionId> {
        self.regions.into_iter().flatten()
    }

    /// Returns the number of bases.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Appends the stored form: depth, number of bases, and each base.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.depth);
        out.push(u8::try_from(self.len()).unwrap_or(u8::MAX));
        for RegionId { container, region } in self.iter() {
            put_container_id(out, container);
            out.extend_from_slice(&region.to_le_bytes());
        }
    }

    /// Reads the stored form.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let (depth, count) = (reader.u8()?, reader.u8()?);
        if BASES_MAX < usize::from(count) {
            return Err(reader.error("more bases than a region can have"));
        }
        let mut regions = Vec::with_capacity(BASES_MAX);
        for _ in 0..count {
            regions.push(RegionId { container: reader.container_id()?, region: reader.u32()? });
        }
        if DEPTH_MAX < depth {
            return Err(reader.error("region deeper than regions can be"));
        }
        Self::new(&regions, depth).ok_or_else(|| reader.error("bases that no region can have"))
    }
}
