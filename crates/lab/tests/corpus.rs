//! Replays the corpus of the fuzz targets of traces, LZJB and stores of images, and inputs made from it, on stable Rust.
//!
//! No input makes a target panic, or take more memory than a block of a trace.

#![expect(clippy::disallowed_methods, reason = "reads the corpus, which lies beside the sources")]
#![expect(clippy::unwrap_used, reason = "the inputs are ours; where they are not, the test is to fail")]
#![expect(clippy::print_stdout, reason = "a random test says its seed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use onefold_engine::codec::put_varint;
use onefold_engine::compress::lzjb;
use onefold_lab::fuzzing::{TARGETS, Target};
use onefold_lab::image::store::fuzzing::seeds as image_seeds;
use onefold_lab::stream::Random;
use onefold_lab::trace::block::{CHUNKS_MAX, Gathered, MARKS_LEN_LIMIT, decode_events, encode_header};
use onefold_lab::trace::writer::TraceWriter;
use onefold_lab::trace::{Event, HASH_LEN, TraceChunk};

/// Made inputs per seed, in addition to truncations and flipped bits.
const MIXTURES: usize = 400;
/// Most memory for the events of a block.
const EVENTS_BYTES_MAX: usize = 14 << 20;
/// A target may take this multiple of the length of its input, for its output.
const MEMORY_FACTOR: usize = 16;
/// Of longer inputs one bit of each byte is flipped, else all.
const SHORT_LEN: usize = 600;

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
    // One thread may free the memory of another: the count is near zero, and not below it.
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
        // Both copies may be held while bytes are moved.
        count(size, 0);
        count(0, layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Most memory of a target, for any input.
fn memory_slack(target: &str) -> usize {
    match target {
        "trace_events" => EVENTS_BYTES_MAX,
        // Two readers at a time: stored and plain bytes of a block, and its events.
        "trace" | "trace_blocks" => 2 * (4 << 20) + 2 * EVENTS_BYTES_MAX,
        // The states of an image: one and a copy, in trees.
        "image_checkpoint" | "image_contents" | "image_journal" => 256 << 10,
        // The longest header or path, and the writer's block.
        _ => 64 << 10,
    }
}

/// Calls a target; panics with the input where the target panics or takes too much memory.
fn call(name: &str, target: Target, input: &[u8]) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    let taken = PEAK.get().saturating_sub(before);
    assert!(outcome.is_ok(), "{name} panicked on {}", hex(input));
    let allowed = MEMORY_FACTOR * input.len() + memory_slack(name);
    assert!(taken <= allowed, "{name} took {taken} bytes for {} bytes: {}", input.len(), hex(input));
    taken
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(20_000).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

// ---- Seeds ----

const DESCRIPTION: &str = "a seed";

fn begin(name: &str, version: u32) -> Event {
    Event::Begin { name: name.into(), version }
}

fn chunk(byte: u8, len: u32) -> Event {
    Event::Chunk(TraceChunk { hash: [byte; HASH_LEN], len })
}

/// Streams of two versions, an empty one among them.
fn events() -> Vec<Event> {
    let first = [begin("a", 0), chunk(1, 4096), chunk(2, u32::MAX), Event::End, begin("", 0), Event::End];
    let second = [begin("b", 1), chunk(2, 1), chunk(3, 0), chunk(1, 4096), Event::End];
    [&first[..], &second].concat()
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), DESCRIPTION).unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap().1
}

fn gathered(events: &[Event]) -> Vec<u8> {
    let (mut gathered, mut plain) = (Gathered::default(), Vec::new());
    for event in events {
        gathered.push(event);
    }
    gathered.take(&mut plain);
    plain
}

/// A block as the target `trace_blocks` takes it.
fn block(kind: u8, number: usize, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap();
    let number = u32::try_from(number).unwrap();
    [&[kind][..], &len.to_le_bytes(), &number.to_le_bytes(), body].concat()
}

fn totals(streams: u64, chunks: u64, bytes: u64) -> Vec<u8> {
    block(1, 0, &[streams, chunks, bytes].map(u64::to_le_bytes).concat())
}

/// A hash file with two files, as docs/traces.md and the laboratory's own tests have them.
fn fsl(version: u32, fixed: Option<u32>) -> Vec<u8> {
    const HASH: [u8; 6] = [1, 2, 3, 4, 5, 6];
    let mut bytes = [0xdead_dead_u32.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.extend(2_u64.to_le_bytes());
    bytes.resize(4120, 0);
    bytes.extend(if fixed.is_some() { 1_u32 } else { 2 }.to_le_bytes());
    bytes.extend(fixed.unwrap_or(1).to_le_bytes());
    bytes.resize(4168, 0);
    bytes.extend([3_u32.to_le_bytes(), 48_u32.to_le_bytes()].concat());
    bytes.resize(
        if version < 3 {
            4176
        } else if version < 5 {
            8288
        } else {
            8296
        },
        0,
    );
    for (name, lens) in [("name", &[4096_u32, 904][..]), ("", &[])] {
        let start = bytes.len();
        let size = u64::from(lens.iter().sum::<u32>()).to_le_bytes();
        if version == 1 {
            bytes.extend(name.as_bytes());
            bytes.resize(start + 4096, 0);
        }
        bytes.extend(size);
        let chunks_at = [16, 16, 16, 16, 72, 80, 80, 80][version as usize];
        bytes.resize(bytes.len().max(start + if version < 4 { 0 } else { chunks_at }), 0xee);
        bytes.extend((lens.len() as u64).to_le_bytes());
        if version != 1 {
            bytes.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
        }
        if 4 <= version {
            bytes.extend(3_u32.to_le_bytes());
        }
        bytes.extend(if version == 1 { "" } else { name }.as_bytes());
        bytes.extend(if version < 4 { "" } else { "lnk" }.as_bytes());
        for len in lens {
            match version {
                7 if fixed.is_none() => bytes.extend(len.to_le_bytes()),
                3..=6 if fixed.is_none() => bytes.extend(u64::from(*len).to_le_bytes()),
                _ => {}
            }
            bytes.extend(HASH);
            bytes.extend(&[9][..usize::from(6 <= version)]);
        }
    }
    bytes
}

/// Valid inputs, and some that are as wrong as can be made: target, name, bytes.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let hash = "00112233445566778899AABBCCDDEEFF00112233";
    let whole = written(&events());
    let mut seeds = vec![
        ("trace", "streams", whole.clone()),
        ("trace", "empty", written(&[])),
        ("trace", "cut", whole[..whole.len() - 30].to_vec()),
        ("trace", "two_ends", [&whole[..], &written(&[])[encode_header(DESCRIPTION).len()..]].concat()),
        ("trace_events", "streams", gathered(&events())),
        ("trace_events", "no_chunks", gathered(&[begin("", 0), Event::End])),
        ("trace_events", "nothing", gathered(&[])),
        ("trace_events", "chunks_of_a_stream_that_goes_on", gathered(&[chunk(1, 1), chunk(2, 2), Event::End])),
        (
            "trace_blocks",
            "streams",
            [block(0, 0, &gathered(&events())), totals(3, 5, 8193 + u64::from(u32::MAX))].concat(),
        ),
        (
            "trace_blocks",
            "over_two_blocks",
            [
                block(0, 0, &gathered(&[begin("a", 1), chunk(1, 1)])),
                block(0, 0, &gathered(&[])),
                block(0, 0, &gathered(&[chunk(2, 2), Event::End])),
                totals(1, 2, 3),
            ]
            .concat(),
        ),
        (
            "trace_blocks",
            "versions_that_go_down",
            [block(0, 0, &gathered(&[begin("a", 2), Event::End, begin("b", 1), Event::End])), totals(2, 0, 0)].concat(),
        ),
        ("trace_blocks", "totals_near_the_greatest", totals(u64::MAX, u64::MAX, u64::MAX)),
        ("trace_blocks", "more_than_it_says", block(2, 50_000, &zstd::bulk::compress(&[0; 60_000], 1).unwrap())),
        ("trace_blocks", "repeated", block(0, 9, &gathered(&[begin("a", 0), Event::End]))),
        ("trace_destor", "files", format!("file start 3\na\nb\n{hash} 4096\n{hash} 0\nfile end\nstream end\n").into()),
        ("trace_destor", "empty", b"stream end\n".to_vec()),
        ("trace_raw", "hashes", (0..60).collect()),
        ("trace_csv", "lines", format!("hash,size\r\n{hash},4294967295\n\n ab , 0").into()),
    ]
    .into_iter()
    .map(|(target, name, bytes)| (target, name.to_owned(), bytes))
    .collect::<Vec<_>>();
    for version in 1..=7 {
        seeds.push(("trace_fsl", format!("variable_{version}"), fsl(version, None)));
    }
    seeds.push(("trace_fsl", "fixed_7".to_owned(), fsl(7, Some(4096))));
    for (name, plain) in [("zeros", vec![0; 300]), ("text", b"one two three, one two four; ".repeat(9))] {
        let mut bytes = u16::try_from(plain.len()).unwrap().to_le_bytes().to_vec();
        lzjb::compress(&plain, &mut bytes);
        seeds.push(("lzjb", name.to_owned(), bytes));
    }
    seeds.extend(image_seeds().into_iter().map(|(target, name, bytes)| (target, name.to_owned(), bytes)));
    seeds
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
    &[0xff, 0xff],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40],
    b"99999999999999999999",
    b"\n",
    b"\r\n\r\n",
    b"file start 4294967295\n",
    b"file end\n",
    b"stream end\n",
    b",",
];

/// Changes an input at one offset: overwrites, inserts, removes or repeats bytes, or takes them from another input.
fn mix(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut below = |limit: usize| usize::try_from(random.below(limit.max(1) as u64)).unwrap();
    // Of long inputs what matters stands at the end.
    let from = if below(2) == 0 { 0 } else { input.len().saturating_sub(300) };
    let at = from + below(input.len() - from + 1);
    let (head, tail) = input.split_at(at);
    let cut = below(tail.len().min(40) + 1);
    match below(5) {
        0 => [head, EXTREMES[below(EXTREMES.len())], &tail[cut..]].concat(),
        1 => {
            let extreme = EXTREMES[below(EXTREMES.len())];
            [head, extreme, &tail[extreme.len().min(tail.len())..]].concat()
        }
        2 => [head, &tail[cut..]].concat(),
        3 => [head, &tail[..cut].repeat(1 + below(50)), tail].concat(),
        _ => {
            let from = below(other.len() + 1);
            let len = below(other.len() - from + 1);
            [head, &other[from..from + len], &tail[cut..]].concat()
        }
    }
}

#[test]
fn every_target_has_its_inputs_in_the_corpus() {
    let seeds = seeds();
    for (target, name, bytes) in &seeds {
        assert!(TARGETS.iter().any(|(known, _)| known == target), "no target {target}");
        let directory = corpus_dir().join(target);
        if std::env::var_os("ONEFOLD_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        let stored = std::fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{target}/{name}: {error}"));
        // Another version of the compressor may compress differently.
        let is_compressed = *target == "trace" || name == "more_than_it_says";
        assert!(is_compressed || stored == *bytes, "{target}/{name} is not what the writers make; see fuzz/README.md");
    }
    for (target, _) in TARGETS {
        assert!(seeds.iter().any(|(of, _, _)| of == target), "{target} has no input");
    }
}

#[test]
fn no_decoder_panics_or_takes_memory_out_of_proportion() {
    // More, for longer: ONEFOLD_MIXTURES=100000.
    let mixtures = std::env::var("ONEFOLD_MIXTURES").map_or(MIXTURES, |count| count.parse().unwrap());
    let seed = std::env::var("ONEFOLD_SEED").map_or(0x1f01d, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        let (mut calls, mut most) = (0_u64, 0);
        let mut call = |input: &[u8]| (calls, most) = (calls + 1, most.max(call(name, *target, input)));
        for input in &inputs {
            call(input);
            (0..input.len()).for_each(|len| call(&input[..len]));
            for bit in 0..input.len() * 8 {
                if input.len() <= SHORT_LEN || bit % 8 == bit / 8 % 8 {
                    let mut flipped = input.clone();
                    flipped[bit / 8] ^= 1 << (bit % 8);
                    call(&flipped);
                }
            }
            for _ in 0..mixtures {
                let mut mixed = input.clone();
                for _ in 0..=random.below(3) {
                    let other = usize::try_from(random.below(inputs.len() as u64)).unwrap();
                    mixed = mix(&mixed, &inputs[other], &mut random);
                }
                call(&mixed);
            }
        }
        println!("{name}: {calls} inputs, {most} bytes at most");
    }
}

#[test]
fn few_bytes_that_become_many_take_no_more_memory_than_the_events_of_a_block() {
    let target = |name: &str| TARGETS.iter().find(|(known, _)| *known == name).unwrap().1;
    let (blocks, events) = (target("trace_blocks"), target("trace_events"));
    let called = |plain: &[u8]| {
        call("trace_events", events, plain);
        let stored = zstd::bulk::compress(plain, 19).unwrap();
        assert!(stored.len() < 2000, "{} bytes are no bomb", stored.len());
        call("trace_blocks", blocks, &[block(2, plain.len(), &stored), totals(1, 2, 3)].concat());
    };
    // As many as fit a block: ends, beginnings and ends in turns, names of the greatest length; chunks that are alike.
    let longest = [&[0, 1, 0, 0x80, 0x20][..], &[b'n'; 4096], &[0, 0]].concat();
    for (mark, count) in [(&[0, 0][..], 1), (&[0, 1, 0, 0, 0, 0], 2), (&longest, 2)] {
        for repeats in [1000, 528_000 / mark.len(), (2 << 20) / mark.len() - 2] {
            let mut plain = vec![0];
            put_varint(&mut plain, (count * repeats) as u64);
            plain.extend(mark.repeat(repeats));
            plain.truncate(2 << 20);
            called(&plain);
        }
    }
    called(&gathered(&vec![chunk(7, 100); CHUNKS_MAX]));
    for repeated in [&[0][..], &[1], &[0xff], &[0x80]] {
        for kind in [0, 1] {
            call("trace_blocks", blocks, &block(kind, (2 << 20) - 1, repeated));
        }
    }
    // A frame that becomes more than it is said to, or than it may; cut ones.
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
    for len in [1, 10, 30, bomb.len() / 2, bomb.len()] {
        for said in [0, 1, 2 << 20, (2 << 20) + 1, 64 << 20, u32::MAX as usize] {
            call("trace_blocks", blocks, &block(2, said, &bomb[..len.min(65_535)]));
        }
    }
}

#[test]
fn more_beginnings_and_ends_than_a_block_has_are_refused() {
    let mut events = Vec::new();
    let mut decoded = |count: usize| {
        let mut plain = vec![0];
        put_varint(&mut plain, count as u64);
        plain.resize(plain.len() + 2 * count, 0);
        decode_events(&plain, &mut events).map(|()| events.len())
    };
    assert_eq!(decoded(MARKS_LEN_LIMIT / 2), Ok(MARKS_LEN_LIMIT / 2));
    let refused = decoded(MARKS_LEN_LIMIT / 2 + 1).unwrap_err();
    assert_eq!(refused.reason, "more beginnings and ends of streams than a block has");
}
