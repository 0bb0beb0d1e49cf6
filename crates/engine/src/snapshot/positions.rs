//! The positions of the sources in a snapshot's tree.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::snapshot::format::Snapshot;

impl Snapshot {
    /// Returns the paths in the tree that the sources stand at. The empty path is the top.
    pub fn source_positions(&self) -> BTreeSet<PathBuf> {
        let paths = if self.positions.is_empty() { &self.paths } else { &self.positions };
        let relative = |path: &Vec<u8>| {
            let path = path.strip_prefix(b"/").unwrap_or(path);
            PathBuf::from(OsStr::from_bytes(path))
        };
        paths.iter().map(relative).collect()
    }

    /// Notes the paths in the tree that the sources stand at, if they are not the same as those of the sources.
    pub(crate) fn set_positions(&mut self, positions: &[Vec<u8>]) {
        let of_paths = self.source_positions();
        let is_noted = |position: &Vec<u8>| of_paths.contains(Path::new(OsStr::from_bytes(position)));
        if !positions.iter().all(is_noted) {
            self.positions = positions.to_vec();
        }
    }
}
