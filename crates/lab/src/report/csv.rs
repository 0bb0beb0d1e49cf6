//! Tables as CSV (RFC 4180).

use anyhow::Result;
use csv::{IntoInnerError, Terminator, WriterBuilder};

use crate::findings::{Cell, Findings};

/// Writes the tables of findings, one after the other.
///
/// A table is a line with `table`, `row` and the titles of its columns, then a line for each row: the table's title, the row's
/// number from 1, the cells. All lines have as many fields as the widest table needs; narrower ones end in empty fields. Cells are
/// not rounded. A number that is not finite stands for no measurement: its field is empty.
pub fn to_csv(findings: &Findings) -> Result<String> {
    let fields = 2 + findings.tables.iter().map(|table| table.columns.len()).max().unwrap_or(0);
    let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
    let mut write = |beginning: [&str; 2], rest: &mut dyn Iterator<Item = String>| {
        let line = beginning.into_iter().map(str::to_owned).chain(rest);
        writer.write_record(line.chain(std::iter::repeat_with(String::new)).take(fields))
    };
    for table in &findings.tables {
        write(["table", "row"], &mut table.columns.iter().cloned())?;
        for (number, row) in (1_u64..).zip(&table.rows) {
            write([&table.title, &number.to_string()], &mut row.iter().map(field))?;
        }
    }
    Ok(String::from_utf8(writer.into_inner().map_err(IntoInnerError::into_error)?)?)
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::Count(count) => count.to_string(),
        // The shortest digits that are read back as the same number.
        Cell::Number(number) if number.is_finite() => format!("{number:?}"),
        Cell::Number(_) | Cell::Empty(()) => String::new(),
        Cell::Text(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::findings::Table;
    use crate::report::example;

    #[test]
    fn tables_are_written_with_their_titles_and_all_digits() {
        let mut findings = example::findings();
        findings.tables[0].rows[1][3] = Cell::Text("quoted \"text\", with\nlines".to_owned());
        findings.tables.push(Table {
            title: "Narrow".to_owned(),
            columns: vec!["a".to_owned()],
            rows: vec![vec![Cell::Number(1e-7)], vec![Cell::Number(f64::INFINITY)]],
        });
        let wanted = "table,row,threshold,\"eager, s\",ratio,note\r\n\
            Time by threshold,1,4,12.345678,1.5,as published\r\n\
            Time by threshold,2,1234567,0.01,,\"quoted \"\"text\"\", with\nlines\"\r\n\
            table,row,a,,,\r\n\
            Narrow,1,1e-7,,,\r\n\
            Narrow,2,,,,\r\n";
        assert_eq!(to_csv(&findings).unwrap(), wanted);
        findings.tables.clear();
        assert_eq!(to_csv(&findings).unwrap(), "");
    }

    fn cells() -> impl Strategy<Value = Cell> {
        prop_oneof![
            any::<u64>().prop_map(Cell::Count),
            any::<f64>().prop_map(Cell::Number),
            ".*".prop_map(Cell::Text),
            Just(Cell::Empty(())),
        ]
    }

    fn tables() -> impl Strategy<Value = Table> {
        (1_usize..5).prop_flat_map(|columns| {
            let rows = prop::collection::vec(prop::collection::vec(cells(), columns), 0..5);
            (any::<String>(), prop::collection::vec(any::<String>(), columns), rows)
                .prop_map(|(title, columns, rows)| Table { title, columns, rows })
        })
    }

    /// Returns true if a field holds all of a cell.
    fn says(field: &str, cell: &Cell) -> bool {
        match cell {
            Cell::Count(count) => field.parse() == Ok(*count),
            Cell::Number(number) if number.is_finite() => field.parse() == Ok(*number),
            Cell::Number(_) | Cell::Empty(()) => field.is_empty(),
            Cell::Text(text) => field == text,
        }
    }

    proptest! {
        #[test]
        fn a_reader_of_csv_finds_every_table_again(tables in prop::collection::vec(tables(), 0..4)) {
            let findings = Findings { tables, ..example::findings() };
            let text = to_csv(&findings).unwrap();
            // Not flexible: a line with another number of fields is an error.
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
            let mut lines = reader.records().map(|line| line.unwrap());
            for table in &findings.tables {
                let titles = lines.next().unwrap();
                prop_assert_eq!((&titles[0], &titles[1]), ("table", "row"));
                prop_assert!(titles.iter().skip(2).zip(&table.columns).all(|(title, column)| title == column));
                for (number, row) in (1_u64..).zip(&table.rows) {
                    let line = lines.next().unwrap();
                    prop_assert_eq!((&line[0], line[1].parse()), (&*table.title, Ok(number)));
                    prop_assert!(line.iter().skip(2).zip(row).all(|(field, cell)| says(field, cell)), "{:?}", line);
                    prop_assert!(line.iter().skip(2 + row.len()).all(str::is_empty));
                }
            }
            prop_assert!(lines.next().is_none());
        }
    }
}
