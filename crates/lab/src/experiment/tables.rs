//! Tables of an experiment.

use anyhow::Result;

use crate::experiment::spec::Sensitivity;
use crate::experiment::spec::names;
use crate::experiment::verdict::Samples;
use crate::experiment::{Results, RunId, spec};
use crate::findings::{Cell, Table};

/// Makes the tables that an experiment asks for.
pub(super) fn tables(results: &Results<'_>) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for table in &results.spec.tables {
        let ids = wanted(results, &table.points, &table.devices);
        let mut columns = heads(results);
        columns.push("way".to_owned());
        let mut stated = Vec::new();
        for name in &table.measures {
            columns.push(spec::measure(name)?.title.to_owned());
            let is_stated = ids.iter().any(|id| results.printed(*id, name).is_some());
            if is_stated {
                columns.push("paper".to_owned());
            }
            stated.push(is_stated);
        }
        let mut rows = Vec::new();
        for id in ids {
            let mut row = key_cells(results, id);
            row.push(Cell::Text(results.spec.points[id.point].name.clone()));
            for (name, is_stated) in table.measures.iter().zip(&stated) {
                let is_count = spec::measure(name)?.is_count;
                row.push(Cell::of(results.value(id, name)?, is_count));
                if *is_stated {
                    row.push(Cell::of(results.printed(id, name), false));
                }
            }
            rows.push(row);
        }
        tables.push(Table { title: table.title.clone(), columns, rows });
    }
    for ratio in &results.spec.ratios {
        tables.push(ratios(results, ratio)?);
    }
    Ok(tables)
}

fn ratios(results: &Results<'_>, ratio: &spec::RatioSpec) -> Result<Table> {
    let (of, to) = (results.spec.point(&ratio.of)?, results.spec.point(&ratio.to)?);
    let title = spec::measure(&ratio.measure)?.title;
    let mut columns = heads(results);
    columns.extend([
        format!("{}: {title}", ratio.of),
        format!("{}: {title}", ratio.to),
        format!("{} : {}", ratio.of, ratio.to),
    ]);
    let is_repeated = results.runs.values().any(|runs| 1 < runs.len());
    if is_repeated {
        columns.extend(["least", "most"].map(str::to_owned));
    }
    columns.push("paper".to_owned());
    let mut rows = Vec::new();
    for id in results.ids().into_iter().filter(|id| id.point == of) {
        let other = RunId { point: to, ..id };
        let (above, below) = (results.value(id, &ratio.measure)?, results.value(other, &ratio.measure)?);
        let mut row = key_cells(results, id);
        // The median of the ratios, which is not the ratio of the medians.
        let each = results.samples(id, &ratio.measure)?.divided(&results.samples(other, &ratio.measure)?);
        row.extend([above, below, each.median()].map(|number| Cell::of(number, false)));
        if is_repeated {
            let (least, most) = each.interval().unzip();
            row.extend([Cell::of(least, false), Cell::of(most, false)]);
        }
        let stated = divided(results.published(id, &ratio.measure), results.published(other, &ratio.measure));
        row.push(Cell::of(stated, false));
        rows.push(row);
    }
    Ok(Table { title: ratio.title.clone(), columns, rows })
}

/// Makes the table of a comparison with other streams, without rows.
pub(super) fn of_sensitivity(results: &Results<'_>, sensitivity: &Sensitivity, title: &str) -> Table {
    let Sensitivity { field, of, to, .. } = sensitivity;
    let mut columns = heads(results);
    columns.push(field.clone());
    columns.extend([of, to].map(|point| format!("{point}: {title}")));
    columns.extend([format!("{of} : {to}"), "paper".to_owned(), "winner".to_owned()]);
    Table { title: String::new(), columns, rows: Vec::new() }
}

/// Makes one of its rows.
pub(super) fn row_of_sensitivity(
    results: &Results<'_>,
    id: RunId,
    value: &str,
    samples: &[Samples; 2],
    stated: Option<f64>,
) -> Vec<Cell> {
    let [of, to] = samples;
    let ratio = of.divided(to).median();
    let winner = match (ratio, stated) {
        (Some(ratio), Some(stated)) if (1.0 < ratio) != (1.0 < stated) => "not the paper's",
        (Some(_), Some(_)) => "the paper's",
        _ => "",
    };
    let mut row = key_cells(results, id);
    row.push(Cell::Text(value.to_owned()));
    row.extend([of.median(), to.median(), ratio, stated].map(|number| Cell::of(number, false)));
    row.push(Cell::Text(winner.to_owned()));
    row
}

/// Returns a ratio where there is one.
pub(super) fn divided(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below.filter(|below| *below != 0.0)?)
}

/// Returns the runs of these points on these devices; of all if none is named.
pub(super) fn wanted(results: &Results<'_>, points: &[String], devices: &[String]) -> Vec<RunId> {
    let is_wanted = |id: &RunId| {
        names(points, &results.spec.points[id.point].name) && names(devices, &results.spec.devices[id.device])
    };
    results.ids().into_iter().filter(is_wanted).collect()
}

/// Titles of the columns that say which runs a row is about.
fn heads(results: &Results<'_>) -> Vec<String> {
    let mut columns = vec!["data set".to_owned()];
    if results.names_devices() {
        columns.push("device".to_owned());
    }
    columns.extend(results.spec.vary.as_ref().map(|vary| vary.title.clone()));
    columns
}

fn key_cells(results: &Results<'_>, id: RunId) -> Vec<Cell> {
    let mut row = vec![Cell::Text(results.data_sets[id.data_set].name.clone())];
    if results.names_devices() {
        row.push(Cell::Text(results.spec.devices[id.device].clone()));
    }
    row.extend(results.spec.vary.as_ref().map(|vary| Cell::Text(vary.values[id.value].clone())));
    row
}
