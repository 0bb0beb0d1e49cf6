//! Chunk boundaries and fingerprints by each kernel that the program has, chosen by name.
//!
//! These kernels ask the processor for its features themselves, so no variable of the environment takes one away. A job names its
//! kernel instead. The `blake3` crate chooses its code once for a process, too; its module `platform`, which exists for benchmarks,
//! has each of them, and `keyed_hash` builds the tree of a chunk on it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blake3::IncrementCounter;
use blake3::platform::Platform;
use onefold_accel::boundary::{self, Finder};
use onefold_accel::fingerprint;
use serde::{Deserialize, Serialize};

use crate::coprocessor::kernel::{KernelDone, MILLIS_MAX, noise};
use crate::processor::{processor_time, processor_time_since};

/// Bytes that are searched or named again and again: more than a core's own caches.
const NOISE_BYTES: usize = 4 << 20;
/// Bytes of a call, as a block of a backup.
const BLOCK_BYTES: usize = 512 << 10;
/// Smallest and largest average of chunks. A chunk is four times as long at most, so a group always has many.
const AVERAGE_BYTES: std::ops::RangeInclusive<usize> = 512..=32 << 10;
/// Key of all hashes here; it is no secret.
const KEY: [u8; 32] = [7; 32];

const LEAF_BYTES: usize = 1024;
const COMPRESSED_BYTES: usize = 64;
const RESULT_BYTES: usize = 32;
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

/// A computation that reads every byte of a source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Computation {
    /// Candidates for the ends of chunks, by a Gear hash.
    Gear,
    /// Fingerprints: keyed BLAKE3 of chunks.
    Blake3,
}

/// A kernel of a computation, by the vector instructions that it uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Instructions {
    /// AVX-512, lanes filled from many chunks.
    #[serde(rename = "avx-512, many chunks")]
    ManyAvx512,
    /// AVX2, lanes filled from many chunks.
    #[serde(rename = "avx2, many chunks")]
    ManyAvx2,
    /// AVX-512.
    #[serde(rename = "avx-512")]
    Avx512,
    /// AVX2.
    #[serde(rename = "avx2")]
    Avx2,
    /// SSE4.1.
    #[serde(rename = "sse4.1")]
    Sse41,
    /// SSE2.
    #[serde(rename = "sse2")]
    Sse2,
    /// NEON.
    #[serde(rename = "neon")]
    Neon,
    /// No vectors; several strips of the input in turn.
    #[serde(rename = "portable, four strips")]
    Strips,
    /// No vectors.
    #[serde(rename = "portable")]
    Portable,
}

impl Instructions {
    /// All, the widest first.
    pub const ALL: [Self; 9] = [
        Self::ManyAvx512,
        Self::ManyAvx2,
        Self::Avx512,
        Self::Avx2,
        Self::Sse41,
        Self::Sse2,
        Self::Neon,
        Self::Strips,
        Self::Portable,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ManyAvx512 => "avx-512, many chunks",
            Self::ManyAvx2 => "avx2, many chunks",
            Self::Avx512 => "avx-512",
            Self::Avx2 => "avx2",
            Self::Sse41 => "sse4.1",
            Self::Sse2 => "sse2",
            Self::Neon => "neon",
            Self::Strips => "portable, four strips",
            Self::Portable => "portable",
        }
    }
}

impl Computation {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gear => "gear",
            Self::Blake3 => "blake3",
        }
    }

    /// Returns its kernels, the widest first, also those that this processor cannot run.
    pub fn kernels(self) -> impl Iterator<Item = Instructions> {
        Instructions::ALL.into_iter().filter(move |instructions| match self {
            Self::Gear => matches!(
                instructions,
                Instructions::Avx512 | Instructions::Avx2 | Instructions::Strips | Instructions::Portable
            ),
            Self::Blake3 => *instructions != Instructions::Strips,
        })
    }

    /// Returns true if this processor, and the program as it was built, have a kernel.
    pub fn has(self, instructions: Instructions) -> bool {
        match self {
            Self::Gear => boundary_kernel(instructions).is_some_and(boundary::Kernel::is_available),
            Self::Blake3 => Hashing::of(instructions).is_some(),
        }
    }
}

fn boundary_kernel(instructions: Instructions) -> Option<boundary::Kernel> {
    match instructions {
        Instructions::Avx512 => Some(boundary::Kernel::Avx512),
        Instructions::Avx2 => Some(boundary::Kernel::Avx2),
        Instructions::Strips => Some(boundary::Kernel::Interleaved),
        Instructions::Portable => Some(boundary::Kernel::Serial),
        _ => None,
    }
}

/// A way to compute keyed BLAKE3 of chunks.
#[derive(Clone, Copy, Debug)]
enum Hashing {
    /// The program's own, of a group.
    Group(fingerprint::Kernel),
    /// The crate's, of one chunk at a time.
    Single(Platform),
}

impl Hashing {
    /// Returns none if this processor or build has no such kernel.
    fn of(instructions: Instructions) -> Option<Self> {
        let group = |kernel: fingerprint::Kernel| kernel.is_available().then_some(Self::Group(kernel));
        match instructions {
            Instructions::ManyAvx512 => group(fingerprint::Kernel::Avx512),
            Instructions::ManyAvx2 => group(fingerprint::Kernel::Avx2),
            Instructions::Portable => Some(Self::Single(Platform::portable())),
            Instructions::Strips => None,
            _ => platform(instructions).map(Self::Single),
        }
    }

    fn name(self, chunks: &[&[u8]], out: &mut Vec<[u8; RESULT_BYTES]>) {
        match self {
            Self::Group(kernel) => fingerprint::keyed_hashes_with(kernel, &KEY, chunks, out),
            Self::Single(platform) => {
                let mut levels = Levels::default();
                out.extend(chunks.iter().map(|chunk| keyed_hash(platform, &KEY, chunk, &mut levels)));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn platform(instructions: Instructions) -> Option<Platform> {
    match instructions {
        Instructions::Avx512 => Platform::avx512(),
        Instructions::Avx2 => Platform::avx2(),
        Instructions::Sse41 => Platform::sse41(),
        Instructions::Sse2 => Platform::sse2(),
        _ => None,
    }
}

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
fn platform(instructions: Instructions) -> Option<Platform> {
    // The crate has NEON on every processor of this architecture.
    (instructions == Instructions::Neon).then(Platform::detect)
}

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
fn platform(_: Instructions) -> Option<Platform> {
    None
}

/// Results of two levels of a tree, kept from chunk to chunk.
#[derive(Default, Debug)]
struct Levels([Vec<u8>; 2]);

/// Returns the keyed BLAKE3 of a chunk by the code of a platform (sections 2.4 to 2.6 and 5.1 of the BLAKE3 paper).
fn keyed_hash(platform: Platform, key: &[u8; 32], chunk: &[u8], levels: &mut Levels) -> [u8; RESULT_BYTES] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    if chunk.len() <= LEAF_BYTES {
        return leaf(platform, words, chunk, 0, ROOT);
    }
    let Levels([lower, upper]) = levels;
    let (leaves, rest) = chunk.as_chunks::<LEAF_BYTES>();
    let inputs: Vec<_> = leaves.iter().collect();
    lower.clear();
    lower.resize(inputs.len() * RESULT_BYTES, 0);
    platform.hash_many(&inputs, &words, 0, IncrementCounter::Yes, KEYED_HASH, CHUNK_START, CHUNK_END, lower);
    if !rest.is_empty() {
        lower.extend(leaf(platform, words, rest, inputs.len() as u64, 0));
    }
    // Pairs level by level, the odd one going up unchanged, make the tree of the specification.
    while 2 * RESULT_BYTES < lower.len() {
        let (pairs, odd) = lower.as_chunks::<COMPRESSED_BYTES>();
        let inputs: Vec<_> = pairs.iter().collect();
        upper.clear();
        upper.resize(inputs.len() * RESULT_BYTES, 0);
        platform.hash_many(&inputs, &words, 0, IncrementCounter::No, KEYED_HASH | PARENT, 0, 0, upper);
        upper.extend_from_slice(odd);
        std::mem::swap(lower, upper);
    }
    let (pairs, _) = lower.as_chunks::<COMPRESSED_BYTES>();
    let root = pairs.first().expect("a chunk of more than a leaf has a pair at the root");
    platform.compress_in_place(&mut words, root, 64, 0, KEYED_HASH | PARENT | ROOT);
    bytes_of(words)
}

/// Returns the result of a leaf of at most 1 KiB.
fn leaf(platform: Platform, mut words: [u32; 8], bytes: &[u8], counter: u64, root: u8) -> [u8; RESULT_BYTES] {
    let count = bytes.len().div_ceil(COMPRESSED_BYTES).max(1);
    for number in 0..count {
        let start = number * COMPRESSED_BYTES;
        let part = &bytes[start..bytes.len().min(start + COMPRESSED_BYTES)];
        let mut block = [0; COMPRESSED_BYTES];
        block[..part.len()].copy_from_slice(part);
        let first = if number == 0 { CHUNK_START } else { 0 };
        let last = if number + 1 == count { CHUNK_END | root } else { 0 };
        let len = u8::try_from(part.len()).expect("a block has 64 bytes at most");
        platform.compress_in_place(&mut words, &block, len, counter, KEYED_HASH | first | last);
    }
    bytes_of(words)
}

fn bytes_of(words: [u32; 8]) -> [u8; RESULT_BYTES] {
    let mut bytes = [0; RESULT_BYTES];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

/// A measurement to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VectorJob {
    /// The computation.
    pub computation: Computation,
    /// Its kernel.
    pub instructions: Instructions,
    /// Average of chunks in bytes.
    pub average: usize,
    /// Milliseconds that it takes.
    pub millis: u64,
}

/// Input of a measurement: noise, its cuts, and the table of the hash that finds them.
struct Input {
    noise: Vec<u8>,
    table: [u32; 256],
    threshold: u32,
}

impl Input {
    fn new(average: usize) -> Result<Self> {
        let mut noise = noise(NOISE_BYTES + 1024);
        let words = noise.split_off(NOISE_BYTES);
        let mut table = [0; 256];
        for (word, bytes) in table.iter_mut().zip(words.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        // Candidates come twice as often as the shortest chunk is long, so that chunks have the average.
        let distance = u32::try_from(average / 2).context("an average of chunks")?;
        Ok(Self { noise, table, threshold: u32::MAX / distance })
    }

    /// Returns the chunks of each block: at least half of the average, at most four times the average.
    fn chunks(&self, average: usize) -> Vec<Vec<&[u8]>> {
        let finder = Finder::with_kernel(&self.table, self.threshold, boundary::Kernel::Serial);
        let cut = |block| {
            let mut ends = Vec::new();
            finder.candidates(block, 0, &mut ends);
            let (mut chunks, mut rest, mut start) = (Vec::new(), block, 0);
            for end in ends.into_iter().map(|end| end as usize).chain([block.len()]) {
                while 4 * average < end - start {
                    let (chunk, left) = rest.split_at(4 * average);
                    (rest, start) = (left, start + chunk.len());
                    chunks.push(chunk);
                }
                if average / 2 <= end - start || end == block.len() && start < end {
                    let (chunk, left) = rest.split_at(end - start);
                    (rest, start) = (left, end);
                    chunks.push(chunk);
                }
            }
            chunks
        };
        self.noise.chunks(BLOCK_BYTES).map(cut).collect()
    }
}

/// Goes through all blocks again and again for some time. The first pass is hashed: `each` appends its results to the bytes that it is given.
fn measured(
    millis: u64,
    blocks: usize,
    block_bytes: impl Fn(usize) -> usize,
    mut each: impl FnMut(usize, Option<&mut Vec<u8>>),
) -> KernelDone {
    let (mut check, mut results) = (blake3::Hasher::new(), Vec::new());
    for number in 0..blocks {
        results.clear();
        each(number, Some(&mut results));
        check.update(&results);
    }
    let (start, started) = (Instant::now(), processor_time());
    let mut bytes = 0;
    for number in (0..blocks).cycle() {
        each(number, None);
        bytes += block_bytes(number) as u64;
        if Duration::from_millis(millis) <= start.elapsed() {
            break;
        }
    }
    let processor_seconds = processor_time_since(started).as_secs_f64();
    let check = check.finalize().to_hex()[..16].to_owned();
    KernelDone { bytes, seconds: start.elapsed().as_secs_f64(), processor_seconds, check }
}

impl VectorJob {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        let Self { average, millis, .. } = *self;
        let fits = AVERAGE_BYTES.contains(&average) && average.is_power_of_two();
        let (least, most) = (AVERAGE_BYTES.start(), AVERAGE_BYTES.end());
        ensure!(fits, "average: {least} to {most} bytes, a power of two, not {average}");
        ensure!((1..=MILLIS_MAX).contains(&millis), "milliseconds: 1 to {MILLIS_MAX}, not {millis}");
        Ok(())
    }

    /// Measures in this process. Fails if the processor has no such instructions.
    pub fn perform(&self) -> Result<KernelDone> {
        self.check()?;
        let missing = || format!("{}: {} is not on this processor", self.computation.name(), self.instructions.name());
        let input = Input::new(self.average)?;
        match self.computation {
            Computation::Gear => {
                let kernel = boundary_kernel(self.instructions).filter(|kernel| kernel.is_available());
                let finder = Finder::with_kernel(&input.table, input.threshold, kernel.with_context(missing)?);
                let blocks: Vec<_> = input.noise.chunks(BLOCK_BYTES).collect();
                let mut found = Vec::new();
                Ok(measured(
                    self.millis,
                    blocks.len(),
                    |number| blocks[number].len(),
                    |number, results| {
                        found.clear();
                        finder.candidates(blocks[number], 0, &mut found);
                        std::hint::black_box(&found);
                        if let Some(results) = results {
                            results.extend(found.iter().flat_map(|at| at.to_le_bytes()));
                        }
                    },
                ))
            }
            Computation::Blake3 => {
                let hashing = Hashing::of(self.instructions).with_context(missing)?;
                let blocks = input.chunks(self.average);
                let mut names = Vec::new();
                Ok(measured(
                    self.millis,
                    blocks.len(),
                    |_| BLOCK_BYTES,
                    |number, results| {
                        names.clear();
                        hashing.name(&blocks[number], &mut names);
                        std::hint::black_box(&names);
                        if let Some(results) = results {
                            results.extend(names.iter().flatten());
                        }
                    },
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTATIONS: [Computation; 2] = [Computation::Gear, Computation::Blake3];

    #[test]
    fn every_platform_names_chunks_of_every_length_as_the_crate_does() {
        let bytes = noise(140 << 10);
        let lengths = (0..=2100).chain([3071, 3072, 3073, 4096, 5000, 31 << 10, (33 << 10) + 1, 140 << 10]);
        let mut levels = Levels::default();
        let kernels: Vec<_> = Computation::Blake3.kernels().filter_map(Hashing::of).collect();
        assert!(!kernels.is_empty());
        for chunk in lengths.map(|len| &bytes[..len]) {
            let wanted = *blake3::keyed_hash(&KEY, chunk).as_bytes();
            for hashing in &kernels {
                if let Hashing::Single(platform) = *hashing {
                    assert_eq!(keyed_hash(platform, &KEY, chunk, &mut levels), wanted, "{platform:?}, {}", chunk.len());
                }
            }
        }
    }

    #[test]
    fn all_kernels_of_a_computation_give_the_same_results() {
        for computation in COMPUTATIONS {
            let mut checks = Vec::new();
            for instructions in computation.kernels() {
                let job = VectorJob { computation, instructions, average: 4096, millis: 1 };
                assert_eq!(serde_json::to_value(instructions).unwrap(), instructions.name());
                if computation.has(instructions) {
                    let done = job.perform().unwrap();
                    assert!(BLOCK_BYTES as u64 <= done.bytes && 0.0 < done.rate(), "{done:?}");
                    checks.push(done.check);
                } else {
                    let refused = job.perform().unwrap_err().to_string();
                    assert!(refused.ends_with("is not on this processor"), "{refused}");
                }
            }
            assert!(2 <= checks.len() && checks.iter().all(|check| *check == checks[0]), "{checks:?}");
            // Another input has another result: the check depends on what was computed.
            let other = VectorJob { computation, instructions: Instructions::Portable, average: 8192, millis: 1 };
            assert_ne!(other.perform().unwrap().check, checks[0]);
        }
        assert!(!Computation::Gear.has(Instructions::Sse2) && !Computation::Blake3.has(Instructions::Strips));
    }

    #[test]
    fn chunks_cover_each_block_within_their_limits() {
        let input = Input::new(2048).unwrap();
        for (chunks, block) in input.chunks(2048).iter().zip(input.noise.chunks(BLOCK_BYTES)) {
            assert_eq!(chunks.concat(), block);
            let (last, others) = chunks.split_last().unwrap();
            assert!(last.len() <= 8192 && others.iter().all(|chunk| (1024..=8192).contains(&chunk.len())));
            assert!((128..=512).contains(&chunks.len()), "{}", chunks.len());
        }
        let job = VectorJob {
            computation: Computation::Gear,
            instructions: Instructions::Portable,
            average: 4096,
            millis: 1,
        };
        for (average, millis, wanted) in [(100, 1, "average"), (3000, 1, "average"), (4096, 0, "1 to 60000")] {
            let refused = VectorJob { average, millis, ..job.clone() }.perform().unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
    }
}
