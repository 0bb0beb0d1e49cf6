//! Containers that are related to one by bases of regions: those that hold bases for it, and those that depend on it.

use std::collections::BTreeMap;

use crate::container::{ContainerReader, RegionEntry};
use crate::error::Result;
use crate::store::container_set::Containers;
use crate::types::ContainerId;

/// Most related containers that an answer lists, in the order of their ids: 64 KiB. All are counted.
pub const RELATED_MAX: usize = 1024;

/// A container that is related to the one that was asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelatedContainer {
    /// The container.
    pub id: ContainerId,
    /// Bytes of the object; `None` if it is not listed.
    pub stored_bytes: Option<u64>,
    /// Regions that were compressed against the other container: of the one that was asked about, if this one holds bases for it;
    /// else its own.
    pub regions: Regions,
}

/// Regions with bases in a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Regions {
    /// Number of them.
    pub count: u64,
    /// Their bytes before compression.
    pub plain_bytes: u64,
    /// Their bytes as stored.
    pub stored_bytes: u64,
}

impl Regions {
    fn add(&mut self, region: &RegionEntry) {
        self.count += 1;
        self.plain_bytes += u64::from(region.plain_len);
        self.stored_bytes += u64::from(region.sealed_len);
    }
}

/// The containers that are related in the same way, directly: without those that are related to these.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Related {
    /// At most [`RELATED_MAX`] of them, by id.
    pub listed: Vec<RelatedContainer>,
    /// Number of all.
    pub count: u64,
}

impl Related {
    /// Returns the containers that hold bases for one. A directory names less than 2^16 of them.
    pub(super) fn bases_of(container: &ContainerReader, listed: &Containers) -> Result<Self> {
        let mut holders: BTreeMap<ContainerId, Regions> = BTreeMap::new();
        for region in &container.directory.regions {
            let mut of_region: Vec<ContainerId> = region.bases.iter().map(|base| base.container).collect();
            of_region.sort_unstable();
            of_region.dedup();
            for holder in of_region {
                holders.entry(holder).or_default().add(region);
            }
        }
        let mut related = Self { listed: Vec::new(), count: holders.len() as u64 };
        for (id, regions) in holders.into_iter().take(RELATED_MAX) {
            related.listed.push(RelatedContainer::of(id, regions, listed)?);
        }
        Ok(related)
    }

    /// Adds a container if a region of it has a base in another one.
    pub(super) fn add_dependent(
        &mut self,
        container: &ContainerReader,
        holder: ContainerId,
        listed: &Containers,
    ) -> Result<()> {
        let mut regions = Regions::default();
        let depends = |region: &&RegionEntry| region.bases.iter().any(|base| base.container == holder);
        container.directory.regions.iter().filter(depends).for_each(|region| regions.add(region));
        if regions.count == 0 {
            return Ok(());
        }
        self.count += 1;
        let id = container.name.id;
        let at = self.listed.partition_point(|other| other.id < id);
        if at < RELATED_MAX {
            self.listed.truncate(RELATED_MAX - 1);
            self.listed.insert(at, RelatedContainer::of(id, regions, listed)?);
        }
        Ok(())
    }
}

impl RelatedContainer {
    fn of(id: ContainerId, regions: Regions, listed: &Containers) -> Result<Self> {
        let sized = listed.find(id).map(|number| listed.sized(number)).transpose()?;
        Ok(Self { id, stored_bytes: sized.map(|(_, bytes)| bytes), regions })
    }
}
