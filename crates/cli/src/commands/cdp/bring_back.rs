//! `cdp restore --in-place`: brings the volumes themselves back, while their history goes on.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use onefold_cdp::journal::{GroupId, Lsn};
use onefold_cdp::nbd::export::Export;
use onefold_cdp::view::{PointInTime, ViewOptions, bring_back};
use onefold_cdp::volume::{Group, ProtectedVolume};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::pipeline::Driver;
use serde_json::{Value, json};

use crate::args::cdp::RestoreVolumeArgs;
use crate::commands::cdp::checkpoints::Checkpoints;
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::commands::cdp::named::is_directory;
use crate::commands::cdp::opening::{InUse, check_mark, compare_after_power_cut, open_group};
use crate::commands::cdp::stored::moment_at;
use crate::commands::cdp::writing::{self, Needs};
use crate::interrupt::Interrupt;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;
use crate::text;

/// Brings volumes of a group that nobody serves back to a moment. The present moment gets a name first.
pub(super) fn run(settings: &Settings, output: &Arc<Output>, args: &RestoreVolumeArgs) -> Result<()> {
    let name = &args.moment.name;
    ensure!(is_directory(name), "--in-place writes to the volumes of a group: give its directory instead of {name}");
    let opened = open(settings, output)?;
    let directory = absolute(Path::new(name))?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let file = GroupFile::read(&*disk, &directory)?;
    let _lock = group_file::lock(&*disk, &directory).context("stop the server before a restore in place")?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let spec = file.spec()?;
    let needs = Needs::of_volumes(&spec);
    let checkpoints = Checkpoints::open(settings, &opened.store, &cache, spec, needs)?;
    ensure!(checkpoints.last()?.is_some(), "the group has no checkpoint yet: `onefold cdp serve` makes the first one");
    let options = ViewOptions {
        scratch: cache.scratch(),
        driver: Driver::threads(settings.threads),
        memory_bytes: writing::view_bytes(settings),
    };
    let InUse { group, opened: last, .. } = open_group(&opened.store, &disk, &file, &super::log(output), output)?;
    compare_after_power_cut((&opened.store, &options), &file, (&group, &last), true, output)?;
    ensure!(
        group.behind().is_empty(),
        "changes are missing in the history, so that a restore could not be undone: `onefold cdp serve` records them first"
    );
    let mark = args.mark.clone().unwrap_or_else(mark_of_now);
    check_mark(&mark)?;
    let id = GroupId(file.id()?);
    let view = PointInTime::open(
        &opened.store,
        &options,
        (&file.name, Some(id)),
        &moment_at(&args.moment),
        Some(group.journal()),
    )?;
    let volumes = chosen(&view, args.volume.as_deref())?;
    let marked = group.mark(&mark)?;
    let mut restoring = Restoring { view: &view, group: &group, checkpoints, interrupt };
    let restored = restoring.volumes(&volumes);
    // Whatever happened, each volume equals its history: both are closed like that.
    let closed = group.close().context("close the group");
    let restored =
        restored.with_context(|| format!("the volumes are restored in part; `{mark}` is the moment before"))?;
    closed?;
    report(settings, output, &view, &restored, (&mark, marked))
}

/// Returns the name of the moment before a restore.
fn mark_of_now() -> String {
    format!("before-restore-{}", text::local_time(OsHost::new().now()).replace(' ', "T"))
}

/// Returns the numbers of the volumes to restore: all, unless one is named.
fn chosen(view: &PointInTime, name: Option<&str>) -> Result<Vec<usize>> {
    match name {
        Some(name) => Ok(vec![view.number_of(name).with_context(|| format!("the group has no volume {name}"))?]),
        None => Ok((0..view.volumes().len()).collect()),
    }
}

/// A restore that goes on.
struct Restoring<'a> {
    view: &'a PointInTime,
    group: &'a Arc<Group>,
    checkpoints: Checkpoints<'a>,
    interrupt: Interrupt,
}

impl Restoring<'_> {
    /// Brings volumes back; returns the number and the bytes that were written, of each.
    fn volumes(&mut self, numbers: &[usize]) -> Result<Vec<(usize, u64)>> {
        let Self { view, group, checkpoints, interrupt } = self;
        let mut restored = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let name = &view.volumes()[number].name;
            let volume = ProtectedVolume::new(Arc::clone(group), u16::try_from(number)?);
            let written = bring_back(view, number, &volume, &mut || {
                ensure!(!interrupt.is_raised(), onefold_engine::Error::Interrupted);
                make_space(group, checkpoints)
            });
            let written = written.with_context(|| format!("volume {name}"))?;
            volume.flush().map_err(|errno| anyhow!("volume {name} cannot be synced: {errno:?}"))?;
            restored.push((number, written));
        }
        Ok(restored)
    }
}

/// Makes checkpoints while the journal has no free segment: nobody else does, and a write would wait for ever.
fn make_space(group: &Group, checkpoints: &mut Checkpoints<'_>) -> Result<()> {
    let is_full = || {
        let status = group.journal().status();
        status.segments_max <= status.segments + 1
    };
    if is_full() {
        checkpoints.catch_up(group)?;
        ensure!(!is_full(), "the journal is full, and a checkpoint did not help");
    }
    Ok(())
}

fn report(
    settings: &Settings,
    output: &Output,
    view: &PointInTime,
    restored: &[(usize, u64)],
    (mark, marked): (&str, Lsn),
) -> Result<()> {
    let moment = view.moment();
    if settings.json {
        let volumes = restored.iter().map(|(number, written)| {
            let volume = &view.volumes()[*number];
            json!({ "name": volume.name, "bytes": volume.size, "bytes_written": written })
        });
        let volumes: Vec<Value> = volumes.collect();
        let result = json!({ "lsn": moment.lsn.0, "mark": mark, "mark_lsn": marked.0, "volumes": volumes });
        return Ok(output.message(&result)?);
    }
    for (number, written) in restored {
        let volume = &view.volumes()[*number];
        let (size, written) = (text::bytes(volume.size), text::bytes(*written));
        let (name, lsn) = (&volume.name, moment.lsn);
        output.line(format!("{name} is at LSN {lsn} again: {written} of {size} differed and were written"))?;
    }
    Ok(output.line(format!("the moment before is LSN {marked}, {mark}"))?)
}
