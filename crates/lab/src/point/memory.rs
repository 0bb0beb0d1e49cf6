//! A point's options, with memory that is scaled.

use std::time::Duration;

use anyhow::{Result, ensure};
use onefold_engine::identify::design::dimension::Values;
use onefold_engine::identify::design::{DIMENSIONS, Size};
use onefold_engine::identify::{IndexOptions, Order as EngineOrder, StoreKind};

use crate::mapped::{CacheShape, FilterShape, MappedOptions, Order};
use crate::origin::memory_of_this_machine;
use crate::point::{CacheRule, FilterLayout, Point, Probes};

/// Largest scale.
pub const SCALE_MAX: f64 = 512.0;
/// Smallest memtable after scaling.
pub const MEMTABLE_MIN: usize = 128 << 10;
/// Fewest buckets after scaling.
pub const BUCKETS_MIN: u32 = 128;
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
        let all = options.pending_buckets;
        let buckets = u32::try_from(divided(all as usize, scale)).unwrap_or(all);
        options.pending_buckets = buckets.max(all.min(BUCKETS_MIN));
        Ok(options)
    }

    /// Returns the parameters of the engine's index for this point.
    pub fn index_options(&self) -> Result<IndexOptions> {
        self.check()?;
        ensure!(!self.is_mapped, "store=cuckoo is no store of the engine");
        self.check_sizes()?;
        Ok(self.design.build()?)
    }

    /// Refuses sizes that this machine does not have.
    fn check_sizes(&self) -> Result<()> {
        let machine = Size(memory_of_this_machine());
        for dimension in DIMENSIONS.iter().filter(|dimension| matches!(dimension.values, Values::Size { .. })) {
            if let Some(size) = dimension.get(&self.design).map(|text| Size::parse(&text)).transpose()? {
                ensure!(size <= machine, "{}: {size} is more than this machine has", dimension.name);
            }
        }
        Ok(())
    }

    /// Returns the order of filter, cache and table on mapped memory.
    fn mapped_order(&self) -> Order {
        match self.design.options.order {
            _ if self.weighs_order => Order::Auto,
            EngineOrder::FilterFirst => Order::FilterFirst,
            EngineOrder::CacheFirst => Order::CacheFirst,
            EngineOrder::Unfiltered => Order::None,
        }
    }

    /// Returns the parameters of the identifier on mapped memory for this point, with filter and cache divided by `scale`.
    pub fn mapped_options(&self, scale: f64) -> Result<MappedOptions> {
        self.check()?;
        ensure!(self.is_mapped, "this store is not on mapped memory");
        self.check_sizes()?;
        let (sizes, order) = (self.design.sizes, self.mapped_order());
        let memory = bytes(sizes.memory);
        let cache = sizes.cache.map_or(memory / 16, bytes);
        let filter = sizes.filter.map_or(memory.saturating_sub(cache), bytes);
        ensure!(
            order == Order::None || filter.saturating_add(cache) <= memory,
            "memory: filter {} and cache {} come to more than {}",
            Size(filter as u64),
            Size(cache as u64),
            sizes.memory
        );
        let (filter, cache) = (divided(filter, scale).max(FILTER_MIN), divided(cache, scale).max(FILTER_MIN));
        let (hashes, neighbors) = (self.design.options.filter_hashes, self.neighbors as usize);
        Ok(MappedOptions {
            order,
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

/// Returns a size as bytes of memory, which this machine has.
fn bytes(size: Size) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::dimension::point_of;

    #[test]
    fn filter_cache_and_store_are_scaled() {
        let point = point_of(&["memory=64M"]).unwrap();
        let (options, scaled) = (point.index_options().unwrap(), point.index_options_scaled(8.0).unwrap());
        assert_eq!((scaled.filter_bytes, scaled.cache_bytes), (options.filter_bytes / 8, options.cache_bytes / 8));
        assert_eq!((options.pending_buckets, scaled.pending_buckets), (1024, 128));
        let in_memory = point_of(&["memory=64M", "store=memory"]).unwrap();
        let StoreKind::Memory { bytes } = in_memory.index_options_scaled(8.0).unwrap().store else { panic!("a table") };
        assert_eq!(bytes, 4 << 20);
    }

    #[test]
    fn sizes_that_this_machine_does_not_have_are_refused() {
        for (name, store) in [("memory", "table"), ("memory", "cuckoo"), ("filter-size", "table")] {
            let set = [&format!("{name}=16T"), "schedule=eager", &format!("store={store}")];
            let point = point_of(&set).unwrap();
            let refused = if store == "cuckoo" { point.mapped_options(1.0).err() } else { point.index_options().err() };
            assert_eq!(refused.unwrap().to_string(), format!("{name}: 16 TiB is more than this machine has"));
        }
    }

    #[test]
    fn filter_and_cache_on_mapped_memory_fit_into_the_memory() {
        let point =
            |set: &[&str]| point_of(&[&["store=cuckoo", "schedule=eager", "memory=64M"], set].concat()).unwrap();
        let options = point(&[]).mapped_options(1.0).unwrap();
        assert_eq!(options.cache, CacheShape::Lru { bytes: 4 << 20, neighbors: 50 });
        assert_eq!(options.filter, FilterShape::Blocked { bytes: 60 << 20, hashes: 5 });
        let refused = point(&["filter-size=64M"]).mapped_options(1.0).unwrap_err().to_string();
        assert_eq!(refused, "memory: filter 64 MiB and cache 4 MiB come to more than 64 MiB");
        let order = |text: &str| point(&[text]).mapped_options(1.0).unwrap().order;
        assert_eq!(
            ["order=auto", "order=none", "order=cache-first"].map(order),
            [Order::Auto, Order::None, Order::CacheFirst]
        );
    }
}
