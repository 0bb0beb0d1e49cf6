//! Things that the target of a restore cannot hold, counted by kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::io::tree::Omission;

/// Numbers of entries by what they lack, each with the first of their paths.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Omissions(BTreeMap<Omission, (u64, PathBuf)>);

impl Omissions {
    /// Counts an entry.
    pub(super) fn add(&mut self, kind: Omission, path: &Path) {
        self.add_all(kind, 1, path);
    }

    /// Counts the entries of others.
    pub(super) fn merge(&mut self, others: &Self) {
        for (kind, (count, first)) in &others.0 {
            self.add_all(*kind, *count, first);
        }
    }

    fn add_all(&mut self, kind: Omission, count: u64, path: &Path) {
        let (sum, first) = self.0.entry(kind).or_insert_with(|| (0, path.to_path_buf()));
        *sum += count;
        if path < first.as_path() {
            *first = path.to_path_buf();
        }
    }

    /// Returns the number of entries that lack something of a kind.
    pub fn count(&self, kind: Omission) -> u64 {
        self.0.get(&kind).map_or(0, |(count, _)| *count)
    }

    /// Returns kinds, numbers of entries and first paths.
    pub fn iter(&self) -> impl Iterator<Item = (Omission, u64, &Path)> {
        self.0.iter().map(|(kind, (count, first))| (*kind, *count, first.as_path()))
    }
}
