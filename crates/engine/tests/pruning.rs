//! Space given back: what a prune removes, and what it must not.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::check::{CheckRequest, CheckedSnapshots, Finding, ReadData, Severity, check};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{Copies, PruneReport, PruneRequest, PruneState, give_up, plan_prune, prune};
use onefold_engine::compress::Compression;
use onefold_engine::error::Result;
use onefold_engine::forget::Forgetting;
use onefold_engine::io::Disk;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{CollectionStep, ContainerKind, ObjectName, Prefix};
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::{CommitBody, CommitKind, ForgetBody, SessionKind};
use onefold_engine::store::create::Adjustments;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, TraceEntry};
use onefold_engine::types::{ContainerId, SessionId};

use crate::integration::condemned::{collect, condemn};
use crate::integration::support::{
    Ask, SMALL, SMALL_1, World, change, container_names, containers, copy, noise, stored_twice, tell, tree,
};

/// A prune that waits for nobody and copies what frees anything.
pub(super) fn request(world: &World, _: &Store) -> PruneRequest {
    PruneRequest {
        options: PruneOptions { max_unused: MaxUnused::Bytes(0), max_repack_bytes: u64::MAX, repack_below_bytes: 0 },
        quick: false,
        fence_after: Duration::ZERO,
        wait: Duration::ZERO,
        keep_deleted: Duration::ZERO,
        keep_unfinished: Duration::ZERO,
        trust_copies: false,
        copies: Copies::mostly_as_stored(Compression::Zstd(1)),
        hostname: "collector".into(),
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
    }
}

fn prune_all(world: &World, store: &Store) -> Result<PruneReport> {
    prune(store, &request(world, store), &Silent)
}

pub(super) fn forget(store: &Store, session: SessionId) -> Result<()> {
    Forgetting::begin(store, &ForgetBody::default())?.forget(session).map(|_| ())
}

fn stored_bytes(store: &Store) -> u64 {
    container_names(store).iter().map(|name| store.container_len(name).unwrap()).sum()
}

pub(super) fn assert_clean(world: &World, store: &Store, case: &str) {
    let findings = findings(world, store, case);
    assert!(findings.is_empty(), "{case}: {findings:?}");
}

/// Checks every byte of a repository.
pub(super) fn findings(world: &World, store: &Store, case: &str) -> Vec<Finding> {
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
    check(store, &request, &Silent).unwrap_or_else(|error| panic!("{case}: check: {error}")).findings
}

pub(super) fn assert_restores(world: &World, store: &Store, session: SessionId, source: &MemTree, case: &str) {
    let commits = store.read_commits().unwrap();
    let snapshots = commits.snapshots();
    let (_, snapshot) = snapshots.iter().find(|(id, _)| *id == session).unwrap_or_else(|| panic!("{case}: {session}"));
    let (restored, report) = world.restore(store, snapshot).unwrap_or_else(|error| panic!("{case}: restore: {error}"));
    assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
}

/// Three versions of a source: files that stay, files of one version only, and files of which a part changes.
pub(super) fn versions() -> Vec<MemTree> {
    let first = tree(8);
    for number in 0..4 {
        first.put_file(Path::new(&format!("/d/stays-{number}")), &noise(number, 30_000));
        first.put_file(Path::new(&format!("/d/changes-{number}")), &noise(100 + number, 30_000));
    }
    let mut versions = vec![first];
    for version in 1..3 {
        let next = copy(&versions[version - 1]);
        if version == 1 {
            change(&next);
        }
        for number in 0..4 {
            let seed = 100 * (version as u64 + 1) + number;
            next.put_file(Path::new(&format!("/d/changes-{number}")), &noise(seed, 30_000));
        }
        versions.push(next);
    }
    versions
}

pub(super) fn back_up_all(world: &World, store: &Store, versions: &[MemTree]) -> Vec<SessionId> {
    let ask = Ask { with_parent: true, ..Ask::default() };
    versions.iter().map(|version| world.backup(store, version, &ask).unwrap().report.session).collect()
}

#[test]
fn what_only_forgotten_snapshots_need_goes_and_everything_else_stays() {
    for kept in [vec![0, 1, 2], vec![0, 2], vec![1], vec![2], vec![]] {
        let case = format!("{kept:?} kept");
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        for (number, session) in sessions.iter().enumerate().filter(|(number, _)| !kept.contains(number)) {
            assert!(number < 3);
            forget(&store, *session).unwrap();
        }
        let before = stored_bytes(&store);
        let planned = plan_prune(&store, &request(&world, &store), &Silent).unwrap();
        assert_eq!(stored_bytes(&store), before);
        let report = prune_all(&world, &store).unwrap();
        assert_eq!(report.state, PruneState::Done, "{case}");
        assert_eq!(report.plan, planned.plan, "{case}");
        let after = stored_bytes(&store);
        assert_eq!(before - after, report.deleted_bytes - report.written_bytes, "{case}");
        assert_eq!(after < before, kept.len() < 3, "{case}: {before} -> {after}");
        if kept.is_empty() {
            assert_eq!(after, 0, "{case}");
        }
        for number in &kept {
            assert_restores(&world, &store, sessions[*number], &versions[*number], &case);
        }
        assert_clean(&world, &store, &case);
        // Nothing is left for another prune.
        let again = prune_all(&world, &store).unwrap();
        assert_eq!((again.deleted_containers, again.written_containers), (0, 0), "{case}: {again:?}");
        // Later backups go on with what is there.
        let next = world.backup(&store, &versions[1], &Ask { with_parent: true, ..Ask::default() }).unwrap();
        assert_restores(&world, &store, next.report.session, &versions[1], &case);
        assert_eq!(stored_twice(&store), Vec::new(), "{case}");
        assert_clean(&world, &store, &case);
    }
}

#[test]
fn a_prune_waits_for_a_backup_and_the_next_one_goes_on() {
    let world = World::new(2);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    forget(&store, sessions[0]).unwrap();
    let writer = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(&world, &store) };
    let before = containers(&store).len();
    for _ in 0..2 {
        let report = prune(&store, &patient, &Silent).unwrap();
        let PruneState::Waiting(waited) = report.state else { panic!("{report:?}") };
        assert_eq!(
            waited.iter().map(|session| (session.id, &*session.hostname)).collect::<Vec<_>>(),
            [(writer.id, "writer")]
        );
        assert!(before <= containers(&store).len());
    }
    writer.end().unwrap();
    let report = prune(&store, &patient, &Silent).unwrap();
    assert!(report.state == PruneState::Done && 0 < report.deleted_containers, "{report:?}");
    assert_restores(&world, &store, sessions[2], &versions[2], "after waiting");
    assert_clean(&world, &store, "after waiting");
}

#[test]
fn a_prune_does_not_wait_for_a_backup_of_its_host_that_was_killed() {
    let world = World::new(20);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    forget(&store, sessions[0]).unwrap();
    let killed = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    world.disk.fail_at(world.disk.calls() + 1, Fault::Die);
    assert!(killed.end().is_err());
    let world = world.on(world.disk.reopen());
    let store = world.open().unwrap();
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(&world, &store) };
    // Another host, or a cache elsewhere, has to wait.
    let elsewhere = PruneRequest { scratch: Scratch { dir: "elsewhere".into(), ..world.scratch() }, ..patient };
    world.cache().create_dir(Path::new("elsewhere")).unwrap();
    let report = prune(&store, &elsewhere, &Silent).unwrap();
    assert!(matches!(report.state, PruneState::Waiting(_)), "{report:?}");
    let patient = PruneRequest { scratch: world.scratch(), ..elsewhere };
    let report = prune(&store, &patient, &Silent).unwrap();
    assert_eq!((report.state, report.fenced), (PruneState::Done, vec![killed.id]));
    assert_clean(&world, &store, "after a killed backup");
    // The next session of the host removes the lock's file.
    let lock = Path::new("sessions").join(killed.id.to_string());
    assert!(world.cache().exists(&lock).unwrap());
    back_up_all(&world, &store, &versions[..1]);
    assert!(!world.cache().exists(&lock).unwrap());
}

#[test]
fn a_prune_that_is_given_up_deletes_nothing() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let sessions = back_up_all(&world, &store, &versions());
    forget(&store, sessions[0]).unwrap();
    assert_eq!(give_up(&store, "host").unwrap(), None);
    let writer = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(&world, &store) };
    prune(&store, &patient, &Silent).unwrap();
    let before = containers(&store).len();
    assert_eq!(give_up(&store, "host").unwrap(), Some(1));
    assert_eq!((give_up(&store, "host").unwrap(), containers(&store).len()), (None, before));
    writer.end().unwrap();
    assert!(0 < prune_all(&world, &store).unwrap().deleted_containers);
}

#[test]
fn a_snapshot_that_cannot_be_read_stops_a_prune() {
    let world = World::new(4);
    let store = world.create(SMALL).unwrap();
    let sessions = back_up_all(&world, &store, &versions());
    forget(&store, sessions[0]).unwrap();
    let before = containers(&store).len();
    world.disk.damage(format!("repo/commits/{}", sessions[1]), |bytes| bytes[200] ^= 1);
    let error = prune_all(&world, &store).unwrap_err();
    assert!(error.to_string().contains(&sessions[1].to_string()), "{error}");
    assert_eq!(containers(&store).len(), before);
    let open = store.list_sessions(Prefix::Sessions).unwrap();
    let ended: BTreeSet<SessionId> = store.list_sessions(Prefix::Commits).unwrap();
    assert!(open.is_subset(&ended), "the collector has ended its session");
}

/// The commit of a session, as another collector fences it.
fn fence(world: &World, store: &Store, session: SessionId) {
    let identity = (store.config.repository, session, 0);
    let body = CommitBody::without_snapshot(CommitKind::Fence).encode();
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Commit, identity, &body).unwrap();
    let path = format!("repo/commits/{session}");
    let file = world.disk.create(Path::new(&path)).unwrap();
    file.write_at(0, &bytes).unwrap();
}

/// Without its commit, a session seems not to have ended: a collection would fence the session, and delete what it has stored.
#[test]
fn a_commit_that_another_one_names_and_that_is_gone_stops_a_prune_until_it_is_back_or_forgotten() {
    for is_replaced in [false, true] {
        let world = World::new(14);
        let store = world.create(SMALL).unwrap();
        let versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        let before = container_names(&store);
        let commit = ObjectName::Commit(sessions[1]).path();
        let bytes = store.read(ObjectName::Commit(sessions[1]), 1 << 20).unwrap();
        world.repo().remove(&commit).unwrap();
        if is_replaced {
            fence(&world, &store, sessions[1]);
        }
        let asked = [false, true].map(|quick| PruneRequest { quick, ..request(&world, &store) });
        for request in &asked {
            for error in
                [prune(&store, request, &Silent).unwrap_err(), plan_prune(&store, request, &Silent).unwrap_err()]
            {
                let text = error.to_string();
                assert!(text.contains(&sessions[1].to_string()) && text.contains(&sessions[2].to_string()), "{text}");
            }
        }
        assert_eq!(container_names(&store), before);
        assert_eq!(world.repo().exists(&commit).unwrap(), is_replaced, "it was fenced");
        // Back from a copy of the repository.
        let back = world.on(world.disk.fork());
        if is_replaced {
            back.repo().remove(&commit).unwrap();
        }
        let file = back.repo().create(&commit).unwrap();
        file.write_at(0, &bytes).unwrap();
        let store = back.open().unwrap();
        assert!(0 < prune_all(&back, &store).unwrap().deleted_containers);
        for version in [1, 2] {
            assert_restores(&back, &store, sessions[version], &versions[version], "the commit is back");
        }
        let store = world.open().unwrap();
        assert_eq!(store.read_commits().unwrap().find_unreadable(&sessions[1].to_string()), Some(sessions[1]));
        forget(&store, sessions[1]).unwrap();
        assert!(0 < prune_all(&world, &store).unwrap().deleted_containers);
        assert_restores(&world, &store, sessions[2], &versions[2], "forgotten");
        // The prune has fenced the session, or another one had.
        assert_clean(&world, &store, "forgotten");
    }
}

#[test]
fn a_commit_that_cannot_be_read_is_forgotten_by_its_id_and_stops_no_prune_then() {
    let world = World::new(15);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    world.disk.damage(format!("repo/commits/{}", sessions[1]), |bytes| bytes[200] ^= 1);
    prune_all(&world, &store).unwrap_err();
    let commits = store.read_commits().unwrap();
    let id = sessions[1].to_string();
    assert_eq!(commits.find_unreadable(&id), Some(sessions[1]));
    assert_eq!(commits.find_unreadable(&id[..31]), None, "only by the whole id");
    assert_eq!(commits.find_unreadable(&sessions[0].to_string()), None);
    forget(&store, sessions[1]).unwrap();
    assert!(0 < prune_all(&world, &store).unwrap().deleted_containers);
    for version in [0, 2] {
        assert_restores(&world, &store, sessions[version], &versions[version], "the others");
    }
}

/// A repository that has everything twice, which two backups do that do not see each other.
fn stored_again(seed: u64) -> (World, SessionId, MemTree) {
    let world = World::new(seed);
    let store = world.create(SMALL).unwrap();
    let source = versions().remove(0);
    let session = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let all: Vec<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
    condemn((&world, &store), 1, &all);
    let again = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    collect((&world, &store), 1, CollectionStep::Final, &[]);
    collect((&world, &store), 1, CollectionStep::Done, &[]);
    forget(&store, session).unwrap();
    assert!(!stored_twice(&store).is_empty());
    (world, again, source)
}

#[test]
fn a_copy_that_is_damaged_is_not_relied_upon_whichever_it_is() {
    let (world, session, source) = stored_again(16);
    let whole = world.on(world.disk.fork());
    let report = prune_all(&whole, &whole.open().unwrap()).unwrap();
    assert!(0 < report.deleted_containers && report.findings.is_empty(), "{report:?}");
    assert_eq!(stored_twice(&whole.open().unwrap()), Vec::new());
    let mut found = 0;
    for name in container_names(&world.open().unwrap()) {
        let run = world.on(world.disk.fork());
        let store = run.open().unwrap();
        let (offset, len) = store.open_container(&name).unwrap().region_range(0).unwrap();
        let at = usize::try_from(offset).unwrap() + len as usize / 2;
        run.disk.damage(Path::new("repo").join(name.path()), |bytes| bytes[at] ^= 1);
        let store = run.open().unwrap();
        let request = PruneRequest { trust_copies: false, ..request(&run, &store) };
        // The oracle asserts that nothing is lost. Nodes may be read from the other copy.
        match prune(&store, &request, &Silent) {
            Ok(report) => found += u64::from(!report.findings.is_empty()),
            Err(error) => panic!("{name}: {error}"),
        }
        assert_restores(&run, &store, session, &source, &name.to_string());
    }
    assert!(2 < found, "{found} damaged copies were relied upon at first");
}

/// The process that forgets dies before it has synced the directory.
#[test]
fn nothing_is_deleted_for_a_forget_that_a_power_cut_takes_back() {
    let world = World::new(17);
    let store = world.create(SMALL).unwrap();
    let versions = versions();
    let sessions = back_up_all(&world, &store, &versions);
    let calm = world.on(world.disk.fork());
    calm.disk.record_trace();
    forget(&calm.open().unwrap(), sessions[0]).unwrap();
    let sync = calm.disk.trace().into_iter().rfind(|call| call.operation == "sync directory").unwrap();
    assert!(sync.path.ends_with("forget"), "{sync:?}");
    for quick in [false, true] {
        let run = world.on(world.disk.fork());
        run.disk.fail_at(sync.number, Fault::Die);
        forget(&run.open().unwrap(), sessions[0]).unwrap_err();
        let run = world.on(run.disk.reopen());
        let store = run.open().unwrap();
        assert_eq!(store.read_commits().unwrap().snapshots().len(), 2, "the name is there");
        assert!(
            0 < prune(&store, &PruneRequest { quick, ..request(&run, &store) }, &Silent).unwrap().deleted_containers
        );
        let after = run.on(run.disk.crash(CrashMode::LoseUnsynced));
        let store = after.open().unwrap();
        for (session, _) in store.read_commits().unwrap().snapshots() {
            let version = sessions.iter().position(|known| *known == session).unwrap();
            assert_restores(&after, &store, session, &versions[version], "after a power cut");
        }
        assert_clean(&after, &store, "after a power cut");
    }
}

/// A repository with two snapshots that stay and two that were forgotten.
pub(super) struct Pruned {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
    copies: Copies,
}

impl Pruned {
    fn new(seed: u64) -> Self {
        Self::of(seed, SMALL, versions(), Copies::mostly_as_stored(Compression::Zstd(1)))
    }

    /// Makes a repository of three versions, to be pruned with these copies.
    pub(super) fn of(seed: u64, adjustments: Adjustments, mut versions: Vec<MemTree>, copies: Copies) -> Self {
        let world = World::new(seed);
        let store = world.create(adjustments).unwrap();
        let sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        let kept = sessions.into_iter().zip(versions.drain(..)).skip(1).collect();
        Self { world, kept, copies }
    }

    fn prune(&self, world: &World, store: &Store) -> Result<PruneReport> {
        prune(store, &PruneRequest { copies: self.copies, ..request(world, store) }, &Silent)
    }

    fn assert_sound(&self, world: &World, case: &str) {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        for (session, source) in &self.kept {
            assert_restores(world, &store, *session, source, case);
        }
        assert_clean(world, &store, case);
        let report = self.prune(world, &store).unwrap_or_else(|error| panic!("{case}: next prune: {error}"));
        assert_eq!(report.state, PruneState::Done, "{case}");
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
        let report = self.prune(&run, &store).unwrap();
        assert!(0 < report.deleted_containers);
        assert_eq!(0 < report.recompressed_regions, self.copies.recompresses, "{report:?}");
        let calls = run.disk.calls() - first;
        self.assert_sound(&run, "undisturbed");
        calls
    }
}

/// Returns all ways in which a call can fail, or, in a short run, one that the call's number chooses.
pub(super) fn each_or_one<T: Copy>(ways: &[T], call: u64) -> Vec<T> {
    if cfg!(feature = "slow") {
        return ways.to_vec();
    }
    vec![ways[usize::try_from(call).unwrap() % ways.len()]]
}

#[test]
fn an_error_at_any_call_of_a_prune_loses_nothing() {
    try_errors(&Pruned::new(5));
}

/// Returns true if a prune has only copied metadata whose hints had come out of date, as they do when a lack of space made another
/// copy of some chunks and the older one went.
fn is_for_hints(report: &PruneReport) -> bool {
    let plan = &report.plan;
    plan.removed_containers == 0 && plan.copied_containers == plan.refreshed_containers
}

/// Prunes with an error at each call.
pub(super) fn try_errors(pruned: &Pruned) {
    let calls = pruned.calls();
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
            let run = pruned.world.on(pruned.world.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(run.disk.calls() + call, fault);
            let outcome = pruned.prune(&run, &store);
            run.disk.clear_faults();
            failed += u64::from(outcome.is_err());
            if let Ok(report) = &outcome
                && !report.lacks_space
                && report.findings.is_empty()
            {
                let mut left = pruned.prune(&run, &store).unwrap();
                if pruned.copies.recompresses && is_for_hints(&left) {
                    left = pruned.prune(&run, &store).unwrap();
                }
                let left = (left.deleted_containers, left.written_containers);
                assert_eq!(left, (0, 0), "{fault:?} at call {call}: success, and work is left: {report:?}");
            }
            pruned.assert_sound(&run, &format!("{fault:?} at call {call}: {:?}", outcome.err()));
        }
    }
    tell(&format!("errors at {calls} calls of a prune: {failed} prunes failed, nothing lost"));
    assert!(calls / 3 < failed);
}

#[test]
fn a_crash_at_any_call_of_a_prune_loses_nothing() {
    try_crashes(&Pruned::new(6));
}

/// Prunes with a crash at each call.
pub(super) fn try_crashes(pruned: &Pruned) {
    let calls = pruned.calls();
    let mut images = 0;
    for call in 1..=calls {
        let run = pruned.world.on(pruned.world.disk.fork());
        let store = run.open().unwrap();
        run.disk.fail_at(run.disk.calls() + call, if call % 2 == 0 { Fault::Die } else { Fault::DieAfter });
        let _died = pruned.prune(&run, &store);
        let modes = [
            Some(CrashMode::LoseUnsynced),
            Some(CrashMode::Subset(call)),
            None,
            Some(CrashMode::KeepAll),
            Some(CrashMode::Torn(call)),
        ];
        for mode in each_or_one(&modes, call) {
            let after = mode.map_or_else(|| run.disk.reopen(), |mode| run.disk.crash(mode));
            pruned.assert_sound(&run.on(after), &format!("crash at call {call}, {mode:?}"));
            images += 1;
        }
    }
    tell(&format!("crashes at {calls} calls of a prune: {images} images, nothing lost"));
}

/// Does what `forget --prune` does.
fn forget_and_prune(world: &World, session: SessionId) -> Result<PruneReport> {
    let store = world.open()?;
    forget(&store, session)?;
    prune_all(world, &store)
}

#[test]
fn an_error_or_a_crash_at_any_call_of_forget_and_prune_loses_nothing() {
    let world = World::new(18);
    let store = world.create(SMALL).unwrap();
    let sources = versions();
    let sessions = back_up_all(&world, &store, &sources);
    let kept = sessions.iter().copied().zip(sources).skip(1).collect();
    let pruned = Pruned { world, kept, copies: Copies::mostly_as_stored(Compression::Zstd(1)) };
    let start = || pruned.world.on(pruned.world.disk.fork());
    let calm = start();
    assert!(0 < forget_and_prune(&calm, sessions[0]).unwrap().deleted_containers);
    let calls = calm.disk.calls();
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::Die,
        Fault::DiskFull,
        Fault::DieAfter,
        Fault::ErrorAfter(ErrorKind::Other),
        Fault::Error(ErrorKind::StorageFull),
        Fault::ErrorAfter(ErrorKind::AlreadyExists),
    ];
    let mut failed = 0;
    for call in 1..=calls {
        for fault in each_or_one(&faults, call) {
            let run = start();
            run.disk.fail_at(call, fault);
            let outcome = forget_and_prune(&run, sessions[0]);
            run.disk.clear_faults();
            failed += u64::from(outcome.is_err());
            let after = match fault {
                Fault::Die if call % 3 == 0 => run.disk.reopen(),
                Fault::Die => run.disk.crash(CrashMode::LoseUnsynced),
                Fault::DieAfter => run.disk.crash(CrashMode::Torn(call)),
                _ => run.disk.fork(),
            };
            let (after, case) = (run.on(after), format!("{fault:?} at call {call}"));
            let store = after.open().unwrap();
            let listed = store.read_commits().unwrap();
            if let Some((_, snapshot)) = listed.snapshots().into_iter().find(|(session, _)| *session == sessions[0]) {
                assert!(outcome.is_err(), "{case}: success, and the snapshot is there");
                let (restored, report) = after.restore(&store, snapshot).unwrap();
                assert_eq!((report.failures, versions()[0].diff(&restored)), (0, Vec::new()), "{case}");
            }
            pruned.assert_sound(&after, &case);
            forget_and_prune(&after, sessions[0]).unwrap_or_else(|error| panic!("{case}: again: {error}"));
            assert_clean(&after, &store, &case);
        }
    }
    tell(&format!("errors and crashes at {calls} calls of forget and prune: {failed} runs failed, nothing lost"));
    assert!(calls / 3 < failed);
}

#[test]
fn a_fenced_collector_reports_its_work() {
    let world = World::new(7);
    let store = world.create(SMALL).unwrap();
    let sessions = back_up_all(&world, &store, &versions());
    forget(&store, sessions[0]).unwrap();
    let other = Session::create(&store, &world.scratch(), SessionKind::Collection, "other").unwrap();
    let report = prune_all(&world, &store).unwrap();
    assert_eq!(report.fenced, [other.id]);
    assert!(matches!(other.abandon(Error::Interrupted), Error::Fenced { .. }));
}

#[test]
fn a_prune_on_a_full_disk_frees_everything_and_loses_nothing() {
    let pruned = Pruned::new(8);
    let before = stored_bytes(&pruned.world.open().unwrap());
    for kibibytes in [2, 20, 60, 100, 150, 200, 300, 500, 1000] {
        let run = pruned.world.on(pruned.world.disk.fork());
        let store = run.open().unwrap();
        run.disk.limit_space(Some(kibibytes << 10));
        let outcome = prune_all(&run, &store);
        run.disk.limit_space(None);
        let case = format!("{kibibytes} KiB free");
        let report = outcome.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(0 < report.deleted_containers && stored_bytes(&store) < before, "{case}: {report:?}");
        // What is removed makes space for copies.
        assert!(!report.lacks_space, "{case}: {report:?}");
        let again = prune_all(&run, &store).unwrap();
        assert_eq!((again.deleted_containers, again.written_containers), (0, 0), "{case}: {report:?}, {again:?}");
        pruned.assert_sound(&run, &case);
    }
}

/// A sync of a directory that fails for lack of space loses names that stay visible until the power is cut.
#[test]
fn copies_whose_names_a_failed_sync_has_lost_are_not_relied_upon() {
    let pruned = Pruned::new(13);
    let calm = pruned.world.on(pruned.world.disk.fork());
    let store = calm.open().unwrap();
    calm.disk.record_trace();
    assert!(0 < prune_all(&calm, &store).unwrap().written_containers);
    let publishes = |call: &&TraceEntry| {
        let in_containers = call.path.starts_with("repo/containers");
        (call.operation == "sync directory" && in_containers) || (call.operation == "rename")
    };
    let trace = calm.disk.trace();
    let calls: Vec<(u64, &str)> = trace.iter().filter(publishes).map(|call| (call.number, call.operation)).collect();
    assert!(["rename", "sync directory"].iter().all(|which| calls.iter().any(|(_, operation)| operation == which)));
    for (call, operation) in calls {
        for fault in [Fault::Error(ErrorKind::StorageFull), Fault::ErrorAfter(ErrorKind::StorageFull)] {
            let run = pruned.world.on(pruned.world.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(call, fault);
            let outcome = prune_all(&run, &store);
            run.disk.clear_faults();
            let case = format!("{fault:?} at a {operation}, call {call}: {:?}", outcome.err());
            for mode in [CrashMode::LoseUnsynced, CrashMode::Subset(call)] {
                pruned.assert_sound(&run.on(run.disk.crash(mode)), &format!("{case}, {mode:?}"));
            }
        }
    }
}

#[test]
fn a_container_that_cannot_be_read_stays_and_does_not_stop_a_prune() {
    // In format 2 it may depend on any container of data, so that none of these is deleted.
    for (adjustments, findings) in [(SMALL_1, 1), (SMALL, 2)] {
        let case = format!("{:?}", adjustments.format);
        let pruned = Pruned::of(9, adjustments, versions(), Copies::mostly_as_stored(Compression::Zstd(1)));
        let store = pruned.world.open().unwrap();
        let whole = pruned.world.on(pruned.world.disk.fork());
        let deleted = prune_all(&whole, &whole.open().unwrap()).unwrap().deleted_containers;
        // A container of the forgotten snapshot.
        let before = container_names(&store);
        let forgotten = before.iter().find(|name| !pruned.kept.iter().any(|(id, _)| *id == name.id.session));
        let name = *forgotten.unwrap();
        assert_eq!(name.kind, ContainerKind::Data, "{case}");
        pruned.world.disk.damage(format!("repo/{}", ObjectName::from(name)), |bytes| bytes.fill(7));
        let report = prune_all(&pruned.world, &store).unwrap();
        assert_eq!(report.findings.len(), findings, "{case}: {report:?}");
        assert!(report.findings.iter().all(|finding| finding.contains(&name.to_string())), "{case}: {report:?}");
        let after = container_names(&store);
        assert!(after.contains(&name), "{case}");
        let is_deleted = |kind| before.iter().any(|name| name.kind == kind && !after.contains(name));
        assert_eq!([ContainerKind::Data, ContainerKind::Metadata].map(is_deleted), [findings == 1, true], "{case}");
        assert!(0 < report.deleted_containers && report.deleted_containers < deleted, "{case}: {report:?}");
    }
}

#[test]
fn a_backup_after_prunes_reads_no_file_that_has_not_changed() {
    let pruned = Pruned::new(11);
    let store = pruned.world.open().unwrap();
    let report = prune_all(&pruned.world, &store).unwrap();
    assert!(0 < report.written_containers, "{report:?}");
    let (_, source) = pruned.kept.last().unwrap();
    let ask = Ask { with_parent: true, ..Ask::default() };
    // A prune without work publishes an empty decision; the others forget the snapshot before the last.
    for case in ["after a prune", "after a prune without work", "after another prune"] {
        let backup = pruned.world.backup(&store, source, &ask).unwrap().report;
        let summary = backup.snapshot.summary;
        assert_eq!((summary.files_new, summary.files_changed), (0, 0), "{case}: {summary:?}");
        assert_restores(&pruned.world, &store, backup.session, source, case);
        if case == "after a prune without work" {
            let commits = store.read_commits().unwrap();
            let oldest = commits.snapshots()[0].0;
            forget(&store, oldest).unwrap();
            assert!(0 < prune_all(&pruned.world, &store).unwrap().deleted_containers);
        } else {
            prune_all(&pruned.world, &store).unwrap();
        }
    }
}

#[test]
fn a_container_that_is_lost_after_a_prune_is_found() {
    let pruned = Pruned::new(12);
    let store = pruned.world.open().unwrap();
    prune_all(&pruned.world, &store).unwrap();
    for name in container_names(&store) {
        let run = pruned.world.on(pruned.world.disk.fork());
        let store = run.open().unwrap();
        run.repo().remove(Path::new(&ObjectName::from(name).to_string())).unwrap();
        let found = findings(&run, &store, "a needed container");
        assert!(found.iter().any(|finding| finding.severity == Severity::Damage), "{name}: {found:?}");
    }
    // One that no snapshot needs is reported as well, and is no damage.
    forget(&store, pruned.kept[0].0).unwrap();
    let needed = pruned.world.on(pruned.world.disk.fork());
    prune_all(&needed, &needed.open().unwrap()).unwrap();
    let needed: BTreeSet<String> = container_names(&needed.open().unwrap()).iter().map(ToString::to_string).collect();
    let session = pruned.kept[0].0;
    let unneeded = container_names(&store)
        .into_iter()
        .find(|name| name.id.session == session && !needed.contains(&name.to_string()));
    pruned.world.repo().remove(Path::new(&ObjectName::from(unneeded.unwrap()).to_string())).unwrap();
    let found = findings(&pruned.world, &store, "an unneeded container");
    assert!(!found.is_empty());
}
