//! Plots of an experiment.

use anyhow::{Context, Result};

use crate::counts::float;
use crate::experiment::tables::wanted;
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
        let points: Vec<(f64, f64)> = match results.spec.vary.as_ref().filter(|_| !plot.over_data) {
            None => over_data(&results.runs[id], measure),
            Some(vary) => {
                let at = vary.numbers[id.value];
                results.value(*id, name)?.map(|value| (at, value)).into_iter().collect()
            }
        };
        let stated =
            results.spec.vary.as_ref().and_then(|vary| Some((vary.numbers[id.value], results.published(*id, name)?)));
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
    Ok(Plot { title, x, y: axis(measure.title, plot.is_logarithmic), kind: PlotKind::Lines, series })
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
        let value = results.value(*id, name)?.map(|value| (index, value));
        push(&mut series, label.clone(), false, value.into_iter().collect());
        if let Some(stated) = results.published(*id, name) {
            push(&mut series, label, true, vec![(index, stated)]);
        }
    }
    let names = results.data_sets.iter().map(|set| set.name.clone()).collect();
    let x = Axis { title: "data set".to_owned(), is_logarithmic: false, names };
    let y = axis(spec::measure(name)?.title, plot.is_logarithmic);
    Ok(Plot { title: plot.title.clone(), x, y, kind: PlotKind::Bars, series })
}

fn stacked(results: &Results<'_>, plot: &spec::PlotSpec, ids: &[RunId]) -> Result<Plot> {
    let mut bars = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        bars.push(format!("{}, {}", results.data_sets[id.data_set].name, label(results, *id)));
        for name in &plot.measures {
            let value = results.value(*id, name)?.map(|value| (float(index as u64), value));
            push(&mut series, spec::measure(name)?.title.to_owned(), false, value.into_iter().collect());
        }
    }
    let x = Axis { title: String::new(), is_logarithmic: false, names: bars };
    Ok(Plot { title: plot.title.clone(), x, y: axis("seconds", false), kind: PlotKind::StackedBars, series })
}
