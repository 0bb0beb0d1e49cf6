//! Forgetting snapshots: an error, and a crash, at each call.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::forget::{Forgetting, Forgotten};
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{ObjectName, Prefix};
use onefold_engine::object::sealed::open_small;
use onefold_engine::object::store::Created;
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::ForgetBody;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};
use onefold_engine::types::SessionId;

use crate::integration::support::{Ask, SMALL, World, change, copy, tell, tree};

/// Ways in which a crash leaves the disk. `None`: the process is killed, and the kernel goes on.
pub(super) const WAYS: [Option<CrashMode>; 7] = [
    Some(CrashMode::LoseUnsynced),
    Some(CrashMode::KeepAll),
    Some(CrashMode::Subset(1)),
    Some(CrashMode::Subset(2)),
    Some(CrashMode::Subset(3)),
    Some(CrashMode::Torn(4)),
    None,
];

pub(super) const FAULTS: [Fault; 6] = [
    Fault::Error(ErrorKind::Other),
    Fault::Error(ErrorKind::StorageFull),
    Fault::Error(ErrorKind::Interrupted),
    Fault::DiskFull,
    Fault::ErrorAfter(ErrorKind::Other),
    Fault::ErrorAfter(ErrorKind::AlreadyExists),
];

/// A repository with three snapshots and what each holds.
pub(super) struct Kept {
    pub(super) world: World,
    pub(super) disk: SimDisk,
    pub(super) snapshots: Vec<(SessionId, MemTree)>,
}

impl Kept {
    pub(super) fn new() -> Self {
        let world = World::new(5);
        let store = world.create(SMALL).unwrap();
        let first = tree(6);
        let second = copy(&first);
        change(&second);
        let snapshots = [first, second, tree(8)].into_iter().map(|source| {
            let report = world.backup(&store, &source, &Ask::default()).unwrap().report;
            (report.session, source)
        });
        let snapshots = snapshots.collect();
        let disk = world.disk.fork();
        Self { world, disk, snapshots }
    }

    /// Returns the world as it was after the backups.
    pub(super) fn start(&self) -> World {
        self.world.on(self.disk.fork())
    }

    /// Checks that each snapshot is whole, unless it may be forgotten, and that those that must be are.
    pub(super) fn assert_sound(&self, world: &World, may_go: &[SessionId], must_go: &[SessionId], case: &str) {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        let commits = store.read_commits().unwrap();
        assert!(commits.findings.is_empty() && commits.not_forgotten.is_empty(), "{case}: {:?}", commits.not_forgotten);
        let listed = commits.snapshots();
        for (session, source) in &self.snapshots {
            let found = listed.iter().find(|(listed, _)| listed == session);
            assert!(found.is_none() || !must_go.contains(session), "{case}: {session} is back");
            let Some((_, snapshot)) = found else {
                assert!(may_go.contains(session), "{case}: {session} is lost");
                continue;
            };
            let (restored, report) = world.restore(&store, snapshot).unwrap();
            assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
        }
        assert_clean(world, &store, case);
    }
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
    assert!(report.findings.is_empty(), "{case}: {:?}", report.findings);
}

pub(super) fn note() -> ForgetBody {
    ForgetBody {
        hostname: "h".into(),
        username: "u".into(),
        rules: "keep 1 latest snapshots".into(),
        ..ForgetBody::default()
    }
}

/// Forgets snapshots until one fails. Returns those that were acknowledged.
fn forget(world: &World, snapshots: &[SessionId]) -> Vec<SessionId> {
    let Ok(store) = world.open() else { return Vec::new() };
    let Ok(forgetting) = Forgetting::begin(&store, &note()) else { return Vec::new() };
    snapshots.iter().copied().take_while(|session| forgetting.forget(*session).is_ok()).collect()
}

#[test]
fn an_error_or_a_crash_at_any_call_of_forget_loses_nothing_else_and_nothing_acknowledged() {
    let kept = Kept::new();
    let old: Vec<SessionId> = kept.snapshots.iter().take(2).map(|(session, _)| *session).collect();
    let whole = kept.start();
    assert_eq!(forget(&whole, &old), old);
    kept.assert_sound(&whole, &old, &old, "undisturbed");
    let calls = whole_calls(&kept, &old);
    let mut images = 0;
    for call in 1..=calls {
        for fault in FAULTS {
            let world = kept.start();
            world.disk.fail_at(call, fault);
            let acknowledged = forget(&world, &old);
            world.disk.clear_faults();
            kept.assert_sound(&world, &old, &acknowledged, &format!("{fault:?} at call {call}"));
            assert_eq!(forget(&world, &old), old, "again after {fault:?} at call {call}");
            images += 1;
        }
        for fault in [Fault::Die, Fault::DieAfter] {
            let world = kept.start();
            world.disk.fail_at(call, fault);
            let acknowledged = forget(&world, &old);
            for way in WAYS {
                let after = way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode));
                let after = kept.world.on(after);
                kept.assert_sound(&after, &old, &acknowledged, &format!("{fault:?} at call {call}, {way:?}"));
                images += 1;
            }
        }
    }
    tell(&format!("forget: {calls} calls, {images} images, nothing lost"));
}

fn whole_calls(kept: &Kept, old: &[SessionId]) -> u64 {
    let world = kept.start();
    let before = world.disk.calls();
    forget(&world, old);
    world.disk.calls() - before
}

#[test]
fn forgetting_twice_is_fine_and_the_first_note_stays() {
    let kept = Kept::new();
    let world = kept.start();
    let store = world.open().unwrap();
    let (session, _) = kept.snapshots[0];
    let outcomes =
        [note(), ForgetBody::default()].map(|note| Forgetting::begin(&store, &note).unwrap().forget(session).unwrap());
    assert_eq!(outcomes, [Forgotten::Now, Forgotten::Before]);
    let name = ObjectName::Forget(session);
    let identity = (store.config.repository, Some(session));
    let bytes = store.read(name, 1 << 20).unwrap();
    let (_, body) = open_small(&store.keys, "forget", ObjectType::Forget, identity, bytes).unwrap();
    assert_eq!(ForgetBody::decode(&body).unwrap(), note());
    assert_eq!(store.read_commits().unwrap().find_forgotten(&session.to_string()), Some(session));
    assert_eq!(store.list(Prefix::Forget).unwrap(), [name]);
    let later = world.backup(&store, &kept.snapshots[2].1, &Ask::default()).unwrap().report.session;
    let listed: BTreeSet<SessionId> =
        store.read_commits().unwrap().snapshots().into_iter().map(|(session, _)| session).collect();
    assert_eq!(listed, [kept.snapshots[1].0, kept.snapshots[2].0, later].into());
}

#[test]
fn an_object_that_forgets_another_snapshot_is_no_success() {
    let kept = Kept::new();
    let store = kept.start().open().unwrap();
    let (session, other) = (kept.snapshots[0].0, kept.snapshots[1].0);
    let identity = (store.config.repository, other, 0);
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Forget, identity, &[]).unwrap();
    let created = store.objects.create(SessionId([9; 16]), ObjectName::Forget(session), &bytes).unwrap();
    assert_eq!(created, Created::New);
    let error = Forgetting::begin(&store, &note()).unwrap().forget(session).unwrap_err();
    assert!(error.to_string().contains("wrong name"), "{error}");
    assert_eq!(store.read_commits().unwrap().snapshots().len(), 3);
}
