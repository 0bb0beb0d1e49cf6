//! The speed of identification on mapped memory: `cargo run --release -p onefold-lab --example mapped`.
//!
//! Every order on the same stream, with and without prefetching, in memory or in the file that is named; verdicts are
//! compared with what the generator knows. Times are those of the processor, not of the clock on the wall.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and prints what it measured")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use onefold_engine::identify::{Identifier, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::types::{Chunk, ContainerId, Sequence, SessionId};
use onefold_lab::mapped::{
    CacheShape, Durability, FilterShape, MappedIndex, MappedMemory, MappedOptions, Medium, Order, TickClock,
    base_latency,
};
use onefold_lab::stream::{Lags, Runs, Shape, Stream, name};

/// Chunks of a container.
const UNIT_CHUNKS: usize = 1024;
/// Chunks that are stored beforehand.
const STORED: u64 = 2_000_000;
/// Chunks of the stream that is measured.
const CHUNKS: u64 = 2_000_000;

fn medium(file: Option<&str>) -> Result<MappedMemory> {
    Ok(match file {
        Some(path) => {
            let _ = std::fs::remove_file(path);
            MappedMemory::of_file(Path::new(path), Durability::Memory)?
        }
        None => MappedMemory::anonymous(0)?,
    })
}

/// Returns the time that the processor has spent on this thread.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Submits chunks; returns the time in `submit` and that in `record`.
fn submit<M: Medium>(
    index: &mut MappedIndex<M>,
    stream: &mut Stream,
    chunks: u64,
    containers: &mut u32,
) -> Result<[Duration; 2]> {
    let (mut submitting, mut recording) = (Duration::ZERO, Duration::ZERO);
    let mut packing = Vec::new();
    let mut sequence = 0;
    index.attach(&(0..*containers).map(container).collect::<Vec<_>>())?;
    while sequence < chunks {
        let drawn: Vec<_> = (0..1 << 14).map(|_| stream.draw()).collect();
        let batch: Vec<_> = (sequence..)
            .zip(&drawn)
            .map(|(number, (chunk, _))| {
                SequencedChunk::data(Sequence(number), Chunk { fingerprint: name(*chunk), len: 4096 })
            })
            .collect();
        sequence += batch.len() as u64;
        let mut resolved = Vec::with_capacity(batch.len());
        let start = now();
        for piece in batch.chunks(64) {
            index.submit(piece, &mut resolved)?;
        }
        submitting += now().saturating_sub(start);
        for ((arrival, (_, is_new)), Resolved { verdict, .. }) in batch.iter().zip(&drawn).zip(resolved) {
            ensure!((verdict == Verdict::Unique) == *is_new, "{verdict:?} on a chunk that is new: {is_new}");
            if *is_new {
                packing.push(arrival.chunk);
            }
        }
        let start = now();
        for chunks in packing.chunks(UNIT_CHUNKS) {
            index.record(Unit { container: container(*containers), len: 0, chunks })?;
            *containers += 1;
        }
        recording += now().saturating_sub(start);
        packing.clear();
    }
    Ok([submitting, recording])
}

fn container(ordinal: u32) -> ContainerId {
    ContainerId { session: SessionId([3; 16]), ordinal }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn main() -> Result<()> {
    let file = std::env::args().nth(1);
    let shapes = [
        ("all new", Shape { duplicates: 0.0, runs: Runs::Geometric(200.0), lags: Lags::Uniform }),
        ("21% duplicates", Shape { duplicates: 0.21, runs: Runs::Geometric(200.0), lags: Lags::Uniform }),
        ("53% duplicates", Shape { duplicates: 0.53, runs: Runs::Geometric(200.0), lags: Lags::Uniform }),
        ("95% duplicates", Shape { duplicates: 0.95, runs: Runs::Geometric(2_000.0), lags: Lags::Passes }),
        ("53%, runs of 4", Shape { duplicates: 0.53, runs: Runs::Geometric(4.0), lags: Lags::Uniform }),
    ];
    let blocked = FilterShape::Blocked { bytes: 16 << 20, hashes: 6 };
    let scattered = FilterShape::Scattered { bytes: 16 << 20, hashes: 6 };
    let fifo = CacheShape::Fifo { bytes: 16 << 20, neighbors: 50 };
    let lru = CacheShape::Lru { bytes: 16 << 20, neighbors: 50 };
    for prefetches in [true, false] {
        for (order, filter, cache, kind) in [
            (Order::None, FilterShape::None, CacheShape::None, "oblivious"),
            (Order::FilterFirst, scattered, lru, "eager, scattered"),
            (Order::FilterFirst, scattered, fifo, "buffer-f, scattered"),
            (Order::CacheFirst, scattered, fifo, "buffer-l, scattered"),
            (Order::Auto, scattered, fifo, "auto, scattered"),
            (Order::Auto, blocked, fifo, "auto, blocked"),
        ] {
            for (text, shape) in shapes {
                let options = MappedOptions { order, filter, cache, prefetches, ..MappedOptions::default() };
                let (mut index, _) = MappedIndex::open(medium(file.as_deref())?, &options)?;
                let mut containers = 0;
                let all_new = Shape { duplicates: 0.0, ..shape };
                submit(&mut index, &mut Stream::new(1, all_new, 0), STORED, &mut containers)?;
                let mut stream = Stream::new(2, shape, index.entries());
                let before = index.traffic();
                let [submitting, recording] = submit(&mut index, &mut stream, CHUNKS, &mut containers)?;
                let traffic = index.traffic().since(&before);
                let report = index.order_report();
                println!(
                    "prefetch {prefetches:5} {kind:20} {text:15}: {:6.2} M/s submit, record {:4.0} ms; L_B {:4.0} L_C {:4.0} L_D {:5.0} enter {:4.0}; misses {:.2} lines {:.2} fences {:.3} per chunk; {} changes, ends {}",
                    CHUNKS as f64 / submitting.as_secs_f64() / 1e6,
                    recording.as_secs_f64() * 1e3,
                    report.latencies.filter,
                    report.latencies.cache,
                    report.latencies.lookup,
                    report.enter,
                    traffic.misses as f64 / CHUNKS as f64,
                    traffic.lines_flushed as f64 / CHUNKS as f64,
                    traffic.fences as f64 / CHUNKS as f64,
                    report.changes,
                    report.current,
                );
                if text == "all new" && order == Order::None {
                    let nanos = base_latency(index.medium(), 1 << 20, &TickClock::shared());
                    println!("an access to a line at random takes {nanos:.0} ns; load {:.2}", index.table_load());
                }
            }
        }
    }
    Ok(())
}
