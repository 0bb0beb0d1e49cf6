//! Damage between the decision to delete containers and their deletion: what still restores goes on restoring.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::ErrorKind;

use onefold_engine::check::{CheckRequest, ReadData, check};
use onefold_engine::collect::{PruneState, prune, quarantine, rescue_pending, salvage};
use onefold_engine::error::Result;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::ContainerName;
use onefold_engine::random::SplitMix64;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, TraceEntry};
use onefold_engine::types::{ContainerId, SessionId};

use crate::integration::damage;
use crate::integration::pruning::{back_up_all, each_or_one, forget, request, versions};
use crate::integration::quarantining::Damage;
use crate::integration::support::{SMALL, World, container_names, tell};

/// Trials of a short run. `ONEFOLD_DAMAGES` states another number.
const TRIALS: u64 = 48;

fn trials() -> u64 {
    std::env::var("ONEFOLD_DAMAGES").map_or(TRIALS, |count| count.parse().unwrap())
}

/// The state in which damage finds the collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    /// Nothing is deleted yet, as with `--keep-deleted`.
    Whole,
    /// A prune was killed between two deletions.
    Begun,
}

const PENDING: [Pending; 2] = [Pending::Whole, Pending::Begun];

/// Work after the damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Prune,
    /// The repair that `check --read-data` advises.
    Quarantine,
    /// The beginning of `repair snapshots`.
    Rescue,
    /// Salvage and removal of quarantined containers.
    RemoveQuarantined,
}

const WORKS: [Work; 4] = [Work::Prune, Work::Quarantine, Work::Rescue, Work::RemoveQuarantined];

/// A repository whose first snapshot was forgotten, and in which a deletion is pending.
struct Base {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
    /// Containers that were there before the collection.
    before: BTreeSet<ContainerId>,
}

impl Base {
    fn new(seed: u64, pending: Pending) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let sources = versions();
        let sessions = back_up_all(&world, &store, &sources);
        forget(&store, sessions[0]).unwrap();
        let before = container_names(&store).iter().map(|name| name.id).collect();
        let kept: Vec<(SessionId, MemTree)> = sessions.into_iter().zip(sources).skip(1).collect();
        let calm = world.on(world.disk.fork());
        calm.disk.record_trace();
        let store = calm.open().unwrap();
        assert!(1 < prune(&store, &request(&calm, &store), &Silent).unwrap().deleted_containers);
        let is_deletion = |call: &TraceEntry| {
            let name = call.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            call.operation == "remove" && name.starts_with(['d', 'm']) && name.contains('-')
        };
        let mut deletions = calm.disk.trace().into_iter().filter(is_deletion);
        let first = deletions.next().unwrap();
        let run = world.on(world.disk.fork());
        run.disk.fail_at(first.number, if pending == Pending::Begun { Fault::DieAfter } else { Fault::Die });
        let store = run.open().unwrap();
        assert!(prune(&store, &request(&run, &store), &Silent).is_err());
        let world = world.on(run.disk.reopen());
        Self { world, kept, before }
    }

    /// Damages one to three containers. Mostly a copy, and the original stays.
    fn strike(&self, world: &World, random: &mut SplitMix64) -> String {
        let names = container_names(&world.open().unwrap());
        let (old, new): (Vec<ContainerName>, Vec<ContainerName>) =
            names.iter().partition(|name| self.before.contains(&name.id));
        let mut case = String::new();
        for _ in 0..=random.index(3) {
            let from = if random.index(4) == 0 || new.is_empty() { &old } else { &new };
            let name = from[random.index(from.len())];
            let kinds = [Damage::Cut, Damage::Overwritten, Damage::Emptied, Damage::Front, Damage::Region];
            let kind = random.index(kinds.len() + 1);
            write!(case, " {}: {:?}", name.id, kinds.get(kind)).unwrap();
            if !world.repo().exists(&name.path()).unwrap() {
                continue;
            }
            match kinds.get(kind) {
                Some(damage) if store_len(world, &name) > 200 => damage.strike(world, &name),
                _ => world.repo().remove(&name.path()).unwrap(),
            }
        }
        case
    }

    /// Returns the snapshots that restore. No restore succeeds with wrong contents.
    fn restorable(&self, world: &World, case: &str) -> BTreeSet<SessionId> {
        let store = world.open().unwrap();
        let commits = store.read_commits().unwrap();
        let restores = |(session, source): &&(SessionId, MemTree)| {
            let snapshots = commits.snapshots();
            let (_, snapshot) = snapshots.iter().find(|(id, _)| id == session).unwrap();
            let Ok((restored, report)) = world.restore(&store, snapshot) else { return false };
            let is_whole = report.failures == 0;
            assert!(!is_whole || source.diff(&restored).is_empty(), "{case}: a wrong success");
            is_whole
        };
        self.kept.iter().filter(restores).map(|(session, _)| *session).collect()
    }
}

fn store_len(world: &World, name: &ContainerName) -> u64 {
    world.open().unwrap().container_len(name).unwrap_or(0)
}

fn damaged(world: &World, store: &Store) -> BTreeSet<ContainerId> {
    let request = CheckRequest { seed: None, heads: None, ..damage::check_request(world, ReadData::All) };
    check(store, &request, &Silent).unwrap().damaged
}

fn carry_out(work: Work, world: &World, store: &Store) -> Result<()> {
    let request = request(world, store);
    match work {
        Work::Prune => prune(store, &request, &Silent).map(|_| ()),
        Work::Quarantine => quarantine(store, &request, &damaged(world, store), &Silent).map(|_| ()),
        Work::Rescue => rescue_pending(store, &request, &Silent).map(|_| ()),
        Work::RemoveQuarantined => {
            let quarantined = store.list_quarantined()?;
            let salvaged = salvage(store, &request, &quarantined, &Silent)?;
            let removed: Vec<_> =
                quarantined.into_iter().filter(|container| !salvaged.unreadable.contains(&container.name.id)).collect();
            store.remove_quarantined(&removed)
        }
    }
}

#[test]
fn damage_while_a_deletion_is_pending_loses_nothing_that_restores() {
    let bases: Vec<Base> = (0..6).map(|seed| Base::new(seed, PENDING[usize::try_from(seed).unwrap() % 2])).collect();
    let (mut hit, mut whole, mut failed) = (0, 0, 0);
    for seed in 0..trials() {
        let random = &mut SplitMix64::new(seed);
        let base = &bases[random.index(bases.len())];
        let world = base.world.on(base.world.disk.fork());
        let mut case = format!("seed {seed}:{}", base.strike(&world, random));
        let before = base.restorable(&world, &case);
        hit += base.kept.len() - before.len();
        whole += before.len();
        // The last prune deletes what it may.
        for _ in 0..=random.index(4) {
            let work = WORKS[random.index(WORKS.len())];
            write!(case, ", {work:?}").unwrap();
            failed += u64::from(carry_out(work, &world, &world.open().unwrap()).is_err());
        }
        let _refused = carry_out(Work::Prune, &world, &world.open().unwrap());
        let after = base.restorable(&world, &case);
        assert!(before.is_subset(&after), "{case}: lost {:?}", before.difference(&after));
    }
    tell(&format!(
        "{} trials of damage with a deletion pending: {whole} snapshots restored before, 0 were lost, 0 were wrong; {hit} had lost \
         something to the damage itself, {failed} commands refused",
        trials()
    ));
    assert!(0 < whole);
}

#[test]
fn repair_and_prune_end_clean_after_the_copy_of_a_pending_deletion_was_damaged() {
    for (seed, pending) in (7..).zip(PENDING) {
        let base = Base::new(seed, pending);
        for work in [Work::Prune, Work::Quarantine] {
            let world = base.world.on(base.world.disk.fork());
            let store = world.open().unwrap();
            let case = format!("{pending:?}, {work:?}");
            let copies: Vec<ContainerName> =
                container_names(&store).into_iter().filter(|name| !base.before.contains(&name.id)).collect();
            for name in &copies {
                Damage::Region.strike(&world, name);
            }
            assert_eq!(base.restorable(&world, &case).len(), base.kept.len(), "{case}: before");
            for work in [work, Work::Quarantine, Work::RemoveQuarantined, Work::Prune] {
                carry_out(work, &world, &store).unwrap_or_else(|error| panic!("{case}: {work:?}: {error}"));
            }
            assert_eq!(base.restorable(&world, &case).len(), base.kept.len(), "{case}");
            assert_eq!(damaged(&world, &store), BTreeSet::new(), "{case}");
            let last = prune(&store, &request(&world, &store), &Silent).unwrap();
            assert!(last.state == PruneState::Done && last.findings.is_empty(), "{case}: {last:?}");
        }
    }
}

#[test]
fn an_error_or_a_crash_at_any_call_of_a_rescue_loses_nothing() {
    let base = Base::new(10, Pending::Whole);
    let names = container_names(&base.world.open().unwrap());
    for name in names.iter().filter(|name| !base.before.contains(&name.id)) {
        Damage::Region.strike(&base.world, name);
    }
    let calm = base.world.on(base.world.disk.fork());
    let (store, first) = (calm.open().unwrap(), calm.disk.calls());
    let report = prune(&store, &request(&calm, &store), &Silent).unwrap();
    assert!(0 < report.rescued_chunks && 0 < report.deleted_containers, "{report:?}");
    let calls = calm.disk.calls() - first;
    let step = if cfg!(feature = "slow") { 1 } else { (calls / 60).max(1) };
    let faults = [Fault::Error(ErrorKind::Other), Fault::Die, Fault::DiskFull, Fault::DieAfter];
    for call in (1..=calls).step_by(usize::try_from(step).unwrap()) {
        for fault in each_or_one(&faults, call) {
            let run = base.world.on(base.world.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(run.disk.calls() + call, fault);
            let _failed = carry_out(Work::Prune, &run, &store);
            run.disk.clear_faults();
            let after = match fault {
                Fault::Die | Fault::DieAfter => run.disk.crash(CrashMode::LoseUnsynced),
                _ => run.disk.fork(),
            };
            let after = run.on(after);
            let case = format!("{fault:?} at call {call}");
            assert_eq!(base.restorable(&after, &case).len(), base.kept.len(), "{case}");
            carry_out(Work::Prune, &after, &after.open().unwrap()).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(base.restorable(&after, &case).len(), base.kept.len(), "{case}: after the next prune");
        }
    }
}
