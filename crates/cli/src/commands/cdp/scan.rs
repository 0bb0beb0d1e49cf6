//! `cdp scan`.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use onefold_cdp::journal::GroupId;
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_cdp::volume::{Differing, FindDifferences, Group, Ranges};
use onefold_engine::io::Disk;
use onefold_engine::io::os::OsDisk;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ScanArgs;
use crate::commands::cdp::control::{self, Request, ask};
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::commands::cdp::opening::{InUse, compare_after_power_cut, differences, open_group};
use crate::exit::Unreadable;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;
use crate::text;

/// Compares the volumes of a group with their history.
pub(super) fn run(settings: &Settings, output: &Arc<Output>, args: &ScanArgs) -> Result<()> {
    let directory = absolute(&args.group.group)?;
    let scanned = if control::is_served(&directory) {
        ask(&directory, &Request::Scan { record: args.record })?
    } else {
        scan_unserved(settings, output, args)?
    };
    if settings.json {
        output.message(&scanned)?;
    } else {
        report(output, &scanned)?;
    }
    let bytes = |name: &str| scanned[name].as_u64().unwrap_or_default();
    if bytes("differing_bytes") != 0 && !args.record {
        bail!("{} of the volumes differ from their history", text::bytes(bytes("differing_bytes")));
    }
    if bytes("left_bytes") != 0 {
        return Err(Unreadable::NotCompared.into());
    }
    Ok(())
}

fn report(output: &Output, scanned: &Value) -> Result<()> {
    for (name, what) in [("differing", "differ"), ("left", "were written all the time and not compared")] {
        for range in scanned[name].as_array().into_iter().flatten() {
            let (offset, length) = (range["offset"].as_u64().unwrap_or(0), range["length"].as_u64().unwrap_or(0));
            let volume = range["volume"].as_str().unwrap_or_default();
            output.line(format!("{volume} bytes {offset} to {} {what}", offset + length))?;
        }
    }
    let bytes = |name: &str| text::bytes(scanned[name].as_u64().unwrap_or_default());
    let recorded = if scanned["recorded"] == true { " and were recorded" } else { "" };
    Ok(output.line(format!("compared {}: {} differ{recorded}", bytes("compared_bytes"), bytes("differing_bytes")))?)
}

/// Compares the volumes of a group that no process has open.
fn scan_unserved(settings: &Settings, output: &Arc<Output>, args: &ScanArgs) -> Result<Value> {
    let opened = open(settings, output)?;
    let directory = absolute(&args.group.group)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let file = GroupFile::read(&*disk, &directory)?;
    let _lock = group_file::lock(&*disk, &directory)?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let options = ViewOptions {
        scratch: cache.scratch(),
        driver: Driver::threads(settings.threads),
        memory_bytes: settings.memory_bytes / 2,
    };
    let InUse { group, opened: last, .. } = open_group(&opened.store, &disk, &file, &super::log(output), output)?;
    compare_after_power_cut((&opened.store, &options), &file, (&group, &last), true, output)?;
    // Nobody makes checkpoints here: a journal that is full stays full.
    group.end_waits();
    let scanned = scan((&opened.store, &options), &file, &group, args.record);
    group.close().context("close the group")?;
    scanned
}

/// Compares the volumes of a group; returns what `--json` prints.
pub(super) fn scan(
    (store, options): (&Store, &ViewOptions),
    file: &GroupFile,
    group: &Group,
    record: bool,
) -> Result<Value> {
    let id = GroupId(file.id()?);
    scan_with(file, group, record, &mut || {
        let view = PointInTime::open(store, options, (&file.name, Some(id)), &At::Latest, Some(group.journal()))?;
        Ok(differences(view))
    })
}

/// Compares the volumes of a group with a history that is opened once in each round; returns what `--json` prints.
pub(super) fn scan_with<'a>(
    file: &GroupFile,
    group: &Group,
    record: bool,
    open: &mut dyn FnMut() -> onefold_engine::Result<Box<FindDifferences<'a>>>,
) -> Result<Value> {
    let scanned = group.scan(if record { Differing::Record } else { Differing::List }, open)?;
    let ranges = |ranges: &Ranges| -> Vec<Value> {
        let of = |range: &onefold_cdp::volume::VolumeRange| {
            let name = file.volumes.get(usize::from(range.volume)).map(|volume| volume.name.as_str());
            json!({ "volume": name, "offset": range.bytes.start, "length": range.bytes.end - range.bytes.start })
        };
        ranges.listed.iter().map(of).collect()
    };
    Ok(json!({
        "compared_bytes": scanned.compared,
        "differing_bytes": scanned.differing.bytes,
        "differing": ranges(&scanned.differing),
        "recorded": record && scanned.differing.bytes != 0,
        "left_bytes": scanned.left.bytes,
        "left": ranges(&scanned.left),
    }))
}
