//! Key slots: the master key, wrapped by a password.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use rayon::iter::ParallelExtend;
use zeroize::Zeroizing;

use crate::codec::{Decoded, Reader, put_string};
use crate::crypto::keys::MasterKey;
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
/// The longest sealed body of a slot in bytes.
pub(crate) const SLOT_BODY_LEN_MAX: usize = 4096;

/// Contents of an open slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotLabel {
    /// Who made it.
    pub user: String,
    /// On which host.
    pub host: String,
}

/// A key slot as it is stored, its master key still sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// The sealed master key and label.
    pub(crate) sealed: Vec<u8>,
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
        let mut body = Zeroizing::new(Vec::with_capacity(256));
        body.extend_from_slice(&key.0);
        put_string(&mut body, label.user.as_bytes());
        put_string(&mut body, label.host.as_bytes());
        wrapping.seal(Domain::Slot, 0, &unsealed.aad(repository), &mut body, 0);
        unsealed.sealed = body.to_vec();
        Ok(unsealed)
    }

    /// Opens the slot. `None`: the password is another one.
    pub(crate) fn unwrap(&self, repository: RepositoryId, password: &[u8]) -> Result<Option<(MasterKey, SlotLabel)>> {
        let wrapping = wrapping_key(self, repository, password)?;
        if !wrapping.is_committed(&self.commitment) {
            return Ok(None);
        }
        let mut body = Zeroizing::new(self.sealed.clone());
        let name = format!("key slot {}", hex(&self.id));
        let Ok(plain) = wrapping.open(Domain::Slot, 0, &self.aad(repository), &mut body) else {
            return Err(Error::damaged(name, "the sealed key does not open although the password is right"));
        };
        decode_body(plain).map(Some).map_err(|error| error.of(name))
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

fn decode_body(plain: &[u8]) -> Decoded<(MasterKey, SlotLabel)> {
    let mut reader = Reader::new(plain);
    let key = MasterKey(reader.array()?);
    let mut text = || Ok(String::from_utf8_lossy(reader.string(SLOT_BODY_LEN_MAX)?).into_owned());
    let label = SlotLabel { user: text()?, host: text()? };
    Ok((key, label))
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

/// Bytes of the sealed body of a slot with an empty label.
pub(crate) const SLOT_BODY_LEN_MIN: usize = 32 + 2 + TAG_LEN;

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
            commitment: [0; 32],
            key_epoch: 0,
            sealed: Vec::new(),
        };
        let label = SlotLabel { user: "u".into(), host: "h".into() };
        Slot::wrap(unsealed, RepositoryId([1; 16]), b"secret", &MasterKey([9; 32]), &label).unwrap()
    }

    #[test]
    fn only_the_password_opens_a_slot() {
        let (key, label) = slot().unwrap(RepositoryId([1; 16]), b"secret").unwrap().unwrap();
        assert_eq!((key.0, label.user.as_str()), ([9; 32], "u"));
        assert!(slot().unwrap(RepositoryId([1; 16]), b"Secret").unwrap().is_none());
    }

    #[test]
    fn a_slot_that_asks_for_too_much_is_refused_before_anything_is_allocated() {
        let mut hostile = slot();
        hostile.cost.memory_kib = u32::MAX;
        assert!(matches!(hostile.unwrap(RepositoryId([1; 16]), b"secret"), Err(Error::Damaged { .. })));
    }
}
