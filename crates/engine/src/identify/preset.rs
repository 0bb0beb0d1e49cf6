//! Presets of the index: published ways of finding duplicates, for any memory budget.
//!
//! A preset is a list of dimensions of the [design space](crate::identify::design), which decide what the index does. The budget decides how
//! large its parts are. All presets are exact. The laboratory has presets of the same names, with the same dimensions and the
//! sizes of the papers.

use crate::identify::design::{Design, Size, Sizes};
use crate::identify::options::{IndexOptions, PrefetchUnit, SMALL_BYTES, StoreKind};

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

/// Name and dimensions of a preset.
struct Declaration {
    preset: IndexPreset,
    name: &'static str,
    /// Dimensions that differ from those of the default.
    dimensions: &'static [(&'static str, &'static str)],
}

/// Dimensions of indexes that look up chunks as they arrive, and read the containers of hits.
const CONTAINERS: &[(&str, &str)] = &[("schedule", "eager"), ("unit", "container"), ("read-on", "no")];

/// All presets, the default first.
const DECLARATIONS: [Declaration; 6] = [
    Declaration { preset: IndexPreset::Adaptive, name: "adaptive", dimensions: &[] },
    Declaration { preset: IndexPreset::Ddfs, name: "ddfs", dimensions: CONTAINERS },
    Declaration { preset: IndexPreset::Edpl, name: "edpl", dimensions: CONTAINERS },
    Declaration {
        preset: IndexPreset::ChunkStash,
        name: "chunkstash",
        dimensions: &[("store", "memory"), ("schedule", "eager"), ("unit", "container"), ("read-on", "no")],
    },
    Declaration {
        preset: IndexPreset::Blc,
        name: "blc",
        dimensions: &[
            ("schedule", "eager"),
            ("unit", "segment"),
            // Destor reads 16 segments for a hit.
            ("following", "15"),
            ("segmenting", "fixed"),
            ("segment-chunks", "1024"),
            ("sampling", "all"),
            // The newest segment that has a chunk continues most like the stream.
            ("run-order", "newest-first"),
            ("read-on", "no"),
        ],
    },
    Declaration {
        preset: IndexPreset::Edll,
        name: "edll",
        dimensions: &[
            ("schedule", "eager"),
            ("unit", "segment"),
            ("following", "0"),
            ("segmenting", "content"),
            ("segment-chunks", "1024"),
            ("segment-min", "128"),
            ("segment-max", "10240"),
            ("sampling", "random"),
            ("sampling-ratio", "256"),
            ("run-order", "newest-first"),
            ("read-on", "no"),
        ],
    },
];

/// Sets the dimensions of a preset, and gives its parts their shares of a budget.
fn change(options: &mut IndexOptions, dimensions: &[(&str, &str)], bytes: usize) {
    let mut design = Design { options: options.clone(), sizes: Sizes::of(Size(bytes as u64)) };
    design.set(dimensions).expect("presets have dimensions and values that are declared");
    *options = design.options;
    let is_small = bytes < SMALL_BYTES;
    if options.unit != PrefetchUnit::Window && !is_small {
        options.cache_bytes = (bytes / CONTAINER_CACHE_SHARE).min(CONTAINER_CACHE_BYTES);
    }
    if matches!(options.unit, PrefetchUnit::Segment { .. }) && is_small {
        // Two logs take the buffers of less than one.
        options.log_tail_pages = SMALL_TAIL_PAGES;
    }
    if let StoreKind::Memory { bytes: store } = &mut options.store {
        *store = bytes / if is_small { SMALL_MEMORY_STORE_SHARE } else { MEMORY_STORE_SHARE };
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

    /// Returns its dimensions that differ from those of the default, with their values.
    pub fn dimensions(self) -> &'static [(&'static str, &'static str)] {
        self.declaration().dimensions
    }

    /// Divides a memory budget for it.
    pub fn options(self, bytes: usize) -> IndexOptions {
        IndexOptions::for_memory_with(bytes, |options| change(options, self.dimensions(), bytes))
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
