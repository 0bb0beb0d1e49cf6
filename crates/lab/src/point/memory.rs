//! Division of a point's memory.
//!
//! A part with a size of its own takes that. Otherwise the memtable takes a sixth of the memory, or a store in memory half of it, and the filter takes the rest, or the
//! cache if only the filter has a size. If neither has one, the filter starts as a 16th of the rest, and the cache takes the memory that
//! the filter has not grown to. A division that does not fit is refused with its total.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use onefold_engine::identify::options::{self, CycleRule, FILTER_START_SHARE, WindowRule};
use onefold_engine::identify::{self, IndexOptions, Order as EngineOrder, PrefetchUnit, StoreKind};
use onefold_engine::kv::merge_buffer_bytes;
use onefold_engine::source::exclude::parse_size;
use toml::Value;

use crate::counts::float;
use crate::mapped::{CacheShape, FilterShape, MappedOptions, Order};
use crate::origin::memory_of_this_machine;
use crate::point::{CacheRule, FilterLayout, Point, Probes, Sampling, Schedule, Segmenting, Store, Unit, Window};

/// Bytes; in a file a number, or text such as `256M`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl Size {
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        let bytes = match value {
            Value::Integer(bytes) => u64::try_from(*bytes).map_err(|_| "a size below 0".to_owned()),
            Value::String(text) => parse_size(text).map_err(|error| error.to_string()),
            _ => Err(format!("{value}: not a size; write a number of bytes, or text such as \"256M\"")),
        };
        bytes.map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if 1 << shift <= self.0 && self.0.trailing_zeros() + 4 >= shift {
                let amount = float(self.0) / float(1 << shift);
                return write!(f, "{amount} {unit}");
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// Smallest memory of a point.
const MEMORY_MIN: u64 = 1 << 20;
/// Largest scale.
pub const SCALE_MAX: f64 = 512.0;
/// Smallest memtable after scaling.
pub const MEMTABLE_MIN: usize = 128 << 10;
/// Fewest buckets after scaling.
pub const BUCKETS_MIN: u32 = 128;
/// Smallest filter and cache that take the rest.
const REST_MIN: usize = 32 << 10;
/// Filter of `order=none`.
const NO_FILTER_BYTES: usize = 4 << 10;
/// Smallest filter and cache on mapped memory after scaling.
const FILTER_MIN: usize = 4 << 10;

impl Point {
    /// Returns the parameters of the engine's index with filter, cache, memtable or store in memory, and the buckets of pending chunks divided by
    /// `scale`, from 1 to [`SCALE_MAX`]. The memtable has at least [`MEMTABLE_MIN`], and there are at least [`BUCKETS_MIN`] buckets.
    ///
    /// A stream that is shorter by the same factor then fills the same share of them. Batches of lookups, reads, merges and
    /// writes do not depend on the length of a stream, and stay the same.
    pub fn index_options_scaled(&self, scale: f64) -> Result<IndexOptions> {
        let mut options = self.index_options()?;
        options.filter_bytes = divided(options.filter_bytes, scale);
        options.filter_bytes_max = divided(options.filter_bytes_max, scale);
        options.cache_bytes = divided(options.cache_bytes, scale);
        options.memtable_bytes = divided(options.memtable_bytes, scale).max(MEMTABLE_MIN.min(options.memtable_bytes));
        if let StoreKind::Memory { bytes } = &mut options.store {
            *bytes = divided(*bytes, scale);
        }
        // Runs of duplicates are equally long at every scale: pending chunks must span some of them.
        let buckets = u32::try_from(divided(self.buckets as usize, scale)).unwrap_or(self.buckets);
        options.pending_buckets = buckets.max(self.buckets.min(BUCKETS_MIN));
        Ok(options)
    }

    /// Returns the parameters of the engine's index for this point.
    pub fn index_options(&self) -> Result<IndexOptions> {
        self.check()?;
        ensure!(self.store != Store::Cuckoo, "store=cuckoo is no store of the engine");
        let memory = bytes("memory", self.memory)?;
        ensure!(
            MEMORY_MIN <= self.memory.0,
            "memory: {} is less than the smallest that works, {}",
            self.memory,
            Size(MEMORY_MIN)
        );
        let memtable_bytes = self.memtable_size.map_or(Ok(memory / 6), |size| bytes("memtable-size", size))?;
        let store = match self.store {
            Store::Memory => {
                StoreKind::Memory { bytes: self.store_size.map_or(Ok(memory / 2), |size| bytes("store-size", size))? }
            }
            Store::Table | Store::Cuckoo => StoreKind::Table,
        };
        let mut options = IndexOptions {
            store,
            schedule: match self.schedule {
                Schedule::Eager => options::Schedule::Eager,
                Schedule::Lazy => options::Schedule::Lazy { threshold: self.threshold },
                Schedule::Exhaustive => options::Schedule::Exhaustive { threshold: self.threshold },
                Schedule::Pool => options::Schedule::Pool { candidates: self.candidates },
                Schedule::Adaptive => options::Schedule::Adaptive,
            },
            order: match self.order {
                Order::FilterFirst => EngineOrder::FilterFirst,
                Order::CacheFirst => EngineOrder::CacheFirst,
                Order::None | Order::Auto => EngineOrder::Unfiltered,
            },
            prelookup: self.prelookup,
            unit: match self.unit {
                Unit::Window => PrefetchUnit::Window,
                Unit::Container => PrefetchUnit::Container,
                Unit::Segment => PrefetchUnit::Segment { following: self.following },
            },
            segmenting: self.engine_segmenting(),
            sampling: self.engine_sampling(),
            window: match self.window {
                Window::Fixed => WindowRule::Fixed(self.window_records),
                Window::Adaptive => WindowRule::Adaptive(self.window_records),
            },
            follows_successors: self.follows_successors,
            cycles: CycleRule {
                unique_run_max: self.unique_run_max,
                rank_max: self.rank_max,
                tries_max: self.tries_max,
            },
            filter_hashes: self.filter_hashes,
            memtable_bytes,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            reads: self.reads,
            run_order: self.run_order,
            runs_max: self.runs_max,
            pending_buckets: self.buckets,
            pending_max: self.pending_max as usize,
            // A trace has no bytes of chunks to hold.
            pending_bytes_max: usize::MAX,
            pending_age_max: u64::from(self.pending_age_max),
            ..IndexOptions::for_memory(memory)
        };
        self.divide(memory, &mut options)?;
        Ok(options)
    }

    fn engine_segmenting(&self) -> identify::Segmenting {
        match self.segmenting {
            Segmenting::Fixed => identify::Segmenting::Fixed { chunks: self.segment_chunks },
            Segmenting::Content => identify::Segmenting::ContentDefined {
                min: self.segment_min,
                average: self.segment_chunks,
                max: self.segment_max,
            },
        }
    }

    fn engine_sampling(&self) -> identify::Sampling {
        let ratio = self.sampling_ratio;
        match self.sampling {
            Sampling::All => identify::Sampling::All,
            Sampling::Uniform => identify::Sampling::Uniform { ratio },
            Sampling::Random => identify::Sampling::Random { ratio },
        }
    }

    /// Returns the parameters of the identifier on mapped memory for this point, with filter and cache divided by `scale`.
    pub fn mapped_options(&self, scale: f64) -> Result<MappedOptions> {
        self.check()?;
        ensure!(self.store == Store::Cuckoo, "this store is not on mapped memory");
        let memory = bytes("memory", self.memory)?;
        let has_both = self.order != Order::None;
        let cache = self.cache_size.map_or(Ok(memory / 16), |size| bytes("cache-size", size))?;
        let filter = self.filter_size.map_or(Ok(memory.saturating_sub(cache)), |size| bytes("filter-size", size))?;
        ensure!(
            !has_both || filter.saturating_add(cache) <= memory,
            "memory: filter {} and cache {} come to more than {}",
            Size(filter as u64),
            Size(cache as u64),
            self.memory
        );
        let (filter, cache) = (divided(filter, scale).max(FILTER_MIN), divided(cache, scale).max(FILTER_MIN));
        let (hashes, neighbors) = (self.filter_hashes, self.neighbors as usize);
        Ok(MappedOptions {
            order: self.order,
            filter: match self.filter {
                FilterLayout::Blocked => FilterShape::Blocked { bytes: filter, hashes },
                FilterLayout::Scattered => FilterShape::Scattered { bytes: filter, hashes },
            },
            cache: match self.cache {
                CacheRule::Fifo => CacheShape::Fifo { bytes: cache, neighbors },
                CacheRule::Lru => CacheShape::Lru { bytes: cache, neighbors },
            },
            injected: Duration::from_nanos(self.injected_ns.into()),
            prefetches: self.probes == Probes::Together,
            ..MappedOptions::default()
        })
    }

    /// Gives filter and cache their sizes, or the rest.
    fn divide(&self, memory: usize, options: &mut IndexOptions) -> Result<()> {
        let filter = match (self.order, self.filter_size) {
            (Order::None, _) => Some(NO_FILTER_BYTES),
            (_, size) => size.map(|size| bytes("filter-size", size)).transpose()?,
        };
        let cache = self.cache_size.map(|size| bytes("cache-size", size)).transpose()?;
        options.filter_bytes = 0;
        options.filter_bytes_max = filter.unwrap_or(0);
        options.cache_bytes = match (cache, filter) {
            (Some(cache), _) => cache,
            (None, Some(_)) => 0,
            // As in the engine when the filter takes the rest.
            (None, None) => (memory / 16).min(8 << 20),
        };
        let taken = options.memory_bytes();
        let left = memory.saturating_sub(taken);
        let rest = match (filter, cache) {
            (None, _) => &mut options.filter_bytes_max,
            (Some(_), None) => &mut options.cache_bytes,
            (Some(_), Some(_)) => &mut 0,
        };
        let takes_rest = filter.is_none() || cache.is_none();
        *rest += left;
        let needed = taken + if takes_rest { REST_MIN } else { 0 };
        if memory < needed {
            let (part, bytes) = match options.store {
                StoreKind::Table => ("memtable", options.memtable_bytes),
                StoreKind::Memory { bytes } => ("store", bytes),
                StoreKind::Given(_) => unreachable!("no point has such a store"),
            };
            bail!(
                "memory: filter {}, cache {}, {part} {}, pending chunks and I/O buffers come to {needed} bytes, more than {}",
                Size(options.filter_bytes_max as u64),
                Size(options.cache_bytes as u64),
                Size(bytes as u64),
                self.memory,
            );
        }
        // As in the engine: without sizes, the filter starts small and leaves the rest to the cache until it grows.
        let start = if filter.is_none() && cache.is_none() { FILTER_START_SHARE } else { 1 };
        options.filter_bytes = options.filter_bytes_max / start;
        Ok(())
    }
}

/// Returns an amount divided by a scale, from 1 to [`SCALE_MAX`].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "sizes of memory, to within a byte or so"
)]
fn divided(amount: usize, scale: f64) -> usize {
    (amount as f64 / scale.clamp(1.0, SCALE_MAX)) as usize
}

fn bytes(dimension: &str, size: Size) -> Result<usize> {
    match usize::try_from(size.0) {
        Ok(bytes) if size.0 <= memory_of_this_machine() => Ok(bytes),
        _ => bail!("{dimension}: {size} is more than this machine has"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::dimension::parse;

    #[test]
    fn what_has_no_size_takes_what_is_left() {
        let point = Point { memory: Size(64 << 20), ..Point::default() };
        let options = point.index_options().unwrap();
        assert_eq!(options.memory_bytes(), 64 << 20);
        assert!(24 << 20 < options.filter_bytes_max, "{options:?}");
        assert_eq!(options.filter_bytes, options.filter_bytes_max / 16);
        let scaled = point.index_options_scaled(8.0).unwrap();
        assert_eq!((scaled.filter_bytes, scaled.cache_bytes), (options.filter_bytes / 8, options.cache_bytes / 8));
        let eager = Point { filter_size: Some(Size(16 << 20)), schedule: Schedule::Eager, ..point.clone() };
        let options = eager.index_options().unwrap();
        assert_eq!(options.filter_bytes, 16 << 20);
        assert!(((64 << 20) - 1024..=64 << 20).contains(&options.memory_bytes()), "{options:?}");
        assert!(8 << 20 < options.cache_bytes, "{options:?}");
        let all = Point { cache_size: Some(Size(1 << 20)), ..eager };
        let options = all.index_options().unwrap();
        assert_eq!((options.filter_bytes, options.cache_bytes), (16 << 20, 1 << 20));
        assert!(options.memory_bytes() < 64 << 20);
        let none = Point { order: Order::None, ..point.clone() };
        let options = none.index_options().unwrap();
        assert_eq!(options.filter_bytes, NO_FILTER_BYTES);
        assert!(20 << 20 < options.cache_bytes && options.memory_bytes() <= 64 << 20, "{options:?}");
        let refused = Point { filter_size: Some(Size(64 << 20)), ..point.clone() }.index_options().unwrap_err();
        assert!(refused.to_string().contains("more than 64 MiB"), "{refused}");
        let in_memory = Point { store: Store::Memory, ..point.clone() };
        let options = in_memory.index_options().unwrap();
        assert_eq!(options.store, StoreKind::Memory { bytes: 32 << 20 });
        assert!((64 << 20) - 1024 <= options.memory_bytes() && options.memory_bytes() <= 64 << 20, "{options:?}");
        let StoreKind::Memory { bytes } = in_memory.index_options_scaled(8.0).unwrap().store else { panic!("a table") };
        assert_eq!(bytes, 4 << 20);
        let all = Point { store_size: Some(Size(64 << 20)), ..in_memory };
        let refused = all.index_options().unwrap_err().to_string();
        assert!(refused.contains("store 64 MiB") && refused.contains("more than 64 MiB"), "{refused}");
        let refused = Point { memory: Size(1000), ..point }.index_options().unwrap_err();
        assert_eq!(refused.to_string(), "memory: 1000 bytes is less than the smallest that works, 1 MiB");
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (bytes, shown) in [(1 << 30, "1 GiB"), (3 << 19, "1.5 MiB"), (10 << 20, "10 MiB"), (1000, "1000 bytes")] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
        let table = |text: &str| toml::from_str(&format!("memory = {text}")).unwrap();
        let size = |text: &str| parse(&table(text)).map(|point| point.memory.0);
        assert_eq!((size("4096").unwrap(), size("'3M'").unwrap()), (4096, 3 << 20));
        assert!(size("-1").is_err() && size("'3 apples'").is_err() && size("1.5").is_err());
    }
}
