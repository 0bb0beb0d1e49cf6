//! Rates of candidates and fingerprints, on threads of the processor and on a device. `bench/device` makes tables of them.
//!
//! The time of a round begins when all bytes lie in the host's memory, and ends with the last result. One round goes before and does not count.
//!
//! - The processor: each thread has a share of the blocks. `candidates` finds where chunks may end, `names` hashes chunks that are known before, with
//!   keyed BLAKE3, and `both` does one after the other.
//! - A device: the bytes lie in page-locked memory, as the readers of a backup leave them. `copy` sends them; `candidates` gets the positions
//!   back and makes chunks of them; `names` sends known chunks and gets their names back; `both` does everything, in batches, several in flight. Results are checked as in a
//!   backup: the processor computes a sample again, in the measured time. `sha-1` and `sha-256` name chunks by these hashes instead.
//! - `both, filled`: threads copy the bytes into page-locked buffers inside of the measured time, as many as the largest number of threads. It shows
//!   how much the memory of a machine allows, because each byte is read and written once more.
//!
//! SHA-1 and SHA-256 on threads of the processor are in table IX of `lab paper lazy-table-9`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use onefold_accel::device::cuda::with_references;
use onefold_accel::device::{Device, Fault};
use onefold_accel::fingerprint::keyed_hashes;
use serde::Serialize;

use crate::coprocessor::fingerprint::Hash;
use crate::experiment::references;
use crate::image::backward::Planes;
use crate::image::first::{FirstMap, first_of};
use crate::together::together;
use noise::{BLOCK_BYTES, KEY, Noise};
use transfers::{Transfers, Work, seconds, whole_batch};

pub(crate) mod noise;
pub(crate) mod transfers;

/// Average size of chunks.
const AVERAGE_BYTES: u32 = 8 << 10;

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct RatesOptions {
    /// Bytes in memory, made by a seed. On a device there are as many again, for the buffers that threads fill.
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
    /// The work, as the module describes it; or a kernel.
    pub work: String,
    /// The processor, or the name of a device.
    pub by: String,
    /// Threads of the processor; on a device those that fill buffers, or 0.
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

/// Seconds of rounds after one that does not count, shortest first.
fn rounds(count: usize, run: &mut dyn FnMut() -> Result<Duration>) -> Result<Vec<f64>> {
    run()?;
    let mut seconds = (0..count.max(1)).map(|_| Ok(run()?.as_secs_f64())).collect::<Result<Vec<_>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// A block, with starts and lengths of its chunks.
type KnownBlock<'a> = (&'a [u8], &'a [(u32, u32)]);

/// Measures the processor.
pub fn of_processor(options: &RatesOptions) -> Result<Vec<Rate>> {
    let noise = Noise::new(options.bytes, AVERAGE_BYTES)?.with_cuts();
    let mut rates = Vec::new();
    let name = |block: &[u8], chunks: &[(u32, u32)]| -> usize {
        let chunk = |(start, len): &(u32, u32)| block.get(*start as usize..(start + len) as usize).unwrap_or_default();
        let chunks: Vec<&[u8]> = chunks.iter().map(chunk).collect();
        let mut names = Vec::with_capacity(chunks.len());
        keyed_hashes(&KEY, &chunks, &mut names);
        names.len()
    };
    for threads in &options.threads {
        let blocks: Vec<KnownBlock<'_>> =
            noise.bytes.chunks(BLOCK_BYTES).zip(noise.chunks.iter().map(Vec::as_slice)).collect();
        let share = blocks.len().div_ceil((*threads).max(1));
        for (work, searches, names) in [("candidates", true, false), ("names", false, true), ("both", true, true)] {
            let part = |number: usize| Ok(blocks.chunks(share).nth(number).unwrap_or_default());
            let on_part = |part: &[KnownBlock<'_>]| {
                let (mut found, mut bytes) = (Vec::new(), 0);
                for (block, known) in part {
                    if searches {
                        found.clear();
                        noise.finder.candidates(block, 0, &mut found);
                    }
                    match (searches, names) {
                        (true, true) => drop(name(block, &noise.cut(&found, u32::try_from(block.len()).unwrap_or(0)))),
                        (false, true) => drop(name(block, known)),
                        _ => {}
                    }
                    bytes += block.len() as u64;
                }
                Ok(bytes)
            };
            let seconds = rounds(options.rounds, &mut || Ok(together(*threads, part, on_part)?.elapsed))?;
            rates.push(Rate::new(work, ("processor", *threads, 0), noise.bytes.len(), &seconds));
        }
    }
    Ok(rates)
}

/// Measures batches on a device, from the host's memory to results, which are checked as in a backup. An unequal result is an error.
pub fn of_device(device: &Arc<dyn Device>, options: &RatesOptions) -> Result<Vec<Rate>> {
    let transfers = Transfers::load(device, Noise::new(options.bytes, AVERAGE_BYTES)?.with_cuts())?;
    let (name, bytes) = (device.about().name.clone(), usize::try_from(transfers.bytes())?);
    let fill = options.threads.iter().copied().max().unwrap_or(1);
    let both = Work::Both(Hash::Blake3);
    let works = [
        ("copy", Work::Copy, 0),
        ("candidates", Work::Candidates, 0),
        ("names", Work::Names(Hash::Blake3), 0),
        ("both", both, 0),
        ("both, filled", both, fill),
        ("names sha-1", Work::Names(Hash::Sha1), 0),
        ("both sha-1", Work::Both(Hash::Sha1), 0),
        ("names sha-256", Work::Names(Hash::Sha256), 0),
        ("both sha-256", Work::Both(Hash::Sha256), 0),
    ];
    let mut rates = Vec::new();
    for batch_bytes in &options.batch_bytes {
        for (title, work, fill) in works {
            let taken = transfers.measure(work, *batch_bytes, fill, (1, options.rounds))?;
            rates.push(Rate::new(title, (&name, fill, whole_batch(*batch_bytes)), bytes, &seconds(&taken)));
        }
    }
    Ok(rates)
}

/// Names among which references are found: blocks of 1 KiB of a GiB.
const REFERENCED_NAMES: usize = 1 << 20;
/// CTAs of a launch that finds references: four for each multiprocessor of the largest devices.
const REFERENCE_CTAS: u32 = 528;

/// Measures how long the NVIDIA GPU of this number takes to find the first of equal names, with transfers, by comparing all pairs and by sorting. Its
/// results are compared with those of a map.
pub fn of_references(device: u32, options: &RatesOptions) -> Result<Vec<Rate>> {
    let names = references::names(REFERENCED_NAMES.min(options.bytes >> 10).max(1));
    let positions: Vec<u32> = (0..u32::try_from(names.len())?).collect();
    let found = first_of(FirstMap::Atomic, &names, &positions, 1);
    let expected: Vec<u32> = found.into_iter().map(|found| found.first).collect();
    let words = Planes::of(&names).words();
    let measure = |by: &str, work: &str, find: &dyn Fn() -> Result<Vec<u32>, Fault>| -> Result<Rate> {
        let round = |_| {
            let start = Instant::now();
            let found = find()?;
            let took = start.elapsed();
            ensure!(found == expected, "{work}: the references differ from those of a map");
            Ok(took.as_secs_f64())
        };
        // The first round does not count.
        let mut seconds = (0..=options.rounds.max(1)).map(round).skip(1).collect::<Result<Vec<f64>>>()?;
        seconds.sort_by(f64::total_cmp);
        let title = format!("{work} of {} names", names.len());
        Ok(Rate::new(&title, (by, 0, 0), size_of_val(&*names), &seconds))
    };
    with_references(device, |about, references| {
        Ok(vec![
            measure(&about.name, "references by all pairs", &|| references.backward(&words, REFERENCE_CTAS))?,
            measure(&about.name, "references by sorting", &|| references.by_sorting(&words, REFERENCE_CTAS))?,
        ])
    })?
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
        assert_eq!(measured.len(), 2 * 9);
        let filled: Vec<_> = measured.iter().filter(|rate| rate.threads != 0).map(|rate| &*rate.work).collect();
        assert_eq!(filled, ["both, filled"; 2], "as many threads as the processor has at most");
        for rate in rates.iter().chain(&measured) {
            let seconds = [0.0, rate.least_seconds, rate.median_seconds, rate.most_seconds];
            assert!(rate.bytes == 3 << 20 && rate.least_seconds != 0.0 && seconds.is_sorted(), "{rate:?}");
        }
    }
}
