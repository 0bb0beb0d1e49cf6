//! The files in the directory of a group, and the one opening of its journal, for everyone who reads or writes it.

use std::path::Path;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, Host};

use crate::journal::{Journal, JournalIdentity, JournalSize, Lsn, Recovered};
use crate::volume::activity::ActivityLog;

/// Name of the activity log in the group's directory, and of the bitmap of extents that are behind.
pub(super) const ACTIVITY: &str = "activity";
pub(super) const BEHIND: &str = "behind";
/// Name of the directory of its journal.
pub const JOURNAL: &str = "journal";
/// The synced record of a group that does not go on yet: no journal reaches it.
pub(super) const UNFINISHED: Lsn = Lsn(u64::MAX);

/// Opens the journal in the directory of a group. Fails with [`Error::Damaged`] if it lacks records that were durable: those that its own
/// files or its head tell of, and those that the volumes hold.
///
/// The caller excludes other processes.
pub fn open_journal(
    disk: &Arc<dyn Disk>,
    host: Arc<dyn Host>,
    dir: &Path,
    identity: JournalIdentity,
    size: JournalSize,
) -> Result<(Journal, Recovered)> {
    let path = dir.join(JOURNAL);
    let (journal, recovered) = Journal::open(Arc::clone(disk), host, &path, identity, size)?;
    let log = dir.join(ACTIVITY);
    // A group whose volumes are on another machine has none.
    let synced = if disk.exists(&log)? { ActivityLog::synced_in(&**disk, &log)? } else { Lsn(1) };
    if synced <= recovered.next {
        return Ok((journal, recovered));
    }
    let reason = if synced == UNFINISHED {
        "it was to go on after a loss, and that was interrupted".to_owned()
    } else {
        format!("the volumes hold the records before {synced}, and it ends before {}: they are gone", recovered.next)
    };
    Err(Error::damaged(format!("journal {}", disk.display(&path)), reason))
}
