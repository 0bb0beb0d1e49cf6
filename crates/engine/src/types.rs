//! Identifiers and small values that every layer shares.
//!
//! Each is a newtype, so that a chunk's position cannot be passed where a container's number is meant.

use std::fmt;

/// Bytes of a fingerprint.
pub(crate) const FINGERPRINT_LEN: usize = 32;

/// Keyed 256-bit BLAKE3 of a chunk's plaintext: the name of the chunk, and the truth of every reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; FINGERPRINT_LEN]);

impl Fingerprint {
    /// Returns the first four bytes as a little-endian integer: uniform, since fingerprints are keyed.
    pub(crate) fn prefix(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Random identity of a repository, drawn at `init`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepositoryId(pub [u8; 16]);

/// Random identity of one writing (or restoring) run; also the identity of the snapshot it commits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl $name {
            /// Parses exactly the lower-case hexadecimal form that `Display` writes.
            pub fn parse(text: &str) -> Option<Self> {
                parse_hex(text).map(Self)
            }
        }
    };
}

hexadecimal!(Fingerprint);
hexadecimal!(RepositoryId);
hexadecimal!(SessionId);

/// A process, as its host knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Identifier of the running kernel's boot. Two hosts, or two boots of one, never have the same.
    pub boot: [u8; 16],
    /// Number of the process.
    pub id: u32,
}

/// Parses `2 * N` lower-case hexadecimal digits.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
    }
    Some(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Names a container for good: the session that wrote it and its number there, given when packing starts.
///
/// Never reused, so that a stale reference can only miss, never mean another container.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContainerId {
    /// Session that wrote the container.
    pub session: SessionId,
    /// Number of the container within its session, counted from 0 over data and metadata together.
    pub ordinal: u32,
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:08x}", self.session, self.ordinal)
    }
}

/// Names a region for good: its container, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId {
    /// Its container.
    pub container: ContainerId,
    /// Its number in the container, counted from 0.
    pub region: u32,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} of container {}", self.region, self.container)
    }
}

/// Position of a chunk in the stream of one session, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sequence(pub u64);

/// What a chunk holds. Fingerprints are keyed by it, so that kinds never collide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChunkKind {
    /// Bytes of a source.
    Data,
    /// A node of a tree: directory entries, or references to nodes below.
    Tree,
    /// A segment of a recipe: chunk references, or references to segments below.
    Recipe,
}

impl ChunkKind {
    /// Returns the byte that stands for the kind in the format.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Tree => 2,
            Self::Recipe => 3,
        }
    }

    /// Returns the kind that a byte of the format stands for.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Data),
            2 => Some(Self::Tree),
            3 => Some(Self::Recipe),
            _ => None,
        }
    }
}

/// A chunk without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Name of the chunk.
    pub fingerprint: Fingerprint,
    /// Length of its plaintext in bytes.
    pub len: u32,
}

/// A chunk and the container that holds it, or will hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRef {
    /// The chunk.
    pub chunk: Chunk,
    /// Its container.
    pub container: ContainerId,
}

/// A point in time: seconds since 1970 (negative before) and the nanoseconds that follow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00:00 UTC, rounded down.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 1,000,000,000.
    pub nanoseconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_parse_what_they_display_and_nothing_else() {
        let id = SessionId([0xa5; 16]);
        assert_eq!(SessionId::parse(&id.to_string()), Some(id));
        assert_eq!(SessionId::parse(&id.to_string().to_uppercase()), None);
        assert_eq!(SessionId::parse("a5"), None);
    }
}
