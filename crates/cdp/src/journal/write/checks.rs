//! Checks of a journal that is open: whether it continues a checkpoint, and whether its files are there.

use onefold_engine::error::{Error, Result};

use crate::journal::Lsn;
use crate::journal::status::JournalStatus;
use crate::journal::write::Journal;

impl Journal {
    /// Refuses a journal that does not continue a checkpoint, whose last record is given: records between them are gone.
    pub fn check_continues(&self, stored: Lsn) -> Result<()> {
        let JournalStatus { first, next, .. } = self.status();
        let reason = if next.0 <= stored.0 {
            format!(
                "the newest checkpoint has records up to {stored}, and the journal ends before {next}: it is an older copy"
            )
        } else if stored.0 + 1 < first.0 {
            format!(
                "the newest checkpoint ends with record {stored}, and the journal begins with {first}: the records between are lost"
            )
        } else {
            return Ok(());
        };
        Err(self.damaged(reason))
    }

    /// Fails if a file with records is gone while the journal is open.
    pub fn check_files(&self) -> Result<()> {
        let numbers = || self.lock().segments.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let before = numbers();
        let listed = self.directory.list()?.segments;
        let after = numbers();
        // One that begins or is released meanwhile is not missing.
        match before.iter().find(|number| after.contains(number) && !listed.contains(number)) {
            None => Ok(()),
            Some(number) => {
                let reason = format!("segment-{number:016x} is gone, and the records in it");
                Err(self.damaged(reason))
            }
        }
    }

    fn damaged(&self, reason: String) -> Error {
        Error::damaged(format!("journal {}", self.directory.disk.display(&self.directory.dir)), reason)
    }
}
