//! The one error of the engine.
//!
//! Messages are a clause without period: what failed on what. The path or object that is hit is always named.
//! `source` keeps the operating system's own error, so that callers can tell a full disk from a broken one.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::types::SessionId;

/// Result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong outside the program's own bugs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried, in the imperative: `read`, `sync`, `rename`.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no repository at the path.
    #[error("no repository at {}: {reason}", path.display())]
    NoRepository {
        /// Where one was looked for.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A repository stands already where one was to be created.
    #[error("a repository exists already at {}", path.display())]
    RepositoryExists {
        /// Where it stands.
        path: PathBuf,
    },
    /// Another repository stands where this host has seen one before.
    #[error("{path}: this host has seen {seen} here, and now there is {found}")]
    Replaced {
        /// Where it stands.
        path: String,
        /// Which repository was seen.
        seen: String,
        /// Which one is there now.
        found: String,
    },
    /// No key slot opens with the password.
    #[error("wrong password or no key slot for it")]
    WrongPassword,
    /// No key slot opens with the password, and some were not tried.
    #[error(
        "no key slot that was tried opens with the password; not tried: {too_costly} that need more memory than is allowed \
         (the least of them {memory_mib} MiB), {too_many} beyond the number that is tried"
    )]
    SlotsNotTried {
        /// Slots that need more work than is allowed.
        too_costly: usize,
        /// Memory in MiB that the least costly of them needs; 0 if there are none.
        memory_mib: u32,
        /// Slots beyond the number that is tried.
        too_many: usize,
    },
    /// An object was written by a later version of the format.
    #[error("{object}: format version {found} is newer than {supported}, the newest this program reads")]
    NewerFormat {
        /// The object.
        object: String,
        /// Its version.
        found: u16,
        /// The newest version that can be read.
        supported: u16,
    },
    /// An object does not hold what it must.
    #[error("{object}: damaged: {reason}")]
    Damaged {
        /// The object, by its path in the repository.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An object that is referred to does not exist.
    #[error("{object}: missing")]
    Missing {
        /// The object, by its path in the repository.
        object: String,
    },
    /// A chunk that is referred to is in no container that can be read.
    #[error("chunk {fingerprint}: in no readable container")]
    MissingChunk {
        /// The chunk's fingerprint.
        fingerprint: String,
    },
    /// A directory lies deeper than any that a backup stores.
    #[error("directories more than {depth_max} deep are not {undone}")]
    TooDeep {
        /// The greatest depth.
        depth_max: usize,
        /// The operation on it, as a participle: `read`.
        undone: &'static str,
    },
    /// Another writer on this host holds the index.
    #[error("index {} is held by another writer on this host", path.display())]
    IndexBusy {
        /// The lock file.
        path: PathBuf,
    },
    /// The session was fenced: its commit key is taken, nothing it wrote will be referred to.
    #[error("session {session} was fenced by a garbage collection")]
    Fenced {
        /// The session.
        session: SessionId,
    },
    /// The commit was written, but it is not known whether it will survive a power cut.
    #[error("snapshot {session} is in an unknown state: {reason}; list the snapshots before you rely on it")]
    UnknownState {
        /// The session whose commit it is.
        session: SessionId,
        /// What failed after the commit was linked.
        reason: String,
    },
    /// An operation was carried out, but not in full.
    #[error("{operation} incomplete: {failures} could not be processed{}", first_of(first))]
    Incomplete {
        /// Which one: `backup` or `restore`.
        operation: &'static str,
        /// The snapshot that was made without what failed, if one was made.
        snapshot: Option<SessionId>,
        /// How many entries or objects failed.
        failures: u64,
        /// The first of them and why; empty if it is not known.
        first: String,
    },
    /// The user, or the operating system on their behalf, asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The request cannot be carried out as it stands.
    #[error("{reason}")]
    Invalid {
        /// Why not.
        reason: String,
    },
}

fn first_of(first: &str) -> String {
    if first.is_empty() { String::new() } else { format!(", the first is {first}") }
}

impl Error {
    /// Wraps an error of the operating system with what was tried on which path.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source }
    }

    /// Says that an object does not hold what it must.
    pub fn damaged(object: impl Display, reason: impl Display) -> Self {
        Self::Damaged { object: object.to_string(), reason: reason.to_string() }
    }

    /// Says that a request cannot be carried out.
    pub fn invalid(reason: impl Display) -> Self {
        Self::Invalid { reason: reason.to_string() }
    }

    /// Returns the kind of the operating system's error, where there is one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Returns true if the process, or the whole system, has too many files open.
    pub fn is_out_of_handles(&self) -> bool {
        use rustix::io::Errno;
        let Self::Io { source, .. } = self else { return false };
        let out = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        source.raw_os_error().is_some_and(|code| out.contains(&code))
    }
}
