//! Backup: from a source to a committed snapshot.

pub(crate) mod assemble;
mod base_stages;
pub mod bases;
pub(crate) mod block;
pub mod cut;
mod device;
pub mod dry_run;
mod entry;
pub(crate) mod identify;
pub mod ingest;
mod live;
pub(crate) mod long_file;
pub(crate) mod pack;
pub(crate) mod parent;
pub(crate) mod part;
pub(crate) mod read;
pub mod record;
pub mod reuse;
pub mod rewriting;
pub mod run;
pub mod similar;
mod source_file;
mod sparse;
mod streamed;
mod unread;
pub mod writer;

use block::BLOCK_BYTES;

use onefold_accel::device::{Limits, Search};

use crate::chunk::CHUNK_BYTES_AVERAGE;
use crate::container::bases::{BASES_MAX, CHAIN_REGIONS_MAX};
use crate::source::ahead::SHARE_BYTES;
use crate::store::container_writer::{CONTAINER_CHUNKS, WriterLimits};

pub use crate::monitor::{Action, Monitor, Silent};
pub use base_stages::BaseChoices;
use base_stages::{METADATA_COMPRESSING_PART, METADATA_DEPTH};
pub use bases::{ChooseBases, NewRegion, OpenedCandidate, OpenedRegion, PlacedRegion, Proposal};
pub use dry_run::{DryRun, dry_run};
pub use entry::AccessTimes;
pub use parent::Comparison;
pub use reuse::{ChunkFinder, Proof, Reuse};
pub use run::{BackupOptions, BackupReport, Unchanged, backup};
use similar::METADATA_REFERRED_PART;
pub use writer::{Writer, WriterOptions};

/// Division of a memory budget among the queues and buffers of a backup.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Threads that compute.
    pub threads: usize,
    /// Blocks read ahead, and in each of the two queues after that; 512 KiB each.
    pub blocks_in_flight: usize,
    /// Blocks that are cut and named ahead of identification, which has a thread of its own then, and leaves it to workers to copy new chunks;
    /// 0: one thread does all of it.
    pub cut_ahead: usize,
    /// Regions being compressed, of each kind.
    pub regions_in_flight: usize,
    /// Containers being sealed.
    pub containers_sealing: usize,
    /// Containers being written.
    pub containers_writing: usize,
    /// Containers between two barriers. What is not recorded is at most twice that.
    pub barrier_containers: usize,
    /// Bytes of chunks whose verdict is pending.
    pub pending_bytes: usize,
    /// References whose container is not known yet; about 200 bytes each.
    pub references_in_flight: usize,
    /// Steps of the walk that wait for references before them; about 600 bytes each.
    pub steps_waiting: usize,
    /// Shares of what the walk finds ahead; 128 KiB each.
    pub walk_shares: usize,
    /// Bytes for reading the parent's metadata.
    pub parent_bytes: usize,
    /// Bytes for the index.
    pub index_bytes: usize,
    /// Batches on a device at the same time; 0 without one.
    pub device_batches: usize,
    /// Blocks of such a batch, at most.
    pub device_blocks: usize,
    /// Bytes for the bases of regions; 0: regions get none.
    pub bases_bytes: usize,
    /// Bytes for the index of similar regions; 0: there is none.
    pub similar_bytes: usize,
    /// Chains of bases that are read at the same time; 8 MiB each.
    pub base_chains: usize,
    /// Regions that are compressed against bases at the same time; 3.5 MiB each.
    pub base_threads: usize,
}

pub(crate) const MIB: usize = 1 << 20;
/// A container under way, of the default size.
pub(crate) const CONTAINER_BYTES: usize = 4 * MIB;
/// A container being sealed: its regions, its bytes, and one region opened again and decompressed.
pub(crate) const SEALING_BYTES: usize = 2 * CONTAINER_BYTES + MIB;
/// A region being compressed, of the default size: its plaintext and its stored form.
pub(crate) const REGION_BYTES: usize = MIB;
/// A waiting reference, with its entries in the queue and in the map of locations.
const REFERENCE_BYTES: usize = 200;
/// A step of the walk that waits: a file's path, name and metadata.
const STEP_BYTES: usize = 600;
/// A block with the steps of the walk that came with it, where files are small.
const BLOCK_AND_STEPS_BYTES: usize = BLOCK_BYTES + MIB / 4;
/// State of a compressor at the default level and of the one that probes, and buffers for the worst case; one for each
/// thread that computes and one for the sequencer.
pub(crate) const COMPRESSOR_BYTES: usize = 5 * MIB / 2;
/// State of a compressor at the default level with a prefix: tables of 2^18 and 2^17 entries, and a buffer for the worst case.
const PREFIX_COMPRESSOR_BYTES: usize = 5 * MIB / 2;
/// The least memory that is worth keeping bases in, with features and directories: plaintexts of six regions.
const BASES_BYTES_MIN: usize = 11 * REGION_BYTES / 2;
/// The greatest: plaintexts of 72 regions, 18 MiB of features and 18 MiB of directories.
const BASES_BYTES_MAX: usize = 64 * REGION_BYTES;
/// Plaintexts of one chain of bases.
const CHAIN_BYTES: usize = CHAIN_REGIONS_MAX * REGION_BYTES / 2;
/// A prefix of two regions, and the state of a compressor for it.
const PREFIX_BYTES: usize = BASES_MAX * REGION_BYTES / 2 + PREFIX_COMPRESSOR_BYTES;
/// Names of chunks that a session refers to, and of those of bases that it may refer to.
const REFERRED_BYTES: usize = 5 * MIB / 2;
/// Most that the walk looks ahead: a directory on each of eight levels, and seven in it.
const WALK_SHARES_MAX: usize = 64;
/// Memory that keeps one computing thread busy: its compressor, blocks, regions and a container.
const THREAD_BYTES: usize = 32 * MIB;
/// A unique chunk between two barriers: in the maps of the identifier and of locations, in its region and its unit.
const UNRECORDED_BYTES: usize = 320;

/// Threads from which on cutting has one of its own: with fewer, the thread that identifies is not the slowest.
const CUT_AHEAD_THREADS: usize = 4;
/// Blocks that cutting is ahead: more than one, so that neither thread waits for the other to wake.
const CUT_AHEAD: usize = 4;

/// Batches on a device: three on their way there or searched, two of which the device is ahead of cutting; two being named; and one that
/// gets a free position while the others finish.
const DEVICE_BATCHES: usize = 6;
/// Bytes of a batch: with less than 8 MiB, launches and small copies take a part of the time; with more, memory only grows.
const DEVICE_BATCH_BYTES: usize = 16 * MIB;

impl Budget {
    /// Divides `bytes`, which must be at least [`Budget::BYTES_MIN`]. Queues get what their depth needs, at most as much as
    /// keeps `threads` busy; the index gets the rest, at most half. Containers and regions count with their default sizes: a
    /// repository with larger ones takes more. The budget does not cover the program, its stacks and the allocator's
    /// overhead; these take at most 64 MiB more.
    pub fn of(bytes: usize, threads: usize) -> Self {
        let barrier_bytes = 2 * CONTAINER_CHUNKS * UNRECORDED_BYTES;
        let threads = Self::threads(bytes, threads);
        let mut budget = Self {
            threads,
            blocks_in_flight: (bytes / 10 / (3 * BLOCK_AND_STEPS_BYTES)).clamp(1, (4 + threads).max(2 * threads)),
            cut_ahead: if CUT_AHEAD_THREADS <= threads { CUT_AHEAD } else { 0 },
            regions_in_flight: (bytes / 24 / (2 * REGION_BYTES)).clamp(1, 4 + 2 * threads),
            containers_sealing: (bytes / 8 / SEALING_BYTES).clamp(1, 1 + threads),
            containers_writing: (bytes / 16 / CONTAINER_BYTES).clamp(1, 4),
            barrier_containers: (bytes / 32 / barrier_bytes).clamp(2, 16),
            pending_bytes: (bytes / 16).clamp(4 * MIB, 64 * MIB),
            references_in_flight: (bytes / 64 / REFERENCE_BYTES).clamp(1 << 12, 1 << 16),
            steps_waiting: (bytes / 64 / STEP_BYTES).clamp(1 << 10, 1 << 16),
            walk_shares: (bytes / 128 / SHARE_BYTES).clamp(1, WALK_SHARES_MAX),
            parent_bytes: (bytes / 16).clamp(4 * MIB, 64 * MIB),
            index_bytes: 0,
            device_batches: 0,
            device_blocks: 0,
            bases_bytes: 0,
            similar_bytes: 0,
            base_chains: 1,
            base_threads: 1,
        };
        budget.index_bytes = bytes.saturating_sub(budget.memory_bytes()).min(bytes / 2);
        budget
    }

    /// Gives a device its share of `bytes`, which must be at least [`Budget::DEVICE_BYTES_MIN`] and what the budget was made of. The share is
    /// taken from that of the index. It does not cover the driver's own memory, some hundred MiB.
    #[must_use]
    pub fn with_device(self, bytes: usize) -> Self {
        let mut budget = Self {
            index_bytes: 0,
            device_batches: DEVICE_BATCHES,
            device_blocks: DEVICE_BATCH_BYTES / BLOCK_BYTES,
            ..self
        };
        budget.index_bytes = bytes.saturating_sub(budget.memory_bytes()).min(bytes / 2);
        budget
    }

    /// Returns the sizes of a device's queue; `None` without a device.
    pub(crate) fn device_limits(&self) -> Option<Limits> {
        let &Self { device_batches: batches, device_blocks: blocks, .. } = self;
        let joined_bytes = blocks * BLOCK_BYTES / 8;
        (batches != 0 && blocks != 0).then_some(Limits { block_bytes: BLOCK_BYTES, blocks, batches, joined_bytes })
    }

    /// Returns how many blocks lie in memory that a device reads: those of all batches, and those that are read ahead of them or wait behind
    /// them. A block in other memory is the processor's.
    pub(crate) fn device_buffers(&self) -> usize {
        self.device_batches * self.device_blocks + 2 * (self.blocks_in_flight + 1)
    }

    /// Returns the memory of a device's blocks, lists and results, and of the queue that reads small files for it. The queues before a device
    /// count among those of a backup without one.
    fn device_bytes(&self) -> usize {
        let Some(limits) = self.device_limits() else { return 0 };
        // Chunks of the smallest average have the most candidates.
        let threshold = u32::MAX / (CHUNK_BYTES_AVERAGE.start() / 2);
        let slots = Search { table: Box::new([0; 256]), threshold }.slots();
        let blocks = limits.blocks * limits.batches + self.blocks_in_flight + 1;
        blocks * BLOCK_AND_STEPS_BYTES + limits.host_bytes(slots)
    }

    /// Returns the limits of the writer of containers.
    pub(crate) fn writer_limits(&self) -> WriterLimits {
        let &Self { containers_sealing: sealing, containers_writing: writing, barrier_containers: barrier, .. } = self;
        WriterLimits { sealing, writing, barrier }
    }

    /// Takes memory for similar regions and their bases: what is left of `bytes`, of which the budget was made, and at most a third of the
    /// memory of the index of chunks; nothing if too little were left of either. The cache of bases is at most 64 MiB, so that the index of regions
    /// grows with the budget.
    #[must_use]
    pub fn with_bases(self, bytes: usize) -> Self {
        let unused = bytes.saturating_sub(self.memory_bytes());
        let base_chains = (self.index_bytes / 16 / CHAIN_BYTES).clamp(1, self.threads);
        let base_threads = (self.index_bytes / 12 / PREFIX_BYTES).clamp(1, self.threads);
        let budget = Self { base_chains, base_threads, ..self };
        let share = budget.index_bytes / 3 + unused;
        let kept_bytes = share.saturating_sub(budget.based_bytes());
        let bases_bytes = (kept_bytes / 2).min(BASES_BYTES_MAX);
        if bases_bytes < BASES_BYTES_MIN {
            return self;
        }
        let similar_bytes = kept_bytes - bases_bytes;
        let index_bytes = budget.index_bytes - budget.index_bytes / 3;
        Self { index_bytes, bases_bytes, similar_bytes, ..budget }
    }

    /// Returns what finding, reading and using bases takes in addition to their cache: two further queues of regions of each kind, the names
    /// of chunks that are referred to, chains, bytes of bases, and prefixes with the states of compressors.
    fn based_bytes(&self) -> usize {
        let opening = self.regions_in_flight + 1 + self.regions_opening() + 1 + 2 * (METADATA_DEPTH + 1);
        let names = REFERRED_BYTES + REFERRED_BYTES / METADATA_REFERRED_PART;
        // A region that waits to be compressed holds the bytes of its bases.
        let holding = self.regions_in_flight + 1 + self.metadata_compressing() + 1;
        let held = holding * BASES_MAX * REGION_BYTES / 2;
        // `memory_bytes` counts the queue of metadata as long as that of data.
        let unused = self.regions_in_flight.saturating_sub(self.metadata_compressing()) * REGION_BYTES;
        let taken = opening * REGION_BYTES / 2 + names + held + self.base_chains * CHAIN_BYTES;
        (taken + self.base_threads * PREFIX_BYTES).saturating_sub(unused)
    }

    /// Returns how many regions of metadata are compressed at the same time in a backup with bases.
    pub(crate) fn metadata_compressing(&self) -> usize {
        (self.regions_in_flight / METADATA_COMPRESSING_PART).max(1)
    }

    /// Returns for how many regions similar ones are opened at the same time: few, so that those are still in memory when bases are chosen
    /// among them.
    pub(crate) fn regions_opening(&self) -> usize {
        self.regions_in_flight.min(self.threads + 1)
    }

    /// Returns how many of `threads` threads a budget can keep supplied.
    pub fn threads(bytes: usize, threads: usize) -> usize {
        threads.min(bytes / THREAD_BYTES).max(1)
    }

    /// Memory that an operation uses unless it is given another budget.
    pub const BYTES_DEFAULT: usize = 512 * MIB;
    /// The least memory with which a device is used: the driver takes some hundred MiB besides.
    pub const DEVICE_BYTES_MIN: usize = crate::accelerator::DEVICE_BYTES_MIN;
    /// The least memory that can be divided.
    pub const BYTES_MIN: usize = 64 * MIB;

    /// Returns what the shares add up to.
    pub fn memory_bytes(&self) -> usize {
        // One block more than each of the three queues holds is in somebody's hands; each kind has a container open.
        let cut_ahead = if self.cut_ahead == 0 { 0 } else { self.cut_ahead + 1 };
        let blocks = (3 * (self.blocks_in_flight + 1) + cut_ahead) * BLOCK_AND_STEPS_BYTES;
        // Blocks that stay until workers have copied their chunks into regions: those of regions being copied, and the ends of the others.
        let lent = if self.cut_ahead == 0 { 0 } else { (self.threads + 4) * BLOCK_AND_STEPS_BYTES };
        let regions = 2 * (self.regions_in_flight + 1) * REGION_BYTES + lent;
        // More threads than there are jobs never compress at the same time.
        let jobs = 2 * self.regions_in_flight + self.containers_sealing;
        let compressors = (self.threads.min(jobs) + 1) * COMPRESSOR_BYTES;
        let containers =
            2 * CONTAINER_BYTES + self.containers_sealing * SEALING_BYTES + self.containers_writing * CONTAINER_BYTES;
        let waiting = self.references_in_flight * REFERENCE_BYTES + self.steps_waiting * STEP_BYTES;
        let walk = self.walk_shares * SHARE_BYTES;
        let unrecorded = 2 * self.barrier_containers * CONTAINER_CHUNKS * UNRECORDED_BYTES;
        let queues = blocks + regions + compressors + containers + waiting + walk + unrecorded;
        let based = if self.bases_bytes == 0 { 0 } else { self.bases_bytes + self.similar_bytes + self.based_bytes() };
        queues + self.pending_bytes + self.parent_bytes + self.index_bytes + self.device_bytes() + based
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_budget_and_leave_memory_for_an_index() {
        for mebibytes in [64, 65, 96, 128, 200, 256, 512, 1024, 16_384] {
            for threads in [1, 2, 8, 64, 256] {
                let budget = Budget::of(mebibytes * MIB, threads);
                assert!(budget.memory_bytes() <= mebibytes * MIB, "{mebibytes} MiB, {threads} threads: {budget:?}");
                assert!(12 * MIB <= budget.index_bytes, "{mebibytes} MiB, {threads} threads: {budget:?}");
                let with = budget.with_bases(mebibytes * MIB);
                assert!(with.memory_bytes() <= mebibytes * MIB, "{mebibytes} MiB, {threads} threads: {with:?}");
                assert!(budget.index_bytes / 2 <= with.index_bytes, "{with:?}");
                // docs/manual/src/similar.md
                if mebibytes <= 128 || 512 <= mebibytes || threads <= 2 && 256 == mebibytes {
                    assert_eq!(with.bases_bytes != 0, 256 <= mebibytes, "{mebibytes} MiB, {threads} threads: {with:?}");
                }
                if Budget::DEVICE_BYTES_MIN <= mebibytes * MIB {
                    let with = budget.with_device(mebibytes * MIB);
                    assert!(with.memory_bytes() <= mebibytes * MIB, "{mebibytes} MiB, {threads} threads: {with:?}");
                    assert!(128 * MIB <= with.index_bytes && 128 * MIB <= with.device_bytes(), "{with:?}");
                }
            }
        }
    }
}
