//! Directories that stand where the snapshot has something else: which of them make way, and what never goes with them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::io::tree::{EntryKind, SourceTree, TargetTree, Trust};
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{
    Effect, Filter, FullDirectories, Overwrite, PARTIAL_SUFFIX, RestoreReport, RestoreRequest, restore,
};
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::Timestamp;

use crate::integration::support::{Ask, Notes, SMALL, World, copy, newest};

/// Names of the snapshot, one of each kind, with a name that is linked to the first.
const NAMES: [&str; 4] = ["a-file", "b-link", "c-fifo", "d-again"];

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

/// Restores a snapshot of entries of each kind, tried out first: both must report the same. Returns the report and failures.
fn restored(target: &MemTree, full: &FullDirectories, filter: &Filter) -> (RestoreReport, Vec<String>) {
    restored_with(Overwrite::Always, target, full, filter)
}

fn restored_with(
    overwrite: Overwrite,
    target: &MemTree,
    full: &FullDirectories,
    filter: &Filter,
) -> (RestoreReport, Vec<String>) {
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    source.put_file(Path::new("/a-file"), b"from the snapshot");
    source.put_symlink(Path::new("/b-link"), "x".as_ref());
    source.create_special(Path::new("c-fifo"), EntryKind::Fifo, 0).unwrap();
    source.hard_link(Path::new("a-file"), Path::new("d-again")).unwrap();
    source.put_file(Path::new("/e-directory/below/file"), b"from the snapshot");
    for name in NAMES.into_iter().chain(["e-directory", "e-directory/below", "e-directory/below/file"]) {
        source.edit(&Path::new("/").join(name), |metadata| metadata.mtime = time(1000));
    }
    world.backup(&store, &source, &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let run = |effect| {
        let notes = Arc::new(Notes::default());
        let request = RestoreRequest {
            tree: snapshot.tree,
            path: Path::new("/"),
            filter: filter.clone(),
            target: Arc::new(target.clone()),
            effect,
            overwrite,
            full_directories: full.clone(),
            verify: false,
            trust: Trust::Full,
            scratch: world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            monitor: Arc::clone(&notes) as Arc<dyn Monitor>,
        };
        let report = restore(&store, &request).unwrap();
        let failures = notes.failures.lock().unwrap().clone();
        (RestoreReport { regions_read: 0, directories_read: 0, ..report }, failures)
    };
    let before = copy(target);
    let tried = run(Effect::DryRun);
    assert_eq!(before.diff(target), Vec::<String>::new(), "a dry run changed something");
    let real = run(Effect::Write);
    assert_eq!(tried, real);
    real
}

/// Makes a target in which a directory stands at each name of the snapshot.
fn directories(below: &str) -> MemTree {
    let target = MemTree::new();
    for name in NAMES {
        target.put_dir(&Path::new("/").join(name));
        if !below.is_empty() {
            target.put_file(&Path::new("/").join(name).join(below), b"precious");
        }
    }
    target
}

fn delete(keep: BTreeSet<(u64, u64)>) -> FullDirectories {
    FullDirectories::Delete { keep: Arc::new(keep) }
}

fn identity(target: &MemTree, path: &str) -> (u64, u64) {
    let metadata = TargetTree::metadata(target, Path::new(path)).unwrap().unwrap();
    (metadata.device, metadata.inode)
}

#[track_caller]
fn assert_untouched(target: &MemTree, full: &FullDirectories, filter: &Filter, reason: &str) {
    let before = copy(target);
    let (report, failures) = restored(target, full, filter);
    assert_eq!((report.failures, report.others, report.deleted), (4, 0, 0), "{failures:?}");
    assert_eq!(report.files_incomplete, 2);
    assert_eq!(failures.len(), 4, "{failures:?}");
    assert!(failures.iter().all(|failure| failure.contains(reason)), "{failures:?}");
    // The directory that nothing stands in the way of.
    target.remove(Path::new("e-directory")).unwrap();
    before.edit(Path::new("/"), |metadata| *metadata = TargetTree::metadata(target, Path::new("")).unwrap().unwrap());
    assert_eq!(before.diff(target), Vec::<String>::new());
}

/// A restore over a directory that held the repository, or in which another disk was mounted, deleted all of it.
#[test]
fn a_directory_that_is_not_empty_makes_way_only_if_deleting_was_asked_for() {
    assert_untouched(&directories("sub/file"), &FullDirectories::Keep, &Filter::default(), "only --delete removes it");
    let target = directories("sub/file");
    let (report, failures) = restored(&target, &delete(BTreeSet::new()), &Filter::default());
    assert_eq!((report.failures, report.files, report.others), (0, 2, 3), "{failures:?}");
    // A file and a directory in each.
    assert_eq!(report.deleted, 8);
    assert_eq!(TargetTree::list(&target, Path::new("")).unwrap().len(), NAMES.len() + 1);
    assert_eq!(identity(&target, "a-file"), identity(&target, "d-again"));
}

#[test]
fn an_empty_directory_makes_way() {
    for full in [FullDirectories::Keep, delete(BTreeSet::new())] {
        let target = directories("");
        let (report, failures) = restored(&target, &full, &Filter::default());
        assert_eq!((report.failures, report.files, report.others, report.deleted), (0, 2, 3, 0), "{failures:?}");
    }
}

#[test]
fn nothing_of_a_directory_goes_if_something_in_it_has_to_stay() {
    let target = directories("sub/repository/config");
    target.put_file(Path::new("/a-file/other"), b"precious");
    let keep = NAMES.map(|name| identity(&target, &format!("{name}/sub/repository")));
    assert_untouched(&target, &delete(keep.into()), &Filter::default(), "is the repository or its index");
    let target = directories("sub/mounted/file");
    for name in NAMES {
        target.edit(&Path::new("/").join(name).join("sub/mounted"), |metadata| metadata.device += 1);
    }
    let other = "another file system is mounted there";
    let before = TargetTree::list(&target, Path::new("a-file/sub")).unwrap();
    let (report, failures) = restored(&target, &delete(BTreeSet::new()), &Filter::default());
    assert_eq!((report.failures, report.deleted), (4, 0));
    assert!(failures.iter().all(|failure| failure.contains(other)), "{failures:?}");
    assert_eq!(TargetTree::list(&target, Path::new("a-file/sub")).unwrap(), before);
    let exclude = vec![Patterns::parse([b"*.log".as_slice()], Case::Sensitive).unwrap()];
    let filter = Filter { exclude, ..Filter::default() };
    assert_untouched(&directories("sub/x.log"), &delete(BTreeSet::new()), &filter, "the patterns leave out");
}

/// A newer file was deleted where the snapshot has a link, a special or a directory.
#[test]
fn what_is_newer_stays_whatever_the_snapshot_has_there() {
    let names = ["b-link", "c-fifo", "e-directory"];
    for (seconds, is_kept) in [(999, false), (1000, true), (1001, true)] {
        let target = MemTree::new();
        for name in names {
            target.put_file(&Path::new("/").join(name), b"precious");
            target.edit(&Path::new("/").join(name), |metadata| metadata.mtime = time(seconds));
        }
        let (report, failures) = restored_with(Overwrite::IfNewer, &target, &FullDirectories::Keep, &Filter::default());
        assert_eq!(report.failures, 0, "{failures:?}");
        // The directory, the one in it and the file in that.
        assert_eq!(report.files_skipped, if is_kept { 5 } else { 0 });
        for name in names {
            let standing = TargetTree::metadata(&target, Path::new(name)).unwrap().unwrap();
            assert_eq!(standing.kind == EntryKind::File, is_kept, "{name}");
            assert_eq!(standing.mtime, time(if is_kept { seconds } else { 1000 }), "{name}");
        }
    }
}

/// A restore that is killed between making something that is no file and its rename leaves it under a partial name. Only
/// files with one name were taken away again, and each kill used up a number.
#[test]
fn what_a_killed_restore_has_left_is_taken_away_whatever_it_is() {
    type Leave = fn(&MemTree, &Path);
    let leftovers: [(&str, Leave); 4] = [
        ("link", |tree, path| tree.put_symlink(&Path::new("/").join(path), "x".as_ref())),
        ("special", |tree, path| tree.create_special(path, EntryKind::Fifo, 0).unwrap()),
        ("directory", |tree, path| tree.put_dir(path)),
        ("hard link", |tree, path| tree.hard_link(Path::new("first"), path).unwrap()),
    ];
    let names = NAMES.into_iter().chain(["e-directory"]);
    for (what, leave) in leftovers {
        let target = MemTree::new();
        target.put_file(Path::new("/first"), b"first");
        for name in names.clone() {
            target.put_file(&Path::new("/").join(name), b"old");
            leave(&target, Path::new(&format!("{name}{PARTIAL_SUFFIX}")));
        }
        let (report, failures) = restored(&target, &FullDirectories::Keep, &Filter::default());
        assert_eq!(report.failures, 0, "{what}: {failures:?}");
        let left = TargetTree::list(&target, Path::new("")).unwrap();
        assert_eq!(left, ["a-file", "b-link", "c-fifo", "d-again", "e-directory", "first"], "{what}");
    }
    // A directory that holds something is the user's.
    let target = directories("");
    target.remove(Path::new("b-link")).unwrap();
    target.put_file(Path::new("/b-link"), b"old");
    let mine = format!("/b-link{PARTIAL_SUFFIX}/mine");
    target.put_file(Path::new(&mine), b"mine");
    let (report, failures) = restored(&target, &FullDirectories::Keep, &Filter::default());
    assert_eq!(report.failures, 0, "{failures:?}");
    assert!(SourceTree::metadata(&target, Path::new(&mine)).is_ok());
}
