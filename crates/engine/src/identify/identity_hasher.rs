//! The identity hasher, for maps of fingerprints in memory.

use std::hash::{BuildHasherDefault, Hasher};

/// Returns bits of the fingerprint as its hash: fingerprints are keyed, so nobody can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Bytes 8 to 15, on which the bucket does not depend.
        if let Some(middle) = bytes.get(8..).and_then(|bytes| bytes.first_chunk()) {
            self.0 = u64::from_le_bytes(*middle);
        }
    }

    fn write_usize(&mut self, _len: usize) {}
}

/// Builds identity hashers.
pub type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;
