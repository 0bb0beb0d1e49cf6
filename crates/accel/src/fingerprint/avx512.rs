//! Sixteen lanes.
#![expect(clippy::inline_always, reason = "vector instructions are only compiled where their feature is on")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_loadu_si512, _mm512_ror_epi32, _mm512_shuffle_i32x4,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    _mm512_xor_si512,
};

use super::group::{kernels, of_two};
use super::lanes::{LANES_MAX, Vector};
use super::leaf::BLOCK_BYTES;

/// Sixteen words of 32 bits. Exists only on a processor with AVX-512 F: see `Vector::new`.
#[derive(Clone, Copy)]
pub(super) struct Sixteen(__m512i);

kernels!(Sixteen, "avx512f");

macro_rules! rotate {
    ($name:ident, $bits:literal $(, $rotations:ty)?) => {
        #[inline(always)]
        fn $name(self $(, _: $rotations)?) -> Self {
            // SAFETY: a vector exists, so the processor has the feature.
            Self(unsafe { _mm512_ror_epi32::<$bits>(self.0) })
        }
    };
}

impl Vector for Sixteen {
    const LANES: usize = 16;

    /// One instruction rotates.
    type Rotations = ();

    #[inline(always)]
    unsafe fn rotations() {}

    #[inline(always)]
    unsafe fn new(words: &[u32; LANES_MAX]) -> Self {
        // SAFETY: the array has 64 bytes; the caller guarantees the feature.
        Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn load(blocks: &[&[u8; BLOCK_BYTES]; LANES_MAX]) -> [Self; 16] {
        // SAFETY: the caller guarantees it.
        let mut rows = [unsafe { Self::new(&[0; LANES_MAX]) }; 16];
        for (row, block) in rows.iter_mut().zip(blocks) {
            // SAFETY: a block has 64 bytes; the caller guarantees the feature.
            *row = Self(unsafe { _mm512_loadu_si512(block.as_ptr().cast()) });
        }
        transpose(rows)
    }

    #[inline(always)]
    fn store(self, words: &mut [u32; LANES_MAX]) {
        // SAFETY: the array has 64 bytes; a vector exists, so the processor has the feature.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) }
    }

    of_two!(add, _mm512_add_epi32);
    of_two!(xor, _mm512_xor_si512);
    of_two!(and, _mm512_and_si512);
    rotate!(rotate_right_16, 16, ());
    rotate!(rotate_right_12, 12);
    rotate!(rotate_right_8, 8, ());
    rotate!(rotate_right_7, 7);
}

impl Sixteen {
    of_two!(unpack_low_words, _mm512_unpacklo_epi32);
    of_two!(unpack_high_words, _mm512_unpackhi_epi32);
    of_two!(unpack_low_pairs, _mm512_unpacklo_epi64);
    of_two!(unpack_high_pairs, _mm512_unpackhi_epi64);
    of_two!(even_quads, _mm512_shuffle_i32x4::<0x88>);
    of_two!(odd_quads, _mm512_shuffle_i32x4::<0xdd>);
}

/// Transposes rows into columns.
#[inline(always)]
fn transpose(rows: [Sixteen; 16]) -> [Sixteen; 16] {
    // First words: quad `k` of vector `4 * j + i` gets word `4 * k + i` of rows `4 * j` to `4 * j + 3`.
    let mut quads = rows;
    for first in [0, 4, 8, 12] {
        let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
        let (ab, ab_back) = (a.unpack_low_words(b), a.unpack_high_words(b));
        let (cd, cd_back) = (c.unpack_low_words(d), c.unpack_high_words(d));
        quads[first] = ab.unpack_low_pairs(cd);
        quads[first + 1] = ab.unpack_high_pairs(cd);
        quads[first + 2] = ab_back.unpack_low_pairs(cd_back);
        quads[first + 3] = ab_back.unpack_high_pairs(cd_back);
    }
    // Then quads of 128 bits.
    let mut columns = quads;
    for word in 0..4 {
        let [a, b, c, d] = [quads[word], quads[word + 4], quads[word + 8], quads[word + 12]];
        let (ab_even, ab_odd) = (a.even_quads(b), a.odd_quads(b));
        let (cd_even, cd_odd) = (c.even_quads(d), c.odd_quads(d));
        columns[word] = ab_even.even_quads(cd_even);
        columns[word + 4] = ab_odd.even_quads(cd_odd);
        columns[word + 8] = ab_even.odd_quads(cd_even);
        columns[word + 12] = ab_odd.odd_quads(cd_odd);
    }
    columns
}
