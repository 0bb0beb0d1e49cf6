//! Checkpoints as a repository holds them: which there are, and the streams in them.
//!
//! A checkpoint is an ordinary snapshot. Its tree has a directory for each volume with the file `image`, and the directory `history`
//! with the records since the checkpoint before. `docs/format.md` describes the layout.

mod group;
mod interval;
mod streams;

pub(crate) use group::THINNED_TAG;
pub use group::{Checkpoint, Checkpoints, EMPTY_TAG, GroupSpec, INCOMPLETE_TAG, VolumeSpec};
pub(crate) use interval::{check_entry, read_index};
pub use streams::{Stream, Streams};

use std::path::PathBuf;

use crate::journal::Lsn;

/// Name of an image in the directory of its volume.
pub const IMAGE: &str = "image";
/// Name of the directory of records.
pub const HISTORY: &str = "history";

/// Returns the path of the data of the interval that a record begins.
pub fn data_path(first: Lsn) -> PathBuf {
    PathBuf::from(format!("{HISTORY}/{:016x}.data", first.0))
}

/// Returns the path of the index of the interval that a record begins.
pub fn index_path(first: Lsn) -> PathBuf {
    PathBuf::from(format!("{HISTORY}/{:016x}.index", first.0))
}
