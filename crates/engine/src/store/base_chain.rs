//! Regions that a region depends on, and the parts of them that it was compressed against.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::container::ContainerReader;
use crate::container::bases::{BASES_MAX, Base, Bases};
use crate::container::seal::Plaintext;
use crate::error::{Error, Result};
use crate::types::RegionId;

/// A region of a chain, before it is read.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) container: Arc<ContainerReader>,
    pub(super) bases: Bases,
}

/// The regions that a region depends on, in the order of their containers and numbers.
pub(super) type Chain = BTreeMap<RegionId, Link>;

/// A part of a prefix: a region, and the bytes of it that count.
pub(super) type PrefixPart = (RegionId, Range<usize>);

/// Plaintexts of regions.
pub(super) type Plaintexts = BTreeMap<RegionId, Plaintext>;

/// Finds the bytes of each base that count, in regions of a chain. Fails if a run names chunks that do not exist, or if all
/// together are longer than two regions can be.
pub(super) fn prefix_parts(bases: &Bases, chain: &Chain, region_bytes_limit: u32) -> Result<Vec<PrefixPart>> {
    let mut parts = Vec::new();
    let mut len = 0;
    for Base { region, runs } in bases.bases() {
        let Some(Link { container, .. }) = chain.get(region) else { continue };
        let whole = runs.is_empty().then_some(None);
        for run in whole.into_iter().chain(runs.iter().map(Some)) {
            let range = container.plain_range(region.region, run);
            let range = range.ok_or_else(|| container.wrong_region(region.region, "lacks chunks that a base names"))?;
            len += range.len();
            parts.push((*region, range));
        }
    }
    let most = BASES_MAX * region_bytes_limit as usize;
    if most < len {
        return Err(Error::invalid(format!("bases of {len} bytes, and no region has more than {most}")));
    }
    Ok(parts)
}

/// Joins the parts of a prefix. One whole region is not copied.
pub(super) fn prefix_in(parts: &[PrefixPart], plaintexts: &Plaintexts) -> Plaintext {
    if let [(region, range)] = parts
        && let Some(plain) = plaintexts.get(region).filter(|plain| *range == (0..plain.len()))
    {
        return Plaintext::clone(plain);
    }
    let of = |(region, range): &PrefixPart| plaintexts.get(region).and_then(|plain| plain.get(range.clone()));
    Plaintext::new(parts.iter().map(|part| of(part).unwrap_or_default()).collect::<Vec<_>>().concat())
}
