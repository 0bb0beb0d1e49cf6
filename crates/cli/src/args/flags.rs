//! Arguments as restic's command line takes them, written out for this one: a flag may have a value, as in `--json=false`,
//! and every `-v` counts, before the command and behind it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, ArgAction, Command};

/// The option that counts how often it is typed.
const COUNTED: &str = "verbose";

/// Returns the truth that a text stands for, if it stands for one.
pub(crate) fn truth(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => Some(true),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => Some(false),
        _ => None,
    }
}

/// Writes out what was typed: flags without values, and the counted option behind the command.
pub(crate) fn write_out(root: &Command, typed: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut typed = typed.into_iter();
    let mut line = Line { levels: vec![root], words: Vec::new(), counted: Vec::new() };
    line.words.extend(typed.next().map(|program| (Kind::Command, program)));
    while let Some(word) = typed.next() {
        let bytes = word.as_bytes();
        let takes_next = match bytes {
            b"--" => {
                line.words.push((Kind::Other, word));
                break;
            }
            [b'-', b'-', ..] => line.long(word),
            [b'-', _, ..] => line.short(bytes),
            _ => {
                line.positional(word);
                false
            }
        };
        if takes_next {
            line.words.extend(typed.next().map(|value| (Kind::Other, value)));
        }
    }
    line.words.extend(typed.map(|word| (Kind::Other, word)));
    line.finish()
}

/// Kind of a word.
#[derive(PartialEq)]
enum Kind<'a> {
    /// The program, or a command.
    Command,
    /// A flag, by its name in full.
    Flag(&'a str),
    /// Anything else.
    Other,
}

struct Line<'a> {
    /// The program and the commands so far.
    levels: Vec<&'a Command>,
    words: Vec<(Kind<'a>, OsString)>,
    counted: Vec<OsString>,
}

impl<'a> Line<'a> {
    fn find(&self, is_it: impl Fn(&Arg) -> bool) -> Option<&'a Arg> {
        self.levels.iter().rev().find_map(|level| level.get_arguments().find(|arg| is_it(arg)))
    }

    fn positional(&mut self, word: OsString) {
        let below = self.levels.last().and_then(|level| level.find_subcommand(&word));
        self.words.push((if below.is_some() { Kind::Command } else { Kind::Other }, word));
        self.levels.extend(below);
    }

    /// Takes a long option. Returns true if the next word is its value.
    fn long(&mut self, word: OsString) -> bool {
        let bytes = word.as_bytes().to_vec();
        let mut parts = bytes[2..].splitn(2, |byte| *byte == b'=');
        let name = parts.next().unwrap_or_default();
        let found = self.find(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long().into_iter().chain(aliases).any(|long| long.as_bytes() == name)
        });
        self.option(found, word, parts.next())
    }

    /// Takes short options that are typed as one word. Returns true if the next word is the value of the last one.
    fn short(&mut self, word: &[u8]) -> bool {
        let mut rest = &word[1..];
        while let Some((letter, behind)) = rest.split_first() {
            let found = self.find(|arg| arg.get_short() == Some(char::from(*letter)));
            let takes_rest = found.is_none_or(|arg| !is_flag(arg) && arg.get_id() != COUNTED);
            let value = behind.strip_prefix(b"=");
            let (this, behind) = if takes_rest || value.is_some() { (rest, &[][..]) } else { (&rest[..1], behind) };
            let this: OsString = [OsStr::new("-"), OsStr::from_bytes(this)].into_iter().collect();
            let value = if takes_rest { (this.len() > 2).then_some(&[][..]) } else { value };
            if self.option(found, this, value) {
                return true;
            }
            rest = behind;
        }
        false
    }

    /// Takes one option. Returns true if the next word is its value.
    fn option(&mut self, found: Option<&'a Arg>, word: OsString, value: Option<&[u8]>) -> bool {
        let Some(arg) = found else {
            self.words.push((Kind::Other, word));
            return false;
        };
        let name = arg.get_id().as_str();
        if name == COUNTED {
            self.counted.push(word);
        } else if is_flag(arg) {
            let word = match value.map(truth) {
                Some(Some(true)) => arg.get_long().map_or(word, |long| format!("--{long}").into()),
                // As if it had never been typed.
                Some(Some(false)) => {
                    self.words.retain(|(kind, _)| *kind != Kind::Flag(name));
                    return false;
                }
                Some(None) | None => word,
            };
            self.words.push((Kind::Flag(name), word));
        } else {
            self.words.push((Kind::Other, word));
            return value.is_none() && arg.get_action().takes_values() && !arg.is_require_equals_set();
        }
        false
    }

    fn finish(mut self) -> Vec<OsString> {
        let place = self.words.iter().rposition(|(kind, _)| *kind == Kind::Command).map_or(0, |place| place + 1);
        self.words.splice(place..place, self.counted.into_iter().map(|word| (Kind::Other, word)));
        self.words.into_iter().map(|(_, word)| word).collect()
    }
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{Arguments, Command as Typed};

    fn written(line: &str) -> String {
        let words = write_out(&Arguments::command(), line.split(' ').map(OsString::from));
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn flags_take_a_truth_and_the_last_one_counts() {
        for (typed, expected) in [
            ("o --json=true snapshots", "o --json snapshots"),
            ("o snapshots --json=F", "o snapshots"),
            ("o --json snapshots --json=0", "o snapshots"),
            ("o snapshots --json=0 --json", "o snapshots --json"),
            ("o forget -n=false -n=1 x", "o forget --dry-run x"),
            ("o forget -cn=false", "o forget -c"),
            ("o forget --dry-run -n=false", "o forget"),
            ("o --insecure-tls=false snapshots", "o snapshots"),
            // Not flags.
            ("o find --snapshot --json=0 x", "o find --snapshot --json=0 x"),
            ("o find -s --json=0 x", "o find -s --json=0 x"),
            ("o find -l -- --json=0", "o find -l -- --json=0"),
            ("o snapshots --json=maybe --nothing=false -Z=0", "o snapshots --json=maybe --nothing=false -Z=0"),
        ] {
            assert_eq!(written(typed), expected, "{typed}");
        }
    }

    #[test]
    fn every_v_counts_wherever_it_is_typed() {
        for (typed, expected) in [
            ("o -v backup -v x", "o backup -v -v x"),
            ("o -vq -r v key -v add", "o -q -r v key add -v -v"),
            ("o --verbose=2 ls latest -lv", "o ls --verbose=2 -v latest -l"),
            ("o -v", "o -v"),
            ("o backup -xe-v -e -v", "o backup -x -e-v -e -v"),
        ] {
            assert_eq!(written(typed), expected, "{typed}");
        }
        let parsed = Arguments::try_parse_from(written("o -v snapshots -v").split(' ')).unwrap();
        assert!(matches!(parsed.command, Typed::Snapshots(_)));
        assert_eq!(parsed.global.verbose.len(), 2);
    }
}
