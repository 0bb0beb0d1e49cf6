//! Asymmetric extremum: no hash, but a maximum with a window behind it in which nothing is greater.
//!
//! Zhang et al., "AE: An Asymmetric Extremum Content Defined Chunking Algorithm for Fast and Bandwidth-Efficient Data
//! Deduplication", INFOCOM 2015, algorithm 1, with values of eight bytes and a window of `average / (e - 1)` bytes, by which
//! chunks of noise have that average (section IV).
//!
//! Specification: the value of a byte of the chunk from its eighth on is that of the eight bytes that end there, the first the
//! most significant. The extremum is the byte whose value is greater than that of all before it in the chunk, and not less
//! than that of the window's bytes behind it; the chunk ends with the window. In a run of zeros that is after eight bytes and a
//! window, the least that a chunk has.
//!
//! Deviations: in the paper the eight bytes begin where the value stands, which looks ahead beyond the chunk; it has no
//! maximum, which bounds what data that rises forever takes.

use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::{Sizes, offset};

/// Bytes of a value.
const VALUE_LEN: u32 = 8;

/// Returns the window for an average.
fn window_for(average: u32) -> u32 {
    // 1 / (e - 1) in millionths.
    let window = u64::from(average) * 581_977 / 1_000_000;
    u32::try_from(window).expect("a window is shorter than the average")
}

/// Returns the least length of a chunk.
pub(crate) fn min_for(average: u32) -> u32 {
    VALUE_LEN + window_for(average)
}

/// Cuts so.
#[derive(Clone, Debug)]
pub struct AeCutter {
    window: u32,
    max: u32,
    /// Bytes since the last cut.
    open: u32,
    /// The last eight of them.
    value: u64,
    /// Greatest value, and how many bytes of the chunk end with it.
    extremum: (u64, u32),
}

impl AeCutter {
    /// Starts a stream.
    pub fn new(sizes: Sizes) -> Self {
        let window = window_for(sizes.average);
        Self { window, max: sizes.max, open: 0, value: 0, extremum: (0, VALUE_LEN) }
    }

    /// Takes bytes up to one whose value is greater than all before it, that included; returns how many, and whether it
    /// came to one.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        let (mut value, greatest) = (self.value, self.extremum.0);
        let greater = bytes.iter().position(|byte| {
            value = value << 8 | u64::from(*byte);
            greatest < value
        });
        self.value = value;
        (greater.map_or(bytes.len(), |at| at + 1), greater.is_some())
    }
}

impl StreamCutter for AeCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let mut at = 0;
        while at < bytes.len() {
            let end = self.max.min(self.extremum.1 + self.window);
            let is_first = self.open < VALUE_LEN - 1;
            let until = if is_first { VALUE_LEN - 1 } else { end };
            let stop = bytes.len().min(at + (until - self.open) as usize);
            let next = bytes.get(at..stop).unwrap_or_default();
            let (taken, is_greater) = if is_first {
                self.value = next.iter().fold(self.value, |value, byte| value << 8 | u64::from(*byte));
                (next.len(), false)
            } else {
                self.take(next)
            };
            (at, self.open) = (at + taken, self.open + offset(taken));
            if is_greater {
                self.extremum = (self.value, self.open);
            }
            if self.open == self.max || self.open == self.extremum.1 + self.window {
                cuts.push(offset(at).into());
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        (self.open, self.value, self.extremum) = (0, 0, (0, VALUE_LEN));
    }
}
