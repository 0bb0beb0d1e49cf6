//! Rates of candidates and fingerprints, on threads of the processor and on a device. `bench/device` makes tables of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use onefold_accel::boundary::Finder;
use onefold_accel::device::{
    Batch, Batches, Check, Device, Limits, NameHash, Namer, Pool, Range, Rule, Search, Span, Wait,
};
use onefold_accel::fingerprint::keyed_hashes;
use onefold_engine::chunk::{ChunkSizes, Chunking, Cutter};
use onefold_engine::random::SplitMix64;
use serde::Serialize;

use crate::together::together;

/// Bytes of a block, as a backup has them.
const BLOCK_BYTES: usize = 512 << 10;
/// Average size of chunks.
const AVERAGE_BYTES: u32 = 8 << 10;
/// Batches in flight, as a backup has them.
const BATCHES: usize = 4;
const KEY: [u8; 32] = [7; 32];

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct RatesOptions {
    /// Bytes in memory, made by a seed.
    pub bytes: usize,
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Bytes of a device's batches.
    pub batch_bytes: Vec<usize>,
}

/// A rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// The work: `candidates`, `names`, `both`, or `copy`; or a kernel.
    pub work: String,
    /// The processor, or the name of a device.
    pub by: String,
    /// Threads of the processor; 0 on a device.
    pub threads: usize,
    /// Bytes of a batch; 0 on the processor.
    pub batch_bytes: usize,
    /// Bytes of all.
    pub bytes: usize,
    /// Seconds of the median round.
    pub median_seconds: f64,
    /// Seconds of the fastest round.
    pub least_seconds: f64,
    /// Seconds of the slowest round.
    pub most_seconds: f64,
}

impl Rate {
    /// Describes work on `bytes` bytes by its name, what did it, its threads, and the bytes of a batch. `seconds` are those of the rounds,
    /// shortest first.
    pub fn new(work: &str, (by, threads, batch_bytes): (&str, usize, usize), bytes: usize, seconds: &[f64]) -> Self {
        let at = |number: usize| seconds.get(number).copied().unwrap_or_default();
        Self {
            work: work.to_owned(),
            by: by.to_owned(),
            threads,
            batch_bytes,
            bytes,
            median_seconds: at(seconds.len() / 2),
            least_seconds: at(0),
            most_seconds: at(seconds.len().saturating_sub(1)),
        }
    }
}

/// Data with what the processor finds in it.
struct Prepared {
    noise: Vec<u8>,
    finder: Finder,
    search: Search,
}

fn prepare(bytes: usize) -> Prepared {
    let mut random = SplitMix64::new(1);
    let bytes = bytes.next_multiple_of(BLOCK_BYTES);
    let noise = (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let word = |random: &mut SplitMix64| u32::try_from(random.next_u64() >> 32).expect("32 bits");
    let table: [u32; 256] = std::array::from_fn(|_| word(&mut random));
    let threshold = u32::MAX / ChunkSizes::for_average(AVERAGE_BYTES).target;
    let search = Search { table: Box::new(table), threshold };
    Prepared { noise, finder: Finder::new(&table, threshold), search }
}

/// Cuts a block as a stream of its own; returns starts and lengths.
fn cut(candidates: &[u32], len: u32) -> Vec<(u32, u32)> {
    let mut cuts = Vec::new();
    Cutter::new(Chunking::Gear(ChunkSizes::for_average(AVERAGE_BYTES))).advance(len, candidates, &mut cuts);
    cuts.push(len);
    let mut start = 0;
    let mut chunks = Vec::new();
    for end in cuts {
        if start < end {
            chunks.push((start, end - start));
        }
        start = end;
    }
    chunks
}

/// Seconds of rounds, shortest first.
fn rounds(count: usize, run: &mut dyn FnMut() -> Result<Duration>) -> Result<Vec<f64>> {
    let mut seconds = (0..count.max(1)).map(|_| Ok(run()?.as_secs_f64())).collect::<Result<Vec<_>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// Measures the processor.
pub fn of_processor(options: &RatesOptions) -> Result<Vec<Rate>> {
    let prepared = prepare(options.bytes);
    let Prepared { noise, finder, .. } = &prepared;
    let mut rates = Vec::new();
    let candidates = |block: &[u8], found: &mut Vec<u32>| {
        found.clear();
        finder.candidates(block, 0, found);
    };
    let chunks = |block: &[u8], found: &[u32]| -> usize {
        let len = u32::try_from(block.len()).unwrap_or(0);
        let chunk = |(start, len): (u32, u32)| block.get(start as usize..(start + len) as usize).unwrap_or_default();
        let chunks: Vec<&[u8]> = cut(found, len).into_iter().map(chunk).collect();
        let mut names = Vec::with_capacity(chunks.len());
        keyed_hashes(&KEY, &chunks, &mut names);
        names.len()
    };
    // So that names alone need no search.
    let found: Vec<Vec<u32>> = noise
        .chunks(BLOCK_BYTES)
        .map(|block| {
            let mut found = Vec::new();
            candidates(block, &mut found);
            found
        })
        .collect();
    for threads in &options.threads {
        let blocks: Vec<(&[u8], &Vec<u32>)> = noise.chunks(BLOCK_BYTES).zip(&found).collect();
        let share = blocks.len().div_ceil((*threads).max(1));
        for (work, searches, names) in [("candidates", true, false), ("names", false, true), ("both", true, true)] {
            let part = |number: usize| Ok(blocks.chunks(share).nth(number).unwrap_or_default());
            let on_part = |part: &[(&[u8], &Vec<u32>)]| {
                let (mut own, mut bytes) = (Vec::new(), 0);
                for (block, found) in part {
                    if searches {
                        candidates(block, &mut own);
                    }
                    if names {
                        chunks(block, if searches { &own } else { found });
                    }
                    bytes += block.len() as u64;
                }
                Ok(bytes)
            };
            let seconds = rounds(options.rounds, &mut || Ok(together(*threads, part, on_part)?.elapsed))?;
            rates.push(Rate::new(work, ("processor", *threads, 0), noise.len(), &seconds));
        }
    }
    Ok(rates)
}

/// Measures batches on a device, from the host's memory to results, which are compared as in a backup. An unequal result is an error.
pub fn of_device(device: &Arc<dyn Device>, options: &RatesOptions) -> Result<Vec<Rate>> {
    let prepared = prepare(options.bytes);
    let name = device.about().name.clone();
    let mut rates = Vec::new();
    for batch_bytes in &options.batch_bytes {
        let blocks = (batch_bytes / BLOCK_BYTES).max(1);
        let limits = Limits { block_bytes: BLOCK_BYTES, blocks, batches: BATCHES, joined_bytes: 0 };
        let (search, hash) = (Some(prepared.search.clone()), Some(NameHash::Blake3(KEY)));
        for (work, search, hash) in [("copy", None, None), ("candidates", search.clone(), None), ("both", search, hash)]
        {
            let rule = Rule { search, hash };
            let allocating = Arc::clone(device);
            let pool = Pool::new(BLOCK_BYTES, blocks * BATCHES, move |len| allocating.allocate(len));
            let mut flow = Flow::open(device, &rule, limits)?;
            let mut run = || {
                let start = Instant::now();
                flow.run(&prepared.noise, &pool)?;
                Ok(start.elapsed())
            };
            let seconds = rounds(options.rounds, &mut run)?;
            rates.push(Rate::new(work, (&name, 0, limits.area_bytes()), prepared.noise.len(), &seconds));
        }
    }
    Ok(rates)
}

/// Batches in flight, each with the lengths of its blocks.
struct Flow {
    batches: Batches,
    searches: bool,
    names: bool,
    limits: Limits,
}

impl Flow {
    fn open(device: &Arc<dyn Device>, rule: &Rule, limits: Limits) -> Result<Self> {
        let namer: Namer = Arc::new(|chunks| {
            let mut names = Vec::new();
            keyed_hashes(&KEY, chunks, &mut names);
            names
        });
        let (searches, names) = (rule.search.is_some(), rule.hash.is_some());
        let batches = Batches::open(&**device, rule, limits, (namer, Check::Sample, [9; 32]))?;
        Ok(Self { batches, searches, names, limits })
    }

    /// Sends all bytes through the device, in buffers that are filled as a file fills them.
    fn run(&mut self, bytes: &[u8], pool: &Pool) -> Result<()> {
        let mut searching: Vec<(Batch, Vec<usize>)> = Vec::new();
        let mut fingerprinting: Vec<Batch> = Vec::new();
        let mut parts = bytes.chunks(self.limits.area_bytes());
        loop {
            let part = parts.next();
            if let Some(part) = part {
                if !self.batches.has_free_position() {
                    self.finish(&mut searching, &mut fingerprinting)?;
                }
                let mut blocks = Vec::new();
                for block in part.chunks(BLOCK_BYTES) {
                    let mut buffer = pool.take().ok_or_else(|| anyhow!("the device has no memory of the host"))?;
                    if let Some(free) = buffer.get_mut(..block.len()) {
                        free.copy_from_slice(block);
                    }
                    blocks.push(buffer.freeze(block.len()));
                }
                let lens = blocks.iter().map(|block| block.len()).collect();
                searching.push((self.batches.begin(blocks)?, lens));
            } else if searching.is_empty() && fingerprinting.is_empty() {
                return Ok(());
            }
            // Half of the batches are searched while the others are named.
            if BATCHES / 2 < searching.len() || part.is_none() && !searching.is_empty() {
                self.name_oldest(&mut searching, &mut fingerprinting)?;
            } else if part.is_none() {
                self.finish(&mut searching, &mut fingerprinting)?;
            }
        }
    }

    fn name_oldest(&mut self, searching: &mut Vec<(Batch, Vec<usize>)>, fingerprinting: &mut Vec<Batch>) -> Result<()> {
        let (batch, lens) = searching.remove(0);
        let range =
            |(block, len): (usize, &usize)| Range { block, start: 0, len: u32::try_from(*len).unwrap_or(0), halo: 0 };
        let ranges: Vec<Range> = lens.iter().enumerate().map(range).collect();
        let found = if self.searches { self.batches.candidates(batch, &ranges)? } else { Vec::new() };
        if !self.names {
            return Ok(self.batches.end(batch)?);
        }
        let mut spans = Vec::new();
        for (range, found) in ranges.iter().zip(found) {
            let first = u32::try_from(range.block * BLOCK_BYTES)?;
            spans.extend(cut(&found, range.len).into_iter().map(|(start, len)| Span { start: first + start, len }));
        }
        spans.truncate(self.limits.chunks_max());
        self.batches.name(batch, spans, Vec::new())?;
        fingerprinting.push(batch);
        Ok(())
    }

    /// Frees a position.
    fn finish(&mut self, searching: &mut Vec<(Batch, Vec<usize>)>, fingerprinting: &mut Vec<Batch>) -> Result<()> {
        if fingerprinting.is_empty() {
            self.name_oldest(searching, fingerprinting)?;
        }
        if !fingerprinting.is_empty() {
            self.batches.names(fingerprinting.remove(0), Wait::Yes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onefold_accel::device::host_device::{HostDevice, Script};

    use super::*;

    #[test]
    fn the_processor_and_a_device_are_measured() {
        let options =
            RatesOptions { bytes: 3 << 20, rounds: 2, threads: vec![1, 2], batch_bytes: vec![1 << 19, 1 << 20] };
        let rates = of_processor(&options).unwrap();
        let works: Vec<_> = rates.iter().map(|rate| (rate.work.as_str(), rate.threads)).collect();
        assert_eq!(works.len(), 6);
        assert!(works.contains(&("both", 2)), "{works:?}");
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(Script { late: 1, ..Script::default() }));
        let measured = of_device(&device, &options).unwrap();
        assert_eq!(measured.len(), 6);
        for rate in rates.iter().chain(&measured) {
            let seconds = [0.0, rate.least_seconds, rate.median_seconds, rate.most_seconds];
            assert!(rate.bytes == 3 << 20 && rate.least_seconds != 0.0 && seconds.is_sorted(), "{rate:?}");
        }
    }
}
