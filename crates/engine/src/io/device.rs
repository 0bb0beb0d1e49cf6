//! What the device under a file can do, and what follows from that for how to read.

/// What the device under a file was measured to do with direct reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceProfile {
    /// Reads of 4 KiB at random places each second, one after the other.
    pub random_reads_per_s_single: u64,
    /// The same with [`DeviceProfile::DEPTH`] in flight.
    pub random_reads_per_s_deep: u64,
    /// Bytes each second, read in order.
    pub sequential_bytes_per_s: u64,
}

impl DeviceProfile {
    /// Reads in flight for `random_reads_per_s_deep`.
    pub const DEPTH: u64 = 32;

    /// Says whether to read `bucket_bytes` in one go rather than `pages` single pages of them.
    ///
    /// The model: `pages` in flight together take `pages / min(pages * single, deep)` seconds, since reads in flight add
    /// up until the device is full; one large read takes the time of a single small one to get there, and
    /// `bucket_bytes / sequential` to go through. So a disk with an arm, on which 32 in flight are hardly faster than
    /// one, soon prefers the bucket, and an SSD does not as long as `pages` are fewer than its depth makes cheap. At
    /// equal times the pages win: they take less memory. Zero rates count as one.
    pub fn prefers_whole_bucket(&self, bucket_bytes: u64, pages: u64) -> bool {
        let nanoseconds =
            |count: u64, per_second: u64| u128::from(count) * 1_000_000_000 / u128::from(per_second.max(1));
        let single = self.random_reads_per_s_single.max(1);
        // The depth cannot make reads slower than one after the other.
        let deep = self.random_reads_per_s_deep.max(single);
        let of_pages = nanoseconds(pages, single.saturating_mul(pages).min(deep));
        let of_bucket = nanoseconds(1, single) + nanoseconds(bucket_bytes, self.sequential_bytes_per_s);
        of_bucket < of_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 ms for the arm, 150 MB/s.
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
    fn a_disk_with_an_arm_takes_the_bucket_from_a_few_pages_on_and_an_ssd_only_for_most_of_it() {
        // A bucket of 256 KiB has 64 pages. From how many on is it read whole?
        let turn = |device: DeviceProfile| (0..=64).find(|pages| device.prefers_whole_bucket(256 << 10, *pages));
        assert_eq!(turn(HARD_DISK), Some(3));
        assert_eq!(turn(SSD), Some(21));
        assert_eq!(turn(NVME), Some(60));
    }

    #[test]
    fn one_page_is_never_dearer_than_its_bucket_and_more_pages_never_speak_for_pages() {
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
