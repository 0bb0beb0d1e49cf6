//! Findings of a comparison: a row for each cell, all runs, and heat maps.

use std::time::Instant;

use anyhow::Result;

use crate::device::REAL;
use crate::experiment::spec::measure;
use crate::findings::{Cell as Field, Findings, HeatMap, HeatRow, Origin, Table};
use crate::regret::contender::{ADAPTIVE, RIVALS};
use crate::regret::{Cell, Comparison, Run, compare};

/// Name of the findings.
pub const NAME: &str = "regret";

/// Measure of the heat maps.
const OVER_BEST: &str = "device time over that of the best rival";

/// Measures of each run.
const OF_RUNS: [&str; 8] =
    ["unique-chunks", "memory-mib", "lookups", "windows", "mib-read", "hit-percent", "processor-seconds", "seconds"];

/// Describes a cell in a line.
pub fn summary(cell: &Cell) -> String {
    let Cell { source, device, .. } = cell;
    match (cell.regret(), cell.best_rival()) {
        (Some(regret), Some(Run { schedule, windows, .. })) => {
            format!("{source} on {device}: regret {regret:.3}, the best rival is {schedule} with windows {windows}")
        }
        _ => format!("{source} on {device}: nothing was asked of the device"),
    }
}

/// Compares, and makes findings of it.
pub fn findings(comparison: &Comparison<'_>, origin: Origin, command: String) -> Result<Findings> {
    let start = Instant::now();
    let cells = compare(comparison)?;
    Ok(Findings {
        experiment: NAME.to_owned(),
        title: "Regret of the adaptive schedule".to_owned(),
        source: "new".to_owned(),
        command,
        origin,
        notes: notes(comparison, &cells)?,
        tables: vec![regrets(&cells), runs(&cells)?],
        heat_maps: vec![schedules(&cells), contenders(&cells)],
        seconds: start.elapsed().as_secs_f64(),
        ..Findings::default()
    })
}

fn notes(comparison: &Comparison<'_>, cells: &[Cell]) -> Result<Vec<String>> {
    let mut regrets: Vec<(f64, &Cell)> = cells.iter().filter_map(|cell| Some((cell.regret()?, cell))).collect();
    regrets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut notes = Vec::new();
    let middle = |at: usize| regrets.get(at).map(|(regret, _)| *regret);
    let median = middle(regrets.len().saturating_sub(1) / 2).zip(middle(regrets.len() / 2));
    if let Some(((worst, cell), (below, above))) = regrets.last().zip(median) {
        let (Cell { source, device, .. }, median) = (cell, f64::midpoint(below, above));
        notes.push(format!("Regret: at worst {worst:.3}, {source} on {device}; median {median:.3}."));
    }
    let memory = comparison.rules.memory()?;
    notes.push(if comparison.scale == 1 {
        format!("Each contender has {memory} of memory.")
    } else {
        format!(
            "Each contender has {memory} of memory; filter, cache and memtable are divided by {}.",
            comparison.scale
        )
    });
    notes.push(
        "Regret is the device time of the adaptive schedule over that of the best rival with its best windows. Processor time \
         does not count."
            .to_owned(),
    );
    if cells.iter().any(|cell| cell.device == REAL) {
        notes.push("On the real device, device time is the time in lookups and prefetches, by a clock.".to_owned());
    }
    Ok(notes)
}

/// One row for each cell.
fn regrets(cells: &[Cell]) -> Table {
    let columns = ["trace", "device", "adaptive, s", "best rival, s", "best rival", "its windows", "regret"];
    let row = |cell: &Cell| {
        let best = cell.best_rival();
        let seconds = |run: Option<&Run>| Field::of(run.map(|run| run.device_seconds), false);
        let text = |text: Option<String>| text.map_or(Field::Empty(()), Field::Text);
        let mut row = vec![
            Field::Text(cell.source.clone()),
            Field::Text(cell.device.clone()),
            seconds(cell.best_of(ADAPTIVE)),
            seconds(best),
            text(best.map(|run| run.schedule.to_owned())),
            text(best.map(|run| run.windows.to_string())),
            Field::of(cell.regret(), false),
        ];
        row.extend(RIVALS.map(|schedule| Field::of(ratio(cell, cell.best_of(schedule)), false)));
        row
    };
    Table {
        title: "Device time, and that of each schedule's best over the best".to_owned(),
        columns: columns.into_iter().chain(RIVALS).map(str::to_owned).collect(),
        rows: cells.iter().map(row).collect(),
    }
}

/// Least ratio that heat maps show, whose scale is logarithmic: a run may take no time of the device.
const RATIO_MIN: f64 = 0.001;

fn ratio(cell: &Cell, run: Option<&Run>) -> Option<f64> {
    cell.over_best(run?).map(|ratio| ratio.max(RATIO_MIN))
}

/// One row for each run.
fn runs(cells: &[Cell]) -> Result<Table> {
    let measures = OF_RUNS.into_iter().map(measure).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for cell in cells {
        for run in &cell.runs {
            let mut row: Vec<Field> = [&cell.source, &cell.device, run.schedule, &run.windows.to_string()]
                .map(|it| Field::Text(it.to_owned()))
                .into();
            row.push(Field::Number(run.device_seconds));
            row.push(Field::of(cell.over_best(run), false));
            row.extend(measures.iter().map(|it| Field::of(it.of(&run.measured), it.is_count)));
            rows.push(row);
        }
    }
    let columns = ["trace", "device", "schedule", "windows", "device, s", "over the best"];
    let columns = columns.into_iter().chain(measures.iter().map(|it| it.title)).map(str::to_owned).collect();
    Ok(Table { title: "All runs".to_owned(), columns, rows })
}

/// A row for each cell, a column for each schedule.
fn schedules(cells: &[Cell]) -> HeatMap {
    let schedules: Vec<&str> = std::iter::once(ADAPTIVE).chain(RIVALS).collect();
    let row = |cell: &Cell| HeatRow {
        name: format!("{}, {}", cell.source, cell.device),
        values: schedules.iter().map(|schedule| ratio(cell, cell.best_of(schedule))).collect(),
    };
    HeatMap {
        title: "The best of each schedule".to_owned(),
        measure: OVER_BEST.to_owned(),
        columns: schedules.iter().map(|name| (*name).to_owned()).collect(),
        rows: cells.iter().map(row).collect(),
    }
}

/// A row for each contender, a column for each cell.
fn contenders(cells: &[Cell]) -> HeatMap {
    let contenders = cells.first().map_or(&[][..], |cell| &cell.runs);
    let row = |(at, run): (usize, &Run)| HeatRow {
        name: format!("{}, windows {}", run.schedule, run.windows),
        values: cells.iter().map(|cell| ratio(cell, cell.runs.get(at))).collect(),
    };
    HeatMap {
        title: "All contenders".to_owned(),
        measure: OVER_BEST.to_owned(),
        columns: cells.iter().map(|cell| format!("{}, {}", cell.source, cell.device)).collect(),
        rows: contenders.iter().enumerate().map(row).collect(),
    }
}
