//! The master key and what is derived from it.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::error::Result;
use crate::io::Host;
use crate::types::{ChunkKind, Fingerprint, RepositoryId};

/// The secret that everything in a repository is derived from. Wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterKey(pub [u8; 32]);

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl MasterKey {
    /// Draws a key.
    pub(crate) fn random(host: &dyn Host) -> Result<Self> {
        let mut key = Self([0; 32]);
        host.random(&mut key.0)?;
        Ok(key)
    }
}

/// What a subkey seals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Containers of source bytes.
    Data,
    /// Containers of trees and recipes.
    Metadata,
    /// Sessions, snapshots, and the records of forgetting and collecting.
    Object,
}

/// Subkeys of one repository. Wiped when dropped.
///
/// Derived as BLAKE3 `derive_key(context, master key || repository id)`; the contexts stand in `docs/format.md`.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Keys {
    fingerprint_data: [u8; 32],
    fingerprint_tree: [u8; 32],
    fingerprint_recipe: [u8; 32],
    chunk: [u8; 32],
    cut: [u8; 32],
    data: [u8; 32],
    metadata: [u8; 32],
    object: [u8; 32],
    salt: [u8; 32],
    commit: [u8; 32],
    journal: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Keys {
    /// Derives the subkeys of a repository.
    pub fn derive(master: &MasterKey, repository: RepositoryId) -> Self {
        let derive = |context: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            hasher.update(&master.0);
            hasher.update(&repository.0);
            *hasher.finalize().as_bytes()
        };
        Self {
            fingerprint_data: derive("onefold v1 fingerprint data"),
            fingerprint_tree: derive("onefold v1 fingerprint tree"),
            fingerprint_recipe: derive("onefold v1 fingerprint recipe"),
            chunk: derive("onefold v1 chunk"),
            cut: derive("onefold v1 tree cut"),
            data: derive("onefold v1 data"),
            metadata: derive("onefold v1 metadata"),
            object: derive("onefold v1 object"),
            salt: derive("onefold v1 salt"),
            commit: derive("onefold v1 commit"),
            journal: derive("onefold v1 journal"),
        }
    }

    /// Names a chunk by its plaintext.
    pub(crate) fn fingerprint(&self, kind: ChunkKind, plaintext: &[u8]) -> Fingerprint {
        Fingerprint(*blake3::keyed_hash(self.fingerprinter(kind), plaintext).as_bytes())
    }

    /// Names chunks by their plaintexts, in order; together they fill the lanes of the processor's vectors.
    pub fn fingerprints(&self, kind: ChunkKind, plaintexts: &[&[u8]]) -> Vec<Fingerprint> {
        let mut hashes = Vec::with_capacity(plaintexts.len());
        onefold_accel::fingerprint::keyed_hashes(self.fingerprinter(kind), plaintexts, &mut hashes);
        hashes.into_iter().map(Fingerprint).collect()
    }

    fn fingerprinter(&self, kind: ChunkKind) -> &[u8; 32] {
        match kind {
            ChunkKind::Data => &self.fingerprint_data,
            ChunkKind::Tree => &self.fingerprint_tree,
            ChunkKind::Recipe => &self.fingerprint_recipe,
        }
    }

    /// Returns the key that names chunks of source bytes.
    pub(crate) fn data_fingerprinter(&self) -> &[u8; 32] {
        self.fingerprinter(ChunkKind::Data)
    }

    /// Returns the key that the chunker's table is expanded from.
    pub fn chunk(&self) -> &[u8; 32] {
        &self.chunk
    }

    /// Returns the uniform value that decides whether a tree node is cut after an entry of this name.
    pub(crate) fn tree_cut_value(&self, name: &[u8]) -> u32 {
        Fingerprint(*blake3::keyed_hash(&self.cut, name).as_bytes()).prefix()
    }

    /// Returns the key that object keys of a purpose are derived from.
    pub(crate) fn sealing(&self, purpose: Purpose) -> &[u8; 32] {
        match purpose {
            Purpose::Data => &self.data,
            Purpose::Metadata => &self.metadata,
            Purpose::Object => &self.object,
        }
    }

    /// Makes the salt of a new object from fresh randomness and what the object is and holds, so that neither a weak
    /// generator nor a cloned machine uses a key for two different contents.
    pub(crate) fn salt(&self, random: &[u8; 32], identity: &[u8], contents: &[u8; 32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.salt);
        hasher.update(random);
        hasher.update(identity);
        hasher.update(contents);
        *hasher.finalize().as_bytes()
    }

    /// Returns the key that the keys of journal segments are derived from.
    pub(crate) fn journal(&self) -> &[u8; 32] {
        &self.journal
    }

    /// Authenticates the bytes of a small object.
    pub(crate) fn mac(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.commit, bytes)
    }
}
