//! Eight strips in a vector of 256 bits, the table's words loaded one by one.
//!
//! Gathering them instead was 0.6 times as fast on a Zen 4. Loading four words around the one that is wanted and blending it
//! in saves the shuffles, but such a load may cross a line of the cache: 0.8 times.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_min_epu32, _mm256_movemask_ps,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_slli_epi32,
};

use super::marks::Marks;
use super::{Hash, Strips, WINDOW};

/// Strips at a time: the lanes of the vector.
pub(super) const STRIPS: usize = 8;

/// Positions between two looks whether there was a candidate.
const STEPS: usize = 4;

/// Marks the candidates of the strips, counted from the start of the first.
#[target_feature(enable = "avx2")]
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    assert!(len.is_multiple_of(STEPS), "strips are searched {STEPS} bytes at a time");
    let bytes = &bytes[start - WINDOW..start + STRIPS * len];
    // Vectors are compared for equality with the lesser of two.
    let Some(greatest) = hash.threshold.checked_sub(1) else { return };
    let greatest = _mm256_set1_epi32(greatest.cast_signed());
    let mut values = _mm256_setzero_si256();
    for index in (0..WINDOW + len).step_by(STEPS) {
        let mut steps = [values; STEPS];
        for (offset, step) in steps.iter_mut().enumerate() {
            let term = |strip: usize| {
                // SAFETY: the last of 8 strips begins at 7 * len; the byte at `index + offset` from there lies in `bytes`,
                // which are WINDOW + 8 * len, because index + 4 is at most WINDOW + len.
                let byte = unsafe { *bytes.as_ptr().add(strip * len + index + offset) };
                hash.table[usize::from(byte)].cast_signed()
            };
            let terms = _mm256_setr_epi32(term(0), term(1), term(2), term(3), term(4), term(5), term(6), term(7));
            values = _mm256_add_epi32(_mm256_slli_epi32::<1>(values), terms);
            *step = values;
        }
        let [a, b, c, d] = steps;
        let least = _mm256_min_epu32(_mm256_min_epu32(a, b), _mm256_min_epu32(c, d));
        if at_most(least, greatest) != 0 && WINDOW <= index {
            for (offset, values) in steps.into_iter().enumerate() {
                marks.set_in_strips(at_most(values, greatest), len, index - WINDOW + offset);
            }
        }
    }
}

/// Says of each lane, in a bit, whether it is at most `greatest`.
#[inline]
#[target_feature(enable = "avx2")]
fn at_most(values: __m256i, greatest: __m256i) -> u32 {
    let equal = _mm256_cmpeq_epi32(_mm256_min_epu32(values, greatest), values);
    _mm256_movemask_ps(_mm256_castsi256_ps(equal)).cast_unsigned()
}
