//! Sequences of rising bytes: no hash; a chunk ends where some bytes in a row rise, and what mostly falls is skipped.
//!
//! Udayashankar, Baba and Al-Kiswany, "`SeqCDC`: Hashless Content-Defined Chunking for Data Deduplication", Middleware 2024,
//! section 3, in its increasing mode, with the details and the defaults of its program (`DedupBench`, `Seq_Chunking`): five
//! rises, a skip behind 50 falls, half and twice the average as minimum and maximum, and skips of 256 bytes at an average of
//! 8 KiB and of 512 at 16 KiB, here a 32nd of the average.
//!
//! Specification: bytes of a chunk are compared with the byte before them, from the byte behind the first `min` on. A greater
//! one is a rise, a smaller one a fall; equal ones count as neither. A fall ends the sequence of rises. The chunk ends before
//! the byte that is the last of `sequence-length` rises in a row. With every `skip-trigger` falls, `skip-size` bytes are not
//! looked at; the next is compared with the last of them. The chunk ends behind `max` bytes where there is no cut. In a run of
//! one byte nothing rises, so it is cut at the maximum. Deviation: none; the paper's vector instructions find the same cuts.

use std::cmp::Ordering;

use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::parameter::Parameters;
use crate::chunkers::{Sizes, offset};

/// Cuts so.
#[derive(Clone, Debug)]
pub struct SeqCdcCutter {
    sizes: Sizes,
    parameters: Parameters,
    /// Bytes since the last cut.
    open: u32,
    /// Length before the next byte that is compared.
    next: u32,
    /// The last byte.
    previous: u8,
    /// Rises in a row.
    rises: u32,
    /// Falls since the last skip.
    falls: u32,
}

impl SeqCdcCutter {
    /// Starts a stream.
    pub fn new(sizes: Sizes, parameters: Parameters) -> Self {
        Self { sizes, parameters, open: 0, next: sizes.min, previous: 0, rises: 0, falls: 0 }
    }

    /// Compares bytes up to a cut, which is before the first that it does not take, or to a skip; returns how many it
    /// took, and whether a cut follows.
    fn compare(&mut self, bytes: &[u8]) -> (usize, bool) {
        let Parameters { sequence_length, skip_trigger, skip_size, .. } = self.parameters;
        let (mut previous, mut rises, mut falls) = (self.previous, self.rises, self.falls);
        let mut taken = bytes.len();
        let (mut skip, mut is_cut) = (0, false);
        for (at, byte) in bytes.iter().enumerate() {
            match byte.cmp(&previous) {
                Ordering::Equal => {}
                Ordering::Greater => {
                    rises += 1;
                    if rises == sequence_length {
                        (taken, is_cut) = (at, true);
                        break;
                    }
                }
                Ordering::Less => {
                    (rises, falls) = (0, falls + 1);
                    if falls == skip_trigger {
                        (taken, falls, skip) = (at + 1, 0, skip_size);
                        previous = *byte;
                        break;
                    }
                }
            }
            previous = *byte;
        }
        (self.previous, self.rises, self.falls) = (previous, rises, falls);
        self.next = self.open + offset(taken) + skip;
        (taken, is_cut)
    }
}

impl StreamCutter for SeqCdcCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let max = self.sizes.max;
        let mut at = 0;
        while at < bytes.len() {
            let is_skipped = self.open < self.next;
            let until = if is_skipped { self.next.min(max) } else { max };
            let end = bytes.len().min(at + (until - self.open) as usize);
            let part = bytes.get(at..end).unwrap_or_default();
            let (taken, is_cut) = if is_skipped {
                self.previous = part.last().copied().unwrap_or(self.previous);
                (part.len(), false)
            } else {
                self.compare(part)
            };
            (at, self.open) = (at + taken, self.open + offset(taken));
            if is_cut || self.open == max {
                cuts.push(offset(at).into());
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        (self.open, self.next, self.rises, self.falls) = (0, self.sizes.min, 0, 0);
    }
}
