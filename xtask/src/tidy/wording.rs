//! Words that do not belong in the sources: unfinished work, synonyms of the glossary, letters beyond ASCII.

use super::Finding;
use crate::checkout::{Checkout, TextFile};

/// Marks of unfinished work. Spelled in two halves, so that this list is not a finding itself.
const UNFINISHED: [&str; 6] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("dbg", "!"),
    concat!("to", "do!"),
    concat!("unimplemen", "ted!"),
    concat!("#[ig", "nore"),
];

/// What a public type must not be called, and the term of docs/glossary.md to use instead.
const SYNONYMS: [(&str, &str); 8] = [
    ("Blob", "chunk"),
    ("Superchunk", "segment"),
    ("Pack", "container"),
    ("Bundle", "container"),
    ("Digest", "fingerprint"),
    ("Archive", "snapshot or repository"),
    ("Revision", "snapshot"),
    ("Vault", "repository"),
];

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in checkout.files.iter().filter(|file| file.is_program()) {
        let is_engine = file.path.starts_with("crates/engine/src/");
        for (line, text) in (1..).zip(file.text.lines()) {
            for word in UNFINISHED.iter().filter(|word| contains_word(text, word)) {
                findings.push(Finding::new(&file.path, line, format!("`{word}` does not merge")));
            }
            if file.is_rust() && !text.is_ascii() {
                findings.push(Finding::new(&file.path, line, "not ASCII"));
            }
            if is_engine {
                findings.extend(synonym(file, line, text));
            }
        }
    }
    findings
}

fn synonym(file: &TextFile, line: usize, text: &str) -> Option<Finding> {
    let name = public_type(text)?;
    let (word, term) = SYNONYMS.iter().find(|(word, _)| camel_words(name).any(|part| part == *word))?;
    Some(Finding::new(&file.path, line, format!("type `{name}`: the glossary says {term}, not {word}")))
}

/// Says whether `word` stands in the text by itself, so that a template of `mktemp` is not a mark.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word).any(|(start, _)| {
        let joins_before = word.starts_with(is_part) && text[..start].ends_with(is_part);
        let joins_after = word.ends_with(is_part) && text[start + word.len()..].starts_with(is_part);
        !joins_before && !joins_after
    })
}

/// Returns the name of the type or trait that a line makes public.
fn public_type(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let name = ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| item.strip_prefix(keyword))?;
    name.split(|next: char| !next.is_alphanumeric()).next()
}

fn camel_words(name: &str) -> impl Iterator<Item = &str> {
    let starts = name.char_indices().filter(|(_, letter)| letter.is_uppercase()).map(|(at, _)| at);
    let mut starts = starts.peekable();
    std::iter::from_fn(move || {
        let start = starts.next()?;
        Some(&name[start..starts.peek().copied().unwrap_or(name.len())])
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
    fn synonyms_are_found_in_the_names_of_public_types() {
        assert_eq!(public_type("pub struct PackWriter<'a> {"), Some("PackWriter"));
        assert_eq!(public_type("struct Pack;"), None);
        assert_eq!(camel_words("PackWriter").collect::<Vec<_>>(), ["Pack", "Writer"]);
        assert!(!camel_words("Packer").any(|part| part == "Pack"));
    }
}
