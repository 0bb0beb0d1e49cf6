//! The request of a restore, and its report.

use std::path::Path;
use std::sync::Arc;

use crate::io::tree::{TargetTree, Trust};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::restore::omissions::Omissions;
use crate::restore::policy::{Effect, FullDirectories, Overwrite};
use crate::restore::select::Filter;
use crate::store::metadata::Scratch;
use crate::types::Fingerprint;

/// Request of a restore.
#[derive(Clone, Debug)]
pub struct RestoreRequest<'a> {
    /// Root of the snapshot's tree.
    pub tree: Fingerprint,
    /// Part of the tree: a directory whose contents, or a file which alone, is restored.
    pub path: &'a Path,
    /// Patterns that select its entries.
    pub filter: Filter,
    /// Directory that receives them.
    pub target: Arc<dyn TargetTree>,
    /// Write, or report only.
    pub effect: Effect,
    /// Treatment of existing entries.
    pub overwrite: Overwrite,
    /// Treatment of a directory that is not empty where the snapshot has something else.
    pub full_directories: FullDirectories,
    /// True to read everything back and compare it.
    pub verify: bool,
    /// Treatment of set-id bits, capabilities and devices.
    pub trust: Trust,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Memory for reading.
    pub memory_bytes: usize,
    /// Driver of the work queues.
    pub driver: Driver,
    /// Receiver of progress reports.
    pub monitor: Arc<dyn Monitor>,
}

/// Report of a restore.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RestoreReport {
    /// Regular files written whole.
    pub files: u64,
    /// Regular files that could not be restored whole. Their names are not touched; what could be read is in partial files.
    pub files_incomplete: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, hard links, FIFOs, sockets and devices.
    pub others: u64,
    /// Bytes of the files written.
    pub bytes: u64,
    /// Files left as they were.
    pub files_skipped: u64,
    /// Bytes of those.
    pub bytes_skipped: u64,
    /// Files read back and found right.
    pub files_verified: u64,
    /// Regions read from the repository, as bases of others too; one that was read twice counts twice.
    pub regions_read: u64,
    /// Directories of data containers read from the repository.
    pub directories_read: u64,
    /// Chunks that were read from another container since the copy in the first is damaged.
    pub chunks_recovered: u64,
    /// Deleted entries of directories where the snapshot has something else.
    pub deleted: u64,
    /// Things that the target cannot hold, or that this process may not make there. No failures.
    pub omissions: Omissions,
    /// Things that went wrong.
    pub failures: u64,
}
