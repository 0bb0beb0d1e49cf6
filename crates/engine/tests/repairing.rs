//! Repairing snapshots: after damage of every kind to each container, and with an error and a crash at each call.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_engine::Result;
use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::derive::DeriveOptions;
use onefold_engine::io::Access;
use onefold_engine::monitor::{Loss, Monitor, Silent};
use onefold_engine::object::names::{CollectionStep, ContainerKind, ContainerName};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{Repaired, find_losses, repair_snapshot};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::recipe_cursor::{FileExtent, RecipeCursor};
use onefold_engine::store::walk::{Event, TreeWalk};
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};
use onefold_engine::tree::Content;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::integration::condemned::{collect, condemn};
use crate::integration::deriving::{forget, is_new, options, silent, snapshot_of, storing};
use crate::integration::forgetting::{FAULTS, WAYS};
use crate::integration::support::{Ask, SMALL, World, container_names, hash_directory, noise, tell, tree};

/// Listens to losses.
#[derive(Debug, Default)]
struct Losses(Mutex<Vec<(PathBuf, Loss)>>);

impl Monitor for Losses {
    fn lost(&self, path: &Path, loss: Loss) {
        self.0.lock().unwrap().push((path.to_owned(), loss));
    }
}

/// A source with files of many chunks, and with a directory whose list has several nodes.
fn source() -> MemTree {
    let source = tree(12);
    source.put_file(Path::new("/d/e/large"), &noise(77, 300_000));
    source.put_dir(Path::new("/d/many"));
    for number in 0..400 {
        source.put_file(Path::new(&format!("/d/many/{number:03}")), &noise(number, 40));
    }
    source
}

/// A repository of two snapshots, of which the second shares most of its chunks with the first.
fn base() -> (World, [SessionId; 2]) {
    let world = World::new(9);
    let store = world.create(SMALL).unwrap();
    let source = source();
    let first = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    source.put_file(Path::new("/d/file-005"), &noise(905, 9000));
    source.put_file(Path::new("/d/e/new"), &noise(906, 30_000));
    let second = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    (world, [first, second])
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    Gone,
    Quarantined,
    Cut,
    Overwritten,
    Emptied,
}

const DAMAGES: [Damage; 5] = [Damage::Gone, Damage::Quarantined, Damage::Cut, Damage::Overwritten, Damage::Emptied];

impl Damage {
    fn strike(self, world: &World, name: &ContainerName) {
        let (repo, path) = (world.repo(), name.path());
        let open = || repo.open(&path, Access::ReadWrite).unwrap();
        match self {
            Self::Gone => repo.remove(&path).unwrap(),
            Self::Quarantined => quarantine(world, name),
            Self::Cut => open().set_len(open().len().unwrap() - 100).unwrap(),
            Self::Overwritten => {
                let len = usize::try_from(open().len().unwrap()).unwrap();
                open().write_at(0, &noise(1, len)).unwrap();
            }
            Self::Emptied => open().set_len(0).unwrap(),
        }
    }
}

fn quarantine(world: &World, name: &ContainerName) {
    let path = name.path();
    if world.repo().exists(&path).unwrap() {
        world.repo().rename(&path, Path::new(&format!("{}.bad", path.display()))).unwrap();
    }
}

/// Returns the chunks of all containers that can be opened and have their length.
fn available(store: &Store) -> BTreeSet<Fingerprint> {
    let mut available = BTreeSet::new();
    for name in container_names_of(store) {
        let Ok(container) = store.open_container(&name) else { continue };
        if store.container_len(&name).unwrap() == container.stored_len() {
            available.extend(container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint));
        }
    }
    available
}

fn container_names_of(store: &Store) -> Vec<ContainerName> {
    let containers = store.list_containers(&onefold_engine::store::metadata::Scratch::default()).unwrap();
    containers.names().map(Result::unwrap).collect()
}

/// Returns the chunks of each file of a snapshot, as far as they are available and their references can be read.
fn files(world: &World, store: &Store, snapshot: &Snapshot) -> BTreeMap<PathBuf, Vec<Fingerprint>> {
    let available = available(store);
    let containers = store.list_sized_containers(&world.scratch()).unwrap();
    let memory = MetadataMemory::of(16 << 20);
    let mut reader = MetadataReader::open_whole(store, &containers, &world.scratch(), memory).unwrap();
    let mut walk = TreeWalk::new(snapshot.tree, b"", ());
    let mut files = BTreeMap::new();
    while let Some(event) = walk.next(&mut reader, &Silent).unwrap() {
        let Event::Entry(hinted) = event else { continue };
        match &hinted.entry.content {
            Content::Directory { node } => walk.enter(*node, ()).unwrap(),
            Content::File { recipe, .. } => {
                let mut chunks = Vec::new();
                let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
                loop {
                    match cursor.next(&mut reader) {
                        Ok(Some(FileExtent::Chunk(hinted))) => chunks.push(hinted.chunk.fingerprint),
                        Ok(Some(FileExtent::Hole { .. })) | Err(_) => {}
                        Ok(None) => break,
                    }
                }
                chunks.retain(|chunk| available.contains(chunk));
                files.insert(PathBuf::from(OsStr::from_bytes(walk.path())), chunks);
            }
            Content::Symlink { .. } | Content::Special { .. } => {}
        }
    }
    files
}

fn hash(world: &World) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hash_directory(&world.disk, Path::new("repo"), &mut hasher);
    hasher.finalize()
}

fn assert_clean(world: &World, store: &Store, case: &str) {
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::All,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        seed: None,
        heads: None,
        accelerator: None,
    };
    let report = check(store, &request, &Silent).unwrap_or_else(|error| panic!("{case}: check: {error}"));
    assert!(report.is_sound(), "{case}: {:#?}", report.findings);
}

/// Returns true if `few` are some of `all`, in their order.
fn is_part(few: &[Fingerprint], all: &[Fingerprint]) -> bool {
    let mut all = all.iter();
    few.iter().all(|chunk| all.any(|other| other == chunk))
}

/// Outcomes of repairs, counted.
#[derive(Default, Debug)]
struct Tally {
    repaired: usize,
    shortened: usize,
    dropped: usize,
    empty: usize,
    sound: usize,
}

/// A damaged repository, and the losses that were found before anything was repaired.
struct Damaged<'a> {
    world: &'a World,
    store: Store,
    losses: onefold_engine::repo::Losses,
    kind: ContainerKind,
    case: &'a str,
}

impl Damaged<'_> {
    /// Returns an outcome with what the monitor heard.
    fn heard<T>(&mut self, run: impl FnOnce(&mut Self, &DeriveOptions) -> T) -> (T, Vec<(PathBuf, Loss)>) {
        let losses = Arc::new(Losses::default());
        let hears = options(self.world, &(Arc::clone(&losses) as Arc<dyn Monitor>));
        let outcome = run(self, &hears);
        let heard = std::mem::take(&mut *losses.0.lock().unwrap());
        (outcome, heard)
    }

    /// Tries a repair out, repairs the snapshot, and compares. Returns true if it was damaged.
    fn repair(&mut self, id: SessionId, undamaged: &BTreeMap<PathBuf, Vec<Fingerprint>>, tally: &mut Tally) -> bool {
        let case = self.case;
        let original = snapshot_of(&self.store, id);
        let expected = files(self.world, &self.store, &original);
        let before = hash(self.world);
        let hit = self.losses.hit(&original, &silent(self.world)).unwrap();
        let (tried, dry) = self.heard(|damaged, hears| damaged.losses.try_repair((id, &original), b"", hears).unwrap());
        assert_eq!(hash(self.world), before, "{case}: a dry run writes nothing");
        let (outcome, real) =
            self.heard(|damaged, hears| repair_snapshot(&damaged.store, hears, &storing(), id, b"").unwrap());
        assert_eq!(dry, real, "{case}");
        assert_eq!(hit, !real.is_empty(), "{case}");
        match outcome {
            Repaired::Sound => {
                assert_eq!((tried, &expected), (None, undamaged), "{case}");
                tally.sound += 1;
                return false;
            }
            Repaired::Empty => {
                assert_eq!((tried, expected.len()), (None, 0), "{case}");
                tally.empty += 1;
            }
            Repaired::Exists(session) => panic!("{case}: {session}"),
            Repaired::Made(new, snapshot) => {
                assert_eq!(tried.unwrap().tree, snapshot.tree, "{case}");
                assert_eq!((snapshot.time, snapshot.original), (original.time, Some(id)), "{case}");
                self.compare(&snapshot, &expected, undamaged);
                let files = real.iter().filter(|(_, loss)| matches!(loss, Loss::Bytes { .. })).count();
                tally.shortened += files;
                tally.dropped += real.len() - files;
                let repair = |id| repair_snapshot(&self.store, &silent(self.world), &storing(), id, b"").unwrap();
                assert_eq!((repair(id), repair(new)), (Repaired::Exists(new), Repaired::Sound), "{case}");
                tally.repaired += 1;
            }
        }
        assert!(self.store.read_commits().unwrap().snapshots().iter().any(|(listed, _)| *listed == id), "{case}");
        true
    }

    /// Compares the files of a repaired snapshot with what is whole.
    fn compare(
        &self,
        repaired: &Snapshot,
        expected: &BTreeMap<PathBuf, Vec<Fingerprint>>,
        undamaged: &BTreeMap<PathBuf, Vec<Fingerprint>>,
    ) {
        let made = files(self.world, &self.store, repaired);
        assert_eq!(&made, expected, "{}", self.case);
        assert!(made.iter().all(|(path, chunks)| is_part(chunks, &undamaged[path])), "{}", self.case);
        if self.kind == ContainerKind::Data {
            let left = available(&self.store);
            let mut exact = undamaged.clone();
            for chunks in exact.values_mut() {
                chunks.retain(|chunk| left.contains(chunk));
            }
            assert_eq!(made, exact, "{}: only chunks are lost, no file", self.case);
        }
    }
}

#[test]
fn after_damage_of_any_kind_all_that_is_whole_is_in_the_repaired_snapshots() {
    let (base, snapshots) = base();
    let names = container_names(&base.open().unwrap());
    let undamaged = snapshots.map(|id| files(&base, &base.open().unwrap(), &snapshot_of(&base.open().unwrap(), id)));
    let mut tally = Tally::default();
    for (name, damage) in names.iter().flat_map(|name| DAMAGES.map(|damage| (name, damage))) {
        let case = &format!("{damage:?}: {name}");
        let world = base.on(base.disk.fork());
        damage.strike(&world, name);
        let store = world.open().unwrap();
        let all = snapshots.map(|id| snapshot_of(&store, id));
        let losses = find_losses(&store, &silent(&world), &all.iter().collect::<Vec<_>>()).unwrap();
        let mut damaged = Damaged { world: &world, store: store.clone(), losses, kind: name.kind, case };
        for (id, undamaged) in snapshots.iter().zip(&undamaged) {
            if damaged.repair(*id, undamaged, &mut tally) {
                forget(&store, *id).unwrap();
            }
        }
        quarantine(&world, name);
        assert_clean(&world, &store, case);
        for (session, snapshot) in store.read_commits().unwrap().snapshots() {
            let (_, report) = world.restore(&store, snapshot).unwrap();
            assert_eq!(report.failures, 0, "{case}: {session}");
        }
    }
    tell(&format!("{tally:?}"));
    let Tally { repaired, shortened, dropped, empty, sound } = tally;
    assert!(20 < repaired && 20 < shortened && 5 < dropped && 0 < empty && 0 < sound, "{tally:?}");
}

/// A region that does not open is damage that only shows when it is read.
#[test]
fn nodes_in_regions_that_do_not_open_are_lost_and_others_stay() {
    let (base, snapshots) = base();
    let mut repaired = 0;
    for name in container_names(&base.open().unwrap()).iter().filter(|name| name.kind == ContainerKind::Metadata) {
        let regions = base.open().unwrap().open_container(name).unwrap().directory.regions.len();
        for region in 0..u32::try_from(regions).unwrap() {
            let world = base.on(base.disk.fork());
            let store = world.open().unwrap();
            let (offset, _) = store.open_container(name).unwrap().region_range(region).unwrap();
            world.repo().open(&name.path(), Access::ReadWrite).unwrap().write_at(offset + 20, &[0x55; 8]).unwrap();
            for id in snapshots {
                if let Repaired::Made(..) = repair_snapshot(&store, &silent(&world), &storing(), id, b"").unwrap() {
                    forget(&store, id).unwrap();
                    repaired += 1;
                }
            }
            for (session, snapshot) in store.read_commits().unwrap().snapshots() {
                let original = snapshot.original.is_none();
                let (_, report) = match world.restore(&store, snapshot) {
                    Err(_) if original => continue,
                    restored => restored.unwrap(),
                };
                assert!(report.failures == 0 || original, "{name} region {region}: {session}");
            }
        }
    }
    assert!(2 < repaired, "{repaired} repaired");
}

#[test]
fn what_another_container_holds_is_not_lost() {
    let (base, snapshots) = base();
    for name in container_names(&base.open().unwrap()) {
        let world = base.on(base.disk.fork());
        world.repo().remove(&name.path()).unwrap();
        let store = world.open().unwrap();
        // The index notices, and the chunks are stored again; the second source has all of the first but two files.
        world.backup(&store, &source(), &Ask::default()).unwrap();
        let first = snapshot_of(&store, snapshots[0]);
        assert!(find_losses(&store, &silent(&world), &[&first]).unwrap().is_empty(), "{name}");
        let commits = store.read_commits().unwrap().snapshots().len();
        let outcome = repair_snapshot(&store, &silent(&world), &storing(), snapshots[0], b"").unwrap();
        assert_eq!(outcome, Repaired::Sound, "{name}");
        assert_eq!(store.read_commits().unwrap().snapshots().len(), commits, "{name}");
    }
}

#[test]
fn shortened_files_get_a_suffix_on_request_and_stay_in_order() {
    let world = World::new(10);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    source.put_dir(Path::new("/d"));
    source.put_file(Path::new("/d/a"), &noise(1, 100_000));
    let long = "n".repeat(253);
    source.put_file(Path::new(&format!("/d/{long}")), &noise(1, 100_000));
    let lost = world.backup(&store, &source, &Ask::default()).unwrap().report;
    for (name, len) in [("a-b", 10), ("a.d", 20), ("a.z", 30), ("b", 40)] {
        source.put_file(Path::new(&format!("/d/{name}")), &noise(len, usize::try_from(len).unwrap()));
    }
    let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
    let is_lost = |name: &&ContainerName| name.id.session == lost.session && name.kind == ContainerKind::Data;
    let names = container_names(&store);
    world.repo().remove(&names.iter().find(is_lost).unwrap().path()).unwrap();
    let repaired = repair_snapshot(&store, &silent(&world), &storing(), report.session, b".rep").unwrap();
    let Repaired::Made(_, snapshot) = repaired else { panic!("{repaired:?}") };
    let paths: Vec<_> = files(&world, &store, &snapshot).into_keys().collect();
    let expected = ["a-b", "a.d", "a.rep", "a.z", "b", &long].map(|name| PathBuf::from(format!("/d/{name}")));
    assert_eq!(paths, expected);
    let aside = world.on(world.disk.fork());
    for session in [lost.session, report.session] {
        forget(&aside.open().unwrap(), session).unwrap();
    }
    assert_clean(&aside, &aside.open().unwrap(), "with a suffix");
    // A name that is taken, by a file whose chunk another container holds.
    source.put_file(Path::new("/d/a.rep"), &noise(40, 40));
    let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
    let is_lost = |name: &&ContainerName| name.id.session == report.session && name.kind == ContainerKind::Data;
    let names = container_names(&store);
    world.repo().remove(&names.iter().find(is_lost).unwrap().path()).unwrap();
    let commits = store.read_commits().unwrap().snapshots().len();
    let error = repair_snapshot(&store, &silent(&world), &storing(), report.session, b".rep").unwrap_err();
    assert!(error.to_string().contains("choose another suffix"), "{error}");
    assert_eq!(store.read_commits().unwrap().snapshots().len(), commits);
    let other = repair_snapshot(&store, &silent(&world), &storing(), report.session, b".other").unwrap();
    assert!(matches!(other, Repaired::Made(..)), "{other:?}");
}

#[test]
fn nothing_is_repaired_while_a_collection_condemns_or_after_a_forget() {
    let (world, snapshots) = base();
    let store = world.open().unwrap();
    let first = snapshot_of(&store, snapshots[0]);
    let name = *container_names(&store).iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    condemn((&world, &store), 1, &[name.id]);
    for error in [
        repair_snapshot(&store, &silent(&world), &storing(), snapshots[0], b"").map(|_| ()).unwrap_err(),
        find_losses(&store, &silent(&world), &[&first]).map(|_| ()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("a collection is about to choose"), "{error}");
    }
    // It is rescued.
    collect((&world, &store), 1, CollectionStep::Final, &[]);
    let outcome = repair_snapshot(&store, &silent(&world), &storing(), snapshots[0], b"").unwrap();
    assert_eq!(outcome, Repaired::Sound);
    forget(&store, snapshots[0]).unwrap();
    let error = repair_snapshot(&store, &silent(&world), &storing(), snapshots[0], b"").unwrap_err();
    assert!(error.to_string().contains("was forgotten"), "{error}");
}

/// A repository in which a repair is disturbed.
struct Sweep {
    world: World,
    disk: SimDisk,
    from: SessionId,
    /// The tree of the repaired snapshot if nothing disturbs its making.
    expected: Fingerprint,
    /// The snapshot that has lost nothing.
    whole: SessionId,
}

impl Sweep {
    /// The repair of a snapshot that has lost a data container and a metadata container, which the other one does not need.
    fn new() -> Self {
        let world = World::new(12);
        let store = world.create(SMALL).unwrap();
        let whole = world.backup(&store, &tree(6), &Ask::default()).unwrap().report.session;
        let source = tree(6);
        source.put_file(Path::new("/d/e/large"), &noise(77, 150_000));
        source.put_file(Path::new("/d/another"), &noise(78, 2000));
        let from = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
        let names = container_names(&store);
        let lost = names.iter().find(|name| name.id.session == from && name.kind == ContainerKind::Data).unwrap();
        world.repo().remove(&lost.path()).unwrap();
        world.repo().sync_dir(lost.path().parent().unwrap()).unwrap();
        let disk = world.disk.fork();
        let aside = world.on(world.disk.fork());
        let outcome = run(&aside, from).unwrap();
        let Repaired::Made(_, snapshot) = outcome else { panic!("{outcome:?}") };
        Self { world, disk, from, expected: snapshot.tree, whole }
    }

    fn start(&self) -> World {
        self.world.on(self.disk.fork())
    }

    /// Returns how many repaired snapshots there are.
    fn assert_sound(&self, world: &World, is_acknowledged: bool, case: &str) -> usize {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        let commits = store.read_commits().unwrap();
        assert!(commits.findings.is_empty() && commits.not_forgotten.is_empty(), "{case}");
        let snapshots = commits.snapshots();
        assert!(snapshots.iter().any(|(session, _)| *session == self.whole), "{case}");
        let mut repaired = 0;
        for (session, snapshot) in &snapshots {
            let restored = world.restore(&store, snapshot);
            if *session == self.from {
                continue;
            }
            assert_eq!(restored.unwrap().1.failures, 0, "{case}: {session}");
            if snapshot.original == Some(self.from) {
                assert_eq!(snapshot.tree, self.expected, "{case}: more is left out than is lost");
                repaired += 1;
            }
        }
        let is_listed = snapshots.iter().any(|(session, _)| *session == self.from);
        assert!(is_listed || 0 < repaired, "{case}: both are gone");
        assert!(!is_acknowledged || (!is_listed && repaired == 1), "{case}: {repaired} repaired, {is_listed}");
        if !is_listed {
            assert_clean(world, &store, case);
        }
        repaired
    }

    fn assert_again(&self, world: &World, case: &str) {
        let again = run(world, self.from);
        match &again {
            Ok(Repaired::Made(..) | Repaired::Exists(_)) => {}
            Ok(other) => panic!("{case}: {other:?}"),
            // The first run has come that far.
            Err(error) => assert!(error.to_string().contains("was forgotten"), "{case}: {error}"),
        }
        assert_eq!(self.assert_sound(world, true, case), 1, "{case}, and again");
        // A power cut takes back nothing that either run has relied on, not even after a sync that failed.
        let after = world.on(world.disk.crash(CrashMode::LoseUnsynced));
        self.assert_sound(&after, again.is_ok(), &format!("{case}, and again, and a power cut"));
    }
}

/// Does what the command does with `--forget`.
fn run(world: &World, from: SessionId) -> Result<Repaired> {
    let store = world.open()?;
    let outcome = repair_snapshot(&store, &silent(world), &storing(), from, b"")?;
    if matches!(outcome, Repaired::Made(..) | Repaired::Exists(_)) {
        forget(&store, from)?;
    }
    Ok(outcome)
}

#[test]
fn an_error_or_a_crash_at_any_call_of_a_repair_loses_nothing_that_is_whole() {
    let sweep = Sweep::new();
    let whole = sweep.start();
    let before = whole.disk.calls();
    run(&whole, sweep.from).unwrap();
    let calls = whole.disk.calls() - before;
    sweep.assert_sound(&whole, true, "undisturbed");
    let (mut images, mut examined, mut unacknowledged) = (0, HashSet::new(), 0);
    let mut examine = |world: &World, is_acknowledged: bool, case: &str| {
        images += 1;
        unacknowledged += u64::from(!is_acknowledged);
        if is_new(&mut examined, &world.disk, is_acknowledged) {
            sweep.assert_sound(world, is_acknowledged, case);
            sweep.assert_again(world, case);
        }
    };
    for call in 1..=calls {
        for fault in FAULTS {
            let world = sweep.start();
            world.disk.fail_at(call, fault);
            let is_acknowledged = run(&world, sweep.from).is_ok();
            world.disk.clear_faults();
            examine(&world, is_acknowledged, &format!("{fault:?} at call {call}"));
        }
        for fault in [Fault::Die, Fault::DieAfter] {
            let world = sweep.start();
            world.disk.fail_at(call, fault);
            let is_acknowledged = run(&world, sweep.from).is_ok();
            for way in WAYS {
                let after = way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode));
                let case = format!("{fault:?} at call {call}, {way:?}");
                examine(&sweep.world.on(after), is_acknowledged, &case);
            }
        }
    }
    assert!(0 < unacknowledged);
    tell(&format!("repair: {calls} calls, {images} images, {} of them different, nothing lost", examined.len()));
}
