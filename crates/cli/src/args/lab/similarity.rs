//! Options of `lab similarity`.

use std::path::PathBuf;

use clap::Args;
use onefold_lab::similarity::point::Point;

use crate::args::ExcludeArgs;
use crate::args::lab::chunker::ChunkerArgs;

/// Options of `lab similarity`.
#[derive(Args, Debug)]
pub(crate) struct SimilarityArgs {
    /// Paths to read: each is a version of the source, in this order
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// A way to choose bases: none, or settings with commas between them, of anchors=DISTANCE, odess, finesse, n-transform,
    /// sample=N, depth=N, bases=N, region=SIZE, chunks; what is not set is as by default. Repeat it for several [default: the
    /// default, and each setting changed]
    #[arg(long = "point", value_name = "POINT", value_parser = Point::parse)]
    pub(crate) points: Vec<Point>,
    /// Level of Zstandard
    #[arg(long, value_name = "LEVEL", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Decompress and compare every region, not only those of the last version
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) chunker: ChunkerArgs,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
    /// Write the findings to a new file, as JSON that `lab report` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) findings: Option<PathBuf>,
    /// Directory for temporary files, as large as twice all distinct chunks [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}
