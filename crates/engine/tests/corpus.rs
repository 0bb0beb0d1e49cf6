//! Replays the corpus of the fuzz targets, and inputs made from it, on stable Rust.
//!
//! What is asserted: no input makes a target panic, and none makes it take more memory than in proportion to the input.

#![expect(clippy::disallowed_methods, reason = "reads the corpus, which is not a repository's")]
#![expect(clippy::unwrap_used, reason = "the inputs are ours; where they are not, the test is to fail")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use onefold_engine::compress::Algorithm;
use onefold_engine::container::bases::{Base, Bases};
use onefold_engine::container::directory::{Directory, DirectoryChunk, Form, RegionEntry, RegionSample, Side};
use onefold_engine::container::trailer::Trailer;
use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::object::names::ContainerKind;
use onefold_engine::object::{FormatVersion, ObjectType, open_small};
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::fuzzing::{TARGETS, Target, an_index_of_similar_regions};
use onefold_engine::types::{ChunkKind, ContainerId, Fingerprint, RegionId, RepositoryId, SessionId};

const PAGE: &str = include_str!("../../../docs/format.md");
/// Made inputs per seed, beside truncations and flipped bits.
const MIXTURES: usize = 1000;
/// A target may take this many times the length of its input. The worst encoding is a list of holes of a recipe: 48
/// bytes in memory for each byte, twice where it is decoded again to be compared.
const MEMORY_FACTOR: usize = 256;
/// And this much whatever the input: some plaintext of regions, see `fuzzing::REGION_BYTES_LIMIT`.
const MEMORY_SLACK: usize = 512 << 10;

// ---- Memory ----

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread holds.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(taken: usize, given_back: usize) {
    // What another thread took may be given back here, and the other way round: near zero, not below it.
    let held = HELD.get().wrapping_add(taken).saturating_sub(given_back);
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

#[expect(unsafe_code, reason = "an allocator is unsafe by nature; this one hands everything on")]
// SAFETY: every call is the system's allocator's, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While bytes are moved both places may be held.
        count(size, 0);
        count(0, layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Calls a target; panics with the input where the target panics or takes too much memory.
fn call(name: &str, target: Target, input: &[u8]) {
    let before = HELD.get();
    PEAK.set(before);
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    let taken = PEAK.get().saturating_sub(before);
    assert!(outcome.is_ok(), "{name} panicked on {}", hex(input));
    let allowed = MEMORY_FACTOR * input.len() + MEMORY_SLACK;
    assert!(taken <= allowed, "{name} took {taken} bytes for {} bytes: {}", input.len(), hex(input));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

// ---- Seeds ----

fn vectors() -> BTreeMap<String, Vec<u8>> {
    let block = PAGE.split("```vectors\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let lines = block.replace("\n ", " ");
    let entries = lines.lines().filter_map(|line| line.split_once('='));
    entries.map(|(name, value)| (name.trim().to_owned(), unhex(&value.replace(' ', "")))).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Valid inputs: target, name, bytes.
fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let vectors = vectors();
    let vector = |name: &str| vectors[name].clone();
    let mut seeds: Vec<(&str, &str, Vec<u8>)> = [
        ("config", "config"),
        ("config", "config_clear"),
        ("slot", "slot"),
        ("small_object", "session"),
        ("small_object", "commit"),
        ("small_object", "condemn"),
        ("small_object", "manifest"),
        ("container", "data_container"),
        ("container", "metadata_container"),
        ("recipe", "recipe"),
        ("recipe", "recipe_top"),
        ("tree_node", "tree_entries"),
        ("tree_node", "tree_root"),
        ("commit", "commit_body"),
        ("commit", "commit_manifest_body"),
        ("commit", "fence_body"),
        ("session", "session_body"),
        ("collection", "condemn_body"),
        ("collection", "condemn_marked_body"),
        ("collection", "final_body"),
        ("collection", "final_quick_body"),
        ("manifest", "manifest_body"),
    ]
    .map(|(target, name)| (target, name, vector(name)))
    .to_vec();
    seeds.push(("header", "session", vector("session")[..128].to_vec()));
    seeds.push(("header", "data_container", vector("data_container")[..128].to_vec()));
    let container = vector("data_container");
    seeds.push(("trailer", "data_container", container[container.len() - 64..].to_vec()));
    seeds.push(("hints", "hints", [&[5, 0][..], &vector("hints")].concat()));
    let names = ["data_front", "metadata_front", "data_back", "metadata_back"];
    let names_2 = ["data_front_2", "metadata_front_2", "data_back_2", "metadata_back_2"];
    for (name, code) in names.into_iter().chain(names_2).zip(0u8..) {
        let format = if code & 4 == 0 { FormatVersion::V1 } else { FormatVersion::V2 };
        let kind = if code & 1 == 0 { ContainerKind::Data } else { ContainerKind::Metadata };
        let form = Form { format, kind, side: if code & 2 == 0 { Side::Front } else { Side::Back } };
        seeds.push(("directory", name, [&[code], &directory(format, kind).encode(form)[..]].concat()));
    }
    let (data, metadata) = (ContainerKind::Data, ContainerKind::Metadata);
    seeds.push(("container_parts", "data", container_parts(FormatVersion::V1, data)));
    seeds.push(("container_parts", "metadata", container_parts(FormatVersion::V1, metadata)));
    seeds.push(("container_parts", "data_2", container_parts(FormatVersion::V2, data)));
    seeds.push(("container_parts", "metadata_2", container_parts(FormatVersion::V2, metadata)));
    seeds.push(("region", "zstd_based", [&[3, 60, 0][..], ZSTD_BASED].concat()));
    seeds.push(("region", "stored", [&[0, 7, 0][..], b"onefold"].concat()));
    seeds.push(("region", "zstd", [&[1, 0x2c, 1][..], ZSTD_ZEROS].concat()));
    seeds.push(("region", "lz4", [&[2, 11, 0][..], LZ4_AS].concat()));
    seeds.push(("similar_regions", "regions", an_index_of_similar_regions()));
    seeds.push(("names", "container", format!("m00001234-{}", "0a".repeat(32)).into_bytes()));
    seeds.push(("names", "slot", format!("{}.2", "0a".repeat(16)).into_bytes()));
    seeds
}

/// A Zstandard frame of one block that repeats a zero 300 times.
const ZSTD_ZEROS: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x60, 44, 0, 0x63, 0x09, 0, 0];
/// A Zstandard frame that repeats twice the 30 bytes that the target takes for the bases.
const ZSTD_BASED: &[u8] =
    &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x3c, 0x3d, 0x00, 0x00, 0x00, 0x01, 0x00, 0x09, 0x92, 0x02, 0x02];
/// An LZ4 block of 11 letters: one and a copy of five, then five.
const LZ4_AS: &[u8] = &[0x11, b'a', 1, 0, 0x50, b'a', b'a', b'a', b'a', b'a'];

/// Three regions: as they are, Zstandard, LZ4.
fn directory(format: FormatVersion, kind: ContainerKind) -> Directory {
    let (chunk_kind, hints_len) = match kind {
        ContainerKind::Data => (ChunkKind::Data, 0),
        ContainerKind::Metadata => (ChunkKind::Tree, 2),
    };
    let chunk =
        |byte, len| DirectoryChunk { fingerprint: Some(Fingerprint([byte; 32])), kind: chunk_kind, len, hints_len };
    let region = |stored: usize, plain_len, algorithm, chunk_count| RegionEntry {
        sealed_len: u32::try_from(stored + 16).unwrap(),
        plain_len,
        algorithm,
        chunk_count,
        bases: Bases::default(),
    };
    let mut directory = Directory {
        regions: vec![
            region(7, 7, Algorithm::None, 2),
            region(ZSTD_ZEROS.len(), 300, Algorithm::Zstd, 1),
            region(LZ4_AS.len(), 11, Algorithm::Lz4, 1),
        ],
        chunks: vec![chunk(1, 3), chunk(2, 4), chunk(3, 300), chunk(4, 11)],
        samples: Vec::new(),
    };
    if format == FormatVersion::V2 {
        let base = |region| RegionId { container: ContainerId { session: SessionId([9; 16]), ordinal: 1 }, region };
        let based = region(ZSTD_BASED.len(), 60, Algorithm::ZstdBased, 1);
        // A whole region, and two runs of chunks of another one.
        let bases = vec![Base::whole(base(0)), Base::of_chunks(base(7), [1, 2, 5]).unwrap()];
        directory.regions.push(RegionEntry { bases: Bases::of(bases, 2).unwrap(), ..based });
        directory.chunks.push(chunk(5, 60));
        directory.samples = [3, 5].map(|hash| RegionSample { region: 1, hash: hash << 30 }).into();
    }
    directory
}

fn container_parts(format: FormatVersion, kind: ContainerKind) -> Vec<u8> {
    let mut out = vec![u8::from(kind == ContainerKind::Metadata) | u8::from(format == FormatVersion::V2) << 2];
    let directory = directory(format, kind);
    let form = |side| Form { format, kind, side };
    let (front, back) = (directory.encode(form(Side::Front)), directory.encode(form(Side::Back)));
    for part in [&front, &back] {
        out.extend_from_slice(&u16::try_from(part.len()).unwrap().to_le_bytes());
        out.extend_from_slice(part);
    }
    let is_based = directory.regions.len() == 4;
    let regions = [&b"onefold"[..], ZSTD_ZEROS, LZ4_AS, if is_based { ZSTD_BASED } else { &[] }].concat();
    let sealed = |len: usize| u32::try_from(len + 16).unwrap();
    let regions_len = u32::try_from(regions.len() + directory.regions.len() * 16).unwrap();
    let trailer = Trailer {
        front_len: sealed(front.len()),
        back_offset: 128 + sealed(front.len()) + regions_len,
        back_len: sealed(back.len()),
        regions_len,
    };
    for field in [trailer.front_len, trailer.back_offset, trailer.back_len, trailer.regions_len] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&regions);
    out
}

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// Returns the committed corpus of a target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = corpus_dir().join(target);
    let names = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

// ---- Made inputs ----

const EXTREMES: &[&[u8]] = &[
    &[0],
    &[0xff],
    &[0x80],
    &[0x7f],
    &[0xff, 0xff],
    &[0, 0, 1, 0],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40],
];

/// Changes an input in one place: overwritten, put in, taken out, repeated, or from another input.
fn mix(input: &[u8], other: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let at = random.index(input.len() + 1);
    let (head, tail) = input.split_at(at);
    let cut = random.index(tail.len().min(40) + 1);
    match random.index(5) {
        0 => [head, EXTREMES[random.index(EXTREMES.len())], &tail[cut..]].concat(),
        1 => {
            let extreme = EXTREMES[random.index(EXTREMES.len())];
            [head, extreme, &tail[extreme.len().min(tail.len())..]].concat()
        }
        2 => [head, &tail[cut..]].concat(),
        3 => [head, &tail[..cut].repeat(1 + random.index(50)), tail].concat(),
        _ => {
            let from = random.index(other.len() + 1);
            let len = random.index(other.len() - from + 1);
            [head, &other[from..from + len], &tail[cut..]].concat()
        }
    }
}

#[test]
fn every_target_has_its_valid_inputs_in_the_corpus() {
    let seeds = seeds();
    for (target, name, bytes) in &seeds {
        assert!(TARGETS.iter().any(|(known, _)| known == target), "no target {target}");
        let directory = corpus_dir().join(target);
        if std::env::var_os("ONEFOLD_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        let stored = std::fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{target}/{name}: {error}"));
        assert_eq!(hex(&stored), hex(bytes), "{target}/{name} is not what the format says; see fuzz/README.md");
    }
    for (target, _) in TARGETS {
        assert!(seeds.iter().any(|(of, _, _)| of == target), "{target} has no valid input");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a random test says its seed")]
fn no_decoder_panics_or_takes_memory_out_of_proportion() {
    let seed = 0x1f01d;
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        for input in &inputs {
            call(name, *target, input);
            for len in 0..input.len() {
                call(name, *target, &input[..len]);
            }
            for bit in 0..input.len() * 8 {
                let mut flipped = input.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                call(name, *target, &flipped);
            }
            for _ in 0..MIXTURES {
                let mut mixed = input.clone();
                for _ in 0..=random.index(3) {
                    let other = &inputs[random.index(inputs.len())];
                    mixed = mix(&mixed, other, &mut random);
                }
                call(name, *target, &mixed);
            }
        }
    }
}

#[test]
fn a_list_that_promises_more_than_it_holds_takes_no_memory() {
    for (name, target) in TARGETS {
        for head in EXTREMES {
            for fill in [0, 1, 3, 0x7f, 0xff] {
                call(name, *target, &[&[0], *head, &[fill; 200]].concat());
                call(name, *target, &[*head, &[fill; 200]].concat());
            }
        }
    }
}

#[test]
fn no_small_object_opens_with_a_bit_changed_or_a_byte_missing() {
    let vectors = vectors();
    let counting = |first: u8| -> Vec<u8> { (first..first + 32).collect() };
    let repository = RepositoryId(counting(0x20)[..16].try_into().unwrap());
    let keys = Keys::derive(&MasterKey(counting(0).try_into().unwrap()), repository);
    for (name, object_type) in
        [("session", ObjectType::Session), ("commit", ObjectType::Commit), ("condemn", ObjectType::Collection)]
    {
        let open = |bytes: Vec<u8>| open_small(&keys, name, object_type, (repository, None), bytes);
        let stored = &vectors[name];
        open(stored.clone()).unwrap();
        for len in 0..stored.len() {
            assert!(open(stored[..len].to_vec()).is_err(), "{name} cut at {len}");
        }
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(flipped).is_err(), "{name} with bit {bit} flipped");
        }
    }
}
