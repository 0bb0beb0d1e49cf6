use super::{Kernel, keyed_hashes, keyed_hashes_with};
use crate::random::Random;

/// Compares every kernel with the crate.
fn check(key: &[u8; 32], chunks: &[&[u8]]) {
    let expected: Vec<_> = chunks.iter().map(|chunk| *blake3::keyed_hash(key, chunk).as_bytes()).collect();
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        let mut found = vec![[1; 32]];
        keyed_hashes_with(kernel, key, chunks, &mut found);
        assert_eq!(found.len(), 1 + chunks.len());
        assert_eq!(found[0], [1; 32], "what was there stays");
        for ((chunk, found), expected) in chunks.iter().zip(&found[1..]).zip(&expected) {
            assert!(found == expected, "{kernel:?}: chunk of {} bytes among {}", chunk.len(), chunks.len());
        }
    }
}

/// Every length up to two leaves, and up to 20 KiB those around the ends of blocks and leaves.
fn lengths() -> impl Iterator<Item = usize> {
    let is_near = |len: &usize| *len <= 2100 || matches!(len % 64, 0 | 1 | 63) || matches!(len % 1024, 2..=62);
    (0..=20 << 10).filter(is_near)
}

#[test]
fn kernels_agree_on_every_length_by_itself() {
    let mut random = Random::new(4);
    let bytes = random.bytes(20 << 10);
    for len in lengths() {
        check(&[3; 32], &[&bytes[..len]]);
    }
}

#[test]
fn kernels_agree_on_all_lengths_together() {
    let mut random = Random::new(5);
    let bytes = random.bytes(40 << 10);
    let chunks: Vec<_> = lengths().map(|len| &bytes[len % 67..][..len]).collect();
    check(&[4; 32], &chunks);
    let reversed: Vec<_> = chunks.into_iter().rev().collect();
    check(&[5; 32], &reversed);
}

#[test]
fn kernels_agree_on_equal_chunks_in_any_number() {
    let mut random = Random::new(6);
    let bytes = random.bytes(1 << 20);
    for len in [0, 1, 64, 1023, 1024, 1025, 2048, 3000, 4096, 5120, 8192, 16_384] {
        for count in 0..=35 {
            let chunks: Vec<_> = (0..count).map(|number| &bytes[number * len..(number + 1) * len]).collect();
            check(&[6; 32], &chunks);
        }
    }
}

#[test]
fn kernels_agree_on_long_chunks_among_short_ones() {
    let mut random = Random::new(7);
    let bytes = random.bytes(600_000);
    let at = 128 << 10;
    let chunks = [100, at - 1, 5000, at, at + 1, 0, 600_000, 3000].map(|len| &bytes[..len]);
    check(&[7; 32], &chunks);
}

#[test]
fn kernels_agree_on_random_batches() {
    let mut random = Random::from_environment();
    let bytes = random.bytes(300_000);
    for _ in 0..60 {
        let key = std::array::from_fn(|_| random.byte());
        let longest = [80, 1100, 9000, 70_000, 200_000][random.below(5)];
        let mut chunks = Vec::new();
        for _ in 0..random.below(100) {
            let len = random.below(longest);
            let start = random.below(bytes.len() - len);
            chunks.push(&bytes[start..start + len]);
        }
        check(&key, &chunks);
    }
}

#[test]
fn the_fastest_kernel_is_one_that_the_processor_has() {
    assert!(Kernel::fastest().is_available());
    let mut out = Vec::new();
    keyed_hashes(&[8; 32], &[b"chunk"], &mut out);
    assert_eq!(out, [*blake3::keyed_hash(&[8; 32], b"chunk").as_bytes()]);
}
