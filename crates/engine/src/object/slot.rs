//! The stored form of key slots.

use crate::codec::{Decoded, Reader, len_u32};
use crate::crypto::slot::{PasswordCost, SLOT_BODY_LEN_MAX, SLOT_BODY_LEN_MIN, Slot};
use crate::error::{Error, Result};
use crate::object::header::{FormatVersion, ObjectType, check_preamble, put_preamble};
use crate::types::{RepositoryId, Timestamp};

const CHECKSUM_LEN: usize = 32;
/// The only kind of slot so far: a password through Argon2id.
const KIND_PASSWORD: u8 = 1;
/// The longest stored slot in bytes.
pub(crate) const SLOT_LEN_MAX: usize = 2 * SLOT_BODY_LEN_MAX + 256;

/// Returns the stored form of a slot.
pub(crate) fn encode_slot(repository: RepositoryId, slot: &Slot) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let version = if slot.sealed_label.is_empty() { FormatVersion::V1 } else { FormatVersion::V2 };
    put_preamble(version, ObjectType::Slot, &mut out);
    out.extend_from_slice(&repository.0);
    out.extend_from_slice(&slot.id);
    out.push(KIND_PASSWORD);
    out.extend_from_slice(&[0; 3]);
    out.extend_from_slice(&slot.key_epoch.to_le_bytes());
    out.extend_from_slice(&slot.created.seconds.to_le_bytes());
    out.extend_from_slice(&slot.cost.memory_kib.to_le_bytes());
    out.extend_from_slice(&slot.cost.passes.to_le_bytes());
    out.extend_from_slice(&slot.cost.lanes.to_le_bytes());
    out.extend_from_slice(&slot.salt);
    out.extend_from_slice(&slot.commitment);
    out.extend_from_slice(&len_u32(slot.sealed.len()).to_le_bytes());
    out.extend_from_slice(&slot.sealed);
    if version == FormatVersion::V2 {
        out.extend_from_slice(&len_u32(slot.sealed_label.len()).to_le_bytes());
        out.extend_from_slice(&slot.sealed_label);
    }
    let checksum = blake3::hash(&out);
    out.extend_from_slice(checksum.as_bytes());
    out
}

/// Reads the stored form of a slot; also returns the repository it belongs to. `object` is its name for messages.
pub(crate) fn decode_slot(object: &str, bytes: &[u8]) -> Result<(RepositoryId, Slot)> {
    let (version, ObjectType::Slot) = check_preamble(object, bytes)? else {
        return Err(Error::damaged(object, "is not a key slot"));
    };
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else {
        return Err(Error::damaged(object, "ends too early"));
    };
    if blake3::hash(body) != *checksum {
        return Err(Error::damaged(object, "its checksum is wrong"));
    }
    decode_body(version, body).map_err(|error| error.of(object))
}

fn decode_body(version: FormatVersion, body: &[u8]) -> Decoded<(RepositoryId, Slot)> {
    let mut reader = Reader::new(body);
    reader.bytes(8)?;
    let repository = RepositoryId(reader.array()?);
    let id = reader.array()?;
    if reader.u8()? != KIND_PASSWORD {
        return Err(reader.error("unknown kind of key slot"));
    }
    if reader.array()? != [0; 3] {
        return Err(reader.error("reserved bytes are not zero"));
    }
    let key_epoch = reader.u32()?;
    if key_epoch != 0 {
        return Err(reader.error("key epoch that this version does not know"));
    }
    let created = Timestamp { seconds: reader.i64()?, nanoseconds: 0 };
    let cost = PasswordCost { memory_kib: reader.u32()?, passes: reader.u32()?, lanes: reader.u32()? };
    let (salt, commitment) = (reader.array()?, reader.array()?);
    let sealed = read_sealed(&mut reader, SLOT_BODY_LEN_MIN)?;
    let sealed_label = if version == FormatVersion::V1 { Vec::new() } else { read_sealed(&mut reader, 1)? };
    reader.finish()?;
    Ok((repository, Slot { id, created, cost, salt, commitment, key_epoch, sealed, sealed_label }))
}

fn read_sealed(reader: &mut Reader<'_>, len_min: usize) -> Decoded<Vec<u8>> {
    let len = reader.count32(1)?;
    if !(len_min..=SLOT_BODY_LEN_MAX).contains(&len) {
        return Err(reader.error("sealed key or label of an impossible length"));
    }
    Ok(reader.bytes(len)?.to_vec())
}
