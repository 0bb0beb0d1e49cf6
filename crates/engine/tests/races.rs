//! A source that changes while it is backed up: what is stored was there, whole, below the roots.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests prepare real files")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onefold_engine::backup::{BackupReport, Monitor};
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::{EntryKind, Metadata, SourceTree, TargetTree, Xattr};
use onefold_engine::pipeline::Driver;
use onefold_engine::testing::mem_tree::{self, MemTree};

use crate::integration::support::{Ask, Notes, SMALL, World, back_up, newest, noise};

/// Several blocks of the pipeline.
const LARGE: usize = 1_300_000;

fn read(tree: &dyn SourceTree, path: &Path) -> Vec<u8> {
    let file = tree.open(path).unwrap();
    let mut bytes = vec![0; usize::try_from(file.opened().size).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Backs up `/d`, and returns what comes back with what was reported.
fn back_up_and_restore(source: &MemTree, driver: Driver) -> (World, MemTree, BackupReport, Vec<String>) {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let notes = Arc::new(Notes::default());
    let ask = Ask { driver, monitor: Arc::clone(&notes) as Arc<dyn Monitor>, ..Ask::default() };
    let backup = back_up(&store, &world.cache(), Arc::new(source.clone()), Path::new("/d"), &ask).unwrap().report;
    let (restored, report) = world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap();
    assert_eq!(report.failures, 0);
    let failures = notes.failures.lock().unwrap().clone();
    assert_eq!(backup.failures, failures.len() as u64, "{failures:?}");
    (world, restored, backup, failures)
}

/// What belongs to one version of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Version {
    bytes: Vec<u8>,
    mtime: i64,
    mode: u32,
    xattrs: Vec<Xattr>,
}

impl Version {
    fn of(tree: &MemTree, path: &Path) -> Self {
        let Metadata { mtime, mode, .. } = SourceTree::metadata(tree, path).unwrap();
        Self { bytes: read(tree, path), mtime: mtime.seconds, mode, xattrs: mem_tree::xattrs(tree, path).unwrap() }
    }
}

fn odd() -> &'static Path {
    Path::new("/d/odd")
}

/// A tree of one odd file among others, and another version of it outside of what is backed up.
fn tree(old: usize, new: usize) -> MemTree {
    let tree = MemTree::new();
    for path in ["/d/a", "/d/b/c", "/d/z"] {
        tree.put_file(Path::new(path), &noise(path.len() as u64, 3000));
    }
    for (path, len, mode) in [("/d/odd", old, 0o640), ("/new", new, 0o751)] {
        tree.put_file(Path::new(path), &noise(mode.into(), len));
        let name = format!("user.{mode}").into();
        tree.set_xattrs(Path::new(path), &[Xattr { name, value: vec![7; 3] }]);
        tree.edit(Path::new(path), |metadata| metadata.mode = mode);
    }
    tree
}

/// Calls of an undisturbed backup, so that something can be done before each of them.
fn calls(old: usize, new: usize) -> u64 {
    let tree = tree(old, new);
    back_up_and_restore(&tree, Driver::inline(3));
    tree.calls()
}

/// Lengths of the file before and after: small and read among others, large and read by itself, empty.
const LENGTHS: [(usize, usize); 8] =
    [(5000, 9000), (9000, 5000), (5000, 5000), (5000, 600_000), (LARGE, LARGE - 70_000), (LARGE, 40), (0, 40), (40, 0)];

#[test]
fn a_file_replaced_before_any_call_is_stored_as_one_of_its_versions() {
    for (old, new) in LENGTHS {
        for call in 1..=calls(old, new) {
            let source = tree(old, new);
            let versions = [Version::of(&source, odd()), Version::of(&source, Path::new("/new"))];
            source.mutate_on_call(call, |tree| tree.rename(Path::new("/new"), odd()));
            let (world, restored, _, failures) = back_up_and_restore(&source, Driver::inline(call));
            let case = format!("{old} bytes by {new} before call {call}: {failures:?}");
            assert_eq!(failures, Vec::<String>::new(), "{case}");
            let stored = Version::of(&restored, odd());
            assert!(versions.contains(&stored), "{case}: {} bytes, mode {:o}", stored.bytes.len(), stored.mode);
            // Whichever it was, the next backup has the new one.
            let store = world.open().unwrap();
            let ask = Ask { with_parent: true, ..Ask::default() };
            back_up(&store, &world.cache(), Arc::new(source.clone()), Path::new("/d"), &ask).unwrap();
            let (restored, _) = world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap();
            assert_eq!(Version::of(&restored, odd()), versions[1], "{case}");
        }
    }
}

#[test]
fn a_file_replaced_by_one_too_large_to_be_read_among_small_ones_is_left_out_and_reported() {
    let (old, new) = (5000, 3 << 20);
    let mut left_out = 0;
    for call in 1..=calls(old, new) {
        let source = tree(old, new);
        let versions = [Version::of(&source, odd()), Version::of(&source, Path::new("/new"))];
        source.mutate_on_call(call, |tree| tree.rename(Path::new("/new"), odd()));
        let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(call));
        if failures.is_empty() {
            assert!(versions.contains(&Version::of(&restored, odd())), "call {call}");
        } else {
            left_out += 1;
            assert!(SourceTree::metadata(&restored, odd()).is_err(), "call {call}");
            assert!(failures.len() == 1 && failures[0].contains("/d/odd: it grew from 5000"), "{failures:?}");
        }
    }
    assert!(left_out > 0, "at no call was the file found and not opened yet");
}

#[test]
fn a_file_rewritten_in_place_before_any_call_is_stored_as_one_of_its_versions() {
    for (old, new) in LENGTHS {
        for call in 1..=calls(old, new) {
            let source = tree(old, new);
            let bytes = noise(99, new);
            let versions = [read(&source, odd()), bytes.clone()];
            source.mutate_on_call(call, move |tree| tree.put_file(odd(), &bytes));
            let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(call));
            let case = format!("{old} bytes by {new} before call {call}: {failures:?}");
            let stored = read(&restored, odd());
            assert_eq!(failures, Vec::<String>::new(), "{case}");
            let number = versions.iter().position(|version| *version == stored);
            assert!(number.is_some(), "{case}: {} bytes", stored.len());
            let mtime = |tree: &MemTree| SourceTree::metadata(tree, odd()).unwrap().mtime;
            assert_eq!(number == Some(1) || stored == versions[1], mtime(&source) == mtime(&restored), "{case}");
        }
    }
}

#[test]
fn a_file_appended_to_before_any_call_is_stored_as_long_as_it_was_once() {
    for len in [5000, 120_000, LARGE] {
        let all = noise(0o640, len + 10_000);
        for call in 1..=calls(len, 1) {
            let source = tree(len, 1);
            let more = all[len..].to_vec();
            source.mutate_on_call(call, move |tree| {
                tree.open_file(Path::new("d/odd")).unwrap().write_at(len as u64, &more).unwrap();
            });
            let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(call));
            let stored = read(&restored, odd());
            assert_eq!(failures, Vec::<String>::new(), "{len} bytes, call {call}");
            assert!(stored == all[..len] || stored == all, "{len} bytes, call {call}: {} stored", stored.len());
        }
    }
}

#[test]
fn a_file_that_changes_whenever_it_is_read_is_stored_and_reported() {
    for len in [5000, LARGE] {
        let source = tree(len, 1);
        for nth in 1..=20 {
            source.mutate_on_read(odd(), nth, move |tree| tree.put_file(odd(), &noise(nth, len)));
        }
        let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(1));
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("/d/odd: it was rewritten while it was read, 3 times"), "{failures:?}");
        assert_eq!(read(&restored, odd()).len(), len);
    }
}

#[test]
fn a_file_that_is_only_touched_renamed_or_linked_while_it_is_read_is_stored_without_a_report() {
    type Change = fn(&MemTree);
    let changes: [Change; 3] = [
        |tree| tree.edit(odd(), |metadata| metadata.mode = 0o444),
        |tree| tree.hard_link(Path::new("d/odd"), Path::new("other")).unwrap(),
        |tree| tree.rename(odd(), Path::new("/moved")),
    ];
    for len in [5000, LARGE] {
        for change in changes {
            let source = tree(len, 1);
            let expected = read(&source, odd());
            source.mutate_on_read(odd(), 1, change);
            let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(1));
            assert_eq!(failures, Vec::<String>::new());
            assert!(read(&restored, odd()) == expected);
        }
    }
}

#[test]
fn a_directory_replaced_by_a_link_before_any_call_is_never_left_through_it() {
    let make = || {
        let tree = tree(5000, 1);
        for name in ["c", "secret"] {
            tree.put_file(&Path::new("/outside").join(name), b"secret");
        }
        tree.put_symlink(Path::new("/link"), OsStr::new("outside"));
        tree
    };
    let undisturbed = make();
    back_up_and_restore(&undisturbed, Driver::inline(1));
    for call in 1..=undisturbed.calls() {
        let source = make();
        source.mutate_on_call(call, |tree| {
            tree.rename(Path::new("/d/b"), Path::new("/away"));
            tree.rename(Path::new("/link"), Path::new("/d/b"));
        });
        let (_, restored, _, failures) = back_up_and_restore(&source, Driver::inline(call));
        let b = SourceTree::metadata(&restored, Path::new("/d/b")).unwrap();
        match b.kind {
            EntryKind::Symlink => {
                assert_eq!(mem_tree::read_link(&restored, Path::new("/d/b")).unwrap(), Path::new("outside"));
            }
            kind => {
                assert_eq!(kind, EntryKind::Directory, "call {call}");
                assert_eq!(SourceTree::list(&restored, Path::new("/d/b")).unwrap(), ["c"], "call {call}: {failures:?}");
                let stored = read(&restored, Path::new("/d/b/c"));
                assert!(stored == noise("/d/b/c".len() as u64, 3000), "call {call}: {} bytes", stored.len());
            }
        }
        assert_eq!(failures, Vec::<String>::new(), "call {call}");
    }
}

/// Does something over and over while something else goes on.
fn meanwhile(disturb: impl Fn() + Sync, action: impl FnOnce()) {
    /// Also when a test fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                disturb();
            }
        });
        let _done = Done(&is_done);
        action();
    });
}

fn snapshots_of(root: &Path, count: usize, each: &mut dyn FnMut(MemTree)) {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    for _ in 0..count {
        let ask = Ask { driver: Driver::threads(2), with_parent: true, ..Ask::default() };
        back_up(&store, &world.cache(), Arc::new(OsSource::new()), root, &ask).unwrap();
        each(world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap().0);
    }
}

const FILES: usize = 60;
const SNAPSHOTS: usize = if cfg!(feature = "slow") { 300 } else { 25 };

#[test]
fn real_files_under_a_loop_of_renames_are_stored_as_one_of_their_versions() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("d");
    fs::create_dir(&root).unwrap();
    // By its length: its bytes and its modification time.
    let mut versions: BTreeMap<usize, (Vec<u8>, i64)> = BTreeMap::new();
    for (seed, len, mtime) in [(1, 700, 1_000_000), (2, 4321, 2_000_000)] {
        versions.insert(len, (noise(seed, len), mtime));
    }
    let put = |name: &str, len: usize| {
        let (bytes, mtime) = &versions[&len];
        let temporary = directory.path().join("new");
        fs::write(&temporary, bytes).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(*mtime).unwrap());
        fs::File::options().write(true).open(&temporary).unwrap().set_modified(time).unwrap();
        fs::rename(&temporary, root.join(name)).unwrap();
    };
    let name = |number: usize| format!("{number:02}");
    for number in 0..FILES {
        put(&name(number), 700);
    }
    let disturb = || {
        for len in [4321, 700] {
            for number in 0..FILES {
                put(&name(number), len);
            }
        }
    };
    meanwhile(disturb, || {
        snapshots_of(&root, SNAPSHOTS, &mut |restored| {
            for number in 0..FILES {
                let path = root.join(name(number));
                let stored = read(&restored, &path);
                let (bytes, mtime) = versions.get(&stored.len()).unwrap_or_else(|| panic!("{} bytes", stored.len()));
                assert!(stored == *bytes, "{} bytes of a mixture", stored.len());
                assert_eq!(SourceTree::metadata(&restored, &path).unwrap().mtime.seconds, *mtime);
            }
        });
    });
}

#[test]
fn a_real_directory_swapped_with_a_link_over_and_over_is_never_left_through_it() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let (root, outside, link) = (base.join("d"), base.join("outside"), base.join("link"));
    let victim = root.join("victim");
    for path in [&victim, &outside] {
        fs::create_dir_all(path).unwrap();
        for number in 0..FILES {
            let bytes: &[u8] = if path == &outside { b"secret" } else { b"public" };
            fs::write(path.join(number.to_string()), bytes).unwrap();
        }
    }
    symlink(&outside, &link).unwrap();
    let exchange = || {
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, &victim, here, &link, rustix::fs::RenameFlags::EXCHANGE).unwrap();
    };
    let mut kinds = BTreeMap::new();
    meanwhile(exchange, || {
        snapshots_of(&root, 4 * SNAPSHOTS, &mut |restored| {
            let kind = SourceTree::metadata(&restored, &victim).map(|metadata| metadata.kind);
            *kinds.entry(kind.as_ref().ok().copied()).or_insert(0) += 1;
            if let Ok(EntryKind::Directory) = kind {
                for name in SourceTree::list(&restored, &victim).unwrap() {
                    assert_eq!(read(&restored, &victim.join(name)), b"public");
                }
            }
        });
    });
    assert!(kinds.contains_key(&Some(EntryKind::Directory)), "{kinds:?}");
}
