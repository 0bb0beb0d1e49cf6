//! What the device under the index can do: measured at the first opening that finds a table to measure on, and kept.
//!
//! File `device` of the index; without it, or once it is removed, the device is measured again.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | `OFDEVICE` |
//! | 8 | 8 | reads of 4 KiB a second, one after the other |
//! | 16 | 8 | the same, many in flight |
//! | 24 | 8 | bytes a second, in order |
//! | 32 | 4 | CRC32C of all that precedes |
#![deny(clippy::indexing_slicing)]

use std::path::Path;

use crate::error::Result;
use crate::io::{Access, DeviceProfile, Disk};
use crate::kv::Fields;

const MAGIC: [u8; 8] = *b"OFDEVICE";
const BYTES: usize = 36;

fn encode(profile: &DeviceProfile) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for rate in [profile.random_reads_per_s_single, profile.random_reads_per_s_deep, profile.sequential_bytes_per_s] {
        bytes.extend_from_slice(&rate.to_le_bytes());
    }
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<DeviceProfile> {
    let checksum = crc32c::crc32c(bytes.get(..BYTES - 4)?);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return None;
    }
    let profile = DeviceProfile {
        random_reads_per_s_single: fields.u64()?,
        random_reads_per_s_deep: fields.u64()?,
        sequential_bytes_per_s: fields.u64()?,
    };
    (fields.u32()? == checksum && fields.left() == 0).then_some(profile)
}

/// Returns the profile of the device under the index in `dir`; `None` if there is nothing to measure on yet.
pub(super) fn profile(disk: &dyn Disk, dir: &Path) -> Option<DeviceProfile> {
    let path = dir.join("device");
    // Whatever fails here costs a measurement, or the knowledge.
    recorded(disk, &path).ok().flatten().or_else(|| {
        let profile = disk.measure(&dir.join("table")).ok().flatten()?;
        let _ = record(disk, &path, &profile);
        Some(profile)
    })
}

fn recorded(disk: &dyn Disk, path: &Path) -> Result<Option<DeviceProfile>> {
    if !disk.exists(path)? {
        return Ok(None);
    }
    let file = disk.open(path, Access::Read)?;
    let mut bytes = [0; BYTES];
    file.read_at(0, &mut bytes)?;
    Ok(decode(&bytes))
}

fn record(disk: &dyn Disk, path: &Path, profile: &DeviceProfile) -> Result<()> {
    let file = if disk.exists(path)? { disk.open(path, Access::ReadWrite)? } else { disk.create(path)? };
    file.write_at(0, &encode(profile))
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn profiles_come_back_and_every_changed_bit_shows() {
        let profile = DeviceProfile {
            random_reads_per_s_single: 19_000,
            random_reads_per_s_deep: 89_000,
            sequential_bytes_per_s: 2_000_000_000,
        };
        let mut bytes = encode(&profile);
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(decode(&bytes), Some(profile));
        for bit in 0..BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(decode(&bytes[..20]), None);
    }
}
