//! Regions that were compared with their names when they were read as bases of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::container::ContainerReader;
use crate::container::seal::compare_chunks;
use crate::crypto::Keys;
use crate::object::names::ContainerName;
use crate::store::Store;
use crate::store::base_reader::ObserveBases;
use crate::store::container_set::Containers;

/// Compares each base that is read with its names, and remembers those that are right, of the first 64 regions of each container: a bit
/// for each. A container of 4 MiB has more only if its regions compress to an eighth.
#[derive(Debug)]
pub(super) struct Compared {
    keys: Arc<Keys>,
    listed: Containers,
    regions: Vec<AtomicU64>,
}

impl Compared {
    /// Starts with none. Takes eight bytes for each listed container.
    pub(super) fn new(store: &Store, listed: &Containers) -> Self {
        let regions = (0..listed.numbers_end()).map(|_| AtomicU64::new(0)).collect();
        Self { keys: Arc::clone(&store.keys), listed: listed.clone(), regions }
    }

    /// Returns true if the region of the container with this name was right. Of two containers with one number, that is one.
    pub(super) fn contains(&self, name: &ContainerName, region: u32) -> bool {
        let Some((bits, bit)) = self.bit(name, region) else { return false };
        bits.load(Ordering::Relaxed) & bit != 0
            && self.listed.find(name.id).and_then(|number| self.listed.name(number).ok()) == Some(*name)
    }

    fn bit(&self, name: &ContainerName, region: u32) -> Option<(&AtomicU64, u64)> {
        let bits = self.regions.get(self.listed.find(name.id)?.0 as usize)?;
        Some((bits, 1u64.checked_shl(region)?))
    }
}

impl ObserveBases for Compared {
    fn read(&self, container: &ContainerReader, region: u32, plain: &[u8]) {
        let Some((bits, bit)) = self.bit(&container.name, region) else { return };
        let chunks = container.directory.chunks.get(container.chunks_of(region)).unwrap_or_default();
        if compare_chunks((&self.keys, container.name.kind), chunks, plain).is_ok() {
            bits.fetch_or(bit, Ordering::Relaxed);
        }
    }
}
