//! A point of the parameter space: one way of finding duplicates, said by its dimensions.
//!
//! Presets are points that have names and sources; they are data (`presets/*.toml`). A dimension may be set to another
//! value; combinations that cannot work are refused with the reason, and sizes that do not fit the memory too.

pub mod dimension;
pub mod memory;
pub mod preset;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::point::memory::Size;

/// What is looked up: where fingerprints are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// The engine's bucket table and arrival log on a disk.
    Table,
    /// A log of fingerprints and a cuckoo table on mapped memory.
    Cuckoo,
}

/// When chunks that may be duplicates are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// At once.
    Eager,
    /// Those of a bucket together.
    Lazy,
    /// All that wait together.
    Pool,
    /// As lazy, and what is read is compared with everything that waits.
    Exhaustive,
    /// As a pool, but at once while duplicates come in long runs.
    Adaptive,
}

/// When the cache is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prelookup {
    /// As each chunk arrives.
    Always,
    /// Never then.
    Never,
    /// As each chunk arrives, so long as it helps.
    Adaptive,
}

/// What is asked first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The filter.
    FilterFirst,
    /// The cache.
    CacheFirst,
    /// There is no filter.
    None,
    /// The filter or the cache, as a model of their measured costs says.
    Auto,
}

/// How the bits of a chunk lie in the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterLayout {
    /// In one cache line.
    Blocked,
    /// Anywhere (Bloom 1970).
    Scattered,
}

/// What stays in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheRule {
    /// Windows of the log, those least recently used going first.
    Lru,
    /// A read buffer of fingerprints, the oldest going first.
    Fifo,
}

/// How much of the log a hit reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// Always `window-records`.
    Fixed,
    /// As runs of duplicates are long, at most `window-records`.
    Adaptive,
}

/// Whether the log is read on where the stream is expected to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadOn {
    /// Without a lookup.
    Yes,
    /// Only after one.
    No,
}

/// How lookups read the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// As suits the device.
    Device,
    /// The pages that are needed.
    Pages,
    /// From the first page that is needed to the last.
    Whole,
    /// All pages of the bucket.
    Bucket,
}

/// How mapped memory is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probes {
    /// For one chunk after the other: each is waited for.
    OneByOne,
    /// For 64 chunks at a time, whose lines come in together.
    Together,
}

/// A point. A size that is missing is a share of the memory; see [`memory`].
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Point {
    /// Where fingerprints are stored.
    pub store: Store,
    /// When they are looked up.
    pub schedule: Schedule,
    /// Chunks of a bucket that bring about its lookup: lazy and exhaustive.
    pub threshold: u32,
    /// Chunks that bring about a lookup: pool and adaptive.
    pub candidates: u32,
    /// Buckets that chunks wait in: lazy and exhaustive.
    pub buckets: u32,
    /// Chunks that wait at most.
    pub pending_max: u32,
    /// Chunks that arrive at most while one waits.
    pub pending_age_max: u32,
    /// Unique chunks in a row that close a cycle, but one.
    pub unique_run_max: u32,
    /// Largest rank in a cycle.
    pub rank_max: u32,
    /// Fruitless windows until a chunk leaves its cycle.
    pub tries_max: u32,
    /// Duplicates for each lookup from which on the adaptive schedule looks up at once.
    pub run_immediately: u32,
    /// When the cache is asked.
    pub prelookup: Prelookup,
    /// What is asked first.
    pub order: Order,
    /// How the filter's bits lie.
    pub filter: FilterLayout,
    /// Bits of a chunk in the filter.
    pub filter_hashes: u32,
    /// Memory of the filter.
    pub filter_size: Option<Size>,
    /// What stays in the cache.
    pub cache: CacheRule,
    /// Memory of the cache.
    pub cache_size: Option<Size>,
    /// Fingerprints behind a hit that a read buffer takes in.
    pub neighbors: u32,
    /// How much of the log a hit reads.
    pub window: Window,
    /// Records of the log that a hit reads, at most or always.
    pub window_records: u32,
    /// Whether the log is read on where a run goes beyond its window, and where a stream had gone on before.
    pub read_on: ReadOn,
    /// How lookups read the table.
    pub reads: Reads,
    /// How lookups in mapped memory are made.
    pub probes: Probes,
    /// Nanoseconds that each wait for mapped memory takes longer than it does.
    pub injected_ns: u32,
    /// Memory of entries that are not written out yet.
    pub staging_size: Option<Size>,
    /// Longest chain of sorted runs in a bucket of the table.
    pub runs_max: u32,
    /// All memory of the point.
    pub memory: Size,
    /// Bytes of chunks that are stored, and recorded in the index, together.
    pub container_size: Size,
}

impl Default for Point {
    fn default() -> Self {
        Self {
            store: Store::Table,
            schedule: Schedule::Adaptive,
            threshold: 32,
            candidates: 2048,
            buckets: 1024,
            pending_max: 6144,
            pending_age_max: 1 << 16,
            unique_run_max: 200,
            rank_max: 2048,
            tries_max: 10,
            run_immediately: 4096,
            prelookup: Prelookup::Always,
            order: Order::FilterFirst,
            filter: FilterLayout::Blocked,
            filter_hashes: 5,
            filter_size: None,
            cache: CacheRule::Lru,
            cache_size: None,
            neighbors: 50,
            window: Window::Adaptive,
            window_records: 2048,
            read_on: ReadOn::Yes,
            reads: Reads::Device,
            probes: Probes::Together,
            injected_ns: 0,
            staging_size: None,
            runs_max: 4,
            memory: Size(256 << 20),
            container_size: Size(4 << 20),
        }
    }
}

/// Longest of windows, in records.
const WINDOW_RECORDS_MAX: u32 = 1 << 20;
/// Most chunks that wait, and that arrive while one waits: a chunk's place is kept for as long.
const PENDING_MAX: u32 = 1 << 24;
/// Smallest and largest of containers.
const CONTAINER_SIZES: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 30;

impl Point {
    /// Refuses what cannot work, with the reason.
    pub fn check(&self) -> Result<()> {
        for (dimension, value, least, most) in [
            ("threshold", self.threshold, 1, 1 << 20),
            ("candidates", self.candidates, 1, PENDING_MAX),
            ("buckets", self.buckets, 1, 1 << 20),
            ("pending-max", self.pending_max, 1, PENDING_MAX),
            ("pending-age-max", self.pending_age_max, 1, PENDING_MAX),
            ("rank-max", self.rank_max, 1, 1 << 24),
            ("filter-hashes", self.filter_hashes, 1, 10),
            ("neighbors", self.neighbors, 1, WINDOW_RECORDS_MAX),
            ("window-records", self.window_records, 1, WINDOW_RECORDS_MAX),
            ("runs-max", self.runs_max, 1, 64),
            ("injected-ns", self.injected_ns, 0, 1_000_000_000),
        ] {
            ensure!((least..=most).contains(&value), "{dimension}: {least} to {most}, not {value}");
        }
        let (smallest, largest) = (CONTAINER_SIZES.start(), CONTAINER_SIZES.end());
        let container = self.container_size.0;
        ensure!(CONTAINER_SIZES.contains(&container), "container-size: {smallest} to {largest} bytes, not {container}");
        if self.order == Order::None && self.filter_size.is_some() {
            bail!("order=none has no filter, so filter-size has nothing to say: leave one of them out");
        }
        match self.store {
            Store::Table => self.check_table(),
            Store::Cuckoo => self.check_cuckoo(),
        }
    }

    fn check_table(&self) -> Result<()> {
        if self.cache == CacheRule::Fifo {
            bail!(
                "cache=fifo keeps single fingerprints, and store=table reads windows whose place in the log it must know: \
                 take cache=lru, or store=cuckoo"
            );
        }
        if self.filter == FilterLayout::Scattered {
            bail!("filter=scattered cannot grow part by part, as the filter of store=table does: take store=cuckoo");
        }
        if self.order == Order::Auto {
            bail!(
                "order=auto weighs the filter against the cache, and both cost nothing beside a lookup of store=table: take \
                 filter-first, cache-first or none, or store=cuckoo"
            );
        }
        if self.injected_ns != 0 {
            bail!("injected-ns makes mapped memory slower, and store=table has none: take another device instead");
        }
        if self.order == Order::CacheFirst && self.prelookup == Prelookup::Never {
            bail!("order=cache-first asks the cache as a chunk arrives, and prelookup=never does not: choose");
        }
        Ok(())
    }

    fn check_cuckoo(&self) -> Result<()> {
        if self.schedule != Schedule::Eager {
            bail!(
                "store=cuckoo answers each chunk at once, since mapped memory has no reads that could be put together: take \
                 schedule=eager, or store=table on a device as fast"
            );
        }
        if self.prelookup != Prelookup::Always {
            bail!("store=cuckoo asks its cache as each chunk arrives or has none (order=none): leave out prelookup");
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
        assert_eq!(refused(|point| point.filter_hashes = 11), "filter-hashes: 1 to 10, not 11");
        assert_eq!(refused(|point| point.container_size = Size(1)), "container-size: 4096 to 1073741824 bytes, not 1");
    }
}
