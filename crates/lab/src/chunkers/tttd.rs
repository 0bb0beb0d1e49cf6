//! Two thresholds, two divisors: where no place is a cut up to the maximum, the last one that would be with an easier test is.
//!
//! Eshghi and Tang, "A Framework for Analyzing and Improving Content-Based Chunking Algorithms", HPL-2005-30(R.1), 2005,
//! section 5, with Rabin's fingerprint of a full window of 48 bytes (see [`crate::chunkers::rabin`]). Its thresholds of 460 and
//! 2800 bytes and divisors of 540 and 270 are those of an average of 1000 bytes; other averages scale them.
//!
//! Specification: the main divisor `D` is `average - min`, rounded down to an even number. A chunk has the least length from
//! `min` to `max` at which the fingerprint leaves the remainder `D - 1` by `D`. Where there is none and the stream has `max`
//! bytes more, it has the greatest length from `min` to `max` at which the fingerprint leaves `D' - 1` by the backup divisor
//! `D'`; `max` where there is none of these either. The end of a stream ends its last chunk.
//!
//! Between a cut of the backup divisor and the maximum nothing divides, so the search goes on behind the maximum. A run of zeros
//! has the fingerprint 0, so it is cut at the maximum. Deviation: none in the algorithm; the paper leaves the fingerprint open.

use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::rabin::{RollingWindow, WINDOW};
use crate::chunkers::{Sizes, offset};

/// Returns the shortest and longest chunk for an average.
pub(crate) fn bounds_for(average: u32) -> (u32, u32) {
    let share = |of_thousand: u64| u64::from(average) * of_thousand / 1000;
    let bound = |bytes| u32::try_from(bytes).expect("averages are at most 1 MiB");
    (bound(share(460)), bound(share(2800)))
}

/// Returns the main divisor.
pub(crate) fn divisor_for(sizes: Sizes) -> u32 {
    sizes.average.saturating_sub(sizes.min) & !1
}

/// Tests whether a fingerprint leaves the greatest remainder by a divisor, without a division.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    /// Inverse of the odd part modulo 2^64.
    inverse: u64,
    /// Exponent of the power of two.
    twos: u32,
    /// Greatest quotient.
    quotient_max: u64,
}

impl Divisor {
    fn new(divisor: u32) -> Self {
        let twos = divisor.trailing_zeros();
        let odd = u64::from(divisor) >> twos;
        // Each step of Newton's doubles the number of bits that are right, from three on.
        let step = |inverse: u64, _| inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        Self { inverse: (0..5).fold(odd, step), twos, quotient_max: u64::MAX / u64::from(divisor) }
    }

    /// A multiple of the divisor times the inverse is the quotient; any other number becomes a greater one.
    fn is_mark(self, hash: u64) -> bool {
        (hash + 1).wrapping_mul(self.inverse).rotate_right(self.twos) <= self.quotient_max
    }
}

/// Cuts so.
#[derive(Clone, Debug)]
pub struct TttdCutter {
    sizes: Sizes,
    main: Divisor,
    backup: Divisor,
    /// Bytes since the last cut.
    open: u32,
    /// Length up to the last place of the backup divisor; 0: there is none.
    fallback: u32,
    window: RollingWindow,
}

impl TttdCutter {
    /// Starts a stream. The minimum is no shorter than the window, and at least two less than the average.
    pub fn new(sizes: Sizes, backup_divisor: u32) -> Self {
        let (main, backup) = (Divisor::new(divisor_for(sizes)), Divisor::new(backup_divisor));
        Self { sizes, main, backup, open: 0, fallback: 0, window: RollingWindow::new() }
    }

    /// Moves the window over bytes up to a cut, and notes places of the backup divisor.
    fn find(&mut self, bytes: &[u8], mut at: usize, end: usize) -> (usize, bool) {
        let (main, backup) = (self.main, self.backup);
        while let Some(count) = self.window.find(bytes, at..end, |hash| backup.is_mark(hash) || main.is_mark(hash)) {
            (at, self.open) = (at + count, self.open + offset(count));
            if main.is_mark(self.window.hash()) {
                return (at, true);
            }
            self.fallback = self.open;
        }
        self.open += offset(end - at);
        (end, false)
    }
}

impl StreamCutter for TttdCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let Sizes { min, max, .. } = self.sizes;
        let skipped = min - offset(WINDOW);
        let mut at = 0;
        while at < bytes.len() {
            let until = [skipped, min - 1, max].into_iter().find(|until| self.open < *until).unwrap_or(max);
            let end = bytes.len().min(at + (until - self.open) as usize);
            if until < max {
                if until == skipped {
                    self.window.clear();
                } else {
                    self.window.find(bytes, at..end, |_| false);
                }
                (at, self.open) = (end, self.open + offset(end - at));
                continue;
            }
            let (reached, is_cut) = self.find(bytes, at, end);
            at = reached;
            if is_cut || self.open == max {
                let len = if is_cut || self.fallback == 0 { self.open } else { self.fallback };
                (self.open, self.fallback) = (self.open - len, 0);
                cuts.push(i64::from(offset(at)) - i64::from(self.open));
            }
        }
        self.window.keep_last(bytes);
    }

    fn finish(&mut self) {
        (self.open, self.fallback) = (0, 0);
        self.window.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_told_from_others_without_a_division() {
        for divisor in [2, 3, 270, 540, 554, 1 << 20, (1 << 20) - 2, 999_999] {
            let tested = Divisor::new(divisor);
            let divisor = u64::from(divisor);
            let near = (0..3000).chain((1 << 62)..(1 << 62) + 3000).chain((1 << 63) - 3000..1 << 63);
            let multiples = (1..3000_u64).flat_map(|factor| [factor * divisor - 1, factor * divisor, factor << 40]);
            for hash in near.chain(multiples) {
                assert_eq!(tested.is_mark(hash), hash % divisor == divisor - 1, "{hash} by {divisor}");
            }
        }
    }

    #[test]
    fn the_sizes_of_an_average_of_1000_bytes_are_the_papers() {
        let (min, max) = bounds_for(1000);
        assert_eq!((min, max, divisor_for(Sizes { min, average: 1000, max })), (460, 2800, 540));
    }
}
