//! Division of a design's memory.
//!
//! A part with a size of its own takes that. Otherwise the memtable takes a sixth of the memory, or a store in memory half of it, and the filter
//! takes the rest, or the cache if only the filter has a size. If neither has one, the filter starts as a 16th of the rest, and the cache takes
//! the memory that the filter has not grown to. A division that does not fit is refused with its total.

use crate::error::{Error, Result};
use crate::identify::design::{Design, Size};
use crate::identify::options::{FILTER_START_SHARE, IndexOptions, Order, StoreKind};
use crate::kv::merge_buffer_bytes;

/// Smallest filter and cache that take the rest.
const REST_MIN: usize = 32 << 10;
/// Filter of `order=none`.
pub(super) const NO_FILTER_BYTES: usize = 4 << 10;
/// Most bytes of a cache, and its share of the memory, while the filter takes the rest: one part in so many.
const CACHE_MAX: usize = 8 << 20;
const CACHE_SHARE: usize = 16;
/// Shares of the memory that memtable and store in memory take: one part in so many.
const MEMTABLE_SHARE: usize = 6;
const STORE_SHARE: usize = 2;

impl Design {
    /// Returns the options of an index, with the memory divided among its parts.
    pub fn build(&self) -> Result<IndexOptions> {
        self.check()?;
        let sizes = &self.sizes;
        let memory = bytes(sizes.memory);
        let memtable_bytes = sizes.memtable.map_or(memory / MEMTABLE_SHARE, bytes);
        let mut options = IndexOptions {
            memtable_bytes,
            merge_buffer_bytes: merge_buffer_bytes(memtable_bytes),
            stream_waiting_max: IndexOptions::for_memory(memory).stream_waiting_max,
            ..self.options.clone()
        };
        if let StoreKind::Memory { bytes: store } = &mut options.store {
            *store = sizes.store.map_or(memory / STORE_SHARE, bytes);
        }
        self.divide(memory, &mut options)?;
        Ok(options)
    }

    /// Gives filter and cache their sizes, or the rest.
    fn divide(&self, memory: usize, options: &mut IndexOptions) -> Result<()> {
        let filter = match (options.order, self.sizes.filter) {
            (Order::Unfiltered, _) => Some(NO_FILTER_BYTES),
            (_, size) => size.map(bytes),
        };
        let cache = self.sizes.cache.map(bytes);
        options.filter_bytes = 0;
        options.filter_bytes_max = filter.unwrap_or(0);
        options.cache_bytes = match (cache, filter) {
            (Some(cache), _) => cache,
            (None, Some(_)) => 0,
            (None, None) => (memory / CACHE_SHARE).min(CACHE_MAX),
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
        let needed = taken.saturating_add(if takes_rest { REST_MIN } else { 0 });
        if memory < needed {
            return Err(self.exceeded(options, needed));
        }
        let start = if filter.is_none() && cache.is_none() { FILTER_START_SHARE } else { 1 };
        options.filter_bytes = options.filter_bytes_max / start;
        Ok(())
    }

    fn exceeded(&self, options: &IndexOptions, needed: usize) -> Error {
        let (part, bytes) = match &options.store {
            StoreKind::Table => ("memtable", options.memtable_bytes),
            StoreKind::Memory { bytes } => ("store", *bytes),
            StoreKind::Given(store) => ("store", store.memory_bytes),
        };
        Error::invalid(format!(
            "memory: filter {}, cache {}, {part} {}, pending chunks and I/O buffers come to {needed} bytes, more than {}",
            Size(options.filter_bytes_max as u64),
            Size(options.cache_bytes as u64),
            Size(bytes as u64),
            self.sizes.memory,
        ))
    }
}

/// Returns a size as bytes of memory.
fn bytes(size: Size) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}
