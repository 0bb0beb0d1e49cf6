//! Formatting of numbers in tables: a sensible number of digits, equal within a column.

use crate::findings::Cell;

/// Digits of a number that are printed, those before the point always.
const DIGITS: i32 = 4;

/// Below it numbers have an exponent.
const PLAIN_MIN: f64 = 1e-4;

/// Prints a column of a table; nothing where nothing was measured.
///
/// Numbers have four digits, all before the point, and no zeros at the end that the whole column has. Counts have all their digits.
pub(crate) fn column<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Vec<String> {
    let numbers = cells.clone().filter_map(|cell| match cell {
        Cell::Number(number) => Some(*number),
        Cell::Count(_) | Cell::Text(_) | Cell::Empty(()) => None,
    });
    let decimals_max = numbers.map(decimals_needed).max().unwrap_or(0);
    let print = |cell: &Cell| match cell {
        Cell::Count(count) => count.to_string(),
        Cell::Number(number) => print(*number, decimals_max),
        Cell::Text(text) => text.clone(),
        Cell::Empty(()) => String::new(),
    };
    cells.map(print).collect()
}

/// Formats a single number.
pub(crate) fn number(number: f64) -> String {
    print(number, decimals_needed(number))
}

/// Returns true if a cell is set to the right.
pub(crate) fn is_number(cell: &Cell) -> bool {
    match cell {
        Cell::Count(_) | Cell::Number(_) => true,
        Cell::Text(_) | Cell::Empty(()) => false,
    }
}

fn print(number: f64, decimals_max: usize) -> String {
    if has_exponent(number) {
        let digits = format!("{number:.3e}");
        // The format always has an exponent.
        return digits.split_once('e').map_or(digits.clone(), |(mantissa, exponent)| {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        });
    }
    format!("{number:.*}", decimals(number).min(decimals_max))
}

fn has_exponent(number: f64) -> bool {
    number != 0.0 && number.abs() < PLAIN_MIN
}

/// Returns how many digits after the point make [`DIGITS`] in all.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "logarithms of doubles are small numbers")]
fn decimals(number: f64) -> usize {
    if number == 0.0 || !number.is_finite() {
        return 0;
    }
    let before = number.abs().log10().floor() as i32 + 1;
    (DIGITS - before).max(0) as usize
}

/// Returns how many of them are left without zeros at the end.
fn decimals_needed(number: f64) -> usize {
    if has_exponent(number) {
        return 0;
    }
    let digits = format!("{number:.*}", decimals(number));
    digits.split_once('.').map_or(0, |(_, after)| after.trim_end_matches('0').len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_alone_have_four_digits_and_an_exponent_only_below_a_ten_thousandth() {
        for (value, wanted) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (12.345_678, "12.35"),
            (123_456.7, "123457"),
            (9.99996, "10"),
            (0.1, "0.1"),
            (0.012_345_6, "0.01235"),
            (0.0001, "0.0001"),
            (0.000_099_9, "9.99e-5"),
            (-0.000_012_345, "-1.234e-5"),
            (1e16, "10000000000000000"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), wanted);
        }
        assert!(!number(f64::MAX).contains('e'));
    }

    #[test]
    fn numbers_of_a_column_have_their_points_below_each_other_as_far_as_digits_go() {
        let cells = [2.0, 1.5, 1.25, 300.0, 1234.5].map(Cell::Number);
        assert_eq!(column(cells.iter()), ["2.00", "1.50", "1.25", "300.0", "1234"]);
        let whole = [Cell::Number(300.0), Cell::Count(12_345_678), Cell::Empty(()), Cell::Text("none".to_owned())];
        assert_eq!(column(whole.iter()), ["300", "12345678", "", "none"]);
    }
}
