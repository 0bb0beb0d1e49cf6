//! Options of `lab report`.

use std::path::PathBuf;

use clap::Args;

/// Options of `lab report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Files of findings, as JSON, in the order of the report
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Page to write, which needs no other file and must not exist
    #[arg(short, long, value_name = "REPORT.html")]
    pub(crate) output: PathBuf,
}
