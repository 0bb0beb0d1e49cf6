//! A trace, found the duplicates of in some ways on some devices.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use onefold_engine::monitor::Monitor;

use crate::counts::float;
use crate::device::Device;
use crate::experiment::spec::measure;
use crate::findings::{Axis, Cell, Findings, Origin, Plot, PlotKind, Series, Table};
use crate::measure::{Measure, Measured, Session};
use crate::point::Point;
use crate::replay::{Joined, Outcome, Traced};
use crate::run::{Setting, run};
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
    /// Directory for files of a run.
    pub scratch: PathBuf,
}

/// Measures of each run.
const MEASURES: [&str; 20] = [
    "unique-chunks",
    "unique-gigabytes",
    "deduplication-ratio",
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
    "windows",
    "mib-read",
    "updates-per-gb",
    "false-positive-rate",
    "hit-percent",
];
/// Measures of each session of a run.
const OF_SESSIONS: [&str; 17] = [
    "chunks",
    "gigabytes",
    "unique-chunks",
    "unique-gigabytes",
    "deduplication-ratio",
    "lookups",
    "lookups-per-gb",
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

/// Runs each point on each device over the trace. Fails if two find different chunks unique: all are exact.
pub fn try_out(trial: &Trial, origin: Origin, command: String, monitor: &dyn Monitor) -> Result<Findings> {
    let start = Instant::now();
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
                run(&setting, &mut Joined(&mut versions), u64::MAX)
            } else {
                run(&setting, &mut versions, u64::MAX)
            };
            let measured = measured.with_context(|| name.clone())?;
            let seconds = measured.outcome.time.as_secs_f64();
            monitor.note(&format!("{name} on {}: {seconds:.2} s", device.name()));
            if let Some((other, ..)) = runs.iter().find(|(.., other)| other.unique != measured.unique) {
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
    let mut tables = vec![table(&runs)?];
    if 1 < first.sessions.len() {
        notes.push(
            "Each version is a session: the index is closed before it and opened again with an empty cache. Closing and \
             opening do not count."
                .to_owned(),
        );
        for run in &runs {
            tables.push(sessions(run)?);
        }
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
fn table(runs: &[(String, String, Measured)]) -> Result<Table> {
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
    Ok(Table { title: "What was found, and what it took".to_owned(), columns, rows })
}

/// One row for each session of a run.
fn sessions((name, device, measured): &(String, String, Measured)) -> Result<Table> {
    let measures = OF_SESSIONS.into_iter().map(measure).collect::<Result<Vec<_>>>()?;
    let is_measured = |it: &&Measure| it.of(measured).is_some();
    let measures: Vec<_> = measures.into_iter().filter(is_measured).collect();
    let row = |session: &Session| {
        let cells = measures.iter().map(|it| Cell::of(it.of(&session.measured), it.is_count));
        std::iter::once(Cell::Count(session.number.into())).chain(cells).collect()
    };
    Ok(Table {
        title: format!("Versions, {name}, {device}"),
        columns: std::iter::once("version").chain(measures.iter().map(|it| it.title)).map(str::to_owned).collect(),
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
