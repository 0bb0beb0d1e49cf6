//! Each call of a restore fails once, of the target and of the repository's disk; then the restore is repeated.
//!
//! Whatever fails: a file that is not whole never stands under its name, and no restore reports success over a difference.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::Result;
use onefold_engine::io::tree::{EntryKind, TargetTree, Trust, Xattr};
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{
    Effect, Filter, FullDirectories, Overwrite, PARTIAL_SUFFIX, RestoreReport, RestoreRequest, restore,
};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{Fault, SimDisk};
use onefold_engine::types::Timestamp;

use crate::integration::support::faulty_target::FaultyTarget;
use crate::integration::support::{Ask, Notes, SMALL, World, container_names, copy, newest, noise, tell};

/// Codes of errors that a target gives.
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const CODES: [i32; 4] = [EIO, EACCES, EMFILE, ENOSPC];

const POLICIES: [Overwrite; 4] = [Overwrite::Always, Overwrite::IfChanged, Overwrite::IfNewer, Overwrite::Never];

/// Files by path, as they read.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 7 }
}

/// Everything that a snapshot can hold, in few entries.
fn source() -> MemTree {
    let tree = MemTree::new();
    let path = Path::new;
    tree.put_file(path("/d/big"), &noise(1, 30_000));
    tree.put_file(path("/d/small"), b"small");
    tree.put_file(path("/d/equal"), b"equal");
    tree.put_file(path("/d/empty"), b"");
    tree.put_sparse(path("/d/holes"), 100_000, &[]);
    tree.put_sparse(path("/d/sub/sparse"), 90_000, &[(40_000, &noise(2, 5000))]);
    tree.put_file(path("/d/sub/linked"), &noise(3, 3000));
    tree.hard_link(path("d/sub/linked"), path("d/again")).unwrap();
    tree.put_file(path("/d/sub/was-directory"), b"file");
    tree.put_file(path("/d/was-file/inside"), b"inside");
    tree.put_symlink(path("/d/link"), "small".as_ref());
    tree.create_special(path("d/fifo"), EntryKind::Fifo, 0).unwrap();
    tree.set_xattrs(path("/d/big"), &[Xattr { name: "user.note".into(), value: b"value".to_vec() }]);
    for name in ["big", "small", "equal", "empty", "holes", "sub/sparse", "sub/linked", "sub/was-directory"] {
        tree.edit(&path("/d").join(name), |metadata| (metadata.mode, metadata.mtime) = (0o640, time(1_000_000)));
    }
    for name in ["/d/was-file", "/d/sub", "/d"] {
        tree.edit(path(name), |metadata| metadata.mtime = time(2_000_000));
    }
    tree
}

/// What may stand in the target before.
fn standing() -> Vec<(&'static str, MemTree)> {
    let full = MemTree::new();
    let path = Path::new;
    full.put_file(path("/big"), &noise(9, 30_000));
    full.put_file(path("/small"), b"SMALL");
    full.put_file(path("/equal"), b"equal");
    full.put_file(path("/sub/linked"), b"old");
    full.put_file(path("/sub/was-directory/precious"), b"precious");
    full.put_file(path("/was-file"), b"old");
    full.put_file(path("/link"), b"old");
    full.put_file(path("/fifo"), b"old");
    full.put_file(path("/again"), b"old");
    // Left by a run that was killed.
    full.put_file(&path("/big").with_file_name(format!("big{PARTIAL_SUFFIX}")), b"left");
    full.edit(path("/big"), |metadata| metadata.mtime = time(1));
    full.edit(path("/small"), |metadata| metadata.mtime = time(9_000_000));
    full.edit(path("/equal"), |metadata| metadata.mtime = time(1_000_000));
    vec![("empty", MemTree::new()), ("full", full)]
}

struct Case<'a> {
    world: &'a World,
    snapshot: &'a Snapshot,
}

impl Case<'_> {
    fn restore(
        &self,
        store: &Store,
        target: Arc<dyn TargetTree>,
        overwrite: Overwrite,
    ) -> (Result<RestoreReport>, String) {
        let notes = Arc::new(Notes::default());
        let request = RestoreRequest {
            tree: self.snapshot.tree,
            path: Path::new("/d"),
            filter: Filter::default(),
            target,
            effect: Effect::Write,
            overwrite,
            full_directories: FullDirectories::Delete { keep: Arc::default() },
            verify: false,
            trust: Trust::Full,
            scratch: self.world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            monitor: Arc::clone(&notes) as Arc<dyn onefold_engine::monitor::Monitor>,
        };
        let report = restore(store, &request);
        let failures = notes.failures.lock().unwrap().join("\n");
        (report, failures)
    }

    /// What a restore without faults makes of a target.
    fn clean(&self, store: &Store, standing: &MemTree, overwrite: Overwrite) -> MemTree {
        let target = copy(standing);
        let (report, failures) = self.restore(store, Arc::new(target.clone()), overwrite);
        assert_eq!(report.unwrap().failures, 0, "{failures}");
        target
    }
}

fn files(tree: &MemTree) -> Files {
    let mut files = Files::new();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        for name in TargetTree::list(tree, &directory).unwrap() {
            let path = directory.join(name);
            let metadata = TargetTree::metadata(tree, &path).unwrap().unwrap();
            match metadata.kind {
                EntryKind::Directory => left.push(path),
                EntryKind::File => {
                    let mut bytes = vec![0; usize::try_from(metadata.size).unwrap()];
                    tree.open_file(&path).unwrap().read_at(0, &mut bytes).unwrap();
                    files.insert(path, bytes);
                }
                _ => {}
            }
        }
    }
    files
}

/// Every file under a name of its own has the bytes of the snapshot, or is the one that stood there before.
fn assert_nothing_half(case: &str, before: &Files, right: &Files, after: &MemTree) {
    for (path, bytes) in files(after) {
        if path.to_str().unwrap().ends_with(PARTIAL_SUFFIX) {
            let metadata = TargetTree::metadata(after, &path).unwrap().unwrap();
            let is_leftover = before.get(&path) == Some(&bytes);
            let is_whole = right.values().any(|right| *right == bytes);
            assert!(is_leftover || is_whole || metadata.mode == 0o600, "{case}: {} looks whole", path.display());
            continue;
        }
        let is_right = right.get(&path) == Some(&bytes);
        assert!(is_right || before.get(&path) == Some(&bytes), "{case}: {} is neither old nor new", path.display());
    }
}

/// Judges a target after a fault, and repeats the restore in every way.
fn judge(
    case: &str,
    sweep: &Case<'_>,
    store: &Store,
    (before, after): (&MemTree, &MemTree),
    overwrite: Overwrite,
    outcome: &(Result<RestoreReport>, String),
    repetitions: &[Overwrite],
) {
    let right = files(&sweep.clean(store, before, Overwrite::Always));
    let old = files(before);
    assert_nothing_half(case, &old, &right, after);
    if let (Ok(report), failures) = outcome {
        assert_eq!(report.failures == 0, failures.is_empty(), "{case}: {failures}");
        assert!(report.files_incomplete <= report.failures, "{case}");
        if report.failures == 0 {
            let expected = sweep.clean(store, before, overwrite);
            assert_eq!(expected.diff(after), Vec::<String>::new(), "{case}: success over a difference");
        }
    }
    for again in repetitions {
        let case = format!("{case}, again {again:?}");
        let target = copy(after);
        let (report, failures) = sweep.restore(store, Arc::new(target.clone()), *again);
        assert_eq!(report.unwrap().failures, 0, "{case}: {failures}");
        assert_nothing_half(&case, &old, &right, &target);
        if matches!(again, Overwrite::Always | Overwrite::IfChanged) {
            let mut expected = sweep.clean(store, before, Overwrite::Always);
            // Which of the names were made again shows in the count of links only.
            if !target.diff(&expected).is_empty() {
                expected = sweep.clean(store, &target, Overwrite::Always);
            }
            let mut differences = expected.diff(&target);
            // What is equal is kept, and a partial file next to it as well.
            differences.retain(|line| {
                let kept =
                    line.strip_prefix('/').and_then(|line| line.strip_suffix(".onefold-partial: only on the right"));
                !kept.is_some_and(|kept| right.contains_key(Path::new(kept)))
            });
            assert_eq!(differences, Vec::<String>::new(), "{case}: success over a difference");
        }
        for (path, bytes) in &right {
            let found = files(&target).remove(path);
            let is_kept = matches!(again, Overwrite::IfNewer | Overwrite::Never) && found.as_ref() == old.get(path);
            // An error: below something that is no directory, and stays.
            let stands = TargetTree::metadata(&target, path).map_or(true, |found| found.is_some());
            assert!(found.as_ref() == Some(bytes) || is_kept && stands, "{case}: {}", path.display());
        }
    }
}

fn sweep(mut faulty: impl FnMut(&Case<'_>, &World, &Store, &str, &MemTree, Overwrite) -> u64) {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    world.backup(&store, &source(), &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let case = Case { world: &world, snapshot: &snapshot };
    let mut tried = 0;
    for (name, before) in standing() {
        for overwrite in POLICIES {
            tried += faulty(&case, &world, &store, name, &before, overwrite);
        }
    }
    tell(&format!("restores with a fault: {tried}"));
}

/// Returns which of so many ways are tried with the numbered call: all at full size, one in turn otherwise.
fn chosen<T: Copy>(all: &[T], number: u64) -> Vec<T> {
    let turn = usize::try_from(number).unwrap() % all.len();
    if cfg!(feature = "slow") { all.to_vec() } else { vec![all[turn]] }
}

#[test]
fn no_error_of_the_target_at_any_call_makes_a_restore_succeed_over_a_difference() {
    sweep(|case, _, store, name, before, overwrite| {
        let target = copy(before);
        let counting = FaultyTarget::new(Arc::new(target), None);
        case.restore(store, Arc::new(counting.clone()), overwrite).0.unwrap();
        let mut tried = 0;
        for number in 1..=counting.calls() {
            for code in CODES {
                let target = copy(before);
                let faulty = FaultyTarget::new(Arc::new(target.clone()), Some((number, code)));
                let outcome = case.restore(store, Arc::new(faulty), overwrite);
                let text = format!("{name}, {overwrite:?}, call {number}, error {code}");
                let again = chosen(&POLICIES, number / 4);
                judge(&text, case, store, (before, &target), overwrite, &outcome, &again);
                tried += 1;
            }
        }
        tried
    });
}

#[test]
fn no_error_of_the_repository_at_any_call_makes_a_restore_succeed_over_a_difference() {
    sweep(|case, world, store, name, before, overwrite| {
        let calls = |disk: &SimDisk| disk.calls();
        let start = calls(&world.disk);
        case.restore(store, Arc::new(copy(before)), overwrite).0.unwrap();
        let count = calls(&world.disk) - start;
        let kinds = [ErrorKind::Other, ErrorKind::PermissionDenied];
        for number in 1..=count {
            let target = copy(before);
            let fault = Fault::Error(chosen(&kinds, number)[0]);
            world.disk.fail_at(world.disk.calls() + number, fault);
            let outcome = case.restore(store, Arc::new(target.clone()), overwrite);
            world.disk.clear_faults();
            let text = format!("{name}, {overwrite:?}, call {number} of the disk");
            let again = chosen(&POLICIES, number);
            judge(&text, case, store, (before, &target), overwrite, &outcome, &again);
        }
        count
    });
}

/// A file system that is mounted read-only somewhere in the target ended the restore of everything else.
#[test]
fn an_entry_on_a_read_only_file_system_does_not_end_a_restore() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    world.backup(&store, &source(), &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let case = Case { world: &world, snapshot: &snapshot };
    let counting = FaultyTarget::new(Arc::new(MemTree::new()), None);
    case.restore(&store, Arc::new(counting.clone()), Overwrite::Always).0.unwrap();
    // The first two calls prepare the target as a whole.
    for number in 3..=counting.calls() {
        let faulty = FaultyTarget::new(Arc::new(MemTree::new()), Some((number, EROFS)));
        let (report, failures) = case.restore(&store, Arc::new(faulty), Overwrite::Always);
        assert!(report.is_ok(), "call {number}: {report:?}: {failures}");
    }
}

/// What was lost is reported once for each file, and a good file that stood there is not emptied.
#[test]
fn a_lost_container_leaves_what_stood_there_and_a_line_for_each_file() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    world.backup(&store, &source(), &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let case = Case { world: &world, snapshot: &snapshot };
    let (_, before) = standing().pop().unwrap();
    let right = files(&case.clean(&store, &before, Overwrite::Always));
    let data = |name: &&onefold_engine::object::names::ContainerName| {
        name.kind == onefold_engine::object::names::ContainerKind::Data
    };
    for name in container_names(&store).iter().filter(data) {
        world.repo().remove(&name.path()).unwrap();
    }
    let target = copy(&before);
    let (report, failures) = case.restore(&store, Arc::new(target.clone()), Overwrite::Always);
    let report = report.unwrap();
    // All but the empty file and the one that is a hole; both names of the linked one are counted.
    assert_eq!((report.files_incomplete, report.failures, report.files), (8, 8, 2), "{failures}");
    assert_eq!(failures.lines().count(), 8, "{failures}");
    assert!(failures.contains("/sub/linked: is not restored: it is another name of"), "{failures}");
    assert_nothing_half("lost", &files(&before), &right, &target);
    assert_eq!(files(&target)[Path::new("big")], noise(9, 30_000));
    for again in POLICIES {
        let (report, _) = case.restore(&store, Arc::new(copy(&target)), again);
        assert_ne!(report.unwrap().failures, 0, "{again:?}");
    }
}

/// The snapshot may hold what the names of partial files look like.
#[test]
fn names_of_partial_files_that_the_snapshot_holds_are_not_touched() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let tree = MemTree::new();
    for number in 0..3 {
        for name in ["f", "f.onefold-partial", "f.onefold-partial-1", "f-"] {
            tree.put_file(Path::new(&format!("/d/{number}/{name}")), &noise(number, 3000 + name.len()));
        }
    }
    world.backup(&store, &tree, &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let case = Case { world: &world, snapshot: &snapshot };
    let target = MemTree::new();
    for overwrite in [Overwrite::Never, Overwrite::Always, Overwrite::IfNewer] {
        let (report, failures) = case.restore(&store, Arc::new(target.clone()), overwrite);
        assert_eq!((report.unwrap().failures, failures.as_str()), (0, ""));
        let found = files(&target);
        assert_eq!(found.len(), 12, "{found:?}");
        for (path, bytes) in found {
            let number = path.parent().unwrap().to_str().unwrap().parse().unwrap();
            assert_eq!(bytes, noise(number, 3000 + path.file_name().unwrap().len()), "{}", path.display());
        }
    }
}
