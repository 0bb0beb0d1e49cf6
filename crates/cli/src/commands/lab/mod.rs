//! `lab`.

use std::sync::Arc;

use anyhow::Result;

use crate::args::lab::LabCommand;
use crate::output::Output;
use crate::settings::Settings;

mod advise;
mod chunker;
mod experiment;
mod report;
mod trace;

/// Carries out a command of the laboratory. `names_repository`: --repo was given.
pub(crate) fn run(
    settings: &Settings,
    output: &Arc<Output>,
    names_repository: bool,
    command: &LabCommand,
) -> Result<()> {
    match command {
        LabCommand::Record(typed) => trace::record(settings, output, names_repository, typed),
        LabCommand::Synth(typed) => trace::synth(output, typed),
        LabCommand::Import(typed) => trace::import(output, typed),
        LabCommand::Describe(typed) => trace::describe_trace(output, typed),
        LabCommand::Run(typed) => experiment::run(output, typed),
        LabCommand::Presets(typed) => experiment::presets(output, typed),
        LabCommand::Paper(typed) => experiment::paper(output, typed),
        LabCommand::Report(typed) => report::report(output, typed),
        LabCommand::Advise(typed) => advise::advise(settings, output, typed),
    }
}
