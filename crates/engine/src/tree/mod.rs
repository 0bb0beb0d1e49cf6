//! Trees: directories with everything a file system knows of their entries.
//!
//! A directory is a list of entries sorted by name, cut by content into nodes that are chunks themselves; the list of
//! nodes is cut the same way again.

pub(crate) mod builder;
pub(crate) mod format;

pub use format::{Child, Content, Entry, EntryNotes, Link};
pub(crate) use format::{TreeNode, decode_node};
