//! Rabin's fingerprint over a window of 48 bytes: how most papers on deduplication cut, Lazy Exact Deduplication among them.
//!
//! The bytes of the window are the coefficients of a polynomial over GF(2), the first byte's highest bit that of the highest
//! power. Its remainder by an irreducible polynomial of degree 63 is the fingerprint. (Rabin, "Fingerprinting by Random
//! Polynomials", 1981; the window, the polynomial and the value 0x78 are those of the Low-Bandwidth File System: Muthitacharoen
//! et al., SOSP 2001, section 3.1, and its program, from which destor has them.)
//!
//! Specification: a chunk has the least length from `min` to `max` at which the low bits of the fingerprint of its last 48
//! bytes are those of 0x78, as many bits as `average` is a power of two; `max` where there is none. A run of zeros has the
//! fingerprint 0, so it is cut at the maximum.
//!
//! `average` is the mean distance of such places behind the minimum, as in the papers: on noise chunks have about `min +
//! average` bytes, less what the maximum cuts off. Deviation: LBFS begins with an empty window, that is 48 zeros, at the
//! beginning of the chunk; here the window is always full, so that a place is one or not whatever stands before its window.
//!
//! `destor-rabin` is the same with destor's window (Fu et al., "Design Tradeoffs for Data Deduplication Performance in Backup
//! Workloads", FAST 2015; `rabin_chunk_data` of its program at commit c4a8f79). Specification: as above, but the fingerprint of
//! a length is that of the last bytes from the last one of the minimum on, 48 at most: of one byte at the minimum, of two
//! behind it. So a chunk of noise has the minimum with a probability of 1/256, and whether one of the first 47 places
//! is a cut depends on where the chunk began. Deviation: none.

use std::ops::Range;
use std::sync::OnceLock;

use onefold_engine::backup::cut::StreamCutter;

use crate::chunkers::{Sizes, offset};

/// Bytes that a fingerprint is of.
pub const WINDOW: usize = 48;
/// The irreducible polynomial, of degree 63: the bit of value 2^n is the coefficient of the n-th power.
pub const POLYNOMIAL: u64 = 0xbfe6_b8a5_bf37_8d83;
/// Value of the fingerprint's low bits at a possible end of a chunk.
pub const MARK: u64 = 0x78;
/// Bits of a fingerprint.
const DEGREE: u32 = 63;

/// Products of a byte and a power of x, reduced.
type Table = [u64; 256];

/// Tables that advance a fingerprint by one byte or by two.
#[derive(Debug)]
struct Tables {
    /// Of the byte that leaves by the top when one comes in: to be added so that it is reduced.
    over: Table,
    /// Of the byte that leaves by the top first when two come in.
    over_two: Table,
    /// Of the byte that leaves the window when one comes in.
    out: Table,
    /// Of the byte that left before the last one.
    out_two: Table,
}

impl Tables {
    fn get() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| {
            let table = |power: usize| {
                let mut table = [0; 256];
                for (byte, product) in (0..).zip(&mut table) {
                    *product = (0..power).fold(byte, |value, _| times_x(value));
                }
                table
            };
            // The shift takes what leaves by the top to the powers from 63 on, of which 64 bits still hold the first.
            let with_carry = |mut table: Table| {
                for (byte, product) in (0_u64..).zip(&mut table) {
                    *product ^= byte << DEGREE;
                }
                table
            };
            let degree = DEGREE as usize;
            Self {
                over: with_carry(table(degree)),
                over_two: table(degree + 8),
                out: table(8 * WINDOW),
                out_two: table(8 * WINDOW + 8),
            }
        })
    }
}

/// Multiplies a polynomial of degree below 63 by x.
fn times_x(value: u64) -> u64 {
    let product = value << 1;
    if product >> DEGREE == 0 { product } else { product ^ POLYNOMIAL }
}

fn of(table: &Table, byte: u8) -> u64 {
    table[usize::from(byte)]
}

/// Returns the byte that leaves a fingerprint by the top when one comes in.
fn top(hash: u64) -> u8 {
    (hash >> (DEGREE - 8)).to_le_bytes()[0]
}

/// Takes a byte in.
fn push(tables: &Tables, hash: u64, byte: u8) -> u64 {
    (hash << 8 | u64::from(byte)) ^ of(&tables.over, top(hash))
}

/// Takes a byte in and another out, which is the window's first.
fn slide(tables: &Tables, hash: u64, outgoing: u8, byte: u8) -> u64 {
    push(tables, hash, byte) ^ of(&tables.out, outgoing)
}

/// The fingerprint of the last bytes of a stream: of 48 of them, or of fewer since the window was emptied.
#[derive(Clone, Debug)]
pub(crate) struct RollingWindow {
    tables: &'static Tables,
    /// Fingerprint of the bytes in the window.
    hash: u64,
    /// How many there are.
    filled: usize,
    /// The last bytes of the stream; zeros before its first.
    last: [u8; WINDOW],
}

impl RollingWindow {
    /// Starts a stream, with an empty window.
    pub(crate) fn new() -> Self {
        Self { tables: Tables::get(), hash: 0, filled: 0, last: [0; WINDOW] }
    }

    /// Returns the fingerprint of the bytes in the window.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Empties the window.
    pub(crate) fn clear(&mut self) {
        (self.hash, self.filled) = (0, 0);
    }

    /// Moves the window over the next bytes of a block, up to one with which its fingerprint is a mark; returns how many, if
    /// there is one.
    pub(crate) fn find(&mut self, bytes: &[u8], next: Range<usize>, is_mark: impl Fn(u64) -> bool) -> Option<usize> {
        let full = next.end.min(next.start + WINDOW - self.filled);
        for (count, byte) in (1..).zip(bytes.get(next.start..full).unwrap_or_default()) {
            (self.hash, self.filled) = (push(self.tables, self.hash, *byte), self.filled + 1);
            if is_mark(self.hash) {
                return Some(count);
            }
        }
        // The first bytes to leave the window came with an earlier block.
        let middle = full.max(WINDOW).min(next.end);
        let last = self.last;
        let early = last.get(full..middle).unwrap_or_default();
        if let Some(found) = self.slide_all(early, bytes.get(full..middle).unwrap_or_default(), &is_mark) {
            return Some(full - next.start + found);
        }
        let late = middle.saturating_sub(WINDOW)..next.end.saturating_sub(WINDOW);
        let late = bytes.get(late).unwrap_or_default();
        let found = self.slide_all(late, bytes.get(middle..next.end).unwrap_or_default(), &is_mark);
        found.map(|found| middle - next.start + found)
    }

    /// Slides the full window over bytes to the first mark, and returns the number of bytes up to it.
    fn slide_all(&mut self, outgoing: &[u8], incoming: &[u8], is_mark: &impl Fn(u64) -> bool) -> Option<usize> {
        let tables = self.tables;
        let mut hash = self.hash;
        let (out_pairs, out_rest) = outgoing.as_chunks::<2>();
        let (in_pairs, in_rest) = incoming.as_chunks::<2>();
        // Two at a time: half as many steps depend on the previous one.
        for (pair, ([out_one, out_two], [one, two])) in out_pairs.iter().zip(in_pairs).enumerate() {
            let between = slide(tables, hash, *out_one, *one);
            hash = (hash << 16 ^ u64::from(*one) << 8 ^ u64::from(*two))
                ^ (of(&tables.over_two, top(hash)) ^ of(&tables.over, top(hash << 8)))
                ^ (of(&tables.out_two, *out_one) ^ of(&tables.out, *out_two));
            if is_mark(between) {
                self.hash = between;
                return Some(2 * pair + 1);
            }
            if is_mark(hash) {
                self.hash = hash;
                return Some(2 * pair + 2);
            }
        }
        if let ([out], [byte]) = (out_rest, in_rest) {
            hash = slide(tables, hash, *out, *byte);
        }
        self.hash = hash;
        (!in_rest.is_empty() && is_mark(hash)).then_some(incoming.len())
    }

    /// Ends a block: the window may be moved over the next one.
    pub(crate) fn keep_last(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk::<WINDOW>() {
            self.last = *last;
        } else {
            self.last.rotate_left(bytes.len());
            let (_, room) = self.last.split_at_mut(WINDOW - bytes.len());
            room.copy_from_slice(bytes);
        }
    }
}

/// Cuts so.
#[derive(Clone, Debug)]
pub struct RabinCutter {
    sizes: Sizes,
    mask: u64,
    /// Bytes of a chunk before the first that comes into its window.
    skipped: u32,
    /// Bytes since the last cut.
    open: u32,
    window: RollingWindow,
}

impl RabinCutter {
    /// Starts a stream. The average is a power of two, the minimum no shorter than the window.
    pub fn new(sizes: Sizes) -> Self {
        Self::behind(sizes, sizes.min - offset(WINDOW))
    }

    /// Starts a stream that is cut as destor does: the window is empty before the last byte of the minimum.
    pub fn of_destor(sizes: Sizes) -> Self {
        Self::behind(sizes, sizes.min - 1)
    }

    fn behind(sizes: Sizes, skipped: u32) -> Self {
        let mask = u64::from(sizes.average) - 1;
        Self { sizes, mask, skipped, open: 0, window: RollingWindow::new() }
    }
}

impl StreamCutter for RabinCutter {
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
        let (Sizes { min, max, .. }, mask) = (self.sizes, self.mask);
        let mut at = 0;
        while at < bytes.len() {
            let until = [self.skipped, min - 1, max].into_iter().find(|until| self.open < *until).unwrap_or(max);
            let end = bytes.len().min(at + (until - self.open) as usize);
            let found = if until == max {
                self.window.find(bytes, at..end, |hash| (hash ^ MARK) & mask == 0)
            } else if self.skipped < until {
                self.window.find(bytes, at..end, |_| false)
            } else {
                None
            };
            let taken = found.unwrap_or(end - at);
            (at, self.open) = (at + taken, self.open + offset(taken));
            if found.is_some() || self.open == max {
                cuts.push(offset(at).into());
                self.finish();
            }
        }
        self.window.keep_last(bytes);
    }

    fn finish(&mut self) {
        self.open = 0;
        self.window.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunkers::chunkers_tests::noise;

    /// Returns the remainder of bytes as a polynomial, bit after bit.
    pub(crate) fn remainder(bytes: &[u8]) -> u64 {
        let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
        bits.fold(0, |value, bit| times_x(value) ^ u64::from(bit))
    }

    #[test]
    fn the_polynomial_is_irreducible() {
        // Rabin's test: x to the power of 2^63 is x, and to that of 2^(63/p) is not for the primes p of 63, 3 and 7, even in one
        // of the factors that there would be: the greatest common divisor is 1.
        let multiply = |one: u64, other: u64| {
            (0..DEGREE).rev().fold(0, |sum, bit| times_x(sum) ^ if other >> bit & 1 == 0 { 0 } else { one })
        };
        let power = |squarings: u32| (0..squarings).fold(2, |value, _| multiply(value, value));
        let divide = |mut over: u64, by: u64| {
            while over != 0 && by.leading_zeros() >= over.leading_zeros() {
                over ^= by << (by.leading_zeros() - over.leading_zeros());
            }
            over
        };
        assert_eq!(power(63), 2);
        for prime in [3, 7] {
            let (mut one, mut other) = (POLYNOMIAL, power(63 / prime) ^ 2);
            while other != 0 {
                (one, other) = (other, divide(one, other));
            }
            assert_eq!(one, 1, "a common divisor for {prime}");
        }
    }

    #[test]
    fn the_fingerprint_is_the_remainder_of_the_window_at_every_place() {
        let tables = Tables::get();
        let bytes = noise("fingerprint", 5000);
        let mut hash = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let outgoing = if at < WINDOW { 0 } else { bytes[at - WINDOW] };
            hash = slide(tables, hash, outgoing, *byte);
            let window = &bytes[(at + 1).saturating_sub(WINDOW)..=at];
            assert_eq!(hash, remainder(window), "behind byte {at}");
        }
        assert_eq!(remainder(&[0; WINDOW]), 0);
    }

    #[test]
    fn all_places_are_found_that_the_specification_has_two_bytes_at_a_time() {
        let bytes = noise("places", 60_000);
        let is_mark = |hash: u64| hash & 63 == MARK & 63;
        for emptied in [0, 1, 77] {
            let windows =
                (emptied + 1..=bytes.len()).map(|end| (end, &bytes[emptied.max(end.saturating_sub(WINDOW))..end]));
            let expected: Vec<usize> =
                windows.filter(|(_, window)| is_mark(remainder(window))).map(|(end, _)| end).collect();
            // Each search begins where the last one ended, so at even and odd distances.
            let mut window = RollingWindow::new();
            let (mut found, mut at) = (Vec::new(), emptied);
            while let Some(count) = window.find(&bytes, at..bytes.len(), is_mark) {
                at += count;
                found.push(at);
            }
            assert!(800 < found.len() && found.len() < 1100, "{} places", found.len());
            assert_eq!(found, expected);
        }
    }
}
