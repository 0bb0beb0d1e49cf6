//! The repository as a reader sees it while collections delete containers: a listing that can be taken again, and where
//! the chunks of deleted containers are (docs/protocol.md, "A reader writes nothing").

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::codec::{Reader, put_container_id};
use crate::container::ContainerReader;
use crate::container::reader::ChunkPosition;
use crate::error::{Error, Result};
use crate::object::names::{CollectionStep, ContainerName};
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::container_ids::spill_key;
use crate::store::container_set::Containers;
use crate::store::directories::Directories;
use crate::store::scratch::Scratch;
use crate::types::{Chunk, ContainerId};

/// Memory of a view in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViewMemory {
    /// For opened directories.
    pub(crate) directories: usize,
    /// For the locations of moved chunks; beyond, they spill. They take at least what the smallest map takes.
    pub(crate) moved: usize,
}

/// Listed containers with their directories, and the locations of what stood in deleted ones. Needs no write access.
#[derive(Debug)]
pub(crate) struct View {
    store: Store,
    scratch: Scratch,
    containers: Containers,
    /// Number of the listing, counted from 0.
    listing: u32,
    /// Directories of containers that were opened last.
    pub(crate) directories: Directories,
    refresh: Refresh,
    /// Memory for `moved`; beyond, it spills.
    moved_bytes: usize,
    /// The containers that hold the chunks of deleted ones, read when a hint first names a container that is not listed.
    moved: Option<SpillMap>,
}

/// Whether the containers may be listed again.
#[derive(Debug)]
enum Refresh {
    /// No: a session may only refer to what it has listed, and nothing of that is deleted before it ends.
    Never,
    /// Yes, and the listing is the caller's: its order among the collections is not known.
    Possible,
    /// The view has listed the containers. These collections had a `final` before that listing began.
    Since(BTreeSet<u32>),
}

impl View {
    /// Sees the listed containers.
    pub(crate) fn new(store: &Store, containers: &Containers, scratch: &Scratch, memory: ViewMemory) -> Self {
        Self {
            store: store.clone(),
            scratch: scratch.clone(),
            containers: containers.clone(),
            directories: Directories::new(store, containers, memory.directories),
            listing: 0,
            refresh: Refresh::Possible,
            moved_bytes: memory.moved.max(crate::spill::MEMORY_BYTES_MIN),
            moved: None,
        }
    }

    /// The same view, which never lists again: that of a session.
    pub(crate) fn fixed(self) -> Self {
        Self { refresh: Refresh::Never, ..self }
    }

    /// Returns the repository.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the containers of the last listing.
    pub(crate) fn containers(&self) -> &Containers {
        &self.containers
    }

    /// Never lists again from now on.
    pub(crate) fn fix(&mut self) {
        self.refresh = Refresh::Never;
    }

    /// Sees a newer listing.
    pub(crate) fn set_containers(&mut self, containers: &Containers) {
        self.containers = containers.clone();
        self.directories.set_containers(containers);
        self.moved = None;
        self.listing += 1;
        if matches!(self.refresh, Refresh::Since(_)) {
            self.refresh = Refresh::Possible;
        }
    }

    /// Lists the containers again if chunks that were missed may be found by that, and returns true then: the caller tries
    /// again. Returns false if they are really missing.
    ///
    /// The first call lists always. Later calls list if a `final` has appeared since the last listing began. If none has,
    /// that listing has every chunk of the snapshots that were committed before it: what a `final` names is kept in a
    /// container that was listed before that `final` was published, and that no earlier `final` names. After an error the
    /// view is as it was.
    pub(crate) fn refresh(&mut self) -> Result<bool> {
        let before = match &self.refresh {
            Refresh::Never => return Ok(false),
            Refresh::Possible => None,
            Refresh::Since(finals) => Some(finals),
        };
        let finals = self.finals()?;
        if before == Some(&finals) {
            return Ok(false);
        }
        self.containers = self.store.list_containers(&self.scratch)?;
        self.directories.set_containers(&self.containers);
        self.refresh = Refresh::Since(finals);
        self.moved = None;
        self.listing += 1;
        Ok(true)
    }

    /// Finds a chunk in the container that its hint names. If that container is gone, finds it in those in which its chunks
    /// are now; `None` if it is in none of them.
    pub(crate) fn find_hinted(
        &mut self,
        chunk: &Chunk,
        hint: Option<ContainerId>,
        near: &mut Near,
    ) -> Result<Option<(ContainerId, ChunkPosition)>> {
        if near.hint != hint || near.listing != self.listing {
            *near = Near { hint, listing: self.listing, containers: self.hinted(hint)?, number: 0 };
        }
        Ok(near.find(chunk))
    }

    fn hinted(&mut self, hint: Option<ContainerId>) -> Result<Vec<Arc<ContainerReader>>> {
        let Some(id) = hint else { return Ok(Vec::new()) };
        if let Ok(container) = self.directories.get(id) {
            return Ok(vec![container]);
        }
        let moved = self.moved(id)?;
        Ok(moved.into_iter().filter_map(|id| self.directories.get(id).ok()).collect())
    }

    /// Returns the containers in which a deleted container's chunks stand, as the newest `final` names them. None: they
    /// may be anywhere. It is a hint, and the containers may be gone in turn.
    pub(crate) fn moved(&mut self, container: ContainerId) -> Result<Vec<ContainerId>> {
        let moved = match &mut self.moved {
            Some(moved) => moved,
            None => self.moved.insert(load_moved(&self.store, &self.scratch, self.moved_bytes)?),
        };
        let targets = moved.get(&spill_key(container))?.unwrap_or_default();
        let mut reader = Reader::new(&targets);
        let mut containers = Vec::new();
        while reader.remaining() != 0 {
            containers.push(reader.container_id().map_err(|error| error.of("spilled locations"))?);
        }
        Ok(containers)
    }

    /// Returns the collections that have a `final`.
    fn finals(&self) -> Result<BTreeSet<u32>> {
        let collections = self.store.list_collections()?.into_iter();
        Ok(collections.filter(|(_, steps)| steps.contains(&CollectionStep::Final)).map(|(number, _)| number).collect())
    }
}

/// Position of the last chunk; the search for the next one starts there.
#[derive(Debug, Default)]
pub(crate) struct Near {
    hint: Option<ContainerId>,
    /// Number of the listing that it comes from.
    listing: u32,
    /// The container that the hint names, else those in which its chunks are now; that of the last chunk first.
    containers: Vec<Arc<ContainerReader>>,
    number: usize,
}

impl Near {
    fn find(&mut self, chunk: &Chunk) -> Option<(ContainerId, ChunkPosition)> {
        let guess = self.number;
        let found = self.containers.iter().enumerate().find_map(|(at, container)| {
            let number = container.number_of(&chunk.fingerprint, guess)?;
            let position = container.position(number).filter(|position| position.len == chunk.len)?;
            Some((at, number, position))
        });
        let (at, number, position) = found?;
        self.containers.swap(0, at);
        self.number = number + 1;
        Some((self.containers.first()?.name.id, position))
    }
}

/// Reads the locations of moved chunks. Those that cannot be read are none: they save time only.
fn load_moved(store: &Store, scratch: &Scratch, memory_bytes: usize) -> Result<SpillMap> {
    let mut moved = scratch.map(&store.host, "moved containers", memory_bytes)?;
    let mut outcome = Ok(());
    let _unread = store.read_moved(None, &mut |container, targets| {
        let mut value = Vec::new();
        for target in targets {
            put_container_id(&mut value, *target);
        }
        outcome = moved.insert(spill_key(container), &value);
        outcome.clone()
    });
    // The disk of temporary files says nothing about the repository.
    outcome.map(|()| moved)
}

/// Opens all containers of a repository and hands each to `each`, until that breaks. Containers that a collection deletes
/// meanwhile are left out, and those that have appeared follow. With `is_search`, those that have appeared follow always:
/// what is looked for was in none of the others.
pub(crate) fn open_each(
    store: &Store,
    scratch: &Scratch,
    is_search: bool,
    each: &mut dyn FnMut(ContainerName, Result<ContainerReader>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut view = View::new(store, &store.list_containers(scratch)?, scratch, ViewMemory { directories: 0, moved: 0 });
    let mut new = view.containers().clone();
    loop {
        let mut goes_on = is_search;
        for opened in store.open_containers(&new, new.numbers()) {
            match opened? {
                (_, Err(Error::Missing { .. })) => goes_on = true,
                (name, opened) => {
                    if each(name, opened)?.is_break() {
                        return Ok(());
                    }
                }
            }
        }
        let known = view.containers().clone();
        if !goes_on || !view.refresh()? {
            return Ok(());
        }
        new = view.containers().retain(|_, id| !known.contains(id));
    }
}
