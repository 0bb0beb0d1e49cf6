//! The test vectors of `docs/format.md`, made again by the code and compared with the page.
//!
//! The page is the specification: where the two part, one of them is wrong, and a repository somewhere may be of the
//! other. A vector changes only with the version of the format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chunk::{ChunkSizes, Chunking, Cutter, GearTable};
use crate::compress::{Algorithm, Compression, Compressor};
use crate::container::seal::{BasePlaintexts, Plaintext};
use crate::container::{Base, Bases, ChunkSample, ContainerBuilder, Region, RegionChunk, SealedContainer, Sealer};
use crate::crypto::slot::{PasswordCost, Slot, SlotLabel, hex};
use crate::crypto::{Keys, MasterKey, ObjectKey, Purpose};
use crate::error::Result;
use crate::io::tree::{EntryKind, Xattr};
use crate::io::{AlignedBuffer, Host};
use crate::object::FormatVersion;
use crate::object::config::{Config, CutRule};
use crate::object::names::CollectionStep;
use crate::object::names::ContainerKind;
use crate::object::slot::encode_slot;
use crate::object::{HEADER_LEN, ObjectType, seal_small};
use crate::recipe::{HintTable, MetadataSink, Recipe, RecipeBuilder, RecipeItem};
use crate::snapshot::collection::{CollectionBody, MovedContainer};
use crate::snapshot::manifest::ManifestEncoder;
use crate::snapshot::{CommitBody, CommitKind, Head, Rewritten, SessionBody, SessionKind, Snapshot, Summary};
use crate::tree::EntryNotes;
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::format::{Content, Entry, Link};
use crate::types::{
    Chunk, ChunkKind, ContainerId, Fingerprint, RegionId, RepositoryId, Sequence, SessionId, Timestamp,
};

const PAGE: &str = include_str!("../../../../docs/format.md");

/// Bytes that count up from `first`.
fn counting<const N: usize>(first: u8) -> [u8; N] {
    let mut next = first;
    [(); N].map(|()| {
        next += 1;
        next - 1
    })
}

const REPOSITORY: fn() -> RepositoryId = || RepositoryId(counting(0x20));
const SESSION: fn() -> SessionId = || SessionId(counting(0x30));
const RANDOM: fn() -> [u8; 32] = || counting(0x40);
const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 123_456_789 };

fn keys() -> Keys {
    Keys::derive(&MasterKey(counting(0)), REPOSITORY())
}

fn container(ordinal: u32) -> ContainerId {
    ContainerId { session: SESSION(), ordinal }
}

/// A host whose random bytes count up from 0x40.
#[derive(Debug)]
struct CountingHost;

impl Host for CountingHost {
    fn now(&self) -> Timestamp {
        TIME
    }

    fn file_clock(&self) -> Timestamp {
        TIME
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _duration: Duration) {}

    fn background(&self, _kind: &'static str, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    fn random(&self, buffer: &mut [u8]) -> Result<()> {
        buffer.iter_mut().zip(0x40..).for_each(|(byte, value)| *byte = value);
        Ok(())
    }
}

/// Keeps metadata chunks as a repository would name them.
struct KeyedSink(Keys, Vec<(Fingerprint, ChunkKind, Vec<u8>, Vec<u8>)>);

impl MetadataSink for KeyedSink {
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
        let fingerprint = self.0.fingerprint(kind, contents);
        self.1.push((fingerprint, kind, contents.to_vec(), hints.to_vec()));
        Ok(fingerprint)
    }
}

type Vectors = Vec<(&'static str, Vec<u8>)>;

fn key_vectors(out: &mut Vectors) {
    let keys = keys();
    out.push(("fingerprint_data", keys.fingerprint(ChunkKind::Data, b"onefold").0.to_vec()));
    out.push(("fingerprint_tree", keys.fingerprint(ChunkKind::Tree, b"onefold").0.to_vec()));
    out.push(("fingerprint_recipe", keys.fingerprint(ChunkKind::Recipe, b"onefold").0.to_vec()));
    out.push(("tree_cut_value", keys.tree_cut_value(b"onefold").to_le_bytes().to_vec()));
    out.push(("mac", keys.mac(b"onefold").as_bytes().to_vec()));
    let identity = [&SESSION().0[..], &7u32.to_le_bytes()].concat();
    let salt = keys.salt(&RANDOM(), &identity, blake3::hash(b"onefold").as_bytes());
    out.push(("salt", salt.to_vec()));
    for (name, purpose, object_type) in [
        ("commitment_data", Purpose::Data, ObjectType::DataContainer),
        ("commitment_metadata", Purpose::Metadata, ObjectType::MetadataContainer),
        ("commitment_commit", Purpose::Object, ObjectType::Commit),
    ] {
        let key = ObjectKey::derive(&keys, purpose, &counting(0x60), REPOSITORY(), object_type.code());
        out.push((name, key.commitment().to_vec()));
    }
}

fn chunker_vectors(out: &mut Vectors) {
    let bytes_of =
        |table: &GearTable| -> Vec<u8> { table.words().iter().flat_map(|word| word.to_le_bytes()).collect() };
    let table = bytes_of(&GearTable::expand(keys().chunk(), ChunkSizes::for_average(8192)));
    out.push(("gear_first_words", table[..16].to_vec()));
    out.push(("gear_table_blake3", blake3::hash(&table).as_bytes().to_vec()));

    // In one table of 56 no run of one byte is a candidate: this one is the 43rd draw.
    let redrawn = ChunkSizes { min: 64, target: 64, max: 512 };
    let table = bytes_of(&GearTable::expand(keys().chunk(), redrawn));
    out.push(("gear_redrawn_blake3", blake3::hash(&table).as_bytes().to_vec()));

    let mut input = vec![0; 100_000];
    blake3::Hasher::new().update(b"onefold test vector").finalize_xof().fill(&mut input);
    input[60_000..80_000].fill(0);
    let sizes = ChunkSizes::for_average(1024);
    let (mut candidates, mut cuts) = (Vec::new(), Vec::new());
    GearTable::expand(keys().chunk(), sizes).candidates(&input, 0, &mut candidates);
    Cutter::new(Chunking::Gear(sizes)).advance(100_000, &candidates, &mut cuts);
    cuts.push(100_000);
    out.push(("cuts", cuts.iter().flat_map(|cut| cut.to_le_bytes()).collect()));
}

fn object_vectors(out: &mut Vectors) {
    let created = Timestamp { nanoseconds: 0, ..TIME };
    // Defaults may change, and these bytes may not.
    let config = |key| Config {
        format: FormatVersion::V1,
        region_bytes: 256 << 10,
        ..Config::with_defaults(REPOSITORY(), created, key)
    };
    out.push(("config", config(None).encode(&keys())));
    let clear = Config { chunking: Chunking::Fixed { bytes: 4096 }, ..config(Some(MasterKey(counting(0)))) };
    out.push(("config_clear", clear.encode(&keys())));

    let unsealed = Slot {
        id: counting(0x80),
        created,
        cost: PasswordCost { memory_kib: 64, passes: 1, lanes: 1 },
        salt: counting(0x90),
        ..Slot::default()
    };
    let label = SlotLabel { user: "user".into(), host: "host".into() };
    let slot = Slot::wrap(unsealed, REPOSITORY(), b"onefold", &MasterKey(counting(0)), &label).unwrap();
    out.push(("slot", encode_slot(REPOSITORY(), &slot)));

    let session = SessionBody {
        kind: SessionKind::Backup,
        collections_seen: 300,
        time: TIME,
        hostname: "host".into(),
        process: None,
    };
    let seal = |object_type, ordinal, body: &[u8]| {
        seal_small(&keys(), &CountingHost, object_type, (REPOSITORY(), SESSION(), ordinal), body).unwrap()
    };
    out.push(("session_body", session.encode()));
    out.push(("session", seal(ObjectType::Session, 0, &session.encode())));
    out.push(("commit_body", commit_body().encode()));
    out.push(("commit", seal(ObjectType::Commit, 0, &commit_body().encode())));
    let fence = CommitBody::without_snapshot(CommitKind::Fence);
    out.push(("fence_body", fence.encode()));
    let mut rewritten = commit_body();
    rewritten.snapshot.as_mut().expect("it makes one").rewritten = Some(Rewritten { chunks: 300, bytes: 70_000 });
    out.push(("commit_rewritten_body", rewritten.encode()));
    let vouching = CommitBody { manifest: Some(counting(0xd0)), ..commit_body() };
    out.push(("commit_manifest_body", vouching.encode()));
    let mut manifest = ManifestEncoder::new();
    for (ordinal, share) in [(0, 255), (1, 1), (300, 128)] {
        manifest.push(container(ordinal), share);
    }
    manifest.push(ContainerId { session: SessionId(counting(0xc0)), ordinal: 5 }, 17);
    let manifest = manifest.finish().unwrap().split_off(HEADER_LEN);
    out.push(("manifest_body", manifest.clone()));
    out.push(("manifest", seal(ObjectType::Manifest, 0, &manifest)));
    let containers = vec![container(1), container(0x0102_0304)];
    let condemned = CollectionBody::new(CollectionStep::Condemn, containers.clone()).encode();
    out.push(("condemn_body", condemned.clone()));
    out.push(("condemn", seal(ObjectType::Collection, 5, &condemned)));
    let marked = vec![SessionId(counting(0xc0)), SESSION()];
    let condemned = CollectionBody { marked, ..CollectionBody::new(CollectionStep::Condemn, containers.clone()) };
    out.push(("condemn_marked_body", condemned.encode()));
    let moved = vec![
        MovedContainer { container: container(1), targets: vec![container(5), container(300)] },
        MovedContainer { container: container(2), targets: Vec::new() },
    ];
    let quick = CollectionBody { quick: 3, ..CollectionBody::new(CollectionStep::Final, vec![container(1)]) };
    out.push(("final_quick_body", quick.encode()));
    out.push((
        "final_body",
        CollectionBody { moved, ..CollectionBody::new(CollectionStep::Final, containers) }.encode(),
    ));
}

fn commit_body() -> CommitBody {
    let snapshot = Snapshot {
        time: TIME,
        file_clock: Timestamp { seconds: 1_699_999_999, nanoseconds: 999_000_000 },
        tree: Fingerprint(counting(0xa0)),
        hostname: "host".into(),
        username: "user".into(),
        uid: 1000,
        gid: 100,
        paths: vec![b"/home".to_vec(), b"/srv/\xff".to_vec()],
        tags: vec!["daily".into()],
        excludes: vec!["*.o".into()],
        parent: Some(SessionId(counting(0xc0))),
        program: "onefold 0.1.0".into(),
        summary: Summary {
            end: Timestamp { seconds: 1_700_000_060, nanoseconds: 0 },
            files_new: 1,
            files_changed: 2,
            files_unmodified: 3,
            dirs_new: 4,
            dirs_changed: 5,
            dirs_unmodified: 6,
            data_chunks: 7,
            metadata_chunks: 8,
            data_added: 9,
            data_added_packed: 10,
            files_processed: 11,
            bytes_processed: 1 << 40,
        },
        ..Snapshot::new(TIME, Fingerprint(counting(0xa0)))
    };
    let heads = vec![Head { session: SessionId(counting(0xc0)), checksum: counting(0xd0) }];
    CommitBody { kind: CommitKind::Snapshot, snapshot: Some(snapshot), heads, manifest: None }
}

fn recipe_of_every_item() -> Recipe {
    Recipe {
        level: 0,
        items: vec![
            RecipeItem::Chunk(Chunk { fingerprint: keys().fingerprint(ChunkKind::Data, b"onefold"), len: 7 }),
            RecipeItem::Hole { len: 1 << 20 },
            RecipeItem::Chunk(Chunk { fingerprint: keys().fingerprint(ChunkKind::Data, b"format"), len: 6 }),
        ],
    }
}

fn hints_of_every_kind() -> Vec<u8> {
    let mut table = HintTable::default();
    table.extend([Some(container(3)), Some(container(3)), None, Some(container(4)), Some(container(3))].into_iter());
    let mut out = Vec::new();
    table.encode(&mut out);
    out
}

fn recipe_vectors(out: &mut Vectors) {
    let mut recipe = Vec::new();
    recipe_of_every_item().encode(&mut recipe);
    out.push(("recipe", recipe));
    out.push(("hints", hints_of_every_kind()));

    let mut sink = KeyedSink(keys(), Vec::new());
    let mut builder = RecipeBuilder::new(CutRule { min: 4, target: 4, max: 16 }, 3);
    for number in 0..200u64 {
        let fingerprint = keys().fingerprint(ChunkKind::Data, &number.to_le_bytes());
        builder.chunk(Chunk { fingerprint, len: 8 }, Some(container(3)), &mut sink).unwrap();
        if number % 50 == 49 {
            builder.hole(4096, &mut sink).unwrap();
        }
    }
    let mut top = Vec::new();
    builder.finish(&mut sink).unwrap().recipe.encode(&mut top);
    out.push(("recipe_top", top));
}

fn entry(name: &str, kind: EntryKind, content: Content) -> Entry {
    let mtime = Timestamp { seconds: -5, nanoseconds: 999_999_999 };
    let (name, xattrs) = (name.into(), Vec::new());
    let notes = EntryNotes::default();
    Entry { name, kind, mode: 0o4755, uid: 1000, gid: 100, mtime, xattrs, link: None, content, notes }
}

/// Entries of every kind, encoded as the node of a directory.
fn node_of_every_entry() -> Vec<u8> {
    let file = Content::File { ctime: TIME, inode: 99, recipe: recipe_of_every_item() };
    let empty = Content::File { ctime: TIME, inode: 100, recipe: Recipe::default() };
    let link = Some(Link { device: 0x801, inode: 99, links: 2 });
    let xattrs = vec![Xattr { name: "user.a".into(), value: vec![0, 1, 2] }];
    let entries = [
        Entry { xattrs, link, ..entry("a", EntryKind::File, file) },
        entry("b", EntryKind::File, empty),
        entry("c", EntryKind::Directory, Content::Directory { node: Fingerprint(counting(0xa0)) }),
        entry("d", EntryKind::Symlink, Content::Symlink { target: b"../x".to_vec() }),
        entry("e", EntryKind::Fifo, Content::Special { rdev: 0 }),
        entry("f", EntryKind::Socket, Content::Special { rdev: 0 }),
        entry("g", EntryKind::CharDevice, Content::Special { rdev: 0x0103 }),
        entry("h", EntryKind::BlockDevice, Content::Special { rdev: 0x0801 }),
    ];
    let mut sink = KeyedSink(keys(), Vec::new());
    let mut builder = TreeBuilder::new(wide_cut());
    for entry in &entries {
        let hints: &[_] = if entry.name == b"a" { &[Some(container(3)), None] } else { &[] };
        builder.push(entry, hints, &keys(), &mut sink).unwrap();
    }
    builder.finish(&keys(), &mut sink).unwrap();
    sink.1.pop().unwrap().2
}

fn wide_cut() -> TreeCut {
    TreeCut { rule: CutRule { min: 64, target: 192, max: 1024 }, node_bytes: 128 << 10 }
}

fn tree_vectors(out: &mut Vectors) {
    out.push(("tree_entries", node_of_every_entry()));
    let mut sink = KeyedSink(keys(), Vec::new());
    let cut = TreeCut { rule: CutRule { min: 4, target: 4, max: 16 }, node_bytes: 1024 };
    let mut builder = TreeBuilder::new(cut);
    for number in 0..200 {
        let entry = entry(&format!("{number:08}"), EntryKind::Symlink, Content::Symlink { target: b"x".to_vec() });
        builder.push(&entry, &[], &keys(), &mut sink).unwrap();
    }
    let root = builder.finish(&keys(), &mut sink).unwrap();
    out.push(("tree_root", sink.1.pop().unwrap().2));
    out.push(("tree_root_fingerprint", root.0.to_vec()));
}

/// Kind, contents and hints of a chunk.
type PlainChunk = (ChunkKind, Vec<u8>, Vec<u8>);

/// Seals chunks, one region for each element, without compression: compressors may change, their formats do not.
fn seal(kind: ContainerKind, ordinal: u32, regions: &[Vec<PlainChunk>]) -> SealedContainer {
    seal_as(FormatVersion::V1, kind, ordinal, regions, &|_, _| ())
}

/// Seals chunks in a version of the format; `change` takes each region before it is sealed.
fn seal_as(
    format: FormatVersion,
    kind: ContainerKind,
    ordinal: u32,
    regions: &[Vec<PlainChunk>],
    change: &dyn Fn(usize, &mut Region),
) -> SealedContainer {
    let mut compressor = Compressor::default();
    let regions = regions.iter().enumerate().map(|(number, chunks)| {
        let mut region = Region::default();
        for (kind, contents, hints) in chunks {
            let bytes = [&contents[..], hints].concat();
            let chunk =
                Chunk { fingerprint: keys().fingerprint(*kind, contents), len: u32::try_from(bytes.len()).unwrap() };
            let hints_len = u32::try_from(hints.len()).unwrap();
            region.push(RegionChunk { chunk, kind: *kind, hints_len, sequence: Sequence(0) }, &bytes);
        }
        region.compress(&mut compressor, Compression::Off);
        change(number, &mut region);
        region
    });
    let builder = ContainerBuilder { format, id: container(ordinal), kind, regions: regions.collect() };
    let mut sealer = Sealer::default().with_bases(Some(Arc::new(OneBase)));
    sealer.seal(&keys(), REPOSITORY(), &builder, &RANDOM(), AlignedBuffer::default()).unwrap()
}

fn container_vectors(out: &mut Vectors) {
    let data = |bytes: &[u8]| (ChunkKind::Data, bytes.to_vec(), Vec::new());
    let sealed = seal(ContainerKind::Data, 3, &[vec![data(b"onefold"), data(b"format")], vec![data(b"one")]]);
    out.push(("data_container", sealed.bytes.to_vec()));
    out.push(("data_container_name", sealed.name.checksum.to_vec()));

    let mut segment = Vec::new();
    recipe_of_every_item().encode(&mut segment);
    let mut hints = HintTable::default();
    hints.extend([Some(container(3)), None].into_iter());
    let mut encoded = Vec::new();
    hints.encode(&mut encoded);
    let chunks = vec![
        (ChunkKind::Recipe, segment, encoded.clone()),
        (ChunkKind::Tree, node_of_every_entry(), encoded),
        (ChunkKind::Tree, vec![0, 0], Vec::new()),
    ];
    let sealed = seal(ContainerKind::Metadata, 4, std::slice::from_ref(&chunks));
    out.push(("metadata_container", sealed.bytes.to_vec()));
    out.push(("metadata_container_name", sealed.name.checksum.to_vec()));

    let base = RegionId { container: container(7), region: 0 };
    let bases = Bases::of(vec![Base::of_chunks(base, [0]).unwrap()], 1).unwrap();
    let regions = [vec![data(b"onefold")], vec![data(&BASE.repeat(2))]];
    let based = seal_as(FormatVersion::V2, ContainerKind::Data, 5, &regions, &|number, region| {
        if number == 1 {
            region.set_compressed(Algorithm::ZstdBased, BASED_FRAME.to_vec(), bases.clone());
            region.samples = vec![ChunkSample { chunk: 0, hash: 0x0102_0304_0500_0000 }];
        }
    });
    out.push(("based_container", based.bytes.to_vec()));
    out.push(("based_container_name", based.name.checksum.to_vec()));
    let sealed = seal_as(FormatVersion::V2, ContainerKind::Metadata, 6, &[chunks], &|_, _| ());
    out.push(("metadata_container_2", sealed.bytes.to_vec()));
    out.push(("metadata_container_2_name", sealed.name.checksum.to_vec()));
    based_metadata_vectors(out);
}

/// A region of metadata with a base: hints count as its other bytes do.
fn based_metadata_vectors(out: &mut Vectors) {
    let base = RegionId { container: container(9), region: 0 };
    let bases = Bases::of(vec![Base::whole(base)], 1).unwrap();
    let twice = BASE.repeat(2);
    let (contents, hints) = twice.split_at(52);
    let regions =
        [vec![(ChunkKind::Tree, vec![0, 0], Vec::new())], vec![(ChunkKind::Tree, contents.to_vec(), hints.to_vec())]];
    let based = seal_as(FormatVersion::V2, ContainerKind::Metadata, 8, &regions, &|number, region| {
        if number == 1 {
            region.set_compressed(Algorithm::ZstdBased, BASED_FRAME.to_vec(), bases.clone());
            region.samples = vec![ChunkSample { chunk: 0, hash: 0x0102_0304_0500_0000 }];
        }
    });
    out.push(("based_metadata_container", based.bytes.to_vec()));
    out.push(("based_metadata_container_name", based.name.checksum.to_vec()));
}

/// The plaintext of the base in the vectors.
const BASE: &[u8] = b"onefold stores everything once";
/// A Zstandard frame that repeats it twice: the base is before it, and no compressor is asked.
const BASED_FRAME: [u8; 16] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x3c, 0x3d, 0, 0, 0, 1, 0, 9, 0x92, 2, 2];

/// The only region that is a base; it has one chunk.
#[derive(Debug)]
struct OneBase;

impl BasePlaintexts for OneBase {
    fn list(&self, _: Vec<Base>) -> Result<Option<Bases>> {
        Ok(None)
    }

    fn prefix(&self, _: &Bases) -> Result<Plaintext> {
        Ok(Plaintext::new(BASE.to_vec()))
    }

    fn is_right(&self, _: (ContainerKind, &[RegionChunk]), _: &[u8], _: &Bases, prefix: &[u8]) -> bool {
        prefix == BASE
    }
}

/// Reads the page's block of vectors: `name = hex`, continued on lines that begin with a space.
fn page_vectors() -> BTreeMap<String, String> {
    let block = PAGE.split("```vectors\n").nth(1).expect("the page has a block of vectors");
    let block = block.split("```").next().expect("a split has a first part");
    let mut vectors = BTreeMap::new();
    for entry in block.replace("\n ", " ").lines() {
        let (name, value) = entry.split_once('=').expect("every line is `name = hex`");
        let twice = vectors.insert(name.trim().to_owned(), value.replace(' ', ""));
        assert_eq!(twice, None, "{name} stands twice");
    }
    vectors
}

/// Returns a vector as it stands on the page.
fn line(name: &str, bytes: &[u8]) -> String {
    let digits = hex(bytes);
    let rows: Vec<&str> = (0..digits.len()).step_by(112).map(|at| &digits[at..(at + 112).min(digits.len())]).collect();
    if let [row] = rows.as_slice() { format!("{name} = {row}") } else { format!("{name} =\n  {}", rows.join("\n  ")) }
}

#[test]
fn the_page_and_the_code_make_the_same_bytes() {
    let mut vectors = Vectors::new();
    key_vectors(&mut vectors);
    chunker_vectors(&mut vectors);
    object_vectors(&mut vectors);
    recipe_vectors(&mut vectors);
    tree_vectors(&mut vectors);
    container_vectors(&mut vectors);
    let page = page_vectors();
    let differ: Vec<String> = vectors
        .iter()
        .filter(|(name, bytes)| page.get(*name) != Some(&hex(bytes)))
        .map(|(name, bytes)| line(name, bytes))
        .collect();
    assert!(differ.is_empty(), "docs/format.md does not have what the code makes:\n{}", differ.join("\n"));
    let names: Vec<&str> = vectors.iter().map(|(name, _)| *name).collect();
    for name in page.keys() {
        assert!(names.contains(&name.as_str()), "the page has {name}, which no code makes");
    }
}
