//! How the paths that a user names become one tree, as in restic.
//!
//! The absolute path `/a/b` stands in the tree as `a` / `b`; a relative one as it was given, cleaned, without `..` in
//! front. `.`, `..` and `/` stand for all that is in them. Where names from different places meet at the top, the
//! later one is called `name-1`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::SourceTree;
use crate::source::clean::clean;
use crate::source::exclude::Excludes;

/// A name in the tree that leads to a root, or is one.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Names below that lead to roots.
    pub(super) children: BTreeMap<OsString, Node>,
    /// Where the entry is found.
    pub(super) path: PathBuf,
    /// Whether all that is in it belongs to the tree.
    pub(super) whole: bool,
    /// Whether the user named it, so that nothing excludes it.
    pub(super) explicit: bool,
    /// Device that it and what is below may lie on; `None`: the one that counts above it, or its own if it was named.
    pub(super) device: Option<u64>,
    /// Directory at the top of the path, which distinguishes equal names.
    origin: Vec<u8>,
}

impl Node {
    /// An entry that no root names: it is there because the directory around it is.
    pub(super) fn listed() -> Self {
        Self { whole: true, ..Self::default() }
    }

    /// Returns the directory that an entry at the top is found in, as a path.
    pub(super) fn origin(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.origin))
    }
}

/// The roots as one tree.
#[derive(Debug, Default)]
pub(super) struct RootTree {
    /// Names at the top.
    pub(super) top: BTreeMap<OsString, Node>,
    /// Paths in the tree that the roots stand at.
    pub(super) positions: Vec<Vec<u8>>,
}

/// Builds the tree. A root that cannot be looked into when it stands for its contents is an error in `errors`, with
/// its path. `named` takes each directory that stands for its contents, and whether a mark leaves out some.
pub(super) fn build(
    source: &dyn SourceTree,
    roots: &[PathBuf],
    excludes: &Excludes,
    errors: &mut Vec<(PathBuf, Error)>,
    named: &mut dyn FnMut(PathBuf, bool),
) -> Result<RootTree> {
    let mut top = BTreeMap::new();
    let mut has_contents = false;
    for root in roots {
        if root.as_os_str().is_empty() {
            return Err(Error::invalid("an empty path cannot be backed up"));
        }
        let path = clean(root.as_os_str().as_bytes());
        if names(&path).next().is_some() {
            add(&mut top, &path, true, None);
            continue;
        }
        let directory = PathBuf::from(OsString::from_vec(path));
        let contents =
            source.open_dir(&directory).and_then(|opened| Ok((opened.metadata()?.device, opened.list()?, opened)));
        match contents {
            Ok((device, mut names, opened)) => {
                has_contents = true;
                let listed = names.len();
                errors.extend(excludes.apply_tags(&*opened, &directory, &mut names));
                named(directory.clone(), names.len() < listed);
                for name in names {
                    let path = clean(directory.join(name).as_os_str().as_bytes());
                    add(&mut top, &path, false, Some(device));
                }
            }
            Err(error) => errors.push((directory, error)),
        }
    }
    let mut positions = Vec::new();
    // A name from elsewhere may only lead to a root: then the top is not that of one directory.
    if has_contents && top.values().all(|node: &Node| node.whole) {
        positions.push(Vec::new());
    } else {
        add_positions(&top, b"", &mut positions);
    }
    Ok(RootTree { top, positions })
}

/// Adds the paths of the named entries that are in no other one.
fn add_positions(nodes: &BTreeMap<OsString, Node>, above: &[u8], positions: &mut Vec<Vec<u8>>) {
    for (name, node) in nodes {
        let separator: &[u8] = if above.is_empty() { b"" } else { b"/" };
        let path = [above, separator, name.as_bytes()].concat();
        if node.explicit {
            positions.push(path);
        } else if !node.whole {
            add_positions(&node.children, &path, positions);
        }
    }
}

/// Returns the names of a clean path in the tree.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"." | b".."))
}

/// Returns the directory that the first name of a clean path in the tree is found in.
fn origin(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return b"/".to_vec();
    }
    let ups: Vec<&[u8]> = path.split(|byte| *byte == b'/').take_while(|name| *name == b"..").collect();
    if ups.is_empty() { b".".to_vec() } else { ups.join(&b'/') }
}

fn add(top: &mut BTreeMap<OsString, Node>, path: &[u8], explicit: bool, device: Option<u64>) {
    let origin = origin(path);
    let mut names = names(path).peekable();
    let Some(first) = names.next() else { return };

    let mut name = first.to_vec();
    let mut number = 0;
    while top.get(OsStr::from_bytes(&name)).is_some_and(|other| other.origin != origin) {
        number += 1;
        name = [first, format!("-{number}").as_bytes()].concat();
    }

    // `.` is not part of what the user sees.
    let base = if origin == b"." { PathBuf::new() } else { PathBuf::from(OsStr::from_bytes(&origin)) };
    let mut at = base.join(OsStr::from_bytes(first));
    let mut node = top.entry(OsString::from_vec(name)).or_default();
    node.origin = origin;
    node.path.clone_from(&at);
    for name in names {
        let name = OsStr::from_bytes(name);
        at.push(name);
        node = node.children.entry(name.to_os_string()).or_default();
        node.path.clone_from(&at);
    }
    node.whole = true;
    node.explicit |= explicit;
    node.device = if node.explicit { None } else { device };
}

/// Returns where a clean path is, without looking at links.
pub fn absolute(working_directory: &Path, path: &Path) -> PathBuf {
    PathBuf::from(OsString::from_vec(clean(working_directory.join(path).as_os_str().as_bytes())))
}

/// Returns device and inode of a directory, behind symbolic links, by which a walk leaves it out wherever it turns up.
pub fn identity(tree: &dyn SourceTree, directory: &Path) -> Result<(u64, u64)> {
    let metadata = tree.metadata(&tree.canonical(directory)?)?;
    Ok((metadata.device, metadata.inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mem_tree::MemTree;

    #[test]
    fn a_directory_has_one_identity_whatever_leads_to_it() {
        let tree = MemTree::new();
        tree.put_file(Path::new("/a/file"), b"");
        tree.put_symlink(Path::new("/link"), OsStr::new("a"));
        let of = |path: &str| identity(&tree, Path::new(path));
        assert_eq!(of("/a").unwrap(), of("/link").unwrap());
        assert_ne!(of("/a").unwrap(), of("/").unwrap());
        assert!(of("/missing").is_err());
    }

    #[test]
    fn paths_are_cleaned_as_go_does() {
        for (path, expected) in [
            ("", "."),
            (".", "."),
            ("a/b", "a/b"),
            ("./a", "a"),
            ("a//b/./c/", "a/b/c"),
            ("a/../b", "b"),
            ("../a", "../a"),
            ("../../a/..", "../.."),
            ("a/../..", ".."),
            ("/", "/"),
            ("//a", "/a"),
            ("/..", "/"),
            ("/../a/../..", "/"),
            ("/a/b/../c", "/a/c"),
        ] {
            assert_eq!(clean(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
