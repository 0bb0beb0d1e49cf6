//! Four strips in turn in general registers. A step of the hash depends on the previous step of its strip only, so the
//! steps of four strips overlap.

use super::marks::Marks;
use super::{Hash, Strips};

/// Strips at a time.
pub(super) const STRIPS: usize = 4;

/// Marks the candidates in the strips. Positions count from the start of the first strip.
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    // Slices of equal length: the compiler can prove that no index exceeds it.
    let mut parts: [&[u8]; STRIPS] = [&[]; STRIPS];
    let mut values = [0; STRIPS];
    for (number, (part, value)) in parts.iter_mut().zip(&mut values).enumerate() {
        *part = &bytes[start + number * len..][..len];
        *value = hash.before(bytes, start + number * len);
    }
    #[expect(clippy::needless_range_loop, reason = "an index into four slices at once")]
    for index in 0..len {
        for (number, value) in values.iter_mut().enumerate() {
            *value = hash.step(*value, parts[number][index]);
            if *value < hash.threshold {
                cold();
                marks.set(number * len + index);
            }
        }
    }
}

/// Marks the branches that call it as unlikely, so that the loop takes no jumps: a processor takes at most one in each
/// cycle.
#[cold]
fn cold() {}
