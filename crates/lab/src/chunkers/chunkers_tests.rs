//! Common properties of all chunkers, and a comparison of each with a plain specification.

use std::collections::HashSet;

use proptest::prelude::*;

use crate::chunkers::rabin::{MARK, POLYNOMIAL, WINDOW};
use crate::chunkers::*;

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

const OURS: [Algorithm; 4] = [Algorithm::Rabin, Algorithm::FastCdc, Algorithm::Ae, Algorithm::Ram];

fn cutter(algorithm: Algorithm, sizes: Sizes) -> Box<dyn StreamCutter> {
    Chunker::new(algorithm, sizes).unwrap();
    algorithm.cutter(sizes).unwrap()
}

/// Returns the length of the first chunk of a stream as the specification has it.
fn specified(algorithm: Algorithm, sizes: Sizes, bytes: &[u8]) -> usize {
    let [min, average, max] = [sizes.min, sizes.average, sizes.max].map(|size| size as usize);
    let end = bytes.len().min(max);
    let found = match algorithm {
        Algorithm::Rabin => (min..=end).find(|len| {
            let bits = bytes[len - WINDOW..*len].iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
            let remainder = bits.fold(0_u64, |value, bit| {
                let next = value << 1 | u64::from(bit);
                if next >> 63 == 0 { next } else { next ^ POLYNOMIAL }
            });
            remainder % average as u64 == MARK % average as u64
        }),
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
    for algorithm in [Algorithm::Rabin, Algorithm::FastCdc] {
        for (min, average, max) in [(64, 512, 600), (70, 1024, 8 << 20), (512, 512, 512), (1022, 1024, 1026)] {
            let (sizes, bytes) = (Sizes { min, average, max }, mixed("sizes"));
            let found = cuts(&mut *cutter(algorithm, sizes), &bytes, bytes.len());
            assert_eq!(found, specified_cuts(algorithm, sizes, &bytes), "{algorithm:?} {sizes:?}");
        }
    }
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
    for (algorithm, expected) in
        [(Algorithm::Rabin, 1.125), (Algorithm::FastCdc, 1.22), (Algorithm::Ae, 1.04), (Algorithm::Ram, 1.0)]
    {
        for average in [2048, 4096] {
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
                Algorithm::Rabin | Algorithm::FastCdc => sizes.max as usize,
                _ => sizes.min as usize,
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
    let expected = ["68 9035920df7aed3cb", "72 78dd070a652ef4da", "139 10aa7bc87b0e5ae2", "147 eb69c1cd28130ba8"];
    let bytes = mixed("vectors");
    let found = OURS.map(|algorithm| {
        let cuts = cuts(&mut *cutter(algorithm, algorithm.sizes(1024)), &bytes, 1000);
        let text = cuts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!("{} {}", cuts.len(), blake3::hash(text.as_bytes()).to_hex().get(..16).unwrap())
    });
    assert_eq!(found, expected);
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
