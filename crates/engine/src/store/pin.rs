//! Which repositories a host has seen at a path.
//!
//! Who can write to a repository's directory can put another repository in its place, an unencrypted one for example, of
//! which no password is asked. So the host's cache directory keeps, for each path, the identifiers of the repositories that were seen
//! there, as on disks that are used in turn, and whether each is encrypted. Losing these files loses only the comparison; whoever can
//! change them owns the cache.
//!
//! The pins of a path are the file `pins/<first 16 bytes of BLAKE3 of the path, in hexadecimal digits>`:
//! `magic[4] version:u16 encrypted:u8 0:u8 repository[16] len:u32 path[len]`, for each repository seen before `encrypted:u8
//! repository[16]`, the latest first, then BLAKE3-256 of everything before.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::codec::{Decoded, Reader, len_u32};
use crate::crypto::slot::hex;
use crate::error::{Error, Result};
use crate::io::{Disk, Host};
use crate::object::Config;
use crate::store::create::ConfigCopy;
use crate::store::host_file::{checked, replace_file};
use crate::store::read_file;
use crate::types::RepositoryId;

/// Directory of the pins in the cache directory.
pub(crate) const PINS: &str = "pins";
const MAGIC: [u8; 4] = *b"1FPN";
const VERSION: u16 = 1;
/// The longest path that is pinned, in bytes: that of Linux.
const PATH_LEN_MAX: usize = 4096;
/// Repositories that are remembered of a path: disks that are used in turn.
const PINS_MAX: usize = 64;
const PIN_LEN_MAX: usize = PATH_LEN_MAX + 64 + PINS_MAX * 17;

/// Encryption of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encryption {
    /// By at least one.
    Encrypted,
    /// The key is stored in the clear.
    None,
}

/// Identity of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pin {
    /// Its identifier.
    pub(crate) repository: RepositoryId,
    /// Its encryption.
    pub(crate) encryption: Encryption,
}

impl Pin {
    /// Returns the pin of a repository with this config.
    pub fn of(config: &Config) -> Self {
        let encryption = if config.clear_key.is_none() { Encryption::Encrypted } else { Encryption::None };
        Self { repository: config.repository, encryption }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.encryption {
            Encryption::Encrypted => "encrypted",
            Encryption::None => "unencrypted",
        };
        write!(f, "the {kind} repository {}", self.repository)
    }
}

/// Keeps the copies of a config that are of a repository seen before, the one seen last if there are several. Fails if there are some,
/// but of none of them.
pub fn admit(path: &str, seen: &[Pin], mut copies: Vec<ConfigCopy>) -> Result<Vec<ConfigCopy>> {
    let Some(last) = seen.first() else { return Ok(copies) };
    let is_of = |pin: &Pin, (_, _, config): &ConfigCopy| Pin::of(config) == *pin;
    let known = seen.iter().find(|pin| copies.iter().any(|copy| is_of(pin, copy)));
    match (known, copies.first()) {
        (None, Some((_, _, config))) => {
            Err(Error::Replaced { path: path.into(), seen: last.to_string(), found: Pin::of(config).to_string() })
        }
        (known, _) => {
            copies.retain(|copy| known.is_some_and(|pin| is_of(pin, copy)));
            Ok(copies)
        }
    }
}

fn file_of(path: &[u8]) -> PathBuf {
    let checksum = blake3::hash(path);
    let (short, _) = checksum.as_bytes().split_at(16);
    Path::new(PINS).join(hex(short))
}

/// Returns what was seen at a path, given by its bytes, the latest first. A damaged pin is an error, after which the path counts as
/// unseen.
pub fn read_pins(disk: &dyn Disk, path: &[u8]) -> Result<Vec<Pin>> {
    let file = file_of(path);
    let bytes = match read_file(disk, &file, PIN_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let object = disk.display(&file);
    let (pins, pinned) = decode(checked(&object, &bytes)?).map_err(|error| error.of(&object))?;
    if pinned != path {
        return Err(Error::damaged(object, "is of another path"));
    }
    Ok(pins)
}

fn decode(body: &[u8]) -> Decoded<(Vec<Pin>, Vec<u8>)> {
    let mut reader = Reader::new(body);
    if reader.array()? != MAGIC || reader.u16()? != VERSION {
        return Err(reader.error("not a pin"));
    }
    let encryption = decode_encryption(&mut reader)?;
    if reader.u8()? != 0 {
        return Err(reader.error("not a pin"));
    }
    let mut pins = vec![Pin { encryption, repository: RepositoryId(reader.array()?) }];
    let len = reader.count32(1)?;
    let path = reader.bytes(len)?.to_vec();
    while 0 < reader.remaining() {
        let encryption = decode_encryption(&mut reader)?;
        pins.push(Pin { encryption, repository: RepositoryId(reader.array()?) });
    }
    Ok((pins, path))
}

fn decode_encryption(reader: &mut Reader<'_>) -> Decoded<Encryption> {
    match reader.u8()? {
        0 => Ok(Encryption::None),
        1 => Ok(Encryption::Encrypted),
        _ => Err(reader.error("neither encrypted nor not")),
    }
}

/// Remembers the repository at a path, before those that were seen there. Where an encrypted one stands now, an unencrypted one that was
/// seen before is forgotten: no password is asked of it, so that the user has to accept it each time.
pub fn write_pin(disk: &dyn Disk, host: &dyn Host, path: &[u8], seen: &[Pin], pin: &Pin) -> Result<()> {
    if PATH_LEN_MAX < path.len() {
        return Err(Error::PathTooLong { len: path.len(), undone: "remembered" });
    }
    let code = |pin: &Pin| u8::from(pin.encryption == Encryption::Encrypted);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[code(pin), 0]);
    bytes.extend_from_slice(&pin.repository.0);
    bytes.extend_from_slice(&len_u32(path.len()).to_le_bytes());
    bytes.extend_from_slice(path);
    for other in seen.iter().filter(|other| *other != pin && code(pin) <= code(other)).take(PINS_MAX) {
        bytes.push(code(other));
        bytes.extend_from_slice(&other.repository.0);
    }
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    disk.create_dir(Path::new(PINS))?;
    replace_file(disk, host, &file_of(path), &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::MasterKey;
    use crate::io::Access;
    use crate::testing::sim::{SimDisk, SimHost};
    use crate::types::Timestamp;

    fn copy(id: u8, encryption: Encryption) -> ConfigCopy {
        let key = (encryption == Encryption::None).then_some(MasterKey([1; 32]));
        ("config", Vec::new(), Config::with_defaults(RepositoryId([id; 16]), Timestamp::default(), key))
    }

    #[test]
    fn pins_come_back_by_path_and_any_flipped_bit_is_noticed() {
        let (disk, host) = (SimDisk::new(), SimHost::new(1));
        let first = Pin { repository: RepositoryId([1; 16]), encryption: Encryption::Encrypted };
        let second = Pin { repository: RepositoryId([2; 16]), encryption: Encryption::None };
        assert_eq!(read_pins(&disk, b"/a").unwrap(), []);
        write_pin(&disk, &host, b"/a", &[], &first).unwrap();
        write_pin(&disk, &host, b"/b", &[], &second).unwrap();
        assert_eq!(read_pins(&disk, b"/a").unwrap(), [first]);
        assert_eq!(read_pins(&disk, b"/b").unwrap(), [second]);
        write_pin(&disk, &host, b"/a", &[first], &second).unwrap();
        assert_eq!(read_pins(&disk, b"/a").unwrap(), [second, first]);
        // An unencrypted one has to be accepted again after an encrypted one.
        write_pin(&disk, &host, b"/b", &[second, first], &first).unwrap();
        assert_eq!(read_pins(&disk, b"/b").unwrap(), [first]);
        let file = disk.open(&file_of(b"/a"), Access::ReadWrite).unwrap();
        for at in 0..file.len().unwrap() {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 1]).unwrap();
            assert!(read_pins(&disk, b"/a").is_err(), "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
        disk.rename(&file_of(b"/b"), &file_of(b"/a")).unwrap();
        assert!(read_pins(&disk, b"/a").is_err(), "a pin of another path");
    }

    #[test]
    fn only_copies_of_the_repository_seen_before_are_admitted() {
        let seen = Pin::of(&copy(1, Encryption::Encrypted).2);
        let disk_in_turn = Pin::of(&copy(3, Encryption::Encrypted).2);
        let admitted = |copies| admit("/r", &[seen, disk_in_turn], copies).map(|copies| copies.len());
        assert_eq!(admitted(vec![copy(1, Encryption::Encrypted)]).unwrap(), 1);
        assert_eq!(admitted(vec![copy(1, Encryption::None), copy(1, Encryption::Encrypted)]).unwrap(), 1);
        assert_eq!(admitted(vec![copy(3, Encryption::Encrypted), copy(2, Encryption::Encrypted)]).unwrap(), 1);
        for other in [copy(1, Encryption::None), copy(2, Encryption::Encrypted)] {
            let refused = admitted(vec![other]).unwrap_err().to_string();
            assert!(refused.contains(&seen.to_string()) && refused.starts_with("/r"), "{refused}");
        }
        assert_eq!(admit("/r", &[], vec![copy(2, Encryption::None)]).unwrap().len(), 1);
    }
}
