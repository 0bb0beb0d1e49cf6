//! Comparing snapshots and counting what they hold: the results, and what they cost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onefold_engine::Error;
use onefold_engine::inspect::{
    Change, Contents, Diff, DiffReport, Difference, RawStats, Search, SearchOptions, StatsRequest, contents_stats,
    raw_stats, read_chunk, restore_stats,
};
use onefold_engine::io::tree::{EntryKind, TargetTree};
use onefold_engine::monitor::Silent;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::create::Adjustments;
use onefold_engine::store::cursor::DirectoryCursor;
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::{ChunkKind, Fingerprint, Timestamp};

use crate::integration::support::{Ask, Draw, SMALL, World, change, containers, newest, noise, stored_chunks, tree};

const MEMORY_BYTES: usize = 4 << 20;

fn reader(world: &World, store: &Store) -> MetadataReader {
    let containers = store.list_containers(&world.scratch()).unwrap();
    MetadataReader::open(store, &containers, &world.scratch(), MetadataMemory::of(MEMORY_BYTES)).unwrap()
}

fn snapshot(world: &World, store: &Store, source: &MemTree) -> Snapshot {
    world.backup(store, source, &Ask::default()).unwrap();
    newest(store).unwrap().unwrap().1
}

fn diff(world: &World, store: &Store, before: &Snapshot, after: &Snapshot) -> (Vec<Change>, DiffReport) {
    let mut reader = reader(world, store);
    let roots = (before.tree, after.tree);
    let mut diff = Diff::new(&reader, roots, true, &world.scratch(), MEMORY_BYTES).unwrap();
    let mut changes = Vec::new();
    while let Some(change) = diff.next(&mut reader, &Silent).unwrap() {
        changes.push(change);
    }
    (changes, diff.report())
}

/// Returns every entry of a snapshot by its path, read one after the other.
fn entries(world: &World, store: &Store, snapshot: &Snapshot) -> BTreeMap<Vec<u8>, Entry> {
    let mut reader = reader(world, store);
    let mut all = BTreeMap::new();
    let mut left = vec![(snapshot.tree, Vec::new())];
    while let Some((node, base)) = left.pop() {
        let mut cursor = DirectoryCursor::new(node);
        while let Some(hinted) = cursor.next(&mut reader).unwrap() {
            let path = [&base[..], b"/", &hinted.entry.name].concat();
            if let Content::Directory { node } = hinted.entry.content {
                left.push((node, path.clone()));
            }
            all.insert(path, hinted.entry);
        }
    }
    all
}

/// What differs, found by comparing everything with everything.
fn oracle(before: &BTreeMap<Vec<u8>, Entry>, after: &BTreeMap<Vec<u8>, Entry>) -> BTreeMap<Vec<u8>, Vec<Difference>> {
    let mut found: BTreeMap<Vec<u8>, Vec<Difference>> = BTreeMap::new();
    for path in before.keys().chain(after.keys()) {
        let differences = match (before.get(path), after.get(path)) {
            (Some(old), Some(new)) if old.kind == new.kind => {
                let bare = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.mtime, entry.xattrs.clone());
                let metadata = bare(old) != bare(new);
                let modified = match (&old.content, &new.content) {
                    (Content::File { recipe: old, .. }, Content::File { recipe: new, .. }) => old != new,
                    (Content::Directory { .. }, _) => false,
                    (old, new) => old != new,
                };
                let contents = if modified { Contents::Modified } else { Contents::Same };
                let differs = modified || metadata;
                differs.then_some(Difference::Changed { contents, metadata }).into_iter().collect()
            }
            (Some(_), Some(_)) => vec![Difference::Kind],
            (Some(_), None) => vec![Difference::Removed],
            (None, Some(_)) => vec![Difference::Added],
            (None, None) => vec![],
        };
        if !differences.is_empty() {
            found.insert(path.clone(), differences);
        }
    }
    found
}

#[test]
fn a_change_in_a_large_directory_costs_a_path_of_nodes_to_find() {
    let world = World::new(1);
    // Small containers would have small nodes, which are cut by their length before their names say where.
    let store = world.create(Adjustments::default()).unwrap();
    let source = MemTree::new();
    for directory in 0..40 {
        for file in 0..500 {
            source.put_file(Path::new(&format!("/d/many/{directory:03}-{file:05}")), b"");
        }
        source.put_file(Path::new(&format!("/d/sub-{directory:03}/file")), &[directory; 100]);
    }
    let before = snapshot(&world, &store, &source);
    source.remove(Path::new("d/many/007-00123")).unwrap();
    source.put_file(Path::new("/d/many/020-00400x"), b"new");
    source.put_file(Path::new("/d/many/039-00499"), b"changed");
    let after = snapshot(&world, &store, &source);
    let (changes, report) = diff(&world, &store, &before, &after);
    let found: Vec<_> = changes
        .iter()
        .filter(|change| change.kind == EntryKind::File)
        .map(|change| (String::from_utf8_lossy(&change.path).into_owned(), change.difference))
        .collect();
    let [(removed, Difference::Removed), (added, Difference::Added), (modified, Difference::Changed { contents, .. })] =
        found.as_slice()
    else {
        panic!("{found:?}")
    };
    assert!(removed.ends_with("/many/007-00123") && added.ends_with("/many/020-00400x"), "{found:?}");
    assert!(modified.ends_with("/many/039-00499") && *contents == Contents::Modified, "{found:?}");
    let nodes = stored_chunks(&store, &[ChunkKind::Tree]).len();
    assert!(90 < nodes, "the directory is of {nodes} nodes only");
    // Two sides; the root, /d, the list of /d/many and, for each of three changes, the node of the entry and perhaps the
    // one behind it.
    assert!(report.nodes_read <= 24, "{} of {nodes} nodes were read", report.nodes_read);
    let (changes, report) = diff(&world, &store, &after, &after);
    assert_eq!((changes.len(), report.nodes_read), (0, 0));
}

#[test]
fn what_is_found_to_differ_is_what_differs() {
    for seed in 0..8 {
        println!("seed {seed}");
        let mut draw = Draw::new(seed);
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let source = MemTree::new();
        let mut names = Vec::new();
        for number in 0..2000 {
            let name = format!("d/{}/{}/file-{number}", draw.below(3), draw.below(40));
            source.put_file(&Path::new("/").join(&name), &noise(number, draw.below(100)));
            names.push(name);
        }
        let before = snapshot(&world, &store, &source);
        for step in 0..draw.below(60) {
            let name = draw.one_of(&names).clone();
            let path = PathBuf::from(&name);
            let stands = TargetTree::metadata(&source, &path).unwrap().is_some();
            match (draw.below(6), stands) {
                (0, true) => source.remove(&path).unwrap(),
                (1, true) => {
                    source.remove(&path).unwrap();
                    source.put_file(&Path::new("/").join(&path).join("below/deep"), b"x");
                }
                (2, true) => source.edit(&Path::new("/").join(&path), |metadata| metadata.uid += 1),
                (3, true) => {
                    source.remove(&path).unwrap();
                    source.put_symlink(&Path::new("/").join(&path), "elsewhere".as_ref());
                }
                (4, _) => source.put_file(Path::new(&format!("/d/{}/new-{step}/f", draw.below(4))), b"new"),
                (_, true) => {
                    source.remove(&path).unwrap();
                    source.put_file(&Path::new("/").join(&path), &noise(9000 + step as u64, 200));
                }
                (_, false) => {}
            }
        }
        let after = snapshot(&world, &store, &source);
        let (old, new) = (entries(&world, &store, &before), entries(&world, &store, &after));
        let (changes, report) = diff(&world, &store, &before, &after);
        let mut found: BTreeMap<Vec<u8>, Vec<Difference>> = BTreeMap::new();
        for change in &changes {
            found.entry(change.path.clone()).or_default().push(change.difference);
        }
        assert_eq!(found, oracle(&old, &new));
        let files = |difference| {
            let matching = changes.iter().filter(|change| change.difference == difference);
            matching.filter(|change| change.kind == EntryKind::File).count() as u64
        };
        assert_eq!(report.added.files, files(Difference::Added));
        assert_eq!(report.removed.files, files(Difference::Removed));
        // The other way round, everything is the same but for its direction.
        let (back, reverse) = diff(&world, &store, &after, &before);
        assert_eq!(back.len(), changes.len());
        assert_eq!((reverse.added, reverse.removed), (report.removed, report.added));
    }
}

#[test]
fn what_was_only_moved_adds_no_data() {
    let world = World::new(2);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    source.put_file(Path::new("/d/one/file"), &noise(1, 100_000));
    let before = snapshot(&world, &store, &source);
    source.remove(Path::new("d/one/file")).unwrap();
    source.put_file(Path::new("/d/two/file"), &noise(1, 100_000));
    let after = snapshot(&world, &store, &source);
    let (_, report) = diff(&world, &store, &before, &after);
    assert_eq!((report.added.files, report.removed.files), (1, 1));
    assert_eq!((report.added.data_chunks, report.removed.data_chunks), (0, 0));
    assert!(report.added.bytes < 10_000, "{report:?}");
}

#[test]
fn contents_that_change_without_a_trace_are_suspicious() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let path = Path::new("/d/file");
    let rotten = |byte| {
        let source = MemTree::new();
        source.put_file(path, &[byte; 1000]);
        source.edit(path, |metadata| {
            metadata.mtime = Timestamp { seconds: 5, nanoseconds: 0 };
            metadata.ctime = metadata.mtime;
        });
        source
    };
    let before = snapshot(&world, &store, &rotten(1));
    let after = snapshot(&world, &store, &rotten(2));
    let (changes, _) = diff(&world, &store, &before, &after);
    let file = changes.iter().find(|change| change.kind == EntryKind::File).unwrap();
    assert_eq!(file.difference, Difference::Changed { contents: Contents::Suspicious, metadata: false });
}

#[test]
fn a_search_finds_in_each_snapshot_what_matches_there() {
    let world = World::new(4);
    let store = world.create(SMALL).unwrap();
    let source = tree(20);
    let before = snapshot(&world, &store, &source);
    change(&source);
    let after = snapshot(&world, &store, &source);
    for (pattern, case) in [
        ("file-003", Case::Sensitive),
        ("FILE-*", Case::Insensitive),
        ("/d/e/*", Case::Sensitive),
        ("new", Case::Sensitive),
        ("none", Case::Sensitive),
        ("/d/**/text", Case::Sensitive),
    ] {
        let patterns = Patterns::parse([pattern.as_bytes()], case).unwrap();
        let options = SearchOptions { patterns: vec![patterns.clone()], newest: None, oldest: None };
        let mut reader = reader(&world, &store);
        let mut search = Search::new(&reader, options, &world.scratch(), MEMORY_BYTES).unwrap();
        // Each snapshot twice: what is remembered of one must not hide anything in another.
        for snapshot in [&before, &after, &before, &after] {
            let mut found = Vec::new();
            search.begin(snapshot.tree).unwrap();
            while let Some(next) = search.next(&mut reader, &Silent).unwrap() {
                found.push(next.path);
            }
            let as_path = |path: &[u8]| PathBuf::from(std::str::from_utf8(path).unwrap());
            let all = entries(&world, &store, snapshot);
            let matches =
                |(path, entry): &(Vec<u8>, Entry)| patterns.matches(&as_path(path), entry.kind == EntryKind::Directory);
            let mut expected: Vec<_> = all.into_iter().filter(matches).map(|(path, _)| path).collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "{pattern}");
        }
    }
}

#[test]
fn times_limit_what_a_search_finds() {
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
    for seconds in [10, 20, 30] {
        let path = PathBuf::from(format!("/d/file-{seconds}"));
        source.put_file(&path, b"x");
        source.edit(&path, |metadata| metadata.mtime = at(seconds));
    }
    let taken = snapshot(&world, &store, &source);
    for (newest, oldest, expected) in [
        (None, Some(at(20)), vec!["/d/file-20", "/d/file-30"]),
        (Some(at(20)), None, vec!["/d/file-10", "/d/file-20"]),
        (Some(at(25)), Some(at(15)), vec!["/d/file-20"]),
    ] {
        let patterns = vec![Patterns::parse([&b"file-*"[..]], Case::Sensitive).unwrap()];
        let mut reader = reader(&world, &store);
        let options = SearchOptions { patterns, newest, oldest };
        let mut search = Search::new(&reader, options, &world.scratch(), MEMORY_BYTES).unwrap();
        search.begin(taken.tree).unwrap();
        let mut found = Vec::new();
        while let Some(next) = search.next(&mut reader, &Silent).unwrap() {
            found.push(String::from_utf8(next.path).unwrap());
        }
        assert_eq!(found, expected);
    }
}

/// Two snapshots of one source, and what stands in them.
fn two_snapshots(world: &World, store: &Store) -> Vec<(Fingerprint, BTreeMap<Vec<u8>, Entry>)> {
    let source = tree(30);
    let before = snapshot(world, store, &source);
    change(&source);
    let after = snapshot(world, store, &source);
    [before, after].map(|snapshot| (snapshot.tree, entries(world, store, &snapshot))).to_vec()
}

#[test]
fn sums_are_those_of_reading_every_entry() {
    let world = World::new(6);
    let store = world.create(SMALL).unwrap();
    let snapshots = two_snapshots(&world, &store);
    let mut roots: Vec<Fingerprint> = snapshots.iter().map(|(root, _)| *root).collect();
    // Once more the first: it counts again, although nothing of it has to be read.
    roots.push(roots[0]);
    let scratch = world.scratch();
    let request = StatsRequest { roots: &roots, scratch: &scratch, memory_bytes: MEMORY_BYTES, monitor: &Silent };
    let restored = restore_stats(&mut reader(&world, &store), &request).unwrap();
    let (mut count, mut bytes) = (0, 0);
    let mut contents = BTreeMap::new();
    for (_, entries) in snapshots.iter().chain(snapshots.first()) {
        count += entries.len() as u64;
        let mut links = std::collections::BTreeSet::new();
        for entry in entries.values() {
            if entry.link.is_none_or(|link| links.insert(link)) {
                bytes += entry.size();
            }
            if let Content::File { recipe, .. } = &entry.content {
                contents.insert(format!("{recipe:?}"), entry.size());
            }
        }
    }
    assert_eq!((restored.entries, restored.bytes), (count, bytes));
    let by_contents = contents_stats(&mut reader(&world, &store), &request).unwrap();
    assert_eq!(by_contents.files, contents.len() as u64);
    assert_eq!(by_contents.bytes, contents.values().sum::<u64>());
}

#[test]
fn raw_data_is_what_containers_hold() {
    let world = World::new(7);
    let store = world.create(SMALL).unwrap();
    let snapshots = two_snapshots(&world, &store);
    let roots: Vec<Fingerprint> = snapshots.iter().map(|(root, _)| *root).collect();
    let scratch = world.scratch();
    let stats = |roots: &[Fingerprint]| -> RawStats {
        let request = StatsRequest { roots, scratch: &scratch, memory_bytes: MEMORY_BYTES, monitor: &Silent };
        raw_stats(&mut reader(&world, &store), &request).unwrap()
    };
    let all = stats(&roots);
    let stored = containers(&store);
    assert_eq!(all.data_chunks, stored_chunks(&store, &[ChunkKind::Data]).len() as u64);
    assert_eq!(all.metadata_chunks, stored_chunks(&store, &[ChunkKind::Tree, ChunkKind::Recipe]).len() as u64);
    let plain: usize = stored.iter().flat_map(|container| &container.regions).map(Vec::len).sum();
    assert_eq!(all.data_bytes + all.metadata_bytes, plain as u64);
    assert_eq!((all.missing_chunks, all.other_chunks, all.containers), (0, 0, stored.len() as u64));
    let held = all.data_bytes_stored + all.metadata_bytes_stored;
    assert!(held <= all.container_bytes && all.container_bytes / 2 < held, "{all:?}");
    // One snapshot needs less, and what it does not need is told.
    let one = stats(&roots[..1]);
    assert!(one.data_chunks < all.data_chunks, "{one:?}");
    assert_eq!(one.data_chunks + one.metadata_chunks + one.other_chunks, all.data_chunks + all.metadata_chunks);
    // A container that is gone is missed.
    let data = stored.iter().find(|container| container.chunks[0].0 == ChunkKind::Data).unwrap();
    world.repo().remove(&data.name.path()).unwrap();
    assert_eq!(stats(&roots).missing_chunks, data.chunks.len() as u64);
}

#[test]
fn a_chunk_is_read_by_its_name_alone() {
    let world = World::new(8);
    let store = world.create(SMALL).unwrap();
    two_snapshots(&world, &store);
    for container in containers(&store) {
        let (kind, fingerprint, _) = container.chunks[0];
        let chunk = read_chunk(&store, &world.scratch(), fingerprint, &Silent).unwrap();
        assert_eq!((chunk.kind, chunk.container), (kind, container.name.id));
        assert!(container.regions[0].starts_with(&chunk.contents));
        assert_eq!(store.keys.fingerprint(kind, &chunk.contents), fingerprint);
    }
    let missing = read_chunk(&store, &world.scratch(), Fingerprint([9; 32]), &Silent);
    assert!(matches!(missing, Err(Error::MissingChunk { .. })), "{missing:?}");
}
