//! Speed of the identifier as the index grows.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use onefold_engine::identify::IndexOptions;

use crate::bench::Bench;
use crate::counts::float;
use crate::replay::Outcome;
use crate::stream::{Lags, Runs, Shape, Stream};

/// Stored chunks, in millions, at which a line is printed.
const MARKS: [u64; 10] = [1, 10, 25, 50, 75, 100, 125, 150, 175, 200];

/// Submits a stream until a number of distinct chunks is stored; returns Markdown.
pub fn grow(
    dir: &Path,
    memory_bytes: usize,
    stored: u64,
    duplicates: f64,
    progress: &mut dyn FnMut(&str),
) -> Result<String> {
    let path = dir.join("growing");
    if path.exists() {
        std::fs::remove_dir_all(&path)?;
    }
    let options = IndexOptions::for_memory(memory_bytes);
    let mut bench = Bench::open(&path, &options, 0)?;
    let shape = Shape { duplicates, runs: Runs::Uniform(200, 5_000), lags: Lags::Uniform };
    let mut stream = Stream::new(3, shape, 0);
    let mut out = String::new();
    let heading = "| stored (millions) | million chunks/s | filter lets pass | lookups per GB | reads per lookup | bytes written per chunk stored | waiting for lookups | waiting for windows | waiting for the table | longest stall |";
    writeln!(out, "{heading}\n|---|---|---|---|---|---|---|---|---|---|")?;
    progress(heading);
    let (mut total, mut time) = (0, Duration::ZERO);
    for mark in MARKS.map(|millions| millions * 1_000_000).into_iter().filter(|&mark| mark <= stored) {
        let mut interval: Option<Outcome> = None;
        let before = bench.index_counters();
        while stream.known() < mark {
            let step = (mark - stream.known()).clamp(1, 1 << 20);
            let outcome = bench.advance(&mut stream, step, false)?;
            interval.get_or_insert_default().add(&outcome);
        }
        let Some(mut interval) = interval else { continue };
        interval.counters = bench.index_counters().since(&before);
        total += interval.chunks;
        time += interval.time;
        let line = line(mark, &interval);
        progress(&line);
        writeln!(out, "{line}")?;
    }
    let rate = float(total) / time.as_secs_f64() / 1e6;
    let known = stream.known();
    let state = bench.index().filter_state();
    writeln!(
        out,
        "\nAll in all {total} chunks, {known} different ones, at {rate:.2} million/s; filter {} MiB.",
        state.bytes >> 20
    )?;
    bench.close()?;
    let bytes: u64 = std::fs::read_dir(path.join("index"))?
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|it| it.len())
        .sum();
    writeln!(out, "The index takes {} bytes on disk for each chunk stored.", bytes / known.max(1))?;
    std::fs::remove_dir_all(&path)?;
    Ok(out)
}

fn line(mark: u64, interval: &Outcome) -> String {
    let counters = &interval.counters;
    let passed = float(counters.filter_false_positives)
        / float((counters.filter_false_positives + counters.filter_negatives).max(1));
    // Chunks of 4 KiB.
    let gigabytes = float(interval.chunks) * 4096.0 / 1e9;
    let share =
        |nanos: u64| 100.0 * Duration::from_nanos(nanos).div_duration_f64(interval.time.max(Duration::from_nanos(1)));
    format!(
        "| {} | {:.2} | {:.3}% | {:.0} | {:.2} | {:.0} | {:.0}% | {:.0}% | {:.0}% | {} ms |",
        mark / 1_000_000,
        interval.millions_per_second(),
        100.0 * passed,
        float(counters.lookups) / gigabytes,
        float(counters.pages_read) / float(counters.lookups.max(1)),
        float(counters.bytes_written) / float(counters.updates.max(1)),
        share(counters.lookup_nanos),
        share(counters.prefetch_nanos),
        share(counters.flush_wait_nanos),
        interval.longest.as_millis()
    )
}
