//! `FastCDC`: Gear, a mask that is harder to match before the average than behind it, and no hash before the minimum.
//!
//! Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage Systems", TPDS 2020, with
//! the table, the masks and the first level of normalization of the crate `fastcdc`, so that what it cuts for others is cut
//! alike. The scan is ours, since streams come in blocks here; a test compares it with the crate's.
//!
//! Specification: `h = 2 h + T[byte]` in 64 bits, from 0 at the byte behind the first `min` of the chunk. The chunk ends before
//! the first byte with which `h` has none of the bits of the mask: for bytes behind fewer than `average` of the chunk the one
//! with two bits more than the other. It ends behind `max` bytes where there is none. In a run of one byte `h` is the
//! same from the 64th byte on; with zeros it has bits of every mask, so these are cut at the maximum.
//!
//! Deviation: the crate takes two bytes at a time, and so passes by the last byte of a stream that is the odd one of its chunk.

use std::sync::OnceLock;

use fastcdc::v2020::{Normalization, get_gear_with_seed, select_masks};
use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::{Sizes, offset};

/// The hash's addends by byte.
fn table() -> &'static [u64; 256] {
    static TABLE: OnceLock<[u64; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let (table, _) = get_gear_with_seed(0);
        *table.first_chunk().expect("there are 256 bytes")
    })
}

/// Cuts so.
#[derive(Clone, Debug)]
pub struct FastCdcCutter {
    sizes: Sizes,
    /// Before the average, and behind it.
    masks: [u64; 2],
    table: &'static [u64; 256],
    /// Bytes since the last cut.
    open: u32,
    hash: u64,
}

impl FastCdcCutter {
    /// Starts a stream. The sizes are even numbers; the average is from 512 bytes to 1 MiB.
    pub fn new(sizes: Sizes) -> Self {
        let (small, large) = select_masks(sizes.average as usize, Normalization::Level1);
        Self { sizes, masks: [small, large], table: table(), open: 0, hash: 0 }
    }

    /// Hashes bytes until the hash has none of the mask's bits, and returns the number of bytes before that.
    fn find(&mut self, bytes: &[u8], mask: u64) -> Option<usize> {
        let mut hash = self.hash;
        let found = bytes.iter().position(|byte| {
            hash = (hash << 1).wrapping_add(self.table[usize::from(*byte)]);
            hash & mask == 0
        });
        self.hash = hash;
        found
    }
}

impl StreamCutter for FastCdcCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let Sizes { min, average, max } = self.sizes;
        let [before, behind] = self.masks;
        let mut at = 0;
        while at < bytes.len() {
            let phases = [(min, None), (average, Some(before)), (max, Some(behind))];
            let (until, mask) = phases.into_iter().find(|(until, _)| self.open < *until).unwrap_or((max, Some(behind)));
            let end = bytes.len().min(at + (until - self.open) as usize);
            let next = bytes.get(at..end).unwrap_or_default();
            let found = mask.and_then(|mask| self.find(next, mask));
            let taken = found.unwrap_or(next.len());
            (at, self.open) = (at + taken, self.open + offset(taken));
            if found.is_some() || self.open == max {
                cuts.push(offset(at).into());
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        (self.open, self.hash) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunkers::chunkers_tests::{cuts, noise};

    #[test]
    fn cuts_are_those_of_the_crate() {
        let bytes = [noise("fastcdc", 3_000_000), vec![0; 100_000], noise("more", 500_001)].concat();
        for sizes in [(64, 512, 4096), (2048, 8192, 65_536), (8190, 8192, 16_384), (100, 12_346, 12_346)] {
            let (min, average, max) = sizes;
            let theirs = fastcdc::v2020::FastCDC::new(&bytes, min, average, max);
            let theirs: Vec<usize> = theirs.map(|chunk| chunk.offset + chunk.length).collect();
            let [min, average, max] = [min, average, max].map(offset);
            let mut ours = cuts(&mut FastCdcCutter::new(Sizes { min, average, max }), &bytes, bytes.len());
            // The odd byte at the end is the one that the crate passes by.
            ours.retain(|cut| *cut != bytes.len() - 1);
            assert_eq!(ours, theirs, "{sizes:?}");
        }
    }
}
