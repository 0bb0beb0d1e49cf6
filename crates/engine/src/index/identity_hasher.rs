//! Hashing of fingerprints for maps in memory.

use std::hash::{BuildHasherDefault, Hasher};

/// Takes a fingerprint's own bits as its hash: fingerprints are keyed, nobody can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Bytes 8..16, which do not choose the bucket.
        if let Some(middle) = bytes.get(8..).and_then(|bytes| bytes.first_chunk()) {
            self.0 = u64::from_le_bytes(*middle);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write_usize(&mut self, _len: usize) {}
}

/// Hashes by the key's own bits.
pub type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;
