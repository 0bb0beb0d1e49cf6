//! What a tree in memory does at the worst moment.

use std::fmt;
use std::io;

use super::MemTree;

/// Something done to the tree while a file of it is read.
pub(super) type Action = Box<dyn FnOnce(&MemTree) + Send>;

/// What happens to whoever reads at a path.
#[derive(Default)]
pub(super) struct Fault {
    /// `metadata` fails.
    pub(super) metadata: Option<io::ErrorKind>,
    /// `open`, `list`, `read_link` and `xattrs` fail.
    pub(super) open: Option<io::ErrorKind>,
    /// Reads that go beyond this offset fail.
    pub(super) read: Option<(u64, io::ErrorKind)>,
    /// Reads still to come before something is done to the tree.
    pub(super) actions: Vec<(u64, Action)>,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metadata, open, read, actions } = self;
        write!(f, "Fault({metadata:?}, {open:?}, {read:?}, {} actions)", actions.len())
    }
}
