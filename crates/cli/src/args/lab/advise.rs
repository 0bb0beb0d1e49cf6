//! Options of `lab advise`.

use std::path::PathBuf;

use clap::Args;

use crate::args::ExcludeArgs;

/// Options of `lab advise`.
#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    /// Files and directories that would be backed up
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Amount to read, chosen by the names of files; all or 0 reads everything
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub(crate) sample: String,
    /// Write the findings to a new file, as JSON that `lab report` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) findings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
}
