//! Speed of chunking on several threads: figure 13 of Ma et al., "Lazy Exact Deduplication".

use anyhow::{Context, Result, ensure};
use onefold_engine::backup::cut::StreamCutter;
use onefold_engine::chunk::{ChunkSizes, Chunking, Cutter, GearTable};
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::chunkers::Algorithm;
use crate::counts::float;
use crate::experiment::device::{Accelerator, Rates, TITLE};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE, judge};
use crate::findings::{Axis, Cell, Claim, Plot, PlotKind, Series, Table};
use crate::point::dimension::unknown;
use crate::together::{THREADS_MAX, Taken, processors, together};

/// Bytes that a thread cuts again and again: more than its cache.
const NOISE_BYTES: usize = 16 << 20;
/// Bytes that a cutter is given at a time, as in a recording.
const BLOCK_BYTES: usize = 1 << 20;

/// An experiment on chunking.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChunkingSpec {
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
    /// Chunkers of the laboratory, by name.
    pub chunkers: Vec<String>,
    /// Average of chunks in bytes.
    pub average: u32,
    /// Numbers of threads, from one on.
    pub threads: Vec<usize>,
    /// Numbers that the paper prints.
    #[serde(default)]
    pub published: Vec<SpeedUp>,
    /// MiB that each thread cuts, with `--quick`.
    pub quick_mib: usize,
    /// The same by default.
    pub mib: usize,
}

/// A number that the paper prints.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SpeedUp {
    /// The chunker.
    pub chunker: String,
    /// Threads.
    pub threads: usize,
    /// Cores of the paper's machine.
    pub cores: usize,
    /// Speed, compared with one thread.
    pub times: f64,
}

const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::Gear,
    Algorithm::Rabin,
    Algorithm::FastCdc,
    Algorithm::Ae,
    Algorithm::Ram,
    Algorithm::Tttd,
    Algorithm::SeqCdc,
    Algorithm::DestorRabin,
];

impl ChunkingSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(self.threads.first() == Some(&1), "threads: from one on");
        ensure!(
            self.threads.iter().all(|threads| (1..=THREADS_MAX).contains(threads)),
            "threads: at most {THREADS_MAX}"
        );
        ensure!(self.mib != 0 && self.quick_mib != 0, "nothing is cut");
        self.algorithms().map(drop)
    }

    fn algorithms(&self) -> Result<Vec<Algorithm>> {
        self.chunkers.iter().map(|name| named(name, self.average)).collect()
    }
}

/// Returns the chunker of this name, if it can cut chunks of this average.
pub(super) fn named(name: &str, average: u32) -> Result<Algorithm> {
    let found = ALGORITHMS.into_iter().find(|algorithm| algorithm.name() == name);
    let found = found.ok_or_else(|| unknown("chunker", name, ALGORITHMS.iter().map(|algorithm| algorithm.name())))?;
    found.check_average(average)?;
    Ok(found)
}

/// Speeds in MB/s: for each chunker, at each number of threads.
#[derive(Debug)]
pub(super) struct Speeds {
    pub(super) tables: Vec<Table>,
    pub(super) plots: Vec<Plot>,
    pub(super) claims: Vec<Claim>,
}

/// Cuts, and returns what to show.
pub(super) fn measure(
    spec: &ChunkingSpec,
    mebibytes: usize,
    repetitions: u32,
    accelerator: &Accelerator,
    monitor: &dyn Monitor,
) -> Result<Speeds> {
    let processors = processors();
    let columns =
        ["chunker", "threads", "MB/s", "times one thread", "processor seconds per GB"].map(str::to_owned).to_vec();
    let mut table = Table { title: "Figure 13".to_owned(), columns, rows: Vec::new() };
    let (mut series, mut claims, mut gear) = (Vec::new(), Vec::new(), None);
    for algorithm in spec.algorithms()? {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut curve = Vec::new();
        for &threads in &spec.threads {
            if monitor.is_interrupted() {
                return Err(onefold_engine::Error::Interrupted.into());
            }
            let (mut speeds, mut costs) = (Samples::default(), Samples::default());
            for _ in 0..repetitions.max(1) {
                let taken = cut(algorithm, spec.average, threads, mebibytes)?;
                speeds.0.push(taken.rate());
                costs.0.push(taken.processor_per_gigabyte());
            }
            let speed = speeds.median().context("a chunker without a run")?;
            curve.push((float(threads as u64), speeds));
            monitor.note(&format!("{}: {}, {threads} threads: {speed:.0} MB/s", spec.name, algorithm.name()));
            points.push((float(threads as u64), speed));
            let single = points.first().map_or(speed, |(_, single)| *single);
            table.rows.push(vec![
                Cell::Text(algorithm.name().to_owned()),
                Cell::Count(threads as u64),
                Cell::Number(speed),
                Cell::Number(speed / single),
                Cell::of(costs.median(), false),
            ]);
        }
        if algorithm == Algorithm::Gear {
            gear = points.first().map(|(_, single)| *single);
        }
        claims.extend(growth(spec, algorithm, &curve, processors));
        series.push(Series { name: algorithm.name().to_owned(), is_published: false, points });
    }
    table.rows.push(on_device(&accelerator.boundaries(spec.average, repetitions)?, gear, accelerator));
    let axis = |title: &str| Axis { title: title.to_owned(), is_logarithmic: false, names: Vec::new() };
    let plot =
        Plot { title: "Chunking".to_owned(), x: axis("threads"), y: axis("MB/s"), kind: PlotKind::Lines, series };
    Ok(Speeds { tables: vec![table], plots: vec![plot], claims })
}

/// Returns the row of Gear on a device, compared with one thread.
fn on_device(Rates { rates, costs }: &Rates, single: Option<f64>, accelerator: &Accelerator) -> Vec<Cell> {
    let names = [Cell::Text(Algorithm::Gear.name().to_owned()), Cell::Text(TITLE.to_owned())];
    let Some(median) = rates.median() else { return names.into_iter().chain(accelerator.empty_cells(3)).collect() };
    let numbers = [Some(median), single.map(|single| median / single), costs.median()];
    names.into_iter().chain(numbers.map(|number| Cell::of(number, false))).collect()
}

/// Claims how a chunker's speed grows with the threads, up to the number of processors.
fn growth(spec: &ChunkingSpec, algorithm: Algorithm, curve: &[(f64, Samples)], processors: usize) -> Vec<Claim> {
    let of_threads = |threads: f64| curve.iter().find(|(at, _)| (at - threads).abs() < 0.5).map(|(_, speeds)| speeds);
    let Some(single) = of_threads(1.0) else { return Vec::new() };
    let mut claims = Vec::new();
    let mut claim = |what: String, bound: &Bound, unprinted: &str, found: Samples, can_be_shown: bool, remark: &str| {
        let judged = judge(bound, &found, false, can_be_shown);
        let remark = if can_be_shown { judged.noise.clone().unwrap_or_default() } else { remark.to_owned() };
        let (published, found) = (bound.words(unprinted), found.words());
        claims.push(Claim {
            what,
            published,
            found,
            verdict: judged.verdict,
            can_flip: judged.noise.is_some(),
            remark,
        });
    };
    let full = float(processors as u64).min(curve.iter().map(|(threads, _)| *threads).fold(1.0, f64::max));
    let best = Samples::each(curve, |curve| {
        curve.iter().filter(|(at, _)| *at <= full).map(|(_, speed)| *speed).reduce(f64::max)
    });
    let what = format!("{} with {full} threads is so many times as fast as with one", algorithm.name());
    claim(
        what,
        &Bound::AtLeast(0.7 * full),
        "about linear, up to the number of cores",
        best.divided(single),
        1.0 < full,
        "",
    );
    for SpeedUp { chunker, threads, cores, times } in &spec.published {
        if chunker != algorithm.name() {
            continue;
        }
        let Some(speeds) = of_threads(float(*threads as u64)) else { continue };
        let what = format!("{chunker} with {threads} threads is so many times as fast as with one");
        let bound = Bound::ratio(*times, *times, TOLERANCE);
        let remark = format!("The paper's machine has {cores} cores, this one {processors}.");
        claim(what, &bound, "", speeds.divided(single), *cores <= processors, &remark);
    }
    claims
}

/// Cuts `mebibytes` MiB in each of so many threads.
pub(super) fn cut(algorithm: Algorithm, average: u32, threads: usize, mebibytes: usize) -> Result<Taken> {
    let blocks = (mebibytes << 20) / BLOCK_BYTES;
    let prepare = |number: usize| {
        let mut noise = vec![0; NOISE_BYTES];
        blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut noise);
        Ok(noise)
    };
    let work = |noise: Vec<u8>| {
        let mut cutter = cutter(algorithm, average);
        let (mut cuts, mut chunks) = (Vec::new(), 0);
        for block in noise.chunks(BLOCK_BYTES).cycle().take(blocks) {
            cuts.clear();
            cutter.advance(block, &mut cuts);
            chunks += cuts.len();
        }
        ensure!(chunks != 0, "{} cut nothing", algorithm.name());
        Ok((blocks * BLOCK_BYTES) as u64)
    };
    together(threads, prepare, work)
}

fn cutter(algorithm: Algorithm, average: u32) -> Box<dyn StreamCutter> {
    algorithm.cutter(algorithm.sizes(average)).unwrap_or_else(|| Box::new(GearCutter::new(average)))
}

/// The engine's own: candidates by its kernel, then cuts.
#[derive(Debug)]
struct GearCutter {
    table: GearTable,
    cutter: Cutter,
    candidates: Vec<u32>,
}

impl GearCutter {
    fn new(average: u32) -> Self {
        let sizes = ChunkSizes::for_average(average);
        let table = GearTable::expand(&crate::chunkers::OPEN_KEY, sizes);
        Self { table, cutter: Cutter::new(Chunking::Gear(sizes)), candidates: Vec::new() }
    }
}

impl StreamCutter for GearCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        self.candidates.clear();
        // The bytes before a block are missing, so a few candidates at its start differ. The speed is the same.
        self.table.candidates(bytes, 0, &mut self.candidates);
        let mut ends = Vec::new();
        self.cutter.advance(u32::try_from(bytes.len()).expect("a block"), &self.candidates, &mut ends);
        cuts.extend(ends.into_iter().map(i64::from));
    }

    fn finish(&mut self) {
        self.cutter.finish();
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::device::tests::{host, none};
    use crate::findings::Verdict;

    #[test]
    fn every_chunker_has_a_speed_at_every_number_of_threads() {
        let spec = ChunkingSpec {
            name: String::new(),
            title: String::new(),
            source: String::new(),
            notes: Vec::new(),
            chunkers: ALGORITHMS.iter().map(|algorithm| algorithm.name().to_owned()).collect(),
            average: 4096,
            threads: vec![1, 3],
            published: vec![SpeedUp { chunker: "rabin".to_owned(), threads: 3, cores: 1_000, times: 2.0 }],
            quick_mib: 1,
            mib: 2,
        };
        spec.check().unwrap();
        let Speeds { tables, plots, claims } = measure(&spec, 2, 2, &none(), &Silent).unwrap();
        assert_eq!((tables[0].rows.len(), claims.len()), (2 * ALGORITHMS.len() + 1, ALGORITHMS.len() + 1));
        assert!(tables[0].rows.iter().all(|row| row.len() == tables[0].columns.len()));
        assert_eq!(
            claims
                .iter()
                .filter(|claim| claim.verdict == Verdict::CannotBeShown && claim.remark.contains("1000 cores"))
                .count(),
            1
        );
        assert!(plots[0].series.iter().all(|series| series.points.iter().all(|(_, speed)| 1.0 < *speed)));
        let absent = [Cell::Text("no device".to_owned()), Cell::Empty(()), Cell::Empty(())];
        assert_eq!(tables[0].rows.last().unwrap()[2..], absent);
        let only_gear = ChunkingSpec { chunkers: vec!["gear".to_owned()], published: Vec::new(), ..spec.clone() };
        let on_device = measure(&only_gear, 1, 2, &host(), &Silent).unwrap().tables.remove(0).rows.pop().unwrap();
        assert_eq!(on_device[1], Cell::Text(TITLE.to_owned()));
        assert!(on_device[2..4].iter().all(|cell| matches!(cell, Cell::Number(it) if 0.0 < *it)), "{on_device:?}");
        let refused = |spec: ChunkingSpec| spec.check().unwrap_err().to_string();
        let unknown = ChunkingSpec { chunkers: vec!["rabbin".to_owned()], ..spec.clone() };
        assert!(refused(unknown).contains("did you mean \"rabin\""));
        assert_eq!(refused(ChunkingSpec { threads: vec![2], ..spec }), "threads: from one on");
    }
}
