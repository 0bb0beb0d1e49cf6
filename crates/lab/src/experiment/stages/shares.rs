//! Shares of the stages in their sum: figure 9.

use anyhow::Result;

use super::spec::{PublishedShares, StageSpec};
use super::{STAGES, Seconds, Speeds, unique_share};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::experiment::{Results, RunId};
use crate::findings::{Axis, Cell, Claim, Plot, PlotKind, Series, Table};

impl PublishedShares {
    fn all(self) -> [Option<f64>; 3] {
        [self.chunk, self.fingerprint, self.identify]
    }
}

/// Returns table, plot and claims.
pub(super) fn shown(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds) -> Result<Shown> {
    let of = results.spec.point(&spec.of)?;
    let ids: Vec<_> = results.ids().into_iter().filter(|id| id.point == of).collect();
    let mut claims = Vec::new();
    for id in ids.iter().filter(|id| spec.data_sets.contains(&results.data_sets[id.data_set].name)) {
        claims.extend(published(spec, results, speeds, *id));
    }
    claims.extend(ids.iter().filter_map(|id| trend(spec, results, speeds, *id)));
    Ok(Shown {
        notes: Vec::new(),
        tables: vec![table(spec, results, speeds, &ids)],
        plots: vec![plot(spec, results, speeds, &ids)],
        claims,
    })
}

/// Returns the seconds of each repetition of a run, by one way to do the stages.
fn seconds(results: &Results<'_>, id: RunId, speeds: &Speeds, step: usize) -> Vec<Seconds> {
    let runs = results.runs.get(&id).into_iter().flatten();
    runs.filter_map(|run| Seconds::of(*speeds.steps.get(step)?, &run.outcome)).collect()
}

/// Returns the median share of each stage.
fn shares(results: &Results<'_>, id: RunId, speeds: &Speeds, step: usize) -> [Samples; 3] {
    let all: Vec<_> = seconds(results, id, speeds, step).into_iter().map(Seconds::shares).collect();
    [0, 1, 2].map(|stage| Samples(all.iter().map(|shares| shares[stage]).collect()))
}

fn table(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, ids: &[RunId]) -> Table {
    let mut columns = vec!["data set".to_owned(), "stages".to_owned(), "read, s/GB".to_owned()];
    columns.extend(STAGES.map(|stage| format!("{stage}, s/GB")));
    columns.push("write, s/GB".to_owned());
    columns.extend(STAGES.map(|stage| format!("{stage}, share")));
    columns.extend(STAGES.map(|stage| format!("{stage}, paper")));
    columns.extend(["slowest", "MB/s, overlapped"].map(str::to_owned));
    let mut rows = Vec::new();
    for &id in ids {
        let set = &results.data_sets[id.data_set].name;
        let run = results.runs.get(&id).and_then(|runs| runs.first());
        for (at, step) in spec.steps.iter().enumerate() {
            let mut row = vec![Cell::Text(set.clone()), Cell::Text(step.name.clone()), Cell::Number(1e3 / speeds.read)];
            let gigabytes = run.map_or(1.0, |run| float(run.outcome.bytes.max(1)) / 1e9);
            let seconds = seconds(results, id, speeds, at).first().copied();
            let shares = shares(results, id, speeds, at).map(|samples| samples.median());
            if let Some(seconds) = seconds {
                row.extend(seconds.all().map(|seconds| Cell::Number(seconds / gigabytes)));
            } else {
                let chunk = speeds.steps[at].chunk.map(|rate| 1e3 / rate);
                let identify = run.map(|run| run.outcome.time.as_secs_f64() / gigabytes);
                row.extend([
                    Cell::of(chunk, false),
                    Cell::Text(speeds.missing(step).0.to_owned()),
                    Cell::of(identify, false),
                ]);
            }
            row.push(Cell::of(run.map(|run| 1e3 / speeds.write * unique_share(run)), false));
            row.extend(shares.map(|share| Cell::of(share, false)));
            let stated = if spec.data_sets.contains(set) { step.published.all() } else { [None; 3] };
            row.extend(stated.map(|share| Cell::of(share, false)));
            let slowest = seconds.map(|seconds| STAGES[slowest(seconds)].to_owned());
            row.push(slowest.map_or(Cell::Empty(()), Cell::Text));
            row.push(Cell::of(seconds.map(|seconds| 1e3 * gigabytes / seconds.slowest()), false));
            rows.push(row);
        }
    }
    Table { title: "Stages".to_owned(), columns, rows }
}

/// Returns the number of the slowest stage.
fn slowest(seconds: Seconds) -> usize {
    let all = seconds.all();
    (0..STAGES.len()).max_by(|one, other| all[*one].total_cmp(&all[*other])).unwrap_or(0)
}

fn plot(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, ids: &[RunId]) -> Plot {
    let mut bars = Vec::new();
    let mut ours = STAGES.map(|name| Series { name: name.to_owned(), is_published: false, points: Vec::new() });
    let mut papers = STAGES.map(|name| Series { name: name.to_owned(), is_published: true, points: Vec::new() });
    for &id in ids {
        let set = &results.data_sets[id.data_set].name;
        for (at, step) in spec.steps.iter().enumerate() {
            let name = format!("{set}, {}", step.name);
            let found = shares(results, id, speeds, at).map(|samples| samples.median());
            if found.iter().any(Option::is_some) {
                let x = float(bars.len() as u64);
                let points = ours.iter_mut().zip(found);
                points.for_each(|(series, share)| series.points.extend(share.map(|share| (x, share))));
                bars.push(name.clone());
            }
            let stated = step.published.all();
            if spec.data_sets.contains(set) && stated.iter().any(Option::is_some) {
                let x = float(bars.len() as u64);
                let points = papers.iter_mut().zip(stated);
                points.for_each(|(series, share)| series.points.extend(share.map(|share| (x, share))));
                bars.push(format!("{name}, paper"));
            }
        }
    }
    let x = Axis { title: String::new(), is_logarithmic: false, names: bars };
    let series = ours.into_iter().chain(papers).filter(|series| !series.points.is_empty()).collect();
    Plot {
        title: "Shares of the stages".to_owned(),
        x,
        y: axis("share of the time", false),
        kind: PlotKind::StackedBars,
        series,
    }
}

/// Compares with the shares that the paper prints.
fn published(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, id: RunId) -> Vec<Claim> {
    let mut claims = Vec::new();
    let set = &results.data_sets[id.data_set].name;
    for (at, step) in spec.steps.iter().enumerate() {
        let found = shares(results, id, speeds, at);
        for ((stage, stated), found) in STAGES.iter().zip(step.published.all()).zip(found) {
            let Some(stated) = stated else { continue };
            let compared = Compared {
                what: format!("{}: share of the stage {stage} ({set})", step.name),
                bound: Bound::value(stated, TOLERANCE),
                unprinted: "",
                missing: found.is_empty().then(|| speeds.missing(step).1),
                found,
                remark: "The paper's shares are those of its machine: an Intel i7-3770 without instructions for SHA-1, and Rabin at 217 MB/s.",
            };
            claims.push(compared.claim());
        }
    }
    claims
}

/// The paper says of the first step that chunking takes longest, on all data sets.
fn trend(spec: &StageSpec, results: &Results<'_>, speeds: &Speeds, id: RunId) -> Option<Claim> {
    let step = spec.steps.first()?;
    let others = |seconds: &Seconds| seconds.fingerprint.max(seconds.identify);
    let all = seconds(results, id, speeds, 0);
    let compared = Compared {
        what: format!(
            "{}: chunking takes so many times as long as the slowest other stage ({})",
            step.name, results.data_sets[id.data_set].name
        ),
        bound: Bound::More,
        unprinted: "chunking is the bottleneck",
        found: Samples(all.iter().map(|seconds| seconds.chunk / others(seconds).max(1e-12)).collect()),
        missing: all.is_empty().then(|| speeds.missing(step).1),
        remark: "",
    };
    Some(compared.claim())
}

#[cfg(test)]
mod tests {
    use super::super::spec::StepSpec;
    use super::super::tests::{results, run};
    use super::super::{Rates, Speeds};
    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::experiment::device::tests::none;
    use crate::findings::Verdict;

    /// Speeds by which each step has the shares that the paper prints, if identification takes 13 ms for 100 MB; chunking of the first step
    /// takes so many times as long.
    fn speeds(steps: &[StepSpec], factor: f64) -> Speeds {
        let rates = |step: &StepSpec| Rates {
            chunk: Some(100.0 / (0.053 * factor)),
            fingerprint: (!step.on_device).then_some(100.0 / 0.034),
        };
        let without_device = none().missing();
        Speeds { read: 1000.0, write: 100.0, steps: steps.iter().map(rates).collect(), without_device }
    }

    #[test]
    fn shares_of_the_paper_are_reproduced_or_not_and_those_of_a_device_are_not_judged() {
        use Verdict::{CannotBeShown, DoesNotHold, Holds, NotReproduced, Reproduced};

        let Experiment::Points(spec) = Experiment::named("lazy-figure-9").unwrap() else { panic!("another kind") };
        let stages = spec.stages.as_ref().unwrap();
        let results = results(&spec, |_| run(&[(100_000_000, 13)]));
        let verdicts = |factor: f64| {
            let shown = shown(stages, &results, &speeds(&stages.steps, factor)).unwrap();
            let table = &shown.tables[0];
            assert_eq!(table.rows.len(), 3 * stages.steps.len());
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
            assert!(shown.claims.iter().all(|claim| claim.remark.contains("not judged") == claim.found.is_empty()));
            shown.claims.into_iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        let missing = [CannotBeShown; 3];
        assert_eq!(verdicts(1.0), [&[Reproduced; 2][..], &missing, &[Holds; 3]].concat());
        assert_eq!(verdicts(0.5), [&[NotReproduced; 2][..], &missing, &[DoesNotHold; 3]].concat());
    }
}
