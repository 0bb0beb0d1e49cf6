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
    /// Amount to read; all or 0 reads everything
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub(crate) sample: String,
    /// Number that chooses among the samples of this size
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Also estimate the size with similar data compressed against each other, as a backup does; takes twice the time
    #[arg(long)]
    pub(crate) similarity: bool,
    /// Directory for the temporary file of --similarity, as large as the repository of the sample [default: the directory for
    /// temporary files]
    #[arg(long, value_name = "DIR", requires = "similarity")]
    pub(crate) scratch: Option<PathBuf>,
    /// Write the findings to a new file, as JSON that `lab report` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) findings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
}
