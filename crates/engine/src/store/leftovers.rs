//! Temporary files of sessions that have ended.

use crate::error::Result;
use crate::object::store::Leftovers;
use crate::store::Store;

impl Store {
    /// Removes the temporary files of sessions that have ended, however they did. Those of other sessions stay, since their
    /// writers may still need them, and so do files whose writer is unknown.
    ///
    /// A fenced writer that still runs fails when it misses a file, and finds that it was fenced.
    pub fn remove_leftovers(&self) -> Result<Leftovers> {
        let ended = self.list_ended()?;
        self.objects.leftovers(&|session| session.is_some_and(|session| ended.contains(&session)))
    }
}
