//! Dumps of memory through a deduplication server: figures 11 and 12 of Ma et al., "Towards Fast De-duplication Using Low Energy Coprocessor".

mod claims;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::codec::Codec;
use crate::coprocessor::kernel::Kernel;
use crate::coprocessor::pipeline::{BATCH_BYTES, Dump, Interval, Named, PipelineDone, PipelineJob};
use crate::coprocessor::worker::{Done, Job, Worker};
use crate::counts::float;
use crate::experiment::compared::{Shown, axis};
use crate::experiment::dumps::claims::claims;
use crate::experiment::inputs::{Inputs, is_name, made_by};
use crate::experiment::kernels::{codes, words_of_codes};
use crate::experiment::verdict::Samples;
use crate::findings::{Cell, Plot, PlotKind, Series, Table};

/// An experiment on dumps.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DumpSpec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper and figure that it reproduces.
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The input.
    pub dumps: String,
    /// The preset that finds duplicates.
    pub preset: String,
    /// Dimensions that differ from it.
    #[serde(default)]
    pub set: Vec<String>,
    /// Devices of its index. Claims about the paper are about the first, and the goal is about the last.
    pub devices: Vec<String>,
    /// Bytes of a block.
    pub block: u32,
    /// The hash that names blocks.
    pub hash: Kernel,
    /// The cipher of segments.
    pub cipher: Kernel,
    /// Work of the client, and bytes that are named. Claims are about the first.
    pub ways: Vec<Way>,
    /// Code that is measured; claims compare the first and the last.
    pub codes: Vec<Code>,
    /// MB of an interval.
    pub interval_mb: u64,
    /// Fewest GB and dumps that can show what the paper does.
    pub gigabytes_min: f64,
    /// Fewest dumps.
    pub dumps_min: usize,
    /// Numbers of the paper.
    pub published: PublishedDumps,
    /// MiB of each dump at most, with `--quick`.
    pub quick_mib: u64,
    /// The same by default; 0 for all.
    pub mib: u64,
}

/// A way to send and name blocks.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Way {
    /// Name.
    pub name: String,
    /// The client's compressor.
    pub compressor: Codec,
    /// Bytes that are named.
    pub named: Named,
}

/// Numbers of the paper, of which a figure has some.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PublishedDumps {
    /// Original to stored bytes.
    pub ratio: Option<f64>,
    /// MB/s with the coprocessor, and without.
    pub rates: Option<[f64; 2]>,
    /// Most false positives of the filter, in percent.
    pub false_positive_percent: Option<f64>,
    /// MB/s that are asked for; ours.
    pub goal: Option<f64>,
}

impl DumpSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(is_name(&self.dumps), "dumps: an input, not {:?}", self.dumps);
        ensure!(
            !self.ways.is_empty() && self.codes.first() == Some(&Code::Instructions),
            "ways, and codes from instructions on"
        );
        ensure!(BATCH_BYTES as u64 <= self.interval_mb * 1_000_000, "interval-mb: from 2 on");
        ensure!(self.quick_mib != 0 && !self.devices.is_empty(), "nothing is read, or there is no device");
        Ok(())
    }

    fn job(&self, ran: &Ran<'_>, dumps: &[PathBuf], bytes_of_each: u64, scratch: &Path) -> PipelineJob {
        let batch = BATCH_BYTES as u64;
        PipelineJob {
            dumps: dumps.to_vec(),
            bytes_of_each,
            block: self.block,
            compressor: ran.way.compressor,
            named: ran.way.named,
            hash: self.hash,
            cipher: self.cipher,
            preset: self.preset.clone(),
            set: self.set.clone(),
            device: ran.device.to_owned(),
            scratch: scratch.to_path_buf(),
            interval_bytes: self.interval_mb * 1_000_000 / batch * batch,
        }
    }
}

/// Size and surroundings of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) worker: &'a Worker,
    pub(super) features: Features,
    pub(super) inputs: &'a Inputs,
    pub(super) scratch: &'a Path,
    /// Device that replaces those of the experiment.
    pub(super) device: Option<&'a str>,
    /// Most bytes of a dump; 0 for all.
    pub(super) bytes_of_each: u64,
    pub(super) repetitions: u32,
    pub(super) monitor: &'a dyn Monitor,
}

/// Repetitions of a way with some code.
struct Ran<'a> {
    device: &'a str,
    way: &'a Way,
    code: Code,
    runs: Vec<PipelineDone>,
}

impl Ran<'_> {
    fn total(run: &PipelineDone) -> Interval {
        let mut sum = Interval::default();
        run.intervals.iter().for_each(|interval| sum.add(interval));
        sum
    }

    fn samples(&self, of: fn(&Interval) -> f64) -> Samples {
        Samples(self.runs.iter().map(|run| of(&Self::total(run))).collect())
    }

    fn name(&self) -> String {
        format!("{}, {}, {}", self.device, self.way.name, self.code.name())
    }
}

/// Runs, and returns what to show.
pub(super) fn measure(spec: &DumpSpec, around: &Around<'_>) -> Result<Shown> {
    let mut shown = Shown::default();
    let Some(dumps) = around.inputs.files(&spec.dumps)? else {
        shown.notes.push(made_by(&spec.dumps));
        shown.claims = claims(spec, &[], Some(&made_by(&spec.dumps)));
        return Ok(shown);
    };
    let can_mask = codes(around.worker, around.features);
    let codes: Vec<_> = spec.codes.iter().copied().filter(|code| can_mask.contains(code)).collect();
    let devices: Vec<&str> =
        around.device.map_or_else(|| spec.devices.iter().map(String::as_str).collect(), |it| vec![it]);
    let mut all: Vec<Ran<'_>> = Vec::new();
    for device in &devices {
        for way in &spec.ways {
            all.extend(codes.iter().map(|code| Ran { device, way, code: *code, runs: Vec::new() }));
        }
    }
    for round in 0..around.repetitions as usize {
        for turn in 0..all.len() {
            let at = (round + turn) % all.len();
            let scratch = tempfile::Builder::new().prefix("onefold-lab-").tempdir_in(around.scratch);
            let scratch = scratch.with_context(|| around.scratch.display().to_string())?;
            let job = spec.job(&all[at], &dumps, around.bytes_of_each, scratch.path());
            let Done::Pipeline(done) = around.worker.perform(&Job::Pipeline(job), all[at].code, around.monitor)? else {
                bail!("the result of another job");
            };
            let rate = Ran::total(&done).rate();
            around.monitor.note(&format!("{}: {}: {rate:.0} MB/s", spec.name, all[at].name()));
            all[at].runs.push(done);
        }
    }
    check_equal(&all)?;
    let first = all.first().and_then(|ran| ran.runs.first()).context("no run")?;
    let bytes: u64 = first.dumps.iter().map(|dump| dump.bytes).sum();
    shown.notes = notes(spec, around, &devices.join(", "), bytes, &codes);
    shown.tables = tables(spec, first, &all);
    shown.plots = vec![sizes(first), rates(&all)];
    let is_small = float(bytes) / 1e9 < spec.gigabytes_min || first.dumps.len() < spec.dumps_min;
    let small = format!(
        "It needs at least {} dumps and {} GB; there were {} and {:.3}.",
        spec.dumps_min,
        spec.gigabytes_min,
        first.dumps.len(),
        float(bytes) / 1e9
    );
    shown.claims = claims(spec, &all, is_small.then_some(&*small));
    Ok(shown)
}

/// Fails if the unique blocks of a way depend on the code, or their number on the way.
fn check_equal(all: &[Ran<'_>]) -> Result<()> {
    let Some(first) = all.first().and_then(|ran| ran.runs.first()) else { return Ok(()) };
    let unique = |run: &PipelineDone| run.dumps.iter().map(|dump| (dump.unique, dump.unique_bytes)).collect::<Vec<_>>();
    for ran in all {
        let of_way =
            all.iter().find(|other| other.way == ran.way).and_then(|other| other.runs.first()).unwrap_or(first);
        for run in &ran.runs {
            let is_equal = run.checksum == of_way.checksum && unique(run) == unique(first);
            ensure!(
                is_equal,
                "{} does not find the same blocks new: this is a defect, or the dumps changed",
                ran.name()
            );
        }
    }
    Ok(())
}

fn notes(spec: &DumpSpec, around: &Around<'_>, devices: &str, bytes: u64, codes: &[Code]) -> Vec<String> {
    let cut = match around.bytes_of_each {
        0 => String::new(),
        most => format!(", of each at most {most} from its start"),
    };
    let mut notes = vec![
        format!(
            "{bytes} bytes of dumps{cut}; the preset {} on {devices}; {} and {}.",
            spec.preset,
            spec.hash.name(),
            spec.cipher.name()
        ),
        format!(
            "Rates are those of the server in one thread: naming, finding duplicates, encrypting, by processor time and the time of a modeled device. The client's compression \
             and reading the dumps count apart. Intervals of {} MB, rounded down to MiB.",
            spec.interval_mb
        ),
        format!("Code for hash and cipher: {}.", words_of_codes(codes)),
    ];
    notes.push(match around.repetitions {
        1 => "One run each: noise was not measured (--repeat).".to_owned(),
        count => format!("Each number is the median of {count} runs."),
    });
    notes
}

fn tables(spec: &DumpSpec, first: &PipelineDone, all: &[Ran<'_>]) -> Vec<Table> {
    let columns = ["dump", "MB", "zero blocks, %", "new blocks, %", "new, MB", "stored, MB", "ratio", "ratio so far"]
        .map(str::to_owned)
        .to_vec();
    let mut rows = Vec::new();
    let mut sum = Dump::default();
    for (number, dump) in (1..).zip(&first.dumps) {
        sum.bytes += dump.bytes;
        sum.stored_bytes += dump.stored_bytes;
        let percent = |part: u64| Cell::Number(100.0 * float(part) / float(dump.blocks.max(1)));
        let megabytes = |bytes: u64| Cell::Number(float(bytes) / 1e6);
        rows.push(vec![
            Cell::Count(number),
            megabytes(dump.bytes),
            percent(dump.zero_blocks),
            percent(dump.unique),
            megabytes(dump.unique_bytes),
            megabytes(dump.stored_bytes),
            Cell::of(ratio(dump), false),
            Cell::of(ratio(&sum), false),
        ]);
    }
    let stored = format!("Dumps, {} and metadata", spec.ways.first().map_or("", |way| &way.name));
    let columns_of_rates = [
        "device",
        "way",
        "code",
        "server, MB/s",
        "naming, s",
        "finding duplicates, s",
        "encrypting, s",
        "hits of the cache, %",
        "lookups",
        "client, MB/s",
        "paper, MB/s",
    ];
    let mut rows_of_rates = Vec::new();
    for ran in all {
        let number = |of: fn(&Interval) -> f64| Cell::of(ran.samples(of).median(), false);
        let published = spec.published.rates.filter(|_| (ran.way, ran.device) == (all[0].way, all[0].device));
        let published = match ran.code {
            Code::Instructions => published.map(|[with, _]| with),
            code => published.map(|[_, without]| without).filter(|_| spec.codes.last() == Some(&code)),
        };
        rows_of_rates.push(vec![
            Cell::Text(ran.device.to_owned()),
            Cell::Text(ran.way.name.clone()),
            Cell::Text(ran.code.name().to_owned()),
            number(Interval::rate),
            number(|it| it.hash),
            number(|it| it.identify),
            number(|it| it.encrypt),
            number(|it| 100.0 * it.hit_share()),
            Cell::of(ran.samples(|it| float(it.lookups)).median(), true),
            number(Interval::client_rate),
            Cell::of(published, false),
        ]);
    }
    vec![
        Table { title: stored, columns, rows },
        Table {
            title: "Throughput".to_owned(),
            columns: columns_of_rates.map(str::to_owned).to_vec(),
            rows: rows_of_rates,
        },
    ]
}

fn ratio(dump: &Dump) -> Option<f64> {
    (dump.stored_bytes != 0).then(|| float(dump.bytes) / float(dump.stored_bytes))
}

/// Original and stored size after each dump.
fn sizes(run: &PipelineDone) -> Plot {
    let (mut original, mut stored) = (vec![(0.0, 0.0)], vec![(0.0, 0.0)]);
    let mut sum = Dump::default();
    for (number, dump) in (1_u64..).zip(&run.dumps) {
        sum.bytes += dump.bytes;
        sum.stored_bytes += dump.stored_bytes;
        original.push((float(number), float(sum.bytes) / 1e9));
        stored.push((float(number), float(sum.stored_bytes) / 1e9));
    }
    let series = |name: &str, points| Series { name: name.to_owned(), is_published: false, points };
    Plot {
        title: "Original and stored size".to_owned(),
        x: axis("dumps", false),
        y: axis("GB", false),
        kind: PlotKind::Lines,
        series: vec![series("original", original), series("stored", stored)],
    }
}

/// Throughput of each interval, and the mean so far, of the first run.
fn rates(all: &[Ran<'_>]) -> Plot {
    let mut series = Vec::new();
    for ran in all {
        let Some(run) = ran.runs.first() else { continue };
        let (mut each, mut mean) = (Vec::new(), Vec::new());
        let mut sum = Interval::default();
        for interval in run.intervals.iter().filter(|interval| interval.bytes != 0) {
            sum.add(interval);
            let gigabytes = float(sum.bytes) / 1e9;
            each.push((gigabytes, interval.rate()));
            mean.push((gigabytes, sum.rate()));
        }
        series.push(Series { name: ran.name(), is_published: false, points: each });
        series.push(Series { name: format!("{}, mean", ran.name()), is_published: false, points: mean });
    }
    Plot {
        title: "Throughput of the server".to_owned(),
        x: axis("GB of dumps", false),
        y: axis("MB/s", false),
        kind: PlotKind::Lines,
        series,
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::coprocessor::kernel::noise;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    const FEATURES: Features = Features { sha: true, aes: true, can_be_masked: true };

    fn specs() -> [Box<DumpSpec>; 2] {
        ["dedupcdp-figure-11", "dedupcdp-figure-12"].map(|name| {
            let Experiment::Dumps(spec) = Experiment::named(name).unwrap() else { panic!("{name}") };
            spec
        })
    }

    #[test]
    fn small_dumps_have_sizes_and_rates_and_cannot_show_what_large_ones_do() {
        let dir = tempfile::tempdir().unwrap();
        let dumps = dir.path().join("dumps");
        std::fs::create_dir(&dumps).unwrap();
        let bytes = noise(3 << 20);
        for (name, from) in [("1", 0), ("2", 1 << 20), ("3", 0)] {
            std::fs::write(dumps.join(name), &bytes[from..from + (2 << 20)]).unwrap();
        }
        let worker = Worker::in_process();
        let around = |inputs| Around {
            worker: &worker,
            features: FEATURES,
            inputs,
            scratch: dir.path(),
            device: None,
            bytes_of_each: 0,
            repetitions: 2,
            monitor: &Silent,
        };
        let inputs = Inputs::parse(&[format!("dumps={}", dumps.display())]).unwrap();
        let none = Inputs::default();
        for spec in specs() {
            let shown = measure(&spec, &around(&inputs)).unwrap();
            let sizes = &shown.tables[0].rows;
            assert_eq!(sizes.len(), 3);
            assert_eq!(
                (&sizes[0][3], &sizes[1][3], &sizes[2][3]),
                (&Cell::Number(100.0), &Cell::Number(50.0), &Cell::Number(0.0))
            );
            assert_eq!(
                shown.tables[1].rows.len(),
                spec.devices.len() * spec.ways.len(),
                "without processes only one code is measured"
            );
            assert!(shown.claims.iter().all(|claim| claim.verdict == Verdict::CannotBeShown), "{:?}", shown.claims);
            assert!(
                shown.claims.iter().all(|claim| claim.remark.contains("at least 5 dumps and 0.5 GB; there were 3"))
            );
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
            let shown = measure(&spec, &around(&none)).unwrap();
            assert!(
                !shown.claims.is_empty() && shown.claims.iter().all(|claim| claim.verdict == Verdict::CannotBeShown)
            );
            assert!(shown.claims[0].remark.contains("memory-dumps"), "{:?}", shown.claims);
        }
    }

    /// Runs with code that takes so many times as long for hashing, and dumps of which the first has a share of what all store.
    fn ran(spec: &DumpSpec, rates: [f64; 2], stored: [u64; 2], hits: [u64; 2], false_positives: u64) -> Vec<Ran<'_>> {
        let run = |rate: f64| {
            let interval = |factor: f64, hits| Interval {
                bytes: 1_000_000,
                hash: factor / rate,
                lookups: 5,
                hits,
                ..Interval::default()
            };
            let dump = |stored_bytes| Dump { bytes: 500, stored_bytes, ..Dump::default() };
            // The faster half, then the slower half.
            let intervals = vec![interval(0.5, hits[0]), interval(1.5, hits[1])];
            PipelineDone {
                intervals,
                dumps: vec![dump(stored[0]), dump(stored[1])],
                false_positives,
                negatives: 1000,
                ..PipelineDone::default()
            }
        };
        let codes = [(spec.codes[0], rates[0]), (*spec.codes.last().unwrap(), rates[1])];
        codes
            .map(|(code, rate)| Ran { device: "hdd", way: &spec.ways[0], code, runs: vec![run(rate)] })
            .into_iter()
            .collect()
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        let [sizes, rates] = specs();
        let verdicts = |spec: &DumpSpec, all: &[Ran<'_>], missing| {
            claims(spec, all, missing).into_iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        let of =
            |stored, false_positives| verdicts(&sizes, &ran(&sizes, [1.0, 1.0], stored, [2, 1], false_positives), None);
        assert_eq!(of([80, 20], 1), [Verdict::Reproduced, Verdict::Holds, Verdict::Holds]);
        assert_eq!(of([20, 180], 100), [Verdict::NotReproduced, Verdict::DoesNotHold, Verdict::DoesNotHold]);
        let of = |of_rates, hits| verdicts(&rates, &ran(&rates, of_rates, [1, 1], hits, 0), None);
        let good =
            [Verdict::Reproduced, Verdict::Reproduced, Verdict::Reproduced, Verdict::Holds, Verdict::DoesNotHold];
        assert_eq!(of([192.0, 178.0], [9, 1]), good);
        let bad = [
            Verdict::NotReproduced,
            Verdict::NotReproduced,
            Verdict::NotReproduced,
            Verdict::DoesNotHold,
            Verdict::Holds,
        ];
        assert_eq!(of([1000.0, 500.0], [1, 9]), bad);
        assert_eq!(
            verdicts(&rates, &ran(&rates, [192.0, 178.0], [1, 1], [9, 1], 0), Some("small")),
            [Verdict::CannotBeShown; 5]
        );
    }

    #[test]
    fn unique_blocks_that_depend_on_the_code_are_a_defect() {
        let [_, spec] = specs();
        let mut all = ran(&spec, [1.0, 1.0], [1, 1], [1, 1], 0);
        check_equal(&all).unwrap();
        all[1].runs[0].dumps[0].unique = 7;
        assert!(check_equal(&all).unwrap_err().to_string().contains("this is a defect"));
    }
}
