//! Backward referencing against a map, by number of blocks: figure 4 of Sobe et al., "Parallel Processing for Data Deduplication".

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use onefold_accel::device::Fault;
use onefold_accel::device::cuda::{References, self_test, with_references};
use onefold_engine::monitor::Monitor;
use onefold_engine::random::SplitMix64;
use serde::Deserialize;

use crate::counts::float;
use crate::experiment::Size;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::TOLERANCE;
use crate::experiment::verdict::{Bound, Samples};
use crate::findings::{Cell, Plot, PlotKind, Series, Table};
use crate::image::backward::{self, Planes, Steps};
use crate::image::block::Name;
use crate::image::first::{FirstMap, first_of};

/// Most blocks that are compared as the paper describes it, without stopping at the first equal one.
const PAPER_COUNT_MAX: usize = 1 << 14;
/// Names of the paper's image: 1.07 GB in blocks of 1 KiB.
const FULL_COUNT: usize = 1_044_922;
/// Most blocks.
const COUNT_MAX: usize = 1 << 24;
/// One of so many blocks is equal to an earlier one.
const DUPLICATES: usize = 4;

/// An experiment on ways to find references.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReferenceSpec {
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
    /// Ways.
    pub referencing: Vec<Way>,
    /// Numbers of blocks, each four times the one before.
    pub counts: Vec<usize>,
    /// The same with `--quick`.
    pub quick_counts: Vec<usize>,
    /// CTAs of launches on a device.
    pub ctas: Vec<u32>,
    /// Least speedup of a device.
    pub device_speedup: f64,
}

/// A way to find references.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// All pairs, as the paper describes it.
    Paper,
    /// Up to the first equal one.
    Sequential,
    /// The same on all processors.
    Threads,
    /// A map of atomic numbers, on one thread.
    Map,
    /// The same on all processors.
    MapThreads,
    /// A map behind 64 locks, on all processors.
    Locked,
    /// All pairs on a device, with transfers.
    Device,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Paper => "all pairs",
            Self::Sequential => "backward",
            Self::Threads => "backward, threads",
            Self::Map => "map",
            Self::MapThreads => "map, threads",
            Self::Locked => "64 maps with locks, threads",
            Self::Device => "device",
        }
    }
}

impl ReferenceSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        for counts in [&self.counts, &self.quick_counts] {
            ensure!(2 <= counts.len(), "two numbers of blocks at least");
            ensure!(counts.iter().all(|count| (256..=COUNT_MAX).contains(count)), "counts: 256 to {COUNT_MAX}");
            let grow = counts.windows(2).all(|pair| pair[1] == 4 * pair[0]);
            ensure!(grow, "each number of blocks is four times the one before");
        }
        ensure!(!self.ctas.is_empty(), "CTAs of launches on a device");
        let has = |way| self.referencing.contains(&way);
        ensure!(has(Way::Sequential) && has(Way::Threads) && has(Way::Map), "sequential, threads and map are compared");
        Ok(())
    }
}

impl ReferenceSpec {
    /// Returns the numbers of blocks at a size: with a fraction, so many as the paper has at most.
    pub(super) fn counts_at(&self, size: Size) -> Vec<usize> {
        match size {
            Size::Quick => self.quick_counts.clone(),
            Size::Own => self.counts.clone(),
            Size::Fraction(fraction) => {
                let least = (FULL_COUNT / fraction.max(1) as usize / 256).max(256);
                [1, 4, 16, 64, 256].map(|times| times * least).to_vec()
            }
        }
    }
}

/// Seconds by way, CTAs and number of blocks, of each round.
type Seconds = HashMap<(Way, u32, usize), Samples>;

/// Makes names of which a part repeats an earlier one.
pub(crate) fn names(count: usize) -> Vec<Name> {
    let mut random = SplitMix64::new(count as u64);
    let mut names: Vec<Name> = Vec::with_capacity(count);
    while names.len() < count {
        let repeats = !names.is_empty() && random.index(DUPLICATES) == 0;
        let name = if repeats {
            names[random.index(names.len())]
        } else {
            let mut name = Name::default();
            name.as_chunks_mut::<8>().0.iter_mut().for_each(|half| *half = random.next_u64().to_le_bytes());
            name
        };
        names.push(name);
    }
    names
}

fn measure_once(
    way: Way,
    ctas: u32,
    names: &[Name],
    threads: usize,
    device: Option<&References>,
) -> Result<(Vec<u32>, f64)> {
    let positions: Vec<u32> = (0..u32::try_from(names.len())?).collect();
    let planes = Planes::of(names);
    let words = if way == Way::Device { planes.words() } else { Vec::new() };
    let map = |map, threads| first_of(map, names, &positions, threads).into_iter().map(|found| found.first).collect();
    let start = Instant::now();
    let back: Vec<u32> = match way {
        Way::Paper => backward::as_in_paper(names, &mut Steps::default()),
        Way::Sequential => backward::sequential(&planes),
        Way::Threads => backward::by_threads(&planes, threads),
        Way::Map => map(FirstMap::Atomic, 1),
        Way::MapThreads => map(FirstMap::Atomic, threads),
        Way::Locked => map(FirstMap::Locked, threads),
        Way::Device => match device {
            Some(device) => device.backward(&words, ctas)?,
            None => Vec::new(),
        },
    };
    Ok((back, start.elapsed().as_secs_f64()))
}

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &ReferenceSpec,
    counts: &[usize],
    rounds: u32,
    threads: usize,
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let tested = self_test(0);
    let on_device = |device: Option<&References>| measure_all(spec, counts, rounds, (threads, device), monitor);
    let (seconds, device) = match tested {
        Err(fault) => (on_device(None)?, Err(fault)),
        Ok(about) => (with_references(0, |_, references| on_device(Some(references)))??, Ok(about)),
    };
    let note = match &device {
        Ok(about) => format!("Device: {}, with transfers.", about.name),
        Err(fault) => format!("No device: {fault}."),
    };
    let note_rounds =
        format!("{threads} threads. Medians of {rounds} rounds, by the clock. All ways find the same references.");
    Ok(Shown {
        notes: vec![note_rounds, note],
        tables: vec![table(spec, counts, &seconds)],
        plots: vec![plot(spec, counts, &seconds)],
        claims: claims(spec, counts, &seconds, threads, device.err().as_ref()),
    })
}

/// Returns the ways with the CTAs of their launches.
fn ways(spec: &ReferenceSpec) -> Vec<(Way, u32)> {
    let of = |way: &Way| {
        if *way == Way::Device { spec.ctas.iter().map(|ctas| (*way, *ctas)).collect() } else { vec![(*way, 0)] }
    };
    spec.referencing.iter().flat_map(of).collect()
}

fn measure_all(
    spec: &ReferenceSpec,
    counts: &[usize],
    rounds: u32,
    (threads, device): (usize, Option<&References>),
    monitor: &dyn Monitor,
) -> Result<Seconds> {
    let mut seconds = Seconds::new();
    for count in counts {
        let names = names(*count);
        let mut expected = None;
        for round in 0..rounds as usize {
            let ways: Vec<(Way, u32)> = ways(spec)
                .into_iter()
                .filter(|(way, _)| device.is_some() || *way != Way::Device)
                .filter(|(way, _)| *count <= PAPER_COUNT_MAX || *way != Way::Paper)
                .collect();
            for turn in 0..ways.len() {
                ensure!(!monitor.is_interrupted(), onefold_engine::Error::Interrupted);
                let (way, ctas) = ways[(round + turn) % ways.len()];
                let (back, took) = measure_once(way, ctas, &names, threads, device)?;
                let expected = expected.get_or_insert_with(|| back.clone());
                ensure!(back == *expected, "{}: other references than those before: this is a defect", way.name());
                seconds.entry((way, ctas, *count)).or_default().0.push(took);
            }
        }
        monitor.note(&format!("{}: {count} blocks", spec.name));
    }
    Ok(seconds)
}

fn title(way: Way, ctas: u32) -> String {
    if way == Way::Device { format!("device, {ctas} CTAs of 256 threads") } else { way.name().to_owned() }
}

fn table(spec: &ReferenceSpec, counts: &[usize], seconds: &Seconds) -> Table {
    let mut columns = vec!["blocks".to_owned()];
    columns.extend(ways(spec).iter().map(|(way, ctas)| format!("{}, s", title(*way, *ctas))));
    let row = |count: &usize| {
        let cell =
            |(way, ctas): &(Way, u32)| Cell::of(seconds.get(&(*way, *ctas, *count)).and_then(Samples::median), false);
        std::iter::once(Cell::Count(*count as u64)).chain(ways(spec).iter().map(cell)).collect()
    };
    Table { title: "Seconds to find all references".to_owned(), columns, rows: counts.iter().map(row).collect() }
}

fn plot(spec: &ReferenceSpec, counts: &[usize], seconds: &Seconds) -> Plot {
    let series = ways(spec).into_iter().filter_map(|(way, ctas)| {
        let at = |count: &usize| Some((float(*count as u64), seconds.get(&(way, ctas, *count))?.median()?));
        let points: Vec<_> = counts.iter().filter_map(at).collect();
        (!points.is_empty()).then(|| Series { name: title(way, ctas), is_published: false, points })
    });
    let (x, y) = (axis("blocks", true), axis("seconds", true));
    Plot { title: spec.title.clone(), x, y, kind: PlotKind::Lines, series: series.collect() }
}

fn claims(
    spec: &ReferenceSpec,
    counts: &[usize],
    seconds: &Seconds,
    threads: usize,
    fault: Option<&Fault>,
) -> Vec<crate::findings::Claim> {
    let of = |way, count: usize| seconds.get(&(way, 0, count)).cloned().unwrap_or_default();
    let most = counts.last().copied().unwrap_or_default();
    let before = counts.len().checked_sub(2).and_then(|at| counts.get(at)).copied().unwrap_or_default();
    let backward = of(Way::Sequential, most);
    let best = spec.ctas.iter().filter_map(|ctas| seconds.get(&(Way::Device, *ctas, most)));
    let least = |one: Samples, other: Samples| if other.median() < one.median() { other } else { one };
    let device = best.cloned().reduce(least).unwrap_or_default();
    let per_thread =
        |samples: Samples| Samples(samples.0.into_iter().map(|times| times / float(threads as u64)).collect());
    let claim = |what: String, bound, unprinted, found, missing: Option<String>, remark| {
        Compared { what, bound, unprinted, found, missing, remark }.claim()
    };
    vec![
        claim(
            format!(
                "Backward referencing of {most} blocks on {threads} threads takes so many times as long as a map on one"
            ),
            Bound::More,
            "\"less costly in terms of computation steps\"",
            of(Way::Threads, most).divided(&of(Way::Map, most)),
            None,
            "",
        ),
        claim(
            format!("Backward referencing of {most} blocks takes so many times as long as of {before}"),
            Bound::value(16.0, TOLERANCE),
            "",
            backward.divided(&of(Way::Sequential, before)),
            None,
            "A duplicate ends its search early, and few names fit in a nearer cache.",
        ),
        claim(
            format!("The speedup of {threads} threads, divided by their number, with {most} blocks"),
            Bound::AtLeast(0.8),
            "\"ideally, a speedup of p\"",
            per_thread(backward.divided(&of(Way::Threads, most))),
            (threads < 2).then(|| "This machine has one processor.".to_owned()),
            "",
        ),
        claim(
            format!("A device finds the references of {most} blocks so many times as fast as one thread"),
            Bound::AtLeast(spec.device_speedup),
            "figure 4 prints no numbers",
            backward.divided(&device),
            fault.map(|fault| format!("No device: {fault}.")),
            "",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use onefold_accel::device::FaultKind;
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    fn spec() -> ReferenceSpec {
        let Experiment::References(spec) = Experiment::named("sobe-figure-4").unwrap() else { panic!("no references") };
        spec
    }

    #[test]
    fn every_way_is_measured_and_finds_the_same() {
        let spec = spec();
        let shown = measure(&spec, &[256, 1024], 2, 2, &Silent).unwrap();
        let table = &shown.tables[0];
        let has_device = !shown.notes[1].starts_with("No device");
        for (column, (way, _)) in ways(&spec).iter().enumerate() {
            let is_measured = has_device || *way != Way::Device;
            let cell = &table.rows[1][column + 1];
            assert_eq!(matches!(cell, Cell::Number(seconds) if 0.0 < *seconds), is_measured, "{way:?}: {cell:?}");
        }
        assert!(has_device || shown.claims[3].verdict == Verdict::CannotBeShown);
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        let spec = spec();
        let seconds_of = |factor: f64| {
            let mut seconds = Seconds::new();
            let mut add = |way, count, took: f64| {
                let ctas = if way == Way::Device { spec.ctas[0] } else { 0 };
                seconds.insert((way, ctas, count), Samples(vec![took; 3]));
            };
            add(Way::Sequential, 256, 1.0);
            add(Way::Sequential, 1024, 16.0 / factor);
            add(Way::Threads, 1024, 8.0);
            add(Way::Map, 1024, 4.0 * factor);
            add(Way::Device, 1024, 0.01);
            seconds
        };
        let verdicts = |factor, threads, fault: Option<&Fault>| {
            claims(&spec, &[256, 1024], &seconds_of(factor), threads, fault)
                .iter()
                .map(|claim| claim.verdict)
                .collect::<Vec<_>>()
        };
        let good = [Verdict::Holds, Verdict::Reproduced, Verdict::Holds, Verdict::Holds];
        assert_eq!(verdicts(1.0, 2, None), good);
        let bad = [Verdict::DoesNotHold, Verdict::NotReproduced, Verdict::DoesNotHold, Verdict::DoesNotHold];
        assert_eq!(verdicts(20.0, 2, None), bad);
        let fault = Fault { kind: FaultKind::Absent, message: "there is none".to_owned() };
        let cannot = [Verdict::Holds, Verdict::Reproduced, Verdict::CannotBeShown, Verdict::CannotBeShown];
        assert_eq!(verdicts(1.0, 1, Some(&fault)), cannot);
    }
}
