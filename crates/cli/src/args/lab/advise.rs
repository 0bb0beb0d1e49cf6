//! Options of `lab advise`.

use std::path::PathBuf;

use clap::Args;

use crate::args::ExcludeArgs;

/// Options of `lab advise`.
#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    /// What would be backed up
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Read about so much, chosen by files' names; all or 0: everything
    #[arg(long, value_name = "SIZE", default_value = "8G")]
    pub(crate) sample: String,
    /// Write what was found to a file, which must not exist, as JSON that `lab report` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) findings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
}
