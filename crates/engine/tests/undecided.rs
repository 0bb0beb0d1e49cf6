//! Collections whose `final` is damaged: what they have condemned is given back, and nothing that a snapshot needs is lost.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use onefold_engine::check::{CheckReport, CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::collect::{PruneReport, PruneState, give_up, prune};
use onefold_engine::error::Result;
use onefold_engine::io::Disk;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::CollectionStep;
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::SessionKind;
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, TraceEntry};
use onefold_engine::types::{ContainerId, SessionId};

use crate::integration::condemned::{collect, condemn};
use crate::integration::pruning::{assert_restores, back_up_all, each_or_one, forget, request, versions};
use crate::integration::support::{Ask, SMALL, World, container_names, tell};

const FINAL: &str = "repo/gc/00000001/final";

/// A repository with two snapshots that stay and one that was forgotten.
struct Repository {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
}

impl Repository {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        Self { world, kept: sessions.into_iter().zip(versions).skip(1).collect() }
    }

    fn fork(&self) -> World {
        self.world.on(self.world.disk.fork())
    }

    /// Condemns containers in a collection whose `final` names some of them and is damaged.
    fn condemn(&self, containers: &[ContainerId], chosen: &[ContainerId]) -> World {
        let world = self.fork();
        let store = world.open().unwrap();
        condemn((&world, &store), 1, containers);
        collect((&world, &store), 1, CollectionStep::Begin, &[]);
        collect((&world, &store), 1, CollectionStep::Final, chosen);
        damage(&world);
        world
    }

    fn assert_restores(&self, world: &World, store: &Store, case: &str) {
        for (session, source) in &self.kept {
            assert_restores(world, store, *session, source, case);
        }
    }

    /// After a prune nothing is left of what was condemned, the collection has ended, and all is as ever.
    fn assert_ended(&self, world: &World, condemned: &[ContainerId], case: &str) {
        let store = world.open().unwrap();
        self.assert_restores(world, &store, case);
        let left: Vec<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
        assert!(condemned.iter().all(|id| !left.contains(id)), "{case}");
        let report = checked(world, &store);
        assert!(report.is_sound(), "{case}: {:#?}", report.findings);
        let [finding] = report.findings.as_slice() else { panic!("{case}: {:#?}", report.findings) };
        assert!(finding.object.ends_with("gc/00000001/final"), "{case}: {finding:?}");
        let session = Session::begin(&store, &world.scratch(), SessionKind::Backup, "host").unwrap();
        assert!(!session.is_condemning && session.live.len() == left.len(), "{case}");
        session.end().unwrap();
        let again = prune_all(world, &store).unwrap();
        assert!(again.state == PruneState::Done && again.findings.is_empty(), "{case}: {again:?}");
        self.assert_restores(world, &store, case);
        let (_, source) = self.kept.last().unwrap();
        let next = world.backup(&store, source, &Ask { with_parent: true, ..Ask::default() }).unwrap();
        assert_restores(world, &store, next.report.session, source, case);
    }
}

fn damage(world: &World) {
    world.disk.damage(FINAL, |bytes| bytes[150] ^= 1);
}

fn prune_all(world: &World, store: &Store) -> Result<PruneReport> {
    prune(store, &request(world, store), &Silent)
}

fn checked(world: &World, store: &Store) -> CheckReport {
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
    check(store, &request, &Silent).unwrap()
}

fn ids(store: &Store) -> Vec<ContainerId> {
    container_names(store).iter().map(|name| name.id).collect()
}

#[test]
fn what_a_collection_with_a_damaged_decision_has_condemned_is_copied_as_far_as_needed_and_deleted() {
    let repository = Repository::new(1);
    let all = ids(&repository.world.open().unwrap());
    let every_third: Vec<ContainerId> = all.iter().step_by(3).copied().collect();
    for condemned in [&all[..], &every_third, &all[all.len() - 1..]] {
        for is_backed_up in [false, true] {
            let case = format!("{} condemned, backed up {is_backed_up}", condemned.len());
            let world = repository.condemn(condemned, &[]);
            let store = world.open().unwrap();
            let report = checked(&world, &store);
            assert!(!report.is_sound() && report.findings[0].object.ends_with("final"), "{case}: {report:?}");
            if is_backed_up {
                // It relies on nothing that was condemned.
                let (_, source) = repository.kept.last().unwrap();
                let ask = Ask { with_parent: true, ..Ask::default() };
                let session = world.backup(&store, source, &ask).unwrap().report.session;
                assert_restores(&world, &store, session, source, &case);
            }
            let report = prune_all(&world, &store).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(report.state == PruneState::Done && report.findings.is_empty(), "{case}: {report:?}");
            repository.assert_ended(&world, condemned, &case);
        }
    }
}

#[test]
fn a_decision_may_be_damaged_at_any_moment_of_its_deletions() {
    let repository = Repository::new(2);
    let run = repository.fork();
    run.disk.record_trace();
    prune_all(&run, &run.open().unwrap()).unwrap();
    let is_deletion = |call: &&TraceEntry| {
        let is_probe = call.path.extension().is_some_and(|extension| extension == "probe");
        call.operation == "remove" && call.path.starts_with("repo/containers") && !is_probe
    };
    let trace = run.disk.trace();
    let deletions: Vec<u64> = trace.iter().filter(is_deletion).map(|call| call.number).collect();
    assert!(3 < deletions.len());
    for call in deletions {
        for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll] {
            let run = repository.fork();
            run.disk.fail_at(call, Fault::DieAfter);
            prune_all(&run, &run.open().unwrap()).unwrap_err();
            let run = repository.world.on(run.disk.crash(mode));
            let case = format!("dead after call {call}, {mode:?}");
            let store = run.open().unwrap();
            let mut condemned = Vec::new();
            store
                .read_collection(1, CollectionStep::Condemn, &mut |item| {
                    if let onefold_engine::snapshot::CollectionItem::Container(id) = item {
                        condemned.push(id);
                    }
                    Ok(())
                })
                .unwrap();
            damage(&run);
            let report = prune_all(&run, &store).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(report.findings.is_empty(), "{case}: {report:?}");
            repository.assert_ended(&run, &condemned, &case);
        }
    }
}

#[test]
fn a_damaged_decision_stays_undecided_while_something_that_it_may_name_is_left() {
    let repository = Repository::new(3);
    let all = ids(&repository.world.open().unwrap());
    let world = repository.condemn(&all, &[]);
    let store = world.open().unwrap();
    // A container that nobody can open is not deleted.
    let name = container_names(&store)
        .into_iter()
        .find(|name| !repository.kept.iter().any(|(id, _)| *id == name.id.session) && name.to_string().contains("/d"))
        .unwrap();
    world.disk.damage(Path::new("repo").join(name.path()), |bytes| bytes.fill(7));
    for _ in 0..2 {
        // What it held may be needed.
        match prune_all(&world, &store) {
            Ok(report) => assert!(report.findings.iter().any(|finding| finding.contains("final")), "{report:?}"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(store.read_absent().unwrap().undecided.len(), 1);
    }
    let aside =
        onefold_engine::collect::quarantine(&store, &request(&world, &store), &BTreeSet::from([name.id]), &Silent);
    assert_eq!(aside.unwrap().quarantined_containers, 1);
    prune_all(&world, &store).unwrap();
    assert_eq!(store.read_absent().unwrap().undecided.len(), 0);
}

#[test]
fn a_collection_of_which_neither_list_can_be_read_is_not_given_up_with_success() {
    let repository = Repository::new(5);
    let all = ids(&repository.world.open().unwrap());
    let world = repository.condemn(&all[..3], &[]);
    let store = world.open().unwrap();
    assert_eq!(give_up(&store, "host").unwrap(), None, "what is absent is known");
    world.disk.damage("repo/gc/00000001/condemn", |bytes| bytes[150] ^= 1);
    let errors = [
        give_up(&store, "host").map(|_| ()).unwrap_err(),
        prune_all(&world, &store).map(|_| ()).unwrap_err(),
        world.backup(&store, &repository.kept[0].1, &Ask::default()).map(|_| ()).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("from a copy of the repository") && !text.contains("--give-up"), "{text}");
    }
    assert_eq!(ids(&store), all);
}

/// Nothing that is left has what the collection has decided, so a session could rely on a container that is about to go.
#[test]
fn a_damaged_decision_without_the_list_of_what_was_condemned_ends_backups_and_prunes() {
    let repository = Repository::new(6);
    let all = ids(&repository.world.open().unwrap());
    let world = repository.condemn(&all[..3], &all[..2]);
    world.disk.remove(Path::new("repo/gc/00000001/condemn")).unwrap();
    let store = world.open().unwrap();
    let errors = [
        store.read_absent().map(|_| ()).unwrap_err(),
        prune_all(&world, &store).map(|_| ()).unwrap_err(),
        world.backup(&store, &repository.kept[0].1, &Ask::default()).map(|_| ()).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("gc/00000001/final"), "{error}");
    }
    assert_eq!(ids(&store), all);
}

#[test]
fn an_error_or_a_crash_at_any_call_of_a_prune_after_a_damaged_decision_loses_nothing() {
    let repository = Repository::new(4);
    let all = ids(&repository.world.open().unwrap());
    let base = repository.condemn(&all, &all[..1]);
    let calm = base.on(base.disk.fork());
    let first = calm.disk.calls();
    prune_all(&calm, &calm.open().unwrap()).unwrap();
    let calls = calm.disk.calls() - first;
    let mut failed = 0;
    for call in 1..=calls {
        let faults = [
            Fault::Error(ErrorKind::Other),
            Fault::Die,
            Fault::DiskFull,
            Fault::DieAfter,
            Fault::ErrorAfter(ErrorKind::Other),
        ];
        for fault in each_or_one(&faults, call) {
            let run = base.on(base.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(run.disk.calls() + call, fault);
            failed += u64::from(prune_all(&run, &store).is_err());
            run.disk.clear_faults();
            let after = match fault {
                Fault::Die => base.on(run.disk.crash(CrashMode::LoseUnsynced)),
                Fault::DieAfter => base.on(run.disk.crash(CrashMode::Subset(call))),
                _ => run,
            };
            let case = format!("{fault:?} at call {call}");
            let store = after.open().unwrap();
            repository.assert_restores(&after, &store, &case);
            let report = prune_all(&after, &store).unwrap_or_else(|error| panic!("{case}: again: {error}"));
            assert!(report.findings.is_empty(), "{case}: {report:?}");
            repository.assert_ended(&after, &all, &case);
        }
    }
    tell(&format!(
        "errors and crashes at {calls} calls of a prune after a damaged decision: {failed} failed, nothing lost"
    ));
    assert!(calls / 3 < failed);
}
