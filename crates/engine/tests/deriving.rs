//! Derived snapshots: `recover`, `tag` and `rewrite`, with an error and a crash at each call, and beside collections.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use onefold_engine::compress::Compression;
use onefold_engine::derive::{DeriveOptions, RewriteOptions, StoreOptions};
use onefold_engine::forget::{Forgetting, candidates};
use onefold_engine::io::Disk;
use onefold_engine::monitor::{Monitor, Silent};
use onefold_engine::object::names::{CollectionStep, ContainerKind, ContainerName};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{Derived, recover, rewrite, tag, try_rewrite};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::source::exclude::{Case, Excludes, Patterns};
use onefold_engine::store::{Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};
use onefold_engine::types::{ChunkKind, ContainerId, SessionId, Timestamp};
use onefold_engine::{Error, Result};

use crate::integration::condemned::{Fencing, collect, condemn};
use crate::integration::forgetting::{FAULTS, Kept, WAYS, note};
use crate::integration::support::{
    Ask, Draw, Notes, PASSWORD, SMALL, World, containers, copy, directory_store, hash_directory, noise, tell, tree,
};

/// Paths that the tests leave out: the first link of a group, a file, and a directory.
const LEFT_OUT: [&str; 3] = ["/d/e/text", "file-002", "/d/empty"];

pub(super) fn exclusion(patterns: &[&str]) -> RewriteOptions {
    let compiled = Patterns::parse(patterns.iter().map(|pattern| pattern.as_bytes()), Case::Sensitive).unwrap();
    RewriteOptions {
        patterns: vec![compiled],
        texts: patterns.iter().map(|text| (*text).to_owned()).collect(),
        ..RewriteOptions::default()
    }
}

pub(super) fn options(world: &World, monitor: &Arc<dyn Monitor>) -> DeriveOptions {
    DeriveOptions {
        hostname: "host".into(),
        scratch: world.scratch(),
        budget: Ask::default().budget,
        monitor: Arc::clone(monitor),
    }
}

pub(super) fn silent(world: &World) -> DeriveOptions {
    options(world, &(Arc::new(Silent) as Arc<dyn Monitor>))
}

pub(super) fn storing() -> StoreOptions {
    StoreOptions { compression: Compression::Zstd(1), driver: Driver::inline(1) }
}

fn tags() -> Vec<String> {
    vec!["new".to_owned()]
}

pub(super) fn forget(store: &Store, snapshot: SessionId) -> Result<()> {
    Forgetting::begin(store, &note())?.forget(snapshot).map(|_| ())
}

pub(super) fn snapshot_of(store: &Store, id: SessionId) -> Snapshot {
    let commits = store.read_commits().unwrap();
    let found = commits.snapshots().into_iter().find(|(listed, _)| *listed == id);
    found.map_or_else(|| panic!("{id} is not listed"), |(_, snapshot)| snapshot.clone())
}

/// Returns the id of the snapshot that was made.
fn made(derived: &Derived) -> SessionId {
    match derived {
        Derived::Made(id, _) => *id,
        other => panic!("no snapshot was made: {other:?}"),
    }
}

/// The commands that derive snapshots. All but `Recover` forget the snapshot that they replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Recover,
    Tag,
    Rewrite,
}

impl Action {
    /// Does what the command does.
    fn run(self, world: &World, from: SessionId) -> Result<Derived> {
        let store = world.open()?;
        self.run_on(world, &store, from)
    }

    fn run_on(self, world: &World, store: &Store, from: SessionId) -> Result<Derived> {
        let options = silent(world);
        let derived = match self {
            Self::Recover => recover(store, &options, from, None)?,
            Self::Tag => tag(store, &options, from, &tags())?,
            Self::Rewrite => rewrite(store, &options, &storing(), from, &exclusion(&LEFT_OUT))?,
        };
        if self != Self::Recover && matches!(derived, Derived::Made(..) | Derived::Exists(_)) {
            forget(store, from)?;
        }
        Ok(derived)
    }
}

/// A repository in which an action is disturbed.
struct Sweep {
    action: Action,
    kept: Kept,
    disk: SimDisk,
    /// The snapshot that is derived from, as it was committed.
    from: SessionId,
    original: Snapshot,
    /// Contents of the derived snapshot.
    expected: MemTree,
}

impl Sweep {
    fn new(action: Action) -> Self {
        let kept = Kept::new();
        let (from, source) = (kept.snapshots[0].0, copy(&kept.snapshots[0].1));
        let world = kept.start();
        let store = world.open().unwrap();
        let original = snapshot_of(&store, from);
        let expected = if action == Action::Rewrite {
            let aside = kept.start();
            let ask = Ask { excludes: excludes(&LEFT_OUT), ..Ask::default() };
            let report = aside.backup(&aside.open().unwrap(), &source, &ask).unwrap().report;
            aside.restore(&aside.open().unwrap(), &report.snapshot).unwrap().0
        } else {
            source
        };
        if action == Action::Recover {
            forget(&store, from).unwrap();
        }
        let disk = world.disk.fork();
        Self { action, kept, disk, from, original, expected }
    }

    fn start(&self) -> World {
        self.kept.world.on(self.disk.fork())
    }

    /// Checks what is promised whatever has happened. Returns how many snapshots were derived.
    fn assert_sound(&self, world: &World, is_acknowledged: bool, case: &str) -> usize {
        let may_go = [self.from];
        let must_go: &[SessionId] = if self.action == Action::Recover || is_acknowledged { &may_go } else { &[] };
        self.kept.assert_sound(world, &may_go, must_go, case);
        let store = world.open().unwrap();
        let commits = store.read_commits().unwrap();
        let snapshots = commits.snapshots();
        let derived: Vec<_> = snapshots.iter().filter(|(_, snapshot)| snapshot.original == Some(self.from)).collect();
        for (session, snapshot) in &derived {
            let (restored, report) = world.restore(&store, snapshot).unwrap();
            assert_eq!((report.failures, self.expected.diff(&restored)), (0, Vec::new()), "{case}: {session}");
            let same = |snapshot: &Snapshot| (snapshot.time, snapshot.hostname.clone(), snapshot.paths.clone());
            assert_eq!(same(snapshot), same(&self.original), "{case}");
        }
        let is_listed = snapshots.iter().any(|(session, _)| *session == self.from);
        assert!(self.action == Action::Recover || is_listed || !derived.is_empty(), "{case}: both are lost");
        assert!(!is_acknowledged || derived.len() == 1, "{case}: {} were derived", derived.len());
        derived.len()
    }

    /// Does it again, and checks that there is one derived snapshot in the end.
    fn assert_again(&self, world: &World, case: &str) {
        // A backup beside it would go on as well.
        let again = self.action.run(world, self.from);
        if let Err(error) = &again {
            // The first run has forgotten the snapshot that it replaced, so there is nothing to do.
            assert!(self.action != Action::Recover && error.to_string().contains("forgotten"), "{case}: {error}");
        }
        assert!(!matches!(again, Ok(Derived::Lost { .. })), "{case}: {again:?}");
        assert_eq!(self.assert_sound(world, true, case), 1, "{case}, and again");
        // A power cut takes back nothing that either run has relied on, not even after a sync that failed.
        let after = world.on(world.disk.crash(CrashMode::LoseUnsynced));
        let derived = self.assert_sound(&after, is_done(&again), case);
        assert!(derived == 1 || again.is_err(), "{case}, and again, and a power cut: {derived} were derived");
    }
}

fn excludes(patterns: &[&str]) -> Arc<Excludes> {
    Arc::new(Excludes { patterns: exclusion(patterns).patterns, ..Excludes::default() })
}

/// The images that were examined: the same image is sound again.
pub(super) fn is_new(examined: &mut HashSet<blake3::Hash>, disk: &SimDisk, is_acknowledged: bool) -> bool {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[u8::from(is_acknowledged)]);
    hash_directory(&disk.fork(), Path::new("repo"), &mut hasher);
    examined.insert(hasher.finalize())
}

/// Returns true if an action has reported success. A container that cannot be read may be reported as lost.
fn is_done(derived: &Result<Derived>) -> bool {
    derived.as_ref().is_ok_and(|derived| !matches!(derived, Derived::Lost { .. }))
}

fn sweep(action: Action) {
    let sweep = Sweep::new(action);
    let whole = sweep.start();
    let before = whole.disk.calls();
    made(&action.run(&whole, sweep.from).unwrap());
    let calls = whole.disk.calls() - before;
    sweep.assert_sound(&whole, true, "undisturbed");
    sweep.assert_again(&whole, "undisturbed");
    let (mut images, mut examined, mut unacknowledged) = (0, HashSet::new(), 0);
    for call in 1..=calls {
        for fault in FAULTS {
            let world = sweep.start();
            world.disk.fail_at(call, fault);
            let is_acknowledged = is_done(&action.run(&world, sweep.from));
            world.disk.clear_faults();
            images += 1;
            unacknowledged += u64::from(!is_acknowledged);
            if is_new(&mut examined, &world.disk, is_acknowledged) {
                let case = format!("{fault:?} at call {call}");
                sweep.assert_sound(&world, is_acknowledged, &case);
                sweep.assert_again(&world, &case);
            }
        }
        for fault in [Fault::Die, Fault::DieAfter] {
            let world = sweep.start();
            world.disk.fail_at(call, fault);
            let is_acknowledged = is_done(&action.run(&world, sweep.from));
            for way in WAYS {
                let after = way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode));
                images += 1;
                if is_new(&mut examined, &after, is_acknowledged) {
                    let case = format!("{fault:?} at call {call}, {way:?}");
                    let after = sweep.kept.world.on(after);
                    sweep.assert_sound(&after, is_acknowledged, &case);
                    sweep.assert_again(&after, &case);
                }
            }
        }
    }
    assert!(0 < unacknowledged);
    let different = examined.len();
    tell(&format!("{action:?}: {calls} calls, {images} images, {different} of them different, nothing lost"));
}

#[test]
fn an_error_or_a_crash_at_any_call_of_recover_loses_nothing() {
    sweep(Action::Recover);
}

#[test]
fn an_error_or_a_crash_at_any_call_of_tag_loses_nothing() {
    sweep(Action::Tag);
}

#[test]
fn an_error_or_a_crash_at_any_call_of_rewrite_loses_nothing() {
    sweep(Action::Rewrite);
}

#[test]
fn a_recovered_snapshot_is_the_forgotten_one_and_there_is_one() {
    let kept = Kept::new();
    let world = kept.start();
    let store = world.open().unwrap();
    let (from, source) = &kept.snapshots[0];
    let original = snapshot_of(&store, *from);
    let error = recover(&store, &silent(&world), *from, None).unwrap_err();
    assert!(error.to_string().contains("is not forgotten"), "{error}");
    forget(&store, *from).unwrap();
    let first = made(&recover(&store, &silent(&world), *from, None).unwrap());
    let recovered = snapshot_of(&store, first);
    assert_eq!(recovered.original, Some(*from));
    assert_eq!((recovered.tree, recovered.time, &recovered.tags), (original.tree, original.time, &original.tags));
    assert_eq!(recovered.summary.data_added_packed, 0, "its session has stored nothing");
    assert_eq!(recover(&store, &silent(&world), *from, None).unwrap(), Derived::Exists(first));
    // Forgotten and recovered again, by either name.
    forget(&store, first).unwrap();
    let second = made(&recover(&store, &silent(&world), first, None).unwrap());
    assert_eq!(recover(&store, &silent(&world), *from, None).unwrap(), Derived::Exists(second));
    assert_eq!(recover(&store, &silent(&world), first, None).unwrap(), Derived::Exists(second));
    let (restored, report) = world.restore(&store, &snapshot_of(&store, second)).unwrap();
    assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()));
    let error = recover(&store, &silent(&world), SessionId([7; 16]), None).unwrap_err();
    assert!(error.to_string().contains("missing") || error.to_string().contains("not found"), "{error}");
    // A policy sees when the first of them was received.
    let commits = store.read_commits().unwrap();
    let received = |id| candidates(&store, &commits).unwrap().into_iter().find(|candidate| candidate.id == id).unwrap();
    assert!(received(second).heads.is_empty(), "it is taken for the first snapshot");
    assert!(!received(kept.snapshots[1].0).heads.is_empty());
}

#[test]
fn nothing_is_committed_if_chunks_are_missing_and_the_paths_are_named() {
    let kept = Kept::new();
    let start = kept.start();
    let from = kept.snapshots[0].0;
    forget(&start.open().unwrap(), from).unwrap();
    let original = start.open().unwrap().read_commit(from).unwrap().body.snapshot.unwrap();
    let (mut lost, mut unaffected) = (0, 0);
    for container in containers(&start.open().unwrap()) {
        for is_quarantined in [false, true] {
            let world = start.on(start.disk.fork());
            let path = container.name.path();
            if is_quarantined {
                let aside = PathBuf::from(format!("{}.bad", path.display()));
                world.repo().rename(&path, &aside).unwrap();
            } else {
                // A container that ends too early promises chunks that are not there.
                let file = world.repo().open(&path, onefold_engine::io::Access::ReadWrite).unwrap();
                file.set_len(file.len().unwrap() - 100).unwrap();
            }
            let store = world.open().unwrap();
            let notes = Arc::new(Notes::default());
            let derived = recover(&store, &options(&world, &(Arc::clone(&notes) as Arc<dyn Monitor>)), from, None);
            let restored = world.restore(&store, &original);
            let commits = store.read_commits().unwrap().snapshots().len();
            match derived.unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
                Derived::Lost { paths, chunks } => {
                    assert_eq!(commits, 2, "nothing is committed");
                    let named = notes.failures.lock().unwrap();
                    assert_eq!(named.len() as u64, paths);
                    assert!(0 < chunks && 0 < paths && named.iter().all(|line| line.starts_with('/')), "{named:?}");
                    // Each file that is incomplete was named, at least by its directory.
                    if is_quarantined && let Ok((_, report)) = &restored {
                        assert!(0 < report.failures, "{named:?}");
                    }
                    lost += 1;
                }
                Derived::Made(..) => {
                    assert_eq!((commits, restored.unwrap().1.failures), (3, 0));
                    unaffected += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(2 < lost && 0 < unaffected, "{lost} lost, {unaffected} unaffected");
}

/// An interrupted backup holds the chunks, and its containers are not known to be durable.
#[test]
fn chunks_in_other_containers_are_found_and_made_durable_first() {
    for is_lost in [false, true] {
        let kept = Kept::new();
        let world = kept.start();
        let store = world.open().unwrap();
        let (from, source) = &kept.snapshots[0];
        forget(&store, *from).unwrap();
        // The containers of the snapshot go, and a backup of the same source stores their chunks again, but never commits.
        let gone: Vec<_> =
            containers(&store).into_iter().filter(|container| container.name.id.session == *from).collect();
        let aside = world.on(world.disk.fork());
        for container in &gone {
            aside.repo().remove(&container.name.path()).unwrap();
        }
        let ask = Ask::default();
        let calls = {
            let probe = aside.on(aside.disk.fork());
            let before = probe.disk.calls();
            probe.backup(&probe.open().unwrap(), source, &ask).unwrap();
            probe.disk.calls() - before
        };
        // The last call at which all containers are there and no commit is.
        let interrupted = (1..=calls).rev().find_map(|call| {
            let probe = aside.on(aside.disk.fork());
            probe.disk.fail_at(call, Fault::Die);
            let _failed = probe.open().and_then(|store| probe.backup(&store, source, &ask));
            let after = probe.on(probe.disk.reopen());
            let store = after.open().unwrap();
            (store.read_commits().unwrap().commits.len() == 3).then_some(after)
        });
        let world = interrupted.expect("a backup commits at some call");
        let store = world.open().unwrap();
        if is_lost {
            for container in containers(&store).into_iter().filter(|container| {
                container.name.kind == ContainerKind::Data
                    && !kept.snapshots.iter().any(|(id, _)| *id == container.name.id.session)
            }) {
                world.repo().remove(&container.name.path()).unwrap();
            }
            assert!(matches!(recover(&store, &silent(&world), *from, None).unwrap(), Derived::Lost { .. }));
            continue;
        }
        let recovered = made(&recover(&store, &silent(&world), *from, None).unwrap());
        // All that it relies on outlives a power cut.
        let after = world.on(world.disk.crash(CrashMode::LoseUnsynced));
        let store = after.open().unwrap();
        let (restored, report) = after.restore(&store, &snapshot_of(&store, recovered)).unwrap();
        assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()));
    }
}

#[test]
fn a_tagged_snapshot_differs_in_its_tags_only() {
    let kept = Kept::new();
    let world = kept.start();
    let store = world.open().unwrap();
    let from = kept.snapshots[0].0;
    let original = snapshot_of(&store, from);
    assert_eq!(tag(&store, &silent(&world), from, &[]).unwrap(), Derived::Unmodified);
    let first = made(&tag(&store, &silent(&world), from, &tags()).unwrap());
    // Interrupted before the old one was forgotten, and run again.
    assert_eq!(tag(&store, &silent(&world), from, &tags()).unwrap(), Derived::Exists(first));
    let tagged = snapshot_of(&store, first);
    let summary = original.summary;
    assert_eq!(
        Snapshot { tags: Vec::new(), original: None, summary, ..tagged.clone() },
        original,
        "nothing else has changed"
    );
    forget(&store, from).unwrap();
    let error = tag(&store, &silent(&world), from, &tags()).unwrap_err();
    assert!(error.to_string().contains("was forgotten"), "{error}");
    let long = vec!["x".repeat(1 << 17)];
    let error = tag(&store, &silent(&world), first, &long).unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
    let again = made(&tag(&store, &silent(&world), first, &["other".to_owned()]).unwrap());
    let commits = store.read_commits().unwrap();
    let candidates = candidates(&store, &commits).unwrap();
    let heads = |id| &candidates.iter().find(|candidate| candidate.id == id).unwrap().heads;
    assert!(heads(again).is_empty() && heads(first).is_empty(), "both are taken for the first snapshot");
}

#[test]
fn a_rewritten_snapshot_has_the_tree_of_a_backup_with_the_same_excludes() {
    let lists: [&[&str]; 9] = [
        &LEFT_OUT,
        &["*"],
        &["/d/e"],
        &["many-1*", "!many-13*"],
        &["/d/many/many-0000"],
        &["/d/**/text"],
        &["sparse", "fifo", "link"],
        &["text-again"],
        &["nothing"],
    ];
    for seed in 0..if cfg!(feature = "slow") { 8 } else { 2 } {
        let source = source(seed);
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
        for patterns in lists {
            let case = format!("seed {seed}, {patterns:?}");
            let world = world.on(world.disk.fork());
            let store = world.open().unwrap();
            let (from, original) = (report.session, &report.snapshot);
            let before: u64 = stored_metadata(&store);
            let tried = try_rewrite(&store, &silent(&world), (from, original), &exclusion(patterns)).unwrap();
            assert_eq!(stored_metadata(&store), before, "{case}: a dry run stores nothing");
            let derived = rewrite(&store, &silent(&world), &storing(), from, &exclusion(patterns)).unwrap();
            let ask = Ask { excludes: excludes(patterns), ..Ask::default() };
            let added = stored_metadata(&store) - before;
            let backup = world.backup(&store, &source, &ask).unwrap().report;
            if patterns == ["nothing"] {
                assert_eq!((derived, tried), (Derived::Unmodified, None), "{case}");
                assert_eq!(backup.snapshot.tree, original.tree, "{case}");
                continue;
            }
            let id = made(&derived);
            let rewritten = snapshot_of(&store, id);
            assert_eq!(rewritten.tree, backup.snapshot.tree, "{case}");
            let counts = |snapshot: &Snapshot| (snapshot.summary.files_processed, snapshot.summary.bytes_processed);
            assert_eq!(counts(&rewritten), counts(&backup.snapshot), "{case}");
            assert_eq!(counts(&tried.unwrap()), counts(&rewritten), "{case}");
            assert_eq!(rewritten.excludes, patterns, "{case}");
            assert_eq!((rewritten.time, rewritten.original), (original.time, Some(from)), "{case}");
            // What changed is stored once, and nothing else. The backup finds it.
            assert_eq!(rewritten.summary.metadata_chunks, added, "{case}");
            assert_eq!(backup.chunks.metadata_unique, 0, "{case}");
            let (restored, restore) = world.restore(&store, &rewritten).unwrap();
            let (expected, _) = world.restore(&store, &backup.snapshot).unwrap();
            assert_eq!((restore.failures, expected.diff(&restored)), (0, Vec::new()), "{case}");
            let again = rewrite(&store, &silent(&world), &storing(), from, &exclusion(patterns)).unwrap();
            assert_eq!(again, Derived::Exists(id), "{case}");
            let none = rewrite(&store, &silent(&world), &storing(), id, &exclusion(patterns)).unwrap();
            assert_eq!(none, Derived::Unmodified, "{case}");
        }
    }
}

/// A tree of every kind of entry, with a directory whose list has several levels.
fn source(seed: u64) -> MemTree {
    let source = tree(20);
    let mut draw = Draw::new(seed);
    source.put_dir(Path::new("/d/many"));
    for number in 0..1500 {
        let len = draw.below(40);
        source.put_file(Path::new(&format!("/d/many/many-{number:04}")), &noise(draw.next(), len));
    }
    source.put_file(Path::new("/d/e/large"), &noise(draw.next(), 400_000));
    source
}

/// Returns how many metadata chunks are stored.
fn stored_metadata(store: &Store) -> u64 {
    let chunks = containers(store).into_iter().flat_map(|container| container.chunks);
    chunks.filter(|(kind, ..)| *kind != ChunkKind::Data).count() as u64
}

#[test]
fn a_part_of_a_tree_that_cannot_be_read_can_be_left_out_and_is_an_error_otherwise() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let source = source(3);
    let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
    let mut refused = 0;
    for container in containers(&store).into_iter().filter(|container| container.name.kind == ContainerKind::Metadata) {
        let world = world.on(world.disk.fork());
        world.repo().remove(&container.name.path()).unwrap();
        let store = world.open().unwrap();
        let derived = rewrite(&store, &silent(&world), &storing(), report.session, &exclusion(&["file-002"]));
        if let Err(error) = derived {
            assert!(error.to_string().contains("in no readable container"), "{error}");
            assert_eq!(store.read_commits().unwrap().snapshots().len(), 1);
            refused += 1;
        }
    }
    assert!(0 < refused);
}

#[test]
fn references_are_taken_over_only_while_no_collection_condemns() {
    for action in [Action::Tag, Action::Rewrite] {
        let kept = Kept::new();
        let world = kept.start();
        let store = world.open().unwrap();
        let from = kept.snapshots[0].0;
        let all = containers(&store);
        let is_own = |name: &ContainerName| name.kind == ContainerKind::Data && name.id.session == from;
        let data = all.iter().find(|container| is_own(&container.name)).unwrap().name.id;
        // Nothing of it is condemned: each reference is looked for, and found.
        condemn((&world, &store), 1, &[ContainerId { session: SessionId([3; 16]), ordinal: 0 }]);
        let aside = world.on(world.disk.fork());
        made(&action.run(&aside, from).unwrap());
        collect((&world, &store), 1, CollectionStep::Final, &[]);
        collect((&world, &store), 1, CollectionStep::Done, &[]);
        // A part is condemned.
        condemn((&world, &store), 2, &[data]);
        let aside = world.on(world.disk.fork());
        assert!(matches!(action.run(&aside, from).unwrap(), Derived::Lost { .. }));
        assert_eq!(aside.open().unwrap().read_commits().unwrap().snapshots().len(), 3);
        // It is rescued.
        collect((&world, &store), 2, CollectionStep::Final, &[]);
        made(&action.run(&world, from).unwrap());
    }
}

#[test]
fn a_fenced_session_begins_again_and_gives_up_after_three() {
    for action in [Action::Recover, Action::Tag, Action::Rewrite] {
        for fences in 1..=4 {
            let kept = Kept::new();
            let world = kept.start();
            let store = world.open().unwrap();
            let from = kept.snapshots[0].0;
            if action == Action::Recover {
                forget(&store, from).unwrap();
            }
            let fencing = Arc::new(Fencing {
                disk: world.watched_repo(),
                store: store.clone(),
                left: AtomicUsize::new(fences),
                fenced: Mutex::new(Vec::new()),
            });
            let disk: Arc<dyn Disk> = Arc::clone(&fencing) as Arc<dyn Disk>;
            let fenced_store = open(&directory_store(disk), &world.host, Unlock::Password(PASSWORD)).unwrap();
            let derived = action.run_on(&world, &fenced_store, from);
            let fenced = fencing.fenced.lock().unwrap().len();
            let commits = store.read_commits().unwrap();
            let derived_from = |(_, snapshot): &(SessionId, &Snapshot)| snapshot.original == Some(from);
            let count = commits.snapshots().into_iter().filter(derived_from).count();
            if fences < 3 {
                made(&derived.unwrap());
                assert_eq!((fenced, count), (fences, 1), "{action:?}");
            } else {
                assert!(matches!(derived, Err(Error::Fenced { .. })), "{action:?}: {derived:?}");
                assert_eq!((fenced, count), (3, 0), "{action:?}");
            }
        }
    }
}

/// A snapshot of another time is not taken for the one that it names.
#[test]
fn a_snapshot_with_another_time_has_its_own_receipt() {
    let kept = Kept::new();
    let world = kept.start();
    let store = world.open().unwrap();
    let from = kept.snapshots[0].0;
    let forged =
        Snapshot { time: Timestamp { seconds: 1, nanoseconds: 0 }, original: Some(from), ..snapshot_of(&store, from) };
    let id = crate::integration::support::commit(&world, &store, forged);
    let commits = store.read_commits().unwrap();
    let candidates = candidates(&store, &commits).unwrap();
    let forged = candidates.iter().find(|candidate| candidate.id == id).unwrap();
    assert!(!forged.heads.is_empty(), "it is not taken for the first snapshot");
}
