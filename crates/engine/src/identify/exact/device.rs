//! The device profile of the disk under the index, measured at the first opening that finds entries.
//!
//! The file `device` of the index keeps it; if the file is missing, the device is measured again.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | `OFDEVICE` |
//! | 8 | 8 | single reads of 4 KiB a second |
//! | 16 | 8 | concurrent reads of 4 KiB a second |
//! | 24 | 8 | sequential bytes a second |
//! | 32 | 4 | CRC32C of all that precedes |
#![deny(clippy::indexing_slicing)]

use std::path::Path;

use crate::identify::exact::directory::open_or_create;
use crate::identify::locality::frame::with_checksum;
use crate::io::{Access, DeviceProfile, Disk};
use crate::kv::Fields;

const MAGIC: [u8; 8] = *b"OFDEVICE";
const BYTES: usize = 36;

fn encode(profile: &DeviceProfile) -> Vec<u8> {
    let rates = [profile.random_reads_per_s_single, profile.random_reads_per_s_deep, profile.sequential_bytes_per_s];
    let [single, deep, sequential] = rates.map(u64::to_le_bytes);
    with_checksum(&[&MAGIC, &single, &deep, &sequential])
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

/// Returns the profile of the device under the index in `dir`, measured on one of its files; `None` if there is too little
/// to measure yet.
pub(in crate::identify) fn profile(disk: &dyn Disk, dir: &Path, file: &str) -> Option<DeviceProfile> {
    let path = dir.join("device");
    // A failure costs another measurement, or the profile.
    recorded(disk, &path).or_else(|| {
        let profile = disk.measure(&dir.join(file)).ok().flatten()?;
        let _ = open_or_create(disk, &path).and_then(|file| file.write_at(0, &encode(&profile)));
        Some(profile)
    })
}

fn recorded(disk: &dyn Disk, path: &Path) -> Option<DeviceProfile> {
    let mut bytes = [0; BYTES];
    disk.open(path, Access::Read).ok()?.read_at(0, &mut bytes).ok()?;
    decode(&bytes)
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
