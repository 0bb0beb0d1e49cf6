//! `lab report`: its page, opened in a real browser, and what it refuses.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::fixture::Fixture;

/// Ends scripts, quotes and elements, where it is put into the page as it is.
const HOSTILE: &str = "</script><script>alert(1)</script>\"'><img src=http://127.0.0.1:9/x onerror=alert(1)>&amp;";

fn series(name: &str, is_published: bool, points: &Value) -> Value {
    json!({"name": name, "is_published": is_published, "points": points})
}

fn plot(title: &str, kind: &str, x: &Value, y: &Value, series: &[Value]) -> Value {
    json!({"title": title, "x": x, "y": y, "kind": kind, "series": series})
}

/// Returns findings with every kind of plot. The number of marks of each series is in [`MARKS`].
fn findings() -> Value {
    let linear = |title: &str| json!({"title": title, "is_logarithmic": false});
    let logarithmic = |title: &str| json!({"title": title, "is_logarithmic": true});
    let names = json!({"title": HOSTILE, "is_logarithmic": false, "names": ["eager", HOSTILE, "a name of many words, which breaks"]});
    let lines = [
        series("lazy", false, &json!([[4, 9.5], [20, 5], [40, null], [60, 6.5]])),
        series("lazy", true, &json!([[4, 8], [20, 4.5]])),
    ];
    let logs = [
        series(HOSTILE, false, &json!([[1e-7, 1], [1e-5, 2.5], [1e-3, 30], [1e-2, 290]])),
        series("eager", false, &json!([[1e-7, 0.9], [1e-2, 1100]])),
    ];
    let bars = [
        series("lookups", false, &json!([[0, 100], [1, 40], [2, 30]])),
        series("lookups", true, &json!([[0, 110], [1, 50]])),
    ];
    let stacked = [
        series("processor", false, &json!([[0, 3], [1, 2], [2, 2.5]])),
        series("device", false, &json!([[0, 9], [1, 4], [2, 3]])),
        series("network", false, &json!([[2, 1]])),
    ];
    json!({
        "experiment": "example", "title": HOSTILE, "source": HOSTILE, "command": HOSTILE,
        "origin": {"version": HOSTILE, "processor": HOSTILE, "processors": 2, "memory": 1_u64 << 34, "kernel": HOSTILE, "time": HOSTILE},
        "notes": [HOSTILE, "a note"],
        "tables": [{"title": HOSTILE, "columns": [HOSTILE, "time, s"], "rows": [[HOSTILE, 1.5], [1_234_567, null]]}],
        "plots": [
            plot(HOSTILE, "lines", &linear(HOSTILE), &linear("time, s"), &lines),
            plot("Logarithmic", "lines", &logarithmic("latency, s"), &logarithmic(HOSTILE), &logs),
            plot("Bars", "bars", &names, &linear("reads"), &bars),
            plot("Stacked", "stacked-bars", &names, &linear("time, s"), &stacked),
        ],
        "heat_maps": [{"title": HOSTILE, "measure": HOSTILE, "columns": ["hdd", HOSTILE], "rows": [
            {"name": "lazy", "values": [1, 1000]},
            {"name": HOSTILE, "values": [10, null]},
        ]}],
        "claims": [
            {"what": HOSTILE, "published": HOSTILE, "found": HOSTILE, "verdict": "holds"},
            {"what": "turn", "published": "20", "found": "30", "holds": false, "remark": HOSTILE},
        ],
        "seconds": 1.5,
    })
}

/// What stands in each plot of [`findings`]: for each series the marks, then the lines.
const MARKS: [(&[u64], u64); 4] = [(&[3, 2], 2), (&[4, 2], 2), (&[3, 2], 0), (&[3, 3, 1], 0)];

/// Returns for each plot the marks of each series that have a size, the lines that have one, and the texts of its legend.
const COUNT: &str = "[...document.querySelectorAll('.plot')].map(plot => {
    const sized = shape => { const box = shape.getBoundingClientRect(); return 1 < box.width && 1 < box.height };
    const count = (within, shapes) => [...within.querySelectorAll(shapes)].filter(sized).length;
    return {
        marks: [...plot.querySelectorAll('.trace.scatter, .trace.bars')].map(trace => count(trace, '.point, .point > path')
            - count(trace, 'g.point')),
        lines: count(plot, '.js-line'),
        legend: [...plot.querySelectorAll('.legendtext')].map(text => text.textContent),
        width: plot.querySelector('.main-svg').getBoundingClientRect().width,
        ground: getComputedStyle(plot.querySelector('.legendtext')).fill,
    };
})";

#[track_caller]
fn assert_drawn(plots: &Value) {
    let plots = plots.as_array().unwrap();
    assert_eq!(plots.len(), MARKS.len());
    for (plot, (marks, lines)) in plots.iter().zip(MARKS) {
        assert_eq!((&plot["marks"], &plot["lines"]), (&json!(marks), &json!(lines)), "{plot}");
    }
}

#[test]
fn a_report_is_drawn_in_a_browser_without_complaint_or_request() {
    let fixture = Fixture::without_repository(None);
    let other = json!({"experiment": "other", "title": "Other", "source": "", "command": "", "origin": {"version": "",
        "processor": "", "processors": 0, "memory": 0, "kernel": "", "time": ""}, "notes": [], "tables": [], "plots": [],
        "claims": [], "seconds": 0});
    fs::write(fixture.path("a.json"), findings().to_string()).unwrap();
    fs::write(fixture.path("b.json"), json!([other]).to_string()).unwrap();
    let written =
        fixture.run(["lab", "report", "a.json", "b.json", "--output", "report.html", "--json"]).code(0).json();
    let page = fixture.path("report.html");
    let bytes = fs::metadata(&page).unwrap().len();
    assert_eq!(written, json!({"message_type": "report_written", "experiments": 2, "plots": 4, "bytes": bytes}));

    let mut browser = Browser::start();
    browser.open(&page);
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.wait_for("document.documentElement.dataset.drawn === '4'");
    let plots = browser.evaluate(COUNT);
    assert_drawn(&plots);
    assert_eq!(plots[0]["legend"], json!(["lazy", "lazy (published)"]));
    assert_eq!(plots[1]["legend"], json!([HOSTILE, "eager"]));

    // Texts are texts, wherever they stand.
    assert_eq!(browser.evaluate("document.querySelectorAll('article').length"), json!(2));
    assert_eq!(browser.evaluate("document.querySelector('article h2').textContent"), json!(HOSTILE));
    assert_eq!(browser.evaluate("document.querySelector('figcaption').textContent"), json!(HOSTILE));
    assert_eq!(browser.evaluate("document.querySelector('.xtitle').textContent"), json!(HOSTILE));
    assert_eq!(browser.evaluate("document.querySelectorAll('script').length"), json!(3));
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), json!(0));
    let verdicts = "[...document.querySelectorAll('.verdict')].map(mark => mark.textContent.slice(2))";
    assert_eq!(
        browser.evaluate(verdicts),
        json!(["holds qualitatively", "does not hold", "holds qualitatively", "does not hold"])
    );
    // No button sends anything anywhere.
    let buttons =
        "[...document.querySelector('.plot').querySelectorAll('.modebar-btn')].map(button => button.dataset.title)";
    assert_eq!(browser.evaluate(buttons), json!(["Download plot", "Zoom", "Pan", "Reset axes"]));
    let missing = "[...document.querySelectorAll('figure p')].map(note => note.textContent)";
    let measure = format!("{HOSTILE}, from 1 (light) to 1000 (dark)");
    assert_eq!(browser.evaluate(missing), json!(["lazy: 1 point was not measured and is not drawn.", measure]));
    // Numbers of a heat map are colored by their size, and a missing one is not.
    let shown = "[...document.querySelectorAll('.heat td')].map(cell => [cell.textContent, getComputedStyle(cell).backgroundColor])";
    let colors = [
        ("1", "rgba(213, 94, 0, 0)"),
        ("1000", "rgba(213, 94, 0, 0.75)"),
        ("10", "rgba(213, 94, 0, 0.25)"),
        ("\u{2013}", "rgba(213, 94, 0, 0)"),
    ];
    assert_eq!(browser.evaluate(shown), json!(colors));

    // Under the pointer a plot says what is there.
    browser.evaluate("document.getElementById('plot-2').scrollIntoView({behavior: 'instant'})");
    let position = browser.evaluate(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])(
        document.querySelector('#plot-2 .nsewdrag').getBoundingClientRect())",
    );
    browser.call("Input.dispatchMouseEvent", &json!({"type": "mouseMoved", "x": position[0], "y": position[1]}));
    browser.wait_for("document.querySelector('#plot-2 .hoverlayer .legendtext') !== null");
    let said =
        browser.evaluate("[...document.querySelectorAll('#plot-2 .hoverlayer text')].map(text => text.textContent)");
    // The name is broken into lines at its spaces.
    assert_eq!(said, json!([HOSTILE.replace(' ', ""), "lookups : 40", "lookups (published) : 50"]));

    // The page follows the reader's colors, the width of the window, and paper.
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", &dark);
    let ground = plots[0]["ground"].as_str().unwrap();
    browser.wait_for(&format!("({COUNT})[0].ground !== '{ground}'"));
    assert_drawn(&browser.evaluate(COUNT));
    let narrow = json!({"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", &narrow);
    browser.wait_for(&format!("({COUNT}).every(plot => plot.width < 400)"));
    assert_drawn(&browser.evaluate(COUNT));
    assert!(browser.evaluate("document.documentElement.scrollWidth").as_u64().unwrap() <= 400);
    let printed = browser.call("Page.printToPDF", &json!({}));
    assert!(100_000 < printed["data"].as_str().unwrap().len());

    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    assert_eq!(browser.requested(), [format!("file://{}", page.display())]);
}

/// What the test above relies on: nothing of this goes unnoticed.
#[test]
fn the_browser_notices_complaints_exceptions_and_requests() {
    let directory = tempfile::tempdir().unwrap();
    let noticed = |name: &str, page: &str| {
        let path = directory.path().join(name);
        fs::write(&path, page).unwrap();
        path
    };
    let mut browser = Browser::start();
    let mut count = 0;
    let mut complains = |browser: &mut Browser, path: &Path, method: &str| {
        browser.open(path);
        let complaints = browser.complaints();
        assert!(count < complaints.len(), "{}", path.display());
        assert!(complaints[count..].iter().any(|event| event["method"] == method), "{complaints:?}");
        count = complaints.len();
    };
    complains(&mut browser, &noticed("error.html", "<script>console.error('e')</script>"), "Runtime.consoleAPICalled");
    complains(&mut browser, &noticed("warning.html", "<script>console.warn('w')</script>"), "Runtime.consoleAPICalled");
    complains(&mut browser, &noticed("exception.html", "<script>throw Error('x')</script>"), "Runtime.exceptionThrown");
    let policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'none'\"><script>1</script>";
    complains(&mut browser, &noticed("policy.html", policy), "Log.entryAdded");
    let asking = noticed("asking.html", "<img src='http://127.0.0.1:9/x.png'>");
    complains(&mut browser, &asking, "Log.entryAdded");
    assert!(browser.requested().contains(&"http://127.0.0.1:9/x.png"));
}

#[test]
fn findings_that_cannot_be_shown_are_refused_with_their_position_and_nothing_is_written() {
    let fixture = Fixture::without_repository(None);
    let report = ["lab", "report", "a.json", "--output", "report.html"];
    let mut shown = findings();
    let refused = |shown: &Value, wanted: &str| {
        fs::write(fixture.path("a.json"), shown.to_string()).unwrap();
        fixture.run(report).code(1).says(wanted);
        assert!(!fixture.path("report.html").exists());
    };
    shown["plots"][1]["series"][1]["points"][0][1] = json!(0);
    refused(&shown, "series 2, \"eager\": point 1, y: 0 on a logarithmic axis");
    shown["tables"][0]["rows"][1] = json!([1]);
    refused(&shown, "row 2 has 1 cells for 2 columns");
    refused(&json!({"experiment": 1}), "a.json: invalid type: integer `1`, expected a string at line 1 column 15");
    fixture.run(["lab", "report", "none.json", "--output", "report.html"]).code(1).says("none.json: No such file");
    // What is there is not written over.
    fs::write(fixture.path("a.json"), findings().to_string()).unwrap();
    let made = fixture.run(report).code(0);
    assert!(made.stdout().starts_with("wrote report.html: 1 experiment, 4 plots, 1."), "{}", made.stdout());
    let before = fs::read(fixture.path("report.html")).unwrap();
    fixture.run(report).code(1).says("write report.html: File exists");
    assert_eq!(fs::read(fixture.path("report.html")).unwrap(), before);
}
