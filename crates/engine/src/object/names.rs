//! Names of objects in a repository directory.

use std::path::PathBuf;

use crate::types::{ContainerId, SessionId, parse_hex};

/// The repository's parameters.
pub(crate) const CONFIG: &str = "config";
/// Their second copy.
pub(crate) const CONFIG_COPY: &str = "config.copy";
/// Directory of key slots.
pub(crate) const KEYS: &str = "keys";
/// Directory of containers, one directory a session below.
pub(crate) const CONTAINERS: &str = "containers";
/// Directory of started sessions.
pub(crate) const SESSIONS: &str = "sessions";
/// Directory of ended sessions: the snapshots.
pub(crate) const COMMITS: &str = "commits";
/// Directory of forgotten snapshots.
pub(crate) const FORGET: &str = "forget";
/// Directory of garbage collections, one directory each below.
pub(crate) const GC: &str = "gc";
/// Directory of files on their way to a name; whatever stands here without a running session is left over.
pub(crate) const TMP: &str = "tmp";

/// All directories of a repository, in the order they are made.
pub(crate) const DIRECTORIES: [&str; 7] = [KEYS, CONTAINERS, SESSIONS, COMMITS, FORGET, GC, TMP];

/// Which of the two copies of a key slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotCopy {
    /// `.1`
    First,
    /// `.2`
    Second,
}

/// Returns the name of a key slot's copy.
pub fn slot(id: &[u8; 16], copy: SlotCopy) -> PathBuf {
    let digit = match copy {
        SlotCopy::First => 1,
        SlotCopy::Second => 2,
    };
    PathBuf::from(format!("{KEYS}/{}.{digit}", SessionId(*id)))
}

/// Parses the name of a key slot's copy within its directory.
pub(crate) fn parse_slot(name: &str) -> Option<([u8; 16], SlotCopy)> {
    let (id, digit) = name.split_once('.')?;
    let copy = match digit {
        "1" => SlotCopy::First,
        "2" => SlotCopy::Second,
        _ => return None,
    };
    Some((parse_hex(id)?, copy))
}

/// Returns the directory of a session's containers.
pub(crate) fn container_dir(session: SessionId) -> PathBuf {
    PathBuf::from(format!("{CONTAINERS}/{session}"))
}

/// Contents of a container, which its name shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ContainerKind {
    /// Bytes of sources.
    Data,
    /// Trees and recipes.
    Metadata,
}

/// A container as its name in the repository describes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContainerName {
    /// Session and number.
    pub id: ContainerId,
    /// What it holds.
    pub(crate) kind: ContainerKind,
    /// BLAKE3-256 of all its stored bytes.
    pub(crate) checksum: [u8; 32],
}

impl ContainerName {
    /// Returns the container's path in the repository.
    pub(crate) fn path(&self) -> PathBuf {
        let letter = match self.kind {
            ContainerKind::Data => 'd',
            ContainerKind::Metadata => 'm',
        };
        let checksum = crate::types::Fingerprint(self.checksum);
        PathBuf::from(format!("{CONTAINERS}/{}/{letter}{:08x}-{checksum}", self.id.session, self.id.ordinal))
    }

    /// Parses a name within a session's directory.
    pub(crate) fn parse(session: SessionId, name: &str) -> Option<Self> {
        let (number, checksum) = name.split_once('-')?;
        let kind = match number.get(..1)? {
            "d" => ContainerKind::Data,
            "m" => ContainerKind::Metadata,
            _ => return None,
        };
        let ordinal = u32::from_be_bytes(parse_hex(number.get(1..)?)?);
        Some(Self { id: ContainerId { session, ordinal }, kind, checksum: parse_hex(checksum)? })
    }
}

/// Returns the path of a session's start.
pub(crate) fn session(id: SessionId) -> PathBuf {
    PathBuf::from(format!("{SESSIONS}/{id}"))
}

/// Returns the path of a session's end.
pub(crate) fn commit(id: SessionId) -> PathBuf {
    PathBuf::from(format!("{COMMITS}/{id}"))
}

/// Returns the path of a file on its way to a name.
pub(crate) fn tmp(session: SessionId, number: u32) -> PathBuf {
    PathBuf::from(format!("{TMP}/{session}-{number:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_names_come_back() {
        let id = ContainerId { session: SessionId([0xab; 16]), ordinal: 0x1234 };
        let name = ContainerName { id, kind: ContainerKind::Metadata, checksum: [7; 32] };
        let path = name.path();
        let file = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(ContainerName::parse(id.session, file), Some(name));
        assert_eq!(ContainerName::parse(id.session, &file[1..]), None);
        assert_eq!(ContainerName::parse(id.session, "d+0000000-00"), None);
    }
}
