//! A trace, found the duplicates of in some ways on some devices.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::monitor::Monitor;

use crate::counts::float;
use crate::device::Device;
use crate::experiment::spec::measure;
use crate::findings::{Axis, Cell, Findings, Origin, Plot, PlotKind, Series, Table};
use crate::measure::{Measure, Measured, Session};
use crate::point::Point;
use crate::replay::{Joined, Outcome, Traced};
use crate::run::{Setting, simulate};
use crate::sim::Plan;
use crate::sim::rewriting::Rewrite;
use crate::trace::file;

/// Parameters of a trial.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// The trace.
    pub trace: PathBuf,
    /// Points and what they are called.
    pub points: Vec<(String, Point)>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Divisor of filter, cache and memtable.
    pub scale: u32,
    /// Whether all versions of the trace are one session. Otherwise each is one, as with successive backups.
    pub is_one_session: bool,
    /// The simulated parts of a repository.
    pub plan: Plan,
    /// Directory for files of a run.
    pub scratch: PathBuf,
}

/// Measures of each run.
const MEASURES: [&str; 31] = [
    "unique-chunks",
    "unique-gigabytes",
    "rewritten-chunks",
    "rewritten-bytes",
    "missed-chunks",
    "missed-bytes",
    "deduplication-ratio",
    "kept-ratio",
    "containers",
    "cost",
    "cost-percent",
    "cost-today",
    "cost-today-percent",
    "memory-mib",
    "seconds",
    "processor-seconds",
    "device-seconds",
    "million-per-second",
    "lookup-seconds",
    "prefetch-seconds",
    "prelookup-seconds",
    "postlookup-seconds",
    "other-seconds",
    "lookups",
    "lookups-per-gb",
    "unique-lookups-per-gb",
    "windows",
    "mib-read",
    "updates-per-gb",
    "false-positive-rate",
    "hit-percent",
];
/// Measures of each session of a run.
const OF_SESSIONS: [&str; 26] = [
    "chunks",
    "gigabytes",
    "unique-chunks",
    "unique-gigabytes",
    "rewritten-chunks",
    "rewritten-bytes",
    "missed-chunks",
    "missed-bytes",
    "deduplication-ratio",
    "kept-ratio",
    "containers",
    "containers-used",
    "containers-reclaimed",
    "lookups",
    "lookups-per-gb",
    "unique-lookups-per-gb",
    "windows",
    "units-read",
    "updates-per-gb",
    "stream-updates-per-gb",
    "segments",
    "segments-cut-short",
    "mib-read",
    "seconds",
    "processor-seconds",
    "device-seconds",
];
/// Measures drawn for each run, stacked.
const PARTS: [&str; 5] =
    ["lookup-seconds", "prefetch-seconds", "prelookup-seconds", "postlookup-seconds", "other-seconds"];

/// Versions at the end of a trace whose restore speeds have a mean: as many as the paper's table 4 is taken to have.
const LAST_VERSIONS: usize = 20;

/// Refuses what cannot be simulated.
fn check(trial: &Trial) -> Result<()> {
    ensure!(
        !trial.is_one_session || !trial.plan.has_versions(),
        "--rewrite, --restore and --keep-last are about versions: leave out --one-session"
    );
    for (name, point) in &trial.points {
        ensure!(
            !point.is_mapped || trial.plan.rewrite == Rewrite::default(),
            "{name}: store=cuckoo does not support rewriting"
        );
        let bytes = point.container_size.0;
        ensure!(
            trial.plan.layout.rule(bytes).bytes() != 0,
            "{name}: container-size={bytes}: a container of destor has 32 KiB of metadata, and this one no room for chunks"
        );
    }
    Ok(())
}

/// Runs each point on each device over the trace. Fails if two exact ones find different chunks unique.
pub fn try_out(trial: &Trial, origin: Origin, command: String, monitor: &dyn Monitor) -> Result<Findings> {
    let start = Instant::now();
    check(trial)?;
    let mut runs: Vec<(String, String, Measured)> = Vec::new();
    let mut description = String::new();
    for device in &trial.devices {
        for (name, point) in &trial.points {
            let (said, mut events) = file::open(&trial.trace)?;
            description = said;
            let (scale, scratch) = (trial.scale.into(), &trial.scratch);
            let setting = Setting { point, scale, device, scratch, interval: None, monitor };
            let mut versions = Traced::new(&mut events);
            let measured = if trial.is_one_session {
                simulate(&setting, &trial.plan, &mut Joined(&mut versions), u64::MAX)
            } else {
                simulate(&setting, &trial.plan, &mut versions, u64::MAX)
            };
            let measured = measured.with_context(|| name.clone())?;
            let seconds = measured.outcome.time.as_secs_f64();
            monitor.note(&format!("{name} on {}: {seconds:.2} s", device.name()));
            // Once containers are reclaimed, it depends on the containers whether a chunk is new.
            let is_comparable = |it: &Measured| it.is_exact && trial.plan.keep_last.is_none();
            let differs = |other: &Measured| is_comparable(other) && other.unique != measured.unique;
            if is_comparable(&measured)
                && let Some((other, ..)) = runs.iter().find(|(.., other)| differs(other))
            {
                bail!("{name} and {other} do not find the same chunks unique: this is a defect of the program");
            }
            runs.push((name.clone(), device.name().to_owned(), measured));
        }
    }
    let (_, _, first) = runs.first().context("no way of finding duplicates is named, or no device")?;
    let Outcome { chunks, bytes, .. } = first.outcome;
    let checksum = first.unique.checksum;
    let mut notes = vec![
        format!("{chunks} chunks, {bytes} bytes."),
        format!("The first 16 bytes of the names of the unique chunks, as numbers with the least byte first, add up to {checksum:032x} modulo 2^128."),
        "On a modeled device, seconds are the sum of processor time, which is measured, and device time, which the model \
         gives. Nothing runs in the background. On a real device, a clock measures them."
            .to_owned(),
    ];
    if trial.scale != 1 {
        notes.push(format!("Filter, cache and memtable are divided by {}.", trial.scale));
    }
    let mut tables = vec![table(&runs, &trial.plan)?];
    if 1 < first.sessions.len() {
        notes.push(
            "Each version is a session: the index is closed before it and opened again with an empty cache. Closing and \
             opening do not count."
                .to_owned(),
        );
    }
    if 1 < first.sessions.len() || trial.plan.has_versions() {
        tables.extend(runs.iter().map(|run| sessions(run, &trial.plan)).collect::<Result<Vec<_>>>()?);
    }
    Ok(Findings {
        experiment: "run".to_owned(),
        title: format!("Duplicates of {}", trial.trace.display()),
        source: description,
        command,
        origin,
        notes,
        tables,
        plots: vec![plot(&runs)?],
        seconds: start.elapsed().as_secs_f64(),
        ..Findings::default()
    })
}

/// One row for each measure, one column for each run: there are more measures than runs.
fn table(runs: &[(String, String, Measured)], plan: &Plan) -> Result<Table> {
    let mut columns = vec![String::new()];
    columns.extend(runs.iter().map(|(name, device, _)| format!("{name}, {device}")));
    let mut rows = Vec::new();
    for name in MEASURES {
        let measure = measure(name)?;
        let mut row = vec![Cell::Text(measure.title.to_owned())];
        row.extend(runs.iter().map(|(.., measured)| Cell::of(measure.of(measured), measure.is_count)));
        if row.iter().skip(1).any(|cell| *cell != Cell::Empty(())) {
            rows.push(row);
        }
    }
    for (number, cache) in plan.restores.iter().enumerate() {
        let title = format!("{cache}: MiB restored per container read, mean of the last versions");
        let mean = |measured: &Measured| {
            let speeds = measured.sessions.iter().rev().take(LAST_VERSIONS);
            let speeds: Vec<f64> = speeds.filter_map(|it| speed(&it.measured, number)).collect();
            (!speeds.is_empty()).then(|| speeds.iter().sum::<f64>() / float(speeds.len() as u64))
        };
        let cells = runs.iter().map(|(.., measured)| Cell::of(mean(measured), false));
        rows.push(std::iter::once(Cell::Text(title)).chain(cells).collect());
    }
    Ok(Table { title: "What was found, and what it took".to_owned(), columns, rows })
}

/// Returns the MiB that a cache of the plan restores of a version for each container that it reads.
fn speed(version: &Measured, cache: usize) -> Option<f64> {
    let reads = *version.kept.as_ref()?.reads.get(cache)?;
    (reads != 0).then(|| float(version.outcome.bytes) / f64::from(1 << 20) / float(reads))
}

/// One row for each session of a run.
fn sessions((name, device, measured): &(String, String, Measured), plan: &Plan) -> Result<Table> {
    let measures = OF_SESSIONS.into_iter().map(measure).collect::<Result<Vec<_>>>()?;
    let is_measured = |it: &&Measure| it.of(measured).is_some();
    let measures: Vec<_> = measures.into_iter().filter(is_measured).collect();
    let row = |session: &Session| {
        let cells = measures.iter().map(|it| Cell::of(it.of(&session.measured), it.is_count));
        let reads = session.measured.kept.iter().flat_map(|kept| kept.reads.iter().enumerate());
        let restores =
            reads.flat_map(|(number, reads)| [Cell::Count(*reads), Cell::of(speed(&session.measured, number), false)]);
        std::iter::once(Cell::Count(session.number.into())).chain(cells).chain(restores).collect()
    };
    let restores = plan.restores.iter();
    let restores = restores.flat_map(|it| [format!("{it}: containers read"), format!("{it}: MiB per container read")]);
    Ok(Table {
        title: format!("Versions, {name}, {device}"),
        columns: std::iter::once("version")
            .chain(measures.iter().map(|it| it.title))
            .map(str::to_owned)
            .chain(restores)
            .collect(),
        rows: measured.sessions.iter().map(row).collect(),
    })
}

fn plot(runs: &[(String, String, Measured)]) -> Result<Plot> {
    let names = runs.iter().map(|(name, device, _)| format!("{name}, {device}")).collect();
    let mut series = Vec::new();
    for name in PARTS {
        let measure = measure(name)?;
        let points =
            runs.iter().enumerate().filter_map(|(index, (.., it))| Some((float(index as u64), measure.of(it)?)));
        series.push(Series { name: measure.title.to_owned(), is_published: false, points: points.collect() });
    }
    let x = Axis { title: String::new(), is_logarithmic: false, names };
    let y = Axis { title: "seconds".to_owned(), is_logarithmic: false, names: Vec::new() };
    Ok(Plot { title: "Where the time goes".to_owned(), x, y, kind: PlotKind::StackedBars, series })
}
