//! The order of filter, cache and table, and its cost by the model of the paper (section 4).
//!
//! Of N chunks, `N_d` are duplicates and `N_u` are not. With `L_B`, `L_C` and `L_D` for a probe of the filter, an access to the
//! cache and a lookup in the table, `R_miss` of the duplicates not in the cache and `R_fp` of the new chunks passed by the
//! filter:
//!
//! - equation 4, filter first: `T = N L_B + (N_u R_fp + N_d) L_C + (N_u R_fp + N_d R_miss) L_D`
//! - equation 5, cache first: `T' = N L_C + (N_u + N_d R_miss) L_B + (N_u R_fp + N_d R_miss) L_D`
//! - equations 6 to 8: `T' < T` if and only if `R_d > L_C / (L_B (1 - R_miss) + L_C)`, where `R_fp` is left out
//!
//! After a hit in the table, its neighbors are copied into the cache. The equations do not have this step, which takes longer than a
//! lookup. Predictions add it to each duplicate that the cache misses; equation 8 does not change.
//!
//! The insertion of a new chunk costs the same in every order, so no equation includes it; it is measured separately.

use std::fmt;

use crate::counts::{counts, float};

/// The order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Filter, then cache, then table: Buffer-F, and with an LRU cache the traditional "eager" way.
    FilterFirst,
    /// Cache, then filter, then table: Buffer-L.
    CacheFirst,
    /// The table alone: locality-oblivious.
    None,
    /// The first or the second, whichever is faster by the model; decided repeatedly during the run.
    Auto,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FilterFirst => "filter-first",
            Self::CacheFirst => "cache-first",
            Self::None => "none",
            Self::Auto => "auto",
        })
    }
}

/// A step that is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A probe of the filter: `L_B`.
    Filter,
    /// An access to the cache: `L_C`.
    Cache,
    /// A lookup in the table: the search for an entry, hit or not. `L_D`.
    Lookup,
    /// The copy of neighbors into the cache, after a hit. The paper counts it with the cache.
    Fill,
    /// The insertion of a new chunk into log and table.
    Enter,
}

const STEPS: usize = 5;
/// Fewest samples of a step before it counts.
const SAMPLES_MIN: u64 = 32;
/// Share of a new sample in the moving average.
const WEIGHT: f64 = 1.0 / 512.0;
/// A sample counts at most this multiple of the average: other work of the machine is no cost of the step.
const SAMPLE_MAX: f64 = 20.0;
/// Weight of a batch of 64 in the moving shares, which follow about 4,096 chunks.
const SHARE_WEIGHT: f64 = 1.0 / 64.0;
/// Share of the time that the other order must save before the order changes.
const ADVANTAGE_MIN: f64 = 0.1;
/// Fewest batches between two changes of the order.
const BATCHES_MIN: u64 = 256;

#[derive(Clone, Copy, Default, Debug)]
struct Average {
    moving: f64,
    sum: f64,
    samples: u64,
}

impl Average {
    fn add(&mut self, nanos: f64) {
        let nanos = if self.samples < SAMPLES_MIN { nanos } else { nanos.min(SAMPLE_MAX * self.mean().max(1.0)) };
        self.samples += 1;
        self.sum += nanos;
        // The first samples have equal weights.
        let weight = WEIGHT.max(1.0 / float(self.samples));
        self.moving += (nanos - self.moving) * weight;
    }

    fn mean(&self) -> f64 {
        self.sum / float(self.samples.max(1))
    }
}

counts! {
    /// Counts of chunks by outcome.
    pub struct Tally {
        /// Chunks.
        pub chunks: u64,
        /// Of these, duplicates: stored, or the same as one of this session.
        pub duplicates: u64,
        /// Duplicates that the cache did not answer.
        pub misses: u64,
        /// New chunks that the filter let pass.
        pub false_positives: u64,
    }
}

impl Tally {
    /// Returns the shares of the model.
    pub fn shares(&self) -> Shares {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { float(part) / float(whole) };
        Shares {
            duplicate: share(self.duplicates, self.chunks),
            miss: share(self.misses, self.duplicates),
            false_positive: share(self.false_positives, self.chunks - self.duplicates),
        }
    }
}

/// Shares, each 0 to 1.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Shares {
    /// Of duplicates among chunks: `R_d`.
    pub duplicate: f64,
    /// Of duplicates that are not in the cache: `R_miss`.
    pub miss: f64,
    /// Of new chunks that the filter lets pass: `R_fp`.
    pub false_positive: f64,
}

/// Latencies of the model in nanoseconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Latencies {
    /// `L_B`.
    pub filter: f64,
    /// `L_C`.
    pub cache: f64,
    /// `L_D`.
    pub lookup: f64,
    /// A copy of neighbors into the cache.
    pub fill: f64,
}

impl Latencies {
    /// Equation 4 for one chunk: the mean time with the filter first.
    pub fn filter_first(&self, shares: &Shares) -> f64 {
        let (new, duplicate) = (1.0 - shares.duplicate, shares.duplicate);
        let passed = new * shares.false_positive;
        let missed = duplicate * shares.miss;
        self.filter + (passed + duplicate) * self.cache + (passed + missed) * self.lookup + missed * self.fill
    }

    /// Equation 5 for one chunk: the mean time with the cache first.
    pub fn cache_first(&self, shares: &Shares) -> f64 {
        let (new, duplicate) = (1.0 - shares.duplicate, shares.duplicate);
        let missed = duplicate * shares.miss;
        let looked_up = new * shares.false_positive + missed;
        self.cache + (new + missed) * self.filter + looked_up * self.lookup + missed * self.fill
    }

    /// Equation 8: the share of duplicates above which the cache should come first.
    pub fn threshold(&self, miss: f64) -> f64 {
        let both = self.filter * (1.0 - miss) + self.cache;
        if both <= 0.0 { 1.0 } else { self.cache / both }
    }
}

/// Measures the steps, and decides the order.
#[derive(Debug)]
pub struct Chooser {
    wanted: Order,
    current: Order,
    averages: [Average; STEPS],
    moving: Shares,
    has_shares: bool,
    batches: u64,
    changed_at: u64,
    changes: u64,
    chunks: [u64; 3],
    nanos: [f64; 3],
}

fn index_of(order: Order) -> usize {
    match order {
        Order::FilterFirst | Order::Auto => 0,
        Order::CacheFirst => 1,
        Order::None => 2,
    }
}

impl Chooser {
    /// Starts with an order; [`Order::Auto`] with the filter first.
    pub fn new(wanted: Order) -> Self {
        let current = if wanted == Order::Auto { Order::FilterFirst } else { wanted };
        Self {
            wanted,
            current,
            averages: [Average::default(); STEPS],
            moving: Shares::default(),
            has_shares: false,
            batches: 0,
            changed_at: 0,
            changes: 0,
            chunks: [0; 3],
            nanos: [0.0; 3],
        }
    }

    /// Returns the current order.
    #[inline]
    pub fn current(&self) -> Order {
        self.current
    }

    /// Returns the number of changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Takes a sample of a step in nanoseconds, without the time of reading the clock.
    pub fn sample(&mut self, step: Step, nanos: f64) {
        self.averages[step as usize].add(nanos);
    }

    /// Returns the moving average of a step in nanoseconds.
    fn moving_latencies(&self) -> Latencies {
        let moving = |step: Step| self.averages[step as usize].moving;
        Latencies {
            filter: moving(Step::Filter),
            cache: moving(Step::Cache),
            lookup: moving(Step::Lookup),
            fill: moving(Step::Fill),
        }
    }

    /// Ends a batch of the stream and decides again. `nanos`: its time, unless its steps were timed.
    pub fn end_batch(&mut self, tally: &Tally, nanos: Option<f64>) {
        self.batches += 1;
        if let Some(nanos) = nanos {
            let index = index_of(self.current);
            self.chunks[index] += tally.chunks;
            self.nanos[index] += nanos;
        }
        if self.wanted != Order::Auto || tally.chunks == 0 {
            return;
        }
        let shares = tally.shares();
        let weight = if self.has_shares { SHARE_WEIGHT } else { 1.0 };
        self.has_shares = true;
        let follow = |moving: &mut f64, share: f64, weight: f64| *moving += (share - *moving) * weight;
        follow(&mut self.moving.duplicate, shares.duplicate, weight);
        // A batch without them changes no average.
        if tally.duplicates != 0 {
            follow(&mut self.moving.miss, shares.miss, weight);
        }
        if tally.duplicates != tally.chunks {
            follow(&mut self.moving.false_positive, shares.false_positive, weight);
        }
        let next = self.decide();
        if next != self.current {
            self.current = next;
            self.changes += 1;
            self.changed_at = self.batches;
        }
    }

    fn decide(&self) -> Order {
        let is_known = |step: Step| SAMPLES_MIN <= self.averages[step as usize].samples;
        // Both sums include the lookups equally.
        if self.batches < self.changed_at + BATCHES_MIN || !is_known(Step::Filter) || !is_known(Step::Cache) {
            return self.current;
        }
        let latencies = self.moving_latencies();
        let filter_first = latencies.filter_first(&self.moving);
        let cache_first = latencies.cache_first(&self.moving);
        match self.current {
            Order::FilterFirst if cache_first < filter_first * (1.0 - ADVANTAGE_MIN) => Order::CacheFirst,
            Order::CacheFirst if filter_first < cache_first * (1.0 - ADVANTAGE_MIN) => Order::FilterFirst,
            current => current,
        }
    }

    /// Reports measurements, predictions of the model, and counts.
    pub fn report(&self, tally: &Tally, clock_nanos: f64) -> OrderReport {
        let mean = |step: Step| self.averages[step as usize].mean();
        let samples = |step: Step| self.averages[step as usize].samples;
        let latencies = Latencies {
            filter: mean(Step::Filter),
            cache: mean(Step::Cache),
            lookup: mean(Step::Lookup),
            fill: mean(Step::Fill),
        };
        let shares = tally.shares();
        let has_both = samples(Step::Filter) != 0 && samples(Step::Cache) != 0;
        let spent = |order: Order| Spent { chunks: self.chunks[index_of(order)], nanos: self.nanos[index_of(order)] };
        OrderReport {
            wanted: self.wanted,
            current: self.current,
            changes: self.changes,
            latencies,
            moving: self.moving_latencies(),
            enter: mean(Step::Enter),
            samples: [Step::Filter, Step::Cache, Step::Lookup, Step::Fill, Step::Enter].map(samples),
            clock: clock_nanos,
            shares,
            threshold: has_both.then(|| latencies.threshold(shares.miss)),
            predicted_filter_first: has_both.then(|| latencies.filter_first(&shares)),
            predicted_cache_first: has_both.then(|| latencies.cache_first(&shares)),
            predicted_none: (samples(Step::Lookup) != 0).then_some(latencies.lookup),
            filter_first: spent(Order::FilterFirst),
            cache_first: spent(Order::CacheFirst),
            none: spent(Order::None),
        }
    }
}

/// Time spent in an order.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Spent {
    /// Chunks of batches whose steps were not timed.
    pub chunks: u64,
    /// Nanoseconds in `submit` for them, everything included.
    pub nanos: f64,
}

impl Spent {
    /// Returns nanoseconds per chunk; `None` if there were none.
    pub fn per_chunk(&self) -> Option<f64> {
        (self.chunks != 0).then(|| self.nanos / float(self.chunks))
    }
}

/// Measurements, predictions of the paper's model, and counts. Times are nanoseconds; predictions are per chunk, without
/// insertions.
#[derive(Clone, PartialEq, Debug)]
pub struct OrderReport {
    /// The requested order.
    pub wanted: Order,
    /// The order at the end.
    pub current: Order,
    /// Changes of the order.
    pub changes: u64,
    /// Means of all samples.
    pub latencies: Latencies,
    /// Moving averages at the end, by which [`Order::Auto`] decides.
    pub moving: Latencies,
    /// Mean time to enter a new chunk.
    pub enter: f64,
    /// Samples of filter, cache, lookup, fill and entering.
    pub samples: [u64; STEPS],
    /// Time of a reading of the clock, which is subtracted from each sample.
    pub clock: f64,
    /// Shares over the whole stream.
    pub shares: Shares,
    /// Equation 8: the share of duplicates from which the cache should come first. `None`: the steps were not both measured.
    pub threshold: Option<f64>,
    /// Equation 4.
    pub predicted_filter_first: Option<f64>,
    /// Equation 5.
    pub predicted_cache_first: Option<f64>,
    /// The table alone: every chunk is looked up.
    pub predicted_none: Option<f64>,
    /// Time with the filter first.
    pub filter_first: Spent,
    /// Time with the cache first.
    pub cache_first: Spent,
    /// Time with the table alone.
    pub none: Spent,
}

impl OrderReport {
    /// Returns the order with a filter that is faster by the model.
    pub fn predicted(&self) -> Option<Order> {
        let (filter_first, cache_first) = (self.predicted_filter_first?, self.predicted_cache_first?);
        Some(if cache_first < filter_first { Order::CacheFirst } else { Order::FilterFirst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 2 of the paper, the buffer's columns.
    const SRC: Latencies = Latencies { filter: 151.7, cache: 36.6, lookup: 389.0, fill: 0.0 };
    const FSL: Latencies = Latencies { filter: 141.0, cache: 37.8, lookup: 389.0, fill: 0.0 };

    #[test]
    fn the_model_gives_the_papers_numbers() {
        // Equation 12, which cuts the last digit off.
        assert!((FSL.threshold(1.0 - 0.9516) - 0.2198).abs() < 0.0001);
        // Equation 11, without its rounding: coefficients of N, N_d, N_u and N_d.
        let src = |duplicate: f64| Shares { duplicate, miss: 1.0 - 0.9489, false_positive: 0.015 };
        let only_new = SRC.filter_first(&src(0.0));
        assert!((only_new - (151.7 + 0.015 * (36.6 + 389.0))).abs() < 1e-9);
        let only_duplicates = SRC.filter_first(&src(1.0));
        assert!((only_duplicates - (151.7 + 36.6 + 0.0511 * 389.0)).abs() < 1e-9);
        // Src: the cache first is quicker; FSL: it is not (section 6.3).
        assert!(SRC.cache_first(&src(0.5312)) < SRC.filter_first(&src(0.5312)));
        let fsl = Shares { duplicate: 0.2069, miss: 1.0 - 0.9516, false_positive: 0.011 };
        assert!(FSL.filter_first(&fsl) < FSL.cache_first(&fsl));
    }

    #[test]
    fn both_sums_are_equal_at_the_threshold_where_there_are_no_false_positives() {
        for latencies in [SRC, FSL, Latencies { filter: 10.0, cache: 90.0, lookup: 1.0, fill: 900.0 }] {
            for miss in [0.0, 0.05, 0.5, 0.99] {
                let at = latencies.threshold(miss);
                let shares = |duplicate: f64| Shares { duplicate, miss, false_positive: 0.0 };
                let gain = |shares: Shares| latencies.filter_first(&shares) - latencies.cache_first(&shares);
                assert!(gain(shares(at)).abs() < 1e-9);
                assert!(gain(shares(at + 0.01)) > 0.0);
                assert!(gain(shares(at - 0.01)) < 0.0);
            }
        }
        assert!((Latencies::default().threshold(0.0) - 1.0).abs() < 1e-9);
    }

    fn batch(duplicates: u64) -> Tally {
        Tally { chunks: 64, duplicates, misses: duplicates / 16, false_positives: 0 }
    }

    fn feed(chooser: &mut Chooser, duplicates: u64, batches: u64) {
        for _ in 0..batches {
            chooser.sample(Step::Filter, 150.0);
            chooser.sample(Step::Cache, 37.0);
            chooser.end_batch(&batch(duplicates), Some(1_000.0));
        }
    }

    #[test]
    fn the_order_follows_the_stream_and_does_not_flutter_near_the_threshold() {
        let mut chooser = Chooser::new(Order::Auto);
        feed(&mut chooser, 40, 500);
        assert_eq!((chooser.current(), chooser.changes()), (Order::CacheFirst, 1));
        feed(&mut chooser, 4, 500);
        assert_eq!((chooser.current(), chooser.changes()), (Order::FilterFirst, 2));
        // The threshold is 20.8%: 13.3 of 64.
        for _ in 0..200 {
            feed(&mut chooser, 12, 3);
            feed(&mut chooser, 15, 3);
        }
        assert_eq!(chooser.changes(), 2);
        let mut fixed = Chooser::new(Order::FilterFirst);
        feed(&mut fixed, 60, 500);
        assert_eq!(fixed.current(), Order::FilterFirst);
    }

    #[test]
    fn nothing_is_decided_before_both_were_measured_and_a_stray_sample_weighs_little() {
        let mut chooser = Chooser::new(Order::Auto);
        for _ in 0..500 {
            chooser.sample(Step::Filter, 150.0);
            chooser.end_batch(&batch(60), Some(1_000.0));
        }
        assert_eq!(chooser.current(), Order::FilterFirst);
        feed(&mut chooser, 60, 200);
        chooser.sample(Step::Cache, 1e9);
        let report = chooser.report(&batch(60), 5.0);
        assert!(report.latencies.cache < 50.0, "{report:?}");
        assert_eq!(report.predicted(), Some(Order::CacheFirst));
        assert!(report.filter_first.per_chunk().is_some() && report.none.per_chunk().is_none());
    }
}
