//! Compares two trees in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::extents::Extents;
use super::state::{Body, Inode, ROOT, State};
use crate::io::tree::EntryKind;

/// Returns each difference as a sentence that starts with the path.
pub(super) fn diff(left: &State, right: &State) -> Vec<String> {
    let mut found = Vec::new();
    // An entry has the name under which it was seen first; further names must agree on it in both trees.
    let mut first_names: BTreeMap<(Side, u64), PathBuf> = BTreeMap::new();
    let mut todo = vec![(PathBuf::from("/"), ROOT, ROOT)];
    while let Some((path, left_inode, right_inode)) = todo.pop() {
        let left_first = first_names.entry((Side::Left, left_inode)).or_insert_with(|| path.clone()).clone();
        let right_first = first_names.entry((Side::Right, right_inode)).or_insert_with(|| path.clone()).clone();
        if left_first != right_first {
            found.push(format!(
                "{}: the same entry as {} on the left, as {} on the right",
                path.display(),
                left_first.display(),
                right_first.display()
            ));
        }
        if left_first != path && right_first != path {
            continue;
        }
        compare(&path, left.inode(left_inode), right.inode(right_inode), &mut found);
        let (Some(left_names), Some(right_names)) = (left.names(left_inode), right.names(right_inode)) else {
            continue;
        };
        let names: BTreeSet<_> = left_names.keys().chain(right_names.keys()).collect();
        for name in names {
            let path = path.join(name);
            match (left_names.get(name), right_names.get(name)) {
                (Some(left), Some(right)) => todo.push((path, *left, *right)),
                (Some(_), None) => found.push(format!("{}: only on the left", path.display())),
                (None, _) => found.push(format!("{}: only on the right", path.display())),
            }
        }
    }
    found.sort_unstable();
    found
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Side {
    Left,
    Right,
}

fn compare(path: &Path, left: &Inode, right: &Inode, found: &mut Vec<String>) {
    let (a, b) = (&left.metadata, &right.metadata);
    if a.kind != b.kind {
        found.push(format!("{}: {:?}, not {:?}", path.display(), a.kind, b.kind));
        return;
    }
    let mut field = |name: &str, equal: bool, left: &dyn std::fmt::Debug, right: &dyn std::fmt::Debug| {
        if !equal {
            found.push(format!("{}: {name} is {left:?}, not {right:?}", path.display()));
        }
    };
    // A link's mode means nothing on Linux and cannot be set.
    if a.kind != EntryKind::Symlink {
        field("mode", a.mode == b.mode, &format_args!("{:04o}", a.mode), &format_args!("{:04o}", b.mode));
    }
    field("owner", a.uid == b.uid, &a.uid, &b.uid);
    field("group", a.gid == b.gid, &a.gid, &b.gid);
    field("modification time", a.mtime == b.mtime, &a.mtime, &b.mtime);
    // How large a directory is and how often it is linked is up to the file system.
    if a.kind != EntryKind::Directory {
        field("size", a.size == b.size, &a.size, &b.size);
        field("number of links", a.links == b.links, &a.links, &b.links);
    }
    field("device number", a.rdev == b.rdev, &a.rdev, &b.rdev);
    field("attributes", left.xattrs == right.xattrs, &left.xattrs, &right.xattrs);
    match (&left.body, &right.body) {
        (Body::Symlink(a), Body::Symlink(b)) => field("where it points", a == b, a, b),
        (Body::File(a), Body::File(b)) => {
            if let Some(at) = first_difference(a, b).into_iter().chain(first_difference(b, a)).min() {
                field("contents", false, &format_args!("different from byte {at}"), &"equal");
            }
        }
        _ => {}
    }
}

/// Returns where a run of one file first reads otherwise in the other.
fn first_difference(left: &Extents, right: &Extents) -> Option<u64> {
    left.iter().find_map(|(offset, bytes)| {
        let mut other = vec![0; bytes.len()];
        right.read(offset, &mut other);
        // Byte by byte only where they differ: sweeps compare whole trees thousands of times.
        if bytes == other {
            return None;
        }
        let at = bytes.iter().zip(&other).position(|(a, b)| a != b)?;
        Some(offset + at as u64)
    })
}
