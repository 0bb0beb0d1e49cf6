//! `lab`.

use std::sync::Arc;

use anyhow::Result;

use crate::args::lab::LabCommand;
use crate::output::Output;
use crate::settings::Settings;

mod advise;
mod chunker;
mod experiment;
mod image;
mod rates;
mod report;
mod similarity;
mod trace;

/// Carries out a command of the laboratory. `names_repository`: --repo was given.
pub(crate) fn run(
    settings: &Settings,
    output: &Arc<Output>,
    names_repository: bool,
    command: &LabCommand,
) -> Result<()> {
    match command {
        LabCommand::Record(args) => trace::record(settings, output, names_repository, args),
        LabCommand::Synth(args) => trace::synth(output, args),
        LabCommand::Import(args) => trace::import(output, args),
        LabCommand::Export(args) => trace::export_trace(output, args),
        LabCommand::Describe(args) => trace::describe_trace(output, args),
        LabCommand::Run(args) => experiment::run(output, args),
        LabCommand::Regret(args) => experiment::regret(settings, output, args),
        LabCommand::Presets(args) => experiment::presets(output, args),
        LabCommand::Paper(args) => experiment::paper(output, args),
        LabCommand::Scaling(args) => experiment::scaling(output, args),
        LabCommand::Measure => experiment::measure(output),
        LabCommand::Rates(args) => rates::rates(output, args),
        LabCommand::Report(args) => report::report(output, args),
        LabCommand::Advise(args) => advise::advise(settings, output, args),
        LabCommand::Image(command) => image::run(settings, output, command),
        LabCommand::Similarity(args) => similarity::similarity(settings, output, args),
    }
}
