//! A directory of the real file system that is written into, never out of.
//!
//! Every path is resolved by `openat2` from the root's handle with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and
//! `RESOLVE_NO_MAGICLINKS`, so that the kernel itself refuses whatever is planted on the way. Handles of parents are
//! not kept between calls: one call resolves a whole path, and a kept handle would follow a directory that has been
//! moved out of the root meanwhile.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_attributes;
use crate::io::os_entry::{self, PATH_LEN_MAX, handle_path, retry};
use crate::io::tree::{EntryKind, Metadata, TargetFile, TargetTree, Trust, Xattr};

/// Tries at a resolution that the kernel could not finish because something was being renamed.
const RESOLVE_TRIES_MAX: u32 = 64;

/// Tries at a name for the probe of [`TargetTree::folds_case`] that nobody uses.
const PROBE_TRIES_MAX: u32 = 64;

/// Bytes of zeros written at once where a hole cannot be made.
const ZEROS_LEN: usize = 64 * 1024;

static ZEROS: [u8; ZEROS_LEN] = [0; ZEROS_LEN];

/// How every path below the root is resolved.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A directory of this host that entries are restored into.
///
/// Needs Linux 5.6 or later and a mounted `/proc`. Nothing is synced: a restore that a power cut interrupts is run
/// again.
#[derive(Debug)]
pub struct OsTarget {
    root: OwnedFd,
    path: PathBuf,
}

impl OsTarget {
    /// Opens an existing directory. A symbolic link as its last component is the user's choice and is followed.
    ///
    /// Fails with [`Error::Invalid`] on a system that cannot resolve paths safely.
    pub fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::openat(CWD, root, flags, Mode::empty()))
            .map_err(|error| Error::io("open", root, error.into()))?;
        let target = Self { root: fd, path: root.to_path_buf() };
        match resolve_once(target.root.as_fd(), OsStr::new("."), OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => {}
            Err(Errno::NOSYS) => {
                return Err(Error::invalid(
                    "this kernel cannot keep a restore inside its target: openat2 (Linux 5.6 or later) is needed",
                ));
            }
            Err(error) => return Err(Error::io("open", root, error.into())),
        }
        rustix::fs::statat(CWD, handle_path(target.root.as_fd(), Path::new("")), AtFlags::empty())
            .map_err(|error| Error::invalid(format!("restoring needs /proc to be mounted: {error}")))?;
        Ok(target)
    }

    /// Opens a directory, created with its parents where they do not exist.
    ///
    /// This is the user's own path: symbolic links in it are followed.
    pub fn create(root: &Path) -> Result<Self> {
        let mut missing = Vec::new();
        let mut path = root;
        loop {
            // The empty path stands for the working directory, which exists.
            if path.as_os_str().is_empty() {
                break;
            }
            match rustix::fs::statat(CWD, path, AtFlags::empty()) {
                Ok(_) => break,
                Err(Errno::NOENT) => missing.push(path),
                Err(error) => return Err(Error::io("create", root, error.into())),
            }
            let Some(parent) = path.parent() else { break };
            path = parent;
        }
        for path in missing.iter().rev() {
            match rustix::fs::mkdirat(CWD, *path, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::io("create", path, error.into())),
            }
        }
        Self::open(if root.as_os_str().is_empty() { Path::new(".") } else { root })
    }

    /// Opens an entry by its names, in as many pieces as the kernel's limit on paths asks for.
    fn resolve(&self, names: &Names<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        if names.0.is_empty() {
            return resolve_once(self.root.as_fd(), OsStr::new("."), flags);
        }
        let mut rest = names.0;
        let mut front: Option<OwnedFd> = None;
        while PATH_LEN_MAX < rest.len() {
            let (head, _) = rest.split_at_checked(PATH_LEN_MAX).ok_or(Errno::NAMETOOLONG)?;
            let cut = head.iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let (head, tail) = rest.split_at_checked(cut).ok_or(Errno::NAMETOOLONG)?;
            let directory = front.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let opened = resolve_once(directory, OsStr::from_bytes(head), OFlags::PATH | OFlags::DIRECTORY)?;
            front = Some(opened);
            rest = tail.strip_prefix(b"/").unwrap_or(tail);
        }
        let directory = front.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
        resolve_once(directory, OsStr::from_bytes(rest), flags)
    }

    /// Opens the directory that an entry is in and returns it with the entry's name; the root has none.
    fn parent<'a>(&self, names: &Names<'a>) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let (parent, name) = names.split().ok_or(Errno::EXIST)?;
        Ok((self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }

    /// Does something at a path, checked, and names the path if that fails.
    fn at<'a, T>(
        &self,
        operation: &'static str,
        path: &'a Path,
        action: impl FnOnce(&Names<'a>) -> Result<T, Errno>,
    ) -> Result<T> {
        let names = Names::of(path)?;
        action(&names).map_err(|error| Error::io(operation, &self.path.join(path), error.into()))
    }

    fn file(&self, path: &Path, file: OwnedFd) -> OsTargetFile {
        OsTargetFile { file, path: self.path.join(path) }
    }

    /// Removes a directory with all it holds, depth first, without a handle or a stack frame per level.
    ///
    /// Each step resolves the path anew, so that a directory swapped for a link meanwhile ends the removal.
    fn remove_directory(&self, names: &Names<'_>) -> Result<(), Errno> {
        // Directories still to be emptied at each level below the first.
        let mut levels: Vec<Vec<OsString>> = Vec::new();
        let mut path = OsString::from(OsStr::from_bytes(names.0));
        loop {
            let current = Names(path.as_bytes());
            let directories = self.remove_files(&current)?;
            if let Some(name) = directories.last() {
                if !path.is_empty() {
                    path.push("/");
                }
                path.push(name);
                levels.push(directories);
                continue;
            }
            // Nothing is left in here: it goes, and so do its parents for as long as it was the last in them.
            loop {
                let current = Names(path.as_bytes());
                let (parent, name) = self.parent(&current)?;
                retry(|| rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR))?;
                let Some(siblings) = levels.last_mut() else { return Ok(()) };
                siblings.pop();
                let (above, _) = current.split().ok_or(Errno::NOENT)?;
                let above = OsString::from(OsStr::from_bytes(above.0));
                path = above;
                if let Some(next) = siblings.last() {
                    path.push("/");
                    path.push(next);
                    break;
                }
                levels.pop();
            }
        }
    }

    /// Removes everything but directories from a directory and returns the names of those.
    fn remove_files(&self, names: &Names<'_>) -> Result<Vec<OsString>, Errno> {
        let directory = self.resolve(names, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let handle = resolve_once(directory.as_fd(), OsStr::new("."), OFlags::PATH | OFlags::DIRECTORY)?;
        let mut directories = Vec::new();
        for name in os_entry::list(directory)? {
            let entry = os_entry::stat(handle.as_fd(), Path::new(&name), AtFlags::empty())?;
            if entry.kind == EntryKind::Directory {
                directories.push(name);
            } else {
                retry(|| rustix::fs::unlinkat(&handle, &name, AtFlags::empty()))?;
            }
        }
        Ok(directories)
    }
}

/// Opens a path below a directory handle, beneath it and through no link.
fn resolve_once(directory: BorrowedFd<'_>, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let mut outcome = Err(Errno::AGAIN);
    for _ in 0..RESOLVE_TRIES_MAX {
        outcome = retry(|| rustix::fs::openat2(directory, path, flags, mode, RESOLVE));
        if !matches!(outcome, Err(Errno::AGAIN)) {
            break;
        }
    }
    outcome
}

/// A checked path: plain names with a slash between them, empty for the root.
#[derive(Clone, Copy, Debug)]
struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    /// Refuses every path that is not plain names below the root.
    fn of(path: &'a Path) -> Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        if bytes.is_empty() || bytes.split(|byte| *byte == b'/').all(plain) {
            Ok(Self(bytes))
        } else {
            Err(Error::invalid(format!("{:?}: not a path of plain names below the target", path.display())))
        }
    }

    /// Splits off the last name; the root has none.
    fn split(&self) -> Option<(Names<'a>, &'a OsStr)> {
        if self.0.is_empty() {
            return None;
        }
        let (parent, name) = match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.0.get(..slash)?, self.0.get(slash + 1..)?),
            None => (&[][..], self.0),
        };
        Some((Names(parent), OsStr::from_bytes(name)))
    }
}

impl TargetTree for OsTarget {
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.at("read metadata of", path, |names| match self.resolve(names, OFlags::PATH) {
            Ok(entry) => os_entry::stat(entry.as_fd(), Path::new(""), AtFlags::EMPTY_PATH).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        self.at("list", path, |names| os_entry::list(self.resolve(names, OFlags::RDONLY | OFlags::DIRECTORY)?))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.at("create directory", path, |names| {
            if names.0.is_empty() {
                return Ok(());
            }
            let (parent, name) = self.parent(names)?;
            match retry(|| rustix::fs::mkdirat(&parent, name, Mode::RWXU)) {
                Err(Errno::EXIST) => match os_entry::stat(parent.as_fd(), Path::new(name), AtFlags::empty())?.kind {
                    EntryKind::Directory => Ok(()),
                    _ => Err(Errno::NOTDIR),
                },
                outcome => outcome,
            }
        })
    }

    fn create_file(&self, path: &Path, len: u64) -> Result<Box<dyn TargetFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.at("create file", path, |names| {
            if names.0.is_empty() {
                return Err(Errno::EXIST);
            }
            self.resolve(names, flags)
        })?;
        let file = self.file(path, file);
        if len != 0 {
            file.set_len(len)?;
        }
        Ok(Box::new(file))
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let file = self.at("open", path, |names| self.resolve(names, flags))?;
        let kind = os_entry::stat(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)
            .map_err(|error| Error::io("open", &self.path.join(path), error.into()))?
            .kind;
        if kind != EntryKind::File {
            return Err(Error::invalid(format!("open {}: not a regular file", self.path.join(path).display())));
        }
        Ok(Box::new(self.file(path, file)))
    }

    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()> {
        self.at("create link", path, |names| {
            let (parent, name) = self.parent(names)?;
            retry(|| rustix::fs::symlinkat(points_to, &parent, name))
        })
    }

    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()> {
        let (file_type, device) = match kind {
            EntryKind::Fifo => (FileType::Fifo, 0),
            EntryKind::Socket => (FileType::Socket, 0),
            EntryKind::CharDevice => (FileType::CharacterDevice, rdev),
            EntryKind::BlockDevice => (FileType::BlockDevice, rdev),
            EntryKind::File | EntryKind::Directory | EntryKind::Symlink => {
                return Err(Error::invalid(format!("create {}: not a special file", path.display())));
            }
        };
        self.at("create special file", path, |names| {
            let (parent, name) = self.parent(names)?;
            retry(|| rustix::fs::mknodat(&parent, name, file_type, Mode::RUSR | Mode::WUSR, device))
        })
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()> {
        Names::of(new)?;
        let (from, old_name) = self.at("link", existing, |names| {
            let (parent, name) = self.parent(names)?;
            match os_entry::stat(parent.as_fd(), Path::new(name), AtFlags::empty())?.kind {
                EntryKind::Directory => Err(Errno::ISDIR),
                EntryKind::Symlink => Err(Errno::LOOP),
                _ => Ok((parent, name)),
            }
        })?;
        self.at("link", new, |names| {
            let (to, new_name) = self.parent(names)?;
            // Without AT_SYMLINK_FOLLOW: a link planted since the check above is linked as such and leads nowhere.
            retry(|| rustix::fs::linkat(&from, old_name, &to, new_name, AtFlags::empty()))
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.at("remove", path, |names| {
            let (parent, name) = names.split().ok_or(Errno::BUSY)?;
            let parent = self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?;
            match os_entry::stat(parent.as_fd(), Path::new(name), AtFlags::empty())?.kind {
                EntryKind::Directory => self.remove_directory(names),
                _ => retry(|| rustix::fs::unlinkat(&parent, name, AtFlags::empty())),
            }
        })
    }

    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Vec<String>> {
        self.at("set metadata of", path, |names| {
            let entry = self.resolve(names, OFlags::PATH)?;
            os_attributes::set(entry.as_fd(), metadata, xattrs, trust)
        })
    }

    fn folds_case(&self) -> Result<bool> {
        let process = rustix::process::getpid().as_raw_nonzero();
        for attempt in 0..PROBE_TRIES_MAX {
            let lower = PathBuf::from(format!(".onefold-probe-{process}-{attempt}"));
            match self.create_file(&lower, 0) {
                Ok(_) => {}
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => continue,
                Err(error) => return Err(error),
            }
            let upper = PathBuf::from(lower.to_string_lossy().to_uppercase());
            let found = self.metadata(&upper);
            self.remove(&lower)?;
            return Ok(found?.is_some());
        }
        Err(Error::invalid(format!("{}: no free name to find out about case", self.path.display())))
    }
}

/// A file inside the target.
#[derive(Debug)]
struct OsTargetFile {
    file: OwnedFd,
    path: PathBuf,
}

impl OsTargetFile {
    fn error(&self, operation: &'static str, error: Errno) -> Error {
        Error::io(operation, &self.path, error.into())
    }
}

impl TargetFile for OsTargetFile {
    fn len(&self) -> Result<u64> {
        os_entry::stat(self.file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)
            .map(|metadata| metadata.size)
            .map_err(|error| self.error("read length of", error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            match rustix::io::pwrite(&self.file, rest, at) {
                Ok(0) => return Err(self.error("write", Errno::IO)),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    at = at.checked_add(count as u64).ok_or_else(|| self.error("write", Errno::FBIG))?;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error("write", error)),
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        os_entry::read_at(&self.file, offset, buffer).map_err(|error| self.error("read", error))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        retry(|| rustix::fs::ftruncate(&self.file, len)).map_err(|error| self.error("set length of", error))
    }

    fn set_metadata(&self, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Vec<String>> {
        os_attributes::set_of_file(self.file.as_fd(), metadata, xattrs, trust)
            .map_err(|error| self.error("set metadata of", error))
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        // Neither way may grow the file: punching does not, so zeros must not either.
        let range = range.start..range.end.min(self.len()?);
        let Some(len) = range.end.checked_sub(range.start).filter(|len| *len != 0) else { return Ok(()) };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| rustix::fs::fallocate(&self.file, flags, range.start, len)) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(self.error("make a hole in", error)),
        }
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(ZEROS_LEN as u64);
            let zeros = usize::try_from(count).ok().and_then(|count| ZEROS.get(..count)).unwrap_or(&ZEROS);
            self.write_at(at, zeros)?;
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests look at what the target did")]
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::io::mem_tree::MemTree;
    use crate::io::os_source::OsSource;
    use crate::io::tree::SourceTree;
    use crate::types::Timestamp;

    struct Fixture {
        dir: tempfile::TempDir,
        target: OsTarget,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let target = OsTarget::create(&dir.path().join("not/yet/there")).unwrap();
            Self { dir, target }
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("not/yet/there")
        }

        fn metadata(&self, kind: EntryKind, mode: u32) -> Metadata {
            let mut metadata = OsSource.metadata(self.dir.path()).unwrap();
            metadata.kind = kind;
            metadata.mode = mode;
            metadata.mtime = Timestamp { seconds: -5, nanoseconds: 123_456_789 };
            metadata
        }
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped in part: needs root");
        }
        root
    }

    fn xattr(name: &str, value: &[u8]) -> Xattr {
        Xattr { name: name.into(), value: value.to_vec() }
    }

    /// Writes whatever a source holds into a target, as a restore does.
    fn copy(source: &dyn SourceTree, target: &dyn TargetTree, trust: Trust) -> Vec<String> {
        let mut seen: std::collections::BTreeMap<u64, PathBuf> = std::collections::BTreeMap::new();
        let mut todo = vec![PathBuf::new()];
        let mut entries = Vec::new();
        while let Some(path) = todo.pop() {
            let from = Path::new("/").join(&path);
            let metadata = source.metadata(&from).unwrap();
            match metadata.kind {
                EntryKind::Directory => {
                    target.create_dir(&path).unwrap();
                    todo.extend(SourceTree::list(source, &from).unwrap().into_iter().map(|name| path.join(name)));
                }
                _ if seen.contains_key(&metadata.inode) => {
                    target.hard_link(&seen[&metadata.inode], &path).unwrap();
                    continue;
                }
                EntryKind::File => {
                    let read = source.open(&from).unwrap();
                    let write = target.create_file(&path, metadata.size).unwrap();
                    let mut offset = 0;
                    while let Some(range) = read.next_data(offset).unwrap() {
                        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
                        assert_eq!(read.read_at(range.start, &mut bytes).unwrap(), bytes.len());
                        write.write_at(range.start, &bytes).unwrap();
                        offset = range.end;
                    }
                }
                EntryKind::Symlink => {
                    target.create_symlink(&path, source.read_link(&from).unwrap().as_os_str()).unwrap();
                }
                kind => target.create_special(&path, kind, metadata.rdev).unwrap(),
            }
            seen.insert(metadata.inode, path.clone());
            entries.push((path, metadata, source.xattrs(&from).unwrap()));
        }
        let mut refused = Vec::new();
        for (path, metadata, xattrs) in entries.iter().rev() {
            refused.extend(target.set_metadata(path, metadata, xattrs, trust).unwrap());
        }
        refused
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    /// Makes a tree with every kind of entry, odd names, holes, hard links, attributes and times of any century.
    fn random_tree(random: &mut Random, root: bool) -> MemTree {
        let tree = MemTree::new();
        let mut directories = vec![PathBuf::new()];
        let mut linkable: Vec<PathBuf> = Vec::new();
        for number in 0..5 + random.below(40) {
            let mut name = format!("{number}-").into_bytes();
            name.extend((0..random.below(20)).map(|_| match random.below(256).to_le_bytes()[0] {
                0 | b'/' => b'\n',
                byte => byte,
            }));
            let directory = &directories[usize::try_from(random.below(directories.len() as u64)).unwrap()];
            let path = directory.join(OsStr::from_bytes(&name));
            let kinds = if root { 9 } else { 7 };
            match random.below(kinds) {
                0 => {
                    tree.create_dir(&path).unwrap();
                    directories.push(path.clone());
                }
                1 => tree.create_symlink(&path, OsStr::from_bytes(&name)).unwrap(),
                2 if !linkable.is_empty() => {
                    let existing = &linkable[usize::try_from(random.below(linkable.len() as u64)).unwrap()];
                    tree.hard_link(existing, &path).unwrap();
                    continue;
                }
                3 => tree.create_special(&path, EntryKind::Fifo, 0).unwrap(),
                4 => tree.create_special(&path, EntryKind::Socket, 0).unwrap(),
                7 => tree.create_special(&path, EntryKind::CharDevice, rustix::fs::makedev(1, 3)).unwrap(),
                8 => tree.create_special(&path, EntryKind::BlockDevice, rustix::fs::makedev(7, 300)).unwrap(),
                _ => {
                    let file = tree.create_file(&path, random.below(100_000)).unwrap();
                    for _ in 0..random.below(3) {
                        let bytes = vec![random.below(256).to_le_bytes()[0]; 10_000];
                        file.write_at(random.below(500_000), &bytes).unwrap();
                    }
                }
            }
            let kind = SourceTree::metadata(&tree, &Path::new("/").join(&path)).unwrap().kind;
            if !matches!(kind, EntryKind::Directory | EntryKind::Symlink) {
                linkable.push(path);
            }
        }
        dress(&tree, random, root);
        tree
    }

    /// Gives every entry metadata and attributes of its own.
    fn dress(tree: &MemTree, random: &mut Random, root: bool) {
        let mut todo = vec![PathBuf::from("/")];
        while let Some(path) = todo.pop() {
            let kind = SourceTree::metadata(tree, &path).unwrap().kind;
            if kind == EntryKind::Directory {
                todo.extend(SourceTree::list(tree, &path).unwrap().into_iter().map(|name| path.join(name)));
            }
            tree.edit(&path, |metadata| {
                metadata.mtime = Timestamp {
                    seconds: i64::try_from(random.below(4_000_000_000)).unwrap() - 2_000_000_000,
                    nanoseconds: u32::try_from(random.below(1_000_000_000)).unwrap(),
                };
                // Normal users must be able to read their tree back, and may not give it away.
                metadata.mode = u32::try_from(random.below(0o10000)).unwrap();
                if root {
                    metadata.uid = u32::try_from(random.below(70_000)).unwrap();
                    metadata.gid = u32::try_from(random.below(70_000)).unwrap();
                } else {
                    metadata.uid = rustix::process::geteuid().as_raw();
                    metadata.gid = rustix::process::getegid().as_raw();
                    metadata.mode = metadata.mode & 0o777 | 0o700;
                }
            });
            let mut xattrs = Vec::new();
            for number in 0..random.below(3) {
                let value = vec![b'v'; usize::try_from(random.below(300)).unwrap()];
                if matches!(kind, EntryKind::File | EntryKind::Directory) {
                    xattrs.push(xattr(&format!("user.test{number}"), &value));
                }
                if root {
                    xattrs.push(xattr(&format!("trusted.test{number}"), &value));
                }
            }
            tree.set_xattrs(&path, &xattrs);
        }
    }

    #[test]
    fn any_tree_written_is_read_back_the_same() {
        let root = is_root();
        for seed in 0..30 {
            let fixture = Fixture::new();
            let tree = random_tree(&mut Random(seed), root);
            assert_eq!(copy(&tree, &fixture.target, Trust::Full), Vec::<String>::new(), "seed {seed}");
            let back = MemTree::load(&OsSource, &fixture.root()).unwrap();
            assert_eq!(tree.diff(&back), Vec::<String>::new(), "seed {seed}");
            // The double agrees with the real one.
            let double = MemTree::new();
            copy(&tree, &double, Trust::Full);
            assert_eq!(tree.diff(&double), Vec::<String>::new(), "seed {seed}");
            // Nothing is left when everything is removed.
            for name in fixture.target.list(Path::new("")).unwrap() {
                fixture.target.remove(Path::new(&name)).unwrap();
            }
            assert_eq!(fixture.target.list(Path::new("")).unwrap(), Vec::<OsString>::new(), "seed {seed}");
        }
    }

    #[test]
    fn paths_that_are_not_plain_names_are_refused() {
        let Fixture { dir: _dir, target } = Fixture::new();
        target.create_dir(Path::new("a")).unwrap();
        for path in ["/", "/a", "..", ".", "a/", "a//b", "a/../b", "a/./b", "../a", "a\0b", "./a", "a/.."] {
            let path = Path::new(path);
            let refused = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Invalid { .. })), "{path:?}");
            refused(target.metadata(path).map(|_| ()));
            refused(target.list(path).map(|_| ()));
            refused(target.create_dir(path));
            refused(target.create_file(path, 0).map(|_| ()));
            refused(target.open_file(path).map(|_| ()));
            refused(target.create_symlink(path, OsStr::new("x")));
            refused(target.create_special(path, EntryKind::Fifo, 0));
            refused(target.hard_link(path, Path::new("new")));
            refused(target.hard_link(Path::new("a"), path));
            refused(target.remove(path));
        }
        assert_eq!(target.list(Path::new("")).unwrap(), ["a"]);
    }

    #[test]
    fn no_planted_link_leads_out_of_the_target() {
        // A link to a directory outside stands at each component in turn, then at the last one.
        for depth in 0..3 {
            let fixture = Fixture::new();
            let outside = fixture.dir.path().join("outside");
            fs::create_dir_all(outside.join("b/c")).unwrap();
            fs::write(outside.join("victim"), b"precious").unwrap();
            fs::write(outside.join("b/victim"), b"precious").unwrap();
            fs::write(outside.join("b/c/victim"), b"precious").unwrap();
            let before = MemTree::load(&OsSource, &outside).unwrap();

            let names = ["a", "b", "c"];
            let planted: PathBuf = names[..=depth].iter().collect();
            fs::create_dir_all(fixture.root().join(planted.parent().unwrap())).unwrap();
            let aim: PathBuf = names[1..=depth].iter().collect();
            symlink(outside.join(aim), fixture.root().join(&planted)).unwrap();
            fs::write(fixture.root().join("own"), b"own").unwrap();

            let target = &fixture.target;
            let deep: PathBuf = names.iter().collect();
            let metadata = fixture.metadata(EntryKind::File, 0o777);
            for path in [planted.join("victim"), deep.join("victim"), planted.join("new"), deep.join("new")] {
                let path = path.as_path();
                assert!(target.metadata(path).is_err(), "{path:?}");
                assert!(target.list(path).is_err(), "{path:?}");
                assert!(target.create_dir(path).is_err(), "{path:?}");
                assert!(target.create_file(path, 9).is_err(), "{path:?}");
                assert!(target.open_file(path).is_err(), "{path:?}");
                assert!(target.create_symlink(path, OsStr::new("x")).is_err(), "{path:?}");
                assert!(target.create_special(path, EntryKind::Fifo, 0).is_err(), "{path:?}");
                assert!(target.hard_link(path, Path::new("stolen")).is_err(), "{path:?}");
                assert!(target.hard_link(Path::new("own"), path).is_err(), "{path:?}");
                assert!(target.remove(path).is_err(), "{path:?}");
                assert!(target.set_metadata(path, &metadata, &[], Trust::Full).is_err(), "{path:?}");
            }
            // The link itself: it stands, nothing is done through it, and it alone can be dressed and removed.
            assert!(target.create_file(&planted, 0).is_err());
            assert!(target.create_dir(&planted).is_err());
            assert!(target.open_file(&planted).is_err());
            assert!(target.list(&planted).is_err());
            assert!(target.hard_link(&planted, Path::new("stolen")).is_err());
            assert_eq!(target.metadata(&planted).unwrap().unwrap().kind, EntryKind::Symlink);
            let metadata = fixture.metadata(EntryKind::Symlink, 0o777);
            assert_eq!(target.set_metadata(&planted, &metadata, &[], Trust::Full).unwrap(), Vec::<String>::new());
            assert_eq!(target.metadata(&planted).unwrap().unwrap().mtime, metadata.mtime);
            target.remove(&planted).unwrap();
            assert_eq!(target.metadata(&planted).unwrap(), None);

            let after = MemTree::load(&OsSource, &outside).unwrap();
            assert_eq!(before.diff(&after), Vec::<String>::new(), "depth {depth}");
            assert_eq!(target.metadata(Path::new("stolen")).unwrap(), None);
        }
    }

    #[test]
    fn removal_does_not_follow_links_inside_a_directory() {
        let fixture = Fixture::new();
        let outside = fixture.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("victim"), b"precious").unwrap();
        let target = &fixture.target;
        for directory in ["d", "d/a", "d/a/b", "d/a/c", "d/z"] {
            target.create_dir(Path::new(directory)).unwrap();
            target.create_file(&Path::new(directory).join("file"), 1).unwrap();
            target.create_symlink(&Path::new(directory).join("link"), outside.as_os_str()).unwrap();
        }
        target.remove(Path::new("d")).unwrap();
        assert_eq!(target.list(Path::new("")).unwrap(), Vec::<OsString>::new());
        assert_eq!(fs::read(outside.join("victim")).unwrap(), b"precious");
        assert_eq!(target.remove(Path::new("d")).unwrap_err().io_kind(), Some(std::io::ErrorKind::NotFound));
        assert!(target.remove(Path::new("")).is_err());
    }

    #[test]
    fn nothing_that_stands_is_overwritten_by_creating() {
        let Fixture { dir: _dir, target } = Fixture::new();
        let path = Path::new("here");
        target.create_file(path, 3).unwrap();
        let exists = |outcome: Result<()>| {
            assert_eq!(outcome.unwrap_err().io_kind(), Some(std::io::ErrorKind::AlreadyExists));
        };
        exists(target.create_file(path, 0).map(|_| ()));
        exists(target.create_symlink(path, OsStr::new("x")));
        exists(target.create_special(path, EntryKind::Fifo, 0));
        exists(target.hard_link(path, path));
        assert!(target.create_dir(path).is_err());
        assert_eq!(target.open_file(path).unwrap().len().unwrap(), 3);
        target.create_dir(Path::new("dir")).unwrap();
        target.create_dir(Path::new("dir")).unwrap();
        target.create_dir(Path::new("")).unwrap();
    }

    #[test]
    fn files_are_written_cut_and_punched_in_place() {
        let Fixture { dir: _dir, target } = Fixture::new();
        let file = target.create_file(Path::new("file"), 10_000).unwrap();
        file.write_at(0, &vec![1; 20_000]).unwrap();
        file.punch(100..9_000).unwrap();
        file.punch(19_990..30_000).unwrap();
        assert_eq!(file.len().unwrap(), 20_000);
        let mut buffer = vec![9; 30_000];
        let again = target.open_file(Path::new("file")).unwrap();
        assert_eq!(again.read_at(0, &mut buffer).unwrap(), 20_000);
        let mut expected = vec![1; 20_000];
        expected[100..9_000].fill(0);
        expected[19_990..].fill(0);
        assert_eq!(buffer[..20_000], expected);
        again.set_len(5).unwrap();
        assert_eq!(file.len().unwrap(), 5);
    }

    #[test]
    fn metadata_replaces_what_stands_there() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path, 0).unwrap();
        let metadata = fixture.metadata(EntryKind::File, 0o400);
        let first = [xattr("user.gone", b"1"), xattr("user.kept", b"1")];
        let refused = target.set_metadata(path, &metadata, &first, Trust::Full).unwrap();
        if refused.iter().any(|sentence| sentence.contains("user.")) {
            println!("skipped: the temporary directory has no attributes");
            return;
        }
        assert_eq!(refused, Vec::<String>::new());
        // Read-only by now, which must not keep its owner from changing the attributes.
        let second = [xattr("user.kept", b"2"), xattr("user.new", b"3")];
        assert_eq!(target.set_metadata(path, &metadata, &second, Trust::Full).unwrap(), Vec::<String>::new());
        assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), second);
        let found = target.metadata(path).unwrap().unwrap();
        assert_eq!((found.mode, found.mtime), (0o400, metadata.mtime));
    }

    #[test]
    fn what_is_not_trusted_gains_no_privileges() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path, 0).unwrap();
        let metadata = fixture.metadata(EntryKind::File, 0o7755);
        // Version 2, cap_net_raw permitted and effective.
        let mut capability = vec![1, 0, 0, 2];
        capability.extend([0, 32, 0, 0].into_iter().chain([0; 12]));
        let xattrs = [xattr("security.capability", &capability), xattr("trusted.x", b"1"), xattr("user.x", b"1")];
        let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
        assert_eq!(refused, Vec::<String>::new());
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o1755);
        assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), [xattr("user.x", b"1")]);
        if is_root() {
            let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Full).unwrap();
            assert_eq!(refused, Vec::<String>::new());
            assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o7755);
            assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), xattrs);
            // What stood there before is taken away again.
            target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
            assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), [xattr("user.x", b"1")]);
        }
    }

    #[test]
    fn lists_of_rights_come_back_with_the_mode_they_go_with() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let path = Path::new("file");
        target.create_file(path, 0).unwrap();
        // Version 2; owner rw, user 1000 r, group -, mask r, others -.
        let mut acl = vec![2, 0, 0, 0];
        let none = u32::MAX;
        for (tag, rights, id) in [(1_u16, 6_u16, none), (2, 4, 1000), (4, 0, none), (16, 4, none), (32, 0, none)] {
            acl.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
        }
        let metadata = fixture.metadata(EntryKind::File, 0o640);
        let xattrs = [xattr("system.posix_acl_access", &acl)];
        let refused = target.set_metadata(path, &metadata, &xattrs, Trust::Full).unwrap();
        if !refused.is_empty() {
            println!("skipped: the temporary directory has no lists of rights: {refused:?}");
            return;
        }
        assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), xattrs);
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o640);
        assert_eq!(target.set_metadata(path, &metadata, &[], Trust::Full).unwrap(), Vec::<String>::new());
        assert_eq!(OsSource.xattrs(&fixture.root().join(path)).unwrap(), []);
        assert_eq!(target.metadata(path).unwrap().unwrap().mode, 0o640);
    }

    #[test]
    fn hostile_values_are_refused_with_a_sentence() {
        let fixture = Fixture::new();
        let path = Path::new("file");
        fixture.target.create_file(path, 0).unwrap();
        let mut metadata = fixture.metadata(EntryKind::File, u32::MAX);
        metadata.uid = u32::MAX;
        metadata.mtime.nanoseconds = u32::MAX;
        let xattrs = [xattr("user.nul\0inside", b""), xattr("", b""), xattr("nonsense", b"")];
        let refused = fixture.target.set_metadata(path, &metadata, &xattrs, Trust::Untrusted).unwrap();
        assert_eq!(refused.len(), 5, "{refused:?}");
    }

    #[test]
    fn set_id_bits_do_not_outlive_their_owner() {
        let fixture = Fixture::new();
        let path = Path::new("file");
        fixture.target.create_file(path, 0).unwrap();
        let mut metadata = fixture.metadata(EntryKind::File, 0o4755);
        // Nobody can own it, root or not, so the bit would lend the restoring user's rights.
        metadata.uid = u32::MAX;
        let refused = fixture.target.set_metadata(path, &metadata, &[], Trust::Full).unwrap();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(fixture.target.metadata(path).unwrap().unwrap().mode, 0o755);
    }

    #[test]
    fn paths_longer_than_the_kernel_takes_are_walked_and_removed() {
        let fixture = Fixture::new();
        let target = &fixture.target;
        let mut path = PathBuf::new();
        for _ in 0..60 {
            path.push("n".repeat(200));
            target.create_dir(&path).unwrap();
        }
        assert!(2 * PATH_LEN_MAX < path.as_os_str().len());
        let file = path.join("file");
        target.create_file(&file, 7).unwrap();
        target.hard_link(&file, Path::new("short")).unwrap();
        target.create_symlink(&path.join("link"), OsStr::new("x")).unwrap();
        let metadata = fixture.metadata(EntryKind::File, 0o640);
        let xattrs = [xattr("user.deep", b"1")];
        target.set_metadata(&file, &metadata, &xattrs, Trust::Full).unwrap();
        let found = target.metadata(&file).unwrap().unwrap();
        assert_eq!((found.links, found.mode, found.size, found.mtime), (2, 0o640, 7, metadata.mtime));
        assert_eq!(OsSource.xattrs(&fixture.root().join(&file)).unwrap(), xattrs);
        target.remove(path.iter().next().map(Path::new).unwrap()).unwrap();
        assert_eq!(target.list(Path::new("")).unwrap(), ["short"]);
    }

    #[test]
    fn the_probe_for_case_leaves_nothing_behind() {
        let fixture = Fixture::new();
        fs::write(fixture.root().join("probe"), b"").unwrap();
        let expected = fixture.root().join("PROBE").exists();
        assert_eq!(fixture.target.folds_case().unwrap(), expected);
        assert_eq!(fixture.target.list(Path::new("")).unwrap(), ["probe"]);
    }

    #[test]
    fn the_root_is_created_on_the_users_own_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        let target = OsTarget::create(&dir.path().join("link/x/y")).unwrap();
        target.create_dir(Path::new("z")).unwrap();
        assert!(dir.path().join("real/x/y/z").is_dir());
        let mode = fs::metadata(dir.path().join("real/x/y/z")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert!(OsTarget::open(&dir.path().join("missing")).is_err());
        fs::write(dir.path().join("file"), b"").unwrap();
        assert!(OsTarget::create(&dir.path().join("file")).is_err());
    }
}
