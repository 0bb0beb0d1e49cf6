//! Options of the laboratory's commands on traces.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use onefold_lab::record::Hash;
use onefold_lab::trace::synth::SynthSpec;

use crate::args::ExcludeArgs;
use crate::args::accelerator::AcceleratorArgs;
use crate::args::lab::chunker::ChunkerArgs;

/// Options of `lab synth`.
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// File to write; it must not exist
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) spec: SynthSpec,
    /// Mean length of a chunk: a quarter of it at least, and an exponential rest, up to eight times the mean
    #[arg(long, value_name = "SIZE", default_value = "8k")]
    pub(crate) chunk_size: String,
    /// Length of all chunks instead
    #[arg(long, value_name = "SIZE", conflicts_with = "chunk_size")]
    pub(crate) fixed_chunk_size: Option<String>,
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
    pub(crate) hash: Hash,
    #[command(flatten)]
    pub(crate) accelerator: AcceleratorArgs,
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
    /// Hashes of 20 bytes, each followed by the length of its chunk, a 32-bit little-endian integer
    Records,
    /// Lines of hash,size
    Csv,
}

/// Formats that traces are written in.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Text of destor
    Destor,
    /// Hashes of 20 bytes, one after the other, without the lengths of chunks
    Raw,
    /// Hashes of 20 bytes, each followed by the length of its chunk, a 32-bit little-endian integer
    Records,
    /// Lines of hash,size
    Csv,
}

/// Options of `lab export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Format of the files
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Directory to create, with a file for each version: its number in ten digits, a dot and the name of the format
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
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
