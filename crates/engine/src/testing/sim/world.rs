//! The simulated world: nodes, and the names that reach them.
//!
//! Names and contents are apart. A name is durable only after its directory was synced, a file's contents only after
//! the file was; a power cut leaves what durable names reach from the root.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::contents::Contents;
use super::file::FileNode;
use crate::io::{DiskEntry, Linked, SizedEntry};

/// Number of a node.
pub(super) type Inode = usize;
/// Names of a directory.
pub(super) type Names = BTreeMap<Arc<str>, Inode>;

/// The root directory, which has no name and is always durable.
pub(super) const ROOT: Inode = 0;

/// One change to the names of a directory that is not durable yet. Each happens wholly or not at all.
#[derive(Clone)]
pub(super) enum NameChange {
    /// A name was given, replacing what had it.
    Set {
        /// The name.
        name: Arc<str>,
        /// Whose it is now.
        inode: Inode,
    },
    /// A name was taken away.
    Remove {
        /// The name.
        name: Arc<str>,
        /// Whose it was.
        inode: Inode,
    },
    /// A node changed its name within the directory. Between directories, it is a `Set` in one and a `Remove` in the
    /// other, each durable with its own directory.
    Rename {
        /// The old name.
        from: Arc<str>,
        /// The new name.
        to: Arc<str>,
        /// Whose they are.
        inode: Inode,
    },
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            Self::Set { name, inode } => {
                names.insert(Arc::clone(name), *inode);
            }
            Self::Remove { name, inode } => remove_name(names, name, *inode),
            Self::Rename { from, to, inode } => {
                remove_name(names, from, *inode);
                names.insert(Arc::clone(to), *inode);
            }
        }
    }
}

/// Removes a name only where it is the node's: where an earlier change was lost, it may be another's.
fn remove_name(names: &mut Names, name: &str, inode: Inode) {
    if names.get(name) == Some(&inode) {
        names.remove(name);
    }
}

/// A directory of the simulated world.
#[derive(Clone, Default)]
pub(super) struct DirNode {
    live: Names,
    durable: Names,
    /// Changes that a failed sync has given up: readers see them, and no later sync makes them durable.
    lost: Vec<NameChange>,
    /// Changes since the last sync, in order.
    pending: Vec<NameChange>,
}

impl DirNode {
    /// Makes a directory that a crash left behind, all of it durable.
    pub(super) fn durable_as(names: Names) -> Self {
        Self { live: names.clone(), durable: names, lost: Vec::new(), pending: Vec::new() }
    }

    pub(super) fn live(&self) -> &Names {
        &self.live
    }

    pub(super) fn durable(&self) -> &Names {
        &self.durable
    }

    /// Returns the changes that are not durable, in order.
    pub(super) fn undurable(&self) -> impl ExactSizeIterator<Item = &NameChange> {
        let changes: Vec<&NameChange> = self.lost.iter().chain(&self.pending).collect();
        changes.into_iter()
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    fn fail_sync(&mut self) {
        self.lost.append(&mut self.pending);
    }
}

/// A state of files and names.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    /// As readers see them.
    Now,
    /// As far as they are durable.
    AfterPowerCut,
}

/// A file or a directory. Nodes are shared between worlds until one of them changes its own.
#[derive(Clone)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

/// All nodes, by inode.
#[derive(Clone)]
pub(super) struct World {
    nodes: Vec<Arc<Node>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { nodes: vec![Arc::new(Node::Dir(DirNode::default()))] }
    }

    /// Makes a world of nodes; the first is the root.
    pub(super) fn durable_as(nodes: Vec<Arc<Node>>) -> Self {
        Self { nodes }
    }

    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(super) fn file(&self, inode: Inode) -> io::Result<&FileNode> {
        match &*self.nodes[inode] {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn file_mut(&mut self, inode: Inode) -> io::Result<&mut FileNode> {
        match Arc::make_mut(&mut self.nodes[inode]) {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn dir(&self, inode: Inode) -> io::Result<&DirNode> {
        match &*self.nodes[inode] {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn dir_mut(&mut self, inode: Inode) -> io::Result<&mut DirNode> {
        match Arc::make_mut(&mut self.nodes[inode]) {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn is_dir(&self, inode: Inode) -> bool {
        matches!(&*self.nodes[inode], Node::Dir(_))
    }

    fn add(&mut self, node: Node) -> Inode {
        self.nodes.push(Arc::new(node));
        self.nodes.len() - 1
    }

    fn set_name(&mut self, dir: Inode, name: Arc<str>, inode: Inode) -> io::Result<()> {
        self.dir_mut(dir)?.change(NameChange::Set { name, inode });
        Ok(())
    }

    fn child(&self, dir: Inode, name: &str) -> io::Result<Option<Inode>> {
        Ok(self.dir(dir)?.live.get(name).copied())
    }

    /// Returns the node that the path names.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<Inode> {
        let mut inode = ROOT;
        for component in path.components() {
            inode = self.child(inode, plain(component)?)?.ok_or(ErrorKind::NotFound)?;
        }
        Ok(inode)
    }

    /// Returns the directory that holds the path's last name, and that name.
    fn resolve_parent(&self, path: &Path) -> io::Result<(Inode, Arc<str>)> {
        let mut components = path.components();
        let name = plain(components.next_back().ok_or(ErrorKind::InvalidInput)?)?;
        let parent = self.resolve(components.as_path())?;
        self.dir(parent)?;
        Ok((parent, name.into()))
    }

    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<Inode> {
        let (parent, name) = self.resolve_parent(path)?;
        if self.child(parent, &name)?.is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let inode = self.add(Node::File(FileNode::default()));
        self.set_name(parent, name, inode)?;
        Ok(inode)
    }

    pub(super) fn open_file(&self, path: &Path) -> io::Result<Inode> {
        let inode = self.resolve(path)?;
        self.file(inode)?;
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        if path.components().next().is_none() {
            return Ok(());
        }
        let (parent, name) = self.resolve_parent(path)?;
        match self.child(parent, &name)? {
            Some(inode) if self.is_dir(inode) => Ok(()),
            Some(_) => Err(ErrorKind::AlreadyExists.into()),
            None => {
                let inode = self.add(Node::Dir(DirNode::default()));
                self.set_name(parent, name, inode)
            }
        }
    }

    /// Creates a directory with a durable name, where nothing stands yet: part of building a world, not of what
    /// happens in it.
    pub(super) fn create_durable_dir(&mut self, path: &Path) -> io::Result<()> {
        if !self.exists(path)? {
            let (parent, name) = self.resolve_parent(path)?;
            let inode = self.add(Node::Dir(DirNode::default()));
            let parent = self.dir_mut(parent)?;
            parent.live.insert(Arc::clone(&name), inode);
            parent.durable.insert(name, inode);
        }
        self.dir(self.resolve(path)?)?;
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.resolve_parent(from)?;
        let (to_dir, to_name) = self.resolve_parent(to)?;
        let inode = self.child(from_dir, &from_name)?.ok_or(ErrorKind::NotFound)?;
        if self.is_dir(inode) && to.starts_with(from) && to != from {
            return Err(ErrorKind::InvalidInput.into());
        }
        match self.child(to_dir, &to_name)? {
            // Two names of one file: POSIX leaves both.
            Some(replaced) if replaced == inode => return Ok(()),
            Some(replaced) => match (self.is_dir(inode), self.is_dir(replaced)) {
                (false, true) => return Err(ErrorKind::IsADirectory.into()),
                (true, false) => return Err(ErrorKind::NotADirectory.into()),
                (true, true) if !self.dir(replaced)?.live.is_empty() => {
                    return Err(ErrorKind::DirectoryNotEmpty.into());
                }
                (true, true) | (false, false) => {}
            },
            None => {}
        }
        if from_dir == to_dir {
            self.dir_mut(to_dir)?.change(NameChange::Rename { from: from_name, to: to_name, inode });
        } else {
            self.set_name(to_dir, to_name, inode)?;
            self.dir_mut(from_dir)?.change(NameChange::Remove { name: from_name, inode });
        }
        Ok(())
    }

    pub(super) fn exchange(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.resolve_parent(from)?;
        let (to_dir, to_name) = self.resolve_parent(to)?;
        let first = self.child(from_dir, &from_name)?.ok_or(ErrorKind::NotFound)?;
        let second = self.child(to_dir, &to_name)?.ok_or(ErrorKind::NotFound)?;
        self.set_name(to_dir, to_name, first)?;
        self.set_name(from_dir, from_name, second)
    }

    pub(super) fn link(&mut self, existing: &Path, new: &Path) -> io::Result<Linked> {
        let inode = self.resolve(existing)?;
        let (parent, name) = self.resolve_parent(new)?;
        if self.child(parent, &name)?.is_some() {
            return Ok(Linked::Existed);
        }
        if self.is_dir(inode) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        self.set_name(parent, name, inode)?;
        Ok(Linked::Created)
    }

    /// Removes a name. The bytes of a file without another one are free again.
    pub(super) fn remove(&mut self, path: &Path, free_bytes: &mut Option<u64>) -> io::Result<()> {
        if let Some(free) = free_bytes {
            *free += self.freed_by_removing(path)?;
        }
        let (parent, name) = self.resolve_parent(path)?;
        let inode = self.child(parent, &name)?.ok_or(ErrorKind::NotFound)?;
        self.file(inode)?;
        self.dir_mut(parent)?.change(NameChange::Remove { name, inode });
        Ok(())
    }

    /// Returns the bytes that the removal of a name gives back: none if the file has another name.
    fn freed_by_removing(&self, path: &Path) -> io::Result<u64> {
        let (parent, name) = self.resolve_parent(path)?;
        let inode = self.child(parent, &name)?.ok_or(ErrorKind::NotFound)?;
        let directories = self.nodes.iter().filter_map(|node| match &**node {
            Node::Dir(directory) => Some(directory),
            Node::File(_) => None,
        });
        let names: usize =
            directories.map(|directory| directory.live.values().filter(|named| **named == inode).count()).sum();
        Ok(if names == 1 { self.file(inode)?.live().len() } else { 0 })
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<bool> {
        if !self.exists(path)? {
            return Ok(true);
        }
        let (parent, name) = self.resolve_parent(path)?;
        let inode = self.child(parent, &name)?.ok_or(ErrorKind::NotFound)?;
        let is_empty = self.dir(inode)?.live.is_empty();
        if is_empty {
            self.dir_mut(parent)?.change(NameChange::Remove { name, inode });
        }
        Ok(is_empty)
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.resolve(path)?;
        self.dir_mut(inode)?.sync();
        Ok(())
    }

    pub(super) fn fail_sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.resolve(path)?;
        self.dir_mut(inode)?.fail_sync();
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        let names = &self.dir(self.resolve(path)?)?.live;
        Ok(names
            .iter()
            .map(|(name, inode)| DiskEntry { name: name.to_string(), is_dir: self.is_dir(*inode) })
            .collect())
    }

    pub(super) fn list_sized(&self, path: &Path) -> io::Result<Vec<SizedEntry>> {
        let names = &self.dir(self.resolve(path)?)?.live;
        let sized = names.iter().map(|(name, inode)| {
            let file = self.file(*inode);
            let (is_dir, len) = (file.is_err(), file.map_or(0, |file| file.live().len()));
            SizedEntry { name: name.to_string(), is_dir, len, changed: None }
        });
        Ok(sized.collect())
    }

    /// Returns all files below a directory, by their paths from there; none if there is no such directory.
    pub(super) fn files(&self, directory: &Path, moment: Moment) -> Vec<(PathBuf, Contents)> {
        let mut inode = ROOT;
        for component in directory.components() {
            let Ok(name) = plain(component) else { return Vec::new() };
            let Some(child) = self.names(inode, moment).and_then(|names| names.get(name)) else { return Vec::new() };
            inode = *child;
        }
        let (mut files, mut directories) = (Vec::new(), vec![(PathBuf::new(), inode)]);
        while let Some((path, inode)) = directories.pop() {
            for (name, child) in self.names(inode, moment).into_iter().flatten() {
                let path = path.join(&**name);
                match (&*self.nodes[*child], moment) {
                    (Node::Dir(_), _) => directories.push((path, *child)),
                    (Node::File(file), Moment::Now) => files.push((path, file.live().clone())),
                    (Node::File(file), Moment::AfterPowerCut) => files.push((path, file.durable().clone())),
                }
            }
        }
        files
    }

    fn names(&self, inode: Inode, moment: Moment) -> Option<&Names> {
        match (&*self.nodes[inode], moment) {
            (Node::File(_), _) => None,
            (Node::Dir(dir), Moment::Now) => Some(&dir.live),
            (Node::Dir(dir), Moment::AfterPowerCut) => Some(&dir.durable),
        }
    }

    pub(super) fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.resolve(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns a path's component as a name. Absolute paths and `..` would lead out of the disk: the engine has none.
fn plain(component: Component<'_>) -> io::Result<&str> {
    match component {
        Component::Normal(name) => name.to_str().ok_or_else(|| ErrorKind::InvalidInput.into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            Err(ErrorKind::InvalidInput.into())
        }
    }
}
