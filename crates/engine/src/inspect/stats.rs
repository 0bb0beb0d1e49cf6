//! How much snapshots hold, and what that takes.
//!
//! Snapshots are mostly alike, so that all of these remember the directories that they have seen; what they remember
//! spills.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::inspect::{DEPTH_MAX, too_deep};
use crate::monitor::Monitor;
use crate::recipe::format::{Recipe, RecipeItem};
use crate::spill::SpillMap;
use crate::store::containers::DIRECTORY_BATCH;
use crate::store::cursor::DirectoryCursor;
use crate::store::metadata::Scratch;
use crate::store::{MetadataReader, Store};
use crate::tree::{Content, Entry, Link};
use crate::types::{ChunkKind, Fingerprint};

/// What is counted, and with what means.
#[derive(Debug)]
pub struct StatsRequest<'a> {
    /// Roots of the snapshots' trees.
    pub roots: &'a [Fingerprint],
    /// Where spilled state may go.
    pub scratch: &'a Scratch,
    /// Memory for what is remembered.
    pub memory_bytes: usize,
    /// Who listens.
    pub monitor: &'a dyn Monitor,
}

impl StatsRequest<'_> {
    fn map(&self, store: &Store, name: &'static str, share: usize) -> Result<SpillMap> {
        let (disk, dir) = (self.scratch.disk.clone(), self.scratch.dir.clone());
        SpillMap::new(disk, dir, Arc::clone(&store.host), name, self.memory_bytes / share)
    }

    fn go_on(&self) -> Result<()> {
        if self.monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// What restoring all of the snapshots would bring back.
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

/// A directory being added up.
struct Frame {
    node: Fingerprint,
    cursor: DirectoryCursor,
    sum: RestoreStats,
    /// Whether the sum is that of the directory wherever it stands: nothing in it has a further name.
    is_closed: bool,
}

impl Frame {
    fn new(node: Fingerprint) -> Self {
        Self { node, cursor: DirectoryCursor::new(node), sum: RestoreStats::default(), is_closed: true }
    }
}

/// Adds up what restoring would bring back. A directory that stands in several snapshots is read once, unless it holds
/// files with several names.
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
    let mut frames = vec![Frame::new(root)];
    while let Some(frame) = frames.last_mut() {
        request.go_on()?;
        if let Some(hinted) = frame.cursor.next(reader)? {
            let entry = &hinted.entry;
            frame.sum.add(RestoreStats { entries: 1, bytes: 0 });
            if let Content::Directory { node } = entry.content {
                if let Some(sum) = sums.get(&node.0)? {
                    frame.sum.add(RestoreStats::decode(&sum)?);
                } else if DEPTH_MAX <= frames.len() {
                    return Err(too_deep());
                } else {
                    frames.push(Frame::new(node));
                }
                continue;
            }
            let counts = match entry.link {
                None => true,
                Some(link) => {
                    frame.is_closed = false;
                    is_first(link)?
                }
            };
            let bytes = if counts { entry.size() } else { 0 };
            frame.sum.add(RestoreStats { entries: 0, bytes });
            continue;
        }
        let Some(done) = frames.pop() else { break };
        if done.is_closed {
            sums.insert(done.node.0, &done.sum.encode())?;
        }
        let Some(above) = frames.last_mut() else { return Ok(done.sum) };
        above.sum.add(done.sum);
        above.is_closed &= done.is_closed;
    }
    Ok(RestoreStats::default())
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

/// Counts each content of a file once.
pub fn contents_stats(reader: &mut MetadataReader, request: &StatsRequest<'_>) -> Result<ContentsStats> {
    let mut contents = request.map(reader.store(), "contents of files", 2)?;
    let mut stats = ContentsStats::default();
    let mut encoded = Vec::new();
    visit(reader, request, 2, &mut |_, entry| {
        if let Content::File { recipe, .. } = &entry.content {
            // Equal contents are cut into equal chunks, and their lists into equal segments.
            encoded.clear();
            recipe.encode(&mut encoded);
            if contents.insert_new(*blake3::hash(&encoded).as_bytes(), &[])? {
                stats.files += 1;
                stats.bytes = stats.bytes.saturating_add(entry.size());
            }
        }
        Ok(())
    })?;
    Ok(stats)
}

/// Shows every entry of every directory that the snapshots hold, each directory once; `share` of the memory is for
/// remembering them.
fn visit(
    reader: &mut MetadataReader,
    request: &StatsRequest<'_>,
    share: usize,
    show: &mut dyn FnMut(&mut MetadataReader, &Entry) -> Result<()>,
) -> Result<()> {
    let mut visited = request.map(reader.store(), "directories visited", share)?;
    for root in request.roots {
        let mut cursors = Vec::new();
        if visited.insert_new(root.0, &[])? {
            cursors.push(DirectoryCursor::new(*root));
        }
        while let Some(cursor) = cursors.last_mut() {
            request.go_on()?;
            let Some(hinted) = cursor.next(reader)? else {
                cursors.pop();
                continue;
            };
            show(reader, &hinted.entry)?;
            if let Content::Directory { node } = hinted.entry.content
                && visited.insert_new(node.0, &[])?
            {
                if DEPTH_MAX <= cursors.len() {
                    return Err(too_deep());
                }
                cursors.push(DirectoryCursor::new(node));
            }
        }
    }
    Ok(())
}

/// What the chunks that snapshots refer to take in the repository, and what else is there.
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
    /// Says whether a chunk is new.
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
            match reader.read_node(node)?.0 {
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
                return Err(too_deep());
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
                Some(RecipeItem::Chunk { fingerprint, .. }) => {
                    self.add(fingerprint)?;
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
        let listing = store.list_containers()?;
        for names in listing.containers.chunks(DIRECTORY_BATCH) {
            request.go_on()?;
            for (name, opened) in names.iter().zip(store.open_containers(names)) {
                stats.containers += 1;
                let Ok(container) = opened else {
                    stats.unreadable_containers += 1;
                    continue;
                };
                stats.container_bytes += store.open_file(name)?.len()?;
                let mut chunks = container.directory.chunks.iter();
                for region in &container.directory.regions {
                    for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                        let stored = share(chunk.len, region.sealed_len, region.plain_len);
                        self.count_chunk(chunk, stored, stats)?;
                    }
                }
            }
        }
        Ok(())
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
fn share(chunk: u32, sealed: u32, plain: u32) -> u64 {
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
