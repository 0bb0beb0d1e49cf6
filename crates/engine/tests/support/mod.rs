//! A small world for integration tests: a simulated disk with a repository and a host's cache on it.

pub(super) mod faulty_target;
pub(super) mod hooked;
pub(super) mod oracle;
pub(super) mod watched;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::accelerator::Accelerator;
use onefold_engine::backup::rewriting::History;
use onefold_engine::backup::{AccessTimes, BackupOptions, BaseChoices, Budget, Comparison, Monitor, Unchanged};
use onefold_engine::check::{HeadsAccess, HeadsDir, LostHeads};
use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::crypto::slot::{PasswordCost, SlotLabel};
use onefold_engine::identify::{IndexOptions, IndexPreset, Schedule};
use onefold_engine::io::tree::{EntryKind, SourceTree, TargetTree, Trust, Xattr};
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::object::FormatVersion;
use onefold_engine::object::ObjectStore;
use onefold_engine::object::directory::DirectoryStore;
use onefold_engine::object::names::{ContainerName, Prefix};
use onefold_engine::object::store::Detail;
use onefold_engine::pipeline::Driver;
use onefold_engine::random::SplitMix64;
use onefold_engine::repo::{BackupOutcome, BackupRequest, Cache, backup};
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreReport, RestoreRequest, restore};
use onefold_engine::similarity::choose::Limits;
use onefold_engine::snapshot::{CommitBody, CommitKind, SessionKind, Snapshot};
use onefold_engine::source::exclude::Excludes;
use onefold_engine::store::base_reader::BaseReader;
use onefold_engine::store::create::{Adjustments, Purpose};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{CreateOptions, Session, Store, Unlock, create, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{JobCounts, SimDisk, SimHost};
use onefold_engine::types::{ChunkKind, Fingerprint, SessionId, Timestamp};
use onefold_engine::{Error, Result};

use oracle::Oracle;
use watched::WatchedDisk;

/// Password of the repositories of tests.
pub(super) const PASSWORD: &[u8] = b"correct horse";

/// Deriving a key must cost tests next to nothing. What users get is the command's business, which has a floor.
pub(super) const CHEAP: PasswordCost = PasswordCost { memory_kib: 64, passes: 1, lanes: 1 };

/// Small containers and chunks, so that little data makes many of them.
pub(super) const SMALL: Adjustments = Adjustments {
    purpose: Purpose::Files,
    chunk_bytes: Some(512),
    fixed_bytes: None,
    region_bytes: Some(8 << 10),
    container_bytes: Some(64 << 10),
    format: FormatVersion::V2,
    no_similarity: false,
};

/// The same in format 1.
pub(super) const SMALL_1: Adjustments = Adjustments { format: FormatVersion::V1, ..SMALL };

/// Listens, and keeps what it hears.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Failures, as sentences.
    pub failures: std::sync::Mutex<Vec<String>>,
    /// Other messages.
    pub notes: std::sync::Mutex<Vec<String>>,
}

impl Monitor for Notes {
    fn failure(&self, path: &Path, error: &Error) {
        self.failures.lock().unwrap().push(format!("{}: {error}", path.display()));
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
}

/// A disk with `repo` and `cache` on it, and the clock and randomness beside it.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// The disk.
    pub disk: SimDisk,
    /// The host.
    pub host: Arc<dyn Host>,
    /// The same host, for its counts of background jobs.
    pub(super) simulated: Arc<SimHost>,
    /// Asserts that nothing is removed that a snapshot needs; `None` in tests of repositories that lie.
    oracle: Option<Arc<Oracle>>,
}

/// Background jobs of the index.
const JOB_KINDS: [&str; 4] = ["flush", "lookup", "log write", "window read"];

/// Sums of the counts of deferred jobs, by kind.
#[derive(Default, Debug)]
pub(super) struct JobTotals(BTreeMap<&'static str, JobCounts>);

impl JobTotals {
    /// Adds the jobs of a world.
    pub(super) fn add(&mut self, world: &World) {
        for (kind, counts) in world.simulated.job_counts() {
            let total = self.0.entry(kind).or_default();
            total.overlapped += counts.overlapped;
            total.lost += counts.lost;
            total.interrupted += counts.interrupted;
        }
    }

    /// Prints the counts; fails if a kind of job never overlapped with the stream.
    pub(super) fn assert_overlapped(&self, test: &str) {
        for kind in JOB_KINDS {
            tell(&format!("{test}, {kind}: {:?}", self.of(kind)));
        }
        self.assert_each(test, "overlapped", |counts| counts.overlapped);
    }

    /// Like [`JobTotals::assert_overlapped`]; also fails if no fault struck in a kind of job.
    pub(super) fn assert_interrupted(&self, test: &str) {
        self.assert_overlapped(test);
        self.assert_each(test, "was interrupted", |counts| counts.interrupted);
    }

    /// Like [`JobTotals::assert_interrupted`]; also fails if no crash came before a kind of job.
    pub(super) fn assert_crashed(&self, test: &str) {
        self.assert_interrupted(test);
        self.assert_each(test, "was lost", |counts| counts.lost);
    }

    fn assert_each(&self, test: &str, what: &str, count: impl Fn(JobCounts) -> u64) {
        for kind in JOB_KINDS {
            assert!(0 < count(self.of(kind)), "{test}: no {kind} {what}");
        }
    }

    fn of(&self, kind: &str) -> JobCounts {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

/// What a backup in a test is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// How stages run.
    pub driver: Driver,
    /// How chunks are identified.
    pub schedule: Schedule,
    /// Whether the newest snapshot's references may be reused.
    pub with_parent: bool,
    /// Bytes of the filter; `None` for what the budget gives.
    pub filter_bytes: Option<usize>,
    /// Memory of index entries that are not written out; `None` for what the budget gives.
    pub memtable_bytes: Option<usize>,
    /// Division of the memory.
    pub budget: Budget,
    /// Device that searches and names, too.
    pub accelerator: Option<Accelerator>,
    /// Patterns that are left out.
    pub excludes: Arc<Excludes>,
    /// Who listens.
    pub monitor: Arc<dyn Monitor>,
    /// Limits of the search for similar regions; `None`: there is none.
    pub similarity: Option<Limits>,
    /// Who chooses bases instead.
    pub bases: BaseChoices,
    /// Bounds of what is stored again.
    pub rewriting: Option<History>,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            driver: Driver::inline(1),
            // As backups outside tests, but for a pool that so few chunks fill.
            schedule: Schedule::Adaptive,
            with_parent: false,
            filter_bytes: None,
            memtable_bytes: None,
            budget: Budget { barrier_containers: 2, references_in_flight: 2000, ..Budget::of(64 << 20, 2) },
            accelerator: None,
            excludes: Arc::default(),
            monitor: Arc::new(Notes::default()),
            similarity: None,
            bases: BaseChoices::default(),
            rewriting: None,
        }
    }
}

impl World {
    /// An empty disk.
    pub(super) fn new(seed: u64) -> Self {
        Self::with(SimDisk::new(), SimHost::deferring(seed))
    }

    /// A disk and a host.
    pub(super) fn with(disk: SimDisk, host: SimHost) -> Self {
        let simulated = Arc::new(host);
        simulated.observe(&disk, &MemTree::new());
        let oracle = Some(Arc::default());
        Self { disk, host: Arc::clone(&simulated) as Arc<dyn Host>, simulated, oracle }
    }

    /// The same world on another disk: after a crash, or a fork of it.
    pub(super) fn on(&self, disk: SimDisk) -> Self {
        self.simulated.observe(&disk, &MemTree::new());
        Self { disk, ..self.clone() }
    }

    /// The same world, in which anything may be removed: for snapshots whose manifests lie, and for losses.
    pub(super) fn without_oracle(&self) -> Self {
        Self { oracle: None, ..self.clone() }
    }

    /// Returns how many containers were removed from the repository and its forks, and how many of their chunks a snapshot
    /// needed, so that the oracle has found them elsewhere.
    pub(super) fn removals(&self) -> (u64, u64) {
        self.oracle.as_ref().map_or((0, 0), |oracle| oracle.counts())
    }

    /// The repository's directory, of which anything may be removed.
    pub(super) fn repo(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.subdir("repo"))
    }

    /// The repository's directory as a process uses it: with the oracle, which asserts that nothing is removed that a snapshot
    /// needs.
    pub(super) fn watched_repo(&self) -> Arc<dyn Disk> {
        let Some(oracle) = &self.oracle else { return self.repo() };
        // The oracle draws nothing from the world's host and counts no call of its disk.
        let open = |disk: SimDisk| {
            let host: Arc<dyn Host> = Arc::new(SimHost::new(0));
            open(&directory_store(Arc::new(disk)), &host, Unlock::Password(PASSWORD)).expect("the repository opens")
        };
        WatchedDisk::watch(self.disk.subdir("repo"), Arc::clone(oracle), open)
    }

    /// The repository's objects.
    pub(super) fn objects(&self) -> Arc<dyn ObjectStore> {
        directory_store(self.watched_repo())
    }

    /// The host's cache.
    pub(super) fn cache(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.subdir("cache"))
    }

    /// Makes an encrypted repository.
    pub(super) fn create(&self, adjustments: Adjustments) -> Result<Store> {
        let options = CreateOptions { password: Some(PASSWORD), cost: CHEAP, label: SlotLabel::default(), adjustments };
        create(&self.objects(), &self.host, &options)
    }

    /// Opens the repository.
    pub(super) fn open(&self) -> Result<Store> {
        open(&self.objects(), &self.host, Unlock::Password(PASSWORD))
    }

    /// Where files spill.
    pub(super) fn scratch(&self) -> Scratch {
        scratch_on(&self.cache())
    }

    /// Backs up `/` of a tree.
    pub(super) fn backup(&self, store: &Store, tree: &MemTree, ask: &Ask) -> Result<BackupOutcome> {
        self.simulated.observe(&self.disk, tree);
        back_up(store, &self.cache(), Arc::new(tree.clone()), Path::new("/"), ask)
    }

    /// Restores a snapshot to memory.
    pub(super) fn restore(&self, store: &Store, snapshot: &Snapshot) -> Result<(MemTree, RestoreReport)> {
        let target = MemTree::new();
        let report = restore_to(store, &self.cache(), snapshot, Path::new("/"), Arc::new(target.clone()))?;
        Ok((target, report))
    }
}

/// Returns the newest snapshot of a repository.
pub(super) fn newest(store: &Store) -> Result<Option<(SessionId, Snapshot)>> {
    Ok(store.read_commits()?.snapshots().pop().map(|(session, snapshot)| (session, snapshot.clone())))
}

/// Prints a line that the test harness does not hold back.
pub(super) fn tell(line: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Backs up a directory of a source.
pub(super) fn back_up(
    store: &Store,
    cache: &Arc<dyn Disk>,
    source: Arc<dyn SourceTree>,
    root: &Path,
    ask: &Ask,
) -> Result<BackupOutcome> {
    let parent = if ask.with_parent { newest(store)? } else { None };
    let mut index = IndexOptions::for_memory(8 << 20);
    index.schedule = ask.schedule;
    index.filter_bytes = ask.filter_bytes.unwrap_or(64 << 10);
    if ask.filter_bytes.is_some() {
        // As bad as it gets.
        (index.filter_bytes_max, index.filter_hashes) = (index.filter_bytes, 1);
    }
    // So few that the log is written while the stream goes on.
    index.log_tail_pages = 1;
    index.memtable_bytes = ask.memtable_bytes.unwrap_or(index.memtable_bytes);
    let request = BackupRequest {
        cache: &Cache { disk: Arc::clone(cache), dir: PathBuf::new() },
        index,
        source,
        options: BackupOptions {
            roots: vec![root.to_path_buf()],
            paths: vec![root.as_os_str().as_encoded_bytes().to_vec()],
            excludes: Arc::clone(&ask.excludes),
            exclude_texts: Vec::new(),
            tags: Vec::new(),
            hostname: "host".into(),
            username: "user".into(),
            uid: 0,
            gid: 0,
            time: None,
            parent,
            comparison: Comparison::Full,
            unchanged: Unchanged::Make,
            compression: Compression::Zstd(1),
            program: "onefold test".into(),
            preset: IndexPreset::default(),
            budget: ask.budget,
            accelerator: ask.accelerator.clone(),
            scratch: scratch_on(cache),
            similarity: ask.similarity,
            access_times: AccessTimes::LeftOut,
            bases: ask.bases.clone(),
            rewriting: ask.rewriting,
        },
        heads: Some(heads_on(cache)),
        driver: ask.driver.clone(),
        monitor: Arc::clone(&ask.monitor),
    };
    backup(store, &request)
}

/// Restores a directory of a snapshot.
pub(super) fn restore_to(
    store: &Store,
    cache: &Arc<dyn Disk>,
    snapshot: &Snapshot,
    path: &Path,
    target: Arc<dyn TargetTree>,
) -> Result<RestoreReport> {
    restore(store, &restore_request(cache, snapshot, path, target))
}

/// Returns the request of a restore with little memory.
pub(super) fn restore_request<'a>(
    cache: &Arc<dyn Disk>,
    snapshot: &Snapshot,
    path: &'a Path,
    target: Arc<dyn TargetTree>,
) -> RestoreRequest<'a> {
    RestoreRequest {
        tree: snapshot.tree,
        path,
        filter: Filter::default(),
        target,
        effect: Effect::Write,
        overwrite: Overwrite::Refuse,
        full_directories: FullDirectories::Keep,
        verify: false,
        trust: Trust::Full,
        scratch: scratch_on(cache),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        monitor: Arc::new(Notes::default()),
    }
}

/// Directory in which a host remembers the newest snapshots.
pub(super) fn heads_on(cache: &Arc<dyn Disk>) -> HeadsDir {
    let (disk, locations) = (Arc::clone(cache), Arc::clone(cache));
    let (dir, location) = (PathBuf::new(), PathBuf::from("/repository"));
    HeadsDir { disk, dir, location, locations, lost: LostHeads::Report, access: HeadsAccess::Update }
}

fn scratch_on(cache: &Arc<dyn Disk>) -> Scratch {
    Scratch { disk: Some(Arc::clone(cache)), dir: PathBuf::new() }
}

/// Bytes that compress to nothing less and are the same for the same seed.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A tree of `files` files, some of them alike, with every kind of entry.
pub(super) fn tree(files: u64) -> MemTree {
    let tree = MemTree::new();
    for directory in ["/d", "/d/empty", "/d/e"] {
        tree.put_dir(Path::new(directory));
    }
    for number in 0..files {
        let len = usize::try_from(number * number * 131 % 20_000).unwrap();
        let seed = number - number % 2 * u64::from(number % 3 == 0);
        tree.put_file(Path::new(&format!("/d/file-{number:03}")), &noise(seed, len));
    }
    tree.put_file(Path::new("/d/e/text"), "onefold stores everything once\n".repeat(900).as_bytes());
    tree.put_sparse(Path::new("/d/e/sparse"), 300_000, &[(8192, b"island"), (100_000, &[7; 5000])]);
    tree.put_symlink(Path::new("/d/e/link"), "../file-001".as_ref());
    tree.create_special(Path::new("d/e/fifo"), EntryKind::Fifo, 0).unwrap();
    tree.hard_link(Path::new("d/e/text"), Path::new("d/e/text-again")).unwrap();
    let attributes = [Xattr { name: "user.note".into(), value: b"value".to_vec() }];
    tree.set_xattrs(Path::new("/d/e/text"), &attributes);
    let before_1970 = Timestamp { seconds: -1_000, nanoseconds: 999_999_999 };
    tree.edit(Path::new("/d/file-001"), |metadata| metadata.mtime = before_1970);
    tree
}

/// Changes a tree that [`tree`] made: one file rewritten, one appended to, one gone, one new.
pub(super) fn change(tree: &MemTree) {
    tree.remove(Path::new("d/file-003")).unwrap();
    tree.put_file(Path::new("/d/file-005"), &noise(905, 9000));
    tree.put_file(Path::new("/d/e/new"), &noise(906, 30_000));
}

/// Copies a tree, so that the original can change.
pub(super) fn copy(tree: &MemTree) -> MemTree {
    MemTree::load(tree, Path::new("/")).unwrap()
}

/// Copies a tree with all that only the original has: devices, inodes and change times. A backup of it makes the nodes that one of the
/// original makes.
pub(super) fn twin(tree: &MemTree) -> MemTree {
    let twin = copy(tree);
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        let metadata = SourceTree::metadata(tree, &path).unwrap();
        if metadata.kind == EntryKind::Directory {
            todo.extend(SourceTree::list(tree, &path).unwrap().iter().map(|name| path.join(name)));
        }
        twin.edit(&path, |own| *own = metadata);
    }
    twin
}

/// A container as it lies in the repository, opened and decompressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OpenContainer {
    /// Its name.
    pub name: ContainerName,
    /// Its chunks in order.
    pub chunks: Vec<(ChunkKind, Fingerprint, u32)>,
    /// The plaintext of its regions in order.
    pub regions: Vec<Vec<u8>>,
}

/// Returns the names of all containers, by session and number. There must be no other files among them.
pub(super) fn container_names(store: &Store) -> Vec<ContainerName> {
    let mut unknown = Vec::new();
    let listed = store.objects.list(Prefix::Containers, Detail::Names, &mut |page| {
        unknown.extend(page.into_iter().filter_map(|listed| listed.name.err()));
        Ok(())
    });
    listed.unwrap();
    assert_eq!(unknown, Vec::<String>::new());
    store.list_containers(&Scratch::default()).unwrap().names().map(Result::unwrap).collect()
}

/// Returns a reader of bases in all containers of a repository.
pub(super) fn bases_of(store: &Store) -> BaseReader {
    BaseReader::new(store, &store.list_containers(&Scratch::default()).unwrap(), 8 << 20)
}

/// Opens all containers of a repository, by session and number.
pub(super) fn containers(store: &Store) -> Vec<OpenContainer> {
    let mut compressor = Compressor::default();
    let bases = bases_of(store);
    let mut all = Vec::new();
    for name in container_names(store) {
        let reader = store.open_container(&name).unwrap();
        let bytes = store.read_container(&name).unwrap();
        let mut regions = Vec::new();
        for region in 0..u32::try_from(reader.directory.regions.len()).unwrap() {
            let (offset, len) = reader.region_range(region).unwrap();
            let offset = usize::try_from(offset).unwrap();
            let mut sealed = bytes[offset..offset + len as usize].to_vec();
            let mut plain = Vec::new();
            let prefix = bases.prefix_of(&reader, region).unwrap();
            reader.open_region(region, &prefix, &mut sealed, &mut compressor, &mut plain).unwrap();
            regions.push(plain);
        }
        let chunks = reader.directory.chunks.iter();
        let chunks = chunks.map(|chunk| (chunk.kind, chunk.fingerprint.unwrap(), chunk.len)).collect();
        all.push(OpenContainer { name, chunks, regions });
    }
    all
}

/// Returns every chunk stored, as often as it is stored.
pub(super) fn stored_chunks(store: &Store, kinds: &[ChunkKind]) -> Vec<Fingerprint> {
    let all = containers(store).into_iter().flat_map(|container| container.chunks);
    all.filter(|(kind, ..)| kinds.contains(kind)).map(|(_, fingerprint, _)| fingerprint).collect()
}

/// Returns the chunks that are stored more than once.
pub(super) fn stored_twice(store: &Store) -> Vec<Fingerprint> {
    let mut seen = std::collections::HashSet::new();
    let all = stored_chunks(store, &[ChunkKind::Data, ChunkKind::Tree, ChunkKind::Recipe]);
    all.into_iter().filter(|fingerprint| !seen.insert(*fingerprint)).collect()
}

/// Choices that a seed repeats.
#[derive(Clone, Debug)]
pub(super) struct Draw(SplitMix64);

impl Draw {
    /// Starts at a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Draws any number.
    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.index(end)
    }

    /// Returns true once in `times`.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Draws one of them.
    pub(super) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The objects of a repository on a disk.
pub(super) fn directory_store(disk: Arc<dyn Disk>) -> Arc<dyn ObjectStore> {
    Arc::new(DirectoryStore::new(disk))
}

/// Hashes all names and bytes below a directory.
pub(super) fn hash_directory(disk: &SimDisk, directory: &Path, hasher: &mut blake3::Hasher) {
    for entry in disk.list(directory).unwrap() {
        let path = directory.join(&entry.name);
        hasher.update(format!("{path:?} {}", entry.is_dir).as_bytes());
        if entry.is_dir {
            hash_directory(disk, &path, hasher);
        } else {
            let file = disk.open(&path, Access::Read).unwrap();
            let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
            file.read_at(0, &mut bytes).unwrap();
            hasher.update(blake3::hash(&bytes).as_bytes());
        }
    }
}

/// Commits a snapshot as it is.
pub(super) fn commit(world: &World, store: &Store, snapshot: Snapshot) -> SessionId {
    let session = Session::begin(store, &world.scratch(), SessionKind::Backup, "host").unwrap();
    let body = CommitBody {
        kind: CommitKind::Snapshot,
        snapshot: Some(snapshot),
        heads: session.heads.clone(),
        manifest: None,
    };
    session.commit(&body).unwrap();
    session.id
}
