//! A tree in memory, strict where the real one is lenient, that fails or changes while it is read.
//!
//! The double of both sides: tests prepare a source with it, restore into it, and compare. As a target it panics on
//! names and attribute lists that the engine must never hand to one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::io::tree::{
    EntryKind, Identity, Metadata, Onto, Renamed, SourceFile, SourceTree, TargetFile, TargetTree, Trust, Unset, Xattr,
};

mod diff;
mod directory;
mod extents;
mod faults;
mod file;
mod state;

use extents::Extents;
use file::MemFile;
use state::{Body, Last, State, refuse, refuse_link, refuse_unsupported};

/// A tree of entries in memory. Clones share the tree.
///
/// As a source, `/` is its root and relative paths start at [`MemTree::set_working_directory`]. Its clock ticks with
/// every change, so that runs repeat.
#[derive(Clone, Debug)]
pub struct MemTree {
    state: Arc<Mutex<State>>,
    /// Held while a read is counted and what was planned for it is done: a later read does not come first. Nothing planned reads a file.
    counting: Arc<Mutex<()>>,
}

impl Default for MemTree {
    fn default() -> Self {
        Self::new()
    }
}

impl MemTree {
    /// Makes a tree that holds its root directory.
    pub fn new() -> Self {
        Self { state: Arc::new(Mutex::new(State::new())), counting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere still wants its own failure shown, not this one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where relative paths of the source start: an absolute path.
    pub fn set_working_directory(&self, path: &Path) {
        assert!(path.is_absolute(), "{}: not absolute", path.display());
        self.lock().working_directory = path.to_path_buf();
    }

    /// Gives a user and a group names.
    pub fn name_owners(&self, (uid, user): (u32, &str), (gid, group): (u32, &str)) {
        let names = &mut self.lock().owner_names;
        names.0.insert(uid, user.to_owned());
        names.1.insert(gid, group.to_owned());
    }

    /// Refuses everything but files and directories with one name each from now on, as FAT does.
    pub fn set_plain(&self) {
        self.lock().is_plain = true;
    }

    /// Sets what [`TargetTree::folds_case`] answers; names keep their case all the same.
    pub fn set_folds_case(&self, folds: bool) {
        self.lock().folds_case = folds;
    }

    /// Creates a directory and the parents it lacks.
    pub fn put_dir(&self, path: &Path) {
        let mut at = PathBuf::new();
        for name in &plain(path) {
            at.push(name);
            self.create_dir(&at).expect("nothing else stands there");
        }
    }

    /// Creates a file, or replaces the contents of the one that is there, and the parents it lacks.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) {
        self.put_sparse(path, bytes.len() as u64, &[(0, bytes)]);
    }

    /// Creates a file with holes, or replaces the contents of the one that is there, and the parents it lacks.
    pub fn put_sparse(&self, path: &Path, len: u64, runs: &[(u64, &[u8])]) {
        let path = plain(path);
        if let Some(parent) = path.parent() {
            self.put_dir(parent);
        }
        let stands = TargetTree::metadata(self, &path).expect("its parents are there").is_some();
        let file = if stands { self.open_file(&path) } else { self.create_file(&path) };
        let file = file.expect("the file can be opened");
        file.set_len(0).expect("memory does not fail");
        file.set_len(len).expect("memory does not fail");
        for (offset, bytes) in runs {
            assert!(offset + bytes.len() as u64 <= len, "{}: run beyond the end", path.display());
            file.write_at(*offset, bytes).expect("memory does not fail");
        }
    }

    /// Creates a symbolic link and the parents it lacks.
    pub fn put_symlink(&self, path: &Path, points_to: &OsStr) {
        let path = plain(path);
        if let Some(parent) = path.parent() {
            self.put_dir(parent);
        }
        self.create_symlink(&path, points_to).expect("nothing else stands there");
    }

    /// Changes the metadata of an entry, whatever it says: also what no target can set, such as device and inode.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Metadata)) {
        let mut state = self.lock();
        let inode = state.find("edit", path, Last::NotFollowed).expect("the entry is there").inode;
        state.touch(inode, false);
        change(&mut state.inode_mut(inode).metadata);
    }

    /// Replaces the attributes of an entry.
    pub fn set_xattrs(&self, path: &Path, xattrs: &[Xattr]) {
        let mut state = self.lock();
        let inode = state.find("edit", path, Last::NotFollowed).expect("the entry is there").inode;
        state.touch(inode, false);
        let mut xattrs = xattrs.to_vec();
        xattrs.sort_unstable();
        state.inode_mut(inode).xattrs = xattrs;
    }

    /// Makes reads of a file fail as soon as they go beyond its first `after_bytes` bytes.
    pub fn fail_reads(&self, path: &Path, after_bytes: u64, kind: io::ErrorKind) {
        self.lock().faults.entry(rooted(path)).or_default().read = Some((after_bytes, kind));
    }

    /// Makes opening, listing or reading the link or attributes at the path fail.
    pub fn fail_open(&self, path: &Path, kind: io::ErrorKind) {
        self.lock().faults.entry(rooted(path)).or_default().open = Some(kind);
    }

    /// Makes asking for metadata at the path fail.
    pub fn fail_metadata(&self, path: &Path, kind: io::ErrorKind) {
        self.lock().faults.entry(rooted(path)).or_default().metadata = Some(kind);
    }

    /// Does something to the tree right before the `nth` read of a file from now on, counted from 1.
    ///
    /// Files that grow, shrink, vanish or become unreadable while they are read are made so.
    pub fn mutate_on_read(&self, path: &Path, nth: u64, action: impl FnOnce(&MemTree) + Send + 'static) {
        assert!(nth != 0, "reads are counted from 1");
        self.lock().faults.entry(rooted(path)).or_default().actions.push((nth, Box::new(action)));
    }

    /// Does something to the tree right before the `nth` call of its source side from now on, counted from 1: whatever the
    /// call is, of the tree, a directory or a file.
    pub fn mutate_on_call(&self, nth: u64, action: impl FnOnce(&MemTree) + Send + 'static) {
        assert!(nth != 0, "calls are counted from 1");
        let mut state = self.lock();
        let call = state.calls + nth;
        state.call_actions.push((call, Box::new(action)));
    }

    /// Returns how many calls of the source side there have been.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Moves an entry, in place of what stands at the other path.
    pub fn rename(&self, from: &Path, to: &Path) {
        let (from, to) = (plain(from), plain(to));
        let mut state = self.lock();
        let place =
            |state: &State, path| state.find_parent("rename", path).expect("it is there").expect("not the root");
        let (from, to) = (place(&state, &from), place(&state, &to));
        state.rename(from, to);
    }

    /// Removes an entry, a directory with all that it holds. As a target, the tree removes no directory that holds something.
    pub fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.lock();
        let parent = state.find_parent("remove", path)?;
        let (directory, name) = parent.ok_or_else(|| refuse("remove", path, io::ErrorKind::ResourceBusy))?;
        if !state.names(directory).is_some_and(|names| names.contains_key(name)) {
            return Err(refuse("remove", path, io::ErrorKind::NotFound));
        }
        state.unlink(directory, name);
        Ok(())
    }

    /// Counts a call of the source side and does what was planned for it.
    fn count_call(&self) {
        let mut state = self.lock();
        state.calls += 1;
        let call = state.calls;
        let due: Vec<_> = state.call_actions.extract_if(.., |(planned, _)| *planned == call).collect();
        drop(state);
        // The tree is free again: an action may do anything to it.
        for (_, action) in due {
            action(self);
        }
    }

    /// Reads a whole tree into memory, with every attribute; the root takes those of `path`.
    pub fn load(source: &dyn SourceTree, path: &Path) -> Result<Self> {
        let tree = Self::new();
        let mut linked: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
        let mut todo = vec![PathBuf::new()];
        // Attributes follow once all entries are there: adding one changes its directory.
        let mut loaded = Vec::new();
        while let Some(at) = todo.pop() {
            let from = if at.as_os_str().is_empty() { path.to_path_buf() } else { path.join(&at) };
            let metadata = source.metadata(&from)?;
            let shared = metadata.kind != EntryKind::Directory && 1 < metadata.links;
            if shared && let Some(first) = linked.get(&(metadata.device, metadata.inode)) {
                tree.hard_link_any(first, &at)?;
                continue;
            }
            match metadata.kind {
                EntryKind::Directory => {
                    tree.create_dir(&at)?;
                    todo.extend(source.list(&from)?.into_iter().map(|name| at.join(name)));
                }
                EntryKind::File => load_file(&*source.open(&from)?, &*tree.create_file(&at)?, metadata.size)?,
                EntryKind::Symlink => tree.create_symlink(&at, read_link(source, &from)?.as_os_str())?,
                kind @ (EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice | EntryKind::BlockDevice) => {
                    tree.create_special(&at, kind, metadata.rdev)?;
                }
            }
            linked.insert((metadata.device, metadata.inode), at.clone());
            loaded.push((at, metadata, xattrs(source, &from)?));
        }
        for (at, metadata, xattrs) in &loaded {
            tree.set_metadata(at, metadata, xattrs, Trust::Full)?;
        }
        Ok(tree)
    }

    /// Compares every attribute except change time, inode and device; returns each difference as a sentence.
    ///
    /// Files are compared as they read: where their holes are does not matter. Which names share an entry does.
    pub fn diff(&self, other: &Self) -> Vec<String> {
        if Arc::ptr_eq(&self.state, &other.state) {
            return Vec::new();
        }
        diff::diff(&self.lock(), &other.lock())
    }

    /// Sets all modification times to 0, so that trees with clocks of their own can be compared.
    pub fn forget_times(&self) {
        self.lock().forget_times();
    }

    fn hard_link_any(&self, existing: &Path, new: &Path) -> Result<()> {
        let mut state = self.lock();
        if state.is_plain {
            return Err(refuse_unsupported("link", new));
        }
        let inode = state.find_plain("link", existing)?;
        let inode = inode.ok_or_else(|| refuse("link", existing, io::ErrorKind::NotFound))?;
        let (directory, name) = free_name(&state, "link", new)?;
        state.link(directory, name, inode);
        Ok(())
    }

    fn create(&self, operation: &'static str, path: &Path, kind: EntryKind, body: Body, rdev: u64) -> Result<u64> {
        let mut state = self.lock();
        if state.is_plain && !matches!(kind, EntryKind::File | EntryKind::Directory) {
            return Err(refuse_unsupported(operation, path));
        }
        let (directory, name) = free_name(&state, operation, path)?;
        // A mount point is made by editing a directory's device; what is put below it is on that device, too.
        let device = state.inode(directory).metadata.device;
        let inode = state.add(kind, body, rdev, device);
        state.link(directory, name, inode);
        Ok(inode)
    }

    fn mem_file(&self, inode: u64, path: PathBuf) -> MemFile {
        let opened = self.lock().inode(inode).metadata.clone();
        MemFile { tree: self.clone(), inode, path, opened, lock: Mutex::default() }
    }
}

fn load_file(from: &dyn SourceFile, to: &dyn TargetFile, len: u64) -> Result<()> {
    to.set_len(len)?;
    let mut offset = 0;
    while let Some(range) = from.next_data(offset)? {
        let len = usize::try_from(range.end - range.start).map_err(Error::invalid)?;
        let mut bytes = vec![0; len];
        let count = from.read_at(range.start, &mut bytes)?;
        to.write_at(range.start, bytes.get(..count).unwrap_or_default())?;
        offset = range.end;
    }
    Ok(())
}

/// Returns the path as a target takes it: relative to the root.
fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_path_buf()
}

/// Returns the path as faults are kept by: absolute.
fn rooted(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}

fn free_name<'a>(state: &State, operation: &'static str, path: &'a Path) -> Result<(u64, &'a OsStr)> {
    let stands = || refuse(operation, path, io::ErrorKind::AlreadyExists);
    let (directory, name) = state.find_parent(operation, path)?.ok_or_else(stands)?;
    match state.names(directory) {
        None => Err(refuse(operation, path, io::ErrorKind::NotADirectory)),
        Some(names) if names.contains_key(name) => Err(stands()),
        Some(_) => Ok((directory, name)),
    }
}

impl MemTree {
    fn set_inode_metadata(&self, inode: u64, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) {
        assert!(
            xattrs.windows(2).all(|pair| pair[0].name < pair[1].name),
            "attributes must be sorted and each named once"
        );
        let mut state = self.lock();
        let ctime = state.tick();
        let entry = state.inode_mut(inode);
        if entry.metadata.kind != EntryKind::Symlink {
            let kept = if trust == Trust::Untrusted { 0o1777 } else { 0o7777 };
            entry.metadata.mode = metadata.mode & kept;
        }
        entry.metadata.uid = metadata.uid;
        entry.metadata.gid = metadata.gid;
        entry.metadata.mtime = metadata.mtime;
        entry.metadata.ctime = ctime;
        let trusted = |xattr: &&Xattr| {
            xattr.name != "security.capability" && !xattr.name.as_encoded_bytes().starts_with(b"trusted.")
        };
        entry.xattrs = xattrs.iter().filter(|xattr| trust == Trust::Full || trusted(xattr)).cloned().collect();
    }
}

impl TargetTree for MemTree {
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        let state = self.lock();
        Ok(state.find_plain("read metadata of", path)?.map(|inode| state.inode(inode).metadata.clone()))
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        let state = self.lock();
        let inode = state.find_plain("list", path)?.ok_or_else(|| refuse("list", path, io::ErrorKind::NotFound))?;
        let names = state.names(inode).ok_or_else(|| refuse("list", path, io::ErrorKind::NotADirectory))?;
        Ok(names.keys().cloned().collect())
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        let stands = TargetTree::metadata(self, path)?;
        match stands.map(|metadata| metadata.kind) {
            Some(EntryKind::Directory) => Ok(()),
            Some(_) => Err(refuse("create directory", path, io::ErrorKind::NotADirectory)),
            None => {
                let body = Body::Directory(BTreeMap::new());
                self.create("create directory", path, EntryKind::Directory, body, 0).map(|_| ())
            }
        }
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        let body = Body::File(Extents::default());
        let inode = self.create("create file", path, EntryKind::File, body, 0)?;
        Ok(Box::new(self.mem_file(inode, path.to_path_buf())))
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        let state = self.lock();
        let inode = state.find_plain("open", path)?.ok_or_else(|| refuse("open", path, io::ErrorKind::NotFound))?;
        let kind = state.inode(inode).metadata.kind;
        drop(state);
        match kind {
            EntryKind::File => Ok(Box::new(self.mem_file(inode, path.to_path_buf()))),
            EntryKind::Symlink => Err(refuse_link("open", path)),
            _ => Err(Error::invalid(format!("open {}: not a regular file", path.display()))),
        }
    }

    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()> {
        assert!(!points_to.is_empty(), "{}: a link points somewhere", path.display());
        let body = Body::Symlink(points_to.to_os_string());
        self.create("create link", path, EntryKind::Symlink, body, 0).map(|_| ())
    }

    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()> {
        let rdev = match kind {
            EntryKind::Fifo | EntryKind::Socket => 0,
            EntryKind::CharDevice | EntryKind::BlockDevice => rdev,
            EntryKind::File | EntryKind::Directory | EntryKind::Symlink => {
                panic!("create special file {}: {kind:?} is none", path.display())
            }
        };
        self.create("create special file", path, kind, Body::Special, rdev).map(|_| ())
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()> {
        match TargetTree::metadata(self, existing)?.map(|metadata| metadata.kind) {
            Some(EntryKind::Directory) => Err(refuse("link", existing, io::ErrorKind::IsADirectory)),
            Some(EntryKind::Symlink) => Err(refuse_link("link", existing)),
            _ => self.hard_link_any(existing, new),
        }
    }

    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed> {
        let mut state = self.lock();
        let missing = || refuse("rename", from, io::ErrorKind::NotFound);
        let busy = || refuse("rename", to, io::ErrorKind::ResourceBusy);
        let found = state.find_plain("rename", from)?;
        let identity = found.map(|inode| state.inode(inode).metadata.identity());
        if expected.is_some() && identity != expected {
            return Ok(Renamed::Unexpected);
        }
        let inode = found.ok_or_else(missing)?;
        let (old, old_name) = state.find_parent("rename", from)?.ok_or_else(busy)?;
        let (new, new_name) = state.find_parent("rename", to)?.ok_or_else(busy)?;
        if state.names(new).is_none() {
            return Err(refuse("rename", to, io::ErrorKind::NotADirectory));
        }
        if let Some(standing) = state.find_plain("rename", to)? {
            if onto == Onto::Nothing {
                return Ok(Renamed::Taken);
            }
            if standing == inode {
                // Two names of one entry: the kernel does nothing.
                return Ok(Renamed::Done);
            }
            if state.names(standing).is_some() {
                return Err(refuse("rename", to, io::ErrorKind::IsADirectory));
            }
            if state.names(inode).is_some() {
                return Err(refuse("rename", to, io::ErrorKind::NotADirectory));
            }
        }
        state.rename((old, old_name), (new, new_name));
        Ok(Renamed::Done)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let inode = self.lock().find_plain("remove", path)?;
        if inode.is_some_and(|inode| self.lock().names(inode).is_some_and(|names| !names.is_empty())) {
            return Err(refuse("remove", path, io::ErrorKind::DirectoryNotEmpty));
        }
        Self::remove(self, path)
    }

    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        let missing = || refuse("set metadata of", path, io::ErrorKind::NotFound);
        let inode = self.lock().find_plain("set metadata of", path)?.ok_or_else(missing)?;
        self.set_inode_metadata(inode, metadata, xattrs, trust);
        Ok(Unset::default())
    }

    fn folds_case(&self) -> Result<bool> {
        Ok(self.lock().folds_case)
    }
}

/// Returns where a symbolic link of any tree points.
pub fn read_link(source: &dyn SourceTree, path: &Path) -> Result<PathBuf> {
    let target = match source.parent_of(path)? {
        (directory, Some(name)) => directory.read_entry(name)?.link_target,
        (_, None) => None,
    };
    target.ok_or_else(|| Error::io("read link", path, io::ErrorKind::InvalidInput.into()))
}

/// Returns all extended attributes of an entry of any tree, sorted by name.
pub fn xattrs(source: &dyn SourceTree, path: &Path) -> Result<Vec<Xattr>> {
    match source.parent_of(path)? {
        (directory, Some(name)) => directory.xattrs_of(name),
        (directory, None) => directory.xattrs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change<'a> = &'a dyn Fn(&MemTree);

    fn read_all(file: &dyn SourceFile, step: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let mut buffer = vec![0; step];
            let count = file.read_at(bytes.len() as u64, &mut buffer)?;
            bytes.extend_from_slice(&buffer[..count]);
            if count < step {
                return Ok(bytes);
            }
        }
    }

    #[test]
    fn files_change_while_they_are_read() {
        let path = Path::new("/dir/file");
        let tree = MemTree::new();
        tree.put_file(path, &[1; 10]);
        let before = SourceTree::metadata(&tree, path).unwrap();

        tree.mutate_on_read(path, 2, |tree| tree.put_file(Path::new("/dir/file"), &[2; 25]));
        let grown = tree.open(path).unwrap();
        assert_eq!(read_all(&*grown, 5).unwrap(), [[1; 5].as_slice(), &[2; 20]].concat());
        let after = grown.metadata().unwrap();
        assert_eq!((before.inode, after.size), (after.inode, 25));
        assert!(before.mtime < after.mtime && before.ctime < after.ctime);
        // Once only.
        assert_eq!(read_all(&*grown, 5).unwrap(), [2; 25]);

        tree.mutate_on_read(path, 3, |tree| tree.put_file(Path::new("/dir/file"), &[3; 12]));
        assert_eq!(read_all(&*grown, 5).unwrap(), [[2; 10].as_slice(), &[3; 2]].concat());

        tree.mutate_on_read(path, 1, |tree| tree.remove(Path::new("dir/file")).unwrap());
        assert_eq!(read_all(&*grown, 5).unwrap(), [3; 12]);
        assert_eq!(grown.metadata().unwrap().links, 0);
        let gone = SourceTree::metadata(&tree, path).unwrap_err();
        assert_eq!(gone.io_kind(), Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn reads_fail_from_where_they_are_told_to() {
        let path = Path::new("/file");
        let tree = MemTree::new();
        tree.put_file(path, &[1; 10]);
        tree.fail_reads(path, 7, io::ErrorKind::Other);
        let file = tree.open(path).unwrap();
        let mut buffer = [0; 7];
        assert_eq!(SourceFile::read_at(&*file, 0, &mut buffer).unwrap(), 7);
        let error = SourceFile::read_at(&*file, 1, &mut buffer).unwrap_err();
        assert_eq!(error.io_kind(), Some(io::ErrorKind::Other));
        tree.fail_open(path, io::ErrorKind::PermissionDenied);
        assert_eq!(tree.open(path).unwrap_err().io_kind(), Some(io::ErrorKind::PermissionDenied));
        tree.fail_metadata(path, io::ErrorKind::StaleNetworkFileHandle);
        let error = SourceTree::metadata(&tree, path).unwrap_err();
        assert_eq!(error.io_kind(), Some(io::ErrorKind::StaleNetworkFileHandle));
    }

    #[test]
    fn targets_are_strict() {
        let tree = MemTree::new();
        tree.put_file(Path::new("/file"), b"x");
        tree.put_symlink(Path::new("/link"), OsStr::new("/"));
        let kind = |outcome: Result<()>| outcome.unwrap_err().io_kind().unwrap();
        let path = Path::new;
        assert_eq!(kind(tree.create_file(path("file")).map(|_| ())), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(tree.create_file(path("no/file")).map(|_| ())), io::ErrorKind::NotFound);
        assert_eq!(kind(tree.create_dir(path("file/x"))), io::ErrorKind::NotADirectory);
        assert_eq!(kind(tree.remove(path("missing"))), io::ErrorKind::NotFound);
        assert!(tree.create_dir(path("link/x")).is_err());
        assert!(tree.create_dir(path("link")).is_err());
        assert!(tree.open_file(path("link")).is_err());
        assert!(tree.hard_link(path("link"), path("new")).is_err());
        for bad in ["/file", "a/../b", ".", "a//b", "a/", "a\0"] {
            let tree = tree.clone();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tree.create_dir(path(bad))));
            assert!(outcome.is_err(), "{bad}");
        }
    }

    #[test]
    fn every_difference_is_told() {
        let make = || {
            let tree = MemTree::new();
            tree.put_file(Path::new("/d/file"), &[1; 100]);
            tree.put_sparse(Path::new("/d/sparse"), 1 << 40, &[(1 << 39, b"x")]);
            tree.put_symlink(Path::new("/link"), OsStr::new("to"));
            tree.hard_link(Path::new("d/file"), Path::new("hard")).unwrap();
            tree.create_special(Path::new("null"), EntryKind::CharDevice, 259).unwrap();
            tree
        };
        assert_eq!(make().diff(&make()), Vec::<String>::new());
        let path = Path::new("/d/file");
        let xattr = Xattr { name: OsString::from("user.x"), value: Vec::new() };
        let changes: [(&str, Change<'_>); 13] = [
            ("mode", &|tree| tree.edit(path, |metadata| metadata.mode = 0o4600)),
            ("owner", &|tree| tree.edit(path, |metadata| metadata.uid = 7)),
            ("group", &|tree| tree.edit(path, |metadata| metadata.gid = 7)),
            ("modification time", &|tree| tree.edit(path, |metadata| metadata.mtime.nanoseconds = 1)),
            ("device number", &|tree| tree.edit(Path::new("/null"), |metadata| metadata.rdev = 260)),
            ("attributes", &|tree| tree.set_xattrs(path, std::slice::from_ref(&xattr))),
            ("contents", &|tree| tree.open_file(Path::new("d/file")).unwrap().write_at(99, b"y").unwrap()),
            ("contents", &|tree| tree.open_file(Path::new("d/sparse")).unwrap().write_at(7, b"y").unwrap()),
            ("size", &|tree| tree.open_file(Path::new("d/sparse")).unwrap().set_len(1 << 41).unwrap()),
            ("only on the left", &|tree| tree.remove(Path::new("hard")).unwrap()),
            ("only on the right", &|tree| tree.put_dir(Path::new("/new"))),
            ("the same entry", &|tree| {
                tree.remove(Path::new("hard")).unwrap();
                tree.put_file(Path::new("/hard"), &[1; 100]);
            }),
            ("where it points", &|tree| {
                tree.remove(Path::new("link")).unwrap();
                tree.put_symlink(Path::new("/link"), OsStr::new("fro"));
            }),
        ];
        for (told, change) in changes {
            let changed = make();
            change(&changed);
            let differences = make().diff(&changed);
            assert!(differences.iter().any(|difference| difference.contains(told)), "{told}: {differences:?}");
        }
        let unseen = make();
        unseen.edit(path, |metadata| (metadata.inode, metadata.device, metadata.ctime.seconds) = (9, 9, 9));
        assert_eq!(make().diff(&unseen), Vec::<String>::new());
    }
}
