//! Positions of chunks: in the container that a hint names, else in any other that holds them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::container::ContainerReader;
use crate::container::reader::ChunkPosition;
use crate::error::{Error, Result};
use crate::object::names::ContainerKind;
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::store::cursor::HintedChunk;
use crate::store::directories::Directories;
use crate::store::locations::Locations;
use crate::store::metadata::Scratch;
use crate::types::{Chunk, ContainerId, Fingerprint};

/// Finds chunks in containers.
#[derive(Debug)]
pub(super) struct Locator {
    store: Store,
    containers: Containers,
    directories: Directories,
    scratch: Scratch,
    /// The containers of every chunk, learned from all directories once a hint has failed.
    everywhere: Option<Locations>,
    locations_bytes: usize,
}

/// Position of the last chunk; the search for the next one starts there.
#[derive(Debug, Default)]
pub(super) struct Near {
    container: Option<Arc<ContainerReader>>,
    number: usize,
}

impl Locator {
    /// Keeps directories and locations in so many bytes each; locations beyond that spill.
    pub(crate) fn new(
        store: &Store,
        containers: Containers,
        scratch: &Scratch,
        (directories_bytes, locations_bytes): (usize, usize),
    ) -> Self {
        let directories = Directories::new(store, &containers, directories_bytes);
        let (store, scratch) = (store.clone(), scratch.clone());
        Self { store, containers, directories, scratch, everywhere: None, locations_bytes }
    }

    /// Returns a container by its number.
    pub(super) fn container(&mut self, id: ContainerId) -> Result<Arc<ContainerReader>> {
        self.directories.get(id)
    }

    /// Opens the containers that a window's hints name, together.
    pub(super) fn open_hinted(&mut self, wanted: &[HintedChunk]) -> Result<()> {
        let mut hinted: BTreeSet<ContainerId> = BTreeSet::new();
        for run in wanted.chunk_by(|before, after| before.hint == after.hint) {
            hinted.extend(run.first().and_then(|chunk| chunk.hint));
        }
        hinted.retain(|id| !self.directories.holds(*id));
        let missing = hinted.iter().filter_map(|id| self.containers.find(*id));
        for opened in self.store.open_containers(&self.containers, missing) {
            // One that cannot be opened shows when its chunks are looked for.
            if let Ok(container) = opened?.1 {
                self.directories.insert(container);
            }
        }
        Ok(())
    }

    /// Finds a chunk in the container that its hint names, else in any other.
    pub(crate) fn find(&mut self, wanted: &HintedChunk, near: &mut Near) -> Result<(ContainerId, ChunkPosition)> {
        let HintedChunk { chunk, hint } = wanted;
        if let Some(id) = *hint
            && near.container.as_ref().is_none_or(|container| container.name.id != id)
        {
            *near = Near { container: self.directories.get(id).ok(), number: 0 };
        }
        if let Some(container) = near.container.as_ref().filter(|container| *hint == Some(container.name.id))
            && let Some(number) = container.number_of(&chunk.fingerprint, near.number)
            && let Some(position) = container.position(number).filter(|position| position.len == chunk.len)
        {
            near.number = number + 1;
            return Ok((container.name.id, position));
        }
        let mut problem = missing(chunk);
        for id in self.copies(&chunk.fingerprint)? {
            match self.find_in(id, chunk) {
                Ok(position) => return Ok((id, position)),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    /// Finds a chunk in the container with this number.
    pub(super) fn find_in(&mut self, id: ContainerId, chunk: &Chunk) -> Result<ChunkPosition> {
        let position = self.directories.get(id)?.find(&chunk.fingerprint);
        position.filter(|position| position.len == chunk.len).ok_or_else(|| missing(chunk))
    }

    /// Returns every container that has a chunk, as far as their directories can be read.
    pub(super) fn copies(&mut self, fingerprint: &Fingerprint) -> Result<Vec<ContainerId>> {
        if self.everywhere.is_none() {
            self.everywhere = Some(self.learn_everywhere()?);
        }
        self.everywhere.as_mut().map_or(Ok(Vec::new()), |everywhere| everywhere.of(fingerprint))
    }

    fn learn_everywhere(&self) -> Result<Locations> {
        let map = self.scratch.map(&self.store.host, "locations of chunks", self.locations_bytes)?;
        let mut everywhere = Locations::new(map);
        for opened in self.store.open_containers(&self.containers, self.containers.of_kind(ContainerKind::Data)) {
            if let Ok(container) = opened?.1 {
                everywhere.learn(&container)?;
            }
        }
        Ok(everywhere)
    }
}

fn missing(chunk: &Chunk) -> Error {
    Error::MissingChunk { fingerprint: chunk.fingerprint.to_string() }
}
