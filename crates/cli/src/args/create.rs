//! Options of `init` and `upgrade`.

use clap::{Args, ValueEnum};
use onefold_engine::object::FormatVersion;

use crate::args::key::KeyCostArgs;

/// Purpose of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum PurposeArg {
    /// Files and streams
    #[default]
    Files,
    /// Volumes
    Volumes,
}

/// Options of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// Do not encrypt: everyone who can read the repository can read its contents
    #[arg(long)]
    pub(crate) no_encryption: bool,
    /// Choose the defaults of the sizes for files, or for volumes that are protected continuously: chunks of 4k and
    /// regions of 128k
    #[arg(long = "for", value_name = "CONTENTS", value_enum, default_value_t)]
    pub(crate) purpose: PurposeArg,
    /// Average length of a chunk, from 512 to 1M; at most an eighth of a container [default: 8k]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_size: Option<String>,
    /// Length of every chunk, from 64 to 8M, instead of cutting by contents
    #[arg(long, value_name = "SIZE", conflicts_with = "chunk_size")]
    pub(crate) fixed_chunk_size: Option<String>,
    /// Size of a region, which is compressed and encrypted as one, from 4k to 8M [default: 512k, at most a quarter
    /// of a container]
    #[arg(long, value_name = "SIZE")]
    pub(crate) region_size: Option<String>,
    /// Length of a container, from 64k to 64M [default: 4M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) container_size: Option<String>,
    /// Version of the format, 1 or 2. Version 2 compresses new data against similar data. Programs of version 0.1.0 read only version 1
    #[arg(long, value_name = "VERSION", default_value_t = FormatVersion::default().number(), value_parser = clap::value_parser!(u16).range(1..=2))]
    pub(crate) format: u16,
    /// Never compress data against similar data of the repository; needs format 2
    #[arg(long)]
    pub(crate) no_similarity: bool,
    #[command(flatten)]
    pub(crate) cost: KeyCostArgs,
}

/// Options of `upgrade`.
#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// Version that the repository gets. Version 2 compresses new data against similar data. Programs of version 0.1.0 refuse it
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u16).range(2..=2))]
    pub(crate) format: u16,
}
