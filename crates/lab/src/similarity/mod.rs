//! Similar regions on the user's data: what compression against earlier regions saves, for which memory, speed and reading.
//!
//! [`measure`] reads versions of a source in order and deduplicates them exactly. Each [`point::Point`] then compresses the same
//! distinct chunks with the engine's [policy](onefold_engine::similarity), stores the regions in a temporary file, and restores the last
//! version from it. One long stream over all versions is the reference.

pub mod based;
mod corpus;
mod extract;
pub mod findings;
pub mod point;
mod prefix;
pub mod run;
mod stored;
pub mod super_features;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use onefold_engine::Error;
use onefold_engine::backup::Budget;
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::Excludes;

use crate::chunkers::Chunker;

use corpus::{Corpus, Reading};
use point::Point;
use run::Outcome;

/// Options of a measurement.
#[derive(Debug)]
pub struct SimilarityOptions {
    /// Versions of a source, in order.
    pub paths: Vec<PathBuf>,
    /// Paths to leave out.
    pub excludes: Arc<Excludes>,
    /// How streams are cut.
    pub chunker: Chunker,
    /// Level of Zstandard.
    pub level: i32,
    /// The points.
    pub points: Vec<Point>,
    /// Whether every region is decompressed and compared.
    pub verify: bool,
    /// Memory for chunks and for the long stream, in bytes.
    pub memory_bytes: usize,
    /// Directory of temporary files: as large as all distinct chunks, twice.
    pub scratch: PathBuf,
}

/// Outcome of a measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Bytes of each version.
    pub versions: Vec<u64>,
    /// Distinct chunks.
    pub unique_chunks: u64,
    /// Bytes of them.
    pub unique_bytes: u64,
    /// Bytes of one stream over all versions, or the memory that it would take if that is more than there is.
    pub long_stream: Result<u64, u64>,
    /// Outcome of each point.
    pub outcomes: Vec<Outcome>,
    /// Files and directories that could not be read.
    pub failures: u64,
    /// Time of it all, in seconds.
    pub seconds: f64,
}

/// Measures all points. The monitor learns of failures to read, and hears of each point before it runs.
pub fn measure(
    options: &SimilarityOptions,
    (driver, budget): (&Driver, Budget),
    monitor: &dyn Monitor,
) -> Result<Measured> {
    let start = Instant::now();
    let reading = Reading {
        paths: &options.paths,
        excludes: &options.excludes,
        chunker: options.chunker,
        driver,
        budget,
        scratch: &options.scratch,
        memory_bytes: options.memory_bytes,
    };
    let corpus = Corpus::read(&reading, monitor)?;
    let wanted = prefix::long_stream_memory_bytes(corpus.logical_bytes());
    let long_stream = if wanted <= options.memory_bytes as u64 {
        monitor.note("one long stream");
        Ok(prefix::long_stream(&corpus, options.level)?)
    } else {
        Err(wanted)
    };
    let mut outcomes = Vec::new();
    for point in &options.points {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted.into());
        }
        monitor.note(&point.to_string());
        outcomes.push(run::run(&corpus, *point, options.level, options.verify, &options.scratch)?);
    }
    Ok(Measured {
        versions: corpus.versions.iter().map(|version| version.bytes).collect(),
        unique_chunks: corpus.chunks.len() as u64,
        unique_bytes: corpus.unique_bytes(),
        long_stream,
        outcomes,
        failures: corpus.failures,
        seconds: start.elapsed().as_secs_f64(),
    })
}
