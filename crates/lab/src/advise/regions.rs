//! Compressed size of the regions of a rule.
//!
//! The default rule compresses all new chunks, as a backup does. The others compress the new chunks of some intervals of the data
//! read, the same for all of them and for the default rule once more: what they differ by there is what they differ by at all.
//! (The usual estimator of a ratio by a variable that is known for the whole.)

use std::time::Duration;

use onefold_engine::compress::{Compression, Compressor};
use twox_hash::XxHash3_64;

use super::estimate::{Estimate, deviation};
use crate::counts::float;
use crate::processor::processor_time;

/// Plaintext of a region in a repository of the default sizes.
pub const REGION_BYTES: usize = 512 << 10;
/// Bytes of an interval, as a power of two: as much as the longest chunk.
const INTERVAL_BITS: u32 = 22;
/// Least ratio of regions of twice as large samples: a lower one comes from regions that are not full.
const DOUBLING_MIN: f64 = 0.95;
/// Regions of a sample from which the ratio is trusted by half.
const REGIONS_TRUSTED: f64 = 16.0;

/// Groups of intervals. Each is left out once to find its influence (jackknife).
pub const GROUPS: usize = 32;

/// Which intervals are compressed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compressing {
    /// Compression.
    pub compression: Compression,
    /// An interval is compressed if its hash is not above this.
    pub threshold: u64,
    /// Whether only a sample is read.
    pub is_sample: bool,
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
    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
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
    /// Appends a chunk. Returns the stored bytes of each plain one in the region before, if the chunk ends it.
    pub fn push(
        &mut self,
        chunk: &[u8],
        group: usize,
        compression: Compression,
        compressor: &mut Compressor,
    ) -> Option<f64> {
        let is_full = REGION_BYTES < self.open.len() + chunk.len();
        let ended = if is_full { self.end(compression, compressor) } else { None };
        if self.open.is_empty() {
            self.open_group = group;
        }
        self.open.extend_from_slice(chunk);
        ended
    }

    /// Compresses the collected region, and returns its stored bytes of each plain one.
    pub fn end(&mut self, compression: Compression, compressor: &mut Compressor) -> Option<f64> {
        if self.open.is_empty() {
            return None;
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
        Some(sum.share())
    }

    /// Returns the bytes that are gathered and not compressed yet.
    pub fn open(&self) -> &[u8] {
        &self.open
    }

    /// Returns the standard deviation of the share that they came to, as a part of it, by a jackknife.
    pub fn deviation(&self) -> f64 {
        let all = self.sum();
        let groups = self.groups.iter().filter(|group| 0 < group.plain);
        deviation(&groups.map(|group| all.minus(*group).share()).collect::<Vec<_>>())
            / all.share().max(f64::MIN_POSITIVE)
    }

    /// Returns what all came to without the regions of a group.
    pub fn sum_without(&self, group: usize) -> Compressed {
        self.sum().minus(self.groups.get(group).copied().unwrap_or_default())
    }

    /// Returns what all came to.
    pub fn sum(&self) -> Compressed {
        self.groups.iter().copied().fold(Compressed::default(), Compressed::plus)
    }
}

/// Returns what the regions of all data compress to, as a share of what those of a sample do. `sample` is what these come to, `half`
/// what those of half as large samples come to, and `share` the sample's share of the data. Fewer neighbors of a file are in its
/// region the smaller the sample is; each doubling is taken to save as much as the last one does, if regions are many.
pub fn neighbors(sample: Compressed, half: Compressed, share: f64) -> f64 {
    let doubling = (sample.share() / half.share()).clamp(DOUBLING_MIN, 1.0);
    let regions = float(sample.plain) / float(REGION_BYTES as u64);
    doubling.powf(-share.min(1.0).log2() * regions / (regions + REGIONS_TRUSTED))
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
    Estimate { value, deviation: deviation(&without) / value.max(f64::MIN_POSITIVE) }
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

    #[test]
    fn each_doubling_of_a_sample_saves_as_much_as_the_last_one() {
        let of = |stored: u64| Compressed { plain: 1000 << 30, stored: stored << 30 };
        assert!((neighbors(of(500), of(505), 0.25) - (500.0_f64 / 505.0).powi(2)).abs() < 1e-4);
        assert!((neighbors(of(500), of(505), 1.0) - 1.0).abs() < 1e-9);
        assert!((neighbors(of(510), of(500), 0.01) - 1.0).abs() < 1e-9);
        let region = |stored| Compressed { plain: REGION_BYTES as u64, stored };
        assert!(0.99 < neighbors(region(100_000), region(105_000), 0.1));
        assert!((neighbors(of(100), of(900), 0.5) - DOUBLING_MIN).abs() < 1e-4);
    }
}
