//! Consistency of findings: a file may hold anything of the right structure.

use anyhow::{Context, Result, ensure};

use crate::counts::float;
use crate::findings::{Axis, Findings, HeatMap, Plot, PlotKind, Series, Table};

/// Most series of a plot. Nobody can distinguish more.
pub const SERIES_MAX: usize = 64;

/// Refuses findings that cannot be shown correctly; the error names the position.
///
/// Rows have as many cells as there are columns. Values of heat maps are positive. On an axis with names, numbers are indexes of names. On a logarithmic axis they are
/// positive. Bars stand at indexes of names. Points with a number that is not finite are accepted: they were not measured, and
/// are not drawn.
pub fn check(findings: &Findings) -> Result<()> {
    let Findings { experiment, tables, plots, heat_maps, .. } = findings;
    let tables = (1..).zip(tables).try_for_each(|(number, table)| {
        check_table(table).with_context(|| format!("table {number}, {:?}", table.title))
    });
    let plots = || {
        (1..)
            .zip(plots)
            .try_for_each(|(number, plot)| check_plot(plot).with_context(|| format!("plot {number}, {:?}", plot.title)))
    };
    let heat_maps = || {
        (1..).zip(heat_maps).try_for_each(|(number, map)| {
            check_heat_map(map).with_context(|| format!("heat map {number}, {:?}", map.title))
        })
    };
    tables.and_then(|()| plots()).and_then(|()| heat_maps()).with_context(|| format!("experiment {experiment:?}"))
}

fn check_table(table: &Table) -> Result<()> {
    let columns = table.columns.len();
    for (number, row) in (1..).zip(&table.rows) {
        ensure!(row.len() == columns, "row {number} has {} cells for {columns} columns", row.len());
    }
    Ok(())
}

fn check_heat_map(map: &HeatMap) -> Result<()> {
    let columns = map.columns.len();
    for (number, row) in (1..).zip(&map.rows) {
        ensure!(row.values.len() == columns, "row {number} has {} values for {columns} columns", row.values.len());
        let refused = row.values.iter().flatten().find(|value| !(value.is_finite() && 0.0 < **value));
        ensure!(refused.is_none(), "row {number} has {refused:?}, and values are positive");
    }
    Ok(())
}

fn check_plot(plot: &Plot) -> Result<()> {
    for (axis, name) in [(&plot.x, 'x'), (&plot.y, 'y')] {
        ensure!(!axis.is_logarithmic || axis.names.is_empty(), "axis {name} has names and cannot be logarithmic");
    }
    let stands = match plot.kind {
        PlotKind::Lines => true,
        PlotKind::Bars | PlotKind::StackedBars => !plot.x.names.is_empty() || plot.series.is_empty(),
    };
    let series = plot.series.len();
    ensure!(series <= SERIES_MAX, "{series} series, at most {SERIES_MAX}");
    ensure!(stands, "bars stand at names, and axis x has none");
    (1..).zip(&plot.series).try_for_each(|(number, series)| {
        check_series(plot, series).with_context(|| format!("series {number}, {:?}", series.name))
    })
}

fn check_series(plot: &Plot, series: &Series) -> Result<()> {
    for (number, (x, y)) in (1..).zip(&series.points) {
        for (axis, value, name) in [(&plot.x, *x, 'x'), (&plot.y, *y, 'y')] {
            check_value(axis, value).with_context(|| format!("point {number}, {name}"))?;
        }
    }
    Ok(())
}

fn check_value(axis: &Axis, value: f64) -> Result<()> {
    if !value.is_finite() {
        return Ok(());
    }
    ensure!(!axis.is_logarithmic || 0.0 < value, "{value} on a logarithmic axis, which has positive numbers only");
    let count = axis.names.len();
    let is_index = value.fract() == 0.0 && (0.0..float(count as u64)).contains(&value);
    ensure!(count == 0 || is_index, "{value} is no index of a name: there are {count}, counted from 0");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Cell;
    use crate::report::example;

    /// Returns the error of the example after a change.
    fn refusal(change: impl FnOnce(&mut Findings)) -> String {
        let mut findings = example::findings();
        change(&mut findings);
        format!("{:#}", check(&findings).unwrap_err())
    }

    #[test]
    fn a_heat_map_has_a_positive_number_or_none_in_each_column() {
        let refused = refusal(|findings| findings.heat_maps[0].rows[1].values.push(None));
        assert!(refused.contains("heat map 1") && refused.contains("row 2 has 3 values for 2 columns"), "{refused}");
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = refusal(|findings| findings.heat_maps[0].rows[0].values[1] = Some(value));
            assert!(refused.contains("and values are positive"), "{refused}");
        }
    }

    #[test]
    fn findings_that_hold_together_pass_also_with_points_that_were_not_measured() {
        let mut findings = example::findings();
        check(&findings).unwrap();
        for plot in &mut findings.plots {
            plot.series[0].points.push((0.0, f64::NAN));
            plot.series[0].points.push((f64::INFINITY, 0.0));
            if !plot.x.is_logarithmic && !plot.y.is_logarithmic {
                continue;
            }
            plot.series[0].points.retain(|(x, y)| 0.0 < *x && 0.0 < *y);
        }
        check(&findings).unwrap();
    }

    #[test]
    fn what_does_not_hold_together_is_refused_with_its_place() {
        let short = refusal(|findings| drop(findings.tables[0].rows[1].pop()));
        assert_eq!(short, "experiment \"example\": table 1, \"Time by threshold\": row 2 has 3 cells for 4 columns");
        let long = refusal(|findings| findings.tables[0].rows[0].push(Cell::Count(1)));
        assert!(long.ends_with("row 1 has 5 cells for 4 columns"), "{long}");
        for value in [0.0, -1.0] {
            let logarithmic = refusal(|findings| findings.plots[1].series[1].points[2].1 = value);
            let wanted = format!(
                "series 2, \"eager\": point 3, y: {value} on a logarithmic axis, which has positive numbers only"
            );
            assert!(logarithmic.ends_with(&wanted), "{logarithmic}");
        }
        for value in [3.0, -1.0, 0.5] {
            let place = refusal(|findings| findings.plots[2].series[0].points[0].0 = value);
            let wanted = format!(
                "plot 3, \"Reads by schedule\": series 1, \"lookups\": point 1, x: {value} is no index of a name: \
                there are 3, counted from 0"
            );
            assert!(place.ends_with(&wanted), "{place}");
        }
        let nameless = refusal(|findings| findings.plots[2].x.names.clear());
        assert!(nameless.ends_with("bars stand at names, and axis x has none"), "{nameless}");
        let many =
            refusal(|findings| findings.plots[0].series = vec![findings.plots[0].series[0].clone(); SERIES_MAX + 1]);
        assert!(many.ends_with("plot 1, \"Time by threshold\": 65 series, at most 64"), "{many}");
        let both = refusal(|findings| findings.plots[3].x.is_logarithmic = true);
        assert!(both.ends_with("axis x has names and cannot be logarithmic"), "{both}");
    }
}
