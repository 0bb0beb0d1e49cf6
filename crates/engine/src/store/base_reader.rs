//! Reading regions that others were compressed against (format 2).
//!
//! All of a region's bases, and the bases of these, are found and checked before any of them is read; then they are read in the
//! order in which they are stored. Nothing recurses: depths are stored, and that of a base is below that of its region, so that no
//! chain is longer than [`DEPTH_MAX`](crate::container::bases::DEPTH_MAX) and none closes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::bases::{Bases, DEPTH_MAX};
use crate::container::seal::BasePlaintexts;
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::object::names::{ContainerKind, ContainerName};
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::types::{ContainerId, RegionId};

/// Most regions that one region may depend on, over all of its bases and theirs. So much plaintext is held while a chain is
/// read: 8 MiB with regions of 512 KiB.
pub(crate) const CHAIN_REGIONS_MAX: usize = 16;
/// Most containers of a session that may hold bases of its own regions: the newest, 64 GiB with containers of 4 MiB, in 2 MiB.
const MADE_MAX: usize = 1 << 14;
/// Share of the memory of a reader that is for directories: one of 4. The rest is for plaintexts.
const DIRECTORIES_SHARE: usize = 4;

/// Opens bases, within a number of bytes for what was used last. Cheap to clone; clones share their memory.
#[derive(Clone, Debug)]
pub(crate) struct BaseReader {
    store: Store,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    containers: Containers,
    /// Containers that were made since they were listed.
    made: BTreeMap<ContainerId, ContainerName>,
    directories: Lru<ContainerId, Arc<ContainerReader>>,
    regions: Lru<RegionId, Arc<[u8]>>,
    compressor: Compressor,
    counts: BaseCounts,
}

/// Work of a reader of bases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BaseCounts {
    /// Regions that were read as bases.
    pub(crate) read: u64,
    /// Regions that were in the cache when they were needed.
    pub(crate) held: u64,
}

/// A region of a chain, before it is read.
#[derive(Debug)]
struct Link {
    container: Arc<ContainerReader>,
    bases: Bases,
}

/// The regions that a region depends on, in the order of their containers and numbers.
type Chain = BTreeMap<RegionId, Link>;

impl BaseReader {
    /// Finds bases in the listed containers. Takes `memory_bytes`, and the plaintexts of one chain: at most
    /// [`CHAIN_REGIONS_MAX`] regions and a prefix, since one chain is read at a time.
    pub(crate) fn new(store: &Store, containers: &Containers, memory_bytes: usize) -> Self {
        let directories_bytes = memory_bytes / DIRECTORIES_SHARE;
        let state = State {
            containers: containers.clone(),
            made: BTreeMap::new(),
            directories: Lru::new(directories_bytes),
            regions: Lru::new(memory_bytes - directories_bytes),
            compressor: Compressor::default(),
            counts: BaseCounts::default(),
        };
        Self { store: store.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Looks in other containers from now on.
    pub(crate) fn set_containers(&self, containers: &Containers) {
        let mut state = self.lock();
        state.directories.retain(|id| containers.contains(*id));
        state.regions.retain(|id| containers.contains(id.container));
        state.containers = containers.clone();
    }

    /// Adds a container that was made since the others were listed, and is durable.
    pub(crate) fn add(&self, name: ContainerName) {
        let mut state = self.lock();
        state.made.insert(name.id, name);
        if MADE_MAX < state.made.len() {
            state.made.pop_first();
        }
    }

    /// Returns what was read, and what was not read again.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> BaseCounts {
        self.lock().counts
    }

    /// Returns the plaintexts of the bases of a region, one after the other; nothing if it has none. An error names the
    /// region, and what is wrong with a base.
    pub(crate) fn prefix_of(&self, container: &ContainerReader, region: u32) -> Result<Arc<[u8]>> {
        let bases = container.bases_of(region);
        if bases.is_empty() {
            return Ok(Arc::default());
        }
        self.prefix(&bases).map_err(|error| wrong_base(container, region, error))
    }

    /// Finds the bases of a region and the bases of these, and reads none of them. An error names the region.
    pub(crate) fn check_bases(&self, container: &ContainerReader, region: u32) -> Result<()> {
        let bases = container.bases_of(region);
        if bases.is_empty() {
            return Ok(());
        }
        let chain = self.lock().chain(&self.store, &bases);
        chain.map(drop).map_err(|error| wrong_base(container, region, error))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is held was whole when it was put there.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BasePlaintexts for BaseReader {
    fn list(&self, regions: &[RegionId]) -> Result<Option<Bases>> {
        let mut state = self.lock();
        let mut depth = 0;
        for region in regions {
            depth = depth.max(state.link(&self.store, *region)?.bases.depth());
        }
        let Some(bases) = Bases::new(regions, depth.saturating_add(1)) else { return Ok(None) };
        match state.chain(&self.store, &bases) {
            Ok(_) => Ok(Some(bases)),
            Err(Error::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn prefix(&self, bases: &Bases) -> Result<Arc<[u8]>> {
        let mut state = self.lock();
        let chain = state.chain(&self.store, bases)?;
        let plaintexts = state.read(&self.store, &chain)?;
        Ok(prefix_in(bases, &plaintexts).into())
    }
}

/// Returns the error of a region whose base cannot be read: damage, if the base is lost, and otherwise that of the base.
fn wrong_base(container: &ContainerReader, region: u32, error: Error) -> Error {
    if error.is_loss() || matches!(error, Error::Invalid { .. }) {
        container.wrong_region(region, &format!("lacks a base: {error}"))
    } else {
        error.context(format!("a base of region {region} of {}", container.name))
    }
}

fn prefix_in(bases: &Bases, plaintexts: &BTreeMap<RegionId, Arc<[u8]>>) -> Vec<u8> {
    let plaintexts: Vec<&[u8]> = bases.iter().filter_map(|base| plaintexts.get(&base).map(AsRef::as_ref)).collect();
    plaintexts.concat()
}

impl State {
    fn directory(&mut self, store: &Store, id: ContainerId) -> Result<Arc<ContainerReader>> {
        if let Some(container) = self.directories.get(&id) {
            return Ok(container);
        }
        let gone = || Error::damaged(format!("container {id}"), "does not exist, and holds the base of a region");
        let name = match self.made.get(&id) {
            Some(name) => *name,
            None => self.containers.name(self.containers.find(id).ok_or_else(gone)?)?,
        };
        let container = store.open_regions(&name);
        let container = container.map_err(|error| if error.is_missing_object() { gone() } else { error })?;
        let container = Arc::new(container);
        self.directories.insert(id, Arc::clone(&container), container.memory_bytes());
        Ok(container)
    }

    fn link(&mut self, store: &Store, id: RegionId) -> Result<Link> {
        let container = self.directory(store, id.container)?;
        if container.name.kind != ContainerKind::Data {
            return Err(Error::damaged(container.name, "holds metadata, and is named as the container of a base"));
        }
        let entry = container.directory.regions.get(id.region as usize);
        let bases =
            entry.ok_or_else(|| container.wrong_region(id.region, "does not exist, and is named as a base"))?.bases;
        Ok(Link { container, bases })
    }

    /// Finds every region that these bases need, themselves included.
    fn chain(&mut self, store: &Store, bases: &Bases) -> Result<Chain> {
        let mut chain = Chain::new();
        let mut wanted: Vec<(RegionId, u8)> = bases.iter().map(|base| (base, bases.depth())).collect();
        while let Some((id, above)) = wanted.pop() {
            let depth = match chain.get(&id) {
                Some(link) => link.bases.depth(),
                None if chain.len() == CHAIN_REGIONS_MAX => {
                    return Err(Error::invalid(format!("a region depends on more than {CHAIN_REGIONS_MAX} others")));
                }
                None => {
                    let link = self.link(store, id)?;
                    let depth = link.bases.depth();
                    wanted.extend(link.bases.iter().map(|base| (base, depth)));
                    chain.insert(id, link);
                    depth
                }
            };
            if above <= depth {
                return Err(Error::invalid(format!(
                    "{id} has depth {depth}, and is the base of a region of depth {above}, which must be greater"
                )));
            }
        }
        Ok(chain)
    }

    /// Reads the regions of a chain, those without bases first, and each depth in the order in which it is stored.
    fn read(&mut self, store: &Store, chain: &Chain) -> Result<BTreeMap<RegionId, Arc<[u8]>>> {
        let mut plaintexts: BTreeMap<RegionId, Arc<[u8]>> = BTreeMap::new();
        // What is in the cache needs no bases.
        let mut needed: Vec<RegionId> = chain.keys().copied().collect();
        needed.retain(|id| match self.regions.get(id) {
            Some(plain) => plaintexts.insert(*id, plain).is_some(),
            None => true,
        });
        self.counts.held += plaintexts.len() as u64;
        for depth in 0..DEPTH_MAX {
            for id in &needed {
                let Some(link) = chain.get(id).filter(|link| link.bases.depth() == depth) else { continue };
                let prefix = prefix_in(&link.bases, &plaintexts);
                let plain: Arc<[u8]> =
                    store.read_region_on(&link.container, id.region, &prefix, &mut self.compressor)?.into();
                self.counts.read += 1;
                self.regions.insert(*id, Arc::clone(&plain), plain.len());
                plaintexts.insert(*id, plain);
            }
        }
        Ok(plaintexts)
    }
}
