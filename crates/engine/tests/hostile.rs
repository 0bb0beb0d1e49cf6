//! Repositories made to hurt whoever restores them: nothing outside of the target changes, and it is told.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::backup::Monitor;
use onefold_engine::codec::{put_string, put_varint};
use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::container::{Packer, Region, RegionChunk, Sealer};
use onefold_engine::crypto::slot::{PasswordCost, Slot, SlotLabel, hex};
use onefold_engine::io::AlignedBuffer;
use onefold_engine::io::discard::DiscardTarget;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::os_target::OsTarget;
use onefold_engine::io::tree::{EntryKind, SourceTree, TargetTree, Trust};
use onefold_engine::object::names::{ContainerKind, ObjectCopy, ObjectName};
use onefold_engine::object::slot::encode_slot;
use onefold_engine::object::store::Created;
use onefold_engine::pipeline::Driver;
use onefold_engine::recipe::{MetadataSink, Recipe, RecipeItem};
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreReport, RestoreRequest, restore};
use onefold_engine::snapshot::OwnerNames;
use onefold_engine::snapshot::{CommitBody, CommitKind, SessionKind, Snapshot, Summary};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::slots::{NewSlot, SLOTS_MAX, SlotPolicy, add_slot, read_slots, replace_slot, unlock};
use onefold_engine::store::{Session, Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::tree::{Child, Content, Entry, EntryNotes, Link};
use onefold_engine::types::{Chunk, ChunkKind, Fingerprint, Sequence, SessionId, Timestamp};
use onefold_engine::{Error, Result};

use crate::integration::support::{CHEAP, Notes, PASSWORD, SMALL, World};

/// Writes whatever it is told as a session of a repository whose password it knows.
struct Forger {
    store: Store,
    session: Session,
    ordinals: u32,
    compressor: Compressor,
    region: Region,
    packer: Packer,
}

impl Forger {
    fn new(store: &Store) -> Self {
        let session = Session::begin(store, &Scratch::default(), SessionKind::Backup, "mallory").unwrap();
        let packer = Packer::new(
            session.id,
            (store.config.format, ContainerKind::Metadata),
            store.config.container_bytes,
            Compression::Off,
        );
        let (region, compressor) = (Region::default(), Compressor::default());
        Self { store: store.clone(), session, ordinals: 0, compressor, region, packer }
    }

    fn chunk(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> RegionChunk {
        let len = u32::try_from(contents.len() + hints.len()).unwrap();
        let chunk = Chunk { fingerprint: self.store.keys.fingerprint(kind, contents), len };
        RegionChunk { chunk, kind, hints_len: u32::try_from(hints.len()).unwrap(), sequence: Sequence(0) }
    }

    fn write(&mut self, builder: &onefold_engine::container::ContainerBuilder) {
        let mut random = [0; 32];
        self.store.host.random(&mut random).unwrap();
        let (keys, repository) = (&self.store.keys, self.store.config.repository);
        let sealed = Sealer::default().seal(keys, repository, builder, &random, AlignedBuffer::default()).unwrap();
        let put = self.session.put(sealed.name, &sealed.bytes).unwrap();
        self.store.objects.barrier(vec![put]).unwrap();
    }

    fn end_region(&mut self) {
        let mut region = std::mem::take(&mut self.region);
        if region.chunks.is_empty() {
            return;
        }
        region.compress(&mut self.compressor, Compression::Off);
        let full = self.packer.push(region, &mut self.compressor, &mut self.ordinals).full;
        for builder in &full {
            self.write(builder);
        }
    }

    /// Stores a data chunk in a container of its own.
    fn data(&mut self, bytes: &[u8]) -> Fingerprint {
        let chunk = self.chunk(ChunkKind::Data, bytes, &[]);
        let (format, container_bytes) = (self.store.config.format, self.store.config.container_bytes);
        let mut packer = Packer::new(self.session.id, (format, ContainerKind::Data), container_bytes, Compression::Off);
        let mut region = Region::default();
        let fingerprint = chunk.chunk.fingerprint;
        region.push(chunk, bytes);
        region.compress(&mut self.compressor, Compression::Off);
        let full = packer.push(region, &mut self.compressor, &mut self.ordinals).full;
        full.into_iter().chain(packer.finish()).for_each(|builder| self.write(&builder));
        fingerprint
    }

    /// Stores a directory of these entries, in this order, whatever they are called.
    fn directory(&mut self, entries: &[Entry]) -> Fingerprint {
        let mut contents = vec![0];
        put_varint(&mut contents, entries.len() as u64);
        for entry in entries {
            entry.encode(&mut contents);
        }
        self.store(ChunkKind::Tree, &contents, &[]).unwrap()
    }

    /// Stores a list of nodes.
    fn list(&mut self, level: u8, children: &[Child]) -> Fingerprint {
        let mut contents = vec![level];
        put_varint(&mut contents, children.len() as u64);
        for child in children {
            contents.extend_from_slice(&child.node.0);
            put_varint(&mut contents, child.entries);
            put_string(&mut contents, &child.first_name);
        }
        self.store(ChunkKind::Tree, &contents, &[]).unwrap()
    }

    fn commit(mut self, tree: Fingerprint) -> Snapshot {
        self.end_region();
        if let Some(builder) = self.packer.finish() {
            self.write(&builder);
        }
        let snapshot = Snapshot {
            time: Timestamp::default(),
            file_clock: Timestamp::default(),
            tree,
            hostname: String::new(),
            username: String::new(),
            uid: 0,
            gid: 0,
            paths: Vec::new(),
            positions: Vec::new(),
            is_incomplete: false,
            owners: OwnerNames::default(),
            tags: Vec::new(),
            excludes: Vec::new(),
            parent: None,
            original: None,
            journal: None,
            rewritten: None,
            program: String::new(),
            index: None,
            summary: Summary::default(),
        };
        let body = CommitBody {
            kind: CommitKind::Snapshot,
            snapshot: Some(snapshot.clone()),
            heads: Vec::new(),
            manifest: None,
        };
        self.session.commit(&body).unwrap();
        snapshot
    }
}

impl MetadataSink for Forger {
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
        let chunk = self.chunk(kind, contents, hints);
        if self.store.config.region_bytes < self.region.plain_len + chunk.chunk.len {
            self.end_region();
        }
        let fingerprint = chunk.chunk.fingerprint;
        self.region.push(chunk, &[contents, hints].concat());
        Ok(fingerprint)
    }
}

fn entry(name: &[u8], kind: EntryKind, content: Content) -> Entry {
    Entry {
        name: name.to_vec(),
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: Timestamp { seconds: 5, nanoseconds: 6 },
        xattrs: Vec::new(),
        link: None,
        content,
        notes: EntryNotes::default(),
    }
}

fn file(name: &[u8], items: Vec<RecipeItem>) -> Entry {
    let recipe = Recipe { level: 0, items };
    entry(name, EntryKind::File, Content::File { ctime: Timestamp::default(), inode: 1, recipe })
}

fn directory(name: &[u8], node: Fingerprint) -> Entry {
    entry(name, EntryKind::Directory, Content::Directory { node })
}

fn symlink(name: &[u8], target: &[u8]) -> Entry {
    entry(name, EntryKind::Symlink, Content::Symlink { target: target.to_vec() })
}

/// Restores, with what was told.
fn restore_into(
    world: &World,
    store: &Store,
    snapshot: &Snapshot,
    target: Arc<dyn TargetTree>,
    overwrite: Overwrite,
) -> (Result<RestoreReport>, Vec<String>) {
    let notes = Arc::new(Notes::default());
    let request = RestoreRequest {
        tree: snapshot.tree,
        path: Path::new("/"),
        filter: Filter::default(),
        target,
        effect: Effect::Write,
        overwrite,
        full_directories: FullDirectories::Keep,
        verify: false,
        trust: Trust::Untrusted,
        scratch: Scratch { disk: Some(world.cache()), dir: "".into() },
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        monitor: Arc::clone(&notes) as Arc<dyn Monitor>,
    };
    let report = restore(store, &request);
    let told = notes.failures.lock().unwrap().clone();
    (report, told)
}

/// A directory with a target in it and something beside the target that must not change.
struct Surroundings {
    directory: tempfile::TempDir,
    before: MemTree,
}

impl Surroundings {
    fn new(plant: impl Fn(&OsTarget)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let all = OsTarget::open(directory.path()).unwrap();
        all.create_dir(Path::new("target")).unwrap();
        all.create_dir(Path::new("outside")).unwrap();
        all.create_file(Path::new("outside/file")).unwrap().write_at(0, b"precious").unwrap();
        plant(&all);
        let before = MemTree::load(&OsSource::new(), &directory.path().join("outside")).unwrap();
        Self { directory, before }
    }

    fn target(&self) -> Arc<dyn TargetTree> {
        Arc::new(OsTarget::open(&self.directory.path().join("target")).unwrap())
    }

    /// Nothing but the target has changed; returns what is in it.
    fn assert_untouched(&self, case: &str) -> MemTree {
        let source = OsSource::new();
        let after = MemTree::load(&source, &self.directory.path().join("outside")).unwrap();
        assert_eq!(self.before.diff(&after), Vec::<String>::new(), "{case}");
        assert_eq!(source.list(self.directory.path()).unwrap(), ["outside", "target"], "{case}");
        MemTree::load(&source, &self.directory.path().join("target")).unwrap()
    }
}

/// Restores a forged tree to memory and to disk. It must be told `failures` times that something is wrong, and the sound
/// file beside it must come back all the same. Returns what was restored on disk.
fn check(case: &str, failures: u64, plant: impl Fn(&OsTarget), forge: impl Fn(&mut Forger) -> Vec<Entry>) -> MemTree {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let mut forger = Forger::new(&store);
    let mut entries = forge(&mut forger);
    let fingerprint = forger.data(b"sound");
    entries.push(file(b"zz-sound", vec![RecipeItem::Chunk(Chunk { fingerprint, len: 5 })]));
    let root = forger.directory(&entries);
    let snapshot = forger.commit(root);
    // MemTree panics on names that the engine must never hand to a target.
    let memory = Arc::new(MemTree::new());
    let surroundings = Surroundings::new(plant);
    for target in [Arc::clone(&memory) as Arc<dyn TargetTree>, surroundings.target()] {
        let (report, told) = restore_into(&world, &store, &snapshot, target, Overwrite::Always);
        let report = report.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!((report.failures, told.len() as u64), (failures, failures), "{case}: {told:?}");
    }
    let restored = surroundings.assert_untouched(case);
    for restored in [&memory, &restored] {
        let sound = SourceTree::open(restored, Path::new("/zz-sound")).unwrap();
        let mut bytes = [0; 5];
        assert_eq!(sound.read_at(0, &mut bytes).unwrap(), 5, "{case}");
        assert_eq!(&bytes, b"sound", "{case}");
    }
    restored
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let bad: [&[u8]; 9] =
        [b"..", b".", b"", b"../outside/file", b"/etc/passwd", b"a/b", b"nul\0", b"../outside", &[b'x'; 256]];
    for name in bad {
        let case = format!("{:?}", name.escape_ascii().to_string());
        let restored = check(
            &case,
            1,
            |_| {},
            |forger| {
                let fingerprint = forger.data(b"evil");
                let inner = forger.directory(&[file(name, vec![RecipeItem::Chunk(Chunk { fingerprint, len: 4 })])]);
                let empty = forger.directory(&[]);
                let below = forger.directory(&[directory(b"ok", empty)]);
                vec![directory(b"d", inner), directory(b"e", below)]
            },
        );
        let d = SourceTree::list(&restored, Path::new("/d")).unwrap();
        assert_eq!(d, Vec::<std::ffi::OsString>::new(), "{case}");
        // As a directory, and as the first name of a list of nodes.
        check(
            &case,
            1,
            |_| {},
            |forger| {
                let empty = forger.directory(&[]);
                let inner = forger.directory(&[directory(name, empty)]);
                vec![directory(b"d", inner)]
            },
        );
        check(
            &case,
            1,
            |_| {},
            |forger| {
                let node = forger.directory(&[]);
                let inner = forger.list(1, &[Child { node, entries: 1, first_name: name.to_vec() }]);
                vec![directory(b"d", inner)]
            },
        );
    }
}

#[test]
fn names_that_come_twice_are_refused() {
    let link_then_file = |forger: &mut Forger| {
        let fingerprint = forger.data(b"evil");
        let first = symlink(b"x", b"../outside/file");
        let second = file(b"x", vec![RecipeItem::Chunk(Chunk { fingerprint, len: 4 })]);
        (first, second)
    };
    check(
        "in one node",
        1,
        |_| {},
        |forger| {
            let (first, second) = link_then_file(forger);
            vec![directory_of(forger, &[first, second])]
        },
    );
    check(
        "in two nodes",
        1,
        |_| {},
        |forger| {
            let (first, second) = link_then_file(forger);
            let nodes = [forger.directory(&[first]), forger.directory(&[second])];
            let children = nodes.map(|node| Child { node, entries: 1, first_name: b"x".to_vec() });
            let [a, b] = children;
            // The list itself lies about what its nodes begin with.
            let list = forger.list(1, &[Child { first_name: b"a".to_vec(), ..a }, b]);
            vec![directory(b"d", list)]
        },
    );
    check(
        "a link, then a directory behind it",
        1,
        |_| {},
        |forger| {
            let fingerprint = forger.data(b"evil");
            let inner = forger.directory(&[file(b"file", vec![RecipeItem::Chunk(Chunk { fingerprint, len: 4 })])]);
            let nodes =
                [forger.directory(&[symlink(b"x", b"../outside")]), forger.directory(&[directory(b"x", inner)])];
            let [a, b] = nodes.map(|node| Child { node, entries: 1, first_name: b"x".to_vec() });
            let list = forger.list(1, &[Child { first_name: b"a".to_vec(), ..a }, b]);
            vec![directory(b"d", list)]
        },
    );
}

fn directory_of(forger: &mut Forger, entries: &[Entry]) -> Entry {
    let node = forger.directory(entries);
    directory(b"d", node)
}

#[test]
fn levels_and_lengths_that_lie_are_refused() {
    check(
        "a node of a wrong level",
        1,
        |_| {},
        |forger| {
            let leaf = forger.directory(&[]);
            let child = |node| Child { node, entries: 1, first_name: b"a".to_vec() };
            let two = forger.list(3, &[child(leaf)]);
            vec![directory(b"d", two)]
        },
    );
    check(
        "a chunk that is longer than it is",
        1,
        |_| {},
        |forger| {
            let fingerprint = forger.data(b"four");
            vec![file(b"f", vec![RecipeItem::Chunk(Chunk { fingerprint, len: 5 })])]
        },
    );
    check(
        "a chunk of four gigabytes",
        1,
        |_| {},
        |forger| {
            let fingerprint = forger.data(b"four");
            vec![file(b"f", vec![RecipeItem::Chunk(Chunk { fingerprint, len: u32::MAX })])]
        },
    );
    check(
        "a chunk that is nowhere",
        1,
        |_| {},
        |_| vec![file(b"f", vec![RecipeItem::Chunk(Chunk { fingerprint: Fingerprint([7; 32]), len: 5 })])],
    );
    check(
        "a segment whose length lies",
        1,
        |_| {},
        |forger| {
            let fingerprint = forger.data(b"four");
            let mut segment = Vec::new();
            Recipe { level: 0, items: vec![RecipeItem::Chunk(Chunk { fingerprint, len: 4 })] }.encode(&mut segment);
            let fingerprint = forger.store(ChunkKind::Recipe, &segment, &[]).unwrap();
            let recipe = Recipe { level: 1, items: vec![RecipeItem::Segment { fingerprint, len: 1 << 40 }] };
            vec![entry(b"f", EntryKind::File, Content::File { ctime: Timestamp::default(), inode: 1, recipe })]
        },
    );
    check(
        "a length that overflows",
        1,
        |_| {},
        |forger| {
            let holes = vec![RecipeItem::Hole { len: 1 << 62 }, RecipeItem::Hole { len: 1 << 62 }];
            vec![directory_of(forger, &[file(b"f", holes)])]
        },
    );
    check(
        "a tree where a chunk of data is",
        1,
        |_| {},
        |forger| {
            let node = forger.data(&[0, 0]);
            vec![directory(b"d", node)]
        },
    );
}

#[test]
fn what_was_planted_in_the_target_is_replaced_and_not_followed() {
    let plant = |all: &OsTarget| {
        all.create_symlink(Path::new("target/f"), "../outside/file".as_ref()).unwrap();
        all.create_symlink(Path::new("target/d"), "../outside".as_ref()).unwrap();
        all.create_symlink(Path::new("target/e"), "/etc".as_ref()).unwrap();
        all.hard_link(Path::new("outside/file"), Path::new("target/hard")).unwrap();
    };
    let restored = check("planted", 0, plant, |forger| {
        let fingerprint = forger.data(b"restored");
        let chunk = || vec![RecipeItem::Chunk(Chunk { fingerprint, len: 8 })];
        let inner = forger.directory(&[file(b"file", chunk()), file(b"passwd", chunk())]);
        vec![directory(b"d", inner), directory(b"e", inner), file(b"f", chunk()), file(b"hard", chunk())]
    });
    for name in ["/d/file", "/e/passwd", "/f", "/hard"] {
        let metadata = SourceTree::metadata(&restored, Path::new(name)).unwrap();
        assert_eq!((metadata.kind, metadata.size, metadata.links), (EntryKind::File, 8, 1), "{name}");
    }
}

#[test]
fn links_of_a_snapshot_are_not_followed() {
    // All names of one inode: the link is first, and the file is then asked to be a hard link to it.
    let shared = Some(Link { device: 1, inode: 2, links: 3 });
    check(
        "a file linked to a link",
        0,
        |_| {},
        |forger| {
            let fingerprint = forger.data(b"evil");
            let link = Entry { link: shared, ..symlink(b"a", b"../outside/file") };
            let file = Entry { link: shared, ..file(b"b", vec![RecipeItem::Chunk(Chunk { fingerprint, len: 4 })]) };
            vec![link, file]
        },
    );
    // A set-user-id bit and a device do not come back from a repository that is not trusted.
    let restored = check(
        "bits and devices",
        1,
        |_| {},
        |_| {
            let device = entry(b"b", EntryKind::BlockDevice, Content::Special { rdev: 0x801 });
            vec![Entry { mode: 0o4755, ..file(b"a", Vec::new()) }, device]
        },
    );
    assert_eq!(SourceTree::metadata(&restored, Path::new("/a")).unwrap().mode, 0o755);
    assert!(SourceTree::metadata(&restored, Path::new("/b")).is_err());
}

#[test]
fn a_tree_without_end_is_cut_off_and_told() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let mut forger = Forger::new(&store);
    let mut node = forger.directory(&[symlink(b"bottom", b"x")]);
    for _ in 0..5000 {
        node = forger.directory(&[directory(b"d", node)]);
    }
    let snapshot = forger.commit(node);
    let mut targets: Vec<Arc<dyn TargetTree>> = vec![Arc::new(DiscardTarget::default())];
    if cfg!(feature = "slow") {
        targets.push(Arc::new(MemTree::new()));
    }
    for target in targets {
        let (report, told) = restore_into(&world, &store, &snapshot, target, Overwrite::Always);
        let report = report.unwrap();
        assert_eq!((report.failures, told.len()), (1, 1));
        assert!(report.directories < 5000);
        assert_eq!(report.others, 0);
    }
    let surroundings = Surroundings::new(|_| {});
    let mut forger = Forger::new(&store);
    let mut node = forger.directory(&[symlink(b"bottom", b"x")]);
    // Longer than a path may be, and deeper than a recursion should go.
    for _ in 0..60 {
        node = forger.directory(&[directory(&[b'd'; 255], node)]);
    }
    let snapshot = forger.commit(node);
    let (report, told) = restore_into(&world, &store, &snapshot, surroundings.target(), Overwrite::Refuse);
    assert_eq!((report.unwrap().failures, told), (0, Vec::new()));
    let restored = surroundings.assert_untouched("deep");
    let deep = Path::new("/").join(std::ffi::OsStr::from_bytes(&[[b'd'; 255].as_slice(), b"/"].concat().repeat(60)));
    assert_eq!(SourceTree::list(&restored, &deep).unwrap(), ["bottom"]);
}

#[test]
fn of_names_that_the_target_cannot_tell_apart_the_first_is_restored() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let mut forger = Forger::new(&store);
    let mut stored = |name: &[u8], bytes: &[u8]| {
        let fingerprint = forger.data(bytes);
        file(name, vec![RecipeItem::Chunk(Chunk { fingerprint, len: 5 })])
    };
    let [inner, other, first, second] =
        [stored(b"a", b"inner"), stored(b"b", b"other"), stored(b"NAME", b"first"), stored(b"name", b"secon")];
    let nodes = [forger.directory(&[inner]), forger.directory(&[other])];
    let root = forger.directory(&[directory(b"DIR", nodes[0]), first, directory(b"dir", nodes[1]), second]);
    let snapshot = forger.commit(root);
    for folds in [false, true] {
        let target = Arc::new(MemTree::new());
        target.set_folds_case(folds);
        let handed = Arc::clone(&target) as Arc<dyn TargetTree>;
        let (report, mut told) = restore_into(&world, &store, &snapshot, handed, Overwrite::Refuse);
        let report = report.unwrap();
        told.sort();
        let names = SourceTree::list(&*target, Path::new("/")).unwrap();
        let mut bytes = [0; 5];
        SourceTree::open(&*target, Path::new("/NAME")).unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"first");
        assert_eq!(SourceTree::list(&*target, Path::new("/DIR")).unwrap(), ["a"]);
        if !folds {
            assert_eq!((report.failures, told, report.files), (0, Vec::new(), 4));
            assert_eq!(names, ["DIR", "NAME", "dir", "name"]);
            continue;
        }
        assert_eq!((report.failures, told.len(), report.files), (2, 2, 2), "{told:?}");
        for (told, name) in told.iter().zip(["/dir", "/name"]) {
            assert!(told.contains(name) && told.contains("cannot tell this name"), "{told}");
        }
        assert_eq!(names, ["DIR", "NAME"]);
    }
}

/// Writes both copies of a key slot that nobody has made.
fn plant(store: &Store, id: u8, cost: PasswordCost) {
    let slot = Slot {
        id: [id; 16],
        created: Timestamp::default(),
        cost,
        salt: [id; 32],
        commitment: [id; 32],
        key_epoch: 0,
        sealed: vec![id; 100],
        sealed_label: Vec::new(),
    };
    let bytes = encode_slot(store.config.repository, &slot);
    for copy in ObjectCopy::BOTH {
        let created = store.objects.create(SessionId(slot.id), ObjectName::Slot(slot.id, copy), &bytes).unwrap();
        assert_eq!(created, Created::New);
    }
}

#[test]
fn planted_key_slots_are_not_tried_where_they_cost_more_than_is_allowed() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let whole = PasswordCost { memory_kib: 4 << 20, passes: 32, lanes: 1 };
    for id in 0..=255 {
        plant(&store, id, whole);
    }
    world.open().unwrap();
    let repo = world.objects();
    let wrong = open(&repo, &world.host, Unlock::Password(b"wrong")).unwrap_err();
    let Error::SlotsNotTried { too_costly, memory_mib, too_many } = wrong else { panic!("{wrong}") };
    assert_eq!((too_costly, memory_mib, too_many), (256, 4096, 0));
    // What is asked for is tried: here that costs too little to be noticed.
    let policy = SlotPolicy { memory_kib_max: 32, hint: None };
    let refused = open(&repo, &world.host, Unlock::PasswordOn { password: PASSWORD, policy: &policy }).unwrap_err();
    assert!(matches!(refused, Error::SlotsNotTried { too_costly: 257, .. }), "{refused}");
}

#[test]
fn at_most_so_many_slots_are_tried_and_a_hint_finds_one_behind_them() {
    let world = World::new(2);
    let store = world.create(SMALL).unwrap();
    let own = read_slots(&*world.objects(), store.config.repository).unwrap().slots.remove(0);
    for id in 0..40 {
        plant(&store, id, PasswordCost { memory_kib: 32, passes: 1, lanes: 1 });
    }
    let (repo, password) = (world.objects(), PASSWORD);
    let refused = world.open().unwrap_err();
    assert!(matches!(refused, Error::SlotsNotTried { too_many: 9, .. }), "{refused}");
    let policy = SlotPolicy { hint: Some(hex(&own.id)[..6].to_owned()), ..SlotPolicy::default() };
    open(&repo, &world.host, Unlock::PasswordOn { password, policy: &policy }).unwrap();
}

#[test]
fn no_more_slots_are_made_than_are_tried() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let (repo, repository) = (world.objects(), store.config.repository);
    let (key, slot) = unlock(&*repo, repository, PASSWORD, &SlotPolicy::default()).unwrap();
    let new = NewSlot { password: b"another", cost: CHEAP, label: &SlotLabel::default() };
    for _ in 1..SLOTS_MAX {
        add_slot(&*repo, &*world.host, repository, &key, new).unwrap();
    }
    let refused = add_slot(&*repo, &*world.host, repository, &key, new).unwrap_err().to_string();
    assert!(refused.contains("32 key slots"), "{refused}");
    replace_slot(&*repo, &*world.host, repository, (&key, &slot), new).unwrap();
    assert_eq!(read_slots(&*repo, repository).unwrap().slots.len(), SLOTS_MAX);
}
