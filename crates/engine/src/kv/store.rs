//! What every key-value store under the index has in common.

use std::sync::Arc;

use crate::kv::{Entry, Ordinal};

/// Returns true for live containers, on any thread.
pub type Live = Arc<dyn Fn(Ordinal) -> bool + Send + Sync>;

/// Result of the lookup of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// An entry in memory.
    InMemory(Entry),
    /// An entry on disk.
    OnDisk(Entry),
    /// Only entries of containers that are not live.
    Dead,
    /// No entry.
    Absent,
}

impl Lookup {
    /// Returns the better of two results for a key, each from a part of the table.
    pub(in crate::kv) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::InMemory(_) | Self::OnDisk(_), _) | (Self::Dead, Self::Absent) => self,
            (Self::Dead | Self::Absent, _) => other,
        }
    }
}
