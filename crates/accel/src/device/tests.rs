use std::collections::HashMap;
use std::process::Command;

use sha1::Digest;

use super::host::{BEFORE_BYTES, Batch, Grid, LOADS, Planes, TILE, kernels};
use crate::boundary::{Finder, Kernel, WINDOW};
use crate::random::Random;

/// Launches of one CTA, of several, and of more than there is work for; the last CTA first.
const GRIDS: [Grid; 3] =
    [Grid { ctas: 1, backwards: false }, Grid { ctas: 3, backwards: true }, Grid { ctas: 40, backwards: false }];

fn candidates(finder: &Finder, bytes: &[u8], halo: usize) -> Vec<u32> {
    let mut out = Vec::new();
    finder.candidates(bytes, halo, &mut out);
    out
}

/// Candidates that the kernel finds. The positions are those of `Finder::candidates` with the same halo; a tile with more
/// candidates than slots is searched by the specification, as are the first positions of a stream without a halo.
/// Returns the number of such tiles, too.
fn searched(
    grid: Grid,
    table: &[u32; 256],
    threshold: u32,
    slots: u32,
    bytes: &[u8],
    halo: usize,
) -> (Vec<u32>, usize) {
    let mut before = [0; BEFORE_BYTES];
    let warm = halo.min(BEFORE_BYTES);
    before[BEFORE_BYTES - warm..].copy_from_slice(&bytes[halo - warm..halo]);
    let body = &bytes[halo..];
    let found = grid.gear(&Batch::new(before, body), table, threshold, slots);
    let finder = Finder::with_kernel(table, threshold, Kernel::Serial);
    // The window of these begins before the stream.
    let own = (WINDOW - 1).saturating_sub(halo).min(body.len());
    let mut all = candidates(&finder, &bytes[..halo + own], halo);
    let mut full = 0;
    for (tile, count) in found.counts.iter().enumerate() {
        let start = tile * TILE;
        let offset = |at: usize| u32::try_from(start + at + 1).unwrap();
        let listed: Vec<u32> = if slots < *count {
            full += 1;
            let from = (halo + start).saturating_sub(WINDOW);
            let until = (halo + start + TILE).min(bytes.len());
            let relative = candidates(&finder, &bytes[from..until], halo + start - from);
            assert!(WINDOW <= halo + start - from || start == 0);
            relative.into_iter().map(|at| offset(at as usize - 1)).collect()
        } else {
            let slots = &found.slots[tile * slots as usize..][..*count as usize];
            slots.iter().map(|at| offset(usize::from(*at))).collect()
        };
        all.extend(listed.into_iter().filter(|at| own < *at as usize));
    }
    (all, full)
}

/// Counts of compared inputs, printed at the end of the tests.
#[derive(Default, Debug)]
struct Compared {
    inputs: usize,
    bytes: usize,
    results: usize,
    full_tiles: usize,
}

impl Compared {
    #[expect(clippy::print_stderr, reason = "the counts are for people")]
    fn print(&self, what: &str) {
        eprintln!("compared: {what}: {self:?}");
        assert!(0 < self.inputs && 0 < self.results);
    }

    fn search(&mut self, table: &[u32; 256], threshold: u32, slots: u32, bytes: &[u8], halo: usize) {
        let finder = Finder::with_kernel(table, threshold, Kernel::Serial);
        let expected = candidates(&finder, bytes, halo);
        let grid = GRIDS[self.inputs % GRIDS.len()];
        let (found, full) = searched(grid, table, threshold, slots, bytes, halo);
        let len = bytes.len();
        assert!(found == expected, "{grid:?}: {len} bytes, halo {halo}, threshold {threshold}, {slots} slots");
        self.inputs += 1;
        self.bytes += bytes.len() - halo;
        self.results += expected.len();
        self.full_tiles += full;
    }
}

#[test]
fn candidates_equal_the_specification_on_every_length_and_halo() {
    let mut random = Random::new(11);
    let (table, bytes) = (random.table(), random.bytes(3 * TILE));
    let mut compared = Compared::default();
    for len in (0..300).chain(TILE - 70..TILE + 70).chain(2 * TILE - 3..2 * TILE + 3) {
        compared.search(&table, u32::MAX / 37, 1024, &bytes[..len + 31], 31);
    }
    for halo in 0..=70 {
        compared.search(&table, u32::MAX / 8, 1024, &bytes[..halo + 500], halo);
    }
    compared.print("candidates by length and halo");
}

#[test]
fn candidates_equal_the_specification_on_noise_zeros_and_patterns_from_none_to_all() {
    let mut random = Random::from_environment();
    let mut compared = Compared::default();
    for _ in 0..24 {
        let table = random.table();
        let mut bytes = Vec::new();
        for _ in 0..=random.below(4) {
            let len = random.below(60_000);
            match random.below(4) {
                0 => bytes.resize(bytes.len() + len, 0),
                1 => bytes.resize(bytes.len() + len, random.byte()),
                2 => {
                    let pattern_len = 1 + random.below(80);
                    let pattern = random.bytes(pattern_len);
                    bytes.extend(pattern.iter().cycle().take(len));
                }
                _ => bytes.extend(random.bytes(len)),
            }
        }
        // Slots as the host has them: 16 and four times the mean.
        for threshold in [0, 1, u32::MAX / 4096, u32::MAX / 256, 1 << 31, random.word(), u32::MAX] {
            let slots = 16 + u32::try_from((4 * TILE as u64 * u64::from(threshold)) >> 32).unwrap();
            let slots = slots.min(1024);
            compared.search(&table, threshold, slots, &bytes, 0);
            let halo = random.below(40).min(bytes.len());
            compared.search(&table, threshold, slots, &bytes, halo);
        }
    }
    assert!(0 < compared.full_tiles, "some tiles have more candidates than slots");
    compared.print("candidates of random streams");
}

/// Chunks of every length up to two leaves at every alignment, and longer ones around the ends of leaves.
fn chunks(random: &mut Random, len: usize) -> Vec<(usize, usize)> {
    let mut chunks: Vec<_> = (0..=2100).flat_map(|len| (0..4).map(move |at| (16 * (len % 61) + at, len))).collect();
    chunks.extend((0..16).flat_map(|at| [1000, 1024, 1500].map(|len| (at, len))));
    let ends = (2..=130).flat_map(|leaves| [leaves * 1024 - 1, leaves * 1024, leaves * 1024 + 1]);
    chunks.extend(ends.map(|len| (len % 16, len)));
    for _ in 0..60 {
        let longest = 1 + random.below(len - 1);
        let len_of_chunk = random.below(longest);
        chunks.push((random.below(len - len_of_chunk), len_of_chunk));
    }
    chunks.push((5, len - 5));
    chunks
}

/// A batch of noise and zeros, its bytes, and its chunks.
fn batch(seed: u64) -> (Batch, Vec<u8>, Vec<(usize, usize)>) {
    let mut random = Random::new(seed);
    let mut bytes = random.bytes(300_001);
    bytes[200_000..250_000].fill(0);
    let chunks = chunks(&mut random, bytes.len());
    (Batch::new([0xC3; BEFORE_BYTES], &bytes), bytes, chunks)
}

fn compare<T: PartialEq + AsRef<[u8]>>(
    compared: &mut Compared,
    bytes: &[u8],
    chunks: &[(usize, usize)],
    found: &[T],
    expected: impl Fn(&[u8]) -> Vec<u8>,
) {
    assert_eq!(found.len(), chunks.len());
    for ((start, len), found) in chunks.iter().zip(found) {
        let chunk = &bytes[*start..][..*len];
        assert!(found.as_ref() == expected(chunk), "{len} bytes at {start}");
        compared.bytes += len;
    }
    compared.inputs += 1;
    compared.results += found.len();
}

#[test]
fn names_by_blake3_equal_the_crate_on_every_length_and_alignment_by_each_way_of_loading() {
    let mut compared = Compared::default();
    for (seed, load) in (21..).zip(LOADS) {
        let (batch, bytes, chunks) = batch(seed);
        let key = std::array::from_fn(|i| u8::try_from(i).unwrap() ^ 0x5A);
        let found = GRIDS[compared.inputs % GRIDS.len()].blake3(load, &batch, &key, &chunks);
        compare(&mut compared, &bytes, &chunks, &found, |chunk| blake3::keyed_hash(&key, chunk).as_bytes().to_vec());
    }
    compared.print("keyed BLAKE3");
}

#[test]
fn results_do_not_depend_on_the_grid_nor_on_the_other_chunks() {
    let (batch, bytes, chunks) = batch(31);
    let chunks: Vec<_> = chunks.into_iter().step_by(37).collect();
    let mut compared = Compared::default();
    for load in LOADS {
        for grid in GRIDS {
            for count in [1, 31, 32, 33, 128, chunks.len()] {
                let some = &chunks[chunks.len() - count..];
                let found = grid.blake3(load, &batch, &[9; 32], some);
                compare(&mut compared, &bytes, some, &found, |chunk| {
                    blake3::keyed_hash(&[9; 32], chunk).as_bytes().to_vec()
                });
            }
        }
    }
    compared.print("keyed BLAKE3 by grid and number of chunks");
}

#[test]
fn names_by_sha1_and_sha256_equal_the_crates_on_every_length_and_alignment() {
    let (batch, bytes, chunks) = batch(41);
    let mut compared = Compared::default();
    let found = GRIDS[1].sha1(&batch, &chunks);
    compare(&mut compared, &bytes, &chunks, &found, |chunk| sha1::Sha1::digest(chunk).to_vec());
    let found = GRIDS[1].sha256(&batch, &chunks);
    compare(&mut compared, &bytes, &chunks, &found, |chunk| sha2::Sha256::digest(chunk).to_vec());
    compared.print("SHA-1 and SHA-256");
}

/// Names of which a part occurred before. `values` is the number of values of a word: few make equal keys with different ends.
fn names(random: &mut Random, count: usize, values: usize, repeated: usize) -> Vec<[u32; 4]> {
    let mut names: Vec<[u32; 4]> = Vec::new();
    for j in 0..count {
        let name = if j != 0 && random.below(100) < repeated {
            names[random.below(j)]
        } else {
            std::array::from_fn(
                |_| if values == 0 { random.word() } else { u32::try_from(random.below(values)).unwrap() },
            )
        };
        names.push(name);
    }
    names
}

/// The first position of each name in a list.
fn positions(names: &[[u32; 4]]) -> HashMap<[u32; 4], u32> {
    let mut first = HashMap::new();
    for (position, name) in (0..).zip(names) {
        first.entry(*name).or_insert(position);
    }
    first
}

#[test]
fn both_ways_find_the_first_position_of_each_name_as_a_map_does() {
    let mut random = Random::new(51);
    let mut compared = Compared::default();
    for (count, values, repeated) in [
        (1, 0, 0),
        (2, 1, 0),
        (255, 0, 50),
        (256, 0, 50),
        (257, 0, 5),
        (1000, 3, 0),
        (4097, 0, 30),
        (5000, 9, 20),
        (2600, 1, 0),
    ] {
        let names = names(&mut random, count, values, repeated);
        let first = positions(&names);
        let expected: Vec<_> = names.iter().map(|name| first[name]).collect();
        let planes = Planes::new(&names);
        for grid in GRIDS {
            assert!(grid.backward(&planes) == expected, "{grid:?}: all pairs of {count} names");
            assert!(grid.join(&planes, &planes) == expected, "{grid:?}: sorted, {count} names");
            compared.inputs += 1;
            compared.results += 2 * count;
        }
    }
    compared.print("first positions");
}

#[test]
fn a_join_finds_known_names_and_no_others() {
    let mut random = Random::new(61);
    let known = names(&mut random, 6000, 0, 10);
    let mut asked = names(&mut random, 3000, 0, 10);
    for name in &mut asked {
        match random.below(3) {
            0 => *name = known[random.below(known.len())],
            // An equal key with another end.
            1 => {
                *name = known[random.below(known.len())];
                name[2 + random.below(2)] ^= 1 << random.below(32);
            }
            _ => {}
        }
    }
    let first = positions(&known);
    let expected: Vec<_> = asked.iter().map(|name| first.get(name).copied().unwrap_or(u32::MAX)).collect();
    let mut compared = Compared::default();
    for grid in GRIDS {
        assert!(grid.join(&Planes::new(&asked), &Planes::new(&known)) == expected, "{grid:?}");
        compared.inputs += 1;
        compared.results += asked.len();
    }
    let hits = expected.iter().filter(|position| **position != u32::MAX).count();
    assert!(900 < hits && hits < 1200, "{hits}");
    compared.print("joins");
}

#[test]
fn a_sort_is_stable_and_equals_that_of_the_library() {
    let mut random = Random::new(71);
    let mut compared = Compared::default();
    for (count, values) in [(0, 0), (1, 0), (16, 0), (4095, 0), (4096, 2), (4097, 40), (20_000, 0)] {
        let names = names(&mut random, count, values, 10);
        let key = |name: &[u32; 4]| u64::from(name[0]) << 32 | u64::from(name[1]);
        let mut expected: Vec<_> = (0u32..).zip(&names).map(|(position, name)| (key(name), position)).collect();
        expected.sort_unstable();
        for grid in GRIDS {
            assert!(grid.sort(&Planes::new(&names)).entries() == expected, "{grid:?}: {count} names");
            compared.inputs += 1;
            compared.results += count;
        }
    }
    compared.print("sorts");
}

/// Names of the kernels that a source defines.
fn defined(source: &str) -> impl Iterator<Item = String> {
    let after = source.split("KERNEL BOUNDS(").skip(1).filter_map(|rest| rest.split_once(')'));
    after.map(|(_, rest)| rest.trim_start().split('(').next().unwrap().to_owned())
}

#[test]
fn every_kernel_of_the_sources_can_be_launched_here() {
    let sources = [
        include_str!("../../kernels/gear.h"),
        include_str!("../../kernels/blake3.h"),
        include_str!("../../kernels/sha.h"),
        include_str!("../../kernels/references.h"),
        include_str!("../../kernels/stamp.h"),
    ];
    let mut defined: Vec<_> = sources.into_iter().flat_map(defined).collect();
    let mut known = kernels();
    defined.sort();
    known.sort();
    assert_eq!(defined, known);
    assert_eq!(known.len(), 16);
}

/// A sanitizer's exit code for what it found.
const RACE: i32 = 66;
const BAD_ACCESS: i32 = 67;

/// Runs a program with sanitizers. Returns its exit code and all of its output.
fn run(program: &str, arguments: &[&str]) -> (i32, String) {
    // ThreadSanitizer refuses the addresses that some kernels choose at random.
    let mut command = Command::new("setarch");
    command.args(["-R", program]).args(arguments);
    command.env("TSAN_OPTIONS", format!("halt_on_error=1 exitcode={RACE}"));
    command.env("ASAN_OPTIONS", format!("detect_leaks=0 exitcode={BAD_ACCESS}"));
    let output = command.output().expect("setarch of util-linux starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn threads_race_exactly_if_a_barrier_is_left_out() {
    let program = env!("ONEFOLD_RACES");
    let (code, text) = run(program, &[]);
    assert_eq!(code, 0, "{text}");
    let barriers = text.lines().find_map(|line| line.strip_prefix("barriers: ")).unwrap();
    let barriers: u32 = barriers.parse().unwrap();
    assert!(10 < barriers);
    for barrier in 0..barriers {
        let (code, text) = run(program, &["--without", &barrier.to_string()]);
        assert!(code == RACE && text.contains("ThreadSanitizer: "), "barrier {barrier} of {barriers}: {code}\n{text}");
    }
    let compared = Compared { inputs: 1 + barriers as usize, results: barriers as usize, ..Compared::default() };
    compared.print("runs of ThreadSanitizer, barriers left out");
}

#[test]
fn kernels_read_at_most_the_bytes_that_surround_a_batch() {
    let program = env!("ONEFOLD_BOUNDS");
    let (code, text) = run(program, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("compared: 14 chunks"), "{text}");
    let (code, text) = run(program, &["--behind", "0"]);
    assert!(code == BAD_ACCESS && text.contains("heap-buffer-overflow"), "{code}\n{text}");
}
