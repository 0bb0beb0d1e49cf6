//! Options of the commands that list, write and verify parts of a repository.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::SelectionArgs;
use crate::args::accelerator::AcceleratorArgs;
use crate::args::backup::Grouping;

/// Options of `snapshots`.
#[derive(Args, Debug)]
pub(crate) struct SnapshotsArgs {
    /// Select only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// List only the last N snapshots of each host and paths, or of each group
    #[arg(long, value_name = "N")]
    pub(crate) latest: Option<usize>,
    /// List only the last snapshot of each host and paths
    #[arg(long, hide = true, conflicts_with = "latest")]
    pub(crate) last: bool,
    /// Group the snapshots by host, paths or tags
    #[arg(short, long, value_name = "host,paths,tags", value_parser = Grouping::parse)]
    pub(crate) group_by: Option<Grouping>,
    /// Omit the paths from the table
    #[arg(short, long)]
    pub(crate) compact: bool,
    /// Show all 64 digits of the ids
    #[arg(long)]
    pub(crate) long_ids: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Key by which `ls` sorts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SortArg {
    /// The path
    Name,
    /// The size
    Size,
    /// The time of the last change of the contents
    #[value(alias = "time")]
    Mtime,
    /// The time of the last access, if the backup stored it, or else of the last change of the contents
    Atime,
    /// The time of the last change of the inode
    Ctime,
    /// The part of the name after the last dot
    Extension,
}

/// Options of `ls`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct LsArgs {
    /// Snapshot, or SNAPSHOT:PATH for a part of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) snapshot: String,
    /// List only these directories of the snapshot
    #[arg(value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// Show modes, owners, sizes and times
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Also list the directories below them
    #[arg(long)]
    pub(crate) recursive: bool,
    /// Show sizes with units
    #[arg(long)]
    pub(crate) human_readable: bool,
    /// Sort key; a sorted listing is held in memory
    #[arg(short, long, value_name = "BY", value_enum, default_value = "name", conflicts_with = "ncdu")]
    pub(crate) sort: SortArg,
    /// Reverse the order; a reversed listing is held in memory
    #[arg(long, conflicts_with = "ncdu")]
    pub(crate) reverse: bool,
    /// Write the format that ncdu imports
    #[arg(long, conflicts_with = "json")]
    pub(crate) ncdu: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Format of a directory that `dump` writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ArchiveFormat {
    /// GNU tar
    Tar,
    /// zip, with the directory at the end
    Zip,
}

/// Options of `dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
    /// File to write as it is, or directory to write as an archive
    #[arg(value_name = "PATH")]
    pub(crate) file: PathBuf,
    /// Format of the archive
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "tar")]
    pub(crate) archive: ArchiveFormat,
    /// Write to this file instead of the output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) target: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `check`.
#[derive(Args, Debug, Default)]
pub(crate) struct CheckArgs {
    /// Only follow the references of these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Read and verify every byte
    #[arg(long, conflicts_with = "read_data_subset")]
    pub(crate) read_data: bool,
    /// Read a part: the n-th of m parts, or a random part of this percentage or size
    #[arg(long, value_name = "n/m|N%|SIZE")]
    pub(crate) read_data_subset: Option<String>,
    #[command(flatten)]
    pub(crate) accelerator: AcceleratorArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Kind of the objects
    #[arg(value_name = "TYPE", value_enum)]
    pub(crate) objects: ListedObjects,
}

/// Kind of object that `list` lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ListedObjects {
    /// Snapshots
    Snapshots,
    /// Key slots
    Keys,
    /// Containers
    #[value(alias = "containers")]
    Packs,
    /// Containers that were set aside because they are damaged
    Quarantined,
    /// Chunks, with what each holds: data or tree
    #[value(alias = "chunks")]
    Blobs,
    /// Nothing: the index is kept on this host
    Index,
    /// Nothing: a repository has no locks
    Locks,
}
