//! Ends of sessions: failed sessions end themselves, fenced ones begin again, and nothing relies on what they left.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::backup::Monitor;
use onefold_engine::object::names::{CollectionStep, ObjectName, Prefix};
use onefold_engine::object::store::Created;
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::snapshot::{CollectionBody, CommitBody, CommitKind, SessionKind};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};
use onefold_engine::types::{ContainerId, SessionId};

use crate::integration::pruning::assert_clean;
use crate::integration::support::{Ask, SMALL, World, containers, noise, tree};

fn fence(store: &Store, session: SessionId) -> Created {
    let body = CommitBody::without_snapshot(CommitKind::Fence).encode();
    let identity = (store.config.repository, session, 0);
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Commit, identity, &body).unwrap();
    store.objects.create(SessionId([9; 16]), ObjectName::Commit(session), &bytes).unwrap()
}

fn step(store: &Store, number: u32, step: CollectionStep, containers: &[ContainerId]) {
    let body = CollectionBody::new(step, containers.to_vec()).encode();
    let identity = (store.config.repository, SessionId([9; 16]), number);
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Collection, identity, &body).unwrap();
    let created = store.objects.create(SessionId([9; 16]), ObjectName::Collection(number, step), &bytes).unwrap();
    assert_eq!(created, Created::New);
}

fn kinds(store: &Store) -> Vec<CommitKind> {
    store.read_commits().unwrap().commits.iter().map(|commit| commit.body.kind).collect()
}

fn unended(store: &Store) -> Vec<SessionId> {
    let ended = store.list_sessions(Prefix::Commits).unwrap();
    store.list_sessions(Prefix::Sessions).unwrap().difference(&ended).copied().collect()
}

fn small_source(seed: u64) -> MemTree {
    let source = tree(12);
    for number in 0..6 {
        source.put_file(Path::new(&format!("/d/file{number}")), &noise(seed + number, 40_000));
    }
    source
}

/// A session that died right after it had published a container, and was fenced since, may have left a name that is not
/// durable. Whoever refers to such a container makes it durable first.
#[test]
fn a_power_cut_takes_nothing_back_that_a_fenced_session_left() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let source = small_source(10);
    let before = world.disk.fork();
    let whole = world.on(before.fork());
    let first = whole.disk.calls();
    whole.backup(&whole.open().unwrap(), &source, &Ask::default()).unwrap();
    let calls = whole.disk.calls() - first;
    let mut relied = 0;
    for call in 1..=calls {
        let died = world.on(before.fork());
        let opened = died.open().unwrap();
        died.disk.fail_at(died.disk.calls() + call, Fault::Die);
        if died.backup(&opened, &source, &Ask::default()).is_ok() {
            continue;
        }
        // The process is dead, the machine is not: nothing that was not synced is lost yet.
        let next = died.on(died.disk.reopen());
        let store = next.open().unwrap();
        for session in unended(&store) {
            assert_eq!(fence(&store, session), Created::New);
        }
        let left = containers(&store).len();
        let report = next.backup(&store, &source, &Ask::default()).unwrap().report;
        relied += u64::from(0 < left && report.chunks.data_unique < 6 * 5);
        for mode in [CrashMode::LoseUnsynced, CrashMode::Subset(call)] {
            let after = next.on(next.disk.crash(mode));
            let (restored, restore) = after.restore(&after.open().unwrap(), &report.snapshot).unwrap();
            assert_eq!((restore.failures, source.diff(&restored)), (0, Vec::new()), "call {call}, {mode:?}");
        }
    }
    drop(store);
    assert!(relied > 3, "{relied} backups met containers of a fenced session");
}

#[test]
fn a_backup_that_fails_ends_its_session() {
    let world = World::new(4);
    world.create(SMALL).unwrap();
    let source = small_source(20);
    let before = world.disk.fork();
    let whole = world.on(before.fork());
    let store = whole.open().unwrap();
    let first = whole.disk.calls();
    whole.backup(&store, &source, &Ask::default()).unwrap();
    let calls = whole.disk.calls() - first;
    let (mut ended, mut known) = (0, 0);
    for call in 1..=calls {
        let run = world.on(before.fork());
        let store = run.open().unwrap();
        run.disk.fail_at(run.disk.calls() + call, Fault::Error(ErrorKind::StorageFull));
        let outcome = run.backup(&store, &source, &Ask::default());
        run.disk.clear_faults();
        let unended = unended(&store);
        match outcome {
            // A session object whose creation failed may exist all the same; nothing was stored in it.
            Err(_) if containers(&store).is_empty() => {}
            Err(Error::UnknownState { .. }) => {}
            Err(error) => {
                assert_eq!(unended, [], "call {call}: {error}");
                ended += 1;
            }
            Ok(_) => known += 1,
        }
        assert!(unended.len() <= 1);
    }
    assert!(10 < ended && 0 < known, "{ended} ended, {known} succeeded");
}

#[test]
fn an_interrupted_backup_ends_its_session_and_the_next_one_uses_what_it_stored() {
    #[derive(Debug)]
    struct Stop(std::sync::atomic::AtomicU64);
    impl Monitor for Stop {
        fn is_interrupted(&self) -> bool {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 1
        }
    }
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let source = tree(60);
    source.put_file(Path::new("/d/large"), &noise(7, 900_000));
    let ask = Ask { monitor: std::sync::Arc::new(Stop(0.into())), ..Ask::default() };
    let outcome = world.backup(&store, &source, &ask);
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    assert_eq!((kinds(&store), unended(&store)), (vec![CommitKind::Done], Vec::new()));
    world.backup(&store, &source, &Ask::default()).unwrap();
    assert_eq!(kinds(&store).len(), 2);
}

#[test]
fn a_session_shows_heartbeats_and_removes_them() {
    let world = World::new(6);
    let store = world.create(SMALL).unwrap();
    let session = Session::begin(&store, &Scratch::default(), SessionKind::Backup, "host").unwrap();
    let signs = || {
        let names = store.list(Prefix::Sessions).unwrap();
        names.into_iter().filter(|name| matches!(name, ObjectName::Heartbeat(..))).collect::<Vec<_>>()
    };
    session.beat();
    assert_eq!(signs(), []);
    for count in 1..=3 {
        world.simulated.set_step(Duration::from_secs(301));
        session.beat();
        world.simulated.set_step(Duration::ZERO);
        session.beat();
        assert_eq!(signs(), [ObjectName::Heartbeat(session.id, count)]);
        // They are known to a check.
        assert_clean(&world, &store, "a heartbeat");
    }
    // A sign is nobody's session.
    assert_eq!(store.list_sessions(Prefix::Sessions).unwrap(), BTreeSet::from([session.id]));
    assert_eq!(session.end().unwrap(), None);
    assert_eq!(signs(), []);
}

#[test]
fn what_a_final_leaves_out_counts_again_before_its_collection_is_done() {
    let world = World::new(7);
    let store = world.create(SMALL).unwrap();
    let source = small_source(30);
    world.backup(&store, &source, &Ask::default()).unwrap();
    let all: Vec<ContainerId> = containers(&store).iter().map(|container| container.name.id).collect();
    step(&store, 1, CollectionStep::Condemn, &all);
    assert_eq!(store.read_absent().unwrap().containers, all.iter().copied().collect());
    let (gone, rescued) = all.split_first().unwrap();
    step(&store, 1, CollectionStep::Final, &[*gone]);
    assert_eq!(store.read_absent().unwrap().containers, [*gone].into_iter().collect());
    // Relying on a rescued container makes the name durable that rescued it.
    let after = world.on(world.disk.crash(CrashMode::LoseUnsynced));
    let session = Session::begin(&after.open().unwrap(), &Scratch::default(), SessionKind::Backup, "host").unwrap();
    assert_eq!(session.live.len(), rescued.len());
    // A final that cannot be read counts as none: `condemn` names at least as much.
    let path = Path::new("gc/00000001/final");
    let file = world.repo().open(path, onefold_engine::io::Access::ReadWrite).unwrap();
    file.write_at(70, b"?").unwrap();
    let absent = store.read_absent().unwrap();
    assert!(all.iter().all(|id| absent.is_undecided(*id)) && absent.is_condemning);
    let listed = store.list_containers(&Scratch::default()).unwrap();
    assert_eq!((absent.live(&listed).len(), listed.len()), (0, all.len()));
}

/// A repository whose only backup died when it had published its first container.
fn with_a_container_in_doubt(seed: u64) -> World {
    let world = World::new(seed);
    drop(world.create(SMALL).unwrap());
    let source = small_source(40);
    (1..)
        .find_map(|call| {
            let died = world.on(world.disk.fork());
            let opened = died.open().unwrap();
            died.disk.fail_at(died.disk.calls() + call, Fault::Die);
            let failed = died.backup(&opened, &source, &Ask::default()).is_err();
            let next = died.on(died.disk.reopen());
            (failed && !containers(&next.open().unwrap()).is_empty()).then_some(next)
        })
        .unwrap()
}

/// A file system that cannot exchange two names leaves the container as it is: it is not referred to, and the session goes on. Any
/// other error ends the session, as its containers may be lost.
#[test]
fn a_container_that_cannot_be_written_again_is_not_referred_to() {
    let base = with_a_container_in_doubt(9);
    let make_durable = |fault: Option<(u64, ErrorKind)>| {
        let run = base.on(base.disk.fork());
        let store = run.open().unwrap();
        let session = Session::begin(&store, &Scratch::default(), SessionKind::Backup, "host").unwrap();
        let name = session.live.names().next().unwrap().unwrap();
        if let Some((call, kind)) = fault {
            run.disk.fail_at(run.disk.calls() + call, Fault::Error(kind));
        }
        run.disk.record_trace();
        let outcome = session.make_durable(&[name], &|| false);
        let unusable = outcome.map(|unusable| unusable.into_iter().map(|(unusable, _)| unusable == name).collect());
        let exchange = run.disk.trace().iter().position(|entry| entry.operation == "exchange").unwrap();
        (unusable, exchange as u64 + 1)
    };
    let (calm, exchange): (Result<Vec<bool>, Error>, u64) = make_durable(None);
    assert_eq!(calm.unwrap(), []);
    assert_eq!(make_durable(Some((exchange, ErrorKind::Unsupported))).0.unwrap(), [true]);
    assert!(make_durable(Some((exchange, ErrorKind::Other))).0.is_err());
}

/// A disk on which a collection fences a session and deletes a container while the session writes it again.
#[test]
fn a_container_that_is_deleted_while_it_is_written_again_does_not_come_back() {
    let next = with_a_container_in_doubt(8);
    let store = next.open().unwrap();
    let session = Session::begin(&store, &Scratch::default(), SessionKind::Backup, "host").unwrap();
    let name = session.live.names().next().unwrap().unwrap();
    let bytes = store.read_verified(&name).unwrap();
    let again = store
        .objects
        .put_again(session.id, name.into(), &onefold_engine::object::bytes::ObjectBytes::copy_of(&bytes))
        .unwrap();
    store.objects.delete(&[name.into()]).unwrap();
    assert_eq!(fence(&store, session.id), Created::New);
    let error = store.objects.barrier(vec![again]).unwrap_err();
    assert_eq!(store.objects.len(name.into()).unwrap(), None);
    assert!(matches!(session.abandon(error), Error::Fenced { .. }));
    let own = |name: &str| name.starts_with(&session.id.to_string());
    assert!(next.repo().list(Path::new("tmp")).unwrap().iter().all(|entry| !own(&entry.name)));
}

#[test]
fn a_fenced_session_whose_directory_is_gone_says_that_it_was_fenced() {
    let world = World::new(9);
    let store = world.create(SMALL).unwrap();
    let session = Session::begin(&store, &Scratch::default(), SessionKind::Backup, "host").unwrap();
    assert_eq!(fence(&store, session.id), Created::New);
    let lost = Error::Missing { object: "containers".to_owned() };
    assert!(matches!(session.abandon(lost), Error::Fenced { session: fenced } if fenced == session.id));
    // A disk that is dead hides the fence: the first error is reported.
    world.disk.fail_at(world.disk.calls() + 1, Fault::Die);
    let lost = session.abandon(Error::Interrupted);
    assert!(matches!(lost, Error::Interrupted), "{lost}");
    assert!(!SimDisk::is_crash(&lost));
}

#[test]
fn leftovers_of_ended_sessions_are_removed_and_others_stay() {
    let world = World::new(11);
    let store = world.create(SMALL).unwrap();
    let begin = || Session::begin(&store, &Scratch::default(), SessionKind::Backup, "host").unwrap();
    let (running, fenced, ended) = (begin(), begin(), begin());
    assert_eq!(fence(&store, fenced.id), Created::New);
    assert_eq!(ended.end().unwrap(), None);
    world.backup(&store, &small_source(60), &Ask::default()).unwrap();
    let [(committed, _)] = store.read_commits().unwrap().snapshots()[..] else { panic!("there is one snapshot") };
    let repo = world.repo();
    let names = |session: SessionId| [format!("tmp/{session}-00000001"), format!("tmp/{session}-00000002")];
    let of_ended = [fenced.id, ended.id, committed].into_iter().flat_map(names);
    let stay = names(running.id).into_iter().chain(["tmp/notes".to_owned()]);
    for name in of_ended.clone().chain(stay.clone()) {
        repo.create(Path::new(&name)).unwrap().write_at(0, &[1; 10]).unwrap();
    }
    let listed = |repo: &dyn onefold_engine::io::Disk| {
        let stands = |name: &String| repo.exists(Path::new(name)).unwrap();
        (of_ended.clone().filter(stands).count(), stay.clone().filter(stands).count())
    };
    assert_eq!(listed(&*repo), (6, 3));
    let leftovers = store.remove_leftovers().unwrap();
    assert_eq!((leftovers.removed, leftovers.removed_bytes, leftovers.kept), (6, 60, 3));
    assert_eq!(listed(&*repo), (0, 3));
    // The running session goes on.
    assert_eq!(running.end().unwrap(), None);
    assert_eq!(store.remove_leftovers().unwrap().removed, 2);
}
