//! Costs of reads on a device, as a schedule weighs them.
//!
//! A batch of reads takes the sum of their latencies divided by the depth of the device, but at least one latency, and the
//! time to transfer its bytes. The three numbers follow from the measured [`DeviceProfile`]. All arithmetic is that of IEEE
//! 754 without transcendental functions, so that equal profiles give equal decisions on every machine.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::locality::arrival_log::LOG_PAGE_RECORDS;
use crate::io::DeviceProfile;
use crate::kv::{BucketReads, PAGE_BYTES};

/// Profile that stands for a device that was not measured: an SSD on SATA.
const UNMEASURED: DeviceProfile = DeviceProfile {
    random_reads_per_s_single: 11_000,
    random_reads_per_s_deep: 93_000,
    sequential_bytes_per_s: 500_000_000,
};

/// Seconds of processor time to add a record to the cache and to compare it with pending chunks.
pub(in crate::identify) const RECORD_SECONDS: f64 = 25e-9;

/// Seconds of processor time to let a chunk wait.
pub(in crate::identify) const WAIT_SECONDS: f64 = 100e-9;

/// Seconds of processor time to look a chunk up.
pub(in crate::identify) const KEY_SECONDS: f64 = 100e-9;

/// Seconds of processor time that each chunk of the stream takes besides, whatever the plan is: reads in the background overlap with it.
pub(in crate::identify) const CHUNK_SECONDS: f64 = 200e-9;

/// Depth from which lookups in the background pay: below it, a batch takes hardly less time than its reads one by one.
const DEPTH_IN_BACKGROUND: f64 = 3.0;

/// Costs of a device in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::identify) struct DeviceCosts {
    /// Of a read, besides its transfer.
    latency: f64,
    /// Reads that the device serves at the same time.
    depth: f64,
    /// Of a byte.
    byte: f64,
}

impl DeviceCosts {
    /// Takes the costs from a profile. Rates of zero count as one.
    pub(in crate::identify) fn of_profile(profile: DeviceProfile) -> Self {
        let rate = |per_s: u64| per_s.max(1) as f64;
        let byte = 1.0 / rate(profile.sequential_bytes_per_s);
        let transfer = PAGE_BYTES as f64 * byte;
        // A page cannot take less than its transfer. What a profile measured together is divided again.
        let latency = (1.0 / rate(profile.random_reads_per_s_single) - transfer).max(1e-9);
        let deep = (1.0 / rate(profile.random_reads_per_s_deep) - transfer).max(1e-9);
        Self { latency, depth: (latency / deep).clamp(1.0, DeviceProfile::DEPTH as f64), byte }
    }

    /// Takes the costs of the device for which lookups read a table in some way.
    pub(in crate::identify) fn of_reads(reads: BucketReads) -> Self {
        Self::of_profile(match reads {
            BucketReads::ByDevice(profile) => profile,
            BucketReads::Pages | BucketReads::Whole | BucketReads::Entire => UNMEASURED,
        })
    }

    /// Returns the time of reads that are submitted together; a fraction of a read takes that fraction of a latency.
    pub(in crate::identify) fn batch(&self, reads: f64, bytes: f64) -> f64 {
        (reads * self.latency / self.depth).max(self.latency * reads.min(1.0)) + bytes * self.byte
    }

    /// Returns how many pages take as long to transfer as another read of a full batch: a shorter gap is read through.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "truncated, since a gap that takes longer is not read; the quotient is positive"
    )]
    pub(in crate::identify) fn gap_pages(&self) -> u64 {
        (self.latency / self.depth / (self.byte * PAGE_BYTES as f64)) as u64
    }

    /// Returns the same in records of the log.
    pub(in crate::identify) fn gap_records(&self) -> u64 {
        self.gap_pages() * LOG_PAGE_RECORDS as u64
    }

    /// Returns true if lookups in the background pay.
    pub(in crate::identify) fn is_deep(&self) -> bool {
        DEPTH_IN_BACKGROUND <= self.depth
    }
}

/// Costs of lookups in the table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::identify) struct LookupCosts {
    /// Of the device.
    pub(in crate::identify) device: DeviceCosts,
    /// Pages of the table.
    pub(in crate::identify) pages: f64,
    /// Pages that the search for a key needs; less than one if the memtable answers.
    pub(in crate::identify) pages_per_key: f64,
}

impl LookupCosts {
    /// Returns the time of a lookup of `keys` keys in one batch.
    ///
    /// If a key needs several pages, it needs them one after the other. Where seeks are expensive, a round reads what all keys need next, and
    /// the last keys have rounds of their own: of those that need a page, each round leaves as many as the mean number of pages says if
    /// each page is the last with the same probability.
    pub(in crate::identify) fn time(&self, keys: f64) -> f64 {
        let steps = self.pages_per_key.max(1.0);
        let (mut left, mut seconds) = (keys * self.pages_per_key / steps, 0.0);
        while 1.0 < left && self.device.gap_pages() != 0 {
            seconds += self.round(left);
            left -= left / steps;
        }
        seconds + self.round(left) * steps
    }

    /// Returns the time to read `needed` pages, of different keys, in one batch.
    ///
    /// Pages of neighboring keys whose gap is read through share a read. Keys are uniform, so a page has its next neighbor
    /// within `gap` pages with a probability of 1 - e^-x for x = `needed * gap / pages`; `1 / (1 + x + x^2 / 2)` stands for
    /// e^-x.
    fn round(&self, needed: f64) -> f64 {
        if needed <= 0.0 {
            return 0.0;
        }
        let gap = self.device.gap_pages() as f64;
        let x = needed * gap / self.pages.max(1.0);
        let reads = (needed / (1.0 + x + x * x / 2.0)).max(needed.min(1.0));
        let gaps = (needed - reads) * (self.pages / needed).min(gap).max(1.0);
        let pages = (reads + gaps).min(self.pages.max(reads));
        self.device.batch(reads, pages * PAGE_BYTES as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const HARD_DISK: DeviceProfile = DeviceProfile {
        random_reads_per_s_single: 83,
        random_reads_per_s_deep: 83,
        sequential_bytes_per_s: 160_000_000,
    };

    #[test]
    fn a_profile_gives_latency_depth_and_gap() {
        let disk = DeviceCosts::of_profile(HARD_DISK);
        assert!((0.0119..0.0121).contains(&disk.latency) && disk.depth < 1.01, "{disk:?}");
        assert!((460..480).contains(&disk.gap_pages()) && !disk.is_deep());
        let ssd = DeviceCosts::of_profile(UNMEASURED);
        assert!((75e-6..90e-6).contains(&ssd.latency) && ssd.is_deep() && ssd.gap_pages() == 0, "{ssd:?}");
        // Absurd rates.
        for rate in [0, 1, u64::MAX] {
            let profile = DeviceProfile {
                random_reads_per_s_single: rate,
                random_reads_per_s_deep: u64::MAX - rate,
                sequential_bytes_per_s: rate,
            };
            let costs = DeviceCosts::of_profile(profile);
            assert!(costs.batch(7.0, 4096.0).is_finite() && 0.0 < costs.batch(0.5, 0.0), "{costs:?}");
        }
    }

    #[test]
    fn a_batch_takes_at_least_a_latency_and_its_transfer() {
        let costs = DeviceCosts { latency: 1.0, depth: 4.0, byte: 0.5 };
        let batches = [(0.0, 0.0), (0.5, 0.0), (1.0, 2.0), (4.0, 0.0), (8.0, 4.0)];
        let taken: Vec<f64> = batches.map(|(reads, bytes)| costs.batch(reads, bytes)).to_vec();
        assert_eq!(taken, [0.0, 0.5, 2.0, 1.0, 4.0]);
    }

    #[test]
    fn keys_of_a_large_batch_share_reads_where_seeks_are_expensive() {
        let costs =
            |profile| LookupCosts { device: DeviceCosts::of_profile(profile), pages: 10_000.0, pages_per_key: 1.0 };
        let disk = costs(HARD_DISK);
        // All of the table is read at once.
        assert!(disk.time(4_000.0) < 50.0 * disk.time(1.0), "{}", disk.time(4_000.0) / disk.time(1.0));
        assert!(5.0 * disk.time(1.0) < disk.time(6.0) * 1.01 * 1.2);
        let ssd = costs(UNMEASURED);
        assert!(3_000.0 * ssd.time(1.0) / 9.0 < ssd.time(4_000.0));
        assert!(LookupCosts { pages_per_key: 0.0, ..disk }.time(100.0) <= 0.0);
    }

    #[test]
    fn the_last_keys_of_a_batch_take_rounds_of_their_own_where_seeks_are_expensive() {
        let costs = |profile, pages_per_key| LookupCosts {
            device: DeviceCosts::of_profile(profile),
            pages: 1_000.0,
            pages_per_key,
        };
        let disk = |pages_per_key| costs(HARD_DISK, pages_per_key).time(12_000.0);
        // A second and a third round read most of the table again; the next ones have a few keys each.
        assert!((2.5..10.0).contains(&(disk(1.5) / disk(1.0))), "{}", disk(1.5) / disk(1.0));
        assert!(disk(1.1) < disk(1.5) && disk(1.5) < disk(2.0));
        let single = costs(HARD_DISK, 1.5).time(1.0) / costs(HARD_DISK, 1.0).time(1.0);
        assert!((single - 1.5).abs() < 1e-9, "{single}");
        let ssd = costs(UNMEASURED, 1.5).time(12_000.0) / costs(UNMEASURED, 1.0).time(12_000.0);
        assert!((ssd - 1.5).abs() < 1e-9, "{ssd}");
    }
}
