//! Sixteen strips in two vectors of 256 bits, the table looked up by gathering.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_castsi128_si256, _mm256_castsi256_ps,
    _mm256_cmpeq_epi32, _mm256_i32gather_epi32, _mm256_inserti128_si256, _mm256_min_epu32, _mm256_movemask_ps,
    _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::marks::Marks;
use super::{Hash, STRIP_STEP, Strips, WINDOW};

const LANES: usize = 8;
const STRIPS: usize = 2 * LANES;

/// Marks the candidates of the strips, counted from the start of the first.
#[target_feature(enable = "avx2")]
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    assert!(len.is_multiple_of(STRIP_STEP), "strips are loaded {STRIP_STEP} bytes at a time");
    let bytes = &bytes[start - WINDOW..start + STRIPS * len];
    // Vectors are compared for equality with the lesser of two.
    let Some(greatest) = hash.threshold.checked_sub(1) else { return };
    let greatest = _mm256_set1_epi32(greatest.cast_signed());
    let mut values = [_mm256_setzero_si256(); STRIPS / LANES];
    for index in (0..WINDOW + len).step_by(STRIP_STEP) {
        for (half, value) in values.iter_mut().enumerate() {
            let mut rows = [*value; 4];
            for (row, vector) in rows.iter_mut().enumerate() {
                // SAFETY: the last of 16 strips begins at 15 * len; 16 bytes from there and `index` lie in `bytes`,
                // which are WINDOW + 16 * len, because index + 16 is at most WINDOW + len.
                *vector = unsafe { load(bytes.as_ptr().add((LANES * half + row) * len + index), 4 * len) };
            }
            for (quarter, indices) in transpose(rows).into_iter().enumerate() {
                let mut steps = [*value; 4];
                for (step, term) in steps.iter_mut().zip(terms(&hash.table, indices)) {
                    *value = _mm256_add_epi32(_mm256_slli_epi32::<1>(*value), term);
                    *step = *value;
                }
                let [a, b, c, d] = steps;
                let least = _mm256_min_epu32(_mm256_min_epu32(a, b), _mm256_min_epu32(c, d));
                if at_most(least, greatest) != 0 && WINDOW <= index {
                    for (step, value) in steps.into_iter().enumerate() {
                        let mut found = at_most(value, greatest);
                        while found != 0 {
                            let strip = LANES * half + found.trailing_zeros() as usize;
                            marks.set(strip * len + index - WINDOW + 4 * quarter + step);
                            found &= found - 1;
                        }
                    }
                }
            }
        }
    }
}

/// Says of each lane whether it is at most `greatest`.
#[inline]
#[target_feature(enable = "avx2")]
fn at_most(values: __m256i, greatest: __m256i) -> i32 {
    let equal = _mm256_cmpeq_epi32(_mm256_min_epu32(values, greatest), values);
    _mm256_movemask_ps(_mm256_castsi256_ps(equal))
}

/// Returns the table's words for the four bytes of each lane, the lowest first.
#[inline]
#[target_feature(enable = "avx2")]
fn terms(table: &[u32; 256], indices: __m256i) -> [__m256i; 4] {
    let byte = _mm256_set1_epi32(0xff);
    let mut terms = [
        _mm256_and_si256(indices, byte),
        _mm256_and_si256(_mm256_srli_epi32::<8>(indices), byte),
        _mm256_and_si256(_mm256_srli_epi32::<16>(indices), byte),
        _mm256_srli_epi32::<24>(indices),
    ];
    for term in &mut terms {
        // SAFETY: every lane is at most 255, and the table has 256 words.
        *term = unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), *term) };
    }
    terms
}

/// Loads 16 bytes of two strips.
///
/// # Safety
///
/// 16 bytes can be read at the pointer and at `stride` from it.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(pointer: *const u8, stride: usize) -> __m256i {
    // SAFETY: handed on to the caller.
    unsafe {
        let low = _mm256_castsi128_si256(_mm_loadu_si128(pointer.cast()));
        _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(pointer.add(stride).cast()))
    }
}

/// Makes columns of the rows in each 128 bits: first the four bytes at the front of every strip, and so on.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_back, cd_back) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_back, cd_back),
        _mm256_unpackhi_epi64(ab_back, cd_back),
    ]
}
