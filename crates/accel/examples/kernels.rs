//! Speed of every kernel that this processor has, on one core: `cargo run --release -p onefold-accel --example kernels`.
//!
//! Each kernel takes its turn in every round, so that what disturbs the machine disturbs all of them; the best and the
//! median round are printed. The input is 1 MiB of seeded noise, which stays in the second-level cache; for fingerprints
//! also 256 MiB, which come from memory. With `--features blake3/no_avx512` the `blake3` crate is limited to AVX2, to be
//! compared with the kernel for AVX2.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and prints")]

use std::time::Instant;

use onefold_accel::boundary::{self, Finder};
use onefold_accel::fingerprint;

const ROUNDS: usize = 200;
const INPUT_BYTES: usize = 1 << 20;
/// More than caches hold, in fewer rounds.
const MEMORY_BYTES: usize = 256 << 20;
const MEMORY_ROUNDS: usize = 20;

fn main() {
    let mut input = vec![0; INPUT_BYTES + 1024];
    blake3::Hasher::new().update(b"kernels").finalize_xof().fill(&mut input);
    let (input, words) = input.split_at(INPUT_BYTES);
    let mut table = [0; 256];
    for (word, bytes) in table.iter_mut().zip(words.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    println!("{:<34} {:<14} {:>10} {:>12}", "GB/s", "kernel", "best", "median");
    for (name, distance) in [("mean distance 1 KiB", 1 << 10), ("4 KiB", 4 << 10), ("64 bytes", 64)] {
        boundaries(&format!("boundaries, {name}"), input, &table, u32::MAX / distance);
    }
    for kib in [2, 4, 8, 16] {
        let chunks: Vec<_> = input.chunks(kib << 10).collect();
        fingerprints(&format!("fingerprints, chunks of {kib} KiB"), &chunks, ROUNDS);
        fingerprints(&format!("fingerprints, {kib} KiB on average"), &cut(input, &table, kib << 9), ROUNDS);
    }
    let input: Vec<u8> = input.iter().copied().cycle().take(MEMORY_BYTES).collect();
    fingerprints("the same from memory, 8 KiB", &cut(&input, &table, 4 << 10), MEMORY_ROUNDS);
}

/// Cuts where the engine would, for chunks of twice `half` on average.
fn cut<'a>(input: &'a [u8], table: &[u32; 256], half: usize) -> Vec<&'a [u8]> {
    let mut candidates = Vec::new();
    let threshold = u32::MAX / u32::try_from(half).expect("some KiB");
    Finder::new(table, threshold).candidates(input, 0, &mut candidates);
    let (mut chunks, mut start) = (Vec::new(), 0);
    for end in candidates.into_iter().map(|end| end as usize) {
        while start + 8 * half < end {
            chunks.push(&input[start..start + 8 * half]);
            start += 8 * half;
        }
        if start + half <= end {
            chunks.push(&input[start..end]);
            start = end;
        }
    }
    chunks
}

fn boundaries(name: &str, input: &[u8], table: &[u32; 256], threshold: u32) {
    let kernels = boundary::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let finders: Vec<_> = kernels.map(|kernel| (kernel, Finder::with_kernel(table, threshold, kernel))).collect();
    let mut out = Vec::with_capacity(input.len() / 32);
    let seconds = rounds(ROUNDS, finders.len(), |number| {
        out.clear();
        finders[number].1.candidates(input, 0, &mut out);
    });
    print(name, input.len(), finders.iter().map(|(kernel, _)| format!("{kernel:?}")), seconds);
}

fn fingerprints(name: &str, chunks: &[&[u8]], count: usize) {
    let kernels = fingerprint::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let kernels: Vec<_> = kernels.collect();
    let mut out = Vec::with_capacity(chunks.len());
    let seconds = rounds(count, kernels.len(), |number| {
        out.clear();
        fingerprint::keyed_hashes_with(kernels[number], &[7; 32], chunks, &mut out);
    });
    let len = chunks.iter().map(|chunk| chunk.len()).sum();
    print(name, len, kernels.iter().map(|kernel| format!("{kernel:?}")), seconds);
}

/// Returns the seconds of each of `count` rounds of each of so many kernels, shortest first.
fn rounds(count: usize, kernels: usize, mut run: impl FnMut(usize)) -> Vec<Vec<f64>> {
    let mut seconds = vec![Vec::with_capacity(count); kernels];
    for _ in 0..count {
        for (number, seconds) in seconds.iter_mut().enumerate() {
            let start = Instant::now();
            run(number);
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    for seconds in &mut seconds {
        seconds.sort_by(f64::total_cmp);
    }
    seconds
}

#[expect(clippy::cast_precision_loss, reason = "two decimals are printed")]
fn print(name: &str, len: usize, kernels: impl Iterator<Item = String>, seconds: Vec<Vec<f64>>) {
    let gigabytes = len as f64 / 1e9;
    for (kernel, seconds) in kernels.zip(seconds) {
        println!(
            "{name:<34} {kernel:<14} {:>10.2} {:>12.2}",
            gigabytes / seconds[0],
            gigabytes / seconds[seconds.len() / 2]
        );
    }
}
