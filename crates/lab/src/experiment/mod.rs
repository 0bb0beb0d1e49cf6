//! Experiments: what papers measured, measured again, and what none has measured.
//!
//! [`catalog`] lists them, [`spec`] reads their files, [`data_set`] makes streams. This module makes each run once for all
//! experiments that share it; `tables`, `plots` and `claims` make [`Findings`] of them. [`chunking`], [`fingerprints`], [`kernels`],
//! [`instructions`], [`compressors`], [`dumps`], [`energy`], [`steps`], [`references`] and [`halvings`] measure other things than points; `compared`
//! judges what all but the first of these find. [`scaling`] measures threads for `lab scaling`. [`stages`] adds the stages around identification to
//! points, and [`device`] measures their rows on devices.

pub mod catalog;
pub mod chunking;
mod claims;
mod compared;
pub mod compressors;
pub mod data_set;
pub mod device;
pub mod dumps;
pub mod energy;
pub mod fingerprints;
pub mod halvings;
pub mod inputs;
pub mod instructions;
pub mod kernels;
mod plots;
pub mod references;
mod results;
pub mod scaling;
pub mod spec;
pub mod stages;
pub mod steps;
mod tables;
mod verdict;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use onefold_engine::monitor::Monitor;

use crate::coprocessor::code::Features;
use crate::coprocessor::energy::POWERCAP;
use crate::coprocessor::worker::Worker;
use crate::counts::float;
use crate::device::{Device, REAL};
use crate::experiment::catalog::Experiment;
use crate::experiment::chunking::Speeds;
use crate::experiment::compared::Shown;
use crate::experiment::data_set::DataSet;
use crate::experiment::device::Accelerator;
use crate::experiment::dumps::{Around, DumpSpec};
use crate::experiment::inputs::Inputs;
pub(crate) use crate::experiment::results::{Results, RunId};
use crate::experiment::spec::{PointSpec, Sensitivity, Spec};
use crate::experiment::stages::spec::StageSpec;
use crate::experiment::verdict::Samples;
use crate::findings::{Findings, Origin, Table};
use crate::measure::Measured;
use crate::point::Point;
use crate::point::memory::{BUCKETS_MIN, MEMTABLE_MIN, SCALE_MAX};
use crate::point::preset::Preset;
use crate::replay::MadeUp;
use crate::run::{Setting, run};
use crate::together::processors;

/// Size of experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// So that all of them take minutes.
    Quick,
    /// The size that each states.
    Own,
    /// At so great a fraction of the paper's size, 1 being all of it.
    Fraction(u32),
}

/// Fewest chunks of a run: of less, times say nothing.
const CHUNKS_MIN: u64 = 20_000;
/// Fewest rounds of experiments on kernels, compressors and energy, unless they are quick: each measures all once, and begins with another one than the
/// round before.
const ROUNDS_MIN: u32 = 5;
/// Intervals that a run is reported in.
const INTERVALS: u64 = 20;

/// Runs experiments, and keeps what they measured for others that ask for the same.
#[derive(Debug)]
pub struct Laboratory {
    scratch: PathBuf,
    size: Size,
    /// How often each run is repeated, each time with another seed.
    repetitions: u32,
    /// Device that replaces the one of experiments with one device.
    device: Option<Device>,
    made: HashMap<String, Rc<Measured>>,
    inputs: Inputs,
    worker: Worker,
    features: Features,
    /// The GPU that stages of papers run on; opened when the first one needs it.
    accelerator: OnceCell<Accelerator>,
}

impl Laboratory {
    /// Makes one that puts its files into a directory. A real device is the one under it. Each run is made `repetitions`
    /// times, with seeds from 1 on. Experiments that have one device are run on `device` instead, if it is given.
    pub fn new(scratch: PathBuf, size: Size, repetitions: u32, device: Option<Device>) -> Self {
        Self {
            scratch,
            size,
            repetitions: repetitions.max(1),
            device,
            made: HashMap::new(),
            inputs: Inputs::default(),
            worker: Worker::in_process(),
            features: Features::of_this_machine(),
            accelerator: OnceCell::new(),
        }
    }

    /// Gives it real data to read.
    #[must_use]
    pub fn with_inputs(self, inputs: Inputs) -> Self {
        Self { inputs, ..self }
    }

    /// Lets it start processes, which can be kept from using instructions.
    #[must_use]
    pub fn with_worker(self, worker: Worker) -> Self {
        Self { worker, ..self }
    }

    /// Gives it a device for the stages of papers that ran on one, in place of the first one of this machine.
    #[must_use]
    pub fn with_accelerator(self, accelerator: Accelerator) -> Self {
        Self { accelerator: OnceCell::from(accelerator), ..self }
    }

    fn accelerator(&self) -> &Accelerator {
        self.accelerator.get_or_init(Accelerator::find)
    }

    /// Runs an experiment. The monitor learns of each run and may stop it.
    pub fn run(
        &mut self,
        experiment: &Experiment,
        origin: Origin,
        command: String,
        monitor: &dyn Monitor,
    ) -> Result<Findings> {
        let start = Instant::now();
        let mut findings = Findings {
            experiment: experiment.name().to_owned(),
            title: experiment.title().to_owned(),
            source: experiment.source().to_owned(),
            command,
            origin,
            ..Findings::default()
        };
        match experiment {
            Experiment::Points(spec) => {
                let results = self.results(spec, monitor)?;
                findings.notes = self.notes(&results);
                findings.tables = tables::tables(&results)?;
                findings.tables.extend(self.sensitivity(&results, monitor)?);
                findings.plots = plots::plots(&results)?;
                findings.claims = claims::claims(&results, &|id, measure| results.samples(id, measure))?;
                if let Some(stages) = &spec.stages {
                    add(&mut findings, self.stages(stages, &results, monitor)?);
                }
            }
            Experiment::Chunking(spec) => {
                let mebibytes = if self.size == Size::Quick { spec.quick_mib } else { spec.mib };
                let (repetitions, accelerator) = (self.repetitions, self.accelerator());
                let measured = chunking::measure(spec, mebibytes, repetitions, accelerator, monitor)?;
                let Speeds { tables, plots, claims } = measured;
                findings.notes.clone_from(&spec.notes);
                if accelerator.missing().is_none() {
                    findings.notes.push(accelerator.note());
                }
                (findings.tables, findings.plots, findings.claims) = (tables, plots, claims);
            }
            _ => {
                if let Some((notes, shown)) = self.shown(experiment, monitor)? {
                    show(&mut findings, notes, shown);
                }
            }
        }
        findings.seconds = start.elapsed().as_secs_f64();
        Ok(findings)
    }

    /// Measures an experiment that has no points; returns its notes, too.
    fn shown<'a>(&self, experiment: &'a Experiment, monitor: &dyn Monitor) -> Result<Option<(&'a [String], Shown)>> {
        let (notes, shown): (&Vec<String>, Shown) = match experiment {
            Experiment::Points(_) | Experiment::Chunking(_) => return Ok(None),
            Experiment::Kernels(spec) => {
                let (worker, features) = (&self.worker, self.features);
                let millis = self.sized(spec.quick_millis, spec.millis);
                (&spec.notes, kernels::measure(spec, millis, self.rounds(), (worker, features), monitor)?)
            }
            Experiment::Instructions(spec) => {
                let around = (&self.worker, self.features);
                let millis = self.sized(spec.quick_millis, spec.millis);
                (&spec.notes, instructions::measure(spec, millis, self.rounds(), around, monitor)?)
            }
            Experiment::Fingerprints(spec) => {
                let around = (&self.worker, self.features, self.accelerator());
                let mebibytes = self.sized(spec.quick_mib, spec.mib);
                (&spec.notes, fingerprints::measure(spec, mebibytes, self.rounds(), around, monitor)?)
            }
            Experiment::Compressors(spec) => {
                let mebibytes = self.sized(spec.quick_mib, spec.mib);
                (&spec.notes, compressors::measure(spec, mebibytes, self.rounds(), &self.inputs, monitor)?)
            }
            Experiment::Dumps(spec) => (&spec.notes, self.dumps(spec, monitor)?),
            Experiment::Energy(spec) => {
                let around = (&self.worker, self.features, Path::new(POWERCAP));
                let millis = self.sized(spec.quick_millis, spec.millis);
                (&spec.notes, energy::measure(spec, millis, self.rounds(), around, monitor)?)
            }
            Experiment::Steps(spec) => {
                let counts = if self.size == Size::Quick { &spec.quick_counts } else { &spec.counts };
                (&spec.notes, steps::measure(spec, counts, monitor)?)
            }
            Experiment::References(spec) => {
                let counts = spec.counts_at(self.size);
                (&spec.notes, references::measure(spec, &counts, self.rounds(), processors(), monitor)?)
            }
            Experiment::Halvings(spec) => {
                (&spec.notes, halvings::measure(spec, spec.bytes_at(self.size), self.rounds(), processors(), monitor)?)
            }
        };
        Ok(Some((notes, shown)))
    }

    /// Returns the size with `--quick`, or the one that an experiment states.
    fn sized(&self, quick: u64, own: u64) -> u64 {
        if self.size == Size::Quick { quick } else { own }
    }

    fn rounds(&self) -> u32 {
        if self.size == Size::Quick { self.repetitions } else { self.repetitions.max(ROUNDS_MIN) }
    }

    /// Measures the stages around identification.
    fn stages(&self, spec: &StageSpec, results: &Results<'_>, monitor: &dyn Monitor) -> Result<Shown> {
        let (worker, features, scratch) = (&self.worker, self.features, &*self.scratch);
        let (is_quick, accelerator) = (self.size == Size::Quick, self.accelerator());
        let around =
            stages::Around { worker, features, accelerator, scratch, is_quick, rounds: self.rounds(), monitor };
        stages::measure(spec, results, &around)
    }

    /// Takes dumps through a deduplication server.
    fn dumps(&self, spec: &DumpSpec, monitor: &dyn Monitor) -> Result<Shown> {
        let around = Around {
            worker: &self.worker,
            features: self.features,
            inputs: &self.inputs,
            scratch: &self.scratch,
            device: self.device.as_ref().map(Device::name),
            bytes_of_each: self.sized(spec.quick_mib, spec.mib) << 20,
            repetitions: self.repetitions,
            monitor,
        };
        dumps::measure(spec, &around)
    }

    /// Makes the runs of an experiment.
    fn results<'a>(&mut self, spec: &'a Spec, monitor: &dyn Monitor) -> Result<Results<'a>> {
        let data_sets: Vec<_> = spec.data_sets.iter().map(|name| DataSet::named(name)).collect::<Result<_>>()?;
        let mut results = Results { spec, data_sets, runs: HashMap::new() };
        if self.device.is_some() && spec.devices.len() != 1 {
            monitor.note(&format!("{}: has several devices and is run on them", spec.name));
        }
        let values = spec.vary.as_ref().map_or(1, |vary| vary.values.len());
        for data_set in 0..spec.data_sets.len() {
            for (device, device_name) in spec.devices.iter().enumerate() {
                for value in 0..values {
                    let on_it = spec.points.iter().enumerate().filter(|(_, point)| runs_on(point, device_name));
                    for (index, point) in on_it {
                        let id = RunId { data_set, device, value, point: index };
                        let measured =
                            (1..=self.repetitions).map(|seed| self.measure(&results, id, None, seed.into(), monitor));
                        let measured = measured.collect::<Result<_>>();
                        let measured = measured.with_context(|| format!("{}, {}", spec.name, point.name))?;
                        results.runs.insert(id, measured);
                    }
                }
            }
        }
        Ok(results)
    }

    /// Repeats a comparison with other streams, if the experiment asks for it.
    fn sensitivity(&mut self, results: &Results<'_>, monitor: &dyn Monitor) -> Result<Option<Table>> {
        let Some(sensitivity) = &results.spec.sensitivity else { return Ok(None) };
        let Sensitivity { title, field, values, measure, of, to } = sensitivity;
        let [of, to] = [results.spec.point(of)?, results.spec.point(to)?];
        let unit = spec::measure(measure)?;
        let mut table = tables::of_sensitivity(results, sensitivity, unit.title);
        for first in results.ids().into_iter().filter(|id| id.point == of) {
            let stated =
                || Some(results.published(first, measure)? / results.published(RunId { point: to, ..first }, measure)?);
            let stated = stated();
            for value in std::iter::once(None).chain(values.iter().map(Some)) {
                let mut samples = [Samples::default(), Samples::default()];
                for (point, samples) in [of, to].into_iter().zip(&mut samples) {
                    let id = RunId { point, ..first };
                    let change = value.map(|value| (field.as_str(), value.as_str()));
                    for seed in 1..=self.repetitions {
                        samples.0.extend(unit.of(&*self.measure(results, id, change, seed.into(), monitor)?));
                    }
                }
                let value = value.map_or("as the data set", String::as_str);
                table.rows.push(tables::row_of_sensitivity(results, first, value, &samples, stated));
            }
        }
        table.title.clone_from(title);
        Ok(Some(table))
    }

    /// Returns how many chunks of a data set are run, and what memory is divided by.
    fn extent(&self, spec: &Spec, set: &DataSet) -> (u64, f64) {
        let chunks = match self.size {
            Size::Quick => set.chunks.min(spec.size.quick_chunks),
            Size::Own => set.chunks.min(spec.size.chunks),
            Size::Fraction(scale) => (set.chunks / u64::from(scale.max(1))).max(CHUNKS_MIN.min(set.chunks)),
        };
        let scale = if spec.scales_memory { float(set.chunks) / float(chunks) } else { 1.0 };
        (chunks, scale.min(SCALE_MAX))
    }

    fn notes(&self, results: &Results<'_>) -> Vec<String> {
        let mut notes = results.spec.notes.clone();
        let (mut is_cut, mut is_scaled) = (false, false);
        for set in &results.data_sets {
            let (chunks, scale) = self.extent(results.spec, set);
            is_cut |= chunks != set.chunks;
            is_scaled |= 1.0 < scale;
            let divided = if 1.0 < scale {
                format!("; filter, cache and memtable are divided by {scale:.1}")
            } else {
                String::new()
            };
            notes.push(format!(
                "{}: {chunks} of {} chunks of {} bytes, {}{divided}. {}.",
                set.name,
                set.chunks,
                set.chunk_size,
                set.words(),
                set.source
            ));
            if let Some(fits) = set.fits() {
                notes.push(format!("{}: {fits}. All other tables and figures are held out.", set.name));
            }
        }
        if 1 < self.repetitions {
            notes.push(format!(
                "Each number is the median of {} runs, with seeds from 1 on; in brackets, the least and the most of them.",
                self.repetitions
            ));
        } else {
            notes.push("One run each: noise was not measured (--repeat).".to_owned());
        }
        if is_scaled {
            notes.push(format!(
                "Buckets of pending chunks are divided too, but there are at least {BUCKETS_MIN}; the memtable has at least {} KiB. Batches \
                 of lookups, reads, merges and writes keep their full size.",
                MEMTABLE_MIN >> 10
            ));
        }
        if is_cut && !results.spec.published.is_empty() {
            notes.push("The seconds of a paper are for all of its data.".to_owned());
        }
        let instead = self.device.as_ref().filter(|_| results.spec.devices.len() == 1);
        if let Some(device) = instead {
            notes.push(format!("Run on the device {} instead of {}.", device.name(), results.spec.devices.join(", ")));
        }
        if instead.map_or(results.spec.devices.iter().any(|name| name != REAL), |device| *device != Device::Real) {
            notes.push(
                "On a modeled device, a time is the sum of processor time, which is measured, and the model's time of each request. \
                 Nothing runs in the background."
                    .to_owned(),
            );
        }
        notes
    }

    /// Makes a run with a seed, or returns what it measured before; with a field of the data set changed, if one is given.
    fn measure(
        &mut self,
        results: &Results<'_>,
        id: RunId,
        change: Option<(&str, &str)>,
        seed: u64,
        monitor: &dyn Monitor,
    ) -> Result<Rc<Measured>> {
        let spec = results.spec;
        let missing = "a run that the experiment has";
        let mut set = results.data_sets.get(id.data_set).context(missing)?.clone();
        if let Some((field, value)) = change {
            set = set.varied(field, value)?;
        }
        let point_spec = spec.points.get(id.point).context(missing)?;
        let mut device = match &self.device {
            Some(device) if spec.devices.len() == 1 => device.clone(),
            _ => Device::named(spec.devices.get(id.device).context(missing)?)?,
        };
        let mut assignments = point_spec.set.clone();
        if let Some(vary) = &spec.vary {
            let value = vary.values.get(id.value).context(missing)?;
            match vary.dimension.split_once('.') {
                Some(("device", field)) => device = varied(device, field, value)?,
                Some(("data-set", field)) => set = set.varied(field, value)?,
                _ => assignments.push(format!("{}={value}", vary.dimension)),
            }
            assignments.extend(vary.with.get(id.value).into_iter().flatten().cloned());
        }
        let point: Point = Preset::named(&point_spec.preset)?.with(&assignments)?;
        let (chunks, scale) = self.extent(spec, &set);
        let key = format!("{set:?} {chunks} {scale} {device:?} {point:?} {seed}");
        if let Some(measured) = self.made.get(&key) {
            return Ok(Rc::clone(measured));
        }
        let interval = Some(chunks.div_ceil(INTERVALS));
        let setting = Setting { point: &point, scale, device: &device, scratch: &self.scratch, interval, monitor };
        let mut stream = set.stream(seed);
        let measured = run(&setting, &mut MadeUp { stream: &mut stream, len: set.chunk_size }, chunks)?;
        let value = spec.vary.as_ref().and_then(|vary| vary.values.get(id.value));
        monitor.note(&format!(
            "{}: {}, {}{} on {}: {:.2} s",
            spec.name,
            set.name,
            point_spec.name,
            value.map(|value| format!(" at {value}")).unwrap_or_default(),
            device.name(),
            measured.outcome.time.as_secs_f64()
        ));
        let measured = Rc::new(measured);
        self.made.insert(key, Rc::clone(&measured));
        Ok(measured)
    }
}

/// Adds what an experiment shows to its notes.
fn show(findings: &mut Findings, notes: &[String], shown: Shown) {
    findings.notes = notes.to_vec();
    add(findings, shown);
}

/// Adds what is shown to findings.
fn add(findings: &mut Findings, Shown { notes, tables, plots, claims }: Shown) {
    findings.notes.extend(notes);
    findings.tables.extend(tables);
    findings.plots.extend(plots);
    findings.claims.extend(claims);
}

/// Returns true if a point is run on a device.
fn runs_on(point: &PointSpec, device: &str) -> bool {
    point.devices.is_empty() || point.devices.iter().any(|name| name == device)
}

/// Returns a device with a field set to another value.
fn varied(device: Device, field: &str, value: &str) -> Result<Device> {
    let Device::Modeled { name, mut model } = device else { bail!("a real device has no {field} that could be set") };
    let number: f64 = value.parse().with_context(|| format!("device.{field}={value}"))?;
    match field {
        "read-latency-us" => model.read_latency_us = number,
        "read-mb-per-s" => model.read_mb_per_s = number,
        _ => bail!("device.{field} is not varied"),
    }
    Ok(Device::Modeled { name, model })
}
