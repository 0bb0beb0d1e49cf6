//! Backups that find similar regions by themselves: what they store, what they read, and what becomes of the host's index.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::backup::Budget;
use onefold_engine::check::{CheckRequest, ReadData, check};
use onefold_engine::collect::mark::{MEMORY_BYTES_MIN, Marker};
use onefold_engine::io::{Access, Disk};
use onefold_engine::monitor::Silent;
use onefold_engine::object::FormatVersion;
use onefold_engine::object::header::HEADER_LEN;
use onefold_engine::object::names::{ContainerKind, ContainerName};
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{RestoreRequest, restore};
use onefold_engine::similarity::choose::Limits;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::create::{Adjustments, Purpose};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::SessionId;

use crate::integration::damage::check_request;
use crate::integration::support::{Ask, Draw, World, container_names, copy, noise, restore_request, tell};

/// Regions that are long enough to have samples.
const LONG: Adjustments = Adjustments {
    purpose: Purpose::Files,
    chunk_bytes: Some(4 << 10),
    fixed_bytes: None,
    region_bytes: Some(256 << 10),
    container_bytes: Some(1 << 20),
    format: FormatVersion::V2,
    no_similarity: false,
};

const FILES: u64 = 20;
const FILE_BYTES: usize = 120_000;

fn ask(driver: Driver) -> Ask {
    let budget =
        Budget { barrier_containers: 1, bases_bytes: 4 << 20, similar_bytes: 1 << 20, ..Ask::default().budget };
    Ask { similarity: Some(Limits::default()), budget, driver, ..Ask::default() }
}

/// Words, so that a region compresses and has something in common with one that was edited.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut draw = Draw::new(seed);
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        bytes.extend_from_slice(format!("{:08x} {:05} ", draw.below(1 << 30), draw.below(700)).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A tree whose files were edited `version` times, once in each 3,000 bytes or so: almost every chunk is new each time.
fn tree(version: u64) -> MemTree {
    let tree = MemTree::new();
    tree.put_dir(Path::new("/d"));
    for file in 0..FILES {
        let mut bytes = text(file, FILE_BYTES);
        for edit in 1..=version {
            let mut draw = Draw::new(edit << 32 | file);
            let mut at = draw.below(2_000);
            while at < bytes.len() {
                bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(draw.below(200)).unwrap());
                at += 1_000 + draw.below(2_000);
            }
        }
        tree.put_file(Path::new(&format!("/d/{file:02}")), &bytes);
    }
    tree.put_file(Path::new("/d/noise"), &noise(version, 200_000));
    tree
}

/// What happens to the cache directory of a host.
type Harm = dyn Fn(&Arc<dyn Disk>);

struct History {
    world: World,
    store: Store,
    snapshots: Vec<(Snapshot, MemTree)>,
}

impl History {
    fn of(adjustments: Adjustments, versions: u64, driver: &Driver) -> Self {
        let world = World::new(7);
        let store = world.create(adjustments).unwrap();
        let mut history = Self { world, store, snapshots: Vec::new() };
        (0..versions).for_each(|version| history.back_up(version, &ask(driver.clone())));
        history
    }

    fn back_up(&mut self, version: u64, ask: &Ask) {
        let tree = tree(version);
        let report = self.world.backup(&self.store, &tree, ask).unwrap().report;
        assert_eq!(report.failures, 0);
        self.snapshots.push((report.snapshot, copy(&tree)));
    }

    fn assert_all_restore(&self) {
        for (snapshot, tree) in &self.snapshots {
            let (target, report) = self.world.restore(&self.store, snapshot).unwrap();
            assert_eq!((report.failures, tree.diff(&target)), (0, Vec::new()));
        }
    }
}

/// What the repository has of data: stored bytes, and the number of regions by depth.
fn data(store: &Store) -> (u64, BTreeMap<u8, usize>) {
    let (mut bytes, mut depths) = (0, BTreeMap::new());
    for name in container_names(store).into_iter().filter(|name| name.kind == ContainerKind::Data) {
        let container = store.open_container(&name).unwrap();
        bytes += store.container_len(&name).unwrap();
        for region in &container.directory.regions {
            *depths.entry(region.bases.depth()).or_default() += 1;
        }
    }
    (bytes, depths)
}

/// Versions of a tree of small files.
const VERSIONS: u64 = 20;

/// A tree of many small files, of which few change from version to version: its metadata resembles that of the version before.
fn small_files(version: u64) -> MemTree {
    let tree = MemTree::new();
    tree.put_dir(Path::new("/d"));
    for file in 0..2_000 {
        let changed = if file % 23 == version % 23 { version } else { 0 };
        tree.put_file(Path::new(&format!("/d/{file:04}")), &noise(file << 8 | changed, 100));
    }
    tree
}

fn bytes_of_metadata(store: &Store, sessions: &[SessionId]) -> u64 {
    let names = container_names(store).into_iter().filter(|name| name.kind == ContainerKind::Metadata);
    names.filter(|name| sessions.contains(&name.id.session)).map(|name| store.container_len(&name).unwrap()).sum()
}

/// Reads the whole metadata of some snapshots, as marking and listing do; returns how many regions were opened for that.
fn regions_opened(history: &History, snapshots: &[(Snapshot, MemTree)]) -> u64 {
    let (store, scratch) = (&history.store, history.world.scratch());
    let listed = store.list_containers(&scratch).unwrap();
    let mut reader = MetadataReader::open(store, &listed, &scratch, MetadataMemory::of(16 << 20)).unwrap();
    let mut marker = Marker::new(&mut reader, &scratch, MEMORY_BYTES_MIN).unwrap();
    for (snapshot, _) in snapshots.iter().rev() {
        marker.mark(snapshot.tree, &mut |_| Ok(()), &Silent).unwrap();
    }
    drop(marker);
    reader.counts().read
}

/// Whoever lost the index, or begins as a new host, finds the same in the directories.
#[test]
fn metadata_of_later_versions_takes_less_than_without_bases_and_comes_back() {
    let driver = Driver::inline(1);
    let history = |adjustments, forgets_index: bool| {
        let world = World::new(7);
        let store = world.create(adjustments).unwrap();
        let mut history = History { world, store, snapshots: Vec::new() };
        let mut sessions = Vec::new();
        for version in 0..VERSIONS {
            let source = small_files(version);
            let report = history.world.backup(&history.store, &source, &ask(driver.clone())).unwrap().report;
            sessions.push(report.session);
            history.snapshots.push((report.snapshot, copy(&source)));
            if forgets_index {
                history.world.cache().remove(Path::new("similar-metadata")).unwrap();
            }
        }
        history.assert_all_restore();
        let listings = history.snapshots.chunks(1).map(|one| regions_opened(&history, one)).collect::<Vec<u64>>();
        tell(&format!("{listings:?}"));
        (bytes_of_metadata(&history.store, &sessions[1..]), regions_opened(&history, &history.snapshots))
    };
    let ((with, opened), (again, _)) = (history(LONG, false), history(LONG, true));
    let (without, opened_without) = history(Adjustments { no_similarity: true, ..LONG }, false);
    tell(&format!(
        "metadata of later versions: {with} bytes of {without} without bases, {again} without the index; a mark opens {opened} regions, \
         {opened_without} without bases"
    ));
    // Bases are read for themselves, too.
    assert!(opened <= opened_without + opened_without / 10, "{opened} of {opened_without}");
    assert!(2 * with < without && 2 * again < without, "{with} and {again} of {without}");
}

fn sealed_lens(store: &Store) -> Vec<u32> {
    let mut names: Vec<_> =
        container_names(store).into_iter().filter(|name| name.kind == ContainerKind::Data).collect();
    names.sort_by_key(|name| (name.id.session, name.id.ordinal));
    let opened = names.iter().map(|name| store.open_container(name).unwrap());
    opened.flat_map(|container| container.directory.regions.into_iter().map(|region| region.sealed_len)).collect()
}

#[test]
fn versions_take_less_than_without_bases_and_come_back() {
    let driver = Driver::inline(1);
    let with = History::of(LONG, 4, &driver);
    let without = History::of(Adjustments { no_similarity: true, ..LONG }, 4, &driver);
    let ((bytes, depths), (bytes_without, depths_without)) = (data(&with.store), data(&without.store));
    tell(&format!("similar regions: {bytes} bytes of {bytes_without} without, depths {depths:?}"));
    assert!(2 * bytes < bytes_without, "{bytes} of {bytes_without}");
    assert_eq!(depths_without.into_keys().collect::<Vec<_>>(), [0], "a repository that was made without similarity");
    let deepest = Limits::default().depth_max;
    assert!(depths.keys().all(|depth| *depth <= deepest) && depths.contains_key(&1), "{depths:?}");
    with.assert_all_restore();
    without.assert_all_restore();
}

#[test]
fn every_driver_chooses_the_same_bases() {
    let drivers = [Driver::inline(1), Driver::inline(2), Driver::threads(3)];
    let lens: Vec<_> = drivers.iter().map(|driver| sealed_lens(&History::of(LONG, 3, driver).store)).collect();
    assert!(lens.iter().all(|other| *other == lens[0]), "{lens:?}");
}

#[test]
fn an_index_that_is_lost_damaged_or_of_another_host_is_made_again_from_the_containers() {
    let driver = Driver::inline(1);
    let (kept, _) = data(&History::of(LONG, 4, &driver).store);
    let path = Path::new("similar");
    let harms: [&Harm; 4] = [
        &|cache| cache.remove(path).unwrap(),
        &|cache| {
            let file = cache.open(path, Access::ReadWrite).unwrap();
            let mut byte = [0];
            file.read_at(100, &mut byte).unwrap();
            file.write_at(100, &[byte[0] ^ 1]).unwrap();
        },
        &|cache| cache.open(path, Access::ReadWrite).unwrap().set_len(20).unwrap(),
        // A host that has never seen the repository.
        &|cache| {
            for entry in cache.list(Path::new("")).unwrap() {
                if !entry.is_dir {
                    cache.remove(Path::new(&entry.name)).unwrap();
                }
            }
        },
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let mut history = History::of(LONG, 3, &driver);
        harm(&history.world.cache());
        history.back_up(3, &ask(driver.clone()));
        // Regions have other numbers, by which equal votes are ranked.
        let (bytes, _) = data(&history.store);
        assert!(bytes.abs_diff(kept) < kept / 40, "harm {number}: {bytes} bytes, and {kept} without it");
        history.assert_all_restore();
    }
}

#[test]
fn a_damaged_front_directory_with_samples_is_all_that_is_told_of_its_container() {
    let history = History::of(LONG, 2, &Driver::inline(1));
    let (store, disk) = (&history.store, &history.world.disk);
    let has_samples = |name: &&ContainerName| !store.open_container(name).unwrap().directory.samples.is_empty();
    let names = container_names(store);
    let sampled: Vec<&ContainerName> = names.iter().filter(has_samples).collect();
    assert!(sampled.iter().any(|name| name.kind == ContainerKind::Metadata), "both kinds have samples");
    assert!(sampled.iter().any(|name| name.kind == ContainerKind::Data), "both kinds have samples");
    for name in sampled {
        disk.damage(Path::new("repo").join(name.path()), |bytes| bytes[HEADER_LEN + 40] ^= 1);
        for (read, expected) in [(ReadData::None, 1), (ReadData::All, 3)] {
            let checked = check(store, &check_request(&history.world, read), &Silent).unwrap();
            let [finding] = &checked.findings[..] else { panic!("{name}: {:?}", checked.findings) };
            // With all data, that its bytes are neither those of its name nor those of its trailer.
            let problems: Vec<&str> = finding.problem.split("; ").collect();
            assert_eq!(problems.len(), expected, "{name}: {problems:?}");
            assert!(problems.contains(&"damaged: its Front directory does not open"), "{name}: {problems:?}");
            assert_eq!(finding.affected_count, 0, "the back directory is enough");
        }
        disk.damage(Path::new("repo").join(name.path()), |bytes| bytes[HEADER_LEN + 40] ^= 1);
    }
    history.assert_all_restore();
}

#[test]
fn little_memory_costs_size_only() {
    let mut history = History::of(LONG, 2, &Driver::inline(1));
    let with = ask(Driver::inline(1));
    for (version, similar_bytes) in [(2, 2_000), (3, 0), (4, 1 << 20)] {
        history.back_up(version, &Ask { budget: Budget { similar_bytes, ..with.budget }, ..with.clone() });
    }
    history.assert_all_restore();
}

/// Returns the number of regions of all containers.
fn regions(store: &Store) -> u64 {
    let counts =
        container_names(store).into_iter().map(|name| store.open_container(&name).unwrap().directory.regions.len());
    counts.map(|count| count as u64).sum()
}

#[test]
fn a_restore_reads_each_region_once_though_others_depend_on_it_and_a_check_hardly_any_twice() {
    let history = History::of(LONG, 5, &Driver::inline(1));
    let (store, cache) = (&history.store, history.world.cache());
    let (_, depths) = data(store);
    let (data_regions, all_regions) = (depths.values().sum::<usize>() as u64, regions(store));
    let (snapshot, tree) = history.snapshots.last().unwrap();
    let mut cases = Vec::new();
    for (memory_bytes, is_enough) in [(16 << 20, false), (64 << 20, true)] {
        for driver in [Driver::inline(2), Driver::inline(3), Driver::threads(3)] {
            let target = MemTree::new();
            let request = restore_request(&cache, snapshot, Path::new("/"), Arc::new(target.clone()));
            let request = RestoreRequest { memory_bytes, driver: driver.clone(), ..request };
            let restored = restore(store, &request).unwrap();
            assert_eq!((restored.failures, tree.diff(&target)), (0, Vec::new()));
            let request = CheckRequest { memory_bytes, driver, ..check_request(&history.world, ReadData::All) };
            let checked = check(store, &request, &Silent).unwrap();
            assert!(checked.is_sound() && 0 < checked.chunks_read, "{:?}", checked.findings);
            let case = format!("{memory_bytes} bytes: {} and {}", restored.regions_read, checked.regions_read);
            assert!(!is_enough || restored.regions_read <= data_regions, "{case} of {data_regions}");
            assert!(!is_enough || checked.regions_read <= all_regions + all_regions / 8, "{case} of {all_regions}");
            cases.push(case);
        }
    }
    tell(&format!("{data_regions} regions of data, {all_regions} of all; read by restores and checks: {cases:?}"));
}

/// A tree of which one chunk in three or so differs from that of another version.
fn sparsely_edited(version: u64) -> MemTree {
    let tree = MemTree::new();
    tree.put_dir(Path::new("/d"));
    for file in 0..FILES {
        let mut bytes = text(file, FILE_BYTES);
        for at in (0..bytes.len()).step_by(20_000) {
            bytes[at] = b'0' + u8::try_from(version).unwrap();
        }
        tree.put_file(Path::new(&format!("/d/{file:02}")), &bytes);
    }
    tree
}

#[test]
fn nothing_is_compressed_against_what_was_stored_without_similarity() {
    for (similarity, expects_bases) in [(None, false), (Some(Limits::default()), true)] {
        let world = World::new(9);
        let store = world.create(LONG).unwrap();
        let with = ask(Driver::inline(1));
        world.backup(&store, &sparsely_edited(0), &Ask { similarity, ..with.clone() }).unwrap();
        world.backup(&store, &sparsely_edited(1), &with).unwrap();
        let (_, depths) = data(&store);
        assert_eq!(depths.keys().any(|depth| *depth != 0), expects_bases, "{depths:?}");
    }
}
