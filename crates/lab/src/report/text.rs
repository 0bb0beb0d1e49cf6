//! Findings as text, for a terminal.

use unicode_width::UnicodeWidthStr;

use crate::counts::float;
use crate::findings::{Cell, Claim, Findings, Origin, Table};
use crate::report::digits;

/// Widest line of words, in columns of a terminal. Tables are as wide as they are.
const LINE_WIDTH: usize = 100;

/// Writes findings as lines of text: origin, notes, tables, claims. Plots and heat maps are left out.
///
/// Texts of findings come from files of any origin: control characters are written as escapes.
pub fn to_text(findings: &Findings) -> String {
    let Findings { experiment, title, source, command, origin, notes, tables, claims, seconds, .. } = findings;
    let mut out = Lines::default();
    out.words("", title);
    out.line(&"=".repeat(plain(title).width().clamp(1, LINE_WIDTH)));
    out.line("");
    let took = format!("{} s", digits::number(*seconds));
    let facts = [
        ("Experiment", experiment.as_str()),
        ("Source", source),
        ("Command", command),
        ("Version", &origin.version),
        ("Machine", &machine(origin)),
        ("Time", &origin.time),
        ("Took", &took),
    ];
    for (name, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        out.words(&format!("{name:<12}"), fact);
    }
    if !notes.is_empty() {
        out.line("");
    }
    for note in notes {
        out.words("- ", note);
    }
    for table in tables {
        out.line("");
        out.table(table);
    }
    if !claims.is_empty() {
        out.line("");
        out.line("Claims");
    }
    for claim in claims {
        out.claim(claim);
    }
    out.0
}

/// Describes the machine and program of findings; nothing if unknown.
pub(crate) fn machine(origin: &Origin) -> String {
    let Origin { processor, processors, memory, kernel, .. } = origin;
    let gibibytes = float(*memory) / f64::from(1_u32 << 30);
    let parts = [
        processor.clone(),
        if *processors == 0 { String::new() } else { format!("{processors} processors") },
        if *memory == 0 { String::new() } else { format!("{} GiB of memory", digits::number(gibibytes)) },
        kernel.clone(),
    ];
    let known: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(", ")
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    /// Writes words after a beginning, on as many lines as they need.
    fn words(&mut self, beginning: &str, words: &str) {
        let indent = " ".repeat(beginning.width());
        let mut line = beginning.to_owned();
        let mut is_new = true;
        for word in words.split_whitespace().map(plain) {
            if !is_new && LINE_WIDTH < line.width() + 1 + word.width() {
                self.line(&line);
                line.clone_from(&indent);
                is_new = true;
            }
            if !is_new {
                line.push(' ');
            }
            line.push_str(&word);
            is_new = false;
        }
        self.line(&line);
    }

    fn claim(&mut self, claim: &Claim) {
        self.words(&format!("  {:<19}  ", claim.verdict.words()), &claim.what);
        for (name, text) in [("published", &claim.published), ("found", &claim.found), ("remark", &claim.remark)] {
            if !text.is_empty() {
                self.words(&format!("{:23}{name:<9}  ", ""), text);
            }
        }
    }

    fn table(&mut self, table: &Table) {
        self.words("", &table.title);
        let columns: Vec<Column> =
            table.columns.iter().enumerate().map(|(at, title)| Column::new(table, at, title)).collect();
        for row in 0..columns.iter().map(|column| column.cells.len()).max().unwrap_or(0) {
            self.line(&columns.iter().map(|column| column.cell(row)).collect::<String>());
            if row == 0 {
                self.line(&columns.iter().map(Column::rule).collect::<String>());
            }
        }
    }
}

/// A formatted column of a table, its title first.
struct Column {
    cells: Vec<String>,
    width: usize,
    /// Numbers are set to the right, and with them what else is in their column.
    is_right: bool,
}

impl Column {
    fn new(table: &Table, at: usize, title: &str) -> Self {
        let cells = table.rows.iter().filter_map(|row| row.get(at));
        let is_right = cells.clone().any(digits::is_number);
        let print =
            |(cell, text): (&Cell, String)| if *cell == Cell::Empty(()) { "-".to_owned() } else { plain(&text) };
        let printed = cells.clone().zip(digits::column(cells)).map(print);
        let cells: Vec<String> = std::iter::once(plain(title)).chain(printed).collect();
        let width = cells.iter().map(|cell| cell.width()).max().unwrap_or(0);
        Self { cells, width, is_right }
    }

    /// Returns the line below the title.
    fn rule(&self) -> String {
        format!("  {}", "-".repeat(self.width))
    }

    /// Returns a cell with the distance to the one before it.
    fn cell(&self, row: usize) -> String {
        let text = self.cells.get(row).map_or("", String::as_str);
        let fill = " ".repeat(self.width.saturating_sub(text.width()));
        if self.is_right { format!("  {fill}{text}") } else { format!("  {text}{fill}") }
    }
}

/// Returns a text as one that controls no terminal.
fn plain(text: &str) -> String {
    let escape = |character: char| match character {
        _ if character.is_control() => character.escape_default().to_string(),
        _ => character.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn findings_are_printed_with_aligned_tables_and_claims() {
        let mut findings = example::findings();
        findings.notes[1] = "word ".repeat(30);
        findings.tables[0].rows[1][3] = Cell::Text("\u{1b}[2J\u{4e2d}".to_owned());
        let words = "word ".repeat(19);
        let wanted = format!(
            "What a threshold costs
======================

Experiment  example
Source      Ma et al., Lazy Exact Deduplication, figure 12
Command     onefold lab paper example
Version     0.1.0
Machine     A processor, 2 processors, 24 GiB of memory, Linux 6.1
Time        2025-11-22T07:17:00Z
Took        12.5 s

- All times are those of a modeled disk.
- {}
  {}

Time by threshold
  threshold  eager, s  ratio  note
  ---------  --------  -----  ------------
          4     12.35    1.5  as published
    1234567      0.01      -  \\u{{1b}}[2J\u{4e2d}

Claims
  reproduced           lazy is faster than eager
                       published  1.5 to 2.1
                       found      1.8
  not reproduced       the turn comes at 20
                       published  1.5 to 2.1
                       found      1.8
                       remark     The disk is another.
",
            words.trim_end(),
            "word ".repeat(11).trim_end()
        );
        assert_eq!(to_text(&findings), wanted);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let findings = Findings {
            notes: Vec::new(),
            tables: Vec::new(),
            claims: Vec::new(),
            origin: Origin::default(),
            ..example::findings()
        };
        let text = to_text(&findings);
        let lines: Vec<&str> = text.lines().skip(3).map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(lines, ["Experiment", "Source", "Command", "Took"]);
    }
}
