//! The design space of exact indexes: each dimension is declared once, in [`DIMENSIONS`].
//!
//! From a declaration follow the names that files and commands accept, reading and printing of values, their limits, and the lists for
//! people. A [`Design`] is a point of this space. [`Design::check`] refuses combinations that cannot work, and [`Design::build`] divides the memory.
//! Presets of backups are designs, too ([`IndexPreset`](crate::identify::IndexPreset)), and the laboratory adds dimensions of its own by the same
//! declarations.

pub mod dimension;
mod division;
mod rules;
pub mod size;

use crate::error::{Error, Result};
use crate::identify::design::dimension::{
    ANY_NUMBER, ANY_SIZE, Bytes, Dimension, Named, Number, SIZE_MAX, Values, same_variant, set_all,
};
use crate::identify::design::rules::RULES;
pub use crate::identify::design::size::Size;
use crate::identify::locality::arrival_log::WINDOW_RECORDS;
use crate::identify::options::{
    Completeness, IndexOptions, Order, PrefetchUnit, Prelookup, Schedule, StoreKind, WindowRule,
};
use crate::identify::sampling::{SAMPLING_RATIO, Sampling};
use crate::identify::segmenting::Segmenting;
use crate::identify::selection::Selection;
use crate::kv::{BucketReads, RunOrder};

/// A point of the design space: options of an index whose memory is not divided yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Design {
    /// Options. [`Design::build`] replaces their sizes.
    pub options: IndexOptions,
    /// Sizes.
    pub sizes: Sizes,
}

/// The memory of an index, and of those of its parts that have a size of their own. Other parts have a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// All.
    pub memory: Size,
    /// The memtable of the table.
    pub memtable: Option<Size>,
    /// The store in memory.
    pub store: Option<Size>,
    /// The filter.
    pub filter: Option<Size>,
    /// The cache.
    pub cache: Option<Size>,
}

impl Sizes {
    /// Returns a memory whose parts have their shares.
    pub fn of(memory: Size) -> Self {
        Self { memory, memtable: None, store: None, filter: None, cache: None }
    }
}

/// Memory of a design, unless it is set, and the smallest that works.
const MEMORY: usize = 256 << 20;
const MEMORY_MIN: u64 = 1 << 20;
/// Buckets of pending chunks, and different chunks of one that start its lookup (Ma et al., "Lazy Exact Deduplication", ACM Trans. Storage
/// 13(2), 2017, section 5).
const BUCKETS: u32 = 1_024;
const THRESHOLD: u32 = 32;
/// Pending chunks that keep the queue of an SSD full.
const CANDIDATES: u32 = 2_048;
/// Chunks of a fixed segment, as in destor.
const SEGMENT_CHUNKS: u32 = 1_024;

/// Most records of a window.
const WINDOW_RECORDS_MAX: u64 = 1 << 20;
/// Most chunks of a stream segment that ends with a file.
const SEGMENT_CHUNKS_OF_FILES: u32 = 10_240;
/// Most chunks of a stream segment.
const SEGMENT_CHUNKS_MAX: u64 = 1 << 20;
/// Most chunks that are pending, and that arrive while one is pending.
const PENDING_MAX: u64 = 1 << 24;

impl Default for Design {
    /// The adaptive schedule, for streams whose bytes nobody holds.
    fn default() -> Self {
        let options = IndexOptions::for_memory(MEMORY);
        let options = IndexOptions { pending_buckets: BUCKETS, pending_bytes_max: usize::MAX, ..options };
        Self { options, sizes: Sizes::of(Size(MEMORY as u64)) }
    }
}

impl Design {
    /// Returns the default with some dimensions set by text.
    pub fn with(assignments: &[(&str, &str)]) -> Result<Self> {
        let mut design = Self::default();
        design.set(assignments)?;
        Ok(design)
    }

    /// Sets dimensions by text, in whatever order. Of two values of a dimension the last one counts.
    pub fn set(&mut self, assignments: &[(&str, &str)]) -> Result<()> {
        let is_known = |name: &str| DIMENSIONS.iter().any(|dimension| dimension.name == name);
        if let Some((name, _)) = assignments.iter().find(|(name, _)| !is_known(name)) {
            return Err(Error::invalid(format!("there is no dimension {name:?}")));
        }
        let value_of = |name: &str| assignments.iter().rfind(|(known, _)| *known == name).map(|(_, text)| *text);
        set_all(DIMENSIONS, self, value_of)
    }

    /// Returns all dimensions that have an effect or a size, with their values, such that [`Design::with`] returns this design.
    pub fn assignments(&self) -> Vec<(&'static str, String)> {
        DIMENSIONS.iter().filter_map(|dimension| Some((dimension.name, dimension.get(self)?))).collect()
    }

    /// Refuses a value beyond its limits, and a combination that cannot work, with the reason.
    pub fn check(&self) -> Result<()> {
        DIMENSIONS.iter().try_for_each(|dimension| dimension.check(self))?;
        RULES.iter().find(|rule| (rule.is_broken)(self)).map_or(Ok(()), |rule| Err(Error::invalid(rule.reason)))
    }
}

/// All dimensions, in the order of listings. One that decides whether others have an effect stands before them.
pub const DIMENSIONS: &[Dimension<Design>] = &[
    Dimension {
        name: "store",
        about: "data structure of the index: the bucket table on a disk, or a hash table in memory with a log on a disk",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.store,
            same: same_variant,
            values: &[("table", StoreKind::Table), ("memory", StoreKind::Memory { bytes: 0 })],
        }),
    },
    Dimension {
        name: "store-size",
        about: "memory of store=memory, about 36 bytes for a chunk; otherwise half of the memory",
        values: Values::Size { limits: ANY_SIZE, field: |design| Bytes::OrShare(&mut design.sizes.store) },
    },
    Dimension {
        name: "schedule",
        about: "when possible duplicates are looked up",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.schedule,
            same: same_variant,
            values: &[
                ("eager", Schedule::Eager),
                ("lazy", Schedule::Lazy { threshold: THRESHOLD }),
                ("pool", Schedule::Pool { candidates: CANDIDATES }),
                ("exhaustive", Schedule::Exhaustive { threshold: THRESHOLD }),
                ("adaptive", Schedule::Adaptive),
            ],
        }),
    },
    Dimension {
        name: "threshold",
        about: "pending chunks of a bucket that trigger its lookup (lazy, exhaustive)",
        values: Values::Number {
            limits: 1..=1 << 20,
            field: |design| match &mut design.options.schedule {
                Schedule::Lazy { threshold } | Schedule::Exhaustive { threshold } => Some(Number::Narrow(threshold)),
                Schedule::Eager | Schedule::Pool { .. } | Schedule::Adaptive => None,
            },
        },
    },
    Dimension {
        name: "candidates",
        about: "pending chunks that trigger a lookup (pool)",
        values: Values::Number {
            limits: 1..=PENDING_MAX,
            field: |design| match &mut design.options.schedule {
                Schedule::Pool { candidates } => Some(Number::Narrow(candidates)),
                _ => None,
            },
        },
    },
    Dimension {
        name: "buckets",
        about: "buckets of pending chunks (lazy, exhaustive)",
        values: Values::Number {
            limits: 1..=1 << 20,
            field: |design| Some(Number::Narrow(&mut design.options.pending_buckets)),
        },
    },
    Dimension {
        name: "pending-max",
        about: "most pending chunks; adaptive takes memory of the cache for more",
        values: Values::Number {
            limits: 1..=PENDING_MAX,
            field: |design| Some(Number::Count(&mut design.options.pending_max)),
        },
    },
    Dimension {
        name: "pending-age-max",
        about: "most chunks that arrive while one is pending",
        values: Values::Number {
            limits: 1..=PENDING_MAX,
            field: |design| Some(Number::Wide(&mut design.options.pending_age_max)),
        },
    },
    Dimension {
        name: "unique-run-max",
        about: "consecutive unique chunks that close a cycle",
        values: Values::Number {
            limits: ANY_NUMBER,
            field: |design| Some(Number::Narrow(&mut design.options.cycles.unique_run_max)),
        },
    },
    Dimension {
        name: "rank-max",
        about: "largest rank in a cycle",
        values: Values::Number {
            limits: 1..=1 << 24,
            field: |design| Some(Number::Narrow(&mut design.options.cycles.rank_max)),
        },
    },
    Dimension {
        name: "tries-max",
        about: "useless windows after which a chunk leaves its cycle",
        values: Values::Number {
            limits: ANY_NUMBER,
            field: |design| Some(Number::Narrow(&mut design.options.cycles.tries_max)),
        },
    },
    Dimension {
        name: "prelookup",
        about: "when arriving chunks are looked up in the cache",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.prelookup,
            same: same_variant,
            values: &[("always", Prelookup::Always), ("never", Prelookup::Never), ("adaptive", Prelookup::Adaptive)],
        }),
    },
    Dimension {
        name: "order",
        about: "order of filter and cache; none: no filter",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.order,
            same: same_variant,
            values: &[
                ("filter-first", Order::FilterFirst),
                ("cache-first", Order::CacheFirst),
                ("none", Order::Unfiltered),
            ],
        }),
    },
    Dimension {
        name: "filter-hashes",
        about: "bits of a chunk in the filter",
        values: Values::Number {
            limits: 1..=10,
            field: |design| Some(Number::Narrow(&mut design.options.filter_hashes)),
        },
    },
    Dimension {
        name: "filter-size",
        about: "memory of the filter; otherwise the rest",
        values: Values::Size { limits: ANY_SIZE, field: |design| Bytes::OrShare(&mut design.sizes.filter) },
    },
    Dimension {
        name: "cache-size",
        about: "memory of the cache; otherwise the rest if filter-size is set, or the memory that the filter has not grown to",
        values: Values::Size { limits: ANY_SIZE, field: |design| Bytes::OrShare(&mut design.sizes.cache) },
    },
    Dimension {
        name: "cache-units",
        about: "most containers or stream segments in the cache (unit=container, unit=segment); otherwise as many as its memory holds",
        values: Values::Number {
            limits: 1..=1 << 24,
            field: |design| Some(Number::OrAll(&mut design.options.cache_units)),
        },
    },
    Dimension {
        name: "unit",
        about: "what a hit reads: a window of the log, the whole container of the hit, or the stream segment that had its chunk last",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.unit,
            same: same_variant,
            values: &[
                ("window", PrefetchUnit::Window),
                ("container", PrefetchUnit::Container),
                ("segment", PrefetchUnit::Segment { following: 0 }),
            ],
        }),
    },
    Dimension {
        name: "following",
        about: "stream segments that a hit reads after its own (unit=segment); window-records limits all of them",
        values: Values::Number {
            limits: 0..=SEGMENT_CHUNKS_MAX,
            field: |design| match &mut design.options.unit {
                PrefetchUnit::Segment { following } => Some(Number::Narrow(following)),
                PrefetchUnit::Window | PrefetchUnit::Container => None,
            },
        },
    },
    Dimension {
        name: "completeness",
        about: "chunks that have entries: all, or the samples of containers or stream segments",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.completeness,
            same: same_variant,
            values: &[("exact", Completeness::Exact), ("near-exact", Completeness::NearExact)],
        }),
    },
    Dimension {
        name: "selection",
        about: "segments that are read for a segment (unit=segment): base, those of hits as chunks arrive; top, at its end the most similar ones; mix, these and then as base; all, those that share a feature, whose chunks the new segment takes over",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.selection,
            same: same_variant,
            values: &[
                ("base", Selection::Base),
                ("top", Selection::Top { segments: 1 }),
                ("mix", Selection::Mix { segments: 1 }),
                ("all", Selection::All),
            ],
        }),
    },
    Dimension {
        name: "selected",
        about: "most segments that are read because they are similar (top, mix)",
        values: Values::Number {
            limits: 1..=1 << 10,
            field: |design| match &mut design.options.selection {
                Selection::Top { segments } | Selection::Mix { segments } => Some(Number::Narrow(segments)),
                Selection::Base | Selection::All => None,
            },
        },
    },
    Dimension {
        name: "mapping",
        about: "segments that a feature leads to, the newest ones (selection other than base)",
        values: Values::Number { limits: 1..=64, field: |design| Some(Number::Narrow(&mut design.options.mapping)) },
    },
    Dimension {
        name: "segmenting",
        about: "where stream segments end: after segment-chunks, at chunks that their fingerprints choose, one of segment-chunks, or with the file that gives them segment-min chunks",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.segmenting,
            same: same_variant,
            values: &[
                ("fixed", Segmenting::Fixed { chunks: SEGMENT_CHUNKS }),
                ("content", Segmenting::CONTENT_DEFINED),
                ("file", Segmenting::FileDefined { min: 1, max: SEGMENT_CHUNKS_OF_FILES }),
            ],
        }),
    },
    Dimension {
        name: "segment-chunks",
        about: "chunks of a stream segment; with segmenting=content on average, after the fewest",
        values: Values::Number {
            limits: 1..=SEGMENT_CHUNKS_MAX,
            field: |design| match &mut design.options.segmenting {
                Segmenting::Fixed { chunks } | Segmenting::ContentDefined { average: chunks, .. } => {
                    Some(Number::Narrow(chunks))
                }
                Segmenting::FileDefined { .. } => None,
            },
        },
    },
    Dimension {
        name: "segment-min",
        about: "fewest chunks of a stream segment (segmenting=content, segmenting=file)",
        values: Values::Number {
            limits: 0..=SEGMENT_CHUNKS_MAX,
            field: |design| match &mut design.options.segmenting {
                Segmenting::ContentDefined { min, .. } | Segmenting::FileDefined { min, .. } => {
                    Some(Number::Narrow(min))
                }
                Segmenting::Fixed { .. } => None,
            },
        },
    },
    Dimension {
        name: "segment-max",
        about: "most chunks of a stream segment (segmenting=content, segmenting=file)",
        values: Values::Number {
            limits: 1..=SEGMENT_CHUNKS_MAX,
            field: |design| match &mut design.options.segmenting {
                Segmenting::ContentDefined { max, .. } | Segmenting::FileDefined { max, .. } => {
                    Some(Number::Narrow(max))
                }
                Segmenting::Fixed { .. } => None,
            },
        },
    },
    Dimension {
        name: "sampling",
        about: "features, which are the duplicates whose entries get their new position in the stream, or the only entries of a near-exact index: all, each of sampling-ratio, those that their fingerprints choose by the bits of segmenting or by others, or the least fingerprints",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.sampling,
            same: same_variant,
            values: &[
                ("all", Sampling::All),
                ("uniform", Sampling::Uniform { ratio: SAMPLING_RATIO }),
                ("random", Sampling::Random { ratio: SAMPLING_RATIO }),
                ("independent", Sampling::Independent { ratio: SAMPLING_RATIO }),
                ("minimum", Sampling::Minimum { ratio: SAMPLING_RATIO }),
            ],
        }),
    },
    Dimension {
        name: "sampling-ratio",
        about: "chunks of which one is sampled; not with sampling=all",
        values: Values::Number {
            limits: 1..=1 << 20,
            field: |design| match &mut design.options.sampling {
                Sampling::Uniform { ratio }
                | Sampling::Random { ratio }
                | Sampling::Independent { ratio }
                | Sampling::Minimum { ratio } => Some(Number::Narrow(ratio)),
                Sampling::All => None,
            },
        },
    },
    Dimension {
        name: "window",
        about: "length of the windows read from the log: always window-records, or as adaptive plans, which is in proportion to runs of duplicates for other schedules",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.window,
            same: same_variant,
            values: &[("fixed", WindowRule::Fixed(WINDOW_RECORDS)), ("adaptive", WindowRule::Adaptive(WINDOW_RECORDS))],
        }),
    },
    Dimension {
        name: "window-records",
        about: "records of the log that a hit reads, always or at most; 0: none. Of unit=container and unit=segment, at most",
        values: Values::Number {
            limits: 0..=WINDOW_RECORDS_MAX,
            field: |design| match &mut design.options.window {
                WindowRule::Fixed(records) | WindowRule::Adaptive(records) => Some(Number::Narrow(records)),
            },
        },
    },
    Dimension {
        name: "read-on",
        about: "prefetch the expected continuation of the stream from the log without a lookup",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.follows_successors,
            same: |one, other| one == other,
            values: &[("yes", true), ("no", false)],
        }),
    },
    Dimension {
        name: "reads",
        about: "how lookups read the table: as suits the device, single pages, from the first needed page to the last, or the whole bucket",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.reads,
            same: |one, other| one == other,
            values: &[
                ("device", None),
                ("pages", Some(BucketReads::Pages)),
                ("whole", Some(BucketReads::Whole)),
                ("bucket", Some(BucketReads::Entire)),
            ],
        }),
    },
    Dimension {
        name: "run-order",
        about: "order in which lookups search the runs of a bucket of the table: largest-first takes fewest reads, and newest-first finds the newest copy of a chunk",
        values: Values::Choice(&Named::<Design, _> {
            field: |design| &mut design.options.run_order,
            same: same_variant,
            values: &[("largest-first", RunOrder::LargestFirst), ("newest-first", RunOrder::NewestFirst)],
        }),
    },
    Dimension {
        name: "memtable-size",
        about: "memory of the memtable; otherwise a sixth",
        values: Values::Size { limits: ANY_SIZE, field: |design| Bytes::OrShare(&mut design.sizes.memtable) },
    },
    Dimension {
        name: "runs-max",
        about: "most sorted runs in a bucket of the table",
        values: Values::Number { limits: 1..=64, field: |design| Some(Number::Narrow(&mut design.options.runs_max)) },
    },
    Dimension {
        name: "memory",
        about: "total memory of the point",
        values: Values::Size { limits: MEMORY_MIN..=SIZE_MAX, field: |design| Bytes::Always(&mut design.sizes.memory) },
    },
];

#[cfg(test)]
mod design_tests;
