//! Sealing messages under a key that belongs to one object.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::crypto::keys::{Keys, Purpose};
use crate::types::RepositoryId;

/// Bytes that sealing adds to a message.
pub(crate) const TAG_LEN: usize = 16;

/// What a message within an object is. With a counter it makes the nonce, so that no two messages share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Domain {
    /// A region; the counter is its number in the container.
    Region,
    /// The front directory of a container.
    FrontDirectory,
    /// The back directory of a container.
    BackDirectory,
    /// The body of a small object.
    Body,
    /// The master key in a key slot.
    Slot,
    /// A page of spilled state outside the repository; the counter is its number.
    Spill,
    /// A frame of a journal outside the repository; the counter is its number.
    Journal,
}

impl Domain {
    fn code(self) -> u32 {
        match self {
            Self::Region => 1,
            Self::FrontDirectory => 2,
            Self::BackDirectory => 3,
            Self::Body => 4,
            Self::Slot => 5,
            Self::Spill => 6,
            Self::Journal => 7,
        }
    }
}

/// A message was not sealed under this key, domain and counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotAuthentic;

/// The key of one object.
#[derive(Debug)]
pub(crate) struct ObjectKey {
    cipher: LessSafeKey,
    commitment: blake3::Hash,
}

impl ObjectKey {
    /// Derives the key of the object with this salt and type code.
    pub(crate) fn derive(
        keys: &Keys,
        purpose: Purpose,
        salt: &[u8; 32],
        repository: RepositoryId,
        object_type: u8,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(keys.sealing(purpose));
        hasher.update(salt);
        hasher.update(&repository.0);
        hasher.update(&[object_type]);
        Self::from_bytes(hasher.finalize().as_bytes())
    }

    /// Uses a key derived elsewhere.
    pub(crate) fn from_bytes(key: &[u8; 32]) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 takes 32 bytes");
        // GCM does not commit to its key: two keys can open one message. The commitment rules that out.
        Self { cipher: LessSafeKey::new(unbound), commitment: blake3::keyed_hash(key, b"commit") }
    }

    /// Returns what stands in the object's header to prove that the key is the right one.
    pub(crate) fn commitment(&self) -> &[u8; 32] {
        self.commitment.as_bytes()
    }

    /// Says, in constant time, whether a header commits to this key.
    pub(crate) fn is_committed(&self, commitment: &[u8; 32]) -> bool {
        self.commitment == *commitment
    }

    /// Encrypts in place and appends the tag. `start` is where the message begins in the buffer.
    pub(crate) fn seal(&self, domain: Domain, counter: u64, aad: &[u8], buffer: &mut Vec<u8>, start: usize) {
        buffer.resize(buffer.len() + TAG_LEN, 0);
        self.seal_in_place(
            domain,
            counter,
            aad,
            buffer.get_mut(start..).expect("the message begins inside the buffer"),
        );
    }

    /// Encrypts a message in place. The last [`TAG_LEN`] bytes of the buffer follow the message and take the tag.
    pub(crate) fn seal_in_place(&self, domain: Domain, counter: u64, aad: &[u8], buffer: &mut [u8]) {
        let (message, tail) = buffer.split_last_chunk_mut::<TAG_LEN>().expect("there is room for the tag");
        *tail = self.seal_separate(domain, counter, aad, message);
    }

    /// Encrypts a message in place; returns its tag.
    pub(crate) fn seal_separate(&self, domain: Domain, counter: u64, aad: &[u8], message: &mut [u8]) -> [u8; TAG_LEN] {
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce(domain, counter), Aad::from(aad), message)
            .expect("messages are far below the limit of the cipher");
        tag.as_ref().try_into().expect("a tag of GCM has 16 bytes")
    }

    /// Encrypts a message into a buffer that is as long as the message and the tag.
    pub(crate) fn seal_into(&self, domain: Domain, counter: u64, aad: &[u8], message: &[u8], buffer: &mut [u8]) {
        let (sealed, tail) = buffer.split_last_chunk_mut::<TAG_LEN>().expect("there is room for the tag");
        self.cipher
            .seal_out_of_place_scatter(nonce(domain, counter), Aad::from(aad), message, sealed, &[], tail)
            .expect("the room is as long as the message, which is far below the limit of the cipher");
    }

    /// Checks and decrypts a message into a buffer that is shorter by the tag. After an error its contents are arbitrary.
    pub(crate) fn open_into(
        &self,
        domain: Domain,
        counter: u64,
        aad: &[u8],
        sealed: &[u8],
        buffer: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let (message, tag) = sealed.split_last_chunk::<TAG_LEN>().ok_or(NotAuthentic)?;
        let nonce = nonce(domain, counter);
        self.cipher.open_separate_gather(nonce, Aad::from(aad), message, tag, buffer).map_err(|_| NotAuthentic)
    }

    /// Checks and decrypts in place; returns the plaintext, which is shorter by the tag.
    pub(crate) fn open<'a>(
        &self,
        domain: Domain,
        counter: u64,
        aad: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], NotAuthentic> {
        self.cipher.open_in_place(nonce(domain, counter), Aad::from(aad), sealed).map_err(|_| NotAuthentic)
    }
}

fn nonce(domain: Domain, counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    let (front, back) = bytes.split_at_mut(4);
    front.copy_from_slice(&domain.code().to_le_bytes());
    back.copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keys::MasterKey;

    fn key(salt: u8) -> ObjectKey {
        let keys = Keys::derive(&MasterKey([7; 32]), RepositoryId([1; 16]));
        ObjectKey::derive(&keys, Purpose::Data, &[salt; 32], RepositoryId([1; 16]), 1)
    }

    #[test]
    fn a_message_opens_only_where_it_was_sealed() {
        let mut sealed = b"headmessage".to_vec();
        key(1).seal(Domain::Region, 3, b"aad", &mut sealed, 4);
        let message = &sealed[4..];
        let open = |key: &ObjectKey, domain, counter, aad: &[u8]| {
            let mut copy = message.to_vec();
            key.open(domain, counter, aad, &mut copy).map(|plain| plain.to_vec())
        };
        assert_eq!(open(&key(1), Domain::Region, 3, b"aad").unwrap(), b"message");
        assert_eq!(open(&key(2), Domain::Region, 3, b"aad"), Err(NotAuthentic));
        assert_eq!(open(&key(1), Domain::Body, 3, b"aad"), Err(NotAuthentic));
        assert_eq!(open(&key(1), Domain::Region, 4, b"aad"), Err(NotAuthentic));
        assert_eq!(open(&key(1), Domain::Region, 3, b"dad"), Err(NotAuthentic));
    }

    #[test]
    fn sealing_between_buffers_gives_the_same_bytes_as_within_one() {
        for len in [0, 1, 15, 16, 17, 1000, 70_000] {
            let message: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let mut in_place = message.clone();
            key(1).seal(Domain::Region, 3, b"aad", &mut in_place, 0);
            let mut sealed = vec![0xff; len + TAG_LEN];
            key(1).seal_into(Domain::Region, 3, b"aad", &message, &mut sealed);
            assert_eq!(sealed, in_place);
            let mut opened = vec![0xff; len];
            let mut open = |sealed: &[u8], aad| key(1).open_into(Domain::Region, 3, aad, sealed, &mut opened);
            assert_eq!(open(&sealed, b"dad"), Err(NotAuthentic));
            assert_eq!(open(&sealed[..sealed.len() - 1], b"aad"), Err(NotAuthentic));
            assert_eq!(open(&sealed[..TAG_LEN - 1], b"aad"), Err(NotAuthentic));
            for at in [0, len, len + TAG_LEN - 1] {
                sealed[at] ^= 1;
                assert_eq!(open(&sealed, b"aad"), Err(NotAuthentic), "byte {at} of {len}");
                sealed[at] ^= 1;
            }
            assert_eq!(open(&sealed, b"aad"), Ok(()));
            assert_eq!(opened, message);
        }
    }

    #[test]
    fn commitments_tell_keys_apart() {
        assert!(key(1).is_committed(key(1).commitment()));
        assert!(!key(1).is_committed(key(2).commitment()));
    }
}
