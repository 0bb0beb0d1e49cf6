//! Plots of an experiment.

use anyhow::{Context, Result};

use crate::counts::float;
use crate::experiment::tables::{divided, wanted};
use crate::experiment::{Results, RunId, spec};
use crate::findings::{Axis, Plot, PlotKind, Series};
use crate::measure::Measured;

/// Makes the plots that an experiment asks for.
pub(super) fn plots(results: &Results<'_>) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for plot in &results.spec.plots {
        let ids = wanted(results, &plot.points, &plot.devices);
        match (plot.kind, plot.over_data) {
            (PlotKind::Lines, _) => {
                for data_set in 0..results.data_sets.len() {
                    let ids: Vec<_> = ids.iter().copied().filter(|id| id.data_set == data_set).collect();
                    plots.push(lines(results, plot, data_set, &ids)?);
                }
            }
            (PlotKind::Bars, _) => plots.push(bars(results, plot, &ids)?),
            (PlotKind::StackedBars, _) => plots.push(stacked(results, plot, &ids)?),
        }
    }
    Ok(plots)
}

/// Returns the name of a run among those of its data set.
fn label(results: &Results<'_>, id: RunId) -> String {
    let point = &results.spec.points[id.point].name;
    if results.names_devices() { format!("{point}, {}", results.spec.devices[id.device]) } else { point.clone() }
}

fn axis(title: &str, is_logarithmic: bool) -> Axis {
    Axis { title: title.to_owned(), is_logarithmic, names: Vec::new() }
}

fn lines(results: &Results<'_>, plot: &spec::PlotSpec, data_set: usize, ids: &[RunId]) -> Result<Plot> {
    let name = plot.measures.first().context("a plot without a measure")?;
    let measure = spec::measure(name)?;
    let mut series: Vec<Series> = Vec::new();
    for id in ids {
        let label = label(results, *id);
        let [ours, papers] = relative(results, plot, *id, name, name)?;
        let points: Vec<(f64, f64)> = match results.spec.vary.as_ref().filter(|_| !plot.over_data) {
            // Of repetitions, the first.
            None => results.runs[id].first().map(|run| over_data(run, measure)).unwrap_or_default(),
            Some(vary) => ours.map(|value| (vary.numbers[id.value], value)).into_iter().collect(),
        };
        let stated = results.spec.vary.as_ref().and_then(|vary| Some((vary.numbers[id.value], papers?)));
        push(&mut series, label.clone(), false, points);
        if let Some(stated) = stated.filter(|_| !plot.over_data) {
            push(&mut series, label, true, vec![stated]);
        }
    }
    let x = match &results.spec.vary {
        Some(vary) if !plot.over_data => axis(&vary.title, plot.varies_logarithmically),
        _ => axis("GB of the stream", false),
    };
    let title = format!("{}: {}", plot.title, results.data_sets[data_set].name);
    let y = axis(&unit(plot, measure.title), plot.is_logarithmic);
    Ok(Plot { title, x, y, kind: PlotKind::Lines, series })
}

/// Returns the unit of a plot.
fn unit(plot: &spec::PlotSpec, title: &str) -> String {
    match (&plot.relative_to, &plot.relative_at) {
        (None, _) => title.to_owned(),
        (Some(point), None) => format!("{title} ({point}: 1)"),
        (Some(point), Some(at)) => format!("{title} ({point} at {at}: 1)"),
    }
}

/// Returns a measure of a run, here and in the paper; each as a multiple of `base` of the point that the plot is relative to, if it is.
fn relative(
    results: &Results<'_>,
    plot: &spec::PlotSpec,
    id: RunId,
    measure: &str,
    base: &str,
) -> Result<[Option<f64>; 2]> {
    let (ours, papers) = (results.value(id, measure)?, results.published(id, measure));
    let Some(point) = &plot.relative_to else { return Ok([ours, results.printed(id, measure)]) };
    let values = results.spec.vary.as_ref().map(|vary| &vary.values);
    let at = plot.relative_at.as_ref().and_then(|at| values?.iter().position(|value| value == at));
    let to = RunId { point: results.spec.point(point)?, value: at.unwrap_or(id.value), ..id };
    Ok([divided(ours, results.value(to, base)?), divided(papers, results.published(to, base))])
}

fn push(series: &mut Vec<Series>, name: String, is_published: bool, points: Vec<(f64, f64)>) {
    match series.iter_mut().find(|one| (&one.name, one.is_published) == (&name, is_published)) {
        Some(one) => one.points.extend(points),
        None => series.push(Series { name, is_published, points }),
    }
}

/// Returns a measure after each interval of a run, over the GB read by then.
fn over_data(measured: &Measured, measure: &crate::measure::Measure) -> Vec<(f64, f64)> {
    let mut sum = Measured { traffic: None, ..Measured::default() };
    let mut points = Vec::new();
    for interval in &measured.intervals {
        sum.outcome.add(interval);
        let gigabytes = float(sum.outcome.bytes) / 1e9;
        points.extend(measure.of(&sum).map(|value| (gigabytes, value)));
    }
    points
}

fn bars(results: &Results<'_>, plot: &spec::PlotSpec, ids: &[RunId]) -> Result<Plot> {
    let name = plot.measures.first().context("a plot without a measure")?;
    let mut series = Vec::new();
    for id in ids {
        let label = label(results, *id);
        let index = float(id.data_set as u64);
        let [ours, papers] = relative(results, plot, *id, name, name)?;
        push(&mut series, label.clone(), false, ours.map(|value| (index, value)).into_iter().collect());
        if let Some(stated) = papers {
            push(&mut series, label, true, vec![(index, stated)]);
        }
    }
    let names = results.data_sets.iter().map(|set| set.name.clone()).collect();
    let x = Axis { title: "data set".to_owned(), is_logarithmic: false, names };
    let y = axis(&unit(plot, spec::measure(name)?.title), plot.is_logarithmic);
    Ok(Plot { title: plot.title.clone(), x, y, kind: PlotKind::Bars, series })
}

fn stacked(results: &Results<'_>, plot: &spec::PlotSpec, ids: &[RunId]) -> Result<Plot> {
    let mut bars = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for id in ids {
        let name = format!("{}, {}", results.data_sets[id.data_set].name, label(results, *id));
        // A bar of ours and, if there is one, the paper's next to it.
        let (mut parts, mut is_stated) = (Vec::new(), false);
        for measure in &plot.measures {
            let [ours, papers] = relative(results, plot, *id, measure, "seconds")?;
            is_stated |= papers.is_some();
            parts.push((spec::measure(measure)?.title, ours, papers));
        }
        let index = float(bars.len() as u64);
        bars.push(name.clone());
        if is_stated {
            bars.push(format!("{name}, paper"));
        }
        for (title, ours, papers) in parts {
            push(&mut series, title.to_owned(), false, ours.map(|value| (index, value)).into_iter().collect());
            if let Some(stated) = papers {
                push(&mut series, title.to_owned(), true, vec![(index + 1.0, stated)]);
            }
        }
    }
    let x = Axis { title: String::new(), is_logarithmic: false, names: bars };
    let y = axis(&unit(plot, plot.unit.as_deref().unwrap_or("seconds")), false);
    Ok(Plot { title: plot.title.clone(), x, y, kind: PlotKind::StackedBars, series })
}
