//! Presets of the index: published ways of finding duplicates, for any memory budget.
//!
//! A preset decides what the index does, and the budget how large its parts are. All presets are exact. Experiments of the
//! laboratory have presets of the same names, with the sizes of the papers.

use crate::identify::options::{IndexOptions, PrefetchUnit, SMALL_BYTES, Schedule, StoreKind};
use crate::identify::sampling::Sampling;
use crate::identify::segmenting::Segmenting;
use crate::kv::RunOrder;

/// Containers or segments in the cache (Fu et al., "Design Tradeoffs for Data Deduplication Performance in Backup Workloads", FAST 2015,
/// section 4.1) of 1,024 chunks each, of 64 bytes. Memory beyond that goes to the filter.
const CONTAINER_CACHE_BYTES: usize = 64 << 20;
/// Share of the budget that a cache of containers or segments takes at most: one part in so many.
const CONTAINER_CACHE_SHARE: usize = 8;
/// Share of the budget that a store in memory takes: one part in so many.
const MEMORY_STORE_SHARE: usize = 2;
/// The same of small budgets, of which buffers take much.
const SMALL_MEMORY_STORE_SHARE: usize = 4;

/// Pages that each of two logs writes together in a small budget.
const SMALL_TAIL_PAGES: usize = 32;

/// A way of finding duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum IndexPreset {
    /// As the plan that would have cost least on the recent stream.
    #[default]
    Adaptive,
    /// Each possible duplicate is looked up as it arrives, and a hit reads its container (Zhu et al., FAST 2008).
    Ddfs,
    /// Exact deduplication with physical locality, of which DDFS is the example (Fu et al., FAST 2015).
    Edpl,
    /// Like DDFS, with all entries in a cuckoo table in memory (Debnath et al., USENIX ATC 2010).
    ChunkStash,
    /// A hit reads 16 stream segments of 1,024 chunks each (Meister et al., "Block Locality Caching for Data Deduplication",
    /// SYSTOR 2013, as Fu et al., FAST 2015, describe it).
    Blc,
    /// Exact deduplication with logical locality (Fu et al., FAST 2015): a hit reads the stream segment that the chunk was in the
    /// last time.
    Edll,
}

/// Name and effect of a preset.
struct Declaration {
    preset: IndexPreset,
    name: &'static str,
    change: fn(&mut IndexOptions, usize),
}

/// All presets, the default first.
const DECLARATIONS: [Declaration; 6] = [
    Declaration { preset: IndexPreset::Adaptive, name: "adaptive", change: |_, _| {} },
    Declaration { preset: IndexPreset::Ddfs, name: "ddfs", change: read_containers },
    Declaration { preset: IndexPreset::Edpl, name: "edpl", change: read_containers },
    Declaration {
        preset: IndexPreset::ChunkStash,
        name: "chunkstash",
        change: |options, bytes| {
            read_containers(options, bytes);
            let share = if bytes < SMALL_BYTES { SMALL_MEMORY_STORE_SHARE } else { MEMORY_STORE_SHARE };
            options.store = StoreKind::Memory { bytes: bytes / share };
        },
    },
    Declaration {
        preset: IndexPreset::Blc,
        name: "blc",
        change: |options, bytes| {
            // Destor reads 16 segments for a hit.
            read_segments(options, bytes, 15);
            (options.segmenting, options.sampling) = (Segmenting::Fixed { chunks: 1_024 }, Sampling::All);
        },
    },
    Declaration {
        preset: IndexPreset::Edll,
        name: "edll",
        change: |options, bytes| {
            read_segments(options, bytes, 0);
            options.segmenting = Segmenting::CONTENT_DEFINED;
            options.sampling = Sampling::Random { ratio: 256 };
        },
    },
];

/// Looks chunks up as they arrive, and reads the stream segments of hits, with so many after each.
fn read_segments(options: &mut IndexOptions, bytes: usize, following: u32) {
    read_containers(options, bytes);
    options.unit = PrefetchUnit::Segment { following };
    // The newest segment that has a chunk continues most like the stream.
    options.run_order = RunOrder::NewestFirst;
    if bytes < SMALL_BYTES {
        // Two logs take the buffers of less than one.
        options.log_tail_pages = SMALL_TAIL_PAGES;
    }
}

/// Looks chunks up as they arrive, and reads the containers of hits.
fn read_containers(options: &mut IndexOptions, bytes: usize) {
    options.schedule = Schedule::Eager;
    options.unit = PrefetchUnit::Container;
    options.follows_successors = false;
    if SMALL_BYTES <= bytes {
        options.cache_bytes = (bytes / CONTAINER_CACHE_SHARE).min(CONTAINER_CACHE_BYTES);
    }
}

impl IndexPreset {
    /// Returns all presets, the default first.
    pub fn all() -> impl Iterator<Item = Self> {
        DECLARATIONS.iter().map(|declaration| declaration.preset)
    }

    /// Returns the preset with a name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        DECLARATIONS.iter().find(|declaration| declaration.name == name).map(|declaration| declaration.preset)
    }

    fn declaration(self) -> &'static Declaration {
        let found = DECLARATIONS.iter().find(|declaration| declaration.preset == self);
        found.expect("each preset is declared")
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Divides a memory budget for it.
    pub fn options(self, bytes: usize) -> IndexOptions {
        IndexOptions::for_memory_with(bytes, |options| (self.declaration().change)(options, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_presets_and_the_first_is_the_default() {
        for preset in IndexPreset::all() {
            assert_eq!(IndexPreset::named(preset.name()), Some(preset));
        }
        assert_eq!(IndexPreset::all().next(), Some(IndexPreset::default()));
        assert_eq!(IndexPreset::named("Adaptive"), None);
        assert_eq!(IndexPreset::Adaptive.options(64 << 20), IndexOptions::for_memory(64 << 20));
    }

    #[test]
    fn every_preset_keeps_to_its_budget() {
        for (preset, mebibytes) in IndexPreset::all().flat_map(|preset| [12, 16, 64, 256, 4096].map(|it| (preset, it)))
        {
            let options = preset.options(mebibytes << 20);
            let taken = options.memory_bytes();
            assert!(taken <= mebibytes << 20, "{preset:?} in {mebibytes} MiB: {taken}, {options:?}");
            assert!(mebibytes << 17 <= options.filter_bytes_max, "{preset:?} in {mebibytes} MiB: {options:?}");
        }
    }
}
