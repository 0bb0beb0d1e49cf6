//! A point of the parameter space: one way of finding duplicates, described by its dimensions.
//!
//! Presets are points with names and sources; they are data (`presets/*.toml`). `--set` changes a dimension. A point is a design of the engine,
//! whose dimensions `onefold_engine::identify::design` declares, and values of the dimensions that only the laboratory has: those of an index on
//! mapped memory, below. A combination that cannot work is refused with the reason, as are sizes that exceed the memory.

pub mod dimension;
pub mod memory;
pub mod preset;

use anyhow::{Result, bail};
use onefold_engine::identify::design::dimension::{Bytes, Dimension, Named, Number, Values, same_variant};
use onefold_engine::identify::design::{Design, Size};
use onefold_engine::identify::{PrefetchUnit, Prelookup, Schedule};
use onefold_engine::kv::RunOrder;

/// A point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// The dimensions of the engine.
    pub design: Design,
    /// Whether the index is a log of fingerprints and a cuckoo table on mapped memory (`store=cuckoo`).
    pub is_mapped: bool,
    /// Whether the order of filter and cache is decided during the run (`order=auto`).
    pub weighs_order: bool,
    /// Position of a chunk's bits in the filter.
    pub filter: FilterLayout,
    /// Unit and eviction order of the cache.
    pub cache: CacheRule,
    /// Fingerprints after a hit that a read buffer copies.
    pub neighbors: u32,
    /// Scheduling of the reads of mapped memory.
    pub probes: Probes,
    /// Nanoseconds added to each wait for mapped memory.
    pub injected_ns: u32,
    /// Bytes of the chunks that are stored and indexed together.
    pub container_size: Size,
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

/// Scheduling of the reads of mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probes {
    /// Each lookup waits for its own reads.
    OneByOne,
    /// The reads of 64 lookups overlap.
    Together,
}

impl Default for Point {
    fn default() -> Self {
        Self {
            design: Design::default(),
            is_mapped: false,
            weighs_order: false,
            filter: FilterLayout::Blocked,
            cache: CacheRule::Lru,
            neighbors: 50,
            probes: Probes::Together,
            injected_ns: 0,
            container_size: Size(4 << 20),
        }
    }
}

/// A value that the laboratory adds to a dimension of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddedValue {
    /// The dimension.
    pub(crate) dimension: &'static str,
    /// The value.
    pub(crate) value: &'static str,
    /// Help text.
    pub(crate) about: &'static str,
    /// Returns whether a point has it.
    pub(crate) field: fn(&mut Point) -> &mut bool,
}

/// All values that the laboratory adds to dimensions of the engine.
pub(crate) const ADDED_VALUES: &[AddedValue] = &[
    AddedValue {
        dimension: "store",
        value: "cuckoo",
        about: "cuckoo: a log and a cuckoo table on mapped memory",
        field: |point| &mut point.is_mapped,
    },
    AddedValue {
        dimension: "order",
        value: "auto",
        about: "auto: as a model says of what is measured during the run (cuckoo)",
        field: |point| &mut point.weighs_order,
    },
];

/// All dimensions that the laboratory adds, in the order of listings.
pub(crate) const ADDED_DIMENSIONS: &[Dimension<Point>] = &[
    Dimension {
        name: "filter",
        about: "position of a chunk's bits in the filter: one cache line, or anywhere (cuckoo)",
        values: Values::Choice(&Named::<Point, _> {
            field: |point| &mut point.filter,
            same: same_variant,
            values: &[("blocked", FilterLayout::Blocked), ("scattered", FilterLayout::Scattered)],
        }),
    },
    Dimension {
        name: "cache",
        about: "eviction: least recently used windows of the log, or a read buffer, oldest first (cuckoo)",
        values: Values::Choice(&Named::<Point, _> {
            field: |point| &mut point.cache,
            same: same_variant,
            values: &[("lru", CacheRule::Lru), ("fifo", CacheRule::Fifo)],
        }),
    },
    Dimension {
        name: "neighbors",
        about: "fingerprints after a hit that a read buffer copies (cuckoo)",
        values: Values::Number { limits: 1..=1 << 20, field: |point| Some(Number::Narrow(&mut point.neighbors)) },
    },
    Dimension {
        name: "probes",
        about: "whether reads of mapped memory wait for each other or overlap (cuckoo)",
        values: Values::Choice(&Named::<Point, _> {
            field: |point| &mut point.probes,
            same: same_variant,
            values: &[("one-by-one", Probes::OneByOne), ("together", Probes::Together)],
        }),
    },
    Dimension {
        name: "injected-ns",
        about: "nanoseconds added to each wait for mapped memory (cuckoo)",
        values: Values::Number {
            limits: 0..=1_000_000_000,
            field: |point| Some(Number::Narrow(&mut point.injected_ns)),
        },
    },
    Dimension {
        name: "container-size",
        about: "bytes of the chunks that are stored and indexed together",
        values: Values::Size { limits: 4 << 10..=1 << 30, field: |point| Bytes::Always(&mut point.container_size) },
    },
];

impl Point {
    /// Refuses a combination that cannot work, with the reason.
    pub fn check(&self) -> Result<()> {
        ADDED_DIMENSIONS.iter().try_for_each(|dimension| dimension.check(self))?;
        if self.is_mapped {
            self.check_mapped()?;
        } else {
            self.check_engine()?;
        }
        Ok(self.design.check()?)
    }

    fn check_engine(&self) -> Result<()> {
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
        if self.weighs_order {
            bail!(
                "order=auto weighs the filter against the cache, and a schedule batches the lookups of this store: take \
                 filter-first, cache-first or none, or store=cuckoo"
            );
        }
        if self.injected_ns != 0 {
            bail!("injected-ns makes mapped memory slower, and this store has none: take another device instead");
        }
        Ok(())
    }

    fn check_mapped(&self) -> Result<()> {
        let options = &self.design.options;
        if options.run_order == RunOrder::NewestFirst {
            bail!("run-order=newest-first is for store=table, and store=cuckoo has no runs: leave it out");
        }
        if options.unit != PrefetchUnit::Window {
            bail!("unit is for logs on a disk, and store=cuckoo copies neighbors: leave it out");
        }
        if options.schedule != Schedule::Eager {
            bail!(
                "store=cuckoo answers each chunk at once, since reads of mapped memory cannot be batched: take \
                 schedule=eager, or store=table on a device as fast"
            );
        }
        if options.prelookup != Prelookup::Always {
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
    use crate::point::dimension::point_of;

    fn refused(assignments: &[&str]) -> String {
        point_of(assignments).unwrap().check().unwrap_err().to_string()
    }

    #[test]
    fn combinations_that_cannot_work_are_refused_with_the_reason() {
        Point::default().check().unwrap();
        point_of(&["store=cuckoo", "schedule=eager", "order=auto", "cache=fifo"]).unwrap().check().unwrap();
        assert!(refused(&["cache=fifo"]).contains("take cache=lru"));
        assert!(refused(&["store=memory", "cache=fifo"]).contains("take cache=lru"));
        assert!(refused(&["filter=scattered"]).contains("take store=cuckoo"));
        assert!(refused(&["order=auto"]).contains("take filter-first"));
        assert!(refused(&["injected-ns=5"]).contains("take another device"));
        assert!(refused(&["store=cuckoo"]).contains("take schedule=eager"));
        assert!(refused(&["store=cuckoo", "schedule=eager", "prelookup=never"]).contains("leave out prelookup"));
        assert!(refused(&["store=cuckoo", "schedule=eager", "run-order=newest-first"]).contains("is for store=table"));
        for unit in ["unit=container", "unit=segment"] {
            assert!(refused(&["store=cuckoo", unit]).contains("unit is for logs on a disk"));
        }
        // Combinations of the engine.
        assert!(refused(&["order=none", "filter-size=1"]).contains("leave one"));
        assert!(refused(&["store-size=1M"]).contains("leave it out"));
        assert!(refused(&["store=cuckoo", "schedule=eager", "store-size=1M"]).contains("leave it out"));
    }
}
