//! Options of the laboratory's commands on traces.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::ExcludeArgs;
use crate::args::lab::chunker::ChunkerArgs;

/// Options of `lab synth`.
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// File to write; it must not exist
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Same seed, same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// States of the source
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) versions: u32,
    /// Objects (files, images) of the first version
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) objects: u64,
    /// Mean length of an object in chunks
    #[arg(long, value_name = "MEAN", default_value_t = 100.0)]
    pub(crate) object_chunks: f64,
    /// Share of the first version's objects that each later version adds
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub(crate) added: f64,
    /// Share of objects that each later version removes
    #[arg(long, value_name = "SHARE", default_value_t = 0.005)]
    pub(crate) removed: f64,
    /// Share of objects that each later version modifies
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub(crate) modified: f64,
    /// Share of a modified object's chunks that are rewritten
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) changed: f64,
    /// Mean length of a run of new chunks
    #[arg(long, value_name = "MEAN", default_value_t = 16.0)]
    pub(crate) change_run: f64,
    /// Share of runs of new chunks that come from a common pool: duplicates within a version
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) pooled: f64,
    /// Sources of runs in the pool
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) pool_size: u64,
    /// Exponent of their popularity (Zipf); 0 makes all the same
    #[arg(long, value_name = "EXPONENT", default_value_t = 1.0)]
    pub(crate) pool_skew: f64,
    /// Mean length of a chunk: a quarter of it at least, and an exponential rest, up to eight times the mean
    #[arg(long, value_name = "SIZE", default_value = "8k")]
    pub(crate) chunk_size: String,
    /// Length of all chunks instead
    #[arg(long, value_name = "SIZE", conflicts_with = "chunk_size")]
    pub(crate) fixed_chunk_size: Option<String>,
}

/// Hash that names chunks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HashName {
    /// BLAKE3
    Blake3,
    /// SHA-1
    Sha1,
    /// SHA-256
    Sha256,
}

/// Options of `lab record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    /// File to write; it must not exist
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Paths to read: each is a version of the source, in this order. The option --repo
    /// cuts and names chunks as a backup into that repository does
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) chunker: ChunkerArgs,
    /// Hash that names chunks, of which 160 bits are kept
    #[arg(long, value_name = "HASH", default_value = "blake3", conflicts_with = "repo")]
    pub(crate) hash: HashName,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
}

/// Formats of other programs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ImportFormat {
    /// Hash files of the File systems and Storage Lab, versions 1 to 7
    Fsl,
    /// Text of destor
    Destor,
    /// Hashes of 20 bytes, one after the other
    Raw,
    /// Lines of hash,size
    Csv,
}

/// Options of `lab import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// Format of the files
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) format: ImportFormat,
    /// Length of all chunks, if the format has none (raw)
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub(crate) chunk_size: String,
    /// File to write; it must not exist
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Files to read: each is a version of the source, in this order
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// Options of `lab describe`.
#[derive(Args, Debug)]
pub(crate) struct DescribeArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Directory for temporary data, up to 52 bytes per chunk [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
}
