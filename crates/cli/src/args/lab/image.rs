//! Options of `lab image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use onefold_engine::source::exclude::parse_size;

/// The commands of stores of images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make a store of the image of a disk
    ///
    /// Halves blocks of 128 KiB, down to the smallest size, unless an equal block of the same size is in the image. Equal blocks are stored
    /// once, and zeros take no space.
    #[command(after_help = examples! {
        "Deduplicate an image in blocks of 4 to 128 KiB": "onefold lab image pack disk.img disk.store --min-block 4k";
    })]
    Pack(PackArgs),
    /// Read bytes of an image
    #[command(after_help = examples! {
        "Bring a whole image back": "onefold lab image read disk.store --output disk.img";
        "Show the first sector": "onefold lab image read disk.store --length 512";
    })]
    Read(ReadArgs),
    /// Write bytes to an image
    #[command(after_help = examples! {
        "Write a file 1 MiB behind the beginning": "onefold lab image write disk.store boot.img --offset 1M";
    })]
    Write(WriteArgs),
    /// Replace a range of an image by zeros, which take no space
    #[command(after_help = examples! {
        "Discard the first MiB": "onefold lab image trim disk.store --length 1M";
    })]
    Trim(TrimArgs),
    /// Join neighboring blocks that writes have divided
    ///
    /// Two halves become one block if both are zeros, if both are not shared, or if the block that they make is stored already. Also
    /// gives the space of blocks that nothing refers to back to later writes.
    #[command(after_help = examples! { "Make the index of a store shorter": "onefold lab image compact disk.store" })]
    Compact(StoreArgs),
    /// Verify every block, reference counts and free space
    #[command(after_help = examples! { "Verify a store": "onefold lab image check disk.store" })]
    Check(StoreArgs),
    /// Show the sizes of a store
    #[command(after_help = examples! { "Show what a store takes": "onefold lab image stats disk.store" })]
    Stats(StoreArgs),
}

/// Options of `lab image pack`.
#[derive(Args, Debug)]
pub(crate) struct PackArgs {
    /// Image: a regular file
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,
    /// Directory to create
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// Smallest block: 1k, 2k, 4k and so on up to 128k
    #[arg(long, value_name = "SIZE", default_value = "1k", value_parser = level)]
    pub(crate) min_block: u8,
    /// Directory for temporary files, if names of blocks do not fit --memory: 32 bytes for each of the smallest blocks [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
}

/// A range of an image.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RangeArgs {
    /// First byte
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub(crate) offset: u64,
    /// Bytes [default: up to the end of the image]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) length: Option<u64>,
}

/// Options of `lab image read`.
#[derive(Args, Debug)]
pub(crate) struct ReadArgs {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// File to write, or to replace [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Options of `lab image write`.
#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// File whose bytes are written; - is standard input, up to its end
    #[arg(value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// First byte of the image that is replaced
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub(crate) offset: u64,
}

/// Options of `lab image trim`.
#[derive(Args, Debug)]
pub(crate) struct TrimArgs {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
}

/// Options of the commands without others.
#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Reads the size of a block, and returns its level.
fn level(text: &str) -> Result<u8, String> {
    let bytes = size(text)?;
    (0..=7).find(|level| bytes == 1024 << level).ok_or_else(|| "1k, 2k, 4k, 8k, 16k, 32k, 64k or 128k".to_owned())
}
