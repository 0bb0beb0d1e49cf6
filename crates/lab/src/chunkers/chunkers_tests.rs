//! Common properties of all chunkers, and a comparison of each with a plain specification.

use std::collections::HashSet;

use onefold_engine::backup::Budget;
use onefold_engine::monitor::Silent;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::Excludes;
use proptest::prelude::*;

use crate::chunkers::rabin::{MARK, POLYNOMIAL, WINDOW};
use crate::chunkers::*;
use crate::record::{Hash, Rule, record_paths};
use crate::trace::{Event, Events, HASH_LEN, TraceChunk, file};

/// Returns bytes without any order, the same for the same seed.
pub(crate) fn noise(seed: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Returns the cuts of a stream that comes in blocks of one length, its end included.
pub(crate) fn cuts(cutter: &mut dyn StreamCutter, bytes: &[u8], piece: usize) -> Vec<usize> {
    let lens = std::iter::repeat(piece);
    cuts_of_pieces(cutter, bytes, lens)
}

fn cuts_of_pieces(cutter: &mut dyn StreamCutter, bytes: &[u8], lens: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let (mut all, mut found, mut start) = (Vec::new(), Vec::new(), 0);
    for len in lens {
        if start == bytes.len() {
            break;
        }
        let piece = &bytes[start..bytes.len().min(start + len)];
        found.clear();
        cutter.advance(piece, &mut found);
        let position = |cut: &i64| start.checked_add_signed(isize::try_from(*cut).unwrap()).unwrap();
        assert!(found.last().is_none_or(|last| position(last) <= start + piece.len()));
        all.extend(found.iter().map(position));
        assert!(all.is_sorted_by(|one, next| one < next), "a cut lies before one that was given earlier");
        start += piece.len();
    }
    cutter.finish();
    if all.last() != Some(&bytes.len()) && !bytes.is_empty() {
        all.push(bytes.len());
    }
    all
}

const OURS: [Algorithm; 7] = [
    Algorithm::Rabin,
    Algorithm::FastCdc,
    Algorithm::Ae,
    Algorithm::Ram,
    Algorithm::Tttd,
    Algorithm::SeqCdc,
    Algorithm::DestorRabin,
];

fn cutter(algorithm: Algorithm, sizes: Sizes) -> Box<dyn StreamCutter> {
    Chunker::new(algorithm, sizes).unwrap();
    algorithm.cutter(sizes).unwrap()
}

/// Returns the remainder of bytes as a polynomial, bit after bit.
fn remainder(bytes: &[u8]) -> u64 {
    let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    bits.fold(0_u64, |value, bit| {
        let next = value << 1 | u64::from(bit);
        if next >> 63 == 0 { next } else { next ^ POLYNOMIAL }
    })
}

/// Returns the length of the first chunk of a stream as the specification has it, with the parameters of the source.
fn specified(algorithm: Algorithm, sizes: Sizes, bytes: &[u8]) -> usize {
    let [min, average, max] = [sizes.min, sizes.average, sizes.max].map(|size| size as usize);
    let end = bytes.len().min(max);
    let found = match algorithm {
        Algorithm::Rabin => {
            (min..=end).find(|len| remainder(&bytes[len - WINDOW..*len]) % average as u64 == MARK % average as u64)
        }
        Algorithm::DestorRabin => (min..=end).find(|len| {
            let window = &bytes[(min - 1).max(len.saturating_sub(WINDOW))..*len];
            remainder(window) % average as u64 == MARK % average as u64
        }),
        Algorithm::Tttd => {
            let main = (average - min) as u64 / 2 * 2;
            let divides = |len: usize, by: u64| remainder(&bytes[len - WINDOW..len]) % by == by - 1;
            let backup = || (min..=max).rev().find(|len| divides(*len, main / 2));
            (min..=end).find(|len| divides(*len, main)).or_else(|| if end == max { backup() } else { None })
        }
        Algorithm::SeqCdc => {
            let (mut at, mut rises, mut falls) = (min, 0, 0);
            loop {
                if end <= at {
                    break None;
                }
                let step = i32::from(bytes[at]) - i32::from(bytes[at - 1]);
                rises = if step < 0 { 0 } else { rises + step.signum() };
                falls += i32::from(step < 0);
                if rises == 5 {
                    break Some(at);
                }
                at += 1;
                if falls == 50 {
                    (at, falls) = (at + average / 32, 0);
                }
            }
        }
        Algorithm::FastCdc => {
            let (table, _) = ::fastcdc::v2020::get_gear_with_seed(0);
            let (small, large) = ::fastcdc::v2020::select_masks(average, ::fastcdc::v2020::Normalization::Level1);
            let mut hash = 0_u64;
            (min..end).find(|len| {
                hash = hash.wrapping_mul(2).wrapping_add(table[usize::from(bytes[*len])]);
                hash & (if *len < average { small } else { large }) == 0
            })
        }
        Algorithm::Ae => {
            // 0.581977 of 1024 and 2048; the others follow from it.
            let window = min - 8;
            let value = |len: usize| u64::from_be_bytes(bytes[len - 8..len].try_into().unwrap());
            (8..=end.saturating_sub(window))
                .find(|at| {
                    (8..*at).all(|before| value(before) < value(*at))
                        && (at + 1..=at + window).all(|behind| value(behind) <= value(*at))
                })
                .map(|at| at + window)
        }
        Algorithm::Ram => {
            let greatest = bytes.iter().take(average - 256).max();
            (average - 255..=end).find(|len| greatest <= Some(&bytes[len - 1]))
        }
        Algorithm::Gear | Algorithm::Fixed => panic!("the engine's"),
    };
    found.unwrap_or(end)
}

fn specified_cuts(algorithm: Algorithm, sizes: Sizes, bytes: &[u8]) -> Vec<usize> {
    let mut all = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        start += specified(algorithm, sizes, &bytes[start..]);
        all.push(start);
    }
    all
}

/// Returns bytes of several kinds: noise, runs, text, what repeats, what rises.
fn mixed(seed: &str) -> Vec<u8> {
    let text: Vec<u8> = noise(seed, 20_000).iter().map(|byte| b'a' + byte % 23).collect();
    let rising: Vec<u8> = (0..30_000_u32).map(|at| (at / 200).to_le_bytes()[0]).collect();
    let repeated = noise(seed, 700).repeat(30);
    [noise(seed, 40_000), vec![0; 20_000], text, vec![0xff; 9000], rising, repeated, noise("end", 3333)].concat()
}

#[test]
fn cuts_are_those_of_the_specification() {
    for algorithm in OURS {
        for average in [512, 1024, 2048] {
            let sizes = algorithm.sizes(average);
            let bytes = mixed("specification");
            let found = cuts(&mut *cutter(algorithm, sizes), &bytes, bytes.len());
            assert_eq!(found, specified_cuts(algorithm, sizes, &bytes), "{algorithm:?} {average}");
        }
    }
    // Sizes that are not each other's multiples, and a minimum that is the maximum.
    for algorithm in [Algorithm::Rabin, Algorithm::FastCdc, Algorithm::SeqCdc, Algorithm::DestorRabin] {
        for (min, average, max) in [(64, 512, 600), (70, 1024, 8 << 20), (512, 512, 512), (1022, 1024, 1026)] {
            let (sizes, bytes) = (Sizes { min, average, max }, mixed("sizes"));
            let found = cuts(&mut *cutter(algorithm, sizes), &bytes, bytes.len());
            assert_eq!(found, specified_cuts(algorithm, sizes, &bytes), "{algorithm:?} {sizes:?}");
        }
    }
    // Maxima that leave many cuts to the backup divisor, behind which less than the minimum or more is open.
    for (min, average, max) in [(64, 512, 512), (448, 512, 520), (100, 1111, 1500), (64, 2048, 2100), (460, 1000, 2800)]
    {
        let (sizes, bytes) = (Sizes { min, average, max }, mixed("backups"));
        let found = cuts(&mut *cutter(Algorithm::Tttd, sizes), &bytes, bytes.len());
        assert_eq!(found, specified_cuts(Algorithm::Tttd, sizes, &bytes), "{sizes:?}");
    }
}

/// Cuts with a parameter other than the source's.
fn cuts_with(algorithm: Algorithm, assignment: &str, bytes: &[u8]) -> Vec<usize> {
    let mut chunker = Chunker::new(algorithm, algorithm.sizes(1024)).unwrap();
    chunker.set(assignment).unwrap();
    cuts(&mut *algorithm.cutter_with(chunker.sizes, chunker.parameters).unwrap(), bytes, 4096)
}

#[test]
fn parameters_do_what_their_names_say() {
    // Runs of three rises and a fall: a sequence of three is a cut, one of four never is.
    let stairs: Vec<u8> = (0..20_000_u32).map(|at| [10, 20, 30, 40][at as usize % 4]).collect();
    let cuts = |assignment| cuts_with(Algorithm::SeqCdc, assignment, &stairs);
    assert!(lens(&cuts("sequence-length=4")).iter().take(9).all(|len| *len == 2048));
    assert_eq!(lens(&cuts("sequence-length=3"))[..3], [515, 516, 516]);
    // What falls forever is skipped; what rises behind it is found only if the skip ends before its end.
    let falling: Vec<u8> = (0..700).map(|at| [9, 9, 8, 7, 6, 5][at % 6]).collect();
    let valley = [&falling[..], &[1, 2, 3, 4, 5, 6, 7][..], &[7; 3000]].concat();
    let first = |assignment| cuts_with(Algorithm::SeqCdc, assignment, &valley)[0];
    assert_eq!(first("skip-trigger=2000"), 705);
    assert_eq!(first("skip-size=0"), 705);
    assert_eq!(first("skip-size=1000"), 2048);
    // The backup divisor of 2 finds a place close to the maximum, one of the main divisor finds none.
    let bytes = noise("backup", 1 << 20);
    let forced = |assignment| {
        let lens = lens(&cuts_with(Algorithm::Tttd, assignment, &bytes));
        lens.iter().filter(|len| **len == 2867).count()
    };
    let (often, half, never) = (forced("backup-divisor=2"), forced("backup-divisor=276"), forced("backup-divisor=552"));
    assert_eq!(half, 0);
    assert!(never > 5 && often > 2, "{often} and {never} chunks have the maximum");
    let mut chunker = Chunker::new(Algorithm::SeqCdc, Algorithm::SeqCdc.sizes(8192)).unwrap();
    chunker.set("skip-size = 512").unwrap();
    let described = "seqcdc, 8192 bytes on average, 4096 to 16384, sequence-length 5, skip-trigger 50, skip-size 512";
    assert_eq!(chunker.to_string(), described);
    for (assignment, says) in [
        ("skip-size", "write parameter=value"),
        ("skip-sise=1", "there is no parameter of seqcdc \"skip-sise\"; did you mean \"skip-size\"?"),
        ("sequence-length=17", "sequence-length: from 1 to 16, not \"17\""),
        ("skip-trigger=0", "skip-trigger: from 1 to 16384"),
    ] {
        let refused = chunker.set(assignment).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    let refused = Chunker::new(Algorithm::Ram, Algorithm::Ram.sizes(4096)).unwrap().set("skip-size=1").unwrap_err();
    assert!(refused.to_string().contains("ram has sizes only"), "{refused}");
}

#[test]
fn cuts_do_not_depend_on_the_pieces_in_which_a_stream_comes() {
    let bytes = mixed("pieces");
    for algorithm in OURS {
        let mut cutter = cutter(algorithm, algorithm.sizes(1024));
        let whole = cuts(&mut *cutter, &bytes, bytes.len());
        for piece in [1, 2, 3, 7, 8, 47, 48, 49, 63, 64, 65, 100, 1000, 1024, 4096, 8191, 65_536] {
            assert_eq!(cuts(&mut *cutter, &bytes, piece), whole, "{algorithm:?} in pieces of {piece}");
        }
    }
}

proptest! {
    #[test]
    fn cuts_do_not_depend_on_any_pieces(lens in prop::collection::vec(0_usize..3000, 100), seed in any::<u64>()) {
        let bytes = mixed(&seed.to_string());
        for algorithm in OURS {
            let mut cutter = cutter(algorithm, algorithm.sizes(512));
            let whole = cuts(&mut *cutter, &bytes, bytes.len());
            let lens = lens.iter().copied().chain([bytes.len()]);
            prop_assert_eq!(cuts_of_pieces(&mut *cutter, &bytes, lens), whole, "{:?}", algorithm);
        }
    }
}

fn lens(cuts: &[usize]) -> Vec<usize> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    starts.zip(cuts).map(|(start, end)| end - start).collect()
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "means")]
fn chunks_of_noise_keep_minimum_and_maximum_and_are_as_long_on_average_as_documented() {
    let bytes = noise("average", 32 << 20);
    // Mean length by the requested average, as in docs/traces.md.
    for (algorithm, expected) in [
        (Algorithm::Rabin, [1.125, 1.125]),
        (Algorithm::FastCdc, [1.22, 1.22]),
        (Algorithm::Ae, [1.04, 1.04]),
        (Algorithm::Ram, [1.0, 1.0]),
        (Algorithm::Tttd, [1.0, 1.0]),
        (Algorithm::SeqCdc, [1.1, 0.95]),
        (Algorithm::DestorRabin, [1.125, 1.125]),
    ] {
        for (average, expected) in [2048, 4096].into_iter().zip(expected) {
            let sizes = algorithm.sizes(average);
            let cuts = cuts(&mut *cutter(algorithm, sizes), &bytes, 1 << 20);
            let lens = lens(&cuts);
            let (last, others) = lens.split_last().unwrap();
            assert!(others.iter().all(|len| (sizes.min as usize..=sizes.max as usize).contains(len)));
            assert!(*last <= sizes.max as usize);
            let mean = bytes.len() as f64 / lens.len() as f64 / f64::from(average);
            assert!((mean - expected).abs() < 0.05, "{algorithm:?} of {average}: {mean:.3} times that");
        }
    }
}

#[test]
fn what_is_put_in_at_the_front_changes_few_chunks() {
    let bytes = noise("front", 2 << 20);
    for algorithm in OURS {
        let mut cutter = cutter(algorithm, algorithm.sizes(2048));
        let before = cuts(&mut *cutter, &bytes, bytes.len());
        for count in [1, 2, 47, 1000, 5000] {
            let moved = [noise("put in", count), bytes.clone()].concat();
            let after: HashSet<usize> = cuts(&mut *cutter, &moved, moved.len()).into_iter().collect();
            let lost = before.iter().filter(|cut| !after.contains(&(*cut + count))).count();
            assert!(lost <= 20, "{algorithm:?}: {lost} of {} cuts are others behind {count} bytes more", before.len());
        }
    }
}

#[test]
fn runs_of_zeros_are_cut_at_the_maximum_or_at_the_minimum() {
    for average in [512, 8192, 1 << 20] {
        for algorithm in OURS {
            let sizes = algorithm.sizes(average);
            let expected = match algorithm {
                Algorithm::Ae | Algorithm::Ram => sizes.min as usize,
                _ => sizes.max as usize,
            };
            let zeros = vec![0; 3 * expected + expected / 2];
            let lens = lens(&cuts(&mut *cutter(algorithm, sizes), &zeros, 1 << 20));
            assert_eq!(lens, [expected, expected, expected, expected / 2], "{algorithm:?} {average}");
        }
    }
}

#[test]
fn cuts_are_the_same_in_every_version_of_the_program() {
    // Number of cuts, and the first bytes of the BLAKE3 of all of them in decimal, separated by spaces.
    let expected = [
        "68 9035920df7aed3cb",
        "72 78dd070a652ef4da",
        "139 10aa7bc87b0e5ae2",
        "147 eb69c1cd28130ba8",
        "118 3f250b3c3a52753c",
        "114 bd9cb7cffe8fe66c",
        "69 88df69b00dfe1dc6",
    ];
    let bytes = mixed("vectors");
    let found = OURS.map(|algorithm| {
        let cuts = cuts(&mut *cutter(algorithm, algorithm.sizes(1024)), &bytes, 1000);
        let text = cuts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!("{} {}", cuts.len(), blake3::hash(text.as_bytes()).to_hex().get(..16).unwrap())
    });
    assert_eq!(found, expected);
}

#[test]
fn cuts_are_those_of_the_programs_of_the_papers() {
    // Number and checksum of the cuts of the same bytes by `rabin_chunk_data` of destor, commit c4a8f79, and by `Seq_Chunking`
    // of DedupBench, commit 3e3a383, in its increasing mode.
    for (algorithm, average, expected) in [
        (Algorithm::DestorRabin, 1024, (3607, 0x8b0e_3a8e_0014_d456)),
        (Algorithm::DestorRabin, 8192, (447, 0x15ef_e193_4492_2831)),
        (Algorithm::SeqCdc, 1024, (3091, 0xf968_d8e1_75aa_199a)),
        (Algorithm::SeqCdc, 8192, (591, 0xde82_c80d_7527_6a26)),
    ] {
        let bytes = noise("authors", 4 << 20);
        let cuts = cuts(&mut *cutter(algorithm, algorithm.sizes(average)), &bytes, 1 << 20);
        let checksum = cuts.iter().fold(0_u64, |sum, cut| sum.wrapping_mul(31).wrapping_add(*cut as u64));
        assert_eq!((cuts.len(), checksum), expected, "{algorithm:?} {average}");
    }
}

#[test]
fn a_recording_has_the_chunks_of_the_cutter_wherever_blocks_end() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = [noise("recording", 3 << 20), mixed("recording")].concat();
    let path = directory.path().join("file");
    std::fs::write(&path, &bytes).unwrap();
    for (algorithm, sizes) in OURS.map(|algorithm| (algorithm, algorithm.sizes(4096))).into_iter().chain([
        // Nearly all cuts are known only at the maximum, and lie far before it.
        (Algorithm::Tttd, Sizes { min: 64, average: 1 << 20, max: 1 << 20 }),
    ]) {
        let mut chunker = Chunker::new(algorithm, sizes).unwrap();
        if sizes.average == 1 << 20 {
            chunker.set("backup-divisor=50000").unwrap();
        }
        let trace = directory.path().join(format!("{algorithm:?} {}.trace", sizes.average));
        let rule = Rule::Open(chunker, Hash::Blake3);
        let work = (&Driver::inline(1), Budget::of(64 << 20, 1), None);
        record_paths(&trace, "", std::slice::from_ref(&path), &Arc::new(Excludes::default()), &rule, work, &Silent)
            .unwrap();
        let (_, mut events) = file::open(&trace).unwrap();
        let mut found = Vec::new();
        while let Some(event) = events.next_event().unwrap() {
            if let Event::Chunk(TraceChunk { hash, .. }) = event {
                found.push(hash);
            }
        }
        let mut cutter = algorithm.cutter_with(sizes, chunker.parameters).unwrap();
        let mut start = 0;
        let expected = cuts(&mut *cutter, &bytes, bytes.len()).into_iter().map(|end| {
            let chunk = &bytes[std::mem::replace(&mut start, end)..end];
            *blake3::hash(chunk).as_bytes().first_chunk::<HASH_LEN>().unwrap()
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{algorithm:?} {sizes:?}");
    }
}

#[test]
fn sizes_that_an_algorithm_cannot_have_are_refused() {
    let sizes = |min, average, max| Sizes { min, average, max };
    for algorithm in [Algorithm::Gear, Algorithm::Fixed].into_iter().chain(OURS) {
        for average in [512, 4096, 1 << 20] {
            Chunker::new(algorithm, algorithm.sizes(average)).unwrap();
        }
    }
    for (algorithm, sizes) in [
        (Algorithm::Rabin, sizes(512, 4097, 16_384)),
        (Algorithm::Rabin, sizes(32, 4096, 16_384)),
        (Algorithm::Rabin, sizes(4098, 4096, 16_384)),
        (Algorithm::Rabin, sizes(512, 4096, 2048)),
        (Algorithm::Rabin, sizes(512, 4096, (8 << 20) + 1)),
        (Algorithm::Rabin, sizes(512, 2 << 20, 8 << 20)),
        (Algorithm::FastCdc, sizes(1025, 4096, 8192)),
        (Algorithm::FastCdc, sizes(1024, 4096, 8191)),
        (Algorithm::DestorRabin, sizes(512, 4097, 16_384)),
        (Algorithm::DestorRabin, sizes(32, 4096, 16_384)),
        (Algorithm::Tttd, sizes(4000, 4096, 16_384)),
        (Algorithm::Tttd, sizes(460, 1000, 999)),
        (Algorithm::SeqCdc, sizes(63, 4096, 16_384)),
        (Algorithm::SeqCdc, sizes(64, 4096, 4095)),
        (Algorithm::Ae, sizes(1, 4096, 8192)),
        (Algorithm::Ram, sizes(1, 4096, 8192)),
        (Algorithm::Gear, sizes(4000, 4096, 8192)),
        (Algorithm::Fixed, sizes(64, 128, 128)),
        (Algorithm::Fixed, sizes(32, 32, 32)),
    ] {
        let refused = Chunker::new(algorithm, sizes).unwrap_err().to_string();
        assert!(refused.contains(algorithm.name()), "{refused}");
    }
    assert_eq!(
        Chunker::new(Algorithm::Rabin, Algorithm::Rabin.sizes(4096)).unwrap().to_string(),
        "rabin, 4096 bytes on average, 512 to 32768"
    );
}
