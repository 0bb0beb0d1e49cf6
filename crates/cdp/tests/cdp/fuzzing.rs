//! Replays the corpus of the fuzz targets, and inputs made from it, on stable Rust.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use onefold_cdp::nbd::fuzzing::{TARGETS, Target};
use onefold_cdp::nbd::wire::option::{ContextRequest, InfoRequest, OptionHeader, code};
use onefold_cdp::nbd::wire::option_reply::OptionReply;
use onefold_cdp::nbd::wire::reply::{ReplyChunk, SimpleReply, StatusExtent, encode_extent};
use onefold_cdp::nbd::wire::request::{Request, command, flag};
use onefold_cdp::nbd::wire::{Errno, encode_client_flags};

use crate::model::Random;

/// Made inputs of each target, in addition to truncations and flipped bits. `ONEFOLD_MIXTURES` sets another number.
const MIXTURES: u64 = 3000;

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHeader { option, len: data.len() as u32 }.encode(), data].concat()
}

fn request(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let message = Request { flags, command, cookie: offset ^ 0x55, offset, len }.encode();
    let payload = if command == command::WRITE { vec![9; len as usize] } else { Vec::new() };
    [&message[..], &payload].concat()
}

/// Valid inputs: target, name, bytes.
fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (mut info, mut contexts) = (Vec::new(), Vec::new());
    InfoRequest::encode(b"a", &[1, 2, 3], &mut info);
    ContextRequest::encode(b"a", &[b"base:allocation", b"onefold:dirty"], &mut contexts);
    let go = [
        encode_client_flags(3).to_vec(),
        option(99, b"unknown"),
        option(code::STARTTLS, b""),
        option(code::LIST, b""),
        option(code::STRUCTURED_REPLY, b""),
        option(code::LIST_META_CONTEXT, &contexts),
        option(code::SET_META_CONTEXT, &contexts),
        option(code::INFO, &info),
        option(code::GO, &info),
    ];
    let requests = [
        request(command::WRITE, flag::FUA, 4096, 512),
        request(command::READ, 0, 0, 4096),
        request(command::READ, 0, 1, 200 << 10),
        request(command::READ, flag::DF, 1 << 40, 1),
        request(command::WRITE, 0, 250 << 10, 8 << 10),
        request(command::WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO, 0, 4096),
        request(command::TRIM, 0, 5, 4096),
        request(command::CACHE, 0, 0, 1),
        request(command::BLOCK_STATUS, 0, 0, 256 << 10),
        request(command::BLOCK_STATUS, flag::REQ_ONE, 0, 4096),
        request(77, 0, 0, 4096),
        request(command::FLUSH, 0, 0, 0),
        request(command::DISC, 0, 0, 0),
    ]
    .concat();
    let extent = encode_extent(StatusExtent { len: 4096, flags: 3 });
    let mut chunks = SimpleReply { cookie: 1, error: Some(Errno::NoSpace) }.encode().to_vec();
    for chunk in [
        ReplyChunk::Data { offset: 1, data: b"data" },
        ReplyChunk::Hole { offset: 5, len: 9 },
        ReplyChunk::BlockStatus { context: 1, extents: &extent },
        ReplyChunk::Error { error: Errno::Io, message: b"text", offset: Some(8) },
        ReplyChunk::None,
    ] {
        chunk.encode(1, 2, &mut chunks);
    }
    let mut answer = Vec::new();
    OptionReply::BlockSize { minimum: 1, preferred: 2, maximum: 3 }.encode(code::GO, &mut answer);
    vec![
        ("nbd_negotiation", "go", go.concat()),
        ("nbd_negotiation", "export_name", [encode_client_flags(1).to_vec(), option(code::EXPORT_NAME, b"b")].concat()),
        ("nbd_negotiation", "abort", [encode_client_flags(1).to_vec(), option(code::ABORT, b"")].concat()),
        ("nbd_transmission", "simple", [&[0][..], &requests].concat()),
        ("nbd_transmission", "structured", [&[13][..], &requests].concat()),
        ("nbd_transmission", "read_only", [&[3][..], &requests].concat()),
        ("nbd_replies", "chunks", chunks),
        ("nbd_replies", "block_size", answer),
    ]
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Returns the inputs of a target.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(corpus(target)).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn call(name: &str, target: Target, input: &[u8]) {
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(outcome.is_ok(), "{name} panicked on {}", input.escape_ascii());
}

#[test]
fn the_corpus_holds_the_valid_inputs() {
    for (target, name, bytes) in seeds() {
        let path = corpus(target).join(name);
        if std::env::var_os("ONEFOLD_WRITE_SEEDS").is_some() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert!(fs::read(&path).is_ok_and(|found| found == bytes), "{}: see fuzz/README.md", path.display());
    }
}

#[test]
fn no_target_panics_on_damaged_truncated_and_mixed_inputs() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("ONEFOLD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let mixtures = number("ONEFOLD_MIXTURES").unwrap_or(MIXTURES);
    println!("ONEFOLD_SEED={seed} ONEFOLD_MIXTURES={mixtures}");
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        for input in &inputs {
            call(name, *target, input);
            (0..input.len().min(2000)).for_each(|len| call(name, *target, &input[..len]));
            for bit in 0..8 * input.len().min(600) {
                let mut flipped = input.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                call(name, *target, &flipped);
            }
        }
        let mut random = Random::new(seed);
        for _ in 0..mixtures {
            let (one, other) = (&inputs[random.below(inputs.len())], &inputs[random.below(inputs.len())]);
            let (start, end) = (random.below(one.len()), random.below(other.len()));
            let mut mixed = [&one[..start], &other[end..]].concat();
            for _ in 0..random.below(8) {
                let at = random.below(mixed.len());
                mixed[at] = [0, 1, 0xff, random.next() as u8][random.below(4)];
            }
            call(name, *target, &mixed);
        }
        for len in 0..300 {
            let noise: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            call(name, *target, &noise);
        }
    }
}
