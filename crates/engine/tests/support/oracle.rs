//! An oracle for removals: before an object goes, it asserts that no snapshot needs it.
//!
//! It decides from bytes: it opens every container of the repository, compares every chunk with its fingerprint, and follows
//! commits, tree nodes and recipe segments from there. No listing, index, hint, manifest, `condemn` or `final` tells it
//! anything. What it has read is remembered by the identity of the bytes, so that repositories that share most of their files
//! cost little.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use onefold_engine::compress::Compressor;
use onefold_engine::container::ContainerReader;
use onefold_engine::container::reader::inspect;
use onefold_engine::object::ObjectType;
use onefold_engine::object::names::{ContainerName, ObjectName};
use onefold_engine::object::sealed::open_small;
use onefold_engine::recipe::{Recipe, RecipeItem, decode_segment};
use onefold_engine::snapshot::decode_commit;
use onefold_engine::store::Store;
use onefold_engine::store::base_reader::BaseReader;
use onefold_engine::store::container_set::Containers;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::testing::sim::Contents;
use onefold_engine::tree::{Content, TreeNode, decode_node};
use onefold_engine::types::{ChunkKind, Fingerprint, SessionId};

/// Objects that are remembered. Then all are read again.
const REMEMBERED_MAX: usize = 4096;

/// Bytes of an object.
#[derive(Clone)]
pub(in crate::integration) enum Bytes {
    /// A file of a simulated disk.
    File(Contents),
    /// An object of a simulated object store.
    Object(Arc<[u8]>),
}

impl Bytes {
    /// Returns the same for the same bytes while one of them is alive.
    fn identity(&self) -> (usize, u64) {
        match self {
            Self::File(contents) => contents.identity(),
            Self::Object(bytes) => (Arc::as_ptr(bytes).addr(), bytes.len() as u64),
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::File(contents) => contents.to_vec(),
            Self::Object(bytes) => bytes.to_vec(),
        }
    }
}

/// The objects of a repository at a moment. Names that are no object's are left out.
#[derive(Clone)]
pub(in crate::integration) struct Image(BTreeMap<ObjectName, Bytes>);

impl Image {
    /// Takes all objects by their texts.
    pub(in crate::integration) fn new(objects: impl IntoIterator<Item = (String, Bytes)>) -> Self {
        Self(objects.into_iter().filter_map(|(name, bytes)| Some((ObjectName::parse(&name)?, bytes))).collect())
    }

    /// Takes all files of a directory by their paths.
    pub(super) fn of_files(files: Vec<(PathBuf, Contents)>) -> Self {
        let text = |path: PathBuf| path.to_str().expect("names are ASCII").to_owned();
        Self::new(files.into_iter().map(|(path, contents)| (text(path), Bytes::File(contents))))
    }

    /// Returns the bytes of an object.
    pub(super) fn get(&self, name: &ObjectName) -> Option<Vec<u8>> {
        self.0.get(name).map(Bytes::to_vec)
    }

    /// Leaves an object out from now on.
    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.0.remove(name);
    }

    fn containers(&self) -> impl Iterator<Item = (ContainerName, &Bytes)> {
        self.0.iter().filter_map(|(name, bytes)| match name {
            ObjectName::Container(name) => Some((*name, bytes)),
            _ => None,
        })
    }

    fn sessions(&self, of: impl Fn(&ObjectName) -> Option<SessionId>) -> Vec<(SessionId, ObjectName, &Bytes)> {
        self.0.iter().filter_map(|(name, bytes)| Some((of(name)?, *name, bytes))).collect()
    }
}

/// Ways in which a container goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::integration) enum Removal {
    /// It is deleted: all that a snapshot reaches stands elsewhere.
    Deleted,
    /// It is set aside: all that is whole stands elsewhere.
    SetAside,
}

/// A container as its bytes are.
#[derive(Default)]
struct Chunks {
    /// True if one of its directories opens.
    is_open: bool,
    /// The chunks that its directory lists; one without a name by its contents, if there are any.
    listed: Vec<Option<Fingerprint>>,
    /// Those that are what their names say.
    whole: HashSet<Fingerprint>,
    /// The contents of those that are nodes, without hints.
    nodes: HashMap<Fingerprint, Vec<u8>>,
}

/// End of a session, as its commit states it.
#[derive(Clone, Copy)]
enum End {
    /// The commit cannot be read.
    Unreadable,
    /// It has no snapshot.
    Empty,
    /// It has a snapshot with this root node.
    Snapshot(Fingerprint),
}

/// Contents of an object.
#[derive(Clone)]
enum Meaning {
    /// A container.
    Container(Arc<Chunks>),
    /// The end of a session.
    Commit(End),
    /// A forget; false if it cannot be read.
    Forget(bool),
}

/// Objects that were read so far.
#[derive(Default)]
struct Memory {
    /// The configuration that `store` was opened by.
    config: Option<Bytes>,
    store: Option<Store>,
    /// Bytes are kept so that their identities stay theirs.
    meanings: HashMap<(ObjectName, (usize, u64)), (Bytes, Meaning)>,
    /// All that a tree reaches, by its root node.
    reached: HashMap<Fingerprint, Arc<HashSet<Fingerprint>>>,
    /// Containers whose removal was allowed.
    removals: u64,
    /// Chunks of them that a snapshot needs elsewhere.
    needed: u64,
}

/// Asserts that what is removed is not needed.
#[derive(Default)]
pub(in crate::integration) struct Oracle(Mutex<Memory>);

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oracle").finish_non_exhaustive()
    }
}

impl Oracle {
    /// Returns how many containers were removed, and how many of their chunks a snapshot needs.
    pub(in crate::integration) fn counts(&self) -> (u64, u64) {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (memory.removals, memory.needed)
    }

    /// Asserts that an object may go. `after_power_cut` has what would be left now of `now`; `open` opens the repository.
    ///
    /// Snapshots count that are not forgotten, or whose forgetting is not durable. A copy counts if it is whole and durable.
    pub(in crate::integration) fn assert_unneeded(
        &self,
        (now, after_power_cut): (&Image, &Image),
        (name, removal): (ObjectName, Removal),
        open: &dyn Fn() -> Store,
    ) {
        if !now.0.contains_key(&name) {
            return;
        }
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            ObjectName::Container(name) => {
                memory.open(now, open);
                memory.assert_stands_elsewhere((now, after_power_cut), (name, removal));
            }
            ObjectName::Manifest(session) => {
                memory.open(now, open);
                memory.assert_keeps_no_snapshot(session, after_power_cut);
            }
            ObjectName::Commit(_) | ObjectName::Forget(_) | ObjectName::Session(_) | ObjectName::Collection(..) => {
                panic!("{name} goes, which is never removed");
            }
            ObjectName::Config(_) | ObjectName::Slot(..) | ObjectName::Heartbeat(..) | ObjectName::Quarantined(_) => {}
        }
    }
}

impl Memory {
    /// Opens the repository, unless it is the one that was opened last.
    fn open(&mut self, now: &Image, open: &dyn Fn() -> Store) {
        let config = now.0.iter().find(|(name, _)| matches!(name, ObjectName::Config(_)));
        let config = config.map(|(_, bytes)| bytes).expect("a repository has a configuration");
        if self.config.as_ref().map(Bytes::identity) != Some(config.identity()) {
            (self.store, self.config) = (Some(open()), Some(config.clone()));
        }
        if REMEMBERED_MAX < self.meanings.len() {
            self.meanings.clear();
        }
    }

    fn meaning(&mut self, name: ObjectName, bytes: &Bytes) -> Meaning {
        let key = (name, bytes.identity());
        if let Some((_, known)) = self.meanings.get(&key) {
            return known.clone();
        }
        let store = self.store.as_ref().expect("the repository was opened");
        let meaning = match name {
            ObjectName::Commit(session) => Meaning::Commit(read_commit(store, session, bytes)),
            ObjectName::Forget(session) => {
                let identity = (store.config.repository, Some(session));
                Meaning::Forget(open_small(&store.keys, "", ObjectType::Forget, identity, bytes.to_vec()).is_ok())
            }
            ObjectName::Container(name) => Meaning::Container(Arc::new(read_chunks(store, &name, &bytes.to_vec()))),
            other => panic!("{other} has no meaning to the oracle"),
        };
        self.meanings.insert(key, (bytes.clone(), meaning.clone()));
        meaning
    }

    fn chunks(&mut self, name: ContainerName, bytes: &Bytes) -> Arc<Chunks> {
        match self.meaning(ObjectName::Container(name), bytes) {
            Meaning::Container(chunks) => chunks,
            Meaning::Commit(_) | Meaning::Forget(_) => unreachable!("a container has chunks"),
        }
    }

    fn forgotten(&mut self, image: &Image) -> BTreeSet<SessionId> {
        let forgets = image.sessions(|name| match name {
            ObjectName::Forget(session) => Some(*session),
            _ => None,
        });
        let is_read = |(_, name, bytes): &(SessionId, ObjectName, &Bytes)| {
            matches!(self.meaning(*name, bytes), Meaning::Forget(true))
        };
        forgets.into_iter().filter(is_read).map(|(session, ..)| session).collect()
    }

    /// Returns the root nodes of the snapshots that are not forgotten.
    fn roots(&mut self, image: &Image) -> BTreeSet<Fingerprint> {
        let forgotten = self.forgotten(image);
        let commits = image.sessions(|name| match name {
            ObjectName::Commit(session) => Some(*session),
            _ => None,
        });
        let kept = commits.into_iter().filter(|(session, ..)| !forgotten.contains(session));
        kept.filter_map(|(_, name, bytes)| match self.meaning(name, bytes) {
            Meaning::Commit(End::Snapshot(root)) => Some(root),
            _ => None,
        })
        .collect()
    }

    fn assert_stands_elsewhere(
        &mut self,
        (now, after_power_cut): (&Image, &Image),
        (name, removal): (ContainerName, Removal),
    ) {
        let bytes = now.0.get(&ObjectName::Container(name)).expect("the container exists");
        let own = self.chunks(name, bytes);
        assert!(own.is_open || removal == Removal::SetAside, "{name} is deleted, and nobody knows what it holds");
        let mut roots = self.roots(now);
        roots.extend(self.roots(after_power_cut));
        let mut copies = Vec::new();
        for (other, bytes) in now.containers().filter(|(other, _)| *other != name) {
            if let Some(durable) = after_power_cut.0.get(&ObjectName::Container(other)) {
                copies.push((self.chunks(other, bytes), self.chunks(other, durable)));
            }
        }
        let reached: Vec<_> = roots.iter().map(|root| self.reached(*root, now)).collect();
        for chunk in &own.listed {
            let Some(chunk) = chunk else {
                assert!(removal == Removal::SetAside, "{name} is deleted, and a chunk of it has no name");
                continue;
            };
            let is_needed = match removal {
                Removal::Deleted => reached.iter().any(|reached| reached.contains(chunk)),
                Removal::SetAside => own.whole.contains(chunk),
            };
            if is_needed {
                let stands = copies.iter().any(|(now, then)| now.whole.contains(chunk) && then.whole.contains(chunk));
                assert!(stands, "chunk {chunk} of {name} is needed, and stands nowhere else: {removal:?}");
                self.needed += 1;
            }
        }
        self.removals += 1;
    }

    /// Asserts that a session has ended without a snapshot, or that its snapshot is forgotten, both durably.
    fn assert_keeps_no_snapshot(&mut self, session: SessionId, after_power_cut: &Image) {
        let commit = ObjectName::Commit(session);
        let end = after_power_cut.0.get(&commit).map(|bytes| self.meaning(commit, bytes));
        let is_without = matches!(end, Some(Meaning::Commit(End::Empty)));
        let is_forgotten = self.forgotten(after_power_cut).contains(&session);
        assert!(is_without || is_forgotten, "the manifest of a session that may keep a snapshot goes: {session}");
    }

    /// Returns all chunks that a tree reaches, as far as its nodes are there.
    fn reached(&mut self, root: Fingerprint, image: &Image) -> Arc<HashSet<Fingerprint>> {
        if let Some(known) = self.reached.get(&root) {
            return Arc::clone(known);
        }
        let containers: Vec<_> = image.containers().map(|(name, bytes)| self.chunks(name, bytes)).collect();
        let mut walk = Walk { seen: HashSet::new(), left: Vec::new() };
        walk.add(ChunkKind::Tree, root);
        let mut is_whole = true;
        while let Some((kind, node)) = walk.left.pop() {
            match containers.iter().find_map(|chunks| chunks.nodes.get(&node)) {
                Some(contents) => walk.follow(kind, contents),
                None => is_whole = false,
            }
        }
        let reached = Arc::new(walk.seen);
        if is_whole {
            self.reached.insert(root, Arc::clone(&reached));
        }
        reached
    }
}

/// A walk over the nodes of a tree.
struct Walk {
    seen: HashSet<Fingerprint>,
    left: Vec<(ChunkKind, Fingerprint)>,
}

impl Walk {
    fn add(&mut self, kind: ChunkKind, node: Fingerprint) {
        if self.seen.insert(node) {
            self.left.push((kind, node));
        }
    }

    fn follow(&mut self, kind: ChunkKind, contents: &[u8]) {
        if kind == ChunkKind::Recipe {
            return self.add_recipe(&decode_segment(contents).expect("a segment that is whole"));
        }
        match decode_node(contents).expect("a node that is whole") {
            TreeNode::Children { children, .. } => {
                for child in children {
                    self.add(ChunkKind::Tree, child.node);
                }
            }
            TreeNode::Entries(entries) => entries.iter().for_each(|entry| match &entry.content {
                Content::Directory { node } => self.add(ChunkKind::Tree, *node),
                Content::File { recipe, .. } => self.add_recipe(recipe),
                Content::Symlink { .. } | Content::Special { .. } => {}
            }),
        }
    }

    fn add_recipe(&mut self, recipe: &Recipe) {
        for item in &recipe.items {
            match item {
                RecipeItem::Chunk(chunk) => {
                    self.seen.insert(chunk.fingerprint);
                }
                RecipeItem::Segment { fingerprint, .. } => self.add(ChunkKind::Recipe, *fingerprint),
                RecipeItem::Hole { .. } => {}
            }
        }
    }
}

/// Returns the end of a session.
fn read_commit(store: &Store, session: SessionId, bytes: &Bytes) -> End {
    let identity = (store.config.repository, Some(session));
    let opened = open_small(&store.keys, "", ObjectType::Commit, identity, bytes.to_vec());
    match opened.ok().and_then(|(_, body)| decode_commit(&body).ok()) {
        None => End::Unreadable,
        Some(commit) => commit.snapshot.map_or(End::Empty, |snapshot| End::Snapshot(snapshot.tree)),
    }
}

/// Reads a container.
fn read_chunks(store: &Store, name: &ContainerName, bytes: &[u8]) -> Chunks {
    let limit = store.config.region_bytes_limit();
    let all = (bytes.len() as u64, bytes, bytes);
    let Ok(opened) = inspect(&store.keys, store.config.repository, *name, limit, all) else {
        return Chunks::default();
    };
    let mut chunks = Chunks { is_open: true, ..Chunks::default() };
    let has_bases = opened.reader.directory.regions.iter().any(|region| !region.bases.is_empty());
    let listed = if has_bases { store.list_containers(&Scratch::default()).unwrap() } else { Containers::default() };
    let bases = BaseReader::new(store, &listed, 8 << 20);
    for region in 0..u32::try_from(opened.reader.directory.regions.len()).unwrap() {
        let plain = read_region(&opened.reader, region, &bases, bytes);
        let mut rest = plain.as_deref();
        for chunk in &opened.reader.directory.chunks[opened.reader.chunks_of(region)] {
            let content = rest.and_then(|plain| {
                let (stored, tail) = plain.split_at_checked(chunk.len as usize)?;
                rest = Some(tail);
                stored.get(..stored.len().checked_sub(chunk.hints_len as usize)?)
            });
            let found = content.map(|content| store.keys.fingerprint(chunk.kind, content));
            let name = chunk.fingerprint.or(found);
            if let (Some(found), Some(content)) = (found, content)
                && name == Some(found)
            {
                chunks.whole.insert(found);
                if chunk.kind != ChunkKind::Data {
                    chunks.nodes.insert(found, content.to_vec());
                }
            }
            chunks.listed.push(name);
        }
    }
    chunks
}

fn read_region(reader: &ContainerReader, region: u32, bases: &BaseReader, bytes: &[u8]) -> Option<Vec<u8>> {
    let (offset, len) = reader.region_range(region)?;
    let mut sealed = bytes.get(usize::try_from(offset).unwrap()..)?.get(..len as usize)?.to_vec();
    let mut plain = Vec::new();
    let prefix = bases.prefix_of(reader, region).ok()?;
    reader.open_region(region, &prefix, &mut sealed, &mut Compressor::default(), &mut plain).ok()?;
    Some(plain)
}
