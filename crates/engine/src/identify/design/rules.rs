//! Combinations of dimensions that cannot work.

use crate::identify::design::Design;
use crate::identify::options::{Completeness, IndexOptions, Order, PrefetchUnit, Prelookup, Schedule, StoreKind};
use crate::identify::sampling::Sampling;
use crate::identify::segmenting::Segmenting;
use crate::identify::selection::Selection;
use crate::kv::RunOrder;

/// A combination of dimensions that is refused.
pub(super) struct Rule {
    pub(super) is_broken: fn(&Design) -> bool,
    pub(super) reason: &'static str,
}

fn has_segments(options: &IndexOptions) -> bool {
    matches!(options.unit, PrefetchUnit::Segment { .. })
}

fn is_near_exact(options: &IndexOptions) -> bool {
    options.completeness == Completeness::NearExact
}

/// Returns true if an index has the features of units.
fn has_features(options: &IndexOptions) -> bool {
    is_near_exact(options) && options.unit != PrefetchUnit::Window
}

/// All combinations that are refused.
pub(super) const RULES: &[Rule] = &[
    Rule {
        is_broken: |design| !matches!(design.options.store, StoreKind::Memory { .. }) && design.sizes.store.is_some(),
        reason: "store-size is the memory of store=memory: leave it out, or take that store",
    },
    Rule {
        is_broken: |design| matches!(design.options.store, StoreKind::Memory { .. }) && design.sizes.memtable.is_some(),
        reason: "memtable-size is a part of store=table, and store=memory has none: take store-size",
    },
    Rule {
        is_broken: |design| {
            let is_table = matches!(design.options.store, StoreKind::Table);
            !is_table && design.options.run_order == RunOrder::NewestFirst
        },
        reason: "run-order=newest-first is for store=table: store=memory has the newest entry of a chunk only; leave it out",
    },
    Rule {
        is_broken: |design| design.options.order == Order::Unfiltered && design.sizes.filter.is_some(),
        reason: "order=none has no filter, so filter-size has no effect: leave one of them out",
    },
    Rule {
        is_broken: |Design { options, .. }| options.order == Order::CacheFirst && options.prelookup == Prelookup::Never,
        reason: "order=cache-first looks up each arriving chunk in the cache, and prelookup=never does not: choose",
    },
    Rule {
        is_broken: |Design { options, .. }| options.unit != PrefetchUnit::Window && options.window.max() == 0,
        reason: "a unit is read as a whole, and window-records=0 reads nothing: leave unit or window-records out",
    },
    Rule {
        is_broken: |design| match design.options.segmenting {
            Segmenting::ContentDefined { min, max, .. } | Segmenting::FileDefined { min, max } => max < min,
            Segmenting::Fixed { .. } => false,
        },
        reason: "a segment ends between segment-min and segment-max chunks: raise segment-max",
    },
    Rule {
        is_broken: |Design { options, .. }| {
            let divides = |average: u32, ratio: u32| average.is_multiple_of(ratio.max(1));
            let is_broken = matches!(
                (options.segmenting, options.sampling),
                (Segmenting::ContentDefined { average, .. }, Sampling::Random { ratio }) if !divides(average, ratio)
            );
            has_segments(options) && is_broken
        },
        reason: "sampling=random takes the first chunk of a segment if sampling-ratio divides segment-chunks: choose such a ratio, or sampling=independent",
    },
    Rule {
        is_broken: |Design { options, .. }| options.selection.waits() && !has_segments(options),
        reason: "selection chooses among stream segments, and hits read none: take unit=segment, or selection=base",
    },
    Rule {
        is_broken: |Design { options, .. }| {
            has_segments(options) && options.selection.waits() && options.prelookup != Prelookup::Always
        },
        reason: "the chunks of similar segments answer from the cache: take prelookup=always, or selection=base",
    },
    Rule {
        is_broken: |Design { options, .. }| {
            options.selection == Selection::All && matches!(options.unit, PrefetchUnit::Segment { following: 1.. })
        },
        reason: "selection=all reads bins, which no other follows: take following=0",
    },
    Rule {
        is_broken: |Design { options, .. }| {
            1 < options.mapping && (!options.selection.waits() || !is_near_exact(options))
        },
        reason: "mapping above 1 lets a feature lead to several segments to choose from: take completeness=near-exact and a selection other than base",
    },
    Rule {
        is_broken: |Design { options, .. }| is_near_exact(options) && options.unit == PrefetchUnit::Window,
        reason: "completeness=near-exact has the features of containers or stream segments: take unit=container or unit=segment",
    },
    Rule {
        is_broken: |Design { options, .. }| has_features(options) && options.sampling == Sampling::All,
        reason: "with sampling=all each chunk has an entry: take completeness=exact, or another sampling",
    },
    Rule {
        is_broken: |Design { options, .. }| has_features(options) && options.order != Order::Unfiltered,
        reason: "completeness=near-exact has few entries, and a filter would tell which chunks have none: take order=none",
    },
    Rule {
        is_broken: |Design { options, .. }| {
            let is_at_once = has_segments(options) && options.order == Order::Unfiltered && !options.looks_up_rest();
            is_at_once && options.schedule != Schedule::Eager
        },
        reason: "with selection=top and selection=all a near-exact index looks up features only, at once: take schedule=eager",
    },
];
