//! Tries of a directory: whether names are given once, and whether listings show changes immediately.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{DirectoryStore, PROBE, TMP, absent_is, is_kind};
use crate::error::{Error, Result};
use crate::io::DiskEntry;
use crate::object::handshake::ProbeHandle;
use crate::object::names::Prefix;
use crate::object::store::{Created, ObjectStore};
use crate::types::SessionId;

impl DirectoryStore {
    /// Tries what commits rely on: that a name can be given to a file once and never again.
    pub(super) fn probe(&self, session: SessionId) -> Result<()> {
        let target = Path::new(TMP).join(format!("{session}{PROBE}"));
        let probed = self.probe_at(session, &target);
        let removed = match self.disk.exists(&target) {
            Ok(true) => self.disk.remove(&target),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        probed.and(removed)
    }

    fn probe_at(&self, session: SessionId, target: &Path) -> Result<()> {
        let refuse = |reason| Err(Error::UnfitFileSystem { root: self.display(""), reason });
        match self.link_new(session, target, b"probe") {
            Ok(Created::New) => {}
            Ok(Created::Existed) => return refuse("a name that was just drawn stands already"),
            Err(error) if is_unsupported(&error) => {
                return refuse("it has no hard links (link(2)), which create a snapshot at once or not at all");
            }
            Err(error) => return Err(error),
        }
        match self.link_new(session, target, b"again")? {
            Created::Existed => Ok(()),
            Created::New => refuse("it lets link(2) replace a file that stands already"),
        }
    }

    /// Changes a directory, so that a network file system's client reads it again when it is listed.
    pub(super) fn touch(&self, session: SessionId, directory: &Path) -> Result<()> {
        let path = directory.join(format!("{session}{PROBE}"));
        // After an error the file may have been created.
        drop(self.disk.create(&path).inspect_err(|_| self.remove_temporary(&path))?);
        self.disk.remove(&path)
    }

    /// Changes the directory of collections, and those of collections that are not done.
    pub(super) fn touch_collections(&self, session: SessionId) -> Result<()> {
        let root = Path::new(Prefix::Collections.directory());
        self.touch(session, root)?;
        for DiskEntry { name, is_dir } in self.disk.list(root)? {
            let directory = root.join(&name);
            let is_collection = is_dir && Prefix::Collections.is_group(&name);
            if is_collection && !self.disk.exists(&directory.join("done"))? {
                self.touch(session, &directory)?;
            }
        }
        Ok(())
    }

    /// Changes the directory of containers, and that of each session in it.
    pub(super) fn touch_containers(&self, session: SessionId) -> Result<()> {
        self.touch(session, Path::new(Prefix::Containers.directory()))?;
        for directory in self.list_below(Prefix::Containers, &mut Vec::new())? {
            // A collection may remove the directory of a session meanwhile.
            absent_is((), self.touch(session, &directory))?;
        }
        Ok(())
    }
}

fn is_unsupported(error: &Error) -> bool {
    // Linux file systems without hard links answer EPERM or EOPNOTSUPP.
    matches!(error, Error::Io { operation: "link", .. })
        && matches!(error.io_kind(), Some(ErrorKind::Unsupported | ErrorKind::PermissionDenied))
}

fn handshake_probe(prefix: Prefix, session: SessionId) -> PathBuf {
    Path::new(prefix.directory()).join(format!("{session}-handshake{PROBE}"))
}

impl ProbeHandle for DirectoryStore {
    fn create_probe(&self, prefix: Prefix, session: SessionId) -> Result<()> {
        let path = handshake_probe(prefix, session);
        match self.link_new(session, &path, session.to_string().as_bytes())? {
            Created::New => self.disk.sync_dir(Path::new(prefix.directory())),
            Created::Existed => Err(Error::damaged(self.disk.display(&path), "stands already under a name just drawn")),
        }
    }

    fn remove_probe(&self, prefix: Prefix, session: SessionId) -> Result<()> {
        match self.disk.remove(&handshake_probe(prefix, session)) {
            Err(error) if is_kind(&error, ErrorKind::NotFound) => Ok(()),
            removed => removed.and_then(|()| self.disk.sync_dir(Path::new(prefix.directory()))),
        }
    }

    fn lists_probe(&self, prefix: Prefix, session: SessionId) -> Result<bool> {
        let probe = handshake_probe(prefix, session);
        let listed = self.disk.list(Path::new(prefix.directory()))?;
        Ok(listed.iter().any(|entry| probe.file_name().is_some_and(|name| name == entry.name.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::Disk;
    use crate::object::names::DIRECTORIES;
    use crate::object::store::Handshake;
    use crate::testing::sim::{Fault, SimDisk};

    const SESSION: SessionId = SessionId([5; 16]);

    fn disk() -> SimDisk {
        let disk = SimDisk::new();
        for name in DIRECTORIES {
            let _made = disk.subdir(name);
        }
        disk
    }

    fn names(disk: &SimDisk) -> Vec<String> {
        let list = |directory: &str| disk.list(Path::new(directory)).unwrap();
        DIRECTORIES.into_iter().flat_map(list).map(|entry| entry.name).collect()
    }

    fn store(disk: &SimDisk) -> DirectoryStore {
        DirectoryStore::new(Arc::new(disk.clone()))
    }

    #[test]
    fn the_handshake_passes_and_leaves_nothing() {
        let disk = disk();
        assert_eq!(store(&disk).try_handshake(SESSION).unwrap(), Handshake::Passed);
        assert_eq!(names(&disk), Vec::<String>::new());
        // Nor does a power cut bring a probe back.
        let after = disk.crash(crate::testing::sim::CrashMode::LoseUnsynced);
        assert_eq!(names(&after), Vec::<String>::new());
    }

    #[test]
    fn a_handshake_that_died_leaves_names_that_no_listing_shows_and_that_are_removed_with_temporary_files() {
        let counted = disk();
        let _passed = store(&counted).try_handshake(SESSION).unwrap();
        let mut left = 0;
        for call in 1..=counted.calls() {
            let died = disk();
            died.fail_at(call, Fault::DieAfter);
            store(&died).try_handshake(SESSION).unwrap_err();
            let disk = died.reopen();
            left += names(&disk).len();
            for prefix in [Prefix::Sessions, Prefix::Collections] {
                let listed = store(&disk).list(prefix, crate::object::store::Detail::Lengths, &mut |page| {
                    assert_eq!(page, []);
                    Ok(())
                });
                listed.unwrap();
            }
            let found = store(&disk).leftovers(&|session| session != Some(SESSION)).unwrap();
            assert_eq!((found.kept, found.removed), (names(&disk).len() as u64, 0));
            store(&disk).leftovers(&|session| session == Some(SESSION)).unwrap();
            assert_eq!(names(&disk), Vec::<String>::new(), "call {call}");
        }
        assert!(0 < left);
    }
}
