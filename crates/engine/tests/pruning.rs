//! Space given back: what a prune removes, and what it must not.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::check::{CheckRequest, CheckedSnapshots, Finding, ReadData, Severity, check};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{PruneReport, PruneRequest, PruneState, give_up, plan_prune, prune};
use onefold_engine::compress::Compression;
use onefold_engine::error::Result;
use onefold_engine::forget::Forgetting;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{ObjectName, Prefix};
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::{ForgetBody, SessionKind};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault};
use onefold_engine::types::SessionId;

use crate::integration::support::{
    Ask, SMALL, World, change, container_names, containers, copy, noise, stored_twice, tell, tree,
};

/// A prune that waits for nobody and copies what frees anything.
pub(super) fn request(world: &World, store: &Store) -> PruneRequest {
    PruneRequest {
        options: PruneOptions {
            max_unused: MaxUnused::Bytes(0),
            max_repack_bytes: u64::MAX,
            repack_small: false,
            container_bytes: store.config.container_bytes,
        },
        quick: false,
        fence_after: Duration::ZERO,
        wait: Duration::ZERO,
        keep_deleted: Duration::ZERO,
        keep_unfinished: Duration::ZERO,
        trust_copies: false,
        compression: Compression::Zstd(1),
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
fn findings(world: &World, store: &Store, case: &str) -> Vec<Finding> {
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::All,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        seed: None,
        heads: None,
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

/// A repository with two snapshots that stay and two that were forgotten.
struct Pruned {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
}

impl Pruned {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let mut versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        let kept = sessions.into_iter().zip(versions.drain(..)).skip(1).collect();
        Self { world, kept }
    }

    fn assert_sound(&self, world: &World, case: &str) {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        for (session, source) in &self.kept {
            assert_restores(world, &store, *session, source, case);
        }
        assert_clean(world, &store, case);
        let report = prune_all(world, &store).unwrap_or_else(|error| panic!("{case}: next prune: {error}"));
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
        let report = prune_all(&run, &store).unwrap();
        assert!(0 < report.deleted_containers);
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
    let pruned = Pruned::new(5);
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
            let outcome = prune_all(&run, &store);
            run.disk.clear_faults();
            failed += u64::from(outcome.is_err());
            if let Ok(report) = &outcome
                && !report.lacks_space
                && report.findings.is_empty()
            {
                let left = prune_all(&run, &store).unwrap();
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
    let pruned = Pruned::new(6);
    let calls = pruned.calls();
    let mut images = 0;
    for call in 1..=calls {
        let run = pruned.world.on(pruned.world.disk.fork());
        let store = run.open().unwrap();
        run.disk.fail_at(run.disk.calls() + call, if call % 2 == 0 { Fault::Die } else { Fault::DieAfter });
        let _died = prune_all(&run, &store);
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

#[test]
fn a_container_that_cannot_be_read_stays_and_does_not_stop_a_prune() {
    let pruned = Pruned::new(9);
    let store = pruned.world.open().unwrap();
    let whole = pruned.world.on(pruned.world.disk.fork());
    let deleted = prune_all(&whole, &whole.open().unwrap()).unwrap().deleted_containers;
    // A container of the forgotten snapshot.
    let forgotten =
        container_names(&store).into_iter().find(|name| !pruned.kept.iter().any(|(id, _)| *id == name.id.session));
    let name = forgotten.unwrap();
    pruned.world.disk.damage(format!("repo/{}", ObjectName::from(name)), |bytes| bytes.fill(7));
    let report = prune_all(&pruned.world, &store).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{report:?}") };
    assert!(finding.contains(&name.to_string()), "{finding}");
    assert!(container_names(&store).contains(&name));
    assert!(0 < report.deleted_containers && report.deleted_containers < deleted, "{report:?}");
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
