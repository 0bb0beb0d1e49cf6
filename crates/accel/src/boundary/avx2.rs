//! Eight strips in a vector of 256 bits. The words of the table are loaded one by one.
//!
//! On a Zen 4, a loop that loads four words and blends one of them in reached 0.8 of this speed: it saves the shuffles,
//! but its loads may cross cache lines. Decision 0013 describes a kernel that gathers.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_min_epu32, _mm256_movemask_ps,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_slli_epi32,
};

use super::marks::Marks;
use super::{Hash, Strips, WINDOW};

/// Strips at a time: the lanes of the vector.
pub(super) const STRIPS: usize = 8;

/// Positions that are hashed between two tests for candidates.
const STEPS: usize = 4;

/// Marks the candidates in the strips. Positions count from the start of the first strip.
#[target_feature(enable = "avx2")]
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    assert!(len.is_multiple_of(STEPS), "strips are searched {STEPS} bytes at a time");
    let bytes = &bytes[start - WINDOW..start + STRIPS * len];
    // AVX2 has no unsigned comparison: a value is at most `greatest` if it equals the minimum of both.
    let Some(greatest) = hash.threshold.checked_sub(1) else { return };
    let greatest = _mm256_set1_epi32(greatest.cast_signed());
    let mut values = _mm256_setzero_si256();
    for index in (0..WINDOW + len).step_by(STEPS) {
        let mut steps = [values; STEPS];
        for (offset, step) in steps.iter_mut().enumerate() {
            let term = |strip: usize| {
                // SAFETY: `bytes` has WINDOW + 8 * len bytes. `strip` is at most 7. `index + offset` is less than
                // WINDOW + len, because WINDOW and `len` are multiples of STEPS. So `strip * len + index + offset` is
                // less than WINDOW + 8 * len.
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

/// Returns a bit for each lane, set if its value is at most `greatest`.
#[inline]
#[target_feature(enable = "avx2")]
fn at_most(values: __m256i, greatest: __m256i) -> u32 {
    let equal = _mm256_cmpeq_epi32(_mm256_min_epu32(values, greatest), values);
    _mm256_movemask_ps(_mm256_castsi256_ps(equal)).cast_unsigned()
}
