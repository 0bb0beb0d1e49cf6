//! The one error of the engine.
//!
//! Messages are a clause without period: the operation that failed, and the path or object. `source` keeps the error of the
//! operating system, so that callers can tell a full disk from a broken one. Bugs of the program panic instead.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::types::SessionId;

/// Result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong outside the program's own bugs. Clones share the error of the operating system.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation, in the imperative: `read`, `sync`, `rename`.
        operation: &'static str,
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// There is no repository at the path.
    #[error("no repository at {}: {reason}", path.display())]
    NoRepository {
        /// Path of the search.
        path: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A repository exists already where one was to be created.
    #[error("a repository exists already at {}", path.display())]
    RepositoryExists {
        /// Its path.
        path: PathBuf,
    },
    /// A repository lacks its config.
    #[error("{root} holds a repository whose `{config}` is gone: bring it back with `cp {copy} {config}`")]
    ConfigMissing {
        /// Its directory.
        root: String,
        /// Name of the config.
        config: &'static str,
        /// Name of its copy.
        copy: &'static str,
    },
    /// Another process is creating a repository in the directory.
    #[error("another init is at work in {root}")]
    CreationBusy {
        /// The directory.
        root: String,
    },
    /// A file system lacks something that a repository relies on.
    #[error("the file system of {root} cannot hold a repository: {reason}")]
    UnfitFileSystem {
        /// The directory.
        root: String,
        /// The reason.
        reason: &'static str,
    },
    /// Listings of a store do not show changes at once, as reclaiming space needs.
    #[error("space cannot be reclaimed: a listing of {directory} {fault}; backup and restore do not need this")]
    StaleListings {
        /// The directory or prefix.
        directory: String,
        /// The fault of the listing, as a clause.
        fault: &'static str,
    },
    /// Another repository is where this host has seen one before.
    #[error("{path}: this host has seen {seen} here, and now there is {found}")]
    Replaced {
        /// Its path.
        path: String,
        /// Repository that was seen.
        seen: String,
        /// Repository that is there now.
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
        /// The problem.
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
    /// An operation failed because of an error in a part of it.
    #[error("{context}: {source}")]
    Context {
        /// The operation, as a clause.
        context: String,
        /// The reason.
        source: Box<Self>,
    },
    /// A region could not be read. The kind of its error concerns the repository only, not the target of a restore.
    #[error("{source}")]
    RegionUnreadable {
        /// The reason.
        source: Box<Self>,
    },
    /// A file was restored whole under a partial name, and did not get its own.
    #[error("{source}; all bytes are in {partial}")]
    Unnamed {
        /// Its partial file.
        partial: String,
        /// The reason.
        source: Box<Self>,
    },
    /// A file was not restored since its partial file was taken away.
    #[error("{source}; nothing of it was restored")]
    Unrestored {
        /// The reason.
        source: Box<Self>,
    },
    /// The name of an entry was taken after the restore had looked.
    #[error("is not restored: something was put there meanwhile, or the target cannot tell this name from another one")]
    NameTaken,
    /// No name is left for a partial file.
    #[error("every name for its partial file is taken")]
    PartialNamesTaken,
    /// A partial file was taken away.
    #[error("another program removed or replaced {partial} while it was written")]
    PartialReplaced {
        /// Its path.
        partial: String,
    },
    /// An entry with a partial name was taken away.
    #[error("another program removed what was to get this name")]
    PartialRemoved,
    /// Another name of an entry could not be restored.
    #[error("is not restored: it is another name of {first}, which could not be restored")]
    FirstNameLost {
        /// The first name.
        first: String,
    },
    /// A repository that is not trusted has a device.
    #[error("a device is not restored from an untrusted repository")]
    UntrustedDevice,
    /// The target takes two names of a directory for one.
    #[error("the target cannot tell this name from another one in its directory")]
    NameFolded,
    /// A file in the target has a wrong length.
    #[error("was restored with a wrong length")]
    WrongLength,
    /// A file in the target has wrong bytes.
    #[error("the {len} bytes at {offset} differ from the snapshot")]
    Differs {
        /// Position of the first chunk or hole that differs.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// A path is longer than this operation takes.
    #[error("a path of {len} bytes is too long to be {undone}")]
    PathTooLong {
        /// Bytes of the path.
        len: usize,
        /// The operation on it, as a participle: `linked to`.
        undone: &'static str,
    },
    /// A directory that is not empty is where the snapshot has something else.
    #[error("is not restored: a directory that is not empty stands there, and only --delete removes it")]
    FullDirectory,
    /// The patterns of a restore keep an entry of a directory that is to be deleted.
    #[error("the patterns leave out {path}")]
    LeftOut {
        /// Its path.
        path: String,
    },
    /// A directory that is to be deleted holds the repository that is restored from, or its index.
    #[error("{path} is the repository or its index")]
    Protected {
        /// Path of that.
        path: String,
    },
    /// Some bytes of a file could not be restored.
    #[error("{}: {losses}; {rest}", path.display())]
    FileIncomplete {
        /// Its path.
        path: PathBuf,
        /// The losses, as a clause.
        losses: String,
        /// The remains of it, as a clause.
        rest: String,
    },
    /// Some metadata of an entry could not be set.
    #[error("{reason}")]
    MetadataUnset {
        /// The reason, as a clause that names it.
        reason: String,
    },
    /// The target shows a name of the snapshot in other bytes.
    #[error("{}: the target lists this name in another way, so that nothing next to it can be told apart", path.display())]
    NameListedOtherwise {
        /// Its path.
        path: PathBuf,
    },
    /// Another file system is mounted in a directory that is to be deleted.
    #[error("is left alone: another file system is mounted there")]
    MountPoint,
    /// A directory that is being deleted was filled again.
    #[error("is left alone: something was put there meanwhile")]
    Refilled,
    /// A file grew between the walk and its opening.
    #[error("it grew from {found} to {size} bytes after it was found, and is left out")]
    SourceGrew {
        /// Its length in the walk.
        found: usize,
        /// Its length when it was opened.
        size: u64,
    },
    /// An entry of another kind replaced a file between the walk and its opening.
    #[error("it was replaced by an entry of another kind after it was found, and is left out")]
    SourceReplaced,
    /// Other entries replaced an entry of the source again and again.
    #[error("{}: was replaced by an entry of another kind each time it was looked at", path.display())]
    SourceUnsteady {
        /// Its path.
        path: PathBuf,
    },
    /// A file changed in every one of its readings.
    #[error("{change} while it was read, {}: what is stored may be a mixture", times(*reads))]
    SourceChanged {
        /// The change, as a clause.
        change: &'static str,
        /// Times that the file was read.
        reads: u32,
    },
    /// A file that reports a size of 0 is longer than such files are read.
    #[error(
        "it reports a size of 0 and is longer than {} MiB, the most that is read of such a file; it is left out",
        bytes_max >> 20
    )]
    UnsizedTooLong {
        /// Most bytes read of such a file.
        bytes_max: u64,
    },
    /// An entry has more extended attributes than can be stored.
    #[error("its extended attributes, {bytes} bytes, are more than can be stored and are left out")]
    XattrsTooLong {
        /// Their bytes.
        bytes: usize,
    },
    /// Another writer on this host holds the index.
    #[error("index {} is held by another writer on this host", path.display())]
    IndexBusy {
        /// The lock file.
        path: PathBuf,
    },
    /// The index could not be written, or is damaged. Backups find less in it.
    #[error("the index is incomplete: {reason}")]
    IndexDegraded {
        /// The first failure.
        reason: String,
    },
    /// A store of the index takes no more entries.
    #[error("the index holds {entries} entries, and its memory is used up")]
    StoreFull {
        /// Entries of live containers in it.
        entries: u64,
    },
    /// A server that keeps entries of the index cannot be reached, or has refused a request.
    #[error("the index's server {address}: {reason}")]
    Server {
        /// Its address, without user and password.
        address: String,
        /// The reason.
        reason: String,
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
        /// Failure after the commit was linked.
        reason: String,
    },
    /// An operation was carried out, but not in full.
    #[error("{operation} incomplete: {failures} could not be processed{}", first_of(first))]
    Incomplete {
        /// `backup` or `restore`.
        operation: &'static str,
        /// The snapshot that was made without what failed, if one was made.
        snapshot: Option<SessionId>,
        /// Number of entries or objects that failed.
        failures: u64,
        /// The first of them with its reason; empty if it is not known.
        first: String,
    },
    /// The user, or the operating system on their behalf, asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The request cannot be carried out as it stands.
    #[error("{reason}")]
    Invalid {
        /// The reason, with the remedy if one is known.
        reason: String,
    },
}

fn first_of(first: &str) -> String {
    if first.is_empty() { String::new() } else { format!(", the first is {first}") }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

impl Error {
    /// Wraps an error of the operating system with what was tried on which path.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source: Arc::new(source) }
    }

    /// Adds the operation that failed because of this error.
    #[must_use]
    pub(crate) fn context(self, context: impl Display) -> Self {
        Self::Context { context: context.to_string(), source: Box::new(self) }
    }

    /// Makes the error for an object that does not hold what it must.
    pub fn damaged(object: impl Display, reason: impl Display) -> Self {
        Self::Damaged { object: object.to_string(), reason: reason.to_string() }
    }

    /// Makes the error for a request that cannot be carried out.
    pub fn invalid(reason: impl Display) -> Self {
        Self::Invalid { reason: reason.to_string() }
    }

    /// Returns the kind of the operating system's error, where there is one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        self.system_error().map(io::Error::kind)
    }

    fn system_error(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Context { source, .. } | Self::Unnamed { source, .. } | Self::Unrestored { source } => {
                source.system_error()
            }
            _ => None,
        }
    }

    /// Returns true if an object does not exist, or not any more.
    pub(crate) fn is_missing_object(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::RegionUnreadable { source } => source.is_missing_object(),
            _ => false,
        }
    }

    /// Returns true if the error shows that something of a repository is gone or damaged, and not that it cannot be read now.
    pub(crate) fn is_loss(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Missing { .. } | Self::MissingChunk { .. } => true,
            Self::Context { source, .. } | Self::RegionUnreadable { source } => source.is_loss(),
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
            }
            _ => false,
        }
    }

    /// Returns true if a file system does not support an operation, or the process lacks the privilege for it. A directory that
    /// may not be written to is another error (`EACCES`).
    pub(crate) fn is_refusal(&self) -> bool {
        use rustix::io::Errno;
        let refusals = [Errno::PERM, Errno::NOTSUP, Errno::NOSYS].map(Errno::raw_os_error);
        self.system_error().and_then(io::Error::raw_os_error).is_some_and(|code| refusals.contains(&code))
    }

    /// Returns true if the process, or the whole system, has too many files open.
    pub(crate) fn is_out_of_handles(&self) -> bool {
        use rustix::io::Errno;
        let out = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        self.system_error().and_then(io::Error::raw_os_error).is_some_and(|code| out.contains(&code))
    }
}
