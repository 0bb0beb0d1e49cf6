//! Four strips in turn in general registers. A step of the hash waits for the one before; steps of other strips do not.

use super::marks::Marks;
use super::{Hash, Strips};

/// Strips at a time.
pub(super) const STRIPS: usize = 4;

/// Marks the candidates of the strips, counted from the start of the first.
pub(super) fn mark(hash: &Hash, bytes: &[u8], strips: Strips, marks: &mut Marks) {
    let Strips { start, len } = strips;
    // All of one length, so that the compiler sees that no index goes beyond it.
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

/// Marks what leads here as unlikely, so that the jumps of the loop are not taken: a processor takes no more than one in
/// each cycle.
#[cold]
fn cold() {}
