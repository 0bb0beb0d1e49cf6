//! Findings for tests: every kind of plot and cell, published series, and texts that would break out of the page.

use crate::findings::{Axis, Cell, Claim, Findings, HeatMap, HeatRow, Origin, Plot, PlotKind, Series, Table, Verdict};

/// A text that ends scripts, quotes and elements if it is not escaped.
pub(crate) const HOSTILE: &str = "</script><script>alert(1)</script>\"'&amp;<b>bold</b>\u{2028}";

/// Returns findings that hold together.
pub(crate) fn findings() -> Findings {
    let text = str::to_owned;
    let table = Table {
        title: text("Time by threshold"),
        columns: ["threshold", "eager, s", "ratio", "note"].map(text).to_vec(),
        rows: vec![
            vec![Cell::Count(4), Cell::Number(12.345_678), Cell::Number(1.5), Cell::Text(text("as published"))],
            vec![Cell::Count(1_234_567), Cell::Number(0.01), Cell::Empty(()), Cell::Text(text(HOSTILE))],
        ],
    };
    let claim = |what: &str, verdict| Claim {
        what: text(what),
        published: text("1.5 to 2.1"),
        found: text("1.8"),
        verdict,
        can_flip: false,
        remark: text(if verdict == Verdict::Reproduced { "" } else { "The disk is another." }),
    };
    Findings {
        experiment: text("example"),
        title: text("What a threshold costs"),
        source: text("Ma et al., Lazy Exact Deduplication, figure 12"),
        command: text("onefold lab paper example"),
        origin: Origin {
            version: text("0.1.0"),
            processor: text("A processor"),
            processors: 2,
            memory: 24 << 30,
            kernel: text("Linux 6.1"),
            time: text("2025-11-22T07:17:00Z"),
        },
        notes: vec![text("All times are those of a modeled disk."), text(HOSTILE)],
        tables: vec![table],
        plots: plots(),
        heat_maps: vec![HeatMap {
            title: text("Time by schedule and device"),
            measure: text("time over the shortest"),
            columns: ["hdd", HOSTILE].map(text).to_vec(),
            rows: vec![
                HeatRow { name: text("lazy"), values: vec![Some(1.0), Some(10.0)] },
                HeatRow { name: text(HOSTILE), values: vec![Some(100.0), None] },
            ],
        }],
        claims: vec![
            claim("lazy is faster than eager", Verdict::Reproduced),
            claim("the turn comes at 20", Verdict::NotReproduced),
        ],
        seconds: 12.5,
    }
}

fn plots() -> Vec<Plot> {
    let axis = |title: &str, is_logarithmic| Axis { title: title.to_owned(), is_logarithmic, names: Vec::new() };
    let schedules = || Axis {
        title: "schedule".to_owned(),
        is_logarithmic: false,
        names: ["eager", HOSTILE, "adaptive"].map(str::to_owned).to_vec(),
    };
    let series = |name: &str, is_published, points: &[(f64, f64)]| Series {
        name: name.to_owned(),
        is_published,
        points: points.to_vec(),
    };
    let plot = |title: &str, x, y, kind, series| Plot { title: title.to_owned(), x, y, kind, series };
    vec![
        plot(
            "Time by threshold",
            axis("threshold", false),
            axis("time, s", false),
            PlotKind::Lines,
            vec![
                series("lazy", false, &[(4.0, 9.0), (20.0, 5.0), (60.0, 6.5)]),
                series("lazy", true, &[(4.0, 8.0), (20.0, 4.5), (60.0, 6.0)]),
            ],
        ),
        plot(
            "Time by latency",
            axis("latency of a lookup, s", true),
            axis("time, s", true),
            PlotKind::Lines,
            vec![
                series(HOSTILE, false, &[(1e-7, 1.0), (1e-5, 1.2), (1e-3, 30.0), (1e-2, 290.0)]),
                series("eager", false, &[(1e-7, 0.9), (1e-5, 2.0), (1e-3, 110.0), (1e-2, 1100.0)]),
            ],
        ),
        plot(
            "Reads by schedule",
            schedules(),
            axis("reads", false),
            PlotKind::Bars,
            vec![
                series("lookups", false, &[(0.0, 100.0), (1.0, 40.0), (2.0, 30.0)]),
                series("lookups", true, &[(0.0, 110.0), (1.0, 50.0)]),
            ],
        ),
        plot(
            "Where the time goes",
            schedules(),
            axis("time, s", false),
            PlotKind::StackedBars,
            vec![
                series("processor", false, &[(0.0, 3.0), (1.0, 2.0), (2.0, 2.5)]),
                series("device", false, &[(0.0, 9.0), (1.0, 4.0), (2.0, 3.0)]),
            ],
        ),
    ]
}
