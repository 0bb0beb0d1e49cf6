//! Which snapshots reach a chunk, and by which paths.

use std::ops::ControlFlow;

use crate::collect::why::{WhyRequest, of_snapshot};
use crate::error::{Error, Result};
use crate::inspect::stats::share;
use crate::monitor::{Items, Monitor};
use crate::recipe::{Recipe, RecipeItem};
use crate::spill::SpillMap;
use crate::store::cursor::NodeReader;
use crate::store::metadata::HintedNode;
use crate::store::view::open_each;
use crate::store::walk::{Event, TreeWalk};
use crate::store::{MetadataReader, Store};
use crate::tree::Content;
use crate::types::{ChunkKind, ContainerId, Fingerprint, SessionId};

/// Most paths that are listed for each snapshot.
pub const PATHS_MAX: usize = 4;
/// Most copies that are listed.
const COPIES_MAX: usize = 64;
/// Digits of a fingerprint.
const DIGITS: usize = 64;

/// The beginning of a fingerprint in hexadecimal digits, or all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPrefix {
    first: Fingerprint,
    digits: usize,
}

impl ChunkPrefix {
    /// Reads lower-case digits, at least one and at most those of a fingerprint.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len();
        // Zeros follow the digits.
        let first = Fingerprint::parse(&format!("{text:0<DIGITS$}"))?;
        (digits != 0).then_some(Self { first, digits })
    }

    /// Returns true if a fingerprint begins with the digits.
    pub fn matches(&self, fingerprint: &Fingerprint) -> bool {
        let is_same = |at: usize| self.first.0.get(..at) == fingerprint.0.get(..at);
        let high = |fingerprint: &Fingerprint| fingerprint.0.get(self.digits / 2).map(|byte| byte >> 4);
        is_same(self.digits / 2) && (self.digits.is_multiple_of(2) || high(&self.first) == high(fingerprint))
    }
}

/// A copy of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChunkCopy {
    /// Its container.
    pub container: ContainerId,
    /// Its bytes, hints included.
    pub len: u32,
    /// Its share of the stored region.
    pub stored_len: u32,
    /// True if a collection has condemned the container, or has decided to delete it.
    pub is_condemned: bool,
}

/// A chunk, and the snapshots that reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkHolders {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Kind of its contents.
    pub kind: ChunkKind,
    /// The first copies, by their containers.
    pub copies: Vec<ChunkCopy>,
    /// Number of all copies.
    pub copies_count: u64,
    /// The snapshots that reach it, of those that were asked for, by host, paths and time.
    pub snapshots: Vec<ChunkInSnapshot>,
    /// Number of all snapshots that reach it.
    pub holders: u64,
    /// Number of those of them that would be kept; `None` if no forgetting was asked about.
    pub kept_holders: Option<u64>,
}

/// A snapshot that reaches a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkInSnapshot {
    /// The snapshot.
    pub session: SessionId,
    /// The first paths whose contents have the chunk, in the order of the tree. For a node of a tree, the directory.
    pub paths: Vec<Vec<u8>>,
    /// True if there are more.
    pub has_more: bool,
}

/// Finds the only chunk that a prefix means, in the directories of all containers, with its copies. Nothing is known of snapshots
/// then. Fails if there is none, or several, or if a container does not open.
pub fn find_chunk(store: &Store, request: &WhyRequest<'_>, prefix: &ChunkPrefix) -> Result<ChunkHolders> {
    let absent = store.read_absent()?;
    let mut found: Option<ChunkHolders> = None;
    open_each(store, request.scratch, false, &mut |name, opened| {
        request.go_on()?;
        let container = opened?;
        let mut chunks = container.directory.chunks.iter();
        for region in &container.directory.regions {
            for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                let unnamed = || Error::damaged(store.display(name), "its directory does not name all chunks");
                let fingerprint = chunk.fingerprint.ok_or_else(unnamed)?;
                if !prefix.matches(&fingerprint) {
                    continue;
                }
                let found = found.get_or_insert_with(|| ChunkHolders::new(fingerprint, chunk.kind));
                if found.fingerprint != fingerprint {
                    return Err(Error::invalid("several chunks begin like that; use a longer prefix"));
                }
                let stored_len = share(chunk.len, region.sealed_len, region.plain_len);
                found.copies_count += 1;
                if found.copies.len() < COPIES_MAX {
                    found.copies.push(ChunkCopy {
                        container: name.id,
                        len: chunk.len,
                        stored_len: u32::try_from(stored_len).unwrap_or(u32::MAX),
                        is_condemned: absent.containers.contains(name.id) || absent.is_undecided(name.id),
                    });
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let text: String = prefix.first.to_string().chars().take(prefix.digits).collect();
    found.ok_or(Error::MissingChunk { fingerprint: text })
}

impl ChunkHolders {
    fn new(fingerprint: Fingerprint, kind: ChunkKind) -> Self {
        let (copies, snapshots) = (Vec::new(), Vec::new());
        Self { fingerprint, kind, copies, copies_count: 0, snapshots, holders: 0, kept_holders: None }
    }
}

/// Finds the snapshots that reach a chunk. Directories and segments without it are read once, however many snapshots share them.
///
/// Fails if a node cannot be read: then the snapshots are not known.
pub fn why_chunk(store: &Store, request: &WhyRequest<'_>, chunk: &mut ChunkHolders) -> Result<()> {
    let mut reader = request.reader(store)?;
    let fruitless = request.scratch.map(&store.host, "nodes searched", request.memory() / 2)?;
    let mut search = ChunkSearch { chunk: chunk.fingerprint, kind: chunk.kind, fruitless };
    chunk.kept_holders = request.forgotten.map(|_| 0);
    request.monitor.stage(Items::Snapshots, request.snapshots.len() as u64);
    for (session, snapshot) in request.ordered() {
        let is_listed = request.is_listed(&session);
        let limit = if is_listed { PATHS_MAX } else { 0 };
        let found = search.paths(&mut reader, snapshot.tree, limit, request.monitor);
        let found = found.map_err(|error| of_snapshot(session, error))?;
        request.monitor.advance(0, 1);
        if found.paths.is_empty() && !found.has_more {
            continue;
        }
        chunk.holders += 1;
        if let Some(kept) = chunk.kept_holders.as_mut().filter(|_| request.is_kept(&session)) {
            *kept += 1;
        }
        if is_listed {
            chunk.snapshots.push(ChunkInSnapshot { session, ..found });
        }
    }
    Ok(())
}

/// A search for a chunk through trees.
struct ChunkSearch {
    chunk: Fingerprint,
    kind: ChunkKind,
    /// Directories, by the root nodes of their lists, and segments in which the chunk is not.
    fruitless: SpillMap,
}

/// A directory that is being searched.
struct Searched {
    root: Fingerprint,
    is_fruitless: bool,
}

/// A reader that notes whether a node was read.
struct Watching<'a> {
    reader: &'a mut MetadataReader,
    node: Fingerprint,
    is_read: bool,
}

impl NodeReader for Watching<'_> {
    fn read_node(&mut self, node: Fingerprint) -> Result<HintedNode> {
        self.is_read |= node == self.node;
        self.reader.read_node(node)
    }
}

impl ChunkSearch {
    /// Returns the first paths of a tree whose contents have the chunk, at most `limit`, and whether there are more. `session` is
    /// not set.
    fn paths(
        &mut self,
        reader: &mut MetadataReader,
        root: Fingerprint,
        limit: usize,
        monitor: &dyn Monitor,
    ) -> Result<ChunkInSnapshot> {
        let mut found = ChunkInSnapshot { session: SessionId([0; 16]), paths: Vec::new(), has_more: false };
        if self.fruitless.contains(&root.0)? {
            return Ok(found);
        }
        let mut walk = TreeWalk::new(root, b"", Searched { root, is_fruitless: true });
        let mut reader = Watching { reader, node: self.chunk, is_read: false };
        while !found.has_more
            && let Some(event) = walk.next(&mut reader, monitor)?
        {
            let path = walk.path().to_vec();
            if std::mem::take(&mut reader.is_read) {
                note(&mut walk, &mut found, directory_of(&path, &event), limit);
            }
            match event {
                Event::Entry(hinted) => match hinted.entry.content {
                    Content::Directory { node } => {
                        if !self.fruitless.contains(&node.0)? {
                            walk.enter(node, Searched { root: node, is_fruitless: true })?;
                        }
                    }
                    Content::File { recipe, .. } => {
                        if self.is_in(&recipe, reader.reader)? {
                            note(&mut walk, &mut found, &path, limit);
                        }
                    }
                    Content::Symlink { .. } | Content::Special { .. } => {}
                },
                Event::Leave => self.leave(&mut walk)?,
                Event::Unreadable(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Remembers the directory that ends if the chunk is not in it.
    fn leave(&mut self, walk: &mut TreeWalk<Searched>) -> Result<()> {
        match walk.levels() {
            [.., directory] if directory.state.is_fruitless => self.fruitless.insert(directory.state.root.0, &[]),
            [.., above, _] => {
                above.state.is_fruitless = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the chunk is a segment or a data chunk of a recipe.
    fn is_in(&mut self, recipe: &Recipe, reader: &mut MetadataReader) -> Result<bool> {
        if self.kind == ChunkKind::Tree {
            return Ok(false);
        }
        // Open lists, with the segments that they are; levels fall, so that there are at most as many as levels.
        let mut open = vec![(None, recipe.level, recipe.items.clone().into_iter())];
        while let Some((segment, level, items)) = open.last_mut() {
            let level = *level;
            match items.next() {
                None => {
                    if let Some(segment) = segment.take() {
                        self.fruitless.insert(segment, &[])?;
                    }
                    open.pop();
                }
                Some(RecipeItem::Chunk(chunk)) if chunk.fingerprint == self.chunk => return Ok(true),
                Some(RecipeItem::Chunk(_) | RecipeItem::Hole { .. }) => {}
                Some(RecipeItem::Segment { fingerprint, .. }) if fingerprint == self.chunk => return Ok(true),
                Some(RecipeItem::Segment { fingerprint, .. }) => {
                    if self.fruitless.contains(&fingerprint.0)? {
                        continue;
                    }
                    let (below, _) = reader.read_segment(fingerprint)?;
                    if below.level.checked_add(1) != Some(level) {
                        let object = format!("recipe {fingerprint}");
                        return Err(Error::damaged(object, "is not of the level that refers to it"));
                    }
                    open.push((Some(fingerprint.0), below.level, below.items.into_iter()));
                }
            }
        }
        Ok(false)
    }
}

/// Adds a path to those that were found. The innermost directory has the chunk then.
fn note(walk: &mut TreeWalk<Searched>, found: &mut ChunkInSnapshot, path: &[u8], limit: usize) {
    if let Some(directory) = walk.state() {
        directory.is_fruitless = false;
    }
    if found.paths.len() < limit {
        found.paths.push(path.to_vec());
    } else {
        found.has_more = true;
    }
}

/// Returns the path of the directory that an event is in.
fn directory_of<'a>(path: &'a [u8], event: &Event) -> &'a [u8] {
    let directory = match event {
        Event::Entry(_) => path.iter().rposition(|byte| *byte == b'/').and_then(|end| path.get(..end)),
        Event::Leave | Event::Unreadable(_) => Some(path),
    };
    directory.filter(|directory| !directory.is_empty()).unwrap_or(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_the_fingerprints_that_begin_with_its_digits() {
        let fingerprint = Fingerprint::parse(&format!("1a2b3c{}", "0".repeat(57) + "d")).unwrap();
        let text = fingerprint.to_string();
        for digits in 1..=DIGITS {
            let prefix = ChunkPrefix::parse(&text[..digits]).unwrap();
            assert!(prefix.matches(&fingerprint), "{digits} digits");
            let last = text.as_bytes()[digits - 1];
            let other = format!("{}{}", &text[..digits - 1], if last == b'7' { '8' } else { '7' });
            assert!(!ChunkPrefix::parse(&other).unwrap().matches(&fingerprint), "{other}");
        }
        for wrong in ["", "xyz", "1A", "/home", &format!("{text}0")] {
            assert_eq!(ChunkPrefix::parse(wrong), None, "{wrong}");
        }
    }
}
