//! Measurements of a run of one point, and their names in tables, plots and claims.

use std::time::Duration;

use onefold_engine::identify::Counters;

use crate::counts::float;
use crate::device::clock::Traffic;
use crate::mapped::order::Latencies;
use crate::mapped::{Order, OrderReport};
use crate::replay::{Outcome, UniqueSet};
use crate::sim::cost::{FINGERPRINT_BYTES, Prices};
use crate::sim::{Kept, StoredAgain};

/// Measurements of one point with one source on one device.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// All in all, until nothing waited.
    pub outcome: Outcome,
    /// The same in stretches, where they were asked for.
    pub intervals: Vec<Outcome>,
    /// Chunks declared unique.
    pub unique: UniqueSet,
    /// Requests to the device, if it is modeled.
    pub traffic: Option<Traffic>,
    /// Memory of the point.
    pub memory: u64,
    /// Whether no stored chunk is declared unique.
    pub is_exact: bool,
    /// Chunks that were stored again.
    pub again: StoredAgain,
    /// The repository afterward, if it has versions.
    pub kept: Option<Kept>,
    /// Bytes of memory that the index needs for each stored chunk, by the formula of [`cost`](crate::sim::cost).
    pub memory_per_chunk: f64,
    /// Times of the steps on mapped memory, and the predictions of the paper's model. None of several sessions together.
    pub steps: Option<Steps>,
    /// The same for each session. The index was closed between two, and opened again with an empty cache, which does not
    /// count.
    pub sessions: Vec<Session>,
}

/// Measurements of one session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Number; that of its version in a trace.
    pub number: u32,
    /// Measurements, without intervals.
    pub measured: Measured,
}

impl Measured {
    /// Adds the next session.
    pub fn add_session(&mut self, number: u32, mut measured: Self) {
        self.outcome.add(&measured.outcome);
        self.unique.add_all(&measured.unique);
        self.again.add(&measured.again);
        self.kept.clone_from(&measured.kept);
        (self.is_exact, self.memory_per_chunk) = (measured.is_exact, measured.memory_per_chunk);
        self.intervals.append(&mut measured.intervals);
        self.memory = self.memory.max(measured.memory);
        if let Some(traffic) = &measured.traffic {
            self.traffic.get_or_insert_default().add(traffic);
        }
        self.steps = if self.sessions.is_empty() { measured.steps.clone() } else { None };
        self.sessions.push(Session { number, measured });
    }

    /// Returns the bytes that were stored.
    fn stored_bytes(&self) -> u64 {
        self.unique.bytes + self.again.bytes()
    }

    /// Returns what storing costs in dollars.
    fn cost(&self, prices: &Prices) -> f64 {
        prices.of(self.stored_bytes(), self.unique.chunks + self.again.chunks(), self.memory_per_chunk)
    }

    /// Returns the same in proportion to an exact index in memory.
    fn cost_percent(&self, prices: &Prices) -> Option<f64> {
        let baseline = prices.of(self.unique.bytes, self.unique.chunks, FINGERPRINT_BYTES);
        (0.0 < baseline).then(|| 100.0 * self.cost(prices) / baseline)
    }
}

/// Steps of identification on mapped memory: times of one, in nanoseconds, and how many there were.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Measurements. Times are those of the processor, and of the memory if it is real.
    pub report: OrderReport,
    /// Time that the model of the device adds to a lookup.
    pub lookup_device: f64,
    /// Time that it adds to a copy into the cache.
    pub fill_device: f64,
}

impl Steps {
    /// Latencies with the device's part in them.
    fn latencies(&self) -> Latencies {
        let Latencies { lookup, fill, .. } = self.report.latencies;
        let (lookup, fill) = (lookup + self.lookup_device, fill + self.fill_device);
        Latencies { lookup, fill, ..self.report.latencies }
    }
}

/// Something that can be asked of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Name.
    pub name: &'static str,
    /// Title of its column, with the unit.
    pub title: &'static str,
    /// Whether it is a count of something.
    pub is_count: bool,
    get: fn(&Measured) -> Option<f64>,
}

impl Measure {
    /// Returns the measure of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MEASURES.iter().find(|measure| measure.name == name)
    }

    /// Returns what a run has of it; `None` if it does not apply.
    pub fn of(&self, measured: &Measured) -> Option<f64> {
        (self.get)(measured)
    }
}

macro_rules! measures {
    ($($name:literal, $title:literal, $is_count:literal, $get:expr;)*) => {
        &[$(Measure { name: $name, title: $title, is_count: $is_count, get: $get },)*]
    };
}

/// All measures.
pub const MEASURES: &[Measure] = measures! {
    "chunks", "chunks", true, |it| some(it.outcome.chunks);
    "gigabytes", "GB", false, |it| some(it.outcome.bytes).map(|bytes| bytes / 1e9);
    "unique-chunks", "unique chunks", true, |it| some(it.unique.chunks);
    "unique-gigabytes", "unique GB", false, |it| some(it.unique.bytes).map(|bytes| bytes / 1e9);
    "deduplication-ratio", "ratio", false, |it| ratio(it.outcome.bytes, it.stored_bytes());
    "kept-ratio", "ratio of the versions kept", false, |it| {
        let kept = it.kept.as_ref()?;
        ratio(kept.bytes, kept.stored_bytes)
    };
    "containers", "containers", true, |it| some(it.kept.as_ref()?.containers);
    "containers-used", "of which the version uses", true, |it| some(it.kept.as_ref()?.containers_used);
    "containers-reclaimed", "containers reclaimed", true, |it| counted(it.kept.as_ref()?.containers_reclaimed);
    "rewritten-chunks", "chunks rewritten", true, |it| counted(it.again.rewritten_chunks);
    "rewritten-bytes", "bytes rewritten", true, |it| counted(it.again.rewritten_bytes);
    "missed-chunks", "duplicates missed", true, |it| counted(it.again.missed_chunks);
    "missed-bytes", "bytes of duplicates missed", true, |it| counted(it.again.missed_bytes);
    "cost", "storage cost at the paper's prices, $", false, |it| Some(it.cost(&Prices::PAPER));
    "cost-percent", "of that of all fingerprints in memory, %", false, |it| it.cost_percent(&Prices::PAPER);
    "cost-today", "storage cost today, $", false, |it| Some(it.cost(&Prices::TODAY));
    "cost-today-percent", "of that of all fingerprints in memory today, %", false, |it| {
        it.cost_percent(&Prices::TODAY)
    };
    "memory-mib", "memory, MiB", false, |it| some(it.memory).map(|bytes| bytes / f64::from(1 << 20));
    "seconds", "seconds", false, |it| Some(it.outcome.time.as_secs_f64());
    "device-seconds", "of which device, s", false, |it| Some(it.traffic?.time.as_secs_f64());
    "processor-seconds", "processor, s", false, |it| Some(processor(it)?.as_secs_f64());
    "million-per-second", "million chunks/s", false, |it| Some(rate(it.outcome.chunks, it.outcome.time) / 1e6);
    "megabytes-per-second", "MB/s", false, |it| Some(rate(it.outcome.bytes, it.outcome.time) / 1e6);
    "nanoseconds-per-chunk", "ns per chunk", false, |it| nanos_each(it.outcome.time, it.outcome.chunks);
    "lookup-seconds", "on-disk lookup, s", false, |it| seconds(it.outcome.counters.lookup_nanos);
    "prefetch-seconds", "prefetching, s", false, |it| seconds(it.outcome.counters.prefetch_nanos);
    "prelookup-seconds", "prelookup, s", false, |it| seconds(it.outcome.counters.prelookup_nanos);
    "postlookup-seconds", "postlookup, s", false, |it| seconds(it.outcome.counters.postlookup_nanos);
    "cache-seconds", "cache lookup, s", false, |it| {
        let Counters { prelookup_nanos, postlookup_nanos, .. } = it.outcome.counters;
        seconds(prelookup_nanos + postlookup_nanos)
    };
    "disk-seconds", "lookup and prefetching, s", false, |it| {
        let Counters { lookup_nanos, prefetch_nanos, .. } = it.outcome.counters;
        seconds(lookup_nanos + prefetch_nanos)
    };
    "other-seconds", "other, s", false, |it| Some(other(it).as_secs_f64());
    "lookups", "lookups", true, |it| some(it.outcome.counters.lookups);
    "lookups-per-gb", "lookups per GB", false, |it| per_gigabyte(it, it.outcome.counters.lookups);
    "unique-lookups-per-gb", "of which for unique chunks, per GB", false, |it| {
        let Counters { lookups, memtable_hits, disk_hits, .. } = it.outcome.counters;
        per_gigabyte(it, lookups.saturating_sub(memtable_hits + disk_hits))
    };
    "batches", "batches of lookups", true, |it| some(it.outcome.counters.lookup_batches);
    "windows", "windows", true, |it| some(it.outcome.counters.prefetches);
    "pages-read", "pages read", true, |it| some(it.outcome.counters.pages_read);
    "mib-read", "MiB read", false, |it| some(it.outcome.counters.bytes_read).map(|bytes| bytes / f64::from(1 << 20));
    "device-reads", "reads of the device", true, |it| some(it.traffic?.reads);
    "device-mib-read", "MiB read from the device", false, |it| {
        some(it.traffic?.bytes_read).map(|bytes| bytes / f64::from(1 << 20))
    };
    "device-writes", "writes of the device", true, |it| some(it.traffic?.writes);
    "device-mib-written", "MiB written to the device", false, |it| {
        some(it.traffic?.bytes_written).map(|bytes| bytes / f64::from(1 << 20))
    };
    "updates-per-gb", "updates per GB", false, |it| per_gigabyte(it, it.outcome.counters.updates);
    "stream-updates-per-gb", "of which in the stream log, per GB", false, |it| {
        let Counters { segments, stream_updates, .. } = it.outcome.counters;
        if segments == 0 { None } else { per_gigabyte(it, stream_updates) }
    };
    "units-read", "units read", true, |it| counted(it.outcome.counters.units_read);
    "segments", "segments", true, |it| counted(it.outcome.counters.segments);
    "segments-cut-short", "segments cut short", true, |it| {
        let Counters { segments, segments_cut_short, .. } = it.outcome.counters;
        counted(segments).and(some(segments_cut_short))
    };
    "false-positives", "false positives", true, |it| some(it.outcome.counters.filter_false_positives);
    "false-positive-rate", "false positive rate", false, |it| {
        let Counters { filter_probes, filter_false_positives, filter_negatives, .. } = it.outcome.counters;
        if filter_probes == 0 {
            return None;
        }
        ratio(filter_false_positives, filter_false_positives + filter_negatives).or(Some(0.0))
    };
    "prelookup-percent", "of hits of the cache at arrival, %", false, |it| {
        let Counters { prelookup_hits, postlookup_hits, .. } = it.outcome.counters;
        Some(100.0 * ratio(prelookup_hits, prelookup_hits + postlookup_hits)?)
    };
    "postlookup-percent", "and afterward, %", false, |it| {
        let Counters { prelookup_hits, postlookup_hits, .. } = it.outcome.counters;
        Some(100.0 * ratio(postlookup_hits, prelookup_hits + postlookup_hits)?)
    };
    "filter-ns", "filter, ns", false, |it| it.steps.as_ref().map(|steps| steps.latencies().filter);
    "cache-ns", "cache, ns", false, |it| it.steps.as_ref().map(|steps| steps.latencies().cache);
    "lookup-ns", "lookup, ns", false, |it| it.steps.as_ref().map(|steps| steps.latencies().lookup);
    "lookup-device-ns", "of which device, ns", false, |it| it.steps.as_ref().map(|steps| steps.lookup_device);
    "fill-ns", "copy of neighbors, ns", false, |it| it.steps.as_ref().map(|steps| steps.latencies().fill);
    "filter-step-seconds", "filter, s", false, |it| {
        steps(it, |latencies, tally| latencies.filter * tally.filter)
    };
    "cache-step-seconds", "cache, s", false, |it| {
        steps(it, |latencies, tally| latencies.cache * tally.cache + latencies.fill * tally.fill)
    };
    "lookup-step-seconds", "lookup, s", false, |it| steps(it, |latencies, tally| latencies.lookup * tally.lookup);
    "rest-step-seconds", "entering and other, s", false, |it| {
        Some((it.outcome.time.as_secs_f64() - identified(it)?).max(0.0))
    };
    "filter-step-percent", "filter, % of identification", false, |it| {
        step_percent(it, steps(it, |latencies, tally| latencies.filter * tally.filter)?)
    };
    "cache-step-percent", "cache, % of identification", false, |it| {
        step_percent(it, steps(it, |latencies, tally| latencies.cache * tally.cache + latencies.fill * tally.fill)?)
    };
    "lookup-step-percent", "lookup, % of identification", false, |it| {
        step_percent(it, steps(it, |latencies, tally| latencies.lookup * tally.lookup)?)
    };
    "miss-percent", "cache misses, %", false, |it| Some(100.0 * it.steps.as_ref()?.report.shares.miss);
    "threshold-percent", "equation 8: cache first above, % duplicates", false, |it| {
        let steps = it.steps.as_ref()?;
        Some(100.0 * steps.latencies().threshold(steps.report.shares.miss))
    };
    "predicted-filter-first-ns", "equation 4, ns per chunk", false, |it| {
        let steps = it.steps.as_ref()?;
        Some(steps.latencies().filter_first(&steps.report.shares))
    };
    "predicted-cache-first-ns", "equation 5, ns per chunk", false, |it| {
        let steps = it.steps.as_ref()?;
        Some(steps.latencies().cache_first(&steps.report.shares))
    };
    "order-changes", "changes of order", true, |it| some(it.steps.as_ref()?.report.changes);
    "duplicate-percent", "duplicates, %", false, |it| {
        Some(100.0 * (1.0 - ratio(it.unique.chunks, it.outcome.chunks)?))
    };
    "hit-percent", "duplicates that the cache answers, %", false, |it| {
        let Counters { prelookup_hits, postlookup_hits, .. } = it.outcome.counters;
        Some(100.0 * ratio(prelookup_hits + postlookup_hits, it.outcome.chunks - it.unique.chunks)?)
    };
};

#[expect(clippy::unnecessary_wraps, reason = "what the table of measures asks for")]
fn some(count: u64) -> Option<f64> {
    Some(float(count))
}

/// Returns a count that does not apply if it is 0.
fn counted(count: u64) -> Option<f64> {
    (count != 0).then(|| float(count))
}

fn seconds(nanos: u64) -> Option<f64> {
    some(nanos).map(|nanos| nanos / 1e9)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| float(part) / float(whole))
}

fn rate(count: u64, time: Duration) -> f64 {
    float(count) / time.as_secs_f64().max(1e-9)
}

fn nanos_each(time: Duration, count: u64) -> Option<f64> {
    (count != 0).then(|| time.as_secs_f64() * 1e9 / float(count))
}

fn per_gigabyte(measured: &Measured, count: u64) -> Option<f64> {
    (measured.outcome.bytes != 0).then(|| float(count) / (float(measured.outcome.bytes) / 1e9))
}

/// Number of each step.
struct StepCounts {
    filter: f64,
    cache: f64,
    lookup: f64,
    fill: f64,
}

/// Returns the seconds in filter, cache and lookups.
fn identified(measured: &Measured) -> Option<f64> {
    steps(measured, |latencies, tally| {
        latencies.filter * tally.filter
            + latencies.cache * tally.cache
            + latencies.lookup * tally.lookup
            + latencies.fill * tally.fill
    })
}

fn step_percent(measured: &Measured, seconds: f64) -> Option<f64> {
    identified(measured).filter(|all| 0.0 < *all).map(|all| 100.0 * seconds / all)
}

fn steps(measured: &Measured, seconds: fn(&Latencies, &StepCounts) -> f64) -> Option<f64> {
    let steps = measured.steps.as_ref()?;
    let Counters { filter_probes, lookups, prelookup_hits, prefetches, .. } = measured.outcome.counters;
    // The cache answers a chunk or does not; what it does not answer is looked up, or new.
    let asked = match steps.report.wanted {
        Order::None => 0,
        Order::FilterFirst => prelookup_hits + lookups,
        Order::CacheFirst => measured.outcome.chunks,
        // The number is unknown: the order changes during the run.
        Order::Auto => return None,
    };
    let counts = StepCounts {
        filter: float(filter_probes),
        cache: float(asked),
        lookup: float(lookups),
        fill: float(prefetches),
    };
    Some(seconds(&steps.latencies(), &counts) / 1e9)
}

/// Returns the part of the time that was measured: that of the processor.
fn processor(measured: &Measured) -> Option<Duration> {
    Some(measured.outcome.time.saturating_sub(measured.traffic?.time))
}

/// Returns the time outside of lookups, prefetches and the cache.
fn other(measured: &Measured) -> Duration {
    let Counters { lookup_nanos, prefetch_nanos, prelookup_nanos, postlookup_nanos, .. } = measured.outcome.counters;
    let parts = [lookup_nanos, prefetch_nanos, prelookup_nanos, postlookup_nanos].map(Duration::from_nanos);
    measured.outcome.time.saturating_sub(parts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_nothing_is_divided_by_nothing() {
        for measure in MEASURES {
            assert!(measure.of(&Measured::default()).is_none_or(f64::is_finite), "{}", measure.name);
            assert_eq!(MEASURES.iter().filter(|other| other.name == measure.name).count(), 1);
        }
        let counters = Counters { lookup_nanos: 2_000_000_000, prefetch_nanos: 500_000_000, ..Counters::default() };
        let outcome = Outcome { chunks: 4, time: Duration::from_secs(4), counters, ..Outcome::default() };
        let traffic = Some(Traffic { time: Duration::from_secs(1), ..Traffic::default() });
        let measured = Measured { outcome, traffic, ..Measured::default() };
        let value = |name: &str| Measure::named(name).unwrap().of(&measured);
        assert_eq!((value("other-seconds"), value("disk-seconds")), (Some(1.5), Some(2.5)));
        assert_eq!((value("processor-seconds"), value("device-seconds")), (Some(3.0), Some(1.0)));
        assert_eq!(value("nanoseconds-per-chunk"), Some(1e9));
    }
}
