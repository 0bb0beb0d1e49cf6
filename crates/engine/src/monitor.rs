//! What an operation tells of itself while it runs.

use std::fmt::Debug;
use std::path::Path;

use crate::error::Error;

/// What became of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The parent did not have it.
    New,
    /// It differs from the parent's.
    Changed,
    /// It is the parent's.
    Unchanged,
    /// It has no contents to compare.
    Other,
}

/// Losses of a snapshot at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// A directory with everything in it.
    Directory,
    /// Some entries of a directory.
    Entries,
    /// Some bytes of a file.
    Bytes {
        /// Their number.
        lost: u64,
        /// Length of the file.
        len: u64,
    },
}

/// What a stage of an operation works through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Items {
    /// Files of a source or a snapshot.
    Files,
    /// Containers of a repository.
    Containers,
    /// Snapshots of a repository.
    Snapshots,
}

/// Listens to an operation. Called from the operation's threads; must return quickly.
pub trait Monitor: Debug + Send + Sync {
    /// A stage begins that works through so many items. Progress is that of this stage from now on.
    fn stage(&self, _items: Items, _count: u64) {}
    /// A file is being read.
    fn begin(&self, _path: &Path) {}
    /// So many more bytes and items, which are files unless a stage says otherwise, are done.
    fn advance(&self, _bytes: u64, _items: u64) {}
    /// So many bytes of the file that is told of next stand in chunks that this backup stored.
    fn added(&self, _bytes: u64) {}
    /// A file or other entry is done.
    fn entry(&self, _path: &Path, _action: Action) {}
    /// A directory is done.
    fn directory(&self, _path: &Path, _action: Action) {}
    /// An entry of a restore's target was deleted, or would be.
    fn deleted(&self, _path: &Path) {}
    /// Something of a snapshot at this path is lost.
    fn lost(&self, _path: &Path, _loss: Loss) {}
    /// An entry of a snapshot is left out of the one that is derived from it, with all below it.
    fn excluded(&self, _path: &Path) {}
    /// Something failed that does not end the operation.
    fn failure(&self, _path: &Path, _error: &Error) {}
    /// Something the user should know.
    fn note(&self, _text: &str) {}
    /// Whether to stop as soon as it can be done cleanly.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Monitor for Silent {}
