//! Opening a group over its volumes, by whoever writes to them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_cdp::volume::{Extent, Group, LastUse, Opened, differing_blocks};
use onefold_engine::io::Disk;
use onefold_engine::io::os::OsHost;
use onefold_engine::store::Store;

use crate::commands::cdp::group_file::GroupFile;
use crate::output::Output;
use crate::text;

/// A group, its volumes themselves, and how the last use had ended.
pub(super) struct InUse {
    pub(super) group: Arc<Group>,
    pub(super) origins: Vec<Arc<dyn Export>>,
    pub(super) opened: Opened,
}

/// Opens the group over its volumes, and says what had to be done for that.
pub(super) fn open_group(
    store: &Store,
    disk: &Arc<dyn Disk>,
    file: &GroupFile,
    log: &Log,
    output: &Output,
) -> Result<InUse> {
    open_with(file.journal_identity(store)?, disk, file, log, output)
}

/// Like [`open_group`], with the keys of a journal that is sealed for no repository.
pub(super) fn open_with(
    identity: JournalIdentity,
    disk: &Arc<dyn Disk>,
    file: &GroupFile,
    log: &Log,
    output: &Output,
) -> Result<InUse> {
    let mut origins: Vec<Arc<dyn Export>> = Vec::with_capacity(file.volumes.len());
    for volume in &file.volumes {
        let path = volume.origin.display();
        let origin =
            FileExport::open(&volume.origin, Access::ReadWrite, log.clone()).with_context(|| format!("open {path}"))?;
        ensure!(
            origin.size() == volume.size,
            "{path} has {} bytes, and had {} when the group was created",
            origin.size(),
            volume.size
        );
        origins.push(Arc::new(origin));
    }
    let host = Arc::new(OsHost::new());
    let (group, opened) = Group::open(disk, host, Path::new(""), identity, origins.clone(), file.options())?;
    if opened.applied != 0 {
        output.note(&format!("{} records of the journal were written to the volumes again", opened.applied));
    }
    Ok(InUse { group: Arc::new(group), origins, opened })
}

/// After a power cut, compares the volumes with their history where they may differ, if the repository has one, and records what differs.
pub(super) fn compare_after_power_cut(
    (store, options): (&Store, &ViewOptions),
    file: &GroupFile,
    (group, last): (&Group, &Opened),
    is_stored: bool,
    output: &Output,
) -> Result<()> {
    if last.last != LastUse::PowerCut {
        return Ok(());
    }
    let suspect = if is_stored { &last.suspect[..] } else { &[] };
    if !group.behind().is_empty() {
        // The history has a gap, so nobody can say what it holds.
        group.skip_comparison(suspect)?;
        output.note(&format!(
            "after a power cut, {} extents of the volumes are recorded again, after a gap",
            suspect.len()
        ));
        return Ok(());
    }
    let blocks = compare(store, options, file, group, suspect)?;
    output.note(&format!(
        "after a power cut, {} extents of the volumes were compared with the history; {blocks} blocks differed and were recorded",
        suspect.len()
    ));
    Ok(())
}

/// Compares extents of the volumes with the history up to the last record of the journal.
fn compare(store: &Store, options: &ViewOptions, file: &GroupFile, group: &Group, suspect: &[Extent]) -> Result<u64> {
    if suspect.is_empty() {
        return Ok(group.compare(suspect, &mut |_, _, _, _| Ok(()))?);
    }
    let id = GroupId(file.id()?);
    let view = PointInTime::open(store, options, (&file.name, Some(id)), &At::Latest, Some(group.journal()))?;
    let mut expected = Vec::new();
    Ok(group.compare(suspect, &mut |volume, offset, found, differing| {
        expected.resize(found.len(), 0);
        view.read(usize::from(volume), offset, &mut expected)?;
        differing_blocks(found, &expected, differing);
        Ok(())
    })?)
}

/// Refuses a name that `--at` would take for another moment.
pub(super) fn check_mark(name: &str) -> Result<()> {
    let is_good = (1..=255).contains(&name.len());
    ensure!(is_good, "a name has 1 to 255 bytes");
    let is_mark = matches!(At::parse(name), At::Mark(_)) && text::parse_time(name).is_err();
    ensure!(is_mark, "{name}: --at takes that for another moment; choose another name");
    Ok(())
}
