//! The regret of the adaptive schedule: its device time over that of the best schedule with fixed parameters.
//!
//! A cell is a source of chunks on a device. In each, all [`contender`]s run with equal memory, and the best of them is what
//! somebody could have chosen who knew the source. [`table`] makes findings of the cells.

pub mod contender;
pub mod table;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use onefold_engine::monitor::Monitor;

use crate::adversarial::Adversarial;
use crate::device::Device;
use crate::measure::{Measure, Measured};
use crate::regret::contender::{ADAPTIVE, Contender, Rules, Windows};
use crate::replay::{Joined, Source, Traced, UniqueSet};
use crate::run::{Setting, run};
use crate::trace::file;

/// Source of chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunks {
    /// A trace.
    Trace(PathBuf),
    /// The adversarial stream of a seed, with so many chunks.
    Adversarial {
        /// Seed.
        seed: u64,
        /// Chunks.
        chunks: u64,
    },
}

impl std::fmt::Display for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Trace(path) => path.file_name().map_or(path.as_path(), Path::new).display().fmt(f),
            Self::Adversarial { seed, .. } => write!(f, "adversarial {seed}"),
        }
    }
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// Sources of chunks.
    pub sources: Vec<Chunks>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Rules for the contenders.
    pub rules: Rules,
    /// Divisor of filter, cache and memtable.
    pub scale: u32,
    /// Whether all versions of a trace, or all sessions of an adversarial stream, are one session.
    pub is_one_session: bool,
    /// Runs at the same time, on devices that are modeled. On a real device they would disturb each other.
    pub threads: usize,
    /// Directory for files of a run.
    pub scratch: &'a Path,
    /// Decides when to stop.
    pub monitor: &'a dyn Monitor,
}

/// One contender in one cell.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its schedule.
    pub schedule: &'static str,
    /// Its rule for windows.
    pub windows: Windows,
    /// Seconds of the device.
    pub device_seconds: f64,
    /// Measurements.
    pub measured: Measured,
}

/// All contenders with one source on one device.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name of the source.
    pub source: String,
    /// Name of the device.
    pub device: String,
    /// Runs, adaptive first.
    pub runs: Vec<Run>,
}

impl Cell {
    /// Returns the best run of a schedule.
    pub fn best_of(&self, schedule: &str) -> Option<&Run> {
        best(self.runs.iter().filter(|run| run.schedule == schedule))
    }

    /// Returns the best run of all but adaptive.
    pub fn best_rival(&self) -> Option<&Run> {
        best(self.runs.iter().filter(|run| run.schedule != ADAPTIVE))
    }

    /// Returns the device time of a run over that of the best rival; `None` if neither asked the device for anything.
    pub fn over_best(&self, run: &Run) -> Option<f64> {
        let best = self.best_rival()?.device_seconds;
        (0.0 < best).then(|| run.device_seconds / best)
    }

    /// Returns the device time of adaptive over that of the best rival.
    pub fn regret(&self) -> Option<f64> {
        self.over_best(self.best_of(ADAPTIVE)?)
    }
}

/// The first of equals.
fn best<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<&'a Run> {
    runs.min_by(|one, other| one.device_seconds.total_cmp(&other.device_seconds))
}

/// Runs all contenders with each source on each device. Fails if two find different chunks unique: all are exact.
pub fn compare(comparison: &Comparison<'_>) -> Result<Vec<Cell>> {
    let contenders = comparison.rules.contenders()?;
    let mut cells = Vec::new();
    for source in &comparison.sources {
        let mut unique = None;
        for device in &comparison.devices {
            let cell = cell(comparison, &contenders, source, device, &mut unique)?;
            comparison.monitor.note(&table::summary(&cell));
            cells.push(cell);
        }
    }
    Ok(cells)
}

fn cell(
    comparison: &Comparison<'_>,
    contenders: &[Contender],
    source: &Chunks,
    device: &Device,
    unique: &mut Option<UniqueSet>,
) -> Result<Cell> {
    let threads = if *device == Device::Real { 1 } else { comparison.threads };
    let runs = in_parallel(threads, contenders, |contender| {
        let Contender { schedule, windows, .. } = contender;
        let context = || format!("{schedule} with windows {windows}, {source} on {}", device.name());
        one(comparison, contender, source, device).with_context(context)
    })?;
    for run in &runs {
        let expected = unique.get_or_insert(run.measured.unique);
        ensure!(
            *expected == run.measured.unique,
            "{} with windows {} finds other chunks of {source} unique: this is a defect of the program",
            run.schedule,
            run.windows
        );
    }
    Ok(Cell { source: source.to_string(), device: device.name().to_owned(), runs })
}

fn one(comparison: &Comparison<'_>, contender: &Contender, source: &Chunks, device: &Device) -> Result<Run> {
    let &Comparison { scale, scratch, monitor, .. } = comparison;
    let setting = Setting { point: &contender.point, scale: scale.into(), device, scratch, interval: None, monitor };
    let run = |source: &mut dyn Source| {
        if comparison.is_one_session {
            run(&setting, &mut Joined(source), u64::MAX)
        } else {
            run(&setting, source, u64::MAX)
        }
    };
    let measured = match source {
        Chunks::Trace(path) => run(&mut Traced::new(&mut file::open(path)?.1))?,
        Chunks::Adversarial { seed, chunks } => run(&mut Adversarial::new(*seed, *chunks)?)?,
    };
    let device_seconds = device_seconds(&measured)?;
    Ok(Run { schedule: contender.schedule, windows: contender.windows, device_seconds, measured })
}

/// Returns the time of a modeled device; of a real one, the time in lookups and prefetches, by a clock.
fn device_seconds(measured: &Measured) -> Result<f64> {
    let name = if measured.traffic.is_some() { "device-seconds" } else { "disk-seconds" };
    Measure::named(name).and_then(|measure| measure.of(measured)).context("a run has no time")
}

/// Applies a function to each item, `threads` at a time. Returns the results in the order of the items, or the first error.
fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    apply: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let left = Mutex::new((0..).zip(items));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut done = Vec::new();
        while let Some((number, item)) = next() {
            let result = apply(item);
            if result.is_err() {
                // Nobody takes another one.
                left.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
            }
            done.push((number, result));
        }
        done
    };
    let mut done: Vec<(usize, Result<R>)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined =
            others.into_iter().flat_map(|other| other.join().unwrap_or_else(|it| std::panic::resume_unwind(it)));
        own.into_iter().chain(joined).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
#[path = "regret_tests.rs"]
mod tests;
