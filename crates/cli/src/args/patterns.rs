//! Options that exclude and include paths.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Patterns to exclude.
#[derive(Args, Debug)]
pub(crate) struct ExcludePatterns {
    /// Exclude files and directories that match the pattern
    #[arg(short, long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,
    /// Like --exclude, but ignore case
    #[arg(long, value_name = "PATTERN")]
    pub(crate) iexclude: Vec<OsString>,
    /// Read patterns to exclude from a file, one per line
    #[arg(long, value_name = "FILE")]
    pub(crate) exclude_file: Vec<PathBuf>,
    /// Like --exclude-file, but ignore case
    #[arg(long, value_name = "FILE")]
    pub(crate) iexclude_file: Vec<PathBuf>,
}

/// Options that exclude what they match. They conflict with those that include.
const EXCLUDES: [&str; 4] = ["exclude", "iexclude", "exclude_file", "iexclude_file"];

/// Patterns to include.
#[derive(Args, Debug)]
pub(crate) struct IncludePatterns {
    /// Take only files and directories that match the pattern
    #[arg(short, long, value_name = "PATTERN", conflicts_with_all = EXCLUDES)]
    pub(crate) include: Vec<OsString>,
    /// Like --include, but ignore case
    #[arg(long, value_name = "PATTERN", conflicts_with_all = EXCLUDES)]
    pub(crate) iinclude: Vec<OsString>,
    /// Read patterns to include from a file, one per line
    #[arg(long, value_name = "FILE", conflicts_with_all = EXCLUDES)]
    pub(crate) include_file: Vec<PathBuf>,
    /// Like --include-file, but ignore case
    #[arg(long, value_name = "FILE", conflicts_with_all = EXCLUDES)]
    pub(crate) iinclude_file: Vec<PathBuf>,
}

/// Files and directories to exclude from a backup.
#[derive(Args, Debug)]
pub(crate) struct ExcludeArgs {
    #[command(flatten)]
    pub(crate) patterns: ExcludePatterns,
    /// Exclude the contents of directories that a CACHEDIR.TAG marks as caches
    #[arg(long)]
    pub(crate) exclude_caches: bool,
    /// Exclude the contents of directories that hold a file of this name, which begins with HEADER if one is given
    #[arg(long, value_name = "NAME[:HEADER]")]
    pub(crate) exclude_if_present: Vec<OsString>,
    /// Exclude files that are larger
    #[arg(long, value_name = "SIZE")]
    pub(crate) exclude_larger_than: Option<String>,
    /// Do not cross into other file systems
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
}
