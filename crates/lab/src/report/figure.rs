//! A plot as plotly.js takes it: data and layout as JSON. Colors are those of the page, which knows light and dark.

use serde_json::{Value, json};

use crate::findings::{Axis, Plot, PlotKind, Series};

/// Most points of a series that each have a marker: with more they cover the line.
const MARKED_POINTS_MAX: usize = 150;

/// Characters of one line of a name at an axis; a longer word has its own line.
const NAME_WIDTH: usize = 16;

/// Shapes of markers, which distinguish series without color.
const SYMBOLS: [&str; 8] = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "star", "hexagon"];

/// Returns the data and the layout of a plot. Points that were not measured are left out.
///
/// Each of the data has in `meta` the number of its color; a published series has that of ours of the same name.
pub(crate) fn figure(plot: &Plot) -> Value {
    let data: Vec<Value> = plot.series.iter().map(|series| trace(plot, series)).collect();
    let mode = if plot.kind == PlotKind::StackedBars { "stack" } else { "group" };
    let mut y = axis(&plot.y);
    y["showspikes"] = json!(false);
    json!({
        "data": data,
        "layout": {
            "xaxis": axis(&plot.x),
            "yaxis": y,
            "barmode": mode,
            "bargap": 0.25,
            "bargroupgap": 0.05,
            "hovermode": "x unified",
            "showlegend": true,
            "legend": {"traceorder": "normal"},
        },
    })
}

/// Returns how many points of a series were not measured.
pub(crate) fn missing(series: &Series) -> usize {
    series.points.iter().filter(|point| !is_measured(point)).count()
}

fn is_measured((x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

fn trace(plot: &Plot, series: &Series) -> Value {
    let (x, y): (Vec<f64>, Vec<f64>) = series.points.iter().filter(|point| is_measured(point)).copied().unzip();
    let color = color(plot, series);
    let name = if series.is_published { format!("{} (published)", series.name) } else { series.name.clone() };
    let is_published = series.is_published;
    let mut trace = match plot.kind {
        PlotKind::Lines => {
            let hollow = if is_published { "-open" } else { "" };
            let symbol = format!("{}{hollow}", SYMBOLS[color % SYMBOLS.len()]);
            json!({
                "type": "scatter",
                "mode": if x.len() <= MARKED_POINTS_MAX { "lines+markers" } else { "lines" },
                "line": {"width": 2, "dash": if is_published { "dash" } else { "solid" }},
                "marker": {"size": 8, "symbol": symbol, "line": {"width": if is_published { 2 } else { 0 }}},
                // Markers at the edge are drawn whole.
                "cliponaxis": false,
            })
        }
        PlotKind::Bars | PlotKind::StackedBars if is_published => json!({
            "type": "bar",
            "marker": {"line": {"width": 2}, "pattern": {"shape": "/", "fillmode": "replace", "size": 6, "solidity": 0.2}},
        }),
        PlotKind::Bars | PlotKind::StackedBars => json!({"type": "bar", "marker": {"line": {"width": 1}}}),
    };
    trace["name"] = json!(verbatim(&name));
    trace["x"] = json!(x);
    trace["y"] = json!(y);
    trace["meta"] = json!({"color": color, "is_published": is_published});
    trace
}

/// Returns the index of a series' name among the distinct names of the plot.
fn color(plot: &Plot, series: &Series) -> usize {
    let mut names: Vec<&str> = Vec::new();
    for Series { name, .. } in &plot.series {
        if *name == series.name {
            break;
        }
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.len()
}

fn axis(axis: &Axis) -> Value {
    let mut shown = json!({
        "title": {"text": verbatim(&axis.title), "standoff": 12},
        "automargin": true,
        "zeroline": false,
        "ticks": "outside",
    });
    if axis.is_logarithmic {
        shown["type"] = json!("log");
        shown["exponentformat"] = json!("power");
        shown["minexponent"] = json!(4);
    } else if axis.names.is_empty() {
        shown["type"] = json!("linear");
        shown["exponentformat"] = json!("SI");
        shown["separatethousands"] = json!(true);
    } else {
        let places: Vec<usize> = (0..axis.names.len()).collect();
        let names: Vec<String> = axis.names.iter().map(|name| on_lines(name)).collect();
        shown["type"] = json!("linear");
        shown["tickmode"] = json!("array");
        shown["tickvals"] = json!(places);
        shown["ticktext"] = json!(names);
        shown["showgrid"] = json!(false);
        // All names are shown: where space is short, plotly rotates them to end below their tick.
        shown["ticklabeloverflow"] = json!("allow");
        shown["autotickangles"] = json!([0, -45, -90]);
    }
    shown
}

/// Breaks a name into lines between words.
fn on_lines(name: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= NAME_WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| verbatim(line)).collect();
    lines.join("<br>")
}

/// Escapes a text, so that plotly.js shows it literally.
fn verbatim(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn names_are_shown_as_they_are_and_break_between_words() {
        assert_eq!(verbatim("a<b> & c"), "a&lt;b&gt; &amp; c");
        assert_eq!(on_lines("lazy with a threshold of 20"), "lazy with a<br>threshold of 20");
        assert_eq!(on_lines("<br>"), "&lt;br&gt;");
    }

    #[test]
    fn a_published_series_is_dashed_and_hollow_in_the_color_of_ours() {
        let plots = example::findings().plots;
        let lines = figure(&plots[0]);
        let [ours, published] = [&lines["data"][0], &lines["data"][1]];
        assert_eq!(ours["meta"]["color"], published["meta"]["color"]);
        let colors =
            figure(&plots[3])["data"].as_array().unwrap().iter().map(|data| data["meta"]["color"].clone()).collect();
        assert_eq!(Value::Array(colors), json!([0, 1]));
        assert_eq!((&ours["line"]["dash"], &published["line"]["dash"]), (&json!("solid"), &json!("dash")));
        assert_eq!(
            (&ours["marker"]["symbol"], &published["marker"]["symbol"]),
            (&json!("circle"), &json!("circle-open"))
        );
        assert_eq!((&ours["name"], &published["name"]), (&json!("lazy"), &json!("lazy (published)")));
        let bars = figure(&plots[2]);
        assert_eq!(bars["data"][0]["marker"]["pattern"], Value::Null);
        assert_eq!(bars["data"][1]["marker"]["pattern"]["shape"], "/");
    }

    #[test]
    fn axes_are_linear_logarithmic_or_of_names() {
        let plots = example::findings().plots;
        let types = |at: usize| ["xaxis", "yaxis"].map(|axis| figure(&plots[at])["layout"][axis]["type"].clone());
        assert_eq!(types(0), ["linear", "linear"]);
        assert_eq!(types(1), ["log", "log"]);
        let stacked = figure(&plots[3]);
        assert_eq!(stacked["layout"]["barmode"], "stack");
        assert_eq!(stacked["layout"]["xaxis"]["tickvals"], json!([0, 1, 2]));
    }

    #[test]
    fn points_that_were_not_measured_are_left_out_and_counted() {
        let mut plot = example::findings().plots.swap_remove(0);
        plot.series[0].points[1].1 = f64::NAN;
        plot.series[0].points[2].0 = f64::INFINITY;
        let figure = figure(&plot);
        assert_eq!((&figure["data"][0]["x"], &figure["data"][0]["y"]), (&json!([4.0]), &json!([9.0])));
        assert_eq!((missing(&plot.series[0]), missing(&plot.series[1])), (2, 0));
    }
}
