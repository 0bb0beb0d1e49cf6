//! Repositories in an object store: backup, restore and check, with lost replies, throttling and errors at every request.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::collect::{PruneState, prune, quarantine};
use onefold_engine::crypto::slot::SlotLabel;
use onefold_engine::io::Host;
use onefold_engine::monitor::Silent;
use onefold_engine::object::ObjectStore;
use onefold_engine::object::names::{ContainerKind, ObjectName};
use onefold_engine::object::store::Handshake;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::{CreateOptions, Store, Unlock, create_and_try, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::object_sim::{Lag, RequestFault, SimObjectStore};
use onefold_engine::testing::sim::SimHost;
use onefold_engine::types::SessionId;
use onefold_engine::{Error, Result};

use crate::integration::pruning;
use crate::integration::support::oracle::Oracle;
use crate::integration::support::watched::WatchedObjects;
use crate::integration::support::{
    Ask, CHEAP, PASSWORD, SMALL, World, change, container_names, copy, noise, tell, tree,
};

/// Tries after which a client gives a request up, and more.
const ALL_TRIES: u32 = u32::MAX;

/// A repository in an object store, on a host with a cache, and the sources of two backups.
#[derive(Clone)]
struct Remote {
    objects: Arc<SimObjectStore>,
    world: World,
    sources: [MemTree; 2],
    oracle: Arc<Oracle>,
}

impl Remote {
    fn new(seed: u64, files: u64) -> Self {
        let first = tree(files);
        first.put_file(Path::new("/d/large"), &noise(seed, 300_000));
        let second = copy(&first);
        change(&second);
        let (objects, world, oracle) = (Arc::new(SimObjectStore::new(seed)), World::new(seed), Arc::default());
        Self { objects, world, sources: [first, second], oracle }
    }

    /// The same in another store, which is a fork of one.
    fn on_fork_of(&self, objects: &SimObjectStore) -> Self {
        Self { objects: Arc::new(objects.fork()), ..self.clone() }
    }

    fn objects(&self) -> Arc<dyn ObjectStore> {
        let open = |objects: SimObjectStore| {
            let (objects, host): (Arc<dyn ObjectStore>, Arc<dyn Host>) = (Arc::new(objects), Arc::new(SimHost::new(0)));
            open(&objects, &host, Unlock::Password(PASSWORD)).expect("the repository opens")
        };
        WatchedObjects::watch(Arc::clone(&self.objects), Arc::clone(&self.oracle), open)
    }

    fn create(&self) -> Result<(Store, Handshake)> {
        let label = SlotLabel::default();
        let options = CreateOptions { password: Some(PASSWORD), cost: CHEAP, label, adjustments: SMALL };
        create_and_try(&self.objects(), &self.world.host, &options)
    }

    fn open(&self) -> Result<Store> {
        open(&self.objects(), &self.world.host, Unlock::Password(PASSWORD))
    }

    fn backup(&self, number: usize) -> Result<SessionId> {
        let ask = Ask { with_parent: number == 1, ..Ask::default() };
        Ok(self.world.backup(&self.open()?, &self.sources[number], &ask)?.report.session)
    }

    /// Checks that each snapshot is whole, that those acknowledged are there, and that nothing is damaged.
    fn assert_sound(&self, acknowledged: &[SessionId], case: &str) {
        let store = self.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        let commits = store.read_commits().unwrap();
        let snapshots = commits.snapshots();
        for session in acknowledged {
            assert!(snapshots.iter().any(|(listed, _)| listed == session), "{case}: snapshot {session} is lost");
        }
        for (session, snapshot) in snapshots {
            let (restored, report) = self.world.restore(&store, snapshot).unwrap();
            assert_eq!(report.failures, 0, "{case}: snapshot {session}");
            let is_whole = self.sources.iter().any(|source| source.diff(&restored).is_empty());
            assert!(is_whole, "{case}: snapshot {session} is neither whole nor absent");
        }
        let request = CheckRequest {
            snapshots: CheckedSnapshots::All,
            read: ReadData::All,
            scratch: self.world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            seed: None,
            heads: None,
            accelerator: None,
        };
        let report = check(&store, &request, &Silent).unwrap();
        assert!(report.findings.is_empty(), "{case}: {:?}", report.findings);
    }

    /// Creates the repository, makes both backups and checks everything. Nothing may fail.
    fn run(&self, case: &str) {
        let (_, handshake) = self.create().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(handshake, Handshake::Passed, "{case}");
        let backup = |number| self.backup(number).unwrap_or_else(|error| panic!("{case}: {error}"));
        let acknowledged = [backup(0), backup(1)];
        self.assert_sound(&acknowledged, case);
    }
}

#[test]
fn backup_restore_and_check_succeed_whatever_replies_are_lost_and_requests_throttled() {
    let (mut disturbances, mut reordered) = (0, 0);
    for seed in 0..6 {
        let remote = Remote::new(seed, 12);
        remote.objects.disturb(8, 8);
        remote.run(&format!("seed {seed}"));
        disturbances += remote.objects.disturbances();
        reordered += remote.objects.reordered();
    }
    assert!(100 < disturbances && 0 < reordered, "{disturbances} tries disturbed, {reordered} uploads reordered");
    for (fault, tries) in [(RequestFault::Throttled, 4), (RequestFault::LostReply, 1), (RequestFault::LostReply, 4)] {
        let remote = Remote::new(1, 12);
        remote.objects.fail_each(fault, tries);
        remote.run(&format!("{fault:?}, {tries} tries of each request"));
    }
}

#[test]
fn a_lost_reply_or_a_throttled_try_at_any_request_changes_nothing() {
    let calm = Remote::new(1, 4);
    let (_store, _) = calm.create().unwrap();
    let acknowledged = [calm.backup(0).unwrap(), calm.backup(1).unwrap()];
    let requests = calm.objects.requests();
    calm.assert_sound(&acknowledged, "calm");
    let keys = calm.objects.keys();
    for request in 1..=requests {
        for fault in [RequestFault::LostReply, RequestFault::Throttled] {
            let case = format!("{fault:?} at request {request}");
            let remote = Remote::new(1, 4);
            remote.objects.fail_at(request, fault, 2);
            let _created = remote.create().unwrap_or_else(|error| panic!("{case}: {error}"));
            for number in [0, 1] {
                remote.backup(number).unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            assert!(0 < remote.objects.disturbances(), "{case}: no fault struck");
            assert_eq!(remote.objects.keys(), keys, "{case}");
        }
    }
    tell(&format!("lost replies and throttled tries at {requests} requests: the same objects"));
}

#[test]
fn an_error_or_the_death_of_the_process_at_any_request_loses_no_snapshot() {
    let calm = Remote::new(1, 4);
    let _created = calm.create().unwrap();
    let begun = calm.objects.requests();
    calm.backup(0).unwrap();
    calm.backup(1).unwrap();
    let requests = calm.objects.requests();
    let ways = [
        (RequestFault::Throttled, ALL_TRIES),
        (RequestFault::LostReply, ALL_TRIES),
        (RequestFault::Die, 1),
        (RequestFault::DieAfter, 1),
    ];
    let mut failed = 0;
    for request in begun + 1..=requests {
        for (fault, tries) in ways {
            let case = format!("{fault:?} at request {request}");
            let mut remote = Remote::new(1, 4);
            let _created = remote.create().unwrap();
            remote.objects.fail_at(request, fault, tries);
            let outcomes = [remote.backup(0), remote.backup(1)];
            failed += outcomes.iter().filter(|outcome| outcome.is_err()).count();
            let acknowledged: Vec<SessionId> = outcomes.into_iter().flatten().collect();
            remote.objects = Arc::new(remote.objects.fork());
            remote.assert_sound(&acknowledged, &case);
            let next = remote.backup(1).unwrap_or_else(|error| panic!("{case}: the next backup: {error}"));
            remote.assert_sound(&[next], &case);
        }
    }
    assert!(0 < failed);
    tell(&format!("errors and deaths at {} requests: {failed} backups failed, nothing lost", requests - begun));
}

#[test]
fn an_error_or_the_death_of_the_process_at_any_request_of_quarantining_loses_nothing() {
    let remote = Remote::new(2, 4);
    let _created = remote.create().unwrap();
    let acknowledged = [remote.backup(0).unwrap(), remote.backup(1).unwrap()];
    let base = Arc::clone(&remote.objects);
    let name =
        container_names(&remote.open().unwrap()).into_iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    // Some chunks of it are lost.
    let store = remote.open().unwrap();
    let mut damaged = store.read_container(&name).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    base.plant(&name.to_string(), &damaged);
    let quarantine = |remote: &Remote| {
        let store = remote.open()?;
        let request = pruning::request(&remote.world, &store);
        quarantine(&store, &request, &BTreeSet::from([name.id]), &Silent)
    };
    let fork = || remote.on_fork_of(&base);
    let calm = fork();
    let first = calm.objects.requests();
    assert_eq!(quarantine(&calm).unwrap().quarantined_containers, 1);
    let requests = calm.objects.requests() - first;
    let ways = [
        (RequestFault::Throttled, ALL_TRIES),
        (RequestFault::Die, 1),
        (RequestFault::LostReply, ALL_TRIES),
        (RequestFault::DieAfter, 1),
    ];
    let mut failed = 0;
    for request in 1..=requests {
        for (fault, tries) in pruning::each_or_one(&ways, request) {
            let case = format!("{fault:?} at request {request}");
            let mut run = fork();
            run.objects.fail_at(run.objects.requests() + request, fault, tries);
            failed += u64::from(quarantine(&run).is_err());
            run.objects = Arc::new(run.objects.fork());
            quarantine(&run).unwrap_or_else(|error| panic!("{case}: again: {error}"));
            let quarantined = ObjectName::Quarantined(name);
            let keys = run.objects.keys();
            assert!(keys.contains(&quarantined.to_string()) && !keys.contains(&name.to_string()), "{case}");
            let store = run.open().unwrap();
            let mut bytes = vec![0; damaged.len()];
            store.objects.read_exact(quarantined, 0, &mut bytes).unwrap();
            assert!(bytes == damaged, "{case}");
            run.backup(0).unwrap();
            run.backup(1).unwrap();
            store.remove_quarantined(&store.list_quarantined().unwrap()).unwrap();
            run.assert_sound(&acknowledged, &case);
        }
    }
    assert!(0 < failed);
    tell(&format!("errors and deaths at {requests} requests of quarantining: {failed} runs failed, nothing lost"));
}

#[test]
fn an_error_or_the_death_of_the_process_at_any_request_of_a_prune_loses_nothing() {
    let remote = Remote::new(4, 4);
    let _created = remote.create().unwrap();
    // The first one has chunks of its own among those of the second.
    let sessions = [remote.backup(0).unwrap(), remote.backup(1).unwrap()];
    pruning::forget(&remote.open().unwrap(), sessions[0]).unwrap();
    let prune = |remote: &Remote| {
        let store = remote.open()?;
        prune(&store, &pruning::request(&remote.world, &store), &Silent)
    };
    let calm = remote.on_fork_of(&remote.objects);
    let report = prune(&calm).unwrap();
    assert!(0 < report.deleted_containers && 0 < report.written_containers, "{report:?}");
    let requests = calm.objects.requests();
    calm.assert_sound(&sessions[1..], "calm");
    let ways = [
        (RequestFault::Throttled, ALL_TRIES),
        (RequestFault::Die, 1),
        (RequestFault::LostReply, ALL_TRIES),
        (RequestFault::DieAfter, 1),
        (RequestFault::LostReply, 2),
    ];
    let mut failed = 0;
    for request in 1..=requests {
        for (fault, tries) in pruning::each_or_one(&ways, request) {
            let case = format!("{fault:?} in {tries} tries of request {request}");
            let mut run = remote.on_fork_of(&remote.objects);
            run.objects.fail_at(request, fault, tries);
            let outcome = prune(&run);
            failed += u64::from(outcome.is_err());
            assert!(outcome.is_ok() || tries != 2, "{case}: {outcome:?}");
            run.objects = Arc::new(run.objects.fork());
            run.assert_sound(&sessions[1..], &case);
            let again = prune(&run).unwrap_or_else(|error| panic!("{case}: again: {error}"));
            assert_eq!(again.state, PruneState::Done, "{case}");
            if outcome.is_ok_and(|report| report.findings.is_empty()) {
                assert_eq!(again.deleted_containers, 0, "{case}: success, and work was left");
            }
            run.assert_sound(&sessions[1..], &case);
            let next = run.backup(0).unwrap_or_else(|error| panic!("{case}: the next backup: {error}"));
            run.assert_sound(&[sessions[1], next], &case);
        }
    }
    assert!(0 < failed);
    let (removed, needed) = remote.oracle.counts();
    tell(&format!(
        "errors and deaths at {requests} requests of a prune: {failed} runs failed; {removed} containers were removed, and \
         {needed} chunks of them stood elsewhere"
    ));
}

#[test]
fn where_listings_lag_backup_and_restore_work_and_collecting_is_refused() {
    let mut remote = Remote::new(1, 12);
    remote.objects.set_lag(Lag::Always(3));
    let (store, handshake) = remote.create().unwrap();
    let refused = handshake.require(&*store.objects);
    assert!(matches!(refused, Err(Error::StaleListings { .. })), "{refused:?}");
    // Each command is a process with listings of its own.
    let mut acknowledged = Vec::new();
    for number in [0, 1] {
        remote.objects = Arc::new(remote.objects.another_client());
        acknowledged.push(remote.backup(number).unwrap());
        remote.objects = Arc::new(remote.objects.another_client());
        remote.assert_sound(&acknowledged, "listings lag");
    }
    remote.objects.set_lag(Lag::UntilOwnChange(3));
    assert_eq!(store.objects.try_handshake(acknowledged[0]).unwrap(), Handshake::Passed);
}
