//! Opening a group over its volumes, by whoever writes to them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity, Lsn};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::stored::Checkpoints;
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_cdp::volume::{Extent, FindDifferences, Group, LastUse, Opened, differing_blocks};
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

/// Opens the group over its volumes, and says what had to be done for that. Records that are in a checkpoint take no space of the journal
/// afterwards.
pub(super) fn open_group(
    store: &Store,
    disk: &Arc<dyn Disk>,
    file: &GroupFile,
    log: &Log,
    output: &Output,
) -> Result<InUse> {
    let identity = file.journal_identity(store)?;
    let id = identity.group;
    let in_use = open_with(identity, disk, file, log, output).with_context(|| way_on(&file.name))?;
    let InUse { group, opened, .. } = &in_use;
    if let Some(newest) = Checkpoints::read(store, &file.name, Some(id))?.newest() {
        group.journal().check_continues(newest.last()).with_context(|| way_on(&file.name))?;
        // After a power cut, the extents to be compared stay active.
        if opened.last != LastUse::PowerCut {
            group.sync().map_err(|errno| anyhow!("the volumes cannot be synced: {errno:?}"))?;
        }
        group.release(Lsn(newest.last().0 + 1));
    }
    Ok(in_use)
}

/// Says how a group whose journal cannot be used goes on.
pub(super) fn way_on(name: &str) -> String {
    format!(
        "the group cannot be read; if its journal has lost records, `onefold cdp serve --new-journal` goes on after a gap, and `{name}`, its \
         name, stands for what the repository has"
    )
}

/// Finds what differs from a view.
pub(super) fn differences(view: PointInTime) -> Box<FindDifferences<'static>> {
    let mut expected = Vec::new();
    Box::new(move |volume, offset, found, differing| {
        expected.resize(found.len(), 0);
        view.read(usize::from(volume), offset, &mut expected)?;
        differing_blocks(found, &expected, differing);
        Ok(())
    })
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
    // Records that only now are durable in the volumes.
    group.release(Lsn(0));
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
    Ok(group.compare(suspect, &mut *differences(view))?)
}

/// Refuses a name that `--at` would take for another moment.
pub(super) fn check_mark(name: &str) -> Result<()> {
    let is_good = (1..=255).contains(&name.len());
    ensure!(is_good, "a name has 1 to 255 bytes");
    let is_mark = matches!(At::parse(name), At::Mark(_)) && text::parse_time(name).is_err();
    ensure!(is_mark, "{name}: --at takes that for another moment; choose another name");
    Ok(())
}
