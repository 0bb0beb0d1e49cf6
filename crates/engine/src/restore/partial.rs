//! Names of what is not whole yet: a file gets its own name only once every byte of it is right.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::EntryKind;
use crate::restore::run::{Level, Run};
use crate::store::cursor::DirectoryCursor;

/// End of the name of a partial file.
pub const PARTIAL_SUFFIX: &str = ".onefold-partial";

/// Longest name that a file system takes.
const NAME_LEN_MAX: usize = 255;

/// Bytes of a name's hash that stand for the part of it that is cut off.
const HASH_LEN: usize = 8;

/// Other names that are tried for a partial file before its entry counts as failed.
const PARTIAL_NUMBERS_MAX: u32 = 100;

/// Where a file or another entry is made before it gets its own name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partial {
    /// Relative to the target, in the directory of the entry itself.
    pub path: PathBuf,
    /// Whether a partial file of an earlier run stands there, to be replaced.
    pub replaces_leftover: bool,
}

/// Returns the partial name of an entry. Number 0 is the usual one; the others are for when that is taken.
pub(super) fn partial_name(name: &OsStr, number: u32) -> OsString {
    let suffix = match number {
        0 => PARTIAL_SUFFIX.to_owned(),
        number => format!("{PARTIAL_SUFFIX}-{number}"),
    };
    let bytes = name.as_bytes();
    let mut partial = if bytes.len() + suffix.len() <= NAME_LEN_MAX {
        bytes.to_vec()
    } else {
        let hash = blake3::hash(bytes).to_hex();
        let hash = hash.get(..2 * HASH_LEN).unwrap_or_default();
        let mut cut = NAME_LEN_MAX - suffix.len() - 1 - hash.len();
        // Not within a character: some file systems take nothing but UTF-8.
        while bytes.get(cut).is_some_and(|byte| byte & 0xc0 == 0x80) && 1 < cut {
            cut -= 1;
        }
        let mut partial = bytes.get(..cut).unwrap_or_default().to_vec();
        partial.push(b'-');
        partial.extend_from_slice(hash.as_bytes());
        partial
    };
    partial.extend_from_slice(suffix.as_bytes());
    OsString::from_vec(partial)
}

/// Returns the path of a partial entry next to its own path.
pub(super) fn partial_path(path: &Path, number: u32) -> PathBuf {
    path.with_file_name(partial_name(path.file_name().unwrap_or_default(), number))
}

/// Returns true if a name is one that [`partial_name`] gives.
pub(super) fn is_partial_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let without_digits = bytes.get(..bytes.len() - digits).unwrap_or_default();
    let numbered = without_digits.strip_suffix(b"-").filter(|_| digits != 0);
    numbered.unwrap_or(bytes).ends_with(PARTIAL_SUFFIX.as_bytes())
}

impl Run<'_> {
    /// Returns where an entry is made before it gets its own name: under a name that the snapshot's directory does not
    /// have, and under which nothing stands but what an earlier run left. The directories above it are `levels`.
    pub(super) fn partial(&mut self, levels: &[Level], path: &Path) -> Result<Partial> {
        let name = path.file_name().unwrap_or_default();
        let is_fresh = levels.last().is_some_and(|level| level.is_fresh);
        for number in 0..PARTIAL_NUMBERS_MAX {
            let candidate = partial_name(name, number);
            let is_held = self.holds(levels, name, &candidate);
            if is_held == Some(true) {
                continue;
            }
            let path = partial_path(path, number);
            let standing = if is_fresh { None } else { self.target.metadata(&path)? };
            match standing {
                None => return Ok(Partial { path, replaces_leftover: false }),
                Some(standing) if is_held == Some(false) && standing.kind == EntryKind::File && standing.links == 1 => {
                    return Ok(Partial { path, replaces_leftover: true });
                }
                Some(_) => {}
            }
        }
        Err(Error::invalid("every name for its partial file is taken"))
    }

    /// Returns whether the snapshot's directory has a name next to that of an entry just handed out; `None` if that cannot
    /// be known.
    fn holds(&mut self, levels: &[Level], entry: &OsStr, name: &OsStr) -> Option<bool> {
        // What is restored alone has no directory.
        let Some(level) = levels.last() else { return Some(false) };
        if entry < name && level.cursor.rules_out(name.as_bytes()) {
            return Some(false);
        }
        let found = DirectoryCursor::new(level.node).find(name.as_bytes(), self.reader);
        found.ok().map(|found| found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn partial_names_differ_fit_and_are_recognized() {
        let long = |last: char| format!("{}{last}", "\u{e9}".repeat(127));
        let names =
            ["a", "a.onefold-partial", &"x".repeat(239), &"x".repeat(240), &"x".repeat(255), &long('1'), &long('2')];
        let mut seen = BTreeSet::new();
        for name in names {
            for number in [0, 1, 17] {
                let partial = partial_name(OsStr::new(name), number);
                assert!(partial.len() <= NAME_LEN_MAX, "{name}");
                assert!(partial.to_str().is_some(), "{name}: cut within a character");
                assert!(is_partial_name(&partial), "{name}");
                assert!(seen.insert(partial), "{name}");
            }
        }
        assert_eq!(partial_name(OsStr::new("a"), 0), "a.onefold-partial");
        assert_eq!(partial_path(Path::new("d/e"), 2), Path::new("d/e.onefold-partial-2"));
        for other in
            ["a", "a.onefold-partial-", "a.onefold-partial-x", "a.onefold-partial2", "onefold-partial", "7", ""]
        {
            assert!(!is_partial_name(OsStr::new(other)), "{other}");
        }
    }
}
