//! The writer's half of garbage collection: condemned containers count as absent, and a fence ends a session.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use onefold_engine::Error;
use onefold_engine::Result;
use onefold_engine::collect::give_up;
use onefold_engine::io::{Access, BatchRead, Disk, DiskEntry, DiskFile, Linked};
use onefold_engine::object::names::{CollectionStep, ContainerKind};
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::snapshot::CollectionBody;
use onefold_engine::snapshot::{CommitBody, CommitKind};
use onefold_engine::store::{Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::{ChunkKind, ContainerId, SessionId};

use crate::integration::support::{
    Ask, OpenContainer, PASSWORD, SMALL, World, containers, directory_store, noise, stored_twice, tree,
};

fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    let file = disk.create(path).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
    disk.sync_dir(path.parent().unwrap()).unwrap();
}

fn read(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Writes a step of a collection.
pub(super) fn collect((world, store): (&World, &Store), number: u32, step: CollectionStep, containers: &[ContainerId]) {
    let name = match step {
        CollectionStep::Begin => "begin",
        CollectionStep::Condemn => "condemn",
        CollectionStep::Final => "final",
        CollectionStep::Done => "done",
    };
    let identity = (store.config.repository, SessionId([9; 16]), number);
    let body = CollectionBody::new(step, containers.to_vec()).encode();
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Collection, identity, &body).unwrap();
    write(&*world.repo(), &directory(number).join(name), &bytes);
}

fn directory(number: u32) -> PathBuf {
    PathBuf::from(format!("gc/{number:08x}"))
}

/// Does what a collection does first: says which containers are about to go.
pub(super) fn condemn((world, store): (&World, &Store), number: u32, condemned: &[ContainerId]) {
    world.repo().create_dir(&directory(number)).unwrap();
    world.repo().sync_dir(Path::new("gc")).unwrap();
    collect((world, store), number, CollectionStep::Condemn, condemned);
}

/// A repository with a snapshot, and its source.
fn world() -> (World, Store, MemTree) {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let source = tree(24);
    source.put_file(Path::new("/d/large"), &noise(99, 300_000));
    world.backup(&store, &source, &Ask::default()).unwrap();
    (world, store, source)
}

fn some_of(all: &[OpenContainer], kind: ContainerKind, every: usize) -> Vec<&OpenContainer> {
    all.iter().filter(|container| container.name.kind == kind).step_by(every).collect()
}

#[test]
fn condemned_containers_count_as_absent_until_their_collection_is_done() {
    for (data_every, metadata_every) in [(2, 1000), (1, 1), (1000, 1)] {
        for with_parent in [false, true] {
            let case = format!("every {data_every}., {metadata_every}., parent {with_parent}");
            let (world, store, source) = world();
            let ask = Ask { with_parent, ..Ask::default() };
            let all = containers(&store);
            let mut condemned = some_of(&all, ContainerKind::Data, data_every);
            condemned.extend(some_of(&all, ContainerKind::Metadata, metadata_every));
            let ids: Vec<ContainerId> = condemned.iter().map(|container| container.name.id).collect();
            // Two collections at once, each with a part.
            condemn((&world, &store), 1, &ids[..ids.len() / 2]);
            condemn((&world, &store), 0x2a, &ids[ids.len() / 2..]);

            // Done, and the containers are still there: they count again.
            let done = world.on(world.disk.fork());
            let done_store = done.open().unwrap();
            for number in [1, 0x2a] {
                collect((&done, &done_store), number, CollectionStep::Done, &[]);
            }
            let report = done.backup(&done_store, &source, &ask).unwrap().report;
            assert_eq!((report.chunks.data_unique, report.chunks.metadata_unique), (0, 0), "{case}");

            // Not done: what they hold is stored again, and nothing new refers to them.
            let report = world.backup(&store, &source, &ask).unwrap().report;
            let count = |kind: fn(ChunkKind) -> bool| {
                let chunks = condemned.iter().flat_map(|container| &container.chunks);
                chunks.filter(|(of, ..)| kind(*of)).count() as u64
            };
            let expected = (count(|kind| kind == ChunkKind::Data), count(|kind| kind != ChunkKind::Data));
            assert_eq!((report.chunks.data_unique, report.chunks.metadata_unique), expected, "{case}");
            for container in &condemned {
                world.repo().remove(&container.name.path()).unwrap();
            }
            let (restored, restore) = world.restore(&store, &report.snapshot).unwrap();
            assert_eq!((restore.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
            assert_eq!(stored_twice(&store), Vec::new(), "{case}");

            // Done, and they are gone: nothing is missed.
            // A `done` that proves nothing does not count: another collection's, copied, or an empty file.
            let copied = read(&*done.repo(), &directory(1).join("done"));
            write(&*world.repo(), &directory(0x2a).join("done"), &copied);
            let still = store.read_absent().unwrap().containers;
            assert_eq!(still, ids.iter().copied().collect(), "{case}");
            world.repo().remove(&directory(0x2a).join("done")).unwrap();
            for number in [1, 0x2a] {
                collect((&world, &store), number, CollectionStep::Done, &[]);
            }
            let report = world.backup(&store, &source, &ask).unwrap().report;
            assert_eq!((report.chunks.data_unique, report.chunks.metadata_unique), (0, 0), "{case}");
        }
    }
}

#[test]
fn a_condemned_set_that_cannot_be_read_stops_the_backup() {
    let (world, store, source) = world();
    condemn((&world, &store), 1, &[]);
    world.repo().open(Path::new("gc/00000001/condemn"), Access::ReadWrite).unwrap().write_at(70, b"?").unwrap();
    let outcome = world.backup(&store, &source, &Ask::default());
    let error = outcome.unwrap_err();
    assert!(error.is_loss() && error.to_string().contains("prune --give-up"), "{error}");
    assert_eq!(store.read_commits().unwrap().snapshots().len(), 1);
    assert_eq!(give_up(&store, "host").unwrap(), Some(1));
    world.backup(&store, &source, &Ask::default()).unwrap();
}

/// A disk on which a collection is always a moment faster: it fences sessions right before they commit.
#[derive(Debug)]
pub(super) struct Fencing {
    pub(super) disk: Arc<dyn Disk>,
    /// The same repository, to seal fences.
    pub(super) store: Store,
    pub(super) left: AtomicUsize,
    pub(super) fenced: Mutex<Vec<SessionId>>,
}

impl Disk for Fencing {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        self.disk.create(path)
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(path, access)
    }
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.disk.create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to)
    }
    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.exchange(from, to)
    }
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        if new.starts_with("commits") && 0 < self.left.load(Ordering::Relaxed) {
            self.left.fetch_sub(1, Ordering::Relaxed);
            let session = SessionId::parse(new.file_name().unwrap().to_str().unwrap()).unwrap();
            let store = &self.store;
            let identity = (store.config.repository, session, 0);
            let body = CommitBody::without_snapshot(CommitKind::Fence).encode();
            let bytes = seal_small(&store.keys, &*store.host, ObjectType::Commit, identity, &body)?;
            write(&*self.disk, new, &bytes);
            self.fenced.lock().unwrap().push(session);
        }
        self.disk.link(existing, new)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.disk.remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk.sync_dir(path)
    }
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.disk.exists(path)
    }
    fn read_batch(&self, reads: &mut [BatchRead]) {
        self.disk.read_batch(reads);
    }
    fn display(&self, path: &Path) -> String {
        self.disk.display(path)
    }
}

#[test]
fn a_fenced_backup_starts_again_and_gives_up_after_three() {
    for fences in 1..=4 {
        let (world, store, source) = world();
        source.put_file(Path::new("/d/new"), &noise(100, 90_000));
        let fencing = Arc::new(Fencing {
            disk: world.watched_repo(),
            store: store.clone(),
            left: AtomicUsize::new(fences),
            fenced: Mutex::new(Vec::new()),
        });
        let disk: Arc<dyn Disk> = Arc::clone(&fencing) as Arc<dyn Disk>;
        let fenced_store = open(&directory_store(disk), &world.host, Unlock::Password(PASSWORD)).unwrap();
        let outcome = world.backup(&fenced_store, &source, &Ask { with_parent: true, ..Ask::default() });
        let fenced: BTreeSet<SessionId> = fencing.fenced.lock().unwrap().iter().copied().collect();
        let commits = store.read_commits().unwrap();
        assert!(commits.findings.is_empty());
        let snapshots: Vec<SessionId> = commits.snapshots().iter().map(|(session, _)| *session).collect();
        assert!(snapshots.iter().all(|session| !fenced.contains(session)));
        if fences < 3 {
            let report = outcome.unwrap().report;
            assert_eq!((fenced.len(), snapshots.len()), (fences, 2));
            assert!(snapshots.contains(&report.session));
            let (restored, restore) = world.restore(&store, &report.snapshot).unwrap();
            assert_eq!((restore.failures, source.diff(&restored)), (0, Vec::new()));
        } else {
            assert!(matches!(outcome, Err(Error::Fenced { .. })), "{outcome:?}");
            assert_eq!((fenced.len(), snapshots.len()), (3, 1));
        }
    }
}
