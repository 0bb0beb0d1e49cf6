//! What is written into a target is what is read back, and nothing leads out of it.
#![expect(clippy::disallowed_methods, reason = "tests look at what the target did")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::os_entry::PATH_LEN_MAX;
use crate::io::os_source::OsSource;
use crate::io::os_target::OsTarget;
use crate::io::tree::{EntryKind, Metadata, Onto, Renamed, SourceTree, TargetTree, Trust, Unset, Xattr};
use crate::random::SplitMix64;
use crate::testing::mem_tree::{self, MemTree};
use crate::types::Timestamp;

/// A target in a directory of its own, which goes with it.
pub(super) struct Fixture {
    pub(super) dir: tempfile::TempDir,
    pub(super) target: OsTarget,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = OsTarget::create(&dir.path().join("not/yet/there")).unwrap();
        Self { dir, target }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("not/yet/there")
    }

    pub(crate) fn metadata(&self, kind: EntryKind, mode: u32) -> Metadata {
        let mut metadata = OsSource.metadata(self.dir.path()).unwrap();
        metadata.kind = kind;
        metadata.mode = mode;
        metadata.mtime = Timestamp { seconds: -5, nanoseconds: 123_456_789 };
        metadata
    }
}

pub(super) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped in part: needs root");
    }
    root
}

pub(super) fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: name.into(), value: value.to_vec() }
}

/// Writes whatever a source holds into a target, as a restore does.
fn copy(source: &dyn SourceTree, target: &dyn TargetTree, trust: Trust) -> Vec<String> {
    let mut seen: std::collections::BTreeMap<u64, PathBuf> = std::collections::BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    let mut entries = Vec::new();
    while let Some(path) = todo.pop() {
        let from = Path::new("/").join(&path);
        let metadata = source.metadata(&from).unwrap();
        match metadata.kind {
            EntryKind::Directory => {
                target.create_dir(&path).unwrap();
                todo.extend(SourceTree::list(source, &from).unwrap().into_iter().map(|name| path.join(name)));
            }
            _ if seen.contains_key(&metadata.inode) => {
                target.hard_link(&seen[&metadata.inode], &path).unwrap();
                continue;
            }
            EntryKind::File => {
                let read = source.open(&from).unwrap();
                let write = target.create_file(&path).unwrap();
                write.set_len(metadata.size).unwrap();
                let mut offset = 0;
                while let Some(range) = read.next_data(offset).unwrap() {
                    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
                    assert_eq!(read.read_at(range.start, &mut bytes).unwrap(), bytes.len());
                    write.write_at(range.start, &bytes).unwrap();
                    offset = range.end;
                }
            }
            EntryKind::Symlink => {
                target.create_symlink(&path, mem_tree::read_link(source, &from).unwrap().as_os_str()).unwrap();
            }
            kind => target.create_special(&path, kind, metadata.rdev).unwrap(),
        }
        seen.insert(metadata.inode, path.clone());
        entries.push((path, metadata, mem_tree::xattrs(source, &from).unwrap()));
    }
    let mut refused = Vec::new();
    for (path, metadata, xattrs) in entries.iter().rev() {
        refused.extend(target.set_metadata(path, metadata, xattrs, trust).unwrap().failures);
    }
    refused
}

/// Removes all that a directory holds.
fn remove_below(target: &dyn TargetTree, directory: &Path) {
    for name in target.list(directory).unwrap() {
        let path = directory.join(name);
        if target.metadata(&path).unwrap().unwrap().kind == EntryKind::Directory {
            remove_below(target, &path);
        }
        target.remove(&path).unwrap();
    }
}

/// Makes a tree with every kind of entry, odd names, holes, hard links, attributes and times of any century.
fn random_tree(random: &mut SplitMix64, root: bool) -> MemTree {
    let tree = MemTree::new();
    let mut directories = vec![PathBuf::new()];
    let mut linkable: Vec<PathBuf> = Vec::new();
    for number in 0..5 + random.below(40) {
        let mut name = format!("{number}-").into_bytes();
        name.extend((0..random.below(20)).map(|_| match random.below(256).to_le_bytes()[0] {
            0 | b'/' => b'\n',
            byte => byte,
        }));
        let directory = &directories[usize::try_from(random.below(directories.len() as u64)).unwrap()];
        let path = directory.join(OsStr::from_bytes(&name));
        let kinds = if root { 9 } else { 7 };
        match random.below(kinds) {
            0 => {
                tree.create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            1 => tree.create_symlink(&path, OsStr::from_bytes(&name)).unwrap(),
            2 if !linkable.is_empty() => {
                let existing = &linkable[usize::try_from(random.below(linkable.len() as u64)).unwrap()];
                tree.hard_link(existing, &path).unwrap();
                continue;
            }
            3 => tree.create_special(&path, EntryKind::Fifo, 0).unwrap(),
            4 => tree.create_special(&path, EntryKind::Socket, 0).unwrap(),
            7 => tree.create_special(&path, EntryKind::CharDevice, rustix::fs::makedev(1, 3)).unwrap(),
            8 => tree.create_special(&path, EntryKind::BlockDevice, rustix::fs::makedev(7, 300)).unwrap(),
            _ => {
                let file = tree.create_file(&path).unwrap();
                file.set_len(random.below(100_000)).unwrap();
                for _ in 0..random.below(3) {
                    let bytes = vec![random.below(256).to_le_bytes()[0]; 10_000];
                    file.write_at(random.below(500_000), &bytes).unwrap();
                }
            }
        }
        let kind = SourceTree::metadata(&tree, &Path::new("/").join(&path)).unwrap().kind;
        if !matches!(kind, EntryKind::Directory | EntryKind::Symlink) {
            linkable.push(path);
        }
    }
    dress(&tree, random, root);
    tree
}

/// Gives every entry metadata and attributes of its own.
fn dress(tree: &MemTree, random: &mut SplitMix64, root: bool) {
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        let kind = SourceTree::metadata(tree, &path).unwrap().kind;
        if kind == EntryKind::Directory {
            todo.extend(SourceTree::list(tree, &path).unwrap().into_iter().map(|name| path.join(name)));
        }
        tree.edit(&path, |metadata| {
            metadata.mtime = Timestamp {
                seconds: i64::try_from(random.below(4_000_000_000)).unwrap() - 2_000_000_000,
                nanoseconds: u32::try_from(random.below(1_000_000_000)).unwrap(),
            };
            // Normal users must be able to read their tree back, and may not give it away.
            metadata.mode = u32::try_from(random.below(0o10000)).unwrap();
            if root {
                metadata.uid = u32::try_from(random.below(70_000)).unwrap();
                metadata.gid = u32::try_from(random.below(70_000)).unwrap();
            } else {
                metadata.uid = rustix::process::geteuid().as_raw();
                metadata.gid = rustix::process::getegid().as_raw();
                metadata.mode = metadata.mode & 0o777 | 0o700;
            }
        });
        let mut xattrs = Vec::new();
        for number in 0..random.below(3) {
            let value = vec![b'v'; usize::try_from(random.below(300)).unwrap()];
            if matches!(kind, EntryKind::File | EntryKind::Directory) {
                xattrs.push(xattr(&format!("user.test{number}"), &value));
            }
            if root {
                xattrs.push(xattr(&format!("trusted.test{number}"), &value));
            }
        }
        tree.set_xattrs(&path, &xattrs);
    }
}

#[test]
fn any_tree_written_is_read_back_the_same() {
    let root = is_root();
    for seed in 0..30 {
        let fixture = Fixture::new();
        let tree = random_tree(&mut SplitMix64::new(seed), root);
        assert_eq!(copy(&tree, &fixture.target, Trust::Full), Vec::<String>::new(), "seed {seed}");
        let back = MemTree::load(&OsSource, &fixture.root()).unwrap();
        assert_eq!(tree.diff(&back), Vec::<String>::new(), "seed {seed}");
        // The double agrees with the real one.
        let double = MemTree::new();
        copy(&tree, &double, Trust::Full);
        assert_eq!(tree.diff(&double), Vec::<String>::new(), "seed {seed}");
        // Nothing is left when everything is removed.
        remove_below(&fixture.target, Path::new(""));
        assert_eq!(fixture.target.list(Path::new("")).unwrap(), Vec::<OsString>::new(), "seed {seed}");
    }
}

#[test]
fn paths_that_are_not_plain_names_are_refused() {
    let Fixture { dir: _dir, target } = Fixture::new();
    target.create_dir(Path::new("a")).unwrap();
    for path in ["/", "/a", "..", ".", "a/", "a//b", "a/../b", "a/./b", "../a", "a\0b", "./a", "a/.."] {
        let path = Path::new(path);
        let refused = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Invalid { .. })), "{path:?}");
        refused(target.metadata(path).map(|_| ()));
        refused(target.list(path).map(|_| ()));
        refused(target.create_dir(path));
        refused(target.create_file(path).map(|_| ()));
        refused(target.open_file(path).map(|_| ()));
        refused(target.create_symlink(path, OsStr::new("x")));
        refused(target.create_special(path, EntryKind::Fifo, 0));
        refused(target.hard_link(path, Path::new("new")));
        refused(target.hard_link(Path::new("a"), path));
        refused(target.remove(path));
    }
    assert_eq!(target.list(Path::new("")).unwrap(), ["a"]);
}

#[test]
fn no_planted_link_leads_out_of_the_target() {
    // A link to a directory outside stands at each component in turn, then at the last one.
    for depth in 0..3 {
        let fixture = Fixture::new();
        let outside = fixture.dir.path().join("outside");
        fs::create_dir_all(outside.join("b/c")).unwrap();
        fs::write(outside.join("victim"), b"precious").unwrap();
        fs::write(outside.join("b/victim"), b"precious").unwrap();
        fs::write(outside.join("b/c/victim"), b"precious").unwrap();
        let before = MemTree::load(&OsSource, &outside).unwrap();

        let names = ["a", "b", "c"];
        let planted: PathBuf = names[..=depth].iter().collect();
        fs::create_dir_all(fixture.root().join(planted.parent().unwrap())).unwrap();
        let aim: PathBuf = names[1..=depth].iter().collect();
        symlink(outside.join(aim), fixture.root().join(&planted)).unwrap();
        fs::write(fixture.root().join("own"), b"own").unwrap();

        let target = &fixture.target;
        let deep: PathBuf = names.iter().collect();
        let metadata = fixture.metadata(EntryKind::File, 0o777);
        for path in [planted.join("victim"), deep.join("victim"), planted.join("new"), deep.join("new")] {
            let path = path.as_path();
            assert!(target.metadata(path).is_err(), "{path:?}");
            assert!(target.list(path).is_err(), "{path:?}");
            assert!(target.create_dir(path).is_err(), "{path:?}");
            assert!(target.create_file(path).is_err(), "{path:?}");
            assert!(target.open_file(path).is_err(), "{path:?}");
            assert!(target.create_symlink(path, OsStr::new("x")).is_err(), "{path:?}");
            assert!(target.create_special(path, EntryKind::Fifo, 0).is_err(), "{path:?}");
            assert!(target.hard_link(path, Path::new("stolen")).is_err(), "{path:?}");
            assert!(target.hard_link(Path::new("own"), path).is_err(), "{path:?}");
            assert!(target.remove(path).is_err(), "{path:?}");
            assert!(target.set_metadata(path, &metadata, &[], Trust::Full).is_err(), "{path:?}");
        }
        // The link itself: it stands, nothing is done through it, and it alone can be dressed and removed.
        assert!(target.create_file(&planted).is_err());
        assert!(target.create_dir(&planted).is_err());
        assert!(target.open_file(&planted).is_err());
        assert!(target.list(&planted).is_err());
        assert!(target.hard_link(&planted, Path::new("stolen")).is_err());
        assert_eq!(target.metadata(&planted).unwrap().unwrap().kind, EntryKind::Symlink);
        let metadata = fixture.metadata(EntryKind::Symlink, 0o777);
        assert_eq!(target.set_metadata(&planted, &metadata, &[], Trust::Full).unwrap(), Unset::default());
        assert_eq!(target.metadata(&planted).unwrap().unwrap().mtime, metadata.mtime);
        target.remove(&planted).unwrap();
        assert_eq!(target.metadata(&planted).unwrap(), None);

        let after = MemTree::load(&OsSource, &outside).unwrap();
        assert_eq!(before.diff(&after), Vec::<String>::new(), "depth {depth}");
        assert_eq!(target.metadata(Path::new("stolen")).unwrap(), None);
    }
}

#[test]
fn a_directory_that_holds_something_is_not_removed_and_no_link_is_followed() {
    let fixture = Fixture::new();
    let outside = fixture.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), b"precious").unwrap();
    let double = MemTree::new();
    let on_disk: &dyn TargetTree = &fixture.target;
    for target in [on_disk, &double] {
        target.create_dir(Path::new("d")).unwrap();
        target.create_symlink(Path::new("d/link"), outside.as_os_str()).unwrap();
        let refused = target.remove(Path::new("d")).unwrap_err();
        assert_eq!(refused.io_kind(), Some(std::io::ErrorKind::DirectoryNotEmpty));
        target.remove(Path::new("d/link")).unwrap();
        target.remove(Path::new("d")).unwrap();
        assert_eq!(target.list(Path::new("")).unwrap(), Vec::<OsString>::new());
        assert_eq!(target.remove(Path::new("d")).unwrap_err().io_kind(), Some(std::io::ErrorKind::NotFound));
        assert!(target.remove(Path::new("")).is_err());
    }
    assert_eq!(fs::read(outside.join("victim")).unwrap(), b"precious");
}

#[test]
fn nothing_that_stands_is_overwritten_by_creating() {
    let Fixture { dir: _dir, target } = Fixture::new();
    let path = Path::new("here");
    target.create_file(path).unwrap().write_at(0, b"abc").unwrap();
    let exists = |outcome: Result<()>| {
        assert_eq!(outcome.unwrap_err().io_kind(), Some(std::io::ErrorKind::AlreadyExists));
    };
    exists(target.create_file(path).map(|_| ()));
    exists(target.create_symlink(path, OsStr::new("x")));
    exists(target.create_special(path, EntryKind::Fifo, 0));
    exists(target.hard_link(path, path));
    assert!(target.create_dir(path).is_err());
    assert_eq!(target.open_file(path).unwrap().len().unwrap(), 3);
    target.create_dir(Path::new("dir")).unwrap();
    target.create_dir(Path::new("dir")).unwrap();
    target.create_dir(Path::new("")).unwrap();
}

#[test]
fn a_file_that_may_only_be_read_is_opened_to_read() {
    let fixture = Fixture::new();
    let (target, path) = (&fixture.target, Path::new("file"));
    target.create_file(path).unwrap().write_at(0, b"bytes").unwrap();
    target.set_metadata(path, &fixture.metadata(EntryKind::File, 0o400), &[], Trust::Full).unwrap();
    let file = target.open_to_read(path).unwrap();
    let mut buffer = [0; 9];
    assert_eq!((file.len().unwrap(), file.read_at(0, &mut buffer).unwrap()), (5, 5));
    assert_eq!(&buffer[..5], b"bytes");
    assert!(file.write_at(0, b"x").is_err());
    symlink("file", fixture.root().join("link")).unwrap();
    assert!(target.open_to_read(Path::new("link")).is_err() && target.open_to_read(Path::new("")).is_err());
}

#[test]
fn files_are_written_cut_and_grown_in_place() {
    let Fixture { dir: _dir, target } = Fixture::new();
    let file = target.create_file(Path::new("file")).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    file.write_at(0, &vec![1; 20_000]).unwrap();
    file.set_len(100).unwrap();
    file.write_at(9_000, &vec![1; 10_990]).unwrap();
    file.set_len(20_000).unwrap();
    assert_eq!(file.len().unwrap(), 20_000);
    let mut buffer = vec![9; 30_000];
    let again = target.open_file(Path::new("file")).unwrap();
    assert_eq!(again.read_at(0, &mut buffer).unwrap(), 20_000);
    let mut expected = vec![1; 20_000];
    expected[100..9_000].fill(0);
    expected[19_990..].fill(0);
    assert_eq!(buffer[..20_000], expected);
    again.set_len(5).unwrap();
    assert_eq!(file.len().unwrap(), 5);
}

#[test]
fn paths_longer_than_the_kernel_takes_are_walked_and_removed() {
    let fixture = Fixture::new();
    let target = &fixture.target;
    let mut path = PathBuf::new();
    for _ in 0..60 {
        path.push("n".repeat(200));
        target.create_dir(&path).unwrap();
    }
    assert!(2 * PATH_LEN_MAX < path.as_os_str().len());
    let file = path.join("file");
    target.create_file(&file).unwrap().set_len(7).unwrap();
    target.hard_link(&file, Path::new("short")).unwrap();
    target.create_symlink(&path.join("link"), OsStr::new("x")).unwrap();
    let metadata = fixture.metadata(EntryKind::File, 0o640);
    let xattrs = [xattr("user.deep", b"1")];
    target.set_metadata(&file, &metadata, &xattrs, Trust::Full).unwrap();
    let found = target.metadata(&file).unwrap().unwrap();
    assert_eq!((found.links, found.mode, found.size, found.mtime), (2, 0o640, 7, metadata.mtime));
    assert_eq!(mem_tree::xattrs(&OsSource, &fixture.root().join(&file)).unwrap(), xattrs);
    remove_below(target, Path::new(""));
    assert_eq!(target.list(Path::new("")).unwrap(), Vec::<OsString>::new());
}

#[test]
fn the_probe_for_case_leaves_nothing_behind() {
    let fixture = Fixture::new();
    fs::write(fixture.root().join("probe"), b"").unwrap();
    let expected = fixture.root().join("PROBE").exists();
    assert_eq!(fixture.target.folds_case().unwrap(), expected);
    assert_eq!(fixture.target.list(Path::new("")).unwrap(), ["probe"]);
    // Without a name that tells, a file does.
    fs::rename(fixture.root().join("probe"), fixture.root().join("1")).unwrap();
    assert_eq!(fixture.target.folds_case().unwrap(), expected);
    assert_eq!(fixture.target.list(Path::new("")).unwrap(), ["1"]);
}

#[test]
fn the_root_is_created_on_the_users_own_path() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let target = OsTarget::create(&dir.path().join("link/x/y")).unwrap();
    target.create_dir(Path::new("z")).unwrap();
    assert!(dir.path().join("real/x/y/z").is_dir());
    let mode = fs::metadata(dir.path().join("real/x/y/z")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    assert!(OsTarget::open(&dir.path().join("missing")).is_err());
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(OsTarget::create(&dir.path().join("file")).is_err());
}

#[test]
fn a_lock_is_held_until_its_file_is_closed_and_a_rename_replaces_only_what_it_may() {
    let fixture = Fixture::new();
    let on_disk: &dyn TargetTree = &fixture.target;
    let double = MemTree::new();
    for target in [on_disk, &double] {
        let (a, b) = (Path::new("a"), Path::new("b"));
        let file = target.create_file(a).unwrap();
        let other = target.open_file(a).unwrap();
        assert!(file.try_lock().unwrap() && file.try_lock().unwrap());
        assert!(!other.try_lock().unwrap());
        let identity = file.identity().unwrap();
        assert_eq!(identity, other.identity().unwrap());
        drop(file);
        assert!(other.try_lock().unwrap());
        assert_eq!(identity, target.metadata(a).unwrap().unwrap().identity());
        let planted = target.create_file(b).unwrap().identity().unwrap();
        assert_ne!(planted, identity);
        assert_eq!(target.rename(b, a, Some(identity), Onto::Nothing).unwrap(), Renamed::Unexpected);
        assert_eq!(target.rename(Path::new("gone"), a, Some(identity), Onto::Nothing).unwrap(), Renamed::Unexpected);
        assert_eq!(target.list(Path::new("")).unwrap(), ["a", "b"]);
        assert_eq!(target.rename(a, b, Some(identity), Onto::Nothing).unwrap(), Renamed::Taken);
        assert_eq!(target.metadata(b).unwrap().unwrap().identity(), planted);
        assert_eq!(target.rename(a, b, Some(identity), Onto::Anything).unwrap(), Renamed::Done);
        assert_eq!(target.list(Path::new("")).unwrap(), ["b"]);
        assert_eq!(target.rename(b, a, None, Onto::Nothing).unwrap(), Renamed::Done);
        assert_eq!(target.metadata(a).unwrap().unwrap().identity(), identity);
    }
}
