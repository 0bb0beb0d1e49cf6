//! Options of `restore`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{ExcludePatterns, SelectionArgs};

/// What to do with files that stand in the target already.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OverwriteArg {
    /// Overwrite them
    Always,
    /// Overwrite those that differ in size or time
    IfChanged,
    /// Overwrite those that are older
    IfNewer,
    /// Leave them alone
    Never,
}

/// Options that exclude what they match from a restore. They conflict with those that include.
const EXCLUDES: [&str; 4] = ["exclude", "iexclude", "exclude_file", "iexclude_file"];

/// Options of `restore`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct RestoreArgs {
    /// Snapshot, or SNAPSHOT:PATH for a part of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) snapshot: String,
    #[command(flatten)]
    pub(crate) destination: DestinationArgs,
    /// Restore only what matches the pattern
    #[arg(short, long, value_name = "PATTERN", conflicts_with_all = EXCLUDES)]
    pub(crate) include: Vec<OsString>,
    /// Like --include, but ignore case
    #[arg(long, value_name = "PATTERN", conflicts_with_all = EXCLUDES)]
    pub(crate) iinclude: Vec<OsString>,
    /// Read patterns to include from a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with_all = EXCLUDES)]
    pub(crate) include_file: Vec<PathBuf>,
    /// Like --include-file, but ignore case
    #[arg(long, value_name = "FILE", conflicts_with_all = EXCLUDES)]
    pub(crate) iinclude_file: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludePatterns,
    /// What to do with files that stand there already; without it, the directory must be empty
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) overwrite: Option<OverwriteArg>,
    /// Restore no set-id bits, capabilities and devices, as is done if the repository is not encrypted
    #[arg(long)]
    pub(crate) untrusted: bool,
    /// Restore them from a repository that is not encrypted, too
    #[arg(long, conflicts_with = "untrusted")]
    pub(crate) trusted: bool,
    /// Also remove what stands in the restored directories and is not in the snapshot; needs --overwrite
    #[arg(long)]
    pub(crate) delete: bool,
    /// Write nothing, only say what would be restored and deleted
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read the restored files again and compare them; every file must then be restored (no --overwrite, or always)
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Where `restore` restores to.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct DestinationArgs {
    /// Directory to restore into
    #[arg(short, long, value_name = "DIR")]
    pub(crate) target: Option<PathBuf>,
    /// Read and verify everything that would be restored, and write nothing
    #[arg(long, conflicts_with_all = ["overwrite", "untrusted", "trusted", "delete", "dry_run", "verify"])]
    pub(crate) discard: bool,
}
