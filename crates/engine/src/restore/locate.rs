//! Positions of chunks: in the container that a hint names, else where its chunks have moved, else in any other that holds them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::container::ContainerReader;
use crate::container::reader::ChunkPosition;
use crate::error::{Error, Result};
use crate::object::names::ContainerKind;
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::Containers;
use crate::store::locations::Locations;
use crate::store::metadata::Scratch;
use crate::store::recipe_cursor::HintedChunk;
use crate::store::view::{Near, View, ViewMemory};
use crate::types::{Chunk, ContainerId, Fingerprint};

/// Finds chunks in containers.
#[derive(Debug)]
pub(super) struct Locator {
    store: Store,
    view: View,
    scratch: Scratch,
    /// Finds bases in the same containers.
    bases: Option<BaseReader>,
    /// The containers of every chunk, learned from all directories once a hint has failed.
    everywhere: Option<Locations>,
    locations_bytes: usize,
    /// Directories that were read for `everywhere`.
    learned: u64,
}

impl Locator {
    /// Finds chunks in the listed containers, and in others once it was refreshed. Takes the memory of the view, and so many
    /// bytes for the containers of every chunk; beyond, they spill.
    pub(crate) fn new(
        store: &Store,
        containers: &Containers,
        scratch: &Scratch,
        memory: ViewMemory,
        locations_bytes: usize,
    ) -> Self {
        let view = View::new(store, containers, scratch, memory);
        let locations_bytes = locations_bytes.max(crate::spill::MEMORY_BYTES_MIN);
        Self {
            store: store.clone(),
            view,
            scratch: scratch.clone(),
            bases: None,
            everywhere: None,
            locations_bytes,
            learned: 0,
        }
    }

    /// Shows each newer listing to a reader of bases, too.
    pub(super) fn with_bases(self, bases: BaseReader) -> Self {
        Self { bases: Some(bases), ..self }
    }

    /// Returns the number of directories of data containers that were read so far.
    pub(super) fn directories_read(&self) -> u64 {
        self.view.directories.read + self.learned
    }

    /// Returns a container by its number.
    pub(super) fn container(&mut self, id: ContainerId) -> Result<Arc<ContainerReader>> {
        self.view.directories.get(id)
    }

    /// Opens the containers that a window's hints name, together.
    pub(super) fn open_hinted(&mut self, wanted: &[HintedChunk]) -> Result<()> {
        let mut hinted: BTreeSet<ContainerId> = BTreeSet::new();
        for run in wanted.chunk_by(|before, after| before.hint == after.hint) {
            hinted.extend(run.first().and_then(|chunk| chunk.hint));
        }
        hinted.retain(|id| !self.view.directories.holds(*id));
        let containers = self.view.containers().clone();
        let missing = hinted.iter().filter_map(|id| containers.find(*id));
        for opened in self.store.open_containers(&containers, missing) {
            // One that cannot be opened shows when its chunks are looked for.
            if let Ok(container) = opened?.1 {
                self.view.directories.insert(container);
            }
        }
        Ok(())
    }

    /// Finds a chunk: in the container that its hint names, else where that container's chunks have moved, else in any other.
    pub(crate) fn find(&mut self, wanted: &HintedChunk, near: &mut Near) -> Result<(ContainerId, ChunkPosition)> {
        let HintedChunk { chunk, hint } = wanted;
        if let Some(found) = self.view.find_hinted(chunk, *hint, near)? {
            return Ok(found);
        }
        self.find_other(chunk, hint.as_slice(), &mut Vec::new())?.ok_or_else(|| missing(chunk))
    }

    /// Finds a chunk in a container that was not tried before: where the chunks of `hinted` containers have moved, else
    /// anywhere. Adds the container that it returns.
    pub(super) fn find_other(
        &mut self,
        chunk: &Chunk,
        hinted: &[ContainerId],
        tried: &mut Vec<ContainerId>,
    ) -> Result<Option<(ContainerId, ChunkPosition)>> {
        let mut is_refreshed = false;
        loop {
            for id in hinted {
                let moved = self.view.moved(*id)?;
                if let Some(found) = self.find_in_any(moved, chunk, tried) {
                    return Ok(Some(found));
                }
            }
            // Before the directories of all containers are read: a newer `final` may name the one.
            if self.everywhere.is_some() || is_refreshed || hinted.is_empty() || !self.refresh()? {
                break;
            }
            is_refreshed = true;
        }
        let copies = self.copies(&chunk.fingerprint)?;
        Ok(self.find_in_any(copies, chunk, tried))
    }

    fn find_in_any(
        &mut self,
        containers: Vec<ContainerId>,
        chunk: &Chunk,
        tried: &mut Vec<ContainerId>,
    ) -> Option<(ContainerId, ChunkPosition)> {
        for id in containers {
            if !tried.contains(&id)
                && let Ok(position) = self.find_in(id, chunk)
            {
                tried.push(id);
                return Some((id, position));
            }
        }
        None
    }

    /// Finds a chunk in the container with this number.
    fn find_in(&mut self, id: ContainerId, chunk: &Chunk) -> Result<ChunkPosition> {
        let position = self.view.directories.get(id)?.find(&chunk.fingerprint);
        position.filter(|position| position.len == chunk.len).ok_or_else(|| missing(chunk))
    }

    /// Lists the containers again after chunks were missed; returns true if they may be found now.
    pub(super) fn refresh(&mut self) -> Result<bool> {
        let known = self.view.containers().clone();
        if !self.view.refresh()? {
            return Ok(false);
        }
        let containers = self.view.containers().clone();
        if let Some(bases) = &self.bases {
            bases.set_containers(&containers);
        }
        if let Some(everywhere) = &mut self.everywhere {
            self.learned += learn(&self.store, &containers.retain(|_, id| !known.contains(id)), everywhere)?;
        }
        Ok(true)
    }

    /// Returns every container that has a chunk, as far as their directories can be read.
    fn copies(&mut self, fingerprint: &Fingerprint) -> Result<Vec<ContainerId>> {
        if self.everywhere.is_none() {
            let map = self.scratch.map(&self.store.host, "locations of chunks", self.locations_bytes)?;
            let mut everywhere = Locations::new(&self.store, map);
            self.learned += learn(&self.store, self.view.containers(), &mut everywhere)?;
            self.everywhere = Some(everywhere);
        }
        self.everywhere.as_mut().map_or(Ok(Vec::new()), |everywhere| everywhere.of(fingerprint))
    }
}

/// Learns what data containers hold. Returns how many were opened.
fn learn(store: &Store, containers: &Containers, locations: &mut Locations) -> Result<u64> {
    let mut opened_containers = 0;
    for opened in store.open_containers(containers, containers.of_kind(ContainerKind::Data)) {
        if let Ok(container) = opened?.1 {
            locations.learn(&container)?;
            opened_containers += 1;
        }
    }
    Ok(opened_containers)
}

fn missing(chunk: &Chunk) -> Error {
    Error::MissingChunk { fingerprint: chunk.fingerprint.to_string() }
}
