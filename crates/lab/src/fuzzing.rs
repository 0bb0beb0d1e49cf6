//! Entry points for fuzzing: every decoder of a trace, of LZJB, and of a store of an image, as a function of bytes.
//!
//! The fuzz targets in `fuzz/` and the test that replays their corpus call the same functions, as they do with
//! `onefold_engine::testing::fuzzing`, the decoders of repositories. Each returns for any input, without a panic and in
//! bounded memory. An error names a place within the input. Each writes the events that it read as a trace of ours and
//! panics if reading that trace gives other events: such a panic is a bug here, never the input's.

use anyhow::Result;
use onefold_engine::codec::len_u32;

use crate::image::store::fuzzing;
use crate::trace::block::{BlockHeader, BlockKind, PLAIN_LEN_MAX, decode_events, encode_header};
use crate::trace::foreign::csv::CsvTrace;
use crate::trace::foreign::destor::DestorTrace;
use crate::trace::foreign::fsl::FslTrace;
use crate::trace::foreign::raw::{Lengths, RawTrace};
use crate::trace::reader::TraceReader;
use crate::trace::writer::TraceWriter;
use crate::trace::{Damaged, Event, Events};
use onefold_engine::compress::lzjb;

/// A function to be called with arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets by name. A name is also that of the fuzz target and of the directory of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("trace", trace),
    ("trace_blocks", trace_blocks),
    ("trace_events", trace_events),
    ("trace_fsl", trace_fsl),
    ("trace_destor", trace_destor),
    ("trace_raw", trace_raw),
    ("trace_csv", trace_csv),
    ("lzjb", lzjb),
    ("image_checkpoint", fuzzing::checkpoint),
    ("image_contents", fuzzing::contents),
    ("image_journal", fuzzing::journal),
];

/// Runs a target by name; false if there is none.
pub fn run(target: &str, bytes: &[u8]) -> bool {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.map(|(_, function)| function(bytes)).is_some()
}

/// A trace, whole.
fn trace(bytes: &[u8]) {
    follow(bytes.len(), || TraceReader::new(bytes));
}

/// Blocks of a trace, which the target puts behind a header and gives their checksums: what somebody could write who means
/// ill. Each is a byte for its kind, two bytes for a length, four for a number, and so many bytes. Of the kind the lowest bit says
/// that the block is the last one. Where the next is 0 the bytes are what it holds, repeated so often, and are compressed;
/// where it is 1 they are stored as they are, and the number is the length of what they are said to become.
fn trace_blocks(bytes: &[u8]) {
    let mut trace = encode_header("");
    let mut rest = bytes;
    while let Some(([kind, len_low, len_high, number @ ..], behind)) = rest.split_first_chunk::<7>() {
        let len = usize::from(u16::from_le_bytes([*len_low, *len_high])).min(behind.len());
        let (body, behind) = behind.split_at(len);
        let number = u32::from_le_bytes(*number) as usize;
        let kind_of_block = if kind & 1 == 0 { BlockKind::Events } else { BlockKind::End };
        let (header, stored) = if kind & 2 == 0 {
            let plain = body.repeat(1 + number % (PLAIN_LEN_MAX / len.max(1)));
            let stored = zstd::bulk::compress(&plain, 1).expect("memory is enough to compress");
            (BlockHeader::of(kind_of_block, &stored, plain.len()), stored)
        } else {
            (BlockHeader::of(kind_of_block, body, number), body.to_vec())
        };
        trace.extend_from_slice(&header.encode());
        trace.extend_from_slice(&stored);
        rest = behind;
    }
    follow(trace.len(), || TraceReader::new(&trace[..]));
}

/// Contents of a block of events.
fn trace_events(bytes: &[u8]) {
    let mut events = Vec::new();
    if let Err(error) = decode_events(bytes, &mut events) {
        assert!(error.offset <= bytes.len(), "the place lies within the block");
    }
}

/// A hash file.
fn trace_fsl(bytes: &[u8]) {
    follow(bytes.len(), || FslTrace::new(bytes, 7));
}

/// Text of destor.
fn trace_destor(bytes: &[u8]) {
    follow(bytes.len(), || Ok(DestorTrace::new(bytes, 0)));
}

/// Hashes, without lengths and with them.
fn trace_raw(bytes: &[u8]) {
    for lengths in [Lengths::Equal(u32::MAX), Lengths::Recorded] {
        follow(bytes.len(), || Ok(RawTrace::new(bytes, b"raw", 0, lengths)));
    }
}

/// Lines.
fn trace_csv(bytes: &[u8]) {
    follow(bytes.len(), || Ok(CsvTrace::new(bytes, b"csv", u32::MAX)));
}

/// A length of two bytes, and a stream of LZJB. All bytes are also compressed, and come back.
fn lzjb(bytes: &[u8]) {
    let mut plain = Vec::new();
    if let Some((len, stream)) = bytes.split_first_chunk::<2>() {
        let len = u16::from_le_bytes(*len).into();
        let is_whole = lzjb::decompress(stream, len, &mut plain).is_ok();
        assert!(plain.len() <= len && (!is_whole || plain.len() == len), "no more than asked for");
    }
    let (mut stream, mut again) = (Vec::new(), Vec::new());
    lzjb::compress(bytes, &mut stream);
    assert!(stream.len() <= bytes.len() + bytes.len().div_ceil(8), "a byte for eight at most");
    lzjb::decompress(&stream, bytes.len(), &mut again).expect("what was compressed can be decompressed");
    assert_eq!(again, bytes, "bytes come back");
}

/// Reads a trace of so many bytes to its end or to what is wrong with it, twice: once to write it, once to compare.
fn follow<E: Events>(len: usize, open: impl Fn() -> Result<E>) {
    let mut writer = TraceWriter::new(Vec::new(), "fuzzed").expect("a vector can be written to");
    let mut events = match open() {
        Ok(events) => events,
        Err(error) => return check_error(len, &error),
    };
    loop {
        match events.next_event() {
            Ok(Some(event)) => writer.push(&event).expect("what is read can be written"),
            Ok(None) => break,
            Err(error) => return check_error(len, &error),
        }
    }
    assert!(matches!(events.next_event(), Ok(None)), "the end stays the end");
    let (_, written) = writer.finish().expect("a trace that ends has no open stream");
    let mut again = TraceReader::new(&written[..]).expect("what was written can be read");
    let mut events = open().expect("what could be opened once can be again");
    loop {
        let [one, other]: [Option<Event>; 2] =
            [events.next_event(), again.next_event()].map(|event| event.expect("it could be read once"));
        assert_eq!(one, other, "a trace comes back");
        if one.is_none() {
            return;
        }
    }
}

/// Checks that an error says where in a trace of so many bytes something is wrong, and what.
fn check_error(len: usize, error: &anyhow::Error) {
    let damaged = error.downcast_ref::<Damaged>().expect("bytes at hand can be read, so they are what is wrong");
    assert!(damaged.offset <= u64::from(len_u32(len)), "{damaged}, of {len} bytes");
    assert!(!damaged.reason.is_empty(), "a reason is given");
}
