//! No identifier contains a word that docs/glossary.md rejects.
//!
//! The glossary has tables of three columns: term, meaning, and the words not to use. A rejected word in `code font` has no
//! other meaning here, so this check looks for it in the names of types, fields, variants, functions, constants, modules
//! and files. Names of tests are sentences, in which such words have their ordinary meaning: the check leaves them out.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::checkout::{Checkout, TextFile};
use crate::rust;

const GLOSSARY: &str = "docs/glossary.md";

/// A rejected word that names below a path may contain, and the reason.
type Exception = (&'static str, &'static str, &'static str);

/// Words of other programs, formats and libraries.
const FOREIGN: &[Exception] = &[
    ("crates/accel/src/fingerprint/", "lane", "a lane of a vector register"),
    ("crates/cli/src/args/list.rs", "blob", "`list blobs` of restic"),
    ("crates/cli/src/commands/list.rs", "blob", "`list blobs` of restic"),
    ("crates/engine/src/crypto/seal.rs", "place", "`seal_in_place` of the library ring"),
    ("crates/engine/src/crypto/slot.rs", "lane", "a parameter of Argon2"),
];

/// A word that the glossary rejects.
struct Rejected<'a> {
    word: &'a str,
    parts: Vec<String>,
    /// The terms to use instead.
    terms: Vec<&'a str>,
}

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let Some(glossary) = checkout.file(GLOSSARY) else {
        return vec![Finding::new(GLOSSARY, 0, "missing")];
    };
    let rejected = rejected_by(&glossary.text);
    let mut unused: BTreeSet<Exception> = FOREIGN.iter().copied().collect();
    let mut findings = Vec::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        for (line, name, Rejected { word, terms, .. }) in rejected_names(file, &rejected) {
            let excepts = |(path, excepted, _): &&Exception| file.path.starts_with(path) && word == excepted;
            if let Some(exception) = FOREIGN.iter().find(excepts) {
                unused.remove(exception);
            } else {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{name}`: the glossary says {}, not {word}", terms.join(" or ")),
                ));
            }
        }
    }
    let message = |(path, word, _)| format!("no name below {path} contains {word}: remove it from FOREIGN");
    findings.extend(unused.into_iter().map(|exception| Finding::new(file!(), 0, message(exception))));
    findings
}

/// Returns the words in code font in the third column of all tables.
fn rejected_by(glossary: &str) -> Vec<Rejected<'_>> {
    let mut terms = BTreeMap::<&str, Vec<&str>>::new();
    for row in glossary.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let ["", term, _, not, ""] = cells.as_slice() else { continue };
        not.split('`').skip(1).step_by(2).for_each(|word| terms.entry(word).or_default().push(term));
    }
    terms.into_iter().map(|(word, terms)| Rejected { word, parts: rust::words_of(word), terms }).collect()
}

/// Returns the names that a file defines, its own included, which contain a rejected word; each with its line.
fn rejected_names<'a>(file: &'a TextFile, rejected: &'a [Rejected<'_>]) -> Vec<(usize, &'a str, &'a Rejected<'a>)> {
    let stem = file.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    let defined = rust::definitions(&file.code).into_iter();
    let defined = defined.map(|(start, name)| (rust::line_of(&file.code, start), name));
    let mut seen = BTreeSet::new();
    let names = std::iter::once((0, stem)).chain(defined).filter(|(_, name)| seen.insert(*name));
    names
        .flat_map(|(line, name)| {
            let words = rust::words_of(name);
            let found = rejected.iter().filter(move |rejected| contains(&words, &rejected.parts));
            found.map(move |rejected| (line, name, rejected))
        })
        .collect()
}

/// Returns true if the parts follow each other among the words; the last may be a plural.
fn contains(words: &[String], parts: &[String]) -> bool {
    words.windows(parts.len()).any(|window| {
        let mut pairs = window.iter().zip(parts).rev();
        let is_last = |(word, part): (&String, &String)| word == part || word.strip_suffix('s') == Some(part);
        pairs.next().is_some_and(is_last) && pairs.all(|(word, part)| word == part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, code: &str) -> Vec<String> {
        let glossary =
            "| Term | Meaning | Not |\n|---|---|---|\n| chunk | a part of a file | block, `drop`, `data_item` |\n";
        let findings = check(&Checkout::of(&[(GLOSSARY, glossary), (path, code)]));
        findings.into_iter().map(|finding| finding.message).filter(|message| !message.contains("FOREIGN")).collect()
    }

    #[test]
    fn only_definitions_that_contain_a_rejected_word_whole_are_found() {
        const LIB: &str = "crates/x/src/lib.rs";
        assert_eq!(findings(LIB, "struct DropCount;"), ["`DropCount`: the glossary says chunk, not drop"]);
        assert_eq!(findings(LIB, "struct A { kept_drops: u8 }\nfn data_items() {}").len(), 2);
        let accepted =
            "struct Block;\nfn dropped() { drop() }\n// drop\nconst DATA: &str = \"drop\";\nfn item_data() {}";
        assert!(findings(LIB, accepted).is_empty());
        assert!(findings(LIB, "#[cfg(test)]\nmod tests { fn drop() {} }").is_empty());
    }

    #[test]
    fn names_of_files_are_checked_and_those_of_tests_are_not() {
        assert_eq!(findings("crates/x/src/drop.rs", "").len(), 1);
        assert!(findings("crates/x/src/drop_tests.rs", "fn drop() {}").is_empty());
    }

    #[test]
    fn an_exception_covers_one_word_below_one_path_and_must_be_used() {
        let (path, word, _) = FOREIGN[0];
        let glossary = format!("| x | | `{word}` |\n");
        let code = format!("fn {word}() {{}}");
        let of = |path: &str| check(&Checkout::of(&[(GLOSSARY, &glossary), (path, &code)])).len();
        assert_eq!(of(&format!("{path}mod.rs")), FOREIGN.len() - 1);
        assert_eq!(of("crates/x/src/lib.rs"), FOREIGN.len() + 1);
    }
}
