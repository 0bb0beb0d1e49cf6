//! The one depth-first walk over a snapshot's tree.
//!
//! The caller decides at each directory whether to enter it, and keeps its own state for each directory between the root and
//! the current entry.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::store::cursor::{DirectoryCursor, HintedEntry, NodeReader};
use crate::types::Fingerprint;

/// Deepest directory that a walk enters: the deepest that a backup stores.
pub(crate) const DEPTH_MAX: usize = crate::source::walk::DEPTH_MAX;

/// A step of a walk.
#[derive(Debug)]
pub enum Event {
    /// The next entry of the innermost directory.
    Entry(HintedEntry),
    /// The end of the innermost directory. It stays the innermost until the next event.
    Leave,
    /// A part of the innermost directory that cannot be read. The walk continues behind it.
    Unreadable(Error),
}

/// A directory between the root of a walk and the current entry.
#[derive(Debug)]
pub struct Level<T> {
    /// The rest of its entries.
    pub(crate) cursor: DirectoryCursor,
    /// State of the caller.
    pub(crate) state: T,
    /// Length of its path.
    path_len: usize,
}

/// A walk in the order of names, a directory before its entries. Holds one node for each level of each directory on the path.
#[derive(Debug)]
pub struct TreeWalk<T> {
    levels: Vec<Level<T>>,
    path: Vec<u8>,
    is_left: bool,
}

impl<T> TreeWalk<T> {
    /// Starts at the root of a directory's list. Paths begin with `base`, which has no slash at its end.
    pub fn new(root: Fingerprint, base: &[u8], state: T) -> Self {
        let level = Level { cursor: DirectoryCursor::new(root), state, path_len: base.len() };
        Self { levels: vec![level], path: base.to_vec(), is_left: false }
    }

    /// Returns the next event; `None` at the end. Fails only if the monitor interrupts the walk.
    pub fn next(&mut self, reader: &mut dyn NodeReader, monitor: &dyn Monitor) -> Result<Option<Event>> {
        if std::mem::take(&mut self.is_left) {
            self.levels.pop();
        }
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        self.path.truncate(level.path_len);
        Ok(Some(match level.cursor.next(reader) {
            Ok(Some(hinted)) => {
                self.path.push(b'/');
                self.path.extend_from_slice(&hinted.entry.name);
                Event::Entry(hinted)
            }
            Ok(None) => {
                self.is_left = true;
                Event::Leave
            }
            Err(error) => Event::Unreadable(error),
        }))
    }

    /// Enters the directory that the last event returned.
    pub fn enter(&mut self, node: Fingerprint, state: T) -> Result<()> {
        if DEPTH_MAX <= self.levels.len() {
            return Err(Error::TooDeep { depth_max: DEPTH_MAX, undone: "read" });
        }
        self.levels.push(Level { cursor: DirectoryCursor::new(node), state, path_len: self.path.len() });
        Ok(())
    }

    /// Returns the path of the last event's entry or directory, with a slash before each name.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns that path without its first slash.
    pub fn relative_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.strip_prefix(b"/").unwrap_or(&self.path)))
    }

    /// Returns the directories from the root to the innermost.
    pub fn levels(&mut self) -> &mut [Level<T>] {
        &mut self.levels
    }

    /// Returns the state of the innermost directory; `None` after the end.
    pub fn state(&mut self) -> Option<&mut T> {
        self.levels.last_mut().map(|level| &mut level.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tree::EntryKind;
    use crate::monitor::Silent;
    use crate::store::cursor::tests::{Nodes, link};
    use crate::tree::{Content, Entry, format::tests::entry};

    fn directory(name: &str, node: Fingerprint) -> Entry {
        entry(name, Content::Directory { node }, EntryKind::Directory)
    }

    #[test]
    fn a_directory_comes_before_its_entries_and_only_if_it_is_entered() {
        let mut nodes = Nodes::default();
        let inner = nodes.leaf(&[link("x"), link("y")]);
        let list = nodes.list(1, &[("a", Fingerprint([9; 32]))]);
        let root = nodes.leaf(&[directory("a", inner), directory("b", inner), directory("c", list), link("d")]);
        let mut walk = TreeWalk::new(root, b"/base", 0);
        let mut events = Vec::new();
        while let Some(event) = walk.next(&mut nodes, &Silent).unwrap() {
            let path = String::from_utf8(walk.path().to_vec()).unwrap();
            *walk.state().unwrap() += 1;
            events.push(match event {
                Event::Entry(hinted) => {
                    if let Content::Directory { node } = hinted.entry.content
                        && hinted.entry.name != b"b"
                    {
                        walk.enter(node, 0).unwrap();
                    }
                    path
                }
                Event::Leave => {
                    let events: usize = walk.state().copied().unwrap();
                    format!("{path} ends after {events} events, {} deep", walk.levels().len())
                }
                Event::Unreadable(_) => format!("{path} is damaged"),
            });
        }
        let expected = [
            "/base/a",
            "/base/a/x",
            "/base/a/y",
            "/base/a ends after 3 events, 2 deep",
            "/base/b",
            "/base/c",
            "/base/c is damaged",
            "/base/c ends after 2 events, 2 deep",
            "/base/d",
            "/base ends after 5 events, 1 deep",
        ];
        assert_eq!(events, expected);
        assert!(walk.state().is_none());
    }

    #[test]
    fn a_walk_enters_no_directory_deeper_than_the_deepest_that_a_backup_stores() {
        let mut nodes = Nodes::default();
        let mut root = nodes.leaf(&[]);
        for _ in 0..DEPTH_MAX {
            root = nodes.leaf(&[directory("d", root)]);
        }
        let mut walk = TreeWalk::new(root, b"", ());
        let (mut entered, mut refused) = (1, 0);
        while let Some(event) = walk.next(&mut nodes, &Silent).unwrap() {
            let Event::Entry(hinted) = event else { continue };
            let Content::Directory { node } = hinted.entry.content else { continue };
            match walk.enter(node, ()) {
                Ok(()) => entered += 1,
                Err(error) => {
                    assert!(matches!(error, Error::TooDeep { .. }), "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!((entered, refused), (DEPTH_MAX, 1));
    }
}
