//! Which containers hold a chunk, learned from their directories.

use std::collections::BTreeMap;

use crate::codec::{Reader, put_container_id};
use crate::container::ContainerReader;
use crate::error::Result;
use crate::spill::SpillMap;
use crate::store::Store;
use crate::types::{ContainerId, Fingerprint, SessionId, Timestamp};

/// Copies of a chunk that are known of, the newest ones. There is mostly one: more come about when backups run at the same
/// time, and when metadata is stored again with newer hints.
const COPIES_MAX: usize = 8;

/// The containers of every chunk.
#[derive(Debug)]
pub(crate) struct Locations {
    map: SpillMap,
    store: Store,
    /// When sessions began, of those that hold chunks of which there are several copies.
    began: BTreeMap<SessionId, Timestamp>,
}

impl Locations {
    /// Starts with none, in an empty map.
    pub(crate) fn new(store: &Store, map: SpillMap) -> Self {
        Self { map, store: store.clone(), began: BTreeMap::new() }
    }

    /// Learns what a container holds.
    pub(crate) fn learn(&mut self, container: &ContainerReader) -> Result<()> {
        let id = container.name.id;
        let mut location = Vec::new();
        put_container_id(&mut location, id);
        for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
            if self.map.insert_new(fingerprint.0, &location)? {
                continue;
            }
            let mut copies = self.of(&fingerprint)?;
            if copies.contains(&id) {
                continue;
            }
            let newness = self.newness(id);
            let at = copies.iter().position(|copy| self.newness(*copy) < newness).unwrap_or(copies.len());
            copies.insert(at, id);
            copies.truncate(COPIES_MAX);
            let mut locations = Vec::with_capacity(copies.len() * location.len());
            for copy in copies {
                put_container_id(&mut locations, copy);
            }
            self.map.insert(fingerprint.0, &locations)?;
        }
        Ok(())
    }

    /// Returns the containers that hold a chunk, those of the newest session first. The hints of a newer copy of a node
    /// are newer, too.
    pub(crate) fn of(&mut self, fingerprint: &Fingerprint) -> Result<Vec<ContainerId>> {
        let locations = self.map.get(&fingerprint.0)?.unwrap_or_default();
        let mut reader = Reader::new(&locations);
        let mut containers = Vec::new();
        while reader.remaining() != 0 {
            containers.push(reader.container_id().map_err(|error| error.of("spilled locations"))?);
        }
        Ok(containers)
    }

    /// Orders copies by the times at which their sessions began. A session whose object cannot be read counts as the oldest.
    fn newness(&mut self, id: ContainerId) -> (Timestamp, SessionId, u32) {
        let store = &self.store;
        let began = self.began.entry(id.session).or_insert_with(|| {
            let oldest = Timestamp { seconds: i64::MIN, nanoseconds: 0 };
            store.read_session(id.session).map_or(oldest, |session| session.time)
        });
        (*began, id.session, id.ordinal)
    }
}
