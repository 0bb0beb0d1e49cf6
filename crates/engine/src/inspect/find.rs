//! Entries whose paths match patterns, in one snapshot after the other.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::inspect::{DEPTH_MAX, too_deep};
use crate::monitor::Monitor;
use crate::source::exclude::Patterns;
use crate::spill::SpillMap;
use crate::store::MetadataReader;
use crate::store::cursor::{DirectoryCursor, HintedEntry};
use crate::store::metadata::Scratch;
use crate::tree::Content;
use crate::types::{Fingerprint, Timestamp};

/// What is looked for.
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
    /// What it is.
    pub hinted: HintedEntry,
}

/// A search through snapshots, one after the other. Remembers the directories in which nothing was found, so that a
/// snapshot costs what differs in it from those before.
#[derive(Debug)]
pub struct Search {
    options: SearchOptions,
    frames: Vec<Frame>,
    /// Directories without a match, by path and node.
    fruitless: SpillMap,
    /// Nodes of directories that could not be read, in sentences.
    pub failures: Vec<Error>,
}

#[derive(Debug)]
struct Frame {
    cursor: DirectoryCursor,
    base: Vec<u8>,
    key: [u8; 32],
    /// Nothing was found in it so far, and nothing of it was unreadable.
    is_fruitless: bool,
}

impl Search {
    /// Prepares a search. `memory_bytes` limits what is remembered in memory; the rest spills.
    pub fn new(
        reader: &MetadataReader,
        options: SearchOptions,
        scratch: &Scratch,
        memory_bytes: usize,
    ) -> Result<Self> {
        let host = Arc::clone(&reader.store().host);
        let (disk, dir) = (scratch.disk.clone(), scratch.dir.clone());
        let fruitless = SpillMap::new(disk, dir, host, "directories searched", memory_bytes)?;
        Ok(Self { options, frames: Vec::new(), fruitless, failures: Vec::new() })
    }

    /// Starts at the root of a snapshot's tree.
    pub fn begin(&mut self, root: Fingerprint) -> Result<()> {
        self.frames.clear();
        self.enter(root, Vec::new())
    }

    /// Returns the next entry that matches, a directory before what is in it; `None` at the end of the snapshot.
    pub fn next(&mut self, reader: &mut MetadataReader, monitor: &dyn Monitor) -> Result<Option<Found>> {
        while let Some(frame) = self.frames.last_mut() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let hinted = match frame.cursor.next(reader) {
                Ok(Some(hinted)) => hinted,
                Ok(None) => {
                    self.leave()?;
                    continue;
                }
                // A part of the directory's list is lost; the cursor is past it, and the other parts are not.
                Err(error) => {
                    frame.is_fruitless = false;
                    self.failures.push(error);
                    continue;
                }
            };
            let path = [&frame.base[..], b"/", &hinted.entry.name].concat();
            let is_found = self.options.matches(&path, hinted.entry.mtime);
            if is_found {
                frame.is_fruitless = false;
            }
            if let Content::Directory { node } = hinted.entry.content
                && self.options.reaches(&path)
            {
                self.enter(node, path.clone())?;
            }
            if is_found {
                return Ok(Some(Found { path, hinted }));
            }
        }
        Ok(None)
    }

    fn enter(&mut self, node: Fingerprint, base: Vec<u8>) -> Result<()> {
        if DEPTH_MAX <= self.frames.len() {
            return Err(too_deep());
        }
        let key = *blake3::Hasher::new().update(&node.0).update(&base).finalize().as_bytes();
        if !self.fruitless.contains(&key)? {
            self.frames.push(Frame { cursor: DirectoryCursor::new(node), base, key, is_fruitless: true });
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        if frame.is_fruitless {
            return self.fruitless.insert(frame.key, &[]);
        }
        if let Some(above) = self.frames.last_mut() {
            above.is_fruitless = false;
        }
        Ok(())
    }
}

impl SearchOptions {
    fn matches(&self, path: &[u8], mtime: Timestamp) -> bool {
        self.newest.is_none_or(|newest| mtime <= newest)
            && self.oldest.is_none_or(|oldest| oldest <= mtime)
            && self.patterns.iter().any(|patterns| patterns.matches(as_path(path)))
    }

    fn reaches(&self, path: &[u8]) -> bool {
        self.patterns.iter().any(|patterns| patterns.reaches(as_path(path)))
    }
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
}
