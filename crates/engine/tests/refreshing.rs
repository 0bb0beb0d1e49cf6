//! Hints after prunes: few are stale, and readers follow those that are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onefold_engine::Silent;
use onefold_engine::collect::mark::{MEMORY_BYTES_MIN, Marker};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{PruneReport, PruneRequest, plan_prune, prune};
use onefold_engine::object::names::ContainerKind;
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::references::{LinkedNode, Reference};
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::{ChunkKind, ContainerId, Fingerprint, SessionId};

use crate::integration::moving::Collector;
use crate::integration::pruning::{assert_clean, assert_restores, forget, request};
use crate::integration::support::{
    Ask, Draw, OpenContainer, SMALL, World, container_names, containers, copy, newest, noise, tell,
};

/// Rounds of backup, forget and prune.
const ROUNDS: u64 = if cfg!(feature = "slow") { 60 } else { 16 };

/// Directories of the source, of which every other one changes, and files of each.
const DIRECTORIES: u64 = 24;
const FILES_EACH: u64 = 2;

/// A repository with a source that changes, and snapshots of which some live for longer.
struct Rounds {
    world: World,
    store: Store,
    source: MemTree,
    draw: Draw,
    round: u64,
    /// Snapshots that are not forgotten, with their sources and rounds.
    kept: Vec<(SessionId, MemTree, u64)>,
}

impl Rounds {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let source = MemTree::new();
        source.put_dir(Path::new("/d"));
        for directory in 0..DIRECTORIES {
            source.put_dir(Path::new(&format!("/d/{directory}")));
            for file in 0..FILES_EACH {
                source.put_file(&path(directory, file), &contents(directory, file));
            }
        }
        let mut rounds = Self { world, store, source, draw: Draw::new(seed), round: 0, kept: Vec::new() };
        rounds.back_up();
        rounds
    }

    /// Replaces a part of some files of every other directory, so that every container has chunks that die soon and others
    /// that stay; backs up; and forgets.
    fn next(&mut self) {
        self.round += 1;
        let next = copy(&self.source);
        let files =
            (1..DIRECTORIES).step_by(2).flat_map(|directory| (0..FILES_EACH).map(move |file| (directory, file)));
        for (directory, file) in files {
            if self.draw.once_in(2) {
                let mut bytes = contents(directory, file);
                let start = self.draw.below(bytes.len() - 3000);
                bytes[start..start + 3000].copy_from_slice(&noise(1000 * self.round + 20 * directory + file, 3000));
                // Times in a copy of a tree begin again, so that the length shows the change.
                bytes.truncate(bytes.len() - usize::try_from(self.round).unwrap());
                next.put_file(&path(directory, file), &bytes);
            }
        }
        self.source = next;
        self.back_up();
        let (round, newest) = (self.round, self.kept.len() - 2);
        for (at, (session, source, made)) in std::mem::take(&mut self.kept).into_iter().enumerate() {
            if newest <= at || made % 4 == 0 && round < made + 20 {
                self.kept.push((session, source, made));
            } else {
                forget(&self.store, session).unwrap();
            }
        }
    }

    fn back_up(&mut self) {
        let ask = Ask { with_parent: true, ..Ask::default() };
        let session = self.world.backup(&self.store, &self.source, &ask).unwrap().report.session;
        self.kept.push((session, self.source.clone(), self.round));
    }

    fn request(&self) -> PruneRequest {
        let request = request(&self.world, &self.store);
        PruneRequest { options: PruneOptions { max_unused: MaxUnused::Percent(5.0), ..request.options }, ..request }
    }

    fn prune(&self) -> PruneReport {
        prune(&self.store, &self.request(), &Silent).unwrap()
    }

    /// Restores all snapshots. Returns how many directories of data containers that took at most.
    fn restore(&self, case: &str) -> u64 {
        let commits = self.store.read_commits().unwrap();
        let snapshots = commits.snapshots();
        let of = |(session, source, _): &(SessionId, MemTree, u64)| {
            let (_, snapshot) = snapshots.iter().find(|(id, _)| id == session).unwrap();
            let (restored, report) = self.world.restore(&self.store, snapshot).unwrap();
            assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
            report.directories_read
        };
        self.kept.iter().map(of).max().unwrap()
    }

    /// Backs the source up again, and asserts that no file is read and nothing but the root is stored.
    fn assert_unread(&mut self, case: &str) {
        let ask = Ask { with_parent: true, ..Ask::default() };
        let report = self.world.backup(&self.store, &self.source, &ask).unwrap().report;
        let summary = &report.snapshot.summary;
        assert_eq!(
            (summary.files_new, summary.files_changed, summary.files_unmodified),
            (0, 0, DIRECTORIES * FILES_EACH),
            "{case}"
        );
        assert_eq!((report.chunks.data_unique, report.chunks.metadata_unique), (0, 0), "{case}");
        forget(&self.store, report.session).unwrap();
    }
}

fn path(directory: u64, file: u64) -> std::path::PathBuf {
    format!("/d/{directory}/{file}").into()
}

/// Files of two lengths: the recipes of the long ones have segments.
fn contents(directory: u64, file: u64) -> Vec<u8> {
    noise(100 * directory + file, if directory % 8 < 2 && file == 0 { 70_000 } else { 9_000 })
}

fn data_containers(store: &Store) -> u64 {
    container_names(store).iter().filter(|name| name.kind == ContainerKind::Data).count() as u64
}

/// The hints of all snapshots.
#[derive(Debug, Default)]
struct Hints {
    all: u64,
    /// Hints to containers that are not listed.
    stale: u64,
    /// The containers that they name.
    gone: BTreeSet<ContainerId>,
}

fn hints(world: &World, store: &Store) -> Hints {
    let listed = store.list_containers(&world.scratch()).unwrap();
    let memory = MetadataMemory::of(4 << 20);
    let mut reader = MetadataReader::open(store, &listed, &world.scratch(), memory).unwrap();
    let mut marker = Marker::new(&mut reader, &world.scratch(), MEMORY_BYTES_MIN).unwrap();
    let mut hints = Hints::default();
    for (_, snapshot) in store.read_commits().unwrap().snapshots() {
        let mut take = |hint: onefold_engine::collect::mark::Hint| {
            hints.all += 1;
            let gone = hint.container.filter(|container| !listed.contains(*container));
            hints.stale += u64::from(gone.is_some() || hint.container.is_none());
            hints.gone.extend(gone);
            Ok(())
        };
        marker.mark(snapshot.tree, &mut take, &Silent).unwrap();
    }
    hints
}

/// The containers that the manifests of snapshots list and that are gone.
fn gone_of_manifests(world: &World, store: &Store) -> BTreeSet<ContainerId> {
    let listed = store.list_containers(&world.scratch()).unwrap();
    let commits = store.read_commits().unwrap();
    let mut gone = BTreeSet::new();
    for (session, _) in commits.snapshots() {
        let checksum = commits.commit_of(session).unwrap().body.manifest.unwrap();
        let mut take = |id, _| {
            gone.extend((!listed.contains(id)).then_some(id));
            Ok(())
        };
        store.read_manifest(session, &checksum, &mut take).unwrap();
    }
    gone
}

/// The map of moved chunks of the newest `final` that has one.
fn moved(store: &Store) -> BTreeMap<ContainerId, Vec<ContainerId>> {
    let mut moved = BTreeMap::new();
    let mut take = |container, targets: &[ContainerId]| {
        moved.insert(container, targets.to_vec());
        Ok(())
    };
    store.read_moved(None, &mut take).unwrap();
    moved
}

#[test]
fn after_many_prunes_few_hints_are_stale_and_readers_follow_them() {
    for seed in 0..if cfg!(feature = "slow") { 20 } else { 1 } {
        let mut rounds = Rounds::new(seed);
        let (mut stale_most, mut refreshed, mut moved_most) = (0, 0, 0);
        while rounds.round < ROUNDS {
            rounds.next();
            let case = format!("seed {seed}, round {}", rounds.round);
            let planned = plan_prune(&rounds.store, &rounds.request(), &Silent).unwrap();
            let report = rounds.prune();
            assert_eq!(report.plan, planned.plan, "{case}");
            refreshed += report.plan.refreshed_containers;
            let hints = hints(&rounds.world, &rounds.store);
            assert!(2 * hints.stale < hints.all, "{case}: {} of {} are stale", hints.stale, hints.all);
            stale_most = stale_most.max(hints.stale);
            // The map names what hints and manifests name, and nothing else.
            let moved = moved(&rounds.store);
            if 0 < report.deleted_containers {
                assert_eq!(report.moved.containers, moved.len() as u64, "{case}");
                let named: BTreeSet<ContainerId> = moved.keys().copied().collect();
                assert!(hints.gone.is_subset(&named), "{case}");
                let by_manifests = gone_of_manifests(&rounds.world, &rounds.store);
                assert!(named.is_subset(&hints.gone.union(&by_manifests).copied().collect()), "{case}");
            }
            moved_most = moved_most.max(moved.len());
            assert!(hints.gone.iter().all(|gone| !moved[gone].is_empty()), "{case}: chunks may be anywhere");
            let read = rounds.restore(&case);
            assert!(read <= data_containers(&rounds.store), "{case}: {read} directories read");
            rounds.assert_unread(&case);
            if rounds.round.is_multiple_of(5) {
                assert_clean(&rounds.world, &rounds.store, &case);
            }
            let again = rounds.prune();
            assert_eq!((again.plan.refreshed_containers, again.written_containers), (0, 0), "{case}: {again:?}");
        }
        tell(&format!(
            "{ROUNDS} prunes: at most {stale_most} stale hints and {moved_most} moved containers, {refreshed} refreshed"
        ));
        assert!(0 < stale_most && 0 < moved_most);
        // Once nothing names a deleted container any more, the map is empty.
        let last = rounds.kept.pop().unwrap();
        for (session, ..) in std::mem::replace(&mut rounds.kept, vec![last]) {
            forget(&rounds.store, session).unwrap();
        }
        rounds.source = MemTree::new();
        rounds.source.put_dir(Path::new("/d"));
        rounds.source.put_file(Path::new("/d/other"), &noise(99, 200_000));
        rounds.back_up();
        let (session, ..) = rounds.kept.remove(0);
        forget(&rounds.store, session).unwrap();
        let report = rounds.prune();
        assert_eq!((report.moved.containers, moved(&rounds.store).len()), (0, 0));
        rounds.restore("other");
    }
}

/// Returns the metadata chunks of containers: contents and hints.
fn metadata(store: &Store) -> BTreeMap<Fingerprint, (ContainerId, ChunkKind, Vec<u8>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for container in containers(store) {
        if container.name.kind != ContainerKind::Metadata {
            continue;
        }
        let directory = store.open_container(&container.name).unwrap().directory;
        let plain = container.regions.concat();
        let mut rest = plain.as_slice();
        for chunk in &directory.chunks {
            let (bytes, tail) = rest.split_at(chunk.len as usize);
            rest = tail;
            let (contents, hints) = bytes.split_at(bytes.len() - chunk.hints_len as usize);
            let value = (container.name.id, chunk.kind, contents.to_vec(), hints.to_vec());
            assert!(found.insert(chunk.fingerprint.unwrap(), value).is_none(), "a chunk is stored twice");
        }
    }
    found
}

#[test]
fn copied_metadata_keeps_its_contents_and_names_the_containers_that_hold_its_chunks() {
    let mut rounds = Rounds::new(77);
    let mut compared = 0;
    for _ in 0..6 {
        rounds.next();
        let before = metadata(&rounds.store);
        let request = request(&rounds.world, &rounds.store);
        prune(&rounds.store, &request, &Silent).unwrap();
        let held: BTreeMap<ContainerId, BTreeSet<Fingerprint>> = containers(&rounds.store)
            .into_iter()
            .map(|container| (container.name.id, container.chunks.iter().map(|(_, name, _)| *name).collect()))
            .collect();
        for (name, (container, kind, contents, hints)) in metadata(&rounds.store) {
            let (container_before, kind_before, contents_before, _) = &before[&name];
            assert_eq!((kind, &contents), (*kind_before, contents_before));
            if container == *container_before {
                continue;
            }
            let node = LinkedNode::decode(kind, &contents, &hints).unwrap();
            node.each_reference(&mut |reference| {
                if let Reference::Chunk(chunk, hint) = reference {
                    assert!(held[&hint.unwrap()].contains(&chunk.fingerprint), "a hint of copied metadata is wrong");
                    compared += 1;
                }
                Ok(())
            })
            .unwrap();
        }
    }
    assert!(200 < compared, "{compared} hints");
}

#[test]
fn hints_that_lead_nowhere_are_mended_by_the_next_prune() {
    let mut rounds = Rounds::new(5);
    rounds.next();
    rounds.next();
    // What has moved is not noted.
    let data = some_data(&rounds.store, 1, 1);
    Collector::new(&rounds.store).collect(&data, false);
    let all = data_containers(&rounds.store);
    assert!(all < rounds.restore("before"), "the directories of all containers are read, and some again");
    let report = rounds.prune();
    assert!(0 < report.plan.refreshed_containers, "{report:?}");
    assert_eq!(hints(&rounds.world, &rounds.store).stale, 0);
    assert!(rounds.restore("after") <= data_containers(&rounds.store));
    rounds.assert_unread("after");
    assert_clean(&rounds.world, &rounds.store, "after");
}

/// Returns the data containers, `part` of `whole` of them.
fn some_data(store: &Store, part: usize, whole: usize) -> Vec<OpenContainer> {
    let data = containers(store).into_iter().filter(|container| container.name.kind == ContainerKind::Data);
    data.enumerate().filter(|(at, _)| at % whole < part).map(|(_, container)| container).collect()
}

#[test]
fn metadata_is_copied_for_its_hints_when_half_of_them_are_stale_and_not_before() {
    for (part, whole) in [(1, 4), (3, 4), (1, 1)] {
        let mut rounds = Rounds::new(9);
        rounds.next();
        let victims = some_data(&rounds.store, part, whole);
        Collector::new(&rounds.store).collect(&victims, true);
        let stale = hints(&rounds.world, &rounds.store).stale;
        let report = rounds.prune();
        let case = format!("{part} of {whole}: {report:?}");
        assert!(0 < stale, "{case}");
        assert_eq!(0 < report.plan.refreshed_containers, whole < 2 * part, "{case}");
        let left = hints(&rounds.world, &rounds.store).stale;
        assert_eq!(left, if whole < 2 * part { 0 } else { stale }, "{case}");
        rounds.assert_unread(&case);
        assert_clean(&rounds.world, &rounds.store, &case);
    }
}

#[test]
fn metadata_is_copied_before_its_chunks_spread_over_too_many_containers() {
    let mut rounds = Rounds::new(10);
    rounds.next();
    let mut collector = Collector::new(&rounds.store);
    // Each of a quarter of the containers has moved to four others.
    let victims = some_data(&rounds.store, 1, 4);
    let before: BTreeSet<ContainerId> = containers(&rounds.store).iter().map(|container| container.name.id).collect();
    collector.collect(&victims, true);
    let moved_once: Vec<_> =
        containers(&rounds.store).into_iter().filter(|new| !before.contains(&new.name.id)).collect();
    collector.collect(&moved_once, true);
    assert!(moved(&rounds.store).values().any(|targets| targets.len() == 4));
    let stale = hints(&rounds.world, &rounds.store).stale;
    let report = rounds.prune();
    assert_eq!(report.plan.refreshed_containers, 0, "{report:?}");
    // A part of each dies.
    rounds.next();
    let (session, ..) = rounds.kept.remove(0);
    forget(&rounds.store, session).unwrap();
    let report = prune(&rounds.store, &request(&rounds.world, &rounds.store), &Silent).unwrap();
    assert!(0 < report.plan.refreshed_containers, "{report:?}");
    let (moved, left) = (moved(&rounds.store), hints(&rounds.world, &rounds.store));
    assert!(left.stale < stale && left.gone.iter().all(|gone| !moved[gone].is_empty()), "{} of {stale}", left.stale);
    rounds.assert_unread("spread");
}

#[test]
fn chunks_that_are_lost_do_not_make_each_prune_copy_metadata() {
    let mut rounds = Rounds::new(6);
    rounds.next();
    rounds.prune();
    let names = container_names(&rounds.store);
    let lost: Vec<_> = names.iter().filter(|name| name.kind == ContainerKind::Data).step_by(2).collect();
    for name in lost {
        rounds.world.repo().remove(&name.path()).unwrap();
    }
    let before = container_names(&rounds.store);
    let report = rounds.prune();
    assert_eq!((report.plan.refreshed_containers, report.written_containers), (0, 0), "{report:?}");
    assert_eq!(container_names(&rounds.store), before);
    let (session, ..) = rounds.kept.last().unwrap();
    assert!(newest(&rounds.store).unwrap().is_some_and(|(newest, _)| newest == *session));
}

#[test]
fn nothing_is_refreshed_if_nothing_is_to_be_copied() {
    let mut rounds = Rounds::new(8);
    rounds.next();
    let data: Vec<_> = containers(&rounds.store);
    Collector::new(&rounds.store).collect(&data, true);
    for options in [
        PruneOptions { max_unused: MaxUnused::Unlimited, ..rounds.request().options },
        PruneOptions { max_repack_bytes: 0, ..rounds.request().options },
    ] {
        let report = prune(&rounds.store, &PruneRequest { options, ..rounds.request() }, &Silent).unwrap();
        assert_eq!((report.plan.refreshed_containers, report.written_containers), (0, 0), "{report:?}");
    }
    let (session, source, _) = &rounds.kept[0];
    assert_restores(&rounds.world, &rounds.store, *session, source, "nothing copied");
}
