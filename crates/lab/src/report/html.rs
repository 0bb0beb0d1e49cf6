//! Findings as one page of HTML with all that it needs: style, plots, the library that draws them.

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use crate::findings::{Cell, Claim, Findings, Plot, Table, Verdict};
use crate::report::check::check;
use crate::report::heat::heat_map;
use crate::report::text::machine;
use crate::report::{digits, figure};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// plotly.js, the bundle with lines, bars and pies; see docs/decisions.
const PLOTLY: &str = include_str!("vendor/plotly/plotly-basic.min.js");
const PLOTLY_VERSION: &str = "4.1.1";
const PLOTLY_LICENSE: &str = include_str!("vendor/plotly/LICENSE");

/// Makes a page of findings. It refuses what does not hold together ([`check`]).
///
/// The page needs nothing else and asks no other computer for anything: its policy (Content-Security-Policy) allows two scripts, by
/// their checksums, and styles that stand in it. Whatever the findings say is text.
pub fn to_html(all: &[Findings]) -> Result<String> {
    all.iter().try_for_each(check)?;
    let figures = figures(all)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Onefold laboratory: " (all.len()) (plural(all.len(), " experiment", " experiments")) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                div class="page" {
                    (header(all))
                    main { (articles(all)) }
                    (footer())
                }
                script type="application/json" id="figures" { (PreEscaped(figures)) }
                script { (PreEscaped(PLOTLY)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(page.into_string())
}

/// Returns the figures of the page as a list in JSON. One at a time is held as a value, which takes many times its text.
fn figures(all: &[Findings]) -> Result<String> {
    let mut figures = String::from("[");
    for plot in all.iter().flat_map(|findings| &findings.plots) {
        if figures.len() != 1 {
            figures.push(',');
        }
        figures.push_str(&in_script(&serde_json::to_string(&figure::figure(plot))?));
    }
    figures.push(']');
    Ok(figures)
}

/// The permissions of the page. plotly.js adds style rules while it draws.
fn policy() -> String {
    let checksum = |script: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)));
    let [plotly, script] = [PLOTLY, SCRIPT].map(checksum);
    format!(
        "default-src 'none'; script-src {plotly} {script}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
}

/// Escapes JSON for a script element, so that no tag begins or ends in it. Its value is unchanged.
fn in_script(json: &str) -> String {
    json.replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

fn plural(count: usize, one: &'static str, more: &'static str) -> &'static str {
    if count == 1 { one } else { more }
}

/// Counts claims by their verdicts.
fn counted(claims: &[Claim]) -> String {
    let of = |verdict: Verdict| claims.iter().filter(|claim| claim.verdict == verdict).count();
    let counts = Verdict::ALL.map(|verdict| (of(verdict), verdict.words()));
    let words: Vec<_> =
        counts.into_iter().filter(|(count, _)| *count != 0).map(|(count, words)| format!("{count} {words}")).collect();
    format!("{} {}: {}", claims.len(), plural(claims.len(), "claim", "claims"), words.join(", "))
}

/// Shows every claim of the page in one table.
fn summary(all: &[Findings]) -> Markup {
    html! {
        section aria-labelledby="summary" {
            h2 id="summary" { "Summary" }
            div class="scroll" {
                table class="claims" {
                    thead {
                        tr {
                            th scope="col" { "Claim" }
                            th scope="col" { "Paper" }
                            th scope="col" { "Ours" }
                            th scope="col" { "Verdict" }
                        }
                    }
                    tbody {
                        @for (number, findings) in all.iter().enumerate() {
                            @for claim in &findings.claims {
                                tr {
                                    td { a href=(format!("#experiment-{number}")) { (findings.experiment) } ": " (claim.what) }
                                    td { (claim.published) }
                                    td { (claim.found) }
                                    td { (mark(claim)) @if claim.can_flip { div class="quiet" { "Noise can flip this." } } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn header(all: &[Findings]) -> Markup {
    let claims: Vec<Claim> = all.iter().flat_map(|findings| findings.claims.clone()).collect();
    html! {
        header {
            h1 { "What the laboratory found" }
            p {
                (all.len()) (plural(all.len(), " experiment", " experiments"))
                @if !claims.is_empty() { "; " (counted(&claims)) }
            }
        }
        @if !claims.is_empty() && 1 < all.len() { (summary(all)) }
        @if 1 < all.len() {
            nav aria-labelledby="contents" {
                h2 id="contents" { "Contents" }
                ol {
                    @for (number, findings) in all.iter().enumerate() {
                        li {
                            a href=(format!("#experiment-{number}")) { (findings.title) } " "
                            @if !findings.claims.is_empty() { span class="quiet" { (counted(&findings.claims)) } }
                        }
                    }
                }
            }
        }
    }
}

fn articles(all: &[Findings]) -> Markup {
    let mut plots = 0;
    let articles = all.iter().enumerate().map(|(number, findings)| {
        let article = article(number, plots, findings);
        plots += findings.plots.len();
        article
    });
    html! { @for article in articles { (article) } }
}

/// Writes one experiment. Its first plot has the number `plots` among those of the page.
fn article(number: usize, plots: usize, findings: &Findings) -> Markup {
    html! {
        article id=(format!("experiment-{number}")) {
            h2 { (findings.title) }
            (facts(findings))
            @if !findings.notes.is_empty() {
                h3 { "Notes" }
                ul { @for note in &findings.notes { li { (note) } } }
            }
            @if !findings.claims.is_empty() { (claims(&findings.claims)) }
            @for (number, plot) in (plots..).zip(&findings.plots) { (figure_slot(number, plot)) }
            @for map in &findings.heat_maps { (heat_map(map)) }
            @if !findings.tables.is_empty() {
                h3 { (plural(findings.tables.len(), "Table", "Tables")) }
                div class="tables" { @for shown in &findings.tables { (table(shown)) } }
            }
        }
    }
}

fn facts(findings: &Findings) -> Markup {
    let Findings { experiment, source, command, origin, seconds, .. } = findings;
    let machine = machine(origin);
    let facts = [("Version", &origin.version), ("Machine", &machine), ("Time", &origin.time)];
    html! {
        dl {
            dt { "Experiment" } dd { code { (experiment) } }
            @if !source.is_empty() { dt { "Source" } dd { (source) } }
            @if !command.is_empty() { dt { "Command" } dd { code { (command) } } }
            @for (name, fact) in facts.into_iter().filter(|(_, fact)| !fact.is_empty()) { dt { (name) } dd { (fact) } }
            dt { "Took" } dd { (digits::number(*seconds)) " s" }
        }
    }
}

fn claims(claims: &[Claim]) -> Markup {
    let has_published = claims.iter().any(|claim| !claim.published.is_empty());
    html! {
        h3 { "Claims" }
        div class="scroll" {
            table class="claims" {
                thead {
                    tr {
                        th scope="col" { "Verdict" }
                        th scope="col" { "What" }
                        @if has_published { th scope="col" { "Published" } }
                        th scope="col" { "Found" }
                    }
                }
                tbody {
                    @for claim in claims {
                        tr {
                            td { (mark(claim)) }
                            td {
                                (claim.what)
                                @if !claim.remark.is_empty() { div class="quiet" { (claim.remark) } }
                            }
                            @if has_published { td { (claim.published) } }
                            td { (claim.found) }
                        }
                    }
                }
            }
        }
    }
}

/// Shows the outcome of a claim by words, a sign, a border and a color.
fn mark(claim: &Claim) -> Markup {
    let (class, sign) = match claim.verdict {
        Verdict::Reproduced | Verdict::Holds => ("verdict holds", "\u{2713}"),
        Verdict::NotReproduced | Verdict::DoesNotHold => ("verdict fails", "\u{2717}"),
        Verdict::ByConstruction | Verdict::CannotBeShown => ("verdict open", "\u{2013}"),
    };
    html! { span class=(class) { (sign) " " (claim.verdict.words()) } }
}

fn figure_slot(number: usize, plot: &Plot) -> Markup {
    let missing = plot.series.iter().map(|series| (series, figure::missing(series)));
    html! {
        figure {
            figcaption { (plot.title) }
            div class="plot" id=(format!("plot-{number}")) role="img" aria-label=(plot.title) {
                noscript { "The plot is drawn by a script, which this browser does not run. The tables have the numbers." }
            }
            @for (series, points) in missing.filter(|(_, points)| 0 < *points) {
                p class="quiet" {
                    (series.name) ": " (points) (plural(points, " point was", " points were")) " not measured and "
                    (plural(points, "is", "are")) " not drawn."
                }
            }
        }
    }
}

fn table(table: &Table) -> Markup {
    let cells = |at: usize| table.rows.iter().filter_map(move |row| row.get(at));
    let columns = 0..table.columns.len();
    let is_right: Vec<bool> = columns.clone().map(|at| cells(at).any(digits::is_number)).collect();
    let printed: Vec<Vec<String>> = columns.map(|at| digits::column(cells(at))).collect();
    let class = |at: usize| is_right.get(at).is_some_and(|is_right| *is_right).then_some("number");
    html! {
        div class="scroll" {
            table {
                caption { (table.title) }
                thead {
                    tr { @for (at, title) in table.columns.iter().enumerate() { th scope="col" class=[class(at)] { (title) } } }
                }
                tbody {
                    @for (number, row) in table.rows.iter().enumerate() {
                        tr {
                            @for (at, (cell, column)) in row.iter().zip(&printed).enumerate() {
                                td class=[class(at)] { (shown(cell, column.get(number).map_or("", String::as_str))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes a cell; counts of five digits and more in groups.
fn shown(cell: &Cell, text: &str) -> Markup {
    match cell {
        Cell::Empty(()) => html! { "\u{2013}" },
        Cell::Count(_) if 4 < text.len() => html! { @for group in groups(text) { span { (group) } } },
        Cell::Count(_) | Cell::Number(_) | Cell::Text(_) => html! { (text) },
    }
}

/// Divides digits into groups of three, from the right.
fn groups(digits: &str) -> Vec<&str> {
    let mut groups = Vec::new();
    let mut left = digits;
    while 3 < left.len() {
        let (before, group) = left.split_at(left.len() - 3);
        groups.push(group);
        left = before;
    }
    groups.push(left);
    groups.reverse();
    groups
}

fn footer() -> Markup {
    html! {
        footer {
            p { "Made by " code { "onefold lab report" } ". Series of a paper are dashed, or hollow." }
            details {
                summary { "Plots are drawn by plotly.js " (PLOTLY_VERSION) ", under the MIT license" }
                pre { (PLOTLY_LICENSE) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example::{self, HOSTILE};

    #[test]
    fn texts_are_escaped_wherever_they_stand() {
        let mut findings = example::findings();
        let Findings { experiment, title, source, command, origin, claims, plots, heat_maps, tables, .. } =
            &mut findings;
        let crate::findings::Origin { version, processor, kernel, time, .. } = origin;
        for text in [experiment, title, source, command, version, processor, kernel, time] {
            *text = HOSTILE.to_owned();
        }
        for claim in claims {
            let Claim { what, published, found, remark, .. } = claim;
            for text in [what, published, found, remark] {
                *text = HOSTILE.to_owned();
            }
        }
        for plot in plots {
            for text in [&mut plot.title, &mut plot.x.title, &mut plot.y.title, &mut plot.series[1].name] {
                *text = HOSTILE.to_owned();
            }
            plot.series[0].points.push((f64::NAN, 1.0));
        }
        let map = &mut heat_maps[0];
        for text in [&mut map.title, &mut map.measure, &mut map.columns[0], &mut map.rows[0].name] {
            *text = HOSTILE.to_owned();
        }
        tables[0].title = HOSTILE.to_owned();
        tables[0].columns[0] = HOSTILE.to_owned();
        let page = to_html(&[findings.clone(), findings]).unwrap();
        assert!(!page.contains("<script>alert"));
        assert!(!page.contains("<b>bold"));
        assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(!page.contains("aria-label=\"</"));
        // Three elements, however many texts there are.
        assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (3, 3));
    }

    #[test]
    fn json_in_a_script_means_the_same_and_holds_no_tag() {
        let value = serde_json::json!([HOSTILE, "<!--", "a & b", "\u{2029}"]);
        let safe = in_script(&value.to_string());
        assert!(safe.is_ascii());
        assert!(!safe.contains(['<', '>', '&']));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }

    #[test]
    fn what_does_not_hold_together_makes_no_page() {
        let mut findings = example::findings();
        drop(findings.tables[0].rows[0].pop());
        let refused = format!("{:#}", to_html(&[example::findings(), findings]).unwrap_err());
        assert!(refused.contains("row 1 has 3 cells for 4 columns"), "{refused}");
    }

    #[test]
    fn verdicts_are_words_and_signs() {
        let page = to_html(&[example::findings()]).unwrap();
        assert!(page.contains("<span class=\"verdict holds\">\u{2713} reproduced</span>"));
        assert!(page.contains("<span class=\"verdict fails\">\u{2717} not reproduced</span>"));
        assert!(page.contains("1 experiment; 2 claims: 1 reproduced, 1 not reproduced"));
        assert!(!page.contains("id=\"summary\""), "one experiment has its claims in sight");
        let mut other = example::findings();
        other.claims[1].verdict = Verdict::CannotBeShown;
        other.claims[1].can_flip = true;
        let page = to_html(&[example::findings(), other]).unwrap();
        let (summary, articles) = page.split_once("<article").unwrap();
        assert_eq!((summary.matches("class=\"verdict").count(), articles.matches("class=\"verdict").count()), (4, 4));
        assert!(summary.contains("4 claims: 2 reproduced, 1 not reproduced, 1 cannot be shown at this scale"));
        assert!(summary.contains("<span class=\"verdict open\">\u{2013} cannot be shown"));
        assert_eq!(summary.matches("Noise can flip this.").count(), 1);
    }

    #[test]
    fn numbers_stand_at_the_right_with_their_digits_in_groups() {
        let page = to_html(&[example::findings()]).unwrap();
        assert!(page.contains("<th scope=\"col\" class=\"number\">threshold</th>"));
        let count = "<td class=\"number\"><span>1</span><span>234</span><span>567</span></td>";
        assert!(page.contains(&format!("{count}<td class=\"number\">0.01</td><td class=\"number\">\u{2013}</td>")));
        assert_eq!((groups("1234"), groups("123456")), (vec!["1", "234"], vec!["123", "456"]));
    }

    #[test]
    fn the_library_is_the_version_that_is_named_with_its_license() {
        assert!(
            PLOTLY
                .lines()
                .take(3)
                .any(|line| line.contains(&format!("plotly.js (basic - minified) v{PLOTLY_VERSION}")))
        );
        assert!(PLOTLY_LICENSE.starts_with("MIT License"));
        assert!(to_html(&[]).unwrap().contains("Permission is hereby granted, free of charge"));
        // It stands in an element of script as it is.
        for ending in ["</script", "<!--"] {
            assert!(!PLOTLY.contains(ending) && !SCRIPT.contains(ending), "{ending}");
        }
    }
}
