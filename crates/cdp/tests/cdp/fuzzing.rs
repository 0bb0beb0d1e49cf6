//! Replays the corpus of the fuzz targets, and inputs made from it, on stable Rust.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use onefold_cdp::journal::{GroupId, Lsn};
use onefold_cdp::link::wire::{Compare, Done, FrameMessage, Hello, Message, Welcome};
use onefold_cdp::link::{self, Codec};
use onefold_cdp::nbd::fuzzing::{TARGETS, Target};
use onefold_cdp::nbd::wire::option::{ContextRequest, InfoRequest, OptionHeader, code};
use onefold_cdp::nbd::wire::option_reply::OptionReply;
use onefold_cdp::nbd::wire::reply::{ReplyChunk, SimpleReply, StatusExtent, encode_extent};
use onefold_cdp::nbd::wire::request::{Request, command, flag};
use onefold_cdp::nbd::wire::{Errno, encode_client_flags};
use onefold_cdp::stored::{GroupSpec, VolumeSpec};

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
    let mut seeds = vec![
        ("nbd_negotiation", "go", go.concat()),
        ("nbd_negotiation", "export_name", [encode_client_flags(1).to_vec(), option(code::EXPORT_NAME, b"b")].concat()),
        ("nbd_negotiation", "abort", [encode_client_flags(1).to_vec(), option(code::ABORT, b"")].concat()),
        ("nbd_transmission", "simple", [&[0][..], &requests].concat()),
        ("nbd_transmission", "structured", [&[13][..], &requests].concat()),
        ("nbd_transmission", "read_only", [&[3][..], &requests].concat()),
        ("nbd_replies", "chunks", chunks),
        ("nbd_replies", "block_size", answer),
    ];
    seeds.extend(link_seeds());
    seeds
}

fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

/// Valid messages between two machines, and compressed records.
fn link_seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let volume = |name: &str, size| VolumeSpec { name: name.into(), size };
    let volumes = vec![volume("root", 1 << 40), volume("data", 4096)];
    let group = GroupSpec { name: "web".into(), id: GroupId([7; 16]), volumes };
    let hello = Hello { group, codecs: Codec::ALL.to_vec(), first: Lsn(3), next: Lsn(900) };
    let plain = b"records that repeat, records that repeat, records that repeat, and more records that repeat, as they often do".repeat(2);
    let frame = |codec, bytes| {
        let frame = FrameMessage { first: Lsn(5), time: 1 << 60, records: 2, codec, plain_len: plain.len(), bytes };
        encode(&Message::Frame(frame))
    };
    let mut made = vec![
        ("link_messages", "hello", encode(&Message::Hello(hello))),
        ("link_messages", "frame", frame(Codec::Off, &plain)),
    ];
    let short = [
        Message::Welcome(Welcome { codec: Codec::Zstd, durable: Lsn(4), checksum: [9; 16] }),
        Message::Ping,
        Message::Ack(Lsn(6), Lsn(2)),
        Message::Compare(Compare { at: Lsn(6), volume: 1, offset: 8192, len: 4096, key: [3; 32] }),
        Message::Fingerprints(&[1; 32]),
        Message::Checkpoint(Lsn(6)),
        Message::Done(Done::Made { snapshot: "1a2b".into(), first: Lsn(3), last: Lsn(6), versions: 70 }),
        Message::Done(Done::NothingNew),
        Message::Done(Done::Failed("the disk is full".into())),
        Message::Refused("another group"),
    ];
    made.push(("link_messages", "short", short.iter().flat_map(encode).collect()));
    for (codec, name) in Codec::ALL.into_iter().zip(["off", "lz4", "zstd", "lzjb"]) {
        let mut bytes = (plain.len() as u32).to_le_bytes().to_vec();
        bytes.rotate_right(1);
        bytes[0] = codec.code() as u8;
        bytes.extend(link::fuzzing::compress(codec, &plain));
        made.push(("link_frame", name, bytes));
    }
    made
}

#[test]
fn messages_between_machines_come_back() {
    for (_, name, bytes) in link_seeds().into_iter().filter(|(target, ..)| *target == "link_messages") {
        let (mut rest, mut again) = (&bytes[..], Vec::new());
        while let Some((header, behind)) = rest.split_first_chunk() {
            let (kind, len) = link::wire::decode_header(*header).unwrap();
            let (body, behind) = behind.split_at(len);
            again.extend(encode(&Message::decode(kind, body).unwrap()));
            rest = behind;
        }
        assert!(again == bytes, "{name}");
    }
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
    for (name, target) in TARGETS.iter().chain(link::fuzzing::TARGETS) {
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
            for _ in 0..if mixed.is_empty() { 0 } else { random.below(8) } {
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
