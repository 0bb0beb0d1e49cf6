//! Names of the objects of a repository.

use std::fmt;
use std::path::PathBuf;

use crate::types::{ContainerId, Fingerprint, SessionId, parse_hex};

/// Prefixes of names, which are directories in a directory, in the order in which they are made.
pub const DIRECTORIES: [&str; 8] = ["keys", "containers", "sessions", "commits", "forget", "gc", "manifests", "tmp"];

/// The repository's parameters.
pub(crate) const CONFIG: &str = "config";
/// Their second copy.
pub(crate) const CONFIG_COPY: &str = "config.copy";
/// Ending of the names of quarantined containers.
const QUARANTINED: &str = ".bad";

/// Groups of objects that are listed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prefix {
    /// The repository's parameters.
    Root,
    /// Key slots.
    Keys,
    /// Containers, in a group for each session.
    Containers,
    /// Started sessions.
    Sessions,
    /// Ended sessions: the snapshots.
    Commits,
    /// Forgotten snapshots.
    Forget,
    /// Garbage collections, in a group each.
    Collections,
    /// The containers that snapshots refer to.
    Manifests,
}

impl Prefix {
    /// Returns what the names of the group begin with, without a slash at its end.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Root => "",
            Self::Keys => "keys",
            Self::Containers => "containers",
            Self::Sessions => "sessions",
            Self::Commits => "commits",
            Self::Forget => "forget",
            Self::Collections => "gc",
            Self::Manifests => "manifests",
        }
    }

    /// Returns true if the names have another level, which names a session or a collection.
    pub fn has_groups(self) -> bool {
        matches!(self, Self::Containers | Self::Collections)
    }

    /// Returns true if a text names a session's or collection's group.
    pub fn is_group(self, name: &str) -> bool {
        match self {
            Self::Containers => SessionId::parse(name).is_some(),
            Self::Collections => parse_number(name).is_some(),
            Self::Root | Self::Keys | Self::Sessions | Self::Commits | Self::Forget | Self::Manifests => false,
        }
    }

    /// Returns true if the group is empty for most of a repository's life. Programs that copy repositories leave such directories
    /// out.
    pub fn may_be_absent(self) -> bool {
        matches!(self, Self::Forget | Self::Collections | Self::Manifests)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.directory())
    }
}

/// The two copies of a small object without which a repository cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjectCopy {
    /// The one that is read first.
    First,
    /// The other.
    Second,
}

impl ObjectCopy {
    /// Both, in the order in which they are read and written.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];
}

/// A step of a garbage collection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CollectionStep {
    /// It has begun.
    Begin,
    /// These containers are about to go: nothing new may refer to them.
    Condemn,
    /// These containers go.
    Final,
    /// They are gone.
    Done,
}

impl CollectionStep {
    /// All steps, in their order.
    pub const ALL: [Self; 4] = [Self::Begin, Self::Condemn, Self::Final, Self::Done];

    fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Condemn => "condemn",
            Self::Final => "final",
            Self::Done => "done",
        }
    }
}

/// The name of an object. Its text, by `Display`, is the object's path in a directory and its key in an object store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjectName {
    /// A copy of the repository's parameters.
    Config(ObjectCopy),
    /// A copy of a key slot.
    Slot([u8; 16], ObjectCopy),
    /// A container.
    Container(ContainerName),
    /// A container that was set apart because it is damaged. Nothing refers to it.
    Quarantined(ContainerName),
    /// A session's start.
    Session(SessionId),
    /// A heartbeat of a session, by its number.
    Heartbeat(SessionId, u32),
    /// A session's end.
    Commit(SessionId),
    /// A snapshot's forgetting.
    Forget(SessionId),
    /// A step of a collection.
    Collection(u32, CollectionStep),
    /// The containers that a session's snapshot refers to.
    Manifest(SessionId),
}

impl From<ContainerName> for ObjectName {
    fn from(name: ContainerName) -> Self {
        Self::Container(name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.prefix().directory();
        match self {
            Self::Config(ObjectCopy::First) => f.write_str(CONFIG),
            Self::Config(ObjectCopy::Second) => f.write_str(CONFIG_COPY),
            Self::Slot(id, copy) => {
                let digit = match copy {
                    ObjectCopy::First => 1,
                    ObjectCopy::Second => 2,
                };
                write!(f, "{directory}/{}.{digit}", SessionId(*id))
            }
            Self::Container(name) => name.fmt(f),
            Self::Quarantined(name) => write!(f, "{name}{QUARANTINED}"),
            Self::Session(session) | Self::Commit(session) | Self::Forget(session) | Self::Manifest(session) => {
                write!(f, "{directory}/{session}")
            }
            Self::Heartbeat(session, count) => write!(f, "{directory}/{session}.{count:08x}"),
            Self::Collection(number, step) => write!(f, "{directory}/{number:08x}/{}", step.name()),
        }
    }
}

impl ObjectName {
    /// Returns the group of the object.
    pub fn prefix(&self) -> Prefix {
        match self {
            Self::Config(_) => Prefix::Root,
            Self::Slot(..) => Prefix::Keys,
            Self::Container(_) | Self::Quarantined(_) => Prefix::Containers,
            Self::Session(_) | Self::Heartbeat(..) => Prefix::Sessions,
            Self::Commit(_) => Prefix::Commits,
            Self::Forget(_) => Prefix::Forget,
            Self::Collection(..) => Prefix::Collections,
            Self::Manifest(_) => Prefix::Manifests,
        }
    }

    /// Returns the session of an object that is one session's.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Container(name) | Self::Quarantined(name) => Some(name.id.session),
            Self::Session(session) | Self::Commit(session) | Self::Forget(session) | Self::Manifest(session) => {
                Some(*session)
            }
            Self::Config(_) | Self::Slot(..) | Self::Heartbeat(..) | Self::Collection(..) => None,
        }
    }

    /// Returns the object's path in a directory.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }

    /// Parses the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (directory, rest) = match text.split_once('/') {
            Some(split) => split,
            None if text == CONFIG => return Some(Self::Config(ObjectCopy::First)),
            None if text == CONFIG_COPY => return Some(Self::Config(ObjectCopy::Second)),
            None => return None,
        };
        match directory {
            "keys" => {
                let (id, digit) = rest.split_once('.')?;
                let copy = match digit {
                    "1" => ObjectCopy::First,
                    "2" => ObjectCopy::Second,
                    _ => return None,
                };
                Some(Self::Slot(parse_hex(id)?, copy))
            }
            "containers" => {
                let (session, name) = rest.split_once('/')?;
                let session = SessionId::parse(session)?;
                match name.strip_suffix(QUARANTINED) {
                    Some(name) => ContainerName::parse(session, name).map(Self::Quarantined),
                    None => ContainerName::parse(session, name).map(Self::Container),
                }
            }
            "sessions" => match rest.split_once('.') {
                Some((session, count)) => Some(Self::Heartbeat(SessionId::parse(session)?, parse_number(count)?)),
                None => SessionId::parse(rest).map(Self::Session),
            },
            "commits" => SessionId::parse(rest).map(Self::Commit),
            "forget" => SessionId::parse(rest).map(Self::Forget),
            "manifests" => SessionId::parse(rest).map(Self::Manifest),
            "gc" => {
                let (number, step) = rest.split_once('/')?;
                let step = CollectionStep::ALL.into_iter().find(|candidate| candidate.name() == step)?;
                Some(Self::Collection(parse_number(number)?, step))
            }
            _ => None,
        }
    }
}

fn parse_number(text: &str) -> Option<u32> {
    parse_hex(text).map(u32::from_be_bytes)
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

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            ContainerKind::Data => 'd',
            ContainerKind::Metadata => 'm',
        };
        let directory = Prefix::Containers.directory();
        write!(f, "{directory}/{}/{letter}{:08x}-{}", self.id.session, self.id.ordinal, Fingerprint(self.checksum))
    }
}

impl ContainerName {
    /// Returns the container's path in a directory.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
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
        assert_eq!(ObjectName::parse(path.to_str().unwrap()), Some(name.into()));
        let quarantined = ObjectName::Quarantined(name);
        assert_eq!(quarantined.to_string(), format!("{}.bad", path.display()));
        assert_eq!(ObjectName::parse(&quarantined.to_string()), Some(quarantined));
        assert_eq!(ObjectName::parse(&format!("{quarantined}.bad")), None);
        assert_eq!(ContainerName::parse(id.session, &file[1..]), None);
        assert_eq!(ContainerName::parse(id.session, "d+0000000-00"), None);
    }
}
