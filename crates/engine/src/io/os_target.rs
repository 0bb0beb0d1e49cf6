//! A directory of the real file system as a target. No write leaves the directory.
//!
//! `openat2` resolves every path from the root's handle with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and
//! `RESOLVE_NO_MAGICLINKS`, so the kernel refuses links that another process has planted. Handles of parents are not
//! kept between calls: one call resolves a whole path. If another process moved a directory out of the root, a kept
//! handle would follow it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_attributes;
use crate::io::os_entry::{self, PATH_LEN_MAX, handle_path, retry};
use crate::io::os_target_file::OsTargetFile;
use crate::io::tree::{
    EntryKind, Identity, Metadata, MetadataChoice, Onto, Renamed, TargetFile, TargetTree, Trust, Unset, Xattr,
};

/// Maximum number of tries at a resolution that the kernel could not finish because of a concurrent rename.
const RESOLVE_TRIES_MAX: u32 = 64;

/// Maximum number of tries to find an unused name for the probe of [`TargetTree::folds_case`].
const PROBE_TRIES_MAX: u32 = 64;

/// Files that are kept open for writing: a quarter of the process's limit on open files, within bounds.
const OPEN_FILES_SHARE: usize = 4;
const OPEN_FILES_MIN: usize = 4;
const OPEN_FILES_MAX: usize = 256;

/// Flags of the resolution of every path below the root.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A directory of this host that a restore writes to.
///
/// It needs Linux 5.6 or later. It syncs nothing: after a power failure, the restore must be run again.
#[derive(Debug)]
pub struct OsTarget {
    root: OwnedFd,
    path: PathBuf,
    /// The way to find out whether the file system folds case.
    probes: Probes,
    /// Whether `/proc` leads to what a handle with `O_PATH` has open.
    has_proc: bool,
    choice: Arc<MetadataChoice>,
}

/// The way in which a target determines the properties of its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probes {
    /// The target creates a file and removes it.
    Write,
    /// The target only reads.
    Read,
}

impl OsTarget {
    /// Opens an existing directory, and follows a symbolic link as its last component, which is the user's choice.
    ///
    /// Fails with [`Error::Invalid`] on a system that cannot resolve paths safely.
    pub fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::openat(CWD, root, flags, Mode::empty()))
            .map_err(|error| Error::io("open", root, error.into()))?;
        let has_proc = rustix::fs::statat(CWD, handle_path(fd.as_fd(), Path::new("")), AtFlags::empty()).is_ok();
        let (probes, choice) = (Probes::Write, Arc::default());
        let target = Self { root: fd, path: root.to_path_buf(), probes, has_proc, choice };
        match resolve_once(target.root.as_fd(), OsStr::new("."), OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => {}
            Err(Errno::NOSYS) => {
                return Err(Error::invalid(
                    "this kernel cannot keep a restore inside its target: openat2 (Linux 5.6 or later) is needed",
                ));
            }
            Err(error) => return Err(Error::io("open", root, error.into())),
        }
        Ok(target)
    }

    /// Opens an existing directory for a dry run, which changes nothing in it.
    pub fn open_read_only(root: &Path) -> Result<Self> {
        Ok(Self { probes: Probes::Read, ..Self::open(root)? })
    }

    /// Chooses the metadata that is set.
    #[must_use]
    pub fn with_metadata(self, choice: MetadataChoice) -> Self {
        Self { choice: Arc::new(choice), ..self }
    }

    /// Opens a directory, and creates it and its parents if they do not exist. Only its owner may enter the new directory.
    ///
    /// The path is the user's own: the function follows symbolic links in it.
    pub fn create(root: &Path) -> Result<Self> {
        let mut missing = Vec::new();
        let mut path = root;
        loop {
            // The empty path is the working directory, which exists.
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
            let others = if *path == root { Mode::empty() } else { Mode::RWXG | Mode::RWXO };
            match rustix::fs::mkdirat(CWD, *path, Mode::RWXU | others) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::io("create", path, error.into())),
            }
        }
        Self::open(if root.as_os_str().is_empty() { Path::new(".") } else { root })
    }

    /// Opens an entry by its names, in as many parts as the kernel's limit on paths requires.
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

    /// Opens the directory of an entry, and returns it with the entry's name. The root has no name.
    fn parent<'a>(&self, names: &Names<'a>) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let (parent, name) = names.split().ok_or(Errno::EXIST)?;
        Ok((self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }

    /// Checks a path and performs an action at it. An error of the action names the path.
    fn at<'a, T>(
        &self,
        operation: &'static str,
        path: &'a Path,
        action: impl FnOnce(&Names<'a>) -> Result<T, Errno>,
    ) -> Result<T> {
        let names = Names::of(path)?;
        action(&names).map_err(|error| Error::io(operation, &self.path.join(path), error.into()))
    }

    /// Gives an ordinary user full access to a directory of their own that an earlier restore has left read-only. The
    /// directory gets its final mode when its metadata is set.
    fn make_writable(&self, names: &Names<'_>, standing: &Metadata) -> Result<(), Errno> {
        let user = rustix::process::geteuid();
        let needed = Mode::RWXU;
        let mode = Mode::from_raw_mode(standing.mode);
        if user.is_root() || standing.uid != user.as_raw() || mode.contains(needed) {
            return Ok(());
        }
        let directory = self.resolve(names, OFlags::PATH | OFlags::DIRECTORY)?;
        retry(|| rustix::fs::chmod(handle_path(directory.as_fd(), Path::new("")), mode | needed))
    }

    fn file(&self, path: &Path, file: OwnedFd) -> OsTargetFile {
        OsTargetFile::new(file, self.path.join(path), Arc::clone(&self.choice))
    }

    fn open_regular(&self, path: &Path, access: OFlags) -> Result<Box<dyn TargetFile>> {
        let file = self.at("open", path, |names| self.resolve(names, access | OFlags::NONBLOCK))?;
        let kind = os_entry::stat(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)
            .map_err(|error| Error::io("open", &self.path.join(path), error.into()))?
            .kind;
        if kind != EntryKind::File {
            return Err(Error::invalid(format!("open {}: not a regular file", self.path.join(path).display())));
        }
        Ok(Box::new(self.file(path, file)))
    }

    /// Determines whether the directory folds case, from the first of its names that has a letter. Returns `None` if none has
    /// one. Changes nothing.
    fn folds_case_of_names(&self) -> Result<Option<bool>> {
        let names = self.list(Path::new(""))?;
        let Some(swapped) = names.iter().find_map(|name| with_other_case(name)) else { return Ok(None) };
        Ok(Some(names.binary_search(&swapped).is_err() && self.metadata(Path::new(&swapped))?.is_some()))
    }

    /// Determines whether the directory above folds case, from the name of this one. Returns `None` if it is unknown or has no
    /// letter.
    fn folds_case_of_own_name(&self) -> Result<Option<bool>> {
        let own = |path: PathBuf| Some((with_other_case(path.file_name()?)?, path.parent()?.to_path_buf()));
        let Some((swapped, above)) = self.path.canonicalize().ok().and_then(own) else { return Ok(None) };
        let standing = os_entry::stat(self.root.as_fd(), Path::new(""), AtFlags::EMPTY_PATH);
        let standing = standing.map_err(|error| Error::io("open", &self.path, error.into()))?;
        let found = os_entry::stat(CWD, &above.join(swapped), AtFlags::empty());
        Ok(Some(found.is_ok_and(|found| (found.device, found.inode) == (standing.device, standing.inode))))
    }
}

/// Returns a name that differs only in the case of its first ASCII letter, or `None` if it has no such letter.
fn with_other_case(name: &OsStr) -> Option<OsString> {
    let mut bytes = name.as_bytes().to_vec();
    let letter = bytes.iter_mut().find(|byte| byte.is_ascii_alphabetic())?;
    *letter ^= b'a' ^ b'A';
    Some(OsString::from(OsStr::from_bytes(&bytes)))
}

/// Renames unless the new name exists. If the file system cannot do so in one step, looks up the name first.
fn rename_to_nothing(old: (BorrowedFd<'_>, &OsStr), new: (BorrowedFd<'_>, &OsStr)) -> Result<Renamed, Errno> {
    match retry(|| rustix::fs::renameat_with(old.0, old.1, new.0, new.1, RenameFlags::NOREPLACE)) {
        Ok(()) => return Ok(Renamed::Done),
        Err(Errno::EXIST) => return Ok(Renamed::Taken),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        Err(error) => return Err(error),
    }
    match os_entry::stat(new.0, Path::new(new.1), AtFlags::empty()) {
        Ok(_) => Ok(Renamed::Taken),
        Err(Errno::NOENT) => retry(|| rustix::fs::renameat(old.0, old.1, new.0, new.1)).map(|()| Renamed::Done),
        Err(error) => Err(error),
    }
}

/// Opens a path below a directory handle without following links.
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

/// A checked path: plain names separated by slashes, empty for the root.
#[derive(Clone, Copy, Debug)]
struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    /// Checks that a path consists of plain names below the root.
    fn of(path: &'a Path) -> Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        if bytes.is_empty() || bytes.split(|byte| *byte == b'/').all(plain) {
            Ok(Self(bytes))
        } else {
            Err(Error::invalid(format!("{:?}: not a path of plain names below the target", path.display())))
        }
    }

    /// Splits off the last name. The root has none.
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
                let standing = os_entry::stat(self.root.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?;
                return self.make_writable(names, &standing);
            }
            let (parent, name) = self.parent(names)?;
            match retry(|| rustix::fs::mkdirat(&parent, name, Mode::RWXU)) {
                Err(Errno::EXIST) => {
                    let standing = os_entry::stat(parent.as_fd(), Path::new(name), AtFlags::empty())?;
                    if standing.kind != EntryKind::Directory {
                        return Err(Errno::NOTDIR);
                    }
                    self.make_writable(names, &standing)
                }
                outcome => outcome,
            }
        })
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.at("create file", path, |names| {
            if names.0.is_empty() {
                return Err(Errno::EXIST);
            }
            self.resolve(names, flags)
        })?;
        Ok(Box::new(self.file(path, file)))
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.open_regular(path, OFlags::RDWR)
    }

    fn open_to_read(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.open_regular(path, OFlags::RDONLY)
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
            // Without AT_SYMLINK_FOLLOW, a link planted since the check above is linked itself, not its target.
            retry(|| rustix::fs::linkat(&from, old_name, &to, new_name, AtFlags::empty()))
        })
    }

    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed> {
        let (old, new) = (Names::of(from)?, Names::of(to)?);
        let renamed = || {
            let (old_parent, old_name) = old.split().ok_or(Errno::BUSY)?;
            let (new_parent, new_name) = new.split().ok_or(Errno::BUSY)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let after = self.resolve(&new_parent, flags)?;
            let other = if old_parent.0 == new_parent.0 { None } else { Some(self.resolve(&old_parent, flags)?) };
            let before = other.as_ref().unwrap_or(&after);
            if let Some(expected) = expected {
                match os_entry::stat(before.as_fd(), Path::new(old_name), AtFlags::empty()) {
                    Ok(found) if found.identity() == expected => {}
                    Ok(_) | Err(Errno::NOENT) => return Ok(Renamed::Unexpected),
                    Err(error) => return Err(error),
                }
            }
            if onto == Onto::Nothing {
                return rename_to_nothing((before.as_fd(), old_name), (after.as_fd(), new_name));
            }
            retry(|| rustix::fs::renameat(before, old_name, &after, new_name)).map(|()| Renamed::Done)
        };
        renamed().map_err(|error: Errno| Error::io("rename to", &self.path.join(to), error.into()))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.at("remove", path, |names| {
            let (parent, name) = names.split().ok_or(Errno::BUSY)?;
            let parent = self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?;
            let kind = os_entry::stat(parent.as_fd(), Path::new(name), AtFlags::empty())?.kind;
            let flags = if kind == EntryKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            retry(|| rustix::fs::unlinkat(&parent, name, flags))
        })
    }

    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        self.at("set metadata of", path, |names| {
            let entry = self.resolve(names, OFlags::PATH)?;
            let policy = (trust, &*self.choice);
            let is_opened = |kind| matches!(kind, EntryKind::File | EntryKind::Directory | EntryKind::Fifo);
            if !self.has_proc && is_opened(os_entry::stat(entry.as_fd(), Path::new(""), AtFlags::EMPTY_PATH)?.kind) {
                let opened = self.resolve(names, OFlags::RDONLY | OFlags::NONBLOCK)?;
                return os_attributes::set_of_file(opened.as_fd(), metadata, xattrs, policy).map(|(_, unset)| unset);
            }
            os_attributes::set(entry.as_fd(), metadata, xattrs, policy)
        })
    }

    fn display(&self, path: &Path) -> String {
        self.path.join(path).display().to_string()
    }

    fn local_owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        let (users, groups) = &self.choice.local_ids;
        (users.get(&uid).copied().unwrap_or(uid), groups.get(&gid).copied().unwrap_or(gid))
    }

    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn open_files_max(&self) -> usize {
        // Containers, spilled state and directories during resolution need handles, too.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)) / OPEN_FILES_SHARE;
        share.clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
    }

    fn folds_case(&self) -> Result<bool> {
        // Most targets that have entries tell without a probe.
        if let Ok(Some(folds)) = self.folds_case_of_names() {
            return Ok(folds);
        }
        if self.probes == Probes::Read {
            return Ok(self.folds_case_of_own_name()?.unwrap_or(false));
        }
        let process = rustix::process::getpid().as_raw_nonzero();
        for attempt in 0..PROBE_TRIES_MAX {
            let lower = PathBuf::from(format!(".onefold-probe-{process}-{attempt}"));
            match self.create_file(&lower) {
                Ok(_) => {}
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => continue,
                Err(error) => return Err(error),
            }
            let upper = PathBuf::from(lower.to_string_lossy().to_uppercase());
            let found = self.metadata(&upper);
            // One call, and a second try, so that the probe remains only where nothing can be removed.
            let remove = || retry(|| rustix::fs::unlinkat(&self.root, &lower, AtFlags::empty()));
            remove()
                .or_else(|_| remove())
                .map_err(|error| Error::io("remove", &self.path.join(&lower), error.into()))?;
            return Ok(found?.is_some());
        }
        Err(Error::invalid(format!("{}: no free name to find out about case", self.path.display())))
    }
}
