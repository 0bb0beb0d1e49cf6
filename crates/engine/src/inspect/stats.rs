//! Sizes of snapshots, as restored and as stored.
//!
//! Snapshots are mostly alike, so that all of these remember the directories that they have seen; what they remember
//! spills.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::recipe::format::{Recipe, RecipeItem};
use crate::spill::SpillMap;
use crate::store::cursor::HintedEntry;
use crate::store::metadata::Scratch;
use crate::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use crate::store::view::open_each;
use crate::store::walk::{DEPTH_MAX, Event, TreeWalk};
use crate::store::{MetadataReader, Store};
use crate::tree::{Content, Link};
use crate::types::{ChunkKind, Fingerprint};

/// Request of statistics.
#[derive(Debug)]
pub struct StatsRequest<'a> {
    /// Roots of the snapshots' trees.
    pub roots: &'a [Fingerprint],
    /// Directory of temporary files.
    pub scratch: &'a Scratch,
    /// Memory for what is remembered.
    pub memory_bytes: usize,
    /// Receiver of progress reports.
    pub monitor: &'a dyn Monitor,
}

impl StatsRequest<'_> {
    fn map(&self, store: &Store, name: &'static str, share: usize) -> Result<SpillMap> {
        self.scratch.map(&store.host, name, self.memory_bytes / share)
    }

    fn go_on(&self) -> Result<()> {
        if self.monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Sum of restoring all of the snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RestoreStats {
    /// Entries of any kind.
    pub entries: u64,
    /// Bytes of files; one with several names counts once a snapshot.
    pub bytes: u64,
}

impl RestoreStats {
    fn add(&mut self, other: Self) {
        self.entries = self.entries.saturating_add(other.entries);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn encode(self) -> [u8; 16] {
        let mut value = [0; 16];
        for (bytes, number) in value.chunks_exact_mut(8).zip([self.entries, self.bytes]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        value
    }

    fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        let mut number = || reader.u64().map_err(|error| error.of("spilled counts"));
        Ok(Self { entries: number()?, bytes: number()? })
    }
}

/// A directory that is being added up.
struct Sum {
    node: Fingerprint,
    stats: RestoreStats,
    /// True if nothing in the directory has a further name, so that its sum is the same in every snapshot.
    is_closed: bool,
}

impl Sum {
    fn new(node: Fingerprint) -> Self {
        Self { node, stats: RestoreStats::default(), is_closed: true }
    }
}

/// Adds up what restoring would bring back. A directory of several snapshots is read once, unless it holds files with several
/// names.
pub fn restore_stats(reader: &mut MetadataReader, request: &StatsRequest<'_>) -> Result<RestoreStats> {
    let mut sums = request.map(reader.store(), "sums of directories", 2)?;
    let mut links = request.map(reader.store(), "hard links", 2)?;
    let mut total = RestoreStats::default();
    for (number, root) in (0..).zip(request.roots) {
        total.add(snapshot_sum(reader, request, *root, &mut sums, &mut |link| {
            links.insert_new(link_key(number, link), &[])
        })?);
    }
    Ok(total)
}

fn snapshot_sum(
    reader: &mut MetadataReader,
    request: &StatsRequest<'_>,
    root: Fingerprint,
    sums: &mut SpillMap,
    is_first: &mut dyn FnMut(Link) -> Result<bool>,
) -> Result<RestoreStats> {
    if let Some(sum) = sums.get(&root.0)? {
        return RestoreStats::decode(&sum);
    }
    let mut total = RestoreStats::default();
    let mut walk = TreeWalk::new(root, b"", Sum::new(root));
    while let Some(event) = walk.next(reader, request.monitor)? {
        let Some((directory, above)) = walk.levels().split_last_mut() else { continue };
        let directory = &mut directory.state;
        match event {
            Event::Entry(HintedEntry { entry, .. }) => {
                directory.stats.add(RestoreStats { entries: 1, bytes: 0 });
                if let Content::Directory { node } = entry.content {
                    match sums.get(&node.0)? {
                        Some(sum) => directory.stats.add(RestoreStats::decode(&sum)?),
                        None => walk.enter(node, Sum::new(node))?,
                    }
                    continue;
                }
                directory.is_closed &= entry.link.is_none();
                if entry.link.map_or(Ok(true), &mut *is_first)? {
                    directory.stats.add(RestoreStats { entries: 0, bytes: entry.size() });
                }
            }
            Event::Leave => {
                if directory.is_closed {
                    sums.insert(directory.node.0, &directory.stats.encode())?;
                }
                match above.last_mut() {
                    Some(above) => {
                        above.state.stats.add(directory.stats);
                        above.state.is_closed &= directory.is_closed;
                    }
                    None => total = directory.stats,
                }
            }
            Event::Unreadable(error) => return Err(error),
        }
    }
    Ok(total)
}

fn link_key(snapshot: u64, link: Link) -> [u8; 32] {
    let mut key = [0; 32];
    for (bytes, number) in key.chunks_exact_mut(8).zip([snapshot, link.device, link.inode]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    key
}

/// Files that differ in their contents.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ContentsStats {
    /// Files of different contents.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counts each content of a file once. Reads each directory once.
pub fn contents_stats(reader: &mut MetadataReader, request: &StatsRequest<'_>) -> Result<ContentsStats> {
    let mut contents = request.map(reader.store(), "contents of files", 2)?;
    let mut visited = request.map(reader.store(), "directories visited", 2)?;
    let mut stats = ContentsStats::default();
    let mut encoded = Vec::new();
    for root in request.roots {
        if !visited.insert_new(root.0, &[])? {
            continue;
        }
        let mut walk = TreeWalk::new(*root, b"", ());
        while let Some(event) = walk.next(reader, request.monitor)? {
            let entry = match event {
                Event::Entry(HintedEntry { entry, .. }) => entry,
                Event::Leave => continue,
                Event::Unreadable(error) => return Err(error),
            };
            match &entry.content {
                Content::Directory { node } => {
                    if visited.insert_new(node.0, &[])? {
                        walk.enter(*node, ())?;
                    }
                }
                Content::File { recipe, .. } => {
                    // Equal contents are cut into equal chunks, and their lists into equal segments.
                    encoded.clear();
                    recipe.encode(&mut encoded);
                    if contents.insert_new(*blake3::hash(&encoded).as_bytes(), &[])? {
                        stats.files += 1;
                        stats.bytes = stats.bytes.saturating_add(entry.size());
                    }
                }
                Content::Symlink { .. } | Content::Special { .. } => {}
            }
        }
    }
    Ok(stats)
}

/// Chunks of files, each counted once for each path that has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReferenceStats {
    /// Paths of files with contents.
    pub files: u64,
    /// Pairs of such a path and a chunk.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
}

/// Counts the chunks of each path once, over all snapshots.
pub fn reference_stats(reader: &mut MetadataReader, request: &StatsRequest<'_>) -> Result<ReferenceStats> {
    let mut counted = request.map(reader.store(), "chunks of paths", 1)?;
    let mut stats = ReferenceStats::default();
    for root in request.roots {
        let mut walk = TreeWalk::new(*root, b"", ());
        while let Some(event) = walk.next(reader, request.monitor)? {
            let HintedEntry { entry, hints } = match event {
                Event::Entry(hinted) => hinted,
                Event::Leave => continue,
                Event::Unreadable(error) => return Err(error),
            };
            match &entry.content {
                Content::Directory { node } => walk.enter(*node, ())?,
                Content::File { recipe, .. } => {
                    let path = *blake3::hash(walk.path()).as_bytes();
                    let mut cursor = RecipeCursor::new(recipe, &hints);
                    while let Some(extent) = cursor.next(reader)? {
                        let FileExtent::Chunk(HintedChunk { chunk, .. }) = extent else { continue };
                        stats.files += u64::from(counted.insert_new(path, &[])?);
                        let pair = *blake3::keyed_hash(&path, &chunk.fingerprint.0).as_bytes();
                        if counted.insert_new(pair, &[])? {
                            stats.chunks += 1;
                            stats.bytes = stats.bytes.saturating_add(u64::from(chunk.len));
                        }
                    }
                }
                Content::Symlink { .. } | Content::Special { .. } => {}
            }
        }
    }
    Ok(stats)
}

/// Sizes of the chunks that snapshots refer to, and of all others in the repository.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RawStats {
    /// Chunks of files that the snapshots refer to.
    pub data_chunks: u64,
    /// Bytes of those before compression.
    pub data_bytes: u64,
    /// Bytes of those as containers hold them: a chunk's share of its region.
    pub data_bytes_stored: u64,
    /// Nodes of trees and segments of recipes that the snapshots refer to.
    pub metadata_chunks: u64,
    /// Bytes of those before compression.
    pub metadata_bytes: u64,
    /// Bytes of those as containers hold them.
    pub metadata_bytes_stored: u64,
    /// Chunks that the snapshots refer to and no container holds that can be opened.
    pub missing_chunks: u64,
    /// Chunks in containers that the snapshots do not refer to, and further copies of those that they do.
    pub other_chunks: u64,
    /// Containers of the repository.
    pub containers: u64,
    /// Bytes of their files.
    pub container_bytes: u64,
    /// Containers that could not be opened.
    pub unreadable_containers: u64,
    /// Containers that were set aside because they are damaged.
    pub quarantined_containers: u64,
    /// Bytes of them.
    pub quarantined_bytes: u64,
}

/// Counts each chunk that the snapshots refer to once, and looks up in the containers' directories what it takes.
pub fn raw_stats(reader: &mut MetadataReader, request: &StatsRequest<'_>) -> Result<RawStats> {
    let store = reader.store().clone();
    let mut referenced = Referenced { chunks: request.map(&store, "chunks referred to", 2)?, count: 0 };
    for root in request.roots {
        referenced.tree(reader, request, *root)?;
    }
    let mut stats = RawStats::default();
    referenced.look_up(&store, request, &mut stats)?;
    let found = stats.data_chunks + stats.metadata_chunks;
    stats.missing_chunks = referenced.count.saturating_sub(found);
    for container in store.list_quarantined()? {
        stats.quarantined_containers += 1;
        stats.quarantined_bytes += container.len;
    }
    Ok(stats)
}

/// Chunks that are referred to; the value says whether a container was found that holds it.
struct Referenced {
    chunks: SpillMap,
    count: u64,
}

const NOT_FOUND: u8 = 0;
const FOUND: u8 = 1;

impl Referenced {
    /// Adds a chunk. Returns true if it is new.
    fn add(&mut self, fingerprint: Fingerprint) -> Result<bool> {
        let is_new = self.chunks.insert_new(fingerprint.0, &[NOT_FOUND])?;
        self.count += u64::from(is_new);
        Ok(is_new)
    }

    /// Adds what a directory refers to, node by node: one that was added before needs no second look, nor does anything
    /// below it.
    fn tree(&mut self, reader: &mut MetadataReader, request: &StatsRequest<'_>, root: Fingerprint) -> Result<()> {
        // Levels of nodes and directories alike; each holds what one node names.
        let mut levels = vec![VecDeque::from([root])];
        while let Some(level) = levels.last_mut() {
            request.go_on()?;
            let Some(node) = level.pop_front() else {
                levels.pop();
                continue;
            };
            if !self.add(node)? {
                continue;
            }
            let mut below = VecDeque::new();
            match reader.read_node(node)?.node {
                crate::tree::TreeNode::Children { children, .. } => {
                    below.extend(children.into_iter().map(|child| child.node));
                }
                crate::tree::TreeNode::Entries(entries) => {
                    for entry in entries {
                        match entry.content {
                            Content::Directory { node } => below.push_back(node),
                            Content::File { recipe, .. } => self.recipe(reader, recipe)?,
                            Content::Symlink { .. } | Content::Special { .. } => {}
                        }
                    }
                }
            }
            if LEVELS_MAX <= levels.len() {
                return Err(Error::TooDeep { depth_max: DEPTH_MAX, undone: "read" });
            }
            levels.push(below);
        }
        Ok(())
    }

    fn recipe(&mut self, reader: &mut MetadataReader, recipe: Recipe) -> Result<()> {
        let mut levels = vec![(recipe.level, VecDeque::from(recipe.items))];
        while let Some((level, items)) = levels.last_mut() {
            let level = *level;
            match items.pop_front() {
                None => {
                    levels.pop();
                }
                Some(RecipeItem::Hole { .. }) => {}
                Some(RecipeItem::Chunk(chunk)) => {
                    self.add(chunk.fingerprint)?;
                }
                Some(RecipeItem::Segment { fingerprint, .. }) => {
                    if self.add(fingerprint)? {
                        let (segment, _) = reader.read_segment(fingerprint)?;
                        if segment.level.checked_add(1) != Some(level) {
                            let object = format!("recipe {fingerprint}");
                            return Err(Error::damaged(object, "is not of the level that refers to it"));
                        }
                        levels.push((segment.level, segment.items.into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes through the directories of all containers.
    fn look_up(&mut self, store: &Store, request: &StatsRequest<'_>, stats: &mut RawStats) -> Result<()> {
        open_each(store, request.scratch, false, &mut |name, opened| {
            request.go_on()?;
            stats.containers += 1;
            let Ok(container) = opened else {
                stats.unreadable_containers += 1;
                return Ok(ControlFlow::Continue(()));
            };
            stats.container_bytes += match store.container_len(&name) {
                // A collection has deleted it since it was opened.
                Err(Error::Missing { .. }) => container.stored_len(),
                len => len?,
            };
            let mut chunks = container.directory.chunks.iter();
            for region in &container.directory.regions {
                for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                    let stored = share(chunk.len, region.sealed_len, region.plain_len);
                    self.count_chunk(chunk, stored, stats)?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn count_chunk(
        &mut self,
        chunk: &crate::container::DirectoryChunk,
        stored: u64,
        stats: &mut RawStats,
    ) -> Result<()> {
        let Some(fingerprint) = chunk.fingerprint else { return Ok(()) };
        if self.chunks.get(&fingerprint.0)?.as_deref() != Some(&[NOT_FOUND]) {
            stats.other_chunks += 1;
            return Ok(());
        }
        self.chunks.insert(fingerprint.0, &[FOUND])?;
        let (count, bytes, bytes_stored) = match chunk.kind {
            ChunkKind::Data => (&mut stats.data_chunks, &mut stats.data_bytes, &mut stats.data_bytes_stored),
            ChunkKind::Tree | ChunkKind::Recipe => {
                (&mut stats.metadata_chunks, &mut stats.metadata_bytes, &mut stats.metadata_bytes_stored)
            }
        };
        *count += 1;
        *bytes += u64::from(chunk.len);
        *bytes_stored += stored;
        Ok(())
    }
}

/// Nodes on the way to the deepest entry at most: each directory may have a few levels of nodes.
const LEVELS_MAX: usize = 4 * DEPTH_MAX;

/// Returns the part of a region that a chunk takes.
pub(crate) fn share(chunk: u32, sealed: u32, plain: u32) -> u64 {
    let product = u64::from(chunk) * u64::from(sealed);
    product.checked_div(u64::from(plain)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_region_add_up_to_no_more_than_it_takes() {
        assert_eq!(share(10, 40, 40) + share(30, 40, 40), 40);
        assert!(share(1, 100, 3) * 3 <= 100);
        assert_eq!(share(5, 40, 0), 0);
        assert_eq!(share(u32::MAX, u32::MAX, u32::MAX), u64::from(u32::MAX));
    }
}
