//! Regions that are compressed against earlier ones come back, whoever chose their bases, and what a damaged base takes along is
//! named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_engine::backup::{BaseChoices, Budget, ChooseBases, NewRegion, OpenedCandidate, PlacedRegion};
use onefold_engine::check::ReadData;
use onefold_engine::collect::{PruneRequest, PruneState, prune};
use onefold_engine::compress::{Algorithm, Compression, Compressor};
use onefold_engine::container::bases::Base as RegionBase;
use onefold_engine::container::seal::{BasePlaintexts, Plaintext};
use onefold_engine::container::{Bases, ChosenBases, ContainerBuilder, DirectoryChunk, Region, RegionChunk, Sealer};
use onefold_engine::io::AlignedBuffer;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::object::{Config, FormatVersion};
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::{SessionKind, Snapshot};
use onefold_engine::store::create::Adjustments;
use onefold_engine::store::metadata::{MetadataMemory, Scratch};
use onefold_engine::store::{MetadataReader, Session, Store, read_file, upgrade};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::Fault;
use onefold_engine::types::{Chunk, ChunkKind, ContainerId, RegionId, Sequence, SessionId};
use onefold_engine::{Error, Result};

use crate::integration::damage::{Base, Damage};
use crate::integration::forgetting::{FAULTS, WAYS};
use crate::integration::pruning::{assert_clean, assert_restores, forget, request};
use crate::integration::support::{
    Ask, Draw, SMALL, SMALL_1, World, bases_of, container_names, copy, noise, tell, twin,
};

/// Which regions a policy names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The one that stood at the same position of the stream before, and the one before that.
    Previous,
    /// Some chunks of these.
    PreviousChunks,
    /// Any two that are durable.
    Random,
    /// Impossible bases: regions and containers that do not exist or are not durable, metadata, one twice, too many.
    Adversarial,
}

/// A policy for tests, which lives from session to session.
#[derive(Debug)]
pub(super) struct Policy {
    way: Way,
    state: Mutex<State>,
    /// The policy of regions of metadata, which has none of its own.
    metadata: Option<Arc<Policy>>,
}

#[derive(Debug)]
struct State {
    draw: Draw,
    /// Durable regions in the order in which they were placed.
    durable: Vec<RegionId>,
    /// Regions of containers that are not durable.
    placed: BTreeMap<ContainerId, Vec<RegionId>>,
    /// Regions of the last session by position in the stream, and those of the current one.
    last: Vec<RegionId>,
    current: Vec<RegionId>,
    asked: usize,
}

impl Policy {
    pub(super) fn new(way: Way, seed: u64) -> Arc<Self> {
        let metadata = Arc::new(Self::of_kind(way, seed ^ 1 << 40, None));
        Arc::new(Self::of_kind(way, seed, Some(metadata)))
    }

    fn of_kind(way: Way, seed: u64, metadata: Option<Arc<Self>>) -> Self {
        let (durable, placed) = (Vec::new(), BTreeMap::new());
        let state = State { draw: Draw::new(seed), durable, placed, last: Vec::new(), current: Vec::new(), asked: 0 };
        Self { way, state: Mutex::new(state), metadata }
    }

    /// Returns the choices of this policy and of that of metadata.
    pub(super) fn choices(self: &Arc<Self>) -> BaseChoices {
        let chooses = |policy: &Arc<Self>| Arc::clone(policy) as Arc<dyn ChooseBases>;
        let metadata = self.metadata.as_ref().map(chooses);
        BaseChoices { data: Some(chooses(self)), metadata, ..BaseChoices::default() }
    }

    /// Names any two regions of a repository as it is now, as far as its containers can be opened.
    pub(super) fn of(store: &Store, scratch: &Scratch, seed: u64) -> Arc<Self> {
        let policy = Self::new(Way::Random, seed);
        if let Ok(listed) = store.list_containers(scratch) {
            for (name, opened) in store.open_containers(&listed, listed.numbers()).map_while(Result::ok) {
                let count = opened.map_or(0, |container| container.directory.regions.len());
                let regions = (0..u32::try_from(count).unwrap()).map(|region| RegionId { container: name.id, region });
                let of_kind = match name.kind {
                    ContainerKind::Data => &policy,
                    ContainerKind::Metadata => policy.metadata.as_ref().unwrap(),
                };
                of_kind.state.lock().unwrap().durable.extend(regions);
            }
        }
        policy
    }

    /// Begins the next session.
    pub(super) fn next_session(&self) {
        let mut state = self.state.lock().unwrap();
        state.last = std::mem::take(&mut state.current);
        state.asked = 0;
        drop(state);
        if let Some(metadata) = &self.metadata {
            metadata.next_session();
        }
    }
}

impl ChooseBases for Policy {
    fn choose(&self, new: &NewRegion<'_>, _: &[OpenedCandidate]) -> ChosenBases {
        assert_eq!(new.chunks.iter().map(|packed| packed.chunk.len as usize).sum::<usize>(), new.plain.len());
        ChosenBases { bases: self.name_some(), is_sure: false }
    }

    fn placed(&self, region: &PlacedRegion<'_>) {
        let mut state = self.state.lock().unwrap();
        state.placed.entry(region.id.container).or_default().push(region.id);
        state.current.push(region.id);
    }

    fn durable(&self, container: ContainerId) {
        let mut state = self.state.lock().unwrap();
        let regions = state.placed.remove(&container).unwrap_or_default();
        state.durable.extend(regions);
    }
}

impl Policy {
    fn name_some(&self) -> Vec<RegionBase> {
        let base = |region| match self.way {
            Way::PreviousChunks => RegionBase::of_chunks(region, [0, 1, 3]).unwrap(),
            Way::Previous | Way::Random | Way::Adversarial => RegionBase::whole(region),
        };
        self.name_regions().into_iter().map(base).collect()
    }

    fn name_regions(&self) -> Vec<RegionId> {
        let mut state = self.state.lock().unwrap();
        let State { draw, durable, placed, last, asked, .. } = &mut *state;
        *asked += 1;
        match self.way {
            Way::Previous | Way::PreviousChunks => {
                let near = [asked.checked_sub(2), Some(*asked - 1)];
                near.into_iter().flatten().filter_map(|at| last.get(at)).copied().collect()
            }
            Way::Random => {
                (0..draw.below(3)).filter_map(|_| durable.get(draw.below(durable.len().max(1)))).copied().collect()
            }
            Way::Adversarial => {
                let any = durable.get(draw.below(durable.len().max(1))).copied();
                let Some(any) = any else { return Vec::new() };
                let nowhere = ContainerId { session: SessionId([0xee; 16]), ordinal: 3 };
                match draw.below(7) {
                    0 => vec![RegionId { container: nowhere, region: 0 }],
                    1 => vec![RegionId { region: 4000, ..any }],
                    2 => vec![any, any],
                    3 => vec![any, RegionId { region: any.region + 1, ..any }, RegionId { region: 0, ..any }],
                    // Not durable: in the container that is being filled.
                    4 => placed.values().flatten().last().copied().into_iter().collect(),
                    // The container of metadata stands next to it.
                    5 => vec![RegionId {
                        container: ContainerId { ordinal: any.container.ordinal + 1, ..any.container },
                        region: 0,
                    }],
                    _ => last.get(*asked - 1).copied().into_iter().collect(),
                }
            }
        }
    }
}

/// Files that no version changes.
const SAME_FILES: u64 = 20;

/// A tree of files that versions change a little everywhere, and of some that none changes.
pub(super) fn similar_tree(seed: u64, files: u64) -> MemTree {
    let tree = MemTree::new();
    tree.put_dir(Path::new("/d"));
    for number in 0..files {
        let len = 9_000 + usize::try_from(number * 2_300).unwrap();
        tree.put_file(&path_of(number), &noise(seed * 1000 + number, len));
    }
    // These never change: the node that lists them resembles the one before, as nodes of later versions do.
    for number in 0..SAME_FILES {
        tree.put_file(Path::new(&format!("/d/same-{number:02}")), &noise(seed << 20 | number, 40));
    }
    tree
}

fn path_of(number: u64) -> PathBuf {
    PathBuf::from(format!("/d/file-{number:02}"))
}

/// Changes a byte in every few hundred of each file, so that all chunks are new and all resemble old ones.
pub(super) fn edit_everywhere(tree: &MemTree, seed: u64, files: u64, round: u64) {
    for number in 0..files {
        let len = 9_000 + usize::try_from(number * 2_300).unwrap();
        let mut bytes = noise(seed * 1000 + number, len);
        for version in 1..=round {
            let mut draw = Draw::new(seed ^ version << 32 ^ number);
            let mut at = draw.below(200);
            while at < len {
                bytes[at] ^= 1 + u8::try_from(draw.below(250)).unwrap();
                at += 100 + draw.below(200);
            }
        }
        tree.put_file(&path_of(number), &bytes);
    }
}

/// A repository with several versions, each in a session of its own.
pub(super) struct Versions {
    pub(super) world: World,
    pub(super) store: Store,
    pub(super) snapshots: Vec<(SessionId, Snapshot, MemTree)>,
}

pub(super) fn ask(policy: &Arc<Policy>) -> Ask {
    let budget = Budget { barrier_containers: 1, bases_bytes: 4 << 20, ..Ask::default().budget };
    Ask { bases: policy.choices(), budget, ..Ask::default() }
}

pub(super) fn versions(adjustments: Adjustments, way: Way, seed: u64, (files, rounds): (u64, u64)) -> Versions {
    let world = World::new(seed);
    let store = world.create(adjustments).unwrap();
    let policy = Policy::new(way, seed);
    let source = similar_tree(seed, files);
    let mut snapshots = Vec::new();
    for round in 0..rounds {
        edit_everywhere(&source, seed, files, round);
        let report = world.backup(&store, &source, &ask(&policy)).unwrap().report;
        assert_eq!(report.failures, 0);
        snapshots.push((report.session, report.snapshot, twin(&source)));
        policy.next_session();
    }
    Versions { world, store, snapshots }
}

/// Returns the number of regions of data by their depth.
pub(super) fn depths(store: &Store) -> BTreeMap<u8, usize> {
    depths_of(store, ContainerKind::Data)
}

/// Returns the number of regions of a kind by their depth. Their bases are of the same kind.
pub(super) fn depths_of(store: &Store, kind: ContainerKind) -> BTreeMap<u8, usize> {
    let mut depths = BTreeMap::new();
    let names = container_names(store);
    for name in names.iter().filter(|name| name.kind == kind) {
        for region in store.open_container(name).unwrap().directory.regions {
            *depths.entry(region.bases.depth()).or_default() += 1;
            let is_alike = |base: RegionId| names.iter().any(|name| name.id == base.container && name.kind == kind);
            assert!(region.bases.iter().all(is_alike), "{name}");
        }
    }
    depths
}

pub(super) fn stored_bytes(store: &Store) -> u64 {
    container_names(store).iter().map(|name| store.container_len(name).unwrap()).sum()
}

impl Versions {
    pub(super) fn assert_all_restore(&self, of: &str) {
        for (_, snapshot, source) in &self.snapshots {
            let (target, report) = self.world.restore(&self.store, snapshot).unwrap();
            assert_eq!(report.failures, 0, "{of}");
            assert_eq!(source.diff(&target), Vec::<String>::new(), "{of}");
        }
    }
}

#[test]
fn versions_that_resemble_each_other_come_back_whoever_chose_their_bases() {
    let plain = stored_bytes(&versions(SMALL_1, Way::Previous, 1, (8, 4)).store);
    // Few proposals of the adversary can be carried out, and a session has few regions of metadata.
    let adversaries = (4..10).map(|seed| (Way::Adversarial, seed));
    let others = [(Way::Previous, 1), (Way::PreviousChunks, 1), (Way::Random, 2), (Way::Random, 3)];
    let mut of_adversaries = 0;
    for (way, seed) in others.into_iter().chain(adversaries) {
        let versions = versions(SMALL, way, seed, (8, if way == Way::Adversarial { 6 } else { 4 }));
        versions.assert_all_restore(&format!("{way:?}"));
        let of_metadata = depths_of(&versions.store, ContainerKind::Metadata);
        let depths = depths(&versions.store);
        let based: usize = depths.iter().filter(|(depth, _)| **depth != 0).map(|(_, count)| count).sum();
        let (bytes, all) = (stored_bytes(&versions.store), depths.values().sum::<usize>());
        tell(&format!(
            "{way:?}: depths {depths:?}, of metadata {of_metadata:?}, {bytes} bytes of {plain} without bases"
        ));
        let based_metadata: usize = of_metadata.range(1..).map(|(_, count)| count).sum();
        if way == Way::Adversarial {
            of_adversaries += based_metadata;
        } else {
            assert!(0 < based_metadata, "{way:?}: {of_metadata:?}");
        }
        match way {
            Way::Previous => {
                assert!(depths.keys().copied().collect::<BTreeSet<u8>>().is_superset(&BTreeSet::from([0, 1, 2, 3])));
                assert!(all / 2 < based && bytes < plain / 2, "{based} of {all} regions, {bytes} of {plain} bytes");
            }
            Way::PreviousChunks => assert!(all / 4 < based && bytes < plain, "{based} of {all}, {bytes}"),
            Way::Random | Way::Adversarial => assert!(0 < based && based < all, "{based} of {all}"),
        }
        assert!(*depths.keys().max().unwrap() <= 4);
    }
    assert!(0 < of_adversaries, "no adversary ever named a base of metadata");
}

#[test]
fn a_repository_of_format_1_gets_no_bases() {
    let versions = versions(SMALL_1, Way::Previous, 1, (3, 3));
    for kind in [ContainerKind::Data, ContainerKind::Metadata] {
        assert_eq!(depths_of(&versions.store, kind).into_keys().collect::<Vec<_>>(), [0]);
    }
    versions.assert_all_restore("format 1");
}

#[test]
fn every_driver_packs_the_same_bases() {
    let of = |driver: Driver| {
        let world = World::new(5);
        let store = world.create(SMALL).unwrap();
        let (policy, source) = (Policy::new(Way::Random, 5), similar_tree(5, 6));
        for round in 0..3 {
            edit_everywhere(&source, 5, 6, round);
            world.backup(&store, &source, &Ask { driver: driver.clone(), ..ask(&policy) }).unwrap();
            policy.next_session();
        }
        let directories =
            container_names(&store).into_iter().map(|name| store.open_container(&name).unwrap().directory);
        // Sessions have random ids.
        directories
            .flat_map(|directory| directory.regions)
            .map(|region| {
                (
                    region.plain_len,
                    region.sealed_len,
                    region.bases.iter().map(|base| (base.container.ordinal, base.region)).collect::<Vec<_>>(),
                )
            })
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(of(Driver::inline(1)), of(Driver::threads(3)));
}

fn data_containers(store: &Store) -> usize {
    container_names(store).iter().filter(|name| name.kind == ContainerKind::Data).count()
}

#[test]
fn bases_stay_as_long_as_a_container_depends_on_them_and_go_with_it() {
    for quick in [false, true] {
        let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 3, (5, 4));
        let last = snapshots.last().unwrap();
        for (session, ..) in &snapshots[..3] {
            forget(&store, *session).unwrap();
        }
        let prune_request = PruneRequest { quick, ..request(&world, &store) };
        let report = prune(&store, &prune_request, &Silent).unwrap();
        assert_eq!((report.state, &report.findings), (PruneState::Done, &Vec::new()));
        assert_clean(&world, &store, "after the bases were forgotten");
        assert_restores(&world, &store, last.0, &last.2, "after the bases were forgotten");
        let left = data_containers(&store);
        if quick {
            assert!(0 < report.plan.bases_containers, "{:?}", report.plan);
            assert!(depths(&store).keys().any(|depth| *depth != 0));
        }
        forget(&store, last.0).unwrap();
        let report = prune(&store, &prune_request, &Silent).unwrap();
        assert_eq!((report.state, data_containers(&store)), (PruneState::Done, 0), "of {left} containers");
    }
}

/// Prunes with bases in play, with a fault at some calls, then goes on without.
#[test]
fn a_prune_that_fails_or_dies_at_any_call_loses_no_base() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 9, (2, 3));
    forget(&store, snapshots[0].0).unwrap();
    let kept = &snapshots[1..];
    let run = |world: &World| -> Result<()> {
        let store = world.open()?;
        prune(&store, &request(world, &store), &Silent).map(drop)
    };
    let calls = {
        let world = world.on(world.disk.fork());
        let before = world.disk.calls();
        run(&world).unwrap();
        world.disk.calls() - before
    };
    let assert_sound = |world: &World, case: &str| {
        let store = world.open().unwrap();
        for (session, _, source) in kept {
            assert_restores(world, &store, *session, source, case);
        }
        run(world).unwrap_or_else(|error| panic!("{case}: {error}"));
        for (session, _, source) in kept {
            assert_restores(world, &store, *session, source, case);
        }
        assert_clean(world, &store, case);
    };
    let step = if cfg!(feature = "slow") { 1 } else { 1 + usize::try_from(calls).unwrap() / 12 };
    let mut images = 0;
    for call in (1..=calls).step_by(step) {
        for fault in FAULTS {
            let world = world.on(world.disk.fork());
            world.disk.fail_at(world.disk.calls() + call, fault);
            let _either = run(&world);
            world.disk.clear_faults();
            assert_sound(&world, &format!("{fault:?} at call {call}"));
            images += 1;
        }
        let world = world.on(world.disk.fork());
        world.disk.fail_at(world.disk.calls() + call, Fault::Die);
        let _either = run(&world);
        for way in WAYS {
            let after = world.on(way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode)));
            assert_sound(&after, &format!("death at call {call}, {way:?}"));
            images += 1;
        }
    }
    tell(&format!("prune with bases: {calls} calls, every {step}th, {images} images, nothing lost"));
}

#[test]
fn what_a_damaged_or_missing_base_takes_along_is_named_file_by_file() {
    let Versions { world, snapshots, store } = versions(SMALL, Way::Previous, 7, (4, 3));
    let first = snapshots[0].0;
    let names = container_names(&store);
    let base = Base { world: world.without_oracle(), snapshots };
    let (mut of_bases, mut tried) = (0, 0);
    for name in names.iter().filter(|name| name.id.session == first) {
        let reader = store.open_container(name).unwrap();
        let (offset, len) = reader.region_range(0).unwrap();
        let middle = usize::try_from(offset).unwrap() + len as usize / 2;
        for damage in [Damage::Delete, Damage::Flip(middle)] {
            let world = base.damaged(Path::new(&name.to_string()), &damage);
            let case = format!("{name}: {damage:?}");
            let report = Base::check(&world, ReadData::All);
            base.restores_what_is_not_hit(&world, &report, &case);
            let dependents = report.findings.iter().filter(|finding| finding.problem.contains("lacks a base"));
            of_bases += dependents.filter(|finding| !finding.affected.is_empty()).count();
            if matches!(damage, Damage::Delete) {
                let report = Base::check(&world, ReadData::None);
                base.restores_what_is_not_hit(&world, &report, &format!("{case}, directories alone"));
            }
            tried += 1;
        }
    }
    tell(&format!("{tried} damages of first versions; {of_bases} findings about regions that depend on them"));
    assert!(tried <= of_bases);
}

/// Gives a forged region the prefix that it was made with.
#[derive(Debug)]
struct Forged(Vec<u8>);

impl BasePlaintexts for Forged {
    fn list(&self, _: Vec<RegionBase>) -> Result<Option<Bases>> {
        Ok(None)
    }
    fn prefix(&self, _: &Bases) -> Result<Plaintext> {
        Ok(Plaintext::new(self.0.clone()))
    }
    fn is_right(&self, _: (ContainerKind, &[RegionChunk]), plain: &[u8], _: &Bases, prefix: &[u8]) -> bool {
        plain == self.0 && prefix == self.0
    }
}

/// Bytes of a forged chunk: as many as a file of [`SMALL`] may have that is not cut.
pub(super) const FORGED_LEN: usize = 250;

/// Seals and publishes a container of one region of data with any bases.
pub(super) fn forge(store: &Store, session: &Arc<Session>, ordinal: u32, bases: (&[RegionId], u8)) -> RegionId {
    // The first is too short for what refers to the base of another. Each is a chunk of a file that has nothing else.
    let len = if ordinal == 0 { 100 } else { FORGED_LEN };
    forge_chunk(store, session, ordinal, (ChunkKind::Data, noise(ordinal.into(), len)), bases)
}

/// Seals and publishes a container of one chunk with any bases.
pub(super) fn forge_chunk(
    store: &Store,
    session: &Arc<Session>,
    ordinal: u32,
    (chunk_kind, plain): (ChunkKind, Vec<u8>),
    (regions, depth): (&[RegionId], u8),
) -> RegionId {
    let fingerprint = store.keys.fingerprint(chunk_kind, &plain);
    let chunk = Chunk { fingerprint, len: u32::try_from(plain.len()).unwrap() };
    let mut region = Region::default();
    region.push(RegionChunk { chunk, kind: chunk_kind, hints_len: 0, sequence: Sequence(0) }, &plain);
    let kind = region.kind();
    let mut compressor = Compressor::default();
    region.compress(&mut compressor, Compression::Zstd(3));
    if !regions.is_empty() {
        let bases = Bases::new(regions, depth).unwrap();
        assert!(region.compress_against(&mut compressor, Compression::Zstd(3), (&bases, &plain)));
        assert_eq!(region.algorithm, Some(Algorithm::ZstdBased));
    }
    let id = ContainerId { session: session.id, ordinal };
    let builder = ContainerBuilder { format: FormatVersion::V2, id, kind, regions: vec![region] };
    let sealer = Sealer::default().with_bases(Some(Arc::new(Forged(plain))));
    let (keys, repository) = (&store.keys, store.config.repository);
    let sealed = { sealer }.seal(keys, repository, &builder, &[1; 32], AlignedBuffer::default()).unwrap();
    let put = session.put(sealed.name, &sealed.bytes).unwrap();
    session.barrier(vec![put]).unwrap();
    RegionId { container: id, region: 0 }
}

#[test]
fn a_reader_that_stays_open_reads_metadata_that_later_sessions_have_stored_against_each_other() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 5, (3, 4));
    let (scratch, first) = (world.scratch(), snapshots[0].0);
    let listed = store.list_containers(&scratch).unwrap();
    let of_first = listed.retain(|_, id| id.session == first);
    let mut reader = MetadataReader::open(&store, &of_first, &scratch, MetadataMemory::of(4 << 20)).unwrap();
    reader.learn(&listed).unwrap();
    let mut later = 0;
    for name in container_names(&store).into_iter().filter(|name| name.kind == ContainerKind::Metadata) {
        let opened = store.open_container(&name).unwrap();
        for chunk in &opened.directory.chunks {
            reader.read(chunk.kind, chunk.fingerprint.unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let is_later = |base: RegionId| base.container.session != first;
        later += opened
            .directory
            .regions
            .iter()
            .flat_map(|region| region.bases.iter())
            .filter(|base| is_later(*base))
            .count();
    }
    assert!(0 < later, "no base is of a later session");
}

#[test]
fn regions_of_both_kinds_and_their_prefixes_are_compared_with_their_names_before_they_are_sealed() {
    let Versions { store, .. } = versions(SMALL, Way::Previous, 3, (4, 3));
    let bases = bases_of(&store);
    let mut compared = BTreeMap::<bool, usize>::new();
    for name in container_names(&store) {
        let reader = store.open_container(&name).unwrap();
        for (region, entry) in (0..).zip(&reader.directory.regions).filter(|(_, entry)| !entry.bases.is_empty()) {
            let plain = store.read_region(&reader, region, &bases, &mut Compressor::default()).unwrap();
            let prefix = bases.prefix_of(&reader, region).unwrap();
            let of_chunk = |chunk: &DirectoryChunk| RegionChunk {
                chunk: Chunk { fingerprint: chunk.fingerprint.unwrap(), len: chunk.len },
                kind: chunk.kind,
                hints_len: chunk.hints_len,
                sequence: Sequence(0),
            };
            let chunks: Vec<_> = reader.directory.chunks[reader.chunks_of(region)].iter().map(of_chunk).collect();
            let is_right =
                |kind, plain: &[u8], prefix: &[u8]| bases.is_right((kind, &chunks), plain, &entry.bases, prefix);
            assert!(is_right(name.kind, &plain, &prefix), "{name}");
            let flipped = |bytes: &[u8]| [&[bytes[0] ^ 1], &bytes[1..]].concat();
            assert!(!is_right(name.kind, &flipped(&plain), &prefix) && !is_right(name.kind, &plain, &flipped(&prefix)));
            let other = if name.kind == ContainerKind::Data { ContainerKind::Metadata } else { ContainerKind::Data };
            assert!(!is_right(other, &plain, &prefix), "{name}: its bases are not of the other kind");
            *compared.entry(name.kind == ContainerKind::Data).or_default() += 1;
        }
    }
    assert!(compared.len() == 2 && compared.values().all(|count| 1 < *count), "{compared:?}");
}

#[test]
fn forged_bases_are_refused_with_a_sentence_before_anything_is_read() {
    let world = World::new(1).without_oracle();
    let store = world.create(SMALL).unwrap();
    let session = Arc::new(Session::begin(&store, &world.scratch(), SessionKind::Backup, "host").unwrap());
    let id = |ordinal| RegionId { container: ContainerId { session: session.id, ordinal }, region: 0 };
    let forge = |ordinal, bases: &[RegionId], depth| forge(&store, &session, ordinal, (bases, depth));
    let of_tree = |ordinal, bases: &[RegionId], depth| {
        forge_chunk(&store, &session, ordinal, (ChunkKind::Tree, noise(ordinal.into(), 3_000)), (bases, depth))
    };
    let nowhere = RegionId { container: ContainerId { session: SessionId([0xee; 16]), ordinal: 1 }, region: 0 };
    let plain = forge(0, &[], 0);
    let cases = [
        (forge(1, &[nowhere], 1), "does not exist, and holds the base"),
        (forge(2, &[RegionId { region: 7, ..plain }], 1), "region 7: does not exist, and is named as a base"),
        // Two that name each other.
        (forge(3, &[id(4)], 2), "must be greater"),
        (forge(4, &[id(3)], 2), "must be greater"),
        (forge(5, &[id(6)], 4), "must be greater"),
        (forge(6, &[id(5)], 3), "must be greater"),
        // Its base has another length than the one that it was made with.
        (forge(7, &[plain], 1), "does not decompress"),
        // Neither kind has bases of the other, nor has a base of its own kind that has one.
        (of_tree(8, &[plain], 1), "holds data, and is named as the container of a base of metadata"),
        (of_tree(9, &[], 0), ""),
        (forge(10, &[id(9)], 1), "holds metadata, and is named as the container of a base of data"),
        (of_tree(11, &[id(8)], 2), "holds data, and is named as the container of a base of metadata"),
    ];
    let bases = bases_of(&store);
    for (region, problem) in cases.into_iter().filter(|(_, problem)| !problem.is_empty()) {
        let name = *container_names(&store).iter().find(|name| name.id == region.container).unwrap();
        let reader = store.open_container(&name).unwrap();
        let read = store.read_region(&reader, 0, &bases, &mut Compressor::default());
        let error = read.expect_err(problem);
        assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(problem) && error.to_string().contains("region 0"), "{error}");
        assert!(error.to_string().contains(&name.to_string()), "{error}");
        if problem != "does not decompress" {
            assert!(bases.check_bases(&reader, 0).is_err(), "{problem}");
        }
    }
    // A chain that is deep enough for more regions than one may depend on: 2 + 4 + 8 + 16 of them.
    let mut ordinal = 100;
    let mut level: Vec<RegionId> = (0..32).map(|number| forge(ordinal + number, &[], 0)).collect();
    for depth in 1..=4 {
        ordinal += 100;
        let pairs = level.chunks(2).zip(0..).map(|(pair, number)| forge(ordinal + number, pair, depth));
        level = pairs.collect();
    }
    let bases = bases_of(&store);
    let name = *container_names(&store).iter().find(|name| name.id == level[0].container).unwrap();
    let reader = store.open_container(&name).unwrap();
    let error = bases.prefix_of(&reader, 0).unwrap_err().to_string();
    assert!(error.contains("depends on more than 16 others"), "{error}");
    assert_eq!(bases.counts().read, 0, "nothing was read of it");
}

fn format_of(world: &World, name: &str) -> FormatVersion {
    Config::decode(name, &read_file(&*world.repo(), Path::new(name), 4096).unwrap()).unwrap().format
}

#[test]
fn an_upgrade_that_fails_or_dies_at_any_call_leaves_a_repository_and_comes_to_its_end_when_run_again() {
    let Versions { world, snapshots, .. } = versions(SMALL_1, Way::Previous, 2, (1, 2));
    // The oracle knows no object whose bytes change.
    let world = world.without_oracle();
    let run = |world: &World| -> Result<bool> {
        let store = world.open()?;
        upgrade(&store, FormatVersion::V2, &world.scratch(), "host")
    };
    let calls = {
        let world = world.on(world.disk.fork());
        let before = world.disk.calls();
        assert!(run(&world).unwrap());
        assert!(!run(&world).unwrap(), "there is nothing left to do");
        world.disk.calls() - before
    };
    let (mut versions_seen, mut images) = (BTreeSet::new(), 0);
    let mut assert_sound = |world: &World, case: &str| {
        let formats = ["config.copy", "config"].map(|name| format_of(world, name));
        assert!(formats[1] <= formats[0], "{case}: the copy comes first");
        let opened = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(opened.config.format, formats[0], "{case}: the newer one holds");
        versions_seen.insert(formats.map(FormatVersion::number));
        for (session, _, source) in &snapshots {
            assert_restores(world, &opened, *session, source, case);
        }
        run(world).unwrap_or_else(|error| panic!("{case}: again: {error}"));
        assert_eq!(["config.copy", "config"].map(|name| format_of(world, name)), [FormatVersion::V2; 2], "{case}");
        let upgraded = world.open().unwrap();
        assert_clean(world, &upgraded, case);
    };
    for call in 1..=calls {
        for fault in FAULTS {
            let world = world.on(world.disk.fork());
            world.disk.fail_at(world.disk.calls() + call, fault);
            let _either = run(&world);
            world.disk.clear_faults();
            assert_sound(&world, &format!("{fault:?} at call {call}"));
            images += 1;
        }
        for fault in [Fault::Die, Fault::DieAfter] {
            let world = world.on(world.disk.fork());
            world.disk.fail_at(world.disk.calls() + call, fault);
            let _either = run(&world);
            for way in WAYS {
                let after = world.on(way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode)));
                assert_sound(&after, &format!("{fault:?} at call {call}, {way:?}"));
                images += 1;
            }
        }
    }
    assert_eq!(versions_seen, BTreeSet::from([[1, 1], [2, 1], [2, 2]]));
    tell(&format!("upgrade: {calls} calls, {images} images, nothing lost"));
}

#[test]
fn an_upgraded_repository_takes_bases_is_pruned_and_restores() {
    let Versions { world, mut snapshots, .. } = versions(SMALL_1, Way::Previous, 6, (4, 1));
    let config = read_file(&*world.repo(), Path::new("config"), 4096).unwrap();
    let unwatched = || world.without_oracle().open().unwrap();
    upgrade(&unwatched(), FormatVersion::V2, &world.scratch(), "host").unwrap();
    let store = world.open().unwrap();
    let policy = Policy::of(&store, &world.scratch(), 6);
    {
        let mut state = policy.state.lock().unwrap();
        state.last = state.durable.clone();
    }
    let Policy { state, metadata, .. } = Arc::try_unwrap(policy).unwrap();
    let policy = Arc::new(Policy { way: Way::Previous, state: Mutex::new(state.into_inner().unwrap()), metadata });
    let source = copy(&snapshots[0].2);
    for round in 1..3 {
        edit_everywhere(&source, 6, 4, round);
        let report = world.backup(&store, &source, &ask(&policy)).unwrap().report;
        snapshots.push((report.session, report.snapshot, twin(&source)));
        policy.next_session();
    }
    assert!(depths(&store).contains_key(&1), "regions of format 1 are bases");
    // A copy of the config from before the upgrade does not hide what was written since.
    world.repo().remove(Path::new("config")).unwrap();
    world.repo().create(Path::new("config")).unwrap().write_at(0, &config).unwrap();
    let store = world.open().unwrap();
    assert_eq!(store.config.format, FormatVersion::V2);
    upgrade(&unwatched(), FormatVersion::V2, &world.scratch(), "host").unwrap();
    forget(&store, snapshots[0].0).unwrap();
    forget(&store, snapshots[1].0).unwrap();
    prune(&store, &request(&world, &store), &Silent).unwrap();
    let (session, _, source) = &snapshots[2];
    assert_restores(&world, &store, *session, source, "the last one");
    assert_clean(&world, &store, "after the prune");
}
