//! Each foreign format, from bytes written as its specification says.

use proptest::prelude::*;

use crate::trace::foreign::csv::CsvTrace;
use crate::trace::foreign::destor::DestorTrace;
use crate::trace::foreign::fsl::FslTrace;
use crate::trace::foreign::raw::{Lengths, RawTrace};
use crate::trace::foreign::{chunk_of, hash_of_hex};
use crate::trace::{Damaged, Event, Events, TraceChunk};

fn all(mut trace: impl Events) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    while let Some(event) = trace.next_event()? {
        events.push(event);
    }
    Ok(events)
}

/// Returns what is damaged, and that all cuts of the bytes are.
fn damage(result: anyhow::Result<Vec<Event>>) -> Damaged {
    result.expect_err("the trace is damaged").downcast().expect("an error with an offset")
}

fn begin(name: &str, version: u32) -> Event {
    Event::Begin { name: name.into(), version }
}

fn chunk(hash: &[u8], len: u32) -> Event {
    Event::Chunk(chunk_of(hash, len))
}

#[test]
fn raw_hashes() {
    let bytes: Vec<u8> = (0..60).collect();
    let trace = |bytes: &[u8]| all(RawTrace::new(bytes, b"raw", 2, Lengths::Equal(4096)));
    let hash = |start: u8| {
        let hash: Vec<u8> = (start..start + 20).collect();
        Event::Chunk(TraceChunk { hash: hash.try_into().unwrap(), len: 4096 })
    };
    assert_eq!(trace(&bytes).unwrap(), [begin("raw", 2), hash(0), hash(20), hash(40), Event::End]);
    assert_eq!(trace(&[]).unwrap(), [begin("raw", 2), Event::End]);
    assert_eq!(damage(trace(&bytes[..59])), Damaged::new(59, "the trace ends too early"));
    let records = |bytes: &[u8]| all(RawTrace::new(bytes, b"raw", 2, Lengths::Recorded));
    let record = |start: u8, len: u32| {
        let hash: Vec<u8> = (start..start + 20).collect();
        Event::Chunk(TraceChunk { hash: hash.try_into().unwrap(), len })
    };
    let expected = [begin("raw", 2), record(0, 0x1716_1514), record(24, 0x2f2e_2d2c), Event::End];
    assert_eq!(records(&bytes[..48]).unwrap(), expected);
    for len in 49..60 {
        assert_eq!(damage(records(&bytes[..len])), Damaged::new(len as u64, "the trace ends too early"));
    }
}

#[test]
fn lines_of_hash_and_size() {
    let trace = |text: &str| all(CsvTrace::new(text.as_bytes(), b"csv", 0));
    let sha1 = "da39a3ee5e6b4b0d3255bfef95601890afd80709";
    let expected =
        [begin("csv", 0), chunk(&hash_of_hex(sha1.as_bytes()).unwrap(), 8192), chunk(&[0xab], 1), Event::End];
    for text in [
        format!("{sha1},8192\nAB,1\n"),
        format!("{sha1},8192\r\nAB,1"),
        format!("hash,size\n{sha1},8192\n\n ab , 1 \n"),
    ] {
        assert_eq!(trace(&text).unwrap(), expected, "{text:?}");
    }
    let reason = "a line that is not a hash in hexadecimal digits, a comma and a size";
    for wrong in ["ab;1", "ab,1,2", "abc,1", "ab,-1", "ab,4294967296", "ab"] {
        let place = sha1.len() as u64 + 3;
        assert_eq!(damage(trace(&format!("{sha1},1\n{wrong}\n"))), Damaged::new(place, reason), "{wrong}");
    }
    assert!(damage(trace(&"a".repeat(1000))).reason.starts_with("a line of more than"));
}

#[test]
fn text_of_destor() {
    let trace = |text: &str| all(DestorTrace::new(text.as_bytes(), 1));
    let (a, b) = ("DA39A3EE5E6B4B0D3255BFEF95601890AFD80709", "00112233445566778899AABBCCDDEEFF00112233");
    let text = format!("file start 5\na\nb c\n{a} 4096\n{b} 7\nfile end\nfile start 0\n\nfile end\nstream end\n");
    let of = |hex: &str, len| chunk(&hash_of_hex(hex.as_bytes()).unwrap(), len);
    let expected = [begin("a\nb c", 1), of(a, 4096), of(b, 7), Event::End, begin("", 1), Event::End];
    assert_eq!(trace(&text).unwrap(), expected);
    assert_eq!(trace("stream end").unwrap(), []);
    // Cut at any line, it is not taken for whole.
    for (at, _) in text.match_indices('\n').take(text.lines().count() - 1) {
        damage(trace(&text[..=at]));
    }
    for (wrong, place) in [
        ("file start 99999\n", 0),
        ("file start x\n", 0),
        ("file start 1\nab\nfile end\nstream end\n", 14),
        ("file end\nstream end\n", 0),
        ("file start 1\na\nstream end\n", 15),
        ("file start 1\na\nxx 5\nfile end\nstream end\n", 15),
        ("file start 1\na\nab 5 6\nfile end\nstream end\n", 15),
        ("stream end\nmore", 11),
        ("", 0),
    ] {
        assert_eq!(damage(trace(wrong)).offset, place, "{wrong:?}");
    }
}

/// Writes a hash file of a version with two files, as the specification says. `fixed`: length of chunks, else they vary.
struct Fsl {
    version: u32,
    fixed: Option<u32>,
    hash_len: usize,
}

impl Fsl {
    fn header(&self, files: u64, chunks: u64, total_bytes: u64) -> Vec<u8> {
        let mut bytes = 0xdead_dead_u32.to_le_bytes().to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(files.to_le_bytes());
        bytes.extend([0; 4096]);
        bytes.extend(chunks.to_le_bytes());
        bytes.extend(if self.fixed.is_some() { 1_u32 } else { 2 }.to_le_bytes());
        let mut parameters = [0; 44];
        parameters[..4].copy_from_slice(&self.fixed.unwrap_or(1).to_le_bytes());
        bytes.extend(parameters);
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(u32::try_from(8 * self.hash_len).unwrap().to_le_bytes());
        assert_eq!(bytes.len(), 4176);
        if 3 <= self.version {
            bytes.extend([0; 4096 + 16]);
        }
        if 5 <= self.version {
            bytes.extend(total_bytes.to_le_bytes());
        }
        bytes
    }

    fn file(&self, name: &str, size: u64, chunks: &[(u32, u8)]) -> Vec<u8> {
        let count = (chunks.len() as u64).to_le_bytes();
        let name_len = u32::try_from(name.len()).unwrap().to_le_bytes();
        let mut bytes = Vec::new();
        match self.version {
            1 => {
                bytes.extend(name.as_bytes());
                bytes.resize(4096, 0);
                bytes.extend(size.to_le_bytes());
                bytes.extend(count);
            }
            2 | 3 => {
                bytes.extend(size.to_le_bytes());
                bytes.extend(count);
                bytes.extend(name_len);
                bytes.extend(name.as_bytes());
            }
            _ => {
                bytes.extend(size.to_le_bytes());
                // Blocks, from version 5 on; owner, group, mode, three times, links, device and inode.
                bytes.resize(if self.version == 4 { 72 } else { 80 }, 0xee);
                bytes.extend(count);
                bytes.extend(name_len);
                bytes.extend(3_u32.to_le_bytes());
                bytes.extend(name.as_bytes());
                bytes.extend(b"lnk");
            }
        }
        for (len, hash) in chunks {
            match self.version {
                1 | 2 => {}
                _ if self.fixed.is_some() => {}
                7 => bytes.extend(len.to_le_bytes()),
                _ => bytes.extend(u64::from(*len).to_le_bytes()),
            }
            bytes.extend(vec![*hash; self.hash_len]);
            if 6 <= self.version {
                bytes.push(1);
            }
        }
        bytes
    }
}

#[test]
fn hash_files_of_all_versions() {
    for version in 1..=7 {
        for (fixed, hash_len) in [(None, 6), (Some(4096), 20), (None, 32)] {
            let fsl = Fsl { version, fixed, hash_len };
            let chunks = [(4096, 1), (4096, 2), (808, 3)];
            let bytes = [
                fsl.header(3, 4, 13_096),
                fsl.file("/a/b", 9000, &chunks),
                fsl.file("", 0, &[]),
                fsl.file("c", 4096, &chunks[..1]),
            ]
            .concat();
            let trace = |bytes: &[u8]| FslTrace::new(bytes, 5).and_then(all);
            let hash = |byte, len| chunk(&vec![byte; hash_len], len);
            // The first two versions do not say how long chunks that vary are, nor the first four how many bytes there are.
            let lens = if fixed.is_none() && version <= 2 { [3000; 3] } else { [4096, 4096, 808] };
            let expected = [
                begin("/a/b", 5),
                hash(1, lens[0]),
                hash(2, lens[1]),
                hash(3, lens[2]),
                Event::End,
                begin("", 5),
                Event::End,
                begin("c", 5),
                hash(1, 4096),
                Event::End,
            ];
            assert_eq!(trace(&bytes).unwrap(), expected, "version {version}, {fixed:?}");
            for len in 0..bytes.len() {
                assert_eq!(damage(trace(&bytes[..len])), Damaged::new(len as u64, "the trace ends too early"));
            }
            let longer = damage(trace(&[&bytes[..], b"x"].concat()));
            assert_eq!(
                longer,
                Damaged::new(bytes.len() as u64, "bytes after the last of 3 files that the header counts")
            );
        }
    }
}

#[test]
fn hash_files_that_do_not_have_what_their_header_counts_are_refused() {
    let chunks = [(4096, 1), (4096, 2), (808, 3)];
    for version in 1..=7 {
        for (fixed, hash_len) in [(None, 6), (Some(4096), 20)] {
            let fsl = Fsl { version, fixed, hash_len };
            let files = [fsl.file("a", 9000, &chunks), fsl.file("b", 4096, &chunks[..1])].concat();
            let trace = |header: Vec<u8>| FslTrace::new(&[header, files.clone()].concat()[..], 0).and_then(all);
            trace(fsl.header(2, 4, 13_096)).unwrap();
            for stated in [0, 3, 5, u64::MAX] {
                let reason = format!("the header counts {stated} chunks, but the 2 files have 4");
                assert_eq!(
                    damage(trace(fsl.header(2, stated, 13_096))),
                    Damaged::new(4112, reason),
                    "version {version}"
                );
            }
            for stated in [0, 13_095, u64::MAX] {
                let found = trace(fsl.header(2, 4, stated));
                if version < 5 {
                    found.unwrap();
                    continue;
                }
                let reason = format!("the header counts {stated} bytes, but the 2 files have 13096");
                assert_eq!(damage(found), Damaged::new(8288, reason), "version {version}");
            }
            let fewer = damage(trace(fsl.header(1, 4, 13_096)));
            assert_eq!(fewer.reason, "bytes after the last of 1 files that the header counts");
            assert_eq!(damage(trace(fsl.header(3, 4, 13_096))).reason, "the trace ends too early");
        }
    }
}

#[test]
fn fixed_chunks_may_leave_the_rest_of_a_file_out() {
    let fsl = Fsl { version: 7, fixed: Some(4096), hash_len: 6 };
    let bytes = [fsl.header(1, 2, 8192), fsl.file("a", 9000, &[(4096, 1), (4096, 2)])].concat();
    let expected = [begin("a", 0), chunk(&[1; 6], 4096), chunk(&[2; 6], 4096), Event::End];
    assert_eq!(FslTrace::new(&bytes[..], 0).and_then(all).unwrap(), expected);
}

#[test]
fn hash_files_that_cannot_be_are_refused_where_they_are_wrong() {
    let fsl = Fsl { version: 7, fixed: Some(4096), hash_len: 6 };
    let bytes = [fsl.header(1, 2, 8192), fsl.file("name", 8192, &[(4096, 1), (4096, 2)])].concat();
    let file = u64::try_from(fsl.header(1, 2, 8192).len()).unwrap();
    for (at, value, place, reason) in [
        (0, 0, 0, "not a hash file of the File systems and Storage Lab"),
        (4, 8, 4, "version 8; those known are 1 to 7"),
        (4, 0, 4, "version 0; those known are 1 to 7"),
        (4120, 3, 4120, "chunking method 3"),
        (4124, 0, 4124, "fixed chunks of no bytes"),
        (4172, 0, 4172, "hashes of 0 bits"),
        (4172, 47, 4172, "hashes of 47 bits"),
        (4172, 1 << 20, 4172, "hashes of 1048576 bits"),
        (file + 80, 3, file, "a file whose length and number of chunks do not fit each other"),
        (file + 88, 1 << 30, file, "a path longer than any"),
        (file + 92, 1 << 30, file, "a path longer than any"),
    ] {
        let mut wrong = bytes.clone();
        let at = usize::try_from(at).unwrap();
        wrong[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let found = damage(FslTrace::new(&wrong[..], 0).and_then(all));
        assert_eq!(found, Damaged::new(place, reason), "{value} at {at}");
    }
    // Lengths of chunks that vary are each as they say, but not far beyond their file's.
    let fsl = Fsl { version: 6, fixed: None, hash_len: 6 };
    let mut bytes = [fsl.header(1, 1, 5), fsl.file("name", 10, &[(5, 1)])].concat();
    let len_at = bytes.len() - 15;
    bytes[len_at..len_at + 8].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    assert_eq!(damage(FslTrace::new(&bytes[..], 0).and_then(all)).reason, "a chunk longer than any");
    bytes[len_at..len_at + 8].copy_from_slice(&((1_u64 << 32) - 1).to_le_bytes());
    let reason = "a file whose chunks are longer than itself";
    assert_eq!(damage(FslTrace::new(&bytes[..], 0).and_then(all)).reason, reason);
}

proptest! {
    /// Whatever is changed in a file, it is read or refused.
    #[test]
    fn changed_files_are_read_or_refused(
        version in 1_u32..8,
        fixed in prop::option::of(1_u32..10_000),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
    ) {
        let fsl = Fsl { version, fixed, hash_len: 6 };
        let fsl = [fsl.header(2, 3, 107), fsl.file("a", 100, &[(60, 1), (40, 2)]), fsl.file("b", 7, &[(7, 3)])].concat();
        let hash = "00112233445566778899AABBCCDDEEFF00112233";
        let destor = format!("file start 1\na\n{hash} 4096\n{hash} 7\nfile end\nstream end\n").into_bytes();
        let csv = format!("hash,size\n{hash},4096\nab,1\n").into_bytes();
        for (format, mut bytes) in [fsl, destor, csv].into_iter().enumerate() {
            for (at, value) in &changes {
                // The first bytes of a hash file, and what follows its name, decide more than the rest.
                let at = if bytes.len() < 4200 || value & 1 == 0 { at.index(bytes.len()) } else { 4096 + at.index(100) };
                bytes[at] = *value;
            }
            bytes.truncate(bytes.len() - end.index(bytes.len()) / 2);
            let _ = match format {
                0 => FslTrace::new(&bytes[..], 0).and_then(all),
                1 => all(DestorTrace::new(&bytes[..], 0)),
                _ => all(CsvTrace::new(&bytes[..], b"", 0)),
            };
        }
    }
}
