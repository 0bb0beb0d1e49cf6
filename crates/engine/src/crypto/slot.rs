//! Key slots: the master key, wrapped by a password.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use rayon::iter::ParallelExtend;
use zeroize::Zeroizing;

use crate::codec::{Decoded, Reader, put_string};
use crate::crypto::keys::{Keys, MasterKey, Purpose};
use crate::crypto::seal::{Domain, ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::types::{RepositoryId, Timestamp};

/// Cost of deriving a key from a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PasswordCost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Default for PasswordCost {
    /// RFC 9106's second recommended choice, 64 MiB: the first needs 2 GiB, more than small machines have.
    fn default() -> Self {
        Self { memory_kib: 64 * 1024, passes: 3, lanes: 4 }
    }
}

/// The most memory a slot may ask for when it is opened: a hostile slot must not exhaust the machine.
pub const SLOT_MEMORY_KIB_MAX: u32 = 4 * 1024 * 1024;
/// The most passes a slot may ask for when it is opened.
const SLOT_PASSES_MAX: u32 = 32;
/// The most lanes a slot may ask for when it is opened.
const SLOT_LANES_MAX: u32 = 64;
/// The code of slots as a type of object.
const SLOT_TYPE: u8 = 8;
/// The longest sealed body, and the longest sealed label, of a slot in bytes.
pub(crate) const SLOT_BODY_LEN_MAX: usize = 4096;

/// For people: who made a slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotLabel {
    /// Who made it.
    pub user: String,
    /// On which host.
    pub host: String,
}

/// A key slot as it is stored, its master key still sealed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Random name of the slot.
    pub id: [u8; 16],
    /// When it was made.
    pub created: Timestamp,
    /// Cost of opening it.
    pub cost: PasswordCost,
    /// Salt of the password.
    pub salt: [u8; 32],
    /// Commitment of the wrapping key.
    pub(crate) commitment: [u8; 32],
    /// Epoch of the master key.
    pub(crate) key_epoch: u32,
    /// The master key, sealed with the password.
    pub(crate) sealed: Vec<u8>,
    /// The label, sealed with the master key. Empty in slots of version 1.
    pub(crate) sealed_label: Vec<u8>,
}

impl Slot {
    /// Wraps the master key with a password.
    pub(crate) fn wrap(
        mut unsealed: Slot,
        repository: RepositoryId,
        password: &[u8],
        key: &MasterKey,
        label: &SlotLabel,
    ) -> Result<Slot> {
        let wrapping = wrapping_key(&unsealed, repository, password)?;
        unsealed.commitment = *wrapping.commitment();
        let aad = unsealed.aad(repository);
        unsealed.sealed = Vec::with_capacity(SLOT_BODY_LEN_MIN);
        unsealed.sealed.extend_from_slice(&key.0);
        wrapping.seal(Domain::Slot, 0, &aad, &mut unsealed.sealed, 0);
        let mut sealed = Vec::new();
        put_string(&mut sealed, label.user.as_bytes());
        put_string(&mut sealed, label.host.as_bytes());
        unsealed.label_key(&Keys::derive(key, repository), repository).seal(Domain::Slot, 0, &aad, &mut sealed, 0);
        unsealed.sealed_label = sealed;
        Ok(unsealed)
    }

    /// Opens the slot. `None`: the password is another one.
    pub(crate) fn unwrap(&self, repository: RepositoryId, password: &[u8]) -> Result<Option<MasterKey>> {
        let wrapping = wrapping_key(self, repository, password)?;
        if !wrapping.is_committed(&self.commitment) {
            return Ok(None);
        }
        let mut body = Zeroizing::new(self.sealed.clone());
        let name = format!("key slot {}", hex(&self.id));
        let Ok(plain) = wrapping.open(Domain::Slot, 0, &self.aad(repository), &mut body) else {
            return Err(Error::damaged(name, "the sealed key does not open although the password is right"));
        };
        Reader::new(plain).array().map(|key| Some(MasterKey(key))).map_err(|error| error.of(name))
    }

    /// Returns the label. `None`: it does not open with the keys of the repository.
    pub fn label(&self, keys: &Keys, repository: RepositoryId) -> Option<SlotLabel> {
        let mut sealed = self.sealed_label.clone();
        let plain = self.label_key(keys, repository).open(Domain::Slot, 0, &self.aad(repository), &mut sealed).ok()?;
        decode_label(plain).ok()
    }

    fn label_key(&self, keys: &Keys, repository: RepositoryId) -> ObjectKey {
        ObjectKey::derive(keys, Purpose::Object, &self.salt, repository, SLOT_TYPE)
    }

    fn aad(&self, repository: RepositoryId) -> Vec<u8> {
        let mut aad = Vec::with_capacity(128);
        aad.extend_from_slice(&repository.0);
        aad.extend_from_slice(&self.id);
        aad.extend_from_slice(&self.salt);
        aad.extend_from_slice(&self.commitment);
        aad.extend_from_slice(&self.key_epoch.to_le_bytes());
        aad.extend_from_slice(&self.created.seconds.to_le_bytes());
        aad
    }
}

fn decode_label(plain: &[u8]) -> Decoded<SlotLabel> {
    let mut reader = Reader::new(plain);
    let mut text = || Ok(String::from_utf8_lossy(reader.string(SLOT_BODY_LEN_MAX)?).into_owned());
    Ok(SlotLabel { user: text()?, host: text()? })
}

fn wrapping_key(slot: &Slot, repository: RepositoryId, password: &[u8]) -> Result<ObjectKey> {
    let name = || format!("key slot {}", hex(&slot.id));
    let PasswordCost { memory_kib, passes, lanes } = slot.cost;
    if SLOT_MEMORY_KIB_MAX < memory_kib || SLOT_PASSES_MAX < passes || SLOT_LANES_MAX < lanes {
        return Err(Error::damaged(name(), "asks for more work than any honest slot"));
    }
    let params = Params::new(memory_kib, passes, lanes, Some(32))
        .map_err(|error| Error::damaged(name(), format!("password cost: {error}")))?;
    let mut derived = Zeroizing::new([0; 32]);
    derive(params, password, &slot.salt, &mut *derived).map_err(|error| match error {
        argon2::Error::OutOfMemory => {
            Error::invalid(format!("out of memory: trying a password takes {} MiB", memory_kib.div_ceil(1024)))
        }
        error => Error::invalid(format!("the password cannot be used: {error}")),
    })?;
    let mut hasher = blake3::Hasher::new_derive_key("onefold v1 key slot");
    hasher.update(&*derived);
    hasher.update(&repository.0);
    hasher.update(&slot.id);
    Ok(ObjectKey::from_bytes(hasher.finalize().as_bytes()))
}

/// Derives a key with one thread for each lane of Argon2, at most one for each processor, since every command waits for
/// this. If the system refuses threads, the calling thread computes all lanes.
fn derive(params: Params, password: &[u8], salt: &[u8], derived: &mut [u8]) -> argon2::Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(params.p_cost() as usize);
    let blocks = params.block_count();
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let mut compute = || {
        let mut memory = Vec::new();
        let reserved = onefold_sys::answer_refusals(|| memory.try_reserve_exact(blocks));
        reserved.map_err(|_full| argon2::Error::OutOfMemory)?;
        onefold_sys::advise_huge_pages(&memory);
        // Filled by all threads, since the kernel clears each page that it gives out.
        memory.par_extend(rayon::iter::repeat_n(Block::default(), blocks));
        argon2.hash_password_into_with_memory(password, salt, derived, &mut memory)
    };
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(compute),
        Err(_refused) => {
            // A pool of the caller's thread alone starts none. An error means that the thread is in such a pool already.
            let _alone = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
            compute()
        }
    }
}

/// Bytes of the sealed master key.
pub(crate) const SLOT_BODY_LEN_MIN: usize = 32 + TAG_LEN;

/// Writes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        let unsealed = Slot {
            id: [3; 16],
            created: Timestamp::default(),
            cost: PasswordCost { memory_kib: 64, passes: 1, lanes: 1 },
            salt: [4; 32],
            ..Slot::default()
        };
        let label = SlotLabel { user: "u".into(), host: "h".into() };
        Slot::wrap(unsealed, RepositoryId([1; 16]), b"secret", &MasterKey([9; 32]), &label).unwrap()
    }

    #[test]
    fn only_the_password_opens_a_slot() {
        assert_eq!(slot().unwrap(RepositoryId([1; 16]), b"secret").unwrap().unwrap().0, [9; 32]);
        assert!(slot().unwrap(RepositoryId([1; 16]), b"Secret").unwrap().is_none());
    }

    #[test]
    fn the_master_key_opens_the_label_of_its_own_slot_alone() {
        let repository = RepositoryId([1; 16]);
        let keys = |key| Keys::derive(&MasterKey([key; 32]), repository);
        assert_eq!(slot().label(&keys(9), repository), Some(SlotLabel { user: "u".into(), host: "h".into() }));
        assert_eq!(slot().label(&keys(8), repository), None);
        assert_eq!(Slot { id: [5; 16], ..slot() }.label(&keys(9), repository), None);
        let mut damaged = slot();
        damaged.sealed_label[1] ^= 1;
        assert_eq!(damaged.label(&keys(9), repository), None);
        assert_eq!(Slot { sealed_label: Vec::new(), ..slot() }.label(&keys(9), repository), None);
    }

    #[test]
    fn a_slot_that_asks_for_too_much_is_refused_before_anything_is_allocated() {
        let mut hostile = slot();
        hostile.cost.memory_kib = u32::MAX;
        assert!(matches!(hostile.unwrap(RepositoryId([1; 16]), b"secret"), Err(Error::Damaged { .. })));
    }
}
