//! A directory of the real file system, opened for reading through handles.
//!
//! The kernel resolves a path once, at the top. Below it, the source opens each directory by its name in its parent,
//! with `O_NOFOLLOW`. A tree may be deeper than the process's limit on open files, so only a limited number of handles
//! stay open. The source reopens the others in the same way when it needs them, and checks that each is still the same
//! directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};
use crate::io::os_entry::{self, LastLink, handle_path, retry};
use crate::io::os_pipe::PipeReader;
use crate::io::os_source_file::OsSourceFile;
use crate::io::tree::{Behind, ClosedEntry, EntryKind, Links, Metadata, SourceDirectory, SourceFile, Xattr};
use crate::monitor::Monitor;

/// Maximum number of directories that are open at the same time below each directory that was opened by its path.
const OPEN_DIRECTORIES_MAX: usize = 128;
/// Directories may use one part in this many of the process's limit on open files.
const DESCRIPTORS_SHARE: u64 = 8;
/// Minimum number of open directories that a walk needs: the current one, its parent, and some whose files wait.
const OPEN_DIRECTORIES_MIN: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics halfway through a change under these locks, so a poisoned lock protects a consistent value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens an entry for reading, without changing its access time if the kernel allows it. Never waits for the writer of
/// a pipe.
pub(super) fn open_for_reading(at: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| retry(|| rustix::fs::openat(at, name, flags, Mode::empty()));
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        outcome => outcome,
    }
}

/// Returns the attributes of the entry behind a handle that was opened with `O_PATH`. Without /proc, no call takes such a handle: they are
/// read at the path, if that leads to the entry before and after.
fn xattrs_of_handle(entry: BorrowedFd<'_>, path: &Path) -> Result<Vec<Xattr>, Errno> {
    match os_entry::xattrs(&handle_path(entry, Path::new("")), LastLink::Followed) {
        Err(Errno::NOENT) => {}
        outcome => return outcome,
    }
    let wanted = os_entry::stat(entry, Path::new(""), AtFlags::EMPTY_PATH)?.identity();
    let is_there = || Ok(os_entry::stat(CWD, path, AtFlags::empty())?.identity() == wanted);
    let found = if is_there()? { os_entry::xattrs(path, LastLink::NotFollowed)? } else { return Err(Errno::NOENT) };
    if is_there()? { Ok(found) } else { Err(Errno::NOENT) }
}

/// A handle of a directory.
#[derive(Debug)]
pub(super) struct Handle {
    fd: OwnedFd,
    /// False if the handle was opened with `O_PATH`, because the directory may be passed through but not listed.
    is_readable: bool,
    /// True if the handle's offset may no longer be at the beginning.
    is_listed: Mutex<bool>,
}

impl Handle {
    /// Opens a directory by a name, or by a path of the user.
    pub(crate) fn open(at: BorrowedFd<'_>, name: &Path, links: Links) -> Result<Self, Errno> {
        let follow = if links == Links::Followed { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::DIRECTORY | follow;
        let (fd, is_readable) = match open_for_reading(at, name, flags) {
            Err(Errno::ACCESS) => {
                let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
                (retry(|| rustix::fs::openat(at, name, flags, Mode::empty()))?, false)
            }
            opened => (opened?, true),
        };
        Ok(Self { fd, is_readable, is_listed: Mutex::new(false) })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn metadata(&self) -> Result<Metadata, Errno> {
        os_entry::stat(self.fd(), Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Lists at most so many bytes of names.
    fn list(&self, bytes_max: usize) -> Result<Option<Vec<OsString>>, Errno> {
        if !self.is_readable {
            // The directory was not readable when it was opened. This call fails with the same error unless that has changed.
            let directory = open_for_reading(self.fd(), Path::new("."), OFlags::DIRECTORY)?;
            return os_entry::names_in(directory.as_fd(), bytes_max);
        }
        let mut is_listed = lock(&self.is_listed);
        if *is_listed {
            retry(|| rustix::fs::seek(&self.fd, SeekFrom::Start(0)))?;
        }
        *is_listed = true;
        os_entry::names_in(self.fd(), bytes_max)
    }

    fn metadata_of(&self, name: &Path) -> Result<Metadata, Errno> {
        let metadata = os_entry::stat(self.fd(), name, AtFlags::empty())?;
        Ok(self.with_capacity(metadata, name, OFlags::NOFOLLOW))
    }

    fn metadata_behind(&self, name: &Path) -> Result<Metadata, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let entry = retry(|| rustix::fs::openat(self.fd(), name, flags, Mode::empty()))?;
        let metadata = os_entry::stat(entry.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?;
        Ok(self.with_capacity(metadata, name, OFlags::empty()))
    }

    fn with_capacity(&self, mut metadata: Metadata, name: &Path, follow: OFlags) -> Metadata {
        if metadata.kind == EntryKind::BlockDevice {
            // Without a medium, or permission to open the device, the capacity is unknown. The entry itself still exists.
            metadata.size = open_for_reading(self.fd(), name, follow)
                .and_then(|device| os_entry::stat_file(&device))
                .map_or(0, |opened| if opened.rdev == metadata.rdev { opened.size } else { 0 });
        }
        metadata
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>, Errno> {
        if self.is_readable { os_entry::xattrs_of(self.fd()) } else { xattrs_of_handle(self.fd(), path) }
    }

    fn xattrs_of(&self, name: &Path, path: &Path) -> Result<Vec<Xattr>, Errno> {
        match os_entry::xattrs(&handle_path(self.fd(), name), LastLink::NotFollowed) {
            Err(Errno::NOENT) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                xattrs_of_handle(retry(|| rustix::fs::openat(self.fd(), name, flags, Mode::empty()))?.as_fd(), path)
            }
            outcome => outcome,
        }
    }

    fn read_entry(&self, name: &Path, path: &Path) -> Result<ClosedEntry, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = retry(|| rustix::fs::openat(self.fd(), name, flags, Mode::empty()))?;
        let metadata = os_entry::stat(entry.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?;
        let link_target = if metadata.kind == EntryKind::Symlink {
            let target = rustix::fs::readlinkat(&entry, "", Vec::new())?;
            Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
        } else {
            None
        };
        let xattrs =
            xattrs_of_handle(entry.as_fd(), path).map_err(|error| Error::io("read attributes of", path, error.into()));
        Ok(ClosedEntry { metadata, link_target, xattrs })
    }
}

/// The directories that may have open handles, in the order in which the clock algorithm examines them.
#[derive(Debug)]
struct Pool {
    open_max: usize,
    /// Whether the kernel is asked for attributes by a name in a handle: until it shows that it cannot answer.
    asks_by_name: AtomicBool,
    open: Mutex<VecDeque<Weak<Inner>>>,
}

impl Pool {
    fn of_process() -> Self {
        let share = getrlimit(Resource::Nofile).current.map_or(OPEN_DIRECTORIES_MAX, |limit| {
            usize::try_from(limit / DESCRIPTORS_SHARE).unwrap_or(OPEN_DIRECTORIES_MAX)
        });
        Self::new(share.clamp(OPEN_DIRECTORIES_MIN, OPEN_DIRECTORIES_MAX))
    }

    fn new(open_max: usize) -> Self {
        Self { open_max, asks_by_name: AtomicBool::new(true), open: Mutex::default() }
    }

    /// Counts a directory as open. If too many are open, closes the first one that was not used since the algorithm last
    /// examined it (the clock algorithm).
    fn count(&self, directory: &Arc<Inner>) {
        let mut open = lock(&self.open);
        let mut spared = 0;
        while self.open_max <= open.len() {
            let Some(oldest) = open.pop_front() else { break };
            let Some(live) = oldest.upgrade() else { continue };
            if live.is_used.swap(false, Ordering::Relaxed) && spared < self.open_max {
                spared += 1;
                open.push_back(oldest);
            } else {
                lock(&live.handle).take();
            }
        }
        open.push_back(Arc::downgrade(directory));
    }
}

/// The parent of a directory, and the way in which the directory was opened in it.
#[derive(Debug)]
struct Above {
    directory: Arc<Inner>,
    name: OsString,
    links: Links,
}

#[derive(Debug)]
struct Inner {
    pool: Arc<Pool>,
    /// The parent, or `None` if the directory was opened by a path of the user. In that case the handle stays open.
    above: Option<Above>,
    /// For messages.
    path: PathBuf,
    /// The metadata from when the directory was first opened.
    metadata: Metadata,
    handle: Mutex<Option<Arc<Handle>>>,
    is_used: AtomicBool,
}

impl Inner {
    fn open_handle(&self) -> Option<Arc<Handle>> {
        self.is_used.store(true, Ordering::Relaxed);
        lock(&self.handle).clone()
    }

    /// Returns the handle. If it was closed, reopens it by name, starting from the nearest open directory above it.
    fn handle(self: &Arc<Self>) -> Result<Arc<Handle>> {
        if let Some(handle) = self.open_handle() {
            return Ok(handle);
        }
        let mut closed = vec![(Arc::clone(self), self.above())];
        let mut handle = loop {
            let (_, above) = closed.last().expect("one more until the loop ends");
            match above.directory.open_handle() {
                Some(handle) => break handle,
                None => closed.push((Arc::clone(&above.directory), above.directory.above())),
            }
        };
        while let Some((directory, above)) = closed.pop() {
            let opened = Handle::open(handle.fd(), Path::new(&above.name), above.links);
            let opened = opened.and_then(|opened| Ok((opened.metadata()?, opened)));
            let (found, opened) = opened.map_err(|error| Error::io("open again", &directory.path, error.into()))?;
            if (found.device, found.inode) != (directory.metadata.device, directory.metadata.inode) {
                let reason =
                    format!("{}: was replaced by another directory while it was read", directory.path.display());
                return Err(Error::invalid(reason));
            }
            handle = Arc::new(opened);
            *lock(&directory.handle) = Some(Arc::clone(&handle));
            directory.pool.count(&directory);
        }
        Ok(handle)
    }

    fn above(&self) -> &Above {
        self.above.as_ref().expect("a directory without one above is never closed")
    }
}

impl Drop for Inner {
    /// Frees the directories above in a loop, because recursion could overflow the stack in a deep tree.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut inner) = above.and_then(|above| Arc::into_inner(above.directory)) {
            above = inner.above.take();
        }
    }
}

/// A directory of this host.
#[derive(Clone, Debug)]
pub(super) struct OsDirectory(Arc<Inner>);

impl OsDirectory {
    /// Wraps a directory that was opened by a path of the user.
    pub(crate) fn of(handle: Handle, path: &Path) -> Result<Self> {
        Self::new(handle, path.to_path_buf(), None, Arc::new(Pool::of_process()))
    }

    fn new(handle: Handle, path: PathBuf, above: Option<Above>, pool: Arc<Pool>) -> Result<Self> {
        let metadata = handle.metadata().map_err(|error| Error::io("read metadata of", &path, error.into()))?;
        let is_kept = above.is_none();
        let handle = Mutex::new(Some(Arc::new(handle)));
        let inner = Arc::new(Inner { pool, above, path, metadata, handle, is_used: AtomicBool::new(true) });
        if !is_kept {
            inner.pool.count(&inner);
        }
        Ok(Self(inner))
    }

    fn enter(&self, name: &OsStr, links: Links) -> Result<Self> {
        let handle = self.at("open", name, |handle, name| Handle::open(handle.fd(), name, links))?;
        let above = Above { directory: Arc::clone(&self.0), name: name.to_os_string(), links };
        Self::new(handle, self.0.path.join(name), Some(above), Arc::clone(&self.0.pool))
    }

    /// Performs an action on the directory itself.
    fn here<T>(&self, operation: &'static str, action: impl FnOnce(&Handle) -> Result<T, Errno>) -> Result<T> {
        let handle = self.0.handle()?;
        action(&handle).map_err(|error| Error::io(operation, &self.0.path, error.into()))
    }

    /// Performs an action on an entry.
    fn at<T>(
        &self,
        operation: &'static str,
        name: &OsStr,
        action: impl FnOnce(&Handle, &Path) -> Result<T, Errno>,
    ) -> Result<T> {
        let handle = self.0.handle()?;
        action(&handle, Path::new(name)).map_err(|error| Error::io(operation, &self.0.path.join(name), error.into()))
    }
}

impl SourceDirectory for OsDirectory {
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.0.metadata.clone())
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.here("read attributes of", |handle| handle.xattrs(&self.0.path))
    }

    fn list(&self) -> Result<Vec<OsString>> {
        Ok(self.here("list", |handle| handle.list(usize::MAX))?.unwrap_or_default())
    }

    fn list_within(&self, bytes_max: usize) -> Result<Option<Vec<OsString>>> {
        self.here("list", |handle| handle.list(bytes_max))
    }

    fn open_dir(&self, name: &OsStr, links: Links) -> Result<Arc<dyn SourceDirectory>> {
        Ok(Arc::new(self.enter(name, links)?))
    }

    fn open(&self, name: &OsStr) -> Result<Box<dyn SourceFile>> {
        let file = self.at("open", name, |handle, name| open_for_reading(handle.fd(), name, OFlags::NOFOLLOW))?;
        Ok(Box::new(OsSourceFile::of(file, self.0.path.join(name))?))
    }

    fn open_behind(&self, name: &OsStr, monitor: &Arc<dyn Monitor>) -> Result<Behind> {
        let file = self.at("open", name, |handle, name| open_for_reading(handle.fd(), name, OFlags::empty()))?;
        let path = self.0.path.join(name);
        let metadata =
            os_entry::stat_file(&file).map_err(|error| Error::io("read metadata of", &path, error.into()))?;
        if metadata.kind != EntryKind::Fifo {
            return Ok(Behind::File(Box::new(OsSourceFile::of(file, path)?)));
        }
        let reader = Box::new(PipeReader::new(file, path.clone(), Arc::clone(monitor)));
        Ok(Behind::Pipe { path, metadata, reader })
    }

    fn metadata_of(&self, name: &OsStr) -> Result<Metadata> {
        self.at("read metadata of", name, Handle::metadata_of)
    }

    fn metadata_behind(&self, name: &OsStr) -> Result<Metadata> {
        self.at("read metadata of", name, Handle::metadata_behind)
    }

    fn is_mount_point(&self, name: &OsStr) -> bool {
        let known = |handle: &Handle, name: &Path| os_entry::is_mount_point(handle.fd(), name);
        self.at("read metadata of", name, known).unwrap_or(true)
    }

    fn xattrs_of(&self, name: &OsStr) -> Result<Vec<Xattr>> {
        let path = self.0.path.join(name);
        self.at("read attributes of", name, |handle, name| handle.xattrs_of(name, &path))
    }

    fn claimed_xattrs(&self, name: &OsStr) -> Result<Vec<Xattr>> {
        let pool = &self.0.pool;
        if pool.asks_by_name.load(Ordering::Relaxed) {
            match self.at("read attributes of", name, |handle, name| os_entry::has_xattrs_at(handle.fd(), name))? {
                Some(false) => return Ok(Vec::new()),
                Some(true) => {}
                None => pool.asks_by_name.store(false, Ordering::Relaxed),
            }
        }
        // The plain path costs less than the handle's path in /proc: 0.7 s of system time instead of 0.9 s for 120,000
        // unchanged files. The path may lead to another entry by now.
        match os_entry::xattrs(&self.0.path.join(name), LastLink::NotFollowed) {
            Ok(found) => Ok(found),
            Err(_) => self.xattrs_of(name),
        }
    }

    fn read_entry(&self, name: &OsStr) -> Result<ClosedEntry> {
        self.at("read", name, |handle, name| handle.read_entry(name, &self.0.path.join(name)))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare real files")]
mod tests {
    use std::fs;

    use super::*;

    const DEPTH: usize = 40;
    const OPEN_MAX: usize = 4;

    /// Creates nested directories and opens all of them, with few handles open at a time.
    fn chain(root: &Path) -> Vec<OsDirectory> {
        let mut path = root.to_path_buf();
        for number in 0..DEPTH {
            path.push(format!("d{number}"));
        }
        fs::create_dir_all(&path).unwrap();
        let handle = Handle::open(CWD, root, Links::Followed).unwrap();
        let pool = Arc::new(Pool::new(OPEN_MAX));
        let mut chain = vec![OsDirectory::new(handle, root.to_path_buf(), None, pool).unwrap()];
        for number in 0..DEPTH {
            let last = chain.last().unwrap();
            chain.push(last.enter(OsStr::new(&format!("d{number}")), Links::NotFollowed).unwrap());
        }
        chain
    }

    fn open_count(chain: &[OsDirectory]) -> usize {
        chain.iter().filter(|directory| lock(&directory.0.handle).is_some()).count()
    }

    #[test]
    fn directories_closed_to_save_handles_are_opened_again() {
        let root = tempfile::tempdir().unwrap();
        let chain = chain(root.path());
        // The topmost directory stays open, too.
        assert!(open_count(&chain) <= OPEN_MAX + 1);
        for step in [1, 7, 13] {
            for number in (0..DEPTH).map(|number| number * step % DEPTH) {
                assert_eq!(chain[number].list().unwrap(), [format!("d{number}").as_str()]);
                assert!(open_count(&chain) <= OPEN_MAX + 1);
            }
        }
        assert_eq!(chain[DEPTH].list().unwrap(), Vec::<OsString>::new());
        // Both calls use the same handle.
        assert_eq!(chain[0].list().unwrap(), ["d0"]);
        assert_eq!(chain[0].list().unwrap(), ["d0"]);
    }

    #[test]
    fn a_directory_that_was_replaced_while_it_was_closed_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let chain = chain(root.path());
        assert!(lock(&chain[20].0.handle).is_none());
        let path = chain[20].0.path.clone();
        fs::rename(&path, root.path().join("away")).unwrap();
        assert!(chain[20].list().unwrap_err().to_string().contains("d19"));
        std::os::unix::fs::symlink(root.path().join("away"), &path).unwrap();
        assert!(matches!(chain[20].list(), Err(Error::Io { .. })));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = chain[20].list().unwrap_err();
        assert!(error.to_string().contains("replaced by another directory"), "{error}");
        // After the directory is back, all directories below it are readable again.
        fs::remove_dir(&path).unwrap();
        fs::rename(root.path().join("away"), &path).unwrap();
        assert_eq!(chain[30].list().unwrap(), ["d30"]);
    }

    #[test]
    fn names_are_listed_within_a_limit_and_again_after_it() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            fs::write(root.path().join(format!("file{number:04}")), b"").unwrap();
        }
        let handle = Handle::open(CWD, root.path(), Links::Followed).unwrap();
        let directory = OsDirectory::of(handle, root.path()).unwrap();
        let bytes = 2000 * (size_of::<OsString>() + 8);
        assert_eq!(directory.list_within(bytes - 1).unwrap(), None);
        let names = directory.list_within(bytes).unwrap().unwrap();
        assert_eq!((names.len(), names.is_sorted()), (2000, true));
        assert_eq!(directory.list_within(0).unwrap(), None);
        assert_eq!(directory.list().unwrap(), names);
    }

    #[test]
    fn attributes_are_the_same_however_the_kernel_is_asked() {
        let root = tempfile::tempdir().unwrap();
        let (with, without) = (root.path().join("with"), root.path().join("without"));
        fs::write(&with, b"").unwrap();
        fs::write(&without, b"").unwrap();
        std::os::unix::fs::symlink("with", root.path().join("link")).unwrap();
        // Where the file system has no attributes, all lists are empty, and that is compared.
        let _unsupported = rustix::fs::lsetxattr(&with, "user.name", b"value", rustix::fs::XattrFlags::empty());
        for asks_by_name in [true, false] {
            let handle = Handle::open(CWD, root.path(), Links::Followed).unwrap();
            let directory = OsDirectory::of(handle, root.path()).unwrap();
            directory.0.pool.asks_by_name.store(asks_by_name, Ordering::Relaxed);
            for name in ["with", "without", "link"] {
                let name = OsStr::new(name);
                assert_eq!(directory.claimed_xattrs(name).unwrap(), directory.xattrs_of(name).unwrap(), "{name:?}");
            }
            let error = directory.claimed_xattrs(OsStr::new("missing")).unwrap_err();
            assert_eq!(error.io_kind(), Some(std::io::ErrorKind::NotFound));
        }
    }

    #[test]
    fn a_deep_tree_is_let_go_without_recursion() {
        let root = tempfile::tempdir().unwrap();
        let mut directory = chain(root.path())[0].clone();
        let name = OsStr::new("d0");
        // The chain is deeper than any stack, and each link is the same directory.
        for _ in 0..200_000 {
            let above =
                Some(Above { directory: Arc::clone(&directory.0), name: name.into(), links: Links::NotFollowed });
            let (pool, metadata) = (Arc::clone(&directory.0.pool), directory.0.metadata.clone());
            let (path, handle, is_used) = (PathBuf::new(), Mutex::default(), AtomicBool::new(false));
            directory = OsDirectory(Arc::new(Inner { pool, above, path, metadata, handle, is_used }));
        }
        drop(directory);
    }
}
