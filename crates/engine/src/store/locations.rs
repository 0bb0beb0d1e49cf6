//! Which containers hold a chunk, learned from their directories.

use crate::codec::{Reader, put_container_id};
use crate::container::ContainerReader;
use crate::error::Result;
use crate::spill::SpillMap;
use crate::types::{ContainerId, Fingerprint};

/// Copies of a chunk that are known of. There is mostly one: a second comes about when two backups run at the same time.
const COPIES_MAX: usize = 8;

/// The containers of every chunk.
#[derive(Debug)]
pub(crate) struct Locations(SpillMap);

impl Locations {
    /// Starts with none, in an empty map.
    pub(crate) fn new(map: SpillMap) -> Self {
        Self(map)
    }

    /// Learns what a container holds.
    pub(crate) fn learn(&mut self, container: &ContainerReader) -> Result<()> {
        let mut location = Vec::new();
        put_container_id(&mut location, container.name.id);
        for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
            if self.0.insert_new(fingerprint.0, &location)? {
                continue;
            }
            let mut locations = self.0.get(&fingerprint.0)?.unwrap_or_default();
            if locations.len() < COPIES_MAX * location.len() {
                locations.extend_from_slice(&location);
                self.0.insert(fingerprint.0, &locations)?;
            }
        }
        Ok(())
    }

    /// Returns the containers that hold a chunk, in the order in which they were learned.
    pub(crate) fn of(&mut self, fingerprint: &Fingerprint) -> Result<Vec<ContainerId>> {
        let locations = self.0.get(&fingerprint.0)?.unwrap_or_default();
        let mut reader = Reader::new(&locations);
        let mut containers = Vec::new();
        while reader.remaining() != 0 {
            containers.push(reader.container_id().map_err(|error| error.of("spilled locations"))?);
        }
        Ok(containers)
    }
}
