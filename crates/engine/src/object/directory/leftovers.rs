//! Temporary files and probes that interrupted sessions have left.

use std::path::Path;

use super::{CREATION_LOCK, DirectoryStore, PROBE, SESSION_DIGITS, TMP, absent_is};
use crate::error::Result;
use crate::io::{DiskEntry, SizedEntry};
use crate::object::names::Prefix;
use crate::object::store::Leftovers;
use crate::types::SessionId;

impl DirectoryStore {
    /// Finds temporary files, and probes wherever a session may have left them. Removes those that `removes` allows.
    pub(super) fn find_leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        let mut found = Leftovers::default();
        for SizedEntry { name, len, .. } in absent_is(Vec::new(), self.disk.list_sized(Path::new(TMP)))? {
            self.remove_leftover((&Path::new(TMP).join(&name), &name, len), removes, &mut found)?;
        }
        let probed =
            [Prefix::Sessions, Prefix::Collections, Prefix::Containers].map(|prefix| prefix.directory().into());
        let mut directories = Vec::from(probed);
        directories.extend(absent_is(Vec::new(), self.list_below(Prefix::Containers, &mut Vec::new()))?);
        for directory in directories {
            for DiskEntry { name, is_dir } in absent_is(Vec::new(), self.disk.list(&directory))? {
                if !is_dir && name.ends_with(PROBE) {
                    self.remove_leftover((&directory.join(&name), &name, 0), removes, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// Removes what an interrupted session has left, if `removes` allows it, and counts it.
    fn remove_leftover(
        &self,
        (path, name, len): (&Path, &str, u64),
        removes: &dyn Fn(Option<SessionId>) -> bool,
        found: &mut Leftovers,
    ) -> Result<()> {
        let session = name.get(..SESSION_DIGITS).and_then(SessionId::parse);
        if path == Path::new(CREATION_LOCK) || !removes(session) {
            found.kept += 1;
            return Ok(());
        }
        absent_is((), self.disk.remove(path))?;
        found.removed += 1;
        found.removed_bytes += len;
        Ok(())
    }
}
