//! Quarantine: damaged containers and small objects get other names. Other bytes may take the name of a small object at the same moment.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{DirectoryStore, absent_is, parent_of, temporary};
use crate::error::Result;
use crate::object::names::{ContainerName, ObjectName};
use crate::types::SessionId;

/// Ending of the names of quarantined small objects.
pub(crate) const QUARANTINED: &str = ".bad";
/// The highest number of an object that is set aside. The last one is replaced.
const QUARANTINED_MAX: u32 = 999;

impl DirectoryStore {
    /// Renames the file of an object to one that ends in [`QUARANTINED`]; its name gets other bytes, or is free.
    pub(super) fn quarantine_file(
        &self,
        session: SessionId,
        name: ObjectName,
        replacement: Option<&[u8]>,
    ) -> Result<()> {
        let path = name.path();
        let mut aside = PathBuf::new();
        for number in 0..=QUARANTINED_MAX {
            aside = PathBuf::from(format!("{name}.{number}{QUARANTINED}"));
            if !self.disk.exists(&aside)? {
                break;
            }
        }
        let Some(bytes) = replacement else {
            absent_is((), self.disk.rename(&path, &aside))?;
            return self.disk.sync_dir(parent_of(&path));
        };
        let ticket = self.write_temporary(session, |path| self.write_small(path, bytes))?;
        let from = temporary(session, ticket);
        // The name stands at every moment.
        let replaced = match self.disk.link(&path, &aside) {
            Ok(_) => self.disk.rename(&from, &path),
            // A directory has no links.
            Err(_) => self.disk.exchange(&from, &path).and_then(|()| self.disk.rename(&from, &aside)),
        };
        replaced.inspect_err(|_| self.remove_temporary(&from))?;
        self.disk.sync_dir(parent_of(&path))
    }

    /// Renames containers.
    pub(super) fn quarantine_containers(&self, names: &[ContainerName]) -> Result<()> {
        for name in names {
            self.open_files().remove(&(*name).into());
            absent_is((), self.disk.rename(&name.path(), &ObjectName::Quarantined(*name).path()))?;
        }
        self.sync_existing(&names.iter().map(|name| parent_of(&name.path()).to_owned()).collect())
    }

    /// Syncs directories that exist. A name that was removed before a crash is synced as well: its removal need not be durable.
    pub(super) fn sync_existing(&self, directories: &BTreeSet<PathBuf>) -> Result<()> {
        directories.iter().try_for_each(|directory| absent_is((), self.disk.sync_dir(directory)))
    }
}
