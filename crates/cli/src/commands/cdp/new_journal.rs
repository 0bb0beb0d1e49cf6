//! `cdp serve --new-journal`: goes on after the journal of a group has lost records.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_cdp::journal::Lsn;
use onefold_cdp::stored::Checkpoints;
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_cdp::volume::{Group, open_journal};
use onefold_engine::Error;
use onefold_engine::io::os::OsHost;
use onefold_engine::io::{Disk, Host};
use onefold_engine::store::Store;

use crate::commands::cdp::group_file::GroupFile;
use crate::output::Output;

/// Begins a new journal after the records that are left, with a gap, unless none is missing. Returns the volumes as they were before the gap,
/// if they are known.
pub(super) fn begin(
    (store, options): (&Store, &ViewOptions),
    disk: &Arc<dyn Disk>,
    file: &GroupFile,
    output: &Output,
) -> Result<Option<PointInTime>> {
    let (identity, directory) = (file.journal_identity(store)?, Path::new(""));
    let group = (&*file.name, Some(identity.group));
    let newest = Checkpoints::read(store, group.0, group.1)?;
    let newest = newest.newest().map(|newest| (newest.last(), newest.nanoseconds()));
    let (stored, time) = newest.unwrap_or_default();
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let read_all = || {
        let (journal, _) = open_journal(disk, Arc::clone(&host), directory, identity.clone(), file.size())?;
        journal.check_continues(stored)?;
        let mut frames = journal.frames(Lsn(stored.0 + 1));
        while frames.next_frame(&mut |_| Ok(()))? {}
        Ok(())
    };
    let Err(loss) = read_all() else {
        output.note("the journal has lost no records, and goes on");
        return Ok(None);
    };
    let is_loss = matches!(loss, Error::Damaged { .. }) || loss.io_kind() == Some(std::io::ErrorKind::NotFound);
    ensure!(is_loss, loss);
    output.warn(&loss.to_string());
    let sizes: Vec<u64> = file.volumes.iter().map(|volume| volume.size).collect();
    let journal = (identity.clone(), file.size());
    let (journal, left) = Group::begin_after_loss((disk, host), directory, journal, &sizes, stored)?;
    let last = Lsn(left.next.0 - 1);
    let view = newest.map(|_| PointInTime::open(store, options, group, &At::Lsn(last), Some(&journal)));
    let view = view.and_then(|view| {
        view.inspect_err(|error| output.warn(&format!("the volumes are recorded instead of compared: {error}"))).ok()
    });
    Group::end_loss(&**disk, directory, journal, &sizes, left.time.max(time) + 1)?;
    output.note(&format!(
        "a new journal begins: moments up to LSN {last} stay, and the history has a gap after them; files `lost-` in the group's journal are \
         what could not be used"
    ));
    Ok(view)
}
