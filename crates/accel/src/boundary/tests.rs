use super::{Finder, Kernel, WINDOW};
use crate::random::Random;

fn fast_kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| *kernel != Kernel::Serial && kernel.is_available())
}

fn candidates(finder: &Finder, bytes: &[u8], halo: usize) -> Vec<u32> {
    let mut out = Vec::new();
    finder.candidates(bytes, halo, &mut out);
    out
}

/// Compares every kernel with the specification.
fn check(table: &[u32; 256], threshold: u32, inputs: &[(&[u8], usize)]) {
    let serial = Finder::with_kernel(table, threshold, Kernel::Serial);
    let expected: Vec<_> = inputs.iter().map(|(bytes, halo)| candidates(&serial, bytes, *halo)).collect();
    for kernel in fast_kernels() {
        let finder = Finder::with_kernel(table, threshold, kernel);
        for ((bytes, halo), expected) in inputs.iter().zip(&expected) {
            let found = candidates(&finder, bytes, *halo);
            assert!(found == *expected, "{kernel:?}: {} bytes, halo {halo}, threshold {threshold}", bytes.len());
        }
    }
}

#[test]
fn the_specification_is_a_sum_over_the_window() {
    let mut random = Random::new(1);
    let (table, bytes) = (random.table(), random.bytes(500));
    let threshold = u32::MAX / 8;
    let finder = Finder::with_kernel(&table, threshold, Kernel::Serial);
    for halo in 0..=64 {
        let sum = |position: &usize| {
            let window = bytes[..*position].iter().rev().take(WINDOW);
            (0..).zip(window).fold(0u32, |sum, (age, byte)| sum.wrapping_add(table[usize::from(*byte)] << age))
        };
        let positions = (halo + 1..=bytes.len()).filter(|position| sum(position) < threshold);
        let expected: Vec<_> = positions.map(|position| u32::try_from(position - halo).unwrap()).collect();
        assert_eq!(candidates(&finder, &bytes, halo), expected, "halo {halo}");
        assert!(30 < expected.len());
    }
}

#[test]
fn kernels_agree_on_every_length_and_halo() {
    let mut random = Random::new(2);
    let (table, bytes) = (random.table(), random.bytes(2600));
    for halo in [0, 1, 17, 30, 31, 32, 33, 100] {
        let inputs: Vec<_> = (0..=bytes.len()).map(|len| (&bytes[..len], halo)).collect();
        check(&table, u32::MAX / 37, &inputs);
    }
    for halo in 0..=70 {
        let inputs: Vec<_> = [halo, 1055, 1056, 1057, 1400].map(|len| (&bytes[..len], halo)).to_vec();
        check(&table, u32::MAX / 37, &inputs);
    }
}

#[test]
fn kernels_agree_on_every_alignment() {
    let mut random = Random::new(3);
    let (table, bytes) = (random.table(), random.bytes(40_000));
    let inputs: Vec<_> = (0..=128).flat_map(|at| [1100, 2111, 37_001].map(|len| (&bytes[at..at + len], 31))).collect();
    check(&table, u32::MAX / 200, &inputs);
}

#[test]
fn kernels_agree_on_random_streams() {
    let mut random = Random::from_environment();
    for _ in 0..40 {
        let table = random.table();
        let mut bytes = Vec::new();
        for _ in 0..=random.below(4) {
            let len = random.below(90_000);
            match random.below(3) {
                0 => bytes.resize(bytes.len() + len, random.byte()),
                1 => {
                    let pattern_len = 1 + random.below(80);
                    let pattern = random.bytes(pattern_len);
                    bytes.extend(pattern.iter().cycle().take(len));
                }
                _ => bytes.extend(random.bytes(len)),
            }
        }
        // From none over few and one in 64 to every position.
        for threshold in [0, 1, u32::MAX / 4096, u32::MAX / 64, 1 << 31, random.word(), u32::MAX] {
            check(&table, threshold, &[(&bytes, 0), (&bytes, random.below(40))]);
        }
    }
}

#[test]
fn every_position_can_be_a_candidate() {
    let bytes = vec![7; 100_000];
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        let finder = Finder::with_kernel(&[0; 256], 1, kernel);
        let found = candidates(&finder, &bytes, 31);
        assert!(found.into_iter().eq(1..=100_000 - 31), "{kernel:?}");
    }
}

#[test]
fn the_fastest_kernel_is_one_that_the_processor_has() {
    assert!(Kernel::fastest().is_available());
    assert!(Kernel::fastest() != Kernel::Serial, "there is a portable one besides the specification");
}
