//! Treatment of the existing entries in the target of a restore.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Treatment of existing entries of the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwrite {
    /// A target that is not empty is refused.
    Refuse,
    /// They are replaced.
    Always,
    /// They are replaced, but a file with the contents of the snapshot gets its metadata only, as in restic.
    IfDifferent,
    /// Files of the same size and modification time are left as they are.
    IfChanged,
    /// Files that are not older are left as they are.
    IfNewer,
    /// All of them are left as they are.
    Never,
}

/// Effect of a restore on its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It restores.
    Write,
    /// It reports what it would restore, skip and refuse, and changes nothing.
    DryRun,
}

/// Treatment of a directory that is not empty where the snapshot has something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FullDirectories {
    /// It stays, and the entry of the snapshot is a failure.
    Keep,
    /// It is deleted with everything in it. If something in it has to stay, all of it does, and that is a failure.
    Delete {
        /// Directories that stay with everything in them, by device and inode: the repository that is restored from, and
        /// its index.
        keep: Arc<BTreeSet<(u64, u64)>>,
    },
}
