//! Sealing of journals: files outside the repository that hold writes which are not in a snapshot yet.

use crate::crypto::{Domain, Keys, ObjectKey, TAG_LEN};
use crate::types::RepositoryId;

/// Bytes of the tag that follows a sealed frame.
pub const JOURNAL_TAG_BYTES: usize = TAG_LEN;

/// Key of one segment of a journal: BLAKE3 `keyed_hash(journal key, salt || repository id)`.
///
/// A frame's number is the nonce. A number must not be sealed twice under a key, so each segment has a salt of its own, and a segment
/// that was interrupted is not continued.
#[derive(Debug)]
pub struct JournalKey(ObjectKey);

impl JournalKey {
    /// Derives the key of the segment with this salt.
    pub fn derive(keys: &Keys, salt: &[u8; 32], repository: RepositoryId) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(keys.journal());
        hasher.update(salt);
        hasher.update(&repository.0);
        Self(ObjectKey::from_bytes(hasher.finalize().as_bytes()))
    }

    /// Returns the commitment to the key, for the header of the segment.
    pub fn commitment(&self) -> [u8; 32] {
        *self.0.commitment()
    }

    /// Returns true if a header commits to this key, in constant time.
    pub fn is_committed(&self, commitment: &[u8; 32]) -> bool {
        self.0.is_committed(commitment)
    }

    /// Encrypts a frame in place; returns its tag. `header` is authenticated with it.
    pub fn seal(&self, number: u64, header: &[u8], body: &mut [u8]) -> [u8; JOURNAL_TAG_BYTES] {
        self.0.seal_separate(Domain::Journal, number, header, body)
    }

    /// Checks and decrypts a frame with its tag in place; returns the body, or `None` if it was not sealed with this number and header.
    pub fn open<'a>(&self, number: u64, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        self.0.open(Domain::Journal, number, header, sealed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::MasterKey;

    #[test]
    fn a_frame_opens_under_its_segment_number_and_header_only() {
        let repository = RepositoryId([1; 16]);
        let keys = Keys::derive(&MasterKey([7; 32]), repository);
        let key = |salt| JournalKey::derive(&keys, &[salt; 32], repository);
        assert!(key(1).is_committed(&key(1).commitment()) && !key(2).is_committed(&key(1).commitment()));
        let mut body = b"a write".to_vec();
        let tag = key(1).seal(5, b"header", &mut body);
        body.extend_from_slice(&tag);
        let open = |salt, number, header: &[u8], flipped: usize| {
            let mut copy = body.clone();
            copy[flipped] ^= u8::from(flipped != 0);
            key(salt).open(number, header, &mut copy).map(|body| body.to_vec())
        };
        assert_eq!(open(1, 5, b"header", 0).as_deref(), Some(&b"a write"[..]));
        assert_eq!(open(2, 5, b"header", 0), None);
        assert_eq!(open(1, 6, b"header", 0), None);
        assert_eq!(open(1, 5, b"Header", 0), None);
        assert_eq!(open(1, 5, b"header", 3), None);
    }
}
