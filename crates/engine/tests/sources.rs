//! Sources that misbehave, and what need not be read or stored again.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onefold_engine::Error;
use onefold_engine::backup::{Budget, Monitor};
use onefold_engine::identify::Schedule;
use onefold_engine::io::tree::{SourceTree, TargetTree};
use onefold_engine::object::names::ContainerKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::Fault;
use onefold_engine::types::Timestamp;

use crate::integration::support::{Ask, Notes, SMALL, World, containers, newest, noise, stored_twice};

/// Several blocks of the pipeline, so that a file is read in several steps.
const LARGE: usize = 2_500_000;

/// A tree of one odd file among sound ones.
fn around(odd: &[u8]) -> MemTree {
    let tree = MemTree::new();
    for name in ["a", "b", "y/c", "z"] {
        tree.put_file(&Path::new("/d").join(name), &noise(name.len() as u64, 5000));
    }
    tree.put_file(Path::new("/d/odd"), odd);
    tree
}

/// Backs up a tree that misbehaves and compares what comes back with what is expected of it.
fn check(misbehave: impl Fn(&MemTree), odd: &[u8], expect: impl Fn(&MemTree), failures: &[&str]) {
    for driver in [Driver::inline(5), Driver::threads(2)] {
        let (source, expected) = (around(odd), around(odd));
        misbehave(&source);
        expect(&expected);
        let world = World::new(5);
        let store = world.create(SMALL).unwrap();
        let notes = Arc::new(Notes::default());
        let ask = Ask { driver, monitor: Arc::clone(&notes) as Arc<dyn Monitor>, ..Ask::default() };
        let report = world.backup(&store, &source, &ask).unwrap().report;
        let told = notes.failures.lock().unwrap().clone();
        assert_eq!(usize::try_from(report.failures).unwrap(), failures.len(), "{told:?}");
        for failure in failures {
            assert!(told.iter().any(|told| told.starts_with(failure)), "{failure}: {told:?}");
        }
        let (restored, report) = world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap();
        assert_eq!(report.failures, 0);
        for tree in [&expected, &restored] {
            tree.forget_times();
        }
        assert_eq!(expected.diff(&restored), Vec::<String>::new());
    }
}

fn odd() -> &'static Path {
    Path::new("/d/odd")
}

fn remove_odd(tree: &MemTree) {
    tree.remove(Path::new("d/odd")).unwrap();
}

#[test]
fn a_file_that_grows_is_kept_as_long_as_it_was() {
    let before = noise(1, LARGE);
    let grow = |tree: &MemTree| {
        tree.mutate_on_read(odd(), 2, |tree| {
            let file = tree.open_file(Path::new("d/odd")).unwrap();
            file.write_at(LARGE as u64, &noise(2, 100_000)).unwrap();
        });
    };
    check(grow, &before, |_| {}, &[]);
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_read_again() {
    let before = noise(1, LARGE);
    for left in [0, 600_000, 1_500_000] {
        let cut = move |tree: &MemTree| tree.open_file(Path::new("d/odd")).unwrap().set_len(left).unwrap();
        check(|tree| tree.mutate_on_read(odd(), 2, cut), &before, cut, &[]);
    }
}

#[test]
fn a_small_file_that_changes_between_the_walk_and_its_reading_is_kept_as_it_is_when_it_is_opened() {
    let before = noise(1, 5000);
    for len in [0, 10, 4999, 5001, 9000, 1 << 20] {
        let change = move |tree: &MemTree| tree.open_file(Path::new("d/odd")).unwrap().set_len(len).unwrap();
        // The walk has found the file when it is the turn of the one before it.
        check(|tree| tree.mutate_on_read(Path::new("/d/b"), 1, change), &before, change, &[]);
    }
    let grow = |tree: &MemTree| tree.open_file(Path::new("d/odd")).unwrap().set_len((1 << 20) + 1).unwrap();
    check(|tree| tree.mutate_on_read(Path::new("/d/b"), 1, grow), &before, remove_odd, &["/d/odd: it grew"]);
}

/// The block has no space left for the bytes that warm up the hash once more.
#[test]
fn a_hole_that_is_filled_while_a_full_block_of_small_files_is_read_does_no_harm() {
    const SMALL_FILE: usize = 128 << 10;
    let source = MemTree::new();
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        source.put_file(&Path::new("/d").join(name), &noise(name.as_bytes()[0].into(), SMALL_FILE));
    }
    let filled = noise(99, SMALL_FILE);
    source.put_sparse(Path::new("/d/odd"), SMALL_FILE as u64, &[(0, &filled[..4096])]);
    let after = filled.clone();
    source.mutate_on_read(odd(), 1, move |tree| {
        tree.open_file(Path::new("d/odd")).unwrap().write_at(4096, &after[4096..]).unwrap();
    });
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
    assert_eq!(report.failures, 0);
    let (restored, _) = world.restore(&store, &report.snapshot).unwrap();
    let file = SourceTree::open(&restored, odd()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().size).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    assert!(bytes == filled, "{} bytes", bytes.len());
}

#[test]
fn a_file_that_vanishes_once_it_is_open_is_kept() {
    let before = noise(1, LARGE);
    check(|tree| tree.mutate_on_read(odd(), 2, remove_odd), &before, |_| {}, &[]);
}

#[test]
fn a_file_that_vanishes_before_it_is_opened_is_told() {
    // The walk has listed the directory when it reads the file before.
    let vanish = |tree: &MemTree| tree.mutate_on_read(Path::new("/d/a"), 1, remove_odd);
    check(vanish, b"x", remove_odd, &["/d/odd"]);
}

#[test]
fn a_file_that_fails_to_read_is_left_out_and_told() {
    for after in [0, 100, 1_200_000] {
        let fail = |tree: &MemTree| tree.fail_reads(odd(), after, ErrorKind::Other);
        check(fail, &noise(1, LARGE), remove_odd, &["/d/odd"]);
    }
    for kind in [ErrorKind::PermissionDenied, ErrorKind::NotFound, ErrorKind::StaleNetworkFileHandle] {
        check(|tree| tree.fail_metadata(odd(), kind), b"x", remove_odd, &["/d/odd"]);
    }
    let refuse = |tree: &MemTree| tree.fail_open(odd(), ErrorKind::PermissionDenied);
    check(refuse, b"x", remove_odd, &["/d/odd"]);
}

#[test]
fn a_directory_that_cannot_be_listed_is_kept_empty_and_told() {
    let refuse = |tree: &MemTree| tree.fail_open(Path::new("/d/y"), ErrorKind::PermissionDenied);
    let empty = |tree: &MemTree| tree.remove(Path::new("d/y/c")).unwrap();
    check(refuse, b"x", empty, &["/d/y", "/d/y"]);
}

#[test]
fn a_file_changed_within_the_tick_of_the_last_scan_is_read_again() {
    for (behind, reads) in [(0, true), (4, true), (-4, false)] {
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let source = around(&[1; 3000]);
        // What the next backup takes for the time when its scan begins.
        let probe = World::new(1);
        let scan = {
            let store = probe.create(SMALL).unwrap();
            probe.backup(&store, &source, &Ask::default()).unwrap().report.snapshot.file_clock
        };
        let nanoseconds = i64::from(scan.nanoseconds) + behind * 1_000_000;
        let ctime = Timestamp { seconds: scan.seconds, nanoseconds: u32::try_from(nanoseconds).unwrap() };
        let stamp = |tree: &MemTree| {
            tree.edit(odd(), |metadata| (metadata.ctime, metadata.mtime) = (ctime, Timestamp::default()));
        };
        stamp(&source);
        let first = world.backup(&store, &source, &Ask::default()).unwrap().report.snapshot;
        assert_eq!(first.file_clock, scan);
        // Same size, same times, same inode.
        source.open_file(Path::new("d/odd")).unwrap().write_at(0, &[2; 3000]).unwrap();
        stamp(&source);
        let second =
            world.backup(&store, &source, &Ask { with_parent: true, ..Ask::default() }).unwrap().report.snapshot;
        let (restored, _) = world.restore(&store, &second).unwrap();
        assert_eq!(source.diff(&restored).is_empty(), reads, "{behind} ms");
        assert_eq!(second.summary.files_unmodified, if reads { 4 } else { 5 });
    }
}

#[test]
fn a_file_whose_container_is_gone_is_read_again() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let source = around(&noise(9, 400_000));
    world.backup(&store, &source, &Ask::default()).unwrap();
    let data: Vec<_> = containers(&store).into_iter().filter(|c| c.name.kind == ContainerKind::Data).collect();
    assert!(data.len() > 3);
    // The third holds nothing but chunks of the odd file.
    world.repo().remove(&data[2].name.path()).unwrap();
    let again = world.backup(&store, &source, &Ask { with_parent: true, ..Ask::default() }).unwrap().report;
    assert_eq!((again.snapshot.summary.files_unmodified, again.snapshot.summary.files_changed), (4, 1));
    assert_eq!(again.chunks.data_unique, data[2].chunks.len() as u64);
    let (restored, report) = world.restore(&store, &again.snapshot).unwrap();
    assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()));
}

/// Asks to stop when it is asked for the n-th time.
#[derive(Debug)]
struct StopAt(AtomicU64);

impl Monitor for StopAt {
    fn is_interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 1
    }
}

/// A source of several blocks, each with something of its own and something that others have.
fn blocks(count: u64) -> MemTree {
    let tree = MemTree::new();
    for number in 0..count {
        let mut bytes = noise(number, 900_000);
        bytes.extend_from_slice(&noise(1000 + number / 2, 200_000));
        tree.put_file(Path::new(&format!("/d/{number:02}")), &bytes);
    }
    tree
}

fn assert_rerun_stores_nothing_twice(world: &World, store: &Store, source: &MemTree, ask: &Ask, case: &str) -> u64 {
    let kept: BTreeSet<_> = containers(store).into_iter().flat_map(|container| container.chunks).collect();
    let report = world.backup(store, source, ask).unwrap().report;
    // Chunks that were in flight were in no container, so that not even they are stored twice.
    assert_eq!(stored_twice(store), Vec::new(), "{case}");
    let (restored, restore) = world.restore(store, &report.snapshot).unwrap();
    assert_eq!((restore.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
    kept.len() as u64
}

#[test]
fn a_rerun_after_an_interruption_stores_nothing_twice() {
    let source = blocks(6);
    for schedule in [Schedule::Eager, Schedule::Lazy { threshold: 7 }] {
        let mut most = 0;
        for stop in [1, 2, 3, 8, 12, 13] {
            for driver in [Driver::inline(stop), Driver::threads(2)] {
                let case = format!("{schedule:?}, stopped when asked the {stop}th time, {driver:?}");
                let world = World::new(stop);
                let store = world.create(SMALL).unwrap();
                let budget = Budget { blocks_in_flight: 1, barrier_containers: 1, ..Ask::default().budget };
                let monitor = Arc::new(StopAt(AtomicU64::new(stop)));
                let ask = Ask { driver, schedule, budget, filter_bytes: Some(1 << 10), monitor, ..Ask::default() };
                let stopped = world.backup(&store, &source, &ask);
                assert!(matches!(stopped, Err(Error::Interrupted)), "{case}: {stopped:?}");
                assert!(newest(&store).unwrap().is_none(), "{case}");
                let ask = Ask { monitor: Arc::new(Notes::default()), ..ask };
                most = most.max(assert_rerun_stores_nothing_twice(&world, &store, &source, &ask, &case));
            }
        }
        assert!(most > 5000, "no interruption came late enough to leave something: {most}");
    }
}

#[test]
fn a_rerun_after_the_process_died_stores_nothing_twice() {
    let source = blocks(3);
    let world = World::new(1);
    world.create(SMALL).unwrap();
    let fresh = world.disk.fork();
    let store = world.open().unwrap();
    let opened = world.disk.calls();
    world.backup(&store, &source, &Ask::default()).unwrap();
    let (calls, mut most) = (world.disk.calls(), 0);
    let step = (calls - opened) / if cfg!(feature = "slow") { 60 } else { 9 };
    for call in (opened..calls - 1).step_by(usize::try_from(step).unwrap()) {
        let case = format!("died at call {call}");
        let dying = world.on(fresh.fork());
        let store = dying.open().unwrap();
        dying.disk.fail_at(dying.disk.calls() + call - opened + 1, Fault::Die);
        // An index that could not be closed after the commit does not make the backup fail.
        let _unheard = dying.backup(&store, &source, &Ask::default());
        assert!(dying.disk.is_dead(), "{case}");
        drop(store);
        let next = dying.on(dying.disk.reopen());
        let store = next.open().unwrap();
        most = most.max(assert_rerun_stores_nothing_twice(&next, &store, &source, &Ask::default(), &case));
    }
    assert!(most > 1000, "no death came late enough to leave something: {most}");
}
