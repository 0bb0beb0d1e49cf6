//! Entries whose paths match patterns, in one snapshot after the other.

use std::path::Path;

use crate::error::{Error, Result};
use crate::io::tree::EntryKind;
use crate::monitor::Monitor;
use crate::source::exclude::Patterns;
use crate::spill::SpillMap;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::metadata::Scratch;
use crate::store::walk::{Event, TreeWalk};
use crate::tree::{Content, Entry};
use crate::types::{Fingerprint, Timestamp};

/// Criteria of a search.
#[derive(Debug)]
pub struct SearchOptions {
    /// One of these matches the path, or that of a directory above.
    pub patterns: Vec<Patterns>,
    /// Only what was changed last at this time or before.
    pub newest: Option<Timestamp>,
    /// Only what was changed last at this time or after.
    pub oldest: Option<Timestamp>,
}

/// An entry that was found.
#[derive(Debug)]
pub struct Found {
    /// Its path in the snapshot, with a slash before every name.
    pub path: Vec<u8>,
    /// The entry.
    pub hinted: HintedEntry,
}

/// A search through snapshots, one after the other. It remembers the directories without a match, so that a further snapshot
/// costs only the directories that differ.
#[derive(Debug)]
pub struct Search {
    options: SearchOptions,
    walk: Option<TreeWalk<Directory>>,
    /// Directories without a match, by path and node.
    fruitless: SpillMap,
    /// Nodes of directories that could not be read.
    pub failures: Vec<Error>,
}

/// A directory that is being searched.
#[derive(Debug)]
struct Directory {
    key: [u8; 32],
    /// True until something in it matches or cannot be read.
    is_fruitless: bool,
}

impl Directory {
    fn new(node: Fingerprint, path: &[u8]) -> Self {
        let key = *blake3::Hasher::new().update(&node.0).update(path).finalize().as_bytes();
        Self { key, is_fruitless: true }
    }
}

impl Search {
    /// Prepares a search. `memory_bytes` limits what is remembered in memory; the rest spills.
    pub fn new(
        reader: &MetadataReader,
        options: SearchOptions,
        scratch: &Scratch,
        memory_bytes: usize,
    ) -> Result<Self> {
        let fruitless = scratch.map(&reader.store().host, "directories searched", memory_bytes)?;
        Ok(Self { options, walk: None, fruitless, failures: Vec::new() })
    }

    /// Starts at the root of a snapshot's tree.
    pub fn begin(&mut self, root: Fingerprint) -> Result<()> {
        let directory = Directory::new(root, b"");
        let is_known = self.fruitless.contains(&directory.key)?;
        self.walk = (!is_known).then(|| TreeWalk::new(root, b"", directory));
        Ok(())
    }

    /// Returns the next entry that matches, a directory before what is in it; `None` at the end of the snapshot.
    pub fn next(&mut self, reader: &mut MetadataReader, monitor: &dyn Monitor) -> Result<Option<Found>> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        while let Some(event) = walk.next(reader, monitor)? {
            let [.., directory] = walk.levels() else { continue };
            let hinted = match event {
                Event::Entry(hinted) => hinted,
                Event::Leave => {
                    if directory.state.is_fruitless {
                        self.fruitless.insert(directory.state.key, &[])?;
                    } else if let [.., above, _] = walk.levels() {
                        above.state.is_fruitless = false;
                    }
                    continue;
                }
                Event::Unreadable(error) => {
                    directory.state.is_fruitless = false;
                    self.failures.push(error);
                    continue;
                }
            };
            let path = walk.path().to_vec();
            let is_found = self.options.matches(&path, &hinted.entry);
            if let Some(directory) = walk.state().filter(|_| is_found) {
                directory.is_fruitless = false;
            }
            if let Content::Directory { node } = hinted.entry.content
                && self.options.reaches(&path)
            {
                let directory = Directory::new(node, &path);
                if !self.fruitless.contains(&directory.key)? {
                    walk.enter(node, directory)?;
                }
            }
            if is_found {
                return Ok(Some(Found { path, hinted }));
            }
        }
        Ok(None)
    }
}

impl SearchOptions {
    fn matches(&self, path: &[u8], entry: &Entry) -> bool {
        let (mtime, is_directory) = (entry.mtime, entry.kind == EntryKind::Directory);
        self.newest.is_none_or(|newest| mtime <= newest)
            && self.oldest.is_none_or(|oldest| oldest <= mtime)
            && self.patterns.iter().any(|patterns| patterns.matches(as_path(path), is_directory))
    }

    fn reaches(&self, path: &[u8]) -> bool {
        self.patterns.iter().any(|patterns| patterns.reaches(as_path(path)))
    }
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
}
