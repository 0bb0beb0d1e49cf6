//! `cdp history`, `cdp export` and `cdp restore`: what the repository, and the journal on this host, know of a group.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::Lsn;
use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::serve::{Limits, Server};
use onefold_cdp::view::{
    At, FlushDetail, HistoryListing, HistoryRequest, MarkListed, Moment, Overlay, PointInTime, PointVolume, TimeRule,
    ViewOptions, history,
};
use onefold_engine::io::Disk;
use onefold_engine::io::os::OsDisk;
use onefold_engine::pipeline::Driver;
use onefold_engine::types::Timestamp;
use serde_json::{Value, json};

use crate::args::cdp::{ExportArgs, HistoryArgs, MomentArgs, RestoreVolumeArgs};
use crate::commands::cdp::named::{self, NamedGroup};
use crate::commands::cdp::sockets;
use crate::files::{self, VolumeTarget};
use crate::interrupt::Interrupt;
use crate::json::short_id;
use crate::open::{Opened, OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;
use crate::text;

/// Bytes that a restore reads and compares at a time.
const STEP_BYTES: u64 = 1 << 20;

/// An open repository, with the options of views of it.
struct Repository {
    opened: Opened,
    options: ViewOptions,
    /// Holds the directory of temporary files.
    _cache: OpenedCache,
}

impl Repository {
    fn open(settings: &Settings, output: &Output) -> Result<Self> {
        let opened = open(settings, output)?;
        let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
        let options = ViewOptions {
            scratch: cache.scratch(),
            driver: Driver::threads(settings.threads),
            memory_bytes: settings.memory_bytes / 2,
        };
        Ok(Self { opened, options, _cache: cache })
    }

    /// Finds a group.
    fn group(&self, settings: &Settings, text: &str) -> Result<NamedGroup> {
        NamedGroup::find(settings, &self.opened.store, text)
    }

    /// Opens a group at a moment. Nobody needs the group afterwards.
    fn moment(&self, settings: &Settings, args: &MomentArgs) -> Result<PointInTime> {
        let group = self.group(settings, &args.name)?;
        let at = moment_at(args);
        group.say_loss(PointInTime::open(&self.opened.store, &self.options, group.key(), &at, group.journal()))
    }
}

/// Returns the moment that options name.
pub(super) fn moment_at(args: &MomentArgs) -> At {
    match text::parse_time(&args.at) {
        Ok(time) => At::Time(nanoseconds(time), if args.exact { TimeRule::Exact } else { TimeRule::LastFlush }),
        Err(_) => At::parse(&args.at),
    }
}

fn nanoseconds(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(time.nanoseconds.into())
}

pub(super) fn timestamp(nanoseconds: u64) -> Timestamp {
    Timestamp {
        seconds: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        nanoseconds: u32::try_from(nanoseconds % 1_000_000_000).expect("below a second"),
    }
}

/// Lists the moments of a group.
pub(super) fn list(settings: &Settings, output: &Output, args: &HistoryArgs) -> Result<()> {
    let repository = Repository::open(settings, output)?;
    let flushes = if args.all_flushes { FlushDetail::All } else { FlushDetail::PerMinute };
    let request = HistoryRequest { flushes, since: Lsn(0) };
    let group = repository.group(settings, &args.name)?;
    let listing = history(&repository.opened.store, &repository.options, group.key(), request, group.journal());
    let listing = group.say_loss(listing)?;
    drop(group);
    if settings.json {
        return Ok(output.message(&listing_json(&listing))?);
    }
    let at = |moment: &Moment| moment.time.map_or_else(String::new, |time| text::local_time(timestamp(time)));
    for checkpoint in &listing.checkpoints {
        let (snapshot, last) = (short_id(checkpoint.snapshot), checkpoint.last());
        output.line(format!("checkpoint {snapshot}  LSN {last}  {}", text::local_time(checkpoint.time)))?;
    }
    for mark in &listing.marks {
        output.line(format!("mark {}  LSN {}  {}", mark.name, mark.lsn, at(&moment_of(mark))))?;
    }
    for flush in &listing.flushes {
        output.line(format!("flush  LSN {}  {}", flush.lsn, at(flush)))?;
    }
    for gap in &listing.gaps {
        let (volume, bytes) = (&gap.volume, &gap.bytes);
        let until = gap.to.as_ref().map_or_else(|| "still open".to_owned(), |to| format!("until LSN {}", to.lsn));
        let from = gap.from.lsn;
        output.line(format!("gap  {volume} bytes {} to {}  from LSN {from}, {until}", bytes.start, bytes.end))?;
    }
    Ok(output.line(format!("latest  LSN {}  {}", listing.latest.lsn, at(&listing.latest)))?)
}

fn moment_of(mark: &MarkListed) -> Moment {
    Moment { lsn: mark.lsn, time: mark.time }
}

fn listing_json(listing: &HistoryListing) -> Value {
    let moment = |moment: &Moment| json!({ "lsn": moment.lsn.0, "time": moment.time.map(|time| text::rfc3339(timestamp(time))) });
    let checkpoints = listing.checkpoints.iter().map(|checkpoint| {
        json!({
            "snapshot": checkpoint.snapshot.to_string(),
            "first_lsn": checkpoint.first().0,
            "last_lsn": checkpoint.last().0,
            "time": text::rfc3339(checkpoint.time),
        })
    });
    json!({
        "gaps": listing.gaps.iter().map(|gap| {
            json!({
                "volume": gap.volume,
                "offset": gap.bytes.start,
                "length": gap.bytes.end - gap.bytes.start,
                "from": moment(&gap.from),
                "to": gap.to.as_ref().map(moment),
            })
        }).collect::<Vec<_>>(),
        "checkpoints": checkpoints.collect::<Vec<_>>(),
        "marks": listing.marks.iter().map(|mark| {
            json!({ "name": mark.name, "moment": moment(&moment_of(mark)) })
        }).collect::<Vec<_>>(),
        "flushes": listing.flushes.iter().map(moment).collect::<Vec<_>>(),
        "latest": moment(&listing.latest),
    })
}

/// Serves the volumes as they were, until a signal comes.
pub(super) fn export(settings: &Settings, output: &Arc<Output>, args: &ExportArgs) -> Result<()> {
    let repository = Repository::open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let view = Arc::new(repository.moment(settings, &args.moment)?);
    let log = super::log(output);
    let overlay = args.overlay.as_ref().map(|directory| overlay_directory(directory, settings)).transpose()?;
    let mut exports = Vec::with_capacity(view.volumes().len());
    for (number, volume) in view.volumes().iter().enumerate() {
        let mut export: Arc<dyn Export> = Arc::new(PointVolume::new(Arc::clone(&view), number, log.clone()));
        if let Some(disk) = &overlay {
            export = Arc::new(open_overlay(disk, &volume.name, export, &view.identity(number), &log)?);
        }
        exports.push(NamedExport { name: volume.name.clone(), description: args.moment.at.clone(), export });
    }
    let mut server = Server::new(exports, Limits::default(), None, log)?;
    let left = sockets::listen(&mut server, &args.listen)?;
    let moment = view.moment();
    output.note(&format!("serving {} at LSN {} at {}", args.moment.name, moment.lsn, args.listen.join(", ")));
    sockets::serve_until(&interrupt, server, left);
    Ok(())
}

fn overlay_directory(directory: &Path, settings: &Settings) -> Result<OsDisk> {
    let directory = absolute(directory)?;
    if !directory.exists() {
        files::create_new_directory(&directory).with_context(|| format!("create {}", directory.display()))?;
    }
    Ok(OsDisk::with_backend(directory, settings.io))
}

/// Opens the overlay of a volume, or creates it.
fn open_overlay(disk: &OsDisk, name: &str, base: Arc<dyn Export>, identity: &[u8; 32], log: &Log) -> Result<Overlay> {
    let path = Path::new(name);
    let exists = disk.exists(path)?;
    let opened = if exists {
        Overlay::open(disk, path, base, identity, log.clone())
    } else {
        Overlay::create(disk, path, base, identity, log.clone())
    };
    Ok(opened?)
}

/// Writes a volume as it was. Only bytes that differ are written.
pub(super) fn restore(settings: &Settings, output: &Output, args: &RestoreVolumeArgs) -> Result<()> {
    let repository = Repository::open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    if let Some(target) = &args.target {
        named::refuse_volume(settings, &args.moment.name, target)?;
    }
    let view = repository.moment(settings, &args.moment)?;
    let number = if let Some(name) = &args.volume {
        view.number_of(name).with_context(|| format!("the group has no volume {name}"))?
    } else {
        let names: Vec<&str> = view.volumes().iter().map(|volume| volume.name.as_str()).collect();
        ensure!(names.len() == 1, "--volume: the group has the volumes {}", names.join(", "));
        0
    };
    let size = view.volumes()[number].size;
    let target = args.target.as_ref().context("--target: a file or a block device, or --in-place")?;
    let context = || target.display().to_string();
    let file = VolumeTarget::open(target, size).with_context(context)?;
    let written = write_differences(&view, number, size, &file, &interrupt).with_context(context)?;
    file.sync().with_context(context)?;
    let moment = view.moment();
    if settings.json {
        let result = json!({ "lsn": moment.lsn.0, "bytes": size, "bytes_written": written });
        return Ok(output.message(&result)?);
    }
    let (size, written) = (text::bytes(size), text::bytes(written));
    Ok(output.line(format!("restored LSN {} of {size}; {written} differed and were written", moment.lsn))?)
}

fn write_differences(
    view: &PointInTime,
    volume: usize,
    size: u64,
    file: &VolumeTarget,
    interrupt: &Interrupt,
) -> Result<u64> {
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    let (mut offset, mut written) = (0, 0);
    while offset < size {
        ensure!(!interrupt.is_raised(), onefold_engine::Error::Interrupted);
        let (is_hole, alike) = view.is_hole(volume, offset, STEP_BYTES.min(size - offset))?;
        let len = usize::try_from(alike)?;
        wanted.clear();
        wanted.resize(len, 0);
        if !is_hole {
            view.read(volume, offset, &mut wanted)?;
        }
        if file.write_if_different(&wanted, offset, &mut found)? {
            written += alike;
        }
        offset += alike;
    }
    Ok(written)
}
