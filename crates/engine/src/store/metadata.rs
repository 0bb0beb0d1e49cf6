//! Reading trees and recipes.
//!
//! References to trees and recipe segments carry no hints. Metadata is a hundredth of the stored bytes, and names mark its
//! containers: the reader learns the position of each chunk from their directories. Reading a repository needs no index, no
//! lock and nothing on the host.

use std::sync::Arc;

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::object::names::ContainerKind;
use crate::recipe::{Recipe, decode_hints, decode_segment};
use crate::store::Store;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::directories::Directories;
use crate::store::locations::Locations;
pub use crate::store::scratch::Scratch;
use crate::tree::{TreeNode, decode_node};
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// Memory of a metadata reader.
#[derive(Clone, Copy, Debug)]
pub struct MetadataMemory {
    /// Bytes for where chunks are; beyond, it spills.
    pub locations_bytes: usize,
    /// Bytes for opened directories.
    pub directories_bytes: usize,
    /// Bytes for opened regions.
    pub regions_bytes: usize,
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
    locations: Locations,
    directories: Directories,
    regions: Lru<(ContainerId, u32), Arc<Vec<u8>>>,
    compressor: Compressor,
    /// Containers whose directory could not be read, in sentences.
    findings: Vec<Error>,
}

impl MetadataReader {
    /// Learns the position of every metadata chunk in the listed containers.
    pub fn open(store: &Store, containers: &Containers, scratch: &Scratch, memory: MetadataMemory) -> Result<Self> {
        Self::open_where(store, containers, scratch, memory, &|_, _| Ok(true))
    }

    /// Like [`MetadataReader::open`], but passes over containers that are not as long as their directories say. The containers
    /// were listed with their lengths.
    pub(crate) fn open_whole(
        store: &Store,
        containers: &Containers,
        scratch: &Scratch,
        memory: MetadataMemory,
    ) -> Result<Self> {
        Self::open_where(store, containers, scratch, memory, &|number, container| {
            Ok(containers.sized(number)?.1 == container.stored_len())
        })
    }

    fn open_where(
        store: &Store,
        containers: &Containers,
        scratch: &Scratch,
        memory: MetadataMemory,
        is_usable: &dyn Fn(ContainerNumber, &ContainerReader) -> Result<bool>,
    ) -> Result<Self> {
        let locations = scratch.map(&store.host, "locations of metadata", memory.locations_bytes)?;
        let mut reader = Self {
            store: store.clone(),
            locations: Locations::new(locations),
            directories: Directories::new(store, containers, memory.directories_bytes),
            regions: Lru::new(memory.regions_bytes),
            compressor: Compressor::default(),
            findings: Vec::new(),
        };
        let numbers = || containers.of_kind(ContainerKind::Metadata);
        for (number, opened) in numbers().zip(store.open_containers(containers, numbers())) {
            match opened?.1 {
                Ok(container) if is_usable(number, &container)? => {
                    reader.locations.learn(&container)?;
                    reader.directories.insert(container);
                }
                Ok(_) => {}
                Err(error) => reader.findings.push(error),
            }
        }
        Ok(reader)
    }

    /// Returns the repository that is read.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns what is wrong with containers whose chunks are unknown because of it.
    pub fn findings(&self) -> &[Error] {
        &self.findings
    }

    /// Reads a chunk and checks that it is what its name says. Where one container does not give it back, others that
    /// have it are tried.
    pub(crate) fn read(&mut self, kind: ChunkKind, fingerprint: Fingerprint) -> Result<MetadataChunk> {
        let mut problem = None;
        for id in self.locations.of(&fingerprint)? {
            match self.read_copy(id, kind, fingerprint) {
                Ok(chunk) => return Ok(chunk),
                // If no copy is sound, the error of the first one is reported.
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| Error::MissingChunk { fingerprint: fingerprint.to_string() }))
    }

    fn read_copy(&mut self, id: ContainerId, kind: ChunkKind, fingerprint: Fingerprint) -> Result<MetadataChunk> {
        let missing = || Error::MissingChunk { fingerprint: fingerprint.to_string() };
        let container = self.directories.get(id)?;
        let position = container.find(&fingerprint).ok_or_else(missing)?;
        let region = self.region(&container, position.region)?;
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
        let container = self.directories.get(id).ok();
        let position = container.and_then(|container| container.find(fingerprint));
        Ok(position.map(|position| (id, position.region)))
    }

    fn region(&mut self, container: &ContainerReader, region: u32) -> Result<Arc<Vec<u8>>> {
        let key = (container.name.id, region);
        if let Some(plain) = self.regions.get(&key) {
            return Ok(plain);
        }
        let plain = Arc::new(self.store.read_region(container, region, &mut self.compressor)?);
        self.regions.insert(key, Arc::clone(&plain), plain.len());
        Ok(plain)
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
