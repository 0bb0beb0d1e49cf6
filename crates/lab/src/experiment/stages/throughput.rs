//! Throughput over the data where the stages overlap: figures 14 and 15.

use anyhow::Result;

use super::spec::StageSpec;
use super::{STAGES, Seconds, Speeds, unique_share};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::experiment::{Results, RunId};
use crate::findings::{Cell, Claim, Plot, PlotKind, Series, Table};
use crate::measure::Measured;

/// The measure that a paper states of a run.
const MEASURE: &str = "megabytes-per-second";

/// Returns table, plots and claims.
pub(super) fn shown(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds) -> Result<Shown> {
    let mut shown = Shown::default();
    let with_bytes = |id: &RunId| spec.data_sets.contains(&results.data_sets[id.data_set].name);
    let ids: Vec<_> = results.ids().into_iter().filter(with_bytes).collect();
    shown.tables.push(table(spec, results, speeds, &ids));
    for (step, way) in spec.steps.iter().enumerate() {
        for data_set in 0..results.data_sets.len() {
            let of_set: Vec<_> = ids.iter().copied().filter(|id| id.data_set == data_set).collect();
            let series: Vec<_> = of_set.iter().filter_map(|id| line(results, *id, speeds, step)).collect();
            if !series.is_empty() {
                shown.plots.push(Plot {
                    title: format!("Throughput so far, {}: {}", way.name, results.data_sets[data_set].name),
                    x: axis("GB of the stream", false),
                    y: axis("MB/s", false),
                    kind: PlotKind::Lines,
                    series,
                });
            }
        }
    }
    let (of, to) = (results.spec.point(&spec.of)?, spec.to.as_deref().map(|to| results.spec.point(to)).transpose()?);
    for id in ids.iter().filter(|id| id.point == of) {
        for step in 0..spec.steps.len() {
            let to = to.map(|point| RunId { point, ..*id });
            shown.claims.extend(to.map(|to| compared(spec, results, speeds, step, [*id, to])));
            shown.claims.push(start(spec, results, speeds, step, *id));
        }
    }
    Ok(shown)
}

/// Returns the bytes and seconds after each interval of a run whose stages overlap.
fn over_data(run: &Measured, speeds: &Speeds, step: usize) -> Option<Vec<(u64, f64)>> {
    let (mut bytes, mut seconds) = (0, 0.0);
    let mut points = Vec::new();
    for interval in &run.intervals {
        bytes += interval.bytes;
        seconds += Seconds::of(*speeds.steps.get(step)?, interval)?.slowest();
        points.push((bytes, seconds));
    }
    Some(points)
}

/// Returns MB/s at the end of each repetition of a run.
fn at_end(results: &Results<'_>, id: RunId, speeds: &Speeds, step: usize) -> Samples {
    let runs = results.runs.get(&id).into_iter().flatten();
    let rate = |run: &Measured| {
        let (bytes, seconds) = over_data(run, speeds, step)?.last().copied()?;
        Some(float(bytes) / 1e6 / seconds.max(1e-9))
    };
    Samples(runs.filter_map(|run| rate(run)).collect())
}

fn line(results: &Results<'_>, id: RunId, speeds: &Speeds, step: usize) -> Option<Series> {
    let run = results.runs.get(&id)?.first()?;
    let point = |(bytes, seconds): (u64, f64)| (float(bytes) / 1e9, float(bytes) / 1e6 / seconds.max(1e-9));
    let points = over_data(run, speeds, step)?.into_iter().map(point).collect();
    Some(Series { name: results.spec.points[id.point].name.clone(), is_published: false, points })
}

fn table(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, ids: &[RunId]) -> Table {
    let mut columns = vec!["data set".to_owned(), "point".to_owned(), "stages".to_owned(), "read, s/GB".to_owned()];
    columns.extend(STAGES.map(|stage| format!("{stage}, s/GB")));
    columns.extend(["write, s/GB", "MB/s, overlapped", "MB/s, identification alone"].map(str::to_owned));
    let mut rows = Vec::new();
    for &id in ids {
        let Some(run) = results.runs.get(&id).and_then(|runs| runs.first()) else { continue };
        let gigabytes = float(run.outcome.bytes.max(1)) / 1e9;
        let identify = run.outcome.time.as_secs_f64();
        for (step, way) in spec.steps.iter().enumerate() {
            let names = [&results.data_sets[id.data_set].name, &results.spec.points[id.point].name, &way.name];
            let mut row: Vec<_> = names.map(|name| Cell::Text(name.clone())).into();
            row.push(Cell::Number(1e3 / speeds.read));
            let rates = speeds.steps[step];
            row.push(Cell::of(rates.chunk.map(|rate| 1e3 / rate), false));
            let fingerprint = rates.fingerprint.map(|rate| Cell::Number(1e3 / rate));
            row.push(fingerprint.unwrap_or_else(|| Cell::Text(speeds.missing(way).0.to_owned())));
            row.push(Cell::Number(identify / gigabytes));
            row.push(Cell::Number(1e3 / speeds.write * unique_share(run)));
            row.push(Cell::of(at_end(results, id, speeds, step).median(), false));
            row.push(Cell::Number(1e3 * gigabytes / identify.max(1e-9)));
            rows.push(row);
        }
    }
    Table { title: "Stages that overlap".to_owned(), columns, rows }
}

/// Compares the throughput at the end with the paper's, which has chunking and fingerprints in it.
fn compared(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, step: usize, [of, to]: [RunId; 2]) -> Claim {
    let stated = results.published(of, MEASURE).zip(results.published(to, MEASURE)).map(|(of, to)| of / to);
    let bound = stated.map_or(Bound::More, |stated| Bound::ratio(stated, stated, TOLERANCE));
    let found = at_end(results, of, speeds, step).divided(&at_end(results, to, speeds, step));
    let way = &spec.steps[step];
    let compared = Compared {
        what: format!(
            "{}: {} is so many times as fast as {} in the end ({})",
            way.name, spec.of, results.spec.points[to.point].name, results.data_sets[of.data_set].name
        ),
        bound,
        unprinted: "no number for this data set",
        missing: found.is_empty().then(|| speeds.missing(&spec.steps[step]).1),
        found,
        remark: "",
    };
    compared.claim()
}

/// The paper says that chunking limits the throughput as long as few chunks are stored.
fn start(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, step: usize, id: RunId) -> Claim {
    let runs = results.runs.get(&id).into_iter().flatten();
    let first = |run: &Measured| {
        let seconds = Seconds::of(*speeds.steps.get(step)?, run.intervals.first()?)?;
        Some(seconds.chunk / seconds.fingerprint.max(seconds.identify).max(1e-12))
    };
    let found = Samples(runs.filter_map(|run| first(run)).collect());
    let compared = Compared {
        what: format!(
            "{}: at the start chunking takes so many times as long as the slowest other stage ({}, {})",
            spec.steps[step].name, spec.of, results.data_sets[id.data_set].name
        ),
        bound: Bound::More,
        unprinted: "throughput is limited by chunking at first",
        missing: found.is_empty().then(|| speeds.missing(&spec.steps[step]).1),
        found,
        remark: "",
    };
    compared.claim()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{results, run};
    use super::super::{Rates, Speeds};
    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::experiment::device::tests::none;
    use crate::findings::Verdict;

    #[test]
    fn the_slowest_stage_counts_in_each_interval_and_a_device_is_not_judged() {
        let Experiment::Points(spec) = Experiment::named("lazy-figure-14").unwrap() else { panic!("another kind") };
        let stages = spec.stages.as_ref().unwrap();
        let eager = spec.point("eager").unwrap();
        // Chunking takes 400 ms in each of two intervals; identification takes less in the first one, and more in the second.
        let verdicts = |eager_last: u64, first: u64| {
            let results = results(&spec, |id| {
                let last = if id.point == eager { eager_last } else { 600 };
                run(&[(100_000_000, first), (100_000_000, last)])
            });
            let rates = |step: &super::super::spec::StepSpec| Rates {
                chunk: Some(250.0),
                fingerprint: (!step.on_device).then_some(1000.0),
            };
            let (steps, without_device) = (stages.steps.iter().map(rates).collect(), none().missing());
            let speeds = Speeds { read: 1000.0, write: 100.0, steps, without_device };
            let lazy = results.ids().into_iter().find(|id| id.point == spec.point("lazy").unwrap()).unwrap();
            if first < 400 {
                assert_eq!(at_end(&results, lazy, &speeds, 0), Samples(vec![200.0]));
            }
            let shown = shown(stages, &results, &speeds).unwrap();
            let table = &shown.tables[0];
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
            // Two data sets, and two steps without a device.
            assert_eq!((table.rows.len(), shown.plots.len()), (2 * spec.points.len() * stages.steps.len(), 4));
            let claims = shown.claims.into_iter();
            claims.map(|claim| (claim.found.is_empty(), claim.verdict)).collect::<Vec<_>>()
        };
        let judged = |all: &[(bool, Verdict)]| {
            assert!(all.iter().all(|(missing, verdict)| *missing == (*verdict == Verdict::CannotBeShown)), "{all:?}");
            assert_eq!(all.iter().filter(|(missing, _)| *missing).count(), 4);
            all.iter().filter(|(missing, _)| !missing).map(|(_, verdict)| *verdict).collect::<Vec<_>>()
        };
        // Lazy takes 1.0 s. Eager takes 1.7 s, between the paper's 1.65 and 1.8.
        assert_eq!(judged(&verdicts(1300, 100)), [Verdict::Reproduced, Verdict::Holds].repeat(4));
        assert_eq!(judged(&verdicts(700, 500)), [Verdict::NotReproduced, Verdict::DoesNotHold].repeat(4));
    }
}
