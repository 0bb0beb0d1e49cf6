//! A repository in a directory: each object is a file that is created once.
//!
//! All of POSIX that a repository needs stands here. An object is written to a file in `tmp`, synced, and published: by
//! `link(2)`, which never replaces a file, or by `rename(2)` where the name is the writer's own. Then the directory of the name
//! is synced. The order is that of `docs/durability.md`.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::io::{Access, BatchRead, Disk, DiskEntry, DiskFile, Linked, SizedEntry};
use crate::lru::Lru;
use crate::object::bytes::ObjectBytes;
use crate::object::handshake::try_handshake;
use crate::object::names::{self, ContainerName, ObjectName, Prefix};
use crate::object::store::{
    Abilities, Created, CreationLock, Detail, Handshake, Leftovers, Listed, ObjectStore, PendingPut, RangeRead,
};
use crate::types::{SessionId, Timestamp};

mod leftovers;
mod probe;
pub(crate) mod quarantine;
#[cfg(test)]
mod tests;

/// Directory of temporary files. A file here whose session has ended is left over.
pub const TMP: &str = "tmp";
/// Ending of the names of files that are removed right after they were created. Listings leave them out.
const PROBE: &str = ".probe";
/// Held while a repository is created.
const CREATION_LOCK: &str = "tmp/init";
/// Files of containers that stay open between reads.
const OPEN_FILES: usize = 32;
/// Times that a file is given its name if a collection removes the directory meanwhile. Each removal needs a deletion of its own.
const PUBLISH_TRIES: usize = 3;
/// Digits of a session's id, with which the name of a temporary file and of a probe begins.
const SESSION_DIGITS: usize = 32;

/// Objects in a directory of a disk.
#[derive(Debug)]
pub struct DirectoryStore {
    disk: Arc<dyn Disk>,
    next_temporary: AtomicU32,
    /// Directories that this store has made sure of.
    made: Mutex<BTreeSet<PathBuf>>,
    open: Mutex<Lru<ObjectName, Arc<dyn DiskFile>>>,
}

fn is_kind(error: &Error, kind: ErrorKind) -> bool {
    error.io_kind() == Some(kind)
}

fn absent_is<T>(absent: T, found: Result<T>) -> Result<T> {
    match found {
        Err(error) if is_kind(&error, ErrorKind::NotFound) => Ok(absent),
        found => found,
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn parents<'a>(names: impl IntoIterator<Item = &'a ObjectName>) -> BTreeSet<PathBuf> {
    names.into_iter().map(|name| parent_of(&name.path()).to_owned()).collect()
}

fn temporary(session: SessionId, number: u32) -> PathBuf {
    PathBuf::from(format!("{TMP}/{session}-{number:08x}"))
}

impl DirectoryStore {
    /// Keeps objects in the root directory of a disk.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        let open = Mutex::new(Lru::new(OPEN_FILES));
        Self { disk, next_temporary: AtomicU32::new(0), made: Mutex::default(), open }
    }

    /// Writes the bytes to a file of their own and makes them durable (step D1).
    fn write_temporary(&self, session: SessionId, write: impl FnOnce(&Path) -> Result<()>) -> Result<u32> {
        let ticket = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let path = temporary(session, ticket);
        write(&path).inspect_err(|_| self.remove_temporary(&path))?;
        Ok(ticket)
    }

    /// Removes a temporary file that gets no name, which frees space on a full disk.
    fn remove_temporary(&self, path: &Path) {
        // Everyone ignores a file that cannot be removed.
        let _left_over = self.disk.remove(path);
    }

    fn write_small(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let file = self.disk.create(path)?;
        // fsync, not fdatasync: the length changed. It is never retried: after an error the pages are gone.
        file.write_at(0, bytes).and_then(|()| file.sync())
    }

    /// Writes past the page cache where the file system can: a backup does not read soon what it writes, and would evict
    /// what others read.
    fn write_direct(&self, path: &Path, bytes: &ObjectBytes) -> Result<()> {
        drop(self.disk.create(path)?);
        let file = self.disk.open(path, Access::Direct)?;
        file.write_at(0, bytes.padded())?;
        if bytes.padded().len() != bytes.len() {
            file.set_len(bytes.len() as u64)?;
        }
        file.sync()
    }

    /// Makes sure that the directory of a session's containers, or of a collection, exists durably.
    fn make_directory_of(&self, path: &Path) -> Result<()> {
        let directory = parent_of(path);
        let parent = parent_of(directory);
        if parent == Path::new("") || self.made().contains(directory) {
            return Ok(());
        }
        self.disk.create_dir(directory)?;
        self.disk.sync_dir(parent)?;
        self.made().insert(directory.to_owned());
        Ok(())
    }

    /// Makes sure of the directory of a session's own containers. An empty one may be left from an attempt whose sync failed: another sync would
    /// succeed and not make it durable, so it is created again. One that holds something was durable before. Nobody else puts anything there.
    fn make_own_directory_of(&self, path: &Path) -> Result<()> {
        let is_made = self.made().contains(parent_of(path));
        // A user may have moved the directory and left a symbolic link.
        match if is_made { Ok(false) } else { self.disk.remove_dir(parent_of(path)) } {
            Err(error) if !is_kind(&error, ErrorKind::NotADirectory) => Err(error),
            _ => self.make_directory_of(path),
        }
    }

    /// Removes those directories of sessions' containers that are empty, durably. The removals in them are durable already.
    fn remove_directories(&self, directories: &BTreeSet<PathBuf>) -> Result<()> {
        let mut removed = false;
        for directory in directories {
            self.made().remove(directory);
            match self.disk.remove_dir(directory) {
                // One that was removed before a crash is synced as well.
                Ok(is_gone) => removed |= is_gone,
                // A user may have moved the directory and left a symbolic link, which stays.
                Err(error) if is_kind(&error, ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
        if removed { self.disk.sync_dir(Path::new(Prefix::Containers.directory())) } else { Ok(()) }
    }

    fn made(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the object has exactly these bytes. They hold random numbers of this writer, so that no other writer
    /// can have created it.
    fn has_bytes(&self, path: &Path, bytes: &[u8]) -> Result<bool> {
        let file = self.disk.open(path, Access::Read)?;
        if file.len()? != bytes.len() as u64 {
            return Ok(false);
        }
        let mut stored = vec![0; bytes.len()];
        file.read_at(0, &mut stored)?;
        Ok(stored == bytes)
    }

    /// Opens an object, or returns the file of a container that was opened lately. It may have been removed since.
    fn open(&self, name: ObjectName) -> Result<Arc<dyn DiskFile>> {
        let cached = self.open_files().get(&name);
        cached.map_or_else(|| self.open_again(name), Ok)
    }

    /// Opens an object that exists. The files of containers stay open, within a limit.
    fn open_again(&self, name: ObjectName) -> Result<Arc<dyn DiskFile>> {
        let path = name.path();
        let mut opened = self.disk.open(&path, Access::Read);
        if opened.as_ref().is_err_and(Error::is_out_of_handles) {
            *self.open_files() = Lru::new(OPEN_FILES);
            opened = self.disk.open(&path, Access::Read);
        }
        let file = opened.map_err(|error| match error.io_kind() {
            Some(ErrorKind::NotFound) => Error::Missing { object: self.disk.display(&path) },
            Some(ErrorKind::InvalidData) => Error::damaged(self.disk.display(&path), "is not a regular file"),
            _ => error,
        })?;
        if matches!(name, ObjectName::Container(_)) {
            self.open_files().insert(name, Arc::clone(&file), 1);
        }
        Ok(file)
    }

    fn open_files(&self) -> MutexGuard<'_, Lru<ObjectName, Arc<dyn DiskFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the object of a read and shortens its buffer to what the object has.
    fn begin_read(&self, read: &mut RangeRead) -> Result<(Arc<dyn DiskFile>, u64)> {
        let file = self.open(read.name)?;
        let len = file.len()?;
        let rest = usize::try_from(len.saturating_sub(read.offset)).unwrap_or(usize::MAX);
        if rest < read.buffer.len() {
            read.buffer.resize(rest);
        }
        Ok((file, len))
    }

    /// Hands the files of one directory on as a page.
    fn list_directory(&self, directory: &Path, detail: Detail, take: &mut dyn FnMut(Entry)) -> Result<()> {
        match detail {
            Detail::Names => {
                for DiskEntry { name, is_dir } in self.disk.list(directory)? {
                    take(Entry { path: directory.join(name), is_dir, len: 0, changed: None });
                }
            }
            Detail::Lengths => {
                for SizedEntry { name, is_dir, len, changed } in self.disk.list_sized(directory)? {
                    take(Entry { path: directory.join(name), is_dir, len, changed });
                }
            }
        }
        Ok(())
    }

    /// Lists the directories below a prefix; names that cannot be such a directory's are handed on as unknown.
    fn list_below(&self, prefix: Prefix, unknown: &mut Vec<Listed>) -> Result<Vec<PathBuf>> {
        let mut directories = Vec::new();
        for DiskEntry { name, is_dir } in self.disk.list(Path::new(prefix.directory()))? {
            let path = Path::new(prefix.directory()).join(&name);
            if !is_dir && name.ends_with(PROBE) {
                continue;
            }
            if is_dir && prefix.is_group(&name) {
                directories.push(path);
            } else {
                unknown.push(Listed { name: Err(path.to_string_lossy().into_owned()), len: 0, changed: None });
            }
        }
        Ok(directories)
    }

    /// Returns the name of a file as an object under a prefix.
    fn listed(prefix: Prefix, entry: &Entry) -> Option<Listed> {
        let path = entry.path.to_string_lossy().into_owned();
        if prefix == Prefix::Root && entry.is_dir && names::DIRECTORIES.contains(&path.as_str()) {
            return None;
        }
        if !entry.is_dir && path.ends_with(PROBE) {
            return None;
        }
        // A directory in place of a small object is damage of the object, not another file.
        let is_file = !entry.is_dir || prefix != Prefix::Containers;
        let object = ObjectName::parse(&path).filter(|name| is_file && name.prefix() == prefix);
        Some(Listed { name: object.ok_or(path), len: entry.len, changed: entry.changed })
    }

    /// Gives a temporary file its name.
    fn publish(&self, put: &PendingPut, path: &Path) -> Result<()> {
        let from = temporary(put.session, put.ticket);
        if put.is_again {
            // Both files exist at every moment: a name that was removed meanwhile does not come back.
            return self.disk.exchange(&from, path).map(|()| self.remove_temporary(&from));
        }
        let is_own = matches!(put.name, ObjectName::Container(name) if name.id.session == put.session);
        let make_directory = || if is_own { self.make_own_directory_of(path) } else { self.make_directory_of(path) };
        for _ in 1..PUBLISH_TRIES {
            make_directory()?;
            match self.disk.rename(&from, path) {
                // A collection may have removed the session's directory of containers, which was empty.
                Err(error) if is_kind(&error, ErrorKind::NotFound) => self.made().remove(parent_of(path)),
                renamed => return renamed,
            };
        }
        make_directory()?;
        self.disk.rename(&from, path)
    }

    fn lock_creation(&self) -> Result<Arc<dyn DiskFile>> {
        let path = Path::new(CREATION_LOCK);
        let file = match self.disk.create(path) {
            Err(error) if is_kind(&error, ErrorKind::AlreadyExists) => self.disk.open(path, Access::ReadWrite)?,
            created => created?,
        };
        if file.try_lock()? { Ok(file) } else { Err(Error::CreationBusy { root: self.display("") }) }
    }

    /// Gives bytes that are durable in a temporary file a name that must be new. The name is not durable yet.
    fn link_new(&self, session: SessionId, path: &Path, bytes: &[u8]) -> Result<Created> {
        let ticket = self.write_temporary(session, |path| self.write_small(path, bytes))?;
        let from = temporary(session, ticket);
        let linked = self.disk.link(&from, path);
        self.remove_temporary(&from);
        match linked? {
            Linked::Created => Ok(Created::New),
            // A network file system may repeat a request whose answer was lost: the name exists since the first one.
            Linked::Existed if self.has_bytes(path, bytes)? => Ok(Created::New),
            Linked::Existed => Ok(Created::Existed),
        }
    }
}

/// A file or directory of a listing.
struct Entry {
    path: PathBuf,
    is_dir: bool,
    len: u64,
    changed: Option<Timestamp>,
}

impl ObjectStore for DirectoryStore {
    fn create(&self, session: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created> {
        let path = name.path();
        self.make_directory_of(&path)?;
        let created = self.link_new(session, &path, bytes)?;
        // Also the name of another's object: the caller may rely on it.
        self.disk.sync_dir(parent_of(&path))?;
        Ok(created)
    }

    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        let ticket = self.write_temporary(session, |path| self.write_direct(path, bytes))?;
        Ok(PendingPut { name, session, ticket, is_again: false })
    }

    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        Ok(PendingPut { is_again: true, ..self.put(session, name, bytes)? })
    }

    fn confirm(&self, names: &[ObjectName]) -> Result<()> {
        parents(names).iter().try_for_each(|directory| self.disk.sync_dir(directory))
    }

    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        let mut directories = BTreeSet::new();
        let mut puts = puts.into_iter();
        while let Some(put) = puts.next() {
            let path = put.name.path();
            if let Err(error) = self.publish(&put, &path) {
                self.discard(std::iter::once(put).chain(puts).collect());
                return Err(error);
            }
            directories.insert(parent_of(&path).to_owned());
        }
        directories.iter().try_for_each(|directory| self.disk.sync_dir(directory))
    }

    fn discard(&self, puts: Vec<PendingPut>) {
        for put in puts {
            self.remove_temporary(&temporary(put.session, put.ticket));
        }
    }

    fn read(&self, reads: &mut [RangeRead]) {
        let mut batch = Vec::with_capacity(reads.len());
        let mut begun = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            match self.begin_read(read) {
                Ok((file, len)) => {
                    let buffer = std::mem::take(&mut read.buffer);
                    batch.push(BatchRead { file, offset: read.offset, buffer, outcome: Ok(()) });
                    begun.push((read, len));
                }
                Err(error) => read.outcome = Err(error),
            }
        }
        self.disk.read_batch(&mut batch);
        for ((read, len), done) in begun.into_iter().zip(batch) {
            read.buffer = done.buffer;
            read.outcome = done.outcome.map(|()| len);
        }
    }

    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.open(name)?.read_at(offset, buffer)
    }

    fn will_read(&self, name: ObjectName, range: Range<u64>) {
        // An error shows when the range is read.
        if let Ok(file) = self.open(name) {
            file.will_need(range.start, range.end.saturating_sub(range.start));
        }
    }

    fn len(&self, name: ObjectName) -> Result<Option<u64>> {
        match self.open_again(name).and_then(|file| file.len()) {
            Ok(len) => Ok(Some(len)),
            Err(Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()> {
        let mut unknown = Vec::new();
        let directories = if prefix.has_groups() {
            let below = self.list_below(prefix, &mut unknown);
            if prefix.may_be_absent() { absent_is(Vec::new(), below) } else { below }?
        } else {
            vec![PathBuf::from(prefix.directory())]
        };
        if !unknown.is_empty() {
            page(unknown)?;
        }
        let mut first_error = None;
        for directory in directories {
            let mut listed = Vec::new();
            let done =
                self.list_directory(&directory, detail, &mut |entry| listed.extend(Self::listed(prefix, &entry)));
            // A collection may remove the directory of a session meanwhile.
            let done = if prefix.has_groups() || prefix.may_be_absent() { absent_is((), done) } else { done };
            first_error = first_error.or(done.err());
            page(listed)?;
        }
        first_error.map_or(Ok(()), Err)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        for name in names {
            // An open file would keep its space.
            self.open_files().remove(name);
            absent_is((), self.disk.remove(&name.path()))?;
        }
        self.sync_existing(&parents(names))?;
        let is_container = |name: &&ObjectName| matches!(name, ObjectName::Container(_) | ObjectName::Quarantined(_));
        self.remove_directories(&parents(names.iter().filter(is_container)))
    }

    fn quarantine(&self, names: &[ContainerName]) -> Result<()> {
        self.quarantine_containers(names)
    }

    fn quarantine_object(&self, session: SessionId, name: ObjectName, replacement: Option<&[u8]>) -> Result<()> {
        self.quarantine_file(session, name, replacement)
    }

    fn refresh_collections(&self, session: SessionId) -> Result<()> {
        self.touch_collections(session)
    }

    fn refresh_sessions(&self, session: SessionId) -> Result<()> {
        self.touch(session, Path::new(Prefix::Sessions.directory()))
    }

    fn refresh_containers(&self, session: SessionId) -> Result<()> {
        self.touch_containers(session)
    }

    fn try_handshake(&self, session: SessionId) -> Result<Handshake> {
        try_handshake(self, &Self::new(Arc::clone(&self.disk)), session)
    }

    fn abilities(&self) -> Abilities {
        Abilities { listed_is_durable: false }
    }

    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        self.find_leftovers(removes)
    }

    fn begin_creation(&self, session: SessionId) -> Result<CreationLock> {
        for name in names::DIRECTORIES {
            self.disk.create_dir(Path::new(name))?;
            self.disk.sync_dir(Path::new(name))?;
        }
        self.disk.sync_dir(Path::new(""))?;
        let lock = self.lock_creation()?;
        self.probe(session)?;
        Ok(Box::new(lock))
    }

    fn end_creation(&self, lock: CreationLock) {
        self.remove_temporary(Path::new(CREATION_LOCK));
        drop(lock);
    }

    fn complete(&self) -> Result<Vec<&'static str>> {
        let mut made = Vec::new();
        for name in names::DIRECTORIES {
            if !self.disk.exists(Path::new(name))? {
                self.disk.create_dir(Path::new(name))?;
                self.disk.sync_dir(Path::new(name))?;
                made.push(name);
            }
        }
        if !made.is_empty() {
            self.disk.sync_dir(Path::new(""))?;
        }
        // Programs before 0.2.0 make none for manifests.
        Ok(made.into_iter().filter(|name| *name != Prefix::Manifests.directory()).collect())
    }

    fn display(&self, key: &str) -> String {
        self.disk.display(Path::new(key))
    }
}
