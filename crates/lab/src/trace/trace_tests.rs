//! Traces that are written and read back, damaged and cut.

use proptest::prelude::*;

use crate::stream::Random;
use crate::trace::block::{CHUNKS_MAX, NAME_LEN_MAX, Totals};
use crate::trace::reader::TraceReader;
use crate::trace::writer::TraceWriter;
use crate::trace::{Damaged, Event, Events, HASH_LEN, TraceChunk};

fn begin(name: &[u8], version: u32) -> Event {
    Event::Begin { name: name.to_vec(), version }
}

fn chunk(random: &mut Random) -> Event {
    let mut hash = [0; HASH_LEN];
    hash.fill_with(|| random.bits().to_le_bytes()[0]);
    Event::Chunk(TraceChunk { hash, len: u32::try_from(random.bits() >> (32 + random.below(32))).unwrap() })
}

/// Returns streams of these lengths.
fn streams(seed: u64, lens: &[usize]) -> Vec<Event> {
    let mut random = Random::new(seed);
    let mut events = Vec::new();
    for (number, len) in lens.iter().enumerate() {
        let name = vec![b'a' + u8::try_from(number % 26).unwrap(); number % 7];
        events.push(begin(&name, u32::try_from(number / 3).unwrap()));
        events.extend((0..*len).map(|_| chunk(&mut random)));
        events.push(Event::End);
    }
    events
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), "made by a test").unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap().1
}

fn read(bytes: &[u8]) -> anyhow::Result<Vec<Event>> {
    let mut reader = TraceReader::new(bytes)?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok(events)
}

/// Returns where a trace is damaged.
fn damage(bytes: &[u8]) -> Damaged {
    let error = read(bytes).expect_err("the trace is damaged");
    error.downcast().unwrap_or_else(|error| panic!("not a damaged trace: {error}"))
}

#[test]
fn what_is_written_is_read_back_block_after_block() {
    for lens in [&[][..], &[0], &[1], &[0, 0, 3], &[CHUNKS_MAX, 1, CHUNKS_MAX - 1, 2 * CHUNKS_MAX + 7], &[5; 40]] {
        let events = streams(1, lens);
        assert_eq!(read(&written(&events)).unwrap(), events, "{lens:?}");
    }
    // Names alone fill blocks too.
    let name = vec![b'n'; NAME_LEN_MAX];
    let events: Vec<Event> = (0..1000).flat_map(|_| [begin(&name, 0), Event::End]).collect();
    assert_eq!(read(&written(&events)).unwrap(), events);
}

#[test]
fn the_description_is_kept_and_the_totals_are_returned() {
    let mut writer = TraceWriter::new(Vec::new(), "where it comes from").unwrap();
    let hash = [3; HASH_LEN];
    for event in [begin(b"a", 0), Event::Chunk(TraceChunk { hash, len: 10 }), Event::End, begin(b"b", 4), Event::End] {
        writer.push(&event).unwrap();
    }
    let (totals, bytes) = writer.finish().unwrap();
    assert_eq!(totals, Totals { streams: 2, chunks: 1, bytes: 10 });
    assert_eq!(TraceReader::new(&bytes[..]).unwrap().description(), "where it comes from");
}

#[test]
fn streams_that_do_not_follow_each_other_are_not_written() {
    let refused = |events: &[Event]| {
        let mut writer = TraceWriter::new(Vec::new(), "").unwrap();
        let written = events.iter().try_for_each(|event| writer.push(event));
        written.and_then(|()| writer.finish().map(drop)).unwrap_err().to_string()
    };
    let some = Event::Chunk(TraceChunk { hash: [1; HASH_LEN], len: 1 });
    assert_eq!(refused(&[some]), "a chunk outside of a stream");
    assert_eq!(refused(&[Event::End]), "the end of a stream that had not begun");
    assert_eq!(refused(&[begin(b"", 0), begin(b"", 0)]), "a stream begins inside another");
    assert_eq!(refused(&[begin(b"", 0)]), "the trace ends inside a stream");
    assert_eq!(refused(&[begin(b"", 1), Event::End, begin(b"", 0)]), "version 0 follows version 1");
    assert_eq!(refused(&[begin(&[0; NAME_LEN_MAX + 1], 0)]), "a stream's name of more than 4096 bytes");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed_with_its_place() {
    let bytes = written(&streams(2, &[3, 0, 9]));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let found = damage(&flipped);
        // A length that is too great reaches the end of the file.
        assert!(found.offset <= at as u64 || found.reason == "the trace ends too early", "byte {at}: {found}");
        let cut = damage(&bytes[..at]);
        assert_eq!((cut.offset, cut.reason.as_str()), (at as u64, "the trace ends too early"));
    }
    let longer = damage(&[&bytes[..], b"x"].concat());
    assert_eq!(longer, Damaged::new(bytes.len() as u64, "bytes after the end"));
}

#[test]
fn other_files_and_other_versions_are_refused() {
    assert_eq!(damage(b"PK\x03\x04 and so on"), Damaged::new(0, "not a trace of Onefold"));
    let mut newer = written(&[]);
    newer[8] = 2;
    let reason = "a trace of version 2; this program reads version 1";
    assert_eq!(damage(&newer), Damaged::new(8, reason));
}

proptest! {
    #[test]
    fn any_bytes_behind_the_header_are_events_or_an_error(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let header = written(&[]).len() - written_end_len();
        let mut bytes = written(&[]);
        bytes.truncate(header);
        bytes.extend_from_slice(&rest);
        let _ = read(&bytes);
    }

    #[test]
    fn any_bytes_of_a_block_are_events_or_an_error(plain in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut events = Vec::new();
        let _ = crate::trace::block::decode_events(&plain, &mut events);
    }
}

/// Returns the length of the last block of an empty trace.
fn written_end_len() -> usize {
    let stored = zstd::bulk::compress(&Totals::default().encode(), 3).unwrap();
    crate::trace::block::BLOCK_HEADER_LEN + stored.len()
}
