//! Steps of backward referencing and of hash-map referencing, counted: table 1 of Sobe et al., "Parallel Processing for Data Deduplication".

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use onefold_engine::monitor::Monitor;
use onefold_engine::random::SplitMix64;
use serde::Deserialize;

use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::{Bound, Samples};
use crate::findings::{Cell, Plot, PlotKind, Series, Table};
use crate::image::backward::{self, Steps};
use crate::image::block::{BlockHash, BlockKeys, Name, UNIT_BYTES, names_of_blocks};
use crate::image::first::{FirstMap, first_in_parts};
use crate::image::made::disk_image;
use crate::image::parallel::for_all;

/// Most blocks: all pairs are visited four times.
const COUNT_MAX: usize = 1 << 16;
/// Most tasks.
const TASKS_MAX: usize = 64;
/// The paper's number of steps of several tasks is an approximation: it may be so far away.
const APPROXIMATION: f64 = 1.05;

/// An experiment that counts steps.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StepSpec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper and table that it reproduces.
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Numbers of blocks.
    pub counts: Vec<usize>,
    /// The same with `--quick`.
    pub quick_counts: Vec<usize>,
    /// Numbers of tasks, 1 among them.
    pub processors: Vec<usize>,
    /// Remark on numbers that differ.
    pub remark: String,
}

impl StepSpec {
    /// Refuses what cannot be counted.
    pub fn check(&self) -> Result<()> {
        let counts = || self.counts.iter().chain(&self.quick_counts);
        ensure!(!self.counts.is_empty() && !self.quick_counts.is_empty(), "no blocks are counted");
        ensure!(counts().all(|count| (2..=COUNT_MAX).contains(count)), "counts: 2 to {COUNT_MAX}");
        ensure!(self.processors.first() == Some(&1), "processors: 1 comes first");
        ensure!(self.processors.iter().all(|tasks| (1..=TASKS_MAX).contains(tasks)), "processors: 1 to {TASKS_MAX}");
        Ok(())
    }
}

/// Steps of an algorithm: those that were counted, and those that the paper's formula has.
#[derive(Clone, Copy, Debug)]
struct Row {
    is_map: bool,
    count: usize,
    tasks: usize,
    hashing: u64,
    rest: u64,
    stated: u64,
}

impl Row {
    fn total(&self) -> u64 {
        self.hashing + self.rest
    }

    fn ratio(&self) -> f64 {
        float(self.total()) / float(self.stated)
    }
}

/// Names blocks on several tasks. Returns the names, and the most blocks that a task has named.
fn hash(image: &[u8], keys: &BlockKeys, tasks: usize) -> (Vec<Name>, u64) {
    let count = image.len() / UNIT_BYTES;
    let share = count.div_ceil(tasks);
    let mut names = vec![Name::default(); count];
    let most = AtomicU64::new(0);
    let parts = image.chunks(share * UNIT_BYTES).zip(names.chunks_mut(share));
    for_all(parts, tasks, |(blocks, names)| {
        let mut steps = 0;
        for (block, name) in blocks.chunks_exact(UNIT_BYTES).zip(names) {
            names_of_blocks(&[block], BlockHash::Md5, keys, 1, std::slice::from_mut(name));
            steps += 1;
        }
        most.fetch_max(steps, Ordering::Relaxed);
    });
    (names, most.into_inner())
}

/// Enters names into a map on several tasks. Returns the references, and the most names that a task has entered.
fn enter(names: &[Name], tasks: usize) -> Result<(Vec<u32>, u64)> {
    let positions: Vec<u32> = (0..u32::try_from(names.len())?).collect();
    let share = names.len().div_ceil(tasks);
    let found = first_in_parts(FirstMap::Atomic, names, &positions, tasks, share);
    let most = positions.chunks(share).map(<[u32]>::len).max().unwrap_or_default();
    ensure!(positions.chunks(share).len() <= tasks, "each task enters one part");
    Ok((found.into_iter().map(|found| found.first).collect(), most as u64))
}

/// Counts the steps of both algorithms.
fn rows_of(image: &[u8], tasks: usize) -> Result<[Row; 2]> {
    let keys = BlockKeys::new(&[0; 32]);
    let (names, hashing) = hash(image, &keys, tasks);
    let count = names.len();
    let mut steps = Steps::default();
    let (back, numbers) = if tasks == 1 {
        let back = backward::as_in_paper(&names, &mut steps);
        let numbers = backward::renumber_as_in_paper(&back, &mut steps);
        (back, numbers)
    } else {
        let back = backward::in_rounds(&names, tasks, &mut steps);
        let numbers = backward::renumber_in_rounds(&back, tasks, &mut steps);
        (back, numbers)
    };
    let (first, entered) = enter(&names, tasks)?;
    ensure!(first == back && backward::renumber(&back) == numbers, "the algorithms differ: this is a defect");
    let (n, p) = (count as u64, tasks as u64);
    let stated = if tasks == 1 { n + n * (n - 1) } else { n.div_ceil(p) + n * (n - 1).div_ceil(p) };
    let row = Row { is_map: false, count, tasks, hashing, rest: steps.indexing + steps.reindexing, stated };
    Ok([row, Row { is_map: true, rest: entered, stated: 2 * n.div_ceil(p), ..row }])
}

/// Counts, and returns what to show.
pub(super) fn measure(spec: &StepSpec, counts: &[usize], monitor: &dyn Monitor) -> Result<Shown> {
    let mut rows = Vec::new();
    for count in counts {
        let image = disk_image(count * UNIT_BYTES, SplitMix64::new(*count as u64).next_u64());
        for tasks in &spec.processors {
            rows.extend(rows_of(&image, *tasks)?);
        }
        monitor.note(&format!("{}: {count} blocks", spec.name));
    }
    let columns =
        ["algorithm", "blocks", "tasks", "hashing", "comparing or entering", "total", "paper", "times the paper's"];
    let cells = |row: &Row| {
        let name = if row.is_map { "hash-map referencing" } else { "backward referencing" };
        let counts = [row.count as u64, row.tasks as u64, row.hashing, row.rest, row.total(), row.stated];
        let counts = counts.into_iter().map(Cell::Count);
        std::iter::once(Cell::Text(name.to_owned())).chain(counts).chain([Cell::Number(row.ratio())]).collect()
    };
    let table = Table {
        title: "Steps of the task that has the most".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    };
    Ok(Shown {
        notes: vec!["Both algorithms find the same references with any number of tasks.".to_owned()],
        tables: vec![table],
        plots: vec![plot(spec, &rows)],
        claims: claims(spec, &rows),
    })
}

fn plot(spec: &StepSpec, rows: &[Row]) -> Plot {
    let mut series = Vec::new();
    for (is_map, name) in [(false, "backward referencing"), (true, "hash-map referencing")] {
        for tasks in &spec.processors {
            let own = || rows.iter().filter(|row| row.is_map == is_map && row.tasks == *tasks);
            let points =
                |steps: fn(&Row) -> u64| own().map(|row| (float(row.count as u64), float(steps(row)))).collect();
            let name = format!("{name}, {tasks} tasks");
            series.push(Series {
                name: format!("{name}, paper"),
                is_published: true,
                points: points(|row| row.stated),
            });
            series.push(Series { name, is_published: false, points: points(Row::total) });
        }
    }
    let (x, y) = (axis("blocks", true), axis("steps", true));
    Plot { title: spec.title.clone(), x, y, kind: PlotKind::Lines, series }
}

/// The number that is farthest from 1.
fn farthest(ratios: impl Iterator<Item = f64>) -> Samples {
    let distance = |ratio: f64| ratio.max(1.0 / ratio);
    Samples(ratios.reduce(|one, other| if distance(one) < distance(other) { other } else { one }).into_iter().collect())
}

fn claims(spec: &StepSpec, rows: &[Row]) -> Vec<crate::findings::Claim> {
    let exact = Bound::Within { stated: (1.0, 1.0), counts: (1.0, 1.0) };
    let cases: [(&str, bool, bool, Bound); 4] = [
        ("backward referencing takes n + 2 n (n - 1) / 2 steps", false, false, exact.clone()),
        (
            "backward referencing with p tasks takes ceil(n / p) + 2 n ceil((n - 1) / p) / 2 steps",
            false,
            true,
            Bound::value(1.0, APPROXIMATION),
        ),
        ("hash-map referencing takes 2 n steps", true, false, exact.clone()),
        ("hash-map referencing with p tasks takes 2 ceil(n / p) steps", true, true, exact),
    ];
    let claim = |(what, is_map, has_tasks, bound): (&str, bool, bool, Bound)| {
        let own = rows.iter().filter(|row| row.is_map == is_map && (1 < row.tasks) == has_tasks);
        Compared {
            what: format!("{what}: so many times as many were counted, where they differ most"),
            bound,
            unprinted: "",
            found: farthest(own.map(Row::ratio)),
            missing: None,
            remark: &spec.remark,
        }
        .claim()
    };
    cases.into_iter().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    fn spec() -> StepSpec {
        let Experiment::Steps(spec) = Experiment::named("sobe-table-1").unwrap() else { panic!("no steps") };
        spec
    }

    #[test]
    fn counted_steps_are_those_of_the_paper() {
        let spec = spec();
        let shown = measure(&spec, &spec.quick_counts, &Silent).unwrap();
        assert_eq!(shown.tables[0].rows.len(), 2 * spec.quick_counts.len() * spec.processors.len());
        assert!(shown.claims.iter().all(|claim| claim.verdict == Verdict::Reproduced), "{:?}", shown.claims);
    }

    #[test]
    fn each_claim_can_fail() {
        let spec = spec();
        for (is_map, tasks) in [(false, 1), (false, 4), (true, 1), (true, 4)] {
            for rest in [100, 106] {
                let row = Row { is_map, count: 10, tasks, hashing: 0, rest, stated: 100 };
                let all = claims(&spec, &[row]);
                let shown: Vec<_> = all.iter().filter(|claim| claim.verdict != Verdict::CannotBeShown).collect();
                let wanted = if rest == 100 { Verdict::Reproduced } else { Verdict::NotReproduced };
                assert!(shown.len() == 1 && shown[0].verdict == wanted, "{all:?}");
            }
        }
    }
}
