//! A point of the parameter space: one way of finding duplicates, described by its dimensions.
//!
//! Presets are points with names and sources; they are data (`presets/*.toml`). `--set` changes a dimension. Each dimension is
//! declared once, below: the declaration gives its key, values, limits and help text, and the field that holds it. A combination
//! that cannot work is refused with the reason, as are sizes that exceed the memory.

pub mod dimension;
pub mod memory;
pub mod preset;

use std::ops::RangeInclusive;

use anyhow::{Result, bail};
use onefold_engine::identify::Prelookup;
use onefold_engine::kv::{BucketReads, RunOrder};

use crate::mapped::Order;
use crate::point::dimension::{choices, dimensions};
use crate::point::memory::Size;

/// Data structure of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// The engine's bucket table and arrival log on a disk.
    Table,
    /// The engine's hash table in memory, and the arrival log on a disk.
    Memory,
    /// A log of fingerprints and a cuckoo table on mapped memory.
    Cuckoo,
}

/// When possible duplicates are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Immediately.
    Eager,
    /// All pending chunks of a bucket together.
    Lazy,
    /// All pending chunks together.
    Pool,
    /// Like lazy, and each entry read is compared with all pending chunks.
    Exhaustive,
    /// As the plan that would have cost least on the recent stream.
    Adaptive,
}

/// Position of a chunk's bits in the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterLayout {
    /// In one cache line.
    Blocked,
    /// Anywhere (Bloom 1970).
    Scattered,
}

/// Unit and eviction order of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheRule {
    /// Windows of the log; the least recently used is evicted.
    Lru,
    /// A read buffer of fingerprints; the oldest is overwritten.
    Fifo,
}

/// Range that hits read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Records around them.
    Window,
    /// All records of their container.
    Container,
    /// The stream segment that had their chunk last, and `following` after it.
    Segment,
}

/// Ends of stream segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segmenting {
    /// After `segment-chunks`.
    Fixed,
    /// At chunks that their fingerprints choose: one of `segment-chunks`.
    Content,
}

/// Which duplicates of a stream segment get their position in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// All.
    All,
    /// One of `sampling-ratio`, from the first on.
    Uniform,
    /// Those that their fingerprints choose: one of `sampling-ratio`.
    Random,
}

/// Length of the windows that hits read from the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// Always `window-records`.
    Fixed,
    /// As the plan of the schedule, or in proportion to the runs of duplicates, at most `window-records`.
    Adaptive,
}

choices!(Store: "table" => Self::Table, "memory" => Self::Memory, "cuckoo" => Self::Cuckoo);
choices!(
    Schedule: "eager" => Self::Eager, "lazy" => Self::Lazy, "pool" => Self::Pool, "exhaustive" => Self::Exhaustive,
    "adaptive" => Self::Adaptive
);
choices!(Prelookup: "always" => Self::Always, "never" => Self::Never, "adaptive" => Self::Adaptive);
choices!(
    Order: "filter-first" => Self::FilterFirst, "cache-first" => Self::CacheFirst, "none" => Self::None,
    "auto" => Self::Auto
);
choices!(FilterLayout: "blocked" => Self::Blocked, "scattered" => Self::Scattered);
choices!(CacheRule: "lru" => Self::Lru, "fifo" => Self::Fifo);
choices!(Unit: "window" => Self::Window, "container" => Self::Container, "segment" => Self::Segment);
choices!(Segmenting: "fixed" => Self::Fixed, "content" => Self::Content);
choices!(Sampling: "all" => Self::All, "uniform" => Self::Uniform, "random" => Self::Random);
choices!(Window: "fixed" => Self::Fixed, "adaptive" => Self::Adaptive);
choices!(bool: "yes" => true, "no" => false);
choices!(
    Option<BucketReads>: "device" => None, "pages" => Some(BucketReads::Pages), "whole" => Some(BucketReads::Whole),
    "bucket" => Some(BucketReads::Entire)
);

choices!(RunOrder: "largest-first" => Self::LargestFirst, "newest-first" => Self::NewestFirst);

/// Scheduling of the reads of mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probes {
    /// Each lookup waits for its own reads.
    OneByOne,
    /// The reads of 64 lookups overlap.
    Together,
}
choices!(Probes: "one-by-one" => Self::OneByOne, "together" => Self::Together);

/// Most records of a window.
const WINDOW_RECORDS_MAX: u64 = 1 << 20;
/// Most chunks of a stream segment.
const SEGMENT_CHUNKS_MAX: u64 = 1 << 20;
/// Most chunks that are pending, and that arrive while one is pending.
const PENDING_MAX: u64 = 1 << 24;
/// No limits but those of the type.
const ALL: RangeInclusive<u64> = 0..=u64::MAX;

// `key`, field: type = default, limits (`ALL` if every value of the type works) => help text. The order is that of listings.
dimensions! {
    "store", store: Store = Store::Table, ALL => "data structure of the index: the bucket table on a disk, a hash table in memory beside a log on a disk, or a log and a cuckoo table on mapped memory";
    "store-size", store_size: Option<Size> = None, ALL => "memory of store=memory, about 36 bytes for a chunk; otherwise half of the memory";
    "schedule", schedule: Schedule = Schedule::Adaptive, ALL => "when possible duplicates are looked up";
    "threshold", threshold: u32 = 32, 1..=1 << 20 => "pending chunks of a bucket that trigger its lookup (lazy, exhaustive)";
    "candidates", candidates: u32 = 2048, 1..=PENDING_MAX => "pending chunks that trigger a lookup (pool)";
    "buckets", buckets: u32 = 1024, 1..=1 << 20 => "buckets of pending chunks (lazy, exhaustive)";
    "pending-max", pending_max: u32 = 6144, 1..=PENDING_MAX => "most pending chunks; adaptive takes memory of the cache for more";
    "pending-age-max", pending_age_max: u32 = 1 << 16, 1..=PENDING_MAX => "most chunks that arrive while one is pending";
    "unique-run-max", unique_run_max: u32 = 200, ALL => "consecutive unique chunks that close a cycle";
    "rank-max", rank_max: u32 = 2048, 1..=1 << 24 => "largest rank in a cycle";
    "tries-max", tries_max: u32 = 10, ALL => "useless windows after which a chunk leaves its cycle";
    "prelookup", prelookup: Prelookup = Prelookup::Always, ALL => "when arriving chunks are looked up in the cache";
    "order", order: Order = Order::FilterFirst, ALL => "order of filter and cache; none: no filter";
    "filter", filter: FilterLayout = FilterLayout::Blocked, ALL => "position of a chunk's bits in the filter: one cache line, or anywhere";
    "filter-hashes", filter_hashes: u32 as "1 to 10" = 5, 1..=10 => "bits of a chunk in the filter";
    "filter-size", filter_size: Option<Size> = None, ALL => "memory of the filter; otherwise the rest";
    "cache", cache: CacheRule = CacheRule::Lru, ALL => "eviction: least recently used windows of the log, or a read buffer, oldest first";
    "cache-size", cache_size: Option<Size> = None, ALL => "memory of the cache; otherwise the rest if filter-size is set, or the memory that the filter has not grown to";
    "neighbors", neighbors: u32 = 50, 1..=WINDOW_RECORDS_MAX => "fingerprints after a hit that a read buffer copies (fifo)";
    "unit", unit: Unit = Unit::Window, ALL => "what a hit reads: a window of the log, the whole container of the hit, or the stream segment that had its chunk last";
    "segmenting", segmenting: Segmenting = Segmenting::Content, ALL => "where stream segments end: after segment-chunks, or at chunks that their fingerprints choose, one of segment-chunks";
    "segment-chunks", segment_chunks: u32 = 1024, 1..=SEGMENT_CHUNKS_MAX => "chunks of a stream segment; with segmenting=content on average, after the fewest";
    "segment-min", segment_min: u32 = 128, 0..=SEGMENT_CHUNKS_MAX => "fewest chunks of a stream segment (segmenting=content)";
    "segment-max", segment_max: u32 = 10_240, 1..=SEGMENT_CHUNKS_MAX => "most chunks of a stream segment (segmenting=content)";
    "following", following: u32 = 0, 0..=SEGMENT_CHUNKS_MAX => "stream segments that a hit reads after its own; window-records limits all of them";
    "sampling", sampling: Sampling = Sampling::Random, ALL => "duplicates whose entries are updated with their position in the stream: all, each of sampling-ratio, or those that their fingerprints choose";
    "sampling-ratio", sampling_ratio: u32 = 256, 1..=1 << 20 => "chunks of which one is sampled (uniform, random)";
    "window", window: Window = Window::Adaptive, ALL => "length of the windows read from the log: always window-records, or as adaptive plans, which is in proportion to runs of duplicates for other schedules";
    "window-records", window_records: u32 = 16_384, 0..=WINDOW_RECORDS_MAX => "records of the log that a hit reads, always or at most; 0: none. Of unit=container and unit=segment, at most";
    "read-on", follows_successors: bool = true, ALL => "prefetch the expected continuation of the stream from the log without a lookup";
    "reads", reads: Option<BucketReads> = None, ALL => "how lookups read the table: as suits the device, single pages, from the first needed page to the last, or the whole bucket";
    "run-order", run_order: RunOrder = RunOrder::LargestFirst, ALL => "order in which lookups search the runs of a bucket of the table: largest-first takes fewest reads, and newest-first finds the newest copy of a chunk";
    "probes", probes: Probes = Probes::Together, ALL => "whether reads of mapped memory wait for each other or overlap";
    "injected-ns", injected_ns: u32 = 0, 0..=1_000_000_000 => "nanoseconds added to each wait for mapped memory";
    "memtable-size", memtable_size: Option<Size> = None, ALL => "memory of the memtable; otherwise a sixth";
    "runs-max", runs_max: u32 = 4, 1..=64 => "most sorted runs in a bucket of the table";
    "memory", memory: Size = Size(256 << 20), ALL => "total memory of the point";
    "container-size", container_size: Size = Size(4 << 20), 4 << 10..=1 << 30 => "bytes of the chunks that are stored and indexed together";
}

impl Point {
    /// Refuses a combination that cannot work, with the reason.
    pub fn check(&self) -> Result<()> {
        self.check_limits()?;
        if self.store != Store::Memory && self.store_size.is_some() {
            bail!("store-size is the memory of store=memory: leave it out, or take that store");
        }
        if self.order == Order::None && self.filter_size.is_some() {
            bail!("order=none has no filter, so filter-size has no effect: leave one of them out");
        }
        match self.store {
            Store::Table | Store::Memory => self.check_engine(),
            Store::Cuckoo => self.check_cuckoo(),
        }
    }

    fn check_engine(&self) -> Result<()> {
        if self.unit != Unit::Window && self.window_records == 0 {
            bail!("a unit is read as a whole, and window-records=0 reads nothing: leave unit or window-records out");
        }
        if self.segmenting == Segmenting::Content && self.segment_max < self.segment_min {
            bail!("a segment ends between segment-min and segment-max chunks: raise segment-max");
        }
        if self.store == Store::Memory && self.run_order == RunOrder::NewestFirst {
            bail!(
                "run-order=newest-first is for store=table: store=memory has the newest entry of a chunk only; leave it out"
            );
        }
        if self.store == Store::Memory && self.memtable_size.is_some() {
            bail!("memtable-size is a part of store=table, and store=memory has none: take store-size");
        }
        if self.cache == CacheRule::Fifo {
            bail!(
                "cache=fifo keeps single fingerprints, and this store needs windows with their position in the log: take \
                 cache=lru, or store=cuckoo"
            );
        }
        if self.filter == FilterLayout::Scattered {
            bail!(
                "filter=scattered cannot grow segment by segment, as the filter of this store does: take store=cuckoo"
            );
        }
        if self.order == Order::Auto {
            bail!(
                "order=auto weighs the filter against the cache, and a schedule batches the lookups of this store: take \
                 filter-first, cache-first or none, or store=cuckoo"
            );
        }
        if self.injected_ns != 0 {
            bail!("injected-ns makes mapped memory slower, and this store has none: take another device instead");
        }
        if self.order == Order::CacheFirst && self.prelookup == Prelookup::Never {
            bail!("order=cache-first looks up each arriving chunk in the cache, and prelookup=never does not: choose");
        }
        Ok(())
    }

    fn check_cuckoo(&self) -> Result<()> {
        if self.run_order == RunOrder::NewestFirst {
            bail!("run-order=newest-first is for store=table, and store=cuckoo has no runs: leave it out");
        }
        if self.unit != Unit::Window {
            bail!(
                "unit={} is for logs on a disk, and store=cuckoo copies neighbors: leave unit out",
                if self.unit == Unit::Container { "container" } else { "segment" }
            );
        }
        if self.schedule != Schedule::Eager {
            bail!(
                "store=cuckoo answers each chunk at once, since reads of mapped memory cannot be batched: take \
                 schedule=eager, or store=table on a device as fast"
            );
        }
        if self.prelookup != Prelookup::Always {
            bail!(
                "store=cuckoo looks up each arriving chunk in its cache or has none (order=none): leave out prelookup"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Point)) -> String {
        let mut point = Point::default();
        change(&mut point);
        point.check().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        Point::default().check().unwrap();
        assert!(refused(|point| point.cache = CacheRule::Fifo).contains("take cache=lru"));
        assert!(refused(|point| point.filter = FilterLayout::Scattered).contains("take store=cuckoo"));
        assert!(refused(|point| point.order = Order::Auto).contains("take filter-first"));
        assert!(refused(|point| point.store = Store::Cuckoo).contains("take schedule=eager"));
        assert!(
            refused(|point| (point.order, point.prelookup) = (Order::CacheFirst, Prelookup::Never)).contains("choose")
        );
        assert!(refused(|point| (point.order, point.filter_size) = (Order::None, Some(Size(1)))).contains("leave one"));
        let table_with_size = |point: &mut Point| point.store_size = Some(Size(1 << 20));
        assert!(refused(table_with_size).contains("leave it out"));
        let both = |point: &mut Point| (point.store, point.memtable_size) = (Store::Memory, Some(Size(1 << 20)));
        assert!(refused(both).contains("take store-size"));
        for store in [Store::Memory, Store::Cuckoo] {
            let set = |point: &mut Point| {
                (point.store, point.schedule, point.run_order) = (store, Schedule::Eager, RunOrder::NewestFirst);
            };
            assert!(refused(set).contains("run-order=newest-first is for store=table"));
        }
        let nothing = |point: &mut Point| (point.unit, point.window_records) = (Unit::Container, 0);
        assert!(refused(nothing).contains("reads nothing"));
        let neighbors = |point: &mut Point| (point.store, point.unit) = (Store::Cuckoo, Unit::Container);
        assert!(refused(neighbors).contains("unit=container is for logs on a disk"));
        let segments = |point: &mut Point| (point.store, point.unit) = (Store::Cuckoo, Unit::Segment);
        assert!(refused(segments).contains("leave unit out"));
        let limits = |point: &mut Point| (point.unit, point.segment_max) = (Unit::Segment, 100);
        assert!(refused(limits).contains("raise segment-max"));
        let fifo = |point: &mut Point| (point.store, point.cache) = (Store::Memory, CacheRule::Fifo);
        assert!(refused(fifo).contains("take cache=lru"));
        assert_eq!(refused(|point| point.filter_hashes = 11), "filter-hashes: 1 to 10, not 11");
        assert_eq!(refused(|point| point.container_size = Size(1)), "container-size: 4096 to 1073741824 bytes, not 1");
    }
}
