//! Heat maps, as tables whose cells are colored. They need no script, and print.

use maud::{Markup, html};

use crate::findings::{Cell, HeatMap};
use crate::report::digits;

/// Writes a heat map. The color of a number is its logarithm between those of the smallest and the largest.
pub(crate) fn heat_map(map: &HeatMap) -> Markup {
    let values = || map.rows.iter().flat_map(|row| row.values.iter().flatten());
    let least = values().copied().fold(f64::INFINITY, f64::min);
    let most = values().copied().fold(0.0, f64::max);
    let heat = |value: f64| {
        if least < most { (value / least).ln() / (most / least).ln() } else { 0.0 }
    };
    html! {
        figure {
            figcaption { (map.title) }
            p class="quiet" {
                (map.measure)
                @if least < most { ", from " (digits::number(least)) " (light) to " (digits::number(most)) " (dark)" }
            }
            div class="scroll" {
                table class="heat" {
                    thead {
                        tr {
                            th {}
                            @for title in &map.columns { th scope="col" class="number" { (title) } }
                        }
                    }
                    tbody {
                        @for row in &map.rows {
                            tr {
                                th scope="row" { (row.name) }
                                @for value in &row.values { (number(*value, heat)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn number(value: Option<f64>, heat: impl Fn(f64) -> f64) -> Markup {
    let Some(value) = value else { return html! { td class="number" { "\u{2013}" } } };
    let cell = Cell::Number(value);
    let text = digits::column(std::iter::once(&cell)).concat();
    html! { td class="number" style=(format!("--heat: {:.3}", heat(value))) { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn a_color_is_the_logarithm_of_the_number_between_the_smallest_and_the_largest() {
        let mut map = example::findings().heat_maps.remove(0);
        let shown = heat_map(&map).into_string();
        for cell in
            ["--heat: 0.000\">1<", "--heat: 0.500\">10<", "--heat: 1.000\">100<", "<td class=\"number\">\u{2013}<"]
        {
            assert!(shown.contains(cell), "{cell}: {shown}");
        }
        assert!(shown.contains("time over the shortest, from 1 (light) to 100 (dark)"), "{shown}");
        map.rows.iter_mut().flat_map(|row| &mut row.values).for_each(|value| *value = Some(3.0));
        let equal = heat_map(&map).into_string();
        assert!(equal.contains("--heat: 0.000\">3<") && !equal.contains("NaN") && !equal.contains("(dark)"), "{equal}");
    }
}
