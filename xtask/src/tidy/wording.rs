//! Sources contain no marks of unfinished work and, in Rust, only ASCII.

use super::Finding;
use crate::checkout::Checkout;

/// Marks of unfinished work, each in two halves, so that this list is no finding itself.
const UNFINISHED: [&str; 6] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("dbg", "!"),
    concat!("to", "do!"),
    concat!("unimplemen", "ted!"),
    concat!("#[ig", "nore"),
];

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in checkout.files.iter().filter(|file| file.is_program()) {
        for (line, text) in (1..).zip(file.text.lines()) {
            for word in UNFINISHED.iter().filter(|word| contains_word(text, word)) {
                findings.push(Finding::new(&file.path, line, format!("`{word}` marks unfinished work")));
            }
            if file.is_rust() && !text.is_ascii() {
                findings.push(Finding::new(&file.path, line, "not ASCII"));
            }
        }
    }
    findings
}

/// Returns true if the text contains the word by itself: a template of `mktemp` is no mark.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word).any(|(start, _)| {
        let joins_before = word.starts_with(is_part) && text[..start].ends_with(is_part);
        let joins_after = word.ends_with(is_part) && text[start + word.len()..].starts_with(is_part);
        !joins_before && !joins_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_as_a_word_only() {
        let mark = UNFINISHED[1];
        assert!(contains_word(&format!("// {mark}: later"), mark));
        assert!(!contains_word(&format!("mktemp -d a.{mark}{mark}"), mark));
        assert!(contains_word(&format!("    {}](slow)", UNFINISHED[5]), UNFINISHED[5]));
    }
    #[test]
    fn programs_have_no_marks_and_rust_is_ascii() {
        let findings = |path: &str, text: &str| check(&Checkout::of(&[(path, text)])).len();
        assert_eq!(findings("a.rs", &format!("// {}\n", UNFINISHED[0])), 1);
        assert_eq!(findings("a.py", &format!("# {}\n", UNFINISHED[0])), 1);
        assert_eq!(findings("a.md", UNFINISHED[0]), 0);
        assert_eq!((findings("a.rs", "// \u{e4}\n"), findings("a.py", "# \u{e4}\n")), (1, 0));
    }
}
