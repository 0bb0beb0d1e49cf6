//! Readers while collections copy containers and delete the originals: nothing is missed that a snapshot needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::container::{ContainerBuilder, Region, RegionChunk, Sealer};
use onefold_engine::io::{AlignedBuffer, Disk};
use onefold_engine::object::names::{CollectionStep, ContainerKind, ObjectName};
use onefold_engine::object::store::Created;
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::recipe::decode_hints;
use onefold_engine::snapshot::collection::MovedContainer;
use onefold_engine::snapshot::{CollectionBody, SessionKind, Snapshot};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Session, Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::tree::decode_node;
use onefold_engine::types::{Chunk, ChunkKind, ContainerId, Sequence, SessionId};

use crate::integration::support::hooked::{Hook, Hooked};
use crate::integration::support::{
    Ask, Draw, OpenContainer, PASSWORD, SMALL, World, containers, directory_store, newest, noise, tree,
};

/// Does what prune does to containers, without a plan.
#[derive(Debug)]
pub(super) struct Collector {
    /// The repository.
    pub(super) store: Store,
    /// Number of the last collection.
    number: u32,
    /// The whole map of the last `final`.
    moved: BTreeMap<ContainerId, Vec<ContainerId>>,
}

impl Collector {
    /// Starts before the first collection.
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), number: 0, moved: BTreeMap::new() }
    }

    fn step(&mut self, session: SessionId, body: &CollectionBody) {
        let name = ObjectName::Collection(self.number, body.step);
        let identity = (self.store.config.repository, session, self.number);
        let (store, object_type) = (&self.store, ObjectType::Collection);
        let bytes = seal_small(&store.keys, &*store.host, object_type, identity, &body.encode()).unwrap();
        assert_eq!(store.objects.create(session, name, &bytes).unwrap(), Created::New);
    }

    /// Copies containers, each to two new ones, and deletes them in a collection of its own. With `notes`, its `final` says
    /// where they went.
    pub(super) fn collect(&mut self, victims: &[OpenContainer], notes: bool) {
        let store = self.store.clone();
        let session = Session::begin(&store, &Scratch::default(), SessionKind::Collection, "host").unwrap();
        self.number += 1;
        self.step(session.id, &CollectionBody::new(CollectionStep::Begin, Vec::new()));
        let mut puts = Vec::new();
        let mut ordinal = 0;
        for victim in victims {
            let mut targets = Vec::new();
            for half in halves(&store, victim) {
                let id = ContainerId { session: session.id, ordinal };
                ordinal += 1;
                let builder =
                    ContainerBuilder { format: store.config.format, id, kind: victim.name.kind, regions: half };
                let mut random = [0; 32];
                store.host.random(&mut random).unwrap();
                let (keys, repository) = (&store.keys, store.config.repository);
                let sealed =
                    Sealer::default().seal(keys, repository, &builder, &random, AlignedBuffer::default()).unwrap();
                puts.push(session.put(sealed.name, &sealed.bytes).unwrap());
                targets.push(id);
            }
            for earlier in self.moved.values_mut().filter(|earlier| earlier.contains(&victim.name.id)) {
                earlier.retain(|id| *id != victim.name.id);
                earlier.extend(&targets);
            }
            self.moved.insert(victim.name.id, targets);
        }
        store.objects.barrier(puts).unwrap();
        let ids: Vec<ContainerId> = victims.iter().map(|victim| victim.name.id).collect();
        self.step(session.id, &CollectionBody::new(CollectionStep::Condemn, ids.clone()));
        let moved = self.moved.iter().map(|(container, targets)| {
            let targets = if targets.len() <= 8 { targets.clone() } else { Vec::new() };
            MovedContainer { container: *container, targets }
        });
        let moved = if notes { moved.collect() } else { Vec::new() };
        self.step(session.id, &CollectionBody { moved, ..CollectionBody::new(CollectionStep::Final, ids) });
        let names: Vec<ObjectName> = victims.iter().map(|victim| victim.name.into()).collect();
        store.objects.delete(&names).unwrap();
        self.step(session.id, &CollectionBody::new(CollectionStep::Done, Vec::new()));
        session.end().unwrap();
    }
}

/// Returns the chunks of a container in two parts, every other chunk in each, as the regions of a container each.
fn halves(store: &Store, container: &OpenContainer) -> Vec<Vec<Region>> {
    let mut halves = [Vec::new(), Vec::new()];
    let directory = store.open_container(&container.name).unwrap().directory;
    let plain = container.regions.concat();
    let mut rest = plain.as_slice();
    for (number, stored) in directory.chunks.iter().enumerate() {
        let (bytes, tail) = rest.split_at(stored.len as usize);
        rest = tail;
        let chunk = Chunk { fingerprint: stored.fingerprint.unwrap(), len: stored.len };
        let (half, sequence) = (&mut halves[number % 2], Sequence(number as u64));
        let mut region = Region::with_buffer(0);
        region.push(RegionChunk { chunk, kind: stored.kind, hints_len: stored.hints_len, sequence }, bytes);
        region.compress(&mut Compressor::default(), Compression::Zstd(1));
        half.push(region);
    }
    halves.into_iter().filter(|half| !half.is_empty()).collect()
}

/// A repository with a snapshot of many small containers.
struct Repository {
    world: World,
    store: Store,
    source: MemTree,
    snapshot: Snapshot,
}

impl Repository {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let source = tree(12);
        source.put_file(Path::new("/d/large"), &noise(seed, 900_000));
        world.backup(&store, &source, &Ask::default()).unwrap();
        let snapshot = newest(&store).unwrap().unwrap().1;
        Self { world, store, source, snapshot }
    }

    /// The same repository on another disk.
    fn fork(&self) -> Self {
        let world = self.world.on(self.world.disk.fork());
        let store = world.open().unwrap();
        Self { world, store, source: self.source.clone(), snapshot: self.snapshot.clone() }
    }

    /// Opens the repository on a disk on which something happens before each call; returns it with the number of calls.
    fn hooked(&self, hook: Hook) -> (Store, Arc<Hooked>) {
        let hooked = Hooked::new(self.world.watched_repo(), Box::new(|_| ()));
        let disk: Arc<dyn Disk> = Arc::clone(&hooked) as Arc<dyn Disk>;
        let store = open(&directory_store(disk), &self.world.host, Unlock::Password(PASSWORD)).unwrap();
        hooked.restart(hook);
        (store, hooked)
    }

    fn collector(&self) -> Collector {
        Collector::new(&self.store)
    }

    /// Counts the calls of a reader, then repeats it for each call and lets collections run right before the call, and again
    /// some calls later. Each moves a share of all containers.
    fn at_each_call(&self, step: usize, read: &dyn Fn(&Self, &Store, &str)) {
        let (store, hooked) = self.hooked(Box::new(|_| ()));
        read(self, &store, "undisturbed");
        let calls = hooked.calls();
        assert!(10 < calls, "{calls}");
        for call in (0..calls).step_by(step) {
            let fork = self.fork();
            let (mut draw, mut collector) = (Draw::new(call), fork.collector());
            let (share, notes, again) = (draw.below(3), !draw.once_in(3), call + 1 + draw.below(6) as u64);
            let hook = move |now: u64| {
                if now == call || now == again {
                    let mut victims = containers(&collector.store);
                    victims.retain(|_| share == 0 || draw.once_in(share + 1));
                    collector.collect(&victims, notes);
                }
            };
            let (store, _hooked) = fork.hooked(Box::new(hook));
            read(&fork, &store, &format!("call {call} of {calls}, 1 of {} containers, notes {notes}", share + 1));
        }
    }
}

#[test]
fn a_restore_goes_on_while_collections_move_containers() {
    Repository::new(1).at_each_call(1, &|repository, store, case| {
        let (restored, report) = repository.world.restore(store, &repository.snapshot).unwrap();
        assert_eq!((report.failures, repository.source.diff(&restored)), (0, Vec::new()), "{case}");
        assert_eq!(report.chunks_recovered, 0, "{case}");
    });
}

#[test]
fn a_backup_names_the_containers_that_hold_the_chunks_of_unchanged_files_now() {
    let repository = Repository::new(3);
    let (store, source) = (&repository.store, &repository.source);
    let data = containers(store).into_iter().filter(|container| container.name.kind == ContainerKind::Data);
    repository.collector().collect(&data.collect::<Vec<_>>(), true);
    let old: BTreeSet<ContainerId> = containers(store).iter().map(|container| container.name.id).collect();
    // Its directory gets a new node, which the unchanged files stand in, too.
    source.put_file(Path::new("/d/new"), &noise(4, 3000));
    let made = repository.world.backup(store, source, &Ask { with_parent: true, ..Ask::default() }).unwrap().report;
    assert!(10 < made.snapshot.summary.files_unmodified, "{:?}", made.snapshot.summary);
    let all = containers(store);
    let listed: BTreeSet<ContainerId> = all.iter().map(|container| container.name.id).collect();
    let mut named = 0;
    for container in all.iter().filter(|container| container.name.kind == ContainerKind::Metadata) {
        if old.contains(&container.name.id) {
            continue;
        }
        let directory = store.open_container(&container.name).unwrap().directory;
        let plain = container.regions.concat();
        let mut rest = plain.as_slice();
        for chunk in &directory.chunks {
            let (bytes, tail) = rest.split_at(chunk.len as usize);
            rest = tail;
            if chunk.kind != ChunkKind::Tree {
                continue;
            }
            let (contents, hints) = bytes.split_at(bytes.len() - chunk.hints_len as usize);
            let count = decode_node(contents).unwrap().chunk_count();
            for hint in decode_hints(hints, count).unwrap() {
                assert!(listed.contains(&hint.unwrap()), "a new node names a container that is gone");
                named += 1;
            }
        }
    }
    assert!(10 < named, "{named} hints");
}

#[test]
fn a_chunk_that_is_really_lost_is_reported() {
    for notes in [true, false] {
        let repository = Repository::new(2);
        let all = containers(&repository.store);
        let mut collector = repository.collector();
        collector.collect(&all, notes);
        let targets = containers(&repository.store);
        let lost = targets.iter().rfind(|container| container.name.kind == all[0].name.kind).unwrap();
        repository.world.repo().remove(&lost.name.path()).unwrap();
        let (_, report) = repository.world.restore(&repository.store, &repository.snapshot).unwrap();
        assert!(0 < report.failures);
        let left: Vec<OpenContainer> = containers(&repository.store);
        assert!(!left.is_empty());
        for container in &left {
            repository.world.repo().remove(&container.name.path()).unwrap();
        }
        let (_, report) = repository.world.restore(&repository.store, &repository.snapshot).unwrap();
        assert_eq!((report.files, report.failures), (0, 1));
    }
}
