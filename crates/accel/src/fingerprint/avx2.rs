//! Eight lanes.
#![expect(clippy::inline_always, reason = "vector instructions are only compiled where their feature is on")]

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_loadu_si256, _mm256_or_si256, _mm256_permute2x128_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::group::{kernels, of_two};
use super::lanes::{LANES_MAX, Vector};
use super::leaf::BLOCK_BYTES;

/// Eight words of 32 bits. Exists only on a processor with AVX2: see `Vector::new`.
#[derive(Clone, Copy)]
pub(super) struct Eight(__m256i);

kernels!(Eight, "avx2");

/// A rotation by two shifts.
macro_rules! rotate {
    ($name:ident, $right:literal, $left:literal) => {
        #[inline(always)]
        fn $name(self) -> Self {
            // SAFETY: a vector exists, so the processor has the feature.
            Self(unsafe { _mm256_or_si256(_mm256_srli_epi32::<$right>(self.0), _mm256_slli_epi32::<$left>(self.0)) })
        }
    };
}

/// Byte indices of a rotation of eight words to the right by 16 bits, and by 8.
const BY_16: [u8; 32] = rotated([2, 3, 0, 1]);
const BY_8: [u8; 32] = rotated([1, 2, 3, 0]);

const fn rotated([a, b, c, d]: [u8; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    let (mut index, mut first) = (0, 0);
    while index < bytes.len() {
        bytes[index] = first + a;
        bytes[index + 1] = first + b;
        bytes[index + 2] = first + c;
        bytes[index + 3] = first + d;
        index += 4;
        // A shuffle takes bytes from its own half of 16 bytes only.
        first = (first + 4) % 16;
    }
    bytes
}

impl Vector for Eight {
    const LANES: usize = 8;

    /// The shuffles for 16 bits and for 8.
    type Rotations = [Self; 2];

    #[inline(always)]
    unsafe fn rotations() -> [Self; 2] {
        // If the compiler knew these indices, it would replace each shuffle by two slower ones.
        let [by_16, by_8] = std::hint::black_box([&BY_16, &BY_8]);
        // SAFETY: both arrays have 32 bytes; the caller guarantees the feature.
        unsafe { [Self(_mm256_loadu_si256(by_16.as_ptr().cast())), Self(_mm256_loadu_si256(by_8.as_ptr().cast()))] }
    }

    #[inline(always)]
    unsafe fn new(words: &[u32; LANES_MAX]) -> Self {
        // SAFETY: the array has more than 32 bytes; the caller guarantees the feature.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn load(blocks: &[&[u8; BLOCK_BYTES]; LANES_MAX]) -> [Self; 16] {
        // SAFETY: the caller guarantees it.
        let mut rows = [[unsafe { Self::new(&[0; LANES_MAX]) }; 8]; 2];
        let [front, back] = &mut rows;
        for ((front, back), block) in front.iter_mut().zip(back).zip(blocks) {
            // SAFETY: a block has 64 bytes; the caller guarantees the feature.
            unsafe {
                *front = Self(_mm256_loadu_si256(block.as_ptr().cast()));
                *back = Self(_mm256_loadu_si256(block.as_ptr().add(32).cast()));
            }
        }
        let mut columns = [rows[0][0]; 16];
        columns[..8].copy_from_slice(&transpose(rows[0]));
        columns[8..].copy_from_slice(&transpose(rows[1]));
        columns
    }

    #[inline(always)]
    fn store(self, words: &mut [u32; LANES_MAX]) {
        // SAFETY: the array has more than 32 bytes; a vector exists, so the processor has the feature.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
    }

    of_two!(add, _mm256_add_epi32);
    of_two!(xor, _mm256_xor_si256);
    of_two!(and, _mm256_and_si256);

    #[inline(always)]
    fn rotate_right_16(self, [by_16, _]: [Self; 2]) -> Self {
        self.shuffle(by_16)
    }

    #[inline(always)]
    fn rotate_right_8(self, [_, by_8]: [Self; 2]) -> Self {
        self.shuffle(by_8)
    }

    rotate!(rotate_right_12, 12, 20);
    rotate!(rotate_right_7, 7, 25);
}

impl Eight {
    of_two!(shuffle, _mm256_shuffle_epi8);
    of_two!(unpack_low_words, _mm256_unpacklo_epi32);
    of_two!(unpack_high_words, _mm256_unpackhi_epi32);
    of_two!(unpack_low_pairs, _mm256_unpacklo_epi64);
    of_two!(unpack_high_pairs, _mm256_unpackhi_epi64);
    of_two!(low_halves, _mm256_permute2x128_si256::<0x20>);
    of_two!(high_halves, _mm256_permute2x128_si256::<0x31>);
}

/// Transposes rows into columns.
#[inline(always)]
fn transpose(rows: [Eight; 8]) -> [Eight; 8] {
    // First words: half `k` of vector `4 * j + i` gets word `4 * k + i` of rows `4 * j` to `4 * j + 3`.
    let mut halves = rows;
    for first in [0, 4] {
        let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
        let (ab, ab_back) = (a.unpack_low_words(b), a.unpack_high_words(b));
        let (cd, cd_back) = (c.unpack_low_words(d), c.unpack_high_words(d));
        halves[first] = ab.unpack_low_pairs(cd);
        halves[first + 1] = ab.unpack_high_pairs(cd);
        halves[first + 2] = ab_back.unpack_low_pairs(cd_back);
        halves[first + 3] = ab_back.unpack_high_pairs(cd_back);
    }
    // Then halves.
    let mut columns = halves;
    for word in 0..4 {
        columns[word] = halves[word].low_halves(halves[word + 4]);
        columns[word + 4] = halves[word].high_halves(halves[word + 4]);
    }
    columns
}
