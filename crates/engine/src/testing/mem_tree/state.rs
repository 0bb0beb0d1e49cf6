//! Entries of a tree in memory and how paths lead to them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Weak;

use super::extents::Extents;
use super::faults::{Action, Fault};
use crate::error::{Error, Result};
use crate::io::tree::AccessTime;
use crate::io::tree::{EntryKind, Metadata, Xattr};
use crate::types::Timestamp;

/// Symbolic links followed on one path, as on Linux.
const LINKS_MAX: usize = 40;

/// Number of the root directory.
pub(super) const ROOT: u64 = 1;

/// What an entry holds.
#[derive(Clone, Debug)]
pub(super) enum Body {
    File(Extents),
    Directory(BTreeMap<OsString, u64>),
    Symlink(OsString),
    Special,
}

/// One entry, whatever its names.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) metadata: Metadata,
    pub(super) xattrs: Vec<Xattr>,
    pub(super) body: Body,
}

/// All entries of a tree.
pub(super) struct State {
    inodes: BTreeMap<u64, Inode>,
    inode_next: u64,
    clock: i64,
    pub(super) working_directory: PathBuf,
    /// Locks of files by inode, for as long as the handle that has one is open.
    pub(super) locks: BTreeMap<u64, Weak<()>>,
    pub(super) faults: BTreeMap<PathBuf, Fault>,
    pub(super) folds_case: bool,
    /// Names of users and groups.
    pub(super) owner_names: (BTreeMap<u32, String>, BTreeMap<u32, String>),
    /// True if it holds nothing but files and directories, with one name each.
    pub(super) is_plain: bool,
    /// Calls of the source side so far.
    pub(super) calls: u64,
    /// What is done to the tree right before which of them.
    pub(super) call_actions: Vec<(u64, Action)>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("inodes", &self.inodes.len()).field("calls", &self.calls).finish_non_exhaustive()
    }
}

/// What a path leads to.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) inode: u64,
    /// Absolute, without links.
    pub(super) path: PathBuf,
}

/// Whether a link that a path ends with is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Last {
    Followed,
    NotFollowed,
}

pub(super) fn refuse(operation: &'static str, path: &Path, kind: io::ErrorKind) -> Error {
    Error::io(operation, path, kind.into())
}

/// The kernel's error for a kind of entry that a file system does not have.
pub(super) fn refuse_unsupported(operation: &'static str, path: &Path) -> Error {
    Error::io(operation, path, rustix::io::Errno::PERM.into())
}

/// What the kernel says where a link stands that must not be followed.
pub(super) fn refuse_link(operation: &'static str, path: &Path) -> Error {
    Error::io(operation, path, rustix::io::Errno::LOOP.into())
}

impl State {
    pub(super) fn new() -> Self {
        let mut state = Self {
            inodes: BTreeMap::new(),
            inode_next: ROOT,
            clock: 0,
            working_directory: PathBuf::from("/"),
            locks: BTreeMap::new(),
            faults: BTreeMap::new(),
            folds_case: false,
            owner_names: Default::default(),
            is_plain: false,
            calls: 0,
            call_actions: Vec::new(),
        };
        state.add(EntryKind::Directory, Body::Directory(BTreeMap::new()), 0, 1);
        state
    }

    /// Adds an entry that has no name yet.
    pub(super) fn add(&mut self, kind: EntryKind, body: Body, rdev: u64, device: u64) -> u64 {
        let inode = self.inode_next;
        self.inode_next += 1;
        let now = self.tick();
        let links = u64::from(kind == EntryKind::Directory);
        let size = if let Body::Symlink(to) = &body { to.len() as u64 } else { 0 };
        let mode = if kind == EntryKind::Directory { 0o700 } else { 0o600 };
        let metadata = Metadata {
            kind,
            mode,
            uid: 0,
            gid: 0,
            mtime: now,
            atime: AccessTime::default(),
            ctime: now,
            size,
            device,
            inode,
            links,
            rdev,
        };
        self.inodes.insert(inode, Inode { metadata, xattrs: Vec::new(), body });
        inode
    }

    /// Returns a time after all before it.
    pub(super) fn tick(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { seconds: self.clock, nanoseconds: 0 }
    }

    /// Sets all modification times to 0.
    pub(super) fn forget_times(&mut self) {
        for inode in self.inodes.values_mut() {
            inode.metadata.mtime = Timestamp::default();
        }
    }

    pub(super) fn inode(&self, inode: u64) -> &Inode {
        self.inodes.get(&inode).expect("names and handles keep their entries")
    }

    pub(super) fn inode_mut(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("names and handles keep their entries")
    }

    /// Stamps an entry as changed.
    pub(super) fn touch(&mut self, inode: u64, contents: bool) {
        let now = self.tick();
        let metadata = &mut self.inode_mut(inode).metadata;
        metadata.ctime = now;
        if contents {
            metadata.mtime = now;
        }
    }

    pub(super) fn names(&self, inode: u64) -> Option<&BTreeMap<OsString, u64>> {
        match &self.inode(inode).body {
            Body::Directory(names) => Some(names),
            Body::File(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// Gives an entry a name in a directory.
    pub(super) fn link(&mut self, directory: u64, name: &OsStr, inode: u64) {
        let Body::Directory(names) = &mut self.inode_mut(directory).body else { unreachable!("checked by the caller") };
        let before = names.insert(name.to_os_string(), inode);
        assert!(before.is_none(), "{} stands already", name.display());
        let metadata = &mut self.inode_mut(inode).metadata;
        if metadata.kind != EntryKind::Directory {
            metadata.links += 1;
        }
        self.touch(inode, false);
        self.touch(directory, true);
    }

    /// Moves an entry to another name, in place of what stands there.
    pub(super) fn rename(&mut self, (from, old): (u64, &OsStr), (to, new): (u64, &OsStr)) {
        let Body::Directory(names) = &mut self.inode_mut(from).body else { unreachable!("checked by the caller") };
        let inode = names.remove(old).expect("checked by the caller");
        if self.names(to).is_some_and(|names| names.contains_key(new)) {
            self.unlink(to, new);
        }
        let Body::Directory(names) = &mut self.inode_mut(to).body else { unreachable!("checked by the caller") };
        names.insert(new.to_os_string(), inode);
        self.touch(inode, false);
        self.touch(from, true);
        self.touch(to, true);
    }

    /// Takes a name away; a directory goes with all it holds. Entries stay for those who have them open.
    pub(super) fn unlink(&mut self, directory: u64, name: &OsStr) {
        let Body::Directory(names) = &mut self.inode_mut(directory).body else { unreachable!("checked by the caller") };
        let inode = names.remove(name).expect("checked by the caller");
        self.touch(directory, true);
        let mut gone = vec![inode];
        while let Some(inode) = gone.pop() {
            self.touch(inode, false);
            let entry = self.inode_mut(inode);
            entry.metadata.links = entry.metadata.links.saturating_sub(1);
            if let Body::Directory(names) = &mut entry.body {
                gone.extend(std::mem::take(names).into_values());
            }
        }
    }

    /// Follows a path as the kernel does.
    pub(super) fn find(&self, operation: &'static str, path: &Path, last: Last) -> Result<Found> {
        let refuse = |kind| refuse(operation, path, kind);
        let mut links = 0;
        let mut at: Vec<(OsString, u64)> = Vec::new();
        let mut todo: Vec<OsString> = components(&self.working_directory.join(path));
        while let Some(name) = todo.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let parent = at.last().map_or(ROOT, |(_, inode)| *inode);
            let names = self.names(parent).ok_or_else(|| refuse(io::ErrorKind::NotADirectory))?;
            let inode = *names.get(&name).ok_or_else(|| refuse(io::ErrorKind::NotFound))?;
            match &self.inode(inode).body {
                Body::Symlink(to) if !todo.is_empty() || last == Last::Followed => {
                    links += 1;
                    if LINKS_MAX < links {
                        return Err(refuse_link(operation, path));
                    }
                    if Path::new(to).is_absolute() {
                        at.clear();
                    }
                    todo.extend(components(Path::new(to)));
                }
                _ => at.push((name, inode)),
            }
        }
        let inode = at.last().map_or(ROOT, |(_, inode)| *inode);
        let path = std::iter::once(OsStr::new("/")).chain(at.iter().map(|(name, _)| name.as_os_str())).collect();
        Ok(Found { inode, path })
    }

    /// Finds what a target's path leads to, through no link; `None` if the last name is not there.
    ///
    /// Panics on names that must never reach a target: the engine checks them before.
    pub(super) fn find_plain(&self, operation: &'static str, path: &Path) -> Result<Option<u64>> {
        let Some((parent, name)) = self.find_parent(operation, path)? else { return Ok(Some(ROOT)) };
        Ok(self.names(parent).and_then(|names| names.get(name)).copied())
    }

    /// Finds the directory that a target's path is in; `None` for the root.
    pub(super) fn find_parent<'a>(&self, operation: &'static str, path: &'a Path) -> Result<Option<(u64, &'a OsStr)>> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut names: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').collect();
        for name in &names {
            assert!(
                !matches!(*name, b"" | b"." | b"..") && !name.contains(&0),
                "{operation} {}: not a path of plain names",
                path.display(),
            );
        }
        let last = names.pop().expect("a path that is not empty has a name");
        let mut inode = ROOT;
        for name in names {
            let below = self.names(inode).and_then(|entries| entries.get(OsStr::from_bytes(name)));
            inode = *below.ok_or_else(|| refuse(operation, path, io::ErrorKind::NotFound))?;
            match &self.inode(inode).body {
                Body::Directory(_) => {}
                Body::Symlink(_) => return Err(refuse_link(operation, path)),
                Body::File(_) | Body::Special => return Err(refuse(operation, path, io::ErrorKind::NotADirectory)),
            }
        }
        Ok(Some((inode, OsStr::from_bytes(last))))
    }
}

/// Returns the names of a path, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}
