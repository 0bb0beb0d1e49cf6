//! Tests of comparisons, and of the adaptive schedule by them.

use onefold_engine::monitor::Silent;

use super::*;
use crate::findings::{Cell as Field, Origin};
use crate::report::html::to_html;
use crate::trace::file::write_events;
use crate::trace::synth::{Synth, SynthSpec};

/// A comparison at equal memory on a modeled disk, with filter, cache and memtable as for a much larger source.
fn comparison<'a>(sources: Vec<Chunks>, devices: &[&str], scratch: &'a Path) -> Comparison<'a> {
    Comparison {
        sources,
        devices: devices.iter().map(|name| Device::named(name).unwrap()).collect(),
        rules: Rules { set: Vec::new(), windows: vec![64, 2048] },
        scale: 128,
        is_one_session: false,
        threads: 2,
        scratch,
        monitor: &Silent,
    }
}

fn device_times(cells: &[Cell]) -> Vec<f64> {
    cells.iter().flat_map(|cell| &cell.runs).map(|run| run.device_seconds).collect()
}

#[test]
fn threads_change_nothing_and_the_best_is_found() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("synthetic");
    let spec = SynthSpec { seed: 4, versions: 3, objects: 100, modified: 0.4, pooled: 0.3, ..SynthSpec::default() };
    write_events(&trace, "", &mut Synth::new(spec).unwrap()).unwrap();
    let sources = vec![Chunks::Trace(trace), Chunks::Adversarial { seed: 9, chunks: 20_000 }];
    let two = comparison(sources, &["hdd", "nvme"], scratch.path());
    let cells = compare(&two).unwrap();
    let names: Vec<_> = cells.iter().map(|cell| (cell.source.as_str(), cell.device.as_str())).collect();
    let expected = [("synthetic", "hdd"), ("synthetic", "nvme"), ("adversarial 9", "hdd"), ("adversarial 9", "nvme")];
    assert_eq!(names, expected);
    let alone = compare(&Comparison { threads: 1, ..two.clone() }).unwrap();
    assert_eq!(device_times(&cells), device_times(&alone));
    for cell in &cells {
        let rivals: Vec<f64> = cell.runs[1..].iter().map(|run| run.device_seconds).collect();
        assert_eq!((cell.runs[0].schedule, rivals.len()), (ADAPTIVE, 4 * 3));
        let best = rivals.iter().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(cell.regret(), Some(cell.runs[0].device_seconds / best));
        assert!(rivals.iter().any(|seconds| 1.1 * best < *seconds), "windows and schedules make no difference");
        assert_eq!(cell.runs[0].measured.sessions.len(), cell.runs[5].measured.sessions.len());
    }
    assert_eq!(cells[0].runs[0].measured.sessions.len(), 3);
    let joined = compare(&Comparison { is_one_session: true, ..two.clone() }).unwrap();
    assert_eq!(joined[0].runs[0].measured.sessions.len(), 1);
    assert_eq!(joined[0].runs[0].measured.unique, cells[0].runs[0].measured.unique);
}

#[test]
fn findings_have_a_row_for_each_cell_and_all_runs() {
    let scratch = tempfile::tempdir().unwrap();
    let sources = (1..=2).map(|seed| Chunks::Adversarial { seed, chunks: 5_000 }).collect();
    let comparison = comparison(sources, &["ssd"], scratch.path());
    let findings = table::findings(&comparison, Origin::default(), "command".to_owned()).unwrap();
    let [regrets, runs] = &findings.tables[..] else { panic!("{:?}", findings.tables) };
    assert_eq!((regrets.rows.len(), runs.rows.len()), (2, 2 * 13));
    let number = |cell: &Field| if let Field::Number(number) = cell { *number } else { panic!("{cell:?}") };
    for row in &regrets.rows {
        // Adaptive over the best rival; one of the rivals is the best.
        assert!((number(&row[6]) - number(&row[2]) / number(&row[3])).abs() < 1e-9, "{row:?}");
        let best = row[7..].iter().map(number).fold(f64::INFINITY, f64::min);
        assert!((best - 1.0).abs() < 1e-9, "{row:?}");
    }
    let worst = regrets.rows.iter().map(|row| number(&row[6])).fold(0.0, f64::max);
    assert!(findings.notes[0].starts_with(&format!("Regret: at worst {worst:.3}, ")), "{:?}", findings.notes);
    let [schedules, all] = &findings.heat_maps[..] else { panic!("{:?}", findings.heat_maps) };
    assert_eq!((schedules.rows.len(), schedules.columns.len()), (2, 5));
    assert_eq!((all.rows.len(), all.columns.len()), (13, 2));
    assert_eq!(all.rows[0].values[0], schedules.rows[0].values[0]);
    assert_eq!(to_html(&[findings]).unwrap().matches("class=\"heat\"").count(), 2);
}

#[test]
fn the_first_error_ends_all() {
    let done = Mutex::new(0);
    let apply = |number: &u32| {
        *done.lock().unwrap() += 1;
        ensure!(*number != 3, "three");
        Ok(*number)
    };
    let items: Vec<u32> = (0..1000).collect();
    assert_eq!(in_parallel(4, &items[..3], apply).unwrap(), [0, 1, 2]);
    assert_eq!(in_parallel(4, &items, apply).unwrap_err().to_string(), "three");
    assert!(*done.lock().unwrap() < 900);
    assert!(in_parallel(0, &items[..0], apply).unwrap().is_empty());
}

/// Limit of the regret on the streams of [`SEEDS`].
const REGRET_MAX: f64 = 1.15;
/// Seeds of the adversarial streams.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// Chunks of each: more than any schedule keeps pending.
const CHUNKS: u64 = 80_000;

#[test]
fn the_regret_of_adaptive_has_a_limit_on_every_adversarial_stream() {
    let scratch = tempfile::tempdir().unwrap();
    let sources = SEEDS.map(|seed| Chunks::Adversarial { seed, chunks: CHUNKS }).collect();
    let mut comparison = comparison(sources, &["hdd", "ssd"], scratch.path());
    comparison.rules.windows = vec![0, 64, 2048];
    let cells = compare(&comparison).unwrap();
    assert_eq!(cells.len(), 2 * SEEDS.count());
    // All of them: what lowers one may raise another.
    let regrets: Vec<_> = cells.iter().map(table::summary).collect();
    let worst = cells.iter().map(|cell| cell.regret().unwrap()).fold(0.0, f64::max);
    assert!(worst <= REGRET_MAX, "{}", regrets.join("\n"));
}

/// In the first phase of this stream the memtable answers all lookups, so that those of the plan in use cost nothing; then it is written, and each of
/// them takes a seek. The plan must change after a few of these, not after a trace of 4,096 chunks: the regret was 8 then.
#[test]
fn a_plan_whose_lookups_begin_to_read_is_left_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let mut comparison = comparison(vec![Chunks::Adversarial { seed: 101, chunks: CHUNKS }], &["hdd"], scratch.path());
    comparison.rules.windows = vec![2048];
    let cells = compare(&comparison).unwrap();
    let regret = cells[0].regret().unwrap();
    assert!(regret <= REGRET_MAX, "{}", table::summary(&cells[0]));
}
