//! Directories of containers that were opened last.

use std::sync::Arc;

use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::types::ContainerId;

/// Opens containers by name and keeps what was used last, within a number of bytes.
#[derive(Debug)]
pub(crate) struct Directories {
    store: Store,
    containers: Containers,
    opened: Lru<ContainerId, Arc<ContainerReader>>,
    /// Directories that were read so far.
    pub(crate) read: u64,
}

impl Directories {
    /// Starts with none opened.
    pub(crate) fn new(store: &Store, containers: &Containers, bytes_max: usize) -> Self {
        Self { store: store.clone(), containers: containers.clone(), opened: Lru::new(bytes_max), read: 0 }
    }

    /// Looks in other containers from now on.
    pub(crate) fn set_containers(&mut self, containers: &Containers) {
        self.containers = containers.clone();
        // The others may be deleted.
        self.opened.retain(|id| containers.contains(*id));
    }

    /// Returns a container's directory, opening it where it is not held.
    pub(crate) fn get(&mut self, id: ContainerId) -> Result<Arc<ContainerReader>> {
        if let Some(container) = self.opened.get(&id) {
            return Ok(container);
        }
        let number = self.containers.find(id).ok_or_else(|| Error::Missing { object: format!("container {id}") })?;
        let container = self.store.open_container(&self.containers.name(number)?)?;
        Ok(self.insert(container))
    }

    /// Returns true if a container's directory is held, which counts as a use.
    pub(crate) fn holds(&mut self, id: ContainerId) -> bool {
        self.opened.get(&id).is_some()
    }

    /// Holds a directory that was read elsewhere.
    pub(crate) fn insert(&mut self, container: ContainerReader) -> Arc<ContainerReader> {
        self.read += 1;
        let (id, bytes) = (container.name.id, container.memory_bytes());
        let container = Arc::new(container);
        self.opened.insert(id, Arc::clone(&container), bytes);
        container
    }
}
