//! Chunks found where a reference says that they are.
//!
//! References mostly come in the order in which chunks were stored, so that the next thousands are in the directory of
//! one container. Asking that directory first spares the spilled map of all chunks a read for each of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::store::Store;
use crate::store::containers::Listing;
use crate::store::lru::Lru;
use crate::types::{ContainerId, Fingerprint};

/// Memory that a chunk of a directory takes here.
const CHUNK_BYTES: usize = 64;

/// Directories of containers that were referred to last, by chunk.
#[derive(Debug)]
pub(super) struct HintedChunks {
    directories: Lru<ContainerId, Arc<HashMap<Fingerprint, u32>>>,
    last: Option<ContainerId>,
}

impl HintedChunks {
    /// Keeps directories in so many bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { directories: Lru::new(bytes_max), last: None }
    }

    /// Returns the length of a chunk if the container's directory is held and has it. A directory is read when a second
    /// reference in a row names its container: scattered references would read one for each chunk.
    pub(super) fn find(
        &mut self,
        store: &Store,
        live: &Listing,
        id: ContainerId,
        fingerprint: &Fingerprint,
    ) -> Option<u32> {
        let is_again = self.last.replace(id) == Some(id);
        if let Some(chunks) = self.directories.get(&id) {
            return chunks.get(fingerprint).copied();
        }
        let name = live.find(id).filter(|_| is_again)?;
        // One that cannot be opened was found out before: the map of all chunks knows what it held.
        let container = store.open_container(name).ok()?;
        let known = container.directory.chunks.iter().filter_map(|chunk| Some((chunk.fingerprint?, chunk.len)));
        let chunks: HashMap<_, _> = known.collect();
        let bytes = chunks.len() * CHUNK_BYTES;
        let len = chunks.get(fingerprint).copied();
        self.directories.insert(id, Arc::new(chunks), bytes);
        len
    }
}
