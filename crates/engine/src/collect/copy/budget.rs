//! Memory of copying.

use crate::backup::{COMPRESSOR_BYTES, CONTAINER_BYTES, MIB, REGION_BYTES, SEALING_BYTES};
use crate::collect::copies::Copies;
use crate::collect::lifetime::CLASSES;
use crate::compress::Compression;
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
    /// Regions being compressed.
    pub compressing: usize,
    /// Memory of a compressor, in bytes.
    pub compressor_bytes: usize,
    /// Memory of a region being opened and compressed, in bytes.
    pub region_bytes: usize,
}

/// A region being opened: its sealed bytes, its plaintext, and what is kept of it.
const OPENING_BYTES: usize = 2 * REGION_BYTES;
/// An open region with its plaintext, and an open container.
const GROUP_BYTES: usize = CONTAINER_BYTES + REGION_BYTES;
/// The stored form of a region whose live chunks are compressed again: it is kept until it is known which is shorter.
const STORED_BYTES: usize = REGION_BYTES / 2;
/// A compressor at levels 4 to 9, with its buffers, for a region of the default size: tables of up to 2^20 entries. Measured by a test.
const COMPRESSOR_BYTES_TO_9: usize = 15 * MIB / 2;
/// A compressor at levels above 9.
const COMPRESSOR_BYTES_ABOVE_9: usize = 11 * MIB;
/// A thread that opens or seals, with a decompressor.
const DECOMPRESSOR_BYTES: usize = MIB / 4;
/// The most memory for sorting in bytes.
const SORT_BYTES_MAX: usize = 16 * MIB;

impl CopyBudget {
    /// The least memory that can be divided, in bytes.
    pub const BYTES_MIN: usize = 52 * MIB;

    /// Divides `bytes`, which must be at least [`CopyBudget::BYTES_MIN`], for `threads` threads that compute. Where compressors take much
    /// memory, fewer threads compress at the same time.
    pub fn of(bytes: usize, threads: usize, copies: Copies) -> Self {
        let threads = threads.max(1);
        let compressor_bytes = compressor_bytes(copies.compression);
        let mut budget = Self {
            sort_bytes: (bytes / if compressor_bytes == COMPRESSOR_BYTES { 16 } else { 32 }).clamp(MIB, SORT_BYTES_MAX),
            containers_reading: (bytes / 16 / CONTAINER_BYTES).clamp(1, 4),
            regions_opening: (bytes / 16 / (OPENING_BYTES + REGION_BYTES)).clamp(1, 2 + 2 * threads),
            groups_max: 2,
            containers_sealing: (bytes / 6 / SEALING_BYTES).clamp(1, 1 + threads),
            containers_writing: (bytes / 16 / CONTAINER_BYTES).clamp(1, 4),
            barrier_containers: 16,
            threads,
            compressing: 0,
            compressor_bytes,
            region_bytes: OPENING_BYTES + REGION_BYTES + if copies.recompresses { STORED_BYTES } else { 0 },
        };
        let free = bytes.saturating_sub(budget.memory_bytes());
        budget.compressing = (free / compressor_bytes).clamp(1, budget.computing());
        let free = bytes.saturating_sub(budget.memory_bytes());
        budget.groups_max += (free / GROUP_BYTES).min(2 * CLASSES - budget.groups_max);
        budget
    }

    /// Returns what the shares add up to, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // One container and one region more than each queue holds are in somebody's hands.
        let reading = (self.containers_reading + 1) * CONTAINER_BYTES;
        let regions = (self.regions_opening + 1) * self.region_bytes;
        let others = self.computing() * DECOMPRESSOR_BYTES;
        let compressors = self.compressing * self.compressor_bytes + others;
        let writing = self.containers_sealing * SEALING_BYTES + self.containers_writing * CONTAINER_BYTES;
        let copying = reading + regions + compressors + self.groups_max * GROUP_BYTES + writing;
        // The cursor over the sorted list stays while chunks are copied.
        self.sort_bytes + copying
    }

    /// Returns how many threads compute at the same time: the one that packs does, too.
    fn computing(&self) -> usize {
        // More threads than there are jobs never do.
        let jobs = 2 * self.regions_opening + self.containers_sealing;
        self.threads.min(jobs) + 1
    }

    /// Returns the limits of the writer of containers.
    pub(super) fn writer_limits(&self) -> WriterLimits {
        let &Self { containers_sealing: sealing, containers_writing: writing, barrier_containers: barrier, .. } = self;
        WriterLimits { sealing, writing, barrier }
    }
}

/// Returns the memory of a compressor, the one that probes and buffers for the worst case included.
fn compressor_bytes(compression: Compression) -> usize {
    match compression {
        Compression::Off | Compression::Lz4 => COMPRESSOR_BYTES,
        Compression::Zstd(level) | Compression::PaddedZstd(level) => match level {
            ..=3 => COMPRESSOR_BYTES,
            4..=9 => COMPRESSOR_BYTES_TO_9,
            10.. => COMPRESSOR_BYTES_ABOVE_9,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Compressor, Tables};
    use crate::random::SplitMix64;

    #[test]
    fn compressors_take_what_is_counted_at_every_level() {
        let words: Vec<u8> = (0..REGION_BYTES / 2).map(|at| b"some words"[(at * at / 7 + at / 100) % 10]).collect();
        let mut random = SplitMix64::new(1);
        let noise: Vec<u8> = (0..REGION_BYTES / 16).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        for (level, tables) in (1..=19).map(|level| (level, Tables::Small)).chain([(3, Tables::Large)]) {
            let (mut compressor, mut stored) = (Compressor::with_tables(tables), Vec::new());
            // Noise is probed first.
            for plain in [&noise, &words] {
                compressor.compress(Compression::Zstd(level), plain, &mut stored);
            }
            let (took, counted) = (compressor.memory_bytes(), compressor_bytes(Compression::Zstd(level)));
            assert!(took <= counted, "level {level}: {took} bytes of {counted}");
        }
    }

    #[test]
    fn shares_add_up_to_the_budget_and_every_kind_has_a_group() {
        for mebibytes in [52, 53, 64, 96, 128, 200, 512, 4096] {
            for threads in [1, 2, 8, 64, 256] {
                for copies in [
                    Copies::mostly_as_stored(Compression::Zstd(3)),
                    Copies::recompressed(None),
                    Copies::recompressed(Some(Compression::Zstd(19))),
                ] {
                    let bytes = mebibytes * MIB;
                    let budget = CopyBudget::of(bytes, threads, copies);
                    let case = format!("{mebibytes} MiB, {threads} threads, {copies:?}: {budget:?}");
                    assert!(budget.memory_bytes() <= bytes, "{case}");
                    assert!((2..=2 * CLASSES).contains(&budget.groups_max), "{case}");
                    assert!(0 < budget.compressing, "{case}");
                }
            }
        }
        let plain = Copies::mostly_as_stored(Compression::Zstd(3));
        assert_eq!(CopyBudget::of(128 * MIB, 2, plain).groups_max, 2 * CLASSES);
        let budget = CopyBudget::of(352 * MIB, 2, Copies::recompressed(None));
        assert_eq!((budget.compressing, budget.groups_max), (3, 2 * CLASSES));
    }
}
