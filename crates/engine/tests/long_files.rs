//! Long files, whose parts several readers read: each file is what one reader would have read.
//! Those of up to 64 MiB that change meanwhile are read again.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::backup::Monitor;
use onefold_engine::io::tree::TargetTree;
use onefold_engine::pipeline::Driver;
use onefold_engine::testing::mem_tree::MemTree;

use crate::integration::support::{Ask, Notes, SMALL, World, newest, noise};

/// Length of a file that is too long to be read again. Most of it is a hole, so that tests take little time.
const LONG: u64 = 80 << 20;
/// Length of a file that is read again if it changes.
const SHORT: u64 = 40 << 20;
/// Length of the data at the beginning and at the end.
const DATA: usize = 1_300_000;

fn path() -> &'static Path {
    Path::new("/d/long")
}

/// A tree with a file of this length between two small ones: data, a hole, less data with an odd length, a hole, data.
fn tree(len: u64) -> MemTree {
    let tree = MemTree::new();
    tree.put_file(Path::new("/d/a"), &noise(8, 5000));
    let (first, middle, last) = (noise(1, DATA), noise(2, 70_001), noise(3, DATA));
    tree.put_sparse(path(), len, &[(0, &first), (10 << 20, &middle), (len - DATA as u64, &last)]);
    tree.put_file(Path::new("/d/z"), &noise(9, 5000));
    tree
}

fn drivers() -> [Driver; 4] {
    [Driver::inline(1), Driver::inline(2), Driver::threads(1), Driver::threads(4)]
}

/// Backs up a tree and restores it. Returns what was reported, and the tree that came back.
fn backed_up(source: &MemTree, driver: Driver) -> (Vec<String>, MemTree) {
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let notes = Arc::new(Notes::default());
    let ask = Ask { driver, monitor: Arc::clone(&notes) as Arc<dyn Monitor>, ..Ask::default() };
    world.backup(&store, source, &ask).unwrap();
    let failures = notes.failures.lock().unwrap().clone();
    let (restored, report) = world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap();
    assert_eq!(report.failures, 0);
    (failures, restored)
}

/// Backs up a tree that misbehaves and compares what comes back with what is expected of it.
fn check(misbehave: impl Fn(&MemTree), expect: impl Fn(&MemTree), failure: Option<&str>) {
    for driver in drivers() {
        let (source, expected) = (tree(LONG), tree(LONG));
        misbehave(&source);
        expect(&expected);
        let (failures, restored) = backed_up(&source, driver);
        assert_eq!(failures.len(), usize::from(failure.is_some()), "{failures:?}");
        assert!(failure.is_none_or(|failure| failures[0].contains(failure)), "{failures:?}");
        for tree in [&expected, &restored] {
            tree.forget_times();
        }
        assert_eq!(expected.diff(&restored), Vec::<String>::new());
    }
}

fn edit(tree: &MemTree, at: u64, bytes: &[u8]) {
    tree.open_file(Path::new("d/long")).unwrap().write_at(at, bytes).unwrap();
}

fn cut(tree: &MemTree, len: u64) {
    tree.open_file(Path::new("d/long")).unwrap().set_len(len).unwrap();
}

#[test]
fn a_long_file_is_stored_as_it_is() {
    check(|_| {}, |_| {}, None);
}

#[test]
fn parts_are_cut_where_one_reader_cuts() {
    for driver in drivers() {
        let world = World::new(5);
        let store = world.create(SMALL).unwrap();
        let ask = Ask { driver, ..Ask::default() };
        let short = world.backup(&store, &tree(SHORT), &ask).unwrap().report;
        let long = world.backup(&store, &tree(LONG), &ask).unwrap().report;
        assert_ne!(short.chunks.data_unique, 0);
        assert_eq!(long.chunks.data_unique, 0);
        assert_eq!(long.chunks.data_duplicate, short.chunks.data_unique + short.chunks.data_duplicate);
    }
}

#[test]
fn a_long_file_that_grows_is_kept_as_long_as_it_was() {
    for read in 1..8 {
        check(|source| source.mutate_on_read(path(), read, |tree| edit(tree, LONG, &noise(7, 100_000))), |_| {}, None);
    }
}

#[test]
fn a_long_file_that_grows_and_is_rewritten_is_reported() {
    let rewrite = |source: &MemTree| {
        // The first bytes are read again at the end, after the six reads of its parts.
        source.mutate_on_read(path(), 7, |tree| {
            edit(tree, LONG, b"more");
            edit(tree, 0, b"other");
        });
        source.mutate_on_read(path(), 6, |tree| edit(tree, LONG, b"m"));
    };
    check(rewrite, |_| {}, Some("it was rewritten"));
}

#[test]
fn a_long_file_that_shrinks_is_stored_as_far_as_it_was_read_and_reported() {
    for len in [0, 500_000] {
        let shrink = move |source: &MemTree| source.mutate_on_read(path(), 1, move |tree| cut(tree, len));
        check(shrink, move |expected| cut(expected, len), Some("it became shorter"));
    }
}

#[test]
fn a_long_file_that_fails_to_read_is_left_out_and_reported() {
    for after in [0, 600_000, 11 << 20, LONG - 1000] {
        let fail = |source: &MemTree| source.fail_reads(path(), after, ErrorKind::Other);
        check(fail, |expected| expected.remove(Path::new("d/long")).unwrap(), Some("/d/long"));
    }
}

#[test]
fn a_long_file_that_vanishes_once_it_is_open_is_kept() {
    let vanish = |source: &MemTree| {
        source.mutate_on_read(path(), 2, |tree| tree.remove(Path::new("d/long")).unwrap());
    };
    check(vanish, |_| {}, None);
}

/// Lengths below and above those at which a file is read in parts, fills a block, and takes several.
const LENGTHS: [usize; 9] =
    [1, 100_000, 256 << 10, (256 << 10) + 1, 300_000, 512 << 10, (512 << 10) + 1, 1 << 20, 2_500_001];

fn name(number: u64) -> String {
    format!("/d/{number:02}")
}

fn rewrite(tree: &MemTree, number: u64, seed: u64) {
    tree.open_file(Path::new(&name(number)[1..])).unwrap().write_at(0, &noise(seed, 1)).unwrap();
}

/// Files of several lengths, of which two thirds change: some while they are read, others again while they are read once more. The file
/// of number `always` changes at each reading.
fn changing(always: u64) -> MemTree {
    let tree = MemTree::new();
    for (number, len) in (0..36).zip(LENGTHS.into_iter().cycle()) {
        tree.put_file(Path::new(&name(number)), &noise(number, len));
        let path = name(number);
        let changes = if number == always { 1..30 } else { 1..1 + number % 3 };
        for nth in changes {
            let seed = 100 + 30 * number + nth;
            tree.mutate_on_read(Path::new(&path), nth, move |tree| rewrite(tree, number, seed));
        }
    }
    tree
}

#[test]
fn files_that_change_are_read_again_before_what_follows_them() {
    for always in [12, 17, 25] {
        for driver in drivers() {
            let source = changing(always);
            let (failures, restored) = backed_up(&source, driver);
            assert_eq!(failures.len(), 1, "{failures:?}");
            assert!(failures[0].contains(&name(always)) && failures[0].contains("3 times"), "{failures:?}");
            for tree in [&source, &restored] {
                tree.remove(Path::new(&name(always)[1..])).unwrap();
                tree.forget_times();
            }
            assert_eq!(source.diff(&restored), Vec::<String>::new());
        }
    }
}
