//! Files that were found and are not opened yet.

use std::path::PathBuf;

use crate::source::walk::Location;

/// How an entry compares with the parent snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The parent does not have it.
    New,
    /// The parent has another one of that name.
    Changed,
}

/// A file that was found and not opened yet.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    /// Path in the source.
    pub(crate) path: PathBuf,
    /// Its name in the tree.
    pub(crate) name: Vec<u8>,
    /// Location, which opens it.
    pub(crate) location: Location,
    /// How it compares.
    pub(crate) change: Change,
    /// How many bytes of its block are reserved for it: its length when it was found; 0 if it is read in parts or block by block.
    pub(crate) len: usize,
}
