//! Lists of what is backed up, as `--files-from` and its sisters take them from files.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, SourceTree};
use crate::source::glob::{NamePattern, is_pattern};

/// Returns the patterns of a `--files-from` file, one a line.
///
/// White space around them is removed; empty lines and those that start with `#` are comments. [`expand`] turns each
/// into paths.
pub fn parse_patterns(file: &[u8]) -> Vec<Vec<u8>> {
    let lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).map(<[u8]>::to_vec).collect()
}

/// Returns the paths of a `--files-from-verbatim` file: one a line, taken as it stands, empty lines left out.
pub fn parse_verbatim(file: &[u8]) -> Vec<PathBuf> {
    let lines = file.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).map(|line| PathBuf::from(OsStr::from_bytes(line))).collect()
}

/// Returns the paths of a `--files-from-raw` file: each ended by a NUL byte, as `find -print0` writes them.
///
/// Fails on an empty path and on a last one without its NUL, since the list may have been cut there.
pub fn parse_raw(file: &[u8]) -> Result<Vec<PathBuf>> {
    let Some(list) = file.strip_suffix(b"\0") else {
        return if file.is_empty() {
            Ok(Vec::new())
        } else {
            Err(Error::invalid("list of files: the last path is not ended by a NUL byte"))
        };
    };
    list.split(|byte| *byte == 0)
        .map(|path| match path {
            b"" => Err(Error::invalid("list of files: empty path")),
            path => Ok(PathBuf::from(OsStr::from_bytes(path))),
        })
        .collect()
}

/// Meaning of a pattern.
#[derive(Debug, Default)]
pub struct Expanded {
    /// Paths that exist, sorted within each directory.
    pub found: Vec<PathBuf>,
    /// Paths that may exist, or hold what the pattern matches, and why that is not known.
    pub unknown: Vec<(PathBuf, Error)>,
}

/// Returns the existing paths that a pattern with wildcards stands for.
///
/// `**` has no meaning of its own here, as in restic. Fails on a pattern that is none.
pub fn expand(tree: &dyn SourceTree, pattern: &[u8]) -> Result<Expanded> {
    let start = if pattern.starts_with(b"/") { PathBuf::from("/") } else { PathBuf::new() };
    let (mut found, mut unknown) = (vec![start], Vec::new());
    for name in pattern.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if !is_pattern(name) {
            for path in &mut found {
                path.push(OsStr::from_bytes(name));
            }
            continue;
        }
        let parsed = NamePattern::parse(name)?;
        let mut matching = Vec::new();
        for directory in found {
            let here = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.clone() };
            let names = if_it_exists(names_in(tree, &here), &here, &mut unknown).unwrap_or_default().into_iter();
            let names = names.filter(|name| parsed.matches(name.as_bytes()));
            matching.extend(names.map(|name| directory.join(name)));
        }
        found = matching;
    }
    found.retain(|path| if_it_exists(tree.metadata(path), path, &mut unknown).is_some());
    Ok(Expanded { found, unknown })
}

/// Returns what was learned of a path. Notes why nothing was, unless the path does not exist.
fn if_it_exists<T>(outcome: Result<T>, path: &Path, unknown: &mut Vec<(PathBuf, Error)>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if matches!(error.io_kind(), Some(ErrorKind::NotFound | ErrorKind::NotADirectory)) => None,
        Err(error) => {
            unknown.push((path.to_path_buf(), error));
            None
        }
    }
}

/// Lists a directory, or the one that a symbolic link leads to, as a shell does. Anything else has no names in it.
fn names_in(tree: &dyn SourceTree, path: &Path) -> Result<Vec<OsString>> {
    match tree.metadata(path)?.kind {
        EntryKind::Directory => tree.list(path),
        EntryKind::Symlink => tree.list(&tree.canonical(path)?),
        EntryKind::File | EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice | EntryKind::BlockDevice => {
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mem_tree::MemTree;

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn lists_are_parsed_as_their_options_say() {
        let text = b"  /a/*.c \n# comment\n\n#b\nx y\r\n";
        assert_eq!(parse_patterns(text), [b"/a/*.c".to_vec(), b"x y".to_vec()]);
        assert_eq!(parse_verbatim(b" a \n\n#b\nc\r\n\xff"), {
            let mut expected = paths(&[" a ", "#b", "c"]);
            expected.push(PathBuf::from(OsStr::from_bytes(b"\xff")));
            expected
        });
        assert_eq!(parse_raw(b"a\nb\0 c\0").unwrap(), paths(&["a\nb", " c"]));
        assert_eq!(parse_raw(b"").unwrap(), paths(&[]));
        for bad in [b"a".as_slice(), b"a\0b", b"\0", b"a\0\0b\0", b"a\0\0"] {
            assert!(parse_raw(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn patterns_are_expanded_to_what_exists() {
        let tree = MemTree::new();
        for path in ["/a/x.c", "/a/y.c", "/a/z.h", "/b/x.c", "/b/*", "/.hidden"] {
            tree.put_file(Path::new(path), b"");
        }
        tree.put_symlink(Path::new("/link"), OsStr::new("a"));
        tree.set_working_directory(Path::new("/a"));
        let expand = |pattern: &str| {
            let Expanded { found, unknown } = expand(&tree, pattern.as_bytes()).unwrap();
            assert_eq!(unknown.len(), 0, "{unknown:?}");
            found
        };
        assert_eq!(expand("/*/x.c"), paths(&["/a/x.c", "/b/x.c", "/link/x.c"]));
        assert_eq!(expand("*.c"), paths(&["x.c", "y.c"]));
        assert_eq!(expand("./*.h"), paths(&["./z.h"]));
        assert_eq!(expand("../b/\\*"), paths(&["../b/*"]));
        assert_eq!(expand("/a/x.c"), paths(&["/a/x.c"]));
        assert_eq!(expand("/a/missing"), paths(&[]));
        assert_eq!(expand("/a/x.c/*"), paths(&[]));
        assert_eq!(expand("/link/[xy].c"), paths(&["/link/x.c", "/link/y.c"]));
        assert_eq!(expand("/*"), paths(&["/.hidden", "/a", "/b", "/link"]));
        assert!(super::expand(&tree, b"/[").is_err());
    }

    #[test]
    fn what_may_match_and_cannot_be_looked_at_is_returned_with_the_reason() {
        let tree = MemTree::new();
        for path in ["/srv/disk/data", "/srv/nfs/data", "/srv/other/data", "/srv/file"] {
            tree.put_file(Path::new(path), b"");
        }
        tree.put_symlink(Path::new("/srv/dangling"), OsStr::new("nowhere"));
        tree.fail_metadata(Path::new("/srv/nfs/data"), ErrorKind::StaleNetworkFileHandle);
        let expand = |pattern: &str| {
            let Expanded { found, unknown } = expand(&tree, pattern.as_bytes()).unwrap();
            let unknown = unknown.into_iter().map(|(path, error)| (path, error.io_kind().unwrap()));
            (found, unknown.collect::<Vec<_>>())
        };
        let stale = |path: &str| vec![(PathBuf::from(path), ErrorKind::StaleNetworkFileHandle)];
        let others = paths(&["/srv/disk/data", "/srv/other/data"]);
        assert_eq!(expand("/srv/*/data"), (others.clone(), stale("/srv/nfs/data")));
        assert_eq!(expand("/srv/*/d*"), (others.clone(), stale("/srv/nfs/data")));
        assert_eq!(expand("/srv/nfs/data"), (Vec::new(), stale("/srv/nfs/data")));
        tree.fail_metadata(Path::new("/srv/nfs"), ErrorKind::StaleNetworkFileHandle);
        assert_eq!(expand("/srv/*/d*"), (others.clone(), stale("/srv/nfs")));
        tree.fail_open(Path::new("/srv/disk"), ErrorKind::PermissionDenied);
        let (found, unknown) = expand("/srv/*/d*");
        assert_eq!((found, unknown.len()), (paths(&["/srv/other/data"]), 2));
    }
}
