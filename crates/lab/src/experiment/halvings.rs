//! Adaptive halving with a shared map, by tasks and smallest block: figures 5 and 6 of Sobe et al., "Parallel Processing for Data
//! Deduplication".

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::counts::float;
use crate::experiment::Size;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::{Bound, Samples};
use crate::findings::{Cell, Claim, Plot, PlotKind, Series, Table};
use crate::image::block::{BlockHash, BlockKeys, LEVEL_MAX, UNIT_BYTES, names_of};
use crate::image::first::FirstMap;
use crate::image::halving::{ByLevel, InMemory, Kept, Sums, halve, sums_of};
use crate::image::made::disk_image;

/// Bytes of the paper's image.
const FULL_BYTES: u64 = 1_070_000_000;
/// Largest image: it is in memory.
const MIB_MAX: u64 = 4 << 10;
/// Most tasks.
const TASKS_MAX: usize = 64;
/// A smaller minimum counts as slower if it takes at least this part of the time: the rest is noise.
const AS_SLOW: f64 = 0.95;
/// Efficiency that counts.
const EFFICIENT: f64 = 0.8;

/// An experiment on halving.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HalvingSpec {
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
    /// Shows seconds, or the efficiency of tasks.
    pub halving: Shows,
    /// Smallest blocks in KiB, from the largest on.
    pub minima: Vec<u64>,
    /// Numbers of tasks, 1 first.
    pub tasks: Vec<usize>,
    /// Ways, that of the paper first.
    pub ways: Vec<Way>,
    /// MB/s that the paper reaches.
    pub rate: f64,
    /// MiB of the image, with `--quick`.
    pub quick_mib: u64,
    /// The same by default.
    pub mib: u64,
}

/// Contents of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// Seconds.
    Seconds,
    /// Speedup divided by tasks.
    Efficiency,
}

/// A way to deduplicate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// MD5 of the blocks of each level, as in the paper.
    Md5,
    /// SHA-1 of them.
    Sha1,
    /// BLAKE3 of them.
    Blake3,
    /// The names of all levels from one pass.
    Tree,
    /// The same with maps behind 64 locks.
    TreeLocked,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5 by level",
            Self::Sha1 => "SHA-1 by level",
            Self::Blake3 => "BLAKE3 by level",
            Self::Tree => "tree names",
            Self::TreeLocked => "tree names, 64 maps with locks",
        }
    }

    fn run(self, image: &[u8], keys: &BlockKeys, level_min: u8, threads: usize) -> Result<Vec<Kept>> {
        let units = u32::try_from(image.len() / UNIT_BYTES)?;
        let by_level = |hash| {
            let map = FirstMap::Atomic;
            halve(&mut ByLevel { image, hash, keys, map, threads, hashed: 0 }, units, level_min)
        };
        let by_tree = |map| {
            let names = names_of(image, BlockHash::Tree, keys, level_min, threads);
            halve(&mut InMemory { names: &names, map, threads, zeros: None }, units, level_min)
        };
        match self {
            Self::Md5 => by_level(BlockHash::Md5),
            Self::Sha1 => by_level(BlockHash::Sha1),
            Self::Blake3 => by_level(BlockHash::Blake3),
            Self::Tree => by_tree(FirstMap::Atomic),
            Self::TreeLocked => by_tree(FirstMap::Locked),
        }
    }
}

fn level_of(minimum: u64) -> Option<u8> {
    (0..=LEVEL_MAX).find(|level| 1 << level == minimum)
}

impl HalvingSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(
            2 <= self.minima.len() && self.minima.is_sorted_by(|one, next| next < one),
            "minima: from the largest on"
        );
        ensure!(self.minima.iter().all(|minimum| level_of(*minimum).is_some()), "minima: 1, 2, 4 and so on up to 128");
        ensure!(self.tasks.first() == Some(&1) && self.tasks.is_sorted(), "tasks: from 1 on");
        ensure!(self.tasks.iter().all(|tasks| (1..=TASKS_MAX).contains(tasks)), "tasks: 1 to {TASKS_MAX}");
        ensure!(!self.ways.is_empty(), "no way is measured");
        ensure!(
            [self.mib, self.quick_mib].iter().all(|mib| (1..=MIB_MAX).contains(mib)),
            "an image has 1 to {MIB_MAX} MiB"
        );
        Ok(())
    }

    /// Returns the bytes of the image at a size.
    pub(super) fn bytes_at(&self, size: Size) -> u64 {
        match size {
            Size::Quick => self.quick_mib << 20,
            Size::Own => self.mib << 20,
            Size::Fraction(fraction) => FULL_BYTES / u64::from(fraction.max(1)),
        }
    }

    fn smallest(&self) -> u64 {
        self.minima.last().copied().unwrap_or(1)
    }

    /// Returns the numbers of tasks of which each has a processor.
    fn with_processors(&self, processors: usize) -> usize {
        self.tasks.iter().copied().filter(|tasks| *tasks <= processors).max().unwrap_or(1)
    }
}

/// Seconds by way, minimum and tasks, of each round.
type Seconds = HashMap<(Way, u64, usize), Samples>;

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &HalvingSpec,
    bytes: u64,
    rounds: u32,
    processors: usize,
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let block = UNIT_BYTES << LEVEL_MAX;
    let image = disk_image(usize::try_from(bytes)?.next_multiple_of(block), 1);
    let keys = BlockKeys::new(&[1; 32]);
    let (mut seconds, mut sums) = (Seconds::new(), Vec::new());
    for minimum in &spec.minima {
        let level = level_of(*minimum).unwrap_or_default();
        let mut expected: Option<Vec<Kept>> = None;
        for round in 0..rounds as usize {
            let runs: Vec<(Way, usize)> =
                spec.ways.iter().flat_map(|way| spec.tasks.iter().map(|tasks| (*way, *tasks))).collect();
            for turn in 0..runs.len() {
                ensure!(!monitor.is_interrupted(), Error::Interrupted);
                let (way, tasks) = runs[(round + turn) % runs.len()];
                let start = Instant::now();
                let kept = way.run(&image, &keys, level, tasks)?;
                let took = start.elapsed().as_secs_f64();
                let expected = expected.get_or_insert_with(|| kept.clone());
                ensure!(kept == *expected, "{}, {tasks} tasks: another result: this is a defect", way.name());
                seconds.entry((way, *minimum, tasks)).or_default().0.push(took);
            }
        }
        sums.push((*minimum, sums_of(&expected.unwrap_or_default())));
        monitor.note(&format!("{}: down to {minimum} KiB", spec.name));
    }
    let notes = vec![
        format!("An image of {} MiB, {} in the paper. Reading it does not count.", image.len() >> 20, FULL_BYTES >> 20),
        format!(
            "This machine has {processors} processors. Medians of {rounds} rounds, by the clock. All ways and numbers of tasks find the same blocks."
        ),
        "No device is used: the program has no map for devices yet.".to_owned(),
    ];
    let tables = vec![table(spec, &seconds, &image), table_of_sums(&sums, &image)];
    let claims = match spec.halving {
        Shows::Seconds => claims_on_seconds(spec, &seconds, image.len() as u64, processors),
        Shows::Efficiency => claims_on_efficiency(spec, &seconds, processors),
    };
    Ok(Shown { notes, tables, plots: vec![plot(spec, &seconds)], claims })
}

/// Returns the seconds of a run, or its efficiency.
fn shown_of(spec: &HalvingSpec, seconds: &Seconds, way: Way, minimum: u64, tasks: usize) -> Samples {
    let of = |tasks| seconds.get(&(way, minimum, tasks)).cloned().unwrap_or_default();
    match spec.halving {
        Shows::Seconds => of(tasks),
        Shows::Efficiency => {
            Samples(of(1).divided(&of(tasks)).0.into_iter().map(|times| times / float(tasks as u64)).collect())
        }
    }
}

fn unit(spec: &HalvingSpec) -> &'static str {
    if spec.halving == Shows::Seconds { "seconds" } else { "speedup / tasks" }
}

fn table(spec: &HalvingSpec, seconds: &Seconds, image: &[u8]) -> Table {
    let mut columns = vec!["way".to_owned(), "smallest block, KiB".to_owned()];
    columns.extend(spec.tasks.iter().map(|tasks| format!("{}, {tasks} tasks", unit(spec))));
    columns.push("MB/s, most tasks".to_owned());
    let mut rows = Vec::new();
    for way in &spec.ways {
        for minimum in &spec.minima {
            let cell = |tasks: &usize| Cell::of(shown_of(spec, seconds, *way, *minimum, *tasks).median(), false);
            let last = spec.tasks.last().and_then(|tasks| seconds.get(&(*way, *minimum, *tasks))?.median());
            let rate = last.map(|seconds| float(image.len() as u64) / 1e6 / seconds);
            let first = [Cell::Text(way.name().to_owned()), Cell::Count(*minimum)];
            rows.push(first.into_iter().chain(spec.tasks.iter().map(cell)).chain([Cell::of(rate, false)]).collect());
        }
    }
    Table { title: format!("Halving: {}", unit(spec)), columns, rows }
}

fn table_of_sums(sums: &[(u64, Sums)], image: &[u8]) -> Table {
    let columns =
        ["smallest block, KiB", "entries", "distinct blocks", "bytes of these / image", "entries without halving"];
    let units = float((image.len() / UNIT_BYTES) as u64);
    let row = |(minimum, sums): &(u64, Sums)| {
        let all = image.len() as u64 / (minimum << 10);
        let counts = [*minimum, sums.entries, sums.descriptors].map(Cell::Count);
        counts.into_iter().chain([Cell::Number(float(sums.units) / units), Cell::Count(all)]).collect()
    };
    let rows = sums.iter().map(row).collect();
    Table { title: "Blocks that halving keeps".to_owned(), columns: columns.map(str::to_owned).to_vec(), rows }
}

fn plot(spec: &HalvingSpec, seconds: &Seconds) -> Plot {
    let mut series = Vec::new();
    for (number, way) in spec.ways.iter().enumerate() {
        // All minima of the paper's way, and the smallest of the others.
        for minimum in spec.minima.iter().filter(|minimum| number == 0 || **minimum == spec.smallest()) {
            let at =
                |tasks: &usize| Some((float(*tasks as u64), shown_of(spec, seconds, *way, *minimum, *tasks).median()?));
            let name = format!("{}, {minimum} KiB", way.name());
            series.push(Series { name, is_published: false, points: spec.tasks.iter().filter_map(at).collect() });
        }
    }
    let (x, y) = (axis("tasks", false), axis(unit(spec), spec.halving == Shows::Seconds));
    Plot { title: spec.title.clone(), x, y, kind: PlotKind::Lines, series }
}

fn claim(what: String, bound: Bound, unprinted: &str, found: Samples, missing: Option<String>) -> Claim {
    Compared { what, bound, unprinted, found, missing, remark: "" }.claim()
}

fn claims_on_seconds(spec: &HalvingSpec, seconds: &Seconds, bytes: u64, processors: usize) -> Vec<Claim> {
    let Some(way) = spec.ways.first().copied() else { return Vec::new() };
    let of = |way, minimum, tasks| seconds.get(&(way, minimum, tasks)).cloned().unwrap_or_default();
    let (smallest, most) = (spec.smallest(), spec.with_processors(processors));
    let rates = |samples: Samples| Samples(samples.0.into_iter().map(|took| float(bytes) / 1e6 / took).collect());
    let largest = spec.minima.first().copied().unwrap_or(128);
    // The least ratio of two neighbors, in each round.
    let neighbors: Vec<Samples> =
        spec.minima.windows(2).map(|pair| of(way, pair[1], 1).divided(&of(way, pair[0], 1))).collect();
    let count = neighbors.iter().map(|samples| samples.0.len()).min().unwrap_or_default();
    let least = |round: usize| neighbors.iter().map(|samples| samples.0[round]).reduce(f64::min);
    let least = Samples((0..count).filter_map(least).collect());
    let mut claims = vec![
        claim(
            format!("MB/s down to {smallest} KiB with {}, {most} tasks", way.name()),
            Bound::AtLeast(spec.rate),
            "\"roughly 1 GByte in 30 seconds\" with 4 tasks",
            rates(of(way, smallest, most)),
            None,
        ),
        claim(
            format!(
                "Halving down to {smallest} KiB takes so many times as long as keeping {largest} KiB, {}",
                way.name()
            ),
            Bound::More,
            "\"a smaller minimum block size increases the computational cost\"",
            of(way, smallest, 1).divided(&of(way, largest, 1)),
            None,
        ),
        claim(
            format!("The same for each minimum against the one above: the least of these, {}", way.name()),
            Bound::AtLeast(AS_SLOW),
            "the curves do not cross",
            least,
            None,
        ),
    ];
    if spec.ways.contains(&Way::Tree) {
        let tree = of(Way::Tree, smallest, most);
        claims.push(claim(
            format!("{} takes so many times as long as tree names, down to {smallest} KiB, {most} tasks", way.name()),
            Bound::More,
            "ours",
            of(way, smallest, most).divided(&tree),
            None,
        ));
        if spec.ways.contains(&Way::TreeLocked) {
            claims.push(claim(
                format!("With locks the tree names take so many times as long, down to {smallest} KiB, {most} tasks"),
                Bound::More,
                "\"non-blocking access turned out to be the central point\"",
                of(Way::TreeLocked, smallest, most).divided(&tree),
                None,
            ));
        }
    }
    claims
}

fn claims_on_efficiency(spec: &HalvingSpec, seconds: &Seconds, processors: usize) -> Vec<Claim> {
    let smallest = spec.smallest();
    let mut claims = Vec::new();
    for way in &spec.ways {
        for tasks in spec.tasks.iter().filter(|tasks| 1 < **tasks) {
            let few = (processors < *tasks).then(|| format!("This machine has {processors} processors."));
            claims.push(claim(
                format!("Efficiency of {tasks} tasks down to {smallest} KiB, {}", way.name()),
                Bound::AtLeast(EFFICIENT),
                "\"well suited for parallel execution\"",
                shown_of(spec, seconds, *way, smallest, *tasks),
                few,
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    fn specs() -> [HalvingSpec; 2] {
        ["sobe-figure-5", "sobe-figure-6"].map(|name| {
            let Experiment::Halvings(spec) = Experiment::named(name).unwrap() else { panic!("{name}") };
            spec
        })
    }

    #[test]
    fn every_way_is_measured_and_finds_the_same_blocks() {
        for spec in specs() {
            let shown = measure(&spec, 1 << 20, 1, 2, &Silent).unwrap();
            assert_eq!(shown.tables[0].rows.len(), spec.ways.len() * spec.minima.len());
            let is_positive = |cell: &Cell| matches!(cell, Cell::Number(number) if 0.0 < *number);
            assert!(shown.tables[0].rows.iter().all(|row| row[2..].iter().all(is_positive)));
            assert_eq!(shown.tables[1].rows.len(), spec.minima.len());
        }
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        let [seconds_spec, efficiency_spec] = specs();
        // Time of `tasks` tasks with an efficiency, and by minimum with an exponent.
        let seconds_of = |exponent: f64, efficiency: f64, others: f64| {
            let mut seconds = Seconds::new();
            for way in &seconds_spec.ways {
                for minimum in &seconds_spec.minima {
                    for tasks in &seconds_spec.tasks {
                        let locked = if *way == Way::TreeLocked { others } else { 1.0 };
                        let way_factor = if *way == seconds_spec.ways[0] { others } else { locked };
                        let tasks_factor = if *tasks == 1 { 1.0 } else { float(*tasks as u64) * efficiency };
                        let took = way_factor * float(*minimum).powf(-exponent) / tasks_factor;
                        seconds.insert((*way, *minimum, *tasks), Samples(vec![took; 3]));
                    }
                }
            }
            seconds
        };
        let verdicts = |claims: Vec<Claim>| claims.into_iter().map(|claim| claim.verdict).collect::<Vec<_>>();
        let good = verdicts(claims_on_seconds(&seconds_spec, &seconds_of(0.2, 1.0, 2.0), 1_000_000_000, 4));
        assert!(good.len() == 5 && good.iter().all(|verdict| *verdict == Verdict::Holds), "{good:?}");
        let bad = verdicts(claims_on_seconds(&seconds_spec, &seconds_of(-0.2, 1.0, 0.5), 1_000, 4));
        assert!(bad.iter().all(|verdict| *verdict == Verdict::DoesNotHold), "{bad:?}");
        let efficient = |efficiency, processors| {
            verdicts(claims_on_efficiency(&efficiency_spec, &seconds_of(0.2, efficiency, 1.0), processors))
        };
        assert!(efficient(0.9, 4).iter().all(|verdict| *verdict == Verdict::Holds));
        assert!(efficient(0.7, 4).iter().all(|verdict| *verdict == Verdict::DoesNotHold));
        assert!(efficient(0.9, 1).iter().all(|verdict| *verdict == Verdict::CannotBeShown));
        let some = efficient(0.9, 2);
        assert!(some.contains(&Verdict::Holds) && some.contains(&Verdict::CannotBeShown));
    }
}
