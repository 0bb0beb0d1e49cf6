//! Costs of a repository of given data before it exists: all chunk sizes are compared in one pass over the data.
//!
//! [`survey`] finds what there is and chooses what to read; [`reader`] reads it; each rule of [`rules`] cuts all that is read and
//! counts its different chunks ([`mod@scan`], [`distinct`]), compresses some of it, and measures what the engine takes for it.
//! [`predict`] extrapolates to a repository of everything; [`recommend`] chooses. docs/advise.md lists the
//! measured and the estimated figures, with their errors.

pub mod candidates;
mod clusters;
pub mod distinct;
pub mod estimate;
pub mod extrapolate;
pub mod findings;
pub mod predict;
pub mod reader;
pub mod recommend;
pub mod regions;
pub mod rules;
pub mod scan;
mod sealing;
pub mod similar;
pub mod survey;
pub mod window;

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onefold_engine::Error;
use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::container::compressor_of;
use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::SourceTree;
use onefold_engine::monitor::Monitor;
use onefold_engine::object::FormatVersion;
use onefold_engine::source::exclude::Excludes;
use onefold_engine::source::walk::Walk;
use onefold_engine::types::RepositoryId;

use crate::processor::{processor_time, waiting_time};

use candidates::Search;
use reader::{Batch, Reader, Reading};
use regions::{Compressing, Regions};
use rules::Rule;
use scan::RuleScan;
use sealing::Sealing;
use similar::{Measured, Similar, SimilarOptions};
use survey::{Sample, Survey};
use window::{Window, on_threads};

/// About how often new chunks are compressed for every rule, in bytes of data.
const COMPRESSED_BYTES: u64 = 512 << 20;
/// Batches that wait between reading and cutting.
const BATCHES_WAITING: usize = 1;
/// Batches in use: one being filled, those in the queue, one being processed.
const BATCHES: usize = BATCHES_WAITING + 2;
/// One batch in this many is also cut and fingerprinted by the engine's own functions, to take the time.
const MEASURED_BATCHES: u64 = 16;
/// State of a compressor, as [`onefold_engine::backup::Budget`] reckons it.
const COMPRESSOR_BYTES: usize = 5 << 19;
/// Region that is sealed to measure the time, in all its forms.
const SEALING_BYTES: usize = 4 << 20;

/// Options of advice.
#[derive(Clone, Debug)]
pub struct AdviseOptions {
    /// Paths as the user named them.
    pub roots: Vec<PathBuf>,
    /// Excludes.
    pub excludes: Arc<Excludes>,
    /// Amount to read.
    pub sample: Sample,
    /// Chooses among all samples of this size.
    pub seed: u64,
    /// Compression of regions.
    pub compression: Compression,
    /// Memory for it, and for the backups that are predicted, in bytes.
    pub memory_bytes: usize,
    /// Threads that compute, here and there.
    pub threads: usize,
    /// How compression against similar data is measured, if it is.
    pub similar: Option<SimilarOptions>,
}

/// Result of reading.
#[derive(Debug)]
pub struct Scanned {
    /// Contents of the source.
    pub survey: Survey,
    /// Time of the walk that found it.
    pub walk_time: Duration,
    /// Processor time of that.
    pub walk_processor: Duration,
    /// Result of reading it.
    pub reading: Reading,
    /// Result of each rule.
    pub rules: Vec<RuleScan>,
    /// Result of compression against similar data; `None` if that was not asked, or a backup looks for nothing similar.
    pub similar: Option<Measured>,
    /// Bytes that were sealed, and the processor time of it.
    pub sealed: (u64, Duration),
    /// Time of it all.
    pub time: Duration,
}

/// Division of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shares {
    batch_bytes: usize,
    slots: usize,
}

impl Shares {
    /// Divides a budget of at least 64 MiB: each batch gets a 32nd, up to 4 MiB, and the tables get the rest, at most half.
    fn of(bytes: usize, threads: usize) -> Self {
        let mut shares = Self { batch_bytes: (bytes / 32).clamp(1 << 20, 4 << 20), slots: 0 };
        let tables = bytes.saturating_sub(shares.memory_bytes(threads)).min(bytes / 2);
        // A table that loses half of what it keeps is there twice for a moment, on each thread.
        shares.slots = scan::slots_within(tables * rules::RULES / (rules::RULES + threads));
        shares
    }

    /// Returns what the shares add up to.
    fn memory_bytes(&self, threads: usize) -> usize {
        let open_bytes = Rule::all().map(|rule| rule.chunking().chunk_bytes_max() as usize).max().unwrap_or_default();
        let batches = BATCHES * self.batch_bytes + self.batch_bytes + open_bytes;
        let tables = (rules::RULES + threads) * self.slots * scan::SLOTS_BYTES;
        batches + survey::MEMORY_BYTES + scan::buffers_bytes() + threads * COMPRESSOR_BYTES + SEALING_BYTES + tables
    }
}

/// Reads a sample of a source and applies every rule to it. The monitor learns of failures to read.
pub fn scan(options: &AdviseOptions, monitor: &dyn Monitor) -> Result<Scanned> {
    let start = Instant::now();
    let source: Arc<dyn SourceTree> = Arc::new(OsSource::new());
    options.roots.iter().try_for_each(|path| source.metadata(path).map(drop))?;
    let walk = || Walk::new(Arc::clone(&source), &options.roots, Arc::clone(&options.excludes));
    let (processor, waiting) = (processor_time(), waiting_time());
    let survey = Survey::of(&|| Ok(walk()?), options.sample, options.seed, monitor)?;
    let walk_processor = processor_time().saturating_sub(processor);
    let walk_time = start.elapsed().saturating_sub(waiting_time().saturating_sub(waiting)).max(walk_processor);

    let process = (options.memory_bytes, options.threads);
    let index_bytes = similar::index_bytes(options.compression, process.0, process.1);
    let similar_bytes = options.similar.as_ref().and(index_bytes).map_or(0, |index| index + similar::MEMORY_BYTES);
    let shares = Shares::of(options.memory_bytes.saturating_sub(similar_bytes), options.threads);
    let mut scanner = Scanner::new(options, &survey, shares);
    let default = scanner.rules.iter_mut().find(|rule| rule.all.is_some());
    if let (Some(rule), Some(similar)) = (default, &options.similar) {
        rule.similar = Similar::new(similar, options.compression, process)?;
    }
    let (send, batches) = sync_channel::<Batch>(BATCHES_WAITING);
    let again = walk()?;
    let (reading, taken) = thread::scope(|scope| -> Result<_> {
        let survey = &survey;
        let read = move || {
            let mut send = |batch| send.send(batch).is_ok();
            Reader::new(survey, shares.batch_bytes, monitor, &mut send).read(again, &options.roots)
        };
        let reader = thread::Builder::new().spawn_scoped(scope, read).context("start the thread that reads")?;
        // The loop owns the receiver: when it ends, the reader stops.
        let taken = batches.into_iter().try_for_each(|batch| scanner.take(&batch));
        Ok((reader.join(), taken))
    })?;
    taken?;
    let reading = reading.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if monitor.is_interrupted() {
        return Err(Error::Interrupted.into());
    }
    let similar = scanner.rules.iter_mut().find_map(|rule| rule.similar.take());
    let similar = similar.map(Similar::finish).transpose()?;
    let (rules, sealed) = scanner.finish();
    Ok(Scanned { survey, walk_time, walk_processor, reading, rules, similar, sealed, time: start.elapsed() })
}

/// All rules, on one batch after another.
struct Scanner {
    threads: usize,
    compression: Compression,
    search: Search,
    keys: Keys,
    window: Window,
    rules: Vec<RuleScan>,
    /// One for each thread.
    compressors: Vec<Mutex<Compressor>>,
    sealing: Sealing,
    batches: u64,
}

impl Scanner {
    fn new(options: &AdviseOptions, survey: &Survey, shares: Shares) -> Self {
        let bytes = match options.sample {
            Sample::Bytes(wanted) => wanted.min(survey.totals.bytes),
            Sample::Everything => survey.totals.bytes,
        };
        let threshold = u128::from(u64::MAX) * u128::from(COMPRESSED_BYTES) / u128::from(bytes.max(1));
        let threshold = u64::try_from(threshold).unwrap_or(u64::MAX);
        let compressing =
            Compressing { compression: options.compression, threshold, is_sample: !survey.is_everything() };
        let rules = Rule::all().enumerate().filter(|(_, rule)| survey.is_enough_for(*rule));
        Self {
            threads: options.threads,
            compression: options.compression,
            search: Search::default(),
            keys: Keys::derive(&MasterKey([0; 32]), RepositoryId([0; 16])),
            window: Window::default(),
            rules: rules.map(|(number, rule)| RuleScan::new(number, rule, shares.slots, compressing)).collect(),
            compressors: (0..options.threads).map(|_| Mutex::new(compressor_of(FormatVersion::default()))).collect(),
            sealing: Sealing::default(),
            batches: 0,
        }
    }

    fn take(&mut self, batch: &Batch) -> Result<()> {
        let kept = self.rules.iter().map(RuleScan::open_len).max().unwrap_or_default();
        self.window.advance(kept, batch, &self.search, self.threads);
        let is_measured = self.batches.is_multiple_of(MEASURED_BATCHES);
        self.batches += 1;
        let (window, search, keys, compressors) = (&self.window, &self.search, &self.keys, &self.compressors);
        // Small chunks take longest, so they are first: threads end at about the same time.
        let rules = Mutex::new(self.rules.iter_mut());
        on_threads(self.threads, || {
            let mut cuts = Vec::new();
            let next = || rules.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(rule) = next() {
                // There is one for each thread, so that one is free.
                let Some(mut compressor) = compressors.iter().find_map(|compressor| compressor.try_lock().ok()) else {
                    continue;
                };
                rule.take(window, &mut compressor, &mut cuts);
                if is_measured {
                    rule.measure(window, search, keys);
                }
            }
        });
        if is_measured {
            self.seal()?;
        }
        let mut similar = self.rules.iter_mut().filter_map(|rule| rule.similar.as_mut());
        similar.try_for_each(Similar::check)
    }

    /// Seals the region that the default rule is gathering.
    fn seal(&mut self) -> Result<()> {
        let regions = self.rules.iter().find_map(|scan| scan.all.as_ref());
        let compressor = self.compressors.first_mut().and_then(|compressor| compressor.get_mut().ok());
        match (regions.map(Regions::open), compressor) {
            (Some(region), Some(compressor)) if !region.is_empty() => {
                self.sealing.measure(region, self.compression, compressor, &self.keys)
            }
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> (Vec<RuleScan>, (u64, Duration)) {
        if let Some(compressor) = self.compressors.first_mut().and_then(|compressor| compressor.get_mut().ok()) {
            self.rules.iter_mut().for_each(|rule| rule.end_regions(compressor));
        }
        (self.rules, (self.sealing.plain_bytes, self.sealing.processor))
    }
}

#[cfg(test)]
mod advise_tests;
