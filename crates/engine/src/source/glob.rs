//! Patterns for one name, as Go's `filepath.Match` defines them: `*`, `?`, `[a-z]`, `[^a-z]` and `\` before any of
//! these.
//!
//! Names are bytes. Where they are UTF-8 a character counts as one, everything else byte by byte.

use crate::error::{Error, Result};

/// Codes above Unicode stand for single bytes that are not UTF-8.
const BYTE_BASE: u32 = 0x11_0000;

/// A compiled pattern for one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamePattern {
    tokens: Vec<Token>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// Any characters, also none.
    Star,
    /// Any one character.
    Any,
    /// This character.
    Literal(u32),
    /// One character inside, or outside, of the ranges.
    Class { negated: bool, ranges: Vec<(u32, u32)> },
}

impl NamePattern {
    /// Compiles a pattern. It is refused where Go refuses it: classes that are empty or not closed, half a range, a
    /// backslash at the end.
    pub(crate) fn parse(pattern: &[u8]) -> Result<Self> {
        Self::compile(pattern).map_err(|reason| refuse(pattern, reason))
    }

    /// Compiles a pattern; returns what is wrong with it otherwise. [`refuse`] makes an error of that.
    pub(super) fn compile(pattern: &[u8]) -> std::result::Result<Self, &'static str> {
        let mut tokens = Vec::new();
        let mut rest = pattern;
        while let Some((code, after)) = next_char(rest) {
            rest = after;
            let token = match u8::try_from(code) {
                Ok(b'*') => Token::Star,
                Ok(b'?') => Token::Any,
                Ok(b'[') => {
                    let (class, after) = parse_class(rest).ok_or_else(|| wrong_class(rest))?;
                    rest = after;
                    class
                }
                Ok(b'\\') => {
                    let (code, after) = next_char(rest).ok_or("a backslash with nothing after it")?;
                    rest = after;
                    Token::Literal(code)
                }
                _ => Token::Literal(code),
            };
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
        }
        Ok(Self { tokens })
    }

    /// Says whether the whole name matches. Takes time in proportion to the lengths of name times pattern at most.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        let mut tokens = self.tokens.as_slice();
        let mut rest = name;
        // Where to go on if a later token fails: after the last star, one character further.
        let mut resume: Option<(&[Token], &[u8])> = None;
        loop {
            match (tokens.split_first(), next_char(rest)) {
                (None, None) => return true,
                (Some((Token::Star, after)), _) => {
                    tokens = after;
                    resume = Some((after, rest));
                    continue;
                }
                (Some((token, after)), Some((code, left))) if token.takes(code) => {
                    tokens = after;
                    rest = left;
                    continue;
                }
                _ => {}
            }
            let Some((after_star, from)) = resume else { return false };
            let Some((_, left)) = next_char(from) else { return false };
            resume = Some((after_star, left));
            tokens = after_star;
            rest = left;
        }
    }
}

impl Token {
    fn takes(&self, code: u32) -> bool {
        match self {
            Self::Star => false,
            Self::Any => true,
            Self::Literal(wanted) => *wanted == code,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&code)) != *negated
            }
        }
    }
}

/// Says whether a name is more than its own pattern.
pub(crate) fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[\\".contains(byte))
}

/// Says that a pattern, as it was given, is refused.
pub(super) fn refuse(pattern: &[u8], reason: &str) -> Error {
    Error::invalid(format!("pattern `{}`: {reason}", pattern.escape_ascii()))
}

fn wrong_class(rest: &[u8]) -> &'static str {
    if rest.contains(&b']') { "brackets that are empty or hold half a range" } else { "unclosed bracket" }
}

fn parse_class(pattern: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, mut rest) = match pattern.strip_prefix(b"^") {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let mut ranges = Vec::new();
    loop {
        if let (Some(rest), false) = (rest.strip_prefix(b"]"), ranges.is_empty()) {
            return Some((Token::Class { negated, ranges }, rest));
        }
        let (low, after) = class_char(rest)?;
        rest = after;
        let mut high = low;
        if let Some(after) = rest.strip_prefix(b"-") {
            (high, rest) = class_char(after)?;
        }
        ranges.push((low, high));
    }
}

fn class_char(pattern: &[u8]) -> Option<(u32, &[u8])> {
    let (code, rest) = next_char(pattern)?;
    match u8::try_from(code) {
        Ok(b'-' | b']') => None,
        Ok(b'\\') => next_char(rest),
        _ => Some((code, rest)),
    }
}

/// Splits off the first character, or the first byte where that is none.
fn next_char(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    if first.is_ascii() {
        return Some((u32::from(*first), rest));
    }
    let len = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    let character = bytes.split_at_checked(len).and_then(|(head, after)| {
        let character = std::str::from_utf8(head).ok()?.chars().next()?;
        Some((u32::from(character), after))
    });
    Some(character.unwrap_or((BYTE_BASE + u32::from(*first), rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> Option<bool> {
        NamePattern::parse(pattern.as_bytes()).ok().map(|parsed| parsed.matches(name.as_bytes()))
    }

    #[test]
    fn names_match_as_go_says() {
        // The cases of Go's own documentation of Match that concern one name.
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*b*c*d*e*", "axbxcxdxe", true),
            ("a*b*c*d*e*", "axbxcxdxexxx", true),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^b-d]", "abc", false),
            ("ab[^e-g]", "abc", true),
            ("ab[!c]", "ab!", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "ab", false),
            ("a?b", "a\u{263a}b", true),
            ("a[^a]b", "a\u{263a}b", true),
            ("a???b", "a\u{263a}b", false),
            ("a[^a][^a][^a]b", "a\u{263a}b", false),
            ("[a-\u{3b6}]*", "\u{3b1}", true),
            ("*[a-\u{3b6}]", "A", false),
            ("[\\]a]", "]", true),
            ("[\\-]", "-", true),
            ("[x\\-]", "x", true),
            ("[x\\-]", "z", false),
            ("[\\-x]", "a", false),
            ("*x", "xxx", true),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), Some(expected), "{pattern} {name}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in ["[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[", "[^", "[^bc", "a[", "\\", "a\\", "[a-", "[a\\"] {
            assert_eq!(matches(pattern, "a"), None, "{pattern}");
        }
    }

    #[test]
    fn bytes_that_are_no_character_count_one_each() {
        let parse = |pattern: &[u8]| NamePattern::parse(pattern).unwrap();
        assert!(parse(b"a?b").matches(b"a\xffb"));
        assert!(!parse(b"a?b").matches(b"a\xff\xfeb"));
        assert!(parse(b"a*b").matches(b"a\xff\xfeb"));
        assert!(parse(b"\xff[\xf0-\xfe]").matches(b"\xff\xf8"));
        assert!(!parse(b"\xff").matches(b"\xfe"));
        assert!(
            parse(b"?\xc3").matches(
                "\u{e4}\u{0}".as_bytes().get(..2).map(|umlaut| [umlaut, b"\xc3"].concat()).unwrap().as_slice()
            )
        );
    }

    #[test]
    fn many_stars_do_not_take_forever() {
        let pattern = NamePattern::parse("a*".repeat(100).as_bytes()).unwrap();
        assert!(!pattern.matches(format!("{}b", "a".repeat(99)).as_bytes()));
        assert!(pattern.matches(format!("{}b", "a".repeat(200)).as_bytes()));
    }

    #[test]
    fn a_refused_pattern_is_named_with_what_is_wrong() {
        for (pattern, expected) in [
            ("a[", "pattern `a[`: unclosed bracket"),
            ("[b", "pattern `[b`: unclosed bracket"),
            ("[]", "pattern `[]`: brackets that are empty or hold half a range"),
            ("[a-]", "pattern `[a-]`: brackets that are empty or hold half a range"),
            ("a\\", "pattern `a\\\\`: a backslash with nothing after it"),
        ] {
            assert_eq!(NamePattern::parse(pattern.as_bytes()).unwrap_err().to_string(), expected);
        }
    }
}
