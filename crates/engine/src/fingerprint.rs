//! Naming chunks in batches.

use std::fmt::Debug;

use onefold_accel::device::NameHash;

use crate::crypto::Keys;
use crate::types::{ChunkKind, Fingerprint};

/// Names every chunk of a batch of source bytes, in order. `out` is appended to.
///
/// A chunk's fingerprint is the keyed BLAKE3 of its bytes, in encrypted and unencrypted repositories alike, so that
/// nobody outside can prepare collisions or crowd one bucket of the table.
pub(crate) fn fingerprint_batch<'a>(keys: &Keys, chunks: impl Iterator<Item = &'a [u8]>, out: &mut Vec<Fingerprint>) {
    let chunks: Vec<_> = chunks.collect();
    out.append(&mut keys.fingerprints(ChunkKind::Data, &chunks));
}

/// What names the chunks of a source.
pub trait Fingerprinter: Debug + Send + Sync {
    /// Returns the name of each of a batch of chunks, in order.
    fn name(&self, chunks: &[&[u8]]) -> Vec<Fingerprint>;

    /// Returns the hash by which a device computes the same names, if there is one.
    fn on_device(&self) -> Option<NameHash> {
        None
    }
}

/// As in a repository with these keys.
impl Fingerprinter for Keys {
    fn name(&self, chunks: &[&[u8]]) -> Vec<Fingerprint> {
        self.fingerprints(ChunkKind::Data, chunks)
    }

    fn on_device(&self) -> Option<NameHash> {
        Some(NameHash::Blake3(*self.data_fingerprinter()))
    }
}
