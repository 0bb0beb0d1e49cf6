//! Parts of the thread that keeps the order, each alone: cutting at candidates, and submitting chunks to an index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use onefold_engine::chunk::{ChunkSizes, Chunking, Cutter, GearTable};
use onefold_engine::identify::{Identifier, Index, IndexOptions, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::types::{Chunk, Sequence};

use super::{BLOCK_BYTES, NOISE_BYTES, OPEN_KEY, Scaling, search};
use crate::bench::open_index;
use crate::counts::float;
use crate::processor::{processor_time, processor_time_since};
use crate::sim::container;
use crate::stream::name;

/// Memory of the index: what a backup with 1 GiB gives it.
const INDEX_BYTES: usize = 512 << 20;
/// Chunks of a container: 4 MiB of chunks of 8 KiB.
const CONTAINER_CHUNKS: usize = 512;
/// Chunks that are made up before the clock runs.
const BATCH_CHUNKS: u64 = 1 << 14;

/// Time of a part of the sequencer's work.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Part {
    pub(super) chunks: u64,
    pub(super) processor: Duration,
    pub(super) elapsed: Duration,
}

impl Part {
    /// Returns nanoseconds of processor time for a chunk.
    pub(super) fn nanoseconds(&self) -> f64 {
        self.processor.as_secs_f64() * 1e9 / float(self.chunks.max(1))
    }

    /// Returns nanoseconds by the clock.
    pub(super) fn nanoseconds_elapsed(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / float(self.chunks.max(1))
    }

    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (start, began) = (Instant::now(), processor_time());
        let result = work();
        self.processor += processor_time_since(began);
        self.elapsed += start.elapsed();
        result
    }
}

/// Parts of the sequencer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Parts {
    pub(super) cut: Part,
    /// Chunks that the index does not hold, with their recording.
    pub(super) new: Part,
    /// Chunks that it holds, in the order in which they were stored.
    pub(super) known: Part,
}

/// Measures all parts.
pub(super) fn parts(scaling: &Scaling<'_>) -> Result<Parts> {
    let cut = cut(scaling);
    let directory = tempfile::Builder::new().prefix("onefold-lab-").tempdir_in(scaling.scratch)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let options = IndexOptions::for_memory(INDEX_BYTES);
    let mut containers = 0;
    let mut session = |is_new| -> Result<Part> {
        scaling.go_on()?;
        let live: Vec<_> = (0..containers).map(container).collect();
        let mut index = open_index(Arc::clone(&disk), Arc::clone(&host), &options, &live)?;
        let part = submit(scaling, &mut index, &mut containers, is_new)?;
        index.end_stream();
        index.close()?;
        Ok(part)
    };
    Ok(Parts { cut, new: session(true)?, known: session(false)? })
}

/// Cuts at candidates that were found before, and notes where each chunk lies.
fn cut(scaling: &Scaling<'_>) -> Part {
    let sizes = ChunkSizes::for_average(scaling.average);
    let table = GearTable::expand(&OPEN_KEY, sizes);
    let mut noise = vec![0; NOISE_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    let blocks: Vec<Vec<u32>> = (0..NOISE_BYTES)
        .step_by(BLOCK_BYTES)
        .map(|at| {
            let mut candidates = Vec::new();
            search(&table, &noise, at..at + BLOCK_BYTES, &mut candidates);
            candidates
        })
        .collect();
    let mut cutter = Cutter::new(Chunking::Gear(sizes));
    let (mut part, mut ends) = (Part::default(), Vec::new());
    let mut chunks = 0;
    part.time(|| {
        for candidates in blocks.iter().cycle() {
            ends.clear();
            cutter.advance(u32::try_from(BLOCK_BYTES).expect("a block is short"), candidates, &mut ends);
            let mut start = 0;
            let locations: Vec<_> = ends
                .iter()
                .map(|end| {
                    let location = start..*end as usize;
                    start = *end as usize;
                    location
                })
                .collect();
            std::hint::black_box(&locations);
            chunks += ends.len() as u64;
            if scaling.chunks <= chunks {
                break;
            }
        }
    });
    part.chunks = chunks;
    part
}

/// Submits chunks as the blocks of a backup bring them, and records those that are new.
fn submit(scaling: &Scaling<'_>, index: &mut Index, containers: &mut u32, is_new: bool) -> Result<Part> {
    let mut part = Part::default();
    let (mut resolved, mut packing, mut verdicts) = (Vec::new(), Vec::new(), 0);
    let of_block = (BLOCK_BYTES / scaling.average as usize).max(1);
    let chunk = |number: u64| Chunk { fingerprint: name(number), len: scaling.average };
    for first in (0..scaling.chunks).step_by(usize::try_from(BATCH_CHUNKS)?) {
        scaling.go_on()?;
        let numbers = first..scaling.chunks.min(first + BATCH_CHUNKS);
        let batch = numbers.map(|number| SequencedChunk::data(Sequence(number), chunk(number)));
        let batch: Vec<_> = batch.collect();
        for block in batch.chunks(of_block) {
            part.time(|| index.submit(block, &mut resolved))?;
            verdicts += take(&mut resolved, is_new, &mut packing)?;
            if CONTAINER_CHUNKS <= packing.len() {
                record(index, containers, &mut packing, chunk, &mut part)?;
            }
        }
    }
    part.time(|| index.drain(&mut resolved))?;
    verdicts += take(&mut resolved, is_new, &mut packing)?;
    if !packing.is_empty() {
        record(index, containers, &mut packing, chunk, &mut part)?;
    }
    ensure!(verdicts == scaling.chunks, "{verdicts} of {} chunks have a verdict", scaling.chunks);
    part.chunks = scaling.chunks;
    Ok(part)
}

/// Checks verdicts, and keeps the numbers of new chunks for a container. Returns how many verdicts there were.
fn take(resolved: &mut Vec<Resolved>, is_new: bool, packing: &mut Vec<u64>) -> Result<u64> {
    let count = resolved.len() as u64;
    for Resolved { sequence: Sequence(number), verdict } in resolved.drain(..) {
        ensure!(is_new == (verdict == Verdict::Unique), "chunk {number} has the verdict {verdict:?}");
        if is_new {
            packing.push(number);
        }
    }
    Ok(count)
}

fn record(
    index: &mut Index,
    containers: &mut u32,
    packing: &mut Vec<u64>,
    chunk: impl Fn(u64) -> Chunk,
    part: &mut Part,
) -> Result<()> {
    let container = container(*containers);
    let chunks: Vec<_> = packing.drain(..).map(chunk).collect();
    part.time(|| index.record(Unit { container, len: 0, chunks: &chunks }))?;
    *containers += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;

    #[test]
    fn every_chunk_is_cut_and_gets_its_verdict_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let scaling = Scaling {
            readers: None,
            threads: vec![1],
            bytes: 1 << 20,
            average: 8192,
            chunks: 20_000,
            rounds: 1,
            scratch: dir.path(),
            monitor: &Silent,
        };
        let parts = parts(&scaling).unwrap();
        assert!(20_000 <= parts.cut.chunks && parts.new.chunks == 20_000 && parts.known.chunks == 20_000, "{parts:?}");
        for part in [parts.cut, parts.new, parts.known] {
            assert!(0.0 < part.nanoseconds() && 0.0 < part.nanoseconds_elapsed(), "{parts:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // A wrong verdict is no figure.
        let verdict = Resolved { sequence: Sequence(7), verdict: Verdict::Unique };
        assert!(take(&mut vec![verdict], false, &mut Vec::new()).err().unwrap().to_string().contains("chunk 7"));
    }
}
