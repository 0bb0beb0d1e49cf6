//! Why something is in a repository, compared with answers that look at each snapshot by itself and hold everything in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onefold_engine::collect::ledger::{Held, LedgerRequest, held_by_set};
use onefold_engine::collect::why::{
    ChunkPrefix, ContainerHolders, ContainerState, PATHS_MAX, PathHolders, RELATED_MAX, Regions, RelatedContainer,
    WhyRequest, find_chunk, why_chunk, why_container, why_path,
};
use onefold_engine::collect::{PruneRequest, give_up, prune};
use onefold_engine::object::names::CollectionStep;
use onefold_engine::recipe::{Recipe, RecipeItem};
use onefold_engine::snapshot::{SessionKind, Snapshot};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Session, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::tree::{Content, TreeNode};
use onefold_engine::types::{ContainerId, Fingerprint, SessionId};
use onefold_engine::{Result, Silent};

use crate::integration::bases::{Versions, Way, forge, versions};
use crate::integration::condemned::{collect, condemn};
use crate::integration::pruning::{forget, request};
use crate::integration::support::{Ask, Draw, SMALL, World, back_up, container_names, noise};

const SEEDS: u64 = if cfg!(feature = "slow") { 150 } else { 10 };
/// Paths that are asked about for each seed.
const PATHS: usize = 6;

/// Files of the largest directory.
const MANY: u64 = 602;

/// Draws a file of the largest directory.
fn one_of_many(draw: &mut Draw) -> String {
    format!("/c/many/{:03}", draw.below(usize::try_from(MANY).unwrap()))
}

type Chunks = BTreeSet<Fingerprint>;
/// A chunk in a container, with its length and its share of its region.
type StoredChunk = (Fingerprint, (u32, u32));

/// A snapshot as a look at all of it finds it.
struct Looked {
    session: SessionId,
    snapshot: Snapshot,
    /// The own chunks of each entry: of a directory those of its list. The root has the empty path.
    own: BTreeMap<Vec<u8>, Chunks>,
    contents: BTreeMap<Vec<u8>, String>,
}

impl Looked {
    fn of(reader: &mut MetadataReader, session: SessionId, snapshot: &Snapshot) -> Self {
        let mut looked = Self { session, snapshot: snapshot.clone(), own: BTreeMap::new(), contents: BTreeMap::new() };
        looked.look(reader, Vec::new(), &Content::Directory { node: snapshot.tree });
        looked
    }

    fn look(&mut self, reader: &mut MetadataReader, path: Vec<u8>, content: &Content) {
        let mut own = Chunks::new();
        let contents = match content {
            Content::Directory { node } => {
                self.look_at_list(reader, &path, *node, &mut own);
                format!("directory {node}")
            }
            Content::File { recipe, .. } => {
                chunks_of(reader, recipe, &mut own);
                format!("file {recipe:?}")
            }
            Content::Symlink { target } => format!("link {target:?}"),
            Content::Special { rdev } => format!("special {rdev}"),
        };
        self.own.insert(path.clone(), own);
        self.contents.insert(path, contents);
    }

    fn look_at_list(&mut self, reader: &mut MetadataReader, path: &[u8], node: Fingerprint, own: &mut Chunks) {
        own.insert(node);
        match reader.read_node(node).unwrap().node {
            TreeNode::Children { children, .. } => {
                for child in children {
                    self.look_at_list(reader, path, child.node, own);
                }
            }
            TreeNode::Entries(entries) => {
                for entry in entries {
                    self.look(reader, [path, b"/", &entry.name].concat(), &entry.content);
                }
            }
        }
    }

    fn chunks(&self, admits: impl Fn(&[u8]) -> bool) -> Chunks {
        self.own.iter().filter(|(path, _)| admits(path)).flat_map(|(_, chunks)| chunks.iter().copied()).collect()
    }

    fn all(&self) -> Chunks {
        self.chunks(|_| true)
    }

    /// The chunks at a path and below it.
    fn at(&self, path: &[u8]) -> Chunks {
        self.chunks(|other| is_at_or_below(other, path))
    }

    /// The chunks of all paths that are neither at a path, nor below it, nor above it.
    fn elsewhere(&self, path: &[u8]) -> Chunks {
        self.chunks(|other| !is_at_or_below(other, path) && !is_at_or_below(path, other))
    }

    fn paths_of(&self, chunk: &Fingerprint) -> BTreeSet<Vec<u8>> {
        let having = self.own.iter().filter(|(_, chunks)| chunks.contains(chunk));
        having.map(|(path, _)| if path.is_empty() { b"/".to_vec() } else { path.clone() }).collect()
    }
}

fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn chunks_of(reader: &mut MetadataReader, recipe: &Recipe, own: &mut Chunks) {
    for item in &recipe.items {
        match item {
            RecipeItem::Hole { .. } => {}
            RecipeItem::Chunk(chunk) => {
                own.insert(chunk.fingerprint);
            }
            RecipeItem::Segment { fingerprint, .. } => {
                own.insert(*fingerprint);
                let (segment, _) = reader.read_segment(*fingerprint).unwrap();
                chunks_of(reader, &segment, own);
            }
        }
    }
}

/// Prunes until needed chunks are copied, and gives up, so that there are two copies.
fn copy_and_give_up(world: &World, store: &Store) {
    let writer = Session::begin(store, &world.scratch(), SessionKind::Backup, "writer").unwrap();
    let patient = PruneRequest { fence_after: Duration::from_hours(24), ..request(world, store) };
    prune(store, &patient, &Silent).unwrap();
    writer.end().unwrap();
    give_up(store, "host").unwrap();
}

/// A repository with snapshots of two roots, of which some may be forgotten, and what a look at them finds.
struct Case {
    world: World,
    store: Store,
    looked: Vec<Looked>,
    /// The lengths of each stored chunk: the least copy.
    stored: BTreeMap<Fingerprint, (u32, u32)>,
    chunks: BTreeMap<ContainerId, Vec<StoredChunk>>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let source = MemTree::new();
        source.put_dir(Path::new("/a"));
        source.put_dir(Path::new("/a/empty"));
        source.put_symlink(Path::new("/a/link"), "x".as_ref());
        // A list of several nodes. Some contents stand in many files, others in two that are far apart.
        for number in 0..MANY {
            let seed = if number % 4 == 0 { number % 7 } else { 1000 + number % (MANY / 2) };
            source.put_file(Path::new(&format!("/c/many/{number:03}")), &noise(seed, 300));
        }
        source.put_file(Path::new("/c/large"), &noise(50, 60_000));
        let mut made = Vec::new();
        for _ in 0..3 + draw.below(4) {
            for _ in 0..=draw.below(4) {
                let path = format!("/{}/{}", draw.one_of(&["a", "b", "c/d", "c"]), draw.one_of(&["x", "y", "z"]));
                source.put_file(Path::new(&path), &noise(draw.below(6) as u64, 1000 + draw.below(40_000)));
            }
            if draw.once_in(3) {
                source.put_file(Path::new(&one_of_many(&mut draw)), &noise(draw.next(), 200));
            }
            if draw.once_in(3) {
                source.put_file(Path::new("/c/large"), &noise(50, 20_000 + draw.below(80_000)));
            }
            let root = if draw.once_in(3) { "/c" } else { "/" };
            let source = std::sync::Arc::new(source.clone());
            let ask = Ask { with_parent: draw.once_in(2), ..Ask::default() };
            made.push(back_up(&store, &world.cache(), source, Path::new(root), &ask).unwrap().report.session);
        }
        if !draw.once_in(4) {
            forget(&store, *draw.one_of(&made)).unwrap();
            if draw.once_in(2) {
                copy_and_give_up(&world, &store);
            }
        }
        let mut case = Self { world, store, looked: Vec::new(), stored: BTreeMap::new(), chunks: BTreeMap::new() };
        case.look();
        case
    }

    fn look(&mut self) {
        let scratch = self.world.scratch();
        let containers = self.store.list_containers(&scratch).unwrap();
        let memory = MetadataMemory::of(4 << 20);
        let mut reader = MetadataReader::open(&self.store, &containers, &scratch, memory).unwrap();
        let commits = self.store.read_commits().unwrap();
        for (session, snapshot) in commits.snapshots() {
            self.looked.push(Looked::of(&mut reader, session, snapshot));
        }
        for name in container_names(&self.store) {
            let directory = self.store.open_container(&name).unwrap().directory;
            let mut chunks = directory.chunks.iter();
            let own = self.chunks.entry(name.id).or_default();
            for region in &directory.regions {
                for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                    let stored = u64::from(chunk.len) * u64::from(region.sealed_len) / u64::from(region.plain_len);
                    let lengths = (chunk.len, u32::try_from(stored).unwrap());
                    let least = self.stored.entry(chunk.fingerprint.unwrap()).or_insert(lengths);
                    *least = lengths.min(*least);
                    own.push((chunk.fingerprint.unwrap(), lengths));
                }
            }
        }
    }

    fn held(&self, chunks: impl IntoIterator<Item = Fingerprint>) -> Held {
        sum(chunks.into_iter().map(|chunk| self.stored[&chunk]))
    }

    /// Asks about a set of listed snapshots, and one that would be forgotten, by their numbers.
    fn ask<T>(
        &self,
        listed: &BTreeSet<usize>,
        forgotten: Option<&BTreeSet<usize>>,
        ask: impl FnOnce(&WhyRequest<'_>) -> Result<T>,
    ) -> Result<T> {
        let sessions = |numbers: &BTreeSet<usize>| -> BTreeSet<SessionId> {
            numbers.iter().map(|number| self.looked[*number].session).collect()
        };
        let (listed, forgotten) = (sessions(listed), forgotten.map(sessions));
        let snapshots: Vec<_> = self.looked.iter().map(|looked| (looked.session, &looked.snapshot)).collect();
        let scratch = self.world.scratch();
        ask(&WhyRequest {
            snapshots: &snapshots,
            listed: &listed,
            forgotten: forgotten.as_ref(),
            scratch: &scratch,
            memory_bytes: 16 << 20,
            monitor: &Silent,
        })
    }

    fn everything(&self) -> BTreeSet<usize> {
        (0..self.looked.len()).collect()
    }

    /// Draws a set of snapshots, all of them once in three.
    fn draw_set(&self, draw: &mut Draw) -> BTreeSet<usize> {
        let all = draw.once_in(3);
        self.everything().into_iter().filter(|_| all || draw.once_in(2)).collect()
    }

    fn union<'a>(&'a self, numbers: impl IntoIterator<Item = &'a usize>, chunks: impl Fn(&Looked) -> Chunks) -> Chunks {
        numbers.into_iter().flat_map(|number| chunks(&self.looked[*number])).collect()
    }

    /// Snapshots that are not in a set.
    fn others(&self, set: &BTreeSet<usize>) -> BTreeSet<usize> {
        self.everything().difference(set).copied().collect()
    }

    /// Snapshots in the order of answers.
    fn order(&self, set: &BTreeSet<usize>) -> Vec<usize> {
        let mut ordered: Vec<usize> = set.iter().copied().collect();
        ordered.sort_by_key(|number| {
            let Looked { session, snapshot, .. } = &self.looked[*number];
            (&snapshot.hostname, &snapshot.paths, snapshot.time, *session)
        });
        ordered
    }
}

fn sum(chunks: impl IntoIterator<Item = (u32, u32)>) -> Held {
    let mut held = Held::default();
    for (len, stored) in chunks {
        held.chunks += 1;
        held.plain_bytes += u64::from(len);
        held.stored_bytes += u64::from(stored);
    }
    held
}

/// Compares the answer on a path with what a look at every snapshot finds.
fn check_path(case: &Case, path: &[u8], listed: &BTreeSet<usize>, forgotten: Option<&BTreeSet<usize>>) -> PathHolders {
    let message = format!("{}: {listed:?} listed, {forgotten:?} forgotten", String::from_utf8_lossy(path));
    let asked: &[u8] = if path.is_empty() { b"/" } else { path };
    let found = case.ask(listed, forgotten, |request| why_path(&case.store, request, asked)).unwrap();
    let having: BTreeSet<usize> =
        listed.iter().copied().filter(|number| case.looked[*number].own.contains_key(path)).collect();
    let sessions = |numbers: &[usize]| -> Vec<SessionId> { numbers.iter().map(|n| case.looked[*n].session).collect() };
    let rows: Vec<SessionId> = found.snapshots.iter().map(|row| row.session).collect();
    let order = case.order(&having);
    assert_eq!(rows, sessions(&order), "{message}");
    if having.is_empty() {
        assert_eq!(found, PathHolders::default(), "{message}");
        return found;
    }
    let contents = |number: usize| &case.looked[number].contents[path];
    for (row, number) in found.snapshots.iter().zip(&order) {
        assert_eq!(row.held, case.held(case.looked[*number].at(path)), "{message}: {number}");
        for (other, other_number) in found.snapshots.iter().zip(&order) {
            let is_same = contents(*number) == contents(*other_number);
            assert_eq!(row.contents == other.contents, is_same, "{message}: {number}, {other_number}");
        }
    }
    for (at, number) in order.iter().enumerate() {
        let last = at.checked_sub(1).map(|last| order[last]);
        let last = last.filter(|last| case.looked[*last].snapshot.paths == case.looked[*number].snapshot.paths);
        let is_unchanged = last.map(|last| contents(last) == contents(*number));
        assert_eq!(found.snapshots[at].is_unchanged, is_unchanged, "{message}: {number}");
    }
    let all = case.union(&having, |looked| looked.at(path));
    let others = case.union(&case.others(&having), Looked::all);
    let elsewhere = case.union(&having, |looked| looked.elsewhere(path));
    let only: Chunks = all.difference(&others).copied().collect();
    assert_eq!(found.all, case.held(all.iter().copied()), "{message}");
    assert_eq!(found.shared, case.held(all.intersection(&others).copied()), "{message}");
    assert_eq!(found.only, case.held(only.iter().copied()), "{message}");
    assert_eq!(found.only_path, case.held(only.difference(&elsewhere).copied()), "{message}");
    let freed = forgotten.map(|forgotten| {
        let kept = case.union(&case.others(forgotten), Looked::all);
        case.held(all.difference(&kept).copied())
    });
    assert_eq!(found.freed, freed, "{message}");
    found
}

#[test]
fn what_snapshots_hold_of_a_path_is_what_a_look_at_every_path_finds() {
    let (mut changed, mut unchanged, mut shared, mut elsewhere) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let case = Case::new(seed);
        let mut draw = Draw::new(1000 + seed);
        let paths: BTreeSet<&Vec<u8>> = case.looked.iter().flat_map(|looked| looked.own.keys()).collect();
        let paths: Vec<&Vec<u8>> = paths.into_iter().collect();
        let mut asked: Vec<Vec<u8>> = (0..PATHS).map(|_| (*draw.one_of(&paths)).clone()).collect();
        asked.extend((0..3).map(|_| one_of_many(&mut draw).into_bytes()));
        asked.extend([b"".to_vec(), b"/c".to_vec(), b"/c/large".to_vec(), b"/c/many".to_vec(), b"/a/none".to_vec()]);
        for path in asked {
            let (listed, forgotten) = (case.draw_set(&mut draw), case.draw_set(&mut draw));
            let found = check_path(&case, &path, &listed, Some(&forgotten).filter(|_| draw.once_in(2)));
            changed += found.snapshots.iter().filter(|row| row.is_unchanged == Some(false)).count();
            unchanged += found.snapshots.iter().filter(|row| row.is_unchanged == Some(true)).count();
            shared += found.shared.chunks;
            elsewhere += found.only.chunks - found.only_path.chunks;
        }
    }
    assert!(10 < changed && 10 < unchanged && 100 < shared && 100 < elsewhere, "{changed} {unchanged} {elsewhere}");
}

#[test]
fn what_snapshots_hold_of_the_root_is_what_the_ledger_counts() {
    for seed in 0..SEEDS {
        let case = Case::new(seed);
        let mut draw = Draw::new(seed);
        for _ in 0..3 {
            let set = case.draw_set(&mut draw);
            let found = check_path(&case, b"", &set, None);
            let roots = |set: &BTreeSet<usize>| -> Vec<Fingerprint> {
                set.iter().map(|number| case.looked[*number].snapshot.tree).collect()
            };
            let scratch = case.world.scratch();
            let ledger = LedgerRequest { scratch: &scratch, memory_bytes: 16 << 20, monitor: &Silent };
            let held = held_by_set(&case.store, &ledger, &roots(&set), &roots(&case.others(&set))).unwrap();
            assert_eq!((found.only, found.shared), (held.only, held.shared), "seed {seed}: {set:?}");
            assert_eq!(found.only, found.only_path, "seed {seed}: nothing is elsewhere");
            assert_eq!(found.all.without(&found.only), found.shared, "seed {seed}: {set:?}");
        }
    }
}

/// Compares the answer on a container with what a look at every snapshot finds.
fn check_container(
    case: &Case,
    id: ContainerId,
    listed: &BTreeSet<usize>,
    forgotten: Option<&BTreeSet<usize>>,
) -> ContainerHolders {
    let message = format!("{id}: {listed:?} listed, {forgotten:?} forgotten");
    let found = case.ask(listed, forgotten, |request| why_container(&case.store, request, id)).unwrap();
    let own: BTreeMap<Fingerprint, (u32, u32)> = case.chunks[&id].iter().copied().collect();
    let held_of = |chunks: &mut dyn Iterator<Item = Fingerprint>| sum(chunks.map(|chunk| own[&chunk]));
    let reached: Vec<Chunks> = case
        .looked
        .iter()
        .map(|looked| looked.all().into_iter().filter(|chunk| own.contains_key(chunk)).collect())
        .collect();
    let held: Chunks = reached.iter().flatten().copied().collect();
    assert_eq!(found.all, sum(case.chunks[&id].iter().map(|(_, lengths)| *lengths)), "{message}");
    assert_eq!(found.held, held_of(&mut held.iter().copied()), "{message}");
    assert_eq!(found.unneeded, found.all.without(&found.held), "{message}");
    let is_copied = |chunk: &Fingerprint| {
        case.chunks.iter().any(|(other, chunks)| *other != id && chunks.iter().any(|(name, _)| name == chunk))
    };
    assert_eq!(found.copied, held_of(&mut held.iter().copied().filter(is_copied)), "{message}");
    let holding: BTreeSet<usize> = listed.iter().copied().filter(|number| !reached[*number].is_empty()).collect();
    let order = case.order(&holding);
    let rows: Vec<SessionId> = found.snapshots.iter().map(|row| row.session).collect();
    assert_eq!(rows, order.iter().map(|number| case.looked[*number].session).collect::<Vec<_>>(), "{message}");
    for (row, number) in found.snapshots.iter().zip(&order) {
        let others: Chunks =
            reached.iter().enumerate().filter(|(at, _)| at != number).flat_map(|(_, chunks)| chunks).copied().collect();
        assert_eq!(row.held, held_of(&mut reached[*number].iter().copied()), "{message}: {number}");
        assert_eq!(row.only, held_of(&mut reached[*number].difference(&others).copied()), "{message}: {number}");
    }
    let freed = forgotten.map(|forgotten| {
        let kept: Chunks = case.others(forgotten).iter().flat_map(|number| reached[*number].clone()).collect();
        held_of(&mut held.difference(&kept).copied())
    });
    assert_eq!(found.freed, freed, "{message}");
    assert_eq!(found.is_unused(), freed.unwrap_or_default() == found.held, "{message}");
    found
}

#[test]
fn what_snapshots_hold_of_a_container_is_what_a_look_at_every_snapshot_finds() {
    let (mut only, mut copied, mut unneeded, mut unused) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let case = Case::new(seed);
        let mut draw = Draw::new(2000 + seed);
        for &id in case.chunks.keys() {
            let (listed, forgotten) = (case.draw_set(&mut draw), case.draw_set(&mut draw));
            let found = check_container(&case, id, &listed, Some(&forgotten).filter(|_| draw.once_in(2)));
            assert_eq!((found.id, found.state), (id, ContainerState::Live));
            only += found.snapshots.iter().map(|row| row.only.chunks).sum::<u64>();
            copied += found.copied.chunks;
            unneeded += found.unneeded.chunks;
            unused += u64::from(found.is_unused());
        }
    }
    let counts = [only, copied, unneeded, unused];
    assert!(100 < only && 10 < copied && 3 < unneeded && 3 < unused, "{counts:?}");
}

#[test]
fn the_snapshots_and_paths_of_a_chunk_are_those_that_a_look_at_every_path_finds() {
    let mut more = 0;
    for seed in 0..SEEDS {
        let case = Case::new(seed);
        let mut draw = Draw::new(3000 + seed);
        let all: Vec<Fingerprint> = case.stored.keys().copied().collect();
        let large: Chunks = case.looked.iter().flat_map(|looked| looked.at(b"/c")).collect();
        let of_large: Vec<Fingerprint> = large.into_iter().collect();
        let common: Vec<Fingerprint> = case.looked[0].at(b"/c/many/000").into_iter().collect();
        for turn in 0..12 {
            let chunk = *draw.one_of([&all, &of_large, &common][turn % 3]);
            let (listed, forgotten) = (case.draw_set(&mut draw), case.draw_set(&mut draw));
            let message = format!("seed {seed}, {chunk}: {listed:?} listed, {forgotten:?} forgotten");
            let prefix = ChunkPrefix::parse(&chunk.to_string()[..draw.below(30) + 35]).unwrap();
            let found = case.ask(&listed, Some(&forgotten), |request| {
                let mut found = find_chunk(&case.store, request, &prefix)?;
                why_chunk(&case.store, request, &mut found)?;
                Ok(found)
            });
            let found = found.unwrap();
            assert_eq!(found.fingerprint, chunk, "{message}");
            let copies: Vec<(ContainerId, (u32, u32))> = case
                .chunks
                .iter()
                .flat_map(|(id, chunks)| chunks.iter().map(|(name, lengths)| (*id, *name, *lengths)))
                .filter(|(_, name, _)| *name == chunk)
                .map(|(id, _, lengths)| (id, lengths))
                .collect();
            let shown = found.copies.iter().map(|copy| (copy.container, (copy.len, copy.stored_len)));
            assert_eq!((found.copies_count, shown.collect::<Vec<_>>()), (copies.len() as u64, copies), "{message}");
            let paths: Vec<BTreeSet<Vec<u8>>> = case.looked.iter().map(|looked| looked.paths_of(&chunk)).collect();
            let holders =
                |set: &BTreeSet<usize>| set.iter().filter(|number| !paths[**number].is_empty()).count() as u64;
            assert_eq!(found.holders, holders(&case.everything()), "{message}");
            assert_eq!(found.kept_holders, Some(holders(&case.others(&forgotten))), "{message}");
            let holding = listed.iter().copied().filter(|number| !paths[*number].is_empty()).collect();
            let order = case.order(&holding);
            assert_eq!(found.snapshots.len(), order.len(), "{message}");
            for (row, number) in found.snapshots.iter().zip(order) {
                let shown: BTreeSet<Vec<u8>> = row.paths.iter().cloned().collect();
                assert_eq!((row.session, shown.len()), (case.looked[number].session, row.paths.len()), "{message}");
                assert_eq!(row.has_more, PATHS_MAX < paths[number].len(), "{message}");
                assert_eq!(shown.len(), PATHS_MAX.min(paths[number].len()), "{message}");
                assert!(shown.is_subset(&paths[number]), "{message}: {shown:?}, {:?}", paths[number]);
                more += u64::from(row.has_more);
            }
        }
    }
    assert!(0 < more, "no chunk had more paths than are listed");
}

#[test]
fn without_a_container_there_is_an_error_or_the_same_answer() {
    // One without further copies, which could stand in.
    let is_sole = |case: &Case| case.stored.len() == case.chunks.values().map(Vec::len).sum::<usize>();
    let case = (0..SEEDS).map(Case::new).find(is_sole).unwrap();
    let everything = case.everything();
    let mut draw = Draw::new(7);
    let names = container_names(&case.store);
    let chunks: Vec<Fingerprint> = case.stored.keys().copied().collect();
    let mut lost = [0; 3];
    for name in &names {
        let world = case.world.on(case.world.disk.fork());
        let store = world.open().unwrap();
        world.repo().remove(&name.path()).unwrap();
        let ask = |path: &[u8]| case.ask(&everything, None, |request| why_path(&store, request, path));
        let needed: Chunks = case.looked.iter().flat_map(Looked::all).collect();
        let is_needed = case.chunks[&name.id].iter().any(|(chunk, _)| needed.contains(chunk));
        assert_eq!(ask(b"/").is_err(), is_needed, "{name:?}");
        for path in [&b"/c/many"[..], b"/c/large", b"/a"] {
            match ask(path) {
                Ok(found) => assert_eq!(found, check_path(&case, path, &everything, None), "{name:?}"),
                Err(_) => lost[0] += 1,
            }
        }
        let other = draw.one_of(&names).id;
        match case.ask(&everything, None, |request| why_container(&store, request, other)) {
            Ok(found) => {
                let whole = check_container(&case, other, &everything, None);
                assert_eq!((found.held, found.snapshots), (whole.held, whole.snapshots), "{name:?}");
            }
            Err(_) => lost[1] += 1,
        }
        let chunk = *draw.one_of(&chunks);
        let holders = |store: &Store| {
            case.ask(&everything, None, |request| {
                let prefix = ChunkPrefix::parse(&chunk.to_string()).unwrap();
                let mut found = find_chunk(store, request, &prefix)?;
                why_chunk(store, request, &mut found)?;
                Ok(found.snapshots)
            })
        };
        match holders(&store) {
            Ok(found) => assert_eq!(found, holders(&case.store).unwrap(), "{name:?}"),
            Err(_) => lost[2] += 1,
        }
    }
    assert!(lost.iter().all(|count| 0 < *count), "{lost:?}");
}

#[test]
fn a_container_is_in_the_state_that_collections_and_sessions_give_it() {
    let case = Case::new(1);
    let (world, store, everything) = (&case.world, &case.store, case.everything());
    let ids: Vec<ContainerId> = case.chunks.keys().copied().collect();
    let state = |id: ContainerId| {
        let found = case.ask(&everything, None, |request| why_container(store, request, id));
        found.unwrap().state
    };
    assert_eq!(state(ids[0]), ContainerState::Live);
    condemn((world, store), 1, &[ids[0], ids[1]]);
    assert_eq!([state(ids[0]), state(ids[2])], [ContainerState::Condemned(1), ContainerState::Live]);
    // A rescued container is live again.
    collect((world, store), 1, CollectionStep::Final, &[ids[1]]);
    assert_eq!([state(ids[0]), state(ids[1])], [ContainerState::Live, ContainerState::Decided(1)]);
    collect((world, store), 1, CollectionStep::Done, &[]);
    assert_eq!(state(ids[1]), ContainerState::Decided(1));
    condemn((world, store), 2, &[ids[2]]);
    collect((world, store), 2, CollectionStep::Done, &[]);
    assert_eq!(state(ids[2]), ContainerState::Live);
    // Of a damaged `final`, all that was condemned counts.
    condemn((world, store), 3, &[ids[3]]);
    collect((world, store), 3, CollectionStep::Final, &[]);
    assert_eq!(state(ids[3]), ContainerState::Live);
    world.disk.damage("repo/gc/00000003/final", |bytes| bytes[100] ^= 1);
    assert_eq!(state(ids[3]), ContainerState::Condemned(3));
    // A copy that is about to be deleted is none.
    let found = |id| case.ask(&everything, None, |request| why_container(store, request, id)).unwrap();
    assert!(found(ids[0]).copied.chunks <= found(ids[0]).held.chunks);
    world.repo().remove(&Path::new("commits").join(ids[0].session.to_string())).unwrap();
    assert_eq!(state(ids[0]), ContainerState::Unended);
    let unknown = ContainerId { session: SessionId([1; 16]), ordinal: 5 };
    assert!(case.ask(&everything, None, |request| why_container(store, request, unknown)).is_err());
}

/// Returns the containers with regions that have a base in another, with those regions, from all directories.
fn dependencies(store: &Store) -> BTreeMap<(ContainerId, ContainerId), Regions> {
    let mut found: BTreeMap<(ContainerId, ContainerId), Regions> = BTreeMap::new();
    for name in container_names(store) {
        for region in store.open_container(&name).unwrap().directory.regions {
            let holders: BTreeSet<ContainerId> = region.bases.iter().map(|base| base.container).collect();
            for holder in holders {
                let regions = found.entry((name.id, holder)).or_default();
                regions.count += 1;
                regions.plain_bytes += u64::from(region.plain_len);
                regions.stored_bytes += u64::from(region.sealed_len);
            }
        }
    }
    found
}

#[test]
fn the_containers_that_one_depends_on_and_those_that_depend_on_it_are_those_of_a_look_at_every_directory() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 5, (16, 4));
    // A quick prune copies nothing, so that bases of forgotten snapshots stay.
    snapshots[..3].iter().for_each(|(session, ..)| forget(&store, *session).unwrap());
    let pruned = prune(&store, &PruneRequest { quick: true, ..request(&world, &store) }, &Silent).unwrap();
    let mut case = Case { world, store, looked: Vec::new(), stored: BTreeMap::new(), chunks: BTreeMap::new() };
    case.look();
    let (everything, pairs) = (case.everything(), dependencies(&case.store));
    let lens: BTreeMap<ContainerId, u64> =
        container_names(&case.store).iter().map(|name| (name.id, case.store.container_len(name).unwrap())).collect();
    let rows = |of: Vec<(ContainerId, Regions)>| -> Vec<RelatedContainer> {
        let row = |(id, regions)| RelatedContainer { id, stored_bytes: lens.get(&id).copied(), regions };
        of.into_iter().map(row).collect()
    };
    let mut only_bases = 0;
    for &id in case.chunks.keys() {
        let found = check_container(&case, id, &everything, None);
        let bases = rows(pairs.iter().filter(|((own, _), _)| *own == id).map(|((_, it), all)| (*it, *all)).collect());
        let dependents =
            rows(pairs.iter().filter(|((_, holder), _)| *holder == id).map(|((it, _), all)| (*it, *all)).collect());
        assert_eq!((found.bases.count, &found.bases.listed), (bases.len() as u64, &bases), "{id}");
        assert_eq!((found.dependents.count, &found.dependents.listed), (dependents.len() as u64, &dependents), "{id}");
        assert_eq!(found.is_only_base(), found.held.chunks == 0 && !dependents.is_empty(), "{id}");
        only_bases += u64::from(found.is_only_base());
    }
    // The plan of the prune has counted the same.
    assert!(3 < pairs.len() && 1 < only_bases, "{} pairs, {only_bases}", pairs.len());
    assert_eq!(only_bases, pruned.plan.bases_containers);
}

#[test]
fn of_many_dependents_the_first_ones_are_listed_and_all_are_counted() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let session = Arc::new(Session::begin(&store, &world.scratch(), SessionKind::Backup, "host").unwrap());
    let holder = forge(&store, &session, 0, (&[], 0));
    let count = u32::try_from(RELATED_MAX).unwrap() + 3;
    let dependents = (1..=count).map(|ordinal| forge(&store, &session, ordinal, (&[holder], 1)).container);
    let dependents: BTreeSet<ContainerId> = dependents.collect();
    let listed = store.list_containers(&world.scratch()).unwrap();
    assert_eq!(listed.len(), RELATED_MAX + 4);
    let request = WhyRequest {
        snapshots: &[],
        listed: &BTreeSet::new(),
        forgotten: None,
        scratch: &world.scratch(),
        memory_bytes: 16 << 20,
        monitor: &Silent,
    };
    let found = why_container(&store, &request, holder.container).unwrap();
    let shown: Vec<ContainerId> = found.dependents.listed.iter().map(|row| row.id).collect();
    assert_eq!((found.dependents.count, shown), (count.into(), dependents.into_iter().take(RELATED_MAX).collect()));
}
