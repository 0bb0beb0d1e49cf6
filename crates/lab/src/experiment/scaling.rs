//! Chunking and fingerprints by the number of threads, and the one thread that keeps the order: its part alone limits any number of
//! others.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::backup::Budget;
use onefold_engine::backup::ingest::ChunkRule;
use onefold_engine::backup::record::{RecordOptions, Recorded, record};
use onefold_engine::chunk::{ChunkSizes, Chunking, Cutter, GearTable, WINDOW};
use onefold_engine::fingerprint::Fingerprinter;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::SourceTree;
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::Excludes;
use onefold_engine::types::Fingerprint;
use rustix::time::{ClockId, clock_gettime};

use crate::chunkers::OPEN_KEY;
use crate::counts::float;
use crate::processor::{processor_time, processor_time_since};
use crate::together::{THREADS_MAX, processors, together};

mod sequencer;
mod shown;

pub use shown::{NAME, findings};

/// Bytes of a block, as in a backup.
const BLOCK_BYTES: usize = 512 << 10;
/// Bytes that a thread cuts and names again and again: more than its share of any cache.
const NOISE_BYTES: usize = 64 << 20;
/// Memory by which the pipeline's queues are sized: that of the most threads, 32 MiB for each.
const PIPELINE_BYTES: usize = THREADS_MAX * (32 << 20);
/// Averages of chunks.
const AVERAGE_BYTES: std::ops::RangeInclusive<u32> = 512..=64 << 10;

/// A measurement.
#[derive(Debug)]
pub struct Scaling<'a> {
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Threads that read and find candidates; `None`: as many, at least four.
    pub readers: Option<usize>,
    /// Bytes that are cut and named with each number of threads.
    pub bytes: u64,
    /// Average of chunks in bytes.
    pub average: u32,
    /// Chunks that are submitted to an index.
    pub chunks: u64,
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// Directory for a file and an index; removed at the end.
    pub scratch: &'a Path,
    /// Decides when to stop.
    pub monitor: &'a dyn Monitor,
}

/// Work of some threads.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Cost {
    bytes: u64,
    chunks: u64,
    elapsed: Duration,
    /// Of all threads.
    processor: Duration,
    /// Of the thread that keeps the order.
    sequencer: Duration,
}

impl Cost {
    /// Returns GB per second by the clock.
    fn rate(&self) -> f64 {
        float(self.bytes) / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns seconds for a GB.
    fn per_gigabyte(&self, time: Duration) -> f64 {
        time.as_secs_f64() / (float(self.bytes.max(1)) / 1e9)
    }
}

/// Keyed BLAKE3 of many chunks at a time, as in a repository.
#[derive(Debug)]
struct Keyed;

impl Fingerprinter for Keyed {
    fn name(&self, chunks: &[&[u8]]) -> Vec<Fingerprint> {
        let mut names = Vec::with_capacity(chunks.len());
        onefold_accel::fingerprint::keyed_hashes(&OPEN_KEY, chunks, &mut names);
        names.into_iter().map(Fingerprint).collect()
    }
}

impl Scaling<'_> {
    fn check(&self) -> Result<()> {
        ensure!(!self.threads.is_empty(), "--threads: no number");
        for threads in &self.threads {
            ensure!((1..=THREADS_MAX).contains(threads), "--threads: 1 to {THREADS_MAX}, not {threads}");
        }
        let (least, most) = (AVERAGE_BYTES.start(), AVERAGE_BYTES.end());
        let fits = AVERAGE_BYTES.contains(&self.average) && self.average.is_power_of_two();
        ensure!(fits, "--average: {least} to {most} bytes, a power of two, not {}", self.average);
        ensure!(BLOCK_BYTES as u64 <= self.bytes, "--bytes: at least {BLOCK_BYTES}, not {}", self.bytes);
        ensure!(self.chunks != 0 && self.rounds != 0, "nothing is measured");
        Ok(())
    }

    /// Returns the numbers of threads that this machine runs at the same time.
    fn fitting(&self) -> Vec<usize> {
        self.threads.iter().copied().filter(|threads| *threads <= processors()).collect()
    }

    fn go_on(&self) -> Result<()> {
        if self.monitor.is_interrupted() { Err(Error::Interrupted.into()) } else { Ok(()) }
    }

    /// Cuts and names in so many threads that know nothing of each other.
    fn apart(&self, threads: usize) -> Result<Cost> {
        let table = GearTable::expand(&OPEN_KEY, ChunkSizes::for_average(self.average));
        let prepare = |number: usize| {
            let mut noise = vec![0; NOISE_BYTES];
            blake3::Hasher::new().update(&(number as u64).to_le_bytes()).finalize_xof().fill(&mut noise);
            Ok(noise)
        };
        let blocks = self.bytes.div_ceil(BLOCK_BYTES as u64).div_ceil(threads as u64);
        let work = |noise: Vec<u8>| {
            let mut left = usize::try_from(blocks)?;
            while left != 0 {
                let count = left.min(NOISE_BYTES / BLOCK_BYTES);
                self.pass(&table, &noise[..count * BLOCK_BYTES]);
                left -= count;
            }
            Ok(blocks * BLOCK_BYTES as u64)
        };
        let taken = together(threads, prepare, work)?;
        let (bytes, elapsed, processor) = (taken.bytes, taken.elapsed, taken.processor);
        Ok(Cost { bytes, chunks: 0, elapsed, processor, sequencer: Duration::ZERO })
    }

    /// Cuts and names a stream, block by block.
    fn pass(&self, table: &GearTable, stream: &[u8]) {
        let mut cutter = Cutter::new(Chunking::Gear(ChunkSizes::for_average(self.average)));
        let (mut candidates, mut ends, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for at in (0..stream.len()).step_by(BLOCK_BYTES) {
            let block = at..stream.len().min(at + BLOCK_BYTES);
            search(table, stream, block.clone(), &mut candidates);
            ends.clear();
            cutter.advance(u32::try_from(block.len()).expect("a block is short"), &candidates, &mut ends);
            let chunks: Vec<_> = ends
                .iter()
                .map(|end| {
                    let chunk = &stream[start..at + *end as usize];
                    start = at + *end as usize;
                    chunk
                })
                .collect();
            names.clear();
            onefold_accel::fingerprint::keyed_hashes(&OPEN_KEY, &chunks, &mut names);
            std::hint::black_box(&names);
        }
    }

    /// Cuts and names a file by the stages of a backup up to identification: readers, workers, and the sequencer, which keeps the order. With
    /// many threads, the sequencer has a thread of its own; it is this one in a second run, which tells what it takes.
    fn pipeline(&self, file: &Path, threads: usize) -> Result<Cost> {
        let budget = Budget::of(PIPELINE_BYTES, threads);
        let cost = self.pipeline_with(file, budget)?;
        if budget.cut_ahead == 0 {
            return Ok(cost);
        }
        let alone = self.pipeline_with(file, Budget { cut_ahead: 0, ..budget })?;
        Ok(Cost { sequencer: alone.sequencer, ..cost })
    }

    fn pipeline_with(&self, file: &Path, budget: Budget) -> Result<Cost> {
        let source: Arc<dyn SourceTree> = Arc::new(OsSource::new());
        let sizes = ChunkSizes::for_average(self.average);
        let driver = match self.readers {
            Some(readers) => Driver::threads_and_readers(budget.threads, readers),
            None => Driver::threads(budget.threads),
        };
        let options = RecordOptions {
            roots: vec![file.to_path_buf()],
            excludes: Arc::new(Excludes::default()),
            rule: ChunkRule::new(Chunking::Gear(sizes), &OPEN_KEY, Arc::new(Keyed)),
            budget,
            accelerator: None,
        };
        let (mut bytes, mut chunks) = (0, 0);
        let before = (Instant::now(), processor_time(), processor_time_of_all());
        let failures = record(&source, options, &driver, self.monitor, &mut |recorded| {
            if let Recorded::Chunk(chunk, _) = recorded {
                bytes += u64::from(chunk.len);
                chunks += 1;
            }
            Ok(())
        })?;
        let (elapsed, sequencer) = (before.0.elapsed(), processor_time_since(before.1));
        drop(driver);
        let processor = processor_time_of_all().saturating_sub(before.2);
        ensure!(failures == 0, "{} could not be read", file.display());
        Ok(Cost { bytes, chunks, elapsed, processor, sequencer })
    }

    /// Makes the file that the pipeline reads, which is in the page cache from then on.
    fn file(&self, directory: &Path) -> Result<std::path::PathBuf> {
        let path = directory.join("noise");
        let written = (|| {
            let mut file = std::fs::File::create(&path)?;
            let mut noise = blake3::Hasher::new().update(b"scaling").finalize_xof();
            let (mut block, mut left) = (vec![0; BLOCK_BYTES], self.bytes);
            while left != 0 {
                let len = left.min(BLOCK_BYTES as u64);
                let part = &mut block[..usize::try_from(len).unwrap_or(BLOCK_BYTES)];
                noise.fill(part);
                std::io::Write::write_all(&mut file, part)?;
                left -= len;
            }
            // Nothing is written back to the disk while the clock runs.
            file.sync_all()
        })();
        written.with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// Finds the candidates of a block of a stream.
fn search(table: &GearTable, stream: &[u8], block: Range<usize>, candidates: &mut Vec<u32>) {
    let halo = block.start.min(WINDOW - 1);
    candidates.clear();
    table.candidates(&stream[block.start - halo..block.end], halo, candidates);
}

/// Returns the processor time that all threads of this process have taken so far.
fn processor_time_of_all() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;

    fn scaling(scratch: &Path) -> Scaling<'_> {
        Scaling {
            threads: vec![1, 2],
            readers: None,
            bytes: 8 << 20,
            average: 8192,
            chunks: 5_000,
            rounds: 1,
            scratch,
            monitor: &Silent,
        }
    }

    #[test]
    fn all_bytes_are_cut_and_named_with_every_number_of_threads() {
        let dir = tempfile::tempdir().unwrap();
        let scaling = scaling(dir.path());
        let file = scaling.file(dir.path()).unwrap();
        let mut chunks = Vec::new();
        for threads in [1, 3] {
            let cost = scaling.pipeline(&file, threads).unwrap();
            assert_eq!(cost.bytes, 8 << 20);
            assert!(Duration::ZERO < cost.sequencer && cost.sequencer <= cost.processor, "{cost:?}");
            chunks.push(cost.chunks);
            let apart = scaling.apart(threads).unwrap();
            assert!(
                8 << 20 <= apart.bytes && apart.bytes < (8 << 20) + threads as u64 * BLOCK_BYTES as u64,
                "{apart:?}"
            );
        }
        assert!(chunks[0] == chunks[1] && (700..1500).contains(&chunks[0]), "{chunks:?}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |scaling: Scaling<'_>| scaling.check().unwrap_err().to_string();
        let sound = || scaling(dir.path());
        sound().check().unwrap();
        assert_eq!(refused(Scaling { threads: vec![0], ..sound() }), "--threads: 1 to 256, not 0");
        assert!(refused(Scaling { threads: Vec::new(), ..sound() }).contains("no number"));
        assert!(refused(Scaling { average: 1000, ..sound() }).starts_with("--average: 512 to 65536"));
        assert!(refused(Scaling { bytes: 5, ..sound() }).starts_with("--bytes: at least"));
    }
}
