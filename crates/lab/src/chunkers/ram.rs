//! Rapid asymmetric maximum: a chunk ends with the first byte behind a window that is not less than all of the window.
//!
//! Widodo, Lim and Atiquzzaman, "A New Content-Defined Chunking Algorithm for Data Deduplication in Cloud Storage", Future
//! Generation Computer Systems 71, 2017, with a window of `average - 256` bytes: of noise a window of some kilobytes holds a
//! byte 255 almost certainly, and the next is 256 bytes away on average. With averages below 2 KiB it is nearer.
//!
//! Specification: the window is the first `average - 256` bytes of the chunk; the chunk ends with the first byte behind it that
//! is at least as great as the greatest of the window, or behind `max` bytes. In a run of zeros that is one byte behind the
//! window, the least that a chunk has. Deviation: the paper has no maximum, which bounds what text whose greatest byte is
//! rare takes.

use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::{Sizes, offset};

/// Returns the window for an average of at least 512 bytes.
fn window_for(average: u32) -> u32 {
    average.saturating_sub(256)
}

/// Returns the least length of a chunk.
pub(crate) fn min_for(average: u32) -> u32 {
    window_for(average) + 1
}

/// Cuts so.
#[derive(Clone, Debug)]
pub struct RamCutter {
    window: u32,
    max: u32,
    /// Bytes since the last cut.
    open: u32,
    /// Greatest byte of the window.
    greatest: u8,
}

impl RamCutter {
    /// Starts a stream.
    pub fn new(sizes: Sizes) -> Self {
        Self { window: window_for(sizes.average), max: sizes.max, open: 0, greatest: 0 }
    }
}

impl StreamCutter for RamCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let mut at = 0;
        while at < bytes.len() {
            let in_window = self.open < self.window;
            let until = if in_window { self.window } else { self.max };
            let end = bytes.len().min(at + (until - self.open) as usize);
            let next = bytes.get(at..end).unwrap_or_default();
            let found = if in_window {
                self.greatest = next.iter().fold(self.greatest, |greatest, byte| greatest.max(*byte));
                None
            } else {
                next.iter().position(|byte| self.greatest <= *byte)
            };
            let taken = found.map_or(next.len(), |at| at + 1);
            (at, self.open) = (at + taken, self.open + offset(taken));
            if found.is_some() || self.open == self.max {
                cuts.push(offset(at).into());
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        (self.open, self.greatest) = (0, 0);
    }
}
