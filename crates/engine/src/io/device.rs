//! Measured speed of the device under a file, and the choice between reading pages and buckets.

/// Measured speed of direct reads from the device under a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceProfile {
    /// Reads of 4 KiB at random offsets per second, one at a time.
    pub random_reads_per_s_single: u64,
    /// Reads of 4 KiB at random offsets per second, with [`DeviceProfile::DEPTH`] in flight.
    pub random_reads_per_s_deep: u64,
    /// Bytes per second of sequential reads.
    pub sequential_bytes_per_s: u64,
}

impl DeviceProfile {
    /// Reads in flight for `random_reads_per_s_deep`.
    pub const DEPTH: u64 = 32;

    /// Returns true if one read of `bucket_bytes` is faster than reads of `pages` single pages.
    ///
    /// In the model, `pages` reads in flight take `pages / min(pages * single, deep)` seconds, because concurrent reads
    /// add up until the device is saturated. One large read takes the time of a small one plus `bucket_bytes /
    /// sequential`. A hard disk, on which 32 reads in flight are hardly faster than one, prefers the bucket from a few
    /// pages on; an SSD prefers it only for a larger share of the pages. At equal times the pages win, because they
    /// take less memory. Zero rates count as one.
    pub(crate) fn prefers_whole_bucket(&self, bucket_bytes: u64, pages: u64) -> bool {
        let nanoseconds =
            |count: u64, per_second: u64| u128::from(count) * 1_000_000_000 / u128::from(per_second.max(1));
        let single = self.random_reads_per_s_single.max(1);
        // Reads in flight cannot be slower than one at a time.
        let deep = self.random_reads_per_s_deep.max(single);
        let of_pages = nanoseconds(pages, single.saturating_mul(pages).min(deep));
        let of_bucket = nanoseconds(1, single) + nanoseconds(bucket_bytes, self.sequential_bytes_per_s);
        of_bucket < of_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hard disk: 8 ms for each seek, 150 MB/s.
    const HARD_DISK: DeviceProfile = DeviceProfile {
        random_reads_per_s_single: 120,
        random_reads_per_s_deep: 250,
        sequential_bytes_per_s: 150_000_000,
    };
    const SSD: DeviceProfile = DeviceProfile {
        random_reads_per_s_single: 19_000,
        random_reads_per_s_deep: 89_000,
        sequential_bytes_per_s: 1_500_000_000,
    };
    const NVME: DeviceProfile = DeviceProfile {
        random_reads_per_s_single: 12_000,
        random_reads_per_s_deep: 350_000,
        sequential_bytes_per_s: 3_000_000_000,
    };

    #[test]
    fn a_hard_disk_prefers_the_bucket_from_fewer_pages_on_than_an_ssd() {
        // Returns the number of pages from which a bucket of 256 KiB, which has 64 pages, is read whole.
        let limit = |device: DeviceProfile| (0..=64).find(|pages| device.prefers_whole_bucket(256 << 10, *pages));
        assert_eq!(limit(HARD_DISK), Some(3));
        assert_eq!(limit(SSD), Some(21));
        assert_eq!(limit(NVME), Some(60));
    }

    #[test]
    fn one_page_never_prefers_the_bucket_and_more_pages_only_favor_it() {
        for device in [HARD_DISK, SSD, NVME] {
            for bytes in [4096, 64 << 10, 1 << 20, 64 << 20] {
                assert!(!device.prefers_whole_bucket(bytes, 0) && !device.prefers_whole_bucket(bytes, 1));
                let answers: Vec<bool> = (0..1000).map(|pages| device.prefers_whole_bucket(bytes, pages)).collect();
                assert!(answers.is_sorted(), "{device:?} {bytes}");
            }
        }
        assert!(!HARD_DISK.prefers_whole_bucket(64 << 20, 64));
    }

    #[test]
    fn absurd_rates_divide_by_nothing() {
        let still =
            DeviceProfile { random_reads_per_s_single: 0, random_reads_per_s_deep: 0, sequential_bytes_per_s: 0 };
        assert!(still.prefers_whole_bucket(0, 2) && !still.prefers_whole_bucket(u64::MAX, u64::MAX));
        let endless = u64::MAX;
        let fast = DeviceProfile {
            random_reads_per_s_single: endless,
            random_reads_per_s_deep: endless,
            sequential_bytes_per_s: endless,
        };
        assert!(!fast.prefers_whole_bucket(u64::MAX, 1));
    }
}
