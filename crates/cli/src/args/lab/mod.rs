//! Options of the laboratory.

use clap::{Args, Subcommand};

use crate::args::lab::report::ReportArgs;
use crate::args::lab::trace::{DescribeArgs, ImportArgs, RecordArgs, SynthArgs};

pub(crate) mod report;
pub(crate) mod trace;

/// Options of `lab`.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// The laboratory's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Make up a trace: a source that changes from version to version, of any size
    Synth(Box<SynthArgs>),
    /// Record the chunks of real data
    Record(Box<RecordArgs>),
    /// Turn traces of other formats into one of ours
    Import(ImportArgs),
    /// Say what a trace is like: duplicates, how far back, in how long runs
    Describe(DescribeArgs),
    /// Make a page with plots of what experiments found
    Report(ReportArgs),
}
