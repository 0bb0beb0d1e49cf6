//! Reading regions that others were compressed against (format 2).
//!
//! All of a region's bases, and the bases of these, are found and checked before any of them is read; then they are read in the
//! order in which they are stored. Nothing recurses: depths are stored, and that of a base is below that of its region, so that no
//! chain is longer than [`DEPTH_MAX`](crate::container::bases::DEPTH_MAX) and none closes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::compress::Compressor;
use crate::container::bases::{Base, Bases, CHAIN_REGIONS_MAX, ChunkRun, DEPTH_MAX};
use crate::container::seal::{BasePlaintexts, Plaintext, compare_chunks};
use crate::container::{ContainerReader, DirectoryChunk, RegionChunk};
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::object::names::{ContainerKind, ContainerName};
use crate::pipeline::{BufferPool, Permits};
use crate::store::Store;
use crate::store::base_chain::{Chain, Link, Plaintexts, PrefixPart, prefix_in, prefix_parts};
use crate::store::container_set::Containers;
use crate::types::{ContainerId, Fingerprint, RegionId};

/// Most containers of a session that may hold bases of its own regions: the newest, 64 GiB with containers of 4 MiB, in 2 MiB. As many
/// more are remembered, so that a region which was compressed against one of the oldest can be verified.
const MADE_MAX: usize = 1 << 14;
/// Share of the memory of a reader that is for directories: one of 4, and at most those of some 200 containers of 4 MiB. The rest is for
/// plaintexts.
const DIRECTORIES_SHARE: usize = 4;
const DIRECTORIES_BYTES_MAX: usize = 16 << 20;

/// Opens bases, within a number of bytes for what was used last. Cheap to clone; clones share their memory. Several threads read
/// at the same time.
#[derive(Clone, Debug)]
pub(crate) struct BaseReader {
    store: Store,
    shared: Arc<Shared>,
    observer: Option<Arc<dyn ObserveBases>>,
    /// Kind of the containers that new regions may have bases in; `None`: it reads alone, and each chain has one kind.
    kind: Option<ContainerKind>,
}

/// Sees the regions that are read as bases.
pub(crate) trait ObserveBases: std::fmt::Debug + Send + Sync {
    /// Sees a region that was read, and was not in the cache.
    fn read(&self, container: &ContainerReader, region: u32, plain: &[u8]);
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Announces that a region was read.
    changed: Condvar,
    /// One for each region of the chains that are read.
    chains: Arc<Permits>,
    compressors: BufferPool<Compressor>,
}

#[derive(Debug)]
struct State {
    containers: Containers,
    /// Containers that were made since they were listed.
    made: BTreeMap<ContainerId, ContainerName>,
    directories: Lru<ContainerId, Arc<ContainerReader>>,
    regions: Lru<RegionId, Plaintext>,
    /// Regions that a thread is reading.
    reading: BTreeSet<RegionId>,
    counts: BaseCounts,
}

/// Which containers of the running session count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    /// Those that new regions may depend on.
    Recent,
    /// All that are remembered.
    All,
}

/// Work of a reader of bases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BaseCounts {
    /// Regions that were read, as bases or for themselves.
    pub(crate) read: u64,
    /// Regions that were in the cache when they were needed.
    pub(crate) held: u64,
}

impl BaseReader {
    /// Returns the list of these bases and their plaintexts, one after the other, if the regions are in the cache.
    pub(crate) fn held_prefix(&self, bases: Vec<Base>) -> Option<(Bases, Plaintext)> {
        let bases = self.list(bases).ok()??;
        let parts = self.parts(&bases, &self.chain(&bases, Made::All).ok()?).ok()?;
        let held = |base| Some((base, self.held(base)?));
        let plaintexts = bases.iter().map(held).collect::<Option<Plaintexts>>()?;
        Some((bases, prefix_in(&parts, &plaintexts)))
    }

    /// Finds bases in the listed containers. Takes `memory_bytes`, and the plaintexts of one chain of the greatest length: at most
    /// [`CHAIN_REGIONS_MAX`] regions and a prefix. Shorter chains are read at the same time as far as they fit.
    pub(crate) fn new(store: &Store, containers: &Containers, memory_bytes: usize) -> Self {
        Self::with_chains(store, containers, memory_bytes, 1)
    }

    /// Does what [`BaseReader::new`] does, and takes the plaintexts of up to `chains` such chains.
    pub(crate) fn with_chains(store: &Store, containers: &Containers, memory_bytes: usize, chains: usize) -> Self {
        let chains = Arc::new(Permits::new(chains.saturating_mul(CHAIN_REGIONS_MAX)));
        Self::sharing_chains(store, containers, memory_bytes, chains)
    }

    /// Does what [`BaseReader::new`] does, and takes the plaintexts of chains out of the memory of another reader.
    pub(crate) fn sharing_chains(
        store: &Store,
        containers: &Containers,
        memory_bytes: usize,
        chains: Arc<Permits>,
    ) -> Self {
        let plaintext_bytes = Self::plaintext_bytes(memory_bytes);
        let state = State {
            containers: containers.clone(),
            made: BTreeMap::new(),
            directories: Lru::new(memory_bytes - plaintext_bytes),
            regions: Lru::new(plaintext_bytes),
            reading: BTreeSet::new(),
            counts: BaseCounts::default(),
        };
        let shared =
            Shared { state: Mutex::new(state), changed: Condvar::new(), chains, compressors: BufferPool::default() };
        Self { store: store.clone(), shared: Arc::new(shared), observer: None, kind: None }
    }

    /// Returns a reader with the same memory that finds bases for regions of one kind alone.
    pub(crate) fn of_kind(&self, kind: ContainerKind) -> Self {
        Self { kind: Some(kind), ..self.clone() }
    }

    /// Shows each region that is read to an observer.
    pub(crate) fn observed_by(self, observer: Option<Arc<dyn ObserveBases>>) -> Self {
        Self { observer, ..self }
    }

    /// Returns the memory of the plaintexts of a chain of the greatest length.
    pub(crate) fn chain_bytes(store: &Store) -> usize {
        CHAIN_REGIONS_MAX * store.config.region_bytes.max(store.config.chunking.chunk_bytes_max()) as usize
    }

    /// Returns how much of the memory of a reader is for plaintexts.
    pub(super) fn plaintext_bytes(memory_bytes: usize) -> usize {
        memory_bytes - (memory_bytes / DIRECTORIES_SHARE).min(DIRECTORIES_BYTES_MAX)
    }

    /// Returns one permit for each region of the chains that are read at the same time.
    pub(crate) fn chains(&self) -> Arc<Permits> {
        Arc::clone(&self.shared.chains)
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
        if 2 * MADE_MAX < state.made.len() {
            state.made.pop_first();
        }
    }

    /// Returns what was read, and what was not read again.
    pub(crate) fn counts(&self) -> BaseCounts {
        self.lock().counts
    }

    /// Returns the plaintexts of the bases of a region, one after the other; nothing if it has none. An error names the
    /// region, and what is wrong with a base.
    pub(crate) fn prefix_of(&self, container: &ContainerReader, region: u32) -> Result<Plaintext> {
        let bases = container.bases_of(region);
        if bases.is_empty() {
            return Ok(Plaintext::default());
        }
        self.of_kind(container.name.kind).prefix(&bases).map_err(|error| wrong_base(container, region, error))
    }

    /// Returns a region if it was read and is still in the cache.
    pub(crate) fn held(&self, id: RegionId) -> Option<Plaintext> {
        let mut state = self.lock();
        let plain = state.regions.get(&id)?;
        state.counts.held += 1;
        Some(plain)
    }

    /// Returns true if a region was read and is still in the cache, where it now was used last.
    pub(crate) fn holds(&self, id: RegionId) -> bool {
        self.lock().regions.get(&id).is_some()
    }

    /// Returns a region of an open container with its bases resolved, and keeps it for regions that depend on it. Takes the memory of a
    /// sealed region and of a prefix meanwhile.
    pub(crate) fn open_base(&self, container: &ContainerReader, region: u32) -> Result<Plaintext> {
        let id = RegionId { container: container.name.id, region };
        match self.held(id) {
            Some(plain) => Ok(plain),
            None => self.read_one(id, container, &self.prefix_of(container, region)?),
        }
    }

    /// Finds the bases of a region and the bases of these, and reads none of them. An error names the region.
    pub(crate) fn check_bases(&self, container: &ContainerReader, region: u32) -> Result<()> {
        let bases = container.bases_of(region);
        if bases.is_empty() {
            return Ok(());
        }
        let reader = self.of_kind(container.name.kind);
        reader.chain(&bases, Made::All).map(drop).map_err(|error| wrong_base(container, region, error))
    }

    /// Returns the region of a chunk; `None` if the container cannot be read, lacks it, or withholds its samples.
    pub(crate) fn region_of(&self, container: ContainerId, fingerprint: &Fingerprint) -> Option<RegionId> {
        let opened = self.directory(container, Made::All).ok().filter(|opened| !opened.withholds_samples())?;
        let region = opened.find(fingerprint)?.region;
        Some(RegionId { container, region })
    }

    /// Returns a region with its bases resolved, and the directory of its container.
    pub(crate) fn region(&self, id: RegionId) -> Result<(Arc<ContainerReader>, Plaintext)> {
        let link = self.link((id, self.kind), Made::All)?;
        let depth = link.bases.depth().saturating_add(1);
        let mut wanted = vec![(id, depth)];
        let chain = self.chain_of(&mut wanted, Made::All)?;
        let mut plaintexts = self.read(&[id], &chain)?;
        let plain = plaintexts.remove(&id).ok_or_else(|| link.container.wrong_region(id.region, "was not read"))?;
        Ok((link.container, plain))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is held was whole when it was put there.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, id: ContainerId, made: Made) -> Result<Arc<ContainerReader>> {
        let gone = || Error::damaged(format!("container {id}"), "does not exist, and holds the base of a region");
        let name = {
            let mut state = self.lock();
            let is_listed = state.containers.find(id);
            if is_listed.is_none() && !state.may_use(id, made) {
                return Err(gone());
            }
            if let Some(container) = state.directories.get(&id) {
                return Ok(container);
            }
            match is_listed {
                Some(number) => state.containers.name(number)?,
                None => *state.made.get(&id).ok_or_else(gone)?,
            }
        };
        let container = self.store.open_regions(&name);
        let container = container.map_err(|error| if error.is_missing_object() { gone() } else { error })?;
        let container = Arc::new(container);
        self.lock().directories.insert(id, Arc::clone(&container), container.memory_bytes());
        Ok(container)
    }

    /// Opens the directory of a base, which must be in a container of this kind.
    fn link(&self, (id, kind): (RegionId, Option<ContainerKind>), made: Made) -> Result<Link> {
        let container = self.directory(id.container, made)?;
        if kind.is_some_and(|kind| kind != container.name.kind) {
            let [holds, of] = match container.name.kind {
                ContainerKind::Data => ["data", "metadata"],
                ContainerKind::Metadata => ["metadata", "data"],
            };
            let problem = format!("holds {holds}, and is named as the container of a base of {of}");
            return Err(Error::damaged(container.name, problem));
        }
        let entry = container.directory.regions.get(id.region as usize);
        let bases = entry
            .ok_or_else(|| container.wrong_region(id.region, "does not exist, and is named as a base"))?
            .bases
            .clone();
        Ok(Link { container, bases })
    }

    /// Returns true if a prefix consists of the chunks that these bases in containers of a kind name, by their fingerprints.
    fn is_prefix(&self, kind: ContainerKind, bases: &Bases, prefix: &[u8]) -> bool {
        let mut named = Vec::new();
        for Base { region, runs } in bases.bases() {
            let Ok(Link { container, .. }) = self.link((*region, Some(kind)), Made::All) else { return false };
            let numbers = container.chunks_of(region.region);
            let whole = runs.is_empty().then(|| numbers.clone());
            let of_run = |run: &ChunkRun| {
                let first = numbers.start + usize::from(run.first);
                first..(first + usize::from(run.count)).min(numbers.end)
            };
            for range in whole.into_iter().chain(runs.iter().map(of_run)) {
                named.extend_from_slice(container.directory.chunks.get(range).unwrap_or_default());
            }
        }
        compare_chunks((&self.store.keys, kind), &named, prefix).is_ok()
    }

    /// Finds every region that these bases need, themselves included.
    fn chain(&self, bases: &Bases, made: Made) -> Result<Chain> {
        let mut wanted: Vec<(RegionId, u8)> = bases.iter().map(|base| (base, bases.depth())).collect();
        self.chain_of(&mut wanted, made)
    }

    /// Finds every region that is wanted, each with what must be above its depth, and their bases.
    fn chain_of(&self, wanted: &mut Vec<(RegionId, u8)>, made: Made) -> Result<Chain> {
        let (mut chain, mut kind) = (Chain::new(), self.kind);
        while let Some((id, above)) = wanted.pop() {
            let depth = match chain.get(&id) {
                Some(link) => link.bases.depth(),
                None if chain.len() == CHAIN_REGIONS_MAX => {
                    return Err(Error::invalid(format!("a region depends on more than {CHAIN_REGIONS_MAX} others")));
                }
                None => {
                    let link = self.link((id, kind), made)?;
                    kind = Some(link.container.name.kind);
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

    fn parts(&self, bases: &Bases, chain: &Chain) -> Result<Vec<PrefixPart>> {
        prefix_parts(bases, chain, self.store.config.region_bytes_limit())
    }

    /// Reads regions and what they need of their chain: those without bases first, and each depth in the order in which it is stored.
    fn read(&self, wanted: &[RegionId], chain: &Chain) -> Result<Plaintexts> {
        let mut plaintexts = Plaintexts::new();
        let needed = self.take_held(wanted, chain, &mut plaintexts);
        if needed.is_empty() {
            return Ok(plaintexts);
        }
        // Those of the cache may leave it meanwhile. No thread waits for permits while others wait for a region that it reads.
        let _permits = self.shared.chains.take_many(plaintexts.len() + needed.len());
        // Another thread may have read some meanwhile.
        let needed = self.take_held(wanted, chain, &mut plaintexts);
        for depth in 0..=DEPTH_MAX {
            for id in &needed {
                let Some(link) = chain.get(id).filter(|link| link.bases.depth() == depth) else { continue };
                let prefix = prefix_in(&self.parts(&link.bases, chain)?, &plaintexts);
                plaintexts.insert(*id, self.read_one(*id, &link.container, &prefix)?);
            }
        }
        Ok(plaintexts)
    }

    /// Takes the regions that are in the cache, which need no bases. Returns the others that are needed.
    fn take_held(&self, wanted: &[RegionId], chain: &Chain, held: &mut Plaintexts) -> BTreeSet<RegionId> {
        let mut state = self.lock();
        let (mut next, mut needed) = (wanted.to_vec(), BTreeSet::new());
        while let Some(id) = next.pop() {
            if held.contains_key(&id) || needed.contains(&id) {
                continue;
            }
            if let Some(plain) = state.regions.get(&id) {
                state.counts.held += 1;
                held.insert(id, plain);
            } else {
                needed.insert(id);
                next.extend(chain.get(&id).iter().flat_map(|link| link.bases.iter()));
            }
        }
        needed
    }

    /// Reads a region, or waits for the thread that reads it.
    fn read_one(&self, id: RegionId, container: &ContainerReader, prefix: &[u8]) -> Result<Plaintext> {
        self.share(container, id.region, |compressor| {
            self.store.read_region_on(container, id.region, prefix, compressor)
        })
    }

    /// Returns a region of an open container: from the cache, from the thread that opens it, or by opening it. It is kept for
    /// regions that depend on it.
    pub(crate) fn share(
        &self,
        container: &ContainerReader,
        region: u32,
        open: impl FnOnce(&mut Compressor) -> Result<Vec<u8>>,
    ) -> Result<Plaintext> {
        let id = RegionId { container: container.name.id, region };
        let mut state = self.lock();
        while state.reading.contains(&id) {
            state = self.wait(state);
        }
        if let Some(plain) = state.regions.get(&id) {
            return Ok(plain);
        }
        state.reading.insert(id);
        drop(state);
        let mut compressor = self.shared.compressors.take();
        let read = open(&mut compressor);
        self.shared.compressors.put(compressor);
        let mut state = self.lock();
        state.reading.remove(&id);
        self.shared.changed.notify_all();
        let plain = Plaintext::new(read?);
        state.counts.read += 1;
        state.regions.insert(id, Arc::clone(&plain), plain.len());
        drop(state);
        if let Some(observer) = &self.observer {
            observer.read(container, region, &plain);
        }
        Ok(plain)
    }
}

impl BasePlaintexts for BaseReader {
    fn list(&self, bases: Vec<Base>) -> Result<Option<Bases>> {
        let mut depth = 0;
        for base in &bases {
            depth = depth.max(self.link((base.region, self.kind), Made::Recent)?.bases.depth());
        }
        let Some(bases) = Bases::of(bases, depth.saturating_add(1)) else { return Ok(None) };
        match self.chain(&bases, Made::Recent).and_then(|chain| self.parts(&bases, &chain)) {
            Ok(_) => Ok(Some(bases)),
            Err(Error::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn prefix(&self, bases: &Bases) -> Result<Plaintext> {
        let chain = self.chain(bases, Made::All)?;
        let wanted: Vec<RegionId> = bases.iter().collect();
        let parts = self.parts(bases, &chain)?;
        Ok(prefix_in(&parts, &self.read(&wanted, &chain)?))
    }

    fn is_right(
        &self,
        (kind, chunks): (ContainerKind, &[RegionChunk]),
        plain: &[u8],
        bases: &Bases,
        prefix: &[u8],
    ) -> bool {
        let named: Vec<DirectoryChunk> = chunks.iter().map(RegionChunk::named).collect();
        compare_chunks((&self.store.keys, kind), &named, plain).is_ok() && self.is_prefix(kind, bases, prefix)
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

impl State {
    /// Returns true if a container of the running session may be looked at.
    fn may_use(&self, id: ContainerId, made: Made) -> bool {
        let newer = || self.made.range(id..).count();
        self.made.contains_key(&id) && (made == Made::All || self.made.len() <= MADE_MAX || newer() <= MADE_MAX)
    }
}
