//! The header that every sealed object begins with.

use crate::codec::{DecodeError, Reader};
use crate::crypto::{Keys, ObjectKey, Purpose};
use crate::error::{Error, Result};
use crate::types::{RepositoryId, SessionId};

/// Bytes of a header.
pub const HEADER_LEN: usize = 128;
/// First bytes of every object.
pub(crate) const MAGIC: [u8; 4] = *b"1FLD";
/// Version of the format of an object. The default is that of a new repository.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum FormatVersion {
    /// The first.
    V1,
    /// Regions may be compressed against earlier ones, and directories are shorter.
    #[default]
    V2,
}

impl FormatVersion {
    /// The newest version that this program reads.
    pub const NEWEST: Self = Self::V2;

    /// Returns the number that stands for the version in objects.
    pub fn number(self) -> u16 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Returns the version with a number.
    pub fn from_number(number: u16) -> Option<Self> {
        [Self::V1, Self::V2].into_iter().find(|version| version.number() == number)
    }
}
/// AES-256-GCM with BLAKE3 throughout.
const SUITE: u8 = 1;

/// What an object is. The code is authenticated, so that no object passes for another kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectType {
    /// A container of source bytes.
    DataContainer,
    /// A container of trees and recipes.
    MetadataContainer,
    /// The start of a session.
    Session,
    /// The end of a session: a snapshot, a fence, or the end of a run that commits nothing.
    Commit,
    /// A snapshot's forgetting.
    Forget,
    /// A step of a garbage collection.
    Collection,
    /// The repository's parameters.
    Config,
    /// A key slot.
    Slot,
    /// The containers that a snapshot refers to.
    Manifest,
}

impl ObjectType {
    /// Returns the byte that stands for the type in the format.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::DataContainer => 1,
            Self::MetadataContainer => 2,
            Self::Session => 3,
            Self::Commit => 4,
            Self::Forget => 5,
            Self::Collection => 6,
            Self::Config => 7,
            Self::Slot => 8,
            Self::Manifest => 9,
        }
    }

    /// Returns the key family of the type.
    pub(crate) fn purpose(self) -> Purpose {
        match self {
            Self::DataContainer => Purpose::Data,
            Self::MetadataContainer => Purpose::Metadata,
            Self::Session
            | Self::Commit
            | Self::Forget
            | Self::Collection
            | Self::Config
            | Self::Slot
            | Self::Manifest => Purpose::Object,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [
            Self::DataContainer,
            Self::MetadataContainer,
            Self::Session,
            Self::Commit,
            Self::Forget,
            Self::Collection,
            Self::Config,
            Self::Slot,
            Self::Manifest,
        ]
        .into_iter()
        .find(|candidate| candidate.code() == code)
    }
}

/// The clear part of a sealed object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version of the format.
    pub(crate) format: FormatVersion,
    /// What the object is.
    pub(crate) object_type: ObjectType,
    /// The repository it belongs to.
    pub(crate) repository: RepositoryId,
    /// The session that wrote it.
    pub(crate) session: SessionId,
    /// Number of a container in its session; number of a collection's step; else 0.
    pub(crate) ordinal: u32,
    /// Epoch of the master key.
    pub(crate) key_epoch: u32,
    /// Makes the object's key.
    pub(crate) salt: [u8; 32],
    /// Proves the object's key.
    pub(crate) commitment: [u8; 32],
    /// Sealed bytes that follow the header: a container's front directory, a small object's body.
    pub(crate) sealed_len: u32,
}

/// Checks the first eight bytes, which every version of the format shares.
pub(crate) fn check_preamble(object: &str, bytes: &[u8]) -> Result<(FormatVersion, ObjectType)> {
    let mut reader = Reader::new(bytes);
    let of = |error: DecodeError| error.of(object);
    let magic: [u8; 4] = reader.array().map_err(of)?;
    if magic != MAGIC {
        return Err(Error::damaged(object, "does not begin like an object of a repository"));
    }
    let number = reader.u16().map_err(of)?;
    let supported = FormatVersion::NEWEST.number();
    if supported < number {
        return Err(Error::NewerFormat { object: object.to_owned(), found: number, supported });
    }
    let Some(version) = FormatVersion::from_number(number) else {
        return Err(Error::damaged(object, format!("format version {number} does not exist")));
    };
    let code = reader.u8().map_err(of)?;
    let suite = reader.u8().map_err(of)?;
    if suite != SUITE {
        return Err(Error::damaged(object, format!("unknown cipher suite {suite}")));
    }
    let object_type = ObjectType::from_code(code);
    let object_type = object_type.ok_or_else(|| Error::damaged(object, format!("unknown object type {code}")))?;
    Ok((version, object_type))
}

/// Appends the first eight bytes of an object.
pub(crate) fn put_preamble(version: FormatVersion, object_type: ObjectType, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version.number().to_le_bytes());
    out.push(object_type.code());
    out.push(SUITE);
}

impl Header {
    /// Returns the stored form.
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = Vec::with_capacity(HEADER_LEN);
        put_preamble(self.format, self.object_type, &mut out);
        out.extend_from_slice(&self.repository.0);
        out.extend_from_slice(&self.session.0);
        out.extend_from_slice(&self.ordinal.to_le_bytes());
        out.extend_from_slice(&self.key_epoch.to_le_bytes());
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.commitment);
        out.extend_from_slice(&self.sealed_len.to_le_bytes());
        out.resize(HEADER_LEN, 0);
        out.try_into().expect("resized to the length of a header")
    }

    /// Reads the stored form. `object` is the name for messages.
    pub(crate) fn decode(object: &str, bytes: &[u8]) -> Result<Self> {
        let (format, object_type) = check_preamble(object, bytes)?;
        let mut reader = Reader::new(bytes);
        let mut read = || {
            reader.bytes(8)?;
            let header = Self {
                format,
                object_type,
                repository: RepositoryId(reader.array()?),
                session: SessionId(reader.array()?),
                ordinal: reader.u32()?,
                key_epoch: reader.u32()?,
                salt: reader.array()?,
                commitment: reader.array()?,
                sealed_len: reader.u32()?,
            };
            if header.key_epoch != 0 {
                return Err(reader.error("key epoch that this version does not know"));
            }
            match reader.array::<12>()? {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => Ok(header),
                _ => Err(reader.error("reserved bytes are not zero")),
            }
        };
        read().map_err(|error| error.of(object))
    }

    /// Derives the object's key and checks the commitment.
    pub(crate) fn key(&self, object: &str, keys: &Keys) -> Result<ObjectKey> {
        let purpose = self.object_type.purpose();
        let key = ObjectKey::derive(keys, purpose, &self.salt, self.repository, self.object_type.code());
        if key.is_committed(&self.commitment) {
            Ok(key)
        } else {
            Err(Error::damaged(object, "not sealed with this repository's key"))
        }
    }
}
