//! Compressed size of the regions of a rule.
//!
//! The default rule compresses all new chunks, as a backup does. The others compress the new chunks of some intervals of the data
//! read, the same for all of them and for the default rule once more: what they differ by there is what they differ by at all.
//! (The usual estimator of a ratio by a variable that is known for the whole.)

use std::time::Duration;

use onefold_engine::compress::{Compression, Compressor};
use twox_hash::XxHash3_64;

use super::distinct::Estimate;
use crate::counts::float;
use crate::processor::processor_time;

/// Plaintext of a region in a repository of the default sizes.
pub const REGION_BYTES: usize = 512 << 10;
/// Bytes of an interval, as a power of two: as much as the longest chunk.
const INTERVAL_BITS: u32 = 22;
/// Groups of intervals. Each is left out once to find its influence (jackknife).
pub const GROUPS: usize = 32;

/// Which intervals are compressed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compressing {
    /// Compression.
    pub compression: Compression,
    /// An interval is compressed if its hash is not above this.
    pub threshold: u64,
}

impl Compressing {
    /// Returns the group of the interval that begins at or before an offset in the data, if it is compressed.
    pub fn group(&self, offset: u64) -> Option<usize> {
        let hash = XxHash3_64::oneshot(&(offset >> INTERVAL_BITS).to_le_bytes());
        (hash <= self.threshold).then(|| usize::try_from(hash % GROUPS as u64).expect("a few groups"))
    }
}

/// Bytes before and after compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compressed {
    /// Of chunks.
    pub plain: u64,
    /// Bytes of them that are stored.
    pub stored: u64,
}

impl Compressed {
    fn plus(self, other: Self) -> Self {
        Self { plain: self.plain + other.plain, stored: self.stored + other.stored }
    }

    fn minus(self, other: Self) -> Self {
        Self { plain: self.plain - other.plain, stored: self.stored - other.stored }
    }

    /// Returns stored bytes for each plain one; 1 of nothing.
    pub fn share(self) -> f64 {
        if self.plain == 0 { 1.0 } else { float(self.stored) / float(self.plain) }
    }
}

/// Gathers chunks into regions, and compresses these.
#[derive(Debug, Default)]
pub struct Regions {
    /// Result for each group of intervals. A region belongs to the group of its first chunk.
    groups: [Compressed; GROUPS],
    /// Processor time of it.
    pub processor: Duration,
    open: Vec<u8>,
    open_group: usize,
    stored: Vec<u8>,
}

impl Regions {
    /// Appends a chunk.
    pub fn push(&mut self, chunk: &[u8], group: usize, compression: Compression, compressor: &mut Compressor) {
        if REGION_BYTES < self.open.len() + chunk.len() {
            self.end(compression, compressor);
        }
        if self.open.is_empty() {
            self.open_group = group;
        }
        self.open.extend_from_slice(chunk);
    }

    /// Compresses the collected region.
    pub fn end(&mut self, compression: Compression, compressor: &mut Compressor) {
        if self.open.is_empty() {
            return;
        }
        let start = processor_time();
        compressor.compress(compression, &self.open, &mut self.stored);
        self.processor += processor_time().saturating_sub(start);
        // An incompressible region is stored as it is.
        let stored = if self.stored.is_empty() { self.open.len() } else { self.stored.len() };
        let sum = Compressed { plain: self.open.len() as u64, stored: stored as u64 };
        if let Some(group) = self.groups.get_mut(self.open_group) {
            *group = group.plus(sum);
        }
        self.open.clear();
    }

    /// Returns the bytes that are gathered and not compressed yet.
    pub fn open(&self) -> &[u8] {
        &self.open
    }

    /// Returns what all came to.
    pub fn sum(&self) -> Compressed {
        self.groups.iter().copied().fold(Compressed::default(), Compressed::plus)
    }
}

/// Returns the stored bytes of a rule's regions for each plain byte. `some`: its regions of some intervals; `default`: those of
/// the default rule, of the same intervals and of all.
pub fn compressed_share(some: &Regions, default_some: &Regions, default_all: Compressed) -> Estimate {
    let (all, default) = (some.sum(), default_some.sum());
    let value = all.share() / default.share() * default_all.share();
    // The jackknife with groups: what the ratio is without each of them.
    let pairs = some.groups.iter().zip(&default_some.groups);
    let without: Vec<f64> = pairs
        .filter(|(some, default)| 0 < some.plain + default.plain)
        .map(|(some, other)| all.minus(*some).share() / default.minus(*other).share() * default_all.share())
        .collect();
    let count = float(without.len() as u64).max(1.0);
    let mean = without.iter().sum::<f64>() / count;
    let squares: f64 = without.iter().map(|share| (share - mean).powi(2)).sum();
    Estimate { value, deviation: ((count - 1.0) / count * squares).sqrt() / value.max(f64::MIN_POSITIVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(groups: &[(u64, u64)]) -> Regions {
        let mut regions = Regions::default();
        for (group, (plain, stored)) in regions.groups.iter_mut().zip(groups) {
            *group = Compressed { plain: *plain, stored: *stored };
        }
        regions
    }

    #[test]
    fn a_rule_differs_from_the_default_as_it_does_where_both_were_compressed() {
        let default = regions(&[(1000, 100), (1000, 900), (1000, 500)]);
        // A tenth more in each.
        let other = regions(&[(1000, 110), (1000, 990), (1000, 550)]);
        let all = Compressed { plain: 1_000_000, stored: 400_000 };
        let share = compressed_share(&other, &default, all);
        assert!((share.value - 0.44).abs() < 1e-9 && share.deviation < 1e-9, "{share:?}");
        let share = compressed_share(&default, &default, all);
        assert!((share.value - 0.4).abs() < 1e-9 && share.deviation < 1e-9, "{share:?}");
        // A tenth more on average.
        let other = regions(&[(1000, 150), (1000, 900), (1000, 600)]);
        let share = compressed_share(&other, &default, all);
        assert!((share.value - 0.44).abs() < 1e-9 && 0.05 < share.deviation, "{share:?}");
    }
}
