//! Options of `restore`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{ExcludePatterns, IncludePatterns, SelectionArgs};

/// Treatment of files that already exist in the target.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OverwriteArg {
    /// Overwrite them
    Always,
    /// Overwrite those that differ in size or time
    IfChanged,
    /// Overwrite those that are older
    IfNewer,
    /// Keep them
    Never,
}

/// Options of `restore`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct RestoreArgs {
    /// Snapshot, or SNAPSHOT:PATH for a part of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) snapshot: String,
    #[command(flatten)]
    pub(crate) destination: DestinationArgs,
    #[command(flatten)]
    pub(crate) includes: IncludePatterns,
    #[command(flatten)]
    pub(crate) excludes: ExcludePatterns,
    /// Treatment of files that already exist; without this option, the directory must be empty
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) overwrite: Option<OverwriteArg>,
    /// Do not restore set-id bits, capabilities and devices; this is the default if the repository is not encrypted
    #[arg(long)]
    pub(crate) untrusted: bool,
    /// Restore set-id bits, capabilities and devices even if the repository is not encrypted
    #[arg(long, overrides_with = "untrusted")]
    pub(crate) trusted: bool,
    #[command(flatten)]
    pub(crate) metadata: MetadataArgs,
    /// Delete entries of the restored directories that are not in the snapshot; needs --overwrite
    #[arg(long)]
    pub(crate) delete: bool,
    /// Write nothing; only report what a restore would write and delete
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read the restored files back and compare them; excludes every --overwrite but always
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `restore` about metadata.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct MetadataArgs {
    /// Leave every file to the user who restores it
    #[arg(long)]
    pub(crate) no_ownership: bool,
    /// Restore owners by their numbers, not by their names
    #[arg(long, conflicts_with_all = ["no_ownership", "ownership_by_name"])]
    pub(crate) numeric_owner: bool,
    /// Restore owners by their names, where this host knows them; this is the default
    #[arg(long, conflicts_with = "no_ownership")]
    pub(crate) ownership_by_name: bool,
    /// Restore no extended attributes and ACLs
    #[arg(long, conflicts_with_all = ["include_xattr", "exclude_xattr"])]
    pub(crate) no_xattrs: bool,
    /// Restore only extended attributes whose names match the pattern
    #[arg(long, value_name = "PATTERN", conflicts_with = "exclude_xattr")]
    pub(crate) include_xattr: Vec<OsString>,
    /// Do not restore extended attributes whose names match the pattern
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude_xattr: Vec<OsString>,
}

/// Destination of `restore`.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct DestinationArgs {
    /// Directory to restore into
    #[arg(short, long, value_name = "DIR")]
    pub(crate) target: Option<PathBuf>,
    /// Read and verify the data of the restore, and write nothing
    #[arg(long, conflicts_with_all = ["overwrite", "untrusted", "trusted", "delete", "dry_run", "verify"])]
    pub(crate) discard: bool,
}
