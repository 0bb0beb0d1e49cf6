//! Differences between two trees.

use crate::error::{Error, Result};
use crate::inspect::merge_join::{MergeJoin, Step, Which};
use crate::io::tree::EntryKind;
use crate::monitor::Monitor;
use crate::recipe::format::Recipe;
use crate::spill::SpillMap;
use crate::store::MetadataReader;
use crate::store::metadata::Scratch;
use crate::store::recipe_cursor::{FileExtent, RecipeCursor};
use crate::store::walk::DEPTH_MAX;
use crate::tree::{Content, Entry};
use crate::types::{Chunk, Fingerprint};

/// One entry that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its path below what is compared, with a slash before every name.
    pub path: Vec<u8>,
    /// Its kind: the new one, or what it was if it is gone.
    pub kind: EntryKind,
    /// Its difference.
    pub difference: Difference,
}

/// Difference of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// It was added.
    Added,
    /// It was removed.
    Removed,
    /// It is of another kind.
    Kind,
    /// It was changed.
    Changed {
        /// Its contents.
        contents: Contents,
        /// True if mode, owner, time of the last change or extended attributes differ.
        metadata: bool,
    },
}

/// Difference between the contents of two entries of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// They are the same.
    Same,
    /// They differ.
    Modified,
    /// They differ although nothing else does, not even the times: the disk may have lost bits.
    Suspicious,
}

/// Counts of one side only.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SideCounts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Everything else.
    pub others: u64,
    /// Chunks of files that differ.
    pub data_chunks: u64,
    /// Nodes of directories that differ.
    pub tree_chunks: u64,
    /// Bytes of these chunks before compression.
    pub bytes: u64,
}

/// Counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiffReport {
    /// Entries whose contents changed.
    pub changed: u64,
    /// Counts of the state after only. A chunk that also lies in an equal part of both trees counts as added.
    pub added: SideCounts,
    /// Counts of the state before only.
    pub removed: SideCounts,
    /// Nodes that had to be read.
    pub(crate) nodes_read: u64,
}

/// A comparison under way. Holds one node of each level of each directory on the way, and spills the rest.
pub struct Diff {
    frames: Vec<Frame>,
    with_metadata: bool,
    tally: Tally,
}

struct Frame {
    merge_join: MergeJoin,
    base: Vec<u8>,
}

impl std::fmt::Debug for Diff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diff").field("depth", &self.frames.len()).finish_non_exhaustive()
    }
}

impl Diff {
    /// Starts to compare two directories, given by the roots of their lists. `memory_bytes` limits the map of the chunks
    /// that differ.
    pub fn new(
        reader: &MetadataReader,
        (before, after): (Fingerprint, Fingerprint),
        with_metadata: bool,
        scratch: &Scratch,
        memory_bytes: usize,
    ) -> Result<Self> {
        let chunks = scratch.map(&reader.store().host, "chunks that differ", memory_bytes)?;
        let frame = Frame { merge_join: MergeJoin::new(Some(before), Some(after)), base: Vec::new() };
        let tally = Tally { chunks, report: DiffReport::default() };
        Ok(Self { frames: vec![frame], with_metadata, tally })
    }

    /// Returns what was counted so far.
    pub fn report(&self) -> DiffReport {
        self.tally.report
    }

    /// Returns the next entry that differs, a directory before what is in it; `None` at the end.
    pub fn next(&mut self, reader: &mut MetadataReader, monitor: &dyn Monitor) -> Result<Option<Change>> {
        while let Some(frame) = self.frames.last_mut() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let tally = &mut self.tally;
            let step = frame.merge_join.next(reader, &mut |which, node| {
                tally.report.nodes_read += 1;
                tally.chunk(which, Kind::Tree, node)
            })?;
            let change = match step {
                Step::End => {
                    self.frames.pop();
                    continue;
                }
                Step::Left(entry) => Some(self.one(reader, Which::Left, &entry)?),
                Step::Right(entry) => Some(self.one(reader, Which::Right, &entry)?),
                Step::Both(before, after) => self.both(reader, &before, &after)?,
            };
            if change.is_some() {
                return Ok(change);
            }
        }
        Ok(None)
    }

    /// Takes an entry that only one side has.
    fn one(&mut self, reader: &mut MetadataReader, which: Which, entry: &Entry) -> Result<Change> {
        let path = self.path(entry);
        self.tally.entry(which, entry.kind);
        self.contents_of(reader, which, entry, &path)?;
        let difference = match which {
            Which::Left => Difference::Removed,
            Which::Right => Difference::Added,
        };
        Ok(Change { path, kind: entry.kind, difference })
    }

    /// Counts the chunks of a file that has no counterpart, or goes into such a directory.
    fn contents_of(&mut self, reader: &mut MetadataReader, which: Which, entry: &Entry, path: &[u8]) -> Result<()> {
        match (&entry.content, which) {
            (Content::File { recipe, .. }, _) => self.tally.file(reader, which, recipe),
            (Content::Directory { node }, Which::Left) => self.enter(Some(*node), None, path),
            (Content::Directory { node }, Which::Right) => self.enter(None, Some(*node), path),
            (Content::Symlink { .. } | Content::Special { .. }, _) => Ok(()),
        }
    }

    /// Compares two entries of one name.
    fn both(&mut self, reader: &mut MetadataReader, before: &Entry, after: &Entry) -> Result<Option<Change>> {
        if before == after {
            return Ok(None);
        }
        let path = self.path(after);
        let kind = after.kind;
        if before.kind != after.kind {
            self.contents_of(reader, Which::Left, before, &path)?;
            self.contents_of(reader, Which::Right, after, &path)?;
            return Ok(Some(Change { path, kind, difference: Difference::Kind }));
        }
        let is_modified = match (&before.content, &after.content) {
            (Content::File { recipe: old, .. }, Content::File { recipe: new, .. }) if old != new => {
                self.tally.file(reader, Which::Left, old)?;
                self.tally.file(reader, Which::Right, new)?;
                true
            }
            (Content::Directory { node: old }, Content::Directory { node: new }) => {
                if old != new {
                    self.enter(Some(*old), Some(*new), &path)?;
                }
                false
            }
            (Content::Symlink { .. } | Content::Special { .. }, _) => before.content != after.content,
            (Content::File { .. } | Content::Directory { .. }, _) => false,
        };
        let contents = match (is_modified, has_other_marks(before, after)) {
            (false, _) => Contents::Same,
            (true, true) => Contents::Modified,
            (true, false) => Contents::Suspicious,
        };
        let metadata = self.with_metadata && has_other_metadata(before, after);
        if is_modified {
            self.tally.report.changed += 1;
        }
        let differs = is_modified || metadata;
        Ok(differs.then_some(Change { path, kind, difference: Difference::Changed { contents, metadata } }))
    }

    fn enter(&mut self, left: Option<Fingerprint>, right: Option<Fingerprint>, path: &[u8]) -> Result<()> {
        if DEPTH_MAX <= self.frames.len() {
            return Err(Error::TooDeep { depth_max: DEPTH_MAX, undone: "read" });
        }
        self.frames.push(Frame { merge_join: MergeJoin::new(left, right), base: path.to_vec() });
        Ok(())
    }

    fn path(&self, entry: &Entry) -> Vec<u8> {
        let base = self.frames.last().map_or(&[][..], |frame| &frame.base);
        [base, b"/", &entry.name].concat()
    }
}

/// Returns true if anything but the contents shows that they were changed.
fn has_other_marks(before: &Entry, after: &Entry) -> bool {
    let changed = |entry: &Entry| match &entry.content {
        Content::File { ctime, inode, .. } => Some((*ctime, *inode)),
        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
    };
    // Of what is no file, too little is kept to tell.
    before.kind != EntryKind::File || has_other_metadata(before, after) || changed(before) != changed(after)
}

fn has_other_metadata(before: &Entry, after: &Entry) -> bool {
    let of = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.mtime);
    of(before) != of(after) || before.xattrs != after.xattrs
}

/// Kind of a counted chunk.
#[derive(Clone, Copy)]
enum Kind {
    Data,
    Tree,
}

/// Counts what only one side has, chunk by chunk: one that turns up on the other side later is taken back.
struct Tally {
    /// Sides on which a chunk was seen, one bit each.
    chunks: SpillMap,
    report: DiffReport,
}

const SEEN_LEFT: u8 = 1;
const SEEN_RIGHT: u8 = 2;

impl Tally {
    fn entry(&mut self, which: Which, kind: EntryKind) {
        let counts = self.side(which);
        match kind {
            EntryKind::File => counts.files += 1,
            EntryKind::Directory => counts.directories += 1,
            EntryKind::Symlink
            | EntryKind::Fifo
            | EntryKind::Socket
            | EntryKind::CharDevice
            | EntryKind::BlockDevice => counts.others += 1,
        }
    }

    fn file(&mut self, reader: &mut MetadataReader, which: Which, recipe: &Recipe) -> Result<()> {
        let mut cursor = RecipeCursor::new(recipe, &[]);
        while let Some(extent) = cursor.next(reader)? {
            if let FileExtent::Chunk(hinted) = extent {
                self.chunk(which, Kind::Data, hinted.chunk)?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, which: Which, kind: Kind, Chunk { fingerprint, len }: Chunk) -> Result<()> {
        let seen = self.chunks.get(&fingerprint.0)?.and_then(|value| value.first().copied()).unwrap_or(0);
        let (own, other) = match which {
            Which::Left => (SEEN_LEFT, Which::Right),
            Which::Right => (SEEN_RIGHT, Which::Left),
        };
        if seen & own != 0 {
            return Ok(());
        }
        if seen == 0 {
            let counts = self.side(which);
            *counts.of(kind) += 1;
            counts.bytes += u64::from(len);
        } else {
            let counts = self.side(other);
            *counts.of(kind) -= 1;
            // A reference that lies about the length must not make the sum wrap.
            counts.bytes = counts.bytes.saturating_sub(u64::from(len));
        }
        self.chunks.insert(fingerprint.0, &[seen | own])
    }

    fn side(&mut self, which: Which) -> &mut SideCounts {
        match which {
            Which::Left => &mut self.report.removed,
            Which::Right => &mut self.report.added,
        }
    }
}

impl SideCounts {
    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Data => &mut self.data_chunks,
            Kind::Tree => &mut self.tree_chunks,
        }
    }
}
