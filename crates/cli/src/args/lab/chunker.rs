//! Options that choose how the laboratory cuts data into chunks.

use clap::Args;
use onefold_lab::chunkers::Algorithm;

/// Cutting of data.
#[derive(Args, Debug)]
pub(crate) struct ChunkerArgs {
    /// Algorithm that sets the boundaries of chunks
    #[arg(long, value_name = "CHUNKER", default_value = "gear", conflicts_with = "repo")]
    pub(crate) chunker: Algorithm,
    /// Average length of a chunk, from 512 to 1M; with --chunker fixed its length, from 64 to 8M
    #[arg(long, value_name = "SIZE", default_value = "8k", conflicts_with = "repo")]
    pub(crate) chunk_size: String,
    /// Shortest chunk, for all but fixed, ae and ram [default: a half of the average for gear and seqcdc, an eighth for rabin
    /// and destor-rabin, a quarter for fastcdc, 46% for tttd]
    #[arg(long, value_name = "SIZE", conflicts_with = "repo")]
    pub(crate) min_chunk_size: Option<String>,
    /// Longest chunk, up to 8M [default: eight times the average; gear: four times, tttd: 2.8 times, seqcdc: twice]
    #[arg(long, value_name = "SIZE", conflicts_with = "repo")]
    pub(crate) max_chunk_size: Option<String>,
    /// Set a parameter of the chunker: backup-divisor of tttd; sequence-length, skip-trigger or skip-size of seqcdc
    #[arg(long, value_name = "PARAMETER=VALUE", conflicts_with = "repo")]
    pub(crate) chunker_set: Vec<String>,
    /// Short form of --chunker fixed --chunk-size SIZE
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["chunker", "chunk_size", "min_chunk_size", "max_chunk_size", "chunker_set", "repo"]
    )]
    pub(crate) fixed_chunk_size: Option<String>,
}
