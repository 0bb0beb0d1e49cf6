//! Damaged containers are set aside: what is whole in them stays, and so do their bytes.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onefold_engine::check::{CheckReport, CheckRequest, ReadData, check, check_with};
use onefold_engine::collect::{PruneReport, PruneRequest, PruneState, prune, quarantine, salvage};
use onefold_engine::compress::Compressor;
use onefold_engine::error::Result;
use onefold_engine::io::Access;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{ContainerKind, ContainerName, ObjectName};
use onefold_engine::snapshot::SessionKind;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault};
use onefold_engine::types::{ContainerId, Fingerprint, SessionId};

use crate::integration::damage;
use crate::integration::forgetting::{FAULTS, WAYS};
use crate::integration::pruning::{assert_restores, each_or_one, request};
use crate::integration::support::{
    Ask, SMALL, World, bases_of, change, container_names, copy, noise, stored_twice, tell, tree,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Damage {
    Cut,
    Lengthened,
    Overwritten,
    Emptied,
    Front,
    Region,
}

const DAMAGES: [Damage; 6] =
    [Damage::Cut, Damage::Lengthened, Damage::Overwritten, Damage::Emptied, Damage::Front, Damage::Region];

impl Damage {
    pub(super) fn strike(self, world: &World, name: &ContainerName) {
        let path = Path::new("repo").join(name.path());
        world.disk.damage(path, |bytes| match self {
            Self::Cut => bytes.truncate(bytes.len() - 100),
            Self::Lengthened => bytes.extend([0; 100]),
            Self::Overwritten => *bytes = noise(1, bytes.len()),
            Self::Emptied => bytes.clear(),
            Self::Front => bytes[150] ^= 1,
            Self::Region => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
        });
    }
}

/// A repository of two snapshots, and their sources.
struct Repository {
    world: World,
    sources: [MemTree; 2],
    sessions: Vec<SessionId>,
}

impl Repository {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let first = tree(12);
        first.put_file(Path::new("/d/large"), &noise(seed, 200_000));
        let second = copy(&first);
        change(&second);
        let sources = [first, second];
        let backup = |source| world.backup(&store, source, &Ask::default()).unwrap().report.session;
        let sessions = sources.iter().map(backup).collect();
        Self { world, sources, sessions }
    }

    fn fork(&self) -> (World, Store) {
        let world = self.world.on(self.world.disk.fork());
        let store = world.open().unwrap();
        (world, store)
    }

    /// Backs up both sources once more. Then both snapshots restore, and nothing is damaged.
    fn assert_heals(&self, world: &World, store: &Store, case: &str) {
        for source in &self.sources {
            world.backup(store, source, &Ask::default()).unwrap_or_else(|error| panic!("{case}: backup: {error}"));
        }
        for (session, source) in self.sessions.iter().zip(&self.sources) {
            assert_restores(world, store, *session, source, case);
        }
        let report = checked(world, store);
        assert!(report.is_sound() && report.damaged.is_empty(), "{case}: {:#?}", report.findings);
    }
}

fn check_request(world: &World, read: ReadData) -> CheckRequest {
    CheckRequest { seed: None, heads: None, ..damage::check_request(world, read) }
}

fn checked(world: &World, store: &Store) -> CheckReport {
    check(store, &check_request(world, ReadData::All), &Silent).unwrap()
}

fn quarantine_all(world: &World, store: &Store, damaged: &BTreeSet<ContainerId>) -> Result<PruneReport> {
    quarantine(store, &request(world, store), damaged, &Silent)
}

/// Returns the chunks that some container holds whole, container by container and chunk by chunk.
fn whole(store: &Store) -> BTreeSet<Fingerprint> {
    let mut whole = BTreeSet::new();
    let names: Vec<ContainerName> =
        store.list_containers(&Scratch::default()).unwrap().names().map(Result::unwrap).collect();
    for name in names {
        let Ok(container) = store.open_container(&name) else { continue };
        for region in 0..u32::try_from(container.directory.regions.len()).unwrap() {
            let Ok(plain) = store.read_region(&container, region, &bases_of(store), &mut Compressor::default()) else {
                continue;
            };
            let mut rest = plain.as_slice();
            for number in container.chunks_of(region) {
                let chunk = &container.directory.chunks[number];
                let (stored, tail) = rest.split_at(chunk.len as usize);
                rest = tail;
                let contents = &stored[..stored.len() - chunk.hints_len as usize];
                whole.insert(store.keys.fingerprint(chunk.kind, contents));
            }
        }
    }
    whole
}

pub(super) fn bad(name: &ContainerName) -> PathBuf {
    PathBuf::from(ObjectName::Quarantined(*name).to_string())
}

pub(super) fn bytes_at(world: &World, path: &Path) -> Option<Vec<u8>> {
    let repo = world.repo();
    if !repo.exists(path).unwrap() {
        return None;
    }
    let file = repo.open(path, Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

#[test]
fn what_is_whole_in_a_damaged_container_stays_and_the_container_is_set_aside() {
    let repository = Repository::new(1);
    let names = container_names(&repository.world.open().unwrap());
    assert!(names.iter().any(|name| name.kind == ContainerKind::Metadata) && 5 < names.len());
    let (mut kept, mut lost_nodes) = (0, 0);
    for (number, name) in names.iter().enumerate() {
        for damage in DAMAGES {
            let case = format!("{damage:?}, container {number}");
            let (world, store) = repository.fork();
            let all = whole(&store);
            damage.strike(&world, name);
            let damaged_bytes = bytes_at(&world, &name.path());
            let before = whole(&store);
            let named = BTreeSet::from([name.id]);
            assert_eq!(checked(&world, &store).damaged, named, "{case}");
            let by_name = check_with(&store, &check_request(&world, ReadData::None), &named, &Silent).unwrap();
            assert_eq!(by_name.damaged, named, "{case}");
            let nodes_are_lost = prune(&store, &request(&world, &store), &Silent).is_err();
            lost_nodes += u32::from(nodes_are_lost);

            let report = quarantine_all(&world, &store, &named).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!((report.quarantined_containers, report.deleted_containers), (1, 0), "{case}: {report:?}");
            assert_eq!(report.quarantined_bytes, damaged_bytes.as_ref().map_or(0, Vec::len) as u64, "{case}");
            assert!(report.state == PruneState::Done && report.findings.is_empty(), "{case}: {report:?}");
            kept += report.written_containers;
            assert_eq!(bytes_at(&world, &name.path()), None, "{case}");
            assert_eq!(bytes_at(&world, &bad(name)), damaged_bytes, "{case}");
            assert!(before.is_subset(&whole(&store)), "{case}");

            let report = checked(&world, &store);
            assert_eq!((report.damaged.len(), report.quarantined), (0, 1), "{case}: {:#?}", report.findings);
            let object = world.repo().display(&bad(name));
            assert!(report.findings.iter().any(|finding| finding.object == object), "{case}: {:#?}", report.findings);
            assert_eq!(report.is_sound(), before == all, "{case}: {:#?}", report.findings);
            // Nothing is left to do, and the name is gone for good.
            let again = quarantine_all(&world, &store, &named).unwrap();
            assert_eq!((again.quarantined_containers, again.written_containers), (0, 0), "{case}");

            repository.assert_heals(&world, &store, &case);
            let pruned = prune(&store, &request(&world, &store), &Silent).unwrap();
            assert!(pruned.state == PruneState::Done && pruned.findings.is_empty(), "{case}: {pruned:?}");
            for (session, source) in repository.sessions.iter().zip(&repository.sources) {
                assert_restores(&world, &store, *session, source, &case);
            }
            let quarantined = store.list_quarantined().unwrap();
            assert_eq!(quarantined.iter().map(|container| container.name).collect::<Vec<_>>(), [*name], "{case}");
            store.remove_quarantined(&quarantined).unwrap();
            assert_eq!(checked(&world, &store).findings, [], "{case}");
        }
    }
    assert!(names.len() as u64 <= kept && 0 < lost_nodes, "{kept}, {lost_nodes}");
}

#[test]
fn chunks_come_back_from_a_quarantined_container_whose_bytes_were_given_back() {
    let repository = Repository::new(2);
    for name in container_names(&repository.world.open().unwrap()) {
        for is_by_hand in [false, true] {
            let case = format!("{name}, by hand {is_by_hand}");
            let (world, store) = repository.fork();
            let good = bytes_at(&world, &name.path()).unwrap();
            Damage::Region.strike(&world, &name);
            if is_by_hand {
                world.repo().rename(&name.path(), &bad(&name)).unwrap();
            } else {
                quarantine_all(&world, &store, &BTreeSet::from([name.id])).unwrap();
            }
            let quarantined = store.list_quarantined().unwrap();
            let salvaged = salvage(&store, &request(&world, &store), &quarantined, &Silent).unwrap();
            // What is whole was copied by the collection.
            assert!(is_by_hand || salvaged.chunks == 0, "{case}: {salvaged:?}");
            assert!(!checked(&world, &store).is_sound(), "{case}");
            world.disk.damage(Path::new("repo").join(bad(&name)), |bytes| bytes.clone_from(&good));
            let salvaged = salvage(&store, &request(&world, &store), &quarantined, &Silent).unwrap();
            assert!(0 < salvaged.chunks && salvaged.findings.is_empty(), "{case}: {salvaged:?}");
            assert!(checked(&world, &store).is_sound(), "{case}");
            assert_eq!(bytes_at(&world, &bad(&name)), Some(good), "{case}");
            store.remove_quarantined(&quarantined).unwrap();
            assert_eq!(stored_twice(&store), Vec::new(), "{case}");
            for (session, source) in repository.sessions.iter().zip(&repository.sources) {
                assert_restores(&world, &store, *session, source, &case);
            }
            prune(&store, &request(&world, &store), &Silent).unwrap();
            for (session, source) in repository.sessions.iter().zip(&repository.sources) {
                assert_restores(&world, &store, *session, source, &case);
            }
        }
    }
}

#[test]
fn a_container_is_set_aside_only_after_the_writers_that_may_rely_on_it_have_ended() {
    let repository = Repository::new(3);
    let (world, store) = repository.fork();
    let name = *container_names(&store).iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    Damage::Region.strike(&world, &name);
    let damaged = BTreeSet::from([name.id]);
    let writer = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(&world, &store) };
    for _ in 0..2 {
        let report = quarantine(&store, &patient, &damaged, &Silent).unwrap();
        assert!(matches!(report.state, PruneState::Waiting(_)) && report.quarantined_containers == 0, "{report:?}");
        assert!(bytes_at(&world, &name.path()).is_some() && bytes_at(&world, &bad(&name)).is_none());
    }
    // A backup that begins now does not rely on it.
    let later = Session::begin(&store, &world.scratch(), SessionKind::Backup, "later").unwrap();
    assert!(!later.live.contains(name.id));
    later.end().unwrap();
    writer.end().unwrap();
    // Any collector goes on, and sets it aside as well.
    let report = prune(&store, &patient, &Silent).unwrap();
    assert_eq!((report.quarantined_containers, report.state), (1, PruneState::Done));
    assert!(bytes_at(&world, &name.path()).is_none() && bytes_at(&world, &bad(&name)).is_some());
    repository.assert_heals(&world, &store, "after waiting");
}

#[test]
fn a_sound_container_is_set_aside_without_a_loss_if_its_name_is_given() {
    let repository = Repository::new(4);
    let (world, store) = repository.fork();
    let all: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
    let report = quarantine_all(&world, &store, &all).unwrap();
    assert_eq!(report.quarantined_containers, all.len() as u64, "{report:?}");
    assert!(checked(&world, &store).is_sound());
    for (session, source) in repository.sessions.iter().zip(&repository.sources) {
        assert_restores(&world, &store, *session, source, "all set aside");
    }
}

/// The container that was set aside has the only sound copy of what another one lists.
#[test]
fn a_chunk_comes_back_although_a_damaged_container_lists_it() {
    let repository = Repository::new(8);
    let name = *container_names(&repository.world.open().unwrap())
        .iter()
        .find(|name| name.kind == ContainerKind::Data)
        .unwrap();
    let (world, store) = repository.fork();
    let good = bytes_at(&world, &name.path()).unwrap();
    // The collection copies all that is whole, and then the copies are damaged.
    quarantine_all(&world, &store, &BTreeSet::from([name.id])).unwrap();
    assert_eq!(bytes_at(&world, &bad(&name)), Some(good));
    let quarantined = store.list_quarantined().unwrap();
    let run = |store: &Store| salvage(store, &request(&world, store), &quarantined, &Silent).unwrap();
    assert_eq!(run(&store).chunks, 0, "all of it stands elsewhere");
    let known: BTreeSet<SessionId> = repository.sessions.iter().copied().collect();
    let mut copies = container_names(&store);
    copies.retain(|copy| !known.contains(&copy.id.session));
    assert!(!copies.is_empty());
    for copy in &copies {
        let container = store.open_container(copy).unwrap();
        for region in 0..u32::try_from(container.directory.regions.len()).unwrap() {
            let (offset, len) = container.region_range(region).unwrap();
            let at = usize::try_from(offset).unwrap() + len as usize / 2;
            world.disk.damage(Path::new("repo").join(copy.path()), |bytes| bytes[at] ^= 1);
        }
    }
    let store = world.open().unwrap();
    assert!(!checked(&world, &store).is_sound());
    let salvaged = run(&store);
    assert!(0 < salvaged.chunks && salvaged.findings.is_empty(), "{salvaged:?}");
    store.remove_quarantined(&quarantined).unwrap();
    quarantine_all(&world, &store, &copies.iter().map(|copy| copy.id).collect()).unwrap();
    for (session, source) in repository.sessions.iter().zip(&repository.sources) {
        assert_restores(&world, &store, *session, source, "salvaged");
    }
}

#[test]
fn an_error_or_a_crash_at_any_call_of_removing_quarantined_containers_loses_nothing_else() {
    let repository = Repository::new(9);
    let (base, store) = repository.fork();
    let names = container_names(&store);
    let data: BTreeSet<ContainerId> =
        names.iter().filter(|name| name.kind == ContainerKind::Data).take(3).map(|name| name.id).collect();
    quarantine_all(&base, &store, &data).unwrap();
    let remove = |world: &World| -> Result<usize> {
        let store = world.open()?;
        let quarantined = store.list_quarantined()?;
        store.remove_quarantined(&quarantined).map(|()| quarantined.len())
    };
    let calm = base.on(base.disk.fork());
    assert_eq!(remove(&calm).unwrap(), data.len());
    let calls = calm.disk.calls();
    let mut failed = 0;
    for call in 1..=calls {
        for fault in FAULTS.into_iter().chain([Fault::Die, Fault::DieAfter]) {
            let run = base.on(base.disk.fork());
            run.disk.fail_at(call, fault);
            let is_done = remove(&run).is_ok();
            run.disk.clear_faults();
            failed += u64::from(!is_done);
            let case = format!("{fault:?} at call {call}");
            let modes = if cfg!(feature = "slow") { &WAYS[..] } else { &[WAYS[0], WAYS[6]] };
            for mode in modes {
                let after = mode.map_or_else(|| run.disk.reopen(), |mode| run.disk.crash(mode));
                let after = base.on(after);
                let left = after.open().unwrap().list_quarantined().unwrap().len();
                assert!(!is_done || left == 0, "{case}, {mode:?}: success, and {left} are left");
                assert_eq!(remove(&after).unwrap(), left, "{case}, {mode:?}");
                let store = after.open().unwrap();
                assert_eq!(checked(&after, &store).findings, [], "{case}, {mode:?}");
            }
        }
    }
    tell(&format!("errors and crashes at {calls} calls of removing quarantined containers: {failed} runs failed"));
    assert!(calls / 2 < failed);
}

/// A repository with a data container of which one region is damaged.
struct Struck {
    repository: Repository,
    name: ContainerName,
    bytes: Vec<u8>,
    whole: BTreeSet<Fingerprint>,
}

impl Struck {
    fn new(seed: u64) -> Self {
        let repository = Repository::new(seed);
        let store = repository.world.open().unwrap();
        let name = *container_names(&store).iter().find(|name| name.kind == ContainerKind::Data).unwrap();
        Damage::Region.strike(&repository.world, &name);
        let bytes = bytes_at(&repository.world, &name.path()).unwrap();
        let whole = whole(&store);
        Self { repository, name, bytes, whole }
    }

    fn quarantine(&self, world: &World, store: &Store) -> Result<PruneReport> {
        quarantine_all(world, store, &BTreeSet::from([self.name.id]))
    }

    /// Nothing is lost; another collector ends the collection, and quarantining again sets the container aside.
    fn assert_kept(&self, world: &World, case: &str) {
        let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        let found = [self.name.path(), bad(&self.name)].map(|path| bytes_at(world, &path));
        assert!(found.iter().flatten().count() == 1, "{case}");
        assert_eq!(found.iter().flatten().next(), Some(&self.bytes), "{case}");
        assert!(self.whole.is_subset(&whole(&store)), "{case}");
        let report = prune(&store, &request(world, &store), &Silent);
        let report = report.unwrap_or_else(|error| panic!("{case}: the next prune: {error}"));
        assert_eq!(report.state, PruneState::Done, "{case}");
        let report = self.quarantine(world, &store).unwrap_or_else(|error| panic!("{case}: again: {error}"));
        assert_eq!(report.state, PruneState::Done, "{case}");
        assert_eq!(bytes_at(world, &self.name.path()), None, "{case}");
        assert_eq!(bytes_at(world, &bad(&self.name)).as_ref(), Some(&self.bytes), "{case}");
        self.repository.assert_heals(world, &store, case);
    }

    fn calls(&self) -> u64 {
        let (run, store) = self.repository.fork();
        let first = run.disk.calls();
        assert_eq!(self.quarantine(&run, &store).unwrap().quarantined_containers, 1);
        let calls = run.disk.calls() - first;
        self.assert_kept(&run, "undisturbed");
        calls
    }
}

#[test]
fn an_error_at_any_call_of_quarantining_loses_nothing() {
    let struck = Struck::new(5);
    let calls = struck.calls();
    let mut failed = 0;
    for call in 1..=calls {
        let faults = [
            Fault::Error(ErrorKind::Other),
            Fault::DiskFull,
            Fault::ErrorAfter(ErrorKind::Other),
            Fault::Error(ErrorKind::StorageFull),
        ];
        for fault in each_or_one(&faults, call) {
            let (run, store) = struck.repository.fork();
            run.disk.fail_at(run.disk.calls() + call, fault);
            let outcome = struck.quarantine(&run, &store);
            run.disk.clear_faults();
            failed += u64::from(outcome.is_err());
            let case = format!("{fault:?} at call {call}: {outcome:?}");
            if let Ok(report) = &outcome {
                let is_aside = report.quarantined_containers == 1;
                assert!(is_aside || !report.findings.is_empty(), "{case}: success, and nothing is set aside");
            }
            struck.assert_kept(&run, &case);
        }
    }
    tell(&format!("errors at {calls} calls of quarantining: {failed} runs failed, nothing lost"));
    assert!(calls / 3 < failed);
}

#[test]
fn a_crash_at_any_call_of_quarantining_loses_nothing() {
    let struck = Struck::new(6);
    let calls = struck.calls();
    let mut images = 0;
    for call in 1..=calls {
        let (run, store) = struck.repository.fork();
        run.disk.fail_at(run.disk.calls() + call, if call % 2 == 0 { Fault::Die } else { Fault::DieAfter });
        let _died = struck.quarantine(&run, &store);
        let modes = [
            Some(CrashMode::LoseUnsynced),
            Some(CrashMode::Subset(call)),
            None,
            Some(CrashMode::KeepAll),
            Some(CrashMode::Torn(call)),
        ];
        for mode in each_or_one(&modes, call) {
            let after = mode.map_or_else(|| run.disk.reopen(), |mode| run.disk.crash(mode));
            struck.assert_kept(&struck.repository.world.on(after), &format!("crash at call {call}, {mode:?}"));
            images += 1;
        }
    }
    tell(&format!("crashes at {calls} calls of quarantining: {images} images, nothing lost"));
}

#[test]
fn an_error_or_a_crash_at_any_call_of_salvage_loses_nothing() {
    let struck = Struck::new(7);
    let (base, store) = struck.repository.fork();
    base.repo().rename(&struck.name.path(), &bad(&struck.name)).unwrap();
    base.repo().sync_dir(struck.name.path().parent().unwrap()).unwrap();
    let quarantined = store.list_quarantined().unwrap();
    let run_on = |world: &World, store: &Store| salvage(store, &request(world, store), &quarantined, &Silent);
    let undisturbed = base.on(base.disk.fork());
    let first = undisturbed.disk.calls();
    assert!(0 < run_on(&undisturbed, &undisturbed.open().unwrap()).unwrap().chunks);
    let calls = undisturbed.disk.calls() - first;
    let mut failed = 0;
    for call in 1..=calls {
        for fault in each_or_one(&[Fault::Error(ErrorKind::Other), Fault::Die, Fault::DiskFull, Fault::DieAfter], call)
        {
            let run = base.on(base.disk.fork());
            let store = run.open().unwrap();
            run.disk.fail_at(run.disk.calls() + call, fault);
            let outcome = run_on(&run, &store);
            run.disk.clear_faults();
            let case = format!("{fault:?} at call {call}");
            let is_whole = outcome.as_ref().is_ok_and(|salvaged| salvaged.findings.is_empty());
            failed += u64::from(!is_whole);
            let after = match fault {
                Fault::Die | Fault::DieAfter => base.on(run.disk.crash(CrashMode::LoseUnsynced)),
                _ => run,
            };
            let store = after.open().unwrap();
            if !is_whole {
                run_on(&after, &store).unwrap_or_else(|error| panic!("{case}: again: {error}"));
            }
            assert!(struck.whole.is_subset(&whole(&store)), "{case}");
            assert_eq!(bytes_at(&after, &bad(&struck.name)).as_ref(), Some(&struck.bytes), "{case}");
            struck.repository.assert_heals(&after, &store, &case);
        }
    }
    tell(&format!("errors and crashes at {calls} calls of salvage: {failed} runs failed, nothing lost"));
}
