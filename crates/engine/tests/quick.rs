//! Quick prunes: what manifests decide, what they must not, and what a lying one costs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use onefold_engine::check::{CheckReport, CheckRequest, CheckedSnapshots, ReadData, Severity, check};
use onefold_engine::collect::{PruneReport, PruneRequest, PruneState, give_up, plan_prune, prune, quarantine};
use onefold_engine::derive::RewriteOptions;
use onefold_engine::error::Result;
use onefold_engine::monitor::{Monitor, Silent};
use onefold_engine::object::names::{ContainerKind, ContainerName, ObjectName, Prefix};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{Derived, recover, rewrite, tag};
use onefold_engine::snapshot::{CommitBody, CommitKind, ManifestEncoder, SessionKind, Snapshot, Summary};
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault};
use onefold_engine::types::{ContainerId, SessionId};

use crate::integration::deriving::{silent, snapshot_of, storing};
use crate::integration::manifests::listed_by;
use crate::integration::pruning::{assert_clean, assert_restores, back_up_all, each_or_one, forget, request, versions};
use crate::integration::quarantining::Damage;
use crate::integration::support::{Ask, Draw, SMALL, World, commit, container_names, copy, noise, tell};

fn quick(world: &World, store: &Store) -> Result<PruneReport> {
    prune(store, &PruneRequest { quick: true, ..request(world, store) }, &Silent)
}

fn full(world: &World, store: &Store) -> Result<PruneReport> {
    prune(store, &request(world, store), &Silent)
}

fn check_report(world: &World, store: &Store) -> CheckReport {
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::None,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        seed: None,
        heads: None,
        accelerator: None,
    };
    check(store, &request, &Silent).unwrap()
}

/// Commits a snapshot with a manifest that lists what that of another one does, as far as `lists` returns true.
fn forge(world: &World, store: &Store, from: SessionId, lists: impl Fn(ContainerId) -> bool) -> SessionId {
    let session = Session::begin(store, &world.scratch(), SessionKind::Backup, "host").unwrap();
    let mut manifest = ManifestEncoder::new();
    for (id, share) in listed_by(store, from).unwrap() {
        if lists(id) {
            manifest.push(id, share);
        }
    }
    let checksum = session.put_manifest(store, Some(manifest)).unwrap();
    let (tags, summary) = (vec!["forged".to_owned()], Summary::default());
    let snapshot = Snapshot { tags, summary, ..snapshot_of(store, from) };
    let heads = session.heads.clone();
    let body = CommitBody { kind: CommitKind::Snapshot, snapshot: Some(snapshot), heads, manifest: checksum };
    session.commit(&body).unwrap();
    session.id
}

#[test]
fn a_quick_prune_removes_what_no_manifest_lists_and_nothing_else() {
    for kept in [vec![0, 1, 2], vec![0, 2], vec![1], vec![2], vec![]] {
        let case = format!("{kept:?} kept");
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        for (_, session) in sessions.iter().enumerate().filter(|(number, _)| !kept.contains(number)) {
            forget(&store, *session).unwrap();
        }
        let listed: Vec<_> = kept.iter().map(|number| listed_by(&store, sessions[*number]).unwrap()).collect();
        let is_listed = |name: &ContainerName| listed.iter().any(|listed| listed.contains_key(&name.id));
        let expected: Vec<ContainerName> = container_names(&store).into_iter().filter(is_listed).collect();
        let before = container_names(&store).len();
        let asked = PruneRequest { quick: true, ..request(&world, &store) };
        let planned = plan_prune(&store, &asked, &Silent).unwrap();
        assert!(planned.is_quick && container_names(&store).len() == before);
        let report = quick(&world, &store).unwrap();
        assert!(report.is_quick && report.state == PruneState::Done, "{case}: {report:?}");
        assert_eq!(report.plan, planned.plan, "{case}");
        assert_eq!(container_names(&store), expected, "{case}");
        assert_eq!(report.deleted_containers, (before - expected.len()) as u64, "{case}");
        let left: Vec<ObjectName> = kept.iter().map(|number| ObjectName::Manifest(sessions[*number])).collect();
        let mut manifests = store.list(Prefix::Manifests).unwrap();
        manifests.sort();
        assert_eq!(manifests.len(), left.len(), "{case}: the manifests of forgotten snapshots are gone");
        assert!(left.iter().all(|name| manifests.contains(name)), "{case}");
        for number in &kept {
            assert_restores(&world, &store, sessions[*number], &versions[*number], &case);
        }
        assert_clean(&world, &store, &case);
        let again = quick(&world, &store).unwrap();
        assert_eq!((again.is_quick, again.deleted_containers), (true, 0), "{case}: {again:?}");
        // A full one finds what is left, among what is listed.
        full(&world, &store).unwrap();
        let next = world.backup(&store, &versions[1], &Ask { with_parent: true, ..Ask::default() }).unwrap();
        assert_restores(&world, &store, next.report.session, &versions[1], &case);
        assert_clean(&world, &store, &case);
    }
}

#[test]
fn containers_that_full_prunes_have_copied_are_known_by_where_their_chunks_have_moved() {
    let world = World::new(2);
    let store = world.create(SMALL).unwrap();
    let mut versions = versions();
    let mut sessions = back_up_all(&world, &store, &versions);
    forget(&store, sessions[0]).unwrap();
    let mut quick_deleted = 0;
    for (round, len) in (0..4u64).zip([60_000, 60_100, 60_200, 60_300]) {
        let copied = full(&world, &store).unwrap();
        assert!(round != 0 || 0 < copied.written_containers, "{copied:?}");
        let newest = sessions.last().copied().unwrap();
        // The manifest lists containers that are gone.
        let gone = |session| {
            let ids: Vec<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
            listed_by(&store, session).unwrap().keys().filter(|id| !ids.contains(id)).count()
        };
        assert!(round != 0 || 0 < gone(newest));
        let next = copy(versions.last().unwrap());
        next.put_file(Path::new("/d/changes-1"), &noise(1000 + round, len));
        let ask = Ask { with_parent: true, ..Ask::default() };
        let made = world.backup(&store, &next, &ask).unwrap().report;
        assert!(0 < made.snapshot.summary.files_unmodified);
        let discarded = copy(&next);
        discarded.put_file(Path::new("/d/discarded"), &noise(2000 + round, 90_000));
        let discarded = world.backup(&store, &discarded, &ask).unwrap().report.session;
        forget(&store, discarded).unwrap();
        versions.push(next);
        sessions.push(made.session);
        let report = quick(&world, &store).unwrap();
        assert!(report.is_quick, "{report:?}");
        quick_deleted += report.deleted_containers;
        for (session, source) in sessions.iter().zip(&versions).skip(1) {
            assert_restores(&world, &store, *session, source, &format!("round {round}"));
        }
        assert_clean(&world, &store, &format!("round {round}"));
        if round == 1 {
            // Then full prunes copy again what was copied.
            forget(&store, sessions[2]).unwrap();
            sessions.remove(2);
            versions.remove(2);
        }
    }
    assert!(0 < quick_deleted);
}

/// Keeps the notes of a prune.
#[derive(Default, Debug)]
struct Notes(Mutex<Vec<String>>);

impl Monitor for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Asserts that a quick prune and its dry run are full ones and name a snapshot and a reason.
fn assert_falls_back(world: &World, named: SessionId, reason: &str) -> PruneReport {
    let store = world.open().unwrap();
    let asked = PruneRequest { quick: true, ..request(world, &store) };
    let notes = Notes::default();
    let planned = plan_prune(&store, &asked, &notes).unwrap();
    let reference = world.on(world.disk.fork());
    let expected = full(&reference, &reference.open().unwrap()).unwrap();
    let report = prune(&store, &asked, &notes).unwrap();
    assert!(!planned.is_quick && !report.is_quick, "{reason}: {report:?}");
    assert_eq!((report.plan, report.deleted_containers), (expected.plan, expected.deleted_containers), "{reason}");
    let notes = notes.0.into_inner().unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    for note in notes {
        assert!(note.contains("this prune is a full one") && note.contains(&named.to_string()), "{note}");
        assert!(note.contains(reason), "{note}");
    }
    report
}

#[test]
fn without_a_sound_manifest_of_each_snapshot_a_quick_prune_is_a_full_one() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    forget(&store, sessions[0]).unwrap();
    let falls_back = |world: &World, named: SessionId, reason: &str| {
        assert!(0 < assert_falls_back(world, named, reason).deleted_containers);
        for (session, source) in sessions.iter().zip(&versions).skip(1) {
            assert_restores(world, &world.open().unwrap(), *session, source, reason);
        }
    };
    let path = |session: SessionId| format!("repo/manifests/{session}");
    let without = world.on(world.disk.fork());
    let bare = commit(&without, &without.open().unwrap(), snapshot_of(&store, sessions[1]));
    falls_back(&without, bare, "has no manifest");

    let removed = world.on(world.disk.fork());
    removed.repo().remove(&ObjectName::Manifest(sessions[1]).path()).unwrap();
    let report = check_report(&removed, &removed.open().unwrap());
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert!(finding.object.contains(&sessions[1].to_string()) && finding.problem.contains("missing"), "{finding:?}");
    assert!(finding.severity == Severity::UnknownFile && report.is_sound(), "nothing is lost with it");
    falls_back(&removed, sessions[1], "cannot be read");

    // Every bit counts, in header, body and seal; so does the length.
    let len = store.read(ObjectName::Manifest(sessions[2]), 1 << 20).unwrap().len();
    for bit in (0..8 * len).step_by(131).chain([8 * len - 1]) {
        let damaged = world.on(world.disk.fork());
        damaged.disk.damage(path(sessions[2]), |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        if bit == 0 {
            let report = check_report(&damaged, &damaged.open().unwrap());
            assert!(!report.is_sound() && report.findings[0].object.contains("manifests"), "{:?}", report.findings);
        }
        falls_back(&damaged, sessions[2], "cannot be read");
    }
    for kept in [0, 1, 127, len - 1] {
        let cut = world.on(world.disk.fork());
        cut.disk.damage(path(sessions[2]), |bytes| bytes.truncate(kept));
        falls_back(&cut, sessions[2], "cannot be read");
    }
    // That of another snapshot opens with the same key, and is not the one that the commit names.
    for other in [sessions[0], sessions[1]] {
        let replaced = world.on(world.disk.fork());
        let others = store.read(ObjectName::Manifest(other), 1 << 20).unwrap();
        replaced.disk.damage(path(sessions[2]), |bytes| *bytes = others.clone());
        falls_back(&replaced, sessions[2], "is not the manifest that the commit names");
    }
    // That of a forgotten snapshot does not matter.
    world.disk.damage(path(sessions[0]), |bytes| bytes[150] ^= 1);
    assert!(quick(&world, &store).unwrap().is_quick);
    assert_clean(&world, &store, "a damaged manifest of a forgotten snapshot");
}

#[test]
fn a_container_that_is_gone_and_of_which_nothing_is_known_makes_a_quick_prune_a_full_one() {
    let world = World::new(4);
    let store = world.create(SMALL).unwrap();
    let sessions = back_up_all(&world, &store, &versions());
    let lost = container_names(&store).into_iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    world.repo().remove(&lost.path()).unwrap();
    let is_listed = |session: &&SessionId| listed_by(&store, **session).unwrap().contains_key(&lost.id);
    let commits = store.read_commits().unwrap();
    let order: Vec<SessionId> = commits.snapshots().into_iter().map(|(session, _)| session).collect();
    assert_eq!(order.len(), sessions.len());
    let first = *order.iter().find(is_listed).unwrap();
    assert_falls_back(&world, first, &lost.id.to_string());
}

#[test]
fn chunks_that_were_stored_again_after_a_quarantine_stay() {
    let world = World::new(12);
    let store = world.create(SMALL).unwrap();
    let source = versions().remove(0);
    let kept = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let data = container_names(&store).into_iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    Damage::Region.strike(&world, &data);
    quarantine(&store, &request(&world, &store), &BTreeSet::from([data.id]), &Silent).unwrap();
    let again = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    assert_restores(&world, &store, kept, &source, "stored again");
    forget(&store, again).unwrap();
    // The manifest of the other one lists what was set aside, and nobody knows where the damaged chunks are now.
    assert_falls_back(&world, kept, &data.id.to_string());
    assert_restores(&world, &store, kept, &source, "after the prune");
}

#[test]
fn every_tenth_collection_is_full() {
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let source = versions().remove(0);
    let kept = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let mut kinds = Vec::new();
    for round in 0..21 {
        // Some have nothing to do.
        if round % 3 != 0 {
            let other = copy(&source);
            other.put_file(Path::new("/d/other"), &noise(round, 70_000));
            let ask = Ask { with_parent: true, ..Ask::default() };
            let discarded = world.backup(&store, &other, &ask).unwrap().report.session;
            forget(&store, discarded).unwrap();
        }
        let report = quick(&world, &store).unwrap();
        assert_eq!(0 < report.deleted_containers, round % 3 != 0, "round {round}: {report:?}");
        kinds.push(report.is_quick);
    }
    let full: Vec<usize> = kinds.iter().enumerate().filter(|(_, is_quick)| !**is_quick).map(|(at, _)| at).collect();
    assert_eq!(full, [9, 19]);
    assert_restores(&world, &store, kept, &source, "after 21 rounds");
    assert_clean(&world, &store, "after 21 rounds");
    // A full one in between begins the count again, and one that is given up does not.
    full_then(&world, &store);
}

fn full_then(world: &World, store: &Store) {
    super::pruning::assert_clean(world, store, "before");
    full(world, store).unwrap();
    let count = |store: &Store| store.count_quick().unwrap();
    assert_eq!(count(store), Some(0));
    quick(world, store).unwrap();
    assert_eq!(count(store), Some(1));
    let writer = Session::begin(store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let next = versions().remove(1);
    let discarded = world.backup(store, &next, &Ask::default()).unwrap().report.session;
    forget(store, discarded).unwrap();
    let patient = PruneRequest { quick: true, fence_after: Duration::from_hours(24), ..request(world, store) };
    let report = prune(store, &patient, &Silent).unwrap();
    assert!(matches!(report.state, PruneState::Waiting(_)), "{report:?}");
    assert!(give_up(store, "host").unwrap().is_some());
    assert_eq!(count(store), Some(1));
    writer.end().unwrap();
}

#[test]
fn a_prune_that_joins_a_quick_one_reads_trees() {
    let world = World::new(6);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    // A manifest that lists too little, of the only snapshot.
    let listed = listed_by(&store, sessions[0]).unwrap();
    let is_data = |name: &ContainerName| name.kind == ContainerKind::Data && listed.contains_key(&name.id);
    let data = container_names(&store).into_iter().find(is_data).unwrap().id;
    let forged = forge(&world, &store, sessions[0], |id| id != data);
    for session in &sessions {
        forget(&store, *session).unwrap();
    }
    let writer = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let patient = PruneRequest { quick: true, fence_after: Duration::from_hours(24), ..request(&world, &store) };
    let report = prune(&store, &patient, &Silent).unwrap();
    assert!(report.is_quick && matches!(report.state, PruneState::Waiting(_)), "{report:?}");
    writer.end().unwrap();
    let joined = full(&world, &store).unwrap();
    assert_eq!((joined.state, joined.rescued_containers), (PruneState::Done, 1));
    assert_restores(&world, &store, forged, &versions[0], "joined");
}

#[test]
fn a_manifest_that_lists_too_little_is_found_by_check_and_loses_no_root_node() {
    // What it does not list is lost.
    let world = World::new(7).without_oracle();
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    let honest = forge(&world, &store, sessions[1], |_| true);
    assert_clean(&world, &store, "honest");
    let mut found = 0;
    for id in listed_by(&store, honest).unwrap().into_keys() {
        let world = world.on(world.disk.fork());
        let store = world.open().unwrap();
        let forged = forge(&world, &store, sessions[1], |listed| listed != id);
        let report = check_report(&world, &store);
        let [finding] = report.findings.as_slice() else { panic!("{id}: {:?}", report.findings) };
        assert!(!report.is_sound(), "{finding:?}");
        assert!(finding.object.contains(&format!("manifests/{forged}")), "{finding:?}");
        assert!(finding.problem.contains(&id.to_string().replace('/', "/d")[..32]), "{finding:?}");
        found += 1;
    }
    assert!(3 < found);
    // A manifest without containers: the container of the root node stays.
    let forged = forge(&world, &store, sessions[1], |_| false);
    for session in sessions.iter().chain([&honest]) {
        forget(&store, *session).unwrap();
    }
    let report = quick(&world, &store).unwrap();
    assert!(report.is_quick && 0 < report.rescued_containers, "{report:?}");
    let tree = snapshot_of(&store, forged).tree;
    let holds = crate::integration::support::containers(&store);
    assert!(holds.iter().any(|container| container.chunks.iter().any(|(_, chunk, _)| *chunk == tree)));
}

#[test]
fn manifests_without_a_snapshot_are_leftovers_and_those_of_unended_sessions_stay() {
    let world = World::new(8);
    let store = world.create(SMALL).unwrap();
    let source = versions().remove(0);
    let kept = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let begin = || Session::begin(&store, &world.scratch(), SessionKind::Backup, "host").unwrap();
    let (ended, open) = (begin(), begin());
    for session in [&ended, &open] {
        assert!(session.put_manifest(&store, Some(ManifestEncoder::new())).unwrap().is_some());
    }
    ended.end().unwrap();
    assert_eq!(check_report(&world, &store).leftovers, 1);
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(&world, &store) };
    let report = prune(&store, &patient, &Silent).unwrap();
    assert_eq!((report.state, report.leftovers.0), (PruneState::Done, 1));
    let mut left = store.list(Prefix::Manifests).unwrap();
    left.sort();
    let mut expected = vec![ObjectName::Manifest(kept), ObjectName::Manifest(open.id)];
    expected.sort();
    assert_eq!(left, expected);
    // It commits after that, and its manifest is there.
    let snapshot = snapshot_of(&store, kept);
    let checksum = blake3::hash(&store.read(ObjectName::Manifest(open.id), 1 << 20).unwrap());
    let heads = open.heads.clone();
    let manifest = Some(*checksum.as_bytes());
    open.commit(&CommitBody { kind: CommitKind::Snapshot, snapshot: Some(snapshot), heads, manifest }).unwrap();
    assert!(store.read_manifest(open.id, checksum.as_bytes(), &mut |_, _| Ok(())).is_ok());
}

/// A repository of which a quick prune removes something, and whose newest `final` has moved chunks.
struct Quick {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
}

impl Quick {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let mut versions = versions();
        let mut sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        full(&world, &store).unwrap();
        let other = copy(&versions[2]);
        other.put_file(Path::new("/d/other"), &noise(77, 90_000));
        let ask = Ask { with_parent: true, ..Ask::default() };
        let discarded = world.backup(&store, &other, &ask).unwrap().report.session;
        forget(&store, discarded).unwrap();
        sessions.remove(0);
        versions.remove(0);
        Self { world, kept: sessions.into_iter().zip(versions).collect() }
    }

    fn assert_sound(&self, world: &World, case: &str) {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        for next in [quick, full] {
            for (session, source) in &self.kept {
                assert_restores(world, &store, *session, source, case);
            }
            assert_clean(world, &store, case);
            let report = next(world, &store).unwrap_or_else(|error| panic!("{case}: next prune: {error}"));
            assert_eq!(report.state, PruneState::Done, "{case}");
        }
        for (session, source) in &self.kept {
            assert_restores(world, &store, *session, source, case);
        }
        let (_, source) = self.kept.last().unwrap();
        let next = world.backup(&store, source, &Ask { with_parent: true, ..Ask::default() });
        let next = next.unwrap_or_else(|error| panic!("{case}: the next backup: {error}"));
        assert_restores(world, &store, next.report.session, source, case);
        assert_clean(world, &store, case);
    }

    fn calls(&self) -> u64 {
        let run = self.world.on(self.world.disk.fork());
        let store = run.open().unwrap();
        let first = run.disk.calls();
        let report = quick(&run, &store).unwrap();
        assert!(report.is_quick && 0 < report.deleted_containers, "{report:?}");
        let calls = run.disk.calls() - first;
        self.assert_sound(&run, "undisturbed");
        calls
    }
}

#[test]
fn an_error_at_any_call_of_a_quick_prune_loses_nothing() {
    let repository = Quick::new(9);
    let calls = repository.calls();
    let mut failed = 0;
    for call in 1..=calls {
        let faults = [
            Fault::Error(ErrorKind::Other),
            Fault::DiskFull,
            Fault::ErrorAfter(ErrorKind::Other),
            Fault::Error(ErrorKind::StorageFull),
            Fault::ErrorAfter(ErrorKind::AlreadyExists),
        ];
        for fault in each_or_one(&faults, call) {
            let run = repository.world.on(repository.world.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(run.disk.calls() + call, fault);
            let outcome = quick(&run, &store);
            run.disk.clear_faults();
            failed += u64::from(outcome.is_err());
            repository.assert_sound(&run, &format!("{fault:?} at call {call}: {:?}", outcome.err()));
        }
    }
    tell(&format!("errors at {calls} calls of a quick prune: {failed} prunes failed, nothing lost"));
    assert!(calls / 3 < failed);
}

#[test]
fn a_crash_at_any_call_of_a_quick_prune_loses_nothing() {
    let repository = Quick::new(10);
    let calls = repository.calls();
    let mut images = 0;
    for call in 1..=calls {
        let run = repository.world.on(repository.world.disk.fork());
        let store = run.open().unwrap();
        run.disk.fail_at(run.disk.calls() + call, if call % 2 == 0 { Fault::Die } else { Fault::DieAfter });
        let _died = quick(&run, &store);
        let modes = [
            Some(CrashMode::LoseUnsynced),
            Some(CrashMode::Subset(call)),
            None,
            Some(CrashMode::KeepAll),
            Some(CrashMode::Torn(call)),
        ];
        for mode in each_or_one(&modes, call) {
            let after = mode.map_or_else(|| run.disk.reopen(), |mode| run.disk.crash(mode));
            repository.assert_sound(&run.on(after), &format!("crash at call {call}, {mode:?}"));
            images += 1;
        }
    }
    tell(&format!("crashes at {calls} calls of a quick prune: {images} images, nothing lost"));
}

/// Counts of a random history.
#[derive(Default, Debug)]
struct Totals {
    quick: u64,
    removed_by_quick: u64,
    full: u64,
    derived: u64,
}

/// What a snapshot restores to.
type Expected = BTreeMap<SessionId, MemTree>;

fn restored(world: &World, store: &Store, session: SessionId) -> MemTree {
    let (tree, report) = world.restore(store, &snapshot_of(store, session)).unwrap();
    assert_eq!(report.failures, 0);
    tree
}

/// Takes a random step: a backup, a forget, a prune, or a derived snapshot.
fn step(world: &World, store: &Store, draw: &mut Draw, state: (&mut MemTree, &mut Expected), totals: &mut Totals) {
    let (source, expected) = state;
    let chosen = |draw: &mut Draw, expected: &Expected| {
        let at = draw.below(expected.len().max(1));
        expected.keys().nth(at).copied()
    };
    match draw.below(10) {
        0..=2 => {
            let file = format!("/d/file-{}", draw.below(6));
            source.put_file(Path::new(&file), &noise(draw.below(1 << 30) as u64, 5_000 + draw.below(60_000)));
            let ask = Ask { with_parent: draw.below(4) != 0, ..Ask::default() };
            let session = world.backup(store, source, &ask).unwrap().report.session;
            assert_restores(world, store, session, source, "backup");
            expected.insert(session, copy(source));
        }
        3 => {
            if let Some(session) = chosen(draw, expected).filter(|_| 1 < expected.len()) {
                forget(store, session).unwrap();
                let tree = expected.remove(&session).unwrap();
                // Some are taken back, before or after a prune has removed what only they needed.
                if draw.below(3) == 0
                    && let Ok(Derived::Made(id, _)) = recover(store, &silent(world), session, None)
                {
                    expected.insert(id, tree);
                    totals.derived += 1;
                }
            }
        }
        4 => {
            let Some(session) = chosen(draw, expected) else { return };
            let label = format!("tag-{}", draw.below(1000));
            if let Derived::Made(id, _) = tag(store, &silent(world), session, &[label]).unwrap() {
                forget(store, session).unwrap();
                let tree = expected.remove(&session).unwrap();
                expected.insert(id, tree);
                totals.derived += 1;
            }
        }
        5 => {
            let Some(session) = chosen(draw, expected) else { return };
            let text = format!("/d/file-{}", draw.below(6));
            let patterns = Patterns::parse([text.as_bytes()], Case::Sensitive).unwrap();
            let exclusion = RewriteOptions { patterns: vec![patterns], texts: vec![text], ..RewriteOptions::default() };
            let made = rewrite(store, &silent(world), &storing(), session, &exclusion).unwrap();
            if let Derived::Made(id, _) = made {
                expected.insert(id, restored(world, store, id));
                totals.derived += 1;
            }
        }
        6..=8 => {
            let planned = plan_prune(store, &request(world, store), &Silent).unwrap();
            let report = quick(world, store).unwrap();
            if report.is_quick {
                totals.quick += 1;
                totals.removed_by_quick += report.deleted_containers;
                // What a full prune would keep, a quick one keeps: it removes no more than what is unused as a whole.
                assert!(report.deleted_bytes <= planned.plan.unused_bytes, "{report:?} {planned:?}");
            } else {
                totals.full += 1;
            }
        }
        _ => {
            full(world, store).unwrap();
            totals.full += 1;
        }
    }
}

#[test]
fn no_snapshot_loses_anything_in_random_histories_with_quick_prunes() {
    let (seeds, steps) = if cfg!(feature = "slow") { (60, 60) } else { (8, 40) };
    let mut totals = Totals::default();
    for seed in 0..seeds {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let mut draw = Draw::new(seed);
        let mut source = versions().remove(0);
        let mut expected = Expected::new();
        for number in 0..steps {
            step(&world, &store, &mut draw, (&mut source, &mut expected), &mut totals);
            let case = format!("seed {seed}, step {number}");
            if number % 8 == 7 {
                for (session, tree) in &expected {
                    assert_restores(&world, &store, *session, tree, &case);
                }
                assert_clean(&world, &store, &case);
            }
        }
    }
    tell(&format!("{totals:?}"));
    assert!(seeds * steps / 8 < totals.quick, "{totals:?}");
    assert!(0 < totals.removed_by_quick && 0 < totals.full && 0 < totals.derived, "{totals:?}");
}
