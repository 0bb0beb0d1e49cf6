//! docs/format.md records the sources that define the format on disk, so that a change of one requires a look at the page.
//!
//! The page has a table of source files and the BLAKE3 of each, without its unit tests. The table must list every `format.rs`
//! of the engine; add other files by hand, with any hash. A changed file is a finding until `cargo xtask tidy --bless`
//! records it.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result};

use super::Finding;
use crate::checkout::Checkout;

const DOCUMENT: &str = "docs/format.md";
const BEGIN: &str = "<!-- format sources: begin -->\n";
const END: &str = "<!-- format sources: end -->";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let Some(document) = checkout.file(DOCUMENT) else {
        return vec![Finding::new(DOCUMENT, 0, "missing")];
    };
    let Some(recorded) = between_marks(&document.text) else {
        return vec![Finding::new(DOCUMENT, 0, "has no table of format sources between its marks")];
    };
    let mut findings = Vec::new();
    for path in sources(checkout, recorded) {
        match row(checkout, &path) {
            None => findings.push(Finding::new(DOCUMENT, 0, format!("names `{path}`, which does not exist"))),
            Some(row) if recorded.contains(&row) => {}
            Some(_) => findings.push(Finding::new(
                &path,
                0,
                format!("differs from the checksum in {DOCUMENT}; update the page, then run tidy --bless"),
            )),
        }
    }
    findings
}

pub(super) fn bless(checkout: &Checkout) -> Result<()> {
    let document = checkout.file(DOCUMENT).context("missing")?;
    let recorded = between_marks(&document.text).context("no table of format sources between its marks")?;
    let mut table = String::from("| Source | BLAKE3 without unit tests |\n|---|---|\n");
    for path in sources(checkout, recorded) {
        // A deleted file has no row.
        write!(table, "{}", row(checkout, &path).unwrap_or_default()).context("write to a string")?;
    }
    let text = document.text.replacen(recorded, &table, 1);
    std::fs::write(checkout.root.join(DOCUMENT), text).context("write")
}

fn between_marks(document: &str) -> Option<&str> {
    let (_, rest) = document.split_once(BEGIN)?;
    rest.split_once(END).map(|(table, _)| table)
}

fn sources(checkout: &Checkout, recorded: &str) -> BTreeSet<String> {
    let in_engine = |path: &&str| path.starts_with("crates/engine/src/") && path.ends_with("/format.rs");
    let found = checkout.files.iter().map(|file| file.path.as_str()).filter(in_engine);
    let named = recorded.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(path, _)| path);
    found.chain(named).map(str::to_owned).collect()
}

fn row(checkout: &Checkout, path: &str) -> Option<String> {
    let file = checkout.file(path)?;
    Some(format!("| `{path}` | `{}` |\n", blake3::hash(file.without_tests().as_bytes()).to_hex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout(table: &str, source: &str) -> Checkout {
        let document = format!("text\n{BEGIN}{table}{END}\n");
        Checkout::of(&[(DOCUMENT, &document), ("crates/engine/src/container/format.rs", source)])
    }

    #[test]
    fn a_changed_or_unrecorded_source_is_reported_until_it_is_recorded() {
        let unrecorded = checkout("", "const A: u8 = 1;");
        assert_eq!(check(&unrecorded).len(), 1);
        let table = row(&unrecorded, "crates/engine/src/container/format.rs").unwrap();
        assert!(check(&checkout(&table, "const A: u8 = 1;")).is_empty());
        assert_eq!(check(&checkout(&table, "const A: u8 = 2;")).len(), 1);
        let tested = "const A: u8 = 1;\n#[cfg(test)]\nmod tests {\n}\n";
        let table = row(&checkout("", tested), "crates/engine/src/container/format.rs").unwrap();
        assert!(check(&checkout(&table, &tested.replace("tests {\n", "tests {\n// more\n"))).is_empty());
    }

    #[test]
    fn a_recorded_source_that_is_gone_is_reported() {
        assert!(check(&checkout("| `crates/engine/src/gone.rs` | `00` |\n", "")).len() == 2);
    }
}
