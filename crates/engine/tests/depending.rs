//! Accidents of containers that others depend on: no base goes that something still needs, nothing refers to what cannot be read, and
//! what is lost is named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onefold_engine::check::{CheckReport, Finding, ReadData, Severity};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{PruneRequest, PruneState, prune, quarantine, salvage};
use onefold_engine::crypto::slot::SlotLabel;
use onefold_engine::io::Disk;
use onefold_engine::monitor::{Monitor, Silent};
use onefold_engine::object::ObjectStore;
use onefold_engine::object::names::{CollectionStep, ContainerKind, ContainerName, ObjectName};
use onefold_engine::repo::find_losses;
use onefold_engine::snapshot::{SessionKind, Snapshot};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{CreateOptions, MetadataReader, Session, Store, Unlock, create, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::object_sim::{Lag, SimObjectStore};
use onefold_engine::testing::sim::Fault;
use onefold_engine::types::{ChunkKind, ContainerId, RegionId, SessionId};

use crate::integration::bases::{
    FORGED_LEN, Policy, Versions, Way, ask, edit_everywhere, forge, forge_chunk, similar_tree, versions,
};
use crate::integration::condemned::{collect, condemn};
use crate::integration::damage::{Base, Damage, lose_cache};
use crate::integration::deriving::silent;
use crate::integration::interrupting::Interrupting;
use crate::integration::pruning::{assert_clean, assert_restores, findings, forget, request};
use crate::integration::quarantining::{bad, bytes_at};
use crate::integration::rebuilding::rebuild;
use crate::integration::support::hooked::Hooked;
use crate::integration::support::{
    Ask, CHEAP, Draw, Notes, PASSWORD, SMALL, World, container_names, copy, directory_store, noise, stored_twice, tell,
};

const KINDS: [ContainerKind; 2] = [ContainerKind::Data, ContainerKind::Metadata];

fn data_of(store: &Store, session: SessionId) -> Vec<ContainerName> {
    of_kind(store, session, ContainerKind::Data)
}

fn of_kind(store: &Store, session: SessionId, kind: ContainerKind) -> Vec<ContainerName> {
    let mut names = container_names(store);
    names.retain(|name| name.kind == kind && name.id.session == session);
    names
}

/// Returns a container of a session and kind that depends on another one.
fn dependent_of(store: &Store, session: SessionId, kind: ContainerKind) -> ContainerName {
    *of_kind(store, session, kind).iter().find(|name| !bases_in(store, name).is_empty()).unwrap()
}

/// Returns the containers that hold bases of a container.
fn bases_in(store: &Store, name: &ContainerName) -> BTreeSet<ContainerId> {
    let regions = store.open_container(name).unwrap().directory.regions;
    regions.iter().flat_map(|region| region.bases.iter().map(|base| base.container)).collect()
}

fn checked(world: &World) -> CheckReport {
    Base::check(world, ReadData::All)
}

fn damage(world: &World, name: &ContainerName, change: impl FnOnce(&mut Vec<u8>)) {
    world.disk.damage(Path::new("repo").join(name.path()), change);
}

/// Flips a bit of the last region of a container.
fn damage_region(world: &World, store: &Store, name: &ContainerName) {
    let reader = store.open_container(name).unwrap();
    let last = u32::try_from(reader.directory.regions.len()).unwrap() - 1;
    let (offset, len) = reader.region_range(last).unwrap();
    damage(world, name, |bytes| bytes[usize::try_from(offset).unwrap() + len as usize / 2] ^= 1);
}

/// A writer that ends, with a container that depends on another one, once a collection has condemned that one.
#[derive(Debug)]
struct EndsLate {
    objects: Arc<SimObjectStore>,
    store: Store,
    session: Arc<Session>,
    base: RegionId,
    has_ended: AtomicBool,
}

impl Monitor for EndsLate {
    fn is_interrupted(&self) -> bool {
        let has_condemned = self.objects.keys().iter().any(|key| key == "gc/00000001/condemn");
        if has_condemned && !self.has_ended.swap(true, Ordering::Relaxed) {
            forge(&self.store, &self.session, 1, (&[self.base], 1));
            self.session.end_durable().unwrap();
        }
        false
    }
}

/// The writer began before the collection and ends after the collector has listed containers, whose client repeats this listing.
#[test]
fn a_container_that_an_old_listing_hides_keeps_its_bases() {
    let world = World::new(1).without_oracle();
    let objects = Arc::new(SimObjectStore::new(1));
    let client = |objects: SimObjectStore| {
        let objects = Arc::new(objects) as Arc<dyn ObjectStore>;
        open(&objects, &world.host, Unlock::Password(PASSWORD)).unwrap()
    };
    let options =
        CreateOptions { password: Some(PASSWORD), cost: CHEAP, label: SlotLabel::default(), adjustments: SMALL };
    create(&(Arc::clone(&objects) as Arc<dyn ObjectStore>), &world.host, &options).unwrap();
    let (store, collectors) = (client(objects.another_client()), client(objects.another_client()));
    let backed_up = world.backup(&store, &similar_tree(1, 3), &Ask::default()).unwrap().report.session;
    forget(&store, backed_up).unwrap();
    let base = RegionId { container: data_of(&store, backed_up)[0].id, region: 0 };
    let session = Session::begin(&store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let late = EndsLate { objects, store, session: Arc::new(session), base, has_ended: AtomicBool::new(false) };
    late.objects.set_lag(Lag::UntilOwnChange(1000));
    let patient = Duration::from_hours(24);
    let request = PruneRequest { fence_after: patient, wait: patient, ..request(&world, &collectors) };
    let report = prune(&collectors, &request, &late).unwrap();
    assert!(late.has_ended.load(Ordering::Relaxed) && report.state == PruneState::Done, "{report:?}");
    assert!(0 < report.deleted_containers, "{report:?}");
    late.objects.set_lag(Lag::None);
    let left: Vec<ContainerId> = container_names(&late.store).iter().map(|name| name.id).collect();
    assert!(left.contains(&ContainerId { session: late.session.id, ordinal: 1 }), "{left:?}");
    assert!(left.contains(&base.container), "the base of a container that stays went: {left:?}");
}

/// A repository whose last version depends on the first ones, of which the snapshots are forgotten.
fn with_forgotten_bases(seed: u64) -> (World, Store, (SessionId, Snapshot, MemTree)) {
    let Versions { world, store, mut snapshots } = versions(SMALL, Way::Previous, seed, (4, 3));
    let last = snapshots.pop().unwrap();
    for (session, ..) in &snapshots {
        forget(&store, *session).unwrap();
    }
    (world.without_oracle(), store, last)
}

/// A prune that copies nothing if it can be a quick one.
fn quick_request(world: &World, store: &Store) -> PruneRequest {
    PruneRequest { quick: true, ..request(world, store) }
}

#[test]
fn nothing_that_may_be_a_base_goes_while_neither_directory_of_a_container_can_be_read() {
    KINDS.into_iter().for_each(nothing_that_may_be_a_base_goes);
}

fn nothing_that_may_be_a_base_goes(kind: ContainerKind) {
    let (world, store, last) = with_forgotten_bases(11);
    let name = dependent_of(&store, last.0, kind);
    let not_deleted = match kind {
        ContainerKind::Data => "no container of data is deleted",
        ContainerKind::Metadata => "no container of metadata is deleted",
    };
    let before: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
    let kinds: BTreeMap<ContainerId, ContainerKind> =
        container_names(&store).iter().map(|name| (name.id, name.kind)).collect();
    let good = bytes_at(&world, &name.path()).unwrap();
    // With one directory, its bases are known.
    for (is_front, is_back) in [(true, false), (false, true), (true, true)] {
        let world = world.on(world.disk.fork());
        let strike = |bytes: &mut Vec<u8>| {
            let end = bytes.len();
            if is_front {
                bytes[150] ^= 1;
            }
            if is_back {
                bytes[end - 60] ^= 1;
            }
        };
        damage(&world, &name, strike);
        let store = world.open().unwrap();
        let report = prune(&store, &quick_request(&world, &store), &Silent).unwrap();
        let case = format!("front {is_front}, back {is_back}: {report:?}");
        let after: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
        if is_front && is_back {
            assert!(report.findings.iter().any(|finding| finding.contains(not_deleted)), "{case}");
            let gone: Vec<_> = before.difference(&after).filter(|id| kinds[id] == kind).collect();
            assert!(gone.is_empty(), "{case}: {gone:?}");
        } else {
            assert!(report.findings.is_empty(), "{case}");
        }
        // A copy of the file is put back.
        damage(&world, &name, |bytes| bytes.clone_from(&good));
        assert_restores(&world, &store, last.0, &last.2, &case);
        assert_clean(&world, &store, &case);
    }
    // Set aside, it needs nothing, and what nothing needs goes.
    damage(&world, &name, |bytes| *bytes = noise(1, bytes.len()));
    let report = quarantine(&store, &request(&world, &store), &BTreeSet::from([name.id]), &Silent).unwrap();
    assert_eq!(report.quarantined_containers, 1, "{report:?}");
    if kind == ContainerKind::Metadata {
        // What it needs is not known without its tree.
        assert!(prune(&store, &request(&world, &store), &Silent).is_err());
        forget(&store, last.0).unwrap();
    }
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.findings.is_empty() && 0 < report.deleted_containers, "{report:?}");
}

/// Backs up all versions once more, which brings back what is lost; then all of them restore.
fn assert_heals(world: &World, store: &Store, snapshots: &[(SessionId, Snapshot, MemTree)], case: &str) {
    for (.., source) in snapshots {
        world.backup(store, source, &Ask::default()).unwrap_or_else(|error| panic!("{case}: backup: {error}"));
    }
    for (session, _, source) in snapshots {
        assert_restores(world, store, *session, source, case);
    }
    let report = checked(world);
    assert!(report.is_sound() && report.damaged.is_empty(), "{case}: {:#?}", report.findings);
}

#[test]
fn what_depends_on_a_damaged_container_is_set_aside_with_it_and_later_backups_rely_on_neither() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 12, (5, 3));
    let base = Base { world: world.without_oracle(), snapshots };
    let Base { world, snapshots } = &base;
    let (mut taken_along, mut brought_back, mut hit) = (0, 0, 0);
    for name in KINDS.into_iter().flat_map(|kind| of_kind(&store, snapshots[0].0, kind)) {
        let case = name.to_string();
        let world = world.on(world.disk.fork());
        let store = world.open().unwrap();
        let good = bytes_at(&world, &name.path()).unwrap();
        damage_region(&world, &store, &name);
        // The index has them all; only the container that was damaged is named.
        let report = quarantine(&store, &request(&world, &store), &BTreeSet::from([name.id]), &Silent).unwrap();
        assert!(report.findings.is_empty() && 1 <= report.quarantined_containers, "{case}: {report:?}");
        taken_along += report.quarantined_containers - 1;
        for other in container_names(&store) {
            assert!(!bases_in(&store, &other).contains(&name.id), "{case}: {other} depends on it");
        }
        assert_eq!(checked(&world).damaged, BTreeSet::new(), "{case}");
        // Its bytes are given back: everything else that was lost comes back from the containers that went with it.
        let salvaging = world.on(world.disk.fork());
        salvaging.disk.damage(Path::new("repo").join(bad(&name)), |bytes| bytes.clone_from(&good));
        let salvaged = {
            let store = salvaging.open().unwrap();
            let quarantined = store.list_quarantined().unwrap();
            salvage(&store, &request(&salvaging, &store), &quarantined, &Silent).unwrap()
        };
        assert!(salvaged.findings.is_empty(), "{case}: {salvaged:?}");
        brought_back += salvaged.chunks;
        for (session, _, source) in snapshots {
            assert_restores(&salvaging, &salvaging.open().unwrap(), *session, source, &case);
        }
        hit += base.restores_what_is_not_hit(&world, &checked(&world), &case);
        assert_heals(&world, &store, snapshots, &case);
    }
    assert!(0 < taken_along && 0 < brought_back && 0 < hit, "{taken_along}, {brought_back}, {hit}");
    tell(&format!(
        "{taken_along} dependents were set aside, {brought_back} chunks came back, {hit} files were lost until they were backed up again"
    ));
}

/// Knowledge that a host has of the containers of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Its index is from before the loss.
    Index,
    /// Its index was made again after it.
    Rebuilt,
    /// It has no index.
    Nothing,
}

/// A container whose base is lost is as good as lost: nothing new refers to it, and its chunks are stored again.
#[test]
fn what_depends_on_a_lost_or_cut_container_is_named_and_stored_again_by_the_next_backup() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 31, (3, 3));
    let base = Base { world: world.without_oracle(), snapshots };
    let last = base.snapshots.last().unwrap();
    for kind in KINDS {
        let dependent = dependent_of(&store, last.0, kind);
        let holder = *bases_in(&store, &dependent).first().unwrap();
        let holder = *container_names(&store).iter().find(|name| name.id == holder).unwrap();
        let knowns = [Known::Index, Known::Rebuilt, Known::Nothing];
        for (damage, known) in knowns.into_iter().flat_map(|known| CUTS.map(|damage| (damage, known))) {
            let damaged = base.damaged(&holder.path(), damage);
            for with_parent in [false, true] {
                let case = format!("{kind:?}, {damage:?}, {known:?}, parent {with_parent}");
                let world = if known == Known::Index { damaged.on(damaged.disk.fork()) } else { lose_cache(&damaged) };
                if known == Known::Rebuilt {
                    assert_ne!(rebuild(&world).unwrap().unreadable, 0, "{case}");
                }
                let store = world.open().unwrap();
                // The second one finds an index that has taken note of the loss.
                for round in 1..=2 {
                    let notes = Arc::new(Notes::default());
                    let monitor = Arc::clone(&notes) as Arc<dyn onefold_engine::backup::Monitor>;
                    let ask = Ask { with_parent, monitor, ..Ask::default() };
                    let session = world.backup(&store, &last.2, &ask).unwrap().report.session;
                    let failures = notes.failures.lock().unwrap().clone();
                    let is_named =
                        |failure: &String| failure.contains(&dependent.to_string()) && failure.contains("lacks a base");
                    assert!(failures.iter().any(is_named), "{case}, round {round}: {failures:?}");
                    assert_restores(&world, &store, session, &last.2, &format!("{case}, round {round}"));
                }
            }
        }
    }
}

/// A host was stopped at any moment while it learned the containers, and then a base is lost that it had not come to.
#[test]
fn an_index_that_was_stopped_while_it_learned_answers_for_no_container_before_its_bases() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 31, (3, 3));
    let base = Base { world: world.without_oracle(), snapshots };
    let last = base.snapshots.last().unwrap();
    let mut stopped = 0;
    for kind in KINDS {
        let dependent = dependent_of(&store, last.0, kind);
        let holder = *bases_in(&store, &dependent).first().unwrap();
        let holder = *container_names(&store).iter().find(|name| name.id == holder).unwrap();
        for at in 1.. {
            let world = lose_cache(&base.world);
            let store = world.open().unwrap();
            let monitor = Arc::new(Interrupting::at(at)) as Arc<dyn Monitor>;
            let is_stopped = world.backup(&store, &last.2, &Ask { monitor, ..Ask::default() }).is_err();
            stopped += u64::from(is_stopped);
            world.repo().remove(&holder.path()).unwrap();
            let session = world.backup(&store, &last.2, &Ask::default()).unwrap().report.session;
            assert_restores(&world, &store, session, &last.2, &format!("{kind:?}, stopped at question {at}"));
            if !is_stopped {
                break;
            }
        }
    }
    assert!(10 < stopped, "{stopped}");
    tell(&format!("{stopped} backups were stopped before a base was lost"));
}

const CUTS: [&Damage; 2] = [&Damage::Delete, &Damage::Truncate(200)];

#[test]
fn a_salvage_names_what_it_cannot_bring_back_because_bases_are_gone() {
    KINDS.into_iter().for_each(a_salvage_names_what_lacks_a_base);
}

fn a_salvage_names_what_lacks_a_base(kind: ContainerKind) {
    let (world, store, last) = with_forgotten_bases(13);
    let name = dependent_of(&store, last.0, kind);
    let good = bytes_at(&world, &name.path()).unwrap();
    damage(&world, &name, |bytes| *bytes = noise(1, bytes.len()));
    quarantine(&store, &request(&world, &store), &BTreeSet::from([name.id]), &Silent).unwrap();
    if kind == ContainerKind::Metadata {
        forget(&store, last.0).unwrap();
    }
    prune(&store, &request(&world, &store), &Silent).unwrap();
    world.disk.damage(Path::new("repo").join(bad(&name)), |bytes| bytes.clone_from(&good));
    let quarantined = store.list_quarantined().unwrap();
    let salvaged = salvage(&store, &request(&world, &store), &quarantined, &Silent).unwrap();
    let object = store.display(ObjectName::Quarantined(name));
    let is_named = |finding: &String| finding.contains(&object) && finding.contains("lacks a base");
    assert!(salvaged.findings.iter().any(is_named), "{salvaged:?}");
    // With the chunks in other containers, nothing is missing any more.
    let again = world.backup(&store, &last.2, &Ask::default()).unwrap().report.session;
    assert_restores(&world, &store, again, &last.2, "backed up again");
    let salvaged = salvage(&store, &request(&world, &store), &quarantined, &Silent).unwrap();
    assert_eq!((salvaged.chunks, salvaged.findings), (0, Vec::new()));
    if kind == ContainerKind::Data {
        assert_restores(&world, &store, last.0, &last.2, "backed up again");
    }
}

#[test]
fn a_container_of_a_fenced_session_that_comes_late_is_no_damage_and_nobody_refers_to_it() {
    let world = World::new(14);
    let store = world.create(SMALL).unwrap();
    let first = world.backup(&store, &similar_tree(14, 3), &Ask::default()).unwrap().report.session;
    let base = RegionId { container: data_of(&store, first)[0].id, region: 0 };
    let slow = Arc::new(Session::begin(&store, &world.scratch(), SessionKind::Backup, "slow").unwrap());
    // Not late: as good as any.
    let whole = forge(&store, &slow, 0, (&[], 0));
    forget(&store, first).unwrap();
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.fenced == [slow.id] && data_of(&store, first).is_empty(), "{report:?}");
    let late = [forge(&store, &slow, 1, (&[base], 1)), {
        // It has its base, which lacks one.
        let on_late = RegionId { container: ContainerId { session: slow.id, ordinal: 1 }, region: 0 };
        forge(&store, &slow, 2, (&[on_late], 2))
    }];
    let report = checked(&world);
    assert!(report.is_sound() && report.damaged.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.findings.len(), late.len(), "{:#?}", report.findings);
    for finding in &report.findings {
        assert!(finding.problem.contains("lacks a base") && finding.severity == Severity::UnknownFile, "{finding:?}");
    }
    let session = Session::begin(&store, &world.scratch(), SessionKind::Backup, "next").unwrap();
    let is_live = |region: RegionId| session.live.contains(region.container);
    assert!(is_live(whole) && !late.into_iter().any(is_live));
    session.end().unwrap();
    let source = MemTree::new();
    source.put_dir(Path::new("/d"));
    source.put_file(Path::new("/d/whole"), &noise(0, 100));
    source.put_file(Path::new("/d/late"), &noise(1, FORGED_LEN));
    let next = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    assert_restores(&world, &store, next, &source, "next to late containers");
    {
        let world = world.on(world.disk.fork()).without_oracle();
        for name in data_of(&store, next) {
            world.repo().remove(&name.path()).unwrap();
        }
        let store = world.open().unwrap();
        let commits = store.read_commits().unwrap();
        let snapshots: Vec<&Snapshot> = commits.snapshots().into_iter().map(|(_, snapshot)| snapshot).collect();
        let losses = find_losses(&store, &silent(&world), &snapshots).unwrap();
        assert!(!losses.is_empty(), "a copy that lacks a base is no copy");
    }
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.findings.is_empty() && data_of(&store, slow.id).len() < 3, "{report:?}");
    assert_restores(&world, &store, next, &source, "late containers are gone");
    assert_clean(&world, &store, "late containers are gone");
}

/// The late container holds the node that the next backup makes, and its base is gone.
#[test]
fn a_node_in_a_late_container_of_metadata_that_lacks_a_base_is_stored_again() {
    let world = World::new(17);
    let store = world.create(SMALL).unwrap();
    let first = world.backup(&store, &similar_tree(17, 3), &Ask::default()).unwrap().report.session;
    let base = RegionId { container: of_kind(&store, first, ContainerKind::Metadata)[0].id, region: 0 };
    let source = similar_tree(18, 1);
    let node = {
        let world = world.on(world.disk.fork()).without_oracle();
        let store = world.open().unwrap();
        let snapshot = world.backup(&store, &source, &Ask::default()).unwrap().report.snapshot;
        let listed = store.list_containers(&world.scratch()).unwrap();
        let memory = MetadataMemory::of(4 << 20);
        let mut reader = MetadataReader::open(&store, &listed, &world.scratch(), memory).unwrap();
        reader.read(ChunkKind::Tree, snapshot.tree).unwrap().contents
    };
    let slow = Arc::new(Session::begin(&store, &world.scratch(), SessionKind::Backup, "slow").unwrap());
    forget(&store, first).unwrap();
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.fenced == [slow.id] && 0 < report.deleted_containers, "{report:?}");
    let late = forge_chunk(&store, &slow, 1, (ChunkKind::Tree, node), (&[base], 1));
    let report = checked(&world);
    assert!(report.is_sound() && report.damaged.is_empty(), "{:#?}", report.findings);
    let session = Session::begin(&store, &world.scratch(), SessionKind::Backup, "next").unwrap();
    assert!(!session.live.contains(late.container));
    session.end().unwrap();
    let next = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    assert_restores(&world, &store, next, &source, "next to a late container");
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.findings.is_empty() && of_kind(&store, slow.id, ContainerKind::Metadata).is_empty(), "{report:?}");
    assert_restores(&world, &store, next, &source, "the late container is gone");
    assert_clean(&world, &store, "the late container is gone");
}

/// Of each kind of bases: a prune that gives up nothing but what no snapshot needs keeps them.
#[test]
fn bases_of_metadata_stay_as_long_as_the_metadata_of_a_snapshot_depends_on_them() {
    for quick in [false, true] {
        let (world, store, last) = with_forgotten_bases(19);
        let dependent = dependent_of(&store, last.0, ContainerKind::Metadata);
        let bases = bases_in(&store, &dependent);
        // Nothing is taken apart that is needed as it is.
        let max_unused = MaxUnused::Unlimited;
        let asked = request(&world, &store);
        let options = PruneOptions { max_unused, ..asked.options };
        let report = prune(&store, &PruneRequest { options, quick, ..asked }, &Silent).unwrap();
        assert!(report.findings.is_empty() && 0 < report.plan.bases_containers, "{report:?}");
        assert_eq!(report.rescued_containers, 0, "the plan knows what depends on what: {report:?}");
        let left: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
        assert!(left.contains(&dependent.id) && left.is_superset(&bases), "{bases:?} of {left:?}");
        assert_restores(&world, &store, last.0, &last.2, "bases are forgotten");
        assert_clean(&world, &store, "bases are forgotten");
        forget(&store, last.0).unwrap();
        prune(&store, &request(&world, &store), &Silent).unwrap();
        assert_eq!(container_names(&store), Vec::new());
    }
}

/// The most common accident of all.
#[test]
fn what_a_killed_backup_has_stored_is_found_again_after_a_prune() {
    const FILES: u64 = 24;
    let (mut found, mut tried) = (0, 0);
    for keeps_index in [true, false] {
        for part in 1..6_u64 {
            let world = World::new(15);
            let store = world.create(SMALL).unwrap();
            // A prune fences others only if it has something to delete.
            let doomed = world.backup(&store, &similar_tree(150, 2), &Ask::default()).unwrap().report.session;
            forget(&store, doomed).unwrap();
            let (policy, source) = (Policy::new(Way::Previous, 15), similar_tree(15, FILES));
            let first = world.backup(&store, &source, &ask(&policy)).unwrap().report.session;
            policy.next_session();
            edit_everywhere(&source, 15, FILES, 1);
            let calls = {
                let world = world.on(world.disk.fork());
                let before = world.disk.calls();
                world.backup(&world.open().unwrap(), &source, &ask(&Policy::of(&store, &world.scratch(), 1))).unwrap();
                world.disk.calls() - before
            };
            world.disk.fail_at(world.disk.calls() + calls * part / 6, Fault::Die);
            let _killed = world.backup(&store, &source, &ask(&policy));
            let world = world.on(world.disk.reopen());
            let store = world.open().unwrap();
            let known: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
            let fenced = prune(&store, &request(&world, &store), &Silent).unwrap().fenced;
            let killed = fenced.iter().flat_map(|session| data_of(&store, *session)).count();
            if !keeps_index {
                for entry in world.cache().list(Path::new("index")).unwrap() {
                    world.cache().remove(&Path::new("index").join(entry.name)).unwrap();
                }
            }
            let case =
                format!("index {keeps_index}, part {part}: {} containers, {killed} of the killed one", known.len());
            for round in 0..2 {
                let ask = ask(&Policy::of(&store, &world.scratch(), round));
                let next = world.backup(&store, &source, &ask).unwrap().report.session;
                assert_eq!(stored_twice(&store), Vec::new(), "{case}, round {round}");
                assert_restores(&world, &store, next, &source, &case);
            }
            forget(&store, first).unwrap();
            let newest = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
            prune(&store, &request(&world, &store), &Silent).unwrap();
            assert_restores(&world, &store, newest, &source, &case);
            assert_clean(&world, &store, &case);
            found += killed;
            tried += 1;
        }
    }
    tell(&format!("{tried} killed backups with {found} containers, none of which was stored twice"));
    assert!(tried < found);
}

fn assert_clean_but_for(world: &World, object: &str) {
    let findings = checked(world).findings;
    assert!(findings.iter().all(|finding| finding.object.ends_with(object)), "{findings:#?}");
}

#[test]
fn a_condemned_base_of_an_undecided_collection_goes_with_its_dependents_and_quick_prunes_run_again() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 16, (5, 3));
    let bases: BTreeSet<ContainerId> = container_names(&store).iter().flat_map(|name| bases_in(&store, name)).collect();
    let condemned: Vec<ContainerId> = bases.into_iter().take(2).collect();
    condemn((&world, &store), 1, &condemned);
    collect((&world, &store), 1, CollectionStep::Begin, &[]);
    collect((&world, &store), 1, CollectionStep::Final, &[]);
    world.disk.damage("repo/gc/00000001/final", |bytes| bytes[150] ^= 1);
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert!(report.state == PruneState::Done && report.findings.is_empty(), "{report:?}");
    let left: Vec<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
    assert!(condemned.iter().all(|id| !left.contains(id)), "{condemned:?} are among {left:?}");
    for (session, _, source) in &snapshots {
        assert_restores(&world, &store, *session, source, "undecided");
    }
    assert_clean_but_for(&world, "gc/00000001/final");
    // Once no manifest lists what went with it.
    for (session, ..) in &snapshots {
        forget(&store, *session).unwrap();
    }
    let source = &snapshots[2].2;
    let session = world.backup(&store, source, &Ask::default()).unwrap().report.session;
    let report = prune(&store, &quick_request(&world, &store), &Silent).unwrap();
    assert!(report.is_quick, "{report:?}");
    assert_restores(&world, &store, session, source, "after a quick prune");
}

/// An accident or a step of a random history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Backup,
    KilledBackup,
    Forget,
    Prune,
    QuickPrune,
    Delete,
    Flip,
    Overwrite,
    Quarantine,
    Salvage,
    GiveBack,
}

/// A repository with the snapshots that are not forgotten, and the containers that were damaged.
struct History {
    base: Base,
    draw: Draw,
    /// Names the regions of the session before; `None`: any two that are there are named.
    policy: Option<Arc<Policy>>,
    rounds: u64,
    source: MemTree,
    /// Names and bytes of containers before they were damaged.
    damaged: Vec<(ContainerName, Vec<u8>)>,
}

const STEPS: [Step; 14] = [
    Step::Backup,
    Step::Backup,
    Step::Backup,
    Step::KilledBackup,
    Step::Forget,
    Step::Forget,
    Step::Prune,
    Step::QuickPrune,
    Step::Delete,
    Step::Flip,
    Step::Overwrite,
    Step::Quarantine,
    Step::Salvage,
    Step::GiveBack,
];
const FILES: u64 = 3;

impl History {
    fn new(seed: u64) -> Self {
        let world = World::new(seed).without_oracle();
        world.create(SMALL).unwrap();
        let base = Base { world, snapshots: Vec::new() };
        let source = similar_tree(20, FILES);
        let policy = seed.is_multiple_of(2).then(|| Policy::new(Way::Previous, seed));
        Self { base, draw: Draw::new(seed), policy, rounds: seed, source, damaged: Vec::new() }
    }

    /// Backs up one of the versions with bases in what there is.
    fn back_up(&mut self, kills: bool) {
        let world = &self.base.world;
        let store = world.open().unwrap();
        self.rounds += 1;
        edit_everywhere(&self.source, 20, FILES, u64::try_from(self.draw.below(4)).unwrap());
        let source = copy(&self.source);
        let policy = self.policy.clone().unwrap_or_else(|| Policy::of(&store, &world.scratch(), self.rounds));
        policy.next_session();
        let ask = Ask { with_parent: self.draw.once_in(2), ..ask(&policy) };
        if kills {
            world.disk.fail_at(world.disk.calls() + 20 + u64::try_from(self.draw.below(150)).unwrap(), Fault::Die);
            let killed = world.backup(&store, &self.source, &ask);
            let disk = world.disk.reopen();
            self.base.world = world.on(disk);
            if let Ok(killed) = killed {
                self.base.snapshots.push((killed.report.session, killed.report.snapshot, source));
            }
        } else {
            // A parent that is damaged is no reason to fail.
            let report = world.backup(&store, &self.source, &ask).unwrap().report;
            self.base.snapshots.push((report.session, report.snapshot, source));
        }
    }

    /// Damages a container.
    fn damage(&mut self, step: Step) {
        let world = &self.base.world;
        let mut names = container_names(&world.open().unwrap());
        names.retain(|name| self.damaged.iter().all(|(known, _)| known != name));
        if names.is_empty() {
            return;
        }
        let name = *self.draw.one_of(&names);
        self.damaged.push((name, bytes_at(world, &name.path()).unwrap()));
        let at = self.draw.next();
        match step {
            Step::Delete => world.repo().remove(&name.path()).unwrap(),
            Step::Flip => damage(world, &name, |bytes| {
                let at = usize::try_from(at % bytes.len() as u64).unwrap();
                bytes[at] ^= 1;
            }),
            _ => damage(world, &name, |bytes| *bytes = noise(at, bytes.len())),
        }
    }

    /// Gives a damaged container its bytes back, as a copy of the repository has them, whatever name it has now.
    fn give_back(&mut self) {
        let world = &self.base.world;
        let Some((name, good)) = self.damaged.pop() else { return };
        for path in [name.path(), bad(&name)] {
            if world.repo().exists(&path).unwrap() {
                world.disk.damage(Path::new("repo").join(path), |bytes| bytes.clone_from(&good));
                return;
            }
        }
    }

    fn take(&mut self, step: Step) -> Option<String> {
        let world = self.base.world.clone();
        let store = world.open().unwrap();
        let quick = step == Step::QuickPrune;
        let outcome = match step {
            Step::Backup | Step::KilledBackup => {
                self.back_up(step == Step::KilledBackup);
                return None;
            }
            Step::Forget => {
                if 1 < self.base.snapshots.len() {
                    let at = self.draw.below(self.base.snapshots.len());
                    forget(&store, self.base.snapshots.remove(at).0).unwrap();
                }
                return None;
            }
            Step::Delete | Step::Flip | Step::Overwrite => {
                self.damage(step);
                return None;
            }
            Step::GiveBack => {
                self.give_back();
                return None;
            }
            Step::Prune | Step::QuickPrune => {
                let request = PruneRequest { quick, ..request(&world, &store) };
                prune(&store, &request, &Silent).map(|report| report.findings)
            }
            Step::Quarantine => {
                let damaged = checked(&world).damaged;
                quarantine(&store, &request(&world, &store), &damaged, &Silent).map(|report| report.findings)
            }
            Step::Salvage => {
                let quarantined = store.list_quarantined().unwrap();
                salvage(&store, &request(&world, &store), &quarantined, &Silent).map(|salvaged| salvaged.findings)
            }
        };
        match outcome {
            Ok(findings) if findings.is_empty() => None,
            // It says what it cannot do.
            Ok(findings) => Some(findings.join("; ")),
            Err(error) => Some(error.to_string()),
        }
    }
}

#[test]
fn in_any_history_each_snapshot_restores_or_what_it_has_lost_is_named() {
    let (mut steps, mut hits, mut refusals, mut based) = (0, 0, 0, 0);
    for seed in 0..if cfg!(feature = "slow") { 300 } else { 30 } {
        let mut history = History::new(seed);
        let harmless = seed % 3 == 0;
        let mut taken = vec![Step::Backup];
        for _ in 0..18 {
            let step = *history.draw.one_of(&STEPS);
            if !(harmless && matches!(step, Step::Delete | Step::Flip | Step::Overwrite)) {
                taken.push(step);
            }
        }
        for (at, step) in taken.iter().enumerate() {
            let said = history.take(*step);
            let case = format!("seed {seed}: {:?}: {said:?}", &taken[..=at]);
            assert!(!harmless || said.is_none(), "{case}");
            let report = checked(&history.base.world);
            let hit = history.base.restores_what_is_not_hit(&history.base.world, &report, &case);
            assert!(!harmless || hit == 0 && report.is_sound(), "{case}: {:#?}", report.findings);
            hits += hit;
            refusals += usize::from(said.is_some());
            steps += 1;
        }
        let store = history.base.world.open().unwrap();
        let opened = container_names(&store).into_iter().filter_map(|name| store.open_container(&name).ok());
        based +=
            opened.flat_map(|container| container.directory.regions).filter(|region| !region.bases.is_empty()).count();
    }
    tell(&format!(
        "{steps} steps: {hits} files were lost and named, {refusals} commands said what they could not do, {based} regions had bases"
    ));
    assert!(0 < hits && 0 < refusals && 0 < based);
}

/// A backup with bases is stopped at a call, and prunes run meanwhile: one that waits for it, or one that fences it.
#[test]
fn a_backup_with_bases_that_is_stopped_while_prunes_run_restores_and_so_does_everything_else() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 21, (3, 2));
    let source = copy(&snapshots[1].2);
    edit_everywhere(&source, 21, 3, 2);
    let back_up = |world: &World, store: &Store| {
        let policy = Policy::of(store, &world.scratch(), 21);
        world.backup(store, &source, &ask(&policy)).map(|outcome| outcome.report.session)
    };
    let opened = |world: &World| {
        let hooked = Hooked::new(world.watched_repo(), Box::new(|_| ()));
        let disk = Arc::clone(&hooked) as Arc<dyn Disk>;
        (open(&directory_store(disk), &world.host, Unlock::Password(PASSWORD)).unwrap(), hooked)
    };
    forget(&store, snapshots[0].0).unwrap();
    let calls = {
        let world = world.on(world.disk.fork());
        let (store, hooked) = opened(&world);
        hooked.restart(Box::new(|_| ()));
        back_up(&world, &store).unwrap();
        hooked.calls()
    };
    let step = if cfg!(feature = "slow") { 1 } else { 1 + calls / 25 };
    let mut tried = 0;
    for fence_after in [Duration::ZERO, Duration::from_hours(24)] {
        for call in (0..calls).step_by(usize::try_from(step).unwrap()) {
            let world = world.on(world.disk.fork());
            let (store, hooked) = opened(&world);
            let others = world.clone();
            hooked.restart(Box::new(move |now| {
                if now == call {
                    let store = others.open().unwrap();
                    for quick in [true, false] {
                        let request = PruneRequest { quick, fence_after, ..request(&others, &store) };
                        prune(&store, &request, &Silent).unwrap();
                    }
                }
            }));
            let case = format!("stopped at call {call} of {calls}, fenced after {fence_after:?}");
            let session = back_up(&world, &store).unwrap_or_else(|error| panic!("{case}: {error}"));
            hooked.restart(Box::new(|_| ()));
            for _ in 0..2 {
                assert_restores(&world, &store, session, &source, &case);
                assert_restores(&world, &store, snapshots[1].0, &snapshots[1].2, &case);
                // A container that the fenced session has stored too late may lack a base. Nobody refers to it.
                let findings = findings(&world, &store, &case);
                let is_late = |finding: &Finding| {
                    finding.severity == Severity::UnknownFile && finding.problem.contains("its session was ended")
                };
                assert!(findings.iter().all(is_late), "{case}: {findings:?}");
                prune(&store, &request(&world, &store), &Silent).unwrap();
            }
            assert_clean(&world, &store, &case);
            tried += 1;
        }
    }
    tell(&format!("backups with bases stopped at {tried} calls while prunes ran: nothing lost"));
}
