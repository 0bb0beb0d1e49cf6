//! Names of incomplete entries: a file gets its own name only after every byte of it is right.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Onto, Renamed, TargetFile, TargetTree};

/// End of the name of a partial file.
pub const PARTIAL_SUFFIX: &str = ".onefold-partial";

/// Longest name that a file system takes.
const NAME_LEN_MAX: usize = 255;

/// Bytes of a name's hash that replace the end of a long name.
const HASH_LEN: usize = 8;

/// Other names that are tried for a partial file before its entry counts as failed.
pub(super) const PARTIAL_NUMBERS_MAX: u32 = 100;

/// Name of an entry until it is whole, in its own directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Partial {
    /// Number of the first name that the directory of the snapshot does not have.
    pub(crate) number: u32,
    /// Treatment of existing partial files.
    pub(crate) leftovers: Leftovers,
}

/// Treatment of partial files of earlier runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leftovers {
    /// They are removed.
    Removed,
    /// They stay: the directory of the snapshot cannot be read, so that they may be files of the snapshot.
    Kept,
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

/// Makes an entry under its first partial name that is free, or that holds only the remains of an earlier run. A file that
/// another restore is writing stays. Returns the result of `make`, and the path.
pub(super) fn make_partial<T>(
    target: &dyn TargetTree,
    path: &Path,
    partial: Partial,
    mut make: impl FnMut(&Path) -> Result<T>,
) -> Result<(T, PathBuf)> {
    for number in partial.number..PARTIAL_NUMBERS_MAX {
        let at = partial_path(path, number);
        let mut made = make(&at);
        if is_taken(&made) && partial.leftovers == Leftovers::Removed && remove_leftover(target, &at)? {
            made = make(&at);
        }
        if !is_taken(&made) {
            return made.map(|made| (made, at));
        }
    }
    Err(Error::PartialNamesTaken)
}

fn is_taken<T>(made: &Result<T>) -> bool {
    matches!(made, Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists))
}

/// Makes a file, and takes its lock, by which other restores know that it is being written.
pub(super) fn make_locked_file(target: &dyn TargetTree, path: &Path) -> Result<Box<dyn TargetFile>> {
    let file = target.create_file(path)?;
    match file.try_lock() {
        Ok(true) => Ok(file),
        // Another restore has found it before it was locked, and removes it.
        Ok(false) => Err(Error::io("lock", path, ErrorKind::AlreadyExists.into())),
        Err(error) => {
            // The reason is the first error.
            let _ = target.remove(path);
            Err(error)
        }
    }
}

/// Makes a directory at a free path.
pub(super) fn make_directory(target: &dyn TargetTree, path: &Path) -> Result<()> {
    match target.metadata(path)? {
        None => target.create_dir(path),
        Some(_) => Err(Error::io("create directory", path, ErrorKind::AlreadyExists.into())),
    }
}

/// Returns what an entry may replace when it gets its own name. A directory was removed before.
pub(super) fn onto(replaced: Option<EntryKind>) -> Onto {
    match replaced {
        None | Some(EntryKind::Directory) => Onto::Nothing,
        Some(_) => Onto::Anything,
    }
}

/// Gives an entry its own name, after `clear` removed what a rename cannot replace. If that fails, the new entry is removed.
pub(super) fn publish(
    target: &dyn TargetTree,
    partial: &Path,
    path: &Path,
    onto: Onto,
    clear: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let error = match clear().and_then(|()| target.rename(partial, path, None, onto)) {
        Ok(Renamed::Done) => return Ok(()),
        Ok(Renamed::Taken) => Error::NameTaken,
        Ok(Renamed::Unexpected) => Error::PartialRemoved,
        Err(error) => error,
    };
    // The reason is the first error; there may be nothing to remove.
    let _ = target.remove(partial);
    Err(error)
}

/// Removes the remains of an earlier run under a partial name. Returns false for anything else, and for a file that another
/// restore is writing.
fn remove_leftover(target: &dyn TargetTree, path: &Path) -> Result<bool> {
    let Some(existing) = target.metadata(path)? else { return Ok(true) };
    let mut locked = None;
    if existing.kind == EntryKind::File {
        match target.open_file(path) {
            // Open until it is removed: nobody else takes it for a leftover meanwhile.
            Ok(file) if file.try_lock()? => locked = Some(file),
            Ok(_) => return Ok(false),
            // A file of another user, or one that has its mode already. Whoever is writing it notices that it is gone.
            Err(error) if error.io_kind() == Some(ErrorKind::PermissionDenied) => {}
            Err(error) => return Err(error),
        }
    }
    let removed = target.remove(path);
    drop(locked);
    match removed {
        Ok(()) => Ok(true),
        // No restore puts anything into a directory before it has its own name.
        Err(error) if error.io_kind() == Some(ErrorKind::DirectoryNotEmpty) => Ok(false),
        Err(error) => Err(error),
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
