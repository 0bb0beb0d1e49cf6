//! Reading trees and recipes.
//!
//! References to trees and recipe segments carry no hints. Metadata is a hundredth of the stored bytes, and names mark its
//! containers: the reader learns the position of each chunk from their directories. Reading a repository needs no index, no
//! lock and nothing on the host.

use std::sync::Arc;

use crate::codec::len_u32;
use crate::container::bases::{BASES_MAX, CHAIN_REGIONS_MAX};
use crate::error::{Error, Result};
use crate::object::FormatVersion;
use crate::object::names::ContainerKind;
use crate::object::store::RangeRead;
use crate::pipeline::Permits;
use crate::recipe::{Recipe, decode_hints, decode_segment};
use crate::store::Store;
#[cfg(test)]
use crate::store::base_reader::BaseCounts;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::Containers;
use crate::store::locations::Locations;
use crate::store::manifests::UsedBytes;
pub use crate::store::scratch::Scratch;
use crate::store::view::{View, ViewMemory};
use crate::tree::{TreeNode, decode_node};
use crate::types::{ChunkKind, ContainerId, Fingerprint, RegionId};

/// Share of the memory for regions that is for reading some together: one of 4.
const READ_AHEAD_SHARE: usize = 4;
/// Most regions that are read together.
const READ_AHEAD_MAX: usize = 32;

/// Plaintexts of the longest chain of regions of the default size, 512 KiB.
const CHAIN_BYTES: usize = CHAIN_REGIONS_MAX * (512 << 10);
/// Memory for regions in which any of them can be opened: a cache that holds a chain, of which a quarter is for directories; a prefix of two
/// regions; and two regions that are read together. A chain takes nothing besides the cache that it fits in: it is what was used last.
const BASED_BYTES: usize = (4 * CHAIN_BYTES).div_ceil(3) + PREFIX_BYTES + AHEAD_BYTES_MIN;
/// A prefix of two regions.
const PREFIX_BYTES: usize = BASES_MAX * (512 << 10);
/// For locations and directories at least: as much as those of a reader of 4 MiB have.
const REST_BYTES_MIN: usize = 2 << 20;
/// Two regions that are read together.
const AHEAD_BYTES_MIN: usize = 2 * (512 << 10);

/// Memory of a metadata reader.
#[derive(Clone, Copy, Debug)]
pub struct MetadataMemory {
    /// Bytes for where chunks are; beyond, it spills.
    pub locations_bytes: usize,
    /// Bytes for opened directories.
    pub directories_bytes: usize,
    /// Bytes for opened regions and the directories of those that are bases, for regions that are read together, and for prefixes.
    pub regions_bytes: usize,
}

/// Division of the memory for regions.
struct CacheShares {
    /// For regions that are read together.
    ahead_bytes: usize,
    /// For regions that were used last, and directories of those that are bases.
    cache_bytes: usize,
}

impl MetadataMemory {
    /// Divides a budget.
    pub fn of(bytes: usize) -> Self {
        Self { locations_bytes: bytes / 4, directories_bytes: bytes / 4, regions_bytes: bytes / 2 }
    }

    /// Divides what the containers leave of a budget, at least half of it.
    pub fn left_by(containers: &Containers, bytes: usize) -> Self {
        Self::of(bytes.saturating_sub(containers.memory_bytes()).max(bytes / 2))
    }

    /// Divides the same memory for a repository whose regions may have bases: if it is at least 15 MiB, any chain counts in it. A smaller one
    /// is exceeded while a chain is read that its cache does not hold: by at most 9 MiB.
    fn for_bases(self) -> Self {
        let all = self.locations_bytes + self.directories_bytes + self.regions_bytes;
        let left = all.saturating_sub(REST_BYTES_MIN.max(all / 8));
        let regions_bytes = self.regions_bytes.max(BASED_BYTES.min(left));
        let rest = all - regions_bytes;
        Self { locations_bytes: rest / 2, directories_bytes: rest - rest / 2, regions_bytes }
    }

    /// Divides the memory for regions. What is left of it is for a prefix.
    fn cache_shares(self, has_bases: bool) -> CacheShares {
        let share = self.regions_bytes / READ_AHEAD_SHARE;
        let (ahead_bytes, prefix_bytes) = match self.regions_bytes.checked_sub(BASED_BYTES) {
            _ if !has_bases => (share, 0),
            Some(unused) => (share.min(unused + AHEAD_BYTES_MIN), PREFIX_BYTES),
            None => (share, PREFIX_BYTES.min(share)),
        };
        CacheShares { ahead_bytes, cache_bytes: self.regions_bytes - ahead_bytes - prefix_bytes }
    }

    /// Metadata has no hints, so that the view never reads where chunks have moved.
    fn view(self) -> ViewMemory {
        ViewMemory { directories: self.directories_bytes, moved: 0 }
    }
}

/// A metadata chunk as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct MetadataChunk {
    /// Contents, which its fingerprint names.
    pub(crate) contents: Vec<u8>,
    /// Hints for the chunks that it refers to.
    pub(crate) hints: Vec<u8>,
}

/// A tree node with a hint for each chunk that it refers to.
#[derive(Debug)]
pub struct HintedNode {
    /// The node.
    pub(crate) node: TreeNode,
    /// The container of each chunk when the reference was written.
    pub(crate) hints: Vec<Option<ContainerId>>,
    /// Bytes of the node as it is stored, hints included.
    pub(crate) len: u32,
}

/// Reads metadata chunks by name.
#[derive(Debug)]
pub struct MetadataReader {
    store: Store,
    view: View,
    usable: Usable,
    locations: Locations,
    /// Holds regions, whether they were read for a chunk in them or as bases of others.
    regions: BaseReader,
    /// Memory of regions that are read together, in bytes.
    ahead_bytes: usize,
    /// Containers whose directory could not be read, in sentences.
    findings: Vec<Error>,
    /// The container that the last chunk was read from.
    pub(crate) read_from: Option<ContainerId>,
    /// Containers that chunks were read from; `None`: they are not counted.
    pub(crate) used: Option<UsedBytes>,
}

/// Containers that a reader uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Usable {
    /// All.
    Any,
    /// Those that are as long as their directories say.
    Whole,
}

impl MetadataReader {
    /// Learns the position of every metadata chunk in the listed containers. Lists them again when a chunk is in none of
    /// them: a collection may have moved it.
    pub fn open(store: &Store, containers: &Containers, scratch: &Scratch, memory: MetadataMemory) -> Result<Self> {
        Self::over((store, containers, scratch), memory, |view| (view, Usable::Any, None))
    }

    /// Like [`MetadataReader::open`], but never lists again: for a session, which refers to what it reads. Chains of bases are read
    /// in the memory of another reader, if its limit is given.
    pub(crate) fn open_live(
        store: &Store,
        live: &Containers,
        scratch: &Scratch,
        memory: MetadataMemory,
        chains: Option<Arc<Permits>>,
    ) -> Result<Self> {
        Self::over((store, live, scratch), memory, |view| (view.fixed(), Usable::Any, chains))
    }

    /// Like [`MetadataReader::open_live`], but passes over containers that are not as long as their directories say. The
    /// containers were listed with their lengths.
    pub(crate) fn open_whole(
        store: &Store,
        live: &Containers,
        scratch: &Scratch,
        memory: MetadataMemory,
    ) -> Result<Self> {
        Self::over((store, live, scratch), memory, |view| (view.fixed(), Usable::Whole, None))
    }

    fn over(
        (store, containers, scratch): (&Store, &Containers, &Scratch),
        memory: MetadataMemory,
        how: impl FnOnce(View) -> (View, Usable, Option<Arc<Permits>>),
    ) -> Result<Self> {
        let has_bases = store.config.format != FormatVersion::V1;
        let memory = if has_bases { memory.for_bases() } else { memory };
        let (view, usable, chains) = how(View::new(store, containers, scratch, memory.view()));
        let locations = scratch.map(&store.host, "locations of metadata", memory.locations_bytes)?;
        let CacheShares { ahead_bytes, cache_bytes } = memory.cache_shares(has_bases);
        let chains = chains.unwrap_or_else(|| Arc::new(Permits::new(CHAIN_REGIONS_MAX)));
        let mut reader = Self {
            usable,
            locations: Locations::new(store, locations),
            store: store.clone(),
            view,
            regions: BaseReader::sharing_chains(store, containers, cache_bytes, chains),
            ahead_bytes,
            findings: Vec::new(),
            read_from: None,
            used: None,
        };
        reader.learn_new(&Containers::default())?;
        Ok(reader)
    }

    /// Takes a newer listing, such as that of the next session: reads the directories of the containers that are new, and
    /// uses no container that is left out. So a reader can stay open from session to session.
    pub fn learn(&mut self, containers: &Containers) -> Result<()> {
        let known = self.view.containers().clone();
        self.view.set_containers(containers);
        self.learn_new(&known)
    }

    /// Like [`MetadataReader::learn`], and never lists again: for a session, which refers to what it reads.
    pub(crate) fn confine(&mut self, live: &Containers) -> Result<()> {
        self.view.fix();
        self.learn(live)
    }

    /// Learns the containers that are not among those known before.
    fn learn_new(&mut self, known: &Containers) -> Result<()> {
        let (containers, usable) = (self.view.containers().clone(), self.usable);
        self.regions.set_containers(&containers);
        let new = containers.retain(|_, id| !known.contains(id));
        let numbers = || new.of_kind(ContainerKind::Metadata);
        for (number, opened) in numbers().zip(self.store.open_containers(&new, numbers())) {
            match opened?.1 {
                Ok(container) if usable == Usable::Whole && new.sized(number)?.1 != container.stored_len() => {}
                Ok(container) => {
                    self.locations.learn(&container)?;
                    self.view.directories.insert(container);
                }
                // A collection has deleted it since it was listed. If that lost a chunk, reading the chunk reports it.
                Err(Error::Missing { .. }) => {}
                Err(error) => self.findings.push(error),
            }
        }
        Ok(())
    }

    /// Lists the containers again after a chunk was missed; returns true if it may be found now.
    fn refresh(&mut self) -> Result<bool> {
        let known = self.view.containers().clone();
        if !self.view.refresh()? {
            return Ok(false);
        }
        self.learn_new(&known)?;
        Ok(true)
    }

    /// Returns the repository that is read.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns what is wrong with containers whose chunks are unknown because of it.
    pub fn findings(&self) -> &[Error] {
        &self.findings
    }

    /// Reads a chunk and checks that it is what its name says. Where one container does not give it back, others that
    /// have it are tried, then those that have appeared meanwhile.
    pub(crate) fn read(&mut self, kind: ChunkKind, fingerprint: Fingerprint) -> Result<MetadataChunk> {
        loop {
            let outcome = self.read_known(kind, fingerprint);
            if outcome.is_ok() || !self.refresh()? {
                return outcome;
            }
        }
    }

    fn read_known(&mut self, kind: ChunkKind, fingerprint: Fingerprint) -> Result<MetadataChunk> {
        let mut problem = None;
        for id in self.locations.of(&fingerprint)? {
            match self.read_copy(id, kind, fingerprint) {
                Ok(chunk) => {
                    self.read_from = Some(id);
                    if let Some(used) = &mut self.used {
                        used.add(id, len_u32(chunk.contents.len() + chunk.hints.len()));
                    }
                    return Ok(chunk);
                }
                // A container that is gone has lost nothing if there is another copy, and does not tell which chunk it is.
                Err(Error::Missing { .. }) => {}
                // If no copy is sound, the error of the first one is reported, but rather one of a copy that may be sound.
                Err(error) if problem.is_none() || !error.is_loss() => problem = Some(error),
                Err(_) => {}
            }
        }
        Err(problem.unwrap_or_else(|| Error::MissingChunk { fingerprint: fingerprint.to_string() }))
    }

    fn read_copy(&mut self, id: ContainerId, kind: ChunkKind, fingerprint: Fingerprint) -> Result<MetadataChunk> {
        let missing = || Error::MissingChunk { fingerprint: fingerprint.to_string() };
        let container = self.view.directories.get(id)?;
        let position = container.find(&fingerprint).ok_or_else(missing)?;
        let region = self.regions.open_base(&container, position.region)?;
        let wrong = || Error::damaged(container.name, format!("chunk {fingerprint} is not in its place"));
        let start = position.offset as usize;
        let stored = region.get(start..start + position.len as usize).ok_or_else(wrong)?;
        let split = stored.len().checked_sub(position.hints_len as usize).ok_or_else(wrong)?;
        let (contents, hints) = stored.split_at_checked(split).ok_or_else(wrong)?;
        if self.store.keys.fingerprint(kind, contents) != fingerprint {
            return Err(Error::damaged(container.name, format!("chunk {fingerprint} is not what its name says")));
        }
        Ok(MetadataChunk { contents: contents.to_vec(), hints: hints.to_vec() })
    }

    /// Returns the containers that hold a copy of a chunk, in the order in which they were learned.
    pub(crate) fn copies_of(&mut self, fingerprint: &Fingerprint) -> Result<Vec<ContainerId>> {
        self.locations.of(fingerprint)
    }

    /// Returns the container and region of the first copy of a chunk, to sort reads by; `None` if they are not known.
    pub(crate) fn locate(&mut self, fingerprint: &Fingerprint) -> Result<Option<(ContainerId, u32)>> {
        let Some(id) = self.locations.of(fingerprint)?.first().copied() else { return Ok(None) };
        // Reading the chunk reports what is wrong with the directory.
        let container = self.view.directories.get(id).ok();
        let position = container.and_then(|container| container.find(fingerprint));
        Ok(position.map(|position| (id, position.region)))
    }

    /// Returns how many regions were opened.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> BaseCounts {
        self.regions.counts()
    }

    /// Returns the number of regions that [`MetadataReader::read_ahead`] may take.
    pub(crate) fn read_ahead_count(&self) -> usize {
        (self.ahead_bytes / self.store.config.region_bytes.max(1) as usize).min(READ_AHEAD_MAX)
    }

    /// Reads regions in one batch, so that chunks in them are found in memory. Whoever reads a chunk of a region that cannot
    /// be read gets the error.
    pub(crate) fn read_ahead(&mut self, regions: &[(ContainerId, u32)]) {
        let mut reads = Vec::with_capacity(regions.len());
        for (id, region) in regions {
            if self.regions.holds(RegionId { container: *id, region: *region }) {
                continue;
            }
            let Ok(container) = self.view.directories.get(*id) else { continue };
            let Some((offset, len)) = container.region_range(*region) else { continue };
            let read = RangeRead::new(self.store.standing(&container.name), offset, len as usize);
            reads.push((container, *region, read));
        }
        let (containers, mut reads): (Vec<_>, Vec<_>) =
            reads.into_iter().map(|(container, region, read)| ((container, region), read)).unzip();
        self.store.objects.read(&mut reads);
        for ((container, region), mut read) in containers.into_iter().zip(reads) {
            // One that was read as a base of another meanwhile is not opened again.
            if read.outcome.is_err() || self.regions.holds(RegionId { container: container.name.id, region }) {
                continue;
            }
            let Ok(prefix) = self.regions.prefix_of(&container, region) else { continue };
            // Whoever reads a chunk of it gets the error.
            let _ = self.regions.share(&container, region, |compressor| {
                let mut plain = Vec::new();
                container.open_region(region, &prefix, &mut read.buffer, compressor, &mut plain)?;
                Ok(plain)
            });
        }
    }

    /// Reads a tree node. Hints that make no sense are none.
    pub(crate) fn read_node(&mut self, fingerprint: Fingerprint) -> Result<HintedNode> {
        let chunk = self.read(ChunkKind::Tree, fingerprint)?;
        let node = decode_node(&chunk.contents).map_err(|error| error.of(format!("tree {fingerprint}")))?;
        let count = node.chunk_count();
        let hints = decode_hints(&chunk.hints, count).unwrap_or_else(|_| vec![None; count]);
        let len = u32::try_from(chunk.contents.len() + chunk.hints.len()).unwrap_or(u32::MAX);
        Ok(HintedNode { node, hints, len })
    }

    /// Reads a recipe segment, with a hint for each chunk it refers to.
    pub(crate) fn read_segment(&mut self, fingerprint: Fingerprint) -> Result<(Recipe, Vec<Option<ContainerId>>)> {
        let chunk = self.read(ChunkKind::Recipe, fingerprint)?;
        let recipe = decode_segment(&chunk.contents).map_err(|error| error.of(format!("recipe {fingerprint}")))?;
        let count = recipe.chunk_count();
        let hints = decode_hints(&chunk.hints, count).unwrap_or_else(|_| vec![None; count]);
        Ok((recipe, hints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_bases_a_reader_takes_as_much_and_its_cache_holds_a_chain_from_15_mib_on() {
        let sum = |memory: MetadataMemory| memory.locations_bytes + memory.directories_bytes + memory.regions_bytes;
        for bytes in [1 << 20, 4 << 20, 14 << 20, 15 << 20, 16 << 20, 32 << 20, 128 << 20, 1 << 30] {
            let memory = MetadataMemory::of(bytes);
            let based = memory.for_bases();
            assert_eq!((sum(memory), sum(based)), (bytes, bytes));
            assert!(memory.regions_bytes <= based.regions_bytes, "{bytes}: {based:?}");
            let least = memory.locations_bytes.min(REST_BYTES_MIN / 2);
            assert!(least <= based.locations_bytes && least <= based.directories_bytes, "{bytes}: {based:?}");
            let CacheShares { ahead_bytes, cache_bytes } = based.cache_shares(true);
            assert!(ahead_bytes + cache_bytes + PREFIX_BYTES.min(bytes / 8) <= based.regions_bytes, "{bytes}");
            let plaintexts = BaseReader::plaintext_bytes(cache_bytes);
            assert_eq!(CHAIN_BYTES <= plaintexts, 15 << 20 <= bytes, "{bytes}: {plaintexts} bytes of plaintexts");
            assert!(AHEAD_BYTES_MIN <= ahead_bytes || bytes < 15 << 20, "{bytes}: {ahead_bytes}");
            // Without bases nothing changes.
            let CacheShares { ahead_bytes, cache_bytes } = memory.cache_shares(false);
            assert_eq!((ahead_bytes, ahead_bytes + cache_bytes), (bytes / 8, bytes / 2));
        }
    }
}
