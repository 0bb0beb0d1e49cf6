//! Prediction of a repository of the whole source: bytes, memory, time.

use std::time::Duration;

use onefold_engine::backup::Budget;
use onefold_engine::identify::IndexOptions;

use super::Scanned;
use super::estimate::{Estimate, Interval};
use super::extrapolate::{Captures, Copies, Coverage};
use super::regions::{REGION_BYTES, Regions, compressed_share, neighbors};
use super::rules::{CONTAINER_BYTES, Rule};
use super::scan::RuleScan;
use super::similar::Measured;
use crate::counts::float;

/// Bytes that a data container's two directories have for a chunk in format 2, with lengths of two bytes: docs/format.md, Containers.
const DIRECTORY_BYTES: f64 = 34.0 + 2.0;
/// Bytes for a region in format 2, bases excepted: its entries in both directories, and its tag.
const REGION_ENTRY_BYTES: f64 = 15.0 + 15.0 + 16.0;
/// Further bytes of a container: header, trailer, heads and tags of the directories.
const CONTAINER_FIXED_BYTES: f64 = 128.0 + 64.0 + 2.0 * (8.0 + 16.0);
/// Bytes of a base, and of a run of chunks in it, in both directories.
const BASE_BYTES: (f64, f64) = (2.0 * 25.0, 2.0 * 4.0);
/// Bytes of the sample of anchors for a byte of distinct chunks: seven for 64 KiB.
const SAMPLE_SHARE: f64 = 7.0 / 65_536.0;
/// Standard deviation of a repository's size with similar data from the prediction, as a share: the choice of bases depends on the
/// key, and on when containers become durable. Assumed; docs/advise.md has the resulting error.
const SIMILAR_DEVIATION: f64 = 0.04;
/// Bytes of a chunk ref in a recipe: the fingerprint, which does not compress, and its length, which does a little.
const REF_BYTES: f64 = 34.0;
/// Compressed bytes of an entry in the tree, without its recipe, and its standard deviation as a share: equal directories are stored once. Assumed:
/// with 18 to 43 bytes, six trees would have been estimated as they were stored. docs/advise.md has the resulting error.
const ENTRY_BYTES: f64 = 30.0;
const ENTRY_DEVIATION: f64 = 1.0 / 3.0;
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
/// Standard deviation of a repository's size from the prediction where everything is read, as a share, entries excepted. Assumed: cuts, which depend on
/// the key, make 0.1% to 0.5% of it.
const MODEL_DEVIATION: f64 = 0.01;
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
        let wanted = totals.bytes.saturating_sub(scanned.survey.hole_bytes);
        let data_bytes =
            if scanned.survey.is_everything() || covered == 0.0 { read } else { float(wanted) * read / covered };
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

impl Whole {
    /// Returns the ratio of the source to the chunks of a rule.
    fn scale_of(&self, scan: &RuleScan) -> f64 {
        let bytes = float(scan.covered.iter().flatten().sum());
        if bytes == 0.0 { 1.0 } else { self.data_bytes / bytes }
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
    /// Bytes for each byte of distinct chunks.
    pub dedup_ratio: Interval,
    /// Stored bytes of a region for each of its chunks' bytes.
    pub compressed_share: Estimate,
    /// Different chunks of the whole.
    pub unique_chunks: f64,
    /// Bytes of a repository of format 2 in which no region has bases.
    pub stored_bytes: Interval,
    /// The same with new chunks compressed against similar ones; only of the default rule, if it was measured.
    pub similar_bytes: Option<Interval>,
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
        let sample_unique_bytes = scan.distinct.bytes();
        let sample_unique_chunks = scan.distinct.chunks();
        let compressed_share = compressed(scanned, scan, sample_unique_bytes);
        let chunks_per_byte = sample_unique_chunks.value / sample_unique_bytes.value.max(1.0);

        let (coverage, captures) = (Coverage::of(scanned, scan), scan.distinct.captures());
        let distinct = |without, copies| coverage.distinct(&captures, without, copies).min(whole.data_bytes);
        let default = DefaultRule::of(scanned);
        let compressed = |without, copies| {
            compressed_share.value * default.as_ref().map_or(1.0, |default| default.correction(without, copies))
        };
        let refs = float(scan.refs) * whole.scale_of(scan);
        let overhead = |bytes: f64, content: f64| overhead_bytes(whole, bytes * chunks_per_byte, bytes, content, refs);
        // No sample counts.
        let least = if coverage.is_everything { 0.0 } else { MODEL_DEVIATION };
        let unique = coverage.interval(sample_unique_bytes.deviation.hypot(least), distinct);
        // The neighbors' part may be wrong by half of it.
        let neighbors = default.as_ref().map_or(0.0, |default| default.neighbors.ln() / 2.0);
        let regions = default.as_ref().map_or(0.0, |default| default.deviation);
        let stored = |without, copies| {
            let bytes = distinct(without, copies);
            let content = bytes * compressed(without, copies);
            content + overhead(bytes, content)
        };
        let entries = float(whole.entries) * ENTRY_BYTES / stored(None, Copies::Likely).max(1.0);
        let model = MODEL_DEVIATION.hypot(ENTRY_DEVIATION * entries);
        let deviations = [sample_unique_bytes.deviation, compressed_share.deviation, neighbors, regions, model];
        let deviation = deviations.iter().fold(0.0, |sum: f64, deviation| sum.hypot(*deviation));
        let stored_bytes = coverage.interval(deviation, stored);
        let similar_bytes = SimilarShare::of(scanned, scan).map(|similar| {
            coverage.interval(deviation.hypot(SIMILAR_DEVIATION), |without, copies| {
                let bytes = distinct(without, copies);
                let content = bytes * compressed(without, copies) * similar.of_alone(without);
                content + overhead(bytes, content) + similar.overhead_bytes(bytes)
            })
        });
        let unique_bytes = unique.value;
        let compressed_share = Estimate { value: compressed(None, Copies::Likely), ..compressed_share };
        let overhead_bytes = overhead(unique_bytes, unique_bytes * compressed_share.value);
        let unique_chunks = unique_bytes * chunks_per_byte;

        let filter_bits = filter_bits(memory_bytes, threads, unique_chunks);
        let false_positives = (1.0 - (-FILTER_HASHES / filter_bits).exp()).powf(FILTER_HASHES);
        let (first, read_again, unchanged) =
            times(scanned, whole, scan, unique_bytes, unique_chunks * false_positives, threads);
        Self {
            rule: scan.rule,
            sample_chunks: scan.chunks,
            sample_unique_chunks,
            sample_unique_bytes,
            dedup_ratio: unique.divide(whole.data_bytes),
            compressed_share,
            unique_chunks,
            stored_bytes,
            similar_bytes,
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
}

impl Coverage {
    fn of(scanned: &Scanned, scan: &RuleScan) -> Self {
        let mut covered = scan.covered;
        let reading = &scanned.reading;
        for (class, (data, holes)) in covered.iter_mut().zip(reading.covered_data.iter().zip(&reading.covered_holes)) {
            // As much of the holes counts as of the data: chunks that an extent's end cuts short are left out.
            let (counted, data) = (u128::from(class.iter().sum::<u64>()), u128::from(data.iter().sum::<u64>()));
            for (sum, holes) in class.iter_mut().zip(holes) {
                let holes = (u128::from(*holes) * counted).checked_div(data).unwrap_or(u128::from(*holes));
                *sum += u64::try_from(holes).unwrap_or(u64::MAX);
            }
        }
        Self {
            class_bytes: scanned.survey.class_bytes,
            covered,
            streams: scanned.reading.streams,
            is_everything: scanned.survey.is_everything(),
        }
    }
}

/// The default rule, by which the compression in a sample is extrapolated: chunks with many copies are more frequent in a sample than
/// among all distinct chunks, and compress differently.
struct DefaultRule {
    coverage: Coverage,
    plain: Captures,
    stored: Captures,
    /// What the regions of all data compress to, as a share of what those of the sample do.
    neighbors: f64,
    /// Standard deviation of the compression, by regions, as a share.
    deviation: f64,
    /// Stored bytes for each plain one in the sample.
    share: f64,
}

impl DefaultRule {
    fn of(scanned: &Scanned) -> Option<Self> {
        let (scan, all) = scanned.rules.iter().find_map(|scan| Some((scan, scan.all.as_ref()?)))?;
        if scanned.survey.is_everything() {
            return None;
        }
        let coverage = Coverage::of(scanned, scan);
        let [even, odd] = &scan.halves;
        let neighbors = neighbors(all.sum(), even.sum().plus(odd.sum()), coverage.share());
        let (plain, stored) = (scan.distinct.captures(), scan.distinct.stored_captures());
        let share = stored.bytes() / plain.bytes().max(1.0);
        let deviation = all.deviation() * (1.0 - coverage.share()).sqrt();
        Some(Self { coverage, plain, stored, neighbors, deviation, share })
    }

    /// Returns the compression of the source, or of what the sample without a group shows of it, as a share of that of the sample.
    fn correction(&self, without: Option<usize>, copies: Copies) -> f64 {
        let bytes = |captures| self.coverage.distinct(captures, without, copies);
        let (plain, stored) = (bytes(&self.plain), bytes(&self.stored));
        let is_known = 0.0 < plain && 0.0 < stored && 0.0 < self.share;
        self.neighbors * if is_known { stored / plain / self.share } else { 1.0 }
    }
}

/// Part that compression against similar regions saves of the default rule's regions.
struct SimilarShare<'a> {
    alone: &'a Regions,
    similar: &'a Measured,
}

impl<'a> SimilarShare<'a> {
    /// Returns `None` for other rules, and if it was not measured or on too little.
    fn of(scanned: &'a Scanned, scan: &'a RuleScan) -> Option<Self> {
        let similar = scanned.similar.as_ref().filter(|similar| similar.is_enough())?;
        Some(Self { alone: scan.all.as_ref()?, similar })
    }

    /// Returns the stored bytes for each one without bases, as the sample shows it, or the sample without a group.
    fn of_alone(&self, without: Option<usize>) -> f64 {
        let alone = without.map_or_else(|| self.alone.sum(), |group| self.alone.sum_without(group));
        self.similar.share(without) / alone.share().max(f64::MIN_POSITIVE)
    }

    /// Returns the bytes that bases take in directories.
    fn overhead_bytes(&self, bytes: f64) -> f64 {
        let regions = bytes / float(REGION_BYTES as u64);
        let scale = regions / float(self.similar.regions).max(1.0);
        let (bases, runs) = self.similar.bases;
        (float(bases) * BASE_BYTES.0 + float(runs) * BASE_BYTES.1) * scale
    }
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
        + unique_bytes * SAMPLE_SHARE
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
    let identify = float(scan.chunks) * whole.scale_of(scan) * IDENTIFY_SECONDS;
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
