//! Comparison of schedules on the same table, log and memory.
//!
//! The index is filled once and kept. Every run starts from its checkpoint and writes none, so that no schedule pays for
//! merges that another left behind.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use onefold_engine::identify::IndexOptions;
use onefold_engine::identify::options::{Schedule, WindowRule};

use crate::bench::Bench;
use crate::counts::float;
use crate::replay::Outcome;
use crate::stream::{Lags, Runs, Shape, Stream};

/// Parameters of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Chunks stored beforehand.
    pub stored: u64,
    /// Memory of the index.
    pub memory_bytes: usize,
    /// Chunks of each run of a stream whose duplicates come in long runs.
    pub chunks: u64,
    /// Chunks of each run of another stream, which is slow.
    pub slow_chunks: u64,
    /// Repetitions; medians are shown.
    pub rounds: u32,
}

/// A stream to compare on.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    shape: Shape,
    /// By how much the filter is smaller than it would be.
    filter_divisor: usize,
    is_slow: bool,
}

fn cases() -> Vec<Case> {
    let shape = |duplicates, runs| Shape { duplicates, runs, lags: Lags::Uniform };
    let case = |name, shape, filter_divisor, is_slow| Case { name, shape, filter_divisor, is_slow };
    let mut cases = vec![case("all unique, filter 8x too small", shape(0.0, Runs::Uniform(1, 1)), 8, true)];
    for (name, run) in [("1", 1.0), ("4", 4.0), ("16", 16.0), ("64", 64.0), ("1024", 1024.0)] {
        for (duplicates, label) in [(0.35, "35%"), (0.6, "60%"), (0.9, "90%")] {
            let name: &'static str = Box::leak(format!("runs of {name}, {label}").into_boxed_str());
            cases.push(case(name, shape(duplicates, Runs::Geometric(run)), 1, run <= 16.0));
        }
    }
    cases.push(case("runs 200 to 5,000, 90%", shape(0.9, Runs::Uniform(200, 5_000)), 1, false));
    cases.push(case("all duplicates, one run after another", shape(1.0, Runs::Uniform(5_000, 100_000)), 1, false));
    cases.push(case("all unique", shape(0.0, Runs::Uniform(1, 1)), 1, false));
    cases
}

const SCHEDULES: [(&str, Schedule); 4] = [
    ("eager", Schedule::Eager),
    ("lazy by bucket", Schedule::Lazy { threshold: 32 }),
    ("pool", Schedule::Pool { candidates: 2048 }),
    ("adaptive", Schedule::Adaptive),
];

/// The order of the first round; each later round adds one to each number. In four rounds each schedule follows each other one once
/// (Williams, "Experimental Designs Balanced for the Estimation of Residual Effects of Treatments", 1949).
const ORDER: [usize; SCHEDULES.len()] = [0, 1, 3, 2];

fn options(comparison: &Comparison, case: &Case, schedule: Schedule) -> IndexOptions {
    let mut options = IndexOptions::for_memory(comparison.memory_bytes);
    options.schedule = schedule;
    options.window = WindowRule::Adaptive(2048);
    options.filter_bytes_max /= case.filter_divisor;
    options.filter_bytes = options.filter_bytes_max;
    options
}

/// Fills an index, unless the directory holds one like it.
pub fn prepare(dir: &Path, comparison: &Comparison, progress: &mut dyn FnMut(&str)) -> Result<u32> {
    let (kept, note) = (dir.join("kept"), dir.join("containers"));
    let mut options = IndexOptions::for_memory(comparison.memory_bytes);
    // The same size as in the runs, which would fold a larger one.
    options.filter_bytes = options.filter_bytes_max;
    let made_for = format!("{} chunks, filter of {} bytes", comparison.stored, options.filter_bytes);
    if let Ok(text) = std::fs::read_to_string(&note) {
        let (count, found) = text.trim().split_once(", ").context("the note on the index that was kept")?;
        ensure!(found == made_for, "{} was made for {found}, not {made_for}: remove it", dir.display());
        return count.parse().context("the number of containers of the index that was kept");
    }
    progress(&format!("storing {} chunks", comparison.stored));
    // Filling is not measured.
    options.schedule = Schedule::Pool { candidates: 2048 };
    let mut bench = Bench::open(&kept, &options, 0)?;
    let shape = Shape { duplicates: 0.0, runs: Runs::Uniform(1, 1), lags: Lags::Uniform };
    let outcome = bench.advance(&mut Stream::new(1, shape, 0), comparison.stored, true)?;
    progress(&format!("stored at {:.2} million/s", outcome.millions_per_second()));
    let containers = bench.close()?;
    std::fs::write(&note, format!("{containers}, {made_for}"))?;
    Ok(containers)
}

fn run(dir: &Path, comparison: &Comparison, case: &Case, schedule: Schedule, containers: u32) -> Result<Outcome> {
    let options = options(comparison, case, schedule);
    let mut bench = Bench::open(&dir.join("kept"), &options, containers)?;
    let mut stream = Stream::new(5, case.shape, comparison.stored);
    let chunks = if case.is_slow { comparison.slow_chunks } else { comparison.chunks };
    // The start of a run is not representative.
    bench.advance(&mut stream, chunks / 8, false)?;
    let outcome = bench.advance(&mut stream, chunks, true)?;
    // Not closed: the next opening falls back to the checkpoint, which no run has touched.
    drop(bench);
    Ok(outcome)
}

/// Runs all cases whose names contain `only` and returns Markdown.
pub fn compare(dir: &Path, comparison: &Comparison, only: &str, progress: &mut dyn FnMut(&str)) -> Result<String> {
    let containers = prepare(dir, comparison, progress)?;
    let mut out = String::new();
    writeln!(
        out,
        "| stream | eager | lazy by bucket | pool | adaptive | pool : eager | adaptive : best of the others |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for case in cases().iter().filter(|case| case.name.contains(only)) {
        let mut rates = [const { Vec::new() }; SCHEDULES.len()];
        let mut reads = [0.0; SCHEDULES.len()];
        for round in 0..comparison.rounds {
            for position in ORDER {
                let which = (position + round as usize) % SCHEDULES.len();
                let (name, schedule) = SCHEDULES[which];
                let outcome = run(dir, comparison, case, schedule, containers)?;
                let rate = outcome.millions_per_second();
                reads[which] = reads_per_chunk(&outcome);
                let counters = outcome.counters;
                progress(&format!(
                    "{}, {name}: {rate:.3} million/s; {} chunks, {} lookups in {} batches, {} pages, {} windows, {} + {} \
                     answered by the cache, {} false positives, {} changes of schedule; {} ms, of which lookups {}, \
                     windows {}, answering by them {}",
                    case.name,
                    outcome.chunks,
                    counters.lookups,
                    counters.lookup_batches,
                    counters.pages_read,
                    counters.prefetches,
                    counters.prelookup_hits,
                    counters.postlookup_hits,
                    counters.filter_false_positives,
                    counters.schedule_changes,
                    outcome.time.as_millis(),
                    counters.lookup_nanos / 1_000_000,
                    counters.prefetch_nanos / 1_000_000,
                    counters.postlookup_nanos / 1_000_000
                ));
                rates[which].push(rate);
            }
        }
        let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
        let best = medians[..3].iter().copied().fold(0.0, f64::max);
        let cells: Vec<_> = medians.iter().zip(reads).map(|(rate, reads)| format!("{rate:.3} ({reads:.3})")).collect();
        let (ratio, adaptive) = (medians[2] / medians[0], medians[3] / best);
        writeln!(out, "| {} | {} | {ratio:.2} | {adaptive:.2} |", case.name, cells.join(" | "))?;
    }
    writeln!(out, "\nMillions of chunks a second; in brackets reads of table and log for each chunk.")?;
    Ok(out)
}

fn reads_per_chunk(outcome: &Outcome) -> f64 {
    float(outcome.counters.pages_read + outcome.counters.prefetches) / float(outcome.chunks)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
