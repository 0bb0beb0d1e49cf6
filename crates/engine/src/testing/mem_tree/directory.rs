//! A directory of a tree in memory, as the source side holds it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MemTree;
use super::faults::Fault;
use super::state::{Body, Last, State, refuse, refuse_link};
use crate::error::{Error, Result};
use crate::io::tree::{ClosedEntry, EntryKind, Links, Metadata, SourceDirectory, SourceFile, SourceTree, Xattr};

/// A directory of a [`MemTree`], held: it outlives its names.
#[derive(Debug)]
struct MemDirectory {
    tree: MemTree,
    inode: u64,
    /// Where it was opened, without links; what is planned for entries goes by this.
    path: PathBuf,
    opened: Metadata,
}

impl MemDirectory {
    fn open(tree: &MemTree, state: &State, inode: u64, path: PathBuf) -> Result<Arc<dyn SourceDirectory>> {
        let opened = match &state.inode(inode).body {
            Body::Directory(_) => state.inode(inode).metadata.clone(),
            Body::Symlink(_) => return Err(refuse_link("open", &path)),
            Body::File(_) | Body::Special => return Err(refuse("open", &path, io::ErrorKind::NotADirectory)),
        };
        Ok(Arc::new(Self { tree: tree.clone(), inode, path, opened }))
    }

    /// Does something with an entry, unless that is to fail.
    fn at<T>(
        &self,
        operation: &'static str,
        name: &OsStr,
        fails: impl Fn(&Fault) -> Option<io::ErrorKind>,
        action: impl FnOnce(&State, u64, PathBuf) -> Result<T>,
    ) -> Result<T> {
        assert!(!matches!(name.as_encoded_bytes(), b"" | b"." | b"..") && !name.as_encoded_bytes().contains(&b'/'));
        self.tree.count_call();
        let state = self.tree.lock();
        let path = self.path.join(name);
        let names = state.names(self.inode).expect("a directory stays one");
        let inode = *names.get(name).ok_or_else(|| refuse(operation, &path, io::ErrorKind::NotFound))?;
        match state.faults.get(&path).and_then(fails) {
            Some(kind) => Err(refuse(operation, &path, kind)),
            None => action(&state, inode, path),
        }
    }

    /// Looks at the directory itself, unless that is to fail.
    fn here(&self, operation: &'static str) -> Result<std::sync::MutexGuard<'_, State>> {
        self.tree.count_call();
        let state = self.tree.lock();
        match state.faults.get(&self.path).and_then(|fault| fault.open) {
            Some(kind) => Err(refuse(operation, &self.path, kind)),
            None => Ok(state),
        }
    }
}

impl SourceTree for MemTree {
    fn user_name(&self, uid: u32) -> Option<String> {
        self.lock().owner_names.0.get(&uid).cloned()
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        self.lock().owner_names.1.get(&gid).cloned()
    }

    fn open_dir(&self, path: &Path) -> Result<Arc<dyn SourceDirectory>> {
        self.count_call();
        let state = self.lock();
        let found = state.find("open", path, Last::Followed)?;
        MemDirectory::open(self, &state, found.inode, found.path)
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        Ok(self.lock().find("resolve", path, Last::Followed)?.path)
    }
}

impl SourceDirectory for MemDirectory {
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.opened.clone())
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        Ok(self.here("read attributes of")?.inode(self.inode).xattrs.clone())
    }

    fn list(&self) -> Result<Vec<OsString>> {
        let state = self.here("list")?;
        Ok(state.names(self.inode).expect("a directory stays one").keys().cloned().collect())
    }

    fn open_dir(&self, name: &OsStr, links: Links) -> Result<Arc<dyn SourceDirectory>> {
        // One that cannot be listed can still be held.
        self.at(
            "open",
            name,
            |_| None,
            |state, inode, path| {
                if links == Links::Followed {
                    let found = state.find("open", &path, Last::Followed)?;
                    return MemDirectory::open(&self.tree, state, found.inode, found.path);
                }
                MemDirectory::open(&self.tree, state, inode, path)
            },
        )
    }

    fn open(&self, name: &OsStr) -> Result<Box<dyn SourceFile>> {
        let (inode, path) = self.at(
            "open",
            name,
            |fault| fault.open,
            |state, inode, path| match &state.inode(inode).body {
                Body::File(_) => Ok((inode, path)),
                Body::Symlink(_) => Err(refuse_link("open", &path)),
                Body::Directory(_) | Body::Special => {
                    Err(Error::invalid(format!("open {}: not a regular file", path.display())))
                }
            },
        )?;
        Ok(Box::new(self.tree.mem_file(inode, path)))
    }

    fn metadata_of(&self, name: &OsStr) -> Result<Metadata> {
        let metadata = |state: &State, inode, _| Ok(state.inode(inode).metadata.clone());
        self.at("read metadata of", name, |fault| fault.metadata, metadata)
    }

    fn xattrs_of(&self, name: &OsStr) -> Result<Vec<Xattr>> {
        let xattrs = |state: &State, inode, _| Ok(state.inode(inode).xattrs.clone());
        self.at("read attributes of", name, |fault| fault.open, xattrs)
    }

    fn read_entry(&self, name: &OsStr) -> Result<ClosedEntry> {
        self.at(
            "read",
            name,
            |fault| fault.open,
            |state, inode, _| {
                let entry = state.inode(inode);
                let link_target = match &entry.body {
                    Body::Symlink(to) => Some(PathBuf::from(to)),
                    Body::File(_) | Body::Directory(_) | Body::Special => None,
                };
                debug_assert_eq!(link_target.is_some(), entry.metadata.kind == EntryKind::Symlink);
                Ok(ClosedEntry { metadata: entry.metadata.clone(), link_target, xattrs: Ok(entry.xattrs.clone()) })
            },
        )
    }
}
