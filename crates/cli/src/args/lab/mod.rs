//! Options of the laboratory.

use clap::Subcommand;

use crate::args::lab::advise::AdviseArgs;
use crate::args::lab::experiment::{PaperArgs, PresetsArgs, RunArgs};
use crate::args::lab::report::ReportArgs;
use crate::args::lab::trace::{DescribeArgs, ImportArgs, RecordArgs, SynthArgs};

pub(crate) mod advise;
pub(crate) mod chunker;
pub(crate) mod experiment;
pub(crate) mod report;
pub(crate) mod trace;

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
    /// Find the duplicates of a trace in the ways and on the devices that are named, and say what it took
    Run(RunArgs),
    /// List the ways of finding duplicates that have names
    Presets(PresetsArgs),
    /// Do what papers did, and say what they found beside what is found here
    Paper(PaperArgs),
    /// Make a page with plots of what experiments found
    Report(ReportArgs),
    /// Sample data and say what each chunk size would save and take: repository, index, memory, time
    Advise(AdviseArgs),
}
