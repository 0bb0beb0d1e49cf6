//! Rust source as the checks read it: without comments and literals, as tokens, paths and definitions.

/// A path in code, such as `crate::io::{Disk, File}` or `super::Page::new`: one for each leaf of a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path<'a> {
    /// Offset of the first name.
    pub(crate) start: usize,
    /// The names from the left to the right; `*` for all names of a module.
    pub(crate) names: Vec<&'a str>,
    /// The name after `as`.
    pub(crate) alias: Option<&'a str>,
}

/// A `use` declaration.
#[derive(Debug)]
pub(crate) struct Use<'a> {
    /// Whether other modules can import the names from here.
    pub(crate) is_public: bool,
    /// Offsets of its first and behind its last byte.
    pub(crate) range: std::ops::Range<usize>,
    /// The imported paths.
    pub(crate) paths: Vec<Path<'a>>,
}

/// Returns source with blanks in place of comments, literals and the items under `#[cfg(test)]`. Offsets stay the same.
pub(crate) fn code_of(source: &str) -> String {
    let mut code: Vec<u8> = source.bytes().collect();
    let mut at = 0;
    while at < code.len() {
        let end = match &code[at..] {
            [b'/', b'/', ..] => at + length_until(&code[at..], b'\n'),
            [b'/', b'*', ..] => at + block_comment_len(&code[at..]),
            [b'"', ..] => at + quoted_len(&code[at..], b'"'),
            [b'\'', b'\\', ..] | [b'\'', _, b'\'', ..] => at + quoted_len(&code[at..], b'\''),
            [b'r', ..] if !code[..at].last().is_some_and(|last| last.is_ascii_alphanumeric() && *last != b'b') => {
                at + raw_string_len(&code[at..]).unwrap_or(1)
            }
            _ => at + 1,
        };
        if at + 1 < end {
            blank(&mut code[at..end]);
        }
        at = end;
    }
    code.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b' ');
    let mut code: String = code.into_iter().map(char::from).collect();
    while let Some(start) = code.find("#[cfg(test)]") {
        let end = start + item_len(&code[start..]);
        code.replace_range(start..end, &blanks(&code[start..end]));
    }
    code
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

fn blanks(text: &str) -> String {
    text.chars().map(|character| if character == '\n' { '\n' } else { ' ' }).collect()
}

fn length_until(bytes: &[u8], end: u8) -> usize {
    bytes.iter().position(|byte| *byte == end).unwrap_or(bytes.len())
}

fn block_comment_len(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted_len(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

/// Returns the length of `r"..."` or `r#"..."#`; none for an identifier.
fn raw_string_len(bytes: &[u8]) -> Option<usize> {
    let hashes = bytes[1..].iter().take_while(|byte| **byte == b'#').count();
    let start = 1 + hashes;
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let content = bytes[start + 1..].windows(close.len()).position(|window| window == close);
    Some(content.map_or(bytes.len(), |len| start + 1 + len + close.len()))
}

/// Returns the length of an item with its attributes: to its semicolon, its comma, or the end of its braces.
fn item_len(code: &str) -> usize {
    let mut depth = 0_u32;
    let mut in_body = false;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            '{' => (depth, in_body) = (depth + 1, in_body || depth == 0),
            '}' if depth == 0 => return at,
            ')' | ']' | '}' => depth -= 1,
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
        if character == '}' && depth == 0 && in_body {
            return at + 1;
        }
    }
    code.len()
}

/// Returns the line of an offset, counted from 1.
pub(crate) fn line_of(code: &str, offset: usize) -> usize {
    code[..offset].matches('\n').count() + 1
}

/// Returns identifiers and single punctuation characters, each with its offset.
pub(crate) fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(next) = code[at..].chars().next() {
        let len = word_len(&code[at..]).max(1);
        if !next.is_whitespace() {
            tokens.push((at, &code[at..at + len]));
        }
        at += len;
    }
    tokens
}

fn word_len(text: &str) -> usize {
    text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len())
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns every path of at least two names, those of `use` declarations included.
pub(crate) fn paths(code: &str) -> Vec<Path<'_>> {
    let mut found = Vec::new();
    let mut end = 0;
    for (start, token) in tokens(code).into_iter().filter(|(_, token)| is_word(token)) {
        let before = &code[..start];
        let continues = before.ends_with("::") || (before.ends_with('.') && !before.ends_with(".."));
        if end <= start && !continues && code[start + token.len()..].starts_with("::") {
            end = tree(code, start, &[], &mut found);
        }
    }
    found
}

/// Returns the `use` declarations.
pub(crate) fn uses(code: &str) -> Vec<Use<'_>> {
    let mut found = Vec::new();
    for (start, _) in tokens(code).into_iter().filter(|(_, token)| *token == "use") {
        let before = code[..start].trim_end();
        let mut paths = Vec::new();
        tree(code, start + "use".len(), &[], &mut paths);
        let end = code[start..].find(';').map_or(code.len(), |len| start + len);
        found.push(Use { is_public: before.ends_with("pub") || before.ends_with(')'), range: start..end, paths });
    }
    found
}

/// Reads the path or group at an offset, adds its leaves, and returns the offset behind it.
fn tree<'a>(code: &'a str, start: usize, prefix: &[&'a str], found: &mut Vec<Path<'a>>) -> usize {
    let skip = |at: usize| at + code[at..].len() - code[at..].trim_start().len();
    let mut names = prefix.to_vec();
    let mut at = skip(start);
    let first = at;
    loop {
        if code[at..].starts_with('{') {
            at = skip(at + 1);
            while !code[at..].starts_with('}') && at < code.len() {
                let end = skip(tree(code, at, &names, found));
                at = skip(if code[end..].starts_with(',') { end + 1 } else { end.max(at + 1) });
            }
            return code.len().min(at + 1);
        }
        let len = if code[at..].starts_with('*') { 1 } else { word_len(&code[at..]) };
        match &code[at..at + len] {
            "" => break,
            "self" if !names.is_empty() => {}
            name => names.push(name),
        }
        at += len;
        if !code[at..].starts_with("::") {
            break;
        }
        at += "::".len();
    }
    let alias = code[at..].strip_prefix(" as ").map(|rest| &rest[..word_len(rest)]);
    at += alias.map_or(0, |alias| " as ".len() + alias.len());
    found.push(Path { start: first, names, alias });
    at
}

/// Returns the names of the types, fields, variants, functions, constants and modules that code defines, with offsets.
pub(crate) fn definitions(code: &str) -> Vec<(usize, &str)> {
    const KEYWORDS: [&str; 9] = ["struct", "enum", "union", "trait", "type", "fn", "mod", "const", "static"];
    let tokens = tokens(code);
    let mut found = Vec::new();
    for (index, (_, token)) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map_or("", |before| tokens[before].1);
        let is_name = |name: &(usize, &str)| is_word(name.1) && !KEYWORDS.contains(&name.1) && name.1 != "mut";
        let Some(name) = tokens.get(index + 1).filter(|name| is_name(name)) else { continue };
        if KEYWORDS.contains(token) && before != "*" {
            found.push(*name);
        }
        if matches!(*token, "struct" | "enum") {
            members(&tokens[index + 2..], *token == "enum", &mut found);
        }
    }
    found
}

/// Adds the fields and variants of a type; `tokens` begin behind its name.
fn members<'a>(tokens: &[(usize, &'a str)], is_enum: bool, found: &mut Vec<(usize, &'a str)>) {
    let has_bounds = |until: usize| tokens[..until].iter().any(|(_, token)| matches!(*token, "<" | "where"));
    let body = tokens.iter().position(|(_, token)| matches!(*token, "{" | ";"));
    let tuple = tokens.iter().position(|(_, token)| *token == "(").filter(|at| !has_bounds(*at));
    let Some(body) = body.filter(|body| tokens[*body].1 == "{" && tuple.is_none_or(|tuple| *body < tuple)) else {
        return;
    };
    let mut depth = 0_u32;
    let text = |at: usize| tokens.get(at).map_or("", |(_, token)| *token);
    for (at, (_, token)) in tokens.iter().enumerate().skip(body) {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            token if is_word(token) => {
                let begins = matches!(text(at - 1), "{" | "," | "]" | "pub" | ")");
                let is_field = text(at + 1) == ":" && text(at + 2) != ":";
                let is_variant = is_enum && depth == 1 && token != "pub";
                if begins && (is_field || is_variant) {
                    found.push(tokens[at]);
                }
            }
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

/// Returns the words of a name in small letters: of `PageReader`, `PAGE_READER` and `page_reader` the same two.
pub(crate) fn words_of(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_').filter(|part| !part.is_empty()) {
        let letters: Vec<char> = part.chars().collect();
        for (at, letter) in letters.iter().enumerate() {
            let is_upper = |at: usize| letters.get(at).is_some_and(|letter| letter.is_uppercase());
            let is_lower = |at: usize| letters.get(at).is_some_and(|letter| letter.is_lowercase());
            if at == 0 || (is_upper(at) && (!is_upper(at - 1) || is_lower(at + 1))) {
                words.push(String::new());
            }
            words.last_mut().expect("the first letter begins a word").extend(letter.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_literals_and_test_items_become_blanks_of_the_same_length() {
        let source = "a /* b /* c */ d */ e // f\n\"g\\\"h\" r#\"i\"j\"# 'k' '\\'' &'l m br\"n\" for r in x {}\n\
                      #[cfg(test)]\n#[expect(x)]\nmod o { p }\nq\n#[cfg(test)]\nuse r::{s, t};\nu";
        let code = code_of(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(line_of(&code, code.find('q').unwrap()), line_of(source, source.find("\nq").unwrap() + 1));
        let words: Vec<&str> = tokens(&code).into_iter().map(|(_, token)| token).collect();
        assert_eq!(words.join(" "), "a e & ' l m b for r in x { } q ; u");
    }

    #[test]
    fn paths_are_found_alone_in_groups_and_inline() {
        let code =
            "use crate::{a::{self, B as C}, d};\nfn f() -> crate::e::G<crate::H> { x.y::<u8>(..super::I::new()) }";
        let names: Vec<String> = paths(code).iter().map(|path| path.names.join("::")).collect();
        assert_eq!(names, ["crate::a", "crate::a::B", "crate::d", "crate::e::G", "crate::H", "super::I::new"]);
        let uses = uses(code);
        assert_eq!((uses.len(), uses[0].paths.len(), uses[0].paths[1].alias), (1, 3, Some("C")));
        assert!(!uses[0].is_public);
        assert!(self::uses("pub(crate) use a::B;")[0].is_public);
    }

    #[test]
    fn definitions_are_types_members_functions_constants_and_modules() {
        let code = "mod a; pub(crate) struct B<T: Fn(u8)> { pub(crate) c: D<E>, #[x] f: crate::G }\n\
                    struct H(I); enum J { #[x] K, L { m: N }, O(P, Q) }\n\
                    const R: *const S = 0; fn t(u: V) { let w: X = y; }";
        let names: Vec<&str> = definitions(code).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "B", "c", "f", "H", "J", "K", "L", "m", "O", "R", "t"]);
    }

    #[test]
    fn names_of_every_case_have_the_same_words() {
        for name in ["HttpPageReader", "HTTPPageReader", "http_page_reader", "HTTP_PAGE_READER", "_http_page_reader"] {
            assert_eq!(words_of(name), ["http", "page", "reader"], "{name}");
        }
        assert_eq!(words_of("Blake3"), ["blake3"]);
    }
}
