//! Copying forward: live chunks of containers that are given up stand in new containers, byte by byte.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::collect::Copies;
use onefold_engine::collect::copy::{Copied, CopyBudget, CopyRequest, copy_forward};
use onefold_engine::collect::lifetime::{LifetimeClass, LifetimeClasses};
use onefold_engine::collect::mark::{DirectoryChunks, MEMORY_BYTES_MIN, Marker};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions, PrunePlan};
use onefold_engine::collect::usage::{self, LiveChunk, Usage};
use onefold_engine::compress::{Algorithm, Compression, Compressor};
use onefold_engine::container::{CompressedRegion, Packer, RegionChunk, Sealer};
use onefold_engine::io::AlignedBuffer;
use onefold_engine::object::names::{ContainerKind, ContainerName};
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::SessionKind;
use onefold_engine::store::base_reader::BaseReader;
use onefold_engine::store::container_set::{ContainerNumber, Containers};
use onefold_engine::store::metadata::{MetadataMemory, Scratch};
use onefold_engine::store::{MetadataReader, Session, Store};
use onefold_engine::testing::sim::{Fault, SimHost};
use onefold_engine::types::{Chunk, ChunkKind, ContainerId, Fingerprint, Sequence};
use onefold_engine::{Error, Monitor, Result, Silent};

use crate::integration::support::{
    Ask, Draw, OpenContainer, SMALL, World, bases_of, change, containers, noise, tell, tree,
};

/// Seeds of random live sets and damage.
const SEEDS: u64 = if cfg!(feature = "slow") { 200 } else { 24 };

/// The limits of tests: all that hold more than one thing hold few.
fn budget() -> CopyBudget {
    CopyBudget { groups_max: 6, barrier_containers: 2, ..CopyBudget::of(CopyBudget::BYTES_MIN, 2, Copies::default()) }
}

fn classes() -> LifetimeClasses {
    use LifetimeClass::{Day, Month, Newest, Week};
    [Newest, Day, Day, Week, Month].into_iter().collect()
}

/// A copy to be made: the containers in order, and what is live.
#[derive(Clone, Debug)]
struct Case {
    copy: Vec<u32>,
    live: Vec<LiveChunk>,
    /// No dead chunk may be copied.
    leaves_dead: bool,
    copies: Copies,
}

impl Case {
    fn run(&self, world: &World, store: &Store, driver: &Driver, monitor: &dyn Monitor) -> Result<(Begun, Copied)> {
        let scratch = world.scratch();
        let session = Arc::new(Session::begin(store, &scratch, SessionKind::Collection, "host")?);
        let listed = store.list_containers(&scratch)?;
        let bases = BaseReader::new(store, &listed, 8 << 20);
        let request = CopyRequest {
            store,
            session: Some(&session),
            containers: &listed,
            bases: &bases,
            copy: &self.copy,
            classes: &classes(),
            leaves_dead: self.leaves_dead,
            copies: self.copies,
            budget: budget(),
            scratch: &scratch,
            driver,
            monitor,
        };
        let mut ordinals = 0;
        let copied = copy_forward(&request, self.live.iter().map(|chunk| Ok(*chunk)), &mut ordinals)?;
        assert!(copied.written_containers <= ordinals.into());
        Ok((session, copied))
    }
}

/// The session of a collector.
type Begun = Arc<Session>;

/// A chunk's content and hints as they are stored.
type Stored = BTreeMap<Fingerprint, Vec<(ContainerId, ChunkKind, Vec<u8>)>>;

/// Returns all chunks of containers with their bytes.
fn stored<'a>(all: impl IntoIterator<Item = &'a OpenContainer>) -> Stored {
    let mut stored = Stored::new();
    for OpenContainer { name, chunks, regions } in all {
        let plain = regions.concat();
        let mut rest = plain.as_slice();
        for (kind, fingerprint, len) in chunks {
            let (bytes, tail) = rest.split_at(*len as usize);
            stored.entry(*fingerprint).or_default().push((name.id, *kind, bytes.to_vec()));
            rest = tail;
        }
        assert!(rest.is_empty());
    }
    stored
}

/// A repository with two snapshots, and its containers by number.
fn world(seed: u64) -> (World, Store, Vec<OpenContainer>) {
    let world = World::new(seed);
    let store = world.create(SMALL).unwrap();
    let source = tree(30);
    world.backup(&store, &source, &Ask::default()).unwrap();
    change(&source);
    source.put_file(Path::new("/d/large"), &noise(77 + seed, 400_000));
    source.put_file(Path::new("/d/text"), &b"some words that shrink\n".repeat(20_000));
    for number in 0..300 {
        source.put_file(Path::new(&format!("/d/e/small-{number}")), &noise(5000 + number, 700));
    }
    world.backup(&store, &source, &Ask::default()).unwrap();
    let all = containers(&store);
    (world, store, all)
}

/// Draws which chunks are live, region by region: all, most, some or few.
fn draw_live(draw: &mut Draw, store: &Store, all: &[OpenContainer]) -> Vec<LiveChunk> {
    let mut live = Vec::new();
    for (number, container) in (0..).zip(all) {
        let reader = store.open_container(&container.name).unwrap();
        for region in 0..u32::try_from(reader.directory.regions.len()).unwrap() {
            let dead_in = *draw.one_of(&[usize::MAX, 30, 3, 1]);
            let rank = u16::try_from(draw.below(7)).unwrap();
            for slot in reader.chunks_of(region) {
                let is_dead = dead_in != usize::MAX && draw.once_in(dead_in);
                if is_dead && !(dead_in == 1 && draw.once_in(4)) {
                    continue;
                }
                let rank = if draw.once_in(5) { u16::try_from(draw.below(7)).unwrap() } else { rank };
                let (slot, (_, _, len)) = (u16::try_from(slot).unwrap(), container.chunks[slot]);
                live.push(LiveChunk { container: number, slot, rank, len });
            }
        }
    }
    // As a join in the order of fingerprints passes them on.
    live.sort_unstable_by_key(|chunk| all[chunk.container as usize].chunks[usize::from(chunk.slot)].1);
    live
}

/// Draws whether regions are compressed again, and how.
fn draw_copies(draw: &mut Draw) -> Copies {
    let compression = *draw.one_of(&[Compression::Zstd(1), Compression::Zstd(9), Compression::Lz4]);
    Copies { compression, recompresses: draw.once_in(2) }
}

fn draw_case(draw: &mut Draw, store: &Store, all: &[OpenContainer]) -> Case {
    let live = draw_live(draw, store, all);
    let mut copy: Vec<u32> = (0..u32::try_from(all.len()).unwrap()).filter(|_| !draw.once_in(4)).collect();
    for index in (1..copy.len()).rev() {
        copy.swap(index, draw.below(index + 1));
    }
    Case { copy, live, leaves_dead: draw.once_in(4), copies: draw_copies(draw) }
}

/// Checks the new containers against the old ones.
fn check_copies(store: &Store, all: &[OpenContainer], case: &Case, session: &Session, copied: &Copied) {
    let now = containers(store);
    let new: Vec<&OpenContainer> = now.iter().filter(|container| container.name.id.session == session.id).collect();
    let mut cursor = copied.written.cursor();
    assert!(new.iter().all(|container| cursor.contains(container.name.id)));
    assert_eq!(new.len() as u64, copied.written_containers);
    let bytes: u64 = new.iter().map(|container| store.container_len(&container.name).unwrap()).sum();
    assert_eq!(bytes, copied.written_bytes);
    let (before, after) = (stored(all), stored(new.iter().copied()));
    let mut expected = BTreeSet::new();
    for LiveChunk { container, slot, .. } in &case.live {
        let (kind, fingerprint, _) = all[*container as usize].chunks[usize::from(*slot)];
        let is_copied = case.copy.contains(container);
        let copies = after.get(&fingerprint).map_or(&[][..], Vec::as_slice);
        if is_copied && !copied.not_copied.contains_key(container) {
            let original =
                before[&fingerprint].iter().find(|(id, ..)| *id == all[*container as usize].name.id).unwrap();
            assert_eq!(copies.len(), 1, "{fingerprint} of container {container}");
            // The bytes include the hints of metadata.
            assert_eq!((copies[0].1, &copies[0].2), (kind, &original.2));
        }
        if is_copied {
            expected.insert(fingerprint);
        }
    }
    let dead = after.keys().filter(|fingerprint| !expected.contains(*fingerprint)).count();
    assert_eq!(dead as u64, copied.dead_chunks, "dead chunks come along in carried regions only");
    assert!(!case.leaves_dead || dead == 0, "{dead} dead chunks were copied");
    assert_eq!(after.values().map(Vec::len).sum::<usize>() as u64, copied.chunks + copied.dead_chunks);
    let total: usize = after.values().flatten().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(total as u64, copied.plain_bytes + copied.dead_bytes);
    let old_regions: BTreeSet<&Vec<u8>> = all.iter().flat_map(|container| &container.regions).collect();
    let same = new.iter().flat_map(|container| &container.regions).filter(|region| old_regions.contains(region));
    assert!(copied.regions_carried <= same.count() as u64);
    assert!(case.copies.recompresses || copied.regions_recompressed == 0);
    let regions = new.iter().flat_map(|container| store.open_container(&container.name).unwrap().directory.regions);
    assert_eq!(regions.map(|region| u64::from(region.sealed_len)).sum::<u64>(), copied.written_regions_bytes);
    for OpenContainer { name, chunks, .. } in &new {
        let kinds: BTreeSet<ChunkKind> = chunks.iter().map(|(kind, ..)| *kind).collect();
        assert_eq!(kinds.contains(&ChunkKind::Data), name.kind == ContainerKind::Data);
        assert_eq!(store.inspect_container(name).unwrap().findings, Vec::<String>::new());
        store.read_verified(name).unwrap();
    }
}

/// Flips a byte of a region, or removes a container. Returns the containers of which live chunks are lost.
fn damage(draw: &mut Draw, world: &World, store: &Store, all: &[OpenContainer], case: &Case) -> BTreeSet<u32> {
    let (mut lost, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..draw.below(4) {
        let number = draw.below(all.len());
        // The same change twice would be none.
        if !damaged.insert(number) {
            continue;
        }
        let name = &all[number].name;
        let number = u32::try_from(number).unwrap();
        let is_lost = |slots: std::ops::Range<usize>| {
            let is_live = |chunk: &LiveChunk| chunk.container == number && slots.contains(&usize::from(chunk.slot));
            case.copy.contains(&number) && case.live.iter().any(is_live)
        };
        if draw.once_in(4) {
            let path = name.path();
            world.repo().remove(&path).unwrap();
            continue;
        }
        let reader = store.open_container(name).unwrap();
        let region = u32::try_from(draw.below(reader.directory.regions.len())).unwrap();
        let (offset, len) = reader.region_range(region).unwrap();
        let at = usize::try_from(offset).unwrap() + draw.below(len as usize);
        world.disk.damage(Path::new("repo").join(name.path()), |bytes| bytes[at] ^= 4);
        lost.extend(is_lost(reader.chunks_of(region)).then_some(number));
    }
    lost
}

#[test]
fn each_live_chunk_stands_in_one_new_container_whatever_is_live_or_damaged() {
    let (mut carried, mut apart, mut dead, mut damaged) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        tell(&format!("seed {seed}"));
        let (world, store, all) = world(seed % 3);
        let mut draw = Draw::new(seed);
        let case = draw_case(&mut draw, &store, &all);
        let lost = if seed % 2 == 1 { damage(&mut draw, &world, &store, &all, &case) } else { BTreeSet::new() };
        let listed: Vec<u32> = listed_numbers(&store, &world, &all);
        let (case, lost) = renumbered(&case, &lost, &listed);
        let now: Vec<OpenContainer> = listed.iter().map(|number| all[*number as usize].clone()).collect();
        let driver = if seed % 4 < 2 { Driver::inline(seed) } else { Driver::threads(2) };
        let store = world.open().unwrap();
        let (session, copied) = case.run(&world, &store, &driver, &Silent).unwrap();
        let not_copied: BTreeSet<u32> = copied.not_copied.keys().copied().collect();
        assert_eq!(not_copied, lost, "{:?}", copied.not_copied);
        for (number, error) in &copied.not_copied {
            let id = now[*number as usize].name.id;
            assert!(error.to_string().contains(&id.session.to_string()), "{error}");
        }
        damaged += lost.len();
        if lost.is_empty() && !has_damage(&store) {
            check_copies(&store, &now, &case, &session, &copied);
        } else {
            check_new(&store, &now, &case, &session, &copied);
        }
        carried += copied.regions_carried;
        apart += copied.regions_taken_apart;
        dead += copied.dead_chunks;
    }
    tell(&format!(
        "{carried} regions carried over, {apart} taken apart, {dead} dead chunks, {damaged} containers damaged"
    ));
    assert!(100 < carried && 100 < apart && 10 < dead && 4 < damaged);
}

/// Returns which of the containers are listed still.
fn listed_numbers(store: &Store, world: &World, all: &[OpenContainer]) -> Vec<u32> {
    let listed = store.list_containers(&world.scratch()).unwrap();
    let number = |(number, container): (u32, &OpenContainer)| listed.contains(container.name.id).then_some(number);
    (0..).zip(all).filter_map(number).collect()
}

/// Numbers the containers of a case by what is listed. Those that are not drop out.
fn renumbered(case: &Case, lost: &BTreeSet<u32>, listed: &[u32]) -> (Case, BTreeSet<u32>) {
    let number = |number: &u32| listed.binary_search(number).ok().map(|at| u32::try_from(at).unwrap());
    let live = case.live.iter().filter_map(|chunk| Some(LiveChunk { container: number(&chunk.container)?, ..*chunk }));
    let case = Case { copy: case.copy.iter().filter_map(number).collect(), live: live.collect(), ..*case };
    (case, lost.iter().filter_map(number).collect())
}

fn has_damage(store: &Store) -> bool {
    let listed = store.list_containers(&Scratch::default()).unwrap();
    listed.names().any(|name| store.read_verified(&name.unwrap()).is_err())
}

/// Checks the new containers where old ones no longer open.
fn check_new(store: &Store, all: &[OpenContainer], case: &Case, session: &Session, copied: &Copied) {
    let listed = store.list_containers(&Scratch::default()).unwrap();
    let new: Vec<ContainerName> =
        listed.names().map(Result::unwrap).filter(|name| name.id.session == session.id).collect();
    let (before, mut after) = (stored(all), BTreeMap::<Fingerprint, Vec<Vec<u8>>>::new());
    let mut compressor = Compressor::default();
    for name in &new {
        store.read_verified(name).unwrap();
        let reader = store.open_container(name).unwrap();
        for region in 0..u32::try_from(reader.directory.regions.len()).unwrap() {
            let plain = store.read_region(&reader, region, &bases_of(store), &mut compressor).unwrap();
            for slot in reader.chunks_of(region) {
                let position = reader.position(slot).unwrap();
                let bytes = plain[position.offset as usize..][..position.len as usize].to_vec();
                after.entry(reader.directory.chunks[slot].fingerprint.unwrap()).or_default().push(bytes);
            }
        }
    }
    for LiveChunk { container, slot, .. } in &case.live {
        let (_, fingerprint, _) = all[*container as usize].chunks[usize::from(*slot)];
        if case.copy.contains(container) && !copied.not_copied.contains_key(container) {
            assert_eq!(after[&fingerprint], [before[&fingerprint][0].2.clone()]);
        }
    }
}

#[test]
fn every_driver_makes_the_same_containers() {
    let (world, store, all) = world(1);
    let case = draw_case(&mut Draw::new(5), &store, &all);
    let drivers = (0..3).map(Driver::inline).chain([1, 2, 5].map(Driver::threads));
    let mut expected: Option<Vec<OpenContainer>> = None;
    for driver in drivers {
        // The same randomness gives sessions the same ids, so that containers can be compared to the byte.
        let world = World::with(world.disk.fork(), SimHost::new(9));
        let store = world.open().unwrap();
        let (session, copied) = case.run(&world, &store, &driver, &Silent).unwrap();
        check_copies(&store, &all, &case, &session, &copied);
        assert!(0 < copied.regions_carried && 0 < copied.regions_taken_apart);
        let packed = containers(&store);
        assert!(expected.get_or_insert_with(|| packed.clone()) == &packed);
    }
}

#[test]
fn after_an_error_at_any_call_nothing_old_is_lost_and_nothing_half_written_stays() {
    let (world, store, all) = world(2);
    let mut case = draw_case(&mut Draw::new(6), &store, &all);
    case.copy.truncate(12);
    let run = |world: &World| {
        let store = world.open().unwrap();
        let first = world.disk.calls();
        let outcome = case.run(world, &store, &Driver::inline(3), &Silent);
        (first, store, outcome)
    };
    let whole = world.on(world.disk.fork());
    let (first, ..) = run(&whole);
    let calls = whole.disk.calls() - first;
    let (mut failed, mut not_copied) = (0, 0);
    let faults = [Fault::Error(ErrorKind::StorageFull), Fault::ShortWrite(ErrorKind::Other), Fault::DiskFull];
    for call in 1..=calls {
        for fault in faults {
            let faulty = world.on(world.disk.fork());
            let store = faulty.open().unwrap();
            let first = faulty.disk.calls();
            faulty.disk.fail_at(first + call, fault);
            let outcome = case.run(&faulty, &store, &Driver::inline(3), &Silent);
            faulty.disk.clear_faults();
            let store = faulty.open().unwrap();
            if let Ok((session, copied)) = outcome {
                not_copied += copied.not_copied.len();
                check_copies(&store, &all, &case, &session, &copied);
                continue;
            }
            failed += 1;
            let now = containers(&store);
            assert!(all.iter().all(|container| now.contains(container)));
            let left = store.objects.leftovers(&|_| false).unwrap().kept;
            // The removal of a temporary file may be what failed.
            assert!(left <= 1, "{left} temporary files stay after call {call}, {fault:?}");
        }
    }
    tell(&format!("{calls} calls; {failed} runs failed, {not_copied} containers were not copied"));
    assert!(100 < failed && 10 < not_copied);
}

/// Stores a container of one region in which the chunk `lie` is not what its name says. Sealing compares chunks of new
/// regions; here the region passes for one that was compared.
pub(super) fn store_lie(world: &World, store: &Store, lie: usize) -> (Vec<Fingerprint>, ContainerId) {
    let session = Session::begin(store, &world.scratch(), SessionKind::Backup, "host").unwrap();
    let plain: Vec<Vec<u8>> = (0..16).map(|number| noise(9000 + number, 500)).collect();
    let names: Vec<Fingerprint> = plain.iter().map(|bytes| store.keys.fingerprint(ChunkKind::Data, bytes)).collect();
    let mut stored = plain.concat();
    stored[lie * 500] ^= 1;
    let chunks = names.iter().map(|fingerprint| RegionChunk {
        chunk: Chunk { fingerprint: *fingerprint, len: 500 },
        kind: ChunkKind::Data,
        hints_len: 0,
        sequence: Sequence(0),
    });
    let checksum = crc32c::crc32c(&stored);
    let region = CompressedRegion::new(chunks.collect(), Algorithm::None, stored, checksum);
    let mut packer = Packer::new(
        session.id,
        (store.config.format, ContainerKind::Data),
        store.config.container_bytes,
        Compression::Off,
    );
    let packed = packer.push_compressed(region, &mut 0);
    assert!(packed.full.is_empty());
    let builder = packer.finish().unwrap();
    let repository = store.config.repository;
    let sealed = Sealer::default().seal(&store.keys, repository, &builder, &[7; 32], AlignedBuffer::default()).unwrap();
    let put = session.put(sealed.name, &sealed.bytes).unwrap();
    store.objects.barrier(vec![put]).unwrap();
    session.end().unwrap();
    (names, sealed.name.id)
}

#[test]
fn a_chunk_that_is_not_what_its_name_says_is_not_copied_and_its_neighbors_are() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let (names, id) = store_lie(&world, &store, 5);
    let listed: Containers = store.list_containers(&world.scratch()).unwrap();
    let ContainerNumber(container) = listed.find(id).unwrap();
    let live = |slots: &[u16]| -> Vec<LiveChunk> {
        slots.iter().map(|&slot| LiveChunk { container, slot, rank: 0, len: 500 }).collect()
    };
    let all: Vec<u16> = (0..16).collect();
    let honest: Vec<u16> = all.iter().copied().filter(|slot| *slot != 5).collect();
    for (slots, is_copied) in [(&all, false), (&honest, true)] {
        let world = world.on(world.disk.fork());
        let store = world.open().unwrap();
        let case = Case {
            copy: vec![container],
            live: live(slots),
            leaves_dead: false,
            copies: Copies::mostly_as_stored(Compression::Zstd(1)),
        };
        let (session, copied) = case.run(&world, &store, &Driver::inline(1), &Silent).unwrap();
        assert_eq!(copied.not_copied.is_empty(), is_copied);
        if let Some(error) = copied.not_copied.get(&container) {
            assert!(
                matches!(error, Error::Damaged { reason, .. } if reason.contains("not what its name says")),
                "{error}"
            );
        }
        // A region with a chunk that lies is never carried over, not even where the chunk is dead.
        assert_eq!((copied.regions_carried, copied.regions_taken_apart, copied.dead_chunks), (0, 1, 0));
        let new: Vec<OpenContainer> = containers(&store);
        let new: Vec<_> = new.iter().filter(|container| container.name.id.session == session.id).collect();
        let found: BTreeSet<Fingerprint> = stored(new).into_keys().collect();
        assert_eq!(found, honest.iter().map(|slot| names[usize::from(*slot)]).collect());
    }
}

#[test]
fn an_interrupted_copy_ends_and_gives_up_what_is_not_durable() {
    #[derive(Debug, Default)]
    struct Stop(std::sync::atomic::AtomicU32, u32);
    impl Monitor for Stop {
        fn is_interrupted(&self) -> bool {
            self.1 <= self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }
    let (world, store, all) = world(0);
    let case = draw_case(&mut Draw::new(7), &store, &all);
    let mut interrupted = 0;
    for after in 0.. {
        let world = world.on(world.disk.fork());
        let store = world.open().unwrap();
        match case.run(&world, &store, &Driver::inline(1), &Stop(0.into(), after)) {
            Ok((session, copied)) => {
                check_copies(&store, &all, &case, &session, &copied);
                break;
            }
            Err(error) => assert!(matches!(error, Error::Interrupted), "{error}"),
        }
        assert_eq!(store.objects.leftovers(&|_| false).unwrap().kept, 0);
        interrupted += 1;
    }
    assert!(10 < interrupted, "{interrupted}");
}

#[test]
fn a_snapshot_whose_containers_were_copied_and_deleted_is_whole() {
    let world = World::new(4);
    let store = world.create(SMALL).unwrap();
    let source = tree(24);
    let mut newest = None;
    for number in 0..4 {
        for file in 0..12 {
            let seed = if file % 4 == number { 1000 * number + file } else { file };
            source.put_file(Path::new(&format!("/d/file-of-{file}")), &noise(seed, 30_000));
        }
        newest = Some(world.backup(&store, &source, &Ask::default()).unwrap().report.snapshot);
    }
    let newest = newest.unwrap();
    let scratch = world.scratch();
    let listed = store.list_containers(&scratch).unwrap();
    let mut reader = MetadataReader::open(&store, &listed, &scratch, MetadataMemory::of(4 << 20)).unwrap();
    let mut marker = Marker::new(&mut reader, &scratch, MEMORY_BYTES_MIN).unwrap();
    marker.mark(newest.tree, &mut |_| Ok(()), &Silent).unwrap();
    let reached = marker.finish().unwrap();
    let (containers, driver, unreadable) = (&listed, &Driver::inline(1), Vec::new());
    let mut chunks = DirectoryChunks { store: &store, containers, driver, monitor: &Silent, unreadable };
    let count = u32::try_from(listed.len()).unwrap();
    let usage = Usage::count(&scratch, &store.host, usage::MEMORY_BYTES_MIN, count, reached, &mut chunks).unwrap();
    let counted = listed.numbers().map(|number| {
        let (name, len) = (listed.name(number).unwrap(), store.container_len(&listed.name(number).unwrap()).unwrap());
        usage.of(number.0, name.kind, u32::try_from(len).unwrap()).unwrap()
    });
    let options = PruneOptions {
        max_unused: MaxUnused::Bytes(0),
        max_repack_bytes: u64::MAX,
        repack_below_bytes: store.config.container_bytes / 2,
    };
    let plan = PrunePlan::new(counted, &options);
    let live: Vec<LiveChunk> = usage.live_chunks().unwrap().map(Result::unwrap).collect();
    let case = Case {
        copy: plan.copy.clone(),
        live,
        leaves_dead: false,
        copies: Copies::mostly_as_stored(Compression::Zstd(1)),
    };
    let (_, copied) = case.run(&world, &store, &Driver::threads(2), &Silent).unwrap();
    assert!(copied.not_copied.is_empty() && 2 < copied.written_containers, "{copied:?}");
    assert!(copied.written_bytes < plan.totals.copied_bytes * 5 / 4, "{copied:?}, {:?}", plan.totals);
    for number in plan.remove.iter().chain(&plan.copy) {
        world.repo().remove(&listed.name(ContainerNumber(*number)).unwrap().path()).unwrap();
    }
    let store = world.open().unwrap();
    let (restored, report) = world.restore(&store, &newest).unwrap();
    assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()));
}
