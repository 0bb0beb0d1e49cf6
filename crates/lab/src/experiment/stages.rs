//! Stages of a backup around identification: reading, chunking, fingerprints and writing, each by itself, with what identification took
//! in the runs of an experiment. Figures 9, 14 and 15 of Ma et al., "Lazy Exact Deduplication", are such sums.

mod shares;
pub mod spec;
mod throughput;

use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::kernel::noise;
use crate::coprocessor::worker::{Done, Job, Worker};
use crate::counts::float;
use crate::experiment::compared::Shown;
use crate::experiment::device::{Accelerator, Missing};
use crate::experiment::kernels::codes;
use crate::experiment::stages::spec::{Shows, StageSpec, StepSpec};
use crate::experiment::verdict::Samples;
use crate::experiment::{Results, chunking};
use crate::measure::Measured;
use crate::replay::Outcome;
use crate::together::processors;

/// Bytes of a read and of a write, as the blocks of a backup.
const BLOCK_BYTES: usize = 512 << 10;

/// MB/s of a way to do the stages; none of a stage that this machine cannot do.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Rates {
    chunk: Option<f64>,
    fingerprint: Option<f64>,
}

/// MB/s of all stages but identification.
#[derive(Clone, PartialEq, Debug)]
struct Speeds {
    read: f64,
    write: f64,
    steps: Vec<Rates>,
    /// Why a step on a device was not measured, if none is there.
    without_device: Option<Missing>,
}

/// In place of a number of code that this processor or process does not have.
const NOT_HERE: &str = "not on this processor";

impl Speeds {
    /// Returns why the fingerprints of a step were not measured.
    fn missing(&self, step: &StepSpec) -> Missing {
        let here = || (NOT_HERE, "It needs an x86-64 processor and a program that can be started again.".to_owned());
        self.without_device.clone().filter(|_| step.on_device).unwrap_or_else(here)
    }
}

/// Seconds of each stage.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Seconds {
    chunk: f64,
    fingerprint: f64,
    identify: f64,
}

impl Seconds {
    /// Returns the seconds that so many bytes take, with those of identification; none if a stage was not measured.
    fn of(rates: Rates, outcome: &Outcome) -> Option<Self> {
        let megabytes = float(outcome.bytes) / 1e6;
        let seconds = |rate: Option<f64>| rate.map(|rate| megabytes / rate.max(1e-9));
        let identify = outcome.time.as_secs_f64();
        Some(Self { chunk: seconds(rates.chunk)?, fingerprint: seconds(rates.fingerprint)?, identify })
    }

    fn all(self) -> [f64; 3] {
        [self.chunk, self.fingerprint, self.identify]
    }

    /// Returns the seconds of stages one after the other.
    fn sum(self) -> f64 {
        self.all().iter().sum()
    }

    /// Returns the seconds of stages that overlap: those of the slowest.
    fn slowest(self) -> f64 {
        self.all().into_iter().fold(0.0, f64::max)
    }

    /// Returns the share of each stage in the sum.
    fn shares(self) -> [f64; 3] {
        self.all().map(|seconds| seconds / self.sum().max(1e-12))
    }
}

/// Names of the stages, in the order of [`Seconds::all`].
const STAGES: [&str; 3] = ["chunk", "fingerprint", "identify"];

/// Machine and program around a measurement.
pub(super) struct Around<'a> {
    pub(super) worker: &'a Worker,
    pub(super) features: Features,
    pub(super) accelerator: &'a Accelerator,
    pub(super) scratch: &'a Path,
    pub(super) is_quick: bool,
    pub(super) rounds: u32,
    pub(super) monitor: &'a dyn Monitor,
}

/// Measures the stages, and returns what to show of them with the runs of an experiment.
pub(super) fn measure(spec: &StageSpec, results: &Results<'_>, around: &Around<'_>) -> Result<Shown> {
    let mib = if around.is_quick { spec.quick_mib } else { spec.mib };
    let speeds = speeds(spec, mib, around)?;
    let mut shown = match spec.shows {
        Shows::Shares => shares::shown(spec, results, &speeds)?,
        Shows::Throughput => throughput::shown(spec, results, &speeds)?,
    };
    shown.notes = vec![
        format!(
            "Chunking and fingerprints: {mib} MiB of noise for each thread, medians of {} rounds, in one thread by processor time, in several by the clock; a stage by itself. Identification: the runs above. \
             Reading is from the page cache and writing ends with a sync, both under --scratch; the paper has neither.",
            around.rounds
        ),
        format!("\"All threads\" are {} here.", processors()),
    ];
    if spec.steps.iter().any(|step| step.on_device) {
        shown.notes.push(around.accelerator.note());
    }
    Ok(shown)
}

fn speeds(spec: &StageSpec, mib: u32, around: &Around<'_>) -> Result<Speeds> {
    let (mut chunks, mut names) =
        (vec![Samples::default(); spec.steps.len()], vec![Samples::default(); spec.steps.len()]);
    let (mut reads, mut writes) = (Samples::default(), Samples::default());
    let known = codes(around.worker, around.features);
    for round in 0..around.rounds as usize {
        let (write, read) = file(around.scratch, mib)?;
        reads.0.push(read);
        writes.0.push(write);
        for turn in 0..spec.steps.len() {
            if around.monitor.is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            let at = (round + turn) % spec.steps.len();
            let step = &spec.steps[at];
            let threads = if step.chunk_threads == 0 { processors() } else { step.chunk_threads };
            let algorithm = chunking::named(&step.chunker, spec.average)?;
            let taken = chunking::cut(algorithm, spec.average, threads, mib as usize)?;
            chunks[at].0.push(rate(threads, taken.rate(), taken.processor_per_gigabyte()));
            let code = step.code.unwrap_or(Code::Instructions);
            if !step.on_device && known.contains(&code) {
                let job = spec.job(step, mib);
                let performed = around.worker.perform(&Job::Fingerprint(job.clone()), code, around.monitor)?;
                let Done::Fingerprint(done) = performed else { bail!("the result of another job") };
                names[at].0.push(rate(job.threads, done.rate, done.processor_per_gigabyte));
            }
        }
    }
    for (step, names) in spec.steps.iter().zip(&mut names).filter(|(step, _)| step.on_device) {
        *names = around.accelerator.names(step.hash, spec.average, around.rounds)?.rates;
    }
    let rates = chunks.iter().zip(&names);
    let rates = rates.map(|(chunk, names)| Rates { chunk: chunk.median(), fingerprint: names.median() });
    let measured = "a stage without a round";
    let (read, write) = (reads.median().context(measured)?, writes.median().context(measured)?);
    Ok(Speeds { read, write, steps: rates.collect(), without_device: around.accelerator.missing() })
}

/// Returns MB/s: of one thread by processor time, which other programs change least, and of several by the clock.
fn rate(threads: usize, by_clock: f64, processor_per_gigabyte: f64) -> f64 {
    if threads == 1 { 1e3 / processor_per_gigabyte.max(1e-9) } else { by_clock }
}

/// Writes a file and reads it; returns MB/s of both.
fn file(scratch: &Path, mib: u32) -> Result<(f64, f64)> {
    let (mut block, count) = (noise(BLOCK_BYTES), (u64::from(mib) << 20) / BLOCK_BYTES as u64);
    let mut file = tempfile::tempfile_in(scratch).with_context(|| scratch.display().to_string())?;
    let megabytes = float(count * BLOCK_BYTES as u64) / 1e6;
    let start = Instant::now();
    for _ in 0..count {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    let written = start.elapsed().as_secs_f64();
    file.rewind()?;
    let start = Instant::now();
    for _ in 0..count {
        file.read_exact(&mut block)?;
        std::hint::black_box(&block);
    }
    let read = start.elapsed().as_secs_f64();
    Ok((megabytes / written.max(1e-9), megabytes / read.max(1e-9)))
}

/// Returns the share of unique bytes in a run.
fn unique_share(measured: &Measured) -> f64 {
    float(measured.unique.bytes) / float(measured.outcome.bytes.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::rc::Rc;
    use std::time::Duration;

    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::RunId;
    use crate::experiment::catalog::Experiment;
    use crate::experiment::data_set::DataSet;
    use crate::experiment::device::tests::{host, none};
    use crate::experiment::spec::Spec;

    /// Makes a run of intervals: bytes, and milliseconds of identification.
    pub(super) fn run(intervals: &[(u64, u64)]) -> Measured {
        let interval = |&(bytes, millis): &(u64, u64)| Outcome {
            bytes,
            time: Duration::from_millis(millis),
            ..Outcome::default()
        };
        let mut measured = Measured { intervals: intervals.iter().map(interval).collect(), ..Measured::default() };
        for interval in &measured.intervals {
            measured.outcome.add(interval);
        }
        measured
    }

    /// Makes results of an experiment, a run for each identity.
    pub(super) fn results(spec: &Spec, run: impl Fn(RunId) -> Measured) -> Results<'_> {
        let data_sets: Vec<_> = spec.data_sets.iter().map(|name| DataSet::named(name).unwrap()).collect();
        let mut runs = HashMap::new();
        for data_set in 0..data_sets.len() {
            for point in 0..spec.points.len() {
                let id = RunId { data_set, device: 0, value: 0, point };
                runs.insert(id, vec![Rc::new(run(id))]);
            }
        }
        Results { spec, data_sets, runs }
    }

    #[test]
    fn stages_one_after_the_other_add_up_and_stages_that_overlap_take_as_long_as_the_slowest() {
        let outcome = Outcome { bytes: 1_000_000_000, time: Duration::from_secs(1), ..Outcome::default() };
        let rates = Rates { chunk: Some(250.0), fingerprint: Some(500.0) };
        let seconds = Seconds::of(rates, &outcome).unwrap();
        assert!(seconds.all().iter().zip([4.0, 2.0, 1.0]).all(|(found, expected)| (found - expected).abs() < 1e-9));
        assert!((seconds.sum() - 7.0).abs() < 1e-9 && (seconds.slowest() - 4.0).abs() < 1e-9);
        assert!((seconds.shares()[0] - 4.0 / 7.0).abs() < 1e-9);
        assert_eq!(Seconds::of(Rates { fingerprint: None, ..rates }, &outcome), None);
        // The paper's own figure 9, from its Tables VII and IX and figure 13: 53%, 34% and 13%.
        let paper = Rates { chunk: Some(217.0), fingerprint: Some(338.0) };
        let outcome = Outcome { bytes: 3_580_000_000_000, time: Duration::from_secs(3939), ..Outcome::default() };
        let [chunk, fingerprint, identify] = Seconds::of(paper, &outcome).unwrap().shares();
        assert!((chunk - 0.53).abs() < 0.01 && (fingerprint - 0.34).abs() < 0.01 && (identify - 0.13).abs() < 0.01);
    }

    #[test]
    fn a_step_on_a_device_has_its_rate_and_none_without_one() {
        let Experiment::Points(spec) = Experiment::named("lazy-figure-14").unwrap() else { panic!("another kind") };
        let stages = spec.stages.as_ref().unwrap();
        let (worker, scratch) = (Worker::in_process(), tempfile::tempdir().unwrap());
        let features = Features { sha: true, aes: true, can_be_masked: true };
        let found = |accelerator: &Accelerator| {
            let (scratch, monitor) = (scratch.path(), &Silent);
            let around = Around { worker: &worker, features, accelerator, scratch, is_quick: true, rounds: 1, monitor };
            speeds(stages, 1, &around).unwrap()
        };
        let (with, without) = (found(&host()), found(&none()));
        assert!(stages.steps.iter().any(|step| step.on_device));
        for (at, step) in stages.steps.iter().enumerate() {
            assert!(with.steps[at].fingerprint.is_some_and(|rate| 0.0 < rate), "{}", step.name);
            assert_eq!(without.steps[at].fingerprint.is_none(), step.on_device, "{}", step.name);
            assert_eq!(without.missing(step).0 == "no device", step.on_device);
        }
    }

    #[test]
    fn a_file_is_written_and_read_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (write, read) = file(dir.path(), 2).unwrap();
        assert!(0.0 < write && 0.0 < read);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(format!("{:#}", file(&dir.path().join("none"), 1).unwrap_err()).contains("none"));
    }
}
