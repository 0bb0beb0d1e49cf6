//! Trees: directories with everything a file system knows of their entries.
//!
//! A directory is a list of entries sorted by name, cut by content into nodes that are chunks themselves; the list of
//! nodes is cut the same way again.

pub mod builder;
pub mod format;

pub use builder::TreeBuilder;
pub use format::{Child, Content, Entry, Link, TreeNode, decode_node};
