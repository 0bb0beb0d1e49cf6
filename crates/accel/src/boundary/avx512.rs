//! Sixteen strips in a vector of 512 bits. Byte shuffles look up the table.
//!
//! A shuffle looks up 64 bytes at a time in a table of 128 bytes. Two shuffles and a selection yield one byte of the
//! table's words for 64 bytes of input. The kernel then interleaves the four bytes of each word, which come from four
//! tables. It interleaves the input bytes first, so that each vector of words holds one position of all sixteen strips.
//! A step of the hash is a shift and an addition, as in the specification.

use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_add_epi32, _mm512_castsi128_si512, _mm512_cmplt_epu32_mask, _mm512_inserti32x4,
    _mm512_loadu_si512, _mm512_mask_mov_epi8, _mm512_min_epu32, _mm512_movepi8_mask, _mm512_permutex2var_epi8,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
};

use super::marks::Marks;
use super::{Hash, STRIP_STEP, Strips, WINDOW};

/// Strips at a time: the lanes of the vector.
pub(super) const STRIPS: usize = 16;

/// Marks the candidates in the strips. Positions count from the start of the first strip.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    assert!(len.is_multiple_of(STRIP_STEP), "strips are loaded {STRIP_STEP} bytes at a time");
    let bytes = &bytes[start - WINDOW..start + STRIPS * len];
    let threshold = _mm512_set1_epi32(hash.threshold.cast_signed());
    let mut values = _mm512_setzero_si512();
    for index in (0..WINDOW + len).step_by(STRIP_STEP) {
        let mut rows = [values; 4];
        for (row, vector) in rows.iter_mut().enumerate() {
            // SAFETY: `bytes` has WINDOW + 16 * len bytes. The loads begin at `index` in four strips, the last of which
            // is at most strip 15. `index + 16` is at most WINDOW + len, because WINDOW and `len` are multiples of
            // STRIP_STEP. So each load ends within `bytes`.
            *vector = unsafe { load(bytes.as_ptr().add(row * len + index), 4 * len) };
        }
        for (quarter, indices) in interleave(rows).into_iter().enumerate() {
            let mut steps = [values; 4];
            for (step, term) in steps.iter_mut().zip(terms(&hash.planes, indices)) {
                values = _mm512_add_epi32(_mm512_slli_epi32::<1>(values), term);
                *step = values;
            }
            let [a, b, c, d] = steps;
            let least = _mm512_min_epu32(_mm512_min_epu32(a, b), _mm512_min_epu32(c, d));
            if _mm512_cmplt_epu32_mask(least, threshold) != 0 && WINDOW <= index {
                for (step, values) in steps.into_iter().enumerate() {
                    let found = _mm512_cmplt_epu32_mask(values, threshold);
                    marks.set_in_strips(found.into(), len, index - WINDOW + 4 * quarter + step);
                }
            }
        }
    }
}

/// Returns the table's words for 64 bytes, first those for the leading bytes of every 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn terms(planes: &[[[u8; 64]; 4]; 4], indices: __m512i) -> [__m512i; 4] {
    // The shuffle uses the lower seven bits of an index.
    let is_upper = _mm512_movepi8_mask(indices);
    let mut terms = [indices; 4];
    for (term, [a, b, c, d]) in terms.iter_mut().zip(planes) {
        let lower = _mm512_permutex2var_epi8(quarter(a), indices, quarter(b));
        let upper = _mm512_permutex2var_epi8(quarter(c), indices, quarter(d));
        *term = _mm512_mask_mov_epi8(lower, is_upper, upper);
    }
    interleave(terms)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Loads 16 bytes of four strips.
///
/// # Safety
///
/// 16 bytes must be readable at `pointer` and at one, two and three times `stride` from it.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(pointer: *const u8, stride: usize) -> __m512i {
    // SAFETY: the caller guarantees it.
    unsafe {
        let vector = _mm512_castsi128_si512(_mm_loadu_si128(pointer.cast()));
        let vector = _mm512_inserti32x4::<1>(vector, _mm_loadu_si128(pointer.add(stride).cast()));
        let vector = _mm512_inserti32x4::<2>(vector, _mm_loadu_si128(pointer.add(2 * stride).cast()));
        _mm512_inserti32x4::<3>(vector, _mm_loadu_si128(pointer.add(3 * stride).cast()))
    }
}

/// Interleaves the bytes of four vectors: in each 128 bits the first byte of all four, then the second, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
    let (ab_back, cd_back) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab, cd),
        _mm512_unpackhi_epi16(ab, cd),
        _mm512_unpacklo_epi16(ab_back, cd_back),
        _mm512_unpackhi_epi16(ab_back, cd_back),
    ]
}
