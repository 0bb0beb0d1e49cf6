//! Where the objects of a repository are kept: names with bytes, created once and never changed.
//!
//! Nothing above this interface knows of files. It offers no rename, no link and no sync of a directory, since an object
//! store has none of them. [`DirectoryStore`](crate::object::directory::DirectoryStore) keeps objects in a directory.

use std::fmt::Debug;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::io::AlignedBuffer;
use crate::object::bytes::ObjectBytes;
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::types::{SessionId, Timestamp};

/// Outcomes of [`ObjectStore::create`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Created {
    /// The object has the caller's bytes. It may have been there since an earlier attempt whose answer was lost.
    New,
    /// An object with other bytes has the name. It was left unchanged.
    Existed,
}

/// An object that is being stored. It counts as stored only after [`ObjectStore::barrier`].
#[derive(Debug)]
#[must_use]
pub struct PendingPut {
    /// Name that it gets.
    pub name: ObjectName,
    /// Session that stores it.
    pub(crate) session: SessionId,
    /// Number by which the store knows it.
    pub(crate) ticket: u32,
    /// True if the object must exist already.
    pub(crate) is_again: bool,
}

/// One read of a batch.
#[derive(Debug)]
pub struct RangeRead {
    /// The object to read.
    pub name: ObjectName,
    /// First byte to read.
    pub offset: u64,
    /// Filled with the object's bytes from `offset`, and shortened where the object ends before. Its contents are unspecified
    /// after an error.
    pub buffer: AlignedBuffer,
    /// Length of the object in bytes; [`Error::Missing`] if there is none. 0 before the batch
    /// is submitted.
    pub outcome: Result<u64>,
}

impl RangeRead {
    /// Reads at most `len` bytes of an object from `offset`.
    pub fn new(name: ObjectName, offset: u64, len: usize) -> Self {
        Self { name, offset, buffer: AlignedBuffer::new_zeroed(len), outcome: Ok(0) }
    }
}

/// Depth of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Names only. Lengths are 0.
    Names,
    /// Names, lengths and times, which cost a directory one more call for each object.
    Lengths,
}

/// One name of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The object; `Err` holds a name that is no object's.
    pub name: Result<ObjectName, String>,
    /// Bytes of the object.
    pub len: u64,
    /// Time of its last change by the clock of the store, if it reports one.
    pub changed: Option<Timestamp>,
}

/// What a store can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// An object that is listed is durable. In a directory it need not be: a power cut can take an unsynced name back.
    pub listed_is_durable: bool,
}

/// Outcome of [`ObjectStore::try_handshake`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Handshake {
    /// The listings of both handles showed at once what the other handle had created and removed.
    Passed,
    /// A listing of this prefix lacked a name that the other handle had created before.
    CreatedMissed(Prefix),
    /// A listing of this prefix showed a name that the other handle had removed before.
    RemovedShown(Prefix),
}

impl Handshake {
    /// Fails with [`Error::StaleListings`] if the handshake did not pass.
    pub fn require(self, objects: &dyn ObjectStore) -> Result<()> {
        let (prefix, fault) = match self {
            Self::Passed => return Ok(()),
            Self::CreatedMissed(prefix) => (prefix, "does not show a name that was created before"),
            Self::RemovedShown(prefix) => (prefix, "still shows a name that was removed before"),
        };
        Err(Error::StaleListings { directory: objects.display(prefix.directory()), fault })
    }
}

/// Temporary files and the like that no object needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leftovers {
    /// Files found and kept.
    pub kept: u64,
    /// Files removed.
    pub removed: u64,
    /// Bytes of the files removed.
    pub removed_bytes: u64,
}

/// Held while a repository is created, so that two processes do not take each other for an interrupted run.
pub type CreationLock = Box<dyn Debug>;

/// The immutable objects of a repository. All methods may be called from any thread; calls from several threads proceed in
/// parallel.
///
/// Consistency: a listing or a read that begins after a `create`, `barrier` or `delete` has returned, in any process on any
/// host, shows its effect. Where a client caches listings, [`ObjectStore::refresh_collections`],
/// [`ObjectStore::refresh_sessions`] and [`ObjectStore::refresh_containers`] restore this property for the listings that decide
/// what is deleted, and [`ObjectStore::try_handshake`] tries it.
pub trait ObjectStore: Debug + Send + Sync {
    /// Creates an object exactly once. Durable when this returns. After an error the object may exist.
    fn create(&self, session: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created>;
    /// Starts to store an object under a name that no other writer can choose. The object may become visible before the
    /// barrier.
    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut>;
    /// Starts to store the bytes of an object that exists once more, so that the barrier makes it durable. The barrier fails
    /// if the object is gone by then: a name that was deleted never comes back.
    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut>;
    /// Makes the names of objects durable that exist and that another process may have created.
    fn confirm(&self, names: &[ObjectName]) -> Result<()>;
    /// Makes objects visible and durable. After an error some of them may be.
    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()>;
    /// Gives up objects that were not made durable. Frees their space where that is possible. One that is visible already stays,
    /// since other writers may refer to it.
    fn discard(&self, puts: Vec<PendingPut>);
    /// Reads ranges, several at a time. Each read has its own outcome.
    fn read(&self, reads: &mut [RangeRead]);
    /// Fills the buffer from `offset`. Fails if the object ends first.
    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Announces a read of a range.
    fn will_read(&self, name: ObjectName, range: Range<u64>) {
        let _ = (name, range);
    }
    /// Returns the length of an object; `None` if there is none.
    fn len(&self, name: ObjectName) -> Result<Option<u64>>;
    /// Lists the objects under a prefix in pages, in the order of their names. A part that cannot be listed does not hide the
    /// others: its error is returned at the end.
    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()>;
    /// Deletes objects durably. A name without an object is fine.
    fn delete(&self, names: &[ObjectName]) -> Result<()>;
    /// Gives containers their names as [quarantined](ObjectName::Quarantined) ones, durably. A name without an object is fine: it may
    /// have been quarantined before. A quarantined container of the same name is replaced. After an error, and while this is at
    /// work, a container may have both names, and has at least one.
    fn quarantine(&self, names: &[ContainerName]) -> Result<()>;
    /// Gives a small object a name that is no object's and ends in `.bad`, durably. Its name gets `replacement` at the same moment, or
    /// is free. `session` names temporary files.
    fn quarantine_object(&self, session: SessionId, name: ObjectName, replacement: Option<&[u8]>) -> Result<()>;
    /// Makes the next listing of collections show the steps that others have taken, on a client that caches listings.
    fn refresh_collections(&self, session: SessionId) -> Result<()>;
    /// Makes the next listing of sessions show those that others have begun and ended, on a client that caches listings.
    fn refresh_sessions(&self, session: SessionId) -> Result<()>;
    /// Makes the next listing of containers show those that others have made durable, on a client that caches listings.
    fn refresh_containers(&self, session: SessionId) -> Result<()>;
    /// Tries with two handles to the store whether listings show changes at once, as [`ObjectStore::refresh_collections`],
    /// [`ObjectStore::refresh_sessions`] and [`ObjectStore::refresh_containers`] promise. A collection begins only if they do. The
    /// directories of the store exist.
    fn try_handshake(&self, session: SessionId) -> Result<Handshake>;
    /// Returns what the store can do.
    fn abilities(&self) -> Abilities;
    /// Finds what interrupted writers left that is no object, and removes it if `removes` returns true for the session that
    /// wrote it, as far as that is known.
    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers>;
    /// Prepares the store for a new repository, and tries what commits rely on. Fails if another process does the same.
    fn begin_creation(&self, session: SessionId) -> Result<CreationLock>;
    /// Ends the creation of a repository, which exists now.
    fn end_creation(&self, lock: CreationLock);
    /// Makes what a copy of a repository may lack. Returns what it made.
    fn complete(&self) -> Result<Vec<&'static str>>;
    /// Returns the text of a name, or of a prefix of names, as the user knows it. An empty text stands for the store.
    fn display(&self, key: &str) -> String;
}
