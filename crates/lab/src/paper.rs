//! Tables III to VIII of Ma et al., "Lazy Exact Deduplication", ACM Trans. Storage 13(2), 2017, on this machine.
//!
//! The paper's data sets are not to be had; their sizes and shares of duplicates are. Streams with the same shares, at a
//! chosen fraction of the size (but for the largest, of which that would be too much), run with all memory at the same fraction: 256 MiB beside a filter of 1 GiB down to
//! 32 MiB, bucket threshold 32, windows of 2,048. Runs and lags of duplicates are ours and stated.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use onefold_engine::index::options::{Prelookup, Schedule, WindowRule};
use onefold_engine::index::{Counters, IndexOptions};

use crate::bench::Bench;
use crate::stream::{Lags, Runs, Shape, Stream};

/// A data set of the paper: name, 4 KiB chunks, stream.
#[derive(Clone, Copy, Debug)]
pub struct DataSet {
    /// Its name.
    pub name: &'static str,
    /// Chunks of 4 KiB at full size.
    pub chunks: u64,
    /// What it is like.
    pub shape: Shape,
    /// Seconds that the paper states for eager and lazy (Table III).
    pub paper: (u32, u32),
    /// Ratios of eager to lazy that the paper states for filters of 1,024 MB and each half of it down to 32 MB.
    pub paper_ratios: [f64; 6],
}

/// The data sets of Table II.
pub fn data_sets() -> [DataSet; 3] {
    [
        DataSet {
            name: "Vm",
            chunks: 57_894_502, // 220.85 GB
            shape: Shape { duplicates: 0.35, runs: Runs::Geometric(64.0), lags: Lags::Uniform },
            paper: (282, 151),
            paper_ratios: [1.9, 1.8, 1.8, 1.8, 1.9, 3.1],
        },
        DataSet {
            name: "Src",
            chunks: 114_002_247, // 434.88 GB
            shape: Shape { duplicates: 0.19, runs: Runs::Geometric(32.0), lags: Lags::Uniform },
            paper: (476, 226),
            paper_ratios: [2.1, 2.1, 2.1, 3.6, 11.0, 15.0],
        },
        DataSet {
            name: "FSLHomes",
            chunks: 960_962_068, // 3.58 TB
            shape: Shape { duplicates: 0.91, runs: Runs::Geometric(256.0), lags: Lags::Passes },
            paper: (5_824, 3_939),
            paper_ratios: [1.5, 1.5, 1.5, 1.6, 3.0, 8.2],
        },
    ]
}

/// The ways that the tables compare.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Way {
    /// At once.
    Eager,
    /// By bucket, cycles and ranks.
    Lazy,
    /// The same without asking the cache at arrival.
    LazyWithoutPrelookup,
    /// The same, everything that waits compared with each window.
    ExhaustiveWithoutPrelookup,
    /// This program's default.
    Adaptive,
}

/// Seconds of one run, in the paper's parts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// In lookups of the table.
    pub lookup: f64,
    /// In reading the log.
    pub prefetch: f64,
    /// In asking the cache at arrival.
    pub prelookup: f64,
    /// In answering what waits.
    pub postlookup: f64,
    /// All.
    pub total: f64,
    /// Everything counted.
    pub counters: Counters,
}

/// Memory at full size: 256 MiB beside the filter.
const MEMORY_BYTES: usize = 256 << 20;
/// Buckets that fingerprints wait in, at full size.
const BUCKETS: u32 = 1024;
/// Fewest of them: 4,096 chunks that wait.
const BUCKETS_MIN: u32 = 128;
/// Most chunks of a stream that is run at a fraction of the size.
const SCALED_CHUNKS_MAX: u64 = 4_000_000;

fn chunks_of(set: &DataSet, scale: u64) -> u64 {
    if scale == 1 { set.chunks } else { (set.chunks / scale).min(SCALED_CHUNKS_MAX) }
}

/// The greatest fraction of the paper's memory that its parts still fit into.
const SCALE_MAX: usize = 128;

fn options(way: Way, filter_bytes: usize, scale: u64) -> IndexOptions {
    // Smaller ones would leave nothing to divide.
    let scale = usize::try_from(scale).unwrap_or(1).min(SCALE_MAX);
    let memory = MEMORY_BYTES / scale;
    // The table's staging is the paper's "other" memory; both ways have the same.
    let staging_bytes = (memory / 6).max(1 << 20);
    let cache = match way {
        Way::Eager => memory - staging_bytes,
        _ => (memory - staging_bytes) / 2,
    };
    let mut options = IndexOptions::for_memory(memory);
    options.filter_bytes = filter_bytes / scale;
    options.filter_bytes_max = options.filter_bytes;
    options.filter_hashes = 6;
    options.staging_bytes = staging_bytes;
    options.merge_buffer_bytes = options.merge_buffer_bytes.min(staging_bytes);
    options.cache_bytes = cache;
    // Runs are as long at every scale: what waits must span some of them.
    options.pending_buckets = (BUCKETS / u32::try_from(scale).unwrap_or(1)).max(BUCKETS_MIN);
    options.pending_max = 1 << 16;
    options.pending_bytes_max = usize::MAX;
    options.pending_age_max = 1 << 20;
    options.window = WindowRule::Fixed(2048);
    options.prelookup = Prelookup::Always;
    match way {
        Way::Eager => options.schedule = Schedule::Eager,
        Way::Lazy => options.schedule = Schedule::Lazy { threshold: 32 },
        Way::LazyWithoutPrelookup => {
            options.schedule = Schedule::Lazy { threshold: 32 };
            options.prelookup = Prelookup::Never;
        }
        Way::ExhaustiveWithoutPrelookup => {
            options.schedule = Schedule::Exhaustive { threshold: 32 };
            options.prelookup = Prelookup::Never;
        }
        Way::Adaptive => {
            options.schedule = Schedule::Adaptive { candidates: 2048 };
            options.window = WindowRule::Adaptive(2048);
        }
    }
    options
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn run(dir: &Path, set: &DataSet, way: Way, filter_bytes: usize, scale: u64) -> Result<Times> {
    let path = dir.join("paper-index");
    if path.exists() {
        std::fs::remove_dir_all(&path)?;
    }
    let mut bench = Bench::open(&path, &options(way, filter_bytes, scale), 0)?;
    let mut stream = Stream::new(1, set.shape, 0);
    let outcome = bench.feed(&mut stream, chunks_of(set, scale), true)?;
    bench.close()?;
    std::fs::remove_dir_all(&path)?;
    let counters = outcome.counters;
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    Ok(Times {
        lookup: seconds(counters.lookup_nanos),
        prefetch: seconds(counters.prefetch_nanos),
        prelookup: seconds(counters.prelookup_nanos),
        postlookup: seconds(counters.postlookup_nanos),
        total: outcome.time.as_secs_f64(),
        counters,
    })
}

impl Times {
    fn other(&self) -> f64 {
        (self.total - self.lookup - self.prefetch - self.prelookup - self.postlookup).max(0.0)
    }
}

/// Runs everything and returns Markdown.
pub fn tables(dir: &Path, scale: u64, progress: &mut dyn FnMut(&str)) -> Result<String> {
    let sets = data_sets();
    let full_filter = 1 << 30;
    let mut out = String::new();
    let mut of_set = Vec::new();
    for set in &sets {
        let mut times = Vec::new();
        for way in [Way::Eager, Way::Lazy, Way::LazyWithoutPrelookup, Way::ExhaustiveWithoutPrelookup, Way::Adaptive] {
            let it = run(dir, set, way, full_filter, scale)?;
            progress(&format!("{} {way:?}: {:.2} s", set.name, it.total));
            times.push(it);
        }
        of_set.push(times);
    }
    streams(&sets, scale, &mut out)?;
    writeln!(out, "\nTable III, seconds of identification\n")?;
    writeln!(
        out,
        "| | eager | lazy | ratio | paper's ratio | adaptive (ours) | eager : adaptive |\n|---|---|---|---|---|---|---|"
    )?;
    for (set, times) in sets.iter().zip(&of_set) {
        let [eager, lazy, _, _, adaptive] = times[..] else { continue };
        let paper = f64::from(set.paper.0) / f64::from(set.paper.1);
        writeln!(
            out,
            "| {} | {:.2} | {:.2} | {:.2} | {paper:.2} | {:.2} | {:.2} |",
            set.name,
            eager.total,
            lazy.total,
            eager.total / lazy.total,
            adaptive.total,
            eager.total / adaptive.total
        )?;
    }
    parts(&sets, &of_set, &mut out)?;
    filters(dir, &sets, scale, &mut out, progress)?;
    Ok(out)
}

fn streams(sets: &[DataSet], scale: u64, out: &mut String) -> Result<()> {
    writeln!(
        out,
        "Streams, at 1/{scale} of the paper's size:\n\n| | chunks | duplicates | runs | lags |\n|---|---|---|---|---|"
    )?;
    for set in sets {
        let Shape { duplicates, runs, lags } = set.shape;
        writeln!(
            out,
            "| {} | {} | {:.0}% | {runs:?} | {lags:?} |",
            set.name,
            chunks_of(set, scale),
            duplicates * 100.0
        )?;
    }
    Ok(())
}

fn parts(sets: &[DataSet], of_set: &[Vec<Times>], out: &mut String) -> Result<()> {
    let columns = ["eager", "lazy", "lazy*", "exhaustive*", "adaptive (ours)"];
    for (title, chosen) in [
        ("Table IV, seconds, prelookup disabled (*)", &[2, 3][..]),
        ("Table V, seconds, with and without (*) prelookup", &[1, 2]),
        ("Table VII, seconds", &[0, 1, 4]),
    ] {
        writeln!(out, "\n{title}\n")?;
        writeln!(
            out,
            "| | | on-disk lookup | prefetching | prelookup | postlookup | other | total | lookups | windows |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
        for (set, times) in sets.iter().zip(of_set) {
            for &column in chosen {
                let it = &times[column];
                writeln!(
                    out,
                    "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {} |",
                    set.name,
                    columns[column],
                    it.lookup,
                    it.prefetch,
                    it.prelookup,
                    it.postlookup,
                    it.other(),
                    it.total,
                    it.counters.lookups,
                    it.counters.prefetches
                )?;
            }
        }
    }
    writeln!(out, "\nTable VI, chunks answered by the cache\n\n| | prelookup | postlookup |\n|---|---|---|")?;
    for (set, times) in sets.iter().zip(of_set) {
        let Counters { prelookup_hits, postlookup_hits, .. } = times[1].counters;
        let all = (prelookup_hits + postlookup_hits).max(1);
        writeln!(out, "| {} | {}% | {}% |", set.name, 100 * prelookup_hits / all, 100 * postlookup_hits / all)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn filters(dir: &Path, sets: &[DataSet], scale: u64, out: &mut String, progress: &mut dyn FnMut(&str)) -> Result<()> {
    writeln!(out, "\nTable VIII, smaller filters\n")?;
    writeln!(
        out,
        "| filter (full size) | | false positives | on-disk lookup, eager | lazy | prefetching, eager | lazy | total, eager | \
         lazy | ratio | paper's ratio |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|")?;
    for (index, mebibytes) in [1024_usize, 512, 256, 128, 64, 32].into_iter().enumerate() {
        for set in sets {
            let eager = run(dir, set, Way::Eager, mebibytes << 20, scale)?;
            let lazy = run(dir, set, Way::Lazy, mebibytes << 20, scale)?;
            progress(&format!("{} filter {mebibytes} MiB: {:.2} s, {:.2} s", set.name, eager.total, lazy.total));
            let Counters { filter_false_positives, filter_negatives, .. } = lazy.counters;
            let rate = filter_false_positives as f64 / (filter_false_positives + filter_negatives).max(1) as f64;
            writeln!(
                out,
                "| {mebibytes} MiB | {} | {rate:.1e} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
                set.name,
                eager.lookup,
                lazy.lookup,
                eager.prefetch,
                lazy.prefetch,
                eager.total,
                lazy.total,
                eager.total / lazy.total,
                set.paper_ratios[index]
            )?;
        }
    }
    Ok(())
}
