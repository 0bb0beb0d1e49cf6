//! Memory of copying.

use crate::backup::{COMPRESSOR_BYTES, CONTAINER_BYTES, MIB, REGION_BYTES, SEALING_BYTES};
use crate::collect::lifetime::CLASSES;
use crate::store::container_writer::WriterLimits;

/// Division of a memory budget among the queues and buffers of copying. Containers and regions count with their default sizes:
/// a repository with larger ones takes more.
#[derive(Clone, Copy, Debug)]
pub struct CopyBudget {
    /// Memory for sorting the list of chunks, in bytes. Sorting ends before anything else begins but the reading of the list.
    pub sort_bytes: usize,
    /// Containers being read.
    pub containers_reading: usize,
    /// Regions being opened, and as many being compressed.
    pub regions_opening: usize,
    /// Groups of chunks that are packed together. Each has an open region and an open container.
    pub groups_max: usize,
    /// Containers being sealed.
    pub containers_sealing: usize,
    /// Containers being written.
    pub containers_writing: usize,
    /// Containers between two barriers.
    pub barrier_containers: usize,
    /// Threads that compute.
    pub threads: usize,
}

/// A region being opened: its sealed bytes, its plaintext, and what is kept of it.
const OPENING_BYTES: usize = 2 * REGION_BYTES;
/// An open region with its plaintext, and an open container.
const GROUP_BYTES: usize = CONTAINER_BYTES + REGION_BYTES;
/// The most memory for sorting in bytes.
const SORT_BYTES_MAX: usize = 16 * MIB;

impl CopyBudget {
    /// The least memory that can be divided, in bytes.
    pub const BYTES_MIN: usize = 52 * MIB;

    /// Divides `bytes`, which must be at least [`CopyBudget::BYTES_MIN`], for `threads` threads that compute.
    pub fn of(bytes: usize, threads: usize) -> Self {
        let threads = threads.max(1);
        let mut budget = Self {
            sort_bytes: (bytes / 16).clamp(MIB, SORT_BYTES_MAX),
            containers_reading: (bytes / 16 / CONTAINER_BYTES).clamp(1, 4),
            regions_opening: (bytes / 16 / (OPENING_BYTES + REGION_BYTES)).clamp(1, 2 + 2 * threads),
            groups_max: 2,
            containers_sealing: (bytes / 6 / SEALING_BYTES).clamp(1, 1 + threads),
            containers_writing: (bytes / 16 / CONTAINER_BYTES).clamp(1, 4),
            barrier_containers: 16,
            threads,
        };
        let free = bytes.saturating_sub(budget.memory_bytes());
        budget.groups_max += (free / GROUP_BYTES).min(2 * CLASSES - budget.groups_max);
        budget
    }

    /// Returns what the shares add up to, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // One container and one region more than each queue holds are in somebody's hands. More threads than there are jobs
        // never compress at the same time.
        let reading = (self.containers_reading + 1) * CONTAINER_BYTES;
        let regions = (self.regions_opening + 1) * (OPENING_BYTES + REGION_BYTES);
        let jobs = 2 * self.regions_opening + self.containers_sealing;
        let compressors = (self.threads.min(jobs) + 1) * COMPRESSOR_BYTES;
        let writing = self.containers_sealing * SEALING_BYTES + self.containers_writing * CONTAINER_BYTES;
        let copying = reading + regions + compressors + self.groups_max * GROUP_BYTES + writing;
        // The cursor over the sorted list stays while chunks are copied.
        self.sort_bytes + copying
    }

    /// Returns the limits of the writer of containers.
    pub(super) fn writer_limits(&self) -> WriterLimits {
        let &Self { containers_sealing: sealing, containers_writing: writing, barrier_containers: barrier, .. } = self;
        WriterLimits { sealing, writing, barrier }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_budget_and_every_kind_has_a_group() {
        for mebibytes in [52, 53, 64, 96, 128, 200, 512, 4096] {
            for threads in [1, 2, 8, 64, 256] {
                let bytes = mebibytes * MIB;
                let budget = CopyBudget::of(bytes, threads);
                assert!(budget.memory_bytes() <= bytes, "{mebibytes} MiB, {threads} threads: {budget:?}");
                assert!((2..=2 * CLASSES).contains(&budget.groups_max), "{budget:?}");
            }
        }
        assert_eq!(CopyBudget::of(128 * MIB, 2).groups_max, 2 * CLASSES);
    }
}
