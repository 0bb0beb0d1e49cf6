//! Containers and entries of stores that no index uses.

use std::sync::Arc;

use onefold_engine::kv::{Containers, Entry, Key, Live, Ordinal, Position, SyncContainers};
use onefold_engine::types::{ContainerId, SessionId};

/// Containers that are all live and durable.
pub(crate) struct All;

impl Containers for All {
    fn container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        Some(ContainerId { session: SessionId([9; 16]), ordinal: ordinal.0 })
    }

    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        Some(Ordinal(container.ordinal))
    }

    fn len_of(&self, _container: ContainerId) -> Option<u64> {
        Some(1)
    }

    fn is_live(&self, _container: Ordinal) -> bool {
        true
    }

    fn live(&self) -> Live {
        Arc::new(|_| true)
    }

    fn begin_sync(&mut self) -> onefold_engine::Result<SyncContainers> {
        Ok(Arc::new(|| Ok(())))
    }
}

/// Returns the n-th entry.
pub(crate) fn entry(number: u64) -> Entry {
    let hash = blake3::hash(&number.to_le_bytes());
    Entry { key: Key(*hash.as_bytes().first_chunk().unwrap()), ordinal: Ordinal(1), position: Position(number) }
}
