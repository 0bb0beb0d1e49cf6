//! Prediction of a repository of the whole source: bytes, memory, time.

use std::time::Duration;

use onefold_engine::backup::Budget;
use onefold_engine::identify::IndexOptions;

use super::Scanned;
use super::distinct::Estimate;
use super::regions::{REGION_BYTES, compressed_share};
use super::rules::{CONTAINER_BYTES, Rule};
use super::scan::RuleScan;
use crate::counts::float;

/// Bytes that a data container's two directories have for a chunk: docs/format.md, Containers.
const DIRECTORY_BYTES: f64 = 36.0 + 4.0;
/// Bytes for a region: its entries in both directories, and its tag.
const REGION_ENTRY_BYTES: f64 = 13.0 + 13.0 + 16.0;
/// Further bytes of a container: header, trailer, heads and tags of the directories.
const CONTAINER_FIXED_BYTES: f64 = 128.0 + 64.0 + 2.0 * (8.0 + 16.0);
/// Bytes of a chunk ref in a recipe: the fingerprint, which does not compress, and its length, which does a little.
const REF_BYTES: f64 = 34.0;
/// Compressed bytes of an entry in the tree, without its recipe. Assumed; docs/advise.md has the resulting error.
const ENTRY_BYTES: f64 = 40.0;
/// Bytes of the index on disk for each chunk stored. Measured with 50 and 200 million: docs/performance.md, "Identification".
pub const INDEX_BYTES_PER_CHUNK: f64 = 75.0;
/// Bytes of an index of few chunks. Measured: docs/advise.md.
pub const INDEX_BYTES_FIXED: f64 = 4.2e6;
/// Bits of the filter for each chunk at which one new chunk in fifty is looked up in vain, and identification is about two
/// thirds as fast as with a larger one: docs/performance.md, "Identification".
pub const FILTER_BITS_ENOUGH: f64 = 8.0;
/// Bits that the filter sets for a chunk.
const FILTER_HASHES: f64 = 5.0;
/// Seconds that identification takes for a chunk where the filter is large enough. Measured: 2 million a second.
const IDENTIFY_SECONDS: f64 = 1.0 / 2e6;
/// Seconds for each lookup, many being in flight. Measured on a virtual disk: 110,000 a second.
const LOOKUP_SECONDS: f64 = 1.0 / 110e3;
/// Seconds to compare an entry with the parent snapshot, without walking. Assumed, as above.
const COMPARE_SECONDS: f64 = 5e-6;
/// Seconds for a file, without reading and its chunks. Assumed, as above.
const FILE_SECONDS: f64 = 10e-6;
/// More memory than any machine has.
const MEMORY_MAX: usize = 1 << 44;

/// Properties of the source, and the cost of reading it; equal for all rules.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Whole {
    /// Files.
    pub files: u64,
    /// Files and everything else.
    pub entries: u64,
    /// Bytes of data, holes left out; estimated where not everything was read.
    pub data_bytes: f64,
    /// Ratio of the source to the sample.
    pub scale: f64,
    /// Seconds to walk over it.
    pub walk_seconds: f64,
    /// Seconds for one reader to read it while nothing else runs.
    pub read_seconds: f64,
    /// Processor seconds of walking and reading.
    pub ingest_processor: f64,
}

impl Whole {
    /// Scales the sample to the source.
    pub fn of(scanned: &Scanned) -> Self {
        let (totals, reading) = (&scanned.survey.totals, &scanned.reading);
        let read = float(reading.bytes);
        let covered = float(reading.bytes.saturating_add(reading.hole_bytes));
        let data_bytes =
            if scanned.survey.is_everything() || covered == 0.0 { read } else { float(totals.bytes) * read / covered };
        let scale = if read == 0.0 { 1.0 } else { data_bytes / read };
        let read_seconds = reading.time.as_secs_f64() * scale;
        Self {
            files: totals.files,
            entries: totals.files + totals.other_entries,
            data_bytes,
            scale,
            walk_seconds: scanned.walk_time.as_secs_f64(),
            read_seconds,
            ingest_processor: scanned.walk_processor.as_secs_f64() + reading.processor.as_secs_f64() * scale,
        }
    }
}

/// Time of an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seconds {
    /// By the clock.
    pub time: f64,
    /// Of processors, all together.
    pub processor: f64,
}

/// Prediction for a rule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// The rule.
    pub rule: Rule,
    /// Chunks of the data read, with repetitions.
    pub sample_chunks: u64,
    /// Distinct chunks of the data read.
    pub sample_unique_chunks: Estimate,
    /// Bytes of the distinct chunks of the data read.
    pub sample_unique_bytes: Estimate,
    /// Share of the bytes that are unique; the dedup ratio is one divided by it.
    pub unique_share: Estimate,
    /// The same of a sample half as large, if there is one.
    pub unique_share_in_half: Option<f64>,
    /// Stored bytes of a region for each of its chunks' bytes.
    pub compressed_share: Estimate,
    /// Different chunks of the whole.
    pub unique_chunks: f64,
    /// Bytes of the repository.
    pub stored_bytes: Estimate,
    /// Part of them that is metadata: directories of containers, recipes, trees.
    pub overhead_bytes: f64,
    /// Bytes of the index on disk.
    pub index_bytes: f64,
    /// Bits of the filter for each chunk with the memory that is given.
    pub filter_bits: f64,
    /// False-positive rate of the filter at that size: each false positive costs a lookup on disk.
    pub false_positives: f64,
    /// Memory at which the filter has [`FILTER_BITS_ENOUGH`] bits for each chunk, in bytes.
    pub memory_bytes: u64,
    /// The first backup, if the repository's disk keeps up.
    pub first: Seconds,
    /// A backup of the same again that reads everything.
    pub read_again: Seconds,
    /// A backup of the same again that reads nothing.
    pub unchanged: Seconds,
}

impl Prediction {
    /// Predicts the result of a rule with `memory` bytes on `threads` threads.
    pub fn of(scanned: &Scanned, whole: &Whole, scan: &RuleScan, memory_bytes: usize, threads: usize) -> Self {
        let read = float(scanned.reading.bytes).max(1.0);
        let sample_unique_bytes = scan.distinct.bytes();
        let sample_unique_chunks = scan.distinct.chunks();
        // An estimate may exceed the total.
        let share = (sample_unique_bytes.value / read).min(1.0);
        let unique_share = Estimate { value: share, deviation: sample_unique_bytes.deviation };
        let compressed_share = compressed(scanned, scan, sample_unique_bytes);

        let unique_bytes = share * whole.data_bytes;
        let unique_chunks = sample_unique_chunks.value.min(float(scan.chunks)) * whole.scale;
        let content = Estimate::counted(whole.data_bytes).times(&unique_share).times(&compressed_share);
        let overhead_bytes =
            overhead_bytes(whole, unique_chunks, unique_bytes, content.value, float(scan.refs) * whole.scale);
        let stored = content.value + overhead_bytes;
        let deviation = content.deviation * content.value / stored.max(1.0);

        let filter_bits = filter_bits(memory_bytes, threads, unique_chunks);
        let false_positives = (1.0 - (-FILTER_HASHES / filter_bits).exp()).powf(FILTER_HASHES);
        let (first, read_again, unchanged) =
            times(scanned, whole, scan, unique_bytes, unique_chunks * false_positives, threads);
        Self {
            rule: scan.rule,
            sample_chunks: scan.chunks,
            sample_unique_chunks,
            sample_unique_bytes,
            unique_share,
            unique_share_in_half: share_in_half(scan),
            compressed_share,
            unique_chunks,
            stored_bytes: Estimate { value: stored, deviation },
            overhead_bytes,
            index_bytes: INDEX_BYTES_FIXED + unique_chunks * INDEX_BYTES_PER_CHUNK,
            filter_bits,
            false_positives,
            memory_bytes: memory_for(unique_chunks, threads),
            first,
            read_again,
            unchanged,
        }
    }

    /// Returns the bytes of the source for each second of the first backup.
    pub fn bytes_per_second(&self, whole: &Whole) -> f64 {
        whole.data_bytes / self.first.time.max(f64::MIN_POSITIVE)
    }

    /// Returns the dedup ratio.
    pub fn dedup_ratio(&self) -> f64 {
        1.0 / self.unique_share.value.max(f64::MIN_POSITIVE)
    }
}

/// Returns the share of the bytes in the sample's first half that is unique there.
fn share_in_half(scan: &RuleScan) -> Option<f64> {
    let all = float(scan.half_bytes);
    (0 < scan.half_bytes).then(|| (scan.distinct.bytes_in_half().value / all).min(1.0))
}

/// Returns what the rule's regions compress to.
fn compressed(scanned: &Scanned, scan: &RuleScan, unique_bytes: Estimate) -> Estimate {
    let some = scan.some.sum();
    let default = scanned.rules.iter().find_map(|scan| Some((scan, scan.all.as_ref()?)));
    match default {
        // If the intervals cover everything, nothing is estimated.
        Some((default, all)) if 0.5 < (float(some.plain) - unique_bytes.value).abs() => {
            compressed_share(&scan.some, &default.some, all.sum())
        }
        _ => Estimate::counted(some.share()),
    }
}

fn overhead_bytes(whole: &Whole, chunks: f64, unique_bytes: f64, compressed_bytes: f64, refs: f64) -> f64 {
    let regions = (unique_bytes / float(REGION_BYTES as u64)).ceil();
    let containers = (compressed_bytes / f64::from(CONTAINER_BYTES)).ceil();
    chunks * DIRECTORY_BYTES
        + regions * REGION_ENTRY_BYTES
        + containers * CONTAINER_FIXED_BYTES
        + refs * REF_BYTES
        + float(whole.entries) * ENTRY_BYTES
}

/// Returns the bits of the filter per chunk.
fn filter_bits(memory_bytes: usize, threads: usize, chunks: f64) -> f64 {
    let index = IndexOptions::for_memory(Budget::of(memory_bytes, Budget::threads(memory_bytes, threads)).index_bytes);
    8.0 * float(index.filter_bytes_max as u64) / chunks.max(1.0)
}

/// Returns the least memory, in steps of an eighth, at which the filter has enough bits for each chunk.
fn memory_for(chunks: f64, threads: usize) -> u64 {
    let mut bytes = Budget::BYTES_MIN;
    while bytes < MEMORY_MAX && filter_bits(bytes, threads, chunks) < FILTER_BITS_ENOUGH {
        // Whole numbers of 16 MiB.
        bytes = (bytes + bytes / 8).next_multiple_of(16 << 20);
    }
    bytes as u64
}

/// Returns how long the first backup takes, one that reads everything again, and one that reads nothing.
fn times(
    scanned: &Scanned,
    whole: &Whole,
    scan: &RuleScan,
    unique_bytes: f64,
    lookups: f64,
    threads: usize,
) -> (Seconds, Seconds, Seconds) {
    let fingerprinting = &scan.fingerprinting;
    let name = (fingerprinting.cut + fingerprinting.name).as_secs_f64() / float(fingerprinting.bytes).max(1.0);
    let per_byte = |time: Duration, bytes: u64| time.as_secs_f64() / float(bytes).max(1.0);
    let pack = per_byte(scan.some.processor, scan.some.sum().plain) + per_byte(scanned.sealed.1, scanned.sealed.0);
    let identify = float(scan.chunks) * whole.scale * IDENTIFY_SECONDS;
    let again = whole.ingest_processor + whole.data_bytes * name + identify + float(whole.files) * FILE_SECONDS;
    let first = again + unique_bytes * pack;
    let threads = float(threads as u64);
    // The stages run concurrently: the slowest one decides, or the sum of all if processors are scarce.
    let clock = |processor: f64, lookups: f64| {
        let time = (processor / threads).max(whole.read_seconds).max(identify + lookups * LOOKUP_SECONDS);
        Seconds { time, processor }
    };
    let unchanged = whole.walk_seconds + float(whole.entries) * COMPARE_SECONDS;
    // One thread walks, and compares.
    let unchanged = Seconds { time: unchanged, processor: unchanged };
    (clock(first, lookups), clock(again, 0.0), unchanged)
}
